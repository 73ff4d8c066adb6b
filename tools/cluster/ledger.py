"""A ledger: a writer that notes what was acknowledged, and the comparison of its notes with what readers see.

The notes are on disk before the next record of a key is sent.  Stays out: what happens meanwhile (`scenarios`).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import tidemark
from tidemark.errors import OutcomeUnknown, RequestRefused, RolledBack, Unavailable

KEYS = 24
PAUSE_S = 0.03
"""Between two records of a key: about 400 records a second, which leaves the machine to the cluster."""
APPEND_S = 60.0


@dataclass(frozen=True, slots=True)
class Note:
    """One record of a key: sent, and where it lies if that was acknowledged."""

    key: str
    number: int
    shard: int = -1
    offset: int = -1

    @property
    def acknowledged(self) -> bool:
        return self.shard >= 0


@dataclass
class Verdict:
    """How readers' records compare with the notes."""

    acknowledged: int = 0
    unknown: int = 0
    lost: list[str] = field(default_factory=list)
    duplicated: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.invented)

    def __str__(self) -> str:
        faults = "; ".join(
            f"{len(found)} {what}" + (f" (first: {found[0]})" if found else "")
            for what, found in (
                ("lost", self.lost), ("duplicated", self.duplicated), ("reordered", self.reordered),
                ("never sent", self.invented)))
        return f"{self.acknowledged} acknowledged, {self.unknown} unknown outcomes; {faults}"


def judge(notes: Iterable[Note], read: Sequence[Note]) -> Verdict:
    """Compare notes with what was read, in the order in which a reader was given it."""
    verdict = Verdict()
    sent = {(note.key, note.number): note for note in notes}
    seen = Counter((note.key, note.number) for note in read)
    places = {(note.key, note.number): (note.shard, note.offset) for note in read}
    for identity, note in sent.items():
        verdict.acknowledged += note.acknowledged
        verdict.unknown += not note.acknowledged
        name = f"key {note.key} number {note.number}"
        if note.acknowledged and not seen[identity]:
            verdict.lost.append(f"{name} at {note.shard}/{note.offset}")
        elif note.acknowledged and places[identity] != (note.shard, note.offset):
            verdict.reordered.append(f"{name}: acknowledged at {note.shard}/{note.offset}, read at {places[identity]}")
        if seen[identity] > 1:
            verdict.duplicated.append(f"{name}: {seen[identity]} times")
    verdict.invented += [f"key {key} number {number}" for key, number in seen if (key, number) not in sent]
    last: dict[str, int] = defaultdict(lambda: -1)
    for note in read:
        if note.number < last[note.key]:
            verdict.reordered.append(f"key {note.key}: {note.number} after {last[note.key]}")
        last[note.key] = note.number
    return verdict


class Writer:
    """`async with Writer(...)`: one writer for each key, and a file with the notes."""

    def __init__(
        self, addresses: Sequence[str], group: str, file: Path, name: str, notes: dict[tuple[str, int], Note]
    ) -> None:
        self._addresses = list(addresses)
        self._group = group
        self._keys = [f"{name}-{number}" for number in range(KEYS)]
        self._file = file.open("a", encoding="utf-8", buffering=1)
        self.notes = notes
        """With those of earlier writers of the same group, so that every verdict is about all of its records."""
        self.summary = ""
        self.answered_at: dict[int, float] = {}
        self.longest_s: dict[int, float] = defaultdict(float)
        """By shard: the longest time between two acknowledgements since `begin_measure`."""
        self.refused = 0
        self._over = False

    async def __aenter__(self) -> Writer:
        self._client = await tidemark.connect(self._addresses, timeout_s=APPEND_S)
        self._appender = self._client.appender(self._group, timeout_s=APPEND_S)
        self.shards = list((await self._client.group(self._group)).shards)
        self._tasks = [asyncio.create_task(self._write(key)) for key in self._keys]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with suppress(tidemark.TidemarkError):
            await self._appender.close()
        await self._client.close()
        self._file.close()

    async def _write(self, key: str) -> None:
        number = 0
        while not self._over:
            self._note(Note(key, number))
            with suppress(OutcomeUnknown):
                try:
                    place = await self._appender.append(f"{key}:{number}".encode(), key=key.encode())
                except (RequestRefused, RolledBack, Unavailable):
                    self.refused += 1  # it is not in the log: the same number goes again
                    continue
                self._note(Note(key, number, place.shard, place.offset))
                self._answered(place.shard)
            number += 1
            await asyncio.sleep(PAUSE_S)

    def _note(self, note: Note) -> None:
        self._file.write(f"{note.key} {note.number} {note.shard} {note.offset}\n")
        self.notes[note.key, note.number] = note

    def _answered(self, shard: int) -> None:
        now = time.monotonic()
        self.longest_s[shard] = max(self.longest_s[shard], now - self.answered_at.get(shard, now))
        self.answered_at[shard] = now

    def begin_measure(self) -> None:
        """Forget the longest waits so far."""
        self.longest_s.clear()

    async def every_shard_moves(self, within_s: float) -> float:
        """Wait until each shard acknowledges a record that was sent from now on; return the seconds.

        Raises Unmoved with the shards that did not.
        """
        began = time.monotonic()
        for task in self._tasks:
            if task.done():
                task.result()  # raises what ended it
        while waiting := [shard for shard in self.shards if self.answered_at.get(shard, 0) <= began]:
            if time.monotonic() > began + within_s:
                raise Unmoved(f"shards {waiting} acknowledge nothing for {within_s:g} s")
            await asyncio.sleep(0.05)
        return time.monotonic() - began

    async def verdict(self) -> Verdict:
        """End writing, read everything and compare."""
        self._over = True
        await asyncio.gather(*self._tasks)
        read = []
        async for record in self._client.read(self._group):
            key, number = record.value.decode().split(":")
            read.append(Note(key, int(number), record.shard, record.offset))
        return judge(self.notes.values(), read)


class Unmoved(Exception):
    """A shard that should take records does not."""
