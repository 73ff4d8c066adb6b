"""Benchmark of delivery: the figures are made of what readers say, and a stall counts from the kill on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from bench import delivery, delivery_long, delivery_stalls, delivery_storage
from bench.figures import Outcome


def passed(mb_per_second: float, ratio: float, shares: tuple[float, ...], cpu: float = 1.0) -> dict[str, Any]:
    return {
        "value_bytes": 2**30, "seconds": 2**30 / 1e6 / mb_per_second, "received_over_delivered": ratio,
        "shares": dict(zip("abc", shares, strict=True)), "cpu_seconds": cpu, "node_cpu_seconds": 2 * cpu,
    }


def passes(**told: list[dict[str, Any]]) -> delivery.Passes:
    made = delivery.Passes(None, "usual")  # type: ignore[arg-type]
    made.told = told
    return made


def test_figures_say_what_passes_found() -> None:
    outcome = Outcome("delivery", "")
    even, uneven = (0.33, 0.33, 0.34), (0.3, 0.3, 0.4)
    read = passes(
        scd=[passed(800, 1.001, even), passed(900, 1.03, uneven), passed(700, 1.0, even)],
        all=[passed(300, 2.9, even)], leader=[passed(1000, 1.0, (1.0, 0.0, 0.0))],
    )
    delivery._steady(outcome, read, "usual", 3, 1600.0)
    found = {figure.what: (round(figure.value, 3), figure.met) for figure in outcome.figures}
    assert found["usual: received for each byte delivered"] == (1.03, False)
    assert found["usual: a node's share off 1/3"] == (20, False)
    assert found["usual: one reader"] == (800, True)
    assert found["usual: one reader against all send all"] == (2.667, True)
    assert found["usual: one reader against the leader alone"] == (0.8, None)
    assert found["usual: one reader against bare gRPC"] == (50, None)
    assert found["usual: processor of all nodes, all"] == (2, None)


@pytest.mark.parametrize(("rate", "cpu", "met"), [(650, 1.1, True), (500, 1.1, False), (650, 1.4, False)])
def test_a_long_log_is_held_against_a_short_one(rate: float, cpu: float, met: bool) -> None:
    outcome = Outcome("delivery", "")
    delivery_long.tell(
        outcome, passes(scd=[passed(700, 1, (0.3, 0.3, 0.4))]), passes(scd=[passed(rate, 1, (0.3, 0.3, 0.4), cpu)])
    )
    assert met == all(figure.met for figure in outcome.figures if figure.met is not None)


class FakeCluster:
    """One node, which may be killed."""

    def __init__(self) -> None:
        self.killed_at = 0.0

    def nodes(self) -> dict[str, FakeCluster]:
        return {"a": self}

    def kill(self) -> None:
        self.killed_at = time.monotonic()


class FakeTail:
    """Reports a second before the kill, around it and after it."""

    def __init__(self, cluster: FakeCluster, reports: list[tuple[float, float, int]]) -> None:
        self._cluster = cluster
        self._reports = iter(reports)

    def read(self) -> dict[str, Any]:
        after, stall_ms, delivered = next(self._reports)
        return {"at": self._cluster.killed_at + after, "stall_ms": stall_ms, "delivered": delivered}


def test_a_stall_counts_from_the_kill_until_records_flow_again() -> None:
    cluster = FakeCluster()
    late = delivery_stalls.WATCHED_SECONDS + 0.1
    tail = FakeTail(cluster, [(-1, 9_000, 5), (0.1, 40, 3), (1, 900, 0), (late, 1_400, 0), (late + 1, 1_600, 1)])
    assert delivery_stalls._stall_ms(cluster, tail, "a") == 1_600  # type: ignore[arg-type]


def test_the_disk_is_looked_at_until_it_is_still(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    now = 0.0
    monkeypatch.setattr(delivery_storage.time, "monotonic", lambda: now)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(delivery_storage.time, "sleep", sleep)

    class Disk:
        def disk_bytes(self) -> int:
            return 1_000_000 if now < 40 else 600_000 if now < 80 else 600_100

    assert delivery_storage._settled(Disk(), still_seconds=50, seconds_max=600) == 600_100  # type: ignore[arg-type]
    assert 90 <= now < 100
