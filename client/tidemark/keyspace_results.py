"""Answers of keyspaces as the client gives them: values without behaviour.

Stays out: how they are asked for (keyspace).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from tidemark_core.optimistic.stamps import Stamp
from tidemark_wire.v1 import keyspaces_pb2

from .errors import NotEnoughOwners, StampInFuture, WriteUnknown
from .keyspace_views import stamp_of

Outcome = Literal["ok", "weak", "sloppy"]
"""'weak': fewer owners were asked than the keyspace asks for, so the answer promises nothing; 'sloppy': other nodes
keep the write for owners that were away, and a read may miss it for a while."""

OK: Outcome = "ok"
WEAK: Outcome = "weak"
DONE = ("ok", "weak", "sloppy")
FUTURE, BELOW = "future", "below"

SHOWN_BYTES = 100


def shown(key: bytes) -> str:
    """Return a key as people read it, cut where it is long."""
    return repr(key) if len(key) <= SHOWN_BYTES else f"{key[:SHOWN_BYTES]!r}... ({len(key)} bytes)"


def named(keyspace: str, key: bytes, element: bytes | None = None) -> str:
    """Return a key, or an element of one, and its keyspace as messages name them."""
    inner = "" if element is None else f"element {shown(element)} of "
    return f"{inner}key {shown(key)} of keyspace {keyspace!r}"


@dataclass(frozen=True, slots=True)
class KeyValue:
    """The answer to a read of a String, or of the field `element` of a Map.  `value` is None where there is none."""

    key: bytes
    value: bytes | None
    outcome: Outcome
    element: bytes | None = None

    def __repr__(self) -> str:
        element = "" if self.element is None else f", element={shown(self.element)}"
        value = None if self.value is None else shown(self.value)
        return f"KeyValue({shown(self.key)}, {value}, {self.outcome!r}{element})"


@dataclass(frozen=True, slots=True)
class KeyMember:
    """The answer to `sismember`; it is true where the Set has the member."""

    key: bytes
    member: bytes
    present: bool
    outcome: Outcome

    def __bool__(self) -> bool:
        return self.present


@dataclass(frozen=True, slots=True)
class KeyWritten:
    """The answer to a write of a key, or of the `element` of one.

    `stamp` is its place in the order of writes, the later one wins; `stored` owners had answered by then.
    """

    key: bytes
    outcome: Outcome
    stamp: Stamp | None
    stored: int
    element: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeyspaceShape:
    """A keyspace: its id, which is never given to another one, and its number of ranges, which never changes."""

    keyspace_id: int
    ranges: int


@dataclass(slots=True)
class KeyspaceStats:
    """Counts of one client over all its keyspaces.

    `second_reads` were sent to another owner because the first took longer than nearly all reads before, and
    `second_reads_won` of them answered first; `rerouted` calls left a node that failed, was silent or refused.
    """

    reads: int = 0
    writes: int = 0
    second_reads: int = 0
    second_reads_won: int = 0
    rerouted: int = 0


# --- from the wire; a word that this release does not know promises nothing -----------------------------------


def value_of(keyspace: str, key: bytes, answer: keyspaces_pb2.KeyspaceValue, element: bytes | None = None) -> KeyValue:
    """Return what a read found; raises NotEnoughOwners."""
    value = answer.value if answer.HasField("value") else None
    return KeyValue(key, value, read_outcome(answer.outcome, named(keyspace, key, element)), element)


def read_outcome(outcome: str, what: str) -> Outcome:
    """Return the outcome of a read; raises NotEnoughOwners."""
    if outcome not in DONE:
        raise NotEnoughOwners(f"too few owners answered the read of {what} in time (outcome {outcome!r})")
    return cast(Outcome, outcome)


def taken_of(keyspace: str, key: bytes, answer: keyspaces_pb2.KeyspaceValue) -> KeyValue:
    """Return what a `getdel` took; raises WriteUnknown, StampInFuture."""
    value = answer.value if answer.HasField("value") else None
    if answer.outcome not in DONE:
        raise _not_done(keyspace, key, answer.outcome, value=value)
    return KeyValue(key, value, cast(Outcome, answer.outcome))


def written_of(
    keyspace: str, key: bytes, answer: keyspaces_pb2.KeyspaceWritten, element: bytes | None = None
) -> KeyWritten:
    """Return how a write ended; raises WriteUnknown, StampInFuture."""
    stamp = stamp_of(answer.stamp) if answer.HasField("stamp") else None
    if answer.outcome not in DONE:
        raise _not_done(keyspace, key, answer.outcome, element, stamp=stamp, stored=answer.stored)
    return KeyWritten(key, cast(Outcome, answer.outcome), stamp, answer.stored, element)


def _not_done(
    keyspace: str, key: bytes, outcome: str, element: bytes | None = None, *, stamp: Stamp | None = None,
    stored: int = 0, value: bytes | None = None,
) -> WriteUnknown | StampInFuture:
    what = named(keyspace, key, element)
    if outcome == FUTURE:
        return StampInFuture(f"the owners refuse the time of the write of {what}", keyspace=keyspace, key=key)
    why = (
        "a floor of the range refuses its stamps" if outcome == BELOW
        else f"too few owners answered in time (outcome {outcome!r}, {stored} have stored it)")
    return WriteUnknown(
        f"the write of {what} is not certain: {why}", keyspace=keyspace, key=key, stamp=stamp, stored=stored,
        value=value)
