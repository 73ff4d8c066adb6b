"""A coordinator's driver whose moves are answered when the test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemark_core.base.ids import Address
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.records import CancelChange, ChangeProgress


class FakeDriver:
    def __init__(self) -> None:
        self.moves: list[tuple[Any, asyncio.Future[Any], Callable[[ChangeProgress], None]]] = []
        self.canceled = 0

    async def change(self, address: Address, make: Any, progress: Any = None) -> Any:
        request = make(len(self.moves))
        if isinstance(request, CancelChange):
            self.canceled += 1
            for asked, answer, _tell in self.moves:
                if asked.shard == address.shard and not answer.done():
                    answer.set_result(Refused(Reason.WRONG_STATE, "canceled"))
            return None
        answer = asyncio.get_running_loop().create_future()
        self.moves.append((request, answer, progress))
        return await answer
