"""Placing: owners apart by zones, equally many ranges for each member, and who takes over (D63)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.placing import placed, replaced

Case = tuple[int, dict[Member, str], int]
Lists = tuple[tuple[Member, ...], ...]


def member(node: str, life: str = "disk") -> Member:
    return Member(node, life)


def nodes(*sizes: int) -> dict[Member, str]:
    """Return members of zones of these sizes: z0 has z0-0, z0-1 and so on."""
    return {member(f"z{zone}-{number}"): f"z{zone}" for zone, size in enumerate(sizes) for number in range(size)}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a number of ranges, 3 to 12 members in up to 5 zones, and a number of owners."""
    zones = draw(st.lists(st.integers(0, 4), min_size=3, max_size=12))
    known = {member(f"n{number}"): f"z{zone}" for number, zone in enumerate(zones)}
    return 1 << draw(st.integers(0, 6)), known, draw(st.integers(1, min(5, len(known))))


@st.composite
def equal_cases(draw: st.DrawFn) -> Case:
    """Draw zones that are equally large."""
    known = nodes(*[draw(st.integers(1, 3))] * draw(st.integers(1, 4)))
    return 1 << draw(st.integers(0, 6)), known, draw(st.integers(1, min(5, len(known))))


def owned(lists: Lists, known: dict[Member, str]) -> Counter[Member]:
    """Return how many ranges each member owns."""
    return Counter({each: sum(each in owners for owners in lists) for each in known})


@given(cases())
def test_d63_owners_lie_in_as_many_zones_as_there_are(case: Case) -> None:
    partitions, known, n = case
    lists = placed(*case)
    sizes = Counter(known.values())

    assert len(lists) == partitions
    for owners in lists:
        there = Counter(known[owner] for owner in owners)
        assert len(owners) == len(set(owners)) == n
        assert len(there) == min(n, len(sizes))
        assert all(max(there.values()) <= there[zone] + 1 or there[zone] == sizes[zone] for zone in sizes)


@given(equal_cases())
def test_d63_members_of_equal_zones_own_equally_many_ranges(case: Case) -> None:
    partitions, known, n = case
    lists = placed(*case)
    firsts = Counter(owners[0] for owners in lists)

    assert set(owned(lists, known).values()) <= {n * partitions // len(known), -(-n * partitions // len(known))}
    assert {firsts[each] for each in known} <= {partitions // len(known), -(-partitions // len(known))}


@given(cases())
def test_d63_members_own_equally_many_ranges_as_far_as_zones_allow(case: Case) -> None:
    """A member owns two ranges more than another one only where the zones of both have no choice."""
    partitions, known, n = case
    lists = placed(*case)
    load, sizes = owned(lists, known), Counter(known.values())
    level = max(each for each in range(n + 1) if sum(min(size, each) for size in sizes.values()) <= n)
    total = Counter(known[owner] for owners in lists for owner in owners)

    for one in known:
        for other in known:
            zone, its = known[one], known[other]
            if load[one] > load[other] + 1:
                assert zone != its
                least = total[zone] == partitions * min(level, sizes[zone])
                most = total[its] == partitions * min(level + 1, sizes[its])
                assert least or most


@given(cases())
def test_d63_members_are_the_first_owner_of_equally_many_ranges(case: Case) -> None:
    """Each range could have each of its owners as the first one equally often: no member need be off by one."""
    _, known, n = case
    lists = placed(*case)
    load, firsts = owned(lists, known), Counter(owners[0] for owners in lists)

    assert max(firsts.values()) <= -(-max(load.values()) // n)
    assert min(firsts[each] for each in known) >= min(load.values()) // n


@given(cases(), st.randoms(use_true_random=False))
def test_d63_the_same_arguments_give_the_same_owners(case: Case, random: Random) -> None:
    partitions, known, n = case
    other = list(known.items())
    random.shuffle(other)

    assert placed(partitions, dict(other), n) == placed(partitions, known, n)


@pytest.mark.parametrize("known", [nodes(3, 3, 3), {member(f"n{number}"): "" for number in range(9)}])
def test_d63_many_members_take_over_for_one(known: dict[Member, str]) -> None:
    lists = placed(64, known, 3)

    for one in known:
        assert len({each for owners in lists if one in owners for each in owners if each != one}) >= 5
        assert len({owners[1] for owners in lists if one == owners[0]}) >= 3


def test_d63_small_keyspaces_share_all_members() -> None:
    """One with a single range has three of nine members: a hundred of them must not all have the same three."""
    known = nodes(3, 3, 3, 3)
    lists = [owners for keyspace in range(1, 101) for owners in placed(1, known, 3, keyspace)]
    load, firsts = owned(tuple(lists), known), Counter(owners[0] for owners in lists)

    assert min(load.values()) >= 100 * 3 // len(known) // 2
    assert min(firsts[each] for each in known) >= 100 // len(known) // 4


@pytest.mark.parametrize(("n", "wrong"), [(4, "4 owners .* of 3 nodes"), (0, "0 owners .* of 3 nodes")])
def test_d63_too_few_nodes_are_refused(n: int, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        placed(8, nodes(2, 1), n)


# --- in the place of one ------------------------------------------------------------------------------------


@given(cases(), st.data())
def test_d63_a_new_owner_keeps_owners_apart(case: Case, data: st.DataObject) -> None:
    known = case[1]
    lists = placed(*case)
    owners = data.draw(st.sampled_from(lists))
    leaving = data.draw(st.sampled_from(owners))
    staying = [known[owner] for owner in owners if owner != leaving]
    left = [each for each in known if each not in owners]

    new = replaced(owners, leaving, known, owned(lists, known))

    if not left:
        assert new is None
        return
    assert new in left
    assert len({*staying, known[new]}) == max(len({*staying, known[each]}) for each in left)
    assert staying.count(known[new]) == min(staying.count(known[each]) for each in left)


A1, A2, B1, B2, C1, A1_NEW, C1_NEW = (
    member("a1"), member("a2"), member("b1"), member("b2"), member("c1"), member("a1", "new"), member("c1", "new"))
ZONES = {A1: "a", A2: "a", B1: "b", B2: "b", C1: "c"}


@pytest.mark.parametrize(
    ("owners", "leaving", "known", "load", "new"),
    [
        ((A1, B1, C1), B1, ZONES, {B2: 90}, B2),
        ((A1, B1, C1), C1, ZONES, {A2: 5, B2: 4}, B2),
        ((A1, B1, C1), C1, ZONES, {}, A2),
        ((A1, B1, C1), C1, dict(reversed(ZONES.items())), {A2: 4, B2: 4}, A2),
        ((A1, B1), A1, {A1: "a", B1: "b"}, {}, None),
        ((A1, B1, C1), C1, ZONES | {C1_NEW: "c"}, {C1_NEW: 9}, C1_NEW),
        ((A1, B1), B1, {A1_NEW: "a"}, {}, None),
        ((A1, B1), B1, {A1_NEW: "a", A2: "a", C1: "c"}, {C1: 9}, C1),
        ((A1, B1), B1, {A1: "", A2: "", C1: "c"}, {C1: 1}, A2),
        ((A1, B1), B1, {A2: "a", C1: "c"}, {C1: 1}, A2),
    ],
    ids=[
        "a zone before load", "load among equal zones", "name among equals", "name whatever the order", "none left",
        "a new life of the node that leaves", "no new life of another owner", "a zone known from a new life",
        "no zone is a zone of its own", "an owner whose zone is not known",
    ],
)
def test_d63_one_member_takes_the_place_of_an_owner(
    owners: tuple[Member, ...], leaving: Member, known: dict[Member, str], load: dict[Member, int], new: Member | None
) -> None:
    assert new == replaced(owners, leaving, known, load)
