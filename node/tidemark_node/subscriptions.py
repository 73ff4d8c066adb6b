"""Tidemark/CommitPosition, Subscriptions and DeleteSubscription: where named readers stand.

How many wait for an answer in this node is bounded; a caller that went away counts until its answer came.  How far a
name is behind is counted in records, from headers, as far back as a look may go.
Stays out: what may be committed and when it counts; the core answers that.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, ClassVar

from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import CommitPosition, DeleteSubscription, SubscriptionsRequest
from tidemark_core.subscriptions.view import SubscriptionsView
from tidemark_wire.identity import Role
from tidemark_wire.subscriptions import committed_to_proto, deleted_to_proto, subscriptions_to_proto
from tidemark_wire.v1 import node_pb2

from .appends import as_routed
from .driver import Driver
from .methods import Method, Shape
from .metrics import Metrics
from .routing import Routing, Target
from .store import Store
from .store_errors import EntryDamaged, StoreFailed

WAITING_MAX = 4096
RETRY_AFTER_MS = 100
COUNTED_OFFSETS = 4096
"""So far back from the last offset that may be read, a lag is counted in records; beyond, in offsets."""


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
        return subscriptions_to_proto(await self._counted(target.shard, answer))

    async def delete(self, request: Any, context: Any) -> node_pb2.DeleteSubscriptionResponse:
        """Handler of one deletion."""
        target = await self._find(request, context)
        answer = await self._ask(
            target, context, lambda number: DeleteSubscription(target.shard, number, request.subscription)
        )
        return deleted_to_proto(answer)

    async def _counted(self, shard: ShardId, view: SubscriptionsView) -> SubscriptionsView:
        """Return the view with lags in records; as it is where the headers cannot be read."""
        first = max(view.first, view.released + 1 - COUNTED_OFFSETS)
        holes = self._driver.core.log.holes(shard, first, view.released)
        if not view.subscriptions or holes is None:
            return view
        try:
            records = await self._driver.deliver(lambda store: records_in(store, shard, first, view.released, holes))
        except (EntryDamaged, StoreFailed):
            return view
        return in_records(view, first, records)

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

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Tidemark.CommitPosition", Shape.UNARY, commit, node_pb2.CommitPositionRequest,
            node_pb2.CommitPositionResponse, roles=(Role.READER,),
        ),
        Method(
            "Tidemark.Subscriptions", Shape.UNARY, list, node_pb2.SubscriptionsRequest,
            node_pb2.SubscriptionsResponse, roles=(Role.READER,),
        ),
        Method(
            "Tidemark.DeleteSubscription", Shape.UNARY, delete, node_pb2.DeleteSubscriptionRequest,
            node_pb2.DeleteSubscriptionResponse, roles=(Role.READER,),
        ),
    )


def records_in(
    store: Store, shard: ShardId, first: int, last: int, holes: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return where records lie in [first, last], as ranges in order.  Runs in a reader thread."""
    def is_hidden(offset: int) -> bool:
        at = bisect_right(holes, offset, key=lambda hole: hole[0]) - 1
        return at >= 0 and offset <= holes[at][1]

    return [
        (max(header.base, first), header.last)
        for header in store.walk(shard, first, last)
        if header.kind is Kind.DATA and not is_hidden(header.last)
    ]


def in_records(view: SubscriptionsView, first: int, records: Sequence[tuple[int, int]]) -> SubscriptionsView:
    """Return the view with lags that count records from `first` on, and offsets in front of it."""
    behind = [*accumulate((last - base + 1 for base, last in reversed(records)), initial=0)][::-1]

    def lag(offset: int) -> int:
        at = bisect_left(records, offset, key=lambda found: found[1])
        into = max(0, offset - records[at][0]) if at < len(records) else 0
        return max(0, first - offset) + behind[at] - into

    return replace(
        view, subscriptions=tuple(replace(each, lag=lag(each.offset)) for each in view.subscriptions)
    )
