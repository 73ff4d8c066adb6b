"""Conditions as they are shown: checked against the closed list, and with the time since when each has its status.

Stays out: when a condition holds (`status` and whoever else writes one), which there are (`resources.conditions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from .resources.conditions import ConditionReason, ConditionType, check_condition, required_types

NAMES_SHOWN_MAX = 3
TIME = "%Y-%m-%dT%H:%M:%SZ"

Condition = tuple[ConditionType, bool | None, ConditionReason, str]
"""Type, status (None: Unknown), reason, message."""


class ConditionMemory:
    """Remembers since when each condition of each object has its status."""

    def __init__(self, now: Callable[[], str] | None = None) -> None:
        self._now = now or timestamp
        self._since: dict[tuple[str, str, str], tuple[str, str]] = {}

    def write(self, kind: str, name: str, generation: int | None, conditions: Iterable[Condition]) -> list[
            dict[str, Any]]:
        """Return conditions as objects; `lastTransitionTime` moves only when the status moves.

        `generation` is None where nobody writes a spec that these could be behind: `kubectl wait` then asks for none.
        What is not on the list of the kind is a mistake of the caller; what the kind owes and is not given is Unknown.
        """
        given = list(conditions)
        missing = [type_ for type_ in required_types(kind) if type_ not in {one[0] for one in given}]
        given += [(type_, None, ConditionReason.NOT_RECONCILED, "") for type_ in missing]
        written = []
        for type_, value, reason, message in given:
            check_condition(kind, type_, value, reason)
            status = "Unknown" if value is None else str(value)
            known = self._since.get((kind, name, type_))
            if known is None or known[0] != status:
                known = self._since[kind, name, type_] = (status, self._now())
            written.append({
                "type": str(type_), "status": status, "reason": str(reason), "message": message,
                **({} if generation is None else {"observedGeneration": generation}), "lastTransitionTime": known[1],
            })
        return written

    def stamp(self, kind: str, name: str, generation: int | None, status: Mapping[str, Any]) -> dict[str, Any]:
        """Return a computed status with its conditions as objects, see `write`."""
        return {**status, "conditions": self.write(kind, name, generation, status["conditions"])}

    def learn(self, kind: str, name: str, conditions: Iterable[Mapping[str, Any]]) -> None:
        """Take over what an earlier operator wrote, where nothing newer is known."""
        for condition in conditions:
            key = (kind, name, condition["type"])
            self._since.setdefault(key, (condition["status"], condition["lastTransitionTime"]))

    def forget(self, kind: str, name: str) -> None:
        for key in [key for key in self._since if key[:2] == (kind, name)]:
            del self._since[key]


def timestamp() -> str:
    return f"{datetime.now(UTC):{TIME}}"


def some(names: Iterable[str]) -> str:
    """Name at most three examples and count the rest."""
    listed = list(names)
    rest = len(listed) - NAMES_SHOWN_MAX
    return ", ".join(listed[:NAMES_SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")
