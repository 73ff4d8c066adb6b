"""How far a synchro quorum reaches (rules F3, L1, L3, K4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.limbo.quorum import needed_members, synchro_offset
from tidemark_core.limbo.settings import SynchroSettings

from tests.core.support import A, B, C, D, E

FIVE = (A, B, C, D, E)
ZONES = (("a", "east"), ("b", "east"), ("c", "west"), ("d", "west"), ("e", "north"))


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("", [1, 2, 2, 3, 3]), ("N/2+1", [1, 2, 2, 3, 3]), ("N", [1, 2, 3, 4, 5]), ("N-1", [1, 2, 2, 3, 4]),
        ("1", [1, 2, 2, 3, 3]), ("0", [1, 2, 2, 3, 3]), ("4", [1, 2, 3, 4, 4]), ("99", [1, 2, 3, 4, 5]),
        ("N-99", [1, 2, 2, 3, 3]), ("max(N-1, 2)", [1, 2, 2, 3, 4]), ("min(N, 3)", [1, 2, 3, 3, 3]),
        ("N*N", [1, 2, 3, 4, 5]),
    ],
)
def test_f3_a_quorum_is_a_majority_at_least_and_every_member_at_most(formula: str, expected: list[int]) -> None:
    assert expected == [needed_members(SynchroSettings(formula), members) for members in range(1, 6)]


def test_without_settings_every_member_is_asked_for() -> None:
    """A leader that was not told yet never confirms too early."""
    assert [1, 2, 3, 4, 5] == [needed_members(None, members) for members in range(1, 6)]
    assert 3 == synchro_offset(None, FIVE, {A: 9, B: 8, C: 7, D: 6, E: 3})
    assert -1 == synchro_offset(None, FIVE, {A: 9, B: 8, C: 7, D: 6})


@pytest.mark.parametrize("formula", ["N/0", "N+", "__import__('os')", "1e9", "N" * 99, "min(N)"])
def test_a_formula_that_cannot_be_read_asks_for_every_member(formula: str) -> None:
    """It is refused where it is set; should one get here all the same, nothing is confirmed too early."""
    assert 5 == needed_members(SynchroSettings(formula), 5)


@pytest.mark.parametrize(
    ("formula", "matches", "expected"),
    [
        ("", (9, 7, 5, 3, 1), 5), ("4", (9, 7, 5, 3, 1), 3), ("N", (9, 7, 5, 3, 1), 1), ("", (1, 3, 5, 7, 9), 5),
        ("4", (9, 9, 9, -1, -1), -1), ("", (9, 9, 9, -1, -1), 9), ("N", (4, 4, 4, 4, 4), 4),
    ],
)
def test_l3_a_quorum_reaches_as_far_as_that_many_members_hold_durably(
    formula: str, matches: tuple[int, ...], expected: int
) -> None:
    assert expected == synchro_offset(SynchroSettings(formula), FIVE, dict(zip(FIVE, matches, strict=True)))


def test_f16_the_leader_s_own_copy_counts_like_any_other_and_only_once_it_is_durable() -> None:
    """The leader is a: its match is what is durable on its own disk."""
    three = (A, B, C)
    assert 4 == synchro_offset(SynchroSettings("N"), three, {A: 4, B: 9, C: 9})
    assert -1 == synchro_offset(SynchroSettings("N"), three, {A: -1, B: 9, C: 9})


def test_k4_strangers_and_former_members_do_not_count() -> None:
    stranger = Member("c", "c-disk2")

    assert 3 == synchro_offset(SynchroSettings("2"), (A, B, C), {A: 9, D: 9, stranger: 9, B: 3})
    assert -1 == synchro_offset(SynchroSettings("N"), (A, B, C), {A: 9, B: 9, stranger: 9})


@pytest.mark.parametrize(
    ("zones", "matches", "expected"),
    [
        (0, (9, 8, 7, -1, -1), 7), (1, (9, 8, 7, -1, -1), 7), (2, (9, 8, 7, -1, -1), 7), (3, (9, 8, 7, -1, -1), -1),
        (2, (9, 9, 2, 4, -1), 4), (2, (9, 9, 2, 4, 3), 4), (3, (9, 9, 9, 9, 3), 3), (3, (3, 9, 9, 9, 9), 9),
        (4, (9, 9, 9, 9, 9), -1), (2, (9, -1, 9, -1, -1), -1), (3, (9, -1, 9, -1, 4), 4), (2, (9, 3, 9, 5, 1), 5),
    ],
)
def test_acknowledgements_come_from_enough_zones_too(zones: int, matches: tuple[int, ...], expected: int) -> None:
    """a and b are in one zone, c and d in another, e in a third; a zone counts with its best member."""
    settings = SynchroSettings("", zones=zones, zone_of=ZONES)

    assert expected == synchro_offset(settings, FIVE, dict(zip(FIVE, matches, strict=True)))


def test_a_node_without_a_zone_proves_nothing_about_zones() -> None:
    settings = SynchroSettings("", zones=2, zone_of=(("a", "east"), ("b", "east"), ("c", "")))

    assert -1 == synchro_offset(settings, (A, B, C, D, E), dict.fromkeys(FIVE, 9))


members_of = st.lists(st.sampled_from(FIVE), min_size=1, max_size=5, unique=True)


@given(
    members_of, st.lists(st.integers(-1, 6), min_size=5, max_size=5), st.sets(st.sampled_from(FIVE), max_size=1),
    st.sampled_from(["", "N", "N-1", "2", "4", "1"]), st.integers(0, 4),
    st.lists(st.sampled_from(["", "east", "west", "north"]), min_size=5, max_size=5),
)
def test_l3_it_is_the_highest_offset_with_enough_members_in_enough_zones(
    ensemble: list[Member], held: list[int], absent: set[Member], formula: str, zones: int, places: list[str]
) -> None:
    matches = {member: match for member, match in zip(FIVE, held, strict=True) if member not in absent}
    zone_of = tuple((member.node, place) for member, place in zip(FIVE, places, strict=True))
    settings = SynchroSettings(formula, zones=zones, zone_of=zone_of)
    needed = needed_members(settings, len(ensemble))
    assert len(ensemble) // 2 < needed <= len(ensemble)

    def enough(offset: int) -> bool:
        holders = [member for member in ensemble if matches.get(member, -1) >= offset]
        reached = {dict(zone_of)[member.node] for member in holders} - {""}
        return len(holders) >= needed and (zones <= 1 or len(reached) >= zones)

    expected = max((offset for offset in range(7) if enough(offset)), default=-1)
    assert expected == synchro_offset(settings, ensemble, matches)
