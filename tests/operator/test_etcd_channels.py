"""Channels to etcd when credentials change: calls end on the one they began on, and none is left behind."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from tidemark_operator.etcd_channels import EtcdChannels

ENDPOINTS = [("one:2379", True), ("two:2379", True)]


class Channel:
    def __init__(self, access: Access, target: str) -> None:
        self.access = access
        self.target = target
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


class Access:
    """Credentials that open channels which count how often they are closed."""

    def __init__(self) -> None:
        self.opened: list[Channel] = []

    def open(self, target: str, _secure: bool, _options: Any) -> Channel:
        self.opened.append(Channel(self, target))
        return self.opened[-1]

    @property
    def closed(self) -> list[int]:
        return [channel.closed for channel in self.opened]


def channels(access: Access) -> EtcdChannels:
    return EtcdChannels(ENDPOINTS, access)  # type: ignore[arg-type]


async def call(made: EtcdChannels, endpoint: int = 0) -> None:
    async with made.line(endpoint):
        pass


async def test_an_endpoint_has_one_channel() -> None:
    access = Access()
    made = channels(access)
    for endpoint in (0, 1, 0, 1):
        async with made.line(endpoint) as line, made.line(endpoint) as again:
            assert line is again
            assert (line.channel.target, line.access) == (ENDPOINTS[endpoint][0], access)  # type: ignore[attr-defined]
    assert access.closed == [0, 0]


async def test_a_call_ends_on_the_channel_it_began_on_which_is_closed_then() -> None:
    old, new = Access(), Access()
    made = channels(old)
    async with AsyncExitStack() as first:
        await first.enter_async_context(made.line(0))
        async with made.line(0):
            made.use(new)  # type: ignore[arg-type]
            async with made.line(0) as line:
                assert line.access is new
        assert old.closed == [0], "the first call still uses it"
    assert (old.closed, new.closed) == ([1], [0])
    await call(made)
    assert (old.closed, new.closed) == ([1], [0])


async def test_what_no_call_used_is_closed_too_and_each_once() -> None:
    past = [Access() for _ in range(5)]
    made = channels(past[0])
    for access in past[1:]:
        await call(made, 0)
        await call(made, 1)
        made.use(access)  # type: ignore[arg-type]
    await call(made)
    assert [access.closed for access in past] == [[1, 1]] * 4 + [[0]]
    await made.close()
    assert [access.closed for access in past] == [[1, 1]] * 4 + [[1]]


async def test_a_call_that_fails_holds_nothing_open() -> None:
    old = Access()
    made = channels(old)
    with pytest.raises(ConnectionError):
        async with made.line(0):
            made.use(Access())  # type: ignore[arg-type]
            raise ConnectionError
    assert old.closed == [1]


async def test_the_end_closes_everything_whatever_uses_it() -> None:
    old, new = Access(), Access()
    made = channels(old)
    async with made.line(0):
        made.use(new)  # type: ignore[arg-type]
        await call(made, 1)
        await made.close()
        assert (old.closed, new.closed) == ([1], [1])
    assert old.closed == [1]
