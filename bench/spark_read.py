"""spark: how fast Spark batch queries read a log and documents, against Arrow batches in memory, in turns.

The ceiling is a Python data source that yields prebuilt record batches of the same rows: the cost of Spark and of the
way out of a Python worker.  A query of few rows is held against an empty Python source: what a query costs at all.
"""

from __future__ import annotations

import os
import sys

from . import cluster as clusters
from .context import Context
from .figures import Outcome, percentile
from .processes import run_worker

SUMMARY = "Spark batch queries of a log and of documents, against prebuilt Arrow batches"

SHARDS, RECORD_BYTES, BATCH_RECORDS, WRITERS = 4, 200, 500, 8
CEILING_PART, ROWS_PER_SECOND, SMALL_RATIO = 60.0, 1.5e6, 1.5
SMALL_ROWS = 1000
DOCUMENTS_PART = 10     # of the records: so many documents are read in about the same time


def run(context: Context) -> Outcome:
    outcome = Outcome("spark", "Spark reads a log and documents of 200-byte values in batch queries, local[2]")
    rows = context.count(full=4_000_000, quick=400_000)
    documents = rows // DOCUMENTS_PART
    rounds = context.count(full=7, quick=2)
    with clusters.running(context) as cluster:
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
            shards=SHARDS, rounds=rounds, documents="documents", count=documents)
    seconds = {name: percentile(each, 50) for name, each in told["seconds"].items()}
    rate, ceiling = rows / seconds["tidemark"], rows / seconds["ceiling"]
    outcome.add("rows read", rate, "rows/s", target=ROWS_PER_SECOND, basis=f"median of {rounds} queries")
    outcome.add(
        "part of the ceiling", 100 * rate / ceiling, "%", target=CEILING_PART,
        basis=f"{ceiling / 1e6:.2f} million rows/s of prebuilt Arrow batches, in turns")
    outcome.add(
        "a query of 1,000 rows", 1000 * seconds["small"], "ms", target=1000 * SMALL_RATIO * seconds["empty"],
        at_most=True, basis=f"{1000 * seconds['empty']:.0f} ms of an empty Python source, in turns")
    scanned, ceiling = documents / seconds["documents"], documents / seconds["documents ceiling"]
    outcome.add("documents read", scanned, "rows/s", basis=f"median of {rounds} queries, each with a pin of its own")
    outcome.add(
        "part of the ceiling, documents", 100 * scanned / ceiling, "%", target=CEILING_PART,
        basis=f"{ceiling / 1e6:.2f} million rows/s of prebuilt Arrow batches, in turns")
    outcome.add(
        "changes from the beginning", documents / seconds["changes"], "rows/s",
        basis=f"the same documents, median of {rounds} queries")
    outcome.configuration = {
        "nodes": 3, "shards": SHARDS, "documents": documents, "records": rows, "record bytes": RECORD_BYTES,
        "records in a batch": BATCH_RECORDS, "rounds": rounds, "spark": told["spark"], "master": "local[2]",
        "processors": os.cpu_count(),
    }
    outcome.samples = told["seconds"]
    return outcome
