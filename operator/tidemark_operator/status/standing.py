"""Conditions that stand in for computed ones: the spec is paused or refused, or the store does not hold the object.

Pure.  Stays out: the status of an object that the operator carries out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from ..condition_memory import Condition
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T

NO_CLUSTER = "spec.clusterRef names no cluster of this namespace"


class Refusal(str):
    """Why the operator does not act on a spec, with the reason of condition Stalled; a plain text is InvalidSpec."""

    reason: R

    def __new__(cls, why: str, reason: R = R.INVALID_SPEC) -> Self:
        made = super().__new__(cls, why)
        made.reason = reason
        return made


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether the operator acts on the newest spec of an object; `refused` is why not, empty: it does.

    `since` is the time at which condition Stalled of a refused Reconfiguration became True, empty: it is not True yet.
    """

    paused: bool = False
    refused: str = ""
    since: str = ""


AS_WRITTEN = Standing()
"""The operator acts on the newest spec."""


class Standstill(NamedTuple):
    """Why the operator acts on nothing that etcd holds; `reason` is one of MetadataStoreReachable."""

    reason: R
    message: str


def standstill_conditions(why: Standstill) -> list[Condition]:
    """Return the conditions of a cluster whose operator stands still."""
    return [
        (T.READY, False, R.STALLED, why.message), (T.STALLED, True, why.reason, why.message),
        (T.RECONCILING, False, why.reason, ""), (T.METADATA_STORE_REACHABLE, False, why.reason, why.message)]


@dataclass(frozen=True, slots=True)
class AbsentFacts:
    """An object that the store does not hold, or whose store cannot be read.

    `orphan`: its cluster does not exist.  `deleting` tells which data of a log group is left, None: none is deleted.
    Of a cluster, `unreachable` is the error of an etcd that never answered.
    """

    kind: str
    standing: Standing = AS_WRITTEN
    orphan: bool = False
    deleting: str | None = None
    unreachable: str = ""
    standstill: Standstill | None = None


def absent_status(facts: AbsentFacts) -> dict[str, Any]:
    """Return the status of an object that is not carried out; empty where there is nothing to say of it."""
    conditions = _absent(facts)
    return {"conditions": conditions} if conditions else {}


def _absent(facts: AbsentFacts) -> list[Condition]:
    if facts.standstill is not None:
        return standstill_conditions(facts.standstill)
    if facts.unreachable:
        reason = R.METADATA_STORE_UNREACHABLE
        return [
            (T.READY, None, reason, ""), (T.AVAILABLE, None, reason, ""),
            (T.METADATA_STORE_REACHABLE, False, R.CONNECTION_FAILED, facts.unreachable)]
    if facts.deleting is not None:
        return [
            (T.READY, False, R.DELETING, facts.deleting), (T.RECONCILING, True, R.DELETING, ""),
            (T.STALLED, False, R.PROGRESSING, "")]
    act = facts.kind == "Reconfiguration"
    if act and facts.standing.refused:
        return _rejected(R.INVALID_SPEC, facts.standing.refused)
    if not act and (conditions := standing_conditions(facts.standing)):
        return conditions
    if facts.orphan:
        return _rejected(R.CLUSTER_NOT_FOUND, NO_CLUSTER) if act else _orphan()
    return []


def standing_conditions(standing: Standing) -> list[Condition]:
    """Return the conditions that stand in for computed ones while a spec is paused or refused."""
    made: list[Condition] = []
    refused = standing.refused
    if refused:
        reason = refused.reason if isinstance(refused, Refusal) else R.INVALID_SPEC
        if "(AdoptionMismatch)" in refused:
            reason = R.ADOPTION_MISMATCH
        made += [(T.READY, False, R.STALLED, refused), (T.RECONCILING, False, reason, ""),
                 (T.STALLED, True, reason, refused)]
    if standing.paused:
        made = [one for one in made if one[0] is not T.READY]
        made += [(T.READY, False, R.PAUSED, ""), (T.PAUSED, True, R.PAUSED_BY_ANNOTATION, "")]
    return made


def overlay(computed: Sequence[Condition], instead: Iterable[Condition]) -> list[Condition]:
    """Return the computed conditions with others in their place; of two of one type, the first in `instead` counts."""
    first: dict[T, Condition] = {}
    for one in instead:
        first.setdefault(one[0], one)
    return [*(one for one in computed if one[0] not in first), *first.values()]


def _orphan() -> list[Condition]:
    reason = R.CLUSTER_NOT_FOUND
    return [(T.READY, None, reason, ""), (T.AVAILABLE, None, reason, ""), (T.RECONCILING, False, reason, ""),
            (T.STALLED, True, reason, NO_CLUSTER)]


def _rejected(reason: R, message: str) -> list[Condition]:
    """Return the conditions of a Reconfiguration that was not accepted."""
    return [(T.VALIDATED, False, reason, message), (T.SUCCEEDED, False, R.REJECTED, ""),
            (T.RECONCILING, False, R.FINISHED, ""), (T.STALLED, True, reason, message)]
