"""Reader of mode=documents: a batch query shows one cut of a group, which a pin keeps while its tasks read.

Spark tells a source neither when a query ends nor when a DataFrame is used again, so the pin ends by its lease (P23).
Stays out: reading a shard at the pin, renewing the lease (tasks).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..connecting import Cluster, group_of
from ..filters import KEY, Wanted, WithFilters
from ..options import Options
from ..pin_lease import Pinned, pin_now
from .tasks import DocumentsPartition, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


class DocumentsReader(DataSourceReader):
    """The documents of a group as they are when the query is planned; what is written meanwhile is not read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self.wanted = Wanted({"key": KEY})

    def partitions(self) -> list[DocumentsPartition]:
        """Pin the documents and return a task for each shard with keys that are wanted.

        Raises InvalidOption, TidemarkError.
        """
        options, keys = self._options, self.wanted["key"]
        cluster = Cluster.of(options)
        pinned_at = time.time()
        with cluster.connect() as client:
            group_of(client, options.group, options.mode)
            if keys.empty:
                return []
            with client.documents(options.group) as documents:
                shards = None if keys.among is None else sorted({documents.shard_of(key) for key in keys.among})
                pin = pin_now(client, options.group, documents, options.pin_lease_s, shards)
        pinned = Pinned(pin.name, {shard: cut.seqno for shard, cut in pin.cuts.items()}, pinned_at)
        return [DocumentsPartition(cluster, pinned, shard, keys) for shard in sorted(pin.cuts)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `rows_of`."""
        return rows_of(partition, self._options, self._schema)


class FilteredDocumentsReader(WithFilters, DocumentsReader):
    """The reader where Spark pushes filters down: on the key."""
