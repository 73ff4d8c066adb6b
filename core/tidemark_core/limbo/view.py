"""View: the limbo of one shard as a person sees it: who waits for whom, which members have acknowledged what.

Stays out: deciding; it is a copy, made when somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.entry import Durability

ProducerId = bytes
WAITING = "WAITING"
LOCAL = "LOCAL"                # acknowledged at level LOCAL, not confirmed
ROLLING_BACK = "ROLLING_BACK"  # under a rollback that is not committed yet


@dataclass(frozen=True, slots=True)
class LimboEntry:
    """One entry that is appended and not yet confirmed."""

    base: int
    count: int
    bytes: int
    durability: Durability
    age_ms: int
    state: str                # WAITING | LOCAL | ROLLING_BACK
    waiters: int              # requests that wait for it
    acked: tuple[str, ...]    # names of nodes that hold it on disk
    missing: tuple[str, ...]  # names of members that do not
    producer: ProducerId
    sequence: int


@dataclass(frozen=True, slots=True)
class LimboView:
    """The queue of one leadership; `entries` are its oldest ones, oldest first."""

    epoch: int
    head: int
    commit: int
    confirmed: int
    members: tuple[str, ...]
    quorum: int                 # acknowledgements a QUORUM append waits for
    zones: int                  # from at least so many zones; 0: not asked
    length: int
    bytes: int
    oldest_age_ms: int
    rollbacks_total: int
    timeouts_total: int
    rollback_pending_from: int  # first offset of a rollback that is not committed yet, -1: none
    timeout_ms: int
    entries: tuple[LimboEntry, ...]
