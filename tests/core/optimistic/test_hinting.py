"""Hints at work: sloppy writes at their coordinator, nodes that keep a change, and its replay to the owners."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Address, Member
from tidemark_core.base.plane import Voice
from tidemark_core.optimistic.cells import Place, Row, Sort, StringCell, decode_row, encode_row
from tidemark_core.optimistic.coordinating.operations import get, put_element, set_
from tidemark_core.optimistic.coordinating.outcomes import Outcome, To
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.coordinating.running import Policy
from tidemark_core.optimistic.coordinating.writing import Done, Write
from tidemark_core.optimistic.floors import HintsAsked, HintsGone, PromiseAsked
from tidemark_core.optimistic.hinting.hints import decode_hint, encode_hint, hint_of
from tidemark_core.optimistic.hinting.keeping import HINTS, PROMISES
from tidemark_core.optimistic.hinting.replaying import Replays
from tidemark_core.optimistic.holding.layout import STRINGS, key_of
from tidemark_core.optimistic.messages import (
    Keep,
    Kept,
    Refusal,
    RingTold,
    RowsWrite,
    Store,
    StoreAnswer,
    StringWrite,
)
from tidemark_core.optimistic.owner import Fate, Source, Verdict
from tidemark_core.optimistic.plane import Assign, Cluster, KeyspaceLimits, Operate, Settle
from tidemark_core.optimistic.ring import Range, finished
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.optimistic.stamps import Actor, Clock
from tidemark_core.optimistic.writes import put

from .cases import stamp
from .owning import CALM, INDEX, KEY, MOVING, SKEW_MS, A, B, C, D
from .test_plane import NEW, OPERATOR, UNIT, Node

E, F = (Member(name, f"{name}-disk") for name in "ef")
SLOPPY = Policy(sloppy=True)
AT_REST = KeyspaceSettings(repair_every_ms=0)
STRING = Place(Sort.STRING, KEY)


# --- the coordinator ----------------------------------------------------------------------------------------


def a_write(record: Range = CALM, nodes: tuple[Member, ...] = (D, A, E, F)) -> Write:
    write = Write(5, INDEX, record, Clock(Actor("d", b"d" * 8), SKEW_MS),
                  lambda dot: StringWrite(KEY, put(dot, b"x")), nodes=nodes)
    write.begin(1_000)
    return write


def stored(write: Write, *members: Member, fate: Fate = Fate.STORED, attempt: int = 1) -> list[Any]:
    answer = StoreAnswer(INDEX, write.record.version, 10, 5, attempt, Verdict(fate, stamp(1_000)))
    return [each for member in members for each in write.on_answer(1_000, member, answer)]


def kept(write: Write, *nodes: Member, refused: Refusal | None = None, attempt: int = 1) -> list[Any]:
    return [each for node in nodes for each in write.on_kept(node, Kept(INDEX, 5, attempt, refused))]


def asked(effects: Iterable[Any]) -> list[Member]:
    """The nodes that are asked to keep the change."""
    return [each.member for each in effects if isinstance(each, To) and isinstance(each.message, Keep)]


def test_d73_a_sloppy_write_asks_as_many_nodes_as_it_lacks_once_owners_are_silent_for_two_ticks() -> None:
    write = a_write()
    stored(write, B)
    assert [] == asked(write.resend())
    sent = write.resend()
    assert [D] == asked(sent) and {A, C} == {each.member for each in sent if isinstance(each.message, Store)}  # type: ignore[union-attr]
    [done] = kept(write, D)
    assert (Outcome.SLOPPY, (B,)) == (done.outcome, done.stored)
    assert [] == kept(write, E) == write.resend() == stored(write, A)


def test_d73_nodes_alone_are_enough_where_all_owners_are_away() -> None:
    write = a_write()
    write.resend()
    assert [D, E] == asked(write.resend())
    assert [] == kept(write, D) == kept(write, D)
    assert Outcome.SLOPPY is kept(write, E)[0].outcome


def test_d64_d73_nodes_count_for_both_lists_of_a_move_and_no_pending_owner_is_one() -> None:
    write = a_write(MOVING)
    stored(write, C)
    write.resend()
    assert [E, F] == asked(write.resend()), "the pending owners lack two"
    assert [] == kept(write, E)
    assert Outcome.SLOPPY is kept(write, F)[0].outcome
    write = a_write(MOVING)
    write.resend()
    write.resend()
    assert [] == kept(write, E, D)
    assert Outcome.SLOPPY is stored(write, A)[0].outcome, "an owner of both lists"


def test_d73_a_write_that_enough_owners_store_later_is_a_strict_one() -> None:
    write = a_write()
    write.resend()
    write.resend()
    stored(write, A)
    assert Outcome.OK is stored(write, B)[0].outcome


@pytest.mark.parametrize("refused", Refusal)
def test_d73_a_refusal_counts_for_nothing_and_the_next_node_is_asked(refused: Refusal) -> None:
    write = a_write()
    stored(write, B)
    write.resend()
    assert [D] == asked(write.resend())
    assert [E] == asked(kept(write, D, refused=refused)) and [] == kept(write, D, refused=refused)
    assert [] == kept(write, D), "the first answer stands"
    assert Outcome.SLOPPY is kept(write, E)[0].outcome
    write = a_write()
    write.resend()
    write.resend()
    assert [F] == asked(kept(write, D, refused=refused)) and [] == kept(write, E)
    assert Outcome.SLOPPY is kept(write, F)[0].outcome


def test_d73_a_silent_node_is_asked_again_and_others_too_behind_two_ticks() -> None:
    write = a_write()
    stored(write, B)
    assert [[], [D], [D], [D, E], [D, E], [D, E, F], [D, E, F], [D, E, F]] == [
        asked(write.resend()) for _ in range(8)]
    assert [] == kept(write, D, refused=Refusal.FULL)
    assert [E, F] == asked(write.resend())
    assert 1 == len(kept(write, E, F)), "one is enough"


def test_d60_d73_a_node_that_kept_an_earlier_attempt_counts_for_nothing() -> None:
    write = a_write()
    stored(write, B)
    for _ in range(3):
        write.resend()
    stored(write, A, fate=Fate.NEWER)
    assert [] == kept(write, D) and [] == kept(write, D, attempt=2), "it was not asked for this attempt"
    assert [] == asked(write.resend()), "the owners have two ticks again"
    assert [D, E] == asked(write.resend())
    assert [] == kept(write, D, E, attempt=1) == kept(write, D, attempt=2)
    assert Outcome.SLOPPY is kept(write, E, attempt=2)[0].outcome


def test_d65_d73_a_node_that_kept_a_change_under_an_older_record_counts_for_nothing() -> None:
    write = a_write()
    stored(write, B)
    write.resend()
    write.resend()
    write.on_record(MOVING)
    assert [] == kept(write, D) == stored(write, B, attempt=2)
    write.resend()
    assert [E] == asked(write.resend())
    assert Outcome.SLOPPY is kept(write, E, attempt=2)[0].outcome


def test_d73_no_owner_and_no_node_that_was_not_asked_counts() -> None:
    write = a_write()
    stored(write, B)
    write.resend()
    write.resend()
    assert [] == kept(write, A, E)


def test_d73_a_strict_write_asks_no_node() -> None:
    write = a_write(nodes=())
    stored(write, B)
    assert [] == [node for _ in range(6) for node in asked(write.resend())]
    assert [] == kept(write, D)


def test_d54_d76_what_a_node_may_keep_is_not_called_refused() -> None:
    write = a_write()
    stored(write, A, B, fate=Fate.FUTURE)
    write.resend()
    assert [D, E] == asked(write.resend())
    assert [] == stored(write, C, fate=Fate.FUTURE)
    [done] = write.on_deadline()
    assert isinstance(done, Done) and Outcome.UNKNOWN is done.outcome


# --- nodes with disks ---------------------------------------------------------------------------------------


class World:
    """Nodes that have a record and reach each other; those that are away get nothing."""

    def __init__(self, *away: Member, record: Range = NEW, limits: KeyspaceLimits | None = None) -> None:
        self.nodes = {member: Node(member, limits) for member in (A, B, C, D, E)}
        self.away = set(away)
        self.operator: list[Any] = []       # what the operator heard
        for node in self.nodes.values():
            node.step(Assign(UNIT, record))
            node.step(Cluster(tuple(self.nodes)))
        self.go(1_100)

    def __getitem__(self, member: Member) -> Node:
        return self.nodes[member]

    def go(self, now_ms: int) -> None:
        """Let time pass, and deliver everything."""
        self.now_ms = now_ms
        for member, node in self.nodes.items():
            node.now_ms = now_ms
            if member not in self.away and node.timers:
                node.tick(now_ms)
        self.deliver()

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.go(self.now_ms + 50)

    def deliver(self) -> None:
        while any([self._deliver(member) for member in self.nodes]):
            pass

    def _deliver(self, member: Member) -> bool:
        sent = self.nodes[member].take()
        for to, message in sent:
            if to == OPERATOR:
                self.operator.append((member, message))
            elif to not in self.away and member not in self.away:
                assert Voice.NODE is self.nodes[to].plane.voices[type(message)]
                self.nodes[to].hear(member, message)
        return bool(sent)

    def write(self, at: Member, value: bytes = b"x", policy: Policy = SLOPPY) -> Node:
        node = self.nodes[at]
        node.step(Operate(UNIT, 1, 2_000, set_(KEY, value), policy))
        self.deliver()
        return node

    def ask(self, member: Member, message: Any) -> None:
        self.nodes[member].hear(OPERATOR, message)
        self.deliver()

    def values(self) -> dict[Member, bytes]:
        """The String at `KEY` on each disk."""
        return {member: row.value for member, node in self.nodes.items() if (row := string_of(node)) is not None}

    def hints(self) -> dict[Member, list[Row]]:
        return {member: rows for member, node in self.nodes.items() if (rows := hints_of(node))}


def string_of(node: Node) -> StringCell | None:
    data = node.tables.get(STRINGS, {}).get(key_of(UNIT, STRING))
    row = None if data is None else decode_row(Sort.STRING, data)
    assert row is None or isinstance(row, StringCell)
    return row


def hints_of(node: Node) -> list[Row]:
    return [decode_hint(data).row for data in node.tables.get(HINTS, {}).values()]


def keep(ms: int, key: bytes = KEY, index: int = UNIT, value: bytes = b"x") -> Keep:
    return Keep(index, 5, 1, Place(Sort.STRING, key), StringCell(stamp(ms), False, 0, value))


def answers(node: Node) -> list[Refusal | None]:
    return [message.refused for _, message in node.take() if isinstance(message, Kept)]


def test_d73_a_sloppy_write_is_kept_and_delivered_when_owners_are_back() -> None:
    world = World(A, B)
    node = world.write(D)
    world.ticks(2)
    assert [Outcome.SLOPPY] == [done.outcome for done in node.replies] and {C: b"x"} == world.values()
    assert [D] == list(world.hints()), "the coordinator's own node comes first"
    world.away.clear()
    world.ticks(60)
    assert {A: b"x", B: b"x", C: b"x"} == world.values() and {} == world.hints()
    assert not any(node.timers for node in world.nodes.values()), "nothing is left to do"


def test_d73_a_strict_write_is_kept_by_no_node() -> None:
    world = World(A, B)
    node = world.write(D, policy=Policy())
    world.ticks(50)
    assert [Outcome.UNKNOWN] == [done.outcome for done in node.replies] and {} == world.hints()


def test_d73_two_nodes_that_reach_the_same_owner_keep_their_hints() -> None:
    """HINT_ONE: its disk dies, and with it the only copy that hints were forgotten for."""
    world = World(A, B, C)
    world.write(D)
    world.ticks(2)
    assert [D, E] == list(world.hints())
    world.away.remove(A)
    world.ticks(60)
    assert {A: b"x"} == world.values() and [D, E] == list(world.hints())
    world.away.add(A)
    world.away -= {B, C}
    world.ticks(60)
    assert {A: b"x", B: b"x", C: b"x"} == world.values() and {} == world.hints()


def test_d64_d73_a_hint_is_replayed_to_both_lists_of_a_move() -> None:
    world = World(A, B, record=MOVING._replace(version=6, pending=None, floor_ms=0))
    world.write(E)
    world.ticks(2)
    assert [E] == list(world.hints())
    moving = MOVING._replace(floor_ms=0)
    world[C].step(Assign(UNIT, moving))
    world.away.remove(B)
    world.ticks(60)
    assert moving == world[E].plane.records[UNIT], "it hears of the record from an owner"
    assert {B: b"x", C: b"x", D: b"x"} == world.values() and {} == world.hints(), "two of each list have it"
    late = World(A, B)
    late.write(E)
    late.ticks(2)
    late[C].step(Assign(UNIT, moving))
    late.away |= {D}
    late.away.remove(B)
    late.ticks(60)
    assert [E] == list(late.hints()), "of the pending owners B alone has it"


def test_d69_d73_an_owner_that_holds_a_hint_is_asked_too() -> None:
    """OWNER_HINTS: it took the hint before it became an owner."""
    world = World(A, B)
    world.write(D)
    world.ticks(2)
    for record in (MOVING, finished(MOVING)):
        world[D].step(Assign(UNIT, record._replace(floor_ms=0)))
        world.deliver()
    world.ask(D, HintsAsked(UNIT, 3, 1_200))
    assert [] == world.operator and [D] == list(world.hints())
    world.away.clear()
    world.ticks(60)
    assert [(D, HintsGone(UNIT, 3))] == world.operator and {} == world.hints() and b"x" == world.values()[D]


def test_d70_d73_a_replay_that_a_promise_refuses_is_counted_as_lost() -> None:
    """The node was left out of the round (D70)."""
    world = World(A, B)
    world.write(D)
    world.ticks(2)
    for member in (A, B, C):
        world.nodes[member].hear(OPERATOR, PromiseAsked(UNIT, 3, NEW.version, 1_150))
    world.ask(D, HintsAsked(UNIT, 3, 1_150))
    assert [] == [each for each in world.operator if each[0] == D]
    world.away.remove(B)
    world.ticks(60)
    assert {C: b"x"} == world.values() and [D] == list(world.hints()), "A may store it"
    world.away.clear()
    world.ticks(60)
    assert {} == world.hints()
    [lost] = world[D].traces
    assert ("hints_lost", Address(7, UNIT)) == (lost.what, lost.address) and " 1 obliged" in lost.detail
    assert (D, HintsGone(UNIT, 3)) in world.operator


def a_node(member: Member = D, **limits: Any) -> Node:
    """A node that began at 1,000, at a later time."""
    node = Node(member, KeyspaceLimits(settings=AT_REST, **limits))
    node.step(Assign(UNIT, NEW))
    node.now_ms = 1_100
    return node


def test_d73_a_hint_is_acknowledged_when_it_is_durable_and_then_survives_a_crash() -> None:
    node = a_node()
    node.slow = True
    node.hear(B, keep(1_090))
    assert [] == answers(node)
    node.hear(B, keep(1_090))
    assert [] == answers(node), "the same hint, which is on its way to the disk"
    node.sync()
    assert [None] == answers(node)
    node.sync()
    assert [None] == answers(node) and 1 == len(hints_of(node))
    node.slow = False
    node.start()
    node.hear(B, keep(1_090))
    assert [None] == answers(node) and 1 == len(hints_of(node)), "it is there already"
    node.step(Assign(UNIT, NEW))
    node.tick()
    assert [(member, RowsWrite(((STRING, StringCell(stamp(1_090), False, 0, b"x")),))) for member in (A, B, C)] == [
        (to, message.change) for to, message in node.take() if message.source is Source.HINT]
    node.hear(B, keep(1_150, b"other"))
    assert 2 == len(hints_of(node)), "its number is another one"


def test_d73_a_hint_that_was_not_durable_is_gone_and_was_not_acknowledged() -> None:
    node = a_node()
    node.slow = True
    node.hear(B, keep(1_090))
    sent = answers(node)
    node.start()
    assert [] == sent == hints_of(node)


def test_d73_a_full_node_refuses_and_the_next_one_keeps_the_change() -> None:
    world = World(A, B, limits=KeyspaceLimits(hint_bytes_max=200, settings=AT_REST))
    world[D].hear(E, keep(1_090, b"k" * 120))
    node = world.write(D)
    world.ticks(2)
    assert [Outcome.SLOPPY] == [done.outcome for done in node.replies] and [D, E] == list(world.hints())
    assert 1 == len(hints_of(world[D]))


def test_d73_a_node_that_could_not_deliver_a_hint_for_the_window_of_its_keyspace_takes_no_more() -> None:
    node = a_node()
    node.hear(B, keep(1_090))
    node.step(Settle(UNIT >> 32, KeyspaceSettings(hint_window_ms=1_000)))
    for now_ms in (2_089, 2_090):
        node.now_ms = now_ms
        node.hear(B, keep(now_ms, b"%d" % now_ms))
    assert [None, None, Refusal.FULL] == answers(node)


def test_d73_a_hint_older_than_half_of_the_write_window_is_refused() -> None:
    node = a_node(write_window_ms=2_000)
    node.now_ms = 5_000
    node.hear(B, keep(4_000))
    node.hear(B, keep(4_001))
    assert [Refusal.OLD, None] == answers(node)


def test_d54_d73_a_hint_from_the_future_is_refused() -> None:
    node = a_node()
    node.hear(B, keep(1_601))
    node.hear(B, keep(1_600))
    assert [Refusal.FUTURE, None] == answers(node)


def test_d54_d73_the_clock_rises_above_a_hint() -> None:
    node = a_node()
    node.hear(B, keep(1_400))
    node.step(Operate(UNIT, 1, 500, set_(KEY, b"y")))
    [cell, *_] = [message.change.cell for _, message in node.take() if isinstance(message, Store)]
    assert cell.stamp > stamp(1_400)


def test_d73_a_wiped_node_that_starts_again_refuses_a_hint_older_than_its_start() -> None:
    """NO_HINT_START: it has answered a round, and its new disk knows nothing of it."""
    node = a_node()
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 1_090))
    node.tables.clear()
    node.start()
    node.step(Cluster(()))
    node.now_ms = 1_200
    node.take()
    node.hear(B, keep(1_080))
    node.hear(B, keep(1_100))
    node.hear(B, keep(1_101))
    assert [Refusal.OLD, Refusal.OLD, None] == answers(node)


def test_d69_d73_a_promise_survives_a_restart() -> None:
    node = a_node()
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 1_300))
    node.hear(OPERATOR, HintsAsked(UNIT, 4, 1_200))
    assert [HintsGone(UNIT, 3), HintsGone(UNIT, 4)] == [message for _, message in node.take()]
    node.start()
    node.step(Cluster(()))
    node.now_ms = 1_350
    for ms in (1_299, 1_300, 1_301):
        node.hear(B, keep(ms))
    assert [Refusal.OLD, Refusal.OLD, None] == answers(node)


def test_d69_the_answer_of_a_node_waits_for_its_promise_and_for_hints_up_to_the_floor() -> None:
    node = a_node()
    node.hear(B, keep(1_050))
    node.hear(B, keep(1_095, b"later"))
    node.take()
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 1_080))
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 1_080))
    assert [] == node.take()
    assert [UNIT.to_bytes(8, "big")] == list(node.tables[PROMISES])
    node.tick()
    node.slow = True
    deliver(node, A)
    assert [] == [message for _, message in node.take() if isinstance(message, HintsGone)]
    while node.queue:
        assert HintsGone(UNIT, 3) not in [message for _, message in node.sent]
        node.sync()
    assert [(OPERATOR, HintsGone(UNIT, 3))] == node.take(), "behind the write that removes the hint"
    node.slow = False
    assert 1 == len(hints_of(node)), "the later one stays"
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 1_080))
    assert [(OPERATOR, HintsGone(UNIT, 3))] == node.take()
    node.tick()
    deliver(node, A)
    assert [] == hints_of(node) and [] == node.take(), "it has answered"


def deliver(node: Node, *more: Member) -> None:
    """Owners store the oldest hint that is replayed."""
    sent = [message for _, message in node.take() if isinstance(message, Store)]
    for member in (B, *more):
        first = sent[0]
        node.hear(member, StoreAnswer(UNIT, NEW.version, 0, first.operation, first.attempt, Verdict(Fate.STORED)))


def test_d69_a_promise_is_on_the_disk_before_the_answer() -> None:
    node = a_node()
    node.slow = True
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 1_080))
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 1_080))
    assert [] == node.take()
    node.sync()
    assert [(OPERATOR, HintsGone(UNIT, 3))] == node.take()
    node.sync()
    assert [(OPERATOR, HintsGone(UNIT, 3))] == node.take()


def test_d73_a_hint_of_an_unknown_range_waits_for_its_record_and_costs_nothing() -> None:
    node = Node(D)
    node.step(Cluster(()))
    node.now_ms = 1_100
    node.hear(B, keep(1_090))
    assert [None] == answers(node) and [] == node.timers
    node.hear(B, RingTold(UNIT, NEW))
    node.tick()
    assert [A, B, C] == [to for to, message in node.take() if isinstance(message, Store)]


def test_d73_replays_are_few_at_once_the_oldest_first_and_go_on_behind_a_pause() -> None:
    node = a_node(replays_max=2)
    for number in range(4):
        node.hear(B, keep(1_090, b"%d" % number))
    node.take()

    node.tick(1_100)
    assert [b"0", b"1"] == replayed(node)
    node.tick(2_099)
    assert [b"0", b"1"] == replayed(node), "asked again"
    node.tick(2_100)
    assert [] == replayed(node), "the owners are away, and the range rests"
    node.tick(3_099)
    assert [] == replayed(node)
    node.tick(3_100)
    assert [b"2", b"3"] == replayed(node)
    node.tick(4_100)
    node.tick(5_100)
    assert [b"0", b"1"] == replayed(node)


def test_d73_a_hint_that_is_delivered_makes_room_for_the_next_one_at_once() -> None:
    node = a_node(replays_max=1)
    for number in range(2):
        node.hear(B, keep(1_090, b"%d" % number))
    node.take()
    node.tick(1_100)
    deliver(node, A)
    assert [b"1"] == replayed(node)
    assert 1 == len(hints_of(node))


def test_d73_ranges_take_turns_and_one_that_failed_rests() -> None:
    replays = Replays(1, 1_000)
    for index, number in ((7, 1), (7, 2), (7, 3), (8, 4), (9, 5)):
        replays.add(index, number)
    assert [1] == replays.begin(0, (7, 8)) and [] == replays.begin(0, (7, 8))
    replays.ended(1)
    assert [4] == replays.begin(0, (7, 8)) and not replays.waits((8,)) and replays.waits((8, 9))
    replays.ended(4)
    replays.failed(0, 7, 1)
    assert [] == replays.begin(999, (7, 8))
    assert [2] == replays.begin(1_000, (7, 8))
    replays.ended(2)
    replays.failed(1_000, 7, 2)
    assert [3] == replays.begin(2_000, (7, 8)), "those that failed are behind it"
    replays.ended(3)
    replays.failed(2_000, 7, 3)
    assert [1] == replays.begin(-5_000, (7, 8)), "the clock was set back"


def test_d73_an_element_is_delivered_as_it_was_kept() -> None:
    world = World(A, B)
    world[E].step(Operate(UNIT, 1, 2_000, put_element(KEY, b"e", b"v", shown=True), SLOPPY))
    world.deliver()
    world.ticks(2)
    [[row]] = world.hints().values()
    world.away.clear()
    world.ticks(60)
    place = Place(Sort.ELEMENT, KEY, b"e")
    assert [encode_row(row)] * 3 == [world[member].tables["ks_elements"][key_of(UNIT, place)] for member in (A, B, C)]


def with_a_cache(**limits: Any) -> Node:
    """A node with a hint on its disk that was not counted, and one that was; the first one's replay has begun."""
    node = a_node(replays_max=1, **limits)
    for number, (key, obliged) in enumerate([(b"cache", False), (b"kept", True)]):
        hint = hint_of(UNIT, Place(Sort.STRING, key), StringCell(stamp(900), False, 0, b""), obliged=obliged)
        node.tables.setdefault(HINTS, {})[number.to_bytes(8, "big")] = encode_hint(hint)
    node.start()
    node.step(Assign(UNIT, NEW), 1_000)
    node.tick(1_100)
    assert [b"cache"] == replayed(node)
    return node


def keys_of(node: Node) -> list[bytes]:
    return [decode_hint(data).place.key for data in node.tables[HINTS].values()]


def replayed(node: Node) -> list[bytes]:
    """The keys of the hints that are replayed now, each once."""
    return list(dict.fromkeys(message.change.rows[0][0].key for _, message in node.take()))


def test_d73_a_hint_that_was_not_counted_goes_from_the_disk_for_one_that_is() -> None:
    node = with_a_cache(hint_bytes_max=140)
    node.hear(B, keep(1_090, b"newer"))
    assert [None] == answers(node) and [b"kept", b"newer"] == keys_of(node)
    node.tick(2_100)
    assert [b"kept"] == replayed(node), "the end of its replay changes nothing"


def test_d69_a_round_removes_hints_that_were_not_counted() -> None:
    node = with_a_cache()
    node.tick(2_100)
    node.hear(OPERATOR, HintsAsked(UNIT, 3, 850))
    node.take()
    assert [b"cache", b"kept"] == keys_of(node), "they are newer"
    node.hear(OPERATOR, HintsAsked(UNIT, 4, 950))
    assert [b"kept"] == keys_of(node)
    for now_ms, keys in ((3_100, [b"kept"]), (4_100, []), (5_100, []), (5_150, [b"kept"])):
        node.tick(now_ms)
        assert keys == replayed(node)


def test_d73_a_node_that_knows_no_other_one_keeps_a_hint_itself() -> None:
    node = a_node()
    node.step(Operate(UNIT, 1, 2_000, set_(KEY, b"x"), SLOPPY))
    [first, *_] = [message for _, message in node.take()]
    node.hear(B, StoreAnswer(UNIT, NEW.version, 0, first.operation, first.attempt, Verdict(Fate.STORED)))
    node.tick()
    node.tick()
    assert [Outcome.SLOPPY] == [done.outcome for done in node.replies]


def test_d73_a_damaged_hint_is_noticed_at_the_start() -> None:
    node = a_node()
    node.tables[HINTS] = {bytes(8): b"\1" * 30}
    with pytest.raises(RemoteViolation):
        node.start()


def test_d75_an_operation_repairs_as_its_keyspace_says() -> None:
    world = World()
    world.away = {B, C}
    world.write(A)
    world.away = {C}
    assert {A: b"x"} == world.values()
    world[A].step(Operate(UNIT, 2, 500, get(KEY, lambda: 1_100), Policy(Repair.OFF)))
    world.deliver()
    assert {A: b"x"} == world.values() and b"x" == world[A].replies[-1].value
    world[A].step(Operate(UNIT, 3, 500, get(KEY, lambda: 1_100)))
    world.deliver()
    assert {A: b"x", B: b"x"} == world.values()


def test_d73_a_late_answer_of_a_node_changes_nothing() -> None:
    node = a_node()
    node.hear(B, Kept(UNIT, 99, 1))
    assert [] == node.take()
