"""Three real node processes, led by hand: they replicate, survive kill -9, hand over, pull snapshots, repair."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from node_harness import (
    AT,
    GROUP,
    SHARD,
    Appender,
    NodeProcess,
    OperatorHand,
    batch,
    push_map,
    read,
    read_all,
    shard_map,
)
from tidemark_core.base.effects import Persist, PutEntry
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import (
    Appended,
    Commit,
    Committed,
    Fence,
    Fenced,
    InstallSnapshot,
    Operation,
    Prepare,
    Prepared,
    Rejected,
    SnapshotInstalled,
    SnapshotProgress,
)
from tidemark_node.appends import CALLS_PER_FRAME_MAX
from tidemark_node.store import open_store
from tidemark_wire import channel, frames, status
from tidemark_wire.convert import Draining
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from tests.waiting import PATIENCE_S, until


async def lead(
    operator: OperatorHand, nodes: list[NodeProcess], leader: NodeProcess, epoch: int = 1, version: int = 1
) -> tuple[Member, ...]:
    """Push a map naming `leader`, link and elect it."""
    pushed = shard_map([(node.member, node.address) for node in nodes], leader.name, version)
    for node in nodes:
        await push_map(node.address, pushed)
        await operator.link(node.name, node.address)
    ensemble = tuple(node.member for node in nodes)
    await operator.elect(epoch, leader.member, ensemble)
    return ensemble


def payloads(entries: list) -> list[bytes]:
    return [entry.payload for entry in entries if entry.kind is Kind.DATA]


async def dump(node: NodeProcess) -> dict:
    async with channel.open_channel(node.address) as opened:
        answer = await node_pb2_grpc.ControlStub(opened).DebugDump(node_pb2.DebugDumpRequest(all=True))
        return json.loads(answer.json)


async def metrics_of(node: NodeProcess) -> str:
    url = f"http://{node.ready['metrics_address']}/metrics"
    return await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())


async def test_three_nodes_replicate_and_read_back(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name) for name in "abc"]
    await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[0].address)
    sent = [batch(sequence) for sequence in range(50)]
    await appender.send(*(frames.AppendCall(b.sequence, GROUP, 0, b) for b in sent))
    answers = await appender.answers(50)
    assert list(range(50)) == [answer.request for answer in answers]
    assert [Appended(1, 1 + i, 1, 0) for i in range(50)] == [answer.value for answer in answers]
    await appender.finish()
    entries = await read_all(nodes[0].address)
    assert [b.payload for b in sent] == payloads(entries)
    assert entries[0].kind is Kind.EPOCH_START
    for node in nodes[1:]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_all(node.address)
        refusal = status.refusal_from_rpc_error(caught.value)
        assert (Reason.NOT_LEADER, "a", nodes[0].address) == (
            refusal.refused.reason, refusal.leader_node, refusal.leader_address
        )


async def test_leader_killed_in_mid_stream_loses_nothing_acknowledged(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name) for name in "abc"]
    ensemble = await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[0].address)
    acked = []
    for sequence in range(20):
        assert isinstance(await appender.append(batch(sequence)), Appended)
        acked.append(batch(sequence).payload)
    # Five, for that many outcomes of a producer are remembered.
    await appender.send(*(frames.AppendCall(s, GROUP, 0, batch(s)) for s in range(20, 25)))
    nodes[0].kill()
    await appender.close()
    heads = []
    for member in ensemble[1:]:
        heads.append((member, (await operator.ask(member, Fence(2, 2), Fenced)).head))
    best = max(heads, key=lambda pair: pair[1])[0]
    leader = next(node for node in nodes if node.member == best)
    await operator.elect(3, best, ensemble[1:])
    pushed = shard_map([(n.member, n.address) for n in nodes], leader.name, 2)
    assert 2 == await push_map(leader.address, pushed)
    appender = Appender(leader.address)
    for sequence in range(20, 40):  # a retry is answered with the entry's fate, never appended twice
        answer = await appender.append(batch(sequence))
        assert isinstance(answer, Appended), answer
        acked.append(batch(sequence).payload)
    await appender.finish()
    assert acked == payloads(await read_all(leader.address))


async def test_killed_node_comes_back_as_the_same_member_with_its_log(start_node: Callable, operator: OperatorHand):
    node = start_node("a")
    await lead(operator, [node], node)
    appender = Appender(node.address)
    for sequence in range(10):
        await appender.append(batch(sequence))
    await appender.close()
    before = node.member
    node.kill()
    node.start()
    assert before == node.member
    await operator.link("a", node.address)
    await push_map(node.address, shard_map([(node.member, node.address)], "a", 1))
    await operator.elect(2, node.member, (node.member,))
    await until_read(node, 10)


async def until_read(node: NodeProcess, count: int) -> None:
    async def held() -> bool:
        return len(payloads(await read_all(node.address))) >= count

    await until(held, f"{count} records are readable")
    assert [batch(s).payload for s in range(count)] == payloads(await read_all(node.address))


async def test_tail_follows_and_ends_when_leadership_is_lost(start_node: Callable, operator: OperatorHand):
    node = start_node("a")
    await lead(operator, [node], node)
    appender = Appender(node.address)
    await appender.append(batch(0))
    got: list[bytes] = []

    async def follow() -> None:
        async for frame in read(node.address, tail=True):
            got.extend(entry.payload for entry in frame.entries if entry.kind is Kind.DATA)

    following = asyncio.ensure_future(follow())
    for sequence in range(1, 20):
        await appender.append(batch(sequence))
    await until(lambda: len(got) >= 20)
    assert [batch(s).payload for s in range(20)] == got
    await operator.ask(node.member, Fence(2, 2), Fenced)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(following, 10)
    assert Reason.NOT_LEADER == status.refusal_from_rpc_error(caught.value).refused.reason
    await appender.close()


async def test_bad_input_is_refused_by_name_and_changes_nothing(start_node: Callable, operator: OperatorHand):
    node = start_node("a")
    appender = Appender(node.address)
    early = await appender.append(batch(0))
    assert (Reason.NO_LEADER, True) == (early.reason, early.retry_after_ms > 0)
    await lead(operator, [node], node)
    unknown_group = await appender.append(batch(0), group="nope")
    assert Reason.UNKNOWN_GROUP == unknown_group.reason and "'nope'" in unknown_group.message
    unknown_shard = await appender.append(batch(0), shard=9)
    assert Reason.UNKNOWN_SHARD == unknown_shard.reason and "shard 9" in unknown_shard.message
    large = await appender.append(batch(0, b"x" * ((1 << 20) + 1)))
    assert Reason.BATCH_TOO_LARGE == large.reason and "max_batch_bytes" in large.message
    damaged = await appender.append(batch(0)._replace(payload_crc=1))
    assert Reason.INVALID_BATCH == damaged.reason and "payload_crc32c" in damaged.message
    gap = await appender.append(batch(5))
    assert (Reason.PRODUCER_UNKNOWN, 0) == (gap.reason, gap.expected)
    assert [] == payloads(await read_all(node.address))
    for wrong in ({"first": -4}, {"group": "nope"}, {"shard": 3}):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read_all(node.address, **wrong)
        assert status.refusal_from_rpc_error(caught.value) is not None
    await appender.close()


async def test_malformed_frame_ends_the_stream_with_a_reason(start_node: Callable):
    node = start_node("a")
    one_call = frames.encode_appends([frames.AppendCall(1, "", 0, batch(0, b""))])
    for frame, fact in ((b"\x00" * 30, "too early"), (one_call * (CALLS_PER_FRAME_MAX + 1), "at most 16384 appends")):
        async with channel.open_channel(node.address) as opened:
            call = opened.stream_stream(channel.APPEND)()
            await call.write(frame)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                while True:
                    await call.read()
        assert grpc.StatusCode.INVALID_ARGUMENT == caught.value.code()
        assert fact in caught.value.details()


async def test_other_wire_version_is_refused(start_node: Callable):
    node = start_node("a")
    async with channel.open_channel(node.address) as opened:
        call = opened.stream_stream(channel.CONTROL_LINK)(
            metadata=((channel.OPERATOR_KEY, "o"), (channel.WIRE_VERSION_KEY, "99"))
        )
        with pytest.raises(ConnectionError, match="same Tidemark release"):
            await channel.answered_hello(call)


async def test_past_the_bound_of_bytes_calls_are_refused_with_a_hint(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name, "--append-bytes-max", "200000") for name in "abc"]
    await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[0].address)
    assert isinstance(await appender.append(batch(0)), Appended)
    for node in nodes[1:]:
        node.signal(signal.SIGSTOP)  # no quorum, so nothing is answered
    await appender.send(*(frames.AppendCall(s, GROUP, 0, batch(s, b"x" * 20_000)) for s in range(1, 11)))
    refused = await appender.answers(6)
    assert {Reason.OVERLOADED} == {answer.value.reason for answer in refused}
    assert all(answer.value.retry_after_ms > 0 for answer in refused)
    for node in nodes[1:]:
        node.signal(signal.SIGCONT)
    appended = await appender.answers(4)
    assert [1, 2, 3, 4] == [answer.request for answer in appended]
    assert all(isinstance(answer.value, Appended) for answer in appended)
    await appender.finish()


async def test_swap_pulls_a_snapshot_and_the_new_member_counts(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name) for name in "abc"]
    ensemble = await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[0].address)
    for sequence in range(30):
        await appender.append(batch(sequence, bytes([sequence]) * 200_000))
    spare = start_node("d")
    leader, old, new = nodes[0].member, ensemble[2], spare.member
    pushed = shard_map([(n.member, n.address) for n in [*nodes, spare]], "a", 2)
    for node in [*nodes, spare]:
        await push_map(node.address, pushed)
    await operator.link("d", spare.address)
    prepared = await operator.ask(leader, Prepare(2, 2, Operation.SWAP, old, new), Prepared)
    install = InstallSnapshot(2, 2, leader, prepared.snapshot)
    installed = await operator.ask(new, install, SnapshotInstalled)
    assert prepared.snapshot.head == installed.head
    after = (ensemble[0], ensemble[1], new)
    commit = Commit(2, 2, Operation.SWAP, after, old, new, installed.head)
    await operator.ask(leader, commit, Committed)
    for node in nodes[1:]:
        node.kill()  # 'b' too: only the leader and the new member are left, and that is a quorum
    assert isinstance(await appender.append(batch(30)), Appended)
    await appender.finish()
    nodes[0].kill()
    await operator.ask(new, Fence(3, 3), Fenced)
    held = (await dump(spare))["shards"][0]
    assert int(held["head"].split(":")[1]) >= 31


async def test_a_node_sends_snapshots_as_fast_as_it_is_told(start_node: Callable, operator: OperatorHand):
    source, spare = start_node("a", "--snapshot-bytes-per-second", "1000"), start_node("b")
    await lead(operator, [source], source)
    appender = Appender(source.address)
    for sequence in range(10):
        await appender.append(batch(sequence, bytes([sequence]) * 50_000))
    await appender.close()
    await operator.link("b", spare.address)
    pushed = shard_map([(node.member, node.address) for node in (source, spare)], "a", 2)
    await push_map(spare.address, pushed)
    request = Prepare(2, 2, Operation.EXPAND, None, spare.member)
    prepared = await operator.ask(source.member, request, Prepared)
    async with channel.open_channel(source.address) as opened:
        control = node_pb2_grpc.ControlStub(opened)
        (size,) = (await control.Sizes(node_pb2.SizesRequest(shards=[SHARD, SHARD + 1]))).shards
        with pytest.raises(grpc.aio.AioRpcError, match="10001 are more than 10000"):
            await control.Sizes(node_pb2.SizesRequest(shards=range(10_001)))
    assert (SHARD, prepared.snapshot.payload_bytes) == (size.shard, size.bytes), "what a snapshot has is known before"
    await operator.send(spare.member, InstallSnapshot(2, 2, source.member, prepared.snapshot))
    with pytest.raises(TimeoutError):
        await operator.wait_for("b", SnapshotInstalled, timeout_seconds=1)
    assert "tidemark_snapshot_bytes_per_second 1000.0" in await metrics_of(source)
    pushed.snapshot_bytes_per_second = 1 << 30  # told in the middle of a wait
    await push_map(source.address, pushed)
    installed = await operator.wait_for("b", SnapshotInstalled)
    assert prepared.snapshot.head == installed.head
    pushed.version, pushed.snapshot_bytes_per_second = 3, 0
    await push_map(source.address, pushed)
    assert "tidemark_snapshot_bytes_per_second 1000.0" in await metrics_of(source), "its own rate again"


async def test_message_for_another_life_of_the_disk_is_refused(start_node: Callable, operator: OperatorHand):
    node = start_node("a")
    await operator.link("a", node.address)
    answer = await operator.ask(Member("a", "0" * 32), Fence(1, 1), Rejected)
    assert Reason.NOT_MEMBER == answer.refusal.reason


async def asked(node: Any, path: str) -> int:
    """Ask as a kubelet does, who has no certificate; return the status."""
    def ask() -> int:
        try:
            with urllib.request.urlopen(f"http://{node.ready['metrics_address']}/{path}") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            return refused.code

    return await asyncio.to_thread(ask)


async def test_graceful_stop_tells_operators_and_waits_for_the_handover(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name) for name in "ab"]
    ensemble = await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[0].address)
    await appender.append(batch(0))
    nodes[0].signal(signal.SIGTERM)
    told = await operator.wait_for("a", Draining, ShardId(0))
    assert told.draining
    assert nodes[0].process.poll() is None
    health = await health_of(nodes[0])
    assert "NOT_SERVING" == health
    assert (200, 503) == tuple([await asked(nodes[0], path) for path in ("livez", "readyz")])
    assert isinstance(await appender.append(batch(1)), Appended)  # it serves until it leads nothing
    await operator.elect(2, nodes[1].member, ensemble)
    await until(lambda: nodes[0].process.poll() is not None, "the node ends")
    assert 0 == nodes[0].process.returncode
    await appender.close()


async def health_of(node: NodeProcess) -> str:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async with channel.open_channel(node.address) as opened:
        answer = await health_pb2_grpc.HealthStub(opened).Check(health_pb2.HealthCheckRequest())
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


async def test_follower_that_was_away_catches_up_by_itself(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name) for name in "abc"]
    await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[0].address)
    await appender.append(batch(0))
    nodes[2].kill()
    for sequence in range(1, 200):
        await appender.append(batch(sequence, b"y" * 100_000))  # more than the leader keeps in memory
    nodes[2].start()
    leader = (await dump(nodes[0]))["shards"][0]
    assert leader["commit"] >= 199

    async def caught_up() -> bool:
        return (await dump(nodes[2]))["shards"][0]["head"] == leader["head"]

    await until(caught_up, "the follower holds all that the leader holds")
    follower = (await dump(nodes[2]))["shards"][0]
    assert ("FOLLOWER", leader["head"]) == (follower["role"], follower["head"])
    await appender.close()


async def test_describe_metrics_and_dump(start_node: Callable, operator: OperatorHand):
    node = start_node("a", "--zone", "z1", "--cluster", "dev")
    await lead(operator, [node], node)
    async with channel.open_channel(node.address) as opened:
        stub = node_pb2_grpc.ControlStub(opened)
        described = await stub.Describe(node_pb2.DescribeRequest())
        other = shard_map([], "", 9)
        other.cluster = "prod"
        with pytest.raises(grpc.aio.AioRpcError, match="prod"):
            await stub.PushShardMap(other)
    assert ("a", "z1", 1, node.address, node.process.pid) == (
        described.node, described.zone, described.leading, described.address, described.pid
    )
    text = await metrics_of(node)
    assert 'tidemark_shard_leading{shard="7/0"} 1.0' in text
    assert 'tidemark_traces_total{what="became_leader"} 1.0' in text
    assert [200, 200, 404] == [await asked(node, path) for path in ("livez", "readyz", "elsewhere")]
    view = await dump(node)
    assert ("LEADER", 1) == (view["shards"][0]["role"], view["shard_map_version"])
    assert any(told["what"] == "became_leader" for told in view["story"])


async def test_maps_are_watched_and_an_older_one_is_ignored(start_node: Callable):
    node = start_node("a")
    async with channel.open_channel(node.address) as opened:
        watch = node_pb2_grpc.TidemarkStub(opened).WatchShardMap(node_pb2.GetShardMapRequest())
        assert 3 == await push_map(node.address, shard_map([], "", 3))
        assert 3 == (await watch.read()).version
        assert 3 == await push_map(node.address, shard_map([], "", 2))
        assert 4 == await push_map(node.address, shard_map([], "", 4))
        assert 4 == (await watch.read()).version


async def test_stalled_reader_delays_nobody(start_node: Callable, operator: OperatorHand):
    node = start_node("a")
    await lead(operator, [node], node)
    appender = Appender(node.address)
    for sequence in range(64):
        await appender.append(batch(sequence, b"z" * (1 << 20)))
    stalled = read(node.address)
    await anext(stalled)  # and no further
    entries = await read_all(node.address)
    assert 64 == len(payloads(entries))
    assert isinstance(await appender.append(batch(64)), Appended)
    await stalled.aclose()
    await appender.close()


@pytest.mark.parametrize("arguments", [["--node", "bad name"], ["--listen", "nowhere"], ["--append-bytes-max", "0"]])
def test_bad_argument_is_named(start_node: Callable, arguments: list[str]):
    with pytest.raises(AssertionError, match=arguments[0]):
        start_node("a", *arguments)


async def test_refusal_is_not_an_append(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name) for name in "ab"]
    await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[1].address)
    answer = await appender.append(batch(0))
    assert isinstance(answer, Refused) and Reason.NOT_LEADER is answer.reason
    await appender.close()


async def test_damaged_entry_is_repaired_from_a_peer_before_it_is_served(start_node: Callable, operator: OperatorHand):
    nodes = [start_node(name) for name in "abc"]
    ensemble = await lead(operator, nodes, nodes[0])
    appender = Appender(nodes[0].address)
    for sequence in range(10):
        await appender.append(batch(sequence))
    await appender.close()
    nodes[0].kill()
    store = open_store(nodes[0].directory, "a")
    (entry,) = store.read(SHARD, 5, 5, 1 << 20).entries
    store.apply([Persist(AT, (PutEntry(entry._replace(payload=b"damaged")),))])
    store.sync()
    store.close()
    nodes[0].start()
    await operator.link("a", nodes[0].address)
    pushed = shard_map([(node.member, node.address) for node in nodes], "a", 2)
    for node in nodes:
        await push_map(node.address, pushed)
    await operator.elect(2, nodes[0].member, ensemble)

    async def released() -> bool:
        return (await dump(nodes[0]))["shards"][0]["released"] >= 11

    await until(released, "ten records are released")
    entries = await read_all(nodes[0].address)
    assert [batch(s).payload for s in range(10)] == payloads(entries)
    assert any(told["what"] == "entry_repaired" for told in (await dump(nodes[0]))["story"])


async def test_really_full_disk_refuses_appends_serves_reads_and_recovers(
    start_node: Callable, operator: OperatorHand, in_user_namespace: Callable
):
    """On a small tmpfs where the system allows it; elsewhere the same with a reserve nobody can keep."""
    if in_user_namespace("true") is None:
        node = start_node("a", "--disk-reserve-bytes", str(1 << 60))
        await lead(operator, [node], node)
        appender = Appender(node.address)
        assert Reason.DISK_FULL is (await appender.append(batch(0))).reason
        assert [] == payloads(await read_all(node.address))
        await appender.close()
        return
    node = start_node("a", "--disk-reserve-bytes", str(384 << 20), prefix=ON_SMALL_DISK)
    await lead(operator, [node], node)
    appender = Appender(node.address)
    acked = 0
    while isinstance(answer := await appender.append(batch(acked, b"d" * 500_000)), Appended):
        acked += 1
        assert acked < 200
    assert Reason.DISK_FULL is answer.reason and acked > 10
    assert acked == len(payloads(await read_all(node.address)))
    Path(f"/proc/{node.process.pid}/root{node.directory}/ballast").unlink()

    async def appends() -> bool:
        return isinstance(await appender.append(batch(acked, b"d" * 500_000)), Appended)

    await until(appends, "appends are taken again")
    assert acked + 1 == len(payloads(await read_all(node.address)))
    await appender.close()


ON_SMALL_DISK = (
    "unshare", "-Urm", "sh", "-c",
    'mkdir -p "$0" && mount -t tmpfs -o size=768m tmpfs "$0" && head -c 310000000 /dev/zero > "$0/ballast"'
    ' && exec "$@"',
)


async def test_snapshot_resumes_behind_what_was_durable_when_the_new_node_was_killed(
    start_node: Callable, operator: OperatorHand
):
    source = start_node("a", "--snapshot-bytes-per-second", str(8 << 20))
    await lead(operator, [source], source)
    appender = Appender(source.address)
    for sequence in range(20):
        await appender.append(batch(sequence, bytes([sequence]) * 800_000))
    await appender.close()
    spare = start_node("b")
    pushed = shard_map([(node.member, node.address) for node in (source, spare)], "a", 2)
    await push_map(spare.address, pushed)
    await operator.link("b", spare.address)
    request = Prepare(2, 2, Operation.EXPAND, None, spare.member)
    prepared = await operator.ask(source.member, request, Prepared)
    install = InstallSnapshot(2, 2, source.member, prepared.snapshot)
    await operator.send(spare.member, install)
    seen = 0
    async with asyncio.timeout(PATIENCE_S):
        while (progress := await operator.wait_for("b", SnapshotProgress, seen=seen)).received_bytes < 5_000_000:
            seen = len(operator.received)
    spare.kill()
    spare.start()
    await push_map(spare.address, pushed)
    await operator.link("b", spare.address)
    installed = await operator.ask(spare.member, install, SnapshotInstalled, timeout_seconds=20)
    assert prepared.snapshot.head == installed.head
    text = await metrics_of(spare)
    (line,) = (line for line in text.splitlines() if line.startswith("tidemark_snapshot_received_bytes_total"))
    assert 0 < float(line.split()[1]) <= prepared.snapshot.payload_bytes - progress.received_bytes + 1_000_000


async def test_damage_in_mid_wal_makes_the_node_another_member(start_node: Callable, operator: OperatorHand):
    node = start_node("a")
    await lead(operator, [node], node)
    appender = Appender(node.address)
    for sequence in range(50):
        await appender.append(batch(sequence, b"w" * 10_000))
    await appender.close()
    before = node.member
    node.kill()
    log = max((node.directory / "store").glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    node.start()
    assert before.incarnation != node.member.incarnation
    assert (node.directory / "store.damaged-1").is_dir()
    await operator.link("a", node.address)
    refused = await operator.ask(before, Fence(2, 2), Rejected)  # it does not vote under its old membership
    assert Reason.NOT_MEMBER is refused.refusal.reason
