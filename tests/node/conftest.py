"""Fixtures of node tests: processes that never outlive their test."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from node_harness import NodeProcess, OperatorHand


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    started: list[NodeProcess] = []

    def start(name: str, *arguments: str, prefix: tuple[str, ...] = ()) -> NodeProcess:
        node = NodeProcess(name, tmp_path, *arguments, prefix=prefix)
        started.append(node)
        node.start()
        return node

    yield start
    for node in started:
        node.kill()


@pytest.fixture
async def operator() -> AsyncIterator[OperatorHand]:
    hand = OperatorHand()
    yield hand
    await hand.close()


@pytest.fixture
def in_user_namespace(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str] | None]:
    """Run a shell command as root of a fresh user and mount namespace; None where the system forbids that."""
    (tmp_path / "disk").mkdir()

    def run(command: str) -> subprocess.CompletedProcess[str] | None:
        allowed = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", f"mount -t tmpfs -o size=1m tmpfs {tmp_path}/disk"], capture_output=True
        )
        if allowed.returncode:
            return None
        return subprocess.run(["unshare", "-Urm", "sh", "-c", command], capture_output=True, text=True, timeout=60)

    return run
