"""One client process that reads a whole group `passes` times, batch by batch, and looks at every value column."""

from __future__ import annotations

import json
import sys
import time

import tidemark


async def main(addresses: list[str], group: str, passes: int) -> None:
    """Print for each pass: records, bytes of values, bytes of payload, seconds."""
    client = await tidemark.connect(addresses)
    told = []
    async with client:
        for _ in range(passes):
            records = value_bytes = payload_bytes = 0
            began = time.perf_counter()
            async for batch in client.read(group, mode="leader").batches():
                values = batch.record_batch.column(1)
                records += len(values)
                value_bytes += values.nbytes - 4 * (len(values) + 1)    # without Arrow's own offsets
                payload_bytes += len(batch.payload)
            seconds = time.perf_counter() - began
            told.append(
                {"records": records, "value_bytes": value_bytes, "payload_bytes": payload_bytes, "seconds": seconds}
            )
    print(json.dumps({"passes": told}), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
