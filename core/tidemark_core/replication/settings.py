"""Settings: what an operator asks of one shard, and the event that tells the shard.

Stays out: what the settings of the limbo mean (`limbo`), what retention removes (`retention`).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..base.ids import ShardId
from ..limbo.settings import SynchroSettings


@dataclass(frozen=True, slots=True)
class RetentionSettings:
    """How long and how much of the log is kept, whichever bound is reached first; 0: no bound.

    Subscriptions keep more, up to `bytes_hard`.
    """

    age_ms: int = 0
    bytes_max: int = 0   # headers and payloads of one copy of the shard
    bytes_hard: int = 0  # the same, whatever subscriptions pin (P10); at least `bytes_max`


@dataclass(frozen=True, slots=True)
class Configure:
    """The settings of a shard are these now; a shell feeds it when it learns them and when the shard appears."""

    shard: ShardId
    settings: SynchroSettings
    retention: RetentionSettings = RetentionSettings()
