"""Links between nodes as the core hears of them, whoever dialed whom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from tidemark_core.base.effects import PeerDown, PeerUp
from tidemark_core.base.ids import EntryId, Member, ShardId, of_shard
from tidemark_core.replication.messages import AppendRefused
from tidemark_node import peers
from tidemark_node.metrics import Metrics
from tidemark_node.peers import Links
from tidemark_wire import channel

from tests.waiting import until

ME, THERE = Member("n1", "disk-1"), Member("n2", "disk-2")
NEWS = AppendRefused(1, 1, EntryId(1, 0), "MISMATCH")


class Incoming:
    """A link that the peer has opened, as gRPC hands it over; it lasts until `ended`."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def invocation_metadata(self) -> Any:
        return channel.hello_metadata(node=THERE.node, incarnation=THERE.incarnation, address="127.0.0.1:1")

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Nobody reads it."""

    async def read(self) -> Any:
        await self.ended.wait()
        return grpc.aio.EOF

    async def write(self, frame: bytes) -> None:
        """Nobody reads it."""


@pytest.fixture
async def silent() -> Any:
    """An address that takes connections and says nothing, as behind a cable that was pulled."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    yield "{}:{}".format(*server.sockets[0].getsockname()[:2])
    server.close()


async def test_a_dial_that_fails_after_the_peer_has_dialed_us_is_no_news(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader would leave out a member whose link is there, for as long as that link lasts."""
    monkeypatch.setattr(peers, "DIAL_TIMEOUT_SECONDS", 0.5)
    heard: list[PeerUp | PeerDown] = []
    driver = SimpleNamespace(post=heard.append, room=lambda: True)
    routing = SimpleNamespace(address=lambda node: silent, learn=lambda node, address: None)
    links = Links(ME, "127.0.0.1:2", driver, routing, Metrics())  # type: ignore[arg-type]

    links.send(of_shard(ShardId(0)), THERE, NEWS)
    links.flush()
    (dialing,) = links.describe()
    assert dialing["dialing"]
    incoming = Incoming()
    serving = asyncio.ensure_future(links.serve_node(None, incoming))
    await until(lambda: PeerUp(THERE) in heard)
    await until(lambda: links._reaches[THERE].dialer is None)
    assert heard[-1] == PeerUp(THERE)

    incoming.ended.set()
    await serving
    assert heard[-1] == PeerDown(THERE)
    assert links.describe()[0]["dialing"], "finding it again is up to us"
    await links.close()
