"""Fixtures of node tests: processes that never outlive their test."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import tidemark
from node_harness import NodeProcess, OperatorHand, SharedNodes, Three

LIMIT_S = 60


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


@pytest.fixture(scope="module")
def nodes_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedNodes]:
    shared = SharedNodes(tmp_path_factory)
    yield shared
    shared.kill()


@pytest.fixture
def nodes(nodes_of_the_file: SharedNodes, request: pytest.FixtureRequest) -> list[NodeProcess]:
    """Three nodes of the file that run, whatever the test before did to them."""
    return nodes_of_the_file.renew(request.session.testsfailed)


@pytest.fixture
async def operator() -> AsyncIterator[OperatorHand]:
    hand = OperatorHand()
    yield hand
    await hand.close()


@pytest.fixture
async def three(nodes: list[NodeProcess], operator: OperatorHand) -> Three:
    """A group of this test, led by the first of the nodes of the file."""
    found = Three(nodes, operator)
    await found.lead(nodes[0])
    return found


@pytest.fixture
async def client(three: Three) -> AsyncIterator[tidemark.Client]:
    async with await tidemark.connect([node.address for node in three.nodes]) as client:
        yield client


@pytest.fixture
def in_user_namespace(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str] | None]:
    """Run a shell command as root of a fresh user and mount namespace; None where the system forbids that."""
    (tmp_path / "disk").mkdir()

    def run(command: str) -> subprocess.CompletedProcess[str] | None:
        allowed = subprocess.run(
            ["unshare", "-Urm", "sh", "-c", f"mount -t tmpfs -o size=1m tmpfs {tmp_path}/disk"], capture_output=True,
            timeout=LIMIT_S)
        if allowed.returncode:
            return None
        return subprocess.run(["unshare", "-Urm", "sh", "-c", command], capture_output=True, text=True, timeout=LIMIT_S)

    return run
