"""throughput: batches of 100 and more 1 KiB records, QUORUM, fsync on every commit, three nodes and one client process.

The disk's own sequential rate is measured before and after each configuration: three replicas write every byte twice,
to the write-ahead log and to a table, so a sixth of it is the most that appends can reach on one shared disk.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, number, spread
from .limits import sequential_write_mb_per_second
from .processes import run_worker

SUMMARY = "append throughput against the disk's limit, 1 and 4 shards"

RECORD_BYTES = 1024
BYTES_WRITTEN_PER_BYTE = 6
WARM_SECONDS = 2.0
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
    said = run_worker(
        "appender", addresses=cluster.addresses, group=group, batch_records=how.batch_records,
        record_bytes=RECORD_BYTES, tasks=how.tasks, warm_seconds=WARM_SECONDS, seconds=seconds,
        options={"batch_records": how.batch_records, "batch_bytes": how.batch_records * (RECORD_BYTES + 32)},
    )
    after = {name: process.cpu_times() for name, process in cluster.processes().items()}
    busy = {name: after[name].user + after[name].system - used.user - used.system for name, used in before.items()}
    said["processor_share"] = {name: used / (seconds + WARM_SECONDS) for name, used in busy.items()}
    said["processor_share"]["client"] = said.pop("cpu_seconds") / seconds
    said["syncs"] = {node: _syncs(cluster.metrics(node)) for node in cluster.nodes()}
    return said


def _syncs(metrics: dict[str, float]) -> dict[str, float]:
    count = metrics["tidemark_store_sync_seconds_count"]
    return {
        "count": count,
        "mean_ms": 1000 * metrics["tidemark_store_sync_seconds_sum"] / max(count, 1),
        "mean_kib": metrics["tidemark_store_written_bytes_total"] / 1024 / max(count, 1),
    }


def _parts(said: dict[str, Any]) -> str:
    lines = [f"{'process':>10}  cores used  syncs  mean ms  mean KiB"]
    for name, share in said["processor_share"].items():
        sync = said["syncs"].get(name)
        tail = f"{sync['count']:7.0f}  {sync['mean_ms']:7.1f}  {sync['mean_kib']:8.0f}" if sync else ""
        lines.append(f"{name:>10}  {share:10.2f}{tail}")
    return "\n".join(lines)


def run(context: Context) -> Outcome:
    outcome = Outcome("throughput", "Append throughput: 1 KiB records, QUORUM, fsync on every commit, 3 nodes")
    seconds, mib = context.count(full=30, quick=4), context.count(full=4096, quick=512)
    burst = min(10, seconds)
    for at, how in enumerate(CONFIGURATIONS):
        held = at == 0      # the targets are for the first configuration, the others are for comparison
        disk = [sequential_write_mb_per_second(context.directory, mib)]
        with clusters.running(context) as cluster:
            context.say(f"{how.name}: appending for {seconds} s")
            said = append(cluster, how, seconds)
        disk.append(sequential_write_mb_per_second(context.directory, mib))
        limit = statistics.fmean(disk) / BYTES_WRITTEN_PER_BYTE
        each = said["each_second"]
        records = statistics.fmean(each[:burst])
        megabytes = statistics.fmean(each) * RECORD_BYTES / 1e6
        outcome.add(
            f"{how.name}: over the first {burst} s", records, "records/s", target=RECORDS_TARGET if held else None
        )
        outcome.add(f"{how.name}: over {seconds} s", megabytes, "MB/s", target=MB_TARGET if held else None)
        outcome.add(
            f"{how.name}: part of the disk's limit", 100 * megabytes / limit, "%",
            target=LIMIT_PERCENT_TARGET if held else None,
            basis=f"{number(limit)} MB/s = mean of {number(disk[0])} and {number(disk[1])} MB/s, by 6, same run",
        )
        outcome.add(f"{how.name}: time of one append_batch, p50", spread(said["times_ms"])["p50"], "ms")
        outcome.add(f"{how.name}: time of one append_batch, p99", spread(said["times_ms"])["p99"], "ms")
        outcome.blocks.append(f"{how.name}\n{_parts(said)}")
        outcome.samples[how.name] = said | {"disk_mb_per_second": disk}
    outcome.configuration = {
        "nodes": 3, "client processes": 1, "record bytes": RECORD_BYTES, "warm-up seconds": WARM_SECONDS,
        "append_batch calls at a time": ", ".join(f"{how.tasks} ({how.name})" for how in CONFIGURATIONS),
        "sequential write MiB": mib,
    }
    return outcome
