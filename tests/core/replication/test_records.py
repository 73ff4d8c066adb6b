from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.errors import FormatTooNew, RemoteViolation
from tidemark_core.base.ids import NOTHING, EntryId, Member, ShardKind
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import Change, Phase, ShardRecord, Status, first_record
from tidemark_core.replication.replica import ReplicaState, Role, opening_of

from tests.core.replication import records_before
from tests.core.support import A, Author, B, C, D

members = st.builds(Member, st.text(min_size=1, max_size=8), st.text(min_size=1, max_size=8))
entry_ids = st.builds(EntryId, st.integers(0, 1 << 40), st.integers(-1, 1 << 40))
changes = st.builds(
    Change, st.sampled_from(Operation), st.sampled_from(Phase), st.none() | members, st.none() | members, entry_ids
)
records = st.builds(
    ShardRecord, st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.sampled_from(Status),
    st.lists(members, max_size=5).map(tuple), st.none() | members, st.none() | changes,
    st.lists(members, max_size=3).map(tuple), st.text(max_size=20),
)
states = st.builds(
    ReplicaState, st.integers(0, 1 << 60), st.integers(0, 1 << 60), st.sampled_from(Role), st.integers(-1, 1 << 60),
    st.integers(-1, 1 << 60), st.lists(members, max_size=5).map(tuple), entry_ids, st.integers(-1, 1 << 60),
    st.integers(-1, 1 << 60),
)


@given(records)
def test_o2_a_record_survives_its_bytes(record: ShardRecord) -> None:
    assert record == ShardRecord.decode(record.encode())


@given(states)
def test_o9_a_replica_s_state_survives_its_bytes(state: ReplicaState) -> None:
    assert state == ReplicaState.decode(state.encode())


def test_o2_a_shard_that_was_never_led_waits_for_its_first_election() -> None:
    assert ShardRecord(0, 0, Status.ELECTION, (A, B, C), None, None, (), "") == first_record((A, B, C))


def test_h4_the_replication_factor_is_not_stored_apart_from_the_ensemble() -> None:
    stored = json.loads(first_record((A, B, C)).encode())

    assert {
        "format", "epoch", "election", "status", "ensemble", "leader", "change", "removed", "writer", "copies",
    } == set(stored)


def test_o33_a_change_keeps_what_the_new_member_holds() -> None:
    change = Change(Operation.SWAP, Phase.COMMIT, B, D, EntryId(4, 17))
    record = ShardRecord(4, 3, Status.RECONFIGURATION, (A, B, C), A, change)

    decoded = ShardRecord.decode(record.encode())
    assert change == decoded.change
    assert NOTHING == Change(Operation.SWAP, Phase.PREPARE, B, D).new_head


def damaged(**changes: object) -> bytes:
    return json.dumps(json.loads(first_record((A, B, C)).encode()) | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}",
        damaged(status="RESTING"), damaged(ensemble=[["a"]]), damaged(ensemble=7), damaged(leader=["a"]),
        damaged(change={"operation": "SWAP"}), damaged(removed=None),
    ],
)
def test_a_damaged_record_is_refused_with_a_clear_error(data: bytes) -> None:
    with pytest.raises(RemoteViolation, match="shard record"):
        ShardRecord.decode(data)


def test_u54b_an_operator_of_the_release_before_refuses_what_it_would_write_without_kind_and_lineage() -> None:
    named = first_record((A, B, C), lineage=bytes(range(16)), kind=ShardKind.DOCUMENTS)
    assert ShardRecord.decode(named.encode()) == named
    for record in (named, first_record((A, B, C), kind=ShardKind.DOCUMENTS), first_record((A,), lineage=b"1" * 16)):
        with pytest.raises(RemoteViolation, match="shard record has format 3, this build reads 2"):
            records_before.ShardRecord.decode(record.encode())


@given(records)
def test_u54b_operators_of_both_releases_go_on_with_the_records_of_logs(record: ShardRecord) -> None:
    before = records_before.ShardRecord.decode(record.encode())

    assert ShardRecord.decode(before.encode()) == record


@pytest.mark.parametrize("wrong", ["00" * 16, "11" * 15, "x" * 32])
def test_u54_a_record_with_a_wrong_lineage_is_damaged(wrong: str) -> None:
    with pytest.raises(RemoteViolation, match="shard record cannot be read"):
        ShardRecord.decode(damaged(format=3, lineage=wrong))


def test_a_record_of_a_newer_release_asks_for_an_upgrade_of_the_operator() -> None:
    with pytest.raises(FormatTooNew, match=r"shard record has format 4, this build reads 3: .* upgrade the operator"):
        ShardRecord.decode(damaged(format=4))


@pytest.mark.parametrize("format", [1, "3", None])
def test_a_record_of_an_unknown_format_is_refused(format: object) -> None:
    with pytest.raises(RemoteViolation, match=f"shard record has format {format}, this build reads 3$") as refused:
        ShardRecord.decode(damaged(format=format))
    assert not isinstance(refused.value, FormatTooNew)


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"[3,2,3]", b"\xff", b"7", b'[3,-1,[1,1,"FENCED",[],[0,-1],-1,-1,0,0,-1,-1]]',
        b'[3,-1,-1,[1,1,"KING",[],[0,-1],-1,-1,0,0,-1,-1]]', b'[3,-1,-1,[1,1,"FENCED",[],[0,-1],-1,-1,0,0,-1]]',
    ],
)
def test_a_damaged_state_is_refused_with_a_clear_error(data: bytes) -> None:
    with pytest.raises(RemoteViolation, match="replica state cannot be read"):
        ReplicaState.decode(data)


def test_a_state_of_an_unknown_format_is_refused() -> None:
    for version in (1, 9):
        with pytest.raises(RemoteViolation, match=f"replica state has format {version}, this build reads 3, 4"):
            ReplicaState.decode(b'[%d,-1,-1,[1,1,"FENCED",[],[0,-1],-1,-1,0,0,-1,-1]]' % version)
    old = b'[3,-1,-1,[1,1,"FENCED",[],[0,-1],-1,-1,0,0,-1,-1]]'
    assert ReplicaState(1, 1, announced_in=1) == ReplicaState.decode(old)


def test_a_control_entry_names_its_ensemble_for_whoever_rebuilds_metadata_from_logs() -> None:
    author = Author(epoch=3, ensemble=(B, C, D))
    author.data()
    opening = author.opening()

    assert ((B, C, D), 0) == opening_of(opening)[:2]
    payload = json.loads(opening.payload)
    assert (3, 30, list(B), [3, 0]) == (
        payload["epoch"], payload["election"], payload["leader"], payload["inherited_head"]
    )


def test_a_control_entry_that_cannot_be_read_is_a_violation() -> None:
    with pytest.raises(RemoteViolation, match="control entry 1:0 cannot be read"):
        opening_of(Author().data(payload=b"{}"))
