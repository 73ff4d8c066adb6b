"""What `test_namespaces` runs in network namespaces: four readers tail while a node's cable is pulled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from tidemark import Client

from .cluster import Cluster
from .namespaces import Cables
from .test_delivery import SHARDS, tailing
from .workload import Workload, check_every_copy


@pytest.fixture(scope="module")
def cables(start_cluster: Callable[..., Cluster]) -> Iterator[tuple[Cluster, Cables]]:
    cluster = start_cluster(4)
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
