"""A farm of nodes that hold nothing: each pod of a namespace gets an address and a node that answers there.

They speak what operator and node say to each other as far as elections go: they describe themselves, are probed, take
maps, are fenced with an empty log, and lead what they are told to lead.  So an operator has as much to do as with real
ones.  It stands in for scheduler and kubelet too: a pod that appears is said to run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from tidemark.loop import run
from tidemark_core.base.ids import EntryId, ShardId
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import (
    AddFollower,
    BecameLeader,
    BecomeLeader,
    Fence,
    Fenced,
    FollowerAdded,
    Rejected,
)
from tidemark_wire.channel import CONTROL_LINK, bind, hello_metadata, server_options
from tidemark_wire.frames import decode_messages, encode_message
from tidemark_wire.v1 import common_pb2, node_pb2, node_pb2_grpc
from tidemark_wire.wire_version import WIRE_VERSION

from tests.kube.client import Kube
from tests.kube.control_plane import Connection

PORT = 6690
EMPTY = EntryId(0, 0)


class Node(node_pb2_grpc.ControlServicer):
    """One node at one address."""

    def __init__(self, name: str, address: str) -> None:
        self._description = node_pb2.NodeDescription(
            node=name, incarnation=f"life-{name}", boot="boot-1", wire_version=WIRE_VERSION)
        self._address = address
        self._leads: dict[ShardId, int] = {}
        self._health = health.aio.HealthServicer()

    async def start(self) -> None:
        self._leads.clear()
        self._server = grpc.aio.server(options=server_options())
        node_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._server.add_generic_rpc_handlers([_Link(self._link)])
        bind(self._server, f"{self._address}:{PORT}")
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    async def Describe(self, _request: Any, _context: Any) -> node_pb2.NodeDescription:
        return self._description

    async def PushShardMap(self, request: common_pb2.ShardMap, _context: Any) -> node_pb2.PushShardMapResponse:
        return node_pb2.PushShardMapResponse(version=request.version)

    async def _link(self, _requests: Any, context: Any) -> None:
        await context.send_initial_metadata(
            hello_metadata(node=self._description.node, incarnation=self._description.incarnation))
        while (frame := await context.read()) is not grpc.aio.EOF:
            answers = [
                encode_message(unit, None, answer) for unit, _to, message in decode_messages(frame)
                if (answer := self._answer(unit.shard, message)) is not None]
            if answers:
                await context.write(b"".join(answers))

    def _answer(self, shard: ShardId, message: Any) -> Any:
        match message:
            case Fence(epoch, election):
                if self._leads.get(shard) == epoch:
                    return Rejected(epoch, "Fence", Refused(Reason.ALREADY_LEADER))
                self._leads.pop(shard, None)
                return Fenced(epoch, election, EMPTY)
            case BecomeLeader(epoch, election):
                self._leads[shard] = epoch
                return BecameLeader(epoch, election)
            case AddFollower(epoch, _election, follower):
                return FollowerAdded(epoch, follower)
        return None


class _Link(grpc.GenericRpcHandler):
    def __init__(self, behaviour: Any) -> None:
        self._handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(behaviour)

    def service(self, details: Any) -> Any:
        return self._handler if details.method == CONTROL_LINK else None


class Farm:
    """The nodes of a namespace."""

    def __init__(self, kube: Kube, network: str) -> None:
        self._kube = kube
        self._network = network
        self.nodes: dict[str, Node] = {}

    async def follow(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):  # a watch does not last for ever
                async for _what, pod in self._kube.watch("pods"):
                    if pod["metadata"]["name"] not in self.nodes and "deletionTimestamp" not in pod["metadata"]:
                        await self._host(pod["metadata"]["name"])

    async def _host(self, name: str) -> None:
        high, low = divmod(len(self.nodes), 250)
        address = f"{self._network}.{high + 100}.{low + 1}"
        self.nodes[name] = Node(name, address)  # type: ignore[abstract]  # gRPC refuses the methods that are missing
        await self.nodes[name].start()
        await self._kube.patch("pods/status", name, {"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "True"}]}})

    async def close(self) -> None:
        await self._kube.close()

    async def stop(self, name: str) -> None:
        await self.nodes[name].stop()

    async def start(self, name: str) -> None:
        await self.nodes[name].start()


async def main() -> None:
    """Follow the pods until our parent closes standard input; lines are `stop NAME` and `start NAME`."""
    arguments = json.loads(sys.argv[1])
    farm = Farm(Kube(Connection(**arguments["connection"]), arguments["namespace"]), arguments["network"])
    following = asyncio.ensure_future(farm.follow())

    def tell(done: asyncio.Task[None]) -> None:
        print(f"the farm ended: {done!r}", file=sys.stderr)

    following.add_done_callback(tell)
    print(json.dumps({"follows": True}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        what, name = line.split()
        await getattr(farm, what)(name)
        print(json.dumps({what: name}), flush=True)
    following.remove_done_callback(tell)
    following.cancel()
    await asyncio.gather(*(node.stop() for node in farm.nodes.values()))
    await farm.close()


if __name__ == "__main__":
    run(main())
