from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidemark_core.base.effects import (
    DiskSpace,
    LocalDurable,
    LogRead,
    LogReadFailed,
    PeerDown,
    PeerUp,
    Persist,
    Received,
    Reply,
    Send,
    SnapshotDescriptor,
    Space,
    TimerFired,
    Trace,
)
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import NOTHING, Address, EntryId, Member, OperatorId, ShardId, of_shard, shard_id
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import STRANGER_REFUSED, NodeFacts
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NODE, NodeCore, recovery_start
from tidemark_core.replication.clients import AppendRequest, ReadRequest, TrimRequest
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    AppendRefused,
    BecomeLeader,
    DeleteShard,
    Fence,
    Fenced,
    Fetch,
    InstallSnapshot,
    Operation,
    Prepare,
    Rejected,
    Truncate,
)
from tidemark_core.replication.replica import Role

from tests.syntax import parsed

from .support import AT, OPERATOR, OTHER_PRODUCER, SHARD, A, Author, B, C, Node, ack, append_of, batch, fence, lead

OTHER_SHARD = shard_id(1, 1)
WIPED = Member("a", "a-disk0")


def test_k14_a_message_for_another_life_of_the_disk_is_answered_no_and_acted_upon_by_nobody(node: Node) -> None:
    """The sender means a disk that is gone; this one has promised nothing."""
    effects = node.step(Received(AT, OPERATOR, WIPED, Fence(3, 30)))

    refusal = Refused(Reason.NOT_MEMBER, f"this is {A}, not {WIPED}")
    assert [Send(AT, OPERATOR, Rejected(3, "Fence", refusal))] == effects
    assert node.core is not None and {} == node.core.log.shards


def test_k14_an_append_for_another_life_of_the_disk_is_refused(node: Node) -> None:
    entry = Author().opening()
    effects = node.step(Received(AT, B, WIPED, append_of([entry], 1)))

    assert [Send(AT, B, AppendRefused(1, -1, NOTHING, Reason.NOT_MEMBER))] == effects


@pytest.mark.parametrize("message", [AppendAck(1, 5, 5), Truncate(1, NOTHING), Fetch(0, 1)])
def test_k14_other_words_of_peers_for_another_life_are_dropped(node: Node, message: Any) -> None:
    lead(node)
    before = node.replica.state

    assert [] == node.step(Received(AT, B, WIPED, message))
    assert before == node.replica.state


@pytest.mark.parametrize(
    "message",
    [BecomeLeader(1, 10, (A, B, C), ()), Prepare(1, 10, Operation.EXPAND, None, B), DeleteShard(1, 10)],
    ids=lambda message: type(message).__name__,
)
def test_a_shard_begins_with_a_fence_or_a_snapshot_and_nothing_else(node: Node, message: Any) -> None:
    effects = node.receive(OPERATOR, message)

    refusal = Refused(Reason.UNKNOWN_SHARD, "this node holds no such shard")
    assert [Send(AT, OPERATOR, Rejected(1, type(message).__name__, refusal))] == effects
    assert node.core is not None and {} == node.core.log.shards


def test_o4_a_shard_never_begins_by_a_peer_s_word(node: Node) -> None:
    entry = Author().opening()
    assert [Send(AT, B, AppendRefused(1, -1, NOTHING, Reason.UNKNOWN_SHARD))] == node.receive(
        B, append_of([entry], 1)
    )
    assert [STRANGER_REFUSED] == [each.what for each in node.receive(B, Fence(1, 10))]
    assert node.core is not None and {} == node.core.log.shards


def test_o8_a_fence_creates_the_replica_of_a_new_member(node: Node) -> None:
    fence(node, 1)
    node.complete()
    node.restart()

    assert (1, Role.FENCED, NOTHING) == (node.replica.state.epoch, node.replica.state.role, node.replica.log.head)


@pytest.mark.parametrize("event", [AppendRequest(SHARD, 7, batch(0)), ReadRequest(SHARD, 7), TrimRequest(SHARD, 7, 5)])
def test_requests_for_an_unknown_shard_are_refused(node: Node, event: Any) -> None:
    assert [Reply(7, Refused(Reason.UNKNOWN_SHARD, "this node holds no such shard"))] == node.step(event)


@pytest.mark.parametrize(
    "event", [TimerFired(AT, "resend"), LocalDurable(SHARD, 1, 5), LogRead(SHARD, ("push", B, 1, 0), ())]
)
def test_late_events_of_an_unknown_shard_are_dropped(node: Node, event: Any) -> None:
    assert [] == node.step(event)


def test_a_turn_closes_every_shard_it_touched_once(node: Node) -> None:
    for shard in (SHARD, OTHER_SHARD):
        node.step(Received(of_shard(shard), OPERATOR, A, Fence(1, 10)))
        node.complete()
        node.step(Received(of_shard(shard), OPERATOR, A, BecomeLeader(1, 10, (A, B, C), ((B, NOTHING), (C, NOTHING)))))
        node.complete()
    assert node.core is not None
    assert [SHARD, OTHER_SHARD] == node.core.log.leading()

    effects = node.step(
        AppendRequest(SHARD, 1, batch(0)), AppendRequest(OTHER_SHARD, 2, batch(0)), AppendRequest(SHARD, 3, batch(1)),
    )

    assert [(SHARD, 2), (OTHER_SHARD, 1)] == [
        (effect.address.id, sum(type(write).__name__ == "PutEntry" for write in effect.writes))
        for effect in effects if isinstance(effect, Persist)
    ]


def test_a_full_disk_is_known_to_every_shard_also_to_those_that_come_later(node: Node) -> None:
    lead(node)
    assert [Trace(of_shard(ShardId(0)), "disk_full")] == node.step(DiskSpace(Space.FULL))
    node.step(Received(of_shard(OTHER_SHARD), OPERATOR, A, Fence(1, 10)))
    assert node.core is not None

    assert [Space.FULL, Space.FULL] == [shard.replica.space for shard in node.core.log.shards.values()]
    assert [Trace(of_shard(ShardId(0)), "disk_exhausted")] == node.step(DiskSpace(Space.EXHAUSTED))
    assert [Trace(of_shard(ShardId(0)), "disk_has_space")] == node.step(DiskSpace(Space.FREE))
    assert node.replica.space is Space.FREE


def test_a_link_that_was_down_before_the_leadership_began_is_remembered(node: Node) -> None:
    node.step(PeerDown(B))
    lead(node)
    assert [C] == [send.to for send in node.sent if isinstance(send.message, Append)]
    node.take_sent()
    node.step(PeerUp(B))

    assert [B] == [send.to for send in node.sent if isinstance(send.message, Append)]


# --- restart ----------------------------------------------------------------------------------------------


def test_l13_after_a_restart_commit_is_what_was_stored_and_never_above_the_head(node: Node) -> None:
    author = Author()
    author.opening()
    for _ in range(4):
        author.data(2)
    fence(node, 1)
    node.receive(B, append_of(author.entries[:3], 1, commit=2))
    node.receive(B, append_of(author.entries[3:], 1, commit=6))
    node.complete(2)
    node.restart()
    assert (2, EntryId(1, 4)) == (node.replica.commit, node.replica.log.head)

    node.receive(B, append_of(author.entries[3:], 1, commit=8))
    node.complete()
    node.restart()
    assert (8, EntryId(1, 8)) == (node.replica.commit, node.replica.log.head)


@pytest.mark.parametrize("checkpoint_entries", [2, 3, 100])
def test_l18_a_restart_from_any_checkpoint_gives_back_the_same_fold(
    make_node: Callable[..., Node], checkpoint_entries: int
) -> None:
    node = make_node(limits=Limits(checkpoint_entries=checkpoint_entries))
    author = Author()
    author.opening()
    fence(node, 1)
    for index in range(20):
        author.data(2, producer=OTHER_PRODUCER if index % 3 else batch(0).producer)
        node.receive(B, append_of(author.entries[-1:] if index else author.entries, 1, commit=2 * index))
    node.complete()
    before = (
        node.replica.log.head, node.replica.commit, node.replica.log.runs, node.replica.log.producers.snapshot(),
        node.replica.log.bytes_held, node.replica.log.chain, node.replica.log.logged_ms,
    )
    node.restart()

    log = node.replica.log
    assert before == (
        log.head, node.replica.commit, log.runs, log.producers.snapshot(), log.bytes_held, log.chain, log.logged_ms
    )
    at = recovery_start(node.durable[SHARD].checkpoint)
    assert (at > 0) == (checkpoint_entries < 100)
    assert log.settled_entries < checkpoint_entries + 2 or checkpoint_entries == 100, "restarts stay short"


def test_damaged_state_stops_the_recovery_with_a_clear_error() -> None:
    with pytest.raises(RemoteViolation, match="replica state cannot be read"):
        NodeCore(NodeFacts(A)).log.load(SHARD, b"nonsense", None, [])


def test_headers_that_do_not_continue_each_other_stop_the_recovery(node: Node) -> None:
    author = Author()
    for _ in range(3):
        author.data()
    fence(node, 1)

    with pytest.raises(RemoteViolation, match="L2"):
        with_a_gap = [author.entries[0], author.entries[2]]
        NodeCore(NodeFacts(A)).log.load(SHARD, node.replica.state.encode(), None, with_a_gap)


def test_status_is_what_a_person_wants_to_know(node: Node) -> None:
    import json

    lead(node)
    ack(node, B)
    node.append(1, batch(0))
    assert node.core is not None
    status = node.core.log.status(SHARD)

    assert status == json.loads(json.dumps(status))
    assert ("1/0", "LEADER", "1:1", 0, 1) == (
        status["shard"], status["role"], status["head"], status["commit"], status["leader"]["limbo"]
    )
    assert node.replica.log.unsettled_bytes == status["leader"]["limbo_bytes"]
    assert (0, 0, []) == (status["confirmed"], status["released"], status["rolled_back"])
    assert 0 == status["leader"]["cursors"][str(B)]["match"]


def test_o1_o4_nothing_on_a_node_knows_the_metadata_store_or_who_is_alive() -> None:
    """The modules that run on a node do not import the operator's words, nor the clock, nor dice, nor sockets."""
    import ast
    from pathlib import Path

    import tidemark_core

    root = Path(tidemark_core.__file__).parent
    on_nodes = [
        root / "node.py", root / "shard.py",
        *(root / "replication" / f"{name}.py" for name in (
            "acks", "clients", "cursor", "follower", "inspection", "leader", "log", "messages", "outcomes", "producers",
            "replica")),
        *(root / "base").glob("*.py"), *(root / "limbo").glob("*.py"),
    ]
    for path in on_nodes:
        imported: set[str] = set()
        for statement in ast.walk(parsed(path.read_text())):
            if isinstance(statement, ast.ImportFrom):
                imported.add((statement.module or "").split(".")[-1])
            elif isinstance(statement, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in statement.names}
        assert not imported & {"records", "coordinator", "time", "random", "socket", "asyncio", "os"}, path.name


# --- repair of damaged entries ----------------------------------------------------------------------------


def damaged_leader(node: Node) -> tuple[Node, Author]:
    """A leader of epoch 2 with an inherited log whose entry at offset 1 is damaged on disk; b lacks it."""
    author = Author()
    author.opening()
    author.data(2)
    author.data()
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1))
    node.complete()
    lead(node, epoch=2, followers=[(B, EntryId(1, 0)), (C, EntryId(1, 3))])
    node.damage(1)
    node.take_sent(Append)
    return node, author


def asks_for_damaged(node: Node) -> None:
    """Let the leader find its entry at offset 1 damaged (once more)."""
    node.step(LogReadFailed(SHARD, None, 1))


def test_a_damaged_entry_is_not_pushed_and_every_other_member_is_asked_for_it(node: Node) -> None:
    node, _ = damaged_leader(node)
    [read] = [read for read in node.reads if read.tag[1] == B]
    effects = node.step(node.answer_read(read))

    fetches = [(effect.to, effect.message) for effect in effects if isinstance(effect, Send)]
    assert [(B, Fetch(1, 1)), (C, Fetch(1, 1))] == fetches
    assert Trace(AT, "corrupt_entry", "offset 1") == effects[0]


def test_a_fetched_copy_replaces_the_damaged_entry(node: Node) -> None:
    from tidemark_core.replication.messages import Fetched

    node, author = damaged_leader(node)
    asks_for_damaged(node)
    node.receive(C, Fetched(1, author.entries[1]))
    node.complete()

    assert author.entries == node.stored()[:3]
    assert 1 == node.traces["entry_repaired"]


def test_a_fetched_entry_that_is_not_ours_is_ignored(node: Node) -> None:
    from tidemark_core.replication.messages import Fetched

    node, author = damaged_leader(node)
    stranger = author.fork(EntryId(1, 0), 7).data(2)
    before = node.written[SHARD].entries.copy()

    for answer in (Fetched(1, stranger), Fetched(1, None), Fetched(2, author.entries[1])):
        asks_for_damaged(node)
        assert [] == node.receive(C, answer)
    assert before == node.written[SHARD].entries


def test_what_others_trimmed_cannot_be_repaired_and_is_trimmed_here_too(node: Node) -> None:
    """Found by the simulator (disks seed 283): a leader whose own trim was lost asked for a damaged entry for ever."""
    from tidemark_core.replication.messages import Fetched

    node, _ = damaged_leader(node)
    ends = {B: EntryId(1, 0), C: EntryId(1, 3)}
    head, first = node.replica.log.head.offset, node.replica.log.first
    asks_for_damaged(node)
    node.receive(C, Fetched(1, None, 2))
    node.complete()
    assert node.replica.log.first == first, "nothing is confirmed yet"
    for member in ends:
        node.receive(member, AppendAck(2, head, -1))
    node.complete()
    assert node.replica.confirmed == head
    asks_for_damaged(node)
    node.receive(C, Fetched(1, None, 0))
    assert node.replica.log.first == first
    asks_for_damaged(node)
    node.receive(C, Fetched(1, None, 2))
    node.complete()
    assert node.replica.log.first == 2
    node.receive(B, Fetch(1, 1))
    assert [Fetched(1, None, 2)] == node.take_sent(Fetched)


def test_a_member_gives_away_its_copy_if_it_has_one_intact(node: Node) -> None:
    from tidemark_core.replication.messages import Fetched

    node, author = damaged_leader(node)
    for base in (0, 1):
        node.reads.clear()
        node.receive(C, Fetch(base, 1))
        node.step(node.answer_read(node.reads[0]))
    node.receive(C, Fetch(1, 9))
    node.receive(C, Fetch(99, 1))

    assert [Fetched(0, author.entries[0]), Fetched(1, None), Fetched(1, None), Fetched(99, None)] == node.take_sent(
        Fetched
    )


def test_k14_an_install_for_a_deleted_epoch_is_refused_also_by_a_fresh_process(node: Node) -> None:
    fence(node, 2)
    node.receive(OperatorId("op/2"), DeleteShard(3, 30))
    node.complete()
    node.restart()
    node.take_sent()
    node.receive(OPERATOR, InstallSnapshot(3, 30, B, SnapshotDescriptor(3, EntryId(1, 0), 0, -1, 0)))
    node.receive(OPERATOR, Fence(4, 40))
    node.complete()

    assert [Reason.STALE_EPOCH, Reason.NO_REPLICA] == [m.refusal.reason for m in node.take_sent(Rejected)]
    assert [] == node.take_sent(Fenced)


def test_a_unit_of_a_plane_that_the_node_does_not_have_is_traced_and_has_a_name(node: Node) -> None:
    effects = node.step(Received(Address(77, 5), B, A, "hello"))

    traced = Trace(NODE, "violation", "this node has no plane 77, unit 5")
    assert [traced] == effects, "it is of the node, for a peer chooses the unit"
    assert node.core is not None and {"unit": "plane 77 unit 5"} == node.core.name_of(Address(77, 5))
    assert ["shard"] == list(node.core.name_of(AT))
