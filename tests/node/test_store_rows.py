"""Families of planes in the store: a row in the table is enough; rows are written, read and there after a restart."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tidemark_core.base.effects import (
    Delete,
    DeleteRange,
    Persist,
    Put,
    PutCheckpoint,
    PutEntry,
    PutState,
    Received,
    Send,
    SnapshotDescriptor,
)
from tidemark_core.base.ids import Address, EntryId, Member, OperatorId, ShardId, ShardKind, of_shard
from tidemark_core.base.layout import UnknownFamily
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import NodeFacts, Stored
from tidemark_core.base.refusals import Reason
from tidemark_core.documents import rows as documents
from tidemark_core.node import NodeCore
from tidemark_core.planes import PlaneTable, planes
from tidemark_core.replication.messages import Fence, InstallSnapshot
from tidemark_core.replication.producer_rows import PRODUCERS, span_of
from tidemark_core.replication.replica import Replica, Role
from tidemark_node.families import FAMILIES, Family, shard_kinds
from tidemark_node.main import recover
from tidemark_node.store import Store, open_store
from tidemark_node.store_errors import StoreDamaged, StoreRefused
from tidemark_sim.disk import Disk, Queued, StoredPlane

from tests.core.support import Author
from tests.stored_turns import SHARDS, UNITS, turns

S1 = ShardId(1)
AT = of_shard(S1)
LOGS_ALONE = tuple(family for family in FAMILIES if family.name not in documents.FAMILIES)
WITH_TOYS = (*FAMILIES, Family("toys", "toys", bloom_bits=10, compressed=True), Family("numbers", "numbers"))
EVERYTHING = 1 << 30


@pytest.fixture
def store(tmp_path: Path) -> Any:
    opened = open_store(tmp_path, "a", families=WITH_TOYS)
    yield opened
    opened.close()


def put(store: Store, **rows: bytes) -> None:
    store.apply([Persist(AT, tuple(Put("toys", key.encode(), value) for key, value in rows.items()))])


@pytest.mark.parametrize("seed", range(12))
def test_the_store_holds_what_the_simulators_disk_holds(tmp_path: Path, seed: int):
    store, disk = open_store(tmp_path, "a", families=WITH_TOYS), Disk()
    made = turns(Random(seed), 60)
    for number, turn in enumerate(made):
        store.apply(turn)
        for persist in turn:
            disk.enqueue(Queued(persist.address, persist.writes, ()), lambda *_: None)
        for item in disk.take(len(turn)):
            disk.settle(item)
        if number == len(made) // 2:
            known = {shard: store.dropped.known(shard) for shard in SHARDS}
            store.close()
            store = open_store(tmp_path, "a", families=WITH_TOYS)
            assert known == {shard: store.dropped.known(shard) for shard in SHARDS}
        for shard in SHARDS:
            image = disk.image(shard)
            headers = list(store.headers(shard, 0))
            assert image.entries == list(store.whole(shard, headers).entries)
            assert (shard in store.shards()) is (image.state is not None)
            if image.state is not None:
                assert (image.state, image.checkpoint) == store.state(shard)
        for unit in UNITS:
            if unit in disk.durable_tables.units:
                assert disk.durable_tables.units[unit] == store.unit(unit)
            assert (unit in disk.durable_tables.units) is (unit.id in store.units(unit.plane))
        for name in ("toys", "numbers"):
            assert disk.durable_tables.scan(name) == store.rows.scan(name, b"", None, 100)
    store.close()


def test_rows_are_read_by_key_and_by_range(store: Store):
    put(store, a=b"1", b=b"2", c=b"3", d=b"4")
    rows = store.rows
    assert (b"2", None) == (rows.get("toys", b"b"), rows.get("toys", b"bb"))
    many = rows.many((("toys", b"d"), ("numbers", b"b"), ("toys", b"bb"), ("toys", b"b")))
    assert ((b"4", None, None, b"2"), ()) == (many, rows.many(()))
    assert [(b"b", b"2"), (b"c", b"3")] == rows.scan("toys", b"b", b"d", 9) == list(rows.each("toys", b"b", b"d"))
    assert [(b"c", b"3"), (b"b", b"2")] == rows.scan("toys", b"b", b"d", 9, backwards=True)
    assert [(b"d", b"4"), (b"c", b"3")] == rows.scan("toys", b"", None, 2, backwards=True)
    assert [b"c", b"d"] == [key for key, _ in rows.each("toys", b"bb")]
    assert [] == rows.scan("toys", b"d", b"b", 9) == rows.scan("toys", b"d", b"b", 9, backwards=True)
    assert [] == rows.scan("toys", b"b", b"b", 9) == rows.scan("numbers", b"", None, 9)
    assert [] == rows.scan("toys", b"", None, 0)
    assert [b"a"] == [key for key, _ in rows.scan("toys", b"", None, 9, 1)], "at least one"
    assert [b"a", b"b"] == [key for key, _ in rows.scan("toys", b"", None, 9, 4)], "up to the one that makes it"
    store.apply([Persist(AT, (DeleteRange("toys", b"b", b"d"), Delete("toys", b"a"), Delete("toys", b"not there")))])
    assert [(b"d", b"4")] == rows.scan("toys", b"", None, 9)


def test_a_snapshot_shows_one_moment_of_several_families(store: Store):
    put(store, a=b"1", b=b"2")
    with store.snapshot("toys", "numbers") as then:
        store.apply([Persist(AT, (Put("toys", b"a", b"new"), Delete("toys", b"b"), Put("numbers", b"0", b"c")))])
        put(store, c=b"3")
        assert (b"1", b"2", None) == tuple(then.get("toys", key) for key in (b"a", b"b", b"c"))
        assert [(b"a", b"1"), (b"b", b"2")] == then.scan("toys", b"", None, 9)
        assert [(b"b", b"2"), (b"a", b"1")] == then.scan("toys", b"", None, 9, backwards=True)
        assert [(b"a", b"1")] == then.scan("toys", b"", b"b", 9, backwards=True)
        assert [] == then.scan("numbers", b"", None, 9)
        with pytest.raises(UnknownFamily, match="'log'"):
            then.get("log", b"")
    assert [(b"a", b"new"), (b"c", b"3")] == store.rows.scan("toys", b"", None, 9)
    assert b"c" == store.rows.get("numbers", b"0")


def test_snapshots_in_threads_never_see_half_a_write(store: Store):
    """Both families hold the number of the same write, at every moment that a reader takes."""
    store.apply([Persist(AT, (Put("toys", b"k", b"0"), Put("numbers", b"k", b"0")))])
    seen: list[tuple[bytes | None, bytes | None]] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            with store.snapshot("toys", "numbers") as at:
                seen.append((at.get("toys", b"k"), at.get("numbers", b"k")))

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    number = 0
    while len({pair[0] for pair in list(seen)}) < 20:
        number += 1
        value = str(number).encode()
        store.apply([Persist(AT, (Put("toys", b"k", value), Put("numbers", b"k", value)))])
    done.set()
    for reader in readers:
        reader.join()
    assert all(one == other for one, other in seen)


def test_a_new_family_appears_in_a_store_that_exists_and_is_there_after_a_restart(tmp_path: Path):
    store = open_store(tmp_path, "a")
    incarnation = store.incarnation
    store.apply([Persist(AT, (PutState(b"s"),))])
    with pytest.raises(UnknownFamily, match="toys"):
        put(store, a=b"1")
    with pytest.raises(UnknownFamily, match="toys"):
        store.rows.get("toys", b"a")
    store.close()
    for expected in (None, b"1"):
        store = open_store(tmp_path, "a", families=WITH_TOYS[:-1])
        assert incarnation == store.incarnation
        assert expected == store.rows.get("toys", b"a")
        put(store, a=b"1")
        store.sync()
        store.close()
    with pytest.raises(StoreRefused, match="newer release"):
        open_store(tmp_path, "a")     # this build has no such family, and must not touch what it does not know
    store = open_store(tmp_path, "a", families=WITH_TOYS)
    assert b"1" == store.rows.get("toys", b"a")
    assert {what for what, _ in store.sizes()} == {family.metric for family in WITH_TOYS}
    store.close()


class Ring:
    """A plane that keeps what it finds at start; the rest of a plane is not asked here."""

    unit = "ring"
    events = ()

    def __init__(self, node: Any) -> None:
        self.found: list[Any] = []

    def recover(self, stored: Stored) -> None:
        self.found = [(number, *stored.unit(number)) for number in stored.units()]
        self.found += stored.rows("toys", b"b")


def with_ring(limits: Limits) -> PlaneTable:
    return {**planes(limits), 9: Ring}  # type: ignore[dict-item]  # the test asks for `recover` alone


@pytest.mark.parametrize("where", ["store", "simulator"])
def test_a_plane_finds_its_units_and_rows_at_start(tmp_path: Path, where: str):
    ring = Address(9, S1)
    persists = [
        Persist(ring, (PutState(b"state"), PutCheckpoint(b"point"), *(Put("toys", key, b"1") for key in (b"a", b"b")))),
        Persist(Address(9, 300), (PutState(b"other"),)),
        Persist(Address(8, 5), (PutState(b"of another plane"),)),
    ]
    if where == "store":
        store = open_store(tmp_path, "a", families=WITH_TOYS)
        store.apply(persists)
        store.close()
        store, core = recover(tmp_path, "a", Limits(), families=WITH_TOYS, planes_of=with_ring)
        store.close()
    else:
        disk = Disk()
        for persist in persists:
            disk.enqueue(Queued(persist.address, persist.writes, ()), lambda *_: None)
        for item in disk.take(len(persists)):
            disk.settle(item)
        core = NodeCore(NodeFacts(Member("a", "life")), with_ring(Limits()))
        core.recover(partial(StoredPlane, disk))
    assert [(1, b"state", b"point"), (300, b"other", None), (b"b", b"1")] == core.planes[9].found  # type: ignore[attr-defined]
    assert not list(core.log.units())


def test_l25_a_table_of_producers_comes_back_from_its_rows(tmp_path: Path):
    author = Author()
    for number in range(30):
        author.data(producer=bytes((number + 1,)) * 16)
    store, core = recover(tmp_path, "a", Limits(checkpoint_rows=4, checkpoint_entries=10))
    replica = Replica(AT.shard, core.me, core.log.limits)
    replica.update(epoch=1, election=10, role=Role.FOLLOWER, ensemble=(core.me,))
    for entry in author.entries:
        replica.log.append(entry)
        replica.advance_commit(entry.last)
        replica.advance_confirmed(entry.last, entry.last)
        persist = replica.persist([PutEntry(entry), *replica.checkpoint_if_due()])
        store.apply([persist])
    store.sync()
    store.close()

    store, core = recover(tmp_path, "a", Limits())
    rows, table = store.rows.scan(PRODUCERS, *span_of(AT.shard), 100), core.log.shards[AT.shard].replica.log.producers
    store.close()

    assert len(rows) >= 20 and table.unsaved == 30 - len(rows)
    assert list(author.log.producers.snapshot().items()) == list(table.snapshot().items())


def test_a_refused_write_of_a_plane_changes_nothing(store: Store):
    put(store, a=b"1")
    for bad in (Put("headers", b"k", b"v"), Delete("system", b"format"), DeleteRange("log", b"", b"x")):
        with pytest.raises(UnknownFamily, match=bad.family):
            store.apply([Persist(AT, (Put("toys", b"a", b"2"), bad))])
    assert b"1" == store.rows.get("toys", b"a")
    put(store, a=b"3")
    assert b"3" == store.rows.get("toys", b"a")


def test_a_damaged_table_is_said_and_not_read_as_absence(tmp_path: Path):
    plain = tuple(replace(family, compressed=False) for family in WITH_TOYS)
    store = open_store(tmp_path, "a", families=plain)
    store.apply([Persist(AT, tuple(Put("toys", b"%04d" % n, b"value %04d" % n + bytes(2000)) for n in range(100)))])
    store.close()
    for table in (tmp_path / "store").glob("*.sst"):
        table.write_bytes(table.read_bytes().replace(b"value 0050", b"VALUE 0050"))
    store = open_store(tmp_path, "a", families=plain)
    with pytest.raises(StoreDamaged, match="toys"):
        store.rows.scan("toys", b"", None, 1000)
    with pytest.raises(StoreDamaged, match="toys"):
        store.rows.get("toys", b"0050")
    with store.snapshot("toys") as at, pytest.raises(StoreDamaged, match="toys"):
        at.get("toys", b"0050")
    store.close()


@pytest.mark.parametrize(("families", "message"), [
    ((*FAMILIES, FAMILIES[0]), "name 'log' occurs twice"),
    ((*FAMILIES, Family("toys", "headers")), "metric 'headers' occurs twice"),
    (FAMILIES[1:], "'log' is missing"),
    ((*FAMILIES, Family("default", "d")), "'default' belongs to RocksDB"),
])
def test_a_bad_table_is_refused_before_the_disk_is_touched(tmp_path: Path, families: Any, message: str):
    with pytest.raises(ValueError, match=message):
        Store(tmp_path / "store", "a", families=families)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("message", [
    Fence(1, 10, 7, kind=ShardKind.DOCUMENTS),
    InstallSnapshot(1, 10, Member("b", "x"), SnapshotDescriptor(1, EntryId(1, 9), 0, 9, 0, kind=ShardKind.DOCUMENTS)),
])
def test_a_shard_of_a_kind_that_the_store_has_no_families_for_is_refused(tmp_path: Path, message: Any):
    store, core = recover(tmp_path, "a", Limits(), families=LOGS_ALONE)
    effects = core.step(0, [Received(AT, OperatorId("o"), core.me, message)])
    store.close()

    [refused] = [effect.message.refusal for effect in effects if isinstance(effect, Send)]
    assert Reason.WRONG_STATE is refused.reason
    assert "kind Documents" in refused.message
    assert not [effect for effect in effects if isinstance(effect, Persist)]
    assert not core.log.shards


def test_a_store_with_their_families_holds_shards_of_documents(tmp_path: Path):
    assert (ShardKind.LOG,) == shard_kinds(LOGS_ALONE) == shard_kinds(
        tuple(family for family in FAMILIES if family.name != documents.SUMMARY))
    store, core = recover(tmp_path, "a", Limits())
    core.step(0, [Received(AT, OperatorId("o"), core.me, Fence(1, 10, 7, kind=ShardKind.DOCUMENTS))])
    store.close()

    assert ShardKind.DOCUMENTS is core.log.shards[AT.shard].replica.state.kind
