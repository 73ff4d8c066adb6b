"""Machines that are being emptied: which they are, and whose leaderships leave."""

from __future__ import annotations

from typing import Any

import pytest
from tidemark_operator.kube.drains import emptied, leaving, relocating, relocation
from tidemark_operator.resources import load_resource


def machine(name: str, *taints: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {**spec, "taints": [{"key": key} for key in taints] or None}}


@pytest.mark.parametrize(("found", "going"), [
    (machine("m"), False),
    (machine("m", unschedulable=True), True),
    (machine("m", "node.kubernetes.io/unschedulable"), True),
    (machine("m", "ToBeDeletedByClusterAutoscaler"), True),
    (machine("m", "karpenter.sh/disrupted"), True),
    (machine("m", "dedicated", "node.kubernetes.io/not-ready", "DeletionCandidateOfClusterAutoscaler"), False),
    ({"metadata": {"name": "m"}}, False),
])
def test_what_makes_a_machine_one_that_is_emptied(found: dict[str, Any], going: bool) -> None:
    assert emptied([found]) == ({"m"} if going else set())


def test_pods_leave_such_machines_unless_they_are_to_ignore_it() -> None:
    machines = [machine("m1", unschedulable=True), machine("m2")]
    pods = {
        "n1": {"metadata": {}, "spec": {"nodeName": "m1"}},
        "n2": {"metadata": {}, "spec": {"nodeName": "m2"}},
        "n3": {"metadata": {"deletionTimestamp": "x"}, "spec": {"nodeName": "m1"}},
        "n4": {"metadata": {}, "spec": {}},
    }
    assert set(leaving({}, pods, machines)) == {"n1"}
    assert set(leaving({"disruption": {"onNodeDrain": "Relocate"}}, pods, machines)) == {"n1"}
    assert leaving({"disruption": {"onNodeDrain": "Ignore"}}, pods, machines) == {}
    assert leaving({}, pods, []) == {}, "machines may not be read"


def test_copies_leave_too_where_they_are_to_be_relocated() -> None:
    assert relocating({"disruption": {"onNodeDrain": "Relocate"}}, ["n1"]) == {"n1"}
    assert relocating({"disruption": {"onNodeDrain": "HandOver"}}, ["n1"]) == relocating({}, ["n1"]) == frozenset()
    pod = {"metadata": {"uid": "0123456789"}, "spec": {"nodeName": "m1"}}
    name, spec = relocation("prod-1", pod)
    assert name == "prod-1-relocate-01234567"
    assert spec["nodeSwap"] == {"from": "prod-1", "to": {"spread": {}}, "removeSource": "Keep"}
    manifest = {"apiVersion": "tidemark.dev/v1alpha1", "kind": "Reconfiguration", "metadata": {"name": name},
                "spec": {"clusterRef": {"name": "prod"}, **spec}}
    assert load_resource(manifest, "test").name == name
