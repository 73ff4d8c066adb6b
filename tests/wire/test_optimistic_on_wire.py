"""Messages of keyspaces: what goes in comes out, every bound holds, and what cannot be read stops no node."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.errors import FormatTooNew, RemoteViolation
from tidemark_core.base.ids import KEYSPACE_PLANE, LOG_PLANE, Address, Member
from tidemark_core.optimistic import deleting, floors, messages, moving
from tidemark_core.optimistic.cells import (
    ElementCell,
    Meta,
    Place,
    Retracted,
    Retraction,
    Row,
    Sort,
    StringCell,
    encode_place,
)
from tidemark_core.optimistic.exchanging import messages as exchanging
from tidemark_core.optimistic.exchanging.giving import BUCKETS, PARTS_MAX
from tidemark_core.optimistic.exchanging.tree import DIGESTS, END, UNKNOWN, Part, Tally
from tidemark_core.optimistic.inspection import CELLS_MAX
from tidemark_core.optimistic.owner import STORED, Fate, Source, Verdict
from tidemark_core.optimistic.plane import KeyspacePlane
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_core.optimistic.sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_core.optimistic.stamps import LOGICAL_MAX, ZERO, Actor, Stamp
from tidemark_sim.keyspaces import node as simulated
from tidemark_sim.keyspaces.run import PROFILE
from tidemark_sim.runner import run_seed
from tidemark_wire import frames, optimistic
from tidemark_wire.codecs import MEMBER_TEXT_BYTES_MAX
from tidemark_wire.v1 import optimistic_pb2 as protos
from tidemark_wire.wire_version import VERSION_OF_PLANES, WIRE_VERSION, WIRE_VERSION_OLDEST

AT = Address(KEYSPACE_PLANE, 5 << 32 | 3)
ME, OTHER = Member("n1", "disk-1"), Member("n2", "disk-2")
LONG_KEY, LONG_ELEMENT, LONG_VALUE = bytes(KEY_BYTES_MAX), bytes(ELEMENT_BYTES_MAX), bytes(VALUE_BYTES_MAX)
SAID = Stamp(7, 1, "n1", b"12345678")
CELL = StringCell(SAID, False, 0, b"v")
RECORD = Range(4, Owners((ME, OTHER), Quorum(2, 1, 2)), None, 9)
EXCHANGE = exchanging.Exchange(3, 4, 9, 11)
WHOLE = Part(b"", END, UNKNOWN)

# --- what goes in comes out -------------------------------------------------------------------------------

unsigned = st.integers(0, (1 << 64) - 1)
numbers = st.integers(0, (1 << 32) - 1)
times = st.integers(0, optimistic.TIME_MS_MAX)
words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
members = st.builds(Member, words, words)
starts = st.binary(min_size=8, max_size=8)
stamps = st.one_of(st.just(ZERO), st.builds(Stamp, times, st.integers(0, LOGICAL_MAX), words, starts))
keys = st.one_of(st.binary(max_size=12), st.just(LONG_KEY))
names = st.one_of(st.binary(max_size=12), st.just(LONG_ELEMENT))
values = st.binary(max_size=20)
strings = st.builds(StringCell, stamps, st.booleans(), times, values)
metas = st.builds(Meta, stamps, stamps)
cells = st.builds(ElementCell, st.integers(1, 1 << 62), st.booleans(), stamps, times, values)
elements = st.dictionaries(st.builds(Actor, words, starts), cells, max_size=3)
taken_back = st.dictionaries(stamps, stamps, max_size=3).map(
    lambda became: Retracted(tuple(Retraction(was, min(was, each)) for was, each in sorted(became.items()))))
keepable: st.SearchStrategy[tuple[Place, Row]] = st.one_of(
    st.tuples(st.builds(Place, st.just(Sort.STRING), keys, st.just(b"")), strings),
    st.tuples(st.builds(Place, st.just(Sort.META), keys, st.just(b"")), metas),
    st.tuples(st.builds(Place, st.just(Sort.ELEMENT), keys, names), elements),
)
placed = keepable | st.tuples(st.builds(Place, st.just(Sort.RETRACTED), keys, st.just(b"")), taken_back)
places = placed.map(lambda pair: pair[0])
rows = st.lists(placed, max_size=3).map(tuple)
owners = st.builds(
    Owners, st.lists(members, max_size=4).map(tuple), st.builds(Quorum, *[st.integers(0, 9)] * 3))
records = st.builds(Range, unsigned, owners, st.none() | owners, times)
some_record = st.none() | records
fates = st.sampled_from(Fate)
bounds = st.binary(max_size=30)
exchanges = st.builds(exchanging.Exchange, unsigned, unsigned, times, unsigned)
tallies = st.one_of(st.just(UNKNOWN), st.builds(Tally, st.integers(0, 1 << 40), st.integers(0, DIGESTS - 1)))
parts = st.builds(Part, bounds, bounds, tallies)
listings = st.tuples(places.map(encode_place), unsigned)
buckets = st.one_of(st.just(()), st.lists(unsigned, min_size=BUCKETS, max_size=BUCKETS).map(tuple))
changes = st.one_of(
    st.builds(messages.StringWrite, keys, strings),
    st.builds(messages.ElementWrite, keys, names, elements),
    st.builds(messages.ElementWrite, keys, names, elements.filter(len), st.just(True)),
    st.builds(messages.ClearWrite, keys, stamps),
    st.builds(messages.RowsWrite, rows),
    st.builds(lambda key, *both: messages.RetractWrite(key, max(both), min(both)), keys, stamps, stamps),
)
head = (unsigned, unsigned, times, unsigned, unsigned)
some_seen = st.lists(st.builds(
    messages.Seen, places, stamps, st.booleans(), times, unsigned, unsigned, unsigned,
    st.none() | st.builds(Actor, words, starts)), max_size=3).map(tuple)
span = st.builds(messages.Span, places, places, st.integers(0, optimistic.SPAN_ROWS_MAX))
kept = keepable.flatmap(lambda pair: st.builds(messages.Keep, unsigned, unsigned, unsigned, *map(st.just, pair)))

MESSAGES: dict[type, st.SearchStrategy[Any]] = {
    messages.Store: st.builds(messages.Store, *head, st.sampled_from(Source), changes),
    messages.StoreAnswer: st.builds(messages.StoreAnswer, *head, st.builds(Verdict, fates, stamps), some_record),
    messages.Load: st.builds(messages.Load, *head, st.lists(places, max_size=3).map(tuple), st.none() | span),
    messages.LoadAnswer: st.builds(
        messages.LoadAnswer, *head, rows, st.none() | places, st.none() | fates, some_record),
    messages.Keep: kept,
    messages.Kept: st.builds(
        messages.Kept, unsigned, unsigned, unsigned, st.none() | st.sampled_from(messages.Refusal)),
    messages.RingTold: st.builds(messages.RingTold, unsigned, records),
    messages.Inspect: st.builds(messages.Inspect, unsigned, unsigned, st.lists(places, max_size=3).map(tuple)),
    messages.Inspected: st.builds(
        messages.Inspected, unsigned, unsigned, st.sampled_from(messages.Part), unsigned, times, times, times,
        st.booleans(), some_seen, unsigned, some_seen, unsigned),
    exchanging.Open: st.builds(exchanging.Open, exchanges, st.lists(parts, min_size=1, max_size=3).map(tuple)),
    exchanging.Opened: st.builds(
        exchanging.Opened, exchanges, bounds, bounds,
        st.lists(parts, max_size=3).map(tuple), st.lists(st.tuples(bounds, bounds), max_size=3).map(tuple)),
    exchanging.Unanswered: st.builds(exchanging.Unanswered, exchanges, fates, some_record),
    exchanging.Sketch: st.builds(
        exchanging.Sketch, exchanges,
        st.lists(st.builds(exchanging.Drawn, bounds, bounds, buckets), min_size=1, max_size=3).map(tuple)),
    exchanging.Listed: st.builds(
        exchanging.Listed, exchanges, bounds, st.lists(listings, max_size=3).map(tuple), st.none() | bounds),
    exchanging.Want: st.builds(exchanging.Want, exchanges, st.lists(places, min_size=1, max_size=3).map(tuple)),
    exchanging.Given: st.builds(exchanging.Given, exchanges, places, rows),
    moving.Announced: st.builds(moving.Announced, unsigned, records),
    moving.Known: st.builds(moving.Known, unsigned, unsigned),
    moving.CopyAsked: st.builds(moving.CopyAsked, unsigned, unsigned),
    moving.Copied: st.builds(moving.Copied, unsigned, unsigned),
    floors.HintsAsked: st.builds(floors.HintsAsked, unsigned, unsigned, times),
    floors.HintsGone: st.builds(floors.HintsGone, unsigned, unsigned),
    floors.PromiseAsked: st.builds(floors.PromiseAsked, unsigned, unsigned, unsigned, times),
    floors.Promised: st.builds(floors.Promised, unsigned, unsigned),
    floors.SyncAsked: st.builds(
        floors.SyncAsked, unsigned, unsigned, unsigned, st.lists(members, max_size=3).map(tuple)),
    floors.Synced: st.builds(floors.Synced, unsigned, unsigned),
    deleting.ForgetAsked: st.builds(deleting.ForgetAsked, numbers),
    deleting.Forgotten: st.builds(deleting.Forgotten, numbers),
}
ANSWERS_TO_OPERATORS = {
    moving.Known, moving.Copied, floors.HintsGone, floors.Promised, floors.Synced, deleting.Forgotten}


def coded(message: Any) -> bytes:
    return optimistic.CODECS.by_message[type(message)].encode(message)


def read(kind: type, body: bytes) -> Any:
    return optimistic.CODECS.by_message[kind].decode(body)


def refused(message: Any, match: str) -> None:
    with pytest.raises(RemoteViolation, match=match):
        read(type(message), coded(message))


def test_every_message_of_the_plane_has_a_row() -> None:
    assert {*KeyspacePlane.voices, *ANSWERS_TO_OPERATORS} == optimistic.CODECS.by_message.keys() == MESSAGES.keys()


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_a_message_comes_out_as_it_went_in(kind: type) -> None:
    @settings(max_examples=15, deadline=None)
    @given(MESSAGES[kind])
    def check(message: Any) -> None:
        frame = frames.encode_message(AT, ME, message)
        assert [(AT, ME, message)] == list(frames.decode_messages(frame))
        with pytest.raises(RemoteViolation):
            list(frames.decode_messages(frame[:-1]))

    check()


def test_what_simulated_nodes_send_passes_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds are none that a node meets by itself."""
    sent: dict[type, int] = {}
    receive = simulated.Node.receive

    def carried(node: Any, address: Any, sender: Any, to: Any, message: Any) -> None:
        sent[type(message)] = sent.get(type(message), 0) + 1
        assert message == read(type(message), coded(message))
        receive(node, address, sender, to, message)

    monkeypatch.setattr(simulated.Node, "receive", carried)
    assert all(run_seed(seed, PROFILE).passed for seed in (101, 103))
    assert len(sent) >= 12, sent


# --- bounds -----------------------------------------------------------------------------------------------

TOO_LONG = Place(Sort.STRING, LONG_KEY + b"k")
STRING = Place(Sort.STRING, b"k")
TAKEN_BACK = Place(Sort.RETRACTED, b"k")
HEAD = (3, 4, 9, 5, 1)
LOAD = messages.Load(*HEAD, (STRING,))
MANY = optimistic.ROWS_MAX + 1
SEEN = messages.Seen(STRING, SAID, False, 0, 1, 2)
SEEN_THERE = messages.Inspected(3, 5, messages.Part.OWNER, 4, 9, 9, 0, False)
CROWD = tuple(Member(f"n{number}", "d") for number in range(optimistic.OWNERS_MAX + 1))
LATE = optimistic.TIME_MS_MAX + 1


def stored(change: messages.Change) -> messages.Store:
    return messages.Store(*HEAD, Source.CLIENT, change)


def with_stamp(stamp: Stamp) -> messages.Store:
    return stored(messages.ClearWrite(b"k", stamp))


def of_value(value: bytes) -> Row:
    return {Actor("n1", bytes(8)): ElementCell(1, False, SAID, 0, value)}


@pytest.mark.parametrize(("message", "match"), [
    (stored(messages.StringWrite(LONG_KEY + b"k", CELL)), "a key has 1025 bytes"),
    (stored(messages.ClearWrite(LONG_KEY + b"k", SAID)), "a key has 1025 bytes"),
    (stored(messages.ElementWrite(LONG_KEY + b"k", b"", {})), "a key has 1025 bytes"),
    (stored(messages.ElementWrite(b"k", LONG_ELEMENT + b"e", {})), "an element has 1025 bytes"),
    (stored(messages.StringWrite(b"k", CELL._replace(value=LONG_VALUE + b"v"))), "a value has 1048577 bytes"),
    (stored(messages.ElementWrite(b"k", b"e", of_value(LONG_VALUE + b"v"))), "a value has 1048577 bytes"),
    (stored(messages.RowsWrite(((TOO_LONG, CELL),))), "a key has 1025 bytes"),
    (stored(messages.RowsWrite(((STRING, CELL),) * MANY)), "rows has 16385 items"),
    (stored(messages.ElementWrite(b"k", b"e", {}, shown=True)), "must show its value has no cell"),
    (with_stamp(SAID._replace(ms=LATE)), "a time is"),
    (with_stamp(SAID._replace(ms=-1)), "a time is"),
    (with_stamp(SAID._replace(node="n" * (MEMBER_TEXT_BYTES_MAX + 1))), "the node of a stamp has 256 bytes"),
    (with_stamp(SAID._replace(start=b"short")), "the start of a stamp has 5 bytes"),
    (stored(messages.StringWrite(b"k", CELL._replace(stamp=SAID._replace(ms=LATE)))), "a time is"),
    (stored(messages.RowsWrite(((Place(Sort.META, b"k"), Meta(SAID._replace(ms=LATE))),))), "a time is"),
    (replace(stored(messages.ClearWrite(b"k", SAID)), floor_ms=-1), "a time is"),
    (replace(LOAD, places=(TOO_LONG,)), "a key has 1025 bytes"),
    (replace(LOAD, places=(STRING,) * MANY), "places has 16385 items"),
    (replace(LOAD, span=messages.Span(STRING, STRING, optimistic.SPAN_ROWS_MAX + 1)), "asks for 1025 rows"),
    (replace(LOAD, span=messages.Span(STRING, Place(Sort.STRING, LONG_KEY + b"kk"), 1)), "bounds a span has 1026"),
    (replace(LOAD, span=messages.Span(Place(Sort.ELEMENT, b"k", LONG_ELEMENT + b"ee"), STRING, 1)),
     "bounds a span has 1026"),
    (messages.LoadAnswer(*HEAD, ((STRING, CELL),) * MANY), "rows has 16385 items"),
    (messages.LoadAnswer(*HEAD, behind=Place(Sort.STRING, LONG_KEY + b"kk")), "bounds a span has 1026"),
    (stored(messages.RetractWrite(LONG_KEY + b"k", SAID)), "a key has 1025 bytes"),
    (stored(messages.RetractWrite(b"k", SAID._replace(ms=LATE))), "a time is"),
    (stored(messages.RetractWrite(b"k", SAID, SAID._replace(ms=SAID.ms + 1))), "stands in for one that is below it"),
    (stored(messages.RowsWrite(((TAKEN_BACK, Retracted((Retraction(SAID._replace(ms=LATE), SAID),))),))), "a time is"),
    (messages.Keep(3, 5, 1, TAKEN_BACK, Retracted()), "which owners alone have"),
    (messages.Keep(3, 5, 1, TOO_LONG, CELL), "a key has 1025 bytes"),
    (messages.Keep(3, 5, 1, STRING, CELL._replace(value=LONG_VALUE + b"v")), "a value has 1048577 bytes"),
    (messages.Inspect(3, 5, (STRING,) * (optimistic.INSPECTED_PLACES_MAX + 1)), "places has 9 items"),
    (messages.Inspect(3, 5, (TOO_LONG,)), "a key has 1025 bytes"),
    (replace(SEEN_THERE, cells=(SEEN,) * (CELLS_MAX + 1)), "cells has 65 items"),
    (replace(SEEN_THERE, hints=(SEEN,) * (CELLS_MAX + 1)), "hints has 65 items"),
    (replace(SEEN_THERE, cells=(SEEN._replace(actor=Actor("n1", b"short")),)), "the start of an actor has 5 bytes"),
    (replace(SEEN_THERE, cells=(SEEN._replace(actor=Actor("n" * 256, bytes(8))),)), "the node of an actor has 256"),
    (replace(SEEN_THERE, exchanged_ms=LATE), "a time is"),
    (messages.RingTold(3, RECORD._replace(floor_ms=LATE)), "a time is"),
    (messages.RingTold(3, RECORD._replace(own=Owners(CROWD, Quorum(3, 2, 2)))), "members has 33 items"),
    (messages.RingTold(3, RECORD._replace(pending=Owners(CROWD, Quorum(3, 2, 2)))), "members has 33 items"),
    (messages.RingTold(3, RECORD._replace(own=Owners((Member("n" * 256, "d"),), Quorum(1, 1, 1)))),
     "the node of a member has more than 255 bytes"),
    (messages.RingTold(3, RECORD._replace(own=Owners((Member("n", ""),), Quorum(1, 1, 1)))), "without node or inc"),
    (exchanging.Open(EXCHANGE, (Part(bytes(optimistic.AT_BYTES_MAX + 1), END, UNKNOWN),)), "a bound of a part"),
    (exchanging.Open(replace(EXCHANGE, floor_ms=-1), (WHOLE,)), "a time is"),
    (exchanging.Open(EXCHANGE, ()), "parts has no items"),
    (exchanging.Open(EXCHANGE, (WHOLE,) * (PARTS_MAX + 1)), "parts has 17 items"),
    (exchanging.Opened(EXCHANGE, b"", END, (WHOLE,) * (PARTS_MAX**2 + 1)), "parts has 257 items"),
    (exchanging.Opened(EXCHANGE, b"", END, (), ((b"", END),) * (PARTS_MAX + 1)), "leaves has 17 items"),
    (exchanging.Opened(EXCHANGE, b"", END, (), ((b"", bytes(optimistic.AT_BYTES_MAX + 1)),)), "a bound of a part"),
    (exchanging.Opened(EXCHANGE, b"", END, (Part(b"", bytes(optimistic.AT_BYTES_MAX + 1), UNKNOWN),)), "a bound of"),
    (exchanging.Sketch(EXCHANGE, ()), "leaves has no items"),
    (exchanging.Sketch(EXCHANGE, (exchanging.Drawn(b"", END),) * (PARTS_MAX + 1)), "leaves has 17 items"),
    (exchanging.Sketch(EXCHANGE, (exchanging.Drawn(b"", END, (1,) * (BUCKETS - 1)),)), "a sketch has 63 buckets"),
    (exchanging.Listed(EXCHANGE, b"", ((b"\x09x", 1),)), "name no row"),
    (exchanging.Listed(EXCHANGE, b"", ((encode_place(STRING), 1),) * MANY), "rows has 16385 items"),
    (exchanging.Listed(EXCHANGE, b"", (), bytes(optimistic.AT_BYTES_MAX + 1)), "a bound of a part"),
    (exchanging.Want(EXCHANGE, ()), "wants the rows at no place"),
    (exchanging.Want(EXCHANGE, (STRING,) * MANY), "places has 16385 items"),
    (exchanging.Given(EXCHANGE, TOO_LONG, ()), "a key has 1025 bytes"),
    (exchanging.Given(EXCHANGE, STRING, ((STRING, CELL),) * MANY), "rows has 16385 items"),
    (floors.HintsAsked(3, 1, -1), "a time is"),
    (floors.PromiseAsked(3, 1, 4, LATE), "a time is"),
    (floors.SyncAsked(3, 1, 4, CROWD), "sources has 33 items"),
], ids=lambda each: type(each).__name__ if not isinstance(each, str) else each.replace(" ", "_"))
def test_what_is_over_a_bound_is_refused(message: Any, match: str) -> None:
    refused(message, match)


def test_the_longest_key_element_and_value_pass_and_so_does_the_bound_behind_them() -> None:
    longest = Place(Sort.ELEMENT, LONG_KEY, LONG_ELEMENT)
    behind = Place(Sort.ELEMENT, LONG_KEY, LONG_ELEMENT + b"\0")
    for message in (
        stored(messages.RowsWrite(((longest, of_value(LONG_VALUE)),))),
        replace(LOAD, span=messages.Span(longest, Place(Sort.ELEMENT, LONG_KEY + b"\0"), optimistic.SPAN_ROWS_MAX)),
        messages.LoadAnswer(*HEAD, behind=behind),
        exchanging.Listed(EXCHANGE, encode_place(longest), (), encode_place(longest) + b"\0"),
    ):
        assert message == read(type(message), coded(message))


@pytest.mark.parametrize(("kind", "proto", "match"), [
    (messages.Store, protos.Store(source="client"), "a change that is not known"),
    (messages.Store, protos.Store(source="moon", clear=protos.ClearWrite()), "Source 'moon'"),
    (messages.StoreAnswer, protos.StoreAnswer(verdict=protos.Verdict(fate="eaten")), "Fate 'eaten'"),
    (messages.LoadAnswer, protos.LoadAnswer(refused="eaten"), "Fate 'eaten'"),
    (messages.Kept, protos.Kept(refused="bored"), "Refusal 'bored'"),
    (exchanging.Unanswered, protos.Unanswered(exchange=protos.Exchange(), why="eaten"), "Fate 'eaten'"),
])
def test_a_word_of_a_newer_release_is_left_out_and_what_is_behind_it_is_read(
    kind: type, proto: Any, match: str
) -> None:
    with pytest.raises(FormatTooNew, match=match):
        read(kind, proto.SerializeToString())
    codec = optimistic.CODECS.by_message[kind]
    body = proto.SerializeToString()
    newer = frames._LINK.pack(AT.plane, codec.kind, AT.id, 0, 0, len(body)) + body
    skipped: list[str] = []
    behind = moving.Known(3, 4)
    got = list(frames.decode_messages(newer + frames.encode_message(AT, ME, behind), skipped=skipped.append))
    assert [behind] == [message for _, _, message in got] and 1 == len(skipped)


@pytest.mark.parametrize(("kind", "proto", "match"), [
    (messages.RingTold, protos.RingTold(), "lacks record"),
    (messages.RingTold, protos.RingTold(record=protos.Record()), "lacks own"),
    (messages.StoreAnswer, protos.StoreAnswer(), "lacks verdict"),
    (messages.StoreAnswer, protos.StoreAnswer(verdict=protos.Verdict(fate="stored")), "lacks above"),
    (exchanging.Open, protos.Open(), "lacks exchange"),
    (exchanging.Open, protos.Open(
        exchange=protos.Exchange(), parts=[protos.Part(tally=protos.Tally(digest=b"1"))]), "a part has 1 bytes"),
    (messages.Load, protos.Load(places=[b""]), "name no row"),
    (messages.Keep, protos.Keep(place=encode_place(STRING), row=b"\1"), "cut short"),
    (messages.Store, protos.Store(source="client", element=protos.ElementWrite(row=b"\0\0\0\1")), "cut short"),
    (messages.Store, protos.Store(source="client", clear=protos.ClearWrite()), "lacks cleared"),
])
def test_a_part_that_is_missing_or_damaged_is_refused(kind: type, proto: Any, match: str) -> None:
    with pytest.raises(RemoteViolation, match=match):
        read(kind, proto.SerializeToString())


@pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.__name__)
def test_bytes_that_are_no_message_are_refused(kind: type) -> None:
    with pytest.raises(RemoteViolation, match="cannot be read"):
        read(kind, b"\x0a\xff")


# --- frames -----------------------------------------------------------------------------------------------


def test_a_link_of_the_version_before_carries_no_message_of_keyspaces() -> None:
    for version in range(WIRE_VERSION_OLDEST, VERSION_OF_PLANES):
        with pytest.raises(frames.NotOnThisWire, match=f"plane {KEYSPACE_PLANE}"):
            frames.message_parts(AT, ME, moving.CopyAsked(3, 4), version)
    assert frames.message_parts(AT, ME, moving.CopyAsked(3, 4), WIRE_VERSION)


@pytest.mark.parametrize(("message", "work"), [
    (stored(messages.RowsWrite(((STRING, CELL),) * 5)), 6),
    (stored(messages.StringWrite(b"k", CELL)), 1),
    (replace(LOAD, places=(STRING,) * 4), 5),
    (messages.LoadAnswer(*HEAD, ((STRING, CELL),) * 3), 4),
    (exchanging.Listed(EXCHANGE, b"", ((b"", 1),) * 7), 8),
    (exchanging.Open(EXCHANGE, (WHOLE,) * 2), 3),
    (exchanging.Opened(EXCHANGE, b"", END, (WHOLE,) * 3), 4),
    (exchanging.Sketch(EXCHANGE, (exchanging.Drawn(b"", END),) * 2), 3),
    (exchanging.Want(EXCHANGE, (STRING,) * 2), 3),
    (exchanging.Given(EXCHANGE, STRING, ((STRING, CELL),) * 2), 3),
    (messages.StoreAnswer(*HEAD, STORED), 1),
])
def test_a_message_is_as_much_work_as_it_has_rows_or_places(message: Any, work: int) -> None:
    assert work == frames.work_of(KEYSPACE_PLANE, message)
    assert 1 == frames.work_of(LOG_PLANE, moving.Known(3, 4))
