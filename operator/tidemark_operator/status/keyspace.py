"""The status of a Keyspace while this release does not serve any: only what follows from its spec.

Pure.  Stays out: the checks of a manifest (`resources.keyspace`), and storing it (`objects`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..condition_memory import Condition
from ..metadata import StoredObject
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.keyspace import Consistency, QuorumMode
from ..resources.kinds import not_served_message
from .standing import AS_WRITTEN, Standing, overlay, standing_conditions


@dataclass(frozen=True, slots=True)
class KeyspaceFacts:
    stored: StoredObject
    standing: Standing = AS_WRITTEN


def keyspace_status(facts: KeyspaceFacts) -> dict[str, Any]:
    """Return the status of a keyspace."""
    spec = facts.stored.spec
    replication = spec["replication"]
    owners, reads, writes = (replication[name] for name in ("replicas", "readQuorum", "writeQuorum"))
    message = not_served_message("Keyspace", spec)
    conditions: list[Condition] = [
        (T.READY, False, R.NOT_SUPPORTED, message),
        (T.RECONCILING, False, R.NOT_SUPPORTED, ""),
        (T.STALLED, True, R.NOT_SUPPORTED, message),
        (T.AVAILABLE, False, R.NOT_SUPPORTED, ""),
        (T.FULLY_REPLICATED, None, R.NOT_SUPPORTED, ""),
        _strict_quorum(spec, f"R + W = {reads + writes}, N = {owners}."),
        (T.PLACEMENT_SATISFIED, None, R.NOT_SUPPORTED, ""),
    ]
    return {
        "observedGeneration": facts.stored.generation,
        "quorums": f"{owners}/{reads}/{writes}",
        "partitions": {"desired": spec["partitions"], "quorumAvailable": 0, "fullyReplicated": 0, "moving": 0},
        "hintsPending": False,
        "conditions": overlay(conditions, standing_conditions(facts.standing)),
    }


def _strict_quorum(spec: dict[str, Any], message: str) -> Condition:
    if spec["consistency"] == Consistency.EVENTUAL:
        return (T.STRICT_QUORUM, False, R.EVENTUAL_BY_CHOICE, message)
    if spec["replication"]["quorumMode"] == QuorumMode.SLOPPY:
        return (T.STRICT_QUORUM, False, R.SLOPPY_BY_CHOICE, message)
    return (T.STRICT_QUORUM, True, R.QUORUMS_OVERLAP, message)
