"""A cluster in this process: real gRPC servers over one shared, scripted log per shard.

It speaks the real frames and keeps the producer rules (the core's own table), so that what the client sends is
judged as a node would judge it.  Faults are scripted by the test: refusals, silence, lost answers, dead nodes,
and the fates of what waits in a limbo.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
import grpc.aio
from fake_changes import ChangeFaults, ChangesHandler
from fake_delivery import FakeStream, Faults
from fake_documents import DocumentsServicer, FakeDocuments
from fake_keyspaces import FakeKeyspace, KeyspaceFaults, KeyspacesServicer
from tidemark_core.base.entry import NO_PRODUCER, Batch, Durability, Entry, Kind, check_batch, control, seal
from tidemark_core.base.ids import NOTHING
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.requests import Written
from tidemark_core.limbo.view import ROLLING_BACK, WAITING, LimboEntry, LimboView
from tidemark_core.replication.messages import Appended, Claimed, Fate, Outcome
from tidemark_core.replication.producer_ids import fence_of
from tidemark_core.replication.producers import Place, ProducerTable
from tidemark_core.sinks.fold import Join, Mark, Sink, after
from tidemark_core.sinks.fold import Noted as SinkRecord
from tidemark_core.sinks.judging import judge
from tidemark_core.sinks.view import SinksView, SinkView
from tidemark_core.subscriptions.view import SubscriptionsView, SubscriptionView
from tidemark_wire import channel as wire
from tidemark_wire import frames
from tidemark_wire.limbo import limbo_to_proto, outcome_to_proto
from tidemark_wire.sinks import marks_from_proto, sinks_to_proto
from tidemark_wire.status import to_rpc_error
from tidemark_wire.subscriptions import subscriptions_to_proto
from tidemark_wire.v1 import common_pb2, documents_pb2_grpc, keyspaces_pb2_grpc, node_pb2, node_pb2_grpc
from tidemark_wire.wire_version import WIRE_VERSION

BATCH_BYTES_MAX = 8 << 20


Reply = Callable[[Appended | Refused], None]
ClaimReply = Callable[[Claimed | Refused], None]


def _as_written(documents: FakeDocuments, reply: Callable[[Appended | Written | Refused], None]) -> Reply:
    """Return a reply that adds the outcomes to what replication answers."""

    def answer(value: Appended | Refused) -> None:
        if isinstance(value, Appended):
            outcomes = documents.outcomes(value)
            reply(Written(value.epoch, value.base, value.count, value.durability, outcomes))
        else:
            reply(value)

    return answer


@dataclass
class FakeShard:
    """The log of one shard as a quorum would hold it; `leader` is a node's name or empty.

    With `limbo` appends wait for their fate: the test lets them time out, rolls them back or confirms them.
    """

    index: int
    leader: str
    members: int = 1
    epoch: int = 1
    logged_ms: int = 1000
    entries: list[Entry] = field(default_factory=list)
    producers: ProducerTable = field(default_factory=ProducerTable)
    refusals: deque[Refused] = field(default_factory=deque)  # given to the next appends, in turn
    silent: int = 0  # so many appends are taken and never answered
    deaf: bool = False  # appends are neither taken nor answered
    trimmed_to: int = 0
    sent: list[tuple[bytes, int]] = field(default_factory=list)  # every (producer, sequence) that arrived
    marks: list[int] = field(default_factory=list)  # the resume_after that each brought
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    limbo: bool = False
    claimed: list[tuple[bytes, int]] = field(default_factory=list)   # (producer, sequence) of every claim that arrived
    claim_refusals: deque[Refused] = field(default_factory=deque)    # given to the next claims, in turn
    lost_claims: int = 0   # so many claims are taken and never answered
    undecided: dict[int, list[Reply]] = field(default_factory=dict)  # base of an entry: who waits for it
    claims: list[tuple[int, Batch, ClaimReply]] = field(default_factory=list)  # those that wait for what is in front
    rollbacks: list[tuple[int, int]] = field(default_factory=list)  # first offset, offset of the record
    final: set[int] = field(default_factory=set)  # records that are committed
    positions: dict[str, tuple[int, int]] = field(default_factory=dict)  # of a subscription: offset and lease
    commits: list[tuple[str, int]] = field(default_factory=list)         # every commit that arrived
    commit_refusals: deque[Refused] = field(default_factory=deque)       # given to the next commits, in turn
    sinks: dict[str, Sink] = field(default_factory=dict)
    documents: FakeDocuments | None = None   # of a group of that kind

    def keep_documents(self) -> FakeShard:
        """Fold the log into documents."""
        self.documents = FakeDocuments(self)
        return self

    @property
    def head(self) -> int:
        return self.entries[-1].last if self.entries else -1

    @property
    def readable(self) -> int:
        """Offset up to which readers are served."""
        pending = [at for at in self.undecided if self.covering(at) is None]
        pending += [first for first, at in self.rollbacks if at not in self.final]
        return min(pending, default=self.head + 1) - 1

    def add(self, batch, kind: Kind = Kind.DATA, argument: int = -1) -> Entry:  # type: ignore[no-untyped-def]
        last = self.entries[-1] if self.entries else None
        place = {"epoch": self.epoch, "prev": last.id if last else NOTHING, "prev_chain": last.chain if last else 0}
        if kind is Kind.DATA:
            entry = seal(batch, kind=kind, logged_ms=self.logged_ms, order=self._order(), **place)
        else:
            producer = NO_PRODUCER if batch is None else batch.producer
            entry = control(kind, b"", logged_ms=self.logged_ms, argument=argument, producer=producer, **place)
        if kind in ProducerTable.kinds:
            self.producers.note(entry)
        self.entries.append(entry)
        self._wake()
        return entry

    def _order(self) -> int:
        """Return the reading order of the next entry: each member comes first in turn."""
        start = len(self.entries)
        return sum((start + place) % self.members << 4 * place for place in range(self.members))

    def _wake(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def drop_last(self, count: int) -> None:
        """Lose the newest entries, as a failover may lose LOCAL and undecided ones."""
        del self.entries[len(self.entries) - count :]
        self.producers = ProducerTable()
        for entry in self.entries:
            if entry.kind in ProducerTable.kinds:
                self.producers.note(entry)
        self.rollbacks = [(first, at) for first, at in self.rollbacks if at <= self.head]
        self.undecided = {base: waiting for base, waiting in self.undecided.items() if base <= self.head}

    def covering(self, offset: int) -> tuple[int, int] | None:
        """Return the rollback that covers an offset."""
        return next(((first, at) for first, at in self.rollbacks if first <= offset < at), None)

    # --- what the leader of a limbo does, when the test says so

    def time_out(self, *bases: int) -> None:
        """Tell whoever waits for these entries, or for any, that the outcome is unknown."""
        for base in bases or list(self.undecided):
            self._answer(base, Refused(Reason.QUORUM_TIMEOUT, f"the batch at {base} was not confirmed", self.epoch))

    def begin_rollback(self, first: int) -> int:
        """Append ROLLBACK(first), which nobody has committed yet; return its offset."""
        at = self.add(None, Kind.ROLLBACK, first).last
        self.rollbacks.append((first, at))
        return at

    def finish_rollback(self) -> None:
        """Commit every rollback record; the newest batch hears of it first."""
        self.final |= {at for _, at in self.rollbacks}
        for base in sorted(self.undecided, reverse=True):
            covered = self.covering(base)
            if covered is not None:
                self._answer(base, Refused(Reason.ROLLED_BACK, "rolled back", self.epoch, covered[1]))
                del self.undecided[base]
        self._answer_claims()
        self._wake()

    def confirm(self) -> None:
        """Confirm everything that no rollback covers; the oldest batch hears of it first."""
        by_base = {entry.base: entry for entry in self.entries}
        for base in sorted(self.undecided):
            if self.covering(base) is None:
                entry = by_base[base]
                self._answer(base, Appended(entry.epoch, entry.base, entry.count, Durability.QUORUM))
                del self.undecided[base]
        self._answer_claims()
        self._wake()

    def resign(self) -> None:
        """Tell everybody who waits to ask the next leader."""
        refused = Refused(Reason.NOT_LEADER, "leadership ended before the outcome was known")
        for base in self.undecided:
            self._answer(base, refused)
        claims, self.claims = self.claims, []
        for _, _, reply in claims:
            reply(refused)

    def _answer(self, base: int, value: Appended | Refused) -> None:
        waiting, self.undecided[base] = self.undecided[base], []
        for reply in waiting:
            reply(value)

    def _answer_claims(self) -> None:
        ready = [each for each in self.claims if each[0] <= self.readable]
        self.claims = [each for each in self.claims if each[0] > self.readable]
        for at, batch, reply in ready:
            fence = fence_of(self.producers.judge(batch.producer, batch.sequence, 1000).expected - 1)
            if fence > fence_of(batch.sequence):
                reply(self._fenced(fence))
                continue
            standing = self.producers.standing(batch.producer, at, self.covering)
            reply(Claimed(self.epoch, at, standing.sequence, standing.epoch, standing.base, standing.count))

    def _fenced(self, fence: int) -> Refused:
        return Refused(Reason.PRODUCER_FENCED, f"claimed with fence {fence}", self.epoch, fence)

    # --- requests

    def claim(self, batch: Batch, reply: ClaimReply) -> None:
        """Judge a claim as the core does; `reply` is called now or once everything in front of it is decided."""
        self.claimed.append(batch.key)
        if self.deaf:
            return
        if self.claim_refusals:
            reply(self.claim_refusals.popleft())
            return
        verdict = self.producers.judge(batch.producer, batch.sequence, 1000)
        fence = fence_of(verdict.expected - 1)
        if verdict.place is not None and not verdict.place.count:
            at = verdict.place.base
        elif verdict.known and fence_of(batch.sequence) <= fence:
            reply(Refused(Reason.FENCE_TOO_LOW, f"claimed with fence {fence}", self.epoch, fence))
            return
        else:
            at = self.add(batch, Kind.CLAIM, batch.sequence).last
        if self.lost_claims:
            self.lost_claims -= 1
            return
        self.claims.append((at, batch, reply))
        self._answer_claims()

    def append(self, batch, resume_after: int, reply: Reply, expect: int = -1) -> None:  # type: ignore[no-untyped-def]
        """Judge a batch as the core does; `reply` is called now, later or never."""
        self.sent.append((batch.producer, batch.sequence))
        self.marks.append(resume_after)
        if (documents := self.documents) is not None:
            reply = _as_written(documents, reply)
        if self.deaf:
            return
        refused = self.refusals.popleft() if self.refusals else self._refuse(batch)
        if refused is not None:
            reply(refused)
            return
        place = self.producers.judge(batch.producer, batch.sequence, 1000).place
        if place is not None:
            assert place.count == batch.count, "a sequence was used for two batches"
            self._answer_known(place, reply)
            return
        for known in self.producers.places(batch.producer):
            covered = self.covering(known.base)
            if not known.count or fence_of(known.sequence) != fence_of(batch.sequence):
                continue   # a claim takes up behind every rollback in front of it
            if covered is not None and resume_after < covered[1]:
                reply(Refused(Reason.PRODUCER_ROLLED_BACK, "was rolled back", self.epoch, covered[1]))
                return
        newest = self.producers.newest
        end = newest.base + max(newest.count, 1) if newest is not None else 0
        if 0 <= expect < end:
            reply(Refused(Reason.RECORD_CAME_FIRST, f"a record lies at offset {end - 1}", self.epoch, end))
            return
        entry = self.add(batch)
        if self.limbo:
            self.undecided[entry.base] = [reply]
        elif self.silent:
            self.silent -= 1
        else:
            reply(Appended(entry.epoch, entry.base, entry.count, batch.durability))

    def _refuse(self, batch) -> Refused | None:  # type: ignore[no-untyped-def]
        wrong = check_batch(batch, BATCH_BYTES_MAX)
        if wrong is not None:
            return Refused(Reason.INVALID_BATCH, wrong, self.epoch)
        verdict = self.producers.judge(batch.producer, batch.sequence, 1000)
        if verdict.place is None and verdict.fence:
            return self._fenced(verdict.fence)
        if verdict.too_old:
            return Refused(Reason.SEQUENCE_TOO_OLD, "forgotten", self.epoch, verdict.expected)
        if verdict.place is None and batch.sequence != verdict.expected:
            reason = Reason.SEQUENCE_GAP if verdict.known else Reason.PRODUCER_UNKNOWN
            return Refused(reason, f"expected {verdict.expected}", self.epoch, verdict.expected)
        return None

    def _answer_known(self, place: Place, reply: Reply) -> None:
        covered = self.covering(place.base)
        if place.base in self.undecided:
            self.undecided[place.base].append(reply)
        elif covered is not None:
            reply(Refused(Reason.ROLLED_BACK, "rolled back", self.epoch, covered[1]))
        else:
            reply(Appended(place.epoch, place.base, place.count, Durability.QUORUM))

    async def outcome(self, producer: bytes, sequence: int, wait: bool) -> Outcome:
        """Say what became of a batch; a test's `time_out` ends the wait."""
        place = self.producers.judge(producer, sequence, 1000).place
        if place is None:
            return Outcome(Fate.NOT_FOUND, self.epoch, -1, 0)
        found = (place.epoch, place.base, place.count)
        if place.base in self.undecided and not wait:
            return Outcome(Fate.UNKNOWN, *found)
        answered: asyncio.Future[Appended | Refused] = asyncio.get_running_loop().create_future()
        self._answer_known(place, answered.set_result)
        value = await answered
        if isinstance(value, Appended):
            return Outcome(Fate.CONFIRMED, *found)
        if value.reason is Reason.ROLLED_BACK:
            return Outcome(Fate.ROLLED_BACK, *found, value.expected)
        return Outcome(Fate.UNKNOWN, *found)

    def view(self, entries_max: int) -> LimboView:
        """Return the limbo as a leader shows it: two of three members hold everything."""
        waiting = [entry for entry in self.entries if entry.base in self.undecided]
        pending = [first for first, at in self.rollbacks if at not in self.final]
        return LimboView(
            self.epoch, self.head, self.readable, self.readable, ("n0", "n1", "n2"), 3, 0, len(waiting),
            sum(entry.size for entry in waiting), 1500 if waiting else 0, len(self.final), 0,
            min(pending, default=-1), 5000,
            tuple(
                LimboEntry(
                    entry.base, entry.count, entry.size, entry.durability, 1500,
                    ROLLING_BACK if self.covering(entry.base) else WAITING, len(self.undecided[entry.base]),
                    ("n0", "n1"), ("n2",), entry.producer, entry.sequence,
                )
                for entry in waiting[:entries_max]
            ),
        )


class FakeNode:
    """One gRPC server."""

    def __init__(self, cluster: FakeCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.address = ""
        self.frames = 0
        self.calls = 0
        self.streams = 0
        self.map_calls = 0
        self.asked = 0  # calls of a kind that only a leader answers
        self.delay_s = 0.0
        self.read_delay_s = 0.0  # between two frames of a read
        self.delivery = Faults()
        self.serves_documents = True
        self.serves_keyspaces = True
        self.keyspaces = KeyspaceFaults()
        self.changes = ChangeFaults()
        self.zone = ""
        self.location = ""
        self.wire_version = WIRE_VERSION   # as the map says it
        self.known = common_pb2.ShardMap()  # what it would say of the map; set by FakeCluster.push
        self.paused = asyncio.Event()
        self.paused.set()
        self._server: grpc.aio.Server | None = None

    async def start(self, port: int = 0) -> None:
        server = self._server = grpc.aio.server(options=wire.server_options())
        servicer = _Servicer(self)
        node_pb2_grpc.add_TidemarkServicer_to_server(servicer, server)
        ChangesHandler(self).register(server)   # in front of the service that does not implement it
        documents_pb2_grpc.add_DocumentsServicer_to_server(DocumentsServicer(self), server)
        if self.serves_keyspaces:
            keyspaces_pb2_grpc.add_KeyspacesServicer_to_server(KeyspacesServicer(self), server)
        server.add_generic_rpc_handlers(
            [
                grpc.method_handlers_generic_handler(
                    "tidemark.v1.Tidemark",
                    {
                        "Append": grpc.stream_stream_rpc_method_handler(servicer.append),
                        "Deliver": grpc.stream_stream_rpc_method_handler(servicer.deliver),
                        "Read": grpc.unary_stream_rpc_method_handler(
                            servicer.read, request_deserializer=node_pb2.ReadRequest.FromString
                        ),
                    },
                )
            ]
        )
        bound = wire.bind(server, f"127.0.0.1:{port}")
        self.address = f"127.0.0.1:{bound}"
        await server.start()

    async def kill(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    @property
    def alive(self) -> bool:
        return self._server is not None


class _Servicer(node_pb2_grpc.TidemarkServicer):
    def __init__(self, node: FakeNode) -> None:
        self.node = node

    async def GetShardMap(self, request, context):  # type: ignore[no-untyped-def]
        self.node.map_calls += 1
        await self.node.paused.wait()
        return self.node.known

    async def WatchShardMap(self, request, context):  # type: ignore[no-untyped-def]
        version = request.known_version
        while True:
            await self.node.paused.wait()
            if self.node.known.version > version:
                version = self.node.known.version
                yield self.node.known
            await self.node.cluster.pushed.wait()

    async def append(self, stream, context):  # type: ignore[no-untyped-def]
        node = self.node
        node.streams += 1
        wire.read_hello(context.invocation_metadata())
        answers: list[frames.AppendAnswer] = []
        ready = asyncio.Event()

        def reply(answer: frames.AppendAnswer) -> None:
            answers.append(answer)
            ready.set()

        async def send() -> None:
            while True:
                await ready.wait()
                if node.delay_s:
                    await asyncio.sleep(node.delay_s)
                await node.paused.wait()
                ready.clear()
                some = answers[:]
                answers.clear()
                await context.write(frames.encode_answers(some))

        sender = asyncio.create_task(send())
        try:
            while (frame := await context.read()) is not grpc.aio.EOF:
                node.frames += 1
                for call in frames.decode_appends(frame):
                    node.calls += 1
                    self._answer(call, reply)
        finally:
            sender.cancel()

    def _answer(self, call: frames.AppendCall, reply: Callable[[frames.AppendAnswer], None]) -> None:
        cluster = self.node.cluster
        refused = cluster.refusal(call.group, call.group_id)
        if refused is not None:
            reply(frames.AppendAnswer(call.request, refused, map_version=self.node.known.version))
            return
        shard = cluster.groups[call.group][call.shard]
        if shard.leader != self.node.name:
            leader = cluster.nodes.get(shard.leader)
            refused = Refused(Reason.NOT_LEADER, "not the leader", shard.epoch)
            address = leader.address if leader and cluster.hints else ""
            reply(frames.AppendAnswer(call.request, refused, shard.leader, address, self.node.known.version))
            return
        if not call.batch.count:
            shard.claim(call.batch, lambda value: reply(frames.AppendAnswer(call.request, value)))
            return
        shard.append(
            call.batch, call.resume_after, lambda value: reply(frames.AppendAnswer(call.request, value)), call.expect
        )

    async def deliver(self, stream, context):  # type: ignore[no-untyped-def]
        wire.read_hello(context.invocation_metadata())
        await FakeStream(self.node, context).run()

    async def _led(self, request, context) -> FakeShard:  # type: ignore[no-untyped-def]
        self.node.asked += 1
        await self.node.paused.wait()
        await self.node.cluster.check(request, context)
        shard = self.node.cluster.groups[request.group][request.shard]
        if shard.leader != self.node.name:
            error = to_rpc_error(Refused(Reason.NOT_LEADER, "not the leader", shard.epoch))
            await context.abort(error.code, error.details, error.trailing_metadata)
        return shard

    async def Outcome(self, request, context):  # type: ignore[no-untyped-def]
        shard = await self._led(request, context)
        self.node.cluster.questions.append((self.node.name, request.sequence))
        if shard.producers.judge(request.producer, request.sequence, 1000).too_old:
            error = to_rpc_error(Refused(Reason.SEQUENCE_TOO_OLD, "forgotten", shard.epoch))
            await context.abort(error.code, error.details, error.trailing_metadata)
        return outcome_to_proto(await shard.outcome(request.producer, request.sequence, request.wait))

    async def Limbo(self, request, context):  # type: ignore[no-untyped-def]
        return limbo_to_proto((await self._led(request, context)).view(request.entries_max))

    async def CommitPosition(self, request, context):  # type: ignore[no-untyped-def]
        shard, name = await self._led(request, context), request.subscription
        if shard.commit_refusals:
            error = to_rpc_error(shard.commit_refusals.popleft())
            await context.abort(error.code, error.details, error.trailing_metadata)
        shard.commits.append((name, request.offset))
        stands, _ = shard.positions.get(name, (-1, 0))
        offset = request.offset if request.seek else max(stands, request.offset)
        shard.positions[name] = offset, request.lease_ms
        return node_pb2.CommitPositionResponse(epoch=shard.epoch, offset=offset)

    async def Subscriptions(self, request, context):  # type: ignore[no-untyped-def]
        shard = await self._led(request, context)
        return subscriptions_to_proto(
            SubscriptionsView(
                shard.epoch, shard.trimmed_to, shard.readable,
                tuple(
                    SubscriptionView(name, offset, lease_ms, 0, lease_ms, max(0, shard.readable + 1 - offset), 0)
                    for name, (offset, lease_ms) in sorted(shard.positions.items())
                ),
            )
        )

    async def DeleteSubscription(self, request, context):  # type: ignore[no-untyped-def]
        shard = await self._led(request, context)
        existed = shard.positions.pop(request.subscription, None) is not None
        return node_pb2.DeleteSubscriptionResponse(epoch=shard.epoch, existed=existed)

    async def JoinSink(self, request, context):  # type: ignore[no-untyped-def]
        shard, change = await self._led(request, context), Join(request.part)
        verdict = await self._changed(shard, request, context, change)
        return node_pb2.JoinSinkResponse(epoch=shard.epoch, marked=verdict.marked)

    async def MarkSink(self, request, context):  # type: ignore[no-untyped-def]
        shard, change = await self._led(request, context), Mark(request.parts, marks_from_proto(request.ends))
        await self._changed(shard, request, context, change)
        return node_pb2.MarkSinkResponse(epoch=shard.epoch)

    async def _changed(self, shard, request, context, change):  # type: ignore[no-untyped-def]
        sink, batch = shard.sinks.get(request.sink), request.batch
        verdict = judge(sink, batch, change)
        if verdict.refused is not None:
            error = to_rpc_error(Refused(verdict.refused, verdict.message, shard.epoch))
            await context.abort(error.code, error.details, error.trailing_metadata)
        shard.sinks[request.sink] = after(sink, SinkRecord(0, request.sink, batch, 0, request.lease_ms, change))
        return verdict

    async def Sinks(self, request, context):  # type: ignore[no-untyped-def]
        shard = await self._led(request, context)
        return sinks_to_proto(SinksView(shard.epoch, tuple(
            SinkView(
                name, sink.batch, sink.joined.bit_count(), sink.marked, sink.parts, sink.lease_ms, 0, sink.lease_ms,
                sink.ends)
            for name, sink in sorted(shard.sinks.items()) if request.sink in ("", name))))

    async def DeleteSink(self, request, context):  # type: ignore[no-untyped-def]
        shard = await self._led(request, context)
        existed = shard.sinks.pop(request.sink, None) is not None
        return node_pb2.DeleteSinkResponse(epoch=shard.epoch, existed=existed)

    async def read(self, request, context):  # type: ignore[no-untyped-def]
        cluster = self.node.cluster
        await cluster.check(request, context)
        shard = cluster.groups[request.group][request.shard]
        if shard.leader != self.node.name:
            error = to_rpc_error(Refused(Reason.NOT_LEADER, "not the leader", shard.epoch))
            await context.abort(error.code, error.details, error.trailing_metadata)
        position = getattr(request, "from")
        if position < shard.trimmed_to:
            error = to_rpc_error(Refused(Reason.TRIMMED, "gone", shard.epoch, shard.trimmed_to))
            await context.abort(error.code, error.details, error.trailing_metadata)
        until = request.until if request.until >= 0 else shard.readable
        cluster.reads.append((request.shard, position, until, request.tail))
        while True:
            changed, readable = shard.changed, shard.readable
            await self.node.paused.wait()
            through = readable if request.tail else min(until, readable)
            entries = [
                entry for entry in shard.entries
                if entry.last >= position and entry.base <= through and (
                    entry.kind is not Kind.DATA or shard.covering(entry.base) is None
                )
            ]
            began = position
            for start in range(0, len(entries), 3):
                some = tuple(entries[start : start + 3])
                last = some[-1].last
                holes = tuple(
                    (max(first, position), min(at - 1, last))
                    for first, at in shard.rollbacks
                    if first <= last and at - 1 >= position
                )
                yield frames.encode_read(frames.ReadFrame(position, last, readable, some, holes))
                position = last + 1
                await asyncio.sleep(self.node.read_delay_s)
                await self.node.paused.wait()
            if not request.tail and position <= through:  # it ends in a hole
                yield frames.encode_read(
                    frames.ReadFrame(position, through, readable, (), ((position, through),))
                )
                position = through + 1
            if not request.tail and position > until:
                if position == began:
                    yield frames.encode_read(frames.ReadFrame(position, position - 1, readable, ()))
                return
            await changed.wait()


class FakeCluster:
    """Nodes n0, n1, ... and groups of shards spread over them."""

    def __init__(self) -> None:
        self.nodes: dict[str, FakeNode] = {}
        self.groups: dict[str, dict[int, FakeShard]] = {}
        self.keyspaces: dict[str, FakeKeyspace] = {}
        self.group_ids: dict[str, int] = {}
        self._last_group_id = 0
        self.refused = 0     # requests for groups that were not there
        self.version = 0
        self.pushed = asyncio.Event()
        self.hints = True
        self.reads: list[tuple[int, int, int, bool]] = []
        self.questions: list[tuple[str, int]] = []  # node, sequence of every Outcome call
        self.ensemble: list[str] | None = None  # None: every node is a member
        self.payload_copies = 0
        self.keys_required = False
        self.max_record_bytes = 1 << 20
        self.default_ack = "Quorum"
        self.quorum_timeout_ms = 0

    async def start(self, nodes: int = 3, shards: int = 4, group: str = "orders") -> FakeCluster:
        for number in range(nodes):
            node = self.nodes[f"n{number}"] = FakeNode(self, f"n{number}")
            await node.start()
        self.add_log(group, shards)
        return self

    def add_documents(self, group: str, shards: int = 4, *, push: bool = True) -> list[FakeShard]:
        """Add a group of kind Documents."""
        names = list(self.nodes)
        made = [FakeShard(index, names[index % len(names)], len(names)).keep_documents() for index in range(shards)]
        for shard in made:
            shard.add(None, Kind.EPOCH_START)
        self.groups[group] = {shard.index: shard for shard in made}
        if push:
            self.push()
        return made

    def add_keyspace(self, name: str, ranges: int = 4, owners: int = 2, **fields: object) -> FakeKeyspace:
        """Add a keyspace, each range with the next `owners` nodes; one made again has another id."""
        names = list(self.nodes) * 2
        self._last_group_id += 1
        made = self.keyspaces[name] = FakeKeyspace(
            name, self._last_group_id,
            [tuple(names[index % len(self.nodes):][:owners]) for index in range(ranges)], fields=fields)
        self.push()
        return made

    def group_id(self, name: str) -> int:
        """Return the id of a group, which no group before it had."""
        if name not in self.group_ids:
            self._last_group_id += 1
            self.group_ids[name] = self._last_group_id
        return self.group_ids[name]

    def delete(self, name: str, *, push: bool = True) -> None:
        """Delete a group; one that is added under its name later has another id."""
        del self.groups[name], self.group_ids[name]
        if push:
            self.push()

    def add_log(self, name: str, shards: int = 4, *, push: bool = True) -> None:
        """Add a group of kind Log."""
        nodes = list(self.nodes)
        self.groups[name] = {
            index: FakeShard(index, nodes[index % len(nodes)], len(nodes)) for index in range(shards)}
        for shard in self.groups[name].values():
            shard.add(None, Kind.EPOCH_START)
        if push:
            self.push()

    def refusal(self, name: str, group_id: int) -> Refused | None:
        """Return how a node refuses a request for a group that is not there (T13)."""
        if name not in self.groups:
            refused = Refused(Reason.UNKNOWN_GROUP, f"no group {name}")
        elif group_id not in (0, self.group_id(name)):
            refused = Refused(Reason.GROUP_REPLACED, f"{name} is another group", retry_after_ms=60_000)
        else:
            return None
        self.refused += 1
        return refused

    async def check(self, request, context) -> None:  # type: ignore[no-untyped-def]
        """End a call for a group that is not there."""
        if (refused := self.refusal(request.group, request.group_id)) is not None:
            error = to_rpc_error(refused)
            await context.abort(error.code, error.details, error.trailing_metadata)

    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes.values() if node.alive]

    def shard_map(self) -> common_pb2.ShardMap:
        result = common_pb2.ShardMap(version=self.version, cluster="fake")
        for node in self.nodes.values():
            result.nodes.add(
                node=node.name, incarnation=f"{node.name}-1", address=node.address, available=node.alive,
                zone=node.zone, location=node.location, wire_version=node.wire_version,
            )
        for name, shards in self.groups.items():
            group = result.groups.add(
                name=name, group_id=self.group_id(name),
                kind="Log" if shards[0].documents is None else "Documents", max_batch_bytes=BATCH_BYTES_MAX,
                max_record_bytes=self.max_record_bytes, keys_required=self.keys_required, default_ack=self.default_ack,
                quorum_timeout_ms=self.quorum_timeout_ms,
            )
            width = (1 << 32) // len(shards)
            for index, shard in shards.items():
                last = index == len(shards) - 1
                group.shards.add(
                    index=index, epoch=shard.epoch, leader=shard.leader, status="STEADY",
                    ensemble=list(self.nodes) if self.ensemble is None else self.ensemble,
                    payload_copies=self.payload_copies,
                    hash_min=index * width, hash_max=(1 << 32) - 1 if last else (index + 1) * width - 1,
                )
        for keyspace in self.keyspaces.values():
            keyspace.put(result)
        return result

    def push(self, to: list[str] | None = None) -> None:
        """Give every node, or only these, the map as it is now."""
        self.version += 1
        for name in self.nodes if to is None else to:
            self.nodes[name].known = self.shard_map()
        pushed, self.pushed = self.pushed, asyncio.Event()
        pushed.set()

    def elect(self, shard: FakeShard, leader: str, *, push: bool = True) -> None:
        """Let `leader` lead the shard in a new epoch."""
        shard.epoch += 1
        shard.leader = leader
        shard.add(None, Kind.EPOCH_START)
        if push:
            self.push()

    async def stop(self) -> None:
        for node in self.nodes.values():
            node.paused.set()
            await node.kill()
