"""Limbo on a node: honest outcomes over gRPC, rolled-back entries that nobody reads, and what people see of the queue.

One node whose group asks for two zones commits alone and confirms nothing, so every step can be held and looked at.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from node_harness import (
    GROUP,
    SHARD,
    Appender,
    NodeProcess,
    OperatorHand,
    batch,
    limbo,
    outcome,
    push_map,
    read,
    shard_map,
)
from prometheus_client import generate_latest
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.messages import Appended, Fate
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_wire import channel, frames, status
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import until

SECRET = b"rolled back, for nobody's eyes"
TWO_ZONES = {"synchro_zones": 2}


def in_process(directory: Path) -> Node:
    return Node(Settings(node="a", data=directory, metrics_listen="off", disk_reserve_bytes=1 << 20))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    made = in_process(tmp_path)
    await made.start()
    yield made
    if not made.draining.is_set():
        await made.stop()


async def push(node: Node, version: int, **group: Any) -> None:
    await push_map(node.address, shard_map([(node.me, node.address)], "a", version, **group))


async def lead(node: Node, operator: OperatorHand, epoch: int = 1, **group: Any) -> Appender:
    """Make `node` the only member and leader; return a stream to it."""
    await push(node, epoch, **group)
    await operator.link("a", node.address)
    await operator.elect(epoch, node.me, (node.me,))
    return Appender(node.address)


def committed(sequence: int, payload: bytes = b"") -> Any:
    """A batch that does not wait for the zones."""
    return batch(sequence, payload, durability=Durability.COMMIT)


async def until_limbo_holds(address: str, entries: int, leader: str = "a") -> Any:
    """Wait until so many are in limbo, all of them on the leader's own disk."""
    async def held() -> Any:
        view = await limbo(address)
        return view if view.length == entries and all(leader in entry.acked for entry in view.entries) else None

    return await until(held, f"{entries} entries are in limbo")


def kinds(read_frames: list[frames.ReadFrame]) -> list[tuple[int, str]]:
    """What a reader was given, with holes, in order of offsets."""
    given = [(entry.base, entry.kind.name) for frame in read_frames for entry in frame.entries]
    given += [(first, f"HOLE to {last}") for frame in read_frames for first, last in frame.holes]
    return sorted(given)


async def refusal_of(call: Any) -> status.HintedRefusal:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    refusal = status.refusal_from_rpc_error(caught.value)
    assert refusal is not None, caught.value
    return refusal


async def test_timeout_is_told_then_rolled_back_for_ever_and_for_everybody(
    tmp_path: Path, node: Node, operator: OperatorHand
):
    appender = await lead(node, operator, **TWO_ZONES, quorum_timeout_ms=150)
    assert Appended(1, 1, 1, 0) == await appender.append(committed(0))
    refused = await appender.append(batch(1, SECRET))
    assert Reason.QUORUM_TIMEOUT is refused.reason and "unknown" in refused.message
    became = await outcome(node.address, 1)
    assert (Fate.ROLLED_BACK, 2, 1) == (became.fate, became.base, became.count)
    record = became.rolled_back_at

    again = await appender.append(batch(1, SECRET))     # the sequence is used up
    assert (Reason.ROLLED_BACK, record) == (again.reason, again.expected)
    late = await appender.append(committed(2))          # was in flight, say: it must not overtake the retried one
    assert (Reason.PRODUCER_ROLLED_BACK, record) == (late.reason, late.expected)
    anew = await appender.append(committed(2, b"anew"), resume_after=record)
    assert isinstance(anew, Appended)
    assert Fate.CONFIRMED is (await outcome(node.address, 2)).fate
    assert Fate.NOT_FOUND is (await outcome(node.address, 3)).fate
    await appender.close()

    async def look(address: str) -> None:
        expected = [(0, "EPOCH_START"), (1, "DATA"), (2, f"HOLE to {record - 1}"), (record, "ROLLBACK")]
        got = [frame async for frame in read(address)]
        assert expected == kinds(got)[:4]
        data = [entry.payload for frame in got for entry in frame.entries if entry.kind is Kind.DATA]
        assert [b"payload 0", b"anew"] == data
        positions = [(frame.first, frame.through) for frame in got]
        assert 0 == positions[0][0] and all(a[1] + 1 == b[0] for a, b in itertools.pairwise(positions))
        only = [frame async for frame in read(address, first=2, until=2)]  # coverage without any entry
        assert [((2, 2), (), ((2, 2),))] == [((f.first, f.through), f.entries, f.holes) for f in only]

    await look(node.address)
    core = node.driver.core
    confirmed = core.log.shards[SHARD].replica.confirmed
    assert [(2, record - 1)] == core.log.holes(SHARD, 0, confirmed)
    assert core.log.holes(SHARD, 0, confirmed + 1) is None  # nobody can say that yet
    counted = generate_latest(node.metrics.registry).decode()
    assert "tidemark_limbo_rollbacks_total 1.0" in counted and "tidemark_limbo_timeouts_total 1.0" in counted
    assert 'tidemark_outcomes_total{outcome="ROLLED_BACK"} 1.0' in counted
    await node.stop()

    restarted = in_process(tmp_path)
    await restarted.start()
    await operator.close()
    await (await lead(restarted, operator, 2, **TWO_ZONES)).close()
    await look(restarted.address)
    assert became == await outcome(restarted.address, 1)
    await restarted.stop()


async def test_queue_shows_who_waits_for_whom_until_the_group_asks_for_less(node: Node, operator: OperatorHand):
    appender = await lead(node, operator, **TWO_ZONES, quorum_timeout_ms=60_000)
    sent = [batch(0, count=3), batch(1, durability=Durability.LOCAL), batch(2)]
    await appender.send(*(frames.AppendCall(b.sequence, GROUP, 0, b) for b in sent))
    view = await until_limbo_holds(node.address, 3)
    assert (1, 0, 5, ("a",), 1, 2) == (
        view.epoch, view.confirmed, view.head, view.members, view.quorum, view.zones
    )
    assert [(1, 3, Durability.QUORUM), (4, 1, Durability.LOCAL), (5, 1, Durability.QUORUM)] == [
        (entry.base, entry.count, entry.durability) for entry in view.entries
    ]
    oldest = view.entries[0]
    assert ("WAITING", 1, ("a",), (), b"p" * 16, 0) == (
        oldest.state, oldest.waiters, oldest.acked, oldest.missing, oldest.producer, oldest.sequence
    )
    assert 60_000 == view.timeout_ms and view.bytes > 0 and view.rollback_pending_from == -1
    assert [1] == [entry.base for entry in (await limbo(node.address, entries_max=1)).entries]
    assert () == (await limbo(node.address, entries_max=0)).entries

    counted = generate_latest(node.metrics.registry).decode()
    assert "tidemark_limbo_entries 3.0" in counted and "tidemark_limbo_confirm_lag_records 5.0" in counted
    assert f"tidemark_limbo_bytes {float(view.bytes)}" in counted and "tidemark_limbo_oldest_age_seconds" in counted
    async with channel.open_channel(node.address) as opened:
        answer = await node_pb2_grpc.ControlStub(opened).DebugDump(node_pb2.DebugDumpRequest(shard=SHARD))
    (shown,) = json.loads(answer.json)["limbo"].values()
    assert ["Quorum", "Local", "Quorum"] == [entry["durability"] for entry in shown["entries"]]
    assert (b"p" * 16).hex() == shown["entries"][0]["producer"]

    assert Fate.UNKNOWN is (await outcome(node.address, 0, wait=False)).fate
    waiting = asyncio.ensure_future(outcome(node.address, 2))
    await push(node, 2)                                 # zones are not asked for any more
    assert [0, 1, 2] == [answer.request for answer in await appender.answers(3)]
    assert Fate.CONFIRMED is (await waiting).fate
    assert 0 == (await until_limbo_holds(node.address, 0)).length
    await appender.close()


async def test_settings_reach_a_shard_that_is_loaded_again(node: Node, operator: OperatorHand):
    """After a failed write the core is another one; it must not stay with the quorum of who was told nothing."""
    appender = await lead(node, operator, quorum_timeout_ms=1234)
    assert isinstance(await appender.append(batch(0)), Appended)
    before = node.driver.core
    await operator.close()
    node.driver._begin_reload(OSError("disk"))
    await until(lambda: not node.driver.reloading)
    assert node.driver.core is not before
    await operator.link("a", node.address)
    await operator.elect(2, node.me, (node.me,))
    assert 1234 == (await limbo(node.address)).timeout_ms
    await appender.close()


async def test_waiting_for_outcomes_is_bounded_and_whoever_left_still_counts(
    node: Node, operator: OperatorHand
):
    node.budgets.outcomes.total = 4     # of which one caller gets half
    appender = await lead(node, operator, **TWO_ZONES, quorum_timeout_ms=60_000)
    await appender.send(frames.AppendCall(0, GROUP, 0, batch(0)))
    await until_limbo_holds(node.address, 1)
    stays, leaves = (asyncio.ensure_future(outcome(node.address, 0)) for _ in range(2))
    await waiting(node, 2)
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    busy = await refusal_of(outcome(node.address, 0))
    assert Reason.OVERLOADED is busy.refused.reason and busy.refused.retry_after_ms > 0
    await push(node, 2)
    assert Fate.CONFIRMED is (await stays).fate
    await waiting(node, 0)
    assert Fate.CONFIRMED is (await outcome(node.address, 0)).fate
    await appender.close()


async def waiting(node: Node, callers: int) -> None:
    shown = f"tidemark_outcomes_waiting {float(callers)}"
    await until(lambda: shown in generate_latest(node.metrics.registry).decode(), shown)


async def test_bad_questions_are_refused_with_the_field(node: Node, operator: OperatorHand):
    address = node.address
    assert Reason.NO_LEADER is (await refusal_of(outcome(address, 0))).refused.reason  # no map yet
    await push(node, 1)
    assert Reason.NOT_LEADER is (await refusal_of(outcome(address, 0))).refused.reason
    assert Reason.NOT_LEADER is (await refusal_of(limbo(address))).refused.reason
    await (await lead(node, operator, 2)).close()
    for wrong, reason, text in (
        (outcome(address, -1), Reason.INVALID_SPEC, "sequence is -1"),
        (outcome(address, 0, producer=b"short"), Reason.INVALID_SPEC, "producer must be 16 bytes"),
        (outcome(address, 0, producer=bytes(16)), Reason.INVALID_SPEC, "not all zero"),
        (outcome(address, 0, group="other"), Reason.UNKNOWN_GROUP, "'other'"),
        (limbo(address, shard=7), Reason.UNKNOWN_SHARD, "shard 7"),
        (limbo(address, entries_max=10_001), Reason.INVALID_SPEC, "entries_max is 10001"),
    ):
        refused = (await refusal_of(wrong)).refused
        assert (reason, True) == (refused.reason, text in refused.message), refused


async def test_map_with_settings_that_cannot_be_is_refused_whole(node: Node):
    for group, text in (
        ({"synchro_quorum": "N/"}, "groups[orders].synchro_quorum: "),
        ({"synchro_quorum": "N/(N-3)"}, "groups[orders].synchro_quorum: division by zero where N is 3"),
        ({"rollback": "Later"}, "groups[orders].rollback: 'Later'"),
    ):
        refused = (await refusal_of(push(node, 5, **group))).refused
        assert (Reason.INVALID_SPEC, True) == (refused.reason, refused.message.startswith(text)), refused
    assert 0 == node.routing.map.version


async def test_client_of_another_wire_version_is_told_so(node: Node):
    await push(node, 1)
    metadata = ((channel.WIRE_VERSION_KEY, "1"),)
    async with channel.open_channel(node.address) as opened:
        stub = node_pb2_grpc.TidemarkStub(opened)
        calls = [
            opened.stream_stream(channel.APPEND)(metadata=metadata).read(),
            opened.unary_stream(channel.READ)(b"", metadata=metadata).read(),
            stub.Outcome(node_pb2.OutcomeRequest(), metadata=metadata),
            stub.Limbo(node_pb2.LimboRequest(), metadata=metadata),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert grpc.StatusCode.FAILED_PRECONDITION is caught.value.code()
            assert "same Tidemark release" in caught.value.details()


# --- three processes ----------------------------------------------------------------------------------------------


async def test_paused_majority_times_out_honestly_and_what_readers_see_agrees(
    start_node: Callable[..., NodeProcess], operator: OperatorHand
):
    nodes = [start_node(name) for name in "abc"]
    leader, followers = nodes[0], nodes[1:]
    pushed = shard_map([(n.member, n.address) for n in nodes], "a", 1, synchro_quorum="N-1", quorum_timeout_ms=3_000)
    for node in nodes:
        await push_map(node.address, pushed)
        await operator.link(node.name, node.address)
    await operator.elect(1, leader.member, tuple(node.member for node in nodes))
    appender = Appender(leader.address)
    assert isinstance(await appender.append(batch(0)), Appended)

    for node in followers:
        node.signal(signal.SIGSTOP)
    local = await appender.append(batch(1, durability=Durability.LOCAL))  # the queue is empty: it need not wait
    assert (Appended, Durability.LOCAL) == (type(local), local.durability)
    mixed = [batch(2), batch(3, durability=Durability.LOCAL), batch(4)]   # LOCAL behind QUORUM waits its turn
    await appender.send(*(frames.AppendCall(b.sequence, GROUP, 0, b) for b in mixed))
    view = await until_limbo_holds(leader.address, 4)
    assert {("a",)} == {entry.acked for entry in view.entries}
    assert {("b", "c")} == {entry.missing for entry in view.entries}
    assert ["LOCAL", "WAITING", "WAITING", "WAITING"] == [entry.state for entry in view.entries]
    answers = await appender.answers(3)
    assert [Reason.QUORUM_TIMEOUT] * 3 == [answer.value.reason for answer in answers]
    assert Fate.UNKNOWN is (await outcome(leader.address, 2, wait=False)).fate

    for node in followers:
        node.signal(signal.SIGCONT)
    fates = {sequence: (await outcome(leader.address, sequence)).fate for sequence in range(5)}
    assert {0: Fate.CONFIRMED, 1: Fate.CONFIRMED} == {s: fates[s] for s in (0, 1)}
    assert {Fate.ROLLED_BACK} == {fates[s] for s in (2, 3, 4)}
    got = [frame async for frame in read(leader.address)]
    seen = {entry.sequence for frame in got for entry in frame.entries if entry.kind is Kind.DATA}
    assert {sequence for sequence, fate in fates.items() if fate is Fate.CONFIRMED} == seen
    await appender.close()

    await operator.elect(2, followers[0].member, tuple(node.member for node in nodes))
    for sequence, fate in fates.items():               # the next leader tells the same
        assert fate is (await outcome(followers[0].address, sequence)).fate
    got = [frame async for frame in read(followers[0].address)]
    assert seen == {entry.sequence for frame in got for entry in frame.entries if entry.kind is Kind.DATA}


