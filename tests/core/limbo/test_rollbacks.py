"""A leader takes back what its quorum did not confirm in time (rules L7, L8, L17, L19, L22, F21-F27)."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.effects import DiskSpace, Received, Released, Space, TimerFired
from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import EntryId
from tidemark_core.base.limits import Limits
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.limbo.settings import Rollback
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.leader import NOTICE_TIMER, TRANSFER_TIMER
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    Appended,
    Commit,
    Fate,
    Operation,
    Outcome,
    Prepare,
    PrepareTransfer,
    TransferReady,
)
from tidemark_core.replication.outcomes import QUORUM_TIMER

from tests.core.support import (
    AT,
    OPERATOR,
    OTHER_PRODUCER,
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
LEVELS = [QUORUM, LOCAL, COMMIT]


@pytest.fixture
def led(node: Node) -> Node:
    """Node a leads a, b and c; every member is the quorum; EPOCH_START, at 0, is confirmed; c is silent from now."""
    serving(node, quorum="N")
    return node


def other(sequence: int, durability: Durability = QUORUM) -> Any:
    return batch(sequence, producer=OTHER_PRODUCER, durability=durability)


def confirmed(base: int) -> Appended:
    return Appended(1, base, 1, QUORUM)


def reason(answer: Any) -> Reason:
    assert isinstance(answer, Refused), answer
    return answer.reason


def records(node: Node) -> list[tuple[int, str, int]]:
    """Return the decisions in the leader's log: where, what, about which offset."""
    return [
        (entry.base, entry.kind.name, entry.sequence)
        for entry in node.written[SHARD].all() if entry.kind in (Kind.CONFIRM, Kind.ROLLBACK)
    ]


def rolled_back(node: Node, request: int) -> int:
    """Return the offset of the rollback record that a caller was told of."""
    answer = node.answer(request)
    assert Reason.ROLLED_BACK is reason(answer)
    return answer.expected  # type: ignore[no-any-return]


# --- at the deadline ----------------------------------------------------------------------------------------


def test_f23_f24_l8_at_the_deadline_a_rollback_is_written_and_the_outcome_is_unknown(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    led.time_out()

    assert Reason.QUORUM_TIMEOUT is reason(led.answer(1))
    assert [(2, "ROLLBACK", 1)] == records(led)
    assert (0, [], 0) == (led.replica.confirmed, led.holes(), led.traces["rolled_back"])
    assert 1 == led.traces["rollback_appended"]
    assert Outcome(Fate.UNKNOWN, 1, 1, 1) == led.outcome(2, 0)


def test_l8_rolled_back_is_told_once_the_record_is_committed_and_not_before(led: Node) -> None:
    led.append(1, batch(0))
    led.outcome(2, 0, wait=True)
    led.now_ms = 2_000
    led.append(3, batch(0))
    led.now_ms = 5_000
    led.fire(QUORUM_TIMER)
    led.outcome(4, 0, wait=True)
    led.complete()
    assert [Reason.QUORUM_TIMEOUT, None, None] == [
        reason(led.answer(1)), led.answer(3), led.answer(4)
    ], "durable on the leader alone"
    effects = ack(led, B)

    assert Released(SHARD, 2) in effects
    assert 2 == rolled_back(led, 3)
    assert Outcome(Fate.ROLLED_BACK, 1, 1, 1, 2) == led.answer(4) == led.outcome(5, 0)
    assert ([(1, 1)], 2) == (led.holes(), led.replica.confirmed)
    assert Outcome(Fate.UNKNOWN, 1, 1, 1) == led.answer(2)
    assert 1 == led.traces["rolled_back"]


def test_f21_only_the_oldest_entry_s_timeout_decides_and_the_newer_ones_go_with_it(led: Node) -> None:
    led.append(1, batch(0))
    led.now_ms = 100
    led.append(2, batch(1))
    led.complete()
    led.time_out()
    assert (Reason.QUORUM_TIMEOUT, None) == (reason(led.answer(1)), led.answer(2))
    assert [(3, "ROLLBACK", 1)] == records(led)
    led.complete()
    ack(led, B)

    assert (3, 2) == (rolled_back(led, 2), led.limbo().rollbacks_total)


def test_f21_the_timeout_of_a_newer_entry_decides_nothing(led: Node) -> None:
    led.append(1, batch(0))
    led.configure(timeout_ms=100)
    led.append(2, batch(1))
    led.complete()
    led.time_out()
    assert (None, Reason.QUORUM_TIMEOUT) == (led.answer(1), reason(led.answer(2)))
    assert [] == records(led)
    everybody_acks(led)

    assert (confirmed(1), 2) == (led.answer(1), led.replica.confirmed)


def test_f22_what_is_confirmed_is_never_rolled_back_whatever_the_clock_says(led: Node) -> None:
    """The last acknowledgement and the deadline arrive in one turn, in either order of CONFIRM's write."""
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.now_ms = 5_000
    led.step(
        Received(AT, C, A, AppendAck(1, 1, -1)), TimerFired(AT, NOTICE_TIMER), TimerFired(AT, QUORUM_TIMER),
    )

    assert (confirmed(1), [(2, "CONFIRM", 1)]) == (led.answer(1), records(led))
    led.now_ms = 99_000
    led.step(TimerFired(AT, QUORUM_TIMER))
    assert [(2, "CONFIRM", 1)] == records(led)


def test_f26_rollbacks_are_counted_by_entry(led: Node) -> None:
    led.append(1, batch(0))
    led.append(2, other(0, LOCAL))
    led.append(3, batch(1))
    led.time_out()
    led.complete()
    assert (0, 3) == (led.limbo().rollbacks_total, led.limbo().timeouts_total)
    ack(led, B)

    assert (3, 0, 0) == (led.limbo().rollbacks_total, led.limbo().length, led.limbo().bytes)


@pytest.mark.parametrize("level", [LOCAL, COMMIT])
def test_l7_only_a_quorum_entry_is_taken_back_for_its_own_sake(led: Node, level: Durability) -> None:
    led.append(1, other(0, level))
    led.time_out()

    assert ([], Reason.QUORUM_TIMEOUT) == (records(led), reason(led.answer(1)))
    assert (SHARD, QUORUM_TIMER) not in led.timers


def test_l7_the_range_begins_at_the_oldest_quorum_entry_not_at_older_ones_of_other_levels(led: Node) -> None:
    led.append(1, other(0, LOCAL))
    led.complete()
    led.append(2, other(1, COMMIT))
    led.append(3, batch(0))
    led.append(4, other(2, LOCAL))
    led.time_out()
    led.complete()
    ack(led, B)

    assert [(5, "ROLLBACK", 3)] == records(led)
    assert ([(3, 4)], 5) == (led.holes(), led.replica.confirmed)
    assert Appended(1, 1, 1, LOCAL) == led.answer(1), "L15: it stays"
    assert [Fate.CONFIRMED, Fate.CONFIRMED, Fate.ROLLED_BACK] == [
        led.outcome(10 + sequence, sequence, producer=OTHER_PRODUCER).fate for sequence in range(3)
    ]


def test_l7_nothing_is_rolled_back_before_the_epoch_start_is_confirmed(node: Node) -> None:
    """Whether this leader is one, no majority has said: it asks its clock again, and decides later."""
    node.settings = None
    lead(node)
    node.configure(quorum="N")
    node.append(1, batch(0))
    node.complete()
    for _ in range(3):
        node.time_out()
        assert ([], node.now_ms + node.limits.resend_ms) == (records(node), node.timers[SHARD, QUORUM_TIMER])
    assert Reason.QUORUM_TIMEOUT is reason(node.answer(1))
    ack(node, B, 0)
    assert 0 == node.replica.confirmed
    node.time_out()

    assert [(2, "ROLLBACK", 1)] == records(node)


def test_l6_l7_a_new_leader_never_rolls_back_what_it_inherited(node: Node) -> None:
    serving(node, quorum="N")
    node.append(1, batch(0))
    node.complete()
    node.restart()
    lead(node, 2, followers=[(B, EntryId(1, 1)), (C, EntryId(1, 1))])
    node.append(2, batch(0))
    node.append(3, batch(1))
    node.time_out()
    assert [Reason.QUORUM_TIMEOUT] * 2 == [reason(node.answer(2)), reason(node.answer(3))]
    assert [] == records(node)
    node.complete()
    ack(node, B)
    assert (Fate.CONFIRMED, 2) == (node.outcome(4, 0).fate, node.replica.confirmed), "EPOCH_START took it along"
    node.time_out()

    assert [(4, "ROLLBACK", 3)] == records(node), "its own it may"


def test_l7_a_rollback_is_followed_by_another_for_what_came_after(led: Node) -> None:
    led.append(1, batch(0))
    led.time_out()
    led.complete()
    led.append(2, other(0))
    led.time_out()
    led.complete()
    assert [(2, "ROLLBACK", 1), (4, "ROLLBACK", 3)] == records(led)
    ack(led, B, 3)
    assert ([(1, 1)], 2) == (led.holes(), led.replica.confirmed)
    ack(led, B)

    assert ([(1, 1), (3, 3)], 4) == (led.holes(), led.replica.confirmed)
    assert 2 == led.limbo().rollbacks_total


# --- while the record is being written --------------------------------------------------------------------------


def test_f27_l7_appends_are_refused_until_the_rollback_is_durable_here(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    led.time_out()
    refused = led.append(2, other(0))
    assert Reason.ROLLING_BACK is reason(refused) and refused.retry_after_ms > 0
    assert led.append(3, batch(0)) is None, "a repeat is no new append: it waits for its fate"
    led.complete()

    assert led.append(4, other(0)) is None
    assert EntryId(1, 3) == led.replica.log.head


def test_issue_13095_an_append_parked_during_the_rollback_does_not_enter_the_log_behind_it(led: Node) -> None:
    """Tarantool #13095: a transaction that was waiting to be written went in behind the ROLLBACK of its queue."""
    led.append(1, batch(0))
    led.complete()
    led.now_ms = 5_000
    led.step(
        AppendRequest(SHARD, 2, batch(1)), TimerFired(AT, QUORUM_TIMER), AppendRequest(SHARD, 3, batch(2)),
        AppendRequest(SHARD, 4, other(0)),
    )

    assert [(3, "ROLLBACK", 1)] == records(led), "what was in front of it in the turn is covered"
    assert [Reason.ROLLING_BACK] * 2 == [reason(led.answer(3)), reason(led.answer(4))]
    assert EntryId(1, 3) == led.replica.log.head
    led.complete()
    ack(led, B)
    assert (3, [(1, 2)]) == (rolled_back(led, 2), led.holes())
    assert Reason.PRODUCER_ROLLED_BACK is reason(led.append(5, batch(2)))


def test_f27_a_write_in_front_of_the_rollback_does_not_end_it(led: Node) -> None:
    led.append(1, batch(0))
    led.time_out()
    led.complete(1)
    assert 1 == led.leader.durable, "the entry is durable, its rollback is not"
    assert Reason.ROLLING_BACK is reason(led.append(2, other(0)))
    led.complete(1)

    assert led.append(3, other(0)) is None


@pytest.mark.parametrize("written", [False, True], ids=["in flight", "durable"])
def test_issue_13085_l8_a_late_decisive_acknowledgement_confirms_nothing_of_the_range(
    led: Node, written: bool
) -> None:
    """Tarantool #13085: the ack arrives while ROLLBACK is written, and a CONFIRM of the same entry follows."""
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.time_out()
    if written:
        led.complete()
    ack(led, C, 1)
    assert (0, [(2, "ROLLBACK", 1)]) == (led.replica.confirmed, records(led))
    led.complete()
    ack(led, B)
    led.fire(NOTICE_TIMER)

    assert ([(1, 1)], 2) == (led.holes(), led.replica.confirmed)
    assert [(2, "ROLLBACK", 1)] == records(led), "nor is it named by a CONFIRM"
    assert Fate.ROLLED_BACK is led.outcome(2, 0).fate


def test_issue_12997_l8_a_quorum_lowered_during_the_rollback_confirms_nothing_of_the_range(led: Node) -> None:
    """Tarantool #12997: the setting was lowered, and entries being rolled back had their quorum."""
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.complete()
    ack(led, B)
    led.time_out()
    led.configure(quorum="1")
    assert 0 == led.replica.confirmed
    led.complete()
    ack(led, B)

    assert ([(1, 2)], 3) == (led.holes(), led.replica.confirmed)


def test_l8_a_change_of_members_during_the_rollback_confirms_nothing_of_the_range(led: Node) -> None:
    """The silent member leaves: the rest would have been a quorum a moment earlier."""
    led.append(1, batch(0))
    led.complete()
    ack(led, B)
    led.time_out()
    led.receive(OPERATOR, Prepare(2, 20, Operation.CONTRACT, C, None))
    led.complete()
    assert led.append(2, other(0)) is None, "L7: durable, by the write of the NOOP's epoch"
    led.receive(OPERATOR, Commit(2, 20, Operation.CONTRACT, (A, B), C, None, EntryId(0, -1)))
    led.complete()
    assert 0 == led.replica.confirmed
    ack(led, B)
    led.receive(OPERATOR, Commit(2, 20, Operation.CONTRACT, (A, B), C, None, EntryId(0, -1)))

    assert ([(1, 1)], 4) == (led.holes(), led.replica.confirmed)
    assert Appended(2, 4, 1, QUORUM) == led.answer(2)


def test_issue_5185_one_decision_per_entry_in_every_log_a_leader_writes(led: Node) -> None:
    """Tarantool #5185: CONFIRM and ROLLBACK of one entry.  Whatever comes when, each entry is named by one."""
    for sequence in range(12):
        led.append(sequence, batch(sequence), resume_after=led.replica.log.head.offset)
        led.complete()
        ack(led, B)
        if sequence % 3 == 0:
            led.time_out()
        ack(led, C)
        led.complete()
        everybody_acks(led)
        led.fire(NOTICE_TIMER)
        led.complete()
        everybody_acks(led)
    holes = {base for first, last in led.holes() for base in range(first, last + 1)}
    named = {base: [kind for _, kind, about in records(led) if about == base] for base in range(led.leader.head)}

    assert 4 == len(holes)
    for entry in led.stored():
        if entry.kind is Kind.DATA:
            assert [["CONFIRM"], ["ROLLBACK"]][entry.base in holes] == named[entry.base]
    assert 4 == led.limbo().rollbacks_total


# --- a range of all levels ------------------------------------------------------------------------------------


def test_issue_5874_a_rollback_over_local_commit_and_quorum_entries_is_whole(led: Node) -> None:
    """Tarantool #5874: where a range held data that is not synchronous it was rolled back in part."""
    led.append(1, batch(0, durability=LOCAL))
    led.complete()
    for request, level in enumerate([QUORUM, LOCAL, COMMIT, QUORUM, LOCAL], 2):
        led.append(request, other(request - 2, level))
    led.complete()
    ack(led, B)
    assert (6, 1) == (led.replica.commit, led.replica.confirmed)
    led.configure(timeout_ms=60_000)
    for request in range(2, 7):
        led.append(request + 10, other(request - 2))   # repeats, who wait longer
    led.time_out()
    led.complete()
    assert [Reason.QUORUM_TIMEOUT] * 5 == [reason(led.answer(request)) for request in range(2, 7)]
    ack(led, B)

    assert ([(2, 6)], 7) == (led.holes(), led.replica.confirmed)
    assert [7] * 5 == [rolled_back(led, request) for request in range(12, 17)]
    assert list(range(16, 11, -1)) == list(led.replies)[-5:], "L17: newest first"


def test_l15_l14_a_local_append_that_was_acknowledged_is_not_taken_back(led: Node) -> None:
    led.append(1, other(0, LOCAL))
    led.complete()
    led.append(2, batch(0))
    led.append(3, other(1, LOCAL))
    led.complete()
    led.time_out()
    led.complete()
    assert Reason.QUORUM_TIMEOUT is reason(led.answer(3)), "behind an undecided QUORUM entry it was told nothing"
    led.append(4, other(2, LOCAL), resume_after=4)
    led.complete()
    assert Appended(1, 5, 1, LOCAL) == led.answer(4), "in front of it everything is covered"
    led.append(5, batch(1), resume_after=4)
    led.time_out()
    led.complete()
    ack(led, B)

    assert [(2, 3), (6, 6)] == led.holes()
    assert [Fate.CONFIRMED, Fate.ROLLED_BACK, Fate.CONFIRMED] == [
        led.outcome(10 + sequence, sequence, producer=OTHER_PRODUCER).fate for sequence in range(3)
    ]


@pytest.mark.parametrize("level", LEVELS)
def test_l5_entries_behind_the_rollback_live_on_whatever_becomes_of_it(led: Node, level: Durability) -> None:
    led.append(1, batch(0))
    led.time_out()
    led.complete()
    led.append(2, other(0, level))
    led.complete()
    everybody_acks(led)

    answer = led.answer(2)
    assert (3, [(1, 1)]) == (answer.base, led.holes())
    assert Fate.CONFIRMED is led.outcome(3, 0, producer=OTHER_PRODUCER).fate


# --- sequences ------------------------------------------------------------------------------------------------


def rolled(node: Node) -> int:
    """Have sequence 0 rolled back definitely; return the record's offset."""
    node.append(1, batch(0))
    node.time_out()
    node.complete()
    ack(node, B)
    [(_, last)] = node.holes()
    return last + 1


def test_l19_a_rolled_back_sequence_answers_rolled_back_for_ever_and_is_not_appended_again(led: Node) -> None:
    at = rolled(led)
    for request in (5, 6, 7):
        led.append(request, batch(0), resume_after=at)
        assert at == rolled_back(led, request)
    assert Outcome(Fate.ROLLED_BACK, 1, 1, 1, at) == led.outcome(8, 0)
    assert EntryId(1, at) == led.replica.log.head


def test_l22_a_producer_goes_on_only_when_it_knows_of_its_rollback(led: Node) -> None:
    at = rolled(led)
    for request, known in ((5, -1), (6, at - 1)):
        refused = led.append(request, batch(1), resume_after=known)
        assert (Reason.PRODUCER_ROLLED_BACK, at) == (reason(refused), refused.expected)
    assert led.append(7, other(0)) is None, "who was not rolled back goes on"
    assert led.append(8, batch(1), resume_after=at) is None
    led.complete()
    everybody_acks(led)

    assert confirmed(4) == led.answer(8), "the new try, under a new sequence"


def test_l22_a_batch_that_was_under_way_during_the_rollback_does_not_overtake(led: Node) -> None:
    """It was sent in ignorance; behind a batch that was sent in the knowledge of the rollback it is still refused."""
    at = rolled(led)
    led.append(5, batch(1), resume_after=at)
    for request in (6, 7):
        assert Reason.PRODUCER_ROLLED_BACK is reason(led.append(request, batch(2)))
    assert EntryId(1, at + 1) == led.replica.log.head


def test_l22_the_refusal_begins_with_the_record_not_with_its_commit(led: Node) -> None:
    led.append(1, batch(0))
    led.time_out()
    led.complete()

    assert Reason.PRODUCER_ROLLED_BACK is reason(led.append(2, batch(1)))
    assert led.append(3, batch(1), resume_after=2) is None
    led.complete()
    assert 0 == led.replica.confirmed, "and it is not committed yet"


def test_l21_a_gap_behind_a_rolled_back_batch_names_the_next_sequence_not_the_rolled_back_one(led: Node) -> None:
    at = rolled(led)
    refused = led.append(5, batch(2), resume_after=at)

    assert (Reason.SEQUENCE_GAP, 1) == (reason(refused), refused.expected)


def test_l19_the_fate_of_a_sequence_outlives_the_trim_of_its_bytes(make_node: Any) -> None:
    """Trimmed across ranges: what is remembered keeps its fate, what is forgotten is SEQUENCE_TOO_OLD."""
    node = make_node(A, Limits(batch_bytes_max=1 << 22))
    serving(node, quorum="N")
    big = bytes(1 << 20)   # an entry a mark, so that a trim may end anywhere
    for sequence in range(3):
        node.append(sequence, batch(sequence, payload=big))
    node.time_out()
    node.complete()
    everybody_acks(node)
    assert [(1, 3)] == node.holes()
    for sequence in range(3, 6):
        node.append(sequence, batch(sequence, payload=big), resume_after=4)
    node.complete()
    everybody_acks(node)
    assert 7 == node.trim(20, 7), "behind the record and two batches after it"
    node.complete()

    for restarted in (False, True):
        if restarted:
            node.restart()
            serving(node, epoch=2)
        assert 0 == len([entry for entry in node.stored() if entry.base < 7])
        assert [Fate.ROLLED_BACK] * 2 + [Fate.CONFIRMED] * 3 == [
            node.outcome(30 + 10 * restarted + sequence, sequence).fate for sequence in (1, 2, 3, 4, 5)
        ]
        assert Reason.SEQUENCE_TOO_OLD is reason(node.outcome(36 + 10 * restarted, 0))
        node.append(37 + 10 * restarted, batch(2, payload=big))
        assert 4 == rolled_back(node, 37 + 10 * restarted)
        assert Reason.PRODUCER_ROLLED_BACK is reason(node.append(38 + 10 * restarted, batch(6)))


def test_l6_l19_who_asks_a_new_leader_about_an_inherited_rollback_is_told_when_its_epoch_start_commits(
    led: Node,
) -> None:
    """Covered by a record whose fate nobody here knows: wait, and then that fate."""
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.time_out()
    led.complete()
    fence(led, 2)
    led.complete()
    lead(led, 2, followers=[(B, EntryId(1, 3)), (C, EntryId(1, 0))])
    led.append(5, batch(0))
    led.outcome(6, 1, wait=True)
    led.append(7, batch(1))
    assert Outcome(Fate.UNKNOWN, 1, 1, 1) == led.outcome(8, 0)
    led.complete()
    assert [None] * 3 == [led.answer(request) for request in (5, 6, 7)]
    ack(led, B)

    assert (3, 3) == (rolled_back(led, 5), rolled_back(led, 7))
    assert Outcome(Fate.ROLLED_BACK, 1, 2, 1, 3) == led.answer(6)
    assert [6, 7, 5] == list(led.replies)[-3:], "L17: newest first"
    assert Reason.PRODUCER_ROLLED_BACK is reason(led.append(9, batch(2)))
    assert led.append(10, batch(2), resume_after=3) is None


# --- Immediate ------------------------------------------------------------------------------------------------


def test_l8_immediate_tells_of_a_rollback_as_soon_as_the_leader_s_own_disk_has_it(led: Node) -> None:
    led.configure(rollback=Rollback.IMMEDIATE)
    led.append(1, batch(0))
    led.append(2, batch(1))
    led.now_ms = 2_000
    led.append(3, batch(0))
    led.append(4, batch(1))
    led.outcome(5, 1, wait=True)
    led.now_ms = 5_000
    led.fire(QUORUM_TIMER)
    assert [None, None, None] == [led.answer(3), led.answer(4), led.answer(5)]
    assert Fate.UNKNOWN is led.outcome(6, 0).fate
    led.complete()

    assert [3, 3] == [rolled_back(led, 3), rolled_back(led, 4)]
    assert Outcome(Fate.ROLLED_BACK, 1, 2, 1, 3) == led.answer(5) == led.outcome(7, 1)
    assert [4, 5, 3] == [request for request in led.replies if request in (3, 4, 5)], "L17: newest entry first"
    assert (0, []) == (led.replica.confirmed, led.holes()), "nobody else has it"
    led.append(8, batch(0))
    assert 3 == rolled_back(led, 8)
    ack(led, B)
    assert [(1, 2)] == led.holes()


def test_l8_definite_waits_for_the_commit_of_the_record(led: Node) -> None:
    led.append(1, batch(0))
    led.now_ms = 1
    led.append(2, batch(0))
    led.now_ms = 5_000
    led.fire(QUORUM_TIMER)
    led.complete()

    assert led.answer(2) is None


# --- what stands in the way at the deadline ---------------------------------------------------------------------


def test_l7_on_a_full_disk_the_rollback_waits_for_space_and_an_ack_may_still_decide(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    led.step(DiskSpace(Space.EXHAUSTED))
    led.time_out()
    assert (Reason.QUORUM_TIMEOUT, []) == (reason(led.answer(1)), records(led))
    assert led.now_ms + led.limits.resend_ms == led.timers[SHARD, QUORUM_TIMER], "tried again, not spun on"
    led.time_out()
    assert [] == records(led)
    led.step(DiskSpace(Space.FREE))
    led.time_out()
    assert [(2, "ROLLBACK", 1)] == records(led)

    led.complete()
    ack(led, B)
    led.append(2, other(0))
    led.complete()
    led.step(DiskSpace(Space.EXHAUSTED))
    led.time_out()
    everybody_acks(led)
    assert (Fate.CONFIRMED, 3) == (led.outcome(3, 0, producer=OTHER_PRODUCER).fate, led.replica.confirmed)
    led.step(DiskSpace(Space.FREE))
    led.time_out()
    assert [(2, "ROLLBACK", 1)] == records(led)


def test_l7_a_deadline_during_a_transfer_rolls_back_all_the_same(led: Node) -> None:
    """Whoever leads next holds the record or does not; either way its log says what became of the entry."""
    led.append(1, batch(0))
    led.complete()
    ack(led, B, 0)
    led.receive(OPERATOR, PrepareTransfer(1, 10, B))
    led.time_out()
    assert [(2, "ROLLBACK", 1)] == records(led)
    assert Reason.QUORUM_TIMEOUT is reason(led.answer(1))
    led.complete()
    assert [] == led.take_sent(TransferReady), "b is to hold the record as well"
    ack(led, B)
    assert [TransferReady(1, B)] == led.take_sent(TransferReady)
    assert Reason.TRANSFERRING is reason(led.append(2, other(0)))
    assert [(1, 1)] == led.holes()
    led.fire(TRANSFER_TIMER)
    assert led.append(3, other(0)) is None


def test_l4_l7_a_swap_prepared_while_a_deadline_runs_keeps_the_deadline(led: Node) -> None:
    led.append(1, batch(0))
    led.complete()
    led.receive(OPERATOR, Prepare(2, 20, Operation.SWAP, C, D))
    led.complete()
    ack(led, B)
    assert (2, 0) == (led.replica.commit, led.replica.confirmed)
    led.time_out()
    assert [(3, "ROLLBACK", 1)] == records(led), "back across the NOOP of its own leadership"
    led.complete()
    ack(led, B)

    assert [(1, 2)] == led.holes(), "the NOOP lies in the range, and no reader asks for it"
    assert Fate.ROLLED_BACK is led.outcome(2, 0).fate
    assert 3 == led.replica.confirmed


def test_issue_2_10_0_a_leadership_that_ended_decides_nothing(led: Node) -> None:
    """Tarantool 2.10.0: data of an obsolete term was accepted, the term having been read before a write that waits.

    Here whatever belongs to an older epoch is judged against the epoch in force when it arrives, its write durable or
    not: acknowledgements, timers, our own durable writes.
    """
    led.append(1, batch(0))
    fence(led, 2)
    led.now_ms = 9_000
    head = led.replica.log.head
    led.step(
        Received(AT, B, A, AppendAck(1, 1, -1)), Received(AT, C, A, AppendAck(1, 1, -1)),
        TimerFired(AT, QUORUM_TIMER), TimerFired(AT, NOTICE_TIMER), AppendRequest(SHARD, 2, other(0)),
    )
    led.complete()

    assert (0, head) == (led.replica.confirmed, led.replica.log.head)
    assert [Reason.NOT_LEADER] * 2 == [reason(led.answer(1)), reason(led.answer(2))]


def test_issue_2_10_0_an_append_of_an_older_epoch_is_refused_while_the_newer_one_is_being_stored(
    make_node: Any,
) -> None:
    node = make_node(B)
    fence(node, 1)
    node.complete()
    fence(node, 2)
    assert node.queue, "the newer epoch is not durable yet"
    node.take_sent()
    node.receive(A, Append(1, EntryId(0, -1), (), -1, -1, -1, 0))
    node.complete()

    refused = node.take_sent()[-1]
    assert (Reason.STALE_EPOCH, 2) == (refused.reason, refused.own_epoch)


# --- CONFIRM records next to rollbacks -----------------------------------------------------------------------------


def test_l11_a_confirm_may_follow_a_rollback_and_names_what_lies_in_front_or_behind(led: Node) -> None:
    """COMMIT entries in front of the range are decided after the record was appended."""
    led.append(1, other(0, COMMIT))
    led.append(2, batch(0))
    led.time_out()
    led.complete()
    ack(led, B, 1)
    led.fire(NOTICE_TIMER)
    led.complete()
    assert [(3, "ROLLBACK", 2), (4, "CONFIRM", 1)] == records(led)
    assert 1 == led.replica.confirmed
    led.append(3, other(1, COMMIT))
    led.complete()
    ack(led, B)
    led.fire(NOTICE_TIMER)

    assert [(3, "ROLLBACK", 2), (4, "CONFIRM", 1), (6, "CONFIRM", 5)] == records(led)
    assert ([(2, 2)], 5) == (led.holes(), led.replica.confirmed)


def test_l8_immediate_that_comes_into_force_later_tells_those_who_wait(led: Node) -> None:
    led.append(1, batch(0))
    led.now_ms = 5_000
    led.fire(QUORUM_TIMER)
    led.complete()
    led.append(2, batch(0))
    assert led.answer(2) is None, "the record is on the leader's disk alone"

    led.configure(rollback=Rollback.IMMEDIATE)

    assert 2 == rolled_back(led, 2)


def test_l6_an_inherited_rollback_is_told_once_epoch_start_is_committed_immediate_or_not(led: Node) -> None:
    led.append(1, batch(0))
    led.now_ms = 5_000
    led.fire(QUORUM_TIMER)
    led.complete()
    fence(led, 2)
    led.complete()
    led.configure(rollback=Rollback.IMMEDIATE)
    lead(led, 3)

    led.append(2, batch(0))
    assert led.answer(2) is None, "what another leadership rolled back is not ours to call definite"
    ack(led, B)

    assert 2 == rolled_back(led, 2)
