"""Budgets: how much of one thing a server gives to all its callers, and how much of that to one of them.

The rule, with reason and tests in `docs/protocols/trust.md`:

T12  Callers share what a node has

A caller is the name in its certificate; on a cluster without TLS it is the address of its machine.  One caller gets at
most half of what the other callers leave, so that something is left for the next one.  A caller that holds nothing gets
whatever is left.
Stays out: which call costs what (`tidemark_node.limits`, the operator's Admin service).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from tidemark_core.base.refusals import Reason, Refused

from .identity import Identity

RETRY_AFTER_MS = 1000
PARTS = 16
"""Of what is left for a caller one grant takes at most such a part, so that many of its streams get something."""


def name_of(identity: Identity | None, peer: str) -> str:
    """Return the name that a caller counts as: its identity, else the address that gRPC names, without the port."""
    return str(identity) if identity is not None else peer.rpartition(":")[0] or peer


class Budget:
    """`total` of something: streams, bytes, calls.  `setting` is what a person raises to get more of it."""

    def __init__(self, what: str, total: int, setting: str = "") -> None:
        self.what = what
        self.total = total
        self.setting = setting
        self.used = 0
        self.refused = 0
        self._held: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        """Yield the callers that hold something."""
        return iter(self._held)

    def held(self, who: str) -> int:
        """Return how much a caller holds."""
        return self._held.get(who, 0)

    def left(self, who: str) -> int:
        """Return how much more a caller may take; what it holds is at most half of what the others leave."""
        return (self.total - self.used - self.held(who)) // 2

    def fits(self, who: str, count: int) -> bool:
        """Say whether a caller may take `count` now.  Where nothing is held, one thing of any size fits."""
        if self.held(who):
            return count <= self.left(who)
        return not self.used or self.used + count <= self.total

    def take(self, who: str, count: int = 1) -> bool:
        """Take `count` for a caller, or count a refusal and return False."""
        if not self.fits(who, count):
            self.refused += 1
            return False
        self._add(who, count)
        return True

    def give_back(self, who: str, count: int = 1) -> None:
        """Return `count` that a caller took."""
        self._add(who, -count)

    def measured(self, who: str, count: int) -> None:
        """Set what a caller was found to hold, above its share too."""
        self._add(who, count - self.held(who))

    def refusal(self, who: str, retry_after_ms: int = RETRY_AFTER_MS) -> Refused:
        """Return what a caller is answered that gets nothing; it names the limit, its value and what to do."""
        raised = f", or raise {self.setting}" if self.setting else ""
        return Refused(
            Reason.OVERLOADED,
            f"{who} holds {self.held(who)} of this server's {self.total} {self.what}, all callers {self.used}; one "
            f"caller gets at most half of what others leave: use fewer at once{raised}",
            retry_after_ms=retry_after_ms,
        )

    def _add(self, who: str, count: int) -> None:
        self.used += count
        held = self.held(who) + count
        assert held >= 0, f"T12: {who} gives back more {self.what} than it took"
        if held:
            self._held[who] = held
        else:
            self._held.pop(who, None)


class _Waiter(NamedTuple):
    granted: asyncio.Future[Grant]
    least: int
    most: int


class Line(Budget):
    """A budget that callers wait for.  Callers take turns; the requests of one caller are served in order.

    A large request (above one part in `PARTS` of the line) that does not fit is served beside the budget, one at a
    time.  So it waits for no sum of small ones, and the line is overdrawn by one request at most.
    """

    def __init__(self, what: str, total: int, setting: str = "") -> None:
        super().__init__(what, total, setting)
        self.beside = 0
        """The count that one large request holds above the budget."""
        self._waiting: dict[str, deque[_Waiter]] = {}

    @property
    def waiting(self) -> int:
        """The number of requests that wait."""
        return sum(map(len, self._waiting.values()))

    @property
    def wants_beside(self) -> bool:
        """Whether a large request waits for another one that is served beside the budget."""
        return any(self._is_large(waiter.least) for requests in self._waiting.values() for waiter in requests)

    def fits(self, who: str, count: int) -> bool:
        return self.used + count <= self.total and (not self.held(who) or count <= self.left(who))

    def give_back(self, who: str, count: int = 1) -> None:
        super().give_back(who, count)
        self._serve()

    def give_back_beside(self, count: int) -> None:
        """Return what a large request held above the budget."""
        self.beside -= count
        self._serve()

    def grant_now(self, who: str, least: int = 1, most: int = 0) -> Grant | None:
        """Return what `grant` would, None where a caller has to wait."""
        return self._now(who, least, most) if who not in self._waiting else None

    async def grant(self, who: str, least: int = 1, most: int = 0) -> Grant:
        """Wait for `least` to `most` of the budget: the less is left for a caller, the smaller is its grant."""
        if (now := self.grant_now(who, least, most)) is not None:
            return now
        waiter = _Waiter(asyncio.get_running_loop().create_future(), least, most)
        self._waiting.setdefault(who, deque()).append(waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.cancelled():
                self._serve()   # the next one may need less
            else:
                waiter.granted.result().release()
            raise

    @asynccontextmanager
    async def granted(self, who: str, least: int = 1) -> AsyncIterator[None]:
        """Hold `least` of the budget, once there is so much."""
        grant = await self.grant(who, least)
        try:
            yield
        finally:
            grant.release()

    def grow(self, who: str, count: int) -> bool:
        """Add `count` to what a caller holds, if that fits and none of its requests waits."""
        if who in self._waiting or count > self.left(who):
            return False
        self._add(who, count)
        return True

    def _is_large(self, least: int) -> bool:
        return least > max(1, self.total // PARTS)

    def _now(self, who: str, least: int, most: int) -> Grant | None:
        """Return what a caller gets now, None where it has to wait."""
        count = max(least, min(most, self.left(who) // PARTS))
        if self.fits(who, count):
            self._add(who, count)
            return Grant(self, who, count)
        if self.beside or not self._is_large(least):
            return None
        self.beside = least
        return Grant(self, who, least, beside=True)

    def _serve(self) -> None:
        """Serve one waiting request of each caller, then the next of each, as long as something fits."""
        served = bool(self._waiting)
        while served:
            served = False
            for who in list(self._waiting):
                requests = self._waiting[who]
                while requests and requests[0].granted.done():
                    requests.popleft()   # its caller went away
                if requests and (grant := self._now(who, requests[0].least, requests[0].most)) is not None:
                    requests.popleft().granted.set_result(grant)
                    served = True
                    del self._waiting[who]
                    self._waiting[who] = requests   # the last in the next round
                if not requests:
                    del self._waiting[who]


class Grant:
    """A part of a line that one caller holds until it is released; `beside` says that it lies above the budget."""

    __slots__ = ("_line", "_who", "beside", "count")

    def __init__(self, line: Line, who: str, count: int, *, beside: bool = False) -> None:
        self._line = line
        self._who = who
        self.beside = beside
        self.count = count

    def grow(self, count: int) -> bool:
        """Hold `count` instead, if that fits at once; say whether it does."""
        more = count - self.count
        if more > 0 and (self.beside or not self._line.grow(self._who, more)):
            return False
        self.count = max(self.count, count)
        return True

    def shrink(self, count: int) -> None:
        """Return what is held above `count`."""
        less, self.count = self.count - count, min(count, self.count)
        if less <= 0:
            return
        if self.beside:
            self._line.give_back_beside(less)
        else:
            self._line.give_back(self._who, less)

    def release(self) -> None:
        """Return all of it; once more does nothing."""
        self.shrink(0)


class Pace:
    """Work that is done on the loop, one piece in each turn, so that other work comes in between.

    Callers take turns; the work of one caller stays in order.
    """

    def __init__(self) -> None:
        self._busy = False       # this turn has its piece
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def turn(self, who: str) -> None:
        """Wait for the turn of a piece of work, which the caller then does at once."""
        if not self._busy:
            self._take()
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(who, deque()).append(waiter)
        await waiter

    def _take(self) -> None:
        self._busy = True
        asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        """Begin the next turn with a piece that waits."""
        self._busy = False
        while self._waiting and not self._busy:
            who = next(iter(self._waiting))
            pieces = self._waiting.pop(who)
            while pieces and pieces[0].done():
                pieces.popleft()     # its caller went away
            if pieces:
                pieces.popleft().set_result(None)
                self._take()
            if pieces:
                self._waiting[who] = pieces   # the last in the next round
