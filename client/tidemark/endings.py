"""Endings: what the callers of a batch are told when it does not end well, as far as it is known.

Stays out: deciding which of them is true (lane).
"""

from __future__ import annotations

from typing import TypedDict

from tidemark_core.base.refusals import Refused

from .errors import OutcomeUnknown, QuorumTimeout, RolledBack, Unavailable
from .flights import Flight


class Names(TypedDict):
    """By what `Client.outcome` finds a batch."""

    group: str
    shard: int
    producer: bytes
    sequence: int


def _names(flight: Flight, group: str, shard: int) -> Names:
    return {"group": group, "shard": shard, "producer": flight.batch.producer, "sequence": flight.batch.sequence}


def _batch(flight: Flight, group: str, shard: int) -> str:
    return f"a batch of {flight.batch.count} records to shard {shard} of {group!r}"


def quorum_timeout(flight: Flight, group: str, shard: int, refused: Refused) -> QuorumTimeout:
    """The leader's wait is over and it does not know."""
    return QuorumTimeout(f"shard {shard} of {group!r}: {refused.message}", **_names(flight, group, shard))


def forgotten(flight: Flight, group: str, shard: int, refused: Refused) -> OutcomeUnknown:
    """The cluster remembers the sequence no longer."""
    return OutcomeUnknown(f"shard {shard} of {group!r}: {refused.message}", **_names(flight, group, shard))


def unanswered(flight: Flight, group: str, shard: int, within: str) -> OutcomeUnknown:
    """Time is over and an attempt may be in the log."""
    return OutcomeUnknown(f"no answer for {_batch(flight, group, shard)} {within}", **_names(flight, group, shard))


def not_taken(flight: Flight, group: str, shard: int, within: str) -> Unavailable | RolledBack:
    """Time is over and no attempt is in the log: every one was refused before, or the last one was rolled back."""
    if flight.rollback is not None:
        return rolled_back(flight, group, shard)
    return Unavailable(f"{_batch(flight, group, shard)} was not taken {within}; nothing of it was appended")


def rolled_back(flight: Flight, group: str, shard: int) -> RolledBack:
    """A rollback of it is final."""
    assert flight.rollback is not None
    at = flight.rollback.expected
    return RolledBack(
        f"{_batch(flight, group, shard)} was rolled back at offset {at}: it is not in the log and never will be",
        rolled_back_at=at, **_names(flight, group, shard),
    )
