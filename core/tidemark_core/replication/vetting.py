"""Vetting: a chosen replica reads what it holds above commit before it leads, and repairs damage from its peers.

Rules K15, K15b, K15d.  An entry that stays damaged is reported to the operator as CORRUPT with its offset.
Stays out: leading; what the operator concludes from a report (`coordinator`).
"""

from __future__ import annotations

from ..base.effects import Effect, LogRead, LogReadFailed, ReadLog, SetTimer
from ..base.ids import Member, Peer
from ..base.refusals import Reason
from .messages import BecomeLeader, Fetched
from .replica import Replica, Role

VET_TIMER = "vet"


class Vetting:
    """One replica's look at its entries above commit.

    `broken` is the base of an entry that could not be repaired, -1 when none is known.
    """

    __slots__ = ("_asked", "_asker", "_awaited", "_reporting", "broken", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.broken = -1
        self._asked: BecomeLeader | None = None   # the request that the look is for
        self._asker: Peer | None = None
        self._awaited: dict[Member, None] = {}    # peers asked for the broken entry that have not answered
        self._reporting = False                   # a leader gave up in this epoch and no newer one has fenced it

    # --- looking ------------------------------------------------------------------------------------------

    def begin(self, sender: Peer, m: BecomeLeader) -> list[Effect]:
        """Start to read (commit, head]; nothing when that look is under way."""
        if self._asked == m:
            return []
        self._asked, self._asker, self._awaited, self.broken = m, sender, {}, -1
        return [self._read(self.replica.commit + 1)]

    def passed(self) -> bool:
        """Say whether nothing above commit is held, so that there is nothing to look at."""
        return self.replica.commit >= self.replica.log.head.offset

    def _read(self, first: int) -> ReadLog:
        replica = self.replica
        return ReadLog(
            replica.shard, ("vet", self._asked, first), first, replica.log.head.offset, replica.limits.push_bytes_max
        )

    @property
    def _wanted(self) -> bool:
        """Whether the request that began the look still stands: no fence and no truncation came since."""
        m, state = self._asked, self.replica.state
        return m is not None and (m.epoch, m.election, Role.FENCED) == (state.epoch, state.election, state.role)

    def on_read(self, now_ms: int, read: LogRead | LogReadFailed) -> list[Effect] | tuple[Peer, BecomeLeader]:
        """Go on behind what was read; return the asker and the request once all is whole, so that the caller leads."""
        _, asked, first = read.tag
        if asked != self._asked or self._awaited or not self._wanted:
            return []
        assert self._asked is not None and self._asker is not None
        if isinstance(read, LogReadFailed):
            return self._repair(now_ms, read.first)
        bare = next((entry for entry in read.entries if not entry.held), None)
        if bare is not None:
            return self._repair(now_ms, bare.base)   # members drop only what is committed: this disk lost it
        if not read.entries:
            return self._repair(now_ms, first)
        if read.entries[-1].last < self.replica.log.head.offset:
            return [self._read(read.entries[-1].last + 1)]
        request, self._asked = self._asked, None
        return self._asker, request

    # --- repairing ----------------------------------------------------------------------------------------

    def _repair(self, now_ms: int, base: int) -> list[Effect]:
        """Ask every other member for its copy, for so long as a push may take to be answered."""
        replica = self.replica
        assert self._asked is not None
        self.broken = base
        others = (*self._asked.ensemble, *replica.state.ensemble)
        self._awaited = {member: None for member in others if member != replica.me}
        trace = replica.trace("damaged_above_commit", f"offset {base}, commit {replica.commit}")
        if not self._awaited:
            return [trace, *self._refuse()]
        return [
            trace,
            *(replica.fetches.ask(member, base, replica.log.epoch_at(base)) for member in self._awaited),
            SetTimer(replica.address, VET_TIMER, now_ms + replica.limits.resend_ms),
        ]

    def repaired(self, base: int) -> list[Effect]:
        """Return what to do once a whole copy of `base` is durable here: read on from it."""
        if base != self.broken:
            return []
        self.broken = -1
        if not self._awaited or not self._wanted:
            return []
        self._awaited = {}
        return [SetTimer(self.replica.address, VET_TIMER, None), self._read(base)]

    def on_not_held(self, sender: Member, m: Fetched) -> list[Effect]:
        """Take a peer's answer that it cannot give the entry; refuse to lead when it was the last one."""
        if m.base != self.broken or sender not in self._awaited:
            return []
        del self._awaited[sender]
        return [] if self._awaited else [SetTimer(self.replica.address, VET_TIMER, None), *self._refuse()]

    def on_timer(self, now_ms: int) -> list[Effect]:
        """Peers had their time, or a report that was not answered is due again."""
        if self._reporting:
            return self._report(now_ms)
        if not self._awaited:
            return []
        self._awaited = {}
        return self._refuse()

    # --- reporting ----------------------------------------------------------------------------------------

    def _refuse(self) -> list[Effect]:
        """Rule K15b: refuse to lead, and say which entry is damaged."""
        m, wanted = self._asked, self._wanted
        self._asked = None
        if m is None or not wanted or self._asker is None:
            return []
        why = self._why()
        return [
            self.replica.trace("damage_reported", why),
            *self.replica.reject(self._asker, m, Reason.CORRUPT, f"K15b: {why}", self.broken),
        ]

    def _why(self) -> str:
        replica, broken = self.replica, self.broken
        entry = f"{replica.log.epoch_at(broken)}:{broken}"
        return f"the entry {entry} is damaged above commit {replica.commit}, and no peer gives it"

    def give_up(self, now_ms: int, base: int) -> list[Effect]:
        """Rule K15d: a leader that resigned for this entry reports it to operators until a newer epoch fences it."""
        self.broken, self._reporting = base, True
        return self._report(now_ms)

    def _report(self, now_ms: int) -> list[Effect]:
        replica = self.replica
        state = replica.state
        if state.role is not Role.DEPOSED:
            self._reporting = False
            return []
        m = BecomeLeader(state.epoch, state.election, state.ensemble, (), state.copies)
        why = self._why()
        return [
            replica.trace("damage_reported", why),
            *replica.report(m, Reason.CORRUPT, f"K15d: {why}", self.broken),
            SetTimer(replica.address, VET_TIMER, now_ms + replica.limits.resend_ms),
        ]

    def stop(self) -> None:
        """End the look and the report: an operator fenced this replica in a newer epoch."""
        self._asked, self._awaited, self._reporting = None, {}, False

    def ask_again(self, leader: Member) -> list[Effect]:
        """Ask the leader that this replica follows for the entry that could not be repaired, once."""
        replica, base = self.replica, self.broken
        self.broken = -1
        if base > replica.log.head.offset or base < replica.log.first:
            return []
        return [replica.fetches.ask(leader, base, replica.log.epoch_at(base))]
