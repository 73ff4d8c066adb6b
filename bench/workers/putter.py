"""One client process that puts documents in atomic batches, `tasks` batches at a time, phase by phase.

A phase lasts for some seconds or for some documents, and may have a pin of the documents before it.  Documents have
keys of one prefix with increasing numbers, so a phase with the prefix of an earlier one overwrites.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from typing import Any

import tidemark
from tidemark import Put

PIN_SECONDS = 600.0
NUMBERS_MAX = 10**10
QUORUM = "quorum"


def key_of(prefix: str, number: int) -> bytes:
    """Return the key of one document of a prefix."""
    return b"%s/%010d" % (prefix.encode(), number)


class _Answers:
    """When each batch was answered, and how long it took."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.times_ms: list[float] = []


async def _put(
    documents: tidemark.Documents, prefix: str, values: list[bytes], firsts: Iterator[int], answers: _Answers
) -> None:
    for first in firsts:
        began = time.perf_counter()
        writes = [Put(key_of(prefix, first + place), value) for place, value in enumerate(values)]
        await documents.batch(writes, durability=QUORUM)
        now = time.perf_counter()
        answers.at.append(now)
        answers.times_ms.append((now - began) * 1000)


async def _phase(
    documents: tidemark.Documents, values: list[bytes], tasks: int, prefix: str, seconds: float | None = None,
    warm_seconds: float = 0.0, count: int = NUMBERS_MAX, pinned: bool = False,
) -> dict[str, Any]:
    """Put `count` documents, or as many as `seconds` allow; return how many a second after `warm_seconds`."""
    pin = await documents.pin("bench", PIN_SECONDS) if pinned else None
    answers, cpu_before, began = _Answers(), time.process_time(), time.perf_counter()
    measured_from = began + warm_seconds
    until = measured_from + seconds if seconds is not None else float("inf")
    firsts = takewhile(lambda _: time.perf_counter() < until, iter(range(0, count, len(values))))
    await asyncio.gather(*(_put(documents, prefix, values, firsts, answers) for _ in range(tasks)))
    ended = time.perf_counter()
    cpu_seconds = time.process_time() - cpu_before
    within = [
        (at, took_ms) for at, took_ms in zip(answers.at, answers.times_ms, strict=True)
        if measured_from <= at <= min(until, ended)
    ]
    measured_seconds = min(until, ended) - measured_from
    kept = 0
    if pin is not None:
        kept = sum(each.kept_bytes for one in (await documents.describe()).values() for each in one.pins)
        await pin.release()
    return {
        "documents": len(answers.at) * len(values), "per_second": len(within) * len(values) / measured_seconds,
        "times_ms": [took_ms for _, took_ms in within], "cpu_seconds": cpu_seconds, "seconds": ended - began,
        "kept_bytes": kept,
    }


async def main(
    addresses: list[str], group: str, batch_records: int, value_bytes: int, tasks: int, phases: list[dict[str, Any]]
) -> None:
    """Print what each phase did, one after the other."""
    values = [os.urandom(value_bytes) for _ in range(batch_records)]
    async with await tidemark.connect(addresses) as client, client.documents(group) as documents:
        told = [await _phase(documents, values, tasks, **phase) for phase in phases]
    print(json.dumps({"phases": told}), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
