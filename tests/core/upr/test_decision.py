"""Whether a stream may start at a member: one function, judged by what both sides really hold (rule U57).

The generated cases are made from histories: which epoch wrote each seqno in the shard, and in what the consumer saw.
The expected answer is read off these lists; heads, ids and comparisons are the product's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from tidemark_core.base.ids import shard_id
from tidemark_core.upr.common import Had, common
from tidemark_core.upr.decision import (
    Accepted,
    Asked,
    Behind,
    Here,
    HistoryLost,
    HistoryTrimmed,
    NotMyShard,
    Purged,
    Refusal,
    decide,
)
from tidemark_core.upr.history import ENTRIES_MAX, START, FailoverLog, Point, history_id
from tidemark_core.upr.positions import History, Partial, Position, PositionRefused, Scope

HERE, BEFORE = b"H" * 16, b"B" * 16
SHARD = shard_id(1, 0)
SCOPE = Scope(1)

# --- the table --------------------------------------------------------------------------------------------------

LOG = FailoverLog().opened(1, HERE, -1).opened(2, HERE, 10).opened(3, HERE, 20)
MEMBER = Here(30, 0, LOG)
LEADER = MEMBER._replace(read_index=30)
PURGED = Here(30, 26, LOG)


def asked(point: Point, partial: Partial | None = None, scope: Scope = SCOPE) -> Asked:
    return Asked(SHARD, scope, Position(scope, SHARD, point), partial)


def at(seqno: int, epoch: int, lineage: bytes = HERE) -> Point:
    return Point(lineage, epoch, seqno)


ALL = Scope(1, history=History.ALL)
CAPPED = FailoverLog()
for each in range(1, ENTRIES_MAX + 3):
    CAPPED = CAPPED.opened(each, HERE, each * 10)

TABLE: list[tuple[str, Asked, Here | None, Accepted | Refusal]] = [
    ("the shard is not served here", asked(START), None, NotMyShard(8)),
    ("from the beginning", asked(START), MEMBER, Accepted(0)),
    ("from the beginning, with deletes purged", asked(START), Here(30, 25, LOG), Accepted(0)),
    ("nothing is folded here yet", asked(START), Here(-1, 0, FailoverLog()), Behind(-1)),
    ("a position in the newest epoch", asked(at(25, 3)), MEMBER, Accepted(25)),
    ("a position in an older epoch", asked(at(10, 1)), MEMBER, Accepted(10)),
    ("a position at the end", asked(at(30, 3)), MEMBER, Accepted(30)),
    ("the epoch did not write this seqno", asked(at(11, 1)), MEMBER, HistoryLost(10)),
    ("a newer epoch inherited it", asked(at(20, 3)), MEMBER, Accepted(20)),
    ("an epoch that is not folded here yet inherited it", asked(at(20, 4)), MEMBER, Behind(30)),
    ("an epoch that never was, at a leader that made sure", asked(at(20, 4)), LEADER, HistoryLost(0)),
    ("above the member", asked(at(31, 3)), MEMBER, Behind(30)),
    ("above a leader that made sure of it", asked(at(31, 3)), LEADER, HistoryLost(30)),
    ("above what a leader folded, not above its log", asked(at(31, 3)), MEMBER._replace(read_index=31), Behind(30)),
    ("another lineage of an older epoch", asked(at(25, 2, BEFORE)), MEMBER, HistoryLost(0)),
    ("another lineage of the same epoch", asked(at(25, 3, BEFORE)), MEMBER, HistoryLost(0)),
    ("a lineage that a newer epoch brought", asked(at(25, 4, BEFORE)), MEMBER, Behind(30)),
    ("that lineage, at a leader that made sure", asked(at(25, 4, BEFORE)), LEADER, HistoryLost(0)),
    ("another lineage, even at 0", asked(at(0, 1, BEFORE)), MEMBER, HistoryLost(0)),
    ("purged behind the consumer", asked(at(25, 3)), PURGED, Purged(26)),
    ("purged up to the consumer", asked(at(26, 3)), PURGED, Accepted(26)),
    ("rows of a snapshot", asked(at(21, 3), Partial(21, 25, at(30, 3))), MEMBER, Accepted(25)),
    ("its end is above the member", asked(at(21, 3), Partial(21, 25, at(31, 3))), MEMBER, Behind(30)),
    ("its end is of another epoch", asked(at(15, 2), Partial(15, 18, at(25, 2))), MEMBER, HistoryLost(15)),
    ("a live snapshot, purged", asked(at(21, 3), Partial(21, 25, at(28, 3), 26)), PURGED, Purged(26)),
    ("a first snapshot, purged before it", asked(START, Partial(0, 5, at(28, 3), 26, 28)), PURGED, Accepted(5)),
    ("a first snapshot, purged since", asked(START, Partial(0, 5, at(28, 3), 25, 28)), PURGED, Purged(26)),
    ("a first snapshot, purged below its rows", asked(START, Partial(0, 26, at(28, 3), 25, 28)), PURGED, Accepted(26)),
    ("a first live snapshot names no purge", asked(START, Partial(0, 5, at(28, 3))), PURGED, Purged(26)),
    ("epoch no longer kept, below the oldest head", asked(at(30, 2)), Here(280, 0, CAPPED), Accepted(30)),
    ("epoch no longer kept, above the oldest head", asked(at(31, 2)), Here(280, 0, CAPPED), HistoryLost(0)),
    ("oldest epoch kept, which inherited it", asked(at(30, 3)), Here(280, 0, CAPPED), Accepted(30)),
    ("all versions", asked(at(25, 3), scope=ALL), Here(30, 26, LOG, first_kept=26), Accepted(25)),
    ("all versions, trimmed above it", asked(at(24, 3), scope=ALL), Here(30, 0, LOG, 26), HistoryTrimmed(26)),
    ("all versions from the beginning, trimmed", asked(START, scope=ALL), Here(30, 0, LOG, 5), HistoryTrimmed(5)),
]


@pytest.mark.parametrize(("question", "here", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_u57_the_table(question: Asked, here: Here | None, expected: Accepted | Refusal) -> None:
    assert decide(question, here, 8) == expected


@pytest.mark.parametrize(("field", "question"), [
    ("group", Asked(SHARD, SCOPE, Position(Scope(2), SHARD, START))),
    ("shard", Asked(SHARD, SCOPE, Position(SCOPE, shard_id(1, 1), START))),
    ("filter", Asked(SHARD, SCOPE, Position(Scope(1, b"f" * 16), SHARD, START))),
    ("history", Asked(SHARD, SCOPE, Position(ALL, SHARD, START))),
    ("seqno", asked(at(-1, 1))),
    ("lineage", asked(Point(b"", 1, 1))),
    ("partial", asked(at(25, 3), Partial(24, 26, at(28, 3)))),
    ("partial", asked(at(25, 3), Partial(25, 26, at(28, 3)), ALL)),
])
def test_u57_a_position_of_another_stream_is_refused_by_the_name_of_its_field(field: str, question: Asked) -> None:
    found = decide(question, MEMBER)

    assert isinstance(found, PositionRefused) and found.field == field


# --- generated from histories -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """`shard` and `seen`: the (lineage, epoch) that wrote each seqno, in the shard and in what the consumer saw."""

    shard: tuple[tuple[bytes, int], ...]
    seen: tuple[tuple[bytes, int], ...]
    applied: int
    purged: int
    seqno: int
    partial: tuple[int, int, int | None] | None   # last row, end, purge seqno of a disk marker

    @property
    def newest(self) -> int:
        """The highest seqno that the consumer knows of."""
        return self.seqno if self.partial is None else self.partial[1]

    @property
    def same(self) -> bool:
        """Say whether the consumer's history is the shard's, as far as the consumer knows it."""
        return not self.newest or self.seen[: self.newest + 1] == self.shard[: self.newest + 1]

    def point(self, seqno: int) -> Point:
        return START if seqno == 0 else Point(*self.seen[seqno], seqno)

    def question(self) -> tuple[Asked, Here]:
        log = FailoverLog()
        for offset in range(self.applied + 1):
            lineage, epoch = self.shard[offset]
            if not offset or self.shard[offset - 1] != self.shard[offset]:
                log = log.opened(epoch, lineage, offset - 1)
        partial = None
        if self.partial is not None:
            last, end, purged = self.partial
            partial = Partial(self.seqno, last, self.point(end), purged, end if not self.seqno else None)
        return asked(self.point(self.seqno), partial), Here(self.applied, self.purged, log)

    def expected(self) -> Accepted | Refusal | None:
        """Read the answer off the lists; None where the consumer's history is another one."""
        if not self.same:
            return None
        if self.newest > self.applied:
            return Behind(self.applied)
        resume = self.seqno if self.partial is None else self.partial[0]
        first = self.seqno == 0 and (self.partial is None or self.partial[2] == self.purged)
        if resume < self.purged and not first:
            return Purged(self.purged)
        return Accepted(resume)


def spelled(text: str) -> tuple[tuple[bytes, int], ...]:
    """`112`: epochs 1, 1 and 2; letters are epochs of another lineage, A the first."""
    return tuple((HERE, int(letter)) if letter.isdigit() else (BEFORE, ord(letter) - ord("A") + 1) for letter in text)


SHARD_HISTORY = spelled("1112233")
OTHERS = [spelled(text) for text in ("1111111", "1112222", "1114444", "AAAAAAA", "AAABBCC", "1112244", "111DDDD")]


def cases(seen: tuple[tuple[bytes, int], ...]) -> Iterator[Case]:
    top = len(SHARD_HISTORY) - 1
    for applied in range(top + 1):
        for purged in range(applied + 1):
            for seqno in range(top + 1):
                yield Case(SHARD_HISTORY, seen, applied, purged, seqno, None)
                for end in range(seqno + 1, top + 1):
                    for last in range(seqno, end + 1):
                        for disk in (None, *range(purged + 1)) if end >= purged else (None,):
                            yield Case(SHARD_HISTORY, seen, applied, purged, seqno, (last, end, disk))


SAME = list(cases(SHARD_HISTORY))
OTHER = [case for seen in OTHERS for case in cases(seen) if not case.same]

Decide = Callable[[Asked, Here], object]


def wrong_answers(answer: Decide) -> Iterator[Case]:
    """Yield the cases in which `answer` is not what the histories say."""
    yield from (case for case in SAME if answer(*case.question()) != case.expected())
    yield from (case for case in OTHER if isinstance(answer(*case.question()), Accepted))


def test_u57_a_position_of_this_history_is_accepted_behind_or_purged_at_every_member() -> None:
    found = [type(decide(*case.question())) for case in SAME]

    assert [case for case in SAME if decide(*case.question()) != case.expected()] == []
    assert min(found.count(kind) for kind in (Accepted, Behind, Purged)) > 300


def test_u57_a_position_of_another_history_is_never_accepted() -> None:
    found = [decide(*case.question()) for case in OTHER]

    assert not [case for case, answer in zip(OTHER, found, strict=True) if isinstance(answer, Accepted)]
    assert sum(isinstance(answer, HistoryLost) for answer in found) > 1000
    assert all(isinstance(answer, HistoryLost | Behind | Purged) for answer in found)


# --- decisions that are wrong -----------------------------------------------------------------------------------


def section_4(question: Asked, here: Here) -> object:
    """Roll back by Couchbase's comparison: a consumer ahead of a lagging member loses what it has."""
    point, partial = question.position.point, question.partial
    end = partial.end if partial else point
    last = partial.last if partial else point.seqno
    had = Had(history_id(end.lineage, end.epoch), last, point.seqno, end.seqno)
    safe = common(had, here.failover, here.applied, here.purged)
    return Accepted(safe) if safe == had.seqno else HistoryLost(safe)


def smaller_of_both(question: Asked, here: Here) -> object:
    """Start at the smaller seqno of the newest history that both know."""
    point = question.position.point
    resume = question.partial.last if question.partial else point.seqno
    same = point.lineage in (here.failover.newest.lineage, START.lineage)
    return Accepted(min(resume, here.applied)) if same else HistoryLost(0)


def end_ignored(question: Asked, here: Here) -> object:
    partial = question.partial
    if partial is None or partial.end.seqno <= here.applied:
        return decide(question, here)
    return decide(question._replace(partial=None), here)


def purge_left_out(question: Asked, here: Here) -> object:
    return decide(question, here._replace(purged=0))


def live_marker_exempts(question: Asked, here: Here) -> object:
    found, partial = decide(question, here), question.partial
    return Accepted(partial.last) if isinstance(found, Purged) and partial and partial.purged == here.purged else found


def epoch_not_compared(question: Asked, here: Here) -> object:
    point, partial = question.position.point, question.partial
    lineage = here.failover.newest.lineage
    if partial is not None and partial.end.seqno <= here.applied and partial.end.lineage == lineage:
        partial = partial._replace(end=here.failover.point(partial.end.seqno))
    if 0 < point.seqno <= here.applied and point.lineage == lineage:
        point = here.failover.point(point.seqno)
    return decide(asked(point, partial), here)


def epoch_of_the_start(question: Asked, here: Here) -> object:
    point, partial = question.position.point, question.partial
    if partial is None:
        return decide(question, here)
    found = decide(asked(point), here)
    return Accepted(partial.last) if isinstance(found, Accepted) and partial.end.seqno <= here.applied else found


def lineage_not_compared(question: Asked, here: Here) -> object:
    point, partial = question.position.point, question.partial
    lineage = here.failover.newest.lineage
    if partial is not None:
        partial = partial._replace(end=partial.end._replace(lineage=lineage))
    return decide(asked(point._replace(lineage=lineage) if point.epoch else point, partial), here)


@pytest.mark.parametrize("wrong", [
    section_4, smaller_of_both, end_ignored, purge_left_out, live_marker_exempts, epoch_not_compared,
    epoch_of_the_start, lineage_not_compared,
], ids=lambda wrong: wrong.__name__)
def test_u57_a_stale_decision_is_caught(wrong: Decide) -> None:
    assert next(wrong_answers(wrong), None) is not None, f"U57: {wrong.__name__} answers every case right"


def test_u57_a_point_that_a_capped_log_names_is_accepted_by_every_member() -> None:
    """A consumer whose seqno alone is stored asks the leader for the point, and any member for the stream."""
    logs, head = [FailoverLog()], -1
    for epoch in range(1, 2 * ENTRIES_MAX + 10):
        logs.append(logs[-1].opened(epoch, HERE, head))
        head += 3
    for seqno in range(head + 1):
        point = logs[-1].point(seqno)
        for folded, log in enumerate(logs[1:], 1):
            applied = folded * 3 - 1
            found = decide(asked(point), Here(applied, 0, log))
            assert found == (Accepted(seqno) if isinstance(found, Accepted) else Behind(applied))
            assert isinstance(found, Accepted) or seqno > applied or point.epoch > log.newest.epoch


def test_u57_a_log_that_is_capped_loses_no_consumer() -> None:
    """25 elections pass while a consumer sleeps: its epoch is no longer named, its seqno is still of this history."""
    log = FailoverLog()
    for epoch in range(1, 60):
        log = log.opened(epoch, HERE, epoch * 3 - 4)

    for epoch in range(1, 60):
        first, last = max(0, epoch * 3 - 3), epoch * 3 - 1
        assert decide(asked(at(first, epoch)), Here(200, 0, log)) == Accepted(first)
        assert decide(asked(at(last, epoch)), Here(200, 0, log)) == Accepted(last)
    named = {opening.epoch for opening in log.openings}
    assert 1 not in named and 59 in named
