"""Checkpoint: the log up to a committed entry in one value, and its bytes.

Format 4 is a fixed head and then sections: tag, length, bytes.  Four sections are the log's own index, the others are
its folds, each with its own tag.  An unknown section is refused: a newer release wrote it, and a member that dropped
it would answer wrongly later.  A fold that begins empty writes no section while it is empty.  So a release that does
not know the fold reads the checkpoints of one that does, as long as no entry of the new kind was appended.

Format 3 (store format 4, wire version 4) has no sections: counts in the head, then the index, decisions,
subscriptions and producers, one behind the other.  It is read from stores and peers of that release, and written for
its members.
Stays out: how a log is folded; when a checkpoint is written.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from ..base.errors import FormatTooNew, FormatTooOld, RemoteViolation
from ..base.folds import TAG_BYTES, F, Fold, Table, find
from ..base.ids import EntryId
from ..limbo.decisions import Decisions
from ..subscriptions.fold import Subscriptions
from .producers import ProducerTable

CHECKPOINT_FORMAT = 4
CHECKPOINT_FORMAT_BEFORE = 3

FOLDS: Table = (Decisions, Subscriptions, ProducerTable)
"""The folds that replication itself decides by; every log has them.  Format 3 holds exactly these, in this order."""

_HEAD = struct.Struct(">BQqIqQqI")          # format, epoch and offset, chain, clock, bytes, first, sections
_HEAD_3 = struct.Struct(">BQqIqQqIIII")     # the same, then how many runs, marks, orders and solid entries
_SECTION = struct.Struct(f">{TAG_BYTES}sQ")
_RUN = struct.Struct(">Qqq")
_MARK = struct.Struct(">qQq")
_ORDER = struct.Struct(">qQ")
_SOLID = struct.Struct(">q")


class Run(NamedTuple):
    """Offsets [first, last] that one epoch wrote; within an epoch only one leader assigns offsets."""

    epoch: int
    first: int
    last: int


class Mark(NamedTuple):
    """An entry boundary: an entry starts at `base`, `bytes_before` bytes of log lie in front of it."""

    base: int
    bytes_before: int
    logged_ms: int


class OrderRun(NamedTuple):
    """Data entries from base offset `first` on have this reading order, up to the next run (K1)."""

    first: int
    order: int


_INDEX: tuple[tuple[bytes, struct.Struct, Callable[..., Any]], ...] = (
    (b"runs", _RUN, Run), (b"mark", _MARK, Mark), (b"ordr", _ORDER, OrderRun), (b"sold", _SOLID, int),
)
"""Sections of the index: tag, one item's bytes, one item."""

_TAGS_OF_INDEX = {tag for tag, _, _ in _INDEX}
_TAGS_3 = (*(tag for tag, _, _ in _INDEX), *(kind.tag for kind in FOLDS))


class Checkpoint(NamedTuple):
    """The log up to and including entry `at`, which is committed: its index and its folds."""

    at: EntryId
    chain: int
    logged_ms: int
    bytes_total: int
    first: int
    runs: tuple[Run, ...]
    marks: tuple[Mark, ...]
    orders: tuple[OrderRun, ...]
    solid: tuple[int, ...]
    folds: tuple[Fold, ...]

    def fold(self, wanted: type[F]) -> F:
        """Return the fold of this class."""
        return find(self.folds, wanted)

    def encode(self, format: int = CHECKPOINT_FORMAT) -> bytes:
        """Return the checkpoint's bytes; raises FormatTooOld when a fold has no place in `format`."""
        runs, marks, orders = self.runs, self.marks, self.orders
        sections = {
            b"runs": b"".join(_RUN.pack(*run) for run in runs),
            b"mark": b"".join(_MARK.pack(*mark) for mark in marks),
            b"ordr": b"".join(_ORDER.pack(*run) for run in orders),
            b"sold": b"".join(_SOLID.pack(base) for base in self.solid),
        }
        for fold in self.folds:
            section = fold.encode()
            if not (fold.begins_empty and section == type(fold)().encode()):
                sections[fold.tag] = section
        head = (*self.at, self.chain, self.logged_ms, self.bytes_total, self.first)
        return _packed(head, sections, format)

    @classmethod
    def decode(
        cls, data: bytes, table: Table = FOLDS, producers: Callable[[], ProducerTable] | None = None
    ) -> Checkpoint:
        """Read what `encode` wrote in any format, for a log with the folds of `table`.

        `producers` returns the table that a node stores beside its checkpoint; it is called where the bytes have none.
        Raises FormatTooNew when a newer release wrote the bytes: they have a newer format, or a section that `table`
        does not know.  Raises RemoteViolation when they are damaged or lack a section that `table` needs.
        """
        try:
            (epoch, offset, chain, logged_ms, bytes_total, first), sections = _split(data)
            # Before any lack of a section: a newer release may have another one in the place of ours.
            if unknown := sections.keys() - _TAGS_OF_INDEX - {kind.tag for kind in table}:
                raise FormatTooNew(f"checkpoint has sections {sorted(unknown)}, which this build does not know")
            runs, marks, orders, solid = (_items(sections.pop(tag), item, make) for tag, item, make in _INDEX)
            folds = tuple(
                producers() if producers is not None and kind is ProducerTable and kind.tag not in sections
                else _fold(kind, sections.pop(kind.tag, None))
                for kind in table
            )
        except struct.error as error:
            raise _cut_short(error) from error
        except KeyError as error:
            raise _missing(error) from error
        at = EntryId(epoch, offset)
        return cls(at, chain, logged_ms, bytes_total, first, runs, marks, orders, solid, folds)


def checkpoint_end(data: bytes) -> EntryId:
    """Return the entry that a checkpoint ends at; raises RemoteViolation when its head is damaged."""
    try:
        (epoch, offset, *_), _ = _head(data)
    except struct.error as error:
        raise _cut_short(error) from error
    return EntryId(epoch, offset)


def recoded(data: bytes, format: int) -> bytes:
    """Return an encoded checkpoint in another format, for a member of another release; no bytes stay no bytes.

    Raises RemoteViolation when `data` is damaged, FormatTooOld when a fold with entries has no place in `format`.
    """
    if not data:
        return data
    try:
        return _packed(*_split(data), format)
    except struct.error as error:
        raise _cut_short(error) from error
    except KeyError as error:
        raise _missing(error) from error


def _packed(head: tuple[int, ...], sections: dict[bytes, bytes], format: int) -> bytes:
    if format == CHECKPOINT_FORMAT:
        parts = [_HEAD.pack(format, *head, len(sections))]
        for tag, section in sections.items():
            parts += (_SECTION.pack(tag, len(section)), section)
        return b"".join(parts)
    if format != CHECKPOINT_FORMAT_BEFORE:
        raise ValueError(f"no checkpoint has format {format}")
    if beyond := sorted(sections.keys() - set(_TAGS_3)):
        raise FormatTooOld(f"checkpoint of format {format} has no place for sections {beyond}")
    counts = (len(sections[tag]) // item.size for tag, item, _ in _INDEX)
    return b"".join((_HEAD_3.pack(format, *head, *counts), *(sections[tag] for tag in _TAGS_3)))


def _head(data: bytes) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the head's facts, and behind them how many sections there are, or of format 3 how many items."""
    format = data[0] if data else 0
    if format not in (CHECKPOINT_FORMAT_BEFORE, CHECKPOINT_FORMAT):
        error = FormatTooNew if format > CHECKPOINT_FORMAT else RemoteViolation
        raise error(
            f"checkpoint has format {format}, this build reads {CHECKPOINT_FORMAT_BEFORE} and {CHECKPOINT_FORMAT}"
        )
    _, *facts = (_HEAD if format == CHECKPOINT_FORMAT else _HEAD_3).unpack_from(data)
    return tuple(facts[:6]), tuple(facts[6:])


def _split(data: bytes) -> tuple[tuple[int, ...], dict[bytes, bytes]]:
    """Return the head's facts and the sections; raises struct.error when `data` is cut short."""
    head, counts = _head(data)
    if data[0] == CHECKPOINT_FORMAT_BEFORE:
        return head, _split_3(data, counts)
    sections: dict[bytes, bytes] = {}
    at = _HEAD.size
    for _ in range(counts[0]):
        tag, size = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        if tag in sections:
            raise RemoteViolation(f"checkpoint has section {tag!r} twice")
        if size > len(data) - at:
            raise struct.error(f"section {tag!r} has {size} bytes, {len(data) - at} are there")
        sections[tag] = data[at:at + size]
        at += size
    _check_end(data, at)
    return head, sections


def _split_3(data: bytes, counts: tuple[int, ...]) -> dict[bytes, bytes]:
    sections: dict[bytes, bytes] = {}
    at = _HEAD_3.size
    for (tag, item, _), count in zip(_INDEX, counts, strict=True):
        end = at + count * item.size
        if end > len(data):
            raise struct.error(f"{count} items of {tag!r}, the data ends before")
        sections[tag], at = data[at:end], end
    for kind in FOLDS:
        _, end = kind.decode(data, at)
        sections[kind.tag], at = data[at:end], end
    _check_end(data, at)
    return sections


def _check_end(data: bytes, at: int) -> None:
    if at != len(data):
        raise RemoteViolation(f"checkpoint has {len(data) - at} bytes behind its end")


def _items(section: bytes, item: struct.Struct, make: Callable[..., Any]) -> tuple[Any, ...]:
    return tuple(make(*fields) for fields in item.iter_unpack(section))


def _fold(kind: type[Fold], section: bytes | None) -> Fold:
    if section is None:
        if kind.begins_empty:
            return kind()
        raise KeyError(kind.tag)
    fold, end = kind.decode(section, 0)
    _check_end(section, end)
    return fold


def _cut_short(error: struct.error) -> RemoteViolation:
    return RemoteViolation(f"checkpoint is cut short: {error}")


def _missing(error: KeyError) -> RemoteViolation:
    return RemoteViolation(f"checkpoint has no section {error.args[0]!r}")
