"""Settings: what an operator asks of one shard, and the event that tells the shard.

Stays out: what the settings of the limbo mean (`limbo`), what retention removes (`retention`), when an entry is
released to readers (`stages`).
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
    bytes_hard: int = 0  # the same, whatever subscriptions pin (B10); at least `bytes_max`


@dataclass(frozen=True, slots=True)
class CopySettings:
    """When readers are given an entry, and when it is complete, where fewer than all members keep payloads (K10).

    How many keep them is no setting: it is part of the shard's record, like its members.
    """

    sync_leaders: int = 1   # so many of the first in the reading order have an entry before readers are given it
    leaders: int = 0        # so many of the first have it when it is complete; 0: all who keep it
    release_ms: int = 100   # readers wait no longer than this for sync_leaders (S30)


@dataclass(frozen=True, slots=True)
class DocumentSettings:
    """Bounds of a shard of documents; 0: the limit of the node.  The leader keeps them, so members need not agree."""

    tombstone_ms: int = 0      # a younger tombstone is not purged (U52)
    pinned_bytes_max: int = 0  # superseded versions that one pin may keep (U70)


@dataclass(frozen=True, slots=True)
class Configure:
    """The settings of a shard are these now; a shell feeds it when it learns them and when the shard appears."""

    shard: ShardId
    settings: SynchroSettings
    retention: RetentionSettings = RetentionSettings()
    copies: CopySettings = CopySettings()
    documents: DocumentSettings = DocumentSettings()
