"""read: how fast one client reads a log back, from its leader and from all its members; the data is in the page cache.

`delivery` reads larger logs in more modes.  Here the two ways take turns on one log with a bare gRPC stream, the limit
of every reader, so that three figures of one minute and one machine stand beside each other.
"""

from __future__ import annotations

from typing import Any

from . import append_throughput
from . import cluster as clusters
from .append_throughput import Configuration
from .context import Context
from .delivery import LEADER, SCD, Passes
from .figures import Outcome, percentile, spread
from .limits import grpc_mb_per_second

SUMMARY = "plain read from one node, and from all members"

TARGET_MB = 500
HOW = Configuration(1, 100, 48)


def tell(outcome: Outcome, passes: Passes, bare: list[float]) -> None:
    """Add what passes by mode found; `bare` is what a gRPC stream did in each round, MB/s."""
    told: list[dict[str, Any]] = passes.told[LEADER]
    records = [one["records"] / one["seconds"] for one in told]
    outcome.add("values read", passes.rate(LEADER), "MB/s", target=TARGET_MB, basis=f"median of {len(told)} passes")
    outcome.add("records read", spread(records)["p50"], "records/s")
    outcome.add("size of one pass", told[0]["value_bytes"] / 1e6, "MB")
    outcome.add(
        "values read, part of a bare gRPC stream", 100 * passes.rate(LEADER) / percentile(bare, 50), "%",
        basis=f"{percentile(bare, 50):.0f} MB/s, in turns",
    )
    outcome.add("from all members by single copy delivery", passes.rate(SCD), "MB/s", basis="in turns")
    for mode, what in ((LEADER, "from the leader"), (SCD, "by single copy delivery")):
        outcome.add(f"processor of the reader, {what}", passes.processor(mode, "cpu_seconds"), "s/GiB")
        outcome.add(f"processor of all nodes, {what}", passes.processor(mode, "node_cpu_seconds"), "s/GiB")


def run(context: Context) -> Outcome:
    outcome = Outcome("read", "Plain read of one shard, batches of 100 records of 1 KiB")
    fill_seconds, rounds = context.count(full=8, quick=3), context.count(full=3, quick=1)
    passes_each = context.count(full=3, quick=2)
    bare: list[float] = []
    with clusters.running(context) as cluster:
        append_throughput.append(cluster, HOW, fill_seconds)
        passes = Passes(cluster, f"append-{HOW.shards}-{HOW.batch_records}")
        for _ in range(rounds):
            bare.append(grpc_mb_per_second(context.seconds(full=3, quick=1)))
            for mode in (LEADER, SCD):
                passes.run(mode, passes_each)
    tell(outcome, passes, bare)
    outcome.configuration = {
        "nodes": 3, "shards": 1, "reader processes": 1, "batch records": HOW.batch_records,
        "record bytes": append_throughput.RECORD_BYTES, "rounds": rounds, "passes of a round": passes_each,
    }
    outcome.samples = passes.told | {"grpc_mb_per_second": bare}
    return outcome
