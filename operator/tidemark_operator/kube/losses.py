"""Losses: which nodes have lost their disk for good, by the one proof there is.

A volume that is pinned to a machine by name is lost with that machine, and a machine is gone when Kubernetes has no
object of it, for a while: a machine that is only NotReady may come back with everything, and one whose object was
deleted by mistake registers again.  A volume that follows its pod is never lost this way.
Pure.  Stays out: asking Kubernetes, what follows from a loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..model import Node

Object = Mapping[str, Any]

HOSTNAME = "kubernetes.io/hostname"


def suspects(
    names: Iterable[str], nodes: Mapping[str, Node], pods: Mapping[str, Object], machines: Iterable[Object],
) -> list[str]:
    """Return who may have lost its disk: a node that is not up, and whose pod is on no machine that is there."""
    there = {machine["metadata"]["name"] for machine in machines}

    def stands(name: str) -> bool:
        return (name in nodes and nodes[name].up) or (name in pods and pods[name]["spec"].get("nodeName") in there)

    return [name for name in names if not stands(name)]


def gone_machine(volume: Object, machines: Iterable[Object]) -> str:
    """Return the machine that a volume is pinned to if there is no such machine, else nothing.

    Only names pin: a volume of a zone that has no machine just now waits for one.
    """
    required = volume["spec"].get("nodeAffinity", {}).get("required", {})
    pinned = [_names(term) for term in required.get("nodeSelectorTerms", ())]
    if not pinned or not all(pinned):
        return ""
    wanted = set().union(*pinned)
    there = {name for machine in machines for name in (
        machine["metadata"]["name"], machine["metadata"].get("labels", {}).get(HOSTNAME, ""))}
    return "" if wanted & there else ", ".join(sorted(wanted))


def _names(term: Object) -> set[str]:
    """Return the machines that a term names, none where it names any other way."""
    found: set[str] = set()
    for field, key in (("matchExpressions", HOSTNAME), ("matchFields", "metadata.name")):
        for each in term.get(field, ()):
            if each["key"] == key and each["operator"] == "In":
                found.update(each["values"])
    return found


class Losses:
    """Since when the machine of each node is seen to be gone; told the time, and of every node at every look."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[str, float]] = {}

    def see(self, gone: Mapping[str, str], now: float) -> None:
        """Take in the nodes whose volume is pinned to a machine that is gone, and that machine."""
        self._since = {
            node: known if (known := self._since.get(node)) is not None and known[0] == machine else (machine, now)
            for node, machine in gone.items()}

    def lost(self, now: float, after_s: float) -> dict[str, str]:
        """Return the nodes that are lost, and the machine each was on."""
        return {node: machine for node, (machine, since) in self._since.items() if now - since >= after_s}

    def due_in(self, now: float, after_s: float) -> float | None:
        """Return how long until the next one counts as lost."""
        waits = [since + after_s - now for _machine, since in self._since.values() if now - since < after_s]
        return min(waits, default=None)
