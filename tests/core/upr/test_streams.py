"""Streams at committed level: server and consumer machines against each other, in any order of faults (U56-U64)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.upr import consuming, serving
from tidemark_core.upr.consuming import Apply, Consuming, OnLost, Stage
from tidemark_core.upr.decision import Accepted, Behind, HistoryLost, Purged
from tidemark_core.upr.feed import Feed
from tidemark_core.upr.filters import ALL, Filter, prefix
from tidemark_core.upr.history import START, Point
from tidemark_core.upr.messages import Advanced, End, Marker, Op, Row, Rows, StreamEnd
from tidemark_core.upr.positions import History
from tidemark_core.upr.serving import Limits, Serving

from tests.core.upr import test_decision as decisions
from tests.core.upr.world import Consumer, Link, World

Patch = pytest.MonkeyPatch
A, B, C = b"a", b"b", b"c"
SOME = Filter((prefix(b"k1"), prefix(b"k2")))


def crowd(seed: int) -> World:
    world = World(seed)
    world.consumer()
    world.consumer(skip_deletes=True)
    world.consumer(SOME, skip_deletes=bool(seed % 2))
    world.consumer(tears=True)
    world.consumer(SOME if seed % 3 == 0 else ALL, History.ALL, on_lost=OnLost.FAIL)
    return world


def test_u59_at_every_end_and_advanced_the_consumer_is_the_shard() -> None:
    """Rules U56, U60, U62, U63, U64 too: each run ends with every consumer at the end and equal to the shard."""
    checks = purged = lost = 0
    for seed in range(60):
        world = crowd(seed)
        world.run(3_000, restores=bool(seed % 2))
        checks += world.checks
        purged += sum(isinstance(event, Purged) for each in world.consumers for event in each.events)
        lost += sum(isinstance(event, HistoryLost) for each in world.consumers for event in each.events)

    assert checks > 8_000
    assert purged > 50
    assert lost > 50


# --- the machines minus one rule --------------------------------------------------------------------------------


def deciding(wrong: decisions.Decide) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        def decide(asked: object, here: object, map_version: int = 0) -> object:
            return wrong(asked, here) if here.applied >= 0 else Behind(-1)  # type: ignore[arg-type, attr-defined]

        patch.setattr(serving, "decide", decide)

    mutate.__name__ = wrong.__name__
    return mutate


def feed_behind_the_snapshot(patch: Patch) -> None:
    def begin(self: Serving, here: object, resume: int) -> None:
        opened(self.feed)
        begins(self, here, resume)

    opened, begins = Feed.begin, Serving._begin
    patch.setattr(Feed, "begin", lambda self: None)
    patch.setattr(Serving, "_begin", begin)


def feed_repeats_the_snapshot(patch: Patch) -> None:
    patch.setattr(Feed, "drop_to", lambda self, seqno: None)


def every_row_of_a_key(patch: Patch) -> None:
    def say(self: Serving, entries: list[serving.Folded]) -> None:
        self._out.append(Marker(self.position.seqno, entries[-1].point, False))
        self._say_rows([row for entry in entries for row in entry.rows])
        self._end_snapshot(entries[-1].point, entries[-1].summary)

    patch.setattr(Serving, "_say_snapshot", say)


def rescan_undecided(patch: Patch) -> None:
    """A feed overflows, tombstones are purged, and the scan that follows asks no question."""
    def live(self: Serving, now_ms: int) -> object:
        if self.feed.lost:
            again.add(id(self))
        return lives(self, now_ms)

    def took(self: Serving, now_ms: int, cut: serving.Cut) -> None:
        with patch.context() as inner:
            if id(self) in again:
                inner.setattr(serving, "decide", lambda asked, here, _: Accepted(asked.position.point.seqno))
            takes(self, now_ms, cut)

    def init(self: Serving, *args: object, **options: object) -> None:
        again.discard(id(self))
        inits(self, *args, **options)   # type: ignore[arg-type]

    again: set[int] = set()
    lives, takes, inits = Serving._live, Serving.took, Serving.__init__
    patch.setattr(Serving, "_live", live)
    patch.setattr(Serving, "took", took)
    patch.setattr(Serving, "__init__", init)


def overflow_loses_entries(patch: Patch) -> None:
    def add(self: Feed, now_ms: int, folded: serving.Folded) -> None:
        adds(self, now_ms, folded)
        if self.lost:
            self.begin()

    adds = Feed.add
    patch.setattr(Feed, "add", add)


def advanced_moves_nothing(patch: Patch) -> None:
    patch.setattr(Consuming, "_on_advanced", lambda self, message: [])


def advanced_never_sent(patch: Patch) -> None:
    patch.setattr(Serving, "_advance", lambda self, point: self._moved(point))


def advanced_inside_a_snapshot(patch: Patch) -> None:
    """A filtered scan moves the position over what it leaves out."""
    def scanned(self: Serving, rows: list[Row], through: int) -> None:
        scans(self, rows, through)
        if not self._out and self._cut is not None and self._cut.here is not None:
            self._out.append(Advanced(self._cut.here.failover.point(through)))

    scans = Serving.scanned
    patch.setattr(Serving, "scanned", scanned)


def position_for_each_row(patch: Patch) -> None:
    def on_rows(self: Consuming, message: Rows) -> list[consuming.Effect]:
        staged = rows(self, message)
        assert self._inside is not None
        self._storing = self._inside.end._replace(seqno=message.rows[-1].seqno)
        return [*staged, Apply(self._inside.start, self._storing, self._inside.start == 0)]

    rows = Consuming._on_rows
    patch.setattr(Consuming, "_on_rows", on_rows)


def deletes_skipped_in_every_scan_from_the_beginning(patch: Patch) -> None:
    patch.setattr(serving, "skipped", lambda row, first_end: row.op is not Op.PUT)


def rebuilt_into_the_old_view(patch: Patch) -> None:
    def on_end(self: Consuming, message: End) -> list[consuming.Effect]:
        (applied,) = ends(self, message)
        assert isinstance(applied, Apply)
        return [Apply(applied.start, applied.point, False)]

    ends = Consuming._on_end
    patch.setattr(Consuming, "_on_end", on_end)


def part_of_a_snapshot_without_its_end(patch: Patch) -> None:
    """The consumer goes on behind the last row as if that were its position."""
    def ask(self: Consuming) -> object:
        if self.partial is not None and self.partial.end.seqno:
            self.partial = self.partial._replace(end=self.partial.end._replace(seqno=self.partial.last))
        return asks(self)

    asks = Consuming.ask
    patch.setattr(Consuming, "ask", ask)


def same_lineage(world: World) -> None:
    world.same_lineage = True


def position_before_the_rows(world: World) -> None:
    world.position_first = True


MUTANTS = [
    *(deciding(wrong) for wrong in (
        decisions.section_4, decisions.smaller_of_both, decisions.end_ignored, decisions.purge_left_out,
        decisions.epoch_not_compared, decisions.epoch_of_the_start, decisions.lineage_not_compared,
    )),
    feed_behind_the_snapshot, feed_repeats_the_snapshot, every_row_of_a_key, overflow_loses_entries,
    advanced_moves_nothing, advanced_never_sent, advanced_inside_a_snapshot, position_for_each_row,
    deletes_skipped_in_every_scan_from_the_beginning, rebuilt_into_the_old_view, part_of_a_snapshot_without_its_end,
]


CAUGHT_FROM = {"epoch_not_compared": 65, "lineage_not_compared": 97, "part_of_a_snapshot_without_its_end": 80}
"""The first seeds of mutants that take long to catch."""


def caught(change: Callable[[World], None] = lambda world: None, first: int = 0) -> str:
    """Return what the runs complain about, empty when they do not."""
    for seed in range(first, first + 120):
        world = crowd(seed)
        world.settle_steps = 1_500
        change(world)
        try:
            world.run(2_000, restores=True)
        except (AssertionError, RemoteViolation) as error:
            return str(error)
    return ""


@pytest.mark.parametrize("mutate", MUTANTS, ids=lambda mutate: mutate.__name__)
def test_a_machine_without_one_rule_is_caught(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Rules U56 to U63: each change takes one of them away."""
    mutate(monkeypatch)

    assert caught(first=CAUGHT_FROM.get(mutate.__name__, 0)).startswith("U"), f"{mutate.__name__} was not caught"


@pytest.mark.parametrize("change", [same_lineage, position_before_the_rows], ids=lambda change: change.__name__)
def test_a_world_without_one_rule_is_caught(change: Callable[[World], None]) -> None:
    assert caught(change).startswith("U"), f"{change.__name__} was not caught"


# --- traces that broke the sources ------------------------------------------------------------------------------


def quiet(link: Link) -> None:
    """Run a stream until nothing moves."""
    while any([link.serve(), link.deliver(), link.hear()]):
        pass


def until(link: Link, message: type[object]) -> None:
    """Run a stream until the consumer gets a message of a class, that one included."""
    while True:
        found = isinstance(link.down[0], message) if link.down else False
        moved = link.deliver()
        if found:
            return
        assert any([link.serve(), link.hear()]) or moved, f"no {message.__name__} comes"


def put(key: bytes, value: bytes = b"v") -> tuple[bytes, Op, bytes]:
    return key, Op.PUT, value


def delete(key: bytes) -> tuple[bytes, Op, bytes]:
    return key, Op.DELETE, b""


def folded(world: World, *counts: int) -> None:
    """Let each member fold so many entries."""
    for member, count in zip(world.members, counts, strict=False):
        for _ in range(count):
            assert member.fold()


def following(world: World, **options: OnLost) -> Consumer:
    """Return a consumer that has everything that the first member has."""
    consumer = world.consumer(on_lost=options.get("on_lost", OnLost.FAIL))
    quiet(world.open(consumer, world.members[0]))
    return consumer


def test_w1_a_member_that_lags_is_behind() -> None:
    """Rule U57: neither a lagging nor a restarted member takes anything back."""
    world = World(0)
    world.shard.write(put(A))
    folded(world, 2, 1)
    consumer = following(world)
    world.members[0].restart(0)

    for member in world.members[:2]:
        link = world.open(consumer, member)
        quiet(link)
        assert link.server.phase is serving.Phase.OVER
        assert consumer.failed is None
    folded(world, 1)
    quiet(world.open(consumer, world.members[0]))

    assert consumer.position.seqno == 1 and consumer.documents == {A: (1, b"v")}


def test_w2_a_member_below_the_end_of_a_part_is_behind() -> None:
    """Rules U57, U62: row 1 of [0, 2] is here, and a member at 0 takes nothing back."""
    world = World(0)
    world.shard.write(put(A), put(B, b"x" * 200))
    folded(world, 2, 1)
    consumer = world.consumer(on_lost=OnLost.FAIL)
    until(world.open(consumer, world.members[0]), Rows)
    world.cut(consumer)
    quiet(world.open(consumer, world.members[1]))

    assert consumer.failed is None and consumer.machine.partial is not None
    quiet(world.open(consumer, world.members[0]))
    assert consumer.documents == {A: (1, b"v"), B: (2, b"x" * 200)}


def test_w3_a_part_of_a_snapshot_goes_on_only_where_its_end_is() -> None:
    """Rules U57, U62: of [0, 3] only row 2 is here, for row 1 was replaced by row 3; a member at 2 has no row 3."""
    world = World(0)
    for change in (put(A, b"old"), put(B, b"x" * 200), put(A, b"new")):
        world.shard.write(change)
    folded(world, 4, 3)
    consumer = world.consumer(on_lost=OnLost.FAIL)
    until(world.open(consumer, world.members[0]), Rows)
    world.cut(consumer)
    assert [row.seqno for row in consumer.staging] == [2]
    quiet(world.open(consumer, world.members[1]))
    assert consumer.position == START, "a member at 2 would end the snapshot without A"

    world.members[1].fold()
    quiet(world.open(consumer, world.members[1]))
    assert consumer.documents == {A: (3, b"new"), B: (2, b"x" * 200)}


def test_w4_a_purge_that_a_live_marker_knew_is_no_reason_to_skip_a_delete() -> None:
    """Rule U57: put, delete, purge; the consumer holds the put, and a live snapshot behind the delete breaks."""
    world = World(0)
    world.shard.write(put(A))
    folded(world, 2)
    consumer = following(world)
    link = consumer.link
    assert link is not None
    world.shard.write(delete(A))
    world.members[0].fold()
    until(link, Marker)
    world.cut(consumer)
    world.shard.control(purge=2)
    world.members[0].fold()
    quiet(world.open(consumer, world.members[0]))

    assert consumer.failed is not None and consumer.failed.refusal == Purged(2)


def test_w5_an_epoch_that_comes_twice_names_two_histories() -> None:
    """Rules U54, U57: data and metadata are set back together; the epoch is the same, the lineage is not."""
    world = World(0)
    world.shard.write(put(A))
    world.shard.elect()
    world.shard.write(put(A, b"lost"))
    folded(world, 4)
    consumer = following(world)
    world.restore(1, b"\2" * 16, 1)
    world.shard.write(delete(A))
    folded(world, 2)
    quiet(world.open(consumer, world.members[0]))

    assert world.shard.epoch == 2 == consumer.position.epoch
    assert consumer.failed is not None and isinstance(consumer.failed.refusal, HistoryLost)


def test_w6_a_part_of_a_snapshot_is_compared_at_its_end() -> None:
    """Rule U57: the disks are set back below the end of a first snapshot that is here in part."""
    world = World(0)
    world.shard.write(put(A))
    world.shard.write(put(B, b"x" * 200))
    folded(world, 3)
    consumer = world.consumer(on_lost=OnLost.FAIL)
    until(world.open(consumer, world.members[0]), Rows)
    world.restore(0, world.shard.lineage, world.shard.epoch)
    world.shard.write(put(C))
    folded(world, 2)
    assert consumer.staging and consumer.machine.partial is not None
    quiet(world.open(consumer, world.members[0]))
    assert consumer.machine.partial is None and not consumer.staging, "the part is of another history"
    quiet(world.open(consumer, world.members[0]))

    assert consumer.documents == {C: (2, b"v")}


def test_w7_elections_that_pass_while_a_consumer_sleeps_lose_nothing() -> None:
    """Rule U57: its epoch is too old to be named."""
    world = World(0)
    world.shard.write(put(A))
    folded(world, 2)
    consumer = following(world)
    world.cut(consumer)
    for _ in range(40):
        world.shard.elect()
        world.members[0].fold()
    quiet(world.open(consumer, world.members[0]))

    assert consumer.failed is None and consumer.position.seqno == world.shard.end


def test_w8_a_rebuild_begins_empty() -> None:
    """Rule U58: a document that was deleted and purged goes, and the old view serves until the new one is whole."""
    world = World(0)
    world.shard.write(put(A))
    world.shard.write(put(B, b"x" * 200))
    folded(world, 3)
    consumer = following(world, on_lost=OnLost.REBUILD)
    world.cut(consumer)
    world.shard.write(delete(A))
    world.shard.write(put(C))
    world.shard.control(purge=3)
    folded(world, 3)
    quiet(world.open(consumer, world.members[0]))
    assert consumer.events == [Purged(3)]
    until(world.open(consumer, world.members[0]), Rows)
    assert set(consumer.documents) == {A, B} and consumer.position.seqno == 2
    consumer.crash()
    assert consumer.position.seqno == 2, "a crash in a rebuild leaves the old view and its position"

    for _ in range(2):
        quiet(world.open(consumer, world.members[0]))
    assert set(consumer.documents) == {B, C} and consumer.position.seqno == world.shard.end
    assert consumer.events == [Purged(3)] * 2


def test_w14_entries_without_a_row_move_the_position() -> None:
    """Rule U60: an election, a control record, a refused write and a key that the filter leaves out."""
    world = World(0)
    world.shard.write(put(b"k1"))
    folded(world, 2)
    consumer = world.consumer(SOME)
    link = world.open(consumer, world.members[0])
    quiet(link)
    world.shard.elect()
    world.shard.control()
    world.shard.write((A, None, b""), (B, None, b""))   # type: ignore[arg-type]
    world.shard.write(put(b"other"))
    folded(world, 4)
    quiet(link)
    assert consumer.position.seqno == 1, "not at once"
    world.now_ms += world.limits.advance_ms
    quiet(link)

    assert consumer.position == Point(world.shard.lineage, 2, world.shard.end)


# --- the member's side, message by message ----------------------------------------------------------------------


def test_u60_a_barrier_moves_the_position_at_once() -> None:
    world = World(0)
    consumer = world.consumer()
    world.members[0].fold()
    link = world.open(consumer, world.members[0])
    quiet(link)
    link.server.barrier(2)
    world.shard.control()
    world.members[0].fold()
    quiet(link)
    assert consumer.position.seqno == 1, "what is folded goes out, though the target is not reached"
    world.shard.control()
    world.members[0].fold()
    quiet(link)

    assert consumer.position.seqno == 2


def test_u60_much_log_without_a_row_moves_the_position_before_a_second_is_over() -> None:
    world = World(0)
    consumer = world.consumer()
    world.members[0].fold()
    link = world.open(consumer, world.members[0])
    quiet(link)
    while consumer.position.seqno == 0:
        world.shard.control()
        world.members[0].fold()
        quiet(link)

    assert world.shard.end == 40, "50 bytes each, 2,000 bytes are the bound"


def test_u61_a_scan_without_an_acknowledgement_ends_and_frees_its_snapshot() -> None:
    world = World(0)
    for at in range(30):
        world.shard.write(put(b"k%d" % at, b"x" * 50))
    folded(world, 31)
    consumer = world.consumer()
    link = world.open(consumer, world.members[0])
    while link.serve():
        pass
    assert link.snapshot is not None and link.server.credit.owed >= link.server.credit.window
    world.now_ms += world.limits.stall_ms - 1
    assert not link.serve()
    world.now_ms += 1
    while link.serve():
        pass

    assert link.snapshot is None
    assert isinstance(link.down[-1], StreamEnd) and link.down[-1].reason == "TOO_SLOW"
    quiet(link)
    assert consumer.failed is None and consumer.link is None, "the consumer asks again, and goes on inside the snapshot"
    quiet(world.open(consumer, world.members[0]))
    assert len(consumer.documents) == 30


def overflow_and_purge() -> Consumer:
    """A live consumer does not read; its feed overflows, a delete in there is purged, and it reads again."""
    world = World(0)
    world.shard.write(put(A), put(B))
    folded(world, 2)
    consumer = following(world)
    link = consumer.link
    assert link is not None
    world.shard.write(delete(A))
    for _ in range(20):
        world.shard.write(put(B, b"x" * 30))
    while world.members[0].fold():
        pass
    assert link.server.feed.lost and not link.server.feed.entries
    world.shard.control(purge=3)
    world.members[0].fold()
    quiet(link)
    return consumer


def test_u61_a_feed_that_overflows_sends_the_stream_back_to_a_scan_that_is_decided_again() -> None:
    consumer = overflow_and_purge()

    assert consumer.failed is not None and consumer.failed.refusal == Purged(3)


def test_u61_a_scan_after_an_overflow_that_is_not_decided_is_caught(monkeypatch: Patch) -> None:
    rescan_undecided(monkeypatch)

    with pytest.raises(AssertionError, match="the view is not the shard"):
        overflow_and_purge()


def test_u61_an_acknowledgement_of_more_than_was_sent_ends_the_stream() -> None:
    world = World(0)
    world.members[0].fold()
    link = world.open(world.consumer(), world.members[0])
    quiet(link)
    link.server.acknowledged(0, link.server.credit.sent + 1)
    link.serve()

    assert isinstance(link.down[-1], StreamEnd) and link.down[-1].reason == "PROTOCOL_ERROR"


def test_u61_a_repeated_acknowledgement_counts_once() -> None:
    world = World(0)
    world.members[0].fold()
    link = world.open(world.consumer(), world.members[0])
    quiet(link)
    credit = link.server.credit
    for total in (credit.sent, credit.sent - 1, credit.sent, 0):
        link.server.acknowledged(0, total)

    assert (credit.owed, credit.acked) == (0, credit.sent)


def test_u59_a_document_that_no_message_carries_ends_the_stream_for_good() -> None:
    """The consumer does not ask again: every member would answer the same."""
    world = World(0, limits=Limits(row_bytes_max=200))
    world.shard.write(put(A), put(B, b"x" * 500))
    folded(world, 2)
    consumer = world.consumer()
    quiet(world.open(consumer, world.members[0]))

    assert consumer.failed is not None and consumer.failed.reason == "CANNOT_SEND"
    assert "b'b'" in consumer.failed.message and "seqno 2" in consumer.failed.message
    assert consumer.position == START


def test_u63_a_filter_shows_its_keys_and_a_projection_no_values() -> None:
    world = World(0)
    world.shard.write(put(b"k1", b"one"), put(b"k2"), put(b"other"))
    folded(world, 2)
    consumer = world.consumer(Filter((prefix(b"k"),), values=False))
    quiet(world.open(consumer, world.members[0]))

    assert consumer.documents == {b"k1": (1, b""), b"k2": (2, b"")}


def test_u63_a_first_scan_that_skips_deletes_still_shows_those_behind_its_end() -> None:
    world = World(0)
    world.shard.write(put(A))
    world.shard.write(delete(A))
    world.shard.write(put(B))
    world.shard.write(put(C, b"x" * 200))
    folded(world, 5)
    consumer = world.consumer(skip_deletes=True)
    until(world.open(consumer, world.members[0]), Rows)
    assert [row.key for row in consumer.staging] == [B], "the delete of A concerns nothing that was sent"
    world.cut(consumer)
    world.shard.write(delete(B))
    world.members[0].fold()
    quiet(world.open(consumer, world.members[0]))

    assert set(consumer.documents) == {C}


def test_u64_all_versions_come_in_log_order_until_the_log_is_trimmed() -> None:
    world = World(0)
    for value in (b"1", b"2", b"3"):
        world.shard.write(put(A, value), put(B, value))
    folded(world, 4)
    consumer = world.consumer(ALL, History.ALL)
    link = world.open(consumer, world.members[0])
    until(link, End)
    assert consumer.position.seqno == 2, "an entry is a snapshot"
    quiet(link)
    assert [(row.key, row.value) for row in consumer.versions] == [
        (key, value) for value in (b"1", b"2", b"3") for key in (A, B)
    ]
    late = world.consumer(ALL, History.ALL)
    world.first_kept = 3
    quiet(world.open(late, world.members[0]))

    assert late.failed is not None and late.failed.refusal == consuming.HistoryTrimmed(3)


# --- the consumer's side ----------------------------------------------------------------------------------------

LINEAGE = b"\1" * 16


def at(seqno: int) -> Point:
    return Point(LINEAGE, 1, seqno)


def machine(seqno: int = 5) -> Consuming:
    made = Consuming(World(0).consumer().scope, decisions.SHARD, at(seqno))
    made.ask()
    return made


@pytest.mark.parametrize("messages", [
    [Rows((Row(6, A),))],
    [End(5)],
    [Marker(4, at(9), False)],
    [Marker(5, at(4), False)],
    [Marker(5, at(9), False), Marker(5, at(9), False)],
    [Marker(5, at(9), False), Advanced(at(9))],
    [Marker(5, at(9), False), End(8)],
    [Marker(5, at(9), False), Rows((Row(5, A),))],
    [Marker(5, at(9), False), Rows((Row(10, A),))],
    [Marker(5, at(9), False), Rows((Row(7, A), Row(6, B)))],
    [Marker(5, at(9), False), Rows((Row(7, A),)), Rows((Row(7, A),))],
    [Advanced(at(4))],
], ids=range(12))
def test_u59_a_member_that_breaks_the_protocol_is_noticed(messages: list[object]) -> None:
    made = machine()
    for message in messages[:-1]:
        made.on_message(message)    # type: ignore[arg-type]

    with pytest.raises(RemoteViolation, match=r"U59|U60"):
        made.on_message(messages[-1])   # type: ignore[arg-type]


def test_u55_nothing_inside_a_snapshot_is_stored() -> None:
    made = machine()
    made.on_message(Marker(5, at(9), False))

    assert made.on_message(Rows((Row(7, A),))) == [Stage((Row(7, A),))]
    assert made.point == at(5)
    made.disconnected()
    asked = made.ask()
    assert (asked.position.point, asked.partial and asked.partial.last) == (at(5), 7)
    assert made.on_message(Marker(5, at(11), True, 3)) == []
    assert made.on_message(End(11)) == [Apply(5, at(11), False)]
    made.stored(at(11))
    assert made.ask().partial is None


def test_u57_after_three_members_that_are_behind_the_leader_is_asked() -> None:
    made = machine()
    where = []
    for _ in range(4):
        made.ask()
        (effect,) = made.on_message(StreamEnd(serving.EndReason.REFUSED, Behind(3)))
        assert isinstance(effect, consuming.Reopen)
        where.append(effect.where.value)

    assert where == ["other", "other", "leader", "leader"]


def test_u58_a_consumer_that_is_to_fail_keeps_its_view_and_learns_what_is_common() -> None:
    made = machine()
    found = made.on_message(StreamEnd(serving.EndReason.REFUSED, HistoryLost(3), ""))

    assert found == [consuming.Fail(serving.EndReason.REFUSED, HistoryLost(3), "")]
    assert made.point == at(5)
