"""A cluster with certificates of cert-manager, and of its own meanwhile, on a real API server; the test issues."""

from __future__ import annotations

from pathlib import Path

import pytest
import tidemark
from tidemark_operator.certificates.authority import read_bundle

from tests.kube import cert_manager
from tests.kube.cert_manager import CertManager, Signer
from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import ControlPlane, Etcd
from tests.kube.mounted import Mounted, data
from tests.kube.operators import Operator, addresses, allow_operator, cluster, log_group
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

CLUSTERS, GROUPS = "tidemarkclusters.tidemark.dev", "loggroups.tidemark.dev"
HOLDERS = ("prod-operator", "prod-admin", "prod-client-shop", "prod-1", "prod-2", "prod-3")


def told(shown: Object) -> tuple[str, str]:
    """What is said of the certificates: reason and message."""
    found = [each for each in shown.get("status", {}).get("conditions", ()) if each["type"] == "CertificatesValid"]
    return (found[0]["reason"], found[0]["message"]) if found else ("", "")


@pytest.mark.timeout(300)
async def test_a_cluster_with_certificates_of_cert_manager(
    kube: Kube, pod_runner: PodRunner, control_plane: ControlPlane, metadata_etcd: Etcd, tmp_path: Path,
) -> None:
    await allow_operator(kube, control_plane, tmp_path)
    operator = Operator(control_plane, kube.namespace, control_plane.network.next_address(), tmp_path, "--ca-overlap=0")
    issuer, mounted = CertManager(kube, Signer("platform")), Mounted(kube, tmp_path)
    operator.start()
    try:
        wanted = cluster(metadata_etcd, tls=True)
        wanted["spec"]["security"] = {"tls": {"mode": "CertManager", "issuerRef": {"name": "platform"}}}
        await kube.create(wanted)
        group = log_group()
        group["spec"]["access"] = {"readers": ["shop"], "writers": ["shop"]}
        await kube.create(group)
        shown = await kube.wait(CLUSTERS, "prod", lambda found: "cert-manager is not installed" in told(found)[1])
        assert told(shown)[0] == "IssuerNotReady"

        await cert_manager.install_definition(kube)
        shown = await kube.wait(CLUSTERS, "prod", lambda found: "Secret prod-operator-issued" in told(found)[1])
        assert told(shown)[0] == "IssuerNotReady"
        assert not await kube.list("pods"), "no node starts without its certificate"
        asked = {each["metadata"]["name"]: each for each in await kube.list(cert_manager.RESOURCE)}
        assert asked.keys() == set(HOLDERS)
        assert asked["prod-1"]["spec"]["uris"] == ["spiffe://prod/node/prod-1"]
        assert asked["prod-1"]["metadata"]["ownerReferences"][0]["uid"] == shown["metadata"]["uid"]

        issuer.start()
        await kube.wait(GROUPS, "orders", lambda found: condition(found, "Ready") == "True")
        shown = await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Ready") == "True")
        assert told(shown) == ("Issued", "")
        assert shown["status"]["certificates"].keys() == {"caExpirationTime", "earliestExpirationTime"}
        secrets = {}
        for name in [f"{holder}-{what}" for holder in HOLDERS for what in ("tls", "issued")]:
            secrets[name] = await kube.wait("secrets", name, lambda found: (
                [each["uid"] for each in found["metadata"].get("ownerReferences", ())] == [shown["metadata"]["uid"]]))
        assert {each["metadata"]["name"] for each in await kube.list("secrets")} == secrets.keys(), "no CA of ours"
        assert data(secrets["prod-1-tls"]) == data(secrets["prod-1-issued"])

        trusted = b""
        shop = await mounted.of("prod-client-shop-tls")
        async with await tidemark.connect(
            await addresses(kube), tls=shop, timeout_s=60
        ) as client, client.appender("orders", timeout_s=60) as appender:
            await appender.append(b"before")

            # The platform's CA is replaced by one that signs through another; each is issued anew at its own time.
            issuer.signer = Signer("platform, later", between=True)
            await issuer.renew()
            for name in HOLDERS:
                after = data(await kube.wait("secrets", f"{name}-tls", lambda found: (
                    data(found)["ca.crt"] == issuer.signer.ca_file)))
                assert after == data(await kube.get("secrets", f"{name}-issued"))
                trusted = after["ca.crt"]
                await appender.append(b"meanwhile")
            assert len(read_bundle(trusted)) == 1
            await _connect_anew(kube)
            await appender.append(b"after")

            # A Secret that is taken away is missed, and nothing stops for it.
            await issuer.stop()
            await kube.delete("secrets", "prod-2-issued")
            shown = await kube.wait(CLUSTERS, "prod", lambda found: told(found)[0] == "IssuerNotReady")
            assert "cert-manager has not written Secret prod-2-issued" in told(shown)[1]
            await appender.append(b"still")
            issuer.start()
            await kube.wait(CLUSTERS, "prod", lambda found: told(found) == ("Issued", ""))

            # The operator issues itself, and then cert-manager again: nobody is restarted for it, or cut off.
            pods = {each["metadata"]["uid"] for each in await kube.list("pods")}
            await kube.patch(CLUSTERS, "prod", {"spec": {"security": {"tls": {"mode": "Managed", "issuerRef": None}}}})
            kept = data(await kube.wait(
                "secrets", "prod-ca", lambda found: found["data"].keys() == {"ca-2.crt", "ca-2.key"}))
            for name in HOLDERS:
                await kube.wait("secrets", f"{name}-tls", lambda found: data(found)["ca.crt"] == kept["ca-2.crt"])
                await kube.wait_gone(cert_manager.RESOURCE, name)
                await kube.wait_gone("secrets", f"{name}-issued")
                await appender.append(b"ours")
            await kube.wait(CLUSTERS, "prod", lambda found: told(found) == ("Issued", ""))
            assert {each["metadata"]["uid"] for each in await kube.list("pods")} == pods
            await _connect_anew(kube)
            await appender.append(b"ours")

            pods = {each["metadata"]["uid"] for each in await kube.list("pods")}
            await kube.patch(CLUSTERS, "prod", {"spec": wanted["spec"]})
            for name in HOLDERS:
                after = data(await kube.wait("secrets", f"{name}-tls", lambda found: (
                    data(found)["ca.crt"] == issuer.signer.ca_file)))
                assert after == data(await kube.get("secrets", f"{name}-issued"))
                await appender.append(b"theirs")
            await kube.wait(CLUSTERS, "prod", lambda found: told(found) == ("Issued", ""))
            assert {each["metadata"]["uid"] for each in await kube.list("pods")} == pods
            async with await tidemark.connect(await addresses(kube), tls=shop, timeout_s=60) as another:
                values = [record.value async for record in another.read("orders")]
            appended = [b"before", *[b"meanwhile"] * len(HOLDERS), b"after", b"still"]
            appended += [*[b"ours"] * (len(HOLDERS) + 1), *[b"theirs"] * len(HOLDERS)]
            assert sorted(values) == sorted(appended)
    finally:
        await mounted.close()
        await issuer.stop()
        operator.stop()
        print(operator.tail(20_000))
        await kube.delete("customresourcedefinitions.apiextensions.k8s.io", cert_manager.RESOURCE)
        await kube.wait_gone("customresourcedefinitions.apiextensions.k8s.io", cert_manager.RESOURCE)


async def _connect_anew(kube: Kube) -> None:
    """Have the leader replaced: connections are made anew."""
    leader = (await kube.list("shards.tidemark.dev"))[0]["status"]["leader"]
    pod = await kube.get("pods", leader)
    await kube.delete("pods", leader)
    await kube.wait("pods", leader, lambda found: (
        found["metadata"]["uid"] != pod["metadata"]["uid"] and condition(found, "Ready") == "True"))
