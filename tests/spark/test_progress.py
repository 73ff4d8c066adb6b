"""The listener to Spark's progress, without a session."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from pyspark_tidemark.progress import TidemarkProgressListener, lags_of

QUERY, RUN = "6f1c6a5e-0000-4000-8000-000000000001", "6f1c6a5e-0000-4000-8000-000000000002"
LAG = "tidemark_spark_lag_offsets"


def log_at(**shards: int) -> dict[str, Any]:
    offsets = {name.removeprefix("s"): at for name, at in shards.items()}
    return {"group": "orders", "minPartitions": 0, "shards": offsets, "version": 1}


def changes_at(seqno: int) -> dict[str, Any]:
    place = {"digest": "1:00", "epoch": 3, "lineage": "ab" * 16, "pinned": seqno, "seqno": seqno}
    return {"group": "things", "mode": "changes", "pin": "p", "shards": {"0": place}, "version": 1}


def source(end: Any, latest: Any, rows: int = 10) -> dict[str, Any]:
    """A source as Spark tells of it: offsets are text."""
    start, end, latest = (each if isinstance(each, str) else json.dumps(each) for each in ("null", end, latest))
    return {
        "description": "a source", "startOffset": start, "endOffset": end, "latestOffset": latest,
        "numInputRows": rows, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0, "metrics": {}}


def progress(*sources: dict[str, Any], name: str | None = "churn") -> StreamingQueryProgress:
    return StreamingQueryProgress.fromJson({
        "id": QUERY, "runId": RUN, "name": name, "timestamp": "2026-11-29T00:00:00.000Z", "batchId": 7,
        "batchDuration": 12, "durationMs": {}, "eventTime": {}, "stateOperators": [], "sources": list(sources),
        "sink": {"description": "a sink", "numOutputRows": 1, "metrics": {}}, "observedMetrics": {},
        "numInputRows": 1, "inputRowsPerSecond": 1.0, "processedRowsPerSecond": 1.0})


@pytest.mark.parametrize(("sources", "lags"), [
    ([source(log_at(s0=5, s1=9), log_at(s0=12, s1=9))], {"orders": {0: 7, 1: 0}}),
    ([source(log_at(s0=5), log_at(s0=5, s1=4))], {"orders": {0: 0, 1: 4}}),         # a shard that the run does not read
    ([source(log_at(s0=5), log_at(s0=3))], {"orders": {0: 0}}),                     # created again
    ([source(log_at(s2=5, s10=5), log_at(s2=6, s10=8))], {"orders": {2: 1, 10: 3}}),
    ([source(changes_at(40), changes_at(42))], {"things": {0: 2}}),
    ([source(log_at(s0=5), log_at(s0=6)), source(log_at(s0=1), log_at(s0=6)), source(changes_at(1), changes_at(1))],
     {"orders": {0: 5}, "things": {0: 0}}),
    ([source({"topic": {"0": 7}}, {"topic": {"0": 9}}), source("7", "9"), source("None", "null"), source("a", "-")],
     {}),
    ([source(log_at(s0=5), "null")], {}),
])
def test_p18_lags_are_what_lies_behind_the_batch_by_shard(
    sources: list[dict[str, Any]], lags: dict[str, dict[int, int]]
) -> None:
    assert lags_of(progress(*sources)) == lags


def test_a_query_is_told_while_it_runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    listener = TidemarkProgressListener(registry)
    monkeypatch.setattr("time.time", lambda: 1000.0)
    told = QueryProgressEvent(progress(source(log_at(s0=5, s1=9), log_at(s0=12, s1=9), rows=30)))
    with caplog.at_level(logging.INFO, "pyspark_tidemark"):
        listener.onQueryProgress(told)
        listener.onQueryProgress(told)
    assert [record.message for record in caplog.records] == 2 * [
        "query churn, batch 7: group 'orders' is read up to 7 offsets before its end (shard 0: 7, shard 1: 0)"]
    labels = {"query": "churn", "group": "orders"}
    assert registry.get_sample_value(LAG, {**labels, "shard": "0"}) == 7
    assert registry.get_sample_value("tidemark_spark_rows_total", labels) == 60
    monkeypatch.setattr("time.time", lambda: 1010.0)
    seen = "tidemark_spark_seen_timestamp_seconds"
    assert registry.get_sample_value(seen, {"query": "churn"}) == 1000
    listener.onQueryIdle(QueryIdleEvent.fromJson({"id": QUERY, "runId": RUN, "timestamp": "2026-11-29T00:00:00.000Z"}))
    assert registry.get_sample_value(seen, {"query": "churn"}) == 1010
    listener.onQueryTerminated(QueryTerminatedEvent.fromJson(
        {"id": QUERY, "runId": RUN, "exception": None, "errorClassOnException": None}))
    assert registry.get_sample_value(LAG, {**labels, "shard": "0"}) is None
    assert registry.get_sample_value(seen, {"query": "churn"}) is None


def test_queries_of_other_sources_are_passed_over() -> None:
    registry = CollectorRegistry()
    listener = TidemarkProgressListener(registry)
    listener.onQueryProgress(QueryProgressEvent(progress(source({"topic": {"0": 7}}, {"topic": {"0": 9}}))))
    listener.onQueryIdle(QueryIdleEvent.fromJson({"id": QUERY, "runId": RUN, "timestamp": "2026-11-29T00:00:00.000Z"}))
    assert [sample for family in registry.collect() for sample in family.samples] == []


def test_a_query_without_a_name_is_called_by_its_id() -> None:
    registry = CollectorRegistry()
    listener = TidemarkProgressListener(registry)
    listener.onQueryProgress(QueryProgressEvent(progress(source(log_at(s0=5), log_at(s0=6)), name=None)))
    assert registry.get_sample_value(LAG, {"query": QUERY, "group": "orders", "shard": "0"}) == 1
