"""The operator put together, against a real etcd and nodes that only take maps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc.aio
import pytest
from fake_node import FakeNode
from tidemark_operator.admin import add_admin
from tidemark_operator.metadata import NodeRecord
from tidemark_operator.service import OperatorService
from tidemark_wire.channel import bind, open_channel
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc, common_pb2

from tests.waiting import until

CLUSTER = """
apiVersion: tidemark.dev/v1alpha1
kind: TidemarkCluster
metadata: {name: dev}
spec:
  version: 0.1.0
  metadataStore: {etcd: {endpoints: ["http://etcd:2379"]}}
  nodePools: [{name: default, replicas: 3, storage: {data: {size: 1Gi}}}]
"""
GROUP = """
apiVersion: tidemark.dev/v1alpha1
kind: LogGroup
metadata: {name: orders}
spec: {clusterRef: {name: dev}, shards: 2, replication: {factor: 3%s}}
"""

SWAP = """
apiVersion: tidemark.dev/v1alpha1
kind: Reconfiguration
metadata: {name: swap}
spec:
  {clusterRef: {name: dev}, type: NodeSwap, nodeSwap: {from: n1, to: {spread: {}}}%s}
"""


@pytest.fixture
async def three() -> AsyncIterator[list[FakeNode]]:
    made = [FakeNode(f"n{i}", f"n{i}-life") for i in (1, 2, 3)]
    for one, zone in zip(made, "abb", strict=True):
        one.description.zone = zone
        await one.start()
    yield made
    for one in made:
        await one.stop()


@pytest.fixture
async def service(etcd, three: list[FakeNode]) -> AsyncIterator[OperatorService]:
    await etcd.ready()
    service = OperatorService([etcd.url], "/t", "dev")
    await service.start()
    await until(lambda: service.active)
    for one in three:
        await service.store.put(
            service.keys.node(one.description.node), NodeRecord(one.description.node, one.address).encode(),
            expected=0)
    yield service
    await service.stop()


def shown(node: FakeNode) -> common_pb2.GroupInfo | None:
    return next(iter(node.newest_map.groups), None)


async def test_what_decides_when_a_record_is_confirmed_reaches_every_node_by_an_apply(
    service: OperatorService, three: list[FakeNode]
) -> None:
    def held(*wanted: object) -> bool:
        return all(
            (seen := shown(one)) is not None and wanted == (
                seen.synchro_quorum, seen.synchro_zones, seen.quorum_timeout_ms, seen.rollback)
            for one in three)

    assert await service.objects.apply(CLUSTER + "---" + GROUP % "") == [
        "TidemarkCluster/dev created", "LogGroup/orders created"]
    await until(lambda: held("", 0, 5_000, "Definite"))
    boots, versions = [one.links_made for one in three], [one.newest_map.version for one in three]

    more = ", synchroQuorum: 'max(N-1, 3)', synchroZones: 2, quorumTimeoutSeconds: 1, rollback: Immediate"
    (done,) = await service.objects.apply(GROUP % more)
    assert done.startswith("LogGroup/orders configured; warning: spec.replication.rollback") and "Zones" not in done
    await until(lambda: held("max(N-1, 3)", 2, 1_000, "Immediate"))
    assert all(one.newest_map.version > before for one, before in zip(three, versions, strict=True))
    assert boots == [one.links_made for one in three], "nothing was linked anew for it"
    (status,) = [item["status"] for item in service.show("LogGroup", "orders") or ()]
    assert status["quorum"] == "3/3"
    assert {item["status"]["synchroQuorum"] for item in service.show("Shard", "") or ()} == {3}

    assert await service.objects.apply(GROUP % ", synchroQuorum: 2") == ["LogGroup/orders configured"]
    await until(lambda: held("2", 0, 5_000, "Definite"))


async def test_zones_that_no_node_stands_in_are_warned_of_until_a_node_brings_one(
    service: OperatorService, three: list[FakeNode]
) -> None:
    await until(lambda: service.zones() == {"a", "b"})
    _, done = await service.objects.apply(CLUSTER + "---" + GROUP % ", synchroZones: 3")
    assert done == (
        "LogGroup/orders created; warning: spec.replication.synchroZones: asks for 3 zones, the nodes that are up "
        "stand in 2: quorum appends are not confirmed until there are more")

    def reachable() -> dict[str, str]:
        (status,) = [item["status"] for item in service.show("LogGroup", "orders") or ()]
        (found,) = [item for item in status["conditions"] if item["type"] == "QuorumReachable"]
        return found

    await until(lambda: reachable()["reason"] == "NotEnoughZones")
    assert reachable()["message"].startswith("orders-0000 needs members in 3 zones, they are in 2")
    three[2].description.zone = "c"
    await three[2].stop()
    await until(lambda: service.zones() == {"a", "b"})
    await three[2].start()
    await until(lambda: reachable()["status"] == "True", 15)


async def test_where_nodes_stand_is_in_the_map_while_they_are_away_too(
    service: OperatorService, three: list[FakeNode]
) -> None:
    await service.objects.apply(CLUSTER)

    def told() -> list[tuple[str, bool]]:
        return [(node.location, node.available) for node in three[0].newest_map.nodes]

    await until(lambda: told() == [("", True)] * 3)
    three[2].description.location = "region=eu,zone=b"
    await three[2].stop()
    await until(lambda: told()[2] == ("", False))
    await three[2].start()
    await until(lambda: told()[2] == ("region=eu,zone=b", True), 15)
    await three[2].stop()
    await until(lambda: told()[2] == ("region=eu,zone=b", False))


async def test_watchers_hear_of_a_group_without_room_though_nothing_else_happens(
    service: OperatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    await service.objects.apply(CLUSTER)
    await until(lambda: len(service.nodes()) == 3)
    look, seen = service.keeper.look, asyncio.Event()

    async def look_later(*world: object) -> object:
        await seen.wait()  # the watcher has seen the new object by then
        return await look(*world)

    monkeypatch.setattr(service.keeper, "look", look_later)
    changed = service.add_watcher()
    await service.objects.apply(GROUP.replace("factor: 3%s", "factor: 9"))
    async with asyncio.timeout(30):
        while not (groups := service.show("LogGroup", "")) or not any(
                item["reason"] == "NotEnoughNodes" for item in groups[0]["status"]["conditions"]):
            if groups:
                seen.set()
            await changed.wait()
            changed.clear()
    service.remove_watcher(changed)


async def test_nothing_is_changed_by_hand_on_metadata_that_nodes_know_to_be_old(service: OperatorService) -> None:
    assert len(await service.objects.apply(CLUSTER + "---" + GROUP % "")) == 2
    server = grpc.aio.server()
    add_admin(server, service)
    port = bind(server, "127.0.0.1:0")
    await server.start()
    service.behind = "n1 holds shard 1/0 in epoch 5, etcd has it in epoch 4"
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            admin = admin_pb2_grpc.AdminStub(channel)
            for asked in (
                lambda: admin.Apply(admin_pb2.ApplyRequest(manifests=GROUP % ", synchroQuorum: 2"), timeout=10),
                lambda: admin.Delete(admin_pb2.DeleteRequest(kind="LogGroup", name="orders"), timeout=10),
                lambda: admin.Change(admin_pb2.ChangeRequest(operation="SWAP", group="orders"), timeout=10).read(),
            ):
                with pytest.raises(grpc.aio.AioRpcError, match="etcd has it in epoch 4"):
                    await asked()
    finally:
        await server.stop(None)
    stored = service.mirror.groups["orders"].value
    assert (stored.generation, stored.detached) == (1, False)


async def test_nodes_are_told_how_fast_the_copies_of_a_reconfiguration_may_move(
    service: OperatorService, three: list[FakeNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.reconfigurer, "look", lambda: None)  # it is at what is stored for it

    def told(rate: int) -> bool:
        return all(one.newest_map.snapshot_bytes_per_second == rate for one in three)

    await service.objects.apply(CLUSTER)
    await service.objects.apply(SWAP % ", throttle: {bytesPerSecondPerNode: 50Mi}")
    await service.objects.save_status("swap", {"stage": "AwaitingApproval"})
    await until(lambda: all(one.newest_map.version for one in three))
    assert told(0), "it may never be approved"
    await service.objects.save_status("swap", {"stage": "Moving"})
    await until(lambda: told(50 << 20))
    await service.objects.apply(SWAP % ", throttle: {bytesPerSecondPerNode: 1Gi}")
    await until(lambda: told(1 << 30))
    versions = [one.newest_map.version for one in three]
    await service.objects.save_status("swap", {"stage": "Moving", "observedGeneration": 2})
    await service.objects.apply(SWAP % "")
    await until(lambda: told(0))
    assert [one.newest_map.version for one in three] == [version + 1 for version in versions], "of nothing else"
    await service.objects.apply(SWAP % ", throttle: {bytesPerSecondPerNode: 2Gi}")
    await until(lambda: told(2 << 30))
    await service.objects.save_status("swap", {"stage": "Finished"})
    await until(lambda: told(0))


async def test_a_node_that_is_vetted_has_not_joined_yet(
    service: OperatorService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a status in between would say who it is, and nobody would be told that it joined."""
    asked, vetted = asyncio.Event(), asyncio.Event()

    async def vet(*_: object) -> None:
        asked.set()
        await vetted.wait()

    monkeypatch.setattr(service.witness, "vet", vet)
    new = FakeNode("n4", "n4-life")
    await new.start()
    try:
        await service.store.put(service.keys.node("n4"), NodeRecord("n4", new.address).encode(), expected=0)
        await asyncio.wait_for(asked.wait(), 10)
        assert (service.nodes()["n4"].up, service.nodes()["n4"].member) == (False, None)
        vetted.set()
        await until(lambda: service.nodes()["n4"].up)
        assert str(service.nodes()["n4"].member) == "n4/n4-life"
    finally:
        await new.stop()
