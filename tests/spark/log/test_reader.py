"""Reader of mode=log without Spark: planning asks leaders, tasks read ranges, against a fake cluster."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest
from pyspark_tidemark import DefaultSource, gathering
from pyspark_tidemark.log.planning import OffsetsLost, Range
from pyspark_tidemark.log.reader import LogPartition, LogReader
from pyspark_tidemark.options import InvalidOption
from tidemark import Record
from tidemark.errors import Unavailable

from tests.fake_in_a_thread import FakeInAThread
from tests.waiting import wait_until

from .stored import batch_of


def reader_of(fake: FakeInAThread, **options: str) -> LogReader:
    source = DefaultSource({"endpoints": ",".join(fake.cluster.addresses()), "group": "orders", **options})
    reader = source.reader(source.schema())
    assert isinstance(reader, LogReader)
    return reader


def fill(fake: FakeInAThread, count: int, shard: int = 0, size: int = 10) -> None:
    """Append numbers to one shard in batches of ten; its first offset is the mark of the election."""
    log = fake.shard(shard)
    for first in range(0, count, 10):
        values = [b"%0*d" % (size, number) for number in range(first, first + 10)]
        fake.call(fake.added(shard, batch_of([Record(value, None, 1) for value in values])))
    assert log.readable == count


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the source's warnings: gRPC has some of its own where a process has several event loops, as here."""
    return [record.message for record in caplog.records if record.name == "pyspark_tidemark"]


def rows(reader: LogReader) -> list[tuple[int, int, bytes]]:
    """Read all partitions as tasks do: the reader and the partition are pickled on their way."""
    found = []
    for partition in reader.partitions():
        copy, task = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(task):
            found += [(row["shard"], row["offset"], row["value"]) for row in batch.to_pylist()]
    return found


def test_a_batch_reads_every_record_of_every_shard_once(fake: FakeInAThread) -> None:
    fill(fake, 50)
    fill(fake, 20, shard=1)
    expected = [(0, 1 + number, b"%010d" % number) for number in range(50)]
    expected += [(1, 1 + number, b"%010d" % number) for number in range(20)]
    reader = reader_of(fake)
    assert [partition.offsets for partition in reader.partitions()] == [Range(0, 0, 51), Range(1, 0, 21)]
    assert rows(reader) == expected
    assert rows(reader_of(fake, readPreference="leader")) == expected
    assert rows(reader_of(fake, location="zone=a")) == expected
    assert rows(reader_of(fake, minPartitions="7")) == expected
    assert len(reader_of(fake, minPartitions="7").partitions()) >= 7


def test_the_end_is_fixed_at_planning(fake: FakeInAThread) -> None:
    fill(fake, 20)
    reader = reader_of(fake)
    tasks = reader.partitions()
    fill_more = batch_of([Record(b"late", None, 1)])
    fake.call(fake.added(0, fill_more))
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 20


def test_p25_a_task_reads_no_group_that_was_made_again_since_planning(fake: FakeInAThread) -> None:
    fill(fake, 20)
    reader = reader_of(fake)
    (task, *_) = reader.partitions()

    async def again() -> None:
        fake.cluster.delete("orders")
        fake.cluster.add_log("orders", 2)

    fake.call(again())
    fill(fake, 20)
    with pytest.raises(OffsetsLost, match="'orders' was deleted and made again"):
        list(reader.read(task))


def test_offsets_and_times_bound_a_batch(fake: FakeInAThread) -> None:
    fake.shard().logged_ms = 2000
    fill(fake, 20)
    fake.shard().logged_ms = 3000
    fill_from = batch_of([Record(b"later", None, 1)])
    fake.call(fake.added(0, fill_from))
    given = {"startingOffsets": '{"orders": {"0": 5, "1": -2}}', "endingOffsets": '{"orders": {"0": 8, "1": -1}}'}
    assert [offset for shard, offset, _ in rows(reader_of(fake, **given)) if shard == 0] == [5, 6, 7]
    for moment in ("2500", "3000", "1970-01-01T00:00:02.5Z"):
        assert rows(reader_of(fake, startingTimestamp=moment)) == [(0, 21, b"later")]
    assert rows(reader_of(fake, startingTimestamp="2100-01-01T00:00:00+01:00")) == []


def test_an_empty_group_has_no_rows(fake: FakeInAThread) -> None:
    for shard in fake.cluster.groups["orders"].values():
        shard.entries.clear()
    reader = reader_of(fake)
    assert reader.partitions() == []
    assert list(reader.read(None)) == []


def test_p9_control_entries_and_holes_are_offsets_without_rows(fake: FakeInAThread) -> None:
    fill(fake, 30)
    log = fake.shard()
    fake.call(begun(log, 11))
    assert [offset for _, offset, _ in rows(reader_of(fake))] == list(range(1, 11))
    assert [offset for _, offset, _ in rows(reader_of(fake, failOnDataLoss="false"))] == list(range(1, 11))


async def begun(log: Any, first: int) -> None:
    log.begin_rollback(first)
    log.finish_rollback()


def test_p10_with_fail_on_data_loss_gone_offsets_fail_the_plan_or_the_task(fake: FakeInAThread) -> None:
    fill(fake, 40)
    planned = reader_of(fake)
    tasks = planned.partitions()
    fake.shard().trimmed_to = 11
    with pytest.raises(OffsetsLost, match=r"offsets 0 to 10 of shard 0 of 'orders' were removed.*failOnDataLoss=false"):
        list(planned.read(tasks[0]))
    with pytest.raises(OffsetsLost, match="shard 0 of group 'orders' begins at offset 11: offsets 3 to 10 are gone"):
        reader_of(fake, startingOffsets='{"orders": {"0": 3, "1": 0}}').partitions()
    assert [offset for _, offset, _ in rows(reader_of(fake))] == list(range(11, 41)), "earliest is what is there"


def test_p10_without_it_only_the_overlap_is_read_and_each_shard_is_warned_of_once(
    fake: FakeInAThread, caplog: pytest.LogCaptureFixture
) -> None:
    fill(fake, 40)
    reader = reader_of(fake, failOnDataLoss="false", startingOffsets='{"orders": {"0": 3, "1": 0}}',
                       endingOffsets='{"orders": {"0": 20, "1": -1}}')
    tasks = reader.partitions()
    assert warned(caplog) == []
    fake.shard().trimmed_to = 11
    with caplog.at_level(logging.WARNING, "pyspark_tidemark"):
        found = [offset for task in tasks for batch in reader.read(task) for offset in batch["offset"].to_pylist()]
    assert found == list(range(11, 20))
    assert warned(caplog) == [
        "shard 0 of group 'orders': 8 of the offsets 3 to 19 are gone: the query reads what is left"]
    caplog.clear()
    assert [offset for _, offset, _ in rows(reader)] == list(range(11, 20))
    assert warned(caplog) == [
        "shard 0 of group 'orders' begins at offset 11: offsets 3 to 10 are gone: the query reads what is left"]


def test_p5_what_compressed_batches_take_in_memory_bounds_a_record_batch(fake: FakeInAThread) -> None:
    large = Record(bytes(1 << 20), None, 1)
    for _ in range(6):
        fake.call(fake.added(0, batch_of([large] * 4, compression="zstd")))
    reader = reader_of(fake)
    (task, _) = reader.partitions()
    sizes = [batch.nbytes for batch in reader.read(task)]
    assert sum(sizes) > 24 << 20, "they are decompressed"
    assert max(sizes) <= gathering.BYTES_MAX


def test_p10_records_that_no_member_holds_are_lost(fake: FakeInAThread, caplog: pytest.LogCaptureFixture) -> None:
    fill(fake, 30)
    for node in fake.cluster.nodes.values():
        node.delivery.lacks = {11}
    with pytest.raises(OffsetsLost, match="no member holds offsets 11 to 20 of shard 0"):
        rows(reader_of(fake))
    caplog.clear()
    assert [offset for _, offset, _ in rows(reader_of(fake, failOnDataLoss="false"))] == [
        *range(1, 11), *range(21, 31)]
    assert "10 of the offsets 0 to 30 are gone" in caplog.text


@pytest.mark.parametrize(("options", "said"), [
    ({"startingOffsets": '{"orders": {"0": 99, "1": 0}}'}, "shard 0 of group 'orders' ends at offset 21, below 99"),
    ({"endingOffsets": '{"orders": {"0": 99, "1": 0}}'}, "shard 0 of group 'orders' ends at offset 21, below 99"),
    ({"startingOffsets": '{"orders": {"0": 9, "1": 0}}', "endingOffsets": '{"orders": {"0": 5, "1": 0}}'},
     "shard 0 of group 'orders' has nothing from offset 9 on and below 5"),
])
def test_p10_a_range_that_is_not_there_is_an_error_or_nothing(
    fake: FakeInAThread, options: dict[str, str], said: str
) -> None:
    fill(fake, 20)
    with pytest.raises(OffsetsLost, match=said):
        reader_of(fake, **options).partitions()
    left = rows(reader_of(fake, failOnDataLoss="false", **options))
    assert all(shard == 0 and offset < 21 for shard, offset, _ in left)


@pytest.mark.parametrize(("options", "field", "said"), [
    ({"startingOffsets": "latest"}, "startingOffsets", "cannot be latest (-1) in a batch query"),
    ({"endingOffsets": '{"orders": {"0": -2}}'}, "endingOffsets", "cannot be earliest (-2) in a batch query"),
    ({"startingOffsets": '{"orders": {"0": 1}}'}, "startingOffsets", "(0, 1): 1 not named"),
    ({"group": "nothing"}, "group", "nothing"),
    ({"group": "things"}, "group", "'things' is of kind Documents: read it with mode=documents"),
])
def test_a_wrong_query_is_refused_before_anything_is_read(
    fake: FakeInAThread, options: dict[str, str], field: str, said: str
) -> None:
    fake.call(documents(fake))
    with pytest.raises(InvalidOption) as refused:
        reader_of(fake, **options).partitions()
    assert refused.value.field == field and said in str(refused.value)


async def documents(fake: FakeInAThread) -> None:
    fake.cluster.add_documents("things")


def test_p12_a_task_that_is_dropped_leaves_no_stream_behind(
    fake: FakeInAThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(fake, 2000)
    monkeypatch.setattr(gathering, "ROWS_MAX", 10)
    for node in fake.cluster.nodes.values():
        node.delivery.item_delay_s = 0.01
    reader = reader_of(fake)
    batches = reader.read(reader.partitions()[0])
    assert next(batches).num_rows == 10
    assert any(node.delivery.streams for node in fake.cluster.nodes.values())
    batches.close()
    wait_until(lambda: not any(node.delivery.streams for node in fake.cluster.nodes.values()))


def test_the_cluster_comes_from_endpoints_or_the_environment(
    fake: FakeInAThread, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    fill(fake, 10)
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "profiles.toml"))
    monkeypatch.delenv("TIDEMARK_NODES", raising=False)
    monkeypatch.delenv("TIDEMARK_CLUSTER", raising=False)
    source = DefaultSource({"group": "orders"})
    with pytest.raises(InvalidOption, match="endpoints: is missing"):
        source.reader(source.schema()).partitions()
    source = DefaultSource({"group": "orders", "profile": "prod"})
    with pytest.raises(InvalidOption, match="profile: there is no profile 'prod'"):
        source.reader(source.schema()).partitions()
    monkeypatch.setenv("TIDEMARK_NODES", fake.address)
    source = DefaultSource({"group": "orders"})
    tasks = source.reader(source.schema()).partitions()
    monkeypatch.delenv("TIDEMARK_NODES")
    assert isinstance(tasks[0], LogPartition) and tasks[0].cluster.addresses == (fake.address,)
    assert sum(batch.num_rows for task in tasks for batch in source.reader(source.schema()).read(task)) == 10


def test_a_cluster_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_tidemark.connecting.CONNECT_S", 0.3)
    source = DefaultSource({"group": "orders", "endpoints": "127.0.0.1:1"})
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        source.reader(source.schema()).partitions()
