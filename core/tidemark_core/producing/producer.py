"""Producer: numbers batches of one shard, and sends each until its fate is known, at most five at a time.

The cluster remembers the last five batches of a producer (L18-L21), so a batch may be sent as often as needed
and is appended once.  After any trouble the producer sends nothing new: it waits until every attempt that counts
was answered, then sends again all that is unanswered, in sequence order.  A producer that must leave a sequence behind
for good (lost LOCAL appends, a refused batch, a batch given up) goes on under a new id.  Pure.
A producer that its caller names claims its id first, and is over where others go on under a new id (L26, L28).
Stays out: sequences behind a rollback (flights), connections, and what callers read of an ending (the client).
"""

from __future__ import annotations

import binascii
from collections import deque

from ..base.entry import Batch, Durability
from ..base.refusals import RETRIED, Reason, Refused
from ..documents.requests import Written
from ..replication.messages import Appended, Claimed
from ..replication.producer_ids import FENCE_MAX, NUMBERS, claim_of, fence_of, next_of
from .acknowledged import Acknowledged
from .flights import IN_FLIGHT_MAX, Flight, Rollbacks
from .messages import (
    Answered,
    Append,
    AskLeader,
    Claim,
    Doubt,
    Effect,
    End,
    Ending,
    Event,
    Fail,
    Led,
    LocalLost,
    Lost,
    Note,
    Noted,
    OnTime,
    Release,
    Send,
    Settings,
    Settle,
    Taken,
    WakeAt,
)

ASK_AGAIN_MS = 100  # a leader that does not know is not asked more often, nor who leads while one is silent
PAUSE_FIRST_MS = 10
PAUSE_MAX_MS = 500
FORGOTTEN_AFTER_MS = 24 * 3600 * 1000  # an idle producer may be forgotten; a busy one is not

HERE_TO_STAY = frozenset({Reason.OVERLOADED, Reason.DISK_FULL, Reason.ROLLING_BACK})
"""The node that says so leads all the same."""
OUT_OF_PLACE = frozenset({Reason.SEQUENCE_GAP, Reason.PRODUCER_UNKNOWN})
NOT_TAKEN = HERE_TO_STAY | OUT_OF_PLACE | {Reason.UNKNOWN_GROUP, Reason.GROUP_REPLACED}
"""Said before anything is appended: this attempt is in no log."""
CLAIM_NUMBER = -1
"""Of a claim, as the shell hears of it; no batch of a caller has this number."""
FOREVER_MS = 1 << 62
LAST_NUMBER = NUMBERS - 1
OUT_OF_TOUCH = (RETRIED - HERE_TO_STAY) | {Reason.QUORUM_TIMEOUT}
"""A node that is cut off from the operators knows no newer leader either: others are asked too."""


class Producer:
    """Sends the batches of one shard; `id` and sequences change, the caller's numbers of batches do not."""

    def __init__(self, producer: bytes, settings: Settings, claim: Claim | None = None) -> None:
        """`producer` is a new id, or with a `claim` one that its caller names."""
        self.settings = settings
        self.id = producer
        self.trouble = ""   # why it does not get on, for people
        self._sequence = 0
        self._flights: deque[Flight] = deque()
        self._led = Led(-1, None)
        self._sent_to: str | None = None
        self._sent_epoch = -1       # of the leader that was sent to last
        self._recovering = False    # nothing new is sent
        self._resend_ms = 0         # while it recovers: when all that is unanswered goes out again, or later
        self._pause_ms = 0
        self._pauses = 0
        self._asked_ms = 0          # when it last asked who leads, because of silence
        self._answered_ms = 0
        self._wake_ms: int | None = None
        self._sends = 0
        self._heard_number = 0      # of the newest attempt when a batch was acknowledged last
        self._acknowledged = Acknowledged()
        self._rollbacks = Rollbacks()
        self._now_ms = 0
        self._effects: list[Effect] = []
        self.claim = claim
        self.claimed = claim is None
        self.over: Refused | None = None   # nothing more is appended, and why ...
        self._ending = Ending.ENDED        # ... as the callers of batches hear
        if claim is not None:
            self._claim(claim.fence or 1)
            self._recovering = True        # until it is known who leads

    # --- what the shell asks

    @property
    def idle(self) -> bool:
        """Say whether no batch is under way."""
        return not self._flights

    def has_room(self) -> bool:
        """Say whether one more batch may be sent now."""
        if self.over is not None:
            return True   # a batch is refused at once
        if self._recovering or not self.claimed:
            return False
        flights = self._flights
        if self._sequence % NUMBERS >= LAST_NUMBER:
            return not flights   # the next one has another id
        return not flights or self._sequence - flights[0].batch.sequence < IN_FLIGHT_MAX

    def in_doubt(self) -> dict[int, Batch]:
        """Return by number the batches whose callers wait, and which may be in a log."""
        return {
            flight.number: flight.batch for flight in self._flights
            if flight.batch.count and not flight.given_up and (flight.out is not None or flight.doubtful)}

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        """Take one event and return what to do, in this order."""
        self._now_ms, self._effects = now_ms, []
        match event:
            case Append():
                self._on_append(event)
            case Answered(send, value):
                self._on_answer(send, value)
            case Lost(target, why):
                self._on_lost(target, why)
            case Led():
                self._on_led(event)
            case End(why):
                self._end_claim(Refused(Reason.ABORTED, why))
                self._go_on()
            case OnTime():
                self._on_time()
        return self._effects

    # --- sending

    def _on_append(self, event: Append) -> None:
        number, deadline_ms, count, first_us, last_us, crc, payload, durability, expect = event
        if self._sequence % NUMBERS >= LAST_NUMBER:
            self._renew()
        batch = Batch(self.id, self._sequence, count, first_us, last_us, crc, payload, durability)
        if self.over is not None:
            self._effects.append(Fail(number, self._ending, batch, self.over, left=True))
            return
        self._sequence += 1
        flight = Flight(number, batch, deadline_ms, expect)
        self._flights.append(flight)
        if self._led.target is None or (self._led.target != self._sent_to and len(self._flights) > 1):
            self._recover(0)
            self._go_on()
        else:
            self._send(flight, self._led.target)
            if self._wake_ms is None or deadline_ms < self._wake_ms:
                self._wake()

    def _send(self, flight: Flight, target: str) -> None:
        self._sent_to, self._sent_epoch = target, self._led.epoch
        resume_after = self._rollbacks.resume_after(self._led.epoch)
        flight.out = Send(target, flight.number, flight.batch, resume_after, flight.expect)
        self._sends += 1
        flight.sent_ms, flight.sent_number = self._now_ms, self._sends
        flight.behind = None
        self._effects.append(flight.out)

    # --- claims

    def _claim(self, fence: int) -> None:
        """Ask for the producer under this fence, in front of everything else (L26)."""
        assert self.claim is not None
        self._sequence = claim_of(fence, self.claim.draw)
        batch = Batch(self.id, self._sequence, 0, 0, 0, 0, b"")
        self._flights.appendleft(Flight(CLAIM_NUMBER, batch, FOREVER_MS))

    def _on_claimed(self, flight: Flight, value: Claimed) -> None:
        self._flights.remove(flight)
        self.claimed, self._recovering, self.trouble = True, False, ""
        self._pause_ms, self._sequence = 0, flight.batch.sequence + 1
        self._effects.append(Taken(fence_of(flight.batch.sequence), value))

    def _on_fenced(self, flight: Flight, value: Refused) -> None:
        """A newer claim has the producer.  A claim that may have any fence and was not appended takes the next one."""
        again = value.reason is Reason.FENCE_TOO_LOW and self.claim is not None and not self.claim.fence
        if again and value.expected < FENCE_MAX:
            self._flights.remove(flight)
            self._claim(value.expected + 1)
            self._recover(None)
            return
        self._end_claim(value, Ending.FENCED)
        self._end_unappended(flight, Ending.FENCED, value)

    def _end_claim(self, why: Refused | None, ending: Ending = Ending.ENDED) -> None:
        """Append nothing more under this claim: it would stand where a batch that is missing has its place (L28)."""
        if self.claim is not None and self.over is None:
            self.over, self._ending = why or Refused(Reason.ABORTED, self.trouble or "it was given up"), ending

    def _wind_up(self) -> None:
        """Tell the callers of what is under way once it has no attempt out."""
        self._recovering = False
        for flight in [each for each in self._flights if each.out is None]:
            self._end_unappended(flight, self._ending, self.over)

    # --- answers

    def _on_answer(self, send: Send, value: Appended | Written | Claimed | Refused) -> None:
        flight = next((each for each in self._flights if each.batch is send.batch), None)
        if flight is None or flight.refused:
            return  # settled before, by another leader or under another producer id
        newest = flight.out is send
        if newest:
            flight.out = None
        self._answered_ms = self._now_ms
        if flight.ended:
            pass  # its fate is final; an answer to another attempt says nothing new
        elif isinstance(value, Claimed):
            self._on_claimed(flight, value)
        elif not isinstance(value, Refused):
            self._on_appended(flight, value)
            if not self._recovering:
                return
        elif newest or value.reason is Reason.ROLLED_BACK:  # else the attempt that counts is still out, or was refused
            self._on_refused(flight, value)
        self._go_on()

    def _on_appended(self, flight: Flight, value: Appended | Written) -> None:
        self._pause_ms = 0
        self._heard_number = self._sends
        self.trouble = ""
        batch, durability = flight.batch, Durability(value.durability)
        self._acknowledged.note(batch.sequence, value.count, durability)
        if durability is Durability.QUORUM and batch.durability is Durability.COMMIT:
            durability = Durability.COMMIT  # that is what was waited for, and not for the synchro quorum
        self._flights.remove(flight)
        number = flight.number
        self._effects.append(Release(number) if flight.expired else Settle(number, value, durability, batch))

    def _on_refused(self, flight: Flight, value: Refused) -> None:
        reason = value.reason
        if reason not in OUT_OF_PLACE or not self.trouble:   # a gap follows from what was refused before it
            self.trouble = f"{reason}: {value.message}"
        if reason in OUT_OF_TOUCH:
            self._effects.append(AskLeader())
        if reason in OUT_OF_PLACE and value.epoch >= self._led.epoch:
            self._on_gap(flight, value)
        elif reason in OUT_OF_PLACE or reason in RETRIED:
            flight.doubtful |= reason not in NOT_TAKEN
            self._recover(value.retry_after_ms if value.retry_after_ms >= 0 else None)
        elif reason is Reason.QUORUM_TIMEOUT:
            self._on_quorum_timeout(flight, value)
        elif reason is Reason.ROLLED_BACK:
            self._on_rolled_back(flight, value)
        elif reason is Reason.PRODUCER_ROLLED_BACK:
            flight.behind = value
            self._recover(None)
        elif reason in (Reason.PRODUCER_FENCED, Reason.FENCE_TOO_LOW):
            self._on_fenced(flight, value)
        elif reason is Reason.SEQUENCE_TOO_OLD:
            self._end(flight, Ending.FORGOTTEN, value)
        elif reason is Reason.RECORD_CAME_FIRST and len(self._flights) == 1:
            self._sequence = flight.batch.sequence   # in no log, and in none to come: the next batch has it
            self._end(flight, Ending.REFUSED, value)
        else:
            self._refuse(flight, Ending.REFUSED, value)
            self._recover(0)

    def _on_quorum_timeout(self, flight: Flight, value: Refused) -> None:
        """The fate is not known yet: ask with the same sequence, which waits for the fate, or say so and go on."""
        self._effects.append(Note(Noted.QUORUM_TIMEOUT))
        flight.doubtful = True
        if self.settings.asks_again:
            self._recover(max(0, flight.sent_ms + ASK_AGAIN_MS - self._now_ms))
            return
        self._end(flight, Ending.QUORUM_TIMEOUT, value)
        self._acknowledged.keep(flight)

    def _on_rolled_back(self, flight: Flight, value: Refused) -> None:
        """Final: a batch that callers still want is appended again, under a sequence that `_resend` finds.

        One that expects an offset is not: it was itself the record that came first there (L29).
        """
        self._pause_ms = 0
        self._effects.append(Note(Noted.ROLLED_BACK))
        self._acknowledged.decided(flight.batch.sequence)
        self._rollbacks.on_rolled_back(flight, value)
        retry = self.settings.retries
        if retry and flight.expect < 0 and not flight.expired and self._now_ms < flight.deadline_ms:
            flight.ended = True
            self._recover(0)
            return
        self._end(flight, Ending.ROLLED_BACK, value)
        if not retry or not self._flights:
            self._rollbacks.go_on()  # else a batch that turns out to be rolled back too must go first

    def _on_gap(self, flight: Flight, value: Refused) -> None:
        """The leader wants an earlier sequence (L21): one still held is resent, one acknowledged is gone."""
        oldest = self._flights[0].batch.sequence
        back = self._acknowledged.take_back(value.expected, oldest) if value.expected < oldest else []
        self._flights.extendleft(reversed(back))
        if value.expected >= oldest or back or flight.sent_number <= self._heard_number:
            for each in self._flights:   # told before the rollback's commit, which is lost (`rollback: Immediate`)
                each.ended &= each.batch.sequence < value.expected
            self._recover(None)  # a refusal may have been under way when the answer came that seems to be broken
            return
        forgotten = value.expected == 0 and self._now_ms - self._answered_ms > FORGOTTEN_AFTER_MS
        unknown = value.reason is Reason.PRODUCER_UNKNOWN
        if unknown:
            self._fail_doubtful(value)
        if value.expected > self._acknowledged.promised:
            if lost := self._acknowledged.local_lost(value.expected):
                self._effects.append(LocalLost(lost))
        elif not unknown and not forgotten:
            text = f"sequence {value.expected} is expected, {oldest - 1} had been acknowledged"
            for flight in self._flights:
                self._refuse(flight, Ending.BROKEN, Refused(value.reason, text, value.epoch, value.expected))
        self._renew()
        self._recover(None)

    def _fail_doubtful(self, value: Refused) -> None:
        """The leader remembers nothing of this producer, so the log may hold what has no answer (L25)."""
        for flight in [each for each in self._flights if each.doubtful]:
            self._end(flight, Ending.FORGOTTEN, value)

    def _on_lost(self, target: str, why: str) -> None:
        self.trouble = why
        for flight in self._flights:
            if flight.out is not None and flight.out.target == target:
                flight.out, flight.doubtful = None, True
        if self._flights:
            self._effects.append(AskLeader())
            self._recover(None)
            self._go_on()

    # --- endings

    def _end(self, flight: Flight, ending: Ending, refused: Refused | None) -> None:
        """Let a batch go, and tell its callers if they wait."""
        self._end_claim(refused)
        self._flights.remove(flight)
        if flight.given_up:
            self._effects.append(Release(flight.number))
        else:
            self._effects.append(Fail(flight.number, ending, flight.batch, refused, left=True))

    def _end_unappended(self, flight: Flight, ending: Ending, refused: Refused | None) -> None:
        """End what this attempt has not appended; an earlier one may have appended a batch."""
        self._end(flight, Ending.UNANSWERED if flight.doubtful and flight.batch.count else ending, refused)

    def _refuse(self, flight: Flight, ending: Ending, refused: Refused | None) -> None:
        """Tell callers that a batch is refused; it stays until what is in front of it is settled."""
        self._end_claim(refused)
        if not flight.given_up:
            self._effects.append(Fail(flight.number, ending, flight.batch, refused, left=False))
        flight.refused = True

    # --- recovery

    def _recover(self, delay_ms: int | None) -> None:
        """Send nothing new, and all that is unanswered again after the longest pause asked for; None backs off."""
        self._recovering = True
        self._resend_ms = max(self._resend_ms, self._now_ms + (self._pause() if delay_ms is None else delay_ms))

    def _pause(self) -> int:
        """Return the next pause: each doubles, less up to half of it by id, so that producers do not try in step."""
        pause_ms, self._pause_ms = self._pause_ms, min(PAUSE_MAX_MS, max(PAUSE_FIRST_MS, self._pause_ms * 2))
        self._pauses += 1
        share = binascii.crc32(self.id + self._pauses.to_bytes(8)) & 0xFFFF
        return pause_ms - pause_ms * share // 0x20000

    def _go_on(self) -> None:
        """Send again what is unanswered, if it is time and every attempt that counts is answered."""
        if self.over is not None:
            self._wind_up()
        elif self._recovering and self._now_ms >= self._resend_ms and not self._are_out():
            self._resend()
        self._wake()

    def _are_out(self) -> bool:
        return any(flight.out is not None for flight in self._flights)

    def _resend(self) -> None:
        self._expire_late()
        if self._flights and self._flights[0].refused:
            self._renew()  # a refused sequence was never used, so neither was any behind it
        if not self._rollbacks.to_ask(self._flights):
            self._settle_rollback()
        if self.over is not None:
            self._wind_up()
        if not self._flights:
            self._recovering = False
        if not self._recovering:
            return
        target = self._led.target
        if target is None:
            self.trouble = "no leader is known"
            self._effects.append(AskLeader())
            self._recover(None)
            return
        # Nothing goes out behind a refused sequence; once its predecessors are settled we come back.
        sendable = self._rollbacks.to_ask(self._flights)
        self._recovering = len(sendable) < len(self._flights)
        for flight in sendable:
            self._send(flight, target)

    def _settle_rollback(self) -> None:
        """Every batch here is rolled back or was not appended: give them new numbers and go on."""
        given_up = self._given_up()
        if given_up and self.claim is not None:
            self._renew()
            return
        self._sequence = self._rollbacks.settle(self._flights, given_up, self._sequence)
        self._drop(given_up)

    def _renew(self) -> None:
        """Go on under a new producer id: nothing unanswered here is or will be in the log under the old one."""
        self._drop(self._given_up())
        if self.claim is not None:
            self._end_claim(None)
            return
        self.id = next_of(self.id, self._led.prefix)
        self._sequence = 0
        self._acknowledged = Acknowledged()
        self._rollbacks = Rollbacks()
        for flight in self._flights:
            flight.place(self.id, self._sequence)
            flight.out = None
            self._sequence += 1

    def _given_up(self) -> list[Flight]:
        return [flight for flight in self._flights if flight.given_up]

    def _drop(self, flights: list[Flight]) -> None:
        for flight in flights:
            self._flights.remove(flight)
            self._effects.append(Release(flight.number))

    def _on_led(self, led: Led) -> None:
        """A newer leader is resent to at once: the old one's answers, if any, change nothing."""
        self._led = led
        if not self._flights or led.target is None or led.epoch <= self._sent_epoch:
            if self._recovering and self._wake_ms is None:
                self._wake()
            return
        if led.target == self._sent_to and not self._recovering:
            self._sent_epoch = led.epoch
            return  # the same node in a new epoch; its own refusals speak where they must
        for flight in self._flights:
            flight.doubtful |= flight.out is not None
            flight.out = None
        self._pause_ms = 0
        self._recovering, self._resend_ms = True, self._now_ms
        self._go_on()

    # --- time

    def _on_time(self) -> None:
        """Tell callers whose time is over, and look after a silent leader."""
        self._wake_ms = None
        self._expire_late()
        if self._flights and all(flight.given_up for flight in self._flights):
            self._renew()
            self._recover(0)
        sent_ms = min((flight.sent_ms for flight in self._flights if flight.out is not None), default=self._now_ms)
        silent_ms = self._now_ms - sent_ms
        if silent_ms >= self.settings.stalled_ms and self._now_ms >= self._asked_ms + ASK_AGAIN_MS:
            self._asked_ms = self._now_ms
            self._effects.append(AskLeader())
            patience_ms = self.settings.quorum_timeout_ms + self.settings.abandoned_ms
            if silent_ms > patience_ms and self._sent_to is not None:
                # Other shards may be answered while this one lacks a quorum: the shell knows.
                self._effects.append(Doubt(self._sent_to, patience_ms))
        self._go_on()

    def _wake(self) -> None:
        """Ask to be woken, if that is earlier than what was asked for before."""
        times = [self._due_ms(flight) for flight in self._flights if not flight.given_up]
        sent = [flight.sent_ms for flight in self._flights if flight.out is not None]
        if sent:
            times.append(max(min(sent) + self.settings.stalled_ms, self._asked_ms + ASK_AGAIN_MS))
        elif self._recovering:
            times.append(self._resend_ms)
        if times and (self._wake_ms is None or min(times) < self._wake_ms):
            self._wake_ms = min(times)
            self._effects.append(WakeAt(self._wake_ms))

    def _due_ms(self, flight: Flight) -> int:
        """Return when the time of a batch's callers is over."""
        under_way = flight.out is not None and not flight.doubtful  # its answer may say that it is in no log
        return flight.deadline_ms + (self.settings.last_answer_ms if under_way else 0)

    def _expire_late(self) -> None:
        for flight in list(self._flights):
            if not flight.given_up and self._now_ms >= self._due_ms(flight):
                self._expire(flight)

    def _expire(self, flight: Flight) -> None:
        """Tell callers whose time is over the truth as far as it is known."""
        if flight.ended:
            self._end(flight, Ending.ROLLED_BACK, flight.rollback)
        elif flight.out is not None or flight.doubtful:
            flight.expired = True
            self._effects.append(Fail(flight.number, Ending.UNANSWERED, flight.batch, None, left=False))
        else:
            ending = Ending.NOT_TAKEN if flight.rollback is None else Ending.ROLLED_BACK
            self._refuse(flight, ending, flight.rollback)
            self._recover(0)
