"""Trust: who may say what about one shard, and who may read it; the one place that is asked (rule T10).

A link names its peer by the peer's certificate, so a sender is who it says.  That it may speak at all is decided here:
a node that is no member of this shard may belong to others, or its key may be stolen.

The rules, with reasons and tests in `docs/protocols/trust.md`:

T10   Only members speak of a shard
T10b  A copy counts only as the answer to a question
T10c  A leader heeds its followers, an operator heeds members
T10d  Only members and newcomers pull

Stays out: certificates and links (the shells), what a message that is taken does.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from typing import Any

from ..base.ids import Member
from ..base.plane import Voice
from .messages import (
    Abort,
    AddFollower,
    Append,
    AppendAck,
    AppendRefused,
    BecomeLeader,
    Commit,
    DeleteShard,
    Digests,
    DigestsAsked,
    Drop,
    Fence,
    Fetch,
    Fetched,
    Fill,
    Filled,
    InstallSnapshot,
    Prepare,
    PrepareTransfer,
    ReadRound,
    ReadRoundAck,
    Truncate,
    Truncated,
)
from .replica import Replica, ReplicaState, Role


class Standing(Enum):
    """The relation of a sender to this replica that a message needs."""

    OPERATOR = "an operator"
    MEMBER = "a member that this replica knows of"
    FOLLOWER = "a member that this leader pushes to"
    ASKED = "a member that was asked for this offset"


STANDINGS: dict[type, Standing] = {
    Fence: Standing.OPERATOR,
    BecomeLeader: Standing.OPERATOR,
    AddFollower: Standing.OPERATOR,
    Prepare: Standing.OPERATOR,
    InstallSnapshot: Standing.OPERATOR,
    Commit: Standing.OPERATOR,
    Abort: Standing.OPERATOR,
    PrepareTransfer: Standing.OPERATOR,
    DeleteShard: Standing.OPERATOR,
    Append: Standing.MEMBER,
    Truncate: Standing.MEMBER,
    ReadRound: Standing.MEMBER,
    DigestsAsked: Standing.MEMBER,
    Drop: Standing.MEMBER,
    Fill: Standing.MEMBER,
    Fetch: Standing.MEMBER,
    AppendAck: Standing.FOLLOWER,
    AppendRefused: Standing.FOLLOWER,
    Truncated: Standing.FOLLOWER,
    ReadRoundAck: Standing.FOLLOWER,
    Filled: Standing.FOLLOWER,
    Digests: Standing.FOLLOWER,
    Fetched: Standing.ASKED,
}
"""Every kind of message that a replica takes.  A kind that is not here is taken from no sender."""

FROM_LEADERS = (Append, Truncate, ReadRound)
"""A leader repeats these until it hears an answer: a stranger that sends one in an old epoch learns of ours alone."""

VOICES = {
    kind: Voice.OPERATOR if standing is Standing.OPERATOR else Voice.NODE for kind, standing in STANDINGS.items()
}


_FOLLOWER, _MEMBER = Standing.FOLLOWER, Standing.MEMBER   # every message passes them


class _Everybody(frozenset[Member]):
    """All nodes, where a replica has nothing to protect, or cannot know its members."""

    def __contains__(self, _: object) -> bool:
        return True


EVERYBODY = _Everybody()


def members_of(state: ReplicaState) -> frozenset[Member]:
    """Return the members that a replica knows of.

    An operator announces them with a fence or a snapshot.  From the opening of a newer epoch on the log names them.  An
    operator of wire version 4 announces none: then each node is heard until the log names the members of that epoch.
    """
    if state.role is Role.DELETED:
        return EVERYBODY
    if state.announced and state.announced_in >= state.told:
        return frozenset(state.announced)
    if not state.announced and state.announced_in > state.told:
        return EVERYBODY
    joining = state.pending.new if state.pending is not None and state.opened >= state.told else None
    return frozenset(state.ensemble if joining is None else (*state.ensemble, joining))


class Trust:
    """The judge of one replica."""

    __slots__ = ("_members", "_state", "replica")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._state: ReplicaState | None = None
        self._members: frozenset[Member] = EVERYBODY

    def members(self) -> frozenset[Member]:
        """Return the members and newcomers that the replica knows of (T10d)."""
        state = self.replica.state
        if state is not self._state:    # it is replaced when it changes, and seldom does
            members = members_of(state)
            self._state, self._members = state, members if members is EVERYBODY else members | {self.replica.me}
        return self._members

    def hears(self, sender: Member, message: Any, followers: Collection[Member]) -> bool:
        """Say whether this message counts; `followers` are the members that the leadership here pushes to.

        An answer to an open question closes the question (T10b, T10c).
        """
        standing = STANDINGS.get(message.__class__)
        if standing is _FOLLOWER:
            return sender in followers or sender == self.replica.me
        if standing is _MEMBER:
            return sender in (self._members if self.replica.state is self._state else self.members())
        return standing is Standing.ASKED and self.replica.fetches.answered(sender, message.base)
