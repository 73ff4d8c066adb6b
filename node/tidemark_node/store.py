"""The store: the log entries and replicas of a node in one RocksDB, and the rows of other planes beside them.

`base.layout` says which keys a write becomes; the store knows three verbs.  `apply` writes a turn's persists without
syncing, `sync` makes everything applied so far durable; `sync`, `compact` and whatever reads may run in threads, for
they let the event loop go on.
A store that cannot be trusted any more is moved aside and the disk starts a new life (rule K14): a replica must never
vote with what is left of a log.  The synced mark tells a log without its end from one that never went on (K14b).
Every call of the binding gives typed errors: StoreDamaged, StoreFailed or StoreRefused.
Stays out: what the writes mean, when to sync, when to compact (`reclaim`), whether there is space (`disk`), how RocksDB
is opened and read (`database`), which families there are (`families`), older layouts (`store_formats`).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

from rocksdict import ColumnFamily, CompactOptions, Options, Rdict, WriteBatch
from tidemark_core.base.effects import Persist
from tidemark_core.base.entry import HEADER, Entry, recovered, with_payload
from tidemark_core.base.errors import CorruptEntry, FormatTooNew
from tidemark_core.base.ids import LOG_PLANE, Address, ShardId, of_shard
from tidemark_core.base.layout import (
    CHECKPOINT,
    DROPPED,
    ENTRY_KEY,
    HEADERS,
    LOG,
    OFFSET_MAX,
    STATE,
    SYSTEM,
    address_key,
    address_of,
    lower,
    put_dropped,
)

from .database import Range, Rows, Snapshot, open_database, prefix_end
from .dropped import Dropped
from .families import FAMILIES, Family, checked
from .store_errors import EntryDamaged, Faults, StoreDamaged, StoreFailed, StoreRefused, edge, typed
from .store_formats import FORMAT, STORE_FORMAT, UNMARKED, migration, refusal
from .synced import SyncedMark

__all__ = ["STORE_FORMAT", "Slice", "Store", "StoredPlane", "move_aside", "open_store"]

COMPACTION_BYTES = 128 << 20
"""What one call of `compact` rewrites, about: closing the store waits for it."""

_INCARNATION, _NODE, _REMEMBERED = b"incarnation", b"node", b"remembered"

_PAYLOAD_BYTES = 7      # among the fields of HEADER
_TABLE_BYTES, _MEMORY_BYTES = "rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables"

_log = logging.getLogger(__name__)


class Slice(NamedTuple):
    """Entries in order without a gap; `damaged_at` is the offset whose entry could not be read intact.

    An entry whose payload is not stored at all is there with its header only (`Entry.held` is false).
    """

    entries: tuple[Entry, ...]
    damaged_at: int | None


def open_store(
    directory: Path, node: str, faults: Faults | None = None, families: Sequence[Family] = FAMILIES
) -> Store:
    """Open the store under `directory`: create it, migrate an older format, or move a damaged one aside and start new.

    Raises StoreRefused when it belongs to another node, another process or a newer release, StoreFailed when
    the disk takes no writes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return Store(directory / "store", node, faults, families)
    except StoreDamaged as damage:
        reason = str(damage)
    # Behind the handler: frames of the error may hold families, and these the lock of the database.
    move_aside(directory, reason)
    return Store(directory / "store", node, faults, families)


def move_aside(directory: Path, reason: str) -> Path:
    """Rename the closed store under `directory`; its bytes are kept for whoever investigates."""
    path = directory / "store"
    number = 1
    while (aside := directory / f"store.damaged-{number}").exists():
        number += 1
    path.rename(aside)
    _log.critical(
        "the store is damaged and was moved aside; this disk begins a new life and needs a swap to return",
        extra={"moved_to": str(aside), "reason": reason},
    )
    return aside


class Store:
    """An open database.  `incarnation` names this life of the disk."""

    def __init__(
        self, path: Path, node: str, faults: Faults | None = None, families: Sequence[Family] = FAMILIES
    ) -> None:
        self.path = path
        self._faults = faults
        self._failed: str | None = None
        self._table = checked(families)
        self._families: dict[str, Rdict] = {}
        self._handles: dict[str, ColumnFamily] = {}
        self.dropped = Dropped()
        self.rows = Rows(path, self._families)
        self._mark: SyncedMark | None = None
        with edge(path):
            if faults is not None:
                faults.check_write()
            self._db, later = open_database(path, self._table)
        try:
            for family in self._table:
                if family.name not in later:
                    self._add(family.name)
            self.incarnation = self._identify(node)
            for name, options in later.items():
                self._create(name, options)
            for key, value in self.rows.each(SYSTEM, DROPPED, prefix_end(DROPPED)):
                self.dropped.add(ShardId(address_of(DROPPED, key)[1]), *ENTRY_KEY.unpack(value))
        except BaseException:
            self.close()
            raise

    def _create(self, name: str, options: Options) -> None:
        with edge(self.path):
            self._db.create_column_family(name, options)
        self._add(name)

    def _add(self, name: str) -> None:
        with edge(self.path):
            self._families[name] = self._db.get_column_family(name)
            self._handles[name] = self._db.get_column_family_handle(name)

    def _identify(self, node: str) -> str:
        """Return the incarnation stored at creation, or create one; bring an older format to this release's."""
        # No local name holds a family: it would keep the lock as long as the traceback of an error lives.
        stored_format = self.rows.get(SYSTEM, FORMAT)
        if stored_format is None:
            self._open_mark(stored_format)
            if self._holds_anything():
                raise StoreDamaged(f"{self.path} holds entries and no format number")
            incarnation = uuid.uuid4().hex
            batch = WriteBatch(raw_mode=True)
            for key, value in ((FORMAT, str(STORE_FORMAT)), (_INCARNATION, incarnation), (_NODE, node)):
                batch.put(key, value.encode(), self._handles[SYSTEM])
            self._write(batch)
            self.sync()
            return incarnation
        migrate = None
        if stored_format != str(STORE_FORMAT).encode():
            migrate = migration(stored_format)
            if migrate is None:
                raise StoreRefused(f"{self.path} {refusal(stored_format)}")
        owner = (self.rows.get(SYSTEM, _NODE) or b"").decode()
        if owner != node:
            raise StoreRefused(
                f"{self.path} belongs to node {owner!r}, not to {node!r}: "
                "give every node its own data directory"
            )
        self._open_mark(stored_format)
        if migrate is not None:
            batch = WriteBatch(raw_mode=True)
            migrate(self.rows.each(SYSTEM), batch, self._handles[SYSTEM])
            self._write(batch)
            self.sync()
            _log.info("the store was migrated", extra={"from": stored_format.decode(), "to": STORE_FORMAT})
        stored = self.rows.get(SYSTEM, _INCARNATION)
        if stored is None:
            raise StoreDamaged(f"{self.path} has a format number and no incarnation")
        return stored.decode()

    def _open_mark(self, stored_format: bytes | None) -> None:
        """Raises StoreDamaged when writes that were synced are gone (K14b)."""
        with edge(self.path):
            ends_at = self._db.latest_sequence_number()
            self._mark = SyncedMark(self.path, ends_at, required=stored_format not in UNMARKED)

    def _holds_anything(self) -> bool:
        return bool(self.rows.scan(HEADERS, b"", None, 1)) or bool(self.rows.scan(SYSTEM, STATE, prefix_end(STATE), 1))

    def close(self) -> None:
        """Close; the caller has stopped every thread that reads or syncs."""
        # A live column family keeps the lock of the database, so all of them go first.
        self._families.clear()
        self._handles.clear()
        try:
            self._db.close()
        except Exception as error:
            # Closing writes tables; on a full disk it cannot, and the write-ahead log has everything anyway.
            _log.warning("the store closed without writing its tables", extra={"reason": str(error)})
        del self._db
        mark, self._mark = self._mark, None
        if mark is not None:
            try:
                mark.close()
            except OSError as error:
                _log.warning("the store closed without syncing its mark", extra={"reason": str(error)})

    # --- writing ------------------------------------------------------------------------------------------

    def apply(self, persists: Sequence[Persist]) -> int:
        """Write persists in order, each atomically, not yet durable; return the bytes written.

        Raises StoreFailed, after which only reads are served: memory may be ahead of the disk, reopen.
        """
        batch = WriteBatch(raw_mode=True)
        dropped = lower(persists, batch, self._handles, self._header_at_or_before, self.dropped.known)
        written = self._write(batch)
        for shard, span in dropped.items():
            self.dropped.add(shard, *span)
        return written

    def _write(self, batch: WriteBatch) -> int:
        if self._failed is not None:
            raise StoreFailed(f"an earlier write failed: {self._failed}", no_space=False)
        if not len(batch):
            return 0
        size = batch.size_in_bytes()
        try:
            if self._faults is not None:
                self._faults.check_write()
            self._db.write(batch)
        except Exception as error:
            raise self._fail(error) from error
        return size

    def sync(self) -> int:
        """Make everything applied so far durable; return the number of the last write that is.  Raises StoreFailed.

        The numbers never fall within a life of the disk, whatever a crash takes of writes that were not durable (D52).
        """
        try:
            if self._faults is not None:
                self._faults.check_sync()
            covered = self._db.latest_sequence_number()     # read first: a later write may miss this sync
            self._db.flush_wal(True)
            if self._mark is not None:
                self._mark.put(covered)
        except Exception as error:
            raise self._fail(error) from error
        return covered

    def _fail(self, error: Exception) -> Exception:
        self._failed = str(error)
        return typed(error, str(self.path))

    def remember(self, cluster: bytes) -> None:
        """Keep what of the shard map is to outlive the process, durably.  Thread-safe.  Raises StoreFailed."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_REMEMBERED, cluster, self._handles[SYSTEM])
        self._write(batch)
        self.sync()

    def remembered(self) -> bytes | None:
        """Return what `remember` kept, None when it was never called.  Raises StoreDamaged."""
        return self.rows.get(SYSTEM, _REMEMBERED)

    # --- space --------------------------------------------------------------------------------------------

    def compact(self, shard: ShardId, first: int, last: int) -> int:
        """Rewrite tables without the payloads removed of [first, last], a piece of it; return where the piece ends.

        A range delete alone gives nothing back before the database happens to rewrite that range, and where nothing
        is written any more it never does.  Thread-safe; whoever calls it calls `compacted` then.  Raises StoreFailed.
        """
        end = self._piece_end(shard, first, last)
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)  # others need not wait for this one
        try:
            self._families[LOG].compact_range(ENTRY_KEY.pack(shard, first), ENTRY_KEY.pack(shard, end + 1), options)
        except Exception as error:
            raise StoreFailed(f"{self.path}: {error}", no_space="No space left" in str(error)) from error
        return end

    def flush(self, headers_of: Mapping[ShardId, int]) -> None:
        """Write all memory to tables, so that write-ahead logs go, and rewrite tables of headers without trimmed ones.

        `headers_of` has the offset below which entries of a shard were removed.  Thread-safe.  Raises StoreFailed.
        """
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)
        with edge(self.path):
            for family in list(self._families.values()):
                family.flush()
            for shard, behind in headers_of.items():
                first, end = ENTRY_KEY.pack(shard, 0), ENTRY_KEY.pack(shard, behind)
                self._families[HEADERS].compact_range(first, end, options)

    def _piece_end(self, shard: ShardId, first: int, last: int) -> int:
        """Return the offset up to which tables hold COMPACTION_BYTES from `first` on, about, or `last`."""
        low, high = ENTRY_KEY.pack(shard, first), ENTRY_KEY.pack(shard, last)
        size = 0
        with edge(self.path):
            tables = sorted((found["start_key"], found["size"]) for found in self._db.live_files())
        for key, bytes_held in tables:
            if len(key) == ENTRY_KEY.size and low < key <= high:
                if size >= COMPACTION_BYTES:
                    return int(ENTRY_KEY.unpack(key)[1]) - 1
                size += bytes_held
        return last

    def payload_bytes(self, shard: ShardId, first: int, last: int, enough: int) -> int:
        """Add up payloads of entries with base in [first, last], held or not, until it is `enough`.  Thread-safe."""
        within = self._from_header(shard, first, last + 1)
        found, size = within.found, 0
        while size < enough and found.valid():
            header = found.value()
            size += HEADER.unpack_from(header)[_PAYLOAD_BYTES] if len(header) >= HEADER.size else 0
            found.next()
        return size

    def compacted(self, shard: ShardId) -> None:
        """Note what is left to compact of a shard, once a range that was taken from `dropped` is done with."""
        batch = WriteBatch(raw_mode=True)
        put_dropped(shard, self.dropped.known(shard), batch, self._handles[SYSTEM])
        self._write(batch)

    def sizes(self) -> dict[tuple[str, str], int]:
        """Return the bytes that each family takes, by what the metric calls it, in tables and in memory before."""
        with edge(self.path):
            return {
                (family.metric, where): int(self._families[family.name].property_int_value(name) or 0)
                for family in self._table
                for where, name in (("tables", _TABLE_BYTES), ("memory", _MEMORY_BYTES))
            }

    # --- reading ------------------------------------------------------------------------------------------

    @contextmanager
    def snapshot(self, *families: str) -> Iterator[Snapshot]:
        """Give reads of these families as all of them were at one moment, until the end of the block.

        Thread-safe; the snapshot itself is of one thread.  Blocks are short: meanwhile what is overwritten stays on the
        disk.  Raises UnknownFamily.
        """
        snapshot = self.take_snapshot(families)
        try:
            yield snapshot
        finally:
            snapshot.close()

    def take_snapshot(self, families: Sequence[str]) -> Snapshot:
        """Return reads of these families as all of them are now; the caller closes it in this thread, and soon.

        Raises UnknownFamily.
        """
        return self.rows.snapshot(self._db.latest_sequence_number, families)

    def shards(self) -> list[ShardId]:
        """Return every shard that has a stored state."""
        return [ShardId(number) for number in self.units(LOG_PLANE)]

    def units(self, plane: int) -> list[int]:
        """Return the id of every unit of a plane that has a stored state."""
        prefix = STATE + bytes([plane])
        return [address_of(STATE, key)[1] for key, _ in self.rows.each(SYSTEM, prefix, prefix_end(prefix))]

    def state(self, shard: ShardId) -> tuple[bytes, bytes | None]:
        """Return the stored state of a shard, and its checkpoint or None.  Raises KeyError when it has no state."""
        return self.unit(of_shard(shard))

    def unit(self, address: Address) -> tuple[bytes, bytes | None]:
        """Return the stored state of a unit of any plane, and its checkpoint or None.

        Raises KeyError when it has no state.
        """
        state = self.rows.get(SYSTEM, address_key(STATE, *address))
        if state is None:
            raise KeyError(f"{address} has no stored state")
        return state, self.rows.get(SYSTEM, address_key(CHECKPOINT, *address))

    def headers(self, shard: ShardId, first: int) -> Iterator[Entry]:
        """Yield verified headers from base offset `first` on, for recovery.  Raises StoreDamaged, FormatTooNew."""
        within = self._from_header(shard, max(first, 0), OFFSET_MAX)
        found = within.found
        while found.valid():
            try:
                yield recovered(found.value())
            except FormatTooNew:
                raise
            except (CorruptEntry, ValueError) as error:
                raise StoreDamaged(f"header at {ENTRY_KEY.unpack(found.key())} of {self.path}: {error}") from error
            found.next()
        if (why := within.broken()) is not None:
            raise StoreDamaged(f"{self.path}: {why}")

    def read(self, shard: ShardId, first: int, last: int, bytes_max: int) -> Slice:
        """Return whole entries from the one that holds `first`, while their last offset is at most `last`.

        Stops behind `bytes_max` bytes, payloads that are not held counted; at least one entry when there is one.
        Thread-safe.
        """
        headers: list[Entry] = []
        damaged_at: int | None = None
        try:
            for header in self.walk(shard, first, last):
                headers.append(header)
                bytes_max -= header.size
                if bytes_max <= 0:
                    break
        except EntryDamaged as damaged:
            damaged_at = damaged.offset
        found = self.whole(shard, headers)
        return found if found.damaged_at is not None else found._replace(damaged_at=damaged_at)

    def whole(self, shard: ShardId, headers: Sequence[Entry]) -> Slice:
        """Return the entries of these verified headers, up to the first whose payload is damaged.

        The payload of a header may be gone for good: that entry is the header alone.  Thread-safe.
        """
        if not headers:
            return Slice((), None)
        keys = [ENTRY_KEY.pack(shard, header.base) for header in headers]
        entries: list[Entry] = []
        for header, payload in zip(headers, self._payloads(keys), strict=True):
            try:
                entries.append(header if payload is None else with_payload(header, payload))
            except CorruptEntry:
                return Slice(tuple(entries), header.base)
        return Slice(tuple(entries), None)

    def walk(self, shard: ShardId, first: int, last: int) -> Iterator[Entry]:
        """Yield verified headers from the entry that holds `first`, while their last offset is at most `last`.

        Raises EntryDamaged at the first offset up to `last` that no intact header holds.  Thread-safe.
        """
        try:
            start = self._header_at_or_before(shard, first)
        except StoreDamaged as error:
            _log.error("headers cannot be read", extra={"reason": str(error)})
            start = None
        within = self._from_header(shard, first if start is None else start[0], max(last, first) + 1)
        found = within.found
        expected = first
        while found.valid():
            try:
                header = recovered(found.value())
            except (CorruptEntry, ValueError) as error:
                raise EntryDamaged(ENTRY_KEY.unpack(found.key())[1]) from error
            end = header.last
            if end >= first:
                if header.base > expected:
                    raise EntryDamaged(expected)
                if end > last:
                    return
                expected = end + 1
                yield header
            found.next()
        why = within.broken()
        if why is not None:
            _log.error("headers cannot be read", extra={"reason": why})
        if why is not None or expected <= last:
            raise EntryDamaged(expected)

    def _payloads(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            return cast(list[bytes | None], self._families[LOG].get(cast(Any, keys)))
        except Exception:
            # A damaged block fails the whole list; ask one by one to learn which.
            return [self._payload(key) for key in keys]

    def _payload(self, key: bytes) -> bytes | None:
        try:
            return self._families[LOG].get(key)
        except Exception as error:
            _log.error("a payload cannot be read", extra={"key": key.hex(), "reason": str(error)})
            return b""  # nobody knows whether it is there; this is not what any header speaks of

    def _header_at_or_before(self, shard: ShardId, offset: int) -> tuple[int, bytes] | None:
        if offset < 0:
            return None
        within = Range(self._families[HEADERS])
        found = within.found
        found.seek_for_prev(ENTRY_KEY.pack(shard, offset))
        if not found.valid():
            if (why := within.broken()) is not None:
                raise StoreDamaged(f"{self.path}: {why}")
            return None
        of, base = ENTRY_KEY.unpack(found.key())
        return (base, found.value()) if of == shard else None  # it may be the last entry of the shard in front

    def _from_header(self, shard: ShardId, start: int, behind: int) -> Range:
        """Return an iterator at the first header of a shard with a base in [start, behind)."""
        within = Range(self._families[HEADERS], ENTRY_KEY.pack(shard, behind))
        within.found.seek(ENTRY_KEY.pack(shard, start))
        return within


class StoredPlane:
    """The part of the store that one plane reads when its node starts (`base.plane.Stored`)."""

    def __init__(self, store: Store, plane: int) -> None:
        self._store = store
        self._plane = plane
        self.headers = store.headers
        self.rows = store.rows.each

    def units(self) -> list[int]:
        return self._store.units(self._plane)

    def unit(self, unit: int) -> tuple[bytes, bytes | None]:
        return self._store.unit(Address(self._plane, unit))
