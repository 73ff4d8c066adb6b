"""Keeping: has the nodes of one cluster be there, go and be replaced, pass by pass.

Looks at everything as it is now, has pure plans decide (`lives`, `losses`, `podkeeper`), and carries out what is due.
Pods and claims need the API server alone.
Stays out: which nodes should go (`lives`), what is shown of it (`showing`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..metadata import NodeLife
from ..model import unheard_though_up
from ..resources.events import RestartReason
from ..resources.labels import Annotation
from . import acts, drains, lives, losses, nodes, podkeeper
from .api import CUSTOM, MACHINES, STORAGE_CLASSES, VOLUMES, Kind, KubeApi, KubeRefused, Object
from .builders import Cluster, NodeView, claim_name, node_claim, secret_name
from .specs import paused

if TYPE_CHECKING:
    from .run import ClusterRun

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 30.0


class Keeping:
    """What one cluster needs for its nodes; only while its operator is the active one."""

    def __init__(self, run: ClusterRun, api: KubeApi) -> None:
        self._run = run
        self._api = api
        self._losses = losses.Losses()
        self._volumes: dict[str, Object | None] = {}
        self._classes: dict[str, bool] = {}
        self._told: set[str] = set()
        self.lost: dict[str, str] = {}
        self.wanted: lives.Wanted | None = None

    # --- node records ---------------------------------------------------------------------------------------

    async def look_at_lives(self) -> float | None:
        """Make, mark, ask for and forget nodes; return when to look again at the latest.

        Raises StoreUnavailable, KubeError.
        """
        cluster, service = self._run.accepted(), self._run.service
        if cluster is None or not service.active or self._rests():
            return None
        again_s = await self._look_for_losses(cluster)
        records = service.node_records
        if nodes.missing_nodes(cluster.spec["nodePools"], service.mirror.nodes.values()):
            made = await records.make(lambda known: nodes.missing_nodes(cluster.spec["nodePools"], known))
            if made:
                log.info("new nodes: %s", ", ".join(made))
        stored = service.mirror.cluster
        assert stored is not None, "an accepted cluster is stored"
        self.wanted = wanted = lives.decide(lives.Facts(
            cluster, stored.value.generation, list(service.mirror.nodes.values()), service.whole_world(),
            [item.value for item in service.mirror.reconfigurations.values()], self.lost, self._marked()))
        for node in wanted.stay:
            await records.set_life(node, NodeLife.STAYS)
        requests = [(request.name, request.spec) for request in wanted.requests]
        requests += [drains.relocation(node, pod) for node, pod in self._to_relocate(cluster).items()]
        for name, spec in requests:
            if await service.objects.request(name, spec):
                log.info("asked for %s: %s", name, spec["reason"])
        for name in wanted.cancel:
            if self._run.caches["Reconfiguration"].get(self._run.namespace, name) is not None:
                log.info("%s is canceled: its node is wanted again", name)
                await self._api.merge(
                    CUSTOM["Reconfiguration"], self._run.namespace, name, {"spec": {"cancel": True}})
        for node in podkeeper.ended(cluster, nodes.node_views(service), self._live()):
            await records.forget(node)
        return again_s

    def _marked(self) -> list[str]:
        return sorted(
            name for name, pod in self._run.pods().items()
            if pod["metadata"].get("annotations", {}).get(Annotation.DELETE_NODE.value) == "true")

    def _rests(self) -> bool:
        item = self._run.item
        return item is None or paused(item)

    # --- lost nodes -----------------------------------------------------------------------------------------

    async def _look_for_losses(self, cluster: Cluster) -> float | None:
        """Find nodes whose disk went with its machine; return when the next one is due."""
        machines = self._run.caches[MACHINES.kind]
        if not machines.complete:
            return None
        claims = self._run.owned("PersistentVolumeClaim")
        suspects = losses.suspects(
            self._run.service.mirror.nodes, self._run.service.world().nodes, self._run.pods(), machines)
        volumes: dict[str, Object] = {}
        for name in suspects:
            volume = await self._volume(claims.get(claim_name(name), {}).get("spec", {}).get("volumeName", ""))
            if volume is not None:
                volumes[name] = volume
        gone = {
            name: machine for name, volume in volumes.items() if (machine := losses.gone_machine(volume, machines))}
        after_s = float((cluster.spec.get("disruption") or {}).get("nodeLostAfterSeconds", 900))
        now = time.monotonic()
        self._losses.see(gone, now)
        lost = self._losses.lost(now, after_s)
        if lost.keys() - self.lost.keys():  # what a watch told may be old: nobody is given up on hearsay
            fresh, _version = await self._api.list(MACHINES, "")
            lost = {name: machine for name, machine in lost.items() if losses.gone_machine(volumes[name], fresh)}
        for name in lost.keys() - self.lost.keys():
            log.warning("%s is lost: its volume was on %s, which is gone", name, lost[name])
        self.lost = lost
        due_s = self._losses.due_in(now, after_s)
        return LOOK_AGAIN_S if gone and due_s is None else due_s

    async def _volume(self, name: str) -> Object | None:
        if name and self._volumes.get(name) is None:
            self._volumes[name] = await self._read(VOLUMES, name)
        return self._volumes.get(name)

    async def _read(self, kind: Kind, name: str) -> Object | None:
        """Read what lies outside of namespaces; None where that is not allowed, which is told once."""
        try:
            return await self._api.get(kind, "", name)
        except KubeRefused as refused:
            if refused.message not in self._told:
                self._told.add(refused.message)
                log.warning("%s", refused.message)
            return None

    # --- pods and claims ------------------------------------------------------------------------------------

    async def keep_pods(self) -> None:
        """One pass of the pod keeper.  Raises KubeError."""
        cluster = self._run.accepted()
        if cluster is None or self._rests() or not self._run.service.active:
            return
        views = nodes.node_views(self._run.service)
        await self._learn_classes(cluster, views)
        self._want_restarts(views)
        if any(secret_name(cluster.name, "node", view.name) not in self._run.owned("Secret") for view in views):
            self._run.certificates_changed()  # somebody shall hold one who does not yet
        leaving = drains.relocating(cluster.spec, self._run.draining())
        relocated = leaving - self._to_relocate(cluster).keys()
        world = self._run.service.whole_world()
        unheard = any(unheard_though_up(shard, world.nodes) for shard in world.shards.values())
        due = podkeeper.plan(
            cluster, views, self._live(await self._gone_machines()), relocated, unheard=unheard)
        for made in await acts.carry_out(self._api, due):
            self._run.caches[made["kind"]].learn(made)

    def _to_relocate(self, cluster: Cluster) -> dict[str, Object]:
        """Return the pods, by node, whose copies are to be elsewhere before anybody may evict them."""
        draining = self._run.draining()
        leaving = drains.relocating(cluster.spec, draining)
        copies = self._run.service.whole_world().holdings() if leaving else {}
        return {node: draining[node] for node in sorted(leaving) if copies.get(node)}

    def _live(self, gone_machines: frozenset[str] = frozenset()) -> podkeeper.Live:
        return podkeeper.Live(
            self._run.pods(), self._run.owned("PersistentVolumeClaim"), self._run.owned("Service"),
            self._run.owned("PodDisruptionBudget"), self._run.owned("NetworkPolicy"),
            self._run.owned("PodMonitor") if self._run.caches["PodMonitor"].complete else None, gone_machines,
            frozenset(name for name, can_grow in self._classes.items() if can_grow), self._run.owned("Secret"))

    async def _gone_machines(self) -> frozenset[str]:
        """Return the machines that pods are bound to and that are not there, by a look of its own at each."""
        machines = self._run.caches[MACHINES.kind]
        if not machines.complete:
            return frozenset()
        bound = {pod["spec"].get("nodeName", "") for pod in self._run.pods().values()} - {""}
        missing = [name for name in bound if machines.get("", name) is None]
        return frozenset([name for name in missing if await self._api.get(MACHINES, "", name) is None])

    def _want_restarts(self, views: list[NodeView]) -> None:
        """Have nodes restarted whose file system cannot grow while it is in use."""
        claims, now = self._run.owned("PersistentVolumeClaim"), datetime.now(UTC)
        self._run.restarts_wanted = {
            view.name: (RestartReason.VOLUME_RESIZE,) for view in views
            if (claim := claims.get(claim_name(view.name))) is not None and podkeeper.waits_for_restart(claim, now)}

    # --- volumes --------------------------------------------------------------------------------------------

    def growing(self, cluster: Cluster, views: list[NodeView]) -> dict[str, Object]:
        """Return the claims that are to grow and do not ask for it yet, by name."""
        return {
            name: claim for name, wanted, claim in self._claims(cluster, views) if podkeeper.grows(wanted, claim)}

    def stuck_volumes(self, cluster: Cluster, views: list[NodeView]) -> list[str]:
        """Return the claims that cannot grow because their storage class does not let them."""
        return [
            name for name, claim in self.growing(cluster, views).items()
            if not self._classes.get(claim["spec"].get("storageClassName", ""), True)]

    def resizing(self, cluster: Cluster, views: list[NodeView]) -> list[str]:
        """Return the claims whose volume is smaller than is wanted."""
        return [name for name, wanted, claim in self._claims(cluster, views) if podkeeper.is_smaller(wanted, claim)]

    def _claims(self, cluster: Cluster, views: list[NodeView]) -> Iterator[tuple[str, Object, Object]]:
        """Yield the claims of nodes that stay: name, what they should be, what they are."""
        claims = self._run.owned("PersistentVolumeClaim")
        for view in views:
            claim = claims.get(claim_name(view.name))
            if claim is not None and not view.removed and cluster.pool(view.pool) is not None:
                yield claim_name(view.name), node_claim(cluster, view), claim

    async def _learn_classes(self, cluster: Cluster, views: list[NodeView]) -> None:
        """Look whether the classes of volumes that are to grow let them; a class may be changed."""
        names = {claim["spec"].get("storageClassName", "") for claim in self.growing(cluster, views).values()} - {""}
        for name in sorted(names):
            if not self._classes.get(name, False):
                found = await self._read(STORAGE_CLASSES, name)
                if found is not None:
                    self._classes[name] = bool(found.get("allowVolumeExpansion", False))
