"""Joins and marks of sinks, and the list of sinks, to protobuf and back.

Stays out: what they promise (the core's rules W1-W5).
"""

from __future__ import annotations

from typing import Any

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.replication.messages import SinkDeleted, SinkJoined, SinkMarked
from tidemark_core.sinks.fold import ENDS_MAX, SINKS_MAX, Ended, SinkEnd
from tidemark_core.sinks.view import SinksView, SinkView

from .v1 import node_pb2

_FIELDS = ("name", "batch", "joined", "marked", "parts", "lease_ms", "used_ms", "expires_in_ms")


def joined_to_proto(answer: SinkJoined) -> node_pb2.JoinSinkResponse:
    return node_pb2.JoinSinkResponse(epoch=answer.epoch, marked=answer.marked)


def joined_from_proto(proto: node_pb2.JoinSinkResponse) -> SinkJoined:
    return SinkJoined(proto.epoch, proto.marked)


def marks_to_proto(marks: tuple[SinkEnd, ...]) -> list[node_pb2.SinkEnd]:
    return [node_pb2.SinkEnd(**each._asdict()) for each in marks]


def marks_from_proto(protos: Any) -> tuple[SinkEnd, ...]:
    return tuple(SinkEnd(each.shard, each.last, each.rows, each.checksum) for each in protos)


def marked_to_proto(answer: SinkMarked) -> node_pb2.MarkSinkResponse:
    return node_pb2.MarkSinkResponse(epoch=answer.epoch)


def marked_from_proto(proto: node_pb2.MarkSinkResponse) -> SinkMarked:
    return SinkMarked(proto.epoch)


def sink_deleted_to_proto(answer: SinkDeleted) -> node_pb2.DeleteSinkResponse:
    return node_pb2.DeleteSinkResponse(epoch=answer.epoch, existed=answer.existed)


def sink_deleted_from_proto(proto: node_pb2.DeleteSinkResponse) -> SinkDeleted:
    return SinkDeleted(proto.epoch, proto.existed)


def sinks_to_proto(view: SinksView) -> node_pb2.SinksResponse:
    return node_pb2.SinksResponse(epoch=view.epoch, sinks=[
        node_pb2.Sink(**_fields(each), ends=[node_pb2.SinkEnd(**end._asdict()) for end in each.ends])
        for each in view.sinks])


def sinks_from_proto(proto: node_pb2.SinksResponse) -> SinksView:
    """Raises RemoteViolation for more than a shard may hold."""
    if len(proto.sinks) > SINKS_MAX or sum(len(each.ends) for each in proto.sinks) > ENDS_MAX:
        raise RemoteViolation(f"{len(proto.sinks)} sinks of a shard; {SINKS_MAX} with {ENDS_MAX} ends are the limit")
    return SinksView(proto.epoch, tuple(
        SinkView(**_fields(each), ends=tuple(
            Ended(end.batch, end.shard, end.last, end.rows, end.checksum) for end in each.ends))
        for each in proto.sinks))


def _fields(source: Any) -> dict[str, Any]:
    return {name: getattr(source, name) for name in _FIELDS}
