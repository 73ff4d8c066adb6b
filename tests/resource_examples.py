"""Objects of every kind that the rules accept and refuse, for whoever judges them: models, CEL, a real API server.

A new rule needs an example here that breaks it, and all of them try it.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

HEADER = {"apiVersion": "tidemark.dev/v1alpha1", "metadata": {"name": "it"}}


EXAMPLES = Path(__file__).parents[1] / "examples"


def manifests(folder: Path) -> list[dict[str, Any]]:
    """Every object in the manifests below a folder."""
    return [
        document
        for path in sorted(folder.rglob("*.yaml")) for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))]


def example_documents() -> list[dict[str, Any]]:
    """Every object of our kinds in the manifests below examples/, without its status."""
    found = [document for document in manifests(EXAMPLES) if document["apiVersion"] == HEADER["apiVersion"]]
    return [{key: value for key, value in document.items() if key != "status"} for document in found]


def base(kind: str) -> dict[str, Any]:
    """A valid object of the kind; a Reconfiguration is a NodeSwap."""
    spec: dict[str, Any] = {
        "TidemarkCluster": {
            "version": "0.4.2",
            "metadataStore": {"etcd": {"endpoints": ["http://a:2379", "http://b:2379"]}},
            "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "10Gi"}}}],
        },
        "LogGroup": {"clusterRef": {"name": "prod"}, "shards": 4},
        "Keyspace": {"clusterRef": {"name": "prod"}},
        "Shard": {
            "clusterRef": {"name": "prod"},
            "logGroupRef": {"name": "orders"},
            "shardID": 7,
            "hashRange": {"min": 469_762_048, "max": 536_870_911},
        },
        "Reconfiguration": {
            "clusterRef": {"name": "prod"},
            "type": "NodeSwap",
            "nodeSwap": {"from": "prod-1", "to": {"node": "prod-2"}},
        },
    }[kind]
    return copy.deepcopy({**HEADER, "kind": kind, "spec": spec})


def changed(kind: str, changes: dict[str, Any]) -> dict[str, Any]:
    """The base object with values set at dotted paths; `None` removes one."""
    data = base(kind)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place: Any = data
        for name in parents:
            place = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
        if value is None:
            place.pop(last, None)
        elif isinstance(place, list):
            place[int(last)] = value
        else:
            place[last] = value
    return data


ETCD = "spec.metadataStore.etcd"
REPLICATION = "spec.replication"

# (kind, changes, the field that the refusal names; None: accepted)
OBJECTS: list[tuple[str, dict[str, Any], str | None]] = [
    ("TidemarkCluster", {}, None),
    ("TidemarkCluster", {"metadata.name": "a" * 40}, None),
    ("TidemarkCluster", {"metadata.name": "a" * 41}, "metadata.name"),
    ("TidemarkCluster", {"metadata.name": "a.b"}, "metadata.name"),
    ("TidemarkCluster", {"spec.nodePools.0.replicas": 0}, "spec.nodePools"),
    ("TidemarkCluster", {f"{ETCD}.endpoints": ["http://a:1", "https://b:1"]}, f"{ETCD}.endpoints"),
    ("TidemarkCluster", {f"{ETCD}.endpoints": ["https://a:1"]}, f"{ETCD}.tlsSecretRef"),
    ("TidemarkCluster", {f"{ETCD}.endpoints": ["https://a:1"], f"{ETCD}.tlsSecretRef": {"name": "t"}}, None),
    ("TidemarkCluster", {f"{ETCD}.credentialsSecretRef": {"name": "c"}}, f"{ETCD}.credentialsSecretRef"),
    (
        "TidemarkCluster",
        {
            f"{ETCD}.endpoints": ["https://a:1"],
            f"{ETCD}.tlsSecretRef": {"name": "t"},
            f"{ETCD}.credentialsSecretRef": {"name": "c"},
        },
        None,
    ),
    ("TidemarkCluster", {"spec.security.tls.mode": "CertManager"}, "spec.security.tls.issuerRef"),
    ("TidemarkCluster", {"spec.security.tls": {"mode": "CertManager", "issuerRef": {"name": "ca"}}}, None),
    ("TidemarkCluster", {"spec.security.tls.issuerRef": {"name": "ca"}}, "spec.security.tls.issuerRef"),
    ("TidemarkCluster", {"spec.security.tls.renewBeforeDays": 90}, "spec.security.tls.renewBeforeDays"),
    ("TidemarkCluster", {"spec.security.tls.mode": "Disabled"}, "spec.security.clientAuth"),
    ("TidemarkCluster", {"spec.security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"}}, None),
    ("LogGroup", {}, None),
    ("LogGroup", {"metadata.name": "a" * 50}, None),
    ("LogGroup", {"metadata.name": "a" * 51}, "metadata.name"),
    ("LogGroup", {"spec.shards": 1024}, None),
    ("LogGroup", {"spec.shards": 1025}, "spec.shards"),
    ("LogGroup", {"spec.shards": 1025, "spec.shardProjection": "None"}, None),
    ("LogGroup", {f"{REPLICATION}.payloadCopies": 2}, None),
    ("LogGroup", {f"{REPLICATION}.payloadCopies": 1}, f"{REPLICATION}.payloadCopies"),
    ("LogGroup", {f"{REPLICATION}.payloadCopies": 4}, f"{REPLICATION}.payloadCopies"),
    ("LogGroup", {f"{REPLICATION}": {"factor": 4, "payloadCopies": 2}}, f"{REPLICATION}.payloadCopies"),
    ("LogGroup", {f"{REPLICATION}.leaders": 3}, None),
    ("LogGroup", {f"{REPLICATION}.leaders": 4}, f"{REPLICATION}.leaders"),
    ("LogGroup", {f"{REPLICATION}": {"payloadCopies": 2, "leaders": 3}}, f"{REPLICATION}.leaders"),
    ("LogGroup", {f"{REPLICATION}": {"payloadCopies": 2, "leaders": 1, "syncLeaders": 1}}, None),
    ("LogGroup", {f"{REPLICATION}": {"leaders": 1, "syncLeaders": 2}}, f"{REPLICATION}.syncLeaders"),
    ("LogGroup", {f"{REPLICATION}.syncLeaders": 3}, None),
    ("LogGroup", {f"{REPLICATION}.syncLeaders": 4}, f"{REPLICATION}.syncLeaders"),
    ("LogGroup", {f"{REPLICATION}.synchroQuorum": 2}, None),
    ("LogGroup", {f"{REPLICATION}.synchroQuorum": 1}, f"{REPLICATION}.synchroQuorum"),
    ("LogGroup", {f"{REPLICATION}.synchroQuorum": 4}, f"{REPLICATION}.synchroQuorum"),
    ("LogGroup", {f"{REPLICATION}.synchroQuorum": "N/2+1"}, None),
    ("LogGroup", {f"{REPLICATION}.synchroQuorum": "min(N, max(2, N-1))"}, None),
    ("LogGroup", {f"{REPLICATION}.synchroZones": 3}, None),
    ("LogGroup", {f"{REPLICATION}.synchroZones": 4}, f"{REPLICATION}.synchroZones"),
    ("LogGroup", {f"{REPLICATION}": {"factor": 5, "synchroZones": 5}}, None),
    ("LogGroup", {"spec.kind": "Documents"}, None),
    ("LogGroup", {"spec.kind": "Documents", f"{REPLICATION}.payloadCopies": 3}, None),
    ("LogGroup", {"spec.kind": "Documents", f"{REPLICATION}.payloadCopies": 2}, f"{REPLICATION}.payloadCopies"),
    ("LogGroup", {"spec.kind": "Documents", "spec.documents": {"maxPinnedBytes": "1Gi"}}, None),
    ("LogGroup", {"spec.kind": "Log", "spec.documents": {"tombstoneSeconds": 60}}, "spec.documents"),
    ("LogGroup", {"spec.placement.leaders.preference": "Zones"}, "spec.placement.leaders.zones"),
    ("LogGroup", {"spec.placement.leaders": {"preference": "Zones", "zones": []}}, "spec.placement.leaders.zones"),
    ("LogGroup", {"spec.placement.leaders": {"preference": "Zones", "zones": ["a"]}}, None),
    ("LogGroup", {"spec.placement.leaders.zones": ["a"]}, "spec.placement.leaders.zones"),
    ("LogGroup", {"spec.delivery.stallTimeoutSeconds": 31}, "spec.delivery.stallTimeoutSeconds"),
    ("LogGroup", {"spec.retention": {"maxSize": "1Gi"}}, None),
    ("LogGroup", {"spec.retention": {"size": "1Gi", "maxSize": "1024Mi"}}, None),
    ("LogGroup", {"spec.retention": {"size": "1Gi", "maxSize": "1023Mi"}}, "spec.retention.maxSize"),
    ("LogGroup", {"spec.retention": {"size": "1Gi", "maxSize": "0"}}, "spec.retention.maxSize"),
    ("Keyspace", {}, None),
    ("Keyspace", {"metadata.name": "a" * 50}, None),
    ("Keyspace", {"metadata.name": "a" * 51}, "metadata.name"),
    ("Keyspace", {"metadata.name": "a.b"}, "metadata.name"),
    ("Keyspace", {"spec.partitions": 1}, None),
    ("Keyspace", {"spec.partitions": 4096}, None),
    ("Keyspace", {"spec.partitions": 100}, "spec.partitions"),
    ("Keyspace", {f"{REPLICATION}.readQuorum": 4}, f"{REPLICATION}.readQuorum"),
    ("Keyspace", {f"{REPLICATION}.writeQuorum": 4}, f"{REPLICATION}.writeQuorum"),
    ("Keyspace", {f"{REPLICATION}": {"replicas": 5, "readQuorum": 1, "writeQuorum": 5}}, None),
    ("Keyspace", {f"{REPLICATION}.readQuorum": 1}, "spec.consistency"),
    ("Keyspace", {f"{REPLICATION}.replicas": 5}, "spec.consistency"),
    ("Keyspace", {f"{REPLICATION}.readQuorum": 1, "spec.consistency": "Eventual"}, None),
    ("Keyspace", {f"{REPLICATION}": {"readQuorum": 3, "writeQuorum": 1}}, f"{REPLICATION}.writeQuorum"),
    ("Keyspace", {f"{REPLICATION}": {"replicas": 4, "readQuorum": 3, "writeQuorum": 2}}, f"{REPLICATION}.writeQuorum"),
    ("Keyspace", {f"{REPLICATION}": {"readQuorum": 3, "writeQuorum": 1}, "spec.consistency": "Eventual"}, None),
    ("Keyspace", {f"{REPLICATION}.quorumMode": "Sloppy"}, f"{REPLICATION}.quorumMode"),
    ("Keyspace", {f"{REPLICATION}.quorumMode": "Sloppy", "spec.consistency": "Eventual"}, None),
    (
        "Keyspace",
        {f"{REPLICATION}.quorumMode": "Sloppy", "spec.consistency": "Eventual", "spec.hintedHandoff.mode": "Disabled"},
        f"{REPLICATION}.quorumMode",
    ),
    ("Keyspace", {"spec.hintedHandoff.mode": "Disabled"}, None),
    ("Keyspace", {"spec.hintedHandoff.windowSeconds": 604_800, "spec.tombstoneGraceSeconds": 604_800},
     "spec.tombstoneGraceSeconds"),
    ("Keyspace", {"spec.antiEntropy.intervalSeconds": 864_000}, "spec.tombstoneGraceSeconds"),
    ("Keyspace", {"spec.antiEntropy.bytesPerSecond": "63Ki"}, "spec.antiEntropy.bytesPerSecond"),
    ("Keyspace", {"spec.antiEntropy.bytesPerSecond": "64Ki"}, None),
    ("Keyspace", {"spec.antiEntropy.bytesPerSecond": "0"}, None),
    ("Keyspace", {"spec.antiEntropy.intervalSeconds": 0, "spec.tombstoneGraceSeconds": 10_801}, None),
    ("Shard", {}, None),
    ("Shard", {"spec.hashRange": None}, None),
    ("Shard", {"spec.hashRange.max": 1}, "spec.hashRange.min"),
    ("Reconfiguration", {}, None),
    ("Reconfiguration", {"spec.nodeSwap": None}, "spec.nodeSwap"),
    ("Reconfiguration", {"spec.nodeSwap.to.node": "prod-1"}, "spec.nodeSwap.to.node"),
    ("Reconfiguration", {"spec.nodeSwap.to": {}}, "spec.nodeSwap.to"),
    ("Reconfiguration", {"spec.nodeSwap.to.spread": {}}, "spec.nodeSwap.to"),
    ("Reconfiguration", {"spec.nodeSwap.to": {"provision": {}}}, None),
    ("Reconfiguration", {"spec.nodeSwap.to": {"spread": {}}}, None),
    ("Reconfiguration", {"spec.rebalance": {}}, "spec.rebalance"),
    ("Reconfiguration", {"spec.type": "Rebalance", "spec.nodeSwap": None, "spec.rebalance": {}}, None),
    ("Reconfiguration", {"spec.recover": {"from": "prod-1"}}, "spec.recover"),
    ("Reconfiguration", {"spec.type": "Recover", "spec.nodeSwap": None, "spec.recover": {"from": "prod-1"}}, None),
    *(
        ("Reconfiguration", {"spec.type": kind, "spec.nodeSwap": None}, f"spec.{block}")
        for kind, block in (
            ("Expand", "expand"),
            ("Contract", "contract"),
            ("LeaderTransfer", "leaderTransfer"),
            ("Rebalance", "rebalance"),
            ("Recover", "recover"),
        )
    ),
    ("Reconfiguration", {"spec.expand": {"logGroup": "a", "factor": 4}}, "spec.expand"),
    *(
        (
            "Reconfiguration",
            {"spec.type": "Contract", "spec.nodeSwap": None, "spec.contract": {"logGroup": "a", **contract}},
            field,
        )
        for contract, field in (
            ({"factor": 3}, None),
            ({"factor": 2}, "spec.contract.factor"),
            ({"factor": 2, "belowThree": "Allowed"}, None),
        )
    ),
    *(
        (
            "Reconfiguration",
            {"spec.type": "LeaderTransfer", "spec.nodeSwap": None, "spec.leaderTransfer": transfer},
            field,
        )
        for transfer, field in (
            ({}, "spec.leaderTransfer"),
            ({"from": "a"}, None),
            ({"to": "a"}, None),
            ({"from": "a", "to": "b"}, None),
            ({"from": "a", "to": "a"}, "spec.leaderTransfer.to"),
        )
    ),
    ("Reconfiguration", {"spec.scope": {"logGroups": ["orders"], "shardIDs": [0]}}, None),
    ("Reconfiguration", {"spec.scope": {}}, None),
    ("Reconfiguration", {"spec.scope": {"keyspaces": ["carts"]}}, None),
    (
        "Reconfiguration",
        {
            "spec.type": "LeaderTransfer",
            "spec.nodeSwap": None,
            "spec.leaderTransfer": {"from": "a"},
            "spec.scope": {"keyspaces": ["carts"]},
        },
        "spec.scope.keyspaces",
    ),
    *(
        (
            "Reconfiguration",
            {"spec.type": kind, "spec.nodeSwap": None, f"spec.{kind.lower()}": {"factor": 4, **target}},
            field,
        )
        for kind in ("Expand", "Contract")
        for target, field in (
            ({"keyspace": "carts"}, None),
            ({}, f"spec.{kind.lower()}"),
            ({"logGroup": "orders", "keyspace": "carts"}, f"spec.{kind.lower()}"),
        )
    ),
    *(
        (
            "Reconfiguration",
            {
                "spec.type": "Expand",
                "spec.nodeSwap": None,
                "spec.expand": {"logGroup": "a", "factor": 4},
                "spec.scope": scope,
            },
            field,
        )
        for scope, field in (({"logGroups": ["a"]}, "spec.scope.logGroups"), ({"shardIDs": [1]}, None))
    ),
    ("Reconfiguration", {"spec.approvedPlan": "sha256:0123456789"}, "spec.approvedPlan"),
    ("Reconfiguration", {"spec.approvedPlan": "sha256:0123456789", "spec.approval": "Required"}, None),
]

POOL = {"name": "extra", "replicas": 1, "storage": {"data": {"size": "1Gi"}}}
VOLUME = "spec.nodePools.0.storage.data"

# (kind, changes of the old object, changes of the new one, the field that the refusal names; None: allowed)
UPDATES: list[tuple[str, dict[str, Any], dict[str, Any], str | None]] = [
    ("TidemarkCluster", {}, {"spec.version": "0.5.0"}, None),
    ("TidemarkCluster", {}, {f"{ETCD}.keyPrefix": "/a"}, f"{ETCD}.keyPrefix"),
    ("TidemarkCluster", {f"{ETCD}.keyPrefix": "/a"}, {f"{ETCD}.keyPrefix": "/b"}, f"{ETCD}.keyPrefix"),
    ("TidemarkCluster", {f"{ETCD}.keyPrefix": "/a"}, {f"{ETCD}.keyPrefix": "/a"}, None),
    ("TidemarkCluster", {}, {"spec.failureDomain.topologyKey": "rack"}, "spec.failureDomain.topologyKey"),
    ("TidemarkCluster", {}, {f"{VOLUME}.size": "11Gi"}, None),
    ("TidemarkCluster", {}, {f"{VOLUME}.size": "9Gi"}, "spec.nodePools[0].storage.data.size"),
    (
        "TidemarkCluster",
        {},
        {f"{VOLUME}.storageClassName": "fast"},
        "spec.nodePools[0].storage.data.storageClassName",
    ),
    ("TidemarkCluster", {}, {"spec.nodePools": [POOL]}, "spec.nodePools"),
    ("TidemarkCluster", {"spec.nodePools": [POOL, {**POOL, "name": "old", "replicas": 0}]},
     {"spec.nodePools": [POOL]}, None),
    ("LogGroup", {}, {f"{REPLICATION}.factor": 4}, None),
    ("LogGroup", {}, {f"{REPLICATION}.factor": 5}, f"{REPLICATION}.factor"),
    ("LogGroup", {f"{REPLICATION}.factor": 5}, {}, f"{REPLICATION}.factor"),
    ("LogGroup", {}, {"spec.shards": 5}, "spec.shards"),
    ("LogGroup", {}, {"spec.kind": "Documents"}, "spec.kind"),
    ("LogGroup", {}, {"spec.clusterRef.name": "other"}, "spec.clusterRef"),
    ("Keyspace", {}, {f"{REPLICATION}.readQuorum": 3, "spec.readRepair": "Blocking"}, None),
    ("Keyspace", {}, {f"{REPLICATION}": {"replicas": 4, "readQuorum": 3, "writeQuorum": 3}}, None),
    ("Keyspace", {}, {f"{REPLICATION}": {"replicas": 5, "readQuorum": 4, "writeQuorum": 3}}, f"{REPLICATION}.replicas"),
    ("Keyspace", {}, {f"{REPLICATION}.writeQuorum": 1, "spec.consistency": "Eventual"}, f"{REPLICATION}.writeQuorum"),
    ("Keyspace", {f"{REPLICATION}.readQuorum": 1, "spec.consistency": "Eventual"},
     {f"{REPLICATION}.writeQuorum": 1, "spec.consistency": "Eventual"}, None),
    ("Keyspace", {}, {"spec.partitions": 128}, "spec.partitions"),
    ("Keyspace", {}, {"spec.clusterRef.name": "other"}, "spec.clusterRef"),
    ("Shard", {}, {}, None),
    ("Shard", {}, {"spec.shardID": 8}, "spec"),
    ("Reconfiguration", {}, {"spec.suspend": True, "spec.throttle": {"maxConcurrentMoves": 1}}, None),
    ("Reconfiguration", {}, {"spec.cancel": True}, None),
    ("Reconfiguration", {"spec.cancel": True}, {}, "spec.cancel"),
    ("Reconfiguration", {}, {"spec.nodeSwap.to.node": "prod-3"}, "spec.nodeSwap"),
    ("Reconfiguration", {}, {"spec.scope": {"shardIDs": [1]}}, "spec.scope"),
    ("Reconfiguration", {}, {"spec.approval": "Required"}, "spec.approval"),
    ("Reconfiguration", {}, {"spec.preconditions.fullyReplicated": "Ignored"}, "spec.preconditions"),
    ("Reconfiguration", {}, {"spec.clusterRef.name": "other"}, "spec.clusterRef"),
    (
        "Reconfiguration",
        {"spec.type": "Recover", "spec.nodeSwap": None, "spec.recover": {"from": "prod-1"}},
        {"spec.type": "Recover", "spec.nodeSwap": None, "spec.recover": {"from": "prod-2"}},
        "spec.recover",
    ),
    (
        "Reconfiguration",
        {},
        {"spec.type": "Rebalance", "spec.nodeSwap": None, "spec.rebalance": {}},
        "spec.type",
    ),
]
