"""Tree: digests of the rows of a range, kept up with every write, so that owners find where they differ (D74).

Leaves lie beside each other in the order of places and cover them all.  The digest of a part is the sum of the digests
of its rows, so owners whose leaves end at different places compare parts all the same.  A leaf of more than `leaf_rows`
rows is scanned and split where its places first differ: owners with equal rows have equal leaves.  A leaf is scanned as
well once a floor may collect something of it.  A tree may be forgotten, and is then built again by scans (D85).
Stays out: reading rows, comparing with another owner (`pulling`), which tree is forgotten (`memory`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from xxhash import xxh3_128_intdigest

from ..cells import NEVER, ElementCell, Meta, Place, Retracted, Row, StringCell, encode_place, encode_row
from ..merge import collectable, collected, collected_retracted
from ..stamps import ZERO

LEAF_ROWS = 1_000
"""So many rows a leaf has at most (D74)."""
JOIN_PART = 4
"""Neighbours with so small a part of that together become one leaf: a tree has at most eight leaves for 1,000 rows."""
DIGESTS = 1 << 128
END = b"\xff"
"""Behind the bytes of every place."""
NOT_DUE = 1 << 63
LEAF_BYTES = 256
"""So many bytes of memory a leaf takes, beside its first place."""


class Tally(NamedTuple):
    """How many rows a part has, and the sum of their digests."""

    rows: int
    digest: int


class Weighed(NamedTuple):
    """A row as the tree knows it."""

    at: bytes        # its place
    digest: int
    due_ms: int      # a floor from here on collects something of the row


class Part(NamedTuple):
    """Places in [first, behind), and what is there."""

    first: bytes
    behind: bytes
    tally: Tally


def weigh(
    place: Place, row: Row, floor_ms: int, at: bytes | None = None, encoded: bytes | None = None
) -> Weighed | None:
    """Return what a tree keeps of a row, None where the floor collects all of it.

    Of the row of a key only the clear counts: the greatest stamp is each member's own (D58).
    `at` and `encoded` are the bytes of place and row, where the caller has them.
    """
    left: Row | None
    match row:
        case StringCell():
            left = None if row.stamp.ms <= floor_ms and collectable(row, floor_ms) else row
        case Meta():
            left = Meta(row.cleared) if row.cleared.ms > floor_ms else None
        case Retracted():
            left = collected_retracted(row, floor_ms)
        case _:
            left = collected(row, floor_ms, ZERO) or None
    if left is None:
        return None
    if at is None:
        at = encode_place(place)
    if encoded is None or left is not row:
        encoded = encode_row(left)
    return Weighed(at, xxh3_128_intdigest(at + encoded), _due(left))


def _due(row: Row) -> int:
    match row:
        case StringCell():
            return _due_of(row)
        case Meta():
            return row.cleared.ms
        case Retracted():
            return min(was.ms for was, _ in row.stamps)
        case _:
            return min(map(_due_of, row.values()), default=NOT_DUE)


def _due_of(cell: StringCell | ElementCell) -> int:
    if cell.dead:
        return cell.stamp.ms
    return NOT_DUE if cell.expires_at_ms == NEVER else max(cell.stamp.ms, cell.expires_at_ms)


class _Leaf:
    __slots__ = ("built", "digest", "due_ms", "rows", "writing")

    def __init__(self, *, built: bool, writing: int = 0) -> None:
        self.built = built
        self.rows = self.digest = 0
        self.due_ms = NOT_DUE
        self.writing = writing    # writes that are on their way to the disk

    def add(self, row: Weighed, sign: int) -> None:
        """Count a row, or with the sign -1 leave one out."""
        self.rows += sign
        self.digest = (self.digest + sign * row.digest) % DIGESTS
        if row.due_ms < self.due_ms:
            self.due_ms = row.due_ms


class Scan(NamedTuple):
    """A look at the rows of one leaf that was asked for."""

    first: bytes
    behind: bytes


class Tree:
    """The tree of one range at one member.  It knows nothing before `built` scans have covered the range."""

    def __init__(self, leaf_rows: int = LEAF_ROWS) -> None:
        self._leaf_rows = leaf_rows
        self._firsts = [b""]
        self._leaves = [_Leaf(built=False)]
        self._scan: Scan | None = None
        self._spoilt: bytes | None = None   # the least place at which a write met the scan that is under way
        self.bytes = LEAF_BYTES   # of memory; 0 while it is away
        self.away = False         # forgotten, and not wanted since
        self.was_ready = False    # every leaf was known at some time

    # --- writes -------------------------------------------------------------------------------------------

    def writing(self, at: bytes) -> None:
        """Note that a row is on its way to the disk."""
        self._at(at).writing += 1
        if self._scan is not None:
            self._spoil(self._scan, at)

    def wrote(self, at: bytes, before: Weighed | None, after: Weighed | None) -> None:
        """Take a row that `writing` announced and that is durable now, and the row that it replaced; None: no row."""
        leaf = self._at(at)
        leaf.writing -= 1
        if self._scan is not None:
            self._spoil(self._scan, at)
        if before is not None:
            leaf.add(before, -1)
        if after is not None:
            leaf.add(after, 1)

    def _spoil(self, scan: Scan, at: bytes) -> None:
        if scan.first <= at < scan.behind and (self._spoilt is None or at < self._spoilt):
            self._spoilt = at

    @property
    def leaves(self) -> int:
        """How many leaves are in memory."""
        return len(self._leaves)

    # --- scans --------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether every leaf is known."""
        return all(leaf.built for leaf in self._leaves)

    @property
    def settled(self) -> bool:
        """Whether no scan is under way, and every leaf is known or the tree is away."""
        return self._scan is None and (self.away or self.ready)

    @property
    def building(self) -> bool:
        """Whether scans are to make leaves known."""
        return not self.away and not self.ready

    @property
    def scanning(self) -> bool:
        """Whether a scan is under way."""
        return self._scan is not None

    def next_scan(self, floor_ms: int, flying: Callable[[], Iterable[bytes]] | None = None) -> Scan | None:
        """Return what to read next: a leaf that is unknown, too large, or of which the floor collects something.

        One scan is under way at a time.  A leaf that is being written waits.  `flying` returns the places of all rows
        on their way to the disk: with it an unknown leaf is read up to the first of them.
        """
        if self._scan is not None:
            return None
        if self.away:
            if self._leaves[0].due_ms > floor_ms:
                return None
            self.want()
        self._join()
        for number, leaf in enumerate(self._leaves):
            if leaf.built and leaf.rows <= self._leaf_rows and leaf.due_ms > floor_ms:
                continue
            scan, spoilt = Scan(self._firsts[number], self._behind(number)), None
            if leaf.writing:
                if leaf.built or flying is None:
                    continue
                spoilt = min((at for at in flying() if scan.first <= at < scan.behind), default=scan.first)
                if spoilt == scan.first:
                    continue
            self._scan, self._spoilt = scan, spoilt
            return scan
        return None

    def want(self) -> None:
        """Have scans build the tree again where it is away (D85)."""
        if self.away:
            self.away, self.bytes = False, LEAF_BYTES

    def forget(self) -> None:
        """Keep one leaf that is unknown in the place of all, and read nothing before the tree is wanted (D85).

        A floor that may collect something wants it: the leaf keeps when that is.  The tree must be settled.
        """
        leaf = _Leaf(built=False, writing=sum(leaf.writing for leaf in self._leaves))
        leaf.due_ms = min(leaf.due_ms for leaf in self._leaves)
        self._firsts, self._leaves = [b""], [leaf]
        self.away, self.bytes = True, 0

    def _join(self) -> None:
        """Make one leaf of neighbours with few rows together: rows that went must leave no leaves behind.

        Far fewer than split a leaf, so that leaves stay where they are and those of owners end at the same places.
        """
        few = self._leaf_rows // JOIN_PART
        if not any(one.rows + other.rows <= few for one, other in pairwise(self._leaves)):
            return
        firsts, leaves = self._firsts[:1], self._leaves[:1]
        for first, leaf in zip(self._firsts[1:], self._leaves[1:], strict=True):
            last = leaves[-1]
            known = last.built and leaf.built and not last.writing and not leaf.writing
            if known and last.rows + leaf.rows <= few:
                last.rows += leaf.rows
                last.digest = (last.digest + leaf.digest) % DIGESTS
                last.due_ms = min(last.due_ms, leaf.due_ms)
            else:
                firsts.append(first)
                leaves.append(leaf)
        self._firsts, self._leaves = firsts, leaves
        self.bytes = _bytes_of(firsts)

    def scanned(self, rows: Sequence[Weighed], behind: bytes | None = None) -> bool:
        """Take the rows of the scan, up to `behind` where it ended early; False where a write made them old.

        Of an unknown leaf those before the first write count.
        """
        scan, self._scan = self._scan, None
        assert scan is not None
        number, spoilt = bisect_left(self._firsts, scan.first), self._spoilt
        was = self._leaves[number]
        if spoilt is not None and (was.built or spoilt == scan.first):
            return False
        if spoilt is not None and (behind is None or spoilt < behind):
            rows, behind = rows[:bisect_left(rows, spoilt, key=lambda row: row.at)], spoilt
        firsts: list[bytes] = []
        leaves: list[_Leaf] = []
        for first, part in _split(scan.first, rows, self._leaf_rows):
            leaf = _Leaf(built=True)
            leaf.rows = len(part)
            leaf.digest = sum(row.digest for row in part) % DIGESTS
            leaf.due_ms = min((row.due_ms for row in part), default=NOT_DUE)
            firsts.append(first)
            leaves.append(leaf)
        if behind is not None:
            firsts.append(behind)
            leaves.append(_Leaf(built=False, writing=was.writing))
        self._firsts[number:number + 1] = firsts
        self._leaves[number:number + 1] = leaves
        self.bytes += _bytes_of(firsts) - _bytes_of([scan.first])
        self.was_ready = self.was_ready or self.ready
        return True

    # --- what others ask ----------------------------------------------------------------------------------

    def tally(self, first: bytes, behind: bytes) -> Tally | None:
        """Return the tally of a part; None where a leaf lies in it and beyond it, or is unknown."""
        left, right = bisect_left(self._firsts, first), bisect_left(self._firsts, behind)
        aligned = left < len(self._firsts) and self._firsts[left] == first and (
            right == len(self._firsts) or self._firsts[right] == behind)
        inside = self._leaves[left:right]
        if not aligned or not all(leaf.built for leaf in inside):
            return None
        return Tally(sum(leaf.rows for leaf in inside), sum(leaf.digest for leaf in inside) % DIGESTS)

    def parts(self, first: bytes, behind: bytes, parts_max: int) -> list[Part] | None:
        """Return at most `parts_max` parts of whole leaves that cover a part; None where one leaf holds all of it."""
        left, right = bisect_right(self._firsts, first) - 1, bisect_left(self._firsts, behind)
        if right - left < 2:
            return None
        step = -(-(right - left) // parts_max)
        cuts = [first, *self._firsts[left + step:right:step], behind]
        found = []
        for each, until in pairwise(cuts):
            tally = self.tally(each, until)
            found.append(Part(each, until, tally if tally is not None else UNKNOWN))
        return found

    def _at(self, at: bytes) -> _Leaf:
        return self._leaves[bisect_right(self._firsts, at) - 1]

    def _behind(self, number: int) -> bytes:
        return self._firsts[number + 1] if number + 1 < len(self._firsts) else END


UNKNOWN = Tally(-1, 0)
"""The tally of a part that ends within a leaf: it equals no other."""


def _bytes_of(firsts: Iterable[bytes]) -> int:
    """Return the memory of leaves that begin at these places."""
    return sum(LEAF_BYTES + len(first) for first in firsts)


def _split(first: bytes, rows: Sequence[Weighed], rows_max: int) -> Iterator[tuple[bytes, Sequence[Weighed]]]:
    """Cut rows into leaves of at most `rows_max`; yield the first place of each and its rows."""
    if len(rows) <= rows_max:
        yield first, rows
        return
    point = _point(rows[0].at, rows[-1].at)
    middle = bisect_left(rows, point, key=lambda row: row.at)
    yield from _split(first, rows[:middle], rows_max)
    yield from _split(point, rows[middle:], rows_max)


def _point(low: bytes, high: bytes) -> bytes:
    """Return the first bytes that have the bit in which `high` first differs from `low`; `low` is less than `high`."""
    same = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    if same == len(low):
        return low + b"\0"
    bit = 1 << ((low[same] ^ high[same]).bit_length() - 1)
    return high[:same] + bytes([high[same] & -bit])
