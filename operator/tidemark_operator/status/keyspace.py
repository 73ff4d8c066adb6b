"""The status of a Keyspace, from its ranges and the nodes.

Pure.  Stays out: the checks of a manifest (`resources.keyspace`), storing anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidemark_core.optimistic.ring import Quorum, Range

from ..clock_skew import span_text
from ..condition_memory import Condition, some
from ..floors import Late
from ..keyspaces import Keyspace, in_force, is_complete, is_crowded, is_served, is_up, keyspace_view
from ..metadata import StoredObject
from ..model import Node, zones_of
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from .standing import AS_WRITTEN, Standing, overlay, standing_conditions


@dataclass(frozen=True, slots=True)
class KeyspaceFacts:
    """`ranges` are those that exist, by index; `revision` is of the newest thing that is stored of the keyspace.

    `trouble` is a reason and a message when the ranges could not be created, `late` are floors that should have risen.
    """

    stored: StoredObject
    ranges: Mapping[int, Range]
    nodes: Mapping[str, Node]
    revision: int
    trouble: tuple[R, str] | None = None
    standing: Standing = AS_WRITTEN
    late: Late | None = None


def keyspace_status(facts: KeyspaceFacts) -> dict[str, Any]:
    """Return the status of a keyspace."""
    keyspace, ranges, nodes = keyspace_view(facts.stored), facts.ranges, facts.nodes
    served = sum(is_served(record, nodes) for record in ranges.values())
    full = sum(is_complete(record, nodes) for record in ranges.values())
    moving = sum(record.pending is not None for record in ranges.values())
    complete = len(ranges) == keyspace.partitions
    away = sorted({
        member.node for record in ranges.values() for member in record.members if not is_up(member, nodes)})
    quorum = in_force(list(ranges.values())) or keyspace.quorum
    ready = _ready(facts, keyspace, served, moving)
    stalled = _stalled(facts.trouble)
    conditions: list[Condition] = [
        ready,
        (T.RECONCILING, not ready[1] and not stalled[1], ready[2] if not ready[1] and not stalled[1] else stalled[2],
         ""),
        stalled,
        (T.AVAILABLE, complete and served == len(ranges),
         R.CREATING_RING if not complete else R.QUORUMS_AVAILABLE if served == len(ranges)
         else R.PARTITIONS_BELOW_QUORUM, _below(ranges, nodes) if complete else ""),
        (T.FULLY_REPLICATED, complete and full == len(ranges),
         R.CREATING_RING if not complete else R.COPIES_MISSING if away else R.COPIES_CATCHING_UP if moving
         else R.ALL_COPIES_IN_SYNC, f"{some(away)}: {len(ranges) - full} ranges lack owners." if away else ""),
        _strict_quorum(keyspace),
        _placement(facts, keyspace, complete=complete),
        *_blocked(facts.late),
    ]
    return {
        "observedGeneration": facts.stored.generation,
        "keyspaceID": keyspace.number,
        "metadataRevision": facts.revision,
        "ringVersion": sum(record.version for record in ranges.values()),
        "quorums": _text(quorum),
        "partitions": {
            "desired": keyspace.partitions, "quorumAvailable": served, "fullyReplicated": full, "moving": moving},
        "conditions": overlay(conditions, standing_conditions(facts.standing)),
    }


def _ready(facts: KeyspaceFacts, keyspace: Keyspace, served: int, moving: int) -> Condition:
    ranges = facts.ranges
    if facts.trouble is not None:
        return (T.READY, False, R.STALLED, facts.trouble[1])
    if len(ranges) < keyspace.partitions:
        return (T.READY, False, R.CREATING_RING, f"{len(ranges)} of {keyspace.partitions} ranges exist.")
    if served < len(ranges):
        return (T.READY, False, R.PARTITIONS_BELOW_QUORUM, _below(ranges, facts.nodes))
    if moving:
        return (T.READY, False, R.RANGES_MOVING, f"{moving} of {len(ranges)} ranges move.")
    other = [record.own.quorum for record in ranges.values() if record.own.quorum != keyspace.quorum]
    if other:
        eligible = len(keyspace.zones(facts.nodes))
        why = f"; {eligible} nodes are eligible" if eligible < keyspace.factor else ""
        return (
            T.READY, False, R.FACTOR_CHANGE_PENDING,
            f"declared {_text(keyspace.quorum)}, {len(other)} of {len(ranges)} ranges have {_text(other[0])}{why}.")
    return (T.READY, True, R.RING_STABLE, f"{len(ranges)} ranges have their owners.")


def _stalled(trouble: tuple[R, str] | None) -> Condition:
    if trouble is None:
        return (T.STALLED, False, R.RECONCILED, "")
    reason = R.INVALID_SPEC if trouble[0] is R.POOL_NOT_FOUND else trouble[0]
    return (T.STALLED, True, reason, trouble[1])


def _below(ranges: Mapping[int, Range], nodes: Mapping[str, Node]) -> str:
    below = [str(index) for index, record in sorted(ranges.items()) if not is_served(record, nodes)]
    return f"Ranges {some(below)} have fewer owners up than their quorums need." if below else ""


def _strict_quorum(keyspace: Keyspace) -> Condition:
    n, r, w = keyspace.quorum
    message = f"R + W = {r + w}, N = {n}."
    if keyspace.sloppy:
        return (T.STRICT_QUORUM, False, R.SLOPPY_BY_CHOICE, message)
    if keyspace.eventual:
        return (T.STRICT_QUORUM, False, R.EVENTUAL_BY_CHOICE, message)
    return (T.STRICT_QUORUM, True, R.QUORUMS_OVERLAP, message)


def _blocked(late: Late | None) -> list[Condition]:
    if late is None:
        return []
    message = f"Floors of {late.ranges} ranges are late, the last one by {span_text(late.late_ms)}: {late.why}."
    return [(T.GC_BLOCKED, True, late.reason, message)]


def _placement(facts: KeyspaceFacts, keyspace: Keyspace, *, complete: bool) -> Condition:
    if facts.trouble is not None and facts.trouble[0] in (R.POOL_NOT_FOUND, R.NOT_ENOUGH_NODES):
        return (T.PLACEMENT_SATISFIED, False, *facts.trouble)
    if not complete:
        return (T.PLACEMENT_SATISFIED, False, R.CREATING_RING, "")
    zones = {node.member: node.zone for node in facts.nodes.values() if node.member is not None}
    known = zones_of(facts.nodes.values())
    crowded = [
        str(index) for index, record in sorted(facts.ranges.items())
        if keyspace.spread_zones and known and is_crowded(record, zones)]
    if crowded:
        return (
            T.PLACEMENT_SATISFIED, False, R.NOT_ENOUGH_DOMAINS,
            f"Ranges {some(crowded)}: two owners share a zone, of {len(known)}.")
    return (T.PLACEMENT_SATISFIED, True, R.DOMAINS_DISTINCT, "")


def _text(quorum: Quorum) -> str:
    return "/".join(map(str, quorum))
