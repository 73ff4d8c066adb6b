"""The part of a cluster's status that only Kubernetes knows: pods, machines, volumes, the rollout, issued certificates.

Pure.  Stays out: gathering these facts (`kube.showing`), the rest of the status (`cluster`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..condition_memory import Condition, some
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T

Problem = tuple[R, str]
"""Reason and message."""


@dataclass(frozen=True, slots=True)
class RolloutFacts:
    """The restarts of a cluster's nodes.

    `wanted` nodes have a reason to restart, `under_way` ones restart now, `overdue` ones are not ready in time.
    `outdated` counts pods of an older template, `for_a_window` those that wait for a maintenance window.
    `waits` names the act that a restart waits for, `closed` is why no node may restart, `misread` a bad annotation.
    """

    pods: int = 0
    wanted: tuple[str, ...] = ()
    under_way: tuple[str, ...] = ()
    overdue: tuple[str, ...] = ()
    outdated: int = 0
    for_a_window: int = 0
    waits: str = ""
    closed: Problem | None = None
    misread: str = ""


@dataclass(frozen=True, slots=True)
class IssuanceFacts:
    """The certificates of a cluster; `reason` is None before the first one is issued."""

    enabled: bool
    reason: str | None = None
    lack: Problem | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class KubernetesFacts:
    """Facts from the API server; `machines` and `revisions` are by pod, `lost` has the machines of lost nodes.

    `scale_down` is the status, reason and message of condition ScaleDownBlocked; None before the first decision.
    `version_before` and `disks_before`, the incarnations by node, stand in the status that the object has now.
    `unready_pods` are the nodes that stay and whose pods Kubernetes does not call Ready.
    """

    client_endpoint: str
    internal_endpoint: str
    target_revision: str
    revisions: Mapping[str, str]
    machines: Mapping[str, str]
    outdated: int
    version_before: str
    certificates: IssuanceFacts
    rollout: RolloutFacts | None = None
    lost: Mapping[str, str] | None = None
    scale_down: tuple[bool, R, str] | None = None
    scaling: Problem | None = None
    stuck_volumes: tuple[str, ...] = ()
    resizing_volumes: tuple[str, ...] = ()
    disks_before: Mapping[str, str] = field(default_factory=dict)
    unready_pods: tuple[str, ...] = ()


def unfinished(facts: KubernetesFacts) -> Problem | None:
    """Return what is not as the spec asks yet, where all nodes are there."""
    if facts.resizing_volumes and not facts.stuck_volumes:
        return R.VOLUME_RESIZING, some(facts.resizing_volumes)
    if facts.scaling is None and facts.unready_pods:
        return R.NODES_NOT_READY, f"{some(facts.unready_pods)}: the node answers, and its pod is not Ready yet."
    return facts.scaling


def kubernetes_conditions(facts: KubernetesFacts, copies: Mapping[str, int]) -> list[Condition]:
    """Return the conditions that stand in for those of a cluster elsewhere; of two of one type the first counts."""
    made: list[Condition] = []
    if facts.scale_down is not None:
        made.append((T.SCALE_DOWN_BLOCKED, *facts.scale_down))
    lost = [(node, machine) for node, machine in sorted((facts.lost or {}).items()) if copies.get(node)]
    if lost:
        made.append((T.FULLY_REPLICATED, False, R.NODE_LOST, some(
            f"{node} was on {machine}, which is gone" for node, machine in lost)))
    if facts.stuck_volumes:
        why = f"{some(facts.stuck_volumes)}: the storage class does not let volumes grow"
        made += [(T.READY, False, R.STALLED, why), (T.RECONCILING, False, R.VOLUME_EXPANSION_UNSUPPORTED, ""),
                 (T.STALLED, True, R.VOLUME_EXPANSION_UNSUPPORTED, why)]
    if facts.rollout is not None:
        made += rollout_conditions(facts.rollout)
    return [*made, certificates_valid(facts.certificates), (T.UPGRADE_BLOCKED, False, R.NOT_UPGRADING, "")]


def rollout_conditions(facts: RolloutFacts) -> list[Condition]:
    """Return the conditions that a rollout decides."""
    said: list[Condition] = []
    blocked: Condition = (T.UPGRADE_BLOCKED, False, R.NOT_UPGRADING, "")
    if facts.wanted or facts.under_way:
        message = f"{facts.pods - len(facts.wanted)} of {facts.pods} nodes run as they should."
        if facts.under_way and not facts.waits:
            message += f" {some(facts.under_way)}: being restarted."
        said += [(T.READY, False, R.ROLLOUT_IN_PROGRESS, message), (T.RECONCILING, True, R.ROLLOUT_IN_PROGRESS, "")]
        blocked = (T.UPGRADE_BLOCKED, False, R.PROGRESSING, "")
    elif facts.outdated:  # OnDelete
        message = f"{facts.outdated} pods run an older template; each takes the new one when it is deleted."
        blocked = (T.UPGRADE_BLOCKED, False, R.NOT_UPGRADING, message)
    elif facts.for_a_window:
        blocked = (T.UPGRADE_BLOCKED, True, R.OUTSIDE_MAINTENANCE_WINDOW, (
            f"{facts.for_a_window} pods were made by another version of the operator, and wait."))
    if facts.waits:
        blocked = (T.UPGRADE_BLOCKED, True, R.DISRUPTION_UNDER_WAY, f"{facts.wanted[0]} {facts.waits}")
    elif facts.wanted and not facts.under_way and facts.closed is not None:
        reason, message = facts.closed
        reason = R.UNDER_REPLICATED if reason is R.NODE_READY_TIMEOUT else reason
        blocked = (T.UPGRADE_BLOCKED, True, reason, message)
    said.append(blocked)
    if facts.overdue:
        told = f"{some(facts.overdue)}: not ready in update.nodeReadyTimeoutSeconds."
        said = [one for one in said if one[0] is not T.READY]
        said += [(T.READY, False, R.STALLED, told), (T.STALLED, True, R.NODE_READY_TIMEOUT, told)]
    elif facts.misread:
        said.append((T.STALLED, True, R.INVALID_SPEC, facts.misread))
    return said


def certificates_valid(facts: IssuanceFacts) -> Condition:
    """Return the condition of the certificates of a cluster on Kubernetes."""
    if not facts.enabled:
        return T.CERTIFICATES_VALID, True, R.DISABLED, ""
    reason = R(facts.reason) if facts.reason is not None else R.ISSUER_NOT_READY
    if facts.lack is not None and reason is not R.EXPIRED:
        reason = facts.lack[0]
    told = "; ".join(each for each in (facts.trouble, facts.lack[1] if facts.lack is not None else "") if each)
    if facts.reason is None:
        told = told or "Certificates are being issued."
    return T.CERTIFICATES_VALID, reason is R.ISSUED, reason, told


def with_pods(status: dict[str, Any], facts: KubernetesFacts, wanted_version: str) -> dict[str, Any]:
    """Return the status of a cluster with its pods, machines, revisions and endpoints."""
    lost, nodes = facts.lost or {}, []
    for node in status["nodes"]:
        name = node["name"]
        if name in lost:
            node = {**node, "state": "Lost", "message": f"its volume was on {lost[name]}, which is gone"}
        if not node["incarnation"]:  # it does not answer: the disk that it had is known, and a changed one shows
            node = {**node, "incarnation": facts.disks_before.get(name, "")}
        more = {"revision": facts.revisions.get(name), "kubernetesNode": facts.machines.get(name)}
        nodes.append({**node, **{field: value for field, value in more.items() if value}})
    summary = {
        **status["nodeSummary"], "updated": len(facts.revisions) - facts.outdated,
        "lost": sum(node["state"] == "Lost" for node in nodes)}
    return {
        **status, "nodes": nodes, "nodeSummary": summary, "targetRevision": facts.target_revision,
        "version": facts.version_before if facts.outdated and facts.version_before else wanted_version,
        "endpoints": {"client": facts.client_endpoint, "internal": facts.internal_endpoint},
    }
