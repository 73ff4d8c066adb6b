"""Raw frames of Tidemark/Deliver: what a reader and one member of a shard say to each other, one message a frame.

Reader to node: START (which replaces what ran on the stream before), WINDOW, STOP.  Node to reader: STARTED and
SHIPMENT.  Messages are those of the core's `delivery`; what only the wire needs stands beside them.
A shipment carries entries one by one; those that lie one right behind the other come out as one item.
Everything decoded is bounded and checked first: whatever is malformed raises RemoteViolation and yields nothing that
could be acted upon.  An entry whose header is intact and whose payload is not comes out as DAMAGED: its offsets are
certain, and the reader must fail over (S9).  One that others keep travels as its offsets, and comes out as NOT_HELD.
Stays out: gRPC itself, who sends what, and any judgement about offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidemark_core.base.entry import HEADER_BYTES, Entry, decode_header, with_payload
from tidemark_core.base.errors import CorruptEntry, RemoteViolation
from tidemark_core.delivery.messages import (
    DAMAGED,
    HOLE_BYTES,
    NOT_HELD,
    Item,
    Shipment,
    Start,
    Started,
    Status,
    Window,
    hole_item,
    not_held_item,
    together,
)
from tidemark_core.delivery.order import SLOTS_MAX, Mode

from .frames import FRAME_BYTES_MAX, GROUP_ID, WITH_GROUP_ID, Cursor, short_text

REQUEST_BYTES_MAX = 16 << 10
PRIORITY_MAX = 5
MESSAGE_BYTES_MAX = 1000

_KIND = struct.Struct(">B")
_START = struct.Struct(">BIQqqBHQIBBB")  # bytes of group, shard, generation, first, until, mode, down, window, frame,
#                                          members, priorities, copies
_WINDOW = struct.Struct(">QQ")           # generation, bytes in all
_STOP = struct.Struct(">Q")              # generation
_STARTED = struct.Struct(">QBqqH")       # generation, status, released, first, bytes of message
_SHIPMENT = struct.Struct(">QqqqI")      # generation, first, through, released, entries and holes
_HOLE = struct.Struct(">qq")             # first, last

_START_KIND, _WINDOW_KIND, _STOP_KIND = 1, 2, 3
_STARTED_KIND, _SHIPMENT_KIND = 1, 2
_ENTRY, _HOLE_ITEM, _NOT_HELD_ITEM = b"\x01", b"\x02", b"\x03"

# What travels for a word is its place here: add at the end only.
_MODES = (Mode.SINGLE_COPY, Mode.LOCAL, Mode.ALL_SEND_ALL)
_STATUSES = (Status.OK, Status.NOT_MEMBER, Status.ACCESS, Status.UNAVAILABLE)


class CorruptShipment(RemoteViolation):
    """Nothing of a shipment of this generation can be used; its sender is to be passed over (S9)."""

    def __init__(self, message: str, generation: int) -> None:
        super().__init__(message)
        self.generation = generation


@dataclass(frozen=True, slots=True)
class StartCall:
    """START as it travels: the shard it is about, and how large a shipment should be (0: the node's choice).

    `group_id` is that of `frames.AppendCall`.
    """

    group: str
    shard: int
    start: Start
    frame_bytes: int = 0
    group_id: int = 0


@dataclass(frozen=True, slots=True)
class Stop:
    """Reader to node: send no more of this generation; the stream stays open for another START."""

    generation: int


# --- reader to node ---------------------------------------------------------------------------------------


def encode_request(message: StartCall | Window | Stop) -> bytes:
    """Return one frame for the node.  Raises ValueError naming the field that cannot be said."""
    match message:
        case StartCall():
            return _encode_start(message)
        case Window():
            return _KIND.pack(_WINDOW_KIND) + _WINDOW.pack(message.generation, message.bytes_total)
        case Stop():
            return _KIND.pack(_STOP_KIND) + _STOP.pack(message.generation)


def _encode_start(call: StartCall) -> bytes:
    start, group = call.start, short_text(call.group, "group")
    members = [short_text(node, "ensemble") for node in start.ensemble]
    wrong = check_start(start)
    if wrong is not None:
        raise ValueError(wrong)
    down = sum(1 << start.ensemble.index(node) for node in set(start.known_down))
    parts = [
        _KIND.pack(_START_KIND),
        _START.pack(
            len(group), call.shard, start.generation, start.first, start.until,
            _MODES.index(start.mode) | (WITH_GROUP_ID if call.group_id else 0), down,
            start.window_bytes, call.frame_bytes, len(members), len(start.priorities), start.copies,
        ),
        group,
        GROUP_ID.pack(call.group_id) if call.group_id else b"",
        bytes(start.priorities),
    ]
    for member in members:
        parts += (_KIND.pack(len(member)), member)
    return b"".join(parts)


def check_start(start: Start) -> str | None:
    """Return why no node could act upon a START, naming the field, or None."""
    members = len(start.ensemble)
    if not 1 <= members <= SLOTS_MAX:
        return f"ensemble has {members} members, must be 1 to {SLOTS_MAX}"
    if not all(start.ensemble):
        return "ensemble names a member without a name"
    if len(set(start.ensemble)) < members:
        return "ensemble names a member twice"
    if not set(start.known_down) <= set(start.ensemble):
        return "known_down names a node outside the ensemble"
    if start.first < 0:
        return f"first is {start.first}, must be 0 or more"
    if start.until < -1:
        return f"until is {start.until}, must be -1 or more"
    if start.window_bytes < 0:
        return f"window_bytes is {start.window_bytes}, must be 0 or more"
    if not 0 <= start.copies <= members:
        return f"copies is {start.copies}, must be 0 to {members}"
    if len(start.priorities) not in (0, members) or (start.mode is Mode.LOCAL and not start.priorities):
        return f"priorities has {len(start.priorities)} numbers for {members} members"
    if not all(0 <= number <= PRIORITY_MAX for number in start.priorities):
        return f"priorities has a number outside 0 to {PRIORITY_MAX}"
    return None


def decode_request(frame: bytes) -> StartCall | Window | Stop:
    """Return what a reader said; raises RemoteViolation where it is malformed."""
    if len(frame) > REQUEST_BYTES_MAX:
        raise RemoteViolation(f"frame of a reader has {len(frame)} bytes, the limit is {REQUEST_BYTES_MAX}")
    cursor = Cursor(frame)
    (kind,) = cursor.unpack(_KIND)
    message: StartCall | Window | Stop
    if kind == _START_KIND:
        message = _decode_start(cursor)
    elif kind == _WINDOW_KIND:
        message = Window(*cursor.unpack(_WINDOW))
    elif kind == _STOP_KIND:
        message = Stop(*cursor.unpack(_STOP))
    else:
        raise RemoteViolation(f"frame of kind {kind} from a reader is not known to this build")
    _check_end(cursor)
    return message


def _decode_start(cursor: Cursor) -> StartCall:
    (
        group_bytes, shard, generation, first, until, mode, down, window_bytes, frame_bytes, members, priorities,
        copies,
    ) = cursor.unpack(_START)
    group = cursor.text(group_bytes)
    group_id = cursor.unpack(GROUP_ID)[0] if mode & WITH_GROUP_ID else 0
    near = tuple(cursor.take(priorities))
    ensemble = tuple(cursor.text(*cursor.unpack(_KIND)) for _ in range(members))
    if down >> members:
        raise RemoteViolation(f"known_down names a slot beyond the {members} of the ensemble")
    known_down = tuple(sorted(node for slot, node in enumerate(ensemble) if down >> slot & 1))
    start = Start(
        generation, first, until, _word(_MODES, mode & ~WITH_GROUP_ID, "mode"), known_down, ensemble, near,
        window_bytes, copies,
    )
    wrong = check_start(start)
    if wrong is not None:
        raise RemoteViolation(f"START: {wrong}")
    return StartCall(group, shard, start, frame_bytes, group_id)


# --- node to reader ---------------------------------------------------------------------------------------


def encode_answer(message: Started | Shipment) -> bytes:
    """Return one frame for the reader."""
    if isinstance(message, Started):
        text = message.message.encode()[:MESSAGE_BYTES_MAX]
        status = _STATUSES.index(message.status)
        head = _STARTED.pack(message.generation, status, message.released, message.first, len(text))
        return b"".join((_KIND.pack(_STARTED_KIND), head, text))
    parts = [
        _KIND.pack(_SHIPMENT_KIND),
        _SHIPMENT.pack(
            message.generation, message.first, message.through, message.released,
            sum(item.entry_count for item in message.items),
        ),
    ]
    for item in message.items:
        if item.body is None:
            parts += (_HOLE_ITEM, _HOLE.pack(item.first, item.last))
        elif item.body is NOT_HELD:
            parts += (_NOT_HELD_ITEM, _HOLE.pack(item.first, item.last))
        else:
            assert isinstance(item.body, tuple), "what a node ships has been checked"
            for entry in item.body:
                parts += (_ENTRY, entry.header, entry.payload)
    return b"".join(parts)


def decode_answer(frame: bytes) -> Started | Shipment:
    """Return what a node said; a payload that fails its checksum is replaced by DAMAGED.

    Raises CorruptShipment when anything else is wrong with a shipment, RemoteViolation when the frame is malformed.
    """
    cursor = Cursor(frame)
    (kind,) = cursor.unpack(_KIND)
    message: Started | Shipment
    if kind == _STARTED_KIND:
        message = _decode_started(cursor)
        _check_end(cursor)
    elif kind == _SHIPMENT_KIND:
        message = _decode_shipment(cursor)
    else:
        raise RemoteViolation(f"frame of kind {kind} from a node is not known to this build")
    return message


def _decode_started(cursor: Cursor) -> Started:
    generation, status, released, first, text_bytes = cursor.unpack(_STARTED)
    text = cursor.take(text_bytes).decode(errors="replace")  # it may be cut inside a letter
    return Started(generation, _word(_STATUSES, status, "status"), released, first, text)


def _decode_shipment(cursor: Cursor) -> Shipment:
    generation, first, through, released, count = cursor.unpack(_SHIPMENT)
    try:
        items = _decode_items(cursor, first, through, count)
        _check_end(cursor)
    except (RemoteViolation, CorruptEntry, ValueError) as error:
        raise CorruptShipment(f"shipment of generation {generation}: {error}", generation) from error
    return Shipment(generation, first, through, released, items)


def _decode_items(cursor: Cursor, first: int, through: int, count: int) -> tuple[Item, ...]:
    if count * (len(_HOLE_ITEM) + HOLE_BYTES) > cursor.end - cursor.at:
        raise RemoteViolation(f"it announces {count} entries and holes and has no room for them")
    found: list[Entry | Item] = []
    lowest = -1  # the first one may begin before the shipment: whoever asked did so in its middle
    for _ in range(count):
        one = _decode_item(cursor)
        begin, end = (one.base if isinstance(one, Entry) else one.first), one.last
        if not (lowest <= begin <= end <= through and end >= first):
            raise RemoteViolation(
                f"item {begin}..{end} is not in order, or not inside the coverage {first}..{through}"
            )
        found.append(one)
        lowest = end + 1
    return tuple(together(found))


def _decode_item(cursor: Cursor) -> Entry | Item:
    """Take one entry, or whatever stands in its place; raises CorruptEntry when not even its offsets are certain."""
    kind = cursor.take(1)
    if kind == _HOLE_ITEM:
        return hole_item(*cursor.unpack(_HOLE))
    if kind == _NOT_HELD_ITEM:
        return not_held_item(*cursor.unpack(_HOLE))
    if kind != _ENTRY:
        raise RemoteViolation(f"item of kind {kind[0]} is not known to this build")
    header = decode_header(cursor.take(HEADER_BYTES))
    payload = cursor.take(header.payload_bytes)
    try:
        return with_payload(header, payload)
    except CorruptEntry:
        return Item(header.base, header.last, header.size, DAMAGED)


# --- words ------------------------------------------------------------------------------------------------


def _word(words: Sequence[Any], number: int, field: str) -> Any:
    if number >= len(words):
        raise RemoteViolation(f"{field} {number} is not known to this build")
    return words[number]


def _check_end(cursor: Cursor) -> None:
    if cursor.at != cursor.end:
        raise RemoteViolation(f"frame has {cursor.end - cursor.at} bytes too many")


def mode_of(text: str) -> Mode:
    """Return the mode of that name, SINGLE_COPY for an empty one; raises RemoteViolation for another word."""
    try:
        return Mode(text or Mode.SINGLE_COPY)
    except ValueError as error:
        raise RemoteViolation(f"mode {text!r} is not one of {', '.join(Mode)}") from error


assert set(_MODES) == set(Mode) and set(_STATUSES) == set(Status), "every word needs a number"
assert FRAME_BYTES_MAX > REQUEST_BYTES_MAX > SLOTS_MAX * 256 + 512, "a START with the longest names fits"
