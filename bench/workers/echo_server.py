"""An empty grpc.aio echo, unary and streamed, and a source that sends one message for ever: what gRPC alone can do."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import grpc
import grpc.aio
from tidemark.loop import run
from tidemark_wire import channel

UNARY = "/bench.Echo/Unary"
STREAM = "/bench.Echo/Stream"
SOURCE = "/bench.Echo/Source"


class _Echo(grpc.GenericRpcHandler):
    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        match details.method:
            case "/bench.Echo/Unary":
                return grpc.unary_unary_rpc_method_handler(_unary)
            case "/bench.Echo/Stream":
                return grpc.stream_stream_rpc_method_handler(_stream)
            case "/bench.Echo/Source":
                return grpc.unary_stream_rpc_method_handler(_source)
        return None


async def _unary(request: bytes, _: Any) -> bytes:
    return request


async def _stream(_: Any, context: Any) -> None:
    while (message := await context.read()) is not grpc.aio.EOF:
        await context.write(message)


async def _source(request: bytes, context: Any) -> None:
    while True:
        await context.write(request)


async def main() -> None:
    """Serve until our parent closes standard input."""
    server = grpc.aio.server(options=channel.server_options())
    server.add_generic_rpc_handlers((_Echo(),))
    port = channel.bind(server, "127.0.0.1:0")
    await server.start()
    print(json.dumps({"address": f"127.0.0.1:{port}"}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop(None)


if __name__ == "__main__":
    run(main())
