"""A server under many connections: idle ones are closed, and the cap keeps descriptors for what is not a connection."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from tidemark_wire import channel, descriptors

from tests.waiting import until

REPOSITORY = Path(__file__).parents[2]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""The first bytes of an HTTP/2 caller: the preface and empty settings."""
MANY = 40
CAP = 12


async def _answer(request: bytes, context: object) -> bytes:
    return request


@contextlib.asynccontextmanager
async def serving(handshake_timeout_ms: int) -> AsyncIterator[int]:
    server = grpc.aio.server(options=channel.server_options(CAP, handshake_timeout_ms))
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(_answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = channel.bind(server, "127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


@contextlib.contextmanager
def crowd(port: int, hello: bytes = b"") -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MANY)]
        for each in sockets:
            each.setblocking(False)
            with contextlib.suppress(OSError):
                each.send(hello)
        yield sockets


def is_open(connection: socket.socket) -> bool:
    """Say whether the server holds a connection: neither closed nor reset."""
    try:
        while True:
            if not connection.recv(4096):
                return False
    except BlockingIOError:
        return True
    except OSError:
        return False


async def few(sockets: list[socket.socket], most: int) -> bool:
    return sum(map(is_open, sockets)) <= most


async def test_connections_above_the_cap_are_closed_and_those_below_it_served() -> None:
    async with serving(handshake_timeout_ms=60_000) as port, channel.open_channel(f"127.0.0.1:{port}") as opened:
        echo = opened.unary_unary("/test.Echo/Echo")
        assert await echo(b"before", timeout=20) == b"before"
        with crowd(port, PREFACE) as sockets:
            await until(lambda: few(sockets, CAP - 1), "what is above the cap is closed")
            assert await echo(b"amid", timeout=20) == b"amid"
        async with channel.open_channel(f"127.0.0.1:{port}") as another:

            async def served() -> bool:
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return bool(await another.unary_unary("/test.Echo/Echo")(b"after", timeout=20))
                return False

            await until(served, "the crowd is gone")


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serving(handshake_timeout_ms=300) as port:
        with crowd(port) as sockets:
            await until(lambda: few(sockets, 0), "no silent connection is left")
        async with channel.open_channel(f"127.0.0.1:{port}") as opened:
            assert await opened.unary_unary("/test.Echo/Echo")(b"x", timeout=20) == b"x"


async def _source(call: grpc.aio.UnaryUnaryCall) -> str:
    """Return the caller's own end of the connection, as the server saw it."""
    return dict(await call.trailing_metadata())["seen"]


async def _seen(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
    context.set_trailing_metadata((("seen", context.peer()),))
    return request


async def _hold(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def test_the_age_of_a_connection_ends_no_call() -> None:
    options = {**dict(channel.server_options()), "grpc.max_connection_age_ms": 200}   # as in servers, but sooner
    server = grpc.aio.server(options=list(options.items()))
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(_seen), "Hold": grpc.stream_stream_rpc_method_handler(_hold)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    address = f"127.0.0.1:{channel.bind(server, '127.0.0.1:0')}"
    await server.start()
    async with channel.open_channel(address) as opened:
        held, echo = opened.stream_stream("/test.Echo/Hold")(), opened.unary_unary("/test.Echo/Echo")
        peers = set()
        while len(peers) < 3:   # the second and third connection stand for the first, which was too old
            await held.write(b"held")
            assert await held.read() == b"held"
            call = echo(b"new", timeout=20)
            assert await call == b"new"
            peers.add(await _source(call))
        held.cancel()
    await server.stop(None)


def test_every_server_has_the_bounds() -> None:
    """A certificate that was taken back counts for ten minutes at most; a hello takes ten seconds at most."""
    options = dict(channel.server_options())
    assert 0 < options["grpc.max_connection_age_ms"] <= 600_000
    assert 0 < options["grpc.server_handshake_timeout_ms"] <= 10_000
    assert 0 < options["grpc.max_allowed_incoming_connections"] <= descriptors.CONNECTIONS_MAX
    servers = [
        (path.name, given) for house in ("node", "operator") for path in sorted((REPOSITORY / house).rglob("*.py"))
        for given in re.findall(r"grpc\.aio\.server\(([^)]*)", path.read_text(encoding="utf-8"))]
    assert len(servers) == 2
    assert all("options=" in given for _, given in servers), servers


@pytest.mark.parametrize(("limit", "connections"), [
    (1024, 384), (256, descriptors.CONNECTIONS_MIN), (20_000, descriptors.CONNECTIONS_MAX),
    (-1, descriptors.CONNECTIONS_MAX),
])
def test_descriptors_are_kept_for_the_store(limit: int, connections: int) -> None:
    assert descriptors.connections_max(limit) == connections
