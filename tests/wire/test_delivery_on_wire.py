"""Frames of delivery: what goes in comes out, and whatever is malformed is a RemoteViolation that changes nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.entry import HEADER_BYTES, Batch, Entry, Kind, control, seal
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import NOTHING, EntryId
from tidemark_core.delivery.messages import (
    DAMAGED,
    NOT_HELD,
    Item,
    Shipment,
    Start,
    Started,
    Status,
    Window,
    entries_item,
    hole_item,
    not_held_item,
    singly,
    together,
)
from tidemark_core.delivery.order import SLOTS_MAX, Mode
from tidemark_wire import delivery, frames
from tidemark_wire.delivery import (
    CorruptShipment,
    StartCall,
    Stop,
    decode_answer,
    decode_request,
)

unsigned = st.integers(0, (1 << 64) - 1)
small = st.integers(0, (1 << 32) - 1)
signed = st.integers(-(1 << 63), (1 << 63) - 1)
offsets = st.integers(0, 1 << 40)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)


@st.composite
def starts(draw: st.DrawFn) -> Start:
    ensemble = draw(st.lists(words, min_size=1, max_size=SLOTS_MAX, unique=True).map(tuple))
    known_down = draw(st.lists(st.sampled_from(ensemble), unique=True))
    mode = draw(st.sampled_from(Mode))
    near = tuple(draw(st.lists(st.integers(0, 5), min_size=len(ensemble), max_size=len(ensemble))))
    priorities = near if mode is Mode.LOCAL else draw(st.sampled_from([near, ()]))
    until = draw(st.one_of(st.just(-1), offsets))
    return Start(
        draw(unsigned), draw(offsets), until, mode, tuple(sorted(known_down)), ensemble, priorities, draw(unsigned),
        draw(st.integers(0, len(ensemble))),
    )


requests = st.one_of(
    st.builds(StartCall, words, small, starts(), small, small), st.builds(Window, unsigned, unsigned),
    st.builds(Stop, unsigned),
)


@st.composite
def shipments(draw: st.DrawFn) -> Shipment:
    """Entries and holes in any mixture, with offsets between them that are not this node's."""
    at = first = draw(offsets)
    found: list[Entry | Item] = []
    for payload in draw(st.lists(st.one_of(st.none(), st.just(NOT_HELD), st.binary(max_size=300)), max_size=6)):
        at += draw(st.integers(0, 5))
        count = draw(st.integers(1, 20))
        if payload is None:
            found.append(hole_item(at, at + count - 1))
        elif payload is NOT_HELD:
            found.append(not_held_item(at, at + count - 1))
        else:
            batch = Batch(b"p" * 16, 0, count, 0, 0, crc32c(payload), payload)
            entry = seal(batch, kind=Kind.DATA, epoch=3, prev=EntryId(3, at - 1), prev_chain=0, logged_ms=1)
            found.append(entry)
        at += count
    items = tuple(together(found))
    if items:  # whoever asked may have asked from the middle of the first entry or hole
        first = draw(st.integers(first, next(singly(items)).last))
    through = at - 1 + draw(st.integers(0, 5))
    return Shipment(draw(unsigned), first, max(through, first - 1), draw(signed), items)


@given(requests)
@settings(max_examples=200, deadline=None)
def test_request_round_trip(message: Any):
    assert message == decode_request(delivery.encode_request(message))


@given(st.builds(Started, unsigned, st.sampled_from(Status), signed, signed, st.text(max_size=50)))
@settings(max_examples=50, deadline=None)
def test_started_round_trip(message: Started):
    assert message == decode_answer(delivery.encode_answer(message))


@given(shipments())
@settings(max_examples=100, deadline=None)
def test_shipment_round_trip(message: Shipment):
    assert message == decode_answer(delivery.encode_answer(message))


def test_size_of_an_item_is_what_travels():
    """Both sides count windows by it, and it must not drift from what crosses the network."""
    entry = control(Kind.NOOP, b"hello", epoch=1, prev=NOTHING, prev_chain=0, logged_ms=5)
    empty = len(delivery.encode_answer(Shipment(1, 0, 0, 0, ())))
    for item in (entries_item((entry,)), hole_item(0, 0), not_held_item(0, 0)):
        assert len(delivery.encode_answer(Shipment(1, 0, 0, 0, (item,)))) - empty == item.size + 1
    assert HEADER_BYTES + 5 == entries_item((entry,)).size


def test_largest_start_fits():
    names = tuple(f"{number:02}" + "é" * 126 for number in range(SLOTS_MAX))
    start = Start(1, 0, -1, Mode.LOCAL, names, names, (5,) * SLOTS_MAX, 1)
    call = StartCall("g" * frames.TEXT_BYTES_MAX, 0, start)
    assert call == decode_request(delivery.encode_request(call))


GOOD = Start(7, 10, 20, Mode.LOCAL, ("b",), ("a", "b", "c"), (0, 5, 1), 1000)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"ensemble": ()}, "ensemble has 0 members"),
        ({"ensemble": tuple(map(str, range(17))), "priorities": (0,) * 17, "known_down": ()}, "has 17 members"),
        ({"ensemble": ("a", "b", "a")}, "ensemble names a member twice"),
        ({"ensemble": ("a", "b", "")}, "without a name"),
        ({"known_down": ("d",)}, "known_down names a node outside"),
        ({"first": -1}, "first is -1"),
        ({"until": -2}, "until is -2"),
        ({"window_bytes": -1}, "window_bytes is -1"),
        ({"priorities": ()}, "priorities has 0 numbers for 3 members"),
        ({"priorities": (1, 2), "mode": Mode.SINGLE_COPY}, "priorities has 2 numbers"),
        ({"priorities": (1, 2, 6)}, "priorities has a number outside 0 to 5"),
        ({"copies": 4}, "copies is 4, must be 0 to 3"),
        ({"ensemble": ("a", "b", "x" * 256)}, "ensemble has 256 bytes"),
    ],
)
def test_start_that_cannot_be_is_not_sent(changes: dict, text: str):
    with pytest.raises(ValueError, match=text):
        delivery.encode_request(StartCall("orders", 0, replace(GOOD, **changes)))


FRAME = delivery.encode_request(StartCall("orders", 3, GOOD, 1 << 20))
FIELDS = {"first": 14, "until": 22, "mode": 30, "down": 31, "frame": 41, "members": 45, "priorities": 46, "copies": 47}


@pytest.mark.parametrize(
    ("at", "put", "text"),
    [
        (0, b"\x04", "kind 4 from a reader"),
        (FIELDS["first"], b"\xff", "START: first is -"),
        (FIELDS["until"], b"\xff" * 7 + b"\x00", "START: until is -256"),
        (FIELDS["mode"], b"\x03", "mode 3 is not known"),
        (FIELDS["down"], b"\x00\x08", "known_down names a slot beyond the 3"),
        (FIELDS["members"], b"\x02", "priorities has 3 numbers for 2 members"),
        (FIELDS["members"], b"\x00", "known_down names a slot beyond the 0"),
        (FIELDS["priorities"], b"\x02", "too early"),
        (FIELDS["copies"], b"\x04", "START: copies is 4"),
        (len(FRAME) - 1, b"a", "ensemble names a member twice"),
        (len(FRAME) - 1, b"\xff", "not UTF-8"),
    ],
)
def test_start_that_cannot_be_is_not_taken(at: int, put: bytes, text: str):
    with pytest.raises(RemoteViolation, match=text):
        decode_request(FRAME[:at] + put + FRAME[at + len(put) :])


def test_requests_are_bounded_and_end_where_they_say():
    with pytest.raises(RemoteViolation, match="limit is 16384"):
        decode_request(bytes(delivery.REQUEST_BYTES_MAX + 1))
    for message in (StartCall("orders", 3, GOOD), Window(1, 2), Stop(1)):
        with pytest.raises(RemoteViolation, match="1 bytes too many"):
            decode_request(delivery.encode_request(message) + b"\0")
    for message in (Started(1, Status.OK, 1, 0), Shipment(1, 0, 0, 0, ())):
        with pytest.raises(RemoteViolation, match="1 bytes too many"):
            decode_answer(delivery.encode_answer(message) + b"\0")


def entry_at(base: int, count: int = 1, payload: bytes = b"payload") -> Item:
    batch = Batch(b"p" * 16, 0, count, 0, 0, crc32c(payload), payload)
    return entries_item((seal(batch, kind=Kind.DATA, epoch=1, prev=EntryId(1, base - 1), prev_chain=0, logged_ms=1),))


@pytest.mark.parametrize(
    ("first", "through", "items"),
    [
        (5, 9, (entry_at(3, 2),)),                  # all of it in front of the coverage
        (5, 9, (hole_item(3, 4),)),
        (5, 9, (entry_at(9, 2),)),                  # beyond it
        (5, 9, (hole_item(8, 10),)),
        (5, 9, (hole_item(7, 6),)),
        (5, 9, (entry_at(6), entry_at(6))),         # twice, out of order, overlapping
        (5, 9, (entry_at(7), entry_at(6))),
        (5, 9, (entry_at(5, 3), hole_item(7, 8))),
        (5, 9, (hole_item(5, 7), entry_at(7))),
        (5, 4, (entry_at(5),)),                     # nothing is covered
    ],
)
def test_item_out_of_order_or_outside_is_a_violation(first: int, through: int, items: tuple):
    """Whoever misses a record must be able to trust what a shipment says about its coverage."""
    frame = delivery.encode_answer(Shipment(1, first, through, 20, items))
    with pytest.raises(RemoteViolation, match="is not in order, or not inside the coverage"):
        decode_answer(frame)


SHIPMENT = Shipment(77, 4, 12, 30, (entry_at(3, 3), hole_item(6, 8), entry_at(10, 2)))


def test_damaged_payload_stands_out_among_the_others():
    """Its offsets are certain: the reader takes the rest, and learns that this node does not hold it."""
    frame = bytearray(delivery.encode_answer(SHIPMENT))
    frame[-1] ^= 0xFF
    whole, hole, last = SHIPMENT.items
    expected = replace(SHIPMENT, items=(whole, hole, last._replace(body=DAMAGED)))
    assert expected == decode_answer(bytes(frame))


def test_damaged_payload_ends_the_entries_that_go_as_one():
    one, two, three = (entry_at(base) for base in (4, 5, 6))
    frame = bytearray(delivery.encode_answer(Shipment(1, 4, 6, 6, (entries_item(one.body + two.body + three.body),))))
    frame[-(three.size + 2)] ^= 0xFF
    got = decode_answer(bytes(frame))
    assert isinstance(got, Shipment) and (one, two._replace(body=DAMAGED), three) == got.items


@pytest.mark.parametrize("at", [-8, -20, -(7 + HEADER_BYTES), -(8 + HEADER_BYTES)])
def test_shipment_that_cannot_be_used_tells_its_generation(at: int):
    """Header or kind of an item: S9 needs to know which generation to rewind."""
    frame = bytearray(delivery.encode_answer(SHIPMENT))
    frame[at] ^= 0xFF
    with pytest.raises(CorruptShipment, match="shipment of generation 77: ") as caught:
        decode_answer(bytes(frame))
    assert 77 == caught.value.generation


def test_item_count_beyond_the_frame_is_a_violation():
    frame = bytearray(delivery.encode_answer(Shipment(1, 0, 9, 9, ())))
    frame[-4:] = b"\xff\xff\xff\xff"
    with pytest.raises(RemoteViolation, match="no room"):
        decode_answer(bytes(frame))


@pytest.mark.parametrize(("at", "put", "text"), [(0, 9, "kind 9 from a node"), (9, 4, "status 4 is not known")])
def test_unknown_word_of_a_node_is_a_violation(at: int, put: int, text: str):
    frame = bytearray(delivery.encode_answer(Started(1, Status.OK, 5, 0, "")))
    frame[at] = put
    with pytest.raises(RemoteViolation, match=text):
        decode_answer(bytes(frame))


def test_long_message_is_cut_not_refused():
    back = decode_answer(delivery.encode_answer(Started(1, Status.UNAVAILABLE, -1, 0, "é" * 5000)))
    assert isinstance(back, Started) and back.message.startswith("é" * 499) and len(back.message) <= 501


def test_mode_by_name():
    assert [Mode.SINGLE_COPY, *Mode] == [delivery.mode_of(text) for text in ("", *map(str, Mode))]
    with pytest.raises(RemoteViolation, match="mode 'scd' is not one of SINGLE_COPY, LOCAL, ALL_SEND_ALL"):
        delivery.mode_of("scd")


SAMPLES = [
    (decode_request, FRAME),
    (decode_request, delivery.encode_request(Window(1, 2))),
    (decode_request, delivery.encode_request(Stop(1))),
    (decode_answer, delivery.encode_answer(Started(1, Status.NOT_MEMBER, 5, 0, "gone"))),
    (decode_answer, delivery.encode_answer(SHIPMENT)),
]


@pytest.mark.parametrize(("decode", "frame"), SAMPLES)
def test_frame_cut_short_is_a_violation(decode: Any, frame: bytes):
    for length in range(len(frame)):
        with pytest.raises(RemoteViolation):
            decode(frame[:length])


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=500, deadline=None)
def test_damaged_frame_is_a_violation_or_another_message_never_a_crash(sample: tuple, data: st.DataObject):
    decode, frame = sample
    at = data.draw(st.integers(0, len(frame) - 1))
    damaged = frame[:at] + bytes([data.draw(st.integers(0, 255))]) + frame[at + 1 :]
    try:
        decode(damaged)
    except RemoteViolation as violation:
        assert str(violation)


@given(st.sampled_from([decode_request, decode_answer]), st.integers(0, 4), st.binary(max_size=200))
@settings(max_examples=500, deadline=None)
def test_random_bytes_never_crash(decode: Any, kind: int, noise: bytes):
    try:
        decode(bytes([kind]) + noise)
    except RemoteViolation as violation:
        assert str(violation)
