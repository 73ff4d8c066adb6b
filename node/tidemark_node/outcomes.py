"""Tidemark/Outcome and Tidemark/Limbo: what became of an append, and who waits for whom.

How many wait for an outcome in this node is bounded; a caller that went away counts until its answer came.
Stays out: what the outcome is and how long to wait for it; the core answers those.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from tidemark_core.base.entry import NO_PRODUCER
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.clients import OutcomeRequest
from tidemark_core.replication.messages import Outcome
from tidemark_wire.identity import Role
from tidemark_wire.limbo import ENTRIES_MAX, limbo_to_proto, outcome_to_proto
from tidemark_wire.v1 import node_pb2

from .appends import as_routed
from .budgets import Budgets
from .driver import RELOADING, Driver
from .methods import Cost, Method, Shape
from .metrics import Metrics
from .routing import Routing, Target

RETRY_AFTER_MS = 100


class Outcomes:
    """All callers who ask for an outcome or look at a limbo."""

    def __init__(self, driver: Driver, routing: Routing, metrics: Metrics, budgets: Budgets) -> None:
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self._budgets = budgets
        self._waiting = budgets.outcomes
        metrics.outcomes_waiting.set_function(lambda: self._waiting.used)

    async def outcome(self, request: Any, context: Any) -> node_pb2.OutcomeResponse:
        """Handler of one question; with `wait` it takes as long as the core lets it."""
        target = await self._find(request, context)
        if (wrong := _what_is_wrong(request)) is not None:
            await self._routing.refuse(context, Refused(Reason.INVALID_SPEC, wrong), None)
        who = self._budgets.who(context)
        if not self._waiting.take(who):
            await self._routing.refuse(context, self._budgets.refusal(self._waiting, who, RETRY_AFTER_MS), None)
        answer = await self._ask(target, who, request.producer, request.sequence, request.wait)
        if isinstance(answer, Refused):
            self._metrics.outcomes.labels(str(answer.reason)).inc()
            await self._routing.refuse(context, as_routed(answer), target)
        self._metrics.outcomes.labels(str(answer.fate)).inc()
        return outcome_to_proto(answer)

    async def _ask(self, target: Target, who: str, producer: bytes, sequence: int, wait: bool) -> Outcome | Refused:
        done: asyncio.Future[Outcome | Refused] = asyncio.get_running_loop().create_future()

        def answered(value: Outcome | Refused) -> None:
            self._waiting.give_back(who)
            if not done.done():  # the caller may have gone away
                done.set_result(value)

        self._driver.ask(lambda number: OutcomeRequest(target.shard, number, producer, sequence, wait), answered)
        return await done

    async def limbo(self, request: Any, context: Any) -> node_pb2.LimboResponse:
        """Handler of one look."""
        target = await self._find(request, context)
        if request.entries_max > ENTRIES_MAX:
            wrong = Refused(
                Reason.INVALID_SPEC, f"entries_max is {request.entries_max}, must be at most {ENTRIES_MAX}"
            )
            await self._routing.refuse(context, wrong, None)
        driver = self._driver
        if driver.reloading:
            await self._routing.refuse(context, RELOADING, target)
        view = driver.core.log.limbo(target.shard, driver.now_ms(), request.entries_max)
        if view is None:
            await self._routing.refuse(context, Refused(Reason.NOT_LEADER, "the limbo is with the leader"), target)
        return limbo_to_proto(view)

    async def _find(self, request: Any, context: Any) -> Target:
        target = self._routing.find(request.group, request.shard, request.group_id)
        if isinstance(target, Refused):
            await self._routing.refuse(context, target, None)
        return target

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Tidemark.Outcome", Shape.UNARY, outcome, node_pb2.OutcomeRequest, node_pb2.OutcomeResponse,
            roles=(Role.WRITER,),
        ),
        Method(
            "Tidemark.Limbo", Shape.UNARY, limbo, node_pb2.LimboRequest, node_pb2.LimboResponse, roles=tuple(Role),
            cost=Cost.SEARCH,
        ),
    )


def _what_is_wrong(request: Any) -> str | None:
    if len(request.producer) != 16 or request.producer == NO_PRODUCER:
        return "producer must be 16 bytes and not all zero"
    if request.sequence < 0:
        return f"sequence is {request.sequence}, must be 0 or more"
    return None
