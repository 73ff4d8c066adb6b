"""Barriers: the consumer's side of barriers, a vector of read indexes for each (rules U68, U69).

A barrier returns when everything that was confirmed on each covered shard before the request is applied here.  Targets
are positions that leaders name by read index; servers keep nothing that a barrier needs.  Stays out: asking leaders,
moving positions, the cookies of one connection (`cookies`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ..base.errors import LocalMisuse
from ..base.ids import ShardId
from .history import START, Point

DEADLINE_MS_DEFAULT = 10_000
OUTSTANDING_MAX = 1_000
COOKIE_CHARS_MAX = 64


class NotCovered(StrEnum):
    """Why a barrier does not cover a shard."""

    NO_LEADER = "NO_LEADER"      # no leader answered with a read index
    LAGGING = "LAGGING"          # the position has not reached the target
    MOVED = "MOVED"              # no stream of the shard is open
    REBUILDING = "REBUILDING"    # the view of the shard is rebuilt


@dataclass(frozen=True, slots=True)
class AskReadIndex:
    """Ask the leader of the shard for a read index; call `on_read_index` or `on_no_leader`."""

    shard: ShardId


@dataclass(frozen=True, slots=True)
class Send:
    """Send BARRIER(cookie, {shard: target}) on the connection that streams the shard; no cookie is sent twice."""

    cookie: str
    shard: ShardId
    target: int


@dataclass(frozen=True, slots=True)
class Return:
    """The barrier is over: complete when `not_covered` is empty.  `vector` has the targets that are known."""

    cookie: str
    vector: Mapping[ShardId, Point]
    not_covered: Mapping[ShardId, NotCovered]


@dataclass(frozen=True, slots=True)
class DuplicateCookie:
    """A barrier with this cookie is outstanding; nothing changed."""

    cookie: str


@dataclass(frozen=True, slots=True)
class TooManyBarriers:
    """So many barriers are outstanding; nothing changed."""

    outstanding: int


@dataclass(frozen=True, slots=True)
class BarrierRefused:
    """A barrier that cannot be taken; `field` names the fact, and nothing changed."""

    field: str
    message: str


Effect = AskReadIndex | Send | Return
Refusal = DuplicateCookie | TooManyBarriers | BarrierRefused


def wrong_cookie(cookie: str) -> BarrierRefused | None:
    """Return what is wrong with a cookie, None when nothing is."""
    if 0 < len(cookie) <= COOKIE_CHARS_MAX and cookie.isascii() and cookie.isprintable():
        return None
    return BarrierRefused("cookie", f"cookie has {len(cookie)} characters, must be 1 to {COOKIE_CHARS_MAX} of ASCII")


@dataclass(slots=True)
class _Barrier:
    """`asked`: the number of the first read index of each shard that may answer."""

    cookie: str
    number: int
    deadline_ms: int
    asked: dict[ShardId, int]
    targets: dict[ShardId, Point]


class Barriers:
    """All barriers of one consumer, in order of request."""

    __slots__ = ("_barriers", "_count", "_flying", "_numbers", "_sent", "applied", "moved", "rebuilding")

    def __init__(self, applied: Mapping[ShardId, Point]) -> None:
        self.applied = dict(applied)             # the position of each shard that the consumer follows
        self.moved: set[ShardId] = set()         # shards without an open stream
        self.rebuilding: set[ShardId] = set()
        self._barriers: dict[str, _Barrier] = {}
        self._numbers: dict[ShardId, int] = {}   # read indexes sent so far, for each shard
        self._flying: set[ShardId] = set()
        self._count = 0
        self._sent = 0

    @property
    def outstanding(self) -> int:
        return len(self._barriers)

    def request(
        self, now_ms: int, cookie: str, shards: Iterable[ShardId] | None = None, wait_ms: int = DEADLINE_MS_DEFAULT
    ) -> list[Effect] | Refusal:
        """Begin a barrier over `shards`, all when None; it returns within `wait_ms`."""
        if (wrong := wrong_cookie(cookie)) is not None:
            return wrong
        if cookie in self._barriers:
            return DuplicateCookie(cookie)
        if len(self._barriers) >= OUTSTANDING_MAX:
            return TooManyBarriers(len(self._barriers))
        covered = list(self.applied if shards is None else dict.fromkeys(shards))
        if strange := [shard for shard in covered if shard not in self.applied]:
            raise LocalMisuse(f"U68: the consumer does not follow shard {strange[0]:#x}")
        self._count += 1
        # A read index under way began before this request: only the next one may answer it.
        asked = {shard: self._numbers.get(shard, 0) + 1 for shard in covered}
        self._barriers[cookie] = _Barrier(cookie, self._count, now_ms + wait_ms, asked, {})
        return [*self._ask(covered), *self._settle(now_ms)]

    def on_read_index(self, now_ms: int, shard: ShardId, point: Point) -> list[Effect]:
        """The leader answered: `point` is the target of every barrier requested before the question was sent."""
        self._flying.discard(shard)
        number = self._numbers[shard]
        effects: list[Effect] = []
        for barrier in self._barriers.values():
            if barrier.asked.get(shard, number + 1) <= number and shard not in barrier.targets:
                barrier.targets[shard] = point
                if not self._reached(shard, point):
                    effects.append(self._send(barrier, shard))
        return [*effects, *self._ask([shard]), *self._settle(now_ms)]

    def on_no_leader(self, shard: ShardId) -> None:
        """No leader answered; `retry` asks again."""
        self._flying.discard(shard)

    def retry(self) -> list[Effect]:
        """Ask again for each target that is wanted and not asked for."""
        return [*self._ask(list(self.applied))]

    def on_applied(self, now_ms: int, shard: ShardId, point: Point) -> list[Effect]:
        """The sink has stored the position `point`."""
        before, self.applied[shard] = self.applied[shard], point
        self.rebuilding.discard(shard)
        effects: list[Effect] = []
        if before.lineage not in (point.lineage, START.lineage):
            # Targets in a lost history are reached by no position of this one: the leader names new ones.
            for barrier in self._barriers.values():
                if shard in barrier.targets and barrier.targets[shard].lineage != point.lineage:
                    del barrier.targets[shard]
                    barrier.asked[shard] = self._numbers[shard] + 1
            effects += self._ask([shard])
        return [*effects, *self._settle(now_ms)]

    def on_stream_lost(self, shard: ShardId) -> None:
        """The shard's stream ended; barriers wait for the next one."""
        self.moved.add(shard)

    def on_stream_open(self, shard: ShardId) -> list[Effect]:
        """The shard is streamed, by this or another member: give it what is open (U69)."""
        self.moved.discard(shard)
        return [
            self._send(barrier, shard) for barrier in self._barriers.values()
            if shard in barrier.targets and not self._reached(shard, barrier.targets[shard])
        ]

    def on_time(self, now_ms: int) -> list[Effect]:
        """Return the barriers whose deadline is over."""
        return [*self._settle(now_ms)]

    @property
    def next_deadline_ms(self) -> int | None:
        return min((barrier.deadline_ms for barrier in self._barriers.values()), default=None)

    def _ask(self, shards: Iterable[ShardId]) -> list[AskReadIndex]:
        """Send one read index for each shard that needs one and has none in flight."""
        asks = []
        for shard in shards:
            number = self._numbers.get(shard, 0)
            wanted = any(
                shard in barrier.asked and shard not in barrier.targets for barrier in self._barriers.values()
            )
            if wanted and shard not in self._flying:
                self._flying.add(shard)
                self._numbers[shard] = number + 1
                asks.append(AskReadIndex(shard))
        return asks

    def _send(self, barrier: _Barrier, shard: ShardId) -> Send:
        self._sent += 1
        return Send(f"{barrier.number}.{self._sent}", shard, barrier.targets[shard].seqno)

    def _reached(self, shard: ShardId, target: Point) -> bool:
        applied = self.applied[shard]
        return applied.lineage == target.lineage and applied.seqno >= target.seqno and shard not in self.rebuilding

    def _missing(self, barrier: _Barrier) -> dict[ShardId, NotCovered]:
        missing: dict[ShardId, NotCovered] = {}
        for shard in barrier.asked:
            target = barrier.targets.get(shard)
            if target is not None and self._reached(shard, target):
                continue
            if shard in self.rebuilding:
                missing[shard] = NotCovered.REBUILDING
            elif target is None:
                missing[shard] = NotCovered.NO_LEADER
            else:
                missing[shard] = NotCovered.MOVED if shard in self.moved else NotCovered.LAGGING
        return missing

    def _settle(self, now_ms: int) -> list[Return]:
        """Return complete barriers in order of request, and each one whose deadline is over."""
        returned: list[Return] = []
        first = True
        for barrier in list(self._barriers.values()):
            missing = self._missing(barrier)
            if (missing or not first) and now_ms < barrier.deadline_ms:
                first = False
                continue
            del self._barriers[barrier.cookie]
            returned.append(Return(barrier.cookie, dict(barrier.targets), missing))
        return returned
