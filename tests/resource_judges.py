"""Judges of a resource beside a real API server: the generated schema with its CEL rules, and the typed models.

The schema is judged as an API server does it: structure first, then CEL over the object with its defaults filled in.
`mutants` makes wrong and border-line objects out of right ones, for all judges to agree about.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import cel
from tidemark_operator.resources import KINDS, InvalidManifest, check_update, load_resource, quantity_bytes
from tidemark_operator.resources.openapi import custom_resource_definition


@cache
def schema_of(kind: str) -> dict[str, Any]:
    return custom_resource_definition(KINDS[kind].model)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


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


# --- CEL


@dataclass(frozen=True, slots=True)
class Judged:
    """A rule that was evaluated; `path` is where, and below it the field that it blames."""

    path: str
    message: str
    holds: bool


def judged_rules(value: Any, old: Any, schema: dict[str, Any], path: str = "") -> Iterator[Judged]:
    """Evaluate every rule; the rules on updates where there is an old value."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" in rule["rule"] and old is None:
            continue
        context = cel.Context()
        context.add_variable("self", value)
        context.add_variable("oldSelf", old)
        context.add_function("quantity", quantity_bytes)
        context.add_function("compareTo", lambda left, right: (left > right) - (left < right))
        where = (path + rule.get("fieldPath", "")).strip(".")
        yield Judged(where, rule["message"], bool(cel.evaluate(rule["rule"], context)))
    if isinstance(value, dict):
        for name, part in schema.get("properties", {}).items():
            if name in value:
                yield from judged_rules(value[name], (old or {}).get(name), part, f"{path}.{name}".strip("."))
    elif isinstance(value, list):
        keyed = {item["name"]: item for item in old or () if isinstance(item, dict) and "name" in item}
        for index, item in enumerate(value):
            before = keyed.get(item.get("name")) if isinstance(item, dict) else None
            yield from judged_rules(item, before, schema["items"], f"{path}[{index}]")


def cel_judgement(kind: str, data: dict[str, Any], old: dict[str, Any] | None = None) -> list[Judged]:
    schema = schema_of(kind)
    before = with_defaults(old, schema) if old is not None else None
    return list(judged_rules(with_defaults(data, schema), before, schema))


def cel_verdict(kind: str, data: dict[str, Any], old: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the messages of the rules that do not hold, each with the path it blames."""
    return {one.message: one.path for one in cel_judgement(kind, data, old) if not one.holds}


# --- structure


def structural_problems(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the paths of the values that the schema does not take, unknown fields included."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, int | str) or isinstance(value, bool) or not _in_bounds(value, schema):
            yield path
        return
    match schema["type"]:
        case "object":
            yield from _object_problems(value, schema, path)
        case "array":
            yield from _array_problems(value, schema, path)
        case "boolean":
            if not isinstance(value, bool):
                yield path
        case "integer":
            if not isinstance(value, int) or isinstance(value, bool) or not _in_bounds(value, schema):
                yield path
        case "string":
            if not isinstance(value, str) or not _in_bounds(value, schema):
                yield path


def _object_problems(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield path
        return
    if schema.get("x-kubernetes-preserve-unknown-fields") or path == "metadata":
        return
    if "additionalProperties" in schema:
        if len(value) > schema["maxProperties"]:
            yield path
        for name, item in value.items():
            yield from structural_problems(item, schema["additionalProperties"], f"{path}.{name}")
        return
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{path}.{name}".strip(".")
    for name, item in value.items():
        where = f"{path}.{name}".strip(".")
        if name in schema["properties"]:
            yield from structural_problems(item, schema["properties"][name], where)
        else:
            yield where


def _array_problems(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield path
        return
    if not schema.get("minItems", 0) <= len(value) <= schema["maxItems"]:
        yield path
    keys = schema.get("x-kubernetes-list-map-keys")
    seen = [
        tuple(item.get(key) for key in keys) if keys and isinstance(item, dict) else item for item in value]
    if schema["x-kubernetes-list-type"] != "atomic" and any(item in seen[:index] for index, item in enumerate(seen)):
        yield path
    for index, item in enumerate(value):
        yield from structural_problems(item, schema["items"], f"{path}[{index}]")


def _in_bounds(value: int | str, schema: dict[str, Any]) -> bool:
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, int):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    pattern = schema.get("pattern", "")
    if pattern.endswith("$"):
        pattern = pattern[:-1] + r"\Z"  # Python's $ lets a newline follow
    length = len(value)
    return schema.get("minLength", 0) <= length <= schema.get("maxLength", length) and bool(re.search(pattern, value))


def schema_verdict(kind: str, data: dict[str, Any]) -> list[str]:
    """Return the paths that schema and rules blame; none for an object that is accepted."""
    return list(structural_problems(data, schema_of(kind))) or list(cel_verdict(kind, data).values())


# --- the models


def models_verdict(data: dict[str, Any], old: dict[str, Any] | None = None) -> InvalidManifest | None:
    try:
        new = load_resource(data, "new")
        if old is not None:
            check_update(load_resource(old, "old"), new, "new")
    except InvalidManifest as refused:
        return refused
    return None


def agree(paths: list[str], refused: InvalidManifest | None) -> bool:
    """Say whether both judges accept, or both refuse and blame the same place or one inside the other.

    A rule of the whole object (of its name) has no path in a schema, which may say nothing about metadata.
    """
    if not paths or refused is None:
        return not paths and refused is None
    return any(
        one.startswith(other.field_path) or other.field_path.startswith(one)
        for one in paths for other in refused.problems
    )


# --- mutants

Site = tuple[tuple[str | int, ...], Any, dict[str, Any]]


def _sites(value: Any, schema: dict[str, Any], path: tuple[str | int, ...]) -> Iterator[Site]:
    """Yield every value of an object with its schema, as far as the schema says anything about it."""
    yield path, value, schema
    if isinstance(value, dict):
        for name, item in value.items():
            part = schema.get("properties", {}).get(name) or schema.get("additionalProperties")
            if part is not None:
                yield from _sites(item, part, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value[:1]):
            yield from _sites(item, schema["items"], (*path, index))


def _variants(value: Any, schema: dict[str, Any]) -> Iterator[Any]:
    """Yield other values for one site: of another type, at and beyond each bound, of another form."""
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        yield from ("text", [1])
    elif isinstance(value, bool):
        yield from ("yes", 1, not value)
    elif isinstance(value, int):
        low, high = schema["minimum"], schema.get("maximum", 2**31 - 1)
        yield from (low - 1, low, high, high + 1, "3", True, 1.5, [value])
    elif isinstance(value, str):
        longest = schema.get("maxLength", 100)
        yield from ("", "x" * longest, "x" * (longest + 1), f"{value}\n", f" {value}", "UPPER case!", "ä", 7, {})
    elif isinstance(value, list):
        yield from ("text", {}, [], [*value, *value[:1]], value[:1] * (schema["maxItems"] + 1), [7], [{}])
    elif "additionalProperties" in schema:
        yield from ("text", [], {}, {**value, "more": 5}, {**value, "more": "x" * 5000})
        yield {f"key-{number}": "x" for number in range(schema["maxProperties"] + 1)}
    else:
        yield from ("text", [], {}, {**value, "nonsense": 1})
        for name in value:
            yield {other: item for other, item in value.items() if other != name}


def mutants(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what was done and the object that came of it, for every part of the spec of `data`.

    Left out are time zones: whether there is one of a name no schema can say (`tests/operator/test_resources.py`).
    """
    schema = schema_of(data["kind"])["properties"]["spec"]
    for path, value, part in _sites(data["spec"], schema, ("spec",)):
        for variant in _variants(value, part) if path[-1] != "timeZone" else ():
            changed = copy.deepcopy(data)
            place: Any = changed
            for step in path[:-1]:
                place = place[step]
            place[path[-1]] = variant
            yield f"{'.'.join(map(str, path))} = {str(variant)[:60]!r}", changed
