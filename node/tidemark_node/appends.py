"""Tidemark/Append: batches and claims of clients in, answers out, many of each in a frame.

Checks what can be checked without the core: the group, its limits, the batch's own checksum, and how many bytes
already wait in this process.  Stays out: leadership, sequences, order; the core answers those.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import grpc.aio
from tidemark_core.base.entry import NO_PRODUCER, Batch, check_batch
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import key_hash
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.payload import OUTCOME_BYTES, Verdict, keys_of
from tidemark_core.documents.requests import Written
from tidemark_core.replication.clients import AppendRequest, ClaimRequest
from tidemark_core.replication.messages import Appended, Claimed
from tidemark_core.replication.producer_ids import FENCE_MAX, caller_of, fence_of
from tidemark_wire.channel import check_caller
from tidemark_wire.frames import AppendAnswer, AppendCall, decode_appends, encode_answers
from tidemark_wire.identity import Role
from tidemark_wire.status import to_rpc_error
from tidemark_wire.tasks import cancelled
from tidemark_wire.wire_version import VERSION_OF_CLAIMS, VERSION_OF_UNKNOWN_PRODUCERS

from .access import Access, Caller
from .budgets import Budgets
from .driver import Driver
from .methods import PEOPLE, Method, Shape
from .metrics import Metrics
from .routing import Hint, Routing, Target

METHOD = "Tidemark.Append"
CALL_OVERHEAD_BYTES = 512
CALLS_PER_FRAME_MAX = 16_384
ANSWERS_UNSENT_MAX = 16_384
ANSWER_BYTES_UNSENT_MAX = 8 << 20
"""Of one stream, about a million outcomes; a client that reads none of them sends no more calls."""
ANSWER_FRAME_BYTES = 1 << 20
"""Far below what gRPC sends at once; one answer is smaller."""
ANSWER_OVERHEAD_BYTES = 64
RETRY_AFTER_MS = 50
NO_HINT = Hint()
FOREIGN = "the producer's id begins with the prefix of another caller: GetShardMap names the caller's own"
NOT_OWN = "a claimed producer's id begins with the prefix of its caller: GetShardMap names it"
REASONS_BEFORE = {Reason.PRODUCER_UNKNOWN: Reason.SEQUENCE_GAP, Reason.WRONG_KIND: Reason.INVALID_BATCH}
"""Reasons that clients of wire version 4 do not know, and what they hear instead."""

_log = logging.getLogger(__name__)


def as_routed(refused: Refused) -> Refused:
    """A shard that the map knows and this node does not hold is led elsewhere: a client should look again."""
    if refused.reason in (Reason.UNKNOWN_SHARD, Reason.NOT_MEMBER):
        return Refused(Reason.NOT_LEADER, refused.message, refused.epoch, refused.expected, refused.retry_after_ms)
    return refused


def _stray(target: Target, batch: Batch) -> str | None:
    """Say which key of a batch lies outside the shard's range: two shards would have a live document of it (T13)."""
    low, high = target.info.hash_min, target.info.hash_max
    if len(target.group.shards) > 1:
        for key in keys_of(batch.payload, batch.count):
            if not low <= key_hash(key) <= high:
                return f"key {key[:100]!r} does not belong to shard {target.info.index} of {target.group.name!r}"
    return None


def _wrong_claim(batch: Batch) -> str | None:
    """Return what is wrong with a claim, naming the field, or None."""
    if len(batch.producer) != len(NO_PRODUCER) or batch.producer == NO_PRODUCER:
        return f"producer must be {len(NO_PRODUCER)} bytes and not all zero"
    if batch.payload:
        return f"payload has {len(batch.payload)} bytes, a claim (record_count 0) has none"
    if not 1 <= fence_of(batch.sequence) <= FENCE_MAX:
        return f"sequence of a claim has the fence {fence_of(batch.sequence)}, must be 1 to {FENCE_MAX}"
    return None


def _size(answer: AppendAnswer) -> int:
    """Return about how many bytes an answer takes in a frame."""
    value = answer.value
    if isinstance(value, Written):
        return ANSWER_OVERHEAD_BYTES + OUTCOME_BYTES * len(value.outcomes)
    return ANSWER_OVERHEAD_BYTES + (len(value.message) if isinstance(value, Refused) else 0)


class _Stream:
    """Answers of one client's stream on their way out."""

    __slots__ = (
        "_bytes", "_ending", "answers", "caller", "closed", "outstanding", "prefix", "ready", "room", "version", "who",
    )

    def __init__(self, caller: Caller, who: str, version: int) -> None:
        self.caller = caller
        self.prefix = caller.producer_prefix
        self.who = who
        self.version = version          # of the wire
        self.answers: deque[AppendAnswer] = deque()
        self._bytes = 0                 # of these answers
        self.outstanding = 0
        self.closed = False             # nobody listens any more
        self._ending = False            # the client sends no more calls
        self.ready = asyncio.Event()
        self.room = asyncio.Event()
        self.room.set()

    @property
    def drained(self) -> bool:
        """Whether every call of a client that closed its side was answered."""
        return self._ending and not self.outstanding and not self.answers

    def finish(self) -> None:
        self._ending = True
        self.ready.set()

    def put(self, answer: AppendAnswer) -> None:
        if self.closed:
            return
        self.answers.append(answer)
        self._bytes += _size(answer)
        self.ready.set()
        if len(self.answers) > ANSWERS_UNSENT_MAX or self._bytes > ANSWER_BYTES_UNSENT_MAX:
            self.room.clear()

    def take(self) -> Iterable[AppendAnswer]:
        """Return the answers of the next frame: as many as fit, at least one where there is one."""
        if self._bytes <= ANSWER_FRAME_BYTES:
            answers, self.answers, self._bytes = self.answers, deque(), 0
        else:
            answers, left = deque(), ANSWER_FRAME_BYTES
            while self.answers and (not answers or _size(self.answers[0]) <= left):
                answer = self.answers.popleft()
                answers.append(answer)
                left -= _size(answer)
                self._bytes -= _size(answer)
        if not self.answers:
            self.ready.clear()
            self.room.set()
        return answers


class Appends:
    """All append streams of the node; they share one budget of bytes in flight (T12)."""

    def __init__(
        self, driver: Driver, routing: Routing, metrics: Metrics, batch_bytes_max: int, access: Access,
        budgets: Budgets,
    ) -> None:
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self._batch_bytes_max = batch_bytes_max
        self._access = access
        self._appended = metrics.appends.labels("APPENDED")  # found once, for it is counted per batch
        self._applied = metrics.document_writes.labels(Verdict.APPLIED.name)
        self._budgets = budgets
        self._pending = budgets.appends
        metrics.append_pending_bytes.set_function(lambda: self._pending.used)

    async def serve(self, _: Any, context: Any) -> None:
        """Handler of one stream; ends when the client has closed its side and has every answer."""
        caller, version = self._access.caller(context), check_caller(context.invocation_metadata())
        stream = _Stream(caller, self._budgets.who(context), version)
        sender = asyncio.get_running_loop().create_task(self._send(stream, context))
        try:
            while (frame := await self._budgets.read(context)) is not grpc.aio.EOF:
                await self._driver.room()
                await stream.room.wait()
                try:
                    for number, call in enumerate(decode_appends(frame)):
                        if number == CALLS_PER_FRAME_MAX:
                            raise RemoteViolation(f"a frame has at most {CALLS_PER_FRAME_MAX} appends")
                        self._take(stream, call)
                except RemoteViolation as violation:
                    await context.abort(*to_rpc_error(Refused(Reason.INVALID_BATCH, str(violation))))
                if sender.done():
                    return
            stream.finish()
            await asyncio.wait((sender,))
        finally:
            stream.closed = True
            for error in await cancelled(sender):
                if not context.cancelled():  # a client that went away is no error
                    _log.warning("answers of an append stream cannot be sent", extra={"reason": repr(error)})

    async def _send(self, stream: _Stream, context: Any) -> None:
        while not stream.drained:
            await stream.ready.wait()
            if answers := stream.take():
                await context.write(encode_answers(answers))

    def _take(self, stream: _Stream, call: AppendCall) -> None:
        refused = self._access.refusal(stream.caller, METHOD, (Role.WRITER,), call.group)
        if refused is not None:
            self._answer(stream, call.request, refused, None)
            return
        target = self._routing.find(call.group, call.shard, call.group_id)
        if isinstance(target, Refused):
            self._answer(stream, call.request, target, None)
            return
        size = len(call.batch.payload) + CALL_OVERHEAD_BYTES
        refused = self._foreign(stream, call) or self._check(target, call)
        if refused is None and not self._pending.take(stream.who, size):
            refused = self._budgets.refusal(self._pending, stream.who, RETRY_AFTER_MS)
        if refused is not None:
            self._answer(stream, call.request, refused, target)
            return
        stream.outstanding += 1
        self._metrics.append_bytes.inc(len(call.batch.payload))
        shard, batch, resume_after, expect = target.shard, call.batch, call.resume_after, call.expect
        self._driver.ask(
            (lambda number: AppendRequest(shard, number, batch, resume_after, expect)) if batch.count
            else (lambda number: ClaimRequest(shard, number, batch.producer, batch.sequence)),
            partial(self._settle, stream, call.request, target, size),
            size,
        )

    def _foreign(self, stream: _Stream, call: AppendCall) -> Refused | None:
        """Refuse the first batch of a producer that would be another caller's (L25b); later ones need the first.

        The id of a claimed producer follows from its name, which others may guess, and the sequence that is expected
        from a refusal: each claim, and each batch behind one, needs an id of its own caller.
        """
        sequence, owner = call.batch.sequence, caller_of(call.batch.producer)
        if not call.batch.count or fence_of(sequence):
            why = NOT_OWN if owner != stream.prefix else ""
        else:
            why = FOREIGN if not sequence and owner not in (b"", stream.prefix) else ""
        return self._access.denied(stream.caller, METHOD, call.group, why) if why else None

    def _check_claim(self, target: Target, call: AppendCall) -> Refused | None:
        if (wrong := _wrong_claim(call.batch)) is not None:
            return Refused(Reason.INVALID_BATCH, wrong)
        if target.has_documents:
            return Refused(Reason.WRONG_KIND, f"group {call.group!r} has documents: producers of records are claimed")
        older = self._routing.older(target, VERSION_OF_CLAIMS)
        if older:
            return Refused(
                Reason.NEEDS_UPGRADE,
                f"nodes of a release before claims keep shard {call.shard} of {call.group!r} too; "
                f"upgrade {', '.join(older)}")
        return None

    def _check(self, target: Target, call: AppendCall) -> Refused | None:
        if not call.batch.count:
            return self._check_claim(target, call)
        payload_bytes = len(call.batch.payload)
        limit = min(target.group.max_batch_bytes or self._batch_bytes_max, self._batch_bytes_max)
        if payload_bytes > limit:
            return Refused(
                Reason.BATCH_TOO_LARGE,
                f"payload has {payload_bytes} bytes, max_batch_bytes of {call.group!r} is {limit}",
            )
        if call.expect >= 0 and target.has_documents:
            return Refused(Reason.WRONG_KIND, f"group {call.group!r} has documents: each write has its own condition")
        wrong = check_batch(call.batch, limit)
        if wrong is None and target.has_documents:
            wrong = _stray(target, call.batch)
        return None if wrong is None else Refused(Reason.INVALID_BATCH, wrong)

    def _settle(
        self, stream: _Stream, request: int, target: Target, size: int,
        value: Appended | Written | Claimed | Refused,
    ) -> None:
        self._pending.give_back(stream.who, size)
        stream.outstanding -= 1
        self._answer(stream, request, value, target)

    def _answer(
        self, stream: _Stream, request: int, value: Appended | Written | Claimed | Refused, target: Target | None
    ) -> None:
        if isinstance(value, Claimed):
            self._metrics.appends.labels("CLAIMED").inc()
            stream.put(AppendAnswer(request, value))
            return
        if isinstance(value, Appended | Written):
            self._appended.inc()
            if isinstance(value, Written):
                self._count(value)
            stream.put(AppendAnswer(request, value))
            return
        if target is not None:
            value = as_routed(value)
        if stream.version < VERSION_OF_UNKNOWN_PRODUCERS:
            value = replace(value, reason=REASONS_BEFORE.get(value.reason, value.reason))
        self._metrics.appends.labels(str(value.reason)).inc()
        hint = self._routing.hint(target) if value.reason is Reason.NOT_LEADER else NO_HINT
        stream.put(AppendAnswer(request, value, hint.node, hint.address, self._routing.map.version))

    def _count(self, written: Written) -> None:
        applied = sum(outcome.verdict is Verdict.APPLIED for outcome in written.outcomes)
        self._applied.inc(applied)
        if applied < written.count:
            for verdict, count in Counter(outcome.verdict for outcome in written.outcomes).items():
                if verdict is not Verdict.APPLIED:
                    self._metrics.document_writes.labels(verdict.name).inc(count)

    # The groups are named in the frames: each call is judged there.
    METHODS: ClassVar[tuple[Method, ...]] = (Method(METHOD, Shape.BIDI, serve, kinds=PEOPLE),)
