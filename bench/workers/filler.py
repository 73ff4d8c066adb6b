"""One client process that fills a group with batches of exactly so many records, and ends.

Each writer has one batch under way, so that no two calls are put into one batch.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import tidemark


async def _fill(client: tidemark.Client, group: str, values: list[bytes], batches: int) -> None:
    size = sum(map(len, values))
    async with client.appender(group, batch_records=len(values), batch_bytes=2 * size, timeout_s=120) as appender:
        for _ in range(batches):
            await appender.append_batch(values)


async def main(
    addresses: list[str], group: str, batch_records: int, record_bytes: int, total_bytes: int, writers: int
) -> None:
    """Print how many batches were appended, and how long it took."""
    values = [os.urandom(record_bytes) for _ in range(batch_records)]
    each = -(-total_bytes // (batch_records * record_bytes * writers))
    began = time.perf_counter()
    async with await tidemark.connect(addresses) as client:
        await asyncio.gather(*(_fill(client, group, values, each) for _ in range(writers)))
    print(json.dumps({"batches": each * writers, "seconds": time.perf_counter() - began}), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
