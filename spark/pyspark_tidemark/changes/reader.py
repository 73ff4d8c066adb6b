"""Reader of mode=changes in a batch query: the changes from a place up to a cut, which is pinned when it is planned.

Stays out: positions (position), asking and pinning (facts), reading (tasks).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..connecting import Cluster
from ..filters import SHARD, Wanted, WithFilters
from ..options import EARLIEST, LATEST, InvalidOption, Options
from .position import Position, stretches
from .tasks import ChangesPartition, rows_of, tasks_between

if TYPE_CHECKING:
    import pyarrow as pa


class ChangesReader(DataSourceReader):
    """The changes of a group up to now, or up to what leaders have applied where barriers are off."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check where the query begins.  Raises InvalidOption."""
        if options.starting_offsets.strip().lower() == LATEST:
            raise InvalidOption("startingOffsets", "cannot be latest in a batch query")
        self._options = options
        self._schema = schema
        self.wanted = Wanted({"shard": SHARD})

    def partitions(self) -> list[ChangesPartition]:
        """Return a task for each shard that changed.  Raises InvalidOption, TidemarkError."""
        from .facts import ChangeFacts

        options = self._options
        cluster = Cluster.of(options)
        from_ = options.starting_offsets or EARLIEST if options.starting_ms is None else options.starting_ms
        with ChangeFacts(cluster, options) as facts:
            start, pinned_at = facts.start(from_), time.time()
            end = facts.pinned() if options.barrier else Position(options.group, facts.applied(list(start.shards)))
            end = start.reached(end)
            read = {each.shard for each in stretches(start, end) if each.shard in self.wanted["shard"]}
            if end.pin and (rest := sorted(set(end.shards) - read)):
                facts.release([end.pin], rest)      # no task will
        return tasks_between(cluster, start.of(read), end.of(read), pinned_at)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `rows_of`."""
        return rows_of(partition, self._options, self._schema, releases=True)


class FilteredChangesReader(WithFilters, ChangesReader):
    """The reader where Spark pushes filters down: on the shard."""
