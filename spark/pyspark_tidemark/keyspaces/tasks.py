"""Tasks of mode=keyspace: each scans the same token ranges, and so does its retry.

Stays out: which ranges those are (reader), the columns of a record batch (rows).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ..connecting import PATIENCE_S, Cluster
from ..options import Options

if TYPE_CHECKING:
    import pyarrow as pa


class KeyspacePartition(InputPartition):
    """The ranges that one task reads, of which keyspace and from which cluster."""

    def __init__(self, cluster: Cluster, keyspace_id: int, ranges: Sequence[int]) -> None:
        super().__init__(ranges)
        self.cluster = cluster
        self.keyspace_id = keyspace_id
        self.ranges = ranges


def rows_of(partition: InputPartition | None, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; Spark hands over None where filters leave a query no range.

    Raises UnreadableRows, TidemarkError.
    """
    if not isinstance(partition, KeyspacePartition):
        return
    from ..gathering import gathered
    from .rows import Rows, bytes_of

    rows = Rows(options.keyspace, schema)
    with partition.cluster.connect() as client:
        keyspace = client.keyspace(options.keyspace, timeout_s=PATIENCE_S)
        for index in partition.ranges:
            scan = keyspace.scan(ranges=(index,), keyspace_id=partition.keyspace_id, r=options.r)
            for pages in gathered(scan.pages(), bytes_of):
                if (batch := rows.of(index, pages)).num_rows:
                    yield batch
