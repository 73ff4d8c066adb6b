"""Layout: the column families and keys of what a node stores, and the lowering of log writes to store verbs.

    family    key                                value
    headers   shard, base offset (8 bytes each)  `entry.folded_part`; without a row in `log` the entry is not held
    log       shard, base offset                 the payload of every other kind
    system    state/ + plane, id (1, 8 bytes)    state of a replica
              checkpoint/ + plane, id            its checkpoint
              dropped/ + plane, id               the offsets between which dropped payloads may still take space

Numbers are unsigned and big-endian, so that keys sort as numbers do.  A plane has families of its own beside these.
Stays out: the database and its tuning (the node's `store` and `families`), what the bytes mean.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from .effects import (
    Delete,
    DeleteRange,
    DropAfter,
    DropBefore,
    DropPayloads,
    DropUnit,
    Persist,
    Put,
    PutCheckpoint,
    PutEntry,
    PutMany,
    PutState,
    Wipe,
    Write,
)
from .entry import FOLDED_WITH_PAYLOAD, folded_part, recovered
from .errors import CorruptEntry
from .ids import LOG_PLANE, ShardId

HEADERS, LOG, SYSTEM = "headers", "log", "system"
RESERVED = frozenset((HEADERS, LOG, SYSTEM))
"""Families that only the lowering and the store itself write."""

STATE, CHECKPOINT, DROPPED = b"state/", b"checkpoint/", b"dropped/"
OFFSET_MAX = (1 << 64) - 1

ENTRY_KEY = struct.Struct(">QQ")
_ADDRESS = struct.Struct(">BQ")

Span = tuple[int, int]
"""Offsets from the first to the last, both included."""

F = TypeVar("F")
F_contra = TypeVar("F_contra", contravariant=True)


class Sink(Protocol[F_contra]):
    """The three verbs; a family is whatever stands for it in the mapping given to `lower`."""

    def put(self, key: bytes, value: bytes, family: F_contra, /) -> None: ...
    def delete(self, key: bytes, family: F_contra, /) -> None: ...
    def delete_range(self, first: bytes, behind: bytes, family: F_contra, /) -> None: ...


HeaderAtOrBefore = Callable[[ShardId, int], tuple[int, bytes] | None]
"""Return the base offset of the last stored entry of a shard with a base up to the offset, and its header's row."""

KnownDropped = Callable[[ShardId], Span | None]
"""Return the range stored under `dropped/` for a shard."""


class UnknownFamily(ValueError):
    """A plane wrote to a column family that it may not write or that the store does not have."""


def address_key(prefix: bytes, plane: int, number: int) -> bytes:
    """Return the key in `system` of what the plane's unit `number` stores under `prefix`."""
    return prefix + _ADDRESS.pack(plane, number)


def address_of(prefix: bytes, key: bytes) -> tuple[int, int]:
    """Return (plane, number) of a key that `address_key` made."""
    plane, number = _ADDRESS.unpack(key[len(prefix) :])
    return plane, number


def hull(one: Span | None, other: Span) -> Span:
    """Return the smallest range that holds both."""
    return other if one is None else (min(one[0], other[0]), max(one[1], other[1]))


def lower(
    persists: Sequence[Persist], sink: Sink[F], families: Mapping[str, F], header_at_or_before: HeaderAtOrBefore,
    known_dropped: KnownDropped,
) -> dict[ShardId, Span]:
    """Hand the writes of one turn to `sink` as store verbs, in order; return where payloads were dropped, by shard.

    Both lookups answer for the store as it was before this turn.  Raises UnknownFamily when a plane writes to a
    family that is not in `families` or is reserved, TypeError when a plane without a log writes one; `sink` may hold
    a part of the turn then.
    """
    headers, log, system = families[HEADERS], families[LOG], families[SYSTEM]
    put, entry_key, address = sink.put, ENTRY_KEY.pack, _ADDRESS.pack
    dropped: dict[ShardId, Span] = {}
    for persist in persists:
        plane, unit = persist.address
        if plane != LOG_PLANE:
            _check_writes_of(plane, persist.writes)
        for write in persist.writes:
            # In the order of how often they come: every turn passes here.
            if type(write) is PutEntry:
                entry = write.entry
                key = entry_key(unit, entry.base)
                if entry.kind in FOLDED_WITH_PAYLOAD:
                    put(key, folded_part(entry), headers)
                    continue
                put(key, entry.header, headers)
                if entry.payload or entry.held:
                    put(key, entry.payload, log)
            elif type(write) is PutState:
                put(STATE + address(plane, unit), write.state, system)
            elif type(write) is PutCheckpoint:
                put(CHECKPOINT + address(plane, unit), write.checkpoint, system)
            elif type(write) is Put:
                put(write.key, write.value, _own(write.family, families))
            elif type(write) is PutMany:
                family = _own(write.family, families)
                for key, value in write.rows:
                    put(key, value, family)
            elif type(write) is Delete:
                sink.delete(write.key, _own(write.family, families))
            elif type(write) is DeleteRange:
                family = _own(write.family, families)
                if write.first < write.behind:
                    sink.delete_range(write.first, write.behind, family)
            elif type(write) is DropUnit:
                for prefix in (STATE, CHECKPOINT):
                    sink.delete(prefix + address(plane, unit), system)
            elif type(write) is DropPayloads:
                shard = persist.address.shard
                sink.delete_range(entry_key(shard, write.first), entry_key(shard, write.last + 1), log)
                dropped[shard] = hull(dropped.get(shard), (write.first, write.last))
            else:
                shard = persist.address.shard
                if type(write) is DropAfter:
                    first, behind = write.offset + 1, OFFSET_MAX
                elif type(write) is DropBefore:
                    earlier = _earlier(persists, shard, write)
                    first, behind = 0, _kept_from(shard, write.offset, earlier, header_at_or_before)
                elif type(write) is Wipe:
                    first, behind = 0, OFFSET_MAX
                    sink.delete(CHECKPOINT + address(LOG_PLANE, shard), system)
                else:
                    raise TypeError(f"the store does not know the write {type(write).__name__}")
                if first < behind:
                    for family in (headers, log):
                        sink.delete_range(entry_key(shard, first), entry_key(shard, behind), family)
    for shard, span in dropped.items():
        put_dropped(shard, hull(known_dropped(shard), span), sink, system)
    return dropped


def _check_writes_of(plane: int, writes: Iterable[Write]) -> None:
    """Refuse writes of a log from a plane whose units have none: their numbers would meet those of shards."""
    for write in writes:
        if isinstance(write, PutEntry | DropAfter | DropBefore | DropPayloads | Wipe):
            raise TypeError(f"plane {plane} has no log: only the log plane emits {type(write).__name__}")


def put_dropped(shard: ShardId, span: Span | None, sink: Sink[F], system: F) -> None:
    """Store the range in which dropped payloads of a shard may still take space; None removes it."""
    key = address_key(DROPPED, LOG_PLANE, shard)
    if span is None:
        sink.delete(key, system)
    else:
        sink.put(key, ENTRY_KEY.pack(*span), system)


def _own(name: str, families: Mapping[str, F]) -> F:
    """Return the family that a plane writes to.  Raises UnknownFamily."""
    if name in RESERVED:
        raise UnknownFamily(f"family {name!r} is reserved: a plane writes to families of its own")
    family = families.get(name)
    if family is None:
        raise UnknownFamily(f"the store has no family {name!r}: give it a row in the table of families")
    return family


def _earlier(persists: Sequence[Persist], shard: ShardId, until: Write) -> Iterator[Write]:
    """Yield the writes of the turn to the same shard in front of `until`."""
    for persist in persists:
        if persist.address == (LOG_PLANE, shard):
            for write in persist.writes:
                if write is until:
                    return
                yield write


def _kept_from(
    shard: ShardId, offset: int, earlier: Iterable[Write], header_at_or_before: HeaderAtOrBefore
) -> int:
    """Return the base of the entry that reaches over `offset`, or `offset` when there is none."""
    staged: dict[int, int] = {}     # base to last offset of what this turn stored in front of `offset`
    below = offset - 1              # a stored entry that this turn left has its base here or below
    for write in earlier:
        match write:
            case PutEntry(entry) if entry.base < offset:
                staged[entry.base] = entry.last
            case DropAfter(kept):
                below = min(below, kept)
                staged = {base: last for base, last in staged.items() if base <= kept}
            case Wipe():
                below, staged = -1, {}
    stored = header_at_or_before(shard, below) if below >= 0 else None
    newest = max(staged, default=-1)
    if stored is None or newest >= stored[0]:
        return newest if newest >= 0 and staged[newest] >= offset else max(offset, 0)
    base, header = stored
    try:
        return base if recovered(header).last >= offset else offset
    except CorruptEntry:
        return base  # keep what cannot be judged
