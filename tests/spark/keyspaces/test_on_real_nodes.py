"""mode=keyspace on real node processes: deleted keys are not shown, and ranges are read while a node dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tidemark
from pyspark_tidemark import DefaultSource
from tidemark_operator import local

from tests.waiting import until

from ..groups import keyspace

pytestmark = pytest.mark.servers
COUNT, RANGES = 500, 4


async def test_p26_ranges_show_what_is_not_deleted_while_a_node_dies(tmp_path: Path) -> None:
    runtime = await local.up(tmp_path, nodes=3, cluster="real")
    try:
        await runtime.apply(keyspace("carts", RANGES))
        async with await tidemark.connect(runtime.bootstrap()) as client:
            await until(lambda: any(each.name == "carts" for each in client.shard_map.keyspaces))
            carts = client.keyspace("carts", timeout_s=30)
            stored = {b"%06d" % number: b"%0100d" % number for number in range(COUNT)}
            await carts.set_many(stored)
            for key in list(stored)[:20]:
                await carts.unset(key)
                del stored[key]
        source = DefaultSource({
            "endpoints": ",".join(runtime.bootstrap()), "keyspace": "carts", "mode": "keyspace",
            "maxPartitions": "3"})
        reader = source.reader(source.schema())
        tasks = await asyncio.to_thread(reader.partitions)

        def read() -> list[tuple[bytes, bytes, int]]:
            found: list[tuple[bytes, bytes, int]] = []
            for task in tasks:
                for batch in reader.read(task):
                    found += zip(*(batch.column(name).to_pylist() for name in ("key", "value", "range")), strict=True)
                if task is tasks[0]:
                    runtime.kill("real-1")
            return found

        found = await asyncio.to_thread(read)
    finally:
        await local.down(tmp_path, wipe=True)
    assert len(tasks) == 3 and {index for _, _, index in found} == set(range(RANGES))
    assert len(found) == len(stored) and {key: value for key, value, _ in found} == stored
