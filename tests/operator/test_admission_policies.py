"""The admission policies of the chart, each judged over requests with a CEL interpreter: who may do what.

A real API server judges them too (`tests/kube/test_policies_on_a_server.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cel
import pytest
import yaml

from tests.resource_examples import changed
from tests.resource_judges import schema_of, with_defaults

TEMPLATE = Path(__file__).parents[2] / "charts/tidemark/templates/admission-policies.yaml"
OPERATOR = "system:serviceaccount:data:tidemark-operator"
VALUES = {".Release.Namespace": "data", ".Values.serviceAccount.name": "tidemark-operator"}


def rendered() -> list[dict[str, Any]]:
    """Follow the template: one condition around everything, and two values."""
    text = re.sub(r"\{\{- /\*.*?\*/ -\}\}\s*", "", TEMPLATE.read_text(encoding="utf-8"), flags=re.DOTALL)
    shape = re.fullmatch(r"\{\{- if \.Values\.admissionPolicies\.install \}\}(.*)\{\{- end \}\}\s*", text, re.DOTALL)
    assert shape, "the template does more than this test knows"
    return list(yaml.safe_load_all(re.sub(r"\{\{ ([.\w]+) \}\}", lambda found: VALUES[found[1]], shape[1])))


DOCUMENTS = rendered()
POLICIES = {one["metadata"]["name"]: one["spec"] for one in DOCUMENTS if one["kind"] == "ValidatingAdmissionPolicy"}


def denials(
    policy: str, *, user: str, groups: tuple[str, ...] = (), new: Any = None, old: Any = None,
    may: Callable[[str], bool] = lambda verb: False,
) -> list[str]:
    """Messages of the validations that refuse the request; none where the policy does not match it."""
    context = cel.Context()
    context.add_variable("request", {"userInfo": {"username": user, "groups": [*groups, "system:authenticated"]}})
    context.add_variable("object", new)
    context.add_variable("oldObject", old)
    context.add_variable("authorizer", {"requestResource": {"allowed": True}})
    context.add_function("check", lambda resource, verb: {"allowed": may(verb)})
    context.add_function("allowed", lambda checked: checked["allowed"])
    spec = POLICIES[policy]
    if not all(cel.evaluate(one["expression"], context) for one in spec.get("matchConditions", ())):
        return []
    variables = {one["name"]: cel.evaluate(one["expression"], context) for one in spec.get("variables", ())}
    context.add_variable("variables", variables)
    return [one["message"] for one in spec["validations"] if not cel.evaluate(one["expression"], context)]


def stored(kind: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """An object as admission sees it, with its defaults."""
    return with_defaults(changed(kind, changes or {}), schema_of(kind))


def test_every_policy_is_bound_and_fails_closed() -> None:
    bindings = [one for one in DOCUMENTS if one["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert {one["spec"]["policyName"] for one in bindings} == POLICIES.keys()
    assert all(one["spec"]["validationActions"] == ["Deny"] for one in bindings)
    for name, spec in POLICIES.items():
        assert spec["failurePolicy"] == "Fail", name
        assert all(one["message"] and one["reason"] == "Forbidden" for one in spec["validations"]), name


@pytest.mark.parametrize(("user", "groups", "allowed"), [
    (OPERATOR, ("system:serviceaccounts:data",), True),
    ("system:serviceaccount:kube-system:generic-garbage-collector", ("system:serviceaccounts:kube-system",), True),
    ("system:kube-controller-manager", (), True),
    ("admin", ("system:masters",), False),
    ("system:serviceaccount:other:tidemark-operator", ("system:serviceaccounts:other",), False),
])
def test_a_shard_is_written_by_the_operator_alone(user: str, groups: tuple[str, ...], allowed: bool) -> None:
    name = "tidemark-shards-are-projections"
    assert (denials(name, user=user, groups=groups, new=stored("Shard")) == []) is allowed
    (rule,) = POLICIES[name]["matchConstraints"]["resourceRules"]
    assert set(rule["operations"]) == {"CREATE", "UPDATE", "DELETE"}
    assert set(rule["resources"]) == {"shards", "shards/status"}


@pytest.mark.parametrize(("protection", "user", "groups", "allowed"), [
    ("Enabled", "alice", (), False),
    ("Enabled", "system:kube-controller-manager", (), True),
    ("Disabled", "alice", (), True),
])
def test_a_protected_cluster_is_not_deleted(
    protection: str, user: str, groups: tuple[str, ...], allowed: bool
) -> None:
    old = stored("TidemarkCluster", {"spec.deletionProtection": protection})
    assert (denials("tidemark-deletion-protection", user=user, groups=groups, old=old) == []) is allowed


PLAN, OTHER_PLAN = "sha256:0123456789", "sha256:9876543210"
APPROVED = {"spec.approval": "Required", "spec.approvedPlan": PLAN}
CONTRACT = {
    "spec.type": "Contract", "spec.nodeSwap": None,
    "spec.contract": {"logGroup": "orders", "factor": 2, "belowThree": "Allowed"},
}


@pytest.mark.parametrize(("old", "new", "verb"), [
    (None, {}, None),
    (None, APPROVED, "approve"),
    ({"spec.approval": "Required"}, APPROVED, "approve"),
    ({**APPROVED, "spec.approvedPlan": OTHER_PLAN}, APPROVED, "approve"),
    (APPROVED, {**APPROVED, "spec.suspend": True}, None),
    (APPROVED, {"spec.approval": "Required"}, None),  # taking an approval back is no approval
    (None, {"spec.preconditions.fullyReplicated": "Ignored"}, "override"),
    (None, {"spec.preconditions.failureDomains": "Ignore"}, "override"),
    (None, CONTRACT, "override"),
    (None, {**CONTRACT, "spec.contract": {"logGroup": "orders", "factor": 3}}, None),
    (CONTRACT, {**CONTRACT, "spec.cancel": True}, None),
])
def test_approving_and_overriding_take_verbs_of_their_own(
    old: dict[str, Any] | None, new: dict[str, Any], verb: str | None
) -> None:
    before = stored("Reconfiguration", old) if old is not None else None
    asked = {"user": "alice", "new": stored("Reconfiguration", new), "old": before}
    refused = denials("tidemark-reconfiguration-verbs", **asked)
    assert [message for message in refused if f"the verb {verb}" in message] == refused
    assert bool(refused) is (verb is not None)
    assert denials("tidemark-reconfiguration-verbs", **asked, may=lambda wanted: wanted == verb) == []
