"""A three-node JetStream cluster on loopback.

Stays out: publishing (`go/natsload`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .peers import NODES, free_ports, servers

_CONFIGURATION = """
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", max_memory_store: 1G, max_file_store: 50G, sync_interval: {sync} }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


@contextmanager
def running(program: Path, directory: Path, sync: str) -> Iterator[dict[str, int]]:
    """Run the cluster for as long as the block lasts; give client ports by server name.

    `sync` is JetStream's `sync_interval`: a time such as "2m", its default, or "always".
    """
    ports, routes = free_ports(NODES), free_ports(NODES)
    names = [f"nats-{number}" for number in range(1, NODES + 1)]
    others = ", ".join(f'"nats-route://127.0.0.1:{route}"' for route in routes)
    commands = {}
    for name, port, route in zip(names, ports, routes, strict=True):
        file = directory / f"{name}.conf"
        file.write_text(_CONFIGURATION.format(
            name=name, port=port, route=route, routes=others, store=directory / name, sync=sync))
        commands[port] = (str(program), "-c", str(file))
    with servers(commands, directory):
        yield dict(zip(names, ports, strict=True))
