"""EventWriter: tells what happened as events.k8s.io/v1, beside the work and without ever holding it up.

The same again within some minutes is a series: one event with a growing count, written at most every few seconds.
Whose objects talk too much is cut short, what waits is bounded, and events that cannot be written are dropped: they
are for people, and nothing depends on them.
Stays out: what happened (`occurrences`, whoever calls `tell`), which events there are (`resources.events`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from ..resources.events import EVENTS as RULES
from ..resources.events import REPORTING_CONTROLLER, EventReason, EventRule
from ..resources.labels import Label
from .api import EVENTS, KubeApi, KubeError, KubeRefused, Object
from .budgets import Budget
from .health import EVENTS_TOLD

log = logging.getLogger(__name__)

SERIES_S = 360.0
"""What happens again so soon after the last time belongs to the same series."""
SERIES_PACE_S = 2.0
SERIES_MAX = 1_000
WRITES_PER_S, WRITES_BURST = 10.0, 50.0
TOLD_PER_S, TOLD_BURST = 0.1, 25.0
"""New events of one object; Shards of one log group share a budget."""
RETRY_S = 5.0
NOTE_MAX = 1_024

Key = tuple[str, ...]


@dataclass(slots=True)
class _Series:
    """One event and how often it happened; `written` is the count that stands in the API server."""

    manifest: Object
    count: int
    last: str
    seen: float
    written: int = 0
    not_before: float = 0.0


class EventWriter:
    """Call `tell` from anywhere; `run` as a task."""

    def __init__(
        self, api: KubeApi, now: Callable[[], float] = time.monotonic, clock: Callable[[], str] | None = None,
    ) -> None:
        self._api = api
        self._now = now
        self._clock = clock or _micro_time
        self._instance = f"{socket.gethostname()[:100]}-{uuid.uuid4().hex[:8]}"
        self._series: OrderedDict[Key, _Series] = OrderedDict()
        self._budgets: OrderedDict[Key, Budget] = OrderedDict()
        self._writes = Budget(WRITES_PER_S, WRITES_BURST, now())
        self._news = asyncio.Event()
        self._told_refusals: set[tuple[int, str]] = set()

    # --- telling --------------------------------------------------------------------------------------------

    def tell(
        self, item: Object, reason: EventReason, note: str = "", *, related: Object | None = None, times: int = 1,
    ) -> None:
        """Tell of an object that something happened, besides of `related`.  What is not on its kind's list raises."""
        rule = _rule(item["kind"], reason)
        key = (item["metadata"]["uid"], reason, note, related["metadata"]["uid"] if related else "")
        now, known = self._now(), self._series.get(key)
        if known is not None and now - known.seen <= SERIES_S:
            known.count += times
            known.last, known.seen = self._clock(), now
            self._series.move_to_end(key)
        elif self._budget(item).take(now):
            at = self._clock()
            self._series[key] = _Series(self._manifest(item, rule, note, related, at), times, at, now)
            self._series.move_to_end(key)
            while len(self._series) > SERIES_MAX:
                _key, oldest = self._series.popitem(last=False)
                if oldest.written < oldest.count:
                    EVENTS_TOLD.labels("dropped").inc()
        else:
            EVENTS_TOLD.labels("dropped").inc()
            return
        self._news.set()

    def _budget(self, item: Object) -> Budget:
        metadata = item["metadata"]
        group = metadata.get("labels", {}).get(Label.LOG_GROUP.value, "") if item["kind"] == "Shard" else ""
        source = (metadata["namespace"], group) if group else (metadata["uid"],)
        budget = self._budgets.pop(source, None) or Budget(TOLD_PER_S, TOLD_BURST, self._now())
        self._budgets[source] = budget
        while len(self._budgets) > SERIES_MAX:
            self._budgets.popitem(last=False)
        return budget

    def _manifest(self, item: Object, rule: EventRule, note: str, related: Object | None, at: str) -> Object:
        metadata = item["metadata"]
        made: Object = {
            "apiVersion": EVENTS.api_version, "kind": EVENTS.kind,
            "metadata": {"name": _name(metadata), "namespace": metadata["namespace"]},
            "eventTime": at, "reportingController": REPORTING_CONTROLLER, "reportingInstance": self._instance,
            "action": str(rule.action), "reason": str(rule.reason), "type": "Warning" if rule.warning else "Normal",
            "regarding": _reference(item), "note": note[:NOTE_MAX],
        }
        if related is not None:
            made["related"] = _reference(related)
        return made

    # --- writing --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while True:
            wait_s = await self._write_due()
            try:
                await asyncio.wait_for(self._news.wait(), wait_s)
            except TimeoutError:
                continue

    async def _write_due(self) -> float | None:
        """Write what is due; return after how many seconds more will be, None when nothing waits."""
        self._news.clear()
        soonest: float | None = None
        for key, series in list(self._series.items()):
            if series.written >= series.count:
                continue
            now = self._now()
            wait_s = series.not_before - now
            if wait_s <= 0 and not self._writes.take(now):
                wait_s = self._writes.wait_s()
            if wait_s > 0:
                soonest = wait_s if soonest is None else min(soonest, wait_s)
                continue
            try:
                await self._write(key, series)
            except KubeRefused as refused:
                self._refused(key, series, refused)
            except KubeError as error:
                log.info("events wait: %s", error)
                return RETRY_S
        return soonest

    async def _write(self, key: Key, series: _Series) -> None:
        count, manifest = series.count, series.manifest
        more = {"series": {"count": count, "lastObservedTime": series.last}} if count > 1 else {}
        metadata = manifest["metadata"]
        if series.written == 0:
            await self._api.create({**manifest, **more})
        else:
            await self._api.merge(EVENTS, metadata["namespace"], metadata["name"], more)
        series.written, series.not_before = count, self._now() + SERIES_PACE_S
        EVENTS_TOLD.labels("written").inc()

    def _refused(self, key: Key, series: _Series, refused: KubeRefused) -> None:
        """One whose answer was lost is there, one that the server has forgotten is made anew; others are dropped."""
        if refused.code == 409 and series.written == 0:
            series.written = 1
            self._news.set()
            return
        if refused.code == 404 and series.written > 0:
            series.written = 0
            series.manifest["metadata"]["name"] = _name(series.manifest["regarding"])
            self._news.set()
            return
        if self._series.get(key) is series:
            del self._series[key]
        EVENTS_TOLD.labels("dropped").inc()
        if refused.code != 404 and (refused.code, refused.reason) not in self._told_refusals:
            self._told_refusals.add((refused.code, refused.reason))
            log.warning("an event is refused, and others like it are dropped: %s", refused)


def _rule(kind: str, reason: EventReason) -> EventRule:
    rule = next((rule for rule in RULES[kind] if rule.reason is reason), None)
    if rule is None:
        raise ValueError(f"{kind}: event {reason} is not on the list")
    return rule


def _name(regarding: Object) -> str:
    return f"{regarding['name'][:200]}.{uuid.uuid4().hex[:16]}"


def _reference(item: Object) -> Object:
    metadata = item["metadata"]
    return {"apiVersion": item["apiVersion"], "kind": item["kind"],
            **{name: metadata[name] for name in ("namespace", "name", "uid")}}


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
