"""The chart, without Helm: its files, and what Helm rendered of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from tidemark_operator.kube.attachments import OPERATORS
from tidemark_operator.kube.builders import HTTP_PORT, IMAGE, USER
from tidemark_operator.main import parse_flags
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


# --- what Helm renders, as it is checked in; tests/kube/test_chart_on_a_server.py holds it fresh

RENDERED = {
    path.name: [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]
    for path in sorted((CHART.parent / "rendered").glob("*.yaml"))}
DOCUMENTS = [document for documents in RENDERED.values() for document in documents]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    found = [document for document in DOCUMENTS if document["kind"] in kinds]
    assert found, kinds
    return found


def test_the_files_rendered_repeat_nothing() -> None:
    names = [(document["kind"], document["metadata"]["name"]) for document in DOCUMENTS]
    assert len(names) == len(set(names)) > 20
    assert {"tidemark.yaml", "etcd-for-trials.yaml", "monitoring.yaml"} == RENDERED.keys()


def test_every_pod_fits_the_restricted_standard() -> None:
    for document in of_kind("Deployment", "StatefulSet"):
        spec = document["spec"]["template"]["spec"]
        security = spec["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == USER
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
            assert {"livenessProbe", "readinessProbe", "resources"} <= container.keys()


def test_the_operator_takes_the_flags_that_it_is_given() -> None:
    (deployment,) = of_kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    flags = parse_flags(container["args"])
    assert flags.kubernetes
    assert flags.namespace == [deployment["metadata"]["namespace"]]
    assert flags.http_listen == f"0.0.0.0:{HTTP_PORT}"
    assert flags.node_image == IMAGE
    assert flags.ca_overlap == parse_flags(["--kubernetes"]).ca_overlap, "unset, it is as long as the operator has it"
    assert [port["containerPort"] for port in container["ports"]] == [HTTP_PORT]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert OPERATORS["podSelector"]["matchLabels"].items() <= labels.items(), "policies of clusters know it by these"


def test_roles_hold_no_wildcard_and_the_operator_none_of_the_dangerous_ones() -> None:
    for role in of_kind("ClusterRole"):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]], role["metadata"]["name"]
    for role in of_kind("ClusterRole"):
        if role["metadata"]["name"].startswith("tidemark-operator"):
            resources = {resource for rule in role["rules"] for resource in rule["resources"]}
            verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
            assert not resources & {
                "pods/exec", "namespaces", "clusterroles", "roles", "rolebindings", "clusterrolebindings",
                "customresourcedefinitions", "serviceaccounts/token"}
            assert not verbs & {"impersonate", "escalate", "bind", "deletecollection", "approve", "override"}


def test_only_reading_is_bound_outside_of_namespaces() -> None:
    roles = {role["metadata"]["name"]: role for role in of_kind("ClusterRole")}
    for binding in of_kind("ClusterRoleBinding"):
        for rule in roles[binding["roleRef"]["name"]]["rules"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
            assert "secrets" not in rule["resources"]


def test_alerts_and_dashboards_are_rendered_whole() -> None:
    (rules,) = of_kind("PrometheusRule")
    assert rules["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    boards = of_kind("ConfigMap")
    for path in (CHART / "files" / "dashboards").iterdir():
        (board,) = [each["data"][f"tidemark-{path.name}"] for each in boards if f"tidemark-{path.name}" in each["data"]]
        assert json.loads(board) == json.loads(path.read_text(encoding="utf-8"))
