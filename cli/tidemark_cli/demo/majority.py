"""The paused majority: two of a group's three copies stand still, and each writer learns the truth about each append.

While nothing waits, the leader's disk alone answers LOCAL appends.  Appends that need a majority, and whatever comes
behind them, are told after a second that their outcome is unknown.  Once the majority is back every unknown outcome is
asked for, everything is read, and the two must agree (outcomes).  Stays out: exit codes (command).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle, islice

import tidemark
from tidemark import LOCAL, QUORUM, Appended, Appender, Client, Durability, LimboView
from tidemark_core.limbo import view as limbo_view
from tidemark_operator import local

from ..admin import Admin
from .acts import create_group, leader_of, within
from .outcomes import Findings, Kind, Told, judge
from .packages import Change
from .screen import Screen

GROUP, COPIES, SHARD = "payments", 3, 0
QUORUM_TIMEOUT_S = 1
WRITERS = 16  # each has a few appends under way, as the cluster remembers the last five of a writer
BEFORE, LOCALS, WAITING, BEHIND, LATE = 48, 24, 30, 10, 16
LOOK_S = 0.02
ASK_TIMEOUT_S = 20.0


class Writers:
    """Appenders that tell of timeouts and rollbacks instead of trying again, and what each append was told."""

    def __init__(self, appenders: Sequence[Appender], changes: Sequence[Change], screen: Screen) -> None:
        self.told: list[Told] = []
        self._appenders = cycle(appenders)
        self._changes = cycle(changes)
        self._screen = screen
        self._answered = 0

    def append(self, count: int, durability: Durability) -> list[asyncio.Future[Appended]]:
        """Append `count` records, each writer in its turn; the futures are for waiting only."""
        return [
            self._append(appender, change, durability)
            for appender, change in zip(islice(self._appenders, count), islice(self._changes, count), strict=True)
        ]

    def _append(self, appender: Appender, change: Change, durability: Durability) -> asyncio.Future[Appended]:
        told = Told(b"%d %s" % (len(self.told), change.value))
        self.told.append(told)
        future = appender.append_nowait(told.value, key=change.key, durability=durability)

        def answered(done: asyncio.Future[Appended]) -> None:
            if done.cancelled():
                return
            told.error = done.exception()
            if told.error is None:
                told.answer = done.result()
            self._answered += 1
            self._screen.count(self._answered)

        future.add_done_callback(answered)
        return future

    def unknown(self) -> list[Told]:
        return [told for told in self.told if told.kind is Kind.UNKNOWN]


async def run(
    service: Admin, runtime: local.Runtime, client: Client, changes: Sequence[Change], screen: Screen
) -> Findings:
    """Run the whole act on a group of its own."""
    await create_group(
        service, runtime, GROUP, shards=1, copies=COPIES, quorumTimeoutSeconds=QUORUM_TIMEOUT_S, rollback="Definite"
    )
    await client.group(GROUP)
    await _limbo_when(
        client, lambda view: view.timeout_ms == QUORUM_TIMEOUT_S * 1000, f"the leader of {GROUP} knows its settings"
    )
    screen.tell(f"LogGroup {GROUP}: one shard, {COPIES} copies; an append waits {QUORUM_TIMEOUT_S} s for a majority")
    screen.begin("told", BEFORE + LOCALS + WAITING + BEHIND + LATE)
    async with _appenders(client) as appenders:
        writers = Writers(appenders, changes, screen)
        async with within("appends are answered while a majority is paused and after it"):
            await _answered(writers.append(BEFORE, QUORUM))
            late = await _while_paused(runtime, client, writers, screen)
            await _answered(late)
    async with within("the outcome of every append is decided"):
        await asyncio.gather(*(_ask(client, told) for told in writers.unknown()))
    return await _read_back(client, writers.told, screen)


@asynccontextmanager
async def _appenders(client: Client) -> AsyncIterator[list[Appender]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                client.appender(GROUP, on_quorum_timeout="raise", on_rollback="raise", timeout_s=30)
            )
            for _ in range(WRITERS)
        ]


async def _answered(futures: Sequence[asyncio.Future[Appended]]) -> None:
    await asyncio.gather(*futures, return_exceptions=True)


async def _while_paused(
    runtime: local.Runtime, client: Client, writers: Writers, screen: Screen
) -> list[asyncio.Future[Appended]]:
    """Append while the followers stand still; return what is still under way when they go on."""
    view = await client.limbo(GROUP, SHARD)
    leader = await leader_of(client, GROUP, SHARD)
    followers = [name for name in view.members if name != leader]
    names = " and ".join(followers)
    screen.tell(f"{BEFORE} appends confirmed; SIGSTOP to {names}, which hold {len(followers)} of the {COPIES} copies "
                f"of {GROUP}: {leader} leads alone", "bold red")
    try:
        for name in followers:
            await asyncio.to_thread(runtime.pause, name)
        began = screen.seconds
        await _answered(writers.append(LOCALS, LOCAL))
        screen.tell(f"{LOCALS} LOCAL appends answered within {1000 * (screen.seconds - began):.0f} ms, by the leader's "
                    "disk alone")
        waiting = writers.append(WAITING, QUORUM) + writers.append(BEHIND, LOCAL)
        await _tell_limbo(client, screen)
        await _answered(waiting)
        screen.tell(f"{len(writers.unknown())} appends are not decided after {QUORUM_TIMEOUT_S} s: their writers were "
                    "told that the outcome is unknown", "bold yellow")
        return writers.append(LATE, QUORUM)
    finally:
        for name in followers:
            await asyncio.to_thread(runtime.resume, name)
        screen.tell(f"SIGCONT to {names}", "bold yellow")


async def _tell_limbo(client: Client, screen: Screen) -> None:
    """Say who waits for whom."""
    view = await _limbo_when(
        client, lambda view: any(entry.acked and entry.state == limbo_view.WAITING for entry in view.entries),
        "an append waits in the limbo and is on the leader's disk",
    )
    waiting = [entry for entry in view.entries if entry.state == limbo_view.WAITING]
    screen.tell(f"limbo of {GROUP}: {len(waiting)} batches wait; the oldest is on the disk of "
                f"{', '.join(waiting[0].acked)} and misses {', '.join(waiting[0].missing)}", "dim")


async def _limbo_when(client: Client, condition: Callable[[LimboView], bool], what: str) -> LimboView:
    """Look at the limbo until `condition` holds of it."""
    async with within(what):
        view = await client.limbo(GROUP, SHARD)
        while not condition(view):
            await asyncio.sleep(LOOK_S)
            view = await client.limbo(GROUP, SHARD)
    return view


async def _ask(client: Client, told: Told) -> None:
    error = told.error
    assert isinstance(error, tidemark.errors.OutcomeUnknown)
    told.outcome = await client.outcome(
        GROUP, error.shard, error.producer, error.sequence, wait=True, timeout_s=ASK_TIMEOUT_S
    )


async def _read_back(client: Client, told: Sequence[Told], screen: Screen) -> Findings:
    found = judge(told, [item async for item in client.read(GROUP, gaps=True)])
    screen.tell(f"told: {found.confirmed} confirmed, {found.local} local, {found.unknown} unknown, "
                f"{found.rolled_back} rolled back; the unknown ones asked again: {found.then_confirmed} confirmed, "
                f"{found.then_rolled_back} rolled back")
    screen.tell(f"{found.read} records read: {len(found.contradictions)} contradictions with what was told",
                "bold red" if found.contradictions else "bold green")
    for example in found.contradictions[:5]:
        screen.tell(example, "red")
    return found
