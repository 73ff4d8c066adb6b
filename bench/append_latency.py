"""latency: one client, one append at a time, nothing else running; and where the time goes.

The floor is one fdatasync and two gRPC round trips on open streams (client to leader, leader to follower), each
measured bare in the same run.  What lies above the floor is told part by part from the nodes' own counters.
"""

from __future__ import annotations

from typing import Any

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, number, spread
from .limits import echo, fdatasync_ms
from .processes import run_worker

SUMMARY = "one append at a time, explained by its parts"

RECORD_BYTES = 1024
P50_TARGET_MS = 3.0
COUNTERS = {
    "turns": "tidemark_driver_turns_total", "turn_seconds": "tidemark_driver_turn_seconds_total",
    "syncs": "tidemark_store_sync_seconds_count", "sync_seconds": "tidemark_store_sync_seconds_sum",
    "appends": 'tidemark_appends_total{outcome="APPENDED"}',
}


def _counters(cluster: Cluster) -> dict[str, dict[str, float]]:
    views = {node: cluster.metrics(node) for node in cluster.nodes()}
    return {node: {name: view.get(key, 0.0) for name, key in COUNTERS.items()} for node, view in views.items()}


def _append(cluster: Cluster, seconds: float) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Return what the worker says, and what each node counted meanwhile."""
    cluster.make_group("latency", 1)
    before = _counters(cluster)
    said = run_worker(
        "writers", addresses=cluster.addresses, group="latency", clients=1, tasks=1, record_bytes=RECORD_BYTES,
        warm_seconds=1.0, seconds=seconds,
    )
    after = _counters(cluster)
    return said, {
        node: {name: counted - before[node][name] for name, counted in view.items()} for node, view in after.items()
    }


def _parts(
    append_ms: float, sync_ms: float, trip_ms: float, counted: dict[str, dict[str, float]]
) -> list[tuple[str, float]]:
    """Return the parts of an append in milliseconds, all of them means, because means add up."""
    leader = max(counted, key=lambda node: counted[node]["appends"])
    followers = [node for node in counted if node != leader]
    appends = counted[leader]["appends"]

    def per_append(node: str, name: str) -> float:
        return counted[node][name] / appends

    group_commit_ms = min(1000 * counted[node]["sync_seconds"] / counted[node]["syncs"] for node in followers)
    turns_ms = 1000 * (per_append(leader, "turn_seconds") + min(per_append(n, "turn_seconds") for n in followers))
    parts = [
        ("one bare fdatasync", sync_ms),
        ("two bare gRPC round trips on open streams", 2 * trip_ms),
        ("the faster follower's group commit above a bare fdatasync: thread, WAL, three nodes on one disk",
         group_commit_ms - sync_ms),
        ("turns of leader and follower: core, RocksDB write, encoding", turns_ms),
    ]
    rest_ms = append_ms - sum(part for _, part in parts)
    return [
        *parts,
        ("rest: client, Python around each stream, four processes waking up on the cores", rest_ms),
        ("one append, mean", append_ms),
    ]


def run(context: Context) -> Outcome:
    outcome = Outcome("latency", "One append at a time: 1 KiB, QUORUM, fsync")
    seconds = context.seconds(full=20, quick=4)
    syncs_ms = fdatasync_ms(context.directory, seconds / 4)
    trips_ms = echo("stream", 1, seconds / 4, RECORD_BYTES)["times_ms"]
    with clusters.running(context) as cluster:
        said, counted = _append(cluster, seconds)
    syncs_ms += fdatasync_ms(context.directory, seconds / 4)
    trips_ms += echo("stream", 1, seconds / 4, RECORD_BYTES)["times_ms"]
    unary_ms = echo("unary", 1, seconds / 4)["times_ms"]
    found = spread(said["times_ms"])
    sync_ms, trip_ms = spread(syncs_ms)["p50"], spread(trips_ms)["p50"]
    floor_ms = sync_ms + 2 * trip_ms
    outcome.add("append, p50", found["p50"], "ms", target=P50_TARGET_MS, at_most=True)
    outcome.add("append, p99", found["p99"], "ms")
    outcome.add(
        "floor: one fdatasync and two gRPC round trips", floor_ms, "ms",
        basis=f"{number(sync_ms)} + 2 x {number(trip_ms)} ms, p50, same run",
    )
    outcome.add("append, p50, against the floor", found["p50"] / floor_ms, "x")
    outcome.add("an empty unary gRPC call, for comparison, p50", spread(unary_ms)["p50"], "ms")
    parts = _parts(found["mean"], spread(syncs_ms)["mean"], spread(trips_ms)["mean"], counted)
    outcome.blocks.append("\n".join(f"{part:7.3f} ms  {what}" for what, part in parts))
    outcome.configuration = {"nodes": 3, "shards": 1, "clients": 1, "record bytes": RECORD_BYTES, "seconds": seconds}
    outcome.samples = {
        "append_ms": said["times_ms"], "fdatasync_ms": syncs_ms, "echo_stream_ms": trips_ms, "echo_unary_ms": unary_ms,
        "counted": counted,
    }
    return outcome
