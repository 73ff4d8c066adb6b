"""Frames of change streams: round trips, bounds, hostile bytes, and a recorded stream that never changes (R9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import EntryId, shard_id
from tidemark_core.upr.consuming import Apply, Consuming, Move, Stage
from tidemark_core.upr.decision import Behind, HistoryLost, HistoryTrimmed, NotMyShard, Purged
from tidemark_core.upr.filters import Filter, KeyRange
from tidemark_core.upr.history import FailoverLog, Opening, Point
from tidemark_core.upr.messages import (
    Advanced,
    Confirmed,
    End,
    EndReason,
    Marker,
    Op,
    RolledBack,
    Row,
    Rows,
    StreamEnd,
    Summary,
    Tentative,
    size_of,
)
from tidemark_core.upr.positions import History, Partial, PositionRefused, Scope
from tidemark_wire import changes
from tidemark_wire.changes import (
    REQUEST_BYTES_MAX,
    Ack,
    AskIndex,
    Barrier,
    BarrierRejected,
    Close,
    Cookie,
    Index,
    Level,
    NoIndex,
    Noop,
    Open,
    Said,
    decode_answers,
    decode_requests,
    encode_answers,
    encode_request,
)

RECORDED = Path(__file__).with_name("data") / "change-stream-1.json"

numbers = st.integers(0, (1 << 32) - 1)
seqnos = st.integers(0, (1 << 63) - 1)
words = st.text(st.characters(codec="utf-8", categories=("L", "N")), max_size=40)
keys = st.binary(min_size=1, max_size=30)
points = st.builds(Point, st.binary(min_size=16, max_size=16), seqnos, seqnos)
scopes = st.builds(Scope, numbers, st.binary(min_size=16, max_size=16), st.sampled_from(History))
partials = st.builds(
    Partial, seqnos, seqnos, points, st.one_of(st.none(), seqnos), st.one_of(st.none(), seqnos))
ranges = st.tuples(keys, st.booleans()).map(lambda of: KeyRange(of[0], of[0] + b"\1" if of[1] else None))
filters = st.builds(Filter, st.lists(ranges, max_size=5).map(tuple), st.booleans(), st.booleans())
opens = st.builds(
    Open, numbers, words, numbers, scopes, points, st.one_of(st.none(), partials), filters, st.sampled_from(History),
    st.sampled_from(Level), st.integers(64 << 10, 64 << 20), st.booleans(), st.booleans(),
)
requests = st.one_of(
    opens, st.builds(Ack, numbers, seqnos), st.builds(Close, numbers), st.builds(AskIndex, numbers, words, numbers),
    st.builds(Barrier, words, st.dictionaries(numbers, seqnos, max_size=5)), st.just(Noop()),
)
befores = st.one_of(st.none(), st.binary(max_size=20))
rows = st.builds(
    Row, seqnos, keys, st.sampled_from(Op), st.binary(max_size=60), seqnos, st.binary(max_size=9), seqnos, befores,
    st.booleans(),
)
row_lists = st.lists(rows, max_size=6).map(tuple)
refusals = st.one_of(
    st.none(), st.builds(NotMyShard, seqnos), st.builds(Behind, seqnos), st.builds(HistoryLost, seqnos),
    st.builds(Purged, seqnos), st.builds(HistoryTrimmed, seqnos), st.builds(PositionRefused, words, words),
)
maybe = st.one_of(st.none(), seqnos)
messages = st.one_of(
    st.builds(Marker, seqnos, points, st.booleans(), maybe, maybe, seqnos, st.booleans()), st.builds(Rows, row_lists),
    st.builds(End, seqnos, st.one_of(st.none(), st.builds(Summary, seqnos, st.binary(min_size=16, max_size=16)))),
    st.builds(Advanced, points), st.builds(Confirmed, points), st.builds(RolledBack, seqnos),
    st.builds(Tentative, st.builds(EntryId, seqnos, seqnos), row_lists),
    st.builds(StreamEnd, st.sampled_from(EndReason), refusals, words),
)
failovers = st.lists(st.integers(1, 1000), max_size=5, unique=True).map(lambda epochs: FailoverLog(tuple(
    Opening(epoch, b"l" * 16, epoch - 2) for epoch in sorted(epochs, reverse=True))))
answers = st.one_of(
    st.builds(Said, numbers, messages), st.builds(Cookie, words), st.builds(NoIndex, numbers, words),
    st.builds(BarrierRejected, words, words, words), st.builds(Index, numbers, seqnos, failovers), st.just(Noop()),
)


@given(st.lists(requests, max_size=4))
def test_requests_come_out_as_they_went_in(sent: list[Any]) -> None:
    assert decode_requests(b"".join(map(encode_request, sent))) == sent


@given(st.lists(answers, max_size=4))
def test_answers_come_out_as_they_went_in(sent: list[Any]) -> None:
    assert decode_answers(encode_answers(sent)) == sent


@settings(max_examples=400)
@given(st.lists(answers, min_size=1, max_size=3), st.data())
def test_mutated_answers_raise_a_violation_or_are_bounded(sent: list[Any], data: st.DataObject) -> None:
    frame = bytearray(encode_answers(sent))
    mutate(frame, data)
    try:
        found = decode_answers(bytes(frame))
    except RemoteViolation:
        return
    decoded = sum(size_of(each.message) for each in found if isinstance(each, Said))
    assert decoded <= 20 * len(frame) + 20_000, "what is decoded is not larger than what came"


@settings(max_examples=400)
@given(st.lists(requests, min_size=1, max_size=3), st.data())
def test_mutated_requests_raise_a_violation_and_nothing_else(sent: list[Any], data: st.DataObject) -> None:
    frame = bytearray(b"".join(map(encode_request, sent)))
    mutate(frame, data)
    try:
        found = decode_requests(bytes(frame))
    except RemoteViolation:
        return
    assert all(changes.wrong_open(each) is None for each in found if isinstance(each, Open))


def mutate(frame: bytearray, data: st.DataObject) -> None:
    match data.draw(st.sampled_from(("flip", "cut", "append", "swap"))):
        case "flip":
            at = data.draw(st.integers(0, len(frame) - 1))
            frame[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del frame[data.draw(st.integers(0, len(frame) - 1)):]
        case "append":
            frame += data.draw(st.binary(min_size=1, max_size=20))
        case "swap":
            at = data.draw(st.integers(0, len(frame) - 1))
            frame[at:at + 4] = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(("frame", "wrong"), [
    (b"\0" * (REQUEST_BYTES_MAX + 1), "the limit is"),
    (encode_request(Close(1)) * 8193, "more than 8192 messages"),
    (changes._HEAD.pack(9, 0, 0), "kind 9 from a consumer is not known"),
    (changes._HEAD.pack(2, 0, 9) + b"\0" * 9, "bytes too many"),
    (
        changes._HEAD.pack(4, 0, 27) + changes._TARGETS.pack(0, 2) + changes._TARGET.pack(1, 1) * 2,
        "names a stream twice",
    ),
])
def test_a_consumer_that_breaks_a_bound_is_refused_by_the_fact(frame: bytes, wrong: str) -> None:
    with pytest.raises(RemoteViolation, match=wrong):
        decode_requests(frame)


def opened(**fields: Any) -> Open:
    return Open(**{
        "stream": 1, "group": "g", "shard": 0, "scope": Scope(1), "point": Point(bytes(16), 0, 0), **fields})   # type: ignore[arg-type]


@pytest.mark.parametrize(("message", "wrong"), [
    (opened(window=1), "window is 1 bytes"),
    (opened(wanted=Filter(tuple(KeyRange(b"%d" % at, None) for at in range(65)))), "65 ranges, the most is 64"),
    (opened(wanted=Filter((KeyRange(b"b", b"a"),))), "empty range"),
    (opened(group="g" * 300), "group has 300 bytes"),
])
def test_a_request_that_no_node_can_act_upon_is_not_sent(message: Open, wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        encode_request(message)


def test_rows_that_announce_more_than_there_is_yield_nothing() -> None:
    body = changes._ROWS.pack(1 << 31)
    with pytest.raises(RemoteViolation, match="has no room"):
        decode_answers(changes._HEAD.pack(11, 1, len(body)) + body)


# --- a recorded stream ------------------------------------------------------------------------------------

SHARD = shard_id(7, 0)
LINEAGE = bytes(range(16))
STREAM = [
    Said(1, Marker(0, Point(LINEAGE, 2, 9), True, 3, 9, 2)),
    Said(1, Rows((Row(1, b"a", Op.PUT, b"one", 5_000), Row(4, b"b", Op.DELETE, logged_ms=77)))),
    Said(1, Rows((Row(8, b"c", Op.PUT, b"three", 0, b"h", 78, b"two"),))),
    Said(1, End(9, Summary(2, b"D" * 16))),
    Said(1, Advanced(Point(LINEAGE, 2, 11))), Cookie("barrier-1"), Noop(),
    Said(1, Marker(11, Point(LINEAGE, 3, 13), False)),
    Said(1, Rows((Row(13, b"a", Op.EXPIRE, logged_ms=99, before_trimmed=True),))),
    Said(1, End(13)),
    Index(2, 13, FailoverLog((Opening(3, LINEAGE, 11), Opening(2, LINEAGE, -1)))), NoIndex(3, "no leader"),
    BarrierRejected("barrier-1", "cookie", "it is outstanding"),
    Said(1, StreamEnd(EndReason.REFUSED, Purged(12), "gone")), Said(1, StreamEnd(EndReason.SHUTTING_DOWN)),
]


def test_r9_a_recorded_stream_is_read_and_written_byte_by_byte() -> None:
    recorded = json.loads(RECORDED.read_text())
    frames = [bytes.fromhex(each) for each in recorded["answers"]]

    assert [answer for frame in frames for answer in decode_answers(frame)] == STREAM
    assert [encode_answers([answer]) for answer in STREAM] == frames
    (asked,) = decode_requests(bytes.fromhex(recorded["open"]))
    assert encode_request(asked).hex() == recorded["open"]
    assert isinstance(asked, Open) and asked.wanted.ranges == (KeyRange(b"a", b"b"),)


def test_r9_a_consumer_replays_the_recorded_stream() -> None:
    consumer = Consuming(Scope(7), SHARD)
    consumer.ask()
    view: dict[bytes, bytes] = {}
    staged: list[Row] = []
    for frame in json.loads(RECORDED.read_text())["answers"]:
        for answer in decode_answers(bytes.fromhex(frame)):
            for effect in consumer.on_message(answer.message) if isinstance(answer, Said) else ():
                match effect:
                    case Stage(part):
                        staged += part
                    case Apply():
                        view.update((row.key, row.value) for row in staged if row.op is Op.PUT)
                        for row in staged:
                            if row.op is not Op.PUT:
                                view.pop(row.key, None)
                        staged = []
                        consumer.stored(effect.point)
                    case Move(point):
                        consumer.stored(point)

    assert view == {b"c": b"three"}
    assert consumer.point == Point(LINEAGE, 3, 13)
