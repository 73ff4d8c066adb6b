"""Tally: how many appends ended how, and which batches did not end well.

Stays out: what a kind of ending means for whoever runs the command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark import Appended, Durability, Written
from tidemark.errors import Closed, ConditionFailed, OutcomeUnknown, QuorumTimeout, RolledBack, Unavailable

BATCHES_LISTED_MAX = 20

CONFIRMED, COMMITTED, LOCAL = "confirmed", "committed", "local"
QUORUM_TIMEOUT, UNKNOWN, ROLLED_BACK = "quorum_timeout", "unknown", "rolled_back"
NOT_APPENDED, REFUSED = "not_appended", "refused"
CONDITION_FAILED = "condition_failed"   # of documents alone, and counted only where it happened

_PROMISED = {Durability.QUORUM: CONFIRMED, Durability.COMMIT: COMMITTED, Durability.LOCAL: LOCAL}
_WORDS = {
    CONFIRMED: "confirmed", COMMITTED: "on a majority", LOCAL: "on the leader's disk", ROLLED_BACK: "rolled back",
    QUORUM_TIMEOUT: "timed out, outcome unknown", UNKNOWN: "outcome unknown", NOT_APPENDED: "not appended",
    REFUSED: "refused",
}
DOUBTFUL = frozenset({QUORUM_TIMEOUT, UNKNOWN})


def kind_of(error: BaseException) -> str:
    """Return the kind of ending that an append's error stands for."""
    match error:
        case QuorumTimeout():
            return QUORUM_TIMEOUT
        case OutcomeUnknown() | Closed():  # given up while it was under way
            return UNKNOWN
        case RolledBack():
            return ROLLED_BACK
        case Unavailable():
            return NOT_APPENDED
    return REFUSED


@dataclass(slots=True)
class FailedBatch:
    """A batch that was rolled back or has no known outcome, and which lines it holds."""

    outcome: str
    shard: int
    producer: bytes
    sequence: int
    first_line: int
    last_line: int
    lines: int = 1

    def document(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome, "shard": self.shard, "producer": self.producer.hex(), "sequence": self.sequence,
            "first_line": self.first_line, "last_line": self.last_line, "lines": self.lines,
        }


class Tally:
    """Counts by kind, all of them, zero included."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(_WORDS, 0)
        self.conditions: list[tuple[int, ConditionFailed]] = []   # line and error of writes that found another version
        self.failed: dict[tuple[int, bytes, int], FailedBatch] = {}
        self.failed_unlisted = 0

    def appended(self, place: Appended | Written) -> None:
        self.counts[_PROMISED[place.durability]] += 1

    def failed_with(self, error: BaseException, line: int) -> None:
        """Count an append that did not end well; `line` is where it came from, from 1."""
        if isinstance(error, ConditionFailed):
            self.counts[CONDITION_FAILED] = self.counts.get(CONDITION_FAILED, 0) + 1
            if len(self.conditions) < BATCHES_LISTED_MAX:
                self.conditions.append((line, error))
            return
        kind = kind_of(error)
        self.counts[kind] += 1
        if not isinstance(error, OutcomeUnknown | RolledBack) or not error.producer:
            return
        key = (error.shard, error.producer, error.sequence)
        known = self.failed.get(key)
        if known is not None:
            known.last_line, known.lines = max(known.last_line, line), known.lines + 1
        elif len(self.failed) < BATCHES_LISTED_MAX:
            self.failed[key] = FailedBatch(kind, *key, line, line)
        else:
            self.failed_unlisted += 1

    def sentence(self) -> str:
        """Return what happened, such as `97 confirmed, 3 rolled back`."""
        words = {**_WORDS, CONDITION_FAILED: "refused by their condition"}
        said = [f"{count} {words[kind]}" for kind, count in self.counts.items() if count]
        return ", ".join(said) or "nothing appended"
