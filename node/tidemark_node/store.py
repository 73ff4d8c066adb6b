"""The store: one RocksDB per node, and the only importer of its binding.

Layout: `headers` (with the payloads that a restart reads) and `log` (all other payloads) by shard and base offset,
`system` for identity, for state and checkpoint of each shard, and for where dropped payloads still take space.  A
header without a payload is an entry that is not held.  `apply` writes a turn's persists without syncing, `sync` makes
everything applied so far durable; `sync`, `compact` and whatever reads may run in threads, for they let the event loop
go on.
What cannot be trusted any more is moved aside and the disk begins a new life (rule K14): a replica must never
vote with what is left of a log.
Stays out: what the writes mean, when to sync, when to compact (`reclaim`), whether there is space (`disk`).
"""

from __future__ import annotations

import logging
import struct
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rocksdict import (
    BlockBasedOptions,
    Cache,
    CompactOptions,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
)
from tidemark_core.base.effects import (
    DropAfter,
    DropBefore,
    DropPayloads,
    Persist,
    PutCheckpoint,
    PutEntry,
    PutState,
    Wipe,
    Write,
)
from tidemark_core.base.entry import FOLDED_WITH_PAYLOAD, HEADER, Entry, folded_part, recovered, with_payload
from tidemark_core.base.errors import CorruptEntry
from tidemark_core.base.ids import ShardId

from .dropped import Dropped
from .store_errors import EntryDamaged, Faults, StoreDamaged, StoreFailed, StoreRefused, typed

STORE_FORMAT = 4
WRITE_BUFFER_BYTES = 64 << 20
TABLE_BYTES = 64 << 20
BLOCK_CACHE_BYTES = 16 << 20
COMPACTION_BYTES = 128 << 20
"""What one call of `compact` rewrites, about: closing the store waits for it."""

_KEY = struct.Struct(">QQ")
_OFFSET_MAX = (1 << 64) - 1
_FORMAT, _INCARNATION, _NODE, _REMEMBERED = b"format", b"incarnation", b"node", b"remembered"
_STATE, _CHECKPOINT, _DROPPED = b"state/", b"checkpoint/", b"dropped/"

_PAYLOAD_BYTES = 7      # among the fields of HEADER
_TABLE_BYTES, _MEMORY_BYTES = "rocksdb.live-sst-files-size", "rocksdb.cur-size-all-mem-tables"

_log = logging.getLogger(__name__)


class Slice(NamedTuple):
    """Entries in order without a gap; `damaged_at` is the offset whose entry could not be read intact.

    An entry whose payload is not stored at all is there with its header only (`Entry.held` is false).
    """

    entries: tuple[Entry, ...]
    damaged_at: int | None


def open_store(directory: Path, node: str, faults: Faults | None = None) -> Store:
    """Open the store under `directory`, creating it, or moving a damaged one aside and beginning anew.

    Raises StoreRefused when it belongs to another node, another process or a newer release, StoreFailed when
    the disk takes no writes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return Store(directory / "store", node, faults)
    except StoreDamaged as damage:
        move_aside(directory, str(damage))
        return Store(directory / "store", node, faults)


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

    def __init__(self, path: Path, node: str, faults: Faults | None = None) -> None:
        self.path = path
        self._faults = faults
        self._failed: str | None = None
        self.dropped = Dropped()
        try:
            if faults is not None:
                faults.check_write()
            self._db = Rdict(str(path), _options(), _column_families())
        except Exception as error:
            raise typed(error, str(path)) from error
        self._log = self._db.get_column_family("log")
        self._headers = self._db.get_column_family("headers")
        self._system = self._db.get_column_family("system")
        self._log_handle = self._db.get_column_family_handle("log")
        self._headers_handle = self._db.get_column_family_handle("headers")
        self._system_handle = self._db.get_column_family_handle("system")
        try:
            self.incarnation = self._identify(node)
            within = _within(_DROPPED)
            for key, value in self._system.items(from_key=_DROPPED, read_opt=within):
                self.dropped.add(ShardId(int.from_bytes(key[len(_DROPPED) :], "big")), *_KEY.unpack(value))
        except BaseException:
            self.close()
            raise

    def _identify(self, node: str) -> str:
        """Return the incarnation stored at creation, or create one."""
        stored_format = self._system.get(_FORMAT)
        if stored_format is None:
            if self._holds_anything():
                raise StoreDamaged(f"{self.path} holds entries and no format number")
            incarnation = uuid.uuid4().hex
            batch = WriteBatch(raw_mode=True)
            batch.put(_FORMAT, str(STORE_FORMAT).encode(), self._system_handle)
            batch.put(_INCARNATION, incarnation.encode(), self._system_handle)
            batch.put(_NODE, node.encode(), self._system_handle)
            self._write(batch)
            self.sync()
            return incarnation
        if stored_format != str(STORE_FORMAT).encode():
            raise StoreRefused(
                f"{self.path} has store format {stored_format.decode(errors='replace')}, this release reads "
                f"{STORE_FORMAT}: start it with the release that wrote it; nothing was changed"
            )
        owner = self._system.get(_NODE, b"").decode()
        if owner != node:
            raise StoreRefused(
                f"{self.path} belongs to node {owner!r}, not to {node!r}: "
                "give every node its own data directory"
            )
        return self._system.get(_INCARNATION).decode()

    def _holds_anything(self) -> bool:
        found = self._headers.iter()
        found.seek_to_first()
        return found.valid() or bool(self.shards())

    def close(self) -> None:
        """Close; the caller has stopped every thread that reads or syncs."""
        # A live column family keeps the lock of the database, so all of them go first.
        del self._log, self._headers, self._system
        del self._log_handle, self._headers_handle, self._system_handle
        try:
            self._db.close()
        except Exception as error:
            # Closing writes tables; on a full disk it cannot, and the write-ahead log has everything anyway.
            _log.warning("the store closed without writing its tables", extra={"reason": str(error)})
        del self._db

    # --- writing ------------------------------------------------------------------------------------------

    def apply(self, persists: Sequence[Persist]) -> int:
        """Write persists in order, each atomically, not yet durable; return the bytes written.

        Raises StoreFailed, after which only reads are served: memory may be ahead of the disk, reopen.
        """
        batch = WriteBatch(raw_mode=True)
        written = 0
        for persist in persists:
            if len(batch) and any(isinstance(write, DropBefore) for write in persist.writes):
                # What to trim is looked up in the database, so everything earlier must be in it.
                written += self._write(batch)
                batch = WriteBatch(raw_mode=True)
            for write in persist.writes:
                self._stage(batch, persist.shard, write, persist.writes)
        return written + self._write(batch)

    def _stage(self, batch: WriteBatch, shard: ShardId, write: Write, together: Sequence[Write]) -> None:
        match write:
            case PutEntry(entry):
                key = _KEY.pack(shard, entry.base)
                batch.put(key, folded_part(entry), self._headers_handle)
                if (entry.payload or entry.held) and entry.kind not in FOLDED_WITH_PAYLOAD:
                    batch.put(key, entry.payload, self._log_handle)
            case PutState(state):
                batch.put(_STATE + shard.to_bytes(8, "big"), state, self._system_handle)
            case PutCheckpoint(checkpoint):
                batch.put(_CHECKPOINT + shard.to_bytes(8, "big"), checkpoint, self._system_handle)
            case DropAfter(offset):
                self._stage_drop(batch, shard, offset + 1, _OFFSET_MAX)
            case DropBefore(offset):
                self._stage_drop(batch, shard, 0, self._kept_from(shard, offset, together))
            case DropPayloads(first, last):
                batch.delete_range(_KEY.pack(shard, first), _KEY.pack(shard, last + 1), self._log_handle)
                self.dropped.add(shard, first, last)
                self._stage_dropped(batch, shard)
            case Wipe():
                self._stage_drop(batch, shard, 0, _OFFSET_MAX)
                batch.delete(_CHECKPOINT + shard.to_bytes(8, "big"), self._system_handle)
            case _:
                raise TypeError(f"the store does not know the write {type(write).__name__}")

    def _stage_drop(self, batch: WriteBatch, shard: ShardId, start: int, end: int) -> None:
        if start < end:
            first, behind = _KEY.pack(shard, start), _KEY.pack(shard, end)
            batch.delete_range(first, behind, self._headers_handle)
            batch.delete_range(first, behind, self._log_handle)

    def _stage_dropped(self, batch: WriteBatch, shard: ShardId) -> None:
        key, known = _DROPPED + shard.to_bytes(8, "big"), self.dropped.known(shard)
        if known is None:
            batch.delete(key, self._system_handle)
        else:
            batch.put(key, _KEY.pack(*known), self._system_handle)

    def _kept_from(self, shard: ShardId, offset: int, together: Sequence[Write]) -> int:
        """Return the base of the entry that holds `offset`, or `offset` when none reaches over it."""
        for write in together:
            if isinstance(write, PutEntry) and write.entry.base < offset <= write.entry.last:
                return write.entry.base
        found = self._header_at_or_before(shard, offset - 1)
        if found is None:
            return max(offset, 0)
        base, header = found
        try:
            return base if recovered(header).last >= offset else offset
        except CorruptEntry:
            return base  # keep what cannot be judged

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

    def sync(self) -> None:
        """Make everything applied so far durable.  Raises StoreFailed."""
        try:
            if self._faults is not None:
                self._faults.check_sync()
            self._db.flush_wal(True)
        except Exception as error:
            raise self._fail(error) from error

    def _fail(self, error: Exception) -> Exception:
        self._failed = str(error)
        return typed(error, str(self.path))

    def remember(self, cluster: bytes) -> None:
        """Keep what of the shard map is to outlive the process, durably.  Thread-safe.  Raises StoreFailed."""
        batch = WriteBatch(raw_mode=True)
        batch.put(_REMEMBERED, cluster, self._system_handle)
        self._write(batch)
        self.sync()

    def remembered(self) -> bytes | None:
        return self._system.get(_REMEMBERED)

    # --- space --------------------------------------------------------------------------------------------

    def compact(self, shard: ShardId, first: int, last: int) -> int:
        """Rewrite tables without the payloads dropped of [first, last], a piece of it; return where the piece ends.

        A range delete alone gives nothing back before the database happens to rewrite that range, and where nothing
        is written any more it never does.  Thread-safe; whoever calls it calls `compacted` then.  Raises StoreFailed.
        """
        end = self._piece_end(shard, first, last)
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)  # others need not wait for this one
        try:
            self._log.compact_range(_KEY.pack(shard, first), _KEY.pack(shard, end + 1), options)
        except Exception as error:
            raise StoreFailed(f"{self.path}: {error}", no_space="No space left" in str(error)) from error
        return end

    def _piece_end(self, shard: ShardId, first: int, last: int) -> int:
        """Return the offset up to which tables hold COMPACTION_BYTES from `first` on, about, or `last`."""
        low, high = _KEY.pack(shard, first), _KEY.pack(shard, last)
        size = 0
        for key, bytes_held in sorted((found["start_key"], found["size"]) for found in self._db.live_files()):
            if len(key) == _KEY.size and low < key <= high:
                if size >= COMPACTION_BYTES:
                    return int(_KEY.unpack(key)[1]) - 1
                size += bytes_held
        return last

    def payload_bytes(self, shard: ShardId, first: int, last: int, enough: int) -> int:
        """Add up payloads of entries with base in [first, last], held or not, until it is `enough`.  Thread-safe."""
        within = _Range(self._headers, shard, first, last + 1)
        found, size = within.found, 0
        found.seek(within.start)
        while size < enough and found.valid():
            header = found.value()
            size += HEADER.unpack_from(header)[_PAYLOAD_BYTES] if len(header) >= HEADER.size else 0
            found.next()
        return size

    def compacted(self, shard: ShardId) -> None:
        """Note what is left to compact of a shard, once a range that was taken from `dropped` is done with."""
        batch = WriteBatch(raw_mode=True)
        self._stage_dropped(batch, shard)
        self._write(batch)

    def sizes(self) -> dict[tuple[str, str], int]:
        """Return the bytes that payloads, headers and the rest take, in tables and in memory on the way there."""
        return {
            (what, where): int(family.property_int_value(name) or 0)
            for what, family in (("payloads", self._log), ("headers", self._headers), ("system", self._system))
            for where, name in (("tables", _TABLE_BYTES), ("memory", _MEMORY_BYTES))
        }

    # --- reading ------------------------------------------------------------------------------------------

    def shards(self) -> list[ShardId]:
        """Return every shard that has a stored state."""
        within = _within(_STATE)
        keys = self._system.keys(from_key=_STATE, read_opt=within)
        return [ShardId(int.from_bytes(key[len(_STATE) :], "big")) for key in keys]

    def state(self, shard: ShardId) -> tuple[bytes, bytes | None]:
        """Return the stored state of a shard, and its checkpoint or None."""
        suffix = shard.to_bytes(8, "big")
        return self._system[_STATE + suffix], self._system.get(_CHECKPOINT + suffix)

    def headers(self, shard: ShardId, first: int) -> Iterator[Entry]:
        """Yield verified headers from base offset `first` on, for recovery.  Raises StoreDamaged."""
        within = _Range(self._headers, shard, max(first, 0), _OFFSET_MAX)
        found = within.found
        found.seek(within.start)
        while found.valid():
            try:
                yield recovered(found.value())
            except (CorruptEntry, ValueError) as error:
                raise StoreDamaged(f"header at {_KEY.unpack(found.key())} of {self.path}: {error}") from error
            found.next()
        if (broken := within.broken()) is not None:
            raise StoreDamaged(f"{self.path}: {broken}")

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
        keys = [_KEY.pack(shard, header.base) for header in headers]
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
        start = self._header_at_or_before(shard, first)
        within = _Range(self._headers, shard, first if start is None else start[0], max(last, first) + 1)
        found = within.found
        found.seek(within.start)
        expected = first
        while found.valid():
            try:
                header = recovered(found.value())
            except (CorruptEntry, ValueError) as error:
                raise EntryDamaged(_KEY.unpack(found.key())[1]) from error
            end = header.last
            if end >= first:
                if header.base > expected:
                    raise EntryDamaged(expected)
                if end > last:
                    return
                expected = end + 1
                yield header
            found.next()
        broken = within.broken()
        if broken is not None:
            _log.error("headers cannot be read", extra={"reason": broken})
        if broken is not None or expected <= last:
            raise EntryDamaged(expected)

    def _payloads(self, keys: list[bytes]) -> list[bytes | None]:
        try:
            return self._log.get(keys)
        except Exception:
            # A damaged block fails the whole list; ask one by one to learn which.
            return [self._payload(key) for key in keys]

    def _payload(self, key: bytes) -> bytes | None:
        try:
            return self._log.get(key)
        except Exception as error:
            _log.error("a payload cannot be read", extra={"key": key.hex(), "reason": str(error)})
            return b""  # nobody knows whether it is there; this is not what any header speaks of

    def _header_at_or_before(self, shard: ShardId, offset: int) -> tuple[int, bytes] | None:
        if offset < 0:
            return None
        within = _Range(self._headers, shard, 0, _OFFSET_MAX)
        within.found.seek_for_prev(_KEY.pack(shard, offset))
        return (_KEY.unpack(within.found.key())[1], within.found.value()) if within.found.valid() else None


def _within(prefix: bytes) -> ReadOptions:
    """Return the options of a read that ends with the keys of this prefix; they must live as long as it goes on."""
    options = ReadOptions()
    options.set_iterate_upper_bound(prefix[:-1] + bytes([prefix[-1] + 1]))
    return options


class _Range:
    """An iterator over offsets [start, end) of one shard.

    The binding only borrows the bounds, so they must live as long as the iterator.
    """

    __slots__ = ("_options", "found", "start")

    def __init__(self, family: Rdict, shard: ShardId, start: int, end: int) -> None:
        self.start = _KEY.pack(shard, start)
        self._options = ReadOptions()
        self._options.set_iterate_lower_bound(self.start)
        self._options.set_iterate_upper_bound(_KEY.pack(shard, end))
        self.found: RdictIter = family.iter(self._options)

    def broken(self) -> str | None:
        """Return why the iteration ended early, None when it did not."""
        try:
            self.found.status()
        except Exception as error:
            return str(error)
        return None


# --- options of RocksDB --------------------------------------------------------------------------------------


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    # Opens a torn tail, refuses damage in the middle; the default opens with entries gone and says nothing.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)
    options.set_db_write_buffer_size(2 * WRITE_BUFFER_BYTES)
    options.set_max_total_wal_size(3 * WRITE_BUFFER_BYTES)
    options.set_max_background_jobs(2)
    options.set_max_open_files(256)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def _column_families() -> dict[str, Options]:
    cache = Cache(BLOCK_CACHE_BYTES)
    sizes = {"log": WRITE_BUFFER_BYTES, "headers": WRITE_BUFFER_BYTES // 4, "system": 4 << 20}
    families = {}
    for name, write_buffer_bytes in sizes.items():
        options = Options(raw_mode=True)
        options.set_write_buffer_size(write_buffer_bytes)
        options.set_max_write_buffer_number(3)
        options.set_target_file_size_base(TABLE_BYTES)
        options.set_max_bytes_for_level_base(256 << 20)
        options.set_compression_type(DBCompressionType.none())  # producers compress
        table = BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_block_size(16 << 10)
        options.set_block_based_table_factory(table)
        families[name] = options
    return families
