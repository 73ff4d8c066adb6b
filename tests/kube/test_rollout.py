"""Rolling updates on a real API server, under appends: one pod at a time, without its leaderships, by any operator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import Etcd
from tests.kube.load import Load
from tests.kube.operators import CLUSTERS, Operators, addresses, cluster, log_group, replaced, served
from tests.kube.pod_history import PodHistory
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

NODES = ["prod-1", "prod-2", "prod-3"]
ALLOWED = "--allowed-image=registry.example/tidemark-node"
REVISION, RESTARTED_AT = "tidemark.dev/revision", "tidemark.dev/restartedAt"


def pools(etcd: Etcd, **more: Any) -> list[Object]:
    found = cluster(etcd)["spec"]["nodePools"]
    return [{**found[0], **more}]


def ready(generation: int) -> Any:
    return lambda found: (
        condition(found, "Ready") == "True" and found["status"]["observedGeneration"] == generation)


def drained(pod_runner: PodRunner) -> list[int]:
    """How many shards each node led that was asked to end, by now."""
    lines = [
        json.loads(line) for file in sorted(pod_runner.directory.glob("*/*/*.log"))
        for line in file.read_text(errors="replace").splitlines() if '"draining"' in line]
    return [line["leading"] for line in lines]


async def test_nodes_are_updated_one_by_one_under_load_whoever_operates(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operators: Operators
) -> None:
    first = operators.start(ALLOWED)
    made = cluster(metadata_etcd)
    made["spec"]["update"] = {"minReadySeconds": 1}
    before = await served(kube, made, log_group(4))
    for node in NODES:
        await kube.wait("pods", node, lambda found: condition(found, "Ready") == "True")
    operators.start(ALLOWED)
    async with Load(await addresses(kube)) as load, PodHistory(kube) as seen:
        await load.more()
        await kube.patch(CLUSTERS, "prod", {"spec": {
            "nodePools": pools(metadata_etcd, podMetadata={"annotations": {"cost-center": "7"}})}})
        rolling = await kube.wait(CLUSTERS, "prod", lambda found: (
            found["status"]["nodeSummary"]["updated"] == 1 and condition(found, "Ready") == "False"))
        assert "RolloutInProgress" in str(rolling["status"]["conditions"])
        first.kill()  # in the middle: the other one finds what is under way in etcd and in the pods
        after = await kube.wait(CLUSTERS, "prod", ready(2))
        await load.more()
        assert sorted(seen.replaced) == NODES, "each once"
        assert seen.serving_at_least == 2
        assert drained(pod_runner) == [0, 0, 0], "leaderships had moved before"
        assert after["status"]["targetRevision"] != before["status"]["targetRevision"]
        assert after["status"]["nodeSummary"]["updated"] == 3
        assert condition(after, "UpgradeBlocked") == "False"
        for node, one in zip(after["status"]["nodes"], before["status"]["nodes"], strict=True):
            assert (node["name"], node["incarnation"]) == (one["name"], one["incarnation"])
            assert node["revision"] == after["status"]["targetRevision"]
        assert {pod["metadata"]["annotations"]["cost-center"] for pod in await kube.list("pods")} == {"7"}
        await kube.wait(CLUSTERS, "prod", lambda found: all(
            node["leaders"] for node in found["status"]["nodes"]))  # the last one too leads its share again
        await load.more()

        # One pod, because somebody asks for it; then a template that cannot run, which stops at the first pod.
        pod = await kube.get("pods", "prod-2")
        await kube.patch("pods", "prod-2", {"metadata": {"annotations": {
            RESTARTED_AT: pod["metadata"]["creationTimestamp"].replace("Z", ".9Z")}}})
        await replaced(kube, pod)
        assert seen.replaced[3:] == ["prod-2"]
        await kube.wait(CLUSTERS, "prod", ready(2))

        pod_runner.missing_images.add("registry.example/tidemark-node:bad")
        await kube.patch(CLUSTERS, "prod", {"spec": {"image": "registry.example/tidemark-node:bad"}})
        await kube.wait(CLUSTERS, "prod", lambda found: (
            found["status"]["nodeSummary"]["updated"] == 1 and found["status"]["nodeSummary"]["ready"] == 2))
        await load.more()
        await kube.patch(CLUSTERS, "prod", {"spec": {"image": "registry.example/tidemark-node:good"}})
        await kube.wait(CLUSTERS, "prod", ready(4))
        assert seen.serving_at_least == 2
        assert sorted(set(seen.replaced[4:])) == NODES and len(seen.replaced[4:]) == 4, "the broken one twice"
