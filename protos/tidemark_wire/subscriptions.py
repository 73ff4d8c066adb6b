"""Positions of subscriptions and the list of them, to protobuf and back.

Stays out: what a subscription is and what it keeps.
"""

from __future__ import annotations

from typing import Any

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.replication.messages import PositionCommitted, SubscriptionDeleted
from tidemark_core.subscriptions.fold import NAMES_MAX
from tidemark_core.subscriptions.view import SubscriptionsView, SubscriptionView

from .v1 import node_pb2

_FIELDS = ("name", "offset", "lease_ms", "committed_ms", "expires_in_ms", "lag", "bytes_behind")


def committed_to_proto(answer: PositionCommitted) -> node_pb2.CommitPositionResponse:
    return node_pb2.CommitPositionResponse(epoch=answer.epoch, offset=answer.offset)


def committed_from_proto(proto: node_pb2.CommitPositionResponse) -> PositionCommitted:
    return PositionCommitted(proto.epoch, proto.offset)


def deleted_to_proto(answer: SubscriptionDeleted) -> node_pb2.DeleteSubscriptionResponse:
    return node_pb2.DeleteSubscriptionResponse(epoch=answer.epoch, existed=answer.existed)


def deleted_from_proto(proto: node_pb2.DeleteSubscriptionResponse) -> SubscriptionDeleted:
    return SubscriptionDeleted(proto.epoch, proto.existed)


def subscriptions_to_proto(view: SubscriptionsView) -> node_pb2.SubscriptionsResponse:
    return node_pb2.SubscriptionsResponse(
        epoch=view.epoch, first=view.first, released=view.released,
        subscriptions=[node_pb2.Subscription(**_fields(each)) for each in view.subscriptions],
    )


def subscriptions_from_proto(proto: node_pb2.SubscriptionsResponse) -> SubscriptionsView:
    """Raises RemoteViolation for more than a shard may hold."""
    if len(proto.subscriptions) > NAMES_MAX:
        raise RemoteViolation(f"{len(proto.subscriptions)} subscriptions of a shard, the limit is {NAMES_MAX}")
    return SubscriptionsView(
        proto.epoch, proto.first, proto.released,
        tuple(SubscriptionView(**_fields(each)) for each in proto.subscriptions),
    )


def _fields(source: Any) -> dict[str, Any]:
    return {name: getattr(source, name) for name in _FIELDS}
