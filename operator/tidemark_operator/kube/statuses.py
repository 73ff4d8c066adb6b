"""Statuses: written by server-side apply, and only when what is said has changed.

Stays out: what a status says (`status`, `showing`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from ..condition_memory import Condition, timestamp
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.labels import READINESS_GATE
from .api import FIELD_MANAGER, KubeApi, KubeRefused, Object
from .budgets import Budget
from .builders import NODE_PORT, nodes_name
from .cache import Cache
from .health import STATUS_WRITES

log = logging.getLogger(__name__)

STATUS_MANAGER = f"{FIELD_MANAGER}-status"
NO_CLUSTER = "spec.clusterRef names no cluster of this namespace"
WRITES_PER_S, BURST = 50.0, 100.0

Told = Callable[[Object, Object, bool], None]
"""Is called with an object as it was, its status as it is now, and whether that puts right what somebody changed."""


class StatusWriter:
    """Writes statuses of one operator, so many in a second; remembers what came of each."""

    def __init__(
        self, api: KubeApi, now: Callable[[], float] = time.monotonic, told: Told = lambda item, status, repaired: None,
    ) -> None:
        self._api = api
        self._told = told
        self._now = now
        self._written: dict[tuple[str, str], tuple[bytes, bytes]] = {}  # by kind and uid: what was asked, what came
        self._turns = Budget(WRITES_PER_S, BURST, now())

    async def write(self, cache: Cache, item: Object, status: Object, *, urgent: bool = False) -> bool:
        """Have `status` stand in `item`, at once where it is urgent; False when it does.  Raises KubeError."""
        key = item["kind"], item["metadata"]["uid"]
        shown = item.get("status", {})
        if shown == status:
            return False
        asked, known = _digest(status), self._written.get(key)
        if known == (asked, _digest(shown)):
            return False
        if not urgent:
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
        self._written[key] = asked, _digest(answer.get("status", {}))
        self._told(item, answer.get("status", {}), known is not None and known[0] == asked)
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
            cache.learn(await self._api.apply(body, "status", STATUS_MANAGER))
        except KubeRefused as refused:
            if refused.code not in (404, 409):
                raise
            return False
        STATUS_WRITES.labels("Pod").inc()
        return True

    async def _take_turn(self) -> None:
        wait_s = self._turns.borrow(self._now())
        if wait_s > 0:
            await asyncio.sleep(wait_s)


def _digest(status: Object) -> bytes:
    """Stands for a status: thousands are remembered."""
    return hashlib.blake2b(json.dumps(status, sort_keys=True).encode(), digest_size=16).digest()


def instead(kind: str, *, paused: bool, refused: str) -> list[Condition]:
    """Return the conditions that stand in for computed ones while a spec rests or is refused."""
    if kind == "Reconfiguration":
        return rejected(R.INVALID_SPEC, refused) if refused else []
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


def rejected(reason: R, message: str) -> list[Condition]:
    """Return the conditions of a Reconfiguration that was not accepted."""
    return [(T.VALIDATED, False, reason, message), (T.SUCCEEDED, False, R.REJECTED, ""),
            (T.RECONCILING, False, R.FINISHED, ""), (T.STALLED, True, reason, message)]


def with_refusal(status: Object, shown: Object, refused: str) -> Object:
    """Add to the status of an act under way that its object asks for something else now, which is refused.

    `shown` is the status that stands there: it knows since when.
    """
    if status.get("stage") == "Finished":
        return status
    stalled = {"type": str(T.STALLED), "status": "True", "reason": str(R.INVALID_SPEC), "message": refused}
    conditions = []
    for each in status["conditions"]:
        if each["type"] == stalled["type"]:
            before: Object = next((one for one in shown.get("conditions", ()) if one["type"] == stalled["type"]), {})
            since = before["lastTransitionTime"] if before.get("status") == "True" else timestamp()
            conditions.append({**each, **stalled, "lastTransitionTime": since})
        else:
            conditions.append(each)
    return {**status, "conditions": conditions}


def on_kubernetes(status: dict[str, Any], pods: dict[str, Object], namespace: str, cluster: str, target: str,
                  revisions: dict[str, str], lost: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Add to a cluster's status what only Kubernetes knows; `revisions` is what the pod of each node runs.

    `lost` has the machines of nodes whose disk is gone for good.
    """
    nodes = []
    for node in status["nodes"]:
        if node["name"] in lost:
            node = {**node, "state": "Lost", "message": f"its volume was on {lost[node['name']]}, which is gone"}
        pod = pods.get(node["name"])
        more = {} if pod is None else {
            "revision": revisions.get(node["name"], ""), "kubernetesNode": pod["spec"].get("nodeName", "")}
        nodes.append({**node, **{name: value for name, value in more.items() if value}})
    return {
        **status, "nodes": nodes, "targetRevision": target,
        "nodeSummary": {**status["nodeSummary"], "lost": sum(node["state"] == "Lost" for node in nodes)},
        "endpoints": {
            "client": f"{cluster}.{namespace}.svc:{NODE_PORT}", "internal": f"{nodes_name(cluster)}.{namespace}.svc"},
    }
