"""Rolling: restarts nodes one after the other, as `rollout` decides, and knows what to say of it.

A restart takes the cluster's disruption key, has the node's leaderships move away, deletes the pod that was judged (by
uid) and ends when its successor serves.  Every step is found again in the world, so that any operator goes on.
Stays out: making pods (`podkeeper`), who may go next (`rollout`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..disruption import Act
from ..resources.events import EventReason
from ..resources.labels import Annotation
from ..status.kubernetes import RolloutFacts
from . import nodes
from .api import PODS, KubeApi, Object
from .builders import Cluster, owns, revision, template
from .drains import relocating
from .rollout import Decision, PodView, Policy, decide, differs, hands_over, moment, pod_view
from .specs import paused
from .windows import open_at

if TYPE_CHECKING:
    from .run import ClusterRun

log = logging.getLogger(__name__)

WINDOW_S = 60.0
"""How often it is looked whether a maintenance window has opened, while pods wait for one."""
BLOCKED_S = 300.0
"""How long no node may go before people are told."""
LAG_S = 1.0
"""How often nodes are asked whether a copy still catches up, while that is all that is waited for."""


class Rolling:
    """Restarts of one cluster.

    `facts` is what the status shows of them; None before the first look, which tells whether older pods are a rollout
    under way.  `outdated` runs another revision.
    """

    def __init__(self, run: ClusterRun, api: KubeApi, now: Callable[[], float] = time.monotonic) -> None:
        self._run = run
        self._now = now
        self._closed_at: float | None = None
        self._told_closed = False
        self._api = api
        self._deleted: set[str] = set()
        self._misread = ""
        self._for_a_window: list[str] = []
        self.facts: RolloutFacts | None = None
        self.outdated: list[str] = []

    async def look(self) -> float | None:
        """Do what is due; return after how many seconds time alone makes more of it due.

        Raises KubeError, StoreUnavailable.
        """
        cluster, item = self._run.accepted(), self._run.item
        if cluster is None or item is None or not self._run.service.active:
            self.facts, self.outdated, self._closed_at = None, [], None
            return None
        if not self._run.service.knows_its_nodes():
            return None  # it says when it does; until then those that serve pass for down, and might be taken for that
        policy, now = Policy.of(cluster.spec), datetime.now(UTC)
        pods = self._pods(cluster, policy, now)
        held, draining = self._held(now), frozenset(self._run.draining())
        emptied = relocating(cluster.spec, draining)
        if not held and all(pod.ready and not pod.reasons for pod in pods.values()):
            self._run.service.have_yield(draining, emptied)
            self._blocked_for(Decision())
            self._say(pods, Decision(), held, "")
            return WINDOW_S if self._for_a_window else None
        world = self._run.service.world()
        decision = decide(pods, world, held, policy)
        may_go = {pod.node for pod in decision.restart}
        if decision.restart and (lagging := await self._run.service.lagging()):
            world = self._run.service.world()
            strict = decide(pods, world, held, policy, lagging)
            may_go = {pod.node for pod in strict.restart}
            decision = _waiting(decision, strict, {node for node, since in held.items() if since < policy.handover_s})
        for node in decision.ended:
            log.info("the restart of %s is over", node)
            await self._run.service.disruption.end(Act.RESTART, node)
        if paused(item):
            self._run.service.have_yield(draining, emptied)
            self.facts = RolloutFacts()
            return decision.again_s
        chosen, waits = await self._take(decision, policy)
        self._run.service.have_yield(draining | {pod.node for pod in chosen}, emptied)
        for pod in chosen:
            if pod.node in may_go and not hands_over(pod, world, held.get(pod.node, 0.0), policy):
                await self._restart(pod)
        self._say(pods, decision, held, waits)
        left_s = self._blocked_for(decision) if not waits else None
        return min((each for each in (left_s, decision.again_s) if each is not None), default=None)

    def _blocked_for(self, decision: Decision) -> float | None:
        """Tell people of a gate that has been closed for long; return when that is due."""
        if decision.closed is None or decision.restart or self._run.service.disruption.hold is not None:
            self._closed_at, self._told_closed = None, False
            return None
        self._closed_at = self._closed_at if self._closed_at is not None else self._now()
        left_s = self._closed_at + BLOCKED_S - self._now()
        if left_s <= 0 and not self._told_closed:
            self._told_closed = True
            self._run.tell(EventReason.ROLLOUT_BLOCKED, decision.closed[1])
        return left_s if left_s > 0 else None

    def _pods(self, cluster: Cluster, policy: Policy, now: datetime) -> dict[str, PodView]:
        live = {name: pod for name, pod in self._run.pods().items() if owns(cluster, pod)}
        self._deleted &= {pod["metadata"]["uid"] for pod in live.values()}
        self.outdated = []
        self._misread = _misread([self._run.item or {}, *live.values()])
        windows = cluster.spec.get("maintenanceWindows") or ()
        is_open = bool(windows) and bool(open_at(windows, now))
        self._for_a_window = []
        found = {}
        for node in nodes.node_views(self._run.service):
            if node.removed or cluster.pool(node.pool) is None:
                continue
            pod, wanted = live.get(node.name), revision(cluster, node.pool)
            if pod is not None and pod["metadata"].get("annotations", {}).get(Annotation.REVISION.value) != wanted:
                self.outdated.append(node.name)
            made = template(cluster, node.pool)
            if windows and not is_open and policy.automatic and pod is not None and differs(pod["metadata"], made):
                self._for_a_window.append(node.name)
            found[node.name] = pod_view(
                node.name, pod, wanted, cluster.restarted_at, now, self._run.restarts_wanted.get(node.name, ()),
                automatic=policy.automatic, template=made if is_open else "")
        return found

    def _held(self, now: datetime) -> dict[str, float]:
        hold = self._run.service.disruption.hold
        if hold is None or hold.act is not Act.RESTART:
            return {}
        return {
            node: (now - begun).total_seconds() if (begun := moment(since)) is not None else 0.0
            for node, since in hold.subjects.items()}

    async def _take(self, decision: Decision, policy: Policy) -> tuple[list[PodView], str]:
        """Return the pods whose turn it is, and what the others wait for."""
        disruption, chosen = self._run.service.disruption, list[PodView]()
        for pod in decision.restart:
            if not await disruption.take(Act.RESTART, pod.node, policy.max_unavailable):
                return chosen, disruption.in_the_way(Act.RESTART, pod.node, policy.max_unavailable)
            chosen.append(pod)
        return chosen, ""

    async def _restart(self, pod: PodView) -> None:
        if pod.uid in self._deleted:
            return
        reasons = ", ".join(pod.reasons)
        log.info("%s is restarted: %s", pod.node, reasons)
        self._run.tell(EventReason.NODE_RESTARTING, f"{pod.node}: {reasons}", pod=pod.node)
        await self._api.delete(PODS, self._run.namespace, pod.node, pod.uid)
        self._deleted.add(pod.uid)

    # --- what is said ---------------------------------------------------------------------------------------

    def _say(self, pods: dict[str, PodView], decision: Decision, held: dict[str, float], waits: str) -> None:
        self.facts = RolloutFacts(
            pods=len(pods), wanted=tuple(pod.node for pod in pods.values() if pod.reasons),
            under_way=tuple(sorted((set(held) - set(decision.ended)) | {pod.node for pod in decision.restart})),
            overdue=tuple(decision.overdue), outdated=len(self.outdated), for_a_window=len(self._for_a_window),
            waits=waits, closed=decision.closed, misread=self._misread)


def _waiting(decision: Decision, strict: Decision, patient: set[str]) -> Decision:
    """Return what to do while copies catch up: as each leadership that moves has them do for a moment, turns stay."""
    kept = {pod.node for pod in strict.restart} | patient
    restart = tuple(pod for pod in decision.restart if pod.node in kept)
    ended = tuple(node for node in strict.ended if node not in {pod.node for pod in restart})
    return replace(strict, restart=restart, ended=ended, again_s=min(LAG_S, strict.again_s or LAG_S))


def _misread(items: Iterable[Object]) -> str:
    """Return what people asked for in a way that says nothing."""
    name = Annotation.RESTARTED_AT.value
    for item in items:
        metadata = item.get("metadata", {})
        text = metadata.get("annotations", {}).get(name, "")
        if text and moment(text) is None:
            return f"{item['kind']}/{metadata['name']}: metadata.annotations[{name}]: {text[:64]!r} is no time"
    return ""
