"""Marks of disks: only the same life with fewer writes is older, and no last copy goes with a disk."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.base.marks import Copies, DiskMark, is_older, kept, needs

A, B, C, D = (Member(name, f"{name}-life") for name in "abcd")
MARKS = st.builds(DiskMark, st.sampled_from(["one", "two"]), st.integers(0, 9))


@pytest.mark.parametrize(("known", "disk", "older"), [
    (DiskMark("one", 7), DiskMark("one", 6), True), (DiskMark("one", 7), DiskMark("one", 7), False),
    (DiskMark("one", 7), DiskMark("one", 8), False), (DiskMark("one", 7), DiskMark("two", 0), False),
    (DiskMark("", 0), DiskMark("one", 0), False), (None, DiskMark("one", 0), False)])
def test_d52_only_fewer_writes_of_the_same_life_are_an_older_copy(
    known: DiskMark | None, disk: DiskMark, older: bool
) -> None:
    assert is_older(known, disk) is older


@given(st.lists(MARKS), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 99))))
def test_d52_a_disk_that_goes_on_is_never_older_than_any_mark_of_it(
    others: list[DiskMark], steps: list[tuple[int, int]]
) -> None:
    """Marks of other lives, answers that come late and marks that are set back harm no disk that only goes on."""
    known, writes, said = None, 0, [DiskMark("one", 0)]
    for (more, late), other in zip(steps, [*others, *said * len(steps)], strict=False):
        writes += more
        said.append(DiskMark("one", writes))
        heard = said[late % len(said)] if late % 3 else other._replace(incarnation="two")
        known = None if late == 99 else kept(known, heard)
        assert not is_older(known, DiskMark("one", writes))


@given(MARKS, MARKS)
def test_d52_the_greater_mark_of_a_life_is_kept(known: DiskMark, heard: DiskMark) -> None:
    after = kept(known, heard)
    assert after.incarnation == heard.incarnation
    assert after == (max(known, heard) if known.incarnation == heard.incarnation else heard)
    assert kept(after, heard) == after and kept(None, heard) == heard


@pytest.mark.parametrize(("things", "current", "lacks"), [
    ([], {A, B, C}, None),
    ([Copies("s", (A, B, C), 2)], {B, C}, None),
    ([Copies("s", (A, B, C), 2)], {B, D}, "s"),
    ([Copies("s", (A, B, C), 2)], {A, B}, "s"),                     # its own disk counts for nothing
    ([Copies("s", (B, C, D), 2)], set(), None),                      # it holds nothing of it
    ([Copies("s", (A, B, C), 2, at_rest=False)], {B, C, D}, "s"),
    ([Copies("s", (A,), 0)], {B, C}, "s"),                           # the only copy
    ([Copies("s", (A, B, C), 2), Copies("r", (A, D), 1)], {B, C}, "r")])
def test_d52_the_last_copies_of_nothing_go_with_an_older_disk(
    things: list[Copies], current: set[Member], lacks: str | None
) -> None:
    assert needs(A, things, current) == lacks
