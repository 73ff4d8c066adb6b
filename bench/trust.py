"""trust: the appends of one client while another one opens hundreds of streams and reads none of them (T12).

The p99 under the attack is compared with the p99 at rest; both are measured in turns, in the same run.
Stays out: memory and elections under the attack (`tests/e2e/test_greedy_clients.py`).
"""

from __future__ import annotations

import statistics

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, spread
from .processes import run_worker, worker

SUMMARY = "appends of one client while another opens 300 streams and reads none"

ATTACKED, OTHER = "attacked", "other"
REST, OPENING, UNREAD = "rest", "while they open", "while they stay unread"
STREAMS = 300
FILL_BYTES, BATCH_RECORDS, RECORD_BYTES = 40 << 20, 256, 1000
OPENING_SECONDS = 4.0      # after the streams are open: what the attacker's gRPC takes in by itself
RATIO_MAX = 5


def _append(cluster: Cluster, group: str, seconds: float) -> dict[str, float]:
    told = run_worker(
        "writers", addresses=cluster.addresses, group=group, clients=1, tasks=1, record_bytes=200, warm_seconds=0.5,
        seconds=seconds)
    return spread(told["times_ms"])


def _leader(cluster: Cluster, group: str) -> tuple[str, list[str]]:
    """Return the address of the leader of the only shard of a group, and the shard's members."""
    status = cluster.shard(f"{group}-0000")
    return cluster.runtime.state.nodes[status["leader"]].address, [member["node"] for member in status["ensemble"]]


def run(context: Context) -> Outcome:
    outcome = Outcome("trust", "Appends of one client while another opens streams and reads none")
    seconds, rounds = context.seconds(full=10, quick=4), 3
    found: dict[str, dict[str, list[dict[str, float]]]] = {
        group: {REST: [], OPENING: [], UNREAD: []} for group in (ATTACKED, OTHER)}
    with clusters.running(context) as cluster:
        for group in found:
            cluster.make_group(group, 1)
        run_worker(
            "filler", addresses=cluster.addresses, group=ATTACKED, batch_records=BATCH_RECORDS,
            record_bytes=RECORD_BYTES, total_bytes=FILL_BYTES, writers=1)
        address, ensemble = _leader(cluster, ATTACKED)
        for _ in range(rounds):
            for group, times in found.items():
                times[REST].append(_append(cluster, group, seconds))
                with worker("greedy", address=address, ensemble=ensemble, group=ATTACKED, streams=STREAMS) as greedy:
                    greedy.read()
                    times[OPENING].append(_append(cluster, group, OPENING_SECONDS))
                    times[UNREAD].append(_append(cluster, group, seconds))
    for group, times in found.items():
        p99 = {when: statistics.median(each["p99"] for each in spreads) for when, spreads in times.items()}
        for when, median in p99.items():
            outcome.add(f"{group} shard, {when}: append, median p99", median, "ms")
            if when != REST:
                outcome.add(
                    f"{group} shard, {when}: p99, against rest", median / p99[REST], "x", target=RATIO_MAX,
                    at_most=True, basis=f"{p99[REST]:.2f} ms at rest; medians of {rounds} rounds, in turns")
    outcome.configuration = {
        "nodes": 3, "streams": STREAMS, "bytes in the log": FILL_BYTES, "seconds each": seconds,
        "seconds while they open": OPENING_SECONDS, "rounds": rounds}
    outcome.samples = {"spreads_ms": found}
    return outcome
