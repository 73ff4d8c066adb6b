"""What a leader tells writers while it leads: waiting, confirming, asking (rules L14-L22, F6-F20)."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import DiskSpace, Released, Reply, Space, TimerFired
from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import EntryId
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import STRANGER_REFUSED
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.limbo.settings import Rollback
from tidemark_core.replication.clients import AppendRequest, OutcomeRequest
from tidemark_core.replication.leader import NOTICE_TIMER
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    Appended,
    Commit,
    Fate,
    Operation,
    Outcome,
    Prepare,
)
from tidemark_core.replication.outcomes import QUORUM_TIMER, WAITERS_MAX
from tidemark_core.replication.replica import Role

from tests.core.support import (
    AT,
    OPERATOR,
    OTHER_PRODUCER,
    PRODUCER,
    SHARD,
    A,
    B,
    C,
    D,
    Node,
    ack,
    batch,
    everybody_acks,
    fence,
    lead,
    serving,
)

QUORUM, LOCAL, COMMIT = Durability.QUORUM, Durability.LOCAL, Durability.COMMIT


@pytest.fixture
def led(node: Node) -> Node:
    """Node a leads a, b and c; every member is the quorum; EPOCH_START, at 0, is confirmed."""
    serving(node, quorum="N")
    return node


def other(sequence: int, durability: Durability = QUORUM, **options: Any) -> Any:
    return batch(sequence, producer=OTHER_PRODUCER, durability=durability, **options)


def confirmed(base: int, count: int = 1, epoch: int = 1) -> Appended:
    return Appended(epoch, base, count, QUORUM)


def on_disk(base: int, count: int = 1) -> Appended:
    return Appended(1, base, count, LOCAL)


def reason(answer: Any) -> Reason:
    assert isinstance(answer, Refused), answer
    return answer.reason


def replies(effects: list[Any]) -> list[int]:
    return [effect.request for effect in effects if isinstance(effect, Reply)]


def records(node: Node) -> list[tuple[int, str, int]]:
    """Return the decisions in the leader's log: where, what, about which offset."""
    return [
        (entry.base, entry.kind.name, entry.sequence)
        for entry in node.written[SHARD].all() if entry.kind in (Kind.CONFIRM, Kind.ROLLBACK)
    ]


# --- the synchro quorum -------------------------------------------------------------------------------------


def test_f6_l3_an_append_is_answered_when_its_quorum_holds_it_and_readers_get_it_then(led: Node) -> None:
    led.append(1, batch(0, count=3))
    led.complete()
    ack(led, B)
    assert (3, 0) == (led.replica.commit, led.replica.confirmed), "on a majority, and that is not enough here"
    assert (None, 0) == (led.answer(1), led.released[SHARD])

    effects = ack(led, C)

    assert [Released(SHARD, 3), Reply(1, confirmed(1, 3))] == effects[:2]


def test_f11_f15_f16_followers_may_acknowledge_before_the_leader_s_own_disk_which_counts_as_one(led: Node) -> None:
    led.append(1, batch(0))
    ack(led, B)
    ack(led, C)
    assert (1, None) == (led.replica.commit, led.answer(1)), "two of three; the leader's own copy is not durable"

    led.complete()

    assert confirmed(1) == led.answer(1)


def test_l1_f15_a_majority_without_the_leader_s_own_disk_is_a_majority(led: Node) -> None:
    led.configure(quorum="")
    led.append(1, batch(0))
    ack(led, B)
    assert led.answer(1) is None, "what the leader wrote and did not sync is no copy"
    ack(led, C)

    assert confirmed(1) == led.answer(1)
    assert 0 == led.leader.durable


def test_f13_acknowledgements_that_say_nothing_new_change_nothing(led: Node) -> None:
    """Nobody waits, a repeat, an older one, one beyond the head: no answer, no record, no watermark."""
    assert [] == ack(led, B, 0)
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.complete()
    ack(led, B, 1)
    for upto in (1, 0, -1):
        assert [] == replies(ack(led, B, upto))
        assert (1, 0) == (led.replica.commit, led.replica.confirmed)
    assert [1] == replies(ack(led, C, 1))
    assert [] == replies(led.receive(C, AppendAck(1, 99, -1))), "cut to the head, and b holds 1 only"
    assert (2, 1) == (led.replica.commit, led.replica.confirmed)


def test_k4_l1_acknowledgements_of_strangers_and_older_epochs_do_not_count(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    assert [STRANGER_REFUSED] == [each.what for each in led.receive(D, AppendAck(1, 1, -1))]
    assert [] == led.receive(C, AppendAck(0, 1, -1))

    assert (None, 0) == (led.answer(1), led.replica.confirmed)


def test_unknown_settings_ask_for_every_member_until_the_leader_is_told(node: Node) -> None:
    node.settings = None
    lead(node)
    everybody_acks(node)
    node.append(1, batch(0))
    node.complete()
    ack(node, B)
    assert (1, 0, None) == (node.replica.commit, node.replica.confirmed, node.answer(1))
    node.configure(quorum="")

    assert confirmed(1) == node.answer(1), "a majority will do"


def test_f3_a_quorum_that_is_lowered_while_somebody_waits_confirms_at_once(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)

    led.configure(quorum="2")

    assert (confirmed(1), 1) == (led.answer(1), led.replica.confirmed)


def test_f3_a_quorum_that_is_raised_while_somebody_waits_is_waited_for_and_takes_nothing_back(node: Node) -> None:
    serving(node)
    node.append(1, batch(0))
    node.append(2, batch(1))
    node.complete()
    ack(node, B, 1)
    assert confirmed(1) == node.answer(1)
    node.configure(quorum="N")
    ack(node, B, 2)
    assert (1, 2, None) == (node.replica.confirmed, node.replica.commit, node.answer(2))
    ack(node, C, 2)

    assert confirmed(2) == node.answer(2)


def test_acknowledgements_from_enough_zones_are_waited_for(led: Node) -> None:
    zones = (("a", "east"), ("b", "east"), ("c", "west"))
    led.configure(quorum="", zones=2, zone_of=zones)
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    assert (1, None) == (led.replica.commit, led.answer(1))
    ack(led, C)

    assert confirmed(1) == led.answer(1)


# --- LOCAL, COMMIT and the order of answers --------------------------------------------------------------------


def test_f8_l14_with_an_empty_limbo_a_local_append_is_answered_at_the_leader_s_fsync(led: Node) -> None:
    led.append(1, other(0, LOCAL))
    assert led.answer(1) is None
    led.complete()

    assert on_disk(1) == led.answer(1)
    assert (0, 0) == (led.replica.confirmed, led.released[SHARD]), "L14: visible only at confirmed"
    assert [] == records(led)


def test_f7_l14_a_local_append_behind_a_quorum_append_waits_for_it_and_for_nothing_of_its_own(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, other(0, LOCAL))
    led.complete()
    ack(led, B)
    assert [None, None] == [led.answer(1), led.answer(2)]
    ack(led, C, 1)

    assert [confirmed(1), confirmed(2)] == [led.answer(1), led.answer(2)], "2 is on a majority, which is enough for it"
    assert [1, 2] == list(led.replies)


def test_l14_a_local_append_is_not_answered_before_the_epoch_start_is_confirmed(node: Node) -> None:
    lead(node)
    node.append(1, other(0, LOCAL))
    node.complete()
    assert node.answer(1) is None
    ack(node, B, 0)

    assert on_disk(1) == node.answer(1)


def test_l16_commit_waives_the_synchro_quorum_for_itself_only(led: Node) -> None:
    led.append(1, other(0, COMMIT))
    led.complete()
    ack(led, B)
    assert confirmed(1) == led.answer(1), "a majority has it"
    led.append(2, batch(0))
    led.append(3, other(1, COMMIT))
    led.complete()
    ack(led, B)
    assert (3, None) == (led.replica.commit, led.answer(3)), "and an older QUORUM entry is waited for"
    ack(led, C)

    assert [1, 2, 3] == list(led.replies)


def test_f17_l17_answers_leave_oldest_first_whatever_their_level(led: Node) -> None:
    for request, level in enumerate((QUORUM, LOCAL, COMMIT, QUORUM, LOCAL), 1):
        led.append(request, other(request - 1, level))
    led.complete()
    everybody_acks(led)

    assert [1, 2, 3, 4, 5] == list(led.replies)
    assert [confirmed(base) for base in (1, 2, 3, 4, 5)] == [led.answer(request) for request in (1, 2, 3, 4, 5)]


# --- CONFIRM records --------------------------------------------------------------------------------------------


def test_a1_l11_a_confirm_record_follows_the_decision_and_nobody_waits_for_it(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.complete()
    everybody_acks(led)
    assert [confirmed(1), confirmed(2)] == [led.answer(1), led.answer(2)]
    assert [] == records(led)

    led.fire(NOTICE_TIMER)

    assert [(3, "CONFIRM", 2)] == records(led), "one for both"


def test_l11_a_confirm_names_what_is_confirmed_and_not_what_is_merely_committed(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.complete()
    ack(led, B)
    ack(led, C, 1)
    led.fire(NOTICE_TIMER)

    assert (2, 1) == (led.replica.commit, led.replica.confirmed)
    assert [(3, "CONFIRM", 1)] == records(led)


def test_f18_the_acknowledgement_of_a_confirm_record_decides_nothing(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    everybody_acks(led)
    led.fire(NOTICE_TIMER)
    led.complete()
    effects = [*ack(led, B), *ack(led, C)]

    assert [] == replies(effects)
    assert (2, 2) == (led.replica.commit, led.replica.confirmed), "it is an entry like any other"
    led.fire(NOTICE_TIMER)
    assert [(2, "CONFIRM", 1)] == records(led), "and is not confirmed by another record"


def test_l6_l11_no_confirm_is_written_before_the_epoch_start_is_committed(node: Node) -> None:
    lead(node)
    node.append(1, other(0, LOCAL))
    node.complete()
    node.step(TimerFired(AT, NOTICE_TIMER))

    assert [] == records(node)


def test_l11_no_confirm_is_written_on_a_full_disk_and_nothing_depends_on_it(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    everybody_acks(led)
    led.step(DiskSpace(Space.EXHAUSTED))
    led.fire(NOTICE_TIMER)
    assert (confirmed(1), []) == (led.answer(1), records(led))
    led.step(DiskSpace(Space.FREE))
    led.append(2, batch(1))
    led.complete()
    everybody_acks(led)
    led.fire(NOTICE_TIMER)

    assert [(3, "CONFIRM", 2)] == records(led)


@pytest.mark.parametrize("level", [LOCAL, COMMIT, QUORUM])
def test_issue_6057_an_append_that_arrives_while_a_confirm_is_written_waits_for_its_own_outcome(
    led: Node, level: Durability
) -> None:
    """Tarantool #6057: an asynchronous transaction in that moment was completed, or lost, with the wrong entries."""
    led.append(1, batch(0))
    led.complete()
    everybody_acks(led)
    led.step(TimerFired(AT, NOTICE_TIMER), AppendRequest(SHARD, 2, other(0, level)))
    assert [(2, "CONFIRM", 1)] == records(led)
    assert (None, 1) == (led.answer(2), led.replica.confirmed)
    led.complete()
    assert {LOCAL: on_disk(3)}.get(level) == led.answer(2)
    ack(led, B)
    assert (level is QUORUM) == (led.answer(2) is None)
    ack(led, C)

    assert led.answer(2).base == 3 and led.replica.confirmed == 3


# --- time -------------------------------------------------------------------------------------------------------


def test_f20_the_wait_is_counted_from_its_start_and_ends_as_unknown(led: Node) -> None:
    led.now_ms = 1_000
    led.append(1, batch(0))
    assert 6_000 == led.timers[SHARD, QUORUM_TIMER]
    led.now_ms = 5_999
    led.fire(QUORUM_TIMER)
    assert (None, 6_000) == (led.answer(1), led.timers[SHARD, QUORUM_TIMER])
    led.time_out()

    answer = led.answer(1)
    assert Reason.QUORUM_TIMEOUT is reason(answer)
    assert "5000 ms" in answer.message and "unknown" in answer.message
    assert 1 == led.traces["quorum_timeout"]


def test_f20_the_timeout_is_the_group_s_and_a_wait_that_began_keeps_its_deadline(led: Node) -> None:
    led.append(1, batch(0))
    led.configure(timeout_ms=300)
    led.now_ms = 100
    led.append(2, batch(1))
    assert 400 == led.timers[SHARD, QUORUM_TIMER], "the later wait ends earlier"
    led.time_out()
    assert (None, Reason.QUORUM_TIMEOUT) == (led.answer(1), reason(led.answer(2)))

    assert 5_000 == led.timers[SHARD, QUORUM_TIMER]
    assert [] == records(led), "F21: and decides nothing, being newer"


def test_f25_an_entry_whose_caller_was_told_unknown_is_decided_all_the_same(led: Node) -> None:
    """Waiting cannot be taken back: what became of the entry is asked for later."""
    led.append(1, other(0, COMMIT))
    led.complete()
    led.time_out()
    assert Reason.QUORUM_TIMEOUT is reason(led.answer(1))
    assert [] == records(led), "L7: only a QUORUM entry is rolled back"
    everybody_acks(led)

    assert Outcome(Fate.CONFIRMED, 1, 1, 1) == led.outcome(2, 0, producer=OTHER_PRODUCER)
    assert 1 == led.replica.confirmed


def test_a_quiet_limbo_has_no_timer_left(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    everybody_acks(led)
    led.time_out()

    assert (SHARD, QUORUM_TIMER) not in led.timers
    assert 0 == led.traces["quorum_timeout"]


# --- repeats and questions ----------------------------------------------------------------------------------------


def test_l19_a_repeat_of_a_pending_batch_waits_for_its_fate_and_is_not_appended_again(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, batch(0))
    led.complete()
    assert 2 == len(led.stored())
    everybody_acks(led)

    assert confirmed(1) == led.answer(1) == led.answer(2)


def test_l19_a_repeat_waits_its_own_time_and_is_unknown_then(led: Node) -> None:
    led.configure(quorum="", timeout_ms=1_000)
    led.append(1, other(0, COMMIT))
    led.now_ms = 600
    led.append(2, other(0, COMMIT))
    led.time_out()
    assert (Reason.QUORUM_TIMEOUT, None) == (reason(led.answer(1)), led.answer(2))
    assert 1_600 == led.timers[SHARD, QUORUM_TIMER]
    led.time_out()

    assert Reason.QUORUM_TIMEOUT is reason(led.answer(2))


def test_l19_a_repeat_of_a_local_batch_that_was_acknowledged_is_acknowledged_again(led: Node) -> None:
    led.append(1, other(0, LOCAL))
    led.complete()

    assert on_disk(1) == led.append(2, other(0, LOCAL))
    everybody_acks(led)
    assert confirmed(1) == led.append(3, other(0, LOCAL))


def test_l19_no_more_callers_than_a_bound_wait_for_one_batch(led: Node) -> None:
    for request in range(WAITERS_MAX):
        led.append(request, batch(0))
    refused = led.append(WAITERS_MAX, batch(0))
    asked = led.outcome(WAITERS_MAX + 1, 0, wait=True)

    assert Reason.OVERLOADED is reason(refused) is reason(asked)
    assert refused.retry_after_ms > 0
    everybody_acks(led)
    led.complete()
    assert WAITERS_MAX == sum(led.answer(request) == confirmed(1) for request in range(WAITERS_MAX))


def test_l20_what_is_not_in_the_log_is_not_found_and_that_is_no_verdict(led: Node) -> None:
    assert Outcome(Fate.NOT_FOUND, 1, -1, 0) == led.outcome(1, 0)
    assert Outcome(Fate.NOT_FOUND, 1, -1, 0) == led.outcome(2, 7, wait=True), "and not waited for"
    led.append(3, batch(0))

    assert Outcome(Fate.UNKNOWN, 1, 1, 1) == led.outcome(4, 0), "the repeat was taken"


def test_l19_a_sequence_whose_place_is_forgotten_is_too_old_to_be_told(led: Node) -> None:
    for sequence in range(6):
        led.append(sequence, batch(sequence))
    refused = led.outcome(9, 0)

    assert (Reason.SEQUENCE_TOO_OLD, 6) == (reason(refused), refused.expected)
    assert Fate.UNKNOWN is led.outcome(10, 1).fate


def test_an_outcome_is_told_when_it_is_known_or_as_unknown_at_the_end_of_the_wait(led: Node) -> None:
    led.append(1, batch(0, count=2))
    led.complete()
    assert led.outcome(2, 0, wait=True) is None
    ack(led, B)
    ack(led, C)
    assert Outcome(Fate.CONFIRMED, 1, 1, 2) == led.answer(2) == led.outcome(3, 0) == led.outcome(4, 0, wait=True)
    led.append(5, other(0, COMMIT))
    led.now_ms = 100
    led.outcome(6, 0, producer=OTHER_PRODUCER, wait=True)
    led.now_ms = 5_100
    led.fire(QUORUM_TIMER)

    assert Outcome(Fate.UNKNOWN, 1, 3, 1) == led.answer(6)
    assert Outcome(Fate.UNKNOWN, 1, 3, 1) == led.outcome(7, 0, producer=OTHER_PRODUCER)


def test_l14_the_outcome_of_a_local_batch_is_waited_for_past_its_acknowledgement(led: Node) -> None:
    """LOCAL is a promise of one disk, not an outcome; who asks before or after it is told CONFIRMED."""
    led.append(1, other(0, LOCAL))
    assert led.outcome(2, 0, producer=OTHER_PRODUCER, wait=True) is None
    led.complete()
    assert on_disk(1) == led.answer(1)
    assert led.outcome(3, 0, producer=OTHER_PRODUCER, wait=True) is None
    assert Outcome(Fate.UNKNOWN, 1, 1, 1) == led.outcome(4, 0, producer=OTHER_PRODUCER)
    ack(led, B)

    assert Outcome(Fate.CONFIRMED, 1, 1, 1) == led.answer(2) == led.answer(3)


def test_an_outcome_is_asked_of_the_leader(make_node: Any) -> None:
    follower = make_node(B)
    follower.step(OutcomeRequest(SHARD, 1, PRODUCER, 0, False))
    assert Reason.UNKNOWN_SHARD is reason(follower.answer(1))
    fence(follower, 3)

    refused = follower.outcome(2, 0)
    assert (Reason.NOT_LEADER, 3) == (reason(refused), refused.epoch)


def test_issue_7253_l17_every_caller_is_told_when_the_leadership_ends(led: Node) -> None:
    """Tarantool #7253: callers hung when the term changed.  Whoever waits for anything is told to ask elsewhere."""
    led.append(1, batch(0))
    led.append(2, other(0, LOCAL))
    led.outcome(3, 0, wait=True)
    led.time_out()
    led.append(4, batch(0))
    led.outcome(5, 0, producer=OTHER_PRODUCER, wait=True)

    fence(led, 2)

    assert [Reason.NOT_LEADER] * 2 == [reason(led.answer(request)) for request in (4, 5)]
    assert all(led.replies[request] for request in (1, 2, 3, 4, 5))
    assert {} == led.timers


# --- while the ensemble changes -------------------------------------------------------------------------------------


def prepare(node: Node, operation: Operation, old: Any = None, new: Any = None) -> None:
    node.receive(OPERATOR, Prepare(2, 20, operation, old, new))
    node.complete()


def test_l4_the_noop_of_a_reconfiguration_confirms_nothing_and_the_limbo_goes_on_across_it(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    assert 1 == led.replica.commit
    prepare(led, Operation.SWAP, C, D)
    ack(led, B)
    assert (2, 0, None) == (led.replica.commit, led.replica.confirmed, led.answer(1)), "the NOOP is committed"
    ack(led, C)
    assert led.answer(1) is None, "K12: the leaver's acknowledgements stopped counting at PREPARE"
    led.receive(OPERATOR, Commit(2, 20, Operation.SWAP, (A, B, D), C, D, EntryId(2, 2)))
    led.complete()
    assert led.answer(1) is None
    ack(led, D)

    assert confirmed(1) == led.answer(1), "its synchro quorum is asked of the ensemble in force: a, b and d"
    assert 0 == led.leader.outcomes.limbo.opening, "a reconfiguration opens no limbo"


def test_l3_f3_a_contraction_may_confirm_what_waits_and_takes_nothing_back(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    prepare(led, Operation.CONTRACT, C)
    ack(led, B)
    assert (2, None) == (led.replica.commit, led.answer(1))
    led.receive(OPERATOR, Commit(2, 20, Operation.CONTRACT, (A, B), C, None, EntryId(0, -1)))

    assert (confirmed(1), 2) == (led.answer(1), led.replica.confirmed)


def test_f3_an_expansion_raises_the_quorum_of_what_waits(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    prepare(led, Operation.EXPAND, None, D)
    led.receive(OPERATOR, Commit(2, 20, Operation.EXPAND, (A, B, C, D), None, D, EntryId(2, 2)))
    led.complete()
    ack(led, B)
    ack(led, C)
    assert (2, None) == (led.replica.commit, led.answer(1)), "three of four, all of them are asked for"
    ack(led, D)

    assert confirmed(1) == led.answer(1)


# --- what followers are told ------------------------------------------------------------------------------------


def pushed(node: Node, to: Any) -> list[tuple[int, int, int]]:
    """Return through, commit and confirmed of what was sent to one follower."""
    sent = [send.message for send in node.sent if send.to == to and isinstance(send.message, Append)]
    node.sent.clear()
    return [(message.through, message.commit, message.confirmed) for message in sent]


def test_l9_followers_are_told_commit_and_confirmed_apart(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.sent.clear()
    led.append(2, batch(1))
    assert [(2, 1, 0)] == pushed(led, B)
    everybody_acks(led, 1)
    led.append(3, batch(2))

    assert [(3, 1, 1)] == pushed(led, B)


def test_l9_a_watermark_sent_to_a_lagging_follower_is_lowered_in_front_of_a_rollback(node: Node) -> None:
    """c holds up to the middle of a range whose rollback is confirmed: it is told what lies in front of it."""
    serving(node, quorum="N")
    node.append(1, batch(0, count=2))
    node.append(2, batch(1, count=2))
    node.complete()
    ack(node, B)
    ack(node, C, 2)
    node.time_out()
    node.complete()
    ack(node, B)
    assert (5, [(3, 4)]) == (node.replica.confirmed, node.holes()), "1-2 confirmed, 3-4 rolled back at 5"
    assert confirmed(1, 2) == node.answer(1)

    for held, expected in ((4, (4, 4, 2)), (2, (2, 2, 2)), (5, (5, 5, 5))):
        cursor = node.leader.cursors[C]
        cursor.next = held + 1
        [heartbeat] = [node.leader._heartbeat(cursor)]
        message = heartbeat.message   # type: ignore[union-attr]
        assert expected == (message.through, message.commit, message.confirmed)


# --- local failures and bounds ----------------------------------------------------------------------------------


def test_f9_f4_an_entry_is_in_the_limbo_before_it_is_written_in_the_order_of_age(led: Node) -> None:
    led.append(1, batch(0))
    led.now_ms = 10
    led.append(2, other(0, LOCAL))

    view = led.limbo()
    assert [(1, 0), (2, 0)] == [(entry.base, len(entry.acked)) for entry in view.entries]
    assert [10, 0] == [entry.age_ms for entry in view.entries]
    assert 1 == len(led.stored())


def test_f10_an_append_whose_own_write_was_lost_is_in_nobody_s_log(led: Node) -> None:
    """The leader stopped before the write was durable, and nobody else had it: the next leader does not find it."""
    led.append(1, batch(0))
    led.restart()
    assert Role.DEPOSED is led.replica.state.role
    lead(led, 2)

    assert Outcome(Fate.NOT_FOUND, 2, -1, 0) == led.outcome(2, 0)
    assert led.append(3, batch(0)) is None, "the same sequence is taken"


def test_f10_an_append_on_a_full_disk_is_refused_and_never_enters(led: Node) -> None:
    led.step(DiskSpace(Space.EXHAUSTED))

    assert Reason.DISK_FULL is reason(led.append(1, batch(0)))
    assert (0, EntryId(1, 0)) == (led.limbo().length, led.replica.log.head)


def test_the_limbo_is_bounded_by_count(make_node: Any) -> None:
    node = make_node(A, Limits(pending_entries_max=3))
    serving(node, quorum="N")
    for sequence in range(3):
        node.append(sequence, batch(sequence))
    refused = node.append(3, batch(3))
    assert Reason.OVERLOADED is reason(refused)
    assert refused.retry_after_ms > 0 and "3 batches" in refused.message
    node.complete()
    ack(node, B)
    assert Reason.OVERLOADED is reason(node.append(4, batch(3))), "committed is not confirmed: it still waits"
    ack(node, C, 1)

    assert node.append(5, batch(3)) is None


def test_the_limbo_is_bounded_by_bytes(make_node: Any) -> None:
    node = make_node(A, Limits(pending_bytes_max=5_000))
    serving(node, quorum="N")
    node.append(1, batch(0, payload=bytes(3_000)))
    assert Reason.OVERLOADED is reason(node.append(2, batch(1, payload=bytes(3_000))))
    node.complete()
    ack(node, B)
    assert Reason.OVERLOADED is reason(node.append(3, batch(1, payload=bytes(3_000))))
    assert node.append(4, batch(1, payload=bytes(1_000))) is None
    everybody_acks(node)

    assert node.append(5, batch(2, payload=bytes(3_000))) is None


def test_the_limbo_is_bounded_by_what_is_written_and_not_committed_too(make_node: Any) -> None:
    """LOCAL entries are answered at once: without a bound on what nobody else has, the log would grow alone."""
    node = make_node(A, Limits(pending_entries_max=3))
    serving(node)
    for sequence in range(3):
        node.append(sequence, other(sequence, LOCAL))
        node.complete()
    assert [on_disk(base) for base in (1, 2, 3)] == [node.answer(sequence) for sequence in range(3)]

    assert Reason.OVERLOADED is reason(node.append(9, other(3, LOCAL)))


# --- what a person sees ------------------------------------------------------------------------------------------


def test_f4_f5_the_view_says_who_waits_for_whom(led: Node) -> None:
    led.append(1, batch(0, count=2, payload=bytes(100)))
    led.append(2, batch(0, count=2, payload=bytes(100)))
    led.complete()
    led.now_ms = 250
    led.append(3, other(0, COMMIT))
    ack(led, B, 2)
    view = led.limbo()

    assert (1, 3, 2, 0, ("a", "b", "c"), 3, 0) == (
        view.epoch, view.head, view.commit, view.confirmed, view.members, view.quorum, view.zones
    )
    assert (2, 250, 0, 0, -1, 5_000) == (
        view.length, view.oldest_age_ms, view.rollbacks_total, view.timeouts_total, view.rollback_pending_from,
        view.timeout_ms,
    )
    first, second = view.entries
    stored = led.written[SHARD].all()
    assert (first.bytes, second.bytes) == (stored[1].size, stored[2].size)
    assert view.bytes == first.bytes + second.bytes
    assert (1, 2, QUORUM, 250, "WAITING", 2, ("a", "b"), ("c",), PRODUCER, 0) == (
        first.base, first.count, first.durability, first.age_ms, first.state, first.waiters, first.acked,
        first.missing, first.producer, first.sequence,
    )
    assert (COMMIT, 0, "WAITING", (), ("a", "b", "c")) == (
        second.durability, second.age_ms, second.state, second.acked, second.missing
    )


def test_the_view_of_local_and_rolled_back_entries(led: Node) -> None:
    led.append(1, other(0, LOCAL))
    led.complete()
    led.append(2, batch(0))
    led.time_out()
    view = led.limbo()

    assert ["LOCAL", "ROLLING_BACK"] == [entry.state for entry in view.entries]
    assert (2, 2, 1) == (view.length, view.rollback_pending_from, view.timeouts_total)
    led.complete()
    ack(led, B)
    view = led.limbo()
    assert (0, 0, -1, 1, 0) == (
        view.length, view.bytes, view.rollback_pending_from, view.rollbacks_total, view.oldest_age_ms
    )


def test_the_view_shows_no_more_entries_than_were_asked_for(led: Node) -> None:
    for sequence in range(5):
        led.append(sequence, batch(sequence))
    view = led.limbo(2)

    assert (5, [1, 2]) == (view.length, [entry.base for entry in view.entries])
    assert () == led.limbo(0).entries


def test_the_view_shows_the_quorum_and_the_zones_in_force(led: Node) -> None:
    led.configure(quorum="N-1", zones=2, timeout_ms=70, rollback=Rollback.IMMEDIATE)

    view = led.limbo()
    assert (2, 2, 70) == (view.quorum, view.zones, view.timeout_ms)


def test_f2_only_the_leader_has_a_limbo(node: Node) -> None:
    assert node.core is not None
    assert node.core.log.limbo(SHARD, 0, 9) is None
    fence(node, 1)
    assert node.core.log.limbo(SHARD, 0, 9) is None
    serving(node, epoch=2)
    assert node.core.log.limbo(SHARD, 0, 9) is not None


def test_holes_are_told_only_as_far_as_this_node_has_confirmed(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    assert led.core is not None
    assert (None, []) == (led.core.log.holes(SHARD, 0, 1), led.core.log.holes(SHARD, 0, 0))
    led.time_out()
    led.complete()
    ack(led, B)

    assert ([(1, 1)], None) == (led.core.log.holes(SHARD, 0, 2), led.core.log.holes(SHARD, 0, 3))
    assert led.core.log.holes(SHARD, 2, 2) == []


def kinds(entries: list[Entry]) -> list[Kind]:
    return [entry.kind for entry in entries]


def test_f1_decisions_are_entries_of_the_log_that_take_one_offset_and_carry_no_payload(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    everybody_acks(led)
    led.fire(NOTICE_TIMER)
    led.append(2, batch(1))
    led.time_out()
    led.complete()

    stored = led.stored()
    assert [Kind.EPOCH_START, Kind.DATA, Kind.CONFIRM, Kind.DATA, Kind.ROLLBACK] == kinds(stored)
    assert [(1, 0, 1), (1, 0, 3)] == [(e.count, e.payload_bytes, e.sequence) for e in (stored[2], stored[4])]
