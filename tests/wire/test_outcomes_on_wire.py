"""Outcomes and limbo views on the wire: what goes in comes out, and what this build does not know is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.entry import Durability
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.limbo.view import LOCAL, ROLLING_BACK, WAITING, LimboEntry, LimboView
from tidemark_core.replication.messages import Fate, Outcome
from tidemark_wire import limbo
from tidemark_wire.v1 import node_pb2

unsigned = st.integers(0, (1 << 64) - 1)
small = st.integers(0, (1 << 32) - 1)
signed = st.integers(-(1 << 63), (1 << 63) - 1)
names = st.lists(st.text(max_size=8), max_size=3).map(tuple)
outcomes = st.builds(Outcome, st.sampled_from(Fate), unsigned, signed, small, signed)
entries = st.builds(
    LimboEntry, signed, small, unsigned, st.sampled_from(Durability), unsigned,
    st.sampled_from([WAITING, LOCAL, ROLLING_BACK]), small, names, names, st.binary(max_size=16), signed,
)
views = st.builds(
    LimboView, unsigned, signed, signed, signed, names, small, small, unsigned, unsigned, unsigned, unsigned,
    unsigned, signed, small, st.lists(entries, max_size=3).map(tuple),
)


@given(outcomes)
@settings(max_examples=50, deadline=None)
def test_outcome_round_trip(outcome: Outcome):
    data = limbo.outcome_to_proto(outcome).SerializeToString()
    assert outcome == limbo.outcome_from_proto(node_pb2.OutcomeResponse.FromString(data))


@given(views)
@settings(max_examples=50, deadline=None)
def test_view_round_trip(view: LimboView):
    data = limbo.limbo_to_proto(view).SerializeToString()
    assert view == limbo.limbo_from_proto(node_pb2.LimboResponse.FromString(data))


@pytest.mark.parametrize("fate", ["", "confirmed", "LOST"])
def test_unknown_fate_is_a_violation(fate: str):
    """Never read as one of the fates that an application acts upon."""
    with pytest.raises(RemoteViolation, match="fate"):
        limbo.outcome_from_proto(node_pb2.OutcomeResponse(fate=fate))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (node_pb2.LimboEntry(durability="Soon", state=WAITING), "durability 'Soon'"),
        (node_pb2.LimboEntry(durability="Local", state=""), "state ''"),
    ],
)
def test_unknown_word_in_an_entry_is_a_violation(entry: node_pb2.LimboEntry, message: str):
    with pytest.raises(RemoteViolation, match=message):
        limbo.limbo_from_proto(node_pb2.LimboResponse(entries=[entry]))


def test_too_many_entries_are_a_violation():
    entry = node_pb2.LimboEntry(durability="Quorum", state=WAITING)
    most = limbo.limbo_from_proto(node_pb2.LimboResponse(entries=[entry] * limbo.ENTRIES_MAX))
    assert len(most.entries) == limbo.ENTRIES_MAX
    with pytest.raises(RemoteViolation, match="10001 entries"):
        limbo.limbo_from_proto(node_pb2.LimboResponse(entries=[entry] * (limbo.ENTRIES_MAX + 1)))


def test_every_durability_has_its_word():
    assert [limbo.durability_text(durability) for durability in Durability] == ["Quorum", "Local", "Commit"]
