"""Progress: how far streaming queries are behind their shards, told to Prometheus and to the log (P18).

    spark.streams.addListener(TidemarkProgressListener())
    prometheus_client.start_http_server(8000)

Stays out: asking the cluster; Spark's progress holds what the query saw last.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

log = logging.getLogger("pyspark_tidemark")

STORED = {"group", "shards", "version"}
"""Fields that positions of every mode have; sources of others have none of them together."""


@dataclass(slots=True)
class Told:
    """The last facts of a running query."""

    name: str
    seen_s: float                                                       # seconds since 1970
    lags: dict[str, dict[int, int]] = field(default_factory=dict)       # offsets, by group and shard
    rows: dict[str, int] = field(default_factory=dict)                  # since the query was started, by group


class TidemarkProgressListener(StreamingQueryListener, Collector):
    """Listens to the queries of a session; those that read no Tidemark are passed over."""

    def __init__(self, registry: CollectorRegistry | None = REGISTRY) -> None:
        """Tell metrics to a registry of prometheus_client; None leaves the log alone."""
        self._told: dict[str, Told] = {}    # by the id of the run; Spark's thread writes it, Prometheus's reads it
        if registry is not None:
            registry.register(self)

    # --- from Spark

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: what the query reads is known from its first batch on."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        lags = lags_of(progress)
        if not lags:
            return
        run = str(progress.runId)
        told = self._told.setdefault(run, Told(progress.name or str(progress.id), 0.0))
        told.seen_s, told.lags = time.time(), lags
        told.rows = {group: told.rows.get(group, 0) + rows for group, rows in rows_of(progress).items()}
        for group, by_shard in lags.items():
            log.info(
                "query %s, batch %d: group %r is read up to %d offsets before its end (%s)",
                told.name, progress.batchId, group, sum(by_shard.values()),
                ", ".join(f"shard {shard}: {lag}" for shard, lag in by_shard.items()))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if told := self._told.get(str(event.runId)):
            told.seen_s = time.time()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query: the lag of one that has ended would only mislead."""
        self._told.pop(str(event.runId), None)

    # --- for Prometheus

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the queries that run."""
        lag = GaugeMetricFamily(
            "tidemark_spark_lag_offsets",
            "Offsets (seqnos with mode=changes) of a shard behind the last micro-batch of a query.",
            labels=["query", "group", "shard"])
        rows = CounterMetricFamily(
            "tidemark_spark_rows", "Rows that a query has read since it was started.", labels=["query", "group"])
        seen = GaugeMetricFamily(
            "tidemark_spark_seen_timestamp_seconds",
            "When a query last ended a micro-batch or said that it has nothing to do.", labels=["query"])
        for told in list(self._told.values()):
            seen.add_metric([told.name], told.seen_s)
            for group, read in told.rows.items():
                rows.add_metric([told.name, group], read)
            for group, by_shard in told.lags.items():
                for shard, offsets in by_shard.items():
                    lag.add_metric([told.name, group, str(shard)], offsets)
        yield from (lag, rows, seen)


def lags_of(progress: StreamingQueryProgress) -> dict[str, dict[int, int]]:
    """Return how many offsets lie behind the batch, by group and shard; sources of others are left out.

    Of two sources that read one group the one further behind counts.
    """
    found: dict[str, dict[int, int]] = {}
    for source in progress.sources:
        end, latest = _position(source.endOffset), _position(source.latestOffset)
        if end is None or latest is None:
            continue
        lags = found.setdefault(end["group"], {})
        until = _offsets(end)
        for shard, offset in sorted(_offsets(latest).items()):
            lags[shard] = max(lags.get(shard, 0), offset - until.get(shard, 0))
    return found


def rows_of(progress: StreamingQueryProgress) -> dict[str, int]:
    """Return how many rows the batch had, by group."""
    found: dict[str, int] = {}
    for source in progress.sources:
        if end := _position(source.endOffset):
            found[end["group"]] = found.get(end["group"], 0) + source.numInputRows
    return found


def _position(told: Any) -> Mapping[str, Any] | None:
    """Return a position of this source, or None for another's and for what Spark shows in place of none."""
    try:
        stored = json.loads(told) if isinstance(told, str) else told
    except json.JSONDecodeError:
        return None
    return stored if isinstance(stored, dict) and stored.keys() >= STORED else None


def _offsets(position: Mapping[str, Any]) -> dict[int, int]:
    """Return the offset of each shard: a number in positions of a log, a field of its place in those of changes."""
    return {
        int(shard): place["seqno"] if isinstance(place, dict) else place
        for shard, place in position["shards"].items()}
