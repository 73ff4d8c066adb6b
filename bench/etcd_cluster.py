"""A three-member etcd on loopback, with its own defaults but for the quota of its store.

Stays out: writing to it (`go/etcdload`), which also waits for its leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .peers import NODES, free_ports, servers

QUOTA_BYTES = 8 << 30
"""etcd refuses writes beyond its quota, 2 GiB by default; a fast machine gets there."""


def commands(program: Path, directory: Path, client_ports: list[int], peer_ports: list[int]) -> dict[int, list[str]]:
    """Return the command line of each member by its client port."""
    names = [f"etcd-{number}" for number in range(1, len(client_ports) + 1)]
    peers = [f"http://127.0.0.1:{port}" for port in peer_ports]
    cluster = ",".join(f"{name}={peer}" for name, peer in zip(names, peers, strict=True))
    return {
        port: [
            str(program), "--name", name, "--data-dir", str(directory / name), "--log-level", "error",
            "--listen-client-urls", f"http://127.0.0.1:{port}", "--advertise-client-urls", f"http://127.0.0.1:{port}",
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", cluster,
            "--quota-backend-bytes", str(QUOTA_BYTES),
        ]
        for name, port, peer in zip(names, client_ports, peers, strict=True)
    }


@contextmanager
def running(program: Path, directory: Path) -> Iterator[list[str]]:
    """Run the members for as long as the block lasts; give their client endpoints."""
    ports = free_ports(2 * NODES)
    with servers(commands(program, directory, ports[:NODES], ports[NODES:]), directory):
        yield [f"127.0.0.1:{port}" for port in ports[:NODES]]
