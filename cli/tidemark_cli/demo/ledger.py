"""The ledger: every acknowledged append, and the verdict on what was read back.

An acknowledgement names a place (shard, offset).  A place that reads otherwise or not at all is a lost record; a
record at a place nobody was promised is a duplicate; a key whose records lie in another order than they were
appended in is reordered.  Stays out: appending and reading.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemark import Appended, Record

from .packages import Change


class Verdict(NamedTuple):
    """What reading back showed; `examples` names a few of what is wrong."""

    acked: int
    read: int
    lost: int
    duplicated: int
    reordered: int
    examples: tuple[str, ...]

    @property
    def kept(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered)


class Ledger:
    """Acknowledgements in the order of the appends."""

    def __init__(self) -> None:
        self._acked: list[tuple[int, Change, Appended]] = []  # number of the append, what, where

    def __len__(self) -> int:
        return len(self._acked)

    def note(self, number: int, change: Change, place: Appended) -> None:
        """Enter one acknowledgement; `number` counts appends in the order they were made."""
        self._acked.append((number, change, place))

    def judge(self, records: Iterable[Record]) -> Verdict:
        """Compare what was read, in the order it was read, with what was promised."""
        examples: list[str] = []
        found: dict[tuple[int, int], Record] = {}
        read = duplicated = 0
        for record in records:
            read += 1
            place = (record.shard, record.offset)
            if place in found:
                duplicated += 1
                examples.append(f"shard {place[0]} offset {place[1]} was delivered twice")
            found[place] = record
        promised: set[tuple[int, int]] = set()
        lost = 0
        for number, change, answer in self._acked:
            place = (answer.shard, answer.offset)
            there = found.get(place)
            if place in promised or there is None or (there.key, there.value) != change:
                lost += 1
                examples.append(f"append {number} of {change.key!r} at shard {place[0]} offset {place[1]} is not there")
            promised.add(place)
        for place in found.keys() - promised:
            duplicated += 1
            examples.append(f"shard {place[0]} offset {place[1]} holds a record that no append was answered with")
        reordered = self._reordered(examples)
        return Verdict(len(self._acked), read, lost, duplicated, reordered, tuple(examples[:5]))

    def _reordered(self, examples: list[str]) -> int:
        """Count appends that lie in front of an earlier append of the same key."""
        newest: dict[bytes, tuple[int, int]] = {}
        count = 0
        for number, change, answer in sorted(self._acked, key=lambda entry: entry[0]):
            place = (answer.shard, answer.offset)
            before = newest.get(change.key)
            if before is not None and (before[0] != place[0] or place[1] <= before[1]):
                count += 1
                examples.append(f"append {number} of {change.key!r} lies at {place}, an earlier one at {before}")
            newest[change.key] = place
        return count
