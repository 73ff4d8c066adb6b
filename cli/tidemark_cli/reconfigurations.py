"""Reconfigurations as commands make, follow and judge them, whoever keeps the objects.

Stays out: applying and watching (the Admin service, an API server), deciding anything (operator).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from rich.progress import Progress

from .failures import CommandFailed
from .output import note

Object = dict[str, Any]

BLOCK_OF_TYPE = {
    "NodeSwap": "nodeSwap", "Expand": "expand", "Contract": "contract", "LeaderTransfer": "leaderTransfer",
    "Rebalance": "rebalance", "Recover": "recover",
}


def reconfiguration(
    cluster: str, kind: str, body: Mapping[str, Any], *, name: str = "", more: Mapping[str, Any] | None = None
) -> Object:
    """Return the manifest of a Reconfiguration; `more` is what else its spec says."""
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Reconfiguration",
        "metadata": {"name": name or f"{kind.lower()}-{secrets.token_hex(4)}"},
        "spec": {"clusterRef": {"name": cluster}, "type": kind, BLOCK_OF_TYPE[kind]: dict(body), **(more or {})},
    }


def throttled(rate: str = "", concurrent: int = 0) -> Object:
    """Return the throttle of a spec; nothing in it where the cluster says it."""
    fields = {"bytesPerSecondPerNode": rate, "maxConcurrentMoves": concurrent}
    return {field: value for field, value in fields.items() if value}


def throttle_text(throttle: Mapping[str, Any]) -> str:
    """Return a throttle as people read it."""
    rate, concurrent = throttle.get("bytesPerSecondPerNode"), throttle.get("maxConcurrentMoves")
    parts = [f"{rate} bytes a second per node"] if rate else []
    if concurrent:
        parts.append(f"{concurrent} shards at a time")
    return ", ".join(parts) or "as the cluster says"


def status_of(item: Object) -> Object:
    return item.get("status") or {}


def condition_of(item: Object, kind: str) -> Object:
    """Return one condition of an object, an empty one when there is none."""
    return next((each for each in status_of(item).get("conditions") or () if each["type"] == kind), {})


def condition(item: Object, kind: str) -> tuple[str, str]:
    """Return status and reason of one condition of an object."""
    found = condition_of(item, kind)
    return found.get("status", ""), found.get("reason", "")


def stage(item: Object) -> str:
    return str(status_of(item).get("stage") or "Queued")


def plan_hash(item: Object) -> str:
    return str((status_of(item).get("plan") or {}).get("hash") or "")


def moves(item: Object) -> tuple[int, int]:
    """Return how many moves are done, and of how many."""
    status = status_of(item)
    return (status.get("progress") or {}).get("completed", 0), (status.get("plan") or {}).get("moves", 0)


def bytes_text(count: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def copied_text(item: Object) -> str:
    """Return how many bytes were copied and how many there are, as far as that is known; nothing where none are."""
    status = item.get("status", {})
    told = ((status.get("progress") or {}).get("bytesMoved"), (status.get("plan") or {}).get("bytes"))
    moved, whole = (int(text or 0) if str(text or "").isdecimal() else 0 for text in told)
    if not moved:
        return f"{bytes_text(whole)} to copy" if whole and stage(item) != "Finished" else ""
    return f"{bytes_text(moved)} of {bytes_text(whole)} copied" if whole > moved else f"{bytes_text(moved)} copied"


def stalled_text(item: Object) -> str:
    """Return what holds a Reconfiguration up, nothing where it goes on."""
    stalled = condition_of(item, "Stalled")
    if stalled.get("status") != "True":
        return ""
    return f"stalled: {stalled.get('reason', '')}: {stalled.get('message', '')}"


def progress_text(item: Object, *, stalled: bool = True) -> str:
    """Return how far it is in one line: its stage, what was copied, when it may be done, and why it is `stalled`."""
    found = status_of(item).get("progress") or {}
    parts = [stage(item)]
    if found:
        parts.append(f"{found.get('summary', '')} moves")
        parts.append(f"{found.get('percent', 0)} %")
    copied = copied_text(item)
    if copied:
        parts.append(copied)
    if found.get("failed"):
        parts.append(f"{found['failed']} failed")
    if found.get("estimatedCompletionTime"):
        parts.append(f"until about {found['estimatedCompletionTime']}")
    if stalled and (why := stalled_text(item)):
        parts.append(why)
    return " · ".join(parts)


class Follower:
    """One line of a progress display for one Reconfiguration: `see` it whenever it changed.

    What stalls it is a line of its own, above: the display cuts a long one.
    """

    def __init__(self, bar: Progress, name: str) -> None:
        self._bar = bar
        self._name = name
        self._task = bar.add_task(name, total=None)
        self._stalled = ""

    def see(self, item: Object) -> bool:
        """Show how far it is; True when it is over."""
        done, total = moves(item)
        if (stalled := stalled_text(item)) != self._stalled:
            note(f"{self._name} {stalled}" if stalled else f"{self._name} goes on")
            self._stalled = stalled
        text = progress_text(item, stalled=False) + (" · stalled" if stalled else "")
        self._bar.update(
            self._task, description=f"{self._name}: {text}", total=total or None, completed=done)
        return stage(item) == "Finished"


def succeeded(item: Object, how_to_look: str) -> Object:
    """Return a finished one as it is; raises CommandFailed when it did not succeed."""
    ended = condition_of(item, "Succeeded")
    if ended.get("status") != "True":
        reason = ended.get("reason", "")
        message = ended.get("message") or condition_of(item, "Validated").get("message")
        text = f"{item['metadata']['name']}: {reason}" + (f": {message}" if message else "")
        raise CommandFailed(text, how_to_look, reason=reason or "FAILED")
    return item
