"""mode=changes on real node processes: batches lead from cut to cut while documents are written and a leader dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import tidemark
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_tidemark import DefaultSource
from tidemark import Delete, Put
from tidemark_operator import local

from tests.waiting import until

from ..groups import manifest
from .support import applied, rows

pytestmark = pytest.mark.servers
COUNT = 2000


async def test_p24_batches_lead_from_cut_to_cut_while_a_leader_is_killed(tmp_path: Path) -> None:
    runtime = await local.up(tmp_path, nodes=3, cluster="real")
    try:
        await runtime.apply(manifest("things", "Documents"))
        async with await tidemark.connect(runtime.bootstrap()) as client:
            await until(lambda: client.routing.find("things") and client.routing.leader("things", 1))
            async with client.documents("things") as documents:
                keys = [b"%05d" % number for number in range(COUNT)]
                await documents.put_many([Put(key, b"0") for key in keys])
                source = DefaultSource({
                    "endpoints": ",".join(runtime.bootstrap()), "group": "things", "mode": "changes",
                    "startingOffsets": "earliest", "barrierTimeout": "60s"})
                reader = source.streamReader(source.schema())
                start = await asyncio.to_thread(reader.initialOffset)
                state: dict[bytes, bytes] = {}
                for number in range(4):
                    async with await documents.pin(f"cut-{number}", 60) as pin:
                        end = await asyncio.to_thread(reader.latestOffset, start, ReadAllAvailable())
                        cut = {each.key: each.value async for each in pin.scan()}
                    await documents.put_many([Put(key, b"later") for key in keys[number::7]])
                    await documents.put_many([Delete(key) for key in keys[number::11]])
                    if number == 1:
                        leader = client.routing.leader("things", 0)
                        assert leader is not None
                        runtime.kill(leader.node)
                    found = await asyncio.to_thread(rows, reader, reader.partitions(start, end))
                    state = applied(state, found)
                    assert state == cut, f"batch {number}"
                    await asyncio.to_thread(reader.commit, end)
                    start = end
                await asyncio.to_thread(reader.stop)
    finally:
        await local.down(tmp_path, wipe=True)
