"""What can be said in log replication and coordination (rule O41 with the repairs H and A3).

Direction is in the section headings.  Every message names the epoch it belongs to; requests of the
operator also carry the election id of that epoch, so that two operators can never speak for one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ..base.effects import SnapshotDescriptor, Space
from ..base.entry import Entry
from ..base.ids import EntryId, Member, ShardId, ShardKind
from ..base.refusals import Refused

EPOCH_JUMP_MAX = 1 << 32
"""An epoch rises by no more at once: one forged or damaged epoch must not use up those that are left (N12)."""


class Operation(StrEnum):
    """The ensemble changes (O27-O40), and the one that moves no member."""

    SWAP = "SWAP"
    EXPAND = "EXPAND"
    CONTRACT = "CONTRACT"
    COPIES = "COPIES"   # how many members keep each payload (K13)


# --- operator -> node, and the answers ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fence:
    """Refuse everything older than `epoch` and say where your log ends (O8, O9).

    The answer repeats `nonce`, by which the operator knows the fence that it answers (O42).  `members` are those that
    may speak of the shard from now on, a newcomer among them (T10); a build of wire version 4 names none.  Equal fences
    may name other members.  A replica that begins with this fence is of `kind`.
    """

    epoch: int
    election: int
    nonce: int = 0
    members: tuple[Member, ...] = field(default=(), compare=False)
    kind: ShardKind = ShardKind.LOG


@dataclass(frozen=True, slots=True)
class Fenced:
    """`head` is the log's end at fencing time; durable.  `nonce` is the fence's, 0 from builds that know none.

    `clock_ms` is the sender's wall clock, None from a build that does not say it; equal answers may carry other clocks.
    """

    epoch: int
    election: int
    head: EntryId
    nonce: int = 0
    clock_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """Lead `ensemble` (slots in order); `followers` are the fenced heads known so far (O13).

    `copies` members keep each payload, 0: all.  `clocks` are the wall clocks that fence answers carried (C2).
    `lineage` names the shard's history together with the epoch: 16 bytes, none for shards without one (U54).
    """

    epoch: int
    election: int
    ensemble: tuple[Member, ...]
    followers: tuple[tuple[Member, EntryId], ...]
    copies: int = 0
    clocks: tuple[tuple[Member, int], ...] = field(default=(), compare=False)
    lineage: bytes = b""


@dataclass(frozen=True, slots=True)
class BecameLeader:
    epoch: int
    election: int


@dataclass(frozen=True, slots=True)
class AddFollower:
    """A late fence answer (O16)."""

    epoch: int
    election: int
    follower: Member
    head: EntryId


@dataclass(frozen=True, slots=True)
class FollowerAdded:
    epoch: int
    follower: Member


@dataclass(frozen=True, slots=True)
class Prepare:
    """First phase of a change: adopt `epoch`, silence `old`, describe a snapshot for `new` (O31, O37, O38).

    `copies` is as it will be after the change.
    """

    epoch: int
    election: int
    operation: Operation
    old: Member | None
    new: Member | None
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Prepared:
    epoch: int
    snapshot: SnapshotDescriptor | None


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """To the new member: pull the snapshot from `source`; answer when it is durable (O32, A3)."""

    epoch: int
    election: int
    source: Member
    snapshot: SnapshotDescriptor


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """How far the pull is: bytes received of bytes in all."""

    epoch: int
    received_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class SnapshotInstalled:
    epoch: int
    head: EntryId


@dataclass(frozen=True, slots=True)
class Commit:
    """Second phase: `ensemble` and `copies` are in force (O34, O37, O39).

    Idempotent; a contract and a change of `copies` may be answered CommitPending.
    """

    epoch: int
    election: int
    operation: Operation
    ensemble: tuple[Member, ...]
    old: Member | None
    new: Member | None
    new_head: EntryId
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Committed:
    epoch: int


@dataclass(frozen=True, slots=True)
class CommitPending:
    """The contract would lower the commit offset (O39, O40), or payloads are still being filled (K13); ask again.

    `filled` grows as long as filling goes on.
    """

    epoch: int
    filled: int = 0


@dataclass(frozen=True, slots=True)
class Abort:
    """The stored record of `epoch` is steady: a change prepared in it was given up, a contract in force is final."""

    epoch: int
    election: int


@dataclass(frozen=True, slots=True)
class Aborted:
    epoch: int


@dataclass(frozen=True, slots=True)
class PrepareTransfer:
    """Stop accepting appends until `to` holds all of the log, or the leader's patience ends."""

    epoch: int
    election: int
    to: Member


@dataclass(frozen=True, slots=True)
class TransferReady:
    """`to` holds everything; the leader refuses appends for a short while more, awaiting the election."""

    epoch: int
    to: Member


@dataclass(frozen=True, slots=True)
class DeleteShard:
    """Remove the replica.  Allowed with an epoch at or above the replica's own, refused below."""

    epoch: int
    election: int


@dataclass(frozen=True, slots=True)
class ShardDeleted:
    epoch: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """A typed no to an operator's request of `epoch`; `about` is the request's class name.

    `nonce` is the fence's; 0 when something else is refused, and from builds that know none.
    """

    epoch: int
    about: str
    refusal: Refused
    nonce: int = 0


# --- node -> operator: whom it reaches ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Unheard:
    """A shard whose leader does not hear some members (O43).

    `members` of the ensemble cannot acknowledge.  For `silent_ms` milliseconds the leader has heard no majority of its
    ensemble; 0: it hears one.
    """

    shard: ShardId
    epoch: int
    members: tuple[Member, ...]
    silent_ms: int = 0


@dataclass(frozen=True, slots=True)
class Diverged:
    """A shard whose leader finds other documents at `member` than its own, both folded up to `at` (U73b)."""

    shard: ShardId
    epoch: int
    member: Member
    at: int


@dataclass(frozen=True, slots=True)
class Reach:
    """Which members this node has a link with, which it lost, and what its leaders do not hear (O43) or find (U73b).

    A member in neither list is not known.  One message speaks for all shards of the node.  The node repeats it, and a
    later one replaces it.
    """

    reached: tuple[Member, ...]
    lost: tuple[Member, ...]
    unheard: tuple[Unheard, ...] = ()
    diverged: tuple[Diverged, ...] = ()


# --- leader -> follower, and the answers -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Append:
    """Entries right behind `prev`; none at all is a heartbeat that carries watermarks.

    `through` is the last offset the message vouches for; `commit` and `confirmed` are already lowered to it (L9).
    `released` is how far of `confirmed` readers may go (K10), None: all of it.  `ensemble` and `copies` are named
    when an entry comes without its payload: by them the receiver sees that it is not one who keeps it (K8).
    """

    epoch: int
    prev: EntryId
    entries: tuple[Entry, ...]
    through: int
    commit: int
    confirmed: int
    trim: int
    released: int | None = None
    ensemble: tuple[Member, ...] = ()
    copies: int = 0


@dataclass(frozen=True, slots=True)
class AppendAck:
    """Durable and matching the leader's log up to `upto`, cumulative (K4).

    `clock_ms` is the sender's wall clock, None from a build that does not say it; equal answers may carry other clocks.
    `space` is that of the sender's disk (K20), FREE from a build that does not say it.
    """

    epoch: int
    upto: int
    commit: int
    clock_ms: int | None = field(default=None, compare=False)
    space: Space = Space.FREE


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """`epoch` echoes the request, so that a stale leader does not ignore it; `own_epoch` and `head` are ours."""

    epoch: int
    own_epoch: int
    head: EntryId
    reason: str  # base.refusals.Reason value


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log back to its highest entry at or below `to` (O21, O22); repeated until the head matches (H1)."""

    epoch: int
    to: EntryId


@dataclass(frozen=True, slots=True)
class Truncated:
    epoch: int
    head: EntryId


@dataclass(frozen=True, slots=True)
class ReadRound:
    """Leader to follower: answer unless a newer epoch has fenced you (O46).

    `number` counts the rounds of a leadership.
    """

    epoch: int
    number: int


@dataclass(frozen=True, slots=True)
class ReadRoundAck:
    """When ReadRound `number` arrived, no newer epoch had fenced the sender."""

    epoch: int
    number: int


DIGESTS_MAX = 64
"""Cuts in one answer about documents."""


@dataclass(frozen=True, slots=True)
class DigestsAsked:
    """Leader to follower: say the digests of your documents (U73b).  Wire version 4 has logs alone, and no such word.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class FoldedCut:
    """The documents of a member at the cut `applied`: how many are live, and their digest, 16 bytes (U73)."""

    applied: int
    count: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Digests:
    """The cuts that the sender kept, at most `DIGESTS_MAX`, the newest last; a loss is harmless."""

    epoch: int
    cuts: tuple[FoldedCut, ...]


# --- where fewer than all members keep payloads -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drop:
    """Leader to follower: the facts by which each member finds the payloads it need not keep (K6, K7).

    `matches` are by slot of `ensemble`, of this epoch alone, -1 where a slot does not count.  Never answered; a loss is
    harmless, and so is a repeat.
    """

    epoch: int
    ensemble: tuple[Member, ...]
    copies: int
    matches: tuple[int, ...]
    commit: int


@dataclass(frozen=True, slots=True)
class Fill:
    """Leader to follower: get the payloads up to `upto` that you will have to keep under these facts (K13)."""

    epoch: int
    ensemble: tuple[Member, ...]
    copies: int
    upto: int


@dataclass(frozen=True, slots=True)
class Filled:
    """What Fill asked for is durable here up to `upto`; said as it goes on, done when it is all that was asked."""

    epoch: int
    upto: int


# --- any member -> any member: repair of a corrupt copy ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send me your copy of the entry with this base offset and epoch."""

    base: int
    entry_epoch: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """`entry` is None when the peer does not hold it intact, payload included (NOT_HELD).

    `first` is where the peer's log begins, told when it was trimmed past `base`; 0 otherwise.
    """

    base: int
    entry: Entry | None
    first: int = 0


# --- client -> node -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Appended:
    """Answer to an append: where the batch lies and what stands behind the promise."""

    epoch: int
    base: int
    count: int
    durability: int  # base.entry.Durability


@dataclass(frozen=True, slots=True)
class Claimed:
    """Answer to a claim: it lies at `offset`, and everything in front of it is decided.

    The other fields are of the newest batch of the producer in front of it that is in the log for good (L27): -1, 0, 0
    and 0 where there is none.
    """

    epoch: int
    offset: int
    sequence: int
    batch_epoch: int
    base: int
    count: int


class Fate(StrEnum):
    """What became of a batch (L5, L19)."""

    CONFIRMED = "CONFIRMED"
    ROLLED_BACK = "ROLLED_BACK"  # in nobody's log, for ever
    UNKNOWN = "UNKNOWN"          # in the log, not decided yet
    NOT_FOUND = "NOT_FOUND"      # advice to send the same sequence again, never a verdict (L20)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Answer to an outcome request; the place is -1 and the count 0 for NOT_FOUND."""

    fate: Fate
    epoch: int
    base: int
    count: int
    rolled_back_at: int = -1  # offset of the rollback record


@dataclass(frozen=True, slots=True)
class PositionCommitted:
    """Answer to a commit: where the subscription stands, which may be further than asked (B6)."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class SubscriptionDeleted:
    """Answer to a deletion; `existed` says whether there was anything to delete."""

    epoch: int
    existed: bool


@dataclass(frozen=True, slots=True)
class SinkJoined:
    """Answer to a join: the part may append; with `marked` the batch is complete, and all its rows are there (W1)."""

    epoch: int
    marked: bool


@dataclass(frozen=True, slots=True)
class SinkMarked:
    """Answer to a mark: the batch is complete (W2)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SinkDeleted:
    """Answer to a deletion; `existed` says whether there was anything to delete."""

    epoch: int
    existed: bool


@dataclass(frozen=True, slots=True)
class ReadGrant:
    """This node leads the shard; read [first, released], and wait for `Released` beyond."""

    first: int
    released: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Latest:
    """Answer to a LatestRequest: a read of everything acknowledged before the question ends at `offset` (O46).

    It lies above `released` while a new leader does not know yet how much of what it inherited was acknowledged (L12),
    and while entries that are confirmed wait for the first members of their order (K10).
    """

    epoch: int
    offset: int
