"""Damage on disk: never served, repaired from a peer; a log that cannot be trusted does not vote and is rebuilt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark import Client
from tidemark_core.base.ids import Member

from tests.waiting import remains, until

from .cluster import Cluster
from .disk import damage_log, flip_payloads, stored_payloads
from .workload import Workload, check_every_copy, check_read_back

RECORD_BYTES = 2_000


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


async def test_damaged_batches_are_repaired_on_the_leader_and_on_followers(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more(200)
    await cluster.replicated(group)
    leader, first, second = await cluster.members(group)
    number = await cluster.shard_number(group)
    cluster.kill("operator", leader, first, second)
    whole = stored_payloads(cluster, second, number)
    damaged = {
        leader: flip_payloads(cluster, leader, number, every=7),
        first: flip_payloads(cluster, first, number, every=7, first=3),
    }
    await cluster.heal()
    await check_every_copy(cluster, client, load)
    for name, offsets in damaged.items():
        told = " ".join(await cluster.told(name, "entry_repaired"))
        assert all(f":{offset}" in told for offset in offsets[:3]), (name, offsets, told)
    cluster.kill(leader, first)
    for name in (leader, first):
        assert stored_payloads(cluster, name, number).items() >= whole.items(), f"{name} is whole on disk again"


async def test_copy_is_made_from_a_leader_with_damage(cluster: Cluster, client: Client):
    """A snapshot and the catching up of a follower read the leader's disk as readers do."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more(200)
    await cluster.replicated(group)
    leader, leaver, _ = await cluster.members(group)
    (spare,) = await cluster.spares(group)
    number = await cluster.shard_number(group)
    cluster.kill("operator", leader)
    flip_payloads(cluster, leader, number, every=15)
    await cluster.heal()
    await cluster.transfer(group, 0, leader)
    async with Workload(client, group, name="later") as later:
        await later.more()
        await cluster.finished(await cluster.reconfigure(
            "NodeSwap", {"from": leaver, "to": {"node": spare}, "removeSource": "Keep"}))
    assert spare in await cluster.members(group)
    await check_every_copy(cluster, client, load, later)


@pytest.mark.parametrize("loss", ["damaged log", "wiped disk"])
async def test_lost_disk_gets_a_new_life_and_its_old_slot(cluster: Cluster, client: Client, loss: str):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group, value_bytes=RECORD_BYTES) as load:
        await load.more(100)
        victim = await cluster.leader(group)
        held = [shard for shard in (0, 1) if victim in await cluster.members(group, shard)]
        before = await cluster.member(victim)
        cluster.kill(victim)
        await load.more_on_every_shard()
        lose(cluster, victim, loss)
        await cluster.start(victim)
        after = await cluster.member(victim)
        assert after != before and after.node == before.node
        await load.more()
    for shard in held:
        await until(lambda shard=shard: holds(cluster, group, shard, after), f"{after} is back in its slot")
    await check_every_copy(cluster, client, load)
    if loss == "damaged log":
        assert (Path(cluster.node(victim).data) / "store.damaged-1").is_dir(), "the old bytes are kept"


async def test_lost_disk_does_not_vote(cluster: Cluster, client: Client):
    """Of three copies one is lost and one is away: what is left is no quorum, and must not become one."""
    group = await cluster.create_group()
    async with Workload(client, group, value_bytes=RECORD_BYTES) as load:
        await load.more(100)
    leader, lost, _ = await cluster.members(group)
    cluster.kill(leader, lost)
    lose(cluster, lost, "damaged log")
    epoch = (await cluster.shard(group))["epoch"]
    await cluster.start(lost)
    await until(lambda: linked(cluster, lost), f"the operator sees {lost}")

    async def leaderless() -> bool:
        shard = await cluster.shard(group)
        return shard["leader"] == "" and shard["epoch"] >= epoch

    await until(leaderless, "the shard has no leader")
    await remains(leaderless, for_s=1.0)  # several rounds of fencing
    await cluster.start(leader)
    await check_read_back(client, load)
    await check_every_copy(cluster, client, load)


def lose(cluster: Cluster, node: str, loss: str) -> None:
    if loss == "wiped disk":
        cluster.runtime.wipe(node)
    else:
        damage_log(cluster, node)


async def holds(cluster: Cluster, group: str, shard: int, member: Member) -> bool:
    """Say whether the node has the shard's log as a member, in the life of its disk that it has now."""
    names = await cluster.members(group, shard)
    found = await cluster.replica(member.node, group, shard)
    return member.node in names and found.get("role") in ("FOLLOWER", "LEADER")


async def linked(cluster: Cluster, node: str) -> bool:
    (item,) = await cluster.objects("TidemarkCluster")
    return any(entry["name"] == node and entry["ready"] for entry in item["status"]["nodes"])
