"""One client process that sets keys of Valkey in pipelines, each with `WAIT 1` behind its sets; keys are new.

Commands and answers pass the C library of Valkey, and the loop is the one that Tidemark's client has.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from itertools import count
from typing import Any

import libvalkey  # type: ignore[import-not-found]
from tidemark.loop import run

from .putter import key_of

READ_BYTES = 64 << 10


class Connection:
    """One connection and the answers that came on it."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._reader, self._writer = streams
        self._answers = libvalkey.Reader()

    async def send(self, commands: list[tuple[bytes, ...]]) -> list[Any]:
        """Send commands in one piece and return their answers; raises ValueError where one is an error."""
        self._writer.write(b"".join(map(libvalkey.pack_command, commands)))
        found: list[Any] = []
        while len(found) < len(commands):
            answer = self._answers.gets()
            if answer is False:
                self._answers.feed(await self._reader.read(READ_BYTES))
            elif isinstance(answer, Exception):
                raise ValueError(f"Valkey answered {answer}")
            else:
                found.append(answer)
        return found

    def close(self) -> None:
        self._writer.close()


async def _replicated(connection: Connection, replicas: int) -> None:
    while b"connected_slaves:%d" % replicas not in (await connection.send([(b"INFO", b"replication")]))[0]:
        await asyncio.sleep(0.1)


async def main(
    port: int, prefix: str, batch_keys: int, value_bytes: int, connections: int, seconds: float, warm_seconds: float,
    replicas: int,
) -> None:
    """Print what was set once all replicas were there, behind `warm_seconds`."""
    opened = [Connection(await asyncio.open_connection("127.0.0.1", port)) for _ in range(connections)]
    await _replicated(opened[0], replicas)
    values = [os.urandom(value_bytes) for _ in range(batch_keys)]
    measured_from = time.perf_counter() + warm_seconds
    until, firsts = measured_from + seconds, count(0, batch_keys)
    answers: list[tuple[float, float]] = []

    async def set_(connection: Connection) -> None:
        while (began := time.perf_counter()) < until:
            first = next(firsts)
            sets = [(b"SET", key_of(prefix, first + place), value) for place, value in enumerate(values)]
            *_, replicated = await connection.send([*sets, (b"WAIT", b"1", b"0")])
            if replicated < 1:
                raise ValueError("no replica has taken the sets")
            now = time.perf_counter()
            answers.append((now, 1000 * (now - began)))

    cpu_before = time.process_time()
    await asyncio.gather(*map(set_, opened))
    within = [took_ms for at, took_ms in answers if measured_from <= at <= until]
    for each in opened:
        each.close()
    print(json.dumps({
        "keys": len(answers) * batch_keys, "per_second": len(within) * batch_keys / seconds, "times_ms": within,
        "cpu_seconds": time.process_time() - cpu_before,
    }), flush=True)


if __name__ == "__main__":
    run(main(**json.loads(sys.argv[1])))
