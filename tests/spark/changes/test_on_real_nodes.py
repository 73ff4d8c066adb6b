"""mode=changes on real node processes: batches lead from cut to cut while documents are written and a leader dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark_tidemark import DefaultSource
from tidemark import Delete, Put

from ..groups import THINGS, real_things
from .support import applied, rows

pytestmark = pytest.mark.servers
COUNT = 2000


async def test_p24_batches_lead_from_cut_to_cut_while_a_leader_is_killed(tmp_path: Path) -> None:
    async with real_things(tmp_path) as (runtime, client), client.documents(THINGS) as documents:
        keys = [b"%05d" % number for number in range(COUNT)]
        await documents.put_many([Put(key, b"0") for key in keys])
        source = DefaultSource({
            "endpoints": ",".join(runtime.bootstrap()), "group": THINGS, "mode": "changes",
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
                leader = client.routing.leader(THINGS, 0)
                assert leader is not None
                runtime.kill(leader.node)
            found = await asyncio.to_thread(rows, reader, reader.partitions(start, end))
            state = applied(state, found)
            assert state == cut, f"batch {number}"
            await asyncio.to_thread(reader.commit, end)
            start = end
        await asyncio.to_thread(reader.stop)
