"""Complete batches: no row comes after a mark, no part is left out, and readers stop at the last one (P16)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_tidemark import DefaultSource
from pyspark_tidemark.connecting import Cluster
from pyspark_tidemark.log.reader import LogReader
from pyspark_tidemark.log.stream import LogStreamReader
from pyspark_tidemark.options import InvalidOption, Options
from pyspark_tidemark.sink.marking import mark
from pyspark_tidemark.sink.parts import Batch, Written
from pyspark_tidemark.sink.resuming import BatchPassed, NondeterministicRetry
from pyspark_tidemark.sink.tasks import write
from tidemark import SinkView

from tests.fake_in_a_thread import FakeInAThread

FIRST, SECOND = Batch("job", 1), Batch("job", 2)


@pytest.fixture
def cluster(fake: FakeInAThread) -> Cluster:
    return Cluster.of(Options.of({"endpoints": ",".join(fake.cluster.addresses()), "group": "orders"}))


def rows(*numbers: int) -> pa.RecordBatch:
    texts = pa.array([b"%d" % number for number in numbers], pa.binary())
    return pa.RecordBatch.from_pydict({"key": texts, "value": texts})


def sent(cluster: Cluster, batch: Batch, *parts: list[int]) -> list[Written]:
    return [write(cluster, "orders", batch, part, [rows(*numbers)]) for part, numbers in enumerate(parts)]


def in_log(cluster: Cluster) -> list[int]:
    with cluster.connect() as client:
        return sorted(int(record.value) for record in client.read("orders"))


def sink(cluster: Cluster, name: str = "job") -> SinkView:
    with cluster.connect() as client:
        found = client.sinks("orders").get(name)
    assert found is not None
    return found


def test_p16_a_mark_says_where_a_batch_ends_whatever_attempts_there_were(cluster: Cluster) -> None:
    written = sent(cluster, FIRST, list(range(20)), [], list(range(20, 30)))
    assert sink(cluster).joined == 2, "a part without rows joins no batch"
    mark(cluster, "orders", written)
    first = sink(cluster)
    assert (first.marked, first.parts, sum(end.rows for end in first.ends)) == (1, 3, 30)
    assert {end.shard: end.last for end in first.ends} == {
        shard: max(each.ends[shard].last for each in written if shard in each.ends) for shard in (0, 1)}
    mark(cluster, "orders", sent(cluster, FIRST, list(range(20)), [], list(range(20, 30))))
    assert sink(cluster).ends == first.ends, "the driver had died before it noted its mark"
    assert in_log(cluster) == list(range(30))


def test_p16_a_retry_with_fewer_parts_than_have_rows_is_refused(cluster: Cluster) -> None:
    sent(cluster, FIRST, [1, 2], [3], [4, 5])
    with pytest.raises(NondeterministicRetry, match="was written before with other parts: part 2 has joined"):
        mark(cluster, "orders", sent(cluster, FIRST, [1, 2], [3]))
    mark(cluster, "orders", sent(cluster, FIRST, [1, 2], [3], [4, 5]))
    assert in_log(cluster) == [1, 2, 3, 4, 5]


def test_p16_no_row_comes_after_the_mark(cluster: Cluster) -> None:
    """An attempt that goes on when its batch is marked, with rows that no other attempt had."""
    mark(cluster, "orders", sent(cluster, FIRST, [1, 2]))
    for part, more in ((0, [1, 2, 3]), (1, [9])):
        with pytest.raises(NondeterministicRetry, match="NONDETERMINISTIC_RETRY: part"):
            write(cluster, "orders", FIRST, part, [rows(*more)])
    assert in_log(cluster) == [1, 2]
    mark(cluster, "orders", sent(cluster, SECOND, [4]))
    with pytest.raises(BatchPassed, match="the sink has come to batch 2"):
        write(cluster, "orders", FIRST, 5, [rows(7)])
    with pytest.raises(BatchPassed, match="the sink has come to batch 2"):
        mark(cluster, "orders", [Written(FIRST, 0)])
    mark(cluster, "orders", [])
    assert in_log(cluster) == [1, 2, 4]


@pytest.fixture
def source(fake: FakeInAThread) -> dict[str, str]:
    return {"endpoints": ",".join(fake.cluster.addresses()), "group": "orders", "startingOffsets": "earliest"}


def read(options: dict[str, str]) -> list[int]:
    source = DefaultSource(options)
    reader = source.reader(source.schema())
    assert isinstance(reader, LogReader)
    return sorted(
        int(row["value"]) for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist())


def test_p16_readers_stop_at_the_last_complete_batch(cluster: Cluster, source: dict[str, str]) -> None:
    committed = {**source, "committedBatches": "true"}
    assert read(committed) == []
    written = sent(cluster, FIRST, list(range(10)), list(range(10, 20)))
    assert read(committed) == [] and len(read(source)) == 20
    made = DefaultSource(committed)
    stream = made.streamReader(made.schema())
    assert isinstance(stream, LogStreamReader)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    mark(cluster, "orders", written)
    sent(cluster, SECOND, list(range(20, 25)))
    end = stream.latestOffset(start, ReadAllAvailable())
    tasks = stream.partitions(start, end)
    assert sorted(
        int(row["value"]) for task in tasks for batch in stream.read(task) for row in batch.to_pylist()
    ) == read(committed) == list(range(20))
    stream.stop()


def test_p16_a_sink_is_named_where_several_write_at_once(cluster: Cluster, source: dict[str, str]) -> None:
    mark(cluster, "orders", sent(cluster, FIRST, list(range(20))))
    mark(cluster, "orders", sent(cluster, Batch("other job", 4), list(range(20, 40))))
    sent(cluster, SECOND, list(range(40, 60)))
    assert read({**source, "committedBatches": "job"}) == list(range(20))
    for every in ("other job", "TRUE"):
        assert read({**source, "committedBatches": every}) == list(range(40))
    assert read({**source, "committedBatches": "none of them"}) == []
    for wrong in ("", "a\n b"):
        with pytest.raises(InvalidOption, match="committedBatches"):
            read({**source, "committedBatches": wrong})
