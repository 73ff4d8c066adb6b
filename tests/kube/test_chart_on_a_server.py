"""The chart is rendered by Helm itself, and a real API server takes what comes out."""

from __future__ import annotations

import asyncio
import re
import shutil
import tarfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tidemark
import yaml
from tidemark_operator.main import parse_flags
from tidemark_operator.resources import KINDS

from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import ControlPlane
from tests.kube.helm import CHART, Helm
from tests.kube.operators import addresses, cluster, log_group
from tests.kube.pod_runner import PodRunner
from tests.waiting import until

pytestmark = pytest.mark.apiserver

OPERATOR = "tidemark-operator"
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


def rendered(helm: Helm, **values: Any) -> dict[tuple[str, str, str], Object]:
    """What other values make of the chart, by kind, namespace and name."""
    documents = helm.render("ours", values={"crds": {"install": False}, **values})
    found = {
        (each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in documents}
    assert len(found) == len(documents)
    return found


def test_the_operator_is_bound_where_it_watches(helm: Helm) -> None:
    two = rendered(helm, watchNamespaces=["one", "two"])
    assert {key for key in two if key[0].endswith("RoleBinding")} == {
        ("RoleBinding", "one", OPERATOR), ("RoleBinding", "two", OPERATOR),
        ("ClusterRoleBinding", "", "tidemark-operator-machines")}
    for key, binding in two.items():
        if key[0].endswith("RoleBinding"):
            assert binding["subjects"] == [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": "ours"}]
    assert {"--namespace=one", "--namespace=two"} <= set(arguments(two))
    everywhere = rendered(helm, watchAnyNamespace=True)
    assert ("ClusterRoleBinding", "", OPERATOR) in everywhere
    assert not [key for key in everywhere if key[0] == "RoleBinding"]
    assert "--all-namespaces" in arguments(everywhere)
    assert not [each for each in arguments(everywhere) if each.startswith("--namespace")]
    with pytest.raises(AssertionError, match="exclude each other"):
        rendered(helm, watchAnyNamespace=True, watchNamespaces=["one"])
    unbound = rendered(helm, rbac={"createOperatorRole": False}, serviceAccount={"create": False})
    assert not [key for key in unbound if "Binding" in key[0] and key[0] != "ValidatingAdmissionPolicyBinding"]
    assert not [key for key in unbound if key[0] == "ServiceAccount"]


def arguments(documents: dict[tuple[str, str, str], Object]) -> list[str]:
    spec = documents["Deployment", "ours", OPERATOR]["spec"]["template"]["spec"]
    return list(spec["containers"][0]["args"])


def test_values_reach_the_pods(helm: Helm) -> None:
    digest = f"sha256:{'0' * 64}"
    found = rendered(
        helm, image={"repository": "registry.example/operator", "tag": "9", "digest": digest}, replicaCount=1,
        imagePullSecrets=[{"name": "pull"}], podLabels={"team": "a"}, podAnnotations={"note": "b"},
        nodeSelector={"disk": "any"}, tolerations=[{"key": "k", "operator": "Exists"}], priorityClassName="high",
        affinity={"nodeAffinity": {}}, extraEnv=[{"name": "E", "value": "1"}],
        extraVolumes=[{"name": "v", "emptyDir": {}}], extraVolumeMounts=[{"name": "v", "mountPath": "/v"}],
        networkPolicy={"metricsFrom": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
        nodeImage={"repository": OWN_NODES}, security={"allowedImages": ["registry.example/team/", "*"]},
        log={"level": "debug", "format": "text"}, caOverlapSeconds=31_536_000)
    template = found["Deployment", "ours", OPERATOR]["spec"]["template"]
    spec, container = template["spec"], template["spec"]["containers"][0]
    assert container["image"] == f"registry.example/operator@{digest}", "a digest counts for more than a tag"
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["annotations"] == {"note": "b"}
    assert (spec["imagePullSecrets"], spec["nodeSelector"], spec["priorityClassName"], spec["affinity"]) == (
        [{"name": "pull"}], {"disk": "any"}, "high", {"nodeAffinity": {}})
    assert spec["tolerations"][0]["key"] == "k"
    assert container["env"] == [{"name": "E", "value": "1"}]
    assert container["volumeMounts"][-1] == {"name": "v", "mountPath": "/v"}
    assert spec["volumes"][-1] == {"name": "v", "emptyDir": {}}
    assert {f"--node-image={OWN_NODES}", "--log-level=debug", "--log-format=text", "--ca-overlap=31536000"} <= set(
        arguments(found))
    assert parse_flags(arguments(found)).allowed_image == ["registry.example/team/", "*"]
    (rule,) = found["NetworkPolicy", "ours", OPERATOR]["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]
    assert not [key for key in found if key[0] == "PodDisruptionBudget"], "the only operator can be moved"


def test_values_of_the_release_before_still_render(helm: Helm) -> None:
    """`helm upgrade --reuse-values` brings none of the keys that are new."""
    assert parse_flags(arguments(rendered(helm, security=None))).allowed_image == []


@pytest.mark.parametrize(("values", "said"), [
    ({"replicaCount": 0}, "replicaCount"), ({"image": {"digest": "sha256:short"}}, "digest"),
    ({"watchNamespaces": ["Not A Name"]}, "watchNamespaces"), ({"log": {"level": "loud"}}, "level"),
    ({"metrics": {"podMonitor": {"enabled": "yes"}}}, "enabled"), ({"etcd": {"sizes": "1Gi"}}, "sizes"),
    ({"security": {"allowedImages": ["Not An Image"]}}, "allowedImages"),
    ({"security": {"allowedImages": "*"}}, "allowedImages"), ({"security": {"images": []}}, "images"),
    ({"caOverlapSeconds": -1}, "caOverlapSeconds"), ({"caOverlapSeconds": "1d"}, "caOverlapSeconds"),
    ({"caOverlapSeconds": 31_536_001}, "caOverlapSeconds")])
def test_values_that_cannot_be_meant_are_refused(helm: Helm, values: Object, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        helm.render(values=values)


def test_a_package_holds_the_definitions(helm: Helm, tmp_path: Path) -> None:
    """In a checkout `files/crds` of the chart is a link; a package needs the files themselves."""
    helm.run("package", str(CHART), f"--destination={tmp_path}")
    (package,) = tmp_path.glob("*.tgz")
    with tarfile.open(package) as files:
        held = {
            Path(member.name).name: files.extractfile(member).read()  # type: ignore[union-attr]
            for member in files if member.isfile() and "/files/crds/" in member.name}
    assert held == {path.name: path.read_bytes() for path in (CHART.parents[1] / "crds").iterdir()}


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


PROTECTION = "tidemark-deletion-protection"
POLICIES = tuple(f"validatingadmissionpolic{end}.admissionregistration.k8s.io" for end in ("ybindings", "ies"))


async def test_what_clusters_need_outlives_the_release(kube: Kube, helm: Helm) -> None:
    """Definitions, the protection of clusters and the etcd for trials stay; the next release takes them over."""
    where, values = f"--namespace={kube.namespace}", {"etcd": {"enabled": True}}
    helm.run("install", "tidemark", str(CHART), where, "--take-ownership", values=values)
    assert "STATUS: deployed" in helm.run("status", "tidemark", where)
    installed = await kube.list(DEFINITIONS, labels="app.kubernetes.io/name=tidemark")
    etcd = await kube.get("statefulsets.apps", "tidemark-etcd")
    helm.run("upgrade", "tidemark", str(CHART), where, values=values)
    helm.run("uninstall", "tidemark", where)
    try:
        kept = await kube.list(DEFINITIONS, labels="app.kubernetes.io/name=tidemark")
        assert [each["metadata"]["uid"] for each in kept] == [each["metadata"]["uid"] for each in installed]
        assert sorted(kinds([{"kind": "CustomResourceDefinition", **each} for each in kept])) == sorted(KINDS)
        for resource in ("statefulsets.apps", "services", "networkpolicies.networking.k8s.io"):
            assert "deletionTimestamp" not in (await kube.get(resource, "tidemark-etcd"))["metadata"], resource
        for resource in POLICIES:
            found = await kube.list(resource, labels="app.kubernetes.io/name=tidemark")
            assert [each["metadata"]["name"] for each in found] == [PROTECTION]
        assert not await kube.list("deployments.apps")
        helm.run("install", "tidemark", str(CHART), where, values=values)
        again = await kube.get("statefulsets.apps", "tidemark-etcd")
        assert (again["metadata"]["uid"], again["metadata"]["generation"]) == (
            etcd["metadata"]["uid"], etcd["metadata"]["generation"]), "the only member was not restarted"
        helm.run("uninstall", "tidemark", where)
    finally:
        for resource in POLICIES:
            await kube.delete(resource, PROTECTION)


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The chart, of another version."""
    made = tmp_path / "later"
    shutil.copytree(CHART, made)
    described = (made / "Chart.yaml").read_text(encoding="utf-8")
    newer = re.sub(r"^(version|appVersion): .*$", r"\1: 9.9.9", described, flags=re.MULTILINE)
    assert newer.count("9.9.9") == 2
    (made / "Chart.yaml").write_text(newer, encoding="utf-8")
    return made


async def test_an_upgrade_that_fails_does_not_restart_the_etcd_for_trials(kube: Kube, helm: Helm, later: Path) -> None:
    where, values = f"--namespace={kube.namespace}", {"etcd": {"enabled": True}}
    helm.run("install", "tidemark", str(CHART), where, "--take-ownership", values=values)
    try:
        before = await kube.get("statefulsets.apps", "tidemark-etcd")
        refused = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
                   "metadata": {"name": "last"}, "spec": {"policyName": "none", "validationActions": ["Nonsense"]}}
        (later / "templates" / "refused.yaml").write_text(yaml.safe_dump(refused), encoding="utf-8")
        with pytest.raises(AssertionError, match="Nonsense"):
            helm.run("upgrade", "tidemark", str(later), where, values=values)
        after = await kube.get("statefulsets.apps", "tidemark-etcd")
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
    finally:
        helm.run("uninstall", "tidemark", where)
        for resource in POLICIES:
            await kube.delete(resource, PROTECTION)


def test_another_version_of_the_chart_does_not_restart_the_etcd_for_trials(helm: Helm, later: Path) -> None:
    def rendered_spec(chart: Path) -> Object:
        (found,) = [each for each in helm.render(values={"etcd": {"enabled": True}}, chart=chart)
                    if each["kind"] == "StatefulSet"]
        return dict(found["spec"])

    assert rendered_spec(later) == rendered_spec(CHART)


OWN_NODES = "registry.example:5000/team/tidemark-node"
EVERYTHING = {
    "nodeImage": {"repository": OWN_NODES}, "crds": {"install": False}, "etcd": {"enabled": True},
    "metrics": {name: {"enabled": True} for name in ("podMonitor", "rules", "dashboards")}}


@pytest.fixture
async def monitoring(kube: Kube) -> AsyncIterator[None]:
    """The kinds of the Prometheus operator, whatever stands in them."""
    definitions = [
        {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
         "metadata": {"name": f"{kind.lower()}s.monitoring.coreos.com"},
         "spec": {"group": "monitoring.coreos.com", "scope": "Namespaced",
                  "names": {"kind": kind, "plural": f"{kind.lower()}s", "singular": kind.lower()},
                  "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {
                      "type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]}}
        for kind in ("PodMonitor", "PrometheusRule")]
    for definition in definitions:
        await kube.apply(definition)
    for definition in definitions:
        name = definition["metadata"]["name"]
        await kube.wait(DEFINITIONS, name, lambda found: condition(found, "Established") == "True")
    yield
    for definition in definitions:
        await kube.delete(DEFINITIONS, definition["metadata"]["name"])


@pytest.fixture
async def installed(kube: Kube, helm: Helm, monitoring: None) -> AsyncIterator[list[Object]]:
    """The chart with all it has, as `helm template` renders it; its nodes are of a registry of ours."""
    documents = helm.render(kube.namespace, values=EVERYTHING)
    await kube.patch("namespaces", kube.namespace, {"metadata": {"labels": {
        "pod-security.kubernetes.io/enforce": "restricted"}}})
    try:
        for document in documents:
            await kube.apply(document, manager="helm-template")
        yield documents
    finally:
        await clear_away(kube, documents)


async def test_the_operator_works_from_its_deployment(
    kube: Kube, helm: Helm, control_plane: ControlPlane, pod_runner: PodRunner, installed: list[Object]
) -> None:
    """Two operators with the token of their account, and no permissions but what the chart gives, serve a cluster."""
    await kube.wait("deployments.apps", OPERATOR, lambda found: found.get("status", {}).get("readyReplicas") == 2)
    budget = await kube.wait(
        "poddisruptionbudgets.policy", OPERATOR, lambda found: found.get("status", {}).get("expectedPods") == 2)
    assert budget["status"]["disruptionsAllowed"] == 1
    etcd = await kube.wait("pods", "tidemark-etcd-0", lambda found: condition(found, "Ready") == "True")
    wanted = cluster(f"http://{etcd['status']['podIP']}:2379")
    wanted["spec"]["monitoring"] = {"podMonitor": "Managed"}
    await kube.create(wanted)
    await kube.create(log_group(shards=1))
    await kube.wait("loggroups.tidemark.dev", "orders", lambda found: condition(found, "Ready") == "True")
    await kube.wait("tidemarkclusters.tidemark.dev", "prod", lambda found: condition(found, "Ready") == "True")
    pods = await kube.list("pods", labels="tidemark.dev/cluster=prod")
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {f"{OWN_NODES}:0.1.0"}
    async with await tidemark.connect(await addresses(kube), timeout_s=60) as client:
        await client.appender("orders", timeout_s=60).append(b"kept")
        assert [record.value async for record in client.read("orders")] == [b"kept"]

    for attached in ("networkpolicies.networking.k8s.io", "podmonitors.monitoring.coreos.com"):
        made = await kube.wait(attached, "prod-nodes", lambda found: True)
        assert made["metadata"]["ownerReferences"][0]["kind"] == "TidemarkCluster"
    for pod in await kube.list("pods", labels="app.kubernetes.io/component=operator"):
        ready = f'{{kind="LogGroup",name="orders",namespace="{kube.namespace}",type="Ready"}} 1.0'

        async def shown(address: str = pod["status"]["podIP"], ready: str = ready) -> bool:
            return f"tidemark_object_condition{ready}" in await asyncio.to_thread(ask, f"http://{address}:8080/metrics")

        await until(shown, "every operator, one that stands by too, shows that the group is ready")
    (check,) = helm.render(kube.namespace, tests=True)
    await kube.create(check)
    await kube.wait("pods", check["metadata"]["name"], lambda found: found["status"].get("phase") == "Succeeded")

    await the_operator_may_no_more_than_it_needs(kube, control_plane)
    await editors_do_not_write_shards(kube, control_plane)
    await it_may_be_told_to_watch_every_namespace(kube, helm, wanted)


def ask(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def the_operator_may_no_more_than_it_needs(kube: Kube, control_plane: ControlPlane) -> None:
    account = control_plane.user(f"system:serviceaccount:{kube.namespace}:{OPERATOR}")
    operator = Kube(account, kube.namespace)
    try:
        assert await operator.list("pods")
        await operator.list("nodes")
        for forbidden in (
            operator.list("secrets", namespace="default"), operator.list("pods", namespace="default"),
            operator.list("namespaces"), operator.delete("nodes", f"{kube.namespace}-1"),
            operator.delete("tidemarkclusters.tidemark.dev", "prod"),
            operator.patch("tidemarkclusters.tidemark.dev", "prod", {"spec": {"version": "9.9.9"}}),
            operator.list("clusterroles.rbac.authorization.k8s.io"),
            operator.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
                             "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        ):
            with pytest.raises(Refused, match="cannot") as refused:
                await forbidden
            assert refused.value.code == 403
    finally:
        await operator.close()


async def editors_do_not_write_shards(kube: Kube, control_plane: ControlPlane) -> None:
    """`edit` and `admin` of a namespace take in what the chart adds to them, and that is not Shards."""
    await kube.create({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "admins"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "ann"}]})
    ann = Kube(control_plane.user("ann"), kube.namespace)
    try:
        async def allowed() -> bool:
            with suppress(Refused):
                await ann.patch("loggroups.tidemark.dev", "orders", {"metadata": {"labels": {"by": "ann"}}})
                return True
            return False

        await until(allowed, "ann's binding counts, and the roles are joined")
        assert await ann.list("shards.tidemark.dev")
        for forbidden in (
            ann.patch("shards.tidemark.dev", "orders-0000", {"metadata": {"labels": {"by": "ann"}}}),
            ann.patch("shards.tidemark.dev/status", "orders-0000", {"status": {"epoch": 99}}),
            ann.delete("shards.tidemark.dev", "orders-0000"),
        ):
            with pytest.raises(Refused, match='User "ann" cannot') as refused:
                await forbidden
            assert refused.value.code == 403
    finally:
        await ann.close()


async def it_may_be_told_to_watch_every_namespace(kube: Kube, helm: Helm, wanted: Object) -> None:
    """The release is upgraded; then a cluster in a namespace that nobody named gets its pods."""
    documents = helm.render(kube.namespace, values={**EVERYTHING, "watchAnyNamespace": True})
    other = f"{kube.namespace}-other"
    await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}})
    try:
        await kube.delete("rolebindings.rbac.authorization.k8s.io", OPERATOR)
        for document in documents:
            await kube.apply(document, manager="helm-template")
        await kube.wait("deployments.apps", OPERATOR, rolled_out)
        await kube.create({**wanted, "metadata": {"name": "prod", "namespace": other}})
        for name in ("prod-1", "prod-2", "prod-3"):
            await kube.wait("pods", name, lambda found: True, namespace=other)
        await kube.wait("tidemarkclusters.tidemark.dev", "prod", lambda found: condition(found, "Ready") == "True")
    finally:
        await clear_away(kube, documents)
        await kube.delete("namespaces", other)


def rolled_out(found: Object) -> bool:
    status = found["status"]
    return (status.get("observedGeneration") == found["metadata"]["generation"]
            and status.get("updatedReplicas") == status.get("readyReplicas") == status.get("replicas") == 2)
