"""Messages about one range, between a coordinator and the members that own it.

Each names the range, and the version and floor of the record that its sender acts under.
Stays out: their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .cells import Element, StringCell
from .owner import Source, Verdict
from .ring import Range
from .stamps import Stamp


@dataclass(frozen=True, slots=True)
class StringWrite:
    """The cell of a String."""

    cell: StringCell


@dataclass(frozen=True, slots=True)
class ElementWrite:
    """Cells of an element; `shown`: its value must be the one that the field shows (D60)."""

    element: bytes
    row: Element
    shown: bool = False


@dataclass(frozen=True, slots=True)
class ClearWrite:
    """The removal of all elements of a key."""

    cleared: Stamp


Change = StringWrite | ElementWrite | ClearWrite


@dataclass(frozen=True, slots=True)
class Store:
    """Coordinator to member: store this, and answer once it is on disk, with the same operation and attempt."""

    range: int
    version: int
    floor_ms: int
    operation: int
    attempt: int
    source: Source
    key: bytes
    change: Change


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """Member to coordinator.  `record` is the member's own where the coordinator has an older one."""

    range: int
    version: int
    operation: int
    attempt: int
    verdict: Verdict
    record: Range | None = None


@dataclass(frozen=True, slots=True)
class RingTold:
    """The record of a range, to a member that has an older one."""

    range: int
    record: Range
