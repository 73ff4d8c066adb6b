"""long-log: delivery of ten GiB against the first GiB of the same log, in time and in processor time for each byte.

Ten GiB on three nodes are more than the memory of a small machine holds, so the disk takes part.
Stays out: the other figures of delivery (`delivery`).
"""

from __future__ import annotations

from . import cluster as clusters
from .context import Context
from .delivery import BATCH_RECORDS, RECORD_BYTES, SCD, Passes, fill
from .figures import Outcome

SUMMARY = "delivery of a log that is longer than memory, against a short one"

GROUP = "usual"
TIMES_MAX = 1.25


def tell(outcome: Outcome, short: Passes, long: Passes) -> None:
    """Add the figures of a long log against a short one."""
    sizes = [passes.of(SCD, "value_bytes")[0] / 2**30 for passes in (short, long)]
    basis = f"{sizes[1]:.3g} GiB of log against {sizes[0]:.3g} GiB, same run"
    outcome.add("long log: one reader", long.rate(SCD), "MB/s", basis=f"{sizes[1]:.3g} GiB of log")
    outcome.add(
        "long log: time for a byte", short.rate(SCD) / long.rate(SCD), "times", target=TIMES_MAX, at_most=True,
        basis=basis,
    )
    both = ("cpu_seconds", "node_cpu_seconds")
    outcome.add(
        "long log: processor for a byte", long.processor(SCD, *both) / short.processor(SCD, *both), "times",
        target=TIMES_MAX, at_most=True, basis=basis,
    )


def run(context: Context) -> Outcome:
    outcome = Outcome("long-log", "Reads of a long log by single copy delivery, three copies on three nodes")
    short_mib, long_mib = context.count(full=1024, quick=96), context.count(full=10240, quick=192)
    short_passes, long_passes = context.count(full=6, quick=1), context.count(full=2, quick=1)
    with clusters.running(context) as cluster:
        cluster.make_group(GROUP, 1)
        fill(cluster, GROUP, short_mib << 20)
        short, long = Passes(cluster, GROUP), Passes(cluster, GROUP)
        short.run(SCD, short_passes)
        context.say(f"filling the group up to {long_mib} MiB")
        fill(cluster, GROUP, (long_mib - short_mib) << 20)
        long.run(SCD, long_passes)
    tell(outcome, short, long)
    outcome.configuration = {
        "nodes": 3, "copies": 3, "shards": 1, "reader processes": 1, "record bytes": RECORD_BYTES,
        "batch records": BATCH_RECORDS, "MiB of log": f"{short_mib} and {long_mib}",
        "passes": f"{short_passes} and {long_passes}",
    }
    outcome.samples = {"short": short.told, "long": long.told}
    return outcome
