"""etcd loses everything under a cluster on Kubernetes, and docs/operations/restore-etcd.md brings it back."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import tidemark
from tidemark_wire.tls import TlsSettings

from tests.e2e.workload import Workload, check_read_back
from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.fixtures import REPOSITORY
from tests.kube.operators import addresses, cluster, log_group
from tests.kube.pod_runner import PodRunner
from tests.kube.volumes import write_files
from tests.kube.walkthrough import NAMESPACE, Command, commands, machines, shell

pytestmark = pytest.mark.apiserver

PAGE = REPOSITORY / "docs" / "operations" / "restore-etcd.md"
CLUSTERS, GROUPS, SHARDS, RECONFIGURATIONS = (
    f"{plural}.tidemark.dev" for plural in ("tidemarkclusters", "loggroups", "shards", "reconfigurations"))
NODES = ("prod-1", "prod-2", "prod-3")
INSTALL = f"helm install tidemark charts/tidemark --namespace {NAMESPACE} --create-namespace"
CONTEXT = f"kubectl config set-context --current --namespace={NAMESPACE}"


@pytest.fixture
async def pod_runner(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[PodRunner]:
    async with machines(kube, control_plane, tmp_path) as running:
        yield running


@pytest.fixture
async def prod(control_plane: ControlPlane) -> AsyncIterator[Kube]:
    """The administrator, in the namespace of the page."""
    admin = Kube(control_plane.admin, NAMESPACE)
    yield admin
    await admin.close()


def on_kubernetes() -> list[Command]:
    """What the page says to run in its part about Kubernetes."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index("## On Kubernetes")
    last = next(number for number in range(first + 1, len(lines)) if lines[number].startswith("## "))
    return [command for command in commands(PAGE) if first < command.line <= last]


async def transfer(prod: Kube, name: str, to: str) -> Object:
    """Have a node lead every shard; return the Reconfiguration once it is done."""
    await prod.create({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Reconfiguration", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": "prod"}, "type": "LeaderTransfer", "leaderTransfer": {"to": to}}})
    return await prod.wait(RECONFIGURATIONS, name, lambda found: condition(found, "Succeeded") == "True")


async def admin_of(prod: Kube, directory: Path) -> TlsSettings:
    """The admin's certificate; every node answers to the name of the cluster."""
    secret = await prod.wait("secrets", "prod-admin-tls", lambda found: True)
    directory.mkdir()
    write_files(directory, {name: base64.b64decode(text) for name, text in secret["data"].items()})
    return TlsSettings.of_directory(directory, server_name="prod")


async def shown(prod: Kube) -> dict[str, Object]:
    return {shard["metadata"]["name"]: shard["status"] for shard in await prod.list(SHARDS)}


async def test_the_page_brings_back_what_etcd_lost(
    kube: Kube, control_plane: ControlPlane, pod_runner: PodRunner, metadata_etcd: Etcd, prod: Kube, tmp_path: Path
) -> None:
    etcd_host = metadata_etcd.url.removeprefix("http://").partition(":")[0]
    pod_runner.hosts["etcd.databases.svc"] = etcd_host
    there = shell(control_plane, pod_runner, tmp_path, {f"{node}.prod-nodes": node for node in NODES})
    for command in (INSTALL, CONTEXT):
        await asyncio.to_thread(there.run, Command(0, command, ""), PAGE)
    await prod.create(cluster(metadata_etcd, tls=True))
    await prod.create(log_group())
    await prod.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
    group_id = (await prod.get(GROUPS, "orders"))["status"]["groupID"]
    finished = await transfer(prod, "before", "prod-2")
    before = await shown(prod)
    steps = on_kubernetes()
    assert len(steps) > 10, "the page still says what to do"

    async with (
        await tidemark.connect(
            await addresses(prod), tls=await admin_of(prod, tmp_path / "admin"), timeout_s=60) as client,
        Workload(client, "orders") as load,
    ):
        await load.more_on_every_shard()
        for step in steps:
            if step.text.startswith("kubectl get pods"):  # the operators are gone
                metadata_etcd.kill()
                metadata_etcd.forget()
                await load.more()
                await asyncio.to_thread(metadata_etcd.start)
            said = await asyncio.to_thread(there.run, step, PAGE)
            if step.text.startswith("kubectl logs"):
                assert "10 keys to write" in said and "10 keys to write" in step.shown
        await load.more_on_every_shard()

        for name, status in before.items():
            after = await prod.wait(SHARDS, name, lambda found, epoch=status["epoch"]: (
                found["status"]["epoch"] > epoch and condition(found, "FullyReplicated") == "True"))
            assert members(after["status"]) == members(status), "the data stayed where it was"
        group = await prod.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
        assert (condition(group, "Stalled"), group["status"]["groupID"]) == ("False", group_id)
        whole = await prod.wait(CLUSTERS, "prod", lambda found: condition(found, "Ready") == "True")
        assert [each["name"] for each in whole["status"]["nodes"]] == list(NODES), "no node was made anew"
        assert (await prod.get(RECONFIGURATIONS, "before"))["status"] == finished["status"], "it is not run again"
        await transfer(prod, "after", "prod-3")
        for name in before:
            await prod.wait(SHARDS, name, lambda found: found["status"]["leader"] == "prod-3")
        await load.more_on_every_shard()
    async with await tidemark.connect(
            await addresses(prod), tls=TlsSettings.of_directory(tmp_path / "admin", server_name="prod"), timeout_s=60
    ) as client:
        await check_read_back(client, load)


def members(status: Object) -> set[str]:
    return {each["node"] for each in status["ensemble"]}
