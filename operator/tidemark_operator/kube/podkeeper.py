"""Pod keeper: claims, pods, services and what else should be there, made where they are missing.

`plan` is pure; `carry_out` does it, each act with a precondition, so that a late plan does no harm.  It never waits and
never speaks to nodes or etcd: a lost pod comes back whatever else goes on.
Stays out: which nodes there should be (`run`), restarting pods that work.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..resources.labels import Annotation
from .api import ALL, BUDGETS, CLAIMS, MONITORS, NETWORK_POLICIES, PODS, KubeApi, KubeRefused
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
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Act:
    """One request; `uid` names the object it is meant for, none is known of one that is made."""

    verb: Literal["create", "apply", "annotate", "delete"]
    manifest: Object
    uid: str = ""
    why: str = ""

    @property
    def title(self) -> str:
        return f"{self.manifest['kind']}/{self.manifest['metadata']['name']}"


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


def plan(cluster: Cluster, nodes: Sequence[NodeView], live: Live) -> list[Act]:
    """Return what is to be done, in order; nothing when everything is as it should be."""
    acts = [
        *_applied(cluster, headless_service(cluster), live.services),
        *_applied(cluster, client_service(cluster), live.services),
        *_optional(cluster, BUDGETS.kind, disruption_budget(cluster, len(nodes)), live.budgets),
        *_optional(cluster, NETWORK_POLICIES.kind, network_policy(cluster), live.policies),
    ]
    if live.monitors is not None:
        acts += _optional(cluster, MONITORS.kind, pod_monitor(cluster), live.monitors)
    for node in nodes:
        if cluster.pool(node.pool) is not None:
            acts += _claim(cluster, node, live)
            acts += _pod(cluster, node, live)
    return acts


async def carry_out(api: KubeApi, acts: Iterable[Act]) -> list[Object]:
    """Do it in order; return the objects as they are then.  Raises KubeError where the API server refuses."""
    found = []
    for act in acts:
        manifest = act.manifest
        log.info("%s %s%s", act.verb, act.title, f": {act.why}" if act.why else "")
        try:
            match act.verb:
                case "create":
                    found.append(await api.create(manifest))
                case "apply":
                    found.append(await api.apply(manifest))
                case "annotate":
                    metadata = manifest["metadata"]
                    changes = {"metadata": {"uid": act.uid, "annotations": metadata["annotations"]}}
                    found.append(await api.merge(
                        ALL[manifest["kind"]], metadata["namespace"], metadata["name"], changes))
                case "delete":
                    metadata = manifest["metadata"]
                    await api.delete(ALL[manifest["kind"]], metadata["namespace"], metadata["name"], act.uid)
        except KubeRefused as refused:
            if refused.code not in (404, 409):  # of another name's holder or another uid: a watch shows which
                raise
            log.info("%s is not what it was: %s", act.title, refused.message)
    return found


def contains(live: Any, wanted: Any) -> bool:
    """Say whether what is wanted is all there; what the API server or others added does not matter."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(
            key in live and contains(live[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return isinstance(live, list) and len(live) == len(wanted) and all(
            contains(one, other) for one, other in zip(live, wanted, strict=True))
    return bool(live == wanted)


# --- parts --------------------------------------------------------------------------------------------------


def _applied(cluster: Cluster, wanted: Object, known: Mapping[str, Object]) -> list[Act]:
    live = known.get(wanted["metadata"]["name"])
    if live is None:
        return [Act("apply", wanted)]
    if not _ours(cluster, live) or "deletionTimestamp" in live["metadata"] or contains(live, wanted):
        return []
    return [Act("apply", wanted, why="it differs")]


def _optional(cluster: Cluster, kind: str, wanted: Object | None, known: Mapping[str, Object]) -> list[Act]:
    """What goes by the name of the nodes, and is taken away where none is wanted."""
    if wanted is not None:
        return _applied(cluster, wanted, known)
    live = known.get(nodes_name(cluster.name))
    return [_deletion(kind, live, "none is wanted")] if live is not None and _ours(cluster, live) else []


def _claim(cluster: Cluster, node: NodeView, live: Live) -> list[Act]:
    known = live.claims.get(claim_name(node.name))
    wanted = node_claim(cluster, node)
    if known is None:
        return [Act("create", wanted)]
    mark = {Annotation.INCARNATION.value: node.incarnation}
    if node.incarnation and not contains(known["metadata"].get("annotations", {}), mark):
        metadata = {"name": claim_name(node.name), "namespace": cluster.namespace, "annotations": mark}
        return [Act("annotate", {"kind": CLAIMS.kind, "metadata": metadata}, known["metadata"]["uid"])]
    return []


def _pod(cluster: Cluster, node: NodeView, live: Live) -> list[Act]:
    known = live.pods.get(node.name)
    claim = live.claims.get(claim_name(node.name))
    if known is None:
        if claim is not None and "deletionTimestamp" in claim["metadata"]:
            return []  # its disk goes: not before the next one is there
        return [Act("create", node_pod(cluster, node))]
    over = known.get("status", {}).get("phase") in ("Failed", "Succeeded")
    if over and _ours(cluster, known) and "deletionTimestamp" not in known["metadata"]:
        return [_deletion(PODS.kind, known, known["status"].get("reason") or known["status"]["phase"])]
    return []


def _deletion(kind: str, live: Object, why: str) -> Act:
    metadata = {name: live["metadata"][name] for name in ("name", "namespace")}
    return Act("delete", {"kind": kind, "metadata": metadata}, live["metadata"]["uid"], why)


def _ours(cluster: Cluster, live: Object) -> bool:
    """What an earlier cluster of this name left goes with it, and the name is taken until then."""
    return any(each["uid"] == cluster.uid for each in live["metadata"].get("ownerReferences", ()))
