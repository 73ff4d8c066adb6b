"""A node whose clock disagrees with the others is named in the status, in an event and in no other condition (C5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_views import group, nodes, record, shard, world
from tidemark_core.replication.clocks import AGREES_MS
from tidemark_operator.clock_skew import DAY_MS, HOUR_MS, clock_skews, skew_text
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.metadata import StoredObject
from tidemark_operator.resources.events import EventReason
from tidemark_operator.status.cluster import ClusterFacts, cluster_status

ONE = group(shards=1)
SHARD = shard(0, "n1", "n2", "n3", of=ONE)


def status(*ahead_ms: int | None, down: str = "") -> dict[str, Any]:
    known = nodes(3)
    for name, ahead in zip(known, ahead_ms, strict=True):
        known[name] = replace(known[name], clock_ahead_ms=ahead, up=name != down)
    manifest = {"metadata": {"name": "dev"}, "spec": {
        "version": "1", "nodePools": [{"name": "default", "replicas": 3}],
        "metadataStore": {"etcd": {"endpoints": ["http://e:2379"]}}}}
    made = cluster_status(ClusterFacts(
        stored=StoredObject(manifest, "uid", "2026-01-01T00:00:00Z"), world=world(SHARD, nodes=known, groups=[ONE]),
        records={SHARD.shard: record("n1", "n2", "n3", leader="n1")}, key_prefix="/t", endpoints=1, last_node_id=3,
        version="1"))
    return ConditionMemory(lambda: "2026-01-01T00:00:00Z").stamp("TidemarkCluster", "dev", 1, made)


def skew_of(made: dict[str, Any]) -> tuple[str, str, str] | None:
    found = [each for each in made["conditions"] if each["type"] == "ClockSkew"]
    return (found[0]["status"], found[0]["reason"], found[0]["message"]) if found else None


def test_c5_the_cluster_names_the_node_whose_clock_disagrees() -> None:
    calm, told = status(10, 2_000, -50_000), status(10, 8 * DAY_MS, 0)
    assert skew_of(calm) is None
    assert skew_of(told) == (
        "True", "ClocksDisagree", "Against the median of the nodes' clocks n2 is 8 days ahead.")
    assert [each["status"] for each in told["conditions"] if each["type"] == "Ready"] == ["True"]
    [event] = [each for each in occurrences("TidemarkCluster", calm, told) if each.reason is EventReason.CLOCK_SKEW]
    assert "n2 is 8 days ahead" in event.note
    assert EventReason.CLOCK_SKEW not in {each.reason for each in occurrences("TidemarkCluster", told, told)}


@pytest.mark.parametrize("made", [status(None, None, 8 * DAY_MS), status(0, 1, 8 * DAY_MS, down="n3")])
def test_c5_what_is_not_known_disagrees_with_nothing(made: dict[str, Any]) -> None:
    assert skew_of(made) is None


@given(st.lists(st.integers(-1_000, 1_000), min_size=3, max_size=7), st.integers(-9 * DAY_MS, 9 * DAY_MS), st.data())
def test_c5_the_median_is_the_measure(right: list[int], shift: int, data: st.DataObject) -> None:
    """A minority that is wrong is named, and no other; our own clock does not matter."""
    wrong = data.draw(st.integers(0, (len(right) - 1) // 2))
    off = [data.draw(st.sampled_from([-DAY_MS, 3 * HOUR_MS, 8 * DAY_MS])) for _ in range(wrong)]
    clocks = {f"n{index}": shift + ahead for index, ahead in enumerate([*off, *right[wrong:]])}
    assert {f"n{index}" for index in range(wrong)} == set(clock_skews(clocks))
    assert all(abs(found) > AGREES_MS for found in clock_skews(clocks).values())


@pytest.mark.parametrize(("skew_ms", "text"), [
    (61_000, "1 min ahead"), (-7 * 60_000, "7 min behind"), (3 * HOUR_MS, "3 h ahead"), (-8 * DAY_MS, "8 days behind"),
])
def test_a_skew_is_told_in_whole_units(skew_ms: int, text: str) -> None:
    assert skew_text(skew_ms) == text
