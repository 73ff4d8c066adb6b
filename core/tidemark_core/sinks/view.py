"""View: the sinks of one shard as a reader of whole batches, or a person, sees them.

Stays out: deciding; it is a copy, made for each answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from .fold import Ended


@dataclass(frozen=True, slots=True)
class SinkView:
    """One sink.  `expires_in_ms` is what is left of its lease by the log's clock."""

    name: str
    batch: int            # the newest one that a part has joined, or that was marked
    joined: int           # parts that have joined it; 0 once it is marked
    marked: int           # the newest marked batch, -1 before the first
    parts: int            # of the marked batch
    lease_ms: int
    used_ms: int          # by the log's clock, when a part joined or a batch was marked last
    expires_in_ms: int
    ends: tuple[Ended, ...]


@dataclass(frozen=True, slots=True)
class SinksView:
    """The sinks that were asked for, in order of name, as confirmed by a leader of `epoch`."""

    epoch: int
    sinks: tuple[SinkView, ...]
