"""Tidemark/CommitPosition, Subscriptions and DeleteSubscription: where named readers stand.

How many wait for an answer in this node is bounded; a caller that went away counts until its answer came.
Stays out: what may be committed and when it counts; the core answers that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import CommitPosition, DeleteSubscription, SubscriptionsRequest
from tidemark_wire.subscriptions import committed_to_proto, deleted_to_proto, subscriptions_to_proto
from tidemark_wire.v1 import node_pb2

from .appends import as_routed
from .driver import Driver
from .metrics import Metrics
from .routing import Routing, Target

WAITING_MAX = 4096
RETRY_AFTER_MS = 100


class Subscriptions:
    """All callers who commit, list or delete."""

    def __init__(self, driver: Driver, routing: Routing, metrics: Metrics) -> None:
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self.waiting = 0

    async def commit(self, request: Any, context: Any) -> node_pb2.CommitPositionResponse:
        """Handler of one commit; it is answered once the position is confirmed."""
        target = await self._find(request, context)
        answer = await self._ask(
            target, context,
            lambda number: CommitPosition(
                target.shard, number, request.subscription, request.offset, request.lease_ms, request.seek
            ),
        )
        self._metrics.position_commits.inc()
        return committed_to_proto(answer)

    async def list(self, request: Any, context: Any) -> node_pb2.SubscriptionsResponse:
        """Handler of one look."""
        target = await self._find(request, context)
        answer = await self._ask(target, context, lambda number: SubscriptionsRequest(target.shard, number))
        return subscriptions_to_proto(answer)

    async def delete(self, request: Any, context: Any) -> node_pb2.DeleteSubscriptionResponse:
        """Handler of one deletion."""
        target = await self._find(request, context)
        answer = await self._ask(
            target, context, lambda number: DeleteSubscription(target.shard, number, request.subscription)
        )
        return deleted_to_proto(answer)

    async def _find(self, request: Any, context: Any) -> Target:
        target = self._routing.find(request.group, request.shard)
        if isinstance(target, Refused):
            await self._routing.refuse(context, target, None)
        return target

    async def _ask(self, target: Target, context: Any, event: Callable[[int], Any]) -> Any:
        """Return the core's answer; a refusal ends the call."""
        if self.waiting >= WAITING_MAX:
            busy = Refused(
                Reason.OVERLOADED, f"{self.waiting} callers wait for their position in this node",
                retry_after_ms=RETRY_AFTER_MS,
            )
            await self._routing.refuse(context, busy, None)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(value: Any) -> None:
            self.waiting -= 1
            if not done.done():  # the caller may have gone away
                done.set_result(value)

        self.waiting += 1
        self._driver.ask(event, answered)
        answer = await done
        if isinstance(answer, Refused):
            await self._routing.refuse(context, as_routed(answer), target)
        return answer
