"""What became of a cluster's pods while somebody looked on: who was replaced, and how many served at the least.

Stays out: why.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import aiohttp

from .client import Kube, Object, Refused, condition


class PodHistory:
    """`async with PodHistory(kube) as seen`: follows the pods of the cluster `prod`."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self._pods: dict[str, Object] = {}
        self.replaced: list[str] = []
        """Names of pods that were deleted and came anew, in order."""
        self.serving_at_least = 0

    async def __aenter__(self) -> Self:
        listing = await self._listing()
        self._pods = {pod["metadata"]["name"]: pod for pod in listing["items"]}
        self.serving_at_least = self._serving()
        self._task = asyncio.create_task(self._follow(listing["metadata"]["resourceVersion"]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        (failure,) = await asyncio.gather(self._task, return_exceptions=True)
        if error is None and failure is not None and not isinstance(failure, asyncio.CancelledError):
            raise failure

    def _serving(self) -> int:
        return sum(
            condition(pod, "Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
            for pod in self._pods.values())

    async def _listing(self) -> Object:
        return await self._kube.listing("pods", labels="tidemark.dev/cluster=prod")

    async def _follow(self, since: str) -> None:
        while True:
            try:
                async for kind, pod in self._kube.stream("pods", since, labels="tidemark.dev/cluster=prod"):
                    since = pod["metadata"]["resourceVersion"]
                    self._saw(kind, pod)
            except (Refused, OSError, aiohttp.ClientError):
                await asyncio.sleep(0.05)  # what happened meanwhile is told by the next stream

    def _saw(self, kind: str, pod: Object) -> None:
        name = pod["metadata"]["name"]
        if kind == "ADDED":
            self.replaced.append(name)
        if kind == "DELETED":
            self._pods.pop(name, None)
        else:
            self._pods[name] = pod
        self.serving_at_least = min(self.serving_at_least, self._serving())
