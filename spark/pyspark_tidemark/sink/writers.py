"""Writers: Spark constructs them on the driver and hands them to the tasks of a batch, or of each batch of a stream.

Stays out: how a task appends (tasks).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from ..connecting import Cluster
from ..options import Options
from .marking import mark
from .parts import Batch, Written
from .tasks import write

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_tidemark")

QUERY, NUMBER = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a task of a stream: the query, whose id its checkpoint keeps, and the number of the batch."""

ONCE_LEASE_S = 3600.0
"""The lease of a write without a writeId: it cannot be repeated, so its end is of use to readers alone."""


class LogWriter(DataSourceArrowWriter):
    """Writes one DataFrame.  Its id is made on the driver, so that all attempts of all tasks write under it."""

    def __init__(self, options: Options) -> None:
        self._cluster, self._group = Cluster.of(options), options.group
        named = bool(options.write_id)
        self._batch = Batch(options.write_id, 0) if named else Batch(uuid.uuid4().hex, 0, ONCE_LEASE_S)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of a task.  Raises as `tasks.write`."""
        return write(self._cluster, self._group, self._batch, _context().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Mark the write as complete.  Raises as `marking.mark`."""
        written = _written(messages)
        mark(self._cluster, self._group, written)
        log.info("group %r: %d rows in %d parts were written as %s", self._group, sum(each.rows for each in written),
                 len(written), self._batch.sink)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Leave what was appended: the same writeId goes on behind it."""
        log.warning(
            "group %r: the write %s ended early; start it again with the option writeId=%s to go on behind what it "
            "has appended", self._group, self._batch.sink, self._batch.sink)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a query, under the id that its checkpoint keeps."""

    def __init__(self, options: Options) -> None:
        self._cluster, self._group = Cluster.of(options), options.group

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of a task.  Raises as `tasks.write`."""
        context = _context()
        query, number = context.getLocalProperty(QUERY), context.getLocalProperty(NUMBER)
        assert query is not None and number is not None, "Spark sets both for each task of a stream"
        return write(self._cluster, self._group, Batch(query, int(number)), context.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Mark the batch as complete; then Spark notes it in its checkpoint.  Raises as `marking.mark`."""
        mark(self._cluster, self._group, _written(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what was appended: the batch goes on behind it when the query is started again."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks alone"
    return context


def _written(messages: list[WriterCommitMessage | None]) -> list[Written]:
    return [each for each in messages if isinstance(each, Written)]
