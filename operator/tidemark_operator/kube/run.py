"""ClusterRun: one TidemarkCluster on Kubernetes: its operator service, its specs, its nodes.

The service runs on etcd alone: when the API server is lost it goes on with the specs it knows.  Only the active
operator of a cluster writes anything.
Stays out: when to look (`operator`), pods (`podkeeper`), what is shown (`showing`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from tidemark_core.base.refusals import Refused
from tidemark_wire.tasks import background, cancelled

from ..certificates.subject import Subject
from ..detector import LoopLateness
from ..resources.conditions import ConditionReason
from ..resources.events import EventReason, RestartReason
from ..resources.kinds import IN_CLUSTERS, KINDS, Deletion
from ..resources.labels import Annotation
from ..service import OperatorService
from ..status.standing import Refusal
from . import drains, nodes
from .api import CUSTOM, KubeApi, Object
from .builders import Cluster, uses_tls
from .cache import Cache
from .certificates import OVERLAP, ClusterCertificates, SecretArchive, subjects
from .etcd_secrets import IN_THE_CLEAR, EtcdSecrets
from .events import EventWriter
from .finalizers import has_data_finalizer, set_data_finalizer
from .health import ACTIVE
from .images import OWN_IMAGES, Images
from .keeping import Keeping
from .queue import Later
from .rolling import Rolling
from .rollout import moment
from .showing import Showing
from .specs import cluster_of, identity, invalid, paused, store_of, unsupported, written
from .statuses import StatusWriter

log = logging.getLogger(__name__)

DELETED = {
    "LogGroup": "Its data is deleted on every node.",
    "Keyspace": "Its ranges are deleted. Nodes still hold their rows, which no keyspace will show again."}
"""The news of each kind whose objects go with their data."""

TLS_STAYS = (
    "security.tls.mode: a cluster has TLS or none for as long as it lives; delete the TidemarkCluster, whose metadata "
    "and, unless it says otherwise, volumes stay, and create it again")


class ClusterRun:
    """Made from a TidemarkCluster; `start` it, and `stop` it when the object or its store is another one."""

    def __init__(
        self, item: Object, api: KubeApi, caches: Mapping[str, Cache], writer: StatusWriter, events: EventWriter,
        changed: Callable[[], None], images: Images = OWN_IMAGES, lateness: LoopLateness | None = None,
        *, tls: bool | None = None, overlap: timedelta = OVERLAP, etcd: EtcdSecrets = IN_THE_CLEAR,
    ) -> None:
        self.namespace, self.name = item["metadata"]["namespace"], item["metadata"]["name"]
        self.store = store_of(item)
        self._api = api
        self.caches = caches
        self._events = events
        self._changed = changed
        self._images = images
        self.refused: dict[tuple[str, str], str] = {}
        self._seen_active = False
        endpoints, prefix = self.store
        tls = uses_tls(item["spec"]) if tls is None else tls
        self.certificates = ClusterCertificates(SecretArchive(
            api, caches["Secret"], self.namespace, self.name, overlap, self.accepted, self._certified)) if tls else None
        self.service = OperatorService(
            endpoints, prefix, self.name, etcd_tls=etcd.tls, etcd_login=etcd.login,
            tls=self.certificates.credentials if self.certificates is not None else None,
            certificates=self.certificates.archive if self.certificates is not None else None, lateness=lateness,
            makes_nodes=True)
        self.service.keeper.on_created = lambda group, shards: self.tell(
            EventReason.SHARDS_CREATED, f"{shards} shards", kind="LogGroup", name=group)
        self.service.on_balanced = lambda note: self.tell(EventReason.LEADERSHIP_BALANCED, note)
        self.restarts_wanted: dict[str, tuple[RestartReason, ...]] = {}
        """Nodes that are to be restarted for other reasons than their pod's template."""
        self.keeping = Keeping(self, api)
        self.rolling = Rolling(self, api)
        self._showing = Showing(self, api, writer)
        self._task: asyncio.Task[None] | None = None

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.became_active()
        await self.service.start()
        self._task = background(self._follow(), f"following {self.namespace}/{self.name}")

    async def stop(self) -> None:
        await cancelled(self._task)
        self._showing.close()
        await self.service.stop()
        ACTIVE.remove(self.namespace, self.name)  # of a cluster that is let go of there is nothing to alert on

    async def _follow(self) -> None:
        news = self.service.add_watcher()
        issuer: Object | None = None
        while True:
            if self.certificates is not None and not self.certificates.taken:
                self.certificates.take()  # who stands by speaks to nodes too
            before, issuer = issuer, self._issuer()
            if issuer != before:
                self.certificates_changed()
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
        return self.caches["TidemarkCluster"].get(self.namespace, self.name)

    def pods(self) -> dict[str, Object]:
        return self.owned("Pod")

    def owned(self, kind: str) -> dict[str, Object]:
        return self.caches[kind].of_cluster(self.namespace, self.name)

    def of(self, kind: str) -> list[Object]:
        """Return the objects of people that belong to this cluster."""
        if kind == "TidemarkCluster":
            return [self.item] if self.item is not None else []
        return [
            item for item in self.caches[kind]
            if item["metadata"]["namespace"] == self.namespace and cluster_of(item) == self.name]

    def tell(self, reason: EventReason, note: str = "", *, pod: str = "", kind: str = "TidemarkCluster",
             name: str = "") -> None:
        """Tell people that something happened which no status shows: of the cluster, else of the object named.

        `pod` is what it is about besides.  Of what is not there nobody is told.
        """
        item = self.caches[kind].get(self.namespace, name or self.name)
        if item is not None:
            related = self.caches["Pod"].get(self.namespace, pod) if pod else None
            self._events.tell(item, reason, note, related=related)

    # --- specs into the store -------------------------------------------------------------------------------

    async def accept(self, item: Object) -> bool:
        """Store a spec, unless it rests, is refused or is over; False when there is nothing to act on.

        Raises Later while this operator is not active, StoreUnavailable, KubeError.
        """
        kind, name = item["kind"], item["metadata"]["name"]
        if self.service.active and self._is_over(item):
            await self._end(item)
            return False
        detaches = KINDS[kind].deletion is Deletion.DETACH
        if detaches and "deletionTimestamp" in item["metadata"]:
            await self._delete_data(item)
            return False
        rests = paused(item)
        if not rests:
            if not self.service.active:
                raise Later(f"the operator of {self.name} is not active")
            if kind != "TidemarkCluster" and self.service.mirror.cluster is None:
                raise Later(f"the cluster {self.name} is not accepted yet")
            why = invalid(item)
            if not why and kind == "TidemarkCluster":
                why = unsupported(item["spec"])
                if not why and (forbidden := self._images.problem(item["spec"])):
                    why = Refusal(forbidden, ConditionReason.IMAGE_NOT_ALLOWED)
                if not why and uses_tls(item["spec"]) is not self.has_tls:
                    why = TLS_STAYS
            goes_with_data = detaches and _wants_deletion(item)
            if not why and goes_with_data:   # before there is data: people may delete the object at once
                await set_data_finalizer(self._api, self.caches[kind], item, True)
            done = await self.service.objects.adopt(written(item), identity(item)) if not why else None
            if isinstance(done, Refused):
                why = done.message
            elif done is not None and not done.endswith("unchanged"):
                log.info("%s", done)
                if done.endswith("adopted"):
                    self.tell(EventReason.ADOPTED, "Its kept data is taken up again.", kind=kind, name=name)
            if why:
                if self.refused.get((kind, name)) != why:
                    log.warning("%s/%s is refused: %s", kind, name, why)
                self.refused[kind, name] = why
            else:
                self.refused.pop((kind, name), None)
                if detaches and not goes_with_data:
                    await set_data_finalizer(self._api, self.caches[kind], item, False)
        self._changed()
        return not rests and (kind, name) not in self.refused

    async def _delete_data(self, item: Object) -> None:
        """An object goes, with its data if that was asked for.  Raises StoreUnavailable, KubeError, Later."""
        kind, name = item["kind"], item["metadata"]["name"]
        if not has_data_finalizer(item):
            return  # somebody else holds it; the rest is done when it is gone
        if not self.service.active:
            raise Later(f"the operator of {self.name} is not active")
        wanted = _wants_deletion(item)
        if not wanted or not await self.service.objects.delete_data(kind, name):
            if wanted:
                self.tell(EventReason.DELETED, DELETED[kind], kind=kind, name=name)
            await set_data_finalizer(self._api, self.caches[kind], item, False)
        self._changed()

    def ending(self) -> list[tuple[str, str]]:
        """Return the objects, by kind and name, whose data is being deleted, or was."""
        return [
            (kind, item["metadata"]["name"]) for kind in DELETED for item in self.of(kind)
            if "deletionTimestamp" in item["metadata"] and has_data_finalizer(item)]

    async def let_go(self, kind: str, name: str) -> None:
        """People deleted an object.  Raises Later while it cannot be let go of, StoreUnavailable."""
        self.refused.pop((kind, name), None)
        self.service.standing.pop((kind, name), None)
        if self.stored(kind, name):
            if not self.service.active:
                raise Later(f"the operator of {self.name} is not active")
            refused = await self.service.objects.let_go(kind, name)
            if refused is not None:
                raise Later(refused.message)
            log.info("%s/%s is let go of", kind, name)

    def stored(self, kind: str, name: str) -> bool:
        """Say whether the store has a living object of that name."""
        known = self.service.mirror.known(kind, name)
        return known is not None and not known.value.detached

    def strays(self) -> list[tuple[str, str]]:
        """Return what the store has and the API server has not: it was deleted while nobody looked."""
        names = [
            (kind, name) for kind in IN_CLUSTERS for name, item in self.service.mirror.objects[kind].items()
            if item.value.kept or not KINDS[kind].operator_creates]
        found = [
            (kind, name) for kind, name in names
            if self.stored(kind, name) and self.caches[kind].get(self.namespace, name) is None]
        over = [item["metadata"]["name"] for item in self.of("Reconfiguration") if self._is_over(item)]
        return found + [("Reconfiguration", name) for name in over]

    def _is_over(self, item: Object) -> bool:
        """Say whether a Reconfiguration has finished and been removed from the store: it must not run again."""
        name, status = item["metadata"]["name"], item.get("status", {})
        return item["kind"] == "Reconfiguration" and status.get("stage") == "Finished" and (
            not self.stored("Reconfiguration", name))

    async def _end(self, item: Object) -> None:
        """Remove the object of what is over, once its time is up.  Raises KubeError."""
        ended = item["status"].get("completionTime")
        wanted_s = (item.get("spec") or {}).get("ttlSecondsAfterFinished")
        ttl = timedelta(seconds=wanted_s if isinstance(wanted_s, int) else 604_800)
        if ended and datetime.now(UTC) - datetime.fromisoformat(ended) > ttl:
            metadata = item["metadata"]
            await self._api.delete(CUSTOM[item["kind"]], self.namespace, metadata["name"], metadata["uid"])

    # --- certificates ---------------------------------------------------------------------------------------

    @property
    def has_tls(self) -> bool:
        return self.certificates is not None

    def other_tls(self, item: Object) -> bool | None:
        """Say whether a cluster runs with TLS, where this run was made for the opposite; None where it fits.

        Pods of one cluster all have TLS or none has, so what it began with counts until it is another object.
        """
        stored = self.service.mirror.cluster
        if stored is None:
            return None
        same = stored.value.uid == item["metadata"]["uid"]
        wanted = uses_tls(stored.value.spec if same else item["spec"])
        return None if wanted is self.has_tls else wanted

    def _issuer(self) -> Object | None:
        """Return what is stored of who issues certificates, and for how long."""
        stored = self.service.mirror.cluster
        return (stored.value.spec.get("security") or {}).get("tls") if stored is not None else None

    def certificates_changed(self) -> None:
        """A Secret was changed, somebody else shall hold one, or somebody else issues."""
        if self.certificates is not None and self.service.certificates is not None:
            self.certificates.take()
            self.service.certificates.poke()

    def _certified(self) -> list[Subject]:
        cluster = self.accepted()
        assert cluster is not None, "the archive has asked"
        access = [group.access for group in self.service.hosted_groups()]
        access += [keyspace.access for keyspace in self.service.keyspaces().values()]
        return subjects(cluster, self.service.mirror.nodes, access)

    # --- nodes ----------------------------------------------------------------------------------------------

    def accepted(self) -> Cluster | None:
        """Return the cluster as it was accepted last, None while it is not there or nothing may be made for it."""
        item, stored = self.item, self.service.mirror.cluster
        if item is None or stored is None or stored.value.name != self.name or "deletionTimestamp" in item["metadata"]:
            return None
        if uses_tls(stored.value.spec) is not self.has_tls:
            return None  # it was there before, and with TLS where this one has none, or without
        asked = item["metadata"].get("annotations", {}).get(Annotation.RESTARTED_AT.value, "")
        asked = asked if moment(asked) is not None else ""
        return Cluster(self.namespace, self.name, item["metadata"]["uid"], stored.value.spec, asked, self._images.nodes)

    def draining(self) -> dict[str, Object]:
        """Return the pods, by node, on machines that are being emptied, as far as machines may be read."""
        cluster = self.accepted()
        return drains.leaving(cluster.spec, self.pods(), self.caches["Node"]) if cluster is not None else {}

    async def save_places(self) -> None:
        """Learn where pods are.  Raises StoreUnavailable."""
        cluster = self.accepted()
        machines = {machine["metadata"]["name"]: machine for machine in self.caches["Node"]}
        moved = nodes.learn_places(self.service, cluster, self.pods().values(), machines) if cluster is not None else []
        if self.service.active:
            for record in moved:
                await self.service.node_records.set_place(record)

    async def roll(self) -> tuple[bool, float | None]:
        """Restart what is to be restarted now; say whether there is news to show, and when to look again at the latest.

        Raises KubeError, StoreUnavailable.
        """
        before = self.rolling.facts
        again_s = await self.rolling.look()
        return before != self.rolling.facts, again_s

    async def show(self) -> None:
        """Write every status that changed.  Raises KubeError."""
        await self._showing.show()


def _wants_deletion(item: Object) -> bool:
    return bool(item["spec"].get("deletionPolicy") == "Delete")
