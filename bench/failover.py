"""failover: from SIGKILL of the leader to the first append that its successor acknowledged, many times over.

One shard, three nodes, a detector whose probes time out after 200 ms (that of `tidemark dev`).  A client appends one
record after the other; a kill counts when a higher epoch has acknowledged an append.  Then the killed node is started
again, and the next kill comes when it has caught up.  A killed process refuses connections, which the operator sees at
once; so leaders are also paused (SIGSTOP), which only a probe without an answer can tell.
"""

from __future__ import annotations

import signal
import time
from typing import Any

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, histogram, spread
from .processes import Worker, worker

SUMMARY = "time from SIGKILL of a leader to the next acknowledged append"

GROUP = "failover"
DETECTOR = {"probeIntervalMilliseconds": 100, "probeTimeoutMilliseconds": 200, "failureThreshold": 2}
PAUSE_MS = 2.0
P50_TARGET_MS, P99_TARGET_MS = 1000, 2000
CAUGHT_UP_SECONDS = 60.0
SETTLE_SECONDS = 0.5
EDGES_MS = (20, 30, 40, 50, 75, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000)


def _leader_of(client: Worker, epoch: int) -> str:
    """Return the leader of `epoch` or of a later one, as the client's shard map names it."""
    while True:
        said = client.read()
        if said.get("named", -1) >= epoch:
            return str(said["leader"])


def _first_acknowledgement(client: Worker, after_epoch: int) -> dict[str, Any]:
    while True:
        said = client.read()
        if said.get("epoch", -1) > after_epoch:
            return said


def wait_caught_up(cluster: Cluster, node: str) -> None:
    """Wait until the restarted node holds what the others held when it was started."""
    def commits() -> dict[str, float]:
        views = {name: cluster.metrics(name) for name in cluster.nodes()}
        return {
            name: max((v for k, v in view.items() if k.startswith("tidemark_shard_commit")), default=-1.0)
            for name, view in views.items()
        }

    wanted = max(commits().values())
    until = time.monotonic() + CAUGHT_UP_SECONDS
    while commits()[node] < wanted:
        if time.monotonic() > until:
            raise TimeoutError(f"{node} did not catch up to offset {wanted:.0f} within {CAUGHT_UP_SECONDS:.0f} s")
        time.sleep(0.05)


def _fail_over(cluster: Cluster, client: Worker, epoch: int, leader: str, number: int) -> tuple[float, int, str]:
    """Send `number` to the leader; return the milliseconds until the next epoch answered, that epoch, its leader."""
    began = time.monotonic()
    cluster.nodes()[leader].send_signal(number)
    said = _first_acknowledgement(client, epoch)
    return (said["at"] - began) * 1000, said["epoch"], _leader_of(client, said["epoch"])


def run(context: Context) -> Outcome:
    outcome = Outcome("failover", "Failover: SIGKILL of the leader to the first acknowledged append")
    kills, pauses = context.count(full=120, quick=10), context.count(full=30, quick=4)
    killed_ms: list[float] = []
    paused_ms: list[float] = []
    with clusters.running(context, detector=DETECTOR) as cluster:
        cluster.make_group(GROUP, 1)
        with worker("failover_client", addresses=cluster.addresses, group=GROUP, pause_ms=PAUSE_MS) as client:
            epoch = client.read()["epoch"]
            leader = _leader_of(client, epoch)
            for kill in range(kills):
                failed = leader
                took_ms, epoch, leader = _fail_over(cluster, client, epoch, failed, signal.SIGKILL)
                killed_ms.append(took_ms)
                cluster.start(failed)
                wait_caught_up(cluster, failed)
                time.sleep(SETTLE_SECONDS)
                if kill % 10 == 9:
                    context.say(f"{kill + 1} of {kills} kills, p50 so far {spread(killed_ms)['p50']:.0f} ms")
            for _ in range(pauses):
                failed = leader
                took_ms, epoch, leader = _fail_over(cluster, client, epoch, failed, signal.SIGSTOP)
                paused_ms.append(took_ms)
                cluster.runtime.resume(failed)
                wait_caught_up(cluster, failed)
                time.sleep(SETTLE_SECONDS)
    found, silent = spread(killed_ms), spread(paused_ms)
    outcome.add(f"SIGKILL, p50 of {kills}", found["p50"], "ms", target=P50_TARGET_MS, at_most=True)
    outcome.add(f"SIGKILL, p99 of {kills}", found["p99"], "ms", target=P99_TARGET_MS, at_most=True)
    outcome.add(f"SIGKILL, max of {kills}", found["max"], "ms")
    outcome.add(f"SIGSTOP, p50 of {pauses}", silent["p50"], "ms")
    outcome.add(f"SIGSTOP, max of {pauses}", silent["max"], "ms")
    outcome.blocks.append(f"SIGKILL\n{histogram(killed_ms, EDGES_MS, 'ms')}")
    outcome.blocks.append(f"SIGSTOP\n{histogram(paused_ms, EDGES_MS, 'ms')}")
    outcome.configuration = {
        "nodes": 3, "shards": 1, "detector": DETECTOR, "pause between appends": f"{PAUSE_MS:g} ms", "kills": kills,
        "pauses": pauses,
    }
    outcome.samples = {"killed_ms": killed_ms, "paused_ms": paused_ms}
    return outcome
