"""Peers: the programs of other systems, built once from `bench/go`, and how their servers run on loopback.

Stays out: how each peer is configured (`nats_cluster`, `etcd_cluster`, `kafka_cluster`) and what is measured.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.kube import binaries

from .context import Context
from .processes import WorkerFailed

NODES = 3
START_SECONDS, LOAD_SECONDS_MAX = 60.0, 300.0


def programs(context: Context) -> dict[str, Path] | str:
    """Return the programs of `bench/go` by name, or a sentence that says why this machine cannot build them.

    Raises BuildFailed where Go is there and fails.
    """
    try:
        return binaries.prepare(context.say, binaries.PEERS)
    except binaries.Unavailable as problem:
        return str(problem)


def version(name: str) -> str:
    """Return the version that go.mod pins; the builder has checked that the program says the same."""
    return binaries.pinned_version(binaries.PEER_TOOLS[name], binaries.PEERS)


def load(program: Path, **arguments: Any) -> dict[str, Any]:
    """Run a load program to its end and return its one result; raises WorkerFailed."""
    done = subprocess.run(
        (str(program), json.dumps(arguments)), stdout=subprocess.PIPE, text=True, timeout=LOAD_SECONDS_MAX, check=False
    )
    if done.returncode:
        raise WorkerFailed(f"{program.name} ended with exit code {done.returncode}, see its output above")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def servers(commands: Mapping[int, Sequence[str]], directory: Path) -> Iterator[None]:
    """Run each command, by the port that it listens on, for as long as the block lasts; logs go below `directory`.

    Raises TimeoutError when a port does not answer in time.
    """
    with ExitStack() as started:
        for port, command in commands.items():
            log = started.enter_context((directory / f"{port}.log").open("wb"))
            started.callback(_stop, subprocess.Popen(command, stdout=log, stderr=log))
        for port in commands:
            _wait_for(port)
        yield


def _wait_for(port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise TimeoutError(f"no server listens on port {port} after {START_SECONDS:g} s") from None
            time.sleep(0.05)


def _stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(timeout=10)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all different."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [opened.getsockname()[1] for opened in sockets]
