"""What happens in the demo, in order: load, a leader killed, a node swapped, the dead one back, everything read, by
Spark too; then a group that is read while a node dies, one of documents that a SQLite view follows, a keyspace of
which two owners die, and a group of which the majority is paused.

The writer never stops: up to the next mark it runs at its pace, and where a fault takes longer it goes on at a
trickle, so that every act happens under load.  Stays out: folders and exit codes (command).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tidemark
import yaml
from tidemark import Appended, Client
from tidemark_operator import local

from ..admin import Admin
from ..failures import UNAVAILABLE, CommandFailed
from ..reconfigurations import condition, reconfiguration
from . import keys, majority, reading, spark, view
from .acts import CLUSTER, create_group, leader_of, together, within
from .ledger import Ledger, Verdict
from .outcomes import Findings
from .packages import Change
from .screen import Screen
from .writer import Writer

NODES, SHARDS, COPIES = 5, 4, 3
GROUP = "packages"
PER_SECOND, TRICKLE_PER_SECOND = 700.0, 40.0
KILL_AT, SWAP_AT, RESTART_AT = 0.2, 0.45, 0.7  # shares of the stream


class Outcome(NamedTuple):
    """Everything the demo found out."""

    verdict: Verdict
    spark: spark.Findings
    delivery: reading.Delivery
    view: view.Findings
    keys: keys.Findings
    limbo: Findings
    seconds_limbo: float
    elections: int
    swaps: int
    failover_ms: int
    killed: str
    swapped_from: str
    swapped_to: str
    etcd: str

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return (
            self.verdict.kept and self.spark.good and not self.delivery.wrong and self.view.good
            and self.keys.good and not self.limbo.contradictions
        )


class Failover:
    """Measures from a kill to the first append that a new leader of one of the dead node's shards acknowledged."""

    def __init__(self) -> None:
        self._epochs: dict[int, int] = {}
        self._killed_at = 0.0
        self.milliseconds = -1
        self.shard = -1
        self.answered: set[int] = set()
        self.done = asyncio.Event()  # every shard of the dead node takes appends again

    def begin(self, epochs: dict[int, int]) -> None:
        """The kill is next; `epochs` are those of the shards the victim leads."""
        self._epochs = epochs
        self._killed_at = time.monotonic()

    def on_ack(self, place: Appended) -> None:
        before = self._epochs.get(place.shard)
        if before is None or place.epoch <= before:
            return  # another shard, or an entry that the dead leader had still written
        if self.milliseconds < 0:
            self.milliseconds = round((time.monotonic() - self._killed_at) * 1000)
            self.shard = place.shard
        self.answered.add(place.shard)
        if self.answered >= self._epochs.keys():
            self.done.set()


async def run(directory: Path, changes: Sequence[Change], screen: Screen) -> Outcome:
    """Run the whole demo on a cluster of its own in `directory`."""
    screen.tell(f"starting {NODES} nodes, an operator and etcd as processes of this machine (loopback, insecure)")
    runtime = await local.up(directory, nodes=NODES - 1, cluster=CLUSTER)
    screen.tell(f"metadata: {runtime.etcd_origin}")
    async with Admin(runtime.admin_address) as service:
        await create_group(service, runtime, GROUP, shards=SHARDS, copies=COPIES)
        screen.tell(f"LogGroup {GROUP}: {SHARDS} shards with {COPIES} copies each, every shard has its leader")
        spare = await runtime.add_node()
        screen.tell(f"{spare} joined as a spare: it holds nothing yet")
        async with await tidemark.connect(runtime.bootstrap()) as client:
            await client.group(GROUP)
            ledger, failover = Ledger(), Failover()
            acted = await _under_load(service, runtime, client, changes, ledger, failover, spare, screen)
            killed, source, swaps = acted
            verdict, elections = await _read_back(client, ledger, screen)
            counted = await spark.run(service, runtime, GROUP, changes, directory, screen)
            delivery = await reading.run(service, runtime, client, changes, screen)
            viewed = await view.run(service, runtime, client, changes, directory, screen)
            kept = await keys.run(service, runtime, client, changes, screen)
            began = screen.seconds
            limbo = await majority.run(service, runtime, client, changes, screen)
            seconds_limbo = screen.seconds - began
    return Outcome(
        verdict, counted, delivery, viewed, kept, limbo, seconds_limbo, elections, swaps, failover.milliseconds, killed,
        source, spare, runtime.etcd_origin,
    )


async def _under_load(
    service: Admin,
    runtime: local.Runtime,
    client: Client,
    changes: Sequence[Change],
    ledger: Ledger,
    failover: Failover,
    spare: str,
    screen: Screen,
) -> tuple[str, str, int]:
    """Append everything while the acts happen; return who was killed, who was swapped out, how many moves."""
    async with client.appender(GROUP, durability=tidemark.QUORUM, timeout_s=60) as appender, _narrated(client, screen):
        def on_ack(place: Appended) -> None:
            failover.on_ack(place)
            screen.count(len(ledger))

        writer = Writer(
            appender, changes, ledger, per_second=PER_SECOND, trickle_per_second=TRICKLE_PER_SECOND, on_ack=on_ack
        )
        screen.tell(f"appending {writer.total:,} changes of Debian packages, keyed by package, each to be acknowledged "
                    f"by {COPIES // 2 + 1} of {COPIES} disks")
        screen.begin("acknowledged", writer.total)
        async with together() as tasks:
            writing = tasks.create_task(writer.run())
            try:
                writer.mark = int(SWAP_AT * writer.total)
                await writer.reached(KILL_AT)
                killed = await _kill_a_leader(runtime, client, ledger, failover, screen)
                await writer.reached(SWAP_AT)
                writer.mark = int(RESTART_AT * writer.total)
                source, swaps = await _swap(service, client, killed, spare, ledger, screen)
                await writer.reached(RESTART_AT)
                writer.mark = writer.total
                await _restart(service, runtime, killed, ledger, screen)
                await writing
            except BaseException:
                writing.cancel()
                raise
        screen.tell(f"all {len(ledger):,} changes are acknowledged")
    return killed, source, swaps


async def _kill_a_leader(
    runtime: local.Runtime, client: Client, ledger: Ledger, failover: Failover, screen: Screen
) -> str:
    victim = await leader_of(client, GROUP, 0)
    led = [shard for shard in range(SHARDS) if (at := client.routing.leader(GROUP, shard)) and at.node == victim]
    screen.tell(f"{len(ledger):,} acknowledged; SIGKILL to {victim}, which leads shard {_names(led)}", "bold red")
    failover.begin({shard: client.routing.epoch(GROUP, shard) for shard in led})
    await asyncio.to_thread(runtime.kill, victim)
    async with within(f"shards {_names(led)} take appends again after the kill of {victim}"):
        await failover.done.wait()
    screen.tell(f"{failover.milliseconds} ms after the kill, shard {failover.shard} acknowledged its first append "
                "under a new leader", "bold green")
    return victim


async def _swap(
    service: Admin, client: Client, killed: str, spare: str, ledger: Ledger, screen: Screen
) -> tuple[str, int]:
    """Replace a living node, one that leads, by the spare while records keep coming and the dead node is away."""
    shards = client.routing.map.groups[0].shards
    living = sorted({node for shard in shards for node in shard.ensemble} - {killed, spare})
    leads = {node: sum(shard.leader == node for shard in shards) for node in living}
    source = max(living, key=lambda node: (leads[node], node))
    screen.tell(f"{len(ledger):,} acknowledged; swapping {source}, which leads {leads[source]} of {SHARDS} shards, for "
                f"{spare}, with {killed} still dead and under load", "bold yellow")
    manifest = reconfiguration(
        CLUSTER, "NodeSwap", {"from": source, "to": {"node": spare}, "removeSource": "Keep"}, name=f"swap-{source}",
        more={"preconditions": {"fullyReplicated": "Ignored"}},  # it is meant to happen with a node dead
    )
    await service.apply(yaml.safe_dump(manifest))
    async with within(f"{source} is swapped for {spare}"):
        item = await _follow(service, manifest["metadata"]["name"], screen)
    succeeded, reason = condition(item, "Succeeded")
    moves = item["status"]["progress"]["completed"]
    if succeeded != "True":
        raise CommandFailed(f"the swap of {source} for {spare} ended with {reason}", "", reason=reason)
    screen.tell(f"{spare} took the place of {source} in {moves} shards; {len(ledger):,} acknowledged", "bold green")
    return source, moves


async def _follow(service: Admin, name: str, screen: Screen) -> dict[str, Any]:
    told = ""
    async for items in service.watch("Reconfiguration", name):
        for item in items:
            status = item.get("status", {})
            steps = [f"shard {move['shard']} {move['step']}" for move in status.get("activeMoves", [])]
            text = f"swap {(status.get('progress') or {}).get('summary', '')}: {', '.join(steps)}"
            if steps and text != told:
                told = text
                screen.tell(text, "dim")
            if status.get("stage") == "Finished":
                return item
    raise CommandFailed("the operator broke off while the swap ran", "", code=UNAVAILABLE, reason="UNAVAILABLE")


async def _restart(service: Admin, runtime: local.Runtime, killed: str, ledger: Ledger, screen: Screen) -> None:
    screen.tell(f"{len(ledger):,} acknowledged; starting {killed} again with its old disk", "bold yellow")
    await runtime.start(killed)
    async with within(f"every copy is in sync after {killed} came back"):
        async for items in service.watch("LogGroup", GROUP):
            if condition(items[0], "FullyReplicated")[0] == "True":
                break
    screen.tell(f"{killed} is back, every shard has its {COPIES} copies", "bold green")


async def _read_back(client: Client, ledger: Ledger, screen: Screen) -> tuple[Verdict, int]:
    screen.tell("reading everything back")
    screen.begin("read", len(ledger))
    reader = client.read(GROUP)
    records: list[tidemark.Record] = []
    async for batch in reader.batches():
        records.extend(batch.records())
        screen.count(len(records))
    verdict = ledger.judge(records)
    screen.tell(f"{verdict.read:,} records read", "bold green" if verdict.kept else "bold red")
    for example in verdict.examples:
        screen.tell(example, "red")
    return verdict, reader.epochs_begun


@asynccontextmanager
async def _narrated(client: Client, screen: Screen) -> AsyncIterator[None]:
    """Tell of every new leader while the block runs."""
    known = {shard: client.routing.leader(GROUP, shard) for shard in range(SHARDS)}

    def look() -> None:
        for shard, before in known.items():
            leader = client.routing.leader(GROUP, shard)
            if leader is not None and (before is None or leader.node != before.node):
                screen.tell(f"shard {shard}: {leader.node} leads since epoch {leader.epoch}")
                known[shard] = leader

    stop = client.routing.listen(look)
    try:
        yield
    finally:
        stop()


def _names(shards: Sequence[int]) -> str:
    return ", ".join(str(shard) for shard in shards)
