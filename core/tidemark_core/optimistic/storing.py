"""Storing: what a member reads for a message of a coordinator, what it writes, and what it answers.

The places that `places_of` names are read, then the rows of `on_store` are written in one batch; the answer leaves once
they are durable (D60).  Stays out: whether a cell may be stored (`owner`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from .cells import Element, Meta, Place, Row, Sort, StringCell
from .merge import collectable, collected, collected_meta
from .messages import Change, ClearWrite, ElementWrite, Load, LoadAnswer, RowsWrite, Store, StoreAnswer, StringWrite
from .owner import Fate, Origin, Taken, Verdict, closed, take_clear, take_element, take_string, worst
from .standing import Standing

BARE = Meta()


def of_string(key: bytes) -> tuple[Place, ...]:
    """Return the places to read for a String."""
    return (Place(Sort.STRING, key),)


def of_element(key: bytes, element: bytes) -> tuple[Place, ...]:
    """Return the places to read for an element: what a clear removed is known by the key's row."""
    return (Place(Sort.META, key), Place(Sort.ELEMENT, key, element))


def places_of(change: Change) -> tuple[Place, ...]:
    """Return the places of the rows that a member must know before it takes a change."""
    return with_metas(place for place, _, _ in _parts(change))


def with_metas(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return places with those of the rows that say what a clear has made void there."""
    return tuple(dict.fromkeys(each for place in places for each in _with_meta(place)))


def row_of(change: Change) -> tuple[Place, Row]:
    """Return the place and the row of what a client writes: it has exactly one."""
    [(place, row, _)] = _parts(change)
    return place, row


def on_store(
    standing: Standing, m: Store, latest_ms: int, held: Mapping[Place, Row]
) -> tuple[StoreAnswer, dict[Place, Row]]:
    """Take a change where the member holds `held`; return the answer, and the rows to write before it leaves."""
    changed: dict[Place, Row] = {}
    refused = closed(standing, m.version)
    if refused is not None:
        verdict = Verdict(refused)
    else:
        verdict = worst(_take(standing, Origin(m.source, m.floor_ms, latest_ms), m.change, held, changed))
    record = standing.record
    answer = StoreAnswer(
        m.range, record.version, record.floor_ms, m.operation, m.attempt, verdict,
        record if refused is Fate.OLD_RING else None,
    )
    return answer, changed


def on_load(
    standing: Standing, m: Load, found: Iterable[tuple[Place, Row]], behind: Place | None = None
) -> LoadAnswer:
    """Answer a read with the rows that were found, without what the member's floor collects (D72)."""
    record = standing.record
    refused = closed(standing, m.version)
    if refused is not None:
        told = record if refused is Fate.OLD_RING else None
        return LoadAnswer(
            m.range, record.version, record.floor_ms, m.operation, m.attempt, refused=refused, record=told)
    rows = tuple(kept(dict(found), record.floor_ms).items())
    return LoadAnswer(m.range, record.version, record.floor_ms, m.operation, m.attempt, rows, behind)


def kept(rows: Mapping[Place, Row], floor_ms: int) -> dict[Place, Row]:
    """Return rows without what a floor collects or a clear among them made void; a row without a rest is left out."""
    left: dict[Place, Row] = {}
    for place, row in rows.items():
        match row:
            case StringCell():
                if not collectable(row, floor_ms):
                    left[place] = row
            case Meta():
                if (meta := collected_meta(row, floor_ms)) is not None:
                    left[place] = meta
            case _:
                cells = collected(row, floor_ms, _meta(rows, place.key).cleared)
                if cells:
                    left[place] = cells
    return left


def _take(
    standing: Standing, origin: Origin, change: Change, held: Mapping[Place, Row], changed: dict[Place, Row]
) -> Iterator[Verdict]:
    """Take each part of a change behind the parts before it; the rows that change go to `changed`."""
    rows = dict(held)
    for place, row, shown in _parts(change):
        taken = _take_row(standing, origin, rows, place, row, shown=shown)
        own = taken.string if taken.string is not None else taken.element
        if taken.meta is not None:
            meta_place = Place(Sort.META, place.key)
            rows[meta_place] = changed[meta_place] = taken.meta
        if own is not None:
            rows[place] = changed[place] = own
        yield taken.verdict


def _take_row(
    standing: Standing, origin: Origin, rows: Mapping[Place, Row], place: Place, row: Row, *, shown: bool
) -> Taken:
    match row:
        case StringCell():
            return take_string(standing, origin, cast("StringCell | None", rows.get(place)), row)
        case Meta():
            return take_clear(standing, origin, _meta(rows, place.key), row.cleared)
        case _:
            held = cast("Element", rows.get(place, {}))
            return take_element(standing, origin, held, _meta(rows, place.key), row, shown=shown)


def _parts(change: Change) -> Iterator[tuple[Place, Row, bool]]:
    """Yield the rows of a change with their places, and whether a field of a Map must show its value (D60)."""
    match change:
        case StringWrite(key, cell):
            yield Place(Sort.STRING, key), cell, False
        case ElementWrite(key, element, row, shown):
            yield Place(Sort.ELEMENT, key, element), row, shown
        case ClearWrite(key, cleared):
            yield Place(Sort.META, key), Meta(cleared), False
        case RowsWrite(rows):
            yield from ((place, row, False) for place, row in rows)


def _with_meta(place: Place) -> tuple[Place, ...]:
    return of_element(place.key, place.element) if place.sort is Sort.ELEMENT else (place,)


def _meta(rows: Mapping[Place, Row], key: bytes) -> Meta:
    return cast("Meta", rows.get(Place(Sort.META, key), BARE))
