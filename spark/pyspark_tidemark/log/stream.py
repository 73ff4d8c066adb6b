"""Reader of mode=log in a streaming query: each micro-batch is what lies between two positions of the checkpoint.

PySpark keeps one such reader in a process of the driver while the query runs; tasks have copies that only read.
Stays out: limits and ranges (planning), the form of positions (offsets), reading (log_tasks).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ..connecting import Cluster
from ..options import Options
from .offsets import Position, parsed
from .planning import OffsetsLost, check_group, divided, limited, ranges_between, stream_starts
from .tasks import LogPartition, log, rows_of

if TYPE_CHECKING:
    import pyarrow as pa

    from .facts import LogFacts


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Records of a group as they are appended, each offset once over restarts of the query."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Check the offsets of the options.  Raises InvalidOption."""
        self._options = options
        self._schema = schema
        self._starting = parsed("startingOffsets", options.starting_offsets or "latest", options.group)
        self._facts: LogFacts | None = None
        self._cluster: Cluster | None = None
        self._target: Mapping[int, int] | None = None   # where AvailableNow ends, by shard
        self._latest: Mapping[int, int] = {}            # as it was seen last
        self._group_id = 0                              # at the same time
        self._batch_at: float | None = None             # when a batch last took something, for maxTriggerDelay
        self._warned: set[int] = set()

    # --- positions

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins.  Raises InvalidOption, OffsetsLost, TidemarkError."""
        options = self._options
        group_id = self._asked().group_id()     # first: a group that is replaced meanwhile is refused later (P25)
        extents = self._asked().extents(options.starting_ms)
        starting = self._starting if options.starting_ms is None else None
        starts, lost = stream_starts(options.group, starting, extents, fail=options.fail_on_data_loss)
        for each in lost:
            log.warning("%s: the query reads what is left", each)
        return self._position(group_id, starts)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options; Spark may ask without it all the same."""
        if self._options.offsets_max:
            return ReadMaxRows(self._options.offsets_max)
        return ReadMinRows(self._options.offsets_min) if self._options.offsets_min else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself when there is nothing to read yet.

        Raises OffsetsLost where a shard ends below the position of the query, or is gone, unless failOnDataLoss=false,
        and where the group was made again (P25).
        """
        stood = Position.decoded(start, self._options.group)
        at, facts = stood.shards, self._asked()
        self._group_id = facts.group_id()
        check_group(self._options.group, stood.group_id, self._group_id)
        shards = facts.shards()
        self._latest = ends = facts.ends(shards)
        if self._target is not None:
            ends = {shard: self._target[shard] for shard in shards if shard in self._target}
        self._check(at, self._latest)
        pending = {shard: max(ends.get(shard, 0), offset) for shard, offset in at.items()}
        added = facts.firsts([shard for shard in ends if shard not in at])
        if not added and self._waits(at, pending, limit):
            return start
        until = limited(at, pending, limit.max_rows) if isinstance(limit, ReadMaxRows) else pending
        if until == at and not added:
            return start
        self._batch_at = time.monotonic()
        # A shard that is new begins where its log does: it is in the position from here on (P7).
        begun = {shard: min(first, ends[shard]) for shard, first in added.items()}
        return self._position(self._group_id, {**until, **begun})

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run: what is there now (P7)."""
        facts = self._asked()
        self._target = facts.ends(facts.shards())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the log ended when it was asked last, for the progress of the query."""
        return self._position(self._group_id, self._latest) if self._latest else None

    # --- batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[LogPartition]:
        """Return the tasks between two positions: the same ones whenever the batch is planned again (P6)."""
        first, last = (Position.decoded(each, self._options.group) for each in (start, end))
        cluster = self._of_cluster()
        tasks = divided(ranges_between(first, last), last.partitions_min)
        return [LogPartition(cluster, each, last.group_id) for each in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `rows_of`."""
        return rows_of(partition, self._options, self._schema)

    def stop(self) -> None:
        """End the connection of the driver."""
        facts, self._facts = self._facts, None
        if facts is not None:
            facts.close()

    # --- inside

    def _of_cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster.of(self._options)
        return self._cluster

    def _asked(self) -> LogFacts:
        if self._facts is None:
            from .facts import LogFacts

            self._facts = LogFacts(self._of_cluster(), self._options.group, self._options.committed_of)
        return self._facts

    def _position(self, group_id: int, shards: Mapping[int, int]) -> dict[str, Any]:
        options = self._options
        return Position(options.group, dict(sorted(shards.items())), options.partitions_min, group_id).encoded()

    def _waits(self, at: Mapping[int, int], pending: Mapping[int, int], limit: ReadLimit) -> bool:
        """Say whether too little is there for a batch (P8); a run that is to end never waits."""
        least = self._options.offsets_min
        if not least or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        late = self._batch_at is None or time.monotonic() - self._batch_at >= self._options.trigger_delay_s
        return not late and sum(pending[shard] - at[shard] for shard in at) < least

    def _check(self, at: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """Look for shards that are gone, or that end below the position of the query (P7)."""
        lost = {}
        for shard, offset in at.items():
            where = f"shard {shard} of group {self._options.group!r}"
            if shard not in ends:
                lost[shard] = f"{where} is gone: the query stands at offset {offset}"
            elif ends[shard] < offset:
                lost[shard] = (
                    f"{where} ends at offset {ends[shard]}, below {offset}, where the query stands: "
                    "the log was created again or lost its end")
        if lost and self._options.fail_on_data_loss:
            raise OffsetsLost(f"{'; '.join(lost.values())}. Give the query a new checkpoint, or failOnDataLoss=false, "
                              "with which it waits at its offset.")
        for shard in lost.keys() - self._warned:
            log.warning("%s; the query waits there", lost[shard])
        self._warned = set(lost)
