"""stalls: a tailing reader when the node that sends to it is killed, many times over.

The reader tails what a writer appends beside it.  A stall is the longest time without a record from the kill on: until
the others stand in for the sender, and where it led the shard too, until a new leader takes appends.
Stays out: the other figures of delivery (`delivery`).
"""

from __future__ import annotations

import time
from typing import Any

from tidemark_operator.local_manifests import DEV_DETECTION

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .failover import wait_caught_up
from .figures import Outcome, histogram, spread
from .processes import Worker, worker

SUMMARY = "the longest time without a record when the sending node is killed"

GROUP = "tail"
PAUSE_MS = 2.0
WATCHED_SECONDS = 1.5   # after a kill, and until records flow again
SETTLE_SECONDS = 0.5
P99_MAX_MS = 1000
EDGES_MS = (10, 20, 50, 100, 150, 200, 300, 400, 500, 750, 1000, 2000, 5000)


def _sending(tail: Worker, since: float) -> dict[str, Any]:
    """Return the first report from after `since` that names a sender."""
    while True:
        said = tail.read()
        if said["at"] > since and said["sender"] and said["leader"] and said["delivered"]:
            return said


def _stall_ms(cluster: Cluster, tail: Worker, victim: str) -> float:
    """Kill a node; return the longest time without a record around and after it."""
    killed_at = time.monotonic()
    cluster.nodes()[victim].kill()
    longest = 0.0
    while True:
        said = tail.read()
        if said["at"] <= killed_at:
            continue
        longest = max(longest, float(said["stall_ms"]))
        if said["at"] > killed_at + WATCHED_SECONDS and said["delivered"]:
            return longest


def run(context: Context) -> Outcome:
    outcome = Outcome("stalls", "A tailing reader by single copy delivery while senders are killed")
    kills = context.count(full=100, quick=4)
    led: list[float] = []
    followed: list[float] = []
    with clusters.running(context, detector=DEV_DETECTION) as cluster:
        cluster.make_group(GROUP, 1)
        with worker("tail", addresses=cluster.addresses, group=GROUP, pause_ms=PAUSE_MS) as tail:
            for kill in range(kills):
                said = _sending(tail, time.monotonic())
                stall = _stall_ms(cluster, tail, said["sender"])
                (led if said["sender"] == said["leader"] else followed).append(stall)
                cluster.start(said["sender"])
                wait_caught_up(cluster, said["sender"])
                time.sleep(SETTLE_SECONDS)
                if kill % 10 == 9:
                    context.say(f"{kill + 1} of {kills} kills, p50 so far {spread(led + followed)['p50']:.0f} ms")
    found = spread(led + followed)
    outcome.add(f"SIGKILL of the sender: stall, p50 of {kills}", found["p50"], "ms")
    outcome.add(
        f"SIGKILL of the sender: stall, p99 of {kills}", found["p99"], "ms", target=P99_MAX_MS, at_most=True,
        basis=f"{len(led)} of the senders led the shard too",
    )
    for what, some in (("it led too", led), ("it only followed", followed)):
        if some:
            outcome.add(f"SIGKILL of the sender, {what}: stall, p50", spread(some)["p50"], "ms")
            outcome.add(f"SIGKILL of the sender, {what}: stall, max", max(some), "ms")
    outcome.blocks.append(f"Stalls after SIGKILL of the sender\n{histogram(led + followed, EDGES_MS, 'ms')}")
    outcome.configuration = {
        "nodes": 3, "kills": kills, "pause between appends": f"{PAUSE_MS:g} ms", "detector": DEV_DETECTION,
    }
    outcome.samples = {"stalls_ms_leading": led, "stalls_ms_following": followed}
    return outcome
