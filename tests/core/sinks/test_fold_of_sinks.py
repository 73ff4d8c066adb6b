"""The fold of SINK records (rules W1-W4): it says what a plain replay of the log says, at every cut."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.entry import Entry, Kind, decode_header, folded_part, recovered
from tidemark_core.base.errors import CorruptEntry, RemoteViolation
from tidemark_core.base.ids import EntryId
from tidemark_core.replication.checkpoint import Checkpoint
from tidemark_core.replication.log import Log
from tidemark_core.shard import FOLDS
from tidemark_core.sinks.fold import (
    LEASE_MS_MAX,
    NAME_MAX,
    PARTS_MAX,
    Change,
    Deletion,
    Ended,
    Join,
    Mark,
    Sink,
    SinkEnd,
    Sinks,
    noted,
    sink_payload,
)

from tests.core.support import Author

LEASE = 5_000


class SinkAuthor(Author):
    def __init__(self) -> None:
        super().__init__()
        self.log = Log(table=FOLDS)

    def sink(self, name: str, batch: int, change: Change, *, lease_ms: int = LEASE) -> Entry:
        """Append a SINK record."""
        return self._take(self._control(Kind.SINK, sink_payload(name, lease_ms, change), argument=batch))


@pytest.fixture
def author() -> SinkAuthor:
    """ES 0, data 1, then records of sinks from 2 on: `a` marks batch 0 and opens batch 1, `b` is rolled back."""
    author = SinkAuthor()
    author.opening()
    author.data()
    author.sink("a", 0, Join(0))
    author.sink("a", 0, Join(2))
    author.sink("a", 0, Mark(3, (SinkEnd(0, 9, 5, 77), SinkEnd(1, 4, 2, 78))))
    author.sink("a", 1, Join(9))
    author.sink("a", 2, Join(1))
    author.sink("a", 2, Mark(2, (SinkEnd(1, 6, 1, 79),)))
    author.data()
    author.sink("b", 7, Join(3))
    author.sink("c", 0, Join(0))
    author.rollback(9)
    author.sink("b", 1, Join(1))
    author.sink("c", 5, Mark(0, ()))
    author.sink("b", 1, Deletion(), lease_ms=0)
    author.sink("a", 3, Join(5))
    return author


def folded(entries: list[Entry], cut: int) -> Sinks:
    log = Log(table=FOLDS)
    for entry in entries:
        log.append(entry)
    log.decide(cut)
    [fold] = [fold for fold in log.folds if isinstance(fold, Sinks)]
    return fold


def facts(fold: Sinks) -> tuple[Any, ...]:
    return fold.held, fold.undecided


def test_w1_a_record_is_read_again_and_a_damaged_one_is_noticed(author: SinkAuthor) -> None:
    entry = author.entries[4]
    whole = folded_part(entry)
    assert recovered(whole) == entry
    assert noted(entry).change == Mark(3, (SinkEnd(0, 9, 5, 77), SinkEnd(1, 4, 2, 78)))
    for damaged in (whole[:-1], whole + b"x", whole[:-1] + bytes([whole[-1] ^ 1])):
        with pytest.raises(CorruptEntry, match="payload"):
            recovered(damaged)
    assert decode_header(entry.header).payload == b""


MARK = SinkEnd(1, 4, 2, 78)


@pytest.mark.parametrize(("payload", "batch"), [
    (b"", 0), (b"\0" * 10, 0), (sink_payload("a", LEASE, Join(0))[:-1], 0),
    (sink_payload("a", LEASE, Join(0)) + b"x", 0),
    (sink_payload("a", LEASE, Join(PARTS_MAX)), 0), (sink_payload("a", LEASE, Mark(PARTS_MAX + 1, ())), 0),
    (sink_payload("a", LEASE, Mark(1, (MARK,)))[:-1], 0), (sink_payload("a", LEASE, Mark(1, (MARK, MARK))), 0),
    (sink_payload("a", LEASE, Mark(1, (MARK._replace(last=-1),))), 0), (sink_payload("a", 0, Deletion()) + b"x", 0),
    (sink_payload("", LEASE, Join(0)), 0), (sink_payload("a" * (NAME_MAX + 1), LEASE, Join(0)), 0),
    (sink_payload("a\n", LEASE, Join(0)), 0), (b"\3" + sink_payload("a", LEASE, Join(0))[1:], 0),
    (sink_payload("a", LEASE_MS_MAX + 1, Join(0)), 0), (sink_payload("a", LEASE, Join(0)), -1),
    (sink_payload("a", LEASE, Join(0)).replace(b"a", b"\xff"), 0),
])
def test_w1_a_record_that_says_what_cannot_be_is_refused_and_changes_nothing(payload: bytes, batch: int) -> None:
    author = SinkAuthor()
    author.opening()
    wrong = author._control(Kind.SINK, payload, argument=batch)
    fold = Sinks()
    with pytest.raises(RemoteViolation, match="W1: SINK at 1"):
        fold.note(wrong)
    assert facts(fold) == ({}, ())


def test_w2_a_shard_without_rows_keeps_the_end_of_an_earlier_batch(author: SinkAuthor) -> None:
    assert folded(author.entries, 7).held == {
        "a": Sink(2, 0, 2, 2, (Ended(0, 0, 9, 5, 77), Ended(2, 1, 6, 1, 79)), 0, LEASE)}
    assert folded(author.entries, 7).held["a"].marks() == (SinkEnd(1, 6, 1, 79),)


def test_w3_the_fold_is_the_replay_at_every_cut(author: SinkAuthor) -> None:
    marked = ((0, 0, 9, 5, 77), (0, 1, 4, 2, 78))
    both = ((0, 0, 9, 5, 77), (2, 1, 6, 1, 79))
    wanted: dict[int, dict[str, tuple[Any, ...]]] = {
        1: {}, 2: {"a": (0, {0}, -1, ())}, 3: {"a": (0, {0, 2}, -1, ())}, 4: {"a": (0, set(), 0, marked)},
        5: {"a": (1, {9}, 0, marked)}, 6: {"a": (2, {1}, 0, marked)}, 7: {"a": (2, set(), 2, both)},
        8: {"a": (2, set(), 2, both)},
        11: {"a": (2, set(), 2, both)},
        12: {"a": (2, set(), 2, both), "b": (1, {1}, -1, ())},
        13: {"a": (2, set(), 2, both), "b": (1, {1}, -1, ()), "c": (5, set(), 5, ())},
        14: {"a": (2, set(), 2, both), "c": (5, set(), 5, ())},
        15: {"a": (3, {5}, 2, both), "c": (5, set(), 5, ())},
    }
    for cut, sinks in wanted.items():
        found = {
            name: (sink.batch, {part for part in range(PARTS_MAX) if sink.joined >> part & 1}, sink.marked, sink.ends)
            for name, sink in folded(author.entries, cut).held.items()}
        assert found == sinks, f"at {cut}"


def test_w3_a_fold_cut_back_or_carried_in_a_checkpoint_is_the_fold_of_what_is_left(author: SinkAuthor) -> None:
    for cut in range(1, 16):
        for confirmed in {min(cut, 5), cut}:
            if 9 <= confirmed < 11:     # the rollback decides them
                continue
            log = Log(table=FOLDS)
            for entry in author.entries:
                log.append(entry)
            log.decide(confirmed)
            log.settle(confirmed)
            log.truncate(EntryId(1, cut))
            [left] = [fold for fold in log.folds if isinstance(fold, Sinks)]
            wanted = folded(author.entries[:cut + 1], confirmed)
            assert facts(left) == facts(wanted), f"{cut}, {confirmed}"
            assert left.encode() == wanted.encode()
            again, end = Sinks.decode(b"x" + left.encode(), 1)
            assert facts(again) == facts(left) and end == 1 + len(left.encode())
            carried = Checkpoint.decode(log.checkpoint().encode(), FOLDS).fold(Sinks)
            assert facts(carried) == facts(left.upto(log.floor.id.offset, log.floor.logged_ms))


def test_w3_a_checkpoint_that_is_cut_short_is_noticed(author: SinkAuthor) -> None:
    whole = folded(author.entries, 7).encode()
    for size in range(len(whole)):
        with pytest.raises(Exception, match=r"unpack|requires|SINK"):
            Sinks.decode(whole[:size], 0)


def test_w4_the_lease_counts_by_the_clock_of_the_log() -> None:
    author = SinkAuthor()
    author.opening()
    author.sink("a", 3, Join(0))
    fold = folded(author.entries, 1)
    assert [name for name, _ in fold.known(LEASE)] == ["a"]
    assert list(fold.known(LEASE + 1)) == [] and fold.upto(1, LEASE + 1).held == {}
    fold.purge(LEASE + 1)
    assert fold.held == {}


def test_w3_a_sink_is_kept_for_a_record_that_is_not_decided_yet() -> None:
    """The clock of what is committed may be past a lease that an older record, which is not decided, renews."""
    author = SinkAuthor()
    author.opening()
    author.sink("a", 3, Mark(4, ()))
    author.sink("a", 4, Join(0))
    author.data(logged_ms=LEASE + 1)
    log = Log(table=FOLDS)
    for entry in author.entries:
        log.append(entry)
    log.decide(1)
    [fold] = [fold for fold in log.folds if isinstance(fold, Sinks)]
    fold.purge(LEASE + 1)
    for each in (fold, fold.upto(3, LEASE + 1)):
        each.decide(3, lambda at: None)
        assert (each.held["a"].marked, each.held["a"].joined, each.held["a"].parts) == (3, 1, 4)
