"""The chart, without Helm: its files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from tidemark_operator.resources import KINDS

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
