"""What an apply is answered besides: every field that changes nothing is named, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tidemark_operator.notes import notes, unsupported
from tidemark_operator.resources import load_resource
from tidemark_operator.resources.kinds import KINDS

from tests.resource_examples import changed

RELEASE = "not in force in this release: "
LOCAL = "not in force in a local cluster: "
NEW_POOL = {"name": "default", "replicas": 3, "storage": {"data": {"size": "1Gi"}}}


def told(kind: str, changes: dict[str, Any]) -> list[str]:
    return notes(load_resource(changed(kind, changes), "test"), zones=())


@pytest.mark.parametrize(("kind", "changes"), [
    ("TidemarkCluster", {}),
    ("TidemarkCluster", {"spec.security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"}}),
    ("TidemarkCluster", {"spec.reconfiguration.approval": "Required", "spec.failureDetection.failureThreshold": 2}),
    ("LogGroup", {}),
    ("LogGroup", {"spec.retention.seconds": 60, "spec.placement.nodePools": ["default"]}),
    ("Reconfiguration", {}),
])
def test_what_is_in_force_needs_no_word(kind: str, changes: dict[str, Any]) -> None:
    assert told(kind, changes) == []


@pytest.mark.parametrize(("kind", "changes", "note"), [
    ("TidemarkCluster", {"spec.update.maxUnavailable": 1}, f"{LOCAL}spec.update"),
    ("TidemarkCluster", {"spec.logging.level": "debug", "spec.image": "x"}, f"{LOCAL}spec.image, spec.logging"),
    ("TidemarkCluster", {"spec.nodePools": [{**NEW_POOL, "config": {}}]}, f"{LOCAL}spec.nodePools[0].config"),
    ("TidemarkCluster", {"spec.security.networkPolicy": "None"}, f"{LOCAL}spec.security.networkPolicy"),
    ("TidemarkCluster", {"spec.security.tls": {"mode": "CertManager", "issuerRef": {"name": "ca"}}},
     f"{LOCAL}spec.security.tls.mode"),
    ("TidemarkCluster", {"spec.persistentVolumeClaimRetentionPolicy": {}},
     f"{LOCAL}spec.persistentVolumeClaimRetentionPolicy"),
    ("TidemarkCluster", {"spec.reconfiguration.onNodeJoin": "Rebalance"},
     f"{RELEASE}spec.reconfiguration.onNodeJoin: a node that joins stays empty until a Reconfiguration fills it"),
    ("LogGroup", {"metadata.annotations": {"tidemark.dev/pause-reconciliation": "true"}},
     f"{LOCAL}metadata.annotations[tidemark.dev/pause-reconciliation]"),
    ("LogGroup", {"spec.delivery": {}}, f"{RELEASE}spec.delivery: each reader chooses how it is served"),
    ("LogGroup", {"spec.compression": "Zstd"}, f"{RELEASE}spec.compression: each writer chooses its own"),
    ("LogGroup", {"spec.placement.leaders": {"preference": "Zones", "zones": ["a"]}},
     f"{RELEASE}spec.placement.leaders: leaderships are spread over all zones"),
    ("LogGroup", {"spec.shardProjection": "None"}, f"{RELEASE}spec.shardProjection: every shard is shown"),
    ("LogGroup", {"spec.access": {}}, "not in force without TLS: spec.access"),
    ("Keyspace", {"spec.access": {}}, "not in force without TLS: spec.access"),
    ("Keyspace", {"spec.maxClockSkewMilliseconds": 10},
     f"{RELEASE}spec.maxClockSkewMilliseconds: one clock stamps the writes of all keyspaces of a node, 500 ms are "
     "its bound"),
])
def test_what_changes_nothing_is_named(kind: str, changes: dict[str, Any], note: str) -> None:
    assert told(kind, changes) == [note]


def test_what_is_not_served_is_named_by_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "Keyspace", replace(KINDS["Keyspace"], served=False))
    assert unsupported(load_resource(changed("Keyspace", {}), "test")) == [
        "NotSupported: this release does not serve keyspaces: it checks and stores the object, and does nothing else"]


@pytest.mark.parametrize(("kind", "changes"), [
    ("Keyspace", {}),
    ("LogGroup", {}), ("LogGroup", {"spec.kind": "Documents"}), ("TidemarkCluster", {}), ("Reconfiguration", {}),
])
def test_what_is_served_is_not_called_unsupported(kind: str, changes: dict[str, Any]) -> None:
    assert unsupported(load_resource(changed(kind, changes), "test")) == []


def test_what_is_in_force_of_a_keyspace_is_not_named() -> None:
    assert told("Keyspace", {
        "spec.hintedHandoff": {"windowSeconds": 60}, "spec.antiEntropy": {"intervalSeconds": 60},
        "spec.tombstoneGraceSeconds": 7_200, "spec.maxClockSkewMilliseconds": 500}) == []


def test_every_kind_of_note_has_its_own_line() -> None:
    found = told("LogGroup", {
        "metadata.annotations": {"tidemark.dev/restartedAt": "2026-01-01T00:00:00Z"},
        "spec.compression": "None", "spec.delivery": {}, "spec.replication.rollback": "Immediate"})
    assert [line.partition(": ")[0] for line in found] == [
        "not in force in this release", "not in force in a local cluster", "warning"]
    assert found[0].endswith("spec.delivery: each reader chooses how it is served; spec.compression: each writer "
                             "chooses its own")


def test_access_lists_are_in_force_with_tls() -> None:
    resource = load_resource(changed("LogGroup", {"spec.access": {"readers": ["*"]}}), "test")
    assert notes(resource, zones=(), tls=True) == []
