"""etcd's data is gone, or an old backup of it is in its place: nobody is elected below what nodes know, and
`tidemark recover-metadata` brings everything back, as docs/operations/restore-etcd.md has it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tidemark import Client
from tidemark_cli.certs import MADE_BY_OPERATOR
from tidemark_operator.local import LocalRuntimeError
from tidemark_operator.metadata import GROUP_IDS, KEYSPACE_IDS, MAP_TERMS, NODE_IDS

from tests.waiting import until

from .cluster import Cluster, condition
from .workload import Workload, check_every_copy

SILENCE_S = "4"
"""How long a node that is down is asked: all of it."""


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(5)


async def manifests(cluster: Cluster) -> str:
    """Return what was applied, as a person has it in a repository."""
    found: list[dict[str, Any]] = []
    for kind in ("TidemarkCluster", "LogGroup"):
        for item in await cluster.objects(kind):
            metadata = {key: value for key, value in item["metadata"].items() if key not in MADE_BY_OPERATOR}
            found.append({**{key: item[key] for key in ("apiVersion", "kind", "spec")}, "metadata": metadata})
    return yaml.safe_dump_all(found)


async def refuses_to_start(cluster: Cluster) -> str:
    """Start the operator, which finds that it may do nothing; return what it says, and stop it."""
    with pytest.raises(LocalRuntimeError) as refused:
        await cluster.start("operator")
    ran = await cluster.cli("dev", "stop", "operator")
    assert ran.code == 0, ran.err
    return str(refused.value)


async def stop_operator(cluster: Cluster) -> None:
    ran = await cluster.cli("dev", "stop", "operator")
    assert ran.code == 0, ran.err


async def epochs(cluster: Cluster, group: str) -> dict[str, int]:
    """Return the epoch that each living node promised for the group's first shard."""
    found = {}
    for view in cluster.runtime.status():
        if view.role == "node" and view.state == "Running":
            replica = await cluster.replica(view.name, group)
            if replica:
                found[view.name] = replica["epoch"]
    return found


async def test_everything_comes_back_when_the_data_of_etcd_is_deleted(
    cluster: Cluster, client: Client, tmp_path: Path
) -> None:
    group = await cluster.create_group(shards=3)
    file = tmp_path / "manifests.yaml"
    file.write_text(await manifests(cluster))
    before, started = await cluster.shard(group), time.time()
    async with Workload(client, group) as load:
        await load.more_on_every_shard()
        await stop_operator(cluster)
        cluster.kill("etcd")
        shutil.rmtree(cluster.directory / "etcd")
        await cluster.start("etcd")
        await load.more(200)  # led shards need neither

        said = await refuses_to_start(cluster)
        assert "has no record of it" in said and "recover-metadata" in said

        ran = await cluster.cli("recover-metadata", "--dry-run", "--json")
        assert ran.code == 0, ran.err
        plan = ran.document
        assert not plan["written"] and plan["groups"][0]["action"] == "detach", "nobody gave its manifest"
        assert {line["action"] for line in plan["shards"]} == {"write"} and len(plan["shards"]) == 3
        ran = await until(lambda: recovered(cluster, "-f", str(file)), "the lease of the operator that stopped is over")
        assert ran["groups"] == [{"name": group, "group_id": 1, "shards": 3, "action": "create"}]
        assert min(line["epoch"] for line in ran["shards"]) > before["epoch"]
        counters = ran["counters"]
        above = counters.pop(KEYSPACE_IDS)  # nodes do not say which they hold: minutes since 1970 are more
        assert started // 60 <= above <= time.time() // 60
        assert counters == {GROUP_IDS: 2, NODE_IDS: 6, MAP_TERMS: counters[MAP_TERMS]}

        again = await cluster.cli("recover-metadata", "--json")
        assert again.code == 1 and again.document["error"] == "RECOVERY_REFUSED", "it is not empty any more"

        await cluster.start("operator")
        await load.more_on_every_shard()
        assert (await cluster.shard(group))["epoch"] > before["epoch"]
        leader, old, _ = await cluster.members(group)
        (new, *_) = await cluster.spares(group)
        await cluster.change("SWAP", group, from_node=old, to_node=new)
        assert set(await cluster.members(group)) >= {leader, new}
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


async def recovered(cluster: Cluster, *flags: str) -> dict[str, Any] | None:
    """Recover; None while an operator that is gone still holds its lease."""
    ran = await cluster.cli("recover-metadata", "--json", *flags)
    if ran.code and "is active on" in ran.out:
        return None
    assert ran.code == 0, ran.out + ran.err
    return dict(json.loads(ran.out))


async def test_a_restored_backup_elects_nobody_below_what_nodes_know(cluster: Cluster, client: Client) -> None:
    """The backup's ensemble has a majority that knows nothing newer, and its leader is down: only others know."""
    group = await cluster.create_group()
    leader, second, third = await cluster.members(group)
    fourth, fifth = await cluster.spares(group)
    async with Workload(client, group) as load:
        await load.more()
        cluster.kill("etcd")
        backup = cluster.directory / "etcd-backup"
        shutil.copytree(cluster.directory / "etcd", backup)
        await cluster.start("etcd")
        for old, new in ((second, fourth), (third, fifth)):
            cluster.kill(old)
            await cluster.change("SWAP", group, from_node=old, to_node=new)
        assert set(await cluster.members(group)) == {leader, fourth, fifth}
        await load.more()
    newest = (await cluster.shard(group))["epoch"]

    async def members_know() -> bool:
        """A change is in force in etcd before its members hear the epoch of it from their leader."""
        promised = await epochs(cluster, group)
        return all(promised.get(name) == newest for name in (leader, fourth, fifth))

    await until(members_know, f"all members promised epoch {newest}")

    await stop_operator(cluster)
    cluster.kill("etcd", leader)
    shutil.rmtree(cluster.directory / "etcd")
    shutil.move(backup, cluster.directory / "etcd")
    await cluster.start("etcd", second, third)
    said = await refuses_to_start(cluster)
    assert "set back to an old backup" in said
    after = await epochs(cluster, group)
    assert max(after[second], after[third]) < newest, "they were fenced for no election"
    assert after[fourth] == after[fifth] == newest

    refused = await until(lambda: refused_without_merge(cluster), "the lease of the operator that stopped is over")
    assert "is not empty" in refused["message"] and "--merge" in refused["advice"]
    ran = await recovered(cluster, "--merge", "--timeout", SILENCE_S)
    assert ran is not None
    (line,) = [line for line in ran["shards"] if line["group"] == group]
    # Only the leader, which is silent, knows that the last swap came into force: so both of its members belong.
    assert set(line["ensemble"]) == {leader, third, fourth, fifth} and "in doubt" in line["note"]
    assert line["epoch"] > newest + 100, "one node is silent"
    assert len(ran["silent"]) == 1 and leader in ran["silent"][0]

    await cluster.start("operator")
    await until(lambda: serves(cluster, group), "the group is served again")
    await cluster.start(leader)
    if await cluster.leader(group) == third:
        await cluster.transfer(group, 0, fourth)
    await cluster.change("CONTRACT", group, from_node=third)
    assert set(await cluster.members(group)) == {leader, fourth, fifth}
    async with Workload(client, group, name="later") as later:
        await later.more_on_every_shard()
    assert (await cluster.shard(group))["epoch"] > newest
    await check_every_copy(cluster, client, load, later)
    (item,) = await cluster.objects("TidemarkCluster")
    assert condition(item, "MetadataStoreReachable")[0] == "True"


async def serves(cluster: Cluster, group: str) -> bool:
    return any(
        item["metadata"]["name"] == group and condition(item, "Available")[0] == "True"
        for item in await cluster.objects("LogGroup"))


async def refused_without_merge(cluster: Cluster) -> dict[str, Any] | None:
    ran = await cluster.cli("recover-metadata", "--timeout", SILENCE_S, "--json")
    assert ran.code == 1
    return None if "is active on" in ran.out else dict(ran.document)
