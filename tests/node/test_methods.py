"""The tables of methods: they cover the .proto services, parts contribute to them, and unsafe ones are refused."""

from __future__ import annotations

import importlib
import pkgutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import grpc
import grpc.aio
import pytest
import tidemark_node
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from node_harness import GROUP, shard_map
from test_node_access import Certificates, reason_of
from tidemark_core.base.refusals import Reason
from tidemark_node.main import Node
from tidemark_node.methods import InvalidMethod, Method, Shape, table_of
from tidemark_node.settings import Settings
from tidemark_wire import channel
from tidemark_wire.changes import CHANGES
from tidemark_wire.channel import hello_metadata, open_channel
from tidemark_wire.identity import Kind, Role
from tidemark_wire.v1 import common_pb2, documents_pb2, keyspaces_pb2, node_pb2

RAW = (channel.REPLICATION_LINK, channel.CONTROL_LINK, channel.APPEND, channel.READ, channel.DELIVER, CHANGES)


class Toy:
    """A part that no product file knows."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def echo(self, request: bytes, context: Any) -> bytes:
        return self._node.me.node.encode() + b" heard " + request

    async def records(self, request: node_pb2.LimboRequest, context: Any) -> None:
        for number in range(3):
            await context.write(b"%d of %s" % (number, request.group.encode()))

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method("Toy.Echo", Shape.UNARY, echo, kinds=frozenset({Kind.ADMIN})),
        Method("Toy.Records", Shape.SERVER_STREAM, records, node_pb2.LimboRequest, roles=(Role.READER,)),
    )


def tables() -> list[Method]:
    """Return the methods of every table in the package of the node."""
    found = []
    for module in pkgutil.iter_modules(tidemark_node.__path__):
        if module.name == "__main__":
            continue
        here = importlib.import_module(f"tidemark_node.{module.name}")
        for part in vars(here).values():
            if isinstance(part, type) and part.__module__ == here.__name__:
                found += vars(part).get("METHODS", ())
    return found


def services_of_a_node() -> list[Any]:
    files = (node_pb2, documents_pb2, keyspaces_pb2)
    return [each for file in files for each in file.DESCRIPTOR.services_by_name.values()]


def test_every_method_of_the_services_is_in_exactly_one_table() -> None:
    services = services_of_a_node()
    paths = [f"/{method.containing_service.full_name}/{method.name}" for each in services for method in each.methods]
    assert Counter([*paths, *RAW]) == Counter(f"/{method.service}/{method.short_name}" for method in tables())


def test_tables_have_the_messages_and_shapes_of_the_services() -> None:
    by_name = {method.name: method for method in tables()}
    for service in services_of_a_node():
        for wanted in service.methods:
            found = by_name[f"{service.name}.{wanted.name}"]
            assert (GetMessageClass(wanted.input_type), GetMessageClass(wanted.output_type)) == (
                found.request, found.response), found.name
            assert (Shape.SERVER_STREAM if wanted.server_streaming else Shape.UNARY) is found.shape
    for path in (channel.REPLICATION_LINK, channel.CONTROL_LINK, channel.APPEND, channel.DELIVER, CHANGES):
        found = by_name[path.removeprefix("/tidemark.v1.").replace("/", ".")]
        assert (None, None, Shape.BIDI) == (found.request, found.response, found.shape)
    assert (node_pb2.ReadRequest, None) == (by_name["Tidemark.Read"].request, by_name["Tidemark.Read"].response)


async def test_a_part_contributes_methods_without_an_edit_of_the_node(tmp_path: Path) -> None:
    settings = Settings(node="a", data=tmp_path, metrics_listen="off", disk_reserve_bytes=1 << 20)
    node = Node(settings, contributes=lambda node: [Toy(node)])
    await node.start()
    try:
        async with open_channel(node.address) as opened:
            echo = opened.unary_unary("/tidemark.v1.Toy/Echo")
            assert b"a heard it" == await echo(b"it", metadata=hello_metadata(), timeout=20)
            records = opened.unary_stream(
                "/tidemark.v1.Toy/Records", request_serializer=node_pb2.LimboRequest.SerializeToString)
            request = node_pb2.LimboRequest(group="g")
            assert [b"0 of g", b"1 of g", b"2 of g"] == [data async for data in records(request, timeout=20)]
            with pytest.raises(grpc.aio.AioRpcError, match="wire version 999 was offered") as caught:
                await echo(b"it", metadata=((channel.WIRE_VERSION_KEY, "999"),), timeout=20)
            assert grpc.StatusCode.FAILED_PRECONDITION is caught.value.code()
            health = health_pb2_grpc.HealthStub(opened)
            for service in ("", "tidemark.v1.Tidemark", "tidemark.v1.Control", "tidemark.v1.Replication",
                            "tidemark.v1.Toy"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
                assert health_pb2.HealthCheckResponse.SERVING == answer.status, service
    finally:
        await node.stop()


async def test_the_access_rule_of_a_contributed_method_holds(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "tls")
    settings = Settings(
        node="a", data=tmp_path / "data", metrics_listen="off", disk_reserve_bytes=1 << 20, cluster="prod",
        tls_dir=Path(certificates.settings(Kind.NODE, "a").cert).parent,
    )
    node = Node(settings, contributes=lambda node: [Toy(node)])
    await node.start()
    access = common_pb2.GroupAccess(readers=["rita"], writers=["will"])
    node.routing.push(shard_map([(node.me, node.address)], "a", 1, access=access))
    refused: dict[str, tuple[Reason | None, Reason | None]] = {}
    try:
        for kind, name in ((Kind.ADMIN, "root"), (Kind.CLIENT, "rita"), (Kind.CLIENT, "will"), (Kind.NODE, "b")):
            hello = hello_metadata(node="b") if kind is Kind.NODE else hello_metadata()
            async with open_channel(node.address, certificates.of(kind, name)) as opened:
                echo = opened.unary_unary("/tidemark.v1.Toy/Echo")(b"it", metadata=hello, timeout=20)
                records = opened.unary_stream(
                    "/tidemark.v1.Toy/Records", request_serializer=node_pb2.LimboRequest.SerializeToString
                )(node_pb2.LimboRequest(group=GROUP), metadata=hello, timeout=20)
                refused[name] = (await reason_of(echo), await reason_of(records.read()))
    finally:
        await node.stop()
    denied = Reason.PERMISSION_DENIED
    assert {
        "root": (None, None), "rita": (denied, None), "will": (denied, denied), "b": (denied, denied)} == refused


async def test_a_method_that_two_parts_contribute_is_refused_at_start(tmp_path: Path) -> None:
    class Second(Toy):
        METHODS = (replace(Toy.METHODS[0], name="Tidemark.Limbo"),)

    settings = Settings(node="a", data=tmp_path, metrics_listen="off", disk_reserve_bytes=1 << 20)
    node = Node(settings, contributes=lambda node: [Second(node)])
    try:
        with pytest.raises(InvalidMethod, match=r"^Tidemark.Limbo is contributed twice: by Outcomes and by Second$"):
            await node.start()
    finally:
        await node.stop()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": frozenset()}, "Toy.Echo has no access rule, neither kinds nor roles: give one"),
        ({"roles": (Role.READER,)}, "Toy.Echo has two access rules, kinds and roles: give one"),
        ({"kinds": frozenset(), "roles": (Role.READER,)},
         "Toy.Echo asks for roles, and its request has no field 'group' or 'keyspace'"),
        ({"kinds": frozenset(), "roles": (Role.READER,), "request": node_pb2.SizesRequest},
         "Toy.Echo asks for roles, and its request has no field 'group' or 'keyspace'"),
        ({"name": "Echo"}, "'Echo' is not of the form Service.Method"),
    ],
)
def test_a_method_that_is_unsafe_is_refused(changes: dict[str, Any], message: str) -> None:
    class Unsafe:
        METHODS: ClassVar[tuple[Method, ...]] = (replace(Toy.METHODS[0], **changes),)

    with pytest.raises(InvalidMethod) as caught:
        table_of([Unsafe()])
    assert message == str(caught.value)
