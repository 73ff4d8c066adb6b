"""The sockets of a server's callers, by gRPC's names of the callers: how much each received, and its end.

gRPC shows no socket, and Linux lists those of the process.  This module owns none of them: gRPC may close one at any
time, so each use compares the address of the other side first.
Stays out: how much a caller may send (`half_sent`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import unquote

_INFO_BYTES = 136
_RECEIVED = struct.Struct("=128xQ")
"""The field `tcpi_bytes_received` of Linux's `struct tcp_info`, since 4.1."""

Place = tuple[str, int]
"""An address in its shortest form, and a port."""


class _Found(NamedTuple):
    """A TCP connection of this process: its descriptor, and the address of the other side as the system names it."""

    descriptor: int
    family: int
    address: Any

    def borrow(self) -> socket.socket:
        """Return the socket, which the borrower detaches.  Raises OSError where another one has the descriptor."""
        borrowed = socket.socket(self.family, socket.SOCK_STREAM, fileno=self.descriptor)
        try:
            if borrowed.getpeername() == self.address:
                return borrowed
        except OSError:
            borrowed.detach()
            raise
        borrowed.detach()
        raise OSError(f"another connection has descriptor {self.descriptor}")


class Sockets:
    """The TCP connections of callers."""

    def __init__(self) -> None:
        self._found: dict[str, _Found] = {}

    def received(self, peers: Sequence[str]) -> dict[str, int]:
        """Return how many bytes each of these callers' connections received; one that is gone is left out."""
        totals = self._totals(peers)
        if len(totals) < len(peers):
            places = dict(_connected())
            self._found = {peer: places[place] for peer in peers if (place := _place_of(peer)) in places}
            totals = self._totals(peers)
        return totals

    def close(self, peer: str) -> None:
        """End a caller's connection at once, and with it every call on it."""
        if (found := self._found.get(peer)) is not None:
            with contextlib.suppress(OSError):
                borrowed = found.borrow()
                try:
                    borrowed.shutdown(socket.SHUT_RDWR)
                finally:
                    borrowed.detach()

    def _totals(self, peers: Sequence[str]) -> dict[str, int]:
        totals: dict[str, int] = {}
        for peer in peers:
            if (found := self._found.get(peer)) is None:
                continue
            with contextlib.suppress(OSError, struct.error):
                borrowed = found.borrow()
                try:
                    info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                    totals[peer] = _RECEIVED.unpack(info)[0]
                finally:
                    borrowed.detach()
        return totals


def _connected() -> Iterator[tuple[Place, _Found]]:
    """Yield each TCP connection by the other side's place."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            borrowed = socket.socket(fileno=int(name))
            try:
                if borrowed.family in (socket.AF_INET, socket.AF_INET6):
                    address = borrowed.getpeername()
                    yield _place(address), _Found(int(name), borrowed.family, address)
            finally:
                borrowed.detach()


def _place_of(peer: str) -> Place:
    """Return the place in gRPC's name of a caller, as in `ipv6:%5B::1%5D:50`; a name of another kind has none."""
    scheme, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if scheme not in ("ipv4", "ipv6") or not port.isdigit():
        return "", 0
    return _place((host.strip("[]"), int(port)))


def _place(address: tuple[Any, ...]) -> Place:
    host = ip_address(address[0].partition("%")[0])
    return str(getattr(host, "ipv4_mapped", None) or host), address[1]
