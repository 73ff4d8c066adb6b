"""Inspection: what a person is shown of a leadership.  Decides nothing."""

from __future__ import annotations

from itertools import islice

from ..limbo.quorum import needed_members
from ..limbo.view import LOCAL, ROLLING_BACK, WAITING, LimboEntry, LimboView
from ..limbo.waiting import Item
from .leader import Leader


def limbo_view(leader: Leader, now_ms: int, entries_max: int) -> LimboView:
    """Return the leader's queue and its oldest `entries_max` entries: who waits for whom."""
    outcomes, replica = leader.outcomes, leader.replica
    limbo, settings = outcomes.limbo, replica.settings
    matches = leader.matches()

    def entry(item: Item) -> LimboEntry:
        acked = tuple(member.node for member in leader.ensemble if matches.get(member, -1) >= item.last)
        missing = tuple(member.node for member in leader.ensemble if member.node not in acked)
        state = ROLLING_BACK if item.covered is not None else LOCAL if item.told else WAITING
        return LimboEntry(
            item.base, item.count, item.bytes, item.durability, max(0, now_ms - item.since_ms), state,
            len(item.waiters), acked, missing, item.producer, item.sequence,
        )

    oldest = next(iter(limbo), None)
    return LimboView(
        leader.epoch, leader.head, replica.commit, replica.confirmed, tuple(m.node for m in leader.ensemble),
        needed_members(settings, len(leader.ensemble)), settings.zones if settings else 0,
        len(limbo), limbo.bytes, max(0, now_ms - oldest.since_ms) if oldest else 0,
        limbo.rollbacks, limbo.timeouts, limbo.pending_from, outcomes.timeout_ms,
        tuple(entry(item) for item in islice(limbo, entries_max)),
    )
