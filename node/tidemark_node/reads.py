"""Tidemark/Read: stream a shard's entries to one reader, up to what is released, then wait for more.

What was rolled back is left out of a frame and named in its holes, so that coverage stays positive evidence.
Each reader has at most one slice in memory, of the bytes that all readers share (T12), so a stalled one holds up no
other client.  A damaged entry is never served:
the core is told, it fetches the entry from a peer, and the reader waits for that.  Where other members keep payloads
that this one does not, a stream ends in front of the first such entry with NOT_HELD, and nothing is left out.
Stays out: who may read and how far; the core grants and releases.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, NoReturn

from tidemark_core.base.effects import LogReadFailed
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import LatestRequest, ReadRequest
from tidemark_core.replication.messages import Latest, ReadGrant
from tidemark_wire.frames import HOLES_MAX, ReadFrame, encode_read
from tidemark_wire.identity import Role
from tidemark_wire.v1 import node_pb2

from .access import Access
from .appends import as_routed
from .budgets import Budgets, fitted, frame_bytes
from .driver import Driver
from .methods import Method, Shape
from .metrics import Metrics
from .routing import Routing, Target
from .store_errors import StoreFailed

METHOD = "Tidemark.Read"
FRAME_BYTES_DEFAULT = 1 << 20
FRAME_BYTES_MIN = 16 << 10
FRAME_BYTES_MAX = 4 << 20
ASK_AGAIN_SECONDS = 1.0
REPAIR_SECONDS = 5.0
REPAIR_RETRY_SECONDS = 0.05

NOT_HELD = Refused(
    Reason.NOT_HELD, "the leader does not keep every payload of this shard: read it by single copy delivery"
)


class Reads:
    """All readers of the node."""

    def __init__(self, driver: Driver, routing: Routing, metrics: Metrics, access: Access, budgets: Budgets) -> None:
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self._access = access
        self._budgets = budgets
        self._count = 0

    async def serve(self, request: Any, context: Any) -> None:
        """Handler of one read."""
        target = self._routing.find(request.group, request.shard, request.group_id)
        if isinstance(target, Refused):
            await self._routing.refuse(context, target, None)
        first, until = getattr(request, "from"), request.until
        if first < 0 or until < -1:
            wrong = Refused(Reason.INVALID_SPEC, f"from is {first} and until is {until}; offsets start at 0")
            await self._routing.refuse(context, wrong, None)
        bytes_max = min(max(request.bytes_max or FRAME_BYTES_DEFAULT, FRAME_BYTES_MIN), FRAME_BYTES_MAX)
        self._count += 1
        self._metrics.readers.set(self._count)
        try:
            refusal = partial(self._access.refusal, self._access.caller(context), METHOD, (Role.READER,), request.group)
            reader = _Reader(
                self._driver, self._routing, self._metrics, self._budgets, target, context, first, bytes_max, refusal
            )
            await reader.run(until, request.tail)
        finally:
            self._count -= 1
            self._metrics.readers.set(self._count)

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(METHOD, Shape.SERVER_STREAM, serve, node_pb2.ReadRequest, roles=(Role.READER,)),
    )


def without(entries: Sequence[Entry], holes: Sequence[tuple[int, int]]) -> tuple[Entry, ...]:
    """Return `entries` less the data in `holes`; control entries stay.  Nothing lies across the edge of a hole."""
    if not holes:
        return tuple(entries)
    kept = []
    for entry in entries:
        at = bisect_left(holes, entry.last, key=lambda hole: hole[1])  # the first hole that ends there or later
        if entry.kind is not Kind.DATA or at == len(holes) or entry.last < holes[at][0]:
            kept.append(entry)
    return tuple(kept)


def within(entries: Sequence[Entry], bytes_max: int) -> tuple[Entry, ...]:
    """Return the first entries, as many as have at most `bytes_max` bytes together."""
    ends = accumulate(entry.size for entry in entries)
    return tuple(entry for entry, end in zip(entries, ends, strict=True) if end <= bytes_max)


class _Reader:
    """One read on its way through the log."""

    def __init__(
        self, driver: Driver, routing: Routing, metrics: Metrics, budgets: Budgets, target: Target, context: Any,
        first: int, bytes_max: int, refusal: Callable[[], Refused | None],
    ) -> None:
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self._target = target
        self._shard = target.shard
        self._context = context
        self._budgets = budgets
        self._who = budgets.who(context)
        self._bytes_max = bytes_max     # of a frame, unless one entry is larger
        self._refusal = refusal
        self._position = first          # next offset to cover
        self._released = -1
        self._granted_at = 0.0

    async def run(self, until: int, tail: bool) -> None:
        await self._ask()
        if not tail and until < 0:
            latest = await self._ask_latest()
            while self._released < latest:  # the first frame says where "latest" is: not before it is known
                await self._wait()
        last = None if tail else (until if until >= 0 else self._released)
        sent = False
        while last is None or self._position <= last:
            if time.monotonic() - self._granted_at > ASK_AGAIN_SECONDS:
                await self._ask()
            if self._position > self._released:
                if not sent:
                    await self._say_where()
                    sent = True
                await self._wait()
                continue
            sent = await self._send_next(last) or sent
        if not sent:
            await self._say_where()

    async def _ask(self) -> None:
        """Ask whether the reader may read, and the core whether this node may serve."""
        if (refused := self._refusal()) is not None:
            await self._routing.refuse(self._context, refused, None)
        shard, position = self._shard, self._position
        answer: ReadGrant | Refused = await self._driver.ask_and_wait(
            lambda number: ReadRequest(shard, number, position)
        )
        if isinstance(answer, Refused):
            await self._routing.refuse(self._context, as_routed(answer), self._target)
        self._granted_at = time.monotonic()
        self._released = max(self._released, answer.released)

    async def _ask_latest(self) -> int:
        """Return where the log ends now, once the core has proved it (O46)."""
        shard = self._shard
        answer: Latest | Refused = await self._driver.ask_and_wait(lambda number: LatestRequest(shard, number))
        if isinstance(answer, Refused):
            await self._routing.refuse(self._context, as_routed(answer), self._target)
        return answer.offset

    async def _wait(self) -> None:
        """Wait for the released offset to move; woken without news means that leadership may be gone."""
        board = self._driver.board
        if board.upto(self._shard) <= self._released:
            await board.moved(self._shard, ASK_AGAIN_SECONDS)
        if board.upto(self._shard) > self._released:
            self._released = board.upto(self._shard)
        else:
            await self._ask()

    async def _send_next(self, last: int | None) -> bool:
        """Send what follows up to `last`, once there is room for it; say whether there was a frame."""
        least = FRAME_BYTES_MIN
        while True:
            grant = await self._budgets.frame(self._who, least, self._bytes_max)
            try:
                if time.monotonic() - self._granted_at > ASK_AGAIN_SECONDS:
                    await self._ask()   # it was a long wait
                entries = await self._slice(last, frame_bytes(grant))
                if not entries:
                    return False
                if not fitted(grant, sum(entry.size for entry in entries)):
                    least = max(least, entries[0].size)     # it goes out once there is room for all of it
                    entries = within(entries, frame_bytes(grant))
                    if not entries:
                        continue
                frame = await self._frame(entries)
                if frame is None:
                    return False
                await self._budgets.send(self._who, self._context, frame, grant)
                return True
            finally:
                grant.release()

    async def _slice(self, last: int | None, bytes_max: int) -> tuple[Entry, ...]:
        """Read the next entries; waits for the repair of a damaged one."""
        began = time.monotonic()
        while True:
            try:
                found = await self._driver.read(self._shard, self._position, self._released, bytes_max)
            except StoreFailed:
                await self._ask()   # answers with what a reloading node answers
                continue
            if found.entries:
                return found.entries if last is None else tuple(e for e in found.entries if e.base <= last)
            if found.damaged_at is None:
                await self._wait()
                return ()
            await self._ask()       # it may have been trimmed under us
            if time.monotonic() - began > REPAIR_SECONDS:
                damaged = Refused(
                    Reason.CORRUPT, f"the entry at offset {found.damaged_at} is damaged and no peer repaired it yet",
                    expected=found.damaged_at, retry_after_ms=1000,
                )
                await self._routing.refuse(self._context, damaged, self._target)
            self._driver.post(LogReadFailed(self._shard, None, found.damaged_at))
            await asyncio.sleep(REPAIR_RETRY_SECONDS)

    async def _refuse_lacking(self, entry: Entry) -> NoReturn:
        if self._driver.core.log.may_lack(self._shard, entry.last):
            await self._routing.refuse(self._context, NOT_HELD, self._target)
        self._driver.post(LogReadFailed(self._shard, None, entry.base))
        gone = f"the payload at offset {entry.base} is gone and no peer repaired it yet"
        damaged = Refused(Reason.CORRUPT, gone, expected=entry.base, retry_after_ms=1000)
        await self._routing.refuse(self._context, damaged, self._target)

    async def _say_where(self) -> None:
        """Tell the reader where the end is now."""
        await self._context.write(encode_read(ReadFrame(self._position, self._position - 1, self._released, ())))

    async def _frame(self, entries: tuple[Entry, ...]) -> Callable[[], bytes] | None:
        """Return what encodes the next frame, decided with what is known now; None when there is none.

        What was read a moment ago may be of a log that this node lost since; then it asks again how far it may serve.
        """
        through = entries[-1].last
        holes = self._driver.core.log.holes(self._shard, self._position, through)
        if holes is None:
            self._released = -1
            await self._ask()
            return None
        if len(holes) > HOLES_MAX:
            holes = holes[:HOLES_MAX]
            through = holes[-1][1]
            entries = tuple(entry for entry in entries if entry.last <= through)
        kept = without(entries, holes)
        lacking = next((entry for entry in kept if not entry.held), None)
        if lacking is not None:
            if lacking.base <= self._position:
                await self._refuse_lacking(lacking)
            through = lacking.base - 1
            kept, holes = kept[: kept.index(lacking)], [hole for hole in holes if hole[1] <= through]
        frame = ReadFrame(self._position, through, self._released, kept, tuple(holes))
        self._position = max(self._position, through + 1)
        self._metrics.read_bytes.inc(sum(entry.size for entry in kept))
        return partial(encode_read, frame)
