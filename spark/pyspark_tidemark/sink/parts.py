"""Parts: which part of which batch a task has written, and where its rows end in each shard.

Stays out: writing (tasks), what follows for the batch (marking).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql.datasource import WriterCommitMessage


class Batch(NamedTuple):
    """One run of a query writes this: batches of one sink have growing numbers."""

    sink: str
    number: int
    lease_s: float = 30 * 86_400.0      # for so long the cluster knows it


class PartEnd(NamedTuple):
    """Where the rows of a part end in a shard, how many they are, and their checksum."""

    last: int
    rows: int
    checksum: int


@dataclass
class Written(WriterCommitMessage):
    """The rows of a part that are in the log, by shard.  Spark hands it to the driver."""

    batch: Batch
    part: int
    rows: int = 0
    ends: dict[int, PartEnd] = field(default_factory=dict)
