"""Channels of a client whose TLS files are replaced: new calls use the new ones, running ones end where they are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import tidemark
from tidemark.routing import Channels
from tidemark_operator.certificates.authority import bundle_of, create_authority, issue
from tidemark_operator.certificates.files import CertificateFiles
from tidemark_operator.certificates.subject import Subject
from tidemark_wire import channel as wire
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.tls import FileCredentials, TlsSettings

from tests.waiting import until

DAY = timedelta(days=1)
ALICE = Identity("dev", Kind.CLIENT, "alice")
NODE = Identity("dev", Kind.NODE, "n1")


class Files:
    """Certificates of one CA after the other, all trusted."""

    def __init__(self, directory: Path) -> None:
        self.store = CertificateFiles(directory, "dev")
        self.authorities = [create_authority("dev", datetime.now(UTC), DAY) for _ in range(2)]

    def give(self, identity: Identity, authority: int) -> TlsSettings:
        serves = identity.kind is Kind.NODE
        subject = Subject(identity, (identity.name,) if serves else (), ("127.0.0.1",) if serves else ())
        leaf = issue(self.authorities[authority], subject, datetime.now(UTC), DAY)
        self.store.put_holder(identity, leaf, bundle_of(self.authorities))
        return TlsSettings.of_directory(self.store.folder(identity))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "tls")


@pytest.fixture
async def address(files: Files) -> AsyncIterator[str]:
    server = grpc.aio.server(options=wire.server_options())

    async def echo(requests: Any, context: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def certificate(request: bytes, context: Any) -> bytes:
        return bytes(context.auth_context()["x509_pem_cert"][0])

    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {
        "Echo": grpc.stream_stream_rpc_method_handler(echo),
        "Certificate": grpc.unary_unary_rpc_method_handler(certificate),
    }),))
    port = wire.bind(server, "127.0.0.1:0", FileCredentials(files.give(NODE, 0)))
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def shown(channels: Channels, address: str) -> bytes:
    return bytes(await channels.to(address).unary_unary("/t/Certificate")(b"", timeout=20))


async def test_new_calls_show_the_new_certificate_and_a_running_one_goes_on(files: Files, address: str) -> None:
    tls = FileCredentials(files.give(ALICE, 0))
    channels = Channels(tls)
    before = await shown(channels, address)
    running = channels.to(address).stream_stream("/t/Echo")()
    await running.write(b"1")
    assert b"1" == await running.read()
    generation = tls.generation
    files.give(ALICE, 1)
    await until(lambda: tls.changed_since(generation))
    after = await shown(channels, address)
    assert before != after
    assert files.store.holders()[ALICE].leaf.certificate.strip() == after.strip()
    await running.write(b"2")
    assert b"2" == await running.read()
    running.cancel()
    (retired,) = channels._retired
    async with asyncio.timeout(20):
        await channels.close()
    assert not retired.cancelled()  # it ended with its last call
    assert retired.exception() is None


async def test_a_node_is_known_by_its_name_wherever_it_is(files: Files, address: str) -> None:
    """Its certificate names 127.0.0.1, not localhost."""
    elsewhere = f"localhost:{address.rpartition(':')[2]}"
    channels = Channels(FileCredentials(files.give(ALICE, 0)))
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await shown(channels, elsewhere)
    channels.nodes = {elsewhere: "n2"}
    with pytest.raises(grpc.aio.AioRpcError, match="UNAVAILABLE"):
        await shown(channels, elsewhere)
    channels.nodes = {elsewhere: "n1"}
    assert await shown(channels, elsewhere)
    named = channels.to(elsewhere)
    channels.nodes = {}
    assert await shown(channels, address)
    by_host = channels.to(address)
    channels.nodes = {address: "n1"}
    assert by_host is channels.to(address), "who was let in is not asked again"
    assert named is not channels.to(elsewhere), "who is there now is not known"
    await channels.close()


async def test_a_given_server_name_counts_for_every_node(files: Files, address: str) -> None:
    settings = files.give(ALICE, 0)
    channels = Channels(FileCredentials(TlsSettings(settings.ca, settings.cert, settings.key, "n1")))
    channels.nodes = {address: "n2"}
    assert await shown(channels, address)
    await channels.close()


async def test_unusable_files_are_an_invalid_argument(tmp_path: Path) -> None:
    with pytest.raises(tidemark.errors.InvalidArgument, match=r"tls: .*none\.crt") as caught:
        await tidemark.connect("127.0.0.1:1", tls=TlsSettings(tmp_path / "none.crt", "b", "c"))
    assert "tls" == caught.value.field
