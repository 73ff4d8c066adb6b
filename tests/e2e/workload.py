"""Appends under way while faults happen, and the one question that matters afterwards: what do readers see?

Each key's records are numbered.  Readers must see every acknowledged record exactly once, at the place that
was promised, and each key's numbers in order without a gap.
Stays out: faults, and processes of the cluster (cluster).
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from types import TracebackType

import tidemark
from tidemark import Appended, Client, Record

from tests.waiting import remains, until

from .cluster import Cluster

TICK_S = 0.02


class Workload:
    """Appends at a steady pace, keyed, from entering the block until leaving it; leaving waits for every answer."""

    def __init__(
        self, client: Client, group: str, *, per_second: float = 250, keys: int = 12, value_bytes: int = 100,
        name: str = "k", timeout_s: float = 60.0,
    ) -> None:
        self.client = client
        self.group = group
        self.acked: list[tuple[bytes, bytes, Appended]] = []
        self.failures: list[BaseException] = []
        self.longest_gap_ms = 0.0
        self._per_second = per_second
        self._keys = [f"{name}{number}".encode() for number in range(keys)]
        self._padding = b"." * value_bytes
        self._timeout_s = timeout_s
        self._appender: tidemark.Appender
        self._task: asyncio.Task[None]
        self._stopping = False
        self._sent = 0
        self._answered_at: dict[int, float] = {}

    async def __aenter__(self) -> Workload:
        await self.client.group(self.group)
        self._appender = self.client.appender(self.group, timeout_s=self._timeout_s)
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        if kind is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._appender.abort(tidemark.errors.Closed("the test failed"))
            return
        await self._task
        await self._appender.close()
        assert not self.failures, f"{len(self.failures)} appends failed, the first with {self.failures[0]!r}"
        assert len(self.acked) == self._sent

    async def _run(self) -> None:
        began = time.monotonic()
        while not self._stopping:
            due = int((time.monotonic() - began) * self._per_second) + 1
            while self._sent < due and not self._stopping:
                number, place = divmod(self._sent, len(self._keys))
                key = self._keys[place]
                value = b"%s:%d:%s" % (key, number, self._padding)
                await self._appender.wait_for_room(len(value) + 1024)
                self._note(key, value, self._appender.append_nowait(value, key=key))
                self._sent += 1
            await asyncio.sleep(TICK_S)

    def _note(self, key: bytes, value: bytes, future: asyncio.Future[Appended]) -> None:
        def answered(done: asyncio.Future[Appended]) -> None:
            if done.cancelled():
                return
            error = done.exception()
            if error is not None:
                self.failures.append(error)
                return
            place = done.result()
            self.acked.append((key, value, place))
            now = time.monotonic()
            self.longest_gap_ms = max(
                self.longest_gap_ms, (now - self._answered_at.get(place.shard, now)) * 1000)
            self._answered_at[place.shard] = now

        future.add_done_callback(answered)

    async def more(self, count: int = 60, timeout_s: float = 40.0) -> None:
        """Wait until `count` more appends are acknowledged."""
        wanted = len(self.acked) + count

        def enough() -> bool:
            assert not self.failures, f"an append failed with {self.failures[0]!r}"
            return len(self.acked) >= wanted

        await until(enough, f"{count} more appends to {self.group} are acknowledged", timeout_s)

    async def more_on_every_shard(self, timeout_s: float = 40.0) -> None:
        """Wait until an append made from now on is acknowledged on every shard."""
        marks = {shard: self._answered_at.get(shard, 0.0) for shard in (await self.client.group(self.group)).shards}
        await asyncio.sleep(0)
        await self.more(len(self._keys), timeout_s)
        await until(
            lambda: all(self._answered_at.get(shard, 0.0) > mark for shard, mark in marks.items()),
            f"every shard of {self.group} acknowledges", timeout_s)


async def stands_still(
    load: Workload, for_s: float = 0.5, *, readable: bool = True, mode: str = "scd"
) -> int:
    """Wait until no append is acknowledged any more; return how many were.

    Readers see just these then; not `readable`: the client of the workload cannot read either.  `mode` "leader" reads
    from the leader: followers that were cut off from it may not know yet that their newest entries are committed, and
    send nothing of them for as long as the cut lasts.
    """
    async def still() -> bool:
        before = len(load.acked)
        try:
            await remains(lambda: len(load.acked) == before, for_s=for_s)
        except AssertionError:
            return False
        seen = len(await read_shown(load.client, load.group, mode=mode)) if readable else before
        return seen == before == len(load.acked)

    await until(still, f"appends to {load.group} stand still")
    return len(load.acked)


async def read_shown(
    client: Client, group: str, *, silence_s: float = 1.0, mode: str = "scd"
) -> list[Record]:
    """Read a tail from the beginning until it is silent: no leader needs to prove where the log ends (O46)."""
    reader, found = client.read(group, until=None, mode=mode), []
    try:
        records = aiter(reader)
        while True:
            async with asyncio.timeout(silence_s):
                found.append(await anext(records))
    except TimeoutError:
        return found
    finally:
        await reader.close()


async def read_all(client: Client, group: str, *, timeout_s: float = 30.0, mode: str = "scd") -> list[Record]:
    """Read a group from the beginning to what is readable now."""
    async with asyncio.timeout(timeout_s + 30):
        return [record async for record in client.read(group, timeout_s=timeout_s, mode=mode)]


async def check_read_back(client: Client, *workloads: Workload, mode: str = "scd") -> list[Record]:
    """Assert that readers see every acknowledged record exactly once, in order per key; return what they see."""
    group = workloads[0].group
    records = await read_all(client, group, mode=mode)
    judge(records, *workloads)
    return records


def judge(records: list[Record], *workloads: Workload) -> None:
    found: dict[tuple[int, int], Record] = {}
    for record in records:
        place = (record.shard, record.offset)
        assert place not in found, f"shard {place[0]} offset {place[1]} was delivered twice"
        found[place] = record
    promised: set[tuple[int, int]] = set()
    for workload in workloads:
        for key, value, answer in workload.acked:
            place = (answer.shard, answer.offset)
            assert place not in promised, f"shard {place[0]} offset {place[1]} was promised to two appends"
            promised.add(place)
            seen = found.get(place)
            assert seen is not None, f"lost: {value[:24]!r} acknowledged at shard {place[0]} offset {place[1]}"
            assert (seen.key, seen.value) == (key, value), (
                f"shard {place[0]} offset {place[1]} holds {seen.value[:24]!r}, promised was {value[:24]!r}")
    extra = found.keys() - promised
    assert not extra, f"{len(extra)} records that no append was answered with, such as {found[min(extra)]!r}"
    numbers: dict[bytes, list[int]] = defaultdict(list)
    for record in records:
        assert record.key is not None
        numbers[record.key].append(int(record.value.split(b":")[1]))
    for key, order in numbers.items():
        assert order == list(range(len(order))), f"{key!r} is out of order: {order[:50]}"


async def check_every_copy(cluster: Cluster, client: Client, *workloads: Workload) -> None:
    """Let each member of each shard lead in turn and assert that readers see the same from each of them."""
    group = workloads[0].group
    shards = (await client.group(group)).shards
    await cluster.replicated(group)
    ensembles = {shard: await cluster.members(group, shard) for shard in shards}
    for turn in range(max(len(members) for members in ensembles.values())):
        for shard, members in ensembles.items():
            await cluster.transfer(group, shard, members[turn % len(members)])
        await check_read_back(client, *workloads, mode="leader")
    await check_read_back(client, *workloads)
