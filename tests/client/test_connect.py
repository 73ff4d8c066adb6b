"""Connecting, the shard map's watch, and the synchronous face."""

from __future__ import annotations

import asyncio
import threading

import pytest
import tidemark
import tidemark.sync
from fake_cluster import FakeCluster
from tidemark import errors

from tests.waiting import end_tasks, until


@pytest.mark.parametrize("addresses", ["", [], "localhost", "localhost:", "localhost:http", ":80", "host:99999"])
async def test_malformed_addresses_are_refused(addresses):
    with pytest.raises(errors.InvalidArgument, match="addresses"):
        await tidemark.connect(addresses)


async def test_nobody_there_is_unavailable_and_says_where_it_looked():
    with pytest.raises(errors.Unavailable, match=r"no node answered within 0\.3 s at 127\.0\.0\.1:1 "):
        await tidemark.connect("127.0.0.1:1", timeout_s=0.3)


async def test_one_living_node_of_many_addresses_is_enough(cluster):
    async with await tidemark.connect(["127.0.0.1:1", cluster.addresses()[1]]) as client:
        assert (await client.group("orders")).shards == (0, 1, 2, 3)


async def test_the_watch_moves_on_when_its_node_dies(cluster, client):
    for name in ("n0", "n1"):
        await cluster.nodes[name].kill()
    cluster.elect(cluster.groups["orders"][0], "n2")
    await until(lambda: client.routing.leader("orders", 0).node == "n2", "the map of another node came")


async def test_the_watch_leaves_a_node_that_is_silent_for_one_that_answers(cluster, client):
    """A machine that vanished breaks no stream: a refresh finds it silent, and maps come from another node then."""
    routing = client.routing
    await until(lambda: routing.watched)
    for _ in cluster.nodes:   # whichever node is chosen
        (silent,) = [node for node in cluster.nodes.values() if node.address == routing.watched]
        silent.paused.clear()
        await routing.refresh()
        await until(lambda silent=silent: routing.watched not in ("", silent.address))
        heir = next(name for name, node in cluster.nodes.items() if node.address not in ("", routing.watched))
        cluster.elect(cluster.groups["orders"][0], heir)
        await until(lambda heir=heir: routing.leader("orders", 0).node == heir)
        silent.paused.set()


async def test_a_watch_stays_where_every_node_is_silent(cluster, client):
    routing = client.routing
    await until(lambda: routing.watched)
    watched = routing.watched
    for node in cluster.nodes.values():
        node.paused.clear()
    await routing.refresh()
    assert routing.watched == watched
    for node in cluster.nodes.values():
        node.paused.set()
    cluster.elect(cluster.groups["orders"][0], "n2")
    await until(lambda: routing.leader("orders", 0).node == "n2")


async def test_a_refresh_takes_the_newest_map_of_any_node(cluster, client):
    cluster.nodes["n0"].paused.clear()
    cluster.nodes["n1"].known.Clear()
    cluster.version += 5
    cluster.nodes["n2"].known = cluster.shard_map()
    await client.routing.refresh()
    assert client.shard_map.version == cluster.version
    cluster.nodes["n0"].paused.set()


async def test_an_older_map_changes_nothing(cluster, client):
    newest = client.shard_map.version
    cluster.version = 0
    cluster.push()
    await client.routing.refresh()
    assert client.shard_map.version == newest


async def test_a_group_made_a_moment_ago_is_waited_for(cluster, client):
    node = cluster.nodes["n0"]
    before = node.map_calls

    async def create() -> None:
        await until(lambda: node.map_calls > before)  # the client has asked for the newest map
        cluster.groups["fresh"] = {}
        cluster.groups["fresh"] = type(cluster.groups["orders"])(cluster.groups["orders"])
        cluster.push()

    task = asyncio.create_task(create())
    assert (await client.group("fresh")).name == "fresh"
    await task
    with pytest.raises(errors.UnknownGroup):
        await client.group("never")


async def test_a_group_whose_shards_do_not_cover_every_key_yet_is_not_used(cluster, client):
    half = cluster.shard_map()
    half.version += 1
    half.groups.add(name="half", group_id=9).shards.add(index=0, hash_min=0, hash_max=(1 << 31) - 1)
    for node in cluster.nodes.values():
        node.known = half
    await client.routing.refresh()
    assert client.shard_map.version == half.version
    with pytest.raises(errors.UnknownGroup):
        client.appender("half")


def test_every_key_has_one_shard():
    async def main() -> None:
        cluster = await FakeCluster().start(nodes=1, shards=7)
        async with await tidemark.connect(cluster.addresses()) as client:
            group = await client.group("orders")
            seen = {group.shard_of(f"key-{number}".encode()) for number in range(500)}
            assert seen == set(range(7))
            assert group.shard_of(b"key-1") == group.shard_of(b"key-1")
        await cluster.stop()

    asyncio.run(main())


class _Background:
    """A fake cluster in a loop of its own, for callers without one."""

    def __enter__(self) -> list[str]:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.cluster = asyncio.run_coroutine_threadsafe(FakeCluster().start(), self.loop).result()
        return self.cluster.addresses()

    def __exit__(self, *_: object) -> None:
        for ending in (self.cluster.stop(), end_tasks()):
            asyncio.run_coroutine_threadsafe(ending, self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def test_the_synchronous_face_appends_and_reads():
    with _Background() as addresses, tidemark.sync.connect(addresses) as client:
        with client.appender("orders") as appender:
            assert appender.append(b"one", key=b"k").offset == 1
            later = [appender.append_later(str(number).encode()) for number in range(100)]
            appender.flush()
            assert len({(place.result().shard, place.result().offset) for place in later}) == 100
            assert len(appender.append_batch([b"x"] * 10)) == 10
        assert len(list(client.read("orders"))) == 111
        assert sum(len(batch) for batch in client.read("orders").batches()) == 111
        with pytest.raises(errors.UnknownGroup):
            client.appender("nothing")


def test_the_synchronous_face_leaves_no_thread_behind():
    before = set(threading.enumerate())   # one of an earlier test may end meanwhile
    with pytest.raises(errors.Unavailable):
        tidemark.sync.connect("127.0.0.1:1", timeout_s=0.2)
    assert not set(threading.enumerate()) - before
