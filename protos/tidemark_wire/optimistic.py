"""Messages of keyspaces to protobuf and back, with the bounds of all that a peer sends.

A peer that holds to the bounds can make no member fail: core counts on lists that are not empty where they must not
be, on places and rows that can be read, and on times and names that the store can hold.
Stays out: frames, any judgement about records, stamps or floors.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

from tidemark_core.base.errors import FormatTooNew, RemoteViolation
from tidemark_core.optimistic import deleting, floors, messages, moving
from tidemark_core.optimistic.cells import (
    Meta,
    Place,
    Retracted,
    Row,
    Sort,
    StringCell,
    decode_element,
    decode_place,
    decode_row,
    decode_string,
    encode_element,
    encode_place,
    encode_row,
    encode_string,
)
from tidemark_core.optimistic.exchanging import messages as exchanging
from tidemark_core.optimistic.exchanging.giving import BUCKETS, PARTS_MAX
from tidemark_core.optimistic.exchanging.tree import DIGESTS, Part, Tally
from tidemark_core.optimistic.inspection import CELLS_MAX
from tidemark_core.optimistic.owner import Fate, Source, Verdict
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_core.optimistic.stamps import START_BYTES, Actor, Stamp

from .codecs import (
    MEMBER_TEXT_BYTES_MAX,
    PLAIN,
    Codecs,
    Field,
    codec_of,
    get_list,
    get_message,
    get_optional,
    member_from_proto,
    member_to_proto,
    set_list,
    set_message,
    set_some,
)
from .v1 import optimistic_pb2

OWNERS_MAX = 32
"""Members of one list of owners, and sources of one round."""

SPAN_ROWS_MAX = 1_024
"""Rows that a span asks for."""

ROWS_MAX = 16_384
"""Rows or places in one message: more than the answers of all owners to one span."""

INSPECTED_PLACES_MAX = 8
"""Places that an inspection asks for."""

TIME_MS_MAX = (1 << 62) - 1
"""Milliseconds of a stamp or a floor: the next one fits the store as well."""

AT_BYTES_MAX = 2 * KEY_BYTES_MAX + ELEMENT_BYTES_MAX + 8
"""Bytes that bound a part of an exchange: the encoded place of the longest key and element, and one behind it."""

DIGEST_BYTES = (DIGESTS - 1).bit_length() // 8


# --- words inside messages --------------------------------------------------------------------------------


def _within(data: bytes, most: int, what: str) -> bytes:
    if len(data) > most:
        raise RemoteViolation(f"{what} has {len(data)} bytes, the limit is {most}")
    return data


def _key(data: bytes) -> bytes:
    return _within(data, KEY_BYTES_MAX, "a key")


def _element(data: bytes) -> bytes:
    return _within(data, ELEMENT_BYTES_MAX, "an element")


def _at(data: bytes) -> bytes:
    return _within(data, AT_BYTES_MAX, "a bound of a part")


def _time(ms: int) -> int:
    if not 0 <= ms <= TIME_MS_MAX:
        raise RemoteViolation(f"a time is {ms} ms, the limits are 0 and {TIME_MS_MAX}")
    return ms


def _place(data: bytes) -> Place:
    place = decode_place(data)
    _key(place.key)
    if place.element:
        _element(place.element)
    return place


def _bound(data: bytes) -> Place:
    """Read the place of a row, or the first one behind it: that has one more byte."""
    place = decode_place(data)
    _within(place.key, KEY_BYTES_MAX + 1, "a key that bounds a span")
    _within(place.element, ELEMENT_BYTES_MAX + 1, "an element that bounds a span")
    return place


def _checked(row: Row) -> Row:
    """Return a row of which the store can hold every cell."""
    match row:
        case StringCell():
            _time(row.stamp.ms)
            _within(row.value, VALUE_BYTES_MAX, "a value")
            return row
        case Meta():
            cells = [(row.cleared, b""), (row.greatest, b"")]
        case Retracted():
            cells = [(stamp, b"") for each in row.stamps for stamp in each]
        case _:
            cells = [(cell.stamp, cell.value) for cell in row.values()]
    for stamp, value in cells:
        _time(stamp.ms)
        _within(value, VALUE_BYTES_MAX, "a value")
    return row


def _placed(proto: optimistic_pb2.Row | optimistic_pb2.Keep) -> tuple[Place, Row]:
    place = _place(proto.place)
    return place, _checked(decode_row(place.sort, proto.row))


def _kept(proto: optimistic_pb2.Keep) -> Row:
    place, row = _placed(proto)
    if place.sort is Sort.RETRACTED:
        raise RemoteViolation("a node is asked to keep what was taken back, which owners alone have")
    return row


def _row_to_proto(pair: tuple[Place, Row]) -> optimistic_pb2.Row:
    return optimistic_pb2.Row(place=encode_place(pair[0]), row=encode_row(pair[1]))


def _stamp_to_proto(stamp: Stamp) -> optimistic_pb2.Stamp:
    return optimistic_pb2.Stamp(ms=stamp.ms, logical=stamp.logical, node=stamp.node, start=stamp.start)


def _stamp_from_proto(proto: optimistic_pb2.Stamp) -> Stamp:
    _within(proto.node.encode(), MEMBER_TEXT_BYTES_MAX, "the node of a stamp")
    if len(proto.start) != START_BYTES:
        raise RemoteViolation(f"the start of a stamp has {len(proto.start)} bytes, must have {START_BYTES}")
    return Stamp(_time(proto.ms), proto.logical, proto.node, proto.start)


def _seen_to_proto(seen: messages.Seen) -> optimistic_pb2.Seen:
    place, stamp, dead, expires_at_ms, size, digest, n, actor = seen
    return optimistic_pb2.Seen(
        place=encode_place(place), stamp=_stamp_to_proto(stamp), dead=dead, expires_at_ms=expires_at_ms, size=size,
        digest=digest, n=n, actor=optimistic_pb2.Actor(node=actor.node, start=actor.start) if actor else None)


def _seen_from_proto(proto: optimistic_pb2.Seen) -> messages.Seen:
    return messages.Seen(
        _place(proto.place), _STAMP[1](proto, "stamp"), proto.dead, proto.expires_at_ms, proto.size, proto.digest,
        proto.n, get_optional(_actor_from_proto)(proto, "actor"))


def _actor_from_proto(proto: optimistic_pb2.Actor) -> Actor:
    _within(proto.node.encode(), MEMBER_TEXT_BYTES_MAX, "the node of an actor")
    if len(proto.start) != START_BYTES:
        raise RemoteViolation(f"the start of an actor has {len(proto.start)} bytes, must have {START_BYTES}")
    return Actor(proto.node, proto.start)


def _word_from_text(kind: type[Enum], text: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise FormatTooNew(f"{kind.__name__} {text!r} is not known to this build") from error


def _verdict_to_proto(verdict: Verdict) -> optimistic_pb2.Verdict:
    return optimistic_pb2.Verdict(fate=verdict.fate.value, above=_stamp_to_proto(verdict.above))


def _verdict_from_proto(proto: optimistic_pb2.Verdict) -> Verdict:
    return Verdict(_word_from_text(Fate, proto.fate), _STAMP[1](proto, "above"))


def _owners_to_proto(owners: Owners) -> optimistic_pb2.Owners:
    n, r, w = owners.quorum
    return optimistic_pb2.Owners(members=map(member_to_proto, owners.members), n=n, r=r, w=w)


def _owners_from_proto(proto: optimistic_pb2.Owners) -> Owners:
    return Owners(_MEMBERS[1](proto, "members"), Quorum(proto.n, proto.r, proto.w))


def _record_to_proto(record: Range) -> optimistic_pb2.Record:
    proto = optimistic_pb2.Record(version=record.version, own=_owners_to_proto(record.own), floor_ms=record.floor_ms)
    _PENDING[0](proto, "pending", record.pending)
    return proto


def _record_from_proto(proto: optimistic_pb2.Record) -> Range:
    own = get_message(_owners_from_proto)(proto, "own")
    return Range(proto.version, own, _PENDING[1](proto, "pending"), _time(proto.floor_ms))


def _span_to_proto(span: messages.Span) -> optimistic_pb2.Span:
    return optimistic_pb2.Span(
        first=encode_place(span.first), behind=encode_place(span.behind), rows_max=span.rows_max)


def _span_from_proto(proto: optimistic_pb2.Span) -> messages.Span:
    if proto.rows_max > SPAN_ROWS_MAX:
        raise RemoteViolation(f"a span asks for {proto.rows_max} rows, the limit is {SPAN_ROWS_MAX}")
    return messages.Span(_bound(proto.first), _bound(proto.behind), proto.rows_max)


def _exchange_to_proto(exchange: exchanging.Exchange) -> optimistic_pb2.Exchange:
    return optimistic_pb2.Exchange(
        range=exchange.range, version=exchange.version, floor_ms=exchange.floor_ms, number=exchange.number)


def _exchange_from_proto(proto: optimistic_pb2.Exchange) -> exchanging.Exchange:
    return exchanging.Exchange(proto.range, proto.version, _time(proto.floor_ms), proto.number)


def _tally_to_proto(tally: Tally) -> optimistic_pb2.Tally:
    return optimistic_pb2.Tally(rows=tally.rows, digest=tally.digest.to_bytes(DIGEST_BYTES))


def _tally_from_proto(proto: optimistic_pb2.Tally) -> Tally:
    if len(proto.digest) != DIGEST_BYTES:
        raise RemoteViolation(f"the digest of a part has {len(proto.digest)} bytes, must have {DIGEST_BYTES}")
    return Tally(proto.rows, int.from_bytes(proto.digest))


def _part_to_proto(part: Part) -> optimistic_pb2.Part:
    return optimistic_pb2.Part(first=part.first, behind=part.behind, tally=_tally_to_proto(part.tally))


def _part_from_proto(proto: optimistic_pb2.Part) -> Part:
    return Part(_at(proto.first), _at(proto.behind), get_message(_tally_from_proto)(proto, "tally"))


def _listing_to_proto(pair: tuple[bytes, int]) -> optimistic_pb2.Listing:
    return optimistic_pb2.Listing(place=pair[0], digest=pair[1])


def _listing_from_proto(proto: optimistic_pb2.Listing) -> tuple[bytes, int]:
    """The puller reads the place later, where bytes that name none would stop its node."""
    _place(proto.place)
    return proto.place, proto.digest


def _bounds_to_proto(bounds: exchanging.Bounds) -> optimistic_pb2.Bounds:
    return optimistic_pb2.Bounds(first=bounds[0], behind=bounds[1])


def _bounds_from_proto(proto: optimistic_pb2.Bounds) -> exchanging.Bounds:
    return _at(proto.first), _at(proto.behind)


def _drawn_to_proto(drawn: exchanging.Drawn) -> optimistic_pb2.Drawn:
    return optimistic_pb2.Drawn(first=drawn.first, behind=drawn.behind, buckets=drawn.buckets)


def _drawn_from_proto(proto: optimistic_pb2.Drawn) -> exchanging.Drawn:
    if len(proto.buckets) not in (0, BUCKETS):
        raise RemoteViolation(f"a sketch has {len(proto.buckets)} buckets, must have none or {BUCKETS}")
    return exchanging.Drawn(_at(proto.first), _at(proto.behind), tuple(proto.buckets))


def _some(field: Field) -> Field:
    """A list with at least one item."""

    def get(proto: Any, name: str) -> Any:
        if not getattr(proto, name):
            raise RemoteViolation(f"{name} has no items, must have at least one")
        return field[1](proto, name)

    return field[0], get


def _get_wanted(proto: optimistic_pb2.Want, name: str) -> tuple[Place, ...]:
    if not proto.places:
        raise RemoteViolation("a member wants the rows at no place")
    places: tuple[Place, ...] = _PLACES[1](proto, name)
    return places


# --- fields -----------------------------------------------------------------------------------------------


def _read(convert: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda proto, name: convert(getattr(proto, name))


def _plain(convert: Callable[[Any], Any]) -> Field:
    """A field that core has as the protobuf does, within bounds."""
    return PLAIN[0], _read(convert)


def _written(write: Callable[[Any], Any], read: Callable[[Any], Any]) -> Field:
    return lambda proto, name, value: setattr(proto, name, write(value)), _read(read)


def _word(kind: type[Enum]) -> Field:
    return _written(lambda word: word.value, partial(_word_from_text, kind))


def _word_or_none(kind: type[Enum]) -> Field:
    def put(proto: Any, name: str, word: Enum | None) -> None:
        set_some(proto, name, None if word is None else word.value)

    return put, get_optional(partial(_word_from_text, kind))


_MEMBERS: Field = (set_list(member_to_proto), get_list(member_from_proto, OWNERS_MAX))
_PENDING: Field = (set_message(_owners_to_proto), get_optional(_owners_from_proto))
_TIME = _plain(_time)
_AT = _plain(_at)
_AT_OR_NONE: Field = (set_some, get_optional(_at))
_PLACE = _written(encode_place, _place)
_KEPT_ROW: Field = (lambda proto, name, row: setattr(proto, name, encode_row(row)), lambda proto, name: _kept(proto))
_BOUND_OR_NONE: Field = (
    lambda proto, name, place: set_some(proto, name, None if place is None else encode_place(place)),
    get_optional(_bound),
)
_PLACES: Field = (set_list(encode_place), get_list(_place, ROWS_MAX))
_FEW_PLACES: Field = (set_list(encode_place), get_list(_place, INSPECTED_PLACES_MAX))
_SEEN: Field = (set_list(_seen_to_proto), get_list(_seen_from_proto, CELLS_MAX))
_WANTED: Field = (set_list(encode_place), _get_wanted)
_ROWS: Field = (set_list(_row_to_proto), get_list(_placed, ROWS_MAX))
_STRING = _written(encode_string, lambda data: _checked(decode_string(data)))
_CELLS = _written(encode_element, lambda data: _checked(decode_element(data)))
_STAMP: Field = (set_message(_stamp_to_proto), get_message(_stamp_from_proto))
_VERDICT: Field = (set_message(_verdict_to_proto), get_message(_verdict_from_proto))
_RECORD: Field = (set_message(_record_to_proto), get_message(_record_from_proto))
_RECORD_OR_NONE: Field = (set_message(_record_to_proto), get_optional(_record_from_proto))
_SPAN_OR_NONE: Field = (set_message(_span_to_proto), get_optional(_span_from_proto))
_EXCHANGE: Field = (set_message(_exchange_to_proto), get_message(_exchange_from_proto))
_ASKED_PARTS = _some((set_list(_part_to_proto), get_list(_part_from_proto, PARTS_MAX)))
_PARTS: Field = (set_list(_part_to_proto), get_list(_part_from_proto, PARTS_MAX**2))
_LEAVES: Field = (set_list(_bounds_to_proto), get_list(_bounds_from_proto, PARTS_MAX))
_DRAWN = _some((set_list(_drawn_to_proto), get_list(_drawn_from_proto, PARTS_MAX)))
_LISTINGS: Field = (set_list(_listing_to_proto), get_list(_listing_from_proto, ROWS_MAX))


# --- changes ----------------------------------------------------------------------------------------------


def _set_change(proto: optimistic_pb2.Store, name: str, change: messages.Change) -> None:
    match change:
        case messages.StringWrite(key, cell):
            proto.string.MergeFrom(optimistic_pb2.StringWrite(key=key, cell=encode_string(cell)))
        case messages.ElementWrite(key, element, row, shown):
            proto.element.MergeFrom(
                optimistic_pb2.ElementWrite(key=key, element=element, row=encode_element(row), shown=shown))
        case messages.ClearWrite(key, cleared):
            proto.clear.MergeFrom(optimistic_pb2.ClearWrite(key=key, cleared=_stamp_to_proto(cleared)))
        case messages.RowsWrite(rows):
            proto.rows.SetInParent()
            written = proto.rows.rows
            for place, held in rows:    # field by field: to name them in `add` takes twice as long
                each = written.add()
                each.place, each.row = encode_place(place), encode_row(held)
        case messages.RetractWrite(key, was, became):
            proto.retract.MergeFrom(optimistic_pb2.RetractWrite(
                key=key, was=_stamp_to_proto(was), became=_stamp_to_proto(became)))


def _get_change(proto: optimistic_pb2.Store, name: str) -> messages.Change:
    match proto.WhichOneof("change"):
        case "string":
            return messages.StringWrite(_key(proto.string.key), _STRING[1](proto.string, "cell"))
        case "element":
            return _element_write(proto.element)
        case "clear":
            return messages.ClearWrite(_key(proto.clear.key), _STAMP[1](proto.clear, "cleared"))
        case "rows":
            return messages.RowsWrite(_ROWS[1](proto.rows, "rows"))
        case "retract":
            was, became = (_STAMP[1](proto.retract, name) for name in ("was", "became"))
            if became > was:
                raise RemoteViolation("a stamp stands in for one that is below it")
            return messages.RetractWrite(_key(proto.retract.key), was, became)
        case _:
            raise FormatTooNew("a store carries a change that is not known to this build")


def _element_write(proto: optimistic_pb2.ElementWrite) -> messages.ElementWrite:
    row = _CELLS[1](proto, "row")
    if proto.shown and not row:
        raise RemoteViolation("a field that must show its value has no cell")
    return messages.ElementWrite(_key(proto.key), _element(proto.element), row, proto.shown)


_CHANGE: Field = (_set_change, _get_change)


# --- the table --------------------------------------------------------------------------------------------

_codec = partial(codec_of, optimistic_pb2)


def _work_of_store(message: messages.Store) -> int:
    return 1 + len(message.change.rows) if isinstance(message.change, messages.RowsWrite) else 1


def _work_of_rows(message: messages.LoadAnswer | exchanging.Listed | exchanging.Given) -> int:
    return 1 + len(message.rows)


def _work_of_places(message: messages.Load | exchanging.Want) -> int:
    return 1 + len(message.places)


def _work_of_parts(message: exchanging.Open | exchanging.Opened) -> int:
    return 1 + len(message.parts)


def _work_of_leaves(message: exchanging.Sketch) -> int:
    return 1 + len(message.leaves)


CODECS = Codecs((
    _codec(
        1, messages.Store, work=_work_of_store,
        range=PLAIN, version=PLAIN, floor_ms=_TIME, operation=PLAIN, attempt=PLAIN, source=_word(Source),
        change=_CHANGE,
    ),
    _codec(
        2, messages.StoreAnswer,
        range=PLAIN, version=PLAIN, floor_ms=_TIME, operation=PLAIN, attempt=PLAIN, verdict=_VERDICT,
        record=_RECORD_OR_NONE,
    ),
    _codec(
        3, messages.Load, work=_work_of_places,
        range=PLAIN, version=PLAIN, floor_ms=_TIME, operation=PLAIN, attempt=PLAIN, places=_PLACES,
        span=_SPAN_OR_NONE,
    ),
    _codec(
        4, messages.LoadAnswer, work=_work_of_rows,
        range=PLAIN, version=PLAIN, floor_ms=_TIME, operation=PLAIN, attempt=PLAIN, rows=_ROWS,
        behind=_BOUND_OR_NONE, refused=_word_or_none(Fate), record=_RECORD_OR_NONE,
    ),
    _codec(5, messages.Keep, range=PLAIN, operation=PLAIN, attempt=PLAIN, place=_PLACE, row=_KEPT_ROW),
    _codec(
        6, messages.Kept, range=PLAIN, operation=PLAIN, attempt=PLAIN, refused=_word_or_none(messages.Refusal)),
    _codec(7, messages.RingTold, range=PLAIN, record=_RECORD),
    _codec(8, messages.Inspect, range=PLAIN, operation=PLAIN, places=_FEW_PLACES),
    _codec(
        9, messages.Inspected,
        range=PLAIN, operation=PLAIN, part=_word(messages.Part), version=PLAIN, floor_ms=_TIME, promise_ms=_TIME,
        exchanged_ms=_TIME, needs_repair=PLAIN, cells=_SEEN, cells_more=PLAIN, hints=_SEEN, hints_more=PLAIN,
    ),
    _codec(16, exchanging.Open, work=_work_of_parts, exchange=_EXCHANGE, parts=_ASKED_PARTS),
    _codec(
        17, exchanging.Opened, work=_work_of_parts,
        exchange=_EXCHANGE, first=_AT, behind=_AT, parts=_PARTS, leaves=_LEAVES,
    ),
    _codec(18, exchanging.Unanswered, exchange=_EXCHANGE, why=_word(Fate), record=_RECORD_OR_NONE),
    _codec(19, exchanging.Sketch, work=_work_of_leaves, exchange=_EXCHANGE, leaves=_DRAWN),
    _codec(20, exchanging.Listed, work=_work_of_rows, exchange=_EXCHANGE, first=_AT, rows=_LISTINGS, rest=_AT_OR_NONE),
    _codec(21, exchanging.Want, work=_work_of_places, exchange=_EXCHANGE, places=_WANTED),
    _codec(22, exchanging.Given, work=_work_of_rows, exchange=_EXCHANGE, upto=_PLACE, rows=_ROWS),
    _codec(32, moving.Announced, range=PLAIN, record=_RECORD),
    _codec(33, moving.Known, range=PLAIN, version=PLAIN),
    _codec(34, moving.CopyAsked, range=PLAIN, version=PLAIN),
    _codec(35, moving.Copied, range=PLAIN, version=PLAIN),
    _codec(36, floors.HintsAsked, range=PLAIN, round=PLAIN, floor_ms=_TIME),
    _codec(37, floors.HintsGone, range=PLAIN, round=PLAIN),
    _codec(38, floors.PromiseAsked, range=PLAIN, round=PLAIN, version=PLAIN, floor_ms=_TIME),
    _codec(39, floors.Promised, range=PLAIN, round=PLAIN),
    _codec(40, floors.SyncAsked, range=PLAIN, round=PLAIN, version=PLAIN, sources=_MEMBERS),
    _codec(41, floors.Synced, range=PLAIN, round=PLAIN),
    _codec(42, deleting.ForgetAsked, keyspace=PLAIN),
    _codec(43, deleting.Forgotten, keyspace=PLAIN),
))
"""The messages of keyspaces.  Numbers are what travels as `kind` in a link frame; they are never reused."""
