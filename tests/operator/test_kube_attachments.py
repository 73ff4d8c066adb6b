"""NetworkPolicy and PodMonitor of a cluster: what they say, when they are made, changed and taken away."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tidemark_operator.kube.acts import contains
from tidemark_operator.kube.api import MONITORS, Kind, KubeRefused
from tidemark_operator.kube.attachments import ANY_POD, OPERATORS, network_policy, pod_monitor
from tidemark_operator.kube.builders import Cluster, selector
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.informers import Informer
from tidemark_operator.kube.podkeeper import Live, plan
from tidemark_operator.resources import load_resource

from tests.waiting import remains, until

INSECURE = {"tls": {"mode": "Disabled"}, "clientAuth": "None"}


def cluster(**more: Any) -> Cluster:
    manifest = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": "prod"},
        "spec": {
            "version": "0.1.0", "metadataStore": {"etcd": {"endpoints": ["http://etcd:2379"]}},
            "nodePools": [{"name": "general", "replicas": 1, "storage": {"data": {"size": "1Gi"}}}], **more}}
    return Cluster("data", "prod", "uid-1", load_resource(manifest, "test").manifest()["spec"])


def acts(wanted: Cluster, **live: Any) -> list[str]:
    """Return what is to be done about policies and monitors when nothing else is there."""
    found = plan(wanted, [], Live({}, {}, {}, {}, live.get("policies", {}), live.get("monitors", {})))
    return [f"{act.verb} {act.title}" for act in found if act.manifest["kind"] in ("NetworkPolicy", "PodMonitor")]


def test_where_nobody_shows_a_certificate_only_the_namespace_and_the_operator_get_in() -> None:
    made = network_policy(cluster(security=INSECURE))
    assert made is not None
    assert made["spec"]["podSelector"]["matchLabels"] == selector(cluster())
    by_port = {rule["ports"][0]["port"]: rule["from"] for rule in made["spec"]["ingress"]}
    assert by_port[6690] == [{"podSelector": {}}, OPERATORS]
    assert by_port[8080] == [{"namespaceSelector": {}}]
    assert by_port.keys() == {6690, 8080}


def test_where_certificates_say_who_calls_every_pod_may_call_and_named_networks() -> None:
    made = network_policy(cluster())
    assert made is not None
    assert made["spec"]["ingress"][0]["from"] == [ANY_POD]

    security = {"clientNetworks": ["10.1.0.0/16", "2001:db8::/32"]}
    made = network_policy(cluster(security=security))
    assert made is not None
    assert made["spec"]["ingress"][0]["from"] == [
        ANY_POD, {"ipBlock": {"cidr": "10.1.0.0/16"}}, {"ipBlock": {"cidr": "2001:db8::/32"}}]


@pytest.mark.parametrize("more", [{"security": INSECURE}, {}])
def test_no_change_of_the_policy_is_taken_for_what_somebody_added(more: dict[str, Any]) -> None:
    one, other = network_policy(cluster(**more)), network_policy(cluster(**({} if more else {"security": INSECURE})))
    assert not contains(one, other)


def test_the_policy_goes_when_none_is_wanted() -> None:
    made = network_policy(cluster())
    assert made is not None
    made["metadata"]["uid"] = "u"
    unmanaged = cluster(security={"networkPolicy": "None"})
    assert acts(cluster()) == ["apply NetworkPolicy/prod-nodes"]
    assert acts(cluster(), policies={"prod-nodes": made}) == []
    assert acts(unmanaged) == []
    assert acts(unmanaged, policies={"prod-nodes": made}) == ["delete NetworkPolicy/prod-nodes"]
    made["metadata"]["ownerReferences"] = [{"uid": "somebody"}]
    assert acts(unmanaged, policies={"prod-nodes": made}) == [], "it is not ours"


def test_a_monitor_is_made_where_it_is_asked_for_and_known() -> None:
    asked = cluster(
        monitoring={"podMonitor": "Managed", "labels": {"release": "kps", "app.kubernetes.io/name": "other"},
                    "scrapeIntervalSeconds": 15}, security={"networkPolicy": "None"})
    assert pod_monitor(cluster()) is None
    assert acts(cluster(security={"networkPolicy": "None"})) == []
    assert acts(asked) == ["apply PodMonitor/prod-nodes"]
    assert acts(asked, monitors=None) == [], "the API server knows no PodMonitors"
    made = pod_monitor(asked)
    assert made is not None
    assert made["metadata"]["labels"]["release"] == "kps"
    assert made["metadata"]["labels"]["app.kubernetes.io/name"] == "tidemark", "the operator finds its objects by these"
    (endpoint,) = made["spec"]["podMetricsEndpoints"]
    assert (endpoint["port"], endpoint["interval"]) == ("http", "15s")
    assert endpoint["relabelings"] == [{"action": "replace", "targetLabel": "cluster", "replacement": "prod"}]


class Unknown:
    """An API server without PodMonitors."""

    asked = 0

    async def list(self, kind: Kind, namespace: str, labels: str) -> tuple[list[Any], str]:
        self.asked += 1
        raise KubeRefused(404, "NotFound", "the server could not find the requested resource")


async def test_a_kind_that_is_not_installed_is_asked_for_seldom(caplog: pytest.LogCaptureFixture) -> None:
    api, cache = Unknown(), Cache()
    informer = Informer(
        api, MONITORS, "data", "", cache, lambda item: None, optional=True)  # type: ignore[arg-type]
    task = asyncio.ensure_future(informer.run())
    await until(lambda: api.asked == 1)
    await remains(lambda: api.asked == 1, for_s=1)
    task.cancel()
    assert not cache.complete
    assert not caplog.messages
