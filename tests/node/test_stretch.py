"""Stretches: every offset is one member's to send, whatever is cut where, and payloads of others are never touched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from delivery_harness import LogMaker, order_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidemark_core.base.effects import DropPayloads, Persist, PutEntry, Wipe
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import ShardId, of_shard
from tidemark_core.delivery.messages import HOLE_BYTES, NOT_HELD, Item, Start, singly
from tidemark_core.delivery.order import Mode
from tidemark_core.delivery.stretch import Asked, Hole, Rule, Stretch
from tidemark_node.store import Store, open_store
from tidemark_node.store_errors import StoreDamaged
from tidemark_node.stretch import take

S1 = ShardId(1)
AT = of_shard(S1)
PLENTY = 1 << 40
NODES = ("N0", "N1", "N2", "N3", "N4", "N5")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Store]:
    store = open_store(tmp_path / "data", "a")
    yield store
    store.close()


def put(store: Store, entries: list[Entry]) -> None:
    store.apply([Persist(AT, tuple(map(PutEntry, entries)))])


def rule(
    me: str, nodes: tuple[str, ...] = NODES, mode: Mode = Mode.SINGLE_COPY, down: tuple[str, ...] = (),
    near: tuple[int, ...] = (),
) -> Rule:
    return Rule(Start(1, 0, -1, mode, down, nodes, near, 0), me)


def look(
    store: Store, of: Rule, first: int, last: int, *, until: int = -1, holes: Any = (), budget: int = PLENTY,
    entries_max: int = 1 << 30,
) -> Stretch:
    orders: list[tuple[int, int]] = []
    with suppress(StoreDamaged):
        orders += [(header.base, header.order) for header in store.headers(S1, 0) if header.kind is Kind.DATA]

    def order_at(offset: int) -> int:
        return next((order for base, order in reversed(orders) if base <= offset), 0)

    ranges = [Hole(begin, end, order_at(end)) for begin, end in holes]
    return take(store, S1, of, Asked(first, last, until, order_at(first), ranges, budget, entries_max))


def firsts(found: Stretch) -> list[int]:
    return [item.first for item in singly(found.items)]


# --- the tables of the source, read from a store ------------------------------------------------------------------

GOLDEN = {
    42: (1, 0, 2, 3), 43: (3, 5, 0, 1), 44: (0, 1, 2, 3), 45: (4, 0, 5, 2), 46: (0, 3, 2, 1), 47: (4, 3, 2, 5),
    48: (1, 4, 0, 5),
}
LOCAL = (1, 1, 1, 0, 0, 0)  # N0, N1 and N2 are local


@pytest.fixture
def golden(opened: Store) -> Store:
    made = LogMaker(42)
    for order in GOLDEN.values():
        made.data(order_of(*order))
    put(opened, made.entries)
    return opened


@pytest.mark.parametrize(
    ("me", "down", "expected"),
    [
        ("N0", (), [44, 46]),                                   # S3
        ("N0", ("N1",), [42, 44, 46]),                          # S5
        ("N0", ("N1", "N4"), [42, 44, 45, 46, 48]),
        ("N0", ("N0", "N1"), [42, 44, 46]),                     # S6: who finds itself listed goes on
        ("N1", (), [42, 48]), ("N2", (), []), ("N3", (), [43]), ("N4", (), [45, 47]), ("N5", (), []),
    ],
)
def test_golden_table_of_single_copy(golden: Store, me: str, down: tuple[str, ...], expected: list[int]):
    found = look(golden, rule(me, down=down), 42, 48)
    assert (expected, 48, False) == (firsts(found), found.through, found.more)


@pytest.mark.parametrize(
    ("me", "down", "expected"),
    [
        ("N0", (), [43, 44, 45, 46]), ("N1", (), [42, 48]), ("N2", (), [47]),                   # S35
        ("N3", (), []), ("N4", (), []), ("N5", (), []),
        ("N1", ("N0",), [42, 43, 44, 48]), ("N2", ("N0",), [45, 46, 47]),
        ("N4", ("N0", "N1", "N2"), [45, 47, 48]),                                               # S36
    ],
)
def test_golden_table_of_local_reading(golden: Store, me: str, down: tuple[str, ...], expected: list[int]):
    assert expected == firsts(look(golden, rule(me, mode=Mode.LOCAL, down=down, near=LOCAL), 42, 48))


def test_everybody_sends_everything_in_all_send_all(golden: Store):
    for me in NODES:
        assert [*GOLDEN] == firsts(look(golden, rule(me, mode=Mode.ALL_SEND_ALL, down=("N0", "N5")), 42, 48))


def test_explained_as_it_is_sent(golden: Store):
    of = rule("N0", down=("N1",))
    assert (("N1", "N0", "N2", "N3", "N4", "N5"), "N0", ("N1", "N0")) == of.explain(order_of(*GOLDEN[42]))
    near = rule("N0", mode=Mode.LOCAL, near=LOCAL)
    assert (("N0", "N1", "N2", "N3", "N5", "N4"), "N0", ("N0",)) == near.explain(order_of(3, 5, 0, 1))
    everybody = rule("N0", mode=Mode.ALL_SEND_ALL)
    assert (tuple(NODES), "", tuple(NODES)) == everybody.explain(order_of(0, 1, 2, 3, 4, 5))
    assert "" == rule("N0", down=NODES).explain(order_of(0, 1))[1]


# --- cutting ------------------------------------------------------------------------------------------------------


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Entry], list[tuple[int, int]], int]:
    """A log of three members with rolled-back ranges, and the offset to begin at."""
    made, holes = LogMaker(), []
    made.control(Kind.EPOCH_START)
    for rolled_back in draw(st.lists(st.booleans(), max_size=6)):
        base = made.entries[-1].last + 1
        for _ in range(draw(st.integers(1, 4))):
            if draw(st.integers(0, 5)):
                made.data(order_of(*draw(st.permutations([0, 1, 2]))), records=draw(st.integers(1, 5)))
            else:
                made.control(Kind.CONFIRM, base - 1)
        if rolled_back:
            holes.append((base, made.entries[-1].last))
            made.control(Kind.ROLLBACK, base)
    return made.entries, holes, draw(st.integers(0, made.entries[-1].last))


@given(logs(), st.sets(st.sampled_from("abc"), max_size=2), st.sampled_from([Mode.SINGLE_COPY, Mode.LOCAL]), st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_offset_comes_from_one_member_however_it_is_cut(
    opened: Store, log: Any, down: set[str], mode: Mode, data: st.DataObject
):
    """Holes are whole, coverage has no gap, and who is not listed sends the others' part exactly once."""
    entries, holes, first = log
    opened.apply([Persist(AT, (Wipe(), *map(PutEntry, entries)))])
    last = entries[-1].last
    clipped = [(max(begin, first), end) for begin, end in holes if end >= first]
    near = tuple(data.draw(st.lists(st.integers(0, 5), min_size=3, max_size=3)))
    sent: list[Item] = []
    for me in sorted({*"abc"} - down):
        of, position = rule(me, tuple("abc"), mode, tuple(sorted(down)), near), first
        while position <= last:
            found = look(
                opened, of, position, last, holes=[hole for hole in clipped if hole[0] >= position],
                budget=data.draw(st.integers(0, 400)), entries_max=data.draw(st.integers(1, 5)),
            )
            assert found.through >= position - 1 and found.damaged_at is None
            assert all(position <= item.last <= found.through for item in found.items)
            sent += singly(found.items)
            position = found.through + 1
            if found.more:
                found = look(opened, of, position, last, holes=[h for h in clipped if h[0] >= position], budget=1)
                (only,) = found.items               # at least one, however small
                assert 1 == only.entry_count and only.first <= position
                sent += singly(found.items)
                position = found.through + 1
    expected = [
        (entry.base, entry.last, entry) for entry in entries
        if entry.last >= first and not any(begin <= entry.base <= end for begin, end in holes)
    ]
    expected += [(begin, end, None) for begin, end in clipped]
    assert sorted((begin, end) for begin, end, _ in expected) == sorted((item.first, item.last) for item in sent)
    whole = {begin: body and (body,) for begin, _, body in expected}
    assert all(whole[item.first] == item.body for item in sent)


def test_hole_goes_out_with_the_block_in_which_it_ends_and_so_do_control_entries(opened: Store):
    """Nothing in it goes out by itself; a control entry in it is part of it."""
    made = LogMaker()
    made.control(Kind.EPOCH_START)                  # 0
    made.data(order_of(1, 0))                       # 1
    made.data(order_of(1, 0), records=3)            # 2..4
    made.control(Kind.CONFIRM, 1)                   # 5
    made.data(order_of(0, 1))                       # 6
    made.control(Kind.ROLLBACK, 2)                  # 7
    made.data(order_of(1, 0))                       # 8
    made.control(Kind.CONFIRM, 8)                   # 9
    put(opened, made.entries)
    a, b = rule("a", ("a", "b")), rule("b", ("a", "b"))
    found = look(opened, a, 0, 9, holes=[(2, 6)])
    assert [(0, 0), (2, 6), (7, 7)] == [(item.first, item.last) for item in found.items]
    assert (None, 9) == (found.items[1].body, found.through)
    assert [1, 8, 9] == firsts(look(opened, b, 0, 9, holes=[(2, 6)]))
    found = look(opened, a, 3, 9, holes=[(3, 6)])   # the reader begins inside: cut there, for everybody alike
    assert [(3, 6), (7, 7)] == [(item.first, item.last) for item in found.items]
    assert 6 == look(opened, b, 2, 9, holes=[(2, 6)], entries_max=1).through    # in one go, however much lies in it


def test_window_and_frame_bound_what_is_brought(opened: Store):
    made = LogMaker()
    for number in range(6):
        made.data(order_of(*((0, 1) if number % 2 == 0 else (1, 0))), payload=bytes(1000))
    put(opened, made.entries)
    a, size = rule("a", ("a", "b")), made.entries[0].size
    for budget, expected, through in (
        (0, [], -1), (1, [0], 1), (size, [0], 1), (size + 1, [0, 2], 3), (PLENTY, [0, 2, 4], 5)
    ):
        found = look(opened, a, 0, 5, budget=budget)
        assert (expected, through, through < 5) == (firsts(found), found.through, found.more), budget
    only_looked = look(opened, a, 1, 5, budget=0)   # coverage reaches to what is ours, and no further
    assert ([], 1, True) == (firsts(only_looked), only_looked.through, only_looked.more)


def test_until_ends_with_the_entry_that_holds_it(opened: Store):
    made = LogMaker()
    for _ in range(4):
        made.data(records=10)
    put(opened, made.entries)
    found = look(opened, rule("a", ("a",)), 5, 39, until=15)
    assert ([0, 10], 19) == (firsts(found), found.through)


def test_payloads_of_others_are_not_read(opened: Store, monkeypatch: pytest.MonkeyPatch):
    made = LogMaker()
    for number in range(6):
        made.data(order_of(*((0, 1) if number % 2 == 0 else (1, 0))))
    put(opened, made.entries)
    read: list[int] = []
    whole = Store.whole
    monkeypatch.setattr(
        Store, "whole", lambda self, shard, headers: read.extend(h.base for h in headers) or whole(self, shard, headers)
    )
    assert [1, 3, 5] == firsts(look(opened, rule("b", ("a", "b")), 0, 5))
    assert [1, 3, 5] == read


def test_damage_ends_a_stretch_only_where_it_is_ours(opened: Store):
    made = LogMaker()
    for number in range(6):
        made.data(order_of(*((0, 1) if number % 2 == 0 else (1, 0))))
    put(opened, made.entries)
    put(opened, [made.entries[2]._replace(payload=b"not what was written")])
    a, b = rule("a", ("a", "b")), rule("b", ("a", "b"))
    found = look(opened, a, 0, 5)
    assert ([0], 1, 2, False) == (firsts(found), found.through, found.damaged_at, found.more)
    found = look(opened, b, 0, 5)
    assert ([1, 3, 5], 5, None) == (firsts(found), found.through, found.damaged_at)
    put(opened, [made.entries[3]._replace(header=bytes(len(made.entries[3].header)))])
    found = look(opened, b, 0, 5)
    assert ([1], 2, 3) == (firsts(found), found.through, found.damaged_at)
    put(opened, made.entries)
    assert [0, 2, 4] == firsts(look(opened, a, 0, 5))


def test_more_orders_than_are_remembered(opened: Store):
    """The decisions are remembered per order, and what is remembered is bounded."""
    of = rule("N0")
    for order in range(10_000):
        assert of.ours(order << 4) and not of.ours((order << 4) + 1)
    assert len(of._decided) <= 4096


def test_entries_that_lie_together_go_as_one_item(opened: Store):
    made = LogMaker()
    for turn in (0, 0, 0, 1, 0, 0):
        made.data(order_of(turn, 1 - turn), records=2)
    put(opened, made.entries)
    of = rule("a", ("a", "b"))
    assert [(0, 5, 3), (8, 11, 2)] == [(i.first, i.last, i.entry_count) for i in look(opened, of, 0, 11).items]
    cut = look(opened, of, 0, 11, holes=[(2, 3)]).items
    assert [(0, 1, 1), (2, 3, 1), (4, 5, 1), (8, 11, 2)] == [(i.first, i.last, i.entry_count) for i in cut]
    opened.apply([Persist(AT, (DropPayloads(8, 9),))])
    bare = look(opened, of, 0, 11).items
    assert [(0, 5, 3), (8, 9, 1), (10, 11, 1)] == [(i.first, i.last, i.entry_count) for i in bare]


# --- payloads that others keep ------------------------------------------------------------------------------------


def test_what_is_ours_and_not_held_is_said(opened: Store):
    """K17: neither passed over as if it were another's, nor left out."""
    made = LogMaker()
    entries = [made.data(order_of(number % 2, 1 - number % 2)) for number in range(6)]
    put(opened, entries)
    opened.apply([Persist(AT, (DropPayloads(1, 2),))])
    ours = look(opened, rule("N0", NODES[:2]), 0, 5)
    assert [(0, True), (2, False), (4, True)] == [(item.first, item.body is not NOT_HELD) for item in ours.items]
    assert ours.damaged_at is None and ours.through == 5
    everything = look(opened, rule("N0", NODES[:2], Mode.ALL_SEND_ALL), 0, 5)
    assert [1, 2] == [item.first for item in everything.items if item.body is NOT_HELD]
    assert [HOLE_BYTES, HOLE_BYTES] == [item.size for item in everything.items if item.body is NOT_HELD]
    assert [1, 3, 5] == firsts(look(opened, rule("N1", NODES[:2]), 0, 5))
