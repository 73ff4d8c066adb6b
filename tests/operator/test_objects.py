"""Objects against a real etcd: created, unchanged, configured, detached, adopted; dry runs write nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import tidemark_operator.objects
from tidemark_core.base.refusals import Reason, Refused
from tidemark_operator.etcd import EtcdStore, Saved
from tidemark_operator.metadata import Keys
from tidemark_operator.mirror import Mirror
from tidemark_operator.model import group_view
from tidemark_operator.objects import Objects

from tests.waiting import PATIENCE_S, until

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


def no_zones() -> set[str]:
    return set()


@pytest.fixture
async def objects(store: EtcdStore) -> AsyncIterator[Objects]:
    yield Objects(store, KEYS, Mirror(KEYS), "dev", no_zones)


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


KEYSPACE = """
apiVersion: tidemark.dev/v1alpha1
kind: Keyspace
metadata: {name: carts}
spec: {clusterRef: {name: dev}, partitions: 128}
"""
SHARD = """
apiVersion: tidemark.dev/v1alpha1
kind: Shard
metadata: {name: orders-0000}
spec: {clusterRef: {name: dev}, logGroupRef: {name: orders}, shardID: 0}
"""


async def test_a_keyspace_is_kept_as_applied_and_its_data_is_adopted_by_one_of_its_shape(objects: Objects) -> None:
    assert await objects.apply(KEYSPACE) == ["Keyspace/carts created"]
    stored = mirror(objects).keyspaces["carts"].value
    assert (stored.number, stored.spec["partitions"], stored.spec["replication"]["replicas"]) == (1, 128, 3)
    assert await objects.apply(KEYSPACE) == ["Keyspace/carts unchanged"]
    refused = await objects.apply(KEYSPACE.replace("128", "64"))
    assert isinstance(refused, Refused) and "spec.partitions: partitions is immutable" in refused.message
    assert await objects.delete("Keyspace", "carts") is None
    gone = await objects.delete("Keyspace", "carts")
    assert isinstance(gone, Refused) and gone.reason is Reason.UNKNOWN_KEYSPACE
    assert "there is no keyspace 'carts'" in gone.message
    refused = await objects.apply(KEYSPACE.replace("128", "64"))
    assert isinstance(refused, Refused) and refused.message == (
        "Keyspace/carts: spec.partitions is 64, the kept data of that name has 128 partitions (AdoptionMismatch)")
    assert await objects.apply(KEYSPACE) == ["Keyspace/carts adopted"]
    assert mirror(objects).keyspaces["carts"].value.number == 1


async def test_a_keyspace_that_goes_with_its_data_is_not_applied_again_before_it_is_gone(objects: Objects) -> None:
    await objects.apply(KEYSPACE.replace("partitions", "deletionPolicy: Delete, partitions"))
    assert await objects.delete("Keyspace", "carts") is None
    assert mirror(objects).keyspaces["carts"].value.deleting
    refused = await objects.apply(KEYSPACE)
    assert isinstance(refused, Refused)
    assert refused.message == "Keyspace/carts: the data of that name is still being deleted"


async def test_a_keyspace_of_an_older_release_is_numbered(objects: Objects, store: EtcdStore) -> None:
    await objects.apply(KEYSPACE)
    key, known = objects._keys.object("Keyspace", "carts"), mirror(objects).keyspaces["carts"]
    older = replace(known.value, number=0)
    saved = await store.put(key, older.encode(), expected=known.revision)
    assert isinstance(saved, Saved)
    mirror(objects).learn(key, older.encode(), saved.revision)
    assert await objects.number("Keyspace", "carts")
    assert mirror(objects).keyspaces["carts"].value == replace(older, number=2), "1 is not given out again"
    assert not await objects.number("Keyspace", "carts"), "it has a number"


async def test_an_object_of_another_namespace_is_another_object_and_refused(objects: Objects) -> None:
    """A local cluster keeps objects by kind and name; namespaces are for Kubernetes."""
    await objects.apply(group())
    there = group().replace("{name: orders}", "{name: orders, namespace: a}")
    refused = await objects.apply(group("fresh") + "---" + there)
    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC
    assert "LogGroup/orders: metadata.namespace is 'a', the object of that name is in 'default'" in refused.message
    assert set(mirror(objects).groups) == {"orders"}
    twice = group("twice") + "---" + group("twice").replace("{name: twice}", "{name: twice, namespace: a}")
    refused = await objects.apply(twice)
    assert isinstance(refused, Refused) and "metadata.namespace" in refused.message
    assert set(mirror(objects).groups) == {"orders"}


async def test_a_shard_is_for_the_operator_to_write(objects: Objects, store: EtcdStore) -> None:
    refused = await objects.apply(group() + "---" + SHARD)
    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC
    assert "document 2: kind: a Shard mirrors the metadata store" in refused.message
    assert not (await store.load("/t/")).items
    refused = await objects.delete("Shard", "orders-0000")
    assert isinstance(refused, Refused) and "mirrors the metadata store" in refused.message


async def test_a_detached_group_is_adopted_by_its_like_only(objects: Objects) -> None:
    await objects.apply(group())
    assert await objects.delete("LogGroup", "orders") is None
    gone = await objects.delete("LogGroup", "orders")
    assert isinstance(gone, Refused) and gone.reason is Reason.UNKNOWN_GROUP
    refused = await objects.apply(group(shards=8))
    assert isinstance(refused, Refused) and "AdoptionMismatch" in refused.message
    there = group().replace("{name: orders}", "{name: orders, namespace: a}")
    assert await objects.apply(there) == ["LogGroup/orders adopted"], "the object of the other namespace is gone"
    assert isinstance(await objects.apply(group()), Refused), "and this one is there"
    held = mirror(objects).groups["orders"].value
    assert (held.number, held.manifest["metadata"]["namespace"]) == (1, "a")


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
    late = Objects(store, KEYS, Mirror(KEYS), "dev", no_zones)  # has seen nothing yet
    assert await late.apply(group()) == ["LogGroup/orders unchanged"]
    assert await late.apply(group(more=", maxRecordBytes: 4096")) == ["LogGroup/orders configured"]
    assert await objects.apply(group(more=", maxRecordBytes: 8192")) == ["LogGroup/orders configured"]


async def test_a_deleted_object_may_come_back_at_the_next_revision(objects: Objects, store: EtcdStore) -> None:
    await objects.apply(group())
    known = mirror(objects).groups["orders"]
    deleted = await store.delete(KEYS.object("LogGroup", "orders"), expected=known.revision)
    assert isinstance(deleted, Saved)
    assert await objects.apply(group(more=", maxRecordBytes: 2048")) == ["LogGroup/orders created"]
    assert mirror(objects).groups["orders"].revision > deleted.revision


async def test_a_text_that_takes_long_to_read_does_not_hold_the_loop(
    objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is read in another thread: the test lets it end only after the loop went on meanwhile."""
    load, reading, went_on = tidemark_operator.objects.load_manifests, threading.Event(), threading.Event()

    def slow(text: str, source: str) -> Any:
        reading.set()
        assert went_on.wait(PATIENCE_S)
        return load(text, source)

    monkeypatch.setattr(tidemark_operator.objects, "load_manifests", slow)
    asked = asyncio.create_task(objects.apply("a: [" + "1, " * 80))
    await until(reading.is_set)
    went_on.set()
    refused = await asked
    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC


async def test_without_etcd_it_is_metadata_unavailable(etcd) -> None:
    etcd.kill()
    store = EtcdStore([etcd.url], timeout_ms=500)
    refused = await Objects(store, KEYS, Mirror(KEYS), "dev", no_zones).apply(group())
    await store.close()
    assert isinstance(refused, Refused) and refused.reason is Reason.METADATA_UNAVAILABLE


def replicated(more: str) -> str:
    return group().replace("{factor: 3}", f"{{factor: 3, {more}}}")


@pytest.mark.parametrize(("more", "field"), [
    ("synchroQuorum: N+1", "synchroQuorum must not exceed factor"),
    ("synchroQuorum: 'max(N, 4)'", "synchroQuorum must not exceed factor"),
    ("synchroQuorum: 1", "synchroQuorum must be a majority"),
    ("synchroQuorum: min(N)", "two or more terms"),
    ("synchroZones: 4", "synchroZones must not exceed factor"),
    ("synchroZones: 0", "spec.replication.synchroZones"),
    ("quorumTimeoutSeconds: 0", "spec.replication.quorumTimeoutSeconds"),
    ("rollback: Never", "spec.replication.rollback"),
])
async def test_a_quorum_that_cannot_be_is_refused_and_nothing_is_written(
    objects: Objects, store: EtcdStore, more: str, field: str
) -> None:
    refused = await objects.apply(replicated(more))
    assert isinstance(refused, Refused) and refused.reason is Reason.INVALID_SPEC and field in refused.message
    assert not (await store.load("/t/")).items


async def test_what_decides_when_a_record_is_confirmed_is_applied_and_may_change(objects: Objects) -> None:
    asked = "synchroQuorum: 'max(N-1, 3)', synchroZones: 1, quorumTimeoutSeconds: 2, rollback: Definite"
    assert await objects.apply(replicated(asked)) == ["LogGroup/orders created"]
    seen = group_view(mirror(objects).groups["orders"].value)
    assert (seen.synchro_quorum, seen.synchro_zones, seen.quorum_timeout_ms, seen.rollback) == (
        "max(N-1, 3)", 1, 2_000, "Definite")
    assert await objects.apply(replicated("synchroQuorum: 3")) == ["LogGroup/orders configured"]
    seen = group_view(mirror(objects).groups["orders"].value)
    assert (seen.synchro_quorum, seen.synchro_zones, seen.quorum_timeout_ms) == (3, 0, 5_000)


@pytest.mark.parametrize(("asked", "kept_ms", "kept_bytes", "hard"), [
    ("{}", 604_800_000, 0, 0), ("{seconds: 60}", 60_000, 0, 0), ("{seconds: 0, size: 1.5Gi}", 0, 3 << 29, 0),
    ("{size: 99999999999999999999T}", 604_800_000, 2**63 - 1, 0), ("{maxSize: 2Gi}", 604_800_000, 0, 2 << 30),
    ("{size: 1Gi, maxSize: 1024Mi}", 604_800_000, 1 << 30, 1 << 30),
])
async def test_what_is_kept_is_applied(
    objects: Objects, asked: str, kept_ms: int, kept_bytes: int, hard: int
) -> None:
    assert await objects.apply(group(more=f", retention: {asked}")) == ["LogGroup/orders created"]
    seen = group_view(mirror(objects).groups["orders"].value)
    assert (seen.retention_ms, seen.retention_bytes, seen.retention_bytes_hard) == (kept_ms, kept_bytes, hard)


@pytest.mark.parametrize(("asked", "seen"), [
    ("", (0, 0)), (", documents: {}", (604_800_000, 10 << 30)),
    (", documents: {tombstoneSeconds: 60, maxPinnedBytes: 2Gi}", (60_000, 2 << 30)),
])
async def test_bounds_of_documents_are_applied(objects: Objects, asked: str, seen: tuple[int, int]) -> None:
    assert await objects.apply(group(more=f", kind: Documents{asked}")) == ["LogGroup/orders created"]
    view = group_view(mirror(objects).groups["orders"].value)
    assert (view.tombstone_ms, view.pinned_bytes_max) == seen


async def test_an_unsafe_rollback_is_warned_of_when_it_is_new(objects: Objects) -> None:
    warning = (
        "; warning: spec.replication.rollback: Immediate is unsafe under failover: a record told rolled back may be "
        "read later after all")
    text = replicated("rollback: Immediate")
    assert await objects.apply(text, dry_run=True) == [f"LogGroup/orders created (dry run){warning}"]
    assert await objects.apply(text) == [f"LogGroup/orders created{warning}"]
    assert await objects.apply(text) == ["LogGroup/orders unchanged"]
    assert await objects.apply(replicated("rollback: Definite")) == ["LogGroup/orders configured"]


@pytest.mark.parametrize(("zones", "warned"), [("", True), ("aa", True), ("ab", False), ("abc", False)])
async def test_more_zones_than_nodes_stand_in_are_warned_of_and_applied(
    store: EtcdStore, zones: str, warned: bool
) -> None:
    objects = Objects(store, KEYS, Mirror(KEYS), "dev", lambda: set(zones))
    (done,) = await objects.apply(replicated("synchroZones: 2"))
    told = done.removeprefix("LogGroup/orders created")
    assert bool(told) is warned
    if warned:
        assert f"synchroZones: asks for 2 zones, the nodes that are up stand in {len(set(zones))}" in told
    assert mirror(objects).groups["orders"].value.spec["replication"]["synchroZones"] == 2


async def test_what_is_not_in_force_is_named_in_the_answer(objects: Objects) -> None:
    assert await objects.apply(group(more=", delivery: {mode: AllSendAll}")) == [
        "LogGroup/orders created; not in force in this release: spec.delivery: each reader chooses how it "
        "is served"
    ]


async def test_payload_copies_are_in_force(objects: Objects) -> None:
    text = group(more=", retention: {seconds: 60}").replace("{factor: 3}", "{factor: 3, payloadCopies: 2}")
    assert await objects.apply(text) == ["LogGroup/orders created"]


async def test_all_that_is_to_be_said_is_said_of_its_object(objects: Objects) -> None:
    text = group(more=", retention: {seconds: 60}").replace("{factor: 3}", "{factor: 3, rollback: Immediate}")
    noted, quiet = await objects.apply(text + "---" + group("quiet"))
    assert "LogGroup/orders created; warning: spec.rep" in noted
    assert quiet == "LogGroup/quiet created"
