"""docs/quickstart-kubernetes.md, command by command: from `helm install` to a swapped node."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.kube.client import Kube, condition
from tests.kube.control_plane import ControlPlane
from tests.kube.fixtures import REPOSITORY
from tests.kube.kubelet_logs import serving_logs
from tests.kube.pod_runner import PodRunner
from tests.kube.walkthrough import Command, Shell, commands

pytestmark = pytest.mark.apiserver

PAGE = REPOSITORY / "docs" / "quickstart-kubernetes.md"
NAMESPACE = "tidemark"
RECORDS = 1000
BUILT_ELSEWHERE = "docker "


@pytest.fixture
async def machines(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[PodRunner]:
    """What runs the pods of the namespace that the page uses, and answers `kubectl logs`."""
    certificate, key = control_plane.server_certificate("kubelet", control_plane.network.server)
    runner = PodRunner(Kube(control_plane.admin, NAMESPACE), control_plane.network, tmp_path / "pods")
    await runner.start()
    async with serving_logs(runner, control_plane.network.server, certificate, key):
        yield runner
    await runner.stop()
    if control_plane.api.running:
        await kube.delete("namespaces", NAMESPACE)
        await kube.wait_gone("namespaces", NAMESPACE)
    await runner.kube.close()


def shell(plane: ControlPlane, runner: PodRunner, directory: Path) -> Shell:
    """A shell in a checkout, with the programs that the page asks for."""
    programs = directory / "programs"
    programs.mkdir()
    (programs / "kubectl").symlink_to(plane.programs["kubectl"])
    # The definitions are there already in an API server that other tests use too.
    (programs / "helm").write_text(
        f'#!/bin/sh\n[ "$1" = install ] && set -- "$@" --take-ownership\nexec {plane.programs["helm"]} "$@"\n')
    (programs / "helm").chmod(0o755)
    (directory / "charts").symlink_to(REPOSITORY / "charts")
    shutil.copytree(REPOSITORY / "examples", directory / "examples")
    kubeconfig = directory / "kubeconfig"
    shutil.copy(plane.kubeconfig(), kubeconfig)

    def hosts() -> dict[str, str]:
        known = {worker.pod.name: worker.pod.address for worker in runner.workers()}
        services = {f"tidemark-etcd.{NAMESPACE}.svc": "tidemark-etcd-0", f"trial.{NAMESPACE}.svc": "trial-2"}
        runner.hosts |= {name: known[pod] for name, pod in services.items() if pod in known}
        return runner.hosts

    return Shell(directory, {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "KUBECONFIG": str(kubeconfig), "HOME": str(directory)}, hosts)


async def test_the_quickstart_leads_to_a_swapped_node(
    kube: Kube, control_plane: ControlPlane, machines: PodRunner, tmp_path: Path
) -> None:
    said: dict[str, str] = {}
    there = shell(control_plane, machines, tmp_path)
    run = [each for each in commands(PAGE) if not each.text.startswith(BUILT_ELSEWHERE)]
    assert len(run) > 15, "the page still says what to do"
    trial = Kube(control_plane.admin, NAMESPACE)
    for command in run:
        if command.text.startswith("kubectl delete pod writer"):
            await check_swapped(trial)
        said[command.text] = await asyncio.to_thread(there.run, command, PAGE)
        if command.text.startswith("kubectl logs"):
            check_log(command, said[command.text])
    await trial.close()
    left = [text for text in said if text.startswith("kubectl logs")]
    assert len(left) == 3, "written once, read twice"


def check_log(command: Command, text: str) -> None:
    """A reader counts what was appended, as the page shows."""
    if "reader" in command.text:
        assert int(text) == RECORDS == int(command.shown)
    else:
        assert f"{RECORDS:,}" in text or str(RECORDS) in text


async def check_swapped(trial: Kube) -> None:
    pods = {pod["metadata"]["name"] for pod in await trial.list("pods", labels="tidemark.dev/cluster=trial")}
    assert pods == {"trial-2", "trial-3", "trial-4"}
    claims = {claim["metadata"]["name"] for claim in await trial.list("persistentvolumeclaims")}
    assert "data-trial-1" not in claims and "data-trial-4" in claims
    for shard in await trial.list("shards.tidemark.dev"):
        assert condition(shard, "FullyReplicated") == "True"
        assert "trial-1" not in [each["node"] for each in shard["status"]["ensemble"]]
