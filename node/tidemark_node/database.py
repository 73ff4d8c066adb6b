"""Database: how RocksDB is opened with a table of families, and read by key and by range.

Reads may run in threads, for they let the event loop go on.
Stays out: what keys and values mean (`store` and the planes), which families there are (`families`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
)
from tidemark_core.base.layout import RESERVED, UnknownFamily

from .families import WRITE_BUFFER_BYTES, Family
from .record_types import check_record_types
from .store_errors import StoreDamaged, typed

BLOCK_CACHE_BYTES = 16 << 20
SCAN_BYTES = 1 << 20
BEYOND_SETTERS = Path(__file__).with_name("rocksdb")
"""A directory with an options file: the settings that the binding can load but not set."""

Row = tuple[bytes, bytes]
"""Key and value."""


class Range:
    """An iterator over a family as it is now, which ends in front of `behind`; None means the family's end.

    The binding only borrows the bound, so the options live as long as the iterator.  It does not heed a lower bound:
    a step backwards compares keys.
    """

    __slots__ = ("_options", "found")

    def __init__(self, source: Rdict, behind: bytes | None = None) -> None:
        self._options = ReadOptions()
        if behind is not None:
            self._options.set_iterate_upper_bound(behind)
        try:
            self.found: RdictIter = source.iter(self._options)
        except Exception as error:
            raise typed(error, "an iterator") from error

    def close(self) -> None:
        """Free the iterator, whatever still refers to this range: one that is alive keeps the database open."""
        del self.found

    def broken(self) -> str | None:
        """Return why the iteration ended early, None when it did not."""
        try:
            self.found.status()
        except Exception as error:
            return str(error)
        return None


def prefix_end(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with `prefix`, None when no key sorts behind them."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes([short[-1] + 1]) if short else None


class Rows:
    """Reads of whole rows of the database as it is.  Thread-safe."""

    def __init__(self, path: Path, families: Mapping[str, Rdict]) -> None:
        self._path = path
        self._families = families

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None when it is not there.  Raises StoreDamaged, UnknownFamily."""
        source = self._family(family)
        try:
            return source.get(key)
        except Exception as error:
            raise typed(error, f"{self._path}, family {family}") from error

    def many(self, keys: Sequence[tuple[str, bytes]]) -> tuple[bytes | None, ...]:
        """Return the values of many keys, each with its family, in their order.  Raises StoreDamaged, UnknownFamily.

        The interpreter is free while RocksDB reads, unlike with one `get` after the other.
        """
        by_family: dict[str, list[int]] = {}
        for place, (family, _) in enumerate(keys):
            by_family.setdefault(family, []).append(place)
        values: list[bytes | None] = [None] * len(keys)
        for family, places in by_family.items():
            source = self._family(family)
            try:
                found: Any = source.get(cast(Any, [keys[place][1] for place in places]))
            except Exception as error:
                raise typed(error, f"{self._path}, family {family}") from error
            for place, value in zip(places, found, strict=True):
                values[place] = value
        return tuple(values)

    def each(
        self, family: str, first: bytes = b"", behind: bytes | None = None, *, backwards: bool = False
    ) -> Iterator[Row]:
        """Yield the rows with keys in [first, behind), as they are at the first step; None means the family's end.

        Raises StoreDamaged, UnknownFamily.
        """
        within = Range(self._family(family), behind)
        yield from _between(within, first, behind, backwards, f"{self._path}, family {family}")

    def scan(
        self, family: str, first: bytes, behind: bytes | None, rows_max: int, bytes_max: int = SCAN_BYTES, *,
        backwards: bool = False,
    ) -> list[Row]:
        """Return at most `rows_max` rows of `each`, up to the one that makes `bytes_max` bytes of keys and values.

        At least one row when there is one.  The next page begins at the last key with a zero byte behind it;
        backwards it ends in front of the last key.  Raises StoreDamaged, UnknownFamily.
        """
        return _page(self.each(family, first, behind, backwards=backwards), rows_max, bytes_max)

    def snapshot(self, moment: Callable[[], int], families: Sequence[str]) -> Snapshot:
        """Return reads of these families at one moment; `moment` returns the number of the last write.

        Raises UnknownFamily.
        """
        sources = {name: self._family(name) for name in families}
        while True:
            now = moment()
            # Iterators are pinned when they are made, each by itself.  The binding's own snapshots are not used: an
            # iterator over one shows later writes.
            ranges = {name: Range(source) for name, source in sources.items()}
            if moment() == now:
                return Snapshot(self._path, ranges)

    def _family(self, name: str) -> Rdict:
        family = self._families.get(name)
        if family is None:
            raise UnknownFamily(f"{self._path} has no family {name!r}: give it a row in the table of families")
        return family


class Snapshot:
    """Reads of some families as all of them were at one moment.  Of one thread, and closed before the store is."""

    def __init__(self, path: Path, ranges: dict[str, Range]) -> None:
        self._path = path
        self._ranges = ranges

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, None when it was not there.  Raises StoreDamaged, UnknownFamily."""
        rows = self.scan(family, key, key + b"\0", 1)
        return rows[0][1] if rows else None

    def scan(
        self, family: str, first: bytes, behind: bytes | None, rows_max: int, bytes_max: int = SCAN_BYTES, *,
        backwards: bool = False,
    ) -> list[Row]:
        """Read as `Rows.scan` does."""
        rows = _between(self._range(family), first, behind, backwards, f"{self._path}, family {family}")
        return _page(rows, rows_max, bytes_max)

    def each(self, family: str, first: bytes, behind: bytes | None) -> Iterator[Row]:
        """Yield rows as `Rows.each` does, one scan of a family at a time: another one, or a `get`, moves its place."""
        return _between(self._range(family), first, behind, False, f"{self._path}, family {family}")

    def _range(self, family: str) -> Range:
        within = self._ranges.get(family)
        if within is None:
            raise UnknownFamily(f"family {family!r} is not in this snapshot")
        return within

    def close(self) -> None:
        """Let the database drop what was overwritten since; a scan that is not at its end cannot go on."""
        for within in self._ranges.values():
            within.close()
        self._ranges.clear()


def _between(within: Range, first: bytes, behind: bytes | None, backwards: bool, where: str) -> Iterator[Row]:
    """Yield the rows of a range with keys in [first, behind).  Raises StoreDamaged, which names `where`."""
    found = within.found
    if not backwards:
        found.seek(first)
        while found.valid() and (behind is None or found.key() < behind):
            row = found.key(), found.value()
            del found    # while the caller has the row, `close` may free it
            yield row
            found = within.found
            found.next()
    else:
        if behind is None:
            found.seek_to_last()
        else:
            found.seek_for_prev(behind)
            if found.valid() and found.key() == behind:
                found.prev()
        while found.valid() and found.key() >= first:
            row = found.key(), found.value()
            del found
            yield row
            found = within.found
            found.prev()
    if not found.valid() and (why := within.broken()) is not None:
        raise StoreDamaged(f"{where}: {why}")


def _page(rows: Iterator[Row], rows_max: int, bytes_max: int) -> list[Row]:
    page: list[Row] = []
    while len(page) < rows_max and bytes_max > 0 and (row := next(rows, None)) is not None:
        page.append(row)
        bytes_max -= len(row[0]) + len(row[1])
    return page


def open_database(path: Path, families: Sequence[Family]) -> tuple[Rdict, dict[str, Options]]:
    """Open a database, creating one where there is none; return it and the families that it does not have yet.

    A database that exists gets none before its format is known: `create_column_family` is the caller's.  Raises
    what the binding raises; `store_errors.typed` names it.
    """
    wanted = _family_options(families)
    check_record_types(path)
    present = set(Rdict.list_cf(str(path))) if (path / "CURRENT").exists() else set()
    if not present >= RESERVED:
        return Rdict(str(path), _options(), wanted), {}  # a new one, or one whose creation was cut short
    later = {name: wanted.pop(name) for name in list(wanted) if name not in present}
    return Rdict(str(path), _options(), wanted), later


def _options() -> Options:
    options = Options.load_latest(str(BEYOND_SETTERS))[0]
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


def _family_options(families: Sequence[Family]) -> dict[str, Options]:
    cache = Cache(BLOCK_CACHE_BYTES)
    return {family.name: _tuned(family, cache) for family in families}


def _tuned(family: Family, cache: Any) -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(family.write_buffer_bytes)
    options.set_max_write_buffer_number(3)
    options.set_target_file_size_base(family.table_bytes)
    options.set_max_bytes_for_level_base(256 << 20)
    options.set_compression_type(DBCompressionType.lz4() if family.compressed else DBCompressionType.none())
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(family.block_bytes)
    if family.bloom_bits:
        table.set_bloom_filter(family.bloom_bits, block_based=False)
    options.set_block_based_table_factory(table)
    return options
