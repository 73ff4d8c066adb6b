"""Documents/Changes on a fake node: the core's own serving machine over the fake documents.

Faults are scripted by the test: connections that break after some messages, ends, malformed frames, lagging nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from typing import Any

import grpc
import grpc.aio
from fake_documents import SHARD, FakeDocuments, Folded
from tidemark_core.base.entry import Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import shard_id
from tidemark_core.document_changes import row_of, said
from tidemark_core.documents.rows import BYSEQ, DOCS, decode_row, doc_key, seqno_key
from tidemark_core.upr.cookies import Cookies
from tidemark_core.upr.decision import Asked, Here
from tidemark_core.upr.feed import Folded as Fed
from tidemark_core.upr.history import FailoverLog, Opening
from tidemark_core.upr.messages import Advanced, End, EndReason, Row, StreamEnd, size_of
from tidemark_core.upr.positions import Position, Scope
from tidemark_core.upr.serving import Cut, Done, Limits, ReadPage, Release, Say, Serving, TakeCut, Wait
from tidemark_wire.changes import (
    CHANGES,
    Ack,
    AskIndex,
    Barrier,
    Close,
    Cookie,
    Index,
    NoIndex,
    Open,
    Said,
    decode_requests,
    encode_answers,
)

LINEAGE = b"fake" * 4
LOOK_S = 0.005


class ChangeFaults:
    """The faults of one node's change streams, and what it sent and heard."""

    def __init__(self) -> None:
        self.breaks: deque[int] = deque()            # each connection breaks after so many messages
        self.garbage: deque[int] = deque()           # and these send a malformed frame then
        self.ends: deque[StreamEnd] = deque()        # given to the next streams, in turn
        self.purged = 0
        self.lineage = LINEAGE
        self.opens: list[Open] = []
        self.sent: dict[tuple[int, int], int] = {}   # bytes by connection and stream
        self.acked: dict[tuple[int, int], int] = {}
        self.most_owed = 0
        self.connections = 0


def rows_between(folded: Folded, after: int, upto: int) -> list[Row]:
    found = []
    for _, value in folded.rows.scan(BYSEQ, seqno_key(SHARD, after + 1), seqno_key(SHARD, upto + 1)):
        stored = folded.rows.get(DOCS, doc_key(SHARD, value[1:]))
        assert stored is not None
        found.append(row_of(value[1:], decode_row(stored)))
    return found


def failover_of(documents: FakeDocuments, lineage: bytes) -> FailoverLog:
    starts = [each for each in documents.shard.entries if each.kind is Kind.EPOCH_START]
    return FailoverLog(tuple(Opening(each.epoch, lineage, each.base - 1) for each in reversed(starts)))


class _Stream:
    def __init__(self, number: int, documents: FakeDocuments, node: Any, request: Open, group_id: int) -> None:
        self.number = number
        self.documents = documents
        self.node = node
        self.shard = shard_id(group_id, request.shard)
        scope = Scope(group_id, request.wanted.digest, request.history)
        asked = Asked(self.shard, scope, Position(request.scope, self.shard, request.point), request.partial)
        limits = Limits(window_bytes=request.window, page_bytes=4_000, message_bytes=2_000, advance_ms=20)
        self.certain = request.certain
        self.serving = Serving(now_ms(), asked, request.wanted, limits, skip_deletes=request.skip_deletes)
        self.fed = -1
        self.snapshot: list[Row] = []
        self.over = False

    @property
    def failover(self) -> FailoverLog:
        return failover_of(self.documents, self.node.changes.lineage)

    def look(self) -> None:
        """Feed what was folded since; one entry for all of it, as a fold of a slice is."""
        folded = self.documents.at(self.node.name)
        end = folded.summary.applied
        if self.serving.feed.open and end > self.fed >= -1:
            rows = rows_between(folded, self.fed, end)
            self.serving.folded(now_ms(), Fed(self.failover.point(end), tuple(rows), 100, said(folded.summary)))
            self.fed = end

    def step(self) -> Any:
        """Return what is to be said, None when there is nothing."""
        while True:
            self.look()
            match self.serving.step(now_ms()):
                case TakeCut():
                    folded = self.documents.at(self.node.name)
                    self.fed = end = folded.summary.applied
                    self.snapshot = rows_between(folded, -1, end)
                    here = Here(end, self.node.changes.purged, self.failover, 0, end if self.certain else None)
                    self.serving.took(now_ms(), Cut(here, said(folded.summary)))
                case ReadPage(after, upto, _):
                    page = [row for row in self.snapshot if after < row.seqno <= upto][:7]
                    self.serving.scanned(page, page[-1].seqno if len(page) == 7 else upto)
                case Release():
                    pass
                case Say(message):
                    return message
                case Wait():
                    return None
                case Done():
                    self.over = True
                    return None


class ChangesHandler:
    """The method of one fake node."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def register(self, server: grpc.aio.Server) -> None:
        service, _, method = CHANGES.strip("/").partition("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(self.serve)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    async def serve(self, _: Any, context: Any) -> None:
        await _Connection(self.node, context).run()


class _Connection:
    def __init__(self, node: Any, context: Any) -> None:
        self.node = node
        self.faults: ChangeFaults = node.changes
        self.context = context
        self.faults.connections += 1
        self.number = self.faults.connections
        self.streams: dict[int, _Stream] = {}
        self.cookies = Cookies()
        self.left = self.faults.breaks.popleft() if self.faults.breaks else -1
        self.garbage = self.faults.garbage.popleft() if self.faults.garbage else -1
        self.messages = 0
        self.ended = False
        self.writing = asyncio.Lock()

    async def run(self) -> None:
        listener = asyncio.create_task(self._listen())
        try:
            while not self.ended:
                await self.node.paused.wait()
                if not [await self._send(stream) for stream in list(self.streams.values()) if not stream.over].count(
                        True):
                    await asyncio.sleep(LOOK_S)
        finally:
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)

    async def _send(self, stream: _Stream) -> bool:
        message = stream.step()
        if message is None:
            return False
        if self.messages == self.left:
            await self.context.abort(grpc.StatusCode.UNAVAILABLE, "the node is stopping")
        if self.messages == self.garbage:
            await self._write(b"\x0b\0\0\0\1\0\0\0\4\xff\xff\xff\xff")
        self.messages += 1
        if not isinstance(message, StreamEnd):
            key = self.number, stream.number
            self.faults.sent[key] = self.faults.sent.get(key, 0) + size_of(message)
            self.faults.most_owed = max(self.faults.most_owed, stream.serving.credit.owed)
        answers: list[Any] = [Said(stream.number, message)]
        if isinstance(message, End | Advanced):
            answers += [Cookie(each) for each in self.cookies.on_said(stream.shard, stream.serving.said)]
        await self._write(encode_answers(answers))
        return True

    async def _write(self, frame: bytes) -> None:
        async with self.writing:
            await self.context.write(frame)

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError, RemoteViolation):
            while (frame := await self.context.read()) is not grpc.aio.EOF:
                for request in decode_requests(frame):
                    await self._on(request)
        self.ended = True

    async def _on(self, request: Any) -> None:
        cluster = self.node.cluster
        match request:
            case Open():
                self.faults.opens.append(request)
                documents = cluster.groups[request.group][request.shard].documents
                group_id = cluster.group_ids[request.group]
                stream = _Stream(request.stream, documents, self.node, request, group_id)
                if self.faults.ends:
                    end = self.faults.ends.popleft()
                    stream.serving.end(end.reason, end.message, end.refusal)
                self.streams[request.stream] = stream
            case Ack():
                if (stream := self.streams.get(request.stream)) is not None:
                    self.faults.acked[self.number, request.stream] = request.total
                    stream.serving.acknowledged(now_ms(), request.total)
            case Close():
                if (stream := self.streams.get(request.stream)) is not None:
                    stream.serving.end(EndReason.CLOSED)
            case Barrier():
                targets = {self.streams[number].shard: seqno for number, seqno in request.targets.items()}
                said_now = {each.shard: each.serving.said for each in self.streams.values()}
                back = self.cookies.add(request.cookie, targets, said_now)
                assert isinstance(back, list)
                for number, seqno in request.targets.items():
                    self.streams[number].serving.barrier(seqno)
                await self._write(encode_answers([Cookie(each) for each in back])) if back else None
            case AskIndex():
                shard = cluster.groups[request.group][request.shard]
                if shard.leader != self.node.name:
                    answer: Any = NoIndex(request.stream, "not the leader")
                else:
                    applied = shard.documents.through(-1).summary.applied
                    answer = Index(request.stream, applied, failover_of(shard.documents, self.faults.lineage))
                await self._write(encode_answers([answer]))


def now_ms() -> int:
    return int(time.monotonic() * 1000)
