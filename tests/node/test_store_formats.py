"""A store of an older release opens with everything in it, whenever its migration is cut short; a newer one is refused.

`data/store-format-4.tar.xz` was written by the nodes of commit d6bdcd2 (`tools/make_old_store.py`).
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Rdict
from tidemark_core.base.effects import Persist, PutCheckpoint, PutEntry, PutState, Write
from tidemark_core.base.entry import Kind, control
from tidemark_core.base.ids import LOG_PLANE, ShardId, of_shard
from tidemark_core.base.limits import Limits
from tidemark_core.replication.checkpoint import FOLDS, Checkpoint
from tidemark_node.database import open_database
from tidemark_node.families import FAMILIES, Family
from tidemark_node.main import recover
from tidemark_node.store import STORE_FORMAT, Store, open_store
from tidemark_node.store_errors import Faults, StoreFailed, StoreRefused

from tests.core.toy_fold import Tally
from tests.waiting import PATIENCE_S

ARCHIVE = Path(__file__).with_name("data") / "store-format-4.tar.xz"
WITH_TOYS = (*FAMILIES, Family("toys", "toys"), Family("numbers", "numbers"))


@pytest.fixture
def old(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A data directory with the old store, and what the old release read in it."""
    with tarfile.open(ARCHIVE) as packed:
        packed.extractall(tmp_path / "data", filter="data")
    return tmp_path / "data", json.loads((tmp_path / "data" / "expected.json").read_text())


def check(store: Store, expected: dict[str, Any]) -> None:
    """Everything that the old release read is there."""
    assert expected["incarnation"] == store.incarnation
    assert bytes.fromhex(expected["remembered"]) == store.remembered()
    assert [int(shard) for shard in expected["shards"]] == store.shards() == store.units(LOG_PLANE)
    for number, found in expected["shards"].items():
        shard = ShardId(int(number))
        state, checkpoint = store.state(shard)
        assert found["state"] == state.hex()
        assert found["checkpoint"] == (None if checkpoint is None else checkpoint.hex())
        assert found["dropped"] == (list(known) if (known := store.dropped.known(shard)) else None)
        headers = list(store.headers(shard, 0))
        entries = store.read(shard, headers[0].base, headers[-1].last, 1 << 40)
        assert entries.damaged_at is None
        assert found["entries"] == [
            {
                "base": entry.base, "kind": Kind(entry.kind).name, "header": entry.header.hex(), "held": entry.held,
                "payload_sha256": hashlib.sha256(entry.payload).hexdigest(),
            }
            for entry in entries.entries
        ]


def look(directory: Path) -> tuple[dict[bytes, bytes], set[str]]:
    """Return the rows of `system` and the names of all families, without the store's code."""
    names = set(Rdict.list_cf(str(directory / "store"))) - {"default"}
    known = [family for family in WITH_TOYS if family.name in names]
    database, _ = open_database(directory / "store", known)
    system = database.get_column_family("system")
    rows = dict(system.items())
    del system
    database.close()
    return rows, names


def aside(directory: Path) -> list[Path]:
    return list(directory.glob("store.damaged*"))


def test_the_old_store_holds_what_a_migration_may_lose(old: tuple[Path, dict[str, Any]]):
    _, expected = old
    shards = expected["shards"].values()
    assert expected["format"] == 4 and len(expected["shards"]) == 3 and expected["remembered"]
    assert any(found["checkpoint"] and found["entries"][0]["base"] > 0 for found in shards), "a trim"
    assert any(found["dropped"] and not all(entry["held"] for entry in found["entries"]) for found in shards)
    assert {"DATA", "EPOCH_START", "POSITION"} <= {entry["kind"] for found in shards for entry in found["entries"]}
    assert ARCHIVE.stat().st_size < 200_000


def test_an_old_store_opens_with_everything_and_is_migrated_once(
    old: tuple[Path, dict[str, Any]], caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO")
    directory, expected = old
    before, _ = look(directory)
    assert before[b"format"] == b"4"
    for _ in range(2):
        store = open_store(directory, expected["node"])
        check(store, expected)
        store.close()
    assert ["the store was migrated"] == [r.message for r in caplog.records if "migrated" in r.message]
    after, names = look(directory)
    assert after[b"format"] == str(STORE_FORMAT).encode()
    assert names == {family.name for family in FAMILIES}
    assert len(before) == len(after), "every key is there once, under its old or its new name"
    assert {*before.values()} - {b"4"} == {*after.values()} - {b"5"}
    assert not aside(directory)


def test_the_cores_of_an_old_store_go_on_where_they_were(old: tuple[Path, dict[str, Any]]):
    directory, expected = old
    store, core = recover(directory, expected["node"], Limits(), families=WITH_TOYS)
    check(store, expected)
    log = getattr(core, "log", core)
    assert core.me == (expected["node"], expected["incarnation"])
    for number, found in expected["shards"].items():
        status = log.status(ShardId(int(number)))
        assert status["first"] == found["entries"][0]["base"]
        assert int(status["head"].partition(":")[2]) >= found["entries"][-1]["base"]
    assert [] == store.rows.scan("toys", b"", None, 9)
    store.close()
    assert look(directory)[1] == {family.name for family in WITH_TOYS}


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[4])
from test_store_formats import WITH_TOYS
from tidemark_node.store import Store, open_store

def dies(method, when, number):
    wrapped, calls = getattr(Store, method), []
    def call(*arguments):
        calls.append(1)
        if when == "before" and len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        result = wrapped(*arguments)
        if when == "after" and len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(Store, method, call)

method, when, number = sys.argv[3].split()
dies(method, when, int(number))
open_store(Path(sys.argv[1]), sys.argv[2], families=WITH_TOYS)
"""


def killed(directory: Path, node: str, point: str) -> None:
    """Open the store in another process, which dies at `point`."""
    arguments = [str(directory), node, point, str(Path(__file__).parent)]
    result = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.returncode == -signal.SIGKILL, result.stderr


@pytest.mark.parametrize("point", [
    "_identify before 1", "_write before 1", "_write after 1", "sync before 1", "sync after 1", "_create before 1",
    "_create after 1", "_create after 2",
])
def test_a_kill_at_any_point_of_a_migration_loses_nothing(old: tuple[Path, dict[str, Any]], point: str):
    directory, expected = old
    killed(directory, expected["node"], point)
    rows, _ = look(directory)
    old_keys = [key for key in rows if key.startswith((b"state/", b"checkpoint/", b"dropped/"))]
    suffix = {len(key.partition(b"/")[2]) for key in old_keys}
    assert suffix == ({8} if rows[b"format"] == b"4" else {9}), "all keys are of one format"
    store = open_store(directory, expected["node"], families=WITH_TOYS)
    check(store, expected)
    assert [] == store.rows.scan("toys", b"", None, 9) == store.rows.scan("numbers", b"", None, 9)
    store.close()
    assert not aside(directory)


@pytest.mark.parametrize("left", [0.0, 0.1, 0.5, 0.99])
def test_a_migration_whose_write_was_torn_is_done_again(old: tuple[Path, dict[str, Any]], left: float):
    """A power cut, where a kill leaves what the system still holds: a part of the write is on the disk."""
    directory, expected = old
    killed(directory, expected["node"], "_write after 1")
    log = max((directory / "store").glob("*.log"))
    with log.open("r+b") as torn:
        torn.truncate(int(log.stat().st_size * left))
    assert look(directory)[0][b"format"] == b"4"
    store = open_store(directory, expected["node"])
    check(store, expected)
    store.close()
    assert not aside(directory)


class FailsOnce(Faults):
    """The `number`-th write or sync fails."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__()
        self.kind, self.left = kind, number

    def check_write(self) -> None:
        self._count("write")

    def check_sync(self) -> None:
        self._count("sync")

    def _count(self, kind: str) -> None:
        if kind == self.kind:
            self.left -= 1
            if self.left == 0:
                raise OSError(28, "No space left on device")


@pytest.mark.parametrize("faults", [FailsOnce("write", 1), FailsOnce("write", 2), FailsOnce("sync", 1)])
def test_a_disk_that_fails_the_migration_is_typed_and_the_next_start_succeeds(
    old: tuple[Path, dict[str, Any]], faults: Faults
):
    directory, expected = old
    with pytest.raises(StoreFailed, match="No space left") as caught:
        open_store(directory, expected["node"], faults)
    assert caught.value.no_space
    store = open_store(directory, expected["node"])
    check(store, expected)
    store.close()
    assert not aside(directory)


def test_an_old_store_of_another_node_is_refused_and_stays_old(old: tuple[Path, dict[str, Any]]):
    directory, expected = old
    before = look(directory)
    with pytest.raises(StoreRefused, match=f"belongs to node '{expected['node']}', not to 'stranger'"):
        open_store(directory, "stranger", families=WITH_TOYS)
    assert before == look(directory)


@pytest.mark.parametrize(("stored", "advice"), [
    (b"6", "newer release: start the node with the release that wrote it, or a newer one"),
    (b"3", "start the node with the release that wrote it, or give the node a new data directory"),
    (b"two", "start the node with the release that wrote it"),
])
def test_a_format_that_is_not_known_is_refused_with_advice_and_nothing_changes(
    tmp_path: Path, stored: bytes, advice: str
):
    store = open_store(tmp_path, "a")
    store._families["system"][b"format"] = stored
    store.close()
    before = look(tmp_path)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=advice) as caught:
            open_store(tmp_path, "a", families=WITH_TOYS)
        assert f"format {stored.decode()}, this release reads 5 and migrates 4" in str(caught.value)
    assert before == look(tmp_path), "no family was created, no row changed"
    assert not aside(tmp_path)


# --- what a newer release wrote into a store of this format -----------------------------------------------

NEWER = Limits(extra_folds=(Tally,))
"""The limits of a release with one more fold."""


def with_checkpoint(expected: dict[str, Any]) -> ShardId:
    return next(ShardId(int(number)) for number, found in expected["shards"].items() if found["checkpoint"])


def write(directory: Path, node: str, shard: ShardId, *writes: Write) -> None:
    store = open_store(directory, node)
    store.apply([Persist(of_shard(shard), writes)])
    store.sync()
    store.close()


def test_a_release_without_a_fold_of_the_store_refuses_it_and_the_newer_one_goes_on(old: tuple[Path, dict[str, Any]]):
    directory, expected = old
    node, shard, tally = expected["node"], with_checkpoint(expected), Tally()
    tally.counted[b"p" * 16] = 7
    plain = Checkpoint.decode(bytes.fromhex(expected["shards"][str(int(shard))]["checkpoint"]))
    checkpoint = plain._replace(folds=(*plain.folds, tally))
    write(directory, node, shard, PutCheckpoint(checkpoint.encode()))
    before = look(directory)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=r"newer release wrote.*start the node with that release") as caught:
            recover(directory, node, Limits())
        assert "b'toy1'" in str(caught.value) and "nothing was changed" in str(caught.value)
        assert before == look(directory) and not aside(directory)
    store, core = recover(directory, node, NEWER)
    assert core.me == (node, expected["incarnation"])
    assert 7 <= core.log.shards[shard].replica.log.fold(Tally).counted[b"p" * 16]
    store.close()


def test_a_fold_whose_section_has_a_new_tag_is_no_damage(old: tuple[Path, dict[str, Any]]):
    """The section that this release needs is missing, for a newer release writes another in its place."""
    directory, expected = old
    node, shard = expected["node"], with_checkpoint(expected)
    data = Checkpoint.decode(bytes.fromhex(expected["shards"][str(int(shard))]["checkpoint"])).encode()
    tag = FOLDS[-1].tag
    assert data.count(tag) == 1
    write(directory, node, shard, PutCheckpoint(data.replace(tag, b"prd2")))
    before = look(directory)
    with pytest.raises(StoreRefused, match=r"b'prd2'"):
        recover(directory, node, Limits())
    assert before == look(directory) and not aside(directory)


def behind_the_log(directory: Path, node: str, shard: ShardId, kind: int) -> PutEntry:
    """Return the write of an entry right behind a shard's log."""
    store = open_store(directory, node)
    last = list(store.headers(shard, 0))[-1]
    store.close()
    return PutEntry(control(
        kind, b"", epoch=last.epoch, prev=last.id, prev_chain=last.chain, logged_ms=last.logged_ms))


def test_a_release_that_does_not_know_the_kind_of_an_entry_refuses_the_store(old: tuple[Path, dict[str, Any]]):
    directory, expected = old
    node, shard = expected["node"], with_checkpoint(expected)
    write(directory, node, shard, behind_the_log(directory, node, shard, 99))
    before = look(directory)
    for _ in range(2):
        with pytest.raises(StoreRefused, match=r"newer release wrote.*kind 99.*start the node with that release"):
            recover(directory, node, Limits())
        assert before == look(directory) and not aside(directory)


def test_a_replica_state_of_a_newer_format_is_no_damage(old: tuple[Path, dict[str, Any]]):
    directory, expected = old
    node, shard = expected["node"], with_checkpoint(expected)
    write(directory, node, shard, PutState(b"[6,1,1,{}]"))
    with pytest.raises(StoreRefused, match=r"newer release wrote.*replica state has format 6"):
        recover(directory, node, Limits())
    assert not aside(directory)


def test_a_damaged_header_of_an_unknown_kind_is_damage(old: tuple[Path, dict[str, Any]]):
    directory, expected = old
    node, shard = expected["node"], with_checkpoint(expected)
    put = behind_the_log(directory, node, shard, 99)
    damaged = put.entry._replace(header=put.entry.header[:-1] + bytes((put.entry.header[-1] ^ 1,)))
    write(directory, node, shard, PutEntry(damaged))
    store, core = recover(directory, node, Limits())
    assert core.me.incarnation != expected["incarnation"] and not core.log.shards
    store.close()
    assert len(aside(directory)) == 1
