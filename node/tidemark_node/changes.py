"""Documents/Changes: change streams of documents, the node's side of one connection with many shards (U54-U69, T12).

Each stream has a task that runs the steps of its state machine: it takes snapshots of the store, reads pages in a
thread, and sends.  The fold hands every batch to the streams of its shard.
Stays out: what is sent next and what a position is worth (core's `upr`), how rows are read (`change_pages`), frames
(wire's `changes`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any, ClassVar

import grpc.aio
from tidemark_core.base.effects import Changed
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId
from tidemark_core.base.layout import UnknownFamily
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.document_changes import cut_of, fed
from tidemark_core.documents.requests import Level as ReadLevel
from tidemark_core.documents.requests import ReadDocuments, ReadGranted
from tidemark_core.documents.rows import BYSEQ, DOCS, SUMMARY
from tidemark_core.upr.cookies import Cookies
from tidemark_core.upr.decision import Asked, NotMyShard
from tidemark_core.upr.messages import Advanced, Confirmed, End, EndReason, Message, Rows, StreamEnd, size_of
from tidemark_core.upr.positions import History, Position, PositionRefused, Scope
from tidemark_core.upr.serving import (
    Cut,
    Done,
    Limits,
    Phase,
    ReadEntries,
    ReadPage,
    Release,
    Say,
    Serving,
    TakeCut,
    Wait,
)
from tidemark_core.upr.silence import Due, MemberSilence
from tidemark_wire.budgets import Grant
from tidemark_wire.changes import (
    Ack,
    Answer,
    AskIndex,
    Barrier,
    BarrierRejected,
    Close,
    Cookie,
    Index,
    Level,
    NoIndex,
    Noop,
    Open,
    Request,
    Said,
    decode_requests,
    encode_answers,
)
from tidemark_wire.identity import Role
from tidemark_wire.tasks import cancelled

from .access import Access
from .budgets import LARGE_FRAME_SECONDS, Budgets, fitted
from .change_pages import page
from .database import Snapshot
from .documents import StateRows
from .driver import Driver
from .held_snapshot import HeldSnapshot
from .methods import PEOPLE, Method, Shape
from .metrics import Metrics
from .routing import Routing
from .store_errors import StoreDamaged, StoreFailed

METHOD = "Documents.Changes"
FRAME_BYTES = 256 << 10
ACCESS_SECONDS = 1.0
"""So often a connection looks whether its caller still has access, and for silence."""
STOP_SECONDS = 1.0
STALL_SECONDS = 60.0
"""A consumer that lets one frame wait for so long is given up: its streams hold snapshots meanwhile (U61)."""
QUESTIONS_MAX = 256
"""Read indexes that one connection waits for."""

_log = logging.getLogger(__name__)


class Changes:
    """All change streams of the node."""

    def __init__(self, driver: Driver, routing: Routing, metrics: Metrics, access: Access, budgets: Budgets) -> None:
        self.driver = driver
        self.routing = routing
        self.metrics = metrics
        self.access = access
        self.budgets = budgets
        self.limits = Limits(feed_bytes=budgets.feed_bytes)
        self.stopping = False
        self._connections: dict[_Connection, None] = {}
        self._followed: dict[ShardId, dict[_Stream, None]] = {}
        driver.on_changed = self._on_changed
        metrics.change_streams.set_function(lambda: sum(map(len, self._followed.values())))

    async def serve(self, _: Any, context: Any) -> None:
        """Handler of one connection; ends when the consumer has closed its side, or the node stops."""
        connection = _Connection(self, context)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]

    async def stop(self) -> None:
        """End every stream, for this node stops; return when each got its last message, or time is up."""
        self.stopping = True
        tasks: set[asyncio.Task[None]] = set()
        for connection in self._connections:
            connection.end_all(EndReason.SHUTTING_DOWN, "the node stops")
            tasks |= connection.tasks
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_SECONDS)
        # A call that ends with a status brings its last message; one that ends with the server may lose it.
        for connection in list(self._connections):
            connection.leave(Refused(Reason.SHUTTING_DOWN, "the node stops"))

    def follow(self, stream: _Stream) -> None:
        self._followed.setdefault(stream.shard, {})[stream] = None

    def unfollow(self, stream: _Stream) -> None:
        followed = self._followed[stream.shard]
        del followed[stream]
        if not followed:
            del self._followed[stream.shard]

    def describe(self, shard: ShardId | None) -> list[dict[str, Any]]:
        """Return the streams of one shard or of all, ready for JSON."""
        return [
            stream.describe() for of, streams in self._followed.items() if shard in (None, of) for stream in streams
        ]

    def _on_changed(self, changed: Changed) -> None:
        streams = self._followed.get(changed.shard)
        if not streams:
            return
        changes = changed.changes
        entry = fed(changes)
        now_ms = _now_ms()
        for stream in list(streams):
            stream.on_folded(now_ms, changes.since, entry)

    # The groups are named in the frames: each OPEN is judged there.
    METHODS: ClassVar[tuple[Method, ...]] = (Method(METHOD, Shape.BIDI, serve, kinds=PEOPLE),)


class _Connection:
    """One consumer's connection: a task that listens, and one for each stream."""

    def __init__(self, changes: Changes, context: Any) -> None:
        self.all = changes
        self.who = changes.budgets.who(context)
        self.cookies = Cookies()
        self.silence = MemberSilence(_now_ms())
        self._context = context
        self._caller = changes.access.caller(context)
        self._streams: dict[int, _Stream] = {}
        self._of_shard: dict[ShardId, _Stream] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._questions = 0
        self._writing = asyncio.Lock()
        self._writing_since: float | None = None    # the frame under way, since then
        self._wrong: Refused | None = None
        self._handler = asyncio.current_task()

    async def run(self) -> None:
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            while self._wrong is None and (frame := await self.all.budgets.read(self._context)) is not grpc.aio.EOF:
                self.silence.heard()
                try:
                    requests = decode_requests(frame)
                except RemoteViolation as violation:
                    self._wrong = Refused(Reason.INVALID_SPEC, str(violation))
                    break
                for request in requests:
                    await self._on_request(request)
        except asyncio.CancelledError:
            if self._wrong is None or self._context.cancelled():
                raise    # the consumer went away
        finally:
            self._handler = None    # the call ends
            self.end_all(EndReason.CLOSED, "")
            await cancelled(watching, *self.tasks)
        if self._wrong is not None:    # gRPC keeps the refusal behind the frames that the consumer has not read
            await self.all.routing.refuse(self._context, self._wrong, None)

    def end_all(self, reason: EndReason, message: str) -> None:
        for stream in list(self._streams.values()):
            stream.end(reason, message)

    # --- requests -------------------------------------------------------------------------------------------

    async def _on_request(self, request: Request) -> None:
        if isinstance(request, Open):
            await self._last_said()
        stream = self._streams.get(getattr(request, "stream", -1))
        match request:
            case Open():
                if stream is not None:
                    self._wrong = Refused(Reason.INVALID_SPEC, f"stream {request.stream} is open already")
                else:
                    await self._open(request)
            case Ack():
                if stream is not None:
                    stream.acknowledged(request.total)
            case Close():
                if stream is not None:
                    stream.end(EndReason.CLOSED, "")
            case Barrier():
                await self._on_barrier(request)
            case AskIndex():
                await self._on_question(request)
            case Noop():
                pass    # heard

    async def _last_said(self) -> None:
        """Wait for the streams whose last message is on its way: for the consumer they may be over."""
        over = [stream.task for stream in self._streams.values() if stream.task is not None and stream.last_said]
        if over:
            await asyncio.wait(over)

    async def _open(self, request: Open) -> None:
        """Begin a stream, or say why there is none; a refusal concerns this stream alone."""
        everything, routing = self.all, self.all.routing
        target = routing.find(request.group, request.shard)
        version = routing.map.version
        end: StreamEnd | None = None
        if everything.stopping:
            end = StreamEnd(EndReason.SHUTTING_DOWN, None, "the node stops")
        elif isinstance(target, Refused):
            end = StreamEnd(EndReason.REFUSED, NotMyShard(version), target.message)
        elif not target.has_documents:
            wrong = f"{request.group!r} is of kind {target.group.kind}, it has no documents"
            end = StreamEnd(EndReason.REFUSED, PositionRefused("group", wrong), wrong)
        elif (refused := self._refusal(request.group)) is not None:
            end = StreamEnd(EndReason.LOST_PRIVILEGES, None, refused.message)
        elif request.level is not Level.COMMITTED or request.history is not History.LATEST:
            wrong = "this release streams the latest versions at committed level"
            end = StreamEnd(EndReason.REFUSED, PositionRefused("level", wrong), wrong)
        elif target.shard in self._of_shard and self._of_shard[target.shard].serving.phase is Phase.OVER:
            end = StreamEnd(EndReason.OVERLOADED, None, "the stream of this shard before it has not ended yet")
        elif target.shard in self._of_shard:
            wrong = f"shard {request.shard} of {request.group!r} is streamed on this connection already"
            end = StreamEnd(EndReason.REFUSED, PositionRefused("shard", wrong), wrong)
        elif not everything.budgets.change_streams.take(self.who):
            refused = everything.budgets.refusal(everything.budgets.change_streams, self.who)
            end = StreamEnd(EndReason.OVERLOADED, None, refused.message)
        if end is not None:
            await self.send([Said(request.stream, end)])
            return
        assert not isinstance(target, Refused)
        scope = Scope(target.group.group_id, request.wanted.digest, request.history)
        position = Position(request.scope, target.shard, request.point)
        asked = Asked(target.shard, scope, position, request.partial)
        stream = _Stream(self, request, asked)
        self._streams[request.stream] = self._of_shard[target.shard] = stream
        everything.follow(stream)
        stream.task = task = asyncio.get_running_loop().create_task(stream.run())
        self.tasks.add(task)
        task.add_done_callback(partial(self._ended, stream))

    def _ended(self, stream: _Stream, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.all.unfollow(stream)
        self.all.budgets.change_streams.give_back(self.who)
        self.cookies.on_ended(stream.shard)
        del self._streams[stream.number], self._of_shard[stream.shard]
        if not task.cancelled() and (error := task.exception()) is not None and not self._context.cancelled():
            _log.error("a change stream ended by an error", exc_info=error)
            self.leave(Refused(Reason.ABORTED, "a change stream ended by an error of the node"))

    def _refusal(self, group: str) -> Refused | None:
        return self.all.access.refusal(self._caller, METHOD, (Role.READER,), group)

    async def _on_barrier(self, barrier: Barrier) -> None:
        targets: dict[ShardId, int] = {}
        for number, seqno in barrier.targets.items():
            stream = self._streams.get(number)
            if stream is None:
                wrong = f"stream {number} is not open on this connection"
                await self.send([BarrierRejected(barrier.cookie, "stream", wrong)])
                return
            targets[stream.shard] = seqno
        said = {shard: stream.serving.said for shard, stream in self._of_shard.items()}
        answer = self.cookies.add(barrier.cookie, targets, said)
        if isinstance(answer, list):
            for shard in targets:
                self._of_shard[shard].barrier(self.cookies.target(shard))
            await self.send([Cookie(cookie) for cookie in answer])
            return
        field = getattr(answer, "field", type(answer).__name__)
        wrong = getattr(answer, "message", "a barrier with this cookie is outstanding, or too many are")
        await self.send([BarrierRejected(barrier.cookie, field, wrong)])

    async def _on_question(self, question: AskIndex) -> None:
        if self._questions >= QUESTIONS_MAX:
            await self.send([NoIndex(question.stream, f"{QUESTIONS_MAX} questions wait on this connection")])
            return
        self._questions += 1
        self._beside(self._answer(question))

    async def _answer(self, question: AskIndex) -> None:
        try:
            await self.send([await self._index(question)])
        finally:
            self._questions -= 1

    async def _index(self, question: AskIndex) -> Answer:
        """Rule U68: everything confirmed before the question lies at or below the answer."""
        target = self.all.routing.find(question.group, question.shard)
        refused = target if isinstance(target, Refused) else self._refusal(question.group)
        if isinstance(target, Refused) or refused is not None:
            return NoIndex(question.stream, refused.message if refused is not None else "")
        shard = target.shard
        granted = await self.read_index(shard)
        documents = self.all.driver.core.log.documents(shard)
        if isinstance(granted, Refused) or documents is None or not documents.failover.openings:
            why = granted.message if isinstance(granted, Refused) else ""
            return NoIndex(question.stream, why or "this node does not lead the shard")
        return Index(question.stream, granted.applied, documents.failover)

    async def read_index(self, shard: ShardId) -> ReadGranted | Refused:
        answer: ReadGranted | Refused = await self.all.driver.ask_and_wait(
            lambda number: ReadDocuments(shard, number, ReadLevel.LINEARIZABLE)
        )
        return answer

    # --- the connection -------------------------------------------------------------------------------------

    async def send(self, messages: list[Answer]) -> None:
        """Write one frame; the streams of a connection take turns."""
        if not messages:
            return
        async with self._writing:
            self._writing_since = time.monotonic()
            try:
                await self.all.budgets.send(self.who, self._context, partial(encode_answers, messages))
            finally:
                self._writing_since = None
            self.silence.sent(_now_ms())

    async def _watch(self) -> None:
        """Give up a consumer that is silent or reads nothing, and end the streams of one that lost its access.

        It writes nothing itself: a frame waits for as long as the consumer reads nothing.
        """
        while True:
            await asyncio.sleep(ACCESS_SECONDS)
            if (refused := self._holds_up()) is not None:
                self.leave(refused)
                return
            for stream in list(self._streams.values()):
                if (refused := self._refusal(stream.group)) is not None:
                    stream.end(EndReason.LOST_PRIVILEGES, refused.message)
                elif self.all.driver.core.log.documents(stream.shard) is None:
                    stream.end(EndReason.STATE_CHANGED, "this node holds the documents no longer")
            if self._writing.locked():
                continue    # no NOOP reaches a consumer before the frame under way
            match self.silence.due(_now_ms()):
                case Due.NOOP:
                    self._beside(self.send([Noop()]))
                case Due.DEAD:
                    self.leave(Refused(Reason.OVERLOADED, "the consumer is silent: open the streams again"))
                    return

    def _holds_up(self) -> Refused | None:
        """Return the refusal for a consumer that keeps for too long what others wait for."""
        now, frames = time.monotonic(), self.all.budgets.frames
        if self._writing_since is not None and now - self._writing_since >= STALL_SECONDS:
            late = f"the consumer read no frame for {STALL_SECONDS:.0f} s: open the streams again where they stood"
            return Refused(Reason.OVERLOADED, late)
        if frames.wants_beside and any(
                stream.beside_since is not None and now - stream.beside_since >= LARGE_FRAME_SECONDS
                for stream in self._streams.values()):
            return self.all.budgets.refusal(frames, self.who)
        return None

    def _beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in a task of the connection."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._context.cancelled():
            _log.error("an answer to a consumer of changes failed", exc_info=error)

    def leave(self, refused: Refused) -> None:
        """Free what the streams hold, and end the call with a refusal; once more does nothing.

        A handler that is only cancelled leaves the call open for the consumer.
        """
        if self._handler is not None and self._wrong is None:
            self._wrong = refused
            self._handler.cancel()


class _Stream:
    """One stream: runs the steps of its machine."""

    def __init__(self, connection: _Connection, request: Open, asked: Asked) -> None:
        self.number = request.stream
        self.group = request.group
        self.shard = asked.shard
        self.task: asyncio.Task[None] | None = None
        self.last_said = False                   # the message that ends it is sent, or on its way
        self._connection = connection
        self._all = connection.all
        self._driver = connection.all.driver
        self._budgets = connection.all.budgets
        self._index = request.shard
        self._certain = request.certain
        self._news = asyncio.Event()
        self._folded = -1                        # the feed has everything up to here
        self._held: HeldSnapshot | None = None
        self._holding = contextlib.AsyncExitStack()   # the snapshot, and its place among those of the node
        self._grant: Grant | None = None         # for the rows of a page until all of them are sent
        self._granted_at = 0.0
        limits = connection.all.limits._replace(window_bytes=request.window)
        self.serving = Serving(_now_ms(), asked, request.wanted, limits, skip_deletes=request.skip_deletes)

    @property
    def beside_since(self) -> float | None:
        """When a page beside the budget got its room, None where there is none: one page of the node lies there."""
        return self._granted_at if self._grant is not None and self._grant.beside else None

    def describe(self) -> dict[str, Any]:
        serving = self.serving
        return {
            "group": self.group, "index": self._index, "consumer": self._connection.who, "phase": serving.phase.name,
            "position": serving.said, "lag": max(0, self._applied() - serving.said), "owed_bytes": serving.credit.owed,
            "sent_bytes": serving.credit.sent, "holds_snapshot": self._held is not None,
        }

    def _applied(self) -> int:
        """Return the cut up to which this member has folded, in memory; -1 where it has no documents of the shard."""
        documents = self._driver.core.log.documents(self.shard)
        return documents.summary.applied if documents is not None else -1

    # --- what happens ---------------------------------------------------------------------------------------

    def on_folded(self, now_ms: int, since: int, entry: Any) -> None:
        if since != self._folded and self.serving.feed.open:
            # The rows were replaced as a whole: what lies between was never fed.
            self.serving.end(EndReason.STATE_CHANGED, "the documents of this member were loaded again")
        self._folded = entry.point.seqno
        self.serving.folded(now_ms, entry)
        self._news.set()

    def acknowledged(self, total: int) -> None:
        self.serving.acknowledged(_now_ms(), total)
        self._news.set()

    def barrier(self, target: int) -> None:
        self.serving.barrier(target)
        self._news.set()

    def end(self, reason: EndReason, message: str) -> None:
        self.serving.end(reason, message)
        self._news.set()

    # --- steps ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            await self._release()

    async def _run(self) -> None:
        out: list[Answer] = []
        size = 0
        while True:
            step = self.serving.step(_now_ms())
            if isinstance(step, TakeCut):
                self._folded = self._applied()   # the feed is open: every batch behind this one is fed
            if isinstance(step, Say):
                out.append(Said(self.number, step.message))
                out += self._cookies(step.message)
                size += size_of(step.message)
                if size < FRAME_BYTES:
                    continue
            await self._send(out)
            out, size = [], 0
            match step:
                case TakeCut():
                    await self._take()
                case ReadPage():
                    await self._read(step)
                case ReadEntries():
                    self.serving.failed("this release keeps no streams of all versions")
                case Release():
                    await self._release()
                case Wait(until_ms):
                    await self._wait(until_ms)
                case Done():
                    return

    def _cookies(self, message: Message) -> list[Answer]:
        if not isinstance(message, End | Advanced | Confirmed):
            return []
        return [Cookie(cookie) for cookie in self._connection.cookies.on_said(self.shard, self.serving.said)]

    async def _send(self, messages: list[Answer]) -> None:
        if not messages:
            return
        rows = sum(len(each.message.rows) for each in messages if isinstance(each, Said) and isinstance(
            each.message, Rows))
        for each in messages:
            if isinstance(each, Said) and isinstance(each.message, StreamEnd):
                self._all.metrics.change_stream_ends.labels(str(each.message.reason)).inc()
                self.last_said = True
        await self._connection.send(messages)
        self._all.metrics.change_rows.inc(rows)
        self._free_room()

    async def _wait(self, until_ms: int | None) -> None:
        seconds = None if until_ms is None else max(0, until_ms - _now_ms()) / 1000
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()

    async def _take(self) -> None:
        """Take the snapshot and read from it; the feed is open and takes every entry behind it (U56)."""
        read_index: int | None = None
        if self._certain:
            self._certain = False
            granted = await self._connection.read_index(self.shard)
            read_index = granted.applied if isinstance(granted, ReadGranted) else None
        version = self._all.routing.map.version
        if self._driver.core.log.documents(self.shard) is None:
            self.serving.took(_now_ms(), Cut(None, None, version))
            return
        try:
            await self._holding.enter_async_context(self._budgets.snapshots.granted(self._connection.who))
            self._held = await self._holding.enter_async_context(self._driver.hold(SUMMARY, BYSEQ, DOCS))
            cut = await self._held.read(
                lambda snapshot: cut_of(self.shard, StateRows(snapshot), 0, read_index, version))
        except (StoreFailed, StoreDamaged, RemoteViolation) as error:
            _log.warning("a change stream cannot begin", extra={"reason": str(error), "group": self.group})
            self.serving.failed("the node cannot read its store")
            return
        self.serving.took(_now_ms(), cut)

    async def _read(self, wanted: ReadPage) -> None:
        rows, shard, least = self._driver.store.rows, self.shard, wanted.bytes_max

        def work(snapshot: Snapshot) -> Any:
            return page(rows, snapshot, shard, wanted.after, wanted.upto, wanted.bytes_max)

        while self._held is not None and (grant := await self._room(least)) is not None:
            try:
                found = await self._held.read(work)
            except (StoreFailed, StoreDamaged, UnknownFamily) as error:
                _log.warning("a change stream cannot read", extra={"reason": str(error), "group": self.group})
                self.serving.failed("the node cannot read its store")
                return
            if fitted(grant, found.size):
                self._all.metrics.change_bytes.inc(found.size)
                self.serving.scanned(found.rows, found.through)
                self._free_room()    # the filter may have passed none
                return
            # The last row of a page may be large: read it again once there is room.
            least = found.size
            del found
            self._free_room()

    async def _room(self, bytes_max: int) -> Grant | None:
        """Hold room for a page among the frames of this caller, None where the stream is over before."""
        if self._grant is None:
            granting = asyncio.ensure_future(self._budgets.frame(self._connection.who, bytes_max, bytes_max))
            granting.add_done_callback(lambda _: self._news.set())
            try:
                while not granting.done() and self.serving.phase is not Phase.OVER:
                    await self._wait(None)
            finally:
                if not granting.cancel() and not granting.cancelled():
                    self._grant, self._granted_at = granting.result(), time.monotonic()
        return self._grant

    def _free_room(self) -> None:
        """Free the room of a page once all of it is sent."""
        if self._grant is not None and not self.serving.unsent:
            self._grant.release()
            self._grant = None

    async def _release(self) -> None:
        """Free the snapshot and its place (U61)."""
        self._held = None
        await self._holding.aclose()
        if self._grant is not None:
            self._grant.release()
            self._grant = None


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
