"""Copysets: the order a leader gives to each entry, spread over slots and zones, sticky for a block (K1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.delivery.copysets import BLOCK_BYTES, BLOCK_BYTES_MIN, BLOCK_MS, Copysets
from tidemark_core.delivery.order import slots_of

MIB = 1 << 20
ENTRY = 100_000


def ensemble(size: int) -> tuple[Member, ...]:
    return tuple(Member(f"n{slot}", "x") for slot in range(size))


def zones_of(text: str) -> tuple[tuple[str, str], ...]:
    """Read the zones of n0, n1, ..: one letter each, a dot for one that is not known."""
    return tuple((f"n{slot}", zone) for slot, zone in enumerate(text) if zone != ".")


class Log:
    """What a leader appends, by order."""

    def __init__(self, size: int, seed: int = 0, zones: str = "", block_bytes: int = BLOCK_BYTES) -> None:
        self.ensemble = ensemble(size)
        self.zones = zones_of(zones)
        self.copysets = Copysets(seed, block_bytes)
        self.down: list[Member] = []
        self.now_ms = 0
        self.orders: list[tuple[tuple[int, ...], int]] = []

    def append(self, total: int, entry: int = ENTRY) -> Log:
        while total > 0:
            order = self.copysets.order(self.now_ms, entry, self.ensemble, self.down, self.zones)
            self.orders.append((slots_of(order, len(self.ensemble)), entry))
            total -= entry
        return self

    def bytes_by(self, places: int) -> Counter[int]:
        """Return how many bytes each slot stands for among the first places."""
        found: Counter[int] = Counter()
        for slots, size in self.orders:
            for slot in slots[:places]:
                found[slot] += size
        return found

    def blocks(self) -> list[tuple[tuple[int, ...], int]]:
        """Return the runs of one order and their bytes."""
        runs: list[tuple[tuple[int, ...], int]] = []
        for slots, size in self.orders:
            if runs and runs[-1][0] == slots:
                runs[-1] = slots, runs[-1][1] + size
            else:
                runs.append((slots, size))
        return runs


@pytest.mark.parametrize("total", [60, 300, 330, 1000])
def test_k1_three_members_send_a_third_each_of_a_log_of_some_hundred_megabytes(total: int) -> None:
    log = Log(3).append(total * MIB)
    shares = [sent / (total * MIB) for sent in log.bytes_by(1).values()]
    assert len(shares) == 3 and all(abs(share - 1 / 3) < 0.1 / 3 for share in shares), shares


@pytest.mark.parametrize("size", range(2, 8))
def test_every_prefix_of_the_order_is_spread_so_storage_is_even_for_any_number_of_copies(size: int) -> None:
    log = Log(size).append(1000 * MIB)
    for places in range(1, size + 1):
        held = log.bytes_by(places)
        mean = sum(held.values()) / size
        assert all(abs(held[slot] - mean) < 0.1 * mean for slot in range(size)), (places, held)


@pytest.mark.parametrize("size", range(3, 7))
def test_all_others_take_over_the_load_of_a_dead_slot(size: int) -> None:
    log = Log(size).append(5000 * MIB)
    taken: Counter[tuple[int, int]] = Counter()
    for slots, sent in log.orders:
        taken[slots[0], slots[1]] += sent
    mean = 5000 * MIB / size / (size - 1)
    assert len(taken) == size * (size - 1)
    assert all(0.7 * mean < sent < 1.3 * mean for sent in taken.values()), taken


def test_shards_and_epochs_begin_with_different_slots() -> None:
    firsts = [Log(3, seed).append(1).orders[0][0][0] for seed in range(3)]
    assert {0, 1, 2} == set(firsts)


def test_an_order_holds_for_a_block_that_begins_small_and_grows_to_its_full_length() -> None:
    log = Log(3).append(3000 * MIB)
    sizes = [size for _, size in log.blocks()]
    assert BLOCK_BYTES_MIN <= sizes[0] < BLOCK_BYTES_MIN + ENTRY
    assert BLOCK_BYTES <= max(sizes) < BLOCK_BYTES + ENTRY
    before = 0
    for size in sizes:
        assert size < max(BLOCK_BYTES_MIN, before / 30) + ENTRY
        before += size


def test_blocks_may_be_shorter_than_the_least_when_the_settings_say_so() -> None:
    log = Log(3, block_bytes=10_000).append(100_000, entry=1000)
    assert {10_000} == {size for _, size in log.blocks()}


def test_a_block_ends_after_ten_minutes() -> None:
    log = Log(3).append(1)
    log.now_ms = BLOCK_MS - 1
    log.append(1)
    assert 1 == len(log.blocks())
    log.now_ms = BLOCK_MS
    log.append(1)
    assert 2 == len(log.blocks())
    log.now_ms = 2 * BLOCK_MS - 1
    assert 2 == len(log.append(1).blocks())


def test_a_clock_that_was_put_back_does_not_stretch_a_block() -> None:
    log = Log(3)
    log.now_ms = 10 * BLOCK_MS
    log.append(1)
    log.now_ms = 0
    assert 2 == len(log.append(1).blocks())


def test_slots_believed_dead_stand_right_most_from_their_death_to_their_return() -> None:
    log = Log(5).append(100 * MIB)
    log.orders.clear()
    log.down = [log.ensemble[1], log.ensemble[3]]
    log.append(100 * MIB)
    assert all({1, 3} == set(slots[-2:]) for slots, _ in log.orders)
    assert {0, 2, 4} == set(log.bytes_by(1))
    log.orders.clear()
    log.down = []
    log.append(100 * MIB)
    sent = log.bytes_by(1)
    assert {0, 1, 2, 3, 4} == set(sent)
    assert max(sent.values()) < 0.25 * 100 * MIB, "who comes back is not given everything it missed"


def test_a_new_ensemble_is_spread_over_all_its_slots() -> None:
    log = Log(3).append(100 * MIB)
    log.ensemble = ensemble(4)
    log.orders.clear()
    log.append(100 * MIB)
    assert {0, 1, 2, 3} == set(log.bytes_by(1)) and all(4 == len(slots) for slots, _ in log.orders)
    log.ensemble = ensemble(2)
    log.orders.clear()
    log.append(100 * MIB)
    assert {0, 1} == set(log.bytes_by(1)) and all(2 == len(slots) for slots, _ in log.orders)


def test_a_swap_begins_a_block_and_keeps_what_the_slots_have() -> None:
    log = Log(3).append(ENTRY)
    log.ensemble = (*log.ensemble[:2], Member("n9", "y"))
    log.append(2 * ENTRY)
    assert [ENTRY, 2 * ENTRY] == [size for _, size in log.blocks()]
    assert [0, 1] == [slots[0] for slots, _ in log.blocks()]


def test_zones_that_become_known_begin_a_block() -> None:
    log = Log(3).append(ENTRY)
    log.zones = zones_of("aab")
    log.append(ENTRY)
    assert 2 == len(log.blocks())


@pytest.mark.parametrize(
    ("zones", "down"), [("aab", ()), ("aabbc", ()), ("aaabb.", ()), ("abab", (1,)), ("aaab", (0,))]
)
def test_the_first_places_span_as_many_zones_as_there_are(zones: str, down: Sequence[int]) -> None:
    log = Log(len(zones), zones=zones)
    log.down = [log.ensemble[slot] for slot in down]
    log.append(300 * MIB)
    alive = [slot for slot in range(len(zones)) if slot not in down]
    known = {zones[slot] for slot in alive} - {"."}
    for slots, _ in log.orders:
        for places in range(1, len(alive) + 1):
            spanned = {zones[slot] for slot in slots[:places]} - {"."}
            room = places - (zones[slots[0]] == ".")
            assert len(spanned) == min(room, len(known)), (slots, places)
    assert set(log.bytes_by(1)) == set(alive)


@given(
    size=st.integers(1, 16), seed=st.integers(0, 100),
    steps=st.lists(
        st.tuples(st.integers(1, 4 * MIB), st.sets(st.integers(0, 15)), st.text("abc.", min_size=16, max_size=16)),
        max_size=30,
    ),
)
def test_an_order_is_a_permutation_of_all_slots_with_the_dead_at_the_right(size: int, seed: int, steps: list) -> None:
    log = Log(size, seed)
    for entry, down, zones in steps:
        log.down = [Member(f"n{slot}", "x") for slot in down]
        log.zones = zones_of(zones)
        log.append(1, entry)
        slots = log.orders[-1][0]
        assert sorted(slots) == list(range(size))
        dead = [slot for slot in slots if slot in down]
        assert not dead or slots[-len(dead):] == tuple(dead)


def test_nobody_to_order() -> None:
    assert 0 == Copysets(0).order(0, 1, (), ())
