"""Iterations go on behind a timeout: nothing is lost, nothing comes twice, and only the end is the end."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
import tidemark
from fake_cluster import FakeCluster
from tidemark import Change, ChangeBatch, Snapshot
from tidemark.errors import Closed
from tidemark.iterating import Iteration

from tests.waiting import PATIENCE_S, until

COUNT = 60
Start = Callable[[tidemark.Client], AsyncIterator[Any]]


# --- the iterator alone


async def test_a_cancelled_wait_leaves_the_iteration_where_it_was() -> None:
    queue: asyncio.Queue[Iterable[int] | None] = asyncio.Queue()
    began = 0

    async def begin() -> None:
        nonlocal began
        await asyncio.sleep(0)
        began += 1

    iteration: Iteration[int] = Iteration(queue.get, begin=begin)
    found: list[int] = []
    for turns in (0, 1, 2, 3):
        waiting = asyncio.create_task(anext(iteration))     # type: ignore[arg-type] # an Awaitable is a coroutine here
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait((waiting,))
        assert waiting.cancelled()
    for items in ((1, 2), (), (3,), None):
        queue.put_nowait(items)
    async for item in iteration:
        found.append(item)
    assert (found, began) == ([1, 2, 3], 1)
    with pytest.raises(StopAsyncIteration):
        await anext(iteration)


async def test_an_iteration_closes_at_its_end_behind_an_error_and_when_it_is_dropped() -> None:
    closed: list[str] = []

    def started(name: str, *steps: Any) -> Iteration[int]:
        left = list(steps)

        async def take() -> Iterable[int] | None:
            step = left.pop(0)
            if isinstance(step, Exception):
                raise step
            return step

        async def close() -> None:
            closed.append(name)

        return Iteration(take, close=close)

    assert [item async for item in started("end", (1,), None)] == [1]
    failing = started("error", (1,), OSError("gone"), (2,), None)
    assert await anext(failing) == 1
    with pytest.raises(OSError, match="gone"):
        await anext(failing)
    assert closed == ["end", "error"]
    assert await anext(failing) == 2, "an error is not the end"
    await failing.aclose()

    closed.clear()
    left = started("dropped", (1, 2), None)
    assert await anext(left) == 1
    del left
    gc.collect()
    await until(lambda: closed == ["dropped"])
    never = started("never begun", (1,))
    del never
    gc.collect()
    await asyncio.sleep(0)
    assert closed == ["dropped"]


async def test_an_iteration_that_cannot_begin_closes_nothing() -> None:
    """Another iteration may be reading what it would have closed."""
    closed: list[str] = []

    async def refused() -> None:
        raise Closed("it was read before")

    async def close() -> None:
        closed.append("closed")

    async def take() -> None:
        return None

    iteration: Iteration[int] = Iteration(take, begin=refused, close=close)
    with pytest.raises(Closed):
        await anext(iteration)
    del iteration
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    assert closed == []


# --- what users iterate over


@pytest.fixture
async def client() -> AsyncIterator[tidemark.Client]:
    cluster = await FakeCluster().start(shards=1)
    cluster.add_documents("settings", 1)
    async with await tidemark.connect(cluster.addresses()) as opened:
        yield opened
    await cluster.stop()


def numbers(item: Any) -> list[int]:
    """Return the numbers that were written, as far as an item holds them."""
    match item:
        case tidemark.Record() | Change():
            return [int(item.value)]
        case tidemark.ReadBatch():
            return [int(record.value) for record in item.records()]
        case Snapshot() | ChangeBatch():
            return [int(change.value) for change in item]
    return []


def reading(mode: str) -> dict[str, Start]:
    return {
        f"records by {mode}": lambda client: client.read("orders", mode=mode, until=None).records(),
        f"batches by {mode}": lambda client: client.read("orders", mode=mode, until=None).batches(),
    }


STARTS: dict[str, Start] = {
    **reading("scd"), **reading("leader"),
    "changes": lambda client: aiter(client.changes("settings")),
    "batches of changes": lambda client: client.changes("settings").batches(),
    "snapshots": lambda client: client.changes("settings").snapshots(),
}


@pytest.mark.parametrize("name", STARTS)
async def test_timeouts_lose_and_repeat_nothing(client: tidemark.Client, name: str) -> None:
    items, dice, found, timeouts = STARTS[name](client), random.Random(name), [], 0

    async def write() -> None:
        appender, documents = client.appender("orders"), client.documents("settings")
        for number in range(COUNT):
            value = b"%d" % number
            await (appender.append(value) if "by" in name else documents.put(value, value))

    async def wait() -> None:
        nonlocal found, timeouts
        waiting = asyncio.ensure_future(anext(items))
        for _ in range(dice.randrange(30)):
            await asyncio.sleep(0)
        waiting.cancel()
        try:
            found += numbers(await waiting)
        except asyncio.CancelledError:
            timeouts += 1

    async with asyncio.timeout(PATIENCE_S):
        await wait()    # nothing is written so far: at least this one is a timeout
        writing = asyncio.create_task(write())
        while len(found) < COUNT:
            await wait()
        await writing
    assert found == list(range(COUNT)) and timeouts


async def test_a_timeout_loses_no_page_of_a_scan(client: tidemark.Client) -> None:
    keys = [b"%04d" % number for number in range(2000)]
    async with client.documents("settings") as documents:
        await documents.put_many([(key, bytes(200)) for key in keys])
        for items in (documents.scan(), documents.scan(ordered=True)):
            found, timeouts, pages = [], 0, items.pages()
            while True:
                waiting = asyncio.ensure_future(anext(pages, None))
                for _ in range(5):
                    await asyncio.sleep(0)
                waiting.cancel()
                try:
                    page = await waiting
                except asyncio.CancelledError:
                    timeouts += 1
                    continue
                if page is None:
                    break
                found += [document.key for document in page]
            assert found == keys and timeouts
        with pytest.raises(Closed):
            await anext(aiter(items))
        scan = documents.scan()
        reading = aiter(scan)
        assert (await anext(reading)).key == keys[0]
        with pytest.raises(Closed):
            await anext(scan.pages())
        assert [document.key async for document in reading] == keys[1:], "the first iteration goes on"
        ordered = documents.scan(ordered=True)
        assert len([page async for page in ordered.pages()]) > 1
