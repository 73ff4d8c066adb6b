"""A key prefix or a node that belongs to another cluster is left alone, and the cluster's status names it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from fake_node import FakeNode
from tidemark_operator.admin import add_admin
from tidemark_operator.etcd import EtcdStore
from tidemark_operator.metadata import Keys, NodeRecord
from tidemark_operator.service import OperatorService
from tidemark_wire.channel import bind, open_channel
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc

from tests.waiting import until

CLUSTER = """
apiVersion: tidemark.dev/v1alpha1
kind: TidemarkCluster
metadata: {name: dev}
spec:
  version: 0.1.0
  metadataStore: {etcd: {endpoints: ["http://etcd:2379"]}}
  nodePools: [{name: default, replicas: 1, storage: {data: {size: 1Gi}}}]
"""
GROUP = """
apiVersion: tidemark.dev/v1alpha1
kind: LogGroup
metadata: {name: orders}
spec: {clusterRef: {name: %s}, shards: 1, replication: {factor: 3}}
"""

KEYS = Keys("/t")


def conditions(service: OperatorService) -> dict[str, tuple[str, str, str]]:
    (shown,) = service.show("TidemarkCluster", "") or ()
    return {
        each["type"]: (each["status"], each["reason"], each.get("message", ""))
        for each in shown["status"]["conditions"]}


@pytest.fixture
async def node() -> AsyncIterator[FakeNode]:
    made = FakeNode("dev-1", "life-1")
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def service(etcd: Any, node: FakeNode) -> AsyncIterator[OperatorService]:
    """The operator of the cluster `dev` with one node; it is active."""
    await etcd.ready()
    service = OperatorService([etcd.url], "/t", "dev")
    await service.start()
    await until(lambda: service.active)
    await service.store.put(service.keys.node("dev-1"), NodeRecord("dev-1", node.address).encode(), expected=0)
    assert await service.objects.apply(CLUSTER) == ["TidemarkCluster/dev created"]
    yield service
    await service.stop()


async def test_the_metadata_of_another_cluster_is_left_alone(
    etcd: Any, service: OperatorService, node: FakeNode
) -> None:
    other = OperatorService([etcd.url], "/t", "other")
    await other.start()
    try:
        await until(lambda: other.mirror.loaded)
        message = "/t in etcd holds the metadata of the cluster 'dev', this operator runs 'other'"
        shown = conditions(other)
        assert shown["MetadataStoreReachable"] == ("False", "ClusterIDMismatch", message)
        assert shown["Stalled"] == ("True", "ClusterIDMismatch", message)
        assert shown["Ready"] == ("False", "Stalled", message)
        assert not list(other.links), "it dials no node of that cluster"

        server = grpc.aio.server()
        add_admin(server, other)
        port = bind(server, "127.0.0.1:0")
        await server.start()
        async with open_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="holds the metadata of the cluster 'dev'"):
                await admin_pb2_grpc.AdminStub(channel).Apply(
                    admin_pb2.ApplyRequest(manifests=GROUP % "other"), timeout=10)
        await server.stop(None)

        # The lease is free now, and an operator of this cluster would take it within a second.
        before = (await service.store.load("/t/")).items
        await service.lease.stop()
        successor = OperatorService([etcd.url], "/t", "dev")
        await successor.start()
        await until(lambda: successor.active)
        assert not other.active
        after = (await successor.store.load("/t/")).items
        await successor.stop()
        assert {key for key in before if key not in after} <= {service.keys.operator}
        assert before[service.keys.node("dev-1")].value == after[service.keys.node("dev-1")].value
    finally:
        await other.stop()


async def test_an_operator_whose_metadata_is_replaced_by_another_clusters_steps_back(
    service: OperatorService, node: FakeNode
) -> None:
    await until(lambda: any(link.up for link in service.links))
    key = service.keys.object("TidemarkCluster", "dev")
    item = await service.store.get(key)
    assert item is not None
    await service.store.put(
        key, item.value.replace(b'"name":"dev"', b'"name":"other"'), expected=item.revision)
    await until(lambda: not service.active and not list(service.links))
    await until(lambda: not service.mirror.active_operator)
    assert conditions(service)["MetadataStoreReachable"][:2] == ("False", "ClusterIDMismatch")
    assert await service.store.get(service.keys.operator) is None, "the lease is free for the other cluster's operator"

    changed = await service.store.get(key)
    assert changed is not None
    await service.store.put(key, item.value, expected=changed.revision)
    await until(lambda: service.active and any(link.up for link in service.links))
    assert conditions(service)["MetadataStoreReachable"][:2] == ("True", "Connected")


async def rename(store: EtcdStore, old: bytes, new: bytes) -> None:
    """Make the key prefix that of the cluster `new`."""
    key = KEYS.object("TidemarkCluster", "dev")
    item = await store.get(key)
    assert item is not None
    renamed = item.value.replace(b'"name":"%s"' % old, b'"name":"%s"' % new)
    assert renamed != item.value
    await store.put(key, renamed, expected=item.revision)


@pytest.mark.parametrize("at_start", [True, False])
async def test_an_operator_takes_part_once_the_key_prefix_is_its_own_again(
    etcd: Any, node: FakeNode, tmp_path: Path, at_start: bool
) -> None:
    """It holds the lease and stores the nodes of its machine again, without a restart."""
    await etcd.ready()
    store = EtcdStore([etcd.url])
    (tmp_path / "dev-1.json").write_text(json.dumps({"node": "dev-1", "address": node.address}), encoding="utf-8")
    first = OperatorService([etcd.url], "/t", "dev", nodes_directory=tmp_path)
    await first.start()
    await until(lambda: first.active)
    assert await first.objects.apply(CLUSTER) == ["TidemarkCluster/dev created"]
    await until(lambda: "dev-1" in first.mirror.nodes)
    if at_start:
        await first.stop()
        await rename(store, b"dev", b"other")
    operator = OperatorService([etcd.url], "/t", "dev", nodes_directory=tmp_path) if at_start else first
    try:
        if at_start:
            await operator.start()
        else:
            await rename(store, b"dev", b"other")
        await until(lambda: bool(operator.foreign) and not operator.active and not operator.mirror.active_operator)
        stored = await store.get(KEYS.node("dev-1"))
        assert stored is not None
        await store.delete(KEYS.node("dev-1"), expected=stored.revision)
        await until(lambda: "dev-1" not in operator.mirror.nodes)
        await rename(store, b"other", b"dev")
        await until(lambda: operator.active, "it holds the lease again")
        await until(lambda: "dev-1" in operator.mirror.nodes, "it stores the nodes of its machine again")
        await until(lambda: any(link.up for link in operator.links))
    finally:
        await operator.stop()
        await store.close()


async def test_a_key_prefix_that_changes_hands_and_back_at_once_leaves_the_operator_active(
    service: OperatorService
) -> None:
    await until(lambda: any(link.up for link in service.links))
    before = service.mirror.cluster
    await rename(service.store, b"dev", b"other")
    await rename(service.store, b"other", b"dev")
    await until(
        lambda: before is not None and service.mirror.cluster is not None
        and service.mirror.cluster.revision >= before.revision + 2, "it saw both")
    await until(lambda: not service.foreign and service.active and service.driver.active)
    await until(lambda: any(link.up for link in service.links))


async def test_a_node_of_another_cluster_is_not_linked_and_named(service: OperatorService, node: FakeNode) -> None:
    await until(lambda: conditions(service)["Ready"][:2] == ("True", "Reconciled"))
    node.description.cluster = "test"
    await node.break_links()
    await until(lambda: conditions(service)["Ready"][1] == "ClusterIDMismatch")
    assert conditions(service)["Ready"] == (
        "False", "ClusterIDMismatch",
        f"dev-1: {node.address} is a node of the cluster 'test', not of 'dev'.")
    assert not any(link.up for link in service.links)
    made = node.links_made

    node.description.cluster = "dev"
    await until(lambda: conditions(service)["Ready"][:2] == ("True", "Reconciled"))
    assert node.links_made == made + 1
