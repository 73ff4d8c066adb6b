"""What people type: kubectl finds our kinds by their short names, explains them, and drains nodes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable

import pytest
from tidemark_operator.resources import KINDS

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane
from tests.kube.pod_runner import PodRunner
from tests.resource_examples import base

pytestmark = pytest.mark.apiserver

Kubectl = Callable[..., Awaitable[str]]


@pytest.fixture
def kubectl(control_plane: ControlPlane, kube: Kube) -> Kubectl:
    """Runs kubectl in the test's namespace and returns what it prints."""
    common = [
        str(control_plane.programs["kubectl"]), f"--kubeconfig={control_plane.kubeconfig()}",
        f"--namespace={kube.namespace}", "--cache-dir=" + str(control_plane.directory / "kubectl-cache")]

    async def run(*arguments: str, stdin: str = "") -> str:
        finished = await asyncio.to_thread(
            subprocess.run, [*common, *arguments], input=stdin, capture_output=True, text=True, timeout=120,
            check=False)
        assert finished.returncode == 0, finished.stdout + finished.stderr
        return str(finished.stdout)

    return run


async def test_our_kinds_are_listed_by_short_name_and_together(kube: Kube, kubectl: Kubectl) -> None:
    for kind in KINDS:
        await kube.create(base(kind))
        listed = (await kubectl("get", KINDS[kind].names.short)).splitlines()
        shown = [column.name.upper() for column in KINDS[kind].names.columns if not column.wide]
        assert listed[0].split() == ["NAME", *" ".join(shown).split()]
        assert listed[1].split()[0] == "it"
    together = await kubectl("get", "tidemark", "--output=name")
    assert sorted(together.split()) == sorted(f"{row.names.singular}.tidemark.dev/it" for row in KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
async def test_every_kind_is_explained(kubectl: Kubectl, kind: str) -> None:
    said = await kubectl("explain", f"{KINDS[kind].names.plural}.spec", "--recursive")
    assert f"KIND:       {kind}" in said
    for field in KINDS[kind].model.model_fields["spec"].annotation.model_json_schema()["properties"]:
        assert f"\n  {field}\t" in said, field


def protected(name: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "it"}},
        "spec": {"terminationGracePeriodSeconds": 5, "automountServiceAccountToken": False, "containers": [
            {"name": "main", "image": "python", "args": ["-c", "import time; time.sleep(1000)"]}]}}


async def test_a_node_is_drained(kube: Kube, kubectl: Kubectl, pod_runner: PodRunner) -> None:
    await kube.create({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "budget"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "it"}}}})
    for name in ("one", "two"):
        await kube.create(protected(name))
        await kube.wait("pods", name, lambda found: condition(found, "Ready") == "True")
    first, second = [(await kube.get("pods", name))["spec"]["nodeName"] for name in ("one", "two")]
    assert first != second
    await kube.wait("poddisruptionbudgets.policy", "budget", lambda found: (
        found.get("status", {}).get("disruptionsAllowed") == 1))
    assert "drained" in await kubectl("drain", first, "--force")
    assert await kube.find("pods", "one") is None
    assert (await kube.get("nodes", first))["spec"]["unschedulable"] is True
    with pytest.raises(AssertionError, match="disruption budget"):
        await kubectl("drain", second, "--force", "--timeout=1s")
    assert "deletionTimestamp" not in (await kube.get("pods", "two"))["metadata"]
    await kubectl("uncordon", first)
    await kube.create(protected("one"))
    await kube.wait("pods", "one", lambda found: condition(found, "Ready") == "True")
