"""Merge: what two owners' rows are together, what a row shows to a reader, and what of it may be collected.

Merges are commutative, associative and idempotent, so messages may come late, twice and in any order.
Stays out: what an operation writes (`writes`), which owner stores a row.
"""

from __future__ import annotations

from collections.abc import Iterator

from .cells import NEVER, Element, ElementCell, Meta, Retracted, Retraction, Row, StringCell
from .stamps import ZERO, Stamp


def merge_strings(one: StringCell, other: StringCell) -> StringCell:
    """Return the greater cell (D55)."""
    return max(one, other)


def merge_elements(one: Element, other: Element) -> Element:
    """Return the greater cell of each actor (D56)."""
    merged = dict(one)
    for actor, cell in other.items():
        known = merged.get(actor)
        merged[actor] = cell if known is None else max(known, cell)
    return merged


def merge_metas(one: Meta, other: Meta) -> Meta:
    """Return the greater of both stamps (D58)."""
    return Meta(max(one.cleared, other.cleared), max(one.greatest, other.greatest))


def merge_retracted(one: Retracted, other: Retracted) -> Retracted:
    """Return the stamps that either has taken back, each with the one that stands in for it where it is known (D84)."""
    became = dict(one.stamps)
    for was, stamp in other.stamps:
        became[was] = max(became.get(was, ZERO), stamp)
    return Retracted(tuple(Retraction(*each) for each in sorted(became.items())))


def merge_rows(one: Row, other: Row) -> Row:
    """Merge two rows of one place."""
    match one, other:
        case StringCell(), StringCell():
            return merge_strings(one, other)
        case Meta(), Meta():
            return merge_metas(one, other)
        case Retracted(), Retracted():
            return merge_retracted(one, other)
        case dict(), dict():
            return merge_elements(one, other)
    raise TypeError(f"rows of one place are of one sort, not {type(one).__name__} and {type(other).__name__}")


def greatest(row: Row) -> Stamp:
    """Return the greatest stamp in a row."""
    match row:
        case StringCell():
            return row.stamp
        case Meta():
            return max(row)
        case Retracted():
            return max((became for _, became in row.stamps), default=ZERO)
        case _:
            return max((cell.stamp for cell in row.values()), default=ZERO)


def replaced(cell: StringCell, retracted: Retracted) -> StringCell:
    """Return the cell with the stamp that stands in for its own, where there is one (D84).

    That one may have been in the future too, and be taken back in its turn.
    """
    known, stamp = dict(retracted.stamps), cell.stamp
    while ZERO < (became := known.get(stamp, ZERO)) < stamp:
        stamp = became
    return cell if stamp == cell.stamp else cell._replace(stamp=stamp)


# --- what a row shows ---------------------------------------------------------------------------------------


def string_of(cell: StringCell | None, now_ms: int, floor_ms: int = 0) -> bytes | None:
    """Return the value of a String, None where it is deleted, expired or was never written."""
    if cell is None or cell.deleted or _expired(cell, max(now_ms, floor_ms)):
        return None
    return cell.value


def live_cells(row: Element, cleared: Stamp, now_ms: int, floor_ms: int = 0) -> Iterator[ElementCell]:
    """Yield the cells that make an element present (D56, D58, D59)."""
    now_ms = max(now_ms, floor_ms)
    return (
        cell for cell in row.values() if not cell.dead and cell.stamp > cleared and not _expired(cell, now_ms)
    )


def value_of(row: Element, cleared: Stamp, now_ms: int, floor_ms: int = 0) -> bytes | None:
    """Return the value of an element by its newest live cell, None where the element is not present."""
    newest = max(live_cells(row, cleared, now_ms, floor_ms), key=lambda cell: cell[2:], default=None)
    return None if newest is None else newest.value


# --- what a floor collects ----------------------------------------------------------------------------------


def collectable(cell: StringCell | ElementCell, floor_ms: int) -> bool:
    """Say whether a cell may go at a floor, a time in milliseconds that all writes below have settled (D59)."""
    return cell.stamp.ms <= floor_ms and (cell.dead or _expired(cell, floor_ms))


def collected(row: Element, floor_ms: int, cleared: Stamp) -> Element:
    """Return a row without the cells that the floor collects, or that a clear has made void (D58)."""
    return {actor: cell for actor, cell in row.items() if cell.stamp > cleared and not collectable(cell, floor_ms)}


def collected_meta(meta: Meta, floor_ms: int) -> Meta | None:
    """Return the row of a key without a clear that the floor has reached, None where both stamps are below it (D59).

    The clear says what is void at this member, so it is left out behind the elements that it removed.
    """
    if max(meta).ms <= floor_ms:
        return None
    return meta if meta.cleared.ms > floor_ms else Meta(greatest=meta.greatest)


def collected_retracted(row: Retracted, floor_ms: int) -> Retracted | None:
    """Return what is taken back above the floor, None where that is nothing: no cell comes from below it (D84)."""
    left = tuple(each for each in row.stamps if each.was.ms > floor_ms)
    return Retracted(left) if left else None


def _expired(cell: StringCell | ElementCell, now_ms: int) -> bool:
    return cell.expires_at_ms != NEVER and cell.expires_at_ms <= now_ms
