"""Operations: what a client asks of a keyspace, as the reads and writes that it takes.

An operation is a generator of steps.  It yields a read, a write, or a question for what the coordinator itself holds,
and gets the result of each; its return value is the answer to the client.
Stays out: running the steps (`running`), deadlines.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from ..cells import NEVER, Element, Meta, Place, Row, Sort, StringCell
from ..merge import string_of, value_of
from ..messages import Change, ClearWrite, ElementWrite, RowsWrite, Span, StringWrite
from ..stamps import ZERO, Dot, Stamp
from ..storing import of_element, of_string
from ..writes import add, delete, put, remove
from .inspecting import InspectStep
from .outcomes import Outcome
from .reading import Found, Repair
from .writing import Done

T = TypeVar("T")


class ReadStep(NamedTuple):
    """Read places and a span; the result is `Found`.  None: repair as the keyspace does.

    A read that is `strict` must see every write, whatever R the request names.
    """

    places: tuple[Place, ...]
    span: Span | None = None
    repair: Repair | None = None
    strict: bool = False


class WriteStep(NamedTuple):
    """Write what `make` makes of a dot whose stamp is above `above`; the result is `Done`."""

    make: Callable[[Dot], Change]
    fixed: bool = False
    above: Stamp = ZERO


class HeldStep(NamedTuple):
    """What does the coordinator hold at these places?  The result is rows by place, none where it is no owner."""

    places: tuple[Place, ...]


class RetractStep(NamedTuple):
    """Take a stamp of a String back at all owners; the result is `retracting.Ended` (D84)."""

    key: bytes
    was: Stamp


Steps = Generator[ReadStep | WriteStep | HeldStep | InspectStep | RetractStep, Any, T]


class Value(NamedTuple):
    """The answer to a read of one value; None: there is none."""

    outcome: Outcome
    value: bytes | None = None


class Page(NamedTuple):
    """The answer to a read of many: elements or keys with their values, in order.  The next page begins at `behind`."""

    outcome: Outcome
    values: tuple[tuple[bytes, bytes], ...] = ()
    behind: bytes | None = None


Now = Callable[[], int]
"""The coordinator's clock, in milliseconds: values are shown by the time at which they were read."""


# --- Strings ------------------------------------------------------------------------------------------------


def get(key: bytes, now: Now) -> Steps[Value]:
    """Read a String."""
    found: Found = yield ReadStep(of_string(key))
    return Value(found.outcome, string_of(_string(found.rows, key), now(), found.floor_ms))


def set_(key: bytes, value: bytes, expires_at_ms: int = NEVER) -> Steps[Done]:
    """Write a String."""
    done: Done = yield WriteStep(lambda dot: StringWrite(key, put(dot, value, expires_at_ms)))
    return done


def set_many(items: Sequence[tuple[bytes, bytes, int]]) -> Steps[Done]:
    """Write Strings of one range with one stamp, each a key, a value and an expiry; the answer is that of all of them.

    Where one of them needs a higher stamp, all get it.  No other node can keep them for owners (D73).
    """
    done: Done = yield WriteStep(lambda dot: RowsWrite(tuple(
        (Place(Sort.STRING, key), put(dot, value, expires_at_ms)) for key, value, expires_at_ms in items)))
    return done


def unset(key: bytes) -> Steps[Done]:
    """Delete a String, whether it is there or not."""
    done: Done = yield WriteStep(lambda dot: StringWrite(key, delete(dot)))
    return done


def getdel(key: bytes, now: Now) -> Steps[Value]:
    """Read a String and delete it.  Of callers at the same time at least one gets the value."""
    found: Found = yield ReadStep(of_string(key))
    value = string_of(_string(found.rows, key), now(), found.floor_ms)
    if found.outcome is not Outcome.OK or value is None:
        return Value(found.outcome)
    done: Done = yield WriteStep(lambda dot: StringWrite(key, delete(dot)))
    return Value(done.outcome, value)


# --- elements -----------------------------------------------------------------------------------------------


def put_element(
    key: bytes, element: bytes, value: bytes = b"", expires_at_ms: int = NEVER, *, shown: bool = False
) -> Steps[Done]:
    """Add a member of a Set, or set a field of a Map: then `shown`, for it must show the value (D60)."""
    held: Mapping[Place, Row] = yield HeldStep(of_element(key, element))
    row = _element(held, key, element)

    def make(dot: Dot) -> Change:
        known = {each: cell for each, cell in row.items() if cell.stamp < dot.stamp}   # others stay beside it (D57)
        return ElementWrite(key, element, add(dot.actor, dot, known, value, expires_at_ms), shown)

    done: Done = yield WriteStep(make)
    return done


def remove_element(key: bytes, element: bytes) -> Steps[Done]:
    """Remove an element: read what there is, then write all of it dead; again where a floor rose between (D57).

    The read repairs: a write quorum then holds dead cells that are below its promises and would be refused.
    """
    while True:
        found: Found = yield ReadStep(of_element(key, element), repair=Repair.BLOCKING, strict=True)
        if found.outcome is not Outcome.OK:
            return Done(found.outcome, ZERO, ())
        row = _element(found.rows, key, element)
        above = max((cell.stamp for cell in row.values() if not cell.dead), default=ZERO)
        done: Done = yield WriteStep(_removal(key, element, row), fixed=True, above=above)
        if done.outcome is not Outcome.BELOW:
            return done


def get_element(key: bytes, element: bytes, now: Now) -> Steps[Value]:
    """Read the value of an element: of a member of a Set it is empty."""
    found: Found = yield ReadStep(of_element(key, element))
    row, cleared = _element(found.rows, key, element), _meta(found.rows, key).cleared
    return Value(found.outcome, value_of(row, cleared, now(), found.floor_ms))


def elements(key: bytes, now: Now, first: bytes = b"", count_max: int = 1_000) -> Steps[Page]:
    """Read the elements of a key from `first` on, in the order of their bytes; pages are not isolated."""
    span = Span(Place(Sort.ELEMENT, key, first), Place(Sort.ELEMENT, key + b"\0"), count_max)
    found: Found = yield ReadStep((Place(Sort.META, key),), span)
    cleared = _meta(found.rows, key).cleared
    values = tuple(
        (place.element, value) for place, row in sorted(found.rows.items(), key=lambda item: item[0])
        if place.sort is Sort.ELEMENT
        and (value := value_of(cast("Element", row), cleared, now(), found.floor_ms)) is not None
    )
    return Page(found.outcome, values, found.behind.element if found.behind is not None else None)


def clear(key: bytes) -> Steps[Done]:
    """Remove all elements of a key at once (D58)."""
    done: Done = yield WriteStep(lambda dot: ClearWrite(key, dot.stamp))
    return done


def strings(left: bytes, right: bytes | None, now: Now, count_max: int = 1_000) -> Steps[Page]:
    """Read the Strings of one range with keys in [left, right), None: to its end, in the order of their bytes."""
    behind = Place(Sort.META, b"") if right is None else Place(Sort.STRING, right)
    found: Found = yield ReadStep((), Span(Place(Sort.STRING, left), behind, count_max))
    values = tuple(
        (place.key, value) for place, row in sorted(found.rows.items(), key=lambda item: item[0])
        if isinstance(row, StringCell) and (value := string_of(row, now(), found.floor_ms)) is not None
    )
    return Page(found.outcome, values, found.behind.key if found.behind is not None else None)


def _removal(key: bytes, element: bytes, row: Element) -> Callable[[Dot], Change]:
    return lambda dot: ElementWrite(key, element, remove(dot.stamp, row))


def _string(rows: Mapping[Place, Row], key: bytes) -> StringCell | None:
    return cast("StringCell | None", rows.get(Place(Sort.STRING, key)))


def _element(rows: Mapping[Place, Row], key: bytes, element: bytes) -> Element:
    return cast("Element", rows.get(Place(Sort.ELEMENT, key, element), {}))


def _meta(rows: Mapping[Place, Row], key: bytes) -> Meta:
    return cast("Meta", rows.get(Place(Sort.META, key), Meta()))

