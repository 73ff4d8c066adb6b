"""Keyspaces on the fake cluster: every call, its checks and errors, and where calls go while nodes fail."""

from __future__ import annotations

import asyncio
import datetime
import inspect
import itertools
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster, FakeNode
from fake_keyspaces import FakeKeyspace
from tidemark import Keyspace, errors, keyspace_calls, sync
from tidemark.keyspace_batches import REQUEST_BYTES_MAX, split
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.optimistic.ring import range_of
from tidemark_core.optimistic.sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_wire.v1 import common_pb2
from tidemark_wire.v1 import keyspaces_pb2 as wire

from tests.waiting import until

RANGES = 4


@pytest.fixture
async def carts(cluster: FakeCluster) -> FakeKeyspace:
    return cluster.add_keyspace("carts", RANGES)


@pytest.fixture
async def ks(client: tidemark.Client, carts: FakeKeyspace) -> AsyncIterator[Keyspace]:
    await client.routing.find_keyspace("carts")
    yield client.keyspace("carts")


def key_of(index: int) -> bytes:
    """Return a key of a range."""
    return next(key for number in range(1000) if range_of(key := b"k%d" % number, RANGES) == index)


def owners(cluster: FakeCluster, carts: FakeKeyspace, index: int = 0) -> list[FakeNode]:
    return [cluster.nodes[name] for name in carts.ranges[index]]


async def kill(client: tidemark.Client, node: FakeNode) -> None:
    """Stop a node; return once the client knows that the connection is gone."""
    await node.kill()
    channel = client.channels.to(node.address)
    await until(lambda: channel.get_state() is not grpc.ChannelConnectivity.READY)


def calls(cluster: FakeCluster) -> dict[str, int]:
    return {name: len(node.keyspaces.calls) for name, node in cluster.nodes.items() if node.keyspaces.calls}


# --- each call ----------------------------------------------------------------------------------------------


async def test_strings(ks: Keyspace, carts: FakeKeyspace):
    written = await ks.set(b"k", b"v")
    assert ("ok", 2, 1_000_001) == (written.outcome, written.stored, written.stamp.ms)
    assert (b"v", "ok") == ((await ks.get(b"k")).value, (await ks.get(b"k")).outcome)
    assert None is (await ks.get(b"other")).value
    many = {b"key %d" % number: b"%d" % number for number in range(250)}
    assert list(many) == list(await ks.set_many(many))
    found = await ks.get_many([*many, b"none", b"k"])
    assert {**many, b"none": None, b"k": b"v"} == {key: each.value for key, each in found.items()}
    assert b"v" == (await ks.getdel(b"k")).value
    assert None is (await ks.getdel(b"k")).value
    await ks.unset(b"key 0")
    assert None is (await ks.get(b"key 0")).value
    assert {} == await ks.get_many([]) and {} == await ks.set_many([])


async def test_sets_and_maps(ks: Keyspace):
    for member in (b"red", b"green", b""):
        assert member == (await ks.sadd(b"s", member)).element
    assert [b"", b"green", b"red"] == [member async for member in ks.smembers(b"s")]
    assert await ks.sismember(b"s", b"red") and not await ks.sismember(b"s", b"blue")
    await ks.srem(b"s", b"red")
    assert [b"", b"green"] == await ks.smembers(b"s").all()
    await ks.hset(b"m", b"size", b"9")
    await ks.hset(b"m", b"color", b"blue")
    assert (b"9", b"size") == ((found := await ks.hget(b"m", b"size")).value, found.element)
    assert {b"color": b"blue", b"size": b"9"} == dict(await ks.hgetall(b"m").all())
    await ks.hdel(b"m", b"size")
    assert None is (await ks.hget(b"m", b"size")).value
    await ks.clear(b"m")
    assert [] == await ks.hgetall(b"m").all()


async def test_the_synchronous_keyspace_does_the_same(cluster: FakeCluster, carts: FakeKeyspace):
    def work() -> None:
        with tidemark.sync.connect(cluster.addresses()) as client:
            ks = client.keyspace("carts", timeout_s=9)
            assert "ok" == ks.set(b"k", b"v").outcome and b"v" == ks.get(b"k").value
            ks.set_many([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
            assert b"2" == ks.get_many([b"a", b"b"])[b"b"].value
            assert [b"a", b"b", b"c", b"k"] == sorted(key for key, _ in ks.scan(page_rows=1))
            assert b"v" == ks.getdel(b"k").value
            ks.unset(b"a")
            for member in (b"x", b"y", b"z"):
                ks.sadd(b"s", member)
            ks.srem(b"s", b"x")
            assert ks.sismember(b"s", b"y") and [b"y", b"z"] == ks.smembers(b"s").all()
            ks.hset(b"m", b"f", b"v")
            assert [(b"f", b"v")] == ks.hgetall(b"m").all() and b"v" == ks.hget(b"m", b"f").value
            ks.hdel(b"m", b"f")
            ks.clear(b"s")
            entries = ks.scan(page_rows=1)
            first = next(iter(entries))
            rest = ks.scan(token=entries.token).all()
            assert sorted([first, *rest]) == [(b"b", b"2"), (b"c", b"3")] and [*rest] == list(entries)
            assert None is entries.token and 0 < client.keyspace_stats.reads

    await asyncio.to_thread(work)


@pytest.mark.parametrize("name", [
    "get", "get_many", "set", "set_many", "unset", "getdel", "describe", "scan", "sadd", "srem", "sismember",
    "smembers", "hset", "hget", "hgetall", "hdel", "clear", "explain", "ranges"])
def test_the_synchronous_keyspace_takes_what_the_other_takes(name: str):
    here, there = (inspect.signature(getattr(each, name)).parameters for each in (sync.SyncKeyspace, Keyspace))
    assert here == there


async def test_a_time_to_live_is_that_of_the_call_or_that_of_the_keyspace(ks: Keyspace, carts: FakeKeyspace):
    for ttl, sent in ((None, None), (0, 0), (0.0, 0), (1.5, 1500), (datetime.timedelta(days=1), 86_400_000)):
        await ks.set(b"k", b"v", ttl_s=ttl)
        assert sent == carts.ttls[b"k"]


async def test_an_outcome_that_promises_less_is_said(ks: Keyspace, cluster: FakeCluster):
    def all_say(outcome: str) -> None:
        for node in cluster.nodes.values():
            node.keyspaces.outcomes.clear()
            node.keyspaces.outcomes.append(outcome)

    all_say("sloppy")
    assert "sloppy" == (await ks.set(b"k", b"v", w=1)).outcome
    all_say("weak")
    assert "weak" == (await ks.get(b"k", r=1)).outcome
    all_say("weak")
    members = ks.smembers(b"k", r=1)
    assert [] == await members.all() and "weak" == members.outcome


# --- checks: nothing is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "field"), [
    (lambda ks: ks.get("k"), "key"), (lambda ks: ks.get_many([b"k", b""]), "keys[1]"),
    (lambda ks: ks.set(1, b""), "key"),
    (lambda ks: ks.unset(bytes(KEY_BYTES_MAX + 1)), "key"), (lambda ks: ks.set(b"k", "v"), "value"),
    (lambda ks: ks.set_many([(b"k", b"v"), (b"k", b"w")]), "items[1].key"),
    (lambda ks: ks.sadd(b"k", bytes(ELEMENT_BYTES_MAX + 1)), "member"), (lambda ks: ks.hget(b"k", None), "field"),
    (lambda ks: ks.set(b"k", b"v", ttl_s=-1), "ttl_s"), (lambda ks: ks.set(b"k", b"v", ttl_s=True), "ttl_s"),
    (lambda ks: ks.get(b"k", r=0), "r"), (lambda ks: ks.get(b"k", r=3), "r"),
    (lambda ks: ks.set(b"k", b"", w="1"), "w"), (lambda ks: ks.smembers(b"k", token="s.1.4..9.").all(), "token"),
    (lambda ks: ks.get(b"k", timeout_s=0), "timeout_s"), (lambda ks: ks.scan(page_rows=1001).all(), "page_rows"),
    (lambda ks: ks.scan(token="nonsense").all(), "token"), (lambda ks: ks.scan(token=b"s.1.4.0..").all(), "token"),
    (lambda ks: ks.scan(token="s.2.4..4.").all(), "token"),
    (lambda ks: ks.scan(ranges=[0, RANGES]).all(), "ranges"), (lambda ks: ks.scan(ranges=1).all(), "ranges"),
    (lambda ks: ks.scan(ranges=itertools.repeat(0)).all(), "ranges"),
    (lambda ks: ks.scan(ranges=[0, -1]).all(), "ranges[1]"), (lambda ks: ks.scan(ranges=[True]).all(), "ranges[0]"),
    (lambda ks: ks.scan(keyspace_id="1").all(), "keyspace_id"),
])
async def test_wrong_arguments_are_named(
    ks: Keyspace, cluster: FakeCluster, call: Callable[[Keyspace], Any], field: str
):
    with pytest.raises(errors.InvalidArgument) as caught:
        await call(ks)
    assert field == caught.value.field
    assert {} == calls(cluster)


async def test_a_value_that_is_too_large_is_refused_with_its_key(ks: Keyspace, cluster: FakeCluster):
    large = bytes(VALUE_BYTES_MAX + 1)
    for work in (ks.set(b"large one", large), ks.hset(b"large one", b"", large)):
        with pytest.raises(errors.ValueTooLarge, match=r"large one.*'carts'.*1048577 bytes") as caught:
            await work
        assert "store it elsewhere" in caught.value.advice
    assert {} == calls(cluster)


async def test_quorums_of_a_call_are_refused_where_the_keyspace_allows_none(
    client: tidemark.Client, cluster: FakeCluster
):
    ks = client.keyspace("fixed")
    fixed = cluster.add_keyspace("fixed", overrides_allowed=False)
    await client.routing.find_keyspace("fixed")
    for work in (ks.get(b"k", r=1), ks.set(b"k", b"v", w=1), ks.getdel(b"k", r=2), ks.hgetall(b"k", r=1).all()):
        with pytest.raises(errors.OverridesDenied, match="keyspace 'fixed' lets no call") as caught:
            await work
        assert "clientOverrides" in caught.value.advice
    assert {} == calls(cluster)
    fixed.fields["overrides_allowed"] = True     # our map is older than the nodes' is
    cluster.push()
    await until(lambda: client.routing.keyspace("fixed").info.overrides_allowed)
    fixed.fields["overrides_allowed"] = False
    for node in cluster.nodes.values():
        node.keyspaces.refusals.append(Refused(Reason.INVALID_SPEC, "r: keyspace 'fixed' lets no request"))
    with pytest.raises(errors.RequestRefused, match=r"lets no request .key b'k' of keyspace 'fixed'"):
        await ks.get(b"k", r=1)


async def test_t13_an_unknown_keyspace_and_one_that_was_made_again_are_errors(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace
):
    with pytest.raises(errors.UnknownKeyspace, match="no keyspace is named 'shops'; there are: carts") as caught:
        await client.keyspace("shops").get(b"k")
    assert "shops" == caught.value.keyspace and "tidemark get keyspaces" in caught.value.advice
    carts.strings.update((b"%d" % number, b"") for number in range(9))
    entries = ks.scan(page_rows=1)
    await anext(aiter(entries))
    for node in cluster.nodes.values():
        node.keyspaces.delay_s = 0.2
    under_way = asyncio.create_task(ks.set(b"k", b"v"))
    await until(lambda: any("Set" in node.keyspaces.calls for node in cluster.nodes.values()))
    made_again = cluster.add_keyspace("carts", RANGES)
    for work in (under_way, entries.all()):
        with pytest.raises(errors.GroupReplaced, match="keyspace 'carts' was deleted and made again"):
            await work
    assert {} == made_again.strings
    await ks.set(b"k", b"v")
    assert {b"k": b"v"} == made_again.strings, "the next call is about the new one"
    with pytest.raises(errors.InvalidArgument, match="made again"):
        await ks.scan(token=entries.token).all()


async def test_nodes_of_a_release_without_keyspaces_are_named(
    connect_to: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    init = FakeNode.__init__

    def old(self: FakeNode, *given: Any) -> None:
        init(self, *given)
        self.serves_keyspaces = False

    monkeypatch.setattr(FakeNode, "__init__", old)
    cluster, client = await connect_to()
    cluster.add_keyspace("carts")
    for work in (client.keyspace("carts").get(b"k"), client.keyspace("carts").set(b"k", b"v")):
        with pytest.raises(errors.KeyspacesNotServed, match="UNIMPLEMENTED"):
            await work


async def test_a_refusal_names_keyspace_and_key(ks: Keyspace, cluster: FakeCluster):
    for node in cluster.nodes.values():
        node.keyspaces.refusals.append(Refused(Reason.PERMISSION_DENIED, "app-1 may not"))
    with pytest.raises(errors.PermissionDenied, match=r"app-1 may not .key b'kkk.* .1024 bytes. of keyspace 'carts'"):
        await ks.unset(b"k" * KEY_BYTES_MAX)


async def test_calls_from_another_loop_are_refused(ks: Keyspace, cluster: FakeCluster):
    entries = ks.scan()
    for call in (lambda: asyncio.run(ks.get(b"k")), lambda: asyncio.run(ks.sadd(b"k", b"m")), lambda: ks.hgetall(b"k"),
                 lambda: asyncio.run(entries.all())):
        with pytest.raises(errors.WrongLoop):
            await asyncio.to_thread(call)
    assert {} == calls(cluster)


async def test_a_client_that_is_closed_refuses_calls(ks: Keyspace, client: tidemark.Client):
    entries = ks.scan()
    await client.close()
    for work in (ks.get(b"k"), ks.set(b"k", b"v"), entries.all()):
        with pytest.raises(errors.Closed):
            await work
    with pytest.raises(errors.Closed):
        ks.smembers(b"k")


# --- where calls go -----------------------------------------------------------------------------------------


async def test_calls_go_to_owners_and_soon_to_the_fastest(ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace):
    slow, fast = owners(cluster, carts)
    slow.keyspaces.delay_s = 0.25
    key = key_of(0)
    for _ in range(30):
        await ks.get(key)
        await ks.set(key, b"v")
    counts = calls(cluster)
    assert {slow.name, fast.name} == counts.keys(), "each owner is tried, and no other node"
    assert counts[slow.name] < 10 < 50 < counts[fast.name]


async def test_an_owner_that_the_operator_calls_unavailable_is_asked_last(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace
):
    paused, _ = owners(cluster, carts)
    paused.keyspaces.silent = True
    for node in cluster.nodes.values():
        node.known = cluster.shard_map()
        node.known.version = cluster.version + 1
        next(each for each in node.known.nodes if each.node == paused.name).available = False
    pushed, cluster.pushed = cluster.pushed, asyncio.Event()
    pushed.set()
    await until(lambda: client.shard_map.version == cluster.version + 1)
    for _ in range(6):
        assert "ok" == (await ks.set(key_of(0), b"v")).outcome
    assert paused.name not in calls(cluster)


async def test_a_batch_is_split_by_node_and_size(ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace):
    many = {b"%d" % number: b"v" for number in range(500)}
    await ks.set_many(many)
    await ks.get_many(many)
    sent = [
        (node.name, method, [item.key for item in request.items] if method == "Set" else list(request.keys))
        for node in cluster.nodes.values()
        for method, request in zip(node.keyspaces.calls, node.keyspaces.requests, strict=True)]
    for name, _, keys in sent:
        assert len(keys) <= 100
        assert all(name in carts.ranges[range_of(key, RANGES)] for key in keys)
        assert keys == sorted(keys, key=lambda key: range_of(key, RANGES)), "a node writes keys of one range at once"
    for method in ("Set", "Get"):
        assert Counter(many.keys()) == Counter(key for _, which, keys in sent if which == method for key in keys)
    assert len(sent) <= 2 * (5 + len(cluster.nodes)), "keys of one node travel together"


async def test_requests_stay_below_what_a_node_takes(ks: Keyspace, client: tidemark.Client, cluster: FakeCluster):
    sizes = {b"%d" % number: 700 << 10 for number in range(5)}
    some = list(split(client.routing.keyspace("carts"), sizes, lambda _: "one node"))
    assert [2, 2, 1] == [len(keys) for _, keys in some]
    large = bytes(VALUE_BYTES_MAX)
    await ks.set_many({b"%d" % number: large for number in range(8)})
    for node in cluster.nodes.values():
        assert all(request.ByteSize() <= REQUEST_BYTES_MAX + 4096 for request in node.keyspaces.requests)
    assert all(len(each.value) == len(large) for each in (await ks.get_many(sizes)).values())


async def test_an_answer_that_ends_early_is_asked_on(ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace):
    carts.strings = {b"%d" % number: b"v" for number in range(20)}
    for node in cluster.nodes.values():
        node.keyspaces.values_max = 3
    assert carts.strings == {key: each.value for key, each in (await ks.get_many(carts.strings)).items()}
    for node in cluster.nodes.values():
        node.keyspaces.values_max = 0
    with pytest.raises(errors.Unavailable, match="answered 0 of"):
        await ks.get_many(carts.strings)
    with pytest.raises(errors.Unavailable, match="answered 0 of 1 keys"):
        await ks.get(b"1")


async def test_a_slow_read_gets_a_second_one_and_the_slow_owner_is_asked_later(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace
):
    key, (silent, well) = key_of(0), owners(cluster, carts)
    carts.strings[key] = b"v"
    silent.keyspaces.silent = True
    for _ in range(6):
        assert b"v" == (await ks.get(key, timeout_s=60)).value
    stats = client.keyspace_stats
    assert (6, 1, 1) == (stats.reads, stats.second_reads, stats.second_reads_won)
    assert 1 == calls(cluster)[silent.name], "once it was slow, the other one is asked first"
    await asyncio.wait_for(silent.keyspaces.gone.wait(), 10)
    assert 6 == calls(cluster)[well.name]


async def test_a_read_goes_on_to_further_nodes_while_owners_are_silent(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keyspace_calls, "SILENCE_S", 0.2)
    key, silent = key_of(0), owners(cluster, carts)
    carts.strings[key] = b"v"
    for node in silent:
        node.keyspaces.silent = True
    assert b"v" == (await ks.get(key, timeout_s=60)).value
    assert {name: 1 for name in cluster.nodes} == calls(cluster) and 1 == client.keyspace_stats.second_reads


async def test_second_reads_are_bounded(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace
):
    for node in cluster.nodes.values():
        node.keyspaces.silent = True
    await asyncio.gather(*(ks.get(key_of(0), timeout_s=1.2) for _ in range(40)), return_exceptions=True)
    assert 10 == client.keyspace_stats.second_reads
    assert 50 == sum(calls(cluster).values())


async def test_writes_and_getdel_are_never_sent_twice(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace
):
    for node in cluster.nodes.values():
        node.keyspaces.silent = True
    ended = await asyncio.gather(
        ks.getdel(b"k", timeout_s=1), ks.set(b"k", b"v", timeout_s=1), ks.srem(b"k", b"e", timeout_s=1),
        return_exceptions=True)
    for error in ended:
        assert isinstance(error, errors.WriteUnknown), error
        assert re.search(r"key b'k' of keyspace 'carts' has no answer from .* DEADLINE", error.message)
    assert 3 == sum(calls(cluster).values()) and 0 == client.keyspace_stats.second_reads


async def test_owners_that_are_down_are_routed_around(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace
):
    key, (first, second) = key_of(0), owners(cluster, carts)
    await ks.set(key, b"v")
    await kill(client, first)
    for _ in range(4):
        assert "ok" == (await ks.set(key, b"v")).outcome and b"v" == (await ks.get(key)).value
    await kill(client, second)
    assert "ok" == (await ks.set(key, b"w")).outcome and b"w" == (await ks.get(key)).value, "any node coordinates"
    (third,) = (node for node in cluster.nodes.values() if node.alive)
    assert third.name not in carts.ranges[0] and client.keyspace_stats.rerouted
    await kill(client, third)
    with pytest.raises(errors.Unavailable, match=r"no node took the write of key .* it was not begun"):
        await ks.set(key, b"x", timeout_s=0.3)
    with pytest.raises(errors.Unavailable, match=r"no node answered the read of key .* 'carts' within 0[.]3 s"):
        await ks.get(key, timeout_s=0.3)


async def test_a_write_whose_answer_is_lost_is_unknown_and_sent_once(
    ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace
):
    for node in cluster.nodes.values():
        node.keyspaces.lost.append(grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(errors.WriteUnknown, match="write of key b'k' of keyspace 'carts' has no answer") as caught:
        await ks.set(b"k", b"v")
    assert (b"k", "carts", None) == (caught.value.key, caught.value.keyspace, caught.value.stamp)
    assert 1 == sum(calls(cluster).values()) and "Read the key" in caught.value.advice
    for node in cluster.nodes.values():
        node.keyspaces.lost.clear()
    for name in carts.ranges[range_of(b"k", RANGES)]:
        cluster.nodes[name].keyspaces.lost.append(grpc.StatusCode.UNAVAILABLE)
    assert b"v" == (await ks.get(b"k")).value, "a read is tried at another one"


@pytest.mark.parametrize("reason", [
    Reason.SHUTTING_DOWN, Reason.NOT_LEADER, Reason.OVERLOADED, Reason.UNKNOWN_KEYSPACE, Reason.GROUP_REPLACED])
async def test_what_a_node_refused_before_it_began_is_sent_to_another_one(
    ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace, reason: Reason
):
    for node in cluster.nodes.values():
        node.keyspaces.refusals.append(Refused(reason, "not now"))
    assert "ok" == (await ks.set(b"k", b"v")).outcome and 1 == carts.writes
    for node in cluster.nodes.values():
        node.keyspaces.refusals.append(Refused(reason, "not now"))
    assert b"v" == (await ks.get(b"k")).value


async def test_a_node_of_another_release_is_left_for_another_one(ks: Keyspace, cluster: FakeCluster):
    for name in ("n0", "n1"):
        cluster.nodes[name].keyspaces.lost.extend([grpc.StatusCode.FAILED_PRECONDITION] * 100)
    assert "ok" == (await ks.set(b"k", b"v")).outcome and b"v" == (await ks.get(b"k")).value


async def test_too_few_owners_are_a_typed_error(ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace):
    def all_say(*outcomes: str) -> None:
        for node in cluster.nodes.values():
            node.keyspaces.outcomes.clear()
            node.keyspaces.outcomes.extend(outcomes)

    all_say("unknown")
    with pytest.raises(errors.WriteUnknown, match="'unknown', 1 have stored it") as caught:
        await ks.hset(b"k", b"f", b"v")
    assert (1, 1_000_001) == (caught.value.stored, caught.value.stamp.ms) and "element b'f' of key" in str(caught.value)
    carts.strings[b"k"] = b"v"
    all_say("unknown")
    with pytest.raises(errors.WriteUnknown) as caught:
        await ks.getdel(b"k")
    assert b"v" == caught.value.value
    all_say("below")
    with pytest.raises(errors.WriteUnknown, match="a floor of the range refuses"):
        await ks.srem(b"k", b"e")
    all_say("unknown")
    assert None is (await ks.get(b"k")).value, "another node finds enough"
    all_say(*["unknown"] * 1000)
    ended = await asyncio.gather(
        ks.get(b"k", timeout_s=0.8), ks.smembers(b"k", timeout_s=0.8).all(), ks.scan(timeout_s=0.8).all(),
        return_exceptions=True)
    for error in ended:
        assert isinstance(error, errors.NotEnoughOwners), error
        assert re.search(r"too few owners .* 'carts' within 0[.]8 s", error.message)
        assert "tidemark ks ring" in error.advice


async def test_a_refusal_of_all_keys_is_that_error(ks: Keyspace, cluster: FakeCluster):
    for node in cluster.nodes.values():
        node.keyspaces.refusals.extend([Refused(Reason.PERMISSION_DENIED, "app-1 may not")] * 100)
    with pytest.raises(errors.PermissionDenied):
        await ks.set_many({b"%d" % number: b"v" for number in range(200)})


async def test_a_stamp_from_the_future_is_tried_at_other_nodes_and_then_an_error(
    ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace
):
    first, second = owners(cluster, carts)
    first.keyspaces.outcomes.append("future")
    second.keyspaces.outcomes.append("future")
    assert "ok" == (await ks.set(key_of(0), b"v")).outcome
    for node in cluster.nodes.values():
        node.keyspaces.outcomes.append("future")
    with pytest.raises(errors.StampInFuture, match="refuse the time of the write of key b'k'") as caught:
        await ks.set(b"k", b"v")
    assert "tidemark doctor" in caught.value.advice and b"k" not in carts.strings


async def test_of_many_writes_those_that_are_not_certain_are_named(
    ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace
):
    for node in cluster.nodes.values():
        node.keyspaces.lost.append(grpc.StatusCode.UNAVAILABLE)
    many = {b"%d" % number: b"v" for number in range(500)}
    with pytest.raises(errors.WritesFailed, match="of 500 keys of keyspace 'carts' are not written") as caught:
        await ks.set_many(many)
    failed, written = caught.value.failures, caught.value.written
    assert many.keys() == failed.keys() | written.keys() and not failed.keys() & written.keys()
    for node in cluster.nodes.values():
        requests = [{item.key for item in request.items} for request in node.keyspaces.requests]
        assert [True] * bool(requests) == [keys <= failed.keys() for keys in requests if keys & failed.keys()]
    assert written and all(isinstance(each, errors.WriteUnknown) and key == each.key for key, each in failed.items())


# --- pages --------------------------------------------------------------------------------------------------


async def test_a_scan_goes_through_all_ranges_and_on_from_a_token_though_owners_move(
    ks: Keyspace, client: tidemark.Client, cluster: FakeCluster, carts: FakeKeyspace
):
    carts.strings = {b"%03d" % number: b"%d" % number for number in range(100)}
    assert carts.strings == dict(await ks.scan(page_rows=7).all())
    seen: list[tuple[bytes, bytes]] = []
    token: str | None = None
    for turn in range(200):
        entries = ks.scan(token=token, page_rows=5)
        async for entry in entries:
            seen.append(entry)
            if len(seen) % 3 == 0:
                break
        token = entries.token
        if token is None:
            break
        index = turn % RANGES
        carts.ranges[index] = tuple(reversed(carts.ranges[index]))
        carts.pending = {index: ("n0", "n2")} if turn % 2 else {}
        cluster.push()
    assert sorted(carts.strings.items()) == sorted(seen), "each once"


async def test_a_scan_of_some_ranges_shows_their_keys_alone(
    ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace
):
    carts.strings = {b"%03d" % number: b"%d" % number for number in range(100)}
    shape = await ks.describe()
    assert (carts.keyspace_id, RANGES) == (shape.keyspace_id, shape.ranges)
    parts = [await ks.scan(ranges=[index], keyspace_id=shape.keyspace_id).all() for index in range(shape.ranges)]
    for index, part in enumerate(parts):
        assert part and {index} == {range_of(key, RANGES) for key, _ in part}
    assert sorted(carts.strings.items()) == sorted(pair for part in parts for pair in part)
    assert parts[1] + parts[3] == await ks.scan(ranges=[3, 1, 3], page_rows=7).all()
    asked = calls(cluster)
    assert [] == await ks.scan(ranges=[]).all() and asked == calls(cluster)
    entries = ks.scan(ranges=[1, 3], page_rows=7)
    async for entry in entries:
        if entry == parts[3][4]:
            break
    assert parts[3][5:] == await ks.scan(ranges=[3], token=entries.token).all()
    with pytest.raises(errors.InvalidArgument, match="goes on in range 3, which is not one of `ranges`"):
        await ks.scan(ranges=[0, 1], token=entries.token).all()
    with pytest.raises(errors.GroupReplaced, match="its id was 99"):
        await ks.scan(keyspace_id=99).all()


async def test_pages_and_iterations_go_on_behind_what_was_handed_out(ks: Keyspace, carts: FakeKeyspace):
    carts.elements[b"k"] = {b"%d" % number: b"" for number in range(9)}
    members = ks.smembers(b"k", page_rows=4)
    assert None is members.token
    async for member in members:
        if member == b"1":
            break
    assert [[b"2", b"3", b"4", b"5"], [b"6", b"7", b"8"]] == [page async for page in members.pages()]
    assert None is members.token
    again = ks.smembers(b"k", page_rows=4)
    assert [b"0", b"1", b"2", b"3"] == await anext(again.pages())
    assert [b"%d" % number for number in range(4, 9)] == await ks.smembers(b"k", token=again.token).all()
    with pytest.raises(errors.InvalidArgument, match="of another key"):
        await ks.smembers(b"other", token=again.token).all()


async def test_a_page_that_fails_is_read_at_another_owner(ks: Keyspace, cluster: FakeCluster, carts: FakeKeyspace):
    carts.strings = {b"%03d" % number: b"" for number in range(50)}
    for node in list(cluster.nodes.values())[:2]:
        node.keyspaces.lost.extend([grpc.StatusCode.UNAVAILABLE] * 3)
    assert carts.strings == dict(await ks.scan(page_rows=5).all())


# --- for people


async def test_every_node_says_all_its_ranges_and_the_others_are_named(
    cluster: FakeCluster, client: tidemark.Client, ks: Keyspace, carts: FakeKeyspace
) -> None:
    """The fake answers three ranges at a time."""
    refusing, silent, *speaking = cluster.nodes
    carts.shown[speaking[0], 3] = {
        "exchanged_ms": 5, "hints": 2, "blocks": [wire.RangeBlock(what="it is away", for_ms=7)],
        "exchanges": [wire.RangeExchange(member=common_pb2.Member(node="x", incarnation="1"))]}
    cluster.nodes[refusing].keyspaces.refusals.append(Refused(Reason.PERMISSION_DENIED, "not you"))
    cluster.nodes[silent].keyspaces.silent = True
    found = await ks.ranges(timeout_s=0.3)
    assert set(speaking) == found.nodes.keys()
    assert [0, 1, 2, 3] == [each.range for each in found.nodes[speaking[0]].ranges]
    last = found.nodes[speaking[0]].ranges[3]
    assert (5, None, 2, {"x": None}) == (last.exchanged_ms, last.oldest_hint_ms, last.hints, last.exchanges)
    assert (tidemark.RangeBlock("it is away", None, 7),) == last.blocks
    assert "not you" in found.silent[refusing] and "Deadline Exceeded" in found.silent[silent]
    for node in cluster.nodes.values():
        node.keyspaces.silent = False
        node.keyspaces.refusals.append(Refused(Reason.PERMISSION_DENIED, "not you"))
    with pytest.raises(errors.PermissionDenied):
        await ks.ranges()


@pytest.mark.parametrize("next_range", [0, RANGES, 1 << 31])
async def test_a_node_that_names_no_later_page_of_the_ring_ends_the_question(
    ks: Keyspace, carts: FakeKeyspace, next_range: int
) -> None:
    carts.next_range = next_range
    assert {3} == {len(each.ranges) for each in (await ks.ranges(timeout_s=5)).nodes.values()}


def _explained(cells: dict[str, list[wire.SeenCell]], lacking: str = "", **fields: Any) -> wire.KeyExplained:
    members = {name: common_pb2.Member(node=name, incarnation="1") for name in cells}
    return wire.KeyExplained(**{
        "outcome": "ok", "own": members.values(),
        "nodes": [wire.ExplainedNode(
            member=member, answered=True, part="owner", cells=cells[name], floor_ms=50, lacks=name == lacking)
            for name, member in members.items()], **fields})


def _cell(ms: int, dead: bool = False) -> wire.SeenCell:
    return wire.SeenCell(sort="string", stamp=wire.KeyspaceStamp(ms=ms, node="a", start=b"12345678"), dead=dead)


@pytest.mark.parametrize(("equal", "answer"), [
    (True, _explained({"a": [_cell(90)], "b": [_cell(90)]})),
    (True, _explained({"a": [_cell(50, dead=True)], "b": []})),      # a floor collects it
    (False, _explained({"a": [_cell(51, dead=True)], "b": []})),
    (False, _explained({"a": [_cell(50)], "b": []})),
    (False, _explained({"a": [_cell(90)], "b": [_cell(91)]})),
    (False, _explained({"a": [_cell(90)], "b": [_cell(90)]}, lacking="b")),
    (False, _explained({"a": [_cell(90)], "b": [_cell(90)]}, outcome="unknown")),
    (False, _explained({"a": [_cell(90)], "b": [_cell(90)]}, own=[common_pb2.Member(node="c", incarnation="1")])),
])
async def test_owners_are_equal_where_all_answered_and_hold_the_same(
    ks: Keyspace, carts: FakeKeyspace, equal: bool, answer: wire.KeyExplained
) -> None:
    carts.explained = answer
    found = await ks.explain(b"k")
    assert equal is found.equal and (b"k", None) == (found.key, found.element)


async def test_an_explanation_names_what_was_asked_for_and_who_was_silent(
    cluster: FakeCluster, ks: Keyspace, carts: FakeKeyspace
) -> None:
    carts.explained = _explained({"a": [_cell(90)]}, winner=_cell(90), shown=True, why="because")
    carts.explained.nodes.add(member=common_pb2.Member(node="z", incarnation="1"))
    found = await ks.explain(b"k", b"")
    assert (("z",), b"", "because", 90) == (found.silent, found.element, found.why, found.winner.stamp.ms)
    [asked] = [request for node in cluster.nodes.values() for request in node.keyspaces.requests]
    assert asked.HasField("element") and b"k" == asked.key
    for wrong in ({"key": "k"}, {"key": b"k", "element": "e"}, {"key": b"k", "timeout_s": 0}):
        with pytest.raises(errors.InvalidArgument):
            await ks.explain(**wrong)


# --- stamps from the future ----------------------------------------------------------------------------------------


def _future_key(key: bytes, elements: bool = False) -> wire.FutureKey:
    return wire.FutureKey(key=key, stamp=wire.KeyspaceStamp(ms=9_000, node="a", start=b"12345678"), elements=elements)


async def test_d84_keys_with_stamps_from_the_future_are_listed_page_by_page(
    cluster: FakeCluster, ks: Keyspace, carts: FakeKeyspace
) -> None:
    keys = [b"%d" % number for number in range(40)]
    index = range_of(keys[0], len(carts.ranges))
    there = [key for key in keys if range_of(key, len(carts.ranges)) == index]
    carts.futures = [_future_key(key, elements=key == keys[0]) for key in keys]
    found = await ks.futures(range=index)
    assert there == [each.key for each in found] and len(there) > 1
    assert [True] + [False] * (len(there) - 1) == [each.elements for each in found]
    assert {9_000} == {each.stamp.ms for each in found}
    assert [keys[1]] == [each.key for each in await ks.futures(key=keys[1])]
    assert [] == await ks.futures(key=b"other")

    for wrong in ({}, {"key": b"k", "range": 1}, {"range": len(carts.ranges)}, {"range": -1}, {"key": "k"}):
        with pytest.raises(errors.InvalidArgument):
            await ks.futures(**wrong)
    for node in cluster.nodes.values():
        node.keyspaces.outcomes.extend(["unknown"] * 20)
    with pytest.raises(errors.NotEnoughOwners, match="stamps from the future in range"):
        await ks.futures(range=index, timeout_s=0.2)


async def test_d84_a_repair_says_what_it_replaced_and_what_is_left(ks: Keyspace, carts: FakeKeyspace) -> None:
    was, became = (wire.KeyspaceStamp(ms=ms, node="a", start=b"12345678") for ms in (9_000, 1_000))
    pair = wire.ReplacedStamp(was=was, became=became)
    carts.repaired[b"k"] = wire.FutureRepaired(outcome="ok", replaced=[pair])
    assert [(9_000, 1_000)] == [(each.was.ms, each.became.ms) for each in await ks.repair_future(b"k")]
    assert () == await ks.repair_future(b"other")
    for outcome, text in (
        ("unknown", "c did not answer; repeat it"), ("past", "c: a stamp is not from"),
        ("full", "wait until the floor"),
        ("elements", "copy it to another key or keyspace"), ("new word", "c did not answer"),
    ):
        carts.repaired[b"k"] = wire.FutureRepaired(
            outcome=outcome, replaced=[pair], missing=[common_pb2.Member(node="c", incarnation="1")] if outcome in (
                "unknown", "new word", "past") else [])
        with pytest.raises(errors.NotRepaired, match=text) as caught:
            await ks.repair_future(b"k")
        assert (outcome, b"k", 1) == (caught.value.outcome, caught.value.key, len(caught.value.replaced))
