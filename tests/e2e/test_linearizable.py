"""Documents while leaders are killed, paused and cut off: linearizable by Porcupine, and reads of one's own writes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark import Client

from tests.kube.binaries import BuildFailed, Unavailable
from tests.waiting import PATIENCE_S, until

from .cluster import Cluster
from .fault_proxy import Network
from .histories import NO_CONDITION, Operation, judge, judged, record

OPERATIONS, OPERATIONS_MAX = 10_000, 60_000
"""Of a history; the second ends one in which the faults take for ever."""
FAULTS = ("kill", "pause", "cut")
TIMEOUTS_S = (0.4, 2.0, 5.0)
"""Of each client: the first one gives up before another leader is elected, so outcomes stay unknown."""


@pytest.fixture(scope="module")
def porcupine() -> Path:
    """The judge; the tests that need it are skipped, with the reason, where Go is missing or builds none."""
    try:
        return judge()
    except (Unavailable, BuildFailed) as problem:
        pytest.skip(f"no judge of histories: {problem}")


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(3)


# --- the judge


def put(seqno: int, replaced: int, call: int, ended: int, expected: int = NO_CONDITION) -> Operation:
    return Operation(1, "k", "put", f"v{seqno}", expected, "applied", seqno, replaced, call, ended)


def read(seqno: int, call: int, ended: int) -> Operation:
    return Operation(2, "k", "read", f"v{seqno}" if seqno else "", NO_CONDITION, "read", seqno, 0, call, ended)


def unknown(value: str, call: int, expected: int = NO_CONDITION) -> Operation:
    return Operation(3, "k", "put", value, expected, "unknown", call=call)


@pytest.mark.parametrize(("history", "result"), [
    ([put(1, 0, 1, 2), read(1, 3, 4), put(5, 1, 5, 6, expected=1), read(5, 7, 8)], "Ok"),
    ([put(1, 0, 1, 5), read(0, 2, 3), read(1, 4, 6)], "Ok"),
    ([put(1, 0, 1, 2), read(0, 3, 4)], "Illegal"),                                     # stale
    ([put(1, 0, 1, 5), read(1, 2, 3), read(0, 4, 6)], "Illegal"),                      # back again
    ([put(1, 0, 1, 2), put(2, 0, 3, 4)], "Illegal"),                                   # replaced what was not there
    ([put(1, 0, 1, 2, expected=0), put(2, 0, 1, 2, expected=0)], "Illegal"),           # two winners
    ([put(1, 0, 1, 2), Operation(1, "k", "put", "x", 0, "refused", found=1, call=3, ended=4)], "Ok"),
    ([put(1, 0, 1, 2), Operation(1, "k", "put", "x", 1, "refused", found=1, call=3, ended=4)], "Illegal"),
    ([put(1, 0, 1, 2), Operation(1, "k", "delete", "", 1, "applied", 2, 1, 3, 4), read(0, 5, 6)], "Ok"),
    ([put(1, 0, 1, 2), Operation(1, "k", "delete", "", 1, "applied", 2, 1, 3, 4), read(1, 5, 6)], "Illegal"),
    ([unknown("v7", 1), read(7, 2, 3)], "Ok"),                                         # it took effect
    ([unknown("v7", 1), read(0, 2, 3), read(7, 4, 5)], "Ok"),                          # later
    ([unknown("v7", 1), read(0, 2, 3)], "Ok"),                                         # never
    ([unknown("v7", 4), read(7, 2, 3)], "Illegal"),                                    # before its call
    ([unknown("v7", 1), read(7, 2, 3), read(0, 4, 5)], "Illegal"),                     # and was taken back
    ([put(1, 0, 1, 2), unknown("v7", 3, expected=0), read(7, 4, 5)], "Illegal"),       # against its condition
    ([unknown("lost", 1), put(9, 7, 2, 3, expected=7)], "Ok"),                         # only its seqno is seen
])
def test_the_judge_tells_a_linearizable_history_from_another(
    porcupine: Path, history: list[Operation], result: str
):
    assert judged(porcupine, history)["result"] == result


# --- a cluster


async def trouble(cluster: Cluster, network: Network, group: str, history: list[Operation], faults: list[str]) -> None:
    """Kill a leader, pause one, cut one off from its followers, for ever; operations go on before the next fault.

    `faults` gets each one that is over.

    One that is cut off still hears clients, and must answer no read that another leader's writes are missing from.
    """
    async def more(operations: int) -> None:
        mark = len(history)
        await until(lambda: len(history) > mark + operations, "operations go on", 60)

    with contextlib.suppress(asyncio.CancelledError):
        for fault in itertools.cycle(FAULTS):
            shard = len(faults) % 2
            leader, *followers = await cluster.members(group, shard)
            match fault:
                case "kill":
                    cluster.kill(leader)
                case "pause":
                    cluster.pause(leader)
                case "cut":
                    network.cut(leader, *followers)

            async def replaced(shard: int = shard, leader: str = leader) -> bool:
                return await cluster.leader(group, shard) not in ("", leader)

            await until(replaced, f"another member leads shard {shard}", 60)
            await more(200)
            match fault:
                case "kill":
                    await cluster.start(leader)
                case "pause":
                    cluster.resume(leader)
                case "cut":
                    network.heal()
            faults.append(fault)
            await more(300)
            await cluster.replicated(group)


@pytest.mark.timeout(300)
async def test_u49_u53_operations_on_documents_are_linearizable_under_kills_pauses_and_cuts(
    cluster: Cluster, network: Network, faultless: None, porcupine: Path
):
    group = await cluster.create_group(shards=2, kind="Documents")
    history: list[Operation] = []
    faults: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        connected = [await stack.enter_async_context(await cluster.connect()) for _ in TIMEOUTS_S]
        for client in connected:
            await client.group(group)
        documents = [
            await stack.enter_async_context(client.documents(group, timeout_s=timeout_s))
            for client, timeout_s in zip(connected, TIMEOUTS_S, strict=True)
        ]
        faulting = asyncio.create_task(trouble(cluster, network, group, history, faults))

        def enough() -> bool:
            wanted = OPERATIONS if faulting.done() or set(FAULTS) <= set(faults) else OPERATIONS_MAX
            return len(history) >= wanted

        unknown_outcomes = await record(documents, history, clients=12, keys=30, enough=enough)
        faulting.cancel()
        await asyncio.wait_for(faulting, PATIENCE_S)
    assert set(FAULTS) <= set(faults), f"{faults} in the history"
    assert unknown_outcomes, "a leader was killed, and every outcome is known"
    verdict = judged(porcupine, history)
    print(f"{verdict}, {faults}, {unknown_outcomes} unknown outcomes")
    assert verdict["result"] == "Ok", verdict
    assert verdict["operations"] >= OPERATIONS
    # The judge has teeth on this very history: one more read, of a version that was replaced, is found.
    first = next(each for each in history if each.kind == "put" and each.outcome == "applied" and any(
        other.key == each.key and other.outcome == "applied" and other.call > each.ended for other in history))
    end = max(each.ended for each in history)
    stale = Operation(99, first.key, "read", first.value, NO_CONDITION, "read", first.seqno, 0, end + 1, end + 2)
    assert judged(porcupine, [*history, stale])["wrong"] == [first.key]


async def test_u53_a_client_reads_its_own_writes_on_any_member_across_a_leader_kill(cluster: Cluster, client: Client):
    group = await cluster.create_group(kind="Documents")
    await client.group(group)
    async with client.documents(group, timeout_s=60) as documents:
        number, stop = 0, False

        async def write_and_read() -> None:
            nonlocal number
            while not stop:
                number += 1
                written = await documents.put(b"k", b"%d" % number)
                for level in ("follower", "follower", "follower", "leader", "linearizable"):
                    found = await documents.get(b"k", level=level, min_seqno=documents.written)
                    assert found is not None
                    assert (found.seqno, found.value) == (written.seqno, b"%d" % number), level

        running = asyncio.create_task(write_and_read())
        for _ in range(3):
            mark = number
            await until(lambda mark=mark: running.done() or number > mark + 20, "it writes and reads", 60)
            leader = await cluster.leader(group)
            cluster.kill(leader)
            mark = number
            await until(lambda mark=mark: running.done() or number > mark + 20, "it goes on behind the kill", 60)
            await cluster.start(leader)
            await cluster.replicated(group)
        stop = True
        await asyncio.wait_for(running, PATIENCE_S)
