"""Turns: which Reconfiguration acts, and how fast its copies may move.

Judged from what is stored alone, so that an operator that takes over comes to the same.
Pure.  Stays out: carrying one out (`reconfiguration_run`).
"""

from __future__ import annotations

from collections.abc import Iterable

from .metadata import StoredObject
from .model import BYTES_MAX
from .resources.base import quantity_bytes

ACTING = frozenset({"Provisioning", "Moving", "Suspended", "Aborting", "CleaningUp"})
"""Stages behind the plan: what was agreed on is being carried out."""


def acting(reconfigurations: Iterable[StoredObject]) -> StoredObject | None:
    """Return the Reconfiguration that is being carried out; there is one at most."""
    return min(
        (each for each in reconfigurations if each.status.get("stage") in ACTING),
        key=lambda each: each.number, default=None)


def snapshot_rate(reconfigurations: Iterable[StoredObject]) -> int:
    """Return how many bytes of snapshots a second each node may send now, 0 where only the cluster's throttle says."""
    acts = acting(reconfigurations)
    wanted = (acts.spec.get("throttle") or {}).get("bytesPerSecondPerNode") if acts is not None else None
    return min(max(1, quantity_bytes(wanted)), BYTES_MAX) if wanted else 0
