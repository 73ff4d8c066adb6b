"""Pod keeper: claims, pods, services and what else should be there, made where they are missing.

Pure; `acts` carries it out.  It never waits and never speaks to nodes or etcd: a lost pod comes back whatever else goes
on.  What it takes away belongs to a node that is known as removed, never to one that is merely not known.
Stays out: which nodes there should be (`nodes`), restarting pods that work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from ..resources import quantity_bytes
from ..resources.labels import Annotation, Label
from .acts import Act, applied, contains, deletion
from .api import BUDGETS, CLAIMS, MONITORS, NETWORK_POLICIES, PODS
from .attachments import network_policy, pod_monitor
from .builders import (
    Cluster,
    NodeView,
    Object,
    claim_name,
    client_service,
    disruption_budget,
    headless_service,
    node_claim,
    node_pod,
    nodes_name,
    owns,
    secret_name,
    uses_tls,
)

RESIZE_PATIENCE_S = 120
"""A file system that can grow in use has done so by then."""


@dataclass(frozen=True, slots=True)
class Live:
    """The objects of a cluster as last seen, by kind and name."""

    pods: Mapping[str, Object]
    claims: Mapping[str, Object]
    services: Mapping[str, Object]
    budgets: Mapping[str, Object]
    policies: Mapping[str, Object]
    monitors: Mapping[str, Object] | None
    """None where the API server knows no such thing."""
    gone_machines: frozenset[str] = frozenset()
    """Names of machines that pods are bound to and that Kubernetes knows no more."""

    growing_classes: frozenset[str] = frozenset()
    """Storage classes that are known to let volumes grow."""

    secrets: Mapping[str, Object] = field(default_factory=dict)


def plan(
    cluster: Cluster, nodes: Sequence[NodeView], live: Live, relocated: frozenset[str] = frozenset(), *,
    unheard: bool = False,
) -> list[Act]:
    """Return what is to be done, in order; nothing when everything is as it should be.

    `relocated` are the nodes that leave their machine and whose copies have left already.  `unheard`: some copy does
    not acknowledge though its pod is ready.
    """
    staying = [node for node in nodes if not node.removed]
    acts = [
        *applied(cluster, headless_service(cluster), live.services),
        *applied(cluster, client_service(cluster), live.services),
        *_optional(cluster, BUDGETS.kind, disruption_budget(cluster, len(staying), unheard), live.budgets),
        *_optional(cluster, NETWORK_POLICIES.kind, network_policy(cluster), live.policies),
    ]
    if live.monitors is not None:
        acts += _optional(cluster, MONITORS.kind, pod_monitor(cluster), live.monitors)
    for node in nodes:
        if node.removed:
            acts += _removal(cluster, node, live)
        elif cluster.pool(node.pool) is not None:
            acts += _claim(cluster, node, live)
            acts += _pod(cluster, node, live) or _relocation_label(live.pods.get(node.name), node.name in relocated)
    return acts


def ended(cluster: Cluster, nodes: Sequence[NodeView], live: Live) -> list[str]:
    """Return the removed nodes of which nothing is left but what is to be kept."""
    return [
        node.name for node in nodes
        if node.removed and node.name not in live.pods
        and (keeps_claims(cluster) or claim_name(node.name) not in live.claims)]


def keeps_claims(cluster: Cluster) -> bool:
    """Say whether the volumes of nodes that are removed stay."""
    retention = cluster.spec.get("persistentVolumeClaimRetentionPolicy") or {}
    return bool(retention.get("whenScaled", "Delete") == "Retain")


# --- parts --------------------------------------------------------------------------------------------------


def _optional(cluster: Cluster, kind: str, wanted: Object | None, known: Mapping[str, Object]) -> list[Act]:
    """What goes by the name of the nodes, and is taken away where none is wanted."""
    if wanted is not None:
        return applied(cluster, wanted, known)
    live = known.get(nodes_name(cluster.name))
    return [deletion(kind, live, "none is wanted")] if live is not None and owns(cluster, live) else []


def _claim(cluster: Cluster, node: NodeView, live: Live) -> list[Act]:
    known = live.claims.get(claim_name(node.name))
    wanted = node_claim(cluster, node)
    if known is None:
        return [Act("create", wanted)]
    metadata: Object = {"name": claim_name(node.name), "namespace": cluster.namespace}
    changes: Object = {"kind": CLAIMS.kind, "metadata": metadata}
    mark = {Annotation.INCARNATION.value: node.incarnation}
    if node.incarnation and not contains(known["metadata"].get("annotations", {}), mark):
        metadata["annotations"] = mark
    owners = known["metadata"].get("ownerReferences", [])
    if owners != (should := _owners(cluster, owners, wanted)):
        metadata["ownerReferences"] = should
    if grows(wanted, known) and known["spec"].get("storageClassName") in live.growing_classes:
        changes["spec"] = {"resources": {"requests": wanted["spec"]["resources"]["requests"]}}
    if len(metadata) > 2 or "spec" in changes:
        return [Act("merge", changes, known["metadata"]["uid"])]
    return []


def _owners(cluster: Cluster, owners: list[Object], wanted: Object) -> list[Object]:
    """Return whose a claim should be: the cluster's only where it is to go with the cluster, and whoever else's."""
    others = [each for each in owners if each.get("uid") != cluster.uid]
    return [*others, *wanted["metadata"].get("ownerReferences", [])]


def grows(wanted: Object, known: Object) -> bool:
    """Say whether a bound claim asks for less than is wanted of it."""
    bound = known.get("status", {}).get("phase") == "Bound" and "deletionTimestamp" not in known["metadata"]
    return bound and _storage(known["spec"]) < _storage(wanted["spec"])


def is_smaller(wanted: Object, known: Object) -> bool:
    """Say whether the volume of a bound claim is smaller than is wanted."""
    status = known.get("status", {})
    held = status.get("capacity", {}).get("storage")
    return status.get("phase") == "Bound" and held is not None and quantity_bytes(held) < _storage(wanted["spec"])


def waits_for_restart(claim: Object, now: datetime) -> bool:
    """Say whether a volume has grown and its file system has not, for a while: that needs the pod away."""
    for each in claim.get("status", {}).get("conditions", ()):
        since = each.get("lastTransitionTime")
        if each["type"] == "FileSystemResizePending" and each["status"] == "True" and since:
            return now - datetime.fromisoformat(since) > timedelta(seconds=RESIZE_PATIENCE_S)
    return False


def _storage(spec: Object) -> int:
    return quantity_bytes(spec["resources"]["requests"]["storage"])


def _removal(cluster: Cluster, node: NodeView, live: Live) -> list[Act]:
    """The pod first: a claim that is in use does not go."""
    pod, claim = live.pods.get(node.name), live.claims.get(claim_name(node.name))
    if pod is not None:
        if pod["spec"].get("nodeName") in live.gone_machines:
            return [deletion(PODS.kind, pod, "the node was removed", force=True)]
        going = "deletionTimestamp" in pod["metadata"] or not owns(cluster, pod)
        return [] if going else [deletion(PODS.kind, pod, "the node was removed")]
    if claim is None or keeps_claims(cluster) or "deletionTimestamp" in claim["metadata"]:
        return []
    return [deletion(CLAIMS.kind, claim, "the node was removed")]


def _relocation_label(pod: Object | None, relocated: bool) -> list[Act]:
    """Take a pod out of the disruption budget, or put it back."""
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return []
    if (Label.RELOCATED.value in pod["metadata"].get("labels", {})) is relocated:
        return []
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"],
                "labels": {Label.RELOCATED.value: "true" if relocated else None}}
    why = "its copies are elsewhere" if relocated else "it stays"
    return [Act("merge", {"kind": PODS.kind, "metadata": metadata}, pod["metadata"]["uid"], why)]


def _pod(cluster: Cluster, node: NodeView, live: Live) -> list[Act]:
    known = live.pods.get(node.name)
    claim = live.claims.get(claim_name(node.name))
    if known is None:
        if claim is not None and "deletionTimestamp" in claim["metadata"]:
            return []  # its disk goes: not before the next one is there
        if uses_tls(cluster.spec):
            secret = live.secrets.get(secret_name(cluster.name, "node", node.name))
            if secret is None or not owns(cluster, secret):
                return []  # it would wait for its certificate with a kubelet's patience
        return [Act("create", node_pod(cluster, node))]
    machine = known["spec"].get("nodeName")
    if machine in live.gone_machines and owns(cluster, known):
        return [deletion(PODS.kind, known, f"its machine {machine} is gone", force=True)]
    over = known.get("status", {}).get("phase") in ("Failed", "Succeeded")
    if over and owns(cluster, known) and "deletionTimestamp" not in known["metadata"]:
        return [deletion(PODS.kind, known, known["status"].get("reason") or known["status"]["phase"])]
    return []
