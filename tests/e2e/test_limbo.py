"""A majority stands still: writers are told the truth, and readers see just what the outcomes say."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from tidemark import LOCAL, QUORUM, Client, Fate, LimboView
from tidemark.errors import QuorumTimeout
from tidemark_cli.demo.outcomes import Kind, Told
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.messages import Appended

from tests.waiting import PATIENCE_S, until

from .attempts import Attempts, compare
from .cluster import Cluster
from .test_crashes import head_of, other_leader
from .wire import append_stream, batch
from .workload import Workload, check_every_copy

TIMEOUT_S = 3
PRODUCER = b"p" * 16


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(5)


async def make_group(cluster: Cluster, client: Client, **replication: Any) -> str:
    """Create a group of four copies whose leader knows its settings, and may roll back: its opening is confirmed."""
    settings = {"quorumTimeoutSeconds": TIMEOUT_S, **replication}
    group = await cluster.create_group(factor=4, replication=settings)
    await client.group(group)
    timeout_ms = 1000 * settings["quorumTimeoutSeconds"]
    await limbo_is(client, group, lambda view: view.timeout_ms == timeout_ms and view.confirmed >= 0)
    return group


async def limbo_is(client: Client, group: str, condition: Callable[[LimboView], bool]) -> LimboView:
    """Look at the limbo until `condition` holds of it."""
    async def look() -> LimboView | None:
        view = await client.limbo(group, 0)
        return view if condition(view) else None

    return await until(look, f"the limbo of {group} is as expected")


@contextlib.contextmanager
def standing_still(cluster: Cluster, *names: str) -> Iterator[None]:
    for name in names:
        cluster.pause(name)
    try:
        yield
    finally:
        for name in names:
            cluster.resume(name)


@contextlib.asynccontextmanager
async def tailing(client: Client, group: str) -> AsyncIterator[list[Any]]:
    """Read on and on; the list grows."""
    seen: list[Any] = []

    async def tail() -> None:
        async for item in client.read(group, until=None, gaps=True):
            seen.append(item)

    task = asyncio.create_task(tail())
    try:
        yield seen
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def check_on_every_copy(cluster: Cluster, attempts: Attempts) -> None:
    """Let each member lead in turn: what became of each append, and what is read, is the same from each."""
    await cluster.replicated(attempts.group)
    fates = [told.outcome and told.outcome.fate for told in attempts.told]
    for name in await cluster.members(attempts.group):
        await cluster.transfer(attempts.group, 0, name)
        await attempts.ask()
        assert [told.outcome and told.outcome.fate for told in attempts.told] == fates, name
        await attempts.read_back()


async def test_every_outcome_is_what_readers_see(cluster: Cluster, client: Client):
    group = await make_group(cluster, client)
    leader, lively, *paused = await cluster.members(group)
    async with tailing(client, group) as tail, Attempts(client, group) as attempts:
        assert await attempts.answered(attempts.append(24, QUORUM)) == {Kind.CONFIRMED}
        with standing_still(cluster, *paused):
            first = attempts.append(12, LOCAL)
            assert await attempts.answered(first) == {Kind.LOCAL}, "nothing that must wait came before them"
            assert max(attempts.took_s[told.value] for told in first) < TIMEOUT_S
            waiting = attempts.append(12, QUORUM)
            await limbo_is(client, group, lambda view: view.length == 24)
            behind = attempts.append(6, LOCAL)
            view = await limbo_is(
                client, group,
                lambda view: view.length == 30 and all({leader, lively} == set(entry.acked) for entry in view.entries))
            assert [entry.state for entry in view.entries] == ["LOCAL"] * 12 + ["WAITING"] * 18
            assert all(set(entry.missing) == set(paused) for entry in view.entries)
            assert {told.kind for told in behind} == {Kind.WAITING}, "they stand behind appends that are not decided"
            assert await attempts.answered(waiting + behind) == {Kind.UNKNOWN}
            assert all(isinstance(told.error, QuorumTimeout) for told in waiting + behind)
            assert min(attempts.took_s[told.value] for told in waiting + behind) >= TIMEOUT_S
            assert max(attempts.took_s[told.value] for told in waiting + behind) < TIMEOUT_S + 15
            early = [await client.outcome(group, 0, told.error.producer, told.error.sequence, wait=False)
                     for told in waiting]
            assert {outcome.fate for outcome in early} == {Fate.UNKNOWN}, "no rollback is told before it is final"
            late = attempts.append(6, QUORUM)
            await limbo_is(client, group, lambda view: view.length >= 36)
        await attempts.answered(late)
        assert await attempts.answered(attempts.append(6, QUORUM)) == {Kind.CONFIRMED}
        await attempts.ask()
        assert {told.outcome.fate for told in waiting + behind} == {Fate.ROLLED_BACK}
        assert {told.outcome.fate for told in first} == {Fate.CONFIRMED}
        newest = attempts.told[-1].value
        await until(lambda: any(getattr(item, "value", b"") == newest for item in tail), "the tail is complete")
        compare(attempts.told, tail)
    found = await attempts.read_back()
    assert found.then_rolled_back >= 18
    await check_on_every_copy(cluster, attempts)
    cluster.kill(*cluster.nodes, "operator", "etcd")
    await cluster.heal()
    await check_on_every_copy(cluster, attempts)


@pytest.mark.parametrize("still", [2, 3])
@pytest.mark.parametrize("moment", ["they wait", "they were told", "they were told and left"])
async def test_leader_killed_while_a_majority_stands_still(cluster: Cluster, client: Client, moment: str, still: int):
    group = await make_group(cluster, client)
    leader, *others = await cluster.members(group)
    paused = others[-still:]
    async with Attempts(client, group) as attempts:
        assert await attempts.answered(attempts.append(12, QUORUM)) == {Kind.CONFIRMED}
        with standing_still(cluster, *paused):
            assert await attempts.answered(attempts.append(6, LOCAL)) == {Kind.LOCAL}
            waiting = attempts.append(12, QUORUM) + attempts.append(6, LOCAL)
            view = await limbo_is(client, group, lambda view: view.length == 24)
            for name in set(others) - set(paused):
                await until(lambda name=name: head_of(cluster, name, group, view.head), f"{name} has everything")
            if moment != "they wait":
                assert await attempts.answered(waiting) == {Kind.UNKNOWN}
            if moment == "they were told and left":
                await attempts.close()
            cluster.kill(leader)
        await until(lambda: other_leader(cluster, group, leader), "another member leads")
        await attempts.answered(attempts.told)
        assert Kind.FAILED not in {told.kind for told in attempts.told}
        if moment != "they were told and left":
            assert await attempts.answered(attempts.append(12, QUORUM)) == {Kind.CONFIRMED}
    await attempts.ask()
    await attempts.read_back()
    await cluster.start(leader)
    await check_on_every_copy(cluster, attempts)


async def test_what_only_a_dead_leader_had_is_read_by_nobody(cluster: Cluster, client: Client):
    group = await make_group(cluster, client)
    leader, *others = await cluster.members(group)
    async with Attempts(client, group) as attempts:
        assert await attempts.answered(attempts.append(12, QUORUM)) == {Kind.CONFIRMED}
        for name in others:
            cluster.pause(name)
        first = attempts.append(6, LOCAL)
        assert await attempts.answered(first) == {Kind.LOCAL}
        waiting = attempts.append(6, QUORUM)
        assert await attempts.answered(waiting) == {Kind.UNKNOWN}
        await limbo_is(client, group, lambda view: view.rollback_pending_from >= 0)
    cluster.kill(leader, *others)  # what was on its way to the others dies with them
    await cluster.start(*others)
    await until(lambda: other_leader(cluster, group, leader), "another member leads")
    await attempts.ask()
    assert {told.outcome.fate for told in first + waiting} == {Fate.NOT_FOUND}, "no outcome was promised to them"
    assert (await attempts.read_back()).read == 12
    await cluster.start(leader)
    await check_on_every_copy(cluster, attempts)


async def test_a_rolled_back_sequence_is_answered_so_for_ever(cluster: Cluster, client: Client):
    group = await make_group(cluster, client)
    leader, _, *paused = await cluster.members(group)
    async with append_stream(cluster.address(leader), group) as stream:
        first = await stream.append(batch(0))
        assert isinstance(first, Appended)
        with standing_still(cluster, *paused):
            for _ in range(2):  # a retry asks what became of it, and appends nothing
                assert reason_of(await stream.append(batch(1))) == Reason.QUORUM_TIMEOUT
        rolled_back = await stream.append(batch(1))
        assert reason_of(rolled_back) == Reason.ROLLED_BACK
        at = rolled_back.expected
        held = await stream.append(batch(2))
        assert (reason_of(held), held.expected) == (Reason.PRODUCER_ROLLED_BACK, at)
        second = await stream.append(batch(2), resume_after=at)
        assert isinstance(second, Appended) and second.base > at
    await cluster.replicated(group)
    for name in await cluster.members(group):
        await cluster.transfer(group, 0, name)
        await check_retries(cluster, client, group, name, first, second, at)
    cluster.kill(*cluster.nodes)
    await cluster.heal()
    await check_retries(cluster, client, group, await cluster.leader(group), first, second, at)


def reason_of(answer: Any) -> Reason:
    assert isinstance(answer, Refused), answer
    return answer.reason


async def check_retries(
    cluster: Cluster, client: Client, group: str, leader: str, first: Appended, second: Appended, at: int
) -> None:
    async with append_stream(cluster.address(leader), group) as stream:
        again = await stream.append(batch(1))
        assert (reason_of(again), again.expected) == (Reason.ROLLED_BACK, at)
        assert await stream.append(batch(0)) == first
        assert await stream.append(batch(2)) == second
    outcome = await client.outcome(group, 0, PRODUCER, 1)
    assert (outcome.fate, outcome.rolled_back_at) == (Fate.ROLLED_BACK, at)
    payloads = [item.entry.payload async for item in client.read(group).batches()]
    assert payloads == [batch(0).payload, batch(2).payload]


async def test_appenders_that_wait_and_retry_lose_and_reorder_nothing(cluster: Cluster, client: Client):
    group = await make_group(cluster, client)
    paused = (await cluster.members(group))[2:]
    async with Workload(client, group) as load:
        await load.more()
        for _ in range(2):
            with standing_still(cluster, *paused):
                view = await limbo_is(client, group, lambda view: view.rollback_pending_from >= 0)
                await limbo_is(client, group, lambda now, told=view.timeouts_total: now.timeouts_total > told)
            await load.more()
    await check_every_copy(cluster, client, load)
    rolled_back = [item async for item in client.read(group, gaps=True) if not hasattr(item, "value")]
    assert rolled_back, "the appends of the stretch were rolled back and made again"


async def apply_quorum(cluster: Cluster, client: Client, group: str, quorum: int | str, in_force: int) -> None:
    """Change the synchro quorum of a group whose leader runs on, and wait until it is in force."""
    (found,) = [item for item in await cluster.objects("LogGroup") if item["metadata"]["name"] == group]
    found["spec"]["replication"]["synchroQuorum"] = quorum
    await cluster.apply({
        "apiVersion": found["apiVersion"], "kind": "LogGroup", "metadata": {"name": group}, "spec": found["spec"],
    })
    await limbo_is(client, group, lambda view: view.quorum == in_force)


async def test_a_change_of_the_synchro_quorum_reaches_a_running_leader(cluster: Cluster, client: Client):
    group = await make_group(cluster, client, quorumTimeoutSeconds=60)
    leader, *_, paused = await cluster.members(group)
    epoch = (await cluster.shard(group))["epoch"]

    async def waits(value: bytes) -> asyncio.Task[Any]:
        """Append while one member is away, and return once that one is all that is missing."""
        task = asyncio.create_task(appender.append(value))
        await limbo_is(
            client, group, lambda view: len(view.entries) == 1 and view.entries[0].missing == (paused,))
        assert not task.done()
        assert value not in [record.value async for record in client.read(group)]
        return task

    async with client.appender(group) as appender:
        with standing_still(cluster, paused):
            await appender.append(b"three of four")
            await apply_quorum(cluster, client, group, "N", 4)
            everybody = await waits(b"all four")
        await asyncio.wait_for(everybody, PATIENCE_S)
        with standing_still(cluster, paused):
            lowered = await waits(b"all four, then three")
            await apply_quorum(cluster, client, group, 3, 3)
            await asyncio.wait_for(lowered, PATIENCE_S)
        await appender.append(b"the end")
    values = [record.value async for record in client.read(group)]
    assert values == [b"three of four", b"all four", b"all four, then three", b"the end"]
    shard = await cluster.shard(group)
    assert (shard["leader"], shard["epoch"]) == (leader, epoch), "nobody was elected for it"


async def test_the_command_line_shows_who_waits_for_whom(cluster: Cluster, client: Client):
    group = await make_group(cluster, client, quorumTimeoutSeconds=30)
    leader, lively, *paused = await cluster.members(group)

    async def shown() -> dict[str, Any]:
        ran = await cluster.cli("limbo", group, "--json")
        assert ran.code == 0, ran.err
        (shard,) = ran.document["shards"]
        return shard

    async def outcome_of(told: Told, *options: str) -> dict[str, Any]:
        error = told.error
        ran = await cluster.cli(
            "outcome", group, "0", error.producer.hex(), str(error.sequence), "--json", *options)
        assert ran.code == 0, ran.err
        return ran.document

    async with Attempts(client, group) as attempts:
        with standing_still(cluster, *paused):
            (told,) = attempts.append(1, QUORUM)
            await limbo_is(
                client, group, lambda view: any({leader, lively} == set(entry.acked) for entry in view.entries))
            shard, picture = await asyncio.gather(shown(), cluster.cli("limbo", group))  # both before the timeout
            assert set(shard["members"]) == {leader, lively, *paused}
            assert (shard["quorum"], shard["length"], shard["rollback_pending_from"]) == (3, 1, None)
            (entry,) = shard["entries"]
            assert (entry["durability"], entry["state"], entry["waiters"]) == ("QUORUM", "WAITING", 1)
            assert (set(entry["acked"]), set(entry["missing"])) == ({leader, lively}, set(paused))
            assert picture.code == 0 and all(name in picture.out for name in paused)
            assert await attempts.answered([told]) == {Kind.UNKNOWN}
            assert (await outcome_of(told))["fate"] == "UNKNOWN"
            shard = await shown()
            assert shard["rollback_pending_from"] == entry["first"]
            assert [one["state"] for one in shard["entries"]] == ["ROLLING_BACK"]
        assert (await outcome_of(told, "--wait"))["fate"] == "ROLLED_BACK"
        shard = await shown()
        assert (shard["length"], shard["rollbacks_total"], shard["timeouts_total"]) == (0, 1, 1)
    await attempts.ask()
    await attempts.read_back()
