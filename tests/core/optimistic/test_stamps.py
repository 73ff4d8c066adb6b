from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from tidemark_core.optimistic.stamps import (
    BEYOND_MS,
    LOGICAL_MAX,
    START_BYTES,
    ZERO,
    Actor,
    Clock,
    Dot,
    Stamp,
    actor_of,
)

from .cases import A, B, C, stamp, stamps

SKEW_MS = 500


def test_d53_every_run_of_a_node_is_another_actor() -> None:
    first, second = actor_of("n1", "boot 1"), actor_of("n1", "boot 2")

    assert first != second and first.node == second.node == "n1"
    assert START_BYTES == len(first.start) == len(second.start)
    assert first == actor_of("n1", "boot 1")


def test_d53_dots_count_from_one_for_all_keys() -> None:
    clock = Clock(A, SKEW_MS)

    assert [1, 2, 3] == [clock.draw(5).n for _ in range(3)]


@given(st.lists(st.integers(0, 20) | stamps))
@example([stamp(3, C), stamp(3, C, 1), 3])
def test_d54_each_stamp_is_above_all_that_the_clock_drew_or_saw(story: list[int | Stamp]) -> None:
    """Also while the node's own clock is set back, or behind those of others."""
    clock, highest = Clock(B, SKEW_MS), ZERO
    for each in story:
        if isinstance(each, Stamp):
            clock.saw(each, 0)
            highest = max(highest, each)
        else:
            drawn = clock.draw(each)
            assert drawn.stamp > highest
            assert drawn.stamp.ms >= each
            assert B == drawn.actor
            highest = drawn.stamp


def test_d54_a_stamp_from_the_future_raises_no_clock() -> None:
    """A node that heard of one would draw above it for every key from then on, and owners would refuse all of it."""
    clock = Clock(B, SKEW_MS)
    clock.saw(stamp(1_000 + SKEW_MS + 1, C), 1_000)
    assert stamp(1_000, B) == clock.draw(1_000).stamp

    beyond = clock.draw(1_000, stamp(9_000, C, 3))
    assert (1, 9_000, 4, "b") == (beyond.n, *beyond.stamp[:3])
    assert (2, stamp(1_000, B, 1)) == clock.draw(1_000)

    clock.saw(stamp(1_000 + SKEW_MS, C), 1_000)
    assert clock.draw(1_000).stamp > stamp(1_000 + SKEW_MS, C)


def test_d53_d54_a_dot_above_a_stamp_from_the_future_has_an_actor_of_its_own() -> None:
    """So no actor has a later number with a lower stamp: that one could be removed and collected before this one."""
    clock, again = Clock(B, SKEW_MS), Clock(Actor("b", b"later..."), SKEW_MS)
    actors = [each.draw(1_000, stamp(9_000)).actor for each in (clock, again)]
    assert 3 == len({B, *actors}) and {"b"} == {actor.node for actor in actors}

    assert stamp(9_001) == Clock(A, SKEW_MS).draw(1, stamp(9_000, C, LOGICAL_MAX)).stamp._replace(start=A.start)


def test_d53_d54_dots_above_stamps_from_the_future_have_few_actors_and_each_the_order_of_its_stamps() -> None:
    """A clock that is behind draws many: an actor for each would leave as many removed cells in one element."""
    clock = Clock(B, SKEW_MS)
    times = [9_000, 70_000, 9_000, 3, BEYOND_MS - 1, 8_000, 9_001, 70_000]
    drawn = [(clock.draw(1, stamp(ms, C, LOGICAL_MAX)), ms) for ms in times]
    of: dict[Actor, list[Dot]] = {}
    for dot, ms in drawn:
        assert dot.stamp > stamp(ms, C, LOGICAL_MAX)
        of.setdefault(dot.actor, []).append(dot)
    assert 3 == len(of)
    for dots in of.values():
        assert sorted(dots) == dots == sorted(dots, key=lambda dot: dot.stamp) and len(dots) == len(set(dots))


def test_d54_a_millisecond_with_every_logical_time_drawn_is_followed_by_the_next() -> None:
    clock = Clock(A, SKEW_MS)
    clock.saw(stamp(7, B, LOGICAL_MAX), 7)

    assert stamp(8) == clock.draw(7).stamp


def test_d54_a_stamp_may_be_ahead_by_what_clocks_may_differ() -> None:
    assert 1_000 + SKEW_MS == Clock(A, SKEW_MS).latest_ms(1_000)
