"""Exchanges between two members that keep their rows and trees by the rules."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Meta, Place, Row, Sort, StringCell, decode_place, encode_place
from tidemark_core.optimistic.exchanging.giving import on_open, on_sketch, on_want, unanswered
from tidemark_core.optimistic.exchanging.messages import Given, Listed, Open, Opened, Sketch, Unanswered, Want
from tidemark_core.optimistic.exchanging.pulling import Ended, Look, LookAt, Outcome, Pull, Take, To
from tidemark_core.optimistic.exchanging.tree import END, LEAF_ROWS, Tally, Tree, Weighed, weigh
from tidemark_core.optimistic.merge import greatest
from tidemark_core.optimistic.messages import RingTold, RowsWrite, Store
from tidemark_core.optimistic.owner import Source
from tidemark_core.optimistic.ring import Range
from tidemark_core.optimistic.standing import Standing, adopted
from tidemark_core.optimistic.storing import kept, on_store

from .cases import A as ACTOR
from .cases import dead, live, stamp
from .owning import CALM, INDEX, MOVING, A, B, C

PAGE = 2 * LEAF_ROWS


class Holding:
    """A member with rows, a tree of them, and the bytes that it sent."""

    def __init__(self, me: Member, rows: dict[Place, Row], record: Range = CALM, leaf_rows: int = LEAF_ROWS) -> None:
        self.standing = Standing(me, record, promise_ms=record.floor_ms)
        self.rows: dict[Place, Row] = {}
        self.tree = Tree(leaf_rows)
        self.sent = 0
        self.asked: list[object] = []
        self.latest_ms = 1_000_000
        self.page = 2 * leaf_rows
        self.leaves_max = 100
        self.grow()
        self.put(rows)

    def put(self, rows: dict[Place, Row]) -> None:
        for place, row in rows.items():
            at, before = encode_place(place), self.weighed(place)
            self.tree.writing(at)
            self.rows[place] = row
            self.tree.wrote(at, before, self.weighed(place))
        self.grow()

    def weighed(self, place: Place) -> Weighed | None:
        return weigh(place, self.rows[place], self.standing.record.floor_ms) if place in self.rows else None

    def grow(self) -> None:
        while (scan := self.tree.next_scan(self.standing.record.floor_ms)) is not None:
            rows, rest = self.within(scan.first, scan.behind)
            assert self.tree.scanned(rows, rest)

    def within(self, first: bytes, behind: bytes) -> tuple[list[Weighed], bytes | None]:
        at = sorted(each for each in map(encode_place, self.rows) if first <= each < behind)
        found = [weighed for each in at[:self.page] if (weighed := self.weighed(decode_place(each))) is not None]
        return found, at[self.page] if len(at) > self.page else None

    def answer(self, m: Open | Sketch | Want | RingTold) -> Opened | Listed | Given | Unanswered | None:
        if isinstance(m, RingTold):
            self.standing = adopted(self.standing, m.record)
            self.grow()
            return None
        if (why := unanswered(self.standing, m.exchange, self.tree)) is not None:
            return why
        match m:
            case Open():
                return on_open(m, self.tree)
            case Sketch():
                found, rest = [], None
                for number, leaf in enumerate(m.leaves):
                    rows, rest = self.within(leaf.first, leaf.behind)
                    found.append(rows)
                    if rest is not None or number + 1 == self.leaves_max < len(m.leaves):
                        rest = rest if rest is not None else m.leaves[number + 1].first
                        break
                return on_sketch(m, found, rest)
            case Want():
                return on_want(m, kept(self.rows, self.standing.record.floor_ms))

    def take(self, rows: tuple[tuple[Place, Row], ...]) -> tuple[int, object]:
        record = self.standing.record
        store = Store(INDEX, record.version, record.floor_ms, 0, 0, Source.OWNER, RowsWrite(rows))
        answer, changed = on_store(self.standing, store, self.latest_ms, self.rows)
        self.put(changed)
        return len(rows), answer.verdict


def pull(puller: Holding, source: Holding) -> Ended:
    """Run an exchange to its end; count the bytes that both send."""
    running = Pull(1, INDEX, source.standing.me, puller.standing.record, puller.tree)
    waiting = running.begin()
    while waiting:
        effect = waiting.pop(0)
        match effect:
            case To(m):
                puller.sent += size(m)
                puller.asked.append(m)
                answer = source.answer(m)
                source.sent += size(answer)
                waiting += heard(running, answer)
            case Look(first, behind):
                rows, rest = puller.within(first, behind)
                waiting += running.on_looked(rows if rest is None else None)
            case LookAt(places):
                found = [weighed for place in places if (weighed := puller.weighed(place)) is not None]
                waiting += running.on_looked_at(found)
            case Take(rows):
                waiting += running.on_taken(*puller.take(rows))  # type: ignore[arg-type]
            case Ended():
                assert not waiting
    assert running.ended is not None and [] == running.resend()
    return running.ended


def heard(running: Pull, answer: Opened | Listed | Given | Unanswered | None) -> list[object]:
    match answer:
        case Opened():
            return list(running.on_opened(answer))
        case Listed():
            return list(running.on_listed(answer))
        case Given():
            return list(running.on_given(answer))
        case Unanswered():
            return list(running.on_unanswered(answer))
    return []


def size(m: object) -> int:
    """About the bytes of a message: those of its parts, with 16 for a header."""
    match m:
        case Open():
            return 16 + sum(len(part.first) + len(part.behind) + 24 for part in m.parts)
        case Opened():
            return 16 + sum(len(part.first) + 20 for part in m.parts) + sum(len(first) + 2 for first, _ in m.leaves)
        case Sketch():
            return 16 + sum(len(leaf.first) + len(leaf.behind) + 8 * len(leaf.buckets) for leaf in m.leaves)
        case Listed():
            return 16 + sum(len(at) + 8 for at, _ in m.rows)
        case Want():
            return 16 + sum(len(encode_place(place)) for place in m.places)
        case Given():
            return 16 + sum(row_size(place, row) for place, row in m.rows)
    return 16


def row_size(place: Place, row: Row) -> int:
    value = row.value if isinstance(row, StringCell) else b""
    return len(encode_place(place)) + 40 + len(value)


def strings_of(numbers: Iterable[int], ms: int = 500, value: bytes = b"x") -> dict[Place, Row]:
    return {Place(Sort.STRING, b"user/%06d" % number): StringCell(stamp(ms), False, 0, value) for number in numbers}


def test_d74_equal_owners_compare_one_digest() -> None:
    one, other = (Holding(me, strings_of(range(3_000))) for me in (A, B))
    assert Outcome.COMPLETE is pull(one, other).outcome
    assert one.sent + other.sent < 100


def test_d74_a_member_gets_what_it_lacks_and_what_is_newer_there() -> None:
    shared = strings_of(range(2_500))
    source = Holding(A, {**shared, **strings_of([7, 1_800], 600, b"new"), **strings_of([9_000])})
    puller = Holding(B, {**shared, **strings_of([9_001])})
    assert Outcome.COMPLETE is pull(puller, source).outcome
    assert {**source.rows, **strings_of([9_001])} == puller.rows

    assert Outcome.COMPLETE is pull(source, puller).outcome
    assert source.rows == puller.rows and source.tree.tally(b"", END) == puller.tree.tally(b"", END)
    assert Outcome.COMPLETE is pull(puller, source).outcome


def test_d74_bytes_moved_are_bounded_by_three_times_the_rows_that_differ_and_64_kib() -> None:
    """Rows that differ lie apart, each in a leaf of its own where there are enough leaves."""
    dice = random.Random(7)
    shared = strings_of(range(10_000), value=b"x" * 1_000)
    source, puller = Holding(A, shared), Holding(B, shared)
    for differing in (1, 20, 200):
        newer = strings_of(dice.sample(range(10_000), differing), 600 + differing, b"y" * 1_000)
        source.put(newer)
        source.sent = puller.sent = 0
        assert Outcome.COMPLETE is pull(puller, source).outcome and source.rows == puller.rows
        rows = sum(row_size(place, row) for place, row in newer.items())
        assert source.sent + puller.sent <= 3 * rows + 64 * 1024


def test_d74_parts_that_are_equal_are_not_opened() -> None:
    shared = strings_of(range(10_000))
    source, puller = Holding(A, {**shared, **strings_of([7_777], 600)}), Holding(B, shared)
    assert Outcome.COMPLETE is pull(puller, source).outcome
    assert 2 == sum(isinstance(m, Open) for m in puller.asked), "the range and one leaf of it"


def test_d74_parts_that_differ_are_compared_in_one_message_a_step() -> None:
    """Rows far apart: the whole, the parts of it, their leaves, and the rows take a message each."""
    shared = strings_of(range(3_000))
    source, puller = Holding(A, shared, leaf_rows=10), Holding(B, shared, leaf_rows=10)
    newer = strings_of(range(7, 3_000, 300), 600)
    source.put(newer)
    assert Outcome.COMPLETE is pull(puller, source).outcome and source.rows == puller.rows
    kinds = [type(m) for m in puller.asked]
    assert len(newer) == 10 and kinds == [Open] * (len(kinds) - 2) + [Sketch, Want] and len(kinds) <= 6


@pytest.mark.parametrize("leaves_max", [1, 3])
def test_d74_leaves_that_the_source_leaves_out_of_an_answer_are_asked_for_again(leaves_max: int) -> None:
    source, puller = Holding(A, strings_of(range(400)), leaf_rows=10), Holding(B, {}, leaf_rows=10)
    source.leaves_max = leaves_max
    assert Outcome.COMPLETE is pull(puller, source).outcome and source.rows == puller.rows


@pytest.mark.parametrize("page", [1, 7])
def test_d74_a_leaf_that_one_of_the_two_reads_in_pieces_is_exchanged_whole(page: int) -> None:
    for slow in (0, 1):
        source, puller = Holding(A, strings_of(range(40))), Holding(B, strings_of(range(20, 60)))
        (source, puller)[slow].page = page
        assert Outcome.COMPLETE is pull(puller, source).outcome
        assert strings_of(range(60)) == puller.rows


def test_d74_an_empty_member_gets_everything() -> None:
    source, puller = Holding(A, strings_of(range(2_500))), Holding(B, {})
    assert Outcome.COMPLETE is pull(puller, source).outcome
    assert source.rows == puller.rows


def test_d74_the_lower_floor_adopts_the_higher_one_first() -> None:
    risen = CALM._replace(floor_ms=700)
    source, puller = Holding(A, strings_of(range(3)), risen), Holding(B, strings_of(range(3)))
    assert Ended(Outcome.INCOMPLETE, risen) == pull(puller, source)

    source.standing = source.standing._replace(promise_ms=700)
    behind = Holding(C, strings_of(range(3)))
    behind.standing = behind.standing._replace(promise_ms=700)
    assert Outcome.COMPLETE is pull(source, behind).outcome and risen == behind.standing.record


def test_d74_a_source_under_an_older_record_is_given_ours_and_one_under_a_newer_one_ends_it() -> None:
    source, puller = Holding(A, strings_of(range(3))), Holding(B, {}, MOVING)
    assert Outcome.COMPLETE is pull(puller, source).outcome and MOVING == source.standing.record
    assert Ended(Outcome.INCOMPLETE, MOVING) == pull(Holding(C, {}), source)


def test_d74_a_row_below_the_floor_that_an_owner_lacks_ends_the_exchange_for_good() -> None:
    """All owners had it before the floor rose: one that lacks it lost it, or the other has an old disk."""
    record = CALM._replace(floor_ms=700)
    source, puller = Holding(A, strings_of([1], 600), record), Holding(B, {}, record)
    assert Outcome.MISMATCH is pull(puller, source).outcome
    assert {} == puller.rows


def test_d74_a_row_from_the_future_leaves_the_exchange_incomplete() -> None:
    source, puller = Holding(A, strings_of([1])), Holding(B, {})
    puller.latest_ms = 499
    assert Outcome.INCOMPLETE is pull(puller, source).outcome


def test_d72_d74_what_a_floor_collects_is_neither_compared_nor_sent() -> None:
    """One owner has removed its tombstones from the disk, another one has not yet."""
    gone: dict[Place, Row] = {Place(Sort.STRING, b"%d" % number): StringCell(stamp(400), True, 0, b"")
                              for number in range(1_500)}
    kept_here = strings_of(range(3), 800)
    source, puller = Holding(A, {**gone, **kept_here}), Holding(B, kept_here)
    for member in (source, puller):
        member.standing = adopted(member.standing._replace(promise_ms=700), CALM._replace(floor_ms=700))
        member.grow()
    assert Outcome.COMPLETE is pull(puller, source).outcome
    assert kept_here == puller.rows and source.sent + puller.sent < 100


# --- lost answers -------------------------------------------------------------------------------------------


def test_d74_a_puller_asks_again_and_late_answers_change_nothing() -> None:
    source, puller = Holding(A, strings_of(range(10))), Holding(B, {})
    running = Pull(1, INDEX, A, CALM, puller.tree)
    [first] = running.begin()
    assert [first] == running.resend()
    assert isinstance(first, To) and isinstance(first.message, Open)
    opened = source.answer(first.message)
    assert isinstance(opened, Opened)
    [look] = running.on_opened(opened)
    assert isinstance(look, Look) and [] == running.on_opened(opened)
    [sketch] = running.on_looked([])
    assert [sketch] == running.resend() and [] == running.on_listed(Listed(first.message.exchange, b"zz", ()))


# --- the tree -----------------------------------------------------------------------------------------------

keys = st.binary(max_size=3)
places = keys.map(lambda key: Place(Sort.STRING, key)) | keys.map(lambda key: Place(Sort.META, key)) | st.tuples(
    keys, keys).map(lambda pair: Place(Sort.ELEMENT, *pair))


@given(st.lists(places))
def test_places_have_bytes_of_their_order(some: list[Place]) -> None:
    assert sorted(some) == [decode_place(at) for at in sorted(map(encode_place, some))]


def a_row(place: Place, ms: int) -> Row:
    match place.sort:
        case Sort.STRING:
            return StringCell(stamp(ms), ms % 3 == 0, 0, b"")
        case Sort.META:
            return Meta(stamp(ms))
        case Sort.ELEMENT:
            return {ACTOR: dead(1, stamp(ms)) if ms % 3 == 0 else live(1, stamp(ms), expires_at_ms=ms * (ms % 2))}


@given(st.lists(st.tuples(places, st.integers(1, 60)), max_size=60), st.data())
def test_d74_a_tree_that_was_kept_up_equals_one_that_was_built_of_the_rows(
    writes: list[tuple[Place, int]], data: st.DataObject
) -> None:
    """Rows are written one after the other and floors rise between them; leaves have three rows at most."""
    member = Holding(A, {}, leaf_rows=3)
    for place, ms in writes:
        member.put({place: a_row(place, ms)})
        if data.draw(st.integers(0, 5)) == 0:
            floor_ms = member.standing.record.floor_ms + data.draw(st.integers(0, 20))
            record = member.standing.record._replace(floor_ms=floor_ms)
            member.standing = Standing(A, record, floor_ms)
            member.grow()
    other = Holding(B, member.rows, member.standing.record, leaf_rows=3)

    assert member.tree.tally(b"", END) == other.tree.tally(b"", END)
    assert Outcome.COMPLETE is pull(member, other).outcome


some_rows = st.dictionaries(places, st.integers(31, 60), max_size=20)


@settings(max_examples=40)
@given(some_rows, some_rows)
def test_d74_two_exchanges_make_two_members_equal(one: dict[Place, int], other: dict[Place, int]) -> None:
    """They are equal once both have removed what is void."""
    first, second = (Holding(me, {place: a_row(place, ms) for place, ms in rows.items()}, leaf_rows=3)
                     for me, rows in ((A, one), (B, other)))
    assert Outcome.COMPLETE is pull(first, second).outcome is pull(second, first).outcome
    first, second = (Holding(A, kept(member.rows, CALM.floor_ms), leaf_rows=3) for member in (first, second))
    shown = [{place: row.cleared if isinstance(row, Meta) else row for place, row in member.rows.items()
              if row != Meta(greatest=greatest(row))} for member in (first, second)]
    assert shown[0] == shown[1] and first.tree.tally(b"", END) == second.tree.tally(b"", END)


def test_d74_a_scan_that_a_write_met_is_done_again() -> None:
    tree = Tree()
    scan = tree.next_scan(0)
    assert scan is not None and not tree.ready and tree.next_scan(0) is None
    place = Place(Sort.STRING, b"k")
    at = encode_place(place)
    tree.writing(at)
    assert tree.scanned([]) and not tree.ready and tree.next_scan(0) is None, "a write is on its way"
    row = weigh(place, a_row(place, 1), 0)
    assert row is not None
    tree.wrote(at, None, row)
    assert tree.next_scan(0) == (at, END), "nothing was written before that place"
    assert tree.scanned([row]) and tree.ready and Tally(1, row.digest) == tree.tally(b"", END)
    built = Tree()
    assert built.next_scan(0) == (b"", END) and built.scanned([row])
    many = [Weighed(encode_place(Place(Sort.STRING, b"%05d" % number)), number, 1 << 62) for number in range(5)]
    for each in many:
        built.writing(each.at)
        built.wrote(each.at, None, each)
    assert built.next_scan(1 << 62) == (b"", END)
    built.writing(many[3].at)
    before = built.tally(b"", END)
    assert not built.scanned([*many, row]) and built.ready and before == built.tally(b"", END), "a known leaf stays"


@pytest.mark.parametrize("count", [LEAF_ROWS, LEAF_ROWS + 1, 5 * LEAF_ROWS])
def test_d74_a_leaf_has_no_more_rows_than_the_limit(count: int) -> None:
    member = Holding(A, strings_of(range(count)))
    parts = member.tree.parts(b"", END, 1_000)
    assert (parts is None) == (count <= LEAF_ROWS)
    assert parts is None or count == sum(part.tally.rows for part in parts)
    assert parts is None or max(part.tally.rows for part in parts) <= LEAF_ROWS


def test_d74_the_memory_of_a_tree_follows_its_rows_also_where_old_rows_go() -> None:
    """A queue: each new key lies behind all others, and the oldest one goes.  Then all of them go."""
    member, leaf_rows, window = Holding(A, {}, leaf_rows=16), 16, 200
    tree, most = member.tree, 0

    def remove(number: int) -> None:
        place = Place(Sort.STRING, b"user/%06d" % number)
        tree.writing(encode_place(place))
        tree.wrote(encode_place(place), weigh(place, member.rows.pop(place), 0), None)
        member.grow()

    for number in range(3_000):
        member.put(strings_of([number]))
        if number >= window:
            remove(number - window)
        most = max(most, tree.leaves)
        assert tree.leaves <= 8 * window // leaf_rows + 2
    assert most > window // leaf_rows
    built = tree.tally(b"", END)
    assert built is not None and window == built.rows
    assert built == Holding(B, member.rows, leaf_rows=16).tree.tally(b"", END)
    other = Holding(B, {**member.rows, **strings_of(range(2_950, 2_955), 900)}, leaf_rows=16)
    assert Outcome.COMPLETE is pull(member, other).outcome and member.rows == other.rows
    for number in range(3_000 - window, 3_000):
        remove(number)
    assert 1 == tree.leaves and Tally(0, 0) == tree.tally(b"", END)


def test_d74_leaves_are_joined_only_while_nothing_of_them_is_on_its_way() -> None:
    member = Holding(A, strings_of(range(40)), leaf_rows=16)
    before = member.tree.leaves
    [(place, row)] = strings_of([0]).items()
    at, weighed = encode_place(place), weigh(place, row, 0)
    for number in range(40):
        [(each, held)] = strings_of([number]).items()
        member.tree.writing(encode_place(each))
        member.tree.wrote(encode_place(each), weigh(each, held, 0), None)
    member.rows.clear()
    member.tree.writing(at)
    member.grow()
    assert 1 < member.tree.leaves < before
    member.tree.wrote(at, None, weighed)
    member.grow()
    assert 1 == member.tree.leaves and Tally(1, weighed.digest if weighed else 0) == member.tree.tally(b"", END)
