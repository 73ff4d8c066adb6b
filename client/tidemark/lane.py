"""One shard's lane of an appender: batches in sequence order, at most five unanswered, resent until answered.

The cluster remembers the last five batches of a producer (L18-L21), so a batch may be sent as often as needed
and is appended once.  After any trouble the lane sends nothing new: it waits until every call on a live link
was answered, then resends all that is unanswered in sequence order.  A lane that must leave a sequence behind
for good (lost LOCAL appends, a refused batch, a batch given up) goes on under a new producer id.
Stays out: filling batches (appender), streams (links), who leads (routing).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
from collections import deque
from typing import TYPE_CHECKING

from google_crc32c import value as crc32c
from pyarrow import ArrowException
from tidemark_core.base.entry import Batch, Durability
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended as AppendedMessage
from tidemark_wire.frames import AppendAnswer

from .batch import encode
from .errors import AcknowledgedDataLost, InvalidArgument, LocalAppendsLost, OutcomeUnknown, error_of
from .links import AppendLink
from .pending import Pending

if TYPE_CHECKING:
    from .dispatch import Dispatcher

log = logging.getLogger("tidemark.appender")

IN_FLIGHT_MAX = 5  # what the cluster remembers of a producer
BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 0.5
ATTEMPT_STALLED_S = 1.0  # no answer for so long: look for a newer leader
ATTEMPT_ABANDONED_S = 6.0  # no answer for so long and no newer leader: a fresh stream
FORGOTTEN_AFTER_S = 24 * 3600.0  # an idle producer may be forgotten; a busy one is not

# The batch is not at fault: the same sequence is sent again, here or to another node.
RETRIED = frozenset(
    {
        Reason.NOT_LEADER, Reason.UNKNOWN_SHARD, Reason.NOT_MEMBER, Reason.STALE_EPOCH, Reason.WRONG_STATE,
        Reason.TRANSFERRING, Reason.OVERLOADED, Reason.DISK_FULL, Reason.RECONFIGURING, Reason.NO_LEADER,
        Reason.SHUTTING_DOWN, Reason.NODE_UNAVAILABLE, Reason.BEHIND,
    }
)
HERE_TO_STAY = frozenset({Reason.OVERLOADED, Reason.DISK_FULL})  # whoever says so leads all the same


class Flight:
    """A batch with its sequence, until its fate is known."""

    __slots__ = ("batch", "bytes", "error", "expired", "link", "pending", "sent_at")

    def __init__(self, batch: Batch, pending: Pending) -> None:
        self.batch = batch
        self.pending = pending
        self.bytes = pending.bytes
        self.link: AppendLink | None = None  # where an answer may still come from
        self.sent_at = 0.0
        self.expired = False  # its callers were told that the outcome is unknown
        self.error: Exception | None = None  # refused for good; its sequence stays unused


class Lane:
    """Sends the batches of one shard."""

    def __init__(self, dispatcher: Dispatcher, index: int) -> None:
        self._dispatcher = dispatcher
        self.group_name = dispatcher.group_name
        self.index = index
        self.queue: deque[Pending] = deque()  # keyed records; the last one may still be filling
        self.flights: deque[Flight] = deque()
        self.recovering = False
        self.last_refusal: Refused | None = None
        self.trouble = ""
        self._producer = os.urandom(16)
        self._sequence = 0
        self._link: AppendLink | None = None
        self._leader_epoch = -1
        self._backoff_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0.0  # uvloop's handles do not know their time
        self._last_answer_at = 0.0
        self._quorum_acknowledged = -1  # newest sequence answered with QUORUM
        self._local_acknowledged: deque[tuple[int, int]] = deque(maxlen=4096)  # sequence, records

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
            payload = encode(
                pending.values,
                pending.keys if pending.any_keys else None,
                pending.timestamps_us,
                pending.headers if pending.any_headers else None,
                self._dispatcher.settings.compression,
            )
        except (ArrowException, ValueError, TypeError, OverflowError) as error:
            # The checks should not have let it through; one bad batch must not stop the lane.
            pending.fail(InvalidArgument("records", f"cannot be encoded: {error}"))
            self._dispatcher.release(pending.bytes)
            return
        times = pending.timestamps_us
        batch = Batch(
            self._producer, self._sequence, len(times), min(times), max(times), crc32c(payload), payload,
            pending.durability,
        )
        pending.values, pending.keys, pending.timestamps_us, pending.headers = [], [], [], []
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
        link.send(self, flight)

    def _link_to_leader(self) -> AppendLink | None:
        leader = self._dispatcher.routing.leader(self.group_name, self.index)
        if leader is None:
            return None
        self._leader_epoch = leader.epoch
        return self._dispatcher.links.to(leader.address)

    # --- answers

    def on_answer(self, flight: Flight, batch: Batch, answer: AppendAnswer, link: AppendLink) -> None:
        if batch is not flight.batch or flight not in self.flights or flight.error is not None:
            return  # settled before, by another leader or under another producer id
        if flight.link is link:
            flight.link = None
        self._last_answer_at = self._dispatcher.loop.time()
        value = answer.value
        if isinstance(value, AppendedMessage):
            self._on_appended(flight, value)
        else:
            self._on_refused(flight, value, answer)
        if self.recovering and self._timer is None:
            self.recover(0.0)
        self._dispatcher.touch(self)

    def _on_appended(self, flight: Flight, value: AppendedMessage) -> None:
        self._backoff_s, self.trouble, self.last_refusal = 0.0, "", None
        if value.durability == Durability.LOCAL:
            self._local_acknowledged.append((flight.batch.sequence, value.count))
        else:
            self._quorum_acknowledged = max(self._quorum_acknowledged, flight.batch.sequence)
        self._remove(flight)
        flight.pending.settle(self.index, value.base, value.epoch, Durability(value.durability))

    def _on_refused(self, flight: Flight, value: Refused, answer: AppendAnswer) -> None:
        routing = self._dispatcher.routing
        self.last_refusal, self.trouble = value, f"{value.reason}: {value.message}"
        routing.hint(self.group_name, self.index, answer.leader_node, answer.leader_address, value.epoch)
        # A node that is cut off from the operators knows no newer leader either: ask the others too.
        if answer.map_version > routing.map.version or value.reason in RETRIED - HERE_TO_STAY:
            routing.refresh_soon()
        if value.reason is Reason.SEQUENCE_GAP and value.epoch >= routing.epoch(self.group_name, self.index):
            self._on_gap(value)
        elif value.reason is Reason.SEQUENCE_GAP or value.reason in RETRIED:
            self.recover(value.retry_after_ms / 1000 if value.retry_after_ms >= 0 else None)
        elif value.reason is Reason.SEQUENCE_TOO_OLD:
            self._remove(flight)
            flight.pending.fail(OutcomeUnknown(f"shard {self.index}: {value.message}"))
        else:
            flight.error = error_of(value)
            flight.pending.fail(flight.error)
            self.recover(0.0)

    def _on_gap(self, value: Refused) -> None:
        """The leader wants an earlier sequence (L21): one still held is resent, one acknowledged is gone."""
        oldest = self.flights[0].batch.sequence
        if value.expected >= oldest:
            self.recover(None)
            return
        forgotten = value.expected == 0 and self._dispatcher.loop.time() - self._last_answer_at > FORGOTTEN_AFTER_S
        if value.expected > self._quorum_acknowledged:
            lost = sum(count for sequence, count in self._local_acknowledged if sequence >= value.expected)
            self._dispatcher.on_loss(
                LocalAppendsLost(
                    f"a failover of shard {self.index} lost {lost} records acknowledged as LOCAL",
                    shard=self.index, records=lost,
                )
            )
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

    def on_link_lost(self, link: AppendLink) -> None:
        self.trouble = link.error
        for flight in self.flights:
            if flight.link is link:
                flight.link = None
        if self.flights:
            self._dispatcher.routing.refresh_soon()
            self.recover(None)

    def _remove(self, flight: Flight) -> None:
        self.flights.remove(flight)
        self._dispatcher.release(flight.bytes)

    # --- recovery

    def recover(self, delay_s: float | None) -> None:
        """Stop sending, and resend everything unanswered after `delay_s`; None backs off."""
        self.recovering = True
        if delay_s is None:
            delay_s = self._backoff_s
            self._backoff_s = min(BACKOFF_MAX_S, max(BACKOFF_FIRST_S, self._backoff_s * 2))
            delay_s *= random.uniform(0.5, 1.0)  # noqa: S311
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
        if self.flights and self.flights[0].error is not None:
            self._renew()  # a refused sequence was never used, so neither was any behind it
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
        sendable = list(itertools.takewhile(lambda flight: flight.error is None, self.flights))
        self.recovering = len(sendable) < len(self.flights)
        for flight in sendable:
            self._send(flight, link)
        self._dispatcher.pump(self)

    def _renew(self) -> None:
        """Go on under a new producer id: nothing unanswered here is or will be in the log under the old one."""
        for flight in [flight for flight in self.flights if flight.error is not None or flight.expired]:
            self._forget(flight)
            self._remove(flight)
        self._producer = os.urandom(16)
        self._sequence, self._quorum_acknowledged = 0, -1
        self._local_acknowledged.clear()
        for flight in self.flights:
            flight.batch = flight.batch._replace(producer=self._producer, sequence=self._sequence)
            flight.link = None
            self._sequence += 1

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
            flight.link = None
        self._backoff_s = 0.0
        self._recover_now()

    # --- time

    def check_time(self, now: float) -> None:
        """Tell callers whose time is over, and look after a silent leader."""
        for flight in self.flights:
            if not flight.expired and flight.error is None and now >= flight.pending.deadline:
                flight.expired = True
                flight.pending.fail(
                    OutcomeUnknown(
                        f"no answer for a batch of {flight.batch.count} records to shard {self.index} of "
                        f"{self.group_name!r} within {self._dispatcher.settings.timeout_s:g} s "
                        f"({self.trouble or 'silence'})"
                    )
                )
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
            if link is not None and now - max(min(sent), link.answered_at) > ATTEMPT_ABANDONED_S:
                link.abort("no answer; a fresh stream is opened")

    def unanswered(self) -> list[Pending]:
        """Return what callers still wait for among the batches under way."""
        return [flight.pending for flight in self.flights if not flight.expired and flight.error is None]

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
