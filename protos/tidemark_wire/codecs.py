"""Codecs: how a message of a plane becomes bytes and comes back, and the fields that rows of a table are made of.

Stays out: the tables (`convert` for the log, `optimistic` for keyspaces), frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from google.protobuf.message import DecodeError, Message
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Member

from .v1 import common_pb2

MEMBER_TEXT_BYTES_MAX = 255
"""Bytes of a node's name, and of an incarnation: more fit no frame and no stamp."""


def _small(message: Any) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class Codec:
    """How one message class becomes a body and comes back.

    `older` turns a message into the one to send on a link of the wire version before; None: it is the same there.
    `work` says how much work a message is for its receiver, in units of `frames.SLICE_WORK`.
    """

    kind: int
    message: type
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    older: Callable[[Any], Any] | None = None
    work: Callable[[Any], int] = _small


class Codecs:
    """The messages of one plane, by their kind on the wire and by their class."""

    def __init__(self, codecs: Iterable[Codec]) -> None:
        table = tuple(codecs)
        self.by_kind = {codec.kind: codec for codec in table}
        self.by_message = {codec.message: codec for codec in table}
        if not len(self.by_kind) == len(self.by_message) == len(table):
            raise ValueError("codecs: a kind or a message is in the table twice")


def codec_of(
    protos: ModuleType, kind: int, message: type, /, *, older: Callable[[Any], Any] | None = None,
    work: Callable[[Any], int] = _small, **fields: Field,
) -> Codec:
    """Build the pair of a message whose protobuf, one of `protos`, has its own name and field names."""
    proto_class: type[Message] = getattr(protos, message.__name__)

    def encode(value: Any) -> bytes:
        proto = proto_class()
        for name, (put, _) in fields.items():
            put(proto, name, getattr(value, name))
        return proto.SerializeToString()

    def decode(body: bytes) -> Any:
        proto = parse(proto_class, body)
        return message(**{name: get(proto, name) for name, (_, get) in fields.items()})

    return Codec(kind, message, encode, decode, older, work)


def parse(proto_class: Any, body: bytes) -> Any:
    """Parse a protobuf; raises RemoteViolation when the bytes are not one."""
    try:
        return proto_class.FromString(body)
    except DecodeError as error:
        raise RemoteViolation(f"{proto_class.__name__} cannot be read: {error}") from error


def member_to_proto(member: Member) -> common_pb2.Member:
    return common_pb2.Member(node=member.node, incarnation=member.incarnation)


def member_from_proto(proto: common_pb2.Member) -> Member:
    """Raises RemoteViolation when the member is not named whole, or its name is too long."""
    if not proto.node or not proto.incarnation:
        raise RemoteViolation("a member is named without node or incarnation")
    for what, text in (("node", proto.node), ("incarnation", proto.incarnation)):
        if len(text.encode()) > MEMBER_TEXT_BYTES_MAX:
            raise RemoteViolation(f"the {what} of a member has more than {MEMBER_TEXT_BYTES_MAX} bytes")
    return Member(proto.node, proto.incarnation)


# --- fields: how a core field of each shape is written and read -------------------------------------------

Field = tuple[Callable[[Any, str, Any], None], Callable[[Any, str], Any]]


def set_plain(proto: Any, name: str, value: Any) -> None:
    setattr(proto, name, value)


def set_some(proto: Any, name: str, value: Any) -> None:
    """Set a field that may be absent: None leaves it out."""
    if value is not None:
        setattr(proto, name, value)


def set_message(convert: Callable[[Any], Message]) -> Callable[[Any, str, Any], None]:
    def put(proto: Any, name: str, value: Any) -> None:
        if value is not None:
            getattr(proto, name).CopyFrom(convert(value))

    return put


def get_message(convert: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    def get(proto: Any, name: str) -> Any:
        if not proto.HasField(name):
            raise RemoteViolation(f"{type(proto).__name__} lacks {name}")
        return convert(getattr(proto, name))

    return get


def get_optional(convert: Callable[[Any], Any]) -> Callable[[Any, str], Any]:
    return lambda proto, name: convert(getattr(proto, name)) if proto.HasField(name) else None


def set_list(convert: Callable[[Any], Any]) -> Callable[[Any, str, Any], None]:
    return lambda proto, name, value: getattr(proto, name).extend(convert(item) for item in value)


def get_list(convert: Callable[[Any], Any], most: int | None = None) -> Callable[[Any, str], Any]:
    """Return the reader of a list with at most `most` items; it raises RemoteViolation where there are more."""
    def get(proto: Any, name: str) -> Any:
        items = getattr(proto, name)
        if most is not None and len(items) > most:
            raise RemoteViolation(f"{type(proto).__name__}.{name} has {len(items)} items, the limit is {most}")
        return tuple([convert(item) for item in items])

    return get


PLAIN: Field = (set_plain, getattr)
MEMBER: Field = (set_message(member_to_proto), get_message(member_from_proto))
MEMBER_OR_NONE: Field = (set_message(member_to_proto), get_optional(member_from_proto))
NUMBERS: Field = (
    lambda proto, name, value: getattr(proto, name).extend(value), lambda proto, name: tuple(getattr(proto, name))
)
MEMBERS: Field = (set_list(member_to_proto), get_list(member_from_proto))
NUMBER_OR_NONE: Field = (set_some, lambda proto, name: getattr(proto, name) if proto.HasField(name) else None)
