"""A rollout: nodes, operator and clients of the release before beside those of this build, in one cluster.

`data/` holds the wheel of the release before; docs/testing.md says how to replace it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tidemark import Client
from tidemark_node.store import STORE_FORMAT
from tidemark_operator.local_state import save_state
from tidemark_wire.channel import open_channel
from tidemark_wire.v1 import node_pb2, node_pb2_grpc
from tidemark_wire.wire_version import WIRE_VERSION, WIRE_VERSION_OLDEST

from tests.waiting import until

from .cluster import Cluster
from .workload import Workload, check_every_copy, check_read_back

(WHEEL,) = (Path(__file__).parent / "data").glob("*.whl")
OLD, NEW = "old", "new"
RETENTION = {"seconds": 0, "size": "2Mi"}
HALF_MIB = 1 << 19


@pytest.fixture(scope="module")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the last release's packages."""
    unpacked = tmp_path_factory.mktemp("release_before")
    with zipfile.ZipFile(WHEEL) as wheel:
        wheel.extractall(unpacked)
    return unpacked


@contextlib.contextmanager
def packages(folder: Path) -> Iterator[None]:
    """Let processes that are started meanwhile import the packages in `folder` before all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


class Rollout:
    """A cluster on its way from the release before to this build."""

    def __init__(self, cluster: Cluster, before: Path) -> None:
        self.cluster = cluster
        self.before = before

    async def describe(self, name: str) -> node_pb2.NodeDescription:
        async with open_channel(self.cluster.address(name)) as channel:
            return await node_pb2_grpc.ControlStub(channel).Describe(node_pb2.DescribeRequest(), timeout=5)

    async def build(self, name: str) -> str:
        """Return which build a node runs, as it says itself."""
        said = await self.describe(name)
        if said.wire_version_newest == WIRE_VERSION and said.store_format == STORE_FORMAT:
            return NEW
        assert (WIRE_VERSION_OLDEST, 0, STORE_FORMAT - 1) == (
            said.wire_version, said.wire_version_newest, said.store_format)
        return OLD

    async def of(self, build: str, names: list[str]) -> list[str]:
        """Return those nodes that run a build."""
        return [name for name in names if await self.build(name) == build]

    async def upgrade(self, *names: str) -> None:
        """Start nodes with this build on the disks that they have."""
        for name in names:
            self.cluster.kill(name)
            await self.cluster.start(name)
        await self.cluster.ready()
        assert list(names) == await self.of(NEW, list(names))

    async def upgrade_operator(self) -> None:
        self.cluster.kill("operator")
        await self.cluster.start("operator")
        await self.cluster.ready()

    async def lead(self, group: str, build: str) -> str:
        """Make a member of a build lead; return its name."""
        member = (await self.of(build, await self.cluster.members(group)))[0]
        await self.cluster.transfer(group, 0, member)
        return member

    async def seed(self, group: str, source: str, joining: str) -> None:
        """Swap a follower for a spare of the build `joining` while a member of the build `source` leads."""
        leader = await self.lead(group, source)
        spare = (await self.of(joining, await self.cluster.spares(group)))[0]
        followers = [name for name in await self.cluster.members(group) if name != leader]
        # Where the other direction comes next, it needs a member of `joining` to lead and a spare of `source`.
        leaver = [*await self.of(source, followers), *followers][0]
        await self.cluster.change("SWAP", group, 0, from_node=leaver, to_node=spare)
        await self.cluster.replicated(group)
        assert spare in await self.cluster.members(group)
        led, seeded = [(await self.cluster.replica(name, group))["first"] for name in (leader, spare)]
        assert bool(led) == bool(seeded), f"the leader's log begins at {led}, the copy's at {seeded}"

    async def seed_both_ways(self, group: str) -> None:
        """Seed a copy on the new build from the old one, and a copy on the old build from the new one."""
        spares = await self.of(NEW, await self.cluster.spares(group))
        ways = [(OLD, NEW), (NEW, OLD)] if spares else [(NEW, OLD), (OLD, NEW)]
        for source, joining in ways:
            await self.seed(group, source, joining)

    async def cli_before(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run `tidemark` of the release before on any node of the cluster."""
        nodes = ",".join(self.cluster.address(name) for name in self.cluster.nodes[:1])
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemark_cli", *arguments, "--cluster", nodes,
            env={**os.environ, "PYTHONPATH": str(self.before)},
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
        out, err = await asyncio.wait_for(process.communicate(stdin), 60)
        assert process.returncode == 0, err.decode()
        return out.decode()


@pytest.fixture
async def rollout(release_before: Path, tmp_path: Path) -> AsyncIterator[Rollout]:
    cluster = Cluster(tmp_path)
    try:
        with packages(release_before):
            await cluster.up(5, release_before=True)
        yield Rollout(cluster, release_before)
        assert not cluster.bugs(), "\n".join(cluster.bugs())
        save_state(cluster.directory, cluster.runtime.state)
    finally:
        cluster.destroy()


async def trimmed_group(cluster: Cluster, client: Client) -> str:
    """Return a group whose log begins behind its first record: seeding a copy of it takes a checkpoint."""
    group = await cluster.create_group(retention=RETENTION)
    async with client.appender(group) as appender:
        for _ in range(10):
            await appender.append(b"." * HALF_MIB)

    async def trimmed() -> bool:
        return await first_of(cluster, await cluster.leader(group), group) > 0

    await until(trimmed, f"the log of {group} is trimmed", timeout_s=90)
    return group


async def first_of(cluster: Cluster, name: str, group: str) -> int:
    return int((await cluster.replica(name, group)).get("first", -1))


async def places_read(rollout: Rollout, group: str) -> set[tuple[int, int]]:
    """Return shard and offset of each record that the client of the release before reads."""
    lines = (await rollout.cli_before("read", group, "--jsonl")).splitlines()
    found = [json.loads(line) for line in lines]
    places = {(record["shard"], record["offset"]) for record in found}
    assert len(places) == len(found), "a record was read twice"
    return places


def places_acked(*loads: Workload) -> set[tuple[int, int]]:
    return {(place.shard, place.offset) for load in loads for _, _, place in load.acked}


async def leaders_both_ways(rollout: Rollout, group: str, load: Workload) -> None:
    for build in (NEW, OLD, NEW):
        await rollout.lead(group, build)
        await load.more()


async def test_a_rollout_from_the_release_before_loses_nothing(rollout: Rollout) -> None:
    cluster = rollout.cluster
    assert cluster.nodes == await rollout.of(OLD, cluster.nodes)
    async with await cluster.connect() as client:
        group = await cluster.create_group()
        trimmed = await trimmed_group(cluster, client)
        loads: list[Workload] = []

        # Some nodes are new; the operator is old.
        async with Workload(client, group, name="a") as load:
            loads.append(load)
            await load.more()
            (_, follower, _), (spare, _) = await cluster.members(group), await cluster.spares(group)
            await rollout.upgrade(follower, spare)
            await cluster.replicated(group)
            await leaders_both_ways(rollout, group, load)
            await rollout.seed_both_ways(group)
            await load.more()
        await check_mixed(rollout, client, group, trimmed, loads)

        # Some nodes are new and so is the operator.
        await rollout.upgrade_operator()
        async with Workload(client, group, name="b") as load:
            loads.append(load)
            await load.more()
            await leaders_both_ways(rollout, group, load)
            await rollout.seed_both_ways(group)
            await load.more()
        await check_mixed(rollout, client, group, trimmed, loads)

        # The rest of the nodes, one by one, each on its own disk.
        async with Workload(client, group, name="c") as load:
            loads.append(load)
            for name in await rollout.of(OLD, cluster.nodes):
                await rollout.upgrade(name)
                await load.more()
                await cluster.replicated(group)
                await cluster.replicated(trimmed)
        assert cluster.nodes == await rollout.of(NEW, cluster.nodes)
        await check_every_copy(cluster, client, *loads)
        assert places_acked(*loads) == await places_read(rollout, group)


async def check_mixed(
    rollout: Rollout, client: Client, group: str, trimmed: str, loads: list[Workload]
) -> None:
    """Both clients read all of a shard that members of both builds send; a trimmed log is seeded both ways."""
    cluster = rollout.cluster
    builds = {await rollout.build(name) for name in await cluster.members(group)}
    assert {OLD, NEW} == builds
    await check_read_back(client, *loads, mode="scd")
    assert places_acked(*loads) == await places_read(rollout, group)

    await rollout.cli_before("append", trimmed, stdin=b"from the client of the release before\n")
    await rollout.seed_both_ways(trimmed)
    values = [record.value async for record in client.read(trimmed, from_=await _kept(cluster, trimmed))]
    assert b"from the client of the release before" == values[-1]


async def _kept(cluster: Cluster, group: str) -> int:
    """Return the first offset that every member holds."""
    return max([await first_of(cluster, name, group) for name in await cluster.members(group)])


def test_the_wheel_is_one_of_the_release_before() -> None:
    assert WHEEL.stat().st_size < 1 << 20
    with zipfile.ZipFile(WHEEL) as wheel:
        assert "tidemark_node/main.py" in wheel.namelist()
