"""Every message of another epoch, or of the same epoch under another election, against every role.

The messages are all that a node can receive, so a new one needs its row here.  Rules O9, O10, O14, K4, #513.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tidemark_core.base.effects import Send, SnapshotDescriptor
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import NOTHING, EntryId, Peer
from tidemark_core.base.refusals import Reason
from tidemark_core.replication import messages
from tidemark_core.replication.messages import (
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
    Fill,
    Filled,
    InstallSnapshot,
    Operation,
    Prepare,
    PrepareTransfer,
    ReadRound,
    ReadRoundAck,
    Rejected,
    Truncate,
    Truncated,
)
from tidemark_core.replication.replica import Role

from tests.core.support import OPERATOR, A, Author, B, C, D, Node, ack, append_of, batch, fence, lead

EPOCH = 3
ENSEMBLE = (A, B, C)
Make = Callable[[int, int, Sequence[Entry]], Any]

FROM_OPERATORS: dict[type, Make] = {
    Fence: lambda epoch, election, log: Fence(epoch, election, 1),
    BecomeLeader: lambda epoch, election, log: BecomeLeader(epoch, election, ENSEMBLE, ()),
    AddFollower: lambda epoch, election, log: AddFollower(epoch, election, C, NOTHING),
    Prepare: lambda epoch, election, log: Prepare(epoch, election, Operation.SWAP, C, D),
    InstallSnapshot: lambda epoch, election, log: InstallSnapshot(
        epoch, election, B, SnapshotDescriptor(epoch, EntryId(epoch, 9), 0, 9, 100)
    ),
    Commit: lambda epoch, election, log: Commit(epoch, election, Operation.SWAP, (A, B, D), C, D, NOTHING),
    Abort: lambda epoch, election, log: Abort(epoch, election),
    PrepareTransfer: lambda epoch, election, log: PrepareTransfer(epoch, election, B),
    DeleteShard: lambda epoch, election, log: DeleteShard(epoch, election),
}
FROM_MEMBERS: dict[type, Make] = {
    Append: lambda epoch, election, log: append_of(log[-1:], epoch, commit=log[-1].last),
    AppendAck: lambda epoch, election, log: AppendAck(epoch, log[-1].last, log[-1].last),
    AppendRefused: lambda epoch, election, log: AppendRefused(epoch, epoch, NOTHING, Reason.GAP),
    Truncate: lambda epoch, election, log: Truncate(epoch, log[0].id),
    Truncated: lambda epoch, election, log: Truncated(epoch, NOTHING),
    Drop: lambda epoch, election, log: Drop(epoch, ENSEMBLE, 2, (9, 9, 9), 9),
    Fill: lambda epoch, election, log: Fill(epoch, ENSEMBLE, 2, 9),
    Filled: lambda epoch, election, log: Filled(epoch, 9),
    ReadRound: lambda epoch, election, log: ReadRound(epoch, 1),
    ReadRoundAck: lambda epoch, election, log: ReadRoundAck(epoch, 1),
    DigestsAsked: lambda epoch, election, log: DigestsAsked(epoch),
    Digests: lambda epoch, election, log: Digests(epoch, (messages.FoldedCut(1, 0, bytes(16)),)),
}
WITHOUT_EPOCH = {messages.Fetch, messages.Fetched}
PARTS = {messages.FoldedCut}
"""Values within a message."""
TO_OPERATORS = {
    messages.Fenced, messages.BecameLeader, messages.FollowerAdded, messages.Prepared, messages.SnapshotProgress,
    messages.SnapshotInstalled, messages.Committed, messages.CommitPending, messages.Aborted, messages.TransferReady,
    messages.ShardDeleted, messages.Rejected, messages.Reach, messages.Unheard, messages.Diverged,
}
TO_CLIENTS = {
    messages.Appended, messages.Claimed, messages.Outcome, messages.ReadGrant, messages.Latest,
    messages.PositionCommitted, messages.SubscriptionDeleted, messages.SinkJoined, messages.SinkMarked,
    messages.SinkDeleted,
}
NEWER = {
    Role.LEADER: {Fence, Prepare, DeleteShard},
    Role.FOLLOWER: {Fence, InstallSnapshot, DeleteShard, Append},
    Role.FENCED: {Fence, InstallSnapshot, DeleteShard, Append, Truncate},
}
"""The messages that carry a replica of each role into the next epoch."""


def replica_of(role: Role) -> tuple[Node, Sequence[Entry]]:
    """Return a node in EPOCH with three entries, one of them not committed, and the log it shares with others."""
    node = Node(A)
    author = Author(EPOCH - 1, ENSEMBLE)
    author.opening()
    author.data()
    fence(node, EPOCH - 1)
    node.receive(B, append_of(author.entries, EPOCH - 1, commit=0))
    node.complete()
    if role is Role.LEADER:
        lead(node, EPOCH)
        node.append(1, batch(1))
        node.complete()
        ack(node, B, upto=1)
    else:
        fence(node, EPOCH)
        if role is Role.FOLLOWER:
            author.opening(epoch=EPOCH)
            node.receive(B, append_of(author.entries[-1:], EPOCH))
        node.complete()
    assert (role, EPOCH) == (node.replica.state.role, node.replica.state.epoch)
    node.take_sent()
    return node, author.entries


def facts(node: Node) -> tuple[Any, ...]:
    """Return what a message that does not count must leave as it is."""
    replica, leader = node.replica, node.shard.leader
    led = None if leader is None else (
        leader.durable, leader.change, leader.transfer,
        [(each.follower, each.status, each.match, each.next, each.commit) for each in leader.cursors.values()],
    )
    return replica.state, replica.log.head, replica.commit, replica.confirmed, node.shard.follower.verified, led


def refusals(node: Node) -> list[Any]:
    """Let every write become durable; return what was answered, all of it refusals."""
    node.complete()
    answers = [effect.message for effect in node.sent if isinstance(effect, Send)]
    assert all(isinstance(answer, Rejected | AppendRefused) for answer in answers), answers
    return [answer.reason if isinstance(answer, AppendRefused) else answer.refusal.reason for answer in answers]


def sender_of(message: type) -> Peer:
    return OPERATOR if message in FROM_OPERATORS else B


EVERY = [
    pytest.param(role, message, id=f"{role}-{message.__name__}")
    for role in NEWER for message in (*FROM_OPERATORS, *FROM_MEMBERS)
]
MAKE = {**FROM_OPERATORS, **FROM_MEMBERS}


def test_every_message_has_its_row() -> None:
    known = {
        value for value in vars(messages).values()
        if dataclasses.is_dataclass(value) and value.__module__ == messages.__name__
    }

    assert known == {*MAKE, *WITHOUT_EPOCH, *PARTS, *TO_OPERATORS, *TO_CLIENTS}


@pytest.mark.parametrize(("role", "message"), EVERY)
def test_a_message_of_an_older_epoch_changes_nothing(role: Role, message: type) -> None:
    """Rule O9."""
    node, log = replica_of(role)
    before = facts(node)
    node.receive(sender_of(message), MAKE[message](EPOCH - 1, (EPOCH - 1) * 10, log))

    assert before == facts(node)
    answers = refusals(node)
    if message in {*FROM_OPERATORS, Append, Truncate, ReadRound}:
        assert len(answers) == 1
        assert answers[0] in (Reason.STALE_EPOCH, Reason.NOT_LEADER)
    else:
        assert [] == answers


@pytest.mark.parametrize("role", NEWER)
@pytest.mark.parametrize("message", [Fence, BecomeLeader])
def test_a_fence_or_a_leadership_of_another_election_is_refused(role: Role, message: type) -> None:
    """Rule O10: two operators never speak for one epoch."""
    node, log = replica_of(role)
    before = facts(node)
    for election in (EPOCH * 10 - 1, EPOCH * 10 + 1):
        node.receive(OPERATOR, MAKE[message](EPOCH, election, log))

    assert before == facts(node)
    assert [Reason.STALE_ELECTION] * 2 == refusals(node)


@pytest.mark.parametrize(("role", "message"), EVERY)
def test_only_few_messages_carry_a_replica_into_a_newer_epoch(role: Role, message: type) -> None:
    """Rules O9, O14, K4."""
    node, log = replica_of(role)
    before = facts(node)
    node.receive(sender_of(message), MAKE[message](EPOCH + 1, (EPOCH + 1) * 10, log))

    if message in NEWER[role]:
        assert EPOCH + 1 == node.replica.state.epoch
    elif message is ReadRound and role is not Role.LEADER:
        assert before == facts(node)
        assert [ReadRoundAck(EPOCH + 1, 1)] == node.take_sent(), "no newer epoch has fenced this one (O46)"
    else:
        assert before == facts(node)
        refusals(node)
