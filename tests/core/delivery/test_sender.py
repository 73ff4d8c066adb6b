"""The sender of one generation: what it says, looks at and waits for, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from google_crc32c import value as crc32c
from tidemark_core.base.entry import Batch, Entry, Kind, seal
from tidemark_core.base.ids import EntryId
from tidemark_core.delivery.messages import HOLE_BYTES, NOT_HELD, Shipment, Start, Started, Status, Window, singly
from tidemark_core.delivery.order import Block, Mode
from tidemark_core.delivery.sender import (
    COVERAGE_MS,
    LOOK_AGAIN_MS,
    REPAIR_MS,
    End,
    Look,
    Repair,
    Say,
    Sender,
    Step,
    Wait,
)
from tidemark_core.delivery.stretch import Stretch

NODES = ("a", "b")
PAYLOAD = bytes(100)


def entry(base: int, slot: int) -> Entry:
    """One record that the node in this slot sends."""
    batch = Batch(b"p" * 16, base, 1, 0, 0, crc32c(PAYLOAD), PAYLOAD)
    order = (slot, 1 - slot)
    return seal(
        batch, kind=Kind.DATA, epoch=1, prev=EntryId(1, base - 1), prev_chain=0, logged_ms=0,
        order=order[0] | order[1] << 4,
    )


class Member:
    """A member with a log in which slots take turns, and its sender."""

    def __init__(self, count: int, *, first: int = 0, until: int = -1, window: int = 1 << 20) -> None:
        self.entries = [entry(base, base % 2) for base in range(count)]
        self.readable: tuple[int, int] | None = (0, count - 1)
        self.holes: list[tuple[int, int]] = []
        self.damaged: int | None = None
        self.now_ms = 0
        start = Start(7, first, until, Mode.SINGLE_COPY, (), NODES, (), window)
        self.sender = Sender(start, "a", 1 << 20)

    def hidden(self, first: int, last: int) -> list[tuple[int, int]] | None:
        if self.readable is None or self.readable[1] < last:
            return None
        return [(max(low, first), high) for low, high in self.holes if high >= first and low <= last]

    def block_at(self, offset: int) -> Block:
        return Block(self.entries[offset].order, offset)

    def step(self) -> Step:
        step = self.sender.step(self.now_ms, self.readable, self.hidden, self.block_at)
        if isinstance(step, Look):
            self.look(step)
            return self.step()
        return step

    def look(self, step: Look) -> None:
        found = self.found(step)
        self.sender.looked(self.now_ms, step, found, self.readable, self.hidden, self.block_at)

    def found(self, step: Look) -> Stretch:
        asked = step.asked
        found = Stretch(asked.first - 1)
        found.look(self.sender.rule, asked, (e for e in self.entries if asked.first <= e.base and e.last <= asked.last))
        wanted = found.wanted
        spoiled = next((e.base for e in wanted if e.base == self.damaged), None)
        found.bring([e for e in wanted if spoiled is None or e.base < spoiled], spoiled)
        return found

    def says(self) -> Iterator[Started | Shipment]:
        while isinstance(step := self.step(), Say):
            yield step.message


def offsets(messages: Sequence[Started | Shipment]) -> list[tuple[int, int]]:
    return [(item.first, item.last) for m in messages if isinstance(m, Shipment) for item in singly(m.items)]


def test_started_then_what_is_ours_with_coverage_then_silence() -> None:
    member = Member(6)
    started, *shipments = member.says()
    assert Started(7, Status.OK, 5, 0) == started
    assert [(0, 0), (2, 2), (4, 4)] == offsets(shipments)
    assert 5 == shipments[-1].through and 0 == shipments[0].first
    assert Wait(LOOK_AGAIN_MS) == member.step()


def test_at_the_tail_coverage_waits_for_its_time() -> None:
    member = Member(7)
    member.readable = (0, 4)
    list(member.says())
    member.now_ms = 10
    member.readable = (0, 5)                    # 5 is not ours: nothing to send, and coverage of 4 was told just now
    assert (member.step(), member.sender.told) in [(Wait(COVERAGE_MS - 10), 4), (Wait(LOOK_AGAIN_MS), 5)]
    member.now_ms = COVERAGE_MS
    list(member.says())
    assert 5 == member.sender.told


def test_s8_nothing_is_begun_beyond_the_window_and_a_window_of_another_generation_means_nothing() -> None:
    size = entry(0, 0).size
    member = Member(20, window=2 * size)
    assert [(0, 0), (2, 2)] == offsets(list(member.says()))
    member.sender.on_window(Window(6, 1 << 20))
    assert [] == offsets(list(member.says()))
    member.sender.on_window(Window(7, 3 * size))
    assert [(4, 4)] == offsets(list(member.says()))
    assert Wait(LOOK_AGAIN_MS) == member.step()
    assert "waiting for the window" == member.sender.doing


def test_the_end_is_told_and_ends_it() -> None:
    member = Member(20, until=4)
    messages = list(member.says())
    assert [(0, 0), (2, 2), (4, 4)] == offsets(messages) and messages[-1].through == 4
    assert End() == member.step()


def test_start_behind_the_end_is_answered_all_the_same() -> None:
    member = Member(20, first=9, until=4)
    assert [Started(7, Status.OK, 19, 0)] == list(member.says())
    assert End() == member.step()


def test_retention_that_overtakes_is_told_by_started() -> None:
    member = Member(9)
    member.readable = (0, 3)
    list(member.says())
    member.readable = (6, 8)
    started, *shipments = member.says()
    assert Started(7, Status.OK, 8, 6) == started
    assert [(6, 6), (8, 8)] == offsets(shipments)


def test_s20_what_was_trimmed_during_a_look_is_not_covered_but_told_by_started() -> None:
    """The orders of what is trimmed are gone, so nothing says whose it was to send."""
    member = Member(9)
    member.readable = (0, 1)
    assert isinstance(member.step(), Say)
    look = member.sender.step(0, member.readable, member.hidden, member.block_at)
    assert isinstance(look, Look)
    member.readable = (6, 8)
    whose = member.block_at

    def block_at(offset: int) -> Block:
        return whose(offset) if offset >= 6 else Block(whose(1).order, 5)

    member.block_at = block_at  # type: ignore[method-assign]
    member.look(look)

    said = list(member.says())

    assert isinstance(said[0], Shipment) and (said[0].first, said[0].through) == (0, 0)
    assert Started(7, Status.OK, 8, 6) == said[1]
    assert [(0, 0), (6, 6), (8, 8)] == offsets(said)


def test_who_is_no_member_says_so_once() -> None:
    member = Member(3)
    member.readable = None
    assert [Status.NOT_MEMBER] == [m.status for m in member.says()]
    assert End() == member.step()
    stranger = Sender(Start(7, 0, -1, Mode.SINGLE_COPY, (), NODES, (), 0), "c", 1)
    assert Status.NOT_MEMBER is stranger.step(0, (0, 2), member.hidden, member.block_at).message.status


def test_damage_ends_coverage_in_front_of_it_until_it_is_repaired() -> None:
    member = Member(6)
    member.damaged = 2
    messages = list(member.says())
    assert [(0, 0)] == offsets(messages) and messages[-1].through == 1
    step = member.step()
    while isinstance(step, Repair):
        assert 2 == step.offset
        member.now_ms += 500
        step = member.step()
        if member.now_ms == 1_000:
            member.damaged = None
    assert [(2, 2), (4, 4)] == offsets([step.message, *member.says()])


def test_damage_that_nobody_repairs_is_refused() -> None:
    member = Member(6)
    member.damaged = 2
    for _ in range(20):
        step = member.step()
        member.now_ms += REPAIR_MS // 4
    assert End() == step
    assert "offset 2 is damaged here" in member.sender.doing


def test_k17_what_is_ours_and_not_held_is_said_and_never_passed_over() -> None:
    member = Member(4)
    member.entries[2] = member.entries[2].bare()
    shipments = [m for m in member.says() if isinstance(m, Shipment)]
    assert [(0, 0), (2, 2)] == offsets(shipments)
    (item,) = [item for m in shipments for item in singly(m.items) if item.first == 2]
    assert item.body is NOT_HELD and item.size == HOLE_BYTES


def test_a_hole_goes_out_whole_with_the_block_it_ends_in_and_not_before_its_record_is_released() -> None:
    member = Member(8)
    member.holes = [(1, 4)]
    member.readable = (0, 3)
    assert [(0, 0)] == offsets(list(member.says()))
    member.readable = (0, 7)
    assert [(1, 4), (6, 6)] == offsets(list(member.says()))


def test_a_log_that_changed_while_it_was_read_is_read_again() -> None:
    member = Member(6)
    assert isinstance(member.step(), Say)
    look = member.sender.step(0, member.readable, member.hidden, member.block_at)
    assert isinstance(look, Look)
    found = member.found(look)
    member.holes = [(2, 4)]
    member.sender.looked(0, look, found, member.readable, member.hidden, member.block_at)
    assert [(0, 0), (2, 4)] == offsets(list(member.says()))


def test_a_look_that_retention_overtook_is_dropped() -> None:
    """The entries that were read lie in front of the new begin: sent now, they would contradict STARTED."""
    member = Member(8)
    assert isinstance(member.step(), Say)
    look = member.sender.step(0, member.readable, member.hidden, member.block_at)
    assert isinstance(look, Look)
    found = member.found(look)
    member.readable = (4, 7)
    [started] = [member.sender.step(0, member.readable, member.hidden, member.block_at)]
    assert isinstance(started, Say) and Started(7, Status.OK, 7, 4) == started.message
    member.sender.looked(0, look, found, member.readable, member.hidden, member.block_at)

    shipments = list(member.says())
    assert [(4, 4), (6, 6)] == offsets(shipments)
    assert all(isinstance(shipment, Shipment) and shipment.first >= 4 for shipment in shipments)
