"""Writing: a change goes to all owners, and is done when enough of them have stored it (D60, D64, D65, D76).

A sloppy write that waits in vain asks other nodes to keep the change for the owners (D73).
One object is one write at its coordinator.  Methods return messages and, once, the outcome.
Stays out: which members a record names (`ring`); sending, timers and clocks of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ...base.ids import Member
from ..messages import Change, Keep, Kept, RingTold, RowsWrite, Store, StoreAnswer
from ..owner import Fate, Source
from ..ring import Range
from ..stamps import ZERO, Clock, Dot, Stamp
from ..storing import row_of
from .outcomes import Outcome, To

REST_TICKS_MAX = 8
BATCH_TICKS = 4
"""A change of many rows is sent again so many times later: it takes its receiver longer, and so does each repeat."""
PATIENCE = 2
"""A sloppy write asks so many more nodes to keep the change as it lacks, once in so many ticks."""


class Done(NamedTuple):
    """The answer to the caller: the stamp of the last attempt, and the members that stored it."""

    outcome: Outcome
    stamp: Stamp
    stored: tuple[Member, ...]


Effect = To | Done


def _is_due(ticks: int, change: Change) -> bool:
    """Say whether members are asked again at this tick: a member under load would drown in repeats."""
    if isinstance(change, RowsWrite) and len(change.rows) > 1:
        ticks, left = divmod(ticks, BATCH_TICKS)
        if left:
            return False
    return ticks % REST_TICKS_MAX == 0 or ticks in (1, 2, 4)


class Write:
    """One write.  `make` returns the change for a dot; it is called again for each stamp that turns out too low.

    A change whose stamps are given, not drawn, is `fixed`: a hint, a backup, a remove of what a read found (D57).
    Every stamp is above `above`.  `nodes` may keep the change for owners, those to ask first in front; a write that is
    not sloppy has none.  `w` is that of the request, 0 where it names none (D77).
    """

    def __init__(
        self, operation: int, index: int, record: Range, clock: Clock, make: Callable[[Dot], Change], *,
        source: Source = Source.CLIENT, fixed: bool = False, nodes: Sequence[Member] = (), w: int = 0,
        above: Stamp = ZERO,
    ) -> None:
        self.operation = operation
        self.index = index          # of the range
        self.record = record
        self.done: Done | None = None
        self._clock = clock
        self._make = make
        self._source = source
        self._fixed = fixed
        self._nodes = nodes
        self._w = w
        self._above = above         # the stamp of the next attempt must exceed this one
        self._attempt = 0
        self._dot: Dot
        self._change: Change
        self._stored: dict[Member, None] = {}
        self._future: dict[Member, None] = {}
        self._below: dict[Member, None] = {}
        self._keeps: dict[Member, bool | None] = {}   # asked to keep the change; None: has not answered
        self._ticks = 0             # of this attempt
        self._settled = True        # no member can have stored any attempt so far

    def begin(self, now_ms: int) -> list[To]:
        """Draw a stamp and send the change to every owner and pending owner."""
        self._dot = self._clock.draw(now_ms, self._above)
        self._change = self._make(self._dot)
        return self._send_to_all()

    def resend(self) -> list[To]:
        """Send the attempt again to members that have not answered it; now and then ask more nodes to keep it."""
        if self.done is not None:
            return []
        self._ticks += 1
        silent = [member for member in self.record.members
                  if member not in self._stored and member not in self._future and member not in self._below
                  ] if _is_due(self._ticks, self._change) else []
        again = [To(node, self._keep) for node, keeps in self._keeps.items() if keeps is None]
        more = self._ask(self._missing) if self._ticks % PATIENCE == 0 else []
        return [*self._to(silent), *again, *more]

    def on_answer(self, now_ms: int, sender: Member, m: StoreAnswer) -> Sequence[Effect]:
        """Take the answer of a member; one to an earlier attempt counts for nothing (D60).

        An attempt belongs to one record: a member stores nothing under another one (D65).
        """
        if self.done is not None:
            return []
        if m.record is not None and m.record.version > self.record.version:
            return self.on_record(m.record)
        if m.attempt != self._attempt:
            return []
        match m.verdict.fate:
            case Fate.STORED:
                self._stored[sender] = None
                return self._judge()
            case Fate.NEWER | Fate.BELOW if self._fixed:
                self._clock.saw(m.verdict.above, now_ms)
                self._below[sender] = None
                return self._on_refused(Outcome.BELOW)
            case Fate.NEWER | Fate.BELOW:
                self._above = max(self._above, m.verdict.above)
                return self.begin(now_ms)
            case Fate.FUTURE:
                self._future[sender] = None
                return self._on_refused(Outcome.FUTURE) if self._fixed else self._on_future()
            case Fate.NEEDS_RING:
                return [To(sender, RingTold(self.index, self.record)), To(sender, self._message)]
        return []

    def on_kept(self, sender: Member, m: Kept) -> Sequence[Effect]:
        """Count a node that keeps this attempt; ask the next one in place of a node that does not (D73)."""
        if self.done is not None or m.attempt != self._attempt or self._keeps.get(sender, False) is not None:
            return []
        self._keeps[sender] = m.refused is None
        return self._judge() if m.refused is None else self._ask(1)

    def on_record(self, record: Range) -> list[To]:
        """Go on under a newer record: the same cells, counted from none (D65)."""
        if self.done is not None or record.version <= self.record.version:
            return []
        self.record = record
        return self._send_to_all()

    @property
    def weak(self) -> bool:
        """Whether fewer members are enough than the record asks for (D77)."""
        return self.record.weak(w=self._w)

    def on_deadline(self) -> list[Done]:
        """End without knowing: what was sent may be stored, now or later (D76)."""
        return [] if self.done else self._end(Outcome.UNKNOWN)

    def _judge(self) -> list[Done]:
        """End where the owners that stored the change are enough, or they and the nodes that keep it."""
        if self.record.write(self._stored, self._w):
            return self._end(Outcome.OK)
        return self._end(Outcome.SLOPPY) if self._missing <= 0 else []

    @property
    def _missing(self) -> int:
        """How many more owners must store the change, or nodes keep it."""
        return self.record.missing(self._stored, self._w) - sum(keeps is True for keeps in self._keeps.values())

    def _ask(self, count: int) -> list[To]:
        """Ask the next nodes to keep the change, none that is an owner or a pending one."""
        nodes = [node for node in self._nodes if node not in self._keeps and not self.record.holds(node)][:count]
        if nodes:
            self._settled = False
        self._keeps.update(dict.fromkeys(nodes))
        return [To(node, self._keep) for node in nodes]

    def _on_future(self) -> list[Done]:
        """All owners refuse our stamp, and none has stored any: nothing was changed, and no try will be taken soon."""
        everybody = all(member in self._future for member in self.record.members)
        return self._end(Outcome.FUTURE) if everybody and self._settled else []

    def _on_refused(self, outcome: Outcome) -> list[Done]:
        """The stamp of a change that is fixed stays refused: end where too few members are left that may store it."""
        left = [member for member in self.record.members if member not in self._below and member not in self._future]
        return [] if self.record.write(left, self._w) else self._end(outcome)

    def _send_to_all(self) -> list[To]:
        self._settled = self._attempt == 0
        self._attempt += 1
        self._stored, self._future, self._below, self._keeps, self._ticks = {}, {}, {}, {}, 0
        return self._to(self.record.members)

    def _to(self, members: Iterable[Member]) -> list[To]:
        message = self._message     # one for all: it is encoded once
        return [To(member, message) for member in members]

    @property
    def _message(self) -> Store:
        return Store(
            self.index, self.record.version, self.record.floor_ms, self.operation, self._attempt, self._source,
            self._change,
        )

    @property
    def _keep(self) -> Keep:
        return Keep(self.index, self.operation, self._attempt, *row_of(self._change))

    def _end(self, outcome: Outcome) -> list[Done]:
        self.done = Done(outcome, self._dot.stamp, tuple(self._stored))
        return [self.done]
