"""Storing: what a member reads for a message of a coordinator, what it writes, and what it answers.

The places that `places_of` names are read, then the rows of `on_store` are written in one batch; the answer leaves once
they are durable (D60).  Stays out: whether a cell may be stored (`owner`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from .cells import Element, Meta, Place, Retracted, Row, Sort, StringCell
from .merge import collectable, collected, collected_meta, collected_retracted, replaced
from .messages import (
    Change,
    ClearWrite,
    ElementWrite,
    Load,
    LoadAnswer,
    RetractWrite,
    RowsWrite,
    Store,
    StoreAnswer,
    StringWrite,
)
from .owner import Fate, Origin, Taken, Verdict, closed, take_clear, take_element, take_string, worst
from .retracting import take_retracted, take_retraction, waits
from .standing import Standing

BARE = Meta()
NONE = Retracted()


def of_string(key: bytes) -> tuple[Place, ...]:
    """Return the places to read for a String."""
    return (Place(Sort.STRING, key),)


def of_element(key: bytes, element: bytes) -> tuple[Place, ...]:
    """Return the places to read for an element: what a clear removed is known by the key's row."""
    return (Place(Sort.META, key), Place(Sort.ELEMENT, key, element))


def of_retracted(key: bytes) -> tuple[Place, ...]:
    """Return the places to read for what is taken back of a String: its cell is replaced (D84)."""
    return (Place(Sort.RETRACTED, key), Place(Sort.STRING, key))


def places_of(change: Change) -> tuple[Place, ...]:
    """Return the places of the rows that a member must know before it takes a change."""
    if isinstance(change, RetractWrite):
        return of_retracted(change.key)
    return with_related([place for place, _, _ in _parts(change)])


def with_retracted(places: Iterable[Place], keys: Collection[bytes]) -> tuple[Place, ...]:
    """Return places with those of what is taken back of Strings; `keys` may have some (D84)."""
    found = tuple(places)
    if not keys:
        return found
    more = (Place(Sort.RETRACTED, key) for sort, key, _ in found if sort is Sort.STRING and key in keys)
    return tuple(dict.fromkeys((*more, *found)))


def with_related(places: Iterable[Place]) -> tuple[Place, ...]:
    """Return places with those of the rows that belong to them: what a clear made void, what was taken back."""
    found: dict[Place, None] = {}
    for place in places:
        if place.sort is Sort.STRING:   # most places, and they come in numbers
            found[place] = None
        else:
            found.update(dict.fromkeys(_with_meta(place)))
    return tuple(found)


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
            case Retracted():
                if (retracted := collected_retracted(row, floor_ms)) is not None:
                    left[place] = retracted
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
    known = {place.key: row for place, row in held.items() if isinstance(row, Retracted)}
    if isinstance(change, RetractWrite):
        place, string = of_retracted(change.key)
        back = take_retraction(origin, known.get(change.key, NONE), _string(rows, change.key), change)
        changed.update(_present({place: back.retracted, string: back.string}))
        yield back.verdict
        return
    for place, row, shown in _parts(change):
        if isinstance(row, StringCell):
            held_cell, retracted = cast("StringCell | None", rows.get(place)), known.get(place.key)
            taken = _take_string(standing, origin, held_cell, retracted, row)
            if taken.string is not None:
                rows[place] = changed[place] = taken.string
            yield taken.verdict
            continue
        if isinstance(row, Retracted):
            if origin.external:
                yield Verdict(Fate.DROPPED)     # only an owner says what was taken back
                continue
            back = take_retracted(known.get(place.key, NONE), _string(rows, place.key), row)
            risen = _present({place: back.retracted, Place(Sort.STRING, place.key): back.string})
            if back.retracted is not None:
                known[place.key] = back.retracted
            rows.update(risen)
            changed.update(risen)
            yield back.verdict
            continue
        meta = _meta(rows, place.key)
        if isinstance(row, Meta):
            taken = take_clear(standing, origin, meta, row.cleared)
        else:
            taken = take_element(standing, origin, cast("Element", rows.get(place, {})), meta, row, shown=shown)
        if taken.meta is not None:
            meta_place = Place(Sort.META, place.key)
            rows[meta_place] = changed[meta_place] = taken.meta
        if taken.element is not None:
            rows[place] = changed[place] = taken.element
        yield taken.verdict


def _take_string(
    standing: Standing, origin: Origin, held: StringCell | None, retracted: Retracted | None, cell: StringCell
) -> Taken:
    if retracted is not None:
        if waits(origin, retracted, cell):
            return Taken(Verdict(Fate.NOT_READY))
        cell = replaced(cell, retracted)
    return take_string(standing, origin, held, cell)


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
            for place, held in _in_order(rows):
                yield place, held, False


def _in_order(rows: Sequence[tuple[Place, Row]]) -> Sequence[tuple[Place, Row]]:
    """Return rows with retractions in front: they say what becomes of a String that comes with them."""
    if not any([place.sort is Sort.RETRACTED for place, _ in rows]):
        return rows
    return sorted(rows, key=lambda each: each[0].sort is not Sort.RETRACTED)


def _with_meta(place: Place) -> tuple[Place, ...]:
    match place.sort:
        case Sort.ELEMENT:
            return of_element(place.key, place.element)
        case Sort.RETRACTED:
            return of_retracted(place.key)
        case _:
            return (place,)


def _meta(rows: Mapping[Place, Row], key: bytes) -> Meta:
    return cast("Meta", rows.get(Place(Sort.META, key), BARE))


def _string(rows: Mapping[Place, Row], key: bytes) -> StringCell | None:
    return cast("StringCell | None", rows.get(Place(Sort.STRING, key)))


def _present(rows: Mapping[Place, Row | None]) -> dict[Place, Row]:
    return {place: row for place, row in rows.items() if row is not None}
