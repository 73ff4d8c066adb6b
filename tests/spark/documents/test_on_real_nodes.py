"""mode=documents on real node processes: tasks show the cut of their query while a node dies."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pyspark_tidemark import DefaultSource
from tidemark import Put

from ..groups import THINGS, real_things

pytestmark = pytest.mark.servers
COUNT = 5000


async def test_p23_tasks_show_their_cut_while_documents_change_and_a_node_dies(tmp_path: Path) -> None:
    async with real_things(tmp_path) as (runtime, client):
        stored = {b"%06d" % number: b"%0100d" % number for number in range(COUNT)}
        async with client.documents(THINGS) as documents:
            await documents.put_many(list(stored.items()))
            source = DefaultSource({
                "endpoints": ",".join(runtime.bootstrap()), "group": THINGS, "mode": "documents"})
            reader = source.reader(source.schema())
            tasks = await asyncio.to_thread(reader.partitions)
            await documents.put_many([Put(key, b"new") for key in stored])
        leader = client.routing.leader(THINGS, 0)
        assert leader is not None

        def read() -> list[tuple[bytes, bytes]]:
            runtime.kill(leader.node)
            found: list[tuple[bytes, bytes]] = []
            for task in tasks:
                for batch in reader.read(task):
                    found += zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
            return found

        found = await asyncio.to_thread(read)
    assert len(found) == COUNT and dict(found) == stored
