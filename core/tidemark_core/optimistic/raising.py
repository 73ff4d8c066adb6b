"""Raising: the operator's part of one range by which its floor rises, one round at a time (D68-D70).

A round ends with each other record of the range, and where it lasts too long.  The next one begins with the hints
again: promises that are left standing do no harm, and all that is remembered here may be lost.
Stays out: the phases of a round (`floors`), which floor is due and which nodes are asked (the operator), writing the
record (`mover`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from ..base.effects import Send, Trace
from ..base.ids import Address, Member
from .floors import Effect, HintsGone, Phase, Promised, Round, Synced, To
from .ring import Range
from .stamps import actor_of, numbers_of

ROUND_MS = 600_000
"""A round that lasts longer is given up, so that other ranges have their turn."""


@dataclass(frozen=True, slots=True)
class FloorDue:
    """The floor that a range should have; None: the round that is open is given up.

    `nodes` are the members that may hold a hint.
    """

    address: Address
    floor_ms: int | None
    nodes: tuple[Member, ...] = ()


@dataclass(slots=True)
class Rounds:
    """The rounds of one operator process, by range.

    No two rounds of a cluster have the same number, whatever the operator: an owner that has answered a round answers
    it again without another exchange.
    """

    numbers: Iterator[int]
    open: dict[int, Round] = field(default_factory=dict)
    given_up: dict[int, Round] = field(default_factory=dict)    # the last one under the record that stands

    @classmethod
    def of(cls, operator: str) -> Rounds:
        """Return those of an operator process; the name of each process is another one."""
        return cls(numbers_of(actor_of(operator, operator)))


class Raising:
    """The round of one range."""

    def __init__(self, address: Address, rounds: Rounds) -> None:
        self._address = address
        self._rounds = rounds
        self._began_ms = 0

    @property
    def round(self) -> Round | None:
        """The round that is open."""
        return self._rounds.open.get(self._address.id)

    def begin(self, now_ms: int, record: Range, due: FloorDue) -> list[Send | Trace]:
        """Begin a round, where the floor would rise, no move is open, and no other round is."""
        if due.floor_ms is None:
            return [*self.give_up()]
        if self.round is not None or record.pending is not None or due.floor_ms <= record.floor_ms:
            return []
        index = self._address.id
        opened = Round(index, next(self._rounds.numbers), record, due.nodes, due.floor_ms)
        self._rounds.open[index] = opened
        self._began_ms = now_ms
        return [*self._sends(opened.begin())]

    def on_answer(self, sender: Member, m: HintsGone | Promised | Synced) -> list[Send]:
        """Take the answer of a member, and ask what comes next."""
        return self._sends(self.round.on_answer(sender, m)) if self.round is not None else []

    def ask(self, members: Collection[Member] | None = None) -> list[Send]:
        """Ask these members, or all, for what the round waits for."""
        asked = self._sends(self.round.resend()) if self.round is not None else []
        return [each for each in asked if members is None or each.to in members]

    def on_record(self, record: Range) -> None:
        """Take the record that stands now: another one ends the round."""
        if self.round is not None and not self.round.on_record(record):
            del self._rounds.open[self._address.id]
        known = self._rounds.given_up.get(self._address.id)
        if known is not None and not known.on_record(record):
            del self._rounds.given_up[self._address.id]

    def on_timer(self, now_ms: int) -> list[Trace]:
        """Give up a round that lasts too long."""
        return self.give_up() if self.round is not None and now_ms - self._began_ms >= ROUND_MS else []

    def give_up(self) -> list[Trace]:
        """End the round that is open, and keep what it waited for, for people."""
        ended = self._rounds.open.pop(self._address.id, None)
        if ended is None:
            return []
        self._rounds.given_up[self._address.id] = ended
        waits = ", ".join(map(str, ended.waits))
        return [Trace(self._address, "round_given_up", f"it waits for {ended.phase.value} of {waits or 'the record'}")]

    def forget(self) -> None:
        """Forget the range."""
        self._rounds.open.pop(self._address.id, None)
        self._rounds.given_up.pop(self._address.id, None)

    @property
    def done(self) -> Range | None:
        """The record to write, where all have answered."""
        return self.round.next if self.round is not None and self.round.phase is Phase.COMMIT else None

    def _sends(self, effects: list[Effect]) -> list[Send]:
        return [Send(self._address, each.member, each.message) for each in effects if isinstance(each, To)]
