"""Changes: the change streams of one consumer over all shards of a group, and its position.

The application pulls: a message is taken from a shard's queue when the application asks for more, so the window of each
stream bounds what lies in memory.  A position moves when the application is done with a snapshot: when it asks for the
next thing, or calls `ack`.
Stays out: what a message means (`upr.consuming`), connections (`change_stream`), sinks.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId, index_of, shard_id
from tidemark_core.upr import barriers, consuming
from tidemark_core.upr.consuming import Consuming, Where
from tidemark_core.upr.decision import HistoryLost as Lost
from tidemark_core.upr.decision import HistoryTrimmed, Purged
from tidemark_core.upr.history import START, Point
from tidemark_core.upr.messages import EndReason, Marker, Message, Row
from tidemark_core.upr.positions import PositionRefused, Scope, Token, encode
from tidemark_core.upr.silence import NOOP_MS
from tidemark_wire.changes import Ack, Answer, Barrier, Close, Open, Said, encode_request
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tasks import cancelled

from .change_events import (
    Advanced,
    BarrierResult,
    BatchEvent,
    Change,
    ChangeBatch,
    ChangeEvent,
    Discarded,
    Rebuilding,
    Snapshot,
    SnapshotBegin,
    SnapshotEnd,
)
from .change_settings import BARRIER_S, BEGINNING, NOW, ChangeSettings
from .change_stream import NodeStream
from .consumer import Consumer
from .document import Cut
from .errors import ChangesFailed, Closed, InvalidArgument, TidemarkError, error_of
from .iterating import Iteration
from .retrying import HOPELESS
from .shard_stream import Ending

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("tidemark.changes")

RETRY_INDEX_S = 0.2
CALL_RETRY_S = 0.2
FINAL = frozenset({"INVALID_SPEC", "PERMISSION_DENIED"})


class _Followed:
    """One shard: its machine, the stream that serves it, and what came and was not taken yet."""

    __slots__ = (
        "acked", "asked", "begun", "handle", "index", "machine", "node", "number", "pending", "queue", "shard",
        "staged", "stream",
    )

    def __init__(self, shard: ShardId, machine: Consuming) -> None:
        self.shard = shard
        self.index = index_of(shard)
        self.machine = machine
        self.queue: deque[Message | None] = deque()    # None: the connection broke
        self.stream: NodeStream | None = None
        self.number = 0
        self.node = ""
        self.acked = 0
        self.asked = 0                 # bytes to acknowledge
        self.begun: Marker | None = None
        self.staged: list[Row] = []    # for `snapshots`
        self.pending: Point | None = None   # taken, and not stored yet
        self.handle: asyncio.TimerHandle | None = None


class Changes:
    """Change streams of one consumer.  Made by `Client.changes`; iterate over it, or over `snapshots()`."""

    def __init__(self, client: Client, group: str, settings: ChangeSettings) -> None:
        self.group_name = group
        self.settings = settings
        self.consumer: Consumer | None = None
        self._client = client
        self._routing = client.routing
        self._channels = client.channels
        self._loop = asyncio.get_running_loop()
        self._scope = Scope(0, settings.wanted.digest, settings.history)
        self._shards: dict[ShardId, _Followed] = {}
        self._by_number: dict[int, _Followed] = {}
        self._streams: dict[str, NodeStream] = {}
        self._number = 0
        self._ready: deque[_Followed] = deque()
        self._news = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._barriers = barriers.Barriers({})
        self._waiting: dict[str, asyncio.Future[barriers.Return]] = {}
        self._barrier_count = 0
        self._barrier_handle: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._error: BaseException | None = None
        self._redeliver: Snapshot | None = None
        self._redeliver_at = 0.0
        self._given: Snapshot | None = None
        self._rest: deque[BatchEvent] = deque()   # taken, and not handed out yet
        self.undelivered: Iterator[Change] = iter(())
        """Changes of the batch under way that an iteration over changes has not handed out yet."""
        self._inside: set[int] = set()            # shards of which a part of a snapshot was handed out
        self.nacks = 0
        self.noop_ms = NOOP_MS
        self._closed = False
        self._stop_listening: Callable[[], None] | None = None     # until it has begun

    # --- iterating ------------------------------------------------------------------------------------------

    def __aiter__(self) -> Iteration[ChangeEvent]:
        """Iterate over changes one by one between `SnapshotBegin` and `SnapshotEnd`, and the news of the streams.

        A timeout of `anext` ends no iteration of changes: the next event comes with the next call.
        """
        return Iteration(self._next_changes, begin=self._begin_parts)

    def batches(self) -> Iteration[BatchEvent]:
        """Iterate over the same with the changes in `ChangeBatch`es; memory is bounded whatever a snapshot's size."""
        return Iteration(self._next_batch, begin=self._begin_parts)

    def snapshots(self) -> Iteration[Snapshot]:
        """Iterate over whole snapshots; each lies in memory until the next is asked for, and counts as applied then.

        The first one raises InvalidArgument where an iteration over changes or batches was left inside a snapshot.
        """
        return Iteration(self._next_snapshot, begin=self._begin_snapshots)

    async def _next_changes(self) -> Iterable[ChangeEvent]:
        event = await self._event()
        if not isinstance(event, ChangeBatch):
            return (event,)
        self.undelivered = iter(event)
        return self.undelivered

    async def _next_batch(self) -> tuple[BatchEvent]:
        return (await self._event(),)

    async def _next_snapshot(self) -> tuple[Snapshot]:
        found: Snapshot | None = None
        if (again := self._redeliver) is not None:
            await asyncio.sleep(max(0.0, self._redeliver_at - self._loop.time()))
            self._redeliver, found = None, again
        while found is None:
            found = self._gather(await self._taken())
        self._given = found
        return (found,)

    async def _begin_snapshots(self) -> None:
        await self.open()
        if self._inside:
            raise InvalidArgument(
                "snapshots", f"an iteration was left inside a snapshot of shard {min(self._inside)}",
                advice="Iterate over the changes, or over batches(), up to its SnapshotEnd first.",
            )

    async def _event(self) -> BatchEvent:
        """Return the next event for an application that sees snapshots in parts."""
        event = await self._taken()
        if isinstance(event, ChangeBatch):
            self._inside.add(event.shard)
        else:
            self._inside.discard(event.shard)
        return event

    async def _begin_parts(self) -> None:
        """Begin an iteration over parts with what an iteration before it took and did not hand out."""
        await self.open()
        for followed in self._shards.values():
            if followed.staged:   # by `snapshots`
                self._rest.appendleft(ChangeBatch(followed.index, tuple(followed.staged)))
                followed.staged = []
        if left := list(self.undelivered):
            self._rest.appendleft(ChangeBatch(left[0].shard, tuple(Row._make(change[1:]) for change in left)))

    async def _taken(self) -> BatchEvent:
        if not self._rest:
            self._rest.extend(await self._next())
        return self._rest.popleft()

    def _gather(self, event: BatchEvent) -> Snapshot | None:
        followed = self._shards[self._id(event.shard)]
        match event:
            case ChangeBatch():
                followed.staged += event.rows
            case Discarded():
                followed.staged = []
            case SnapshotEnd():
                rows, followed.staged = tuple(followed.staged), []
                start = followed.begun.start if followed.begun is not None else 0
                return Snapshot(event.shard, start, event.seqno, event.fresh, rows, event.summary)
        return None

    # --- position -------------------------------------------------------------------------------------------

    @property
    def position(self) -> str:
        """The position of all shards as one token, behind what the application is done with."""
        points = {shard: followed.machine.point for shard, followed in self._shards.items()}
        return encode(Token(self._scope, {shard: point for shard, point in points.items() if point != START}))

    @property
    def next_position(self) -> str:
        """The position that holds once everything handed out is applied: a sink stores it with those rows (U55)."""
        points = {
            shard: self._given_out(followed) or followed.machine.point for shard, followed in self._shards.items()
        }
        return encode(Token(self._scope, {shard: point for shard, point in points.items() if point != START}))

    @property
    def positions(self) -> dict[int, int]:
        """The seqno up to which the application has applied, by shard."""
        return {followed.index: followed.machine.point.seqno for followed in self._shards.values()}

    @property
    def cuts(self) -> dict[int, Cut]:
        """`positions` with the history that wrote each: `Documents.position` makes a token of them."""
        points = {followed.index: followed.machine.point for followed in self._shards.values()}
        return {shard: Cut(point.seqno, point.epoch, point.lineage) for shard, point in points.items()}

    async def ack(self, *, timeout_s: float | None = None) -> None:
        """Count what was handed out as applied now, and commit the position of a named consumer."""
        self._client.home.check()
        self._redeliver = None
        self._settle()
        if self.consumer is not None:
            await self.consumer.commit(timeout_s=timeout_s or self.settings.timeout_s)

    async def ack_rows(self, seqnos: Mapping[int, int], *, timeout_s: float | None = None) -> str:
        """Count the rows up to a seqno of each shard as applied, within a snapshot too; return the position there.

        Commits it for a named consumer.  A stream from there shows the other rows, not all of one snapshot together.
        It stays in front of a snapshot where deletes behind the seqno were purged: no stream could begin there.
        """
        self._client.home.check()
        timeout_s = timeout_s or self.settings.timeout_s
        points = {shard: followed.machine.point for shard, followed in self._shards.items()}
        for index, seqno in seqnos.items():
            shard = self._id(index)
            begun = self._shards[shard].begun
            if begun is None or not max(begun.purged or 0, points[shard].seqno) <= seqno <= begun.end.seqno:
                continue
            _, failover = await self._client.questions.read_index(self.group_name, index, timeout_s=timeout_s)
            points[shard] = failover.point(seqno)
            if self.consumer is not None:
                self.consumer.moved(index, seqno, rows=True)
        if self.consumer is not None:
            await self.consumer.commit(timeout_s=timeout_s)
        return encode(Token(self._scope, {shard: point for shard, point in points.items() if point != START}))

    def nack(self, delay_s: float = 1.0) -> None:
        """The snapshot given last could not be applied: `snapshots` gives it again after `delay_s`."""
        if self._given is None:
            raise InvalidArgument("nack", "no snapshot was given, or the last one is acknowledged")
        self.nacks += 1
        self._redeliver, self._redeliver_at = self._given, self._loop.time() + delay_s

    async def barrier(self, timeout_s: float = BARRIER_S) -> BarrierResult:
        """Wait until everything that was confirmed before the call is applied here, at most `timeout_s` (U68).

        Another task goes on to iterate meanwhile: a barrier waits for the application.
        """
        await self.open()
        self._barrier_count += 1
        cookie = f"barrier-{self._barrier_count}"
        done: asyncio.Future[barriers.Return] = self._loop.create_future()
        self._waiting[cookie] = done
        try:
            answer = self._barriers.request(self._now_ms(), cookie, None, int(timeout_s * 1000))
            if not isinstance(answer, list):
                raise InvalidArgument("barrier", "so many barriers are outstanding")
            self._on_barrier_effects(answer)
            over = await done
        finally:
            self._waiting.pop(cookie, None)
        vector = encode(Token(self._scope, over.vector))
        return BarrierResult(vector, {index_of(shard): str(why) for shard, why in over.not_covered.items()})

    # --- pulling --------------------------------------------------------------------------------------------

    async def _next(self) -> list[BatchEvent]:
        """Return the next events; what was handed out before counts as applied."""
        self._client.home.check()
        self._settle()
        while True:
            if self._error is not None:
                raise self._error
            if self._closed:
                raise Closed("the change stream is closed")
            if not self._ready:
                self._news.clear()
                await self._news.wait()
                continue
            followed = self._ready.popleft()
            events = self._take(followed)
            if followed.queue and followed.pending is None:
                self._ready.append(followed)
            if events:
                return events

    def _settle(self) -> None:
        """The application is done with the snapshots that it was given (U55)."""
        self._given = None
        for followed in self._shards.values():
            if (point := self._given_out(followed)) is not None:
                followed.pending = None
                self._stored(followed, point, rows=True)
                if followed.queue:
                    self._ready.append(followed)

    def _given_out(self, followed: _Followed) -> Point | None:
        """Return the end of the snapshot that was handed out whole and is not stored yet."""
        ends = (event.shard for event in self._rest if isinstance(event, SnapshotEnd))
        return None if followed.index in ends else followed.pending

    def _stored(self, followed: _Followed, point: Point, *, rows: bool) -> None:
        followed.machine.stored(point)
        if self.consumer is not None:
            self.consumer.moved(followed.index, point.seqno, rows=rows)
        self._on_barrier_effects(self._barriers.on_applied(self._now_ms(), followed.shard, point))

    def _take(self, followed: _Followed) -> list[BatchEvent]:
        """Feed messages of one shard to its machine until something is for the application."""
        events: list[BatchEvent] = []
        machine = followed.machine
        while followed.queue and not events and followed.pending is None:
            message = followed.queue.popleft()
            try:
                effects = machine.disconnected() if message is None else machine.on_message(message)
            except RemoteViolation as violation:
                log.warning("shard %d of %s at %s: %s", followed.index, self.group_name, followed.node, violation)
                self._leave(followed)
                effects = machine.disconnected()
            if isinstance(message, Marker):
                followed.begun = message
                fresh = message.start == 0
                events.append(SnapshotBegin(followed.index, message.start, message.end.seqno, fresh))
            for effect in effects:
                self._on_effect(followed, effect, events)
            followed.asked = machine.received
        if followed.stream is not None and self._due(followed):
            followed.stream.send_soon()
        return events

    def _on_effect(self, followed: _Followed, effect: consuming.Effect, events: list[BatchEvent]) -> None:
        index = followed.index
        match effect:
            case consuming.Stage(rows):
                events.append(ChangeBatch(index, rows))
            case consuming.Apply():
                followed.pending = effect.point
                events.append(SnapshotEnd(index, effect.point.seqno, effect.fresh, effect.summary))
            case consuming.Move(point):
                self._stored(followed, point, rows=False)
                events.append(Advanced(index, point.seqno))
            case consuming.Discard():
                events.append(Discarded(index))
            case consuming.Rebuild(refusal):
                self._barriers.rebuilding.add(followed.shard)
                why = _lost(index, refusal)
                events.append(Rebuilding(index, why.reason, why.message))
            case consuming.Reopen(where, delay_ms):
                self._leave(followed)
                self._reopen(followed, where, delay_ms / 1000)
            case consuming.Fail():
                self._leave(followed)
                self._fail(_failure(followed.index, effect))

    # --- connections ----------------------------------------------------------------------------------------

    def on_answers(self, stream: NodeStream, answers: list[Answer]) -> None:
        for answer in answers:
            if not isinstance(answer, Said):
                continue    # a cookie only makes a member hurry (U69)
            followed = self._by_number.get(answer.stream)
            if followed is None or followed.stream is not stream:
                continue    # of a stream that was left
            self._put(followed, answer.message)

    def _put(self, followed: _Followed, message: Message | None) -> None:
        if not followed.queue and followed.pending is None:
            self._ready.append(followed)
        followed.queue.append(message)
        self._news.set()

    def acks(self, stream: NodeStream) -> list[bytes]:
        frames = []
        for followed in self._shards.values():
            if followed.stream is stream and self._due(followed):
                followed.acked = followed.asked
                frames.append(encode_request(Ack(followed.number, followed.asked)))
        return frames

    def _due(self, followed: _Followed) -> bool:
        """Say whether an acknowledgement is due: nothing waits, or a quarter of the window was taken."""
        taken = followed.asked - followed.acked
        return taken > 0 and (not followed.queue or taken * 4 >= self.settings.window(len(self._shards)))

    def on_lost(self, stream: NodeStream, ending: Ending) -> None:
        if self._streams.get(stream.node) is stream:
            del self._streams[stream.node]
        if self._closed:
            return
        if ending.error is not None:
            hinted = refusal_from_rpc_error(ending.error)
            if hinted is not None and hinted.refused.reason.value in FINAL:
                self._fail(error_of(hinted.refused))
            elif hinted is None and ending.error.code() in HOPELESS:
                self._fail(ChangesFailed(f"{stream.node}: {ending.why}", reason=ending.error.code().name))
        log.info("changes of %s: the connection to %s ended: %s", self.group_name, stream.node, ending.why)
        self._routing.refresh_soon()
        for followed in self._shards.values():
            if followed.stream is stream:
                self._by_number.pop(followed.number, None)
                followed.stream = None
                self._barriers.on_stream_lost(followed.shard)
                self._put(followed, None)

    def _leave(self, followed: _Followed) -> None:
        """Forget the stream of a shard; what is still under way of it is ignored."""
        self._by_number.pop(followed.number, None)
        stream, followed.stream = followed.stream, None
        followed.queue.clear()
        if stream is not None:
            stream.say(encode_request(Close(followed.number)))
            self._barriers.on_stream_lost(followed.shard)
            if not any(other.stream is stream for other in self._shards.values()):
                stream.end()
                self._streams.pop(stream.node, None)

    def _reopen(self, followed: _Followed, where: Where, delay_s: float) -> None:
        if followed.handle is not None:
            followed.handle.cancel()
        followed.handle = self._loop.call_later(delay_s, self._open, followed, where)

    def _open(self, followed: _Followed, where: Where) -> None:
        followed.handle = None
        if self._closed or followed.stream is not None:
            return
        place = self._choose(followed, where)
        if place is None:
            self._routing.refresh_soon()
            self._reopen(followed, where, CALL_RETRY_S)
            return
        node, address = place
        stream = self._streams.get(node)
        if stream is None:
            stream = self._streams[node] = NodeStream(self, self._channels, node, address, self.noop_ms)
            stream.start(self._stream_done)
        self._number += 1
        asked = followed.machine.ask()
        settings = self.settings
        followed.stream, followed.node, followed.number = stream, node, self._number
        followed.acked = followed.asked = 0
        self._by_number[self._number] = followed
        stream.say(encode_request(Open(
            self._number, self.group_name, followed.index, asked.position.scope, asked.position.point, asked.partial,
            settings.wanted, settings.history, window=settings.window(len(self._shards)),
            skip_deletes=settings.skip_deletes, certain=where is Where.LEADER,
        )))
        self._on_barrier_effects(self._barriers.on_stream_open(followed.shard))

    def _choose(self, followed: _Followed, where: Where) -> tuple[str, str] | None:
        """Return the node to ask, and its address; another one than before where there is one."""
        routing = self._routing
        if where is Where.LEADER:
            leader = routing.leader(self.group_name, followed.index)
            return (leader.node, leader.address) if leader is not None else None
        members = [
            (node, info.address) for node in routing.ensemble(self.group_name, followed.index)
            if (info := routing.node(node)) is not None and info.address
        ]
        others = [each for each in members if each[0] != followed.node]
        return random.choice(others or members) if members else None  # noqa: S311

    def _stream_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    # --- barriers -------------------------------------------------------------------------------------------

    def _on_barrier_effects(self, effects: list[barriers.Effect]) -> None:
        for effect in effects:
            match effect:
                case barriers.AskReadIndex(shard):
                    self._run(self._ask_index(shard))
                case barriers.Send(cookie, shard, target):
                    followed = self._shards[shard]
                    if followed.stream is not None:
                        followed.stream.say(encode_request(Barrier(cookie, {followed.number: target})))
                case barriers.Return():
                    waiting = self._waiting.get(effect.cookie)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(effect)
        if self._barrier_handle is not None:
            self._barrier_handle.cancel()
            self._barrier_handle = None
        if (at_ms := self._barriers.next_deadline_ms) is not None:
            delay_s = max(0, at_ms - self._now_ms()) / 1000
            self._barrier_handle = self._loop.call_later(
                delay_s, lambda: self._on_barrier_effects(self._barriers.on_time(self._now_ms())))

    async def _ask_index(self, shard: ShardId) -> None:
        try:
            seqno, failover = await self._client.questions.read_index(
                self.group_name, index_of(shard), timeout_s=self.settings.timeout_s)
        except TidemarkError as error:
            log.info("changes of %s: no read index of shard %d: %s", self.group_name, index_of(shard), error)
            self._barriers.on_no_leader(shard)
            await asyncio.sleep(RETRY_INDEX_S)
            self._on_barrier_effects([*self._barriers.retry()])
            return
        self._on_barrier_effects(self._barriers.on_read_index(self._now_ms(), shard, failover.point(seqno)))

    # --- life -----------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Find the shards and begin; iterating does this too.  Raises InvalidArgument, UnknownGroup, Unavailable."""
        if self._closed:
            raise Closed("the change stream is closed")
        self._client.home.check()
        if self._starting is None:
            self._starting = asyncio.create_task(self._begin(), name="tidemark-changes-start")
        await asyncio.shield(self._starting)

    async def _begin(self) -> None:
        settings = self.settings
        group = await self._routing.find_group(self.group_name)
        self._scope = self._scope._replace(group=group.group_id)
        self._stop_listening = self._routing.listen(self._on_map)
        wanted = group.shards if settings.shards is None else settings.shards
        shards = {
            index: shard_id(group.group_id, index)
            for index in sorted(self._routing.check_shard(group, shard) for shard in wanted)}
        points = await self._points(shards)
        for index, shard in shards.items():
            machine = Consuming(self._scope, shard, points.get(index, START), on_lost=settings.on_lost)
            self._shards[shard] = _Followed(shard, machine)
        self._barriers = barriers.Barriers({shard: each.machine.point for shard, each in self._shards.items()})
        for shard, followed in self._shards.items():
            self._barriers.moved.add(shard)
            self._open(followed, Where.ANY)
        if self.consumer is not None:
            self.consumer.start(self._fail)

    async def _points(self, shards: Mapping[int, ShardId]) -> dict[int, Point]:
        """Return where each shard begins: at the consumer's position, else where `from_` says."""
        settings = self.settings
        given = await self._given_points(shards)
        if settings.consumer is None:
            return given
        self.consumer = Consumer(self._client.questions, self.group_name, self._scope.group, settings)
        stored = await self.consumer.positions(list(shards))
        if not stored:
            # "now" is resolved once: a consumer that crashes before its first snapshot begins there too.
            for index, point in given.items():
                self.consumer.moved(index, point.seqno, rows=True)
            await self.consumer.commit(timeout_s=settings.timeout_s)
            return given
        return {index: stored.get(index, START) for index in shards}

    async def _given_points(self, shards: Mapping[int, ShardId]) -> dict[int, Point]:
        start, questions = self.settings.start, self._client.questions
        if isinstance(start, Token):
            scope = start.scope
            for field, found, wanted in (
                ("group", scope.group, self._scope.group), ("filter", scope.filter.hex(), self._scope.filter.hex()),
                ("history", scope.history.name, self._scope.history.name),
            ):
                if found != wanted:
                    wrong = f"position is of {field} {found}, the stream of {field} {wanted}"
                    raise InvalidArgument("from_", wrong, reason="POSITION_REFUSED")
            return {index: start.points.get(shard, START) for index, shard in shards.items()}
        if start == BEGINNING:
            return {}
        timeout_s = self.settings.timeout_s
        ends = await asyncio.gather(
            *(questions.read_index(self.group_name, index, timeout_s=timeout_s) for index in shards))
        points = {index: failover.point(seqno) for index, (seqno, failover) in zip(shards, ends, strict=True)}
        if start == NOW:
            return points
        assert isinstance(start, int)
        offsets = await asyncio.gather(
            *(questions.offset_at(self.group_name, index, start, timeout_s=timeout_s) for index in shards))
        return {
            index: failover.point(min(offset - 1, seqno)) if offset > 0 else START
            for index, offset, (seqno, failover) in zip(shards, offsets, ends, strict=True)
        }

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_map(self) -> None:
        try:
            self._routing.check_life(self.group_name, self._scope.group)
        except TidemarkError as gone:
            self._fail(gone)

    def _fail(self, error: BaseException | None) -> None:
        if self._error is None:
            self._error = error
            self._news.set()

    def _id(self, index: int) -> ShardId:
        return shard_id(self._scope.group, index)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    async def close(self) -> None:
        """Leave every stream; a named consumer commits what was acknowledged.  Snapshots given last are not."""
        if self._closed:
            return
        self._client.home.check()
        self._closed = True
        self._news.set()
        if self._stop_listening is not None:
            self._stop_listening()
        self._client.forget(self)
        for followed in self._shards.values():
            if followed.handle is not None:
                followed.handle.cancel()
        if self._barrier_handle is not None:
            self._barrier_handle.cancel()
        for stream in self._streams.values():
            stream.end()
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        await cancelled(*tasks, *self._tasks, *((self._starting,) if self._starting is not None else ()))
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Closed("the change stream is closed"))
        if self.consumer is not None:
            await self.consumer.close()

    async def __aenter__(self) -> Changes:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _failure(shard: int, fail: consuming.Fail) -> ChangesFailed:
    """Return the error that says why a stream is over for good."""
    match fail.refusal:
        case Purged() | Lost() as lost:
            return _lost(shard, lost)
        case HistoryTrimmed(first):
            return ChangesFailed(f"shard {shard}: the log begins at {first}", reason="HISTORY_TRIMMED", shard=shard)
        case PositionRefused(field, message):
            return ChangesFailed(f"shard {shard}: {field}: {message}", reason="POSITION_REFUSED", shard=shard)
    reason = fail.reason.value if fail.reason is not EndReason.LOST_PRIVILEGES else "PERMISSION_DENIED"
    return ChangesFailed(f"shard {shard}: {fail.message or reason}", reason=reason, shard=shard)


def _lost(shard: int, refusal: Purged | Lost) -> ChangesFailed:
    """Return the error that says why a view has to be built again (U58)."""
    if isinstance(refusal, Purged):
        text = f"deletes up to {refusal.purged} are gone that this consumer has not seen"
        return ChangesFailed(f"shard {shard}: {text}", reason="PURGED", shard=shard)
    text = f"the consumer's history is not the shard's; both agree up to {refusal.common}"
    return ChangesFailed(f"shard {shard}: {text}", reason="HISTORY_LOST", shard=shard, common=refusal.common)
