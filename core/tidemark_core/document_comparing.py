"""Comparing: once a minute a leader asks its followers for digests of their documents, and names who differs (U73b).

Members fold in slices of their own, so each keeps the digest at the same few cuts of the log and where it stands now.
Stays out: the digest itself (`documents.fold`), who hears of a difference (`log_plane`, the operator).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from .base.effects import Effect, SetTimer
from .base.ids import Member
from .documents.fold import DigestAt
from .documents.rows import Summary
from .replication.leader import Leader
from .replication.messages import DIGESTS_MAX, Digests, DigestsAsked, FoldedCut
from .replication.replica import Replica

COMPARE_TIMER = "documents_compare"


class Comparing:
    """The digests of one member, and what a leader found of the others."""

    __slots__ = ("_agreed", "_armed", "_cuts", "diverged", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.diverged: dict[Member, int] = {}   # the lowest cut at which a follower's digest is another one
        self._cuts: deque[FoldedCut] = deque(maxlen=DIGESTS_MAX - 1)
        self._agreed: dict[Member, int] = {}    # the newest cut at which a follower was compared
        self._armed = False

    def folded(self, marks: Iterable[DigestAt]) -> None:
        """Keep the digests at cuts that every member keeps."""
        self._cuts.extend(_cut(*mark) for mark in marks)

    def forget(self) -> None:
        """The rows are gone, or those of another member took their place."""
        self._cuts.clear()

    def resigned(self) -> list[Effect]:
        self.diverged, self._agreed, self._armed = {}, {}, False
        return [SetTimer(self.replica.address, COMPARE_TIMER, None)]

    def later(self, now_ms: int, leader: Leader | None, summary: Summary) -> list[Effect]:
        """Compare in a minute while a follower may stand elsewhere; members at rest that agree cost nothing."""
        if leader is None or self._armed or summary.applied < 0:
            return []
        if all(self._agreed.get(member) == summary.applied for member in leader.cursors):
            return []
        self._armed = True
        return [SetTimer(self.replica.address, COMPARE_TIMER, now_ms + self.replica.limits.compare_ms)]

    def on_timer(self, leader: Leader | None) -> list[Effect]:
        """Ask all followers; no answer is no news, the next round asks again."""
        self._armed = False
        if leader is None:
            return []
        self.diverged = {member: at for member, at in self.diverged.items() if member in leader.cursors}
        asked = DigestsAsked(leader.epoch)
        return [self.replica.send(member, asked) for member, cursor in leader.cursors.items() if cursor.up]

    def on_asked(self, sender: Member, m: DigestsAsked, summary: Summary) -> list[Effect]:
        if m.epoch != self.replica.state.epoch or summary.applied < 0:
            return []
        return [self.replica.send(sender, Digests(m.epoch, self._kept(summary)))]

    def on_digests(self, leader: Leader, sender: Member, m: Digests, summary: Summary) -> list[Effect]:
        """Compare what a follower says with our own digests at the same cuts."""
        if m.epoch != leader.epoch:
            return []
        own = {cut.applied: cut for cut in self._kept(summary)}
        common = [cut for cut in m.cuts if cut.applied in own]
        if not common:
            return []
        self._agreed[sender] = max(cut.applied for cut in common)
        differs = [cut for cut in common if cut != own[cut.applied]]
        if not differs:
            self.diverged.pop(sender, None)
            return []
        at = self.diverged[sender] = min(cut.applied for cut in differs)
        what = f"documents of {sender} at {at} have another digest than ours"
        return [self.replica.trace("documents_diverged", what)]

    def _kept(self, summary: Summary) -> tuple[FoldedCut, ...]:
        return (*self._cuts, _cut(summary.applied, summary.count, summary.digest))


def _cut(applied: int, count: int, digest: int) -> FoldedCut:
    return FoldedCut(applied, count, digest.to_bytes(16, "big"))
