"""writers: one 1 KiB record per append; 64 tasks of one client, and 64 clients that share nothing.

One client coalesces what its tasks append into few batches.  64 clients cannot: each append is a message of its own,
so the yardstick is the empty grpc.aio echo with as many channels, measured in the same run.
"""

from __future__ import annotations

from typing import Any

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, number, spread
from .limits import echo
from .processes import run_worker

SUMMARY = "64 tasks of one client, and 64 clients, one record per append"

WRITERS = 64
RECORD_BYTES = 1024
SHARDS = 1
ONE_CLIENT_TARGET, ECHO_PERCENT_TARGET = 20_000, 40


def write(cluster: Cluster, clients: int, tasks: int, seconds: float) -> dict[str, Any]:
    """Append to a group of its own, one record per append; return what the worker says."""
    group = f"writers-{clients}"
    cluster.make_group(group, SHARDS)
    return run_worker(
        "writers", addresses=cluster.addresses, group=group, clients=clients, tasks=tasks, record_bytes=RECORD_BYTES,
        warm_seconds=1.0, seconds=seconds,
    )


def run(context: Context) -> Outcome:
    outcome = Outcome("writers", "Many small writers: one 1 KiB record per append, QUORUM, fsync")
    seconds = context.seconds(full=10, quick=3)
    echoes = [echo("unary", WRITERS, seconds / 2)]
    with clusters.running(context) as cluster:
        one = write(cluster, 1, WRITERS, seconds)
        many = write(cluster, WRITERS, 1, seconds)
    echoes.append(echo("unary", WRITERS, seconds / 2))
    echo_rate = sum(len(e["times_ms"]) for e in echoes) / sum(e["seconds"] for e in echoes)
    for told, name in ((one, "one client, 64 tasks"), (many, "64 clients")):
        rate = len(told["times_ms"]) / told["seconds"]
        outcome.add(f"{name}: appends", rate, "appends/s", target=ONE_CLIENT_TARGET if told is one else None)
        if told is many:
            outcome.add(
                "64 clients: part of the empty echo", 100 * rate / echo_rate, "%", target=ECHO_PERCENT_TARGET,
                basis=f"{number(echo_rate)} calls/s with 64 channels, before and after, same run",
            )
        outcome.add(f"{name}: time of one append, p50", spread(told["times_ms"])["p50"], "ms")
        outcome.add(f"{name}: time of one append, p99", spread(told["times_ms"])["p99"], "ms")
        outcome.add(f"{name}: processor of the client process", told["cpu_seconds"] / told["seconds"], "cores")
    outcome.configuration = {
        "nodes": 3, "shards": SHARDS, "client processes": 1, "record bytes": RECORD_BYTES, "seconds each": seconds
    }
    outcome.samples = {
        "one_client_ms": one["times_ms"][:20_000], "many_clients_ms": many["times_ms"][:20_000],
        "echo_ms": [time for e in echoes for time in e["times_ms"]][:20_000],
    }
    return outcome
