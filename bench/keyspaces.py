"""keyspaces: batched sets against Valkey, and single gets against an empty call to the same node; three owners.

Each round measures Valkey under two promises and Tidemark, one after the other.  Sets are Strings of 1 KiB with new
keys, `set_many` from one client process, W = 2; a get asks R = 2 owners.  Everything else is a keyspace's default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import cluster as clusters
from . import valkey_cluster
from .append_throughput import syncs_of
from .context import Context
from .figures import Outcome, number, percentile, spread
from .peers import NODES
from .processes import run_worker

SUMMARY = "batched sets against Valkey, and single gets against an empty call"

BATCH_KEYS, VALUE_BYTES, TASKS = 1_000, 1024, 2
VALKEY_KEYS, VALKEY_CONNECTIONS = 100, 16
WARM_SECONDS = 1.0
KEYSPACE, PREFIX = "strings", "sets"
R = 2
SETS_TARGET, GET_RATIO_MAX = 40_000, 3.0
SYNCS = {"everysec": "synced every second", "always": "synced before the answer"}


class Found:
    """The rounds so far."""

    def __init__(self) -> None:
        self.sets: list[dict[str, Any]] = []
        self.gets: list[dict[str, list[float]]] = []
        self.valkey: dict[str, list[dict[str, Any]]] = {sync: [] for sync in SYNCS}


def _tidemark(context: Context, seconds: float, found: Found) -> None:
    """Measure sets, and gets of what they left, on a cluster of its own."""
    with clusters.running(context, NODES) as cluster:
        cluster.make_keyspace(KEYSPACE)
        used = cluster.processor_seconds()
        told = run_worker(
            "keyspace_setter", addresses=cluster.addresses, keyspace=KEYSPACE, prefix=PREFIX, batch_keys=BATCH_KEYS,
            value_bytes=VALUE_BYTES, tasks=TASKS, seconds=seconds, warm_seconds=WARM_SECONDS)
        told["node_cpu_seconds"] = cluster.processor_seconds() - used
        told["syncs"] = {node: syncs_of(cluster.metrics(node)) for node in cluster.nodes()}
        found.sets.append(told)
        found.gets.append(run_worker(
            "keyspace_getter", addresses=cluster.addresses, keyspace=KEYSPACE, prefix=PREFIX, count=told["keys"],
            seconds=context.seconds(full=4, quick=2), r=R))


def _valkey(context: Context, server: Path, seconds: float, found: Found) -> None:
    for sync in SYNCS:
        with context.scratch("valkey") as directory, valkey_cluster.running(server, directory, sync) as port:
            found.valkey[sync].append(run_worker(
                "valkey_setter", port=port, prefix=PREFIX, batch_keys=VALKEY_KEYS, value_bytes=VALUE_BYTES,
                connections=VALKEY_CONNECTIONS, seconds=seconds, warm_seconds=WARM_SECONDS, replicas=NODES - 1))


def tell(outcome: Outcome, found: Found) -> None:
    """Add every figure; a round is compared with the peers of that round."""
    rates = [one["per_second"] for one in found.sets]
    outcome.add(
        "sets, W = 2", percentile(rates, 50), "keys/s", target=SETS_TARGET,
        basis=f"median of {len(rates)} rounds: {', '.join(map(number, rates))}")
    outcome.add(
        "sets, part of the target", percentile(rates, 50) / SETS_TARGET, "x", target=1.0,
        basis=f"the target is {number(SETS_TARGET)} keys/s")
    times = spread([took for one in found.sets for took in one["times_ms"]])
    outcome.add(f"time of one set_many of {BATCH_KEYS} keys, p50", times["p50"], "ms")
    outcome.add(f"time of one set_many of {BATCH_KEYS} keys, p99", times["p99"], "ms")
    for who, what in (("client", "cpu_seconds"), ("all nodes", "node_cpu_seconds")):
        outcome.add(
            f"processor of {who}, for each set", percentile([1e6 * one[what] / one["keys"] for one in found.sets], 50),
            "us")
    _tell_gets(outcome, found)
    for sync, said in SYNCS.items():
        if not (theirs := found.valkey[sync]):
            continue
        outcome.add(f"Valkey, WAIT 1, {said}", percentile([one["per_second"] for one in theirs], 50), "keys/s")
        ratios = [mine / its["per_second"] for mine, its in zip(rates, theirs, strict=True)]
        outcome.add(
            f"sets, ratio to Valkey, {said}", percentile(ratios, 50), "x",
            basis=f"median of {len(ratios)} rounds: {', '.join(f'{ratio:.3g}' for ratio in ratios)}")


def _tell_gets(outcome: Outcome, found: Found) -> None:
    gets, echoes = (spread([took for one in found.gets for took in one[what]]) for what in ("get_ms", "echo_ms"))
    outcome.add(f"get, R = {R}, p50", gets["p50"], "ms", basis=f"{gets['count']:,} of one client, one at a time")
    outcome.add(f"get, R = {R}, p99", gets["p99"], "ms")
    outcome.add("empty call to the same node, p50", echoes["p50"], "ms", basis="in turns with the gets")
    ratios = [
        percentile(one["get_ms"], 50) / percentile(one["echo_ms"], 50) for one in found.gets]
    outcome.add(
        "get, ratio to the empty call, p50", percentile(ratios, 50), "x", target=GET_RATIO_MAX, at_most=True,
        basis=f"median of {len(ratios)} rounds: {', '.join(f'{ratio:.3g}' for ratio in ratios)}")


def run(context: Context) -> Outcome:
    outcome = Outcome("keyspaces", "Strings of a keyspace: 1 KiB, three owners, W = 2, R = 2, one client process")
    seconds, rounds = context.count(full=5, quick=3), context.count(full=3, quick=1)
    server = valkey_cluster.program()
    if isinstance(server, str):
        outcome.notes.append(f"Valkey was not measured: {server}.")
    found = Found()
    for at in range(1, rounds + 1):
        context.say(f"round {at} of {rounds}: Valkey in {len(SYNCS)} forms, Tidemark, {seconds} s each")
        if isinstance(server, Path):
            _valkey(context, server, seconds, found)
        _tidemark(context, seconds, found)
    tell(outcome, found)
    outcome.configuration = {
        "nodes": NODES, "client processes": 1, "keys in a set_many": BATCH_KEYS, "set_many calls at a time": TASKS,
        "value bytes": VALUE_BYTES, "rounds": rounds, "seconds each": seconds,
        "Valkey": "not measured" if isinstance(server, str) else f"{valkey_cluster.versions()}, a primary and two "
        f"replicas, {VALKEY_CONNECTIONS} connections, pipelines of {VALKEY_KEYS} sets and one WAIT",
    }
    outcome.samples = {"sets": found.sets, "gets": found.gets, "valkey": found.valkey}
    return outcome
