"""Tidemark/CommitPosition, Subscriptions and DeleteSubscription: where named readers stand.

How far a name is behind is counted in records, from headers, as far back as a look may go.
Stays out: what may be committed and when it counts; the core answers that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
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

from .asking import Asking
from .budgets import Budgets
from .driver import Driver
from .methods import Cost, Method, Shape
from .metrics import Metrics
from .pacing import paced
from .routing import Routing
from .settings import Settings
from .store import Store
from .store_errors import EntryDamaged, StoreFailed
from .subscription_names import SubscriptionNames

COUNTED_OFFSETS = 4096
"""So far back from the last offset that may be read, a lag is counted in records; beyond, in offsets."""


class Subscriptions:
    """All callers who commit, list or delete."""

    def __init__(
        self, driver: Driver, routing: Routing, metrics: Metrics, budgets: Budgets, settings: Settings
    ) -> None:
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self._budgets = budgets
        self._asking = Asking(driver, routing, budgets, budgets.positions)
        self._names = SubscriptionNames(settings.subscription_names_max)
        self._lease_ms_max = settings.subscription_lease_seconds_max * 1000

    async def commit(self, request: Any, context: Any) -> node_pb2.CommitPositionResponse:
        """Handler of one commit; it is answered once the position is confirmed."""
        target = await self._asking.find(request, context)
        shard, name = target.shard, request.subscription
        if (refused := self._bounded(shard, name, request.lease_ms, self._budgets.who(context))) is not None:
            await self._routing.refuse(context, refused, target)
        with self._names.under_way(shard, name):
            answer = await self._asking.ask(
                target, context,
                lambda number: CommitPosition(shard, number, name, request.offset, request.lease_ms, request.seek),
            )
        self._metrics.position_commits.inc()
        return committed_to_proto(answer)

    async def list(self, request: Any, context: Any) -> node_pb2.SubscriptionsResponse:
        """Handler of one look."""
        target = await self._asking.find(request, context)
        answer = await self._asking.ask(target, context, lambda number: SubscriptionsRequest(target.shard, number))
        return subscriptions_to_proto(await self._counted(target.shard, answer))

    async def delete(self, request: Any, context: Any) -> node_pb2.DeleteSubscriptionResponse:
        """Handler of one deletion."""
        target = await self._asking.find(request, context)
        answer = await self._asking.ask(
            target, context, lambda number: DeleteSubscription(target.shard, number, request.subscription)
        )
        self._names.deleted(target.shard, request.subscription)
        return deleted_to_proto(answer)

    def _bounded(self, shard: ShardId, name: str, lease_ms: int, who: str) -> Refused | None:
        """Say why a caller may not have this subscription for so long, None when it may."""
        if lease_ms > self._lease_ms_max:
            return Refused(
                Reason.INVALID_SPEC,
                f"lease_ms is {lease_ms}, this node takes at most {self._lease_ms_max}: use a shorter lease and commit "
                "again before its end, or raise --subscription-lease-seconds-max",
            )

        def held() -> set[str]:
            driver = self._driver
            view = driver.core.log.subscriptions(shard, driver.now_ms()) if driver.open else None
            return set() if view is None else {each.name for each in view.subscriptions}

        return self._names.refusal(shard, name, who, held)

    async def _counted(self, shard: ShardId, view: SubscriptionsView) -> SubscriptionsView:
        """Return the view with lags in records; as it is where the headers cannot be read."""
        first = max(view.first, view.released + 1 - COUNTED_OFFSETS)
        holes = self._driver.core.log.holes(shard, first, view.released)
        if not view.subscriptions or holes is None:
            return view
        try:
            return await self._driver.deliver(
                lambda store: in_records(view, first, records_in(store, shard, first, view.released, holes))
            )
        except (EntryDamaged, StoreFailed):
            return view

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Tidemark.CommitPosition", Shape.UNARY, commit, node_pb2.CommitPositionRequest,
            node_pb2.CommitPositionResponse, roles=(Role.READER,),
        ),
        Method(
            "Tidemark.Subscriptions", Shape.UNARY, list, node_pb2.SubscriptionsRequest,
            node_pb2.SubscriptionsResponse, roles=(Role.READER,), cost=Cost.SEARCH,
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
        for header in paced(store.walk(shard, first, last))
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
