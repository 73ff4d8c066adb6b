"""Benchmarks make figures and verdicts of what they measured: throughput, JetStream, etcd, read, core."""

from __future__ import annotations

from typing import Any

import psutil
import pytest

from bench import append_throughput, core_step, delivery, etcd_peer, jetstream, plain_read
from bench.disk_limit import DiskLimit
from bench.figures import Outcome


def figures(outcome: Outcome) -> dict[str, tuple[float, bool | None]]:
    return {figure.what: (round(figure.value, 3), figure.met) for figure in outcome.figures}


def round_of(records: list[float], written_bytes: float, limit: float) -> append_throughput.Round:
    said: dict[str, Any] = {"each_second": records, "times_ms": [1.0, 2.0], "processor_share": {}, "syncs": {},
                            "machine": {"busy": 90.0}}
    return append_throughput.Round(said, written_bytes, 1000.0, DiskLimit(limit, 5.9, 100, 1536.0))


def test_throughput_is_held_against_the_disk_of_its_own_round() -> None:
    outcome = Outcome("throughput", "")
    seconds = [100_000.0] * 10 + [50_000.0] * 20
    rounds = [round_of(seconds, 6500, 128), round_of(seconds, 6400, 64), round_of(seconds, 6600, 256)]
    append_throughput.tell(outcome, append_throughput.CONFIGURATIONS[0], rounds, held=True)
    name = append_throughput.CONFIGURATIONS[0].name
    found = figures(outcome)
    assert found[f"{name}: over the first 10 s"] == (100_000, True)
    assert found[f"{name}: over 30 s"] == (68.267, True)
    assert found[f"{name}: part of the disk's limit"] == (53.333, False), "the median of 53, 107 and 27 %"
    assert found[f"{name}: written to the disk for each byte"] == (6.5, None)


def test_only_the_first_configuration_has_targets() -> None:
    outcome = Outcome("throughput", "")
    append_throughput.tell(outcome, append_throughput.CONFIGURATIONS[1], [round_of([1.0], 6.0, 1.0)], held=False)
    assert {figure.met for figure in outcome.figures} == {None}


def test_jetstream_is_held_against_its_faster_way_of_each_round() -> None:
    outcome = Outcome("jetstream", "")
    theirs = {
        ("2m", "async"): [50.0, 20.0, 50.0], ("2m", "fast"): [40.0, 100.0, 80.0],
        ("always", "async"): [10.0, 10.0, 10.0], ("always", "fast"): [20.0, 5.0, 20.0],
    }
    jetstream.tell(outcome, [100.0, 100.0, 100.0], theirs)
    found = figures(outcome)
    assert found["ratio to JetStream's faster way, synced every 2 minutes"] == (1.25, False), "2, 1 and 1.25"
    assert found["ratio to JetStream's faster way, synced before the answer"] == (5, None), "5, 10 and 5"
    assert found["JetStream R3, synced every 2 minutes, fast ingest"] == (80, None)


def test_jetstream_is_measured_in_every_form_that_the_figures_name() -> None:
    assert set(jetstream.NAMES) == set(jetstream.WAYS)
    assert set(jetstream.SYNCS) == {"2m", "always"}


def side(packed: list[float], single: list[float], many: list[float]) -> etcd_peer.Side:
    made = etcd_peer.Side()
    for name, rates in zip((etcd_peer.PACKED, etcd_peer.SINGLE, etcd_peer.MANY), (packed, single, many), strict=True):
        for rate in rates:
            made.add(name, rate, [1000 / rate])
    return made


@pytest.mark.parametrize(("packed", "met"), [([90.0, 300.0, 240.0], True), ([90.0, 80.0, 300.0], False)])
def test_etcd_is_held_against_round_by_round(packed: list[float], met: bool) -> None:
    outcome = Outcome("etcd", "")
    etcd_peer.tell(
        outcome, side(packed, [500.0] * 3, [3000.0] * 3), side([100.0] * 3, [1000.0] * 3, [4000.0, 3000.0, 2000.0]))
    found = figures(outcome)
    assert found[f"{etcd_peer.PACKED}: ratio"][1] is met
    assert found[f"{etcd_peer.SINGLE}: ratio"] == (0.5, None)
    assert found[f"{etcd_peer.MANY}: ratio"] == (1, None)
    assert found[f"{etcd_peer.SINGLE}: etcd, time of one call, p50"] == (1, None)


def test_both_sides_of_etcd_carry_as_many_records_at_a_time() -> None:
    packed = etcd_peer.LOADS[etcd_peer.PACKED]
    assert packed["puts"] == etcd_peer.HOW.batch_records == 100
    assert packed["clients"] * packed["tasks"] == etcd_peer.HOW.tasks
    assert etcd_peer.HOW.shards == 1


def test_read_tells_both_ways_and_the_limit() -> None:
    outcome = Outcome("read", "")
    passes = delivery.Passes(None, "usual")  # type: ignore[arg-type]
    one = {"value_bytes": 2**30, "records": 2**20, "cpu_seconds": 1.0, "node_cpu_seconds": 1.5}
    passes.told = {
        "leader": [one | {"seconds": 2**30 / 1e6 / rate} for rate in (800, 900, 400)],
        "scd": [one | {"seconds": 2**30 / 1e6 / 600}],
    }
    plain_read.tell(outcome, passes, [1600.0, 1000.0, 2000.0])
    found = figures(outcome)
    assert found["values read"] == (800, True)
    assert found["values read, part of a bare gRPC stream"] == (50, None)
    assert found["from all members by single copy delivery"] == (600, None)
    assert found["processor of all nodes, by single copy delivery"] == (1.5, None)


@pytest.mark.parametrize(("yardstick", "met"), [(50.0, True), (20.0, False)])
def test_the_core_is_held_against_the_yardstick_of_its_machine(yardstick: float, met: bool) -> None:
    outcome = Outcome("core", "")
    core_step.tell(outcome, 1, 3.0, [(10_000.0, 60_000.0)] * 3, [yardstick] * 4)
    found = figures(outcome)
    assert found["1 append a turn: processor time of one append, three replicas"] == (100, None)
    assert found["1 append a turn: that time in yardsticks"] == (100 / yardstick, met)


def test_the_yardstick_takes_time_and_grows_with_nothing() -> None:
    assert core_step.yardstick_us(20) > 0
    assert set(core_step.GUARDS) == {1, 64}
    assert all(0 < guard < 10 for guard in core_step.GUARDS.values())


def test_the_processors_are_busy_by_parts_of_the_whole() -> None:
    spent = {name: 0.0 for name in psutil.cpu_times()._fields} | {
        "user": 3.0, "system": 4.0, "softirq": 1.0, "idle": 1.0, "iowait": 0.5, "steal": 0.5}
    found = append_throughput._busy([spent[name] for name in psutil.cpu_times()._fields])
    assert found == pytest.approx({"busy": 85, "kernel": 50, "waiting for the disk": 5, "taken by the host": 5})
