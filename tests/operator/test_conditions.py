"""The list of conditions, reasons and events is closed: what is shown is on it, nobody spells a reason elsewhere."""

from __future__ import annotations

import ast
import re
from enum import StrEnum
from pathlib import Path

import pytest
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.resources import (
    KINDS,
    cluster_status,
    conditions,
    keyspace,
    loggroup,
    policies,
    reconfiguration,
    reconfiguration_status,
    shard,
)
from tidemark_operator.resources.conditions import (
    CONDITIONS,
    ConditionReason,
    ConditionType,
    check_condition,
    required_types,
)
from tidemark_operator.resources.events import EVENTS, EventReason

from tests.syntax import parsed

OPERATOR = Path(conditions.__file__).parents[1]


def test_every_type_and_reason_has_its_place_and_its_meaning() -> None:
    rules = [rule for rules in CONDITIONS.values() for rule in rules]
    assert {rule.type for rule in rules} == set(ConditionType)
    used = {reason for rule in rules for reason in (*rule.true, *rule.false, *rule.unknown)}
    assert used | {ConditionReason.NOT_RECONCILED} == set(ConditionReason)
    assert all(member.meaning for member in (*ConditionType, *ConditionReason))
    assert all(re.fullmatch("[A-Z][A-Za-z]+", member) for member in (*ConditionType, *ConditionReason, *EventReason))


def test_every_kind_has_conditions_and_events() -> None:
    assert KINDS.keys() == CONDITIONS.keys() == EVENTS.keys()
    for kind, rules in CONDITIONS.items():
        types = [rule.type for rule in rules]
        assert len(types) == len(set(types)) <= 32, kind
    for kind, events in EVENTS.items():
        reasons = [event.reason for event in events]
        assert len(reasons) == len(set(reasons)), kind
    assert {event.reason for events in EVENTS.values() for event in events} == set(EventReason)


@pytest.mark.parametrize(("type_", "status", "reason", "allowed"), [
    ("Ready", True, "AllShardsOnline", True),
    ("Ready", False, "AllShardsOnline", False),
    ("Ready", None, "NotReconciled", True),
    ("Ready", False, "Connected", False),
    ("Stalled", True, "NotEnoughNodes", True),
    ("Reconciling", True, "CreatingShards", True),
    ("Approved", True, "ApprovedByUser", False),  # of another kind
])
def test_only_what_is_on_the_list_is_accepted(type_: str, status: bool | None, reason: str, allowed: bool) -> None:
    if allowed:
        check_condition("LogGroup", type_, status, reason)
    else:
        with pytest.raises(ValueError, match="is not on the list"):
            check_condition("LogGroup", type_, status, reason)


def test_conditions_nobody_gave_are_there_as_unknown() -> None:
    memory = ConditionMemory(lambda: "2026-01-01T00:00:00Z")
    given = (ConditionType.READY, True, ConditionReason.ALL_SHARDS_ONLINE, "")
    written = memory.write("LogGroup", "orders", 1, [given])
    assert {item["type"] for item in written} == set(required_types("LogGroup"))
    assert {(item["status"], item["reason"]) for item in written[1:]} == {("Unknown", "NotReconciled")}
    assert "Paused" not in {item["type"] for item in written}
    with pytest.raises(ValueError, match="Available=False"):
        wrong = (ConditionType.AVAILABLE, False, ConditionReason.CONNECTED, "")
        memory.write("LogGroup", "orders", 1, [wrong])


def test_since_when_a_condition_holds_survives_the_operator() -> None:
    ready = (ConditionType.READY, True, ConditionReason.ALL_SHARDS_ONLINE, "")
    first = ConditionMemory(lambda: "2026-01-01T00:00:00Z").write("LogGroup", "orders", 1, [ready])
    second = ConditionMemory(lambda: "2026-02-02T00:00:00Z")
    second.learn("LogGroup", "orders", first)
    again = second.write("LogGroup", "orders", 2, [ready])
    assert [item["lastTransitionTime"] for item in again] == ["2026-01-01T00:00:00Z"] * len(again)
    changed = (ConditionType.READY, False, ConditionReason.SHARDS_NOT_ONLINE, "")
    (moved, *others) = second.write("LogGroup", "orders", 3, [changed])
    assert moved["lastTransitionTime"] == "2026-02-02T00:00:00Z"
    assert {item["lastTransitionTime"] for item in others} == {"2026-01-01T00:00:00Z"}
    second.learn("LogGroup", "orders", first)  # what is known is newer than what is learned
    assert second.write("LogGroup", "orders", 3, [changed])[0] == moved


def values_of_other_enums() -> set[str]:
    """Words that mean something else too: stages, states, enum values of specs."""
    return {
        value
        for module in (cluster_status, policies, loggroup, keyspace, shard, reconfiguration, reconfiguration_status)
        for enum in vars(module).values()
        if isinstance(enum, type) and issubclass(enum, StrEnum)
        for value in enum
    }


def test_no_reason_is_spelled_out_elsewhere() -> None:
    """A reason is a constant of the list; a literal would escape it."""
    words = set(ConditionReason) - values_of_other_enums() - {"Paused"}  # a state of processes
    found = []
    for path in OPERATOR.rglob("*.py"):
        if path.name in ("conditions.py", "events.py"):
            continue
        for node in ast.walk(parsed(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in words:
                found.append(f"{path.name}:{node.lineno}: {node.value}")
    assert not found, "use ConditionReason"
