"""read: how fast one client reads a log back from the one node that leads it; the data is in the page cache."""

from __future__ import annotations

from . import append_throughput
from . import cluster as clusters
from .append_throughput import Configuration
from .context import Context
from .figures import Outcome, spread
from .processes import run_worker

SUMMARY = "plain read from one node"

TARGET_MB = 500
HOW = Configuration(1, 100, 48)


def run(context: Context) -> Outcome:
    outcome = Outcome("read", "Plain read of one shard from its leader, batches of 100 records of 1 KiB")
    fill_seconds, passes = context.count(full=15, quick=3), context.count(full=7, quick=3)
    with clusters.running(context) as cluster:
        append_throughput.append(cluster, HOW, fill_seconds)
        group = f"append-{HOW.shards}-{HOW.batch_records}"
        told = run_worker("reader", addresses=cluster.addresses, group=group, mode="leader", passes=passes)["passes"]
    rates = [one["value_bytes"] / 1e6 / one["seconds"] for one in told]
    records = [one["records"] / one["seconds"] for one in told]
    outcome.add("values read", spread(rates)["p50"], "MB/s", target=TARGET_MB, basis=f"median of {passes} passes")
    outcome.add("records read", spread(records)["p50"], "records/s")
    outcome.add("size of one pass", told[0]["value_bytes"] / 1e6, "MB")
    outcome.configuration = {
        "nodes": 3, "shards": 1, "reader processes": 1, "batch records": HOW.batch_records,
        "record bytes": append_throughput.RECORD_BYTES,
    }
    outcome.samples = {"passes": told}
    return outcome
