"""What `test_namespaces` runs in network namespaces, with the defaults of failure detection.

Four readers tail while a node's cable is pulled.  The operator distinguishes a vanished machine from a
process that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from tidemark import Client

from tests.waiting import until

from .cluster import Cluster
from .namespaces import Cables
from .test_crashes import other_leader
from .test_delivery import SHARDS, tailing
from .workload import Workload, check_every_copy


@pytest.fixture(scope="module")
def cables(start_cluster: Callable[..., Cluster]) -> Iterator[tuple[Cluster, Cables]]:
    cluster = start_cluster(4, silence_ms=None)
    cables = Cables(cluster.nodes)
    asyncio.run(cluster.move(cables.prefix, cables.address))
    yield cluster, cables


@pytest.fixture(scope="module")
def cluster(cables: tuple[Cluster, Cables]) -> Cluster:
    return cables[0]


@pytest.fixture(autouse=True)
async def mended(cables: tuple[Cluster, Cables], healed: None) -> AsyncIterator[None]:
    yield
    cables[1].mend()


@pytest.mark.parametrize("role", ["sender", "leader"])
async def test_cable_is_pulled(cluster: Cluster, cables: tuple[Cluster, Cables], client: Client, role: str):
    """Nobody hears of it but by silence, and every record is read once and in order."""
    group = await cluster.create_group(shards=SHARDS)
    async with tailing(cluster, group) as tails:
        async with Workload(client, group) as load:
            await tails.more()
            lost = tails.sender() if role == "sender" else await cluster.leader(group)
            cables[1].pull(lost)
            await tails.fail_over()
            await tails.more(300)
            cables[1].mend()
            await tails.more(200)
            await tails.hear(lost)
        await tails.judge(load)
    await check_every_copy(cluster, client, load)


async def test_a_vanished_machine_is_distinguished_from_a_hung_process(
    cluster: Cluster, cables: tuple[Cluster, Cables], client: Client
):
    """Either is given up before its shard has another leader, once, and comes back without a further election."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        for machine in ("does not accept", "accepts"):
            lost, epoch = await cluster.leader(group), (await cluster.shard(group))["epoch"]
            if machine == "accepts":
                cluster.pause(lost)
            else:
                cables[1].pull(lost)
            await until(lambda lost=lost: other_leader(cluster, group, lost), "another member leads")
            await load.more_on_every_shard()
            led = await cluster.shard(group)
            assert led["epoch"] == epoch + 1, led
            down = cluster.operator_said(rf"{lost} is down: no answer for .* and its machine (.*) connections")
            elected = cluster.operator_said(rf"elected {led['leader']}\S* epoch {led['epoch']}\b")
            assert down[-1].group(1) == machine and down[-1].end() < elected[-1].start()
            if machine == "accepts":
                cluster.resume(lost)
            else:
                cables[1].mend()
            await cluster.ready()
            await cluster.replicated(group)
            assert (await cluster.shard(group))["epoch"] == epoch + 1
    await check_every_copy(cluster, client, load)
