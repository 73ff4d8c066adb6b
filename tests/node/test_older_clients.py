"""Clients of wire version 4: what they get in place of what they do not know."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from node_harness import shard_map
from tidemark_core.base.ids import Member
from tidemark_core.base.refusals import Reason, Refused
from tidemark_node.access import Caller
from tidemark_node.appends import Appends, _Stream
from tidemark_node.metrics import Metrics
from tidemark_node.routing import Routing
from tidemark_wire.budgets import Budget
from tidemark_wire.frames import AppendAnswer, decode_answers, encode_answers
from tidemark_wire.wire_version import VERSION_OF_UNKNOWN_PRODUCERS, WIRE_VERSION, WIRE_VERSION_OLDEST

UNKNOWN = Refused(Reason.PRODUCER_UNKNOWN, "sequence is 7, expected 0", 3, 0)


def answered(version: int, refused: Refused) -> AppendAnswer:
    """Return what a client of a wire version reads when the core refuses its batch."""
    routing, access, driver = Routing(), SimpleNamespace(), SimpleNamespace()
    routing.push(shard_map([(Member("a", "i"), "h:1")], "a", 1))
    budgets = SimpleNamespace(appends=Budget("bytes", 1 << 20))
    appends = Appends(driver, routing, Metrics(), 1 << 20, access, budgets)  # type: ignore[arg-type]
    stream = _Stream(Caller(None, "peer"), "a client", version)
    target = routing.find("orders", 0)
    assert not isinstance(target, Refused)
    appends._answer(stream, 5, refused, target)
    [answer] = decode_answers(encode_answers(stream.take()))
    return answer


def test_l25_a_client_of_the_release_before_gets_a_gap_for_an_unknown_producer() -> None:
    """It takes SEQUENCE_GAP with what is expected, as it always did; it knows no PRODUCER_UNKNOWN."""
    assert WIRE_VERSION_OLDEST < VERSION_OF_UNKNOWN_PRODUCERS
    answer = answered(WIRE_VERSION_OLDEST, UNKNOWN)

    assert isinstance(answer.value, Refused)
    assert (5, Reason.SEQUENCE_GAP, UNKNOWN.message, 3, 0) == (
        answer.request, answer.value.reason, answer.value.message, answer.value.epoch, answer.value.expected
    )


def test_l25_a_client_of_this_release_is_refused_with_the_reason() -> None:
    assert UNKNOWN == answered(WIRE_VERSION, UNKNOWN).value


@pytest.mark.parametrize("version", [WIRE_VERSION_OLDEST, WIRE_VERSION])
def test_other_refusals_are_the_same_for_every_client(version: int) -> None:
    gap = Refused(Reason.SEQUENCE_GAP, "sequence is 7, expected 2", 3, 2)

    assert gap == answered(version, gap).value
