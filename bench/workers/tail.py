"""A tailing reader beside a writer; every tenth of a second it says who sent and the longest time without a record.

Times are CLOCK_MONOTONIC, which every process of a machine shares.  A time without a record that is not over yet
counts as far as it got.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

import tidemark

REPORT_SECONDS = 0.1
RECORD = b"x" * 1024
UNDER_WAY_MAX = 1024  # while nobody answers, no more than this is waited for


async def _write(client: tidemark.Client, group: str, pause_s: float) -> None:
    under_way = 0
    failed: list[BaseException] = []

    def answered(done: asyncio.Future[tidemark.Appended]) -> None:
        nonlocal under_way
        under_way -= 1
        if not done.cancelled() and (error := done.exception()) is not None:
            failed.append(error)

    async with client.appender(group, timeout_s=60) as appender:
        while not failed:
            if under_way < UNDER_WAY_MAX:
                under_way += 1
                appender.append_nowait(RECORD).add_done_callback(answered)
            await asyncio.sleep(pause_s)
    raise failed[0]


class _Tail:
    """What was seen since the last report."""

    def __init__(self) -> None:
        self.delivered = 0
        self.longest = 0.0
        self.last = time.monotonic()

    async def read(self, reader: tidemark.Reader) -> None:
        async for batch in reader.batches():
            now = time.monotonic()
            self.longest = max(self.longest, now - self.last)
            self.last = now
            self.delivered += len(batch)


async def main(addresses: list[str], group: str, pause_ms: float) -> None:
    """Print one line for every report until standard input is closed."""
    loop = asyncio.get_running_loop()
    stopped = loop.run_in_executor(None, sys.stdin.read)
    async with await tidemark.connect(addresses) as client:
        reader = client.read(group, mode="scd", until=None)
        tail, seen = _Tail(), Counter[str]()
        running = [
            asyncio.ensure_future(_write(client, group, pause_ms / 1000)), asyncio.ensure_future(tail.read(reader)),
        ]
        while not stopped.done():
            await asyncio.wait([*running, stopped], timeout=REPORT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                if task.done():
                    await task
            now = time.monotonic()
            received = Counter(reader.stats.received_from)
            new = (received - seen).most_common(1)
            leader = client.routing.leader(group, 0)
            print(json.dumps({
                "at": now, "delivered": tail.delivered, "stall_ms": 1000 * max(tail.longest, now - tail.last),
                "sender": new[0][0] if new else "", "leader": leader.node if leader is not None else "",
            }), flush=True)
            seen, tail.delivered, tail.longest = received, 0, 0.0
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
