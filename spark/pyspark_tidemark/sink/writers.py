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
from .tasks import Batch, Written, write

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_tidemark")

QUERY, NUMBER = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of a task of a stream: the query, whose id its checkpoint keeps, and the number of the batch."""


class LogWriter(DataSourceArrowWriter):
    """Writes one DataFrame.  Its id is made on the driver, so that all attempts of all tasks write under it."""

    def __init__(self, options: Options) -> None:
        self._cluster, self._group = Cluster.of(options), options.group
        self._batch = Batch(options.write_id or uuid.uuid4().hex, 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Append the rows of a task.  Raises as `tasks.write`."""
        return write(self._cluster, self._group, self._batch, _context().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Say what was written."""
        _say(self._group, self._batch, messages)

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
        """Do nothing: the parts are in the log, and Spark notes in its checkpoint that the batch is done."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Leave what was appended: the batch goes on behind it when the query is started again."""


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks alone"
    return context


def _say(group: str, batch: Batch, messages: list[WriterCommitMessage | None]) -> None:
    written = [each for each in messages if isinstance(each, Written)]
    log.info("group %r: %d rows in %d parts were written as %s", group, sum(each.rows for each in written),
             len(written), batch.sink)
