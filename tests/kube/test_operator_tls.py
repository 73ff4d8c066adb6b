"""A cluster under mutual TLS on a real API server: from manifests to a log, who gets in, a rotation under load."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import tidemark
from tidemark.errors import PermissionDenied, Unavailable
from tidemark_operator.certificates.authority import create_authority, ids_in, issue, read_leaf
from tidemark_operator.certificates.subject import Subject
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import TlsSettings

from tests.kube.client import Kube, Object, condition
from tests.kube.control_plane import Etcd
from tests.kube.load import Load
from tests.kube.mounted import Mounted, data
from tests.kube.operators import (
    CLUSTERS,
    GROUPS,
    SHARDS,
    Operators,
    addresses,
    cluster,
    log_group,
    replaced,
    served,
    settled,
)
from tests.kube.pod_runner import PodRunner
from tests.kube.volumes import write_files

pytestmark = pytest.mark.apiserver

HOLDERS = "app.kubernetes.io/component=certificate,tidemark.dev/cluster=prod"
NODES = ("prod-1", "prod-2", "prod-3")
AT_ONCE = "--ca-overlap=0"


@pytest.fixture
async def mounted(kube: Kube, tmp_path: Path) -> AsyncIterator[Mounted]:
    made = Mounted(kube, tmp_path / "mounted")
    yield made
    await made.close()


@pytest.mark.timeout(300)
async def test_a_cluster_with_managed_tls_from_manifests_to_a_rotated_ca_under_load(
    kube: Kube, pod_runner: PodRunner, metadata_etcd: Etcd, tmp_path: Path, operators: Operators, mounted: Mounted
) -> None:
    operator = operators.start(AT_ONCE)
    group = log_group()
    group["spec"]["access"] = {"readers": ["billing"], "writers": ["shop"]}
    shown = await served(kube, cluster(metadata_etcd, tls=True), group)
    assert condition(shown, "CertificatesValid") == "True"
    assert shown["status"]["certificates"].keys() == {"caExpirationTime", "earliestExpirationTime"}
    assert float(await operator.metric('tidemark_certificate_expiry_timestamp_seconds{cluster="prod"')) > 0
    before = {each["metadata"]["name"]: each for each in await kube.list("secrets", labels=HOLDERS)}
    assert before.keys() == {"prod-operator-tls", "prod-admin-tls", "prod-client-billing-tls",
                             "prod-client-shop-tls", *(f"{node}-tls" for node in NODES)}
    assert all(each["metadata"]["ownerReferences"][0]["uid"] == shown["metadata"]["uid"]
               for each in before.values())
    ca = await kube.get("secrets", "prod-ca")
    assert "ownerReferences" not in ca["metadata"]
    places = await addresses(kube)

    await nobody_else_gets_in(places, ca, tmp_path)
    of_shop, of_billing = [await mounted.of(f"prod-client-{name}-tls") for name in ("shop", "billing")]
    async with (
        await tidemark.connect(places, tls=of_shop, timeout_s=60) as shop,
        await tidemark.connect(places, tls=of_billing, timeout_s=60) as billing,
        Load(places, tls=of_shop, reader=billing) as load,
    ):
        await load.more()
        with pytest.raises(PermissionDenied, match="client/billing is no writer"):
            await billing.appender("orders").append(b"x")
        with pytest.raises(PermissionDenied, match="client/shop is no reader"):
            [each async for each in shop.read("orders")]

        operator.kill()
        operator = operators.start(AT_ONCE)  # goes on with the CA that is there
        await kube.patch("secrets", "prod-ca", {"metadata": {"annotations": {"tidemark.dev/rotate-ca": "true"}}})
        await kube.wait("secrets", "prod-ca", lambda found: "ca-2.crt" in found["data"])
        operator.kill()  # the next one goes on where the Secrets stand
        await load.more()
        operators.start(AT_ONCE)
        after = await kube.wait("secrets", "prod-ca", lambda found: "ca-1.crt" not in found["data"])
        assert after["data"].keys() == {"ca-2.crt", "ca-2.key"}
        assert "tidemark.dev/rotate-ca" not in after["metadata"].get("annotations", {})
        (old,), (new,) = ids_in(data(ca)["ca-1.crt"]), ids_in(data(after)["ca-2.crt"])
        for name in before:
            renewed = data(await kube.wait(
                "secrets", name, lambda found: ids_in(data(found)["ca.crt"]) == {new}))
            assert old not in (new, read_leaf(renewed["tls.crt"]).issuer)
        await load.more()

        # Every connection is made anew somewhere: a node comes back, and others are new.
        leader = (await kube.list(SHARDS))[0]["status"]["leader"]
        pod = await kube.get("pods", leader)
        await kube.delete("pods", leader)
        await replaced(kube, pod)
        await kube.wait(GROUPS, "orders", lambda found: condition(found, "FullyReplicated") == "True")
        await load.more()
    assert condition(await settled(kube), "CertificatesValid") == "True"

    mode = {"spec": {"security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"}}}
    await kube.patch(CLUSTERS, "prod", mode)
    told = await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "Stalled") == "True")
    assert "security.tls.mode" in str(told["status"]["conditions"])


async def nobody_else_gets_in(places: list[str], ca: Object, directory: Path) -> None:
    with pytest.raises(Unavailable):
        await tidemark.connect(places, timeout_s=2)
    eve, now = Identity("prod", Kind.ADMIN, "eve"), datetime.now(UTC)
    foreign = issue(create_authority("prod", now, timedelta(days=1)), Subject(eve), now, timedelta(days=1))
    (directory / "eve").mkdir()
    write_files(directory / "eve", {
        "tls.crt": foreign.certificate, "tls.key": foreign.key, "ca.crt": data(ca)["ca-1.crt"]})
    with pytest.raises(Unavailable):
        await tidemark.connect(
            places, timeout_s=2, tls=TlsSettings.of_directory(directory / "eve", server_name="prod"))
