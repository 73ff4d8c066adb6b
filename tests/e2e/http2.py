"""A caller that speaks HTTP/2 by hand: calls of which only the headers come.

Stays out: messages and flow control; gRPC's own callers have them.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark_wire import channel
from tidemark_wire.tls import TlsSettings

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING = 0, 1, 3, 4, 6
ACKNOWLEDGES = END_STREAM = 1
END_HEADERS = 4
_HEAD = struct.Struct(">BHBBI")   # length in 3 bytes, kind, flags, stream


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return _HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Return one header, neither indexed nor compressed (RFC 7541, 6.2.2)."""
    assert len(name) < 127 > len(value)
    return b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class Connection:
    """One connection; `ended` are the streams that the server ended."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        self._socket = connection
        self._input = b""
        self._opened = 0
        self.ended: set[int] = set()
        connection.sendall(PREFACE + _frame(SETTINGS, 0, 0))
        connection.settimeout(0.05)

    def call(self, method: str) -> None:
        """Send the headers of a call of a method, and nothing of its request."""
        headers = (
            (":method", "POST"), (":scheme", "https"), (":path", method), (":authority", "node"), ("te", "trailers"),
            ("content-type", "application/grpc"), *channel.hello_metadata())
        block = b"".join(_literal(name, str(value)) for name, value in headers)
        self._socket.sendall(_frame(HEADERS, END_HEADERS, 1 + 2 * self._opened, block))
        self._opened += 1

    def listen(self) -> None:
        """Take what the server sent; answer its pings and settings."""
        with contextlib.suppress(TimeoutError):
            while received := self._socket.recv(1 << 16):
                self._input += received
        while len(self._input) >= _HEAD.size:
            high, low, kind, flags, stream = _HEAD.unpack_from(self._input)
            end = _HEAD.size + (high << 16 | low)
            if len(self._input) < end:
                return
            payload, self._input = self._input[_HEAD.size:end], self._input[end:]
            if kind in (SETTINGS, PING) and not flags & ACKNOWLEDGES:
                self._socket.sendall(_frame(kind, ACKNOWLEDGES, 0, payload if kind == PING else b""))
            elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
                self.ended.add(stream)


@contextmanager
def connected(address: str, tls: TlsSettings, server_name: str) -> Iterator[Connection]:
    """Connect with a key; the server is whom `server_name` says."""
    context = ssl.create_default_context(cafile=str(tls.ca))
    context.load_cert_chain(str(tls.cert), str(tls.key))
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as plain, context.wrap_socket(
        plain, server_hostname=server_name
    ) as secured:
        yield Connection(secured)
