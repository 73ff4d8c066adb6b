"""Many small writers in one process: `clients` client objects with `tasks` tasks each, one record per append.

Every task waits for its answer before it appends again, so clients x tasks appends are under way at any time.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

import tidemark


async def _append(appender: tidemark.Appender, value: bytes, until: float, times_ms: list[float]) -> None:
    while (began := time.perf_counter()) < until:
        await appender.append(value)
        times_ms.append((time.perf_counter() - began) * 1000)


async def main(
    addresses: list[str], group: str, clients: int, tasks: int, record_bytes: int, warm_seconds: float, seconds: float,
    options: dict[str, Any] | None = None,
) -> None:
    """Print the time of every append in milliseconds, how long the whole took, and our processor time."""
    value = os.urandom(record_bytes)
    opened = [await tidemark.connect(addresses) for _ in range(clients)]
    try:
        appenders = [client.appender(group, **options or {}) for client in opened]

        async def everybody(run_seconds: float) -> list[float]:
            times_ms: list[float] = []
            until = time.perf_counter() + run_seconds
            await asyncio.gather(
                *(_append(appender, value, until, times_ms) for appender in appenders for _ in range(tasks))
            )
            return times_ms

        await everybody(warm_seconds)
        cpu_before, began = time.process_time(), time.perf_counter()
        times_ms = await everybody(seconds)
        took, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_before
    finally:
        await asyncio.gather(*(client.close() for client in opened))
    print(json.dumps({"times_ms": times_ms, "seconds": took, "cpu_seconds": cpu_seconds}), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
