"""EtcdStore against a real etcd that wants certificates and a password, and Secrets that say them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import psutil
import pytest
from aetcd import rpc
from etcd_child import EtcdChild
from given_secrets import CA, CERT, KEY, Secrets
from tidemark_operator.certificates.authority import Leaf, bundle_of, create_authority, issue
from tidemark_operator.certificates.files import CertificateFiles
from tidemark_operator.certificates.subject import Subject
from tidemark_operator.etcd import Changes, EtcdStore, Saved, Snapshot, StoreUnavailable, Unavailable
from tidemark_operator.etcd_access import Login, TlsFiles
from tidemark_operator.kube import etcd_secrets
from tidemark_operator.resources.conditions import ConditionReason
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import TlsSettings

from tests.waiting import until

DAY = timedelta(days=1)
ROOT = Login("root", "s3cret")


class SecureEtcd(EtcdChild):
    """One etcd that trusts one CA, asks for certificates, and has the user root."""

    def __init__(self, directory: Path) -> None:
        self._ca = create_authority("prod", datetime.now(UTC), DAY)
        files = CertificateFiles(directory / "tls", "prod")
        server = Identity("prod", Kind.NODE, "etcd")
        leaf = issue(self._ca, Subject(server, ("localhost",), ("127.0.0.1",)), datetime.now(UTC), DAY)
        files.put_holder(server, leaf, bundle_of([self._ca]))
        super().__init__(directory, TlsSettings.of_directory(files.folder(server)))

    def client(self) -> TlsFiles:
        """Return a certificate that names no user of etcd."""
        leaf: Leaf = issue(self._ca, Subject(Identity("prod", Kind.CLIENT, "any")), datetime.now(UTC), DAY)
        return TlsFiles(self._ca.certificate, leaf.certificate, leaf.key)

    async def enable_passwords(self) -> None:
        files = self.client()
        credentials = grpc.ssl_channel_credentials(files.ca, files.key, files.certificate)
        async with grpc.aio.secure_channel(self.url.removeprefix("https://"), credentials) as channel:
            auth = rpc.AuthStub(channel)
            await auth.UserAdd(
                rpc.AuthUserAddRequest(name=ROOT.user, password=ROOT.password), timeout=20, wait_for_ready=True)
            await auth.RoleAdd(rpc.AuthRoleAddRequest(name="root"), timeout=20)
            await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user=ROOT.user, role="root"), timeout=20)
            await auth.AuthEnable(rpc.AuthEnableRequest(), timeout=20)


@pytest.fixture
async def etcd(tmp_path: Path) -> AsyncIterator[SecureEtcd]:
    made = SecureEtcd(tmp_path)
    made.start()
    try:
        await made.enable_passwords()
        yield made
    finally:
        made.kill()


async def test_a_password_is_traded_for_tokens_that_end(etcd: SecureEtcd) -> None:
    store = EtcdStore([etcd.url], tls=etcd.client(), login=ROOT)
    follow = store.follow("/t/")
    assert isinstance(await anext(follow), Snapshot)
    assert isinstance(await store.put("/t/a", b"1", expected=0), Saved)
    lease = await store.grant_lease(30)
    async with asyncio.timeout(20):
        changes = await anext(follow)
        assert isinstance(changes, Changes)
    store._channels.access._token += "x"  # as one that has ended; another is asked for on the way
    assert await store.get("/t/a") is not None
    store._channels.access._token += "x"
    assert isinstance(await store.put("/t/b", b"2", expected=0), Saved)
    store._channels.access._token += "x"
    assert await store.refresh_lease(lease) > 0
    await store.revoke_lease(lease)
    async with asyncio.timeout(20):
        assert isinstance(await anext(follow), Changes)
    await follow.aclose()
    await store.close()


async def test_a_wrong_password_is_told_without_it_and_another_one_taken_up(etcd: SecureEtcd) -> None:
    store = EtcdStore([etcd.url], tls=etcd.client(), login=Login("root", "wr0ng"))
    with pytest.raises(StoreUnavailable, match="authentication failed"):
        await store.get("/t/a")
    assert isinstance(await store.put("/t/a", b"1", expected=0), Unavailable)
    assert not store.reachable
    assert "authentication failed" in store.last_error
    assert "wr0ng" not in store.last_error + repr(Login("root", "wr0ng"))
    assert store.use(etcd.client(), ROOT)
    assert isinstance(await store.put("/t/a", b"1", expected=0), Saved)
    assert store.reachable
    files = etcd.client()
    assert store.use(files, ROOT)
    assert not store.use(files, ROOT), "the same again changes nothing"
    assert await store.get("/t/a") is not None
    await store.close()


def connections(etcd: SecureEtcd) -> int:
    """How many this process has to it."""
    port = int(etcd.url.rpartition(":")[2])
    return sum(
        1 for each in psutil.Process().net_connections("tcp")
        if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED)


async def at_most(count: int, etcd: SecureEtcd) -> None:
    await until(lambda: connections(etcd) <= count)


async def test_credentials_that_were_replaced_leave_no_connection_behind(etcd: SecureEtcd) -> None:
    store = EtcdStore([etcd.url], tls=etcd.client(), login=ROOT)
    follow = store.follow("/t/")
    assert isinstance(await anext(follow), Snapshot)
    for number in range(5):
        assert isinstance(await store.put(f"/t/{number}", b"1", expected=0), Saved)
        async with asyncio.timeout(20):
            assert isinstance(await anext(follow), Changes), "who follows goes on as it began"
        assert store.use(etcd.client(), ROOT)
    assert await store.get("/t/0") is not None
    await at_most(2, etcd)  # that of the watch, and the newest
    await follow.aclose()
    await at_most(1, etcd)
    assert await store.get("/t/0") is not None
    await store.close()
    await at_most(0, etcd)


async def test_nobody_without_password_or_certificate(etcd: SecureEtcd) -> None:
    for tls, login in ((etcd.client(), None), (TlsFiles(etcd.client().ca), ROOT)):
        store = EtcdStore([etcd.url], tls=tls, login=login)
        with pytest.raises(StoreUnavailable):
            await store.get("/t/a")
        await store.close()


# --- Secrets


def item(**etcd: Any) -> dict[str, Any]:
    spec = {"metadataStore": {"etcd": {"endpoints": ["https://e:2379"], **etcd}}}
    return {"metadata": {"name": "prod", "namespace": "data"}, "spec": spec}


REFERENCES = {"tlsSecretRef": {"name": "tls"}, "credentialsSecretRef": {"name": "user"}}


async def test_secrets_say_how_etcd_is_spoken_to() -> None:
    whole = Secrets(
        tls={"ca.crt": CA, "tls.crt": CERT, "tls.key": KEY}, user={"username": "root", "password": "s3cret"})
    found = await etcd_secrets.read(whole, item(**REFERENCES))  # type: ignore[arg-type]
    assert found.tls == TlsFiles(CA.encode(), CERT.encode(), KEY.encode())
    assert found.login == ROOT
    assert "s3cret" not in repr(found)
    assert "PRIVATE" not in repr(found)
    only_ca = await etcd_secrets.read(Secrets(tls={"ca.crt": CA}), item(tlsSecretRef={"name": "tls"}))  # type: ignore[arg-type]
    assert only_ca.tls == TlsFiles(CA.encode())
    nothing = await etcd_secrets.read(Secrets(), item())  # type: ignore[arg-type]
    assert (nothing.tls, nothing.login) == (None, None)


@pytest.mark.parametrize(("secrets", "why"), [
    ({}, "tlsSecretRef: there is no Secret tls"),
    ({"tls": {"tls.crt": CERT, "tls.key": KEY}}, r"tlsSecretRef: Secret tls has no ca\.crt"),
    ({"tls": {"ca.crt": CA, "tls.crt": CERT}}, r"tlsSecretRef: Secret tls has no tls\.key"),
    ({"tls": {"ca.crt": "nonsense"}}, r"tlsSecretRef: ca\.crt of Secret tls"),
    ({"tls": {"ca.crt": CA, "tls.crt": CERT, "tls.key": "s3cret"}}, r"tlsSecretRef: tls\.key of Secret tls"),
    ({"tls": {"ca.crt": CA}}, "credentialsSecretRef: there is no Secret user"),
    ({"tls": {"ca.crt": CA}, "user": {"username": "root"}}, "credentialsSecretRef: Secret user has no password"),
])
async def test_secrets_that_are_of_no_use_are_named_with_their_field(secrets: Any, why: str) -> None:
    with pytest.raises(etcd_secrets.Unusable, match=f"metadataStore.etcd.{why}") as caught:
        await etcd_secrets.read(Secrets(**secrets), item(**REFERENCES))  # type: ignore[arg-type]
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("label", [None, "", "other", "Prod"])
@pytest.mark.parametrize("reference", REFERENCES)
async def test_a_secret_that_is_not_labelled_for_the_cluster_is_as_if_it_were_not_there(
    reference: str, label: str | None
) -> None:
    """The operator may read every Secret of the namespace; the writer of a TidemarkCluster must not read by it."""
    whole = Secrets(
        tls={"ca.crt": CA, "tls.crt": CERT, "tls.key": KEY}, user={"username": "root", "password": "s3cret"})
    whole.labelled_for = label
    asked = item(**{reference: REFERENCES[reference]})
    with pytest.raises(etcd_secrets.Unusable) as caught:
        await etcd_secrets.read(whole, asked)  # type: ignore[arg-type]
    name = REFERENCES[reference]["name"]
    assert str(caught.value) == (
        f"metadataStore.etcd.{reference}: there is no Secret {name} with the label tidemark.dev/etcd-for=prod; "
        f"create it, or `kubectl label secret {name} tidemark.dev/etcd-for=prod`")
    assert caught.value.refusal.reason is ConditionReason.SECRET_NOT_LABELLED
    with pytest.raises(etcd_secrets.Unusable) as absent:
        await etcd_secrets.read(Secrets(), asked)  # type: ignore[arg-type]
    assert str(absent.value) == str(caught.value), "it does not say which Secrets there are"
