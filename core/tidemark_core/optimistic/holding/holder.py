"""Holder: everything that one member does for one range.

Stays out: operations of clients (`coordinating`), hints, the other ranges of the node (`plane`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Any

from ...base.effects import Effect, RowsDurable, RowsRead, RowsScanned, Send
from ...base.ids import Address, Member, Peer
from ..exchanging.memory import Memory
from ..exchanging.messages import Given, Listed, Opened, Unanswered
from ..floors import SyncAsked
from ..inspection import Block
from ..moving import Announced, Copied, CopyAsked, Known
from ..pacing import UNBOUND, Pace
from ..stamps import Clock
from ..standing import Standing
from .copying import Copying
from .mending import Mending
from .pulls import LookedAt, Pulls, Taken
from .removing import Removed
from .syncing import Syncing
from .unit import Stood, Unit

SILENT_TICKS = 10
"""An exchange whose source said nothing for so many ticks is given up."""


class Holder:
    """One range at one member.  `numbers` are those of the exchanges of the run."""

    def __init__(
        self, address: Address, standing: Standing, clock: Clock, numbers: Iterator[int], pace: Pace = UNBOUND,
        retracted: Iterable[bytes] = (), memory: Memory | None = None,
    ) -> None:
        self.unit = Unit(address, standing, clock, pace, retracted, memory)
        self.pulls = Pulls(self.unit, numbers)
        self.copying = Copying(self.unit, self.pulls)
        self.syncing = Syncing(self.unit, self.pulls)
        self.mending = Mending(self.unit, self.pulls)
        self._awaits: dict[Peer, Announced | CopyAsked] = {}    # operators, and the last thing that each asked
        self._silent = 0

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and no operator waits."""
        return self.may_forget and self.unit.removing.idle and not self._awaits

    @property
    def may_forget(self) -> bool:
        """Whether this member neither builds the tree of the range nor needs it for an exchange of its own (D85)."""
        exchanges = self.pulls.idle and self.copying.idle and self.syncing.idle and self.mending.idle
        return exchanges and self.unit.tree.settled

    @property
    def left(self) -> bool:
        """Whether the member has left the range, and nothing of it is under way here."""
        return self.idle and self.unit.left

    def on_message(self, now_ms: int, sender: Peer, m: Any) -> list[Effect]:
        """Take a message of a coordinator, of another member or of the operator."""
        match m:
            case Opened() | Listed() | Given() | Unanswered():
                self._silent = 0
                effects = self.pulls.on_answer(now_ms, sender, m)
            case SyncAsked():
                effects = self.syncing.on_asked(now_ms, sender, m)
            case Announced(_, record):
                self._awaits[sender] = m
                effects = self.unit.adopt(record)
            case CopyAsked():
                self._awaits[sender] = m
                effects = []
            case _:
                effects = self.unit.on_message(now_ms, sender, m)
        return [*effects, *self._go_on(now_ms)]

    def on_event(
        self, now_ms: int, m: RowsRead | RowsScanned | RowsDurable | Stood | Removed | Taken | LookedAt
    ) -> list[Effect]:
        """Take what the disk says."""
        effects = self.pulls.on_event(now_ms, m) if isinstance(m, Taken | LookedAt) else self.unit.on_event(m)
        return [*effects, *self._go_on(now_ms)]

    @property
    def exchanged_ms(self) -> int | None:
        """When the last exchange began that leaves this owner lacking nothing of before; None: there is none (D74)."""
        complete = [self.pulls.complete.get(member) for member in self.unit.standing.others]
        known = [ms for ms in complete if ms is not None]
        return min(known) if known and len(known) == len(complete) else None

    def blocks(self) -> list[Block]:
        """Say what keeps the floor from rising, as this member knows it."""
        withdrawn = [Block("the disk of this owner is older than the floor (D71)", 0, self.unit.standing.me)]
        return [
            *(withdrawn if self.unit.durable.withdrawn else ()), *self.syncing.blocks(), *self.mending.blocks()]

    def mend(self, now_ms: int, away: Container[Member]) -> list[Effect]:
        """Pull from each other owner that is not away: it is the turn of this range (D74)."""
        return self.mending.begin(now_ms, away)

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Ask again what was not answered, give up a silent source, go on with trees and removals."""
        effects = self.unit.grow()
        self.copying.series.on_tick()
        self.syncing.series.on_tick()
        self.mending.series.on_tick()
        if self.pulls.idle:
            self._silent = 0
        else:
            self._silent += 1
            if self._silent > SILENT_TICKS:
                self._silent = 0
                self.copying.give_up()
                self.syncing.give_up()
                effects += self.mending.give_up()
            effects += self.pulls.resend(now_ms)
        return [*effects, *self._go_on(now_ms)]

    def _go_on(self, now_ms: int) -> list[Effect]:
        if self.pulls.complete and not self.unit.standing.others:
            self.pulls.complete.clear()     # rows that it took may have gone since
        return [
            *self.copying.go_on(now_ms), *self.syncing.go_on(now_ms), *self.mending.go_on(now_ms), *self._answers()]

    def _answers(self) -> list[Effect]:
        """Answer operators when what they wait for is durable."""
        effects: list[Effect] = []
        durable = self.unit.durable
        for operator, m in list(self._awaits.items()):
            match m:
                case Announced(index, record) if durable.record.version >= record.version:
                    answer: Known | Copied = Known(index, durable.record.version)
                case CopyAsked(index, version) if self.copying.done == version and not durable.copying:
                    answer = Copied(index, version)
                case CopyAsked(_, version) if version < durable.record.version:
                    del self._awaits[operator]   # the move is over
                    continue
                case _:
                    continue
            del self._awaits[operator]
            effects.append(Send(self.unit.address, operator, answer))
        return effects
