"""A plane: everything of one kind that a node holds and serves, behind one door.

Stays out: which planes there are (`planes`), and how events reach one (`node`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol

from .effects import Effect, Received
from .entry import Entry
from .ids import Member, ShardId


class NodeFacts(NamedTuple):
    """The facts of its node that a plane is made with.

    `boot` names the run of the core: new whenever a node starts, or loads what is on its disk again.
    """

    me: Member
    boot: str = ""


class Stored(Protocol):
    """The part of the disk that a plane reads when its node starts."""

    def units(self) -> list[int]:
        """Return the ids of the units of this plane that have a stored state."""

    def unit(self, unit: int) -> tuple[bytes, bytes | None]:
        """Return the stored state of a unit, and its checkpoint or None."""

    def headers(self, shard: ShardId, first: int) -> Iterable[Entry]:
        """Return the verified headers of a shard from base offset `first` on; the log plane alone has some."""

    def rows(self, family: str, first: bytes = b"", behind: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of a family with keys in [first, behind), in byte order; None means the family's end."""


class Voice(Enum):
    """The kind of certificate that a message needs (T10)."""

    OPERATOR = "operator"
    NODE = "node"       # of which unit it may speak, its plane judges


STRANGER_REFUSED = "stranger_refused"
"""The trace of a message, or of a pull, that its sender has no standing for (T10)."""


class Plane(Protocol):
    """The units of one plane on one node.  An effect names its unit by `Address(number of the plane, id of the unit)`.

    `unit` is the word for one of them ("shard"), for people.  `events` are the classes of events that belong to this
    plane alone, requests of clients above all.  `voices` names every class of message that the plane takes: the node
    refuses all others, and a message with another voice (T10).
    """

    @property
    def unit(self) -> str: ...

    @property
    def events(self) -> tuple[type, ...]: ...

    @property
    def voices(self) -> Mapping[type, Voice]: ...

    def name(self, unit: int) -> str:
        """Return what people call the unit of this id."""

    def recover(self, stored: Stored) -> None:
        """Load what the disk holds; called once, before the first step.

        Raises RemoteViolation on damaged state.
        """

    def step(self, now_ms: int, event: Any) -> list[Effect]:
        """Consume one event; return effects in the order the shell must run them.

        The event is one of `events`, one at an address of this plane (`Received`, `TimerFired`, `RowsRead`,
        `RowsScanned`, `RowsDurable`), or news of the node itself: `PeerUp`, `PeerDown`, `DiskSpace`, `ClockStepped`.
        """

    def finish_turn(self, now_ms: int) -> list[Effect]:
        """Return what is to be done once every event of a turn was consumed."""

    def not_meant(self, event: Received) -> list[Effect]:
        """Answer a message to another life of this disk, or not; it must change nothing (K14)."""

    def units(self) -> Iterable[int]:
        """Return the ids of the units that this node holds."""

    def status(self, unit: int) -> dict[str, Any]:
        """Return the state of one unit that this node holds, for people, ready for JSON."""
