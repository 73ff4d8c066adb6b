"""Keyspaces on a real node over gRPC: every method, every refusal, quorums of a request, access, budgets, a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import grpc.aio
import pytest
from node_harness import VERSIONS
from prometheus_client import generate_latest
from test_node_access import Certificates
from tidemark_core.base.ids import KEYSPACE_PLANE, Member
from tidemark_core.base.refusals import Reason
from tidemark_core.optimistic.cells import StringCell, encode_string
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.coordinating.running import STRICT, Policy
from tidemark_core.optimistic.owner import Source
from tidemark_core.optimistic.plane import Assign, Cluster, KeyspaceLimits, KeyspacePlane, Operate
from tidemark_core.optimistic.ring import Owners, Quorum, Range, range_of
from tidemark_core.optimistic.sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_core.optimistic.stamps import Stamp
from tidemark_core.planes import planes
from tidemark_node import keyspaces
from tidemark_node.main import Node
from tidemark_node.rings import TTL_MAX_MS
from tidemark_node.settings import Settings
from tidemark_node.store_errors import StoreFailed
from tidemark_wire.channel import open_channel
from tidemark_wire.identity import Kind
from tidemark_wire.rings import put_ring
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import common_pb2, node_pb2_grpc
from tidemark_wire.v1 import keyspaces_pb2 as wire
from tidemark_wire.v1.keyspaces_pb2_grpc import KeyspacesStub

from tests.waiting import until

NAME, NUMBER, RANGES = "carts", 3, 4
AWAY = (Member("b", "b1"), Member("c", "c1"))
"""Owners that do not run: what needs one of them is not answered."""
QUICK = partial(planes, keyspaces=KeyspaceLimits(tick_ms=20))


async def started(stack: AsyncExitStack, data: Path, **settings: Any) -> Node:
    """Return a running node that holds keyspaces."""
    node = Node(
        Settings(node="a", data=data, metrics_listen="off", disk_reserve_bytes=1 << 20, **settings), planes_of=QUICK)
    await node.start()
    stack.push_async_callback(node.stop)
    return node


def shard_map(*members: Member, w: int = 1, record: int = 0, **fields: Any) -> common_pb2.ShardMap:
    """Build a map with one keyspace, owned by these members under records of a version, by default of a new one."""
    found = common_pb2.ShardMap(version=next(VERSIONS), nodes=[
        common_pb2.NodeInfo(node=member.node, incarnation=member.incarnation, zone="z") for member in members])
    quorum = Quorum(len(members), len(members) + 1 - w, w)
    info = found.keyspaces.add(**{"name": NAME, "keyspace_id": NUMBER, "overrides_allowed": True, **fields})
    put_ring(info, [Range(record or found.version, Owners(members, quorum))] * RANGES)
    return found


async def push(node: Node, pushed: common_pb2.ShardMap, tls: Credentials | None = None) -> None:
    async with open_channel(node.address, tls) as opened:
        await node_pb2_grpc.ControlStub(opened).PushShardMap(pushed, timeout=20)


class Client:
    """A caller; each method takes the fields of its request."""

    REQUESTS: ClassVar[dict[str, Any]] = {
        "Get": wire.GetStringsRequest, "Set": wire.SetStringsRequest, "Unset": wire.KeyRequest,
        "GetDel": wire.KeyRequest, "Put": wire.PutElementRequest, "Remove": wire.ElementRequest,
        "GetElement": wire.ElementRequest, "Elements": wire.ElementsRequest, "Clear": wire.KeyRequest,
        "Strings": wire.StringsRequest, "Cells": wire.CellsRequest, "Import": wire.ImportRequest,
        "Explain": wire.ExplainKeyRequest, "Ranges": wire.RangesRequest,
        "Futures": wire.FuturesRequest, "RepairFuture": wire.RepairFutureRequest,
    }

    def __init__(self, opened: grpc.aio.Channel) -> None:
        self._stub: Any = KeyspacesStub(opened)

    def call(self, method: str, timeout: float = 20, **fields: Any) -> Any:
        request = self.REQUESTS[method](**{"keyspace": NAME, **fields})
        return getattr(self._stub, method)(request, timeout=timeout)

    async def refused(self, method: str, **fields: Any) -> tuple[Reason, str]:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.call(method, **fields)
        hinted = refusal_from_rpc_error(caught.value)
        assert hinted is not None, caught.value
        return hinted.refused.reason, hinted.refused.message

    async def set(self, *pairs: tuple[bytes, bytes], **fields: Any) -> list[str]:
        items = [wire.SetString(key=key, value=value) for key, value in pairs]
        return [each.outcome for each in (await self.call("Set", items=items, **fields)).written]

    async def get(self, *keys: bytes, **fields: Any) -> list[tuple[str, bytes | None]]:
        return [value_of(each) for each in (await self.call("Get", keys=keys, **fields)).values]

    async def elements(self, key: bytes, **fields: Any) -> dict[bytes, bytes]:
        return {each.name: each.value for each in (await self.call("Elements", key=key, **fields)).entries}


def value_of(value: wire.KeyspaceValue) -> tuple[str, bytes | None]:
    return value.outcome, value.value if value.HasField("value") else None


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node that owns every range alone."""
    async with AsyncExitStack() as stack:
        node = await started(stack, tmp_path)
        await push(node, shard_map(node.me))
        held = f"\ntidemark_keyspace_ranges {RANGES}.0\n"
        await until(lambda: held in generate_latest(node.metrics.registry).decode(), "the node holds every range")
        yield node


@pytest.fixture
async def client(node: Node) -> AsyncIterator[Client]:
    async with open_channel(node.address) as opened:
        yield Client(opened)


def idle(node: Node) -> bool:
    """Say whether no operation and no answer holds anything."""
    return not (node.budgets.keyspaces.used or node.budgets.frames.used or node.driver.depths["requests"])


# --- what methods do ----------------------------------------------------------------------------------------------


async def test_strings_are_set_read_and_deleted(client: Client) -> None:
    keys = [b"key %d" % number for number in range(20)]
    assert RANGES == len({range_of(key, RANGES) for key in keys}), "one call has keys of several ranges"
    assert ["ok"] * 20 == await client.set(*((key, b"of " + key) for key in keys))
    assert [("ok", b"of " + key) for key in keys] == await client.get(*keys)
    assert "ok" == (await client.call("Unset", key=keys[0])).outcome
    assert ("ok", b"of " + keys[1]) == value_of(await client.call("GetDel", key=keys[1]))
    assert ("ok", None) == value_of(await client.call("GetDel", key=keys[1]))
    assert [("ok", None), ("ok", None), ("ok", b"of " + keys[2])] == await client.get(*keys[:3])


async def test_a_write_says_its_stamp_and_who_stored_it(client: Client, node: Node) -> None:
    item = wire.SetString(key=b"k", value=b"v")
    first, second = [(await client.call("Set", items=[item])).written[0] for _ in range(2)]
    assert (1, "a", 8) == (first.stored, first.stamp.node, len(first.stamp.start))
    assert (first.stamp.ms, first.stamp.logical) < (second.stamp.ms, second.stamp.logical)
    assert 0 <= node.driver.now_ms() - second.stamp.ms < 60_000


async def test_elements_are_put_read_and_removed(client: Client) -> None:
    for element in (b"red", b"green", b""):
        assert "ok" == (await client.call("Put", key=b"k", element=element)).outcome
    assert "ok" == (await client.call("Put", key=b"k", element=b"size", value=b"9", shown=True)).outcome
    assert {b"": b"", b"green": b"", b"red": b"", b"size": b"9"} == await client.elements(b"k")
    assert ("ok", b"9") == value_of(await client.call("GetElement", key=b"k", element=b"size"))
    assert ("ok", None) == value_of(await client.call("GetElement", key=b"k", element=b"blue"))
    assert "ok" == (await client.call("Remove", key=b"k", element=b"green")).outcome
    assert [b"", b"red", b"size"] == list(await client.elements(b"k"))
    assert "ok" == (await client.call("Clear", key=b"k")).outcome
    assert {} == await client.elements(b"k")


async def test_pages_go_on_where_the_one_before_ended(client: Client) -> None:
    long = [bytes([65 + number]) * KEY_BYTES_MAX for number in range(5)]
    await client.set(*((key, b"v") for key in long))
    for element in long:
        await client.call("Put", key=long[0], element=element)

    async def pages(method: str, **fields: Any) -> list[bytes]:
        found, first = [], b""
        while True:
            page = await client.call(method, first=first, count_max=2, **fields)
            assert "ok" == page.outcome and len(page.entries) <= 2
            found += [entry.name for entry in page.entries]
            if not page.HasField("next"):
                return found
            first = page.next

    assert long == await pages("Elements", key=long[0])
    strings = [await pages("Strings", range=index) for index in range(RANGES)]
    assert [[key for key in long if range_of(key, RANGES) == index] for index in range(RANGES)] == strings


async def test_values_stay_as_long_as_they_are_meant_to(client: Client, node: Node) -> None:
    await push(node, shard_map(node.me, default_ttl_ms=1_000_000))
    now_ms = node.driver.now_ms()
    for key, fields in ((b"default", {}), (b"kept", {"ttl_ms": 0}), (b"short", {"ttl_ms": 1_000})):
        await client.call("Set", items=[wire.SetString(key=key, value=b"v", **fields)])
        await client.call("Put", key=b"k", element=key, **fields)

    def left(after_ms: int) -> Any:
        node.driver.now_ms = lambda: now_ms + after_ms  # type: ignore[method-assign]
        return client.get(b"default", b"kept", b"short")

    assert [b"v", b"v", b"v"] == [value for _, value in await left(500)]
    assert [b"v", b"v", None] == [value for _, value in await left(900_000)]
    assert [b"default", b"kept"] == list(await client.elements(b"k"))
    assert [None, b"v", None] == [value for _, value in await left(2_000_000)]
    assert [b"kept"] == list(await client.elements(b"k"))


async def test_the_largest_values_come_whole_and_a_large_answer_ends_early(client: Client, node: Node) -> None:
    keys = [b"k%d" % number for number in range(12)]
    large = bytes(VALUE_BYTES_MAX)
    assert ["ok"] == await client.set((keys[0], large))
    assert [("ok", large)] == await client.get(*keys[:1])
    for key in keys[1:]:
        await client.set((key, bytes(300 << 10)))
    assert 1 == len(await client.get(*keys)) and 3 == len(await client.get(*keys[1:]))
    await until(lambda: idle(node), "answers hold nothing")


async def test_a_restart_keeps_values(tmp_path: Path) -> None:
    for life in range(2):
        async with AsyncExitStack() as stack:
            node = await started(stack, tmp_path)
            await push(node, shard_map(node.me))
            client = Client(await stack.enter_async_context(open_channel(node.address)))
            if not life:
                await client.set((b"k", b"v"))
                await client.call("Put", key=b"k", element=b"e", value=b"f")
            assert [("ok", b"v")] == await client.get(b"k")
            assert {b"e": b"f"} == await client.elements(b"k")


async def test_a_core_that_is_loaded_again_is_handed_the_records(
    client: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed = shard_map(node.me)
    pushed.keyspaces.add().CopyFrom(shard_map(*AWAY, name="far", keyspace_id=9).keyspaces[0])
    await push(node, pushed)
    await client.set((b"k", b"v"))
    before, reopen, failed = node.driver.core, node.driver._reopen, StoreFailed("a failed write", no_space=False)
    tries = iter((True, False))

    def slow() -> Any:
        if next(tries):
            raise failed
        return reopen()

    monkeypatch.setattr(node.driver, "_reopen", slow)
    node.driver._begin_reload(failed)
    assert Reason.NOT_LEADER is (await client.refused("Get", keys=[b"k"]))[0]
    await until(lambda: node.driver.core is not before and not node.driver.reloading, "it is loaded")
    assert [("ok", b"v")] == await client.get(b"k")
    plane: Any = node.driver.core.planes[KEYSPACE_PLANE]
    assert {number << 32 | index for number in (NUMBER, 9) for index in range(RANGES)} == set(plane.records)


async def test_what_is_under_way_when_the_store_fails_is_unknown(client: Client, node: Node) -> None:
    await push(node, shard_map(node.me, *AWAY, w=2))
    under_way = [asyncio.ensure_future(call) for call in (
        client.set((b"k", b"v"), (b"l", b"v")), client.get(b"k"), client.elements(b"k"))]
    await until(lambda: node.driver.depths["requests"] == 4, "each waits for owners")
    node.driver._begin_reload(StoreFailed("a failed write", no_space=False))
    assert [["unknown"] * 2, [("unknown", None)], {}] == [await each for each in under_way]
    await until(lambda: idle(node) and not node.driver.reloading, "they hold nothing")


async def test_a_map_is_handed_to_the_core_as_far_as_it_changed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    posted: list[Any] = []
    post = node.driver.post

    def noted(event: Any, size: int = 0) -> None:
        posted.extend([event] if isinstance(event, Assign | Cluster) else [])
        post(event, size)

    monkeypatch.setattr(node.driver, "post", noted)
    near, far = Member("near", "n1"), Member("far", "f1")
    known = node.routing.map.version
    pushed = shard_map(node.me, record=known)
    pushed.nodes.extend([
        common_pb2.NodeInfo(node="far", incarnation="f1", zone="y"),
        common_pb2.NodeInfo(node="near", incarnation="n1", zone="z"), common_pb2.NodeInfo(node="new"),
    ])
    put = Range(known + 1, Owners((node.me,), Quorum(1, 1, 1)))
    pushed.keyspaces[0].ranges[1].version = put.version
    await push(node, pushed)
    assert [Cluster((node.me, near, far)), Assign(NUMBER << 32 | 1, put)] == posted
    pushed.version = next(VERSIONS)
    await push(node, pushed)
    assert 2 == len(posted)


async def test_operations_have_the_policy_of_the_keyspace_and_the_request(
    client: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(node, shard_map(node.me, read_repair="Local", sloppy=True))
    posted: list[Any] = []
    post = node.driver.post

    def noted(event: Any, size: int = 0) -> None:
        posted.extend([event] if isinstance(event, Operate) else [])
        post(event, size)

    monkeypatch.setattr(node.driver, "post", noted)
    await client.get(b"k", r=1, timeout=30)
    await client.set((b"k", b"v"), w=1, timeout=None)
    assert [Policy(Repair.LOCAL, True, 1, 0), Policy(Repair.LOCAL, True, 0, 1)] == [each.policy for each in posted]
    assert {NUMBER << 32 | range_of(b"k", RANGES)} == {each.unit for each in posted}
    assert 20_000 < posted[0].timeout_ms < 30_000 and 4_000 < posted[1].timeout_ms <= 5_000
    assert "ok" == (await client.call("Import", cells=[CELL])).outcome
    assert (STRICT, Source.BACKUP) == (posted[2].policy, posted[2].source), "no node keeps an import for owners (D83)"
    assert {Source.CLIENT} == {each.source for each in posted[:2]}


async def test_people_see_the_ranges_of_a_node_page_by_page(client: Client, node: Node) -> None:
    first = await client.call("Ranges", count_max=3)
    rest = await client.call("Ranges", first=first.next)
    assert ([0, 1, 2], 3) == ([each.range for each in first.ranges], first.next)
    assert not rest.HasField("next") and (node.me.node, node.me.incarnation) == (
        first.member.node, first.member.incarnation)
    [shown] = rest.ranges
    assert (3, "owner", 1, False, False, 0) == (
        shown.range, shown.part, len(shown.own), shown.late, shown.needs_repair, len(shown.exchanges))
    told = generate_latest(node.metrics.registry).decode()
    for line in (f"ranges {RANGES}.0", "exchange_oldest_age_seconds 0.0", "ranges_late 0.0", "ranges_need_repair 0.0",
                 "hints 0.0", "hint_bytes 0.0", "trees_forgotten_total 0.0"):
        assert f"\ntidemark_keyspace_{line}\n" in told, line


async def test_people_see_owners_that_are_away_and_since_when(client: Client, node: Node) -> None:
    await push(node, shard_map(node.me, *AWAY, w=2))
    await client.set((b"k", b"v"), w=1)

    async def blocked() -> Any:
        shown = (await client.call("Ranges")).ranges[0]
        return {each.member.node for each in shown.blocks if each.HasField("for_ms")} >= {"b", "c"} and shown

    shown = await until(blocked, "both are away")
    assert {"it is away (D70)"} == {each.what for each in shown.blocks} and not shown.HasField("exchanged_ms")
    found = await client.call("Explain", key=b"k")
    assert ("unknown", [True, False, False]) == (found.outcome, [each.answered for each in found.nodes])
    assert found.shown and 1 == found.winner.value_bytes and "a" == found.winner.stamp.node
    assert "tidemark_keyspace_exchange_oldest_age_seconds 0.0" not in generate_latest(node.metrics.registry).decode()


async def test_d84_stamps_from_the_future_are_found_and_replaced(
    client: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane = cast("KeyspacePlane", node.driver.core.planes[KEYSPACE_PLANE])
    clock, now_ms = plane._clock, node.driver.now_ms()
    with monkeypatch.context() as ahead:
        ahead.setattr(clock, "_skew_ms", 100_000)
        clock.saw(Stamp(now_ms + 90_000, 0, "a", bytes(8)), now_ms)
        assert ["ok"] == await client.set((b"k", b"ahead"))
        await client.call("Put", key=b"k", element=b"e")
    clock._ms = 0
    assert ["unknown"] == await client.set((b"k", b"new"), timeout=0.4)
    index = range_of(b"k", RANGES)
    page = await client.call("Futures", range=index)
    assert [(b"k", False), (b"k", True)] == [(each.key, each.elements) for each in page.keys]
    assert page.keys[0].stamp.ms > page.now_ms + 80_000 and not page.HasField("next")
    first = await client.call("Futures", range=index, count_max=1)
    rest = await client.call("Futures", range=index, first=first.next)
    assert [[False], [True]] == [[each.elements for each in shown.keys] for shown in (first, rest)]

    done = await client.call("RepairFuture", key=b"k")
    assert ("elements", 0) == (done.outcome, len(done.missing))
    [replaced] = done.replaced
    assert replaced.was == page.keys[0].stamp and replaced.became.ms < page.now_ms + 10_000
    assert [("ok", b"ahead")] == await client.get(b"k")
    assert ["ok"] == await client.set((b"k", b"new")) and [("ok", b"new")] == await client.get(b"k")
    assert [True] == [each.elements for each in (await client.call("Futures", range=index)).keys]
    found = await client.call("Explain", key=b"k")
    assert {("retracted", True), ("string", False)} == {(each.sort, each.dead) for each in found.nodes[0].cells}

    await push(node, shard_map(node.me, *AWAY, w=2))
    done = await client.call("RepairFuture", key=b"l")
    assert ("unknown", ["b", "c"]) == (done.outcome, [each.node for each in done.missing])


async def test_people_see_why_an_element_is_shown(client: Client, node: Node) -> None:
    await client.call("Put", key=b"k", element=b"e", value=b"v")
    found = await client.call("Explain", key=b"k", element=b"e")
    assert found.shown and "element" == found.winner.sort and node.me.node == found.winner.actor_node
    assert (1, range_of(b"k", RANGES)) == (len(found.nodes), found.range) and not found.nodes[0].lacks
    await client.call("Clear", key=b"k")
    found = await client.call("Explain", key=b"k", element=b"e")
    assert not found.shown and ("clear", True) == (found.winner.sort, found.winner.dead)
    found = await client.call("Explain", key=b"k")
    assert not found.HasField("winner") and ["clear"] == [each.sort for each in found.nodes[0].cells]
    found = await client.call("Explain", key=b"nothing")
    assert ("ok", False, "no owner that has answered holds a cell") == (found.outcome, found.shown, found.why)


async def test_operations_are_counted(client: Client, node: Node) -> None:
    await client.set((b"k", b"v"), (b"l", b"v"))
    await client.call("Remove", key=b"k", element=b"e")
    told = generate_latest(node.metrics.registry).decode()
    assert 'tidemark_keyspace_operations_total{method="Set",outcome="ok"} 2.0' in told
    assert 'tidemark_keyspace_operation_seconds_count{method="Remove"} 1.0' in told


# --- quorums ------------------------------------------------------------------------------------------------------


async def test_d77_a_request_for_fewer_owners_is_weak_and_one_for_all_unknown(client: Client, node: Node) -> None:
    await push(node, shard_map(node.me, *AWAY, w=2))
    weak: dict[str, dict[str, Any]] = {
        "Unset": {"w": 1}, "GetDel": {"r": 1, "w": 1}, "Put": {"element": b"e", "w": 1},
        "GetElement": {"element": b"e", "r": 1}, "Elements": {"r": 1},
        "Clear": {"w": 1},
    }
    assert ["weak", "weak"] == await client.set((b"k", b"v"), (b"l", b"v"), w=1)
    assert [("weak", b"v"), ("weak", b"v")] == await client.get(b"k", b"l", r=1)
    assert "weak" == (await client.call("Strings", r=1)).outcome
    for method, fields in weak.items():
        assert "weak" == (await client.call(method, key=b"k", **fields)).outcome, method
    strict = [client.call(method, key=b"k", timeout=0.3, **{
        field: value for field, value in fields.items() if field == "element"}) for method, fields in weak.items()]
    assert {"unknown"} == {answer.outcome for answer in await asyncio.gather(*strict)}
    assert ["unknown"] == await client.set((b"k", b"v"), timeout=0.3)
    page = await client.call("Strings", timeout=0.3)
    assert ("unknown", 0, False) == (page.outcome, len(page.entries), page.HasField("next"))
    cells, done = await asyncio.gather(
        client.call("Cells", timeout=1), client.call("Import", cells=[CELL], timeout=1))
    assert ("unknown", 0, False, "unknown") == (
        cells.outcome, len(cells.cells), cells.HasField("next"), done.outcome)
    assert [("unknown", None)] * 9 == await client.get(*(b"%d" % number for number in range(9)), timeout=0.3)
    assert Reason.INVALID_SPEC is (await client.refused("Set", items=[wire.SetString(key=b"k")], w=4))[0]


async def test_a_call_without_a_deadline_ends(
    client: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(node, shard_map(node.me, *AWAY, w=2))
    monkeypatch.setattr(keyspaces, "DEADLINE_SECONDS", 0.05)
    assert ["unknown"] == await client.set((b"k", b"v"), timeout=None)
    monkeypatch.setattr(keyspaces, "DEADLINE_SECONDS_MAX", 0.05)
    assert ["unknown"] == await client.set((b"k", b"v"), timeout=1_000_000)


# --- refusals -----------------------------------------------------------------------------------------------------

ITEM = wire.SetString(key=b"k", value=b"v")
LONG = bytes(KEY_BYTES_MAX + 1)
CELL = wire.ArchivedCell(
    place=b"\1k", row=encode_string(StringCell(Stamp(5, 0, "n", b"12345678"), False, 0, b"imported")))


@pytest.mark.parametrize(("method", "fields", "reason", "text"), [
    ("Get", {"keyspace": "other", "keys": [b"k"]}, Reason.UNKNOWN_KEYSPACE, "keyspace 'other' is not in shard map"),
    ("Get", {"keyspace_id": 9, "keys": [b"k"]}, Reason.GROUP_REPLACED, "keyspace 'carts' has the id 3 in shard map"),
    ("Get", {}, Reason.INVALID_SPEC, "keys: 0 are in the request, must be 1 to 100"),
    ("Get", {"keys": [b"k"] * 101}, Reason.INVALID_SPEC, "keys: 101 are in the request"),
    ("Get", {"keys": [b"k", b""]}, Reason.INVALID_SPEC, "keys[1]: 0 bytes, must be 1 to 1024"),
    ("Get", {"keys": [b"k"], "r": 2}, Reason.INVALID_SPEC, "r: 2 owners are wanted, range "),
    ("Set", {}, Reason.INVALID_SPEC, "items: 0 are in the request"),
    ("Set", {"items": [ITEM, wire.SetString(key=LONG)]}, Reason.INVALID_SPEC, "items[1].key: 1025 bytes"),
    ("Set", {"items": [ITEM, ITEM]}, Reason.INVALID_SPEC, "items[1].key: b'k' is in the request twice"),
    ("Set", {"items": [ITEM, wire.SetString(key=b"l", value=bytes(VALUE_BYTES_MAX + 1))]}, Reason.INVALID_SPEC,
     "items[1].value: 1048577 bytes, must be at most 1048576"),
    ("Set", {"items": [ITEM, wire.SetString(key=b"l", ttl_ms=-1)]}, Reason.INVALID_SPEC, "items[1].ttl_ms: -1, must"),
    ("Set", {"items": [ITEM, wire.SetString(key=b"l", ttl_ms=TTL_MAX_MS + 1)]}, Reason.INVALID_SPEC, "items[1].ttl_ms"),
    ("Set", {"items": [ITEM], "w": 2}, Reason.INVALID_SPEC, "w: 2 owners are wanted, range "),
    ("Set", {"items": [wire.SetString(key=b"%d" % number, value=bytes(1 << 20)) for number in range(3)]},
     Reason.INVALID_SPEC, "Keyspaces.Set takes at most 2097152"),
    ("Unset", {"key": LONG}, Reason.INVALID_SPEC, "key: 1025 bytes"),
    ("Unset", {"key": b"k", "r": 1}, Reason.INVALID_SPEC, "r: 1, this method has no use for it"),
    ("GetDel", {}, Reason.INVALID_SPEC, "key: 0 bytes"),
    ("Put", {"key": b"k", "element": bytes(ELEMENT_BYTES_MAX + 1)}, Reason.INVALID_SPEC, "element: 1025 bytes"),
    ("Put", {"key": b"k", "value": bytes(VALUE_BYTES_MAX + 1)}, Reason.INVALID_SPEC, "value: 1048577 bytes"),
    ("Put", {"key": b"k", "ttl_ms": -1}, Reason.INVALID_SPEC, "ttl_ms: -1, must be 0 to"),
    ("Put", {"key": LONG}, Reason.INVALID_SPEC, "key: 1025 bytes"),
    ("Remove", {"key": b"k", "element": LONG}, Reason.INVALID_SPEC, "element: 1025 bytes"),
    ("Remove", {"key": b"k", "r": 1}, Reason.INVALID_SPEC, "r: 1, this method has no use for it"),
    ("Remove", {"key": b"k", "w": 2}, Reason.INVALID_SPEC, "w: 2 owners are wanted"),
    ("GetElement", {"key": b"k", "element": LONG}, Reason.INVALID_SPEC, "element: 1025 bytes"),
    ("GetElement", {"key": b"k", "w": 1}, Reason.INVALID_SPEC, "w: 1, this method has no use for it"),
    ("Elements", {"key": b"k", "first": LONG + b"x"}, Reason.INVALID_SPEC, "first: 1026 bytes, must be at most 1025"),
    ("Elements", {"key": b"k", "count_max": 1001}, Reason.INVALID_SPEC, "count_max: 1001, must be at most 1000"),
    ("Clear", {"key": b""}, Reason.INVALID_SPEC, "key: 0 bytes"),
    ("Clear", {"key": b"k", "r": 1}, Reason.INVALID_SPEC, "r: 1, this method has no use for it"),
    ("Strings", {"range": RANGES}, Reason.INVALID_SPEC, "range: 4, the keyspace has ranges 0 to 3"),
    ("Strings", {"r": 2}, Reason.INVALID_SPEC, "r: 2 owners are wanted, range 0 has 1"),
    ("Strings", {"first": LONG + b"x"}, Reason.INVALID_SPEC, "first: 1026 bytes"),
    ("Cells", {"range": RANGES}, Reason.INVALID_SPEC, "range: 4, the keyspace has ranges 0 to 3"),
    ("Cells", {"first": b"\7k"}, Reason.INVALID_SPEC, "first: the bytes of a place name no row"),
    ("Cells", {"first": b"\1" + bytes(9_000)}, Reason.INVALID_SPEC, "first: a mark has 9001 bytes"),
    ("Cells", {"count_max": 1001}, Reason.INVALID_SPEC, "count_max: 1001, must be at most 1000"),
    ("Import", {}, Reason.INVALID_SPEC, "cells: 0 are in the request, must be 1 to 1000"),
    ("Import", {"cells": [CELL, wire.ArchivedCell(place=b"\1k", row=b"r")]}, Reason.INVALID_SPEC,
     "cells[1]: the bytes of a String are cut short"),
    ("Import", {"cells": [CELL, wire.ArchivedCell(place=b"\1other", row=CELL.row)]}, Reason.INVALID_SPEC,
     "cells[1]: its key is of range "),
    ("Import", {"cells": [CELL] * 1001}, Reason.INVALID_SPEC, "cells: 1001 are in the request"),
    ("Explain", {"key": b""}, Reason.INVALID_SPEC, "key: 0 bytes"),
    ("Explain", {"key": b"k", "element": LONG}, Reason.INVALID_SPEC, "element: 1025 bytes"),
    ("Explain", {"keyspace": "other", "key": b"k"}, Reason.UNKNOWN_KEYSPACE, "keyspace 'other' is not in shard map"),
    ("Ranges", {"first": RANGES}, Reason.INVALID_SPEC, "first: 4, the keyspace has ranges 0 to 3"),
    ("Futures", {"range": RANGES}, Reason.INVALID_SPEC, "range: 4, the keyspace has ranges 0 to 3"),
    ("Futures", {"count_max": 1001}, Reason.INVALID_SPEC, "count_max: 1001, must be at most 1000"),
    ("Futures", {"first": b"\7k"}, Reason.INVALID_SPEC, "first: it is not the `next` of a page before"),
    ("Futures", {"first": b"\3k\0\0"}, Reason.INVALID_SPEC, "first: it is not the `next` of a page before"),
    ("RepairFuture", {"key": b""}, Reason.INVALID_SPEC, "key: 0 bytes"),
    ("Ranges", {"count_max": 257}, Reason.INVALID_SPEC, "count_max: 257, must be at most 256"),
])
async def test_what_is_wrong_is_refused_by_its_field_and_changes_nothing(
    client: Client, node: Node, method: str, fields: dict[str, Any], reason: Reason, text: str
) -> None:
    found, message = await client.refused(method, **fields)
    assert reason is found and text in message
    assert [("ok", None), ("ok", None)] == await client.get(b"k", b"l")
    await until(lambda: idle(node), "a refused call holds nothing")


async def test_t13_a_request_for_another_keyspace_of_the_name_is_refused(client: Client, node: Node) -> None:
    await client.set((b"k", b"v"), keyspace_id=NUMBER)
    await push(node, shard_map(node.me, keyspace_id=NUMBER + 1))
    for method, fields in (("Get", {"keys": [b"k"]}), ("Set", {"items": [ITEM]}), ("Unset", {"key": b"k"})):
        reason, text = await client.refused(method, keyspace_id=NUMBER, **fields)
        assert Reason.GROUP_REPLACED is reason and "keyspace 'carts' has the id 4 in shard map" in text
    assert [("ok", None)] == await client.get(b"k", keyspace_id=NUMBER + 1)
    await push(node, common_pb2.ShardMap(version=next(VERSIONS)))
    assert Reason.UNKNOWN_KEYSPACE is (await client.refused("Get", keys=[b"k"]))[0]


async def test_a_node_without_a_map_and_a_keyspace_without_overrides_say_so(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        node = await started(stack, tmp_path)
        client = Client(await stack.enter_async_context(open_channel(node.address)))
        assert (Reason.NO_LEADER, "this node has no shard map yet") == await client.refused("Get", keys=[b"k"])
        await push(node, shard_map(node.me, overrides_allowed=False))
        for method, fields in (("Set", {"items": [ITEM], "w": 1}), ("Get", {"keys": [b"k"], "r": 1})):
            reason, text = await client.refused(method, **fields)
            assert Reason.INVALID_SPEC is reason and "lets no request name a quorum of its own" in text
        assert [("ok", None)] == await client.get(b"k")


@pytest.mark.parametrize(("spoil", "text"), [
    (lambda info: setattr(info, "read_repair", "Never"), "read_repair: 'Never' is not Off or Local or Async or Block"),
    (lambda info: setattr(info, "default_ttl_ms", TTL_MAX_MS + 1), "default_ttl_ms: "),
    (lambda info: setattr(info, "name", ""), "name: each keyspace needs a name of its own"),
    (lambda info: setattr(info.ranges[1].own, "w", 9), "ranges[1].own.w: 9 is not in 1 to 1"),
])
async def test_a_map_that_a_node_cannot_act_under_is_refused(
    node: Node, client: Client, spoil: Callable[[common_pb2.KeyspaceInfo], None], text: str
) -> None:
    version = node.routing.map.version
    wrong = shard_map(node.me)
    spoil(wrong.keyspaces[0])
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await push(node, wrong)
    assert text in (caught.value.details() or "") and version == node.routing.map.version
    assert [("ok", None)] == await client.get(b"k")


async def test_two_keyspaces_of_one_id_or_one_name_are_refused(node: Node) -> None:
    twice: tuple[tuple[dict[str, Any], str], ...] = (
        ({"name": "other"}, "3 is the id of keyspace 'carts' too"), ({"keyspace_id": 4}, "needs a name of its own"))
    for fields, text in twice:
        wrong = shard_map(node.me)
        wrong.keyspaces.add().CopyFrom(shard_map(node.me, **fields).keyspaces[0])
        with pytest.raises(grpc.aio.AioRpcError, match=text):
            await push(node, wrong)


# --- budgets ------------------------------------------------------------------------------------------------------


async def test_t12_a_caller_over_its_share_is_refused_and_nothing_of_it_begins(
    client: Client, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(node, shard_map(node.me, *AWAY, w=2))
    monkeypatch.setattr(node.budgets.keyspaces, "total", 400 << 10)
    slow = asyncio.ensure_future(client.set((b"k", bytes(100 << 10)), timeout=0.6))
    await until(lambda: node.budgets.keyspaces.used > 0, "a write waits for its owners")
    reason, text = await client.refused("Set", items=[wire.SetString(key=b"l", value=bytes(150 << 10))], w=1)
    assert Reason.OVERLOADED is reason and "bytes of operations on keyspaces" in text
    assert [("weak", None)] == await client.get(b"l", r=1), "another one fits beside it"
    assert ["unknown"] == await slow
    await until(lambda: idle(node), "an operation that ended holds nothing")
    assert ["weak"] == await client.set((b"l", bytes(150 << 10)), w=1)
    monkeypatch.setattr(node.budgets.keyspaces, "total", keyspaces.KEYS_AT_ONCE * keyspaces.READ_BYTES)
    assert [("weak", None)] * 20 == await client.get(*(b"%d" % number for number in range(20)), r=1), "a few at a time"


async def test_a_cancelled_call_leaves_nothing_behind(client: Client, node: Node) -> None:
    await push(node, shard_map(node.me, *AWAY, w=2))
    calls = [
        client.call("Set", timeout=1, items=[ITEM]), client.call("Get", timeout=1, keys=[b"k"]),
        client.call("Elements", timeout=1, key=b"k"),
    ]
    await until(lambda: node.driver.depths["requests"] == 3, "each waits for owners")
    for call in calls:
        call.cancel()
    await until(lambda: not node.budgets.calls.used, "the calls are over")
    assert node.budgets.keyspaces.used, "what their operations hold is counted until they end"
    await until(lambda: idle(node), "they end by their deadlines")
    plane: Any = node.driver.core.planes[KEYSPACE_PLANE]
    assert plane._coordinator.idle


# --- access -------------------------------------------------------------------------------------------------------


async def test_a_caller_may_do_what_the_lists_of_the_keyspace_say(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    folder = Path(certificates.settings(Kind.NODE, "a").cert).parent
    lists = common_pb2.GroupAccess(readers=["rita", "gwen"], writers=["will", "gwen"], admins=["anna"])
    elsewhere = common_pb2.GroupAccess(readers=["eve"], writers=["eve"])
    reads = {"Get", "GetElement", "Elements", "Strings", "Cells", "Futures", "Explain", "Ranges"}
    writes, both = {"Set", "Unset", "Put", "Remove", "Clear", "Import", "RepairFuture"}, {"GetDel"}
    expected = {
        "rita": reads, "will": writes, "gwen": reads | writes | both, "anna": reads | writes | both, "eve": set(),
    }
    async with AsyncExitStack() as stack:
        node = await started(stack, tmp_path / "data", cluster="prod", tls_dir=folder)
        pushed = shard_map(node.me, access=lists)
        pushed.groups.add(name=NAME, group_id=1, access=elsewhere)    # a group of the same name has other lists
        await push(node, pushed, certificates.of(Kind.OPERATOR, "operator"))
        assert not node.routing.map.keyspaces[0].HasField("access")
        allowed: dict[str, set[str]] = {}
        for name in expected:
            opened = await stack.enter_async_context(open_channel(node.address, certificates.client(name)))
            client, allowed[name] = Client(opened), set()
            for method in Client.REQUESTS:
                reason, text = await client.refused(method, keyspace_id=9)    # it names another keyspace
                if reason is Reason.GROUP_REPLACED:
                    allowed[name].add(method)
                else:
                    assert Reason.PERMISSION_DENIED is reason and f"of keyspace '{NAME}'" in text
    assert expected == allowed
