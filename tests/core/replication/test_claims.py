"""Claims at the leader and in the fold: who is fenced, and the answer to a claim (rules L26 and L27)."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tidemark_core.base.effects import DiskSpace, Space
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import ClaimRequest
from tidemark_core.replication.confirmations import CONFIRMATION_TIMER
from tidemark_core.replication.messages import Appended, Claimed, Fate
from tidemark_core.replication.producer_ids import CLAIM_NUMBERS, FENCE_MAX, claim_of, fence_of, named, prefix_of
from tidemark_core.replication.producers import IDLE_MS_MAX, NOWHERE, Known, Place, ProducerTable

from tests.core.support import PRODUCER, SHARD, B, Node, ack, batch, everybody_acks, fence, serving

FIRST, SECOND, THIRD = claim_of(1, 7), claim_of(2, 0), claim_of(3, CLAIM_NUMBERS - 1)
NOTHING = (-1, 0, 0, 0)


@pytest.fixture
def led(node: Node) -> Node:
    """Node a leads a, b and c; every member is the quorum; EPOCH_START, at 0, is confirmed."""
    serving(node, quorum="N")
    return node


def ask(node: Node, request: int, sequence: int) -> Any:
    """Claim the producer; return the answer if it came at once."""
    node.step(ClaimRequest(SHARD, request, PRODUCER, sequence))
    return node.answer(request)


def settle(node: Node) -> None:
    node.complete()
    everybody_acks(node)
    node.complete()


def claim(node: Node, request: int, sequence: int) -> Any:
    """Claim the producer, let everybody store the record, and return the answer."""
    ask(node, request, sequence)
    settle(node)
    return node.answer(request)


def roll_back(node: Node) -> None:
    """Let the quorum be missed, and a rollback be confirmed."""
    node.complete()
    node.time_out()
    settle(node)


def claims(node: Node) -> list[tuple[int, int]]:
    return [(entry.base, entry.sequence) for entry in node.written[SHARD].all() if entry.kind is Kind.CLAIM]


def reason(answer: Any) -> tuple[Reason, int]:
    assert isinstance(answer, Refused), answer
    return answer.reason, answer.expected


# --- fencing ------------------------------------------------------------------------------------------------


def test_l26_a_newer_claim_fences_batches_and_claims_of_older_ones(led: Node) -> None:
    assert claim(led, 1, FIRST) == Claimed(1, 1, *NOTHING)
    led.append(2, batch(FIRST + 1))
    settle(led)
    assert claim(led, 3, SECOND) == Claimed(1, 3, FIRST + 1, 1, 2, 1)

    assert reason(led.append(4, batch(FIRST + 2))) == (Reason.PRODUCER_FENCED, 2)
    assert reason(ask(led, 5, claim_of(1, 8))) == (Reason.FENCE_TOO_LOW, 2)
    assert reason(ask(led, 6, claim_of(2, 8))) == (Reason.FENCE_TOO_LOW, 2), "one of two with the same fence has it"
    assert claims(led) == [(1, FIRST), (3, SECOND)]
    led.append(7, batch(SECOND + 1))
    settle(led)
    assert isinstance(led.answer(7), Appended)


def test_l26_a_claim_is_repeated_without_another_record(led: Node) -> None:
    assert ask(led, 1, FIRST) is None
    assert ask(led, 2, FIRST) is None
    settle(led)
    assert led.answer(1) == led.answer(2) == Claimed(1, 1, *NOTHING)
    assert ask(led, 3, FIRST) == Claimed(1, 1, *NOTHING)
    assert claims(led) == [(1, FIRST)]


def test_l26_a_batch_of_an_older_claim_is_answered_with_its_fate_while_it_is_remembered(led: Node) -> None:
    claim(led, 1, FIRST)
    led.append(2, batch(FIRST + 1))
    claim(led, 3, SECOND)
    assert led.append(4, batch(FIRST + 1)) == led.answer(2)


def test_l26_a_batch_goes_on_behind_its_claim_alone(led: Node) -> None:
    claim(led, 1, FIRST)
    assert reason(led.append(2, batch(FIRST + 2))) == (Reason.SEQUENCE_GAP, FIRST + 1)
    assert reason(led.append(3, batch(SECOND + 1))) == (Reason.SEQUENCE_GAP, FIRST + 1)
    assert led.outcome(4, FIRST).fate is Fate.NOT_FOUND, "a claim is no batch"
    assert reason(led.append(5, batch(FIRST)))[0] is Reason.INVALID_BATCH, "nor may one take its sequence"


def test_l26_a_claim_that_is_rolled_back_stays_in_force(led: Node) -> None:
    claim(led, 1, FIRST)
    led.append(2, batch(FIRST + 1))
    assert ask(led, 3, SECOND) is None
    roll_back(led)
    assert reason(led.answer(2))[0] is Reason.QUORUM_TIMEOUT
    assert led.answer(3) == Claimed(1, 3, *NOTHING), "the batch in front of it is rolled back"
    assert reason(led.append(4, batch(FIRST + 2))) == (Reason.PRODUCER_FENCED, 2)
    led.append(5, batch(SECOND + 1))
    settle(led)
    assert isinstance(led.answer(5), Appended), "it was no batch of this claim that was rolled back"


def test_l26_a_claim_that_was_overtaken_while_it_waited_is_fenced_for_good(led: Node) -> None:
    ask(led, 1, FIRST)
    ask(led, 2, SECOND)
    settle(led)
    assert reason(led.answer(1)) == (Reason.PRODUCER_FENCED, 2)
    assert isinstance(led.answer(2), Claimed)


def test_l26_truncation_takes_a_claim_back(led: Node) -> None:
    claim(led, 1, FIRST)
    ask(led, 2, SECOND)
    assert led.replica.log.producers.judge(PRODUCER, FIRST + 1, 0).fence == 2
    led.replica.log.truncate(led.replica.log.floor.id)
    assert led.replica.log.producers.judge(PRODUCER, FIRST + 1, 0).expected == FIRST + 1


def test_l26_a_claim_that_cannot_be_written_or_confirmed_is_asked_for_again(led: Node) -> None:
    led.step(DiskSpace(Space.EXHAUSTED))
    assert reason(ask(led, 1, FIRST))[0] is Reason.DISK_FULL
    led.step(DiskSpace(Space.FREE))
    ask(led, 2, FIRST)
    led.complete()
    led.now_ms = led.timers[SHARD, CONFIRMATION_TIMER]
    led.fire(CONFIRMATION_TIMER)
    assert reason(led.answer(2))[0] is Reason.BEHIND
    ask(led, 3, FIRST)
    fence(led, 2)
    assert reason(led.answer(3))[0] is Reason.NOT_LEADER
    assert reason(ask(led, 4, FIRST))[0] is Reason.NOT_LEADER


# --- what stands --------------------------------------------------------------------------------------------


def test_l27_a_claim_says_where_the_newest_batch_that_stands_lies(led: Node) -> None:
    claim(led, 1, FIRST)
    for number in range(1, 10):
        led.append(10 + number, batch(FIRST + number, count=2))
    ask(led, 2, SECOND)
    led.complete()
    ack(led, B)
    assert led.answer(2) is None, "what is in front of it is undecided"
    everybody_acks(led)
    assert led.answer(2) == Claimed(1, 20, FIRST + 9, 1, 18, 2)


def test_l27_what_stands_is_known_behind_rollbacks_claims_restarts_and_truncation(led: Node) -> None:
    claim(led, 1, FIRST)
    led.append(10, batch(FIRST + 1))
    settle(led)
    stands = FIRST + 1, 1, 2, 1
    sequence, request, resume_after = FIRST + 1, 20, -1
    for round_ in range(2):   # each time all that is remembered is rolled back
        for _ in range(5):
            sequence, request = sequence + 1, request + 1
            led.append(request, batch(sequence), resume_after)
        roll_back(led)
        resume_after = max(entry.base for entry in led.written[SHARD].all() if entry.kind is Kind.ROLLBACK)
        restored = Known.decode(led.replica.log.producers.snapshot()[PRODUCER].encode())[0]
        assert restored == led.replica.log.producers.snapshot()[PRODUCER], round_
    for number, again in enumerate((SECOND, THIRD, claim_of(4, 0))):
        answer = claim(led, 100 + number, again)
        assert (answer.sequence, answer.batch_epoch, answer.base, answer.count) == stands
    table = led.replica.log.producers
    undone = ProducerTable()
    for entry in led.written[SHARD].all():
        if entry.kind in ProducerTable.kinds:
            undone.note(entry)
    assert undone.encode() == table.encode()
    read, end = ProducerTable.decode(table.encode(), 0)
    assert (read.encode(), end) == (table.encode(), len(table.encode()))
    undone.undo_to(stands[2])
    assert undone.snapshot()[PRODUCER].places == (Place(FIRST, 1, 1, 0), Place(*stands))


def test_l27_a_batch_in_front_of_a_rollback_is_kept_until_a_newer_one_stands(led: Node) -> None:
    claim(led, 1, FIRST)
    led.append(10, batch(FIRST + 1))
    settle(led)
    led.append(11, batch(FIRST + 2))
    roll_back(led)
    [at] = [entry.base for entry in led.written[SHARD].all() if entry.kind is Kind.ROLLBACK]
    for number in range(3, 12):
        led.append(20 + number, batch(FIRST + number), at)
        settle(led)
    known = led.replica.log.producers.snapshot()[PRODUCER]
    assert known.anchor.sequence == FIRST + 5 and [place.sequence for place in known.places] == [
        FIRST + number for number in range(6, 12)]
    assert known.oldest == known.anchor.base
    assert claim(led, 2, SECOND).sequence == FIRST + 11


def test_l18_a_claim_is_forgotten_with_its_producer(led: Node) -> None:
    claim(led, 1, SECOND)
    led.append(2, batch(SECOND + 1))
    settle(led)
    verdict = led.replica.log.producers.judge(PRODUCER, FIRST, led.replica.log.logged_ms + IDLE_MS_MAX + 1)
    assert not verdict.known
    table, entry = ProducerTable(), led.written[SHARD].all()[1]
    assert entry.kind is Kind.CLAIM
    table.note(entry)
    table.note(entry._replace(base=9, sequence=THIRD, logged_ms=entry.logged_ms + IDLE_MS_MAX + 1))
    assert table.snapshot()[PRODUCER] == Known(entry.logged_ms + IDLE_MS_MAX + 1, (Place(THIRD, 1, 9, 0),))


# --- ids and sequences --------------------------------------------------------------------------------------


def test_l26_a_sequence_says_its_fence() -> None:
    assert [fence_of(claim_of(fence, draw)) for fence, draw in ((1, 0), (FENCE_MAX, 1 << 40))] == [1, FENCE_MAX]
    assert claim_of(FENCE_MAX, CLAIM_NUMBERS - 1) + CLAIM_NUMBERS < 1 << 63
    assert fence_of(5) == 0


def test_l26_a_name_is_an_id_of_its_caller() -> None:
    prefix = prefix_of("client/jobs")
    assert named("copy/7", prefix).startswith(prefix) and len(named("copy/7", prefix)) == 16
    assert len({named("copy/7", prefix), named("copy/8", prefix), named("copy/7"), named("copy/8")}) == 4
    assert named("copy/7").hex() == "0000000000000000" + named("copy/7", prefix)[8:].hex()


@pytest.mark.parametrize("cut", range(1, 40))
def test_l27_a_row_that_is_cut_short_is_damage(cut: int) -> None:
    row = Known(5, (Place(FIRST, 1, 9, 0),), 8, NOWHERE).encode()
    with pytest.raises(struct.error):
        Known.decode(row[:-cut])


def test_l26_a_claim_is_no_event_of_another_shard(led: Node) -> None:
    led.step(ClaimRequest(SHARD + 1, 1, PRODUCER, FIRST))
    assert reason(led.answer(1))[0] is Reason.UNKNOWN_SHARD
    assert claims(led) == []
