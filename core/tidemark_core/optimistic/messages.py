"""Messages about one range, between a coordinator and the members that own it, or that keep a hint for them.

Each names the range; those to and from owners also the version and floor of the record that their sender acts under.
Stays out: their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .cells import Element, Place, Row, StringCell
from .owner import Fate, Source, Verdict
from .ring import Range
from .stamps import ZERO, Actor, Stamp

# --- changes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StringWrite:
    """The cell of a String."""

    key: bytes
    cell: StringCell


@dataclass(frozen=True, slots=True)
class ElementWrite:
    """Cells of an element; `shown`: its value must be the one that the field shows (D60)."""

    key: bytes
    element: bytes
    row: Element
    shown: bool = False


@dataclass(frozen=True, slots=True)
class ClearWrite:
    """The removal of all elements of a key."""

    key: bytes
    cleared: Stamp


@dataclass(frozen=True, slots=True)
class RowsWrite:
    """Rows that owners hold, each with its place."""

    rows: tuple[tuple[Place, Row], ...]


@dataclass(frozen=True, slots=True)
class RetractWrite:
    """Take the stamp `was` of a String back: `became` stands in for it, ZERO: not yet (D84)."""

    key: bytes
    was: Stamp
    became: Stamp = ZERO


Change = StringWrite | ElementWrite | ClearWrite | RowsWrite | RetractWrite


@dataclass(frozen=True, slots=True)
class Store:
    """Coordinator to member: store this, and answer once it is on disk, with the same operation and attempt."""

    range: int
    version: int
    floor_ms: int
    operation: int
    attempt: int
    source: Source
    change: Change


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """Member to coordinator.  `record` is the member's own where the coordinator has an older one."""

    range: int
    version: int
    floor_ms: int
    operation: int
    attempt: int
    verdict: Verdict
    record: Range | None = None


# --- reads --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Span:
    """At most `rows_max` rows with places in [first, behind), in their order; at least one when there is one."""

    first: Place
    behind: Place
    rows_max: int


@dataclass(frozen=True, slots=True)
class Load:
    """Coordinator to member: answer with what is on disk at these places and in this span."""

    range: int
    version: int
    floor_ms: int
    operation: int
    attempt: int
    places: tuple[Place, ...]
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class LoadAnswer:
    """Member to coordinator: the rows without what its floor collects, or why there are none.

    `behind` is the place that the span goes on from, None where it is at its end.
    """

    range: int
    version: int
    floor_ms: int
    operation: int
    attempt: int
    rows: tuple[tuple[Place, Row], ...] = ()
    behind: Place | None = None
    refused: Fate | None = None
    record: Range | None = None


# --- hints --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Keep:
    """Coordinator to a node that owns no copy: keep this row for the owners, and answer once it is on disk (D73)."""

    range: int
    operation: int
    attempt: int
    place: Place
    row: Row


class Refusal(Enum):
    """Why a node takes no hint."""

    OLD = "old"          # owners may have settled everything of that time already
    FULL = "full"
    FUTURE = "future"    # further ahead than clocks may differ (D54)


@dataclass(frozen=True, slots=True)
class Kept:
    """Node to coordinator: the row is on disk here until owners have it, or why not."""

    range: int
    operation: int
    attempt: int
    refused: Refusal | None = None


# --- inspections --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inspect:
    """Coordinator to any node, for people: say what you know of a range, and what you have at these places."""

    range: int
    operation: int
    places: tuple[Place, ...]


class Part(Enum):
    """The part of a node in a range."""

    OWNER = "owner"
    PENDING = "pending"        # it takes writes, and becomes an owner when the move ends
    COPYING = "copying"        # a pending owner that has not copied the range yet
    WITHDRAWN = "withdrawn"    # its disk is older than the floor
    NONE = "none"


class Seen(NamedTuple):
    """A cell as people see it: the size and a digest stand for its value.

    The clear of a key is shown as a dead cell of its row, a stamp that is taken back as one that is dead where
    another stamp stands in for it (D84).  `actor` is of a cell of an element alone.
    """

    place: Place
    stamp: Stamp
    dead: bool
    expires_at_ms: int
    size: int
    digest: int
    n: int = 0
    actor: Actor | None = None


@dataclass(frozen=True, slots=True)
class Inspected:
    """Node to coordinator: what it has on disk, also what its floor collects, and what it keeps for owners.

    Of many cells the newest are shown; `cells_more` and `hints_more` count the others.  `exchanged_ms` is when the last
    exchange began after which it lacks nothing that another owner had then, 0 where there is none.
    """

    range: int
    operation: int
    part: Part
    version: int
    floor_ms: int
    promise_ms: int
    exchanged_ms: int
    needs_repair: bool
    cells: tuple[Seen, ...] = ()
    cells_more: int = 0
    hints: tuple[Seen, ...] = ()
    hints_more: int = 0


# --- both ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RingTold:
    """The record of a range, to a member that has an older one or a lower floor."""

    range: int
    record: Range
