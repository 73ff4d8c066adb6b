"""Flights: the batches of a producer under way, and what a rollback does to their sequences (L19, L22).

A rolled back batch has used its sequence up; a batch refused behind it has not.  Which of the two a batch is must
be known of every one before any goes out again: else a retry could take a sequence that another batch has, or a
later batch could overtake an earlier one.  So what is undecided is asked about first, under the old sequence and
without the mark that lets a producer go on (`resume_after`); only then are new sequences given, to rolled back
batches first.
Stays out: when a batch is sent (producer).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence

from ..base.entry import Batch
from ..base.refusals import Refused
from .messages import Send

IN_FLIGHT_MAX = 5  # what the cluster remembers of a producer (L19)


class Flight:
    """A batch with its sequence, until its fate is known."""

    __slots__ = (
        "batch", "behind", "deadline_ms", "doubtful", "ended", "expect", "expired", "number", "out", "refused",
        "rollback", "sent_ms", "sent_number",
    )

    def __init__(self, number: int, batch: Batch, deadline_ms: int, expect: int = -1) -> None:
        self.number = number
        self.batch = batch
        self.deadline_ms = deadline_ms
        self.expect = expect
        self.out: Send | None = None  # the attempt that counts, while it has no answer
        self.sent_ms = 0
        self.sent_number = 0  # of all attempts of the producer
        self.doubtful = False  # it may be in a log: an attempt has no answer, or none that says it was not taken
        self.expired = False  # its callers have heard that the outcome is unknown
        self.refused = False  # for good, as its callers have heard; its sequence stays unused
        self.rollback: Refused | None = None  # the newest rollback that hit it
        self.ended = False  # rolled back, so its sequence is used up; it waits for a new one
        self.behind: Refused | None = None  # refused because an earlier batch was rolled back; not appended

    @property
    def given_up(self) -> bool:
        """Say whether its callers have heard how it ends."""
        return self.refused or self.expired

    def place(self, producer: bytes, sequence: int) -> None:
        """Give it a sequence that no log holds."""
        self.batch = self.batch._replace(producer=producer, sequence=sequence)
        self.doubtful &= not self.ended
        self.ended, self.behind = False, None


class Rollbacks:
    """The rollbacks that hit one producer, as far as it knows."""

    __slots__ = ("_final", "_resumed", "_told", "_told_epoch")

    def __init__(self) -> None:
        self._final = -1  # offset of the newest committed rollback record that hit us
        self._resumed = -1  # the one that we go on behind
        self._told = -1  # one that a leader holds against us and that may not be committed ...
        self._told_epoch = -1  # ... which is why it counts for nothing under a newer leader

    def resume_after(self, leader_epoch: int) -> int:
        """Return the mark to send with an append."""
        return max(self._resumed, self._told) if self._told_epoch >= leader_epoch else self._resumed

    def on_rolled_back(self, flight: Flight, refused: Refused) -> None:
        """Note a final rollback; it becomes the mark once no batch that it hit waits for its retry."""
        flight.rollback = refused
        self._final = max(self._final, refused.expected)

    def go_on(self) -> None:
        """No batch waits for its retry: go on behind the newest rollback."""
        self._resumed = self._final

    def to_ask(self, flights: Iterable[Flight]) -> list[Flight]:
        """Return the batches to send as they are; none means that every one is rolled back or was not appended.

        A refusal of an older epoch than the rollback's proves nothing: that leader may not hold the batch while
        the log that won does.
        """
        flights = list(flights)
        epoch = max((flight.rollback.epoch for flight in flights if flight.ended and flight.rollback), default=-1)
        asked = itertools.takewhile(
            lambda flight: not flight.refused and (flight.behind is None or flight.behind.epoch < epoch), flights
        )
        return [flight for flight in asked if not flight.ended]

    def settle(self, flights: Sequence[Flight], given_up: Collection[Flight], next_sequence: int) -> int:
        """Give new numbers once nothing is left to ask, and go on behind the newest rollback; return the next sequence.

        `given_up` are those among `flights` that no caller wants any more.
        """
        self.go_on()
        told = [(flight.behind.epoch, flight.behind.expected) for flight in flights if flight.behind is not None]
        self._told_epoch, self._told = max(told, default=(self._told_epoch, self._told))
        unused = (flight.batch.sequence for flight in flights if not flight.ended)
        sequence = min(unused, default=next_sequence)
        for flight in flights:
            if flight not in given_up:
                flight.place(flight.batch.producer, sequence)
                flight.doubtful = False
                sequence += 1
        return sequence
