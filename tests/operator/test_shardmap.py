"""Shard map: hash ranges cover everything once; what is not ready is not shown."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from operator_views import group, keyspace, node, nodes, record, ring
from tidemark_core.base.ids import shard_id
from tidemark_core.replication.records import Status
from tidemark_operator.shardmap import HASH_SPACE, build_shard_map, hash_range
from tidemark_wire.rings import ring_of
from tidemark_wire.wire_version import WIRE_VERSION


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 64, 1000, 4096])
def test_ranges_are_contiguous_and_cover_every_hash(shards: int) -> None:
    ranges = [hash_range(index, shards) for index in range(shards)]
    assert ranges[0][0] == 0 and ranges[-1][1] == HASH_SPACE - 1
    assert all(low == high + 1 for (_, high), (low, _) in itertools.pairwise(ranges))
    sizes = {high - low for low, high in ranges}
    assert max(sizes) - min(sizes) <= 1


def test_a_map_says_who_leads_and_where() -> None:
    one = group(shards=2)
    records = {
        shard_id(1, 0): record("n1", "n2", "n3", leader="n2", epoch=4),
        shard_id(1, 1): record("n1", "n2", "n3", leader=None, status=Status.ELECTION),
    }
    known = {**nodes(3, "abc"), "n3": node("n3", "c", up=False, location="region=eu,zone=c")}
    built = build_shard_map(7, "dev", [one], records, known.values())
    assert (built.version, built.cluster) == (7, "dev")
    assert [(n.node, n.available, n.zone) for n in built.nodes] == [
        ("n1", True, "a"), ("n2", True, "b"), ("n3", False, "c")]
    assert [n.location for n in built.nodes] == ["", "", "region=eu,zone=c"]
    assert [n.wire_version for n in built.nodes] == [WIRE_VERSION, WIRE_VERSION, 0], "one that is down may be older"
    first, second = built.groups[0].shards
    assert (first.leader, first.epoch, list(first.ensemble)) == ("n2", 4, ["n1", "n2", "n3"])
    assert (second.leader, second.status) == ("", "ELECTION")
    assert (first.hash_min, second.hash_max) == (0, HASH_SPACE - 1)
    assert built.groups[0].max_batch_bytes >= built.groups[0].max_record_bytes


def test_a_group_without_all_of_its_shards_is_not_shown() -> None:
    records = {shard_id(1, 0): record("n1", "n2", "n3", leader="n1")}
    assert not build_shard_map(1, "dev", [group(shards=2)], records, nodes(3).values()).groups


def test_a_map_says_who_keeps_payloads_and_when_they_are_released() -> None:
    one = group(shards=2, factor=5, payload_copies=3, sync_leaders=2, leaders=3)
    names = [f"n{i}" for i in range(1, 6)]
    records = {
        shard_id(1, 0): replace(record(*names, leader="n1"), copies=3), shard_id(1, 1): record(*names, leader="n1")}
    (shown,) = build_shard_map(1, "dev", [one], records, nodes(5).values()).groups
    assert (shown.sync_leaders, shown.leaders) == (2, 3)
    assert [shard.payload_copies for shard in shown.shards] == [3, 0], "as in force, not as declared"


def test_documents_need_keys() -> None:
    records = {shard_id(1, 0): record("n1", leader="n1")}
    built = build_shard_map(1, "dev", [group(shards=1, kind="Documents")], records, nodes(1).values())
    assert built.groups[0].keys_required


@pytest.mark.parametrize(("quorum", "text"), [(None, ""), (2, "2"), ("max(N-1, 2)", "max(N-1, 2)")])
def test_a_map_says_when_a_record_is_confirmed(quorum: int | str | None, text: str) -> None:
    one = group(
        shards=1, synchro_quorum=quorum, synchro_zones=2, quorum_timeout_ms=7_000, rollback="Immediate")
    built = build_shard_map(1, "dev", [one], {shard_id(1, 0): record("n1", leader="n1")}, nodes(1).values())
    (shown,) = built.groups
    assert (shown.synchro_quorum, shown.synchro_zones, shown.quorum_timeout_ms, shown.rollback) == (
        text, 2, 7_000, "Immediate")


def test_a_map_says_what_is_kept() -> None:
    one = group(
        shards=1, retention_ms=60_000, retention_bytes=1 << 40, retention_bytes_hard=1 << 41, tombstone_ms=70_000,
        pinned_bytes_max=1 << 33)
    built = build_shard_map(1, "dev", [one], {shard_id(1, 0): record("n1", leader="n1")}, nodes(1).values())
    (shown,) = built.groups
    assert (shown.retention_ms, shown.retention_bytes, shown.retention_bytes_hard) == (60_000, 1 << 40, 1 << 41)
    assert (shown.tombstone_ms, shown.pinned_bytes_max) == (70_000, 1 << 33)


def test_a_keyspace_is_in_the_map_once_every_range_has_a_record() -> None:
    ranges = dict(zip(keyspace().units(), ring("n1 n2 n3", "n2 n3 n1"), strict=True))
    made = build_shard_map(1, "dev", [], {}, [], keyspaces=[keyspace(), keyspace("other", number=8)], ranges=ranges)
    assert [(each.name, each.keyspace_id, ring_of(each)) for each in made.keyspaces] == [
        ("carts", 7, tuple(ranges.values()))]
    del ranges[7 << 32 | 1]
    assert not build_shard_map(2, "dev", [], {}, [], keyspaces=[keyspace()], ranges=ranges).keyspaces
