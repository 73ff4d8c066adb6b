"""Objects that an API server keeps, in a real etcd: their generations count, what is gone there is let go of here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from tidemark_core.base.refusals import Refused
from tidemark_operator.etcd import EtcdStore
from tidemark_operator.kube.api import Kind
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.nodes import address_of, missing_nodes
from tidemark_operator.kube.run import ClusterRun
from tidemark_operator.metadata import NODE_IDS, Keys, NodeRecord
from tidemark_operator.mirror import Mirror
from tidemark_operator.node_records import NodeRecords
from tidemark_operator.objects import Identity, Objects

KEYS = Keys("/t")


def manifest(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "tidemark.dev/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": "data"},
            "spec": spec if kind == "TidemarkCluster" else {"clusterRef": {"name": "dev"}, **spec}}


def cluster(name: str = "dev", **more: Any) -> dict[str, Any]:
    return manifest("TidemarkCluster", name, version="0.1.0", **{
        "metadataStore": {"etcd": {"endpoints": ["http://etcd:2379"]}},
        "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "1Gi"}}}], **more})


def identity(generation: int, uid: str = "uid-1") -> Identity:
    return Identity(uid, generation, "2026-01-01T00:00:00Z")


@pytest.fixture
def mirror() -> Mirror:
    return Mirror(KEYS)


@pytest.fixture
def objects(store: EtcdStore, mirror: Mirror) -> Objects:
    return Objects(store, KEYS, mirror, "dev", set)


async def test_generations_are_those_of_the_api_server(objects: Objects, mirror: Mirror) -> None:
    group = manifest("LogGroup", "orders", shards=2)
    assert await objects.adopt(group, identity(4)) == "LogGroup/orders created"
    stored = mirror.groups["orders"].value
    assert (stored.uid, stored.generation, stored.created) == ("uid-1", 4, "2026-01-01T00:00:00Z")
    assert await objects.adopt(group, identity(4)) == "LogGroup/orders unchanged"
    revision = mirror.groups["orders"].revision
    assert await objects.adopt(group, identity(4)) == "LogGroup/orders unchanged"
    assert mirror.groups["orders"].revision == revision, "nothing was written"
    await objects.adopt(group, identity(5))
    assert mirror.groups["orders"].value.generation == 5
    refused = await objects.adopt(manifest("LogGroup", "orders", shards=3), identity(6))
    assert isinstance(refused, Refused) and "spec.shards" in refused.message
    assert mirror.groups["orders"].value.generation == 5


async def test_a_group_that_is_gone_keeps_its_data_and_is_taken_up_again(objects: Objects, mirror: Mirror) -> None:
    group = manifest("LogGroup", "orders", shards=2, deletionPolicy="Delete")
    await objects.adopt(group, identity(1))
    number = mirror.groups["orders"].value.number
    assert await objects.let_go("LogGroup", "orders") is None
    assert mirror.groups["orders"].value.detached
    assert await objects.adopt(group, identity(1, "uid-2")) == "LogGroup/orders adopted"
    assert (mirror.groups["orders"].value.detached, mirror.groups["orders"].value.number) == (False, number)
    await objects.let_go("LogGroup", "orders")
    refused = await objects.adopt(manifest("LogGroup", "orders", shards=3), identity(1, "uid-3"))
    assert isinstance(refused, Refused) and "(AdoptionMismatch)" in refused.message


async def test_a_reconfiguration_that_runs_is_canceled_before_it_goes(objects: Objects, mirror: Mirror) -> None:
    drain = manifest("Reconfiguration", "drain", type="NodeSwap", nodeSwap={"from": "dev-1", "to": {"spread": {}}})
    await objects.adopt(drain, identity(1))
    await objects.save_status("drain", {"stage": "Moving"})
    assert isinstance(await objects.let_go("Reconfiguration", "drain"), Refused)
    assert mirror.reconfigurations["drain"].value.spec["cancel"] is True
    await objects.save_status("drain", {"stage": "Finished"})
    assert await objects.let_go("Reconfiguration", "drain") is None
    assert not mirror.reconfigurations


async def test_what_the_operator_made_itself_is_kept_once_it_was_shown(objects: Objects, mirror: Mirror) -> None:
    await objects.adopt(cluster(), identity(1))
    await objects.adopt(manifest("LogGroup", "orders", shards=2, replication={"factor": 3}), identity(1))
    await objects.adopt(manifest("LogGroup", "orders", shards=2, replication={"factor": 4}), identity(2))
    made = mirror.reconfigurations["orders-expand-2"].value
    assert (made.kept, made.manifest["metadata"]["namespace"]) == (False, "data")
    await objects.adopt(made.manifest, identity(1, "uid-7"))
    assert mirror.reconfigurations["orders-expand-2"].value.kept
    assert mirror.groups["orders"].value.kept


async def test_the_store_of_another_cluster_is_left_alone(store: EtcdStore, objects: Objects) -> None:
    await objects.adopt(cluster(), identity(1))
    other_mirror = Mirror(KEYS)
    other_mirror.apply(await store.load("/t/"))
    other = Objects(store, KEYS, other_mirror, "other", set)
    refused = await other.adopt(cluster("other"), identity(1))
    assert isinstance(refused, Refused) and "(ClusterIDMismatch)" in refused.message


async def test_two_operators_never_make_a_node_each(store: EtcdStore) -> None:
    pools = cluster()["spec"]["nodePools"]

    def make(mirror: Mirror) -> Awaitable[list[str]]:
        return NodeRecords(store, KEYS, mirror, "dev").make(lambda known: missing_nodes(pools, known))

    await asyncio.gather(*(make(Mirror(KEYS)) for _ in range(5)))
    names = {NodeRecord.decode(item.value).node for item in (await store.load("/t/nodes/")).items.values()}
    assert names == {"dev-1", "dev-2", "dev-3"}
    # A number is never used twice, though its node is gone.
    item = await store.get(KEYS.node("dev-3"))
    assert item is not None
    await store.delete(KEYS.node("dev-3"), expected=item.revision)
    mirror = Mirror(KEYS)
    assert await make(mirror) == ["dev-4"]
    assert mirror.counters[NODE_IDS] == 5


def test_an_address_is_that_of_a_pod_that_runs() -> None:
    pod = {"metadata": {}, "status": {"phase": "Running", "podIP": "10.0.0.7"}}
    assert address_of(pod) == "10.0.0.7:6690"
    assert address_of({**pod, "status": {"phase": "Running", "podIP": "fd00::7"}}) == "[fd00::7]:6690"
    assert address_of({**pod, "metadata": {"deletionTimestamp": "now"}}) == ""
    assert address_of({**pod, "status": {"phase": "Failed", "podIP": "10.0.0.7"}}) == ""
    assert address_of({"metadata": {}}) == ""


async def test_what_finished_long_ago_never_runs_again(objects: Objects, mirror: Mirror) -> None:
    """The store forgets old Reconfigurations; their objects go too, and are not taken for new ones before that."""
    drain = manifest("Reconfiguration", "drain", type="NodeSwap", nodeSwap={"from": "dev-1", "to": {"spread": {}}})
    asked: list[str] = []

    class Api:
        async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
            asked.append(f"{kind.plural}/{name} {uid}")

    caches = {kind: Cache() for kind in ("TidemarkCluster", "LogGroup", "Keyspace", "Reconfiguration", "Secret")}
    item = {**cluster(), "metadata": {"name": "dev", "namespace": "data"}}
    run = ClusterRun(item, Api(), caches, None, None, lambda: None)  # type: ignore[arg-type]
    run.service.objects, run.service.mirror, run.service.driver.active = objects, mirror, True
    for ended, deleted in (("2999-01-01T00:00:00Z", []), ("2020-01-01T00:00:00Z", ["reconfigurations/drain u1"])):
        finished = {**drain, "status": {"stage": "Finished", "completionTime": ended}}
        finished["metadata"] = {**drain["metadata"], "uid": "u1", "generation": 1, "resourceVersion": ended[:4],
                                "creationTimestamp": "2020-01-01T00:00:00Z"}
        caches["Reconfiguration"] = Cache()
        caches["Reconfiguration"].learn(finished)
        assert run.strays() == [("Reconfiguration", "drain")]
        assert not await run.accept(finished)
        assert asked == deleted
    assert not mirror.reconfigurations
    await run.service.store.close()


@pytest.mark.parametrize("kind", ["LogGroup", "Keyspace"])
async def test_what_goes_with_its_data_stays_until_that_is_gone(objects: Objects, mirror: Mirror, kind: str) -> None:
    shape = {"LogGroup": {"shards": 2}, "Keyspace": {"partitions": 2}}[kind]
    caches = {each: Cache() for each in ("TidemarkCluster", "LogGroup", "Keyspace", "Reconfiguration", "Secret")}
    told: list[str] = []

    class Api:
        version = 1

        async def merge(self, of: Kind, namespace: str, name: str, changes: dict[str, Any]) -> dict[str, Any]:
            known = caches[of.kind].get(namespace, name)
            assert known is not None
            self.version += 10
            metadata = {**known["metadata"], "finalizers": changes["metadata"]["finalizers"]}
            return {**known, "metadata": {**metadata, "resourceVersion": str(self.version)}}

    def item() -> dict[str, Any]:
        known = caches[kind].get("data", "one")
        assert known is not None
        return known

    events = SimpleNamespace(tell=lambda _item, reason, *_args, **_more: told.append(str(reason)))
    of_cluster = {**cluster(), "metadata": {"name": "dev", "namespace": "data"}}
    run = ClusterRun(of_cluster, Api(), caches, None, events, lambda: None)  # type: ignore[arg-type]
    run.service.objects, run.service.mirror, run.service.driver.active = objects, mirror, True
    await objects.adopt(cluster(), identity(1))
    made = manifest(kind, "one", deletionPolicy="Delete", **shape)
    made["metadata"] |= {
        "uid": "u", "generation": 1, "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    caches[kind].learn(made)
    assert await run.accept(item())
    assert item()["metadata"]["finalizers"] == ["tidemark.dev/data-deletion"] and run.ending() == []
    going = {**item(), "metadata": {**item()["metadata"], "deletionTimestamp": "now", "resourceVersion": "12"}}
    caches[kind].learn(going)
    assert not await run.accept(item())
    assert run.ending() == [(kind, "one")] and mirror.objects[kind]["one"].value.deleting
    assert item()["metadata"]["finalizers"] and told == []
    known = mirror.objects[kind]["one"]
    mirror.learn(KEYS.object(kind, "one"), None, known.revision + 1)
    assert not await run.accept(item())
    assert (item()["metadata"]["finalizers"], told, run.ending()) == ([], ["Deleted"], [])
    await run.service.store.close()


async def test_a_cluster_that_is_let_go_of_is_told_no_more() -> None:
    """Else an alert would wait for its leader for ever."""
    caches = {kind: Cache() for kind in ("TidemarkCluster", "LogGroup", "Keyspace", "Reconfiguration", "Secret")}
    item = {**cluster(), "metadata": {"name": "let-go-of", "namespace": "data"}}
    run = ClusterRun(item, None, caches, None, None, lambda: None)  # type: ignore[arg-type]
    labels = {"namespace": "data", "cluster": "let-go-of"}
    await run.start()
    assert REGISTRY.get_sample_value("tidemark_operator_leader", labels) == 0
    await run.stop()
    assert REGISTRY.get_sample_value("tidemark_operator_leader", labels) is None
