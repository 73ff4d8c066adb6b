"""Sinks at the leader: who may join a batch and when it may be marked (rules W1-W5)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidemark_core.base.entry import Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication import sinks as leader
from tidemark_core.replication.clients import DeleteSink, JoinSink, MarkSink, SinksRequest
from tidemark_core.replication.messages import SinkDeleted, SinkJoined, SinkMarked
from tidemark_core.replication.sinks import sinks_of
from tidemark_core.sinks import fold as bounds
from tidemark_core.sinks.fold import Ended, SinkEnd
from tidemark_core.sinks.view import SinksView, SinkView

from tests.core.support import SHARD, B, Node, ack, everybody_acks, serving

LEASE = 60_000
BEGAN = 1_000_000_000_000
ENDS = (SinkEnd(0, 9, 5, 77), SinkEnd(1, 4, 2, 78))

MakeNode = Callable[..., Node]


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """`a` leads a, b, c, and EPOCH_START is confirmed."""
    node = make_node()
    node.now_ms = BEGAN
    serving(node)
    everybody_acks(node)
    return node


def ask(node: Node, event: Any) -> Any:
    """Ask, and return the answer if it came at once."""
    node.step(event)
    return node.answer(event.request)


def join(number: int, batch: int, part: int, *, name: str = "s", lease_ms: int = LEASE) -> JoinSink:
    return JoinSink(SHARD, number, name, batch, part, lease_ms)


def mark(
    number: int, batch: int, parts: int, shards: tuple[SinkEnd, ...] = ENDS, *, name: str = "s"
) -> MarkSink:
    return MarkSink(SHARD, number, name, batch, parts, shards, LEASE)


def confirmed(node: Node, event: Any) -> Any:
    """Ask, let everybody store it, and return the answer."""
    ask(node, event)
    node.complete()
    everybody_acks(node)
    return node.answer(event.request)


def reason(answer: Any) -> Reason:
    assert isinstance(answer, Refused), answer
    return answer.reason


def records(node: Node) -> int:
    return sum(entry.kind is Kind.SINK for entry in node.stored())


def test_w1_a_part_joins_its_batch_and_is_answered_once_that_is_confirmed(node: Node) -> None:
    assert ask(node, join(1, 0, 3)) is None
    node.complete()
    assert node.answer(1) is None, "one copy is not enough"
    ack(node, B)
    assert node.answer(1) == SinkJoined(1, False)
    assert ask(node, join(2, 0, 3)) == SinkJoined(1, False)
    assert records(node) == 1, "a repetition appends nothing"


def test_w1_a_sink_goes_on_to_later_batches_alone(node: Node) -> None:
    assert confirmed(node, join(1, 4, 7)) == SinkJoined(1, False)
    assert confirmed(node, join(2, 5, 0)) == SinkJoined(1, False)
    assert reason(ask(node, join(3, 4, 0))) is Reason.BATCH_PASSED
    assert reason(ask(node, mark(4, 4, 8))) is Reason.BATCH_PASSED
    assert confirmed(node, mark(5, 5, 1)) == SinkMarked(1), "part 7 had joined a batch that was given up"
    assert reason(ask(node, join(6, 4, 0))) is Reason.BATCH_PASSED
    assert confirmed(node, join(7, 4, 0, name="other")) == SinkJoined(1, False)


def test_w2_a_mark_leaves_no_part_out_and_no_part_comes_after_it(node: Node) -> None:
    for number, part in enumerate((0, 1, 2, 6)):
        confirmed(node, join(number, 0, part))
    refused = ask(node, mark(10, 0, 2))
    assert reason(refused) is Reason.PART_LEFT_OUT and "part 2 " in refused.message
    assert reason(ask(node, mark(11, 0, 6))) is Reason.PART_LEFT_OUT
    assert confirmed(node, mark(12, 0, 7)) == SinkMarked(1)
    assert reason(ask(node, join(13, 0, 7))) is Reason.PART_LEFT_OUT
    assert reason(ask(node, mark(16, 0, 6))) is Reason.PART_LEFT_OUT
    assert ask(node, join(14, 0, 3)) == SinkJoined(1, True), "it is there already"
    assert confirmed(node, join(15, 1, 7)) == SinkJoined(1, False), "the next batch may have more parts"


def test_w2_a_batch_is_marked_once(node: Node) -> None:
    confirmed(node, join(1, 0, 0))
    assert confirmed(node, mark(2, 0, 1)) == SinkMarked(1)
    assert ask(node, mark(3, 0, 1)) == SinkMarked(1)
    for number, again in enumerate((mark(4, 0, 2), mark(5, 0, 1, ENDS[:1]), mark(6, 0, 1, ()))):
        assert reason(ask(node, again)) is Reason.BATCH_PASSED, number
    assert records(node) == 2
    assert confirmed(node, mark(7, 1, 0, ())) == SinkMarked(1), "an empty batch"
    view = ask(node, SinksRequest(SHARD, 8))
    assert view == SinksView(1, (SinkView(
        "s", 1, 0, 1, 0, LEASE, BEGAN, LEASE, tuple(Ended(0, *end) for end in ENDS)),))
    assert ask(node, SinksRequest(SHARD, 9, "other")) == SinksView(1, ())


def test_w3_a_join_that_is_not_confirmed_holds_against_a_mark(node: Node) -> None:
    ask(node, join(1, 0, 1))
    assert reason(ask(node, mark(2, 0, 1))) is Reason.PART_LEFT_OUT
    ask(node, mark(3, 0, 2))
    assert reason(ask(node, join(4, 0, 2))) is Reason.PART_LEFT_OUT
    assert ask(node, join(5, 0, 1)) is None, "the mark it is answered by is not confirmed"
    node.complete()
    everybody_acks(node)
    assert [node.answer(number) for number in (1, 3, 5)] == [
        SinkJoined(1, False), SinkMarked(1), SinkJoined(1, True)]


def test_w4_a_sink_is_forgotten_when_its_lease_ends_or_it_is_deleted(node: Node) -> None:
    confirmed(node, mark(1, 5, 0))
    node.now_ms += LEASE // 10
    assert confirmed(node, mark(2, 5, 0)) == SinkMarked(1) and records(node) == 2, "it renews the lease"
    node.now_ms += LEASE
    assert reason(ask(node, join(3, 0, 0))) is Reason.BATCH_PASSED
    node.now_ms += 1
    assert confirmed(node, join(4, 0, 0)) == SinkJoined(1, False), "forgotten: it begins again"
    assert confirmed(node, DeleteSink(SHARD, 5, "s")) == SinkDeleted(1, True)
    assert ask(node, DeleteSink(SHARD, 6, "s")) == SinkDeleted(1, False)
    assert sinks_of(node.replica).held == {}


def test_w5_of_too_many_sinks_the_one_whose_lease_ends_first_is_forgotten(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SINKS_MAX", 3)
    confirmed(node, join(1, 0, 0, name="open"))
    confirmed(node, mark(2, 0, 0, (), name="long"))
    node.step(MarkSink(SHARD, 3, "short", 0, 0, (), LEASE // 2))
    confirmed(node, mark(4, 0, 0, (), name="new"))
    assert node.answer(3) == SinkMarked(1)
    assert sinks_of(node.replica).held.keys() == {"open", "long", "new"}
    confirmed(node, join(5, 0, 0, name="newer"))
    assert sinks_of(node.replica).held.keys() == {"open", "new", "newer"}, "of two leases that end at once, by name"
    assert confirmed(node, mark(6, 0, 0, name="long")) == SinkMarked(1), "it begins once more"


def test_w5_ends_and_what_waits_are_bounded(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "ENDS_MAX", 3)
    monkeypatch.setattr(leader, "ENDS_MAX", 3)
    assert confirmed(node, mark(4, 0, 1, name="a")) == SinkMarked(1)
    refused = ask(node, mark(5, 0, 1, name="b"))
    assert reason(refused) is Reason.TOO_MANY_SINKS and "3 ends" in refused.message
    assert confirmed(node, mark(6, 0, 1, ENDS[:1], name="b")) == SinkMarked(1)
    assert confirmed(node, mark(7, 1, 0, name="a")) == SinkMarked(1), "no further end"
    monkeypatch.setattr(bounds, "UNDECIDED_MAX", 2)
    ask(node, join(8, 2, 0, name="a"))
    ask(node, join(9, 2, 1, name="a"))
    assert reason(ask(node, join(10, 2, 2, name="a"))) is Reason.OVERLOADED
    node.complete()
    everybody_acks(node)
    for number in (11, 12):
        assert ask(node, mark(number, number, 1, name="a")) is None
    monkeypatch.setattr(bounds, "UNDECIDED_MAX", 9)
    assert reason(ask(node, join(13, 14, 2, name="a"))) is Reason.OVERLOADED, "the marks have too many ends"


@pytest.mark.parametrize(("event", "said"), [
    (join(1, 0, 0, name=""), "sink has 0 characters"), (join(1, 0, 0, name="a\n"), "printable"),
    (join(1, -1, 0), "batch is -1"), (join(1, 1 << 63, 0), "batch is"), (join(1, 0, -1), "part is -1"),
    (join(1, 0, bounds.PARTS_MAX), "part is"), (join(1, 0, 0, lease_ms=999), "lease_ms is 999"),
    (join(1, 0, 0, lease_ms=bounds.LEASE_MS_MAX + 1), "lease_ms is"), (mark(1, 0, -1), "parts is -1"),
    (mark(1, 0, bounds.PARTS_MAX + 1), "parts is"), (mark(1, 0, 1, (ENDS[1], ENDS[0])), "must ascend"),
    (mark(1, 0, 1, (SinkEnd(0, -1, 0, 0),)), "last -1"), (mark(1, 0, 1, (SinkEnd(0, 1, 1, 1 << 32),)), "checksum"),
    (DeleteSink(SHARD, 1, "\x00"), "printable"),
])
def test_w5_what_cannot_be_is_refused_and_names_the_field(node: Node, event: Any, said: str) -> None:
    refused = ask(node, event)
    assert reason(refused) is Reason.INVALID_SPEC and said in refused.message
    assert records(node) == 0
