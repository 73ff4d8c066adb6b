"""The fold of CONFIRM and ROLLBACK records (rules L5, L9, L11): it says what rule L5 says, and takes no nonsense."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import EntryId
from tidemark_core.base.limits import Limits
from tidemark_core.limbo.decisions import Decisions, Range
from tidemark_core.replication.checkpoint import Checkpoint
from tidemark_core.replication.log import Log
from tidemark_core.replication.messages import Fate
from tidemark_core.replication.replica import Replica

from tests.core.support import OTHER_PRODUCER, PRODUCER, SHARD, A, Author, visible

MOST = 1 << 40


def facts(fold: Decisions) -> tuple[Any, ...]:
    """Return what a fold says; of its openings only the last means anything."""
    return fold.confirmed, fold.openings[-1:], fold.ranges


@pytest.fixture
def author() -> Author:
    """ES 0, data 1-3, data 4, ROLLBACK(1) at 5, data 6, CONFIRM(6) at 7, data 8, data 9-10, ROLLBACK(9) at 11, 12."""
    author = Author()
    author.opening()
    author.data(3)
    author.data()
    author.rollback(1)
    author.data()
    author.confirm(6)
    author.data()
    author.data(2)
    author.rollback(9)
    author.data()
    return author


# --- the fold ---------------------------------------------------------------------------------------------


def test_f1_l5_records_fold_into_ranges_and_one_mark(author: Author) -> None:
    fold = author.log.decisions

    assert [Range(1, 5), Range(9, 11)] == fold.ranges
    assert (6, [0], 11) == (fold.confirmed, fold.openings, fold.last_record)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (-1, None), (0, None), (1, Range(1, 5)), (3, Range(1, 5)), (4, Range(1, 5)), (5, None), (6, None), (8, None),
        (9, Range(9, 11)), (10, Range(9, 11)), (11, None), (12, None), (99, None),
    ],
)
def test_l5_a_range_holds_what_lies_from_its_first_up_to_its_record(
    author: Author, offset: int, expected: Range | None
) -> None:
    """Control records are never hidden: the record at the end is not in its range."""
    assert expected == author.log.decisions.covering(offset)


@pytest.mark.parametrize(
    ("confirmed", "expected"),
    [
        (-1, []), (0, []), (4, []), (5, [(1, 4)]), (8, [(1, 4)]), (10, [(1, 4)]), (11, [(1, 4), (9, 10)]),
        (99, [(1, 4), (9, 10)]),
    ],
)
def test_l10_what_is_rolled_back_is_decided_by_one_s_own_cut(
    author: Author, confirmed: int, expected: list[tuple[int, int]]
) -> None:
    """Records above the cut have no effect (rule L5)."""
    assert expected == author.log.decisions.holes(0, MOST, confirmed)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0, []), (0, 1, [(1, 1)]), (2, 3, [(2, 3)]), (4, 4, [(4, 4)]), (5, 8, []), (4, 9, [(4, 4), (9, 9)]),
        (10, 99, [(10, 10)]), (11, 99, []), (3, 2, []), (9, 10, [(9, 10)]),
    ],
)
def test_holes_are_the_parts_that_were_asked_for(
    author: Author, first: int, last: int, expected: list[tuple[int, int]]
) -> None:
    assert expected == author.log.decisions.holes(first, last, MOST)


@pytest.mark.parametrize(
    ("value", "confirmed", "expected"),
    [
        (0, 12, 0), (1, 12, 0), (4, 12, 0), (5, 12, 5), (8, 12, 8), (9, 12, 8), (10, 12, 8), (11, 12, 11), (12, 12, 12),
        (-1, 12, -1), (9, 11, 8), (8, 8, 8), (3, 8, 0),
    ],
)
def test_l9_a_watermark_is_lowered_in_front_of_the_range_it_lies_in(
    author: Author, value: int, confirmed: int, expected: int
) -> None:
    fold = author.log.decisions
    assert expected == fold.safe_cut(value, confirmed)
    assert expected == fold.safe_cut(expected, confirmed), "and is stable"


def test_l9_a_range_that_touches_the_one_in_front_of_it_is_left_by_one_step() -> None:
    """ROLLBACK(3) begins right behind the record of ROLLBACK(1): 2 is that record, and in no range."""
    author = Author()
    author.opening()
    author.data()
    author.rollback(1)
    author.data()
    author.rollback(3)

    assert [2, 2, 0] == [author.log.decisions.safe_cut(value, 4) for value in (3, 2, 1)]


# --- records that decide what is decided -------------------------------------------------------------------


@pytest.mark.parametrize("first", [-5, -1, 0, 5, 6, 8, 9, 11, 13, 99])
def test_l7_l5_a_rollback_that_reaches_back_to_what_is_decided_or_to_nothing_is_refused(
    author: Author, first: int
) -> None:
    """Above the last EPOCH_START, the last CONFIRM and the last ROLLBACK, and below itself: 12 alone is left."""
    before = facts(author.log.decisions)

    with pytest.raises(RemoteViolation, match=f"L7: ROLLBACK at 13 reaches back to {first}, decided is 11"):
        author.log.append(author.forged(Kind.ROLLBACK, first))
    assert (before, EntryId(1, 12)) == (facts(author.log.decisions), author.log.head)
    author.log.append(author.forged(Kind.ROLLBACK, 12))
    assert Range(12, 13) == author.log.decisions.ranges[-1]


def test_l7_l6_a_rollback_never_reaches_across_an_epoch_start(author: Author) -> None:
    author.opening(epoch=2)
    author.data()

    for first in (12, 13):
        with pytest.raises(RemoteViolation, match="L7"):
            author.log.append(author.forged(Kind.ROLLBACK, first))
    author.log.append(author.forged(Kind.ROLLBACK, 14))


def test_l4_a_rollback_may_reach_across_the_noop_of_a_reconfiguration(author: Author) -> None:
    """A NOOP confirms nothing: the limbo goes on across it."""
    author.opening(Kind.NOOP, epoch=2)

    author.rollback(12)
    assert [(1, 4), (9, 10), (12, 13)] == author.log.decisions.holes(0, MOST, 14)


@pytest.mark.parametrize("upto", [-2, 13, 14, 99])
def test_l11_a_confirm_of_what_is_not_in_front_of_it_is_refused(author: Author, upto: int) -> None:
    with pytest.raises(RemoteViolation, match=f"L11: CONFIRM at 13 names offset {upto}"):
        author.log.append(author.forged(Kind.CONFIRM, upto))


@pytest.mark.parametrize("upto", [1, 4, 9, 10])
def test_issue_5185_l5_no_confirm_ends_inside_what_a_rollback_covers(author: Author, upto: int) -> None:
    """Tarantool #5185: a CONFIRM and a ROLLBACK for one entry in one log."""
    before = facts(author.log.decisions)

    with pytest.raises(RemoteViolation, match="L3: CONFIRM at 13 names offset"):
        author.log.append(author.forged(Kind.CONFIRM, upto))
    assert before == facts(author.log.decisions)


def test_issue_5185_l5_no_rollback_begins_at_or_below_what_a_confirm_covers(author: Author) -> None:
    author.confirm(12)

    for first in (6, 8, 12):
        with pytest.raises(RemoteViolation, match="L7"):
            author.log.append(author.forged(Kind.ROLLBACK, first))


def test_l11_a_confirm_may_come_after_a_rollback(author: Author) -> None:
    """It may name what lies in front of the rollback's range, or its record, or more."""
    for upto in (8, 11, 12):
        author.confirm(upto)
        assert upto == author.log.decisions.confirmed
    author.confirm(6)
    assert 12 == author.log.decisions.confirmed, "an older hint changes nothing"


# --- undone by truncation, carried by checkpoints, forgotten by trim ----------------------------------------


@pytest.mark.parametrize(
    ("head", "ranges"), [(12, [Range(1, 5), Range(9, 11)]), (10, [Range(1, 5)]), (5, [Range(1, 5)]), (4, [])]
)
def test_l5_truncation_undoes_a_rollback_together_with_its_record(
    author: Author, head: int, ranges: list[Range]
) -> None:
    author.log.truncate(EntryId(1, head))

    assert ranges == author.log.decisions.ranges


def test_l13_a_confirm_stays_true_when_its_record_is_cut_away(author: Author) -> None:
    author.log.truncate(EntryId(1, 6))
    assert 6 == author.log.decisions.confirmed
    author.log.truncate(EntryId(1, 5))
    assert -1 == author.log.decisions.confirmed, "unless what it confirms goes too, which only a broken leader asks"


def test_l7_truncation_of_an_epoch_start_lets_its_epoch_roll_back_again(author: Author) -> None:
    author.opening(epoch=2)
    author.log.truncate(EntryId(1, 12))

    author.log.append(author.forged(Kind.ROLLBACK, 12))
    assert Range(12, 13) == author.log.decisions.ranges[-1]


def test_a_fold_survives_its_bytes_and_is_noticed_when_cut_short(author: Author) -> None:
    import struct

    fold = author.log.decisions
    data = fold.encode()
    decoded, end = Decisions.decode(b"xy" + data + b"more", 2)

    assert facts(fold) == facts(decoded)
    assert len(data) + 2 == end
    for cut in range(len(data)):
        with pytest.raises(struct.error):
            Decisions.decode(data[:cut], 0)


def test_a_log_without_decisions_survives_its_bytes() -> None:
    decoded, _ = Decisions.decode(Decisions().encode(), 0)

    assert (-1, [], []) == facts(decoded)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (12, (6, [0], [Range(1, 5), Range(9, 11)])), (10, (6, [0], [Range(1, 5)])), (6, (6, [0], [Range(1, 5)])),
        (5, (-1, [0], [Range(1, 5)])), (4, (-1, [0], [])), (-1, (-1, [], [])),
    ],
)
def test_a_fold_can_be_told_as_it_was_behind_an_entry(author: Author, offset: int, expected: tuple[Any, ...]) -> None:
    before = facts(author.log.decisions)

    assert expected == facts(author.log.decisions.upto(offset, 0))
    assert before == facts(author.log.decisions)


@pytest.mark.parametrize(
    ("below", "ranges"),
    [
        (0, [Range(1, 5), Range(9, 11)]), (5, [Range(1, 5), Range(9, 11)]), (6, [Range(9, 11)]), (10, [Range(9, 11)]),
        (12, []), (99, []),
    ],
)
def test_ranges_are_forgotten_when_nothing_lies_in_them_any_more(
    author: Author, below: int, ranges: list[Range]
) -> None:
    author.log.decisions.trim(below)

    assert ranges == author.log.decisions.ranges


def test_l7_the_last_epoch_start_is_never_forgotten(author: Author) -> None:
    author.opening(epoch=2)
    author.data()
    author.log.decisions.trim(MOST)

    with pytest.raises(RemoteViolation, match="decided is 13"):
        author.log.append(author.forged(Kind.ROLLBACK, 13))


def fate(log: Log, sequence: int, producer: bytes = PRODUCER) -> Fate:
    """Return the fate of a remembered batch at a replica that has confirmed all of its log."""
    place = log.producers.judge(producer, sequence, log.logged_ms).place
    assert place is not None
    replica = Replica(SHARD, A, Limits())
    replica.log, replica.confirmed = log, log.head.offset
    return replica.fate(place)


def test_l19_a_remembered_batch_keeps_its_rollback_when_its_bytes_are_trimmed(author: Author) -> None:
    log = author.log
    log.settle(12)
    log.trim(9)

    assert [Range(1, 5), Range(9, 11)] == log.decisions.ranges
    assert [Fate.ROLLED_BACK, Fate.ROLLED_BACK, Fate.CONFIRMED] == [fate(log, sequence) for sequence in (1, 2 - 1, 2)]


def test_l19_a_rollback_is_forgotten_with_the_last_batch_that_it_covers(author: Author) -> None:
    for _ in range(5):
        author.data()
    log = author.log
    log.settle(17)
    log.trim(17)

    assert [] == log.decisions.ranges
    assert log.producers.judge(PRODUCER, 0, 0).too_old


def test_l19_a_rollback_is_kept_for_a_batch_that_is_remembered_again_when_others_are_undone() -> None:
    """Five entries that are not committed push the rolled-back ones out of memory; then they are cut away."""
    author = Author()
    author.opening()
    for _ in range(3):
        author.data()
    author.rollback(1)
    author.data(producer=OTHER_PRODUCER)
    log = author.log
    log.settle(5)
    for _ in range(5):
        author.data()
    log.trim(5)
    checkpoint = log.checkpoint().encode()

    log.truncate(EntryId(1, 5))
    restored = Log.restore(checkpoint, [], 5)
    for held in (log, restored):
        assert [Range(1, 4)] == held.decisions.ranges
        assert [Fate.ROLLED_BACK] * 3 == [fate(held, sequence) for sequence in range(3)]
        assert Fate.CONFIRMED is fate(held, 0, OTHER_PRODUCER)


# --- against rule L5 word for word ---------------------------------------------------------------------------

STORY = st.lists(
    st.tuples(st.sampled_from(["data", "data", "data", "confirm", "rollback", "epoch", "noop"]), st.integers(0, 9)),
    min_size=1, max_size=60,
)


def legal_log(story: list[tuple[str, int]]) -> Author:
    """Write a log as leaders may: no record decides what is decided, `at` picks among what is left."""
    author = Author()
    author.opening()
    for what, at in story:
        fold = author.log.decisions
        head = author.log.head.offset
        if what == "data":
            author.data(1 + at % 3, producer=(PRODUCER, OTHER_PRODUCER)[at % 2])
        elif what == "confirm":
            ends = [entry.last for entry in author.entries if entry.last > fold.confirmed]
            ends = [end for end in ends if fold.covering(end) is None]
            if ends:
                author.confirm(ends[at % len(ends)])
        elif what == "rollback":
            decided = max(fold.confirmed, fold.openings[-1], fold.last_record)
            firsts = [entry.base for entry in author.entries if decided < entry.base <= head]
            if firsts:
                author.rollback(firsts[at % len(firsts)])
        else:
            author.opening(Kind.EPOCH_START if what == "epoch" else Kind.NOOP, epoch=author.epoch + 1)
    return author


def shown(entries: list[Entry], fold: Decisions, cut: int) -> list[Entry]:
    """Return what a reader gets: entries up to the cut that lie in no hole."""
    holes = fold.holes(0, cut, cut)
    return [
        entry for entry in entries
        if entry.kind is Kind.DATA and entry.last <= cut
        and not any(first <= entry.base <= last for first, last in holes)
    ]


def cuts(author: Author, fold: Decisions) -> list[int]:
    """Return every value that `confirmed` may have: an entry's end inside no range."""
    return [-1, *(entry.last for entry in author.entries if fold.covering(entry.last) is None)]


@given(STORY)
def test_l5_the_fold_shows_what_the_rule_shows_at_every_cut(story: list[tuple[str, int]]) -> None:
    author = legal_log(story)
    fold = author.log.decisions

    for cut in cuts(author, fold):
        assert visible(author.entries, cut) == shown(author.entries, fold, cut), f"at cut {cut}"


@given(STORY)
def test_l5_the_first_decision_wins_for_ever(story: list[tuple[str, int]]) -> None:
    """What is shown at a cut is shown at every later one, and what is in a hole stays in it."""
    author = legal_log(story)
    fold = author.log.decisions
    before: list[Entry] = []
    hidden: set[int] = set()
    for cut in cuts(author, fold):
        now = shown(author.entries, fold, cut)
        assert before == now[: len(before)]
        holes = fold.holes(0, cut, cut)
        hidden_now = {base for first, last in holes for base in range(first, last + 1)}
        assert hidden <= hidden_now
        assert not hidden_now & {entry.base for entry in now}
        before, hidden = now, hidden_now


@given(STORY, st.data())
def test_l9_a_watermark_made_safe_shows_what_its_receiver_may_see(
    story: list[tuple[str, int]], data: st.DataObject
) -> None:
    """Whatever part of the log a follower holds, at the watermark it is sent it shows nothing that is rolled back."""
    author = legal_log(story)
    fold = author.log.decisions
    confirmed = data.draw(st.sampled_from(cuts(author, fold)))
    through = data.draw(st.sampled_from(author.entries)).last
    prefix = [entry for entry in author.entries if entry.last <= through]
    held = Decisions()
    for entry in prefix:
        if entry.kind is not Kind.DATA:
            held.note(entry)

    sent = fold.safe_cut(min(confirmed, through), confirmed)

    assert sent <= min(confirmed, through)
    assert held.covering(sent) is None
    seen = shown(prefix, held, sent)
    assert seen == shown(author.entries, fold, confirmed)[: len(seen)]


@given(STORY, st.data())
def test_l18_a_fold_cut_back_or_carried_in_a_checkpoint_is_the_fold_of_what_is_left(
    story: list[tuple[str, int]], data: st.DataObject
) -> None:
    author = legal_log(story)
    keep = data.draw(st.sampled_from(author.entries))
    prefix = Log()
    for entry in author.entries:
        if entry.id <= keep.id:
            prefix.append(entry)

    settled = Log()
    for entry in author.entries:
        settled.append(entry)
    settled.settle(keep.last)
    carried = Checkpoint.decode(settled.checkpoint().encode()).fold(Decisions)
    author.log.truncate(keep.id)

    for fold in (author.log.decisions, carried):
        assert prefix.decisions.ranges == fold.ranges
        assert prefix.decisions.openings[-1:] == fold.openings[-1:]
        assert fold.confirmed in (prefix.decisions.confirmed, -1) or (
            prefix.decisions.confirmed < fold.confirmed <= keep.last
        ), "a CONFIRM that was read stays true for what is left"
        assert fold.covering(fold.confirmed) is None


@given(STORY, st.sampled_from([Kind.CONFIRM, Kind.ROLLBACK]), st.integers(-2, 130))
def test_l5_a_record_is_refused_exactly_when_it_decides_again(
    story: list[tuple[str, int]], kind: Kind, argument: int
) -> None:
    """By rule L5 a refused record would change what was visible or hidden, or names what is not there."""
    author = legal_log(story)
    end = author.log.head.offset + 1
    record = author.forged(kind, argument)
    fold = author.log.decisions
    ranges = [(found.first, found.at) for found in fold.ranges]
    confirmed = max((e.sequence for e in author.entries if e.kind is Kind.CONFIRM), default=-1)
    opening = max(e.base for e in author.entries if e.kind is Kind.EPOCH_START)
    if kind is Kind.CONFIRM:
        legal = -1 <= argument < end and not any(first <= argument < at for first, at in ranges)
    else:
        legal = max(confirmed, opening, *(at for _, at in ranges), -1) < argument < end
    before = facts(fold)

    if legal:
        fold.note(record)
    else:
        with pytest.raises(RemoteViolation):
            fold.note(record)
        assert before == facts(fold)
