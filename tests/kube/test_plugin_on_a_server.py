"""`kubectl tidemark` on a real cluster, as an SRE: what blocks is named, acts outlive a killed operator."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tidemark

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.operators import (
    CLUSTERS,
    GROUPS,
    PAUSE,
    RECONFIGURATIONS,
    SHARDS,
    Operator,
    addresses,
    cluster,
    log_group,
    served,
)
from tests.kube.plugin import Plugin, allow_sre
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

SECRET = "correct-horse-battery-staple"
RECORDS, RECORD_BYTES = 60, 10_000


def ensemble(shard: Object) -> set[str]:
    return {each["node"] for each in shard["status"]["ensemble"]}


def at(stage: str) -> Callable[[Object], bool]:
    return lambda found: found.get("status", {}).get("stage") == stage


async def test_a_drain_from_the_question_to_the_report(
    kube: Kube, pod_runner: PodRunner, control_plane: ControlPlane, metadata_etcd: Etcd, tmp_path: Path,
    operator: Operator,
) -> None:
    await allow_sre(kube, control_plane, "sre", tmp_path)
    await kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "it"},
                       "stringData": {"password": SECRET}})
    made = cluster(metadata_etcd, replicas=5)
    made["spec"]["reconfiguration"] = {"onFactorChange": "Manual"}
    await served(kube, made, log_group(factor=3, spread="Node"))
    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        appender = client.appender("orders", timeout_s=60)
        for number in range(RECORDS):
            await appender.append(f"{number}".encode() * RECORD_BYTES)
        await appender.close()
    await story(kube, Plugin(control_plane, kube.namespace, "sre", tmp_path), operator, tmp_path)


async def story(kube: Kube, plugin: Plugin, operator: Operator, directory: Path) -> None:
    first, second = [await kube.get(SHARDS, f"orders-{index:04}") for index in (0, 1)]
    (source,) = ensemble(first) & ensemble(second)  # six copies on five nodes
    away = next(name for name in sorted(ensemble(second) - {source}) if name != second["status"]["leader"])

    document = (await plugin("status", "prod", "-o", "json")).document
    assert [node["pod"] for node in document["nodes"]] == ["Ready"] * 5
    assert document["findings"] == []

    # A copy elsewhere is away: the drain is planned and approved, and then names the shard and the node that block it.
    await kube.patch(CLUSTERS, "prod", {"metadata": {"annotations": {PAUSE: "true"}}})  # no pod comes back meanwhile
    await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Paused") == "True")
    await kube.delete("pods", away)
    await kube.wait(SHARDS, "orders-0001", lambda found: found["status"]["inSync"] == "2/3")
    await plugin("drain-node", source, "--name", "drain", "--require-approval", "--reason", "OPS-1")
    planned = await kube.wait(RECONFIGURATIONS, "drain", at("AwaitingApproval"))
    assert int(planned["status"]["plan"]["bytes"]) > RECORDS * RECORD_BYTES
    told = (await plugin("plan", "drain", "-o", "json")).document
    assert told["hash"] == planned["status"]["plan"]["hash"]
    assert [(move["shard"], move["from"]) for move in told["planned"]] == [("orders/0", source), ("orders/1", source)]
    await plugin("approve", "drain", "--plan", "sha256:00000000", code=1)
    await plugin("approve", "drain", "--yes")
    await kube.wait(RECONFIGURATIONS, "drain", lambda found: condition(found, "Stalled") == "True")
    said = (await plugin("explain-shard", "orders/0")).out
    assert "cluster prod is paused" in said
    assert f"blocked by orders/1 on {away}" in " ".join(said.split()), said
    assert f"the pod {away} does not exist" in " ".join(said.split()), said

    # Suspended, it stays so under another operator; resumed, it is brought to its end.
    await plugin("suspend", "drain")
    await kube.wait(RECONFIGURATIONS, "drain", at("Suspended"))
    operator.kill()
    operator.start()
    await kube.patch(CLUSTERS, "prod", {"metadata": {"annotations": {PAUSE: None}}})
    await kube.wait(SHARDS, "orders-0001", lambda found: found["status"]["inSync"] == "3/3")  # it is at work
    assert (await kube.get(RECONFIGURATIONS, "drain"))["status"]["stage"] == "Suspended"
    await plugin("throttle", "drain", "--rate", "200Mi", "--max-concurrent", "2")
    await plugin("throttle", "drain", "--rate", "100Mi")
    throttled = (await kube.get(RECONFIGURATIONS, "drain"))["spec"]["throttle"]
    assert throttled == {"bytesPerSecondPerNode": "100Mi", "maxConcurrentMoves": 2}, "what is not named stays"
    await plugin("throttle", "drain", "--default")
    assert "throttle" not in (await kube.get(RECONFIGURATIONS, "drain"))["spec"]
    await plugin("resume", "drain")
    ended = (await plugin("watch", "drain", "--timeout", "60", "-o", "json")).document
    assert (ended["completed"], ended["moves"], ended["progress"]["percent"]) == (2, 2, 100)
    assert int(ended["progress"]["bytesMoved"]) > RECORDS * RECORD_BYTES
    assert ended["hash"] == told["hash"]
    for name in ("orders-0000", "orders-0001"):
        assert source not in ensemble(await kube.get(SHARDS, name))

    # Canceled before it is approved, it moves nothing.
    await plugin("swap-node", away, "--to", source, "--name", "second", "--require-approval")
    await kube.wait(RECONFIGURATIONS, "second", at("AwaitingApproval"))
    await plugin("cancel", "second")
    assert "second: Canceled" in (await plugin("watch", "second", code=1)).err
    assert away in ensemble(await kube.get(SHARDS, "orders-0001"))

    # Followed from the start; what a dry run told is what came about.
    dry = (await plugin("swap-node", away, "--to", source, "--dry-run", "-o", "json")).document
    done = (await plugin("swap-node", away, "--to", source, "--wait", "--name", "third", "-o", "json")).document
    assert (done["hash"], done["completed"]) == (dry["hash"], len(dry["moves"]))
    assert away not in ensemble(await kube.get(SHARDS, "orders-0001"))
    await plugin("transfer-leader", "orders/1", source, "--wait")
    await kube.wait(SHARDS, "orders-0001", lambda found: found["status"]["leader"] == source)

    # The factor changes in the group, and the step to it is taken by whoever chooses the time.
    for factor, command in ((4, "expand"), (3, "contract")):
        await kube.patch(GROUPS, "orders", {"spec": {"replication": {"factor": factor}}})
        await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "False")
        await plugin(command, "orders", "--wait")
        grown = await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
        assert grown["status"]["factorInForce"] == {"min": factor, "max": factor}
    await plugin("rebalance", "--wait")

    # A report holds no secret; what the role does not give is refused and said.
    report = directory / "report.tar.gz"
    await plugin("report", "--file", str(report), "--operator-namespace", kube.namespace)
    with tarfile.open(report) as archive:
        held = {entry.name: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    assert {f"tidemark-prod/objects/{kind}s.yaml" for kind in ("pod", "shard", "reconfiguration", "event")} <= set(held)
    assert SECRET.encode() not in b"".join(held.values())
    assert "forbidden" in (await plugin("pause", code=1)).err
    assert PAUSE not in (await kube.get(CLUSTERS, "prod"))["metadata"].get("annotations", {})
