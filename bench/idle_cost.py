"""idle: what a shard costs while nobody uses it, in memory and processor time, on a node and in the operator.

Three nodes, so every node holds a copy of every shard and leads about a third.  No polling per shard means that the
nodes' driver sees as many events per second with 2,000 shards as with none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome

SUMMARY = "memory and processor of idle shards, nodes and operator"

STEP_SHARDS = 1000
SETTLE_SECONDS = 8.0


@dataclass(frozen=True, slots=True)
class Look:
    """One process, or the mean of the nodes, while nothing happened."""

    memory_mib: float       # unique set size: what would be free if it ended
    processor_percent: float
    events_per_second: float


def _memory_mib(process: psutil.Process) -> float:
    return float(process.memory_full_info().uss) / 2**20


def _busy(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def _events(cluster: Cluster) -> dict[str, float]:
    return {node: cluster.metrics(node)["tidemark_driver_events_total"] for node in cluster.nodes()}


def _look(cluster: Cluster, seconds: float) -> dict[str, Look]:
    """Watch for `seconds`; metrics are asked for outside of the watched time, for answering costs too."""
    processes = cluster.processes()
    events_before, events_began = _events(cluster), time.monotonic()
    time.sleep(1.0)
    busy_before, began = {name: _busy(process) for name, process in processes.items()}, time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    busy = {name: _busy(process) - busy_before[name] for name, process in processes.items()}
    events, events_took = _events(cluster), time.monotonic() - events_began
    return {
        name: Look(
            _memory_mib(process), 100 * busy[name] / took,
            (events[name] - events_before[name]) / events_took if name in events else 0.0,
        )
        for name, process in processes.items()
    }


def _mean(looks: dict[str, Look], names: list[str]) -> Look:
    chosen = [looks[name] for name in names]
    return Look(
        sum(look.memory_mib for look in chosen) / len(chosen),
        sum(look.processor_percent for look in chosen) / len(chosen),
        sum(look.events_per_second for look in chosen) / len(chosen),
    )


def run(context: Context) -> Outcome:
    outcome = Outcome("idle", "Cost of idle shards")
    seconds, steps = context.seconds(full=30, quick=5), 2
    step = context.count(full=STEP_SHARDS, quick=200)
    looks: dict[int, dict[str, Look]] = {}
    with clusters.running(context) as cluster:
        for at in range(steps + 1):
            if at:
                began = time.monotonic()
                cluster.make_group(f"idle-{at}", step, timeout_s=300)
                outcome.add(f"time to create {step} shards, step {at}", time.monotonic() - began, "s")
            time.sleep(SETTLE_SECONDS)
            found = _look(cluster, seconds)
            looks[at * step] = {
                "node": _mean(found, list(cluster.nodes())), "operator": found["operator"], "etcd": found["etcd"]
            }
            context.say(f"{at * step} shards: node {looks[at * step]['node']}, operator {looks[at * step]['operator']}")
    most = steps * step
    none, all_ = looks[0], looks[most]
    kib_per_shard = 1024 * (all_["node"].memory_mib - none["node"].memory_mib) / most
    outcome.add("node: memory of one idle shard", kib_per_shard, "KiB")
    outcome.add(
        "node: processor of 1,000 idle shards",
        1000 * (all_["node"].processor_percent - none["node"].processor_percent) / most, "% of a core",
    )
    outcome.add(
        "node: driver events of 1,000 idle shards",
        1000 * (all_["node"].events_per_second - none["node"].events_per_second) / most, "events/s",
        target=1.0, at_most=True, basis="no polling per shard",
    )
    outcome.add(
        "operator: memory of 1,000 shards", 1000 * (all_["operator"].memory_mib - none["operator"].memory_mib) / most,
        "MiB",
    )
    outcome.add(
        "operator: processor of 1,000 shards",
        1000 * (all_["operator"].processor_percent - none["operator"].processor_percent) / most, "% of a core",
    )
    lines = [f"{'shards':>7} {'process':>9} {'memory MiB':>11} {'processor %':>12} {'events/s':>9}"]
    for shards, by_name in looks.items():
        for name, look in by_name.items():
            lines.append(
                f"{shards:>7} {name:>9} {look.memory_mib:>11.1f} {look.processor_percent:>12.2f} "
                f"{look.events_per_second:>9.2f}"
            )
    outcome.blocks.append("\n".join(lines))
    outcome.configuration = {"nodes": 3, "copies of each shard": 3, "watched seconds": seconds}
    outcome.samples = {
        str(shards): {name: [look.memory_mib, look.processor_percent, look.events_per_second]
                      for name, look in by_name.items()}
        for shards, by_name in looks.items()
    }
    return outcome
