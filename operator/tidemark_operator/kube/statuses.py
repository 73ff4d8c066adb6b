"""Statuses: written by server-side apply, and only when what is said has changed.

Stays out: what a status says (`status`, `showing`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable

from ..condition_memory import timestamp
from ..resources.labels import READINESS_GATE
from .api import FIELD_MANAGER, KubeApi, KubeRefused, Object
from .budgets import Budget
from .cache import Cache
from .health import STATUS_WRITES

log = logging.getLogger(__name__)

STATUS_MANAGER = f"{FIELD_MANAGER}-status"
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
