"""Fixtures of node tests: processes that never outlive their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from node_harness import NodeProcess, OperatorHand


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    started: list[NodeProcess] = []

    def start(name: str, *arguments: str) -> NodeProcess:
        node = NodeProcess(name, tmp_path, *arguments)
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
