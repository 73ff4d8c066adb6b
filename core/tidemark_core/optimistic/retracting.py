"""Retracting: how a member takes a stamp from the future back, by putting another one in its place (D84).

First the member notes that a stamp is taken back, and stores nothing from outside up to it at that place.  Then it puts
the stamp that stands in for it into the cell, and into each cell with the old stamp that comes later.
Stays out: when all members have noted it, and which stamp stands in for it (`coordinating.retracting`).
"""

from __future__ import annotations

from typing import NamedTuple

from .cells import Retracted, Retraction, StringCell
from .merge import merge_retracted, replaced
from .messages import RetractWrite
from .owner import Fate, Origin, Verdict
from .stamps import ZERO

KEYS_MAX = 1_000
"""So many keys of a range have stamps that are taken back, at one member."""

STAMPS_MAX = 16
"""So many stamps of one key are taken back."""


class TakenBack(NamedTuple):
    """The answer of a member, and the rows that it writes, None for one that does not change."""

    verdict: Verdict
    retracted: Retracted | None = None
    string: StringCell | None = None


def waits(origin: Origin, retracted: Retracted, cell: StringCell) -> bool:
    """Say whether a cell from outside waits: a stamp not below its own is noted, and none stands in for it yet.

    Once the time of that stamp has come, writes exceed it, and a hint must not wait for a repair that was given up.
    """
    return origin.external and any(
        became == ZERO and cell.stamp <= was and was.ms > origin.latest_ms for was, became in retracted.stamps)


def take_retraction(origin: Origin, held: Retracted, string: StringCell | None, m: RetractWrite) -> TakenBack:
    """Note a stamp, or put another one in its place; NEWER names the one that stands in for it already.

    STORED says the stamp that the member holds beside it, ZERO where there is none: the other one must be above.
    """
    known = dict(held.stamps)
    if (became := known.get(m.was, ZERO)) not in (ZERO, m.became):
        return TakenBack(Verdict(Fate.NEWER, became))
    if m.became.ms > origin.latest_ms:
        return TakenBack(Verdict(Fate.FUTURE))
    beside = string.stamp if string is not None and string.stamp != m.was else ZERO
    if m.became == ZERO and origin.latest_ms < beside.ms and beside < m.was:
        return TakenBack(Verdict(Fate.BELOW, beside))    # it would be the greatest then
    if m.was not in known:
        if m.was.ms <= origin.latest_ms:
            return TakenBack(Verdict(Fate.PAST))
        if len(known) >= STAMPS_MAX:
            return TakenBack(Verdict(Fate.FULL))
    taken = take_retracted(held, string, Retracted((Retraction(m.was, m.became),)))
    return taken._replace(verdict=Verdict(Fate.STORED, beside if beside.ms <= origin.latest_ms else ZERO))


def take_retracted(held: Retracted, string: StringCell | None, row: Retracted) -> TakenBack:
    """Take what another owner has taken back."""
    merged = merge_retracted(held, row)
    moved = replaced(string, merged) if string is not None else None
    return TakenBack(
        Verdict(Fate.STORED), merged if merged != held else None, moved if moved != string else None)
