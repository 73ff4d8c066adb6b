"""The rows of another member, taken part by part: for a new member, and for one that cannot fold on (U47, U47b).

The parts of one state of a store replace all rows of the shard here; the summary is written last, once the rows are
whole and are what it says (U73).  Rows without a summary are no documents.
Stays out: pulling (the shell), when the documents go on from these rows (`document_shard`).
"""

from __future__ import annotations

from .base.effects import Effect, PullSnapshot, Put, SnapshotDescriptor, SnapshotRows, Write
from .base.errors import RemoteViolation
from .base.ids import EntryId, Member, ShardKind
from .document_changes import failover_key
from .documents.rows import SUMMARY, Summary, prefix, wipe
from .documents.tallying import Tally
from .replication.replica import Replica
from .upr.history import FailoverLog


class Refill:
    """Rows that arrive, and the pull that brings them to a member that is no newcomer."""

    __slots__ = ("_asked", "_epoch", "_missing", "_tally", "failover", "pulled", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.pulled: Summary | None = None   # of rows that are whole, and wait for the log to have their cut
        self.failover = FailoverLog()        # that came with the rows (U54)
        self._tally: Tally | None = None     # of rows that are not whole yet
        self._asked = 0                      # members asked, to ask another one next
        self._epoch = -1                     # names the pull under way, -1: none
        self._missing = -1                   # offsets from our head to the rows' end at the last look, -1: no look yet

    def forget(self) -> None:
        """The rows that came belong to no state any more."""
        self.pulled, self.failover, self._tally, self._epoch, self._missing = None, FailoverLog(), None, -1, -1

    # --- parts --------------------------------------------------------------------------------------------

    def take(self, m: SnapshotRows) -> tuple[list[Write], Summary | None]:
        """Return the writes for a part, and the summary once all rows are whole; it is not among the writes.

        Raises RemoteViolation for what cannot be read or is not what its summary says; then nothing is written.
        """
        shard = self.replica.shard
        writes: list[Write] = []
        tally, failover = self._tally, self.failover
        if m.first:
            tally, failover = Tally(shard), FailoverLog()
            writes += wipe(shard)
        if tally is None:
            return [], None
        for family, key, value in m.rows:
            if family == SUMMARY and key == failover_key(shard):
                failover = FailoverLog.decode(value)
            else:
                tally.take(family, key, value)
            if family != SUMMARY or key != prefix(shard):
                writes.append(Put(family, key, value))
        summary = tally.summary() if m.last else None
        if summary is not None:
            _check_failover(failover, summary)
        self._tally, self.failover = tally, failover   # the rows of ours stay whole until a part is taken
        return writes, summary

    def summary_row(self, summary: Summary) -> Put:
        """Return the write that makes the rows documents."""
        return Put(SUMMARY, prefix(self.replica.shard), summary.encode())

    @property
    def partial(self) -> bool:
        """Some rows came, and never all: what is in the store belongs to no state."""
        return self._tally is not None

    # --- a member that cannot fold on ---------------------------------------------------------------------

    def begin(self, source: Member | None = None) -> Effect | None:
        """Pull rows alone from `source`, or from the next member; None: there is no other one (U47b)."""
        replica = self.replica
        others = [member for member in replica.state.ensemble if member != replica.me]
        if not others:
            return None
        self.forget()
        chosen = source if source in others else others[self._asked % len(others)]
        self._asked += 1
        head = replica.log.head
        self._epoch = replica.state.epoch
        wanted = SnapshotDescriptor(
            self._epoch, head, replica.log.first, replica.commit, 0, confirmed=replica.confirmed,
            kind=ShardKind.DOCUMENTS,
        )
        return PullSnapshot(replica.shard, chosen, wanted, head.offset + 1, rows=True)

    def is_of(self, epoch: int) -> bool:
        """Say whether what a pull of `epoch` brings belongs to the pull under way."""
        return self._epoch == epoch

    def fits(self) -> bool:
        """Say whether our log has the entry that the rows end at: a restart may then confirm by them (U47)."""
        pulled = self.pulled
        return pulled is not None and self.replica.log.contains(EntryId(pulled.epoch, pulled.applied))

    def misses(self) -> bool:
        """Say whether our log never gets the entry that the rows end at: it is confirmed with another one there."""
        pulled = self.pulled
        return pulled is not None and self.replica.confirmed >= pulled.applied and not self.fits()

    def waits(self) -> bool:
        """Say whether our log has come nearer to the rows by a hundredth of the way since the last look."""
        pulled = self.pulled
        assert pulled is not None, "U47b: no rows to wait for"
        before, self._missing = self._missing, pulled.applied - self.replica.log.head.offset
        return before < 0 or (before - self._missing) * 100 >= before


def _check_failover(failover: FailoverLog, summary: Summary) -> None:
    """Raise RemoteViolation for an opening that the folded entries cannot hold: the next one would not fit (U54)."""
    if not failover.openings:
        return
    newest = failover.newest
    if newest.head >= summary.applied or newest.epoch > summary.epoch:
        raise RemoteViolation(
            f"U54: epoch {newest.epoch} opens above {newest.head}, the rows are folded up to {summary.applied} of "
            f"epoch {summary.epoch}"
        )
