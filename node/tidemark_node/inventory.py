"""Control/Replicas, Promise and Sizes: what this node holds on its disk, for the operator.

Stays out: comparing it with the metadata, or rebuilding metadata from it; the operator does that.
"""

from __future__ import annotations

from heapq import nsmallest
from typing import Any, ClassVar

from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.floors import PromiseRequest
from tidemark_wire.identity import Kind
from tidemark_wire.recovery import REPLICAS_MAX, SIZES_MAX, report_to_proto
from tidemark_wire.status import to_rpc_error
from tidemark_wire.v1 import node_pb2

from .driver import Driver
from .methods import Method, Shape
from .remembered import Remembered
from .routing import Routing


class Inventory:
    """Lists replicas and their sizes."""

    def __init__(self, driver: Driver, routing: Routing, remembered: Remembered) -> None:
        self._driver = driver
        self._routing = routing
        self._remembered = remembered

    async def replicas(self, request: node_pb2.ReplicasRequest, context: Any) -> node_pb2.ReplicasResponse:
        """Return a page of the persisted replicas, beside the remembered part of the shard map."""
        await self._loaded(context)
        driver = self._driver
        count = min(request.replicas_max or REPLICAS_MAX, REPLICAS_MAX)
        found = nsmallest(count + 1, (shard for shard in driver.core.log.shards if shard >= getattr(request, "from")))
        me = driver.core.me
        answer = node_pb2.ReplicasResponse(
            node=me.node, incarnation=me.incarnation, more=len(found) > count,
            replicas=[report_to_proto(driver.core.log.report(shard)) for shard in found[:count]],
            cluster=self._remembered.cluster)
        answer.cluster.map_version = max(answer.cluster.map_version, self._routing.map.version)
        return answer

    async def promise(self, request: node_pb2.PromiseRequest, context: Any) -> node_pb2.PromiseResponse:
        """Refuse operators below these epochs from now on, and say what is persisted of their shards (N10)."""
        await self._loaded(context)
        if len(request.floors) > REPLICAS_MAX:
            many = Refused(Reason.INVALID_SPEC, f"floors: {len(request.floors)} are more than {REPLICAS_MAX}")
            await context.abort(*to_rpc_error(many))
        floors = {ShardId(floor.shard): floor.epoch for floor in request.floors}
        me = self._driver.core.me
        promised = await self._driver.ask_and_wait(lambda number: PromiseRequest(number, floors))
        if isinstance(promised, Refused):
            await context.abort(*to_rpc_error(promised))
        return node_pb2.PromiseResponse(
            node=me.node, incarnation=me.incarnation, replicas=[report_to_proto(report) for report in promised])

    async def sizes(self, request: node_pb2.SizesRequest, context: Any) -> node_pb2.SizesResponse:
        await self._loaded(context)
        if len(request.shards) > SIZES_MAX:
            many = Refused(Reason.INVALID_SPEC, f"shards: {len(request.shards)} are more than {SIZES_MAX}")
            await context.abort(*to_rpc_error(many))
        found = ((shard, self._driver.core.log.bytes_held(ShardId(shard))) for shard in request.shards)
        return node_pb2.SizesResponse(shards=[
            node_pb2.ShardSize(shard=shard, bytes=held) for shard, held in found if held is not None])

    async def _loaded(self, context: Any) -> None:
        """Refuse to answer while the node reads its shards from the disk."""
        if self._driver.reloading:
            loading = Refused(Reason.NO_LEADER, "this node loads its shards; retry", retry_after_ms=100)
            await context.abort(*to_rpc_error(loading))

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Control.Replicas", Shape.UNARY, replicas, node_pb2.ReplicasRequest, node_pb2.ReplicasResponse,
            kinds=frozenset({Kind.OPERATOR, Kind.ADMIN}), checks_version=False, audited=True,
        ),
        Method(
            "Control.Promise", Shape.UNARY, promise, node_pb2.PromiseRequest, node_pb2.PromiseResponse,
            kinds=frozenset({Kind.OPERATOR, Kind.ADMIN}), checks_version=False, audited=True,
        ),
        Method(
            "Control.Sizes", Shape.UNARY, sizes, node_pb2.SizesRequest, node_pb2.SizesResponse,
            kinds=frozenset({Kind.OPERATOR}), checks_version=False,
        ),
    )
