"""Positions: what a consumer stores, and its printable token over all shards of a group (rule U55).

A token is `tmc`, the format, a dot, and base64url.  It is opaque to applications: it can be stored, compared for
equality and given back.  The checksum finds accidents; a token gives no rights, and the decision judges what it says.
Stays out: whether a member can serve a position (`decision`), who stores it and when.
"""

from __future__ import annotations

import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from google_crc32c import value as crc32c

from ..base.ids import LINEAGE_BYTES, NO_LINEAGE, ShardId, group_of, index_of, shard_id
from .history import START, Point

FORMAT = 1
SHARDS_MAX = 4096
SEQNO_MAX = (1 << 63) - 1
EPOCH_MAX = (1 << 63) - 1
DIGEST_BYTES = 16
NO_FILTER = bytes(DIGEST_BYTES)
"""The digest of a stream that shows whole documents under all keys."""

_PREFIX = "tmc"
_HEAD = struct.Struct(">BIH16sHH")   # format, group, history, digest of the filter, lineages, shards
_SHARD = struct.Struct(">IHQQ")      # index, lineage, epoch, seqno
_CHECK = struct.Struct(">I")
TOKEN_CHARS_MAX = 8 + (_HEAD.size + SHARDS_MAX * (_SHARD.size + LINEAGE_BYTES) + _CHECK.size + 2) // 3 * 4


class History(IntEnum):
    """Which versions of a document a stream shows."""

    LATEST = 0   # the last version of each key in a snapshot
    ALL = 1      # every applied version, while the log reaches back


class Scope(NamedTuple):
    """The streams that a position is good for."""

    group: int
    filter: bytes = NO_FILTER
    history: History = History.LATEST


class Position(NamedTuple):
    """Where a consumer stands in one shard: everything up to `point` was applied, nothing behind it (U55)."""

    scope: Scope
    shard: ShardId
    point: Point


class Partial(NamedTuple):
    """A snapshot that one process received in part, up to `last`; never stored (U62).

    `end` is where the snapshot was to end.  `purged` is the purge seqno of its disk marker, None for a live one.
    `first_end` is the end of the first snapshot from the beginning, None when the snapshot did not start there (U63).
    """

    start: int
    last: int
    end: Point
    purged: int | None = None
    first_end: int | None = None


@dataclass(frozen=True, slots=True)
class PositionRefused:
    """A position or token that the stream cannot take; `field` names the fact, `message` says found and expected."""

    field: str
    message: str


class Token(NamedTuple):
    """The positions of all shards of a group that a consumer follows."""

    scope: Scope
    points: Mapping[ShardId, Point]

    def position(self, shard: ShardId) -> Position:
        """Return the position in one shard; a shard that the token does not name is at the beginning."""
        return Position(self.scope, shard, self.points.get(shard, START))


def encode(token: Token) -> str:
    """Return the printable form; equal tokens give equal texts (U55)."""
    scope, points = token
    lineages = sorted({point.lineage for point in points.values()})
    places = {lineage: at for at, lineage in enumerate(lineages)}
    if len(points) > SHARDS_MAX or any(group_of(shard) != scope.group for shard in points):
        raise ValueError(f"a token has at most {SHARDS_MAX} shards, all of its group {scope.group}")
    parts = [_HEAD.pack(FORMAT, scope.group, scope.history, scope.filter, len(lineages), len(points)), *lineages]
    parts += (
        _SHARD.pack(index_of(shard), places[point.lineage], point.epoch, point.seqno)
        for shard, point in sorted(points.items())
    )
    body = b"".join(parts)
    return f"{_PREFIX}{FORMAT}.{_text(body + _CHECK.pack(crc32c(body)))}"


def decode(text: str) -> Token | PositionRefused:
    """Read a token; a refusal names the field that is wrong.  Any text may be given (U55)."""
    if len(text) > TOKEN_CHARS_MAX:
        return PositionRefused("token", f"token has {len(text)} characters, the most is {TOKEN_CHARS_MAX}")
    prefix, dot, printed = text.partition(".")
    if not dot or not prefix.startswith(_PREFIX):
        return PositionRefused("token", f"token does not begin with {_PREFIX}{FORMAT}.")
    if prefix != f"{_PREFIX}{FORMAT}":
        return PositionRefused("format", f"token has the format {prefix[:20]!r}, this build reads {_PREFIX}{FORMAT}")
    data = _bytes(printed)
    if data is None or len(data) < _HEAD.size + _CHECK.size:
        return PositionRefused("token", "token is cut short or is no base64url")
    body, (check,) = data[: -_CHECK.size], _CHECK.unpack(data[-_CHECK.size:])
    if crc32c(body) != check:
        return PositionRefused("checksum", "token fails its checksum: a character was lost or changed")
    return _decoded(body)


def _decoded(body: bytes) -> Token | PositionRefused:
    form, group, history, digest, lineages, shards = _HEAD.unpack_from(body)
    if form != FORMAT:
        return PositionRefused("format", f"token has the format {form}, this build reads {FORMAT}")
    if history not in (History.LATEST, History.ALL):
        return PositionRefused("history", f"token has the history mode {history}, this build does not know it")
    if shards > SHARDS_MAX or len(body) != _HEAD.size + lineages * LINEAGE_BYTES + shards * _SHARD.size:
        return PositionRefused("shards", f"token names {shards} shards and {lineages} lineages in {len(body)} bytes")
    at = _HEAD.size + lineages * LINEAGE_BYTES
    names = [body[begin:begin + LINEAGE_BYTES] for begin in range(_HEAD.size, at, LINEAGE_BYTES)]
    points: dict[ShardId, Point] = {}
    before = -1
    for index, place, epoch, seqno in _SHARD.iter_unpack(body[at:]):
        if index <= before:
            return PositionRefused("shards", f"token names shard {index} behind shard {before}")
        if place >= lineages:
            return PositionRefused("lineage", f"token names lineage {place} of {lineages} for shard {index}")
        before, point = index, Point(names[place], epoch, seqno)
        if (wrong := wrong_point(point)) is not None:
            return PositionRefused(wrong.field, f"shard {index}: {wrong.message}")
        points[shard_id(group, index)] = point
    return Token(Scope(group, digest, History(history)), points)


def wrong_point(point: Point) -> PositionRefused | None:
    """Return what is wrong with a point as it stands, None when nothing is."""
    lineage, epoch, seqno = point
    if len(lineage) != LINEAGE_BYTES:
        return PositionRefused("lineage", f"lineage has {len(lineage)} bytes, must have {LINEAGE_BYTES}")
    if not 0 <= seqno <= SEQNO_MAX:
        return PositionRefused("seqno", f"seqno is {seqno}, must be 0 to {SEQNO_MAX}")
    if not 0 <= epoch <= EPOCH_MAX:
        return PositionRefused("epoch", f"epoch is {epoch}, must be 0 to {EPOCH_MAX}")
    if (lineage == NO_LINEAGE) != (epoch == 0) or (epoch == 0 and seqno > 0):
        return PositionRefused("lineage", f"seqno {seqno} in epoch {epoch} needs a lineage, and a lineage an epoch")
    return None


def wrong_partial(partial: Partial, point: Point) -> PositionRefused | None:
    """Return what is wrong with a partial snapshot behind `point`, None when nothing is."""
    if (wrong := wrong_point(partial.end)) is not None:
        return wrong
    if not partial.start == point.seqno <= partial.last <= partial.end.seqno:
        return PositionRefused(
            "partial",
            f"snapshot [{partial.start}, {partial.end.seqno}] with rows up to {partial.last} does not follow seqno "
            f"{point.seqno}",
        )
    if partial.first_end is not None and (partial.start or not 0 <= partial.first_end <= partial.end.seqno):
        return PositionRefused("partial", f"first snapshot ends at {partial.first_end}, this starts at {partial.start}")
    if partial.purged is not None and not 0 <= partial.purged <= partial.end.seqno:
        return PositionRefused("partial", f"purge seqno is {partial.purged}, the end {partial.end.seqno}")
    return None


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes(text: str) -> bytes | None:
    """Return the bytes of canonical base64url, None for any other text."""
    try:
        data = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
    except (Base64Error, UnicodeEncodeError, ValueError):
        return None
    return data if _text(data) == text else None
