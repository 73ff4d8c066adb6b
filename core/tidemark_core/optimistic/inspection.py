"""Inspection: what a node answers to people about a range and a key, and how it shows cells without their values.

Stays out: asking other nodes (`coordinating.inspecting`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from ..base.ids import Member
from .cells import NEVER, Meta, Place, Retracted, Row, StringCell
from .messages import Inspect, Inspected, Part, Seen
from .ring import Range
from .stamps import ZERO
from .standing import Standing

CELLS_MAX = 64
"""So many cells of one answer are shown, and so many hints."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a range at a node that are no part of its rows.  `exchanged_ms` is 0 where there is none."""

    exchanged_ms: int = 0
    needs_repair: bool = False
    hints: tuple[Seen, ...] = ()    # at the places that were asked for


@dataclass(frozen=True, slots=True)
class HintsKept:
    """The hints of one range that a node keeps.  A hint names no owner that it is for (D73)."""

    count: int = 0
    bytes: int = 0
    oldest_ms: int | None = None    # the stamp of the oldest one
    lost: int = 0                   # obliged hints that a floor overtook here


@dataclass(frozen=True, slots=True)
class Block:
    """A fact that keeps the floor of a range from rising, as this node knows it; `since_ms` is 0 where it does not."""

    what: str
    since_ms: int = 0
    member: Member | None = None    # that the floor waits for


@dataclass(frozen=True, slots=True)
class RangeReport:
    """Everything of a range at one node, for people.  Times are of the node's clock.

    `exchanged` has the begin of the last complete exchange with each other owner, `exchanged_ms` the least of them:
    None where one of them is missing.  `late`: that was longer ago than half of the grace.
    """

    unit: int
    record: Range
    part: Part
    promise_ms: int
    exchanged: Mapping[Member, int]
    exchanged_ms: int | None
    late: bool
    needs_repair: bool
    hints: HintsKept
    blocks: tuple[Block, ...]
    leaves: int


@dataclass(frozen=True, slots=True)
class Summary:
    """All ranges of a node together.  `oldest_ms`: since when some range waits for a complete exchange."""

    ranges: int = 0
    oldest_ms: int | None = None
    late: int = 0
    need_repair: int = 0
    hints: int = 0
    hint_bytes: int = 0
    leaves: int = 0
    tree_bytes: int = 0
    trees_forgotten: int = 0


def part_of(standing: Standing) -> Part:
    """Return the part that a member has in a range."""
    if standing.withdrawn:
        return Part.WITHDRAWN
    if standing.me in standing.record.own.members:
        return Part.OWNER
    if not standing.record.holds(standing.me):
        return Part.NONE
    return Part.COPYING if standing.copying else Part.PENDING


def inspected(
    m: Inspect, record: Range, facts: Facts, standing: Standing | None = None, held: Mapping[Place, Row] | None = None
) -> Inspected:
    """Answer an inspection; `record` is what the node knows, `standing` and `held` are what it holds there."""
    cells = [cell for place, row in (held or {}).items() for cell in seen(place, row)]
    shown, shown_hints = _newest(cells), _newest(facts.hints)
    return Inspected(
        m.range, m.operation, part_of(standing) if standing is not None else Part.NONE, record.version,
        record.floor_ms, standing.promise_ms if standing is not None else 0, facts.exchanged_ms, facts.needs_repair,
        shown, len(cells) - len(shown), shown_hints, len(facts.hints) - len(shown_hints))


def seen(place: Place, row: Row) -> Iterator[Seen]:
    """Yield the cells of a row as people see them."""
    match row:
        case StringCell():
            yield Seen(place, row.stamp, row.dead, row.expires_at_ms, *_of_value(row.value))
        case Meta():
            if row.cleared != ZERO:
                yield Seen(place, row.cleared, True, NEVER, *_of_value(b""))
        case Retracted():
            for was, became in row.stamps:
                yield Seen(place, was, became != ZERO, NEVER, *_of_value(b""))
        case _:
            for actor, cell in row.items():
                yield Seen(
                    place, cell.stamp, cell.dead, cell.expires_at_ms, *_of_value(cell.value), cell.n, actor)


def _of_value(value: bytes) -> tuple[int, int]:
    return len(value), xxh3_64_intdigest(value)


def _newest(cells: Iterable[Seen]) -> tuple[Seen, ...]:
    return tuple(heapq.nlargest(CELLS_MAX, cells, key=lambda cell: cell.stamp))
