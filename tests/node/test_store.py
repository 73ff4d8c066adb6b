"""The store: what was synced survives kill -9, what is damaged is never served, a doubtful disk begins anew."""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from store_writer import chain_of
from tidemark_core.base.effects import (
    DropAfter,
    DropBefore,
    DropPayloads,
    Persist,
    PutCheckpoint,
    PutEntry,
    PutState,
    Space,
    Wipe,
)
from tidemark_core.base.entry import Entry, Kind, control
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_core.subscriptions.fold import position_payload
from tidemark_node.disk import DiskGuard
from tidemark_node.store import Slice, Store, open_store
from tidemark_node.store_errors import Faults, StoreDamaged, StoreFailed, StoreRefused

from tests.waiting import PATIENCE_S

S1, S2 = ShardId(1), ShardId(2)
AT = of_shard(S1)
EVERYTHING = 1 << 30


@pytest.fixture
def opened(tmp_path: Path) -> Store:
    store = open_store(tmp_path / "data", "a")
    yield store
    store.close()


def put(store: Store, entries: list, shard: ShardId = S1) -> None:
    store.apply([Persist(of_shard(shard), (*map(PutEntry, entries), PutState(b"s")))])
    store.sync()


def bare(entry: Entry) -> Entry:
    """The entry as it is when its payload was dropped."""
    return entry._replace(payload=b"")


def bases(found: Slice) -> list[int]:
    return [entry.base for entry in found.entries]


def test_read_returns_whole_entries_within_its_bounds(opened: Store):
    entries = chain_of(10, records=10)
    put(opened, entries)
    put(opened, chain_of(2), S2)
    assert Slice(tuple(entries), None) == opened.read(S1, 0, 99, EVERYTHING)
    assert [30, 40, 50] == bases(opened.read(S1, 35, 59, EVERYTHING))       # from inside an entry
    assert [30, 40] == bases(opened.read(S1, 30, 55, EVERYTHING))           # 50..59 is not whole
    assert [0] == bases(opened.read(S1, 0, 99, 1))                          # at least one
    assert [0, 10] == bases(opened.read(S1, 0, 99, entries[0].size + 1))
    assert Slice((), 100) == opened.read(S1, 100, 120, EVERYTHING)          # nothing there
    assert Slice(tuple(entries), 100) == opened.read(S1, 0, 120, EVERYTHING)


def test_truncation_trim_and_wipe(opened: Store):
    entries = chain_of(10, records=10)
    put(opened, entries)
    put(opened, entries, S2)
    opened.apply([Persist(AT, (DropAfter(79),))])
    assert [0, 10, 20, 30, 40, 50, 60, 70] == bases(opened.read(S1, 0, 79, EVERYTHING))
    opened.apply([Persist(AT, (DropBefore(25),))])     # inside an entry: that entry stays
    assert Slice((), 0) == opened.read(S1, 0, 79, EVERYTHING)
    assert [20, 30] == bases(opened.read(S1, 20, 39, EVERYTHING))
    opened.apply([Persist(AT, (DropBefore(40),))])
    assert [40, 50, 60, 70] == bases(opened.read(S1, 40, 79, EVERYTHING))
    opened.apply([Persist(AT, (PutCheckpoint(b"c"),)), Persist(AT, (Wipe(), PutState(b"t")))])
    assert [] == bases(opened.read(S1, 40, 79, EVERYTHING))
    assert (b"t", None) == opened.state(S1)
    assert entries == list(opened.read(S2, 0, 99, EVERYTHING).entries)      # the neighbour is untouched


def test_a_trim_below_the_first_entry_leaves_a_log_behind_another_shards(opened: Store):
    """Before the first header of a shard lies the last one of the shard in front, which says nothing of this one."""
    put(opened, chain_of(60, records=10))
    put(opened, chain_of(10, records=10), S2)
    for _ in range(2):
        opened.apply([Persist(of_shard(S2), (DropBefore(40),))])
        assert [40, 50, 60, 70, 80, 90] == bases(opened.read(S2, 40, 99, EVERYTHING))


def test_trim_sees_entries_of_the_same_group_of_writes(opened: Store):
    entries = chain_of(3, records=10)
    opened.apply([
        Persist(AT, tuple(map(PutEntry, entries[:2]))),
        Persist(AT, (PutEntry(entries[2]), DropBefore(25))),
    ])
    assert [20] == bases(opened.read(S1, 20, 29, EVERYTHING))
    assert Slice((), 10) == opened.read(S1, 10, 29, EVERYTHING)


def test_truncation_then_other_entries_in_one_write(opened: Store):
    entries = chain_of(5)
    put(opened, entries)
    opened.apply([Persist(AT, (DropAfter(1), PutEntry(entries[2])))])
    assert [0, 1, 2] == bases(opened.read(S1, 0, 2, EVERYTHING))
    assert Slice(tuple(entries[:3]), 3) == opened.read(S1, 0, 4, EVERYTHING)


def test_damaged_payload_is_not_served(opened: Store):
    entries = chain_of(5)
    put(opened, entries)
    put(opened, [entries[2]._replace(payload=b"X" * entries[2].payload_bytes)])
    assert Slice(tuple(entries[:2]), 2) == opened.read(S1, 0, 4, EVERYTHING)
    assert Slice((), 2) == opened.read(S1, 2, 4, EVERYTHING)
    put(opened, [entries[2]])
    assert Slice(tuple(entries), None) == opened.read(S1, 0, 4, EVERYTHING)


def test_dropped_payloads_leave_their_headers(opened: Store):
    entries = chain_of(6, records=10)
    put(opened, entries)
    put(opened, entries, S2)
    opened.apply([Persist(AT, (DropPayloads(10, 20), PutState(b"t")))])
    expected = [*entries[:1], *(bare(entry) for entry in entries[1:3]), *entries[3:]]
    found = opened.read(S1, 0, 59, EVERYTHING)
    assert Slice(tuple(expected), None) == found
    assert [True, False, False, True, True, True] == [entry.held for entry in found.entries]
    assert [e.header for e in entries] == [h.header for h in opened.headers(S1, 0)]
    assert Slice(tuple(entries), None) == opened.read(S2, 0, 59, EVERYTHING)    # the neighbour is untouched
    put(opened, [entries[1]])                                                   # filled again
    assert [True, True, False] == [entry.held for entry in opened.read(S1, 0, 29, EVERYTHING).entries]


def test_a_payload_that_a_restart_reads_lies_with_its_header(opened: Store):
    """It is neither dropped with those of other entries nor missed by a restart."""
    (data,) = chain_of(1)
    position = control(
        Kind.POSITION, position_payload("one", 1_000), epoch=1, prev=data.id, prev_chain=data.chain, logged_ms=1,
        argument=1,
    )
    put(opened, [data, position])
    opened.apply([Persist(AT, (DropPayloads(0, 1),))])
    assert Slice((bare(data), position), None) == opened.read(S1, 0, 1, EVERYTHING)
    assert [bare(data), position] == list(opened.headers(S1, 0))


def test_an_entry_that_is_not_held_is_stored_as_its_header(opened: Store):
    entries = chain_of(3)
    put(opened, [entries[0], bare(entries[1]), entries[2]])
    assert Slice((entries[0], bare(entries[1]), entries[2]), None) == opened.read(S1, 0, 2, EVERYTHING)
    put(opened, [entries[1]])
    assert Slice(tuple(entries), None) == opened.read(S1, 0, 2, EVERYTHING)


def test_an_empty_payload_is_held(opened: Store):
    (entry,) = chain_of(1, payload_bytes=0)
    put(opened, [entry])
    assert [True] == [found.held for found in opened.read(S1, 0, 0, EVERYTHING).entries]


def test_a_payload_in_a_damaged_table_is_damage_not_absence(tmp_path: Path):
    store = open_store(tmp_path, "a")
    entries = chain_of(100)
    put(store, entries)
    store.close()
    for table in (tmp_path / "store").glob("*.sst"):
        data = table.read_bytes()
        table.write_bytes(data.replace(entries[50].payload, b"X" * 1000))
    store = open_store(tmp_path, "a")
    found = store.read(S1, 0, 99, EVERYTHING)
    assert found.damaged_at is not None and found.damaged_at <= 50
    assert all(entry.held for entry in found.entries)
    store.close()


def test_damaged_header_is_not_served_and_fails_recovery(opened: Store):
    entries = chain_of(5)
    put(opened, entries)
    put(opened, [entries[2]._replace(header=bytes(len(entries[2].header)))])
    assert Slice(tuple(entries[:2]), 2) == opened.read(S1, 0, 4, EVERYTHING)
    with pytest.raises(StoreDamaged, match="header"):
        list(opened.headers(S1, 0))


def test_recovery_lists_shards_and_headers_from_a_point(opened: Store):
    entries = chain_of(6)
    put(opened, entries)
    put(opened, entries[:2], S2)
    assert [S1, S2] == opened.shards()
    assert [e.header for e in entries[3:]] == [h.header for h in opened.headers(S1, 3)]
    assert 2 == len(list(opened.headers(S2, 0)))


def test_incarnation_stays_and_a_stranger_is_refused(tmp_path: Path):
    store = open_store(tmp_path, "a")
    incarnation = store.incarnation
    with pytest.raises(StoreRefused, match="another process"):
        open_store(tmp_path, "a")
    store.close()
    store = open_store(tmp_path, "a")
    assert incarnation == store.incarnation
    store.close()
    with pytest.raises(StoreRefused, match="belongs to node 'a', not to 'b'"):
        open_store(tmp_path, "b")


@pytest.mark.parametrize("other", [b"3", b"99", b"two"])
def test_another_format_is_refused_with_what_to_do_and_left_as_it_is(tmp_path: Path, other: bytes):
    """What another release wrote is not damage: to move it aside would empty a whole cluster at an upgrade."""
    store = open_store(tmp_path, "a")
    store._families["system"][b"format"] = other
    store.close()
    for _ in range(2):
        with pytest.raises(StoreRefused, match=f"format {other.decode()}, .*the release that wrote it"):
            open_store(tmp_path, "a")
    assert ["store"] == [path.name for path in tmp_path.iterdir() if path.is_dir()]


def test_everything_synced_survives_kill_9_and_writes_are_whole(tmp_path: Path):
    writer = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("store_writer.py")), str(tmp_path)], stdout=subprocess.PIPE
    )
    synced = -1
    for line in writer.stdout:
        synced = int(line)
        if synced > 2000:
            break
    writer.kill()
    rest = writer.stdout.read().split()
    writer.wait(PATIENCE_S)
    synced = max([synced, *(int(word) for word in rest)])
    entries = chain_of(20_000, payload_bytes=3000)
    store = open_store(tmp_path, "a")
    for shard in (S1, S2):
        last = int(store.state(shard)[0])
        assert last >= synced
        assert last == len(list(store.headers(shard, 0))) - 1, "a write was torn"
        assert entries[: last + 1] == list(store.read(shard, 0, last, EVERYTHING).entries)
    store.close()


def written(tmp_path: Path) -> tuple[Path, str]:
    """A store that nothing closed, with one write-ahead log of several syncs and a last entry that none covers."""
    store = open_store(tmp_path, "a")
    incarnation = store.incarnation
    for entry in chain_of(199):
        put(store, [entry])
    store.apply([Persist(AT, (PutEntry(chain_of(200)[-1]),))])
    # Copied while open: closing would flush the log into a table.
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "store", copy / "store")
    store.close()
    return copy, incarnation


def wal(directory: Path) -> Path:
    return max((directory / "store").glob("*.log"), key=lambda path: path.stat().st_size)


def test_torn_tail_loses_only_the_tail(tmp_path: Path):
    directory, incarnation = written(tmp_path)
    log = wal(directory)
    with log.open("r+b") as torn:
        torn.truncate(log.stat().st_size - 500)
    store = open_store(directory, "a")
    assert incarnation == store.incarnation
    assert chain_of(199) == list(store.read(S1, 0, 198, EVERYTHING).entries)
    store.close()


def test_damage_in_the_middle_of_the_log_begins_a_new_life(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    directory, incarnation = written(tmp_path)
    log = wal(directory)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    store = open_store(directory, "a")
    assert incarnation != store.incarnation
    assert [] == store.shards()
    assert (directory / "store.damaged-1").is_dir()
    assert "CRITICAL" in caplog.text and "moved aside" in caplog.text
    store.close()


def test_missing_table_file_begins_a_new_life(tmp_path: Path):
    store = open_store(tmp_path, "a")
    incarnation = store.incarnation
    put(store, chain_of(100))
    store._db.flush(True)
    store.close()
    store = open_store(tmp_path, "a")
    store.close()
    tables = list((tmp_path / "store").glob("*.sst"))
    assert tables
    tables[0].unlink()
    store = open_store(tmp_path, "a")
    assert incarnation != store.incarnation
    store.close()


def test_damage_in_what_a_start_reads_begins_a_new_life(tmp_path: Path):
    store = open_store(tmp_path, "a")
    incarnation = store.incarnation
    store.apply([Persist(AT, (PutState(b"what a restart reads"),))])
    store.close()
    for table in (tmp_path / "store").glob("*.sst"):
        table.write_bytes(table.read_bytes().replace(b"what a restart reads", b"WHAT A RESTART READS"))
    store = open_store(tmp_path, "a")
    assert incarnation != store.incarnation and (tmp_path / "store.damaged-1").is_dir()
    store.close()


def failing(faults: Faults, kind: str) -> None:
    setattr(faults, kind, OSError(errno.ENOSPC, "No space left on device"))


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_failed_write_is_typed_and_nothing_more_is_taken(tmp_path: Path, kind: str):
    faults = Faults()
    store = open_store(tmp_path, "a", faults)
    entries = chain_of(3)
    put(store, entries[:1])
    failing(faults, kind)
    with pytest.raises(StoreFailed, match="No space left") as caught:
        put(store, entries[1:2])
    assert caught.value.no_space
    faults.write = faults.sync = None
    with pytest.raises(StoreFailed, match="earlier write failed"):
        put(store, entries[2:])
    assert entries[:1] == list(store.read(S1, 0, 0, EVERYTHING).entries)
    store.close()


def test_k20b_disk_guard_has_two_levels_with_two_watermarks_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    guard = DiskGuard(tmp_path, 1000)
    free = 2000
    monkeypatch.setattr(guard, "free_bytes", lambda: free)
    assert guard.changed() is None
    for free, news in (
        (999, Space.FULL), (1100, None), (666, None), (665, Space.EXHAUSTED), (831, None), (832, Space.FULL),
        (1249, None), (1250, Space.FREE), (10, Space.EXHAUSTED), (1250, Space.FREE),
    ):
        assert guard.changed() is news, f"{free} bytes free"
    assert not guard.wrote(10)
    assert guard.wrote(300)


FULL_DISK = """
import sys, pathlib
sys.path.insert(0, sys.argv[2])
from store_writer import chain_of
from tidemark_core.base.effects import Persist, PutEntry, PutState
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_node.store import open_store
from tidemark_node.store_errors import StoreFailed
path = pathlib.Path(sys.argv[1])
store = open_store(path, "a")
entries = chain_of(4000, payload_bytes=20_000)
synced = -1
try:
    for entry in entries:
        store.apply([Persist(of_shard(ShardId(1)), (PutEntry(entry), PutState(str(entry.last).encode())))])
        store.sync()
        synced = entry.last
except StoreFailed as failed:
    print("failed", failed.no_space, failed)
assert 100 < synced < 3900, synced
assert entries[:synced + 1] == list(store.read(ShardId(1), 0, synced, 1 << 30).entries)
store.close()
(path / "ballast").unlink()
store = open_store(path, "a")
last = int(store.state(ShardId(1))[0])
assert last >= synced
assert entries[:last + 1] == list(store.read(ShardId(1), 0, last, 1 << 30).entries)
store.apply([Persist(of_shard(ShardId(1)), (PutEntry(entries[last + 1]),))])
store.sync()
print("recovered")
"""


def test_full_tmpfs_fails_typed_and_recovers_when_space_returns(tmp_path: Path, in_user_namespace: Callable):
    """A disk that is full for real; where the system forbids namespaces the injected fault above stands for it."""
    script = tmp_path / "full.py"
    script.write_text(FULL_DISK)
    result = in_user_namespace(
        f"mount -t tmpfs -o size=80m tmpfs {tmp_path}/disk && head -c 46000000 /dev/zero > {tmp_path}/disk/ballast"
        f" && {sys.executable} {script} {tmp_path}/disk {Path(__file__).parent}"
    )
    if result is None:
        faults = Faults()
        store = open_store(tmp_path / "injected", "a", faults)
        failing(faults, "write")
        with pytest.raises(StoreFailed):
            put(store, chain_of(1))
        store.close()
        return
    assert 0 == result.returncode, result.stderr
    assert "failed True" in result.stdout and "recovered" in result.stdout
