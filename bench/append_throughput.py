"""throughput: batches of 100 and more 1 KiB records, QUORUM, fsync on every commit, three nodes and one client process.

Each round measures every configuration on a cluster of its own, then the disk: three writers at once that sync as often
as the nodes just did, and write as much again to tables (`disk_limit`).  The kernel counts the bytes that the nodes
hand to the disk, so nothing is assumed about how often they write a byte.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .disk_limit import DiskLimit, measure
from .figures import Outcome, number, percentile, spread
from .processes import run_worker

SUMMARY = "append throughput against the disk's limit, 1 and 4 shards"

NODES = 3
RECORD_BYTES = 1024
WARM_SECONDS = 2.0
STILL_SECONDS, STILL_SECONDS_MAX = 1.0, 20.0
RECORDS_TARGET, MB_TARGET, LIMIT_PERCENT_TARGET = 80_000, 50, 70


@dataclass(frozen=True, slots=True)
class Configuration:
    """How the client appends; the first one is what the targets are held against."""

    shards: int
    batch_records: int
    tasks: int

    @property
    def name(self) -> str:
        return f"{self.shards} shard{'s' if self.shards > 1 else ''}, batches of {self.batch_records}"


CONFIGURATIONS = (Configuration(1, 256, 40), Configuration(4, 256, 40), Configuration(1, 100, 64))


def append(cluster: Cluster, how: Configuration, seconds: int) -> dict[str, Any]:
    """Append to a group of its own for `seconds`; return what the worker says, with processor time by process."""
    group = f"append-{how.shards}-{how.batch_records}"
    cluster.make_group(group, how.shards)
    before = {name: process.cpu_times() for name, process in cluster.processes().items()}
    machine_before = psutil.cpu_times()
    said = run_worker(
        "appender", addresses=cluster.addresses, group=group, batch_records=how.batch_records,
        record_bytes=RECORD_BYTES, tasks=how.tasks, warm_seconds=WARM_SECONDS, seconds=seconds,
        options={"batch_records": how.batch_records, "batch_bytes": how.batch_records * (RECORD_BYTES + 32)},
    )
    machine = [now - then for now, then in zip(psutil.cpu_times(), machine_before, strict=True)]
    after = {name: process.cpu_times() for name, process in cluster.processes().items()}
    busy = {name: after[name].user + after[name].system - used.user - used.system for name, used in before.items()}
    said["processor_share"] = {name: used / (seconds + WARM_SECONDS) for name, used in busy.items()}
    said["processor_share"]["client"] = said.pop("cpu_seconds") / seconds
    said["machine"] = _busy(machine)
    said["syncs"] = {node: syncs_of(cluster.metrics(node)) for node in cluster.nodes()}
    return said


def _busy(spent: list[float]) -> dict[str, float]:
    """Return the parts of the machine's processors in percent; `spent` is in the order of `psutil.cpu_times`."""
    names = psutil.cpu_times()._fields
    named = dict(zip(names, spent, strict=True))
    whole = sum(named[name] for name in ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal"))
    kernel = named["system"] + named["irq"] + named["softirq"]
    return {
        "busy": 100 * (1 - (named["idle"] + named["iowait"]) / whole), "kernel": 100 * kernel / whole,
        "waiting for the disk": 100 * named["iowait"] / whole, "taken by the host": 100 * named["steal"] / whole,
    }


def syncs_of(metrics: dict[str, float]) -> dict[str, float]:
    count = metrics["tidemark_store_sync_seconds_count"]
    return {
        "count": count,
        "mean_ms": 1000 * metrics["tidemark_store_sync_seconds_sum"] / max(count, 1),
        "mean_kib": metrics["tidemark_store_written_bytes_total"] / 1024 / max(count, 1),
    }


def _written_when_still(cluster: Cluster) -> float:
    """Return what the nodes handed to the disk so far, once full memtables are in tables."""
    until = time.monotonic() + STILL_SECONDS_MAX
    before = -1.0
    while (now := cluster.written_bytes()) != before and time.monotonic() < until:
        before = now
        time.sleep(STILL_SECONDS)
    return now


@dataclass(frozen=True, slots=True)
class Round:
    """One configuration on one cluster, and the disk right after it."""

    said: dict[str, Any]            # by `append`
    written_bytes: float            # handed to the disk by all nodes
    appended_bytes: float           # of records, warm-up included
    disk: DiskLimit

    @property
    def megabytes(self) -> float:
        """MB of records in a second, over the whole round."""
        return statistics.fmean(self.said["each_second"]) * RECORD_BYTES / 1e6

    @property
    def written_per_byte(self) -> float:
        return self.written_bytes / self.appended_bytes

    @property
    def percent_of_limit(self) -> float:
        return 100 * self.megabytes / self.disk.mb_per_second


def _round(context: Context, how: Configuration, seconds: int, disk_seconds: float) -> Round:
    with clusters.running(context, NODES) as cluster:
        said = append(cluster, how, seconds)
        written = _written_when_still(cluster)
    syncs = said["syncs"].values()
    mean_kib = sum(node["mean_kib"] * node["count"] for node in syncs) / sum(node["count"] for node in syncs)
    with context.scratch("disk") as directory:
        disk = measure(directory, int(mean_kib * 1024), disk_seconds, NODES)
    return Round(said, written, said.pop("records") * RECORD_BYTES, disk)


def _parts(said: dict[str, Any]) -> str:
    lines = [f"{'process':>10}  cores used  syncs  mean ms  mean KiB"]
    for name, share in said["processor_share"].items():
        sync = said["syncs"].get(name)
        tail = f"{sync['count']:7.0f}  {sync['mean_ms']:7.1f}  {sync['mean_kib']:8.0f}" if sync else ""
        lines.append(f"{name:>10}  {share:10.2f}{tail}")
    lines.append("all processors: " + ", ".join(f"{what} {percent:.0f} %" for what, percent in said["machine"].items()))
    return "\n".join(lines)


def tell(outcome: Outcome, how: Configuration, rounds: list[Round], *, held: bool) -> None:
    """Add the figures of one configuration; only a `held` one is held against the targets."""
    seconds = len(rounds[0].said["each_second"])
    burst = min(10, seconds)
    of_rounds = f"median of {len(rounds)} rounds"
    limits = [one.disk.mb_per_second for one in rounds]
    records = [statistics.fmean(one.said["each_second"][:burst]) for one in rounds]
    times_ms = [time_ms for one in rounds for time_ms in one.said["times_ms"]]
    outcome.add(
        f"{how.name}: over the first {burst} s", percentile(records, 50), "records/s",
        target=RECORDS_TARGET if held else None, basis=of_rounds,
    )
    outcome.add(
        f"{how.name}: over {seconds} s", percentile([one.megabytes for one in rounds], 50), "MB/s",
        target=MB_TARGET if held else None, basis=of_rounds,
    )
    outcome.add(
        f"{how.name}: part of the disk's limit", percentile([one.percent_of_limit for one in rounds], 50), "%",
        target=LIMIT_PERCENT_TARGET if held else None,
        basis=f"{NODES} writers with the nodes' syncs, after each round: {', '.join(map(number, limits))} MB/s",
    )
    outcome.add(
        f"{how.name}: written to the disk for each byte", percentile([one.written_per_byte for one in rounds], 50),
        "bytes", basis=f"all nodes, by the kernel's count; the writers: {number(rounds[-1].disk.written_per_byte)}",
    )
    outcome.add(f"{how.name}: time of one append_batch, p50", spread(times_ms)["p50"], "ms")
    outcome.add(f"{how.name}: time of one append_batch, p99", spread(times_ms)["p99"], "ms")
    outcome.blocks.append(f"{how.name}, last round\n{_parts(rounds[-1].said)}")
    outcome.samples[how.name] = [asdict(one) for one in rounds]


def run(context: Context) -> Outcome:
    outcome = Outcome("throughput", "Append throughput: 1 KiB records, QUORUM, fsync on every commit, 3 nodes")
    rounds, disk_seconds = context.count(full=3, quick=1), context.seconds(full=3, quick=1)
    found: dict[Configuration, list[Round]] = {how: [] for how in CONFIGURATIONS}
    for at in range(rounds):
        for how in CONFIGURATIONS:
            # The targets are for the first configuration, the others are for comparison.
            seconds = context.count(full=30 if how is CONFIGURATIONS[0] else 8, quick=4)
            context.say(f"round {at + 1} of {rounds}: {how.name}: appending for {seconds} s")
            found[how].append(_round(context, how, seconds, disk_seconds))
    for how, measured in found.items():
        tell(outcome, how, measured, held=how is CONFIGURATIONS[0])
    outcome.configuration = {
        "nodes": NODES, "client processes": 1, "record bytes": RECORD_BYTES, "warm-up seconds": WARM_SECONDS,
        "append_batch calls at a time": ", ".join(f"{how.tasks} ({how.name})" for how in CONFIGURATIONS),
        "rounds": rounds, "seconds of the disk in a round": disk_seconds,
    }
    return outcome
