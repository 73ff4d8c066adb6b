"""The rules stand twice, in CEL and in Python: here both judge the same objects and must agree.

CEL is evaluated as an API server does it: over the raw object with the defaults of the generated schema filled in.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import cel
import pytest
from tidemark_operator.resources import KINDS, InvalidManifest, check_update, load_resource, quantity_bytes
from tidemark_operator.resources.base import ApiModel, Resource
from tidemark_operator.resources.openapi import custom_resource_definition

HEADER = {"apiVersion": "tidemark.dev/v1alpha1", "metadata": {"name": "it"}}


def base(kind: str) -> dict[str, Any]:
    """A valid object of the kind; a Reconfiguration is a NodeSwap."""
    spec: dict[str, Any] = {
        "TidemarkCluster": {
            "version": "0.4.2",
            "metadataStore": {"etcd": {"endpoints": ["http://a:2379", "http://b:2379"]}},
            "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "10Gi"}}}],
        },
        "LogGroup": {"clusterRef": {"name": "prod"}, "shards": 4},
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
    ("LogGroup", {"spec.placement.leaders.preference": "Zones"}, "spec.placement.leaders.zones"),
    ("LogGroup", {"spec.placement.leaders": {"preference": "Zones", "zones": []}}, "spec.placement.leaders.zones"),
    ("LogGroup", {"spec.placement.leaders": {"preference": "Zones", "zones": ["a"]}}, None),
    ("LogGroup", {"spec.placement.leaders.zones": ["a"]}, "spec.placement.leaders.zones"),
    ("LogGroup", {"spec.delivery.stallTimeoutSeconds": 31}, "spec.delivery.stallTimeoutSeconds"),
    ("Reconfiguration", {}, None),
    ("Reconfiguration", {"spec.nodeSwap": None}, "spec.nodeSwap"),
    ("Reconfiguration", {"spec.nodeSwap.to.node": "prod-1"}, "spec.nodeSwap.to.node"),
    ("Reconfiguration", {"spec.nodeSwap.to": {}}, "spec.nodeSwap.to"),
    ("Reconfiguration", {"spec.nodeSwap.to.spread": {}}, "spec.nodeSwap.to"),
    ("Reconfiguration", {"spec.nodeSwap.to": {"provision": {}}}, None),
    ("Reconfiguration", {"spec.nodeSwap.to": {"spread": {}}}, None),
    ("Reconfiguration", {"spec.rebalance": {}}, "spec.rebalance"),
    ("Reconfiguration", {"spec.type": "Rebalance", "spec.nodeSwap": None, "spec.rebalance": {}}, None),
    *(
        ("Reconfiguration", {"spec.type": kind, "spec.nodeSwap": None}, f"spec.{block}")
        for kind, block in (
            ("Expand", "expand"),
            ("Contract", "contract"),
            ("LeaderTransfer", "leaderTransfer"),
            ("Rebalance", "rebalance"),
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
        {},
        {"spec.type": "Rebalance", "spec.nodeSwap": None, "spec.rebalance": {}},
        "spec.type",
    ),
]


# --- an API server in small


def schema_of(kind: str) -> dict[str, Any]:
    return custom_resource_definition(KINDS[kind])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


def with_defaults(value: Any, schema: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        filled = dict(value)
        for name, part in schema.get("properties", {}).items():
            if name not in filled and "default" in part:
                filled[name] = copy.deepcopy(part["default"])
            if name in filled:
                filled[name] = with_defaults(filled[name], part)
        return filled
    if isinstance(value, list):
        return [with_defaults(item, schema["items"]) for item in value]
    return value


def broken_rules(value: Any, old: Any, schema: dict[str, Any]) -> Iterator[str]:
    """Messages of the rules that do not hold; the rules on updates are asked where there is an old value."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        context = cel.Context()
        context.add_variable("self", value)
        context.add_variable("oldSelf", old)
        context.add_function("quantity", quantity_bytes)
        context.add_function("compareTo", lambda left, right: (left > right) - (left < right))
        if not cel.evaluate(rule["rule"], context):
            yield rule["message"]
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from broken_rules(value[name], (old or {}).get(name), part)
    elif isinstance(value, list):
        keyed = {item["name"]: item for item in old or () if isinstance(item, dict) and "name" in item}
        for item in value:
            before = keyed.get(item.get("name")) if isinstance(item, dict) else None
            yield from broken_rules(item, before, schema["items"])


def cel_verdict(kind: str, data: dict[str, Any], old: dict[str, Any] | None = None) -> set[str]:
    schema = schema_of(kind)
    before = with_defaults(old, schema) if old is not None else None
    return set(broken_rules(with_defaults(data, schema), before, schema))


def models_verdict(data: dict[str, Any], old: dict[str, Any] | None = None) -> InvalidManifest | None:
    try:
        new = load_resource(data, "new")
        if old is not None:
            check_update(load_resource(old, "old"), new, "new")
    except InvalidManifest as refused:
        return refused
    return None


# --- both agree


@pytest.mark.parametrize(("kind", "changes", "field"), OBJECTS)
def test_cel_and_models_judge_an_object_alike(kind: str, changes: dict[str, Any], field: str | None) -> None:
    data = changed(kind, changes)
    refused = models_verdict(data)
    assert (refused.field_path if refused else None) == field, refused
    broken = cel_verdict(kind, data)
    assert bool(broken) == (refused is not None), broken
    if refused is not None:
        assert {problem.message for problem in refused.problems} <= broken


@pytest.mark.parametrize(("kind", "before", "after", "field"), UPDATES)
def test_cel_and_models_judge_an_update_alike(
    kind: str, before: dict[str, Any], after: dict[str, Any], field: str | None
) -> None:
    old, new = changed(kind, before), changed(kind, after)
    assert models_verdict(old) is None
    assert models_verdict(new) is None
    refused = models_verdict(new, old)
    assert field in ({problem.field_path for problem in refused.problems} if refused else {None})
    broken = cel_verdict(kind, new, old)
    assert broken == ({problem.message for problem in refused.problems} if refused else set())


def messages_of_rules() -> set[str]:
    """Every rule of every model that CEL can state."""
    found: set[str] = set()

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, ApiModel):
            found.update(rule.message for rule in annotation.RULES if rule.cel)
            found.update(transition.message for transition in annotation.TRANSITIONS)
            for field in annotation.model_fields.values():
                visit(field.annotation)
        for argument in getattr(annotation, "__args__", ()):
            visit(argument)

    for kind in KINDS.values():
        visit(kind)
    return found


def test_every_rule_is_broken_by_some_case() -> None:
    seen: set[str] = set()
    for kind, changes, _ in OBJECTS:
        seen |= cel_verdict(kind, changed(kind, changes))
    for kind, before, after, _ in UPDATES:
        seen |= cel_verdict(kind, changed(kind, after), changed(kind, before))
    # One act cannot change its block and stay of its type, so one of the five stands for all.
    blocks = {f"{name} is immutable: cancel this Reconfiguration and create another"
              for name in ("expand", "contract", "leaderTransfer", "rebalance")}
    assert messages_of_rules() - seen - blocks == set()


# --- the CRDs as such


def every_schema(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from every_schema(part, f"{path}.{name}")
    if "items" in schema:
        yield from every_schema(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from every_schema(schema["additionalProperties"], f"{path}.*")


SCHEMAS = [(kind, path, part) for kind in KINDS for path, part in every_schema(schema_of(kind))]
UNBOUNDED_BY_NATURE = {".apiVersion", ".kind"}


def test_schemas_are_structural_and_bounded() -> None:
    for kind, path, part in SCHEMAS:
        where = f"{kind}{path}"
        assert not part.keys() & {"$ref", "allOf", "oneOf", "not", "title", "const", "propertyNames"}, where
        if part.get("x-kubernetes-int-or-string"):
            assert part["anyOf"] == [{"type": "integer"}, {"type": "string"}], where
            assert "type" not in part, where
            continue
        assert "anyOf" not in part, where
        match part["type"]:
            case "array":
                assert "maxItems" in part, where
                assert part["x-kubernetes-list-type"] in ("set", "map", "atomic"), where
            case "string" if path not in UNBOUNDED_BY_NATURE:
                assert "maxLength" in part or "enum" in part, where
            case "object" if "additionalProperties" in part:
                assert "maxProperties" in part, where
                assert "properties" not in part, where
            case "integer":
                assert part["format"] in ("int32", "int64"), where
                assert "minimum" in part, where


def test_fields_that_rules_and_list_keys_name_exist() -> None:
    for kind, path, part in SCHEMAS:
        for rule in part.get("x-kubernetes-validations", ()):
            target = part
            for name in filter(None, rule.get("fieldPath", "").split(".")):
                assert name in target["properties"], f"{kind}{path}: {rule['fieldPath']}"
                target = target["properties"][name]
        for key in part.get("x-kubernetes-list-map-keys", ()):
            assert key in part["items"]["required"], f"{kind}{path}: {key}"


def test_columns_and_selectable_fields_name_fields_that_exist() -> None:
    for kind, model in KINDS.items():
        paths = {path for path, _ in every_schema(schema_of(kind))} | {".metadata.creationTimestamp"}
        shown = [column.path.split("[?")[0] for column in model.NAMES.columns] + [*model.NAMES.selectable_fields]
        assert set(shown) <= paths, kind


def test_a_default_makes_the_whole_block_optional() -> None:
    """`default: {}` of an object has to be a valid value once the defaults inside it are filled in."""
    for kind, path, part in SCHEMAS:
        if part.get("default") == {}:
            filled = with_defaults({}, part)
            assert set(part.get("required", ())) <= filled.keys(), f"{kind}{path}"
            assert not list(broken_rules(filled, None, part)), f"{kind}{path}"


def test_status_is_a_subresource_and_the_definitions_survive_the_chart() -> None:
    for model in KINDS.values():
        definition = custom_resource_definition(model)
        assert issubclass(model, Resource)
        assert definition["metadata"]["name"] == f"{model.NAMES.plural}.tidemark.dev"
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert definition["spec"]["versions"][0]["subresources"] == {"status": {}}
