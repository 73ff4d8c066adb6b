"""Space: which members can store what is appended now, and whether they are enough to decide it (K20).

Stays out: how a leader learns that a disk is full; the members' cursors keep their word.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ..base.entry import Durability
from ..base.ids import Member
from ..base.quorum import has_majority
from ..limbo.quorum import synchro_offset
from ..limbo.settings import SynchroSettings
from .cursor import Cursor

DEFAULTS = SynchroSettings()


def storing(me: Member, ensemble: Sequence[Member], cursors: Mapping[Member, Cursor]) -> list[Member]:
    """Return the members that can store an entry now, as far as the leader knows; `me` counts."""
    return [
        member for member in ensemble
        if member == me or (cursor := cursors.get(member)) is None or (cursor.up and not cursor.space)
    ]


def enough(
    durability: Durability, settings: SynchroSettings | None, ensemble: Sequence[Member], able: Collection[Member]
) -> bool:
    """Say whether acknowledgements of `able` members can decide an entry of this durability."""
    if durability is Durability.QUORUM:
        return synchro_offset(settings or DEFAULTS, ensemble, dict.fromkeys(able, 0)) >= 0
    return has_majority(ensemble, able)
