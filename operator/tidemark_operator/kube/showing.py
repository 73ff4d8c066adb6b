"""Showing: statuses of one cluster's objects, its Shards and the readiness of its pods, as its operator sees them now.

Stays out: writing only what changed (`statuses`), what a condition means (`status`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ..certificates.keeper import now_utc
from ..condition_memory import Condition, ConditionMemory, some
from ..plan import World
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.events import EventReason
from ..resources.kinds import IN_CLUSTERS
from ..resources.labels import MANAGED_BY, Annotation, Label
from . import nodes
from .api import KubeApi, KubeRefused, Object
from .builders import Cluster, NodeView, revision, uses_tls
from .cache import Cache
from .health import PROJECTION_LAG
from .keeping import Keeping
from .occurrences import LEADERLESS_S, leaderless_since
from .specs import paused
from .statuses import NO_CLUSTER, StatusWriter, instead, on_kubernetes, orphan, rejected, with_refusal

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
                if kind != "Reconfiguration":  # an act goes on as it was accepted
                    self._run.service.memory.override(kind, item["metadata"]["name"], self._instead(item))
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
        store, behind = self._run.service.store, self._run.service.behind
        if item is not None and behind:
            await self._write_behind(item, behind)
            return
        if item is None or not store.last_error or self._run.service.mirror.loaded:
            return  # what was not tried yet may well answer
        known = {each["type"]: each["status"] for each in item.get("status", {}).get("conditions", ())}
        if known.get(T.METADATA_STORE_REACHABLE.value) != "False":
            reason = R.METADATA_STORE_UNREACHABLE
            await self._write_conditions(item, [
                (T.READY, None, reason, ""), (T.AVAILABLE, None, reason, ""),
                (T.METADATA_STORE_REACHABLE, False, R.CONNECTION_FAILED, store.last_error)])

    async def _write_behind(self, item: Object, behind: str) -> None:
        known = {each["type"]: each["reason"] for each in item.get("status", {}).get("conditions", ())}
        if known.get(T.METADATA_STORE_REACHABLE.value) != R.METADATA_STALE:
            await self._write_conditions(item, [
                (T.READY, False, R.STALLED, behind), (T.STALLED, True, R.METADATA_STALE, behind),
                (T.RECONCILING, False, R.METADATA_STALE, ""),
                (T.METADATA_STORE_REACHABLE, False, R.METADATA_STALE, behind)])

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
        if item is None:
            return
        override = self._instead(item)
        if cluster is None:
            if override:
                await self._write_conditions(item, override)
            return
        views = nodes.node_views(self._run.service)
        wanted = {view.name: revision(cluster, view.pool) for view in views}
        pods = self._run.pods()
        runs = {name: pod["metadata"].get("annotations", {}).get(Annotation.REVISION.value, "")
                for name, pod in pods.items()}
        old = sorted(name for name, pod_revision in runs.items() if name in wanted and pod_revision != wanted[name])
        keeping, rolling = self._run.keeping, self._run.rolling
        if old and rolling.conditions is None and self._run.service.active:
            return   # an operator that has just taken over would call a rollout over that it has not looked at
        lives, self._run.service.unfinished = nodes_conditions(
            keeping, cluster, views, self._run.service.world())
        certificates = certificates_valid(cluster.spec, self._run.service)
        said = [*override]  # what stands first counts
        for one in (*lives, *(rolling.conditions or ()), certificates, (T.UPGRADE_BLOCKED, False, R.NOT_UPGRADING, "")):
            if one[0] not in {other[0] for other in said}:
                said.append(one)
        self._run.service.memory.override("TidemarkCluster", self._run.name, said)
        for shown in self._run.service.show("TidemarkCluster", self._run.name) or ():
            status = shown["status"]
            status["nodeSummary"]["updated"] = len(runs) - len(old)
            before = item.get("status", {}).get("version")
            status["version"] = before if old and before else cluster.spec["version"]
            target = revision(cluster, cluster.spec["nodePools"][0]["name"])
            await self._writer.write(
                self._run.caches["TidemarkCluster"], item,
                on_kubernetes(status, pods, self._run.namespace, self._run.name, target, runs, keeping.lost))

    async def _show_kind(self, kind: str) -> None:
        shown = {item["metadata"]["name"]: item["status"] for item in self._run.service.show(kind, "") or ()}
        if kind == "Reconfiguration":
            await self._project_reconfigurations(shown)
        for item in self._run.of(kind):
            name = item["metadata"]["name"]
            status, refused = shown.get(name), self._run.refused.get((kind, name))
            if status is not None:
                if kind == "Reconfiguration" and refused:
                    status = with_refusal(status, item.get("status", {}), refused)
                await self._writer.write(self._run.caches[kind], item, status)
            elif kind == "LogGroup" and name in self._run.ending():
                stored = self._run.service.mirror.groups.get(name)
                left = self._run.service.data_deletion.left(stored.value) if stored is not None else ""
                await self._write_conditions(item, [
                    (T.READY, False, R.DELETING, left), (T.RECONCILING, True, R.DELETING, ""),
                    (T.STALLED, False, R.PROGRESSING, "")])
            elif conditions := self._instead(item):
                await self._write_conditions(item, conditions)

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

    def _instead(self, item: Object) -> list[Condition]:
        refused = self._run.refused.get((item["kind"], item["metadata"]["name"]), "")
        return instead(item["kind"], paused=paused(item), refused=refused)

    def _remember(self, item: Object) -> None:
        """Take over since when conditions hold, once."""
        key = item["kind"], item["metadata"]["uid"]
        if key not in self._remembered:
            self._remembered.add(key)
            self._run.service.memory.learn(
                item["kind"], item["metadata"]["name"], item.get("status", {}).get("conditions", ()))

    async def _write_conditions(self, item: Object, conditions: list[Condition]) -> None:
        cache = self._run.caches[item["kind"]]
        await write_conditions(self._writer, cache, item, self._run.service.memory, conditions)


def _behind(shown: Object | None, shard: Object) -> int:
    """Return how many revisions of etcd lie between what is shown of a shard and what is stored."""
    known = shown.get("status", {}).get("metadataRevision") if shown is not None else None
    return int(shard["status"]["metadataRevision"] - known) if known is not None else 0


def _urgent(before: Object, after: Object) -> bool:
    """Who leads and who belongs to a shard is told before anything else."""
    return any(before.get(field) != after.get(field) for field in ("epoch", "leader", "members"))


def nodes_conditions(
    keeping: Keeping, cluster: Cluster, views: list[NodeView], world: World,
) -> tuple[list[Condition], tuple[R, str] | None]:
    """Return what nodes that go, are lost or have small volumes mean for a cluster, and what is not in force yet."""
    made: list[Condition] = []
    unfinished = keeping.wanted.unfinished if keeping.wanted is not None else None
    if keeping.wanted is not None:
        made.append(keeping.wanted.blocked)
    copies = world.replicas()
    lost = [node for node in sorted(keeping.lost) if copies[node]]
    if lost:
        made.append((T.FULLY_REPLICATED, False, R.NODE_LOST, some(
            f"{node} was on {keeping.lost[node]}, which is gone" for node in lost)))
    stuck, resizing = keeping.stuck_volumes(cluster, views), keeping.resizing(cluster, views)
    if stuck:
        why = f"{some(stuck)}: the storage class does not let volumes grow"
        made += [(T.READY, False, R.STALLED, why), (T.RECONCILING, False, R.VOLUME_EXPANSION_UNSUPPORTED, ""),
                 (T.STALLED, True, R.VOLUME_EXPANSION_UNSUPPORTED, why)]
    elif resizing:
        unfinished = R.VOLUME_RESIZING, some(resizing)
    return made, unfinished


def certificates_valid(spec: Mapping[str, Any], service: OperatorService) -> Condition:
    """Return what is said of a cluster's certificates."""
    if not uses_tls(spec) or service.certificates is None:
        return T.CERTIFICATES_VALID, True, R.DISABLED, ""
    seen, trouble, lack = service.certificates.validity, service.certificates.trouble, service.certificates.lack
    reason = seen.reason(now_utc(), service.certificate_policy()) if seen is not None else R.ISSUER_NOT_READY
    if lack is not None and reason is not R.EXPIRED:
        reason = lack.reason
    told = "; ".join(each for each in (trouble, lack.message if lack is not None else "") if each)
    if seen is None:
        told = told or "Certificates are being issued."
    return T.CERTIFICATES_VALID, reason is R.ISSUED, reason, told


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
        else rejected(R.CLUSTER_NOT_FOUND, NO_CLUSTER) if kind == "Reconfiguration" else orphan())
    await write_conditions(writer, cache, item, memory, conditions)
