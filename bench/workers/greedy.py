"""One client process that opens many streams to the leader of a shard and reads none of them.

It ends when its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tidemark_core.delivery.messages import Start
from tidemark_core.delivery.order import Mode
from tidemark_wire import channel
from tidemark_wire.delivery import StartCall, encode_request
from tidemark_wire.v1 import node_pb2

CONNECTIONS = 4
FRAME_BYTES = 4 << 20


async def main(address: str, ensemble: list[str], group: str, streams: int) -> None:
    """Open half of the streams as reads and half as deliveries; print how many there are."""
    channels = [channel.open_channel(address) for _ in range(CONNECTIONS)]
    calls: list[Any] = []
    request = node_pb2.ReadRequest(group=group, shard=0, until=-1, tail=True, bytes_max=FRAME_BYTES)
    start = Start(1, 0, -1, Mode.ALL_SEND_ALL, (), tuple(ensemble), (), 1 << 30)
    for number in range(streams // 2):
        opened = channels[number % CONNECTIONS]
        read: Any = opened.unary_stream(channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        calls.append(read(request, metadata=channel.hello_metadata()))
        delivery: Any = opened.stream_stream(channel.DELIVER)(metadata=channel.hello_metadata())
        await delivery.write(encode_request(StartCall(group, 0, start, FRAME_BYTES)))
        calls.append(delivery)
    print(json.dumps({"streams": len(calls)}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for call in calls:
        call.cancel()
    await asyncio.gather(*(opened.close() for opened in channels))


if __name__ == "__main__":
    asyncio.run(main(**json.loads(sys.argv[1])))
