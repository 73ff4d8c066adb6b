"""Objects against a real etcd: created, unchanged, configured, detached, adopted; dry runs write nothing."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from tidemark_core.base.refusals import Reason, Refused
from tidemark_operator.detector import LoopLateness
from tidemark_operator.etcd import EtcdStore, Saved
from tidemark_operator.metadata import Keys
from tidemark_operator.mirror import Mirror
from tidemark_operator.objects import Objects

KEYS = Keys("/t")
GROUP = """
apiVersion: tidemark.dev/v1alpha1
kind: LogGroup
metadata: {{name: {name}}}
spec: {{clusterRef: {{name: dev}}, shards: {shards}, replication: {{factor: {factor}}}{more}}}
"""
CLUSTER = """
apiVersion: tidemark.dev/v1alpha1
kind: TidemarkCluster
metadata: {name: dev}
spec:
  version: 0.1.0
  metadataStore: {etcd: {endpoints: ["http://etcd:2379"]}}
  nodePools: [{name: default, replicas: 3, storage: {data: {size: 1Gi}}}]
"""


def group(name: str = "orders", shards: int = 4, factor: int = 3, more: str = "") -> str:
    return GROUP.format(name=name, shards=shards, factor=factor, more=more)


@pytest.fixture
async def objects(store: EtcdStore) -> AsyncIterator[Objects]:
    yield Objects(store, KEYS, Mirror(KEYS), "dev")


def mirror(objects: Objects) -> Mirror:
    return objects._mirror


async def test_apply_creates_then_changes_nothing_then_configures(objects: Objects) -> None:
    assert await objects.apply(group() + "---" + group("other")) == [
        "LogGroup/orders created", "LogGroup/other created"]
    assert await objects.apply(group()) == ["LogGroup/orders unchanged"]
    assert await objects.apply(group(more=", maxRecordBytes: 2048")) == ["LogGroup/orders configured"]
    stored = mirror(objects).groups
    assert stored["orders"].value.generation == 2 and stored["other"].value.generation == 1
    assert {stored["orders"].value.number, stored["other"].value.number} == {1, 2}


async def test_a_dry_run_writes_nothing(objects: Objects, store: EtcdStore) -> None:
    assert await objects.apply(group(), dry_run=True) == ["LogGroup/orders created (dry run)"]
    assert not (await store.load("/t/")).items


@pytest.mark.parametrize(("text", "fact"), [
    (group(shards=5), "spec.shards"),
    (group(factor=5), "factor"),
    (group("x", shards=0), "spec.shards"),
    (CLUSTER.replace("name: dev", "name: prod"), "metadata.name"),
])
async def test_one_bad_object_refuses_all(objects: Objects, text: str, fact: str) -> None:
    await objects.apply(group())
    refused = await objects.apply(group("fresh") + "---" + text)
    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC and fact in refused.message
    assert set(mirror(objects).groups) == {"orders"}


async def test_a_detached_group_is_adopted_by_its_like_only(objects: Objects) -> None:
    await objects.apply(group())
    assert await objects.delete("LogGroup", "orders") is None
    gone = await objects.delete("LogGroup", "orders")
    assert isinstance(gone, Refused) and gone.reason is Reason.UNKNOWN_GROUP
    refused = await objects.apply(group(shards=8))
    assert isinstance(refused, Refused) and "AdoptionMismatch" in refused.message
    assert await objects.apply(group()) == ["LogGroup/orders adopted"]
    assert mirror(objects).groups["orders"].value.number == 1


async def test_a_changed_factor_brings_its_reconfiguration(objects: Objects) -> None:
    await objects.apply(CLUSTER)
    await objects.apply(group())
    await objects.apply(group(factor=4))
    made = mirror(objects).reconfigurations["orders-expand-2"].value
    assert made.spec["expand"] == {"logGroup": "orders", "factor": 4} and made.number == 1
    manual = CLUSTER + "  reconfiguration: {onFactorChange: Manual}\n"
    assert await objects.apply(manual) == ["TidemarkCluster/dev configured"]
    await objects.apply(group(factor=3))
    assert set(mirror(objects).reconfigurations) == {"orders-expand-2"}


async def test_a_stale_mirror_is_refreshed_by_the_lost_race(objects: Objects, store: EtcdStore) -> None:
    await objects.apply(group())
    late = Objects(store, KEYS, Mirror(KEYS), "dev")  # has seen nothing yet
    assert await late.apply(group()) == ["LogGroup/orders unchanged"]
    assert await late.apply(group(more=", maxRecordBytes: 4096")) == ["LogGroup/orders configured"]
    assert await objects.apply(group(more=", maxRecordBytes: 8192")) == ["LogGroup/orders configured"]


async def test_a_deleted_object_may_come_back_at_the_next_revision(objects: Objects, store: EtcdStore) -> None:
    await objects.apply(group())
    known = mirror(objects).groups["orders"]
    deleted = await store.delete(KEYS.group("orders"), expected=known.revision)
    assert isinstance(deleted, Saved)
    assert await objects.apply(group(more=", maxRecordBytes: 2048")) == ["LogGroup/orders created"]
    assert mirror(objects).groups["orders"].revision > deleted.revision


async def test_a_text_that_takes_long_to_read_does_not_hold_the_loop(objects: Objects) -> None:
    lateness = LoopLateness()
    lateness.start()
    started = time.monotonic()
    refused = await objects.apply("a: [" + "1, " * 80_000)
    took_ms, late_ms = (time.monotonic() - started) * 1000, lateness.worst_ms_since(started)
    await lateness.stop()
    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC
    assert late_ms < took_ms / 4, f"the loop stood still for {late_ms:.0f} of {took_ms:.0f} ms"


async def test_without_etcd_it_is_metadata_unavailable(objects: Objects, etcd) -> None:
    etcd.kill()
    refused = await objects.apply(group())
    assert isinstance(refused, Refused) and refused.reason is Reason.METADATA_UNAVAILABLE


async def test_a_quorum_above_the_majority_is_refused_and_nothing_is_written(
    objects: Objects, store: EtcdStore
) -> None:
    text = group().replace("{factor: 3}", '{factor: 3, synchroQuorum: "N"}')
    refused = await objects.apply(text)
    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC
    assert "spec.replication.synchroQuorum asks for 3 of 3" in refused.message
    assert not (await store.load("/t/")).items


async def test_what_is_not_in_force_is_named_in_the_answer(objects: Objects) -> None:
    text = group(more=", retention: {seconds: 60}").replace("{factor: 3}", "{factor: 3, payloadCopies: 2}")
    assert await objects.apply(text) == [
        "LogGroup/orders created; not in force in this release: spec.replication.payloadCopies: every member keeps "
        "every payload; spec.retention: nothing is removed"
    ]
