"""Who may call the Admin service, and the operator that keeps certificates while its nodes report what they loaded."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from tidemark_operator import certificate_tending
from tidemark_operator.access import LAST_APPLIED, AdminAccess
from tidemark_operator.certificate_tending import CertificateTender, FileArchive
from tidemark_operator.certificates.files import CertificateFiles
from tidemark_operator.certificates.keeper import ensure, now_utc, request_rotation, rotated
from tidemark_operator.certificates.rotation import Policy
from tidemark_operator.certificates.store import Lack
from tidemark_operator.certificates.subject import Subject
from tidemark_operator.metadata import StoredObject
from tidemark_operator.model import certificate_policy, group_view
from tidemark_operator.resources.conditions import ConditionReason
from tidemark_wire.identity import AccessLists, Identity, Kind
from tidemark_wire.tls import FileCredentials, TlsSettings, fingerprint_of

from tests.waiting import until

LISTS = {"orders": AccessLists.of(["rita"], ["will"], ["anna"])}
POLICY = Policy(overlap=timedelta(0))


class Refused(Exception):
    """The call was aborted."""


class Call:
    """A gRPC context of one caller."""

    def __init__(self, uri: str) -> None:
        self._uri = uri

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"peer_spiffe_id": [self._uri.encode()]} if self._uri else {}

    def peer(self) -> str:
        return "ipv4:1.2.3.4:5"

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Any) -> None:
        assert grpc.StatusCode.PERMISSION_DENIED is code
        raise Refused(details)


async def allowed(access: AdminAccess, uri: str) -> set[str]:
    calls = {
        "look": access.look(Call(uri), "Admin.Get"),
        "move orders": access.move(Call(uri), "Admin.Change", "orders", "SWAP"),
        "move others": access.move(Call(uri), "Admin.Change", "others", "SWAP"),
        "administer": access.administer(Call(uri), "Admin.Apply"),
    }
    found = set()
    for name, call in calls.items():
        try:
            await call
            found.add(name)
        except Refused:
            pass
    return found


@pytest.mark.parametrize(
    ("uri", "may"),
    [
        ("spiffe://dev/admin/root", {"look", "move orders", "move others", "administer"}),
        ("spiffe://dev/client/anna", {"look", "move orders"}),
        ("spiffe://dev/client/will", {"look"}),
        ("spiffe://dev/operator/operator", {"look"}),
        ("spiffe://dev/node/dev-1", set()),
        ("spiffe://prod/admin/root", set()),
        ("", set()),
    ],
)
async def test_each_caller_may_call_what_it_is_for(uri: str, may: set[str]) -> None:
    assert may == await allowed(AdminAccess("dev", LISTS.get, tls=True), uri)


@pytest.mark.parametrize(("uri", "readers", "annotations"), [
    ("spiffe://dev/client/will", ["*"], {"note": "mine"}),
    ("spiffe://dev/client/rita", ["rita", "*"], {"note": "mine"}),
    ("spiffe://dev/admin/root", ["rita", "*", "anna"], {"note": "mine", LAST_APPLIED: "{}"}),
    ("spiffe://dev/operator/operator", ["rita", "*", "anna"], {"note": "mine", LAST_APPLIED: "{}"}),
])
async def test_a_client_sees_no_other_clients_name_in_access_lists(
    uri: str, readers: list[str], annotations: dict[str, str]
) -> None:
    item = {
        "kind": "LogGroup", "metadata": {"name": "orders", "annotations": {"note": "mine", LAST_APPLIED: "{}"}},
        "spec": {"shards": 1, "access": {"readers": ["rita", "*", "anna"], "writers": ["anna"], "admins": []}},
    }
    shown = (await AdminAccess("dev", LISTS.get, tls=True).look(Call(uri), "Admin.Get"))(item)
    assert shown["spec"]["access"]["readers"] == readers
    assert shown["metadata"] == {"name": "orders", "annotations": annotations}
    assert shown["spec"]["shards"] == 1 and item["spec"]["access"]["readers"] == ["rita", "*", "anna"]
    assert ("anna" in str(shown)) == ("client" not in uri)


async def test_without_tls_everybody_may_do_everything() -> None:
    assert 4 == len(await allowed(AdminAccess("dev", LISTS.get, tls=False), ""))


async def test_changes_and_refusals_are_audited_and_looks_are_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tidemark.audit"):
        await allowed(AdminAccess("dev", LISTS.get, tls=True), "spiffe://dev/client/anna")
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert [("admin", "Admin.Change"), ("refused", "Admin.Change"), ("refused", "Admin.Apply")] == [
        (line["event"], line["method"]) for line in lines]
    caplog.clear()
    with caplog.at_level(logging.INFO, "tidemark.audit"):
        audit = await AdminAccess("dev", LISTS.get, tls=False).administer(Call(""), "Admin.Apply")
        audit("LogGroup/orders created")
    assert {
        "event": "admin", "caller": "nobody", "peer": "ipv4:1.2.3.4:5", "method": "Admin.Apply",
        "about": "LogGroup/orders created",
    } == json.loads(caplog.records[0].getMessage())


def test_access_lists_come_from_the_manifest() -> None:
    spec: dict[str, Any] = {"shards": 1, "clusterRef": {"name": "dev"}}
    stored = StoredObject({"metadata": {"name": "orders"}, "spec": spec}, "u", "2026-01-01T00:00:00Z", number=1)
    assert group_view(stored).access is None
    spec["access"] = {"readers": ["rita"], "writers": []}
    assert AccessLists.of(["rita"], (), ()) == group_view(stored).access


def test_how_long_certificates_last_comes_from_the_manifest() -> None:
    tls = {"certificateDurationDays": 10, "renewBeforeDays": 3}
    policy = certificate_policy({"security": {"tls": tls}})
    assert (timedelta(days=10), timedelta(days=3)) == (policy.certificate, policy.renew_before)
    assert timedelta(days=90) == certificate_policy({}).certificate


# --- the operator that keeps certificates -----------------------------------------------------------------------------


class Link:
    """A link to a node that has loaded what a test says."""

    def __init__(self, store: CertificateFiles, node: str) -> None:
        self.node = node
        self.up = True
        self.stuck = False
        self._store = store
        self._loaded = self._files()

    def _files(self) -> str:
        held = self._store.holders()[Identity("dev", Kind.NODE, self.node)]
        return fingerprint_of(held.leaf.certificate, held.bundle)

    async def tls_fingerprint(self) -> str:
        if not self.stuck:
            self._loaded = self._files()
        return self._loaded


@pytest.fixture
def store(tmp_path: Path) -> CertificateFiles:
    store = CertificateFiles(tmp_path / "tls", "dev")
    names = [(Kind.OPERATOR, "operator"), (Kind.NODE, "n1"), (Kind.CLIENT, "alice")]
    ensure(store, POLICY, now_utc(), [Subject(Identity("dev", kind, name)) for kind, name in names])
    return store


async def test_a_rotation_goes_on_when_every_node_that_runs_has_loaded_the_last_step(
    store: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_tending, "LOOK_S", 0.01)
    tls = FileCredentials(TlsSettings.of_directory(store.folder(Identity("dev", Kind.OPERATOR, "operator"))))
    link = Link(store, "n1")
    tender = CertificateTender(FileArchive(store), lambda: POLICY, [link], tls, "operator", lambda: True)  # type: ignore[arg-type]
    await tender.look()
    assert tender.validity is not None
    assert "Issued" == tender.validity.reason(now_utc(), POLICY)
    assert "ExpiringSoon" == tender.validity.reason(now_utc() + timedelta(days=76), POLICY)
    assert "Expired" == tender.validity.reason(now_utc() + timedelta(days=91), POLICY)
    retired = request_rotation(store)
    link.stuck = True
    for _ in range(4):
        await tender.look()
    assert tender.validity.overlapping
    assert retired == store.holders()[Identity("dev", Kind.CLIENT, "alice")].facts.issuer
    link.stuck = False
    running = asyncio.ensure_future(tender.run())
    await until(lambda: rotated(store, retired))
    running.cancel()


async def test_a_node_that_is_down_is_not_waited_for(store: CertificateFiles) -> None:
    tls = FileCredentials(TlsSettings.of_directory(store.folder(Identity("dev", Kind.OPERATOR, "operator"))))
    link = Link(store, "n1")
    link.stuck, link.up = True, False
    tender = CertificateTender(FileArchive(store), lambda: POLICY, [link], tls, "operator", lambda: True)  # type: ignore[arg-type]
    retired = request_rotation(store)

    async def looked() -> bool:
        await tender.look()
        return rotated(store, retired)

    await until(looked, "the certificates are rotated")


async def test_an_operator_that_stands_by_shows_how_long_certificates_last_and_changes_nothing(
    store: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_tending, "LOOK_S", 0.01)
    tls = FileCredentials(TlsSettings.of_directory(store.folder(Identity("dev", Kind.OPERATOR, "operator"))))
    tender = CertificateTender(FileArchive(store), lambda: POLICY, [], tls, "operator", lambda: False)  # type: ignore[arg-type]
    request_rotation(store)
    running = asyncio.ensure_future(tender.run())
    await until(lambda: tender.validity is not None)
    running.cancel()
    assert tender.validity.overlapping
    assert 1 == len(store.authorities())


async def test_damaged_certificates_are_told_and_looked_at_again(
    store: CertificateFiles, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(certificate_tending, "LOOK_S", 0.01)
    tls = FileCredentials(TlsSettings.of_directory(store.folder(Identity("dev", Kind.OPERATOR, "operator"))))
    tender = CertificateTender(FileArchive(store), lambda: POLICY, [], tls, "operator", lambda: True)  # type: ignore[arg-type]
    damaged = (store.folder(Identity("dev", Kind.CLIENT, "alice")) / "tls.crt").resolve()
    good = damaged.read_bytes()
    damaged.write_bytes(b"nothing")
    running = asyncio.ensure_future(tender.run())
    await until(lambda: tender.trouble)
    damaged.write_bytes(good)
    await until(lambda: not tender.trouble)
    running.cancel()
    assert "client/alice" in caplog.text


async def test_what_somebody_else_has_not_issued_is_asked_for_until_it_is_there(
    store: CertificateFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate_tending, "LOOK_S", 0.01)
    lacks = [Lack(ConditionReason.ISSUER_NOT_READY, text) for text in ("one", "one", "two")]
    told: list[str] = []

    class Elsewhere(FileArchive):
        async def request(self, policy: Policy) -> Lack | None:
            return lacks.pop(0) if lacks else None

    tls = FileCredentials(TlsSettings.of_directory(store.folder(Identity("dev", Kind.OPERATOR, "operator"))))
    tender = CertificateTender(
        Elsewhere(store), lambda: POLICY, [], tls, "operator", lambda: True,  # type: ignore[arg-type]
        lambda: told.append(tender.lack.message if tender.lack is not None else ""))
    running = asyncio.ensure_future(tender.run())
    await until(lambda: told[-1:] == [""])
    running.cancel()
    assert told == ["one", "two", ""], "nobody is told twice"
