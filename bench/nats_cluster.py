"""A three-node JetStream cluster on loopback, from the `nats-server` on PATH.

Stays out: publishing (`workers.nats_publisher`).
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

NODES = 3
START_SECONDS = 20.0

_CONFIGURATION = """
server_name: {name}
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{store}", max_memory_store: 1G, max_file_store: 50G }}
cluster {{ name: bench, listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


def installed() -> bool:
    return shutil.which("nats-server") is not None


@contextmanager
def running(directory: Path) -> Iterator[dict[str, int]]:
    """Run the cluster for as long as the block lasts; give client ports by server name."""
    ports, routes = _free_ports(NODES), _free_ports(NODES)
    names = [f"nats-{number}" for number in range(1, NODES + 1)]
    everybody = ", ".join(f'"nats-route://127.0.0.1:{route}"' for route in routes)
    with ExitStack() as started:
        for name, port, route in zip(names, ports, routes, strict=True):
            file = directory / f"{name}.conf"
            file.write_text(
                _CONFIGURATION.format(name=name, port=port, route=route, routes=everybody, store=directory / name)
            )
            log = started.enter_context((directory / f"{name}.log").open("wb"))
            server = subprocess.Popen(("nats-server", "-c", str(file)), stdout=log, stderr=log)
            started.callback(_stop, server)
        for port in ports:
            _wait_for(port)
        yield dict(zip(names, ports, strict=True))


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _wait_for(port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise TimeoutError(f"nats-server does not listen on port {port}") from None
            time.sleep(0.05)


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [opened.getsockname()[1] for opened in sockets]
