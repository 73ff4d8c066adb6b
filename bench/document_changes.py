"""changes: how fast a consumer catches up with the documents of one shard, and how soon it hears of a put.

Documents have 400 bytes and keys of their own.  A consumer that begins reads the store of one member by seqno; the data
is in the page cache.  The same group is read when it is small and when it is ten times as large.
"""

from __future__ import annotations

import statistics
from typing import Any

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, number, percentile, spread
from .processes import run_worker

SUMMARY = "change streams: catching up, and the time from a put to its change"

GROUP = "changes"
VALUE_BYTES, BATCH_RECORDS, TASKS = 400, 500, 16
GROWTH = 10
RATE_TARGET, PUT_MS_MAX, LINEAR_RATIO_MAX = 150_000, 5.0, 1.2


def _fill(cluster: Cluster, prefix: str, count: int) -> None:
    run_worker(
        "putter", addresses=cluster.addresses, group=GROUP, batch_records=BATCH_RECORDS, value_bytes=VALUE_BYTES,
        tasks=TASKS, phases=[{"prefix": prefix, "count": count}],
    )


def _read(cluster: Cluster, count: int, passes: int, puts: int = 0) -> dict[str, Any]:
    return run_worker(
        "change_reader", addresses=cluster.addresses, group=GROUP, count=count, passes=passes,
        value_bytes=VALUE_BYTES, puts=puts,
    )


def _rate(one: dict[str, Any]) -> float:
    return float(one["changes"] / one["seconds"])


def tell(outcome: Outcome, small: dict[str, Any], large: dict[str, Any]) -> None:
    """Add the figures of both sizes; the small one also says how long puts took to become changes."""
    rates = [_rate(one) for one in large["passes"]]
    bytes_ = [one["value_bytes"] / 1e6 / one["seconds"] for one in large["passes"]]
    outcome.add(
        "changes read from the beginning", percentile(rates, 50), "changes/s", target=RATE_TARGET,
        basis=f"median of {len(rates)} passes: {', '.join(map(number, rates))}",
    )
    outcome.add("changes read from the beginning, values", percentile(bytes_, 50), "MB/s")
    spent = [1e6 * one["cpu_seconds"] / one["changes"] for one in large["passes"]]
    outcome.add("processor of the consumer, for each change", percentile(spent, 50), "us")
    each = [statistics.median(one["seconds"] / one["changes"] for one in told["passes"]) for told in (small, large)]
    counts = [told["passes"][0]["changes"] for told in (small, large)]
    outcome.add(
        f"time of one change among {counts[1]:,}", each[1] / each[0], "x", target=LINEAR_RATIO_MAX, at_most=True,
        basis=f"time of one change among {counts[0]:,}",
    )
    outcome.add("a put, p50", spread([answered for answered, _ in small["times_ms"]])["p50"], "ms", basis="idle")
    times = spread([changed for _, changed in small["times_ms"]])
    outcome.add("from a put to its change, p50", times["p50"], "ms", target=PUT_MS_MAX, at_most=True, basis="idle")
    outcome.add("from a put to its change, p99", times["p99"], "ms", basis="idle")


def run(context: Context) -> Outcome:
    outcome = Outcome("changes", f"Changes of documents of {VALUE_BYTES} bytes, 3 nodes, 1 shard, one consumer")
    count, passes = context.count(full=100_000, quick=20_000), context.count(full=5, quick=2)
    puts = context.count(full=500, quick=100)
    with clusters.running(context) as cluster:
        cluster.make_group(GROUP, 1, kind="Documents")
        context.say(f"reading {count:,} changes, then putting {puts} documents one after the other")
        _fill(cluster, "small", count)
        small = _read(cluster, count, passes, puts)
        context.say(f"reading {GROWTH * count:,} changes")
        _fill(cluster, "large", (GROWTH - 1) * count)
        large = _read(cluster, GROWTH * count, passes)
    tell(outcome, small, large)
    outcome.configuration = {
        "nodes": 3, "shards": 1, "value bytes": VALUE_BYTES, "keys": "each put has its own", "consumers": 1,
        "level": "committed", "puts with QUORUM, one at a time": puts, "passes of each size": passes,
    }
    outcome.samples = {"small": small, "large": large}
    return outcome
