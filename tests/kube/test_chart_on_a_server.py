"""The chart is rendered by Helm itself, and a real API server takes what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest
from tidemark_operator.resources import KINDS

from tests.kube.client import Kube, Object
from tests.kube.control_plane import ControlPlane
from tests.kube.helm import CHART, Helm

pytestmark = pytest.mark.apiserver

DEFINITIONS = "customresourcedefinitions.apiextensions.k8s.io"


@pytest.fixture
def helm(control_plane: ControlPlane, tmp_path: Path) -> Helm:
    return Helm(control_plane.programs["helm"], tmp_path, control_plane.kubeconfig())


def kinds(documents: list[Object]) -> list[str]:
    return [document["spec"]["names"]["kind"] for document in documents
            if document["kind"] == "CustomResourceDefinition"]


def plural_of(document: Object) -> str:
    """The resource of a document of the chart."""
    group, _, _ = document["apiVersion"].rpartition("/")
    kind = document["kind"].lower()
    return (f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}s") + (f".{group}" if group else "")


def test_lint_finds_nothing(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


@pytest.mark.parametrize("version", ["1.32.0", "1.36.0"])
def test_every_definition_is_rendered(helm: Helm, version: str) -> None:
    assert sorted(kinds(helm.render(kube_version=version))) == sorted(KINDS)
    assert kinds(helm.render(kube_version=version, values={"crds": {"install": False}})) == []


def test_an_old_cluster_is_refused(helm: Helm) -> None:
    """Selectable fields are for everybody from 1.32 on."""
    with pytest.raises(AssertionError, match="kubeVersion"):
        helm.render(kube_version="1.31.9")


def test_a_value_that_does_not_exist_is_refused(helm: Helm) -> None:
    with pytest.raises(AssertionError, match="nonsense"):
        helm.render(values={"nonsense": True})


async def clear_away(kube: Kube, documents: list[Object]) -> None:
    """Delete what is not in the test's namespace; the definitions serve the other tests, policies would bind them."""
    for document in documents:
        if document["kind"] != "CustomResourceDefinition" and "namespace" not in document["metadata"]:
            await kube.delete(plural_of(document), document["metadata"]["name"])


async def test_what_is_rendered_applies(kube: Kube, helm: Helm) -> None:
    documents = helm.render(kube.namespace)
    assert documents
    for document in documents:
        await kube.apply(document, dry_run=True, manager="helm-template")
    try:
        for document in documents:
            await kube.apply(document, manager="helm-template")
    finally:
        await clear_away(kube, documents)


async def test_the_definitions_outlive_the_release(kube: Kube, helm: Helm) -> None:
    where = f"--namespace={kube.namespace}"
    helm.run("install", "tidemark", str(CHART), where, "--take-ownership")
    assert "STATUS: deployed" in helm.run("status", "tidemark", where)
    installed = await kube.list(DEFINITIONS, labels="app.kubernetes.io/name=tidemark")
    helm.run("upgrade", "tidemark", str(CHART), where)
    helm.run("uninstall", "tidemark", where)
    kept = await kube.list(DEFINITIONS, labels="app.kubernetes.io/name=tidemark")
    assert [each["metadata"]["uid"] for each in kept] == [each["metadata"]["uid"] for each in installed]
    assert sorted(kinds([{"kind": "CustomResourceDefinition", **each} for each in kept])) == sorted(KINDS)
