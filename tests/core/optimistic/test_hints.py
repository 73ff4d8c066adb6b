"""Hints of a node: which it takes, when they go, and what it answers to a round."""

from __future__ import annotations

import pytest
from tidemark_core.optimistic.cells import StringCell
from tidemark_core.optimistic.hints import Bounds, Hint, Hints, Refusal
from tidemark_core.optimistic.messages import StringWrite

from .cases import stamp
from .owning import INDEX, KEY

NOW_MS = 2_000
BOUNDS = Bounds(began_ms=1_000, write_window_ms=1_000, bytes_max=100)


def a_hint(ms: int = 1_900, size: int = 10, *, obliged: bool = True, index: int = INDEX) -> Hint:
    return Hint(index, StringWrite(KEY, StringCell(stamp(ms), False, 0, b"x")), stamp(ms), size, obliged)


def test_d73_a_hint_must_be_newer_than_the_node_its_promise_and_half_of_the_write_window() -> None:
    hints = Hints(BOUNDS)
    assert hints.refusal(NOW_MS, a_hint(1_501)) is None
    assert Refusal.OLD is hints.refusal(NOW_MS, a_hint(1_500))
    assert Refusal.OLD is Hints(Bounds(1_950, 1_000, 100)).refusal(NOW_MS, a_hint(1_950))
    hints.promise(INDEX, 1_800)
    assert Refusal.OLD is hints.refusal(NOW_MS, a_hint(1_800)) and hints.refusal(NOW_MS, a_hint(1_801)) is None
    assert hints.refusal(NOW_MS, a_hint(1_800, index=9)) is None, "of another range"


def test_d73_a_full_store_refuses_obliged_hints_and_drops_no_obliged_one() -> None:
    hints = Hints(BOUNDS)
    for number in range(9):
        assert hints.refusal(NOW_MS, a_hint()) is None and (number, []) == hints.take(a_hint())
    assert Refusal.FULL is hints.refusal(NOW_MS, a_hint(size=11))
    assert Refusal.FULL is hints.refusal(NOW_MS, a_hint(size=11, obliged=False))
    assert (9, []) == hints.take(a_hint()) and Refusal.FULL is hints.refusal(NOW_MS, a_hint(size=1))


def test_d73_hints_that_were_not_counted_go_first_and_their_range_needs_repair() -> None:
    hints = Hints(BOUNDS)
    hints.take(a_hint(size=50, obliged=False, index=8))
    hints.take(a_hint(size=50, obliged=False, index=9))
    assert hints.refusal(NOW_MS, a_hint(size=50)) is None
    assert (2, [0]) == hints.take(a_hint(size=50))
    assert {8: None} == hints.dropped and [1, 2] == list(hints.held)


def test_d73_a_hint_stays_until_a_write_quorum_has_it() -> None:
    hints = Hints(BOUNDS)
    number, _ = hints.take(a_hint(size=100))
    hints.delivered(number)
    hints.delivered(number)
    assert {} == hints.held and hints.refusal(NOW_MS, a_hint(size=100)) is None


def test_d69_d73_a_round_waits_for_obliged_hints_up_to_the_floor_and_for_no_others() -> None:
    hints = Hints(BOUNDS)
    old, _ = hints.take(a_hint(1_600))
    cached, _ = hints.take(a_hint(1_600, obliged=False))
    hints.take(a_hint(1_900))
    hints.take(a_hint(1_600, index=9))
    assert not hints.promise(INDEX, 1_700) and cached not in hints.held
    hints.delivered(old)
    assert hints.promise(INDEX, 1_700) and 2 == len(hints.held)


def test_d69_a_lower_floor_takes_no_promise_back() -> None:
    hints = Hints(BOUNDS)
    hints.promise(INDEX, 1_800)
    hints.promise(INDEX, 1_700)
    assert Refusal.OLD is hints.refusal(NOW_MS, a_hint(1_750))


@pytest.mark.parametrize(("obliged", "lost"), [(True, {INDEX: 1}), (False, {})])
def test_d70_an_obliged_hint_that_the_floor_overtook_is_counted(obliged: bool, lost: dict[int, int]) -> None:
    hints = Hints(BOUNDS)
    number, _ = hints.take(a_hint(obliged=obliged))
    hints.overtaken(number)
    hints.overtaken(number)
    assert lost == hints.lost and {} == hints.held


def test_d73_what_was_on_the_disk_is_kept_and_counted_on() -> None:
    hints = Hints(BOUNDS)
    hints.recover({5: a_hint(size=60), 3: a_hint(size=20)}, {INDEX: 1_800})
    assert [3, 5] == list(hints.held) and Refusal.OLD is hints.refusal(NOW_MS, a_hint(1_750))
    assert Refusal.FULL is hints.refusal(NOW_MS, a_hint(size=21)) and (6, []) == hints.take(a_hint(size=20))
