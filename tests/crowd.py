"""A crowd of connections that say nothing, for tests of what a server keeps for others.

Stays out: what the connections are held against (the tests).
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def crowd(address: str, count: int) -> Iterator[None]:
    """Hold idle connections; the kernel queues those that the server does not accept, and refuses none."""
    host, _, port = address.rpartition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))
        yield
