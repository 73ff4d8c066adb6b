"""The chart's etcd for trials, started as the chart renders it, on a network like a pod's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kube import pod_network
from tests.kube.helm import Helm
from tests.kube.rewriting import Rewriting

pytestmark = pytest.mark.apiserver  # Helm and etcd are among the programs that these tests build


@pytest.fixture
def container(programs: dict[str, Path], tmp_path: Path) -> dict[str, Any]:
    """The container of the chart's etcd."""
    rendered = Helm(programs["helm"], tmp_path / "helm").render(values={"etcd": {"enabled": True}})
    (workload,) = [each for each in rendered if each["kind"] == "StatefulSet"]
    (made,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(made)


def test_etcd_starts_where_a_default_route_leads_out_of_the_pod(
    container: dict[str, Any], programs: dict[str, Path], tmp_path: Path
) -> None:
    if lack := pod_network.lack():
        pytest.skip(lack)
    (mount,) = container["volumeMounts"]
    rewritten = Rewriting({mount["mountPath"]: tmp_path / "volume"}, {})
    assert container["command"] == ["etcd"]
    (port,) = [each["containerPort"] for each in container["ports"] if each["name"] == "client"]
    ready = f"http://{pod_network.ADDRESS}:{port}{container['readinessProbe']['httpGet']['path']}"
    answered, said = pod_network.answers([str(programs["etcd"]), *map(rewritten, container["args"])], ready)
    assert answered, said


def test_no_peer_url_of_etcd_is_the_default_that_it_replaces(container: dict[str, Any]) -> None:
    """etcd takes `http://localhost:2380` for a flag that is not set; this holds where no namespace can be made too."""
    flags = dict(each.removeprefix("--").split("=", 1) for each in container["args"])
    urls = {name: value for name, value in flags.items() if "peer" in name or "cluster" in name}
    assert urls == {
        "listen-peer-urls": "http://127.0.0.1:2380", "initial-advertise-peer-urls": "http://127.0.0.1:2380",
        "initial-cluster": "etcd=http://127.0.0.1:2380"}
