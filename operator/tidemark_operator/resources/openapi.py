"""Writes the models down as CustomResourceDefinitions: structural OpenAPI v3 with defaults, bounds and CEL rules.

The walk starts from pydantic's JSON schema and turns what Kubernetes does not take into what it does: references are
inlined, `null` alternatives become optional fields, closed objects become listed properties.
"""

from __future__ import annotations

from typing import Any

from .base import GROUP, VERSION, ApiModel, Column, Resource

_KEPT = (
    "type",
    "format",
    "description",
    "enum",
    "default",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "x-kubernetes-int-or-string",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-validations",
)
_NUMBERS_OF_INT32 = range(-(2**31), 2**31)


def custom_resource_definition(kind: type[Resource]) -> dict[str, Any]:
    """Return the CRD of a kind as plain data."""
    names = kind.NAMES
    version: dict[str, Any] = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in names.columns],
    }
    if names.selectable_fields:
        version["selectableFields"] = [{"jsonPath": path} for path in names.selectable_fields]
    version["schema"] = {"openAPIV3Schema": _root_schema(kind)}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.plural}.{GROUP}",
            "labels": {"app.kubernetes.io/name": "tidemark", "app.kubernetes.io/component": "crd"},
            "annotations": {"helm.sh/resource-policy": "keep"},
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.kind,
                "listKind": f"{names.kind}List",
                "plural": names.plural,
                "singular": names.singular,
                "shortNames": [names.short],
                "categories": ["tidemark"],
            },
            "versions": [version],
        },
    }


def _column(column: Column) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": column.name, "type": column.type, "jsonPath": column.path}
    if column.wide:
        shown["priority"] = 1
    return shown


def _root_schema(kind: type[Resource]) -> dict[str, Any]:
    properties = {
        # The API server checks these three itself; a schema for metadata may hold no more.
        "apiVersion": {"type": "string"},
        "kind": {"type": "string"},
        "metadata": {"type": "object"},
        "spec": model_schema(_model_of(kind, "spec")),
        "status": model_schema(_model_of(kind, "status")),
    }
    schema: dict[str, Any] = {"type": "object", "description": _first_line(kind), "properties": properties}
    schema["required"] = ["spec"]
    return schema | _validations(kind)


def _model_of(kind: type[Resource], attribute: str) -> type[ApiModel]:
    annotation = kind.model_fields[attribute].annotation
    candidates = getattr(annotation, "__args__", (annotation,))
    return next(item for item in candidates if isinstance(item, type) and issubclass(item, ApiModel))


def _first_line(model: type[ApiModel]) -> str:
    return (model.__doc__ or "").strip().splitlines()[0]


def _validations(model: type[ApiModel]) -> dict[str, Any]:
    """The CEL rules that a model states itself."""
    rules = [
        *((rule.cel, rule.message, rule.field) for rule in model.RULES),
        *((transition.cel, transition.message, transition.field) for transition in model.TRANSITIONS),
    ]
    stated = []
    for cel, message, field in rules:
        if not cel:  # held by the models only: CEL cannot say it
            continue
        rule = {"rule": cel, "message": message}
        if field and not field.startswith("metadata"):
            rule["fieldPath"] = f".{field}"
        stated.append(rule)
    return {"x-kubernetes-validations": stated} if stated else {}


def model_schema(model: type[ApiModel]) -> dict[str, Any]:
    """Return the structural schema of a model and of all that it holds."""
    source = model.model_json_schema(by_alias=True, mode="validation")
    definitions = source.pop("$defs", {})
    return _structural(source, definitions, _models_by_title(model))


def _models_by_title(model: type[ApiModel]) -> dict[str, type[ApiModel]]:
    """Every model below `model`, itself included, by the name that pydantic gives its definition."""
    found: dict[str, type[ApiModel]] = {}

    def visit(annotation: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, ApiModel):
            if annotation.__name__ not in found:
                found[annotation.__name__] = annotation
                for field in annotation.model_fields.values():
                    visit(field.annotation)
            return
        for argument in getattr(annotation, "__args__", ()):
            visit(argument)

    visit(model)
    return found


def _structural(
    source: dict[str, Any], definitions: dict[str, Any], models: dict[str, type[ApiModel]]
) -> dict[str, Any]:
    source = _resolved(source, definitions)
    schema: dict[str, Any] = {key: source[key] for key in _KEPT if key in source}
    if "const" in source:
        schema["enum"] = [source["const"]]
    if schema.get("type") == "integer":
        bounds = {schema.get("minimum", 0), schema.get("maximum", 2**63)}
        schema["format"] = "int32" if all(bound in _NUMBERS_OF_INT32 for bound in bounds) else "int64"
        if schema.get("maximum") in (2**31 - 1, 2**63 - 1):
            del schema["maximum"]  # the format says as much
    if source.get("x-kubernetes-int-or-string"):
        schema["anyOf"] = source["anyOf"]
    if "items" in source:
        schema["items"] = _structural(source["items"], definitions, models)
    if "properties" in source:
        model = models[source["title"]]
        schema["properties"] = {
            name: _structural(part, definitions, models) for name, part in source["properties"].items()
        }
        if required := source.get("required"):
            schema["required"] = required
        if isinstance(schema.get("default"), dict):
            # The API server holds a default to the rules as it stands, without filling in the defaults inside it.
            schema["default"] = {
                name: part["default"] for name, part in schema["properties"].items() if "default" in part}
        schema |= _validations(model)
    elif schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        additional = source.get("additionalProperties")
        if isinstance(additional, dict):
            schema["additionalProperties"] = _structural(additional, definitions, models)
        else:
            schema["properties"] = {}
    return schema


def _resolved(source: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Follow references and drop the `null` alternative; what stands next to a reference wins over its target."""
    while True:
        if "$ref" in source:
            target = definitions[source["$ref"].rsplit("/", 1)[1]]
            beside = {key: value for key, value in source.items() if key != "$ref"}
        elif "anyOf" in source and not source.get("x-kubernetes-int-or-string"):
            alternatives = [item for item in source["anyOf"] if item.get("type") != "null"]
            if len(alternatives) != 1:
                raise ValueError(f"a structural schema has one type for a field, not {alternatives}")
            target = alternatives[0]
            # `title` beside an alternative is the field's; the title of the target names the model.
            beside = {key: value for key, value in source.items() if key not in ("anyOf", "title")}
        else:
            break
        source = {**target, **beside}
        if "$ref" not in beside and "$ref" in target:
            source["$ref"] = target["$ref"]
    if "default" in source and source["default"] is None:
        source = {key: value for key, value in source.items() if key != "default"}
    return source
