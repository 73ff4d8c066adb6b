"""A whole cluster in pods: an operator, three nodes, clients outside; a node is drained away and comes back elsewhere.

The pods are written here by hand; the operator finds the nodes' addresses in a directory that all of them mount.
"""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
import tidemark
import yaml
from tidemark_wire.channel import open_channel
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc

from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import Etcd
from tests.kube.pod_runner import PodRunner
from tests.waiting import until

pytestmark = pytest.mark.apiserver

NODES = ("prod-1", "prod-2", "prod-3")
NODE_PORT, ADMIN_PORT = 6690, 6700
RECORDS = 200


def claim(name: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}}


def mounts(*names: str) -> tuple[list[Object], list[Object]]:
    """Mount claims at /var/lib/tidemark/<what they are for>."""
    return (
        [{"name": name, "mountPath": f"/var/lib/tidemark/{name.partition('-')[0]}"} for name in names],
        [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in names])


def node_pod(name: str) -> Object:
    volume_mounts, volumes = mounts(f"data-{name}", "ready")
    apart = [{"topologyKey": "kubernetes.io/hostname",
              "labelSelector": {"matchLabels": {"app.kubernetes.io/component": "node"}}}]
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": "node"}},
        "spec": {
            "hostname": name, "subdomain": "prod-nodes", "automountServiceAccountToken": False,
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
            "volumes": volumes,
            "containers": [{
                "name": "node", "image": "tidemark-node:0.1.0", "volumeMounts": volume_mounts,
                "args": [
                    f"--node={name}", "--data=/var/lib/tidemark/data", "--cluster=prod",
                    f"--listen=0.0.0.0:{NODE_PORT}", "--metrics-listen=0.0.0.0:8080",
                    f"--ready-file=/var/lib/tidemark/ready/{name}.json"],
                "readinessProbe": {"grpc": {"port": NODE_PORT}, "periodSeconds": 1, "failureThreshold": 1}}]}}


def operator(etcd: Etcd) -> Object:
    volume_mounts, volumes = mounts("ready")
    labels = {"app.kubernetes.io/component": "operator"}
    container = {
        "name": "operator", "image": "tidemark-operator:0.1.0", "volumeMounts": volume_mounts,
        "args": ["--cluster=prod", f"--etcd={etcd.url}", f"--listen=0.0.0.0:{ADMIN_PORT}",
                 "--nodes-dir=/var/lib/tidemark/ready"],
        "readinessProbe": {"tcpSocket": {"port": ADMIN_PORT}, "periodSeconds": 1}}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "operator"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels},
            "spec": {"automountServiceAccountToken": False, "volumes": volumes, "containers": [container]}}}}


class Admin:
    """The operator's Admin service, wherever its pod is now."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def _call(self, method: str, request: Any) -> Any:
        (pod,) = [each for each in await self._kube.list("pods", labels="app.kubernetes.io/component=operator")
                  if "deletionTimestamp" not in each["metadata"]]
        async with open_channel(f"{pod['status']['podIP']}:{ADMIN_PORT}") as channel:
            return await getattr(admin_pb2_grpc.AdminStub(channel), method)(request, timeout=10)

    async def apply(self, manifest: Object) -> None:
        """Apply as soon as the operator is the active one."""
        async def applied() -> bool:
            try:
                await self._call("Apply", admin_pb2.ApplyRequest(manifests=yaml.safe_dump(manifest)))
            except grpc.aio.AioRpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE, error.details()
                return False
            return True

        await until(applied, "the operator applies a manifest", 60)

    async def wait(self, kind: str, condition_type: str) -> None:
        """Wait until that condition of every object of a kind is true; there is one at least."""
        async def all_true() -> bool:
            found = (await self._call("Get", admin_pb2.GetRequest(kind=kind))).objects
            return bool(found) and all(condition(json.loads(text), condition_type) == "True" for text in found)

        await until(all_true, f"{condition_type} of every {kind}", 60)

    async def leader(self) -> str:
        (shard,) = (await self._call("Get", admin_pb2.GetRequest(kind="Shard"))).objects
        return str(json.loads(shard)["status"]["leader"])


async def ready(kube: Kube, name: str) -> Object:
    return await kube.wait("pods", name, lambda found: condition(found, "Ready") == "True")


async def test_a_cluster_of_pods_survives_an_eviction(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd
) -> None:
    for name in ("ready", *(f"data-{node}" for node in NODES)):
        await kube.create(claim(name))
    await kube.create(operator(metadata_etcd))
    for node in NODES:
        await kube.create(node_pod(node))
    await kube.create({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "nodes"},
        "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app.kubernetes.io/component": "node"}}}})
    addresses = [(await ready(kube, node))["status"]["podIP"] for node in NODES]
    await kube.wait("deployments.apps", "operator", lambda found: found.get("status", {}).get("readyReplicas") == 1)

    admin = Admin(kube)
    await admin.apply({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": "prod"},
        "spec": {
            "version": "0.1.0", "metadataStore": {"etcd": {"endpoints": [metadata_etcd.url]}},
            "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "1Gi"}}}],
            "security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"}}})
    await admin.apply({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": "orders"},
        "spec": {"clusterRef": {"name": "prod"}, "shards": 1, "replication": {"spread": "Node"}}})
    await admin.wait("LogGroup", "Ready")
    async with await tidemark.connect([f"{address}:{NODE_PORT}" for address in addresses], timeout_s=60) as client:
        appender = client.appender("orders", timeout_s=60)
        sent = [await appender.append(f"{number}".encode()) for number in range(RECORDS)]

        leader = await admin.leader()
        await kube.wait(
            "poddisruptionbudgets.policy", "nodes", lambda found: found["status"]["disruptionsAllowed"] == 1)
        await kube.evict(leader)
        other = next(node for node in NODES if node != leader)
        with pytest.raises(Refused) as refused:
            await kube.evict(other)
        assert refused.value.code == 429
        sent += [await appender.append(f"{number}".encode()) for number in range(RECORDS, 2 * RECORDS)]
        await kube.wait_gone("pods", leader)
        assert await admin.leader() != leader

        await kube.create(node_pod(leader))
        again = await ready(kube, leader)
        assert again["status"]["podIP"] not in addresses, "a new pod has a new address"
        await admin.wait("LogGroup", "FullyReplicated")
        await appender.close()
        assert len(sent) == 2 * RECORDS
        values = [record.value async for record in client.read("orders")]
        assert values == [f"{number}".encode() for number in range(2 * RECORDS)]
