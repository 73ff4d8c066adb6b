"""Reader of mode=keyspace: a batch query reads the Strings of a keyspace, a token range or some of them in each task.

Stays out: reading a range (tasks).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..connecting import Cluster
from ..filters import SHARD, Wanted, WithFilters
from ..options import InvalidOption, Options
from ..schema import RANGE
from .tasks import KeyspacePartition, rows_of

if TYPE_CHECKING:
    import pyarrow as pa


class KeyspaceReader(DataSourceReader):
    """The Strings of a keyspace; each page shows what was written before it is read."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self.wanted = Wanted({RANGE: SHARD})

    def partitions(self) -> list[KeyspacePartition]:
        """Return the tasks, in the order of ranges.  Raises InvalidOption, TidemarkError."""
        from tidemark.errors import InvalidArgument, UnknownKeyspace

        options, wanted = self._options, self.wanted[RANGE]
        cluster = Cluster.of(options)
        with cluster.connect() as client:
            try:
                keyspace = client.keyspace(options.keyspace)
                shape = keyspace.describe()
                keyspace.scan(ranges=(), r=options.r).all()     # reads nothing, and checks `r`
            except UnknownKeyspace as error:
                raise InvalidOption("keyspace", error.message) from None
            except InvalidArgument as error:
                name = error.field if error.field == "r" else "keyspace"
                raise InvalidOption(name, error.message.removeprefix(f"{error.field}: ")) from None
        ranges = [index for index in range(shape.ranges) if index in wanted]
        return [
            KeyspacePartition(cluster, shape.keyspace_id, together)
            for together in grouped(ranges, options.partitions_max)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `rows_of`."""
        return rows_of(partition, self._options, self._schema)


class FilteredKeyspaceReader(WithFilters, KeyspaceReader):
    """The reader where Spark pushes filters down: on the range."""


def grouped(ranges: Sequence[int], tasks_max: int) -> list[Sequence[int]]:
    """Divide ranges, in their order, into parts of about the same number, at most so many; 0: each range alone."""
    count = min(tasks_max or len(ranges), len(ranges))
    return [ranges[len(ranges) * part // count:len(ranges) * (part + 1) // count] for part in range(count)]
