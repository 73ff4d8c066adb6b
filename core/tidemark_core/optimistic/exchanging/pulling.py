"""Pulling: one member takes what another one holds of a range and it lacks (D74).

One object is one exchange at the member that takes.  It walks the tree of the source, part by part, compares each with
its own tree, and asks for rows where they differ.  It is complete once everything that the source held when it began is
durable here.  Stays out: reading and writing rows (`Look`, `LookAt` and `Take` ask for it), repeats by time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ...base.ids import Member
from ..cells import Place, Row, decode_place
from ..messages import RingTold
from ..owner import Fate, Verdict
from ..ring import Range
from .giving import PARTS_MAX, SHORT, buckets_of
from .messages import Bounds, Drawn, Exchange, Given, Listed, Open, Opened, Sketch, Unanswered, Want
from .tree import END, UNKNOWN, Part, Tree, Weighed


class Outcome(Enum):
    """The end of an exchange."""

    COMPLETE = "complete"
    MISMATCH = "mismatch"      # a row of the source is below our floor and was refused: its copy is no owner's (D74)
    INCOMPLETE = "incomplete"  # the source has another record or is no owner, or a row is from the future


class To(NamedTuple):
    """A message to the source."""

    message: Open | Sketch | Want | RingTold


class Look(NamedTuple):
    """Weigh the rows of a part; answer with `on_looked`."""

    first: bytes
    behind: bytes


class LookAt(NamedTuple):
    """Weigh the rows at these places; answer with `on_looked_at`."""

    places: tuple[Place, ...]


class Take(NamedTuple):
    """Store rows of the source, as cells that an owner holds; answer with `on_taken` once they are durable."""

    rows: tuple[tuple[Place, Row], ...]


class Ended(NamedTuple):
    """The end; `record` is the source's where it is newer than ours."""

    outcome: Outcome
    record: Range | None = None


Effect = To | Look | LookAt | Take | Ended


class Pull:
    """One exchange.  `record` is what this member acts under; a newer one ends the exchange."""

    def __init__(self, number: int, index: int, source: Member, record: Range, tree: Tree) -> None:
        self.source = source
        self.record = record
        self.ended: Ended | None = None
        self.rows_taken = 0
        self._head = Exchange(index, record.version, record.floor_ms, number)
        self._tree = tree
        self._parts: list[Bounds] = [(b"", END)]                # to open, the next one last
        self._sent: Open | Sketch | Want | None = None          # what the source has not answered
        self._leaves: list[Bounds] = []                         # to compare, in their order once that begins
        self._drawn: list[Drawn] = []                           # of the first leaves, for the next message
        self._listed: Mapping[bytes, int] = {}                  # the source's rows: place and digest
        self._wanted: list[Place] = []
        self._upto: Place | None = None                         # of the rows that are being stored

    def begin(self) -> list[Effect]:
        """Open the whole range."""
        return self._next()

    def resend(self) -> list[Effect]:
        """Ask again what the source has not answered."""
        return [To(self._sent)] if self._sent is not None and self.ended is None else []

    # --- what the source says -----------------------------------------------------------------------------

    def on_opened(self, m: Opened) -> list[Effect]:
        """Go on with the parts that differ, or look at our own rows of a leaf."""
        sent = self._sent
        if not isinstance(sent, Open) or not self._is_ours(m.exchange):
            return []
        if (m.first, m.behind) != (sent.parts[0].first, sent.parts[-1].behind):
            return []
        self._sent = None
        self._parts += [(part.first, part.behind) for part in reversed(m.parts) if not self._equal(part)]
        self._leaves += m.leaves
        return self._next()

    def on_unanswered(self, m: Unanswered) -> list[Effect]:
        """Give the source our record where it has an older one; a source that is not ready is asked again later."""
        sent = self._sent
        if sent is None or not self._is_ours(m.exchange) or m.why is Fate.NOT_READY:
            return []
        if m.why is Fate.NEEDS_RING:
            return [To(RingTold(self._head.range, self.record)), To(sent)]
        return self._end(Outcome.INCOMPLETE, m.record)

    def on_listed(self, m: Listed) -> list[Effect]:
        """Look at our rows where the source has some."""
        sent = self._sent
        if not isinstance(sent, Sketch) or m.first != sent.leaves[0].first or not self._is_ours(m.exchange):
            return []
        self._sent = None
        rest = m.rest if m.rest is not None else END
        left = [(max(first, rest), behind) for first, behind, _ in sent.leaves if behind > rest]
        self._leaves = [*left, *self._leaves[len(sent.leaves):]]
        self._listed = dict(m.rows)
        return [LookAt(tuple(map(decode_place, self._listed)))] if self._listed else self._next()

    def on_given(self, m: Given) -> list[Effect]:
        """Store what came; places that the source has no row at any more are done."""
        if not isinstance(self._sent, Want) or m.upto not in self._sent.places or not self._is_ours(m.exchange):
            return []
        self._sent = None
        done = self._wanted.index(m.upto) + 1
        wanted, self._wanted = set(self._wanted[:done]), self._wanted[done:]
        rows = tuple((place, row) for place, row in m.rows if place in wanted)
        return [Take(rows)] if rows else self._next()

    # --- what the shell says ------------------------------------------------------------------------------

    def on_looked(self, rows: Sequence[Weighed] | None) -> list[Effect]:
        """Draw our rows of the leaf; None where they are too many, then the source names all of its own."""
        first, behind = self._leaves[len(self._drawn)]
        self._drawn.append(Drawn(first, behind, () if rows is None else buckets_of(rows)))
        if len(self._drawn) < min(len(self._leaves), PARTS_MAX):
            return self._look()
        drawn, self._drawn = tuple(self._drawn), []
        return self._send(Sketch(self._head, drawn))

    def on_looked_at(self, rows: Sequence[Weighed]) -> list[Effect]:
        """Want the rows that are not ours, or not the same."""
        ours = {row.at: row.digest & SHORT for row in rows}
        self._wanted = [decode_place(at) for at, digest in self._listed.items() if ours.get(at) != digest]
        return self._next()

    def on_taken(self, rows: int, verdict: Verdict) -> list[Effect]:
        """Go on when the rows are durable; one that was refused ends the exchange, for a repeat would not help."""
        if self.ended is not None:
            return []
        if verdict.fate is Fate.STORED:
            self.rows_taken += rows
            return self._next()
        return self._end(Outcome.MISMATCH if verdict.fate is Fate.DROPPED else Outcome.INCOMPLETE)

    # --- the walk -----------------------------------------------------------------------------------------

    def _next(self) -> list[Effect]:
        if self._wanted:
            return self._send(Want(self._head, tuple(self._wanted)))
        if self._leaves and (len(self._leaves) >= PARTS_MAX or not self._parts):
            self._leaves.sort()
            return self._look()
        if not self._parts:
            return self._end(Outcome.COMPLETE)
        opened, self._parts = self._parts[-PARTS_MAX:], self._parts[:-PARTS_MAX]
        return self._send(Open(self._head, tuple(
            Part(first, behind, self._tree.tally(first, behind) or UNKNOWN) for first, behind in reversed(opened))))

    def _look(self) -> list[Effect]:
        return [Look(*self._leaves[len(self._drawn)])]

    def _equal(self, part: Part) -> bool:
        return part.tally == self._tree.tally(part.first, part.behind)

    def _send(self, m: Open | Sketch | Want) -> list[Effect]:
        self._sent = m
        return [To(m)]

    def _is_ours(self, exchange: Exchange) -> bool:
        return self.ended is None and (exchange.range, exchange.number) == (self._head.range, self._head.number)

    def _end(self, outcome: Outcome, record: Range | None = None) -> list[Effect]:
        self._sent = None
        self.ended = Ended(outcome, record)
        return [self.ended]
