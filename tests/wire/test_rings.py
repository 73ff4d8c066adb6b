"""Rings in the shard map: ranges come back whole, each member is named once, a wrong ring is refused by its field."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_operator.resources.base import ApiModel
from tidemark_operator.resources.keyspace import AntiEntropy, HintedHandoff, KeyspaceSpec
from tidemark_wire.rings import (
    GRACE_MAX_MS,
    HINT_WINDOW_MAX_MS,
    REPAIR_BYTES_MAX,
    REPAIR_EVERY_MAX_MS,
    InvalidRing,
    put_ring,
    put_settings,
    ring_of,
    settings_of,
)
from tidemark_wire.v1 import common_pb2

NODES = tuple(Member(f"n{number}", f"life-{number}") for number in range(6))


@st.composite
def owner_lists(draw: st.DrawFn) -> Owners:
    members = tuple(draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True)))
    n = len(members)
    return Owners(members, Quorum(n, draw(st.integers(1, n)), draw(st.integers(1, n))))


ranges = st.builds(Range, st.integers(0, 2**40), owner_lists(), st.none() | owner_lists(), st.integers(0, 2**50))


def entry(*records: Range) -> common_pb2.KeyspaceInfo:
    info = common_pb2.KeyspaceInfo(name="carts", keyspace_id=3)
    put_ring(info, records)
    return info


@given(st.integers(0, 4).flatmap(lambda power: st.lists(ranges, min_size=1 << power, max_size=1 << power)))
def test_d63_a_ring_travels_whole(records: list[Range]) -> None:
    info = common_pb2.KeyspaceInfo.FromString(entry(*records).SerializeToString())

    assert ring_of(info) == tuple(records)
    assert len({(each.node, each.incarnation) for each in info.members}) == len(info.members)


def test_a_large_ring_is_small() -> None:
    """It is pushed to each node with each change."""
    records = [
        Range(7, Owners((NODES[index % 6], NODES[(index + 1) % 6]), Quorum(2, 2, 1)), None, 1_700_000_000_000)
        for index in range(4096)]

    assert entry(*records).ByteSize() <= 40 * 4096


WHOLE = Range(3, Owners(NODES[:3], Quorum(3, 2, 2)), Owners(NODES[1:4], Quorum(3, 2, 2)), 5)


@pytest.mark.parametrize(("spoil", "field"), [
    (lambda info: info.ClearField("ranges"), r"keyspaces\[carts\].ranges: 0 ranges"),
    (lambda info: info.ranges.extend([info.ranges[0]] * 2), "ranges: 3 ranges, must be a power of two"),
    (lambda info: info.ranges.extend([info.ranges[0]] * 8191), "ranges: 8192 ranges, must be .* up to 4096"),
    (lambda info: info.members[1].ClearField("incarnation"), r"members\[1\]: node and incarnation"),
    (lambda info: info.members[1].CopyFrom(info.members[0]), "members: a member is named twice"),
    (lambda info: info.ranges[0].own.members.append(4), r"ranges\[0\].own.members: 4 is no index into 4 members"),
    (lambda info: info.ranges[0].own.members.append(3), r"ranges\[0\].own: 4 members for n = 3"),
    (lambda info: info.ranges[0].own.members.__setitem__(0, 1), r"ranges\[0\].own: 3 members for n = 3"),
    (lambda info: info.ranges[0].ClearField("own"), r"ranges\[0\].own: 0 members for n = 0"),
    (lambda info: setattr(info.ranges[0].pending, "r", 0), r"ranges\[0\].pending.r: 0 is not in 1 to 3"),
    (lambda info: setattr(info.ranges[0].pending, "w", 4), r"ranges\[0\].pending.w: 4 is not in 1 to 3"),
    (lambda info: setattr(info.ranges[0], "floor_ms", -1), r"ranges\[0\].floor_ms: -1 is below 0"),
])
def test_a_ring_that_no_node_can_act_under_is_refused(
    spoil: Callable[[common_pb2.KeyspaceInfo], None], field: str
) -> None:
    info = entry(WHOLE)
    spoil(info)
    with pytest.raises(InvalidRing, match=field):
        ring_of(info)


def test_more_owners_than_any_keyspace_has_are_refused() -> None:
    many = tuple(Member(f"n{number}", "life") for number in range(17))
    with pytest.raises(InvalidRing, match="17 members for n = 17"):
        ring_of(entry(Range(1, Owners(many, Quorum(17, 9, 9)))))


@given(st.builds(
    KeyspaceSettings, st.integers(0, HINT_WINDOW_MAX_MS), st.integers(0, REPAIR_EVERY_MAX_MS),
    st.integers(1, GRACE_MAX_MS), st.integers(0, REPAIR_BYTES_MAX)))
def test_settings_travel_whole(settings: KeyspaceSettings) -> None:
    info = common_pb2.KeyspaceInfo(name="carts")
    assert settings_of(info) is None, "an older operator says none"
    put_settings(info, settings)
    assert settings_of(common_pb2.KeyspaceInfo.FromString(info.SerializeToString())) == settings


@pytest.mark.parametrize(("field", "value"), [
    ("hint_window_ms", HINT_WINDOW_MAX_MS + 1), ("repair_every_ms", REPAIR_EVERY_MAX_MS + 1), ("grace_ms", 0),
    ("grace_ms", GRACE_MAX_MS + 1), ("repair_bytes", REPAIR_BYTES_MAX + 1),
])
def test_settings_out_of_their_bounds_are_refused(field: str, value: int) -> None:
    info = common_pb2.KeyspaceInfo(name="carts")
    put_settings(info, KeyspaceSettings())
    setattr(info.settings, field, value)
    with pytest.raises(InvalidRing, match=rf"^keyspaces\[carts\].settings.{field}: {value} is not in \d+ to \d+$"):
        settings_of(info)


def test_what_a_resource_may_ask_for_is_within_the_bounds_of_the_map() -> None:
    def greatest(model: type[ApiModel], field: str) -> int:
        return next(1_000 * each.le for each in model.model_fields[field].metadata if hasattr(each, "le"))

    assert greatest(HintedHandoff, "window_seconds") == HINT_WINDOW_MAX_MS
    assert greatest(AntiEntropy, "interval_seconds") == REPAIR_EVERY_MAX_MS
    assert greatest(KeyspaceSpec, "tombstone_grace_seconds") == GRACE_MAX_MS
