"""Asking: how a call of a client gets an answer of the core, within a bound on those that wait.

A caller that went away counts until its answer came.  Stays out: which event is asked, what the answer means.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemark_core.base.refusals import Refused
from tidemark_wire.budgets import Budget

from .appends import as_routed
from .budgets import Budgets
from .driver import Driver
from .routing import Routing, Target

RETRY_AFTER_MS = 100


class Asking:
    """All callers who wait within one budget."""

    def __init__(self, driver: Driver, routing: Routing, budgets: Budgets, waiting: Budget) -> None:
        self._driver = driver
        self._routing = routing
        self._budgets = budgets
        self._waiting = waiting

    async def find(self, request: Any, context: Any) -> Target:
        """Return the shard that a request names; a refusal ends the call."""
        target = self._routing.find(request.group, request.shard, request.group_id)
        if isinstance(target, Refused):
            await self._routing.refuse(context, target, None)
        return target

    async def ask(self, target: Target, context: Any, event: Callable[[int], Any]) -> Any:
        """Return the core's answer; a refusal ends the call."""
        who = self._budgets.who(context)
        if not self._waiting.take(who):
            await self._routing.refuse(context, self._budgets.refusal(self._waiting, who, RETRY_AFTER_MS), None)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answered(value: Any) -> None:
            self._waiting.give_back(who)
            if not done.done():  # the caller may have gone away
                done.set_result(value)

        self._driver.ask(event, answered)
        answer = await done
        if isinstance(answer, Refused):
            await self._routing.refuse(context, as_routed(answer), target)
        return answer
