"""One member's part of a range, with a disk that is slow and loses what was not written."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.effects import Put, PutMany, ReadRows
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.optimistic.cells import Meta, Place, Sort, StringCell, encode_place
from tidemark_core.optimistic.exchanging.messages import (
    Drawn,
    Exchange,
    Given,
    Listed,
    Open,
    Opened,
    Sketch,
    Unanswered,
    Want,
)
from tidemark_core.optimistic.exchanging.tree import END, UNKNOWN, Part, Tally, Tree, weigh
from tidemark_core.optimistic.floors import PromiseAsked, Promised
from tidemark_core.optimistic.holding import unit as core_unit
from tidemark_core.optimistic.holding import walks
from tidemark_core.optimistic.holding.states import decode_standing, encode_standing
from tidemark_core.optimistic.merge import merge_rows
from tidemark_core.optimistic.messages import (
    Change,
    ClearWrite,
    ElementWrite,
    Load,
    LoadAnswer,
    RingTold,
    RowsWrite,
    Span,
    Store,
    StoreAnswer,
    StringWrite,
)
from tidemark_core.optimistic.owner import Fate, Source
from tidemark_core.optimistic.ring import Owners, Quorum, aborted, begun, finished
from tidemark_core.optimistic.stamps import ZERO
from tidemark_core.optimistic.standing import Standing
from tidemark_core.optimistic.storing import kept, of_element, of_string

from .cases import A as ACTOR
from .cases import live, stamp
from .machine import Machine
from .owning import CALM, INDEX, KEY, MOVING, A, B, C, D

STRING, META = Place(Sort.STRING, KEY), Place(Sort.META, KEY)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.settle()
    return machine


def store(change: Change, operation: int = 5, source: Source = Source.CLIENT, version: int = 7) -> Store:
    return Store(INDEX, version, 10, operation, 1, source, change)


def cell(ms: int, value: bytes = b"x") -> StringCell:
    return StringCell(stamp(ms), False, 0, value)


def string(ms: int, operation: int = 5, **options: Any) -> Store:
    return store(StringWrite(KEY, cell(ms)), operation, **options)


def load(version: int = 7) -> Load:
    return Load(INDEX, version, 10, 6, 1, of_string(KEY))


def test_d60_a_change_is_acknowledged_when_it_is_durable(machine: Machine) -> None:
    machine.hear(string(500))
    machine.read()
    assert [] == machine.sent
    machine.sync()
    [answer] = machine.take(StoreAnswer)
    assert Fate.STORED is answer.verdict.fate and {STRING: cell(500)} == machine.rows()


def test_d60_a_read_shows_what_is_on_its_way_to_the_disk_when_it_is_there(machine: Machine) -> None:
    machine.hear(string(500))
    machine.read()
    machine.hear(load())
    assert [] == machine.sent and not machine.reads, "the row is at hand"
    machine.sync()
    machine.sync()
    [answer] = machine.take(LoadAnswer)
    assert ((STRING, cell(500)),) == answer.rows


def test_d60_changes_of_one_row_are_decided_one_after_the_other(machine: Machine) -> None:
    """Both came before the first was read or written."""
    machine.hear(string(600, 1))
    machine.hear(string(500, 2))
    machine.hear(string(700, 3))
    machine.settle()
    assert [(1, Fate.STORED), (2, Fate.NEWER), (3, Fate.STORED)] == [
        (answer.operation, answer.verdict.fate) for answer in machine.take(StoreAnswer)]
    assert {STRING: cell(700)} == machine.rows()


def test_d60_strings_that_come_together_are_one_read_and_one_write(machine: Machine) -> None:
    for ms in (500, 600):   # the second time over those that are stored
        rows = {Place(Sort.STRING, key): cell(ms) for key in (b"a", b"b", b"c")}
        machine.hear(store(RowsWrite(tuple(rows.items()))))
        assert [3] == [len(read.keys) for read in machine.reads if isinstance(read, ReadRows)]
        machine.read()
        [[written]] = [persist.writes for persist in machine.queue]
        assert isinstance(written, PutMany) and 3 == len(written.rows) and [] == machine.take(StoreAnswer)
        machine.settle()

        assert rows == machine.rows() and [Fate.STORED] == [m.verdict.fate for m in machine.take(StoreAnswer)]
        assert machine.unit.tree.tally(b"", END) == tally_of(machine), "the tree counts each row once"


def test_d58_an_element_is_two_point_reads_and_a_clear_one_whatever_the_size(machine: Machine) -> None:
    for number in range(50):
        machine.hear(store(ElementWrite(KEY, b"%d" % number, {ACTOR: live(number + 1, stamp(500))})))
    machine.settle()
    machine.hear(store(ElementWrite(KEY, b"7", {ACTOR: live(99, stamp(600))})))
    [asked] = machine.reads
    assert isinstance(asked, ReadRows) and 2 == len(asked.keys)
    machine.settle()
    machine.hear(store(ClearWrite(KEY, stamp(700))))
    [asked] = machine.reads
    assert isinstance(asked, ReadRows) and 1 == len(asked.keys)
    machine.read()
    assert 1 == sum(isinstance(write, Put) for write in machine.queue[0].writes)
    machine.settle()
    assert Fate.STORED is machine.take(StoreAnswer)[-1].verdict.fate


def test_d54_the_clock_rises_above_what_is_stored(machine: Machine) -> None:
    machine.hear(string(1_090))
    machine.settle()
    assert machine.unit._clock.draw(1_000).stamp > stamp(1_090)


def test_d64_a_span_is_read_page_by_page(machine: Machine) -> None:
    for key in (b"a", b"b", b"c", b"d"):
        machine.hear(store(StringWrite(key, cell(500))))
    machine.settle()
    first, behind = Place(Sort.STRING, b"a"), Place(Sort.STRING, b"d")
    machine.hear(Load(INDEX, 7, 10, 6, 1, (), Span(first, behind, 2)))
    machine.settle()
    [page] = machine.take(LoadAnswer)
    assert [b"a", b"b"] == [place.key for place, _ in page.rows] and page.behind is not None
    machine.hear(Load(INDEX, 7, 10, 6, 1, (), Span(page.behind, behind, 2)))
    machine.settle()
    [page] = machine.take(LoadAnswer)
    assert [b"c"] == [place.key for place, _ in page.rows] and page.behind is None


# --- standing -----------------------------------------------------------------------------------------------


def test_d65_answers_under_a_newer_record_leave_when_it_is_durable(machine: Machine) -> None:
    machine.hear(RingTold(INDEX, MOVING))
    machine.hear(load(8))
    machine.read()
    assert [] == machine.sent
    machine.sync()
    assert MOVING == machine.unit.durable.record == decode_standing(machine.state).record
    machine.settle()
    assert [None] == [answer.refused for answer in machine.take(LoadAnswer)]
    machine.hear(load(7))
    machine.settle()
    assert [(Fate.OLD_RING, MOVING)] == [(answer.refused, answer.record) for answer in machine.take(LoadAnswer)]


def test_d66_a_member_that_joins_begins_without_rows() -> None:
    """It left before, and its disk has rows of that time; reads of them are under way."""
    machine = Machine(D, Standing(D, CALM))
    machine.put({STRING: cell(400), Place(Sort.STRING, b"other"): cell(490), Place(Sort.STRING, b"third"): cell(450)})
    machine.hear(load())
    machine.hear(RingTold(INDEX, MOVING))
    machine.hear(store(StringWrite(b"other", cell(480)), version=8))
    machine.hear(load(8))
    machine.hear(Load(INDEX, 8, 10, 6, 1, of_string(b"third")))
    while machine.reads:
        machine.read()
    machine.hear(Load(INDEX, 8, 10, 7, 1, of_string(b"other")))
    machine.settle()
    written = (Place(Sort.STRING, b"other"), cell(480))
    assert [(), (), (), (written,)] == [answer.rows for answer in machine.take(LoadAnswer)]
    assert {Place(Sort.STRING, b"other"): cell(480)} == machine.rows() and machine.unit.standing.copying


def test_a_span_ends_behind_so_many_bytes_and_the_next_one_goes_on_there(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer with a thousand of the largest values would fit neither the memory nor a frame."""
    monkeypatch.setattr(walks, "WALK_BYTES", 250)
    monkeypatch.setattr(walks, "PAGE_ROWS", 2)
    keys = [b"%d" % number for number in range(6)]
    for key in keys:
        machine.hear(store(StringWrite(key, cell(500, bytes(100)))))
    machine.settle()
    machine.take(StoreAnswer)
    first, found = Place(Sort.STRING, b""), []
    for _ in range(3):
        machine.hear(Load(INDEX, 7, 10, 6, 1, (), Span(first, Place(Sort.STRING, b"9"), 100)))
        machine.settle()
        [answer] = machine.take(LoadAnswer)
        found.append([place.key for place, _ in answer.rows])
        first = answer.behind
    assert [keys[:2], keys[2:4], keys[4:]] == found


def test_d66_a_span_that_is_asked_for_behind_the_record_of_a_move_shows_no_row_of_the_time_before() -> None:
    """The record waits for an earlier read; the span is read meanwhile."""
    machine = Machine(D, Standing(D, CALM))
    machine.put({STRING: cell(400)})
    machine.settle()
    machine.hear(load())
    machine.hear(RingTold(INDEX, MOVING))
    machine.hear(Load(INDEX, 8, 10, 6, 1, (), Span(Place(Sort.STRING, b""), Place(Sort.STRING, b"z"), 5)))
    machine.reads.rotate(-1)    # the newest read is answered first
    machine.settle()
    assert [()] == [answer.rows for answer in machine.take(LoadAnswer) if answer.refused is None]


def test_d66_no_row_is_read_that_a_record_deletes_while_it_is_not_durable() -> None:
    machine = Machine(D, Standing(D, CALM))
    machine.put({STRING: cell(400)})
    machine.settle()
    machine.hear(RingTold(INDEX, MOVING))
    machine.run(machine.unit.grow())
    while machine.reads:
        machine.read()
    machine.hear(load(8))
    machine.hear(store(StringWrite(KEY, cell(300)), version=8))
    while machine.reads:
        machine.read()
    machine.settle()
    machine.run(machine.unit.grow())
    machine.settle()
    assert [()] == [answer.rows for answer in machine.take(LoadAnswer)] and {STRING: cell(300)} == machine.rows()
    tally = machine.unit.tree.tally(b"", END)
    assert tally is not None and 1 == tally.rows


def test_d66_a_copy_that_ends_under_another_record_ends_no_copy_of_the_new_one() -> None:
    machine = Machine(D, Standing(D, MOVING, copying=True))
    machine.settle()
    machine.hear(RingTold(INDEX, MOVING._replace(version=10)))
    machine.run(machine.unit.copied(8))
    machine.settle()
    assert machine.unit.standing.copying
    machine.run(machine.unit.copied(10))
    machine.settle()
    assert not machine.unit.durable.copying


@pytest.mark.parametrize("span", [
    Span(STRING, STRING, 5), Span(STRING, Place(Sort.STRING, b""), 5), Span(Place(Sort.STRING, b""), STRING, 0)])
def test_d64_a_span_without_places_or_rows_has_none(machine: Machine, span: Span) -> None:
    machine.hear(string(500))
    machine.hear(Load(INDEX, 7, 10, 6, 1, (), span))
    machine.settle()
    assert [()] == [answer.rows for answer in machine.take(LoadAnswer)]


def test_d74_the_tree_is_built_of_many_pages() -> None:
    machine = Machine()
    machine.put({Place(Sort.STRING, b"%05d" % number): cell(500) for number in range(2_500)})
    machine.put({META: Meta(stamp(400), stamp(500)), Place(Sort.ELEMENT, KEY, b"e"): {ACTOR: live(1, stamp(500))}})
    machine.start()
    machine.settle()
    tally = machine.unit.tree.tally(b"", END)
    assert machine.unit.tree.ready and tally is not None and 2_502 == tally.rows


def test_d66_a_member_that_leaves_removes_its_rows() -> None:
    machine = Machine(C, Standing(C, MOVING, 10))
    machine.hear(string(500, version=8))
    machine.settle()
    assert machine.rows()
    machine.hear(RingTold(INDEX, finished(MOVING)))
    machine.settle()
    assert {} == machine.rows()


def test_d66_an_owner_that_stays_keeps_its_rows(machine: Machine) -> None:
    machine.hear(string(500))
    machine.settle()
    for record in (MOVING, aborted(MOVING), begun(aborted(MOVING), Owners((A, B, C, D), Quorum(4, 2, 3)))):
        machine.hear(RingTold(INDEX, record))
    machine.settle()
    assert {STRING: cell(500)} == machine.rows()


def test_d69_a_promise_is_answered_when_it_is_durable_and_holds(machine: Machine) -> None:
    machine.hear(PromiseAsked(INDEX, 3, 7, 600))
    machine.hear(string(600))
    machine.hear(PromiseAsked(INDEX, 4, 7, 550))
    machine.read()
    assert [] == machine.sent
    machine.settle()
    assert [Promised(INDEX, 3), Promised(INDEX, 4)] == machine.take(Promised)
    assert [Fate.BELOW] == [answer.verdict.fate for answer in machine.take(StoreAnswer)]
    assert 600 == decode_standing(machine.state).promise_ms
    machine.hear(PromiseAsked(INDEX, 5, 6, 700))
    machine.settle()
    assert [] == machine.sent, "of another version"


def test_d71_an_old_disk_withdraws_and_says_so(machine: Machine) -> None:
    machine.hear(RingTold(INDEX, CALM._replace(floor_ms=700)))
    machine.hear(load())
    machine.settle()
    assert [Fate.NOT_OWNER] == [answer.refused for answer in machine.take(LoadAnswer)]
    assert ["range_withdrawn"] == machine.traces and decode_standing(machine.state).withdrawn


# --- crashes ------------------------------------------------------------------------------------------------


def test_d60_after_a_crash_there_is_what_was_acknowledged(machine: Machine) -> None:
    machine.hear(string(500, 1))
    machine.read()
    machine.sync()
    machine.hear(string(600, 2))
    machine.hear(RingTold(INDEX, MOVING))
    machine.start()
    machine.settle()
    assert {STRING: cell(500)} == machine.rows() and CALM == machine.unit.standing.record
    machine.hear(load())
    machine.settle()
    assert ((STRING, cell(500)),) == machine.take(LoadAnswer)[0].rows


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"format": 2}', b'{"format": 1, "me": ["a"]}'])
def test_a_damaged_standing_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteViolation):
        decode_standing(data)


def test_a_standing_is_read_as_it_was_written() -> None:
    for standing in (Standing(A, CALM), Standing(D, MOVING, 77, copying=True), Standing(A, CALM, withdrawn=True)):
        assert standing == decode_standing(encode_standing(standing))


# --- exchanges ----------------------------------------------------------------------------------------------


def test_d74_a_source_answers_from_what_is_durable(machine: Machine) -> None:
    head = Exchange(INDEX, 7, 10, 1)
    machine.hear(string(500))
    machine.read()
    machine.hear(Open(head, (Part(b"", END, UNKNOWN),)))
    machine.settle()
    assert [False] == [bool(opened.leaves or opened.parts) for opened in machine.take(Opened)]
    machine.hear(Open(head, (Part(b"", END, UNKNOWN),)))
    machine.hear(Sketch(head, (Drawn(b"", END),)))
    machine.hear(Want(head, (STRING,)))
    machine.settle()
    assert [((b"", END),)] == [opened.leaves for opened in machine.take(Opened)]
    assert [(encode_place(STRING),)] == [tuple(at for at, _ in listed.rows) for listed in machine.take(Listed)]
    assert [((STRING, cell(500)),)] == [given.rows for given in machine.take(Given)]
    machine.hear(Want(Exchange(INDEX, 6, 10, 1), (STRING,)))
    machine.settle()
    assert [(Fate.OLD_RING, CALM)] == [(no.why, no.record) for no in machine.take(Unanswered)]


def test_d74_a_source_compares_leaves_one_behind_the_other_while_the_answer_has_room(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.hear(string(500))
    machine.hear(store(StringWrite(KEY + b"z", cell(501))))
    machine.settle()
    places = (encode_place(STRING), encode_place(Place(Sort.STRING, KEY + b"z")))
    sketch = Sketch(Exchange(INDEX, 7, 10, 1), (Drawn(b"", places[1]), Drawn(places[1], END)))
    for rows_max, expected in (
        (core_unit.PAGES_MAX, (places[:1], places[1])), (core_unit.LISTED_ROWS_MAX, (places, None)),
    ):
        monkeypatch.setattr(core_unit, "LISTED_ROWS_MAX", rows_max)
        machine.hear(sketch)
        machine.settle()
        assert [expected] == [(tuple(at for at, _ in listed.rows), listed.rest) for listed in machine.take(Listed)]


# --- any order of anything ----------------------------------------------------------------------------------

changes = st.one_of(
    st.builds(lambda key, ms: StringWrite(key, cell(ms)), st.sampled_from([b"k", b"l"]), st.integers(11, 60)),
    st.builds(lambda element, n, ms: ElementWrite(KEY, element, {ACTOR: live(n, stamp(ms))}),
              st.sampled_from([b"d", b"e"]), st.integers(1, 9), st.integers(11, 60)),
    st.builds(lambda ms: ClearWrite(KEY, stamp(ms)), st.integers(11, 60)),
)


@settings(max_examples=150)
@given(st.data())
def test_d60_what_was_answered_as_stored_is_on_the_disk_and_the_tree_equals_the_rows(data: st.DataObject) -> None:
    """Changes come while others are read, written and removed; floors rise; the process stops and starts again."""
    machine = Machine()
    asked: dict[int, Store] = {}
    for number in range(data.draw(st.integers(0, 25))):
        match data.draw(st.sampled_from("ssslrrrwwwfgx")):
            case "s":
                asked[number] = store(data.draw(changes), number)
                machine.hear(asked[number])
            case "l":
                version = machine.unit.standing.record.version
                places = (*of_string(KEY), *of_element(KEY, b"e"))
                machine.hear(Load(INDEX, version, 10, number, 1, places))
            case "r" if machine.reads:
                machine.read()
            case "w" if machine.queue:
                machine.sync()
            case "f":
                floor_ms = machine.unit.standing.record.floor_ms + data.draw(st.integers(0, 5))
                machine.hear(PromiseAsked(INDEX, number, 7, floor_ms))
                machine.hear(RingTold(INDEX, CALM._replace(floor_ms=floor_ms)))
            case "g":
                machine.run(machine.unit.grow())
            case "x":
                machine.start()
        judge(machine, asked)
    while machine.reads or machine.queue:
        if machine.reads:
            machine.read()
        else:
            machine.sync()
        judge(machine, asked)   # before what an answer showed is removed
    for _ in range(5):
        machine.run(machine.unit.grow())
        machine.settle()
    floor_ms, rows = machine.unit.standing.record.floor_ms, machine.rows()
    left = kept(rows, floor_ms)
    assert machine.unit.removing.idle and all(left.get(place) == row for place, row in rows.items() if not (
        isinstance(row, Meta) and row.cleared == ZERO)), "nothing void is left"
    assert tally_of(machine) == machine.unit.tree.tally(b"", END)


def tally_of(machine: Machine) -> Tally | None:
    """Return the tally of what is on the disk."""
    floor_ms, built = machine.unit.standing.record.floor_ms, Tree()
    assert built.next_scan(floor_ms) is not None
    weighed = [weight for place, row in sorted(machine.rows().items(), key=lambda item: item[0])
               if (weight := weigh(place, row, floor_ms)) is not None]
    assert built.scanned(weighed)
    return built.tally(b"", END)


def judge(machine: Machine, asked: dict[int, Store]) -> None:
    """Each answer that has left says what is on the disk by now."""
    rows, floor_ms = machine.rows(), machine.unit.standing.record.floor_ms
    for loaded in machine.take(LoadAnswer):
        for place, row in loaded.rows:
            assert merge_rows(rows[place], row) == rows[place]
    for answer in machine.take(StoreAnswer):
        if answer.verdict.fate is not Fate.STORED:
            continue
        match asked[answer.operation].change:
            case StringWrite(key, written):
                assert rows[Place(Sort.STRING, key)] >= written  # type: ignore[operator]
            case ElementWrite(key, element, row):
                held, meta = rows.get(Place(Sort.ELEMENT, key, element), {}), rows.get(Place(Sort.META, key), Meta())
                assert isinstance(held, dict) and isinstance(meta, Meta)
                assert row[ACTOR].stamp <= meta.cleared or held[ACTOR] >= row[ACTOR]
            case ClearWrite(key, cleared):
                meta = rows.get(Place(Sort.META, key), Meta())
                assert isinstance(meta, Meta) and (meta.cleared >= cleared or cleared.ms <= floor_ms)
