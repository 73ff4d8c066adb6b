"""Fixtures of the core's tests; each checks the invariants of what it made when the test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.base.limits import Limits

from .support import A, Cluster, Node, begun_cluster


@pytest.fixture
def make_node() -> Iterator[Callable[..., Node]]:
    """Make a lone node, driven by hand."""
    made: list[Node] = []

    def make(me: Member = A, limits: Limits | None = None) -> Node:
        made.append(Node(me, limits))
        return made[-1]

    yield make
    for node in made:
        node.check()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    """Node `a`, alone."""
    return make_node()


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., Cluster]]:
    """Make a cluster with one operator, settled unless asked otherwise."""
    made: list[Cluster] = []

    def make(names: str = "abc", **options: Any) -> Cluster:
        made.append(begun_cluster(names, **options))
        return made[-1]

    yield make
    for cluster in made:
        cluster.check()


@pytest.fixture
def cluster(make_cluster: Callable[..., Cluster]) -> Cluster:
    """Three nodes, led and settled."""
    return make_cluster()
