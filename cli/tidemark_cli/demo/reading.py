"""The read: the data again and again until it is 256 MiB, sent by all copies together, and a node killed in the middle.

Each record comes from one of its copies.  The node that has sent most is killed after a third; the other copies stand
in for it from the next record on, and what was under way from all of them is sent once more: at most a window of a
MiB from each.  Stays out: exit codes (command).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Never

import pyarrow as pa
from tidemark import Client, Reader
from tidemark_operator import local

from ..admin import Admin
from .acts import create_group, within
from .packages import Change
from .screen import Screen

GROUP, COPIES, SHARD = "history", 3, 0
BYTES_MIN = 256 << 20
ROUND_BYTES_MIN = 4 << 20   # appended at once
BATCH_BYTES = 128 << 10
WINDOW_BYTES = 1 << 20      # of each sender
KILL_AT = 1 / 3             # share of the read


class Delivery(NamedTuple):
    """What reading showed; `wrong` counts records that are missing, too many or not the ones appended there."""

    read_bytes: int
    wrong: int
    received_over_delivered: float
    rewinds: int
    shares: Mapping[str, float]
    killed: str
    seconds: float


class Comparison:
    """Compares the values of batches, in the order they come, with a round of values that was appended `times`."""

    def __init__(self, values: Sequence[bytes], times: int) -> None:
        self._round = len(values)
        self._twice = pa.array([*values, *values], pa.binary())  # a batch may lie in two rounds
        self._wanted = times * len(values)
        self._mismatched = 0
        self.records = 0

    def take(self, values: pa.Array) -> None:
        """Compare the next batch; it is no longer than a round."""
        expected = self._twice.slice(self.records % self._round, len(values))
        if not values.equals(expected):
            self._mismatched += sum(a != b for a, b in zip(values, expected, strict=True))
        self.records += len(values)

    @property
    def wrong(self) -> int:
        return self._mismatched + abs(self._wanted - self.records)


async def run(
    service: Admin, runtime: local.Runtime, client: Client, changes: Sequence[Change], screen: Screen
) -> Delivery:
    """Run the whole act on a group of its own; every process runs again afterwards."""
    await create_group(service, runtime, GROUP, shards=1, copies=COPIES)
    await client.group(GROUP)
    values = [change.value for change in changes]
    values *= -(-ROUND_BYTES_MIN // sum(map(len, values)))
    times = -(-BYTES_MIN // sum(map(len, values)))
    screen.tell(f"LogGroup {GROUP}: one shard, {COPIES} copies; appending the changes again and again, "
                f"{times * len(values):,} records")
    screen.begin("acknowledged", times * len(values))
    async with client.appender(GROUP, batch_bytes=BATCH_BYTES, timeout_s=60) as appender:
        for done in range(times):
            await appender.append_batch(values)
            screen.count((done + 1) * len(values))
    comparison = Comparison(values, times)
    reader = client.read(GROUP, mode="scd", window_bytes=COPIES * WINDOW_BYTES)
    began = screen.seconds
    async with within("everything is read though a node is killed"):
        killed = await _read(runtime, reader, comparison, int(KILL_AT * times * len(values)), screen)
    seconds = screen.seconds - began
    await runtime.start(killed)
    stats = reader.stats
    delivery = Delivery(
        stats.bytes_delivered, comparison.wrong, stats.received_over_delivered, sum(stats.rewinds.values()),
        stats.shares, killed, seconds,
    )
    reasons = ", ".join(f"{count} {reason}" for reason, count in stats.rewinds.items())
    screen.tell(f"{comparison.records:,} records read in {seconds:.1f} s, {stats.bytes_received:,} bytes received for "
                f"{stats.bytes_delivered:,} delivered, a ratio of {stats.received_over_delivered:.4f}; rewinds: "
                f"{reasons or 'none'}; sent by {_told(stats.shares)}")
    screen.tell(f"{delivery.wrong} records are wrong, missing or too many",
                "bold red" if delivery.wrong else "bold green")
    return delivery


async def _read(
    runtime: local.Runtime, reader: Reader[Never], comparison: Comparison, kill_at: int, screen: Screen
) -> str:
    """Read everything; return the name of the node that was killed on the way."""
    screen.tell("reading it by single copy delivery: all copies send, each record comes from one of them")
    screen.begin("read", comparison.wrong)
    killed = ""
    async for batch in reader.batches():
        comparison.take(batch.record_batch.column("value"))
        if not killed and comparison.records >= kill_at:
            shares = reader.stats.shares
            killed = max(shares, key=lambda node: shares[node])
            screen.tell(f"{comparison.records:,} records read, sent by {_told(shares)}; SIGKILL to {killed}",
                        "bold red")
            await asyncio.to_thread(runtime.kill, killed)
        screen.count(comparison.records)
    return killed


def _told(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{node} {share:.1%}" for node, share in shares.items())
