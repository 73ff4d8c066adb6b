"""Rows of a batch of changes, against a model of a shard, its members' streams and pins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark_tidemark.changes.showing import DELETE, PUT, Pins, Row, Showing
from tidemark import Advanced, BatchEvent, ChangeBatch, ChangeOp, Rebuilding, SnapshotBegin, SnapshotEnd
from tidemark_core.upr.messages import Row as StreamRow


class Written(NamedTuple):
    """The document of a key at a pin, in the model."""

    seqno: int
    value: bytes


@dataclass
class Shard:
    """The writes of a shard: each has the seqno of its place, from 1 on."""

    writes: list[tuple[bytes, bool]] = field(default_factory=list)      # key, and whether it is a put

    def newest(self, upto: int) -> dict[bytes, StreamRow]:
        """Return the last version of each key that was written at all, deletes too."""
        found = {}
        for seqno, (key, put) in enumerate(self.writes[:upto], 1):
            op, value = (ChangeOp.PUT, b"%d" % seqno) if put else (ChangeOp.DELETE, b"")
            found[key] = StreamRow(seqno, key, op, value)
        return found

    def live(self, upto: int) -> dict[bytes, Written]:
        return {
            key: Written(row.seqno, row.value) for key, row in self.newest(upto).items() if row.op is ChangeOp.PUT}

    def stream(self, start: int, heads: Sequence[tuple[int, int]]) -> Iterator[BatchEvent]:
        """Yield a stream from `start`: scans at these heads, each of which breaks off after so many rows, then whole.

        A scan that breaks off goes on behind its last row at the next head, as another member does (U62).
        """
        last = start
        for number, (head, rows_max) in enumerate(heads):
            yield SnapshotBegin(0, start, head, start == 0)
            rows = sorted(row for row in self.newest(head).values() if row.seqno > last)
            whole = number == len(heads) - 1
            rows = rows if whole else rows[:rows_max]
            for at in range(0, len(rows), 2):
                yield ChangeBatch(0, tuple(rows[at:at + 2]))
            last = rows[-1].seqno if rows else last
        yield SnapshotEnd(0, heads[-1][0], False)
        for seqno, (key, put) in list(enumerate(self.writes, 1))[heads[-1][0]:]:
            yield SnapshotBegin(0, seqno - 1, seqno, False)
            yield ChangeBatch(0, (StreamRow(seqno, key, ChangeOp.PUT if put else ChangeOp.DELETE, b"%d" % seqno),))
            yield SnapshotEnd(0, seqno, False)
        yield Advanced(0, len(self.writes))


@dataclass
class AtPins(Pins):
    shard: Shard
    start: int
    end: int
    ended: bool = False
    start_ended: bool = False

    def at_end(self, keys: Sequence[bytes]) -> Mapping[bytes, Written] | None:
        return None if self.ended else {key: row for key, row in self.shard.live(self.end).items() if key in keys}

    def at_start(self, keys: Sequence[bytes]) -> Mapping[bytes, Written]:
        return {} if self.start_ended else {key: row for key, row in self.shard.live(self.start).items() if key in keys}


def applied(state: dict[bytes, bytes], rows: Sequence[Row]) -> dict[bytes, bytes]:
    state = dict(state)
    for row in sorted(rows):
        if row.op == PUT:
            assert row.value is not None
            state[row.key] = row.value
        else:
            assert row.value is None
            state.pop(row.key, None)
    return state


def values(live: Mapping[bytes, Written]) -> dict[bytes, bytes]:
    return {key: row.value for key, row in live.items()}


WRITES = st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.booleans()), min_size=1, max_size=30)


def heads_of(data: st.DataObject, least: int, most: int) -> list[tuple[int, int]]:
    """Draw where the scans of a stream stand: heads never fall."""
    heads = sorted(data.draw(st.lists(st.integers(least, most), min_size=1, max_size=3), "heads"))
    return [(head, data.draw(st.integers(0, 5), "rows")) for head in heads]


@settings(max_examples=400, deadline=None)
@given(writes=WRITES, data=st.data())
def test_p24_batches_lead_from_one_cut_to_the_next_and_show_a_version_once(
    writes: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    shard = Shard(writes)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(writes)), min_size=1, max_size=4), "cuts"))]
    state: dict[bytes, bytes] = {}
    everything: list[Row] = []
    for start, end in pairwise(cuts):
        showing = Showing(start, end, AtPins(shard, start, end))
        rows = [
            row for some in showing.rows(shard.stream(start, heads_of(data, start, len(writes)))) for row in some]
        assert all(start < row.seqno <= end for row in rows)
        known = {*shard.live(start), *(row.key for row in rows if row.op == PUT)}
        for row in rows:
            if row.op == DELETE and row.seqno == end and writes[end - 1] != (row.key, False):
                assert row.key in known, "a delete of what never was"
        state = applied(state, rows)
        assert state == values(shard.live(end))
        everything += rows
    puts = [(row.key, row.seqno) for row in everything if row.op == PUT]
    assert len(set(puts)) == len(puts)


@settings(max_examples=200, deadline=None)
@given(writes=WRITES, data=st.data())
def test_p24_without_a_pin_nothing_is_lost_and_the_last_state_is_right(
    writes: list[tuple[bytes, bool]], data: st.DataObject
) -> None:
    shard = Shard(writes)
    cuts = [0, *sorted(data.draw(st.sets(st.integers(1, len(writes)), max_size=3), "cuts") | {len(writes)})]
    pinless = data.draw(st.sampled_from(["off", "ended", "start ended"]), "pins")
    state: dict[bytes, bytes] = {}
    for start, end in pairwise(cuts):
        pins = None
        if pinless != "off":
            pins = AtPins(shard, start, end, ended=pinless == "ended", start_ended=pinless == "start ended")
        rows = [
            row for some in Showing(start, end, pins).rows(shard.stream(start, heads_of(data, start, len(writes))))
            for row in some]
        if pins is not None:
            assert all(start < row.seqno <= end for row in rows)
        state = applied(state, rows)
        hot = {key for key, row in shard.newest(len(writes)).items() if row.seqno > end}
        right = values(shard.live(end))
        assert {key: value for key, value in state.items() if key not in hot} == {
            key: value for key, value in right.items() if key not in hot}
    assert state == values(shard.live(len(writes)))


def test_a_document_that_is_written_all_the_time_is_shown_in_every_batch() -> None:
    shard = Shard([(b"hot", True)] * 10)
    for pins in (lambda start, end: AtPins(shard, start, end), lambda start, end: None):
        for start, end in ((0, 3), (3, 6), (6, 9)):
            rows = [row for some in Showing(start, end, pins(start, end)).rows(shard.stream(start, [(10, 0)]))
                    for row in some]
            assert [row.key for row in rows] == [b"hot"]
            assert rows[0].seqno == (end if pins(0, 1) else 10)


def test_a_pin_that_has_ended_leaves_what_was_written_again_to_a_later_batch() -> None:
    shard = Shard([(b"a", True), (b"b", True), (b"a", True)])
    showing = Showing(0, 2, AtPins(shard, 0, 2, ended=True))
    assert [row.key for some in showing.rows(shard.stream(0, [(3, 0)])) for row in some] == [b"b"]
    assert showing.ended


def test_a_view_that_is_built_again_shows_all_documents_again() -> None:
    shard = Shard([(b"a", True), (b"b", True), (b"a", False), (b"c", True)])
    events = [Rebuilding(0, "PURGED", "gone"), *shard.stream(0, [(4, 0)])]
    rows = [row for some in Showing(3, 4, AtPins(shard, 3, 4)).rows(events) for row in some]
    assert applied({}, rows) == {b"b": b"2", b"c": b"4"}
