"""Which node a pod goes to, by what the operator asks of a scheduler: selectors, zones, anti-affinity, where disks are.

Stays out: resources, taints other than a cordon, preferences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .client import Object

Labels = Mapping[str, str]


class Unschedulable(Exception):
    """No node fits; the text says why, node by node."""


def choose(pod: Object, nodes: Sequence[Object], pods: Iterable[Object], bound_to: Iterable[Object] = ()) -> str:
    """Return the node with the fewest pods that fits; `bound_to` are the node selectors of the pod's volumes."""
    placed = [each for each in pods if each["spec"].get("nodeName")]
    crowd = {node["metadata"]["name"]: 0 for node in nodes}
    for each in placed:
        if each["spec"]["nodeName"] in crowd:
            crowd[each["spec"]["nodeName"]] += 1
    refusals = {node["metadata"]["name"]: _refusal(pod, node, nodes, placed, list(bound_to)) for node in nodes}
    fitting = [name for name, why in refusals.items() if not why]
    if not fitting:
        raise Unschedulable(
            f"0/{len(nodes)} nodes are available: " + ", ".join(f"{name} {why}" for name, why in refusals.items()))
    return min(fitting, key=lambda name: (crowd[name], name))


def _refusal(
    pod: Object, node: Object, nodes: Sequence[Object], placed: Sequence[Object], bound_to: Sequence[Object]
) -> str:
    labels: Labels = node["metadata"].get("labels", {})
    if node["spec"].get("unschedulable"):
        return "is unschedulable"
    if any(labels.get(key) != value for key, value in pod["spec"].get("nodeSelector", {}).items()):
        return "does not match the node selector"
    affinity = pod["spec"].get("affinity", {})
    required = affinity.get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if required and not matches_node_selector(required, labels):
        return "does not match the node affinity"
    if not all(matches_node_selector(selector, labels) for selector in bound_to):
        return "does not have the volume"
    by_name = {each["metadata"]["name"]: each["metadata"].get("labels", {}) for each in nodes}
    for term in affinity.get("podAntiAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", ()):
        key = term["topologyKey"]
        for other in placed:
            there = by_name.get(other["spec"]["nodeName"], {})
            if (
                key in labels and there.get(key) == labels[key]
                and matches_label_selector(term.get("labelSelector") or {}, other["metadata"].get("labels", {}))
            ):
                return f"has {other['metadata']['name']}, which the pod must not be near"
    return ""


def matches_node_selector(selector: Object, labels: Labels) -> bool:
    """One of the terms holds."""
    return any(
        all(_matches(expression, labels) for expression in term.get("matchExpressions", ()))
        for term in selector["nodeSelectorTerms"])


def matches_label_selector(selector: Object, labels: Labels) -> bool:
    """Everything that is asked for holds."""
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        _matches(expression, labels) for expression in selector.get("matchExpressions", ()))


def _matches(expression: Mapping[str, Any], labels: Labels) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values", ())
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case unknown:
            raise Unschedulable(f"the pod runner knows no operator {unknown}")
