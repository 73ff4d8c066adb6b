"""etcd and operators: running shards need neither; elections wait for them and say so; two operators do no harm."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidemark import Client
from tidemark_operator.process import ProcessId, alive, spawn, wait_gone
from tidemark_wire.channel import open_channel
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc

from tests.waiting import PATIENCE_S, until

from .cluster import Cluster, condition, described
from .test_crashes import other_leader
from .workload import Workload, check_every_copy, read_all


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


@pytest.mark.parametrize("fault", ["killed", "paused"])
async def test_without_etcd_shards_go_on_and_elections_wait(cluster: Cluster, client: Client, fault: str):
    group = await cluster.create_group(shards=2)
    async with Workload(client, group) as load:
        await load.more()
        if fault == "killed":
            cluster.kill("etcd")
        else:
            cluster.pause("etcd")
        await load.more(200)
        assert len(await read_all(client, group)) > 200, "reads go on"

        dead = await cluster.leader(group)
        epoch = (await cluster.shard(group))["epoch"]
        cluster.kill(dead)
        await until(lambda: says_waiting(cluster), "the operator says that elections wait for etcd")
        shard = await cluster.shard(group)
        assert shard["epoch"] == epoch and shard["leader"] == dead, "nothing was decided without etcd"
        if fault == "killed":
            await commands_say_so(cluster, group)
            await cluster.start("etcd")
        else:
            cluster.resume("etcd")
            await cluster.metadata_is_reachable()
        await load.more_on_every_shard()
        assert await cluster.leader(group) != dead
        await cluster.start(dead)
    await check_every_copy(cluster, client, load)


async def says_waiting(cluster: Cluster) -> bool:
    said = await described(cluster.runtime.admin_address)
    (item,) = await cluster.objects("TidemarkCluster")
    status, _, message = condition(item, "MetadataStoreReachable")
    available, _, why = condition(item, "Available")
    return (
        said is not None and not said.metadata_reachable
        and status == "False" and "lections and changes wait for etcd" in message
        and available == "False" and "have no leader" in why and "wait for etcd" in why
    )


async def commands_say_so(cluster: Cluster, group: str) -> None:
    """What a person at the command line is told while etcd is away."""
    status, swap, create = await asyncio.gather(
        cluster.cli("dev", "status", "--json"),
        cluster.cli("swap", group, "1", "--from", "e2e-1", "--to", "e2e-2", "--json"),
        cluster.cli("get", "cluster", "--json"),
    )
    states = {process["name"]: process["state"] for process in status.document["processes"]}
    assert states["etcd"] == "Stopped" and states["operator"] == "Running"
    assert (swap.code, swap.document["error"]) == (3, "METADATA_UNAVAILABLE"), swap
    assert "etcd" in swap.err
    assert create.code == 0
    assert condition(create.document["items"][0], "MetadataStoreReachable")[0] == "False"


# --- two operators ------------------------------------------------------------------------------------------


class SecondOperator:
    """One more operator of the same cluster, as a process of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._ready = cluster.directory / "second-operator"
        command = list(cluster.runtime.state.operator.command)
        command[command.index("--ready-file") + 1] = str(self._ready)
        self.log: Path = cluster.directory / "logs" / "second-operator.log"
        self.process: ProcessId = spawn(command, self.log)

    async def address(self) -> str:
        def said() -> str | None:
            assert alive(self.process), self.log.read_text()
            return json.loads(self._ready.read_text())["address"] if self._ready.exists() else None

        return str(await until(said, "the second operator answers"))

    def end(self) -> None:
        if alive(self.process):
            os.kill(self.process.pid, signal.SIGCONT)
            os.kill(self.process.pid, signal.SIGKILL)
            wait_gone(self.process, 10)
        self._ready.unlink(missing_ok=True)


@asynccontextmanager
async def second_operator(cluster: Cluster) -> AsyncIterator[str]:
    second = SecondOperator(cluster)
    try:
        yield await second.address()
    finally:
        second.end()


async def shows(address: str, kind: str) -> list[dict[str, Any]]:
    async with open_channel(address) as channel:
        answer = await admin_pb2_grpc.AdminStub(channel).Get(admin_pb2.GetRequest(kind=kind), timeout=PATIENCE_S)
        return [json.loads(text) for text in answer.objects]


async def active(address: str) -> bool:
    said = await described(address)
    return said is not None and said.active


async def test_standby_operator_takes_over_from_a_dead_one(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    async with second_operator(cluster) as second, Workload(client, group) as load:
        await load.more()
        assert not await active(second), "one operator works, the other stands by"
        refused = await change_refused(second, group)
        assert "stands by" in refused
        dead = await cluster.leader(group)
        cluster.kill("operator", dead)
        await until(lambda: active(second), "the second operator is active")
        await load.more_on_every_shard()
        await cluster.start(dead)
        await load.more()
        (shard,) = [item for item in await shows(second, "Shard")
                    if item["metadata"]["labels"]["tidemark.dev/log-group"] == group]
        assert shard["status"]["leader"] not in ("", dead)
    await cluster.start("operator")
    await cluster.ready()
    await check_every_copy(cluster, client, load)


async def test_operator_that_was_paused_steps_back(cluster: Cluster, client: Client):
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        async with second_operator(cluster) as second:
            await load.more()
            dead = await cluster.leader(group)
            cluster.pause("operator")  # it is silent past the end of its lease, and still believes to be active
            cluster.kill(dead)
            await until(lambda: active(second), "the second operator is active")
            await load.more_on_every_shard()
            cluster.resume("operator")
            await until(lambda: stands_by(cluster), "the first operator has stepped back")
            await cluster.start(dead)
            await load.more()
            assert await active(second)
        await until(lambda: active(cluster.runtime.admin_address), "the first operator works again")
        await load.more_on_every_shard()
    await check_every_copy(cluster, client, load)


async def stands_by(cluster: Cluster) -> bool:
    said = await described(cluster.runtime.admin_address)
    return said is not None and not said.active


async def change_refused(address: str, group: str) -> str:
    async with open_channel(address) as channel:
        request = admin_pb2.ChangeRequest(operation="TRANSFER", group=group, shard=0, to_node="e2e-1")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in admin_pb2_grpc.AdminStub(channel).Change(request, timeout=PATIENCE_S):
                pass
    return str(caught.value.details())


async def test_operator_killed_in_an_election_is_followed_by_one_that_finishes_it(cluster: Cluster, client: Client):
    """The dead leader's shard stands in ELECTION in etcd, without a quorum, when the operator dies."""
    group = await cluster.create_group()
    async with Workload(client, group) as load:
        await load.more()
        leader, first, second = await cluster.members(group)
        cluster.kill(leader, first)
        await until(lambda: electing(cluster, group), "an election is stored")
        cluster.kill("operator")
        await cluster.start("operator", first)
        heir = await until(lambda: other_leader(cluster, group, leader), "a survivor leads")
        assert heir in (first, second)
        await load.more_on_every_shard()
        await cluster.start(leader)
    await check_every_copy(cluster, client, load)


async def electing(cluster: Cluster, group: str) -> bool:
    return bool((await cluster.shard(group))["state"] == "Electing")
