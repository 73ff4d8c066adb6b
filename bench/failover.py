"""failover: from the loss of the leader to the next acknowledged append, and elections without need.

Everything has its defaults, the failure detector too.  A client appends one record after the other; a failure counts
when a higher epoch has acknowledged an append, and the next one comes when the node has caught up.

- SIGKILL: the machine refuses connections for the dead process, which the operator sees at once.
- Machine gone: the cable of a network namespace is pulled; no packet arrives any more, and no socket hears of it.
- SIGSTOP: the machine accepts connections, and the process does not answer.
- Busy: twice as many processes as processors compute for ten minutes, while the client appends; no leader may change.
"""

from __future__ import annotations

import os
import random
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.e2e.namespaces import way_in

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, histogram, spread
from .processes import Worker, worker

SUMMARY = "time from the loss of a leader to the next acknowledged append, and leaders of busy machines"

GROUP = "failover"
PAUSE_MS = 2.0
P50_TARGET_MS, P99_TARGET_MS, GONE_P50_TARGET_MS = 1000, 2000, 3000
BUSY_SHARDS = 12
CAUGHT_UP_SECONDS = 60.0
SETTLE_SECONDS = 0.5
PHASE_SECONDS = 0.5   # probes are so far apart: failures come at any moment between two
EDGES_MS = (
    20, 30, 40, 50, 75, 100, 150, 200, 250, 300, 400, 500, 750, 1000, 1500, 1750, 2000, 2250, 2500, 2750, 3000, 3500,
    4000, 4500, 5000, 6000, 8000)


def leader_of(client: Worker, epoch: int) -> str:
    """Return the leader of `epoch` or of a later one, as the client's shard map names it."""
    while True:
        said = client.read()
        if said.get("named", -1) >= epoch:
            return str(said["leader"])


def first_acknowledgement(client: Worker, after_epoch: int) -> dict[str, Any]:
    """Return what the client says when a later epoch has acknowledged an append."""
    while True:
        said = client.read()
        if said.get("epoch", -1) > after_epoch:
            return said


def settle() -> None:
    """Wait a moment, which ends anywhere between two probes."""
    time.sleep(SETTLE_SECONDS + random.uniform(0, PHASE_SECONDS))


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
    said = first_acknowledgement(client, epoch)
    return (said["at"] - began) * 1000, said["epoch"], leader_of(client, said["epoch"])


def _processes(context: Context, kills: int, pauses: int) -> tuple[list[float], list[float]]:
    """Return the times after SIGKILL and after SIGSTOP."""
    killed_ms: list[float] = []
    paused_ms: list[float] = []
    with clusters.running(context) as cluster:
        cluster.make_group(GROUP, 1)
        with worker("failover_client", addresses=cluster.addresses, group=GROUP, pause_ms=PAUSE_MS) as client:
            epoch = client.read()["epoch"]
            leader = leader_of(client, epoch)
            for number, times, found in ((signal.SIGKILL, kills, killed_ms), (signal.SIGSTOP, pauses, paused_ms)):
                for _ in range(times):
                    failed = leader
                    took_ms, epoch, leader = _fail_over(cluster, client, epoch, failed, number)
                    found.append(took_ms)
                    if number is signal.SIGKILL:
                        cluster.start(failed)
                    else:
                        cluster.runtime.resume(failed)
                    wait_caught_up(cluster, failed)
                    settle()
                    if len(found) % 10 == 0:
                        context.say(f"{len(found)} of {times} {number.name}, p50 so far {spread(found)['p50']:.0f} ms")
    return killed_ms, paused_ms


def _machines(context: Context, way: tuple[str, ...], pulls: int) -> list[float]:
    """Return the times after the cable of the leader's machine was pulled."""
    found: list[float] = []
    with context.scratch("machines") as directory, worker(
        "vanishing_machines", {}, way, directory=str(directory), pulls=pulls, pause_ms=PAUSE_MS
    ) as pulling:
        while len(found) < pulls:
            found.append(pulling.read()["ms"])
            if len(found) % 10 == 0:
                context.say(f"{len(found)} of {pulls} machines, p50 so far {spread(found)['p50']:.0f} ms")
    return found


def _busy(context: Context, seconds: float) -> dict[str, Any]:
    """Keep every processor busy; return how many elections there were, and how slow appends were."""
    with clusters.running(context) as cluster, ExitStack() as load:
        cluster.make_group(GROUP, BUSY_SHARDS)
        before, load_before = cluster.epochs(), os.getloadavg()[0]
        log = Path(cluster.runtime.state.operator.log)
        seen = len(log.read_text())
        client = load.enter_context(worker(
            "failover_client", addresses=cluster.addresses, group=GROUP, pause_ms=PAUSE_MS))
        client.read()
        for _ in range(2 * (os.cpu_count() or 1)):
            load.enter_context(worker("busy"))
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0:
            time.sleep(min(60.0, left))
            context.say(f"busy for {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}")
        after = cluster.epochs()
        said = log.read_text()[seen:]
    return {
        "elections": sum(after.values()) - sum(before.values()),
        "nodes called down": len(re.findall(r" is down: ", said)),
        "load before": load_before, "load at the end": os.getloadavg()[0],
    }


def run(context: Context) -> Outcome:
    outcome = Outcome("failover", "Failover: the loss of a leader to the first acknowledged append")
    kills, pauses = context.count(full=60, quick=5), context.count(full=20, quick=2)
    pulls, seconds = context.count(full=40, quick=3), context.seconds(full=600.0, quick=20.0)
    killed_ms, paused_ms = _processes(context, kills, pauses)
    way = way_in()
    gone_ms = _machines(context, way, pulls) if isinstance(way, tuple) else []
    busy = _busy(context, seconds)
    killed, hung = spread(killed_ms), spread(paused_ms)
    outcome.add(f"SIGKILL, p50 of {kills}", killed["p50"], "ms", target=P50_TARGET_MS, at_most=True)
    outcome.add(f"SIGKILL, p99 of {kills}", killed["p99"], "ms", target=P99_TARGET_MS, at_most=True)
    outcome.add(f"SIGKILL, max of {kills}", killed["max"], "ms")
    if gone_ms:
        gone = spread(gone_ms)
        outcome.add(f"machine gone, p50 of {pulls}", gone["p50"], "ms", target=GONE_P50_TARGET_MS, at_most=True)
        outcome.add(f"machine gone, p90 of {pulls}", gone["p90"], "ms")
        outcome.add(f"machine gone, max of {pulls}", gone["max"], "ms")
    else:
        outcome.notes.append(f"Machines that vanish were not measured: {way}")
    outcome.add(f"SIGSTOP, p50 of {pauses}", hung["p50"], "ms")
    outcome.add(f"SIGSTOP, max of {pauses}", hung["max"], "ms")
    outcome.add(
        f"busy for {seconds:.0f} s: elections of {BUSY_SHARDS} shards", busy["elections"], "", target=0, at_most=True)
    outcome.add(f"busy for {seconds:.0f} s: nodes called down", busy["nodes called down"], "", target=0, at_most=True)
    for name, times in (("SIGKILL", killed_ms), ("machine gone", gone_ms), ("SIGSTOP", paused_ms)):
        if times:
            outcome.blocks.append(f"{name}\n{histogram(times, EDGES_MS, 'ms')}")
    outcome.configuration = {
        "nodes": 3, "shards": f"1, busy {BUSY_SHARDS}", "detector": "the defaults",
        "pause between appends": f"{PAUSE_MS:g} ms", "kills": kills, "machines gone": pulls, "pauses": pauses,
        "busy processes": 2 * (os.cpu_count() or 1),
        "load average before and after being busy": f"{busy['load before']:.1f} and {busy['load at the end']:.1f}",
    }
    outcome.samples = {"killed_ms": killed_ms, "gone_ms": gone_ms, "paused_ms": paused_ms}
    return outcome
