"""Endings: which error the callers of a batch get where it does not end well, as far as that is known.

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
            what = f"{batch.count} records to shard {shard} of {group!r} were not appended" if batch.count else (
                f"the producer was not claimed on shard {shard} of {group!r}")
            text = f"{what}: an earlier append ended the producer ({refused.reason}: {refused.message})"
            return ProducerEnded(text, group=group, shard=shard)
        case _:
            return errors.error_of(refused)


def unanswered(batch: Batch, group: str, shard: int, within: str) -> OutcomeUnknown:
    """Return the error where an attempt may be in the log."""
    return OutcomeUnknown(f"no answer for {_what(batch, group, shard)} {within}", **_names(batch, group, shard))


def _names(batch: Batch, group: str, shard: int) -> Names:
    return {"group": group, "shard": shard, "producer": batch.producer, "sequence": batch.sequence}


def _what(batch: Batch, group: str, shard: int) -> str:
    return f"a batch of {batch.count} records to shard {shard} of {group!r}"
