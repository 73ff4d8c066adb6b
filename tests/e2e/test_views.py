"""Three views follow the packages of Debian through kills, a swap and pauses, and each equals the store in the end."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
from tidemark import Client, Delete, Put, SqliteView

from tests.waiting import PATIENCE_S, until

from .cluster import Cluster

BUNDLED = Path(__file__).parents[2] / "examples" / "data" / "debian-packages-small.ndjson.gz"
DATA = Path(os.environ.get("TIDEMARK_TEST_PACKAGES", BUNDLED))
"""Changes of packages; the variable names a longer file of the same form."""
SHARDS = 2
NAP_S, RUN_S = 0.4, 0.1
"""The slow view stands still and runs for so long in turns: the fault itself, no fact is waited for."""
DELETED_EVERY = 7
"""Every seventh change deletes its package instead."""


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


def changes() -> Iterator[Put | Delete]:
    with gzip.open(DATA) as lines:
        for number, line in enumerate(lines, 1):
            key = json.loads(line)["key"].encode()
            yield Delete(key) if number % DELETED_EVERY == 0 else Put(key, line.rstrip())


class Load:
    """Puts the changes, and waits at each mark until the fault of its turn is over."""

    def __init__(self) -> None:
        self.all = list(changes())
        self.put = 0
        self.mark = 0
        self._moved = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Put | Delete]:
        for write in self.all:
            while self.put >= self.mark:
                self._moved.clear()
                await self._moved.wait()
            self.put += 1
            yield write

    async def to(self, share: float) -> None:
        """Let the load run up to a share of the changes, and return when it is nearly there."""
        before, self.mark = self.put, int(share * len(self.all))
        self._moved.set()
        half = (before + self.mark) // 2

        async def reached() -> bool:
            return self.put >= half

        await until(reached, f"{share:.0%} of the changes are put", 120)


class Killed:
    """A view in a process of its own that is killed again and again, and goes on from its file."""

    def __init__(self, cluster: Cluster, group: str, file: Path) -> None:
        self._cluster = cluster
        self._arguments = ("view", "follow", group, str(file))
        self.file = file
        self.kills = 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await self._cluster.start_cli(*self._arguments)

    async def end(self) -> None:
        assert self.process is not None and self.process.returncode is None, "the view ended by itself"
        self.process.kill()
        await asyncio.wait_for(self.process.communicate(), PATIENCE_S)

    async def again(self) -> None:
        """Kill it once it has applied something since this was called."""
        before = self._position()
        await until(lambda: self._position() != before, "the view applies changes", 60)
        await self.end()
        self.kills += 1
        await self.start()

    def _position(self) -> str:
        """Return what the file is applied up to, as another process sees it; "": nothing yet."""
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(f"file:{self.file}?mode=ro", uri=True)) as db:
            return str(db.execute("SELECT value FROM facts WHERE name = 'position'").fetchone()[0])
        return ""


@asynccontextmanager
async def slowed(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """Let a process run a fifth of the time: a slow consumer."""
    async def nap() -> None:
        while True:
            process.send_signal(signal.SIGSTOP)
            await asyncio.sleep(NAP_S)
            process.send_signal(signal.SIGCONT)
            await asyncio.sleep(RUN_S)

    napping = asyncio.create_task(nap())
    try:
        yield
    finally:
        napping.cancel()
        process.send_signal(signal.SIGCONT)


async def equals_the_store(client: Client, group: str, file: Path, expected: int) -> None:
    async with client.view(group, file) as view:
        result = await view.verify(120)
    assert (result.mismatches, result.rotten, result.digest) == ((), (), "equal"), file
    assert result.documents == expected


async def test_u55_u59_views_equal_the_store_through_kills_a_swap_and_pauses(
    cluster: Cluster, client: Client, tmp_path: Path
):
    group = await cluster.create_group(shards=SHARDS, kind="Documents")
    await client.group(group)
    load = Load()
    killed = Killed(cluster, group, tmp_path / "killed.db")
    slow = await cluster.start_cli("view", "follow", group, str(tmp_path / "slow.db"))
    await killed.start()
    try:
        view: SqliteView
        async with client.view(group, tmp_path / "here.db") as view, slowed(slow):
            async with client.documents(group, timeout_s=60) as documents:
                putting = asyncio.create_task(documents.put_many(load))
                await asyncio.gather(killed.again(), load.to(0.2))
                leader = await cluster.leader(group)
                await load.to(0.3)
                cluster.kill(leader)
                await asyncio.gather(killed.again(), load.to(0.4))
                await cluster.start(leader)
                follower = (await cluster.members(group, 1))[1]
                cluster.pause(follower)
                await load.to(0.5)
                await asyncio.gather(killed.again(), load.to(0.6))
                cluster.resume(follower)
                old, new = (await cluster.members(group, 1))[2], (await cluster.spares(group, 1))[0]
                await load.to(0.8)
                await asyncio.gather(
                    cluster.change("SWAP", group, 1, from_node=old, to_node=new), killed.again(), load.to(0.9))
                await load.to(1.0)
                written = await asyncio.wait_for(putting, 60)
            assert written.applied == len(load.all)
            await view.catch_up(120)
            assert view.rebuilds == 0
        assert slow.returncode is None, "the slow view ended by itself"
        slow.kill()
        await asyncio.wait_for(slow.communicate(), PATIENCE_S)
        await killed.end()
        assert killed.kills == 4
        live: set[bytes] = set()
        for write in load.all:
            (live.add if isinstance(write, Put) else live.discard)(write.key)
        for name in ("here", "slow", "killed"):
            await equals_the_store(client, group, tmp_path / f"{name}.db", len(live))
    finally:
        for process in (slow, killed.process):
            if process is not None and process.returncode is None:
                process.kill()
                await asyncio.wait_for(process.communicate(), PATIENCE_S)
