"""Keyspaces while the network is cut: in the end owners hold what was acknowledged, and nothing deleted is visible.

The proxy holds packets back, so they arrive behind the cut; where it also breaks connections off, they are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from tidemark import Client

from tests.keyspace_load import KeyLoad

from .cluster import Cluster
from .fault_proxy import Network
from .test_keyspaces import CALL_S, PARTITIONS, busiest

pytestmark = pytest.mark.usefixtures("faultless")
NAMES = 12
"""Of each sort, for each writer: every cut leaves some last outcomes unknown, and most must be certain."""


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


def others(cluster: Cluster, name: str) -> list[str]:
    return [node for node in cluster.nodes if node != name]


async def test_d74_owners_that_were_cut_off_hold_every_acknowledged_operation(
    cluster: Cluster, client: Client, network: Network
):
    """From all other nodes with the operator, from the nodes alone, and in one direction; clients reach all of them."""
    name = await cluster.create_keyspace(partitions=PARTITIONS)
    lone, deaf, dumb, *_ = await busiest(client, name)
    async with KeyLoad(client.keyspace(name, timeout_s=CALL_S), names=NAMES) as load:
        await load.more()
        network.cut(lone, *others(cluster, lone), "operator")
        await load.more()
        for other in others(cluster, lone):
            network.break_off(lone, other)
        network.heal()
        await load.more()
        for other in others(cluster, deaf):
            network.cut_one_way(other, deaf)
        await load.more()
        network.heal()
        await load.more()
        network.cut_one_way(dumb, *others(cluster, dumb))
        await load.more()
        network.heal()
        await load.more()
    await load.healed()
    assert (0, 0, ()) == await load.verdict()


async def test_d74_pairs_of_owners_that_do_not_hear_each_other_hold_every_acknowledged_operation(
    cluster: Cluster, client: Client, network: Network
):
    """Both hear the other owners: a write at one of two and a delete at the other one meet at those."""
    name = await cluster.create_keyspace(partitions=PARTITIONS)
    nodes = await busiest(client, name)
    async with KeyLoad(client.keyspace(name, timeout_s=CALL_S), names=NAMES) as load:
        await load.more()
        for number, (one, other) in enumerate(pairwise([*nodes, nodes[0]])):
            network.cut(one, other)
            await load.more()
            if number % 2:
                network.break_off(one, other)
            network.heal()
            await load.more()
        one, other, *rest = nodes
        network.cut(one, other)
        network.cut(*rest)
        await load.more()
        network.heal()
        await load.more()
    await load.healed()
    assert (0, 0, ()) == await load.verdict()
