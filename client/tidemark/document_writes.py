"""Writes of documents on their way: their checks, their batches, and what their callers hear.

Sequences, retries and streams are those of appends (`appending`): a batch of writes is one entry of the shard's log.
Stays out: what users call (documents), the bytes of an entry and the meaning of outcomes (core).
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tidemark_core.base.entry import Batch, Durability
from tidemark_core.documents.payload import (
    KEY_BYTES_MAX,
    RECORDS_MAX,
    SEQNO_MAX,
    TTL_MS_MAX,
    VALUE_BYTES_MAX,
    Op,
    Outcome,
    Verdict,
    Write,
    Writes,
    encode,
)
from tidemark_core.documents.requests import Written as WrittenMessage
from tidemark_core.replication.messages import Appended as AppendedMessage

from .appending.batches import Dispatcher
from .appending.pending import Pending, Sealed
from .appending.shell import Lane
from .document import Delete, Put, Written
from .errors import ConditionFailed, DocumentsNotServed, InvalidArgument, TidemarkError, ValueTooLarge
from .routing import DOCUMENTS

WRITE_OVERHEAD_BYTES = 32
"""Bytes of one write in an entry beside its key and value, rounded up."""
REFUSALS_KEPT = 100


class Bulk:
    """Counts how many writes of one caller ended how."""

    def __init__(self) -> None:
        self.applied = 0
        self.refused_count = 0
        self.refused: list[ConditionFailed] = []
        self.seqnos: dict[int, int] = {}
        self.error: Exception | None = None    # the first that is no refusal
        self.open = 0                          # writes without an answer
        self.idle = asyncio.Event()
        self.idle.set()

    def opened(self) -> None:
        """Count a write that is under way."""
        self.open += 1
        self.idle.clear()

    def heard(self, answer: Written | Exception) -> None:
        """Count the end of a write."""
        if isinstance(answer, Written):
            self.applied += 1
            self.seqnos[answer.shard] = max(answer.seqno, self.seqnos.get(answer.shard, -1))
        elif isinstance(answer, ConditionFailed):
            self.refused_count += 1
            if len(self.refused) < REFUSALS_KEPT:
                self.refused.append(answer)
        else:
            self.error = self.error or answer
        self.open -= 1
        if not self.open:
            self.idle.set()


class PendingWrites(Pending):
    """Writes of one entry, and their callers in the same order; an atomic entry has one caller."""

    __slots__ = ("_conditions", "_on_written", "atomic", "callers", "writes")

    def __init__(self, durability: Durability, now: float, timeout_s: float) -> None:
        super().__init__(durability, now, timeout_s)
        self.writes: list[Write] = []
        self.callers: list[asyncio.Future[Written] | Bulk] = []
        self.atomic: asyncio.Future[list[Written]] | None = None
        self._conditions: list[tuple[bytes, int | None]] = []   # key and condition of each write that was sent

    def add(self, write: Write, caller: asyncio.Future[Written] | Bulk | None, size: int) -> None:
        """Put one write behind the others; in an atomic entry it has no caller of its own."""
        self.writes.append(write)
        if caller is not None:
            self.callers.append(caller)
        self.count += 1
        self.bytes += size

    def seal(self, compression: str | None) -> Sealed:
        now_us = time.time_ns() // 1000
        payload = encode(Writes(tuple(self.writes), self.atomic is not None))
        self._conditions = [(write.key, write.expected) for write in self.writes]
        self.writes = []
        return Sealed(payload, self.count, now_us, now_us)

    def settle(
        self, shard: int, answer: AppendedMessage | WrittenMessage, durability: Durability, batch: Batch
    ) -> None:
        if not isinstance(answer, WrittenMessage) or len(answer.outcomes) != self.count:
            self.fail(DocumentsNotServed(f"the leader of shard {shard} logged the writes and answered no outcomes"))
            return
        answers = [
            _answer(key, expected, outcome, shard, answer.base + index, answer.epoch, durability, batch)
            for index, ((key, expected), outcome) in enumerate(zip(self._conditions, answer.outcomes, strict=True))
        ]
        if self.atomic is not None:
            _settle_atomic(self.atomic, answers)
        for caller, one in zip(self.callers, answers, strict=bool(self.callers)):   # none are left after `fail`
            if isinstance(caller, Bulk):
                caller.heard(one)
            elif not caller.done():
                if isinstance(one, Written):
                    caller.set_result(one)
                else:
                    caller.set_exception(one)
        self.done()

    def fail(self, error: Exception) -> None:
        if self.atomic is not None and not self.atomic.done():
            self.atomic.set_exception(error)
        for caller in self.callers:
            if isinstance(caller, Bulk):
                caller.heard(error)
            elif not caller.done():
                caller.set_exception(error)
        self.callers = []
        self.done()


def _answer(
    key: bytes, expected: int | None, outcome: Outcome, shard: int, seqno: int, epoch: int, durability: Durability,
    batch: Batch,
) -> Written | TidemarkError:
    """Return how one write ended."""
    if outcome.verdict is Verdict.APPLIED:
        return Written(key, shard, seqno, epoch, outcome.seqno, durability, batch.producer, batch.sequence)
    if outcome.verdict is Verdict.REFUSED:
        return ConditionFailed(key=key, shard=shard, expected=expected, found=outcome.seqno, seqno=seqno)
    if outcome.verdict is Verdict.ABORTED:
        return TidemarkError("another write of its entry was refused", reason="ABORTED")
    return TidemarkError(f"the members of shard {shard} could not read the entry at {seqno}", reason="MALFORMED_ENTRY")


def _settle_atomic(caller: asyncio.Future[list[Written]], answers: Sequence[Written | TidemarkError]) -> None:
    if caller.done():
        return
    written = [one for one in answers if isinstance(one, Written)]
    failures = tuple(one for one in answers if isinstance(one, ConditionFailed))
    if len(written) == len(answers):
        caller.set_result(written)
    elif failures:
        first = failures[0]
        caller.set_exception(ConditionFailed(
            key=first.key, shard=first.shard, expected=first.expected, found=first.found, seqno=first.seqno,
            failures=failures,
        ))
    else:
        caller.set_exception(next(one for one in answers if isinstance(one, TidemarkError)))


class WriteDispatcher(Dispatcher[PendingWrites]):
    """The dispatcher of the writes to one group's documents."""

    batch_type = PendingWrites
    kind = DOCUMENTS
    records_max = RECORDS_MAX

    def _set_limits(self) -> None:
        super()._set_limits()
        bytes_max = min(self.payload_bytes_max, self.settings.max_buffered_bytes) - WRITE_OVERHEAD_BYTES
        self.document_bytes_max = min(self.group.record_bytes_max, bytes_max)

    def lane_of(self, key: bytes) -> Lane:
        """Return the lane of a key."""
        return self.lanes[self.group.shard_of(key)]

    def add(self, write: Write, durability: Durability, caller: asyncio.Future[Written] | Bulk) -> None:
        """Put one checked write into a batch."""
        lane, size = self.lane_of(write.key), size_of(write)
        pending = self.filling(lane, durability, size)
        pending.add(write, caller, size)
        self.filled(lane, pending, size)

    def add_atomic(
        self, writes: Iterable[Write], durability: Durability, caller: asyncio.Future[list[Written]]
    ) -> None:
        """Put checked writes of one shard into an entry of their own."""
        writes = list(writes)
        lane = self.lane_of(writes[0].key)
        pending = self.open(lane, durability)
        pending.whole, pending.atomic = True, caller
        for write in writes:
            pending.add(write, None, size_of(write))
        self.filled(lane, pending, pending.bytes)

    def check(self, given: Put | Delete, field: str = "") -> Write:
        """Return a write as the entry takes it; raises InvalidArgument naming the field, ValueTooLarge."""
        field = f"{field}." if field else ""
        if not isinstance(given, Put | Delete):
            raise InvalidArgument(field.rstrip(".") or "write", f"is {type(given).__name__}, must be Put or Delete")
        key = checked_key(given.key, f"{field}key")
        expected = given.expected
        if expected is not None and (type(expected) is not int or not 0 <= expected <= SEQNO_MAX):
            raise InvalidArgument(f"{field}expected", f"is {expected!r}, must be None or a seqno from 0 on")
        if isinstance(given, Delete):
            return Write(Op.DELETE, key, b"", 0, expected)
        value = given.value
        if type(value) is not bytes:
            raise InvalidArgument(f"{field}value", f"must be bytes, not {type(value).__name__}")
        if len(value) > VALUE_BYTES_MAX or len(key) + len(value) > self.document_bytes_max:
            limit = min(VALUE_BYTES_MAX, self.document_bytes_max - len(key))
            raise ValueTooLarge(
                f"{field}value", f"has {len(value)} bytes, the limit of group {self.group_name!r} is {limit}",
                advice="Split the value, store it elsewhere and put a reference, or raise the limit of the group.",
            )
        return Write(Op.PUT, key, value, checked_ttl_ms(given.ttl_s, f"{field}ttl_s"), expected)


def size_of(write: Write) -> int:
    """Return the bytes that a write takes in the buffer, at most; it is at least as long in an entry."""
    return len(write.key) + len(write.value) + WRITE_OVERHEAD_BYTES


def checked_key(key: Any, field: str = "key") -> bytes:
    """Return a document's key; raises InvalidArgument."""
    if type(key) is not bytes:
        raise InvalidArgument(field, f"must be bytes, not {type(key).__name__}")
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise InvalidArgument(field, f"has {len(key)} bytes, must have 1 to {KEY_BYTES_MAX}")
    return key


def checked_ttl_ms(ttl_s: Any, field: str = "ttl_s") -> int:
    """Return a time to live in milliseconds, 0 for None; raises InvalidArgument."""
    if ttl_s is None:
        return 0
    if isinstance(ttl_s, datetime.timedelta):
        ttl_s = ttl_s.total_seconds()
    if not isinstance(ttl_s, int | float) or isinstance(ttl_s, bool) or not 0.001 <= ttl_s <= TTL_MS_MAX / 1000:
        raise InvalidArgument(field, f"is {ttl_s!r}, must be seconds from 0.001 to {TTL_MS_MAX // 1000}")
    return int(ttl_s * 1000)
