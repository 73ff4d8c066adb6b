"""The operator itself against a real API server: as processes, under the role that the chart installs for it.

Stays out: what it should do (the tests).
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from pathlib import Path

from tidemark_operator.resources import API_VERSION

from tests.waiting import until

from .client import Kube, Object, condition
from .control_plane import ControlPlane, Etcd
from .helm import Helm
from .processes import Child

ACCOUNT = "system:serviceaccount:tidemark-system:tidemark-operator"
NODE_PORT = 6690
CLUSTERS, GROUPS, KEYSPACES, SHARDS, RECONFIGURATIONS = (f"{plural}.tidemark.dev" for plural in (
    "tidemarkclusters", "loggroups", "keyspaces", "shards", "reconfigurations"))
EVENTS = "events.events.k8s.io"
CLAIMS = "persistentvolumeclaims"
PAUSE = "tidemark.dev/pause-reconciliation"


class Operator(Child):
    """One operator of one namespace."""

    def __init__(self, plane: ControlPlane, namespace: str, address: str, directory: Path, *flags: str) -> None:
        self.http = f"http://{address}:8080"
        super().__init__(
            [sys.executable, "-m", "tidemark_operator", "--kubernetes", f"--namespace={namespace}",
             f"--kubeconfig={plane.kubeconfig(plane.user(ACCOUNT))}", f"--http-listen={address}:8080",
             "--log-format=json", *flags],
            directory / f"operator-{address}.log")

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(self.http + path, timeout=5) as answer:
            return str(answer.read().decode())

    async def metric(self, name: str) -> str:
        """Return what it says of itself under a name and its labels, "" while it does not say or does not answer."""
        try:
            lines = (await asyncio.to_thread(self.ask, "/metrics")).splitlines()
        except OSError:
            return ""
        return next((line.rpartition(" ")[2] for line in lines if line.startswith(name)), "")

    async def follows(self, name: str = "prod") -> None:
        """Wait until it knows a cluster, be it the active one or not."""
        await until(lambda: self.leads(name), f"the operator knows {name}", 60)

    async def leads(self, name: str = "prod") -> str:
        """Return "1.0" of the active operator of a cluster and "0.0" of one that stands by."""
        return await self.metric(f'tidemark_operator_leader{{cluster="{name}"')


class Operators:
    """The operators of a test's namespace; whoever is active can be killed, and another one takes its place."""

    def __init__(self, plane: ControlPlane, namespace: str, directory: Path) -> None:
        self._plane, self._namespace, self._directory = plane, namespace, directory
        self._all: list[Operator] = []

    def start(self, *flags: str) -> Operator:
        """Start one more."""
        address = self._plane.network.next_address()
        made = Operator(self._plane, self._namespace, address, self._directory, *flags)
        self._all.append(made)
        made.start()
        return made

    async def active(self) -> Operator:
        """Wait until just one says that it is active; return that."""
        async def leading() -> Operator | None:
            found = [each for each in self._all if each.running and await each.leads() == "1.0"]
            return found[0] if len(found) == 1 else None

        return await until(leading, "one operator is active", 60)

    async def kill_active(self) -> None:
        """Kill -9, and have another one stand by; returns when somebody is active again."""
        victim = await self.active()
        victim.kill()
        self.start()
        await self.active()

    def stop(self) -> None:
        """End all of them, and say what they said: it is shown where the test failed."""
        for each in self._all:
            if each.running:
                each.stop()
            print(each.tail(20_000 // len(self._all)))


async def roles(plane: ControlPlane, directory: Path) -> dict[str, Object]:
    """Return the ClusterRoles of the chart by name."""
    documents = await asyncio.to_thread(Helm(plane.programs["helm"], directory).render)
    return {each["metadata"]["name"]: each for each in documents if each["kind"] == "ClusterRole"}


async def bind(kube: Kube, name: str, user: str) -> None:
    """Give a user a ClusterRole in the test's namespace."""
    await kube.create({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": name, "namespace": kube.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})


async def allow_operator(kube: Kube, plane: ControlPlane, directory: Path) -> None:
    """Give the operator in the test's namespace what the chart gives it, and no more."""
    charted = await roles(plane, directory)
    for name in ("tidemark-operator", "tidemark-operator-machines"):
        await kube.apply(charted[name], manager="helm-template")
    await kube.apply({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "tidemark-operator-machines"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tidemark-operator-machines"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ACCOUNT}]},
        manager="helm-template")
    await bind(kube, "tidemark-operator", ACCOUNT)


# --- objects


def cluster(etcd: Etcd | str, replicas: int = 3, *, tls: bool = False) -> Object:
    """A TidemarkCluster; without `tls` it is in the clear and so there sooner."""
    security: Object = {} if tls else {"security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"}}
    return {
        "apiVersion": API_VERSION, "kind": "TidemarkCluster", "metadata": {"name": "prod"},
        "spec": {
            "version": "0.1.0", "metadataStore": {"etcd": {"endpoints": [etcd if isinstance(etcd, str) else etcd.url]}},
            "failureDomain": {"nodeAntiAffinity": "Preferred"},
            "nodePools": [{
                "name": "default", "replicas": replicas, "zones": ["zone-a", "zone-b", "zone-c"],
                "storage": {"data": {"size": "1Gi"}}}],
            "failureDetection": {"probeIntervalMilliseconds": 500, "probeTimeoutMilliseconds": 1000}, **security}}


def log_group(shards: int = 2, name: str = "orders", **replication: object) -> Object:
    more = {"replication": replication} if replication else {}
    return {
        "apiVersion": API_VERSION, "kind": "LogGroup", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "prod"}, "shards": shards, **more}}


def reconfiguration(name: str, kind: str, **spec: object) -> Object:
    return {
        "apiVersion": API_VERSION, "kind": "Reconfiguration", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "prod"}, "type": kind, **spec}}


async def served(kube: Kube, wanted: Object, *groups: Object) -> Object:
    """Have a cluster, and log groups that are served; return the cluster once it is as it was asked to be.

    Groups come when all nodes are there: those that are placed before leave some of the nodes empty.
    """
    await kube.create(wanted)
    await settled(kube)
    for group in groups:
        await kube.create(group)
    for group in groups:
        await online(kube, group)
    return await settled(kube)


async def online(kube: Kube, group: Object) -> None:
    """Wait until a log group is served, and every shard of it says so: each is told for itself."""
    name = group["metadata"]["name"]
    await kube.wait(GROUPS, name, lambda found: condition(found, "Ready") == "True")
    for index in range(group["spec"]["shards"]):
        await kube.wait(SHARDS, f"{name}-{index:04}", lambda found: condition(found, "Available") == "True")


async def settled(kube: Kube, generation: int = 1) -> Object:
    """Wait until the cluster is as a generation of its spec asks it to be, with every copy there."""
    return await kube.wait(CLUSTERS, "prod", lambda found: (
        condition(found, "Ready") == condition(found, "FullyReplicated") == "True"
        and found["status"]["observedGeneration"] == generation))


async def succeeded(kube: Kube, name: str, timeout_s: float = 60.0) -> Object:
    """Wait until a Reconfiguration came to its end; it must be a good one."""
    ended = await kube.wait(
        RECONFIGURATIONS, name, lambda found: condition(found, "Succeeded") in ("True", "False"), timeout_s=timeout_s)
    assert condition(ended, "Succeeded") == "True", ended["status"]
    return ended


async def replaced(kube: Kube, pod: Object) -> Object:
    """Wait until another pod of that name is ready."""
    return await kube.wait("pods", pod["metadata"]["name"], lambda found: (
        found["metadata"]["uid"] != pod["metadata"]["uid"] and condition(found, "Ready") == "True"))


async def addresses(kube: Kube) -> list[str]:
    """Where the nodes answer."""
    pods = await kube.list("pods", labels="tidemark.dev/cluster=prod")
    return [f"{pod['status']['podIP']}:{NODE_PORT}" for pod in pods]
