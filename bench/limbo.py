"""limbo: what honest outcomes cost: LOCAL appends, confirming a long queue, and QUORUM throughput as it was before.

Three questions, each with its yardstick in the same run: a LOCAL append against one fdatasync and one gRPC round trip
of the same size; the leader's time per entry that leaves the limbo, from 1,000 entries to 20,000 (`limbo_confirm`);
records per second against the build before the limbo, in alternating rounds (`build_before`).
"""

from __future__ import annotations

import statistics
from typing import Any

from tidemark.payload import encode

from . import build_before, limbo_confirm
from . import cluster as clusters
from .append_throughput import CONFIGURATIONS
from .cluster import Cluster
from .context import Context
from .figures import Outcome, number, spread
from .limits import echo, fdatasync_ms
from .processes import ROOT, run_worker

SUMMARY = "LOCAL appends, confirming a long queue, QUORUM throughput against the build before"

RECORD_BYTES = 1024
LOCAL_TARGET, LINEAR_TARGET, BEFORE_TARGET = 1.5, 1.5, 0.95
CONFIRM_US_GUARD = 40
APPENDED = 'tidemark_appends_total{outcome="APPENDED"}'


def run(context: Context) -> Outcome:
    outcome = Outcome("limbo", "Limbo: LOCAL appends, confirming, and QUORUM throughput against the build before it")
    _local(context, outcome)
    _confirm(context, outcome)
    _before(context, outcome)
    return outcome


# --- LOCAL appends


def _append(cluster: Cluster, group: str, durability: str, seconds: float) -> list[float]:
    """Return the time of each append in milliseconds: one client, one record at a time."""
    said = run_worker(
        "writers", addresses=cluster.addresses, group=group, clients=1, tasks=1, record_bytes=RECORD_BYTES,
        warm_seconds=1.0, seconds=seconds, options={"durability": durability},
    )
    return list(said["times_ms"])


def _append_alone(cluster: Cluster, group: str, seconds: float) -> list[float]:
    """The same while the followers stand still, so that nobody else uses disk and processors."""
    appends = {node: cluster.metrics(node).get(APPENDED, 0.0) for node in cluster.nodes()}
    followers = [node for node in appends if node != max(appends, key=appends.__getitem__)]
    try:
        for node in followers:
            cluster.runtime.pause(node)
        return _append(cluster, group, "LOCAL", seconds)
    finally:
        for node in followers:
            cluster.runtime.resume(node)


def _local(context: Context, outcome: Outcome) -> None:
    seconds = context.seconds(full=20, quick=3)
    size = len(encode([bytes(RECORD_BYTES)], None, [0], None, None))  # what is sent and synced for one record
    syncs_ms: list[float] = []
    trips_ms: list[float] = []

    def floor() -> None:
        syncs_ms.extend(fdatasync_ms(context.directory, seconds / 4, size))
        trips_ms.extend(echo("stream", 1, seconds / 4, size)["times_ms"])

    floor()
    context.say(f"LOCAL, then QUORUM, one append at a time, {seconds:g} s each")
    with clusters.running(context) as cluster:
        cluster.make_group("limbo", 1)
        local_ms = _append(cluster, "limbo", "LOCAL", seconds)
        quorum_ms = _append(cluster, "limbo", "QUORUM", seconds)
        alone_ms = _append_alone(cluster, "limbo", min(seconds, 2))  # the limbo is bounded
    floor()
    sync_ms, trip_ms = spread(syncs_ms)["p50"], spread(trips_ms)["p50"]
    local, quorum = spread(local_ms), spread(quorum_ms)
    outcome.add("LOCAL append, p50", local["p50"], "ms")
    outcome.add("LOCAL append, p99", local["p99"], "ms")
    outcome.add("LOCAL append while the followers stand still, p50", spread(alone_ms)["p50"], "ms")
    outcome.add("QUORUM append, for comparison, p50", quorum["p50"], "ms")
    outcome.add(
        "LOCAL append, p50, against the floor", local["p50"] / (sync_ms + trip_ms), "x", target=LOCAL_TARGET,
        at_most=True,
        basis=f"one fdatasync, {number(sync_ms)} ms, and one gRPC round trip, {number(trip_ms)} ms, of {size} bytes, "
              "p50, before and after, same run",
    )
    outcome.configuration |= {
        "nodes": 3, "shards": 1, "record bytes": RECORD_BYTES, "bytes of a batch of one": size,
        "seconds of LOCAL appends": seconds,
    }
    outcome.samples |= {
        "local_ms": local_ms, "local_alone_ms": alone_ms, "quorum_ms": quorum_ms, "fdatasync_ms": syncs_ms,
        "echo_stream_ms": trips_ms,
    }


# --- confirming


def _confirm(context: Context, outcome: Outcome) -> None:
    rounds = context.count(full=9, quick=3)
    context.say(f"confirming up to {max(limbo_confirm.NUMBERS):,} entries, {rounds} rounds")
    seconds = limbo_confirm.measure(rounds)
    typical = {entries: statistics.median(times) for entries, times in seconds.items()}
    each_us = {entries: 1e6 * took / entries for entries, took in typical.items()}
    fitted = statistics.linear_regression(list(typical), list(typical.values()))
    outcome.add("10,000 entries in limbo: confirmed and answered by the leader's core", 1000 * typical[10_000], "ms")
    outcome.add(
        "slope", 1e6 * fitted.slope, "us/entry", target=CONFIRM_US_GUARD, at_most=True,
        basis=f"guard; least squares over {', '.join(f'{entries:,}' for entries in typical)} entries",
    )
    most, least = max(each_us.values()), min(each_us.values())
    outcome.add(
        "linear: dearest against cheapest entry over all numbers", most / least, "x", target=LINEAR_TARGET,
        at_most=True, basis=f"{number(most)} against {number(least)} us/entry",
    )
    outcome.blocks.append("\n".join(
        ["entries        ms  us/entry"]
        + [f"{entries:7,}  {1000 * typical[entries]:8.2f}  {each_us[entries]:8.2f}" for entries in typical]
    ))
    outcome.configuration |= {"rounds of confirming": rounds, "clock of confirming": "processor time"}
    outcome.samples["confirm_seconds"] = {str(entries): times for entries, times in seconds.items()}


# --- against the build before


def _before(context: Context, outcome: Outcome) -> None:
    rounds, seconds = context.count(full=5, quick=1), context.count(full=12, quick=3)
    how = CONFIGURATIONS[0]
    with build_before.tree(context) as before:
        if isinstance(before, str):
            outcome.notes.append(f"QUORUM throughput was not compared with the build before: {before}")
            return
        said: dict[str, list[dict[str, Any]]] = {"before": [], "now": []}
        for turn in range(rounds):
            context.say(f"throughput, round {turn + 1} of {rounds}: the build before, then this one, {seconds} s each")
            said["before"].append(build_before.throughput(context, before, seconds))
            said["now"].append(build_before.throughput(context, ROOT, seconds))
    rates = {name: [statistics.fmean(told["each_second"]) for told in all_] for name, all_ in said.items()}
    middle = {name: statistics.median(found) for name, found in rates.items()}
    outcome.add(f"{how.name}: QUORUM throughput, median of {rounds} rounds", middle["now"], "records/s")
    outcome.add(
        f"{how.name}: ratio to the build before", middle["now"] / middle["before"], "x", target=BEFORE_TARGET,
        basis=f"{number(middle['before'])} records/s at commit {build_before.BASE}, rounds in turns, same run",
    )
    outcome.configuration |= {
        "build before": build_before.BASE, "throughput rounds": rounds, "seconds of a round": seconds,
    }
    outcome.samples |= {f"records_per_second_{name}": found for name, found in rates.items()}
