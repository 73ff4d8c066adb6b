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

from tests.resource_examples import OBJECTS, UPDATES, changed

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
    """An API server refuses a definition whose default, taken as it stands, breaks the rules of its own field."""
    for kind, path, part in SCHEMAS:
        if part.get("type") == "object" and "default" in part:
            default = part["default"]
            assert default == with_defaults(default, part), f"{kind}{path}"
            assert set(part.get("required", ())) <= default.keys(), f"{kind}{path}"
            assert not list(broken_rules(default, None, part)), f"{kind}{path}"


def test_status_is_a_subresource_and_the_definitions_survive_the_chart() -> None:
    for model in KINDS.values():
        definition = custom_resource_definition(model)
        assert issubclass(model, Resource)
        assert definition["metadata"]["name"] == f"{model.NAMES.plural}.tidemark.dev"
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert definition["spec"]["versions"][0]["subresources"] == {"status": {}}
