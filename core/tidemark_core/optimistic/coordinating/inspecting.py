"""Inspecting: what every node has of a key, for people, and why a read shows what it shows (D55, D56, D58, D59).

An inspection asks owners and all other nodes, changes nothing and promises nothing.
Stays out: what a node answers (`inspection`), sending.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...base.ids import Member
from ..cells import NEVER, Place, Sort
from ..messages import Inspect, Inspected, Part, Seen
from ..ring import Range
from .outcomes import Outcome, To

NODES_MAX = 64
"""So many nodes are asked, owners first."""
PATIENCE = 20
"""An inspection ends without the nodes that were silent for so many ticks."""


class InspectStep(NamedTuple):
    """Ask every node, or owners and pending owners alone; the result is `Inspection`."""

    places: tuple[Place, ...]
    owners_alone: bool = False


class Inspection(NamedTuple):
    """The answers of nodes, and those that gave none, under the record that the coordinator knows."""

    outcome: Outcome    # OK: every owner and pending owner has answered
    record: Range
    answers: Mapping[Member, Inspected]
    silent: tuple[Member, ...]


def inspect(places: tuple[Place, ...]) -> Generator[InspectStep, Any, Inspection]:
    """Ask every node what it has at these places."""
    found: Inspection = yield InspectStep(places)
    return found


class Inspecting:
    """One inspection at its coordinator."""

    weak = False

    def __init__(
        self, operation: int, index: int, record: Range, places: tuple[Place, ...], nodes: Sequence[Member],
    ) -> None:
        self._message = Inspect(index, operation, places)
        self._record = record
        self._asked = tuple(dict.fromkeys((*record.members, *nodes)))[:NODES_MAX]
        self._answers: dict[Member, Inspected] = {}
        self._ticks = 0

    def begin(self) -> list[To]:
        """Ask all of them."""
        return [To(member, self._message) for member in self._silent]

    def resend(self) -> Sequence[To | Inspection]:
        """Ask again those that have not answered, and end without them after a while."""
        self._ticks += 1
        return self.begin() if self._ticks < PATIENCE else self.on_deadline()

    def on_inspected(self, sender: Member, m: Inspected) -> list[Inspection]:
        """Take an answer; end with the last one."""
        if sender in self._asked:
            self._answers[sender] = m
        return [] if self._silent else self.on_deadline()

    def on_record(self, record: Range) -> list[To]:
        """Go on: the answers say which record each node has."""
        return []

    def on_deadline(self) -> list[Inspection]:
        """End with the answers so far."""
        whole = all(member in self._answers for member in self._record.members)
        return [Inspection(
            Outcome.OK if whole else Outcome.UNKNOWN, self._record, dict(self._answers), self._silent)]

    @property
    def _silent(self) -> tuple[Member, ...]:
        return tuple(member for member in self._asked if member not in self._answers)


# --- why ------------------------------------------------------------------------------------------------------


class Winner(NamedTuple):
    """The cell that decides what a read shows, None where there is none."""

    cell: Seen | None
    shown: bool                 # a read shows its value
    why: str
    lacking: tuple[Member, ...]    # owners and pending ones that have answered and do not hold it


def winner_of(inspection: Inspection, place: Place, now_ms: int) -> Winner:
    """Say which cell of all that owners hold at a place decides, and why; `now_ms` is the reader's clock."""
    owners = {member: m for member, m in inspection.answers.items() if m.part is not Part.NONE}
    counted = {member: m for member, m in owners.items() if m.part is not Part.WITHDRAWN}
    floor_ms = max((m.floor_ms for m in counted.values()), default=0)
    held = [cell for m in counted.values() for cell in m.cells if cell.place == place]
    clear = max((
        cell for m in counted.values() for cell in m.cells if cell.place.sort is Sort.META), key=_stamp, default=None)
    if not held and (place.sort is not Sort.ELEMENT or clear is None):
        return Winner(None, False, "no owner that has answered holds a cell", ())
    if place.sort is Sort.ELEMENT:
        cell, shown, why = _of_element(held, clear, now_ms, floor_ms)
    else:
        cell = max(held, key=_order_of_string)
        shown, why = not (reason := _hidden(cell, now_ms, floor_ms)), reason or "it is live"
        why = f"the greatest stamp of {_count(set(held), 'cell')} wins (D55), and {why}"
    lacking = tuple(member for member, m in owners.items() if cell not in m.cells)
    return Winner(cell, shown, why, lacking)


def _of_element(held: Iterable[Seen], clear: Seen | None, now_ms: int, floor_ms: int) -> tuple[Seen, bool, str]:
    """The greatest cell of each actor stays (D56); of those that are live the one with the greatest stamp is shown."""
    actors: dict[Any, Seen] = {}
    for cell in held:
        known = actors.get(cell.actor)
        actors[cell.actor] = cell if known is None else max(known, cell, key=_order_of_element)
    if not actors:
        assert clear is not None
        return clear, False, "no owner that has answered holds a cell, and the key was cleared (D58)"
    void = [cell for cell in actors.values() if clear is not None and cell.stamp <= clear.stamp]
    hidden = {cell: reason for cell in actors.values() if (reason := _hidden(cell, now_ms, floor_ms))}
    live = [cell for cell in actors.values() if cell not in void and cell not in hidden]
    of = _count(actors, "actor")
    if live:
        why = f"of the cells of {of} {len(live)} are live, and of these the greatest stamp is shown (D56)"
        return max(live, key=_stamp), True, why
    newest = max(actors.values(), key=_stamp)
    if newest in void:
        assert clear is not None
        return clear, False, f"a clear has made the newest of the cells of {of} void (D58)"
    return newest, False, f"no cell of {of} is live: of the newest one {hidden[newest]}"


def _hidden(cell: Seen, now_ms: int, floor_ms: int) -> str:
    if cell.dead:
        return "it is a delete"
    if cell.expires_at_ms != NEVER and cell.expires_at_ms <= max(now_ms, floor_ms):
        return f"it expired at {cell.expires_at_ms} (D59)"
    return ""


def _stamp(cell: Seen) -> Any:
    return cell.stamp


def _order_of_string(cell: Seen) -> Any:
    """The order of D55 as far as a cell without its value has it."""
    return cell.stamp, cell.dead, cell.expires_at_ms, cell.digest


def _order_of_element(cell: Seen) -> Any:
    return cell.n, cell.dead, cell.stamp


def _count(of: Any, what: str) -> str:
    return f"{len(of)} {what}" + ("s" if len(of) != 1 else "")
