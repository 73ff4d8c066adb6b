"""Reading manifests: what is accepted, what is filled in, what is refused and how the refusal names it."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tidemark_operator.detector import DetectorSettings
from tidemark_operator.resources import (
    InvalidManifest,
    Keyspace,
    LogGroup,
    Reconfiguration,
    Shard,
    ShardStatus,
    TidemarkCluster,
    check_update,
    load_manifests,
    load_resource,
    quantity_bytes,
)
from tidemark_operator.resources.loggroup import Ack, Compression, GroupKind
from tidemark_operator.resources.manifests import DEPTH_MAX, MANIFEST_BYTES_MAX
from tidemark_operator.resources.reconfiguration import ReconfigurationType

EXAMPLES = Path(__file__).parents[2] / "examples"


def cluster(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "TidemarkCluster",
        "metadata": {"name": "prod"},
        "spec": {
            "version": "0.4.2",
            "metadataStore": {"etcd": {"endpoints": ["http://etcd:2379"]}},
            "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "10Gi"}}}],
            **spec,
        },
    }


def group(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "LogGroup",
        "metadata": {"name": "orders"},
        "spec": {"clusterRef": {"name": "prod"}, "shards": 4, **spec},
    }


def act(kind: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Reconfiguration",
        "metadata": {"name": "act"},
        "spec": {"clusterRef": {"name": "prod"}, "type": kind, **spec},
    }


def refusal(data: object) -> InvalidManifest:
    with pytest.raises(InvalidManifest) as caught:
        load_resource(data, "here.yaml")
    return caught.value


def refusal_of_text(text: str) -> InvalidManifest:
    with pytest.raises(InvalidManifest) as caught:
        load_manifests(text, "here.yaml")
    return caught.value


# --- what is accepted


def test_minimal_cluster_gets_the_documented_defaults() -> None:
    loaded = load_resource(cluster(), "here.yaml")
    assert isinstance(loaded, TidemarkCluster)
    assert (loaded.name, loaded.namespace) == ("prod", "default")
    assert loaded.spec.replicas == 3
    detection = loaded.spec.failure_detection
    assert (
        detection.probe_interval_milliseconds,
        detection.probe_timeout_milliseconds,
        detection.failure_threshold,
    ) == astuple(DetectorSettings()) == (500, 1000, 3)
    assert loaded.spec.reconfiguration.throttle.bytes_per_second_per_node == "100Mi"


def test_minimal_log_group_gets_the_documented_defaults() -> None:
    loaded = load_resource(group(), "here.yaml")
    assert isinstance(loaded, LogGroup)
    spec = loaded.spec
    assert (spec.kind, spec.shards, spec.compression) == (GroupKind.LOG, 4, Compression.ZSTD)
    assert (spec.replication.factor, spec.replication.copies, spec.replication.leader_copies) == (3, 3, 3)
    assert (spec.replication.sync_leaders, spec.replication.default_ack) == (1, Ack.QUORUM)
    assert spec.max_record_bytes == 1_048_576


@pytest.mark.parametrize(
    "path", sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("spark/*.yaml")]), ids=lambda path: path.name)
def test_every_example_loads_and_names_the_dev_cluster(path: Path) -> None:
    for resource in load_manifests(path.read_text(encoding="utf-8"), path.name):
        if isinstance(resource, TidemarkCluster):
            assert resource.name == "dev"
        else:
            assert isinstance(resource, Keyspace | LogGroup | Reconfiguration)
            assert resource.spec.cluster_ref.name == "dev"


def test_the_shard_is_shown_as_it_is_and_refused_in_a_manifest() -> None:
    text = (EXAMPLES / "kubernetes" / "shard.yaml").read_text(encoding="utf-8")
    assert "kind: a Shard mirrors the metadata store" in str(refusal_of_text(text))
    document = yaml.safe_load(text)
    assert isinstance(load_resource(document, "shard.yaml"), Shard)
    ShardStatus.model_validate_json(json.dumps(document["status"]))


@pytest.mark.parametrize("path", sorted((EXAMPLES / "kubernetes").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_for_kubernetes_load(path: Path) -> None:
    if path.name != "shard.yaml":
        assert load_manifests(path.read_text(encoding="utf-8"), path.name)


def test_every_reconfiguration_type_has_an_example() -> None:
    shown = {
        resource.spec.type
        for path in EXAMPLES.glob("*.yaml")
        for resource in load_manifests(path.read_text(encoding="utf-8"), path.name)
        if isinstance(resource, Reconfiguration)
    }
    assert set(ReconfigurationType) == shown


@pytest.mark.parametrize("schedule", ["0 1 * * 0", "*/15 0-6,22-23 1,15 1-12/3 1-5", "59 23 31 12 7", "5 09 * * *"])
def test_schedules_of_cron_are_accepted(schedule: str) -> None:
    written = cluster(maintenanceWindows=[{"name": "a", "schedule": schedule, "durationSeconds": 3600}])
    loaded = load_resource(written, "here")
    assert isinstance(loaded, TidemarkCluster)
    assert [window.schedule for window in loaded.spec.maintenance_windows] == [schedule]


def test_what_was_left_to_the_defaults_is_told_from_what_was_written() -> None:
    written = group(replication={"factor": 3})
    loaded = load_resource(written, "here.yaml")
    assert loaded.as_written() == written
    assert loaded.manifest()["spec"]["replication"]["syncLeaders"] == 1


def test_manifest_written_back_loads_as_the_same_resource() -> None:
    for data in (
        cluster(maintenanceWindows=[{"name": "night", "schedule": "0 1 * * 0", "durationSeconds": 3600}]),
        group(replication={"synchroQuorum": "N/2+1"}),
        act("NodeSwap", nodeSwap={"from": "prod-1", "to": {"spread": {}}}),
    ):
        loaded = load_resource(data, "here.yaml")
        assert loaded == load_resource(loaded.manifest(), "again")


def test_documents_come_in_order_and_empty_ones_are_passed_over() -> None:
    text = "---\n".join(["", yaml.safe_dump(cluster()), "# only a comment\n", yaml.safe_dump(group())])
    assert [item.kind for item in load_manifests(text, "here.yaml")] == ["TidemarkCluster", "LogGroup"]


def test_json_and_lists_load_like_yaml() -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [cluster(), group()]}
    tabbed = json.dumps(listed, indent="\t")
    assert load_manifests(yaml.safe_dump(listed), "a") == load_manifests(tabbed, "b")
    assert len(load_manifests(tabbed, "b")) == 2


def test_what_the_api_server_adds_is_accepted() -> None:
    data = group()
    data["metadata"] |= {
        "namespace": "data",
        "uid": "1b0d3c8e-7a7e-4f0b-8f14-0a9f0d1c2b3a",
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": "2026-11-20T10:15:00Z",
        "finalizers": ["tidemark.dev/data-deletion"],
        "ownerReferences": [{"kind": "TidemarkCluster", "name": "prod"}],
        "managedFields": [{"manager": "kubectl"}],
    }
    data["status"] = {"observedGeneration": 1, "written": "by a newer operator"}
    loaded = load_resource(data, "here.yaml")
    assert loaded.namespace == "data"
    assert loaded.status is None


def test_null_means_unset_as_it_does_for_the_api_server() -> None:
    assert load_resource(group(replication={"factor": None, "payloadCopies": None}), "a") == load_resource(
        group(replication={}), "a"
    )


def test_unquoted_times_stay_strings() -> None:
    text = yaml.safe_dump(group()).replace("name: orders", "name: orders\n  creationTimestamp: 2026-11-20T10:15:00Z")
    assert load_manifests(text, "a")[0].metadata.creation_timestamp == "2026-11-20T10:15:00Z"


def test_resources_cannot_be_changed_in_place() -> None:
    loaded = load_resource(group(), "here.yaml")
    with pytest.raises(ValidationError, match="frozen"):
        loaded.spec.shards = 5  # type: ignore[attr-defined]


# --- what is refused, field by field


@pytest.mark.parametrize(
    ("data", "field_path", "message"),
    [
        (group(shards="4"), "spec.shards", "valid integer, not '4'"),
        (group(shards=4.0), "spec.shards", "valid integer"),
        (group(shards=True), "spec.shards", "valid integer"),
        (group(shards=0), "spec.shards", "greater than or equal to 1"),
        (group(shards=4097, shardProjection="None"), "spec.shards", "less than or equal to 4096"),
        (group(shard=4), "spec.shard", "not a field"),
        (group(max_record_bytes=2048), "spec.max_record_bytes", "not a field"),
        (group(maxRecordBytes=1023), "spec.maxRecordBytes", "1024"),
        (group(maxRecordBytes=4_194_305), "spec.maxRecordBytes", "4194304"),
        (group(compression="zstd"), "spec.compression", "'Zstd'"),
        (group(compression=False), "spec.compression", "in quotes"),
        (group(kind="Table"), "spec.kind", "'Log'"),
        (group(replication={"factor": 10}), "spec.replication.factor", "less than or equal to 9"),
        (group(replication={"defaultAck": "All"}), "spec.replication.defaultAck", "'Quorum'"),
        (group(replication={"synchroQuorum": True}), "spec.replication.synchroQuorum", "formula"),
        (group(replication={"synchroQuorum": "N/0"}), "spec.replication.synchroQuorum", "division by zero"),
        (group(replication={"synchroQuorum": "__import__"}), "spec.replication.synchroQuorum", "unexpected"),
        (group(replication={"synchroQuorum": "6/(N-1)"}), "spec.replication.synchroQuorum", "where N is 1"),
        (group(replication={"synchroQuorum": "min(N)"}), "spec.replication.synchroQuorum", "two or more"),
        (group(replication={"synchroQuorum": "(" * 20}), "spec.replication.synchroQuorum", "16 deep"),
        (group(replication={"synchroQuorum": "N" * 65}), "spec.replication.synchroQuorum", "64 characters"),
        (group(replication={"synchroQuorum": ""}), "spec.replication.synchroQuorum", "expected"),
        (group(replication={"synchroQuorum": "N+1"}), "spec.replication.synchroQuorum", "exceed factor"),
        (group(replication={"synchroQuorum": "max(N, 4)"}), "spec.replication.synchroQuorum", "exceed factor"),
        (group(replication={"synchroZones": 8}), "spec.replication.synchroZones", "7"),
        (group(replication={"synchroZones": "2"}), "spec.replication.synchroZones", "integer"),
        (group(replication={"synchroZones": True}), "spec.replication.synchroZones", "integer"),
        (group(replication={"factor": 2, "synchroZones": 3}), "spec.replication.synchroZones", "exceed factor"),
        (group(clusterRef={"name": "Prod"}), "spec.clusterRef.name", "pattern"),
        (group(clusterRef={}), "spec.clusterRef.name", "is required"),
        (group(placement={"nodePools": ["a", "a"]}), "spec.placement.nodePools", "'a' stands here twice"),
        (cluster(nodePools=[]), "spec.nodePools", "at least 1 item"),
        (cluster(failureDetection={"probeTimeoutMilliseconds": 49}),
         "spec.failureDetection.probeTimeoutMilliseconds", "50"),
        (cluster(failureDetection={"probeIntervalSeconds": 2}),
         "spec.failureDetection.probeIntervalSeconds", "not a field"),
        (cluster(nodePools=[{"name": "a", "replicas": 1, "storage": {"data": {"size": "10 GB"}}}]),
         "spec.nodePools[0].storage.data.size", "pattern"),
        (cluster(nodePools=[{"name": "a", "replicas": 1, "storage": {"data": {"size": "1Gi"}}}] * 2),
         "spec.nodePools", "'a' stands here twice"),
        (cluster(metadataStore={"etcd": {"endpoints": ["etcd:2379"]}}),
         "spec.metadataStore.etcd.endpoints[0]", "pattern"),
        *(
            (cluster(maintenanceWindows=[{"name": "a", "schedule": schedule, "durationSeconds": 3600}]),
             "spec.maintenanceWindows[0].schedule", "pattern")
            for schedule in (
                "0 1 * *", "0 1 * * * *", "60 1 * * *", "0 24 * * *", "0 0 0 * *", "0 0 * 13 *", "0 0 * * 8",
                "0 1 * * sun", "@daily", "*/0 * * * *")
        ),
        (cluster(maintenanceWindows=[
            {"name": "a", "schedule": "0 1 * * 0", "durationSeconds": 3600, "timeZone": "Europe/"}]),
         "spec.maintenanceWindows[0].timeZone", "pattern"),
        *(
            (cluster(maintenanceWindows=[
                {"name": "a", "schedule": "0 1 * * 0", "durationSeconds": 3600, "timeZone": zone}]),
             "spec.maintenanceWindows[0].timeZone", "name of a time zone")
            for zone in ("Europe/Nowhere", "x" * 64, "Europe")
        ),
        *(
            (cluster(maintenanceWindows=[{"name": "a", "schedule": schedule, "durationSeconds": 3600}]),
             "spec.maintenanceWindows[0].schedule", "goes backwards")
            for schedule in ("30-10 1 * * *", "0 1 * * 0,5-3", "0 1,9-8/2 * * *")
        ),
        (act("Shrink"), "spec.type", "'NodeSwap'"),
        (act("NodeSwap", nodeSwap={"from": "prod-1"}), "spec.nodeSwap.to", "is required"),
        (act("NodeSwap", nodeSwap={"from_": "prod-1", "to": {"spread": {}}}), "spec.nodeSwap.from", "is required"),
        (act("Expand", expand={"logGroup": "orders", "factor": 1}), "spec.expand.factor", "2"),
        (act("Rebalance", rebalance={}, suspend="yes"), "spec.suspend", "valid boolean"),
        (act("Rebalance", rebalance={}, activeDeadlineSeconds=59), "spec.activeDeadlineSeconds", "60"),
        (act("Rebalance", rebalance={}, throttle={"bytesPerSecondPerNode": 100}),
         "spec.throttle.bytesPerSecondPerNode", "valid string"),
        ({**group(), "metadata": {"name": ""}}, "metadata.name", "at least 1 character"),
        ({**group(), "metadata": {"generateName": "x-"}}, "metadata.name", "is required"),
        ({**group(), "metadata": {"name": "a", "lables": {}}}, "metadata.lables", "not a field"),
        ({**group(), "apiVersion": "tidemark.dev/v1"}, "apiVersion", "must be tidemark.dev/v1alpha1"),
        ({**group(), "kind": "Topic"}, "kind",
         "must be one of TidemarkCluster, LogGroup, Keyspace, Shard, Reconfiguration"),
        ({**group(), "kind": ["LogGroup"]}, "kind", "must be one of"),
        ({**group(), "spec": None}, "spec", "is required"),
        ({**group(), "spec": []}, "spec", ""),
    ],
)
def test_refusal_names_the_field(data: object, field_path: str, message: str) -> None:
    refused = refusal(data)
    assert refused.field_path == field_path
    assert message in refused.message
    assert str(refused).startswith(f"here.yaml, document 1: {field_path}: ")


def test_every_problem_of_a_document_is_told_at_once() -> None:
    refused = refusal(group(shards=0, maxRecordBytes=1, colour="blue"))
    assert {"spec.shards", "spec.maxRecordBytes", "spec.colour"} == {item.field_path for item in refused.problems}
    assert all(item.field_path in str(refused) for item in refused.problems)


def test_long_values_are_cut_in_messages() -> None:
    assert len(str(refusal(group(compression="x" * 10_000)))) < 400
    windows = [{"name": "a", "schedule": "x" * 64, "durationSeconds": 3600}]
    assert len(str(refusal(cluster(maintenanceWindows=windows)))) < 400


# --- texts that are no manifests


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no object in it"),
        ("# nothing\n---\n", "no object in it"),
        ("just words", "an object is expected"),
        ("[1, 2]", "an object is expected"),
        ("a: [1", "line 1"),
        ("a: &x 1\nb: *x", "anchors and aliases"),
        ("a: *x", "anchors and aliases"),
        ("a: 1\na: 2", "line 2, column 1: the key 'a' stands here twice"),
        ('{"a": 1, "a": 2}', "the key 'a' stands in one object twice"),
        ("1: one", "the key '1' is not a string"),
        ("on: one", "the key 'on' is not a string"),
        ("<<: {a: 1}", "the key '<<' is not a string"),
        ("? [a]\n: 1", "is not a string"),
        ("a: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("[" * 100_000, "nested deeper"),
        ('{"a":' * 40_000, "nested deeper"),
        ("a: \x00", "unacceptable character"),
        ("a: 1" + "0" * 5000, "4300 digits"),
        ('{"a": 1' + "0" * 5000 + "}", "4300 digits"),
        ("apiVersion: v1\nkind: List", "items: a list is expected"),
    ],
)
def test_text_is_refused_with_a_typed_error(text: str, message: str) -> None:
    assert message in str(refusal_of_text(text))


@pytest.mark.parametrize("value", [".nan", ".inf", "!!binary aGk=", "!!set {a: null}"])
def test_values_that_json_cannot_say_are_refused(value: str) -> None:
    assert "is no JSON value" in refusal_of_text(yaml.safe_dump(group()) + f"extra: {value}\n").message


def test_depth_is_bounded_for_data_as_well() -> None:
    nested: Any = "x"
    for _ in range(DEPTH_MAX + 1):
        nested = [nested]
    assert f"nested deeper than {DEPTH_MAX}" in refusal({**group(), "spec": nested}).message


def test_size_is_bounded_before_anything_is_parsed() -> None:
    refused = refusal_of_text("#" * (MANIFEST_BYTES_MAX + 1))
    assert refused.document == 0
    assert str(MANIFEST_BYTES_MAX) in refused.message


def test_one_wrong_document_refuses_the_text_and_is_named_by_its_number() -> None:
    text = "---\n".join(map(yaml.safe_dump, [cluster(), group(), group(shards=0)]))
    refused = refusal_of_text(text)
    assert (refused.document, refused.field_path) == (3, "spec.shards")


def test_one_object_cannot_stand_in_a_text_twice() -> None:
    refused = refusal_of_text("---\n".join(map(yaml.safe_dump, [group(), group(shards=8)])))
    assert (refused.document, refused.field_path) == (2, "metadata.name")
    assert "LogGroup default/orders stands in document 1 already" in refused.message


# --- updates


def test_update_may_change_what_is_not_fixed() -> None:
    old = load_resource(group(), "old")
    check_update(old, load_resource(group(replication={"factor": 4}, maxRecordBytes=2048), "new"), "new")


def test_update_is_refused_with_every_fixed_field_that_it_changes() -> None:
    old = load_resource(group(), "old")
    new = load_resource(group(shards=8, kind="Documents", replication={"factor": 5}), "new")
    with pytest.raises(InvalidManifest) as caught:
        check_update(old, new, "new.yaml", 2)
    assert {"spec.kind", "spec.shards", "spec.replication.factor"} == {
        problem.field_path for problem in caught.value.problems
    }
    assert str(caught.value).startswith("new.yaml, document 2: ")


def test_update_follows_node_pools_by_name() -> None:
    def pools(*names_and_sizes: tuple[str, str]) -> dict[str, Any]:
        return cluster(
            nodePools=[
                {"name": name, "replicas": 1, "storage": {"data": {"size": size}}} for name, size in names_and_sizes
            ]
        )

    old = load_resource(pools(("a", "10Gi"), ("b", "1Ti")), "old")
    check_update(old, load_resource(pools(("b", "1024Gi"), ("a", "11Gi"), ("c", "1Gi")), "new"), "new")
    with pytest.raises(InvalidManifest) as caught:
        check_update(old, load_resource(pools(("b", "1000Gi"), ("a", "10Gi")), "new"), "new")
    assert caught.value.field_path == "spec.nodePools[0].storage.data.size"


def test_update_of_another_object_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="is no update of"):
        check_update(load_resource(group(), "a"), load_resource(cluster(), "b"), "b")


# --- quantities


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("0", 0),
        ("17", 17),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("100Mi", 100 * 2**20),
        ("2T", 2 * 10**12),
    ],
)
def test_quantities_are_bytes(quantity: str, expected: int) -> None:
    assert expected == quantity_bytes(quantity)
