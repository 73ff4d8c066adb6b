"""storage: what the disk holds when three of five members keep the payloads, against all five.

Measured on the disk, tables and write-ahead logs of all nodes together, once it has stopped to change: payloads that a
member may drop are given back some time after.  What is still in a node's memory and write-ahead log, up to 64 MiB, is
there in full, so a short look finds more than is true of a long log.
Stays out: the other figures of delivery (`delivery`).
"""

from __future__ import annotations

import time
from typing import Any

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome
from .processes import run_worker

SUMMARY = "the disk under three payload copies of five, against five"

GROUP = "stored"
NODES, COPIES = 5, 3
BATCH_RECORDS, RECORD_BYTES, WRITERS = 100, 1024, 24
PERCENT_MAX = 65
LOOK_SECONDS = 2.0
STEADY_PERCENT = 0.5


def _settled(cluster: Cluster, still_seconds: float, seconds_max: float) -> int:
    """Return the bytes on the disk once they have not changed for a while."""
    until = time.monotonic() + seconds_max
    size, since = cluster.disk_bytes(), time.monotonic()
    while time.monotonic() < until and time.monotonic() - since < still_seconds:
        time.sleep(LOOK_SECONDS)
        now = cluster.disk_bytes()
        if abs(now - size) > size * STEADY_PERCENT / 100:
            size, since = now, time.monotonic()
    return cluster.disk_bytes()


def _stored(context: Context, mib: int, replication: dict[str, Any]) -> int:
    """Fill a group on a cluster of its own; return what the disk holds of it."""
    with clusters.running(context, nodes=NODES) as cluster:
        empty = cluster.disk_bytes()
        cluster.make_group(GROUP, 1, factor=NODES, **replication)
        run_worker(
            "filler", addresses=cluster.addresses, group=GROUP, batch_records=BATCH_RECORDS,
            record_bytes=RECORD_BYTES, total_bytes=mib << 20, writers=WRITERS,
        )
        # A node looks every 30 s for what it may give back, and does it a piece at a time.
        return _settled(cluster, still_seconds=90, seconds_max=900) - empty


def run(context: Context) -> Outcome:
    outcome = Outcome("storage", "Bytes on the disk with payloads on three of five members")
    mib = context.count(full=4096, quick=192)
    context.say(f"storing {mib} MiB with {NODES} and with {COPIES} of {NODES} copies of the payloads")
    whole = _stored(context, mib, {})
    some = _stored(context, mib, {"payloadCopies": COPIES})
    outcome.add(
        f"storage of {COPIES} payload copies of {NODES}", 100 * some / whole, "%", target=PERCENT_MAX, at_most=True,
        basis=f"{some / 2**20:,.0f} MiB against {whole / 2**20:,.0f} MiB with {NODES}, for {mib:,} MiB of records",
    )
    outcome.configuration = {"nodes": NODES, "payload copies": COPIES, "MiB of records": mib}
    outcome.samples = {"storage_bytes": {"all copies": whole, f"{COPIES} copies": some}}
    return outcome
