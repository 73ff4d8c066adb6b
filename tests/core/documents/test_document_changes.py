"""Documents as change streams see them: the failover log beside the summary, batches of the fold, cuts (U54, U56)."""

from __future__ import annotations

import pytest
from tidemark_core.base.effects import SnapshotChunk, SnapshotDescriptor, SnapshotRows
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardKind
from tidemark_core.document_changes import cut_of, failover_key, failover_of, fed, row_of
from tidemark_core.documents.payload import Op as WriteOp
from tidemark_core.documents.payload import Write
from tidemark_core.documents.rows import BYSEQ, DOCS, FAMILIES, SUMMARY, behind, decode_row, doc_key, prefix
from tidemark_core.replication.messages import InstallSnapshot
from tidemark_core.upr.history import Opening
from tidemark_core.upr.messages import Op, Row

from tests.core.documents.desk import Desk
from tests.core.documents.support import DocumentAuthor, delete, put
from tests.core.support import OPERATOR, SHARD, B

LINEAGE, OTHER = b"L" * 16, b"M" * 16


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.lead(lineage=LINEAGE)
    return desk


def scanned(desk: Desk) -> list[Row]:
    """Return the rows of a scan from the beginning."""
    rows = desk.rows
    found = []
    for _, value in rows.scan(BYSEQ, prefix(SHARD), behind(SHARD)):
        stored = rows.get(DOCS, doc_key(SHARD, value[1:]))
        assert stored is not None
        found.append(row_of(value[1:], decode_row(stored)))
    return found


def applied_by_seqno(rows: list[Row]) -> dict[bytes, tuple[int, bytes]]:
    return {row.key: (row.seqno, row.value) for row in rows if row.op is Op.PUT}


def test_u54_the_failover_log_is_stored_with_the_rows_and_outlives_a_crash(desk: Desk) -> None:
    desk.written(put(b"a"))
    desk.crash()
    assert desk.documents.failover.openings == (Opening(1, LINEAGE, -1),)
    head = desk.documents.summary.applied

    desk.lead(2, lineage=OTHER)
    desk.written(put(b"b"))
    kept = desk.documents.failover
    desk.crash()

    assert kept.openings == (Opening(2, OTHER, head), Opening(1, LINEAGE, -1))
    assert desk.documents.failover == failover_of(SHARD, desk.rows) == kept


def test_u54_a_write_that_is_lost_takes_the_failover_log_back(desk: Desk) -> None:
    desk.written(put(b"a"))
    desk.syncs = False
    desk.lead(2, lineage=OTHER)
    desk.crash()

    assert desk.documents.failover.openings == (Opening(1, LINEAGE, -1),)


def test_u54_a_new_member_has_the_failover_log_of_its_snapshot(desk: Desk) -> None:
    desk.written(put(b"a"))
    rows = tuple((family, *row) for family in FAMILIES for row in desk.rows.scan(family, prefix(SHARD), behind(SHARD)))
    author = DocumentAuthor()
    author.entries = list(desk.disk.durable[SHARD].entries)
    for entry in author.entries:
        author.log.append(entry)
    new, head = Desk(), author.log.head
    snapshot = SnapshotDescriptor(2, head, 0, head.offset, 1_000, confirmed=head.offset, kind=ShardKind.DOCUMENTS)
    new.receive(OPERATOR, InstallSnapshot(2, 20, B, snapshot))
    broken = tuple((f, key, b"\1\5" if key == failover_key(SHARD) else value) for f, key, value in rows)
    new.step(SnapshotRows(SHARD, 2, broken, True, True))
    assert new.rows.get(SUMMARY, prefix(SHARD)) is None

    new.receive(OPERATOR, InstallSnapshot(2, 20, B, snapshot))
    for at, row in enumerate(rows):
        new.step(SnapshotRows(SHARD, 2, (row,), at == 0, at == len(rows) - 1))
    new.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))

    assert new.documents.failover == desk.documents.failover
    new.crash()
    assert new.documents.failover == desk.documents.failover


def test_u54_a_shard_without_a_lineage_has_no_history_and_refuses_streams() -> None:
    desk = Desk()
    desk.lead()
    desk.written(put(b"a"))

    cut = cut_of(SHARD, desk.rows)

    assert cut.here is not None and cut.here.applied == -1 and cut.summary is None
    assert not desk.changes, "no batch has a place to name"


def test_u56_batches_of_the_fold_are_what_a_scan_of_the_store_shows(desk: Desk) -> None:
    desk.written(put(b"a", b"1"), put(b"b", b"2"), Write(WriteOp.PUT, b"t", b"3", ttl_ms=500))
    desk.written(put(b"a", b"4"), delete(b"b"), put(b"c", b"5"), put(b"c", b"6"))
    desk.wait(5_000)
    seen: dict[bytes, Row] = {}
    end = -1

    for changes in desk.changes:
        assert changes.since == end, "every batch begins where the one before ended"
        entry = fed(changes)
        end = entry.point.seqno
        assert [row.seqno for row in entry.rows] == sorted({row.seqno for row in entry.rows})
        assert all(changes.since < row.seqno <= end for row in entry.rows), "U59: rows lie in their snapshot"
        seen.update((row.key, row) for row in entry.rows)

    cut = cut_of(SHARD, desk.rows)
    assert cut.here is not None
    assert (cut.here.applied, cut.here.failover.point(end)) == (end, fed(desk.changes[-1]).point)
    assert sorted((row.seqno, row.key, row.op, row.value) for row in seen.values()) == [
        (row.seqno, row.key, row.op, row.value) for row in scanned(desk)
    ]
    assert {key: row.op for key, row in seen.items()} == {
        b"a": Op.PUT, b"b": Op.DELETE, b"c": Op.PUT, b"t": Op.EXPIRE,
    }
    assert cut.summary == fed(desk.changes[-1]).summary


def test_u54_a_damaged_failover_log_is_no_cut(desk: Desk) -> None:
    class Damaged:
        def get(self, family: str, key: bytes) -> bytes | None:
            return b"\1\3short" if key == failover_key(SHARD) else desk.rows.get(family, key)

        scan = desk.rows.scan

    with pytest.raises(RemoteViolation, match="failover log"):
        cut_of(SHARD, Damaged())
