"""Settings: what an operator asks of the limbo of one shard.

Stays out: evaluating the formula; that is `quorum`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

QUORUM_TIMEOUT_MS = 5000


class Rollback(StrEnum):
    """When a caller is told ROLLED_BACK."""

    DEFINITE = "Definite"    # once the rollback record is committed (L8)
    IMMEDIATE = "Immediate"  # once it is on the leader's disk: unsafe when the leader is lost


@dataclass(frozen=True, slots=True)
class SynchroSettings:
    """The synchro quorum of one shard and how long to wait for it."""

    quorum: str = ""                           # number or formula over N; empty: majority (F3)
    timeout_ms: int = QUORUM_TIMEOUT_MS        # F20
    rollback: Rollback = Rollback.DEFINITE
    zones: int = 0                             # acknowledgements from at least so many zones; 0: not asked
    zone_of: tuple[tuple[str, str], ...] = ()  # (node, zone)
