"""spark-write: how fast Spark writes rows to a log, against Spark's Kafka sink and a sink that drops them, in turns.

The ceiling is a Python data source that takes the same record batches and drops them: the cost of Spark and of the way
into a Python worker.  Spark's own Kafka sink writes the same rows to three brokers in the same session.  It runs inside
Spark's JVM.  Both wait for all replicas in sync, with the defaults of their products; Tidemark's are on disks, and each
row is there once however often a task is tried, which Spark's Kafka sink does not promise.
"""

from __future__ import annotations

import os
import sys

from . import cluster as clusters
from . import kafka_jars
from .context import Context
from .figures import Outcome, number, percentile
from .processes import run_worker
from .spark_read import kafka_beside

SUMMARY = "Spark writes rows to a log, against Spark's Kafka sink and a sink that drops them"

SHARDS, RECORD_BYTES = 4, 200
ROWS_PER_SECOND, KAFKA_RATIO = 150_000, 1.0


def tell(outcome: Outcome, seconds: dict[str, list[float]], rows: int) -> None:
    """Add the figures of every write; Kafka's are there where it took part."""
    rounds = len(seconds["tidemark"])
    median = {name: percentile(each, 50) for name, each in seconds.items()}
    rate = rows / median["tidemark"]
    outcome.add("rows written", rate, "rows/s", target=ROWS_PER_SECOND, basis=f"median of {rounds} writes without keys")
    outcome.add("rows written, with keys", rows / median["keyed"], "rows/s", basis=f"median of {rounds} writes")
    outcome.add(
        "part of the ceiling", 100 * median["dropped"] / median["tidemark"], "%",
        basis=f"{number(rows / median['dropped'])} rows/s of a Python sink that drops them, in turns")
    if "kafka" in seconds:
        ratios = [theirs / ours for ours, theirs in zip(seconds["tidemark"], seconds["kafka"], strict=True)]
        outcome.add(
            "Spark's Kafka sink", rows / median["kafka"], "rows/s",
            basis=f"the same rows, median of {rounds} writes, in turns")
        outcome.add(
            "ratio to Spark's Kafka sink", percentile(ratios, 50), "x", target=KAFKA_RATIO,
            basis=f"median of {rounds} rounds: {', '.join(map(number, ratios))}")


def run(context: Context) -> Outcome:
    outcome = Outcome("spark-write", "Spark writes rows of 200-byte values to a log, local[2]")
    rows = context.count(full=1_000_000, quick=100_000)
    rounds = context.count(full=5, quick=2)
    jars = kafka_jars.prepare(context.say)
    with clusters.running(context) as cluster, kafka_beside(context, jars, SHARDS) as kafka:
        cluster.make_group("bench", SHARDS)
        told = run_worker(
            "spark_write_round", {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            endpoints=",".join(cluster.addresses), group="bench", rows=rows, value_bytes=RECORD_BYTES, rounds=rounds,
            **kafka)
    tell(outcome, told["seconds"], rows)
    outcome.configuration = {
        "nodes": 3, "shards": SHARDS, "rows": rows, "record bytes": RECORD_BYTES, "rounds": rounds,
        "spark": told["spark"], "master": "local[2]", "tasks": 2, "processors": os.cpu_count(),
    }
    if isinstance(jars, str):
        outcome.notes.append(f"Spark's Kafka sink is not measured: {jars}")
    else:
        outcome.configuration["Kafka"] = (
            f"{kafka_jars.version('kafka')}, 3 brokers of 1 GiB, {SHARDS} partitions of 3 copies, connector "
            f"{kafka_jars.version('connector')} with its defaults (acks=all)")
        outcome.notes.append(
            "Spark's Kafka sink runs inside Spark's JVM; rows for Tidemark cross into a Python worker. Both wait for "
            "all replicas in sync; Tidemark's are on disks and each row is there once, Kafka's are in the replicas' "
            "memory and a task that is tried again writes its rows again.")
    outcome.samples = told["seconds"]
    return outcome
