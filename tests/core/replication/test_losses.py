"""The operator hears of a member that refuses to cut its log below its commit (K14c), and recovers from it (K14d)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.effects import Trace
from tidemark_core.base.ids import EntryId, Member
from tidemark_core.base.metadata import NodeDown, NodeUp
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import (
    BecameLeader,
    BecomeLeader,
    DeleteShard,
    Fence,
    Fenced,
    FollowerAdded,
    Operation,
    Rejected,
    TransferReady,
)
from tidemark_core.replication.records import (
    ChangeDone,
    Holdout,
    RecoverShard,
    ShardRecord,
    StartChange,
    Status,
)

from tests.core.replication.test_coordinator import HEAD, STEADY, Desk
from tests.core.support import AT, SHARD, A, B, C, D

CUT = Rejected(5, "Truncate", Refused(Reason.BELOW_COMMIT, "K14c: asked to cut to 1:3", 5, 9))
SUSPECTED = replace(STEADY, holdouts=(Holdout(C, 9),))


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.load(STEADY)
    return desk


def recover(desk: Desk, node: str = "c") -> list[Any]:
    desk.step(RecoverShard(SHARD, 7, node))
    return desk.replies()


def change(desk: Desk, operation: Operation, *, abandon: bool = False) -> list[Any]:
    new = "d" if operation is Operation.SWAP else None
    desk.step(StartChange(SHARD, 7, operation, "c", new, force=True, abandon=abandon))
    return desk.replies()


def test_k14c_the_record_remembers_who_holds_more_and_says_so_once(desk: Desk) -> None:
    desk.hear(C, CUT)
    [told] = [effect for effect in desk.effects if isinstance(effect, Trace)]
    assert ("data_loss_suspected", AT) == (told.what, told.address) and "commit 9" in told.detail
    desk.stored()
    assert replace(SUSPECTED, writer=desk.record.writer) == desk.record
    assert ShardRecord.decode(desk.record.encode()) == desk.record

    desk.hear(C, CUT)
    assert [] == desk.effects


@pytest.mark.parametrize("sender", [D, Member("c", "c-disk2")])
def test_k14c_only_members_are_believed(desk: Desk, sender: Member) -> None:
    assert [STRANGER_REFUSED] == [each.what for each in desk.hear(sender, CUT)]


def test_k14c_a_report_of_another_epoch_says_nothing_of_this_leader(desk: Desk) -> None:
    assert [] == desk.hear(C, replace(CUT, epoch=4, refusal=replace(CUT.refusal, epoch=4)))


def test_k14c_a_swap_in_prepare_of_that_member_is_given_up(desk: Desk) -> None:
    change(desk, Operation.SWAP)
    desk.stored()
    epoch = desk.record.epoch
    desk.hear(C, replace(CUT, epoch=epoch, refusal=replace(CUT.refusal, epoch=epoch)))
    [refused] = desk.replies()
    assert refused.reason is Reason.ABORTED and "K14c" in refused.message


@pytest.mark.parametrize("operation", [Operation.SWAP, Operation.CONTRACT])
def test_k14c_a_change_that_destroys_the_copy_needs_an_explicit_wish(desk: Desk, operation: Operation) -> None:
    desk.load(SUSPECTED)
    [refused] = change(desk, operation)
    assert (Reason.LAST_COPY, 9) == (refused.reason, refused.expected) and "c holds" in refused.message
    assert [] == desk.saves()

    desk.step(NodeDown("c"))
    [refused] = change(desk, operation)
    assert refused.reason is Reason.LAST_COPY, "its disk may come back"

    desk.hear(A, FollowerAdded(5, B))
    assert [] == change(desk, operation, abandon=True)
    assert [Status.RECONFIGURATION] == [record.status for record in desk.saves()]


def test_k14c_a_copy_whose_disk_is_gone_is_not_waited_for(desk: Desk) -> None:
    desk.load(SUSPECTED)
    desk.step(NodeUp(Member("c", "c-disk2"), "boot"))
    desk.step(StartChange(SHARD, 7, Operation.SWAP, "c", "c"))
    assert [Status.RECONFIGURATION] == [record.status for record in desk.saves()]


def test_k14c_the_holdout_that_is_elected_holds_everything_that_others_did_up_to_its_head(desk: Desk) -> None:
    desk.load(replace(STEADY, holdouts=(Holdout(C, 9), Holdout(B, 8), Holdout(A, 11))))
    desk.step(NodeDown("a"))
    desk.stored()
    desk.fenced(b=EntryId(1, 8), c=HEAD)
    epoch, election = desk.record.epoch, desk.record.election
    assert [C] == [to for to, _ in desk.sent(BecomeLeader)]
    desk.hear(C, BecameLeader(epoch, election))
    desk.stored()
    assert (Holdout(A, 11),) == desk.record.holdouts


# --- the act ------------------------------------------------------------------------------------------------


def test_k14d_only_who_holds_more_than_the_leader_is_a_source(desk: Desk) -> None:
    [refused] = recover(desk)
    assert refused.reason is Reason.WRONG_STATE and "has not refused" in refused.message
    desk.load(replace(STEADY, holdouts=(Holdout(C, 9), Holdout(B, 10))))
    [refused] = recover(desk)
    assert refused.reason is Reason.WRONG_STATE and "recover from b" in refused.message
    desk.load(replace(SUSPECTED, copies=2))
    [refused] = recover(desk)
    assert refused.reason is Reason.WRONG_STATE and "only 2 of 3" in refused.message
    desk.load(SUSPECTED)
    desk.step(NodeDown("c"))
    [refused] = recover(desk)
    assert refused.reason is Reason.NODE_UNAVAILABLE
    desk.load(replace(SUSPECTED, status=Status.ELECTION, leader=None, writer="other#1"))
    [refused] = recover(desk)
    assert refused.reason is Reason.RECONFIGURING
    desk.step(RecoverShard(SHARD + 1, 7, "c"))  # type: ignore[arg-type]
    [refused] = desk.replies()
    assert refused.reason is Reason.UNKNOWN_SHARD


def test_k14d_the_source_leads_alone_in_a_new_epoch_once_a_majority_is_fenced(desk: Desk) -> None:
    desk.load(SUSPECTED)
    assert [] == recover(desk)
    desk.stored()
    record = desk.record
    assert (6, Status.ELECTION, C) == (record.epoch, record.status, record.source)
    assert {A, B, C} == {to for to, _ in desk.sent(Fence)}
    assert ShardRecord.decode(record.encode()) == record

    desk.hear(C, Fenced(6, record.election, HEAD))
    desk.fire("grace")
    assert [] == desk.sent(BecomeLeader), "the others could still commit without it"
    desk.hear(B, Fenced(6, record.election, EntryId(5, 99)))
    assert [] == desk.sent(BecomeLeader), "A has a moment to take part"
    desk.fire("grace")
    [(to, message)] = desk.sent(BecomeLeader)
    assert (C, (C,), ()) == (to, message.ensemble, message.followers), "whatever the heads are"

    desk.hear(C, BecameLeader(6, record.election))
    desk.stored()
    [done] = desk.replies()
    assert done == ChangeDone(6, (C,), C)
    after = desk.record
    assert (Status.STEADY, C, (C,), 3, None, ()) == (
        after.status, after.leader, after.ensemble, after.refill, after.source, after.holdouts)
    assert {A, B} == set(after.removed) and [] == desk.sent(DeleteShard), "their copies stay"

    desk.step(StartChange(SHARD, 8, Operation.EXPAND, None, "a"))
    [prepared] = desk.saves()
    assert A not in prepared.removed and 3 == prepared.refill


def test_k14d_the_other_copies_go_once_there_are_two_of_the_sources(desk: Desk) -> None:
    alone = replace(STEADY, ensemble=(C,), leader=C, removed=(A, B), refill=3)
    desk.load(alone)
    assert [] == desk.sent(DeleteShard) and {A, B} <= {to for to, _ in desk.sent(Fence)}
    desk.step(NodeUp(A, "boot2"))
    assert [] == desk.sent(DeleteShard)
    desk.load(replace(alone, ensemble=(C, A), removed=(B,)))
    assert [B] == [to for to, _ in desk.sent(DeleteShard)]


def test_k14d_the_act_goes_on_from_the_record_alone_and_ends_with_the_disk_of_the_source(desk: Desk) -> None:
    desk = Desk(up=(A, B))
    desk.load(replace(SUSPECTED, status=Status.ELECTION, leader=None, source=C, writer="other#1"))
    desk.stored()
    assert C == desk.record.source
    desk.fenced(a=HEAD, b=HEAD)
    desk.fire("grace")
    assert [] == desk.sent(BecomeLeader), "no other may lead: the source may lead already"

    desk.step(NodeUp(Member("c", "c-disk2"), "boot"))
    assert [(Status.ELECTION, None)] == [(record.status, record.source) for record in desk.saves()]


A2, B2, D2 = (Member(each.node, f"{each.node}-disk2") for each in (A, B, D))
ELECTING = replace(STEADY, status=Status.ELECTION, leader=None, writer="other#1")


def lose(desk: Desk, *lost: Member) -> None:
    """Bring nodes back with other disks, while the shard elects."""
    for member in lost:
        desk.step(NodeUp(member, "boot2"))


def accept_loss(desk: Desk, node: str) -> list[Any]:
    desk.step(RecoverShard(SHARD, 7, node, accept_loss=True))
    return desk.replies()


def test_k14e_only_a_survivor_of_a_lost_majority_with_the_longest_log_is_a_source(desk: Desk) -> None:
    [refused] = accept_loss(desk, "c")
    assert (refused.reason, refused.message) == (
        Reason.WRONG_STATE, "a leads the shard: no acknowledged record is lost")
    desk = Desk()
    desk.load(ELECTING)

    def refusal(node: str) -> tuple[Reason, str]:
        [refused] = accept_loss(desk, node)
        return refused.reason, refused.message

    desk.stored()
    lose(desk, A2)
    desk.fenced(c=HEAD)
    assert refusal("c")[0] is Reason.WRONG_STATE and "2 of 3 members have their disks" in refusal("c")[1]
    assert refusal("d")[0] is Reason.NOT_MEMBER
    lose(desk, B2)
    desk.step(RecoverShard(SHARD, 7, "c"))
    [refused] = desk.replies()
    assert refused.message == "the disks of a, b are lost: accept the loss to go on without them"
    assert refusal("b") == (Reason.NODE_UNAVAILABLE, "b has another disk than the member had")
    desk.step(NodeDown("c"))
    assert refusal("c")[0] is Reason.NODE_UNAVAILABLE and "c did not say yet" in refusal("c")[1]


def test_k14e_of_several_survivors_the_one_with_the_longest_log_is_the_source() -> None:
    five = tuple(Member(name, f"{name}-disk") for name in "abcde")
    desk = Desk(up=five)
    desk.load(replace(ELECTING, ensemble=five))
    desk.stored()
    lose(desk, *(Member(name, f"{name}-disk2") for name in "abc"))
    epoch, election = desk.record.epoch, desk.record.election
    desk.hear(five[3], Fenced(epoch, election, EntryId(5, 9)))
    [refused] = accept_loss(desk, "d")
    assert refused.reason is Reason.NODE_UNAVAILABLE and "e did not say yet" in refused.message
    desk.hear(five[4], Fenced(epoch, election, EntryId(5, 12)))
    [refused] = accept_loss(desk, "d")
    assert refused.message == "the log of e ends at offset 12, that of d at 9: recover from e"
    assert [] == accept_loss(desk, "e")
    desk.stored()
    assert (desk.record.ensemble, desk.record.removed, desk.record.refill) == ((five[4],), (five[3],), 5)


def test_k14e_the_survivor_leads_alone_and_is_filled_up_again() -> None:
    desk = Desk()
    desk.load(ELECTING)
    desk.stored()
    epoch = desk.record.epoch
    lose(desk, A2, B2)
    desk.fenced(c=HEAD)
    desk.fire("grace")
    assert [] == desk.sent(BecomeLeader), "without the act nothing moves"
    assert [] == accept_loss(desk, "c")
    desk.stored()
    record = desk.record
    assert (epoch + 1, Status.ELECTION, C, (C,), 3) == (
        record.epoch, record.status, record.source, record.ensemble, record.refill)
    assert ShardRecord.decode(record.encode()) == record
    assert [C] == [to for to, _ in desk.sent(Fence)]
    desk.hear(C, Fenced(record.epoch, record.election, HEAD))
    [(to, message)] = desk.sent(BecomeLeader)
    assert (C, (C,), ()) == (to, message.ensemble, message.followers)
    desk.hear(C, BecameLeader(record.epoch, record.election))
    desk.stored()
    [done] = desk.replies()
    assert done == ChangeDone(record.epoch, (C,), C)
    assert (Status.STEADY, C, 3, None, ()) == (
        desk.record.status, desk.record.leader, desk.record.refill, desk.record.source, desk.record.removed)
    desk.step(StartChange(SHARD, 8, Operation.EXPAND, None, "a"))
    assert [3] == [saved.refill for saved in desk.saves()]


def test_k14e_a_transfer_whose_election_cannot_end_does_not_refuse_the_act(desk: Desk) -> None:
    desk.transferring()
    desk.hear(A, TransferReady(5, C))
    desk.stored()
    desk.fenced(c=HEAD)
    lose(desk, A2, B2)
    assert [] == accept_loss(desk, "c")
    desk.stored()
    desk.hear(C, Fenced(desk.record.epoch, desk.record.election, HEAD))
    desk.hear(C, BecameLeader(desk.record.epoch, desk.record.election))
    desk.stored()
    assert [ChangeDone(desk.record.epoch, (C,), C)] * 2 == desk.replies(), "the transfer, and the act"


def test_k14e_a_change_in_commit_that_no_election_can_complete_ends_with_the_act(desk: Desk) -> None:
    """A swap of c for d: of the four, c and d are left, which are a majority of neither ensemble."""
    desk.committing()
    desk.step(NodeDown("a"))
    desk.stored()
    lose(desk, A2, B2)
    desk.fenced(c=HEAD)
    [refused] = accept_loss(desk, "c")
    assert refused.reason is Reason.NODE_UNAVAILABLE and "d did not say yet" in refused.message
    desk.fenced(d=EntryId(6, 10))
    [refused] = accept_loss(desk, "c")
    assert "recover from d" in refused.message
    assert [Reason.ABORTED] == [refused.reason for refused in accept_loss(desk, "d")], "the swap"
    desk.stored()
    record = desk.record
    assert ((D,), D, None, (C,), 3) == (record.ensemble, record.source, record.change, record.removed, record.refill)


def test_a_record_without_losses_is_stored_as_the_release_before_reads_it() -> None:
    assert not [name for name in (b"holdouts", b"source", b"refill") if name in STEADY.encode()]
    assert ShardRecord.decode(STEADY.encode()) == STEADY
