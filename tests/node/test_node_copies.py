"""A node that keeps some payloads and not others: what it says to readers, to members that pull, and to people."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from delivery_harness import Stream, begin_with, rotating_log
from node_harness import GROUP, SHARD, push_map, shard_map
from prometheus_client import generate_latest
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import Member
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.messages import NOT_HELD, singly
from tidemark_core.delivery.order import Mode
from tidemark_node.main import Node
from tidemark_wire import channel, status
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import until

ABC = ("a", "b", "c")
COPIES, ENTRIES = 2, 30
LOG = rotating_log(ENTRIES, payload=bytes(1000))    # first places go round, so slot 0 keeps two of three
SURPLUS = [entry.base for entry in LOG if entry.kind is Kind.DATA and entry.order & 0xF == 1]
HEAD = LOG[-1].last
assert len(SURPLUS) == ENTRIES // 3


@pytest.fixture
async def begun(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Start the node of slot 0; `without` are those whose payload it has not."""
    nodes: list[Node] = []

    async def begin(without: list[int], dropped: int = HEAD) -> Node:
        others = (Member("b", "life"), Member("c", "life"))
        node = begin_with(tmp_path, "a", LOG, others=others, copies=COPIES, without=without, dropped=dropped)
        nodes.append(node)
        await node.start()
        members = [(node.me, node.address), *((other, "127.0.0.1:1") for other in others)]
        pushed = shard_map(members, "", 1)
        pushed.groups[0].shards[0].payload_copies = COPIES
        await push_map(node.address, pushed)
        return node

    yield begin
    for node in nodes:
        await node.stop()


async def read(node: Node, mode: Mode, down: tuple[str, ...] = ()) -> dict[int, bool]:
    """Return what the node sends: the offset of each item, and whether the entry is there."""
    stream = Stream(node.address)
    try:
        await stream.start(mode=mode, down=down)
        await stream.ok()
        shipped = await stream.through(HEAD)
        return {item.first: item.body is not NOT_HELD for shipment in shipped for item in singly(shipment.items)}
    finally:
        await stream.close()


def counted(node: Node, series: str) -> float:
    lines = generate_latest(node.metrics.registry).decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))


async def test_what_is_its_to_send_is_there_and_what_it_lacks_is_said(begun: Callable[..., Any]):
    """K17: single copy delivery asks those who keep the payload; who is asked beyond that says so, never a gap."""
    node = await begun(SURPLUS)
    ours = await read(node, Mode.SINGLE_COPY)
    assert all(ours.values()) and not set(ours) & set(SURPLUS)
    assert counted(node, "tidemark_delivery_not_held_total") == 0
    stands_in = await read(node, Mode.SINGLE_COPY, down=("b", "c"))
    assert [base for base, there in stands_in.items() if not there] == SURPLUS
    assert stands_in == await read(node, Mode.ALL_SEND_ALL)
    assert len(stands_in) == len(LOG), "every offset is told of"
    assert counted(node, "tidemark_delivery_not_held_total") == 2 * len(SURPLUS)
    assert counted(node, 'tidemark_traces_total{what="corrupt_entry"}') == 0, "it is as it should be"


async def test_a_payload_that_should_be_there_is_asked_of_others(begun: Callable[..., Any]):
    """K9: above what was dropped, or designated for it, an absence is damage."""
    lost = [SURPLUS[0] + 1, SURPLUS[-1]]
    node = await begun(lost, dropped=SURPLUS[-1] - 1)
    sent = await read(node, Mode.ALL_SEND_ALL)
    assert [base for base, there in sent.items() if not there] == lost
    await until(lambda: counted(node, 'tidemark_traces_total{what="corrupt_entry"}') >= 2)


async def pull(node: Node) -> tuple[list[bytes], Refused]:
    """Return the headers that a pull of the whole log gets, and how it is refused."""
    got: list[bytes] = []
    async with channel.open_channel(node.address) as opened:
        call = node_pb2_grpc.ReplicationStub(opened).PullSnapshot(
            node_pb2.PullSnapshotRequest(shard=SHARD, epoch=1, first=0, last=HEAD),
            metadata=channel.hello_metadata(node="b", incarnation="life", address="127.0.0.1:1"),
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for chunk in call:
                got += chunk.headers
                assert all(chunk.payloads[1:])
    refusal = status.refusal_from_rpc_error(caught.value)
    assert refusal is not None
    return got, refusal.refused


async def test_a_pull_ends_in_front_of_what_is_not_to_be_had_here(begun: Callable[..., Any]):
    node = await begun(SURPLUS)
    got, refused = await pull(node)
    assert got == [entry.header for entry in LOG[: SURPLUS[0]]]
    assert (refused.reason, refused.expected) == (Reason.NOT_HELD, SURPLUS[0])
    assert counted(node, 'tidemark_traces_total{what="corrupt_entry"}') == 0, "it is as it should be"


async def test_a_pull_that_meets_a_lost_payload_has_it_mended(begun: Callable[..., Any]):
    """Else the pulling member asks for it for ever."""
    lost = SURPLUS[0] + 1
    node = await begun([lost])
    got, refused = await pull(node)
    assert got == [entry.header for entry in LOG[:lost]]
    assert (refused.reason, refused.expected) == (Reason.CORRUPT, lost)
    await until(lambda: counted(node, 'tidemark_traces_total{what="corrupt_entry"}') >= 1)


async def test_who_keeps_what_is_explained(begun: Callable[..., Any]):
    node = await begun(SURPLUS)
    async with channel.open_channel(node.address) as opened:
        answer = await node_pb2_grpc.TidemarkStub(opened).ExplainRead(
            node_pb2.ExplainReadRequest(group=GROUP, shard=0, mode="LOCAL", priorities=[5, 0, 0]), timeout=10)
    for item in answer.items:
        if item.kind == "DATA":
            assert ("a" in item.keepers) is (item.first not in SURPLUS) and len(item.keepers) == COPIES
            assert item.sender == ("b" if item.first in SURPLUS else "a"), "the nearest of those who keep it"
        else:
            assert [*item.keepers] == [*ABC], "control entries are kept by all"


async def test_space_and_watermarks_are_told(begun: Callable[..., Any]):
    node = await begun(SURPLUS)
    assert counted(node, 'tidemark_store_bytes{what="payloads"') >= (ENTRIES - len(SURPLUS)) * 1000
    assert counted(node, "tidemark_shard_released{") == HEAD
    assert counted(node, "tidemark_shard_swept{") == -1
