"""Half-sent messages: no schedule hides from a node what a caller has half sent, and honest streams count little."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tidemark_core.base.refusals import Reason, Refused
from tidemark_node import half_sent
from tidemark_node.half_sent import CLOSE_LOOKS, HalfSent
from tidemark_wire.budgets import Budget
from tidemark_wire.channel import MESSAGE_BYTES_MAX, UNREAD_BYTES

MIB = 1 << 20
TOTAL, SHARE = 256 * MIB, 128 * MIB
EVE, ANN = "eve", "ann"


class Wires:
    """Connections by the name of the peer: how many bytes each received."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = defaultdict(int)
        self.closed: list[str] = []

    def received(self, peers: Sequence[str]) -> dict[str, int]:
        return {peer: self.bytes[peer] for peer in peers}

    def close(self, peer: str) -> None:
        self.closed.append(peer)


class Call:
    """A stream of a caller as gRPC shows it, with a handler that waits until it is cancelled."""

    def __init__(self, node: HalfSent, who: str, peer: str) -> None:
        self._node = node
        self._who = who
        self._peer = peer
        self._entered = asyncio.Event()
        self.leaves = True
        self.task = asyncio.ensure_future(self._serve())

    def peer(self) -> str:
        return self._peer

    @property
    def refused(self) -> Refused | None:
        return self.stream.refused

    async def _serve(self) -> None:
        self.stream = self._node.enter(self._who, self)
        self._entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if not self.leaves:
                await asyncio.Event().wait()
        finally:
            self._node.leave(self)

    async def entered(self) -> Call:
        await self._entered.wait()
        return self

    async def end(self) -> None:
        self.leaves = True
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


@pytest.fixture
def wires() -> Wires:
    return Wires()


@pytest.fixture
def node(wires: Wires, monkeypatch: pytest.MonkeyPatch) -> HalfSent:
    """The count of half-sent messages, which looks when a test says so."""
    monkeypatch.setattr(half_sent, "LOOK_SECONDS", 1e6)
    return HalfSent(Budget("bytes of half-sent messages", TOTAL), lambda budget, who: budget.refusal(who), wires)


async def opened(node: HalfSent, peer: str, who: str = EVE) -> Call:
    return await Call(node, who, peer).entered()


async def test_t12b_what_came_and_was_not_given_counts(node: HalfSent, wires: Wires) -> None:
    call = await opened(node, "a")
    wires.bytes["a"] += 10 * MIB
    node.look()
    assert not node.budget.held(EVE), "it may be whole, and wait for the loop"
    node.look()
    assert node.budget.held(EVE) == 10 * MIB
    node.given(call, 10 * MIB)
    node.look()
    assert not node.budget.held(EVE)
    wires.bytes["a"] += MIB
    node.look()
    node.look()
    assert node.budget.held(EVE) == MIB
    await call.end()
    node.look()
    assert not node.budget.used


async def test_t12b_a_caller_above_its_share_loses_its_most_silent_streams(node: HalfSent, wires: Wires) -> None:
    """Also by a second connection; a busy stream, and the streams of another caller, stay."""
    calls = [await opened(node, peer) for peer in ("a", "b", "c")]
    busy, other = await opened(node, "a"), await opened(node, "o", ANN)
    for peer, size in (("a", 62), ("b", 61), ("c", 60), ("o", 60)):
        wires.bytes[peer] += size * MIB
    node.look()
    node.given(busy, 100)
    node.look()
    assert [call.peer() for call in calls if call.refused] == ["a", "b"]
    assert busy.refused is None and other.refused is None
    assert node.budget.held(EVE) == 60 * MIB
    refused = calls[0].refused
    assert refused is not None and refused.reason is Reason.OVERLOADED and "half-sent messages" in refused.message
    assert node.budget.refused == 2
    for call in (*calls, busy, other):
        await call.end()


async def test_t12b_what_came_whole_and_waits_for_the_loop_ends_no_stream(node: HalfSent, wires: Wires) -> None:
    calls = [await opened(node, str(number)) for number in range(300)]
    for _ in range(3):
        for call in calls:
            wires.bytes[call.peer()] += MIB
        node.look()
        for call in calls:
            node.given(call, MIB)
    node.look()
    assert not any(call.refused for call in calls)
    for call in calls:
        await call.end()


async def test_t12b_headers_of_a_busy_stream_do_not_add_up(node: HalfSent, wires: Wires) -> None:
    call = await opened(node, "a")
    for _ in range(1000):
        wires.bytes["a"] += 4096 + 100
        node.look()
        node.given(call, 4096)
    wires.bytes["a"] += MIB
    node.look()
    node.look()
    assert node.budget.held(EVE) <= MIB
    await call.end()


async def test_t12b_a_caller_that_takes_no_refusal_loses_its_connection(node: HalfSent, wires: Wires) -> None:
    calls = [await opened(node, peer) for peer in ("a", "b", "c")]
    for call in calls:
        call.leaves = False
        wires.bytes[call.peer()] += 60 * MIB
    try:
        for _ in range(2 + CLOSE_LOOKS):
            assert not wires.closed
            node.look()
        assert wires.closed == [call.peer() for call in calls if call.refused] != []
    finally:
        for call in calls:
            await call.end()


async def test_t12b_a_message_has_a_bound_so_a_quiet_stream_counts_for_no_more(node: HalfSent, wires: Wires) -> None:
    call = await opened(node, "a")
    wires.bytes["a"] += 3 * MESSAGE_BYTES_MAX    # requests of other calls on the connection
    node.look()
    node.look()
    assert node.budget.held(EVE) == MESSAGE_BYTES_MAX
    node.given(call, 10)
    node.look()
    assert not node.budget.held(EVE)
    await call.end()


async def test_t12b_a_busy_stream_adds_nothing_but_headers_to_a_quiet_one(node: HalfSent, wires: Wires) -> None:
    quiet, busy = await opened(node, "a"), await opened(node, "a")
    for _ in range(100):
        wires.bytes["a"] += MIB + 100
        node.given(busy, MIB)
        node.look()
    node.look()
    assert node.budget.held(EVE) <= 100 * 100 + 2 * UNREAD_BYTES
    for call in (quiet, busy):
        await call.end()


@pytest.mark.parametrize("early", [True, False], ids=["before-they-begin", "behind-a-message"])
async def test_t12b_what_streams_brought_unasked_hides_nothing_of_others(
    node: HalfSent, wires: Wires, early: bool
) -> None:
    """A look may find it while its stream cannot hold it yet, and take it for headers."""
    quiet, others = await opened(node, "a"), []
    if not early:
        others = [await opened(node, "a") for _ in range(100)]
        for call in others:
            wires.bytes["a"] += 100
            node.given(call, 100)
        node.look()
        wires.bytes["a"] += 100 * (100 + UNREAD_BYTES)
        node.look()
        for call in others:
            node.given(call, 100)
    else:
        wires.bytes["a"] += 100 * UNREAD_BYTES
    node.given(quiet, 0)
    node.look()
    node.given(quiet, 0)
    node.look()
    if early:
        others = [await opened(node, "a") for _ in range(100)]
    for call in others:
        node.given(call, UNREAD_BYTES)
        await call.end()
    wires.bytes["a"] += 6 * MIB
    node.look()
    node.look()
    assert node.budget.held(EVE) >= 6 * MIB - UNREAD_BYTES
    await quiet.end()


class World:
    """Connections of one caller as gRPC has them: what came on each stream, in order, and what was given."""

    def __init__(self, node: HalfSent, wires: Wires, dice: random.Random) -> None:
        self._node = node
        self._wires = wires
        self._dice = dice
        self._came: dict[Call, deque[list[int]]] = {}    # size of each message, and how much of it came
        self._early: list[tuple[str, int]] = []          # of streams whose handler does not run yet

    @property
    def pending(self) -> int:
        """The bytes that gRPC holds of the streams that have handlers."""
        return sum(came for messages in self._came.values() for _, came in messages)

    @property
    def streams(self) -> int:
        return len(self._came)

    async def step(self) -> None:
        peer = self._dice.choice("ab")
        choice = self._dice.random()
        if choice < 0.1 and len(self._early) < 3:
            early = self._dice.choice((0, 100, UNREAD_BYTES))
            self._wires.bytes[peer] += early
            self._early.append((peer, early))
        elif choice < 0.2 and self._early:
            peer, early = self._early.pop()
            call = await opened(self._node, peer)
            self._came[call] = deque([[self._dice.choice((UNREAD_BYTES, 20 * MIB)), early]] if early else [])
        elif choice < 0.25 and self._came:
            call = self._dice.choice(list(self._came))
            del self._came[call]
            await call.end()
        elif choice < 0.6 and self._came:
            call, messages = self._dice.choice(list(self._came.items()))
            self._send(call, messages)
        elif choice < 0.85 and self._came:
            call, messages = self._dice.choice(list(self._came.items()))
            if messages and messages[0][0] == messages[0][1]:
                self._node.given(call, messages.popleft()[0])
        else:
            self._wires.bytes[peer] += self._dice.choice((0, 17, 3000))    # pings and requests

    def _send(self, call: Call, messages: deque[list[int]]) -> None:
        """Send more of the newest message; behind one that is whole gRPC takes no more than it does unasked."""
        if not messages or messages[-1][0] == messages[-1][1]:
            messages.append([self._dice.choice((100, 60_000, 20 * MIB)), 0])
        size, came = messages[-1]
        room = size if len(messages) == 1 else UNREAD_BYTES - sum(came for _, came in list(messages)[1:])
        more = min(size - came, room, self._dice.choice((100, MIB, 20 * MIB)))
        messages[-1][1] += max(0, more)
        self._wires.bytes[call.peer()] += max(0, more) + 14

    async def end(self) -> None:
        for call in self._came:
            await call.end()


async def test_t12b_no_schedule_hides_what_is_half_sent(node: HalfSent, wires: Wires) -> None:
    """Two streams that take turns hid it from simpler counts."""
    node.budget.total = 1 << 50
    for seed in range(60):
        dice, before = random.Random(seed), 0
        world = World(node, wires, dice)
        for _ in range(200):
            await world.step()
            if dice.random() < 0.3:
                node.look()
                fresh, before = sum(wires.bytes.values()) - before, sum(wires.bytes.values())
                assert world.pending <= node.budget.held(EVE) + fresh + UNREAD_BYTES * world.streams, f"seed {seed}"
        await world.end()
        wires.bytes.clear()


async def test_t12b_two_callers_far_above_their_shares_lose_streams_and_a_third_goes_on(
    node: HalfSent, wires: Wires
) -> None:
    """While both hold so much, no share is left for any caller; the looks go on all the same."""
    greedy = [await opened(node, peer, who) for who, peer in ((EVE, "a"), ("mallory", "b")) for _ in range(5)]
    ann = await opened(node, "c", ANN)
    wires.bytes.update(a=300 * MIB, b=300 * MIB, c=60 * MIB)
    node.look()
    node.look()
    assert ann.refused is None and node.budget.held(ANN) == 60 * MIB
    assert node.budget.used <= TOTAL
    assert {call.refused is not None for call in greedy} == {True, False}
    for call in (*greedy, ann):
        await call.end()
