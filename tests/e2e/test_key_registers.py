"""Strings of a strict keyspace while owners are killed, paused and cut off: registers, says Porcupine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from tidemark import Client

from tests.kube.binaries import BuildFailed, Unavailable
from tests.registers import NEVER, Act, is_register
from tests.waiting import PATIENCE_S, until

from .cluster import Cluster
from .fault_proxy import Network
from .histories import judge, judged
from .key_histories import Caller, Histories, operations
from .test_keyspaces import busiest

OPERATIONS, OPERATIONS_MAX = 10_000, 60_000
"""Of a history; the second ends one in which the faults take for ever."""
FAULTS = ("kill", "pair", "pause", "alone")
TIMEOUTS_S = (0.5, 2.0, 5.0)
"""Of each client: the first one gives up while a fault lasts, so outcomes stay unknown."""
GROUPS, CALLERS, KEYS = 6, 3, 8
"""Callers of a group share its keys: a key has few callers at a time, or its judgement takes for ever."""


@pytest.fixture(scope="module")
def porcupine() -> Path:
    """The judge; the tests that need it are skipped, with the reason, where Go is missing or builds none."""
    try:
        return judge()
    except (Unavailable, BuildFailed) as problem:
        pytest.skip(f"no judge of histories: {problem}")


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., Cluster]) -> Cluster:
    return start_cluster(4)


# --- the judges


def put(value: str | None, call: int, ended: int = NEVER) -> Act:
    return Act(1, False, value, call, ended)


def read(value: str | None, call: int, ended: int) -> Act:
    return Act(2, True, value, call, ended)


@pytest.mark.parametrize(("history", "right"), [
    ([put("a", 1, 2), read("a", 3, 4), put(None, 5, 6), read(None, 7, 8)], True),
    ([put("a", 1, 5), read(None, 2, 3), read("a", 4, 6)], True),
    ([put("a", 1, 2), read(None, 3, 4)], False),                                        # stale
    ([put("a", 1, 5), read("a", 2, 3), read(None, 4, 6)], False),                       # back again
    ([put("a", 1, 2), put(None, 3, 4), read("a", 5, 6)], False),                        # deleted, and visible
    ([put("a", 1, 9), put("b", 2, 5), read("a", 3, 4), read("b", 6, 7), read("a", 8, 10)], True),       # sent again
    ([put("a", 1, 8), put("b", 2, 5), read("a", 3, 4), read("b", 9, 10), read("a", 11, 12)], False),    # too late
    ([put(None, 1, 9), put("b", 2, 5), read("b", 3, 4), read(None, 6, 7), read("b", 8, 10)], False),    # b is over
    ([put("a", 1), read("a", 2, 3)], True),                                             # it took effect
    ([put("a", 1), read(None, 2, 3), read("a", 4, 5)], True),                           # later
    ([put("a", 1), read(None, 2, 3)], True),                                            # never
    ([put("a", 4), read("a", 2, 3)], False),                                            # before its call
    ([put("a", 1, 2), put(None, 3), read(None, 4, 5), read("a", 6, 7)], False),         # un-deleted
])
def test_both_judges_tell_a_register_from_another(porcupine: Path, history: list[Act], right: bool):
    assert is_register(history) is right
    assert judged(porcupine, operations("k", history))["result"] == ("Ok" if right else "Illegal")


# --- a cluster


async def trouble(
    cluster: Cluster, network: Network, owners: list[str], histories: Histories, faults: list[str]
) -> None:
    """Kill an owner, let two not hear each other, pause one, cut one off from all nodes, for ever.

    `faults` gets each one that is over.  Calls go on before the next one.
    """
    async def more(calls: int) -> None:
        mark = histories.done
        await until(lambda: histories.done > mark + calls, "calls go on", 60)

    with contextlib.suppress(asyncio.CancelledError):
        for fault, first in zip(itertools.cycle(FAULTS), itertools.count()):
            node, other = owners[first % len(owners)], owners[(first + 1) % len(owners)]
            match fault:
                case "kill":
                    cluster.kill(node)
                case "pair":
                    network.cut(node, other)
                case "pause":
                    cluster.pause(node)
                case "alone":
                    network.cut(node, *(each for each in cluster.nodes if each != node), "operator")
            await more(300)
            match fault:
                case "kill":
                    await cluster.start(node)
                case "pause":
                    cluster.resume(node)
                case _:
                    network.heal()
            faults.append(fault)
            await more(500)


@pytest.mark.timeout(300)
async def test_d60_d64_d75_strings_are_registers_under_kills_pauses_and_cuts(
    cluster: Cluster, client: Client, network: Network, faultless: None, porcupine: Path
):
    """Reads wait for their repair, or two of them may go back in time."""
    name = await cluster.create_keyspace(partitions=4, readRepair="Blocking")
    owners = await busiest(client, name)
    histories, faults = Histories(), list[str]()
    async with contextlib.AsyncExitStack() as stack:
        keyspaces = [
            (await stack.enter_async_context(await cluster.connect())).keyspace(name, timeout_s=timeout_s)
            for timeout_s in TIMEOUTS_S]
        faulting = asyncio.create_task(trouble(cluster, network, owners, histories, faults))

        def enough() -> bool:
            met = faulting.done() or set(FAULTS) <= set(faults)
            return histories.done >= (OPERATIONS if met else OPERATIONS_MAX)

        try:
            await asyncio.gather(*(
                Caller(number, keyspaces[number % len(keyspaces)],
                       [f"{number // CALLERS}.{key}" for key in range(KEYS)], histories).run(enough)
                for number in range(GROUPS * CALLERS)))
        finally:
            faulting.cancel()
            await asyncio.wait_for(faulting, PATIENCE_S)
    assert set(FAULTS) <= set(faults), f"{faults} in the history"
    assert histories.unknown, "owners were killed, and every outcome is known"
    found = histories.operations()
    verdict = judged(porcupine, found)
    print(f"{verdict}, {faults}, {histories.done} calls, {histories.unknown} of them unknown")
    assert verdict["result"] == "Ok", verdict
    assert verdict["operations"] >= OPERATIONS
    # The judge has teeth on this very history: one more read, of a value that was overwritten, is found.
    key, old = next(
        (key, act) for key, acts in histories.by_key.items() for act in acts
        if not act.reads and act.value and act.ended != NEVER and any(
            not later.reads and later.ended != NEVER and later.call > act.ended for later in acts))
    end = max(act.ended for acts in histories.by_key.values() for act in acts if act.ended != NEVER)
    histories.note(key, read(old.value, end + 1, end + 2))
    assert judged(porcupine, histories.operations())["wrong"] == [key]
