"""What the operator refuses on a real API server: what a lax definition lets in, and what no definition can say."""

from __future__ import annotations

import asyncio
import copy
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.kube.client import Kube, Object, Refused, condition, said
from tests.kube.control_plane import Etcd
from tests.kube.operators import (
    CLUSTERS,
    EVENTS,
    GROUPS,
    KEYSPACES,
    RECONFIGURATIONS,
    SHARDS,
    Operator,
    cluster,
    log_group,
    online,
    reconfiguration,
    served,
)
from tests.kube.pod_runner import PodRunner
from tests.resource_examples import base, changed
from tests.waiting import until

pytestmark = pytest.mark.apiserver

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"
PLURALS = {
    "TidemarkCluster": CLUSTERS, "LogGroup": GROUPS, "Keyspace": KEYSPACES, "Reconfiguration": RECONFIGURATIONS}


@asynccontextmanager
async def without_rules(kube: Kube) -> AsyncIterator[None]:
    """Have the API server take any spec; everything made meanwhile is gone before the rules are back."""
    before = {kind: (await kube.get(DEFINITIONS, PLURALS[kind]))["spec"] for kind in PLURALS}
    for kind in PLURALS:
        lax = copy.deepcopy(before[kind])
        (version,) = lax["versions"]
        version.pop("selectableFields", None)
        schema = version["schema"]["openAPIV3Schema"]
        schema.pop("x-kubernetes-validations", None)
        schema.pop("required", None)
        schema["properties"]["spec"] = {"x-kubernetes-preserve-unknown-fields": True}
        await _define(kube, kind, lax)
    try:
        await _until_taken(kube, True)
        yield
    finally:
        for kind in PLURALS:
            for item in await kube.list(PLURALS[kind]):
                await kube.delete(PLURALS[kind], item["metadata"]["name"])
            await _define(kube, kind, before[kind])
        await _until_taken(kube, False)


async def _define(kube: Kube, kind: str, spec: Object) -> None:
    async with asyncio.timeout(30):
        while True:
            known = await kube.get(DEFINITIONS, PLURALS[kind])
            try:
                await kube.replace({**known, "spec": spec})
                return
            except Refused as refused:
                if refused.code != 409:  # its controllers write to it too
                    raise


async def _until_taken(kube: Kube, taken: bool) -> None:
    """A changed definition is in force a moment later."""
    async with asyncio.timeout(60):
        for kind in PLURALS:
            async def as_wanted(kind: str = kind) -> bool:
                try:
                    await kube.create({**base(kind), "spec": {"nonsense": 1}}, dry_run=True)
                except Refused:
                    return not taken
                return taken

            await until(as_wanted, f"the server {'takes' if taken else 'refuses'} any {kind}", 60)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("TidemarkCluster", {"spec": {}}, "spec.version"),
    ("TidemarkCluster", {"spec.metadataStore.etcd.endpoints": "http://etcd:2379"}, "spec.metadataStore.etcd.endpoints"),
    ("TidemarkCluster", {"spec.security": {"tls": {"mode": "Disabled"}}}, "spec.security.clientAuth"),
    ("LogGroup", {"spec.shards": "many"}, "spec.shards"),
    ("LogGroup", {"spec.replication": {"factor": 99}}, "spec.replication.factor"),
    ("LogGroup", {"spec.replication": {"factor": 4, "payloadCopies": 2}}, "spec.replication.payloadCopies"),
    ("LogGroup", {"spec": "a text"}, "spec"),
    ("LogGroup", {"spec.clusterRef": {}}, "spec.clusterRef.name"),
    ("Keyspace", {"spec.partitions": 3}, "spec.partitions"),
    ("Keyspace", {"spec.replication": {"readQuorum": 1, "writeQuorum": 1}}, "spec"),
    ("Reconfiguration", {"spec.type": "Shrink"}, "spec.type"),
    ("Reconfiguration", {"spec.nodeSwap": None}, "spec.nodeSwap"),
    ("Reconfiguration", {"spec.clusterRef": None}, "spec.clusterRef"),
]


async def test_what_a_lax_definition_lets_in_is_refused(
    kube: Kube, metadata_etcd: Etcd, operator: Operator
) -> None:
    async with without_rules(kube):
        await kube.create(cluster(metadata_etcd))
        await kube.create(log_group())
        # There are no pods here, so that is all that becomes of what is right.
        await kube.wait(GROUPS, "orders", lambda found: said(found, "Stalled")[1] == "NotEnoughNodes")
        for number, (kind, changes, _field) in enumerate(WRONG):
            made = changed(kind, changes)
            made["metadata"]["name"] = f"wrong-{number}"
            await kube.create(made)
        for number, (kind, _changes, field) in enumerate(WRONG):
            told = await kube.wait(
                PLURALS[kind], f"wrong-{number}", lambda found: said(found, "Stalled")[:2] == ("True", "InvalidSpec"))
            assert field in said(told, "Stalled")[2], (kind, field)
            if kind == "Reconfiguration":
                assert said(told, "Validated")[:2] == ("False", "InvalidSpec")
                assert said(told, "Succeeded")[:2] == ("False", "Rejected")

        await kube.patch(GROUPS, "orders", {"spec": {"shards": 3}})
        told = await kube.wait(
            GROUPS, "orders", lambda found: said(found, "Stalled")[1] == "InvalidSpec")
        assert "spec.shards" in said(told, "Stalled")[2]
        assert told["status"]["shards"]["desired"] == 2, "what was accepted stays in force"

        async def event_is_there() -> bool:
            return ("InvalidSpec", "orders") in [
                (event["reason"], event["regarding"]["name"]) for event in await kube.list(EVENTS)]

        await until(event_is_there, "an event says InvalidSpec of orders")
        await kube.patch(GROUPS, "orders", {"spec": {"shards": 2}})
        await kube.wait(GROUPS, "orders", lambda found: said(found, "Stalled")[1] == "NotEnoughNodes")
        assert "failed, again" not in operator.log.read_text(), "nothing broke"


def swap(name: str, source: str, target: str) -> Object:
    return reconfiguration(name, "NodeSwap", nodeSwap={"from": source, "to": {"node": target}})


async def rejected(kube: Kube, made: Object, reason: str, field: str) -> None:
    await kube.create(made)
    told = await kube.wait(
        RECONFIGURATIONS, made["metadata"]["name"], lambda found: condition(found, "Validated") == "False")
    assert said(told, "Validated")[1] == reason
    assert field in said(told, "Validated")[2]
    assert said(told, "Succeeded")[:2] == ("False", "Rejected")


async def test_what_takes_more_than_one_object_to_judge(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, operator: Operator
) -> None:
    group = log_group(1)
    await kube.create(group)  # before there is a node, and yet it is dealt to all the zones
    await served(kube, cluster(metadata_etcd, replicas=4))
    await online(kube, group)
    members = [each["node"] for each in (await kube.get(SHARDS, "orders-0000"))["status"]["ensemble"]]
    spare = next(name for name in ("prod-1", "prod-4") if name not in members)  # both in the first zone

    await rejected(kube, swap("a", "prod-2", "prod-9"), "NodeNotFound", "nodeSwap.to.node")
    await rejected(kube, swap("b", "prod-9", spare), "NodeNotFound", "nodeSwap.from")
    await rejected(kube, swap("c", "prod-2", "prod-3"), "TargetNotEligible", "nodeSwap.to.node")
    await rejected(kube, swap("d", "prod-2", spare), "NotEnoughDomains", "orders-0000")
    await rejected(kube, reconfiguration("e", "Expand", expand={"logGroup": "orders", "factor": 4}),
                   "FactorMismatch", "expand.factor")
    to_nothing = reconfiguration("f", "LeaderTransfer", leaderTransfer={"to": "prod-2"}, scope={"logGroups": ["none"]})
    await rejected(kube, to_nothing, "TargetsNothing", "'none'")
    nowhere = reconfiguration("g", "LeaderTransfer", leaderTransfer={"to": "prod-2"})
    nowhere["spec"]["clusterRef"]["name"] = "nowhere"
    await rejected(kube, nowhere, "ClusterNotFound", "spec.clusterRef")

    pools, many = log_group(1, "pools"), log_group(1, "many")
    pools["spec"]["placement"] = {"nodePools": ["fast"]}
    many["spec"]["replication"] = {"factor": 5}
    for group, placed, stalled, field in (
            (pools, "PoolNotFound", "InvalidSpec", "spec.placement.nodePools"),
            (many, "NotEnoughNodes", "NotEnoughNodes", "factor 5")):
        await kube.create(group)
        told = await kube.wait(
            GROUPS, group["metadata"]["name"], lambda found: condition(found, "Stalled") == "True")
        assert said(told, "PlacementSatisfied")[:2] == ("False", placed)
        assert said(told, "Stalled")[1] == stalled
        assert field in said(told, "Stalled")[2]

    window = {"name": "night", "schedule": "0 1 * * 0", "durationSeconds": 3600, "timeZone": "Europe/Nowhere"}
    for changes, undone, field in (
            ({"maintenanceWindows": [window]}, {"maintenanceWindows": None}, "spec.maintenanceWindows[0].timeZone"),
            ({"version": "9.0.0"}, {"version": "0.1.0"}, "spec.version")):
        await kube.patch(CLUSTERS, "prod", {"spec": changes})
        told = await kube.wait(
            CLUSTERS, "prod", lambda found: said(found, "Stalled")[:2] == ("True", "InvalidSpec"))
        assert field in said(told, "Stalled")[2]
        assert condition(told, "Available") == "True"
        await kube.patch(CLUSTERS, "prod", {"spec": undone})
        await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Ready") == "True")

    leader = (await kube.get(SHARDS, "orders-0000"))["status"]["leader"]
    silent = [leader, next(name for name in members if name != leader)]
    for name in silent:
        pod_runner.container(name).process.send_signal(signal.SIGSTOP)
    try:
        await kube.wait(CLUSTERS, "prod", lambda found: (
            [node["name"] for node in found["status"]["nodes"] if not node["ready"]] == sorted(silent)))
        source = next(name for name in members if name not in silent)
        await rejected(kube, reconfiguration("h", "NodeSwap", nodeSwap={"from": source, "to": {"spread": {}}},
                                 preconditions={"fullyReplicated": "Ignored", "failureDomains": "Ignore"}),
                       "ShardsLeaderless", "orders-0000")
    finally:
        for name in silent:
            pod_runner.container(name).process.send_signal(signal.SIGCONT)
    await kube.wait(GROUPS, "orders", lambda found: condition(found, "Available") == "True")
