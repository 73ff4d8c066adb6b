"""A mixed load on a keyspace: Strings, members of Sets and fields of Maps, written and deleted while faults happen.

In a sloppy keyspace a removal need not see an add that other nodes keep: there only Strings have one last operation.

Each name has one writer, so that its last acknowledged operation is known.
Stays out: faults (the tests), comparing owners with what was acknowledged (the demo's `holdings`).
"""

from __future__ import annotations

import asyncio
import random
from types import TracebackType

from tidemark import Keyspace
from tidemark.errors import Unavailable, WriteUnknown
from tidemark_cli.demo.holdings import Acknowledged, Name, Verdict, explain, judge, read

from tests.waiting import PATIENCE_S, until

DELETES = 0.4
COPIES = 3


class KeyLoad:
    """Writes from entering the block until leaving it; leaving waits for every answer."""

    def __init__(self, keyspace: Keyspace, writers: int = 4, names: int = 4, *, elements: bool = True) -> None:
        self.acknowledged = Acknowledged()
        self.unknown = self.done = 0
        self._keyspace = keyspace
        self._writers = writers
        self._names = names     # of each kind, for each writer
        self._elements = elements
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> KeyLoad:
        self._tasks = [asyncio.create_task(self._run(number)) for number in range(self._writers)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        if kind is not None:
            for task in self._tasks:
                task.cancel()
        ends = await asyncio.gather(*self._tasks, return_exceptions=True)
        if kind is None:
            failures = [end for end in ends if end is not None]
            assert not failures, failures

    async def more(self, count: int = 300) -> None:
        """Wait until so many more operations are acknowledged."""
        enough = self.done + count
        await until(
            lambda: self.done >= enough or any(task.done() for task in self._tasks), f"{count} more operations")

    async def _run(self, number: int) -> None:
        dice = random.Random(number)
        names: list[Name] = [(b"s%d-%d" % (number, place), None) for place in range(self._names)]
        if self._elements:
            names += [(kind % number, b"%d" % place) for kind in (b"set%d", b"map%d") for place in range(self._names)]
        turn = 0
        while not self._stopping:
            turn += 1
            name = dice.choice(names)
            value = None if dice.random() < DELETES else b"" if name[0].startswith(b"set") else b"%d" % turn
            try:
                await self._write(*name, value)
            except WriteUnknown:
                self.unknown += 1
                self.acknowledged.note_unknown(name, value)
            except Unavailable:
                continue    # it was not begun
            else:
                self.acknowledged.note(name, value)
                self.done += 1

    async def _write(self, key: bytes, element: bytes | None, value: bytes | None) -> None:
        keyspace = self._keyspace
        match element, value:
            case None, None:
                await keyspace.unset(key)
            case None, bytes():
                await keyspace.set(key, value)
            case bytes(), None:
                await keyspace.hdel(key, element)
            case bytes(), b"":
                await keyspace.sadd(key, element)
            case bytes(), bytes():
                await keyspace.hset(key, element, value)

    # --- afterwards

    async def healed(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all nodes answer, none keeps a hint, and all owners of each name hold the same."""
        left = self.acknowledged.names

        async def equal() -> bool:
            nonlocal left
            try:
                known = await self._keyspace.ranges(timeout_s=2)
            except Unavailable:
                return False
            if known.silent or any(shown.hints or shown.pending for said in known.nodes.values()
                                   for shown in said.ranges):
                return False
            first = await explain(self._keyspace, left[:1])
            if any(found.silent for found in first.values()):
                return False
            found = await explain(self._keyspace, left)
            left = [name for name in left if name not in found or not found[name].equal]
            return not left

        await until(equal, "all owners are equal", timeout_s)

    async def verdict(self) -> Verdict:
        """Compare every owner, and reads of all owners, with what was acknowledged; enough of it must be certain."""
        names = self.acknowledged.names
        shows = [self.acknowledged.may_show(name) for name in names]
        assert sum(len(each) == 1 for each in shows) > len(names) // 2, f"{self.unknown} are unknown"
        assert {None} in shows, "nothing is deleted"
        explained = await explain(self._keyspace, names)
        return judge(self.acknowledged, explained, await read(self._keyspace, names, COPIES))
