"""Pulls: the exchanges by which one range at one member takes what other members hold (D66, D69, D74).

Stays out: from whom and when, which its callers say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ...base.effects import Effect, Send, Trace
from ...base.ids import Address, Member, Peer
from ..exchanging.messages import Given, Listed, Opened, Unanswered
from ..exchanging.pulling import Effect as Step
from ..exchanging.pulling import Ended, Look, LookAt, Outcome, Pull, Take, To
from ..exchanging.tree import Weighed
from ..owner import Verdict
from .unit import Unit

Then = Callable[[Ended], list[Effect]]
"""Takes the end of an exchange."""

Answer = Opened | Listed | Given | Unanswered


def mismatch(address: Address, source: Member) -> Trace:
    """Report an owner that holds a row which another one cannot take any more: one of the two must be swapped (D74)."""
    what = f"{source} holds a row below the floor that is not here, and cannot be taken (D74)"
    return Trace(address, "below_floor_mismatch", what)


class Taken(NamedTuple):
    """Event: rows of an exchange are durable here, or were refused."""

    unit: int
    number: int
    rows: int
    verdict: Verdict


class LookedAt(NamedTuple):
    """Event: the rows of this member at the places that a source named."""

    unit: int
    number: int
    rows: Sequence[Weighed]


class Pulls:
    """The exchanges of one unit that are under way; no two of a run may have the same of `numbers`."""

    def __init__(self, unit: Unit, numbers: Iterator[int]) -> None:
        self.complete: dict[Member, int] = dict(unit.standing.exchanged)   # when the last whole exchange began
        self._unit = unit
        self._running: dict[int, tuple[Pull, Then, int]] = {}
        self._numbers = numbers

    @property
    def idle(self) -> bool:
        """Whether no exchange is under way."""
        return not self._running

    def begin(self, now_ms: int, source: Member, then: Then) -> tuple[int, list[Effect]]:
        """Pull the whole range from a member; return the number of the exchange, and effects."""
        number, unit = next(self._numbers), self._unit
        pull = Pull(number, unit.address.id, source, unit.standing.record, unit.tree)
        self._running[number] = pull, then, now_ms
        return number, self._run(now_ms, number, pull.begin())

    def on_answer(self, now_ms: int, sender: Peer, m: Answer) -> list[Effect]:
        """Take the answer of a source; one to an exchange that has ended changes nothing."""
        found = self._running.get(m.exchange.number)
        if found is None or found[0].source != sender:
            return []
        pull = found[0]
        match m:
            case Opened():
                effects = pull.on_opened(m)
            case Listed():
                effects = pull.on_listed(m)
            case Given():
                effects = pull.on_given(m)
            case Unanswered():
                effects = pull.on_unanswered(m)
        return self._run(now_ms, m.exchange.number, effects)

    def on_event(self, now_ms: int, m: Taken | LookedAt) -> list[Effect]:
        """Go on with what this member's disk says."""
        found = self._running.get(m.number)
        if found is None:
            return []
        pull = found[0]
        steps = pull.on_taken(m.rows, m.verdict) if isinstance(m, Taken) else pull.on_looked_at(m.rows)
        return self._run(now_ms, m.number, steps)

    def resend(self, now_ms: int) -> list[Effect]:
        """Ask every source again for what it has not answered."""
        effects: list[Effect] = []
        for number, (pull, _, _) in list(self._running.items()):
            effects += self._run(now_ms, number, pull.resend())
        return effects

    def stop(self, number: int) -> None:
        """End an exchange without a result; one that has ended stays so."""
        self._running.pop(number, None)

    def _run(self, now_ms: int, number: int, steps: Sequence[Step]) -> list[Effect]:
        effects: list[Effect] = []
        for step in steps:
            if number not in self._running:
                break
            effects += self._do(now_ms, number, step)
        return effects

    def _do(self, now_ms: int, number: int, step: Step) -> list[Effect]:
        unit, (pull, then, began_ms) = self._unit, self._running[number]
        match step:
            case To(message):
                return [Send(unit.address, pull.source, message)]
            case Look(first, behind):
                return unit.look(first, behind, lambda rows: self._run(now_ms, number, pull.on_looked(rows)))
            case LookAt(places):
                return unit.look_at(places, lambda rows: LookedAt(unit.address.id, number, rows))
            case Take(rows):
                count = len(rows)
                return unit.take(now_ms, pull.record, rows, lambda verdict: Taken(
                    unit.address.id, number, count, verdict))
            case Ended():
                del self._running[number]
                if step.outcome is Outcome.COMPLETE:
                    self.complete[pull.source] = began_ms
                return then(step)


class Series:
    """The exchanges that one caller has run, one after the other.  Behind one that failed it rests until the tick."""

    def __init__(self, pulls: Pulls) -> None:
        self.source: Member | None = None    # of the exchange that is under way
        self._pulls = pulls
        self._number = 0
        self._rests = False

    @property
    def free(self) -> bool:
        """Whether the next exchange may begin."""
        return self.source is None and not self._rests

    def begin(self, now_ms: int, source: Member, then: Then) -> list[Effect]:
        """Pull from a member; `then` takes the end, unless the exchange is stopped."""
        self._number, effects = self._pulls.begin(now_ms, source, lambda ended: self._ended(ended, then))
        self.source = source
        return effects

    def stop(self) -> None:
        """End the exchange that is under way without a result."""
        if self.source is not None:
            self._pulls.stop(self._number)
            self.source = None

    def on_tick(self) -> None:
        """Go on behind an exchange that failed."""
        self._rests = False

    def _ended(self, ended: Ended, then: Then) -> list[Effect]:
        self.source = None
        self._rests = ended.outcome is not Outcome.COMPLETE
        return then(ended)
