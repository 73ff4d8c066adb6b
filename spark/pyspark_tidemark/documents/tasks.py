"""Tasks of mode=documents: each reads a shard as the query's pin shows it, and so does its retry.

Any member serves a pin.
Stays out: making the pin (reader), the columns of a record batch (rows).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from ..connecting import PATIENCE_S, Cluster
from ..filters import Interval
from ..options import Options
from ..pin_lease import Pinned, renewed
from ..schema import VALUE

if TYPE_CHECKING:
    import pyarrow as pa


class PinEnded(RuntimeError):
    """The state that a query shows is kept no longer; nothing but that state may be shown."""


class DocumentsPartition(InputPartition):
    """The shard that one task reads, the keys there, and the pin that shows them."""

    def __init__(self, cluster: Cluster, pinned: Pinned, shard: int, keys: Interval) -> None:
        super().__init__(shard)
        self.cluster = cluster
        self.pinned = pinned
        self.shard = shard
        self.keys = keys


def rows_of(partition: InputPartition | None, options: Options, schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task.  Raises PinEnded, UnreadableRows, TidemarkError."""
    if not isinstance(partition, DocumentsPartition):
        return
    from tidemark.errors import NotPinned

    from ..gathering import gathered
    from .rows import Rows

    group, shard, pinned = options.group, partition.shard, partition.pinned
    rows = Rows(group, shard, schema)
    with partition.cluster.connect() as client, client.documents(group, timeout_s=PATIENCE_S) as documents:
        pin = documents.pin_at(pinned.name, {shard: pinned.seqnos[shard]})
        scan = pin.scan(
            shards=[shard], first=partition.keys.first, until=partition.keys.until,
            keys_only=VALUE not in schema.names)
        try:
            with renewed(client, group, pinned, shard, options.pin_lease_s):
                for batches in gathered(scan.record_batches(), lambda batch: batch.nbytes):
                    yield rows.of(batches)
        except NotPinned as error:
            raise PinEnded(
                f"the state of group {group!r} that this query shows is kept no longer ({error.message}): its lease, "
                f"pinLease={options.pin_lease_s:g}s, is over, or it kept more than the group's maxPinnedBytes. "
                "Load the DataFrame again, with a longer pinLease where its tasks wait for long.") from error
        finally:
            scan.close()    # also when Spark has enough rows and drops this generator (P12)
