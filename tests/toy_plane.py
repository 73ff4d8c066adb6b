"""A plane that no product file knows: rings of members that keep values by key, each value set once.

Any member takes a value, stores it, and copies it to the others; the answer comes once a majority has it on disk.
After a start a member scans its rows, a few at a time, and copies all that it holds again; before, it takes no value.
The toy uses all that a plane may use: a state and rows of its own family, reads and scans of rows, messages, timers,
traces, answers, recovery, news of the node, limits of its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from tidemark_core.base.effects import (
    DiskSpace,
    Effect,
    Feed,
    PeerDown,
    PeerUp,
    Persist,
    Put,
    PutState,
    ReadRows,
    Received,
    Reply,
    RowsRead,
    RowsScanned,
    ScanRows,
    Send,
    SetTimer,
    TimerFired,
    Trace,
)
from tidemark_core.base.ids import Address, Member
from tidemark_core.base.plane import NodeFacts, Stored, Voice
from tidemark_core.base.refusals import Reason, Refused

NUMBER = 77
FAMILY = "toy"


@dataclass(frozen=True, slots=True)
class ToyLimits:
    """The plane's own: shards have none of them."""

    resend_ms: int = 50
    scan_rows: int = 2


# --- events and messages ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """This member belongs to a ring of these members."""

    ring: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class PutValue:
    """A caller wants a value kept; the answer is `Kept`."""

    ring: int
    request: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class GetValue:
    """A caller wants the value that this member has on disk; the answer is the value, or None."""

    ring: int
    request: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Durable:
    """A value is durable here; fed by `Persist.then`."""

    ring: int
    key: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """So many members have the value on disk."""

    members: int


@dataclass(frozen=True, slots=True)
class Copy:
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Copied:
    key: bytes


# --- the plane ----------------------------------------------------------------------------------------------------


class Ring:
    """One ring on one member."""

    def __init__(self, members: tuple[Member, ...], *, loaded: bool) -> None:
        self.members = members
        self.loaded = loaded        # every row that was stored before the start is in `values`
        self.values: dict[bytes, bytes] = {}
        self.holders: dict[bytes, set[Member]] = {}     # of values that some member may lack
        self.waiting: dict[bytes, list[int]] = {}       # requests


class ToyPlane:
    """The rings of one node."""

    unit = "ring"
    events = (Join, PutValue, GetValue, Durable)
    voices: ClassVar = {Copy: Voice.NODE, Copied: Voice.NODE}

    def __init__(self, node: NodeFacts, limits: ToyLimits) -> None:
        self.me, self.boot = node
        self.limits = limits
        self.rings: dict[int, Ring] = {}
        self.full = False
        self.down: set[Member] = set()
        self.recovered = False      # and no row was asked for yet

    def units(self) -> Iterable[int]:
        return self.rings

    def name(self, unit: int) -> str:
        return str(unit)

    def status(self, unit: int) -> dict[str, Any]:
        ring = self.rings[unit]
        return {"members": [str(member) for member in ring.members], "keys": len(ring.values), "full": self.full}

    def recover(self, stored: Stored) -> None:
        self.recovered = True
        for unit in stored.units():
            state, _ = stored.unit(unit)
            self.rings[unit] = Ring(tuple(Member(*member) for member in json.loads(state)), loaded=False)

    def step(self, now_ms: int, event: Any) -> list[Effect]:
        match event:
            case Join(number, members):
                return self._join(number, members)
            case PutValue():
                return self._put(now_ms, event)
            case GetValue(number, request, key):
                return [ReadRows(_at(number), request, ((FAMILY, _row(number, key)),))]
            case RowsRead(_, request, (value,)):
                return [Reply(request, value)]
            case RowsScanned():
                return self._scanned(now_ms, event)
            case Durable(number, key):
                return self._held(number, key, self.me)
            case Received(address, Member() as sender, _, Copy(key, value)):
                return self._copy(address.id, sender, key, value)
            case Received(address, Member() as sender, _, Copied(key)):
                return self._held(address.id, key, sender)
            case TimerFired(address, "resend"):
                return self._resend(now_ms, address.id)
            case PeerUp(member):
                self.down.discard(member)
                return [effect for number in self.rings for effect in self._resend(now_ms, number)]
            case PeerDown(member):
                self.down.add(member)
            case DiskSpace(full):
                self.full = full
        return []

    def finish_turn(self, now_ms: int) -> list[Effect]:
        recovered, self.recovered = self.recovered, False
        return [self._scan(number, _row(number, b"")) for number in self.rings] if recovered else []

    def not_meant(self, event: Received) -> list[Effect]:
        return []

    def _join(self, number: int, members: tuple[Member, ...]) -> list[Effect]:
        self.rings[number] = Ring(members, loaded=True)
        state = PutState(json.dumps([list(member) for member in members]).encode())
        return [Persist(_at(number), (state,)), Trace(_at(number), "toy_joined", str(len(members)))]

    def _scan(self, number: int, first: bytes) -> Effect:
        return ScanRows(_at(number), self.boot, FAMILY, first, _row(number + 1, b""), self.limits.scan_rows)

    def _scanned(self, now_ms: int, found: RowsScanned) -> list[Effect]:
        assert found.tag == self.boot, "the answer to another run of the core"
        number = found.address.id
        ring = self.rings[number]
        for row, value in found.rows:
            ring.values[row[8:]] = value
            ring.holders[row[8:]] = {self.me}
        if found.more:
            return [self._scan(number, found.rows[-1][0] + b"\0")]
        ring.loaded = True
        return self._resend(now_ms, number)

    def _put(self, now_ms: int, asked: PutValue) -> list[Effect]:
        ring = self.rings.get(asked.ring)
        if ring is None:
            return [Reply(asked.request, Refused(Reason.UNKNOWN_SHARD, f"no ring {asked.ring}"))]
        if not ring.loaded:
            return [Reply(asked.request, Refused(Reason.BEHIND, "rows are being read", retry_after_ms=100))]
        if self.full:
            return [Reply(asked.request, Refused(Reason.DISK_FULL, "the disk is full", retry_after_ms=100))]
        if ring.values.get(asked.key, asked.value) != asked.value:
            return [Reply(asked.request, Refused(Reason.INVALID_SPEC, "the key has another value"))]
        ring.waiting.setdefault(asked.key, []).append(asked.request)
        durable = Feed(Durable(asked.ring, asked.key))
        return [self._store(asked.ring, asked.key, asked.value, durable), *self._resend(now_ms, asked.ring)]

    def _store(self, number: int, key: bytes, value: bytes, then: Effect) -> Persist:
        ring = self.rings[number]
        ring.values[key] = value
        ring.holders.setdefault(key, set())
        return Persist(_at(number), (Put(FAMILY, _row(number, key), value),), (then,))

    def _copy(self, number: int, sender: Member, key: bytes, value: bytes) -> list[Effect]:
        if number not in self.rings or not self.rings[number].loaded or self.full:
            return []
        assert self.rings[number].values.get(key, value) == value, "a key has one value"
        return [self._store(number, key, value, Send(_at(number), sender, Copied(key)))]

    def _held(self, number: int, key: bytes, member: Member) -> list[Effect]:
        ring = self.rings[number]
        if not ring.loaded:
            return []   # it will be asked again
        holders = ring.holders.setdefault(key, set())
        holders.add(member)
        if len(holders) * 2 <= len(ring.members):
            return []
        return [Reply(request, Kept(len(holders))) for request in ring.waiting.pop(key, ())]

    def _resend(self, now_ms: int, number: int) -> list[Effect]:
        ring, effects = self.rings[number], []
        for key, holders in ring.holders.items():
            for member in ring.members:
                if member not in holders and member != self.me and member not in self.down:
                    effects.append(Send(_at(number), member, Copy(key, ring.values[key])))
        lacking = any(len(holders) < len(ring.members) for holders in ring.holders.values())
        again = now_ms + self.limits.resend_ms if lacking else None
        return [*effects, SetTimer(_at(number), "resend", again)]


def _at(ring: int) -> Address:
    return Address(NUMBER, ring)


def _row(ring: int, key: bytes) -> bytes:
    return ring.to_bytes(8, "big") + key
