"""The operator's own HTTP port on Kubernetes, under idle connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest
from tidemark_operator.kube import health

from tests.waiting import until

CAP = 8


@contextlib.asynccontextmanager
async def serving(seconds: float) -> AsyncIterator[int]:
    served = await health.serve("127.0.0.1:0", lambda: "", CAP, seconds)
    try:
        yield served.port
    finally:
        await served.close()


async def answer(port: int, path: str = "/livez") -> bytes:
    """Return the status line, nothing where the connection was refused."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        line = await reader.readline()
    except ConnectionError:
        return b""
    writer.close()
    return line.strip()


@contextlib.contextmanager
def idle(port: int, count: int) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(count)]


def ended(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_it_answers(path: str) -> None:
    async with serving(60) as port:
        assert await answer(port, path) == b"HTTP/1.1 200 OK"


async def test_connections_above_the_cap_are_ended() -> None:
    async with serving(60) as port:
        with idle(port, CAP):
            async def refused() -> bool:
                return await answer(port) == b""

            await until(refused, "the cap is reached")

        async def answers() -> bool:
            return await answer(port) == b"HTTP/1.1 200 OK"

        await until(answers, "the idle connections are gone")


async def test_an_idle_connection_is_ended_in_time_and_makes_room() -> None:
    async with serving(0.3) as port:
        with idle(port, CAP) as held:
            async def answers() -> bool:
                return await answer(port) == b"HTTP/1.1 200 OK"

            await until(answers, "the idle connections were ended")
            await until(lambda: all(map(ended, held)), "each connection ends")
