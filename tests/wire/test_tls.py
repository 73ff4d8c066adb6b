"""TLS of connections: who gets in, what is known of who called, and files that are replaced under running processes."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tidemark_operator.certificates.authority import Authority, bundle_of, create_authority, issue
from tidemark_operator.certificates.files import CertificateFiles
from tidemark_operator.certificates.subject import Subject
from tidemark_wire import channel
from tidemark_wire.audit import LINES_AT_ONCE, Audit
from tidemark_wire.identity import AccessLists, Identity, Kind, Role, identity_of, may, peer_identity
from tidemark_wire.tls import (
    Credentials,
    FileCredentials,
    GivenCredentials,
    InvalidTls,
    TlsSettings,
    read_material,
)

from tests.waiting import until

WHO = "/test.Who/AmI"
HOLD = "/test.Who/Hold"
DAY = timedelta(days=1)
NODE = Identity("prod", Kind.NODE, "prod-1")
ALICE = Identity("prod", Kind.CLIENT, "alice")


class Place:
    """A CA and directories of certificates."""

    def __init__(self, directory: Path) -> None:
        self.files = CertificateFiles(directory, "prod")
        self.ca = self.new_ca()

    def new_ca(self) -> Authority:
        return create_authority("prod", datetime.now(UTC), DAY)

    def give(
        self, identity: Identity, ca: Authority | None = None, *, trust: list[Authority] | None = None
    ) -> TlsSettings:
        serves = identity.kind is Kind.NODE
        subject = Subject(identity, ("prod-1", "localhost") if serves else (), ("127.0.0.1",) if serves else ())
        leaf = issue(ca or self.ca, subject, datetime.now(UTC), DAY)
        self.files.put_holder(identity, leaf, bundle_of(trust or [self.ca]))
        return TlsSettings.of_directory(self.files.folder(identity))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "tls")


async def _who(request: bytes, context: Any) -> bytes:
    return str(peer_identity(context)).encode()


async def _hold(requests: Any, context: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


@contextlib.asynccontextmanager
async def serving(tls: Credentials | None) -> AsyncIterator[str]:
    server = grpc.aio.server(options=channel.server_options())
    handlers = {
        "AmI": grpc.unary_unary_rpc_method_handler(_who), "Hold": grpc.stream_stream_rpc_method_handler(_hold),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Who", handlers),))
    port = channel.bind(server, "127.0.0.1:0", tls)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def ask(address: str, tls: Credentials | None, server_name: str = "") -> str:
    async with channel.open_channel(address, tls, server_name=server_name) as opened:
        answer = await opened.unary_unary(WHO)(b"", timeout=20)
        return bytes(answer).decode()


async def refused(address: str, tls: Credentials | None, server_name: str = "") -> bool:
    try:
        await ask(address, tls, server_name)
    except grpc.aio.AioRpcError as error:
        assert grpc.StatusCode.UNAVAILABLE is error.code(), error
        return True
    return False


async def test_the_server_knows_who_calls(place: Place) -> None:
    async with serving(FileCredentials(place.give(NODE))) as address:
        assert "spiffe://prod/client/alice" == await ask(address, FileCredentials(place.give(ALICE)))


async def test_nobody_gets_in_without_a_certificate_of_the_ca(place: Place) -> None:
    foreign = place.new_ca()
    stranger = FileCredentials(place.give(Identity("prod", Kind.CLIENT, "eve"), foreign))
    async with serving(FileCredentials(place.give(NODE))) as address:
        assert await refused(address, stranger)
        assert await refused(address, None)
        assert not await refused(address, FileCredentials(place.give(ALICE)))


async def test_a_client_talks_to_no_server_of_another_ca_nor_to_another_one_than_it_means(place: Place) -> None:
    distrusting = FileCredentials(place.give(Identity("prod", Kind.CLIENT, "bob"), trust=[place.new_ca()]))
    alice = FileCredentials(place.give(ALICE))
    async with serving(FileCredentials(place.give(NODE))) as address:
        assert await refused(address, distrusting)
        assert await refused(address, alice, "prod-2")
        assert not await refused(address, alice, "prod-1")


async def test_a_certificate_of_a_client_cannot_serve(place: Place) -> None:
    leaf = issue(place.ca, Subject(ALICE, ("localhost",), ("127.0.0.1",)), datetime.now(UTC), DAY)
    place.files.put_holder(ALICE, leaf, bundle_of([place.ca]))
    tls = FileCredentials(TlsSettings.of_directory(place.files.folder(ALICE)))
    async with serving(tls) as address:
        assert await refused(address, FileCredentials(place.give(Identity("prod", Kind.CLIENT, "bob"))))


async def test_replaced_files_are_in_force_for_new_connections_and_old_ones_go_on(place: Place) -> None:
    server, alice = FileCredentials(place.give(NODE)), FileCredentials(place.give(ALICE))
    async with serving(server) as address, channel.open_channel(address, alice) as opened:
        call = opened.stream_stream(HOLD)()
        await call.write(b"before")
        assert b"before" == await call.read()
        generation, new = alice.generation, place.new_ca()
        place.give(NODE, new, trust=[new])
        await until(lambda: bundle_of([new]) == server.material.ca)
        assert await refused(address, alice)
        place.give(ALICE, new, trust=[new])
        await until(lambda: alice.changed_since(generation))
        assert "spiffe://prod/client/alice" == await ask(address, alice)
        await call.write(b"after")
        assert b"after" == await call.read()
        call.cancel()


async def test_credentials_that_are_handed_over_take_effect_for_new_connections(place: Place) -> None:
    foreign = place.new_ca()
    server = GivenCredentials(read_material(place.give(NODE, foreign, trust=[foreign])))
    alice = GivenCredentials(read_material(place.give(ALICE)))
    async with serving(server) as address:
        assert await refused(address, alice)
        server.give(read_material(place.give(NODE)))
        assert 1 == server.generation
        assert "spiffe://prod/client/alice" == await ask(address, alice)
        alice.give(read_material(place.give(ALICE, foreign)))
        assert await refused(address, alice)


async def test_files_that_do_not_fit_together_change_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    tls = FileCredentials(place.give(NODE))
    before = tls.material
    key = place.files.folder(NODE) / "tls.key"
    other = place.give(ALICE).key
    target = key.resolve()
    target.write_bytes(Path(other).read_bytes())
    with caplog.at_level(logging.WARNING):
        await until(lambda: tls.material is before and bool(caplog.records))
    assert "its own, plain key" in caplog.text
    assert "PRIVATE" not in caplog.text
    assert 0 == tls.generation


def test_unusable_files_are_named_at_the_start(place: Place, tmp_path: Path) -> None:
    good = place.give(NODE)
    with pytest.raises(InvalidTls, match=r"missing\.crt"):
        read_material(TlsSettings(good.ca, tmp_path / "missing.crt", good.key))
    with pytest.raises(InvalidTls, match="its own, plain key"):
        read_material(TlsSettings(good.ca, good.cert, place.give(ALICE).key))
    empty = tmp_path / "empty.crt"
    empty.touch()
    with pytest.raises(InvalidTls, match=r"empty\.crt: holds no CA"):
        read_material(TlsSettings(empty, good.cert, good.key))


def test_the_environment_names_all_three_files_or_none() -> None:
    assert TlsSettings.of_environment({}) is None
    whole = {"TIDEMARK_TLS_CA": "a", "TIDEMARK_TLS_CERT": "b", "TIDEMARK_TLS_KEY": "c", "TIDEMARK_TLS_SERVER_NAME": "d"}
    assert TlsSettings("a", "b", "c", "d") == TlsSettings.of_environment(whole)
    with pytest.raises(InvalidTls, match=r"^TIDEMARK_TLS_CERT and TIDEMARK_TLS_KEY: not given"):
        TlsSettings.of_environment({"TIDEMARK_TLS_CA": "a"})


# --- identities and roles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "identity", [NODE, ALICE, Identity("a.b-c", Kind.OPERATOR, "x"), Identity("p", Kind.ADMIN, "y")]
)
def test_an_identity_reads_back(identity: Identity) -> None:
    assert identity == identity_of(str(identity))


@pytest.mark.parametrize(
    "uri", ["", "spiffe://prod/client/", "spiffe://prod/root/a", "https://prod/node/a", "spiffe://prod/node/a/b",
            "spiffe://prod/node/a\n", "spiffe://PROD/node/a", f"spiffe://prod/node/{'a' * 64}", "spiffe:///node/a"],
)
def test_what_names_no_identity_is_nobody(uri: str) -> None:
    assert identity_of(uri) is None


LISTS = AccessLists.of(["alice"], ["bob"], ["carol"])


@pytest.mark.parametrize(
    ("kind", "name", "lists", "roles"),
    [
        (Kind.CLIENT, "alice", LISTS, {Role.READER}),
        (Kind.CLIENT, "bob", LISTS, {Role.WRITER}),
        (Kind.CLIENT, "carol", LISTS, set(Role)),
        (Kind.CLIENT, "dave", LISTS, set()),
        (Kind.CLIENT, "dave", AccessLists.of("*", (), ()), {Role.READER}),
        (Kind.CLIENT, "dave", AccessLists(), set()),
        (Kind.CLIENT, "dave", None, {Role.READER, Role.WRITER}),
        (Kind.ADMIN, "root", LISTS, set(Role)),
        (Kind.NODE, "alice", LISTS, set()),
        (Kind.OPERATOR, "carol", None, set()),
    ],
)
def test_roles_come_from_the_names_in_the_lists(
    kind: Kind, name: str, lists: AccessLists | None, roles: set[Role]
) -> None:
    assert roles == {role for role in Role if may(Identity("prod", kind, name), role, lists)}


# --- audit ------------------------------------------------------------------------------------------------------------


def test_an_audit_line_says_who_and_what_and_a_caller_has_a_bound_of_them(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    audit = Audit(lambda: now[0])
    with caplog.at_level(logging.INFO, "tidemark.audit"):
        for _ in range(LINES_AT_ONCE + 5):
            audit.refused(ALICE, "ipv4:1.2.3.4:5", "Append", "orders", "no writer")
        audit.admin(None, "ipv4:1.2.3.4:6", "Apply")
        assert LINES_AT_ONCE + 1 == len(caplog.records)
        now[0] = 1.0
        audit.refused(ALICE, "ipv4:1.2.3.4:5", "Append", "orders", "no writer")
    lines = [json.loads(record.getMessage()) for record in caplog.records]
    assert {
        "event": "refused", "caller": "spiffe://prod/client/alice", "peer": "ipv4:1.2.3.4:5", "method": "Append",
        "about": "orders", "why": "no writer",
    } == lines[0]
    assert {"event": "admin", "caller": "nobody", "peer": "ipv4:1.2.3.4:6", "method": "Apply"} == lines[-2]
    assert 5 == lines[-1]["suppressed"]
