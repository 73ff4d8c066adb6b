"""Sinks over the wire to a real node (rules W1, W2): the record is in the log, and there after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tidemark
from node_harness import GROUP, OperatorHand, read_all
from test_node_claims import lead, push
from tidemark import SinkEnd, errors
from tidemark_core.base.entry import Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.sinks.fold import ENDS_MAX, SINKS_MAX
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_wire.sinks import sinks_from_proto
from tidemark_wire.v1 import node_pb2
from tidemark_wire.wire_version import VERSION_OF_SINKS

ENDS = (SinkEnd(0, 9, 5, 77), SinkEnd(1, 4, 2, (1 << 32) - 1))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = Node(Settings(
        node="a", data=tmp_path / "a", metrics_listen="off", disk_reserve_bytes=1 << 20,
        subscription_lease_seconds_max=40 * 86_400))
    await made.start()
    yield made
    await made.stop()


async def test_w2_a_node_keeps_joins_and_marks_in_the_log(node: Node, operator: OperatorHand) -> None:
    await lead(node, operator)
    async with await tidemark.connect(node.address) as client:
        sinks = client.sinks(GROUP)
        assert await sinks.join("a job", 7, 2) is False
        with pytest.raises(errors.RequestRefused) as caught:
            await sinks.mark("a job", 7, 2, ENDS)
        assert caught.value.reason == "PART_LEFT_OUT"
        await sinks.mark("a job", 7, 3, ENDS)
        assert await sinks.join("a job", 7, 0) is True
        found = await sinks.get("a job")
        assert found is not None and (found.batch, found.marked, found.parts, found.joined) == (7, 7, 3, 0)
        assert found.ends == tuple((7, *end) for end in ENDS)
        assert 0 < found.expires_in_ms <= found.lease_ms == 30 * 86_400_000
        kinds = [entry.kind for entry in await read_all(node.address)]
        assert kinds == [Kind.EPOCH_START, Kind.SINK, Kind.SINK]
        assert [record async for record in client.read(GROUP, until=2)] == [], "readers are given none of it"
        assert await sinks.delete("a job") is True and await sinks.list() == ()


async def test_w1_sinks_that_cannot_be_are_refused_by_name(node: Node, operator: OperatorHand) -> None:
    await lead(node, operator)
    async with await tidemark.connect(node.address) as client:
        with pytest.raises(errors.RequestRefused, match="subscription-lease-seconds-max"):
            await client.sinks(GROUP).join("job", 0, 0, lease_s=41 * 86_400)
        await push(node, 2, kind="Documents")
        with pytest.raises(errors.WrongKind, match="sinks write to logs"):
            await client.sinks(GROUP).join("job", 0, 0)


async def test_w1_a_log_that_an_older_node_keeps_too_gets_no_record(node: Node, operator: OperatorHand) -> None:
    await lead(node, operator)
    await push(node, 2, {"b": VERSION_OF_SINKS - 1, "c": VERSION_OF_SINKS, "d": 0})
    async with await tidemark.connect(node.address) as client:
        with pytest.raises(errors.RequestRefused, match="upgrade b") as caught:
            await client.sinks(GROUP).join("job", 0, 0)
        assert caught.value.reason == "NEEDS_UPGRADE"
        assert await client.sinks(GROUP).list() == ()


def test_a_view_of_more_than_a_shard_holds_is_refused() -> None:
    end = node_pb2.SinkEnd()
    for wrong in (
        node_pb2.SinksResponse(sinks=[node_pb2.Sink()] * (SINKS_MAX + 1)),
        node_pb2.SinksResponse(sinks=[node_pb2.Sink(ends=[end] * ENDS_MAX), node_pb2.Sink(ends=[end])]),
    ):
        with pytest.raises(RemoteViolation, match="sinks of a shard"):
            sinks_from_proto(wrong)
