"""Random worlds around a reader: whatever fails, it hands out the log once, in order, and does not stand still.

Each case is drawn from its seed: members and their lags, entries and what is missing of them, trims, an application
that pauses, and every fault a reader can meet.  The world compares what is handed out with the log at once; a case
then lets all faults end and asks for the end of the log in bounded time, and for single copy again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random

import pytest
from tidemark_core.delivery.messages import DeliverGap, GapKind, Reason
from tidemark_core.delivery.order import Mode
from tidemark_core.delivery.reader import ReaderSettings
from tidemark_core.delivery.slowness import SlowDetection

from .world import Member, World

CASES = int(os.environ.get("TIDEMARK_READER_CASES", "300"))
SETTINGS = ReaderSettings()
LIVELY_MS = 2 * SETTINGS.all_send_all_timeout_ms


class Case:
    """One drawn world, and its faults."""

    def __init__(self, seed: int) -> None:
        dice = self.dice = Random(seed)
        size = dice.choice((1, 2, 3, 3, 3, 4, 5, 6))
        names = tuple("abcdef"[:size])
        mode = dice.choice((Mode.SINGLE_COPY,) * 6 + (Mode.LOCAL, Mode.ALL_SEND_ALL))
        settings = ReaderSettings(
            window_bytes=dice.choice((20_000, 100_000, 1_000_000)), slow_detection=dice.choice(tuple(SlowDetection))
        )
        self.entries = dice.choice((20, 100, 300))
        self.record_sizes = dice.choice((100, 2_000))
        self.hidden_rate = dice.choice((0.0, 0.05))
        self.missing_rate = dice.choice((0.0, 0.0, 0.02))
        self.lost_rate = dice.choice((0.0, 0.0, 0.0, 0.01))
        log_size = self.entries * 10
        first = dice.randint(0, log_size) if dice.random() < 0.3 else 0
        until = dice.randint(first, 2 * log_size) if dice.random() < 0.2 else -1
        near = tuple(dice.randint(0, 2) for _ in names) if mode is Mode.LOCAL else ()
        self.world = World(
            dice, names, settings, first=first, until=until, mode=mode, priorities=near,
            rate=dice.choice((100, 10_000)),
        )
        self.world.travel_max_ms = dice.choice((1, 20))
        self.world.application.item_ms = dice.choice((0, 0, 1, 20))
        self.spares = list("uvwxyz")
        self.append(self.entries)
        for member in self.world.members.values():
            member.released = self.world.log.head
            if dice.random() < 0.2:
                self.trim(member)

    # --- the log --------------------------------------------------------------------------------------

    def append(self, count: int, *, clean: bool = False) -> None:
        """Log entries; each block has one reading order."""
        dice, log = self.dice, self.world.log
        order = 0
        for index in range(count):
            if index % 7 == 0 or dice.random() < 0.1:
                order = self.order()
            records = dice.randint(1, 19)
            size = records * dice.randint(1, self.record_sizes)
            if clean:
                log.append(records, size, order)
                continue
            entry = log.append(records, size, order, hidden=dice.random() < self.hidden_rate)
            lost = dice.random() < self.lost_rate
            for name in "abcdefuvwxyz":
                if not entry.hidden and (lost or dice.random() < self.missing_rate):
                    dice.choice((log.lacking, log.damaged)).setdefault(name, set()).add(entry.first)

    def order(self) -> int:
        slots = list(range(6))
        self.dice.shuffle(slots)
        return sum(slot << 4 * place for place, slot in enumerate(slots))

    def trim(self, member: Member) -> None:
        entry = self.dice.choice(self.world.log.entries)
        if entry.first <= member.released + 1:
            member.first = max(member.first, entry.first)
            member.go_on()

    def release(self, lag_ms: int) -> None:
        head = self.world.log.head
        for member in self.world.members.values():
            self.world.later(self.dice.randint(0, lag_ms), lambda member=member: member.release(head))

    # --- faults ---------------------------------------------------------------------------------------

    def faults(self, until_ms: int) -> None:
        """Plan what goes wrong before `until_ms`, and everything's end then."""
        world, dice = self.world, self.dice
        for _ in range(dice.choice((0, 1, 3, 10, 30))):
            world.later(dice.randint(0, until_ms), dice.choice((
                self.kill, self.kill, self.cut, self.hang, self.hang, self.refuse, self.be_late, self.spoil,
                self.swap, self.get_stuck, self.leave, self.join, self.pause, self.trim_one, self.slow_down,
            )))
        if dice.random() < 0.7:
            for at in range(0, until_ms, dice.choice((500, 3_000))):
                world.later(at, self.write)

    def one(self) -> Member:
        return self.world.members[self.dice.choice(self.world.ensemble)]

    def back_later(self, call: Callable[[], None]) -> None:
        self.world.later(self.dice.choice((50, 3_000, 20_000)), call)

    def write(self) -> None:
        self.append(self.dice.randint(1, 5))
        self.release(self.dice.choice((20, 20, 500)))

    def kill(self) -> None:
        name = self.one().name
        self.world.kill(name)
        self.back_later(lambda: self.world.revive(name))

    def cut(self) -> None:
        self.world.break_stream(self.one().name)

    def hang(self) -> None:
        member = self.one()
        member.hung = True
        self.back_later(member.recover)

    def get_stuck(self) -> None:
        for name in self.dice.choice((self.world.ensemble, self.world.ensemble[:1])):
            self.world.members[name].stuck = True

    def refuse(self) -> None:
        member = self.one()
        member.refuses = True
        member.go_on()
        self.back_later(lambda: setattr(member, "refuses", False))

    def be_late(self) -> None:
        member = self.one()
        member.delay_ms = self.dice.choice((300, 6_000, 8_000))
        self.back_later(member.recover)

    def slow_down(self) -> None:
        member = self.one()
        if not member.slowed:
            member.slowed, member.rate = member.rate, 20
        self.back_later(member.recover)

    def spoil(self) -> None:
        self.world.spoil_rate = 0.2
        self.back_later(lambda: setattr(self.world, "spoil_rate", 0.0))

    def pause(self) -> None:
        self.world.application.paused = True
        self.back_later(self.go_on)

    def go_on(self) -> None:
        self.world.application.paused = False
        self.world.application.go_on()

    def trim_one(self) -> None:
        self.trim(self.one())

    def swap(self) -> None:
        if self.spares:
            slot = self.dice.randrange(len(self.world.ensemble))
            self.change((*self.world.ensemble[:slot], self.new_member(), *self.world.ensemble[slot + 1:]))

    def join(self) -> None:
        if self.spares and len(self.world.ensemble) < 6:
            self.change((*self.world.ensemble, self.new_member()))

    def leave(self) -> None:
        if len(self.world.ensemble) > 1:
            gone = self.one().name
            self.change(tuple(name for name in self.world.ensemble if name != gone))

    def new_member(self) -> str:
        name = self.spares.pop()
        member = self.world.members[name] = Member(self.world, name, 10_000)
        member.released = max(other.released for other in self.world.members.values())
        member.first = min(self.world.members[other].first for other in self.world.ensemble)
        return name

    def change(self, ensemble: tuple[str, ...]) -> None:
        """The members know at once, the reader hears of it in its time."""
        world = self.world
        for name in world.ensemble:
            if name not in ensemble:
                world.members[name].member = False
                world.members[name].go_on()
        world.ensemble = ensemble
        world.later(self.dice.choice((10, 4_000)), self.tell)

    def tell(self) -> None:
        world = self.world
        near = tuple(self.dice.randint(0, 2) for _ in world.ensemble) if world.reader.mode is Mode.LOCAL else ()
        if world.ensemble != world.reader.ensemble:
            world.change(world.ensemble, near)

    def heal(self) -> None:
        world = self.world
        world.cut_off.clear()
        world.spoil_rate = 0.0
        world.application.item_ms = 0
        for member in world.members.values():
            member.refuses = False
            if member.name in world.reader.down or world.reader.all_send_all:
                member.stuck = False  # nobody would notice
            member.recover()
            member.rate = 10_000  # the bound is on standing still, not on how much there is to send
        self.tell()
        self.go_on()
        self.release(20)


def play(seed: int) -> Case:
    """Play one case to its end; every assertion names what went wrong."""
    case = Case(seed)
    world, reader = case.world, case.world.reader
    faulty_ms = case.dice.choice((1_000, 20_000, 120_000))
    case.faults(faulty_ms)
    world.begin()
    world.run_until(faulty_ms, lambda: world.finished)
    case.heal()

    def at_end() -> bool:
        return world.finished or world.expected > world.log.head

    assert world.run_until(world.now + LIVELY_MS, at_end), f"stands still at {world.expected} of {world.log.head}"
    if world.finished:
        assert 0 <= world.until < world.expected
        return case

    def healthy() -> bool:
        return not reader.down and reader.all_send_all is (reader.mode is Mode.ALL_SEND_ALL)

    for _ in range(40):
        case.append(20, clean=True)
        case.release(5)
        world.run_until(world.now + 5_000, at_end)
        world.run_until(world.now + 500)
        if healthy() or world.finished:
            break
    assert world.finished or healthy(), f"all is well, and yet {reader.down}, all send all: {reader.all_send_all}"
    case.final_stretch(at_end)
    return case


def final_stretch(self: Case, at_end: Callable[[], bool]) -> None:
    """With all well, every byte is received once."""
    world, reader = self.world, self.world.reader
    settle_ms = LIVELY_MS  # what older generations, or all but the first to send, still bring
    world.run_until(world.now + settle_ms)
    received, delivered, generation = world.bytes_received, reader.delivered_bytes, reader.generation
    self.append(60, clean=True)
    self.release(5)
    assert world.run_until(world.now + LIVELY_MS, at_end)
    if world.finished:
        return
    world.run_until(world.now + settle_ms)
    copies = len(reader.ensemble) if reader.mode is Mode.ALL_SEND_ALL else 1
    if not reader.known_down and reader.generation == generation:
        assert world.bytes_received - received == copies * (reader.delivered_bytes - delivered)


Case.final_stretch = final_stretch


@pytest.mark.parametrize("block", range(10))
def test_a_reader_neither_stalls_nor_skips_nor_repeats_whatever_fails(block: int) -> None:
    for seed in range(block, CASES, 10):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


def test_the_cases_meet_what_they_are_made_for() -> None:
    reasons: set[Reason] = set()
    gaps: set[GapKind] = set()
    for seed in range(60):
        world = play(seed).world
        reasons |= {note.reason for _, note in world.notes}
        gaps |= {effect.kind for effect in world.delivered if isinstance(effect, DeliverGap)}

    assert set(Reason) - {Reason.VIOLATION, Reason.SLOW} <= reasons
    assert {GapKind.HOLE, GapKind.TRIM, GapKind.DATALOSS} <= gaps
