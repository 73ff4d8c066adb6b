"""kubernetes-scale: one operator with many clusters and shards on a real API server with a real etcd.

API server and etcds are real, the nodes hold nothing (`workers.node_farm`): what is measured is the operator.
Stays out: the data path, which the other benchmarks measure.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from tests.kube import binaries
from tests.kube.client import Kube, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.fixtures import install_definitions
from tests.kube.operators import Operator, allow_operator, cluster, log_group

from .context import Context
from .figures import Outcome, percentile
from .processes import Worker, worker

SUMMARY = "one operator with 50 clusters and 5,000 shards on a real API server"

NAMESPACE = "scale"
NODES = 3
CLUSTERS, GROUPS, SHARDS = (f"{plural}.tidemark.dev" for plural in ("tidemarkclusters", "loggroups", "shards"))
WRITES = ("POST", "PUT", "PATCH", "DELETE", "APPLY")
QUIET_S = 10.0


class Bench:
    """The parts of one run."""

    def __init__(
        self, context: Context, plane: ControlPlane, kube: Kube, etcd: Etcd, operator: Operator, clusters: int,
        shards: int,
    ) -> None:
        self.context = context
        self.plane = plane
        self.kube = kube
        self.etcd = etcd
        self.operator = operator
        self.names = [f"c{number:02}" for number in range(clusters)]
        self.shards = shards

    # --- looks

    def process(self) -> psutil.Process:
        return psutil.Process(self.operator.pid)

    def memory_mib(self) -> float:
        return float(self.process().memory_full_info().rss) / 2**20

    def metrics(self) -> dict[str, float]:
        found = {}
        for line in self.operator.ask("/metrics").splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                found[name] = float(value)
        return found

    def writes(self) -> int:
        """What the API server counts of requests that change anything but leases of its own."""
        found = 0
        for line in self.plane.admin.open("/metrics", 30.0).decode().splitlines():
            if line.startswith("apiserver_request_total"):
                said = dict(re.findall(r'(\w+)="([^"]*)"', line))
                if said["verb"] in WRITES and said["resource"] not in ("leases", "configmaps", "flowschemas"):
                    found += int(line.rpartition(" ")[2])
        return found

    # --- deeds

    async def apply(self) -> None:
        for name in self.names:
            made = cluster(self.etcd, NODES)
            made["metadata"]["name"] = name
            made["spec"]["nodePools"][0].pop("zones")
            made["spec"]["failureDetection"] = {"probeIntervalMilliseconds": 2000, "probeTimeoutMilliseconds": 5000}
            await self.kube.create(made)
            group = log_group(self.shards, f"g-{name}")
            group["spec"]["clusterRef"]["name"] = name
            await self.kube.create(group)

    async def until_groups(self, holds: Callable[[dict[str, Any]], bool], timeout_s: float) -> list[float]:
        """Return after how long it held of each log group."""
        began, held = time.monotonic(), dict[str, float]()
        while (left_s := began + timeout_s - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):  # of this watch, or of the whole wait
                async with asyncio.timeout(left_s):
                    async for _what, group in self.kube.watch(GROUPS):
                        name = group["metadata"]["name"]
                        if name not in held and holds(group):
                            held[name] = time.monotonic() - began
                            if len(held) % 10 == 0:
                                self.context.say(f"{len(held)} of {len(self.names)} after {held[name]:.1f} s")
                        if len(held) == len(self.names):
                            return list(held.values())
        raise TimeoutError(f"{len(held)} of {len(self.names)} log groups after {timeout_s:.0f} s")

    async def rest(self) -> None:
        """Wait until nothing was written for a while."""
        before, since = -1, time.monotonic()
        async with asyncio.timeout(300):
            while time.monotonic() - since < QUIET_S:
                await asyncio.sleep(1.0)
                if (now := self.writes()) != before:
                    before, since = now, time.monotonic()


def _reconciles(before: dict[str, float], after: dict[str, float]) -> dict[str, tuple[int, float]]:
    """Return of each kind of pass how many there were and the upper bound that 99 of 100 do not exceed."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, value in after.items():
        if name.startswith("tidemark_operator_reconcile_duration_seconds_bucket"):
            said = dict(re.findall(r'(\w+)="([^"]*)"', name))
            bucket = float(said["le"]), value - before.get(name, 0)
            for kind in (said["kind"], "all"):
                found.setdefault(kind, []).append(bucket)
    told = {}
    for kind, buckets in found.items():
        counts: dict[float, float] = {}
        for bound, count in buckets:
            counts[bound] = counts.get(bound, 0) + count
        total = counts[float("inf")]
        if total:
            told[kind] = int(total), min(bound for bound, count in counts.items() if count >= 0.99 * total)
    return told


def _written(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Return what the operator itself counts of writes: statuses by kind, events, requests by method."""
    counted = ("tidemark_operator_status_writes_total", "tidemark_operator_events_total",
               "tidemark_operator_kube_requests_total")
    return {name: value - before.get(name, 0) for name, value in after.items()
            if name.startswith(counted) and 'method="GET"' not in name and value != before.get(name, 0)}


def _busy(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


async def _start(bench: Bench, outcome: Outcome) -> None:
    """From applied objects to clusters that serve."""
    shards = bench.shards * len(bench.names)
    busy, writes = _busy(bench.process()), bench.writes()
    began = time.monotonic()
    await bench.apply()
    bench.context.say(f"applied after {time.monotonic() - began:.1f} s")
    took = await bench.until_groups(lambda group: condition(group, "Ready") == "True", 1_800)
    outcome.add("from apply to every log group ready", time.monotonic() - began, "s")
    outcome.add("first log group ready", min(took), "s")
    await bench.rest()
    outcome.add("processor of that, for each shard", 1000 * (_busy(bench.process()) - busy) / shards, "ms")
    made = len(await bench.kube.list(SHARDS))
    assert made == shards, f"{made} of {shards} shards are shown"
    asked = 2 * len(bench.names) * (1 + NODES)  # the bench's own: objects, and the status of each pod
    outcome.add("API writes of that, for each shard", (bench.writes() - writes - asked) / shards, "writes")


async def _at_rest(bench: Bench, outcome: Outcome) -> None:
    seconds = bench.context.seconds(full=120, quick=20)
    before, busy, writes = bench.metrics(), _busy(bench.process()), bench.writes()
    began = time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    percent = 100 * (_busy(bench.process()) - busy) / took
    outcome.add("at rest: API writes", 60 * (bench.writes() - writes) / took, "writes/min", target=0, at_most=True)
    outcome.add("at rest: processor", percent, "% of a core")
    outcome.add("at rest: resident memory", bench.memory_mib(), "MiB", target=300, at_most=True)
    after = bench.metrics()
    late_s = after["tidemark_operator_event_loop_lag_seconds"]
    outcome.add("at rest: the event loop was late by at worst", 1000 * late_s, "ms", basis="in the last 30 s")
    outcome.samples["passes at rest"] = _reconciles(before, after)
    outcome.samples["written at rest"] = _written(before, after)


async def _changes(bench: Bench, outcome: Outcome) -> None:
    """Every log group gets another spec at once."""
    before = bench.metrics()
    for name in bench.names:
        await bench.kube.patch(GROUPS, f"g-{name}", {"spec": {"retention": {"seconds": 86_400}}})
    took = await bench.until_groups(lambda group: group["status"]["observedGeneration"] == 2, 300)
    await bench.rest()
    told = _reconciles(before, bench.metrics())
    outcome.add(f"{len(took)} specs changed at once: told in the status, p50", 1000 * percentile(took, 50), "ms")
    outcome.add(f"{len(took)} specs changed at once: told in the status, p99", 1000 * percentile(took, 99), "ms")
    outcome.add("meanwhile: a pass, p99 at most", 1000 * told["all"][1], "ms", basis=f"{told['all'][0]} passes")
    outcome.samples["passes of changes"] = told


async def _failure(bench: Bench, farm: Worker, outcome: Outcome) -> None:
    """One node goes: its shards get other leaders, and their objects say so."""
    before, writes = bench.metrics(), bench.writes()
    name = f"{bench.names[0]}-1"

    async def shards_of(leader: str) -> int:
        return len(await bench.kube.list(SHARDS, fields=f"status.leader={leader}"))

    led = await shards_of(name)
    began = time.monotonic()
    farm.tell(f"stop {name}")
    farm.read()
    async with asyncio.timeout(120):
        while await shards_of(name):
            await asyncio.sleep(0.2)
    outcome.add(f"a node fails: {led} shards say who leads now", time.monotonic() - began, "s")
    farm.tell(f"start {name}")
    farm.read()
    await bench.rest()
    outcome.add("a node fails and comes back: API writes", bench.writes() - writes, "writes")
    outcome.samples["passes of a node that fails"] = _reconciles(before, bench.metrics())


async def _restart(bench: Bench, outcome: Outcome) -> None:
    """An operator that starts finds everything as it was."""
    writes = bench.writes()
    began = time.monotonic()
    await asyncio.to_thread(bench.operator.stop)
    bench.operator.start()
    async with asyncio.timeout(300):
        while True:
            try:
                told = await asyncio.to_thread(bench.metrics)
                active = sum(value for name, value in told.items() if name.startswith("tidemark_operator_leader{"))
                if active == len(bench.names):
                    break
            except OSError:
                pass
            await asyncio.sleep(0.2)
    outcome.add("restart: until every cluster is acted for", time.monotonic() - began, "s")
    await bench.rest()
    outcome.add("restart: API writes", bench.writes() - writes, "writes", basis="nothing had changed")
    outcome.add("restart: resident memory", bench.memory_mib(), "MiB")
    outcome.samples["written by a restart"] = _written({}, bench.metrics())


async def _measure(context: Context, directory: Path, programs: dict[str, Path], outcome: Outcome) -> None:
    clusters, shards = context.count(full=50, quick=4), 100
    plane = ControlPlane(programs, directory)
    etcd = Etcd(programs["etcd"], plane.network.next_address(), directory / "metadata")
    kube = Kube(plane.admin, NAMESPACE)
    operator = Operator(plane, NAMESPACE, plane.network.next_address(), directory)
    try:
        plane.start()
        etcd.start()
        await install_definitions(plane)
        await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        await kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
        await allow_operator(kube, plane, directory)
        bench = Bench(context, plane, kube, etcd, operator, clusters, shards)
        network = plane.network.server.rsplit(".", 2)[0]
        with worker("node_farm", connection=asdict(plane.admin), namespace=NAMESPACE, network=network) as farm:
            farm.read()
            operator.start()
            while "request" not in await asyncio.to_thread(_answered, operator):
                await asyncio.sleep(0.1)
            outcome.add("memory of an operator that has nothing to do", bench.memory_mib(), "MiB")
            await _start(bench, outcome)
            await _at_rest(bench, outcome)
            await _changes(bench, outcome)
            await _failure(bench, farm, outcome)
            await _restart(bench, outcome)
        version = plane.version()["gitVersion"]
        outcome.configuration = {
            "clusters": clusters, "shards": clusters * shards, "nodes": clusters * NODES, "copies": NODES,
            "API server": version, "probes of each node every": "2 s", "operators": 1}
    finally:
        print(operator.tail(3_000) if not outcome.figures else "", end="")
        operator.kill()
        await kube.close()
        etcd.kill()
        plane.stop()


def _answered(operator: Operator) -> str:
    try:
        return operator.ask("/metrics")
    except OSError:
        return ""


def run(context: Context) -> Outcome:
    outcome = Outcome("kubernetes-scale", "One operator with many clusters on a real API server")
    try:
        programs = binaries.prepare(context.say)
    except binaries.Unavailable as missing:
        outcome.absent = str(missing)
        return outcome
    with context.scratch("kubernetes") as directory:
        asyncio.run(_measure(context, directory, programs, outcome))
    outcome.blocks.append(passes_table(outcome.samples))
    return outcome


def passes_table(samples: dict[str, Any]) -> str:
    """Return a line for each kind of pass in each part of the run."""
    lines = [f"{'':<30}{'pass':<10}{'count':>7}{'p99 at most, ms':>18}"]
    for part, told in samples.items():
        if part.startswith("passes"):
            lines += [f"{part:<30}{kind:<10}{count:>7}{1000 * bound:>18,.0f}" for kind, (count, bound) in told.items()]
    return "\n".join(lines)
