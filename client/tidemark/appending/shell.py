"""Lane: the shell of one shard's producer: its clock, its connections, and the callers of its batches.

Stays out: sequences and retries (core's `producing`), filling batches (batches), who leads (routing).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any

from google_crc32c import value as crc32c
from pyarrow import ArrowException
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.producing.messages import (
    Answered,
    Append,
    AskLeader,
    Claim,
    Doubt,
    End,
    Ending,
    Event,
    Fail,
    Led,
    LocalLost,
    Lost,
    Note,
    OnTime,
    Release,
    Send,
    Settle,
    Taken,
    WakeAt,
)
from tidemark_core.producing.producer import CLAIM_NUMBER, Producer
from tidemark_core.replication.messages import Claimed
from tidemark_core.replication.producer_ids import named
from tidemark_wire.frames import AppendAnswer

from ..errors import InvalidArgument, LocalAppendsLost, TidemarkError
from ..producer import LastBatch, Resumed
from . import endings
from .links import AppendLink
from .pending import Pending

if TYPE_CHECKING:
    from .batches import Dispatcher

log = logging.getLogger("tidemark.appender")


class Lane:
    """Runs the producer of one shard."""

    def __init__(self, dispatcher: Dispatcher[Any], index: int) -> None:
        self._dispatcher = dispatcher
        self.group_name = dispatcher.group_name
        self.group_id = 0     # as frames for the leader's node say it
        self._leader = ""     # that node
        self.life = dispatcher.group.group_id
        self.index = index
        self.queue: deque[Any] = deque()  # batches of keyed writes; the last one may still be filling
        self._producer = self._new_producer()
        self.resumed: Resumed | None = None      # of a named producer, once it is claimed
        self._refused: Fail | None = None        # why it cannot be
        self._claiming: list[asyncio.Future[Resumed]] = []
        self._numbers = itertools.count()
        self._waiting: dict[int, Pending] = {}   # by number: batches under way whose callers wait
        self._bytes: dict[int, int] = {}         # by number: the room that batches under way take
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self.has_room = self._producer.has_room
        self.on_map()

    def _new_producer(self) -> Producer:
        dispatcher, settings = self._dispatcher, self._dispatcher.settings
        if settings.producer is None:
            return Producer(dispatcher.routing.new_producer(), dispatcher.producing)
        claim = Claim(int.from_bytes(os.urandom(8)), settings.fence or 0)
        return Producer(named(settings.producer.name, dispatcher.routing.producer_prefix), dispatcher.producing, claim)

    @property
    def trouble(self) -> str:
        """Why it does not get on, for people."""
        return self._producer.trouble

    @property
    def idle(self) -> bool:
        """Say whether no batch is under way."""
        return self._producer.idle

    def submit(self, pending: Pending) -> None:
        """Send a batch; needs `has_room`."""
        try:
            payload, count, first_us, last_us = pending.seal(self._dispatcher.settings.compression)
        except (ArrowException, ValueError, TypeError, OverflowError) as error:
            # The checks should not have let it through; one bad batch must not stop the lane.
            pending.fail(InvalidArgument("records", f"cannot be encoded: {error}"))
            self._dispatcher.release(pending.bytes)
            self.end("an earlier batch cannot be encoded")
            return
        number = next(self._numbers)
        self._waiting[number], self._bytes[number] = pending, pending.bytes
        self._step(Append(
            number, int(pending.deadline * 1000), count, first_us, last_us, crc32c(payload), payload,
            pending.durability, pending.expect))

    # --- named producers

    async def claimed(self) -> Resumed:
        """Return where the named producer goes on, once it is claimed; raises what its claim ended with."""
        if self.resumed is not None:
            return self.resumed
        if self._refused is not None:
            raise self._error_of(self._refused)
        claiming: asyncio.Future[Resumed] = self._dispatcher.loop.create_future()
        self._claiming.append(claiming)
        return await claiming

    def _on_taken(self, fence: int, value: Claimed) -> None:
        last = LastBatch(value.base, value.count, value.batch_epoch, value.sequence) if value.count else None
        resumed = self.resumed = Resumed(self.index, fence, last)
        for claiming in self._waiting_for_claim():
            claiming.set_result(resumed)

    def _on_refused_claim(self, failed: Fail) -> None:
        refused = failed.refused
        assert refused is not None, "a claim has no deadline, so it ends with a refusal"
        if refused.reason is Reason.INVALID_BATCH:   # to a node of the release before it is a batch without records
            text = f"the leader of shard {self.index} is of a release before named producers; upgrade it"
            failed = failed._replace(refused=Refused(Reason.NEEDS_UPGRADE, text))
        self._refused = failed
        for claiming in self._waiting_for_claim():
            claiming.set_exception(self._error_of(self._refused))

    def _waiting_for_claim(self) -> list[asyncio.Future[Resumed]]:
        waiting, self._claiming = [each for each in self._claiming if not each.done()], []
        return waiting

    def end(self, why: str) -> None:
        """Give up a batch that the producer has not had: what a named one appends behind it would follow a gap."""
        self._step(End(why))
        self._dispatcher.touch(self)

    # --- what happens

    def on_answer(self, send: Send, answer: AppendAnswer) -> None:
        """Take the answer to a call."""
        value, routing = answer.value, self._dispatcher.routing
        self._step(Answered(send, value))
        if isinstance(value, Refused):
            routing.hint(self.group_name, self.index, answer.leader_node, answer.leader_address, value.epoch)
            if answer.map_version > routing.map.version:
                routing.refresh_soon()
        self._dispatcher.touch(self)

    def on_link_lost(self, link: AppendLink) -> None:
        """Learn that calls on a link will have no answer."""
        self._step(Lost(link.address, link.error))
        self._dispatcher.touch(self)

    def on_map(self) -> None:
        """Take over from the map who leads."""
        routing = self._dispatcher.routing
        self._producer.settings = self._dispatcher.producing
        leader, epoch = routing.leader(self.group_name, self.index), routing.epoch(self.group_name, self.index)
        address = None
        if leader is not None:
            self.group_id, self._leader = routing.id_for(leader.node, self.life), leader.node
            address, epoch = leader.address, leader.epoch
        self._step(Led(epoch, address, routing.producer_prefix))

    def _on_timer(self) -> None:
        self._timer = None
        self._step(OnTime())
        self._dispatcher.touch(self)

    # --- what to do

    def _step(self, event: Event) -> None:
        if self._stopped:
            return   # every caller has heard
        loop = self._dispatcher.loop
        for effect in self._producer.step(int(loop.time() * 1000), event):
            match effect:
                case Send() if effect.expect >= 0 and not self._dispatcher.routing.reads_expect(self._leader):
                    text = f"{self._leader} leads shard {self.index} and is of a release before `expect`; upgrade it"
                    loop.call_soon(self._step, Answered(effect, Refused(Reason.NEEDS_UPGRADE, text)))
                case Send():
                    self._dispatcher.links.to(effect.target).send(self, effect)
                case Settle(number, value, durability, batch):
                    self._release(number)
                    self._waiting.pop(number).settle(self.index, value, durability, batch)
                case Taken(fence, claimed):
                    self._on_taken(fence, claimed)
                case Fail(number) if number == CLAIM_NUMBER:
                    self._on_refused_claim(effect)
                case Fail():
                    if effect.left:
                        self._release(effect.number)
                    self._waiting.pop(effect.number).fail(self._error_of(effect))
                case Release(number):
                    self._release(number)
                case WakeAt(at_ms):
                    self._cancel_timer()
                    self._timer = loop.call_at(at_ms / 1000, self._on_timer)
                case AskLeader():
                    self._dispatcher.routing.refresh_soon()
                case LocalLost(records):
                    lost = LocalAppendsLost(
                        f"a failover of shard {self.index} lost {records} records acknowledged as LOCAL",
                        shard=self.index, records=records)
                    loop.call_soon(self._dispatcher.on_loss, lost)   # users append there: not amid these effects
                case Doubt(target, patience_ms):
                    link = self._dispatcher.links.to(target)
                    if loop.time() - link.answered_at > patience_ms / 1000:
                        link.abort("no answer; a fresh stream is opened")
                case Note(what):
                    self._dispatcher.noted[what] += 1

    def _release(self, number: int) -> None:
        self._dispatcher.release(self._bytes.pop(number, 0))

    def _error_of(self, failed: Fail) -> TidemarkError:
        if self._refused is not None and failed.ending is Ending.ENDED:
            # There never was an earlier batch: say why there is no claim.
            failed = failed._replace(ending=self._refused.ending, refused=self._refused.refused)
        within = f"within {self._dispatcher.settings.timeout_s:g} s ({self.trouble or 'silence'})"
        error = endings.error_of(failed, self.group_name, self.index, within)
        if failed.ending is Ending.BROKEN:
            log.error("%s", error)
        return error

    # --- the end

    def expire_queue(self, now: float) -> None:
        """Give up batches whose time is over before they were sent."""
        late = [pending for pending in self.queue if now >= pending.deadline]
        for pending in late:
            self.queue.remove(pending)
            self._dispatcher.expire(pending, self.trouble)
        if late:
            self.end(f"an earlier batch could not be sent in time ({self.trouble or 'no room'})")

    def unanswered(self) -> list[Pending]:
        """Return what callers still wait for among the batches under way."""
        return list(self._waiting.values())

    def leave(self, gone: TidemarkError) -> None:
        """The group is gone: callers get `gone` where nothing of a batch can be in its log."""
        within = f"before its group was gone ({gone.message})"
        for number, batch in self._producer.in_doubt().items():
            self._waiting.pop(number).fail(endings.unanswered(batch, self.group_name, self.index, within))
        self.stop(gone)

    def stop(self, error: Exception) -> None:
        """Give up at once; callers get `error`."""
        self._cancel_timer()
        self._stopped = True
        for pending in (*self._waiting.values(), *self.queue):
            pending.fail(error)
        for claiming in self._waiting_for_claim():
            claiming.set_exception(error)
        self._waiting.clear()
        self.queue.clear()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
