"""Explanations of reads: who would send what to a reader, and why, as a member computes it from its headers.

Stays out: the rule itself (core's `delivery`), and what is being sent right now.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import grpc.aio
from tidemark_core.delivery.location import Location
from tidemark_core.delivery.order import Mode
from tidemark_wire import channel as wire
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.v1 import node_pb2, node_pb2_grpc

from .errors import InvalidArgument, TidemarkError, Unavailable, error_of
from .near import shared_scopes
from .read_settings import LEADER, ReadSettings
from .routing import Channels, Routing
from .settings import at_least

COUNT_MAX = 10_000


class ExplainedItem(NamedTuple):
    """An entry, or a hole, and who sends it.

    `order` is the reading order, left-most first, in local reading the nearest first.  `sender` is the first of it
    that is not down, empty when all send everything or nobody is up; `senders` are all who send it: one that is
    listed as down goes on as if it were not, which is how its return is seen.  `keepers` keep its payload for good,
    empty when the member asked does not say.
    """

    first: int
    last: int
    kind: str
    bytes: int
    order: tuple[str, ...]
    sender: str
    senders: tuple[str, ...]
    keepers: tuple[str, ...] = ()


class Explanation(NamedTuple):
    """What a reader with these facts would be sent of [first asked, through].

    `node` has computed it; it holds the log from `first` on and may send up to `released`.  `shared_scopes` says, in
    local reading, how near each member is.
    """

    node: str
    mode: Mode
    ensemble: tuple[str, ...]
    shared_scopes: tuple[int, ...]
    known_down: tuple[str, ...]
    first: int
    released: int
    through: int
    items: tuple[ExplainedItem, ...]


class Explanations:
    """Asks members."""

    def __init__(self, routing: Routing, channels: Channels) -> None:
        self._routing = routing
        self._channels = channels

    async def read(
        self, group_name: str, shard: int, *, first: int, count: int, mode: str, location: str | Location | None,
        down: Sequence[str], timeout_s: float,
    ) -> Explanation:
        """Return the explanation of the first member that answers, its leader first; raises as appends do."""
        settings = ReadSettings.checked(mode=mode, location=location)
        if settings.mode == LEADER:
            raise InvalidArgument("mode", "'leader' needs no explanation: the leader sends everything")
        if type(first) is not int or first < 0:
            raise InvalidArgument("first", f"is {first!r}, must be an offset of 0 or more")
        if type(count) is not int or not 1 <= count <= COUNT_MAX:
            raise InvalidArgument("count", f"is {count!r}, must be a number from 1 to {COUNT_MAX}")
        at_least("timeout_s", timeout_s, 0.001)
        group = await self._routing.find_group(group_name)
        ensemble = self._routing.ensemble(group_name, self._routing.check_shard(group, shard))
        for node in down:
            if node not in ensemble:
                raise InvalidArgument("down", f"{node!r} is no member of shard {shard}: {', '.join(ensemble)}")
        shared = shared_scopes(self._routing, settings.location, ensemble)
        local = settings.core_mode is Mode.LOCAL
        request = node_pb2.ExplainReadRequest(
            group=group_name, group_id=group.group_id, shard=shard, count=count, mode=str(settings.core_mode),
            known_down=sorted(set(down)), priorities=shared if local else (), ensemble=ensemble, **{"from": first},
        )
        node, answer = await self._ask(group_name, shard, ensemble, request, timeout_s)
        return Explanation(
            node, settings.core_mode, tuple(answer.ensemble), shared if local else (), tuple(request.known_down),
            answer.first, answer.released, answer.through,
            tuple(
                ExplainedItem(
                    item.first, item.last, item.kind, item.bytes, tuple(item.order), item.sender, tuple(item.senders),
                    tuple(item.keepers),
                )
                for item in answer.items
            ),
        )

    async def _ask(
        self, group_name: str, shard: int, ensemble: Sequence[str], request: node_pb2.ExplainReadRequest,
        timeout_s: float,
    ) -> tuple[str, node_pb2.ExplainReadResponse]:
        leader = self._routing.leader(group_name, shard)
        nodes = sorted(ensemble, key=lambda node: leader is None or node != leader.node)
        trouble: TidemarkError = Unavailable(f"the shard map names no member of shard {shard} of {group_name!r}")
        for node in nodes:
            info = self._routing.node(node)
            if info is None or not info.address:
                continue
            stub = node_pb2_grpc.TidemarkStub(self._channels.to(info.address))
            try:
                return node, await stub.ExplainRead(
                    request, timeout=timeout_s / len(nodes), metadata=wire.hello_metadata()
                )
            except grpc.aio.AioRpcError as error:
                hinted = refusal_from_rpc_error(error)
                trouble = (
                    error_of(hinted.refused) if hinted is not None
                    else Unavailable(f"{node}: {error.code().name} {error.details()}")
                )
        raise trouble
