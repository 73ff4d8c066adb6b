"""The clocks of a shard's members, as its leader hears them: which one decides (rules C2, C3).

Each acknowledgement and each fence answer carries the wall clock of its sender.  The leader keeps how far each is ahead
of its own clock, so the answers stay of use while the shard is idle.  The median of the clocks of a majority decides
which records and leases expire.  Entries are stamped by our own clock where the median agrees with it, else by the
median.

The rules, with reasons and tests in `docs/protocols/clocks.md`:

C1  A shell's clock follows the wall clock
C2  What expires by age expires by the median
C3  One clock does not move the log's clock
C4  Ages are true ages
C5  A clock that disagrees is named
C6  An operator's clock never falls

Stays out: what expires (`retention`, `positions`, `producers`), how a clock of a shell moves (`base.clock`).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base.ids import Member
from ..base.quorum import majority
from .replica import Replica

AGREES_MS = 60_000
"""Clocks that differ by no more than this agree."""
LEAP_MS = 3_600_000
"""So far the log's clock may move beyond the time that has passed, while no majority says what time it is."""

Middles = tuple[int, int]


class Clocks:
    """The clocks that one leadership knows.  All times are milliseconds; `ahead` is relative to our own `now_ms`."""

    __slots__ = ("_ahead", "_ensemble", "_middles", "_replica", "_since_ms")

    def __init__(self, replica: Replica, now_ms: int) -> None:
        self._replica = replica
        self._ahead: dict[Member, int] = {}
        self._since_ms = now_ms     # when the log's clock was set last, or the leadership began
        self._middles: Middles | None = None
        self._ensemble: tuple[Member, ...] | None = None    # `_middles` is computed for this one

    # --- hearing ------------------------------------------------------------------------------------------

    def heard(self, member: Member, clock_ms: int | None, now_ms: int) -> None:
        """Take the clock that a member's answer carries; a peer of an older build says none.

        An answer that was under way for long makes a clock look slow, so the fastest one counts, until they differ by
        more than a minute: then the clock was set back.
        """
        if clock_ms is None:
            return
        ahead, known = clock_ms - now_ms, self._ahead.get(member)
        if known is None or ahead > known or known - ahead > AGREES_MS:
            self._ahead[member] = ahead
            self._ensemble = None

    def stepped(self, by_ms: int) -> None:
        """Our own `now_ms` has moved by `by_ms` against the time that passed: the others' clocks have not."""
        self._ahead = {member: ahead - by_ms for member, ahead in self._ahead.items()}
        self._since_ms += by_ms
        self._ensemble = None

    # --- deciding -----------------------------------------------------------------------------------------

    def agreed_ms(self, now_ms: int) -> int | None:
        """Return the time by which records and leases expire: the median; None without a majority (C2).

        Of an even number the lower of the two in the middle counts: where two clocks differ, nothing expires early.
        """
        middles = self._median()
        return now_ms + middles[0] if middles is not None else None

    def next_stamp(self, now_ms: int) -> int:
        """Return what `logged_ms` of an entry would be that is appended now; it never falls along the log (C3)."""
        log = self._replica.log
        last_ms = log.logged_ms
        passed_ms = last_ms + max(0, now_ms - self._since_ms)
        bound_ms = passed_ms + LEAP_MS
        middles = self._median()
        if middles is None:
            wall_ms = self._replica.wall_behind(now_ms)
            # The first entry of a log has no predecessor that could bound it.
            return max(last_ms, wall_ms) if wall_ms <= bound_ms or log.head.offset < 0 else passed_ms
        lower, upper = (now_ms + ahead for ahead in middles)
        if lower >= last_ms:
            return lower
        # Of two clocks in the middle the lower one is behind the log's own clock, so it is not the one that is right.
        return max(last_ms, upper) if upper <= bound_ms or lower == upper else passed_ms

    def stamp(self, now_ms: int) -> int:
        """Like `next_stamp`, for an entry that is appended now."""
        stamp_ms = self.next_stamp(now_ms)
        if stamp_ms > self._replica.log.logged_ms:
            self._since_ms = now_ms
        return stamp_ms

    def skews(self) -> Iterable[tuple[Member, int]]:
        """Yield each member heard, ourselves included, and how far its clock is from the median; none without one."""
        middles = self._median()
        if middles is None:
            return
        yield self._replica.me, -self._replica.behind_ms - middles[0]
        for member, ahead in self._ahead.items():
            yield member, ahead - middles[0]

    def _median(self) -> Middles | None:
        """Return the two in the middle of what a majority of the ensemble says, our own in place of what is near."""
        replica = self._replica
        ensemble = replica.state.ensemble
        if self._ensemble is ensemble:
            return self._middles
        own, heard = -replica.behind_ms, self._ahead
        ranked = sorted(
            own if member == replica.me else heard[member]
            for member in ensemble if member == replica.me or member in heard
        )
        self._ensemble, self._middles = ensemble, None
        if len(ranked) >= majority(len(ensemble)):
            lower, upper = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]
            self._middles = (_near(own, lower), _near(own, upper))
        return self._middles


def _near(own: int, other: int) -> int:
    return own if abs(own - other) <= AGREES_MS else other
