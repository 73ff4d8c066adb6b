"""What a reader and the members of a shard say to each other, and what a reader hands to its application.

Stays out: bytes; a shell maps these to frames, and items to records.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from .order import Mode


class Status(StrEnum):
    """How a node answers START."""

    OK = "OK"
    NOT_MEMBER = "NOT_MEMBER"    # not in the ensemble the reader knows, or no such shard here
    ACCESS = "ACCESS"            # the reader may not read this shard: final
    UNAVAILABLE = "UNAVAILABLE"  # shutting down, reloading or overloaded; try later


class GapKind(StrEnum):
    """Why offsets have no record."""

    HOLE = "HOLE"          # rolled back: nobody will ever read them
    TRIM = "TRIM"          # retention removed them
    DATALOSS = "DATALOSS"  # every member answered that it does not hold them
    ACCESS = "ACCESS"      # the reader may not read on


class Item(NamedTuple):
    """One entry or hole as a node shipped it: offsets [first, last]; `body` is None for a hole."""

    first: int
    last: int
    size: int
    body: Any


@dataclass(frozen=True, slots=True)
class Start:
    """Reader to node: begin (again) at `first`.  Replaces whatever ran on this stream before (S4, S8).

    `ensemble` is what the reader knows, in slot order, and `priorities` how near each slot is (S33), empty when that
    does not matter: every node decides from them alone who sends, so all decide alike.
    """

    generation: int
    first: int
    until: int                     # last offset wanted, -1: for ever
    mode: Mode
    known_down: tuple[str, ...]
    ensemble: tuple[str, ...]
    priorities: tuple[int, ...]
    window_bytes: int              # how many bytes the node may send before it hears a Window


@dataclass(frozen=True, slots=True)
class Started:
    """Node to reader: the answer to START.  `first` is the first offset it still holds."""

    generation: int
    status: Status
    released: int
    first: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Shipment:
    """Node to reader: whatever of [first, through] is this node's to send is among `items`, in offset order.

    `released` is as the node knows it.
    """

    generation: int
    first: int
    through: int
    released: int
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """Reader to node: so many bytes in all may be sent in this generation."""

    generation: int
    bytes_total: int


# --- effects of the reader --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a Start or Window to a node; a node that is not connected is being connected to, and told then."""

    node: str
    message: Start | Window


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand an entry to the application; in offset order, each offset once."""

    item: Item


@dataclass(frozen=True, slots=True)
class DeliverGap:
    """Tell the application that [first, last] holds no record, and why."""

    kind: GapKind
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Call `on_time` at `at_ms` or later, replacing the time asked for before; None: no need."""

    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth counting happened: rewind, known_down, all_send_all, single_copy; `detail` says why."""

    what: str
    node: str
    detail: str


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything up to `until` was delivered, or the reader may not read on."""


ReaderEffect = Tell | Deliver | DeliverGap | WakeAt | Note | Finished
