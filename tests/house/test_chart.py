"""The chart, without Helm: its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from tidemark_operator.resources import KINDS
from tidemark_operator.resources.kinds import Deletion

REPOSITORY = Path(__file__).parents[2]
CHART = REPOSITORY / "charts" / "tidemark"


def rendered_crds(install: bool) -> list[dict[str, Any]]:
    """Follow templates/crds.yaml as Helm does: one condition, one loop over files, one file per turn."""
    template = (CHART / "templates" / "crds.yaml").read_text(encoding="utf-8")
    template = re.sub(r"\{\{- /\*.*?\*/ -\}\}\s*", "", template, flags=re.DOTALL)
    shape = re.fullmatch(
        r"\{\{- if \.Values\.crds\.install \}\}\s*"
        r"\{\{- range \$path, \$content := \.Files\.Glob \"(?P<glob>[^\"]+)\" \}\}"
        r"(?P<body>\n---\n)\{\{ \$\.Files\.Get \$path \}\}\s*"
        r"\{\{- end \}\}\s*\{\{- end \}\}\s*",
        template,
    )
    assert shape, "templates/crds.yaml does more than this test knows"
    text = "".join(shape["body"] + path.read_text(encoding="utf-8") for path in sorted(CHART.glob(shape["glob"])))
    return [document for document in yaml.safe_load_all(text if install else "") if document]


def test_chart_metadata_is_complete() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert chart["apiVersion"] == "v2"
    assert chart["name"] == CHART.name
    assert re.fullmatch(r"\d+\.\d+\.\d+", chart["version"])


def test_chart_renders_one_definition_per_kind() -> None:
    documents = rendered_crds(install=True)
    assert {"CustomResourceDefinition"} == {document["kind"] for document in documents}
    assert {kind.name for kind in KINDS.values()} == {
        document["spec"]["names"]["kind"] for document in documents
    }
    assert rendered_crds(install=False) == []


def test_definitions_hold_nothing_that_a_template_would_expand() -> None:
    """They are read with .Files.Get, which does not expand; this keeps them safe to paste into a template too."""
    for path in (CHART / "files" / "crds").iterdir():
        assert "{{" not in path.read_text(encoding="utf-8"), path.name


def templates() -> dict[str, str]:
    return {str(path.relative_to(CHART)): path.read_text(encoding="utf-8")
            for path in (CHART / "templates").rglob("*") if path.suffix in (".yaml", ".tpl", ".txt")}


def test_the_operator_may_set_the_finalizer_of_every_kind_whose_data_goes_with_its_object() -> None:
    role = templates()["templates/operator-role.yaml"].split("---")[0]
    rules = yaml.safe_load("rules:" + role.partition("\nrules:")[2])["rules"]
    patched = {resource for rule in rules if "patch" in rule["verbs"] for resource in rule["resources"]}
    wanted = {kind.names.plural for kind in KINDS.values() if kind.deletion is Deletion.DETACH}
    assert "loggroups" in wanted and wanted <= patched


def lost_values(template: str) -> list[str]:
    """Return the values that a template asks for with `with`, and then does not write."""
    blocks = re.findall(r"\{\{-? with (\S+) \}\}(.*?)\{\{-? end \}\}", template, re.DOTALL)
    return [value for value, body in blocks if not re.search(r"\{\{[^}]*(?<![\w)$])\.(?=[\w\s)])", body)]


def leaves(values: Any, path: str = "") -> list[str]:
    """Return the paths of all values; an empty mapping is a value."""
    if not isinstance(values, dict) or not values:
        return [path]
    return [leaf for key, below in values.items() for leaf in leaves(below, f"{path}.{key}")]


def is_used(leaf: str, text: str) -> bool:
    """Say whether templates take a value, or a mapping that holds it as a whole."""
    keys = leaf.split(".")
    wholes = [".".join(keys[:depth]) for depth in range(2, len(keys) + 1)]
    return any(re.search(rf"\.Values{re.escape(whole)}(?![\w.])", text) for whole in wholes)


def test_every_value_is_passed_on() -> None:
    """To be seen in a rendered chart, which needs Helm: `tests/kube/test_rendered_chart.py`."""
    found, values = templates(), yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert [(name, lost) for name, text in found.items() if (lost := lost_values(text))] == []
    everything = "".join(found.values())
    assert [leaf for leaf in leaves(values) if not is_used(leaf, everything)] == []


def test_a_value_that_is_not_passed_on_is_seen() -> None:
    passed_on = "{{- with .Values.a }}\na: {{ . }}\n{{- end }}{{ with .Values.b }}b: {{ toYaml . }}{{ end }}"
    assert lost_values(passed_on) == []
    assert is_used(".a.b", "{{ .Values.a.b }}") and is_used(".a.b", "{{ .Values.a }}")
    assert not is_used(".a.b", "{{ .Values.a.bc }} {{ .Values.a.c }}")
    assert lost_values("{{- with .Values.a }}\na: 1\n{{- end }}{{- with .Values.b }}{{ $.Values.c }}{{- end }}") == [
        ".Values.a", ".Values.b"]


def test_values_and_their_schema_name_the_same_keys() -> None:
    """Whoever misspells a value is told so; what goes to Kubernetes as it is has keys of its own."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    del schema["properties"]["global"]
    assert closed(values, schema) > 20


def closed(values: dict[str, Any], schema: dict[str, Any]) -> int:
    """Assert that a block of values and its schema know the same keys; return how many values there are."""
    assert values.keys() == schema["properties"].keys()
    assert schema["additionalProperties"] is False
    return sum(
        closed(values[name], block) if "properties" in block else 1 for name, block in schema["properties"].items())


def test_every_value_is_explained() -> None:
    """By a comment above it, or above the values that stand together with it."""
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    explained = False
    for line in lines:
        if not line.strip():
            explained = False
        elif line.lstrip().startswith("#"):
            explained = True
        elif not line.endswith(":"):
            assert explained, line


def test_every_value_is_used() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    templates = "".join(path.read_text(encoding="utf-8") for path in (CHART / "templates").rglob("*.*"))
    for name in values:
        assert f".Values.{name}" in templates, name


def test_every_action_of_every_template_is_closed() -> None:
    for path in (CHART / "templates").rglob("*.*"):
        actions = re.findall(r"\{\{-?\s*(\w+|/\*)", path.read_text(encoding="utf-8"))
        opened = sum(action in ("if", "range", "with", "define", "block") for action in actions)
        assert opened == actions.count("end"), path.name
