"""The node agent as a pod: found by its address, probed as Kubernetes does it, restarted on its disk."""

from __future__ import annotations

import json
import signal

import pytest
from tidemark_operator.etcd import EtcdStore

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import Etcd
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

DATA = "/var/lib/tidemark"


def node_pod(name: str) -> Object:
    args = [
        "--node=$(POD_NAME)", f"--data={DATA}/data", "--listen=0.0.0.0:6690", "--metrics-listen=0.0.0.0:8080",
        "--advertise=$(POD_NAME).prod-nodes.$(POD_NAMESPACE).svc:6690", f"--ready-file={DATA}/ready.json"]
    container = {
        "name": "node", "image": "ghcr.io/tidemark/tidemark-node:0.1.0", "args": args,
        "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "client", "containerPort": 6690}, {"name": "http", "containerPort": 8080}],
        "startupProbe": {"httpGet": {"path": "/metrics", "port": "http"}, "periodSeconds": 1, "failureThreshold": 120},
        "readinessProbe": {"grpc": {"port": 6690}, "periodSeconds": 1, "failureThreshold": 1},
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                            "capabilities": {"drop": ["ALL"]}}}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "hostname": name, "subdomain": "prod-nodes", "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 30, "containers": [container],
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name}"}}]}}


async def ready(kube: Kube, name: str, restarts: int = 0) -> Object:
    return await kube.wait("pods", name, lambda found: condition(found, "Ready") == "True" and (
        found["status"]["containerStatuses"][0]["restartCount"] == restarts))


def said(pod_runner: PodRunner, name: str) -> Object:
    return dict(json.loads((pod_runner.mounted(name, DATA) / "ready.json").read_text()))


async def test_a_node_keeps_its_life_through_restarts_and_a_new_pod(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.patch("namespaces", kube.namespace, {"metadata": {"labels": {
        "pod-security.kubernetes.io/enforce": "restricted"}}})
    await kube.create({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-prod-1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    await kube.create(node_pod("prod-1"))
    first = await ready(kube, "prod-1")
    born = said(pod_runner, "prod-1")
    address = first["status"]["podIP"]
    assert born["address"] == f"{address}:6690"
    assert born["metrics_address"] == f"{address}:8080"

    pod_runner.container("prod-1").kill()
    await ready(kube, "prod-1", restarts=1)
    restarted = said(pod_runner, "prod-1")
    assert restarted["incarnation"] == born["incarnation"]
    assert restarted["address"] == born["address"]
    assert restarted["pid"] != born["pid"]

    container = pod_runner.container("prod-1")
    await kube.delete("pods", "prod-1")
    await kube.wait_gone("pods", "prod-1")
    assert container.exit_code == 0, container.log_file.read_text()

    await kube.create(node_pod("prod-1"))
    second = await ready(kube, "prod-1")
    again = said(pod_runner, "prod-1")
    assert again["incarnation"] == born["incarnation"]
    assert again["address"] == f"{second['status']['podIP']}:6690" != born["address"]


async def test_a_node_that_hangs_is_not_ready(kube: Kube, pod_runner: PodRunner) -> None:
    await kube.create({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "data-prod-1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    await kube.create(node_pod("prod-1"))
    await ready(kube, "prod-1")
    process = pod_runner.container("prod-1").process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    await kube.wait("pods", "prod-1", lambda found: condition(found, "Ready") == "False")
    process.send_signal(signal.SIGCONT)
    await ready(kube, "prod-1")


async def test_tidemark_has_a_store_of_its_own(kube: Kube, metadata_etcd: Etcd) -> None:
    store = EtcdStore([metadata_etcd.url])
    try:
        await store.put("/tidemark/it", b"kept", expected=0)
        metadata_etcd.kill()
        assert await kube.list("pods") == [], "the API server does not notice"
        metadata_etcd.start()
        found = await store.get("/tidemark/it")
        assert found is not None
        assert found.value == b"kept"
    finally:
        await store.close()
