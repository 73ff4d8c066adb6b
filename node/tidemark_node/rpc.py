"""The gRPC services of a node: registers the methods that its parts contribute, and the health service.

Stays out: the methods themselves; each part's table (`methods`) has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2
from tidemark_wire.channel import check_caller
from tidemark_wire.wire_version import WireVersionMismatch

from .access import Access, Handler
from .budgets import Budgets
from .methods import Serving, Shape, table_of

_MAKERS = {  # on the wire one request is a stream of one; gRPC would receive it before a handler could refuse it
    Shape.UNARY: grpc.stream_unary_rpc_method_handler,
    Shape.SERVER_STREAM: grpc.stream_stream_rpc_method_handler,
    Shape.BIDI: grpc.stream_stream_rpc_method_handler,
}


class Health:
    """The gRPC health service; NOT_SERVING while draining or reloading."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self.services = {""}
        self.serving = False

    async def say(self, serving: bool) -> None:
        """Set the state of every service, for callers that ask or watch."""
        self.serving = serving
        statuses = health_pb2.HealthCheckResponse
        for service in self.services:
            await self.servicer.set(service, statuses.SERVING if serving else statuses.NOT_SERVING)


def register(
    server: grpc.aio.Server, access: Access, budgets: Budgets, health_of_node: Health, parts: Iterable[Serving]
) -> None:
    """Register every method that the parts contribute, each behind its access rule and its bounds.

    Raises InvalidMethod and registers nothing where two parts contribute a method, or a method has no access rule.
    """
    services: dict[str, dict[str, Any]] = defaultdict(dict)
    for method, part in table_of(parts).values():
        handler: Handler = partial(method.handler, part)
        if method.checks_version:
            handler = _of_our_version(handler)
        services[method.service][method.short_name] = _MAKERS[method.shape](
            access.guarded(method, budgets.limited(method, access.authorised(method, handler))),
            None,
            _serialised if method.response else None,
        )
    for service, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    health_of_node.services |= services.keys()
    servicer = health_of_node.servicer
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(health.SERVICE_NAME, {
        "Check": _MAKERS[Shape.UNARY](_of_health(budgets, servicer.Check), None, _serialised),
        "Watch": _MAKERS[Shape.SERVER_STREAM](_of_health(budgets, servicer.Watch), None, _serialised),
    }),))


def _of_health(budgets: Budgets, handler: Handler) -> Handler:
    """Return a handler of the health service that receives its request as streams do: anyone may call it (T12b)."""

    async def call(_: Any, context: Any) -> Any:
        raw = await budgets.read(context)
        try:
            request = health_pb2.HealthCheckRequest.FromString(b"" if raw is grpc.aio.EOF else raw)
        except DecodeError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the request is no HealthCheckRequest: {error}")
        return await handler(request, context)

    return budgets.bounded(call)


def _serialised(answer: Any) -> bytes:
    """Return an answer as bytes; a part that sends one answer to many callers has serialised it."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _of_our_version(handler: Handler) -> Handler:
    """Refuse a client that names another wire version before a frame of it is read."""

    async def call(request: Any, context: Any) -> Any:
        try:
            check_caller(context.invocation_metadata())
        except WireVersionMismatch as mismatch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
        return await handler(request, context)

    return call
