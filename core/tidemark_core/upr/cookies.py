"""Cookies: the barriers of one connection at a member, returned first in, first out (rule U69).

A cookie makes the member move the positions of the streams that it names.  It decides nothing: the consumer compares
its own positions with its targets.  Stays out: targets, deadlines (`barriers`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..base.ids import ShardId
from .barriers import OUTSTANDING_MAX, BarrierRefused, DuplicateCookie, Refusal, TooManyBarriers, wrong_cookie


class Cookies:
    """Outstanding cookies in order, each with the seqnos that its streams have not reached yet."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: dict[str, dict[ShardId, int]] = {}

    def add(
        self, cookie: str, targets: Mapping[ShardId, int], said: Mapping[ShardId, int]
    ) -> list[str] | Refusal:
        """Take a cookie; return the cookies that go back now.  `said` has the position that each stream sent."""
        if (wrong := wrong_cookie(cookie)) is not None:
            return wrong
        if cookie in self._open:
            return DuplicateCookie(cookie)
        if len(self._open) >= OUTSTANDING_MAX:
            return TooManyBarriers(len(self._open))
        for shard, target in targets.items():
            if shard not in said:
                return BarrierRefused("shard", f"shard {shard:#x} is not streamed on this connection")
            if target < 0:
                return BarrierRefused("target", f"target of shard {shard:#x} is {target}, must be 0 or more")
        self._open[cookie] = {shard: target for shard, target in targets.items() if said[shard] < target}
        return self._returned()

    def target(self, shard: ShardId) -> int:
        """Return the highest seqno that an outstanding cookie waits for in `shard`, -1 when none does."""
        return max((targets.get(shard, -1) for targets in self._open.values()), default=-1)

    def on_said(self, shard: ShardId, seqno: int) -> list[str]:
        """A stream sent END, ADVANCED or CONFIRMED up to `seqno`; return the cookies that go back, in order."""
        for targets in self._open.values():
            if targets.get(shard, seqno + 1) <= seqno:
                del targets[shard]
        return self._returned()

    def on_ended(self, shard: ShardId) -> None:
        """A stream ended: cookies that wait for it are forgotten; the consumer sends them to the next member."""
        for cookie in [cookie for cookie, targets in self._open.items() if shard in targets]:
            del self._open[cookie]

    def _returned(self) -> list[str]:
        returned: list[str] = []
        for cookie, targets in list(self._open.items()):
            if targets:
                break
            del self._open[cookie]
            returned.append(cookie)
        return returned
