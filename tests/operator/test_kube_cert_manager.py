"""Certificates of cert-manager: what it is asked for, what its Secrets become, and what is told while they lack."""

from __future__ import annotations

import base64
import copy
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from tidemark_operator.certificates.authority import create_authority, read_bundle, read_leaf
from tidemark_operator.certificates.keeper import Validity, keep, now_utc, rotating, validity
from tidemark_operator.certificates.rotation import Policy
from tidemark_operator.certificates.store import Lack
from tidemark_operator.certificates.subject import Subject
from tidemark_operator.kube.acts import Act
from tidemark_operator.kube.api import Kind, KubeAway, KubeRefused
from tidemark_operator.kube.builders import Cluster
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.cert_manager import certificate, lack, plan, request
from tidemark_operator.kube.certificates import SecretArchive, subjects
from tidemark_operator.kube.secret_store import SecretStore
from tidemark_operator.kube.showing import issuance_facts
from tidemark_operator.resources.conditions import ConditionReason
from tidemark_operator.status.kubernetes import certificates_valid
from tidemark_wire.identity import AccessLists, Identity

from tests.kube.cert_manager import Signer

Object = dict[str, Any]

TLS = {"mode": "CertManager", "issuerRef": {"name": "platform", "kind": "ClusterIssuer", "group": "cert-manager.io"}}
PROD = Cluster("data", "prod", "uid-1", {"security": {"tls": TLS}})
POLICY = replace(Policy(), overlap=timedelta(0))
NODES = ["prod-1", "prod-2"]
NAMES = ["prod-operator", "prod-admin", *NODES]


def wanted(*lists: AccessLists) -> list[Subject]:
    return subjects(PROD, NODES, lists)


def there(manifest: Object, number: int = 1) -> Object:
    """An object as the API server has it."""
    made = copy.deepcopy(manifest)
    made["metadata"] |= {"uid": f"uid-of-{manifest['metadata']['name']}", "resourceVersion": str(number)}
    return made


def asked(*lists: AccessLists) -> dict[str, Object]:
    made = [certificate(PROD, subject, POLICY) for subject in wanted(*lists)]
    return {each["metadata"]["name"]: there(each) for each in made}


def issued(signer: Signer, certificates: dict[str, Object]) -> dict[str, Object]:
    made = [there(signer.secret(each)) for each in certificates.values()]
    return {each["metadata"]["name"]: each for each in made}


def carried_out(act: Act, secrets: dict[str, Object]) -> None:
    secrets[act.manifest["metadata"]["name"]]["metadata"] |= act.manifest["metadata"]


# --- what is asked for ----------------------------------------------------------------------------------------------


def test_a_certificate_asks_for_what_the_own_ca_would_issue() -> None:
    lists = AccessLists.of(["billing"], [], [])
    made = asked(lists)
    assert made.keys() == {*NAMES, "prod-client-billing"}
    node, client = made["prod-1"], made["prod-client-billing"]
    assert node["spec"]["uris"] == ["spiffe://prod/node/prod-1"]
    assert node["spec"]["dnsNames"][0] == "prod-1"
    assert "prod-1.prod-nodes.data.svc" in node["spec"]["dnsNames"]
    assert node["spec"]["usages"] == ["digital signature", "client auth", "server auth"]
    assert client["spec"]["usages"] == ["digital signature", "client auth"]
    assert "dnsNames" not in client["spec"]
    assert (node["spec"]["duration"], node["spec"]["renewBefore"]) == ("2160h0m0s", "720h0m0s")
    assert node["spec"]["issuerRef"] == TLS["issuerRef"]
    assert node["spec"]["secretName"] == "prod-1-issued"
    assert node["spec"]["secretTemplate"]["labels"] == node["metadata"]["labels"]
    assert node["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_who_shall_hold_one_is_asked_for_once_and_who_shall_not_loses_it() -> None:
    lists = AccessLists.of(["billing"], [], [])
    acts = plan(PROD, wanted(lists), POLICY, {}, {})
    assert [(act.verb, act.manifest["metadata"]["name"]) for act in acts] == [
        ("apply", name) for name in ("prod-operator", "prod-admin", *NODES, "prod-client-billing")]
    certificates, secrets = asked(lists), issued(Signer("x"), asked(lists))
    certificates["prod-1"]["spec"]["privateKey"]["more"] = "what cert-manager fills in"
    acts = plan(PROD, wanted(lists), POLICY, certificates, secrets)
    assert {act.verb for act in acts} == {"merge"}, "cert-manager gives its Secrets no owner"
    for act in acts:
        carried_out(act, secrets)
    assert secrets["prod-1-issued"]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    assert plan(PROD, wanted(lists), POLICY, certificates, secrets) == [], "a pass behind a pass does nothing"
    gone = plan(PROD, wanted(), POLICY, certificates, secrets)
    assert [(act.verb, act.title, act.uid) for act in gone] == [
        ("delete", "Certificate/prod-client-billing", "uid-of-prod-client-billing"),
        ("delete", "Secret/prod-client-billing-issued", "uid-of-prod-client-billing-issued")]


def test_what_is_changed_is_put_right_and_what_is_of_others_is_left_alone() -> None:
    certificates, secrets = asked(), issued(Signer("x"), asked())
    for act in plan(PROD, wanted(), POLICY, certificates, secrets):
        carried_out(act, secrets)
    certificates["prod-1"]["spec"]["uris"] = ["spiffe://prod/node/prod-9"]
    certificates["prod-2"]["metadata"]["ownerReferences"] = []
    certificates["theirs"] = there({"kind": "Certificate", "metadata": {"name": "theirs", "namespace": "data"}})
    (act,) = plan(PROD, wanted(), POLICY, certificates, secrets)
    assert (act.verb, act.title) == ("apply", "Certificate/prod-1")
    told = lack(PROD, wanted(), certificates, secrets, now_utc())
    assert told is not None
    assert "Certificate prod-2 belongs to somebody else" in told.message


def test_other_owners_of_a_secret_stay_but_for_an_earlier_cluster() -> None:
    certificates, secrets = asked(), issued(Signer("x"), asked())
    theirs = {"kind": "Certificate", "name": "prod-1", "uid": "c"}
    secrets["prod-1-issued"]["metadata"]["ownerReferences"] = [
        theirs, {"kind": "TidemarkCluster", "name": "prod", "uid": "uid-0"}]
    (act,) = [each for each in plan(PROD, wanted(), POLICY, certificates, secrets) if "prod-1" in each.title]
    kept, mine = act.manifest["metadata"]["ownerReferences"]
    assert (kept, mine["uid"], mine["controller"]) == (theirs, "uid-1", False)


# --- what lacks -----------------------------------------------------------------------------------------------------


def test_what_is_not_there_is_told_with_what_cert_manager_says_of_it() -> None:
    certificates, secrets = asked(), issued(Signer("x"), asked())
    assert lack(PROD, wanted(), certificates, secrets, now_utc()) is None
    del secrets["prod-1-issued"]
    certificates["prod-1"]["status"] = {"conditions": [
        {"type": "Ready", "status": "False", "message": "Referenced ClusterIssuer not found"}]}
    told = lack(PROD, wanted(), certificates, secrets, now_utc())
    assert told is not None
    assert told.reason is ConditionReason.ISSUER_NOT_READY
    assert "Secret prod-1-issued (Referenced ClusterIssuer not found)" in told.message
    assert "kubectl describe certificate" in told.message


@pytest.mark.parametrize(("spoil", "why"), [
    (lambda data: data.pop("ca.crt"), "ca.crt is missing"),
    (lambda data: data.update({"ca.crt": ""}), "cannot be read"),
    (lambda data: data.update({"ca.crt": base64.b64encode(Signer("y").ca_file).decode()}), "no CA that vouches"),
    (lambda data: data.update({"ca.crt": data["tls.crt"]}), "no CA's"),
    (lambda data: data.update({"tls.key": base64.b64encode(b"x").decode()}), "not the key"),
    (lambda data: data.update({"tls.crt": base64.b64encode(b"x").decode()}), "cannot be read"),
])
def test_what_cannot_be_used_is_told_and_not_taken(spoil: Any, why: str) -> None:
    certificates, secrets = asked(), issued(Signer("x"), asked())
    spoil(secrets["prod-1-issued"]["data"])
    told = lack(PROD, wanted(), certificates, secrets, now_utc())
    assert told is not None
    assert told.reason is ConditionReason.SECRET_INVALID
    assert told.message.startswith("what cert-manager wrote cannot be used: Secret prod-1-issued: ")
    assert why in told.message
    offers = SecretStore(PROD, secrets.values()).offers()
    assert offers is not None
    assert {each.name for each in offers} == {"operator", "admin", "prod-2"}


def test_a_certificate_of_somebody_else_or_without_its_names_is_not_taken() -> None:
    certificates, signer = asked(), Signer("x")
    nameless = copy.deepcopy(certificates["prod-2"])
    nameless["spec"]["dnsNames"] = ["prod-2"]
    secrets = issued(signer, {**certificates, "prod-2": nameless})
    secrets["prod-1-issued"]["data"] = signer.secret(certificates["prod-admin"])["data"]
    told = lack(PROD, wanted(), certificates, secrets, now_utc())
    assert told is not None
    assert "it is the certificate of spiffe://prod/admin/admin, not of spiffe://prod/node/prod-1" in told.message
    assert "Secret prod-2-issued: the issuer left out names" in told.message
    store = SecretStore(PROD, secrets.values())
    keep(store, POLICY, now_utc(), wanted=wanted(), only_wanted=True)
    written = {write.name: write.manifest["data"] for write in store.writes()}
    assert written.keys() == {"prod-operator-tls", "prod-admin-tls"}
    assert written["prod-admin-tls"]["tls.crt"] == secrets["prod-admin-issued"]["data"]["tls.crt"]


class Api:
    """Answers lists with what it was given, or refuses them."""

    def __init__(self, answer: list[Object] | Exception) -> None:
        self.answer = answer
        self.looks = 0
        self.written: list[Object] = []
        self.deleted: list[str] = []

    async def list(self, kind: Kind, namespace: str) -> tuple[list[Object], str]:
        assert (kind.api_version, kind.plural, namespace) == ("cert-manager.io/v1", "certificates", "data")
        self.looks += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer, "1"

    async def apply(self, manifest: Object) -> Object:
        self.written.append(manifest)
        return manifest

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str, *, force: bool) -> None:
        assert (namespace, uid, force) == ("data", f"uid-of-{name}", False)
        self.deleted.append(f"{kind.kind}/{name}")


async def test_cert_manager_that_is_not_there_is_named() -> None:
    async def told(answer: list[Object] | Exception) -> str:
        found = await request(Api(answer), PROD, wanted(), POLICY, {}, now_utc())  # type: ignore[arg-type]
        assert found is not None
        assert found.reason is ConditionReason.ISSUER_NOT_READY
        return found.message

    assert (await told(KubeRefused(404, "", "404 page not found"))).startswith("cert-manager is not installed")
    assert "certificates is forbidden" in await told(KubeRefused(403, "Forbidden", "certificates is forbidden"))
    assert "cert-manager has not written Secret prod-operator-issued" in await told([])
    with pytest.raises(KubeAway):
        await told(KubeAway("gone"))


async def test_only_clusters_that_ask_for_it_get_certificates_of_it() -> None:
    for cluster, count in ((PROD, len(NAMES)), (replace(PROD, spec={}), None)):
        api = Api([])
        archive = SecretArchive(
            api, Cache(), "data", "prod", timedelta(0), lambda cluster=cluster: cluster, wanted)  # type: ignore[arg-type,misc]
        assert (await archive.request(POLICY) is None) is (count is None)
        assert len(api.written) == (count or 0)


def cached(secrets: dict[str, Object]) -> Cache:
    cache = Cache()
    for each in secrets.values():
        cache.learn(each)
    return cache


async def test_when_it_is_not_to_issue_any_more_nothing_is_left_of_it() -> None:
    def taken_back(api: Api, cache: Cache) -> SecretArchive:
        return SecretArchive(
            api, cache, "data", "prod", timedelta(0), lambda: replace(PROD, spec={}), wanted)  # type: ignore[arg-type]

    theirs = there({"kind": "Certificate", "metadata": {"name": "theirs", "namespace": "data"}})
    secrets = issued(Signer("x"), asked())
    secrets["prod-1-tls"] = copy.deepcopy(secrets["prod-1-issued"])
    secrets["prod-1-tls"]["metadata"]["name"] = "prod-1-tls"
    secrets["prod-1-tls"]["metadata"]["labels"]["app.kubernetes.io/component"] = "certificate"
    files = [f"Secret/{name}-issued" for name in NAMES]
    for answer, gone in (
        ([*asked().values(), theirs], [*(f"Certificate/{name}" for name in NAMES), *files]),
        (KubeRefused(404, "", "404 page not found"), files),
    ):
        api, cache = Api(answer), cached(secrets)
        archive = taken_back(api, cache)
        assert await archive.request(POLICY) is None
        assert api.deleted == gone, "Certificates first, else it writes the Secrets again"
        for name in NAMES:
            cache.forget(secrets[f"{name}-issued"])
        assert await archive.request(POLICY) is None
        assert (api.deleted, api.looks) == (gone, 1), "at rest nobody is asked"
    with pytest.raises(ConnectionError, match=r"cert-manager cannot be asked: .*forbidden"):
        await taken_back(Api(KubeRefused(403, "Forbidden", "forbidden")), cached(secrets)).request(POLICY)


async def test_what_it_has_not_issued_yet_is_taken_back_too() -> None:
    now_is, api = [PROD], Api([])
    archive = SecretArchive(
        api, Cache(), "data", "prod", timedelta(0), lambda: now_is[0], wanted)  # type: ignore[arg-type]
    assert await archive.request(POLICY) is not None
    api.answer = list(asked().values())
    now_is[0] = replace(PROD, spec={})
    for _ in range(2):
        assert await archive.request(POLICY) is None
        assert api.deleted == [f"Certificate/{name}" for name in NAMES]


@pytest.mark.parametrize(("ends_in", "lacks", "reason", "message"), [
    (None, False, "IssuerNotReady", "Certificates are being issued."),
    (None, True, "SecretInvalid", "spoilt"),
    (60, False, "Issued", ""),
    (60, True, "SecretInvalid", "spoilt"),
    (-1, True, "Expired", "spoilt"),
])
def test_the_condition_tells_what_lacks_and_what_is_worse(
    ends_in: int | None, lacks: bool, reason: str, message: str,
) -> None:
    end = now_utc() + timedelta(days=ends_in or 0)
    seen = Validity(end + timedelta(days=300), end, False) if ends_in is not None else None
    tender = SimpleNamespace(
        validity=seen, trouble="", lack=Lack(ConditionReason.SECRET_INVALID, "spoilt") if lacks else None)
    service: Any = SimpleNamespace(certificates=tender, certificate_policy=Policy)
    _kind, status, found, told = certificates_valid(issuance_facts(PROD.spec, service))
    assert (status, found, told) == (reason == "Issued", ConditionReason(reason), message)


# --- what its Secrets become ----------------------------------------------------------------------------------------


class Secrets:
    """The Secrets of a cluster, and what the keeper makes of them."""

    def __init__(self, secrets: dict[str, Object]) -> None:
        self.all = secrets

    def store(self) -> SecretStore:
        return SecretStore(PROD, self.all.values())

    def keep(self, reports: dict[Identity, str] | None = None) -> list[str]:
        store = self.store()
        keep(store, POLICY, now_utc(), wanted=wanted(), reports=reports, only_wanted=True)
        for write in store.writes():
            if write.verb == "delete":
                del self.all[write.name]
            else:
                known = self.all.get(write.name, write.manifest)
                self.all[write.name] = there({**known, "data": write.manifest["data"]}, len(self.all))
        return [write.name for write in store.writes()]

    def settle(self) -> None:
        while self.keep(reports={}):  # who is not asked about has loaded everything
            pass

    def file(self, secret: str, name: str) -> bytes:
        return base64.b64decode(self.all[secret]["data"][name])


@pytest.mark.parametrize("between", [False, True])
def test_secrets_of_cert_manager_become_those_that_are_mounted(between: bool) -> None:
    signer = Signer("platform", between=between)
    secrets = Secrets(issued(signer, asked()))
    assert validity(secrets.store()) is None
    secrets.settle()
    assert {f"{name}-tls" for name in NAMES} < secrets.all.keys()
    assert "prod-ca" not in secrets.all, "there is no CA of ours"
    assert secrets.all["prod-1-tls"]["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
    for file in ("tls.crt", "tls.key"):
        assert secrets.file("prod-1-tls", file) == secrets.file("prod-1-issued", file)
    assert secrets.file("prod-1-tls", "ca.crt") == signer.ca_file
    assert str(read_leaf(secrets.file("prod-1-tls", "tls.crt")).subject.identity) == "spiffe://prod/node/prod-1"
    seen = validity(secrets.store())
    assert seen is not None
    assert (seen.earliest_expires, seen.overlapping) < (seen.authority_expires, True)
    assert not rotating(secrets.store())


def test_a_leftover_ca_of_another_mode_is_of_no_matter() -> None:
    secrets = Secrets(issued(Signer("x"), asked()))
    secrets.all["prod-ca"] = there({
        "metadata": {"name": "prod-ca", "namespace": "data", "labels": {"app.kubernetes.io/component": "ca"}},
        "data": {"ca-1.crt": base64.b64encode(create_authority("prod", now_utc(), timedelta(1)).certificate).decode()}})
    secrets.settle()
    assert "prod-1-tls" in secrets.all


def test_a_replaced_ca_is_trusted_by_everybody_before_its_first_certificate_is_shown() -> None:
    certificates, old, new = asked(), Signer("old"), Signer("new", between=True)
    secrets = Secrets(issued(old, certificates))
    secrets.settle()
    before = {name: secrets.file(f"{name}-tls", "tls.crt") for name in NAMES}
    secrets.all |= issued(new, {"prod-1": certificates["prod-1"]})
    assert rotating(secrets.store())
    silent = {subject.identity: "" for subject in wanted()}  # they run, and have loaded nothing yet
    assert sorted(secrets.keep(silent)) == sorted(f"{name}-tls" for name in NAMES)
    assert secrets.keep(silent) == []
    assert {name: secrets.file(f"{name}-tls", "tls.crt") for name in NAMES} == before
    assert all(len(read_bundle(secrets.file(f"{name}-tls", "ca.crt"))) == 2 for name in NAMES)
    secrets.settle()
    assert secrets.file("prod-1-tls", "tls.crt") == secrets.file("prod-1-issued", "tls.crt")
    assert all(len(read_bundle(secrets.file(f"{name}-tls", "ca.crt"))) == 2 for name in NAMES), "others show the old"
    secrets.all |= issued(new, {name: certificates[name] for name in NAMES if name != "prod-1"})
    secrets.settle()
    assert {secrets.file(f"{name}-tls", "ca.crt") for name in NAMES} == {new.ca_file}
    assert not rotating(secrets.store())


def test_what_is_spoilt_is_taken_over_anew_and_what_is_withdrawn_stays() -> None:
    secrets = Secrets(issued(Signer("x"), asked()))
    secrets.settle()
    whole = secrets.all["prod-1-tls"]["data"]
    for signer in (Signer("y"), Signer("z", ca=False)):
        spoilt = base64.b64encode(signer.ca_file).decode()
        secrets.all["prod-1-tls"]["data"] = {**whole, "ca.crt": spoilt}
        secrets.settle()
        assert secrets.all["prod-1-tls"]["data"] == whole
    del secrets.all["prod-1-issued"]
    assert secrets.keep() == []
    assert secrets.all["prod-1-tls"]["data"] == whole


def test_keys_of_cert_manager_are_in_no_text() -> None:
    secrets = Secrets(issued(Signer("x"), asked()))
    store = secrets.store()
    actions = keep(store, POLICY, now_utc(), wanted=wanted(), only_wanted=True)
    said = repr(actions) + repr(store.writes()) + repr(store.offers()) + repr(partial(keep, store))
    assert store.writes()
    assert "PRIVATE" not in said
    assert not [name for name in NAMES if secrets.all[f"{name}-issued"]["data"]["tls.key"] in said]
