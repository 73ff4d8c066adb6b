"""A node that only speaks to its operator: describes itself, says its health, holds a link, takes maps."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tidemark_core.base.ids import KEYSPACE_PLANE, Address, ShardId, of_shard
from tidemark_core.optimistic.deleting import ForgetAsked, Forgotten
from tidemark_core.optimistic.floors import HintsAsked, HintsGone, PromiseAsked, Promised, SyncAsked, Synced
from tidemark_core.optimistic.moving import Announced, Copied, CopyAsked, Known
from tidemark_operator.local_state import free_ports
from tidemark_wire.channel import CONTROL_LINK, bind, hello_metadata, server_options
from tidemark_wire.frames import decode_messages, encode_message
from tidemark_wire.v1 import common_pb2, node_pb2, node_pb2_grpc
from tidemark_wire.wire_version import WIRE_VERSION


class FakeNode(node_pb2_grpc.ControlServicer):
    def __init__(self, node: str = "n1", incarnation: str = "life-1") -> None:
        self.description = node_pb2.NodeDescription(
            node=node, incarnation=incarnation, boot="boot-1", wire_version=WIRE_VERSION, zone="a")
        self.received: list[Any] = []
        self.frames: list[int] = []     # the bytes of each that was received
        self.maps: list[int] = []
        self.newest_map = common_pb2.ShardMap()
        self.refuse_maps = 0
        self.held: dict[int, int] | None = None   # bytes by shard; None: it cannot say
        self.sizes_asked = 0
        self.writes: int | None = None  # durable on its disk; None: it cannot say
        self.disk_checks: list[node_pb2.CheckDiskRequest] = []
        self.silent = False
        self.hello: Any = None          # what it answers to who opens a link; None: as this build does
        self.wire_version = WIRE_VERSION          # of its frames
        self.unanswered = 0
        self.copies = True              # it says at once that it knows records of ranges and has copied what it should
        self.rounds = True              # it answers rounds of floors at once
        self.links: dict[Any, asyncio.Task[None]] = {}
        self.links_made = 0
        (self.port,) = free_ports(1)  # stopped and started again, it is where it was
        self._health = health.aio.HealthServicer()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        self._server = grpc.aio.server(options=server_options())
        node_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        service, _, method = CONTROL_LINK.strip("/").rpartition("/")
        handler = grpc.stream_stream_rpc_method_handler(self._link)
        self._server.add_generic_rpc_handlers([_Raw(f"/{service}/{method}", handler)])
        self.port = bind(self._server, f"127.0.0.1:{self.port}")
        await self.say(True)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def say(self, serving: bool) -> None:
        statuses = health_pb2.HealthCheckResponse.ServingStatus
        await self._health.set("", statuses.SERVING if serving else statuses.NOT_SERVING)

    async def send(self, shard: ShardId, message: Any) -> None:
        for context in self.links:
            await context.write(encode_message(of_shard(shard), None, message, self.wire_version))

    async def break_links(self) -> None:
        for task in list(self.links.values()):
            task.cancel()

    async def Describe(self, request: Any, context: Any) -> node_pb2.NodeDescription:
        if self.silent:
            self.unanswered += 1
            await asyncio.Event().wait()
        return self.description

    async def PushShardMap(self, request: common_pb2.ShardMap, context: Any) -> node_pb2.PushShardMapResponse:
        if self.refuse_maps:
            self.refuse_maps -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        self.maps.append(request.version)
        self.newest_map = request
        return node_pb2.PushShardMapResponse(version=request.version)

    async def Sizes(self, request: node_pb2.SizesRequest, context: Any) -> node_pb2.SizesResponse:
        if self.held is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "never heard of it")
        self.sizes_asked += 1
        return node_pb2.SizesResponse(shards=[
            node_pb2.ShardSize(shard=shard, bytes=self.held[shard]) for shard in request.shards if shard in self.held])

    async def CheckDisk(self, request: node_pb2.CheckDiskRequest, context: Any) -> node_pb2.CheckDiskResponse:
        if self.writes is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "never heard of it")
        self.disk_checks.append(request)
        return node_pb2.CheckDiskResponse(
            incarnation=self.description.incarnation, writes=self.writes, given_up=request.give_up)

    async def _link(self, _requests: Any, context: Any) -> None:
        me = self.description
        await context.send_initial_metadata(self.hello or hello_metadata(node=me.node, incarnation=me.incarnation))
        self.links[context] = asyncio.ensure_future(self._receive(context))
        self.links_made += 1
        await asyncio.wait([self.links[context]])  # its cancellation ends the stream, not this handler's task
        del self.links[context]

    async def _receive(self, context: Any) -> None:
        while (frame := await context.read()) is not grpc.aio.EOF:
            self.frames.append(len(frame))
            messages = list(decode_messages(frame, self.wire_version))
            self.received.extend((unit.id, to, message) for unit, to, message in messages)
            for unit, _, message in messages:
                if unit.plane == KEYSPACE_PLANE and (
                        self.rounds if isinstance(message, HintsAsked | PromiseAsked | SyncAsked) else self.copies):
                    await self._answer(context, unit, message)

    async def _answer(self, context: Any, unit: Address, message: Any) -> None:
        match message:
            case Announced(number, record):
                answer: Any = Known(number, record.version)
            case CopyAsked(number, version):
                answer = Copied(number, version)
            case HintsAsked(number, round_, _):
                answer = HintsGone(number, round_)
            case PromiseAsked(number, round_, _, _):
                answer = Promised(number, round_)
            case SyncAsked(number, round_, _, _):
                answer = Synced(number, round_)
            case ForgetAsked(number):
                answer = Forgotten(number)
        await context.write(encode_message(unit, None, answer, self.wire_version))


class _Raw(grpc.GenericRpcHandler):
    def __init__(self, path: str, handler: Any) -> None:
        self._path, self._handler = path, handler

    def service(self, details: Any) -> Any:
        return self._handler if details.method == self._path else None
