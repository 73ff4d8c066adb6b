"""A publisher for JetStream on a plain socket: pipelined PUBs with a reply subject, acknowledgements counted exactly.

Many PUBs go into one write and at most `in_flight` of them wait for their acknowledgement, which is about the most one
connection can get out of the server from Python.  A message counts when its acknowledgement has arrived.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from typing import Any

from tidemark.loop import run

CREATE_SECONDS = 30.0


class _Publisher(asyncio.Protocol):
    """One connection: requests while setting up, then the pipeline."""

    def __init__(self, write_messages: int, in_flight_max: int) -> None:
        self._write_messages = write_messages
        self._in_flight_max = in_flight_max
        self._partial = b""
        self._publishing = False
        self._block = b""
        self.in_flight = 0
        self.acknowledged = 0
        self.answers: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(b'CONNECT {"verbose":false,"pedantic":false,"headers":false}\r\nSUB _INBOX.bench 1\r\n')

    def connection_lost(self, _: Exception | None) -> None:
        self._fail("the server closed the connection")

    def data_received(self, data: bytes) -> None:
        lines = (self._partial + data).split(b"\r\n")
        self._partial = lines.pop()
        acknowledged = 0
        for line in lines:
            if line.startswith(b"{"):       # the body of a MSG; JSON holds no line break
                if not self._publishing:
                    self.answers.put_nowait(json.loads(line))
                elif b'"error"' in line:
                    self._fail(line.decode())
                else:
                    acknowledged += 1
            elif line == b"PING":
                self.transport.write(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                self._fail(line.decode())
        if acknowledged:
            self.acknowledged += acknowledged
            self.in_flight -= acknowledged
            self._fill()

    def _fail(self, reason: str) -> None:
        if not self.failed.done():
            self.failed.set_exception(ConnectionError(f"JetStream: {reason}"))

    async def request(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the JetStream API; an answer without one from the cluster comes as TimeoutError."""
        payload = json.dumps(body).encode()
        self.transport.write(b"PUB %s _INBOX.bench %d\r\n%s\r\n" % (subject.encode(), len(payload), payload))
        async with asyncio.timeout(5):
            return await self.answers.get()

    def publish(self, subject: str, record: bytes) -> None:
        """Start the pipeline."""
        self._publishing = True
        one = b"PUB %s _INBOX.bench %d\r\n%s\r\n" % (subject.encode(), len(record), record)
        self._block = one * self._write_messages
        self._fill()

    def _fill(self) -> None:
        while self._publishing and self.in_flight + self._write_messages <= self._in_flight_max:
            self.transport.write(self._block)
            self.in_flight += self._write_messages


async def _connect(port: int, write_messages: int, in_flight: int) -> _Publisher:
    loop = asyncio.get_running_loop()
    _, publisher = await loop.create_connection(lambda: _Publisher(write_messages, in_flight), "127.0.0.1", port)
    return publisher


async def _create(ports: dict[str, int], stream: dict[str, Any]) -> str:
    """Create the stream and return the name of the server that leads it."""
    until = time.monotonic() + CREATE_SECONDS
    name, trouble = stream["name"], "no answer"
    while time.monotonic() < until:
        publisher = await _connect(next(iter(ports.values())), 1, 1)
        try:
            made = await publisher.request(f"$JS.API.STREAM.CREATE.{name}", stream)
            if "error" not in made or made["error"].get("err_code") == 10058:  # exists already: created by a retry
                info = await publisher.request(f"$JS.API.STREAM.INFO.{name}", {})
                cluster = info.get("cluster", {})
                if cluster.get("leader") and all(replica.get("current") for replica in cluster.get("replicas", [{}])):
                    return str(cluster["leader"])
            trouble = json.dumps(made.get("error", "no leader yet"))
        except TimeoutError:
            trouble = "the API does not answer"
        finally:
            publisher.transport.abort()
            await asyncio.gather(publisher.failed, return_exceptions=True)
        await asyncio.sleep(0.3)
    raise ConnectionError(f"JetStream stream {name!r} was not created within {CREATE_SECONDS:g} s: {trouble}")


async def main(
    ports: dict[str, int], stream: dict[str, Any], record_bytes: int, write_messages: int, in_flight: int,
    warm_seconds: float, seconds: int,
) -> None:
    """Print records acknowledged per second: over `seconds`, and in each of them."""
    leader = await _create(ports, stream)
    publisher = await _connect(ports[leader], write_messages, in_flight)
    publisher.publish(stream["subjects"][0], os.urandom(record_bytes // 2).hex().encode())

    async def measure() -> tuple[float, list[float]]:
        await asyncio.sleep(warm_seconds)
        each, began, before = [], time.perf_counter(), publisher.acknowledged
        last_at, last_count = began, before
        for second in range(1, seconds + 1):
            await asyncio.sleep(began + second - time.perf_counter())
            now, count = time.perf_counter(), publisher.acknowledged
            each.append((count - last_count) / (now - last_at))
            last_at, last_count = now, count
        return (last_count - before) / (last_at - began), each

    measuring = asyncio.ensure_future(measure())
    await asyncio.wait((measuring, publisher.failed), return_when=asyncio.FIRST_COMPLETED)
    if not measuring.done():
        await publisher.failed
    rate, each = measuring.result()
    print(json.dumps({"leader": leader, "records_per_second": rate, "each_second": each}), flush=True)
    publisher.transport.abort()
    await asyncio.gather(publisher.failed, return_exceptions=True)


if __name__ == "__main__":
    run(main(**json.loads(sys.argv[1])))
