"""jetstream: Tidemark against a three-node JetStream R3 stream on this machine, in turns within one run.

JetStream is measured with its Go client, in its two ways to publish: message by message, and fast ingest, where one
acknowledgement stands for many messages.  The promises differ by default: JetStream answers when a majority has the
record in memory and syncs every two minutes; Tidemark answers when a majority has it on disk.  With `sync_interval:
always` JetStream promises the same.
"""

from __future__ import annotations

from pathlib import Path

from . import append_throughput, nats_cluster, peers
from . import cluster as clusters
from .context import Context
from .figures import Outcome, number, percentile

SUMMARY = "append throughput against NATS JetStream R3, where Go can build it"

RATIO_TARGET = 1.5
WARM_SECONDS = 1.5
IN_FLIGHT = 4000
WAYS = {"async": 1, "fast": 4}
"""Connections by way to publish: as many as help it on two cores."""
NAMES = {"async": "PublishAsync", "fast": "fast ingest"}
SYNCS = {"2m": "synced every 2 minutes", "always": "synced before the answer"}

Rates = dict[tuple[str, str], list[float]]
"""Records per second of each round, by sync and way."""


def _publish(context: Context, programs: dict[str, Path], sync: str, seconds: float, rates: Rates) -> None:
    with context.scratch("nats") as directory, nats_cluster.running(programs["nats-server"], directory, sync) as ports:
        for way, connections in WAYS.items():
            found = peers.load(
                programs["natsload"], ports=ports, way=way, record_bytes=append_throughput.RECORD_BYTES,
                publishers=connections, in_flight=IN_FLIGHT, warm_seconds=WARM_SECONDS, seconds=seconds,
            )
            rates.setdefault((sync, way), []).append(found["records_per_second"])


def tell(outcome: Outcome, ours: list[float], theirs: Rates) -> None:
    """Add the rates and, round by round, our rate against the faster way of JetStream under each sync."""
    outcome.add("Tidemark, fsync on a majority", percentile(ours, 50), "records/s")
    for (sync, way), rates in theirs.items():
        outcome.add(f"JetStream R3, {SYNCS[sync]}, {NAMES[way]}", percentile(rates, 50), "records/s")
    for sync, said in SYNCS.items():
        ratios = [
            mine / max(theirs[sync, way][at] for way in WAYS) for at, mine in enumerate(ours)
        ]
        outcome.add(
            f"ratio to JetStream's faster way, {said}", percentile(ratios, 50), "x",
            target=RATIO_TARGET if sync == "2m" else None,
            basis=f"median of {len(ratios)} rounds: {', '.join(map(number, ratios))}",
        )


def run(context: Context) -> Outcome:
    outcome = Outcome("jetstream", "Append throughput against NATS JetStream R3 on the same machine, 1 KiB records")
    programs = peers.programs(context)
    if isinstance(programs, str):
        outcome.absent = programs
        return outcome
    seconds, rounds = context.count(full=5, quick=2), context.count(full=3, quick=1)
    how = append_throughput.CONFIGURATIONS[0]
    ours: list[float] = []
    theirs: Rates = {}
    for at in range(1, rounds + 1):
        context.say(f"round {at} of {rounds}: JetStream in {len(SYNCS) * len(WAYS)} forms, Tidemark, {seconds} s each")
        for sync in SYNCS:
            _publish(context, programs, sync, seconds, theirs)
        with clusters.running(context) as cluster:
            each = append_throughput.append(cluster, how, seconds)["each_second"]
        ours.append(sum(each) / len(each))
    tell(outcome, ours, theirs)
    outcome.configuration = {
        "Tidemark": f"{how.name}, {how.tasks} append_batch calls at a time, one client process",
        "JetStream": f"nats-server {peers.version('nats-server')}, nats.go {peers.version('natsload')}, 3 servers, "
        "file storage, clients connect to the leader, "
        + ", ".join(f"{NAMES[way]}: {n} x {IN_FLIGHT:,} in flight" for way, n in WAYS.items()),
        "rounds": rounds, "seconds each": seconds,
    }
    outcome.samples = {
        "tidemark_records_per_second": ours,
        "jetstream_records_per_second": {f"{sync} {way}": rates for (sync, way), rates in theirs.items()},
    }
    return outcome
