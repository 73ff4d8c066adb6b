"""The keys: two owners are killed, writes and deletes go on, both return, and hints and repair make all owners equal.

Every range has three owners.  Where both victims are owners, other nodes keep the writes for them; there and elsewhere
the victims lack what happened meanwhile, and hold what was deleted.
Stays out: comparing (holdings), exit codes (command).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from tidemark import Client, Keyspace
from tidemark.errors import Unavailable, WriteUnknown
from tidemark_operator import local

from ..admin import Admin
from . import acts
from .acts import within
from .holdings import Acknowledged, Name, Verdict, explain, judge, read
from .packages import Change
from .screen import Screen

KEYSPACE, RANGES, COPIES, QUORUM = "versions", 16, 3, 2
KEYS, WRITERS = 600, 16
CALL_S = 2.0
HEAL_S = acts.ACT_TIMEOUT_S
LOOK_S = 0.1


class Findings(NamedTuple):
    """The comparison of all keys; `sloppy` writes were kept by other nodes for owners."""

    keys: int
    deleted: int
    sloppy: int
    hints: int
    killed: tuple[str, ...]
    verdict: Verdict
    seconds: float

    @property
    def good(self) -> bool:
        """Say whether all owners are equal and nothing deleted is back."""
        return self.verdict.good


class Writers:
    """Writes keys, a few at a time, and enters what was acknowledged."""

    def __init__(self, keyspace: Keyspace, screen: Screen) -> None:
        self.acknowledged = Acknowledged()
        self.sloppy = 0
        self._keyspace = keyspace
        self._screen = screen

    async def write(self, values: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Set each key, or delete it where the value is None; each key once, so that a repetition does no harm."""
        room, done = asyncio.Semaphore(WRITERS), 0
        self._screen.begin("written", len(values))

        async def one(key: bytes, value: bytes | None) -> None:
            nonlocal done
            async with room:
                await self._one((key, None), value)
            done += 1
            self._screen.count(done)

        await asyncio.gather(*(one(key, value) for key, value in values))

    async def _one(self, name: Name, value: bytes | None) -> None:
        while True:
            try:
                written = await (
                    self._keyspace.unset(name[0]) if value is None else self._keyspace.set(name[0], value))
            except WriteUnknown:
                self.acknowledged.note_unknown(name, value)
                continue
            except Unavailable:    # it was not begun
                continue
            self.sloppy += written.outcome == "sloppy"
            self.acknowledged.note(name, value)
            return


async def run(
    service: Admin, runtime: local.Runtime, client: Client, changes: Sequence[Change], screen: Screen
) -> Findings:
    """Run the whole act on a keyspace of its own; every process runs again afterwards."""
    began = screen.seconds
    await acts.create_keyspace(
        service, runtime, KEYSPACE, partitions=RANGES, consistency="Eventual",
        replication={"replicas": COPIES, "readQuorum": QUORUM, "writeQuorum": QUORUM, "spread": "Node",
                     "quorumMode": "Sloppy"})
    keyspace = client.keyspace(KEYSPACE, timeout_s=CALL_S)
    writers = Writers(keyspace, screen)
    first: dict[bytes, bytes] = {}
    for change in changes:
        first.setdefault(change.key, change.value)
    keys = list(first)[:KEYS]
    screen.tell(f"Keyspace {KEYSPACE}: {RANGES} ranges with {COPIES} owners each and no leader; a write needs {QUORUM} "
                "of them, or other nodes that keep it for owners")
    async with within("keys are written while two owners are away", 3 * acts.ACT_TIMEOUT_S):
        await writers.write([(key, first[key]) for key in keys])
        killed = await victims(client, KEYSPACE)
        screen.tell(f"{len(keys):,} keys written; SIGKILL to {' and '.join(killed)}", "bold red")
        for name in killed:
            await asyncio.to_thread(runtime.kill, name)
        deleted = keys[::3]
        await writers.write([
            *((key, None) for key in deleted), *((key, b"again " + first[key]) for key in keys[1::3])])
    known = await keyspace.ranges(timeout_s=CALL_S)
    hints = sum(shown.hints for said in known.nodes.values() for shown in said.ranges)
    screen.tell(f"{len(deleted)} keys deleted and {len(keys[1::3])} written again meanwhile, {writers.sloppy} of them "
                f"sloppy; {len(known.nodes)} nodes keep {hints} hints, {len(known.silent)} are away")
    for name in killed:
        await runtime.start(name)
    screen.tell(f"{' and '.join(killed)} are back with their old disks", "bold yellow")
    await _heal(keyspace, writers.acknowledged.names)
    verdict = await _compare(keyspace, writers.acknowledged)
    found = Findings(len(keys), len(deleted), writers.sloppy, hints, killed, verdict, screen.seconds - began)
    screen.tell(f"all {COPIES} owners of {found.keys} keys compared with what was acknowledged: keyspace_diverged: "
                f"{verdict.diverged}, resurrected: {verdict.resurrected}", "bold green" if found.good else "bold red")
    for example in verdict.examples:
        screen.tell(example, "red")
    return found


async def victims(client: Client, name: str) -> tuple[str, ...]:
    """Return the two nodes that share most ranges of a keyspace."""
    ring = await client.routing.find_keyspace(name)
    pairs = Counter(
        pair for record in ring.ranges
        for pair in combinations(sorted(member.node for member in record.own.members), 2))
    return max(pairs, key=lambda pair: (pairs[pair], pair))


async def _heal(keyspace: Keyspace, names: Sequence[Name]) -> None:
    """Wait until no node keeps a hint and all owners are equal; where that does not come, the comparison says so."""
    left = names
    try:
        async with asyncio.timeout(HEAL_S):
            while True:
                known = await keyspace.ranges(timeout_s=CALL_S)
                hints = sum(shown.hints for said in known.nodes.values() for shown in said.ranges)
                probe = await explain(keyspace, left[:1])
                if not known.silent and all(not found.silent for found in probe.values()):
                    explained = await explain(keyspace, left)
                    left = [name for name in left if name not in explained or not explained[name].equal]
                    if not left and not hints:
                        return
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        return


async def _compare(keyspace: Keyspace, acknowledged: Acknowledged) -> Verdict:
    """Compare owners with what was acknowledged; the reads come last, for they may repair what they find."""
    names = acknowledged.names
    explained = await explain(keyspace, names)
    return judge(acknowledged, explained, await read(keyspace, names, COPIES))
