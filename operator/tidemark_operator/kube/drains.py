"""Drains: which nodes stand on machines that are being emptied, and what that asks for.

A machine is being emptied when it is cordoned, or when an autoscaler has marked it.  Under `HandOver` leaderships leave
its nodes before their pods are evicted; under `Relocate` their copies do too, and the budget holds the pods until then.
Pure.  Stays out: leaderships (`tending`), moves (`reconfigure`), evictions, which whoever drains asks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .builders import relocates

Object = Mapping[str, Any]
Pod = dict[str, Any]

MARKS = ("node.kubernetes.io/unschedulable", "ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted",
         "karpenter.sh/disruption")
"""Taints of machines that are about to go; others keep new pods away and mean nothing to those that are there."""


def emptied(machines: Iterable[Object]) -> set[str]:
    """Return the names of the machines that are being emptied."""
    return {
        machine["metadata"]["name"] for machine in machines
        if machine.get("spec", {}).get("unschedulable") or any(
            taint["key"] in MARKS for taint in machine.get("spec", {}).get("taints") or ())}


def leaving(spec: Object, pods: Mapping[str, Pod], machines: Iterable[Object]) -> dict[str, Pod]:
    """Return the pods, by node, that are to leave their machine."""
    if _policy(spec) == "Ignore":
        return {}
    empty = emptied(machines)
    return {
        name: pod for name, pod in pods.items()
        if pod["spec"].get("nodeName") in empty and "deletionTimestamp" not in pod["metadata"]}


def relocating(spec: Object, leaving: Iterable[str]) -> frozenset[str]:
    """Return the nodes that are to be given no copies, and to give theirs away, before they may be evicted."""
    return frozenset(leaving) if relocates(spec) else frozenset()


def relocation(node: str, pod: Object) -> tuple[str, Object]:
    """Return name and spec of the Reconfiguration that empties a node: one each time that a pod is to leave."""
    return f"{node}-relocate-{pod['metadata']['uid'][:8]}", {
        "type": "NodeSwap", "nodeSwap": {"from": node, "to": {"spread": {}}, "removeSource": "Keep"},
        "reason": f"the machine {pod['spec']['nodeName']} is being emptied"}


def _policy(spec: Object) -> str:
    return str((spec.get("disruption") or {}).get("onNodeDrain", "HandOver"))
