"""Holdings: what was acknowledged of each name in a keyspace, and whether every owner holds just that.

A name is a String (its key and None) or an element (key and element).  Stays out: faults, waiting for repair (keys).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tidemark import KeyAtNode, KeyExplanation, Keyspace, TidemarkError

Name = tuple[bytes, bytes | None]
Reading = Mapping[Name, bytes]
"""Every name that a read shows, with its value."""
AT_ONCE = 16
EXAMPLES = 5


class Acknowledged:
    """The last acknowledged operation of each name: a value, None for a delete; and those of which nothing is known."""

    def __init__(self) -> None:
        self._last: dict[Name, bytes | None] = {}
        self._maybe: defaultdict[Name, set[bytes | None]] = defaultdict(set)

    @property
    def names(self) -> list[Name]:
        return [*dict.fromkeys((*self._last, *self._maybe))]

    def note(self, name: Name, value: bytes | None) -> None:
        """Enter an acknowledged write, or a delete."""
        self._last[name] = value

    def note_unknown(self, name: Name, value: bytes | None) -> None:
        """Enter an operation that may take effect at any later time."""
        self._maybe[name].add(value)

    def may_show(self, name: Name) -> set[bytes | None]:
        """Return the values that a read may show, None for none."""
        return {self._last.get(name), *self._maybe.get(name, ())}


class Verdict(NamedTuple):
    """Names of which owners differ, or hold something else; names that were deleted and are visible at an owner."""

    diverged: int
    resurrected: int
    examples: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.diverged and not self.resurrected


def judge(
    acknowledged: Acknowledged, explained: Mapping[Name, KeyExplanation], readings: Sequence[Reading]
) -> Verdict:
    """Compare what each owner holds, and what reads of all owners show, with what was acknowledged."""
    diverged: list[str] = []
    resurrected: list[str] = []
    names = acknowledged.names
    for name in names:
        may, found = acknowledged.may_show(name), explained.get(name)
        shown = {reading.get(name) for reading in readings}
        alive = [] if found is None else [
            node.member.node for node in found.nodes if node.member in found.own and _shows(node)]
        if may == {None} and (alive or shown != {None}):
            resurrected.append(f"{name} was deleted, and is visible at {', '.join(alive) or 'no owner, but in a read'}")
        elif found is None or not found.equal:
            diverged.append(f"owners of {name} differ" if found is not None else f"{name} cannot be looked at")
        elif len(shown) != 1 or not shown <= may or found.shown is (None in shown):
            diverged.append(f"{name} is not what was acknowledged last")
    unwritten = {name for reading in readings for name in reading}.difference(names)
    diverged += [f"{name} is there, and it was never written" for name in sorted(unwritten, key=repr)]
    return Verdict(len(diverged), len(resurrected), (*resurrected, *diverged)[:EXAMPLES])


def _shows(node: KeyAtNode) -> bool:
    """Say whether what a node holds by itself is visible."""
    cleared = max((cell.stamp for cell in node.cells if cell.sort == "clear"), default=None)
    return any(
        not cell.dead and (cell.sort == "string" or cleared is None or cell.stamp > cleared)
        for cell in node.cells if cell.sort != "clear")


async def explain(keyspace: Keyspace, names: Iterable[Name]) -> dict[Name, KeyExplanation]:
    """Return explanations of names, a few at a time, without those that no node gives."""
    room = asyncio.Semaphore(AT_ONCE)
    found: dict[Name, KeyExplanation] = {}

    async def one(name: Name) -> None:
        async with room:
            try:
                found[name] = await keyspace.explain(*name)
            except TidemarkError:
                return

    await asyncio.gather(*map(one, names))
    return found


async def read(keyspace: Keyspace, names: Sequence[Name], copies: int) -> list[Reading]:
    """Read everything from all owners, by name and page by page."""
    strings = [key for key, element in names if element is None]
    keys = {key for key, element in names if element is not None}
    by_name: dict[Name, bytes] = {
        (key, None): found.value for key, found in (await keyspace.get_many(strings, r=copies, timeout_s=30)).items()
        if found.value is not None}
    for key, element in names:
        if element is not None and (found := await keyspace.hget(key, element, r=copies)).value is not None:
            by_name[key, element] = found.value
    by_page: dict[Name, bytes] = {
        (key, None): value async for key, value in keyspace.scan(r=copies)}
    for key in sorted(keys):
        by_page |= {(key, element): value async for element, value in keyspace.hgetall(key, r=copies)}
    return [by_name, by_page]
