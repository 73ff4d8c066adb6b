"""Data that is to go, in a real etcd: nobody elects what is being deleted, and every replica is asked to go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from operator_views import member, node
from tidemark_core.base.ids import Member, ShardId, shard_id
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import DeleteShard, Rejected, ShardDeleted
from tidemark_core.replication.records import first_record
from tidemark_operator.data_deletion import DataDeletion
from tidemark_operator.etcd import EtcdStore, Write
from tidemark_operator.metadata import Keys, NodeRecord
from tidemark_operator.mirror import Mirror
from tidemark_operator.model import Node
from tidemark_operator.objects import Identity, Objects

KEYS = Keys("/t")
GROUP: dict[str, Any] = {
    "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": "orders", "namespace": "data"},
    "spec": {"clusterRef": {"name": "dev"}, "shards": 2, "deletionPolicy": "Delete"}}
SHARDS = [shard_id(1, 0), shard_id(1, 1)]
UP = {name: node(name) for name in ("n1", "n2", "n3")}


class Room:
    """One operator process, and what it said to nodes."""

    def __init__(self, store: EtcdStore) -> None:
        self.store = store
        self.mirror = Mirror(KEYS)
        self.objects = Objects(store, KEYS, self.mirror, "dev", set)
        self.sent: list[tuple[ShardId, Member, DeleteShard]] = []
        self.deletion = DataDeletion(
            store, KEYS, self.mirror, lambda address, to, message: self.sent.append((address.shard, to, message)),
            lambda seconds: None)

    async def load(self) -> Room:
        self.mirror.apply(await self.store.load("/t/"))
        return self

    async def look(self, nodes: dict[str, Node] | None = None) -> list[tuple[ShardId, Member, DeleteShard]]:
        self.sent.clear()
        await self.deletion.look(UP if nodes is None else nodes)
        return list(self.sent)


@pytest.fixture
async def room(store: EtcdStore) -> Room:
    made = await Room(store).load()
    await made.objects.adopt(GROUP, Identity("uid-1", 1, "2026-01-01T00:00:00Z"))
    for shard in SHARDS:
        record = replace(first_record((member("n1"), member("n2")), 0), epoch=7, removed=(member("n3"),))
        await store.put(KEYS.shard(shard), record.encode(), expected=0)
    for name in UP:
        await store.put(KEYS.node(name), NodeRecord(name, "x").encode(), expected=0)
    return await made.load()


async def test_records_become_tombstones_and_every_replica_is_deleted(room: Room) -> None:
    assert await room.look() == [] and room.mirror.shards, "nobody asked"
    assert await room.objects.delete_data("LogGroup", "orders")
    sent = await room.look()
    assert room.mirror.shards == {}, "nobody can elect it any more"
    assert {(shard, to) for shard, to, _message in sent} == {
        (shard, member(name)) for shard in SHARDS for name in ("n1", "n2", "n3")}
    assert {message.epoch for _shard, _to, message in sent} == {8}
    assert len(await room.look()) == 6, "until they say that they did"
    assert "2 shards are left, on n1, n2, n3" in room.deletion.left(room.mirror.groups["orders"].value)
    for shard in SHARDS:
        for name in ("n1", "n2"):
            assert room.deletion.received(shard, member(name), ShardDeleted(8))
    assert {to for _shard, to, _message in await room.look()} == {member("n3")}
    for shard in SHARDS:  # it never had one
        room.deletion.received(
            shard, member("n3"), Rejected(8, "DeleteShard", Refused(Reason.UNKNOWN_SHARD, "no such shard")))
    await room.look()
    await room.look()
    assert (room.mirror.tombstones, room.mirror.groups) == ({}, {})
    assert not (await room.store.load("/t/deletions/")).items
    assert not (await room.store.load("/t/groups/")).items
    assert not room.deletion.received(SHARDS[0], member("n1"), ShardDeleted(8))


async def test_another_operator_goes_on(room: Room, store: EtcdStore) -> None:
    await room.objects.delete_data("LogGroup", "orders")
    await room.look()
    room.deletion.received(SHARDS[0], member("n1"), ShardDeleted(8))
    await room.look()
    other = await Room(store).load()
    assert {(shard, to.node) for shard, to, _message in await other.look()} == {
        (SHARDS[0], "n2"), (SHARDS[0], "n3"), (SHARDS[1], "n1"), (SHARDS[1], "n2"), (SHARDS[1], "n3")}
    assert await room.objects.delete_data("LogGroup", "orders"), "asked again it is the same"
    assert not await room.objects.delete_data("LogGroup", "payments")


async def test_of_two_operators_that_delete_at_once_both_go_on(
    room: Room, store: EtcdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await room.objects.delete_data("LogGroup", "orders")
    other, write = await Room(store).load(), room.mirror.replace

    async def late(store: EtcdStore, writes: list[Write]) -> bool:
        await other.look()
        await room.load()  # as the watch would show it
        return await write(store, writes)

    monkeypatch.setattr(room.mirror, "replace", late)
    await room.look()
    assert room.mirror.shards == {}
    assert {tombstone.value.epoch for tombstone in room.mirror.tombstones.values()} == {8}


async def test_who_is_down_is_waited_for_and_who_lost_the_disk_or_is_gone_is_not(room: Room) -> None:
    await room.objects.delete_data("LogGroup", "orders")
    nodes = {"n1": node("n1", up=False), "n2": replace(UP["n2"], member=member("n2", "2"))}
    item = await room.store.get(KEYS.node("n3"))
    assert item is not None
    await room.store.delete(KEYS.node("n3"), expected=item.revision)
    await room.load()
    room.mirror.learn(KEYS.node("n3"), None, room.mirror.revision + 1)
    assert {to for _shard, to, _message in await room.look(nodes)} == {member("n1")}
    await room.look(nodes)
    assert "orders" in room.mirror.groups
    for shard in SHARDS:
        room.deletion.received(shard, member("n1"), ShardDeleted(8))
    await room.look(nodes)
    await room.look(nodes)
    assert room.mirror.groups == {}


async def test_a_replica_that_was_fenced_above_is_deleted_above(room: Room) -> None:
    await room.objects.delete_data("LogGroup", "orders")
    await room.look()
    room.deletion.received(
        SHARDS[0], member("n2"), Rejected(8, "DeleteShard", Refused(Reason.STALE_EPOCH, "", epoch=40)))
    sent = await room.look()
    assert {message.epoch for shard, _to, message in sent if shard == SHARDS[0]} == {41}
    assert room.mirror.tombstones[SHARDS[0]].value.epoch == 41


async def test_the_name_is_taken_until_the_data_is_gone(room: Room) -> None:
    await room.objects.delete_data("LogGroup", "orders")
    refused = await room.objects.adopt(GROUP, Identity("uid-2", 1, "2026-01-01T00:00:00Z"))
    assert isinstance(refused, Refused) and "still being deleted" in refused.message


async def test_deleting_by_hand_does_as_the_policy_says(room: Room) -> None:
    assert await room.objects.delete("LogGroup", "orders") is None
    assert room.mirror.groups["orders"].value.deleting
    kept = {**GROUP, "metadata": {**GROUP["metadata"], "name": "kept"}, "spec": {
        **GROUP["spec"], "deletionPolicy": "Retain"}}
    await room.objects.adopt(kept, Identity("uid-3", 1, "2026-01-01T00:00:00Z"))
    assert await room.objects.delete("LogGroup", "kept") is None
    assert (room.mirror.groups["kept"].value.detached, room.mirror.groups["kept"].value.deleting) == (True, False)
