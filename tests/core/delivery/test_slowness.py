"""Slow members: found when reading waits for them and they are far behind the others, never for less."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from tidemark_core.delivery.messages import Reason
from tidemark_core.delivery.reader import ReaderSettings
from tidemark_core.delivery.slowness import (
    KEPT_OUT_MS,
    KEPT_OUT_MS_MAX,
    ROUND_MS,
    SlowDetection,
    Slowness,
    room_for,
)

from tests.seeds import every_seed

from .world import World

MIB = 1 << 20


# --- the meters alone -------------------------------------------------------------------------------------


class Rounds:
    """Rounds in which each member did what the test says: (waited, busy, bytes)."""

    def __init__(self) -> None:
        self.slowness = Slowness()
        self.now = 0
        self.slowness.judge(0, 0)

    def round(self, members: dict[str, tuple[int, int, int]], room: int = 1) -> tuple[list[str], list[str]]:
        for node, (waited_ms, busy_ms, size) in members.items():
            self.slowness.busy(node, busy_ms)
            self.slowness.waited(node, waited_ms)
            if size:
                self.slowness.sent(node, 1, size)
        self.now += ROUND_MS
        verdict = self.slowness.judge(self.now, room)
        assert verdict is not None
        return [node for node, _ in verdict.slow], list(verdict.back)

    def until_slow(self, members: dict[str, tuple[int, int, int]], rounds: int = 20, room: int = 1) -> int | None:
        """Return the round in which somebody was found slow, None if nobody was."""
        for number in range(1, rounds + 1):
            if self.round(members, room)[0]:
                return number
        return None


FAST = (0, 20, MIB)
SLOW = (900, 900, MIB)


def test_a_member_far_slower_than_the_others_is_found_in_a_few_rounds() -> None:
    rounds = Rounds()

    assert 3 == rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST})
    assert ["b"] == list(rounds.slowness.out)


def test_after_a_good_while_it_takes_some_more() -> None:
    rounds = Rounds()
    assert rounds.until_slow({"a": FAST, "b": FAST, "c": FAST}, 50) is None

    assert 4 == rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST})


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param((900, 190, MIB), id="the slowest of near equals takes all of the wait"),
        pytest.param((200, 900, MIB), id="nobody waits for it"),
        pytest.param((900, 900, 50 * MIB), id="it is the one that does the work"),
    ],
)
def test_nobody_is_slow_for_one_of_the_two_measures(slow: tuple[int, int, int]) -> None:
    assert Rounds().until_slow({"a": FAST, "b": slow, "c": FAST}, 100) is None


def test_one_hiccup_makes_nobody_slow_however_long() -> None:
    for good in range(40):
        rounds = Rounds()
        for _ in range(good):
            rounds.round({"a": FAST, "b": FAST, "c": FAST})
        rounds.round({"a": FAST, "b": (60_000, 60_000, MIB), "c": FAST})

        assert rounds.until_slow({"a": FAST, "b": FAST, "c": FAST}) is None


def test_a_newcomer_gets_its_rounds() -> None:
    rounds = Rounds()
    for _ in range(10):
        rounds.round({"a": FAST, "c": FAST})

    assert ([], []) == rounds.round({"a": FAST, "b": SLOW, "c": FAST})


def test_without_others_to_compare_with_nobody_is_slow() -> None:
    assert Rounds().until_slow({"a": SLOW}) is None
    assert Rounds().until_slow({"a": SLOW, "b": (0, 500, 0), "c": (0, 0, 0)}) is None


def test_members_that_send_by_turns_are_compared_all_the_same() -> None:
    rounds = Rounds()
    for number in range(60):
        turn = "abc"[number // 4 % 3]
        assert ([], []) == rounds.round({turn: (950, 1_000, 10 * MIB)})


def test_small_items_are_compared_by_number() -> None:
    """Bytes alone would call b slow: it sends as many items as the others, of a hundredth of the size."""
    rounds = Rounds()
    for _ in range(50):
        for node, size in (("a", 10_000), ("b", 100), ("c", 10_000)):
            rounds.slowness.sent(node, 30, 30 * size)
        assert ([], []) == rounds.round({"a": (0, 300, 0), "b": (300, 300, 0), "c": (0, 300, 0)})


def test_short_waits_are_the_way_to_the_member() -> None:
    slowness = Slowness()
    slowness.judge(0, 1)
    for now in range(ROUND_MS, 50 * ROUND_MS, ROUND_MS):
        for _ in range(100):
            slowness.waited("b", 9)
        slowness.busy("b", 900)
        for node in "abc":
            slowness.sent(node, 1, MIB)
        verdict = slowness.judge(now, 1)
        assert verdict is not None and not verdict.slow


def test_time_in_which_a_member_found_nothing_to_send_is_not_held_against_it() -> None:
    rounds = Rounds()
    for _ in range(100):
        rounds.round({"a": FAST, "b": (0, 1_000, 0), "c": FAST})

    assert rounds.until_slow({"a": FAST, "b": (300, 20, MIB), "c": FAST}) is None


def test_a_slow_member_is_kept_out_for_a_minute_and_twice_as_long_each_time_up_to_half_an_hour() -> None:
    rounds = Rounds()
    lengths = []
    for _ in range(7):
        assert rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST}) is not None
        began = rounds.now
        while rounds.slowness.out:
            slow, back = rounds.round({"a": FAST, "c": FAST})
            assert [] == slow
        assert ["b"] == back
        lengths.append(rounds.now - began)

    assert [KEPT_OUT_MS * 2**power for power in range(5)] == lengths[:5]
    assert [KEPT_OUT_MS_MAX] * 2 == lengths[5:]


def test_after_half_an_hour_of_good_work_it_is_a_minute_again() -> None:
    rounds = Rounds()
    for _ in range(2):
        rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST})
        rounds.now += 3 * KEPT_OUT_MS
        rounds.round({"a": FAST, "c": FAST})
    rounds.until_slow({"a": FAST, "b": FAST, "c": FAST}, KEPT_OUT_MS_MAX // ROUND_MS)

    rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST})

    assert rounds.now + KEPT_OUT_MS == rounds.slowness.out["b"]


def test_never_more_than_there_is_room_for_and_the_slowest_first() -> None:
    rounds = Rounds()
    members = {"a": FAST, "b": (300, 500, MIB), "c": (400, 900, MIB), "d": FAST, "e": FAST}

    rounds.until_slow(members, room=1)
    assert ["c"] == list(rounds.slowness.out)
    del members["c"]
    assert rounds.until_slow(members, room=1) is None
    rounds.until_slow(members, room=2)

    assert {"b", "c"} == set(rounds.slowness.out)


@pytest.mark.parametrize(
    ("members", "down", "room"),
    [(1, "", 0), (2, "", 0), (3, "", 1), (3, "a", 0), (4, "", 1), (5, "", 2), (5, "a", 1), (5, "abc", 0), (7, "", 3)],
)
def test_a_majority_is_never_kept_out(members: int, down: Iterable[str], room: int) -> None:
    assert room == room_for(members, tuple(down))


def test_who_is_down_or_left_is_not_slow_any_more() -> None:
    rounds = Rounds()
    rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST})
    rounds.slowness.forget("b")
    assert {} == rounds.slowness.out

    rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST})
    assert rounds.now + 2 * KEPT_OUT_MS == rounds.slowness.out["b"], "that it was slow before is remembered"
    rounds.slowness.keep(("a", "c"))
    rounds.until_slow({"a": FAST, "b": SLOW, "c": FAST})

    assert rounds.now + KEPT_OUT_MS == rounds.slowness.out["b"], "of one that left it is not"


def test_a_round_without_work_goes_on() -> None:
    slowness = Slowness()

    assert slowness.judge(0, 1) is None
    assert slowness.judge(10 * ROUND_MS, 1) is None


# --- in a world -------------------------------------------------------------------------------------------


def world(
    names: str = "abc", detection: SlowDetection = SlowDetection.ON, window_bytes: int = 3 << 20, rate: int = 100_000,
) -> World:
    """Members that send 100 MB a second each, and an application that takes it all."""
    made = World(
        Random(1), tuple(names), ReaderSettings(window_bytes=window_bytes, slow_detection=detection), rate=rate
    )
    made.travel_max_ms = 1
    return made


def fill(made: World, mib: int, *, block: int = 1) -> None:
    """Log so much, in entries of 100 KiB; `block` entries share an order, first slots spread evenly."""
    size = len(made.members)
    for number in range(mib * 10):
        first = number // block % size
        order = sum((first + place) % size << 4 * place for place in range(size))
        made.log.append(100, 100 << 10, order)
    for member in made.members.values():
        member.release(made.log.head)


def slow_notes(made: World) -> list[str]:
    return [note.node for _, note in made.notes if note.what == "slow"]


@pytest.mark.parametrize("block", [1, 7, 320])
@pytest.mark.parametrize("window_bytes", [3 << 20, 16 << 20])
def test_a_node_fifty_times_slower_is_gone_around_within_seconds(block: int, window_bytes: int) -> None:
    made = world(window_bytes=window_bytes)
    made.members["b"].rate = 2_000
    fill(made, 1_000, block=block)
    made.begin()

    assert made.run_until(120_000, lambda: bool(slow_notes(made))), "never found"
    found_ms, at = made.now, made.expected
    assert found_ms < (10_000 if block < 100 else 60_000)
    assert ["b"] == slow_notes(made)
    assert made.run_until(made.now + 10_000, lambda: made.expected > made.log.head), "still waits for it"

    assert made.now - found_ms < 10_000, "the others bring the rest at their pace"
    assert ["b"] == slow_notes(made)
    assert {} == made.reader.down
    assert at < made.expected
    assert [Reason.SLOW] == [note.reason for _, note in made.notes if note.what == "rewind"]


def test_only_watching_changes_nothing_but_tells() -> None:
    made = world(detection=SlowDetection.OBSERVE)
    made.members["b"].rate = 2_000
    fill(made, 100)
    made.begin()
    made.run_until(30_000)

    assert ["b"] == slow_notes(made)
    assert (() , 1) == (made.reader.known_down, made.reader.generation)


def test_switched_off_nothing_is_told() -> None:
    made = world(detection=SlowDetection.OFF)
    made.members["b"].rate = 2_000
    fill(made, 100)
    made.begin()
    made.run_until(30_000)

    assert [] == made.notes


@every_seed(12)
def test_mild_differences_make_nobody_slow(seed: int) -> None:
    dice = Random(seed)
    made = world("abcde"[:dice.choice((3, 5))], window_bytes=dice.choice((3 << 20, 16 << 20)))
    for member in made.members.values():
        member.rate = dice.randint(2_000, 10_000)
    made.travel_max_ms = dice.choice((1, 10))
    fill(made, 300, block=dice.choice((1, 10, 320)))
    made.begin()

    assert made.run_until(300_000, lambda: made.expected > made.log.head)
    assert [] == made.notes


def test_a_slow_application_makes_nobody_slow() -> None:
    made = world()
    made.members["b"].rate = 10_000
    made.application.item_ms = 20
    fill(made, 100)
    made.begin()

    assert made.run_until(60_000, lambda: made.expected > made.log.head)
    assert [] == made.notes


def tail(made: World, seconds: int, every_ms: int) -> None:
    """Append an entry again and again, and let the reader follow."""
    made.begin()
    made.run_until(1_000)
    size = len(made.members)
    for number in range(seconds * 1_000 // every_ms):
        order = sum((number + place) % size << 4 * place for place in range(size))
        made.log.append(1, 2_000, order)
        for member in made.members.values():
            member.release(made.log.head)
        made.run_until(made.now + every_ms)


@pytest.mark.parametrize("every_ms", [10, 100, 1_000])
def test_at_the_tail_a_node_that_is_always_a_second_late_is_gone_around(every_ms: int) -> None:
    made = world()
    made.members["b"].delay_ms = 1_000
    tail(made, 40, every_ms)

    assert ["b"] == slow_notes(made)
    assert ("b",) == made.reader.known_down
    late = made.log.head + 1 - made.expected
    assert late <= 1, "the others bring it at once"


@pytest.mark.parametrize("every_ms", [3, 10, 100, 1_000])
def test_at_the_tail_a_node_some_milliseconds_away_is_not_slow(every_ms: int) -> None:
    made = world()
    made.members["b"].delay_ms = 8
    tail(made, 20, every_ms)

    assert [] == made.notes


def test_a_slow_node_sends_no_more_than_its_first_window_while_others_stand_in() -> None:
    made = world()
    made.members["b"].rate = 2_000
    fill(made, 200)
    made.begin()
    made.run_until(60_000, lambda: bool(slow_notes(made)))
    made.run_until(made.now + 100)
    made.members["b"].rate = 100_000
    before = made.reader.sources["b"].bytes_received

    fill(made, 200)
    made.run_until(made.now + 20_000, lambda: made.expected > made.log.head)

    assert made.reader.sources["b"].bytes_received - before <= 3 * (1 << 20), "its part would be a third of 200 MiB"


def test_a_slow_node_comes_back_after_its_minute_and_is_kept_when_it_has_recovered() -> None:
    made = world()
    made.members["b"].rate = 2_000
    fill(made, 100)
    made.begin()
    made.run_until(60_000, lambda: bool(slow_notes(made)))
    made.members["b"].rate = 100_000
    made.run_until(made.now + KEPT_OUT_MS + 1_000)

    fill(made, 100)
    made.run_until(made.now + 5_000)
    fill(made, 100)
    made.run_until(made.now + 5_000)

    assert ["b"] == slow_notes(made)
    assert () == made.reader.known_down
    assert Reason.BACK in [note.reason for _, note in made.notes if note.what == "rewind"]
    assert made.reader.sources["b"].entries_delivered > 400


def test_down_wins_over_slow_and_slow_is_better_than_nobody() -> None:
    made = world()
    made.members["b"].rate = 2_000
    fill(made, 100)
    made.begin()
    made.run_until(60_000, lambda: bool(slow_notes(made)))

    made.kill("a")
    made.kill("c")
    made.run_until(made.now + 100)

    assert ("a", "c") == made.reader.known_down
    assert not made.reader.all_send_all
    made.kill("b")
    assert {"a", "b", "c"} == set(made.reader.down)


def test_who_was_down_is_not_slow_when_it_is_back() -> None:
    made = world()
    made.members["b"].rate = 2_000
    fill(made, 100)
    made.begin()
    made.run_until(60_000, lambda: bool(slow_notes(made)))
    made.kill("b")
    made.run_until(made.now + 100)
    assert {"b"} == set(made.reader.down)

    made.revive("b")
    made.members["b"].rate = 100_000
    made.run_until(made.now + 3_000)
    fill(made, 50)
    made.run_until(made.now + 3_000)

    assert () == made.reader.known_down
