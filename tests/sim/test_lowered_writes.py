"""The store verbs that log writes are lowered to mean what the simulator's disk does with the writes themselves."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.effects import (
    Delete,
    DeleteRange,
    DropAfter,
    DropBefore,
    DropPayloads,
    Persist,
    Put,
    PutEntry,
    PutState,
    Wipe,
    Write,
)
from tidemark_core.base.entry import Batch, Entry, Kind, recovered, seal, with_payload
from tidemark_core.base.ids import LOG_PLANE, EntryId, ShardId, of_shard
from tidemark_core.base.layout import (
    CHECKPOINT,
    DROPPED,
    ENTRY_KEY,
    HEADERS,
    LOG,
    STATE,
    SYSTEM,
    Span,
    UnknownFamily,
    address_key,
    lower,
)
from tidemark_sim.disk import Disk, Image, Queued, Tables

from tests import stored_turns
from tests.stored_turns import SHARDS, UNITS, turns

FIRST, SECOND = of_shard(SHARDS[0]), of_shard(SHARDS[1])

NAMES = (HEADERS, LOG, SYSTEM, *stored_turns.FAMILIES)


class Plain:
    """A store of plain dicts, which knows the three verbs and the two lookups."""

    def __init__(self) -> None:
        self.families: dict[str, dict[bytes, bytes]] = {name: {} for name in NAMES}
        self.before = self.families

    def put(self, key: bytes, value: bytes, family: str) -> None:
        self.families[family][key] = value

    def delete(self, key: bytes, family: str) -> None:
        self.families[family].pop(key, None)

    def delete_range(self, first: bytes, behind: bytes, family: str) -> None:
        assert first < behind
        rows = self.families[family]
        self.families[family] = {key: value for key, value in rows.items() if not first <= key < behind}

    def turn(self, persists: list[Persist]) -> dict[ShardId, Span]:
        self.before = {name: dict(rows) for name, rows in self.families.items()}
        return lower(persists, self, {name: name for name in NAMES}, self.header_at_or_before, self.known_dropped)

    def header_at_or_before(self, shard: ShardId, offset: int) -> tuple[int, bytes] | None:
        low, high = ENTRY_KEY.pack(shard, 0), ENTRY_KEY.pack(shard, offset)
        found = max((key for key in self.before[HEADERS] if low <= key <= high), default=None)
        return None if found is None else (ENTRY_KEY.unpack(found)[1], self.before[HEADERS][found])

    def known_dropped(self, shard: ShardId) -> Span | None:
        stored = self.before[SYSTEM].get(address_key(DROPPED, LOG_PLANE, shard))
        return None if stored is None else ENTRY_KEY.unpack(stored)  # type: ignore[return-value]

    def entries(self, shard: ShardId) -> list[Entry]:
        found = []
        for key, header in sorted(self.families[HEADERS].items()):
            entry = recovered(header)
            assert entry.base == ENTRY_KEY.unpack(key)[1]
            if ENTRY_KEY.unpack(key)[0] == shard:
                payload = self.families[LOG].get(key)
                found.append(entry if payload is None else with_payload(entry, payload))
        return found


def disk_turn(disk: Disk, persists: list[Persist]) -> None:
    for persist in persists:
        disk.enqueue(Queued(persist.address, persist.writes, ()), lambda *_: None)
    for item in disk.take(len(persists)):
        disk.settle(item)


@given(st.integers(0, 1 << 32))
@settings(max_examples=300, deadline=None)
def test_lowered_verbs_on_a_dict_and_the_simulators_disk_agree(seed: int):
    plain, disk = Plain(), Disk()
    dropped: dict[ShardId, Span] = {}
    for turn in turns(Random(seed), 25):
        for shard, (first, last) in plain.turn(turn).items():
            known = dropped.get(shard, (first, last))
            dropped[shard] = (min(known[0], first), max(known[1], last))
        disk_turn(disk, turn)
        for shard in SHARDS:
            image, system = disk.image(shard), plain.families[SYSTEM]
            assert plain.entries(shard) == image.entries
            assert system.get(address_key(STATE, LOG_PLANE, shard)) == image.state
            assert system.get(address_key(CHECKPOINT, LOG_PLANE, shard)) == image.checkpoint
            stored = system.get(address_key(DROPPED, LOG_PLANE, shard))
            assert (None if stored is None else ENTRY_KEY.unpack(stored)) == dropped.get(shard)
        for unit in UNITS:
            stored = tuple(plain.families[SYSTEM].get(address_key(prefix, *unit)) for prefix in (STATE, CHECKPOINT))
            assert stored == disk.durable_tables.units.get(unit, (None, None))
            assert stored == disk.written_tables.units.get(unit, (None, None))
        assert plain.families[LOG].keys() <= plain.families[HEADERS].keys(), "no payload outlives its header"
        for name in stored_turns.FAMILIES:
            assert sorted(plain.families[name].items()) == disk.durable_tables.scan(name)
            assert disk.written_tables.scan(name) == disk.durable_tables.scan(name)


def test_the_turns_hold_every_write_often_enough():
    """Else the test above proves less than it says."""
    seen: dict[str, int] = {}
    for seed in range(40):
        for turn in turns(Random(seed), 25):
            for persist in turn:
                for write in persist.writes:
                    seen[type(write).__name__] = seen.get(type(write).__name__, 0) + 1
    every = {kind.__name__ for kind in Write.__args__}
    assert every == seen.keys() and min(seen.values()) > 50


def data(base: int, last: int) -> PutEntry:
    batch = Batch(b"p" * 16, 0, last - base + 1, 1, 2, crc32c(b""), b"")
    return PutEntry(seal(batch, kind=Kind.DATA, epoch=1, prev=EntryId(1, base - 1), prev_chain=0, logged_ms=0))


@pytest.mark.parametrize("removal", [DropAfter(9), Wipe()])
@pytest.mark.parametrize("together", [True, False])
def test_a_trim_looks_past_what_the_same_turn_removed(removal: Write, together: bool):
    """Entry 15 is gone when 20 becomes the first offset; the entry that reaches over it begins at 10."""
    plain = Plain()
    old = (data(0, 9), data(10, 14), data(15, 40))
    new = (removal, data(10, 30), DropBefore(20))
    for turn in [(*old, *new)] if together else [old, new]:
        plain.turn([Persist(FIRST, (write,)) for write in turn])
    assert [10] == [entry.base for entry in plain.entries(SHARDS[0])]


@pytest.mark.parametrize("write", [
    Put(SYSTEM, b"state/", b"x"), Delete(HEADERS, b"x"), DeleteRange(LOG, b"", b"x"), Put("unheard", b"k", b"v"),
])
def test_a_family_of_the_log_or_without_a_row_is_refused_by_its_name(write: Any):
    with pytest.raises(UnknownFamily, match=write.family):
        Plain().turn([Persist(FIRST, (PutState(b"s"), write))])


@pytest.mark.parametrize("write", [data(0, 9), DropAfter(1), DropBefore(1), DropPayloads(0, 1), Wipe()])
def test_a_plane_without_a_log_writes_none(write: Write):
    """Its units have numbers as shards have; their entries would meet."""
    persist = Persist(UNITS[0], (PutState(b"s"), write))
    with pytest.raises(TypeError, match=f"plane 3 has no log.*{type(write).__name__}"):
        Plain().turn([persist])
    with pytest.raises(TypeError, match=f"plane 3 has no log.*{type(write).__name__}"):
        Disk().enqueue(Queued(persist.address, persist.writes, ()), lambda *_: None)


def test_a_range_that_ends_in_front_of_its_first_key_holds_nothing():
    plain = Plain()
    plain.turn([Persist(FIRST, (Put("docs", b"b", b"1"), DeleteRange("docs", b"c", b"a")))])
    assert plain.families["docs"] == {b"b": b"1"}


def test_where_payloads_were_dropped_is_one_range_with_what_was_known():
    plain = Plain()
    assert plain.turn([Persist(FIRST, (DropPayloads(5, 6),))]) == {SHARDS[0]: (5, 6)}
    turn = [Persist(FIRST, (DropPayloads(9, 9), DropPayloads(7, 7))), Persist(SECOND, (DropPayloads(1, 1),))]
    assert plain.turn(turn) == {SHARDS[0]: (7, 9), SHARDS[1]: (1, 1)}
    plain.before = plain.families
    assert [(5, 9), (1, 1)] == [plain.known_dropped(shard) for shard in SHARDS[:2]]


def test_a_power_cut_takes_the_rows_that_no_sync_has_seen():
    disk = Disk()
    for value in (b"1", b"2"):
        disk.enqueue(Queued(FIRST, (Put("docs", b"k", value), Put("docs", value, value)), ()), lambda *_: None)
    disk.settle(disk.take(1)[0])
    assert (b"1", b"2") == (disk.durable_tables.get("docs", b"k"), disk.written_tables.get("docs", b"k"))
    assert disk.power_cut() == 1
    assert [(b"1", b"1"), (b"k", b"1")] == disk.written_tables.scan("docs") == disk.durable_tables.scan("docs")
    assert [(b"k", b"1")] == disk.durable_tables.scan("docs", b"2") == disk.durable_tables.scan("docs", b"2", b"z")
    assert disk.durable == {}, "a shard begins with a write of its log"
    with pytest.raises(UnknownFamily, match="system"):
        Tables().apply(of_shard(SHARDS[0]), Put(SYSTEM, b"k", b"v"))
    disk.wipe()
    assert disk.durable_tables.scan("docs") == disk.written_tables.scan("docs") == []


def test_an_image_holds_no_rows_of_planes():
    with pytest.raises(TypeError, match="unknown write"):
        Image().apply(Put("docs", b"k", b"v"))
