"""Keyspaces under a mixed load: nodes are killed, paused, wiped and given old disks; in the end owners are equal."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark import Client
from tidemark_cli.demo.keys import victims
from tidemark_core.base.ids import Member

from tests.keyspace_load import KeyLoad
from tests.waiting import until

from .cluster import Cluster, condition
from .disk import put_back
from .marks import marks_of

PARTITIONS = 8
CALL_S = 2.0
SLOPPY = {"consistency": "Eventual", "replication": {"quorumMode": "Sloppy"}}


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(5)


async def owned_by(client: Client, name: str, members: set[Member]) -> bool:
    """Say whether no range moves, and each is owned by some of these members."""
    client.routing.refresh_soon()
    ring = await client.routing.find_keyspace(name)
    return all(record.pending is None and members.issuperset(record.own.members) for record in ring.ranges)


async def busiest(client: Client, name: str) -> list[str]:
    """Return nodes, those that own most ranges first."""
    ring = await client.routing.find_keyspace(name)
    owners = [member.node for record in ring.ranges for member in record.own.members]
    return sorted(set(owners), key=lambda node: (-owners.count(node), node))


async def test_d74_killed_paused_and_wiped_owners_hold_every_acknowledged_operation(cluster: Cluster, client: Client):
    """One fault after the other on a strict keyspace; nothing that was deleted is visible at any owner."""
    name = await cluster.create_keyspace(partitions=PARTITIONS)
    killed, paused, wiped, *_ = await busiest(client, name)
    keyspace = client.keyspace(name, timeout_s=CALL_S)
    async with KeyLoad(keyspace) as load:
        await load.more()
        cluster.kill(killed)
        await load.more()
        await cluster.start(killed)
        cluster.pause(paused)
        await load.more()
        cluster.resume(paused)
        await load.more()
        before = await cluster.member(wiped)
        cluster.kill(wiped)
        cluster.runtime.wipe(wiped)
        await cluster.start(wiped)
        await load.more()
        living = {await cluster.member(node) for node in cluster.nodes}
        assert before not in living
        await until(lambda: owned_by(client, name, living), "the wiped node is swapped out of every range")
        await load.more()
    await load.healed()
    assert (0, 0, ()) == await load.verdict()


async def test_d74_an_owner_with_an_older_copy_of_its_disk_gets_what_that_lacks(
    cluster: Cluster, client: Client, tmp_path: Path
):
    """The copy has values that were deleted since, and lacks writes that its node has acknowledged.

    No mark tells the operator that it is a copy.
    """
    name = await cluster.create_keyspace(partitions=PARTITIONS)
    copied, away, *_ = await busiest(client, name)
    async with KeyLoad(client.keyspace(name, timeout_s=CALL_S)) as load:
        await load.more()
        cluster.kill(copied)
        shutil.copytree(cluster.node(copied).data, tmp_path / "copy")
        await load.more()
        await cluster.start(copied)
        await load.more()
        cluster.kill(away)
        await load.more()
        await cluster.start(away)
        await load.healed()
        cluster.kill(copied)
        put_back(cluster, copied, tmp_path / "copy")
        async with marks_of(cluster) as marks:
            await marks.forget(copied)
        await load.more()
        await cluster.start(copied)
        await load.more()
        assert cluster.node(copied).running
    await load.healed()
    assert (0, 0, ()) == await load.verdict()


async def test_d52_an_owner_with_an_older_copy_of_its_disk_is_noticed_and_comes_back_as_a_new_member(
    cluster: Cluster, client: Client, tmp_path: Path
):
    name = await cluster.create_keyspace(partitions=PARTITIONS)
    copied, *_ = await busiest(client, name)
    async with marks_of(cluster) as marks, KeyLoad(client.keyspace(name, timeout_s=CALL_S)) as load:
        await load.more()
        cluster.kill(copied)
        shutil.copytree(cluster.node(copied).data, tmp_path / "copy")
        await marks.forget(copied)
        await cluster.start(copied)
        await marks.above(copied, 0)
        first, before = await marks.of(copied), await cluster.member(copied)
        await load.more()
        cluster.kill(copied)
        await cluster.start(copied)
        await marks.above(copied, first)    # so it is above the copy's
        cluster.kill(copied)
        put_back(cluster, copied, tmp_path / "copy")
        await cluster.start(copied)
        await until(lambda: not cluster.node(copied).running, "the node gives up its disk and stops")
        await load.more()
        await cluster.start(copied)
        assert before.node == copied and before != await cluster.member(copied)
        living = {await cluster.member(node) for node in cluster.nodes}
        await until(lambda: owned_by(client, name, living), "the node is swapped out of every range")
        await load.more()
    await load.healed()
    assert (0, 0, ()) == await load.verdict()


async def test_d73_hints_bring_back_what_two_owners_missed_at_once(cluster: Cluster, client: Client):
    """Two nodes that share ranges are away at once, in a sloppy keyspace of Strings."""
    name = await cluster.create_keyspace(partitions=PARTITIONS, **SLOPPY)
    killed = await victims(client, name)
    keyspace = client.keyspace(name, timeout_s=CALL_S)
    async with KeyLoad(keyspace, names=12, elements=False) as load:
        await load.more()
        cluster.kill(*killed)
        await load.more()

        async def kept() -> bool:
            known = await keyspace.ranges(timeout_s=CALL_S)
            return any(shown.hints for said in known.nodes.values() for shown in said.ranges)

        await until(kept, "nodes keep writes for owners that are away")
        await cluster.start(*killed)
        await load.more()
    await load.healed()
    assert (0, 0, ()) == await load.verdict()


async def test_d52_a_cluster_of_older_copies_keeps_its_disks_and_a_person_accepts_them(
    cluster: Cluster, client: Client, tmp_path: Path
):
    """All disks are put back from copies of one moment: none is given up, for there is nothing to fill it from."""
    name = await cluster.create_keyspace(partitions=PARTITIONS)
    keyspace = client.keyspace(name, timeout_s=CALL_S)
    await keyspace.set(b"kept", b"1")

    async def held() -> list[tuple[str, str, str]]:
        (item,) = await cluster.objects("TidemarkCluster")
        return [condition(item, each["type"]) for each in item["status"]["conditions"]
                if each["type"] == "DataLossSuspected"]

    def all_held() -> bool:
        told = cluster.operator_said(r"the disk of (\S+) is an older copy of itself, and is kept")
        return {each[1] for each in told} == set(cluster.nodes)

    cluster.kill(*cluster.nodes)
    for node in cluster.nodes:
        shutil.copytree(cluster.node(node).data, tmp_path / node)
    await cluster.start(*cluster.nodes)
    await cluster.ready()
    async with marks_of(cluster) as marks:
        first = {node: await marks.of(node) for node in cluster.nodes}
        async with KeyLoad(keyspace, names=64) as load:
            await load.more(2000)   # many keys: every node writes far more than when it starts
        cluster.kill(*cluster.nodes)
        await cluster.start(*cluster.nodes)
        for node in cluster.nodes:
            await marks.above(node, first[node] + 500)
        members = [await cluster.member(node) for node in cluster.nodes]
        cluster.kill(*cluster.nodes)
        for node in cluster.nodes:
            put_back(cluster, node, tmp_path / node)
        await cluster.start(*cluster.nodes)
        await until(all_held, "the operator names every node")
        assert [reason for _, reason, _ in await held()] == ["DisksOlder"]
        for node in cluster.nodes:
            await marks.forget(node)

        async def accepted() -> bool:
            return not await held()

        await until(accepted, "the condition is gone")
    await cluster.ready()
    assert members == [await cluster.member(node) for node in cluster.nodes]
    assert (await keyspace.get(b"kept")).value == b"1"
