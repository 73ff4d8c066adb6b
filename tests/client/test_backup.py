"""Backups of documents: what is written, what of a broken run is kept, which damage is found, what a restore proves."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
import tidemark
from fake_cluster import FakeCluster, FakeShard
from tidemark import Documents, Put, backup, errors
from tidemark.backup import taking
from tidemark.backup.document_rows import content_of
from tidemark.backup.files import FileWriter
from tidemark.backup.folder import Folder
from tidemark.backup.in_thread import in_thread
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.pinning import Ended, encode_unpin

from tests.waiting import until

COUNT = 60


class Setup(NamedTuple):
    """A cluster with the documents `settings` of three shards and `copy` of two, and a client."""

    cluster: FakeCluster
    client: tidemark.Client
    settings: Documents
    copy: Documents
    shards: list[FakeShard]

    async def content(self, documents: Documents) -> dict[bytes, bytes]:
        return {each.key: each.value async for each in documents.scan()}


@pytest.fixture
async def setup(connect_to) -> AsyncIterator[Setup]:
    cluster, client = await connect_to(nodes=3, shards=1)
    shards = cluster.add_documents("settings", 3)
    for shard in (*shards, *cluster.add_documents("copy", 2)):
        shard.logged_ms = time.time_ns() // 1_000_000
    await until(lambda: client.routing.find("copy"))
    async with client.documents("settings") as settings, client.documents("copy") as copy:
        await settings.put_many([Put(b"key-%03d" % n, b"value %d" % n) for n in range(COUNT)])
        await settings.delete(b"key-007")
        yield Setup(cluster, client, settings, copy, shards)


def pins(setup: Setup) -> list[str]:
    return [name for shard in setup.shards for name in shard.documents.through(-1).summary.pins]


def files_of(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*.arrow"))
    }


async def small(setup: Setup, directory: Path, **options: Any) -> backup.Backup:
    """Take a backup whose files have few rows each."""
    return await backup.take(setup.client, "settings", directory, **{"file_bytes": 1, **options})


def edit(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = directory / "manifest.json"
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


# --- taking


async def test_u70_a_backup_has_the_state_of_its_pin_while_puts_go_on(setup: Setup, tmp_path: Path):
    before = await setup.content(setup.settings)
    stop = asyncio.Event()

    async def overwrite() -> int:
        number = 0
        while not stop.is_set():
            await setup.settings.put(b"key-%03d" % (number % COUNT), b"changed %d" % number)
            number += 1
        return number

    pinned = asyncio.Event()
    writing: list[asyncio.Task[int]] = []

    def on_rows(done: int, total: int) -> None:
        if not pinned.is_set():
            pinned.set()
            writing.append(asyncio.create_task(overwrite()))

    made = await small(setup, tmp_path / "b", on_rows=on_rows)
    stop.set()
    assert await writing[0] > 0
    assert made.manifest.count == len(before) == COUNT - 1
    assert not pins(setup)
    restored = await backup.restore(setup.client, tmp_path / "b", "copy")
    assert await setup.content(setup.copy) == before
    assert (restored.documents, restored.written, restored.expired) == (COUNT - 1, COUNT - 1, 0)
    assert restored.content == made.manifest.content


async def test_a_backup_is_arrow_files_and_a_manifest(setup: Setup, tmp_path: Path):
    await setup.settings.put(b"brief", b"gone soon", ttl_s=1000)
    made = await backup.take(setup.client, "settings", tmp_path)
    assert sorted(each.name for each in tmp_path.iterdir()) == [
        ".lock", "manifest.json", "shard-00000", "shard-00001", "shard-00002"]
    rows = {}
    for path in tmp_path.rglob("*.arrow"):
        table = pa.ipc.open_file(str(path)).read_all()
        assert table.schema == backup.SCHEMA
        assert table["key"].to_pylist() == sorted(table["key"].to_pylist())
        rows |= {row["key"]: row for row in table.to_pylist()}
    assert len(rows) == COUNT
    assert rows[b"key-003"]["value"] == b"value 3" and rows[b"key-003"]["expires_at"] is None
    expires = rows[b"brief"]["expires_at"]
    assert expires.tzinfo is not None and expires > datetime.datetime.now(datetime.UTC)
    document = json.loads((tmp_path / "manifest.json").read_bytes())
    assert (document["format"], document["version"], document["group"]) == ("tidemark-backup", 1, "settings")
    described = await setup.settings.describe()
    for shard in document["shards"]:
        assert int(shard["digest"], 16) == int.from_bytes(described[shard["shard"]].digest, "big")
        assert shard["count"] == described[shard["shard"]].count == sum(file["rows"] for file in shard["files"])
    content = sum([content_of(each) async for each in setup.settings.scan()]) % (1 << 128)
    assert int(document["content"], 16) == content == made.manifest.content
    assert backup.verify(tmp_path).encode() == made.manifest.encode()


async def test_u73_rows_that_differ_from_the_pin_fail_the_backup(setup: Setup, tmp_path: Path, monkeypatch):
    """One value changes on its way to the file: the digest of the rows is not the pin's."""
    write = FileWriter.write

    def changed(self: FileWriter, documents: list[tidemark.Document]) -> None:
        write(self, [
            tidemark.Document(each.key, b"other", each.seqno, each.shard) if each.key == b"key-010" else each
            for each in documents
        ])

    monkeypatch.setattr(FileWriter, "write", changed)
    with pytest.raises(backup.BackupMismatch, match="another digest than its pin") as caught:
        await small(setup, tmp_path)
    assert caught.value.shard == setup.settings.shard_of(b"key-010")
    assert not (tmp_path / "manifest.json").exists()
    assert not pins(setup)


async def test_a_row_that_is_lost_fails_the_backup(setup: Setup, tmp_path: Path, monkeypatch):
    write = FileWriter.write

    def lossy(self: FileWriter, documents: list[tidemark.Document]) -> None:
        write(self, documents[:1])

    monkeypatch.setattr(FileWriter, "write", lossy)
    with pytest.raises(backup.BackupMismatch, match="its pin has"):
        await small(setup, tmp_path)


async def interrupted(setup: Setup, directory: Path, files: int = 5, **options: Any) -> None:
    """Take a backup that is cancelled once some files are complete."""

    def on_rows(done: int, total: int) -> None:
        record = json.loads((directory / "unfinished.json").read_bytes())
        if sum(len(shard["files"]) for shard in record["shards"]) >= files:
            task.cancel()

    task = asyncio.create_task(small(setup, directory, on_rows=on_rows, **options))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_interrupted_backup_goes_on_at_the_same_cut(setup: Setup, tmp_path: Path):
    before = await setup.content(setup.settings)
    await interrupted(setup, tmp_path)
    kept = files_of(tmp_path)
    with pytest.raises(backup.FolderRefused) as caught:
        backup.verify(tmp_path)
    assert caught.value.reason == "BACKUP_UNFINISHED"
    await setup.settings.put(b"key-000", b"later")
    await setup.settings.put(b"new", b"later")
    made = await small(setup, tmp_path)
    assert made.kept_files >= 5 and "goes on with" in made.notes[0]
    found = files_of(tmp_path)
    assert sum(found.get(path) == digest for path, digest in kept.items()) >= 5
    await backup.restore(setup.client, tmp_path, "copy")
    assert await setup.content(setup.copy) == before
    assert not pins(setup)


async def test_work_on_files_ends_before_a_cancelled_caller_does():
    """A thread that wrote on would meet the next run in the same folder."""
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(10)
        ended.set()

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 10)
    for _ in range(3):
        task.cancel()
        await asyncio.wait((task,), timeout=0.02)
        assert not task.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_a_damaged_file_of_an_interrupted_run_is_written_again(setup: Setup, tmp_path: Path):
    await interrupted(setup, tmp_path)
    record = json.loads((tmp_path / "unfinished.json").read_bytes())
    path = tmp_path / next(shard["files"][0]["path"] for shard in record["shards"] if shard["files"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    made = await small(setup, tmp_path)
    assert "damaged and written again" in made.notes[0]
    backup.verify(tmp_path)


async def test_u70_a_backup_whose_pin_has_ended_begins_again(setup: Setup, tmp_path: Path):
    await interrupted(setup, tmp_path)
    name = pins(setup)[0]
    await setup.settings.unpin(name)
    await setup.settings.put(b"new", b"seen by the second pin")
    made = await small(setup, tmp_path)
    assert made.kept_files == 0 and made.notes == ("the pin of the interrupted run has ended: the backup begins again",)
    assert made.manifest.count == COUNT
    backup.verify(tmp_path)


async def test_u72_a_pin_that_ends_in_mid_run_fails_the_backup(setup: Setup, tmp_path: Path):
    def on_rows(done: int, total: int) -> None:
        for shard in setup.shards:
            for name in list(shard.documents.through(-1).summary.pins):
                shard.documents.control(Kind.UNPIN, encode_unpin(name, Ended.BYTES))
                shard.documents.breaks.append(1)

    for shard in setup.shards:
        shard.documents.page_max = 1
        shard.documents.breaks.append(3)
    with pytest.raises(errors.NotPinned):
        await small(setup, tmp_path, on_rows=on_rows)
    assert not (tmp_path / "manifest.json").exists()


async def test_the_lease_is_renewed_while_the_backup_runs(setup: Setup, tmp_path: Path, monkeypatch):
    """The copy waits for renewals: without them it never ends."""
    renewals = asyncio.Event()
    renew = tidemark.Pin.renew

    async def counted(self: tidemark.Pin, ttl_s: float) -> None:
        await renew(self, ttl_s)
        renewals.set()

    copy = taking._Run._copy

    async def held(self: Any, pin: tidemark.Pin) -> None:
        await asyncio.wait_for(renewals.wait(), 10)
        await copy(self, pin)

    monkeypatch.setattr(taking, "LEASE_MIN_S", 0.1)
    monkeypatch.setattr(tidemark.Pin, "renew", counted)
    monkeypatch.setattr(taking._Run, "_copy", held)
    await small(setup, tmp_path, lease_s=0.3)
    backup.verify(tmp_path)


async def test_folders_that_take_no_backup_are_refused(setup: Setup, tmp_path: Path):
    done = tmp_path / "done"
    await small(setup, done)
    before = files_of(done)
    with pytest.raises(backup.FolderRefused, match="holds a backup already") as caught:
        await small(setup, done)
    assert caught.value.reason == "BACKUP_EXISTS" and files_of(done) == before
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(backup.FolderRefused, match=r"notes\.txt") as caught:
        await small(setup, other)
    assert caught.value.reason == "FOLDER_NOT_EMPTY"
    await interrupted(setup, tmp_path / "half")
    with pytest.raises(backup.FolderRefused) as caught:
        await backup.take(setup.client, "copy", tmp_path / "half")
    assert caught.value.reason == "OTHER_BACKUP"
    with Folder(tmp_path / "half").locked(), pytest.raises(backup.FolderRefused) as caught:
        await small(setup, tmp_path / "half")
    assert caught.value.reason == "BACKUP_BUSY"


async def test_a_log_group_has_no_documents_to_back_up(setup: Setup, tmp_path: Path):
    with pytest.raises(errors.WrongKind):
        await backup.take(setup.client, "orders", tmp_path / "b")
    assert not (tmp_path / "b").exists()


async def test_a_group_without_documents_is_backed_up_and_restored(setup: Setup, tmp_path: Path):
    made = await backup.take(setup.client, "copy", tmp_path)
    assert made.manifest.count == 0 and not files_of(tmp_path)
    setup.cluster.add_documents("third", 1)
    await until(lambda: setup.client.routing.find("third"))
    assert (await backup.restore(setup.client, tmp_path, "third")).documents == 0


# --- with an earlier backup


def said_to_have_changed(monkeypatch: pytest.MonkeyPatch, setup: Setup, *keys: bytes) -> None:
    """Let the change streams name these keys."""

    async def changed_keys(*_: object) -> dict[int, set[bytes]]:
        found: dict[int, set[bytes]] = {0: set(), 1: set(), 2: set()}
        for key in keys:
            found[setup.settings.shard_of(key)].add(key)
        return found

    monkeypatch.setattr(taking, "changed_keys", changed_keys)


CHANGES = (b"a-new", b"key-000", b"key-030", b"key-031", b"key-059", b"z-new", b"key-040", b"never-was")


async def change(setup: Setup) -> None:
    """Put, replace and delete some documents."""
    await setup.settings.put_many([Put(key, b"second") for key in CHANGES[:6]])
    await setup.settings.delete(b"key-040")


@pytest.mark.parametrize("get_keys", [1, 2, 100])
async def test_an_earlier_backup_gives_what_did_not_change(setup: Setup, tmp_path: Path, monkeypatch, get_keys: int):
    monkeypatch.setattr(taking, "GET_KEYS", get_keys)
    await small(setup, tmp_path / "first")
    await change(setup)
    said_to_have_changed(monkeypatch, setup, *CHANGES, b"key-010")
    made = await small(setup, tmp_path / "second", since=tmp_path / "first")
    assert made.fetched == 7 and made.manifest.count == COUNT
    for path in (tmp_path / "first").rglob("*.arrow"):
        path.unlink()
    backup.verify(tmp_path / "second")
    await backup.restore(setup.client, tmp_path / "second", "copy")
    assert await setup.content(setup.copy) == await setup.content(setup.settings)


async def test_u73_a_change_that_was_not_named_fails_the_backup(setup: Setup, tmp_path: Path, monkeypatch):
    await small(setup, tmp_path / "first")
    await change(setup)
    said_to_have_changed(monkeypatch, setup, *CHANGES[1:])
    with pytest.raises(backup.BackupMismatch):
        await small(setup, tmp_path / "second", since=tmp_path / "first")
    said_to_have_changed(monkeypatch, setup, *(key for key in CHANGES if key != b"key-030"))
    with pytest.raises(backup.BackupMismatch, match="another digest"):
        await small(setup, tmp_path / "third", since=tmp_path / "first")


async def test_a_broken_run_with_an_earlier_backup_goes_on(setup: Setup, tmp_path: Path, monkeypatch):
    await small(setup, tmp_path / "first")
    await change(setup)
    said_to_have_changed(monkeypatch, setup, *CHANGES)
    await interrupted(setup, tmp_path / "second", since=tmp_path / "first")
    made = await small(setup, tmp_path / "second", since=tmp_path / "first")
    assert made.kept_files >= 5
    backup.verify(tmp_path / "second")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"lineage": ""}, "another history"), ({"lineage": "00" * 16}, "another history"),
        ({"lineage": "ab" * 16}, "another history"), ({"epoch": 999}, "history is not the shard's"),
    ],
)
async def test_u57_everything_is_read_where_the_changes_cannot_be_had(
    setup: Setup, tmp_path: Path, fields: dict[str, Any], why: str
):
    await small(setup, tmp_path / "first")
    edit(tmp_path / "first", lambda document: document["shards"][1].update(fields))
    await change(setup)
    made = await small(setup, tmp_path / "second", since=tmp_path / "first")
    assert made.fetched == COUNT and why in made.notes[0]
    backup.verify(tmp_path / "second")


async def test_an_earlier_backup_of_another_group_or_damaged_is_refused(setup: Setup, tmp_path: Path, monkeypatch):
    await backup.take(setup.client, "copy", tmp_path / "copy")
    with pytest.raises(backup.FolderRefused) as caught:
        await small(setup, tmp_path / "second", since=tmp_path / "copy")
    assert caught.value.reason == "OTHER_BACKUP" and not (tmp_path / "second").exists()
    await small(setup, tmp_path / "first")
    said_to_have_changed(monkeypatch, setup)
    next((tmp_path / "first").rglob("*.arrow")).write_bytes(b"")
    with pytest.raises(backup.BackupDamaged):
        await small(setup, tmp_path / "second", since=tmp_path / "first")
    assert not pins(setup) and not (tmp_path / "second").exists()


# --- verifying


@pytest.fixture
async def made(setup: Setup, tmp_path: Path) -> Path:
    await small(setup, tmp_path / "b")
    return tmp_path / "b"


async def refused_whole(setup: Setup, directory: Path, match: str) -> None:
    """Neither verify nor restore takes the backup, and the group stays empty."""
    with pytest.raises(errors.TidemarkError, match=match) as caught:
        backup.verify(directory)
    with pytest.raises(type(caught.value), match=match):
        await backup.restore(setup.client, directory, "copy")
    assert await setup.content(setup.copy) == {}


async def test_every_flipped_byte_is_found(setup: Setup, made: Path):
    path = min(made.rglob("*.arrow"), key=lambda each: each.stat().st_size)
    whole = path.read_bytes()
    for place in range(0, len(whole), 37):
        path.write_bytes(whole[:place] + bytes((whole[place] ^ 0x20,)) + whole[place + 1:])
        with pytest.raises(backup.BackupDamaged, match="its checksum is not that of the manifest"):
            backup.verify(made)
    await refused_whole(setup, made, "its checksum")


async def test_a_missing_a_cut_and_a_swapped_file_are_named(setup: Setup, made: Path):
    first, second, *_ = sorted((made / "shard-00000").iterdir())
    whole, other = first.read_bytes(), second.read_bytes()
    first.unlink()
    await refused_whole(setup, made, r"shard-00000/000000\.arrow is missing")
    first.write_bytes(whole[:-1])
    await refused_whole(setup, made, r"has \d+ bytes, the manifest says")
    first.write_bytes(other)
    second.write_bytes(whole)
    with pytest.raises(backup.BackupDamaged) as caught:
        backup.verify(made)
    assert len(caught.value.problems) == 2


async def test_rows_are_checked_beside_the_checksum(setup: Setup, made: Path, tmp_path: Path):
    """A manifest that vouches for other rows does not make them the pin's."""
    document = json.loads((made / "manifest.json").read_bytes())
    record = document["shards"][0]["files"][0]
    path = made / record["path"]
    table = pa.ipc.open_file(str(path)).read_all()
    no_values = pa.nulls(len(table), pa.binary())
    for change, match in (
        (lambda: table.slice(1), "other rows than the manifest says"),
        (lambda: table.take(list(range(len(table)))[::-1]), "keys out of order"),
        (lambda: table.drop_columns(["seqno"]), "columns are not those"),
        (lambda: table.set_column(1, table.schema.field(1), no_values), "column value has nulls"),
    ):
        with pa.ipc.new_file(str(path), change().schema) as writer:
            writer.write_table(change())
        vouch(made, record["path"])
        await refused_whole(setup, made, match)
    with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    vouch(made, record["path"])
    await refused_whole(setup, made, "compressed")
    path.write_bytes(b"ARROW1\0\0" + bytes(500))
    vouch(made, record["path"])
    await refused_whole(setup, made, "cannot be read")


def vouch(directory: Path, name: str) -> None:
    """Make the manifest agree with the bytes of a file."""
    from xxhash import xxh3_128_hexdigest

    data = (directory / name).read_bytes()

    def change(document: dict[str, Any]) -> None:
        for shard in document["shards"]:
            for file in shard["files"]:
                if file["path"] == name:
                    document["bytes"] += len(data) - file["bytes"]
                    file |= {"bytes": len(data), "xxh3_128": xxh3_128_hexdigest(data)}

    edit(directory, change)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda d: d.update(version=2), "version 2, this release reads 1"),
        (lambda d: d.update(version="1"), "version is missing or malformed"),
        (lambda d: d.update(format="tar"), "format"),
        (lambda d: d.update(kind="Log"), "kind 'Log'"),
        (lambda d: d["shards"].pop(), "count is not the sum"),
        (lambda d: d["shards"].append(d["shards"][0]), "a shard is there twice"),
        (lambda d: d["shards"][0]["files"].append(d["shards"][0]["files"][0]), "is not the sum of its files"),
        (lambda d: d["shards"][0].update(seqno=-2), "seqno is -2"),
        (lambda d: d["shards"][0].update(digest="00" * 16), "another digest than its pin"),
        (lambda d: d["shards"][0].update(digest="00"), "digest has 1 bytes, not 16"),
        (lambda d: d["shards"][0].update(lineage="00"), "lineage has 1 bytes, not 16"),
        (lambda d: d["shards"][0].update(digest="xyz"), "digest is not hexadecimal"),
        (lambda d: d["shards"][0]["files"][0].update(path="../../etc/passwd"), "not a file of shard 0"),
        (lambda d: d["shards"][0]["files"][0].update(path="/etc/passwd"), "not a file of shard 0"),
        (lambda d: d["shards"][0]["files"][0].update(path="shard-00001/000000.arrow"), "not a file of shard 0"),
        (lambda d: d["shards"][0]["files"][0].update(bytes=1 << 62), "bytes is"),
        (lambda d: d["shards"][0]["files"][0].pop("rows"), "rows is missing"),
        (lambda d: d["shards"][0].update(files={}), "files is missing or malformed"),
        (lambda d: d.update(shards=[[]]), "is no object"),
    ],
)
async def test_a_manifest_that_is_wrong_is_refused_by_field(
    setup: Setup, made: Path, change: Callable[[dict[str, Any]], None], match: str
):
    edit(made, change)
    await refused_whole(setup, made, match)


async def test_a_manifest_that_is_no_manifest_is_refused(setup: Setup, made: Path):
    path = made / "manifest.json"
    for data, match in (
        (b"", "no JSON"), (b"\xff\xfe", "no JSON"), (b"[]", "is no object"), (b"[" * 100_000, "no JSON"),
    ):
        path.write_bytes(data)
        await refused_whole(setup, made, match)
    path.unlink()
    await refused_whole(setup, made, r"has no manifest\.json")


async def test_a_folder_that_is_a_link_takes_a_backup_and_gives_it(setup: Setup, tmp_path: Path):
    (tmp_path / "disk").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk")
    made = await small(setup, link)
    assert (tmp_path / "disk" / "manifest.json").exists()
    assert backup.verify(link) == made.manifest


async def test_a_link_out_of_the_folder_is_refused(setup: Setup, made: Path, tmp_path: Path):
    path = next(made.rglob("*.arrow"))
    path.rename(tmp_path / "elsewhere.arrow")
    path.symlink_to(tmp_path / "elsewhere.arrow")
    await refused_whole(setup, made, "is a symbolic link")


# --- restoring


async def test_a_group_that_is_not_empty_is_refused(setup: Setup, made: Path):
    await setup.copy.put(b"mine", b"stays")
    with pytest.raises(backup.GroupNotEmpty, match="'copy' has 1 documents") as caught:
        await backup.restore(setup.client, made, "copy")
    assert sum(caught.value.counts.values()) == 1 and "new group" in caught.value.advice
    assert await setup.content(setup.copy) == {b"mine": b"stays"}
    with pytest.raises(backup.RestoreMismatch, match="b'mine' is in the group and not in the backup"):
        await backup.restore(setup.client, made, "copy", resume=True)


async def test_an_interrupted_restore_goes_on(setup: Setup, made: Path):
    await setup.copy.put_many([Put(b"key-%03d" % n, b"value %d" % n) for n in (1, 2, 30, 59)])
    done = await backup.restore(setup.client, made, "copy", resume=True)
    assert (done.documents, done.written) == (COUNT - 1, COUNT - 5)
    assert await setup.content(setup.copy) == await setup.content(setup.settings)


async def test_a_resumed_restore_finds_another_value(setup: Setup, made: Path):
    await setup.copy.put(b"key-001", b"other")
    with pytest.raises(backup.RestoreMismatch, match="b'key-001' has another value") as caught:
        await backup.restore(setup.client, made, "copy", resume=True)
    assert caught.value.key == b"key-001"


async def test_a_document_that_the_group_does_not_take_is_found_before_anything_is_written(
    setup: Setup, tmp_path: Path
):
    await setup.settings.put(b"key-large", bytes(5000))
    await small(setup, tmp_path / "b")
    setup.cluster.max_record_bytes = 1024
    setup.cluster.push()
    await until(lambda: setup.copy.document_bytes_max == 1024)
    with pytest.raises(errors.ValueTooLarge, match=r"'copy' takes documents of 1024 bytes, key b'key-large' .* 5009"):
        await backup.restore(setup.client, tmp_path / "b", "copy")
    assert await setup.content(setup.copy) == {}
    setup.cluster.max_record_bytes = 1 << 20
    setup.cluster.push()
    await until(lambda: setup.copy.document_bytes_max > 1024)
    assert (await backup.restore(setup.client, tmp_path / "b", "copy")).written == COUNT


async def test_a_resumed_restore_writes_nothing_beside_documents_of_others(setup: Setup, made: Path):
    await setup.copy.put(b"zzz-not-of-the-backup", b"v")
    with pytest.raises(backup.RestoreMismatch, match="zzz-not-of-the-backup' is in the group and not in the backup"):
        await backup.restore(setup.client, made, "copy", resume=True)
    assert len(await setup.content(setup.copy)) == 1


async def test_a_writer_beside_the_restore_is_found(setup: Setup, made: Path):
    done = asyncio.Event()

    def on_rows(rows: int, total: int) -> None:
        done.set()

    async def disturb() -> None:
        await done.wait()
        await setup.copy.delete(b"key-020")

    task = asyncio.create_task(disturb())
    with pytest.raises(backup.RestoreMismatch, match="b'key-020' is missing in the group"):
        real = backup.restoring._Run.compare

        async def later(self: Any, **options: Any) -> Any:
            await task
            return await real(self, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(backup.restoring._Run, "compare", later)
            await backup.restore(setup.client, made, "copy", on_rows=on_rows)


async def test_a_key_that_is_taken_meanwhile_is_not_overwritten(setup: Setup, made: Path):
    real = backup.restoring._Run.check_empty

    async def then_taken(self: Any, **options: Any) -> None:
        await real(self, **options)
        await setup.copy.put(b"key-020", b"mine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backup.restoring._Run, "check_empty", then_taken)
        with pytest.raises(backup.RestoreMismatch, match="another writer put key b'key-020'"):
            await backup.restore(setup.client, made, "copy")
    found = await setup.copy.get(b"key-020")
    assert found is not None and found.value == b"mine"


async def test_what_is_left_of_a_time_to_live_is_kept(setup: Setup, tmp_path: Path):
    await setup.settings.put(b"brief", b"x", ttl_s=1000)
    source = await setup.settings.get(b"brief")
    await small(setup, tmp_path)
    await backup.restore(setup.client, tmp_path, "copy")
    found = await setup.copy.get(b"brief")
    assert source is not None and found is not None
    assert abs(found.expires_at_ms - source.expires_at_ms) < 60_000


async def test_documents_that_expired_since_are_left_out_and_counted(setup: Setup, tmp_path: Path, monkeypatch):
    await setup.settings.put(b"brief", b"x", ttl_s=1000)
    await small(setup, tmp_path)
    now_ms = backup.restoring._now_ms()
    monkeypatch.setattr(backup.restoring, "_now_ms", lambda: now_ms + 2_000_000)
    done = await backup.restore(setup.client, tmp_path, "copy")
    assert (done.documents, done.expired) == (COUNT - 1, 1)
    assert await setup.copy.get(b"brief") is None


async def test_a_restore_waits_for_a_leader(setup: Setup, made: Path):
    for shard in setup.cluster.groups["copy"].values():
        assert shard.documents is not None
        shard.documents.refusals.append(Refused(Reason.NO_LEADER, "an election"))
    assert (await backup.restore(setup.client, made, "copy")).documents == COUNT - 1
