"""The lineage of a shard's history, from its record into EPOCH_START (rule U54)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tidemark_core.base.entry import Entry, Kind, control
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import NOTHING
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import BecomeLeader, Rejected
from tidemark_core.replication.records import Holdout, RecoverShard, ShardRecord, first_record
from tidemark_core.replication.replica import opening_of, opening_payload
from tidemark_core.upr.history import Opening

from tests.core.replication.test_coordinator import HEAD, STEADY, Desk
from tests.core.support import OPERATOR, SHARD, A, B, C, Node, fence, vetted

LINEAGE = bytes(range(16))
OTHER = bytes(range(1, 17))
NAMED = replace(STEADY, lineage=LINEAGE.hex())


def begun(lineage: bytes) -> Node:
    node = Node(A)
    fence(node, 1)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(1, 10, (A, B, C), ((B, NOTHING), (C, NOTHING)), lineage=lineage))
    vetted(node)
    node.complete()
    return node


def opening_in(payload: bytes) -> Entry:
    return control(Kind.EPOCH_START, payload, epoch=3, prev=NOTHING, prev_chain=0, logged_ms=1)


def test_u54_a_leader_writes_the_lineage_into_its_epoch_start() -> None:
    node = begun(LINEAGE)
    state = node.replica.state
    entry = opening_in(opening_payload(state, A, NOTHING))

    assert node.leads
    assert Opening.of(entry) == Opening(3, LINEAGE, -1)
    assert opening_of(entry).ensemble == (A, B, C) and opening_of(entry).lineage == LINEAGE
    assert [each.payload for each in node.stored()] == [entry.payload]


def test_u54_the_log_of_a_shard_without_a_lineage_stays_as_it_was() -> None:
    node = begun(b"")
    (payload,) = (each.payload for each in node.stored())

    assert set(json.loads(payload)) == {
        "epoch", "election", "leader", "ensemble", "copies", "inherited_head", "pending",
    }
    with pytest.raises(RemoteViolation, match="names no lineage"):
        Opening.of(opening_in(payload))


@pytest.mark.parametrize("payload", [
    b"", b"{", b"[]", b"{}", b'{"lineage":7}', b'{"lineage":"xx"}', b'{"lineage":"00"}',
    b'{"lineage":"%s"}' % (b"00" * 16), b'{"lineage":"%s"}' % (b"11" * 17),
])
def test_u54_an_epoch_start_with_a_wrong_lineage_is_refused(payload: bytes) -> None:
    with pytest.raises(RemoteViolation, match="U54"):
        Opening.of(opening_in(payload))


@pytest.mark.parametrize(("lineage", "what"), [(LINEAGE[:-1], "15 bytes"), (bytes(16), "zero bytes alone")])
def test_u54_a_wrong_lineage_is_refused_and_nothing_begins(lineage: bytes, what: str) -> None:
    node = begun(lineage)

    assert not node.leads and node.stored() == []
    (found,) = node.take_sent(Rejected)
    assert found.refusal.reason is Reason.WRONG_STATE and what in found.refusal.message


def test_u54_the_record_hands_the_lineage_to_each_leader() -> None:
    desk = Desk(up=(A,)).electing(first_record((A, B, C), lineage=LINEAGE))
    desk.fenced(a=HEAD)
    desk.fenced(b=NOTHING)

    assert [message.lineage for _, message in desk.sent(BecomeLeader)] == [LINEAGE]


def test_u54_a_record_keeps_its_lineage_and_one_without_looks_as_before() -> None:
    assert ShardRecord.decode(NAMED.encode()) == NAMED
    assert "lineage" not in json.loads(STEADY.encode())
    for wrong in ("00", "00" * 16, "x" * 32, 7):
        data = json.dumps(json.loads(NAMED.encode()) | {"lineage": wrong}).encode()
        with pytest.raises(RemoteViolation, match="cannot be read"):
            ShardRecord.decode(data)


@pytest.mark.parametrize("lineage", [b"", LINEAGE])
def test_u54_a_recovery_that_may_lose_entries_needs_another_lineage(lineage: bytes) -> None:
    desk = Desk()
    desk.load(replace(NAMED, holdouts=(Holdout(C, 9),)))
    desk.step(RecoverShard(SHARD, 7, "c", lineage))

    (answer,) = desk.replies()
    assert isinstance(answer, Refused) and answer.reason is Reason.INVALID_SPEC and "lineage" in answer.message


@pytest.mark.parametrize(("before", "after"), [(NAMED, OTHER.hex()), (STEADY, "")], ids=["with", "without"])
def test_u54_a_recovery_begins_another_lineage_where_there_is_one(before: ShardRecord, after: str) -> None:
    desk = Desk()
    desk.load(replace(before, holdouts=(Holdout(C, 9),)))
    desk.step(RecoverShard(SHARD, 7, "c", OTHER))
    desk.stored()

    assert desk.record is not None
    assert (desk.record.source, desk.record.lineage) == (C, after)
