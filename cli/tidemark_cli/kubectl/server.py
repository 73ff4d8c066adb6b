"""Server: objects of one namespace, read and written as the person that the kubeconfig names.

Stays out: requests as such (the operator's KubeApi), what objects mean.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from tidemark_operator.kube.api import (
    ALL,
    KubeApi,
    KubeAway,
    KubeError,
    KubeRefused,
    Object,
    load_user_configuration,
)
from tidemark_operator.resources.labels import Label

from ..failures import CommandFailed
from ..output import note
from .options import Given
from .state import State, missing, name_of

MANAGER = "kubectl-tidemark"
RETRY_S = 1.0

Result = TypeVar("Result")


@asynccontextmanager
async def connect(given: Given) -> AsyncIterator[Server]:
    """Yield the server that is meant; whatever it refuses is a CommandFailed."""
    api, namespace = await log_in(given)
    server = Server(api, given.namespace or namespace, given)
    try:
        yield server
    except KubeError as error:
        raise failure(error) from None
    finally:
        await server.api.close()


async def log_in(given: Given) -> tuple[KubeApi, str]:
    """Return an API server and a namespace; raises CommandFailed where none is known."""
    try:
        configuration, namespace = await load_user_configuration(given.kubeconfig, given.context)
    except ValueError as error:
        raise CommandFailed(
            str(error), "Give --kubeconfig and --context, as with kubectl.", reason="NO_SERVER") from None
    return KubeApi(configuration), namespace


def on(given: Given, work: Callable[[Server], Awaitable[Result]]) -> Result:
    """Run `work` on the server that is meant."""

    async def main() -> Result:
        async with connect(given) as server:
            return await work(server)

    return asyncio.run(main())


def failure(error: KubeError) -> CommandFailed:
    """Return what a person is told of what the API server did not do."""
    match error:
        case KubeRefused(code=401):
            return CommandFailed(
                "the API server does not know you", "Log in anew, or choose another --context.", reason="UNAUTHORIZED")
        case KubeRefused(code=403):
            return CommandFailed(
                error.message, "A role lacks: see \"Who may\" in docs/kubectl-plugin.md.", reason="FORBIDDEN")
        case KubeRefused(code=404):
            return CommandFailed(
                error.message, "Are Tidemark's definitions installed? `kubectl get crds` lists them.",
                reason="NOT_FOUND")
        case KubeRefused():
            return CommandFailed(error.message, "", reason=error.reason or str(error.code))
    return CommandFailed(
        f"the API server is not reached: {error}", "See `kubectl version`. An act may have been taken all the same.",
        reason="UNAVAILABLE")

Objects = list[Object]


class Server:
    """One namespace of an API server."""

    def __init__(self, api: KubeApi, namespace: str, given: Given | None = None) -> None:
        self.api = api
        self.namespace = namespace
        self._given = given or Given()

    # --- reading

    async def list(self, kind: str, labels: str = "") -> Objects:
        items, _version = await self.api.list(ALL[kind], self.namespace, labels)
        return items

    async def get(self, kind: str, name: str) -> Object:
        """Return one object; raises CommandFailed with those there are, KubeRefused where there is no such kind."""
        found = await self.find(kind, name)
        if found is None:
            known = [name_of(item) for item in await self.list(kind)]
            raise missing(kind, name, f"namespace {self.namespace}", known)
        return found

    async def find(self, kind: str, name: str) -> Object | None:
        """Return one object, None when there is none of that name."""
        served = ALL[kind]
        found = await self.api.get(served, self.namespace, name)
        return None if found is None else {"apiVersion": served.api_version, "kind": kind, **found}

    async def cluster(self, name: str) -> Object:
        """Return the cluster that is meant: the one of that name, else the only one."""
        if name:
            return await self.get("TidemarkCluster", name)
        items = await self.list("TidemarkCluster")
        if len(items) != 1:
            names = sorted(name_of(item) for item in items)
            raise CommandFailed(
                f"there is no TidemarkCluster in namespace {self.namespace}" if not items else
                f"there are {len(items)} clusters in namespace {self.namespace}: {', '.join(names)}",
                "Choose another --namespace." if not items else "Name one: --cluster.",
                code=1 if not items else 2, reason="NOT_FOUND" if not items else "USAGE")
        return items[0]

    async def state(self, cluster: str = "") -> State:
        """Return one cluster with all that belongs to it."""
        item = await self.cluster(cluster)
        name = name_of(item)

        async def of_cluster(kind: str) -> Objects:
            return [each for each in await self.list(kind) if each["spec"]["clusterRef"]["name"] == name]

        groups, shards, reconfigurations, pods = await asyncio.gather(
            of_cluster("LogGroup"), of_cluster("Shard"), of_cluster("Reconfiguration"),
            self.readable("Pod", f"{Label.CLUSTER}={name}"))
        by_name = {name_of(pod): pod for pod in pods} if pods is not None else None
        return State(item, groups, shards, reconfigurations, by_name)

    async def state_of_group(self, group: str) -> State:
        """Return the cluster of a log group, whose name tells it apart in a namespace."""
        return await self.state((await self.get("LogGroup", group))["spec"]["clusterRef"]["name"])

    async def readable(self, kind: str, labels: str = "") -> Objects | None:
        """Return objects, None when they may not be read."""
        try:
            return await self.list(kind, labels)
        except KubeRefused as refused:
            if refused.code != 403:
                raise
            return None

    async def follow(self, kind: str, name: str) -> AsyncIterator[Object | None]:
        """Yield an object now and whenever it changed, None when it is gone; waits out an API server that is away."""
        away = renewed = False
        while True:
            try:
                items, version = await self.api.list(ALL[kind], self.namespace)
                if away:
                    note("the API server is back")
                away = renewed = False
                yield next((item for item in items if name_of(item) == name), None)
                while True:
                    async for what, item in self.api.watch(ALL[kind], self.namespace, version):
                        version = item["metadata"]["resourceVersion"]
                        if what != "BOOKMARK" and name_of(item) == name:
                            yield None if what == "DELETED" else item
            except KubeAway as error:
                if not away:
                    note(f"the API server is not reached, waiting for it: {error}")
                away = True
                await asyncio.sleep(RETRY_S)
            except KubeRefused as refused:
                if refused.code == 401 and not renewed:  # a token lasts minutes where a login program makes it
                    renewed = True
                    await self.api.close()
                    self.api, _namespace = await log_in(self._given)
                elif refused.code != 410:  # the version is too old by now: from the start
                    raise

    async def log(self, pod: str, container: str, *, previous: bool, lines: int, bytes_max: int) -> str:
        path = ALL["Pod"].path(self.namespace, pod, "log")
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(bytes_max), "timestamps": "true"}
        return await self.api.text(path, {**query, "previous": "true"} if previous else query)

    async def version(self) -> str:
        """Return the version of the API server."""
        return str(json.loads(await self.api.text("/version")).get("gitVersion", ""))

    # --- writing

    async def create(self, manifest: Object, *, dry_run: bool = False) -> Object:
        metadata = {**manifest["metadata"], "namespace": self.namespace}
        return await self.api.create({**manifest, "metadata": metadata}, MANAGER, dry_run=dry_run)

    async def change(self, kind: str, name: str, changes: dict[str, Any]) -> Object:
        """Change single fields."""
        return await self.api.merge(ALL[kind], self.namespace, name, changes, MANAGER)
