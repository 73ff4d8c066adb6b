"""The reader, one rule at a time."""

from __future__ import annotations

import pytest
from tidemark_core.delivery.messages import DAMAGED, GapKind, Item, Reason, Started, Status, entries_item
from tidemark_core.delivery.order import SLOTS_MAX, Mode
from tidemark_core.delivery.reader import FORGIVEN_MS, Reader, ReaderSettings
from tidemark_core.delivery.slowness import SlowDetection

from .hand import Hand, hole, item
from .world import Logged

SCD_MS = ReaderSettings().scd_timeout_ms
SILENT_MS = ReaderSettings().silent_timeout_ms
ALL_MS = ReaderSettings().all_send_all_timeout_ms
STARTED_MS = ReaderSettings().started_timeout_ms
HASTY = ReaderSettings(slow_detection=SlowDetection.OFF)
PATIENT = ReaderSettings(silent_timeout_ms=SCD_MS, slow_detection=SlowDetection.OFF)
SMALL = ReaderSettings(window_bytes=900, slow_detection=SlowDetection.OFF)


# --- delivering -------------------------------------------------------------------------------------------


def test_items_are_delivered_in_order_whoever_sends_them_first() -> None:
    hand = Hand()

    hand.ship("b", 9, item(3, 5))
    hand.ship("c", 9, item(6, 9))
    assert [] == hand.out
    hand.ship("a", 2, item(0, 2))

    assert [(0, 2), (3, 5), (6, 9)] == hand.out
    assert [] == hand.notes


def test_s4_start_carries_mode_known_down_ensemble_and_window() -> None:
    hand = Hand(first=7, until=90)
    start = hand.told("b")

    assert (7, 90, Mode.SINGLE_COPY, (), ("a", "b", "c")) == (
        start.first, start.until, start.mode, start.known_down, start.ensemble
    )
    assert start.window_bytes == hand.reader.settings.window_bytes // 3


def test_s4_without_single_copy_start_carries_no_known_down() -> None:
    hand = Hand(mode=Mode.ALL_SEND_ALL)

    hand.close("a")
    hand.connect("b")

    assert {"a"} == set(hand.reader.down)
    assert (Mode.ALL_SEND_ALL, ()) == (hand.told("b").mode, hand.told("b").known_down)


def test_s32_local_reading_tells_how_near_each_slot_is() -> None:
    assert (Mode.LOCAL, (0, 5, 1)) == ((start := Hand(mode=Mode.LOCAL, priorities=(0, 5, 1)).told("a")).mode,
                                       start.priorities)
    assert (0, 0, 0) == Hand(mode=Mode.LOCAL).told("a").priorities
    assert () == Hand(priorities=(0, 5, 1)).told("a").priorities


def test_s6_copies_that_were_delivered_or_lie_here_are_dropped() -> None:
    hand = Hand()

    hand.ship("a", 5, item(0, 2), item(5))
    hand.ship("b", 5, item(0, 2), item(3, 4), item(5))

    assert [(0, 2), (3, 4), (5, 5)] == hand.out
    assert 2 == hand.reader.duplicates


def test_of_entries_sent_as_one_only_those_that_are_wanted_are_delivered() -> None:
    """A member that sends on behind the end breaks no rule that a reader could suffer from."""
    hand = Hand(first=4, until=7)

    hand.ship("a", 11, entries_item([Logged(first, first + 1, 100, 0, False) for first in (3, 5, 7, 9)]))

    assert [(4, 7)] == hand.out and hand.finished
    assert (300, 0) == (hand.reader.delivered_bytes, hand.reader.duplicates)


def test_a_reader_that_begins_and_ends_inside_entries_gets_that_part_of_them() -> None:
    hand = Hand(first=4, until=7)

    hand.ship("a", 9, item(3, 5), item(6, 9))

    assert [(4, 5), (6, 7)] == hand.out
    assert hand.finished


def test_a_reader_that_wants_nothing_ends_at_once() -> None:
    hand = Hand(first=5, until=4, started=False)

    assert hand.finished
    assert {"a": [], "b": [], "c": []} == hand.starts


@pytest.mark.parametrize("until", [4, 7])
def test_holes_are_told_as_far_as_the_reader_reads(until: int) -> None:
    hand = Hand(first=2, until=until)

    hand.ship("a", 9, hole(0, 9))

    assert [(GapKind.HOLE, 2, until)] == hand.out
    assert hand.finished


def test_two_nodes_may_cut_one_hole_differently() -> None:
    hand = Hand()

    hand.ship("b", 4, hole(1, 4))
    hand.ship("c", 9, hole(1, 9))
    hand.ship("a", 0, item(0))
    hand.ship("a", 12, hole(8, 12))

    assert [(0, 0), (GapKind.HOLE, 1, 9), (GapKind.HOLE, 10, 12)] == hand.out


def test_trimmed_offsets_are_one_gap_as_soon_as_one_node_vouches() -> None:
    hand = Hand(started=False)
    hand.connect("a")
    hand.connect("b")

    hand.start("a")
    hand.start("b", first=50)

    assert [(GapKind.TRIM, 0, 49)] == hand.out


def test_what_is_here_is_delivered_though_retention_passed_it() -> None:
    hand = Hand(started=False)
    hand.connect("a")
    hand.connect("b")

    hand.start("a")
    hand.ship("a", 19, item(0, 19))
    hand.start("b", first=50)

    assert [(0, 19), (GapKind.TRIM, 20, 49)] == hand.out


def test_a_node_whose_retention_overtakes_the_stream_says_started_again_and_goes_on() -> None:
    hand = Hand()
    hand.ship("a", 9, item(0, 9))

    hand.start("a", first=30)
    hand.ship("a", 39, item(30, 39), first=30)

    assert [(0, 9), (GapKind.TRIM, 10, 29), (30, 39)] == hand.out
    assert [] == hand.notes


def test_trim_ends_where_the_reader_does() -> None:
    hand = Hand(until=20, started=False)
    hand.connect("a")
    hand.start("a", first=50)

    assert [(GapKind.TRIM, 0, 20)] == hand.out
    assert hand.finished


def test_access_denied_ends_the_read() -> None:
    hand = Hand(started=False)
    hand.connect("a")
    hand.ship("a", 5, item(0, 5))

    hand.start("a", Status.ACCESS)

    assert [(GapKind.ACCESS, 0, 0)] == hand.out
    assert hand.finished
    assert hand.wake_ms is None


def test_nothing_happens_after_the_end() -> None:
    hand = Hand(until=0)
    hand.ship("a", 5, item(0))
    assert hand.finished
    hand.out.clear()

    hand.ship("b", 5, item(0))
    hand.start("b", Status.ACCESS)
    hand.close("c")
    hand.connect("c")
    hand.run(hand.reader.on_ensemble(hand.now, ("a",)))
    hand.run(hand.reader.on_time(hand.now))
    hand.run(hand.reader.on_corrupt(hand.now, "b", hand.reader.generation, "?"))

    assert ([], []) == (hand.out, hand.notes)


# --- rewind -----------------------------------------------------------------------------------------------


def test_s8_a_rewind_begins_at_the_next_offset_on_every_node_with_a_new_generation() -> None:
    hand = Hand()
    hand.ship("a", 9, item(0, 9))

    hand.close("b")
    hand.wait(1)

    assert 2 == hand.reader.generation
    for name in "abc":
        assert (2, 10, ("b",)) == (hand.told(name).generation, hand.told(name).first, hand.told(name).known_down)
    assert [Reason.CLOSED] == hand.reasons("rewind")


def test_s8_what_an_older_generation_still_brings_changes_nothing() -> None:
    hand = Hand()
    hand.close("b")
    hand.wait(1)

    hand.start("a", generation=1)
    hand.ship("a", 50, item(0, 9), generation=1)
    assert not hand.reader.sources["a"].started
    hand.start("a")
    hand.ship("a", 50, item(0, 9), generation=1)
    assert ([], -1, 0) == (hand.out, hand.reader.sources["a"].through, hand.reader.sources["a"].sent_bytes)
    hand.run(hand.reader.on_corrupt(hand.now, "a", 1, "damaged"))

    assert {"b"} == set(hand.reader.down)
    assert 200 == hand.reader.sources["a"].bytes_received, "received all the same"


def test_s8_what_arrives_before_started_is_not_taken() -> None:
    hand = Hand(started=False)
    hand.connect("a")

    hand.ship("a", 5, item(0, 5))

    assert [] == hand.out
    assert -1 == hand.reader.sources["a"].through


def test_s8_changes_within_a_pause_are_one_rewind() -> None:
    hand = Hand("abcde")

    hand.close("a")
    hand.close("b")
    hand.wait(1)

    assert ("a", "b") == hand.told("c").known_down
    assert 1 == len(hand.reasons("rewind"))


def test_the_pause_in_front_of_a_rewind_grows_while_they_bring_nothing() -> None:
    hand = Hand("abcdefgh")
    pauses = []
    for name in "bcdefg":
        hand.close(name)
        pauses.append(hand.wake_ms - hand.now)
        hand.wait(pauses[-1])
        hand.start_all()
    assert [1, 2, 4, 8, 16, 32] == pauses

    hand.ship("a", 5, *(item(offset) for offset in range(6)))
    hand.close("h")

    assert 1 == hand.wake_ms - hand.now


def test_another_ensemble_is_a_rewind_with_the_new_members() -> None:
    hand = Hand()
    hand.close("c")
    hand.wait(1)
    hand.start_all()

    hand.run(hand.reader.on_ensemble(hand.now, ("a", "b", "d"), ()))
    hand.wait(2)

    assert {} == hand.reader.down, "who left is forgotten"
    assert ("a", "b", "d") == hand.told("d").ensemble == hand.told("a").ensemble
    hand.ship("c", 5, item(0, 5), first=0)
    assert [] == hand.out


def test_a_new_member_gets_its_time_to_answer() -> None:
    hand = Hand(released=-1)
    hand.wait(10 * STARTED_MS)

    hand.run(hand.reader.on_ensemble(hand.now, ("a", "b", "d"), ()))
    hand.wait(2)
    hand.start_all()
    hand.wait(STARTED_MS - 2)
    assert {} == hand.reader.down
    hand.wait(2)

    assert {"d"} == set(hand.reader.down)


def test_the_same_ensemble_is_no_news_but_other_places_are() -> None:
    hand = Hand(mode=Mode.LOCAL, priorities=(1, 0, 0))

    hand.run(hand.reader.on_ensemble(hand.now, ("a", "b", "c"), (1, 0, 0)))
    hand.wait(10)
    assert 1 == hand.reader.generation
    hand.run(hand.reader.on_ensemble(hand.now, ("a", "b", "c"), (0, 1, 0)))
    hand.wait(10)

    assert (2, (0, 1, 0)) == (hand.told("a").generation, hand.told("a").priorities)


@pytest.mark.parametrize(
    ("ensemble", "priorities", "named"),
    [
        ((), (), "ensemble"),
        (("a", "a"), (), "ensemble"),
        (tuple(str(number) for number in range(SLOTS_MAX + 1)), (), "ensemble"),
        (("a", "b"), (1,), "priorities"),
    ],
)
def test_an_impossible_ensemble_is_refused_by_name(
    ensemble: tuple[str, ...], priorities: tuple[int, ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        Reader(ensemble, 0, priorities=priorities)
    hand = Hand()
    with pytest.raises(ValueError, match=named):
        hand.reader.on_ensemble(hand.now, ensemble, priorities)

    assert ("a", "b", "c") == hand.reader.ensemble


def test_a_first_offset_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="first"):
        Reader(("a",), -1)


# --- into known_down --------------------------------------------------------------------------------------


def test_s9_a_bad_checksum_lists_the_node_and_rewinds() -> None:
    hand = Hand()

    hand.run(hand.reader.on_corrupt(hand.now, "a", 1, "payload fails its checksum"))
    hand.wait(1)

    assert {"a": "payload fails its checksum"} == hand.reader.down
    assert [Reason.CORRUPT] == hand.reasons("rewind")
    assert ("a",) == hand.told("b").known_down


def test_s9_a_damaged_item_is_not_delivered_and_counts_as_an_answer() -> None:
    hand = Hand()

    hand.ship("a", 9, item(0, 4), Item(5, 9, 100, DAMAGED))

    assert [(0, 4)] == hand.out
    assert {"a"} == set(hand.reader.down)
    assert 9 == hand.reader.sources["a"].through


def test_s9_a_node_is_not_taken_back_before_what_it_sent_damaged_is_behind() -> None:
    hand = Hand(settings=SMALL)
    hand.ship("a", 59, item(0, 4), Item(50, 59, 100, DAMAGED))
    hand.wait(1)
    hand.start_all()
    hand.ship("a", 14, item(10, 14))

    hand.ship("b", 9, item(5, 9, 700))
    assert {"a"} == set(hand.reader.down)
    hand.ship("b", 59, item(15, 59, 700))

    assert {} == hand.reader.down


def test_s10_a_node_that_cannot_be_reached_is_listed() -> None:
    hand = Hand(started=False)

    hand.close("a")
    assert {"a": "closed"} == hand.reader.down
    for name in "bc":
        hand.connect(name)
        hand.start(name)
    hand.wait(1)

    assert ("a",) == hand.told("b").known_down


def test_s10_nor_is_it_waited_for_when_nobody_says_that_it_failed() -> None:
    hand = Hand(started=False)
    for name in "bc":
        hand.connect(name)
        hand.start(name)

    hand.wait(STARTED_MS)

    assert [Reason.NO_ANSWER] == hand.reasons("known_down")
    assert {"a"} == set(hand.reader.down)


def test_s11_a_node_that_does_not_answer_start_in_time_is_listed() -> None:
    hand = Hand(started=False)
    for name in "abc":
        hand.connect(name)
    hand.start("a")
    hand.start("b")

    hand.wait(STARTED_MS - 1)
    assert {} == hand.reader.down
    hand.wait(1)

    assert {"c"} == set(hand.reader.down)
    assert [Reason.NO_ANSWER] == hand.reasons("known_down")


def test_s11_an_answer_that_comes_late_is_an_answer() -> None:
    hand = Hand(started=False, released=-1)
    for name in "abc":
        hand.connect(name)
    hand.start("a")
    hand.start("b")
    hand.wait(STARTED_MS + 2)
    hand.start("a")
    hand.start("b")
    starts = len(hand.starts["c"])

    hand.wait(20 * STARTED_MS)
    assert starts == len(hand.starts["c"]), "it was told once: told again, a slow one would never be done answering"
    hand.start("c")

    assert hand.reader.sources["c"].started


@pytest.mark.parametrize("status", [Status.NOT_MEMBER, Status.UNAVAILABLE])
def test_s12_a_node_that_refuses_start_is_listed_and_asked_again(status: Status) -> None:
    hand = Hand(started=False)
    for name in "abc":
        hand.connect(name)
    hand.start("a", status)
    assert {"a": str(status)} == hand.reader.down
    assert [Reason.REFUSED] == hand.reasons("known_down")
    hand.wait(1)
    hand.start("b")
    hand.start("c")
    hand.start("a", status)
    starts = len(hand.starts["a"])

    hand.wait(STARTED_MS - 1)
    assert starts == len(hand.starts["a"])
    hand.wait(1)

    assert starts + 1 == len(hand.starts["a"])


def test_s12_a_node_may_take_back_that_it_started() -> None:
    hand = Hand()

    hand.start("a", Status.UNAVAILABLE)

    assert {"a"} == set(hand.reader.down)
    assert not hand.reader.sources["a"].started


def test_s13_a_closed_stream_lists_the_node() -> None:
    hand = Hand()

    hand.close("a")
    hand.ship("a", 9, item(0, 9))
    hand.wait(1)

    assert [] == hand.out
    assert ("a",) == hand.told("b").known_down
    assert [Reason.CLOSED] == hand.reasons("known_down")


def stalled(settings: ReaderSettings = PATIENT) -> Hand:
    """Offset 0 is node a's to send; the others have told that it is not theirs."""
    hand = Hand(settings=settings)
    hand.ship("b", 9, item(5))
    hand.ship("c", 9, item(6))
    return hand


def test_s14_a_silent_node_is_listed_after_the_timeout() -> None:
    hand = stalled()

    hand.wait(SCD_MS - 1)
    assert {} == hand.reader.down
    hand.wait(1)

    assert {"a"} == set(hand.reader.down)
    assert [Reason.SILENT] == hand.reasons("known_down")


def test_s14b_a_node_that_says_nothing_is_listed_after_a_second() -> None:
    hand = stalled(HASTY)

    hand.wait(SILENT_MS - 1)
    assert {} == hand.reader.down
    hand.wait(1)

    assert {"a"} == set(hand.reader.down)
    assert [Reason.SILENT] == hand.reasons("known_down")
    hand.wait(1)
    assert ("a",) == hand.told("b").known_down, "the others are asked for its share"


def test_s14b_a_node_that_never_answered_start_is_listed_after_a_second_too() -> None:
    hand = Hand(started=False)
    for name in "bc":
        hand.connect(name)
        hand.start(name)
        hand.ship(name, 9)

    hand.wait(SILENT_MS)

    assert {"a"} == set(hand.reader.down)


def test_s14b_a_node_that_says_something_has_the_long_time() -> None:
    """It works its way to the next offset: others need not send its share."""
    hand = stalled(HASTY)
    for _ in range(SCD_MS // SILENT_MS - 1):
        hand.wait(SILENT_MS - 1)
        hand.ship("a", -1)
    hand.wait(SILENT_MS - 1)
    assert {} == hand.reader.down
    hand.wait(1)

    assert {"a"} == set(hand.reader.down)


def slow_once(hand: Hand, last: int) -> int:
    """Ten offsets are released and node a's to send; it sends them when another stands in.  Return how long it had."""
    hand.released = last
    for name in "bc":
        hand.ship(name, last)
    began = hand.now
    while not hand.reader.down:
        hand.wait(1)
    waited = hand.now - began
    hand.wait(100)
    hand.start_all()
    hand.ship("c", last)
    for name in "ab":
        hand.ship(name, last, item(last - 9, last))
    hand.wait(100)
    hand.start_all()
    assert {} == hand.reader.down, "it sends again"
    return waited


def test_s14b_a_node_that_is_slow_again_and_again_gets_twice_the_time_each_time() -> None:
    hand = Hand(settings=HASTY, released=-1)

    waits = [slow_once(hand, last) for last in range(9, 69, 10)]

    assert [SILENT_MS, 2 * SILENT_MS, 4 * SILENT_MS, 8 * SILENT_MS, SCD_MS, SCD_MS] == waits
    assert [(first, first + 9) for first in range(0, 60, 10)] == hand.out, "each record once"
    hand.wait(FORGIVEN_MS)
    assert SILENT_MS == slow_once(hand, 69)


def test_s14_a_node_that_has_sent_beyond_the_next_offset_is_not_blamed() -> None:
    hand = Hand("abcd", settings=PATIENT)
    hand.ship("b", 9, item(5))
    hand.ship("c", 3)

    hand.wait(SCD_MS + 1)

    assert {"a", "d"} == set(hand.reader.down), "b has looked at offset 0, and so has c"


def test_s14_nobody_is_blamed_while_the_application_is_the_slow_one() -> None:
    hand = stalled()
    hand.slow_application = True
    hand.ship("a", 0, item(0))

    hand.wait(10 * ALL_MS)
    assert {} == hand.reader.down
    assert hand.wake_ms is None
    hand.consume()
    hand.wait(SCD_MS - 1)
    assert {} == hand.reader.down
    hand.wait(1)

    assert {"a"} == set(hand.reader.down), "offset 1 is nobody else's"


def test_s14_nobody_is_blamed_when_everything_released_is_delivered() -> None:
    hand = Hand(released=9, settings=PATIENT)
    hand.ship("a", 9, item(0, 9))

    hand.wait(10 * ALL_MS)

    assert ({}, False) == (hand.reader.down, hand.reader.all_send_all)
    assert hand.wake_ms is None


def test_s14_time_counts_from_the_release_of_the_next_offset() -> None:
    hand = Hand(released=9, settings=PATIENT)
    hand.ship("a", 9, item(0, 9))
    hand.wait(10 * ALL_MS)
    hand.released = 19
    hand.ship("b", 19)
    hand.ship("c", 19)

    hand.wait(SCD_MS - 1)
    assert {} == hand.reader.down
    hand.wait(1)

    assert {"a"} == set(hand.reader.down)


def test_s14_time_counts_from_when_somebody_has_answered() -> None:
    """All silent and then one speaks: the others get their time, for it may be the reader that was cut off."""
    hand = Hand(settings=PATIENT)
    hand.wait(SCD_MS + 5_000)
    hand.ship("b", 9)

    hand.wait(SCD_MS - 1)
    assert {} == hand.reader.down
    hand.wait(1)

    assert {"a", "c"} == set(hand.reader.down)


def test_s14_time_counts_anew_after_a_rewind() -> None:
    hand = stalled()
    hand.wait(SCD_MS + 1)
    assert {"a"} == set(hand.reader.down)
    hand.start_all()
    hand.ship("c", 9)

    hand.wait(SCD_MS - 1)
    assert {"a"} == set(hand.reader.down)
    hand.wait(1)

    assert {"a", "b"} == set(hand.reader.down)


def test_s14_never_puts_the_whole_read_set_into_known_down() -> None:
    hand = Hand()

    hand.wait(ALL_MS - 1)

    assert {} == hand.reader.down


# --- out of it --------------------------------------------------------------------------------------------


def listed(released: int = 99) -> Hand:
    """Node a is in known_down, connected again, and the rewind has been."""
    hand = Hand(settings=SMALL, released=released)
    hand.close("a")
    hand.wait(1)
    hand.connect("a")
    hand.start_all()
    return hand


def test_s15_listed_nodes_are_sent_start_and_may_send() -> None:
    hand = listed()
    assert (2, ("a",)) == (hand.told("a").generation, hand.told("a").known_down)

    hand.ship("a", 9, item(0, 9))

    assert [(0, 9)] == hand.out
    assert {"a"} == set(hand.reader.down), "until the window slides"


def test_s16_a_listed_node_that_sends_is_taken_out_when_the_window_slides() -> None:
    hand = listed()
    hand.ship("a", 9, item(0, 9))
    hand.ship("b", 19, item(10, 18, 500))
    assert {"a"} == set(hand.reader.down)

    hand.ship("b", 29, item(19, 29, 100))
    assert {} == hand.reader.down
    hand.wait(2)

    assert () == hand.told("b").known_down
    assert [Reason.CLOSED, Reason.BACK] == hand.reasons("rewind")


def test_s16_a_listed_node_that_does_not_send_stays_listed() -> None:
    hand = listed()
    hand.ship("a", 50)

    hand.ship("b", 29, item(0, 29, 700))

    assert {"a"} == set(hand.reader.down)


def test_s16_at_the_tail_the_window_slides_when_everything_is_consumed() -> None:
    hand = listed(released=9)

    hand.ship("a", 9, item(0, 9))

    assert {} == hand.reader.down


def test_s16_in_local_reading_a_far_node_is_back_when_it_answers_past_the_next_offset() -> None:
    hand = Hand(mode=Mode.LOCAL, priorities=(0, 1, 1), settings=SMALL)
    hand.close("a")
    hand.wait(1)
    hand.connect("a")
    hand.start_all()

    hand.ship("a", 50)
    hand.ship("b", 29, item(0, 29, 700))

    assert {} == hand.reader.down


def test_s16_in_local_reading_a_far_node_is_back_at_the_tail_where_the_near_ones_are_always_faster() -> None:
    hand = Hand(mode=Mode.LOCAL, priorities=(0, 1, 1), settings=SMALL)
    hand.close("a")
    hand.wait(1)
    hand.connect("a")
    hand.start_all()
    hand.ship("b", 98, item(0, 98, 700))
    assert {"a"} == set(hand.reader.down)

    hand.ship("a", 98)
    hand.ship("b", 99, item(99, 99, 700))

    assert {} == hand.reader.down


# --- all send all -----------------------------------------------------------------------------------------


def test_s17_listed_nodes_and_nodes_without_the_next_offset_are_all_there_are_at_once() -> None:
    hand = Hand()
    hand.close("a")
    hand.wait(1)
    hand.start_all()
    hand.ship("b", 9)
    assert not hand.reader.all_send_all

    hand.ship("c", 9)
    assert hand.reader.all_send_all
    hand.wait(2)

    assert (Mode.ALL_SEND_ALL, 0) == (hand.told("b").mode, hand.told("b").first)
    assert [Reason.CLOSED, Reason.ALL_SEND_ALL] == hand.reasons("rewind")


def test_s17_all_listed_are_all_there_are() -> None:
    hand = Hand("ab")

    hand.close("a")
    hand.close("b")
    hand.wait(10)

    assert hand.reader.all_send_all


def test_s18_no_progress_for_the_long_timeout_asks_everybody() -> None:
    hand = Hand()

    hand.wait(ALL_MS - 1)
    assert not hand.reader.all_send_all
    hand.wait(1)

    assert hand.reader.all_send_all
    assert {} == hand.reader.down


def test_s18_after_a_change_of_known_down_the_timeout_begins_anew_unless_all_are_silent() -> None:
    hand = Hand()
    hand.wait(ALL_MS - 1_000)
    hand.close("a")
    hand.wait(1)
    hand.connect("a")
    hand.start_all()
    hand.ship("a", 9, item(5))

    hand.wait(ALL_MS - 2)
    assert not hand.reader.all_send_all
    hand.wait(1)

    assert hand.reader.all_send_all


def test_s18_who_was_heard_before_the_rewind_is_silent_all_the_same() -> None:
    hand = stalled()
    hand.wait(SCD_MS + 1)
    hand.start_all()

    hand.wait(ALL_MS - SCD_MS - 1)

    assert hand.reader.all_send_all


def test_s18_comes_again_while_there_is_no_progress() -> None:
    hand = Hand("a")
    hand.wait(ALL_MS + 1)
    hand.start("a")
    starts = len(hand.starts["a"])

    hand.wait(ALL_MS + 1)

    assert starts + 1 == len(hand.starts["a"])


def test_s19_all_send_all_is_the_last_resort() -> None:
    """A node that fails costs a rewind; nobody is asked for copies."""
    hand = Hand()
    hand.close("a")
    hand.wait(1)
    hand.start_all()
    hand.ship("b", 9, item(0, 9))
    hand.ship("c", 19, item(10, 19))

    assert not hand.reader.all_send_all
    assert [(0, 9), (10, 19)] == hand.out


def test_s20_no_loss_is_told_in_single_copy() -> None:
    hand = Hand()
    for name in "abc":
        hand.ship(name, 9)

    assert [] == hand.out
    hand.wait(1)
    hand.start_all()
    for name in "ab":
        hand.ship(name, 9)
    assert [] == hand.out
    hand.ship("c", 9)

    assert [(GapKind.DATALOSS, 0, 9)] == hand.out


def test_s20_k18_silent_refusing_or_absent_nodes_mean_wait() -> None:
    hand = Hand("abcd")
    for name in "abcd":
        hand.ship(name, 9)
    hand.wait(1)
    hand.start("a")
    hand.start("b")
    hand.start("c", Status.NOT_MEMBER)
    hand.close("d")
    hand.ship("a", 9)
    hand.ship("b", 9)

    hand.wait(100 * ALL_MS)

    assert [] == hand.out


def test_s20_k18_the_loss_ends_where_something_is_held() -> None:
    hand = Hand()
    for name in "abc":
        hand.ship(name, 30)
    hand.wait(1)
    hand.start_all()
    hand.ship("a", 30, item(10, 12))
    hand.ship("b", 25)
    hand.ship("c", 28, item(20, 21))

    assert [
        (GapKind.DATALOSS, 0, 9), (10, 12), (GapKind.DATALOSS, 13, 19), (20, 21), (GapKind.DATALOSS, 22, 25),
    ] == hand.out


def test_s20_k18_damaged_everywhere_is_lost() -> None:
    hand = Hand(released=9)
    for name in "abc":
        hand.ship(name, 9, Item(0, 9, 100, DAMAGED))
    hand.wait(1)
    hand.start_all()
    assert hand.reader.all_send_all

    for name in "abc":
        hand.ship(name, 9, Item(0, 9, 100, DAMAGED))

    assert [(GapKind.DATALOSS, 0, 9)] == hand.out


def test_s20_holes_and_trims_are_vouched_for_and_need_no_failover() -> None:
    hand = Hand()

    hand.ship("a", 9, hole(0, 9))
    hand.start("b", first=20)

    assert [(GapKind.HOLE, 0, 9), (GapKind.TRIM, 10, 19)] == hand.out
    assert [] == hand.notes


def test_s21_back_to_single_copy_when_the_window_slides() -> None:
    hand = Hand(settings=SMALL)
    for name in "abc":
        hand.ship(name, 9)
    hand.wait(1)
    hand.start_all()
    hand.ship("c", 9, item(0, 9, 600))
    assert hand.reader.all_send_all

    hand.ship("c", 19, item(10, 19, 100))
    assert not hand.reader.all_send_all
    hand.wait(2)

    assert Mode.SINGLE_COPY is hand.told("a").mode
    assert [Reason.ALL_SEND_ALL, Reason.SINGLE_COPY] == hand.reasons("rewind")


def test_s21_not_while_everybody_is_listed() -> None:
    hand = Hand("ab")
    hand.close("a")
    hand.close("b")
    hand.wait(10)
    assert hand.reader.all_send_all

    hand.run(hand.reader.on_consumed(hand.now, 0))

    assert hand.reader.all_send_all


def test_a_reader_that_wants_all_copies_never_asks_for_less() -> None:
    hand = Hand(mode=Mode.ALL_SEND_ALL, settings=SMALL)

    for name in "abc":
        hand.ship(name, 99, item(0, 99, 800))
    hand.wait(ALL_MS)

    assert [(0, 99)] == hand.out
    assert ([], 1) == (hand.notes, hand.reader.generation)


def test_in_all_send_all_a_lost_node_costs_no_rewind() -> None:
    hand = Hand(mode=Mode.ALL_SEND_ALL)

    hand.close("a")
    hand.wait(10)

    assert 1 == hand.reader.generation
    hand.ship("b", 9, item(0, 9))
    assert [(0, 9)] == hand.out


# --- windows ----------------------------------------------------------------------------------------------


def test_the_window_of_a_node_moves_with_what_is_delivered_of_it() -> None:
    hand = Hand(settings=SMALL)

    hand.ship("b", 9, item(5, 9, 300))
    assert [] == hand.windows["b"], "it lies here"
    hand.ship("a", 4, item(0, 4, 100))

    assert [600] == [window.bytes_total for window in hand.windows["b"]]
    assert [] == hand.windows["a"], "less than half a share is not worth a message"
    hand.ship("a", 14, item(10, 14, 60))
    assert [460] == [window.bytes_total for window in hand.windows["a"]]


def test_a_slow_application_holds_the_windows() -> None:
    hand = Hand(settings=SMALL)
    hand.slow_application = True
    for offset in range(4):
        hand.ship("abc"[offset % 3], offset, item(offset, offset, 300), first=0)
    granted = {name: len(hand.windows[name]) for name in "abc"}

    hand.ship("b", 4, item(4, 4, 300))
    assert granted == {name: len(hand.windows[name]) for name in "abc"}
    hand.consume()

    assert sum(granted.values()) < sum(len(windows) for windows in hand.windows.values())


def test_a_rewind_grants_nothing_while_the_application_has_a_window_in_its_hands() -> None:
    hand = Hand(settings=SMALL)
    hand.slow_application = True
    hand.ship("a", 0, item(0, 0, 1_000))

    hand.close("b")
    hand.wait(1)
    assert 0 == hand.told("c").window_bytes
    hand.start("a")
    hand.start("c")
    hand.consume()

    assert [300] == [window.bytes_total for window in hand.windows["c"]]


@pytest.mark.parametrize(
    "items",
    [
        pytest.param((item(5), item(4)), id="order"),
        pytest.param((item(0, 5), item(3, 9)), id="overlap"),
        pytest.param((item(5, 10),), id="behind the end"),
        pytest.param((Item(5, 4, 1, ""),), id="ends before it begins"),
        pytest.param((Item(5, 5, -1, ""),), id="size"),
        pytest.param(tuple(item(number, number, 400) for number in range(4)), id="window"),
        pytest.param((entries_item([Logged(number, number, 400, 0, False) for number in range(4)]),), id="in one item"),
    ],
)
def test_a_node_that_breaks_the_rules_is_listed_and_nothing_of_it_is_used(items: tuple[Item, ...]) -> None:
    hand = Hand(settings=SMALL)

    hand.ship("a", 9, *items)

    assert [] == hand.out
    assert [Reason.VIOLATION] == hand.reasons("known_down")
    assert 0 == hand.reader.buffered_bytes


@pytest.mark.parametrize(("first", "through"), [(5, 9), (0, -2)])
def test_coverage_with_a_hole_or_backwards_is_a_violation(first: int, through: int) -> None:
    hand = Hand()

    hand.ship("a", through, first=first)

    assert [Reason.VIOLATION] == hand.reasons("known_down")


def test_after_a_violation_the_node_is_started_anew() -> None:
    hand = Hand(mode=Mode.ALL_SEND_ALL)
    hand.ship("a", 9, first=5)
    hand.ship("a", 9, item(0, 9), first=0)
    assert [] == hand.out

    hand.wait(STARTED_MS)
    assert 3 == len(hand.starts["a"])
    hand.start("a")
    hand.ship("a", 9, item(0, 9))

    assert [(0, 9)] == hand.out


def test_a_stream_that_was_given_up_is_not_revived_by_another_started() -> None:
    hand = Hand(mode=Mode.ALL_SEND_ALL)
    hand.run(hand.reader.on_corrupt(hand.now, "a", 1, "damaged"))
    hand.ship("a", 4, item(0, 4))

    hand.start("a", first=5)
    hand.ship("a", 9, item(5, 9), first=5)
    assert [] == hand.out
    hand.wait(STARTED_MS)
    hand.start("a", first=5)
    hand.ship("a", 9, item(5, 9), first=5)

    assert [(GapKind.TRIM, 0, 4), (5, 9)] == hand.out


def test_messages_of_strangers_are_ignored() -> None:
    hand = Hand()

    for effects in (
        hand.reader.on_started(hand.now, "z", Started(1, Status.OK, 9, 5)),
        hand.reader.on_connected(hand.now, "z"),
        hand.reader.on_closed(hand.now, "z", "closed"),
        hand.reader.on_corrupt(hand.now, "z", 1, "?"),
    ):
        assert [] == effects
