"""trust: the appends of one client while another one opens hundreds of streams and reads none of them (T12).

The p99 under the attack is compared with the p99 at rest, before and after it, in the same run.
Stays out: memory and elections under the attack (`tests/e2e/test_greedy_clients.py`).
"""

from __future__ import annotations

import time

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, spread
from .processes import run_worker, worker

SUMMARY = "appends of one client while another opens 300 streams and reads none"

ATTACKED, OTHER = "attacked", "other"
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
    seconds = context.seconds(full=10, quick=4)
    found: dict[str, dict[str, dict[str, float]]] = {}
    with clusters.running(context) as cluster:
        for group in (ATTACKED, OTHER):
            cluster.make_group(group, 1)
        run_worker(
            "filler", addresses=cluster.addresses, group=ATTACKED, batch_records=BATCH_RECORDS,
            record_bytes=RECORD_BYTES, total_bytes=FILL_BYTES, writers=1)
        for group in (ATTACKED, OTHER):
            found[group] = {"rest": _append(cluster, group, seconds)}
            address, ensemble = _leader(cluster, ATTACKED)
            with worker("greedy", address=address, ensemble=ensemble, group=ATTACKED, streams=STREAMS) as greedy:
                greedy.read()
                found[group]["while they open"] = _append(cluster, group, OPENING_SECONDS)
                found[group]["while they stay unread"] = _append(cluster, group, seconds)
            time.sleep(1)
            again = _append(cluster, group, seconds)
            rest = max(found[group]["rest"]["p99"], again["p99"])
            for when, times in found[group].items():
                outcome.add(f"{group} shard, {when}: append, p99", times["p99"], "ms")
                if when != "rest":
                    outcome.add(
                        f"{group} shard, {when}: p99, against rest", times["p99"] / rest, "x", target=RATIO_MAX,
                        at_most=True, basis=f"{rest:.2f} ms at rest, the larger of before and after")
    outcome.configuration = {
        "nodes": 3, "streams": STREAMS, "bytes in the log": FILL_BYTES, "seconds each": seconds,
        "seconds while they open": OPENING_SECONDS}
    outcome.samples = {"spreads_ms": found}
    return outcome
