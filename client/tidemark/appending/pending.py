"""Batches being filled: the writes that wait to be sent, and the callers that wait for the answer.

`Pending` is all that a lane and a dispatcher know of a batch; `PendingRecords` holds records of a log.
Stays out: when a batch goes out and where to (shell, batches); writes of documents (document_writes).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, overload

from tidemark_core.base.entry import Batch, Durability
from tidemark_core.documents.requests import Written
from tidemark_core.replication.messages import Appended as AppendedMessage

from ..batch import Appended, RecordHeaders
from ..payload import encode
from .columns import Columns


class AppendedBatch(Sequence[Appended]):
    """Answers of `append_batch`, one per record, in the order given; built when looked at.

    `ranges` are the runs of records that lie together: (shard, first offset, count, epoch, durability);
    `batches` says of each in which batch it was sent: (producer, sequence).
    """

    __slots__ = ("_count", "_done", "_left", "_places", "batches", "ranges")

    def __init__(self, count: int, done: asyncio.Future[AppendedBatch]) -> None:
        self._count = count
        self.ranges: list[tuple[int, int, int, int, Durability]] = []
        self.batches: list[tuple[bytes, int]] = []
        self._places: list[tuple[range | list[int], int]] = []  # positions of a run, index of its range
        self._left = count
        self._done = done

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, position: int) -> Appended: ...

    @overload
    def __getitem__(self, position: slice) -> list[Appended]: ...

    def __getitem__(self, position: int | slice) -> Appended | list[Appended]:
        if isinstance(position, slice):
            return list(self)[position]
        place = range(self._count)[position]
        for positions, number in self._places:
            if place in positions:
                shard, first, _, epoch, durability = self.ranges[number]
                return Appended(shard, first + positions.index(place), epoch, durability, *self.batches[number])
        raise LookupError(f"record {position} has not been answered")

    def __iter__(self) -> Iterator[Appended]:
        answers: list[Appended | None] = [None] * self._count
        for positions, number in self._places:
            shard, first, _, epoch, durability = self.ranges[number]
            producer, sequence = self.batches[number]
            for step, position in enumerate(positions):
                answers[position] = Appended(shard, first + step, epoch, durability, producer, sequence)
        return iter(answers)  # type: ignore[arg-type]

    def settle(self, positions: range | list[int], first: Appended) -> None:
        """Note that these records lie from `first` on; the last ones resolve the caller."""
        self._places.append((positions, len(self.ranges)))
        self.ranges.append((first.shard, first.offset, len(positions), first.epoch, first.durability))
        self.batches.append((first.producer, first.sequence))
        self._left -= len(positions)
        if not self._left and not self._done.done():
            self._done.set_result(self)

    def fail(self, error: Exception) -> None:
        """Tell the caller of the first part that failed; `ranges` of the error's batch says what did not."""
        if not self._done.done():
            self._done.set_exception(error)


class Sealed(NamedTuple):
    """The bytes of a batch that takes no more writes, and what its header says of them."""

    payload: bytes
    records: int
    first_us: int
    last_us: int


class Pending(ABC):
    """A batch being filled, whatever it holds."""

    __slots__ = ("bytes", "count", "deadline", "durability", "expect", "hurried", "opened_at", "watchers", "whole")

    def __init__(self, durability: Durability, now: float, timeout_s: float) -> None:
        self.durability = durability
        self.opened_at = now
        self.deadline = now + timeout_s
        self.bytes = 0
        self.count = 0        # of its writes
        self.whole = False    # no more writes may join
        self.expect = -1      # the offset from which on no other record may lie, -1 for none (L29)
        self.hurried = False  # a flush waits for it
        self.watchers: list[Callable[[], None]] = []  # called once, when it is answered or given up

    @abstractmethod
    def seal(self, compression: str | None) -> Sealed:
        """Encode the writes and drop them; raises ArrowException, ValueError, TypeError, OverflowError."""

    @abstractmethod
    def settle(self, shard: int, answer: AppendedMessage | Written, durability: Durability, batch: Batch) -> None:
        """Answer every caller with what the leader answered to `batch`."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Let every caller have `error`."""

    def done(self) -> None:
        """Call the watchers, once."""
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()


class PendingRecords(Pending):
    """Records of a log.  `values`, `keys`, `timestamps_us` and `headers` are parallel."""

    __slots__ = ("any_headers", "any_keys", "futures", "headers", "keys", "pieces", "timestamps_us", "values")

    def __init__(self, durability: Durability, now: float, timeout_s: float) -> None:
        super().__init__(durability, now, timeout_s)
        self.values: list[bytes] = []
        self.keys: list[bytes | None] = []
        self.timestamps_us: list[int] = []
        self.headers: list[RecordHeaders] = []
        self.any_keys = False
        self.any_headers = False
        self.futures: list[tuple[int, asyncio.Future[Appended]]] = []  # index in this batch, its caller
        self.pieces: list[tuple[int, range | list[int], AppendedBatch]] = []  # first index, positions, their caller

    def add(self, value: bytes, key: bytes | None, timestamp_us: int, headers: RecordHeaders, size: int) -> None:
        """Put one record behind the others."""
        self.values.append(value)
        self.keys.append(key)
        self.timestamps_us.append(timestamp_us)
        self.headers.append(headers)
        if key is not None:
            self.any_keys = True
        if headers is not None:
            self.any_headers = True
        self.count += 1
        self.bytes += size

    def add_columns(self, columns: Columns, start: int, end: int, now_us: int) -> None:
        """Put the records [start, end) of a call behind the others."""
        count = end - start
        self.values += columns.values[start:end]
        if columns.keys is None:
            self.keys += [None] * count
        else:
            self.keys += columns.keys[start:end]
            self.any_keys = True
        if columns.timestamps_us is None:
            self.timestamps_us += [now_us] * count
        else:
            self.timestamps_us += [now_us if t is None else t for t in columns.timestamps_us[start:end]]
        if columns.headers is None:
            self.headers += [None] * count
        else:
            self.headers += columns.headers[start:end]
            self.any_headers = True
        self.count += count
        self.bytes += columns.bytes_of(start, end)

    def seal(self, compression: str | None) -> Sealed:
        times = self.timestamps_us
        payload = encode(
            self.values, self.keys if self.any_keys else None, times, self.headers if self.any_headers else None,
            compression,
        )
        self.values, self.keys, self.timestamps_us, self.headers = [], [], [], []
        return Sealed(payload, self.count, min(times), max(times))

    def settle(self, shard: int, answer: AppendedMessage | Written, durability: Durability, batch: Batch) -> None:
        base, epoch, producer, sequence = answer.base, answer.epoch, batch.producer, batch.sequence
        for index, future in self.futures:
            if not future.done():
                future.set_result(Appended(shard, base + index, epoch, durability, producer, sequence))
        for index, positions, piece in self.pieces:
            piece.settle(positions, Appended(shard, base + index, epoch, durability, producer, sequence))
        self.done()

    def fail(self, error: Exception) -> None:
        for _, future in self.futures:
            if not future.done():
                future.set_exception(error)
        for _, _, piece in self.pieces:
            piece.fail(error)
        self.futures, self.pieces = [], []
        self.done()
