"""Endings: what the callers of a batch are told when it does not end well, as far as it is known.

Stays out: deciding which of them is true (core's `producing`).
"""

from __future__ import annotations

from typing import TypedDict

from tidemark_core.base.entry import Batch
from tidemark_core.producing.messages import Ending, Fail

from .. import errors
from ..errors import (
    AcknowledgedDataLost,
    OutcomeUnknown,
    ProducerEnded,
    ProducerFenced,
    QuorumTimeout,
    RolledBack,
    TidemarkError,
    Unavailable,
)


class Names(TypedDict):
    """By what `Client.outcome` finds a batch."""

    group: str
    shard: int
    producer: bytes
    sequence: int


def error_of(failed: Fail, group: str, shard: int, within: str) -> TidemarkError:
    """Return the error for the callers of a batch; `within` says how long it was tried, and what was in the way."""
    batch, refused = failed.batch, failed.refused
    names, what = _names(batch, group, shard), _what(batch, group, shard)
    match failed.ending:
        case Ending.UNANSWERED:
            return unanswered(batch, group, shard, within)
        case Ending.NOT_TAKEN:
            return Unavailable(f"{what} was not taken {within}; nothing of it was appended")
    assert refused is not None, "every other ending is a refusal"
    where = f"shard {shard} of {group!r}: {refused.message}"
    match failed.ending:
        case Ending.QUORUM_TIMEOUT:
            return QuorumTimeout(where, **names)
        case Ending.FORGOTTEN:
            return OutcomeUnknown(where, **names)
        case Ending.BROKEN:
            return AcknowledgedDataLost(where)
        case Ending.ROLLED_BACK:
            at = refused.expected
            text = f"{what} was rolled back at offset {at}: it is not in the log and never will be"
            return RolledBack(text, rolled_back_at=at, **names)
        case Ending.FENCED:
            return ProducerFenced(where, group=group, shard=shard, fence=refused.expected)
        case Ending.ENDED:
            return ended(batch.count, group, shard, f"{refused.reason}: {refused.message}")
        case _:
            return errors.error_of(refused)


def ended(count: int, group: str, shard: int, why: str) -> ProducerEnded:
    """Return the error for records behind one of the same producer that did not end well."""
    what = f"{count} records to shard {shard} of {group!r} were not appended"
    return ProducerEnded(f"{what}: an earlier append ended the producer ({why})", group=group, shard=shard)


def unanswered(batch: Batch, group: str, shard: int, within: str) -> OutcomeUnknown:
    """Return the error where an attempt may be in the log."""
    return OutcomeUnknown(f"no answer for {_what(batch, group, shard)} {within}", **_names(batch, group, shard))


def _names(batch: Batch, group: str, shard: int) -> Names:
    return {"group": group, "shard": shard, "producer": batch.producer, "sequence": batch.sequence}


def _what(batch: Batch, group: str, shard: int) -> str:
    return f"a batch of {batch.count} records to shard {shard} of {group!r}"
