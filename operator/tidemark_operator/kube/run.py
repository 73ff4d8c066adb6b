"""ClusterRun: one TidemarkCluster on Kubernetes: its operator service, its specs, its nodes, what is shown of it.

The service runs on etcd alone: when the API server is lost it goes on with the specs it knows.  Only the active
operator of a cluster writes anything.
Stays out: when to look (`operator`), pods (`podkeeper`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tidemark_core.base.refusals import Refused
from tidemark_wire.tasks import background, cancelled

from ..condition_memory import Condition, ConditionMemory
from ..objects import Identity
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.labels import MANAGED_BY, Annotation, Label
from ..service import OperatorService
from . import nodes, podkeeper
from .api import CUSTOM, KubeApi, KubeRefused, Object
from .builders import Cluster, revision
from .cache import Cache
from .health import ACTIVE
from .queue import Later
from .statuses import NO_CLUSTER, StatusWriter, instead, on_kubernetes, orphan, rejected

log = logging.getLogger(__name__)

OBJECT_KINDS = ("LogGroup", "Keyspace", "Reconfiguration")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def store_of(item: Object) -> tuple[tuple[str, ...], str]:
    """Return where the metadata of a cluster lies: endpoints and key prefix."""
    etcd, metadata = item["spec"]["metadataStore"]["etcd"], item["metadata"]
    return tuple(etcd["endpoints"]), etcd.get("keyPrefix") or f"/tidemark/{metadata['namespace']}/{metadata['name']}"


def written(item: Object) -> Object:
    """Return an object as people wrote it."""
    metadata = item["metadata"]
    annotations = {name: text for name, text in metadata.get("annotations", {}).items() if name != _LAST_APPLIED}
    kept = {"name": metadata["name"], "namespace": metadata["namespace"],
            "labels": metadata.get("labels", {}), "annotations": annotations}
    return {**{name: item[name] for name in ("apiVersion", "kind", "spec")}, "metadata": kept}


def identity(item: Object) -> Identity:
    metadata = item["metadata"]
    return Identity(metadata["uid"], metadata["generation"], metadata["creationTimestamp"])


def paused(item: Object) -> bool:
    return item["metadata"].get("annotations", {}).get(Annotation.PAUSE.value) == "true"


def unsupported(spec: Mapping[str, Any]) -> str:
    """Return why a cluster cannot be run on Kubernetes by this release; nothing runs less secure than was asked."""
    security = spec.get("security") or {}
    mode = (security.get("tls") or {}).get("mode", "Managed")
    if mode != "Disabled":
        return f"security.tls.mode: {mode} is not carried out on Kubernetes by this release; Disabled is insecure"
    for field in ("tlsSecretRef", "credentialsSecretRef"):
        if field in spec["metadataStore"]["etcd"]:
            return f"metadataStore.etcd.{field}: secrets are not read by this release"
    return ""


def unreachable(spec: Mapping[str, Any]) -> str:
    """Return why this release cannot even speak to a cluster's etcd."""
    if any(endpoint.startswith("https:") for endpoint in spec["metadataStore"]["etcd"]["endpoints"]):
        return "metadataStore.etcd.endpoints: TLS to etcd needs secrets, which are not read by this release"
    return ""


class ClusterRun:
    """Made from a TidemarkCluster; `start` it, and `stop` it when the object or its store is another one."""

    def __init__(
        self, item: Object, api: KubeApi, caches: Mapping[str, Cache], writer: StatusWriter,
        changed: Callable[[], None],
    ) -> None:
        self.namespace, self.name = item["metadata"]["namespace"], item["metadata"]["name"]
        self.store = store_of(item)
        self._api = api
        self._caches = caches
        self._writer = writer
        self._changed = changed
        self._refused: dict[tuple[str, str], str] = {}
        self._seen_active = False
        self._remembered: set[tuple[str, str]] = set()
        endpoints, prefix = self.store
        self.service = OperatorService(endpoints, prefix, self.name)
        self._task: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        await self.service.start()
        self._task = background(self._follow(), f"following {self.namespace}/{self.name}")

    async def stop(self) -> None:
        await cancelled(self._task)
        await self.service.stop()
        ACTIVE.labels(self.namespace, self.name).set(0)

    async def _follow(self) -> None:
        news = self.service.add_watcher()
        while True:
            self._changed()
            await news.wait()
            news.clear()

    def became_active(self) -> bool:
        """Say whether this operator has become the active one since it was asked last."""
        before, self._seen_active = self._seen_active, self.service.active
        ACTIVE.labels(self.namespace, self.name).set(self._seen_active)
        return self._seen_active and not before

    @property
    def item(self) -> Object | None:
        return self._caches["TidemarkCluster"].get(self.namespace, self.name)

    def pods(self) -> dict[str, Object]:
        return self._owned("Pod")

    def _owned(self, kind: str) -> dict[str, Object]:
        return {
            item["metadata"]["name"]: item for item in self._caches[kind]
            if item["metadata"]["namespace"] == self.namespace
            and item["metadata"].get("labels", {}).get(Label.CLUSTER.value) == self.name}

    # --- specs into the store -------------------------------------------------------------------------------

    async def accept(self, item: Object) -> bool:
        """Store a spec, unless it rests, is refused or is over; False when there is nothing to act on.

        Raises Later while this operator is not active, StoreUnavailable, KubeError.
        """
        kind, name = item["kind"], item["metadata"]["name"]
        if self.service.active and self._is_over(item):
            await self._end(item)
            return False
        rests = paused(item)
        if not rests:
            if not self.service.active:
                raise Later(f"the operator of {self.name} is not active")
            if kind != "TidemarkCluster" and self.service.mirror.cluster is None:
                raise Later(f"the cluster {self.name} is not accepted yet")
            why = unreachable(item["spec"]) or unsupported(item["spec"]) if kind == "TidemarkCluster" else ""
            done = await self.service.objects.adopt(written(item), identity(item)) if not why else None
            if isinstance(done, Refused):
                why = done.message
            elif done is not None and not done.endswith("unchanged"):
                log.info("%s", done)
            if why:
                if self._refused.get((kind, name)) != why:
                    log.warning("%s/%s is refused: %s", kind, name, why)
                self._refused[kind, name] = why
            else:
                self._refused.pop((kind, name), None)
        self._changed()
        return not rests and (kind, name) not in self._refused

    async def let_go(self, kind: str, name: str) -> None:
        """People deleted an object.  Raises Later while it cannot be let go of, StoreUnavailable."""
        self._refused.pop((kind, name), None)
        self.service.memory.override(kind, name, [])
        if self.stored(kind, name):
            if not self.service.active:
                raise Later(f"the operator of {self.name} is not active")
            refused = await self.service.objects.let_go(kind, name)
            if refused is not None:
                raise Later(refused.message)
            log.info("%s/%s is let go of", kind, name)

    def stored(self, kind: str, name: str) -> bool:
        """Say whether the store has a living object of that name."""
        mirror = self.service.mirror
        if kind == "LogGroup":
            return name in mirror.groups and not mirror.groups[name].value.detached
        return name in (mirror.keyspaces if kind == "Keyspace" else mirror.reconfigurations)

    def strays(self) -> list[tuple[str, str]]:
        """Return what the store has and the API server has not: it was deleted while nobody looked."""
        mirror = self.service.mirror
        names = [("LogGroup", name) for name in mirror.groups] + [("Keyspace", name) for name in mirror.keyspaces]
        names += [("Reconfiguration", name) for name, item in mirror.reconfigurations.items() if item.value.kept]
        found = [
            (kind, name) for kind, name in names
            if self.stored(kind, name) and self._caches[kind].get(self.namespace, name) is None]
        over = [item["metadata"]["name"] for item in self._of("Reconfiguration") if self._is_over(item)]
        return found + [("Reconfiguration", name) for name in over]

    def _is_over(self, item: Object) -> bool:
        """Say whether a Reconfiguration has finished and been removed from the store: it must not run again."""
        name, status = item["metadata"]["name"], item.get("status", {})
        return item["kind"] == "Reconfiguration" and status.get("stage") == "Finished" and (
            not self.stored("Reconfiguration", name))

    async def _end(self, item: Object) -> None:
        """Remove the object of what is over, once its time is up.  Raises KubeError."""
        ended = item["status"].get("completionTime")
        ttl = timedelta(seconds=item["spec"].get("ttlSecondsAfterFinished", 604_800))
        if ended and datetime.now(UTC) - datetime.fromisoformat(ended) > ttl:
            metadata = item["metadata"]
            await self._api.delete(CUSTOM[item["kind"]], self.namespace, metadata["name"], metadata["uid"])

    # --- nodes ----------------------------------------------------------------------------------------------

    def _accepted(self) -> Cluster | None:
        """Return the cluster as it was accepted last, None while it is not there or nothing may be made for it."""
        item, stored = self.item, self.service.mirror.cluster
        if item is None or stored is None or stored.value.name != self.name or "deletionTimestamp" in item["metadata"]:
            return None
        return Cluster(self.namespace, self.name, item["metadata"]["uid"], stored.value.spec)

    async def make_nodes(self) -> None:
        """Give numbers to nodes that are missing.  Raises StoreUnavailable."""
        cluster = self._accepted()
        if cluster is not None and self.service.active:
            made = await nodes.make_missing(self.service, cluster.spec["nodePools"])
            if made:
                log.info("new nodes: %s", ", ".join(made))

    async def save_addresses(self) -> None:
        """Learn where pods are.  Raises StoreUnavailable."""
        moved = nodes.learn_addresses(self.service, self.pods().values())
        if moved and self.service.active:
            await nodes.save(self.service, moved)

    async def keep_pods(self) -> None:
        """One pass of the pod keeper.  Raises KubeError."""
        cluster, item = self._accepted(), self.item
        if cluster is None or item is None or paused(item) or not self.service.active:
            return
        live = podkeeper.Live(
            self.pods(), self._owned("PersistentVolumeClaim"), self._owned("Service"),
            self._owned("PodDisruptionBudget"))
        for made in await podkeeper.carry_out(
                self._api, podkeeper.plan(cluster, nodes.node_views(self.service), live)):
            self._caches[made["kind"]].learn(made)

    # --- what is shown --------------------------------------------------------------------------------------

    async def show(self) -> None:
        """Write every status that changed.  Raises KubeError."""
        if not self.service.active:
            await self._show_waiting()
            return
        for kind in ("TidemarkCluster", *OBJECT_KINDS):
            for item in self._of(kind):
                self._remember(item)
                self.service.memory.override(kind, item["metadata"]["name"], self._instead(item))
        await self._show_pods()
        await self._show_shards()  # who sees a group ready finds its shards
        for kind in OBJECT_KINDS:
            await self._show_kind(kind)
        await self._show_cluster()

    async def _show_waiting(self) -> None:
        """While etcd was never reached nobody is active, and somebody should say so."""
        item = self.item
        store = self.service.store
        if item is None or store.reachable or self.service.mirror.loaded:
            return
        known = {each["type"]: each["status"] for each in item.get("status", {}).get("conditions", ())}
        if known.get(T.METADATA_STORE_REACHABLE.value) != "False":
            reason = R.METADATA_STORE_UNREACHABLE
            await self._write_conditions(item, self.service.memory, [
                (T.READY, None, reason, ""), (T.AVAILABLE, None, reason, ""),
                (T.METADATA_STORE_REACHABLE, False, R.CONNECTION_FAILED, store.last_error)])

    async def _show_pods(self) -> None:
        world = self.service.world()
        behind = {
            member.node for shard in world.shards.values() for member in shard.members
            if (node := world.nodes.get(member.node)) is None or not node.up or node.member != member}
        for name, pod in self.pods().items():
            node = world.nodes.get(name)
            if node is not None and "deletionTimestamp" not in pod["metadata"]:
                await self._writer.write_gate(self._caches["Pod"], pod, node.up and name not in behind)

    async def _show_cluster(self) -> None:
        item, cluster = self.item, self._accepted()
        if item is None:
            return
        override = self._instead(item)
        if cluster is None:
            if override:
                await self._write_conditions(item, self.service.memory, override)
            return
        wanted = {view.name: revision(cluster, view.pool) for view in nodes.node_views(self.service)}
        pods = self.pods()
        runs = {name: pod["metadata"].get("annotations", {}).get(Annotation.REVISION.value, "")
                for name, pod in pods.items()}
        old = sorted(name for name, pod_revision in runs.items() if name in wanted and pod_revision != wanted[name])
        blocked: Condition = (
            (T.UPGRADE_BLOCKED, True, R.NOT_SUPPORTED,
             f"{len(old)} pods run an older template; each takes the new one when it is deleted.")
            if old else (T.UPGRADE_BLOCKED, False, R.NOT_UPGRADING, ""))
        self.service.memory.override("TidemarkCluster", self.name, [*override, blocked])
        for shown in self.service.show("TidemarkCluster", self.name) or ():
            status = shown["status"]
            status["nodeSummary"]["updated"] = len(runs) - len(old)
            if not old:
                status["version"] = cluster.spec["version"]
            target = revision(cluster, cluster.spec["nodePools"][0]["name"])
            await self._writer.write(
                self._caches["TidemarkCluster"], item,
                on_kubernetes(status, pods, self.namespace, self.name, target, runs))

    async def _show_kind(self, kind: str) -> None:
        shown = {item["metadata"]["name"]: item["status"] for item in self.service.show(kind, "") or ()}
        for item in self._of(kind):
            name = item["metadata"]["name"]
            if name in shown:
                await self._writer.write(self._caches[kind], item, shown[name])
            elif conditions := self._instead(item):
                await self._write_conditions(item, self.service.memory, conditions)
            elif kind == "Reconfiguration" and (refused := self._refused.get((kind, name))):
                await self._write_conditions(item, self.service.memory, rejected(refused))
        if kind == "Reconfiguration":
            await self._project_reconfigurations(shown)

    async def _project_reconfigurations(self, shown: Mapping[str, Any]) -> None:
        """What the operator itself asked for is shown as an object too."""
        cache = self._caches["Reconfiguration"]
        for name in shown:
            manifest = self.service.mirror.reconfigurations[name].value.manifest
            kept = self.service.mirror.reconfigurations[name].value.kept
            if not kept and cache.get(self.namespace, name) is None:
                metadata = {"name": name, "namespace": self.namespace, "labels": manifest["metadata"].get("labels", {})}
                try:
                    cache.learn(await self._api.create({**manifest, "metadata": metadata}))
                except KubeRefused as refused:
                    if refused.code != 409:
                        raise

    async def _show_shards(self) -> None:
        cache, known = self._caches["Shard"], self._owned("Shard")
        for item in known.values():
            self._remember(item)
        for shard in self.service.show("Shard", "") or ():
            metadata = shard["metadata"]
            group = self._caches["LogGroup"].get(self.namespace, metadata["labels"][Label.LOG_GROUP])
            projection = group is not None and group["spec"].get("shardProjection", "Full") == "Full"
            item = known.get(metadata["name"])
            if group is None or not projection or "deletionTimestamp" in group["metadata"]:
                continue
            if item is None:
                owner = {"apiVersion": group["apiVersion"], "kind": "LogGroup", "name": group["metadata"]["name"],
                         "uid": group["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
                kept = {"name": metadata["name"], "namespace": self.namespace, "ownerReferences": [owner],
                        "labels": {**metadata["labels"], "app.kubernetes.io/managed-by": MANAGED_BY}}
                item = await self._api.apply({
                    **{name: shard[name] for name in ("apiVersion", "kind", "spec")}, "metadata": kept})
                cache.learn(item)
            await self._writer.write(cache, item, shard["status"])

    def _instead(self, item: Object) -> list[Condition]:
        refused = self._refused.get((item["kind"], item["metadata"]["name"]), "")
        return instead(item["kind"], paused=paused(item), refused=refused)

    def _of(self, kind: str) -> list[Object]:
        if kind == "TidemarkCluster":
            return [self.item] if self.item is not None else []
        return [
            item for item in self._caches[kind]
            if item["metadata"]["namespace"] == self.namespace and item["spec"]["clusterRef"]["name"] == self.name]

    def _remember(self, item: Object) -> None:
        """Take over since when conditions hold, once."""
        key = item["kind"], item["metadata"]["uid"]
        if key not in self._remembered:
            self._remembered.add(key)
            self.service.memory.learn(
                item["kind"], item["metadata"]["name"], item.get("status", {}).get("conditions", ()))

    async def _write_conditions(self, item: Object, memory: ConditionMemory, conditions: list[Condition]) -> None:
        await write_conditions(self._writer, self._caches[item["kind"]], item, memory, conditions)


async def write_conditions(
    writer: StatusWriter, cache: Cache, item: Object, memory: ConditionMemory, conditions: list[Condition],
) -> None:
    """Say of an object that is not in any store no more than its conditions."""
    metadata = item["metadata"]
    await writer.write(cache, item, {
        "observedGeneration": metadata["generation"],
        "conditions": memory.write(item["kind"], metadata["name"], metadata["generation"], conditions)})


async def show_alone(writer: StatusWriter, cache: Cache, item: Object, refused: str = "") -> None:
    """Say of an object that no cluster runs for why that is; of one in a cluster, that it is not there."""
    memory = ConditionMemory()
    memory.learn(item["kind"], item["metadata"]["name"], item.get("status", {}).get("conditions", ()))
    kind = item["kind"]
    conditions = (
        instead(kind, paused=False, refused=refused) if refused
        else rejected(NO_CLUSTER) if kind == "Reconfiguration" else orphan())
    await write_conditions(writer, cache, item, memory, conditions)


assert set(OBJECT_KINDS) < set(CUSTOM)
