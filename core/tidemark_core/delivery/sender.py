"""Sender: one member's part of one generation of one reader; what to say, to look at or to wait for next.

A pure state machine: the shell asks for the next step, runs it, and asks again.  Blocks that others send are passed
over in one step, without a look at what lies in them.  Coverage tells what is not ours: as soon as a stretch of backlog
was looked at, at the tail at most every COVERAGE_MS or with the next item.  A member that
cannot go on says STARTED again, with the reason and in the same generation, and so does one whose log begins later
than it said; it is never silent.
Stays out: who sends what (`stretch`), reading the store, how far may be shown, other reasons not to serve.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .messages import Shipment, Start, Started, Status, Window
from .order import Block, Mode
from .stretch import Asked, Rule, Stretch, holes_of

ENTRIES_MAX = 2048         # looked at in one go
PARTS_MAX = 64             # blocks and holes of ours in a row, likewise
COVERAGE_MS = 50
LOOK_AGAIN_MS = 1_000      # roles change without a word
REPAIR_MS = 2_000          # other members hold the entry: the reader had better ask them than wait longer
REPAIR_RETRY_MS = 50

Holes = Sequence[tuple[int, int]]
Readable = tuple[int, int]
"""First offset held, last offset that may be shown."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send this to the reader."""

    message: Started | Shipment


@dataclass(frozen=True, slots=True)
class Look:
    """Read this stretch and call `looked` with what was found."""

    asked: Asked
    released: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before something is new, or so much time has passed."""

    ms: int


@dataclass(frozen=True, slots=True)
class Repair:
    """Report that this offset is damaged here, and ask for the next step REPAIR_RETRY_MS later."""

    offset: int


@dataclass(frozen=True, slots=True)
class End:
    """This generation is over: all was told, or this member cannot go on and has said so."""


Step = Say | Look | Wait | Repair | End


def _part_at(offset: int, hidden: Holes, block_at: Callable[[int], Block]) -> tuple[int, int]:
    """Return in which order goes what begins at `offset`, and where it ends: a hole, or a block as far as the next one.

    A hole that ends in another block goes with that one.
    """
    at = bisect_right(hidden, offset, key=lambda hole: hole[0]) - 1
    if at >= 0 and offset <= hidden[at][1]:
        return block_at(hidden[at][1]).order, hidden[at][1]
    order, end = block_at(offset)
    at = bisect_right(hidden, end, key=lambda hole: hole[0]) - 1
    return (order, hidden[at][0] - 1) if at >= 0 and hidden[at][1] > end else (order, end)


class Sender:
    """One generation: what was asked, and how far it went."""

    __slots__ = (
        "_answered", "_damaged", "_frame_bytes", "_full", "_me", "_next", "_told_ms", "doing", "ended", "granted_bytes",
        "left_out", "position", "rule", "sent_bytes", "sent_items", "start", "told",
    )

    def __init__(self, start: Start, me: str, frame_bytes: int) -> None:
        self.start = start
        self.rule = Rule(start, me)
        self.position = start.first            # everything below was looked at
        self.told = start.first - 1            # everything up to here was told
        self.granted_bytes = start.window_bytes
        self.sent_bytes = 0
        self.sent_items = 0                    # entries and holes
        self.left_out = 0                      # offsets that were told without being sent
        self.doing = "starting"
        self._me = me
        self._frame_bytes = frame_bytes
        self._told_ms: int | None = None
        self._answered = False                 # STARTED was said
        self._full = False                     # what lies at `position` is ours, and waits for the window
        self._damaged: tuple[int, int] | None = None  # offset that cannot be read, and since when
        self._next: list[Step] = []            # what follows from the last look
        self.ended = False                     # nothing more will be said

    def on_window(self, m: Window) -> None:
        """The reader lets us send more."""
        if m.generation == self.start.generation:
            self.granted_bytes = max(self.granted_bytes, m.bytes_total)

    def give_up(self, status: Status, why: str, readable: Readable | None) -> Say:
        """End here, for a reason that the shell knows or we found."""
        first, released = readable or (0, -1)
        self.ended = True
        self._next.clear()
        self.doing = f"{status}: {why}"
        return Say(Started(self.start.generation, status, released, first, why))

    def step(
        self, now_ms: int, readable: Readable | None, holes: Callable[[int, int], Holes | None],
        block_at: Callable[[int], Block],
    ) -> Step:
        """Say what comes next.  `holes(first, last)` tells what is rolled back there."""
        if self.ended:
            return End()
        if self._me not in self.start.ensemble:
            return self.give_up(Status.NOT_MEMBER, f"{self._me} is not in the ensemble that the reader knows", readable)
        if readable is None:
            return self.give_up(Status.NOT_MEMBER, f"{self._me} is no member of this shard", readable)
        if self._damaged is not None and now_ms - self._damaged[1] > REPAIR_MS:
            why = f"offset {self._damaged[0]} is damaged here and no peer repaired it yet"
            return self.give_up(Status.UNAVAILABLE, why, readable)
        if self._next:
            return self._next.pop(0)
        if self._answered and self._done and self.told >= self.position - 1:
            self.ended, self.doing = True, "done"
            return End()
        first, released = readable
        if self.position < first or not self._answered:        # also when retention has overtaken us
            self._answered = True
            self.position = max(self.position, first)
            self.told = max(self.told, first - 1)
            self.doing = "sending"
            return Say(Started(self.start.generation, Status.OK, released, first))
        if self._done:
            return self._idle(now_ms, released)
        last, hidden = self._pass_over(released, holes, block_at)
        if self.position > last or (self._full and self.sent_bytes >= self.granted_bytes):
            return self._idle(now_ms, released)
        self.doing = "reading"
        budget = min(self._frame_bytes, self.granted_bytes - self.sent_bytes)
        ahead = holes_of((hole for hole in hidden if self.position <= hole[0] <= last), block_at)
        order = block_at(self.position).order
        return Look(Asked(self.position, last, self.start.until, order, ahead, budget, ENTRIES_MAX), released)

    def _pass_over(
        self, released: int, holes: Callable[[int, int], Holes | None], block_at: Callable[[int], Block]
    ) -> tuple[int, Holes]:
        """Go behind what others send; return where ends what is ours from there on, and what is rolled back there."""
        hidden = list(holes(self.position, released) or ())
        last = released
        if hidden and hidden[-1][1] >= released:
            last = hidden.pop()[0] - 1                         # it goes out whole, once its record is released too
        if self.start.mode is Mode.ALL_SEND_ALL:
            return last, hidden
        position, parts = self.position, 0
        while position <= last and parts < PARTS_MAX:
            order, end = _part_at(position, hidden, block_at)
            if self.rule.ours(order):
                position, parts = end + 1, parts + 1
            elif not parts:
                position = self.position = min(end, last) + 1
            else:
                break
        return min(position - 1, last), hidden

    @property
    def _done(self) -> bool:
        return 0 <= self.start.until < self.position

    def _idle(self, now_ms: int, released: int) -> Step:
        """Nothing to send now: tell what was looked at when it is time, then wait."""
        if self.told < self.position - 1:
            due = 0 if self._told_ms is None else self._told_ms + COVERAGE_MS - now_ms
            if due <= 0 or self._done or self._full:
                return self._ship(now_ms, released, Stretch(self.position - 1))
            return self._wait(due)
        return self._wait(LOOK_AGAIN_MS)

    def _wait(self, ms: int) -> Wait:
        self.doing = "waiting for the window" if self._full else "waiting for more"
        return Wait(ms)

    def looked(
        self, now_ms: int, look: Look, found: Stretch, readable: Readable | None,
        holes: Callable[[int, int], Holes | None], block_at: Callable[[int], Block],
    ) -> None:
        """Take what was found; what follows from it comes with the next steps.  Facts may have changed meanwhile."""
        asked = look.asked
        passed = [(hole.first, hole.last) for hole in asked.holes if hole.first <= found.through]
        if asked.first != self.position or holes(asked.first, found.through) != passed:
            return                                             # the log was given up while it was read
        self._full = found.more
        self.position = max(self.position, found.through + 1)
        if found.items and not self._full and not self._done and readable is not None and readable[0] <= self.position:
            # One shipment covers both.  The orders of what is trimmed are gone: STARTED tells that, no coverage.
            self._pass_over(readable[1], holes, block_at)
        backlog = self.position <= asked.last and not self._full
        if found.items or (backlog and self.position > asked.first):
            self._next.append(self._ship(now_ms, look.released, found))
        if found.damaged_at is not None:
            self._meet_damage(now_ms, found.damaged_at, readable)
            return
        self._damaged = None
        if self.position == asked.first and not self._full:
            self._next.append(self._wait(COVERAGE_MS))         # what is released is not there yet, or not any more

    def _meet_damage(self, now_ms: int, offset: int, readable: Readable | None) -> None:
        """Ask for a good copy of a damaged entry; coverage ends in front of it meanwhile."""
        if readable is None or offset < readable[0]:
            self._damaged = None                               # it was trimmed under us
            return
        if self._damaged is None or self._damaged[0] != offset:
            self._damaged = offset, now_ms
        self.doing = f"waiting for a repair of offset {offset}"
        self._next.append(Repair(offset))

    def _ship(self, now_ms: int, released: int, found: Stretch) -> Say:
        """Send what follows on what was told, up to the position."""
        shipment = Shipment(self.start.generation, self.told + 1, self.position - 1, released, found.items)
        self.told, self._told_ms = self.position - 1, now_ms
        self.doing = "sending"
        self.sent_bytes += sum(item.size for item in found.items)
        self.sent_items += sum(item.entry_count for item in found.items)
        self.left_out += shipment.left_out
        return Say(shipment)
