"""The admission policies and roles of the chart on a real API server: who may do what, by name and by role."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kube.client import Kube, Object, Refused
from tests.kube.control_plane import ControlPlane
from tests.kube.helm import Helm
from tests.resource_examples import base, changed
from tests.waiting import until

pytestmark = pytest.mark.apiserver

ACTIVE_SECONDS = 30.0
SHARDS, GROUPS = "shards.tidemark.dev", "loggroups.tidemark.dev"
CLUSTERS, ACTS = "tidemarkclusters.tidemark.dev", "reconfigurations.tidemark.dev"
APPROVED = {"spec.approval": "Required", "spec.approvedPlan": "sha256:0123456789"}
OVERRIDES = {"spec.preconditions.fullyReplicated": "Ignored"}
RESOURCES = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies.admissionregistration.k8s.io",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings.admissionregistration.k8s.io",
    "ClusterRole": "clusterroles.rbac.authorization.k8s.io",
}


@pytest.fixture
async def ruled(kube: Kube, control_plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Kube]:
    """The administrator, with the chart's policies in force for an operator of this namespace."""
    helm = Helm(control_plane.programs["helm"], tmp_path, control_plane.kubeconfig())
    documents = [one for one in helm.render(kube.namespace) if one["kind"] in RESOURCES]
    for document in documents:
        await kube.apply(document)
    try:
        await eventually_refused(lambda: kube.create(base("Shard"), dry_run=True))
        await kube.create(changed("TidemarkCluster", {"spec.deletionProtection": "Enabled"}))
        await eventually_refused(lambda: delete_dry(kube, CLUSTERS, "it"))
        yield kube
    finally:
        for document in documents:
            await kube.delete(RESOURCES[document["kind"]], document["metadata"]["name"])


async def eventually_refused(act: Callable[[], Awaitable[Any]]) -> None:
    """A policy binds some time after it was written."""
    async def refused() -> bool:
        try:
            await act()
        except Refused as refused:
            assert refused.code == 403, refused
            return True
        return False

    await until(refused, "the policy binds", ACTIVE_SECONDS)


async def delete_dry(kube: Kube, resource: str, name: str) -> Object:
    return await kube.raw("DELETE", await kube.path(resource, name), {
        "kind": "DeleteOptions", "apiVersion": "v1", "dryRun": ["All"]})


async def bound(kube: Kube, control_plane: ControlPlane, user: str, *roles: str) -> Kube:
    """A user with ClusterRoles in the namespace."""
    for role in roles:
        await kube.create({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": f"{user}-{role}".replace(":", "-")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        })
    return Kube(control_plane.user(user), kube.namespace)


async def test_a_shard_is_written_by_the_operator_and_deleted_with_its_group(
    ruled: Kube, control_plane: ControlPlane
) -> None:
    group = await ruled.create(base("LogGroup"))
    owner = {"apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "name": "it", "uid": group["metadata"]["uid"]}
    name = f"system:serviceaccount:{ruled.namespace}:tidemark-operator"
    operator = await bound(ruled, control_plane, name, "cluster-admin")
    try:
        await operator.create(changed("Shard", {"metadata.ownerReferences": [owner]}))
        await operator.patch(f"{SHARDS}/status", "it", {"status": {"state": "Online", "epoch": 3}})
    finally:
        await operator.close()
    for act in (
        ruled.patch(SHARDS, "it", {"metadata": {"labels": {"a": "b"}}}),
        ruled.patch(f"{SHARDS}/status", "it", {"status": {"epoch": 9}}),
        ruled.delete(SHARDS, "it"),
    ):
        with pytest.raises(Refused, match="a Shard mirrors the metadata store") as refused:
            await act
        assert refused.value.code == 403
    assert (await ruled.get(SHARDS, "it"))["status"]["epoch"] == 3
    await ruled.delete(GROUPS, "it")
    await ruled.wait_gone(SHARDS, "it")


async def test_a_protected_cluster_goes_only_when_it_is_not_protected_any_more(ruled: Kube) -> None:
    with pytest.raises(Refused, match=r"set spec\.deletionProtection to Disabled first"):
        await ruled.delete(CLUSTERS, "it")
    await ruled.patch(CLUSTERS, "it", {"spec": {"deletionProtection": "Disabled"}})
    await ruled.delete(CLUSTERS, "it")
    await ruled.wait_gone(CLUSTERS, "it")


async def test_a_namespace_takes_a_protected_cluster_along(ruled: Kube) -> None:
    await ruled.delete("namespaces", ruled.namespace)
    await ruled.wait_gone(CLUSTERS, "it")


async def test_approving_and_overriding_are_for_the_role_of_that_purpose(
    ruled: Kube, control_plane: ControlPlane
) -> None:
    """`edit` may create acts, `tidemark-sre` may release them."""
    alice = await bound(ruled, control_plane, "alice", "tidemark-edit", "tidemark-view")
    sre = await bound(ruled, control_plane, "sre", "tidemark-sre")
    try:
        await until_allowed(lambda: alice.create(base("Reconfiguration"), dry_run=True))
        await until_allowed(lambda: sre.create(base("Reconfiguration"), dry_run=True))
        await eventually_refused(lambda: alice.create(changed("Reconfiguration", APPROVED), dry_run=True))
        with pytest.raises(Refused, match="ignoring a precondition needs the verb override"):
            await alice.create(changed("Reconfiguration", OVERRIDES), dry_run=True)
        await sre.create(changed("Reconfiguration", OVERRIDES), dry_run=True)
        await alice.create(changed("Reconfiguration", {"spec.approval": "Required"}))
        approval = {"spec": {"approvedPlan": APPROVED["spec.approvedPlan"]}}
        with pytest.raises(Refused, match="approving needs the verb approve"):
            await alice.patch(ACTS, "it", approval)
        await sre.patch(ACTS, "it", approval)
        await alice.patch(ACTS, "it", {"spec": {"suspend": True}})
        with pytest.raises(Refused):
            await alice.delete(CLUSTERS, "it")
        with pytest.raises(Refused):
            await alice.create(base("Shard"), dry_run=True)
    finally:
        await alice.close()
        await sre.close()


async def until_allowed(act: Callable[[], Awaitable[Any]]) -> None:
    """A role binding counts some time after it was written."""
    async def allowed() -> bool:
        try:
            await act()
        except Refused as refused:
            assert refused.code == 403, refused
            return False
        return True

    await until(allowed, "the role binding counts", ACTIVE_SECONDS)
