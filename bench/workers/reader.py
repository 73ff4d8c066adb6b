"""One client process that reads a whole group `passes` times, batch by batch, and looks at every value column."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import tidemark


async def _pass(client: tidemark.Client, group: str, mode: str) -> dict[str, Any]:
    records = value_bytes = payload_bytes = 0
    marks: list[float] = []
    reader = client.read(group, mode=mode)
    cpu_before, began = time.process_time(), time.perf_counter()
    async for batch in reader.batches():
        values = batch.record_batch.column(1)
        records += len(values)
        value_bytes += values.nbytes - 4 * (len(values) + 1)    # without Arrow's own offsets
        payload_bytes += len(batch.payload)
        if value_bytes >> 30 > len(marks):
            marks.append(time.perf_counter() - began)
    seconds = time.perf_counter() - began
    stats = reader.stats
    return {
        "records": records, "value_bytes": value_bytes, "payload_bytes": payload_bytes, "seconds": seconds,
        "cpu_seconds": time.process_time() - cpu_before, "seconds_at_each_gib": marks,
        "received_over_delivered": stats.received_over_delivered, "shares": stats.shares,
        "rewinds": dict(stats.rewinds), "duplicates": stats.duplicates,
    }


async def main(addresses: list[str], group: str, mode: str, passes: int) -> None:
    """Print for each pass what was read, how long it took and what crossed the network."""
    async with await tidemark.connect(addresses) as client:
        told = [await _pass(client, group, mode) for _ in range(passes)]
    print(json.dumps({"passes": told}), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
