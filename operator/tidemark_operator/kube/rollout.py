"""Rollout: which node is restarted next, if any may be.

Pure.  A pod that is not ready goes first, for waiting for it might be waiting for ever; then whoever leads least.  A
pod that serves goes only while no other node is missing, every copy of its shards is there, and its shards and ranges
keep their quorums without it.  Shards that can never spare a member (one copy, or a synchro quorum of all) cannot keep
theirs: they are away while their node is, or nothing with such a shard could ever be updated.
Stays out: doing it (`rolling`), what a pod should look like (`builders`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..condition_memory import some
from ..keyspaces import is_up, number_of
from ..model import node_number, out_of_sync
from ..plan import World
from ..resources.conditions import ConditionReason as R
from ..resources.events import RestartReason
from ..resources.labels import Annotation

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Policy:
    """`spec.update` of a cluster."""

    max_unavailable: int = 1
    min_ready_s: float = 10
    handover_s: float = 30
    ready_timeout_s: float = 900
    automatic: bool = True

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> Policy:
        update: Mapping[str, Any] = spec.get("update") or {}
        return cls(
            update.get("maxUnavailable", 1), update.get("minReadySeconds", 10),
            update.get("leaderHandoverTimeoutSeconds", 30), update.get("nodeReadyTimeoutSeconds", 900),
            update.get("strategy", "RollingUpdate") == "RollingUpdate")


@dataclass(frozen=True, slots=True)
class PodView:
    """The pod of a node that should exist, without a uid where there is none.

    `reasons` are why it should be restarted; `steady_s` is for how long it has been ready or, while it is not, has not.
    """

    node: str
    uid: str = ""
    ready: bool = False
    going: bool = False
    steady_s: float = 0.0
    reasons: tuple[RestartReason, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """`restart` may go now, `ended` are restarts that are over, `overdue` did not become ready in time.

    `closed` says why no other may go; `again_s` is when time alone changes the answer.
    """

    restart: tuple[PodView, ...] = ()
    ended: tuple[str, ...] = ()
    overdue: tuple[str, ...] = ()
    closed: tuple[R, str] | None = None
    again_s: float | None = None


def decide(
    pods: Mapping[str, PodView], world: World, held: Mapping[str, float], policy: Policy,
    lagging: Collection[str] = (),
) -> Decision:
    """`held` are the nodes whose restart is under way, each with for how many seconds.

    `lagging` are nodes whose copies still catch up; nobody need know before somebody may go.
    """
    limit_s = policy.handover_s + policy.ready_timeout_s
    ended, busy, deadlines = [], set(), []
    for node, since_s in held.items():
        pod = pods.get(node)
        if pod is None or (not pod.reasons and (_serves(pod, world, policy) or since_s > limit_s)):
            ended.append(node)
        elif not pod.reasons or pod.going:
            busy.add(node)
            deadlines += [limit_s - since_s]
    overdue = sorted(
        pod.node for pod in pods.values()
        if not pod.ready and not pod.reasons and pod.uid and pod.steady_s > policy.ready_timeout_s)
    missing = {pod.node for pod in pods.values() if not _serves(pod, world, policy)} | set(lagging)
    chosen: list[PodView] = []
    closed: tuple[R, str] | None = None
    for pod in _in_order(pods.values(), world, held):
        why = None
        if pod.ready and overdue:
            why = R.NODE_READY_TIMEOUT, f"{some(overdue)} did not become ready in time"
        why = why or _gate(pod, world, missing | {each.node for each in chosen}, policy)
        if why is None:
            chosen.append(pod)
        elif closed is None:
            closed = why
    going = {pod.node for pod in chosen}
    ended += [node for node in held if node not in ended and node not in busy and node not in going]
    deadlines += [policy.min_ready_s - pod.steady_s for pod in pods.values() if pod.ready]
    deadlines += [policy.ready_timeout_s - pod.steady_s for pod in pods.values() if not pod.ready]
    deadlines += [policy.handover_s - held.get(pod.node, 0) for pod in chosen]
    again_s = min((left for left in deadlines if left > 0), default=None)
    return Decision(tuple(chosen), tuple(ended), tuple(overdue), closed, again_s)


def hands_over(pod: PodView, world: World, since_s: float, policy: Policy) -> bool:
    """Say whether to wait until others lead what a pod leads; those that nobody else can lead go down with it."""
    node = world.nodes.get(pod.node)
    if node is None or not node.up or since_s >= policy.handover_s:
        return False
    return any(
        shard.leader == pod.node and any(
            (other := world.nodes.get(name)) is not None and other.up and name != pod.node
            for name in shard.ensemble)
        for shard in world.shards.values())


def _in_order(pods: Iterable[PodView], world: World, held: Mapping[str, float]) -> list[PodView]:
    leaders = world.leaders()
    return sorted(
        (pod for pod in pods if pod.reasons and pod.uid and not pod.going),
        key=lambda pod: (pod.ready, pod.node not in held, leaders[pod.node], node_number(pod.node), pod.node))


def _serves(pod: PodView, world: World, policy: Policy) -> bool:
    node = world.nodes.get(pod.node)
    return pod.ready and not pod.going and pod.steady_s >= policy.min_ready_s and node is not None and node.up


def _gate(pod: PodView, world: World, missing: set[str], policy: Policy) -> tuple[R, str] | None:
    """Return why a pod must not go now; None: it may, and so may any with which nothing is lost."""
    others = missing - {pod.node}
    if pod.ready and len(others) >= policy.max_unavailable:
        return R.UNDER_REPLICATED, f"{some(sorted(others))} must be back first"
    for shard in world.shards.values():
        if pod.node not in shard.ensemble:
            continue
        away = {*out_of_sync(shard, world.nodes), *(others & set(shard.ensemble))}
        count = len(shard.ensemble)
        quorum = max(world.groups[shard.group].quorum(count), count // 2 + 1)
        left = count - len(away | {pod.node})
        if away - {pod.node} and pod.ready:
            return R.UNDER_REPLICATED, f"{shard.name} waits for {some(sorted(away - {pod.node}))}"
        if shard.leader is None and pod.ready:
            return R.UNDER_REPLICATED, f"{shard.name} has no leader"
        if pod.node not in away and left < quorum and count - 1 >= quorum:
            return R.UNDER_REPLICATED, f"{shard.name} needs {quorum} members, {left} would be left"
    return _range_gate(pod, world, others)


def _range_gate(pod: PodView, world: World, others: set[str]) -> tuple[R, str] | None:
    """Return why ranges of keyspaces hold a pod back: a range would lose its quorums that can spare an owner."""
    for unit, record in world.ranges.items():
        for owners in filter(None, (record.own, record.pending)):
            if pod.node not in {member.node for member in owners.members}:
                continue
            away = {
                member.node for member in owners.members
                if not is_up(member, world.nodes) or member.node in others}
            quorum = max(owners.quorum.r, owners.quorum.w)
            left = len(owners.members) - len(away | {pod.node})
            if pod.node not in away and left < quorum < len(owners.members):
                return R.UNDER_REPLICATED, (
                    f"range {unit & 0xFFFFFFFF} of keyspace {number_of(unit)} needs {quorum} owners, "
                    f"{left} would be left")
    return None


# --- reading pods -------------------------------------------------------------------------------------------


def pod_view(
    node: str, pod: Object | None, revision: str, restarted_at: str, now: datetime,
    more: tuple[RestartReason, ...] = (), *, automatic: bool = True, template: str = "",
) -> PodView:
    """Say of a pod what matters here; `restarted_at` is the annotation of the cluster, checked (`moment`).

    With `template`, a pod that another operator made otherwise out of the same spec is to be restarted too.
    """
    if pod is None:
        return PodView(node)
    metadata, conditions = pod["metadata"], pod.get("status", {}).get("conditions", ())
    ready: dict[str, Any] = next((each for each in conditions if each["type"] == "Ready"), {})
    created = datetime.fromisoformat(metadata["creationTimestamp"])
    since = max(created, datetime.fromisoformat(ready.get("lastTransitionTime") or metadata["creationTimestamp"]))
    reasons = (*_reasons(metadata, created, revision if automatic else None, restarted_at, now), *more)
    if template and automatic and not reasons and differs(metadata, template):
        reasons = (RestartReason.OPERATOR_CHANGED,)
    return PodView(
        node, metadata["uid"], ready.get("status") == "True", "deletionTimestamp" in metadata,
        max(0.0, (now - since).total_seconds()), reasons)


def differs(metadata: Mapping[str, Any], template: str) -> bool:
    """Say whether a pod was made otherwise than this operator would make it."""
    return bool((metadata.get("annotations") or {}).get(Annotation.TEMPLATE.value) != template)


def _reasons(
    metadata: Mapping[str, Any], created: datetime, revision: str | None, restarted_at: str, now: datetime
) -> list[RestartReason]:
    annotations: Mapping[str, str] = metadata.get("annotations") or {}
    found = []
    if revision is not None and annotations.get(Annotation.REVISION.value) != revision:
        found.append(RestartReason.REVISION_CHANGED)
    # A pod made for a restart is never restarted for it again, whatever the clocks of this and that machine say.
    asked = [annotations.get(Annotation.RESTARTED_AT.value, "")]
    if annotations.get(Annotation.RESTARTED_FOR.value) != restarted_at:
        asked.append(restarted_at)
    if any((at := moment(text)) is not None and created < at <= now for text in asked):
        found.append(RestartReason.MANUAL_RESTART)
    return found


def moment(text: str) -> datetime | None:
    """Return the time that an annotation names; None where it names none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
