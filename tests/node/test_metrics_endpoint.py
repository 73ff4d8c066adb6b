"""The port of metrics and probes: a crowd that holds its connections keeps no kubelet and no scraper out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tidemark_node import metrics
from tidemark_node.metrics import CONNECTIONS_MAX, Metrics, MetricsEndpoint

from tests.waiting import until

CROWD = 4 * CONNECTIONS_MAX
KUBELET, THIEF = "127.0.0.2", "127.0.0.3"


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[int]:
    monkeypatch.setattr(metrics, "PATIENCE_SECONDS", 60.0)   # only the crowd ends a connection
    endpoint = MetricsEndpoint(Metrics(), lambda: True)
    address = await endpoint.start("0.0.0.0", 0)
    yield int(address.rpartition(":")[2])
    await endpoint.stop()


class Idle:
    """A connection that says nothing, or half a request."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.ended = asyncio.ensure_future(reader.read())
        self._writer = writer

    @classmethod
    async def opened(cls, stack: AsyncExitStack, port: int, address: str) -> Idle:
        made = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0)))
        made._writer.write(b"GET /livez HTTP/1.1\r\n")
        stack.callback(made._writer.transport.abort)
        return made


async def probe(port: int, address: str, path: str = "livez") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    try:
        writer.write(f"GET /{path} HTTP/1.1\r\nHost: node\r\n\r\n".encode())
        async with asyncio.timeout(30):      # below the time that an idle connection has
            return await reader.read()
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("thief", [THIEF, KUBELET], ids=["another machine", "the same machine"])
async def test_t12_a_crowd_on_the_metrics_port_keeps_no_probe_out(port: int, thief: str) -> None:
    async with AsyncExitStack() as stack:
        crowd = [await Idle.opened(stack, port, thief) for _ in range(CROWD)]
        for _ in range(5):
            for path in ("livez", "readyz", "metrics"):
                assert (await probe(port, KUBELET, path)).startswith(b"HTTP/1.1 200")
        await until(lambda: sum(one.ended.done() for one in crowd) >= CROWD - CONNECTIONS_MAX, "the crowd is cut")
        assert sum(one.ended.done() for one in crowd) < CROWD


async def test_t12_a_crowd_takes_no_connection_of_an_address_that_holds_few(port: int) -> None:
    async with AsyncExitStack() as stack:
        slow = await Idle.opened(stack, port, KUBELET)
        crowd = [await Idle.opened(stack, port, THIEF) for _ in range(CROWD)]
        await until(lambda: sum(one.ended.done() for one in crowd) >= CROWD - CONNECTIONS_MAX, "the crowd is cut")
        assert not slow.ended.done()
        assert not crowd[-1].ended.done(), "the oldest go first"
