"""Histories of operations on documents, and the judge that says whether they are linearizable: Porcupine, in Go.

Stays out: faults (the tests), the model of a document (tests/assets/porcupine).
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tidemark import Document, Documents, Written
from tidemark.errors import Behind, ConditionFailed, OutcomeUnknown, RolledBack, Unavailable

from tests.kube import binaries

NO_CONDITION = -1
JUDGED_S = 460
"""Above what the judge takes at most for all keys."""


@dataclass(slots=True)
class Operation:
    """One operation as its caller saw it; times in nanoseconds of one clock."""

    client: int
    key: str
    kind: str
    value: str = ""
    expected: int = NO_CONDITION
    outcome: str = "unknown"
    seqno: int = 0
    found: int = 0
    call: int = 0
    ended: int = 0          # `return` on the wire, which is a keyword of Python

    def line(self) -> str:
        fields = asdict(self)
        return json.dumps({**fields, "return": fields.pop("ended")})


def judge() -> Path:
    """Return the program that judges; raises binaries.Unavailable where Go is missing, BuildFailed where it fails."""
    return binaries.built(binaries.JUDGES)["judge"]


def judged(program: Path, history: Iterable[Operation]) -> dict[str, Any]:
    """Return the verdict on a history."""
    text = "".join(operation.line() + "\n" for operation in history)
    finished = subprocess.run([str(program)], input=text, capture_output=True, text=True, timeout=JUDGED_S, check=True)
    return dict(json.loads(finished.stdout))


class Client:
    """One caller after another operation on documents of a few keys."""

    def __init__(self, number: int, documents: Documents, keys: list[str], history: list[Operation]) -> None:
        self._number = number
        self._documents = documents
        self._keys = keys
        self._history = history
        self._random = random.Random(number)
        self._seen: dict[str, int] = {}         # the newest version that this caller knows of
        self._writes = 0
        self.unknown = 0

    async def run(self, enough: Callable[[], bool]) -> None:
        while not enough():
            await self._one()

    async def _one(self) -> None:
        key, die = self._random.choice(self._keys), self._random.random()
        seen = self._seen.get(key, 0)
        if die < 0.45:
            await self._read(key)
        elif die < 0.75:
            await self._write(key, seen)
        elif die < 0.90:
            await self._write(key, NO_CONDITION)
        else:
            await self._delete(key, self._random.choice((NO_CONDITION, seen)))

    async def _read(self, key: str) -> None:
        operation = Operation(self._number, key, "read", outcome="read", call=time.monotonic_ns())
        try:
            found: Document | None = await self._documents.get(key.encode())
        except (Unavailable, Behind):
            return   # it says nothing
        operation.ended = time.monotonic_ns()
        if found is not None:
            operation.seqno, operation.value = found.seqno, found.value.decode()
        self._seen[key] = operation.seqno
        self._history.append(operation)

    async def _write(self, key: str, expected: int) -> None:
        self._writes += 1
        operation = Operation(self._number, key, "put", f"{self._number}:{self._writes}", expected)
        condition = None if expected == NO_CONDITION else expected
        await self._changed(
            operation, lambda: self._documents.put(key.encode(), operation.value.encode(), expected=condition))

    async def _delete(self, key: str, expected: int) -> None:
        operation = Operation(self._number, key, "delete", expected=expected)
        condition = None if expected == NO_CONDITION else expected
        await self._changed(operation, lambda: self._documents.delete(key.encode(), expected=condition))

    async def _changed(self, operation: Operation, act: Callable[[], Awaitable[Written]]) -> None:
        operation.call = time.monotonic_ns()
        try:
            written = await act()
            operation.outcome, operation.seqno, operation.found = "applied", written.seqno, written.replaced
            self._seen[operation.key] = written.seqno if operation.kind == "put" else 0
        except ConditionFailed as error:
            operation.outcome, operation.found = "refused", error.found
            self._seen[operation.key] = error.found
        except OutcomeUnknown:
            self.unknown += 1
        except (RolledBack, Unavailable):
            return   # it never took effect
        operation.ended = time.monotonic_ns()
        self._history.append(operation)


async def record(
    documents: list[Documents], history: list[Operation], *, clients: int, keys: int, enough: Callable[[], bool]
) -> int:
    """Let clients operate until it is enough; return how many outcomes stayed unknown."""
    names = [f"key-{number}" for number in range(keys)]
    callers = [Client(number, documents[number % len(documents)], names, history) for number in range(clients)]
    await asyncio.gather(*(caller.run(enough) for caller in callers))
    return sum(caller.unknown for caller in callers)
