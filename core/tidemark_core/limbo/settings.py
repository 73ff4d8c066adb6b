"""Settings: what an operator asks of the limbo of one shard, and the event that tells the shard.

Stays out: evaluating the formula; that is `quorum`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..base.ids import ShardId

QUORUM_TIMEOUT_MS = 5000


class Rollback(StrEnum):
    """When a caller is told ROLLED_BACK."""

    DEFINITE = "Definite"    # once the rollback record is committed (L8)
    IMMEDIATE = "Immediate"  # once it is on the leader's disk: unsafe when the leader is lost


@dataclass(frozen=True, slots=True)
class SynchroSettings:
    """The synchro quorum of one shard and how long to wait for it."""

    quorum: str = ""                           # number or formula over N; empty: majority (Q3)
    timeout_ms: int = QUORUM_TIMEOUT_MS        # Q20
    rollback: Rollback = Rollback.DEFINITE
    zones: int = 0                             # acknowledgements from at least so many zones; 0: not asked
    zone_of: tuple[tuple[str, str], ...] = ()  # (node, zone)


@dataclass(frozen=True, slots=True)
class Configure:
    """The settings of a shard are these now; a shell feeds it when it learns them and when the shard appears."""

    shard: ShardId
    settings: SynchroSettings
