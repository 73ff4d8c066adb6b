"""FloorKeeper: which ranges of keyspaces have a round of their floor now, and what keeps late floors from rising.

A floor follows the clock at the distance of the grace, in steps of a tenth of it.  A round begins when no move is open
and every owner is up; a node that is no owner is left out once it was away for longer than hints are kept (D68, D70).
Stays out: rounds (core's `raising`), moves (`rings`), what a condition says (`status.keyspace`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from tidemark_core.base.ids import KEYSPACE_PLANE, Address
from tidemark_core.optimistic.floors import Phase, highest
from tidemark_core.optimistic.raising import FloorDue, Rounds
from tidemark_core.optimistic.ring import Range
from tidemark_core.optimistic.settings import WRITE_WINDOW_MS
from tidemark_wire.wire_version import VERSION_OF_PLANES

from .condition_memory import some
from .driver import now_ms
from .keyspaces import Keyspace, is_up
from .metadata import NodeLife
from .model import Node
from .resources.conditions import ConditionReason

ROUNDS_MAX = 8
"""Rounds at once in a cluster: in each of them all owners of a range compare it."""

STEPS = 10
LOOK_AGAIN_MS = 60_000
REST_MS_MAX = 3_600_000

PHASES = {
    Phase.HINTS: "hints are left", Phase.PROMISES: "promises are missing", Phase.SYNC: "exchanges are left",
    Phase.COMMIT: "the record is written",
}


@dataclass(frozen=True, slots=True)
class Late:
    """Floors that should have risen a while ago: how many, by how much the last one is late, and what it waits for."""

    ranges: int
    late_ms: int
    reason: ConditionReason
    why: str


@dataclass(slots=True)
class _Found:
    """The work of a keyspace: `due` rounds with what they are sorted by, `late` floors with their times."""

    awaited: list[str]      # nodes that are away and may keep hints
    rest_ms: int            # for so long no other floor is due
    due: list[tuple[int, int, FloorDue]] = field(default_factory=list)
    late: list[tuple[int, int]] = field(default_factory=list)


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class FloorKeeper:
    """Call `look` when keyspaces, ranges or nodes change, and again when it says so.

    `late` are the floors that are late, by the names of their keyspaces.
    """

    def __init__(
        self, rounds: Rounds, feed: Callable[[int, Any], None], wall: Callable[[], int] = wall_ms,
        monotonic: Callable[[], int] = now_ms,
    ) -> None:
        """`feed` hands an event to the machine of a plane; `wall` and `monotonic` return milliseconds."""
        self._rounds = rounds
        self._feed = feed
        self._wall = wall
        self._monotonic = monotonic
        self._down_ms: dict[str, int] = {}      # nodes that are not up, and since when
        self._tried_ms: dict[int, int] = {}     # when a range last had a round
        self._rests_ms: dict[tuple[int, int], int] = {}     # by number and grace: until when no floor is due
        self._wakes_ms = 0
        self.late: dict[str, Late] = {}

    def look(
        self, keyspaces: Iterable[Keyspace], nodes: Mapping[str, Node], records: Mapping[int, Range], *, rests: bool
    ) -> float | None:
        """Begin the rounds that are due, the ranges first that had none for longest; none where the cluster `rests`.

        Returns after how many seconds time alone makes more of it due.
        """
        at_ms, up = self._monotonic(), {name for name, node in nodes.items() if node.up}
        self._down_ms = {name: self._down_ms.get(name, at_ms) for name in nodes.keys() - up}
        self._give_up(nodes)
        now, waits_ms, found = self._time_ms(nodes), REST_MS_MAX, dict[str, _Found]()
        for keyspace in keyspaces:
            key = keyspace.number, keyspace.settings.grace_ms
            if (rest_ms := self._rests_ms.get(key, 0) - now) <= 0:
                found[keyspace.name] = one = self._find(keyspace, nodes, records, now)
                rest_ms = one.rest_ms
                self._rests_ms[key] = now + rest_ms
            waits_ms = min(waits_ms, rest_ms if rest_ms > 0 else LOOK_AGAIN_MS)
        if not rests:
            self._begin(at_ms, chain.from_iterable(one.due for one in found.values()))
        self.late = {name: self._late(one, nodes, records) for name, one in found.items() if one.late}
        if len(self._tried_ms) > 2 * len(records):
            self._tried_ms = {unit: ms for unit, ms in self._tried_ms.items() if unit in records}
        if at_ms < self._wakes_ms <= at_ms + waits_ms:
            return None     # it was said already
        self._wakes_ms = at_ms + waits_ms
        return waits_ms / 1_000

    def _time_ms(self, nodes: Mapping[str, Node]) -> int:
        """Return the time by this machine's clock, or by the nodes' where most of them have an earlier one.

        Owners refuse what is older than a floor, so a clock that is days ahead must not decide one.
        """
        at_ms = self._monotonic()
        clocks = sorted(
            at_ms + node.clock_ahead_ms for node in nodes.values() if node.up and node.clock_ahead_ms is not None)
        return min([self._wall(), *clocks[(len(clocks) - 1) // 2:][:1]])

    def _find(
        self, keyspace: Keyspace, nodes: Mapping[str, Node], records: Mapping[int, Range], now: int
    ) -> _Found:
        """Look through the ranges of a keyspace."""
        behind_ms = max(keyspace.settings.grace_ms, WRITE_WINDOW_MS)
        step_ms = behind_ms // STEPS
        floor_ms = highest(now, behind_ms)
        asked = tuple(node.member for node in nodes.values() if node.up and node.member is not None and _keeps(node))
        awaited = sorted(
            name for name, since_ms in self._down_ms.items()
            if _keeps(nodes[name]) and self._monotonic() - since_ms < keyspace.settings.hint_window_ms)
        found = _Found(awaited, behind_ms)
        for unit in keyspace.units():
            record = records.get(unit)
            if record is None:
                found.rest_ms = 0   # it is created now
                continue
            left_ms = max(record.floor_ms, keyspace.created_ms) + step_ms - floor_ms    # nothing is older
            found.rest_ms = max(0, min(found.rest_ms, left_ms))
            if left_ms > 0:
                continue
            if left_ms <= -step_ms:
                found.late.append((-left_ms, unit))
            away = any(not is_up(member, nodes) for member in record.own.members)
            if record.pending is None and not away and not awaited and unit not in self._rounds.open:
                due = FloorDue(Address(KEYSPACE_PLANE, unit), floor_ms, asked)
                found.due.append((self._tried_ms.get(unit, 0), left_ms, due))
        return found

    def _late(self, found: _Found, nodes: Mapping[str, Node], records: Mapping[int, Range]) -> Late:
        late_ms, unit = max(found.late, key=lambda one: (one[0], -one[1]))
        reason, why = self._why(unit, records[unit], nodes, found.awaited)
        return Late(len(found.late), late_ms, reason, f"range {unit & 0xFFFFFFFF}: {why}")

    def _why(
        self, unit: int, record: Range, nodes: Mapping[str, Node], awaited: Iterable[str]
    ) -> tuple[ConditionReason, str]:
        """Say what a round waits for."""
        if record.pending is not None:
            return ConditionReason.RANGES_MOVING, "it moves (D68)"
        away = [member.node for member in record.own.members if not is_up(member, nodes)]
        if away:
            return ConditionReason.NODES_AWAY, f"owners are away (D70): {some(away)}"
        if (names := some(awaited)):
            return ConditionReason.NODES_AWAY, f"nodes are away that may keep hints (D70): {names}"
        last = self._rounds.open.get(unit) or self._rounds.given_up.get(unit)
        if last is not None and last.waits:
            names = some(member.node for member in last.waits)
            return ConditionReason.ROUND_UNANSWERED, f"{PHASES[last.phase]} (D69): {names}"
        return ConditionReason.PROGRESSING, "its round comes"

    def _begin(self, at_ms: int, due: Iterable[tuple[int, int, FloorDue]]) -> None:
        for _, _, each in sorted(due, key=lambda one: one[:2]):
            if len(self._rounds.open) >= ROUNDS_MAX:
                return
            self._tried_ms[each.address.id] = at_ms
            self._feed(KEYSPACE_PLANE, each)

    def _give_up(self, nodes: Mapping[str, Node]) -> None:
        """Give up rounds that wait for a member that is away: others have their turn, and it comes again."""
        for unit, one in list(self._rounds.open.items()):
            if any(not is_up(member, nodes) for member in one.waits):
                self._feed(KEYSPACE_PLANE, FloorDue(Address(KEYSPACE_PLANE, unit), None))


def _keeps(node: Node) -> bool:
    """Say whether a node may keep hints."""
    return node.life is not NodeLife.REMOVED and node.wire_version >= VERSION_OF_PLANES
