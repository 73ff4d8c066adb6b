"""Readers of mode=changes without Spark: cuts, pins and tasks, on a fake cluster whose members serve by the core."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import tidemark.sync
from pyspark.sql.datasource import EqualTo
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_tidemark.changes.facts import ChangeFacts
from pyspark_tidemark.changes.position import Position
from pyspark_tidemark.changes.tasks import ChangesLost
from tidemark.errors import RequestRefused, Unavailable
from tidemark.sync import SyncDocuments
from tidemark_core.base.refusals import Reason, Refused

from tests.fake_in_a_thread import FakeInAThread

from ..groups import add_things, assert_refused, documents_of
from .support import applied, reader_of, rows, source_of, stream_of

ALL = ReadAllAvailable()
STORED = {b"k%03d" % number: b'{"number": %d}' % number for number in range(60)}


@pytest.fixture
def things(fake: FakeInAThread) -> Iterator[SyncDocuments]:
    """The documents of a group of two shards, filled."""
    add_things(fake)
    with tidemark.sync.connect(fake.address) as client, client.documents("things") as documents:
        documents.put_many(list(STORED.items()))
        yield documents


def pins(things: SyncDocuments) -> set[str]:
    return {pin.name for each in things.describe().values() for pin in each.pins}


def live(things: SyncDocuments) -> dict[bytes, bytes]:
    return {each.key: each.value for each in things.scan()}


def test_a_batch_query_shows_the_documents_and_those_behind_a_pin_what_changed(
    fake: FakeInAThread, things: SyncDocuments
) -> None:
    for key in list(STORED)[:5]:
        things.delete(key)
    first = reader_of(fake)
    found = rows(first, first.partitions())
    assert applied({}, found) == live(things) and {op for _, _, op, _, _ in found} == {"PUT"}
    with things.pin("here", 60) as pin:
        position, state = pin.position, live(things)
        assert position is not None
        things.put(b"k010", b"again")
        filtered = reader_of(fake, startingOffsets=position)
        assert filtered.wanted.push([EqualTo(("shard",), 1)]) == []
        before = pins(things)
        assert [task.stretch.shard for task in filtered.partitions()] == [1]
        (now,) = pins(things) - before
        held = [shard for shard, each in things.describe().items() if now in {pin.name for pin in each.pins}]
        assert held == [1], "a shard without a task keeps no pin"
        things.delete(b"k011")
        behind = reader_of(fake, startingOffsets=position)
        found = rows(behind, behind.partitions())
    assert sorted((op, key, value) for _, _, op, key, value in found) == [
        ("DELETE", b"k011", None), ("PUT", b"k010", b"again")]
    assert applied(state, found) == live(things)


def test_p24_a_stream_leads_from_cut_to_cut_while_documents_are_written(
    fake: FakeInAThread, things: SyncDocuments
) -> None:
    reader = stream_of(fake, startingOffsets="earliest")
    start = reader.initialOffset()
    state: dict[bytes, bytes] = {}
    seen: list[Any] = []
    for number in range(4):
        cut = live(things)
        end = reader.latestOffset(start, ALL)
        # Writes behind the cut do not show, whatever they do to documents of the batch.
        things.put(b"hot", b"%d" % number)
        things.put(b"k%03d" % number, b"changed")
        things.put(b"k%03d" % (20 + number), b"again")
        things.delete(b"k%03d" % (40 + number))
        things.put(b"new%d" % number, b"new")
        planned = reader.partitions(start, end)
        found = rows(reader, planned)
        assert sorted(rows(reader, planned)) == sorted(found), "a task that is tried again"
        assert [str(task.stretch) for task in reader.partitions(start, end)] == [str(task.stretch) for task in planned]
        state = applied(state, found)
        assert state == cut
        seen += [(key, seqno) for _, seqno, op, key, _ in found if op == "PUT"]
        reader.commit(end)
        start = end
    assert len(seen) == len(set(seen))
    assert len(pins(things)) == 1, "only the pin at which the query stands is left"
    reader.stop()


def test_p6_without_a_change_the_position_keeps_its_text(fake: FakeInAThread, things: SyncDocuments) -> None:
    reader = stream_of(fake, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    made_pins = pins(things)
    assert json.dumps(reader.latestOffset(end, ALL)) == json.dumps(end)
    things.put(b"k000", b"changed")
    after = reader.latestOffset(end, ALL)
    assert json.dumps(after, sort_keys=True) == json.dumps(after) != json.dumps(end)
    assert [task.stretch.shard for task in reader.partitions(end, after)] == [things_shard(things, b"k000")], (
        "a shard without a change has no task")
    assert len(pins(things) - made_pins) == 1
    reader.stop()


def things_shard(things: SyncDocuments, key: bytes) -> int:
    found = things.get(key)
    assert found is not None
    return found.shard


def test_p7_available_now_ends_at_what_was_there_at_its_start(fake: FakeInAThread, things: SyncDocuments) -> None:
    reader = stream_of(fake, startingOffsets="earliest")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    things.put(b"late", b"late")
    end = reader.latestOffset(start, ALL)
    assert b"late" not in applied({}, rows(reader, reader.partitions(start, end)))
    assert reader.latestOffset(end, ALL) == end
    again = stream_of(fake, startingOffsets="earliest")
    again.prepareForTriggerAvailableNow()
    found = rows(again, again.partitions(end, again.latestOffset(end, ALL)))
    assert [(op, key) for _, _, op, key, _ in found] == [("PUT", b"late")]
    reader.stop()
    again.stop()


def test_p19_a_cut_that_takes_too_long_leaves_the_query_at_its_last_one_with_a_warning(
    fake: FakeInAThread, things: SyncDocuments, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_of(fake, startingOffsets="earliest", barrierTimeout="300ms")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    things.put(b"k000", b"changed")
    behind = documents_of(fake, 1)
    behind.refusals.extend([Refused(Reason.OVERLOADED, "busy")] * 1000)
    with caplog.at_level(logging.WARNING, "pyspark_tidemark"):
        assert reader.latestOffset(end, ALL) == end == reader.latestOffset(end, ALL)
    said = [record.message for record in caplog.records if record.name == "pyspark_tidemark"]
    assert len(said) == 1
    assert "no cut of all shards within barrierTimeout=0.3s" in said[0] and "shard 1" in said[0]
    behind.refusals.clear()
    after = reader.latestOffset(end, ALL)
    assert [key for _, _, _, key, _ in rows(reader, reader.partitions(end, after))] == [b"k000"]
    reader.stop()


@pytest.mark.parametrize("barrier", ["true", "false"])
def test_p19_a_refusal_that_stays_ends_the_query(fake: FakeInAThread, things: SyncDocuments, barrier: str) -> None:
    reader = stream_of(fake, startingOffsets="earliest", barrier=barrier)
    start = reader.initialOffset()
    documents_of(fake, 1).refusals.extend([Refused(Reason.INVALID_SPEC, "ttl_ms is too long")] * 10)
    with pytest.raises(RequestRefused, match="ttl_ms is too long"):
        reader.latestOffset(start, ALL)
    reader.stop()


def test_p19_without_barriers_a_shard_that_does_not_answer_holds_up_no_other(
    fake: FakeInAThread, things: SyncDocuments
) -> None:
    reader = stream_of(fake, startingOffsets="earliest", barrier="false", barrierTimeout="300ms")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert not pins(things)
    things.put_many([(key, b"changed") for key in list(STORED)[:10]])
    changed = {key for key in list(STORED)[:10] if things_shard(things, key) == 0}
    documents_of(fake, 1).refusals.extend([Refused(Reason.OVERLOADED, "busy")] * 1000)
    after = reader.latestOffset(end, ALL)
    found = rows(reader, reader.partitions(end, after))
    assert {key for _, _, _, key, _ in found} == changed
    documents_of(fake, 1).refusals.clear()
    last = reader.latestOffset(after, ALL)
    found = rows(reader, reader.partitions(after, last))
    assert {key for _, _, _, key, _ in found} == set(list(STORED)[:10]) - changed
    reader.stop()


def test_p18_a_query_reports_where_its_shards_stand(
    fake: FakeInAThread, things: SyncDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pin(facts: ChangeFacts) -> Position:
        raise Unavailable("no pin")

    def reported() -> dict[str, int]:
        position = reader.reportLatestOffset()
        assert position is not None
        return {shard: place["seqno"] for shard, place in position["shards"].items()}

    reader = stream_of(fake, startingOffsets="earliest")
    assert reader.reportLatestOffset() is None, "no shard was asked yet"
    end = reader.latestOffset(reader.initialOffset(), ALL)
    stands = {shard: place["seqno"] for shard, place in end["shards"].items()}
    assert reported() == stands
    things.put(b"k000", b"again")
    shard = things_shard(things, b"k000")
    with monkeypatch.context() as without_pins:
        without_pins.setattr(ChangeFacts, "pinned", no_pin)
        assert reader.latestOffset(end, ALL) == end
    found = things.get(b"k000")
    assert found is not None
    assert reported() == {**stands, str(shard): found.seqno}, "the query is behind in the shard that changed"
    after = reader.latestOffset(end, ALL)
    assert reported() == {shard: place["seqno"] for shard, place in after["shards"].items()}
    reader.stop()


def test_p24_a_pin_that_has_ended_leaves_documents_to_the_next_batch(
    fake: FakeInAThread, things: SyncDocuments, caplog: pytest.LogCaptureFixture
) -> None:
    reader = stream_of(fake, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    things.put(b"k000", b"changed")
    for name in pins(things):
        things.unpin(name)
    with caplog.at_level(logging.WARNING, "pyspark_tidemark"):
        state = applied({}, rows(reader, reader.partitions(start, end)))
    assert state == {key: value for key, value in STORED.items() if key != b"k000"}
    assert "the pin of this batch has ended" in caplog.text
    after = reader.latestOffset(end, ALL)
    assert applied(state, rows(reader, reader.partitions(end, after))) == live(things)
    reader.stop()


def test_p24_an_idle_query_keeps_the_pin_at_which_it_stands(
    fake: FakeInAThread, things: SyncDocuments, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1e9]
    monkeypatch.setattr("pyspark_tidemark.changes.stream.time", lambda: clock[0])
    reader = stream_of(fake, startingOffsets="earliest", pinLease="60s")
    end = reader.latestOffset(reader.initialOffset(), ALL)

    def left() -> list[int]:
        return [pin.expires_in_ms for each in things.describe().values() for pin in each.pins]

    for index in (0, 1):
        fake.cluster.groups["things"][index].logged_ms += 30_000
    assert reader.latestOffset(end, ALL) == end and left() == [30_000, 30_000]
    clock[0] += 21
    assert reader.latestOffset(end, ALL) == end and left() == [60_000, 60_000]
    reader.stop()


def test_changes_behind_another_history_fail_or_begin_again(fake: FakeInAThread, things: SyncDocuments) -> None:
    reader = stream_of(fake, startingOffsets="earliest")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    things.put(b"k000", b"changed")
    after = reader.latestOffset(end, ALL)
    shard = str(things_shard(things, b"k000"))
    other = json.loads(json.dumps(end))
    other["shards"][shard]["lineage"] = "ab" * 16
    with pytest.raises(ChangesLost, match=rf"shard {shard} of group 'things'.*failOnDataLoss=false"):
        rows(reader, reader.partitions(other, after))
    reader.stop()
    forgiving = stream_of(fake, startingOffsets="earliest", failOnDataLoss="false")
    found = rows(forgiving, forgiving.partitions(other, after))
    assert {key for at, _, _, key, _ in found} >= {each.key for each in things.scan(shards=[int(shard)])}
    forgiving.stop()


def test_p5_columns_of_changes(fake: FakeInAThread, things: SyncDocuments) -> None:
    source = source_of(fake, startingOffsets="earliest")
    assert source.schema().simpleString() == (
        "struct<shard:int,seqno:bigint,op:string,key:binary,value:binary,timestamp:timestamp,history_id:string>")
    histories = {shard: each.failover_log[0].history.hex() for shard, each in things.describe().items()}
    reader = reader_of(fake)
    found = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert len(found) == 60
    for row in found:
        assert row["history_id"].replace("-", "") == histories[row["shard"]] and row["timestamp"] is None


@pytest.mark.parametrize(("options", "field", "said"), [
    ({"startingOffsets": "latest"}, "startingOffsets", "cannot be latest in a batch query"),
    ({"startingOffsets": "sooner"}, "startingOffsets", "must be earliest, latest, or a position"),
    ({"startingOffsets": '{"things": {"0": 1}}'}, "startingOffsets", "must be earliest, latest, or a position"),
    ({"group": "orders"}, "group", "'orders' is of kind Log: read it with mode=log"),
    ({"barrier": "perhaps"}, "barrier", "neither true nor false"),
    ({"barrierTimeout": "0s"}, "barrierTimeout", "'0s' is below 0.1s"),
    ({"endingOffsets": "latest"}, "endingOffsets", "goes with mode=log alone"),
    ({"mode": "log", "barrier": "true"}, "barrier", "goes with mode=changes alone"),
    ({"mode": "log", "pinLease": "1h"}, "pinLease", "goes with mode=documents and mode=changes alone"),
])
def test_a_wrong_query_of_changes_is_refused(
    fake: FakeInAThread, things: SyncDocuments, options: dict[str, str], field: str, said: str
) -> None:
    assert_refused(lambda: reader_of(fake, **options).partitions(), field, said)
