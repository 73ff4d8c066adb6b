"""Statuses: written by server-side apply, and only when what is said has changed.

Stays out: what a status says (`status`, `run`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from ..condition_memory import Condition, timestamp
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.labels import READINESS_GATE
from .api import FIELD_MANAGER, KubeApi, KubeRefused, Object
from .cache import Cache
from .health import STATUS_WRITES

log = logging.getLogger(__name__)

STATUS_MANAGER = f"{FIELD_MANAGER}-status"
NO_CLUSTER = "spec.clusterRef names no cluster of this namespace"
WRITES_PER_S, BURST = 50.0, 100.0


class StatusWriter:
    """Writes statuses of one operator, so many in a second; remembers what came of each."""

    def __init__(self, api: KubeApi, now: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._now = now
        self._written: dict[tuple[str, str], tuple[Object, Object]] = {}  # by kind and uid: what was asked, what came
        self._tokens, self._counted_at = BURST, now()

    async def write(self, cache: Cache, item: Object, status: Object) -> bool:
        """Have `status` stand in `item`; False when it does.  Raises KubeError."""
        key = item["kind"], item["metadata"]["uid"]
        shown = item.get("status", {})
        if shown == status or self._written.get(key) == (status, shown):
            return False
        await self._take_turn()
        metadata = item["metadata"]
        body = {
            "apiVersion": item["apiVersion"], "kind": item["kind"], "status": status,
            "metadata": {name: metadata[name] for name in ("name", "namespace", "uid")}}
        try:
            answer = await self._api.apply(body, "status", STATUS_MANAGER)
        except KubeRefused as refused:
            if refused.code not in (404, 409):  # gone, or another one of this name
                raise
            return False
        STATUS_WRITES.labels(item["kind"]).inc()
        cache.learn(answer)
        self._written[key] = status, answer.get("status", {})
        return True

    def forget(self, item: Object) -> None:
        self._written.pop((item["kind"], item["metadata"]["uid"]), None)

    async def write_gate(self, cache: Cache, pod: Object, holds: bool) -> bool:
        """Have the readiness gate of a pod say whether its copies are in sync; False when it does."""
        conditions = pod.get("status", {}).get("conditions", ())
        known = next((each for each in conditions if each["type"] == READINESS_GATE), None)
        if known is not None and known["status"] == str(holds):
            return False
        metadata = {name: pod["metadata"][name] for name in ("name", "namespace", "uid")}
        gate = {"type": READINESS_GATE, "status": str(holds), "lastTransitionTime": timestamp(),
                "reason": "InSync" if holds else "NotInSync"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {"conditions": [gate]}}
        try:
            cache.learn({**await self._api.apply(body, "status", STATUS_MANAGER)})
        except KubeRefused as refused:
            if refused.code not in (404, 409):
                raise
            return False
        STATUS_WRITES.labels("Pod").inc()
        return True

    async def _take_turn(self) -> None:
        now = self._now()
        self._tokens = min(BURST, self._tokens + (now - self._counted_at) * WRITES_PER_S)
        self._counted_at = now
        self._tokens -= 1
        if self._tokens < 0:
            await asyncio.sleep(-self._tokens / WRITES_PER_S)


def instead(kind: str, *, paused: bool, refused: str) -> list[Condition]:
    """Return the conditions that stand in for computed ones while a spec rests or is refused."""
    if kind == "Reconfiguration":
        return []
    made: list[Condition] = []
    if refused:
        reason = R.ADOPTION_MISMATCH if "(AdoptionMismatch)" in refused else R.INVALID_SPEC
        made += [(T.READY, False, R.STALLED, refused), (T.RECONCILING, False, reason, ""),
                 (T.STALLED, True, reason, refused)]
    if paused:
        made = [one for one in made if one[0] is not T.READY]
        made += [(T.READY, False, R.PAUSED, ""), (T.PAUSED, True, R.PAUSED_BY_ANNOTATION, "")]
    return made


def orphan() -> list[Condition]:
    """Return the conditions of what belongs to a cluster that is not there."""
    reason = R.CLUSTER_NOT_FOUND
    return [(T.READY, None, reason, ""), (T.AVAILABLE, None, reason, ""), (T.RECONCILING, False, reason, ""),
            (T.STALLED, True, reason, NO_CLUSTER)]


def rejected(message: str) -> list[Condition]:
    """Return the conditions of a Reconfiguration that was not accepted."""
    return [(T.VALIDATED, False, R.NOT_SUPPORTED, message), (T.SUCCEEDED, False, R.REJECTED, ""),
            (T.RECONCILING, False, R.FINISHED, ""), (T.STALLED, False, R.FINISHED, "")]


def on_kubernetes(status: dict[str, Any], pods: dict[str, Object], namespace: str, cluster: str, target: str,
                  revisions: dict[str, str]) -> dict[str, Any]:
    """Add to a cluster's status what only Kubernetes knows; `revisions` is what the pod of each node should run."""
    nodes = []
    for node in status["nodes"]:
        pod = pods.get(node["name"])
        more = {} if pod is None else {
            "revision": revisions.get(node["name"], ""), "kubernetesNode": pod["spec"].get("nodeName", "")}
        nodes.append({**node, **{name: value for name, value in more.items() if value}})
    return {
        **status, "nodes": nodes, "targetRevision": target,
        "endpoints": {"client": f"{cluster}.{namespace}.svc:6690", "internal": f"{cluster}-nodes.{namespace}.svc"},
    }
