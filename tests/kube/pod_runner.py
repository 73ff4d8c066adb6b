"""Scheduler and kubelet of a test: the pods of one namespace become processes of this machine.

Nodes are objects only, each in a zone.  Every pod gets a loopback address of its own, so that ports are as in a
cluster; its mounts are directories, and what its containers are told of both is rewritten (`rewriting`).  Cluster DNS,
network policies, users and limits do not exist here.  Stays out: controllers, which are real (`control_plane`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from .claims import NODE_LABEL, Claims, install_classes
from .client import Kube, Object, Refused
from .commands import IMAGES, Pod
from .containers import Container
from .loopback import LoopbackNetwork
from .pods import PodWorker
from .rewriting import own_hosts
from .scheduling import Unschedulable, choose
from .volumes import Volumes

ZONE_LABEL = "topology.kubernetes.io/zone"
OURS_LABEL = "tidemark.dev/test-namespace"
LOOK_S = 0.3


class PodRunner:
    """Runs the pods of `kube.namespace` on nodes `<namespace>-1`, `-2`, ..., one in each of `zones`."""

    def __init__(
        self, kube: Kube, network: LoopbackNetwork, directory: Path,
        zones: Sequence[str] = ("zone-a", "zone-b", "zone-c"), hosts: Mapping[str, str] | None = None,
    ) -> None:
        self.kube = kube
        self.directory = directory
        self.nodes = {f"{kube.namespace}-{number}": zone for number, zone in enumerate(zones, 1)}
        self.images: dict[str, Sequence[str]] = dict(IMAGES)
        self.missing_images: set[str] = set()
        """Whole image names that cannot be pulled."""
        self.hosts = dict(hosts or {})
        """More names that pods are told of, and what stands for them."""
        self.fronts: dict[str, str] = {}
        """By pod the address that it shows, where a proxy of the test listens there."""
        self.behind: dict[str, str] = {}
        """By pod the address that its processes listen at."""
        self._network = network
        self._claims = Claims(kube, directory / "volumes")
        self._pods: dict[str, Object] = {}
        self._workers: dict[str, PodWorker] = {}
        self._claims_seen: dict[str, Object] = {}
        self._refused: dict[str, str] = {}
        self._down: set[str] = set()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # --- life

    async def start(self) -> None:
        await install_classes(self.kube)
        for name, zone in self.nodes.items():
            await self._create_node(name, zone)
        self._tasks = [asyncio.create_task(work) for work in (
            self._follow("pods", self._pod_event),
            self._follow("persistentvolumeclaims", self._claim_event),
            self._follow("configmaps", self._content_event),
            self._follow("secrets", self._content_event),
            self._schedule(),
        )]

    async def stop(self) -> None:
        """Kill every pod and remove what belongs to no namespace."""
        failures = [task.exception() for task in self._tasks if task.done() and not task.cancelled()]
        failures += [failure for worker in self._workers.values() for failure in worker.failures]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(worker.unplug() for worker in self._workers.values()))
        with suppress(OSError, aiohttp.ClientError):
            for pod in await self.kube.list("pods"):
                await self.kube.delete("pods", pod["metadata"]["name"], grace_s=0)
            for volume in await self.kube.list("persistentvolumes", labels=f"{OURS_LABEL}={self.kube.namespace}"):
                await self._claims.release(volume["metadata"]["name"])
            for name in self.nodes:
                await self.kube.delete("nodes", name)
        if failures and failures[0] is not None:
            raise failures[0]

    # --- faults and looks

    def workers(self) -> list[PodWorker]:
        """Return what runs."""
        return list(self._workers.values())

    def worker(self, pod: str) -> PodWorker:
        found = [each for each in self._workers.values() if each.pod.name == pod]
        assert found, f"no pod {pod} runs; those that do: {sorted(each.pod.name for each in self._workers.values())}"
        return found[-1]

    def container(self, pod: str, container: str = "") -> Container:
        """Return a container, by default the first: its process, state, log_file, kill()."""
        containers = self.worker(pod).containers
        return next(each for each in containers if container in ("", each.name))

    def address(self, pod: str) -> str:
        return self.worker(pod).pod.address

    def next_address(self) -> str:
        """Return a loopback address of this run that no pod has."""
        return self._network.next_address()

    def log(self, pod: str, container: str = "") -> str:
        file = self.container(pod, container).log_file
        return file.read_text(errors="replace") if file.exists() else ""

    def log_tails(self, characters: int = 2000) -> list[tuple[str, str]]:
        """Return the ends of all logs of all pods that ever ran, by pod and container."""
        found = []
        for file in sorted(self.directory.glob("*/*/*.log")):
            pod, uid, container = file.parts[-3:]
            found.append((f"{pod} ({uid}) {container}", file.read_text(errors="replace")[-characters:]))
        return found

    def mounted(self, pod: str, path: str, container: str = "") -> Path:
        """Return the directory that stands for a mount path."""
        return self.worker(pod).pod.volumes.paths(self.container(pod, container).spec)[path]

    async def fail_node(self, name: str) -> None:
        """A node loses power: its processes are gone, and nobody there tells the API server."""
        self._down.add(name)
        for uid, worker in list(self._workers.items()):
            if worker.node == name:
                del self._workers[uid]
                await worker.unplug()
        await self._say_ready(name, "Unknown")

    async def recover_node(self, name: str) -> None:
        """It is back; pods that are still its own are started again on their old volumes."""
        self._down.discard(name)
        await self._say_ready(name, "True")
        for pod in self._pods.values():
            self._run_if_ours(pod)

    async def remove_node(self, name: str) -> None:
        """It is gone for good, as when a machine is taken out of the cluster."""
        await self.fail_node(name)
        await self.kube.delete("nodes", name)

    # --- nodes

    async def _create_node(self, name: str, zone: str) -> None:
        labels = {NODE_LABEL: name, ZONE_LABEL: zone, OURS_LABEL: self.kube.namespace}
        await self.kube.create({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels},
            "spec": {"providerID": f"process:///{name}"}})
        await self._say_ready(name, "True")
        # Admission marks every new node; the controller that would take the mark away wants heartbeats.
        await self.kube.patch("nodes", name, {"spec": {"taints": None}})

    async def _say_ready(self, name: str, ready: str) -> None:
        room = {"cpu": "64", "memory": "64Gi", "pods": "250"}
        await self.kube.patch("nodes/status", name, {"status": {
            "capacity": room, "allocatable": room,
            "conditions": [{
                "type": "Ready", "status": ready, "reason": "KubeletReady" if ready == "True" else "NodeStatusUnknown",
                "message": "", "lastHeartbeatTime": None, "lastTransitionTime": None}],
            "addresses": [{"type": "InternalIP", "address": self._network.server},
                          {"type": "Hostname", "address": name}]}})

    # --- following the API server

    async def _follow(self, resource: str, handle: Callable[[str, Object], Awaitable[None]]) -> None:
        """List and watch for ever; what vanished unseen is handled as deleted."""
        known: dict[str, Object] = {}
        while True:
            try:
                listing = await self.kube.listing(resource)
                present = {item["metadata"]["uid"] for item in listing["items"]}
                for uid in known.keys() - present:
                    await handle("DELETED", known.pop(uid))
                for item in listing["items"]:
                    known[item["metadata"]["uid"]] = item
                    await handle("MODIFIED", item)
                async for kind, item in self.kube.stream(resource, listing["metadata"]["resourceVersion"]):
                    if kind == "DELETED":
                        known.pop(item["metadata"]["uid"], None)
                    else:
                        known[item["metadata"]["uid"]] = item
                    await handle(kind, item)
            except Refused as refused:
                if refused.code not in (410, 429) and refused.code < 500:
                    raise
            except (OSError, aiohttp.ClientError):
                pass  # the API server is away; what runs goes on running
            await asyncio.sleep(LOOK_S)

    async def _pod_event(self, kind: str, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if kind == "DELETED":
            self._pods.pop(uid, None)
            self._refused.pop(uid, None)
            if worker := self._workers.pop(uid, None):
                await worker.unplug()
        else:
            self._pods[uid] = pod
            self._run_if_ours(pod)
        self._news.set()

    async def _claim_event(self, kind: str, claim: Object) -> None:
        if kind == "DELETED":
            await self._claims.removed(claim)
        else:
            await self._claims.changed(claim)
        self._news.set()

    async def _content_event(self, kind: str, changed: Object) -> None:
        for worker in self._workers.values():
            worker.content_changed(changed["kind"], changed["metadata"]["name"])

    def _run_if_ours(self, pod: Object) -> None:
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if worker := self._workers.get(uid):
            worker.update(pod)
        elif node in self.nodes and node not in self._down and (
            pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") or "deletionTimestamp" in pod["metadata"]
        ):
            self._workers[uid] = self._worker(pod, node)
            self._workers[uid].start()

    def _worker(self, pod: Object, node: str) -> PodWorker:
        metadata = pod["metadata"]
        directory = self.directory / metadata["name"] / metadata["uid"][:8]
        directory.mkdir(parents=True, exist_ok=True)
        address = self.fronts.get(metadata["name"]) or self._network.next_address()
        own = self._network.next_address() if metadata["name"] in self.fronts else address
        volumes = Volumes(self.kube, pod, directory, lambda claim: self._claims.directory(claim, node))
        self.behind[metadata["name"]] = own
        return PodWorker(Pod(
            self.kube, pod, address, self._network.server, directory, volumes,
            own_hosts(pod, metadata["namespace"], own) | self.hosts, self.images, self.missing_images,
            lambda: None))

    # --- scheduling

    async def _schedule(self) -> None:
        while True:
            waiting = [pod for pod in self._pods.values()
                       if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]]
            for pod in waiting:
                with suppress(OSError, aiohttp.ClientError, Refused):
                    await self._place(pod)
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S if waiting else None):
                    await self._news.wait()

    async def _place(self, pod: Object) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        try:
            claims = await self._claims.of(pod)
            if claims is None:
                raise Unschedulable("a persistentvolumeclaim is not found")
            nodes = await self.kube.list("nodes", labels=f"{OURS_LABEL}={self.kube.namespace}")
            nodes = [node for node in nodes if node["metadata"]["name"] not in self._down]
            node = choose(pod, nodes, self._pods.values(), await self._claims.selectors(claims))
        except Unschedulable as problem:
            if self._refused.get(uid) != str(problem):
                self._refused[uid] = str(problem)
                await self._say_unschedulable(pod, str(problem))
            return
        await self.kube.raw("POST", await self.kube.path("pods/binding", name), {
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
        pod["spec"]["nodeName"] = node  # known before the watch says so: the next one must not sit down on top

    async def _say_unschedulable(self, pod: Object, message: str) -> None:
        metadata = pod["metadata"]
        await self.kube.apply(
            {"apiVersion": "v1", "kind": "Pod",
             "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
             "status": {"conditions": [{
                 "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}]}},
            subresource="status", manager="test-scheduler")
