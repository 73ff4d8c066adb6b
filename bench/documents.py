"""documents: puts against three bare stores and against etcd, gets, scans, and the price of a pin; three nodes.

Puts are atomic batches with QUORUM from one client process into one shard.  Each round measures etcd, Tidemark and the
stores, one after the other.  The stores take the same rows with the same syncs and do nothing else
(`workers.document_store`), so their rate is a ceiling for every way to build a node on this machine.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from . import cluster as clusters
from . import etcd_cluster, peers
from .append_throughput import syncs_of
from .cluster import Cluster
from .context import Context
from .figures import Outcome, number, percentile, spread
from .processes import run_worker, worker

SUMMARY = "puts of documents against bare stores and etcd, gets, scans and pins"

NODES = 3
BATCH_RECORDS, VALUE_BYTES, TASKS = 100, 1024, 64
WARM_SECONDS = 1.0
LEADER, LINEARIZABLE = "leader", "linearizable"
GETS_AT_A_TIME = 64
PUTS_TARGET, CEILING_PERCENT_TARGET, ETCD_RATIO_TARGET = 20_000, 40, 1.0
GETS_TARGET, GET_MS_MAX = 5_000, 1.0
PIN_PERCENT_TARGET = 95
ALONE, PINNED, OVER, OVER_PINNED = "new keys", "new keys, pinned", "overwritten", "overwritten, pinned"


class Found:
    """The rounds so far."""

    def __init__(self) -> None:
        self.puts: list[dict[str, Any]] = []
        self.stores: list[dict[str, Any]] = []
        self.etcd: list[dict[str, Any]] = []
        self.gets: list[list[dict[str, Any]]] = []
        self.scans: list[dict[str, Any]] = []
        self.pins: dict[str, list[dict[str, Any]]] = {name: [] for name in (ALONE, PINNED, OVER, OVER_PINNED)}


def _put(cluster: Cluster, group: str, phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    cluster.make_group(group, 1, kind="Documents")
    told: list[dict[str, Any]] = run_worker(
        "putter", addresses=cluster.addresses, group=group, batch_records=BATCH_RECORDS, value_bytes=VALUE_BYTES,
        tasks=TASKS, phases=phases,
    )["phases"]
    return told


def _tidemark(context: Context, seconds: int, found: Found) -> None:
    """Measure puts, and reads of what they left, on a cluster of its own."""
    with clusters.running(context, NODES) as cluster:
        used = cluster.processor_seconds()
        told, = _put(cluster, "puts", [{"prefix": "puts", "seconds": seconds, "warm_seconds": WARM_SECONDS}])
        told["node_cpu_seconds"] = cluster.processor_seconds() - used
        told["syncs"] = {node: syncs_of(cluster.metrics(node)) for node in cluster.nodes()}
        found.puts.append(told)
        read = run_worker(
            "document_reader", addresses=cluster.addresses, group="puts", prefix="puts", count=told["documents"],
            gets=[(LEADER, 1), (LINEARIZABLE, 1), (LEADER, GETS_AT_A_TIME), (LINEARIZABLE, GETS_AT_A_TIME)],
            seconds=context.seconds(full=3, quick=1), scans=context.count(full=3, quick=2),
        )
        found.gets.append(read["gets"])
        found.scans.extend(read["scans"])


def _stores(context: Context, seconds: float, found: Found) -> None:
    """Let three stores take the rows at once, with groups of the size that the nodes just had."""
    syncs = found.puts[-1]["syncs"].values()
    mean_kib = sum(node["mean_kib"] * node["count"] for node in syncs) / sum(node["count"] for node in syncs)
    with context.scratch("stores") as directory, ExitStack() as started:
        stores = [
            started.enter_context(worker(
                "document_store", directory=str(directory / str(place)), batch_records=BATCH_RECORDS,
                value_bytes=VALUE_BYTES, group_bytes=mean_kib * 1024, seconds=seconds,
            ))
            for place in range(NODES)
        ]
        for store in stores:
            store.read()
        for store in stores:
            store.tell("go")
        told = [store.read() for store in stores]
    found.stores.append({
        "per_second": statistics.fmean(each["documents"] / each["seconds"] for each in told), "stores": told,
    })


def _etcd(context: Context, programs: dict[str, Path], seconds: int, found: Found) -> None:
    with context.scratch("etcd") as directory, etcd_cluster.running(programs["etcd"], directory) as endpoints:
        told = peers.load(
            programs["etcdload"], endpoints=endpoints, clients=1, tasks=TASKS, puts=BATCH_RECORDS,
            value_bytes=VALUE_BYTES, prefix="puts", warm_seconds=WARM_SECONDS, seconds=seconds,
        )
    found.etcd.append(told | {"per_second": len(told["times_ms"]) * BATCH_RECORDS / told["seconds"]})


def _pins(context: Context, count: int, at: int, found: Found) -> None:
    """Put as many new keys with and without a pin, the other order in the next round, then overwrite them likewise."""
    new = {ALONE: {"prefix": "alone", "count": count}, PINNED: {"prefix": "pinned", "count": count, "pinned": True}}
    order = [ALONE, PINNED] if at % 2 else [PINNED, ALONE]
    over = {OVER: {"prefix": "alone", "count": count}, OVER_PINNED: {"prefix": "alone", "count": count, "pinned": True}}
    with clusters.running(context, NODES) as cluster:
        told = _put(
            cluster, "pins",
            [{"prefix": "warm", "count": count // 2}, *(new[name] for name in order), over[OVER], over[OVER_PINNED]],
        )
    for name, one in zip([*order, OVER, OVER_PINNED], told[1:], strict=True):
        found.pins[name].append(one)


def _ratios(found: list[dict[str, Any]], against: list[dict[str, Any]]) -> list[float]:
    return [one["per_second"] / other["per_second"] for one, other in zip(found, against, strict=True)]


def _median(rounds: list[dict[str, Any]], what: str = "per_second") -> float:
    return percentile([one[what] for one in rounds], 50)


def _tell_puts(outcome: Outcome, found: Found, seconds: int) -> None:
    rates = [one["per_second"] for one in found.puts]
    outcome.add(
        f"puts over {seconds} s", percentile(rates, 50), "documents/s", target=PUTS_TARGET,
        basis=f"median of {len(rates)} rounds: {', '.join(map(number, rates))}",
    )
    of_ceiling = [100 * ratio for ratio in _ratios(found.puts, found.stores)]
    outcome.add(
        "puts, part of the ceiling", percentile(of_ceiling, 50), "%", target=CEILING_PERCENT_TARGET,
        basis="three bare stores, the same rows and syncs, after each round: "
        + ", ".join(number(one["per_second"]) for one in found.stores) + " documents/s",
    )
    times = spread([took for one in found.puts for took in one["times_ms"]])
    outcome.add("time of one batch, p50", times["p50"], "ms")
    outcome.add("time of one batch, p99", times["p99"], "ms")
    for who, what in (("client", "cpu_seconds"), ("all nodes", "node_cpu_seconds")):
        spent = [1e6 * one[what] / one["documents"] for one in found.puts]
        outcome.add(f"processor of {who}, for each put", percentile(spent, 50), "us")
    if not found.etcd:
        return
    ratios = _ratios(found.puts, found.etcd)
    outcome.add("etcd: puts", _median(found.etcd), "puts/s")
    times = spread([took for one in found.etcd for took in one["times_ms"]])
    outcome.add("etcd: time of one transaction, p50", times["p50"], "ms")
    outcome.add("etcd: time of one transaction, p99", times["p99"], "ms")
    outcome.add(
        "puts, ratio to etcd", percentile(ratios, 50), "x", target=ETCD_RATIO_TARGET,
        basis=f"median of {len(ratios)} rounds: {', '.join(map(number, ratios))}",
    )


def _tell_reads(outcome: Outcome, found: Found) -> None:
    for place, of_first in enumerate(found.gets[0]):
        rounds = [one[place] for one in found.gets]
        level, tasks = of_first["level"], of_first["tasks"]
        times = spread([took for one in rounds for took in one["times_ms"]])
        held = level == LEADER
        if tasks == 1:
            outcome.add(
                f"get ({level}), idle, p50", times["p50"], "ms", target=GET_MS_MAX if held else None, at_most=True)
            outcome.add(f"get ({level}), idle, p99", times["p99"], "ms")
            continue
        outcome.add(
            f"get ({level}), {tasks} at a time", _median(rounds), "gets/s", target=GETS_TARGET if held else None,
            basis="one client",
        )
        outcome.add(f"get ({level}), {tasks} at a time, p50", times["p50"], "ms")
    rates = [one["documents"] / one["seconds"] for one in found.scans]
    megabytes = [one["value_bytes"] / 1e6 / one["seconds"] for one in found.scans]
    outcome.add("scan of all documents", percentile(rates, 50), "documents/s")
    outcome.add("scan of all documents, values", percentile(megabytes, 50), "MB/s")


def _tell_pins(outcome: Outcome, found: Found) -> None:
    percents = [100 * ratio for ratio in _ratios(found.pins[PINNED], found.pins[ALONE])]
    outcome.add(
        "puts of new keys under a pin, part of those without", percentile(percents, 50), "%",
        target=PIN_PERCENT_TARGET, basis=f"in turns: {', '.join(map(number, percents))}",
    )
    outcome.add(
        "bytes that a pin keeps while nothing is overwritten", _median(found.pins[PINNED], "kept_bytes"), "bytes",
        target=0, at_most=True,
    )
    outcome.add("overwriting puts", _median(found.pins[OVER]), "documents/s")
    percents = [100 * ratio for ratio in _ratios(found.pins[OVER_PINNED], found.pins[OVER])]
    outcome.add(
        "overwriting puts under a pin, part of those without", percentile(percents, 50), "%",
        basis=f"each key once: {', '.join(map(number, percents))}",
    )
    kept = [one["kept_bytes"] / one["documents"] for one in found.pins[OVER_PINNED]]
    outcome.add("bytes that a pin keeps for each of these", percentile(kept, 50), "bytes")


def tell(outcome: Outcome, found: Found, seconds: int) -> None:
    """Add every figure; a round is compared with the peers of that round."""
    _tell_puts(outcome, found, seconds)
    _tell_reads(outcome, found)
    _tell_pins(outcome, found)


def run(context: Context) -> Outcome:
    outcome = Outcome("documents", "Documents: 1 KiB, batches of 100, QUORUM, 3 nodes, 1 shard")
    programs = peers.programs(context)
    seconds, store_seconds = context.count(full=10, quick=4), context.seconds(full=5, quick=2)
    rounds, pin_count = context.count(full=3, quick=1), context.count(full=100_000, quick=20_000)
    found = Found()
    for at in range(1, rounds + 1):
        if not isinstance(programs, str):
            context.say(f"round {at} of {rounds}: etcd for {seconds} s")
            _etcd(context, programs, seconds, found)
        context.say(f"round {at} of {rounds}: Tidemark for {seconds} s, and reads")
        _tidemark(context, seconds, found)
        context.say(f"round {at} of {rounds}: three stores for {store_seconds:g} s")
        _stores(context, store_seconds, found)
        context.say(f"round {at} of {rounds}: {pin_count:,} documents with and without a pin")
        _pins(context, pin_count, at, found)
    tell(outcome, found, seconds)
    if isinstance(programs, str):
        outcome.notes.append(f"etcd was not measured: {programs}")
    outcome.configuration = {
        "nodes": NODES, "shards": 1, "client processes": 1, "value bytes": VALUE_BYTES,
        "a batch": f"atomic, {BATCH_RECORDS} puts, each with a key of its own", "batches at a time": TASKS,
        "an answer of Tidemark means": "a majority has synced the batch, and the leader has folded it",
        "an answer of etcd means": f"a majority has synced the transaction of {BATCH_RECORDS} puts",
        "the ceiling": "three processes with a store each, the rows of log, headers, documents, seqnos and outcomes",
        "rounds": rounds, "seconds of puts": seconds, "seconds of the stores": store_seconds,
        "documents of a pin's phase": pin_count,
    }
    if not isinstance(programs, str):
        outcome.configuration["etcd"] = (
            f"{peers.version('etcd')}, 3 members, Go client {peers.version('etcdload')}, which calls the leader")
    for told in [*found.puts, *found.etcd, *(one for each in found.gets for one in each)]:
        told["times_ms"] = told["times_ms"][:5_000]
    for name in found.pins:
        for told in found.pins[name]:
            told.pop("times_ms", None)
    outcome.samples = {
        "puts": found.puts, "stores": found.stores, "etcd": found.etcd, "gets": found.gets, "scans": found.scans,
        "pins": found.pins,
    }
    return outcome
