"""The memory of digests: which ranges are forgotten, what they say meanwhile, and how they are built again."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tidemark_core.base.effects import Received, ScanRows
from tidemark_core.base.ids import Address
from tidemark_core.optimistic.cells import Meta, Place, Sort, StringCell, encode_place, encode_row
from tidemark_core.optimistic.coordinating.operations import set_, unset
from tidemark_core.optimistic.exchanging.memory import Memory
from tidemark_core.optimistic.exchanging.messages import Drawn, Exchange, Listed, Open, Opened, Sketch, Unanswered
from tidemark_core.optimistic.exchanging.tree import END, LEAF_BYTES, UNKNOWN, Part, Tally, Tree, Weighed, weigh
from tidemark_core.optimistic.floors import SyncAsked, Synced
from tidemark_core.optimistic.holding.holder import SILENT_TICKS
from tidemark_core.optimistic.holding.layout import FAMILIES, key_of
from tidemark_core.optimistic.holding.unit import PAGES_MAX, Unit
from tidemark_core.optimistic.messages import RingTold, Store, StoreAnswer, StringWrite
from tidemark_core.optimistic.owner import Fate, Source
from tidemark_core.optimistic.plane import REPAIR, Assign, KeyspaceLimits
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_core.optimistic.standing import Standing

from .cases import stamp
from .machine import AT, Machine
from .owning import CALM, INDEX, KEY, A, B, C, D
from .test_copying import many, text
from .test_exchanging import Holding, strings_of
from .test_holder import OPERATOR, deliver, members
from .test_plane import Node
from .test_repairing import EVERY_MS, World, _due

ALL = Part(b"", END, UNKNOWN)
EXCHANGE = Exchange(INDEX, CALM.version, CALM.floor_ms, 1)


# --- one tree -----------------------------------------------------------------------------------------------------


def test_d85_digests_that_are_forgotten_say_nothing_until_they_are_built_again() -> None:
    member = Holding(A, strings_of(range(40)), leaf_rows=16)
    tree, whole = member.tree, member.tree.tally(b"", END)
    assert whole is not None and tree.leaves > 2 and tree.was_ready
    tree.forget()
    assert tree.settled and not (tree.ready or tree.building or tree.scanning) and 1 == tree.leaves
    assert tree.tally(b"", END) is None is tree.parts(b"", END, 16), "not even that there are no rows"
    assert tree.next_scan(0) is None, "nothing is read before it is wanted"
    tree.want()
    assert tree.building and not tree.settled and not tree.ready
    scan = tree.next_scan(0)
    assert scan == (b"", END) and tree.scanning and tree.tally(b"", END) is None
    rows, rest = member.within(*scan)
    assert rest is not None and tree.scanned(rows, rest)
    assert tree.building and tree.tally(b"", END) is None, "a part of the rows is no range"
    member.grow()
    assert tree.ready and whole == tree.tally(b"", END)


@pytest.mark.parametrize("seed", range(20))
def test_d85_digests_that_are_built_again_equal_those_of_the_rows(seed: int) -> None:
    """Rows are written all the time; each is durable at any later time, and a scan may show what is not durable."""
    dice = random.Random(seed)
    tree, durable, newest = Tree(4), dict[bytes, Weighed](), dict[bytes, Weighed]()
    flying: list[tuple[bytes, Weighed | None, Weighed | None]] = []
    scan: Any = None
    seen: list[Weighed] = []

    def write() -> None:
        at, number = b"%02d" % dice.randrange(60), dice.randrange(1 << 60)
        after = Weighed(at, number, 1 << 62) if dice.random() < 0.7 else None
        flying.append((at, newest.get(at), after))
        tree.writing(at)
        newest.pop(at, None)
        newest.update({at: after} if after is not None else {})

    def sync() -> None:
        at, before, after = flying.pop(0)
        durable.pop(at, None)
        durable.update({at: after} if after is not None else {})
        tree.wrote(at, before, after)

    def go_on() -> None:
        nonlocal scan, seen
        if scan is not None:
            tree.scanned(seen[:8], seen[8].at if len(seen) > 8 else None)
            scan = None
        elif (scan := tree.next_scan(0, lambda: (at for at, _, _ in flying))) is not None:
            shown = dice.choice((durable, newest))
            seen = sorted(row for at, row in shown.items() if scan.first <= at < scan.behind)

    for _ in range(1_500):
        dice.choice((write, go_on, go_on, sync if flying else write))()
        if len(flying) > 3:
            sync()
        if tree.settled and dice.random() < 0.1:
            tree.forget()
        elif tree.away and dice.random() < 0.1:
            tree.want()
    while flying:
        sync()
    tree.want()
    for _ in range(1_000):
        if tree.settled and scan is None:
            break
        go_on()
    assert Tally(len(durable), sum(row.digest for row in durable.values())) == tree.tally(b"", END)
    assert tree.bytes == sum(LEAF_BYTES + len(first) for first in tree._firsts)


def test_d85_a_floor_that_collects_something_has_the_range_read() -> None:
    """Also of what was written while the digests were away."""
    early, late = ({Place(Sort.STRING, key): dead_string(ms)} for key, ms in ((b"a", 500), (b"b", 300)))
    member = Holding(A, {**strings_of(range(40)), **early}, leaf_rows=16)
    tree = member.tree
    tree.forget()
    assert tree.next_scan(499) is None and tree.next_scan(500) == (b"", END) and not tree.away
    assert tree.scanned(*member.within(b"", END))
    member.grow()
    tree.forget()
    for place, row in late.items():
        tree.writing(encode_place(place))
        tree.wrote(encode_place(place), None, weigh(place, row, 0))
    assert tree.next_scan(299) is None and tree.away
    assert tree.next_scan(300) == (b"", END) and not tree.away


def dead_string(ms: int) -> StringCell:
    return StringCell(stamp(ms), True, 0, b"")


def test_d85_the_bytes_of_digests_follow_their_leaves() -> None:
    member = Holding(A, {}, leaf_rows=16)
    tree = member.tree

    def size() -> int:
        return sum(LEAF_BYTES + len(first) for first in tree._firsts)

    assert LEAF_BYTES == tree.bytes
    for number in range(200):
        member.put(strings_of([number]))
        assert size() == tree.bytes
    most = tree.bytes
    for number in range(200):
        [place] = strings_of([number])
        tree.writing(encode_place(place))
        tree.wrote(encode_place(place), weigh(place, member.rows.pop(place), 0), None)
        member.grow()
        assert size() == tree.bytes
    assert LEAF_BYTES == tree.bytes < most
    tree.forget()
    assert 0 == tree.bytes
    tree.want()
    assert LEAF_BYTES == tree.bytes


# --- the memory of a node -----------------------------------------------------------------------------------------


def test_d85_the_range_that_was_compared_the_longest_time_ago_goes_first() -> None:
    memory = Memory(100)
    for unit, size in ((1, 40), (2, 40), (3, 40), (4, 40)):
        memory.sized(unit, size)
    for unit, now_ms in ((1, 30), (3, 10), (2, 20), (1, 40)):
        memory.used(unit, now_ms)
    assert 160 == memory.bytes and memory.full
    assert [4, 3, 2, 1] == memory.oldest(41), "one that was never compared is the first"
    assert [4, 3] == memory.oldest(20)
    memory.sized(3, 0)
    memory.sized(2, 20)
    assert 100 == memory.bytes and not memory.full and [4, 2, 1] == memory.oldest(41)
    memory.gone(1)
    assert 60 == memory.bytes and [4, 2] == memory.oldest(41)


class Sharing(Machine):
    """A member of one of several ranges, whose digests share a memory.  Its rows fill three pages of a scan."""

    def __init__(self, memory: Memory, unit: int) -> None:
        self.memory, self.at = memory, Address(AT.plane, unit)
        super().__init__()

    def start(self) -> None:
        for place, row in many(range(3 * PAGES_MAX - 10)).items():
            self.tables[FAMILIES[place.sort]].setdefault(key_of(self.at.id, place), encode_row(row))
        super().start()

    def make(self, standing: Standing, clock: Any) -> Unit:
        return Unit(self.at, standing, clock, memory=self.memory)

    def grow(self) -> None:
        self.run(self.unit.grow())


def test_d85_over_the_bound_one_range_reads_at_a_time() -> None:
    memory = Memory(2 * LEAF_BYTES)
    first, second, third = machines = [Sharing(memory, unit) for unit in (1, 2, 3)]
    assert all(machine.reads for machine in machines), "there was room"
    for machine in machines:
        while machine.unit.tree.leaves == 1:
            machine.read()
    assert first.reads and not second.reads and not third.reads, "one page each, and no more"
    while first.reads:
        second.grow()
        third.grow()
        assert not second.reads and not third.reads
        first.read()
    assert first.unit.tree.ready
    third.grow()
    assert not third.reads, "the second one came before"
    second.grow()
    second.settle()
    assert second.unit.tree.ready and third.unit.tree.building
    third.grow()
    third.settle()
    assert third.unit.tree.ready
    assert memory.bytes == sum(machine.unit.tree.bytes for machine in machines)


def test_d85_a_range_that_waits_for_its_disk_lets_the_next_one_read() -> None:
    memory = Memory(0)
    memory.sized(9, LEAF_BYTES)
    first, second = Sharing(memory, 1), Sharing(memory, 2)
    assert first.reads and not second.reads
    place = next(iter(many([0])))
    first.hear(Store(1, 7, CALM.floor_ms, 1, 1, Source.OWNER, StringWrite(place.key, dead_string(600))))
    first.read()
    while not first.queue:
        first.read()
    while first.reads:
        first.read()
    assert first.unit.tree.building and not first.unit.tree.scanning, "its first row is on its way to the disk"
    second.grow()
    assert second.reads
    first.settle()
    first.grow()
    assert not first.reads, "the other one reads now"
    second.settle()
    first.grow()
    first.settle()
    assert first.unit.tree.ready and second.unit.tree.ready


def test_d85_a_range_is_read_also_while_it_is_written() -> None:
    """A row in the second page is on its way to the disk all the time; what lies before it is read once."""
    machine = Sharing(Memory(), 1)
    hot, number = many([PAGES_MAX + 500]), 0

    def write() -> None:
        nonlocal number
        number += 1
        for place in hot:
            machine.hear(Store(1, 7, CALM.floor_ms, number, 1, Source.OWNER, StringWrite(
                place.key, StringCell(stamp(600 + number), False, 0, b"y"))))

    write()
    for _ in range(50):
        while machine.reads:
            machine.read()
        write()     # before the write before is durable
        while machine.reads:
            machine.read()
        machine.sync()
        machine.grow()
    [at] = map(encode_place, hot)
    assert machine.queue and machine.unit.tree.building
    known = machine.unit.tree.parts(b"", at, 16)
    assert known is not None and PAGES_MAX + 500 == sum(part.tally.rows for part in known)
    machine.settle()
    machine.grow()
    machine.settle()
    whole = machine.unit.tree.tally(b"", END)
    assert whole is not None and 3 * PAGES_MAX - 10 == whole.rows


# --- exchanges ----------------------------------------------------------------------------------------------------


def test_d85_a_source_without_digests_is_not_ready_and_then_finds_what_differs() -> None:
    """Nor does it call a range equal that has lost its digests and got other rows since."""
    source = members({A: text(b"a", 500)})[A]
    equal = source.unit.tree.tally(b"", END)
    assert equal is not None
    source.unit.forget_tree()
    source.hear(Store(INDEX, 7, CALM.floor_ms, 1, 1, Source.OWNER, StringWrite(b"b", live_string(600))))
    source.settle()
    source.take(StoreAnswer)
    for m in (Open(EXCHANGE, (ALL,)), Open(EXCHANGE, (Part(b"", END, equal),)), Sketch(EXCHANGE, (Drawn(b"", END),))):
        source.unit.forget_tree()
        source.hear(m, B)
        source.settle()
        assert [Unanswered(EXCHANGE, Fate.NOT_READY)] == source.take(object) and not source.holder.idle
        source.tick()
        source.settle()
        assert source.holder.idle and source.unit.tree.ready
        source.hear(m, B)
        source.settle()
        [answer] = source.take(object)
        if isinstance(m, Open):
            assert isinstance(answer, Opened) and ((b"", END),) == answer.leaves
        else:
            assert isinstance(answer, Listed) and 2 == len(answer.rows)


def live_string(ms: int) -> StringCell:
    return StringCell(stamp(ms), False, 0, b"x")


def test_d85_a_round_of_the_floor_waits_for_digests_that_are_away() -> None:
    machines = members({A: text(b"a", 500), B: text(b"b", 500), C: {}})
    for machine in machines.values():
        machine.unit.forget_tree()
    machines[A].hear(SyncAsked(INDEX, 4, CALM.version, (B,)), OPERATOR)
    assert 0 == deliver(machines) and [] == machines[A].answers() and not machines[A].holder.may_forget
    for _ in range(3):
        for machine in machines.values():
            machine.tick()
        deliver(machines)
    assert [Synced(INDEX, 4)] == machines[A].answers() and 2 == len(machines[A].rows())
    assert machines[A].holder.may_forget and not machines[C].unit.tree.ready, "C was not asked for anything"


def test_d85_a_round_without_sources_needs_no_digests() -> None:
    [machine] = members({A: text(b"a", 500)}).values()
    machine.unit.forget_tree()
    machine.hear(SyncAsked(INDEX, 4, CALM.version, ()), OPERATOR)
    assert [Synced(INDEX, 4)] == machine.answers() and machine.unit.tree.away


def test_d85_what_is_being_compared_is_not_forgotten() -> None:
    """The node has no memory, and its exchange with another owner goes on."""
    node = Node(limits=KeyspaceLimits(repair_memory_bytes=0, settings=KeyspaceSettings(repair_every_ms=EVERY_MS)))
    node.step(Assign(UNIT, RECORD))
    asked = 0
    for _ in range(3 * SILENT_TICKS):
        node.now_ms += 50
        node.tick(node.now_ms)
        for to, m in node.take():       # the exchange never ends
            assert isinstance(m, Open)
            asked += 1
            node.hear(to, Unanswered(m.exchange, Fate.NOT_READY))
    assert asked > 2 * SILENT_TICKS and node.plane.summary().tree_bytes and 0 == node.plane.trees_forgotten


def test_d85_a_source_keeps_its_digests_for_ten_ticks_behind_each_message() -> None:
    node = Node(limits=KeyspaceLimits(repair_memory_bytes=0, settings=KeyspaceSettings(repair_every_ms=0)))
    node.step(Assign(UNIT, RECORD))
    for now_ms in (1_050, 1_100):
        node.tick(now_ms)
    assert 1 == node.plane.trees_forgotten and node.plane.idle and not node.timers
    asked = Open(Exchange(UNIT, RECORD.version, RECORD.floor_ms, 1), (ALL,))
    node.now_ms = 2_000
    node.hear(B, asked)
    node.tick(2_050)
    assert [Fate.NOT_READY] == [m.why for _, m in node.take()] and 1 == node.plane.trees_forgotten
    node.now_ms = 2_060
    node.hear(B, asked)
    assert [Opened] == [type(m) for _, m in node.take()]
    for number in range(1, SILENT_TICKS + 1):
        node.tick(2_060 + 50 * number)
        assert 1 == node.plane.trees_forgotten and node.timers and not node.plane.idle
    node.tick(2_061 + 50 * SILENT_TICKS)
    assert 2 == node.plane.trees_forgotten and node.plane.idle and not node.timers
    assert 0 == node.plane.summary().tree_bytes


# --- nodes --------------------------------------------------------------------------------------------------------

UNIT = 9
RECORD = Range(7, Owners((A, B, C), Quorum(3, 2, 2)))


def test_d85_owners_without_memory_become_equal_and_rest() -> None:
    world = World(repair_memory_bytes=0)
    world.run(3_000)
    forgotten = [node.plane.trees_forgotten for node in world.nodes.values()]
    assert min(forgotten) and all(node.plane.idle for node in world.nodes.values())
    for node in world.nodes.values():
        assert [REPAIR] == list(_due(node)), "a range at rest has one timer and no ticks"
        assert 0 == node.plane.summary().tree_bytes
    world.away.add(C)
    world.operate(A, set_(KEY, b"x"))
    world.operate(B, unset(b"other"))
    world.away.remove(C)
    assert not world.equal()
    world.run(EVERY_MS + 3_000)
    assert world.equal() and 2 == len(world.rows()[2])
    assert all(node.plane.trees_forgotten > before
               for node, before in zip(world.nodes.values(), forgotten, strict=True))
    assert all(node.plane.idle and 0 == node.plane.summary().tree_bytes for node in world.nodes.values())


def test_d85_a_node_keeps_as_many_digests_as_fit() -> None:
    node = Node(limits=KeyspaceLimits(
        repair_memory_bytes=5 * LEAF_BYTES, settings=KeyspaceSettings(repair_every_ms=0)))
    for unit in range(1, 9):
        node.step(Assign(unit, RECORD))
    node.now_ms = 2_000
    for unit in (2, 5, 3):
        node.now_ms += 1
        node.step(Received(Address(7, unit), B, A, Open(Exchange(unit, RECORD.version, 0, 1), (ALL,))))
    for number in range(2 * SILENT_TICKS):
        node.tick(node.now_ms + 50 * number)
    held = [unit for unit in range(1, 9) if not node.plane.holders[unit].unit.tree.away]
    assert [2, 3, 5, 7, 8] == held and 5 * LEAF_BYTES == node.plane.summary().tree_bytes
    assert 3 == node.plane.trees_forgotten == node.plane.summary().trees_forgotten and node.plane.idle


def test_d85_a_range_that_the_node_has_left_takes_no_memory() -> None:
    node = Node()
    node.step(Assign(UNIT, RECORD))
    node.tick()
    assert LEAF_BYTES == node.plane.summary().tree_bytes
    node.step(Assign(UNIT, Range(8, Owners((B, C, D), Quorum(3, 2, 2)))))
    for _ in range(3):
        node.tick()
    assert UNIT not in node.plane.holders and 0 == node.plane.summary().tree_bytes


def test_d85_rows_that_all_go_take_the_size_of_their_digests_with_them() -> None:
    memory = Memory()
    machine = Sharing(memory, 1)
    machine.settle()
    assert memory.bytes == machine.unit.tree.bytes > 5 * LEAF_BYTES
    machine.hear(RingTold(1, Range(8, Owners((B, C, D), Quorum(3, 2, 2)), floor_ms=CALM.floor_ms)))
    machine.settle()
    assert LEAF_BYTES == memory.bytes == machine.unit.tree.bytes


def test_a_range_that_is_read_again_has_no_clear_walked_again() -> None:
    """The first scan finds clears of an earlier run; every later one notes itself when it is stored."""
    machine = members({A: {Place(Sort.META, KEY): Meta(stamp(500)), **text(b"a", 500)}})[A]
    machine.unit.forget_tree()
    machine.unit.tree.want()
    machine.tick()
    families = []
    while machine.reads:
        assert isinstance(machine.reads[0], ScanRows)
        families.append(machine.reads[0].first)
        machine.read()
    assert machine.unit.tree.ready and 4 == len(families), "a scan of each family"
