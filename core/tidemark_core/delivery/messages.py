"""What a reader and the members of a shard say to each other, and what a reader hands to its application.

Stays out: bytes; a shell maps these to frames, and items to records.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from operator import attrgetter
from typing import NamedTuple

from ..base.entry import Entry
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
    UNDECODABLE = "UNDECODABLE"   # clients alone find it: the payload is not what an appender writes (T11)


class Damaged(Enum):
    """What stands in for a body that fails its checksum."""

    DAMAGED = "DAMAGED"


class NotHeld(Enum):
    """What stands in for a body that other members keep."""

    NOT_HELD = "NOT_HELD"


DAMAGED = Damaged.DAMAGED
NOT_HELD = NotHeld.NOT_HELD

_BASE, _LAST = attrgetter("base"), attrgetter("last")


class Item(NamedTuple):
    """Entries or a hole as a node shipped them: offsets [first, last].

    `body` is a tuple of entries, one right behind the other; None for a hole, DAMAGED where the offsets are certain and
    the payload fails its checksum, NOT_HELD where the entry is the node's to send and its payload is not here: answers
    too, never a gap (K17, K18).
    """

    first: int
    last: int
    size: int
    body: tuple[Entry, ...] | Damaged | NotHeld | None

    @property
    def entry_count(self) -> int:
        """How many entries it is; what has none of its own counts as one."""
        return len(self.body) if isinstance(self.body, tuple) else 1

    @property
    def size_of_last(self) -> int:
        """Bytes of its last entry."""
        return self.body[-1].size if isinstance(self.body, tuple) and len(self.body) > 1 else self.size

    def part(self, first: int, last: int) -> Item:
        """Return the item without the entries that end in front of `first` or begin behind `last`."""
        if not isinstance(self.body, tuple) or len(self.body) == 1:
            return self
        begin, end = bisect_left(self.body, first, key=_LAST), bisect_right(self.body, last, key=_BASE)
        return self if (begin, end) == (0, len(self.body)) else entries_item(self.body[begin:end])


HOLE_BYTES = 16
"""What an item without a body counts."""


def entries_item(entries: Sequence[Entry]) -> Item:
    """Return entries that lie one right behind the other as an item; its size is what a window counts."""
    return Item(entries[0].base, entries[-1].last, sum(entry.size for entry in entries), tuple(entries))


def together(found: Iterable[Entry | Item]) -> Iterator[Item]:
    """Yield what was found, in order, as items: entries that lie one right behind the other as one."""
    run: list[Entry] = []
    for one in found:
        if run and not (isinstance(one, Entry) and one.base == run[-1].last + 1):
            yield entries_item(run)
            run = []
        if isinstance(one, Entry):
            run.append(one)
        else:
            yield one
    if run:
        yield entries_item(run)


def singly(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items of one entry each, for whoever looks at entries one by one: the reverse of `together`."""
    for item in items:
        if isinstance(item.body, tuple) and len(item.body) > 1:
            yield from (entries_item((entry,)) for entry in item.body)
        else:
            yield item


def hole_item(first: int, last: int) -> Item:
    """Return a rolled-back range as an item."""
    return Item(first, last, HOLE_BYTES, None)


def not_held_item(first: int, last: int) -> Item:
    """Return an entry whose payload is not here; it takes as much of a window as a hole."""
    return Item(first, last, HOLE_BYTES, NOT_HELD)


@dataclass(frozen=True, slots=True)
class Start:
    """Reader to node: begin (again) at `first`.  Replaces whatever ran on this stream before (S4, S8).

    `ensemble` is what the reader knows, in slot order, and `priorities` how near each slot is (S33), empty when that
    does not matter, `copies` how many members keep each payload, 0: all.  Every node decides from them alone who sends,
    so all decide alike.
    """

    generation: int
    first: int
    until: int                     # last offset wanted, -1: for ever
    mode: Mode
    known_down: tuple[str, ...]
    ensemble: tuple[str, ...]
    priorities: tuple[int, ...]
    window_bytes: int              # how many bytes the node may send before it hears a Window
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """Node to reader: the answer to START.  `first` is the first offset it still holds.

    Said again, with the same generation, by a node whose retention has overtaken the stream: it goes on at `first`.
    It may also take back an earlier OK, when the node must stop.
    """

    generation: int
    status: Status
    released: int
    first: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Shipment:
    """Node to reader: whatever of [first, through] is this node's to send is among `items`, in offset order.

    Shipments of one generation follow each other without a hole, from START's `first` on.  Where an entry is the node's
    to send and it does not keep its payload, it says so by an item; what it passes over is not its to send, or nothing
    at all.  `released` is as the node knows it.
    """

    generation: int
    first: int
    through: int
    released: int
    items: tuple[Item, ...]

    @property
    def left_out(self) -> int:
        """Return how many offsets are covered without an item: others send what is there."""
        return self.through - self.first + 1 - sum(item.last - max(item.first, self.first) + 1 for item in self.items)


@dataclass(frozen=True, slots=True)
class Window:
    """Reader to node: so many bytes in all may be sent in this generation.

    A node begins an entry while it has sent less than that, so it oversteps by one entry at most.
    """

    generation: int
    bytes_total: int


# --- effects of the reader --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a Start or Window to a node.

    To a node that is not connected it is dropped: whoever runs the reader keeps connecting to every member of its
    ensemble, and `on_connected` says it anew.
    """

    node: str
    message: Start | Window


class Deliver(NamedTuple):
    """Hand the offsets [first, last] of an item's entries to the application; in order, each offset once.

    They are whole entries, unless the reader began in the middle of the first or ends in the middle of the last.
    """

    item: Item
    first: int
    last: int


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


class Reason(StrEnum):
    """Why a node is put into known_down, or the stream is rewound."""

    CLOSED = "CLOSED"              # S13: the stream broke, or could not be opened
    NO_ANSWER = "NO_ANSWER"        # S10, S11: START is not answered in time
    REFUSED = "REFUSED"            # S12
    CORRUPT = "CORRUPT"            # S9: something failed its checksum
    SILENT = "SILENT"              # S14
    VIOLATION = "VIOLATION"        # it left something out, or sent more than it was granted
    SLOW = "SLOW"                  # reading waits for it again and again
    BACK = "BACK"                  # S16: a listed node sends again, or was slow long enough
    ENSEMBLE = "ENSEMBLE"          # the members changed
    ALL_SEND_ALL = "ALL_SEND_ALL"  # S17, S18
    SINGLE_COPY = "SINGLE_COPY"    # S21


@dataclass(frozen=True, slots=True)
class Note:
    """Something worth counting happened: known_down, back, slow, all_send_all, single_copy, rewind.

    There is one rewind note per rewind, with the first of its reasons.  `detail` is for people.
    """

    what: str
    node: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """Everything up to `until` was delivered, or the reader may not read on."""


ReaderEffect = Tell | Deliver | DeliverGap | WakeAt | Note | Finished
