"""One shard's lane of an appender: batches in sequence order, at most five unanswered, resent until answered.

The cluster remembers the last five batches of a producer (L18-L21), so a batch may be sent as often as needed
and is appended once.  After any trouble the lane sends nothing new: it waits until every call on a live link
was answered, then resends all that is unanswered in sequence order.  A lane that must leave a sequence behind
for good (lost LOCAL appends, a refused batch, a batch given up) goes on under a new producer id.
Stays out: filling batches (appender), streams (links), who leads (routing), sequences after a rollback (flights).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from google_crc32c import value as crc32c
from pyarrow import ArrowException
from tidemark_core.base.entry import Batch, Durability
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents.requests import Written
from tidemark_core.replication.messages import Appended as AppendedMessage
from tidemark_wire.frames import AppendAnswer

from . import endings
from .acknowledged import Acknowledged
from .errors import AcknowledgedDataLost, InvalidArgument, LocalAppendsLost, TidemarkError, error_of
from .flights import Flight, Rollbacks
from .links import AppendLink
from .pending import Pending
from .retrying import Backoff

if TYPE_CHECKING:
    from .dispatch import Dispatcher

log = logging.getLogger("tidemark.appender")

IN_FLIGHT_MAX = 5  # what the cluster remembers of a producer
ATTEMPT_STALLED_S = 1.0  # no answer for so long: look for a newer leader
ATTEMPT_ABANDONED_S = 1.0  # no answer for so long behind the quorum timeout and no newer leader: a fresh stream
LAST_ANSWER_S = 0.2  # when time is over, the answer that is under way is awaited for so long
ASK_AGAIN_S = 0.1  # a leader that does not know is not asked more often
FORGOTTEN_AFTER_S = 24 * 3600.0  # an idle producer may be forgotten; a busy one is not

# The batch is not at fault: the same sequence is sent again, here or to another node.
RETRIED = frozenset(
    {
        Reason.NOT_LEADER, Reason.UNKNOWN_SHARD, Reason.NOT_MEMBER, Reason.STALE_EPOCH, Reason.WRONG_STATE,
        Reason.TRANSFERRING, Reason.OVERLOADED, Reason.DISK_FULL, Reason.RECONFIGURING, Reason.NO_LEADER,
        Reason.SHUTTING_DOWN, Reason.NODE_UNAVAILABLE, Reason.BEHIND, Reason.ROLLING_BACK, Reason.NO_REPLICA,
        # The map decides whether a group is there: the node's may be the older one.
        Reason.UNKNOWN_GROUP, Reason.GROUP_REPLACED,
    }
)
# Whoever says so leads all the same.
HERE_TO_STAY = frozenset({Reason.OVERLOADED, Reason.DISK_FULL, Reason.ROLLING_BACK})
# Said before anything is appended: this attempt is in no log.
NOT_TAKEN = frozenset({
    Reason.OVERLOADED, Reason.DISK_FULL, Reason.ROLLING_BACK, Reason.SEQUENCE_GAP, Reason.PRODUCER_UNKNOWN,
    Reason.UNKNOWN_GROUP, Reason.GROUP_REPLACED,
})
OUT_OF_PLACE = frozenset({Reason.SEQUENCE_GAP, Reason.PRODUCER_UNKNOWN})


class Lane:
    """Sends the batches of one shard."""

    def __init__(self, dispatcher: Dispatcher[Any], index: int) -> None:
        self._dispatcher = dispatcher
        self.group_name = dispatcher.group_name
        self.group_id = 0     # as frames for the leader's node say it
        self.life = dispatcher.group.group_id
        self.index = index
        self.queue: deque[Any] = deque()  # batches of keyed writes; the last one may still be filling
        self.flights: deque[Flight] = deque()
        self.recovering = False
        self.trouble = ""
        self._producer = dispatcher.routing.new_producer()
        self._sequence = 0
        self._link: AppendLink | None = None
        self._leader_epoch = -1
        self._backoff = Backoff(first_s=0.0)
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # uvloop's handles do not know their time
        self._last_answer_at = 0.0
        self._acknowledged = Acknowledged(IN_FLIGHT_MAX)
        self._rollbacks = Rollbacks()

    # --- sending

    def has_slot(self) -> bool:
        """Say whether one more batch may be sent now."""
        if self.recovering:
            return False
        flights = self.flights
        return not flights or self._sequence - flights[0].batch.sequence < IN_FLIGHT_MAX

    def submit(self, pending: Pending) -> None:
        """Give a batch the next sequence and send it; needs `has_slot`."""
        try:
            payload, count, first_us, last_us = pending.seal(self._dispatcher.settings.compression)
        except (ArrowException, ValueError, TypeError, OverflowError) as error:
            # The checks should not have let it through; one bad batch must not stop the lane.
            pending.fail(InvalidArgument("records", f"cannot be encoded: {error}"))
            self._dispatcher.release(pending.bytes)
            return
        batch = Batch(
            self._producer, self._sequence, count, first_us, last_us, crc32c(payload), payload, pending.durability
        )
        self._sequence += 1
        flight = Flight(batch, pending)
        self.flights.append(flight)
        link = self._link_to_leader()
        if link is None or (link is not self._link and len(self.flights) > 1):
            self.recover(0.0)
            return
        self._link = link
        self._send(flight, link)

    def _send(self, flight: Flight, link: AppendLink) -> None:
        flight.link = link
        flight.sent_at = self._dispatcher.loop.time()
        flight.behind = None
        link.send(self, flight, self._rollbacks.resume_after(self._leader_epoch))

    def _link_to_leader(self) -> AppendLink | None:
        leader = self._dispatcher.routing.leader(self.group_name, self.index)
        if leader is None:
            return None
        self._leader_epoch = leader.epoch
        self.group_id = self._dispatcher.routing.id_for(leader.node, self.life)
        return self._dispatcher.links.to(leader.address)

    # --- answers

    def on_answer(self, flight: Flight, batch: Batch, answer: AppendAnswer, link: AppendLink) -> None:
        if batch is not flight.batch or flight not in self.flights or flight.error is not None:
            return  # settled before, by another leader or under another producer id
        newest = flight.link is link
        if newest:
            flight.link = None
        self._last_answer_at = self._dispatcher.loop.time()
        value = answer.value
        if flight.ended:
            pass  # its fate is final; an answer to another attempt says nothing new
        elif isinstance(value, AppendedMessage | Written):
            self._on_appended(flight, value)
        elif newest or value.reason is not Reason.PRODUCER_ROLLED_BACK:  # the attempt that counts is still out
            self._on_refused(flight, value, answer)
        if self.recovering and self._timer is None:
            self.recover(0.0)
        self._dispatcher.touch(self)

    def _on_appended(self, flight: Flight, value: AppendedMessage | Written) -> None:
        self._backoff.reset()
        self.trouble = ""
        batch, durability = flight.batch, Durability(value.durability)
        self._acknowledged.note(batch.sequence, value.count, durability)
        if durability is Durability.QUORUM and batch.durability is Durability.COMMIT:
            durability = Durability.COMMIT  # that is what was waited for, and not for the synchro quorum
        self._remove(flight)
        flight.pending.settle(self.index, value, durability, batch)

    def _on_refused(self, flight: Flight, value: Refused, answer: AppendAnswer) -> None:
        routing = self._dispatcher.routing
        if value.reason not in OUT_OF_PLACE or not self.trouble:   # a gap follows from what was refused before it
            self.trouble = f"{value.reason}: {value.message}"
        routing.hint(self.group_name, self.index, answer.leader_node, answer.leader_address, value.epoch)
        # A node that is cut off from the operators knows no newer leader either: ask the others too.
        lost_touch = value.reason in RETRIED - HERE_TO_STAY or value.reason is Reason.QUORUM_TIMEOUT
        if answer.map_version > routing.map.version or lost_touch:
            routing.refresh_soon()
        if value.reason in OUT_OF_PLACE and value.epoch >= routing.epoch(self.group_name, self.index):
            self._on_gap(value)
        elif value.reason in OUT_OF_PLACE or value.reason in RETRIED:
            flight.doubtful |= value.reason not in NOT_TAKEN
            self.recover(value.retry_after_ms / 1000 if value.retry_after_ms >= 0 else None)
        elif value.reason is Reason.QUORUM_TIMEOUT:
            self._on_quorum_timeout(flight, value)
        elif value.reason is Reason.ROLLED_BACK:
            self._on_rolled_back(flight, value)
        elif value.reason is Reason.PRODUCER_ROLLED_BACK:
            flight.behind = value
            self.recover(None)
        elif value.reason is Reason.SEQUENCE_TOO_OLD:
            self._remove(flight)
            flight.pending.fail(endings.forgotten(flight, self.group_name, self.index, value))
        else:
            flight.error = error_of(value)
            flight.pending.fail(flight.error)
            self.recover(0.0)

    def _on_quorum_timeout(self, flight: Flight, value: Refused) -> None:
        """Nobody knows yet: ask with the same sequence, which waits for the fate, or say so and go on."""
        self._dispatcher.quorum_timeouts += 1
        flight.doubtful = True
        if self._dispatcher.settings.on_quorum_timeout == "wait":
            self.recover(max(0.0, flight.sent_at + ASK_AGAIN_S - self._dispatcher.loop.time()))
            return
        self._remove(flight)
        self._acknowledged.keep(flight)
        flight.pending.fail(endings.quorum_timeout(flight, self.group_name, self.index, value))

    def _on_rolled_back(self, flight: Flight, value: Refused) -> None:
        """Final: whoever still wants the batch gets it appended anew, under a sequence that `_resend` finds."""
        self._backoff.reset()
        self._dispatcher.rolled_back_batches += 1
        self._acknowledged.decided(flight.batch.sequence)
        self._rollbacks.on_rolled_back(flight, value)
        retry = self._dispatcher.settings.on_rollback == "retry"
        if retry and not flight.expired and self._dispatcher.loop.time() < flight.pending.deadline:
            flight.ended = True
            self.recover(0.0)
            return
        self._remove(flight)
        if not retry or not self.flights:
            self._rollbacks.go_on()  # else a batch that turns out to be rolled back too must go first
        flight.pending.fail(endings.rolled_back(flight, self.group_name, self.index))

    def _on_gap(self, value: Refused) -> None:
        """The leader wants an earlier sequence (L21): one still held is resent, one acknowledged is gone."""
        oldest = self.flights[0].batch.sequence
        back = self._acknowledged.take_back(value.expected, oldest) if value.expected < oldest else []
        self.flights.extendleft(reversed(back))
        if value.expected >= oldest or back:
            self.recover(None)
            return
        forgotten = value.expected == 0 and self._dispatcher.loop.time() - self._last_answer_at > FORGOTTEN_AFTER_S
        if value.expected > self._acknowledged.promised:
            if lost := self._acknowledged.local_lost(value.expected):
                self._dispatcher.on_loss(
                    LocalAppendsLost(
                        f"a failover of shard {self.index} lost {lost} records acknowledged as LOCAL",
                        shard=self.index, records=lost,
                    )
                )
        elif value.reason is Reason.PRODUCER_UNKNOWN:
            self._fail_doubtful(value)
        elif not forgotten:
            broken = AcknowledgedDataLost(
                f"shard {self.index} expects sequence {value.expected}, {oldest - 1} had been acknowledged"
            )
            log.error("%s", broken)
            for flight in self.flights:
                flight.error = flight.error or broken
                flight.pending.fail(broken)
        self._renew()
        self.recover(None)

    def _fail_doubtful(self, value: Refused) -> None:
        """The leader remembers nothing of this producer, so the log may hold what has no answer (L25)."""
        for flight in [each for each in self.flights if each.doubtful]:
            self._remove(flight)
            flight.pending.fail(endings.forgotten(flight, self.group_name, self.index, value))

    def on_link_lost(self, link: AppendLink) -> None:
        self.trouble = link.error
        for flight in self.flights:
            if flight.link is link:
                flight.link, flight.doubtful = None, True
        if self.flights:
            self._dispatcher.routing.refresh_soon()
            self.recover(None)

    def _remove(self, flight: Flight) -> None:
        self.flights.remove(flight)
        self._dispatcher.release(flight.bytes)
        flight.bytes = 0

    # --- recovery

    def recover(self, delay_s: float | None) -> None:
        """Stop sending, and resend everything unanswered after `delay_s`; None backs off."""
        self.recovering = True
        if delay_s is None:
            delay_s = self._backoff.next()
        when = self._dispatcher.loop.time() + delay_s
        if self._timer is not None:
            if self._timer_at >= when:
                return  # whoever asked for the longest pause gets it
            self._timer.cancel()
        self._timer, self._timer_at = self._dispatcher.loop.call_at(when, self._resend), when

    def _recover_now(self) -> None:
        self._cancel_timer()
        self.recover(0.0)

    def _resend(self) -> None:
        self._timer = None
        if any(flight.link is not None for flight in self.flights):
            return  # answers of the running attempt come first; the last one brings us back
        self._expire_late(self._dispatcher.loop.time())
        if self.flights and self.flights[0].error is not None:
            self._renew()  # a refused sequence was never used, so neither was any behind it
        if not self._rollbacks.to_ask(self.flights):
            self._settle_rollback()
        if not self.flights:
            self.recovering = False
            self._dispatcher.pump(self)
            return
        link = self._link_to_leader()
        if link is None:
            self.trouble = "no leader is known"
            self._dispatcher.routing.refresh_soon()
            self.recover(None)
            return
        self._link = link
        # Nothing goes out behind a refused sequence; once its predecessors are settled we come back.
        sendable = self._rollbacks.to_ask(self.flights)
        self.recovering = len(sendable) < len(self.flights)
        for flight in sendable:
            self._send(flight, link)
        self._dispatcher.pump(self)

    def _settle_rollback(self) -> None:
        """Every batch here is rolled back or was not appended: number them anew and go on."""
        given_up = self._given_up()
        self._sequence = self._rollbacks.settle(self.flights, given_up, self._sequence)
        self._drop(given_up)

    def _renew(self) -> None:
        """Go on under a new producer id: nothing unanswered here is or will be in the log under the old one."""
        self._drop(self._given_up())
        self._producer = self._dispatcher.routing.new_producer()
        self._sequence = 0
        self._acknowledged = Acknowledged(IN_FLIGHT_MAX)
        self._rollbacks = Rollbacks()
        for flight in self.flights:
            flight.place(self._producer, self._sequence)
            flight.link = None
            self._sequence += 1

    def _given_up(self) -> list[Flight]:
        return [flight for flight in self.flights if flight.error is not None or flight.expired]

    def _drop(self, flights: list[Flight]) -> None:
        for flight in flights:
            self._forget(flight)
            self._remove(flight)

    def on_map(self) -> None:
        """A newer leader is resent to at once: the old one's answers, if any, change nothing."""
        if not self.flights:
            return
        leader = self._dispatcher.routing.leader(self.group_name, self.index)
        if leader is None or leader.epoch <= self._leader_epoch:
            return
        if self._link is not None and self._link.address == leader.address and not self.recovering:
            self._leader_epoch = leader.epoch
            return  # the same node in a new epoch; its own refusals speak where they must
        for flight in self.flights:
            flight.doubtful |= flight.link is not None
            flight.link = None
        self._backoff.reset()
        self._recover_now()

    # --- time

    def check_time(self, now: float) -> None:
        """Tell callers whose time is over, and look after a silent leader."""
        self._expire_late(now)
        if self.flights and all(flight.expired or flight.error is not None for flight in self.flights):
            self._renew()
            self.recover(0.0)
        for pending in [pending for pending in self.queue if now >= pending.deadline]:
            self.queue.remove(pending)
            self._dispatcher.expire(pending, self.trouble)
        sent = [flight.sent_at for flight in self.flights if flight.link is not None]
        if sent and now - min(sent) > ATTEMPT_STALLED_S:
            self._dispatcher.routing.refresh_soon()
            link = self._link  # other shards may be answered while this one lacks a quorum: that is no dead stream
            patience_s = self._dispatcher.group.quorum_timeout_s + ATTEMPT_ABANDONED_S
            if link is not None and now - max(min(sent), link.answered_at) > patience_s:
                link.abort("no answer; a fresh stream is opened")

    def _expire_late(self, now: float) -> None:
        for flight in list(self.flights):
            if flight.expired or flight.error is not None:
                continue
            under_way = flight.link is not None and not flight.doubtful  # its answer may say that it is in no log
            if now >= flight.pending.deadline + (LAST_ANSWER_S if under_way else 0.0):
                self._expire(flight)

    def _expire(self, flight: Flight) -> None:
        """Tell callers whose time is over the truth as far as it is known."""
        within = f"within {self._dispatcher.settings.timeout_s:g} s ({self.trouble or 'silence'})"
        if flight.ended:
            self._remove(flight)
            flight.pending.fail(endings.rolled_back(flight, self.group_name, self.index))
        elif flight.link is not None or flight.doubtful:
            flight.expired = True
            flight.pending.fail(endings.unanswered(flight, self.group_name, self.index, within))
        else:
            flight.error = endings.not_taken(flight, self.group_name, self.index, within)
            flight.pending.fail(flight.error)
            self.recover(0.0)

    def unanswered(self) -> list[Pending]:
        """Return what callers still wait for among the batches under way."""
        return [flight.pending for flight in self.flights if not flight.expired and flight.error is None]

    def leave(self, gone: TidemarkError) -> None:
        """The group is gone: callers get `gone` where nothing of a batch can be in its log."""
        for flight in self.flights:
            if flight.link is not None or flight.doubtful:
                within = f"before its group was gone ({gone.message})"
                flight.pending.fail(endings.unanswered(flight, self.group_name, self.index, within))
        self.stop(gone)

    def stop(self, error: Exception) -> None:
        """Give up at once; callers get `error`."""
        self._cancel_timer()
        for flight in self.flights:
            self._forget(flight)
            flight.pending.fail(error)
        for pending in self.queue:
            pending.fail(error)
        self.flights.clear()
        self.queue.clear()

    def _forget(self, flight: Flight) -> None:
        if flight.link is not None:
            flight.link.forget(flight)
            flight.link = None

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
