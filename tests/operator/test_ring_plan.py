"""Ring plans: which owners ranges should have next, as nodes come, leave and lose their disks, and as N changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from operator_views import keyspace, member, node, nodes, ring
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.placing import placed
from tidemark_core.optimistic.ring import Owners, Quorum, Range, begun, finished, wrong_move
from tidemark_operator.keyspaces import Keyspace, is_crowded
from tidemark_operator.metadata import NodeLife
from tidemark_operator.model import Node
from tidemark_operator.ring_plan import plan_ring

ROOM = 100


def plan(of: Keyspace, ranges: list[Range], known: dict[str, Node], room: int = ROOM) -> dict[int, list[str]]:
    found = plan_ring(of, ranges, known, room)
    assert all(wrong_move(ranges[index], owners) is None for index, owners in found.items())
    return {index: [each.node for each in owners.members] for index, owners in found.items()}


def settled(of: Keyspace, ranges: list[Range], known: dict[str, Node], room: int = 4) -> tuple[list[Range], int]:
    """Carry out plans until none is left; return the ranges, and how many moves that took."""
    moves = 0
    while found := plan_ring(of, ranges, known, room):
        assert len(found) <= room
        moves += len(found)
        assert moves < 1000, "this never ends"
        ranges = [
            finished(begun(record, found[index])) if index in found else record for index, record in enumerate(ranges)]
    return ranges, moves


def first(of: Keyspace, known: dict[str, Node]) -> list[Range]:
    lists = placed(of.partitions, of.zones(known), of.factor, of.number)
    return [Range(1, Owners(owners, of.quorum)) for owners in lists]


def loads(ranges: list[Range]) -> Counter[str]:
    return Counter(each.node for record in ranges for each in record.own.members)


@pytest.mark.parametrize(("count", "zones"), [(3, ""), (3, "abc"), (5, "ab"), (6, "aab"), (7, "abcc")])
def test_d63_a_ring_as_it_was_placed_stays(count: int, zones: str) -> None:
    known, of = nodes(count, zones), keyspace(partitions=16)
    assert plan(of, first(of, known), known) == {}


def test_an_owner_whose_disk_is_gone_is_replaced_by_the_new_disk_and_one_that_is_down_is_not() -> None:
    down = {**nodes(4, "abc"), "n3": node("n3", "c", up=False)}
    assert plan(keyspace(), ring("n1 n2 n3", "n2 n3 n4"), down) == {}
    ranges = ring("n1 n2 n3", "n2 n3 n1")
    new = Member("n3", "another-life")
    known = {**nodes(3, "abc"), "n3": replace(node("n3", "c"), member=new)}
    found = plan_ring(keyspace(), ranges, known, ROOM)
    assert [found[0].members, found[1].members] == [
        (member("n1"), member("n2"), new), (member("n2"), new, member("n1"))]
    del known["n3"]
    assert plan(keyspace(), ranges, known) == {}, "no other node is there"
    known["n4"] = node("n4", "c")
    assert plan(keyspace(), ranges, known) == {0: ["n1", "n2", "n4"], 1: ["n2", "n4", "n1"]}


def test_a_range_that_lost_more_owners_comes_first() -> None:
    known = nodes(5)
    ranges = ring("n1 n2 n4", "n2 n3 n6", "n1 n6 n7")
    assert list(plan(keyspace(partitions=4), ranges, known, room=1)) == [2]


@pytest.mark.parametrize("change", [{"life": NodeLife.LEAVES}, {"pool": "old"}, {"emptied": True}])
def test_a_node_that_leaves_or_is_of_another_pool_gives_its_ranges_away(change) -> None:
    known = nodes(4, "abcc")
    known["n3"] = replace(known["n3"], **change)
    of = keyspace(pools=("default",))
    assert plan(of, ring("n1 n2 n3", "n3 n1 n2"), known) == {0: ["n1", "n2", "n4"], 1: ["n4", "n1", "n2"]}
    assert plan(of, ring("n1 n2 n3", "n3 n1 n2"), known, room=1) == {0: ["n1", "n2", "n4"]}


@pytest.mark.parametrize("change", [
    {"draining": True}, {"up": False}, {"wire_version": 4}, {"pool": "other"}])
def test_no_range_moves_to_a_node_that_may_not_take_it(change) -> None:
    known = nodes(4)
    known["n3"] = replace(known["n3"], life=NodeLife.LEAVES)
    known["n4"] = replace(known["n4"], **change)
    assert plan(keyspace(pools=("default",)), ring("n1 n2 n3"), known) == {}


def test_n_grows_and_shrinks_by_one_and_the_quorums_of_each_step_meet() -> None:
    known, three = nodes(5, "abcde"), Quorum(3, 2, 2)
    ranges, moves = settled(keyspace(quorum=Quorum(5, 3, 3)), ring("n1 n2 n3", "n3 n2 n1", quorum=three), known)
    assert moves == 4 and {record.own.quorum for record in ranges} == {Quorum(5, 3, 3)}
    assert [record.version for record in ranges] == [5, 5], "four steps of the record"
    step = plan_ring(keyspace(quorum=three), ranges, known, ROOM)
    assert {owners.quorum for owners in step.values()} == {Quorum(4, 2, 3)} or all(
        owners.quorum.n == 4 and owners.quorum.strict for owners in step.values())
    ranges, _ = settled(keyspace(quorum=three), ranges, known)
    assert {record.own.quorum for record in ranges} == {three}


def test_owners_that_share_a_zone_go_first_when_n_shrinks() -> None:
    ranges = ring("n1 n2 n3 n4", quorum=Quorum(4, 3, 3))
    assert plan(keyspace(partitions=1), ranges, nodes(4, "abac")) in ({0: ["n2", "n3", "n4"]}, {0: ["n1", "n2", "n4"]})


def test_without_a_node_for_one_more_owner_the_quorums_stay() -> None:
    assert plan(keyspace(quorum=Quorum(4, 3, 3)), ring("n1 n2 n3"), nodes(3)) == {}


def test_r_and_w_change_without_other_owners() -> None:
    found = plan_ring(keyspace(quorum=Quorum(3, 1, 3)), ring("n1 n2 n3"), nodes(3), ROOM)
    assert found == {0: Owners(ring("n1 n2 n3")[0].own.members, Quorum(3, 1, 3))}


@pytest.mark.parametrize(("before", "after"), [("abc", "abca"), ("", ""), ("ab", "abb"), ("abc", "abcd")])
def test_d63_a_node_that_comes_is_given_its_share_as_far_as_zones_allow(before: str, after: str) -> None:
    of, known = keyspace(partitions=32), nodes(3, before)
    ranges = first(of, known)
    apart = sum(is_crowded(record, of.zones(known)) for record in ranges)
    known = nodes(4, after)
    ranges, moves = settled(of, ranges, known)
    found = loads(ranges)
    assert moves == found["n4"] and found["n4"] > 0
    assert sum(is_crowded(record, of.zones(known)) for record in ranges) <= apart
    if not after or after == "abcd":
        assert max(found.values()) - min(found.values()) <= 1


def test_nothing_is_evened_out_while_a_range_moves_or_an_owner_is_to_go() -> None:
    known = nodes(4)
    of, ranges = keyspace(partitions=4), ring(*["n1 n2 n3"] * 4)
    assert plan(of, ranges, known, room=1) != {}
    moving = [begun(ranges[0], ring("n1 n2 n4")[0].own), *ranges[1:]]
    assert plan(of, moving, known) == {}
