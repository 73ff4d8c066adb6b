"""One node's disk: a queue of whole writes in front of what is durable, as the shell's group commit makes it.

A shard's log is an `Image`, to which log writes are applied as they are; the families of planes are `Tables`.

`written` is what the node believes to be stored, `durable` what a power cut leaves.  A cut keeps a prefix of the
queued writes, each whole or not at all.  Damage is kept beside the entries: a read that meets it fails, or
finds a header without its payload.
Stays out: when a sync ends (the node's shell schedules it), what the bytes mean, which families a node has.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tidemark_core.base.effects import (
    Delete,
    DeleteRange,
    DropAfter,
    DropBefore,
    DropPayloads,
    DropUnit,
    Effect,
    Put,
    PutCheckpoint,
    PutEntry,
    PutMany,
    PutState,
    StoreWrite,
    Wipe,
    Write,
)
from tidemark_core.base.entry import FOLDED_WITH_PAYLOAD, Entry, Kind, folded_part, recovered
from tidemark_core.base.ids import LOG_PLANE, Address, ShardId
from tidemark_core.base.layout import RESERVED, UnknownFamily

STORE_WRITES = frozenset((Put, PutMany, Delete, DeleteRange))


class Image:
    """Everything stored for one shard."""

    __slots__ = ("bases", "checkpoint", "entries", "first", "state")

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.checkpoint: bytes | None = None
        self.bases: list[int] = []
        self.entries: list[Entry] = []
        self.first = 0      # entries below were trimmed

    def copy(self) -> Image:
        twin = Image()
        twin.state, twin.checkpoint = self.state, self.checkpoint
        twin.bases, twin.entries, twin.first = list(self.bases), list(self.entries), self.first
        return twin

    @property
    def last(self) -> int:
        """Offset of the last record held or trimmed, -1 when there is none."""
        return self.entries[-1].last if self.entries else self.first - 1

    def apply(self, write: Write) -> None:
        kind = write.__class__
        if kind is PutEntry:
            self._put(write.entry)  # type: ignore[union-attr]
        elif kind is PutState:
            self.state = write.state  # type: ignore[union-attr]
        elif kind is DropAfter:
            keep = bisect_left(self.bases, write.offset + 1)  # type: ignore[union-attr]
            del self.bases[keep:], self.entries[keep:]
        elif kind is DropBefore:
            drop = 0
            while drop < len(self.entries) and self.entries[drop].last < write.offset:  # type: ignore[union-attr]
                drop += 1
            del self.bases[:drop], self.entries[:drop]
            self.first = max(self.first, write.offset)  # type: ignore[union-attr]
        elif kind is DropPayloads:
            self._drop_payloads(write.first, write.last)  # type: ignore[union-attr, arg-type]
        elif kind is PutCheckpoint:
            self.checkpoint = write.checkpoint  # type: ignore[union-attr]
        elif kind is Wipe:
            self.checkpoint, self.first = None, 0
            self.bases.clear()
            self.entries.clear()
        else:
            raise TypeError(f"unknown write {write!r}")

    def _drop_payloads(self, first: int, last: int) -> None:
        for at in range(bisect_left(self.bases, first), bisect_left(self.bases, last + 1)):
            entry = self.entries[at]
            if entry.kind in FOLDED_WITH_PAYLOAD:
                continue   # it lies with the header
            assert entry.kind is Kind.DATA or not entry.payload_bytes, f"K9: the payload of control entry {entry.id}"
            self.entries[at] = entry.bare()

    def _put(self, entry: Entry) -> None:
        bases = self.bases
        if not bases or entry.base > bases[-1]:
            bases.append(entry.base)
            self.entries.append(entry)
            return
        at = bisect_left(bases, entry.base)
        if at < len(bases) and bases[at] == entry.base:
            self.entries[at] = entry
        else:
            bases.insert(at, entry.base)
            self.entries.insert(at, entry)

    def at(self, base: int) -> Entry | None:
        """Return the entry that starts at `base`."""
        at = bisect_left(self.bases, base)
        return self.entries[at] if at < len(self.bases) and self.bases[at] == base else None

    def ending_at(self, offset: int) -> Entry | None:
        """Return the entry whose last offset is `offset`."""
        at = bisect_left(self.bases, offset + 1) - 1
        return self.entries[at] if at >= 0 and self.entries[at].last == offset else None

    def position(self, offset: int) -> int:
        """Return the index of the first entry whose base is `offset` or higher."""
        return bisect_left(self.bases, offset)


class Tables:
    """The data of planes on one node beside logs: rows of families, state and checkpoint of units that are no shards.

    A family begins with its first write.
    """

    __slots__ = ("_families", "units")

    def __init__(self) -> None:
        self.units: dict[Address, tuple[bytes | None, bytes | None]] = {}   # state and checkpoint
        self._families: dict[str, tuple[list[bytes], dict[bytes, bytes]]] = {}  # keys in order, values

    def copy(self) -> Tables:
        twin = Tables()
        twin.units = dict(self.units)
        twin._families = {name: (list(keys), dict(values)) for name, (keys, values) in self._families.items()}
        return twin

    def apply(self, address: Address, write: Write) -> None:
        """Apply a write that is none of a log.  Raises UnknownFamily where the family is one of the log's."""
        state, checkpoint = self.units.get(address, (None, None))
        if isinstance(write, PutState):
            self.units[address] = write.state, checkpoint
        elif isinstance(write, DropUnit):
            self.units.pop(address, None)
        elif isinstance(write, PutCheckpoint):
            self.units[address] = state, write.checkpoint
        elif isinstance(write, Put | PutMany | Delete | DeleteRange):
            self._apply(write)
        else:
            raise TypeError(f"plane {address.plane} has no log: only the log plane emits {type(write).__name__}")

    def _apply(self, write: StoreWrite) -> None:
        if write.family in RESERVED:
            raise UnknownFamily(f"family {write.family!r} is reserved: a plane writes to families of its own")
        keys, values = self._families.setdefault(write.family, ([], {}))
        if isinstance(write, Put | PutMany):
            for key, value in write.rows if isinstance(write, PutMany) else ((write.key, write.value),):
                if key not in values:
                    insort(keys, key)
                values[key] = value
        elif isinstance(write, Delete):
            if values.pop(write.key, None) is not None:
                del keys[bisect_left(keys, write.key)]
        elif write.first < write.behind:
            low, high = bisect_left(keys, write.first), bisect_left(keys, write.behind)
            for key in keys[low:high]:
                del values[key]
            del keys[low:high]

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is not there."""
        return self._families.get(family, ([], {}))[1].get(key)

    def scan(self, family: str, first: bytes = b"", behind: bytes | None = None) -> list[tuple[bytes, bytes]]:
        """Return the rows with keys in [first, behind), in order; None means the family's end."""
        keys, values = self._families.get(family, ([], {}))
        high = len(keys) if behind is None else bisect_left(keys, behind)
        return [(key, values[key]) for key in keys[bisect_left(keys, first) : high]]


class Queued(NamedTuple):
    """One Persist on its way to the platter."""

    address: Address
    writes: tuple[Write, ...]
    then: tuple[Effect, ...]

    @property
    def shard(self) -> ShardId:
        return self.address.shard


class Disk:
    """The shards of one node, and the queue."""

    __slots__ = ("corrupt", "durable", "durable_tables", "lost", "queue", "written", "written_tables")

    def __init__(self) -> None:
        self.durable: dict[ShardId, Image] = {}
        self.written: dict[ShardId, Image] = {}
        self.durable_tables = Tables()
        self.written_tables = Tables()
        self.queue: list[Queued] = []
        self.corrupt: dict[tuple[ShardId, int], int] = {}
        self.lost: set[tuple[ShardId, int]] = set()   # of those, where the header is whole and the payload gone

    def image(self, shard: ShardId) -> Image:
        """Return the durable image, an empty one when nothing is stored."""
        return self.durable.get(shard) or Image()

    def enqueue(self, item: Queued, watch: Callable[[ShardId, Image, Write], None]) -> None:
        """Take one write; it shows in `written` at once.  `watch` sees each part of a log before it is applied."""
        image, beside = self.written.get(item.shard), item.address.plane != LOG_PLANE
        for write in item.writes:
            if beside or write.__class__ in STORE_WRITES:
                self.written_tables.apply(item.address, write)
                continue
            if image is None:
                image = self.written[item.shard] = Image()
            watch(item.shard, image, write)
            image.apply(write)
        self.queue.append(item)

    def take(self, count: int) -> list[Queued]:
        """Take the oldest `count` writes off the queue; each must be given to `settle` in order."""
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken

    def settle(self, item: Queued) -> None:
        """Make one write durable."""
        image, beside = self.durable.get(item.shard), item.address.plane != LOG_PLANE
        for write in item.writes:
            if beside or write.__class__ in STORE_WRITES:
                self.durable_tables.apply(item.address, write)
                continue
            if image is None:
                image = self.durable[item.shard] = Image()
            image.apply(write)
            if self.corrupt:
                self._overwrite(item.shard, write)

    def _overwrite(self, shard: ShardId, write: Write) -> None:
        """Whatever is rewritten or removed is no longer damaged."""
        if isinstance(write, PutEntry):
            self.mend((shard, write.entry.base))
        elif isinstance(write, DropPayloads):
            for place in [place for place in self.corrupt if place[0] == shard]:
                if write.first <= place[1] <= write.last:
                    self.mend(place)
        elif isinstance(write, DropAfter | DropBefore | Wipe):
            image = self.durable[shard]
            for place in [place for place in self.corrupt if place[0] == shard]:
                if image.at(place[1]) is None:
                    self.mend(place)

    def lose_payload(self, place: tuple[ShardId, int], now_ms: int) -> None:
        """Keep the header of an entry and nothing of its payload."""
        self.corrupt[place] = now_ms
        self.lost.add(place)

    def mend(self, place: tuple[ShardId, int]) -> None:
        """An entry is whole again, or gone."""
        self.corrupt.pop(place, None)
        self.lost.discard(place)

    def older(self, shard: ShardId) -> Image:
        """Return what is durable of a shard now, for `lose_synced_end` later."""
        return self.image(shard).copy()

    def lose_synced_end(self, shard: ShardId, older: Image) -> None:
        """Lose everything that was synced since `older` was taken; the store opens and notices nothing (K14b)."""
        assert not self.queue, "a store loses its end while its node is down"
        self.durable[shard], self.written[shard] = older.copy(), older.copy()

    def power_cut(self) -> int:
        """Lose every write still queued; return how many."""
        lost = len(self.queue)
        self.queue = []
        self.written = {shard: image.copy() for shard, image in self.durable.items()}
        self.written_tables = self.durable_tables.copy()
        return lost

    def wipe(self) -> None:
        self.durable, self.written, self.queue, self.corrupt, self.lost = {}, {}, [], {}, set()
        self.durable_tables, self.written_tables = Tables(), Tables()

    def read(self, shard: ShardId, first: int, last: int, bytes_max: int) -> tuple[tuple[Entry, ...], int | None]:
        """Return intact entries from base `first` on, and the base of the damaged one that stopped the read."""
        image = self.durable.get(shard)
        if image is None:
            return (), None
        found: list[Entry] = []
        for entry in image.entries[image.position(first):]:
            if entry.last > last or bytes_max <= 0:
                break
            if (shard, entry.base) in self.corrupt:
                if (shard, entry.base) not in self.lost:
                    return tuple(found), entry.base
                entry = entry.bare()   # what a read finds of it
            found.append(entry)
            bytes_max -= entry.size
        return tuple(found), None


class StoredPlane:
    """The part of a disk that one plane reads when its node starts (`base.plane.Stored`)."""

    def __init__(self, disk: Disk, plane: int) -> None:
        self._disk = disk
        self._plane = plane

    def units(self) -> list[int]:
        if self._plane == LOG_PLANE:
            return list(self._disk.durable)
        units = self._disk.durable_tables.units
        return sorted(address.id for address in units if address.plane == self._plane)

    def unit(self, unit: int) -> tuple[bytes, bytes | None]:
        if self._plane == LOG_PLANE:
            image = self._disk.durable[ShardId(unit)]
            state, checkpoint = image.state, image.checkpoint
        else:
            state, checkpoint = self._disk.durable_tables.units[Address(self._plane, unit)]
        assert state is not None, "a stored unit has a state"
        return state, checkpoint

    def headers(self, shard: ShardId, first: int) -> list[Entry]:
        image = self._disk.durable[shard]
        return [recovered(folded_part(entry)) for entry in image.entries[image.position(first):]]

    def rows(self, family: str, first: bytes = b"", behind: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        return iter(self._disk.durable_tables.scan(family, first, behind))
