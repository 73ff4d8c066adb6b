"""Reader of mode=log in a batch query: ranges are planned on the driver, tasks read them as Arrow record batches.

Stays out: the division into ranges (planning), the columns of a record batch (log_rows).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .connecting import Cluster
from .offsets import EARLIEST, LATEST, fixed
from .options import Options
from .planning import LOSS_ADVICE, OffsetsLost, Range, batch_ranges, divided

if TYPE_CHECKING:
    import pyarrow as pa
    from tidemark import Gap, ReadBatch
    from tidemark.sync import SyncReader

log = logging.getLogger("pyspark_tidemark")

PATIENCE_S = 120.0
"""Seconds without any progress after which a task fails: longer than an election."""


class LogPartition(InputPartition):
    """The offsets that one task reads, and from which cluster."""

    def __init__(self, cluster: Cluster, offsets: Range) -> None:
        super().__init__(offsets)
        self.cluster = cluster
        self.offsets = offsets


class LogReader(DataSourceReader):
    """Records of a group, from planned start to planned end; what is appended meanwhile is not read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the offsets of the options.  Raises InvalidOption."""
        self._options = options
        self._schema = schema
        group = options.group
        self._starting = fixed("startingOffsets", options.starting_offsets, group, LATEST)
        self._ending = fixed("endingOffsets", options.ending_offsets, group, EARLIEST)

    def partitions(self) -> list[LogPartition]:
        """Return the tasks; the ends are fixed here.  Raises InvalidOption, OffsetsLost, TidemarkError."""
        from .log_facts import extents

        options = self._options
        cluster = Cluster.of(options)
        found = extents(cluster, options.group, options.starting_ms)
        starting = self._starting if options.starting_ms is None else None
        ranges, lost = batch_ranges(
            options.group, starting, self._ending, found, fail=options.fail_on_data_loss)
        for each in lost:
            log.warning("%s: the query reads what is left", each)
        return [LogPartition(cluster, each) for each in divided(ranges, options.partitions_min)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task; Spark calls it with None where there is none (an empty group)."""
        if not isinstance(partition, LogPartition):
            return
        from .log_rows import Rows, gathered

        options, offsets = self._options, partition.offsets
        rows = Rows(options.group, self._schema)
        with partition.cluster.connect_waiting() as client:
            reader = client.read(
                options.group, shards=[offsets.shard], from_=offsets.first, until=offsets.until - 1,
                gaps=not options.fail_on_data_loss, mode="leader" if options.from_leader else "scd",
                location=options.location or None, timeout_s=PATIENCE_S)
            try:
                for batches in gathered(self._batches(reader, offsets)):
                    yield rows.of(batches)
            finally:
                reader.close()      # also when Spark has enough rows and drops this generator (P12)

    def _batches(self, reader: SyncReader[Gap], offsets: Range) -> Iterator[ReadBatch]:
        """Yield the batches of a range; offsets that are lost are an error or a warning (P9, P10)."""
        from tidemark import Gap, GapKind
        from tidemark.errors import DataLoss, Trimmed

        gone = 0
        try:
            for item in reader.batches():
                if not isinstance(item, Gap):
                    yield item
                elif item.kind in (GapKind.TRIM, GapKind.DATALOSS):
                    gone += item.offsets
                elif item.kind is not GapKind.HOLE:
                    raise OffsetsLost(
                        f"offsets {item.first} to {item.last} of shard {item.shard} of group "
                        f"{self._options.group!r} cannot be read: {item.kind.name}.")
        except (DataLoss, Trimmed) as error:
            raise OffsetsLost(f"{error.message}. {LOSS_ADVICE}") from error
        if gone:
            log.warning(
                "shard %d of group %r: %d of the offsets %d to %d are gone: the query reads what is left",
                offsets.shard, self._options.group, gone, offsets.first, offsets.until - 1)
