"""The order in which nodes are asked, by what was measured of them, and when a second read is due."""

from __future__ import annotations

import pytest
from tidemark.latencies import (
    AVOIDED_S,
    MEASURED_S,
    READS,
    READS_MIN,
    SECOND_READ_MAX_S,
    SECOND_READ_MIN_S,
    SECOND_READ_S,
    SECOND_READS_SAVED,
    Latencies,
)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def latencies(clock: Clock) -> Latencies:
    return Latencies(clock)


def test_unmeasured_nodes_come_first_then_the_fastest(latencies: Latencies):
    latencies.measured("slow", 0.5)
    latencies.measured("fast", 0.1)
    for _ in range(20):
        assert ["new", "fast", "slow"] == latencies.order(["slow", "fast", "new"])
    assert {"a", "b"} == {latencies.order(["a", "b"])[0] for _ in range(64)}, "none is preferred without a reason"


def test_the_mean_follows_and_one_late_answer_does_not_make_it(latencies: Latencies):
    for _ in range(30):
        latencies.measured("steady", 0.10)
        latencies.measured("other", 0.12)
    latencies.measured("steady", 0.15)
    assert ["steady", "other"] == latencies.order(["other", "steady"])
    for _ in range(5):
        latencies.measured("steady", 0.2)
    assert ["other", "steady"] == latencies.order(["steady", "other"])


def test_a_measurement_is_forgotten_and_a_slow_node_is_tried_again(latencies: Latencies, clock: Clock):
    latencies.measured("slow", 9.0)
    clock.now += MEASURED_S - 1
    latencies.measured("fast", 0.1)
    assert ["fast", "slow"] == latencies.order(["slow", "fast"])
    clock.now += 1
    assert ["slow", "fast"] == latencies.order(["slow", "fast"])
    assert not latencies.known("slow") and latencies.known("fast")


def test_a_node_that_failed_is_last_until_it_answers_or_the_time_is_over(latencies: Latencies, clock: Clock):
    latencies.measured("a", 0.1)
    latencies.measured("b", 0.2)
    latencies.failed("a")
    assert ["b", "a"] == latencies.order(["a", "b"]) and latencies.avoided("a")
    latencies.measured("a", 0.1)
    assert ["a", "b"] == latencies.order(["a", "b"])
    latencies.failed("a")
    clock.now += AVOIDED_S
    assert ["a", "b"] == latencies.order(["a", "b"])


def test_nodes_that_left_are_forgotten(latencies: Latencies):
    latencies.measured("gone", 0.1)
    latencies.failed("gone")
    latencies.measured("here", 0.1)
    latencies.forget(["here"])
    assert not latencies.known("gone") and not latencies.avoided("gone") and latencies.known("here")


def test_a_second_read_is_due_after_the_p99_of_recent_reads(latencies: Latencies):
    for _ in range(READS_MIN - 1):
        latencies.read(0.01)
    assert SECOND_READ_S == latencies.second_read_s
    for _ in range(READS - 6):
        latencies.read(0.01)
    assert 0.01 == latencies.second_read_s
    for _ in range(6):
        latencies.read(0.3)
    for _ in range(64):
        latencies.read(0.01)
    assert 0.3 == latencies.second_read_s, "six of 512 are more than one of a hundred"
    for _ in range(READS + 64):
        latencies.read(0.0)
    assert SECOND_READ_MIN_S == latencies.second_read_s
    for _ in range(READS + 64):
        latencies.read(60.0)
    assert SECOND_READ_MAX_S == latencies.second_read_s


def test_second_reads_are_a_small_share_of_reads(latencies: Latencies):
    def taken() -> int:
        return sum(latencies.may_read_twice() for _ in range(100))

    assert SECOND_READS_SAVED == taken() and 0 == taken()
    for _ in range(41):
        latencies.read(0.01)
    assert 2 == taken()
    for _ in range(10_000):
        latencies.read(0.01)
    assert SECOND_READS_SAVED == taken()
