"""A member's disk loses what floors collect and clears make void, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import cast

import pytest
from tidemark_core.base.effects import Delete, Persist, ScanRows
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Element, Meta, Place, Row, Sort, StringCell
from tidemark_core.optimistic.exchanging.messages import Exchange, Given, Want
from tidemark_core.optimistic.exchanging.pulling import Ended, Outcome
from tidemark_core.optimistic.exchanging.tree import END
from tidemark_core.optimistic.floors import PromiseAsked
from tidemark_core.optimistic.holding import unit
from tidemark_core.optimistic.holding.layout import place_of
from tidemark_core.optimistic.holding.removing import PAGE_ROWS, Removed
from tidemark_core.optimistic.holding.unit import PAGES_MAX
from tidemark_core.optimistic.messages import ClearWrite, ElementWrite, Load, LoadAnswer, RingTold, Store, StoreAnswer
from tidemark_core.optimistic.owner import Fate, Source
from tidemark_core.optimistic.ring import Range, finished
from tidemark_core.optimistic.stamps import Stamp
from tidemark_core.optimistic.standing import Standing
from tidemark_core.optimistic.storing import of_element, of_string

from .cases import A as ACTOR
from .cases import B as OTHER
from .cases import dead, live, stamp
from .machine import Machine
from .owning import CALM, INDEX, KEY, MOVING, A, B, C, D
from .test_copying import Puller, cluster, put
from .test_copying import settle as deliver
from .test_holder import Holding

META = Place(Sort.META, KEY)
RISEN = CALM._replace(floor_ms=700)


def member(record: Range = CALM, rows: dict[Place, Row] | None = None, me: Member = A) -> Machine:
    """Return a member that has just started with these rows on its disk."""
    machine = Machine(me, Standing(me, record, promise_ms=record.floor_ms))
    machine.put(rows or {})
    machine.start()
    return machine


def settle(machine: Machine) -> None:
    """Let the disk and the ticks finish everything."""
    for _ in range(20):
        machine.settle()
        if machine.unit.removing.idle and machine.unit.tree.settled:
            return
        machine.run(machine.unit.grow())
    raise AssertionError("the removal does not end")


def steps(machine: Machine) -> Iterator[None]:
    """Yield behind every step of the disk and of ticks until nothing is left to do."""
    for _ in range(10_000):
        if machine.reads:
            machine.read()
        elif machine.queue:
            machine.sync()
        elif machine.unit.removing.idle and machine.unit.tree.settled:
            return
        else:
            machine.run(machine.unit.grow())
        yield
    raise AssertionError("the removal does not end")


def rise(machine: Machine, record: Range = RISEN) -> None:
    machine.hear(PromiseAsked(INDEX, 1, record.version, record.floor_ms))
    machine.hear(RingTold(INDEX, record))
    machine.run(machine.unit.grow())


def element(name: bytes, key: bytes = KEY) -> Place:
    return Place(Sort.ELEMENT, key, name)


def elements(count: int, ms: int = 400, key: bytes = KEY) -> dict[Place, Row]:
    return {element(b"%05d" % number, key): {ACTOR: live(number + 1, stamp(ms))} for number in range(count)}


def string(key: bytes, ms: int, *, deleted: bool = False, expires_at_ms: int = 0) -> dict[Place, Row]:
    return {Place(Sort.STRING, key): StringCell(stamp(ms), deleted, expires_at_ms, b"")}


def clear(ms: int, operation: int = 1) -> Store:
    return Store(INDEX, 7, 10, operation, 1, Source.CLIENT, ClearWrite(KEY, stamp(ms)))


def add(name: bytes, ms: int, operation: int = 2) -> Store:
    row = {ACTOR: live(ms * 10, stamp(ms))}
    return Store(INDEX, 7, 10, operation, 1, Source.CLIENT, ElementWrite(KEY, name, row))


def void(machine: Machine, cleared: Stamp) -> bool:
    """Say whether the disk has an element of the key that a clear made void."""
    return any(cell.stamp <= cleared for place, row in machine.rows().items() if place.sort is Sort.ELEMENT
               for cell in cast("Element", row).values())


def grown(rows: dict[Place, Row], record: Range) -> object:
    """Return the tally of a member that reads these rows when it starts."""
    machine = member(record, rows)
    settle(machine)
    return machine.unit.tree.tally(b"", END)


# --- floors -------------------------------------------------------------------------------------------------


def test_d59_d71_below_a_floor_tombstones_and_expired_values_go_and_live_rows_stay() -> None:
    stays: dict[Place, Row] = {
        **string(b"live", 400), **string(b"later", 400, expires_at_ms=701), **string(b"new", 701, deleted=True),
        element(b"live"): {ACTOR: live(1, stamp(400))},
        Place(Sort.META, b"young"): Meta(greatest=stamp(800)), element(b"e", b"young"): {ACTOR: dead(1, stamp(800))},
    }
    goes: dict[Place, Row] = {
        **string(b"deleted", 700, deleted=True), **string(b"expired", 400, expires_at_ms=700),
        META: Meta(greatest=stamp(400)), element(b"dead"): {ACTOR: dead(1, stamp(400))},
        element(b"expired"): {OTHER: live(1, stamp(400), b"", 700)},
        Place(Sort.META, b"gone"): Meta(greatest=stamp(500)), element(b"e", b"gone"): {ACTOR: dead(1, stamp(500))},
    }
    mixed = element(b"mixed")
    machine = member(CALM, {**stays, **goes, mixed: {ACTOR: dead(1, stamp(400)), OTHER: live(1, stamp(400, OTHER))}})
    settle(machine)
    assert {**stays, **goes}.keys() | {mixed} == machine.rows().keys(), "no floor has risen"
    rise(machine)
    settle(machine)

    left = {**stays, mixed: {OTHER: live(1, stamp(400, OTHER))}}
    del left[Place(Sort.META, b"young")]
    assert {**left, Place(Sort.META, b"young"): Meta(greatest=stamp(800))} == machine.rows()
    assert grown(machine.rows(), RISEN) == machine.unit.tree.tally(b"", END)


def test_d71_what_a_floor_collects_goes_after_a_restart_too() -> None:
    machine = member(RISEN, {**string(b"deleted", 400, deleted=True), **string(b"live", 400),
                             META: Meta(greatest=stamp(400))})
    settle(machine)
    assert string(b"live", 400) == machine.rows()


def test_d59_with_the_last_element_of_a_key_its_row_goes() -> None:
    """The row of the key has no clear, so no tree waits for it."""
    machine = member(CALM, {META: Meta(greatest=stamp(500)), element(b"e"): {ACTOR: dead(1, stamp(500))}})
    settle(machine)
    rise(machine, CALM._replace(floor_ms=499))
    settle(machine)
    assert {META, element(b"e")} == machine.rows().keys()
    rise(machine)
    settle(machine)
    assert {} == machine.rows()


def test_d71_a_scan_waits_for_the_rows_of_the_scan_before_it() -> None:
    machine = member(CALM, {place: row for number in range(5_000)
                            for place, row in string(b"%05d" % number, 400, deleted=True).items()})
    settle(machine)
    rise(machine)
    most = max(len(machine.unit.removing._found) for _ in steps(machine))
    assert {} == machine.rows() and PAGE_ROWS < most <= PAGES_MAX


# --- clears -------------------------------------------------------------------------------------------------


def test_d58_behind_a_clear_no_element_is_on_disk_and_one_that_was_added_later_is() -> None:
    others = elements(3, 400, b"another")
    machine = member(CALM, {**elements(1_200), META: Meta(greatest=stamp(400)), **others})
    settle(machine)
    machine.hear(clear(500))
    machine.hear(add(b"00007", 600))
    settle(machine)

    added: dict[Place, Row] = {element(b"00007"): {ACTOR: live(6_000, stamp(600))}}
    assert {META: Meta(stamp(500), stamp(600)), **added, **others} == machine.rows()
    assert grown(machine.rows(), CALM) == machine.unit.tree.tally(b"", END)
    rise(machine, CALM._replace(floor_ms=500))
    settle(machine)
    assert {META: Meta(greatest=stamp(600)), **added, **others} == machine.rows(), "the clear is collected"


def test_d58_an_element_row_is_written_without_its_void_cells() -> None:
    both: Element = {ACTOR: live(1, stamp(500)), OTHER: live(1, stamp(500, OTHER))}
    machine = member(CALM, {META: Meta(stamp(500), stamp(500, OTHER)), element(b"e"): both})
    settle(machine)
    assert {OTHER: both[OTHER]} == machine.rows()[element(b"e")]


def test_d58_a_clear_that_comes_from_an_owner_removes_elements_too() -> None:
    machines = cluster(A, B)
    put(machines[A], {META: Meta(stamp(500), stamp(500))})
    put(machines[B], {META: Meta(greatest=stamp(400)), **elements(3)})
    deliver(machines.values())
    machines[B].pull(A)
    deliver(machines.values())
    settle(machines[B])
    assert {META: Meta(stamp(500), stamp(500))} == machines[B].rows()


def test_d59_a_clear_stays_until_its_elements_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor is above the clear from the start, and the scans of the tree show no element beside it."""
    monkeypatch.setattr(unit, "PAGES_MAX", 1)
    machine = member(RISEN, {META: Meta(stamp(500), stamp(500)), **elements(1_200)})
    seen = set()
    for _ in steps(machine):
        seen.add(META in machine.rows())
        assert META in machine.rows() or not void(machine, stamp(500))
    assert {} == machine.rows() and {True, False} == seen


def test_d58_each_clear_is_walked_when_it_is_found_and_below_the_floor_and_a_key_without_one_never() -> None:
    young, bare = Place(Sort.META, b"young"), Place(Sort.META, b"bare")
    machine = member(CALM, {META: Meta(stamp(500), stamp(500)), **elements(2), young: Meta(stamp(800), stamp(800)),
                            **elements(2, 800, b"young"), bare: Meta(greatest=stamp(800)), **elements(2, 800, b"bare")})
    assert [b"k", b"young"] == walked(machine)
    assert {META, young, bare, *elements(2, 800, b"bare")} == machine.rows().keys()
    rise(machine)
    assert [b"k"] == walked(machine)


def walked(machine: Machine) -> list[bytes]:
    """Let everything finish; return the keys whose elements are read."""
    keys: dict[bytes, None] = {}
    for _ in steps(machine):
        for asked in machine.reads:
            if isinstance(asked, ScanRows) and len(asked.first) > 9:
                keys[place_of(asked.first).key] = None
    return list(keys)


@pytest.mark.parametrize("steps_before", range(1, 13))
def test_d59_a_clear_that_comes_while_the_elements_of_another_one_go_stays_until_its_own_are_gone(
    steps_before: int
) -> None:
    """An element is added behind the walk, then cleared, and the floor rises above both clears."""
    machine = member(CALM, {META: Meta(stamp(500), stamp(500)), **elements(1_200)})
    for number, _ in enumerate(steps(machine)):
        if number == steps_before:
            machine.hear(add(b"00000", 600))
            machine.hear(clear(650))
            rise(machine)
        meta = machine.rows().get(META, Meta())
        assert isinstance(meta, Meta)
        assert not void(machine, stamp(650)) or meta.cleared >= stamp(500)
        assert element(b"00000") not in machine.rows() or meta.cleared >= stamp(500)
    assert [Fate.STORED] * 2 == [answer.verdict.fate for answer in machine.take(StoreAnswer)]
    assert {} == machine.rows()


# --- writes and crashes meanwhile ---------------------------------------------------------------------------


def orders(one: str, other: str) -> Iterable[str]:
    """Return all orders of two rows of letters, each in its own order."""
    places = range(len(one) + len(other))
    for chosen in product((True, False), repeat=len(places)):
        if sum(chosen) == len(one):
            first, second = iter(one), iter(other)
            yield "".join(next(first if each else second) for each in chosen)


@pytest.mark.parametrize("name", [b"00000", b"new"])
@pytest.mark.parametrize("by_floor", [True, False])
def test_d58_d60_a_write_that_comes_while_a_page_goes_is_not_lost(by_floor: bool, name: bytes) -> None:
    """In every order of the message and the steps of the disk; r and w are reads and writes of it."""
    removed: dict[Place, Row] = (
        {element(b"00000"): {ACTOR: dead(1, stamp(400))}, META: Meta(greatest=stamp(400))} if by_floor
        else {**elements(1), META: Meta(stamp(500), stamp(500))})
    tried = 0
    for order in orders("m", "rrrrrrrr"):
        for writes in range(3):
            machine = member(RISEN, removed)
            for each in order:
                match each:
                    case "m":
                        machine.hear(add(name, 800))
                    case "r" if machine.reads:
                        machine.read()
                        for _ in range(writes):
                            if machine.queue:
                                machine.sync()
            settle(machine)
            [answer] = machine.take(StoreAnswer)
            assert Fate.STORED is answer.verdict.fate
            assert {META: Meta(greatest=stamp(800)), element(name): {ACTOR: live(8_000, stamp(800))}} == machine.rows()
            assert grown(machine.rows(), RISEN) == machine.unit.tree.tally(b"", END)
            tried += 1
    assert 27 == tried


def test_d58_after_a_crash_between_two_pages_the_rest_goes() -> None:
    machine = member(CALM, elements(1_200))
    settle(machine)
    machine.hear(clear(500))
    for _ in steps(machine):
        if len(machine.rows()) == 1 + 1_200 - PAGE_ROWS:
            break
    machine.start()
    settle(machine)
    assert {META: Meta(stamp(500), stamp(500))} == machine.rows()


@pytest.mark.parametrize("steps_before", range(12))
def test_d66_a_member_that_leaves_while_rows_go_and_comes_back_removes_nothing_of_its_new_time(
    steps_before: int
) -> None:
    machine = member(MOVING, {META: Meta(stamp(500), stamp(500)), **elements(1_200)}, C)
    for number, _ in enumerate(steps(machine)):
        if number == steps_before:
            break
    machine.hear(RingTold(INDEX, finished(MOVING)))
    machine.hear(RingTold(INDEX, MOVING._replace(version=10)))
    row = {ACTOR: live(9, stamp(450))}
    machine.hear(Store(INDEX, 10, 10, 1, 1, Source.OWNER, ElementWrite(KEY, b"00001", row)))
    settle(machine)
    assert {META: Meta(greatest=stamp(450)), element(b"00001"): row} == machine.rows()


def test_d66_no_page_from_before_a_record_that_deletes_the_rows_goes_on_behind_it(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record waits for an earlier read, and the walk over elements waits for the record."""
    machine = member(MOVING, {META: Meta(stamp(500), stamp(500))}, C)
    for _ in range(3):
        machine.read()
    machine.hear(Load(INDEX, 8, 10, 6, 1, of_string(b"s")))
    machine.hear(RingTold(INDEX, finished(MOVING)))
    machine.read()
    removing = machine.unit.removing
    assert removing._busy and not machine.queue
    before = removing._page
    monkeypatch.setattr(removing, "_walked", lambda *_: pytest.fail("the walk goes on"))
    machine.settle()
    assert removing.idle and {} == machine.rows()

    removing.cleared(KEY)
    machine.run(removing.go_on())
    page = removing._page
    machine.run(machine.on_event(Removed(INDEX, before)))
    assert page == removing._page, "one page at a time"


def test_d58_a_clear_of_many_elements_goes_page_by_page_and_reads_are_answered_between() -> None:
    machine = member(CALM, {META: Meta(greatest=stamp(400)), **elements(5_000)})
    settle(machine)
    machine.hear(clear(500))
    pages, answers, waited = [], 0, []
    seen: list[Persist] = []
    for _ in steps(machine):
        for persist in machine.queue:
            removed = sum(isinstance(write, Delete) for write in persist.writes)
            if removed and not any(persist is each for each in seen):
                seen.append(persist)
                pages.append(removed)
                waited.append(len(pages) - answers)
                machine.hear(Load(INDEX, 7, 10, 6, 1, of_string(b"s")))
        answers += len(machine.take(LoadAnswer))
    assert [PAGE_ROWS] * 10 == pages and 10 == answers
    assert 1 == max(waited), "each read is answered before the next page is removed"


# --- other members ------------------------------------------------------------------------------------------


def lazy(machine: Puller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a member remove nothing."""
    monkeypatch.setattr(machine.unit.removing, "go_on", lambda: [])


def pair(monkeypatch: pytest.MonkeyPatch, one: dict[Place, Row], other: dict[Place, Row],
         record: Range = CALM) -> dict[Member, Puller]:
    """Return an owner that has removed all that it can, and one that has removed nothing."""
    machines = cluster(A, B, record=record)
    put(machines[A], one)
    settle(machines[A])
    put(machines[B], other)
    lazy(machines[B], monkeypatch)
    deliver(machines.values())
    return machines


@pytest.mark.parametrize(("floor_ms", "known"), [(10, True), (450, True), (700, True), (10, False), (450, False)])
def test_d58_d74_an_owner_that_removed_elements_gets_none_back_and_both_become_equal(
    monkeypatch: pytest.MonkeyPatch, floor_ms: int, known: bool
) -> None:
    """The other one has not removed them, or has not heard of the clear, which is above the floor then."""
    record = CALM._replace(floor_ms=floor_ms)
    cleared: dict[Place, Row] = {META: Meta(stamp(500), stamp(500))}
    before: dict[Place, Row] = {META: Meta(greatest=stamp(400))}
    machines = pair(monkeypatch, {**cleared, **elements(1_200)}, {**(cleared if known else before), **elements(1_200)},
                    record)
    left = {} if floor_ms == 700 else cleared
    assert left == machines[A].rows() and 1_201 == len(machines[B].rows())
    machines[A].pull(B)
    deliver(machines.values())
    assert [Ended(Outcome.COMPLETE)] == machines[A].ends and left == machines[A].rows()

    monkeypatch.undo()
    machines[B].pull(A)
    deliver(machines.values())
    settle(machines[B])
    assert [Ended(Outcome.COMPLETE)] == machines[B].ends and left == machines[B].rows()
    assert machines[A].unit.tree.tally(b"", END) == machines[B].unit.tree.tally(b"", END)


def test_d71_d74_owners_of_which_one_has_removed_its_tombstones_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {**string(b"deleted", 400, deleted=True), **string(b"live", 400),
            element(b"e"): {ACTOR: dead(1, stamp(400)), OTHER: live(1, stamp(400, OTHER))}}
    machines = pair(monkeypatch, rows, rows, RISEN)
    assert 2 == len(machines[A].rows()) and 3 == len(machines[B].rows())
    assert machines[A].unit.tree.tally(b"", END) == machines[B].unit.tree.tally(b"", END) is not None


@pytest.mark.parametrize("floor_ms", [10, 700])
def test_d58_d66_a_newcomer_gets_nothing_void_also_where_the_row_of_the_key_is_collected(
    monkeypatch: pytest.MonkeyPatch, floor_ms: int
) -> None:
    record = MOVING._replace(floor_ms=floor_ms)
    lasting: dict[Place, Row] = {element(b"00001"): {OTHER: live(7, stamp(600))}}
    cleared: dict[Place, Row] = {META: Meta(stamp(500), stamp(600))}
    machines = pair(monkeypatch, {}, {**cleared, **elements(3), **lasting}, record)
    newcomer = machines[D] = Puller(D, Standing(D, record, copying=True))
    deliver(machines.values())
    newcomer.pull(B)
    deliver(machines.values())
    settle(newcomer)
    assert [Ended(Outcome.COMPLETE)] == newcomer.ends
    of_key = cleared if floor_ms == 10 else {META: Meta(greatest=stamp(600))}
    assert {**of_key, **lasting} == newcomer.rows()


def test_d58_d74_a_source_reads_the_row_of_the_key_before_it_gives_an_element(monkeypatch: pytest.MonkeyPatch) -> None:
    both: Element = {ACTOR: live(1, stamp(500)), OTHER: live(1, stamp(500, OTHER))}
    machines = pair(monkeypatch, {}, {META: Meta(stamp(500), stamp(500, OTHER)), element(b"e"): both, **elements(1)})
    machines[B].hear(Want(Exchange(INDEX, 7, 10, 1), (element(b"e"), element(b"00000"))), A)
    machines[B].settle()
    assert [((element(b"e"), {OTHER: both[OTHER]}),)] == [given.rows for given in machines[B].take(Given)]


def test_d58_d72_a_read_is_given_nothing_void_before_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared: dict[Place, Row] = {META: Meta(stamp(500), stamp(500))}
    machines = pair(monkeypatch, {}, {**cleared, **elements(1)})
    machines[B].hear(Load(INDEX, 7, 10, 6, 1, of_element(KEY, b"00000")))
    machines[B].settle()
    assert [tuple(cleared.items())] == [answer.rows for answer in machines[B].take(LoadAnswer)]


def test_d58_a_member_is_not_idle_while_rows_go() -> None:
    machine = Holding(A, Standing(A, CALM, CALM.floor_ms))
    machine.put(elements(1_200))
    machine.start()
    machine.settle()
    assert machine.holder.idle
    machine.hear(clear(500))
    machine.settle()
    assert not machine.holder.idle and 1_201 == len(machine.rows()), "a tick begins it"
    machine.tick()
    machine.read()
    assert not machine.holder.idle
    machine.settle()
    assert machine.holder.idle and {META} == machine.rows().keys()
