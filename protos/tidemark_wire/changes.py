"""Raw frames of Documents/Changes: what a consumer and one node say about the change streams of several shards.

A frame holds one or more messages.  Each has a head (kind, number of the stream, bytes of the body); the number is the
consumer's own and never used twice on a connection, so what belongs to a closed stream is recognised.  Messages of a
stream are those of the core's `upr`; what only the connection needs stands beside them.
Everything decoded is bounded and checked first: what is malformed raises RemoteViolation and yields nothing that could
be acted upon.
Stays out: gRPC itself, which message comes when (`upr.serving`, `upr.consuming`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import EntryId
from tidemark_core.upr.barriers import COOKIE_CHARS_MAX
from tidemark_core.upr.credit import WINDOW_BYTES_DEFAULT, wrong_window
from tidemark_core.upr.decision import (
    Behind,
    HistoryLost,
    HistoryTrimmed,
    NotMyShard,
    Purged,
    Refusal,
)
from tidemark_core.upr.filters import ALL, KEY_BYTES_MAX, RANGES_MAX, Filter, KeyRange, wrong_filter
from tidemark_core.upr.history import FailoverLog, Point
from tidemark_core.upr.messages import (
    Advanced,
    Confirmed,
    End,
    EndReason,
    Marker,
    Message,
    Op,
    RolledBack,
    Row,
    Rows,
    StreamEnd,
    Summary,
    Tentative,
)
from tidemark_core.upr.positions import SHARDS_MAX, History, Partial, PositionRefused, Scope

from .frames import Cursor, short_text

CHANGES = "/tidemark.v1.Documents/Changes"
REQUEST_BYTES_MAX = 1 << 20
REQUEST_MESSAGES_MAX = 8192
TEXT_BYTES_MAX = 2000

_HEAD = struct.Struct(">BII")            # kind, stream, bytes of the body
_POINT = struct.Struct(">16sQQ")         # lineage, epoch, seqno
_SCOPE = struct.Struct(">I16sB")         # group, digest of the filter, history mode
_OPEN = struct.Struct(">BIBBI")          # bytes of group, shard, level, flags, window
_PARTIAL = struct.Struct(">QQqq")        # start, last, purged, end of the first scan; -1: none
_RANGES = struct.Struct(">BB")           # which parts are shown, number of ranges
_RANGE = struct.Struct(">HBH")           # bytes of first, whether there is an end, bytes of end
_TOTAL = struct.Struct(">Q")
_TARGETS = struct.Struct(">BH")          # bytes of cookie, targets
_TARGET = struct.Struct(">Iq")           # stream, seqno
_MARKER = struct.Struct(">QBqqq")        # start, flags, purged, end of the first scan, count; -1: none
_ROWS = struct.Struct(">I")              # rows
_ROW = struct.Struct(">QBBHIIIqq")       # seqno, op, flags, bytes of key, value, headers, before, expires, logged
_SUMMARY = struct.Struct(">Q16s")        # documents, digest
_ENTRY = struct.Struct(">Qq")            # epoch, offset
_SEQNO = struct.Struct(">q")
_WORD = struct.Struct(">BB")
_BYTES = struct.Struct(">H")             # of a text
_BYTE = struct.Struct(">B")

_CERTAIN, _SKIP_DELETES, _PARTIALLY = 1, 2, 4
_VALUES, _HEADERS = 1, 2
_DISK, _DUPLICATES = 1, 2
_BEFORE, _TRIMMED = 1, 2

# The constructor of a tuple, without a Python frame around it: rows come by the thousand.
_new = tuple.__new__


class Level(IntEnum):
    """The rows that a stream shows."""

    COMMITTED = 0
    TENTATIVE = 1   # undecided ones too, from the leader (U65)


# --- consumer to node -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Open:
    """Open a stream of one shard behind `point`, or inside `partial`.

    `scope` is that of the stored position; `wanted` and `history` are the stream's own.  With `certain` the node
    answers as the leader, by a read index that begins now (U57).
    """

    stream: int
    group: str
    shard: int
    scope: Scope
    point: Point
    partial: Partial | None = None
    wanted: Filter = ALL
    history: History = History.LATEST
    level: Level = Level.COMMITTED
    window: int = WINDOW_BYTES_DEFAULT
    skip_deletes: bool = False
    certain: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """The consumer has done with so many bytes since the stream began (U61)."""

    stream: int
    total: int


@dataclass(frozen=True, slots=True)
class Close:
    """The consumer wants no more of a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Barrier:
    """Move the positions of these streams to these seqnos at once, then return the cookie (U69)."""

    cookie: str
    targets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class AskIndex:
    """Ask the leader of a shard for a read index that begins now (U68); `stream` numbers the question."""

    stream: int
    group: str
    shard: int


@dataclass(frozen=True, slots=True)
class Noop:
    """A sign of life: the node asks, the consumer answers (U61)."""


Request = Open | Ack | Close | Barrier | AskIndex | Noop

# --- node to consumer -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cookie:
    """A barrier's cookie comes back (U69)."""

    cookie: str


@dataclass(frozen=True, slots=True)
class BarrierRejected:
    """A barrier could not be taken; `field` names the fact, and nothing changed."""

    cookie: str
    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Index:
    """The answer to `AskIndex`: everything that was confirmed before the question lies at or below `seqno`."""

    stream: int
    seqno: int
    failover: FailoverLog


@dataclass(frozen=True, slots=True)
class NoIndex:
    """This node does not answer: it does not lead the shard, or no majority answers it."""

    stream: int
    message: str


@dataclass(frozen=True, slots=True)
class Said:
    """A message of one stream."""

    stream: int
    message: Message


Answer = Said | Cookie | BarrierRejected | Index | NoIndex | Noop

_OPEN_KIND, _ACK_KIND, _CLOSE_KIND, _BARRIER_KIND, _ASK_KIND, _NOOP_KIND = range(1, 7)
(
    _MARKER_KIND, _ROWS_KIND, _END_KIND, _ADVANCED_KIND, _TENTATIVE_KIND, _ROLLED_BACK_KIND, _CONFIRMED_KIND,
    _STREAM_END_KIND, _COOKIE_KIND, _REJECTED_KIND, _INDEX_KIND, _NO_INDEX_KIND,
) = range(10, 22)

# A word travels as its place here: add at the end only.
_REASONS = (
    EndReason.CLOSED, EndReason.REFUSED, EndReason.STATE_CHANGED, EndReason.TOO_SLOW, EndReason.READ_FAILED,
    EndReason.CANNOT_SEND, EndReason.PROTOCOL_ERROR, EndReason.LOST_PRIVILEGES, EndReason.SHUTTING_DOWN,
    EndReason.OVERLOADED,
)
_NOTHING, _NOT_MY_SHARD, _POSITION, _BEHIND, _LOST, _PURGED, _HISTORY = range(7)


def encode_request(message: Request) -> bytes:
    """Return one message for the node.  Raises ValueError naming the field that cannot be said."""
    match message:
        case Open():
            return _framed(_OPEN_KIND, message.stream, _encode_open(message))
        case Ack(stream, total):
            return _framed(_ACK_KIND, stream, _TOTAL.pack(total))
        case Close(stream):
            return _framed(_CLOSE_KIND, stream, b"")
        case Barrier(cookie, targets):
            text = short_text(cookie, "cookie")
            if len(targets) > SHARDS_MAX:
                raise ValueError(f"targets has {len(targets)} streams, the limit is {SHARDS_MAX}")
            parts = [_TARGETS.pack(len(text), len(targets)), text]
            parts += (_TARGET.pack(stream, seqno) for stream, seqno in targets.items())
            return _framed(_BARRIER_KIND, 0, b"".join(parts))
        case AskIndex(stream, group, shard):
            text = short_text(group, "group")
            return _framed(_ASK_KIND, stream, _TARGETS.pack(len(text), 0) + _ROWS.pack(shard) + text)
        case Noop():
            return _framed(_NOOP_KIND, 0, b"")


def _framed(kind: int, stream: int, body: bytes) -> bytes:
    return _HEAD.pack(kind, stream, len(body)) + body


def _encode_open(m: Open) -> bytes:
    if (wrong := wrong_open(m)) is not None:
        raise ValueError(wrong)
    group = short_text(m.group, "group")
    flags = m.certain * _CERTAIN | m.skip_deletes * _SKIP_DELETES | (m.partial is not None) * _PARTIALLY
    parts = [
        _OPEN.pack(len(group), m.shard, m.level, flags, m.window), group, _BYTE.pack(m.history),
        _SCOPE.pack(m.scope.group, m.scope.filter, m.scope.history), _POINT.pack(*m.point),
        _RANGES.pack(m.wanted.values * _VALUES | m.wanted.headers * _HEADERS, len(m.wanted.ranges)),
    ]
    for first, end in m.wanted.ranges:
        parts += (_RANGE.pack(len(first), end is not None, len(end or b"")), first, end or b"")
    if (partial := m.partial) is not None:
        parts.append(_PARTIAL.pack(partial.start, partial.last, _or_none(partial.purged), _or_none(partial.first_end)))
        parts.append(_POINT.pack(*partial.end))
    return b"".join(parts)


def wrong_open(m: Open) -> str | None:
    """Return why no node could act upon a request for a stream, naming the field, or None."""
    if (wrong := wrong_filter(m.wanted)) is not None:
        return f"filter: {wrong}"
    return wrong_window(m.window)


def _or_none(number: int | None) -> int:
    return -1 if number is None else number


def _number(number: int) -> int | None:
    return None if number < 0 else number


def decode_requests(frame: bytes) -> list[Request]:
    """Return what a consumer said; raises RemoteViolation where it is malformed."""
    if len(frame) > REQUEST_BYTES_MAX:
        raise RemoteViolation(f"frame of a consumer has {len(frame)} bytes, the limit is {REQUEST_BYTES_MAX}")
    messages: list[Request] = []
    for kind, stream, body in _bodies(frame):
        if len(messages) >= REQUEST_MESSAGES_MAX:
            raise RemoteViolation(f"frame of a consumer has more than {REQUEST_MESSAGES_MAX} messages")
        messages.append(_decode_request(kind, stream, Cursor(body)))
    return messages


def _bodies(frame: bytes) -> Iterator[tuple[int, int, bytes]]:
    cursor = Cursor(frame)
    while cursor.at < cursor.end:
        kind, stream, size = cursor.unpack(_HEAD)
        yield kind, stream, cursor.take(size)


def _decode_request(kind: int, stream: int, cursor: Cursor) -> Request:
    message: Request
    if kind == _ACK_KIND:
        message = Ack(stream, *cursor.unpack(_TOTAL))
    elif kind == _OPEN_KIND:
        message = _decode_open(stream, cursor)
    elif kind == _CLOSE_KIND:
        message = Close(stream)
    elif kind == _BARRIER_KIND:
        text_bytes, count = cursor.unpack(_TARGETS)
        cookie = cursor.text(text_bytes)
        targets = dict(cursor.unpack(_TARGET) for _ in range(count))
        if len(targets) != count:
            raise RemoteViolation("a barrier names a stream twice")
        message = Barrier(cookie, targets)
    elif kind == _ASK_KIND:
        text_bytes, _ = cursor.unpack(_TARGETS)
        (shard,) = cursor.unpack(_ROWS)
        message = AskIndex(stream, cursor.text(text_bytes), shard)
    elif kind == _NOOP_KIND:
        message = Noop()
    else:
        raise RemoteViolation(f"message of kind {kind} from a consumer is not known to this build")
    _check_end(cursor)
    return message


def _decode_open(stream: int, cursor: Cursor) -> Open:
    text_bytes, shard, level, flags, window = cursor.unpack(_OPEN)
    group = cursor.text(text_bytes)
    (history,) = cursor.unpack(_BYTE)
    of_group, digest, of_history = cursor.unpack(_SCOPE)
    point = _point(cursor)
    shown, count = cursor.unpack(_RANGES)
    if count > RANGES_MAX:
        raise RemoteViolation(f"filter has {count} ranges, the most is {RANGES_MAX}")
    ranges: list[KeyRange] = []
    for _ in range(count):
        first_bytes, ends, end_bytes = cursor.unpack(_RANGE)
        if max(first_bytes, end_bytes) > KEY_BYTES_MAX:
            raise RemoteViolation(f"filter has a key of more than {KEY_BYTES_MAX} bytes")
        first, end = cursor.take(first_bytes), cursor.take(end_bytes)
        ranges.append(KeyRange(first, end if ends else None))
    partial = None
    if flags & _PARTIALLY:
        start, last, purged, first_end = cursor.unpack(_PARTIAL)
        partial = Partial(start, last, _point(cursor), _number(purged), _number(first_end))
    message = Open(
        stream, group, shard, Scope(of_group, digest, _word(History, of_history, "history")), point, partial,
        Filter(tuple(ranges), bool(shown & _VALUES), bool(shown & _HEADERS)), _word(History, history, "history"),
        _word(Level, level, "level"), window, bool(flags & _SKIP_DELETES), bool(flags & _CERTAIN),
    )
    if (wrong := wrong_open(message)) is not None:
        raise RemoteViolation(f"OPEN: {wrong}")
    return message


def _point(cursor: Cursor) -> Point:
    return Point(*cursor.unpack(_POINT))


def _word(words: Any, number: int, field: str) -> Any:
    try:
        return words(number)
    except ValueError as error:
        raise RemoteViolation(f"{field} {number} is not known to this build") from error


def _check_end(cursor: Cursor) -> None:
    if cursor.at != cursor.end:
        raise RemoteViolation(f"message has {cursor.end - cursor.at} bytes too many")


# --- node to consumer -------------------------------------------------------------------------------------


def encode_answers(messages: Iterable[Answer]) -> bytes:
    """Return a frame of these messages for the consumer."""
    parts: list[bytes] = []
    for message in messages:
        kind, stream, body = _answer_parts(message)
        parts.append(_HEAD.pack(kind, stream, sum(map(len, body))))
        parts += body
    return b"".join(parts)


def _answer_parts(message: Answer) -> tuple[int, int, Sequence[bytes]]:
    match message:
        case Said(stream, Rows(rows)):
            return _ROWS_KIND, stream, _row_parts(rows)
        case Said(stream, said):
            kind, body = _encode_said(said)
            return kind, stream, body
        case Cookie(cookie):
            return _COOKIE_KIND, 0, (_text(cookie),)
        case BarrierRejected(cookie, field, text):
            return _REJECTED_KIND, 0, (_text(cookie), _text(field), _text(text))
        case Index(stream, seqno, failover):
            return _INDEX_KIND, stream, (_SEQNO.pack(seqno), failover.encode())
        case NoIndex(stream, text):
            return _NO_INDEX_KIND, stream, (_text(text),)
        case Noop():
            return _NOOP_KIND, 0, ()


def _encode_said(message: Message) -> tuple[int, Sequence[bytes]]:
    match message:
        case Marker():
            flags = message.disk * _DISK | message.may_duplicate * _DUPLICATES
            head = _MARKER.pack(
                message.start, flags, _or_none(message.purged), _or_none(message.first_end), message.count)
            return _MARKER_KIND, (head, _POINT.pack(*message.end))
        case End(seqno, summary):
            said = _SUMMARY.pack(*summary) if summary is not None else b""
            return _END_KIND, (_SEQNO.pack(seqno), said)
        case Advanced(point):
            return _ADVANCED_KIND, (_POINT.pack(*point),)
        case Confirmed(point):
            return _CONFIRMED_KIND, (_POINT.pack(*point),)
        case RolledBack(to):
            return _ROLLED_BACK_KIND, (_SEQNO.pack(to),)
        case Tentative(entry, rows):
            return _TENTATIVE_KIND, (_ENTRY.pack(*entry), *_row_parts(rows))
        case StreamEnd(reason, refusal, text):
            place, words = _encode_refusal(refusal)
            return _STREAM_END_KIND, (_WORD.pack(_REASONS.index(reason), place), words, _text(text))
        case Rows():
            return _ROWS_KIND, _row_parts(message.rows)


def _row_parts(rows: Sequence[Row]) -> list[bytes]:
    pack = _ROW.pack
    table: list[bytes] = []
    blobs: list[bytes] = []
    for seqno, key, op, value, expires_at_ms, headers, logged_ms, before, trimmed in rows:
        flags, before_bytes = trimmed * _TRIMMED, 0
        blobs += (key, value)
        if headers:
            blobs.append(headers)
        if before is not None:
            flags, before_bytes = flags | _BEFORE, len(before)
            blobs.append(before)
        table.append(pack(
            seqno, op, flags, len(key), len(value), len(headers), before_bytes, expires_at_ms, logged_ms))
    return [_ROWS.pack(len(table)), *table, *blobs]


def _text(text: str) -> bytes:
    data = text.encode(errors="backslashreplace")[:TEXT_BYTES_MAX]
    return _BYTES.pack(len(data)) + data


def _encode_refusal(refusal: Refusal | None) -> tuple[int, bytes]:
    match refusal:
        case None:
            return _NOTHING, b""
        case NotMyShard(version):
            return _NOT_MY_SHARD, _SEQNO.pack(version)
        case PositionRefused(field, text):
            return _POSITION, _text(field) + _text(text)
        case Behind(applied):
            return _BEHIND, _SEQNO.pack(applied)
        case HistoryLost(common):
            return _LOST, _SEQNO.pack(common)
        case Purged(purged):
            return _PURGED, _SEQNO.pack(purged)
        case HistoryTrimmed(first):
            return _HISTORY, _SEQNO.pack(first)


def decode_answers(frame: bytes) -> list[Answer]:
    """Return what a node said; raises RemoteViolation where it is malformed."""
    return [
        Said(stream, Rows(_decode_rows(body, 0))) if kind == _ROWS_KIND else _decode_answer(kind, stream, body)
        for kind, stream, body in _bodies(frame)
    ]


def _decode_answer(kind: int, stream: int, body: bytes) -> Answer:
    cursor = Cursor(body)
    message: Answer
    if kind == _TENTATIVE_KIND:
        entry = EntryId(*cursor.unpack(_ENTRY))
        return Said(stream, Tentative(entry, _decode_rows(body, cursor.at)))
    if kind == _INDEX_KIND:
        (seqno,) = cursor.unpack(_SEQNO)
        return Index(stream, seqno, FailoverLog.decode(cursor.take(cursor.end - cursor.at)))
    if kind == _COOKIE_KIND:
        message = Cookie(_read_text(cursor, COOKIE_CHARS_MAX))
    elif kind == _REJECTED_KIND:
        message = BarrierRejected(_read_text(cursor), _read_text(cursor), _read_text(cursor))
    elif kind == _NO_INDEX_KIND:
        message = NoIndex(stream, _read_text(cursor))
    elif kind == _NOOP_KIND:
        message = Noop()
    else:
        message = Said(stream, _decode_said(kind, cursor))
    _check_end(cursor)
    return message


def _decode_said(kind: int, cursor: Cursor) -> Message:
    if kind == _MARKER_KIND:
        start, flags, purged, first_end, count = cursor.unpack(_MARKER)
        end = _point(cursor)
        return Marker(
            start, end, bool(flags & _DISK), _number(purged), _number(first_end), count, bool(flags & _DUPLICATES))
    if kind == _END_KIND:
        (seqno,) = cursor.unpack(_SEQNO)
        return End(seqno, Summary(*cursor.unpack(_SUMMARY)) if cursor.at < cursor.end else None)
    if kind == _ADVANCED_KIND:
        return Advanced(_point(cursor))
    if kind == _CONFIRMED_KIND:
        return Confirmed(_point(cursor))
    if kind == _ROLLED_BACK_KIND:
        return RolledBack(*cursor.unpack(_SEQNO))
    if kind != _STREAM_END_KIND:
        raise RemoteViolation(f"message of kind {kind} from a node is not known to this build")
    reason, place = cursor.unpack(_WORD)
    if reason >= len(_REASONS):
        raise RemoteViolation(f"reason {reason} is not known to this build")
    return StreamEnd(_REASONS[reason], _decode_refusal(place, cursor), _read_text(cursor))


def _decode_refusal(place: int, cursor: Cursor) -> Refusal | None:
    if place == _NOTHING:
        return None
    if place == _POSITION:
        return PositionRefused(_read_text(cursor), _read_text(cursor))
    (number,) = cursor.unpack(_SEQNO)
    if place == _NOT_MY_SHARD:
        return NotMyShard(number)
    if place == _BEHIND:
        return Behind(number)
    if place == _LOST:
        return HistoryLost(number)
    if place == _PURGED:
        return Purged(number)
    if place == _HISTORY:
        return HistoryTrimmed(number)
    raise RemoteViolation(f"refusal {place} is not known to this build")


def _read_text(cursor: Cursor, bytes_max: int = TEXT_BYTES_MAX) -> str:
    (size,) = cursor.unpack(_BYTES)
    if size > bytes_max:
        raise RemoteViolation(f"a text has {size} bytes, the limit is {bytes_max}")
    return cursor.take(size).decode(errors="replace")   # it may be cut inside a letter


def _decode_rows(body: bytes, at: int) -> tuple[Row, ...]:
    if at + _ROWS.size > len(body):
        raise RemoteViolation("rows without their number")
    (count,) = _ROWS.unpack_from(body, at)
    at += _ROWS.size
    blob = at + count * _ROW.size
    if blob > len(body):
        raise RemoteViolation(f"message announces {count} rows and has no room for them")
    rows: list[Row] = []
    ops, new, cls = _OPS, _new, Row
    try:
        for (
            seqno, op, flags, key_bytes, value_bytes, header_bytes, before_bytes, expires, logged,
        ) in _ROW.iter_unpack(memoryview(body)[at:blob]):
            key_end = blob + key_bytes
            value_end = key_end + value_bytes
            key, value = body[blob:key_end], body[key_end:value_end]
            blob = value_end
            headers, before = b"", None
            if header_bytes or flags:
                headers = body[blob:blob + header_bytes]
                blob += header_bytes
                if flags & _BEFORE:
                    before = body[blob:blob + before_bytes]
                    blob += before_bytes
            rows.append(new(cls, (
                seqno, key, ops[op], value, expires, headers, logged, before, flags & _TRIMMED != 0)))
    except KeyError as error:
        raise RemoteViolation(f"operation {error} of a row is not known to this build") from error
    # A slice beyond the end is short and raises nothing: the sum of all lengths says whether there was one.
    if blob != len(body):
        raise RemoteViolation(f"rows take {blob} bytes of a message of {len(body)}")
    return tuple(rows)


_OPS = {int(op): op for op in Op}

assert set(_REASONS) == set(EndReason), "every reason needs a number"
