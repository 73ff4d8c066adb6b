"""jetstream: Tidemark against a three-node JetStream R3 stream on this machine, in turns within one run.

JetStream's publisher gets what helps it most from Python: one raw socket to the server that leads the stream, 50 PUBs
in each write.  The promises differ: JetStream answers when a majority has the record in memory and syncs to disk
every two minutes; Tidemark answers when a majority has it on disk.
"""

from __future__ import annotations

from typing import Any

from . import append_throughput, nats_cluster
from . import cluster as clusters
from .context import Context
from .figures import Outcome, number, spread
from .processes import run_worker

SUMMARY = "append throughput against NATS JetStream R3, if nats-server is installed"

RATIO_TARGET = 1.5
STREAM = {"name": "bench", "subjects": ["bench"], "num_replicas": 3, "storage": "file", "max_bytes": 8 << 30}
WRITE_MESSAGES, IN_FLIGHT = 50, 4000
WARM_SECONDS = 1.0


def _publish(context: Context, seconds: int) -> dict[str, Any]:
    with context.scratch("nats") as directory, nats_cluster.running(directory) as ports:
        return run_worker(
            "nats_publisher", ports=ports, stream=STREAM, record_bytes=append_throughput.RECORD_BYTES,
            write_messages=WRITE_MESSAGES, in_flight=IN_FLIGHT, warm_seconds=WARM_SECONDS, seconds=seconds,
        )


def run(context: Context) -> Outcome:
    outcome = Outcome("jetstream", "Append throughput against NATS JetStream R3 on the same machine, 1 KiB records")
    if not nats_cluster.installed():
        outcome.absent = "nats-server is not on PATH; on Debian and Ubuntu: apt-get install nats-server"
        return outcome
    seconds, rounds = context.count(full=10, quick=3), context.count(full=3, quick=1)
    how = append_throughput.CONFIGURATIONS[0]
    ours: list[float] = []
    theirs: list[float] = []
    for number_of_round in range(1, rounds + 1):
        context.say(f"round {number_of_round} of {rounds}: JetStream, then Tidemark, {seconds} s each")
        theirs.append(_publish(context, seconds)["records_per_second"])
        with clusters.running(context) as cluster:
            each = append_throughput.append(cluster, how, seconds)["each_second"]
        ours.append(sum(each) / len(each))
    ratios = [mine / peer for mine, peer in zip(ours, theirs, strict=True)]
    outcome.add("Tidemark, fsync on a majority", spread(ours)["p50"], "records/s")
    outcome.add("JetStream R3, no fsync", spread(theirs)["p50"], "records/s")
    outcome.add(
        "ratio", spread(ratios)["p50"], "x", target=RATIO_TARGET,
        basis=f"median of {rounds} rounds: {', '.join(number(ratio) for ratio in ratios)}",
    )
    outcome.configuration = {
        "Tidemark": f"{how.name}, {how.tasks} append_batch calls at a time, one client process",
        "JetStream": f"3 servers, file storage, raw socket, {WRITE_MESSAGES} PUBs a write, {IN_FLIGHT} in flight",
        "rounds": rounds, "seconds each": seconds,
    }
    outcome.samples = {"tidemark_records_per_second": ours, "jetstream_records_per_second": theirs}
    return outcome
