"""spark: how fast Spark batch queries read a log and documents, against Arrow batches in memory and Kafka, in turns.

The ceiling is a Python data source that yields prebuilt record batches of the same rows: the cost of Spark and of the
way out of a Python worker.  A query of few rows is held against an empty Python source: what a query costs at all.
Spark's own Kafka source reads the same records from three brokers in the same session.  It runs inside Spark's JVM.
Both give records that the replicas have acknowledged, and check a checksum of each batch; Tidemark's are on disks too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from . import cluster as clusters
from . import kafka_cluster, kafka_jars
from .context import Context
from .figures import Outcome, number, percentile
from .processes import run_worker

SUMMARY = "Spark batch queries of a log and of documents, against prebuilt Arrow batches and Spark's Kafka source"

SHARDS, RECORD_BYTES, BATCH_RECORDS, WRITERS = 4, 200, 500, 8
CEILING_PART, ROWS_PER_SECOND, SMALL_RATIO, KAFKA_RATIO = 60.0, 1.5e6, 1.5, 2.0
SMALL_ROWS = 1000
DOCUMENTS_PART = 10     # of the records: so many documents are read in about the same time


@contextmanager
def kafka_beside(context: Context, jars: kafka_jars.Jars | str, partitions: int) -> Iterator[dict[str, str]]:
    """Run Kafka where its jars are there; give what the worker needs to know of it."""
    if isinstance(jars, str):
        yield {}
        return
    with context.scratch("kafka") as directory, kafka_cluster.running(jars, directory, partitions) as brokers:
        yield {"kafka": brokers, "jars": ",".join(map(str, sorted(jars.connector.glob("*.jar"))))}


def tell(outcome: Outcome, seconds: dict[str, list[float]], rows: int, documents: int) -> None:
    """Add the figures of every query; Kafka's are there where it took part."""
    rounds = len(seconds["tidemark"])
    median = {name: percentile(each, 50) for name, each in seconds.items()}
    rate, ceiling = rows / median["tidemark"], rows / median["ceiling"]
    outcome.add("rows read", rate, "rows/s", target=ROWS_PER_SECOND, basis=f"median of {rounds} queries")
    outcome.add(
        "part of the ceiling", 100 * rate / ceiling, "%", target=CEILING_PART,
        basis=f"{ceiling / 1e6:.2f} million rows/s of prebuilt Arrow batches, in turns")
    if "kafka" in seconds:
        ratios = [theirs / ours for ours, theirs in zip(seconds["tidemark"], seconds["kafka"], strict=True)]
        outcome.add(
            "Spark's Kafka source", rows / median["kafka"], "rows/s",
            basis=f"the same records, median of {rounds} queries, in turns")
        outcome.add(
            "ratio to Spark's Kafka source", percentile(ratios, 50), "x", target=KAFKA_RATIO,
            basis=f"median of {rounds} rounds: {', '.join(map(number, ratios))}")
    outcome.add(
        "a query of 1,000 rows", 1000 * median["small"], "ms", target=1000 * SMALL_RATIO * median["empty"],
        at_most=True, basis=f"{1000 * median['empty']:.0f} ms of an empty Python source, in turns")
    scanned, ceiling = documents / median["documents"], documents / median["documents ceiling"]
    outcome.add("documents read", scanned, "rows/s", basis=f"median of {rounds} queries, each with a pin of its own")
    outcome.add(
        "part of the ceiling, documents", 100 * scanned / ceiling, "%", target=CEILING_PART,
        basis=f"{ceiling / 1e6:.2f} million rows/s of prebuilt Arrow batches, in turns")
    outcome.add(
        "changes from the beginning", documents / median["changes"], "rows/s",
        basis=f"the same documents, median of {rounds} queries")


def run(context: Context) -> Outcome:
    outcome = Outcome("spark", "Spark reads a log and documents of 200-byte values in batch queries, local[2]")
    rows = context.count(full=4_000_000, quick=400_000)
    documents = rows // DOCUMENTS_PART
    rounds = context.count(full=7, quick=2)
    jars = kafka_jars.prepare(context.say)
    with clusters.running(context) as cluster, kafka_beside(context, jars, SHARDS) as kafka:
        for name, count, shards in (("bench", rows, SHARDS), ("small", SMALL_ROWS, 1)):
            cluster.make_group(name, shards)
            writers = WRITERS if count > SMALL_ROWS else 1
            run_worker(
                "filler", addresses=cluster.addresses, group=name, batch_records=min(BATCH_RECORDS, count),
                record_bytes=RECORD_BYTES, total_bytes=count * RECORD_BYTES, writers=writers)
        cluster.make_group("documents", SHARDS, kind="Documents")
        told = run_worker(
            "spark_round", {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            endpoints=",".join(cluster.addresses), group="bench", small="small", rows=rows, value_bytes=RECORD_BYTES,
            shards=SHARDS, rounds=rounds, documents="documents", count=documents, **kafka)
    tell(outcome, told["seconds"], rows, documents)
    outcome.configuration = {
        "nodes": 3, "shards": SHARDS, "documents": documents, "records": rows, "record bytes": RECORD_BYTES,
        "records in a batch": BATCH_RECORDS, "rounds": rounds, "spark": told["spark"], "master": "local[2]",
        "processors": os.cpu_count(),
    }
    if isinstance(jars, str):
        outcome.notes.append(f"Spark's Kafka source is not measured: {jars}")
    else:
        outcome.configuration["Kafka"] = (
            f"{kafka_jars.version('kafka')}, 3 brokers of 1 GiB, {SHARDS} partitions of 3 copies, filled from the log "
            f"by Spark's sink in batches as large as the log's, connector {kafka_jars.version('connector')}")
        outcome.notes.append(
            "Spark's Kafka source runs inside Spark's JVM; rows of Tidemark cross from a Python worker. Both give "
            "acknowledged records and check each batch; Tidemark's are on disks, Kafka's in the replicas' memory.")
    outcome.samples = told["seconds"]
    return outcome
