"""Tasks of the sink against a cluster: rows once, whatever attempts there are (P15)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark_tidemark.connecting import Cluster
from pyspark_tidemark.options import InvalidOption, Options
from pyspark_tidemark.sink.parts import Batch, Written
from pyspark_tidemark.sink.resuming import BatchPassed, NondeterministicRetry
from pyspark_tidemark.sink.tally import UnreadableNote
from pyspark_tidemark.sink.tasks import BATCH_BYTES, write
from tidemark import ProducerId, errors

from tests.fake_in_a_thread import FakeInAThread

FIRST = Batch("job", 1)


@pytest.fixture
def cluster(fake: FakeInAThread) -> Cluster:
    return Cluster.of(Options.of({"endpoints": ",".join(fake.cluster.addresses()), "group": "orders"}))


def rows(*numbers: int) -> pa.RecordBatch:
    """Return rows whose key and value are a number."""
    texts = pa.array([b"%d" % number for number in numbers], pa.binary())
    return pa.RecordBatch.from_pydict({"key": texts, "value": texts})


def in_log(cluster: Cluster) -> list[int]:
    """Return the numbers in the log, in the order of each shard."""
    with cluster.connect() as client:
        return [int(record.value) for record in client.read("orders")]


def sent(cluster: Cluster, batch: Batch, part: int, *batches: pa.RecordBatch) -> Written:
    return write(cluster, "orders", batch, part, batches)


def ends(written: Written) -> dict[int, int]:
    return {shard: end.last for shard, end in written.ends.items()}


def test_p15_a_task_appends_its_rows_and_says_where_they_end(fake: FakeInAThread, cluster: Cluster) -> None:
    written = sent(cluster, FIRST, 0, rows(*range(20)), rows(), rows(*range(20, 30)))
    assert sorted(in_log(cluster)) == list(range(30))
    assert (written.part, written.rows) == (0, 30)
    assert ends(written) == {shard: fake.shard(shard).entries[-1].last for shard in (0, 1)}


def test_p15_a_task_without_rows_appends_none(cluster: Cluster) -> None:
    assert sent(cluster, FIRST, 0) == Written(FIRST, 0) and in_log(cluster) == []


def test_p15_a_retry_goes_on_behind_an_attempt_that_ended_anywhere(fake: FakeInAThread, cluster: Cluster) -> None:
    def fails_behind(count: int) -> Iterator[pa.RecordBatch]:
        for number in range(count):
            yield rows(number)
        raise RuntimeError("the task ends here")

    for count in (0, 1, 4, 9):
        with pytest.raises(RuntimeError, match="ends here"):
            write(cluster, "orders", FIRST, 0, fails_behind(count))
    sent(cluster, FIRST, 0, rows(*range(12)))
    assert sorted(in_log(cluster)) == list(range(12))
    written = sent(cluster, FIRST, 0, rows(*range(5)), rows(*range(5, 12)))
    assert written.rows == 12
    assert ends(written) == {shard: fake.shard(shard).entries[-2].last for shard in (0, 1)}, "the claim comes after"
    assert sorted(in_log(cluster)) == list(range(12)), "nothing was left to append"


def test_p15_other_rows_than_those_of_the_attempt_before_are_refused(cluster: Cluster) -> None:
    sent(cluster, FIRST, 0, rows(1, 2, 3))
    for other in (rows(3, 2, 1), rows(1, 2)):
        with pytest.raises(NondeterministicRetry, match="NONDETERMINISTIC_RETRY: part 0 of sink 'job'"):
            sent(cluster, FIRST, 0, other)
    assert sorted(in_log(cluster)) == [1, 2, 3]


def test_p15_parts_and_sinks_are_told_apart_and_batches_go_on(cluster: Cluster) -> None:
    for batch, part in ((FIRST, 0), (FIRST, 1), (Batch("other", 1), 0), (Batch("job", 2), 0)):
        sent(cluster, batch, part, rows(7))
    assert in_log(cluster) == [7] * 4
    with pytest.raises(BatchPassed, match="has batch 2 already, and this is batch 1"):
        sent(cluster, FIRST, 0, rows(7))
    assert in_log(cluster) == [7] * 4


def test_p15_of_two_attempts_at_once_the_newer_one_fences_the_older(cluster: Cluster) -> None:
    def overtaken() -> Iterator[pa.RecordBatch]:
        yield rows(1, 2)
        sent(cluster, FIRST, 0, rows(1, 2, 3))
        for number in range(3, 40):
            yield rows(number)

    with pytest.raises(errors.ProducerFenced):
        write(cluster, "orders", FIRST, 0, overtaken())
    assert sorted(in_log(cluster)) == [1, 2, 3]


def test_p15_rows_of_any_size_are_divided_into_appends(fake: FakeInAThread, cluster: Cluster) -> None:
    large = pa.RecordBatch.from_pydict({"value": pa.array([bytes(BATCH_BYTES // 3)] * 7, pa.binary())})
    assert sent(cluster, FIRST, 0, large).rows == 7
    with cluster.connect() as client:
        assert [len(record.value) for record in client.read("orders")] == [BATCH_BYTES // 3] * 7
    assert len(fake.shard(0).sent) == 4


def test_p15_a_part_whose_producer_another_program_used_is_refused(cluster: Cluster) -> None:
    with (
        cluster.connect() as client,
        client.appender("orders", producer=ProducerId("spark:job/0"), batch_records=1) as appender,
    ):
        appender.append(b"5", key=b"5")
    with pytest.raises(UnreadableNote, match="has 0 bytes"):
        sent(cluster, FIRST, 0, rows(5))


def test_a_group_of_documents_takes_no_rows(fake: FakeInAThread, cluster: Cluster) -> None:
    with pytest.raises(InvalidOption, match="group: no log group"):
        write(cluster, "absent", FIRST, 0, [rows(1)])
