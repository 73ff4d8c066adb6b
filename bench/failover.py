"""failover: from SIGKILL of the leader to the first append that its successor acknowledged, many times over.

One shard, three nodes, the detector of `tidemark dev` (200 ms).  A client appends one record after the other; a kill
counts when a higher epoch has acknowledged an append.  Then the killed node is started again, and the next kill comes
when it has caught up.
"""

from __future__ import annotations

import time
from typing import Any

from tidemark_operator.local import DEV_DETECTION

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, histogram, spread
from .processes import Worker, worker

SUMMARY = "time from SIGKILL of a leader to the next acknowledged append"

GROUP = "failover"
PAUSE_MS = 2.0
P50_TARGET_MS, P99_TARGET_MS = 1000, 2000
CAUGHT_UP_SECONDS = 60.0
SETTLE_SECONDS = 0.5
EDGES_MS = (50, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000)


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


def _wait_caught_up(cluster: Cluster, node: str) -> None:
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


def run(context: Context) -> Outcome:
    outcome = Outcome("failover", "Failover: SIGKILL of the leader to the first acknowledged append")
    kills = context.count(full=120, quick=10)
    times_ms: list[float] = []
    with clusters.running(context, detector=DEV_DETECTION) as cluster:
        cluster.make_group(GROUP, 1)
        with worker("failover_client", addresses=cluster.addresses, group=GROUP, pause_ms=PAUSE_MS) as client:
            epoch = client.read()["epoch"]
            leader = _leader_of(client, epoch)
            for kill in range(kills):
                killed_at = time.monotonic()
                cluster.nodes()[leader].kill()
                said = _first_acknowledgement(client, epoch)
                times_ms.append((said["at"] - killed_at) * 1000)
                killed, epoch = leader, said["epoch"]
                leader = _leader_of(client, epoch)
                cluster.start(killed)
                _wait_caught_up(cluster, killed)
                time.sleep(SETTLE_SECONDS)
                if kill % 10 == 9:
                    context.say(f"{kill + 1} of {kills} kills, p50 so far {spread(times_ms)['p50']:.0f} ms")
    found = spread(times_ms)
    outcome.add(f"p50 of {kills} kills", found["p50"], "ms", target=P50_TARGET_MS, at_most=True)
    outcome.add(f"p99 of {kills} kills", found["p99"], "ms", target=P99_TARGET_MS, at_most=True)
    outcome.add(f"max of {kills} kills", found["max"], "ms")
    outcome.blocks.append(histogram(times_ms, EDGES_MS, "ms"))
    outcome.configuration = {
        "nodes": 3, "shards": 1, "detector": DEV_DETECTION, "pause between appends": f"{PAUSE_MS:g} ms", "kills": kills
    }
    outcome.samples = {"failover_ms": times_ms}
    return outcome
