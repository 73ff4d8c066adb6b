"""One client process that sets Strings of a keyspace with `set_many`, `tasks` batches at a time; keys are new."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import count
from typing import Any

import tidemark

from .putter import key_of


async def _set(
    keyspace: tidemark.Keyspace, prefix: str, values: list[bytes], firsts: count[int], until: float,
    answers: list[tuple[float, float]],
) -> None:
    while (began := time.perf_counter()) < until:
        first = next(firsts)
        done = await keyspace.set_many((key_of(prefix, first + place), value) for place, value in enumerate(values))
        if any(each.outcome != "ok" for each in done.values()):
            raise ValueError("a set was not stored by as many owners as the keyspace asks for")
        now = time.perf_counter()
        answers.append((now, 1000 * (now - began)))


async def measure(
    keyspace: tidemark.Keyspace, prefix: str, batch_keys: int, value_bytes: int, tasks: int, seconds: float,
    warm_seconds: float,
) -> dict[str, Any]:
    """Set for some seconds; return the rate behind `warm_seconds`, and the time of each batch."""
    values = [os.urandom(value_bytes) for _ in range(batch_keys)]
    measured_from = time.perf_counter() + warm_seconds
    until, firsts = measured_from + seconds, count(0, batch_keys)
    answers: list[tuple[float, float]] = []
    cpu_before = time.process_time()
    await asyncio.gather(*(_set(keyspace, prefix, values, firsts, until, answers) for _ in range(tasks)))
    within = [took_ms for at, took_ms in answers if measured_from <= at <= until]
    return {
        "keys": len(answers) * batch_keys, "per_second": len(within) * batch_keys / seconds, "times_ms": within,
        "cpu_seconds": time.process_time() - cpu_before,
    }


async def main(addresses: list[str], keyspace: str, **how: Any) -> None:
    """Print what was set."""
    async with await tidemark.connect(addresses) as client:
        told = await measure(client.keyspace(keyspace), **how)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
