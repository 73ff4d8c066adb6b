"""Inspections: what nodes answer about a key, which cell decides and why, and what becomes of nodes that are silent."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.cells import Element, Meta, Place, Row, Sort, StringCell
from tidemark_core.optimistic.coordinating.inspecting import NODES_MAX, PATIENCE, Inspection, inspect, winner_of
from tidemark_core.optimistic.coordinating.operations import put_element, set_, unset
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.retracting import Repaired, repair_future
from tidemark_core.optimistic.hinting.hints import Hint, hint_of
from tidemark_core.optimistic.inspection import CELLS_MAX, Facts, HintsKept, inspected, part_of, seen
from tidemark_core.optimistic.messages import Inspect, Inspected, Part
from tidemark_core.optimistic.plane import Assign, Cluster, Operate
from tidemark_core.optimistic.ring import Range
from tidemark_core.optimistic.stamps import Actor
from tidemark_core.optimistic.standing import Standing
from tidemark_core.optimistic.storing import of_element, of_string

from .cases import A as ONE
from .cases import B as OTHER
from .cases import dead, live, stamp
from .owning import CALM, INDEX, KEY, MOVING, A, B, C, D
from .test_holder import Holding
from .test_plane import NEW, UNIT, Node
from .test_repairing import World

STRING = Place(Sort.STRING, KEY)
META, ELEMENT = of_element(KEY, b"e")
ASKED = Inspect(INDEX, 5, (STRING,))


def said(rows: dict[Place, Row], me: Member = A, record: Range = CALM, **standing: Any) -> Inspected:
    """Return what an owner with these rows answers."""
    return inspected(Inspect(INDEX, 5, tuple(rows)), record, Facts(), Standing(me, record, **standing), rows)


def text(ms: int, value: bytes = b"x", *, deleted: bool = False, expires_at_ms: int = 0) -> dict[Place, Row]:
    return {STRING: StringCell(stamp(ms), deleted, expires_at_ms, value)}


def found(place: Place = STRING, now_ms: int = 1_000, **answers: Inspected) -> Any:
    members = {member.node: member for member in (A, B, C, D)}
    inspection = Inspection(Outcome.OK, CALM, {members[name]: m for name, m in answers.items()}, ())
    return winner_of(inspection, place, now_ms)


# --- why ----------------------------------------------------------------------------------------------------------


def test_d55_the_greatest_stamp_of_a_string_wins_and_owners_without_it_are_named() -> None:
    winner = found(a=said(text(500)), b=said(text(600, b"later")), c=said({}))
    assert winner.cell is not None and (600, 5, True) == (winner.cell.stamp.ms, winner.cell.size, winner.shown)
    assert "the greatest stamp of 2 cells wins (D55), and it is live" == winner.why and (A, C) == winner.lacking


@pytest.mark.parametrize(("rows", "why"), [
    (text(600, b"", deleted=True), "it is a delete"),
    (text(600, expires_at_ms=900), "it expired at 900 (D59)"),
])
def test_d59_a_value_that_is_deleted_or_expired_is_not_shown(rows: dict[Place, Row], why: str) -> None:
    winner = found(a=said(text(500)), b=said(rows))
    assert not winner.shown and winner.why.endswith(why) and 600 == winner.cell.stamp.ms
    assert "of 2 cells" in winner.why


def test_d71_an_old_disk_decides_nothing_and_a_node_without_a_copy_neither() -> None:
    winner = found(a=said(text(500)), b=said(text(900), withdrawn=True), d=said(text(950), D))
    assert 500 == winner.cell.stamp.ms and (B,) == winner.lacking
    assert (None, False, "no owner that has answered holds a cell", ()) == found(a=said({}))


def test_d56_of_the_live_cells_of_an_element_the_greatest_stamp_is_shown() -> None:
    one: Element = {ONE: live(1, stamp(500), b"old"), OTHER: live(1, stamp(600, OTHER), b"shown")}
    other: Element = {ONE: dead(1, stamp(700))}
    winner = found(ELEMENT, a=said({ELEMENT: one}), b=said({ELEMENT: other}), c=said({}))
    assert OTHER == winner.cell.actor and winner.shown and (B, C) == winner.lacking
    assert "of the cells of 2 actors 1 are live, and of these the greatest stamp is shown (D56)" == winner.why
    winner = found(ELEMENT, a=said({ELEMENT: {ONE: live(1, stamp(900))}}), b=said({ELEMENT: other}))
    assert not winner.shown and "no cell of 1 actor is live: of the newest one it is a delete" == winner.why


def test_d58_a_clear_makes_cells_void() -> None:
    rows: dict[Place, Row] = {ELEMENT: {ONE: live(1, stamp(500))}, META: Meta(stamp(600), stamp(600))}
    winner = found(ELEMENT, a=said(rows), b=said({ELEMENT: {ONE: live(1, stamp(500))}}))
    assert not winner.shown and META == winner.cell.place and (B,) == winner.lacking
    assert "a clear has made the newest of the cells of 1 actor void (D58)" == winner.why
    winner = found(ELEMENT, a=said({META: Meta(stamp(600), stamp(600))}), b=said({}))
    assert (False, META, (B,)) == (winner.shown, winner.cell.place, winner.lacking) and "was cleared" in winner.why
    assert winner.cell == found(META, a=said({META: Meta(stamp(600), stamp(600))})).cell
    later = said({ELEMENT: {OTHER: live(1, stamp(700, OTHER))}})
    assert found(ELEMENT, a=said(rows), b=later).shown


# --- what a node answers ------------------------------------------------------------------------------------------


def test_a_cell_is_shown_without_its_value_and_equal_values_have_equal_digests() -> None:
    [one], [other] = (list(seen(STRING, row)) for ms in (1, 2) for row in text(ms, b"secret").values())
    assert (6, one.digest) == (other.size, other.digest) and b"secret" not in repr(one).encode()
    assert [] == list(seen(META, Meta(greatest=stamp(5)))), "nothing was cleared"


def test_of_many_cells_and_hints_the_newest_are_shown() -> None:
    row: Element = {Actor("n", b"%08d" % number): live(1, stamp(number)) for number in range(CELLS_MAX + 3)}
    cells = tuple(seen(ELEMENT, row))
    answer = inspected(Inspect(INDEX, 5, (ELEMENT,)), CALM, Facts(hints=cells), Standing(A, CALM), {ELEMENT: row})
    assert CELLS_MAX == len(answer.cells) == len(answer.hints) and 3 == answer.cells_more == answer.hints_more
    assert 3 == min(cell.stamp.ms for cell in answer.cells)


def test_the_part_of_a_node_says_how_it_stands() -> None:
    parts = {
        Part.OWNER: Standing(A, CALM), Part.PENDING: Standing(D, MOVING), Part.NONE: Standing(D, CALM),
        Part.COPYING: Standing(D, MOVING, copying=True), Part.WITHDRAWN: Standing(A, CALM, withdrawn=True),
    }
    assert list(parts) == [part_of(standing) for standing in parts.values()]


def test_a_node_answers_also_of_a_range_that_it_has_heard_nothing_of() -> None:
    node = Node(D)
    node.hear(B, Inspect(UNIT, 5, (STRING,)))
    assert [(B, Inspected(UNIT, 5, Part.NONE, 0, 0, 0, 0, False))] == node.take()


def test_d71_an_owner_answers_what_its_floor_collects_too() -> None:
    machine = Holding(A, Standing(A, CALM, CALM.floor_ms))
    machine.put(text(5, b"", deleted=True))
    machine.run(machine.unit.inspect(B, ASKED, Facts(exchanged_ms=7, needs_repair=True)))
    machine.settle()
    [answer] = machine.take(Inspected)
    assert (7, 10, 10, True) == (answer.version, answer.floor_ms, answer.promise_ms, answer.needs_repair)
    assert 7 == answer.exchanged_ms and [(5, True)] == [(cell.stamp.ms, cell.dead) for cell in answer.cells]


def test_an_owner_answers_behind_what_it_writes() -> None:
    world = World(repair_every_ms=0)
    world.operate(A, unset(KEY))
    node = world[B]
    node.slow = True
    node.hear(A, Inspect(UNIT, 5, of_string(KEY)))
    [(_, answer)] = node.take()
    assert (Part.OWNER, [True]) == (answer.part, [cell.dead for cell in answer.cells])
    world.operate(A, set_(KEY, b"x"))
    node.hear(A, Inspect(UNIT, 5, of_string(KEY)))
    assert [] == node.take(), "the write is not durable"
    while node.queue:
        node.sync()
    assert [False] == [answer.cells[0].dead for _, answer in node.take() if isinstance(answer, Inspected)]


# --- asking -------------------------------------------------------------------------------------------------------


def asked(world: World, at: Member, *places: Place) -> Inspection:
    node = world[at]
    node.replies.clear()
    node.step(Operate(UNIT, 1, 60_000, inspect(places)))
    world.deliver()
    if not node.replies:
        world.run(PATIENCE * 50 + 100)
    [reply] = node.replies
    assert isinstance(reply, Inspection)
    return reply


def test_every_node_is_asked_and_says_which_hints_it_keeps() -> None:
    world = World(A, B, C, D, repair_every_ms=0)
    world.operate(A, put_element(KEY, b"e", b"v"))
    hints = world[D].plane._keeper.hints
    kept: list[Hint] = [hint_of(UNIT, ELEMENT, {ONE: live(1, stamp(ms))}, obliged=True) for ms in (900, 950)]
    for hint in (*kept, hint_of(UNIT, META, Meta(stamp(800)), obliged=True), hint_of(8, META, Meta(), obliged=True)):
        hints.take(hint)
    assert HintsKept(3, sum(hint.size for hint in hints.held.values()) - hint_of(
        8, META, Meta(), obliged=True).size, 900) == hints.kept(UNIT)
    reply = asked(world, B, ELEMENT, META)
    assert Outcome.OK is reply.outcome and {A, B, C, D} == set(reply.answers) and () == reply.silent
    assert [950, 900, 800] == [cell.stamp.ms for cell in reply.answers[D].hints]
    assert Part.NONE is reply.answers[D].part and not reply.answers[D].cells
    assert [1, 1, 1] == [len(reply.answers[member].cells) for member in (A, B, C)]
    hints.delivered(0)
    assert (2, 950) == ((left := hints.kept(UNIT)).count, left.oldest_ms)


def test_a_silent_owner_ends_an_inspection_late_and_as_unknown_and_another_node_does_not_matter() -> None:
    world = World(A, B, C, D, repair_every_ms=0)
    world.away.add(C)
    reply = asked(world, A, STRING)
    assert Outcome.UNKNOWN is reply.outcome and {A, B, D} == set(reply.answers) and (C,) == reply.silent
    world.away = {D}
    reply = asked(world, A, STRING)
    assert Outcome.OK is reply.outcome and (D,) == reply.silent
    assert world[A].plane.idle


def test_a_repair_waits_for_no_node_that_owns_nothing() -> None:
    world = World(A, B, C, D, repair_every_ms=0)
    world.away.add(D)
    world[A].step(Operate(UNIT, 1, 60_000, repair_future(KEY, lambda: 10_000)))
    world.deliver()
    assert [Repaired(Outcome.OK, ())] == world[A].replies


def test_an_inspection_that_has_no_time_ends_at_once() -> None:
    world = World(repair_every_ms=0)
    world[A].step(Operate(UNIT, 1, 0, inspect((STRING,))))
    assert [Inspection(Outcome.UNKNOWN, NEW, {}, ())] == world[A].replies


def test_only_so_many_nodes_are_asked_owners_first() -> None:
    node = Node(D)
    world = World(repair_every_ms=0)
    world.nodes[D] = node
    node.step(Cluster(tuple(Member(f"n{number}", "x") for number in range(200))))
    world.nodes[D].hear(A, ASKED)
    node.take()
    node.step(Assign(UNIT, NEW))
    node.step(Operate(UNIT, 1, 60_000, inspect((STRING,))))
    to = [member for member, message in node.take() if isinstance(message, Inspect)]
    assert [A, B, C] == to[:3] and NODES_MAX - 1 == len(to), "the node asks itself too"
