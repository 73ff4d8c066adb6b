"""A caller that speaks HTTP/2 by hand and leaves its messages half sent, which no gRPC library does.

Stays out: reading what the server says beyond windows and the end of a stream.
"""

from __future__ import annotations

import asyncio
import struct

from tidemark_wire import channel

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
FRAME_BYTES, WINDOW_BYTES = 16_384, 65_535


class HalfSender:
    """One connection with streams of one method, numbered 1, 3, 5 and so on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._window = self._initial = WINDOW_BYTES
        self._windows: dict[int, int] = {}
        self._news = asyncio.Event()
        self.ended: set[int] = set()
        self.closed = False
        writer.write(PREFACE + _frame(SETTINGS, 0, 0))
        self._task = asyncio.ensure_future(self._listen())

    @classmethod
    async def to(cls, address: str) -> HalfSender:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def open(self, path: str, *metadata: tuple[str, str]) -> int:
        """Begin a call and return the number of its stream."""
        number = 1 + 2 * len(self._windows)
        block = b"".join(_literal(*pair) for pair in (
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers"),
            ("content-type", "application/grpc"), *channel.hello_metadata(), *metadata))
        self._writer.write(_frame(HEADERS, 4, number, block))
        self._windows[number] = self._initial
        return number

    async def send(self, number: int, announced: int, sent: int) -> int:
        """Send `sent` bytes of a message of `announced`; return how many the server took before it ended the stream."""
        rest = memoryview(b"\0" + struct.pack(">I", announced) + bytes(sent))
        while rest and not self.closed and number not in self.ended:
            room = min(FRAME_BYTES, self._window, self._windows[number], len(rest))
            if room <= 0:
                self._news.clear()
                await self._news.wait()
                continue
            self._writer.write(_frame(DATA, 0, number, bytes(rest[:room])))
            await self._writer.drain()
            self._window -= room
            self._windows[number] -= room
            rest = rest[room:]
        return sent - len(rest)

    async def close(self) -> None:
        self._writer.close()
        await self._task

    async def _listen(self) -> None:
        try:
            while True:
                head = await self._reader.readexactly(9)
                body = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
                self._on_frame(head[3], head[4], int.from_bytes(head[5:], "big"), body)
                self._news.set()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed = True
            self._news.set()

    def _on_frame(self, kind: int, flags: int, number: int, body: bytes) -> None:
        if kind == SETTINGS and not flags & 1:
            for at in range(0, len(body), 6):
                key, value = struct.unpack_from(">HI", body, at)
                if key == 4:
                    self._windows = {each: room + value - self._initial for each, room in self._windows.items()}
                    self._initial = value
            self._writer.write(_frame(SETTINGS, 1, 0))
        elif kind == PING and not flags & 1:
            self._writer.write(_frame(PING, 1, 0, body))
        elif kind == WINDOW_UPDATE and number:
            self._windows[number] += int.from_bytes(body, "big")
        elif kind == WINDOW_UPDATE:
            self._window += int.from_bytes(body, "big")
        elif kind == RST_STREAM or (kind == HEADERS and flags & 1):
            self.ended.add(number)


def _frame(kind: int, flags: int, number: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + number.to_bytes(4, "big") + body


def _literal(name: str, value: str) -> bytes:
    """Return a header without compression; name and value have fewer than 127 bytes."""
    return bytes((0, len(name))) + name.encode() + bytes((len(value),)) + value.encode()
