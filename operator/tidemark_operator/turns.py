"""Turns: which Reconfiguration acts, which is next, and how fast copies may move meanwhile.

One acts at a time, in the order of creation.  One that only waits for somebody to approve it stands aside and lets
others pass; approved, it is in line again, by its age, and is planned anew when its turn comes.

Judged from what is stored alone, so that an operator that takes over comes to the same; `Slot` is what keeps two from
acting at once within one.
Pure.  Stays out: what is approved (`approval`), carrying one out (`reconfiguration_run`), starting those whose turn it
is (`reconfigure`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .metadata import StoredObject
from .model import BYTES_MAX
from .resources.base import quantity_bytes

ACTING = frozenset({"Provisioning", "Moving", "Suspended", "Aborting", "CleaningUp"})
"""Stages behind the plan: what was agreed on is being carried out."""


def unfinished(reconfigurations: Iterable[StoredObject]) -> list[StoredObject]:
    """Return those that are not over, in the order of creation."""
    return sorted(
        (each for each in reconfigurations if each.status.get("stage") != "Finished"), key=lambda each: each.number)


def stands_aside(stored: StoredObject) -> bool:
    """Say whether it only waits for a person, and holds up nobody."""
    return stored.status.get("stage") == "AwaitingApproval"


def acting(reconfigurations: Iterable[StoredObject]) -> StoredObject | None:
    """Return the Reconfiguration that is being carried out; there is one at most."""
    return next((each for each in unfinished(reconfigurations) if each.status.get("stage") in ACTING), None)


def next_in_line(reconfigurations: Iterable[StoredObject], approved: str = "") -> StoredObject | None:
    """Return whose turn it is: who acts already, else the oldest that does not stand aside; `approved` no more does."""
    known = list(reconfigurations)
    return acting(known) or next(
        (each for each in unfinished(known) if not stands_aside(each) or each.name == approved), None)


def snapshot_rate(reconfigurations: Iterable[StoredObject]) -> int:
    """Return how many bytes of snapshots a second each node may send now, 0 where only the cluster's throttle says."""
    acts = acting(reconfigurations)
    wanted = (acts.spec.get("throttle") or {}).get("bytesPerSecondPerNode") if acts is not None else None
    return min(max(1, quantity_bytes(wanted)), BYTES_MAX) if wanted else 0


@dataclass(slots=True)
class Slot:
    """Whose turn it is in this operator: nobody else is planned for the first time, or acts, until it is given back."""

    may_take: Callable[[str], bool]
    on_free: Callable[[], None]
    holder: str = ""

    def take(self, name: str) -> bool:
        """Have it be the turn of `name` if it can be; who has it is told yes."""
        if not self.holder and self.may_take(name):
            self.holder = name
        return self.holder == name

    def give_back(self, name: str) -> None:
        """Let the next one have it; nothing happens where it is somebody else's."""
        if self.holder == name:
            self.holder = ""
            self.on_free()
