"""A store whose synced log lost its end or its beginning begins a new life; a tail that no sync covered is no loss.

Stores are written and killed once, then every case damages a copy.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from store_writer import chain_of
from tidemark_core.base.effects import DropBefore, Persist, PutCheckpoint, PutEntry, PutState
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_core.base.limits import Limits
from tidemark_node import database
from tidemark_node.main import recover
from tidemark_node.store import Store, open_store
from tidemark_node.store_errors import StoreDamaged
from tidemark_node.synced import FILE, SyncedMark

from tests.waiting import PATIENCE_S

S1 = ShardId(1)
SYNCED, TAIL = 200, 5
ENTRIES = chain_of(SYNCED + TAIL)


class Killed(NamedTuple):
    """A directory whose writer was killed, and where in the newest log the synced bytes end."""

    directory: Path
    synced_bytes: int


def killed(directory: Path, tail: int, buffer_bytes: int = 64 << 20) -> Killed:
    writer = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("synced_writer.py")), str(directory), str(SYNCED), str(tail),
         str(buffer_bytes)],
        stdout=subprocess.PIPE,
    )
    synced_bytes = int(writer.stdout.readline())
    assert b"written\n" == writer.stdout.readline()
    writer.kill()
    writer.wait(PATIENCE_S)
    writer.stdout.close()
    return Killed(directory, synced_bytes)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Killed]:
    """Stores that nothing closed: one synced to its end, one with a tail behind, one with several logs."""
    at = tmp_path_factory.mktemp("killed")
    return {
        "synced": killed(at / "synced", 0),
        "tail": killed(at / "tail", TAIL),
        "several": killed(at / "several", 0, 64 << 10),
    }


def copied(stores: dict[str, Killed], which: str, tmp_path: Path) -> Killed:
    return Killed(Path(shutil.copytree(stores[which].directory, tmp_path / "copy")), stores[which].synced_bytes)


def logs(directory: Path) -> list[Path]:
    return sorted((directory / "store").glob("*.log"))


def flip(path: Path, at: int, bit: int = 3) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def was_moved_aside(directory: Path) -> bool:
    return (directory / "store.damaged-1").is_dir()


def reopened(directory: Path) -> Store:
    """Open what is there; a store that was moved aside is empty and has a mark of its own."""
    store = open_store(directory, "a")
    assert was_moved_aside(directory) == (store.shards() == [])
    assert (directory / "store" / FILE).is_file()
    return store


DAMAGES: dict[str, Callable[[Path, int], None]] = {
    "half": lambda log, synced: os.truncate(log, synced // 2),
    "one byte short": lambda log, synced: os.truncate(log, synced - 1),
    "emptied": lambda log, synced: os.truncate(log, 0),
    "deleted": lambda log, synced: log.unlink(),
    "last synced record": lambda log, synced: flip(log, synced - 20),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["synced", "tail"])
def test_k14b_a_synced_end_that_is_gone_begins_a_new_life(
    stores: dict[str, Killed], tmp_path: Path, which: str, damage: str, caplog: pytest.LogCaptureFixture
):
    directory, synced_bytes = copied(stores, which, tmp_path)
    DAMAGES[damage](logs(directory)[-1], synced_bytes)
    reopened(directory).close()
    assert was_moved_aside(directory)
    assert "moved aside" in caplog.text
    store = open_store(directory, "a")      # and the new life lasts
    assert not (directory / "store.damaged-2").exists()
    store.close()


def test_k14b_a_flip_of_the_length_of_the_last_synced_record_begins_a_new_life(
    stores: dict[str, Killed], tmp_path: Path
):
    """RocksDB takes a record that reaches beyond the end of its log for one that was never finished."""
    directory, synced_bytes = copied(stores, "synced", tmp_path)
    log = logs(directory)[-1]
    written = log.read_bytes()
    # A record has a header of 7 bytes: 4 of checksum, 2 of length, 1 of type.
    at = next(
        at for at in range(synced_bytes - 7, 0, -1)
        if int.from_bytes(written[at + 4 : at + 6], "little") == synced_bytes - at - 7 > 100
    )
    flip(log, at + 5, bit=7)
    reopened(directory).close()
    assert was_moved_aside(directory)


@pytest.mark.parametrize("damage", ["half", "emptied", "deleted"])
@pytest.mark.parametrize("which", [0, 1])
def test_k14b_a_synced_log_in_front_of_others_that_is_gone_begins_a_new_life(
    stores: dict[str, Killed], tmp_path: Path, which: int, damage: str
):
    directory, _ = copied(stores, "several", tmp_path)
    log = logs(directory)[which]
    assert len(logs(directory)) > 2
    DAMAGES[damage](log, log.stat().st_size)
    reopened(directory).close()
    assert was_moved_aside(directory)


@pytest.mark.parametrize("which", ["synced", "tail", "several"])
def test_k14b_a_killed_store_opens_with_everything(stores: dict[str, Killed], tmp_path: Path, which: str):
    directory, _ = copied(stores, which, tmp_path)
    for _ in range(2):
        store = reopened(directory)
        assert not was_moved_aside(directory)
        last = int(store.state(S1)[0])
        assert last >= SYNCED - 1
        assert ENTRIES[: last + 1] == list(store.read(S1, 0, last, 1 << 30).entries)
        store.close()


def test_k14b_a_torn_tail_that_no_sync_covered_opens(stores: dict[str, Killed], tmp_path: Path):
    tail_bytes = logs(stores["tail"].directory)[-1].stat().st_size - stores["tail"].synced_bytes
    assert tail_bytes > 4000
    for number, cut in enumerate((1, 3, 500, tail_bytes // 2, tail_bytes - 1, tail_bytes)):
        directory, _ = copied(stores, "tail", tmp_path / str(number))
        log = logs(directory)[-1]
        os.truncate(log, log.stat().st_size - cut)
        store = reopened(directory)
        assert not was_moved_aside(directory)
        last = int(store.state(S1)[0])
        assert SYNCED - 1 <= last < SYNCED + TAIL - 1
        assert ENTRIES[: last + 1] == list(store.read(S1, 0, last, 1 << 30).entries)
        store.close()


@pytest.mark.parametrize("damage", ["half", "emptied", "deleted"])
def test_k14b_a_store_that_was_closed_needs_no_log(tmp_path: Path, damage: str):
    """Closing writes tables; what is left of the log holds nothing, and its loss is none."""
    store = open_store(tmp_path, "a")
    store.apply([Persist(of_shard(S1), (*map(PutEntry, ENTRIES[:50]), PutState(b"s")))])
    store.sync()
    incarnation = store.incarnation
    store.close()
    for log in logs(tmp_path):
        DAMAGES[damage](log, log.stat().st_size)
    store = reopened(tmp_path)
    assert incarnation == store.incarnation
    assert ENTRIES[:50] == list(store.read(S1, 0, 49, 1 << 30).entries)
    store.close()


@pytest.mark.parametrize("damage", ["missing", "emptied", "flipped"])
def test_k14b_without_a_readable_mark_the_store_cannot_be_trusted(
    stores: dict[str, Killed], tmp_path: Path, damage: str
):
    directory, _ = copied(stores, "synced", tmp_path)
    mark = directory / "store" / FILE
    if damage == "missing":
        mark.unlink()
    elif damage == "emptied":
        os.truncate(mark, 0)
    else:
        flip(mark, 12)
    reopened(directory).close()
    assert was_moved_aside(directory)


def test_k14b_the_mark_reaches_the_disk_within_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forced: list[int] = []
    clock = 100.0
    monkeypatch.setattr("tidemark_node.synced.os.fdatasync", forced.append)
    monkeypatch.setattr("tidemark_node.synced.time.monotonic", lambda: clock)
    mark = SyncedMark(tmp_path, 7, required=False)
    mark.put(8)
    mark.put(9)
    assert [] == forced
    clock += 1.0
    mark.put(9)         # nothing new
    assert [] == forced
    mark.put(10)
    mark.put(11)
    assert 1 == len(forced)
    mark.close()
    assert 2 == len(forced)
    SyncedMark(tmp_path, 11, required=True).close()


def test_k14b_a_sync_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A killed process loses nothing that the kernel has, so damage shows no missing sync; RocksDB counts its own."""
    options = database._options()
    options.enable_statistics()
    monkeypatch.setattr(database, "_options", lambda: options)

    def syncs() -> int:
        counted = re.search(r"^rocksdb\.wal\.synced COUNT : (\d+)$", options.get_statistics(), re.MULTILINE)
        assert counted
        return int(counted[1])

    store = open_store(tmp_path, "a")
    for number, entry in enumerate(ENTRIES[:3]):
        before = syncs()
        store.apply([Persist(of_shard(S1), (PutEntry(entry), PutState(str(number).encode())))])
        assert before == syncs(), "what is applied waits for its sync"
        store.sync()
        assert before < syncs()
    store.close()


def test_k14b_a_new_mark_is_durable_before_and_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    forced: list[tuple[str, bool]] = []

    def fsync(file: int) -> None:
        forced.append((Path(os.readlink(f"/proc/self/fd/{file}")).name, (tmp_path / FILE).exists()))

    monkeypatch.setattr("tidemark_node.synced.os.fsync", fsync)
    SyncedMark(tmp_path, 7, required=False).close()
    assert [(f"{FILE}.partial", False), (tmp_path.name, True)] == forced


# --- every call of the binding is typed -----------------------------------------------------------------------


def facts(directory: Path) -> tuple[object, ...]:
    """Everything that a start reads."""
    store, _ = recover(directory, "a", Limits())
    found = (
        store.incarnation, store.remembered(), [(shard, store.state(shard)) for shard in store.shards()],
        [header.header for shard in store.shards() for header in store.headers(shard, 0)],
    )
    store.close()
    return found


def test_a_flipped_bit_anywhere_a_start_reads_ends_in_the_same_facts_or_in_a_new_life(tmp_path: Path):
    """Tables, manifest, small files: with a bare error of the binding the process would end at every start."""
    store = open_store(tmp_path / "whole", "a")
    a_map = b"a map" * 8000     # more than a block, and another block behind: damage there shows only in this row
    store.remember(a_map)
    store._families["system"][b"s"] = a_map
    expected_life = store.incarnation
    store.close()
    expected = facts(tmp_path / "whole")
    assert expected[:2] == (expected_life, a_map)
    ends: dict[str, int] = {"same": 0, "new life": 0}
    for path in sorted((tmp_path / "whole" / "store").iterdir()):
        size = path.stat().st_size
        if path.name.startswith(("LOG", "OPTIONS")) or not size:
            continue        # no start reads these
        for number, at in enumerate(range(0, size, max(size // 12, 1))):
            directory = Path(shutil.copytree(tmp_path / "whole", tmp_path / "flipped"))
            flip(directory / "store" / path.name, at, bit=number % 8)
            found = facts(directory)
            moved = was_moved_aside(directory)
            assert moved == (found[0] != expected_life), f"{path.name} at {at}"
            assert moved or found == expected, f"{path.name} at {at}"
            ends["new life" if moved else "same"] += 1
            shutil.rmtree(directory)
    assert ends["new life"] > 30 and ends["same"] > 10


def record_offsets(file: Path) -> list[int]:
    data, at, found = file.read_bytes(), 0, []
    while at + 7 <= len(data):
        found.append(at)
        at += 7 + int.from_bytes(data[at + 4:at + 6], "little")
    return found


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "*.log"])
def test_a_record_of_a_recycled_log_ends_in_a_new_life_and_not_in_an_endless_start(
    stores: dict[str, Killed], tmp_path: Path, pattern: str
):
    """RocksDB's reader never returns from such a record, so a process of its own opens the store."""
    directory, _ = copied(stores, "synced", tmp_path / "one")
    file = sorted((directory / "store").glob(pattern))[-1]
    offsets = record_offsets(file)
    flip(file, offsets[len(offsets) // 2] + 6, bit=2)     # the type: a whole record becomes one of a recycled log
    program = "import sys; from pathlib import Path; from tidemark_core.base.limits import Limits; " \
              "from tidemark_node.main import recover; recover(Path(sys.argv[1]), 'a', Limits())[0].close()"
    subprocess.run([sys.executable, "-c", program, str(directory)], check=True, timeout=60)
    assert was_moved_aside(directory)


def test_a_damaged_table_of_headers_fails_a_trim_with_a_type(tmp_path: Path):
    store = open_store(tmp_path, "a")
    store.apply([Persist(of_shard(S1), (*map(PutEntry, ENTRIES[:50]), PutState(b"s"), PutCheckpoint(b"c")))])
    store.close()
    header = ENTRIES[25].header
    tables = [table for table in (tmp_path / "store").glob("*.sst") if header[:20] in table.read_bytes()]
    assert tables
    for table in tables:
        flip(table, table.read_bytes().index(header[:20]))
    store = open_store(tmp_path, "a")
    with pytest.raises(StoreDamaged, match="Corruption"):
        store.apply([Persist(of_shard(S1), (DropBefore(25),))])
    assert (0, ()) == (store.read(S1, 0, 49, 1 << 30).damaged_at, store.read(S1, 0, 49, 1 << 30).entries)
    store.close()
