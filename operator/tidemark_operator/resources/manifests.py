"""Reads manifests, YAML or JSON, into typed resources; refuses what is wrong and says where.

It needs no Kubernetes API: the local runtime and the tests load the same files that `kubectl apply` takes.
As the API server does, it drops nulls and ignores `status`, which only the operator writes.  Unlike YAML at large it
refuses anchors and aliases (a small text could stand for a huge object) and repeated keys (one would silently win).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import yaml
from pydantic import ValidationError

from .base import API_VERSION, ApiModel, Resource
from .kinds import KINDS
from .shard import MIRRORS, Shard

MANIFEST_BYTES_MAX = 256 * 1024
DOCUMENTS_MAX = 1000
DEPTH_MAX = 32
_PROBLEMS_SHOWN_MAX = 10
_VALUE_SHOWN_CHARACTERS_MAX = 60
_MESSAGE_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: `field_path` such as `spec.nodePools[0].replicas`, empty for the whole document."""

    field_path: str
    message: str

    def __str__(self) -> str:
        return f"{self.field_path}: {self.message}" if self.field_path else self.message


class InvalidManifest(ValueError):
    """A manifest cannot be accepted.  `document` counts from 1; 0 means the text as a whole."""

    def __init__(self, source: str, document: int, problems: Sequence[Problem]) -> None:
        self.source = source
        self.document = document
        self.problems = tuple(problems)
        where = f"{source}, document {document}" if document else source
        super().__init__(f"{where}: " + self.told("\n  "))

    def told(self, separator: str = "; ") -> str:
        """Return the problems without where they were found: for whoever has the one object at hand."""
        shown = [str(problem) for problem in self.problems[:_PROBLEMS_SHOWN_MAX]]
        if len(self.problems) > len(shown):
            shown.append(f"and {len(self.problems) - len(shown)} more")
        return separator.join(shown)

    @property
    def field_path(self) -> str:
        return self.problems[0].field_path

    @property
    def message(self) -> str:
        return self.problems[0].message


def load_manifests(text: str, source: str) -> list[Resource]:
    """Return the resources of a text of one or more documents, in order; a `List` counts as its items.

    `source` names the text in messages.  All or nothing: one wrong document refuses the text, and so does a Shard,
    which only the operator writes.
    Raises InvalidManifest.
    """
    size = len(text.encode(errors="surrogatepass"))
    if size > MANIFEST_BYTES_MAX:
        raise _refusal(source, 0, f"{size} bytes are more than the {MANIFEST_BYTES_MAX} that a manifest may have")
    resources: list[Resource] = []
    seen: dict[tuple[str, str, str], int] = {}
    for document, data in _documents(text, source):
        if isinstance(data, Mapping) and data.get("kind") == Shard.NAMES.kind:
            raise _refusal(source, document, MIRRORS, "kind")
        resource = load_resource(data, source, document)
        key = (resource.kind, resource.namespace, resource.name)
        if key in seen:
            raise _refusal(
                source,
                document,
                f"{resource.kind} {resource.namespace}/{resource.name} stands in document {seen[key]} already",
                "metadata.name",
            )
        seen[key] = document
        resources.append(resource)
    if not resources:
        raise _refusal(source, 0, "no object in it")
    return resources


def load_resource(data: object, source: str, document: int = 1) -> Resource:
    """Return the typed resource for plain data, as parsed from JSON or YAML.  Raises InvalidManifest."""
    if not isinstance(data, Mapping):
        raise _refusal(source, document, f"an object is expected, not {_shown(data)}")
    api_version, kind = data.get("apiVersion"), data.get("kind")
    if api_version != API_VERSION:
        raise _refusal(source, document, f"must be {API_VERSION}, not {_shown(api_version)}", "apiVersion")
    row = KINDS.get(kind) if isinstance(kind, str) else None
    if row is None:
        raise _refusal(source, document, f"must be one of {', '.join(KINDS)}, not {_shown(kind)}", "kind")
    plain = _without_nulls({key: value for key, value in data.items() if key != "status"}, source, document)
    # Strict JSON mode: enums come as strings and tuples as arrays, but no number is taken for a string or back.
    try:
        return row.model.model_validate_json(json.dumps(plain), by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidManifest(source, document, _problems(error)) from error


def check_update(old: Resource, new: Resource, source: str, document: int = 1) -> None:
    """Refuse an update that changes what must not change.  Raises InvalidManifest that names every such field."""
    if (old.kind, old.namespace, old.name) != (new.kind, new.namespace, new.name):
        raise ValueError(f"{new.kind} {new.name} is no update of {old.kind} {old.name}")
    problems = list(_forbidden_changes(old, new, ""))
    if problems:
        raise InvalidManifest(source, document, problems)


# --- text to plain data


class _Refused(yaml.YAMLError):
    def __init__(self, message: str, mark: Any) -> None:
        super().__init__(message)
        self.problem, self.problem_mark = message, mark


class _ManifestLoader(yaml.SafeLoader):
    """Plain data only, bounded in depth, without aliases, repeated keys and dates."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = cast(Any, self).peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Refused("anchors and aliases are not accepted: write the value out", event.start_mark)
        if self.depth >= DEPTH_MAX:
            raise _Refused(f"nested deeper than {DEPTH_MAX} levels", event.start_mark)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag != "tag:yaml.org,2002:str":
                shown = key_node.value if isinstance(key_node, yaml.ScalarNode) else key_node.id
                raise _Refused(f"the key {_shown(shown)} is not a string", key_node.start_mark)
            if key_node.value in keys:
                raise _Refused(f"the key {_shown(key_node.value)} stands here twice", key_node.start_mark)
            keys.add(key_node.value)
        return super().construct_mapping(node, deep)


# `2026-11-20` is a string for Kubernetes, and `<<` is refused as a key that is not one.
_ManifestLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _documents(text: str, source: str) -> Iterator[tuple[int, object]]:
    """The objects of a text with the number of their document; empty documents are passed over."""
    for document, data in enumerate(_parse(text, source), start=1):
        if document > DOCUMENTS_MAX:
            raise _refusal(source, 0, f"more than {DOCUMENTS_MAX} documents")
        if data is None:
            continue
        if isinstance(data, Mapping) and data.get("kind") == "List" and data.get("apiVersion") == "v1":
            items = data.get("items")
            if not isinstance(items, list):
                raise _refusal(source, document, f"a list is expected, not {_shown(items)}", "items")
            for item in items:
                yield document, item
        else:
            yield document, data


def _parse(text: str, source: str) -> Iterator[object]:
    if text.lstrip().startswith("{"):
        try:
            # Read as JSON where it is JSON: YAML refuses the tabs that JSON may be indented with.
            yield json.loads(text, object_pairs_hook=_without_repeats)
            return
        except _RepeatedKey as error:
            raise _refusal(source, 1, f"the key {error.args[0]!r} stands in one object twice") from error
        except RecursionError as error:
            raise _refusal(source, 1, f"nested deeper than {DEPTH_MAX} levels") from error
        except ValueError:
            pass  # YAML in flow style begins with a brace too, and YAML's message serves both
    try:
        yield from yaml.load_all(text, Loader=_ManifestLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise _refusal(source, 0, where + (getattr(error, "problem", None) or str(error))) from error
    except ValueError as error:
        # A scalar that looks like a number and is none, or one of too many digits.
        raise _refusal(source, 0, str(error)) from error


class _RepeatedKey(Exception):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _RepeatedKey(key)
        found[key] = value
    return found


def _without_nulls(value: object, source: str, document: int, depth: int = 0) -> object:
    """Copy plain data without null fields; refuse what JSON cannot say, and too much depth."""
    if depth > DEPTH_MAX:
        raise _refusal(source, document, f"nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _refusal(source, document, f"the key {_shown(key)} is not a string")
        return {
            key: _without_nulls(item, source, document, depth + 1) for key, item in value.items() if item is not None
        }
    if isinstance(value, list | tuple):
        return [_without_nulls(item, source, document, depth + 1) for item in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and value - value == 0:  # neither infinite nor not-a-number
        return value
    raise _refusal(source, document, f"{_shown(value)} is no JSON value")


# --- messages


def _refusal(source: str, document: int, message: str, field_path: str = "") -> InvalidManifest:
    return InvalidManifest(source, document, [Problem(field_path, message)])


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _VALUE_SHOWN_CHARACTERS_MAX else text[:_VALUE_SHOWN_CHARACTERS_MAX] + "..."


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += f".{part}" if path else part
    return path


def _problems(error: ValidationError) -> list[Problem]:
    problems = []
    for item in error.errors(include_url=False):
        location: list[int | str] = list(item["loc"])
        kind, message = item["type"], item["msg"]
        if kind == "rule":
            field = item["ctx"]["field"]
            location += field.split(".") if field else []
        elif kind == "missing":
            message = "is required"
        elif kind == "extra_forbidden":
            message = "is not a field of this object"
        elif not isinstance(item["input"], Mapping | list):
            what = message if len(message) <= _MESSAGE_CHARACTERS_MAX else message[:_MESSAGE_CHARACTERS_MAX] + "..."
            message = f"{what[:1].lower()}{what[1:]}, not {_shown(item['input'])}"
            if kind == "enum" and isinstance(item["input"], bool):
                message += "; YAML reads words such as Off and No as false: write them in quotes"
        problems.append(Problem(_path(location), message))
    return problems


# --- updates


def _forbidden_changes(old: ApiModel, new: ApiModel, path: str) -> Iterator[Problem]:
    """Walk two versions of an object; items of a list are the same object when their names are."""
    for transition in new.TRANSITIONS:
        if not transition.allows(new, old):
            yield Problem(".".join(filter(None, (path, transition.field))), transition.message)
    for attribute, field in type(new).model_fields.items():
        if attribute in ("metadata", "status"):
            continue
        before, after = getattr(old, attribute), getattr(new, attribute)
        name = ".".join(filter(None, (path, field.alias or attribute)))
        if isinstance(before, ApiModel) and isinstance(after, ApiModel):
            yield from _forbidden_changes(before, after, name)
        elif isinstance(before, tuple) and isinstance(after, tuple):
            named = {getattr(item, "name", None): item for item in before if isinstance(item, ApiModel)}
            for index, item in enumerate(after):
                if isinstance(item, ApiModel) and (earlier := named.get(getattr(item, "name", None))) is not None:
                    yield from _forbidden_changes(earlier, item, f"{name}[{index}]")
