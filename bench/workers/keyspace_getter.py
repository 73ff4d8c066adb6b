"""One client process that reads Strings of a `keyspace_setter`, in turns with empty calls to the same node."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

import grpc.aio
import tidemark
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tidemark_wire.channel import open_channel

from .putter import key_of

EMPTY = health_pb2.HealthCheckRequest()


class Echo:
    """The emptiest unary call that a node answers, over a channel like the client's own."""

    def __init__(self, address: str) -> None:
        self._channel: grpc.aio.Channel = open_channel(address)
        self._stub: Any = health_pb2_grpc.HealthStub(self._channel)

    async def call(self) -> None:
        await self._stub.Check(EMPTY)

    async def close(self) -> None:
        await self._channel.close()


async def main(addresses: list[str], keyspace: str, prefix: str, count: int, seconds: float, r: int) -> None:
    """Print the times of gets, and of empty calls to the node that each get went to."""
    told: dict[str, Any] = {"get_ms": [], "echo_ms": []}
    async with await tidemark.connect(addresses) as client:
        strings = client.keyspace(keyspace)
        calls, routing = strings._calls, client.routing
        ring = await strings._ring()
        echoes = {node.address: Echo(node.address) for node in routing.map.nodes}
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            key = key_of(prefix, random.randrange(count))
            echo = echoes[calls.nearest(ring, ring.range_of(key), writes=False)]
            began = time.perf_counter()
            found = await strings.get(key, r=r)
            between = time.perf_counter()
            await echo.call()
            ended = time.perf_counter()
            if found.value is None:
                raise LookupError(f"no String {key!r}")
            told["get_ms"].append(1000 * (between - began))
            told["echo_ms"].append(1000 * (ended - between))
        for each in echoes.values():
            await each.close()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    tidemark.run(main(**json.loads(sys.argv[1])))
