"""Statuses: written when what is said changes, and never again; what stands in while a spec rests or is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.kube.api import KubeRefused
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.specs import written
from tidemark_operator.kube.statuses import StatusWriter
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.resources.kinds import WRITTEN
from tidemark_operator.status.standing import AbsentFacts, Standing, Standstill, absent_status


class Server:
    """Takes statuses; prunes what its schema does not know, as a real one does."""

    def __init__(self) -> None:
        self.requests = 0
        self.version = 1
        self.refuse = 0

    async def apply(self, body: dict[str, Any], subresource: str, manager: str) -> dict[str, Any]:
        self.requests += 1
        if self.refuse:
            raise KubeRefused(self.refuse, "", "no")
        assert (subresource, manager) == ("status", "tidemark-operator-status")
        self.version += 1
        made = copy.deepcopy(body)
        made["status"].pop("unknown", None)
        made["metadata"]["resourceVersion"] = str(self.version)
        return made


def group(**metadata: Any) -> dict[str, Any]:
    return {"apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "spec": {}, "metadata": {
        "namespace": "data", "name": "orders", "uid": "u1", "resourceVersion": "1", "generation": 1, **metadata}}


async def test_the_same_is_written_once() -> None:
    server, cache = Server(), Cache()
    writer = StatusWriter(server)  # type: ignore[arg-type]
    cache.learn(group())
    for status in ({"a": 1}, {"a": 1}, {"a": 1, "unknown": 2}, {"a": 1, "unknown": 2}, {"a": 3}):
        item = cache.get("data", "orders")
        assert item is not None
        await writer.write(cache, item, status)
    assert server.requests == 3
    # A new process finds its words there.
    item = cache.get("data", "orders")
    assert item is not None
    assert not await StatusWriter(server).write(cache, item, {"a": 3})  # type: ignore[arg-type]


async def test_what_somebody_else_wrote_is_put_right() -> None:
    server, cache = Server(), Cache()
    writer = StatusWriter(server)  # type: ignore[arg-type]
    cache.learn(group())
    await writer.write(cache, group(), {"a": 1})
    cache.learn({**group(resourceVersion="9"), "status": {"a": 7}})
    item = cache.get("data", "orders")
    assert item is not None
    assert await writer.write(cache, item, {"a": 1})


async def test_an_object_that_is_gone_is_no_failure_and_a_refusal_is() -> None:
    server = Server()
    writer = StatusWriter(server)  # type: ignore[arg-type]
    for server.refuse in (404, 409):
        assert not await writer.write(Cache(), group(), {"a": 1})
    server.refuse = 403
    with pytest.raises(KubeRefused):
        await writer.write(Cache(), group(), {"a": 1})


async def test_a_readiness_gate_is_written_when_it_turns() -> None:
    server, cache = Server(), Cache()
    writer = StatusWriter(server)  # type: ignore[arg-type]
    pod = {"kind": "Pod", "metadata": {"namespace": "data", "name": "prod-1", "uid": "u", "resourceVersion": "1"}}
    for holds, wrote in ((False, True), (False, False), (True, True), (True, False)):
        assert await writer.write_gate(cache, cache.get("data", "prod-1") or pod, holds) is wrote


def absent(facts: AbsentFacts, memory: ConditionMemory | None = None) -> dict[str, dict[str, Any]]:
    """Return the conditions of an object that is not in the store, each of which the closed list has."""
    status = absent_status(facts)
    if not status:
        return {}
    stamped = (memory or ConditionMemory()).stamp(facts.kind, "orders", 1, status)
    return {one["type"]: one for one in stamped["conditions"]}


@pytest.mark.parametrize("kind", WRITTEN)
def test_what_stands_in_is_on_the_list_of_conditions(kind: str) -> None:
    for paused in (False, True):
        for refused in ("", "spec.shards: no", "no (AdoptionMismatch)"):
            if kind == "LogGroup" or "Adoption" not in refused:
                shown = absent(AbsentFacts(kind, Standing(paused, refused)))
                assert bool(shown) is (bool(refused) or (paused and kind != "Reconfiguration"))
                assert not refused or shown["Stalled"]["status"] == "True"


@pytest.mark.parametrize("kind", ["LogGroup", "Keyspace", "Reconfiguration"])
def test_an_object_of_a_cluster_that_is_not_there_says_so_unless_it_is_refused(kind: str) -> None:
    assert absent(AbsentFacts(kind, orphan=True))["Stalled"]["reason"] == "ClusterNotFound"
    assert absent(AbsentFacts(kind, Standing(refused="no"), orphan=True))["Stalled"]["reason"] == "InvalidSpec"


def test_a_group_that_goes_shows_which_data_is_left_whatever_its_spec_says() -> None:
    shown = absent(AbsentFacts("LogGroup", Standing(paused=True, refused="no"), deleting="2 shards are left."))
    assert (shown["Ready"]["reason"], shown["Ready"]["message"]) == ("Deleting", "2 shards are left.")
    assert shown["Reconciling"]["status"] == "True"


def test_a_cluster_without_its_metadata_shows_why() -> None:
    away = absent(AbsentFacts("TidemarkCluster", unreachable="no endpoint answers"))
    assert (away["Ready"]["status"], away["MetadataStoreReachable"]["reason"]) == ("Unknown", "ConnectionFailed")
    for reason in (R.METADATA_STALE, R.CLUSTER_ID_MISMATCH):
        still = absent(AbsentFacts(
            "TidemarkCluster", unreachable="it was away", standstill=Standstill(reason, "it may not be trusted")))
        assert (still["Ready"]["reason"], still["Stalled"]["reason"]) == ("Stalled", reason)
        assert still["MetadataStoreReachable"]["reason"] == reason
        assert still["MetadataStoreReachable"]["message"] == "it may not be trusted"


def test_times_of_conditions_outlive_the_process() -> None:
    memory = ConditionMemory(now=lambda: "later")
    memory.learn("LogGroup", "orders", [{"type": "Ready", "status": "False", "lastTransitionTime": "long ago"}])
    shown = absent(AbsentFacts("LogGroup", Standing(paused=True)), memory)
    assert shown["Ready"]["lastTransitionTime"] == "long ago"
    assert shown["Ready"]["reason"] == "Paused"
    assert shown["Paused"]["lastTransitionTime"] == "later"
    assert "Paused" not in absent(AbsentFacts("LogGroup", Standing(refused="no")), memory)


def test_what_people_wrote_is_told_from_what_the_server_and_kubectl_added() -> None:
    item = group(labels={"a": "b"}, managedFields=[{}], annotations={
        "kubectl.kubernetes.io/last-applied-configuration": "{}", "kept": "yes"})
    assert written({**item, "status": {}}) == {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "spec": {},
        "metadata": {"name": "orders", "namespace": "data", "labels": {"a": "b"}, "annotations": {"kept": "yes"}}}
