"""Scans of documents by key: shard by shard side by side, or merged into the order of the keys (U53, U72).

One scan shows one state of each shard.  Where a call breaks, a scan at a pin goes on in that same state; any other one
goes on in a state that is not older, and then has no cut of that shard.
Stays out: which node is asked (document_calls).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc.aio
import pyarrow as pa
import pyarrow.compute as pc
from tidemark_core.base.ids import shard_id
from tidemark_core.documents.payload import KEY_BYTES_MAX
from tidemark_core.upr.history import Point
from tidemark_core.upr.positions import Scope, Token, encode, wrong_point
from tidemark_wire import channel as wire
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tasks import cancelled
from tidemark_wire.v1 import documents_pb2

from .arrow import DOCUMENTS
from .document import Cut, Document
from .document_calls import ELSEWHERE, DocumentCalls, View
from .errors import Closed, InvalidArgument, Unavailable, error_of
from .home import Home
from .iterating import Iteration, Steps, Take
from .retrying import Backoff, closed_below

T = TypeVar("T")

SHARDS_AT_ONCE = 16
"""Shards that one scan reads side by side; a scan in the order of keys reads all of them."""
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 64 << 10, 1 << 20


def behind_prefix(prefix: bytes) -> bytes:
    """Return the first key behind all those with a prefix; empty where no key is."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else b""


def behind_key(key: bytes) -> bytes:
    """Return the first key that may follow `key`; empty where none does."""
    return key + b"\0" if len(key) < KEY_BYTES_MAX else behind_prefix(key)


@dataclass(frozen=True, slots=True)
class Page:
    """Documents of one shard by key, as the columns `tidemark.arrow.DOCUMENTS`."""

    shard: int
    record_batch: pa.RecordBatch

    @classmethod
    def of(cls, shard: int, sent: documents_pb2.ScanDocumentsPage) -> Page:
        """Read a page as a node sent it.  Raises Unavailable where its columns do not fit together."""
        try:
            columns = _columns(sent.columns) if sent.HasField("columns") else _columns_of_messages(sent.documents)
            shards = pa.repeat(pa.scalar(shard, pa.int32()), len(columns[0]))
            record_batch = pa.RecordBatch.from_arrays([shards, *columns], schema=DOCUMENTS)
            record_batch.validate(full=True)    # Arrow follows offsets without a look
        except pa.ArrowInvalid as error:
            raise Unavailable(f"a page of shard {shard} cannot be read: {error}") from error
        return cls(shard, record_batch)

    def __len__(self) -> int:
        return int(self.record_batch.num_rows)

    def __iter__(self) -> Iterator[Document]:
        shard = self.shard
        keys, values, seqnos, expiries = (column.to_pylist() for column in self.record_batch.columns[1:])
        return (
            Document(key, value, seqno, shard, expires_at_ms or 0)
            for key, value, seqno, expires_at_ms in zip(keys, values, seqnos, expiries, strict=True))

    def __getitem__(self, some: slice) -> Page:
        return Page(self.shard, self.record_batch[some])

    @property
    def last_key(self) -> bytes:
        """Return the key of the last document; there is one."""
        return cast(bytes, self.record_batch.column("key")[-1].as_py())


def _columns(sent: documents_pb2.DocumentColumns) -> list[pa.Array]:
    """Return key, value, seqno and expiry of documents, without a Python object for each.

    Raises pyarrow.ArrowInvalid for a column of another length.
    """
    count = sent.count
    offsets, numbers = 4 * (count + 1), 8 * count
    lengths = len(sent.key_offsets), len(sent.value_offsets), len(sent.seqnos), len(sent.expires_at_ms) or numbers
    if lengths != (offsets, offsets, numbers, numbers):
        raise pa.ArrowInvalid(f"{count} documents have columns of {lengths} bytes")
    keys, values = (
        pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
        for offsets, data in ((sent.key_offsets, sent.keys), (sent.value_offsets, sent.values)))
    seqnos = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(sent.seqnos)])
    if not sent.expires_at_ms:
        return [keys, values, seqnos, pa.nulls(count, pa.int64())]
    expiries = pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(sent.expires_at_ms)])
    return [keys, values, seqnos, pc.if_else(pc.equal(expiries, 0), pa.scalar(None, pa.int64()), expiries)]


def _columns_of_messages(sent: Sequence[documents_pb2.Document]) -> list[pa.Array]:
    """Return the same of a node that does not know columns."""
    return [
        pa.array([each.key for each in sent], pa.binary()), pa.array([each.value for each in sent], pa.binary()),
        pa.array([each.seqno for each in sent], pa.int64()),
        pa.array([each.expires_at_ms or None for each in sent], pa.int64())]


class ShardScan:
    """The part of a scan that one shard answers."""

    def __init__(
        self, calls: DocumentCalls, shard: int, view: View, first: bytes, until: bytes, *, keys_only: bool,
        limit: int | None, page_bytes: int,
    ) -> None:
        self.shard = shard
        self.cut: Cut | None = None     # of the state shown, None before the first page
        self.states = 0                 # states that pages came from
        self._calls = calls
        self._view = view
        self._next = first
        self._until = until
        self._keys_only = keys_only
        self._left = limit
        self._page_bytes = page_bytes
        self._call: grpc.aio.UnaryStreamCall[Any, Any] | None = None
        self._page: documents_pb2.ScanDocumentsPage | None = None   # that came when the call began
        self._done = False

    async def next_page(self) -> Page | None:
        """Return the next documents by key, None at the end; raises RequestRefused, Unavailable."""
        deadline, backoff = self._calls.deadline(), Backoff()
        while not self._done:
            try:
                with closed_below():
                    page = await self._read(deadline)
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                self._drop()
                self._judge(error, deadline)
                await asyncio.sleep(min(backoff.next(), max(0.0, deadline - asyncio.get_running_loop().time())))
                continue
            found = Page.of(self.shard, page)
            if page.last or (self._left is not None and len(found) >= self._left):
                self._done = True
                self._drop()
            if found:
                self._next = behind_key(found.last_key)
                self._done |= not self._next
                if self._left is not None:
                    self._left -= len(found)
                return found
            deadline = self._calls.deadline()   # an empty page came through deleted documents
        return None

    def _judge(self, error: grpc.aio.AioRpcError | TimeoutError, deadline: float) -> None:
        """Raise what another call would not change."""
        hinted = refusal_from_rpc_error(error) if isinstance(error, grpc.aio.AioRpcError) else None
        if hinted is not None and hinted.refused.reason not in ELSEWHERE:
            raise error_of(hinted.refused) from error
        if asyncio.get_running_loop().time() >= deadline:
            raise Unavailable(
                f"the scan of shard {self.shard} of {self._calls.group_name!r} came no further within "
                f"{self._calls.timeout_s:g} s ({error or 'silence'})"
            ) from error

    async def _read(self, deadline: float) -> documents_pb2.ScanDocumentsPage:
        if self._call is None:
            self._call, page = await self._calls.read(self.shard, self._view, self._open, deadline)
            self._note(page)
            return page
        async with asyncio.timeout_at(deadline):
            return await _read(self._call)

    async def _open(
        self, address: str, left_s: float
    ) -> tuple[grpc.aio.UnaryStreamCall[Any, Any], documents_pb2.ScanDocumentsPage]:
        """Begin a call and wait for its first page."""
        request = documents_pb2.ScanDocumentsRequest(
            group=self._calls.group_name, shard=self.shard, first=self._next, until=self._until,
            documents_max=self._left or 0, bytes_max=self._page_bytes, keys_only=self._keys_only,
            columns=True, **self._view.fields(),
        )
        call: Any = self._calls.stub(address).Scan(request, metadata=wire.hello_metadata())
        try:
            async with asyncio.timeout(left_s):
                page = await _read(call)
        except BaseException:
            call.cancel()
            raise
        return call, page

    def _note(self, page: documents_pb2.ScanDocumentsPage) -> None:
        if self.states == 0 or self._view.pin is not None:
            self.states = 1
        else:
            self.states += 1
        self.cut = Cut(page.applied, page.epoch, page.lineage)
        if self._view.pin is None:
            self._view = self._view._replace(min_seqno=max(self._view.min_seqno, page.applied))

    def _drop(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()

    @property
    def reading(self) -> bool:
        """Say whether there may be more documents."""
        return not self._done

    def close(self) -> None:
        """Stop; no page follows."""
        self._drop()


def position_of(scope: Scope, cuts: Mapping[int, Cut]) -> str | None:
    """Return the token of these states, None where one of them does not say its place in history."""
    points = {
        shard_id(scope.group, shard): Point(cut.lineage, cut.epoch, cut.seqno) for shard, cut in cuts.items()
    }
    if any(wrong_point(point) is not None for point in points.values()):
        return None
    return encode(Token(scope, points))


async def _read(call: Any) -> documents_pb2.ScanDocumentsPage:
    page: Any = await call.read()
    if page is grpc.aio.EOF:
        raise TimeoutError("the node ended the stream early")
    return cast(documents_pb2.ScanDocumentsPage, page)


class Scan:
    """Documents by key.  Made by `Documents.scan`; iterate over it, or over its `pages()`.

    Leave an iteration early with `await scan.close()`, or use the scan with `async with`.
    """

    def __init__(
        self, home: Home, parts: Sequence[ShardScan], scope: Scope | None, *, ordered: bool, limit: int | None
    ) -> None:
        self._home = home
        self._parts = list(parts)
        self._scope = scope             # of changes that go on behind it, None where none can
        self._left = limit
        self._reading: dict[asyncio.Task[Page | None], ShardScan] = {}
        self._begun = False
        self._merges = ordered and len(self._parts) > 1
        self._steps: Steps[Any] | None = None

    @property
    def cuts(self) -> Mapping[int, Cut]:
        """The state shown of each shard, once its first page came: the position from which changes go on.

        A shard whose documents came from more than one state is not in it.
        """
        return {part.shard: part.cut for part in self._parts if part.cut is not None and part.states == 1}

    @property
    def position(self) -> str | None:
        """The position from which `Client.changes` goes on without a gap, once the scan is at its end.

        None for a scan with a limit or of some shards, and where a shard showed more than one state.
        """
        if self._scope is None or any(part.reading for part in self._parts):
            return None
        cuts = self.cuts
        return position_of(self._scope, cuts) if len(cuts) == len(self._parts) else None

    def pages(self) -> Iteration[list[Document]]:
        """Iterate over documents page by page; each page is of one shard unless the scan is ordered.

        A timeout of `anext` ends no iteration of a scan: the next page comes with the next call.
        """
        return self._iteration(self._next_page)

    def record_batches(self) -> Iteration[pa.RecordBatch]:
        """Iterate over documents page by page as the columns `tidemark.arrow.DOCUMENTS`.

        Each is of one shard, by key; the first one raises InvalidArgument for an ordered scan of several shards.
        """
        return Iteration(self._next_record_batch, begin=self._begin_columns, close=self.close)

    def __aiter__(self) -> Iteration[Document]:
        return self._iteration(self._next_documents)

    def _iteration(self, take: Take[T]) -> Iteration[T]:
        return Iteration(take, begin=self._begin, close=self.close)

    async def _next_documents(self) -> list[Document] | None:
        """Return the documents of the next page, None at the end."""
        page = await self._next()
        return None if page is None else list(page)

    async def _next_page(self) -> tuple[list[Document]] | None:
        documents = await self._next_documents()
        return None if documents is None else (documents,)

    async def _next_record_batch(self) -> tuple[pa.RecordBatch] | None:
        page = await self._next()
        return None if page is None else (page.record_batch,)

    async def _next(self) -> Any:
        """Return the next page, as far as the limit allows and a list where pages are merged; None at the end."""
        if self._steps is None or self._left == 0:
            return None     # closed meanwhile, or enough
        page: Any = await self._steps.next()
        if page is not None and self._left is not None:
            page = page[:self._left]
            self._left -= len(page)
        return page

    async def to_arrow(self) -> pa.Table:
        """Return all documents as one table; raises as `record_batches`."""
        return pa.Table.from_batches([batch async for batch in self.record_batches()], schema=DOCUMENTS)

    async def _begin(self) -> None:
        self._home.check()
        if self._begun:
            raise Closed("the scan was read before", advice="Begin a new scan.")
        self._begun = True
        self._steps = Steps(self._merged() if self._merges else self._side_by_side())

    async def _begin_columns(self) -> None:
        if self._merges:
            raise InvalidArgument("ordered", "is True, and record batches are of one shard each: read pages()")
        await self._begin()

    def _read(self, part: ShardScan) -> asyncio.Task[Page | None]:
        task = asyncio.create_task(part.next_page(), name="tidemark-scan-documents")
        self._reading[task] = part
        return task

    async def _side_by_side(self) -> AsyncGenerator[Page, None]:
        to_begin = iter(self._parts)
        for part in itertools.islice(to_begin, SHARDS_AT_ONCE):
            self._read(part)
        while self._reading:
            done, _ = await asyncio.wait(self._reading, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                part, page = self._reading.pop(task), task.result()
                if page is not None:
                    self._read(part)
                    yield page
                elif (following := next(to_begin, None)) is not None:
                    self._read(following)

    async def _merged(self) -> AsyncGenerator[list[Document], None]:
        """Yield the documents of all shards by key; a page holds what is known to come next."""
        reads = {part.shard: self._read(part) for part in self._parts}
        parts = {part.shard: part for part in self._parts}
        heads: list[tuple[bytes, int]] = []                # the next key of each shard
        pages: dict[int, list[Document]] = {}              # in reverse order

        async def fill(shard: int) -> None:
            task = reads.pop(shard)
            page = await task
            self._reading.pop(task, None)
            if page is not None:
                pages[shard] = list(page)[::-1]
                heapq.heappush(heads, (pages[shard][-1].key, shard))
                reads[shard] = self._read(parts[shard])

        for shard in list(reads):
            await fill(shard)
        merged: list[Document] = []
        while heads:
            _, shard = heapq.heappop(heads)
            page = pages[shard]
            merged.append(page.pop())
            if page:
                heapq.heappush(heads, (page[-1].key, shard))
                continue
            yield merged
            merged = []
            await fill(shard)
        if merged:
            yield merged

    async def close(self) -> None:
        """Stop; documents that are under way are dropped."""
        self._home.check()
        self._begun = True
        steps, self._steps = self._steps, None
        if steps is not None:
            await steps.close()
        reading, self._reading = list(self._reading), {}
        await cancelled(*reading)
        for part in self._parts:
            part.close()

    async def __aenter__(self) -> Scan:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
