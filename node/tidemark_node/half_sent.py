"""Half-sent messages: how much callers' connections brought that no handler was given, and a bound for it.

The rule, with reason and tests in `docs/protocols/trust.md`:

T12b  A message under way counts

gRPC takes in a whole message before a handler sees a byte of it, and tells nothing of a part.  The sockets tell what
each connection received.  Of that a stream holds at most what came since its last message, and what gRPC takes in
without being asked.  Bytes that came since the look before are left out: a message that is whole may only wait for
the loop.
Stays out: requests that are one message (`budgets` bounds how many are under way).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidemark_core.base.refusals import Refused
from tidemark_wire.budgets import Budget
from tidemark_wire.channel import MESSAGE_BYTES_MAX, UNREAD_BYTES

LOOK_SECONDS = 0.1
LOOK_PART = 50
"""A look takes at most such a part of the loop's time: with thousands of connections looks are rarer."""
CLOSE_LOOKS = 10
"""A caller that takes no refusal for so many looks loses its connection."""


class Receivers(Protocol):
    """The sockets of callers, of which `sockets` has the real ones."""

    def received(self, peers: Sequence[str]) -> dict[str, int]:
        """Return how many bytes each connection received."""

    def close(self, peer: str) -> None:
        """End a connection."""


class Stream:
    """One stream of a caller, on which it may send messages; `refused` says why the node ends it."""

    __slots__ = ("_task", "connection", "looks", "refused", "since")

    def __init__(self, connection: _Connection, task: asyncio.Task[Any] | None) -> None:
        self.connection = connection
        self.since = connection.received     # at least so much had its connection received when it gave a message
        self.refused: Refused | None = None
        self.looks = 0                       # since then
        self._task = task

    def end(self, refused: Refused) -> None:
        self.refused = refused
        if self._task is not None:
            self._task.cancel()


class _Connection:
    """One connection of a caller that has streams."""

    __slots__ = ("before", "held", "peer", "received", "streams", "who")

    def __init__(self, who: str, peer: str) -> None:
        self.who = who
        self.peer = peer
        self.received = 0      # at the last look
        self.before = 0        # at the look before
        self.held = 0
        """At least what its streams hold: headers and requests count too, until its streams cannot hold so much."""
        self.streams: list[Stream] = []

    @property
    def waiting(self) -> int:
        """How much of what its streams hold came before the last look but one."""
        return min(self.held, self._most(self.before))

    def look(self, received: int) -> None:
        """Count what came since the last look."""
        self.held += received - self.received
        self.before, self.received = self.received, received
        self.held = max(0, min(self.held, self._most(received) + UNREAD_BYTES * len(self.streams)))

    def _most(self, received: int) -> int:
        """Return how much of messages its streams can have, of `received` bytes and beside what gRPC takes unasked."""
        return sum(
            min(MESSAGE_BYTES_MAX, max(0, received - stream.since))
            for stream in self.streams if stream.refused is None)


class HalfSent:
    """All streams on which callers send messages."""

    def __init__(self, budget: Budget, refusal: Callable[[Budget, str], Refused], sockets: Receivers) -> None:
        self.budget = budget
        self._refusal = refusal
        self._sockets = sockets
        self._connections: dict[str, _Connection] = {}
        self._streams: dict[Any, Stream] = {}
        self._looks: asyncio.TimerHandle | None = None

    def enter(self, who: str, context: Any) -> Stream:
        """Count a stream that begins, and what it may have brought before its handler runs."""
        peer = context.peer()
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection(who, peer)
        connection.held += UNREAD_BYTES
        stream = self._streams[context] = Stream(connection, asyncio.current_task())
        connection.streams.append(stream)
        if self._looks is None:
            self._look_in(LOOK_SECONDS)
        return stream

    def leave(self, context: Any) -> None:
        """Forget a stream that ended: gRPC drops what it held."""
        stream = self._streams.pop(context)
        connection = stream.connection
        connection.streams.remove(stream)
        if not connection.streams:
            del self._connections[connection.peer]

    def given(self, context: Any, size: int) -> None:
        """Note that a stream's handler was given a message of `size` bytes."""
        if (stream := self._streams.get(context)) is not None:
            connection = stream.connection
            connection.held -= size
            stream.since = connection.received

    def look(self) -> None:
        """Count what each caller holds, and end streams of those that are above their share."""
        received = self._sockets.received(list(self._connections))
        waiting = Counter(dict.fromkeys(self.budget, 0))
        for peer, connection in self._connections.items():
            connection.look(received.get(peer, connection.received))
            waiting[connection.who] += connection.waiting
            for stream in connection.streams:
                stream.looks += stream.refused is not None
                if stream.looks == CLOSE_LOOKS:
                    self._sockets.close(peer)
        for who, count in waiting.items():
            self.budget.measured(who, count)
        for who, _ in waiting.most_common():
            self._end(who)

    def _end(self, who: str) -> None:
        """End streams of a caller until the rest is its share: the most silent one of its fullest connection first."""
        while self.budget.held(who) and self.budget.left(who) < 0:   # others above their shares leave nothing to anyone
            fullest = max(
                (each for each in self._connections.values() if each.who == who), key=lambda each: each.waiting)
            silent = min((each for each in fullest.streams if each.refused is None), key=lambda each: each.since)
            before = fullest.waiting
            self.budget.refused += 1
            silent.end(self._refusal(self.budget, who))
            self.budget.measured(who, self.budget.held(who) - before + fullest.waiting)

    def _look_in(self, seconds: float) -> None:
        self._looks = asyncio.get_running_loop().call_later(seconds, self._look_on)

    def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        self._looks = None
        try:
            self.look()
        finally:   # whatever a look meets, the next one comes
            if self._connections:
                self._look_in(max(LOOK_SECONDS, LOOK_PART * (loop.time() - begun)))
