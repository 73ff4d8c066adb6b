"""keyspace-sets: SADD to a Set of a million members against SADD to Sets of ten, in turns; three nodes, W = 2.

The members are put into the stores of the nodes while these are stopped, as rows that an earlier process wrote: adding
a million one by one takes longer than all else.  The nodes then read them into their trees before anything is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tidemark
from tidemark_core.base.effects import Persist, PutMany
from tidemark_core.base.ids import KEYSPACE_PLANE, Address
from tidemark_core.optimistic.cells import NEVER, Element, ElementCell, Meta, Place, Sort, encode_row
from tidemark_core.optimistic.holding.layout import ELEMENTS, METAS, key_of
from tidemark_core.optimistic.ring import range_of
from tidemark_core.optimistic.stamps import ZERO, Actor, Clock
from tidemark_node.store import open_store

from . import cluster as clusters
from .cluster import Cluster
from .context import Context
from .figures import Outcome, number, percentile, spread
from .peers import NODES
from .processes import run_worker
from .workers.keyspace_adder import member_of, small_key

SUMMARY = "adds to a Set of a million members against adds to small ones"

KEYSPACE, LARGE = "sets", "large"
SMALL_MEMBERS = 10
RATIO_MAX = 1.3
BATCH_ROWS = 10_000
STILL_WINDOW_S, STILL_CPU_SECONDS, STILL_SECONDS_MAX = 1.0, 0.1, 240.0
WRITTEN_AGO_MS = 3_600_000


def rows_of(unit_of: Mapping[bytes, int], members: Mapping[bytes, int]) -> Iterator[tuple[int, Persist]]:
    """Yield the writes that give each key so many members, each in the range that it belongs to."""
    actor = Actor("bench", bytes(8))
    clock, now_ms = Clock(actor, 0), int(time.time() * 1000) - WRITTEN_AGO_MS
    for key, count in members.items():
        unit, greatest = unit_of[key], ZERO
        for first in range(0, count, BATCH_ROWS):
            rows = []
            for member in range(first, min(first + BATCH_ROWS, count)):
                n, greatest = clock.draw(now_ms)
                row: Element = {actor: ElementCell(n, False, greatest, NEVER, b"")}
                rows.append((key_of(unit, Place(Sort.ELEMENT, key, member_of(member))), encode_row(row)))
            meta = (key_of(unit, Place(Sort.META, key)), encode_row(Meta(greatest=greatest)))
            yield unit, Persist(
                Address(KEYSPACE_PLANE, unit), (PutMany(ELEMENTS, tuple(rows)), PutMany(METAS, (meta,))))


async def _shape(addresses: list[str]) -> tidemark.KeyspaceShape:
    async with await tidemark.connect(addresses) as client:
        return await client.keyspace(KEYSPACE).describe()


def _fill(cluster: Cluster, members: Mapping[bytes, int]) -> None:
    """Put the members into every node while it is stopped: each owns every range."""
    shape = asyncio.run(_shape(cluster.addresses))
    unit_of = {key: shape.keyspace_id << 32 | range_of(key, shape.ranges) for key in members}
    nodes = {name: Path(node.data) for name, node in cluster.runtime.state.nodes.items()}
    for name in nodes:
        cluster.stop(name)
    for name, directory in nodes.items():
        store = open_store(directory, name)
        for _, persist in rows_of(unit_of, members):
            store.apply([persist])
        store.sync()
        store.close()
    for name in nodes:
        cluster.start(name)


def _still(cluster: Cluster) -> float:
    """Wait until no node computes anything, and return how long that took.  Raises TimeoutError."""
    began = time.monotonic()
    while time.monotonic() - began < STILL_SECONDS_MAX:
        used = cluster.processor_seconds()
        time.sleep(STILL_WINDOW_S)    # the processor time of a whole window is the fact
        if cluster.processor_seconds() - used < STILL_CPU_SECONDS:
            return time.monotonic() - began
    raise TimeoutError(f"the nodes are not still {STILL_SECONDS_MAX:g} s after they started")


def tell(outcome: Outcome, rounds: list[dict[str, list[float]]], members: int) -> None:
    """Add the times of adds and the ratio of their medians, round by round."""
    for name, size in (("large", members), ("small", SMALL_MEMBERS)):
        times = spread([took for one in rounds for took in one[name]])
        outcome.add(f"SADD to a Set of {number(size)} members, p50", times["p50"], "ms")
        outcome.add(f"SADD to a Set of {number(size)} members, p99", times["p99"], "ms")
    ratios = [percentile(one["large"], 50) / percentile(one["small"], 50) for one in rounds]
    outcome.add(
        "SADD, large Set against small ones, p50", percentile(ratios, 50), "x", target=RATIO_MAX, at_most=True,
        basis=f"in turns, median of {len(ratios)} rounds: {', '.join(f'{ratio:.3g}' for ratio in ratios)}")


def run(context: Context) -> Outcome:
    outcome = Outcome("keyspace-sets", "Adding to Sets of a keyspace, three owners, W = 2, one add at a time")
    members, adds = context.count(full=1_000_000, quick=50_000), context.count(full=2_000, quick=300)
    rounds: list[dict[str, list[float]]] = []
    times = context.count(full=3, quick=1)
    with clusters.running(context, NODES) as cluster:
        cluster.make_keyspace(KEYSPACE)
        context.say(f"putting {members:,} members into the stores of {NODES} nodes")
        _fill(cluster, {LARGE.encode(): members} | {small_key(each): SMALL_MEMBERS for each in range(adds)})
        read_seconds = _still(cluster)
        for at in range(1, times + 1):
            context.say(f"round {at} of {times}: {adds} adds to each")
            told: Any = run_worker(
                "keyspace_adder", addresses=cluster.addresses, keyspace=KEYSPACE, large=LARGE,
                members=members + at * adds, adds=adds, warm_adds=adds // 10)
            rounds.append(told)
    tell(outcome, rounds, members)
    outcome.add("the nodes read the members into their trees", read_seconds, "s", basis="once, after they started")
    outcome.configuration = {
        "nodes": NODES, "members of the large Set": members, "members of a small Set": SMALL_MEMBERS,
        "small Sets": adds, "rounds": times, "adds in a round": adds,
    }
    outcome.samples = {"rounds": rounds}
    return outcome
