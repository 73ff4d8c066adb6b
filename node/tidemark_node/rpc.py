"""Services of the node: which handler answers which method.

Stays out: the work; each handler's module has it.
"""

from __future__ import annotations

import asyncio
import os
from heapq import nsmallest
from importlib.metadata import version
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tidemark_core.base.ids import ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire.channel import WIRE_VERSION, WireVersionMismatch, check_caller
from tidemark_wire.identity import Kind, Role
from tidemark_wire.recovery import REPLICAS_MAX, SIZES_MAX, report_to_proto
from tidemark_wire.status import to_rpc_error
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import common_pb2, node_pb2

from .access import PEOPLE, Access
from .appends import Appends
from .debug import Debug
from .delivery import Deliveries
from .driver import Driver
from .explain import Explain
from .outcomes import Outcomes
from .peers import Links
from .reads import Reads
from .remembered import Remembered
from .routing import Routing
from .settings import Settings
from .snapshots import SnapshotServer
from .store import STORE_FORMAT
from .subscriptions import Subscriptions
from .synchro import InvalidSettings, Synchro, settings_of

SERVICES = ("", "tidemark.v1.Tidemark", "tidemark.v1.Control", "tidemark.v1.Replication")


class Health:
    """The gRPC health service; NOT_SERVING while draining or reloading."""

    def __init__(self) -> None:
        self.servicer = health.aio.HealthServicer()
        self.serving = False

    async def say(self, serving: bool) -> None:
        """Tell everybody who asks or watches."""
        self.serving = serving
        statuses = health_pb2.HealthCheckResponse.ServingStatus
        for service in SERVICES:
            await self.servicer.set(service, statuses.SERVING if serving else statuses.NOT_SERVING)


class Services:
    """Handlers that need little more than a look at other parts."""

    def __init__(
        self, settings: Settings, address: str, metrics_address: str, driver: Driver, links: Links, routing: Routing,
        synchro: Synchro, remembered: Remembered, debug: Debug, draining: asyncio.Event, tls: Credentials | None,
        snapshots: SnapshotServer,
    ) -> None:
        self._settings = settings
        self._address = address
        self._metrics_address = metrics_address
        self._driver = driver
        self._links = links
        self._routing = routing
        self._synchro = synchro
        self._remembered = remembered
        self._debug = debug
        self._draining = draining
        self._tls = tls
        self._snapshots = snapshots
        self._version = version("tidemark")

    async def describe(self, request: Any, context: Any) -> node_pb2.NodeDescription:
        me = self._driver.core.me
        return node_pb2.NodeDescription(
            node=me.node, incarnation=me.incarnation, boot=self._driver.boot, address=self._address,
            zone=self._settings.zone, location=self._settings.location, wire_version=WIRE_VERSION,
            store_format=STORE_FORMAT, version=self._version,
            draining=self._draining.is_set(), leading=len(self._driver.core.leading()),
            metrics_address=self._metrics_address, pid=os.getpid(),
            lagging=sorted(self._driver.core.lagging()),
            tls_fingerprint=self._tls.material.fingerprint if self._tls is not None else "",
        )

    async def push_shard_map(self, request: common_pb2.ShardMap, context: Any) -> node_pb2.PushShardMapResponse:
        mine = self._settings.cluster
        if mine and request.cluster and request.cluster != mine:
            other = Refused(
                Reason.INVALID_SPEC, f"the shard map is of cluster {request.cluster!r}, this node belongs to {mine!r}"
            )
            await context.abort(*to_rpc_error(other))
        try:
            settings_of(request)
        except InvalidSettings as wrong:
            await context.abort(*to_rpc_error(Refused(Reason.INVALID_SPEC, str(wrong))))
        version_in_force = self._routing.push(request)
        self._snapshots.throttle(self._routing.snapshot_bytes_per_second)
        self._synchro.tell()
        self._remembered.tell(self._routing.map)
        return node_pb2.PushShardMapResponse(version=version_in_force)

    async def debug_dump(self, request: Any, context: Any) -> node_pb2.DebugDumpResponse:
        return node_pb2.DebugDumpResponse(json=self._debug.dump(request.shard, request.all))

    async def replicas(self, request: node_pb2.ReplicasRequest, context: Any) -> node_pb2.ReplicasResponse:
        """A page of what is persisted here, beside what is remembered of the map."""
        await self._loaded(context)
        driver = self._driver
        count = min(request.replicas_max or REPLICAS_MAX, REPLICAS_MAX)
        found = nsmallest(count + 1, (shard for shard in driver.core.shards if shard >= getattr(request, "from")))
        me = driver.core.me
        answer = node_pb2.ReplicasResponse(
            node=me.node, incarnation=me.incarnation, more=len(found) > count,
            replicas=[report_to_proto(driver.core.report(shard)) for shard in found[:count]],
            cluster=self._remembered.cluster)
        answer.cluster.map_version = max(answer.cluster.map_version, self._routing.map.version)
        return answer

    async def sizes(self, request: node_pb2.SizesRequest, context: Any) -> node_pb2.SizesResponse:
        await self._loaded(context)
        if len(request.shards) > SIZES_MAX:
            many = Refused(Reason.INVALID_SPEC, f"shards: {len(request.shards)} are more than {SIZES_MAX}")
            await context.abort(*to_rpc_error(many))
        found = ((shard, self._driver.core.bytes_held(ShardId(shard))) for shard in request.shards)
        return node_pb2.SizesResponse(shards=[
            node_pb2.ShardSize(shard=shard, bytes=held) for shard, held in found if held is not None])

    async def _loaded(self, context: Any) -> None:
        """Refuse to speak of what is held here while it is being read from the disk."""
        if self._driver.reloading:
            loading = Refused(Reason.NO_LEADER, "this node loads its shards; retry", retry_after_ms=100)
            await context.abort(*to_rpc_error(loading))

    async def get_shard_map(self, request: Any, context: Any) -> common_pb2.ShardMap:
        return self._routing.map

    async def watch_shard_map(self, request: Any, context: Any) -> None:
        known = request.known_version
        while True:
            newest = await self._routing.newer(known)
            known = newest.version
            await context.write(newest)

    async def pull_snapshot(self, request: Any, context: Any) -> None:
        await self._links.greet(context)
        await self._snapshots.serve(request, context)


def of_our_version(handler: Any) -> Any:
    """Refuse a client that names another wire version before a frame of it is read."""

    async def call(request: Any, context: Any) -> Any:
        try:
            check_caller(context.invocation_metadata())
        except WireVersionMismatch as mismatch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
        return await handler(request, context)

    return call


def add_services(
    server: grpc.aio.Server, access: Access, services: Services, links: Links, appends: Appends, reads: Reads,
    deliveries: Deliveries, outcomes: Outcomes, subscriptions: Subscriptions, explain: Explain,
    health_of_node: Health,
) -> None:
    """Register every method and who may call it.  Raw streams have no serializers: their frames are bytes."""
    unary, stream, bidi = (
        grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler,
        grpc.stream_stream_rpc_method_handler,
    )

    def typed(make: Any, handler: Any, request: Any, response: Any) -> Any:
        return make(handler, request.FromString, response.SerializeToString)

    def only(method: str, handler: Any, *kinds: Kind) -> Any:
        return access.let_in(method, frozenset(kinds), handler)

    def of_group(method: str, handler: Any, *roles: Role) -> Any:
        return access.of_group(method, roles, of_our_version(handler))

    def for_all(method: str, handler: Any) -> Any:
        return only(method, handler, *Kind)

    pb, node, operator, admin = node_pb2, Kind.NODE, Kind.OPERATOR, Kind.ADMIN
    methods = {
        "tidemark.v1.Replication": {
            "Link": bidi(only("Replication.Link", links.serve_node, node)),
            "PullSnapshot": typed(
                stream, only("Replication.PullSnapshot", services.pull_snapshot, node), pb.PullSnapshotRequest,
                pb.SnapshotChunk,
            ),
        },
        "tidemark.v1.Control": {
            "Link": bidi(only("Control.Link", links.serve_operator, operator)),
            "Describe": typed(
                unary, only("Control.Describe", services.describe, operator, admin), pb.DescribeRequest,
                pb.NodeDescription,
            ),
            "PushShardMap": typed(
                unary, only("Control.PushShardMap", services.push_shard_map, operator), common_pb2.ShardMap,
                pb.PushShardMapResponse,
            ),
            "DebugDump": typed(
                unary, only("Control.DebugDump", services.debug_dump, operator, admin), pb.DebugDumpRequest,
                pb.DebugDumpResponse,
            ),
            "Replicas": typed(
                unary, only("Control.Replicas", services.replicas, operator, admin), pb.ReplicasRequest,
                pb.ReplicasResponse,
            ),
            "Sizes": typed(
                unary, only("Control.Sizes", services.sizes, operator), pb.SizesRequest, pb.SizesResponse
            ),
        },
        "tidemark.v1.Tidemark": {
            # Append and Deliver name their groups in their frames: what is asked of a group is judged there.
            "Append": bidi(only("Tidemark.Append", of_our_version(appends.serve), *PEOPLE)),
            "Deliver": bidi(only("Tidemark.Deliver", of_our_version(deliveries.serve), *PEOPLE)),
            "Read": stream(of_group("Tidemark.Read", reads.serve, Role.READER), pb.ReadRequest.FromString),
            "Outcome": typed(
                unary, of_group("Tidemark.Outcome", outcomes.outcome, Role.WRITER), pb.OutcomeRequest,
                pb.OutcomeResponse,
            ),
            "Limbo": typed(
                unary, of_group("Tidemark.Limbo", outcomes.limbo, *Role), pb.LimboRequest, pb.LimboResponse
            ),
            "CommitPosition": typed(
                unary, of_group("Tidemark.CommitPosition", subscriptions.commit, Role.READER),
                pb.CommitPositionRequest, pb.CommitPositionResponse,
            ),
            "Subscriptions": typed(
                unary, of_group("Tidemark.Subscriptions", subscriptions.list, Role.READER), pb.SubscriptionsRequest,
                pb.SubscriptionsResponse,
            ),
            "DeleteSubscription": typed(
                unary, of_group("Tidemark.DeleteSubscription", subscriptions.delete, Role.READER),
                pb.DeleteSubscriptionRequest, pb.DeleteSubscriptionResponse,
            ),
            "ExplainRead": typed(
                unary, of_group("Tidemark.ExplainRead", explain.read, Role.READER), pb.ExplainReadRequest,
                pb.ExplainReadResponse,
            ),
            "GetShardMap": typed(
                unary, for_all("Tidemark.GetShardMap", services.get_shard_map), pb.GetShardMapRequest,
                common_pb2.ShardMap,
            ),
            "WatchShardMap": typed(
                stream, for_all("Tidemark.WatchShardMap", services.watch_shard_map), pb.GetShardMapRequest,
                common_pb2.ShardMap,
            ),
        },
    }
    server.add_generic_rpc_handlers(
        tuple(grpc.method_handlers_generic_handler(service, handlers) for service, handlers in methods.items())
    )
    health_pb2_grpc.add_HealthServicer_to_server(health_of_node.servicer, server)
