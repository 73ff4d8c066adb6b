"""A small TCP fault proxy between processes: cut, one-way, delay, break off, by who talks to whom.

Each node gets a port in front of its own and advertises that one.  Who opened a connection is found before a byte of
it is carried; whoever is no process of the cluster is called "client".  What is held back is not lost: it flows once
the fault is lifted, as retransmitted packets would.
Stays out: starting processes; finding a socket's process (sockets); everything above TCP.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tests.waiting import PATIENCE_S

from .sockets import End, holder

PIECE_BYTES = 64 << 10
PIECES_MAX = 64
CLIENT = "client"
LOOKS = 50
LOOK_S = 0.02


class Processes(Protocol):
    """Whose connections are told apart."""

    def pids(self) -> dict[str, int]:
        """Return where to look first."""

    def name_of(self, pid: int) -> str | None:
        """Return the name of a process, as it runs now; None for one that is not of the cluster."""


class Network:
    """All proxies of a cluster.  Runs on a thread and a loop of its own, so that it outlives the loops of tests."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._held: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], float] = {}
        self._lifted = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._pipes: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._thread.start()

    # --- what tests call ------------------------------------------------------------------------------------

    def front(self, name: str, address: str | Callable[[], str], at: str = "127.0.0.1:0") -> str:
        """Open a port in front of a node and return its address; port 0 of `at` picks one.

        A callable `address` is asked at each connection: a node may have another one after a restart.
        """
        return self._call(self._listen(name, address if callable(address) else lambda: address, at))

    def cut(self, one: str, *others: str) -> None:
        """Let nothing through between `one` and the others, in either direction."""
        for other in others:
            self._call(self._hold((one, other), (other, one)))

    def cut_one_way(self, source: str, *targets: str) -> None:
        """Let nothing through from `source` to the targets; what they say still arrives."""
        for target in targets:
            self._call(self._hold((source, target)))

    def delay(self, one: str, other: str, seconds: float) -> None:
        """Let everything between two take `seconds` longer, in each direction."""
        self._call(self._slow(one, other, seconds))

    def break_off(self, one: str, other: str) -> None:
        """End the connections there are between two; new ones may be made."""
        self._call(self._break(one, other))

    def heal(self) -> None:
        """Lift every fault."""
        self._call(self._lift())

    def close(self) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    # --- rules ----------------------------------------------------------------------------------------------

    async def _hold(self, *directions: tuple[str, str]) -> None:
        self._held.update(directions)

    async def _slow(self, one: str, other: str, seconds: float) -> None:
        self._delays[one, other] = self._delays[other, one] = seconds

    async def _break(self, one: str, other: str) -> None:
        for pipe in [pipe for pipe, direction in self._pipes.items() if direction in ((one, other), (other, one))]:
            pipe.cancel()

    async def _lift(self) -> None:
        self._held.clear()
        self._delays.clear()
        lifted, self._lifted = self._lifted, asyncio.Event()
        lifted.set()

    async def _gate(self, direction: tuple[str, str]) -> None:
        while direction in self._held:
            await self._lifted.wait()

    # --- connections ----------------------------------------------------------------------------------------

    async def _listen(self, name: str, address: Callable[[], str], at: str) -> str:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _, port = address().rpartition(":")
            await self._serve(name, host, int(port), reader, writer)

        host, _, port = at.rpartition(":")
        server = await asyncio.start_server(accept, host, int(port))
        self._servers.append(server)
        return f"{host}:{server.sockets[0].getsockname()[1]}"

    async def _serve(
        self, name: str, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()  # nobody listens behind us: to the caller that is a refused connection
            return
        # Only now, for it costs something, and a dead node is dialed often.
        source = await self._who(reader, writer.get_extra_info("peername"), writer.get_extra_info("sockname"))
        if source is None:
            for side in (writer, back):
                side.transport.abort()  # nobody holds the other end any more
            return
        pipes = {
            asyncio.create_task(self._pipe((source, name), reader, back)): (source, name),
            asyncio.create_task(self._pipe((name, source), there, writer)): (name, source),
        }
        self._pipes.update(pipes)
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
            await asyncio.gather(*pipes, return_exceptions=True)
            for pipe in pipes:
                del self._pipes[pipe]
            for side in (writer, back):
                side.transport.abort()

    async def _who(self, reader: asyncio.StreamReader, peer: End | None, here: End) -> str | None:
        """Return who has opened a connection; None when it is found nowhere: it was closed meanwhile.

        Operators open connections to late nodes and close them: to look for their owners makes the nodes later still.
        """
        for _ in range(LOOKS if peer else 0):
            await asyncio.sleep(0)
            if reader.at_eof():
                return None
            pid = holder(peer, here, (os.getpid(), *self._processes.pids().values()))
            if pid is not None:
                return self._processes.name_of(pid) or CLIENT
            await asyncio.sleep(LOOK_S)
        return None

    async def _pipe(
        self, direction: tuple[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carry bytes one way; late where a delay is set, not at all while they are held."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(PIECES_MAX)

        async def deliver() -> None:
            while True:
                due, piece = await under_way.get()
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                await self._gate(direction)
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while True:
                try:
                    piece = await reader.read(PIECE_BYTES)
                except OSError:
                    piece = b""
                await under_way.put((self._loop.time() + self._delays.get(direction, 0.0), piece))
                if not piece:
                    break
            await delivering
        except OSError:
            return  # the other side is gone, so is this connection
        finally:
            delivering.cancel()

    async def _close(self) -> None:
        await self._lift()
        for server in self._servers:
            server.close()
        for pipe in list(self._pipes):
            pipe.cancel()
        await asyncio.gather(*self._pipes, return_exceptions=True)
