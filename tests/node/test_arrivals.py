"""Waits for requests: who is given up, when, and that a caller who goes away is none of them."""

from __future__ import annotations

import asyncio

import pytest
from tidemark_node import arrivals
from tidemark_node.arrivals import Arrivals, TooLate


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(arrivals, "CROWDED_SECONDS", 0.02)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def brought(value: int) -> int:
    return value


async def test_what_arrives_is_returned_and_nothing_is_looked_at_any_more() -> None:
    waits = Arrivals(lambda: 0)
    assert [1, 2] == [await waits.wait(brought(number)) for number in (1, 2)]
    assert not waits._looks


async def test_as_many_are_given_up_as_others_wait_and_the_oldest_first() -> None:
    waiting: list[asyncio.Task[None]] = []
    waits = Arrivals(lambda: 2 - sum(one.done() or one.cancelling() > 0 for one in waiting))
    waiting += [asyncio.ensure_future(waits.wait(never())) for _ in range(4)]
    for one in waiting[:2]:
        with pytest.raises(TooLate, match="did not arrive within 0 s"):
            await asyncio.wait_for(one, 5)
    assert [True, True, False, False] == [one.done() for one in waiting]
    for one in waiting[2:]:
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    assert not waits._looks


async def test_a_caller_that_goes_away_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "SECONDS", 0.0)
    waits = Arrivals(lambda: 0)
    waiting = asyncio.ensure_future(waits.wait(never()))
    await asyncio.sleep(0)
    waits._look()       # gives it up in the moment in which its caller goes away
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not waits._looks and not waits._late
