"""Retention on three nodes: the leader removes by bytes and by age, followers follow, readers are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from node_harness import SHARD, Appender, OperatorHand, batch, push_map, read_all, shard_map
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.log import MARK_BYTES
from tidemark_core.replication.messages import Appended
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_node.store import open_store
from tidemark_wire import status

from tests.waiting import remains, until

HALF_MIB = 1 << 19
KEPT_BYTES = 2 << 20


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[list[Node]]:
    """Three nodes that look ten times a second."""
    made = [
        Node(
            Settings(node=name, data=tmp_path / name, metrics_listen="off", disk_reserve_bytes=1 << 20),
            Limits(retention_look_ms=100),
        )
        for name in "abc"
    ]
    for node in made:
        await node.start()
    yield made
    for node in made:
        if not node.draining.is_set():
            await node.stop()


async def push(nodes: list[Node], version: int, **group: int) -> None:
    pushed = shard_map([(node.me, node.address) for node in nodes], "a", version, **group)
    for node in nodes:
        await push_map(node.address, pushed)


async def lead(nodes: list[Node], operator: OperatorHand, **group: int) -> Appender:
    """Make the first node lead all; return a stream to it."""
    await push(nodes, 1, **group)
    for node in nodes:
        await operator.link(node.me.node, node.address)
    await operator.elect(1, nodes[0].me, tuple(node.me for node in nodes))
    return Appender(nodes[0].address)


async def fill(appender: Appender, count: int, start: int = 0) -> None:
    for sequence in range(start, start + count):
        answer = await appender.append(batch(sequence, bytes(HALF_MIB)))
        assert isinstance(answer, Appended), answer


def first(node: Node) -> int:
    return node.driver.core.log.status(SHARD)["first"]


def held(node: Node) -> int:
    return node.driver.core.log.status(SHARD)["bytes"]


async def until_removed(nodes: list[Node], least: int) -> None:
    """Wait until the leader has no look before it, and all nodes have removed the same, at least what is below."""
    await until(lambda: (
        not nodes[0].driver.core.log.shards[SHARD].leader.retention.armed
        and len({first(node) for node in nodes}) == 1
        and first(nodes[0]) >= least
    ))


async def refusal_below(node: Node) -> Refused:
    """Read from the beginning, which is not there any more."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read_all(node.address)
    hinted = status.refusal_from_rpc_error(caught.value)
    assert hinted is not None and hinted.refused.reason is Reason.TRIMMED
    return hinted.refused


async def read_kept(node: Node) -> list[Entry]:
    """Read from the first offset kept, as the refusal says; a CONFIRM may end a stretch and let another one go."""
    while True:
        kept_from = (await refusal_below(node)).expected
        try:
            entries = await read_all(node.address, first=kept_from)
        except grpc.aio.AioRpcError:
            assert kept_from < first(node)
        else:
            assert kept_from == entries[0].base
            return entries


async def test_bytes_bound_every_copy_and_the_rest_is_read(
    tmp_path: Path, nodes: list[Node], operator: OperatorHand
):
    appender = await lead(nodes, operator, retention_bytes=KEPT_BYTES)
    await fill(appender, 24)
    await until_removed(nodes, 18)
    assert [] == [held(node) for node in nodes if held(node) > KEPT_BYTES + MARK_BYTES]

    kept = [entry.sequence for entry in await read_kept(nodes[0]) if entry.kind is Kind.DATA]
    assert kept and list(range(kept[0], 24)) == kept

    await appender.close()
    for node in nodes:
        await node.stop()
    for node in nodes:
        store = open_store(tmp_path / node.me.node, node.me.node)
        assert first(node) == next(iter(store.headers(SHARD, 0))).base, "what was removed is gone from the disk"
        store.close()


async def test_age_removes_from_an_idle_group_once_it_is_asked_for(nodes: list[Node], operator: OperatorHand):
    appender = await lead(nodes, operator)
    await fill(appender, 8)
    await remains(lambda: [0, 0, 0] == [first(node) for node in nodes], for_s=0.3)
    await push(nodes, 2, retention_ms=1_000)
    await until_removed(nodes, 6)

    assert isinstance(await appender.append(batch(8)), Appended)
    assert 8 == [entry.sequence for entry in await read_kept(nodes[0]) if entry.kind is Kind.DATA][-1]
    await appender.close()
