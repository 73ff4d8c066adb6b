"""Reader of mode=changes in a streaming query: each micro-batch leads from one cut of the documents to the next.

PySpark keeps one such reader in a process of the driver while the query runs; tasks have copies that only read.
Stays out: positions (position), asking and pinning (facts), reading (tasks).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import takewhile
from time import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ..connecting import Cluster
from ..options import LATEST, Options
from ..pin_lease import PARTS
from .position import Position
from .tasks import ChangesPartition, rows_of, tasks_between

if TYPE_CHECKING:
    import pyarrow as pa

    from .facts import ChangeFacts

log = logging.getLogger("pyspark_tidemark")


class ChangesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Changes of documents from cut to cut."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._facts: ChangeFacts | None = None
        self._cluster: Cluster | None = None
        self._target: Position | None = None    # where AvailableNow ends
        self._latest: Position | None = None    # where the shards stood when they were asked last
        self._pinned_at: dict[str, float] = {}  # pins, oldest first: seconds since 1970 when made or renewed
        self._waits = False                     # a warning said so

    def initialOffset(self) -> dict[str, Any]:
        """Return where a new query begins.  Raises InvalidOption, TidemarkError."""
        options = self._options
        from_ = options.starting_offsets or LATEST if options.starting_ms is None else options.starting_ms
        return self._asked().start(from_).encoded()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return where the next batch ends; `start` itself when nothing changed, or not all shards answer in time."""
        at = Position.decoded(start, self._options.group)
        if self._target is not None:
            end: Position | None = at.reached(self._target)
        else:
            end = self._next(at) if self._options.barrier else self._applied(at)
        if end is not None:
            self._latest = end
        return end.encoded() if end is not None and at.moved(end) else start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return where the shards stood when they were asked last, for the progress of the query (P18)."""
        return self._latest.encoded() if self._latest is not None else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the run: what is there now (P7).  Raises TidemarkError."""
        facts = self._asked()
        if self._options.barrier:
            self._target = self._keep(facts.pinned())
        else:
            self._target = Position(self._options.group, facts.applied(facts.shards()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[ChangesPartition]:
        """Return the tasks between two positions (P6).  Raises ShardGone."""
        first, last = (Position.decoded(each, self._options.group) for each in (start, end))
        return tasks_between(self._of_cluster(), first, last, self._pinned_at.get(last.pin, 0.0))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `rows_of`."""
        return rows_of(partition, self._options, self._schema, releases=False)

    def commit(self, end: dict[str, Any]) -> None:
        """Release the pins that no batch behind `end` looks at."""
        pin = Position.decoded(end, self._options.group).pin
        if pin in self._pinned_at:
            self._release(list(takewhile(lambda name: name != pin, self._pinned_at)))

    def stop(self) -> None:
        """End the connection of the driver.  Its last pins end by their lease: a batch may be read again."""
        facts, self._facts = self._facts, None
        if facts is not None:
            facts.close()

    # --- inside

    def _next(self, at: Position) -> Position | None:
        """Return a new cut of all shards, None where nothing changed or a shard does not answer in time (P19)."""
        from tidemark.errors import Unavailable

        from .facts import changed

        facts = self._asked()
        try:
            places = facts.places()
            self._latest = at.reached(Position(self._options.group, places))
            if not changed(at, places):
                self._renew(at)
                return None
            end = at.reached(self._keep(facts.pinned()))
            if not at.moved(end):
                self._release([end.pin])
        except Unavailable as error:    # another refusal would stay, and the query would wait for ever
            if not self._waits:
                log.warning(
                    "group %r: no cut of all shards within barrierTimeout=%gs, the query waits at its last one: %s",
                    self._options.group, self._options.barrier_timeout_s, error)
            self._waits = True
            return None
        self._waits = False
        return end

    def _applied(self, at: Position) -> Position:
        facts = self._asked()
        return at.reached(Position(self._options.group, facts.applied(facts.shards())))

    def _renew(self, at: Position) -> None:
        """Keep the pin at which an idle query stands: the next batch looks at it."""
        from tidemark.errors import TidemarkError

        due = self._pinned_at.get(at.pin, 0.0) + self._options.pin_lease_s / PARTS
        if not at.pin or time() < due:
            return
        if at.pin in self._pinned_at:
            self._pinned_at[at.pin] = time()
        else:       # that of the run before: it is the oldest
            self._pinned_at = {at.pin: time(), **self._pinned_at}
        try:
            self._asked().renew(at)
        except TidemarkError as error:
            log.info("the lease of pin %s was not renewed: %s", at.pin, error)

    def _release(self, names: Sequence[str]) -> None:
        self._asked().release(names)
        for name in names:
            del self._pinned_at[name]

    def _keep(self, position: Position) -> Position:
        self._pinned_at[position.pin] = time()
        return position

    def _of_cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster.of(self._options)
        return self._cluster

    def _asked(self) -> ChangeFacts:
        if self._facts is None:
            from .facts import ChangeFacts

            self._facts = ChangeFacts(self._of_cluster(), self._options)
        return self._facts
