"""Reader of mode=log in a batch query: ranges are planned on the driver, and their ends are fixed there.

Stays out: the division into ranges (planning), reading them (log_tasks).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..connecting import Cluster
from ..filters import OFFSET, SHARD, Wanted, WithFilters
from ..options import Options
from .offsets import EARLIEST, LATEST, fixed
from .planning import batch_ranges, divided, within
from .tasks import LogPartition, log, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


class LogReader(DataSourceReader):
    """Records of a group, from planned start to planned end; what is appended meanwhile is not read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the offsets of the options.  Raises InvalidOption."""
        self._options = options
        self._schema = schema
        group = options.group
        self._starting = fixed("startingOffsets", options.starting_offsets or "earliest", group, LATEST)
        self._ending = fixed("endingOffsets", options.ending_offsets, group, EARLIEST)
        self.wanted = Wanted({"shard": SHARD, "offset": OFFSET})

    def partitions(self) -> list[LogPartition]:
        """Return the tasks; the ends are fixed here.  Raises InvalidOption, OffsetsLost, TidemarkError."""
        from .facts import LogFacts

        options = self._options
        cluster = Cluster.of(options)
        with LogFacts(cluster, options.group, options.committed_of) as facts:
            group_id = facts.group_id()
            found = facts.extents(options.starting_ms)
        starting = self._starting if options.starting_ms is None else None
        ranges, lost = batch_ranges(
            options.group, starting, self._ending, found, fail=options.fail_on_data_loss)
        for each in lost:
            log.warning("%s: the query reads what is left", each)
        left = within(ranges, self.wanted["shard"], self.wanted["offset"])
        return [LogPartition(cluster, each, group_id) for each in divided(left, options.partitions_min)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `rows_of`."""
        return rows_of(partition, self._options, self._schema)


class FilteredLogReader(WithFilters, LogReader):
    """The reader where Spark pushes filters down: on shard and offset."""
