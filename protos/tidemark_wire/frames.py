"""Raw frames of the hot streams: links between nodes and operators, appends of clients, reads.

A frame is `bytes` handed to gRPC as it is (no serializer).  Encoding joins its parts once; decoding cuts each
payload out once.  Everything decoded is bounded and checked first: whatever is malformed, too large or fails
a checksum raises RemoteViolation and yields nothing that could be acted upon.
Stays out: gRPC itself, and any judgement about epochs or offsets.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_core.base.effects import Space
from tidemark_core.base.entry import HEADER_BYTES, Batch, Durability, Entry, Kind, decode_header, with_payload
from tidemark_core.base.entry import RECORDS_MAX as BATCH_RECORDS_MAX
from tidemark_core.base.errors import CorruptEntry, FormatTooNew, FormatTooOld, RemoteViolation
from tidemark_core.base.ids import LOG_PLANE, Address, EntryId, Member
from tidemark_core.base.refusals import Refused
from tidemark_core.documents.payload import OUTCOME_BYTES, RECORDS_MAX, decode_outcomes, encode_outcomes
from tidemark_core.documents.requests import Written
from tidemark_core.replication.messages import Append, AppendAck, Appended, Claimed

from .codecs import MEMBER_TEXT_BYTES_MAX, Codec, Codecs
from .convert import APPEND, APPEND_ACK, PLANE_CODECS, reason_from_text
from .wire_version import VERSION_OF_PLANES, WIRE_VERSION

FRAME_BYTES_MAX = 64 << 20
TEXT_BYTES_MAX = MEMBER_TEXT_BYTES_MAX
REFUSAL_TEXT_BYTES_MAX = 2000
HOLES_MAX = 65_536
ENTRIES_MAX = 10_240
"""Entries of one append or one chunk of a snapshot: more than a MiB of headers alone, and no leader sends more."""
SLICE_WORK = 4096
"""Messages and entries that a receiver takes in before it lets the event loop do other work."""
_SPACES = tuple(Space)
_WORST = max(Space)
NO_CLOCK = -(1 << 63)    # of an acknowledgement whose sender says no time

_LINK = struct.Struct(">BBQBBI")          # plane, kind, unit, bytes of node, bytes of incarnation, bytes of body
_LINK_4 = struct.Struct(">BQBBI")         # the same without a plane: wire version 4 has one alone
_APPEND = struct.Struct(">QQqqqqqIB")     # epoch, prev (two), through, commit, confirmed, trim, entries, what follows
_OFFSET = struct.Struct(">q")
GROUP_ID = struct.Struct(">I")
_COPIES = struct.Struct(">QB")            # copies, members of the ensemble
_MEMBER = struct.Struct(">BB")            # bytes of node, bytes of incarnation
_ACK = struct.Struct(">QqqqB")            # epoch, upto, commit, clock, space
_ACK_4 = struct.Struct(">Qqq")            # the same without clock and space, on links of wire version 4
_CALL = struct.Struct(">QIBq16sqIqqIBI")  # request, shard, bytes of group, resume after, batch, bytes of payload
_ANSWER = struct.Struct(">QB")            # request, 0 refused, 1 appended, 2 written or 3 claimed
_APPENDED = struct.Struct(">QqIB")        # epoch, base, count, durability; of written ones an outcome a record follows
_CLAIMED = struct.Struct(">QqqQqI")       # epoch, offset; of the batch: sequence, epoch, base, count
_REFUSED = struct.Struct(">qqqQBHBB")     # epoch, expected, retry, map version, bytes of the four texts
_READ = struct.Struct(">qqqII")           # first, through, released, holes, entries
_HOLE = struct.Struct(">qq")              # first, last


# What follows the numbers of an append, in this order and before its entries.
_WITH_RELEASED, _WITH_COPIES, _WITH_BARE = 1, 2, 4

WITH_GROUP_ID = 0x80
"""Set in the durability of a call, or in the mode of a START, where the group's id follows its name."""
_WITH_EXPECT = 0x40
"""Set in the durability of a call where the offset that it expects comes next (L29)."""
_LEVEL = ~(WITH_GROUP_ID | _WITH_EXPECT)

_ANSWERED_REFUSED, _ANSWERED_APPENDED, _ANSWERED_WRITTEN, _ANSWERED_CLAIMED = range(4)
_NO_BATCH = (-1, 0, 0, 0)                 # of a claim: no batch of the producer is in the log for good


@dataclass(frozen=True, slots=True)
class AppendCall:
    """One batch a client wants appended.  `request` is the client's own number, echoed in the answer.

    A batch without records is a claim of its producer (L26).
    `resume_after` is the offset of the rollback record that the producer has heard of, -1 when there was none (L22).
    `group_id` tells groups of one name apart; 0 is any of them, and all that nodes below VERSION_OF_GROUP_IDS read.
    With `expect` 0 or more the batch is appended only where no other record lies from that offset on (L29); nodes below
    VERSION_OF_EXPECT do not read it.
    """

    request: int
    group: str
    shard: int
    batch: Batch
    resume_after: int = -1
    group_id: int = 0
    expect: int = -1


@dataclass(frozen=True, slots=True)
class AppendAnswer:
    """What became of one call; the hints are empty where the answer needs none.

    A shard of documents answers `Written`, with an outcome a record (U50); a claim is answered `Claimed`.
    """

    request: int
    value: Appended | Written | Claimed | Refused
    leader_node: str = ""
    leader_address: str = ""
    map_version: int = 0


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """Coverage [first, through]: every record in it is among `entries`, control entries included, or in a hole.

    `holes` are the inclusive ranges in the coverage that were rolled back for good, in order; no data entry lies in
    one, and the record that made it lies right behind it.
    Entries are whole, so the first and last may reach beyond what was asked.  `through` below `first` means
    that nothing new is covered (a frame that only carries `released`).
    """

    first: int
    through: int
    released: int
    entries: tuple[Entry, ...]
    holes: tuple[tuple[int, int], ...] = ()


# --- reading bytes with bounds ----------------------------------------------------------------------------


class Cursor:
    """A place in a frame that cannot run past its end."""

    __slots__ = ("at", "end", "frame")

    def __init__(self, frame: bytes) -> None:
        if len(frame) > FRAME_BYTES_MAX:
            raise RemoteViolation(f"frame has {len(frame)} bytes, the limit is {FRAME_BYTES_MAX}")
        self.frame, self.at, self.end = frame, 0, len(frame)

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        at = self.at
        self._advance(layout.size)
        return layout.unpack_from(self.frame, at)

    def take(self, count: int) -> bytes:
        at = self.at
        self._advance(count)
        return self.frame[at : at + count]

    def text(self, count: int) -> str:
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise RemoteViolation("a text in the frame is not UTF-8") from error

    def entry(self, bare: int = 0) -> Entry:
        """Take one entry and verify it: whole, with both of its checksums, or if `bare` its header alone."""
        try:
            header = decode_header(self.take(HEADER_BYTES))
            return header if bare else with_payload(header, self.take(header.payload_bytes))
        except FormatTooNew:
            raise
        except (CorruptEntry, ValueError) as error:
            raise RemoteViolation(f"entry in the frame: {error}") from error

    def entries(self, count: int, bare: bytes = b"") -> tuple[Entry, ...]:
        """Take entries; bit i of `bare`, lowest first, is set where the i-th comes without its payload."""
        if count * HEADER_BYTES > self.end - self.at:
            raise RemoteViolation(f"frame announces {count} entries and has no room for them")
        if not bare:
            return tuple(self.entry() for _ in range(count))
        return tuple(self.entry(bare[number >> 3] >> (number & 7) & 1) for number in range(count))

    def _advance(self, count: int) -> None:
        if count > self.end - self.at:
            raise RemoteViolation(f"frame ends {count - (self.end - self.at)} bytes too early")
        self.at += count


def short_text(text: str, field: str) -> bytes:
    """Return the bytes of a text whose length fits one byte; raises ValueError naming the field."""
    data = text.encode()
    if len(data) > TEXT_BYTES_MAX:
        raise ValueError(f"{field} has {len(data)} bytes, the limit is {TEXT_BYTES_MAX}")
    return data


# --- links ------------------------------------------------------------------------------------------------


class NotOnThisWire(Exception):
    """A message has no form in the wire version of a link; nothing was sent."""


def message_parts(
    unit: Address, to: Member | None, message: Any, version: int = WIRE_VERSION,
    planes: Mapping[int, Codecs] = PLANE_CODECS, bodies: dict[tuple[int, int], bytes] | None = None,
) -> list[bytes]:
    """Return one message as parts; the concatenation of the parts of several messages is a frame.

    `bodies` keeps what was encoded, for the same message to another member; it lives no longer than its messages.
    Raises NotOnThisWire when a link of `version` cannot carry it.
    """
    plane, number = unit
    known = (id(message), version)
    if plane == LOG_PLANE and type(message) is Append:
        kind, body = APPEND, _append_parts(message)
    elif plane == LOG_PLANE and type(message) is AppendAck:
        kind, body = APPEND_ACK, [_ack(message, version)]
    else:
        codec = planes[plane].by_message[type(message)]
        encoded = bodies.get(known) if bodies is not None else None
        if encoded is None:
            if version < VERSION_OF_PLANES:
                message = _older(plane, message, codec, version)
            encoded = codec.encode(message)
            if bodies is not None:
                bodies[known] = encoded
        kind, body = codec.kind, [encoded]
    node = short_text(to.node, "node") if to else b""
    incarnation = short_text(to.incarnation, "incarnation") if to else b""
    sizes = (len(node), len(incarnation), sum(map(len, body)))
    if version < VERSION_OF_PLANES:
        return [_LINK_4.pack(kind, number, *sizes), node, incarnation, *body]
    return [_LINK.pack(plane, kind, number, *sizes), node, incarnation, *body]


def _older(plane: int, message: Any, codec: Codec, version: int) -> Any:
    """Return the message in the form that a link without planes carries.  Raises NotOnThisWire."""
    if plane != LOG_PLANE:
        raise NotOnThisWire(f"{type(message).__name__} of plane {plane} on a link of wire version {version}")
    try:
        return message if codec.older is None else codec.older(message)
    except FormatTooOld as error:
        raise NotOnThisWire(f"{type(message).__name__} on a link of wire version {version}: {error}") from error


def encode_message(unit: Address, to: Member | None, message: Any, version: int = WIRE_VERSION) -> bytes:
    """Return a frame of one message.  `to` is the member meant, None when the receiver is an operator."""
    return b"".join(message_parts(unit, to, message, version))


def decode_messages(
    frame: bytes, version: int = WIRE_VERSION, planes: Mapping[int, Codecs] = PLANE_CODECS,
    skipped: Callable[[str], None] = lambda why: None,
) -> Iterator[tuple[Address, Member | None, Any]]:
    """Yield the messages of a frame of a link of `version`; raises RemoteViolation where it is malformed.

    A message that only a newer release knows (its plane, kind, or a part of it) is left out, those behind it are not:
    `skipped` is called with the reason.
    """
    cursor = Cursor(frame)
    while cursor.at < cursor.end:
        if version < VERSION_OF_PLANES:
            plane, (kind, number, node_bytes, incarnation_bytes, body_bytes) = LOG_PLANE, cursor.unpack(_LINK_4)
        else:
            plane, kind, number, node_bytes, incarnation_bytes, body_bytes = cursor.unpack(_LINK)
        to = _member(cursor.text(node_bytes), cursor.text(incarnation_bytes))
        if body_bytes > cursor.end - cursor.at:
            raise RemoteViolation(f"message of kind {kind} is cut short")
        body_end = cursor.at + body_bytes
        codecs = planes.get(plane)
        try:
            if codecs is None:
                raise FormatTooNew(f"plane {plane} is not known to this build")
            if plane == LOG_PLANE and kind == APPEND:
                message: Any = _decode_append(cursor)
            elif plane == LOG_PLANE and kind == APPEND_ACK:
                message = _decode_ack(cursor, version)
            elif kind in codecs.by_kind:
                message = codecs.by_kind[kind].decode(cursor.take(body_bytes))
            else:
                raise FormatTooNew(f"message kind {kind} of plane {plane} is not known to this build")
        except FormatTooNew as newer:
            skipped(str(newer))
            cursor.at = body_end
            continue
        if cursor.at != body_end:
            raise RemoteViolation(f"message of kind {kind} does not fill its {body_bytes} bytes")
        yield Address(plane, number), to, message


def work_of(plane: int, message: Any, planes: Mapping[int, Codecs] = PLANE_CODECS) -> int:
    """Return how much work a message is for its receiver, in units of SLICE_WORK."""
    if plane == LOG_PLANE:
        return 1 + len(message.entries) if type(message) is Append else 1
    return planes[plane].by_message[type(message)].work(message)


def _member(node: str, incarnation: str) -> Member | None:
    if bool(node) != bool(incarnation):
        raise RemoteViolation("a member is named without node or incarnation")
    return Member(node, incarnation) if node else None


def _ack(message: AppendAck, version: int) -> bytes:
    if version < VERSION_OF_PLANES:
        return _ACK_4.pack(message.epoch, message.upto, message.commit)
    clock_ms = NO_CLOCK if message.clock_ms is None else message.clock_ms
    return _ACK.pack(message.epoch, message.upto, message.commit, clock_ms, message.space)


def _decode_ack(cursor: Cursor, version: int) -> AppendAck:
    if version < VERSION_OF_PLANES:
        return AppendAck(*cursor.unpack(_ACK_4))
    epoch, upto, commit, clock_ms, space = cursor.unpack(_ACK)
    # A level that a newer build knows is at least as bad as the worst that this one knows.
    return AppendAck(epoch, upto, commit, None if clock_ms == NO_CLOCK else clock_ms, _SPACES[min(space, _WORST)])


def _append_parts(message: Append) -> list[bytes]:
    bare = [number for number, entry in enumerate(message.entries) if not entry.held]
    follows = (
        _WITH_RELEASED * (message.released is not None) | _WITH_COPIES * bool(message.ensemble or message.copies)
        | _WITH_BARE * bool(bare)
    )
    parts = [
        _APPEND.pack(
            message.epoch, message.prev.epoch, message.prev.offset, message.through, message.commit,
            message.confirmed, message.trim, len(message.entries), follows,
        )
    ]
    if message.released is not None:
        parts.append(_OFFSET.pack(message.released))
    if follows & _WITH_COPIES:
        parts.append(_COPIES.pack(message.copies, len(message.ensemble)))
        for member in message.ensemble:
            node, incarnation = short_text(member.node, "node"), short_text(member.incarnation, "incarnation")
            parts += (_MEMBER.pack(len(node), len(incarnation)), node, incarnation)
    if bare:
        bits = bytearray((len(message.entries) + 7) // 8)
        for number in bare:
            bits[number >> 3] |= 1 << (number & 7)
        parts.append(bytes(bits))
    for entry in message.entries:
        parts.append(entry.header)
        parts.append(entry.payload)
    return parts


def _decode_append(cursor: Cursor) -> Append:
    epoch, prev_epoch, prev_offset, through, commit, confirmed, trim, count, follows = cursor.unpack(_APPEND)
    if follows & ~(_WITH_RELEASED | _WITH_COPIES | _WITH_BARE):
        raise FormatTooNew(f"an append says that {follows:#x} follows, which is not known to this build")
    if count > ENTRIES_MAX:
        raise RemoteViolation(f"an append announces {count} entries, the limit is {ENTRIES_MAX}")
    released = cursor.unpack(_OFFSET)[0] if follows & _WITH_RELEASED else None
    copies = 0
    ensemble: tuple[Member, ...] = ()
    if follows & _WITH_COPIES:
        copies, members = cursor.unpack(_COPIES)
        ensemble = tuple(_named(cursor) for _ in range(members))
    bare = cursor.take((count + 7) // 8) if follows & _WITH_BARE else b""
    entries = cursor.entries(count, bare)
    return Append(
        epoch, EntryId(prev_epoch, prev_offset), entries, through, commit, confirmed, trim, released, ensemble, copies
    )


def _named(cursor: Cursor) -> Member:
    node_bytes, incarnation_bytes = cursor.unpack(_MEMBER)
    member = _member(cursor.text(node_bytes), cursor.text(incarnation_bytes))
    if member is None:
        raise RemoteViolation("a member is named without node or incarnation")
    return member


# --- appends of clients -----------------------------------------------------------------------------------


def append_parts(call: AppendCall) -> list[bytes]:
    """Return one call as parts; the concatenation of the parts of several calls is a frame."""
    batch, group, durability = call.batch, short_text(call.group, "group"), int(call.batch.durability)
    parts = [group]
    if call.group_id:
        durability |= WITH_GROUP_ID
        parts.append(GROUP_ID.pack(call.group_id))
    if call.expect >= 0:
        durability |= _WITH_EXPECT
        parts.append(_OFFSET.pack(call.expect))
    head = _CALL.pack(
        call.request, call.shard, len(group), call.resume_after, batch.producer, batch.sequence, batch.count,
        batch.first_timestamp_us, batch.last_timestamp_us, batch.payload_crc, durability, len(batch.payload),
    )
    return [head, *parts, batch.payload]


def encode_appends(calls: Iterable[AppendCall]) -> bytes:
    parts: list[bytes] = []
    for call in calls:
        parts += append_parts(call)
    return b"".join(parts)


def decode_appends(frame: bytes) -> Iterator[AppendCall]:
    """Yield the calls of a client's frame.  The batch itself is judged by `entry.check_batch`, per call."""
    cursor = Cursor(frame)
    while cursor.at < cursor.end:
        (
            request, shard, group_bytes, resume_after, producer, sequence, count, first_us, last_us, crc,
            durability, payload_bytes,
        ) = cursor.unpack(_CALL)
        group = cursor.text(group_bytes)
        group_id = cursor.unpack(GROUP_ID)[0] if durability & WITH_GROUP_ID else 0
        expect = cursor.unpack(_OFFSET)[0] if durability & _WITH_EXPECT else -1
        payload = cursor.take(payload_bytes)
        level = _durability(durability & _LEVEL)
        batch = Batch(producer, sequence, count, first_us, last_us, crc, payload, level)
        yield AppendCall(request, group, shard, batch, resume_after, group_id, expect)


def encode_answers(answers: Iterable[AppendAnswer]) -> bytes:
    parts: list[bytes] = []
    for answer in answers:
        value = answer.value
        if isinstance(value, Appended):
            parts.append(_ANSWER.pack(answer.request, _ANSWERED_APPENDED))
            parts.append(_APPENDED.pack(value.epoch, value.base, value.count, value.durability))
            continue
        if isinstance(value, Written):
            if len(value.outcomes) != value.count:
                raise ValueError(f"an answer has {len(value.outcomes)} outcomes of {value.count} records")
            parts.append(_ANSWER.pack(answer.request, _ANSWERED_WRITTEN))
            parts.append(_APPENDED.pack(value.epoch, value.base, value.count, value.durability))
            parts.append(encode_outcomes(value.outcomes))
            continue
        if isinstance(value, Claimed):
            parts.append(_ANSWER.pack(answer.request, _ANSWERED_CLAIMED))
            parts.append(_CLAIMED.pack(
                value.epoch, value.offset, value.sequence, value.batch_epoch, value.base, value.count))
            continue
        texts = (
            value.reason.encode(), value.message.encode()[:REFUSAL_TEXT_BYTES_MAX],
            short_text(answer.leader_node, "leader_node"),
            short_text(answer.leader_address, "leader_address"),
        )
        parts.append(_ANSWER.pack(answer.request, _ANSWERED_REFUSED))
        parts.append(
            _REFUSED.pack(
                value.epoch, value.expected, value.retry_after_ms, answer.map_version, *map(len, texts)
            )
        )
        parts += texts
    return b"".join(parts)


def decode_answers(frame: bytes) -> Iterator[AppendAnswer]:
    """Yield the answers of a node's frame; raises RemoteViolation where it is malformed."""
    cursor = Cursor(frame)
    while cursor.at < cursor.end:
        request, answered = cursor.unpack(_ANSWER)
        if answered == _ANSWERED_APPENDED:
            epoch, base, count, durability = cursor.unpack(_APPENDED)
            yield AppendAnswer(request, Appended(epoch, base, count, _durability(durability)))
        elif answered == _ANSWERED_WRITTEN:
            yield AppendAnswer(request, _written(cursor, request))
        elif answered == _ANSWERED_CLAIMED:
            yield AppendAnswer(request, _claimed(cursor, request))
        elif answered == _ANSWERED_REFUSED:
            epoch, expected, retry_after_ms, map_version, *text_bytes = cursor.unpack(_REFUSED)
            reason = reason_from_text(cursor.text(text_bytes[0]))
            message = cursor.take(text_bytes[1]).decode(errors="replace")  # it may be cut inside a letter
            refused = Refused(reason, message, epoch, expected, retry_after_ms)
            node, address = cursor.text(text_bytes[2]), cursor.text(text_bytes[3])
            yield AppendAnswer(request, refused, node, address, map_version)
        else:
            raise RemoteViolation(f"answer {request} is neither appended, written, claimed nor refused")


def _written(cursor: Cursor, request: int) -> Written:
    epoch, base, count, durability = cursor.unpack(_APPENDED)
    if count > RECORDS_MAX:
        raise RemoteViolation(f"answer {request} announces {count} outcomes, the limit is {RECORDS_MAX}")
    try:
        outcomes = decode_outcomes(cursor.take(count * OUTCOME_BYTES))
    except KeyError as error:
        raise RemoteViolation(f"answer {request}: verdict {error} is not known to this build") from error
    return Written(epoch, base, count, _durability(durability), outcomes)


def _claimed(cursor: Cursor, request: int) -> Claimed:
    epoch, offset, *batch = cursor.unpack(_CLAIMED)
    sequence, _, base, count = batch
    if offset < 0:
        raise RemoteViolation(f"answer {request} has a claim at offset {offset}")
    if tuple(batch) != _NO_BATCH:
        if not 1 <= count <= BATCH_RECORDS_MAX:
            raise RemoteViolation(f"answer {request} has a batch of {count} records, the limit is {BATCH_RECORDS_MAX}")
        if sequence < 0 or base < 0 or base + count > offset:
            raise RemoteViolation(
                f"answer {request} has batch {sequence} at {base} to {base + count - 1}, the claim is at {offset}")
    return Claimed(epoch, offset, *batch)


def _durability(number: int) -> Durability:
    try:
        return Durability(number)
    except ValueError as error:
        raise RemoteViolation(f"durability {number} is not known to this build") from error


# --- reads ------------------------------------------------------------------------------------------------


def encode_read(frame: ReadFrame) -> bytes:
    if len(frame.holes) > HOLES_MAX:
        raise ValueError(f"a read frame has {len(frame.holes)} holes, the limit is {HOLES_MAX}")
    parts = [_READ.pack(frame.first, frame.through, frame.released, len(frame.holes), len(frame.entries))]
    parts += [_HOLE.pack(*hole) for hole in frame.holes]
    for entry in frame.entries:
        parts.append(entry.header)
        parts.append(entry.payload)
    return b"".join(parts)


def decode_read(frame: bytes) -> ReadFrame:
    """Return what a node sent to a reader, every entry verified."""
    cursor = Cursor(frame)
    first, through, released, hole_count, count = cursor.unpack(_READ)
    if hole_count > HOLES_MAX:
        raise RemoteViolation(f"read frame announces {hole_count} holes, the limit is {HOLES_MAX}")
    holes = tuple(cursor.unpack(_HOLE) for _ in range(hole_count))
    entries = cursor.entries(count)
    if cursor.at != cursor.end:
        raise RemoteViolation(f"read frame has {cursor.end - cursor.at} bytes too many")
    _check_holes(first, through, holes, entries)
    return ReadFrame(first, through, released, entries, holes)


def _check_holes(
    first: int, through: int, holes: tuple[tuple[Any, ...], ...], entries: tuple[Entry, ...]
) -> None:
    lowest = first
    for hole_first, hole_last in holes:
        if not lowest <= hole_first <= hole_last <= through:
            raise RemoteViolation(
                f"hole {hole_first}..{hole_last} is not in order, or not inside the frame's {first}..{through}"
            )
        lowest = hole_last + 1
    if not holes:
        return
    for entry in entries:
        at = bisect_left(holes, entry.base, key=lambda hole: hole[1])  # the first hole that ends at or behind it
        if entry.kind is Kind.DATA and at < len(holes) and holes[at][0] <= entry.last:
            raise RemoteViolation(f"entry at {entry.base} lies in the hole {holes[at][0]}..{holes[at][1]}")
