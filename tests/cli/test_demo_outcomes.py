"""The last act of the demo: its judge sees every way in which what was told and what is read may disagree."""

from __future__ import annotations

import pytest
from tidemark import LOCAL, QUORUM, Appended, Fate, Gap, GapKind, Outcome, Record
from tidemark.errors import QuorumTimeout, RolledBack, Unavailable
from tidemark_cli.demo.outcomes import Findings, Kind, Told, judge

P = b"p" * 16


def record(offset: int, value: bytes) -> Record:
    return Record(value, b"k", 0, None, 0, offset, 1)


def hole(first: int, last: int) -> Gap:
    return Gap(GapKind.HOLE, 0, first, last)


def timeout() -> QuorumTimeout:
    return QuorumTimeout("not confirmed", group="g", shard=0, producer=P, sequence=3)


def rollback(at: int) -> RolledBack:
    return RolledBack("rolled back", group="g", shard=0, producer=P, sequence=3, rolled_back_at=at)


def story() -> tuple[list[Told], list[Record | Gap]]:
    """One append of every kind, and what readers see of them."""
    told = [
        Told(b"confirmed", answer=Appended(0, 1, 1, QUORUM, P, 0)),
        Told(b"local", answer=Appended(0, 2, 1, LOCAL, P, 1)),
        Told(b"unknown, confirmed", error=timeout(), outcome=Outcome(Fate.CONFIRMED, 1, 3, 1)),
        Told(b"unknown, rolled back", error=timeout(), outcome=Outcome(Fate.ROLLED_BACK, 1, 4, 1, 6)),
        Told(b"rolled back", error=rollback(6), outcome=Outcome(Fate.ROLLED_BACK, 1, 5, 1, 6)),
        Told(b"never sent", error=Unavailable("nobody is there")),
    ]
    return told, [record(1, b"confirmed"), record(2, b"local"), record(3, b"unknown, confirmed"), hole(4, 5)]


def test_every_kind_is_counted_and_nothing_contradicts() -> None:
    told, seen = story()
    assert [append.kind for append in told] == [
        Kind.CONFIRMED, Kind.LOCAL, Kind.UNKNOWN, Kind.UNKNOWN, Kind.ROLLED_BACK, Kind.FAILED,
    ]
    assert judge(told, seen) == Findings(1, 1, 2, 1, 1, 1, 3, ())


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_what_is_in_the_log_and_not_read_contradicts(missing: int) -> None:
    told, seen = story()
    del seen[missing]
    (found,) = judge(told, seen).contradictions
    assert repr(told[missing].value) in found and "no place" in found


@pytest.mark.parametrize("place", [3, 4, 5])
def test_what_is_rolled_back_or_refused_and_read_contradicts(place: int) -> None:
    told, seen = story()
    (found,) = judge(told, [*seen, record(9, told[place].value)]).contradictions
    assert repr(told[place].value) in found and "(0, 9)" in found


@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_read_elsewhere_or_twice_contradicts(place: int) -> None:
    told, seen = story()
    (found,) = judge(told, [*seen, record(9, told[place].value)]).contradictions
    assert repr(told[place].value) in found
    seen[place] = record(9, told[place].value)
    (found,) = judge(told, seen).contradictions
    assert repr(told[place].value) in found


def test_a_rollback_without_a_hole_contradicts() -> None:
    told, seen = story()
    assert len(judge(told, seen[:-1]).contradictions) == 2
    (found,) = judge(told, [*seen[:-1], hole(5, 5)]).contradictions
    assert "hole at 4" in found


def test_an_outcome_against_the_answer_contradicts() -> None:
    told, seen = story()
    told[0].outcome = Outcome(Fate.ROLLED_BACK, 1, 1, 1, 6)
    told[4].outcome = Outcome(Fate.CONFIRMED, 1, 5, 1)
    wrong = judge(told, [*seen, record(5, b"rolled back")]).contradictions
    assert any("b'confirmed' was confirmed, then" in found for found in wrong)
    assert any("b'rolled back' was rolled back, then" in found for found in wrong)


@pytest.mark.parametrize("outcome", [None, Outcome(Fate.UNKNOWN, 1, 3, 1)])
def test_an_outcome_that_stays_unknown_contradicts(outcome: Outcome | None) -> None:
    told, seen = story()
    told[2].outcome = outcome
    (found,) = judge(told, seen).contradictions
    assert "not known" in found
    (found,) = judge([Told(b"waits")], []).contradictions
    assert "not known" in found


def test_a_record_that_nobody_appended_contradicts() -> None:
    told, seen = story()
    (found,) = judge(told, [*seen, record(9, b"stray")]).contradictions
    assert "nobody appended" in found
