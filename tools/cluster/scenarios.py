"""Scenarios: what happens to a cluster while a ledger is written, and what must hold then.

Each is a coroutine of `SCENARIOS` that returns a line for the summary and raises Failed.
Stays out: bringing up what they run on (`inside`).
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import yaml

from tests.kube.client import Kube, Refused, condition, said
from tests.kube.walkthrough import NAMESPACE

from .commands import Failed, say
from .control_plane import ControlPlane
from .ledger import Note, Unmoved, Writer
from .machines import Machine, on
from .places import REPOSITORY, Places
from .quickstart import IMAGES, INSTALL, Shell, clean_up, page_commands, run_page

Object = dict[str, Any]
CLUSTER, GROUP = "trial", "orders"
NODE_PODS = f"tidemark.dev/cluster={CLUSTER}"
EXAMPLES = REPOSITORY / "examples" / "kubernetes" / "quickstart"
SETTLED_S, CHANGE_S = 300.0, 600.0
MOVES_S = 60.0
"""How long a shard may take nothing while a fault is there; far above what it takes on an idle machine."""
CUT_S = 60.0
"""How long a partition lasts."""
TOLD_S = 45.0
"""Within how long a partition must show in conditions and in the disruption budget."""
LOOK_S = 0.5


@dataclass
class World:
    """The Kubernetes cluster and what is installed on it."""

    places: Places
    plane: ControlPlane
    machines: list[Machine]
    kube: Kube
    shell: Shell
    provider: asyncio.Task[None]
    notes: dict[tuple[str, int], Note] = field(default_factory=dict)
    """Of all ledgers of the cluster that is installed."""
    installed: bool = False

    async def close(self) -> None:
        await self.kube.close()

    # --- what is installed

    async def run(self, command: str) -> str:
        return await asyncio.to_thread(self.shell.run, command)

    async def install(self) -> None:
        """Install the chart and the quickstart's cluster, once, by the commands of the page."""
        if self.installed:
            return
        for command in page_commands(*IMAGES, *INSTALL):
            await self.run(command)
        await self.run(f"kubectl label namespace {NAMESPACE} pod-security.kubernetes.io/enforce=restricted")
        await self.run(f"kubectl apply -f {EXAMPLES / 'cluster.yaml'}")
        await self.settled()
        self.installed = True

    async def remove_namespace(self) -> None:
        """Remove what the page leaves on purpose, so that the next cluster begins without it."""
        await self.run(f"kubectl delete namespace {NAMESPACE} --timeout=5m")

    async def settled(self) -> float:
        """Wait until nothing is wrong with the cluster; return the seconds.  Raises Failed."""
        began = time.monotonic()
        wrong = "unknown"
        while wrong:
            try:
                wrong = await self._wrong()
            except (Refused, OSError, aiohttp.ClientError) as problem:
                wrong = str(problem)
            if self.provider.done():
                self.provider.result()
            self.plane.check()
            if wrong and time.monotonic() > began + SETTLED_S:
                raise Failed(f"after {SETTLED_S:g} s: {wrong}")
            await asyncio.sleep(LOOK_S if wrong else 0)
        return time.monotonic() - began

    async def _wrong(self) -> str:
        for resource, name, wanted in (
            ("tidemarkclusters.tidemark.dev", CLUSTER, ("Ready", "Available", "FullyReplicated")),
            ("loggroups.tidemark.dev", GROUP, ("Ready",)),
        ):
            found = await self.kube.get(resource, name)
            for kind in wanted:
                if condition(found, kind) != "True":
                    return f"{name} {kind} is {said(found, kind)}"
        for shard in await self.kube.list("shards.tidemark.dev"):
            if condition(shard, "FullyReplicated") != "True":
                return f"shard {shard['metadata']['name']} is {said(shard, 'FullyReplicated')}"
        return ""

    async def wait(self, what: str, holds: Callable[[], Awaitable[bool]], within_s: float) -> float:
        """Wait until something holds and return the seconds.  Raises Failed that says what."""
        began = time.monotonic()
        while not await holds():
            if time.monotonic() > began + within_s:
                raise Failed(f"not within {within_s:g} s: {what}")
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began

    # --- where things are

    async def pods(self) -> dict[str, Object]:
        """Return the nodes' pods by name."""
        return {pod["metadata"]["name"]: pod for pod in await self.kube.list("pods", labels=NODE_PODS)}

    async def machine_of(self, pod: str) -> Machine:
        return on(self.machines, (await self.kube.get("pods", pod))["spec"]["nodeName"])

    async def leaders(self) -> Mapping[str, int]:
        """Return how many shards each node leads."""
        return Counter(
            shard["status"].get("leader", "") for shard in await self.kube.list("shards.tidemark.dev"))

    async def busiest(self, machines: Sequence[Machine] | None = None) -> str:
        """Return the node that leads most shards, of all or of those on these machines.  Raises Failed."""
        wanted, leaders = machines or self.machines, await self.leaders()
        names = [name for name in await self.pods() if await self.machine_of(name) in wanted]
        if not names:
            raise Failed(f"no node runs on {', '.join(machine.name for machine in wanted)}")
        return max(sorted(names), key=lambda name: leaders.get(name, 0))

    async def without_etcd(self) -> list[Machine]:
        """Return the machines that do not run the only etcd, without which nothing is elected."""
        etcd = await self.machine_of("tidemark-etcd-0")
        return [machine for machine in self.machines if machine is not etcd]

    async def acting_operator(self) -> Machine:
        """Return the machine of the operator that acts, once all operators run; the other one stands by."""
        await self.run("kubectl rollout status deployment/tidemark-operator --timeout=5m")
        acting: list[str] = []

        async def found() -> bool:
            for pod in await self.kube.list("pods", labels="app.kubernetes.io/component=operator"):
                url = f"http://{pod['status'].get('podIP', '')}:8080/metrics"
                with suppress(OSError):
                    text = (await asyncio.to_thread(urllib.request.urlopen, url, timeout=10)).read().decode()
                    if re.search(rf'^tidemark_operator_leader\{{cluster="{CLUSTER}".*\}} 1\.0$', text, re.MULTILINE):
                        acting.append(pod["spec"]["nodeName"])
            return bool(acting)

        await self.wait("an operator says that it acts", found, TOLD_S)
        return on(self.machines, acting[0])

    async def alone(self) -> tuple[str, Machine]:
        """Return a node that no other node shares its machine with, without the etcd, and the machine."""
        places = {name: await self.machine_of(name) for name in await self.pods()}
        for name, machine in sorted(places.items()):
            if list(places.values()).count(machine) == 1 and machine in await self.without_etcd():
                return name, machine
        raise Failed("each machine without the etcd has several nodes or none")

    async def swap(self, source: str) -> None:
        """Swap a node for a new one, as the quickstart does, and wait until its pod is gone."""
        manifest = yaml.safe_load((EXAMPLES / "swap.yaml").read_text(encoding="utf-8"))
        manifest["spec"]["nodeSwap"]["from"] = source
        name = f"swap-{source}"
        say(f"swapping {source}")
        await self.kube.create({**manifest, "metadata": {"name": name, "namespace": NAMESPACE}})
        await self.kube.wait(
            "reconfigurations.tidemark.dev", name, lambda found: condition(found, "Succeeded") == "True",
            timeout_s=CHANGE_S)

        async def gone() -> bool:
            return source not in await self.pods()

        await self.wait(f"the pod of {source} is gone", gone, CHANGE_S)

    async def spread(self) -> None:
        """Swap nodes that share a machine while another has none: a lost machine is to take one node along."""
        for _ in self.machines:
            places = {name: await self.machine_of(name) for name in await self.pods()}
            on_each = {machine.name: list(places.values()).count(machine) for machine in self.machines}
            if max(on_each.values()) < 2 or min(on_each.values()) > 0:
                return
            await self.swap(next(name for name, at in sorted(places.items()) if on_each[at.name] > 1))
            await self.settled()
        raise Failed(f"nodes stay together: {on_each}")

    async def configure(self, on_node_drain: str, replicas: int) -> None:
        """Change how drains are treated and the number of nodes, and wait until both are so."""
        cluster = await self.kube.get("tidemarkclusters.tidemark.dev", CLUSTER)
        pools = cluster["spec"]["nodePools"]
        pools[0]["replicas"] = replicas
        await self.kube.patch("tidemarkclusters.tidemark.dev", CLUSTER, {
            "spec": {"nodePools": pools, "disruption": {"onNodeDrain": on_node_drain}}})

        async def there() -> bool:
            return len(await self.pods()) == replicas and not await self._wrong()

        await self.wait(f"{replicas} nodes and nothing wrong", there, CHANGE_S)

    async def budget(self) -> int:
        """Return how many node pods may be evicted now."""
        budgets = await self.kube.list("poddisruptionbudgets.policy", labels=NODE_PODS)
        if not budgets:
            raise Failed("the nodes have no disruption budget")
        return min(int(each.get("status", {}).get("disruptionsAllowed", 0)) for each in budgets)

    async def replicated(self) -> bool:
        cluster = await self.kube.get("tidemarkclusters.tidemark.dev", CLUSTER)
        return condition(cluster, "FullyReplicated") == "True"

    def collect(self, name: str) -> None:
        """Write what is there into the logs, after a failure."""
        folder = self.places.logs / name
        for command in (
            f"mkdir -p {folder}",
            f"kubectl get nodes,pods,pvc,pv,events -A -o wide > {folder}/objects.txt",
            f"kubectl get tidemarkclusters,loggroups,shards,reconfigurations -A -o yaml > {folder}/tidemark.yaml",
            f"kubectl describe pods -n {NAMESPACE} > {folder}/pods.txt",
            f"for p in $(kubectl get pods -n {NAMESPACE} -o name); do kubectl logs -n {NAMESPACE} $p --tail=2000 "
            f"> {folder}/$(basename $p).log 2>&1 || true; done",
        ):
            try:
                self.shell.run(command)
            except Failed as failed:
                say(str(failed))

    @asynccontextmanager
    async def ledger(self, name: str) -> AsyncIterator[Writer]:
        """Write while the block runs; after it the cluster must settle and every record must be where it should be."""
        await self.install()
        await self.settled()
        await self.spread()
        file = self.places.logs / f"{name}.ledger"
        # Addresses of Services are for machines, which have a kube-proxy; this process has none.
        addresses = [f"{pod['status']['podIP']}:6690" for pod in (await self.pods()).values()]
        async with Writer(addresses, GROUP, file, name, self.notes) as writer:
            try:
                await writer.every_shard_moves(MOVES_S)
                writer.begin_measure()
                yield writer
                settled_s = await self.settled()
                await writer.every_shard_moves(MOVES_S)
            except Unmoved as unmoved:
                raise Failed(str(unmoved)) from unmoved
            verdict = await writer.verdict()
        longest = max(writer.longest_s.values(), default=0.0)
        writer.summary = f"{verdict}; a shard waited {longest:.1f} s at most; settled after {settled_s:.0f} s"
        if not verdict.good:
            raise Failed(str(verdict))


async def quickstart(world: World) -> str:
    """Run every command of docs/quickstart-kubernetes.md, from `docker build` to the clean-up."""
    world.installed = False
    world.notes.clear()
    try:
        await asyncio.to_thread(run_page, world.shell)
    except Failed:
        await asyncio.to_thread(world.collect, "quickstart")
        await asyncio.to_thread(clean_up, world.shell)
        raise
    finally:
        await world.remove_namespace()
    return "every command of the page ended well, and both readers counted every record"


async def swap(world: World) -> str:
    """Swap the node that leads most shards for a new one."""
    async with world.ledger("swap") as writer:
        await world.swap(await world.busiest())
    return writer.summary


async def drain(world: World) -> str:
    """Drain a machine with a node, and give it back."""
    async with world.ledger("drain") as writer:
        node = await world.busiest(await world.without_etcd())
        machine = await world.machine_of(node)
        say(f"draining {machine.name} with {node}")
        try:
            await world.run(
                f"kubectl drain {machine.name} --ignore-daemonsets --delete-emptydir-data --timeout=5m")
            await writer.every_shard_moves(MOVES_S)
        finally:
            await world.run(f"kubectl uncordon {machine.name}")
    return writer.summary


async def relocate(world: World) -> str:
    """Drain a machine under `onNodeDrain: Relocate`: copies leave before the pod does."""
    async with world.ledger("relocate") as writer:
        await world.configure("Relocate", 4)
        node, machine = await world.alone()
        say(f"draining {machine.name}, the machine of {node} alone")
        try:
            await world.run(
                f"kubectl drain {machine.name} --ignore-daemonsets --delete-emptydir-data --timeout=5m")
            for shard in await world.kube.list("shards.tidemark.dev"):
                members = [each["node"] for each in shard["status"]["ensemble"]]
                if node in members or condition(shard, "FullyReplicated") != "True":
                    raise Failed(
                        f"{node} was evicted while {shard['metadata']['name']} has the members {members} and is "
                        f"{said(shard, 'FullyReplicated')}")
            await writer.every_shard_moves(MOVES_S)
        finally:
            await world.run(f"kubectl uncordon {machine.name}")
            await world.configure("HandOver", 3)
    return writer.summary


async def machine_loss(world: World) -> str:
    """Cut the link of a machine with a node and kill all its processes; later it comes back with its disk."""
    await world.install()
    acting = await world.acting_operator()
    return await _lose(world, "machine-loss", [each for each in await world.without_etcd() if each is not acting])


async def operator_loss(world: World) -> str:
    """Lose a machine that runs a node and the acting operator, in the same way."""
    await world.install()
    acting = await world.acting_operator()
    if acting not in await world.without_etcd():
        return "skipped: the acting operator runs beside the only etcd"
    return await _lose(world, "operator-loss", [acting])


async def _lose(world: World, name: str, machines: Sequence[Machine]) -> str:
    """Lose the machine whose node leads most shards, and have it come back."""
    async with world.ledger(name) as writer:
        node = await world.busiest(machines)
        machine = await world.machine_of(node)
        if not (await world.leaders()).get(node):
            await world.run(f"kubectl tidemark transfer-leader {GROUP}/0 {node} --wait")
        leaders = (await world.leaders()).get(node, 0)
        say(f"losing {machine.name} with {node}, which leads {leaders} shards")
        await asyncio.to_thread(machine.lose)
        try:
            moved_s = await writer.every_shard_moves(MOVES_S)
            say(f"every shard takes records after {moved_s:.1f} s")

            async def noticed() -> bool:
                return not await world.replicated()

            noticed_s = await world.wait("FullyReplicated is not True", noticed, TOLD_S)
            say(f"FullyReplicated says so after {noticed_s:.1f} s more; {machine.name} comes back")
        finally:
            await asyncio.to_thread(machine.start, world.machines)
    return f"{writer.summary}; with {leaders} leaders lost every shard moved after {moved_s:.1f} s"


async def leader_cut(world: World) -> str:
    """Cut the node that leads most shards off from the other nodes only: operator and clients reach all."""
    node = ""

    async def pairs() -> tuple[str, list[str]]:
        nonlocal node
        node = await world.busiest()
        return node, [each for each in await world.pods() if each != node]

    return await _partition(world, "leader-cut", pairs)


async def follower_cut(world: World) -> str:
    """Cut a node off from the leader of most shards only: it reaches the third node, operator and clients."""

    async def pairs() -> tuple[str, list[str]]:
        leader = await world.busiest()
        leaders = await world.leaders()
        others = [each for each in await world.pods() if each != leader]
        return min(sorted(others), key=lambda each: leaders.get(each, 0)), [leader]

    return await _partition(world, "follower-cut", pairs)


async def _partition(world: World, name: str, pairs: Callable[[], Awaitable[tuple[str, list[str]]]]) -> str:
    """Drop packets between pods for a while.

    Every shard must go on, and conditions and budget must say that copies do not confirm.
    """
    async with world.ledger(name) as writer:
        node, others = await pairs()
        addresses = {pod: found["status"]["podIP"] for pod, found in (await world.pods()).items()}
        machine = await world.machine_of(node)
        say(f"dropping packets between {node} and {', '.join(others)}")
        began = time.monotonic()
        await asyncio.to_thread(machine.cut, [(addresses[node], addresses[other]) for other in others])
        try:
            moved_s = await writer.every_shard_moves(MOVES_S)
            say(f"every shard takes records after {moved_s:.1f} s")

            async def told() -> bool:
                return not await world.replicated() and await world.budget() == 0

            told_s = await world.wait(
                "FullyReplicated is not True and the disruption budget is 0", told, TOLD_S)
            say(f"conditions and budget say so after {told_s:.1f} s more")
            while time.monotonic() < began + CUT_S:
                await writer.every_shard_moves(MOVES_S)
        finally:
            await asyncio.to_thread(machine.heal)
    return f"{writer.summary}; during the cut every shard moved after {moved_s:.1f} s"


SCENARIOS: Mapping[str, Callable[[World], Awaitable[str]]] = {
    "quickstart": quickstart, "swap": swap, "drain": drain, "machine-loss": machine_loss,
    "operator-loss": operator_loss, "leader-cut": leader_cut, "follower-cut": follower_cut, "relocate": relocate,
}
