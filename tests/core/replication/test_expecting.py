"""Appends that expect an offset: refused where another record came first, for good (rule L29)."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.entry import Batch, Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import AppendRequest, ClaimRequest
from tidemark_core.replication.confirmations import CONFIRMATION_TIMER
from tidemark_core.replication.expecting import end_of_records
from tidemark_core.replication.log import Log
from tidemark_core.replication.messages import Appended
from tidemark_core.replication.producer_ids import claim_of
from tidemark_core.replication.producers import IDLE_MS_MAX, ProducerTable

from tests.core.support import OTHER_PRODUCER, SHARD, Author, B, Node, ack, batch, everybody_acks, serving


@pytest.fixture
def led(node: Node) -> Node:
    """Node a leads a, b and c; every member is the quorum; EPOCH_START, at 0, is confirmed."""
    serving(node, quorum="N")
    return node


def ask(node: Node, request: int, what: Batch, expect: int) -> Any:
    """Append with an expectation; return the answer if it came at once."""
    node.step(AppendRequest(SHARD, request, what, -1, expect))
    return node.answer(request)


def settle(node: Node) -> None:
    node.complete()
    everybody_acks(node)
    node.complete()


def refusal(answer: Any) -> tuple[Reason, int]:
    assert isinstance(answer, Refused), answer
    return answer.reason, answer.expected


def bases(node: Node) -> list[int]:
    return [entry.base for entry in node.written[SHARD].all() if entry.kind is Kind.DATA]


def test_l29_a_batch_comes_behind_no_other_record(led: Node) -> None:
    ask(led, 1, batch(0, count=3), 0)
    settle(led)
    assert led.answer(1).base == 1, "EPOCH_START, at 0, is no record"
    for expect in (0, 1, 3):
        assert refusal(ask(led, 10 + expect, batch(0, producer=OTHER_PRODUCER), expect)) == (
            Reason.RECORD_CAME_FIRST, 4)
    ask(led, 2, batch(0, producer=OTHER_PRODUCER), 4)
    settle(led)
    assert isinstance(led.answer(2), Appended) and bases(led) == [1, led.answer(2).base]


def test_l29_a_far_offset_is_expected_as_well_as_the_next_one(led: Node) -> None:
    ask(led, 1, batch(0), 1_000_000)
    settle(led)
    assert isinstance(led.answer(1), Appended)


def test_l29_a_record_counts_whatever_its_fate_and_the_refusal_waits_for_it(led: Node) -> None:
    led.append(1, batch(0))
    assert ask(led, 2, batch(0, producer=OTHER_PRODUCER), 1) is None
    led.complete()
    ack(led, B)
    assert led.answer(2) is None, "the record may yet be lost"
    assert ask(led, 3, batch(0, producer=OTHER_PRODUCER), 1) is None, "nor does another one get in beside it"
    led.time_out()
    settle(led)
    assert refusal(led.append(4, batch(0)))[0] is Reason.ROLLED_BACK
    for request in (2, 3):
        assert refusal(led.answer(request)) == (Reason.RECORD_CAME_FIRST, 2)
    assert bases(led) == [1]


def test_l29_a_claim_is_a_record(led: Node) -> None:
    led.step(ClaimRequest(SHARD, 1, OTHER_PRODUCER, claim_of(1, 7)))
    settle(led)
    assert refusal(ask(led, 2, batch(0), 1)) == (Reason.RECORD_CAME_FIRST, 2)
    assert ask(led, 3, batch(0), 2) is None and bases(led) == [2]


def test_l29_a_retry_is_answered_with_its_fate(led: Node) -> None:
    ask(led, 1, batch(0), 1)
    assert ask(led, 2, batch(0), 1) is None
    settle(led)
    assert led.answer(1) == led.answer(2) == ask(led, 3, batch(0), 1)
    assert refusal(ask(led, 4, batch(1), 1)) == (Reason.RECORD_CAME_FIRST, 2)
    assert refusal(ask(led, 5, batch(3), 1)) == (Reason.SEQUENCE_GAP, 1), "a batch that is out of place comes later"


def test_l29_a_refused_sequence_is_free_for_another_batch(led: Node) -> None:
    led.append(1, batch(0))
    settle(led)
    assert refusal(ask(led, 2, batch(1), 1))[0] is Reason.RECORD_CAME_FIRST
    led.append(3, batch(1, payload=b"another"))
    settle(led)
    assert isinstance(led.answer(3), Appended)


def test_l29_who_waits_for_a_record_too_long_asks_again(led: Node) -> None:
    led.append(1, batch(0))
    ask(led, 2, batch(0, producer=OTHER_PRODUCER), 1)
    led.now_ms = led.timers[SHARD, CONFIRMATION_TIMER]
    led.fire(CONFIRMATION_TIMER)
    assert refusal(led.answer(2))[0] is Reason.BEHIND


def test_l29_the_newest_record_is_known_after_a_week_and_a_restart() -> None:
    author = Author()
    author.opening()
    author.data(2, logged_ms=5)
    author.data(3, producer=OTHER_PRODUCER, logged_ms=6)
    author.log.settle(author.log.head.offset)
    table = author.log.producers
    table.purge(IDLE_MS_MAX * 2)
    assert not table.judge(OTHER_PRODUCER, 0, IDLE_MS_MAX * 2).known, "its sequences are forgotten all the same"
    assert end_of_records(author.log) == 6
    again, _ = ProducerTable.decode(table.encode(), 0)
    assert again.newest == table.newest == table.upto(5, IDLE_MS_MAX * 2).newest


def test_l29_a_log_of_a_release_that_forgot_its_newest_record_is_full_up_to_its_head() -> None:
    empty = Log()
    assert end_of_records(empty) == 0
    author = Author()
    author.opening()
    assert end_of_records(author.log) == 0, "no record was ever there"
    author.data(2)
    author.opening()
    author.log.producers._known.clear()
    assert end_of_records(author.log) == 4
