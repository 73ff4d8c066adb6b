"""Producers that a caller names: the name, and where a process goes on that has claimed one (rules L26 to L28).

Stays out: claiming (core's `producing`), and who waits for it (appending).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemark_core.replication.producer_ids import FENCE_MAX

from .errors import InvalidArgument

NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class ProducerId:
    """The name of a producer that survives its process: 1 to 255 printable characters.

    The names of one caller (one certificate) are its own: the same name of another caller is another producer.
    Raises InvalidArgument.
    """

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidArgument("name", f"is {self.name!r}, must be a text")
        if not 1 <= len(self.name) <= NAME_MAX:
            raise InvalidArgument("name", f"has {len(self.name)} characters, must have 1 to {NAME_MAX}")
        if not self.name.isprintable():
            raise InvalidArgument("name", f"{self.name!r} has a character that cannot be printed")


@dataclass(frozen=True, slots=True)
class LastBatch:
    """Where a batch lies that is in the log for good: `count` records from offset `base` on."""

    base: int
    count: int
    epoch: int
    sequence: int

    @property
    def last(self) -> int:
        """The offset of its last record."""
        return self.base + self.count - 1


@dataclass(frozen=True, slots=True)
class Resumed:
    """A producer as this process has claimed it on one shard.

    `last` is its newest batch that is in the log for good, None where the shard has or remembers none: go on behind it.
    """

    shard: int
    fence: int
    last: LastBatch | None


def checked_producer(producer: Any, fence: Any) -> None:
    """Check the options of a claim; raises InvalidArgument."""
    if producer is not None and not isinstance(producer, ProducerId):
        raise InvalidArgument("producer", f"is {producer!r}, must be a tidemark.ProducerId")
    if fence is None:
        return
    if producer is None:
        raise InvalidArgument("fence", "needs a producer")
    if not isinstance(fence, int) or isinstance(fence, bool) or not 1 <= fence <= FENCE_MAX:
        raise InvalidArgument("fence", f"is {fence!r}, must be a whole number from 1 to {FENCE_MAX}")
