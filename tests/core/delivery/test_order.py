"""Who sends: the tables of the source, word for word, and the rules for all orders of few slots."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain, combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.delivery.location import Location, priority
from tidemark_core.delivery.messages import Start
from tidemark_core.delivery.order import SLOTS_MAX, Mode, nearest_first, sender, ships, slots_of

# The two tables as the source prints them.
CONTENT_OF_N0 = """
lsn: 42, copyset: [1, 0, 2, 3]
lsn: 43, copyset: [3, 5, 0, 1]
lsn: 44, copyset: [0, 1, 2, 3]
lsn: 45, copyset: [4, 0, 5, 2]
lsn: 46, copyset: [0, 3, 2, 1]
lsn: 47, copyset: [4, 3, 2, 5]
lsn: 48, copyset: [1, 4, 0, 5]
"""
CONTENT_OF_N1 = """
  lsn: 42, copyset: [1, 0, 2, 3], will be sent by N1
  lsn: 43, copyset: [3, 5, 0, 1], will be sent by N0
  lsn: 44, copyset: [0, 1, 2, 3], will be sent by N0
  lsn: 45, copyset: [4, 0, 5, 2], will be sent by N0
  lsn: 46, copyset: [0, 3, 2, 1], will be sent by N0
  lsn: 47, copyset: [4, 3, 2, 5], will be sent by N2
  lsn: 48, copyset: [1, 4, 0, 5], will be sent by N1
"""
NEAR = (1, 1, 1, 0, 0, 0)
"""Nodes N0, N1, and N2 are local."""


def copysets(table: str) -> dict[int, tuple[int, ...]]:
    rows: dict[int, tuple[int, ...]] = {}
    for line in table.strip().splitlines():
        lsn, copyset = line.split(", copyset: [")
        rows[int(lsn.split()[1])] = tuple(int(slot) for slot in copyset.split("]")[0].split(", "))
    return rows


TABLE = copysets(CONTENT_OF_N0)
LOCAL_TABLE = {lsn: nearest_first(slots, NEAR) for lsn, slots in copysets(CONTENT_OF_N1).items()}


def sent_by(node: int, table: dict[int, tuple[int, ...]], known_down: Collection[int] = ()) -> set[int]:
    return {lsn for lsn, slots in table.items() if ships(slots, node, known_down)}


def test_the_tables_are_read_as_they_stand() -> None:
    assert list(TABLE) == [42, 43, 44, 45, 46, 47, 48]
    assert copysets(CONTENT_OF_N1) == TABLE


def test_s3_n0_sends_only_44_and_46() -> None:
    assert {44, 46} == sent_by(0, TABLE)


@pytest.mark.parametrize(
    ("known_down", "sent"), [({1}, {42, 44, 46}), ({1, 4}, {42, 44, 45, 46, 48})], ids=["N1", "N1 and N4"]
)
def test_s5_n0_sends_for_those_in_front_of_it_that_are_known_down(known_down: set[int], sent: set[int]) -> None:
    assert sent == sent_by(0, TABLE, known_down)


def test_s6_a_node_that_finds_itself_in_known_down_acts_as_if_it_were_not_listed() -> None:
    assert {44, 46} == sent_by(0, TABLE, {0})
    assert {42, 44, 46} == sent_by(0, TABLE, {0, 1})
    # The node that stands in for it sends as well: two copies, which the reader must tell apart.
    assert ships(TABLE[44], 1, {0})


def test_s7_a_record_whose_copyset_lacks_a_node_is_never_its_to_send() -> None:
    assert 0 not in TABLE[47]
    for known_down in chain.from_iterable(combinations(range(6), size) for size in range(7)):
        assert not ships(TABLE[47], 0, set(known_down))


def test_s35_each_record_is_sent_by_the_left_most_local_node() -> None:
    expected = {
        int(line.split()[1].rstrip(",")): int(line.rsplit("N", 1)[1]) for line in CONTENT_OF_N1.strip().splitlines()
    }

    assert {42: 1, 43: 0, 44: 0, 45: 0, 46: 0, 47: 2, 48: 1} == expected
    assert expected == {lsn: sender(slots, set()) for lsn, slots in LOCAL_TABLE.items()}


def test_s35_with_n0_known_down_n1_sends_42_43_44_and_48() -> None:
    assert {42, 43, 44, 48} == sent_by(1, LOCAL_TABLE, {0})


def test_s35_with_n0_and_n2_known_down_n1_sends_46_as_well() -> None:
    """The source says "N0 will send {42, 43, 44, 46, 48}": it is N1's set, N0 is down."""
    assert {42, 43, 44, 46, 48} == sent_by(1, LOCAL_TABLE, {0, 2})


def test_s36_with_every_local_node_down_the_next_priority_group_sends() -> None:
    assert 4 == sender(LOCAL_TABLE[45], {0, 1, 2})
    assert ships(LOCAL_TABLE[45], 4, {0, 1, 2})
    assert not ships(LOCAL_TABLE[45], 5, {0, 1, 2})


def test_s34_the_left_most_of_the_highest_alive_priority_sends() -> None:
    slots = nearest_first((4, 3, 2, 1, 0), (0, 5, 2, 5, 2))

    assert (3, 1, 4, 2, 0) == slots
    assert [3, 1, 4, 2, 0] == [sender(slots, set(slots[:dead])) for dead in range(5)]


def test_s34_s33_groups_go_by_shared_scopes_and_keep_their_order() -> None:
    reader = Location("eu", "a", "c1", "w1", "r1")
    nodes = [
        Location("us"), Location("eu", "b"), Location("eu", "a", "c1", "w1", "r1"), Location("eu", "a", "c2"),
        Location("eu", "a", "c1", "w2"),
    ]
    near = [priority(reader, node) for node in nodes]

    assert [0, 1, 5, 2, 3] == near
    assert (2, 4, 3, 1, 0) == nearest_first((0, 1, 2, 3, 4), near)
    assert (3, 1, 4, 2) == nearest_first((3, 4, 1, 2), (0, 5, 1, 5, 1))


@given(st.permutations(range(5)), st.lists(st.integers(0, 5), min_size=5, max_size=5), st.integers(1, 5))
def test_who_keeps_the_payload_goes_before_who_is_near(slots: list[int], near: list[int], copies: int):
    """K2: a near member without the payload could only say that it does not hold it."""
    found = nearest_first(slots, near, copies)
    assert set(slots[:copies]) == set(found[:copies]) and set(slots) == set(found)
    for part in (found[:copies], found[copies:]):
        assert [near[slot] for slot in part] == sorted((near[slot] for slot in part), reverse=True)
    assert found == nearest_first(slots, near) or copies < 5


def test_s37_two_levels_are_the_case_of_locations_that_name_the_region_alone() -> None:
    reader = Location(region="eu")

    assert [1, 0, 0] == [priority(reader, node) for node in (Location("eu", "a"), Location("us", "a"), Location())]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_s1_s2_exactly_one_node_sends_each_record_and_it_is_the_first(size: int) -> None:
    for slots in permutations(range(size)):
        assert [slots[0]] == [slot for slot in range(size) if ships(slots, slot, set())]
        assert slots[0] == sender(slots, set())


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_s5_s6_exactly_one_of_those_not_listed_sends_for_every_order_and_list(size: int) -> None:
    everybody = range(size)
    for slots in permutations(everybody):
        for known_down in map(set, chain.from_iterable(combinations(everybody, count) for count in range(size + 1))):
            unlisted = [slot for slot in everybody if slot not in known_down and ships(slots, slot, known_down)]

            assert unlisted == [slot for slot in slots if slot not in known_down][:1]
            assert sender(slots, known_down) == (unlisted[0] if unlisted else None)
            for slot in known_down:
                assert ships(slots, slot, known_down) is ships(slots, slot, known_down - {slot})


def test_s4_start_tells_whether_single_copy_and_who_is_down() -> None:
    start = Start(1, 0, -1, Mode.SINGLE_COPY, ("b",), ("a", "b"), (), 100)

    assert (Mode.SINGLE_COPY, ("b",)) == (start.mode, start.known_down)


def test_s32_local_reading_is_a_mode_of_its_own() -> None:
    assert ["SINGLE_COPY", "LOCAL", "ALL_SEND_ALL"] == [str(mode) for mode in Mode]


@given(st.integers(min_value=0, max_value=2**64 - 1), st.integers(min_value=1, max_value=SLOTS_MAX))
def test_every_number_is_an_order_of_all_slots(order: int, size: int) -> None:
    assert sorted(slots_of(order, size)) == list(range(size))


@given(st.permutations(range(SLOTS_MAX)))
def test_an_order_of_all_slots_is_kept(slots: list[int]) -> None:
    order = sum(slot << 4 * place for place, slot in enumerate(slots))

    assert tuple(slots) == slots_of(order, SLOTS_MAX)


@pytest.mark.parametrize(
    ("slots", "size", "expected"),
    [
        ((2, 0, 1), 3, (2, 0, 1)),
        ((2, 0, 1), 5, (2, 0, 1, 3, 4)),       # those that joined stand at the far right
        ((2, 4, 0, 3, 1), 3, (2, 0, 1)),       # those that left are passed over
        ((1, 2), 3, (1, 2, 0)),
        ((), 3, (0, 1, 2)),
        ((1,), 1, (0,)),
    ],
)
def test_k13_slots_that_joined_or_left(slots: tuple[int, ...], size: int, expected: tuple[int, ...]) -> None:
    order = sum(slot << 4 * place for place, slot in enumerate(slots))

    assert expected == slots_of(order, size)
