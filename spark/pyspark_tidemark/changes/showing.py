"""Showing: which rows a batch of changes has, of the events of one shard's change stream.

A change stream shows the last version of each document alone.  A document that was written again behind the end of a
batch is therefore looked up at the pins of the batch's two ends, so that batches lead from one cut to the next (P24).
Stays out: streams and pins (tasks), columns (rows).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from tidemark import BatchEvent, Change

PUT, DELETE = "PUT", "DELETE"
CODE_MASK = (1 << 62) - 1


class Row(NamedTuple):
    """One change as a batch shows it: `op` is PUT, DELETE or EXPIRE, and only a put has a value."""

    seqno: int
    op: str
    key: bytes
    value: bytes | None
    logged_ms: int = 0      # since 1970; 0: the store does not say


class Found(Protocol):
    """A document at a pin."""

    @property
    def seqno(self) -> int:
        """Return its version."""

    @property
    def value(self) -> bytes:
        """Return its value."""


class Pins(Protocol):
    """The documents at both ends of a batch."""

    def at_end(self, keys: Sequence[bytes]) -> Mapping[bytes, Found] | None:
        """Return the documents of these keys at the end, None where the pin has ended."""

    def at_start(self, keys: Sequence[bytes]) -> Mapping[bytes, Found]:
        """Return the documents of these keys at the start, none where the pin has ended or there was none."""


class Showing:
    """Chooses the rows of one batch: changes behind seqno `start`, up to `end`.

    Without pins a row shows the newest version, which may lie behind the end; the next batch shows it again then.
    """

    def __init__(self, start: int, end: int, pins: Pins | None) -> None:
        self._start = start
        self._end = end
        self._pins = pins
        self._last = start                      # rows ascend by seqno, also where another member goes on
        self._again = False                     # another scan or live snapshot began: a key may come once more
        self._shown: array[int] = array("q")    # seqnos up to the end that were shown, ascending
        self._codes: array[int] = array("q")    # their keys and whether they are deletes, in a few bytes
        self._later: set[bytes] = set()         # keys that were written again behind the end, and are dealt with
        self.ended = False
        """The pin of the end is gone: documents that were written again come in a later batch."""

    def rows(self, events: Iterable[BatchEvent]) -> Iterator[list[Row]]:
        """Yield the rows of a stream from the start, until it has passed the end."""
        from tidemark import Advanced, ChangeBatch, Rebuilding, SnapshotBegin, SnapshotEnd

        for event in events:
            match event:
                case SnapshotBegin():
                    self._again = self._again or self._last > self._start
                case ChangeBatch():
                    new = [change for change in event if change.seqno > self._last]
                    if not new:
                        continue
                    self._last = new[-1].seqno
                    upto = [_row(change) for change in new if change.seqno <= self._end]
                    later = [change for change in new[len(upto):] if change.key not in self._later]
                    # From the beginning, one scan has deletes of documents alone that it has not shown.
                    shown = [row for row in upto if row.op == PUT] if not self._start and not self._again else upto
                    self._note(shown)
                    if later:
                        keys = [change.key for change in later]
                        self._later.update(keys)
                        shown += map(_row, later) if self._pins is None else self._at_pins(self._pins, keys)
                    if shown:
                        yield shown
                    if self.ended:
                        return
                case SnapshotEnd() | Advanced():
                    if event.seqno >= self._end:
                        return
                case Rebuilding():
                    self._start = self._last = 0    # everything comes again, of another history
                    self._again = False
                    self._shown, self._codes, self._later = array("q"), array("q"), set()

    def _note(self, shown: Sequence[Row]) -> None:
        if self._pins is not None:
            self._shown.extend(row.seqno for row in shown)
            self._codes.extend(_code(row.key, row.op != PUT) for row in shown)

    def _at_pins(self, pins: Pins, keys: Sequence[bytes]) -> list[Row]:
        """Return the rows of documents that were written again, as they are at the end."""
        found = pins.at_end(keys)
        if found is None:
            self.ended = True       # every row up to the end has come: rows ascend
            return []
        rows = [
            Row(document.seqno, PUT, key, document.value) for key in keys
            if (document := found.get(key)) is not None and self._is_new(document.seqno)]
        last = self._last_shown([key for key in keys if key not in found])
        unseen = [key for key, deleted in last.items() if deleted is None]
        before = pins.at_start(unseen) if unseen and self._start else {}
        return rows + [
            Row(self._end, DELETE, key, None) for key, deleted in last.items() if deleted is False or key in before]

    def _last_shown(self, keys: Sequence[bytes]) -> dict[bytes, bool | None]:
        """Say for each key whether it was last shown as deleted, None where it was not shown."""
        last: dict[bytes, bool | None] = dict.fromkeys(keys)
        wanted = {_code(key, deleted): (key, deleted) for key in keys for deleted in (False, True)}
        if self._again and not wanted.keys().isdisjoint(self._codes):
            for code in self._codes:
                if (found := wanted.get(code)) is not None:
                    last[found[0]] = found[1]
        return last

    def _is_new(self, seqno: int) -> bool:
        """Say whether a version was written behind the start and not shown, as where the stream changed its member."""
        at = bisect_left(self._shown, seqno)
        return seqno > self._start and (at == len(self._shown) or self._shown[at] != seqno)


def _code(key: bytes, deleted: bool) -> int:
    return (hash(key) & CODE_MASK) << 1 | deleted


def _row(change: Change) -> Row:
    op = change.op.name
    return Row(change.seqno, op, change.key, change.value if op == PUT else None, change.logged_ms)
