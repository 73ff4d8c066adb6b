"""Documents/Get, Scan, Pin, Unpin and Describe: the documents of the shards that this node holds.

The core grants a read first; rows come from one state of the store, read in a thread, in pages of bounded size (T12).
Rows that went with their replica in between are no answer: each state says how far it is folded.
Stays out: who may read and how far, pins and their leases (the core), writes (`appends`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.document_changes import failover_of
from tidemark_core.documents.payload import KEY_BYTES_MAX
from tidemark_core.documents.reading import (
    Behind,
    Document,
    NotPinned,
    check_pin,
    get,
    pinned,
    scan,
    scan_at,
)
from tidemark_core.documents.requests import (
    Level,
    PinDocuments,
    Pinned,
    ReadDocuments,
    ReadGranted,
    UnpinDocuments,
    Unpinned,
)
from tidemark_core.documents.rows import DOCS, PINNED, PINS, SUMMARY, load_without_pins, pinned_of, prefix
from tidemark_core.upr.history import FailoverLog
from tidemark_wire.budgets import Grant
from tidemark_wire.document_columns import pack
from tidemark_wire.identity import Role
from tidemark_wire.v1 import documents_pb2 as wire

from .access import Access
from .appends import as_routed
from .budgets import Budgets, fitted, frame_bytes
from .database import Snapshot
from .driver import RELOADING, Driver
from .methods import Cost, Method, Shape
from .metrics import Metrics
from .routing import Routing, Target
from .store_errors import StoreFailed

FAMILIES = (DOCS, SUMMARY, PINS, PINNED)
ANOTHER = "another"
"""Instead of the owner of a pin, to a client that is neither that nor an admin: no client sees another one's name."""
KEYS_MAX = 10_000
PAGE_BYTES_DEFAULT = 1 << 20
DOCUMENT_OVERHEAD_BYTES = 48    # of seqno, expiry and lengths of one document in an answer, rounded up
PAGE_BYTES_MIN = 16 << 10
PAGE_BYTES_MAX = 4 << 20
PAGE_ROWS_MAX = 10_000
"""Of each family; deletes and later versions give no documents, and a page of theirs may be empty."""
SHARD_BYTES = len(prefix(ShardId(0)))
ASK_AGAIN_SECONDS = 1.0
SCAN_WAIT_SECONDS = 1.0
"""So long a scan waits for a state of the store, less than a client takes for silence."""
STALL_SECONDS = 60.0
"""A reader that takes no page for so long gives up its state of the store (as U61 says of scans of changes)."""

LEVELS = {"": Level.LINEARIZABLE, **{level.name.lower(): level for level in Level}}

T = TypeVar("T")


class StateRows:
    """The rows of one state of the store as core reads them: one scan of a family at a time, and no `get` meanwhile."""

    def __init__(self, state: Snapshot) -> None:
        self.get = state.get
        self.scan = state.each


class _PageRows:
    """The rows of a state for one page of a scan: of each family of documents so many, up to a whole key."""

    def __init__(self, rows: StateRows) -> None:
        self.get = rows.get
        self.next: bytes | None = None      # the first key that may lack rows here, None where none does
        self._rows = rows

    def scan(self, family: str, first: bytes, behind: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        found = iter(self._rows.scan(family, first, behind))
        if family not in (DOCS, PINNED):
            yield from found
            return
        last = b""
        for last, value in islice(found, PAGE_ROWS_MAX):
            yield last, value
        for row, value in found:
            if (key := _key_of(family, row)) != _key_of(family, last):
                self.next = key if self.next is None else min(key, self.next)
                return
            yield row, value


def _key_of(family: str, row: bytes) -> bytes:
    return pinned_of(row)[0] if family == PINNED else row[SHARD_BYTES:]


class _Cut(NamedTuple):
    """The cut that a state shows, and the epoch of the entry there."""

    applied: int
    epoch: int


class _Ask(NamedTuple):
    """A read as it was asked for and granted; `least` is the cut that it has to show, `pin` has name and cut."""

    shard: ShardId
    target: Target
    least: int
    pin: tuple[str, int] | None


Reading = Callable[[Callable[["StateRows"], Any]], Awaitable[Any]]
"""Runs work on the rows of a state, in a thread."""


class _Refusal(Exception):
    """Ends a call, once what it holds is free: behind a page that is not read its status waits for the reader."""

    def __init__(self, refused: Refused, target: Target | None) -> None:
        super().__init__(refused.message)
        self.refused = refused
        self.target = target


class _Gone(LookupError):
    """The rows that a read was granted are gone with their replica."""


class _TooLarge(NamedTuple):
    """The first document alone has `size` bytes, more than the answer may have."""

    size: int


class DocumentCalls:
    """All callers who read, pin or look at documents."""

    def __init__(
        self, driver: Driver, routing: Routing, metrics: Metrics, access: Access, budgets: Budgets, lease_ms_max: int,
    ) -> None:
        self._lease_ms_max = lease_ms_max    # of a pin, which keeps what is overwritten meanwhile
        self._driver = driver
        self._routing = routing
        self._read_bytes = metrics.read_bytes
        self._gets, self._scans = (metrics.document_reads.labels(method) for method in ("Get", "Scan"))
        self._access = access
        self._budgets = budgets

    # --- reads --------------------------------------------------------------------------------------------

    async def get(self, request: Any, context: Any) -> bytes:
        """Handler of one read of some keys; a large answer ends early."""
        keys = list(request.keys)
        if not 1 <= len(keys) <= KEYS_MAX:
            await self._invalid(context, f"keys: {len(keys)} are asked for, must be 1 to {KEYS_MAX}")
        wrong = next((number for number, key in enumerate(keys) if not 1 <= len(key) <= KEY_BYTES_MAX), None)
        if wrong is not None:
            await self._invalid(
                context, f"keys: number {wrong} has {len(keys[wrong])} bytes, must have 1 to {KEY_BYTES_MAX}")
        ask = await self._granted(request, context)
        who, least = self._budgets.who(context), PAGE_BYTES_MIN
        while True:
            grant = await self._budgets.frame(who, least, PAGE_BYTES_DEFAULT)
            try:
                work = partial(_get, ask, keys, frame_bytes(grant))
                answer = await self._answered(ask, self._driver.deliver(partial(_in_state, work)))
            except _Refusal as refusal:
                grant.release()
                await self._routing.refuse(context, refusal.refused, refusal.target)
            except BaseException:
                grant.release()
                raise
            if isinstance(answer, _TooLarge):
                least = answer.size
                grant.release()
                continue
            fitted(grant, len(answer))
            self._gets.inc()
            self._read_bytes.inc(len(answer))
            context.add_done_callback(partial(_release, grant))
            return answer

    async def scan(self, request: Any, context: Any) -> None:
        """Handler of one scan: pages of one state of the store, or of the cut of a pin."""
        if len(request.first) > KEY_BYTES_MAX or len(request.until) > KEY_BYTES_MAX:
            await self._invalid(context, f"first and until have at most {KEY_BYTES_MAX} bytes")
        bytes_max = min(max(request.bytes_max or PAGE_BYTES_DEFAULT, PAGE_BYTES_MIN), PAGE_BYTES_MAX)
        ask = await self._granted(request, context)
        try:
            async with self._states(ask, self._budgets.who(context)) as state:
                await self._send_pages(ask, request, context, bytes_max, state)
        except _Refusal as refusal:
            await self._routing.refuse(context, refusal.refused, refusal.target)

    async def _send_pages(self, ask: _Ask, request: Any, context: Any, bytes_max: int, state: Reading) -> None:
        """Send all pages.  Raises _Refusal."""
        refusal = partial(
            self._access.refusal, self._access.caller(context), "Documents.Scan", (Role.READER,), request.group)
        first, until, left = request.first, request.until or None, request.documents_max or None
        who, least, judged_at = self._budgets.who(context), PAGE_BYTES_MIN, time.monotonic()
        while True:
            if time.monotonic() - judged_at > ASK_AGAIN_SECONDS:
                judged_at = time.monotonic()
                if (refused := refusal()) is not None:
                    raise _Refusal(refused, None)
            grant = await self._budgets.frame(who, least, max(least, bytes_max))
            try:
                work = partial(
                    _page, ask, first, until, left, frame_bytes(grant), request.keys_only, request.columns)
                page: _Page | _TooLarge = await self._answered(ask, state(work))
                if isinstance(page, _TooLarge):
                    least = page.size
                    continue
                fitted(grant, len(page.frame))
                await self._send(context, who, page.frame, grant)
            finally:
                grant.release()
            if page.next is None:
                return
            first, least = page.next, PAGE_BYTES_MIN
            left = None if left is None else left - page.documents

    @asynccontextmanager
    async def _states(self, ask: _Ask, who: str) -> AsyncIterator[Reading]:
        """Give what runs work on rows: of one state for the whole scan, at a pin of the newest for each page (U72).

        Raises _Refusal.
        """
        if ask.pin is not None:
            yield lambda work: self._driver.deliver(partial(_in_state, work))
            return
        try:
            async with asyncio.timeout(SCAN_WAIT_SECONDS):
                place = await self._budgets.scans.grant(who)
        except TimeoutError as full:
            raise _Refusal(self._budgets.refusal(self._budgets.scans, who), None) from full
        try:
            async with self._driver.hold(*FAMILIES) as held:
                yield lambda work: held.read(lambda state: work(StateRows(state)))
        except StoreFailed as closed:
            raise _Refusal(RELOADING, ask.target) from closed
        finally:
            place.release()

    async def _send(self, context: Any, who: str, frame: bytes, grant: Grant) -> None:
        """Send a page.  Raises _Refusal where its reader does not take it."""
        try:
            async with asyncio.timeout(STALL_SECONDS):
                refused = await self._budgets.sent(who, context, lambda: frame, grant)
        except TimeoutError as late:
            stalled = f"the reader took no page for {STALL_SECONDS:.0f} s: scan again from the last key, with min_seqno"
            raise _Refusal(Refused(Reason.OVERLOADED, stalled), None) from late
        if refused is not None:
            raise _Refusal(refused, None)
        self._scans.inc()
        self._read_bytes.inc(len(frame))

    async def _granted(self, request: Any, context: Any) -> _Ask:
        """Ask the core to grant a read (U53); refuses the call otherwise."""
        target = await self._find(request, context)
        level = LEVELS.get(request.level)
        if level is None:
            known = ", ".join(name for name in LEVELS if name)
            await self._invalid(context, f"level is {request.level!r}, must be one of {known}")
        if request.min_seqno < 0:
            await self._invalid(context, f"min_seqno is {request.min_seqno}, must be 0 or more")
        pin, least = None, request.min_seqno or -1
        if request.HasField("pin"):
            pin, level, least = (request.pin.name, request.pin.at), Level.FOLLOWER, request.pin.at
            if least < 0:
                await self._invalid(context, f"pin.at is {least}, must be 0 or more")
        shard = target.shard
        answer: ReadGranted | Refused = await self._driver.ask_and_wait(
            lambda number: ReadDocuments(shard, number, level, least))
        if isinstance(answer, Refused):
            await self._routing.refuse(context, as_routed(answer), target)
        return _Ask(shard, target, answer.applied, pin)

    async def _answered(self, ask: _Ask, work: Awaitable[T]) -> T:
        """Return what was read.  Raises _Refusal where that is no answer."""
        try:
            return await work
        except NotPinned as over:
            refused = Refused(Reason.NOT_PINNED, str(over))
        except Behind as behind:
            refused = Refused(Reason.BEHIND, str(behind), expected=behind.applied)
        except _Gone:
            refused = Refused(Reason.NO_REPLICA, "the documents are removed here; ask another member")
        except StoreFailed:
            refused = RELOADING
        raise _Refusal(refused, ask.target)

    # --- pins ---------------------------------------------------------------------------------------------

    async def pin(self, request: Any, context: Any) -> wire.PinDocumentsResponse:
        """Handler of one pin, or of the renewal of its lease."""
        name, ttl_ms, caller = request.name, request.ttl_ms, self._access.caller(context)
        if ttl_ms > self._lease_ms_max:
            await self._invalid(
                context,
                f"ttl_ms is {ttl_ms}, this node takes at most {self._lease_ms_max}: pin for less and renew the pin in "
                "time, or raise --subscription-lease-seconds-max")
        answer: Pinned = await self._lead(
            request, context, "Documents.Pin",
            lambda shard, number: PinDocuments(shard, number, name, ttl_ms, caller.owner))
        held = self._driver.core.log.documents((await self._find(request, context)).shard)
        return wire.PinDocumentsResponse(
            at=answer.at, epoch=answer.epoch, count=answer.count, digest=answer.digest.to_bytes(16, "big"),
            lineage=_lineage(held.failover, answer.at) if held is not None else b"",
        )

    async def unpin(self, request: Any, context: Any) -> wire.UnpinDocumentsResponse:
        """Handler of the end of a pin; that an admin ends another's is in the audit (U70b)."""
        name, caller = request.name, self._access.caller(context)
        target = await self._find(request, context)
        held = self._driver.core.log.documents(target.shard)
        pin = held.summary.pins.get(name) if held is not None else None
        owner = caller.owner
        if pin is not None and pin.owner not in ("", owner) and self._access.administers(caller, request.group):
            self._access.admin_acts(
                caller, "Documents.Unpin", f"pin {name!r} of {pin.owner} in {request.group!r}, shard {request.shard}")
            owner = ""
        await self._lead(
            request, context, "Documents.Unpin", lambda shard, number: UnpinDocuments(shard, number, name, owner))
        return wire.UnpinDocumentsResponse(existed=pin is not None)

    async def _lead(self, request: Any, context: Any, method: str, event: Callable[[ShardId, int], Any]) -> Any:
        """Return the leader's answer to a request; refuses the call with its refusal."""
        target = await self._find(request, context)
        answer: Pinned | Unpinned | Refused = await self._driver.ask_and_wait(partial(event, target.shard))
        if isinstance(answer, Refused):
            if answer.reason is Reason.PERMISSION_DENIED:
                self._access.denied(self._access.caller(context), method, request.group, answer.message)
            await self._routing.refuse(context, as_routed(answer), target)
        return answer

    # --- what a member has --------------------------------------------------------------------------------

    async def describe(self, request: Any, context: Any) -> wire.DescribeDocumentsResponse:
        """Handler of one look at what this member has folded."""
        target = await self._find(request, context)
        if self._driver.reloading:
            await self._routing.refuse(context, RELOADING, target)
        held = self._driver.core.log.documents(target.shard)
        if held is None:
            await self._routing.refuse(context, Refused(Reason.NOT_LEADER, "this node holds no such shard"), target)
        summary, now_ms, caller = held.summary, self._driver.now_ms(), self._access.caller(context)
        sees_all = self._access.administers(caller, request.group)
        return wire.DescribeDocumentsResponse(
            applied=summary.applied, epoch=summary.epoch, count=summary.count,
            digest=summary.digest.to_bytes(16, "big"), purged=summary.purged, tombstones=summary.tombstones,
            pins=[
                wire.ActivePin(
                    name=name, at=pin.at, expires_in_ms=pin.until_ms - now_ms, kept_bytes=pin.kept_bytes,
                    owner=pin.owner if sees_all or pin.owner in ("", caller.owner) else ANOTHER,
                )
                for name, pin in sorted(summary.pins.items())
            ],
            failover_log=[
                wire.FailoverEntry(epoch=each.epoch, lineage=each.lineage, history=each.id, head=each.head)
                for each in held.failover.openings
            ],
        )

    # --- what all of them check ---------------------------------------------------------------------------

    async def _find(self, request: Any, context: Any) -> Target:
        target = self._routing.find(request.group, request.shard, request.group_id)
        if isinstance(target, Refused):
            await self._routing.refuse(context, target, None)
        if not target.has_documents:
            wrong = Refused(Reason.WRONG_KIND, f"{request.group!r} is of kind {target.group.kind}, it has no documents")
            await self._routing.refuse(context, wrong, None)
        return target

    async def _invalid(self, context: Any, what: str) -> NoReturn:
        await self._routing.refuse(context, Refused(Reason.INVALID_SPEC, what), None)

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Documents.Get", Shape.UNARY, get, wire.GetDocumentsRequest, wire.GetDocumentsResponse,
            roles=(Role.READER,),
        ),
        Method(
            "Documents.Scan", Shape.SERVER_STREAM, scan, wire.ScanDocumentsRequest, wire.ScanDocumentsPage,
            roles=(Role.READER,),
        ),
        Method(
            "Documents.Pin", Shape.UNARY, pin, wire.PinDocumentsRequest, wire.PinDocumentsResponse,
            roles=(Role.READER,),
        ),
        Method(
            "Documents.Unpin", Shape.UNARY, unpin, wire.UnpinDocumentsRequest, wire.UnpinDocumentsResponse,
            roles=(Role.READER,),
        ),
        Method(
            "Documents.Describe", Shape.UNARY, describe, wire.DescribeDocumentsRequest,
            wire.DescribeDocumentsResponse, roles=tuple(Role), cost=Cost.CALL,
        ),
    )


# --- in a thread ------------------------------------------------------------------------------------------


class _Page(NamedTuple):
    """An encoded page of a scan; `next` is the first key behind it, None behind the last one."""

    frame: bytes
    documents: int
    next: bytes | None


def _in_state(work: Callable[[StateRows], T], store: Any) -> T:
    with store.snapshot(*FAMILIES) as state:
        return work(StateRows(state))


def _cut(rows: StateRows, ask: _Ask) -> _Cut:
    """Return the cut that these rows show.  Raises Behind, NotPinned and _Gone."""
    summary = load_without_pins(ask.shard, rows)
    if summary is None or summary.applied < ask.least:
        raise _Gone
    if ask.pin is None:
        return _Cut(summary.applied, summary.epoch)
    pin = check_pin(rows, ask.shard, *ask.pin)
    return _Cut(pin.at, pin.epoch)


def _lineage(failover: FailoverLog, seqno: int) -> bytes:
    """Return the lineage that wrote `seqno`; none for a shard that is older than lineages."""
    return failover.id_at(seqno).lineage if failover.openings else b""


def _get(ask: _Ask, keys: list[bytes], bytes_max: int, rows: StateRows) -> bytes | _TooLarge:
    """Return the encoded answer to a read of keys: as many as fit, at least one.  Raises Behind, NotPinned, _Gone."""
    cut = _cut(rows, ask)
    find = partial(get, rows, ask.shard) if ask.pin is None else partial(pinned, rows, ask.shard, ask.pin[1])
    found: list[wire.Document] = []
    size = answered = 0
    for place, key in enumerate(keys):
        document = find(key)
        if document is not None:
            size += _size(document)
            if size > bytes_max:
                if not answered:
                    return _TooLarge(size)
                break
            found.append(wire.Document(
                seqno=document.seqno, expires_at_ms=document.expires_at_ms, value=document.value, place=place))
        answered += 1
    return wire.GetDocumentsResponse(
        applied=cut.applied, epoch=cut.epoch, documents=found, answered=answered).SerializeToString()


def _page(
    ask: _Ask, first: bytes, until: bytes | None, documents_max: int | None, bytes_max: int, keys_only: bool,
    columns: bool, rows: StateRows,
) -> _Page | _TooLarge:
    """Return the next page of a scan.  Raises Behind, NotPinned, _Gone."""
    cut = _cut(rows, ask)
    bounded = _PageRows(rows)
    documents: Iterable[Document] = (
        scan(bounded, ask.shard, first, until) if ask.pin is None
        else scan_at(bounded, ask.shard, *ask.pin, first, until)
    )
    keys: list[bytes] = []
    values: list[bytes] = []
    seqnos: list[int] = []
    expiries: list[int] = []
    size, onward = 0, None
    for key, seqno, expires_at_ms, value in documents:
        if documents_max is not None and len(keys) == documents_max:
            break
        if bounded.next is not None and key >= bounded.next:
            onward = bounded.next
            break
        if keys_only:
            value = b""
        size += len(key) + len(value) + DOCUMENT_OVERHEAD_BYTES
        if size > bytes_max:
            if not keys:
                return _TooLarge(size)
            onward = key
            break
        keys.append(key)
        values.append(value)
        seqnos.append(seqno)
        expiries.append(expires_at_ms)
    else:
        if documents_max is None or len(keys) < documents_max:
            onward = bounded.next
    page = wire.ScanDocumentsPage(
        applied=cut.applied, epoch=cut.epoch, lineage=_lineage(failover_of(ask.shard, rows), cut.applied),
        last=onward is None)
    if columns:
        page.columns.CopyFrom(pack(keys, values, seqnos, expiries))
    else:
        page.documents.extend(
            wire.Document(key=key, seqno=seqno, expires_at_ms=expires_at_ms, value=value)
            for key, seqno, expires_at_ms, value in zip(keys, seqnos, expiries, values, strict=True))
    return _Page(page.SerializeToString(), len(keys), onward)


def _release(grant: Grant, _: Any) -> None:
    grant.release()


def _size(document: Document) -> int:
    """Return about how many bytes a document takes in an answer."""
    return len(document.key) + len(document.value) + DOCUMENT_OVERHEAD_BYTES
