"""Partial partitions between real processes: the operator reaches every node, and nodes do not reach each other.

The proxy holds packets back and closes no connection, so what a leader notices first is silence.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark import Client

from tests.waiting import until

from .cluster import Cluster, condition
from .fault_proxy import Network
from .test_crashes import other_leader
from .workload import Workload, check_every_copy

pytestmark = pytest.mark.usefixtures("faultless")


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(3)


async def shown(cluster: Cluster, kind: str, name: str, of: str) -> tuple[str, str, str]:
    [found] = [item for item in await cluster.objects(kind) if name in ("", item["metadata"]["name"])]
    return condition(found, of)


async def test_o43_o44_a_leader_cut_off_from_its_followers_alone_is_replaced(
    cluster: Cluster, client: Client, network: Network
) -> None:
    """The fault of the field: the shard took nothing for as long as it lasted, and everything was shown as well."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, *followers = await cluster.members(group)
        network.cut(leader, *followers)

        heir = await until(lambda: other_leader(cluster, group, leader), "another member leads")
        assert heir in followers
        await load.more()

        async def tells() -> bool:
            return (await cluster.shard(group))["inSync"] == "2/3"

        await until(tells, "the old leader is not in sync")
        assert (await shown(cluster, "LogGroup", group, "FullyReplicated"))[0] == "False"
        assert (await shown(cluster, "TidemarkCluster", "", "FullyReplicated"))[0] == "False"
        network.heal()
        await load.more()
    await check_every_copy(cluster, client, load)


async def test_o45_a_follower_cut_off_from_its_leader_alone_is_not_in_sync(
    cluster: Cluster, client: Client, network: Network
) -> None:
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, follower, _ = await cluster.members(group)
        epoch = (await cluster.shard(group))["epoch"]
        network.cut(leader, follower)

        async def unheard() -> list[str]:
            status = await cluster.shard(group)
            return [member["node"] for member in status["ensemble"] if member["sync"] != "InSync"]

        async def tells() -> bool:
            return await unheard() == [follower]

        await until(tells, "the follower is not in sync")
        await load.more()
        status = await cluster.shard(group)
        assert (status["leader"], status["epoch"]) == (leader, epoch), "a majority acknowledges: no election"
        network.heal()

        async def whole() -> bool:
            return await unheard() == []

        await until(whole, "every copy is in sync again")
    await check_every_copy(cluster, client, load)
