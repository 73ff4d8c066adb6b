"""The model of documents: what the visible entries of a log make of them, folded in the plainest way.

It knows the bytes of entries, and nothing of rows, slices and sweeping.  Stays out: which entries are visible.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemark_core.base.entry import Entry, Kind
from tidemark_core.documents import payload, pinning
from tidemark_core.documents.payload import Op, Outcome, Verdict
from tidemark_core.documents.rows import DIGEST_MASK, hash_of


class Version(NamedTuple):
    """A live document."""

    seqno: int
    expires_at_ms: int
    value: bytes


@dataclass(frozen=True, slots=True)
class ModelPin:
    """A pin with the documents that it shows."""

    at: int
    until_ms: int
    documents: dict[bytes, Version]
    owner: str


@dataclass(frozen=True, slots=True)
class State:
    """The documents behind one entry; a step makes another one and changes none."""

    documents: dict[bytes, Version] = field(default_factory=dict)
    deleted: dict[bytes, tuple[int, int]] = field(default_factory=dict)   # seqno and the log's clock of the delete
    pins: dict[str, ModelPin] = field(default_factory=dict)
    purged: int = -1

    @property
    def digest(self) -> int:
        return digest_of(self.documents)


def digest_of(documents: dict[bytes, Version]) -> int:
    """Return the digest of documents (U73), summed from the beginning."""
    hashes = (hash_of(key, *version) for key, version in documents.items())
    return sum(int.from_bytes(each, "big") for each in hashes) & DIGEST_MASK


def step(state: State, entry: Entry) -> tuple[State, tuple[Outcome, ...] | None]:
    """Return the documents behind a visible entry, and the outcomes of its records if it is a data entry."""
    match entry.kind:
        case Kind.DATA:
            return _data(state, entry)
        case Kind.EXPIRE:
            return _expire(state, entry), None
        case Kind.PURGE:
            return replace(state, purged=max(state.purged, entry.sequence)), None
        case Kind.PIN:
            return _pin(state, entry), None
        case Kind.UNPIN:
            ended = pinning.decode_unpin(entry.payload)
            return replace(state, pins={
                name: pin for name, pin in state.pins.items() if name != ended.name or not _may(ended.owner, pin)
            }), None
    return state, None


def _pin(state: State, entry: Entry) -> State:
    """Rules U70 and U70b; a shard has more pins than its clients in the simulator have names."""
    try:
        name, owner, ttl_ms = pinning.decode_pin(entry.payload)
    except payload.MalformedWrites:
        return state
    pin = state.pins.get(name, ModelPin(entry.base, 0, state.documents, owner))
    if not _may(owner, pin):
        return state
    return replace(state, pins={**state.pins, name: replace(pin, until_ms=entry.logged_ms + ttl_ms)})


def _may(owner: str, pin: ModelPin) -> bool:
    return owner == "" or pin.owner in ("", owner)


def _expire(state: State, entry: Entry) -> State:
    documents, deleted = dict(state.documents), dict(state.deleted)
    for number, (key, seqno) in enumerate(payload.decode_expired(entry.payload, entry.count)):
        found = documents.get(key)
        if found and found.seqno == seqno and 0 < found.expires_at_ms <= entry.logged_ms:
            del documents[key]
            deleted[key] = entry.base + number, entry.logged_ms
    return replace(state, documents=documents, deleted=deleted)


def _data(state: State, entry: Entry) -> tuple[State, tuple[Outcome, ...]]:
    try:
        writes = payload.decode(entry.payload, entry.count)
    except payload.MalformedWrites:
        return state, (Outcome(Verdict.MALFORMED),) * entry.count
    documents, deleted = dict(state.documents), dict(state.deleted)
    outcomes: list[Outcome] = []
    for number, write in enumerate(writes.records):
        found = documents[write.key].seqno if write.key in documents else 0
        if write.expected not in (None, found):
            outcomes.append(Outcome(Verdict.REFUSED, found))
            continue
        outcomes.append(Outcome(Verdict.APPLIED, found))
        seqno = entry.base + number
        if write.op is Op.PUT:
            expires_at_ms = entry.logged_ms + write.ttl_ms if write.ttl_ms else 0
            documents[write.key] = Version(seqno, expires_at_ms, write.value)
            deleted.pop(write.key, None)
        elif documents.pop(write.key, None) is not None:
            deleted[write.key] = seqno, entry.logged_ms
    if writes.atomic and any(each.verdict is Verdict.REFUSED for each in outcomes):
        kept = (each if each.verdict is Verdict.REFUSED else Outcome(Verdict.ABORTED, each.seqno) for each in outcomes)
        return state, tuple(kept)
    return replace(state, documents=documents, deleted=deleted), tuple(outcomes)


class History:
    """The documents at every cut of one committed log."""

    def __init__(self) -> None:
        self.at: dict[int, State] = {-1: State()}
        self.outcomes: dict[int, tuple[Outcome, ...]] = {}   # by base; of an entry that is hidden later, none
        self.last = -1

    def take(self, entry: Entry) -> None:
        """Take the next committed entry; a rollback takes back what it hides."""
        if entry.kind is Kind.ROLLBACK:
            for hidden in [each for each in self.at if each >= entry.sequence]:
                del self.at[hidden]
            for hidden in [each for each in self.outcomes if each >= entry.sequence]:
                del self.outcomes[hidden]
            self.last = entry.sequence - 1
        state, outcomes = step(self.at[self.last], entry)
        if outcomes is not None:
            self.outcomes[entry.base] = outcomes
        self.at[entry.last] = state
        self.last = entry.last

    @property
    def state(self) -> State:
        return self.at[self.last]
