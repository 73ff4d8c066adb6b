"""Links to nodes: what they tell when nodes come, break, hang, drain, lie about themselves; maps pushed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from fake_node import FakeNode
from grpc_health.v1 import health
from tidemark_core.base.effects import SnapshotDescriptor, Space
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, EntryId, Member, OperatorId, ShardId, of_shard
from tidemark_core.optimistic.moving import Known
from tidemark_core.replication.messages import BecameLeader, Fence, InstallSnapshot
from tidemark_operator import nodes
from tidemark_operator.detector import DetectorSettings, LoopLateness
from tidemark_operator.log_sizes import log_bytes
from tidemark_operator.metadata import NodeRecord
from tidemark_operator.nodes import NodeLink, NodeLinks
from tidemark_operator.publisher import MapPublisher
from tidemark_wire.channel import INCARNATION_KEY, NODE_KEY, WIRE_VERSION_KEY
from tidemark_wire.convert import DiskReport, Draining
from tidemark_wire.frames import SLICE_WORK, encode_message
from tidemark_wire.v1 import common_pb2

from tests.waiting import PATIENCE_S, remains, until

SHARD = ShardId(1 << 32)
AT = of_shard(SHARD)
ME = Member("n1", "life-1")
SETTINGS = DetectorSettings(probe_interval_ms=50, probe_timeout_ms=300, failure_threshold=2)
PATIENT = replace(SETTINGS, probe_timeout_ms=60_000)
"""A node that a busy machine holds up is not silent."""


class Told:
    """Writes down what the links tell."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.clocks: list[str] = []

    def on_up(self, link: NodeLink, member: Member, boot: str) -> None:
        self.events.append(("up", member, boot))

    def on_down(self, node: str, reason: str) -> None:
        self.events.append(("down", node))

    def on_message(self, address: Address, sender: Member, boot: str, message: Any) -> None:
        self.events.append((address, sender, message))

    def on_space(self, node: str, space: Space) -> None:
        self.events.append(("space", node, space))

    def on_draining(self, node: str, draining: bool) -> None:
        self.events.append(("draining", node, draining))

    def on_clock(self, node: str) -> None:
        self.clocks.append(node)


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    fake = FakeNode()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
async def links(told: Told) -> AsyncIterator[NodeLinks]:
    lateness = LoopLateness()
    lateness.start()
    made = NodeLinks(OperatorId("op-1"), told, lateness, PATIENT)
    yield made
    await made.close()
    await lateness.stop()


def record(node: FakeNode, name: str = "n1") -> NodeRecord:
    return NodeRecord(name, node.address)


async def test_a_node_comes_up_and_messages_go_both_ways(node, links, told) -> None:
    links.set_node(record(node))
    await until(lambda: ("up", ME, "boot-1") in told.events)
    links.send(AT, ME, Fence(3, 4))
    await until(lambda: (SHARD, ME, Fence(3, 4)) in node.received)
    await node.send(SHARD, BecameLeader(3, 4))
    await until(lambda: (AT, ME, BecameLeader(3, 4)) in told.events)


async def test_a_dead_node_is_down_at_once(node, links, told) -> None:
    links.set_settings(DetectorSettings(probe_interval_ms=60_000, probe_timeout_ms=1_000, failure_threshold=9))
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    await node.stop()
    await until(lambda: ("down", "n1") in told.events, "it does not wait for nine probes, a minute apart")
    await node.start()
    await until(lambda: told.events.count(("up", ME, "boot-1")) == 2)


async def test_a_broken_stream_of_a_living_node_is_no_failure(node, links, told) -> None:
    links.set_node(record(node))
    await until(lambda: node.links_made == 1)
    # A link that lasts; a shorter one is made again with a pause.
    await remains(lambda: node.links_made == 1, for_s=0.6)
    await node.break_links()
    await until(lambda: node.links_made == 2)
    await until(lambda: told.events.count(("up", ME, "boot-1")) == 2)
    assert ("down", "n1") not in told.events


async def test_a_link_tells_which_certificates_its_node_has_loaded_or_that_it_is_gone(node, links, told) -> None:
    node.description.tls_fingerprint = "f1"
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    link = links.get("n1")
    assert "f1" == await link.tls_fingerprint()
    node.silent = True
    asking = asyncio.ensure_future(link.tls_fingerprint())
    await until(lambda: node.unanswered == 1)
    links.remove_node("n1")  # its channel goes, and the call with it
    with pytest.raises(ConnectionError, match="n1"):
        await asyncio.wait_for(asking, PATIENCE_S)
    with pytest.raises(ConnectionError, match="not linked"):
        await link.tls_fingerprint()


async def test_not_serving_is_down_and_serving_is_up_again(node, links, told) -> None:
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    await node.say(False)
    await until(lambda: ("down", "n1") in told.events)
    await node.say(True)
    await until(lambda: told.events.count(("up", ME, "boot-1")) == 2)


async def test_a_message_of_a_newer_release_is_skipped_and_the_others_of_its_frame_arrive(node, links, told) -> None:
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    known = encode_message(of_shard(ShardId(0)), None, Draining(True))
    for context in node.links:
        await context.write(bytes((99,)) + known[1:] + known)
    await until(lambda: ("draining", "n1", True) in told.events)


async def test_a_message_about_a_range_of_a_keyspace_is_not_taken_for_one_about_the_shard_of_its_number(
    node, links, told
) -> None:
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    for context in node.links:
        await context.write(encode_message(Address(KEYSPACE_PLANE, SHARD), None, Known(SHARD, 4)))
    await node.send(SHARD, BecameLeader(3, 4))
    await until(lambda: len(told.events) == 3)
    assert [(Address(KEYSPACE_PLANE, SHARD), ME, Known(SHARD, 4)), (AT, ME, BecameLeader(3, 4))] == told.events[1:]


async def test_k20_a_node_says_that_its_disk_is_full_when_it_is_linked_and_at_each_change(node, links, told) -> None:
    node.description.disk_space, node.description.disk_free_bytes = Space.FULL, 7
    links.set_node(record(node))
    await until(lambda: ("up", ME, "boot-1") in told.events)
    assert ("space", "n1", Space.FULL) in told.events
    assert (Space.FULL, 7) == (links.get("n1").space, links.get("n1").free_bytes)
    for said in (DiskReport(1, 6), DiskReport(2, 5), DiskReport(9, 4), DiskReport(0, 3)):
        await node.send(ShardId(0), said)
    await until(lambda: ("space", "n1", Space.FREE) in told.events)
    assert [Space.FULL, Space.EXHAUSTED, Space.FREE] == [each[2] for each in told.events if each[0] == "space"]
    assert 3 == links.get("n1").free_bytes


async def test_a_draining_node_is_not_down_while_it_hands_over(node, links, told) -> None:
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    node.description.draining = True
    await node.say(False)  # seen by a probe before its own message comes
    await until(lambda: ("draining", "n1", True) in told.events)
    await node.send(ShardId(0), Draining(True))
    await remains(lambda: ("down", "n1") not in told.events, for_s=0.3)
    assert links.get("n1").draining


async def test_silence_is_counted(node, links, told) -> None:
    links.set_settings(SETTINGS)
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)

    async def hang(*_: Any) -> None:
        await asyncio.sleep(60)

    node._health.Check = hang
    await node.stop()
    node._health = type("Hung", (), {"Check": hang, "Watch": hang, "set": hang})()
    silent = await asyncio.start_server(hang, "127.0.0.1", node.port)  # accepts, never speaks
    await until(lambda: ("down", "n1") in told.events)
    silent.close()
    node._server = type("Stopped", (), {"stop": staticmethod(lambda _grace: asyncio.sleep(0))})()


async def test_other_settings_count_for_links_that_stand(links, told) -> None:
    class Hushed(health.aio.HealthServicer):
        hung = False

        async def Check(self, request: Any, context: Any) -> Any:
            if self.hung:
                await asyncio.sleep(60)
            return await super().Check(request, context)

    patient = DetectorSettings(probe_interval_ms=50, probe_timeout_ms=1_000, failure_threshold=20)
    links.set_settings(patient)
    node = FakeNode()
    node._health = hushed = Hushed()
    await node.start()
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    hushed.hung = True
    links.set_settings(replace(patient, failure_threshold=2))
    await until(lambda: ("down", "n1") in told.events)
    await node.stop()


async def test_another_node_at_the_address_is_not_taken_for_it(node, links, told) -> None:
    links.set_node(record(node, "n7"))
    await until(lambda: ("down", "n7") in told.events)
    assert "another node" in links.get("n7").reason and not links.get("n7").up


async def test_a_node_of_another_cluster_is_named_only_while_it_answers(node, told) -> None:
    lateness = LoopLateness()
    made = NodeLinks(OperatorId("op-1"), told, lateness, SETTINGS, cluster="ours")
    node.description.cluster = "theirs"
    made.set_node(record(node))
    link = made.get("n1")
    await until(lambda: link.of_other_cluster and "theirs" in link.reason)
    await node.stop()
    await until(lambda: "refuses connections" in link.reason)
    assert not link.of_other_cluster
    await made.close()


@pytest.mark.parametrize(("oldest", "newest"), [(4, 0), (4, 4)])
async def test_a_node_of_the_release_before_is_linked_in_its_version(node, links, told, oldest, newest) -> None:
    node.description.wire_version, node.description.wire_version_newest = oldest, newest
    node.hello = ((NODE_KEY, "n1"), (INCARNATION_KEY, "life-1"), (WIRE_VERSION_KEY, "4"))
    node.wire_version = 4
    links.set_node(record(node))
    await until(lambda: ("up", ME, "boot-1") in told.events)
    links.send(AT, ME, Fence(3, 4))
    await until(lambda: (SHARD, ME, Fence(3, 4)) in node.received)
    await node.send(SHARD, BecameLeader(3, 4))
    await until(lambda: (AT, ME, BecameLeader(3, 4)) in told.events)


async def test_a_message_queued_between_two_streams_is_encoded_for_the_second(node, links, told) -> None:
    """The node restarts with the other release, faster than the detector calls it down."""
    links.set_node(record(node))
    await until(lambda: ("up", ME, "boot-1") in told.events)
    link = links.get("n1")
    node.description.wire_version = node.wire_version = 4
    node.hello = ((NODE_KEY, "n1"), (INCARNATION_KEY, "life-1"), (WIRE_VERSION_KEY, "4"))
    await node.break_links()
    await until(lambda: not node.links)
    assert link.up
    links.send(AT, ME, Fence(3, 4))
    await until(lambda: (SHARD, ME, Fence(3, 4)) in node.received)


async def test_another_wire_version_is_not_linked(node, links, told) -> None:
    node.description.wire_version = 99
    links.set_node(record(node))
    await until(lambda: ("down", "n1") in told.events)
    assert "wire version 99" in links.get("n1").reason


async def test_a_node_that_moved_is_found_at_its_new_address(node, links, told) -> None:
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    other = FakeNode()
    other.description.boot = "boot-2"
    await other.start()
    links.set_node(record(other))
    await until(lambda: ("up", ME, "boot-2") in told.events)
    assert told.events[1] == ("down", "n1")
    await other.stop()


async def test_a_large_message_has_a_frame_of_its_own(node, links, told) -> None:
    links.set_node(record(node))
    await until(lambda: len(told.events) == 1)
    at, size = EntryId(1, 1), nodes.FRAME_BYTES_TARGET
    large = InstallSnapshot(1, 1, ME, SnapshotDescriptor(1, at, 1, 1, 0, bytes(size)))
    messages = [Fence(1, 1), Fence(2, 1), large, large, Fence(3, 1), Fence(4, 1)]
    for message in messages:
        links.send(AT, ME, message)
    await until(lambda: len(node.received) == len(messages))
    assert messages == [message for _, _, message in node.received], "in order, each once"
    small, *snapshots, rest = node.frames
    assert small == rest < 200 and 2 == len(snapshots) and size < min(snapshots) == max(snapshots) < size + 200


async def test_a_full_queue_drops_and_counts(node, links, told, monkeypatch) -> None:
    monkeypatch.setattr("tidemark_operator.nodes.QUEUE_MESSAGES_MAX", 3)
    links.set_node(record(node))
    links.send(AT, ME, Fence(1, 1))  # no stream yet
    await until(lambda: len(told.events) == 1)
    for epoch in range(5):
        links.send(AT, ME, Fence(epoch, 1))
    await until(lambda: len(node.received) == 3)
    assert links.get("n1").dropped == 3


async def test_maps_are_pushed_once_each_and_again_to_a_new_process(node, links, told) -> None:
    publisher = MapPublisher(links, lambda version: common_pb2.ShardMap(version=version))
    told.on_up = lambda link, member, boot: publisher.node_up(link)
    publisher.changed()
    assert publisher.version == 0  # not active: nothing is built
    publisher.begin(term=2)
    links.set_node(record(node))
    await until(lambda: node.maps == [(2 << 32) + 1])
    node.refuse_maps = 2
    publisher.changed()
    publisher.changed()
    await until(lambda: node.maps == [(2 << 32) + 1, (2 << 32) + 2])
    node.description.boot = "boot-2"
    await node.stop()
    await node.start()
    await until(lambda: node.maps[2:] == [(2 << 32) + 2])
    publisher.end()
    publisher.changed()
    assert publisher.version == (2 << 32) + 2
    await publisher.close()


async def test_who_does_not_say_how_much_it_holds_is_left_out(node, links, told, monkeypatch) -> None:
    monkeypatch.setattr(nodes, "SIZES_MAX", 2)
    silent = FakeNode("n2", "life-2")
    await silent.start()
    shards = [ShardId(SHARD + index) for index in range(5)]
    node.held = {shard: 10 * index for index, shard in enumerate(shards[:4])}
    silent.held = {}
    links.set_node(record(node))
    links.set_node(record(silent, "n2"))
    await until(lambda: all(link.up for link in links))
    silent.held = None  # an older build knows nothing of it
    assert await log_bytes(links, {"n1": shards, "n2": [ShardId(7)], "n9": [ShardId(8)]}) == node.held
    assert node.sizes_asked == 3, "a few at a time"
    await silent.stop()


async def test_c5_the_clock_of_a_node_is_looked_at_again_and_again(
    node: FakeNode, links: NodeLinks, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "CLOCK_LOOK_S", 0.05)
    links.set_node(record(node))
    await until(lambda: ("up", ME, "boot-1") in told.events)
    link = links.get("n1")
    assert link is not None and link.clock_ahead_ms is None and told.clocks == [], "an older release says none"

    def wrong_by(skew_ms: int) -> bool:
        """Say whether the link knows a clock that is so far from ours, give or take a second."""
        right_ms = time.time() * 1000 - time.monotonic() * 1000
        return link.clock_ahead_ms is not None and abs(link.clock_ahead_ms - right_ms - skew_ms) < 1_000

    for skew_ms in (0, 8 * 86_400_000, -3_600_000):
        node.description.clock_ms = int(time.time() * 1000) + skew_ms
        await until(lambda skew_ms=skew_ms: wrong_by(skew_ms))
    assert told.clocks == ["n1"] * 3
    assert told.events == [("up", ME, "boot-1")], "a clock breaks no link"


async def test_a_frame_full_of_work_lets_the_loop_do_other_work(
    links: NodeLinks, node: FakeNode, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stolen key of a node packs many messages into one frame; the test counts work, not seconds."""
    between = [0]

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            between.append(0)

    def on_message(*_: Any) -> None:
        between[-1] += 1

    links.set_node(NodeRecord("n1", node.address))
    await until(lambda: bool(node.links))
    monkeypatch.setattr(told, "on_message", on_message)
    other = asyncio.ensure_future(count_turns())
    (context,) = node.links
    one = encode_message(AT, None, BecameLeader(3, 4), node.wire_version)
    await context.write(one * (3 * SLICE_WORK))
    await until(lambda: sum(between) == 3 * SLICE_WORK, "all of it is taken in")
    other.cancel()
    assert 0 < max(between) <= SLICE_WORK
