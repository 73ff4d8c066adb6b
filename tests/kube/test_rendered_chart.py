"""The chart as Helm renders it, without an API server: pods, roles, flags, alerts, and the files of `make rendered`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tidemark_operator.kube.attachments import OPERATORS
from tidemark_operator.kube.builders import HTTP_PORT, IMAGE, USER
from tidemark_operator.main import parse_flags

from tests.kube.helm import CHART, RENDERINGS, Helm

pytestmark = pytest.mark.apiserver  # Helm is one of the programs that these tests build

Documents = list[dict[str, Any]]
OfKind = Callable[..., Documents]


@pytest.fixture(scope="module")
def rendered(programs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Documents]:
    files = Helm(programs["helm"], tmp_path_factory.mktemp("helm")).rendered_files()
    return {name: [each for each in yaml.safe_load_all(text) if each] for name, text in files.items()}


@pytest.fixture
def of_kind(rendered: dict[str, Documents]) -> OfKind:
    def find(*kinds: str) -> Documents:
        found = [each for documents in rendered.values() for each in documents if each["kind"] in kinds]
        assert found, kinds
        return found

    return find


def test_the_files_rendered_repeat_nothing(rendered: dict[str, Documents]) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for documents in rendered.values() for each in documents]
    assert len(names) == len(set(names)) > 20
    assert RENDERINGS.keys() == rendered.keys() == {"tidemark.yaml", "etcd-for-trials.yaml", "monitoring.yaml"}


def test_every_pod_fits_the_restricted_standard(of_kind: OfKind) -> None:
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


def test_the_operator_takes_the_flags_that_it_is_given(of_kind: OfKind) -> None:
    (deployment,) = of_kind("Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    flags = parse_flags(container["args"])
    assert flags.kubernetes
    assert flags.namespace == [deployment["metadata"]["namespace"]]
    assert flags.http_listen == f"0.0.0.0:{HTTP_PORT}"
    assert flags.node_image == IMAGE
    assert flags.allowed_image == [], "clusters run the image of this project's nodes unless the installer says more"
    assert flags.ca_overlap == parse_flags(["--kubernetes"]).ca_overlap, "unset, it is as long as the operator has it"
    assert [port["containerPort"] for port in container["ports"]] == [HTTP_PORT]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert OPERATORS["podSelector"]["matchLabels"].items() <= labels.items(), "policies of clusters know it by these"


def test_roles_hold_no_wildcard_and_the_operator_none_of_the_dangerous_ones(of_kind: OfKind) -> None:
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


def test_only_reading_is_bound_outside_of_namespaces(of_kind: OfKind) -> None:
    roles = {role["metadata"]["name"]: role for role in of_kind("ClusterRole")}
    for binding in of_kind("ClusterRoleBinding"):
        for rule in roles[binding["roleRef"]["name"]]["rules"]:
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
            assert "secrets" not in rule["resources"]


def test_alerts_and_dashboards_are_rendered_whole(of_kind: OfKind) -> None:
    (rules,) = of_kind("PrometheusRule")
    assert rules["spec"] == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text(encoding="utf-8"))
    boards = of_kind("ConfigMap")
    for path in (CHART / "files" / "dashboards").iterdir():
        (board,) = [each["data"][f"tidemark-{path.name}"] for each in boards if f"tidemark-{path.name}" in each["data"]]
        assert json.loads(board) == json.loads(path.read_text(encoding="utf-8"))
