"""One pod from its volumes to its end: init containers, containers, conditions, graceful termination.

Stays out: which pods there are and where (`pod_runner`), one container's process (`containers`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import aiohttp

from .client import Object, Refused, condition
from .commands import Pod
from .containers import Container
from .volumes import NotYet

RETRY_S = 0.2


class PodWorker:
    """Runs one pod until it is deleted, and keeps its status."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        pod.changed = self._changed
        spec = pod.manifest["spec"]
        self.init_containers = [Container(pod, each, init=True) for each in spec.get("initContainers", ())]
        self.containers = [Container(pod, each) for each in spec["containers"]]
        self._dirty = asyncio.Event()
        self._deleting = asyncio.Event()
        self._news = asyncio.Event()
        self._over = False
        self._initialized = not self.init_containers
        self._problem = ""
        self._began = _now()
        self._since: dict[str, tuple[str, str]] = {}
        self._written = ""
        self._task: asyncio.Task[None] | None = None
        self.failures: list[BaseException] = []
        """What went wrong in the runner itself; whoever owns the worker raises it."""

    @property
    def node(self) -> str:
        return str(self.pod.manifest["spec"]["nodeName"])

    @property
    def all_containers(self) -> Sequence[Container]:
        return [*self.init_containers, *self.containers]

    def start(self) -> None:
        self.update(self.pod.manifest)
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._note)

    def update(self, manifest: Object) -> None:
        """The pod as the API server has it now; its readiness gates may have changed, or it shall end."""
        self.pod.manifest = manifest
        if "deletionTimestamp" in manifest["metadata"]:
            self._deleting.set()
        self._changed()

    def content_changed(self, kind: str, name: str) -> None:
        """A ConfigMap or Secret changed."""
        if self.pod.volumes.uses(kind, name):
            self._news.set()

    async def unplug(self) -> None:
        """End everything at once and tell nobody: the pod is gone, or its node is."""
        for container in self.all_containers:
            container.abandon()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(container.gone() for container in self.all_containers))

    def _changed(self) -> None:
        self._dirty.set()

    async def _run(self) -> None:
        tasks = [asyncio.create_task(self._report())]
        if not self._deleting.is_set():
            tasks.append(asyncio.create_task(self._containers()))
        for task in tasks:
            task.add_done_callback(self._note)
        try:
            await self._deleting.wait()
            grace = self.pod.manifest["metadata"].get("deletionGracePeriodSeconds") or 0
            await asyncio.gather(*(container.stop(grace) for container in self.all_containers))
            await _end(tasks)
            await self._write()
            await self._confirm_deletion()
        finally:
            for container in self.all_containers:
                container.abandon()
            await _end(tasks)

    def _note(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self.failures.append(failure)

    async def _containers(self) -> None:
        await self._mounted()
        refreshing = asyncio.create_task(self._refresh())
        try:
            for container in self.init_containers:
                await container.run()
                if container.exit_code != 0:
                    self._over = True
                    return
            self._initialized = True
            self._changed()
            await asyncio.gather(*(container.run() for container in self.containers))
            self._over = True
        finally:
            refreshing.cancel()
            await asyncio.gather(refreshing, return_exceptions=True)
            self._changed()

    async def _mounted(self) -> None:
        while True:
            self._news.clear()
            try:
                await self.pod.volumes.mount(self.pod.rewriting)
            except (NotYet, Refused, OSError, aiohttp.ClientError) as problem:
                self._problem = str(problem)
                self._changed()
            else:
                self._problem = ""
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._news.wait()

    async def _refresh(self) -> None:
        """Mounted content follows its ConfigMaps and Secrets; what vanished stays, as under a kubelet."""
        while True:
            await self._news.wait()
            self._news.clear()
            with suppress(NotYet, Refused, OSError, aiohttp.ClientError):
                await self.pod.volumes.refresh(self.pod.rewriting())

    # --- status

    def phase(self) -> str:
        if self._over:
            codes = [container.exit_code for container in self.all_containers]
            return "Succeeded" if all(code == 0 for code in codes) else "Failed"
        begun = any("waiting" not in each.state or each.restarts for each in self.containers)
        return "Running" if begun else "Pending"

    def status(self) -> Object:
        ready_containers = all(container.ready for container in self.containers)
        gates = [gate["conditionType"] for gate in self.pod.manifest["spec"].get("readinessGates", ())]
        closed = [gate for gate in gates if condition(self.pod.manifest, gate) != "True"]
        conditions = [
            self._condition("Initialized", self._initialized, "ContainersNotInitialized", ""),
            self._condition("ContainersReady", ready_containers, "ContainersNotReady", self._problem),
            self._condition(
                "Ready", ready_containers and not closed,
                "ReadinessGatesNotReady" if ready_containers else "ContainersNotReady",
                f"corresponding condition of pod readiness gate {closed[0]!r} is not True." if closed else ""),
        ]
        address, host = self.pod.address, self.pod.host_address
        return {
            "phase": self.phase(), "conditions": conditions, "startTime": self._began,
            "podIP": address, "podIPs": [{"ip": address}], "hostIP": host, "hostIPs": [{"ip": host}],
            "initContainerStatuses": [container.status() for container in self.init_containers],
            "containerStatuses": [container.status() for container in self.containers],
        }

    def _condition(self, kind: str, holds: bool, reason: str, message: str) -> Object:
        status = str(holds)
        if self._since.get(kind, ("", ""))[0] != status:
            self._since[kind] = status, _now()
        found: Object = {"type": kind, "status": status, "lastTransitionTime": self._since[kind][1]}
        return found if holds else {**found, "reason": reason, "message": message}

    async def _report(self) -> None:
        while True:
            await self._dirty.wait()
            await self._write()

    async def _write(self) -> None:
        """Tell the API server what is new; goes on trying while it is away."""
        metadata = self.pod.manifest["metadata"]
        while True:
            self._dirty.clear()
            status = self.status()
            text = json.dumps(status)
            if text == self._written:
                return
            try:
                await self.pod.kube.apply(
                    {"apiVersion": "v1", "kind": "Pod", "status": status, "metadata": {
                        "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]}},
                    subresource="status", manager="pod-runner")
            except Refused as refused:
                if refused.code in (404, 409):  # gone, or another one of this name
                    return
                if refused.code < 500 and refused.code != 429:
                    raise
            except (OSError, aiohttp.ClientError):
                pass
            else:
                self._written = text
                return
            await asyncio.sleep(RETRY_S)

    async def _confirm_deletion(self) -> None:
        metadata = self.pod.manifest["metadata"]
        while True:
            try:
                await self.pod.kube.delete("pods", metadata["name"], grace_s=0, uid=metadata["uid"])
                return
            except (Refused, OSError, aiohttp.ClientError):
                await asyncio.sleep(RETRY_S)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
