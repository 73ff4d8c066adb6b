"""Full disks: who may still append, what members with full disks hear, and how writing resumes (K20, K20b, K21)."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import DiskSpace, PeerDown, PeerUp, Space
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import EntryId, Member
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.leader import RESEND_TIMER
from tidemark_core.replication.messages import Append, AppendAck, AppendRefused

from tests.core.support import A, Author, B, C, D, E, Node, ack, append_of, batch, fence, serving

LEADER = Member("l", "l-disk")
LOCAL, COMMIT, QUORUM = Durability.LOCAL, Durability.COMMIT, Durability.QUORUM


@pytest.fixture
def led(make_node: Any) -> Node:
    node: Node = make_node(A)
    serving(node)
    node.take_sent()
    return node


def says(node: Node, sender: Member, space: Space, upto: int | None = None) -> None:
    """Hand the leader an acknowledgement that says how much space its sender has."""
    upto = node.leader.head if upto is None else upto
    node.receive(sender, AppendAck(node.leader.epoch, upto, -1, node.now_ms, space))


def sent_to(node: Node, to: Member) -> list[Append]:
    taken = [send for send in node.sent if isinstance(send.message, Append) and send.to == to]
    node.sent = [send for send in node.sent if send not in taken]
    return [send.message for send in taken]


def refusal(answer: Any) -> Reason | None:
    return answer.reason if isinstance(answer, Refused) else None


# --- what a leader takes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", [LOCAL, COMMIT, QUORUM])
@pytest.mark.parametrize("space", [Space.FULL, Space.EXHAUSTED])
def test_k20_a_leader_refuses_by_name_while_fewer_than_a_majority_has_space(
    led: Node, durability: Durability, space: Space
) -> None:
    head = led.leader.head
    says(led, B, space)
    assert led.append(1, batch(0, durability=durability)) is None, "two of three can store it"
    says(led, C, space)

    refused = led.append(2, batch(1, durability=durability))
    assert (Reason.DISK_FULL, 1000) == (refused.reason, refused.retry_after_ms)
    assert "b, c" in refused.message and "3 members" in refused.message
    assert head + 1 == led.leader.head, "nothing is appended"
    says(led, B, Space.FREE)
    assert led.append(3, batch(1, durability=durability)) is None


def test_k20_a_synchro_quorum_that_full_disks_break_refuses_quorum_appends_alone(make_node: Any) -> None:
    node = make_node(A)
    serving(node, quorum="N")
    says(node, C, Space.FULL)

    assert Reason.DISK_FULL is refusal(node.append(1, batch(0, durability=QUORUM)))
    assert node.append(2, batch(0, durability=COMMIT)) is None


def test_k20_a_member_that_is_down_does_not_store_either_and_alone_refuses_nothing(led: Node) -> None:
    led.step(PeerDown(B))
    assert led.append(1, batch(0)) is None, "the link may be back in a moment"
    says(led, C, Space.FULL)
    assert Reason.DISK_FULL is refusal(led.append(2, batch(1)))
    led.step(PeerUp(B))
    assert led.append(3, batch(1)) is None


def test_k20_a_batch_that_is_in_the_log_is_answered_with_its_fate_on_full_disks(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    for member in (B, C):
        says(led, member, Space.FULL)

    assert 1 == led.append(2, batch(0)).base, "taken and confirmed before"
    assert 1 == led.answer(1).base, "a member that is full says so with the acknowledgement that confirms"


def test_k20_a_refusal_for_want_of_space_counts_as_the_members_word(led: Node) -> None:
    led.append(1, batch(0))
    for member in (B, C):
        led.receive(member, AppendRefused(1, 1, EntryId(1, 0), Reason.DISK_FULL))

    assert Reason.DISK_FULL is refusal(led.append(2, batch(1)))


def test_k20_k20b_a_leader_on_a_full_disk_reads_rolls_back_and_moves_positions(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    led.step(DiskSpace(Space.FULL))
    assert Reason.DISK_FULL is refusal(led.append(2, batch(1)))
    assert led.read_grant(3).released == 0, "reads go on"
    assert led.commit(4, "one", 0, 60_000) is None, "it waits for its quorum, it is not refused"
    led.time_out()
    led.complete()
    kinds = [entry.kind for entry in led.stored()]
    assert Kind.ROLLBACK in kinds and Kind.POSITION in kinds


# --- what members with full disks get ----------------------------------------------------------------------


def test_k20b_a_full_member_gets_no_entries_while_the_others_decide_and_gets_them_when_they_do_not(
    led: Node
) -> None:
    says(led, C, Space.FULL)
    led.append(1, batch(0))
    assert [] == sent_to(led, C)
    assert 1 == len(sent_to(led, B))
    says(led, B, Space.FULL, 0)
    led.fire(RESEND_TIMER)

    assert [1] == [push.entries[-1].last for push in sent_to(led, C) if push.entries], "it stores what is appended"


def test_k20b_an_exhausted_member_gets_no_entries_whatever_the_others_have(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    led.take_sent()
    for member in (B, C):
        led.receive(member, AppendRefused(1, 1, EntryId(1, 0), Reason.DISK_FULL))
    led.fire(RESEND_TIMER)

    for member in (B, C):
        assert [()] == [push.entries for push in sent_to(led, member)], "a heartbeat asks whether there is space"
        says(led, member, Space.FREE, 0)
        assert [1] == [push.entries[-1].last for push in sent_to(led, member)]


def test_k20_five_members_bear_two_full_disks(make_node: Any) -> None:
    node = make_node(A)
    serving(node, ensemble=(A, B, C, D, E))
    for member in (B, C):
        says(node, member, Space.EXHAUSTED)
    assert node.append(1, batch(0)) is None
    says(node, D, Space.FULL)
    assert Reason.DISK_FULL is refusal(node.append(2, batch(1)))


def test_k21_a_member_that_is_full_is_asked_for_ever_and_hears_of_a_trim_without_entries(
    led: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tidemark_core.replication import log as core_log

    monkeypatch.setattr(core_log, "MARK_ENTRIES", 1)
    for sequence in range(4):
        led.append(sequence, batch(sequence))
        led.complete()
    ack(led, B)
    says(led, C, Space.EXHAUSTED, 3)
    assert 3 < led.trim(9, 1 << 40), "as far as the full member has acknowledged"
    led.take_sent()
    for _ in range(2):
        led.fire(RESEND_TIMER)
        heard = sent_to(led, C)
        assert [((), led.replica.log.first, EntryId(1, 3))] == [(m.entries, m.trim, m.prev) for m in heard]
        says(led, C, Space.EXHAUSTED, 3)


# --- a follower ----------------------------------------------------------------------------------------------


def test_k20b_k21_a_full_follower_says_so_stores_what_comes_and_trims(make_node: Any) -> None:
    follower: Node = make_node(B)
    author = Author(1, (LEADER, B, C))
    fence(follower, 1)
    follower.complete()
    follower.take_sent()
    author.opening()
    for _ in range(3):
        author.data()
    follower.step(DiskSpace(Space.FULL))
    follower.receive(LEADER, append_of(author.entries, 1))
    follower.complete()
    last = author.entries[-1].id
    assert [AppendAck(1, last.offset, -1, space=Space.FULL)] == follower.take_sent()

    follower.step(DiskSpace(Space.EXHAUSTED))
    author.data()
    follower.receive(LEADER, append_of(author.entries[-1:], 1))
    follower.receive(LEADER, append_of([], 1, commit=last.offset, confirmed=last.offset, prev=last, trim=2))
    follower.complete()
    assert [
        AppendRefused(1, 1, last, Reason.DISK_FULL), AppendAck(1, last.offset, last.offset, space=Space.EXHAUSTED)
    ] == follower.take_sent()
    assert 2 == follower.replica.log.first
