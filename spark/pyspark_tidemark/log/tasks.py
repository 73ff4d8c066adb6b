"""Tasks of mode=log: each reads a range of offsets of one shard as Arrow record batches, and so does its retry.

Stays out: which ranges there are (planning, the readers), the columns of a record batch (rows).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ..connecting import PATIENCE_S, Cluster
from ..options import Options
from .planning import LOSS_ADVICE, OffsetsLost, Range, check_group

if TYPE_CHECKING:
    import pyarrow as pa
    from tidemark import Gap, ReadBatch
    from tidemark.sync import SyncReader

log = logging.getLogger("pyspark_tidemark")


class LogPartition(InputPartition):
    """The offsets that one task reads, of which group and from which cluster."""

    def __init__(self, cluster: Cluster, offsets: Range, group_id: int) -> None:
        super().__init__(offsets)
        self.cluster = cluster
        self.offsets = offsets
        self.group_id = group_id


def rows_of(partition: InputPartition | None, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; Spark hands over None where a query has no task (an empty group).

    Raises OffsetsLost, UnreadableRows, TidemarkError.
    """
    if not isinstance(partition, LogPartition):
        return
    from ..gathering import gathered
    from .rows import Rows

    offsets = partition.offsets
    rows = Rows(options.group, schema)
    with partition.cluster.connect() as client:
        check_group(options.group, partition.group_id, client.group(options.group).group_id)
        reader = client.read(
            options.group, shards=[offsets.shard], from_=offsets.first, until=offsets.until - 1,
            gaps=not options.fail_on_data_loss, mode="leader" if options.from_leader else "scd",
            location=options.location or None, timeout_s=PATIENCE_S)
        try:
            for batches in gathered(_batches(reader, offsets, options.group), rows.bytes_of):
                yield rows.of(batches)
        finally:
            reader.close()      # also when Spark has enough rows and drops this generator (P12)


def _batches(reader: SyncReader[Gap], offsets: Range, group: str) -> Iterator[ReadBatch]:
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
                    f"offsets {item.first} to {item.last} of shard {item.shard} of group {group!r} cannot be read: "
                    f"{item.kind.name}.")
    except (DataLoss, Trimmed) as error:
        raise OffsetsLost(f"{error.message}. {LOSS_ADVICE}") from error
    if gone:
        log.warning(
            "shard %d of group %r: %d of the offsets %d to %d are gone: the query reads what is left",
            offsets.shard, group, gone, offsets.first, offsets.until - 1)
