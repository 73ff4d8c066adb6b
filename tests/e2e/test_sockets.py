"""The fault proxy must know whom a connection comes from, or a fault hits somebody else."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.waiting import PATIENCE_S

from .sockets import holder

CHILD = """
import os, socket, sys
here, there, restless = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "restless"
lower = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]  # looked at first
family = socket.AF_INET6 if sys.argv[4] == "mapped" else socket.AF_INET
mapped = "::ffff:" if family == socket.AF_INET6 else ""
connection = socket.socket(family)
connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
connection.bind((mapped + "127.0.0.1", here))
connection.connect((mapped + "127.0.0.1", there))
print(connection.getsockname()[1], flush=True)
while restless:
    for file in lower:
        os.close(file)
    lower = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
sys.stdin.read()
"""


class Child:
    """A process that holds a connection from a local port to a listener of ours."""

    def __init__(self, listener: socket.socket, port: int = 0, how: str = "still", family: str = "plain") -> None:
        there = listener.getsockname()[1]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(port), str(there), how, family], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.local, self.remote = ("127.0.0.1", self.port), ("127.0.0.1", there)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def listeners() -> Iterator[list[socket.socket]]:
    opened = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    yield opened
    for listener in opened:
        listener.close()


def test_a_local_port_is_shared(listeners: list[socket.socket]):
    """The system may give one port to connections that go to different places."""
    one = Child(listeners[0])
    other = Child(listeners[1], one.port, family="mapped")
    try:
        assert one.port == other.port
        assert holder(one.local, one.remote) == one.process.pid
        assert holder(other.local, other.remote) == other.process.pid
        assert holder(one.remote, one.local) is None, "nobody accepted it"
    finally:
        one.end()
        other.end()
    assert holder(one.local, one.remote) is None, "what is left of a connection has no owner"


def test_a_process_whose_files_come_and_go_is_found(listeners: list[socket.socket]):
    restless = Child(listeners[0], how="restless")
    try:
        for _ in range(50):
            assert holder(restless.local, restless.remote, (os.getpid(), restless.process.pid)) == restless.process.pid
    finally:
        restless.end()
