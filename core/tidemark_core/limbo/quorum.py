"""How far the synchro quorum of a shard reaches: from acknowledgements, formula and zones to one offset (F3, L3).

Stays out: commit, which is the majority of the current epoch and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from ..base.formula import InvalidFormula, quorum_in_force
from ..base.ids import Member
from ..base.quorum import quorum_offset
from .settings import SynchroSettings


@lru_cache(maxsize=1024)
def needed_members(settings: SynchroSettings | None, members: int) -> int:
    """Return how many of `members` must acknowledge: a majority at least, all of them at most.

    Without settings every member must, and with a formula this build cannot read: never confirm too early.
    """
    if settings is None:
        return members
    try:
        return quorum_in_force(settings.quorum or None, members)
    except InvalidFormula:
        return members


def synchro_offset(
    settings: SynchroSettings | None, ensemble: Sequence[Member], matches: Mapping[Member, int]
) -> int:
    """Return the highest offset that enough members in enough zones hold durably, -1 when there is none.

    `matches` holds the durable match of the leader and of every active cursor; strangers do not count.
    """
    counted = {member: matches[member] for member in ensemble if member in matches}
    offset = quorum_offset(counted.values(), needed_members(settings, len(ensemble)))
    if settings is None or settings.zones <= 1:
        return offset
    zone_of = dict(settings.zone_of)
    best: dict[str, int] = {}
    for member, match in counted.items():
        zone = zone_of.get(member.node, "")
        if zone:  # a node without a zone proves nothing
            best[zone] = max(best.get(zone, -1), match)
    return min(offset, quorum_offset(best.values(), settings.zones))
