"""The rules stand twice, in CEL and in Python: here both judge the same objects and must agree.

CEL is evaluated as an API server does it: over the raw object with the defaults of the generated schema filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from tidemark_operator.resources import KINDS
from tidemark_operator.resources.base import Resource
from tidemark_operator.resources.openapi import custom_resource_definition

from tests.resource_examples import OBJECTS, UPDATES, changed, example_documents
from tests.resource_judges import (
    agree,
    cel_judgement,
    cel_verdict,
    judged_rules,
    models_verdict,
    mutants,
    schema_of,
    schema_verdict,
    with_defaults,
)

# --- both agree


@pytest.mark.parametrize(("kind", "changes", "field"), OBJECTS)
def test_cel_and_models_judge_an_object_alike(kind: str, changes: dict[str, Any], field: str | None) -> None:
    data = changed(kind, changes)
    refused = models_verdict(data)
    assert (refused.field_path if refused else None) == field, refused
    broken = cel_verdict(kind, data)
    assert bool(broken) == (refused is not None), broken
    if refused is not None:
        assert {problem.message for problem in refused.problems} <= broken.keys()
        for problem in refused.problems:
            assert problem.field_path in (broken[problem.message], "metadata.name")


@pytest.mark.parametrize(("kind", "before", "after", "field"), UPDATES)
def test_cel_and_models_judge_an_update_alike(
    kind: str, before: dict[str, Any], after: dict[str, Any], field: str | None
) -> None:
    old, new = changed(kind, before), changed(kind, after)
    assert models_verdict(old) is None
    assert models_verdict(new) is None
    refused = models_verdict(new, old)
    assert field in ({problem.field_path for problem in refused.problems} if refused else {None})
    problems = refused.problems if refused is not None else ()
    assert cel_verdict(kind, new, old) == {problem.message: problem.field_path for problem in problems}


Place = tuple[str, str, str]


def rules_of_schemas() -> set[Place]:
    """Kind, path without indexes and message of every rule that stands in a schema."""
    return {
        (kind, (path + rule.get("fieldPath", "")).strip("."), rule["message"])
        for kind, path, part in SCHEMAS for rule in part.get("x-kubernetes-validations", ())
    }


def test_every_rule_is_kept_by_one_example_and_broken_by_another() -> None:
    seen: dict[bool, set[Place]] = {True: set(), False: set()}
    examples = [(kind, changed(kind, changes), None) for kind, changes, _ in OBJECTS]
    examples += [(kind, changed(kind, after), changed(kind, before)) for kind, before, after, _ in UPDATES]
    for kind, data, old in examples:
        for one in cel_judgement(kind, data, old):
            seen[one.holds].add((kind, re.sub(r"\[\d+\]", "[]", one.path), one.message))
    assert rules_of_schemas() - seen[True] == set()
    # One act cannot change its block and stay of its type, so one of the five stands for all.
    same = {f"{name} is immutable: cancel this Reconfiguration and create another"
            for name in ("expand", "contract", "leaderTransfer", "rebalance")}
    assert {place for place in rules_of_schemas() - seen[False] if place[2] not in same} == set()


@pytest.mark.parametrize("data", example_documents(), ids=lambda data: f"{data['kind']}-{data['metadata']['name']}")
def test_schema_and_models_judge_everything_that_was_made_of_an_example_alike(data: dict[str, Any]) -> None:
    """Field by field: other types, both sides of every bound, other forms, missing and unknown fields.

    What both accept is an update of the example as well.
    """
    assert schema_verdict(data["kind"], data) == []
    disagreed = []
    for what, mutant in mutants(data):
        blamed, refused = schema_verdict(data["kind"], mutant), models_verdict(mutant)
        if not agree(blamed, refused):
            disagreed.append(f"{what}: schema blames {blamed}, models {refused}")
        elif refused is None:
            refused = models_verdict(mutant, data)
            problems = refused.problems if refused is not None else ()
            if cel_verdict(data["kind"], mutant, data) != {one.message: one.field_path for one in problems}:
                disagreed.append(f"{what}, as an update: models {refused}")
    assert not disagreed, "\n".join(disagreed)


def written_paths(value: Any, path: str = "") -> Iterator[str]:
    yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from written_paths(item, f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from written_paths(item, f"{path}[]")


def test_every_field_of_every_spec_stands_in_an_example() -> None:
    shown = {(data["kind"], path) for data in example_documents() for path in written_paths(data["spec"], ".spec")}
    fields = {(kind, path) for kind, path, _ in SCHEMAS if path.startswith(".spec") and not path.endswith(".*")}
    assert fields - shown == set()


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


def test_every_field_says_what_it_is() -> None:
    """`kubectl explain` and the reference show it."""
    silent = [
        f"{kind}{path}.{name}" for kind, path, part in SCHEMAS if path.startswith((".spec", ".status"))
        for name, below in part.get("properties", {}).items() if not below.get("description")
    ]
    assert silent == []


def test_rules_on_updates_find_the_old_value() -> None:
    """Below a list that is replaced as a whole no item has an old value, and an API server refuses such a rule."""
    for kind, path, part in SCHEMAS:
        for list_path, above in every_schema(schema_of(kind)):
            inside = path.startswith(f"{list_path}[]") and above.get("x-kubernetes-list-type") in ("atomic", "set")
            if inside:
                assert not any("oldSelf" in rule["rule"] for rule in part.get("x-kubernetes-validations", ())), path


def test_names_of_kinds_are_distinct_and_selectors_few() -> None:
    names = [row.names for row in KINDS.values()]
    assert len({one.short for one in names}) == len({one.plural for one in names}) == len(KINDS)
    for one in names:
        assert len(one.selectable_fields) <= 8, one.kind  # what an API server allows
        definition = custom_resource_definition(KINDS[one.kind].model)["spec"]["names"]
        assert definition["categories"] == ["tidemark"], one.kind


def test_columns_and_selectable_fields_name_fields_that_exist() -> None:
    for kind, row in KINDS.items():
        paths = {path for path, _ in every_schema(schema_of(kind))} | {".metadata.creationTimestamp"}
        shown = [column.path.split("[?")[0] for column in (*row.names.columns, *row.view)]
        assert {*shown, *row.names.selectable_fields} <= paths, kind


def test_a_default_makes_the_whole_block_optional() -> None:
    """An API server refuses a definition whose default, taken as it stands, breaks the rules of its own field."""
    for kind, path, part in SCHEMAS:
        if part.get("type") == "object" and "default" in part:
            default = part["default"]
            assert default == with_defaults(default, part), f"{kind}{path}"
            assert set(part.get("required", ())) <= default.keys(), f"{kind}{path}"
            assert all(one.holds for one in judged_rules(default, None, part)), f"{kind}{path}"


def test_status_is_a_subresource_and_the_definitions_survive_the_chart() -> None:
    for row in KINDS.values():
        definition = custom_resource_definition(row.model)
        assert issubclass(row.model, Resource)
        assert definition["metadata"]["name"] == f"{row.names.plural}.tidemark.dev"
        assert definition["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
        assert definition["spec"]["versions"][0]["subresources"] == {"status": {}}
