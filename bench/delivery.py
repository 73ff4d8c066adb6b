"""delivery: reading by single copy delivery against all-send-all and the leader alone.

One reader process, batches of 100 records of 1 KiB unless said otherwise.  Rounds alternate between the modes and a
bare gRPC stream, the limit of every reader, so that whatever else the machine does meets them all.
Stays out: a log that is longer than memory (`delivery_long`), stalls (`delivery_stalls`), the disk
(`delivery_storage`).
"""

from __future__ import annotations

from typing import Any

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, percentile, spread
from .limits import grpc_mb_per_second
from .processes import run_worker

SUMMARY = "reads sent once by all copies together: bytes, shares, speed"

RECORD_BYTES = 1024
BATCH_RECORDS, SMALL_BATCH_RECORDS = 100, 16
WRITERS = 24
SCD, ALL, LEADER = "scd", "all", "leader"
RATIO_MAX, SHARE_OFF_MAX_PERCENT, TIMES_ALL_MIN, MB_MIN = 1.02, 10, 2, 700


def fill(cluster: Cluster, group: str, total_bytes: int, batch_records: int = BATCH_RECORDS) -> dict[str, Any]:
    """Append to a group so many bytes of records, in batches of exactly `batch_records`."""
    return run_worker(
        "filler", addresses=cluster.addresses, group=group, batch_records=batch_records, record_bytes=RECORD_BYTES,
        total_bytes=total_bytes, writers=WRITERS,
    )


class Passes:
    """Passes over one group, by mode."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self.told: dict[str, list[dict[str, Any]]] = {}

    def run(self, mode: str, passes: int) -> None:
        """Read the whole group; the first pass of a process touches memory for the first time and does not count."""
        before = self._cluster.processor_seconds()
        told = run_worker(
            "reader", addresses=self._cluster.addresses, group=self._group, mode=mode, passes=passes + 1
        )["passes"]
        nodes = (self._cluster.processor_seconds() - before) / len(told)
        self.told.setdefault(mode, []).extend(one | {"node_cpu_seconds": nodes} for one in told[1:])

    def rate(self, mode: str) -> float:
        """Return the median of MB/s."""
        return spread([one["value_bytes"] / 1e6 / one["seconds"] for one in self.told[mode]])["p50"]

    def processor(self, mode: str, *keys: str) -> float:
        """Return the median of processor seconds for a GiB."""
        return percentile(
            [sum(one[key] for key in keys) * 2**30 / one["value_bytes"] for one in self.told[mode]], 50
        )

    def of(self, mode: str, key: str) -> list[Any]:
        return [one[key] for one in self.told[mode]]


def _steady(outcome: Outcome, passes: Passes, what: str, nodes: int, grpc: float) -> None:
    """Add the figures of the group whose every mode was read; `grpc` is what a bare stream does, MB/s."""
    ratios, times_all = passes.of(SCD, "received_over_delivered"), passes.rate(SCD) / passes.rate(ALL)
    off = [abs(nodes * share - 1) * 100 for shares in passes.of(SCD, "shares") for share in shares.values()]
    count = len(ratios)
    outcome.add(
        f"{what}: received for each byte delivered", max(ratios), "bytes", target=RATIO_MAX, at_most=True,
        basis=f"most of {count} passes",
    )
    outcome.add(
        f"{what}: the same, all send all", spread(passes.of(ALL, "received_over_delivered"))["p50"], "bytes"
    )
    outcome.add(
        f"{what}: a node's share off 1/{nodes}", max(off), "%", target=SHARE_OFF_MAX_PERCENT, at_most=True,
        basis=f"worst node of {count} passes",
    )
    outcome.add(f"{what}: one reader", passes.rate(SCD), "MB/s", target=MB_MIN, basis=f"median of {count} passes")
    outcome.add(
        f"{what}: one reader against all send all", times_all, "times", target=TIMES_ALL_MIN,
        basis=f"{passes.rate(ALL):.0f} MB/s, same run",
    )
    outcome.add(
        f"{what}: one reader against the leader alone", passes.rate(SCD) / passes.rate(LEADER), "times",
        basis=f"{passes.rate(LEADER):.0f} MB/s, same run",
    )
    outcome.add(
        f"{what}: one reader against bare gRPC", 100 * passes.rate(SCD) / grpc, "%", basis=f"{grpc:.0f} MB/s, same run")
    for mode in (SCD, ALL, LEADER):
        outcome.add(f"{what}: processor of the reader, {mode}", passes.processor(mode, "cpu_seconds"), "s/GiB")
        outcome.add(f"{what}: processor of all nodes, {mode}", passes.processor(mode, "node_cpu_seconds"), "s/GiB")


def run(context: Context) -> Outcome:
    outcome = Outcome("delivery", "Reads by single copy delivery, three copies on three nodes")
    rounds, passes = context.count(full=3, quick=1), context.count(full=2, quick=1)
    mib = context.count(full=1024, quick=96)
    with clusters.running(context) as cluster:
        cluster.make_group("small", 1)
        cluster.make_group("usual", 1)
        context.say(f"filling two groups of {mib} MiB")
        fill(cluster, "small", mib << 20, SMALL_BATCH_RECORDS)
        fill(cluster, "usual", mib << 20)
        by_size = {"16 KiB batches": Passes(cluster, "small"), "100 KiB batches": Passes(cluster, "usual")}
        bare: list[float] = []
        for number in range(rounds):
            bare.append(grpc_mb_per_second(context.seconds(full=5, quick=1)))
            for what, read in by_size.items():
                for mode in (SCD, ALL, LEADER):
                    read.run(mode, passes)
                context.say(f"round {number + 1} of {rounds}: {what}, {read.rate(SCD):.0f} MB/s so far")
    for what in ("100 KiB batches", "16 KiB batches"):
        _steady(outcome, by_size[what], what, 3, percentile(bare, 50))
    outcome.configuration = {
        "nodes": 3, "copies": 3, "shards": 1, "reader processes": 1, "record bytes": RECORD_BYTES,
        "batch records": f"{BATCH_RECORDS} and {SMALL_BATCH_RECORDS}", "MiB of log": mib,
        "rounds": rounds, "passes of a round": passes,
    }
    outcome.samples = {what: read.told for what, read in by_size.items()} | {"grpc_mb_per_second": bare}
    return outcome
