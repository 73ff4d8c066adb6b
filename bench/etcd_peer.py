"""etcd: Tidemark against a three-member etcd on this machine, in turns within one run.

Both promise the same: what is answered is on the disks of a majority.  etcd is measured with its Go client, Tidemark
with its Python client.  etcd keeps a sorted map with revisions, Tidemark a log; each put gets a key of its own, as each
record gets an offset.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import append_throughput, etcd_cluster, peers, small_writers
from . import cluster as clusters
from .context import Context
from .figures import Outcome, number, percentile

SUMMARY = "batches, single appends and 64 clients against etcd, where Go can build it"

PACKED, SINGLE, MANY = "100 records in one", "one client", "64 clients"
PACKED_RATIO_TARGET = 1.0
HOW = append_throughput.CONFIGURATIONS[2]
CLIENTS = 64
WARM_SECONDS = 1.0
LOADS: dict[str, dict[str, int]] = {
    PACKED: {"clients": 1, "tasks": HOW.tasks, "puts": HOW.batch_records},
    SINGLE: {"clients": 1, "tasks": 1, "puts": 1},
    MANY: {"clients": CLIENTS, "tasks": 1, "puts": 1},
}


class Side:
    """The rounds of one side, by load: records per second, and milliseconds of each call."""

    def __init__(self) -> None:
        self.rates: dict[str, list[float]] = {name: [] for name in LOADS}
        self.times_ms: dict[str, list[float]] = {name: [] for name in LOADS}

    def add(self, name: str, records_per_second: float, times_ms: list[float]) -> None:
        self.rates[name].append(records_per_second)
        self.times_ms[name].extend(times_ms)


def _etcd(context: Context, programs: dict[str, Path], seconds: int, side: Side) -> None:
    with context.scratch("etcd") as directory, etcd_cluster.running(programs["etcd"], directory) as endpoints:
        for name, how in LOADS.items():
            found = peers.load(
                programs["etcdload"], endpoints=endpoints, value_bytes=append_throughput.RECORD_BYTES,
                prefix=name, warm_seconds=WARM_SECONDS, seconds=seconds, **how,
            )
            side.add(name, len(found["times_ms"]) * how["puts"] / found["seconds"], found["times_ms"])


def _tidemark(context: Context, seconds: int, side: Side) -> None:
    with clusters.running(context) as cluster:
        said: dict[str, Any] = append_throughput.append(cluster, HOW, seconds)
        side.add(PACKED, sum(said["each_second"]) / len(said["each_second"]), said["times_ms"])
        for name, clients in ((SINGLE, 1), (MANY, CLIENTS)):
            said = small_writers.write(cluster, clients, 1, seconds)
            side.add(name, len(said["times_ms"]) / said["seconds"], said["times_ms"])


def tell(outcome: Outcome, ours: Side, theirs: Side) -> None:
    """Add rates and times of both sides, and the ratio of the rates round by round."""
    for name in LOADS:
        ratios = [mine / peer for mine, peer in zip(ours.rates[name], theirs.rates[name], strict=True)]
        for who, side in (("Tidemark", ours), ("etcd", theirs)):
            outcome.add(f"{name}: {who}", percentile(side.rates[name], 50), "records/s")
            outcome.add(f"{name}: {who}, time of one call, p50", percentile(side.times_ms[name], 50), "ms")
            outcome.add(f"{name}: {who}, time of one call, p99", percentile(side.times_ms[name], 99), "ms")
        outcome.add(
            f"{name}: ratio", percentile(ratios, 50), "x", target=PACKED_RATIO_TARGET if name == PACKED else None,
            basis=f"median of {len(ratios)} rounds: {', '.join(map(number, ratios))}",
        )


def run(context: Context) -> Outcome:
    outcome = Outcome("etcd", "Appends against puts into etcd on the same machine, 1 KiB records, fsync on a majority")
    programs = peers.programs(context)
    if isinstance(programs, str):
        outcome.absent = programs
        return outcome
    seconds, rounds = context.count(full=6, quick=2), context.count(full=3, quick=1)
    ours, theirs = Side(), Side()
    for at in range(1, rounds + 1):
        context.say(f"round {at} of {rounds}: etcd, then Tidemark, {len(LOADS)} loads of {seconds} s each")
        _etcd(context, programs, seconds, theirs)
        _tidemark(context, seconds, ours)
    tell(outcome, ours, theirs)
    outcome.configuration = {
        "etcd": f"{peers.version('etcd')}, 3 members, Go client {peers.version('etcdload')}, which calls the leader",
        "Tidemark": "3 nodes, 1 shard, one client process in Python",
        PACKED: f"a transaction of {HOW.batch_records} puts, or append_batch; {HOW.tasks} at a time from one client",
        SINGLE: "one put or append at a time", MANY: f"{CLIENTS} connections, one put or append at a time on each",
        "rounds": rounds, "seconds each": seconds,
    }
    outcome.samples = {
        who: {"records_per_second": side.rates, "times_ms": {name: ms[:20_000] for name, ms in side.times_ms.items()}}
        for who, side in (("tidemark", ours), ("etcd", theirs))
    }
    return outcome
