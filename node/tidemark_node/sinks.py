"""Tidemark/JoinSink, MarkSink, Sinks and DeleteSink: how far jobs that write in batches have come.

Stays out: who may join and when a batch may be marked; the core answers that.
"""

from __future__ import annotations

from typing import Any, ClassVar

from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import DeleteSink, JoinSink, MarkSink, SinksRequest
from tidemark_wire.identity import Role
from tidemark_wire.sinks import (
    joined_to_proto,
    marked_to_proto,
    marks_from_proto,
    sink_deleted_to_proto,
    sinks_to_proto,
)
from tidemark_wire.v1 import node_pb2
from tidemark_wire.wire_version import VERSION_OF_SINKS

from .asking import Asking
from .budgets import Budgets
from .driver import Driver
from .methods import Cost, Method, Shape
from .routing import Routing, Target
from .settings import Settings


class SinkCalls:
    """All callers who join, mark, list or delete."""

    def __init__(self, driver: Driver, routing: Routing, budgets: Budgets, settings: Settings) -> None:
        self._routing = routing
        self._lease_ms_max = settings.subscription_lease_seconds_max * 1000
        self._asking = Asking(driver, routing, budgets, budgets.positions)

    async def join(self, request: Any, context: Any) -> node_pb2.JoinSinkResponse:
        """Handler of one part that begins; it is answered once its record is confirmed."""
        target = await self._writable(request, context, request.lease_ms)
        return joined_to_proto(await self._asking.ask(target, context, lambda number: JoinSink(
            target.shard, number, request.sink, request.batch, request.part, request.lease_ms)))

    async def mark(self, request: Any, context: Any) -> node_pb2.MarkSinkResponse:
        """Handler of one batch that is complete; it is answered once its record is confirmed."""
        target = await self._writable(request, context, request.lease_ms)
        marks = marks_from_proto(request.ends)
        return marked_to_proto(await self._asking.ask(target, context, lambda number: MarkSink(
            target.shard, number, request.sink, request.batch, request.parts, marks, request.lease_ms)))

    async def list(self, request: Any, context: Any) -> node_pb2.SinksResponse:
        """Handler of one look."""
        target = await self._asking.find(request, context)
        return sinks_to_proto(await self._asking.ask(
            target, context, lambda number: SinksRequest(target.shard, number, request.sink)))

    async def delete(self, request: Any, context: Any) -> node_pb2.DeleteSinkResponse:
        """Handler of one deletion."""
        target = await self._writable(request, context)
        return sink_deleted_to_proto(await self._asking.ask(
            target, context, lambda number: DeleteSink(target.shard, number, request.sink)))

    async def _writable(self, request: Any, context: Any, lease_ms: int = 0) -> Target:
        """Return the shard that a request names; a refusal ends the call."""
        target = await self._asking.find(request, context)
        if (refused := self._wrong(target, request, lease_ms)) is not None:
            await self._routing.refuse(context, refused, None)
        return target

    def _wrong(self, target: Target, request: Any, lease_ms: int) -> Refused | None:
        if target.has_documents:
            return Refused(Reason.WRONG_KIND, f"group {request.group!r} has documents: sinks write to logs")
        if lease_ms > self._lease_ms_max:
            return Refused(
                Reason.INVALID_SPEC,
                f"lease_ms is {lease_ms}, this node takes at most {self._lease_ms_max}: use a shorter lease, or raise "
                "--subscription-lease-seconds-max")
        # Their logs would hold records that they cannot read.
        older = self._routing.older(target, VERSION_OF_SINKS)
        if older:
            return Refused(
                Reason.NEEDS_UPGRADE,
                f"nodes of a release before sinks keep shard {request.shard} of {request.group!r} too; "
                f"upgrade {', '.join(older)}")
        return None

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Tidemark.JoinSink", Shape.UNARY, join, node_pb2.JoinSinkRequest, node_pb2.JoinSinkResponse,
            roles=(Role.WRITER,),
        ),
        Method(
            "Tidemark.MarkSink", Shape.UNARY, mark, node_pb2.MarkSinkRequest, node_pb2.MarkSinkResponse,
            roles=(Role.WRITER,),
        ),
        Method(
            "Tidemark.Sinks", Shape.UNARY, list, node_pb2.SinksRequest, node_pb2.SinksResponse, roles=tuple(Role),
            cost=Cost.SEARCH,
        ),
        Method(
            "Tidemark.DeleteSink", Shape.UNARY, delete, node_pb2.DeleteSinkRequest, node_pb2.DeleteSinkResponse,
            roles=(Role.WRITER,),
        ),
    )
