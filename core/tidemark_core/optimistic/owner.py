"""Owner: whether a member stores a cell, for every way a cell can come (D60-D62, D65).

Writes of clients, hints, restored backups, exchanges between owners and read repair all pass here.  A refusal changes
nothing.  Stays out: writing rows and answering, which wait for the disk; making promises, raising floors.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, TypeVar

from .cells import Element, ElementCell, Meta, StringCell
from .merge import collectable, merge_elements, merge_metas, merge_strings
from .stamps import ZERO, Actor, Stamp
from .standing import Standing

Cell = TypeVar("Cell", StringCell, ElementCell)
Row = TypeVar("Row")


class Source(Enum):
    """Where cells come from (D61).  All but OWNER are external."""

    CLIENT = "client"
    HINT = "hint"
    BACKUP = "backup"
    OWNER = "owner"    # an owner or a pending one that holds them: an exchange, read repair


class Fate(Enum):
    """The fate of the cells of a message; of several fates a member answers the last one in this order."""

    STORED = "stored"          # the only one that counts as an acknowledgement
    NEWER = "newer"            # the member holds a greater cell
    DROPPED = "dropped"        # from an owner, and below the floor
    BELOW = "below"            # external, and not above the floor, the promise or a clear
    FUTURE = "future"          # further ahead than clocks may differ
    NOT_OWNER = "not_owner"
    NOT_READY = "not_ready"    # it has not copied its rows yet, or takes a stamp of the String back
    PAST = "past"              # to be taken back, and not from the future here (D84)
    FULL = "full"              # too many stamps are taken back here
    OLD_RING = "old_ring"      # the sender must take our record and count its answers again
    NEEDS_RING = "needs_ring"  # we must take the sender's record first


class Verdict(NamedTuple):
    """The answer for cells.  `above` is the stamp that another try must exceed, where there is one."""

    fate: Fate
    above: Stamp = ZERO


STORED = Verdict(Fate.STORED)
_RANK = {fate: rank for rank, fate in enumerate(Fate)}


class Taken(NamedTuple):
    """The rows that a member writes, None for one that does not change, and its answer once they are durable."""

    verdict: Verdict
    string: StringCell | None = None
    element: Element | None = None
    meta: Meta | None = None


class Origin(NamedTuple):
    """Where cells come from, the floor that their sender knows, and the latest time of a stamp (D54)."""

    source: Source
    floor_ms: int
    latest_ms: int

    @property
    def external(self) -> bool:
        return self.source is not Source.OWNER


def closed(standing: Standing, version: int) -> Fate | None:
    """Say why a member heeds no message of this version, None where it does (D62, D65)."""
    if version > standing.record.version:
        return Fate.NEEDS_RING
    if version < standing.record.version:
        return Fate.OLD_RING
    if standing.withdrawn or not standing.record.holds(standing.me):
        return Fate.NOT_OWNER
    return None


def judged(standing: Standing, origin: Origin, held: Cell | None, cell: Cell) -> Verdict:
    """Say what becomes of one cell where the member holds `held` in its place: the order of the questions is D62's."""
    floor_ms, ms = standing.record.floor_ms, cell.stamp.ms
    if ms > origin.latest_ms:
        return Verdict(Fate.FUTURE)
    if held is not None and held >= cell:
        return STORED if held == cell else Verdict(Fate.NEWER, held.stamp)
    if ms <= floor_ms:
        stays = not collectable(cell, floor_ms)
        if stays and standing.copying and not origin.external and origin.floor_ms == floor_ms:
            return STORED   # it was live before the floor rose: the move is there to copy it
        return _below(floor_ms) if origin.external else Verdict(Fate.DROPPED)
    if origin.external and ms <= standing.promise_ms:
        return _below(standing.promise_ms)
    return STORED


def take_string(standing: Standing, origin: Origin, held: StringCell | None, cell: StringCell) -> Taken:
    """Take the cell of a String."""
    verdict = judged(standing, origin, held, cell)
    if verdict.fate is not Fate.STORED:
        return Taken(_for(origin, verdict))
    return Taken(verdict, string=cell if held is None else _changed(held, merge_strings(held, cell)))


def take_element(
    standing: Standing, origin: Origin, held: Element, meta: Meta, row: Element, *, shown: bool = False
) -> Taken:
    """Take the cells of an element: those that may be stored are, and the worst of their verdicts is the answer.

    `shown` says that a client sets a field of a Map, so that its value must be the one that the field shows (D60).
    """
    # A void cell must not hide one of a lesser dot, which another owner stores that has removed the void one already.
    held = {actor: cell for actor, cell in held.items() if cell.stamp > meta.cleared}
    verdicts = {actor: _of_element(standing, origin, held.get(actor), meta, cell) for actor, cell in row.items()}
    stored = {actor: cell for actor, cell in row.items()
              if verdicts[actor].fate is Fate.STORED and cell.stamp > meta.cleared}
    merged = merge_elements(held, stored)
    verdict = worst(verdicts.values())
    if verdict.fate is Fate.NEWER and not shown:
        verdict = STORED    # the add was removed since, or the removal is there already
    elif verdict.fate is Fate.STORED and shown:
        verdict = _shown(merged, row)
    greatest = max((cell.stamp for cell in stored.values()), default=ZERO)
    risen = merge_metas(meta, Meta(greatest=greatest))
    return Taken(verdict, element=_changed(held, merged), meta=_changed(meta, risen))


def take_clear(standing: Standing, origin: Origin, held: Meta, cleared: Stamp) -> Taken:
    """Take the clear of a key with elements (D58).

    A client's clear must be above all elements, or it would remove only some of them.  A hint's is stored as it is: it
    was acknowledged with that stamp.
    """
    if cleared.ms > origin.latest_ms:
        return Taken(Verdict(Fate.FUTURE))
    if held.cleared >= cleared:
        return Taken(STORED if held.cleared == cleared else _for(origin, Verdict(Fate.NEWER, held.cleared)))
    if origin.source is Source.CLIENT and held.greatest > cleared:
        return Taken(Verdict(Fate.NEWER, held.greatest))
    limit_ms = max(standing.record.floor_ms, standing.promise_ms)
    if origin.external and cleared.ms <= limit_ms:
        return Taken(_below(limit_ms))
    return Taken(STORED, meta=merge_metas(held, Meta(cleared, cleared)))


def _of_element(
    standing: Standing, origin: Origin, held: ElementCell | None, meta: Meta, cell: ElementCell
) -> Verdict:
    """A cell up to the clear is void: the clear is stored for it.  A client's add must be above the clear (D58)."""
    if cell.stamp > meta.cleared:
        return judged(standing, origin, held, cell)
    added = origin.source is Source.CLIENT and not cell.dead
    return Verdict(Fate.BELOW, meta.cleared) if added else STORED


def _for(origin: Origin, verdict: Verdict) -> Verdict:
    """A client sends its String or clear again above what is newer; for all others the greater one is enough (D60)."""
    newer = verdict.fate is Fate.NEWER
    return STORED if newer and origin.source is not Source.CLIENT else verdict


def _shown(merged: Element, row: Element) -> Verdict:
    """A field that is set shows another value where another actor's live cell has a greater stamp."""
    written = max(cell.stamp for cell in row.values())
    newest = max((cell.stamp for cell in merged.values() if not cell.dead), default=ZERO)
    return Verdict(Fate.NEWER, newest) if newest > written else STORED


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict that a member answers for several cells."""
    others = [verdict for verdict in verdicts if verdict is not STORED]    # of many rows nearly all are
    return max(others, key=lambda verdict: (_RANK[verdict.fate], verdict.above), default=STORED)


def _below(limit_ms: int) -> Verdict:
    return Verdict(Fate.BELOW, Stamp(limit_ms + 1, 0, *Actor("", ZERO.start)))


def _changed(before: Row | None, after: Row) -> Row | None:
    return after if after != before else None
