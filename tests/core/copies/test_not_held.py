"""Readers where a member whose turn it is does not keep the payload (K17, K18)."""

from __future__ import annotations

from tidemark_core.delivery.messages import DAMAGED, NOT_HELD, GapKind, Item, Reason
from tidemark_core.delivery.order import Mode
from tidemark_core.delivery.reader import ReaderSettings

from tests.core.delivery.hand import Hand, item


def not_held(first: int, last: int | None = None) -> Item:
    return Item(first, first if last is None else last, 16, NOT_HELD)


def test_k17_not_held_is_no_gap_and_no_fault_all_are_asked_at_once() -> None:
    """Rule S17: when nobody else sends it either, all send all, without waiting for a clock."""
    hand = Hand()
    hand.ship("a", 9, not_held(0, 4), item(5, 9))
    hand.ship("b", 9)
    assert [] == hand.out and [] == hand.reasons("all_send_all")
    hand.ship("c", 9)

    assert [] == hand.out
    assert {} == hand.reader.down
    assert [Reason.ALL_SEND_ALL] == hand.reasons("all_send_all")
    hand.wait(10)
    assert Mode.ALL_SEND_ALL is hand.told("b").mode


def test_k17_whoever_keeps_it_delivers_it() -> None:
    hand = Hand()
    for name, items in (("a", (not_held(0, 4),)), ("b", ()), ("c", ())):
        hand.ship(name, 4, *items)
    hand.wait(10)
    hand.start_all()
    hand.ship("a", 4, not_held(0, 4))
    hand.ship("b", 4, not_held(0, 4))
    assert [] == hand.out
    hand.ship("c", 4, item(0, 4))

    assert [(0, 4)] == hand.out


def test_k18_loss_is_told_only_when_every_member_has_said_that_it_does_not_hold_it() -> None:
    hand = Hand()
    for name, items in (("a", (not_held(0, 4),)), ("b", ()), ("c", ())):
        hand.ship(name, 4, *items)
    hand.wait(10)
    hand.start_all()
    hand.ship("a", 4, not_held(0, 4))
    hand.ship("b", 4, Item(0, 4, 100, DAMAGED))
    hand.wait(1_000)
    assert [] == hand.out, "a silent member means wait"
    hand.ship("c", 4, not_held(0, 4))

    assert [(GapKind.DATALOSS, 0, 4)] == hand.out


def test_k18_what_was_said_in_an_older_generation_does_not_count() -> None:
    hand = Hand()
    for name, items in (("a", (not_held(0, 4),)), ("b", ()), ("c", ())):
        hand.ship(name, 4, *items)
    hand.wait(10)
    old = hand.reader.generation - 1
    hand.start_all()
    hand.ship("a", 4, not_held(0, 4))
    hand.ship("b", 4, not_held(0, 4))
    hand.ship("c", 4, not_held(0, 4), generation=old)

    assert [] == hand.out


def test_k17_a_member_that_says_not_held_is_not_taken_for_slow_or_silent() -> None:
    hand = Hand(settings=ReaderSettings(silent_timeout_ms=10_000))
    hand.ship("a", 4, not_held(0, 4))
    hand.ship("b", 4)
    hand.wait(11_000)

    assert "a" not in hand.reader.down
    assert 0 == hand.reader.buffered_bytes
