"""Tidemark/ExplainRead: who would send what to a reader, and why, computed from the headers of one member.

Stays out: the rule (core's `delivery`) and what is being sent right now (the debug dump of `delivery`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any, ClassVar

from tidemark_core.base.entry import Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.messages import Start
from tidemark_core.delivery.stretch import Hole, Piece, Rule, holes_of
from tidemark_wire.delivery import check_start, mode_of
from tidemark_wire.identity import Role
from tidemark_wire.v1 import node_pb2

from .driver import RELOADING, Driver
from .methods import Cost, Method, Shape
from .pacing import paced
from .routing import Routing, Target
from .store import Store
from .store_errors import EntryDamaged, StoreFailed
from .stretch import pieces

COUNT_DEFAULT = 100
COUNT_MAX = 10_000


class Explain:
    """Answers people; changes nothing and serves no reader."""

    def __init__(self, driver: Driver, routing: Routing) -> None:
        self._driver = driver
        self._routing = routing

    async def read(self, request: Any, context: Any) -> bytes:
        """Handler of one question; the answer is made and serialised in a thread."""
        target = self._routing.find(request.group, request.shard, request.group_id)
        if isinstance(target, Refused):
            await self._routing.refuse(context, target, None)
        start = _start_of(request, target)
        if isinstance(start, Refused):
            await self._routing.refuse(context, start, None)
        driver = self._driver
        readable = driver.core.log.readable(target.shard) if driver.open else None
        if readable is None:
            nobody = Refused(Reason.NOT_MEMBER, f"{driver.core.me.node} is no member of this shard")
            await self._routing.refuse(context, nobody if driver.open else RELOADING, target)
        first, released = readable
        position = max(start.first, first)
        block_at = partial(driver.core.log.block_at, target.shard)
        order = block_at(position).order
        holes = holes_of(driver.core.log.holes(target.shard, position, released) or (), block_at)
        count = request.count or COUNT_DEFAULT
        rule = Rule(start, driver.core.me.node)

        def explain(store: Store) -> bytes:
            answer = node_pb2.ExplainReadResponse(
                ensemble=start.ensemble, first=first, released=released, through=position - 1
            )
            for piece in paced(_intact(store, target.shard, position, released, order, holes, count)):
                answer.items.append(_explained(rule, piece, target.info.payload_copies))
                answer.through = piece.last
            return answer.SerializeToString()

        try:
            return await driver.deliver(explain)
        except StoreFailed:
            await self._routing.refuse(context, RELOADING, target)

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Tidemark.ExplainRead", Shape.UNARY, read, node_pb2.ExplainReadRequest, node_pb2.ExplainReadResponse,
            roles=(Role.READER,), cost=Cost.SEARCH,
        ),
    )


def _start_of(request: Any, target: Target) -> Start | Refused:
    """Return the START of a reader with these facts, or what is wrong with them."""
    if request.count > COUNT_MAX:
        return Refused(Reason.INVALID_SPEC, f"count is {request.count}, must be at most {COUNT_MAX}")
    try:
        mode = mode_of(request.mode)
    except RemoteViolation as violation:
        return Refused(Reason.INVALID_SPEC, str(violation))
    ensemble = tuple(request.ensemble) or tuple(target.info.ensemble)
    start = Start(
        0, getattr(request, "from"), -1, mode, tuple(request.known_down), ensemble, tuple(request.priorities), 0,
        min(target.info.payload_copies, len(ensemble)),
    )
    wrong = check_start(start)
    return start if wrong is None else Refused(Reason.INVALID_SPEC, wrong)


def _intact(
    store: Store, shard: ShardId, first: int, last: int, order: int, holes: list[Hole], count: int
) -> Iterator[Piece]:
    """Yield what lies there, up to the first header that cannot be read.  Runs in a reader thread."""
    with contextlib.suppress(EntryDamaged):
        yield from islice(pieces(store, shard, first, last, order, holes), count)


def _explained(rule: Rule, piece: Piece, copies: int) -> node_pb2.ExplainedItem:
    order, sender, senders = rule.explain(piece.order)
    header = piece.header
    everybody = header is None or header.kind is not Kind.DATA
    return node_pb2.ExplainedItem(
        first=piece.first, last=piece.last, kind="HOLE" if header is None else header.kind.name,
        bytes=piece.size, order=order, sender=sender, senders=senders,
        keepers=rule.first(piece.order, 0 if everybody else copies),
    )
