"""Messages of an exchange: one member, the puller, takes what another one, the source, holds of a range.

Places are bytes here (`cells.encode_place`), and digests of rows have 64 bits.  The source keeps nothing between two
messages, so a puller sends again what was not answered.  Stays out: their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..cells import Place, Row
from ..owner import Fate
from ..ring import Range
from .tree import Part

Bounds = tuple[bytes, bytes]
"""The places of a part: the first one, and the first one behind it."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange that a message belongs to: its number at the member that pulls, and what the sender acts under."""

    range: int
    version: int
    floor_ms: int
    number: int


@dataclass(frozen=True, slots=True)
class Open:
    """Puller to source: what is in these parts?  At least one, in their order; the tallies are the puller's."""

    exchange: Exchange
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Opened:
    """Source to puller: smaller parts with rows, none of a part that is equal, and those that are one leaf here.

    `first` and `behind` bound all that was asked for.
    """

    exchange: Exchange
    first: bytes
    behind: bytes
    parts: tuple[Part, ...] = ()
    leaves: tuple[Bounds, ...] = ()


@dataclass(frozen=True, slots=True)
class Unanswered:
    """Source to puller: why there is no answer; `record` is the source's where it is newer or has the higher floor."""

    exchange: Exchange
    why: Fate
    record: Range | None = None


class Drawn(NamedTuple):
    """The digests of what the puller has in a leaf, by bucket; none: name all rows."""

    first: bytes
    behind: bytes
    buckets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Sketch:
    """Puller to source: what the puller has in these leaves: at least one, in their order."""

    exchange: Exchange
    leaves: tuple[Drawn, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """Source to puller: place and digest of its rows in the buckets that differ; the rest begins at `rest`."""

    exchange: Exchange
    first: bytes
    rows: tuple[tuple[bytes, int], ...]
    rest: bytes | None = None


@dataclass(frozen=True, slots=True)
class Want:
    """Puller to source: give the rows at these places."""

    exchange: Exchange
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """Source to puller: the rows at the first places that were wanted, up to `upto`, as many as fit."""

    exchange: Exchange
    upto: Place
    rows: tuple[tuple[Place, Row], ...]
