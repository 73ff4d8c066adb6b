"""Histories of Strings in a keyspace: callers that read, write and delete, and what Porcupine judges of it.

Stays out: faults (the tests), moments at which a write takes effect (`tests/registers.py`), the judge (`histories`).
"""

from __future__ import annotations

import itertools
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from tidemark import Keyspace
from tidemark.errors import StampInFuture, Unavailable, WriteUnknown

from tests.registers import NEVER, Act, effects

from .histories import Operation


class Histories:
    """All calls, key by key."""

    def __init__(self) -> None:
        self.by_key: defaultdict[str, list[Act]] = defaultdict(list)
        self.done = self.unknown = 0

    def note(self, key: str, act: Act) -> None:
        """Enter a call."""
        self.by_key[key].append(act)
        self.done += 1
        self.unknown += act.ended == NEVER

    def operations(self) -> list[Operation]:
        """Return all moments of all calls, as the judge reads them."""
        return [operation for key, acts in self.by_key.items() for operation in operations(key, acts)]


def operations(key: str, history: Iterable[Act]) -> list[Operation]:
    """Return the moments of the calls of one key; each value has a version of its own.

    The judge lets a write with the outcome `stored` take effect whatever it replaces, between its call and its end.
    """
    acts = effects(history)
    versions = {value: place for place, value in enumerate(dict.fromkeys(act.value for act in acts if act.value), 1)}

    def operation(act: Act) -> Operation:
        kind = "read" if act.reads else "delete" if act.value is None else "put"
        outcome = "read" if act.reads else "stored" if act.ended != NEVER else "unknown"
        return Operation(
            act.client, key, kind, act.value or "", outcome=outcome, seqno=versions.get(act.value, 0), call=act.call,
            ended=act.ended)

    return [operation(act) for act in acts]


class Caller:
    """One call after another on Strings of its own choice."""

    def __init__(self, number: int, keyspace: Keyspace, keys: Sequence[str], histories: Histories) -> None:
        self._number = number
        self._keyspace = keyspace
        self._keys = keys
        self._histories = histories
        self._dice = random.Random(number)
        self._values = itertools.count()

    async def run(self, enough: Callable[[], bool]) -> None:
        """Go on until it is enough."""
        while not enough():
            await self._one(self._dice.choice(self._keys), self._dice.random())

    async def _one(self, key: str, die: float) -> None:
        reads, call, ended = die >= 0.5, time.monotonic_ns(), NEVER
        value = f"{self._number}.{next(self._values)}" if die < 0.35 else None
        try:
            if reads:
                found = (await self._keyspace.get(key.encode())).value
                value = None if found is None else found.decode()
            elif value is not None:
                await self._keyspace.set(key.encode(), value.encode())
            else:
                await self._keyspace.unset(key.encode())
            ended = time.monotonic_ns()
        except WriteUnknown:
            pass
        except (StampInFuture, Unavailable):
            return      # a read that says nothing, or a write that was not begun
        self._histories.note(key, Act(self._number, reads, value, call, ended))
