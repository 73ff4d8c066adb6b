"""What seeds of the simulator taught about the limbo, each story told once more in the small."""

from __future__ import annotations

from collections.abc import Callable

from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import EntryId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.limbo.decisions import Range
from tidemark_core.limbo.waiting import Item, Limbo, Verdict, Waiter
from tidemark_core.replication.leader import NOTICE_TIMER, TRANSFER_TIMER
from tidemark_core.replication.messages import Append, Appended, Commit, Operation, Prepare, PrepareTransfer

from tests.core.support import OPERATOR, SHARD, A, B, C, D, Node, ack, batch, serving

MakeNode = Callable[..., Node]


def test_l17_callers_of_an_inherited_rollback_are_answered_newest_first() -> None:
    """A new leader holds an older one's ROLLBACK and its writers ask again: its EPOCH_START decides for all of them."""
    limbo = Limbo(8, 0)
    covered = Range(2, 6)
    for base, found in ((1, None), (4, covered), (2, covered), (3, covered), (7, None)):
        item = Item(base, base, 1, 1, Durability.QUORUM, 0, 0, 100, b"p", base, covered=found)
        limbo.inherit(item)
        limbo.wait(item, Waiter(base, 100))

    answers = limbo.advance(8, 8, 8)

    assert [
        (1, Verdict.CONFIRMED), (4, Verdict.ROLLED_BACK), (3, Verdict.ROLLED_BACK), (2, Verdict.ROLLED_BACK),
        (7, Verdict.CONFIRMED),
    ] == [(answer.item.base, answer.verdict) for answer in answers]


def test_l3_what_an_old_majority_holds_is_confirmed_when_a_majority_of_the_grown_ensemble_holds_it(
    make_node: MakeNode,
) -> None:
    """Everybody was asked for, the ensemble grew, then a majority was asked for: two of four is none."""
    led = make_node(A)
    serving(led, quorum="N")
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.receive(OPERATOR, Prepare(2, 20, Operation.EXPAND, None, D))
    led.complete()
    ack(led, B)
    led.receive(OPERATOR, Commit(2, 20, Operation.EXPAND, (A, B, C, D), None, D, EntryId(1, 0)))
    led.complete()
    assert (2, 0) == (led.replica.commit, led.replica.confirmed)

    led.configure(quorum="")
    assert 0 == led.replica.confirmed
    ack(led, C)

    assert 2 == led.replica.confirmed
    assert Appended(1, 1, 1, Durability.QUORUM) == led.answer(1)


def test_l19_a_leader_that_cannot_know_calls_no_batch_invalid(make_node: MakeNode) -> None:
    """Cut off, it holds what was sent under a sequence before a rollback elsewhere gave that to another batch."""
    led = make_node(A)
    serving(led)
    led.append(1, batch(0, count=2))
    told = "sequence 0 holds 2 records, this retry has 1"

    assert Refused(Reason.QUORUM_TIMEOUT, told, 1) == led.append(2, batch(0))
    led.complete()
    ack(led, B)
    assert Refused(Reason.INVALID_BATCH, told, 1) == led.append(3, batch(0))


def test_l11_a_confirm_that_a_transfer_held_up_is_written_when_the_transfer_is_given_up(make_node: MakeNode) -> None:
    """Confirmed rose behind commit just then: without a CONFIRM no follower would hear of it until the next append."""
    led = make_node(A)
    serving(led, quorum="N")
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.fire(NOTICE_TIMER)
    ack(led, B, commit=1)
    led.receive(OPERATOR, PrepareTransfer(1, 10, C))
    ack(led, C, commit=1)
    assert (1, 1) == (led.replica.commit, led.replica.confirmed)
    led.take_sent()

    led.fire(NOTICE_TIMER)
    assert 1 == led.leader.head, "appends are refused, and so is the record"
    led.fire(TRANSFER_TIMER)
    assert (SHARD, NOTICE_TIMER) in led.timers, "but it is owed"
    led.fire(NOTICE_TIMER)

    assert 2 == led.leader.head
    pushed = led.take_sent(Append)
    assert {(Kind.CONFIRM, 1)} == {(entry.kind, entry.sequence) for sent in pushed for entry in sent.entries}
    assert {1} == {sent.confirmed for sent in pushed}
    led.complete()
    ack(led, B)
    led.fire(NOTICE_TIMER)
    assert 2 == led.leader.head, "and no more than once"
    assert (SHARD, NOTICE_TIMER) not in led.timers
