"""Backups of keyspaces against a fake cluster: what of a broken run is kept, which damage is found, what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import grpc
import pyarrow as pa
import pytest
import tidemark
from fake_cluster import FakeCluster
from fake_keyspaces import FakeKeyspace
from tidemark import backup, errors
from tidemark.backup import keyspace_taking
from tidemark.backup.cell_rows import CELL_SCHEMA
from tidemark_core.optimistic.archive import Archived, archived
from tidemark_core.optimistic.cells import ElementCell, Meta, Place, Row, Sort, StringCell, encode_row
from tidemark_core.optimistic.stamps import Actor, Stamp

from tests.waiting import until

ONE, TWO = Actor("n1", b"1" * 8), Actor("n2", b"2" * 8)


def stamp(ms: int, actor: Actor = ONE) -> Stamp:
    return Stamp(ms, 0, *actor)


def rows() -> dict[Place, Row]:
    """Forty Strings, a delete, an element of two runs and a clear."""
    return {
        **{Place(Sort.STRING, b"key %d" % n): StringCell(stamp(100 + n), False, 0, b"value %d" % n) for n in range(40)},
        Place(Sort.STRING, b"gone"): StringCell(stamp(200), True, 0, b""),
        Place(Sort.ELEMENT, b"set", b"e"): {
            ONE: ElementCell(1, False, stamp(300), 0, b""), TWO: ElementCell(4, True, stamp(301, TWO), 0, b"")},
        Place(Sort.META, b"set"): Meta(stamp(250), stamp(250)),
    }


CELLS = 40 + 1 + 2 + 1


class Setup(NamedTuple):
    """A cluster with the keyspaces `carts`, which is full, and `copy`, which is empty and has other ranges."""

    cluster: FakeCluster
    client: tidemark.Client
    carts: FakeKeyspace
    copy: FakeKeyspace


@pytest.fixture
async def setup(connect_to) -> AsyncIterator[Setup]:
    cluster, client = await connect_to(nodes=3, shards=1)
    carts, copy = cluster.add_keyspace("carts", 4), cluster.add_keyspace("copy", 2)
    carts.cells = rows()
    yield Setup(cluster, client, carts, copy)


async def small(setup: Setup, directory: Path) -> backup.Backup:
    """Take a backup with a file for each page."""
    return await backup.take_keyspace(setup.client, "carts", directory, file_bytes=1)


def files_of(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*.arrow"))}


@pytest.fixture
async def made(setup: Setup, tmp_path: Path) -> Path:
    await small(setup, tmp_path / "made")
    return tmp_path / "made"


async def test_d82_a_backup_is_arrow_files_and_a_manifest_with_floors(setup: Setup, tmp_path: Path) -> None:
    setup.carts.floor_ms = 90
    done: list[tuple[int, int]] = []
    made = await backup.take_keyspace(
        setup.client, "carts", tmp_path, on_ranges=lambda *progress: done.append(progress))
    assert [(n, 4) for n in range(1, 5)] == done
    document = json.loads((tmp_path / "manifest.json").read_bytes())
    assert ("Keyspace", "carts", CELLS) == (document["kind"], document["keyspace"], document["count"])
    assert {"keyspaceId": setup.carts.keyspace_id, "ranges": 4} == document["spec"]
    assert [(index, 90) for index in range(4)] == [(each["range"], each["floor_ms"]) for each in document["ranges"]]
    found = []
    for path in tmp_path.rglob("range-0000?/*.arrow"):
        table = pa.ipc.open_file(str(path)).read_all()
        assert CELL_SCHEMA == table.schema
        found += map(Archived, table["place"].to_pylist(), table["cell"].to_pylist())
    assert archived(rows()) == sorted(found, key=lambda cell: cell.mark)
    assert backup.verify(tmp_path).encode() == made.manifest.encode()


async def test_d83_a_restore_gives_the_same_cells_and_a_second_one_changes_nothing(setup: Setup, made: Path) -> None:
    restored = await backup.restore_keyspace(setup.client, made, "copy")
    assert (CELLS, {}, []) == (restored.cells, restored.refused, restored.shown)
    assert rows() == setup.copy.cells
    with pytest.raises(backup.KeyspaceNotEmpty):
        await backup.restore_keyspace(setup.client, made, "copy")
    await backup.restore_keyspace(setup.client, made, "copy", resume=True)
    assert rows() == setup.copy.cells


async def test_d83_what_a_floor_refuses_is_counted_and_named(setup: Setup, made: Path) -> None:
    setup.copy.floor_ms = 200
    heard: list[tidemark.RefusedCell] = []
    restored = await backup.restore_keyspace(setup.client, made, "copy", on_refused=heard.append)
    assert (CELLS, {"below": 41}) == (restored.cells, restored.refused) and heard == restored.shown
    assert {(b"gone", None, "below"), *((b"key %d" % n, None, "below") for n in range(40))} == {
        (each.key, each.element, each.outcome) for each in heard}
    assert {Place(Sort.ELEMENT, b"set", b"e"), Place(Sort.META, b"set")} == set(setup.copy.cells)


async def test_d83_a_torn_file_is_refused_by_name_and_nothing_is_written(setup: Setup, made: Path) -> None:
    name = next(iter(files_of(made)))
    (made / name).write_bytes((made / name).read_bytes()[:-7])
    with pytest.raises(backup.BackupDamaged, match=name):
        backup.verify(made)
    with pytest.raises(backup.BackupDamaged, match=name):
        await backup.restore_keyspace(setup.client, made, "copy")
    assert {} == setup.copy.cells


async def test_a_cell_that_is_none_is_found_though_all_checksums_are_right(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tidemark.Keyspace.cells

    async def spoiled(self, index, *arguments, **options):
        page = await real(self, index, *arguments, **options)
        wrong = encode_row(StringCell(stamp(0), False, 0, b"v"))
        return tidemark.CellsPage(tuple(each._replace(row=wrong) if each.place == b"\1gone" else each
                                        for each in page.cells), page.next, page.floor_ms)

    monkeypatch.setattr(tidemark.Keyspace, "cells", spoiled)
    await small(setup, tmp_path / "b")
    with pytest.raises(backup.BackupDamaged, match=r"range-0000./000000.arrow cannot be read: a cell of range"):
        backup.verify(tmp_path / "b")


async def test_an_interrupted_backup_goes_on_and_writes_a_damaged_file_again(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = await small(setup, tmp_path / "whole")
    real, calls = tidemark.Keyspace.cells, []

    async def breaking(self, index, first=b"", **options):
        calls.append((index, first))
        if index == 3:
            raise errors.Unavailable("it broke")
        return await real(self, index, first, **{**options, "page_rows": 3})

    monkeypatch.setattr(keyspace_taking, "SAVE_S", 0.0)
    monkeypatch.setattr(keyspace_taking, "RANGES_AT_ONCE", 1)
    monkeypatch.setattr(tidemark.Keyspace, "cells", breaking)
    with pytest.raises(errors.Unavailable):
        await small(setup, tmp_path / "b")
    kept = files_of(tmp_path / "b")
    damaged = "range-00001/000001.arrow"
    (tmp_path / "b" / damaged).write_bytes(b"torn")
    with pytest.raises(backup.FolderRefused) as caught:
        await backup.restore_keyspace(setup.client, tmp_path / "b", "copy")
    assert "BACKUP_UNFINISHED" == caught.value.reason
    monkeypatch.setattr(tidemark.Keyspace, "cells", real)
    notes: list[str] = []
    made = await backup.take_keyspace(
        setup.client, "carts", tmp_path / "b", file_bytes=1, on_note=notes.append)
    assert whole.manifest.content == made.manifest.content
    assert 1 < made.kept_files < len(kept) and "are damaged and written again" in notes[0]
    assert kept["range-00000/000000.arrow"] == files_of(tmp_path / "b")["range-00000/000000.arrow"]
    assert made.fetched < CELLS
    await backup.restore_keyspace(setup.client, tmp_path / "b", "copy")
    assert rows() == setup.copy.cells


async def test_folders_of_another_kind_or_keyspace_are_refused(setup: Setup, made: Path, tmp_path: Path) -> None:
    setup.cluster.add_documents("settings", 1)
    await until(lambda: setup.client.routing.find("settings"))
    await backup.take(setup.client, "settings", tmp_path / "documents")

    async def refused(work) -> str:
        with pytest.raises(backup.FolderRefused) as caught:
            await work
        return str(caught.value.reason)

    assert "OTHER_BACKUP" == await refused(backup.restore_keyspace(setup.client, tmp_path / "documents", "copy"))
    assert "OTHER_BACKUP" == await refused(backup.restore(setup.client, made, "settings"))
    assert "OTHER_BACKUP" == await refused(
        backup.take(setup.client, "settings", tmp_path / "more", since=made))
    assert "BACKUP_EXISTS" == await refused(small(setup, made))
    (made / "manifest.json").rename(made / "unfinished.json")
    assert "OTHER_BACKUP" == await refused(backup.take_keyspace(setup.client, "copy", made))
    again = setup.cluster.add_keyspace("carts", 4)
    await until(lambda: setup.client.routing.keyspace("carts").keyspace_id == again.keyspace_id)
    assert "OTHER_BACKUP" == await refused(small(setup, made))


@pytest.mark.parametrize(("change", "said"), [
    (lambda part: part.update(range=-1), "range is -1"),
    (lambda part: part.update(floor_ms=-1), "floor_ms is -1"),
    (lambda part: part.update(count=0), "count or digest is not the sum of its files"),
    (lambda part: part["files"][0].update(path="shard-00000/000000.arrow"), "is not a file of range 0"),
    (lambda part: part["files"][0].update(path="../0/000000.arrow"), "is not a file of range 0"),
    (lambda part: part["files"][0].update(last_key="00" * 9_000), "last_key has 18000 characters"),
])
async def test_a_manifest_that_is_wrong_is_refused_by_field(setup: Setup, made: Path, change, said: str) -> None:
    document = json.loads((made / "manifest.json").read_bytes())
    change(document["ranges"][0])
    (made / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(backup.BackupDamaged, match=said):
        backup.verify(made)


async def test_d83_an_import_is_sent_again_until_its_time_is_over(setup: Setup, made: Path) -> None:
    for node in setup.cluster.nodes.values():
        node.keyspaces.lost.append(grpc.StatusCode.UNAVAILABLE)
        node.keyspaces.outcomes.append("unknown")
    ks = setup.client.keyspace("copy")
    assert [] == await ks.import_cells(archived(rows()))
    assert rows() == setup.copy.cells
    for node in setup.cluster.nodes.values():
        node.keyspaces.outcomes.extend(["unknown"] * 1_000)
    with pytest.raises(errors.WriteUnknown, match=r"too few owners stored the import of key .* \(outcome 'unknown'\)"):
        await ks.import_cells(archived(rows()), timeout_s=0.3)


async def test_wrong_arguments_are_refused(setup: Setup) -> None:
    ks = setup.client.keyspace("copy")
    for call, field in (
            (ks.cells(2), "index"), (ks.cells(0, b"\7"), "first"), (ks.cells(0, page_rows=0), "page_rows"),
            (ks.import_cells([Archived(b"\7", b"")]), "cells[0]")):
        with pytest.raises(errors.InvalidArgument) as caught:
            await call
        assert field == caught.value.field
    with pytest.raises(errors.GroupReplaced):
        await ks.cells(0, keyspace_id=99)


async def test_d83_a_request_has_cells_of_one_range_and_is_bounded(setup: Setup) -> None:
    many: dict[Place, Row] = {
        Place(Sort.STRING, b"large %d" % n): StringCell(stamp(9), False, 0, bytes(400_000)) for n in range(9)}
    many |= {Place(Sort.STRING, b"small %d" % n): StringCell(stamp(9), False, 0, b"") for n in range(2_000)}
    await setup.client.keyspace("copy").import_cells(archived(many))
    sent = [each for node in setup.cluster.nodes.values() for each in node.keyspaces.requests]
    assert many == setup.copy.cells
    assert all(each.ByteSize() < 1_100_000 and len(each.cells) <= 500 for each in sent)
