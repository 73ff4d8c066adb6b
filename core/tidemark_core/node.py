"""The core of one node: routes each event to the plane it belongs to and closes turns.

The shell calls `step` once per turn with everything that arrived; effects come back in the order to run them.
Stays out: which planes there are (`planes`), and all that a plane decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from .base.effects import ClockStepped, DiskSpace, Effect, PeerDown, PeerUp, Received, Space, Trace
from .base.ids import LOG_PLANE, Address, Member
from .base.plane import STRANGER_REFUSED, NodeFacts, Plane, Stored, Voice
from .log_plane import LogPlane, recovery_start
from .planes import PlaneTable, planes

__all__ = ["NODE", "NodeCore", "recovery_start"]

NODE = Address(LOG_PLANE, 0)
"""The address of traces about the node itself.  No shard has it: groups are numbered from 1."""

_NODE, _OPERATOR = Voice.NODE, Voice.OPERATOR   # every message passes them

NODE_EVENTS = frozenset((PeerUp, PeerDown, DiskSpace, ClockStepped))
DISK_TRACES = {Space.FREE: "disk_has_space", Space.FULL: "disk_full", Space.EXHAUSTED: "disk_exhausted"}
"""News of the node itself: every plane gets it."""


class NodeCore:
    """The decisions of one node, for all its planes; without a table those of this release."""

    def __init__(self, facts: NodeFacts, table: PlaneTable | None = None) -> None:
        self.me, self.boot = facts
        rows = planes() if table is None else table
        self.planes: dict[int, Plane] = {number: plane(facts) for number, plane in rows.items()}
        self.log = cast(LogPlane, self.planes[LOG_PLANE])
        self._plane_of: dict[type, Plane] = {kind: plane for plane in self.planes.values() for kind in plane.events}
        events = sum(len(plane.events) for plane in self.planes.values())
        assert events == len(self._plane_of), "an event belongs to two planes"

    def recover(self, stored: Callable[[int], Stored]) -> None:
        """Let every plane load what the disk holds for it; call before the first step.

        `stored` takes the number of a plane.  Raises RemoteViolation on damaged state.
        """
        for number, plane in self.planes.items():
            plane.recover(stored(number))

    def step(self, now_ms: int, events: Sequence[Any]) -> list[Effect]:
        """Consume one turn's events, in order."""
        effects: list[Effect] = []
        for event in events:
            effects += self._on_event(now_ms, event)
        for plane in self.planes.values():
            effects += plane.finish_turn(now_ms)
        return effects

    def _on_event(self, now_ms: int, event: Any) -> list[Effect]:
        kind = event.__class__      # every event passes here
        if kind is not Received:
            plane = self._plane_of.get(kind)
            if plane is not None:
                return plane.step(now_ms, event)
            if kind in NODE_EVENTS:
                return self._on_node(now_ms, event)
        address = event.address
        plane = self.planes.get(address[0])
        if plane is None:
            return [Trace(NODE, "violation", f"this node has no plane {address.plane}, unit {address.id}")]
        if kind is Received:
            voice = _NODE if event.sender.__class__ is Member else _OPERATOR
            if plane.voices.get(event.message.__class__) is not voice:
                return [_refused(event)]
            if event.to is not None and event.to != self.me:
                return plane.not_meant(event)
        return plane.step(now_ms, event)

    def _on_node(self, now_ms: int, event: PeerUp | PeerDown | DiskSpace | ClockStepped) -> list[Effect]:
        """Hand news of the node itself to every plane."""
        effects: list[Effect] = []
        if isinstance(event, DiskSpace):
            effects.append(Trace(NODE, DISK_TRACES[event.space]))
        for plane in self.planes.values():
            effects += plane.step(now_ms, event)
        return effects

    def name_of(self, address: Address) -> dict[str, str]:
        """Return what people call a unit: the word of its plane and its name there."""
        plane = self.planes.get(address.plane)
        if plane is None:   # of a peer's message
            return {"unit": f"plane {address.plane} unit {address.id}"}
        return {plane.unit: plane.name(address.id)}


def _refused(event: Received) -> Trace:
    """Rule T10: this kind of message is not taken from this kind of sender, or not taken at all."""
    speaker = "node" if isinstance(event.sender, Member) else "operator"
    what = f"T10: {type(event.message).__name__} of the {speaker} {event.sender}"
    return Trace(NODE, STRANGER_REFUSED, f"{what} about unit {event.address.id}: a {speaker} has no such word here")
