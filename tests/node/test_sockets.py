"""The sockets of callers, found by the names that gRPC gives to callers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from tidemark_node.sockets import Sockets

from tests.waiting import wait_until


class Connection(NamedTuple):
    caller: socket.socket
    server: socket.socket
    peer: str    # as gRPC names the caller


@pytest.fixture(params=["ipv4", "ipv6", "mapped"])
def connection(request: pytest.FixtureRequest) -> Iterator[Connection]:
    family = socket.AF_INET if request.param == "ipv4" else socket.AF_INET6
    to = socket.AF_INET6 if request.param == "ipv6" else socket.AF_INET
    with socket.create_server(
        ("127.0.0.1" if family is socket.AF_INET else "::", 0), family=family,
        dualstack_ipv6=request.param == "mapped",
    ) as listening, socket.socket(to) as caller:
        caller.connect(("::1" if to is socket.AF_INET6 else "127.0.0.1", listening.getsockname()[1]))
        server, _ = listening.accept()
        with server:
            port = caller.getsockname()[1]
            peer = f"ipv6:%5B::1%5D:{port}" if to is socket.AF_INET6 else f"ipv4:127.0.0.1:{port}"
            yield Connection(caller, server, peer)


def test_t12b_a_caller_s_socket_tells_what_it_received(connection: Connection) -> None:
    sockets = Sockets()
    for size, total in ((1000, 1000), (234, 1234)):
        connection.caller.sendall(bytes(size))
        came = wait_until(lambda: (found := sockets.received([connection.peer])) and any(found.values()) and found)
        assert came.keys() == {connection.peer}
        wait_until(lambda total=total: sockets.received([connection.peer]) == {connection.peer: total})


def test_t12b_a_descriptor_that_another_connection_has_tells_nothing_of_the_old_one(connection: Connection) -> None:
    sockets = Sockets()
    assert sockets.received([connection.peer]) == {connection.peer: 0}
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as another, listening.accept()[0] as accepted,
    ):
        os.dup2(another.fileno(), connection.server.fileno())
        assert sockets.received([connection.peer]) == {}
        sockets.close(connection.peer)
        accepted.sendall(b"x")
        assert another.recv(1) == b"x"


@pytest.mark.parametrize("peer", ["unix:/tmp/x", "ipv4:1.2.3.4:5", "", "ipv4:1.2.3.4"])
def test_t12b_a_caller_without_a_known_connection_is_left_out(peer: str) -> None:
    assert Sockets().received([peer]) == {}


def test_t12b_a_connection_is_closed_and_its_descriptor_is_its_owner_s(connection: Connection) -> None:
    sockets = Sockets()
    assert sockets.received([connection.peer])
    sockets.close(connection.peer)
    connection.caller.settimeout(10)
    assert connection.caller.recv(1) == b""
    assert connection.server.fileno() >= 0 and connection.server.recv(1) == b""
