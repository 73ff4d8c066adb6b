"""Stream reader of mode=log without Spark: positions, limits and ends, against a fake cluster."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows
from pyspark_tidemark import DefaultSource
from pyspark_tidemark.log.offsets import UnreadableCheckpoint
from pyspark_tidemark.log.planning import OffsetsLost, Range
from pyspark_tidemark.log.stream import LogStreamReader
from pyspark_tidemark.options import InvalidOption
from tidemark import Record
from tidemark_core.base.entry import Kind

from tests.fake_in_a_thread import FakeInAThread, FakeShard
from tests.waiting import wait_until

from .stored import batch_of

ALL = ReadAllAvailable()


@pytest.fixture
def readers(fake: FakeInAThread) -> Iterator[Any]:
    """Make readers as Spark does; all are stopped in the end."""
    made: list[LogStreamReader] = []

    def make(**options: str) -> LogStreamReader:
        source = DefaultSource({"endpoints": ",".join(fake.cluster.addresses()), "group": "orders", **options})
        reader = source.streamReader(source.schema())
        assert isinstance(reader, LogStreamReader)
        made.append(reader)
        return reader

    yield make
    for each in made:
        each.stop()


def fill(fake: FakeInAThread, count: int, shard: int = 0) -> None:
    values = [Record(b"%d" % number, None, 1) for number in range(count)]
    fake.call(fake.added(shard, batch_of(values)))


def at(*offsets: int, partitions: int = 0) -> dict[str, Any]:
    return {"group": "orders", "groupId": 1, "minPartitions": partitions, "shards": {
        str(shard): offset for shard, offset in enumerate(offsets)}, "version": 2}


def ranges(reader: LogStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Range]:
    return [partition.offsets for partition in reader.partitions(start, end)]


def test_a_new_query_begins_at_the_latest_offset_or_where_it_is_told(fake: FakeInAThread, readers: Any) -> None:
    fake.shard().logged_ms = 5000
    fill(fake, 10)
    assert readers().initialOffset() == at(11, 1)
    assert readers(startingOffsets="earliest").initialOffset() == at(0, 0)
    assert readers(startingOffsets='{"orders": {"0": 4, "1": -1}}', minPartitions="3").initialOffset() == at(
        4, 1, partitions=3)
    assert readers(startingTimestamp="5000").initialOffset() == at(1, 1)
    with pytest.raises(OffsetsLost, match="shard 1 of group 'orders' ends at offset 1, below 99"):
        readers(startingOffsets='{"orders": {"0": 4, "1": 99}}').initialOffset()
    assert readers(
        startingOffsets='{"orders": {"0": 4, "1": 99}}', failOnDataLoss="false").initialOffset() == at(4, 1)


def made_again(fake: FakeInAThread) -> None:
    """Delete the group and add it again: the same shards, other records."""
    async def again() -> None:
        fake.cluster.delete("orders")
        fake.cluster.add_log("orders", 2)

    fake.call(again())


def test_p25_a_checkpoint_of_a_group_that_was_made_again_stops_the_query(fake: FakeInAThread, readers: Any) -> None:
    fill(fake, 10)
    reader = readers()
    start = reader.initialOffset()
    fill(fake, 10)
    end = reader.latestOffset(start, ALL)
    tasks = reader.partitions(start, end)
    made_again(fake)
    fill(fake, 100)
    said = "was deleted and made again: the query stands in the group with the id 1, and now it is"
    for another in (reader, readers(failOnDataLoss="false")):
        wait_until(lambda another=another: another._asked().group_id() != 1, "the reader hears of the new group")
        with pytest.raises(OffsetsLost, match=said):
            another.latestOffset(end, ALL)
    with pytest.raises(OffsetsLost, match=said):
        list(reader.read(tasks[0]))
    with pytest.raises(OffsetsLost, match=said):
        reader.partitions(end, {**end, "groupId": 2})


def test_p25_a_checkpoint_of_version_1_goes_on_and_says_the_group_from_then_on(
    fake: FakeInAThread, readers: Any
) -> None:
    fill(fake, 10)
    reader, of_1 = readers(), {"group": "orders", "minPartitions": 0, "shards": {"0": 5, "1": 1}, "version": 1}
    end = reader.latestOffset(of_1, ALL)
    assert end == at(11, 1)
    assert reader.latestOffset({**of_1, "shards": {"0": 11, "1": 1}}, ALL)["version"] == 1, "nothing new: no new text"
    assert ranges(reader, of_1, end) == [Range(0, 5, 11)]


def test_a_batch_is_what_lies_between_two_positions_whoever_plans_it(fake: FakeInAThread, readers: Any) -> None:
    reader, start = readers(minPartitions="3"), at(0, 0)
    fill(fake, 10)
    end = reader.latestOffset(start, ALL)
    assert end == at(11, 1, partitions=3)
    planned = ranges(reader, start, end)
    assert planned == [Range(0, 0, 3), Range(0, 3, 7), Range(0, 7, 11), Range(1, 0, 1)]
    fill(fake, 10)
    assert ranges(readers(minPartitions="9"), start, end) == planned, "the position has what divides it"
    assert ranges(reader, end, end) == []
    rows = [value for task in reader.partitions(start, end) for batch in reader.read(task)
            for value in batch.column("value").to_pylist()]
    assert rows == [b"%d" % number for number in range(10)]


def test_p6_without_anything_new_the_position_keeps_its_text(fake: FakeInAThread, readers: Any) -> None:
    fill(fake, 10)
    reader = readers(startingOffsets="earliest", minPartitions="3")
    start = json.loads(json.dumps(reader.latestOffset(reader.initialOffset(), ALL)))
    assert json.dumps(reader.latestOffset(start, ALL)) == json.dumps(start)
    assert json.dumps(readers(minPartitions="8").latestOffset(start, ALL)) == json.dumps(start), "another option"
    assert reader.reportLatestOffset() == at(11, 1, partitions=3)


def test_p8_a_limit_divides_a_batch_among_shards_and_all_available_ignores_it(
    fake: FakeInAThread, readers: Any
) -> None:
    fill(fake, 29)
    fill(fake, 9, shard=1)
    reader = readers(maxOffsetsPerTrigger="8")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(8)
    position, taken = at(0, 0), []
    while (end := reader.latestOffset(position, limit)) != position:
        taken.append([end["shards"][shard] - position["shards"][shard] for shard in ("0", "1")])
        position = end
    assert taken == [[6, 2]] * 5
    assert reader.latestOffset(at(0, 0), ALL) == at(30, 10)


def test_p8_a_batch_waits_for_enough_offsets_for_a_while(
    fake: FakeInAThread, readers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("pyspark_tidemark.log.stream.time.monotonic", lambda: clock[0])
    reader = readers(minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMinRows(10)
    fill(fake, 4)
    first = reader.latestOffset(at(0, 0), limit)
    assert first == at(5, 1), "a query that begins does not wait"
    fill(fake, 4)
    assert reader.latestOffset(first, limit) == first
    fill(fake, 6)
    second = reader.latestOffset(first, limit)
    assert second == at(15, 1)
    fill(fake, 1)
    clock[0] += 29.9
    assert reader.latestOffset(second, limit) == second
    clock[0] += 0.1
    assert reader.latestOffset(second, limit) == at(16, 1)
    assert readers(minOffsetsPerTrigger="10", maxOffsetsPerTrigger="20").getDefaultReadLimit() == ReadMaxRows(20)


def test_p7_available_now_ends_at_what_was_there_at_its_start(fake: FakeInAThread, readers: Any) -> None:
    fill(fake, 10)
    reader = readers(minOffsetsPerTrigger="1000")
    reader.prepareForTriggerAvailableNow()
    fill(fake, 10)
    fake.call(shard_added(fake, 2))
    limit = ReadMaxRows(9)
    first = reader.latestOffset(at(0, 0), limit)
    assert sum(first["shards"].values()) == 9
    second = reader.latestOffset(first, limit)
    assert second == at(11, 1)
    assert reader.latestOffset(second, limit) == second, "it ends, and no shard that was added later is in it"


async def shard_added(fake: FakeInAThread, index: int) -> None:
    shard = fake.cluster.groups["orders"][index] = FakeShard(index, "n0", 3)
    shard.add(None, Kind.EPOCH_START)
    fake.cluster.push()


async def shard_removed(fake: FakeInAThread, index: int) -> None:
    del fake.cluster.groups["orders"][index]
    fake.cluster.push()


def test_p7_a_shard_that_is_added_is_read_from_its_beginning_in_the_next_batch(
    fake: FakeInAThread, readers: Any
) -> None:
    reader = readers()
    start = at(1, 1)
    assert reader.latestOffset(start, ALL) == start
    fake.call(shard_added(fake, 2))
    fill(fake, 5, shard=2)
    wait_until(lambda: reader.latestOffset(start, ALL) != start)
    added = reader.latestOffset(start, ALL)
    assert added == at(1, 1, 0)
    assert ranges(reader, start, added) == []
    end = reader.latestOffset(added, ALL)
    assert end == at(1, 1, 6) and ranges(reader, added, end) == [Range(2, 0, 6)]
    restarted = readers()
    restarted.prepareForTriggerAvailableNow()
    position, steps = start, 0
    while (following := restarted.latestOffset(position, ReadMaxRows(4))) != position:
        position, steps = following, steps + 1
    assert position == at(1, 1, 6) and steps == 3, "a run that begins before the shard was known ends too"


def test_p7_a_shard_that_is_gone_or_fell_back_is_an_error_that_names_both_offsets(
    fake: FakeInAThread, readers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    fill(fake, 10)
    reader, kept = readers(), readers(failOnDataLoss="false")
    with pytest.raises(OffsetsLost, match="shard 1 of group 'orders' ends at offset 1, below 7, where the query"):
        reader.latestOffset(at(0, 7), ALL)
    with caplog.at_level(logging.WARNING, "pyspark_tidemark"):
        assert [kept.latestOffset(at(0, 7), ALL) for _ in range(3)] == [at(11, 7)] * 3
    assert caplog.text.count("ends at offset 1, below 7") == 1, "once, not with every look"
    fake.call(shard_removed(fake, 1))
    wait_until(lambda: len(kept._asked().shards()) == 1 == len(reader._asked().shards()))
    with pytest.raises(OffsetsLost, match="shard 1 of group 'orders' is gone: the query stands at offset 1"):
        reader.latestOffset(at(0, 1), ALL)
    assert kept.latestOffset(at(0, 1), ALL) == at(11, 1), "every shard stays in the position"


def test_a_checkpoint_of_another_group_or_release_is_refused(fake: FakeInAThread, readers: Any) -> None:
    for wrong in ({**at(0, 0), "group": "others"}, {**at(0, 0), "version": 9}):
        with pytest.raises(UnreadableCheckpoint):
            readers().latestOffset(wrong, ALL)
        with pytest.raises(UnreadableCheckpoint):
            readers().partitions(wrong, at(1, 1))


def test_a_reader_that_is_stopped_connects_again_when_it_is_asked(fake: FakeInAThread, readers: Any) -> None:
    reader = readers()
    assert reader.initialOffset() == at(1, 1)
    reader.stop()
    reader.stop()
    assert reader.initialOffset() == at(1, 1)


@pytest.mark.parametrize(("options", "field", "said"), [
    ({"endingOffsets": "latest"}, "endingOffsets", "goes with a batch query alone"),
    ({"maxOffsetsPerTrigger": "5", "MINOFFSETSPERTRIGGER": "6"}, "minOffsetsPerTrigger", "6 is above"),
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger", "'0' is no number from 1 to"),
    ({"maxOffsetsPerTrigger": "9223372036854775808"}, "maxOffsetsPerTrigger", "is no number from 1 to"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay", "'soon' is no time such as 30s, 15m or 2h"),
])
def test_a_wrong_option_of_a_stream_is_refused_by_name(options: dict[str, str], field: str, said: str) -> None:
    source = DefaultSource({"group": "orders", **options})
    with pytest.raises(InvalidOption) as refused:
        source.streamReader(DefaultSource({"group": "orders"}).schema())
    assert refused.value.field == field and said in str(refused.value)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "minoffsetspertrigger", "maxTriggerDelay"])
def test_an_option_of_streams_is_refused_in_a_batch_query(name: str) -> None:
    source = DefaultSource({"group": "orders", name: "5m" if "Delay" in name else "5"})
    with pytest.raises(InvalidOption, match="goes with readStream alone"):
        source.reader(source.schema())


def test_a_huge_limit_takes_everything(fake: FakeInAThread, readers: Any) -> None:
    fill(fake, 10)
    reader = readers(maxOffsetsPerTrigger=str(2**63 - 1))
    assert reader.latestOffset(at(0, 0), reader.getDefaultReadLimit()) == at(11, 1)
