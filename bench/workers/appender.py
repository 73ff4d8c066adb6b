"""One client process that appends batches as fast as they are answered: `tasks` calls of append_batch at a time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import tidemark


class _Count:
    def __init__(self) -> None:
        self.records = 0
        self.times_ms: list[float] = []


async def _append(appender: tidemark.Appender, values: list[bytes], count: _Count) -> None:
    while True:
        began = time.perf_counter()
        answered = await appender.append_batch(values)
        count.times_ms.append((time.perf_counter() - began) * 1000)
        count.records += len(answered)


async def main(
    addresses: list[str], group: str, batch_records: int, record_bytes: int, tasks: int, warm_seconds: float,
    seconds: int, options: dict[str, Any] | None = None,
) -> None:
    """Print records acknowledged in each of `seconds` and altogether, and the time of every call of append_batch."""
    values = [os.urandom(record_bytes) for _ in range(batch_records)]
    client = await tidemark.connect(addresses)
    async with client, client.appender(group, **options or {}) as appender:
        count = _Count()
        running = [asyncio.ensure_future(_append(appender, values, count)) for _ in range(tasks)]
        await asyncio.wait(running, timeout=warm_seconds, return_when=asyncio.FIRST_COMPLETED)
        count.times_ms.clear()
        cpu_before, began = time.process_time(), time.perf_counter()
        each_second, last_count, last_at = [], count.records, began
        for second in range(1, seconds + 1):
            pause = began + second - time.perf_counter()
            failed, _ = await asyncio.wait(running, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            for task in failed:
                await task
            now = time.perf_counter()
            each_second.append((count.records - last_count) / (now - last_at))
            last_count, last_at = count.records, now
        cpu_seconds = time.process_time() - cpu_before
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    print(json.dumps({
        "each_second": each_second, "records": count.records, "times_ms": count.times_ms, "cpu_seconds": cpu_seconds,
    }), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
