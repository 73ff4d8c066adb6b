"""From acknowledgements to the commit offset: the four lines that decide what is safe (O24, K5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ..base.ids import Member
from ..base.quorum import majority, quorum_offset
from .log import Log


def committable(log: Log, epoch: int, ensemble: Collection[Member], matches: Mapping[Member, int]) -> int:
    """Return the highest offset a majority of `ensemble` holds durably, if `epoch` wrote it; else -1.

    `matches` holds the durable match of the leader and of every active cursor.  Acks are cumulative, so a
    majority at an offset is a majority on its whole prefix.  Entries of older epochs commit only below one
    of the current epoch (O25): counting them could confirm what a later election overwrites.
    """
    offset = quorum_offset(
        [match for member, match in matches.items() if member in ensemble], majority(len(ensemble))
    )
    return offset if offset >= 0 and log.epoch_at(offset) == epoch else -1
