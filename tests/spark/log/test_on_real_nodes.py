"""mode=log on real node processes: the reader's tasks go on while a leader is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tidemark
from pyspark_tidemark import DefaultSource
from tidemark_operator import local

from tests.waiting import until

from ..groups import manifest

pytestmark = pytest.mark.servers
COUNT = 40_000


async def test_p13_a_task_reads_every_record_once_while_a_leader_is_killed(tmp_path: Path) -> None:
    runtime = await local.up(tmp_path, nodes=3, cluster="real")
    try:
        await runtime.apply(manifest("orders"))
        async with await tidemark.connect(runtime.bootstrap()) as client:
            await until(lambda: client.routing.leader("orders", 1) is not None)
            async with client.appender("orders") as appender:
                await appender.append_batch([b"%0500d" % number for number in range(COUNT)])
            leader = client.routing.leader("orders", 0)
            assert leader is not None
        found = await asyncio.to_thread(read_while, runtime, leader.node)
    finally:
        await local.down(tmp_path, wipe=True)
    assert sorted(value for _, _, value in found) == [b"%0500d" % number for number in range(COUNT)]
    assert len({(shard, offset) for shard, offset, _ in found}) == COUNT


def read_while(runtime: local.Runtime, leader: str) -> list[tuple[int, int, bytes]]:
    """Read every partition as a task does; the leader dies once the first rows have come."""
    source = DefaultSource({"endpoints": ",".join(runtime.bootstrap()), "group": "orders", "minPartitions": "4"})
    reader = source.reader(source.schema())
    found: list[tuple[int, int, bytes]] = []
    killed = False
    for partition in reader.partitions():
        for batch in reader.read(partition):
            columns = (batch.column(name).to_pylist() for name in ("shard", "offset", "value"))
            found += zip(*columns, strict=True)
            if not killed:
                runtime.kill(leader)
                killed = True
    assert killed
    return found
