"""Clusters where some members need not keep every payload, and what their disks hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest import mock

from tidemark_core.base.entry import Batch, Entry, Kind
from tidemark_core.replication.leader import Leader

from tests.core.support import SHARD, Cluster, Node, batch


def order_of(*slots: int) -> int:
    """Pack a reading order."""
    return sum(slot << (4 * place) for place, slot in enumerate(slots))


@contextmanager
def orders(*wanted: Sequence[int]) -> Iterator[None]:
    """Let leaders give these orders in turn, entry by entry; the last one for ever."""
    left = [order_of(*slots) for slots in wanted]

    def next_order(self: Leader, now_ms: int, what: Batch) -> int:
        return left.pop(0) if len(left) > 1 else left[0]

    with mock.patch.object(Leader, "_order", next_order):
        yield


def fill(cluster: Cluster, count: int, first: int = 0) -> None:
    """Append batches one after the other, each confirmed."""
    for sequence in range(first, first + count):
        request = cluster.append(batch(sequence, payload=b"payload-%d" % sequence))
        assert cluster.run_until(lambda request=request: request in cluster.answers), "not confirmed"


def settled_bare(cluster: Cluster) -> None:
    """Let the leader tell what is surplus, and everybody drop it."""
    cluster.run_for(5_000)


def held(node: Node) -> list[int]:
    """Return the sequences of the data entries whose payload this node has on disk."""
    return [entry.sequence for entry in data(node) if entry.held]


def bare(node: Node) -> list[int]:
    """Return the sequences of those it has as headers alone."""
    return [entry.sequence for entry in data(node) if not entry.held]


def data(node: Node) -> list[Entry]:
    return [entry for entry in node.durable[SHARD].all() if entry.kind is Kind.DATA]
