"""Showing: gathers the facts that only Kubernetes has, and writes the statuses of one cluster's objects and pods.

Stays out: computing a status (`status`), writing only what changed (`statuses`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..certificates.keeper import now_utc
from ..condition_memory import ConditionMemory
from ..resources.conditions import ConditionType as T
from ..resources.events import EventReason
from ..resources.kinds import IN_CLUSTERS
from ..resources.labels import MANAGED_BY, Annotation, Label
from ..status.kubernetes import IssuanceFacts, KubernetesFacts
from ..status.standing import AbsentFacts, Standing, absent_status
from . import nodes
from .api import KubeApi, KubeRefused, Object
from .builders import NODE_PORT, Cluster, nodes_name, revision, uses_tls
from .cache import Cache
from .health import PROJECTION_LAG
from .occurrences import LEADERLESS_S, leaderless_since
from .specs import paused
from .statuses import StatusWriter

if TYPE_CHECKING:
    from ..service import OperatorService
    from .run import ClusterRun


class Showing:
    """Call `show` when something changed; only the active operator of a cluster writes."""

    def __init__(self, run: ClusterRun, api: KubeApi, writer: StatusWriter) -> None:
        self._run = run
        self._api = api
        self._writer = writer
        self._remembered: set[tuple[str, str]] = set()
        self._leaderless: dict[str, tuple[datetime, asyncio.TimerHandle]] = {}  # log groups, and since when
        self._lag = PROJECTION_LAG.labels(run.namespace, run.name)

    def close(self) -> None:
        for _since, timer in self._leaderless.values():
            timer.cancel()
        PROJECTION_LAG.remove(self._run.namespace, self._run.name)

    async def show(self) -> None:
        """Write every status that changed.  Raises KubeError."""
        if not self._run.service.active:
            await self._show_waiting()
            return
        if not self._run.service.knows_its_nodes():
            return  # it says when it does; until then every node would be shown as down
        for kind in ("TidemarkCluster", *IN_CLUSTERS):
            for item in self._run.of(kind):
                self._remember(item)
                self._run.service.standing[kind, item["metadata"]["name"]] = self._standing(item)
        await self._show_pods()
        await self._show_shards()  # who sees a group ready finds its shards
        for kind in IN_CLUSTERS:
            await self._show_kind(kind)
        await self._show_cluster()
        for group in self._run.of("LogGroup"):
            self._watch_leaders(group["metadata"]["name"], leaderless_since(group.get("status", {})))

    def _watch_leaders(self, group: str, since: datetime | None) -> None:
        """Have people told once of shards that are without a leader for long; nothing else may happen until then."""
        known = self._leaderless.get(group)
        if known is not None and known[0] != since:
            known[1].cancel()
            del self._leaderless[group]
        if since is not None and group not in self._leaderless:
            left_s = LEADERLESS_S - (datetime.now(UTC) - since).total_seconds()
            timer = asyncio.get_running_loop().call_later(max(0.0, left_s), self._tell_leaderless, group)
            self._leaderless[group] = since, timer

    def _tell_leaderless(self, group: str) -> None:
        item = self._run.caches["LogGroup"].get(self._run.namespace, group)
        if item is not None and self._run.service.active:
            count = item.get("status", {}).get("shards", {}).get("leaderless", 0)
            note = f"{count} shards have no leader for {LEADERLESS_S:.0f} s."
            self._run.tell(EventReason.SHARD_LEADERLESS, note, kind="LogGroup", name=group)

    async def _show_waiting(self) -> None:
        """While etcd was never reached nobody is active, and somebody should say so."""
        item = self._run.item
        store, standstill = self._run.service.store, self._run.service.standstill
        if item is None:
            return
        reachable = _condition(item, T.METADATA_STORE_REACHABLE)
        if standstill is not None:
            if reachable.get("reason") != standstill.reason:
                await self._write_absent(item, AbsentFacts(item["kind"], standstill=standstill))
            return
        if not store.last_error or self._run.service.mirror.loaded:
            return  # what was not tried yet may well answer
        if reachable.get("status") != "False":
            await self._write_absent(item, AbsentFacts(item["kind"], unreachable=store.last_error))

    async def _show_pods(self) -> None:
        world = self._run.service.world()
        behind = {
            member.node for shard in world.shards.values() for member in shard.members
            if (node := world.nodes.get(member.node)) is None or not node.up or node.member != member}
        for name, pod in self._run.pods().items():
            node = world.nodes.get(name)
            if node is not None and "deletionTimestamp" not in pod["metadata"]:
                await self._writer.write_gate(self._run.caches["Pod"], pod, node.up and name not in behind)

    async def _show_cluster(self) -> None:
        item, cluster = self._run.item, self._run.accepted()
        self._run.service.kubernetes = None
        if item is None:
            return
        if cluster is None:
            await self._write_absent(item, AbsentFacts(item["kind"], self._standing(item)))
            return
        facts = kubernetes_facts(self._run, item, cluster)
        if facts.outdated and facts.rollout is None and self._run.service.active:
            return   # an operator that has just taken over would call a rollout over that it has not looked at
        self._run.service.kubernetes = facts
        for shown in self._run.service.show(item["kind"], self._run.name) or ():
            await self._writer.write(self._run.caches[item["kind"]], item, shown["status"])

    async def _show_kind(self, kind: str) -> None:
        shown = {item["metadata"]["name"]: item["status"] for item in self._run.service.show(kind, "") or ()}
        if kind == "Reconfiguration":
            await self._project_reconfigurations(shown)
        for item in self._run.of(kind):
            name = item["metadata"]["name"]
            status = shown.get(name)
            if status is not None:
                await self._writer.write(self._run.caches[kind], item, status)
            else:
                await self._write_absent(item, AbsentFacts(kind, self._standing(item), deleting=self._deleting(item)))

    def _deleting(self, item: Object) -> str | None:
        """Return which data of an object is still to be deleted, None where none is."""
        kind, name = item["kind"], item["metadata"]["name"]
        if (kind, name) not in self._run.ending():
            return None
        stored, service = self._run.service.mirror.known(kind, name), self._run.service
        left = service.keyspace_deletion.left if kind == "Keyspace" else service.data_deletion.left
        return left(stored.value) if stored is not None else ""

    async def _project_reconfigurations(self, shown: Mapping[str, Any]) -> None:
        """What the operator itself asked for is shown as an object too."""
        cache = self._run.caches["Reconfiguration"]
        for name in shown:
            stored = self._run.service.mirror.reconfigurations.get(name)
            if stored is not None and not stored.value.kept and cache.get(self._run.namespace, name) is None:
                labels = stored.value.manifest["metadata"].get("labels", {})
                metadata = {"name": name, "namespace": self._run.namespace, "labels": labels}
                try:
                    cache.learn(await self._api.create({**stored.value.manifest, "metadata": metadata}))
                except KubeRefused as refused:
                    if refused.code != 409:
                        raise

    async def _show_shards(self) -> None:
        cache, known = self._run.caches["Shard"], self._run.owned("Shard")
        for one in known.values():
            self._remember(one)
        later: list[tuple[Object, Object]] = []
        shards = self._run.service.show("Shard", "") or ()
        self._lag.set(max((_behind(known.get(shard["metadata"]["name"]), shard) for shard in shards), default=0))
        for shard in shards:
            metadata = shard["metadata"]
            group = self._run.caches["LogGroup"].get(self._run.namespace, metadata["labels"][Label.LOG_GROUP])
            projection = group is not None and group["spec"].get("shardProjection", "Full") == "Full"
            item = known.get(metadata["name"])
            if group is None or not projection or "deletionTimestamp" in group["metadata"]:
                continue
            if item is None:
                owner = {"apiVersion": group["apiVersion"], "kind": "LogGroup", "name": group["metadata"]["name"],
                         "uid": group["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
                kept = {"name": metadata["name"], "namespace": self._run.namespace, "ownerReferences": [owner],
                        "labels": {**metadata["labels"], "app.kubernetes.io/managed-by": MANAGED_BY}}
                item = await self._api.apply({
                    **{name: shard[name] for name in ("apiVersion", "kind", "spec")}, "metadata": kept})
                cache.learn(item)
            if _urgent(item.get("status", {}), shard["status"]):
                await self._writer.write(cache, item, shard["status"], urgent=True)
            else:
                later.append((item, shard["status"]))
        for item, status in later:
            await self._writer.write(cache, item, status)
        self._lag.set(0)

    def _standing(self, item: Object) -> Standing:
        stalled = _condition(item, T.STALLED)
        since = stalled["lastTransitionTime"] if stalled.get("status") == "True" else ""
        refused = self._run.refused.get((item["kind"], item["metadata"]["name"]), "")
        return Standing(paused(item), refused, since)

    def _remember(self, item: Object) -> None:
        """Take over since when conditions hold, once."""
        key = item["kind"], item["metadata"]["uid"]
        if key not in self._remembered:
            self._remembered.add(key)
            self._run.service.memory.learn(
                item["kind"], item["metadata"]["name"], item.get("status", {}).get("conditions", ()))

    async def _write_absent(self, item: Object, facts: AbsentFacts) -> None:
        await write_absent(self._writer, self._run.caches[item["kind"]], item, self._run.service.memory, facts)


def _behind(shown: Object | None, shard: Object) -> int:
    """Return how many revisions of etcd lie between what is shown of a shard and what is stored."""
    known = shown.get("status", {}).get("metadataRevision") if shown is not None else None
    return int(shard["status"]["metadataRevision"] - known) if known is not None else 0


def _urgent(before: Object, after: Object) -> bool:
    """Who leads and who belongs to a shard is told before anything else."""
    return any(before.get(field) != after.get(field) for field in ("epoch", "leader", "members"))


def _condition(item: Object, type_: T) -> Object:
    """Return a condition of an object as it is shown, empty where it has none of that type."""
    return next((each for each in item.get("status", {}).get("conditions", ()) if each["type"] == type_.value), {})


def kubernetes_facts(run: ClusterRun, item: Object, cluster: Cluster) -> KubernetesFacts:
    """Return the facts of a cluster that only Kubernetes has."""
    views, pods, keeping = nodes.node_views(run.service), run.pods(), run.keeping
    wanted = {view.name: revision(cluster, view.pool) for view in views}
    revisions = {
        name: pod["metadata"].get("annotations", {}).get(Annotation.REVISION.value, "") for name, pod in pods.items()}
    old = [name for name, found in revisions.items() if name in wanted and found != wanted[name]]
    decided = keeping.wanted
    return KubernetesFacts(
        client_endpoint=f"{run.name}.{run.namespace}.svc:{NODE_PORT}",
        internal_endpoint=f"{nodes_name(run.name)}.{run.namespace}.svc",
        target_revision=revision(cluster, cluster.spec["nodePools"][0]["name"]),
        revisions=revisions,
        machines={name: pod["spec"].get("nodeName", "") for name, pod in pods.items()},
        outdated=len(old),
        version_before=item.get("status", {}).get("version", ""),
        certificates=issuance_facts(cluster.spec, run.service),
        rollout=run.rolling.facts,
        lost=keeping.lost,
        scale_down=decided.scale_down if decided is not None else None,
        scaling=decided.unfinished if decided is not None else None,
        stuck_volumes=tuple(keeping.stuck_volumes(cluster, views)),
        resizing_volumes=tuple(keeping.resizing(cluster, views)),
        disks_before={
            node["name"]: node["incarnation"] for node in item.get("status", {}).get("nodes") or ()
            if node.get("incarnation")},
        unready_pods=tuple(
            view.name for view in views
            if not view.removed and view.name in pods and _condition(pods[view.name], T.READY).get("status") != "True"))


def issuance_facts(spec: Mapping[str, Any], service: OperatorService) -> IssuanceFacts:
    """Return how the certificates of a cluster are."""
    tender = service.certificates
    if not uses_tls(spec) or tender is None:
        return IssuanceFacts(enabled=False)
    reason = tender.validity.reason(now_utc(), service.certificate_policy()) if tender.validity is not None else None
    lack = (tender.lack.reason, tender.lack.message) if tender.lack is not None else None
    return IssuanceFacts(True, reason, lack, tender.trouble)


async def write_absent(
    writer: StatusWriter, cache: Cache, item: Object, memory: ConditionMemory, facts: AbsentFacts,
) -> None:
    """Write the conditions of an object that the store does not hold, if there is anything to say of it."""
    metadata, status = item["metadata"], absent_status(facts)
    if status:
        stamped = memory.stamp(item["kind"], metadata["name"], metadata["generation"], status)
        await writer.write(cache, item, {"observedGeneration": metadata["generation"], **stamped})


async def show_alone(writer: StatusWriter, cache: Cache, item: Object, refused: str = "") -> None:
    """Write why no cluster runs for an object: it is refused, or its cluster does not exist."""
    memory = ConditionMemory()
    memory.learn(item["kind"], item["metadata"]["name"], item.get("status", {}).get("conditions", ()))
    await write_absent(
        writer, cache, item, memory, AbsentFacts(item["kind"], Standing(refused=refused), orphan=True))
