"""KubernetesOperator: one process for the clusters of some namespaces.

Events and pokes become keys of one queue; what to do about a key is here, one method each.
Stays out: doing it (`run`), flags (`main`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from kubernetes.aio.client import Configuration
from prometheus_client import REGISTRY
from tidemark_wire.tasks import background, cancelled

from ..detector import LoopLateness
from ..etcd import StoreUnavailable
from ..resources.events import EventReason
from ..resources.kinds import IN_CLUSTERS
from ..resources.labels import MANAGED_BY, Label
from . import etcd_secrets
from .api import (
    BUDGETS,
    CLAIMS,
    CUSTOM,
    EVERYWHERE,
    MACHINES,
    MONITORS,
    NETWORK_POLICIES,
    PODS,
    SECRETS,
    SERVICES,
    Kind,
    KubeApi,
    KubeError,
    Object,
    load_configuration,
)
from .cache import Cache, name_of
from .certificates import OVERLAP
from .etcd_secrets import IN_THE_CLEAR, EtcdSecrets
from .events import EventWriter
from .finalizers import set_data_finalizer
from .handlers import KINDS
from .health import LOOP_LAG
from .images import OWN_IMAGES, Images
from .informers import Informer
from .kopf_thread import KopfThread
from .object_metrics import ObjectMetrics
from .occurrences import occurrences
from .queue import Key, KeyedQueue, Later
from .run import ClusterRun
from .showing import show_alone
from .specs import cluster_of, invalid, store_of
from .statuses import StatusWriter

log = logging.getLogger(__name__)

OWNED = (PODS, CLAIMS, SERVICES, SECRETS, BUDGETS, NETWORK_POLICIES, CUSTOM["Shard"])
OWNED_LABELS = f"app.kubernetes.io/managed-by={MANAGED_BY}"
RESYNC_S = 120.0
SPREAD_S = 60.0
"""Over how long a look at everything is spread while nothing is wrong: fifty clusters at once are seconds of work."""
SHOW_S = 0.2
"""How long what happens is gathered before it is shown."""


class KubernetesOperator:
    """Watches `namespaces`, or EVERYWHERE; runs every TidemarkCluster in them."""

    def __init__(
        self, configuration: Configuration, namespaces: Sequence[str], images: Images = OWN_IMAGES,
        ca_overlap: timedelta = OVERLAP,
    ) -> None:
        self._images = images
        self._ca_overlap = ca_overlap
        self._namespaces = list(namespaces)
        self._api = KubeApi(configuration)
        self._caches = {kind.kind: Cache() for kind in (*OWNED, MONITORS, MACHINES, *KINDS)}
        self._object_metrics = ObjectMetrics(self._caches)
        self._lateness = LoopLateness()
        self._events = EventWriter(self._api)
        self._writer = StatusWriter(self._api, told=self._tell)
        self._runs: dict[tuple[str, str], ClusterRun] = {}
        self._queue = KeyedQueue(self._work, expected=(KubeError, StoreUnavailable))
        self._kopf = KopfThread(self._seen, configuration, namespaces)
        self._informers = [
            Informer(
                self._api, kind, namespace, OWNED_LABELS, self._caches[kind.kind], self._owned_changed,
                optional=kind is MONITORS)
            for kind in (*OWNED, MONITORS) for namespace in namespaces]
        self._informers.append(
            Informer(self._api, MACHINES, "", "", self._caches[MACHINES.kind], self._machine_changed))
        self._tasks: list[asyncio.Task[Any]] = []
        self._acted_on: dict[tuple[str, str, str], Object | None] = {}
        self._machines: dict[str, Object] = {}  # what matters of each, as it was acted on last
        self._looked: set[str] = set()  # namespaces whose objects were listed once

    # --- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        REGISTRY.register(self._object_metrics)
        self._queue.start()
        self._lateness.start()
        LOOP_LAG.set_function(lambda: self._lateness.worst_ms_since(time.monotonic() - 30) / 1000)
        self._tasks = [background(informer.run(), "an informer") for informer in self._informers]
        self._tasks.append(background(self._resync(), "looking at everything again"))
        self._tasks.append(background(self._events.run(), "events"))
        self._kopf.start()

    async def stop(self) -> None:
        REGISTRY.unregister(self._object_metrics)
        await self._kopf.stop()
        await cancelled(*self._tasks)
        await self._queue.stop()
        await asyncio.gather(*(run.stop() for run in self._runs.values()))
        await self._lateness.stop()
        await self._api.close()

    def not_ready(self) -> str:
        """Return why this operator cannot act yet, or nothing."""
        unseen = [namespace or "any namespace" for namespace in self._namespaces if namespace not in self._looked]
        unseen += [kind.plural for kind in OWNED if not self._caches[kind.kind].complete]
        return f"not seen yet: {', '.join(unseen)}" if unseen else ""

    # --- what happens ---------------------------------------------------------------------------------------

    def _seen(self, kind: Kind, what: str, item: Object) -> None:
        """An event of one of our kinds."""
        cache = self._caches[kind.kind]
        item = {"apiVersion": kind.api_version, "kind": kind.kind, **item}
        if what == "DELETED":
            if cache.forget(item):
                self._writer.forget(item)
        else:
            cache.learn(item)
        self._judge(kind, item)

    def _judge(self, kind: Kind, item: Object) -> None:
        """Look whether what is known of an object by now, whoever told it, is other than what was acted on last."""
        key = (kind.kind, *name_of(item))
        known = self._caches[kind.kind].get(*name_of(item))
        written = _without_status(known) if known is not None else None
        if written != self._acted_on.get(key):
            self._acted_on[key] = written
            if written is None:
                del self._acted_on[key]
            self._changed(kind, item)

    def _changed(self, kind: Kind, item: Object) -> None:
        namespace, name = name_of(item)
        if kind.kind == "TidemarkCluster":
            self._queue.add(("cluster", namespace, name))
        else:
            self._queue.add(("object", namespace, name, kind.kind))

    def _owned_changed(self, item: Object) -> None:
        namespace, cluster = item["metadata"]["namespace"], item["metadata"].get("labels", {}).get(Label.CLUSTER.value)
        if (namespace, cluster) not in self._runs:
            return
        if item["kind"] == "Pod":
            self._queue.add(("addresses", namespace, cluster))
            self._queue.add_after(("rollout", namespace, cluster), SHOW_S)
        if item["kind"] == "Secret":
            self._runs[namespace, cluster].certificates_changed()
        if item["kind"] != "Shard":
            self._queue.add(("pods", namespace, cluster))
            self._queue.add_after(("lives", namespace, cluster), SHOW_S)
        self._queue.add_after(("show", namespace, cluster), SHOW_S)

    def _machine_changed(self, machine: Object) -> None:
        """A machine of Kubernetes came, went, or is another one: any cluster may have a node on it.

        What it says of its health every few minutes means nothing to us.
        """
        _namespace, machine_name = name_of(machine)
        known = self._caches[MACHINES.kind].get("", machine_name)
        before = self._machines.pop(machine_name, None)
        now = {"labels": known["metadata"].get("labels"), "spec": known.get("spec")} if known is not None else None
        if now is not None:
            self._machines[machine_name] = now
        if now == before:
            return
        for namespace, name in self._runs:
            for what in ("addresses", "lives", "pods", "rollout", "show"):
                self._queue.add_after((what, namespace, name), SHOW_S)

    def _run_changed(self, namespace: str, name: str) -> None:
        run = self._runs.get((namespace, name))
        if run is None:
            return
        if run.became_active():
            log.info("cluster %s/%s: this operator is the active one", namespace, name)
            run.certificates_changed()
            self._queue.add(("cluster", namespace, name))
            self._queue.add(("strays", namespace, name))
            for kind in IN_CLUSTERS:
                for item in run.of(kind):
                    self._changed(CUSTOM[kind], item)
        for what in ("lives", "pods", "rollout", "show"):
            self._queue.add_after((what, namespace, name), SHOW_S)
        for kind, ending in run.ending():
            self._queue.add_after(("object", namespace, ending, kind), SHOW_S)

    def _tell(self, item: Object, status: Object, repaired: bool) -> None:
        """A status was written: tell what happened."""
        if repaired and item["kind"] == "Shard":
            self._events.tell(item, EventReason.PROJECTION_REPAIRED, "Its status was not what the metadata store says.")
            return
        for each in occurrences(item["kind"], item.get("status") or {}, status):
            pod = self._caches["Pod"].get(item["metadata"]["namespace"], each.node) if each.node else None
            if each.reason is EventReason.NODE_UNREACHABLE and pod and "deletionTimestamp" in pod["metadata"]:
                continue  # it was sent away
            self._events.tell(item, each.reason, each.note, related=pod, times=each.times)

    async def _resync(self) -> None:
        """Look at all objects of people from time to time: an event may have been lost, a watch may be dead."""
        delay_s, spread_s = 0.0, 0.0
        while True:
            await asyncio.sleep(delay_s)
            try:
                for namespace in self._namespaces:
                    await self._look(namespace, spread_s)
                spread_s = SPREAD_S
                delay_s = RESYNC_S * random.uniform(0.8, 1.2)  # noqa: S311 - no secret
            except KubeError as error:
                log.warning("objects are not listed: %s", error)
                delay_s, spread_s = 2.0, 0.0

    async def _look(self, namespace: str, spread_s: float) -> None:
        for kind in KINDS:
            items, version = await self._api.list(kind, namespace)
            for item in [*self._caches[kind.kind].replace(namespace, items, int(version)), *items]:
                self._judge(kind, item)
        self._looked.add(namespace)
        runs = [run for run in self._runs if namespace in (EVERYWHERE, run[0])]
        for number, (where, name) in enumerate(runs):
            for what in ("strays", "cluster", "lives", "pods", "addresses", "rollout"):  # "lives" ends in "show"
                self._queue.add_after((what, where, name), spread_s * number / len(runs))

    # --- what is done about it ------------------------------------------------------------------------------

    async def _work(self, key: Key) -> None:
        what, namespace, name, *rest = key
        if what == "cluster":
            await self._cluster(namespace, name)
        elif what == "object":
            await self._object(namespace, name, *rest)
        elif (run := self._runs.get((namespace, name))) is not None and not self.not_ready():
            match what:
                case "addresses":
                    await run.save_places()
                case "pods":
                    await run.keeping.keep_pods()
                case "lives":
                    again_s = await run.keeping.look_at_lives()
                    self._queue.add_after(("show", namespace, name), SHOW_S)
                    if again_s is not None:
                        self._queue.add_after(key, max(SHOW_S, again_s))
                case "rollout":
                    news, again_s = await run.roll()
                    if news:
                        self._queue.add_after(("show", namespace, name), SHOW_S)
                    if again_s is not None:
                        self._queue.add_after(key, again_s)
                case "show":
                    await run.show()
                case "strays" if run.service.active:
                    run.service.poke()  # what finished long ago is removed by a look, and at rest nobody looks
                    for kind, stray in run.strays():
                        self._queue.add(("object", namespace, stray, kind))

    async def _cluster(self, namespace: str, name: str) -> None:
        item = self._caches["TidemarkCluster"].get(namespace, name)
        run = self._runs.get((namespace, name))
        why, secrets = await self._etcd_secrets(item) if item is not None else ("", IN_THE_CLEAR)
        if run is not None and (item is None or (not why and store_of(item) != run.store)):
            log.info("cluster %s/%s is let go of", namespace, name)
            del self._runs[namespace, name]
            await run.stop()
            run = None
        if item is None:
            return
        has_tls: bool | None = None
        if run is not None and (other := run.other_tls(item)) is not None:
            log.info("cluster %s/%s: begun again, %s TLS", namespace, name, "with" if other else "without")
            has_tls = other
            del self._runs[namespace, name]
            await run.stop()
            run = None
        if run is None and why:
            await show_alone(self._writer, self._caches["TidemarkCluster"], item, why)
            if not invalid(item):
                raise Later(why)  # nobody tells of the Secrets of people
            return
        if run is None:
            run = ClusterRun(
                item, self._api, self._caches, self._writer, self._events,
                lambda: self._run_changed(namespace, name), self._images, self._lateness,
                tls=has_tls, overlap=self._ca_overlap, etcd=secrets)
            self._runs[namespace, name] = run
            await run.start()
            return  # it says when it is active
        if why:
            log.warning("cluster %s/%s goes on as before: %s", namespace, name, why)
        elif run.service.store.use(secrets.tls, secrets.login):
            log.info("cluster %s/%s: the Secrets of its etcd were replaced", namespace, name)
        if run.service.active and await run.accept(item):
            for what in ("lives", "pods", "addresses", "rollout"):
                self._queue.add((what, namespace, name))

    async def _etcd_secrets(self, item: Object) -> tuple[str, EtcdSecrets]:
        """Return why a cluster's etcd cannot be spoken to, and how it can.  Raises KubeError."""
        if refused := invalid(item):
            return refused, IN_THE_CLEAR
        try:
            return "", await etcd_secrets.read(self._api, item)
        except etcd_secrets.Unusable as unusable:
            return unusable.refusal, IN_THE_CLEAR

    async def _object(self, namespace: str, name: str, kind: str) -> None:
        item = self._caches[kind].get(namespace, name)
        if item is None:
            for (where, _cluster), each in list(self._runs.items()):
                if where == namespace:
                    await each.let_go(kind, name)
            return
        cluster = cluster_of(item)
        run = self._runs.get((namespace, cluster))
        if run is not None:
            if run.service.active:
                await run.accept(item)
                run.certificates_changed()  # a group may name other clients
        elif not self.not_ready() and self._caches["TidemarkCluster"].get(namespace, cluster) is None:
            if "deletionTimestamp" in item["metadata"]:  # nobody is left who could delete any data
                await set_data_finalizer(self._api, self._caches[kind], item, False)
            await show_alone(self._writer, self._caches[kind], item, invalid(item))


def _without_status(item: Object) -> Object:
    metadata = {
        name: value for name, value in item["metadata"].items() if name not in ("resourceVersion", "managedFields")}
    return {"spec": item.get("spec"), "metadata": metadata}


async def start(
    namespaces: Sequence[str], kubeconfig: Path | None, images: Images, ca_overlap: timedelta,
) -> KubernetesOperator:
    """Start an operator.  Raises ValueError where no API server is known."""
    made = KubernetesOperator(await load_configuration(kubeconfig), namespaces, images, ca_overlap)
    await made.start()
    return made
