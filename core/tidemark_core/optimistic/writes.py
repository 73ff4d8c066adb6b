"""Writes: the cells that an operation writes, from its dot and what the coordinator read.

Stays out: sending them, waiting for owners, and a stamp that turns out too low.
"""

from __future__ import annotations

from .cells import NEVER, Element, ElementCell, Meta, StringCell
from .stamps import Actor, Dot, Stamp


def put(dot: Dot, value: bytes, expires_at_ms: int = NEVER) -> StringCell:
    """Return the cell of a String that is set."""
    return StringCell(dot.stamp, False, expires_at_ms, value)


def delete(dot: Dot) -> StringCell:
    """Return the cell of a String that is deleted."""
    return StringCell(dot.stamp, True, NEVER, b"")


def add(actor: Actor, dot: Dot, held: Element, value: bytes = b"", expires_at_ms: int = NEVER) -> Element:
    """Return the row of an element that is added or set (D57).

    `held` is what the coordinator itself holds of the element, none where it owns no copy; the new cell replaces it.
    Raises ValueError where the dot's stamp is not above all that it replaces.
    """
    replaced = remove(dot.stamp, {each: cell for each, cell in held.items() if not cell.dead})
    return {**replaced, actor: ElementCell(dot.n, False, dot.stamp, expires_at_ms, value)}


def remove(stamp: Stamp, found: Element) -> Element:
    """Return the row of an element that is removed: every cell that a strict read found, dead (D57).

    A cell that was dead already is written again as it is.  Raises ValueError where the stamp is not above all cells
    that it removes.
    """
    if any(not cell.dead and cell.stamp >= stamp for cell in found.values()):
        raise ValueError("the stamp of a remove must be above all that it removes")
    return {
        actor: cell if cell.dead else ElementCell(cell.n, True, stamp, NEVER, b"") for actor, cell in found.items()
    }


def clear(stamp: Stamp) -> Meta:
    """Return the row of a key whose elements are removed all at once (D58)."""
    return Meta(stamp, stamp)
