"""Nodes with TLS: who gets in, who may call what, and what a client's certificate lets it do with a log group."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from delivery_harness import Stream
from google.protobuf.message_factory import GetMessageClass
from node_harness import GROUP, Appender, NodeProcess, OperatorHand, batch, push_map, shard_map
from tidemark_core.base.entry import Batch
from tidemark_core.base.ids import ShardKind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.delivery.messages import Started, Status
from tidemark_core.replication.messages import Appended, Claimed, DeleteShard, Fence, Fenced, ShardDeleted
from tidemark_core.replication.producer_ids import claim_of, named
from tidemark_node.appends import FOREIGN, NOT_OWN
from tidemark_operator.certificates.authority import bundle_of, create_authority, issue
from tidemark_operator.certificates.files import CertificateFiles
from tidemark_operator.certificates.rotation import Policy
from tidemark_operator.certificates.subject import Subject
from tidemark_wire import channel
from tidemark_wire.changes import CHANGES
from tidemark_wire.channel import open_channel
from tidemark_wire.identity import Identity, Kind
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tls import Credentials, FileCredentials, TlsSettings
from tidemark_wire.v1 import (
    common_pb2,
    documents_pb2,
    documents_pb2_grpc,
    keyspaces_pb2,
    keyspaces_pb2_grpc,
    node_pb2,
    node_pb2_grpc,
)

POLICY = Policy()
ACCESS = common_pb2.GroupAccess(readers=["rita"], writers=["will"], admins=["anna"])


class Certificates:
    """One CA, and a directory of files for whoever is asked for."""

    def __init__(self, directory: Path) -> None:
        self._files = CertificateFiles(directory, "prod")
        self._ca = create_authority("prod", datetime.now(UTC), POLICY.authority)

    def settings(self, kind: Kind, name: str, cluster: str = "prod") -> TlsSettings:
        identity = Identity(cluster, kind, name)
        serves = kind is Kind.NODE
        subject = Subject(identity, (name,) if serves else (), ("127.0.0.1",) if serves else ())
        leaf = issue(self._ca, subject, datetime.now(UTC), POLICY.certificate)
        self._files.put_holder(identity, leaf, bundle_of([self._ca]))
        return TlsSettings.of_directory(self._files.folder(identity))

    def flags(self, node: str) -> tuple[str, ...]:
        directory = Path(self.settings(Kind.NODE, node).cert).parent
        return "--cluster", "prod", "--tls-dir", str(directory)

    def of(self, kind: Kind, name: str, cluster: str = "prod") -> Credentials:
        return FileCredentials(self.settings(kind, name, cluster))

    def client(self, name: str) -> Credentials:
        return self.of(Kind.CLIENT, name)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


class Led:
    """One node with TLS that leads its one shard, and the operator that made it."""

    def __init__(self, node: NodeProcess, operator: OperatorHand, certificates: Certificates) -> None:
        self.node = node
        self.address = node.address
        self.certificates = certificates
        self.operator = operator
        self.map_version = 0

    async def lead(self) -> None:
        await self.operator.link(self.node.name, self.address)
        await self.allow(ACCESS)
        await self.operator.elect(1, self.node.member, (self.node.member,))

    async def allow(self, access: common_pb2.GroupAccess | None) -> None:
        self.map_version += 1
        more = {} if access is None else {"access": access}
        pushed = shard_map([(self.node.member, self.address)], self.node.name, self.map_version, **more)
        await push_map(self.address, pushed, self.operator.tls)

    async def append(
        self, name: str, sequence: int = 0, kind: Kind = Kind.CLIENT, producer: bytes | None = None
    ) -> Any:
        appender = Appender(self.address, self.certificates.of(kind, name))
        try:
            return await appender.append(batch(sequence, producer=producer or name.encode().ljust(16, b"-")))
        finally:
            await appender.close()

    async def prefix(self, name: str, kind: Kind = Kind.CLIENT) -> bytes:
        """Return how the node says that ids of this caller's producers begin."""
        async with open_channel(self.address, self.certificates.of(kind, name)) as opened:
            stub = node_pb2_grpc.TidemarkStub(opened)
            answer = await stub.GetShardMap(node_pb2.GetShardMapRequest(), metadata=channel.hello_metadata())
            assert [GROUP] == [group.name for group in answer.groups]
            return bytes(answer.producer_prefix)

    async def started(self, name: str) -> Started:
        stream = Stream(self.address, [self.node.name], self.certificates.client(name))
        try:
            await stream.start()
            return await stream.started()
        finally:
            await stream.close()


@pytest.fixture
async def led(start_node: Callable[..., NodeProcess], certificates: Certificates) -> Any:
    operator = OperatorHand(tls=certificates.of(Kind.OPERATOR, "operator"))
    led = Led(start_node("a", *certificates.flags("a")), operator, certificates)
    await led.lead()
    yield led
    await operator.close()


async def reason_of(call: Any) -> Reason | None:
    """Return why a call is refused, None when it is answered; raises what is no typed refusal."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        hinted = refusal_from_rpc_error(error)
        if hinted is None:
            raise
        reason = hinted.refused.reason
        assert (error.code() is grpc.StatusCode.PERMISSION_DENIED) is (reason is Reason.PERMISSION_DENIED)
        return reason
    return None


async def first_of(call: Any) -> Any:
    try:
        return await call.read()
    finally:
        call.cancel()


REQUESTS = {
    "Replication.PullSnapshot": {"shard": 1}, "Control.DebugDump": {"all": True},
    "Tidemark.Outcome": {"producer": b"p" * 16}, "Tidemark.CommitPosition": {"subscription": "s", "lease_ms": 60_000},
    "Tidemark.DeleteSubscription": {"subscription": "s"}, "Tidemark.DeleteSink": {"sink": "s"},
    "Tidemark.JoinSink": {"sink": "s", "lease_ms": 60_000}, "Tidemark.MarkSink": {"sink": "s", "lease_ms": 60_000},
}
RAW = {
    "Replication.Link": channel.REPLICATION_LINK, "Control.Link": channel.CONTROL_LINK,
    "Tidemark.Append": channel.APPEND, "Tidemark.Deliver": channel.DELIVER, "Documents.Changes": CHANGES,
}


def every_call(opened: grpc.aio.Channel, hello: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return a call of each method there is, by its name; each asks for nothing that is wrong in itself."""
    metadata = tuple(hello)
    calls: dict[str, Any] = {}
    stubs = [(node_pb2, node_pb2_grpc), (documents_pb2, documents_pb2_grpc), (keyspaces_pb2, keyspaces_pb2_grpc)]
    for service, module in [
        (service, module) for file, module in stubs for service in file.DESCRIPTOR.services_by_name.values()
    ]:
        stub = getattr(module, f"{service.name}Stub")(opened)
        for method in service.methods:
            name = f"{service.name}.{method.name}"
            request = GetMessageClass(method.input_type)(**REQUESTS.get(name, {}))
            if "group" in method.input_type.fields_by_name:
                request.group = GROUP
            if "keyspace" in method.input_type.fields_by_name:
                request.keyspace = GROUP    # the lists of a group say nothing of a keyspace of its name
            call = getattr(stub, method.name)(request, metadata=metadata, timeout=20)
            calls[name] = first_of(call) if hasattr(call, "read") else call
    read = opened.unary_stream(channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
    calls["Tidemark.Read"] = first_of(
        read(node_pb2.ReadRequest(group=GROUP, shard=0, until=-1), metadata=metadata, timeout=20))
    for name, path in RAW.items():
        calls[name] = first_of(half_closed(opened.stream_stream(path)(metadata=metadata, timeout=20)))
    return calls


def half_closed(call: Any) -> Any:
    """Return a call that says nothing, so that a method that lets it in ends."""

    class Call:
        async def read(self) -> Any:
            await call.done_writing()
            return await call.read()

        def cancel(self) -> None:
            call.cancel()

    return Call()


async def allowed_calls(led: Led, tls: Credentials, **hello: str) -> set[str]:
    """Return the methods that do not refuse this caller."""
    async with open_channel(led.address, tls) as opened:
        calls = every_call(opened, channel.hello_metadata(**hello))
        found = set()
        for name, call in calls.items():
            if await reason_of(call) is not Reason.PERMISSION_DENIED:
                found.add(name)
        return found


FOR_ALL = {"Tidemark.GetShardMap", "Tidemark.WatchShardMap"}
STREAMS = {"Tidemark.Append", "Tidemark.Deliver", "Documents.Changes"}  # their groups are judged frame by frame
READS = {
    "Tidemark.Read", "Tidemark.ExplainRead", "Tidemark.Limbo", "Tidemark.CommitPosition", "Tidemark.Subscriptions",
    "Tidemark.DeleteSubscription", "Documents.Get", "Documents.Scan", "Documents.Pin", "Documents.Unpin",
    "Documents.Describe", "Tidemark.Sinks",
}
WRITES = {
    "Tidemark.Outcome", "Tidemark.Limbo", "Documents.Describe", "Tidemark.JoinSink", "Tidemark.MarkSink",
    "Tidemark.Sinks", "Tidemark.DeleteSink",
}
KEYSPACES = {f"Keyspaces.{method.name}" for method in keyspaces_pb2.DESCRIPTOR.services_by_name["Keyspaces"].methods}
"""Of a keyspace without lists every client may read and write."""


@pytest.mark.parametrize(
    ("kind", "name", "allowed"),
    [
        (Kind.NODE, "b", FOR_ALL | {"Replication.Link", "Replication.PullSnapshot"}),
        (Kind.OPERATOR, "operator", FOR_ALL | {
            "Control.Link", "Control.Describe", "Control.PushShardMap", "Control.DebugDump", "Control.Replicas",
            "Control.Promise", "Control.Sizes", "Control.CheckDisk"}),
        (Kind.ADMIN, "root", FOR_ALL | STREAMS | KEYSPACES | READS | WRITES | {
            "Control.Describe", "Control.DebugDump", "Control.Replicas", "Control.Promise"}),
        (Kind.CLIENT, "anna", FOR_ALL | STREAMS | KEYSPACES | READS | WRITES),
        (Kind.CLIENT, "rita", FOR_ALL | STREAMS | KEYSPACES | READS),
        (Kind.CLIENT, "will", FOR_ALL | STREAMS | KEYSPACES | WRITES),
        (Kind.CLIENT, "eve", FOR_ALL | STREAMS | KEYSPACES),
    ],
)
async def test_each_caller_may_call_what_it_is_for(led: Led, kind: Kind, name: str, allowed: set[str]) -> None:
    hello = {"node": "b", "incarnation": "b1"} if kind is Kind.NODE else {"operator": "another"}
    assert allowed == await allowed_calls(led, led.certificates.of(kind, name), **hello)


async def test_a_certificate_of_another_cluster_or_of_another_node_may_nothing(led: Led) -> None:
    other = led.certificates.of(Kind.ADMIN, "root", cluster="test")
    assert set() == await allowed_calls(led, other)
    assert set() == await allowed_calls(led, led.certificates.of(Kind.NODE, "b"), node="c", incarnation="c1")


async def test_only_writers_append_and_only_readers_are_delivered_to(led: Led) -> None:
    expected = (("will", True, False), ("rita", False, True), ("anna", True, True), ("eve", False, False))
    for name, writes, reads in expected:
        answer = await led.append(name)
        assert isinstance(answer, Appended) is writes, answer
        assert writes or (isinstance(answer, Refused) and answer.reason is Reason.PERMISSION_DENIED)
        started = await led.started(name)
        assert (Status.OK if reads else Status.ACCESS) is started.status
        assert reads or f"client/{name} is no reader of log group {GROUP!r}" in started.message
    assert isinstance(await led.append("root", kind=Kind.ADMIN), Appended)


async def test_l25b_a_producer_of_another_caller_is_refused(led: Led) -> None:
    """Its ids would count as the other caller's, which would forget its own for them."""
    mine, others = await led.prefix("will"), await led.prefix("anna")
    assert (8, 8) == (len(mine), len(others)) and mine != others
    assert mine == await led.prefix("will") != await led.prefix("will", Kind.ADMIN)

    stolen = await led.append("will", producer=others + b"stranger")
    assert isinstance(stolen, Refused)
    assert (Reason.PERMISSION_DENIED, FOREIGN) == (stolen.reason, stolen.message)
    assert isinstance(await led.append("will", producer=mine + b"12345678"), Appended)
    assert isinstance(await led.append("will", producer=b"no caller at all"), Appended), "as older clients have it"
    assert isinstance(await led.append("anna", producer=others + b"stranger"), Appended), "nothing was appended"
    late = await led.append("will", 1, producer=others + b"unknown.")
    assert isinstance(late, Refused) and late.reason is Reason.PRODUCER_UNKNOWN


async def test_l26_a_claimed_producer_is_its_callers_own(led: Led) -> None:
    """Its id follows from its name: without the prefix anybody could fence it, or append behind its claim."""
    mine, others = await led.prefix("will"), await led.prefix("anna")
    claim = batch(claim_of(1, 5))._replace(count=0, payload=b"")

    async def ask(caller: str, producer: bytes, sent: Batch) -> Any:
        appender = Appender(led.address, led.certificates.client(caller))
        try:
            return await appender.append(sent._replace(producer=producer))
        finally:
            await appender.close()

    assert isinstance(await ask("will", named("job", mine), claim), Claimed)
    behind = batch(claim.sequence + 1)
    for producer in (named("job", mine), named("job")):
        for sent in (claim._replace(sequence=claim_of(2, 5)), behind):
            refused = await ask("anna", producer, sent)
            assert isinstance(refused, Refused)
            assert (Reason.PERMISSION_DENIED, NOT_OWN) == (refused.reason, refused.message)
    assert isinstance(await ask("anna", named("job", others), claim), Claimed), "one name, two callers, two producers"
    assert isinstance(await ask("will", named("job", mine), behind), Appended)


async def test_without_lists_every_client_reads_and_writes(led: Led) -> None:
    await led.allow(None)
    assert isinstance(await led.append("eve"), Appended)
    assert Status.OK is (await led.started("eve")).status
    await led.allow(common_pb2.GroupAccess())
    assert isinstance(await led.append("eve", 1), Refused)


async def test_who_loses_a_role_is_told_on_the_streams_it_has(led: Led) -> None:
    appender = Appender(led.address, led.certificates.client("will"))
    stream = Stream(led.address, ["a"], led.certificates.client("rita"))
    assert isinstance(await appender.append(batch(0)), Appended)
    await stream.start()
    assert Status.OK is (await stream.started()).status
    async with open_channel(led.address, led.certificates.client("rita")) as opened:
        method = opened.unary_stream(channel.READ, request_serializer=node_pb2.ReadRequest.SerializeToString)
        tail = method(node_pb2.ReadRequest(group=GROUP, shard=0, until=-1, tail=True))
        async with asyncio.timeout(20):
            await tail.read()
        await led.allow(common_pb2.GroupAccess())
        assert isinstance(await appender.append(batch(1)), Refused)
        while not isinstance(answer := await stream.next(), Started):
            pass
        assert Status.ACCESS is answer.status

        async def to_its_end() -> None:
            while await tail.read() is not grpc.aio.EOF:
                pass

        async with asyncio.timeout(20):
            assert Reason.PERMISSION_DENIED is await reason_of(to_its_end())
    await appender.close()
    await stream.close()


async def test_the_map_that_clients_get_says_nothing_of_others(led: Led) -> None:
    async with open_channel(led.address, led.certificates.client("eve")) as opened:
        found = await node_pb2_grpc.TidemarkStub(opened).GetShardMap(node_pb2.GetShardMapRequest(), timeout=20)
    assert [GROUP] == [group.name for group in found.groups]
    assert not found.groups[0].HasField("access")


async def test_an_operators_key_takes_a_shard_away_and_shows_no_record_of_it(led: Led) -> None:
    secret = b"a-secret-payload"
    appender = Appender(led.address, led.certificates.client("will"))
    assert isinstance(await appender.append(batch(0, payload=secret)), Appended)
    thief = OperatorHand("thief", tls=led.certificates.of(Kind.OPERATOR, "operator"))
    await thief.link(led.node.name, led.address)
    try:
        assert isinstance(await led.append("eve"), Refused)
        led.map_version += 1
        own = shard_map([(led.node.member, led.address)], led.node.name, led.map_version)
        await push_map(led.address, own, thief.tls)   # without access lists
        assert isinstance(await led.append("eve"), Appended), "a client of the thief writes"

        fenced = await thief.ask(led.node.member, Fence(2, 2), Fenced)
        refused = await appender.append(batch(1))
        assert isinstance(refused, Refused) and refused.reason is Reason.NOT_LEADER, "no leader is left"
        async with open_channel(led.address, thief.tls) as opened:
            control = node_pb2_grpc.ControlStub(opened)
            dump = await control.DebugDump(node_pb2.DebugDumpRequest(all=True), timeout=20)
            replicas = await control.Replicas(node_pb2.ReplicasRequest(), timeout=20)
        deleted = await thief.ask(led.node.member, DeleteShard(2, 2), ShardDeleted)
        for shown in (fenced, deleted, dump.json, replicas, thief.received):
            assert secret.decode() not in str(shown)
    finally:
        await thief.close()
        await appender.close()


@pytest.mark.parametrize("with_foreign_certificate", [False, True])
async def test_nobody_gets_in_without_a_certificate_of_the_ca(
    led: Led, tmp_path: Path, with_foreign_certificate: bool
) -> None:
    tls = Certificates(tmp_path / "foreign").client("eve") if with_foreign_certificate else None
    async with open_channel(led.address, tls) as opened:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await node_pb2_grpc.TidemarkStub(opened).GetShardMap(node_pb2.GetShardMapRequest(), timeout=20)
    assert grpc.StatusCode.UNAVAILABLE is caught.value.code()


def audited(node: NodeProcess) -> list[tuple[str, str, str, str | None]]:
    """Return event, caller, method and subject of each line of a node's audit."""
    lines = []
    for text in node.log().splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            record = json.loads(text)
            if record["logger"] == "tidemark.audit":
                lines.append(json.loads(record["message"]))
    return [(line["event"], line["caller"], line["method"], line.get("about")) for line in lines]


async def test_u70b_a_reader_ends_its_own_pins_and_an_admin_any_with_a_line_in_the_audit(
    start_node: Callable[..., NodeProcess], certificates: Certificates
) -> None:
    node = start_node("a", *certificates.flags("a"))
    operator = OperatorHand(tls=certificates.of(Kind.OPERATOR, "operator"))
    await operator.link(node.name, node.address)
    access = common_pb2.GroupAccess(readers=["rita", "ron"], admins=["anna"])
    pushed = shard_map([(node.member, node.address)], "a", 1, kind="Documents", access=access)
    await push_map(node.address, pushed, operator.tls)
    await operator.elect(1, node.member, (node.member,), kind=ShardKind.DOCUMENTS)

    async def call(who: str, method: str, request: Any, kind: Kind = Kind.CLIENT) -> Any:
        async with open_channel(node.address, certificates.of(kind, who)) as opened:
            return await getattr(documents_pb2_grpc.DocumentsStub(opened), method)(request, timeout=20)

    def pin(who: str, name: str, ttl_ms: int = 60_000) -> Any:
        return call(who, "Pin", documents_pb2.PinDocumentsRequest(group=GROUP, name=name, ttl_ms=ttl_ms))

    def unpin(who: str, name: str, kind: Kind = Kind.CLIENT) -> Any:
        return call(who, "Unpin", documents_pb2.UnpinDocumentsRequest(group=GROUP, name=name), kind)

    async def owners(who: str, kind: Kind = Kind.CLIENT) -> dict[str, str]:
        described = await call(who, "Describe", documents_pb2.DescribeDocumentsRequest(group=GROUP), kind)
        return {each.name: each.owner for each in described.pins}

    for name in ("nightly", "weekly"):
        await pin("rita", name)
    assert Reason.PERMISSION_DENIED is await reason_of(unpin("ron", "nightly"))
    assert Reason.PERMISSION_DENIED is await reason_of(pin("ron", "nightly", 1))
    await pin("ron", "his")
    assert {"nightly": "another", "weekly": "another", "his": "client/ron"} == await owners("ron")
    everyone = {"nightly": "client/rita", "weekly": "client/rita", "his": "client/ron"}
    assert everyone == await owners("anna") == await owners("root", Kind.ADMIN)
    assert (await unpin("rita", "nightly")).existed
    assert (await unpin("anna", "weekly")).existed
    assert (await unpin("root", "his", Kind.ADMIN)).existed
    assert {} == await owners("rita")
    refused = [("refused", "spiffe://prod/client/ron", f"Documents.{method}", GROUP) for method in ("Unpin", "Pin")]
    assert [
        *refused,
        ("admin", "spiffe://prod/client/anna", "Documents.Unpin", f"pin 'weekly' of client/rita in {GROUP!r}, shard 0"),
        ("admin", "spiffe://prod/admin/root", "Documents.Unpin", f"pin 'his' of client/ron in {GROUP!r}, shard 0"),
    ] == audited(node)
    await operator.close()


async def test_refused_and_administrative_calls_leave_an_audit_line_without_payloads(led: Led) -> None:
    appender = Appender(led.address, led.certificates.client("rita"))
    await appender.append(batch(0, payload=b"a-secret-payload"))
    await appender.close()
    async with open_channel(led.address, led.certificates.of(Kind.ADMIN, "root")) as opened:
        await node_pb2_grpc.ControlStub(opened).DebugDump(node_pb2.DebugDumpRequest(all=True), timeout=20)
    assert [
        ("refused", "spiffe://prod/client/rita", "Tidemark.Append", GROUP),
        ("admin", "spiffe://prod/admin/root", "Control.DebugDump", None),
    ] == audited(led.node)
    assert "a-secret-payload" not in led.node.log()
    assert "PRIVATE" not in led.node.log()


async def test_nodes_replicate_to_each_other_over_tls(
    start_node: Callable[..., NodeProcess], certificates: Certificates
) -> None:
    nodes = [start_node(name, *certificates.flags(name)) for name in "abc"]
    operator = OperatorHand(tls=certificates.of(Kind.OPERATOR, "operator"))
    members = tuple(node.member for node in nodes)
    for node in nodes:
        await operator.link(node.name, node.address)
        pushed = shard_map([(one.member, one.address) for one in nodes], "a", 1)
        await push_map(node.address, pushed, operator.tls)
    await operator.elect(1, members[0], members)
    nodes[2].kill()
    appender = Appender(nodes[0].address, certificates.client("will"))
    assert isinstance(await appender.append(batch(0)), Appended)
    await appender.close()
    await operator.close()


@pytest.mark.servers
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--cluster", "prod", "--tls-dir", "{there}"], "there is no going without"),
        (["--tls-dir", "{there}"], "--tls-dir needs --cluster"),
    ],
)
def test_a_node_told_to_use_tls_does_not_start_without(tmp_path: Path, flags: list[str], says: str) -> None:
    command = [sys.executable, "-m", "tidemark_node", "--node", "a", "--data", str(tmp_path / "a"),
               *(flag.format(there=tmp_path / "nothing") for flag in flags)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert 2 == ended.returncode
    assert says in ended.stderr
