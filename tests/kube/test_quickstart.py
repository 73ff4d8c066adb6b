"""docs/quickstart-kubernetes.md, command by command: from `helm install` to a swapped node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kube.client import Kube, condition
from tests.kube.control_plane import ControlPlane
from tests.kube.fixtures import REPOSITORY
from tests.kube.pod_runner import PodRunner
from tests.kube.walkthrough import NAMESPACE, Command, commands, machines, shell

pytestmark = pytest.mark.apiserver

PAGE = REPOSITORY / "docs" / "quickstart-kubernetes.md"
RECORDS = 1000
RESTRICTED = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
BUILT_ELSEWHERE = "docker "
SERVICES = {f"tidemark-etcd.{NAMESPACE}.svc": "tidemark-etcd-0", f"trial.{NAMESPACE}.svc": "trial-2"}


@pytest.fixture
async def pod_runner(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[PodRunner]:
    async with machines(kube, control_plane, tmp_path) as running:
        yield running


@pytest.mark.timeout(300)
async def test_the_quickstart_leads_to_a_swapped_node(
    kube: Kube, control_plane: ControlPlane, pod_runner: PodRunner, tmp_path: Path
) -> None:
    logs: list[str] = []
    there = shell(control_plane, pod_runner, tmp_path, SERVICES)
    run = [each for each in commands(PAGE) if not each.text.startswith(BUILT_ELSEWHERE)]
    assert len(run) > 15, "the page still says what to do"
    trial = Kube(control_plane.admin, NAMESPACE)
    for command in run:
        if command.text.startswith("kubectl delete pod writer"):
            await check_swapped(trial)
        said = await asyncio.to_thread(there.run, command, PAGE)
        if command.text.startswith("kubectl logs"):
            check_log(command, said)
            logs.append(command.text)
        if command.text.startswith("kubectl wait tidemarkcluster/trial --for=condition=Ready"):
            for pod in await trial.list("pods", labels="tidemark.dev/cluster=trial"):
                assert condition(pod, "Ready") == "True", "the cluster is Ready behind its pods, not before them"
        if command.text.startswith("helm install"):
            await trial.patch("namespaces", NAMESPACE, RESTRICTED)
    await check_gone(trial)
    await trial.close()
    assert len(logs) == 3, "written once, read twice"


def check_log(command: Command, text: str) -> None:
    """A reader counts what was appended, as the page shows."""
    if "reader" in command.text:
        assert int(text) == RECORDS == int(command.shown)
    else:
        assert f"{RECORDS:,}" in text or str(RECORDS) in text


async def check_gone(trial: Kube) -> None:
    """Pods and policies are gone; volumes and definitions stay, as the page says."""
    for resource in ("pods", "tidemarkclusters.tidemark.dev", "statefulsets.apps", "deployments.apps"):
        left = await trial.list(resource)
        assert not [each["metadata"]["name"] for each in left if "deletionTimestamp" not in each["metadata"]], resource
    assert not await trial.list(
        "validatingadmissionpolicies.admissionregistration.k8s.io", labels="app.kubernetes.io/name=tidemark")


async def check_swapped(trial: Kube) -> None:
    pods = {pod["metadata"]["name"] for pod in await trial.list("pods", labels="tidemark.dev/cluster=trial")}
    assert pods == {"trial-2", "trial-3", "trial-4"}
    claims = {claim["metadata"]["name"] for claim in await trial.list("persistentvolumeclaims")}
    assert "data-trial-1" not in claims and "data-trial-4" in claims
    for shard in await trial.list("shards.tidemark.dev"):
        assert condition(shard, "FullyReplicated") == "True"
        assert "trial-1" not in [each["node"] for each in shard["status"]["ensemble"]]
