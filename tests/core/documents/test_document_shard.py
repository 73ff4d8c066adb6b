"""Documents on one node: restarts, retries, what time removes, reads and new members (rules U47, U50-U53, U70)."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tidemark_core.base.effects import (
    ClockStepped,
    Delete,
    Put,
    SnapshotChunk,
    SnapshotDescriptor,
    SnapshotFailed,
    SnapshotRows,
    TimerFired,
    Trace,
)
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.errors import FormatTooNew, RemoteViolation
from tidemark_core.base.ids import ShardKind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.document_changes import failover_key
from tidemark_core.document_shard import WHOLE_MS
from tidemark_core.documents import payload
from tidemark_core.documents.checking import check_row
from tidemark_core.documents.payload import Outcome, Verdict, Writes
from tidemark_core.documents.pinning import PINS_MAX
from tidemark_core.documents.reading import get, get_at, scan
from tidemark_core.documents.requests import (
    Level,
    PinDocuments,
    Pinned,
    ReadDocuments,
    ReadGranted,
    UnpinDocuments,
    Unpinned,
    Written,
)
from tidemark_core.documents.rows import (
    BYSEQ,
    DOCS,
    EFFECTS,
    EXPIRY,
    FAMILIES,
    PINNED,
    PINS,
    SUMMARY,
    Summary,
    behind,
    decode_row,
    encode_row,
    kept_bytes,
    live_row,
    load,
    prefix,
    seqno_key,
    seqno_of,
    wipe,
)
from tidemark_core.documents.sweeping import collected, swept
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.replication import log
from tidemark_core.replication.clients import CommitPosition, TrimRequest
from tidemark_core.replication.messages import Append, DeleteShard, Fence, InstallSnapshot
from tidemark_core.replication.replica import ReplicaState, Role
from tidemark_core.replication.settings import Configure, DocumentSettings
from tidemark_core.shard import Shard
from tidemark_core.upr.history import FailoverLog, Opening

from tests.core.documents.desk import LIMITS, ROWS_MAX, Desk
from tests.core.documents.support import DocumentAuthor, delete, put
from tests.core.documents.support import Documents as Rows
from tests.core.support import AT, OPERATOR, SHARD, A, B, C, append_of


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.lead()
    return desk


def shown(desk: Desk) -> dict[bytes, bytes]:
    return {each.key: each.value for each in scan(desk.rows, SHARD)}


def applied(seqno: int = 0) -> Outcome:
    return Outcome(Verdict.APPLIED, seqno)


# --- U47 --------------------------------------------------------------------------------------------------


def test_u47_a_crash_at_any_write_leaves_the_rows_of_the_stored_cut(desk: Desk) -> None:
    desk.written(put(b"a", b"1"), put(b"b", b"1"))
    for synced in range(5):
        desk.syncs = False
        desk.write(put(b"a", b"%d" % (synced + 2)), delete(b"b"))
        for _ in range(synced):
            if desk.disk.queue:
                [item] = desk.disk.take(1)
                desk.disk.settle(item)
                desk.run(item.then)
        desk.crash()
        desk.syncs = True
        desk.lead(synced + 2)
        desk.written(put(b"c"))

        assert desk.documents.durable == desk.core.log.shards[SHARD].replica.confirmed
        assert set(shown(desk)) - {b"b"} == {b"a", b"c"}


def test_u47_a_restart_confirms_what_its_rows_stand_for(desk: Desk) -> None:
    end = desk.written(put(b"a")).base
    state = desk.disk.durable[SHARD].state
    assert state is not None
    desk.disk.durable[SHARD].state = replace(ReplicaState.decode(state), commit=-1, confirmed=-1).encode()

    desk.crash()

    assert desk.core.log.shards[SHARD].replica.confirmed == desk.documents.durable == end


def test_u47_the_log_is_kept_until_durable_rows_stand_for_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    durable = desk.written(put(b"a")).base
    desk.syncs = False
    desk.write(put(b"b"))
    last = desk.write(put(b"c"))
    for _ in range(2):   # the entries, not the rows
        [item] = desk.disk.take(1)
        desk.disk.settle(item)
        desk.run(item.then)
    answer = desk.replies[last]
    assert isinstance(answer, Written) and desk.documents.durable == durable

    held = desk.replies[desk.ask(TrimRequest, answer.base)]
    desk.sync()
    freed = desk.replies[desk.ask(TrimRequest, answer.base)]

    assert (held, freed) == (durable + 1, answer.base)


def seeded(desk: Desk, author: DocumentAuthor, confirmed: int) -> None:
    head = author.log.head
    snapshot = SnapshotDescriptor(2, head, 0, confirmed, 1_000, confirmed=confirmed, kind=ShardKind.DOCUMENTS)
    desk.receive(OPERATOR, InstallSnapshot(2, 20, B, snapshot))


def test_u47_a_new_member_has_all_rows_of_its_snapshot_or_none(desk: Desk) -> None:
    desk.written(put(b"a"), put(b"b"), put(b"c"))
    desk.ask(PinDocuments, "cut", 1_000)
    desk.written(put(b"a", b"new"))
    rows = tuple((family, *row) for family in FAMILIES for row in desk.rows.scan(family, prefix(SHARD), behind(SHARD)))
    author = DocumentAuthor()
    author.entries = list(desk.disk.durable[SHARD].entries)
    for entry in author.entries:
        author.log.append(entry)
    new = Desk()
    seeded(new, author, author.log.head.offset)
    assert new.pulls[-1].rows
    new.step(SnapshotRows(SHARD, 2, rows[:3], True, False))
    new.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))
    assert new.core.log.shards[SHARD].replica.state.role is Role.SEEDING
    assert new.rows.get(SUMMARY, prefix(SHARD)) is None

    new.crash()
    seeded(new, author, author.log.head.offset)
    assert new.pulls[-1].rows
    new.step(SnapshotRows(SHARD, 2, rows[:5], True, False))
    new.step(SnapshotRows(SHARD, 2, rows[5:], False, True))

    assert new.core.log.shards[SHARD].replica.state.role is Role.FENCED
    assert {family: list(new.rows.scan(family, b"", b"\xff")) for family in FAMILIES} == {
        family: list(desk.rows.scan(family, b"", b"\xff")) for family in FAMILIES
    }
    found = get_at(new.rows, SHARD, "cut", new.documents.summary.pins["cut"].at, b"a")
    assert found is not None and found.value == b"v"


def test_u47_rows_ahead_of_the_log_confirm_none_of_it_after_a_restart() -> None:
    """The pulled entries end inside a range that a ROLLBACK behind them covers; the rows are those behind it."""
    author = DocumentAuthor()
    author.opening()
    for number in range(20):
        author.write(put(b"%d" % number))
    pulled = author.entries[:16]
    last = author.rollback(10)
    folded = Rows()
    folded.fold(author)
    new = Desk()
    snapshot = SnapshotDescriptor(2, pulled[-1].id, 0, 9, 1_000, confirmed=9, kind=ShardKind.DOCUMENTS)
    new.receive(OPERATOR, InstallSnapshot(2, 20, B, snapshot))
    rows = tuple((family, *row) for family in FAMILIES for row in folded.rows.scan(family))
    new.step(SnapshotRows(SHARD, 2, rows, True, True))
    new.step(SnapshotChunk(SHARD, 2, tuple(pulled)))

    new.crash()

    replica = new.core.log.shards[SHARD].replica
    assert (new.documents.durable, replica.log.head.offset) == (last.base, 15)
    assert (replica.confirmed, replica.released) == (0, 0)   # the opening entry vouches for itself
    rest = author.entries[16:]
    new.receive(B, Append(2, rest[0].prev, tuple(rest), last.base, last.base, last.base, 0))
    assert (replica.confirmed, replica.released) == (last.base, last.base)
    assert set(shown(new)) == {b"%d" % number for number in range(9)}


def test_u47_rows_of_another_shard_are_none_of_a_snapshot() -> None:
    author = DocumentAuthor()
    author.opening()
    new = Desk()
    seeded(new, author, 0)

    new.step(SnapshotRows(SHARD, 2, ((DOCS, prefix(SHARD + 1) + b"a", b""),), True, True))

    assert new.traces[-1] == "violation"
    assert not list(new.rows.scan(DOCS, b"", b"\xff"))


def source(desk: Desk) -> tuple[DocumentAuthor, tuple[tuple[str, bytes, bytes], ...]]:
    """Return what a member with rows of every family gives to a new one: its entries and its rows."""
    desk.written(put(b"a", ttl_ms=50_000), put(b"b"))
    desk.ask(PinDocuments, "cut", 60_000)
    desk.written(put(b"a", b"new", ttl_ms=50_000), delete(b"b"))
    author = DocumentAuthor()
    author.entries = list(desk.disk.durable[SHARD].entries)
    for entry in author.entries:
        author.log.append(entry)
    rows = tuple((family, *row) for family in FAMILIES for row in desk.rows.scan(family, prefix(SHARD), behind(SHARD)))
    assert {family for family, _, _ in rows} == set(FAMILIES)
    return author, rows


HOSTILE = [
    (DOCS, b"a", b""), (DOCS, b"", bytes(33)), (DOCS, b"k" * 1025, bytes(33)), (DOCS, b"a", b"\xff" * 40),
    (BYSEQ, b"", b"\1a"), (BYSEQ, bytes(8), b""), (BYSEQ, bytes(8), b"\2a"), (BYSEQ, bytes(8), b"\1"),
    (EXPIRY, b"", bytes(9)), (EXPIRY, bytes(17), b""), (EXPIRY, b"\2" + bytes(16), bytes(9)),
    (EXPIRY, bytes(17), bytes(8)), (EFFECTS, bytes(8), b""), (EFFECTS, bytes(8), b"\x09" + bytes(8)),
    (EFFECTS, bytes(8), bytes(5)), (EFFECTS, b"", b"\1" + bytes(8)), (PINS, b"name", b"short"),
    (PINS, b"\xff", bytes(48)), (PINS, b"", bytes(48)), (PINNED, b"", bytes(41)), (PINNED, b"a" + bytes(8), bytes(41)),
    (PINNED, b"a\0\1" + bytes(8), b""), (SUMMARY, b"", b""), (SUMMARY, b"", b"\1"), (SUMMARY, b"", b"\2" + bytes(80)),
    (SUMMARY, b"a", Summary(9).encode()), (SUMMARY, b"", Summary(9, purged=10).encode()),
    (SUMMARY, b"", Summary(-5, purged=-5).encode()), ("log", b"", b""),
]


LINEAGE = b"L" * 16


def failover_row(*openings: Opening) -> tuple[str, bytes, bytes]:
    return SUMMARY, failover_key(SHARD), FailoverLog(openings).encode()


@pytest.mark.parametrize("last", [False, True], ids=["part", "whole"])
@pytest.mark.parametrize("row", HOSTILE, ids=lambda row: f"{row[0]}-{row[1][:12].hex()}-{row[2][:12].hex()}")
def test_u47_a_hostile_row_ends_the_pull_and_the_next_one_seeds(
    desk: Desk, row: tuple[str, bytes, bytes], last: bool
) -> None:
    family, key, value = row
    author, rows = source(desk)
    new = Desk()
    seeded(new, author, author.log.head.offset)
    bad = (*rows[:-1], (family, prefix(SHARD) + key, value))

    new.step(SnapshotRows(SHARD, 2, bad, True, last))
    if not last and new.traces[-1:] != ["violation"]:
        new.step(SnapshotRows(SHARD, 2, (), False, True))   # only the whole says what is wrong with a summary

    assert new.traces[-1] == "violation"
    assert new.rows.get(SUMMARY, prefix(SHARD)) is None
    new.crash()   # what is stored can be read
    seeded(new, author, author.log.head.offset)
    assert new.pulls[-1].rows
    new.step(SnapshotRows(SHARD, 2, bad, True, True))
    pulls = len(new.pulls)
    seeded(new, author, author.log.head.offset)
    assert len(new.pulls) == pulls + 1
    new.step(SnapshotRows(SHARD, 2, rows, True, True))
    new.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))
    assert new.core.log.shards[SHARD].replica.state.role is Role.FENCED
    assert new.documents.summary == desk.documents.summary


def test_u47_no_row_of_a_snapshot_raises_anything_but_a_violation(desk: Desk) -> None:
    """Each byte of a row is changed, the row is cut anywhere or stands in another family; then the node starts."""
    author, rows = source(desk)
    rows = (*rows, failover_row(Opening(1, LINEAGE, -1)))
    dice = random.Random(1)
    refused = 0
    for _ in range(1_500):
        at = dice.randrange(len(rows))
        family, key, value = rows[at]
        half = bytearray(key[8:] if (in_key := dice.random() < 0.4) else value)
        if half and dice.random() < 0.7:
            half[dice.randrange(len(half))] = dice.randrange(256)
        else:
            del half[dice.randrange(len(half) + 1):]
        changed = (key[:8] + bytes(half), value) if in_key else (key, bytes(half))
        new = Desk()
        seeded(new, author, author.log.head.offset)
        other = dice.choice((family, family, family, PINNED, EXPIRY))
        spoilt = sorted((*rows[:at], *rows[at + 1:], (other, *changed)), key=lambda row: (FAMILIES.index(row[0]), row))
        new.step(SnapshotRows(SHARD, 2, tuple(spoilt), True, True))
        refused += new.traces[-1:] == ["violation"]
        new.crash()
        for _, row in new.rows.scan(DOCS, prefix(SHARD), behind(SHARD)):
            decode_row(row)
        summary = new.documents.summary
        new.documents.failover.opened(summary.epoch + 1, LINEAGE, summary.applied)   # as the next EPOCH_START does
        collected(new.documents.summary, tuple(new.rows.scan(PINNED, prefix(SHARD), behind(SHARD))))
        swept(SHARD, new.documents.summary, tuple(new.rows.scan(EXPIRY, prefix(SHARD), behind(SHARD))))

    assert 1_000 < refused < 1_500


def document_row(key: bytes, seqno: int, value: bytes) -> tuple[str, bytes, bytes]:
    return DOCS, prefix(SHARD) + key, encode_row(live_row(key, seqno, 0, value))


@pytest.mark.parametrize("spoilt", [
    "a document is missing", "a document is doubled", "another value", "another hash", "no row by seqno",
    "no row by time", "another count", "a row above the cut", "no summary",
])
def test_u73_rows_that_are_not_what_their_summary_says_end_the_pull(desk: Desk, spoilt: str) -> None:
    desk.written(put(b"z", b"z"))
    author, rows = source(desk)
    first = {family: next(row for row in rows if row[0] == family) for family in FAMILIES}
    summary = desk.documents.summary
    z = decode_row(desk.rows.get(DOCS, prefix(SHARD) + b"z") or b"")
    changes: dict[str, tuple[tuple[str, bytes, bytes] | None, tuple[str, bytes, bytes] | None]] = {
        "a document is missing": (first[DOCS], None),
        "a document is doubled": (None, document_row(b"zz", z.seqno, b"z")),
        "another value": (document_row(b"z", z.seqno, b"z"), document_row(b"z", z.seqno, b"y")),
        "another hash": (
            document_row(b"z", z.seqno, b"z"), (DOCS, prefix(SHARD) + b"z", encode_row(z._replace(hash=bytes(16))))),
        "no row by seqno": (first[BYSEQ], None),
        "no row by time": (first[EXPIRY], None),
        "another count": (rows[-1], (SUMMARY, rows[-1][1], replace(summary, count=summary.count + 1).encode())),
        "a row above the cut": (first[EFFECTS], (EFFECTS, seqno_key(SHARD, summary.applied + 1), first[EFFECTS][2])),
        "no summary": (rows[-1], None),
    }
    taken, put_in = changes[spoilt]
    bad = sorted(
        (*(row for row in rows if row != taken), *((put_in,) if put_in else ())),
        key=lambda row: (FAMILIES.index(row[0]), row))
    new = Desk()
    seeded(new, author, author.log.head.offset)

    new.step(SnapshotRows(SHARD, 2, tuple(bad), True, True))

    assert new.traces[-1] == "violation"
    assert new.rows.get(SUMMARY, prefix(SHARD)) is None
    seeded(new, author, author.log.head.offset)
    new.step(SnapshotRows(SHARD, 2, rows, True, True))
    assert new.documents.summary == desk.documents.summary


def test_u47_rows_out_of_order_are_none_of_a_snapshot(desk: Desk) -> None:
    author, rows = source(desk)
    for shuffled in ((*rows[1::-1], *rows[2:]), (rows[0], *rows), (rows[-1], *rows[:-1])):
        new = Desk()
        seeded(new, author, author.log.head.offset)
        new.step(SnapshotRows(SHARD, 2, shuffled, True, True))
        assert new.traces[-1] == "violation"


def test_u47_rows_of_a_newer_release_are_named_so() -> None:
    rows = Rows().rows
    for format, error in ((2, FormatTooNew), (0, RemoteViolation)):
        rows.families = {SUMMARY: {prefix(SHARD): bytes((format,)) + Summary(9).encode()[1:]}}
        with pytest.raises(RemoteViolation) as found:
            load(SHARD, rows)
        assert type(found.value) is error
        with pytest.raises(error, match="format"):
            check_row(SHARD, SUMMARY, prefix(SHARD), bytes((format,)))


def test_u47_rows_that_begin_again_replace_those_that_were_whole(desk: Desk) -> None:
    author, rows = source(desk)
    new = Desk()
    seeded(new, author, author.log.head.offset)
    new.step(SnapshotRows(SHARD, 2, rows, True, True))
    new.step(SnapshotRows(SHARD, 2, (), False, True))   # late: the rows are whole
    assert new.documents.summary == desk.documents.summary

    new.step(SnapshotRows(SHARD, 2, rows[:3], True, False))
    assert new.rows.get(SUMMARY, prefix(SHARD)) is None
    assert (new.documents.summary, new.documents.durable) == (Summary(), -1)
    new.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))
    assert new.core.log.shards[SHARD].replica.state.role is Role.SEEDING
    new.step(SnapshotRows(SHARD, 2, rows[3:], False, True))

    assert new.core.log.shards[SHARD].replica.state.role is Role.FENCED
    assert new.documents.summary == desk.documents.summary


def test_u47_a_replica_of_documents_is_one_after_a_restart_and_is_no_log_to_older_releases(desk: Desk) -> None:
    state = desk.disk.durable[SHARD].state
    assert state is not None and state.startswith(b"[5,")   # releases before documents read formats up to 4
    assert ReplicaState.decode(state).kind is ShardKind.DOCUMENTS
    assert ReplicaState.decode(ReplicaState(epoch=3).encode()).kind is ShardKind.LOG

    desk.crash()

    assert desk.documents.summary.applied >= 0
    log = Shard.new(SHARD, A, LIMITS)
    refused = log.step(0, ReadDocuments(SHARD, 7))[0].value   # type: ignore[union-attr]
    assert isinstance(refused, Refused) and refused.reason is Reason.WRONG_KIND


def trimmed_follower() -> tuple[Desk, DocumentAuthor, Rows]:
    """Return a member whose rows are gone and whose log begins at the last write, and rows as the others have them."""
    author, folded = DocumentAuthor(ensemble=(A, B, C)), Rows()
    author.opening()
    for number in range(4):
        author.write(put(b"%d" % number))
    folded.fold(author)
    member = Desk()
    member.receive(OPERATOR, Fence(1, 10, kind=ShardKind.DOCUMENTS))
    member.receive(B, append_of(author.entries, 1, commit=author.log.head.offset))
    member.receive(B, append_of((), 1, commit=author.log.head.offset, trim=4, prev=author.log.head))
    assert member.core.log.shards[SHARD].replica.log.first > 0
    for write in wipe(SHARD):
        member.disk.durable_tables.apply(AT, write)
    member.crash()
    return member, author, folded


def rows_of(folded: Rows) -> tuple[tuple[str, bytes, bytes], ...]:
    return tuple((family, *row) for family in FAMILIES for row in folded.rows.scan(family))


@pytest.mark.parametrize(("epoch", "behind_cut"), [(1 << 40, -1), (2, -1), (1, 0), (1, 1 << 50)])
def test_u54_an_opening_that_the_rows_cannot_hold_ends_the_pull(
    epoch: int, behind_cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that were believed with it would stop the node at the next EPOCH_START, and at every restart."""
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    member, author, folded = trimmed_follower()
    member.step(Configure(SHARD, SynchroSettings()))
    cut, rows = author.log.head.offset, rows_of(folded)

    member.step(SnapshotRows(SHARD, 1, (*rows, failover_row(Opening(epoch, LINEAGE, cut + behind_cut))), True, True))

    assert member.traces[-1] == "violation"
    assert not shown(member)
    member.wait(LIMITS.resend_ms)
    genuine = failover_row(Opening(1, LINEAGE, cut - 1))   # right behind an EPOCH_START
    member.step(SnapshotRows(SHARD, 1, (*rows, genuine), True, True))
    known, before = len(author.entries), author.log.head
    author.opening(epoch=2, lineage=LINEAGE)
    member.receive(OPERATOR, Fence(2, 20, kind=ShardKind.DOCUMENTS))
    member.receive(B, append_of(author.entries[known:], 2, commit=author.log.head.offset, prev=before))
    assert member.documents.durable == author.log.head.offset
    assert [each.epoch for each in member.documents.failover.openings] == [2, 1]


def test_u47b_a_member_whose_log_begins_above_its_rows_asks_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    member, author, folded = trimmed_follower()
    member.step(Configure(SHARD, SynchroSettings()))
    pull = member.pulls[-1]
    assert (pull.rows, pull.source) == (True, B) and pull.descriptor is not None
    assert pull.first > pull.descriptor.head.offset, "no entry is wanted"
    assert member.documents.durable == -1
    before = author.log.head.offset
    last = author.write(put(b"new"))
    folded.fold(author)

    rows = rows_of(folded)
    member.step(SnapshotRows(SHARD, 1, rows[:3], True, False))
    member.step(SnapshotRows(SHARD, 1, rows[3:], False, True))

    assert member.rows.get(SUMMARY, prefix(SHARD)) is None, "its log ends in front of the cut of these rows"
    member.receive(B, append_of([last], 1, commit=before))
    assert member.documents.durable == last.last
    assert shown(member) == {b"%d" % number: b"v" for number in range(4)} | {b"new": b"v"}


def test_u47_rows_of_another_member_are_shown_once_they_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    member, author, folded = trimmed_follower()
    member.step(Configure(SHARD, SynchroSettings()))
    member.syncs = False
    member.step(SnapshotRows(SHARD, 1, rows_of(folded), True, True))
    assert member.traces[-1] == "documents_replaced"

    asked = member.ask(ReadDocuments, Level.FOLLOWER, author.log.head.offset)
    assert not isinstance(member.replies.get(asked), ReadGranted), "the rows are not durable"

    member.sync()
    asked = member.ask(ReadDocuments, Level.FOLLOWER, author.log.head.offset)
    assert isinstance(member.replies[asked], ReadGranted)


def test_u47b_rows_without_a_summary_are_removed_before_anything_is_folded(desk: Desk) -> None:
    """A crash came while the rows of another member arrived; the log is whole."""
    desk.written(put(b"a"))
    for write in (Delete(SUMMARY, prefix(SHARD)), Put(*document_row(b"stray", 99, b"x"))):
        desk.disk.durable_tables.apply(AT, write)
    desk.crash()

    desk.lead(2)

    assert set(shown(desk)) == {b"a"}
    assert desk.documents.durable == desk.core.log.shards[SHARD].replica.confirmed


def test_u47b_rows_that_fold_less_or_are_none_send_the_member_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    member, author, folded = trimmed_follower()
    member.step(Configure(SHARD, SynchroSettings()))
    older = Rows()
    older.fold(author, cut=2)
    hostile = ((DOCS, prefix(SHARD) + b"x", b""),)
    sources = []
    for rows in (rows_of(older), hostile, None):
        sources.append(member.pulls[-1].source)
        if rows is None:
            member.step(SnapshotFailed(SHARD, 1, "gone"))
        else:
            member.step(SnapshotRows(SHARD, 1, rows, True, True))
        pulls = len(member.pulls)
        member.wait(LIMITS.resend_ms)
        assert len(member.pulls) == pulls + 1
    member.step(SnapshotRows(SHARD, 1, rows_of(folded), True, True))

    assert sources == [B, C, B]
    assert set(shown(member)) == {b"%d" % number for number in range(4)}


@pytest.mark.parametrize("last", [False, True], ids=["part", "whole"])
def test_u47b_a_first_part_that_is_refused_leaves_the_rows_that_are_whole(desk: Desk, last: bool) -> None:
    """The fold stands still at a damaged entry; the member that is asked for rows sends none that can be read."""
    author = DocumentAuthor(ensemble=(A, B, C))
    author.opening(lineage=LINEAGE)
    author.write(put(b"kept"))
    member = Desk()
    member.receive(OPERATOR, Fence(1, 10, kind=ShardKind.DOCUMENTS))
    member.receive(B, append_of(author.entries, 1, commit=author.log.head.offset))
    known, before = len(author.entries), author.log.head
    member.documents._retry_later(member.now_ms)   # as where the next entry is damaged
    for key in (b"x", b"y"):
        author.write(put(key))
    member.receive(B, append_of(author.entries[known:], 1, commit=author.log.head.offset, prev=before))
    member.run(member.documents.on_gone(B, author.log.head.offset))
    assert member.pulls[-1].rows

    member.step(SnapshotRows(SHARD, 1, ((DOCS, prefix(SHARD) + b"x", b""),), True, last))
    assert member.traces[-1] == "violation"
    changes = len(member.changes)
    member.now_ms += LIMITS.resend_ms
    member.step(TimerFired(AT, "documents_retry"))

    assert set(shown(member)) == {b"kept", b"x", b"y"}
    assert [each.since for each in member.changes[changes:]] == [before.offset], "nothing is folded twice"


def test_u47b_rows_of_a_history_that_was_lost_send_the_member_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source confirmed entries of epoch 2 that a later leader never had: our log gets others in their place."""
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    member, author, folded = trimmed_follower()
    member.step(Configure(SHARD, SynchroSettings()))
    lost_author, lost = DocumentAuthor(ensemble=(A, B, C)), Rows()
    lost_author.opening()
    for number in range(4):
        lost_author.write(put(b"%d" % number))
    lost_author.opening(epoch=2)
    lost.fold(lost_author)
    member.step(SnapshotRows(SHARD, 1, rows_of(lost), True, True))
    assert member.rows.get(SUMMARY, prefix(SHARD)) is None, "our log may still get the entry"
    known, before, pulls = len(author.entries), author.log.head, len(member.pulls)

    author.opening(epoch=3)
    folded.fold(author)
    member.receive(OPERATOR, Fence(3, 30, kind=ShardKind.DOCUMENTS))
    member.receive(B, append_of(author.entries[known:], 3, commit=author.log.head.offset, prev=before))
    member.wait(LIMITS.resend_ms)

    assert len(member.pulls) == pulls + 1 and member.pulls[-1].source != member.pulls[-2].source
    assert not list(member.rows.scan(DOCS, prefix(SHARD), behind(SHARD))), "rows of no state are gone"
    member.step(SnapshotRows(SHARD, 3, rows_of(folded), True, True))
    assert set(shown(member)) == {b"%d" % number for number in range(4)}


def test_u47b_rows_that_the_log_comes_no_nearer_to_send_the_member_to_the_next_one(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    member, author, folded = trimmed_follower()
    member.step(Configure(SHARD, SynchroSettings()))
    rows, known, before = rows_of(folded), len(author.entries), author.log.head
    ahead = Rows()
    for number in range(3):
        author.write(put(b"new %d" % number))
    ahead.fold(author)
    member.step(SnapshotRows(SHARD, 1, rows_of(ahead), True, True))
    pulls = len(member.pulls)
    first, *_ = author.entries[known:]
    member.receive(B, append_of([first], 1, commit=before.offset, prev=before))

    member.wait(WHOLE_MS)
    assert len(member.pulls) == pulls, "the log came nearer"
    member.wait(WHOLE_MS)

    assert len(member.pulls) == pulls + 1 and member.pulls[-1].source != member.pulls[-2].source
    member.step(SnapshotRows(SHARD, 1, rows, True, True))
    assert set(shown(member)) == {b"%d" % number for number in range(4)}


# --- U49, U50 ---------------------------------------------------------------------------------------------


def test_u49_the_leader_refuses_what_the_fold_could_not_read_and_local_writes(desk: Desk) -> None:
    head = desk.core.log.shards[SHARD].replica.log.head
    for request, reason in (
        (desk.append(0, 1, b"no writes"), Reason.WRONG_KIND),
        (desk.append(0, 1, b"TMD\1" + bytes(4)), Reason.INVALID_BATCH),
        (desk.write(put(b"a"), durability=Durability.LOCAL), Reason.INVALID_BATCH),
    ):
        refused = desk.replies[request]
        assert isinstance(refused, Refused) and refused.reason is reason

    assert desk.core.log.shards[SHARD].replica.log.head == head


def test_u49_the_leader_refuses_an_entry_of_too_many_records_by_their_number(desk: Desk) -> None:
    record = payload.encode(Writes((delete(b"k"),)))[8:-1]

    refused = desk.replies[desk.append(0, 10_001, b"TMD\1" + bytes(4) + record * 10_001 + b"k" * 10_001)]

    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_BATCH
    assert refused.message == "entry has 10001 records, the limit is 10000"


def test_u50_a_retry_gets_the_first_outcome_whatever_happened_since(desk: Desk) -> None:
    """W17: the first answer was "applied"; a leader that judged the retry would refuse it."""
    first = desk.written(put(b"a", b"1", expected=0))
    assert first.outcomes == (applied(),)
    sequence = desk.sequence - 1
    desk.written(put(b"a", b"2", expected=first.base))
    [entry] = [each for each in desk.disk.durable[SHARD].entries if each.base == first.base]

    again = desk.replies[desk.append(sequence, 1, entry.payload)]
    desk.crash()
    desk.lead(2)
    after_a_restart = desk.replies[desk.append(sequence, 1, entry.payload)]

    assert again == first
    assert isinstance(after_a_restart, Written) and after_a_restart.outcomes == first.outcomes


def test_u50_a_write_is_answered_once_its_entry_is_folded() -> None:
    desk = Desk()
    desk.lead()
    desk.syncs = False
    request = desk.write(put(b"a"))
    assert request not in desk.replies

    desk.sync()

    assert isinstance(desk.replies[request], Written)


def test_u50_a_confirmed_write_that_waits_for_the_fold_is_not_refused_when_the_replica_goes(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry is in the logs of the others: the writer sends the same sequence to the next leader."""
    monkeypatch.setattr("tidemark_core.document_shard.ReadRows", lambda *_: Trace(AT, "held", ""))   # the fold waits
    request = desk.write(put(b"a"))
    reader = desk.ask(ReadDocuments, Level.LEADER, 1)
    assert request not in desk.replies
    assert desk.core.log.shards[SHARD].replica.confirmed == 1

    desk.receive(OPERATOR, DeleteShard(2, 20))

    assert desk.replies[request].reason is Reason.NOT_LEADER
    assert desk.replies[reader].reason is Reason.NO_REPLICA


def test_u50_outcomes_go_with_the_log_but_for_the_last_of_each_producer(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    bases = [desk.written(put(b"a")).base for _ in range(9)]

    kept = [desk.written(put(b"a")).base for _ in range(5)]
    desk.ask(TrimRequest, kept[-1])

    held = [seqno_of(key) for key, _ in desk.rows.scan(EFFECTS, prefix(SHARD), behind(SHARD))]
    assert desk.core.log.shards[SHARD].replica.log.first > bases[-1]
    assert not set(bases) & set(held)
    assert set(kept) <= set(held)


# --- U51, U52 ---------------------------------------------------------------------------------------------


def entries_of(desk: Desk, kind: Kind) -> list[int]:
    return [entry.base for entry in desk.disk.durable[SHARD].entries if entry.kind is kind]


def test_u51_the_leader_expires_documents_within_two_seconds_and_never_early(desk: Desk) -> None:
    desk.written(put(b"a", ttl_ms=5_000), put(b"b", ttl_ms=50_000), put(b"c"))
    desk.wait(4_900)
    assert set(shown(desk)) == {b"a", b"b", b"c"}

    desk.wait(2_000)

    assert set(shown(desk)) == {b"b", b"c"}
    assert len(entries_of(desk, Kind.EXPIRE)) == 1
    desk.wait(20_000)
    assert len(entries_of(desk, Kind.EXPIRE)) == 1


def test_u51_nothing_is_expired_again_while_an_expire_is_undecided(desk: Desk) -> None:
    desk.written(put(b"a", ttl_ms=1_000))
    desk.syncs = False

    desk.wait(5_000)
    desk.sync()

    assert len(entries_of(desk, Kind.EXPIRE)) == 1


def test_u52_the_leader_purges_old_tombstones_and_sweeps_them(desk: Desk) -> None:
    desk.written(put(b"a"), put(b"b"))
    desk.written(delete(b"a"))
    desk.wait(59_000)
    assert not entries_of(desk, Kind.PURGE)

    desk.wait(3_000)

    assert len(entries_of(desk, Kind.PURGE)) == 1
    assert desk.documents.summary.tombstones == 0
    assert [key[8:] for key, _ in desk.rows.scan(DOCS, prefix(SHARD), behind(SHARD))] == [b"b"]


def test_u52_background_work_goes_on_behind_pages_of_any_size(desk: Desk) -> None:
    """The store gives fewer rows than asked for where they are large; the next page brings the others."""
    keys = [b"%02d" % number for number in range(4 * ROWS_MAX)]
    desk.written(*(put(key, b"1") for key in keys))
    desk.ask(PinDocuments, "cut", 300_000)
    desk.written(*(put(key, b"2") for key in keys))
    assert len(list(desk.rows.scan(PINNED, prefix(SHARD), behind(SHARD)))) == len(keys)
    desk.ask(UnpinDocuments, "cut")
    assert not list(desk.rows.scan(PINNED, prefix(SHARD), behind(SHARD)))

    desk.written(*map(delete, keys))
    desk.wait(70_000)

    assert desk.documents.summary.tombstones == 0
    assert not list(desk.rows.scan(DOCS, prefix(SHARD), behind(SHARD)))


@pytest.mark.parametrize("protected", ["pin", "position"])
def test_u52_no_purge_above_a_pin_or_a_named_position(desk: Desk, protected: str) -> None:
    end = desk.written(put(b"a")).base
    if protected == "pin":
        desk.ask(PinDocuments, "cut", 300_000)
    else:
        desk.ask(CommitPosition, "reader", end + 1, 300_000)
    desk.written(delete(b"a"))

    desk.wait(200_000)
    assert not entries_of(desk, Kind.PURGE)
    desk.wait(200_000)

    assert entries_of(desk, Kind.PURGE)


def test_u52_leases_of_named_positions_run_by_the_clock_of_the_majority(desk: Desk) -> None:
    """The shell's clock runs 250 s ahead of the agreed one: leases do not end by it (C2)."""
    end = desk.written(put(b"a")).base
    desk.ask(CommitPosition, "reader", end + 1, 300_000)
    desk.written(delete(b"a"))
    desk.step(ClockStepped(0, 250_000))

    desk.wait(450_000)
    assert not entries_of(desk, Kind.PURGE)
    desk.wait(150_000)

    assert entries_of(desk, Kind.PURGE)


def test_u52_nothing_is_purged_while_no_majority_says_the_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.written(put(b"a"))
    desk.written(delete(b"a"))
    leader = desk.core.log.shards[SHARD].leader
    assert leader is not None
    times: list[int | None] = [200_000, None]   # the look finds tombstones; then the majority is gone
    monkeypatch.setattr(type(leader.clocks), "agreed_ms", lambda self, now_ms: times.pop(0) if times else None)

    desk.wait(5_000)
    assert not times
    assert not entries_of(desk, Kind.PURGE)
    monkeypatch.undo()
    desk.wait(200_000)

    assert entries_of(desk, Kind.PURGE)


# --- U53 --------------------------------------------------------------------------------------------------


def test_u53_a_read_is_granted_once_the_store_shows_what_it_must(desk: Desk) -> None:
    end = desk.written(put(b"a")).base
    for level in Level:
        granted = desk.replies[desk.ask(ReadDocuments, level, end)]
        assert isinstance(granted, ReadGranted) and granted.applied >= end
    desk.syncs = False
    waiting = desk.ask(ReadDocuments, Level.FOLLOWER, end + 1)
    desk.write(put(b"b"))
    assert waiting not in desk.replies

    desk.sync()

    assert isinstance(desk.replies[waiting], ReadGranted)
    assert get(desk.rows, SHARD, b"b") is not None


def test_u53_a_linearizable_read_waits_for_a_round_of_its_own() -> None:
    desk = Desk()
    desk.lead(ensemble=(A, B))
    asked = desk.ask(ReadDocuments, Level.LINEARIZABLE)

    desk.wait(5_000)

    refused = desk.replies[asked]
    assert isinstance(refused, Refused) and refused.reason is Reason.NO_LEADER


def test_u53_a_read_that_asks_for_too_much_is_behind(desk: Desk) -> None:
    asked = desk.ask(ReadDocuments, Level.LEADER, 1_000)
    assert asked not in desk.replies

    desk.wait(3_000)

    refused = desk.replies[asked]
    assert isinstance(refused, Refused) and refused.reason is Reason.BEHIND
    assert refused.expected == desk.documents.durable


def test_u53_a_follower_grants_what_it_has_and_leads_nobody() -> None:
    author = DocumentAuthor()
    author.opening()
    author.write(put(b"a"))
    desk = Desk()
    desk.receive(OPERATOR, Fence(1, 10, kind=ShardKind.DOCUMENTS))
    end = author.log.head.offset
    desk.receive(B, Append(1, author.entries[0].prev, tuple(author.entries), end, end, end, 0))

    assert desk.replies[desk.ask(ReadDocuments, Level.FOLLOWER, end)] == ReadGranted(1, end)
    for level in (Level.LEADER, Level.LINEARIZABLE):
        refused = desk.replies[desk.ask(ReadDocuments, level)]
        assert isinstance(refused, Refused) and refused.reason is Reason.NOT_LEADER


# --- U70 --------------------------------------------------------------------------------------------------


def test_u70_a_pin_is_answered_with_its_cut_and_lasts_until_its_lease_is_over(desk: Desk) -> None:
    desk.written(put(b"a", b"1"))
    pinned = desk.replies[desk.ask(PinDocuments, "backup", 10_000)]
    assert isinstance(pinned, Pinned)
    assert (pinned.count, pinned.digest) == (1, desk.documents.summary.digest)
    desk.written(put(b"a", b"2"))
    desk.wait(8_000)   # the lease runs
    renewed = desk.replies[desk.ask(PinDocuments, "backup", 10_000)]
    assert renewed == pinned
    desk.wait(9_000)
    found = get_at(desk.rows, SHARD, "backup", pinned.at, b"a")
    assert found is not None and found.value == b"1"

    desk.wait(3_000)

    assert not desk.documents.summary.pins
    assert len(entries_of(desk, Kind.UNPIN)) == 1
    assert not list(desk.rows.scan("pinned", prefix(SHARD), behind(SHARD)))


def test_u70_an_unpin_is_answered_and_bad_names_are_refused(desk: Desk) -> None:
    desk.ask(PinDocuments, "backup", 10_000)
    assert desk.replies[desk.ask(UnpinDocuments, "backup")] == Unpinned("backup")
    assert not desk.documents.summary.pins

    for request in (desk.ask(PinDocuments, "", 10), desk.ask(PinDocuments, "n", 0), desk.ask(UnpinDocuments, "\n")):
        refused = desk.replies[request]
        assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC


def test_u70b_what_another_owner_asks_is_refused_and_logs_nothing(desk: Desk) -> None:
    assert isinstance(desk.replies[desk.ask(PinDocuments, "backup", 10_000, "client/shop")], Pinned)
    logged = len(desk.disk.durable[SHARD].entries)
    for request in (
        desk.ask(PinDocuments, "backup", 1, "client/eve"), desk.ask(UnpinDocuments, "backup", "client/eve"),
    ):
        refused = desk.replies[request]
        assert isinstance(refused, Refused) and refused.reason is Reason.PERMISSION_DENIED
    assert logged == len(desk.disk.durable[SHARD].entries)
    assert desk.replies[desk.ask(UnpinDocuments, "backup", "client/shop")] == Unpinned("backup")


def test_u70c_a_pin_above_the_share_is_refused_and_logs_nothing(desk: Desk) -> None:
    desk.ask(PinDocuments, "backup", 10_000, "client/shop")
    for number in range(PINS_MAX // 2 - 1):
        assert isinstance(desk.replies[desk.ask(PinDocuments, f"{number}", 10_000, "client/eve")], Pinned)
    logged = len(desk.disk.durable[SHARD].entries)
    refused = desk.replies[desk.ask(PinDocuments, "one more", 10_000, "client/eve")]
    assert isinstance(refused, Refused) and refused.reason is Reason.TOO_MANY_PINS
    assert logged == len(desk.disk.durable[SHARD].entries)
    assert isinstance(desk.replies[desk.ask(PinDocuments, "other", 10_000, "client/shop")], Pinned)
    assert desk.replies[desk.ask(UnpinDocuments, "other")] == Unpinned("other"), "an admin names no owner"


def test_u70b_a_request_before_the_pin_was_folded_is_refused_by_the_fold(desk: Desk) -> None:
    desk.syncs = False
    pinned = desk.ask(PinDocuments, "backup", 10_000, "client/shop")
    others = desk.ask(PinDocuments, "backup", 1, "client/eve"), desk.ask(UnpinDocuments, "backup", "client/eve")
    desk.sync()

    assert isinstance(desk.replies[pinned], Pinned)
    for request in others:
        refused = desk.replies[request]
        assert isinstance(refused, Refused) and refused.reason is Reason.PERMISSION_DENIED
    assert desk.documents.summary.pins["backup"].until_ms - desk.now_ms > 9_000


def test_u70b_a_pin_has_its_owner_after_a_restart(desk: Desk) -> None:
    desk.ask(PinDocuments, "backup", 10_000, "client/shop")
    desk.crash()
    assert desk.documents.summary.pins["backup"].owner == "client/shop"


def test_u70_a_pin_that_keeps_too_much_is_ended_and_says_so(desk: Desk) -> None:
    desk.written(*(put(b"%d" % number, b"x" * 100) for number in range(4)))
    for name in ("early", "late"):
        pinned = desk.replies[desk.ask(PinDocuments, name, 600_000)]
        assert isinstance(pinned, Pinned)
        desk.written(put(b"0", name.encode()), put(b"0", b"again"))
    kept = {name: pin.kept_bytes for name, pin in desk.documents.summary.pins.items()}
    assert kept == {"early": kept_bytes(b"0", b"x" * 100), "late": kept_bytes(b"0", b"again")}
    bytes_max = 2 * kept["early"] + kept["late"]
    desk.step(Configure(SHARD, SynchroSettings(), documents=DocumentSettings(pinned_bytes_max=bytes_max)))
    desk.wait(3_000)
    assert set(desk.documents.summary.pins) == {"early", "late"}

    desk.written(put(b"1", b"y"), put(b"2", b"y"))
    desk.wait(3_000)

    assert set(desk.documents.summary.pins) == {"late"}
    assert "pin_over_bytes" in desk.traces
    crashed = desk.documents.summary
    desk.crash()
    assert desk.documents.summary == crashed


def test_u52_a_group_says_how_old_tombstones_grow(desk: Desk) -> None:
    desk.step(Configure(SHARD, SynchroSettings(), documents=DocumentSettings(tombstone_ms=5_000)))
    desk.written(put(b"a"))
    desk.written(delete(b"a"))
    desk.wait(4_000)
    assert desk.documents.summary.tombstones == 1

    desk.wait(4_000)

    assert desk.documents.summary.tombstones == 0 and desk.documents.summary.purged > 0


def test_u70_no_lease_ends_while_its_renewal_is_not_folded(desk: Desk) -> None:
    """The folded lease is over when the look comes; the log says already that it runs on."""
    pinned = desk.replies[desk.ask(PinDocuments, "backup", 10_000)]
    desk.wait(9_500)
    desk.syncs = False
    renewal = desk.ask(PinDocuments, "backup", 60_000)

    desk.wait(1_500)
    desk.sync()
    desk.wait(5_000)

    assert desk.replies[renewal] == pinned
    assert "backup" in desk.documents.summary.pins
    assert not entries_of(desk, Kind.UNPIN)


def test_u70_a_new_leader_ends_no_lease_before_it_folded_what_it_inherited(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.ask(PinDocuments, "backup", 10_000)
    desk.wait(9_500)
    with monkeypatch.context() as patch:
        patch.setattr(type(desk.documents), "_next", lambda self: [])   # the renewal is confirmed, and not folded yet
        desk.ask(PinDocuments, "backup", 60_000)
        desk.crash()
        desk.lead(2)
        desk.wait(1_500)

        assert desk.documents.summary.applied < desk.core.log.shards[SHARD].replica.confirmed
    desk.written(put(b"a"))
    desk.wait(5_000)

    assert "backup" in desk.documents.summary.pins
    assert not entries_of(desk, Kind.UNPIN)


@pytest.mark.parametrize("again", [False, True], ids=["begun and ended", "ended and begun again"])
def test_u71_versions_of_a_pin_that_ends_in_the_slice_of_its_name_are_collected(again: bool) -> None:
    """The pins before and after the slice have the same names."""
    author = DocumentAuthor()
    author.opening()
    author.write(put(b"a", b"1"))
    if again:
        author.pin("cut")
    member = Desk()
    member.receive(OPERATOR, Fence(1, 10, kind=ShardKind.DOCUMENTS))
    member.receive(B, append_of(author.entries, 1, commit=author.log.head.offset))
    known, before = len(author.entries), author.log.head
    if not again:
        author.pin("cut")
    author.write(put(b"a", b"2"))
    author.unpin("cut")
    if again:
        author.pin("cut")

    member.receive(B, append_of(author.entries[known:], 1, commit=author.log.head.offset, prev=before))

    assert set(member.documents.summary.pins) == ({"cut"} if again else set())
    assert shown(member) == {b"a": b"2"}
    assert not list(member.rows.scan(PINNED, prefix(SHARD), behind(SHARD)))


def test_a_follower_folds_new_entries_from_memory_and_keeps_none_that_is_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, author = Desk(), DocumentAuthor()
    author.opening()
    author.write(put(b"old", b"1"))
    desk.receive(OPERATOR, Fence(1, 10, kind=ShardKind.DOCUMENTS))
    desk.receive(B, append_of(author.entries, 1, commit=author.log.head.offset))
    assert desk.documents.durable == author.log.head.offset

    def read(*_: object) -> None:
        raise AssertionError("the fold reads an entry back that has just come")

    monkeypatch.setattr(type(desk.disk), "read", read)
    known, before = len(author.entries), author.log.head
    author.write(put(b"new", b"2"))
    desk.syncs = False
    desk.receive(B, append_of(author.entries[known:], 1, commit=author.log.head.offset, prev=before))
    log = desk.documents.replica.log
    assert log.in_tail(author.entries[-1].base)
    assert desk.documents.durable == before.offset
    desk.sync()
    assert desk.documents.durable == author.log.head.offset
    assert get(desk.rows, SHARD, b"new") is not None
    assert not log.in_tail(author.entries[-1].base)
