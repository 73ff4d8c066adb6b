"""The control plane itself: users, controllers, and its loss and return."""

from __future__ import annotations

import asyncio

import pytest

from tests.kube import binaries
from tests.kube.client import Kube, Object, Refused
from tests.kube.control_plane import ControlPlane

pytestmark = pytest.mark.apiserver


def config_map(name: str, **more: object) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **more}, "data": {"key": "value"}}


def test_the_server_is_the_one_that_is_pinned(control_plane: ControlPlane) -> None:
    if control_plane.programs["kube-apiserver"].parent == binaries.cache_directory():
        assert control_plane.version()["gitVersion"] == binaries.pinned_version(binaries.TOOLS["kube-apiserver"])


async def test_an_owner_takes_what_it_owns_along(kube: Kube) -> None:
    owner = await kube.create(config_map("owner"))
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}
    await kube.create(config_map("owned", ownerReferences=[reference]))
    await kube.delete("configmaps", "owner")
    await kube.wait_gone("configmaps", "owned")


async def test_an_owner_of_our_kinds_takes_what_it_owns_along(kube: Kube) -> None:
    group = await kube.create({
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": "orders"},
        "spec": {"clusterRef": {"name": "prod"}, "shards": 1}})
    reference = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "name": "orders", "uid": group["metadata"]["uid"],
        "controller": True, "blockOwnerDeletion": True}
    await kube.create(config_map("owned", ownerReferences=[reference]))
    await kube.delete("loggroups.tidemark.dev", "orders")
    await kube.wait_gone("configmaps", "owned")


async def test_a_namespace_takes_everything_along(kube: Kube) -> None:
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"{kube.namespace}-other"}})
    await kube.create(config_map("inside", namespace=f"{kube.namespace}-other"))
    await kube.delete("namespaces", f"{kube.namespace}-other")
    await kube.wait_gone("namespaces", f"{kube.namespace}-other")


async def test_a_user_may_do_what_a_role_allows(kube: Kube, control_plane: ControlPlane) -> None:
    who = f"reader-of-{kube.namespace}"
    reader = Kube(control_plane.user(who, ["people"]), kube.namespace)
    try:
        await kube.create(config_map("one"))
        with pytest.raises(Refused) as refused:
            await reader.get("configmaps", "one")
        assert refused.value.code == 403
        await kube.create({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "view"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": who}]})
        async with asyncio.timeout(30):
            while True:  # the authorizer learns of the binding by a watch of its own
                try:
                    assert (await reader.get("configmaps", "one"))["data"] == {"key": "value"}
                    break
                except Refused as late:
                    assert late.code == 403
        with pytest.raises(Refused) as refused:
            await reader.delete("configmaps", "one")
        assert refused.value.code == 403
    finally:
        await reader.close()


async def test_an_admission_policy_is_enforced(kube: Kube) -> None:
    name = f"policy-of-{kube.namespace}"
    await kube.create({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]},
            "validations": [{"expression": "object.metadata.name != 'forbidden'", "message": "not that name"}]}})
    await kube.create({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kube.namespace}}}}})
    try:
        async with asyncio.timeout(60):
            while True:  # policies take effect a moment after they are accepted
                try:
                    await kube.create(config_map("forbidden"), dry_run=True)
                except Refused as refused:
                    assert "not that name" in refused.message
                    break
        await kube.create(config_map("allowed"))
    finally:
        await kube.delete("validatingadmissionpolicybindings.admissionregistration.k8s.io", name)
        await kube.delete("validatingadmissionpolicies.admissionregistration.k8s.io", name)


async def test_a_disruption_budget_is_kept_up_to_date(kube: Kube) -> None:
    await kube.create({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "nodes"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "nodes"}}}})
    found = await kube.wait(
        "poddisruptionbudgets.policy", "nodes", lambda budget: "observedGeneration" in budget.get("status", {}))
    assert found["status"]["disruptionsAllowed"] == 0


async def test_two_appliers_conflict_over_a_field(kube: Kube) -> None:
    await kube.apply(config_map("shared"), manager="one")
    other = config_map("shared") | {"data": {"key": "another"}}
    with pytest.raises(Refused) as refused:
        await kube.apply(other, manager="two", force=False)
    assert refused.value.code == 409
    assert [cause["field"] for cause in refused.value.causes] == [".data.key"]


async def test_the_api_server_comes_back_with_what_it_had(kube: Kube, control_plane: ControlPlane) -> None:
    before = await kube.create(config_map("kept"))
    control_plane.stop_api()
    assert not control_plane.api.running
    with pytest.raises(OSError, match="Connect"):
        await kube.get("configmaps", "kept")
    await asyncio.to_thread(control_plane.start_api)
    assert (await kube.get("configmaps", "kept"))["metadata"]["uid"] == before["metadata"]["uid"]
