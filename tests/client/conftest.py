from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import tidemark
import uvloop
from fake_cluster import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Three fake nodes and the group `orders` of four shards."""
    fake = await FakeCluster().start()
    yield fake
    await fake.stop()


@pytest.fixture
async def client(cluster: FakeCluster) -> AsyncIterator[tidemark.Client]:
    async with await tidemark.connect(cluster.addresses()) as opened:
        yield opened


@pytest.fixture
async def connect_to() -> AsyncIterator[Callable[..., Awaitable[tuple[FakeCluster, tidemark.Client]]]]:
    """Start a fake cluster of another shape and connect to it."""
    started: list[tuple[FakeCluster, tidemark.Client]] = []

    async def start(nodes: int = 3, shards: int = 4, **settings: object) -> tuple[FakeCluster, tidemark.Client]:
        fake = FakeCluster()
        for name, value in settings.items():
            setattr(fake, name, value)
        await fake.start(nodes, shards)
        opened = await tidemark.connect(fake.addresses())
        started.append((fake, opened))
        return fake, opened

    yield start
    for fake, opened in started:
        await opened.close()
        await fake.stop()


@pytest.fixture(scope="session")
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Run on uvloop, as programs do; its timers and handles differ from asyncio's."""
    return uvloop.EventLoopPolicy()
