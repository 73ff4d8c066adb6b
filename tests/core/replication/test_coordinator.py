from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import Received, Reply, Send, SetTimer, SnapshotDescriptor, TimerFired, Trace
from tidemark_core.base.ids import NOTHING, EntryId, Member, ShardKind
from tidemark_core.base.metadata import (
    LoadMetadata,
    MetadataLoaded,
    MetadataSaved,
    MetadataUncertain,
    NodeDown,
    NodeUp,
    SaveMetadata,
    SetActive,
)
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.coordinator import DEADLINE_TIMER, GRACE_TIMER, RETRY_TIMER, TAKEOVER_TIMER, Coordinator
from tidemark_core.replication.coordinators import Coordinators
from tidemark_core.replication.ensembles import changed_ensemble
from tidemark_core.replication.invariants import check_coordinator
from tidemark_core.replication.messages import (
    EPOCH_JUMP_MAX,
    Abort,
    Aborted,
    AddFollower,
    BecameLeader,
    BecomeLeader,
    Commit,
    CommitPending,
    Committed,
    DeleteShard,
    Fence,
    Fenced,
    FollowerAdded,
    InstallSnapshot,
    Operation,
    Prepare,
    Prepared,
    PrepareTransfer,
    Reach,
    Rejected,
    ShardDeleted,
    SnapshotInstalled,
    SnapshotProgress,
    TransferReady,
    Unheard,
)
from tidemark_core.replication.records import (
    CancelChange,
    Change,
    ChangeDone,
    ChangeProgress,
    CoordinatorSettings,
    Phase,
    ShardRecord,
    StartChange,
    StartTransfer,
    Status,
    first_record,
)

from tests.core.support import AT, OPERATOR, SHARD, A, B, C, D, E

HEAD = EntryId(1, 9)
SNAPSHOT = SnapshotDescriptor(6, EntryId(6, 10), 0, 9, 1_000)
LOST = Refused(Reason.CORRUPT, "K15b: the entry 1:9 is damaged above commit 8, and no peer gives it", 1, 9)
STEADY = ShardRecord(5, 50, Status.STEADY, (A, B, C), A, writer="op/0#1")
SWAP = Change(Operation.SWAP, Phase.COMMIT, C, D)


class Desk:
    """One operator's coordinators, the store's revision, and the effects of the last step."""

    def __init__(self, up: Sequence[Member] = (A, B, C, D, E)) -> None:
        self.core = Coordinators(CoordinatorSettings(OPERATOR))
        self.now_ms = 1_000
        self.revision = 0
        self.effects: list[Any] = []
        for member in up:
            self.step(NodeUp(member, "boot"))

    @property
    def shard(self) -> Coordinator:
        return self.core.shards[SHARD]

    @property
    def record(self) -> ShardRecord:
        assert self.shard.record is not None
        return self.shard.record

    def step(self, event: Any) -> list[Any]:
        self.effects = list(self.core.step(self.now_ms, event))
        for coordinator in self.core.shards.values():
            check_coordinator(coordinator)
        return self.effects

    def load(self, record: ShardRecord, revision: int | None = None) -> list[Any]:
        self.revision = self.revision + 10 if revision is None else revision
        return self.step(MetadataLoaded(AT, record, self.revision))

    def hear(self, sender: Member, message: Any, boot: str = "") -> list[Any]:
        return self.step(Received(AT, sender, None, message, boot))

    def fire(self, name: str) -> list[Any]:
        return self.step(TimerFired(AT, name))

    def saves(self) -> list[ShardRecord]:
        return [effect.record for effect in self.effects if isinstance(effect, SaveMetadata)]

    def stored(self) -> list[Any]:
        """The one write among the last effects succeeds."""
        [save] = [effect for effect in self.effects if isinstance(effect, SaveMetadata)]
        assert self.revision == save.expected, "H2: conditioned on the revision it was decided from"
        self.revision += 1
        return self.step(MetadataSaved(AT, save.record.writer, self.revision))

    def sent(self, kind: type | None = None) -> list[tuple[Member, Any]]:
        """Return what was sent, fences without their nonces."""
        return [
            (effect.to, replace(effect.message, nonce=0) if isinstance(effect.message, Fence) else effect.message)
            for effect in self.effects
            if isinstance(effect, Send) and (kind is None or isinstance(effect.message, kind))
        ]  # type: ignore[return-value]

    def nonces(self) -> list[int]:
        return [e.message.nonce for e in self.effects if isinstance(e, Send) and isinstance(e.message, Fence)]

    def replies(self) -> list[Any]:
        return [effect.value for effect in self.effects if isinstance(effect, Reply)]

    def timers(self) -> dict[str, int | None]:
        return {effect.name: effect.at_ms for effect in self.effects if isinstance(effect, SetTimer)}

    # --- stages ---

    def electing(self, record: ShardRecord | None = None, revision: int = 10) -> Desk:
        """An election of epoch+1 is stored and the fences are out."""
        self.load(record or first_record((A, B, C)), revision)
        if self.record.status is Status.STEADY:
            assert self.record.leader is not None
            self.step(NodeDown(self.record.leader.node))
        self.stored()
        assert self.record.status is Status.ELECTION
        return self

    def fenced(self, **heads: EntryId) -> Desk:
        for name, head in heads.items():
            member = next(m for m in (A, B, C, D, E) if m.node == name)
            self.hear(member, Fenced(self.record.epoch, self.record.election, head))
        return self

    def elected(self) -> Desk:
        """The chosen leader answered and STEADY is stored."""
        election = self.shard.election
        assert election is not None and election.leader is not None
        self.hear(election.leader, BecameLeader(self.record.epoch, self.record.election))
        self.stored()
        return self

    def steady(self, record: ShardRecord = STEADY) -> Desk:
        """A steady shard in which everybody is known to be where they should."""
        self.load(record)
        leader = record.leader
        assert leader is not None
        self.hear(leader, Rejected(record.epoch, "Fence", Refused(Reason.ALREADY_LEADER)))
        self.hear(leader, Aborted(record.epoch))
        for member in record.ensemble:
            if member != leader:
                self.hear(member, Fenced(record.epoch, record.election, HEAD))
                self.hear(leader, FollowerAdded(record.epoch, member))
        assert self.shard.settled
        return self

    def preparing(
        self, operation: Operation = Operation.SWAP, old: str | None = "c", new: str | None = "d"
    ) -> Desk:
        """PREPARE of epoch 6 is stored and sent."""
        self.steady()
        self.step(StartChange(SHARD, 1, operation, old, new, force=True))
        self.stored()
        return self

    def transferring(self) -> None:
        """The leader knows that its leadership shall go to c."""
        self.steady()
        self.step(StartTransfer(SHARD, 1, "c"))

    def committing(self) -> Desk:
        """COMMIT of a swap of c for d is stored and sent."""
        self.preparing()
        self.hear(A, Prepared(6, SNAPSHOT))
        self.hear(D, SnapshotInstalled(6, SNAPSHOT.head))
        self.stored()
        return self


@pytest.fixture
def desk() -> Desk:
    return Desk()


# --- election ---------------------------------------------------------------------------------------------


def test_o7_the_epoch_and_the_election_are_stored_before_anybody_is_fenced(desk: Desk) -> None:
    record = first_record((A, B, C))
    effects = desk.load(record, revision=10)

    election = replace(record, epoch=1, election=10, status=Status.ELECTION, writer="op/1#1")
    assert [Trace(AT, "resumed", "ELECTION epoch 0"), SaveMetadata(AT, election, 10)] == effects
    assert [
        Trace(AT, "election", "epoch 1"),
        *(Send(AT, member, Fence(1, 10, 1)) for member in (A, B, C)),
        SetTimer(AT, RETRY_TIMER, 1_500),
    ] == desk.stored()


def test_o8_h5_the_whole_fencing_ensemble_is_fenced(desk: Desk) -> None:
    desk.step(NodeDown("a"))
    desk.electing(replace(STEADY, status=Status.RECONFIGURATION, change=SWAP))

    assert [A, B, C, D] == [to for to, _ in desk.sent(Fence)]


def test_o10_nobody_is_chosen_before_a_majority_answered() -> None:
    desk = Desk(up=(A,)).electing()
    desk.fenced(a=HEAD)
    assert [] == desk.effects

    desk.fenced(b=NOTHING)
    assert [(A, BecomeLeader(1, 10, (A, B, C), ((B, NOTHING),)))] == desk.sent()


def test_c2_the_leader_hears_the_clocks_that_fence_answers_carry() -> None:
    """Rule C2: those of the others alone, and none of a build that says no clock."""
    for said, clocks in ((7_000, ((B, 7_000),)), (None, ())):
        desk = Desk(up=()).electing()
        desk.hear(A, Fenced(1, 10, HEAD, clock_ms=5_000))
        desk.hear(B, Fenced(1, 10, NOTHING, clock_ms=said))

        ((to, message),) = desk.sent(BecomeLeader)
        assert (A, clocks) == (to, message.clocks)


def test_o10_an_answer_for_another_epoch_or_election_is_not_counted() -> None:
    desk = Desk(up=()).electing()
    desk.fenced(a=HEAD)
    desk.hear(B, Fenced(0, 10, HEAD))
    desk.hear(B, Fenced(1, 9, HEAD))
    desk.hear(D, Fenced(1, 10, HEAD))

    assert [] == desk.sent()
    assert desk.shard.election is not None and {A: HEAD} == desk.shard.election.heads


def test_o12_nodes_believed_up_get_a_short_grace_to_take_part(desk: Desk) -> None:
    desk.electing().fenced(a=EntryId(1, 1), b=EntryId(1, 2))
    assert {GRACE_TIMER: 1_030} == desk.timers()
    desk.fire(GRACE_TIMER)

    assert [(B, BecomeLeader(1, 10, (A, B, C), ((A, EntryId(1, 1)),)))] == desk.sent()


def test_o12_when_everybody_answered_there_is_nothing_to_wait_for(desk: Desk) -> None:
    desk.electing().fenced(a=EntryId(1, 1), b=EntryId(1, 2), c=EntryId(1, 3))

    followers = ((A, EntryId(1, 1)), (B, EntryId(1, 2)))
    assert [(C, BecomeLeader(1, 10, (A, B, C), followers))] == desk.sent()


def test_o12_answers_that_come_before_the_leader_is_confirmed_are_kept_and_added_then(desk: Desk) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD)
    desk.fire(GRACE_TIMER)
    desk.fenced(c=EntryId(1, 4))
    assert [] == desk.sent()
    desk.elected()

    assert [(A, AddFollower(1, 10, C, EntryId(1, 4)))] == desk.sent()


def test_o15_steady_is_stored_with_the_leader_once_it_answered(desk: Desk) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD, c=HEAD)
    desk.hear(A, BecameLeader(1, 10))

    [steady] = desk.saves()
    assert ShardRecord(1, 10, Status.STEADY, (A, B, C), A, writer="op/1#2") == steady
    assert not desk.shard.settled
    desk.stored()
    assert desk.shard.settled


@pytest.mark.parametrize(
    ("sender", "message"),
    [(B, BecameLeader(1, 10)), (A, BecameLeader(0, 10)), (A, BecameLeader(1, 9))],
    ids=["not chosen", "older epoch", "other election"],
)
def test_o15_only_the_chosen_leader_of_this_election_is_believed(desk: Desk, sender: Member, message: Any) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD, c=HEAD)

    assert [] == desk.hear(sender, message)


def test_o16_a_late_responder_is_added_with_its_head(desk: Desk) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD)
    desk.fire(GRACE_TIMER)
    desk.elected()
    assert [(C, Fence(1, 10))] == desk.sent()
    desk.fenced(c=EntryId(1, 2))
    assert [(A, AddFollower(1, 10, C, EntryId(1, 2)))] == desk.sent()
    assert not desk.shard.settled
    desk.hear(A, FollowerAdded(1, C))

    assert desk.shard.settled


def test_o16_a_lost_answer_is_asked_for_again(desk: Desk) -> None:
    desk.electing().fenced(a=HEAD)
    desk.fire(RETRY_TIMER)
    assert [(B, Fence(1, 10)), (C, Fence(1, 10))] == desk.sent()
    desk.fenced(b=HEAD, c=HEAD)
    desk.fire(RETRY_TIMER)
    assert [BecomeLeader] == [type(message) for _, message in desk.sent()]


def test_o11_a_chosen_leader_believed_down_is_asked_once_and_then_given_up(desk: Desk) -> None:
    """It was fenced while the detector had it down, so no NodeDown tells of its death."""
    desk.electing()
    desk.step(NodeDown("b"))
    desk.fenced(a=HEAD, b=EntryId(1, 10), c=HEAD)
    assert [B] == [to for to, _ in desk.sent(BecomeLeader)]

    desk.fire(RETRY_TIMER)
    assert [] == desk.sent()
    assert [(Status.ELECTION, 2)] == [(record.status, record.epoch) for record in desk.saves()]


def test_a_chosen_leader_that_dies_is_replaced_by_a_new_election(desk: Desk) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD, c=HEAD)
    desk.step(NodeDown("a"))

    assert [(2, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]


def test_a_chosen_leader_that_cannot_lead_is_replaced_by_a_new_election(desk: Desk) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD, c=HEAD)
    desk.hear(A, Rejected(1, "BecomeLeader", Refused(Reason.WRONG_STATE, epoch=1)))

    assert [(2, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]


def test_k15_who_lost_a_payload_is_passed_over_in_this_election_for_one_whose_log_is_as_long(desk: Desk) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD, c=HEAD)
    assert [A] == [to for to, _ in desk.sent(BecomeLeader)]
    desk.hear(A, Rejected(1, "BecomeLeader", LOST))
    desk.stored()
    desk.fenced(a=HEAD, b=HEAD, c=HEAD)
    assert [B] == [to for to, _ in desk.sent(BecomeLeader)]

    desk.elected()
    desk.step(NodeDown("b"))
    desk.stored()
    desk.fenced(a=HEAD, c=HEAD)
    assert [A] == [to for to, _ in desk.sent(BecomeLeader)], "its copy may be repaired by now"


def test_k15c_a_majority_without_damage_elects_the_best_of_its_own(desk: Desk) -> None:
    """The longest log is left out; BecomeLeader names its member among the followers, to be truncated."""
    longer, shorter = EntryId(1, 10), EntryId(1, 8)
    desk.electing().fenced(a=longer, b=shorter, c=HEAD)
    desk.hear(A, Rejected(1, "BecomeLeader", LOST))
    desk.stored()
    desk.fenced(a=longer, b=shorter, c=HEAD)

    [(to, message)] = desk.sent(BecomeLeader)
    assert (C, {A: longer, B: shorter}) == (to, dict(message.followers))
    desk.hear(C, BecameLeader(message.epoch, message.election))
    desk.stored()
    assert C == desk.record.leader


def test_k15c_without_a_majority_free_of_damage_the_election_waits_and_says_where(desk: Desk) -> None:
    """Of three members one is down: the damaged entry may be committed by it and the one that is damaged."""
    longer = EntryId(1, 10)
    desk.step(NodeDown("c"))
    desk.electing().fenced(a=longer, b=HEAD)
    desk.hear(A, Rejected(1, "BecomeLeader", LOST))
    desk.stored()
    desk.fenced(a=longer, b=HEAD)
    assert [A] == [to for to, _ in desk.sent(BecomeLeader)], "its copy may be repaired by now"

    epoch = desk.record.epoch
    desk.hear(A, Rejected(epoch, "BecomeLeader", replace(LOST, epoch=epoch)))
    [waits] = [effect for effect in desk.effects if isinstance(effect, Trace)]
    assert "damage_waits" == waits.what and "offset 9 of a:" in waits.detail
    assert desk.shard.damage == waits.detail
    assert [] == desk.saves(), "not at once again and again"
    desk.fire(RETRY_TIMER)
    assert [(epoch + 1, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]
    desk.stored()
    desk.step(NodeUp(C, "boot"))
    desk.fenced(a=longer, b=HEAD, c=HEAD)
    assert [B] == [to for to, _ in desk.sent(BecomeLeader)] and "" == desk.shard.damage


def test_k15c_while_a_swap_is_in_commit_a_majority_of_the_union_or_of_the_final_ensemble_must_be_whole(
    desk: Desk,
) -> None:
    longer = EntryId(1, 10)
    desk.electing(replace(STEADY, status=Status.RECONFIGURATION, leader=None, change=SWAP))
    desk.fenced(a=longer, b=HEAD, d=HEAD)
    desk.fire(GRACE_TIMER)
    [(to, message)] = desk.sent(BecomeLeader)
    assert A == to
    desk.hear(A, Rejected(message.epoch, "BecomeLeader", replace(LOST, epoch=message.epoch)))
    desk.stored()
    desk.fenced(a=longer, b=HEAD, c=HEAD)
    desk.fire(GRACE_TIMER)
    assert [A] == [to for to, _ in desk.sent(BecomeLeader)], "B and C are no majority of A, B, C, D nor of A, B, D"
    epoch = desk.record.epoch
    desk.hear(A, Rejected(epoch, "BecomeLeader", replace(LOST, epoch=epoch)))
    desk.fire(RETRY_TIMER)
    desk.stored()
    desk.fenced(a=longer, b=HEAD, d=HEAD)
    desk.fire(GRACE_TIMER)
    assert [B] == [to for to, _ in desk.sent(BecomeLeader)], "B and D are a majority of A, B, D"


def test_k15d_a_leader_that_reports_damage_is_followed_by_a_majority_without(desk: Desk) -> None:
    longer = EntryId(5, 10)
    desk.steady()
    desk.hear(A, Rejected(5, "BecomeLeader", replace(LOST, epoch=5)))
    assert [6] == [record.epoch for record in desk.saves()]
    desk.stored()
    desk.fenced(a=longer, b=HEAD, c=HEAD)

    assert [B] == [to for to, _ in desk.sent(BecomeLeader)]


def test_o29_the_leader_s_end_is_answered_by_an_election(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeDown("a"))

    [record] = desk.saves()
    assert (6, desk.revision, Status.ELECTION, None) == (record.epoch, record.election, record.status, record.leader)
    assert [] == desk.sent()


def test_a_follower_s_end_needs_no_election(desk: Desk) -> None:
    desk.steady()

    assert [] == desk.step(NodeDown("b"))


def test_o14_a_leader_that_restarted_and_answers_a_fence_leads_no_more(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(A, "another boot"))
    assert [(A, Fence(5, 50))] == desk.sent()
    desk.hear(A, Fenced(5, 50, HEAD))

    assert [6] == [record.epoch for record in desk.saves()]


def test_o14_a_leader_that_only_reconnected_says_so_and_leads_on(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(A, "boot"))
    desk.hear(A, Rejected(5, "Fence", Refused(Reason.ALREADY_LEADER, epoch=5)))

    assert [] == desk.saves()
    assert desk.shard.settled


def _asks_the_leader_until_it_answers(desk: Desk) -> None:
    """The leader may have restarted, and the fence that was to find out is lost: it goes out again."""
    epoch, election = desk.record.epoch, desk.record.election
    assert RETRY_TIMER in desk.timers()
    desk.fire(RETRY_TIMER)
    assert [(A, Fence(epoch, election))] == desk.sent(Fence)
    desk.hear(A, Fenced(epoch, election, HEAD))
    assert [epoch + 1] == [record.epoch for record in desk.saves()]


def test_o14_a_leader_in_doubt_is_asked_again_after_a_removed_replica_is_forgotten(desk: Desk) -> None:
    desk.steady(replace(STEADY, removed=(D,)))
    desk.step(NodeUp(A, "another boot"))
    desk.hear(D, ShardDeleted(5))
    desk.stored()

    _asks_the_leader_until_it_answers(desk)


def test_o14_a_leader_that_restarts_while_its_change_is_stored_as_done_is_asked_again(desk: Desk) -> None:
    desk.step(NodeDown("c"))   # its replica is not deleted before it is back: nothing else asks for the timer
    desk.committing()
    desk.hear(A, Committed(6))
    save = desk.saves()[0]
    desk.step(NodeUp(A, "another boot"))
    assert [(A, Fence(6, save.election))] == desk.sent(Fence)
    desk.revision += 1
    desk.step(MetadataSaved(AT, save.writer, desk.revision))

    _asks_the_leader_until_it_answers(desk)


@pytest.mark.parametrize("late", [False, True], ids=["while steady is stored", "before its answer arrives"])
def test_o14_a_chosen_leader_that_restarts_is_asked_again_once_steady(desk: Desk, late: bool) -> None:
    desk.electing().fenced(a=HEAD, b=HEAD, c=HEAD)
    if late:
        desk.step(NodeUp(A, "another boot"))
    desk.hear(A, BecameLeader(1, 10))
    save = desk.saves()[0]
    if not late:
        desk.step(NodeUp(A, "another boot"))
    desk.revision += 1
    desk.step(MetadataSaved(AT, save.writer, desk.revision))

    _asks_the_leader_until_it_answers(desk)


def test_o14_only_an_answer_to_the_fence_settles_whether_a_leader_that_came_back_leads(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(A, "another boot"))
    desk.hear(A, FollowerAdded(5, B))   # sent by the process that is gone
    desk.step(NodeUp(B, "boot"))

    desk.fire(RETRY_TIMER)
    assert (A, Fence(5, 50)) in desk.sent(Fence)
    desk.hear(A, Rejected(5, "Fence", Refused(Reason.ALREADY_LEADER, epoch=5)))
    desk.fire(RETRY_TIMER)
    assert (A, Fence(5, 50)) not in desk.sent(Fence)


@pytest.mark.parametrize("answer", ["leads", "fenced"])
def test_o42_a_leader_in_doubt_stays_in_doubt_until_it_answers_the_fence_that_asked(desk: Desk, answer: str) -> None:
    desk.steady()
    [first] = (desk.step(NodeUp(A, "boot")), desk.nonces())[1]
    [second] = (desk.step(NodeUp(A, "boot")), desk.nonces())[1]
    assert first != second
    answers = {
        nonce: Rejected(5, "Fence", Refused(Reason.ALREADY_LEADER), nonce) if answer == "leads"
        else Fenced(5, 50, HEAD, nonce)
        for nonce in (first, second)
    }
    assert [] == desk.hear(A, answers[first]), "it was sent before the fence that asks now was received"
    desk.fire("retry")
    assert (A, Fence(5, 50)) in desk.sent(Fence)

    desk.hear(A, answers[second])
    assert (answer == "fenced") == bool(desk.saves()), "a leader that answers as fenced leads no more"
    if answer == "leads":
        desk.fire("retry")
        assert [] == desk.sent(Fence)


def test_o42_a_node_of_an_older_build_repeats_no_nonce_and_is_believed(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(A, "boot"))
    desk.hear(A, Rejected(5, "Fence", Refused(Reason.ALREADY_LEADER)))
    desk.fire("retry")

    assert [] == desk.sent(Fence)


@pytest.mark.parametrize(
    "message",
    [
        Rejected(5, "Fence", Refused(Reason.ALREADY_LEADER)), Rejected(5, "Fence", Refused(Reason.NOT_LEADER)),
        Rejected(5, "Fence", Refused(Reason.STALE_EPOCH, epoch=9)), Fenced(5, 50, HEAD), FollowerAdded(5, B),
        Aborted(5), ShardDeleted(5),
    ],
    ids=lambda message: f"{type(message).__name__} {getattr(getattr(message, 'refusal', None), 'reason', '')}",
)
def test_o42_the_answer_of_another_boot_changes_nothing(desk: Desk, message: Any) -> None:
    desk.steady()
    desk.step(NodeUp(A, "boot 2"))
    desk.step(NodeUp(B, "boot 2"))
    before = (desk.record, dict(desk.shard.unattached), desk.shard._leader_doubted, desk.shard._abort_owed)
    for boot in ("boot", "boot 3"):
        assert [] == desk.hear(A, message, boot)
        assert before == (
            desk.record, desk.shard.unattached, desk.shard._leader_doubted, desk.shard._abort_owed
        )


def test_o16_a_follower_that_restarted_is_fenced_and_added_again(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(B, "another boot"))
    assert [(B, Fence(5, 50))] == desk.sent()
    desk.hear(B, Fenced(5, 50, EntryId(5, 3)))

    assert [(A, AddFollower(5, 50, B, EntryId(5, 3)))] == desk.sent()


def test_k14_a_leader_that_came_back_with_another_disk_is_replaced(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(Member("a", "a-disk2"), "boot2"))

    assert [(6, Status.ELECTION, (A, B, C))] == [(r.epoch, r.status, r.ensemble) for r in desk.saves()]


def test_issue_929_an_amnesiac_member_is_no_vote(desk: Desk) -> None:
    """Oxia #929: a follower whose disk was wiped answered fences with an empty head and counted to the majority."""
    wiped = Member("b", "b-disk2")
    desk.electing().fenced(a=EntryId(1, 1))
    desk.step(NodeUp(wiped, "boot2"))
    desk.hear(wiped, Fenced(1, 10, NOTHING))
    desk.hear(wiped, Rejected(1, "Fence", Refused(Reason.NOT_MEMBER)))
    desk.fire(GRACE_TIMER)

    assert desk.shard.election is not None
    assert (None, {A: EntryId(1, 1)}) == (desk.shard.election.leader, desk.shard.election.heads)


@pytest.mark.parametrize(
    "refused", [Refused(Reason.STALE_EPOCH, epoch=8), Refused(Reason.STALE_ELECTION, epoch=1)])
def test_n9_nothing_is_begun_from_a_record_that_a_node_is_ahead_of(desk: Desk, refused: Refused) -> None:
    """Rule N9: nodes know an epoch, or an election of this one, that the store does not: it was set back."""
    desk.electing()
    record, revision = desk.record, desk.shard.revision
    desk.hear(A, Rejected(1, "Fence", refused))
    assert [LoadMetadata(AT)] == desk.effects
    desk.step(MetadataLoaded(AT, record, revision))
    assert not desk.shard.behind, "that was a late word of the watch"
    for _answer in range(2):   # the first may be to an older question
        assert not desk.shard.behind
        desk.step(MetadataLoaded(AT, record, revision, fresh=True))
    assert desk.shard.behind and ["metadata_behind"] == [e.what for e in desk.effects if isinstance(e, Trace)]

    desk.hear(B, Fenced(1, record.election, HEAD))
    desk.hear(C, Fenced(1, record.election, HEAD))
    desk.step(NodeDown("a"))
    desk.fire("retry")
    assert not desk.saves() and not desk.sent(BecomeLeader)

    desk.load(replace(record, epoch=20, writer="recover-metadata"))
    assert not desk.shard.behind


def test_n10_a_node_that_promised_a_higher_epoch_is_fenced_in_that_one(desk: Desk) -> None:
    """A recovery was given up after this node had promised; without that epoch the node would refuse for ever."""
    desk.electing()
    desk.hear(A, Rejected(1, "Fence", Refused(Reason.STALE_EPOCH, "promised", epoch=1, expected=16)))
    assert [(16, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]
    desk.stored()
    assert {16} == {fence.epoch for _, fence in desk.sent(Fence)}


def test_n10_n12_a_floor_far_above_the_record_is_not_followed(desk: Desk) -> None:
    desk.electing()
    desk.hear(A, Rejected(1, "Fence", Refused(Reason.STALE_EPOCH, epoch=1, expected=2 + EPOCH_JUMP_MAX)))
    assert not desk.saves()


NONE_HERE = Refused(Reason.NO_REPLICA, "replica is DELETED", epoch=5)


def test_n11_a_member_that_holds_no_replica_is_swapped_for_itself(desk: Desk) -> None:
    desk.steady()
    swap = StartChange(SHARD, 1, Operation.SWAP, "c", "c")
    desk.step(swap)
    assert [Reason.ALREADY_MEMBER] == [refused.reason for refused in desk.replies()]
    desk.step(NodeUp(C, "boot"))
    desk.hear(C, Rejected(5, "Fence", NONE_HERE, desk.nonces()[-1]))
    assert {C} == desk.shard.missing and ["replica_missing"] == [e.what for e in desk.effects]

    desk.step(swap)
    desk.stored()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.hear(C, SnapshotInstalled(6, SNAPSHOT.head))
    desk.stored()
    desk.hear(A, Committed(6))
    desk.stored()
    assert (Status.STEADY, (A, B, C), ()) == (desk.record.status, desk.record.ensemble, desk.record.removed)
    assert not desk.shard.missing and not desk.sent(DeleteShard)


def test_a_snapshot_of_another_kind_of_shard_goes_to_no_member(desk: Desk) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, replace(SNAPSHOT, kind=ShardKind.DOCUMENTS)))

    assert ["violation"] == [effect.what for effect in desk.effects if isinstance(effect, Trace)]
    assert not desk.sent(InstallSnapshot)
    desk.hear(A, Prepared(6, SNAPSHOT))
    assert [SNAPSHOT] == [message.snapshot for _, message in desk.sent(InstallSnapshot)]


def test_n11_an_answer_from_before_the_change_does_not_have_a_whole_replica_seeded_again(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(C, "boot"))
    nonce = desk.nonces()[-1]
    desk.hear(C, Rejected(5, "Fence", NONE_HERE, nonce))
    desk.step(StartChange(SHARD, 1, Operation.SWAP, "c", "c"))
    desk.stored()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.hear(C, SnapshotInstalled(6, SNAPSHOT.head))
    desk.stored()
    desk.hear(A, Committed(6))
    desk.stored()

    desk.hear(C, Rejected(6, "Fence", replace(NONE_HERE, epoch=6), nonce))
    assert not desk.shard.missing


def test_n11_a_member_that_its_leader_does_not_hear_is_asked(desk: Desk) -> None:
    """Its replica was deleted under a running leader: no election and no restart asks it."""
    desk.steady()
    desk.hear(A, Reach((B, C), (), (Unheard(SHARD, 5, (C,)),)))
    assert [(C, Fence(5, 50))] == desk.sent(Fence)
    desk.hear(A, Reach((B, C), (), (Unheard(SHARD, 5, (C,)),)))
    assert not desk.sent(Fence), "once; the retry timer repeats it"
    desk.fire("retry")
    desk.hear(C, Rejected(5, "Fence", NONE_HERE, desk.nonces()[-1]))
    assert {C} == desk.shard.missing


def test_n11_a_member_that_answers_a_fence_is_no_longer_missing(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(C, "boot"))
    desk.hear(C, Rejected(5, "Fence", NONE_HERE, desk.nonces()[-1]))
    desk.hear(C, Fenced(5, 50, HEAD))
    assert not desk.shard.missing


def _reseeding(desk: Desk) -> None:
    """C is missing, and the leader is prepared to have it seeded in its own slot."""
    desk.steady()
    desk.step(NodeUp(C, "boot"))
    desk.hear(C, Rejected(5, "Fence", NONE_HERE, desk.nonces()[-1]))
    desk.step(StartChange(SHARD, 1, Operation.SWAP, "c", "c"))
    desk.stored()
    desk.hear(A, Prepared(6, SNAPSHOT))


def test_n11b_the_snapshot_leaves_once_the_member_says_that_it_holds_nothing(desk: Desk) -> None:
    _reseeding(desk)
    for _ in range(2):
        assert {C} == {to for to, _ in desk.sent(Fence)} and not desk.sent(InstallSnapshot)
        desk.fire("retry")
    desk.hear(C, Rejected(6, "Fence", replace(NONE_HERE, epoch=6), 7))
    assert [(C, SNAPSHOT)] == [(to, message.snapshot) for to, message in desk.sent(InstallSnapshot)]
    desk.hear(C, Fenced(6, desk.record.election, SNAPSHOT.head))   # a repeat of the fence, answered once it is seeded
    assert not desk.effects
    desk.hear(C, SnapshotInstalled(6, SNAPSHOT.head))
    assert [Phase.COMMIT] == [record.change.phase for record in desk.saves() if record.change]


def test_n11b_a_member_that_became_whole_ends_the_swap_and_keeps_its_replica(desk: Desk) -> None:
    _reseeding(desk)
    desk.hear(C, Fenced(6, desk.record.election, HEAD))
    assert [Reason.ABORTED] == [refused.reason for refused in desk.replies()] and not desk.sent(InstallSnapshot)
    desk.stored()
    assert (Status.STEADY, 6, (A, B, C), ()) == (
        desk.record.status, desk.record.epoch, desk.record.ensemble, desk.record.removed)
    assert [(A, Abort(6, desk.record.election))] == desk.sent(Abort) and [C] == [to for to, _ in desk.sent(Fence)]
    assert not desk.shard.missing


def test_n11b_a_missing_member_that_reports_the_end_of_its_seeding_is_fenced_again(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeUp(C, "boot"))
    desk.hear(C, Rejected(5, "Fence", NONE_HERE, desk.nonces()[-1]))
    desk.hear(B, SnapshotInstalled(4, HEAD))
    assert not desk.effects
    desk.hear(C, SnapshotInstalled(4, HEAD))   # of a change that was given up
    assert [(C, Fence(5, 50))] == desk.sent()
    desk.hear(C, Fenced(5, 50, HEAD))
    assert not desk.shard.missing


def test_n9_a_record_that_changed_meanwhile_is_gone_on_with(desk: Desk) -> None:
    """Another operator was faster: the store says so, and nothing was set back."""
    desk.electing()
    desk.hear(A, Rejected(1, "Fence", Refused(Reason.STALE_EPOCH, epoch=2)))
    newer = replace(desk.record, epoch=2, election=11, writer="op/9#1")
    desk.step(MetadataLoaded(AT, newer, desk.shard.revision + 1, fresh=True))
    assert not desk.shard.behind and newer == desk.record


def test_an_election_asked_for_while_one_is_being_stored_is_the_same_one(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeDown("a"))
    assert [6] == [record.epoch for record in desk.saves()]
    election = desk.effects
    desk.hear(A, Fenced(5, 50, HEAD))    # a late answer from before
    desk.effects = election
    desk.stored()

    assert [] == desk.saves()
    assert [A, B, C] == [to for to, _ in desk.sent(Fence)]


# --- metadata ---------------------------------------------------------------------------------------------


def test_h2_every_write_is_conditioned_on_the_revision_it_was_decided_from(desk: Desk) -> None:
    desk.load(STEADY, revision=77)
    desk.step(NodeDown("a"))

    assert [(77, 77)] == [(e.expected, e.record.election) for e in desk.effects if isinstance(e, SaveMetadata)]


def test_h2_an_operator_that_lost_a_race_reads_and_starts_over(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeDown("a"))
    writer = desk.saves()[0].writer
    assert [LoadMetadata(AT)] == desk.step(MetadataUncertain(AT, writer))
    rival = replace(STEADY, epoch=6, election=60, leader=B, writer="op/2#4")
    desk.load(rival)

    assert rival == desk.record
    assert [] == desk.saves()
    assert [(m, Fence(6, 60)) for m in (A, B, C)] == desk.sent(Fence)


def test_a_write_of_unknown_outcome_that_succeeded_is_recognised_by_its_writer(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeDown("a"))
    [record] = desk.saves()
    desk.step(MetadataUncertain(AT, record.writer))
    desk.load(record, revision=desk.revision + 1)

    assert [A, B, C] == [to for to, _ in desk.sent(Fence)]
    assert [] == desk.saves()


def test_a_write_of_unknown_outcome_that_failed_is_decided_anew(desk: Desk) -> None:
    desk.steady()
    before, revision = desk.record, desk.revision
    desk.step(NodeDown("a"))
    [record] = desk.saves()
    desk.step(MetadataUncertain(AT, record.writer))
    desk.load(before, revision=revision)

    assert [(6, revision)] == [(record.epoch, record.election) for record in desk.saves()]
    assert desk.saves()[0].writer != record.writer


def test_a_write_seen_by_the_watch_first_is_not_counted_twice(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeDown("a"))
    [record] = desk.saves()
    desk.load(record, revision=desk.revision + 1)
    assert 3 == len(desk.sent(Fence))

    assert [] == desk.step(MetadataSaved(AT, record.writer, desk.revision))
    assert [] == desk.load(record, revision=desk.revision)


def test_h2_the_outcome_of_a_write_that_was_given_up_is_not_taken_for_that_of_the_next(desk: Desk) -> None:
    """A rival's write is seen by the watch before our own is refused, and we have already decided anew."""
    desk.steady()
    desk.step(NodeDown("a"))
    [first] = desk.saves()
    desk.load(replace(STEADY, epoch=6, election=60, leader=A, writer="op/2#4"))
    [second] = desk.saves()

    assert [] == desk.step(MetadataUncertain(AT, first.writer))
    assert [] == desk.step(MetadataSaved(AT, first.writer, desk.revision + 1))
    assert 6 == desk.record.epoch
    desk.revision += 1
    desk.step(MetadataSaved(AT, second.writer, desk.revision))
    assert (7, Status.ELECTION) == (desk.record.epoch, desk.record.status)


def test_an_older_version_seen_late_changes_nothing(desk: Desk) -> None:
    desk.steady()

    assert [] == desk.load(first_record((A, B, C)), revision=3)
    assert STEADY == desk.record


def test_a_deleted_shard_is_forgotten_and_its_waiters_told(desk: Desk) -> None:
    desk.preparing()
    desk.step(MetadataLoaded(AT, None, 99))

    assert [Refused(Reason.ABORTED, "the shard was deleted")] == desk.replies()
    assert {} == desk.core.shards


# --- resuming ---------------------------------------------------------------------------------------------


def test_o2_a_steady_record_is_checked_against_the_nodes_without_an_election(desk: Desk) -> None:
    desk.load(STEADY)

    assert [(m, Fence(5, 50)) for m in (A, B, C)] == desk.sent(Fence)
    assert [(A, Abort(5, 50))] == desk.sent(Abort)
    assert [] == desk.saves()


@pytest.mark.parametrize("up", [(B, C), (Member("a", "a-disk2"), B, C)], ids=["down", "another disk"])
def test_o2_a_steady_record_whose_leader_is_known_to_be_gone_is_elected(up: Sequence[Member]) -> None:
    desk = Desk(up)
    if len(up) == 2:
        desk.step(NodeDown("a"))
    desk.load(STEADY)

    assert [(6, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]


def test_o2_an_interrupted_election_is_begun_anew_in_a_higher_epoch(desk: Desk) -> None:
    desk.load(replace(STEADY, status=Status.ELECTION, leader=None))

    assert [(6, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]


@pytest.mark.parametrize("operation", Operation)
def test_o20_a_change_stalled_in_prepare_is_dropped(desk: Desk, operation: Operation) -> None:
    old = None if operation is Operation.EXPAND else C
    new = None if operation is Operation.CONTRACT else D
    stalled = Change(operation, Phase.PREPARE, old, new)
    desk.step(SetActive(True))
    desk.load(replace(STEADY, status=Status.RECONFIGURATION, change=stalled))

    [record] = desk.saves()
    assert (6, Status.ELECTION, None, (A, B, C)) == (record.epoch, record.status, record.change, record.ensemble)
    assert ((D,) if new else ()) == record.removed, "what was being seeded is deleted later"


PREPARING = replace(
    STEADY, status=Status.RECONFIGURATION, change=Change(Operation.SWAP, Phase.PREPARE, C, D), writer="op/0#7"
)


def test_o3b_an_operator_that_does_not_hold_the_lease_waits_for_the_driver_of_a_prepare(desk: Desk) -> None:
    desk.load(PREPARING)
    for attempt in range(8, 11):
        assert [] == desk.saves()
        assert {"takeover": desk.now_ms + 3_000} == desk.timers(), "each sign of progress begins the wait again"
        desk.now_ms += 1_000
        desk.load(replace(PREPARING, writer=f"op/0#{attempt}"))
    desk.fire("takeover")

    assert [(6, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]


def test_o3b_the_driver_of_a_prepare_writes_progress_every_third_of_the_takeover_time(desk: Desk) -> None:
    desk.preparing()
    for _ in range(3):
        assert desk.now_ms + 1_000 == desk.timers()["renewal"]
        before = desk.record
        desk.now_ms += 1_000
        desk.fire("renewal")
        [record] = desk.saves()
        assert record == replace(before, writer=record.writer) and record.writer != before.writer
        desk.stored()
        assert [] == desk.sent()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.hear(D, SnapshotInstalled(6, SNAPSHOT.head))
    desk.stored()
    desk.fire("renewal")

    assert [] == desk.saves(), "a change in COMMIT is continued by any operator"


@pytest.mark.parametrize("outcome", ["lost", "stored", "another wrote"])
def test_o3b_a_renewal_of_unknown_outcome_ends_no_change(desk: Desk, outcome: str) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, SNAPSHOT))
    before = desk.record
    desk.fire("renewal")
    [save] = desk.saves()
    desk.step(MetadataUncertain(AT, save.writer))
    found = {"lost": before, "stored": save, "another wrote": replace(before, epoch=7, writer="op/0#9")}[outcome]
    revision = desk.revision + (outcome != "lost")
    desk.step(MetadataLoaded(AT, found, revision, fresh=True))
    desk.revision = revision
    if outcome == "another wrote":
        assert [Reason.ABORTED] == [refused.reason for refused in desk.replies()]
        return
    assert {"renewal": desk.now_ms + 1_000} == desk.timers()
    desk.hear(D, SnapshotInstalled(6, SNAPSHOT.head))

    assert [Phase.COMMIT] == [record.change.phase for record in desk.saves() if record.change]


@pytest.mark.parametrize("why", ["node down", "cancelled", "deadline"])
def test_o3b_a_change_that_ends_while_its_renewal_is_written_ends_behind_it(desk: Desk, why: str) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.fire("renewal")
    [renewal] = desk.saves()
    match why:
        case "node down":
            desk.step(NodeDown("d"))
        case "cancelled":
            desk.step(CancelChange(SHARD, 2))
            assert [ChangeDone(6, (A, B, C), A)] == desk.replies()
        case "deadline":
            desk.fire("deadline")
            assert {"deadline": desk.now_ms + 500} == desk.timers()
    assert [] == desk.saves()
    desk.revision += 1
    desk.step(MetadataSaved(AT, renewal.writer, desk.revision))
    if why == "deadline":
        desk.fire("deadline")

    assert [(Status.STEADY, None)] == [(record.status, record.change) for record in desk.saves()]


def test_o2_a_change_stalled_in_commit_is_committed_again(desk: Desk) -> None:
    stalled = replace(SWAP, new_head=EntryId(5, 7))
    desk.load(replace(STEADY, status=Status.RECONFIGURATION, change=stalled))

    assert [] == desk.saves()
    assert [(A, Commit(5, 50, Operation.SWAP, (A, B, D), C, D, EntryId(5, 7)))] == desk.sent()


def test_o19_an_election_completes_a_change_stalled_in_commit(desk: Desk) -> None:
    desk.step(NodeDown("a"))
    desk.electing(replace(STEADY, status=Status.RECONFIGURATION, change=SWAP))
    assert desk.record.change == SWAP
    desk.fenced(b=HEAD, c=EntryId(1, 99), d=HEAD)
    assert [(B, BecomeLeader(6, 10, (A, B, D), ((D, HEAD),)))] == desk.sent(BecomeLeader)
    desk.elected()

    assert replace(STEADY, epoch=6, election=10, leader=B, ensemble=(A, B, D), removed=(C,)) == replace(
        desk.record, writer=STEADY.writer
    )
    assert [(C, DeleteShard(6, 10))] == desk.sent(DeleteShard)


def test_h6_an_election_rolls_a_stalled_contract_back(desk: Desk) -> None:
    desk.step(NodeDown("a"))
    desk.load(
        replace(STEADY, status=Status.RECONFIGURATION, change=Change(Operation.CONTRACT, Phase.COMMIT, C, None))
    )

    [record] = desk.saves()
    assert (None, (A, B, C), ()) == (record.change, record.ensemble, record.removed)


def test_o29_a_commit_refused_by_a_leader_that_never_prepared_ends_in_an_election(desk: Desk) -> None:
    desk.load(replace(STEADY, status=Status.RECONFIGURATION, change=SWAP))
    desk.hear(A, Rejected(5, "Commit", Refused(Reason.WRONG_STATE, epoch=5)))

    assert [(6, Status.ELECTION, SWAP)] == [(r.epoch, r.status, r.change) for r in desk.saves()]


def test_o3_another_operator_s_election_gets_time_before_it_is_taken_over(desk: Desk) -> None:
    desk.steady()
    rival = replace(STEADY, epoch=6, election=60, status=Status.ELECTION, leader=None, writer="op/2#1")
    desk.load(rival)
    assert ([], {TAKEOVER_TIMER: 4_000}) == (desk.saves(), desk.timers())
    desk.fire(TAKEOVER_TIMER)

    assert [7] == [record.epoch for record in desk.saves()]


def test_o3_an_inactive_operator_watches_and_does_nothing_until_it_is_active(desk: Desk) -> None:
    desk.step(SetActive(False))
    assert [] == desk.load(STEADY)
    assert [] == desk.step(NodeDown("a"))
    assert [] == desk.fire(RETRY_TIMER)
    assert [] == desk.hear(A, BecameLeader(5, 50))
    desk.step(SetActive(True))

    assert [6] == [record.epoch for record in desk.saves()]


# --- changes of the ensemble ------------------------------------------------------------------------------


def test_o28_o30_prepare_is_stored_with_a_new_epoch_before_anybody_is_told(desk: Desk) -> None:
    desk.steady()
    desk.step(StartChange(SHARD, 1, Operation.SWAP, "c", "d"))

    [record] = desk.saves()
    assert (6, desk.revision, Status.RECONFIGURATION, Change(Operation.SWAP, Phase.PREPARE, C, D)) == (
        record.epoch, record.election, record.status, record.change
    )
    assert (A, (A, B, C)) == (record.leader, record.ensemble)
    assert [] == desk.sent()
    desk.stored()
    assert [(A, Prepare(6, record.election, Operation.SWAP, C, D))] == desk.sent()


def test_o31_o32_the_new_member_is_asked_to_install_what_the_leader_described(desk: Desk) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, SNAPSHOT))

    assert [(D, InstallSnapshot(6, desk.record.election, A, SNAPSHOT))] == desk.sent()
    assert [] == desk.saves()
    assert [ChangeProgress(SHARD, 1, "SNAPSHOT")] == [e for e in desk.effects if isinstance(e, ChangeProgress)]


def test_a3_o33_commit_is_stored_only_after_the_new_member_holds_all_of_the_snapshot(desk: Desk) -> None:
    desk.preparing()
    desk.hear(D, SnapshotInstalled(6, SNAPSHOT.head))
    assert [] == desk.effects, "nobody described a snapshot yet"
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.hear(B, SnapshotInstalled(6, SNAPSHOT.head))
    desk.hear(D, SnapshotInstalled(5, SNAPSHOT.head))
    desk.hear(D, SnapshotInstalled(6, EntryId(6, 9)))
    assert [] == desk.saves()
    assert Phase.PREPARE is desk.record.change.phase  # type: ignore[union-attr]
    desk.hear(D, SnapshotInstalled(6, SNAPSHOT.head))

    [record] = desk.saves()
    assert replace(SWAP, new_head=SNAPSHOT.head) == record.change
    assert (6, (A, B, C)) == (record.epoch, record.ensemble)
    assert [] == desk.sent()


def test_o34_o35_commit_then_the_operation_is_cleared_and_the_old_replica_deleted(desk: Desk) -> None:
    desk.committing()
    assert [(A, Commit(6, desk.record.election, Operation.SWAP, (A, B, D), C, D, SNAPSHOT.head))] == desk.sent()
    desk.hear(A, Committed(6))
    [record] = desk.saves()
    assert (Status.STEADY, (A, B, D), None, (C,)) == (record.status, record.ensemble, record.change, record.removed)
    desk.stored()

    assert [ChangeDone(6, (A, B, D), A)] == desk.replies()
    assert [(C, DeleteShard(6, record.election))] == desk.sent()
    desk.hear(C, ShardDeleted(6))
    desk.stored()
    assert () == desk.record.removed
    assert desk.shard.settled


def test_o37_expand_runs_like_a_swap_without_an_old_member(desk: Desk) -> None:
    desk.preparing(Operation.EXPAND, None, "d")
    assert [(A, Prepare(6, desk.record.election, Operation.EXPAND, None, D))] == desk.sent()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.hear(D, SnapshotInstalled(6, SNAPSHOT.head))
    desk.stored()
    desk.hear(A, Committed(6))
    desk.stored()

    assert [ChangeDone(6, (A, B, C, D), A)] == desk.replies()
    assert desk.shard.settled


def test_o38_o40_a_contract_ships_nothing_and_asks_for_commit_until_it_succeeds(desk: Desk) -> None:
    desk.preparing(Operation.CONTRACT, "c", None)
    desk.hear(A, Prepared(6, None))
    assert [Change(Operation.CONTRACT, Phase.COMMIT, C, None)] == [record.change for record in desk.saves()]
    desk.stored()
    commit = Commit(6, desk.record.election, Operation.CONTRACT, (A, B), C, None, NOTHING)
    assert [(A, commit)] == desk.sent()
    assert [] == desk.hear(A, CommitPending(6))
    desk.fire(RETRY_TIMER)
    assert [(A, commit)] == desk.sent()
    desk.hear(A, Committed(6))
    desk.stored()

    assert [ChangeDone(6, (A, B), A)] == desk.replies()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (StartChange(SHARD, 1, Operation.SWAP, "a", "d"), Reason.LEADER_CANNOT_LEAVE),
        (StartChange(SHARD, 1, Operation.CONTRACT, "a", None, force=True), Reason.LEADER_CANNOT_LEAVE),
        (StartChange(SHARD, 1, Operation.SWAP, "d", "e"), Reason.NOT_MEMBER),
        (StartChange(SHARD, 1, Operation.SWAP, None, "e"), Reason.NOT_MEMBER),
        (StartChange(SHARD, 1, Operation.SWAP, "c", "b"), Reason.ALREADY_MEMBER),
        (StartChange(SHARD, 1, Operation.SWAP, "c", "c"), Reason.ALREADY_MEMBER),
        (StartChange(SHARD, 1, Operation.EXPAND, None, "b"), Reason.ALREADY_MEMBER),
        (StartChange(SHARD, 1, Operation.EXPAND, None, "nobody"), Reason.NODE_UNAVAILABLE),
        (StartChange(SHARD, 1, Operation.EXPAND, None, None), Reason.NODE_UNAVAILABLE),
        (StartChange(SHARD, 1, Operation.CONTRACT, "c", None), Reason.BELOW_MINIMUM),
        (StartTransfer(SHARD, 1, "d"), Reason.NOT_MEMBER),
        (CancelChange(SHARD, 1), Reason.WRONG_STATE),
    ],
)
def test_o36_bad_requests_are_refused_with_a_reason_and_change_nothing(desk: Desk, event: Any, reason: Reason) -> None:
    desk.steady()
    [refused] = [e.value for e in desk.step(event) if isinstance(e, Reply)]

    assert isinstance(refused, Refused)
    assert (reason, True) == (refused.reason, bool(refused.message))
    assert 1 == len(desk.effects)
    assert STEADY == desk.record and desk.shard.settled


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(
    ("ensemble", "leaver", "down", "behind", "allowed"),
    [
        ((A, B, C), "c", (), (), True),
        ((A, B, C), "c", (C,), (), True),
        ((A, B, C), "c", (B,), (), False),
        ((A, B, C), "c", (), (B,), False),
        ((A, B, C, D), "d", (C,), (), True),
        ((A, B, C, D), "d", (), (C,), True),
        ((A, B, C, D), "d", (B,), (C,), False),
        ((A, B, C, D), "d", (C, D), (), True),
        ((A, B, C, D, E), "e", (C, D), (), False),
        ((A, B, C, D, E), "e", (D, E), (), True),
        ((A, B), "b", (B,), (), True),
    ],
)
def test_o27b_a_contract_needs_a_remaining_majority_that_follows_and_force_waives_the_minimum_only(
    desk: Desk, ensemble: tuple[Member, ...], leaver: str, down: tuple[Member, ...], behind: tuple[Member, ...],
    allowed: bool, force: bool,
) -> None:
    desk.steady(replace(STEADY, ensemble=ensemble))
    for member in down:
        desk.step(NodeDown(member.node))
    for member in behind:
        desk.step(NodeUp(member, "restarted"))   # not yet attached to the leader again
    desk.step(StartChange(SHARD, 1, Operation.CONTRACT, leaver, None, force=force))
    reasons = [refused.reason for refused in desk.replies()]

    if len(ensemble) <= 3 and not force:
        assert [Reason.BELOW_MINIMUM] == reasons
    else:
        assert ([] if allowed else [Reason.NODE_UNAVAILABLE]) == reasons
    assert bool(desk.saves()) is not bool(reasons)


@pytest.mark.parametrize("stage", ["electing", "preparing", "committing", "saving"])
def test_o27_a_change_is_refused_while_anything_else_is_running(desk: Desk, stage: str) -> None:
    if stage == "saving":
        desk.steady().step(NodeDown("a"))
    else:
        getattr(desk, stage)()
    for event in (StartChange(SHARD, 7, Operation.EXPAND, None, "e"), StartTransfer(SHARD, 7, "b")):
        [refused] = [e.value for e in desk.step(event) if isinstance(e, Reply) and e.request == 7]
        assert isinstance(refused, Refused) and Reason.RECONFIGURING is refused.reason


def test_o27_a_change_needs_a_live_leader(desk: Desk) -> None:
    desk = Desk(up=(B, C, D))
    desk.load(STEADY)
    desk.step(StartChange(SHARD, 1, Operation.SWAP, "c", "d"))

    assert [Reason.NO_LEADER] == [refused.reason for refused in desk.replies()]


def test_a_change_of_an_unknown_shard_is_refused(desk: Desk) -> None:
    desk.step(StartChange(SHARD, 1, Operation.SWAP, "c", "d"))

    assert [Reason.UNKNOWN_SHARD] == [refused.reason for refused in desk.replies()]


def test_k14_a_wiped_node_is_swapped_into_its_own_slot(desk: Desk) -> None:
    wiped = Member("c", "c-disk2")
    desk.steady()
    desk.step(NodeUp(wiped, "boot2"))
    desk.step(StartChange(SHARD, 1, Operation.SWAP, "c", "c"))

    [record] = desk.saves()
    assert Change(Operation.SWAP, Phase.PREPARE, C, wiped) == record.change
    assert (A, B, wiped) == changed_ensemble(record.ensemble, record.change)


def test_o41_a_change_is_cancelled_in_prepare_stored_first_then_the_leader_is_told(desk: Desk) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.step(CancelChange(SHARD, 2))
    [record] = desk.saves()
    assert (6, Status.STEADY, None, (A, B, C), (D,)) == (
        record.epoch, record.status, record.change, record.ensemble, record.removed
    )
    assert [] == desk.sent()
    assert Refused(Reason.ABORTED, "cancelled") == desk.replies()[0]
    desk.stored()
    assert [(A, Abort(6, record.election))] == desk.sent(Abort)
    desk.fire(RETRY_TIMER)
    assert [(A, Abort(6, record.election))] == desk.sent(Abort), "said until it is heard"
    desk.hear(A, Aborted(6))
    desk.fire(RETRY_TIMER)

    assert [] == desk.sent(Abort)


def test_o41_a_change_the_leader_may_not_have_adopted_is_aborted_by_an_election(desk: Desk) -> None:
    desk.preparing()
    desk.step(CancelChange(SHARD, 2))

    assert [(7, Status.ELECTION, None)] == [(r.epoch, r.status, r.change) for r in desk.saves()]


def test_o41_a_change_in_commit_cannot_be_cancelled(desk: Desk) -> None:
    desk.committing()
    desk.step(CancelChange(SHARD, 2))

    assert [Reason.WRONG_STATE] == [refused.reason for refused in desk.replies()]
    assert [] == desk.saves()


@pytest.mark.parametrize(
    "cause",
    [
        NodeDown("d"), TimerFired(AT, DEADLINE_TIMER),
        Received(AT, D, None, Rejected(6, "InstallSnapshot", Refused(Reason.WRONG_STATE, "no room"))),
    ],
    ids=["new member down", "no progress", "snapshot refused"],
)
def test_o41_a_change_that_cannot_go_on_in_prepare_is_aborted(desk: Desk, cause: Any) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.step(cause)

    assert [(Status.STEADY, None)] == [(record.status, record.change) for record in desk.saves()]
    assert [Reason.ABORTED] == [refused.reason for refused in desk.replies()]


def test_snapshot_progress_is_passed_on_and_moves_the_deadline(desk: Desk) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.now_ms = 20_000
    desk.hear(D, SnapshotProgress(6, 300, 1_000))

    assert [ChangeProgress(SHARD, 1, "SNAPSHOT", 300, 1_000)] == [
        e for e in desk.effects if isinstance(e, ChangeProgress)
    ]
    assert {DEADLINE_TIMER: 50_000} == desk.timers()


@pytest.mark.parametrize("about", ["Prepare", "InstallSnapshot"])
def test_a_refusal_of_a_repeated_step_does_not_undo_a_change_in_commit(desk: Desk, about: str) -> None:
    desk.committing()
    sender = A if about == "Prepare" else D
    desk.hear(sender, Rejected(6, about, Refused(Reason.STALE_EPOCH, epoch=6)))

    assert [] == desk.saves()
    assert desk.record.change is not None and Phase.COMMIT is desk.record.change.phase


@pytest.mark.parametrize("ending", ["committed", "by election"])
def test_whoever_asked_for_a_change_is_answered_though_the_operator_was_inactive_in_between(
    desk: Desk, ending: str
) -> None:
    desk.committing()
    desk.step(SetActive(False))
    desk.step(SetActive(True))
    if ending == "committed":
        desk.hear(A, Committed(6))
    else:
        desk.hear(A, Rejected(6, "Commit", Refused(Reason.NOT_LEADER, epoch=6)))
        desk.stored()
        for member in (A, B, C, D):
            desk.hear(member, Fenced(desk.record.epoch, desk.record.election, HEAD))
        [(leader, _)] = desk.sent(BecomeLeader)
        desk.hear(leader, BecameLeader(desk.record.epoch, desk.record.election))
    desk.stored()

    assert [(A, B, D)] == [done.ensemble for done in desk.replies()]


@pytest.mark.parametrize("message", [Prepared(6, SNAPSHOT), Committed(6)], ids=["Prepared", "Committed"])
def test_answers_of_a_change_count_only_from_its_leader(desk: Desk, message: Any) -> None:
    desk = desk.preparing() if isinstance(message, Prepared) else desk.committing()

    assert [] == desk.hear(B, message)


def test_issue_880_a_removed_member_s_late_fence_answer_does_not_make_it_a_follower(desk: Desk) -> None:
    """Oxia #880, #495: during the grace window a removed node was counted as follower and candidate."""
    desk.committing()
    assert [] == desk.hear(C, Fenced(6, desk.record.election, EntryId(9, 99))), "leaving"
    desk.hear(A, Committed(6))
    desk.stored()

    assert [] == desk.hear(C, Fenced(6, desk.record.election, EntryId(9, 99)))
    assert C not in desk.shard.unattached


# --- handing leadership over ------------------------------------------------------------------------------


def test_a_transfer_waits_for_the_new_leader_to_be_ready_and_prefers_it(desk: Desk) -> None:
    desk.transferring()
    assert [(A, PrepareTransfer(5, 50, C))] == desk.sent()
    assert [] == desk.hear(A, TransferReady(5, B))
    desk.hear(A, TransferReady(5, C))
    assert [(6, Status.ELECTION)] == [(record.epoch, record.status) for record in desk.saves()]
    desk.stored()
    desk.fenced(a=HEAD, b=HEAD, c=HEAD)
    assert [C] == [to for to, _ in desk.sent(BecomeLeader)]
    desk.elected()

    assert [ChangeDone(6, (A, B, C), C)] == desk.replies()


def test_o12_an_election_of_a_transfer_waits_longer_for_its_target(desk: Desk) -> None:
    """A slow machine answers after the short grace: another member would lead, and the transfer would be refused."""
    desk.transferring()
    desk.hear(A, TransferReady(5, C))
    desk.stored()
    desk.fenced(a=HEAD, b=HEAD)
    assert desk.now_ms + desk.core.settings.retry_ms == desk.timers()[GRACE_TIMER]
    assert [] == desk.sent(BecomeLeader)
    desk.fenced(c=HEAD)
    assert [C] == [to for to, _ in desk.sent(BecomeLeader)]
    desk.elected()

    assert [ChangeDone(6, (A, B, C), C)] == desk.replies()


def test_o12_an_election_of_a_transfer_waits_no_longer_for_other_members(desk: Desk) -> None:
    desk.transferring()
    desk.hear(A, TransferReady(5, C))
    desk.stored()
    desk.fenced(a=HEAD, c=HEAD)

    assert desk.now_ms + desk.core.settings.grace_ms == desk.timers()[GRACE_TIMER]


def test_o12_the_grace_of_an_earlier_election_does_not_end_a_later_one(desk: Desk) -> None:
    """Everybody answered before its timer fires; it fires when the fences of the next transfer are out."""
    desk.transferring()
    desk.hear(A, TransferReady(5, C))
    desk.stored()
    desk.fenced(a=HEAD, b=HEAD, c=HEAD)
    desk.elected()
    desk.step(StartTransfer(SHARD, 2, "b"))
    desk.hear(C, TransferReady(6, B))
    desk.stored()
    assert [] == desk.fire(GRACE_TIMER)
    desk.fenced(a=HEAD, c=HEAD)
    assert [] == desk.sent(BecomeLeader)
    desk.fenced(b=HEAD)

    assert [B] == [to for to, _ in desk.sent(BecomeLeader)]


def test_a_target_that_does_not_answer_in_time_is_named_in_the_refusal(desk: Desk) -> None:
    desk.transferring()
    desk.hear(A, TransferReady(5, C))
    desk.stored()
    desk.fenced(a=HEAD, b=HEAD)
    desk.fire(GRACE_TIMER)
    [leader] = [to for to, _ in desk.sent(BecomeLeader)]
    desk.elected()

    why = f"{leader} leads instead: c answered the election too late or had a shorter log; try again"
    assert [Refused(Reason.ABORTED, why)] == desk.replies()


def test_a_transfer_to_the_leader_is_done_already(desk: Desk) -> None:
    desk.steady()
    desk.step(StartTransfer(SHARD, 1, "a"))

    assert [ChangeDone(5, (A, B, C), A)] == desk.replies()


def test_a_transfer_that_does_not_get_ready_is_given_up_without_an_election(desk: Desk) -> None:
    desk.transferring()
    desk.fire(DEADLINE_TIMER)

    assert [Reason.ABORTED] == [refused.reason for refused in desk.replies()]
    assert [] == desk.saves()
    assert desk.shard.settled


def test_a_transfer_to_a_node_that_goes_down_is_given_up(desk: Desk) -> None:
    desk.transferring()
    desk.step(NodeDown("c"))

    assert [Reason.ABORTED] == [refused.reason for refused in desk.replies()]
    assert [] == desk.saves()


def test_a_deadline_that_passes_while_a_write_is_under_way_is_not_forgotten(desk: Desk) -> None:
    desk.preparing()
    desk.hear(A, Prepared(6, SNAPSHOT))
    desk.step(MetadataUncertain(AT, "somebody"))
    desk.hear(D, SnapshotInstalled(6, SNAPSHOT.head))
    desk.fire(DEADLINE_TIMER)

    assert {DEADLINE_TIMER: 1_500} == desk.timers()


def test_a_transfer_refused_by_the_leader_is_given_up(desk: Desk) -> None:
    desk.transferring()
    desk.hear(A, Rejected(5, "PrepareTransfer", Refused(Reason.NODE_UNAVAILABLE, "c does not follow", epoch=5)))

    assert [Refused(Reason.ABORTED, "c does not follow")] == desk.replies()


def test_only_the_election_says_how_a_transfer_ends_once_it_has_begun(desk: Desk) -> None:
    desk.transferring()
    writes = desk.hear(A, TransferReady(5, C))
    desk.step(NodeDown("c"))
    assert [] == desk.replies()
    desk.effects = writes
    desk.stored()
    desk.step(NodeUp(C, "boot"))
    desk.fenced(a=HEAD, b=HEAD, c=HEAD)
    assert [C] == [to for to, _ in desk.sent(BecomeLeader)]
    desk.elected()

    assert [ChangeDone(6, (A, B, C), C)] == desk.replies()


def test_a_transfer_to_a_node_that_is_down_is_refused(desk: Desk) -> None:
    desk.steady()
    desk.step(NodeDown("c"))
    desk.step(StartTransfer(SHARD, 1, "c"))

    assert [Reason.NODE_UNAVAILABLE] == [refused.reason for refused in desk.replies()]


def test_a_longer_log_than_the_wanted_leader_s_wins_and_the_caller_is_told(desk: Desk) -> None:
    desk.transferring()
    desk.hear(A, TransferReady(5, C))
    desk.stored()
    desk.fenced(a=EntryId(5, 20), b=HEAD, c=HEAD)
    desk.elected()

    [refused] = desk.replies()
    assert isinstance(refused, Refused) and Reason.ABORTED is refused.reason


# --- cleaning up ------------------------------------------------------------------------------------------


def test_a_removed_replica_is_deleted_when_its_node_is_up_and_forgotten_when_it_says_so(desk: Desk) -> None:
    desk.step(NodeDown("d"))
    desk.steady(replace(STEADY, removed=(D,)))
    assert [] == desk.sent(DeleteShard)
    desk.step(NodeUp(D, "boot2"))
    assert [(D, DeleteShard(5, 50))] == desk.sent(DeleteShard)
    desk.hear(D, ShardDeleted(5))

    assert [()] == [record.removed for record in desk.saves()]


def test_k14_a_removed_disk_that_is_gone_needs_no_deleting(desk: Desk) -> None:
    """Otherwise the record would grow by one member with every disk that is lost."""
    desk.steady(replace(STEADY, removed=(Member("d", "d-disk0"),)))
    desk.step(NodeDown("a"))

    assert [()] == [record.removed for record in desk.saves()]


def test_a_member_taken_back_is_no_longer_to_be_deleted(desk: Desk) -> None:
    desk.step(NodeDown("d"))
    desk.steady(replace(STEADY, removed=(D,)))
    desk.step(NodeUp(D, "boot2"))
    desk.step(StartChange(SHARD, 1, Operation.EXPAND, None, "d"))

    [record] = desk.saves()
    assert () == record.removed


def test_a_settled_shard_has_no_timer(desk: Desk) -> None:
    desk.steady()

    assert [] == desk.fire(RETRY_TIMER)


def test_news_of_a_node_go_only_to_the_shards_it_concerns(desk: Desk) -> None:
    desk.steady()

    assert [] == desk.step(NodeUp(E, "boot2"))
    assert [] == desk.step(NodeDown("e"))
