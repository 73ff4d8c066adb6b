"""One client process that reads documents of a `putter`: one get after the other, many at a time, and scans."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

import tidemark

from .putter import key_of


class _Gets:
    """Gets of documents that exist, in random order."""

    def __init__(self, documents: tidemark.Documents, prefix: str, count: int, level: str) -> None:
        self._documents = documents
        self._prefix = prefix
        self._count = count
        self._level = level
        self.times_ms: list[float] = []

    async def run(self, until: float) -> None:
        while (began := time.perf_counter()) < until:
            key = key_of(self._prefix, random.randrange(self._count))
            if await self._documents.get(key, level=self._level) is None:
                raise LookupError(f"no document {key!r}")
            self.times_ms.append((time.perf_counter() - began) * 1000)


async def _get(
    documents: tidemark.Documents, prefix: str, count: int, level: str, tasks: int, seconds: float
) -> dict[str, Any]:
    gets = _Gets(documents, prefix, count, level)
    cpu_before, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(gets.run(began + seconds) for _ in range(tasks)))
    took = time.perf_counter() - began
    return {
        "level": level, "tasks": tasks, "per_second": len(gets.times_ms) / took, "times_ms": gets.times_ms,
        "cpu_seconds": time.process_time() - cpu_before,
    }


async def _scan(documents: tidemark.Documents, level: str) -> dict[str, Any]:
    count = value_bytes = 0
    cpu_before, began = time.process_time(), time.perf_counter()
    async for page in documents.scan(level=level).pages():
        count += len(page)
        value_bytes += sum(len(document.value) for document in page)
    return {
        "documents": count, "value_bytes": value_bytes, "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - cpu_before,
    }


async def main(
    addresses: list[str], group: str, prefix: str, count: int, gets: list[tuple[str, int]], seconds: float, scans: int
) -> None:
    """Print what each kind of get did, a level and gets at a time, and each scan of the whole group."""
    async with await tidemark.connect(addresses) as client, client.documents(group) as documents:
        told = [await _get(documents, prefix, count, level, tasks, seconds) for level, tasks in gets]
        scanned = [await _scan(documents, "leader") for _ in range(scans)]
    print(json.dumps({"gets": told, "scans": scanned}), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
