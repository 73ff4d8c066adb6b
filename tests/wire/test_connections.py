"""A server under many connections: idle ones are closed, and the cap keeps descriptors for what is not a connection."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
from tidemark_core.base.effects import SnapshotDescriptor
from tidemark_core.base.ids import EntryId, Member, of_shard, shard_id
from tidemark_core.replication.checkpoint import FOLDS, Checkpoint, Mark
from tidemark_core.replication.log import MARK_BYTES
from tidemark_core.replication.messages import InstallSnapshot
from tidemark_core.replication.producers import PRODUCERS_MAX, REMEMBERED_MAX, Known, Place, ProducerTable
from tidemark_operator import main as operator
from tidemark_wire import channel, descriptors
from tidemark_wire.frames import decode_messages, encode_message

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


async def test_the_age_of_a_connection_ends_no_call_that_the_server_has_taken() -> None:
    taken: list[bytes] = []

    async def echoed(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        taken.append(request)
        return await _seen(request, context)

    options = {**dict(channel.server_options()), "grpc.max_connection_age_ms": 200}   # as in servers, but sooner
    server = grpc.aio.server(options=list(options.items()))
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(echoed), "Hold": grpc.stream_stream_rpc_method_handler(_hold)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    address = f"127.0.0.1:{channel.bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        async with channel.open_channel(address) as opened:
            held, echo = opened.stream_stream("/test.Echo/Hold")(), opened.unary_unary("/test.Echo/Echo")
            peers: set[str] = set()
            numbers = itertools.count()
            while len(peers) < 3:   # the second and third connection stand for the first, which was too old
                await held.write(b"held")
                assert await held.read() == b"held"
                request = b"%d" % next(numbers)
                call = echo(request, timeout=20)
                try:
                    assert await call == request
                except grpc.aio.AioRpcError as error:
                    # Sent just as the connection became too old: the server has not taken it.
                    assert error.code() is grpc.StatusCode.UNAVAILABLE and "max_age" in str(error.details())
                    assert request not in taken
                else:
                    peers.add(await _source(call))
            held.cancel()
    finally:
        await server.stop(None)


async def test_t12b_a_request_that_announces_too_much_is_refused_and_the_operator_takes_a_mib() -> None:
    server = grpc.aio.server(options=channel.server_options(request_bytes_max=operator.REQUEST_BYTES_MAX))
    handlers = {"Echo": grpc.unary_unary_rpc_method_handler(_seen)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    address = f"127.0.0.1:{channel.bind(server, '127.0.0.1:0')}"
    await server.start()
    try:
        async with channel.open_channel(address) as opened:
            echo = opened.unary_unary("/test.Echo/Echo")
            assert await echo(bytes(1 << 20), timeout=20) == bytes(1 << 20)
            with pytest.raises(grpc.aio.AioRpcError, match="larger than max"):
                await echo(bytes((1 << 20) + 1), timeout=20)
    finally:
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


async def test_the_largest_snapshot_of_a_log_of_a_terabyte_fits_through_a_server() -> None:
    places = tuple(Place(number, 1, number, 1) for number in range(REMEMBERED_MAX))
    known = Known(1, places)
    producers = ProducerTable.of((number.to_bytes(16), known) for number in range(PRODUCERS_MAX))
    folds = tuple(producers if kind is ProducerTable else kind() for kind in FOLDS)
    marks = tuple(Mark(number, number * MARK_BYTES, 1) for number in range(10**12 // MARK_BYTES))
    checkpoint = Checkpoint(EntryId(1, 1 << 40), 7, 1, 10**12, 1 << 40, (), marks, (), (), folds).encode()
    assert len(checkpoint) > PRODUCERS_MAX * 160 + len(marks) * 24
    member, head = Member("a", "1"), EntryId(1, 1 << 40)
    install = InstallSnapshot(1, 1, member, SnapshotDescriptor(1, head, 1 << 40, 1 << 40, 0, checkpoint))
    frame = encode_message(of_shard(shard_id(1, 0)), member, install)
    async with serving(1_000) as port, channel.open_channel(f"127.0.0.1:{port}") as caller:
        echoed = await caller.unary_unary("/test.Echo/Echo")(frame, timeout=30)
    assert [install] == [message for _, _, message in decode_messages(echoed)]
