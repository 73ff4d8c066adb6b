"""Calls to the documents of one shard: to its leader, or to any member that has applied enough (U53, U72).

A call goes to another node until one answers or its time is over.
Stays out: what is asked (documents, scans).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import grpc
import grpc.aio
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.refusals import RETRIED, Reason, Refused
from tidemark_wire import channel as wire
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import documents_pb2, documents_pb2_grpc

from .errors import Behind, DocumentsNotServed, Unavailable, error_of
from .questions import Questions
from .retrying import SILENCE_S, Backoff, closed_below
from .routing import Channels, Routing
from .stubs import Stubs

T = TypeVar("T")

LINEARIZABLE, LEADER, FOLLOWER = "linearizable", "leader", "follower"
LEVELS = (LINEARIZABLE, LEADER, FOLLOWER)

ELSEWHERE = RETRIED | {Reason.QUORUM_TIMEOUT}
"""Refusals that another member, or the same one later, may not give; a read or a pin may be asked for twice."""
AVOIDED_S = 10.0   # a member that failed is asked last for so long


@dataclass(frozen=True, slots=True)
class PinnedAt:
    """A pin of one shard and its cut."""

    name: str
    seqno: int


class View(NamedTuple):
    """The state of one shard that a read asks for."""

    group_id: int
    level: str = LINEARIZABLE
    min_seqno: int = 0
    pin: PinnedAt | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of a request that say so."""
        if self.pin is not None:
            pin = documents_pb2.PinnedCut(name=self.pin.name, at=self.pin.seqno)
            return {"group_id": self.group_id, "pin": pin}
        return {"group_id": self.group_id, "level": self.level, "min_seqno": self.min_seqno}

    @property
    def anywhere(self) -> bool:
        """Say whether any member may serve it."""
        return self.pin is not None or self.level == FOLLOWER


class DocumentCalls:
    """Calls the nodes of one group."""

    def __init__(
        self, group_name: str, routing: Routing, channels: Channels, questions: Questions, timeout_s: float
    ) -> None:
        self.group_name = group_name
        self.timeout_s = timeout_s
        self._routing = routing
        self._questions = questions
        self._turn = random.randrange(1 << 16)  # noqa: S311
        self._avoided: dict[str, float] = {}    # address: until when
        self._stubs = Stubs(channels, documents_pb2_grpc.DocumentsStub)

    def stub(self, address: str) -> documents_pb2_grpc.DocumentsStub:
        """Return the calls of a node."""
        return self._stubs.at(address)

    def deadline(self) -> float:
        return asyncio.get_running_loop().time() + self.timeout_s

    async def leader(self, shard: int, method: str, request: Any) -> Any:
        """Return the leader's answer to a unary call; raises RequestRefused, Unavailable, Behind."""
        return await self.read(shard, View(request.group_id), self._unary(method, request))

    async def unary(self, shard: int, view: View, method: str, request: Any) -> Any:
        """Return the answer of a node that may show `view`; raises RequestRefused, Unavailable, Behind."""
        return await self.read(shard, view, self._unary(method, request))

    def _unary(self, method: str, request: Any) -> Callable[[str, float], Awaitable[Any]]:
        async def send(address: str, left_s: float) -> Any:
            return await getattr(self.stub(address), method)(request, timeout=left_s, metadata=wire.hello_metadata())

        return send

    async def read(
        self, shard: int, view: View, send: Callable[[str, float], Awaitable[T]], deadline: float | None = None
    ) -> T:
        """Return what `send` returns for a node that may show `view`; raises RequestRefused, Unavailable, Behind."""
        deadline = self.deadline() if deadline is None else deadline
        if view.anywhere:
            return await self._anywhere(shard, view.group_id, send, deadline)
        behind: Refused | None = None

        async def sent(address: str, left_s: float) -> T:
            nonlocal behind
            try:
                return await send(address, left_s)
            except grpc.aio.AioRpcError as error:
                hinted = refusal_from_rpc_error(error)
                if hinted is None and error.code() is grpc.StatusCode.UNIMPLEMENTED:
                    raise _not_served(address) from error
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:   # the last try may have too little time
                    behind = hinted.refused if hinted is not None and hinted.refused.reason is Reason.BEHIND else None
                raise

        try:
            return await self._questions.ask(
                self.group_name, view.group_id, shard, sent, deadline, self.timeout_s, ELSEWHERE)
        except Unavailable:
            if behind is not None:
                raise Behind(behind) from None
            raise

    async def _anywhere(
        self, shard: int, group_id: int, send: Callable[[str, float], Awaitable[T]], deadline: float
    ) -> T:
        now, backoff, trouble = asyncio.get_running_loop().time, Backoff(), "no member is known"
        behind: Refused | None = None
        while (left_s := deadline - now()) > 0:
            self._routing.check_life(self.group_name, group_id)
            addresses, not_served = self._members(shard), 0
            for address in addresses:
                left_s = deadline - now()
                if left_s <= 0:
                    break
                try:
                    with closed_below():
                        return await send(address, min(left_s, SILENCE_S))
                except RemoteViolation as error:
                    trouble = f"{address} sent a malformed answer: {error}"
                except TimeoutError:
                    trouble = f"{address} is silent"
                except grpc.aio.AioRpcError as error:
                    trouble = f"{address}: {error.code().name} {error.details()}"
                    hinted = refusal_from_rpc_error(error)
                    if hinted is not None:
                        if hinted.refused.reason not in ELSEWHERE:
                            raise error_of(hinted.refused) from error
                        if hinted.refused.reason is Reason.BEHIND:
                            behind = max(behind or hinted.refused, hinted.refused, key=lambda each: each.expected)
                            continue   # it is well, and will have more
                    not_served += hinted is None and error.code() is grpc.StatusCode.UNIMPLEMENTED
                self._avoided[address] = now() + AVOIDED_S
            if addresses and not_served == len(addresses):
                raise _not_served(trouble)
            self._routing.refresh_soon()
            await self._routing.wait_changed(min(backoff.next(), max(0.0, deadline - now())))
        if behind is not None:
            raise Behind(behind)
        raise Unavailable(
            f"no member of shard {shard} of {self.group_name!r} answered within {self.timeout_s:g} s ({trouble})"
        )

    def _members(self, shard: int) -> list[str]:
        """Return the addresses of the members, another one first each time; those that failed lately come last."""
        nodes = [self._routing.node(name) for name in self._routing.ensemble(self.group_name, shard)]
        addresses = [node.address for node in nodes if node is not None and node.address]
        if not addresses:
            leader = self._routing.leader(self.group_name, shard)
            return [leader.address] if leader is not None else []
        self._turn += 1
        start = self._turn % len(addresses)
        addresses = addresses[start:] + addresses[:start]
        now = asyncio.get_running_loop().time()
        return sorted(addresses, key=lambda address: self._avoided.get(address, 0.0) > now)


def _not_served(where: str) -> DocumentsNotServed:
    return DocumentsNotServed(f"the node at {where} serves no documents")
