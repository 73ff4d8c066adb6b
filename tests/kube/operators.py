"""The operator itself against a real API server: as a process, under the role that the chart installs for it.

Stays out: what it should do (the tests).
"""

from __future__ import annotations

import asyncio
import sys
import urllib.request
from pathlib import Path

from tidemark_operator.resources import API_VERSION

from .client import Kube, Object
from .control_plane import ControlPlane, Etcd
from .helm import Helm
from .processes import Child

ACCOUNT = "system:serviceaccount:tidemark-system:tidemark-operator"
NODE_PORT = 6690


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


async def allow_operator(kube: Kube, plane: ControlPlane, directory: Path) -> None:
    """Give the operator in the test's namespace what the chart gives it, and no more."""
    documents = await asyncio.to_thread(Helm(plane.programs["helm"], directory).render)
    roles = {each["metadata"]["name"]: each for each in documents if each["kind"] == "ClusterRole"}
    for name in ("tidemark-operator", "tidemark-operator-machines"):
        await kube.apply(roles[name], manager="helm-template")
    await kube.apply({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "tidemark-operator-machines"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tidemark-operator-machines"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ACCOUNT}]},
        manager="helm-template")
    await kube.create({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": {"name": "tidemark-operator", "namespace": kube.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tidemark-operator"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": ACCOUNT}]})


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


def log_group(shards: int = 2, name: str = "orders") -> Object:
    return {
        "apiVersion": API_VERSION, "kind": "LogGroup", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "prod"}, "shards": shards}}


async def addresses(kube: Kube) -> list[str]:
    """Where the nodes answer."""
    pods = await kube.list("pods", labels="tidemark.dev/cluster=prod")
    return [f"{pod['status']['podIP']}:{NODE_PORT}" for pod in pods]
