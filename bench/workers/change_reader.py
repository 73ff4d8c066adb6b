"""One client process that reads changes: all of a group from the beginning, or each of its own puts as it comes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import tidemark
from tidemark.change_events import ChangeBatch
from tidemark.changes import Changes

PAUSE_SECONDS = 0.01    # between two puts, so that each finds an idle cluster


async def _catch_up(client: tidemark.Client, group: str, count: int) -> dict[str, Any]:
    """Read `count` changes from the beginning, batch by batch."""
    rows = value_bytes = 0
    cpu_before, began = time.process_time(), time.perf_counter()
    async with client.changes(group) as changes:
        async for event in changes.batches():
            if isinstance(event, ChangeBatch):
                rows += len(event)
                value_bytes += sum(len(row.value) for row in event.rows)
                if rows >= count:
                    break
        seconds = time.perf_counter() - began
    return {
        "changes": rows, "value_bytes": value_bytes, "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu_before,
    }


async def _follow(client: tidemark.Client, group: str, value_bytes: int, puts: int) -> list[tuple[float, float]]:
    """Put one document after the other; return the milliseconds from each call to its answer and to its change."""
    value, came = os.urandom(value_bytes), asyncio.Queue[tuple[bytes, float]]()

    async def follow(changes: Changes) -> None:
        async for event in changes.batches():
            if isinstance(event, ChangeBatch):
                for row in event.rows:
                    came.put_nowait((row.key, time.perf_counter()))

    async def put(documents: tidemark.Documents, key: bytes) -> tuple[float, float]:
        began = time.perf_counter()
        await documents.put(key, value)
        answered = time.perf_counter()
        while True:
            found, at = await came.get()
            if found == key:
                return (answered - began) * 1000, (at - began) * 1000

    async with client.documents(group) as documents, client.changes(group, from_="now") as changes:
        following = asyncio.ensure_future(follow(changes))
        times_ms: list[tuple[float, float]] = []
        await _until_followed(documents, value, came)
        for number in range(puts):
            await asyncio.sleep(PAUSE_SECONDS)
            times_ms.append(await put(documents, b"follow/%010d" % number))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    return times_ms


async def _until_followed(
    documents: tidemark.Documents, value: bytes, came: asyncio.Queue[tuple[bytes, float]]
) -> None:
    """Put until a change comes: the stream begins at some moment after it was asked for."""
    while came.empty():
        await documents.put(b"first", value)
        await asyncio.sleep(PAUSE_SECONDS)


async def main(addresses: list[str], group: str, count: int, passes: int, value_bytes: int, puts: int) -> None:
    """Print what each pass over the first `count` changes took, and then the time of each put that was followed."""
    async with await tidemark.connect(addresses) as client:
        told = [await _catch_up(client, group, count) for _ in range(passes)]
        times_ms = await _follow(client, group, value_bytes, puts) if puts else []
    print(json.dumps({"passes": told, "times_ms": times_ms}), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
