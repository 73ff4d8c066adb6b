"""Occurrences: what happened to an object, told from the status that stood there and the one that stands there now.

Pure.  The status before is the API server's own, so a restarted operator tells nothing twice and forgets little, and
where no status changes nothing is told.  Steps that passed between two looks are told too where they can be inferred.
Stays out: writing events (`events`); what no status shows, which whoever does it tells (`ClusterRun.tell`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ..resources.cluster_status import NodeState
from ..resources.conditions import ConditionReason as R
from ..resources.conditions import ConditionType as T
from ..resources.events import EventReason as E
from ..resources.reconfiguration_status import Stage
from ..resources.shard import ShardState

Status = Mapping[str, Any]
Turn = tuple[Status, Status]
"""A condition before, empty where there was none, and after."""

LEADERLESS_S = 30.0
"""How long shards may be without a leader before people are told."""

_LEAVING = (NodeState.DRAINING, NodeState.DRAINED, NodeState.REMOVING)
_AT_WORK = (Stage.MOVING, Stage.SUSPENDED, Stage.ABORTING, Stage.CLEANING_UP, Stage.FINISHED)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One event to be told; `node` names the pod that it is about besides the object."""

    reason: E
    note: str = ""
    node: str = ""
    times: int = 1


def occurrences(kind: str, before: Status, after: Status) -> list[Occurrence]:
    """Return what happened, in order; `before` is empty for an object that had no status."""
    return [*_OF_KIND[kind](before, after), *_unsupported(before, after)]


# --- conditions ---------------------------------------------------------------------------------------------


def _turn(before: Status, after: Status, type_: T) -> Turn:
    def find(status: Status) -> Status:
        return next((each for each in status.get("conditions") or () if each["type"] == type_.value), {})

    return find(before), find(after)


_REFUSED = (R.INVALID_SPEC, R.ADOPTION_MISMATCH, R.IMAGE_NOT_ALLOWED, R.SECRET_NOT_LABELLED)


def _became(turn: Turn, status: str, *differs: str) -> bool:
    """Say whether a condition has this status now and had not, or another one of these fields."""
    old, new = turn
    return new.get("status") == status and any(old.get(field) != new.get(field) for field in ("status", *differs))


def _because(condition: Status) -> str:
    return ": ".join(text for text in (condition.get("reason"), condition.get("message")) if text)


def _refusal(before: Status, after: Status) -> Iterator[Occurrence]:
    turn = _turn(before, after, T.STALLED)
    if _became(turn, "True", "reason", "message") and turn[1]["reason"] in _REFUSED:
        yield Occurrence(E.INVALID_SPEC, turn[1]["message"])


def _unsupported(before: Status, after: Status) -> Iterator[Occurrence]:
    """Tell once that this release does not serve an object."""
    ready = _turn(before, after, T.READY)
    if _became(ready, "False", "reason") and ready[1]["reason"] == R.NOT_SUPPORTED:
        yield Occurrence(E.NOT_SUPPORTED, ready[1]["message"])


# --- clusters -----------------------------------------------------------------------------------------------


def _all_of_cluster(before: Status, after: Status) -> Iterator[Occurrence]:
    yield from _nodes(before, after)
    yield from _cluster(before, after)


def _nodes(before: Status, after: Status) -> Iterator[Occurrence]:
    old = {node["name"]: node for node in before.get("nodes") or ()}
    new = {node["name"]: node for node in after.get("nodes") or ()}
    kept = _copies(new) >= _copies(old)  # where copies went away altogether, nothing was moved off a node
    for name, node in new.items():
        yield from _node(name, old.get(name, {}), node, kept)
    if new:
        for name in old:
            if name not in new:
                yield Occurrence(E.NODE_REMOVED, f"{name} is no node of this cluster any more.", name)


def _node(name: str, old: Status, new: Status, kept: bool) -> Iterator[Occurrence]:
    fresh = not old.get("incarnation") and not old.get("replicas")
    if fresh and new.get("revision") and not old.get("revision"):
        yield Occurrence(E.NODE_PROVISIONED, f"{name} has a pod{_in_zone(new)}.", name)
    if new.get("ready") and not old.get("ready") and fresh:
        yield Occurrence(E.NODE_JOINED, f"{name} answers{_in_zone(new)}.", name)
    leaves = old.get("state") in _LEAVING or new.get("state") == NodeState.REMOVING
    if old.get("ready") and not new.get("ready") and not leaves:
        yield Occurrence(E.NODE_UNREACHABLE, f"{name}: {new.get('message') or 'it does not answer'}", name)
    if old.get("incarnation") and new.get("incarnation") and old["incarnation"] != new["incarnation"]:
        yield Occurrence(E.NODE_DISK_REPLACED, f"{name} came back with disk {new['incarnation']}.", name)
    if new.get("state") == NodeState.LOST and old.get("state") != NodeState.LOST:
        yield Occurrence(E.NODE_LOST, f"{name}: {new.get('message') or 'its machine is gone'}", name)
    if old.get("leaders") and not new.get("leaders") and new.get("state") == NodeState.DRAINING:
        yield Occurrence(E.LEADERSHIPS_HANDED_OVER, f"{name} leads nothing any more: it drains.", name)
    if old.get("replicas") and not new.get("replicas") and kept:
        yield Occurrence(E.NODE_DRAINED, f"{name} holds no copy any more.", name)


def _copies(nodes: Mapping[str, Status]) -> int:
    return sum(node.get("replicas") or 0 for node in nodes.values())


def _in_zone(node: Status) -> str:
    return f" in zone {node['zone']}" if node.get("zone") else ""


def _disks(before: Status, after: Status) -> Iterator[Occurrence]:
    full = _turn(before, after, T.DISK_FULL)
    if _became(full, "True", "reason"):
        yield Occurrence(E.DISK_FULL, _because(full[1]))
    elif full[0].get("status") == "True" and full[1].get("status") != "True":
        yield Occurrence(E.DISK_HAS_SPACE, "No disk is full any more.")


def _cluster(before: Status, after: Status) -> Iterator[Occurrence]:
    apart = _turn(before, after, T.NODES_DISCONNECTED)
    if _became(apart, "True", "message"):
        yield Occurrence(E.NODES_DISCONNECTED, apart[1]["message"])
    elif apart[0].get("status") == "True" and apart[1].get("status") != "True":
        yield Occurrence(E.NODES_RECONNECTED, "Every node hears those that it shares shards with.")
    yield from _disks(before, after)
    store = _turn(before, after, T.METADATA_STORE_REACHABLE)
    if _became(store, "False", "reason") and store[1]["reason"] == R.CLUSTER_ID_MISMATCH:
        yield Occurrence(E.FOREIGN_OPERATOR, store[1]["message"])
    elif _became(store, "False"):
        yield Occurrence(E.METADATA_STORE_UNREACHABLE, _because(store[1]))
    elif _became(store, "True") and store[0].get("status") == "False":
        yield Occurrence(E.METADATA_STORE_RECOVERED, store[1]["message"])
    for type_, reason in ((T.SCALE_DOWN_BLOCKED, E.SCALE_DOWN_BLOCKED), (T.UPGRADE_BLOCKED, E.UPGRADE_BLOCKED)):
        blocked = _turn(before, after, type_)
        if _became(blocked, "True", "reason"):
            yield Occurrence(reason, _because(blocked[1]))
    skew = _turn(before, after, T.CLOCK_SKEW)
    if _became(skew, "True", "message"):
        yield Occurrence(E.CLOCK_SKEW, skew[1]["message"])
    ready = _turn(before, after, T.READY)
    if _became(ready, "False", "reason", "message") and ready[1]["reason"] == R.CLUSTER_ID_MISMATCH:
        yield Occurrence(E.FOREIGN_NODE, ready[1]["message"])
    was, now = (each.get("reason") for each in ready)
    if now == R.ROLLOUT_IN_PROGRESS != was:
        yield Occurrence(E.ROLLOUT_STARTED, _turn(before, after, T.READY)[1]["message"])
    elif was == R.ROLLOUT_IN_PROGRESS and now == R.RECONCILED:
        yield Occurrence(E.ROLLOUT_COMPLETED, "Every node runs as it should.")
    stalled = _turn(before, after, T.STALLED)
    if _became(stalled, "True", "reason") and stalled[1]["reason"] == R.NODE_READY_TIMEOUT:
        yield Occurrence(E.NODE_READY_TIMEOUT, stalled[1]["message"])
    if _became(stalled, "True", "reason", "message") and stalled[1]["reason"] == R.VOLUME_EXPANSION_UNSUPPORTED:
        yield Occurrence(E.VOLUME_RESIZE_FAILED, stalled[1]["message"])
    if was == R.VOLUME_RESIZING and now == R.RECONCILED:
        yield Occurrence(E.VOLUME_RESIZED, "Every volume is as large as its pool asks.")
    certificates = _turn(before, after, T.CERTIFICATES_VALID)
    if _became(certificates, "False", "reason") and certificates[1]["reason"] in (R.EXPIRING_SOON, R.EXPIRED):
        yield Occurrence(E.CERTIFICATE_EXPIRING, _because(certificates[1]))
    ends = [(status.get("certificates") or {}).get("earliestExpirationTime") for status in (before, after)]
    if ends[1] and ends[1] > (ends[0] or ""):
        yield Occurrence(E.CERTIFICATE_ISSUED, f"Every certificate is valid until {ends[1]}.")
    yield from _refusal(before, after)


# --- log groups and keyspaces -------------------------------------------------------------------------------


def _group(before: Status, after: Status) -> Iterator[Occurrence]:
    turn = _turn(before, after, T.AVAILABLE)
    if _became(turn, "True") and turn[0].get("reason") == R.SHARDS_LEADERLESS and (
            _time(turn[1]) - _time(turn[0])).total_seconds() >= LEADERLESS_S:
        yield Occurrence(E.LEADERS_RESTORED, "Every shard has a leader again.")
    yield from _disks(before, after)
    loss = _turn(before, after, T.DATA_LOSS_SUSPECTED)
    if _became(loss, "True", "message"):
        yield Occurrence(E.DATA_LOSS_SUSPECTED, loss[1]["message"])
    differing = _turn(before, after, T.DOCUMENTS_DIVERGED)
    if _became(differing, "True"):
        yield Occurrence(E.DOCUMENTS_DIVERGED, differing[1]["message"])
    yield from _refusal(before, after)


def _keyspace(before: Status, after: Status) -> Iterator[Occurrence]:
    desired = (after.get("partitions") or {}).get("desired")
    old, new = (each.get("ringVersion") or 0 for each in (before, after))
    ready = _turn(before, after, T.READY)
    if ready[1].get("reason") == R.RING_STABLE != ready[0].get("reason"):
        if ready[0].get("reason") == R.RANGES_MOVING:
            yield Occurrence(E.RING_CHANGED, "Ranges have other owners.")
        elif (new and not old) or ready[0].get("reason") == R.CREATING_RING:
            yield Occurrence(E.RANGES_CREATED, f"{desired} ranges")
    available = _turn(before, after, T.AVAILABLE)
    if _became(available, "False", "reason") and available[1]["reason"] == R.PARTITIONS_BELOW_QUORUM:
        yield Occurrence(E.QUORUM_LOST, available[1]["message"])
    yield from _refusal(before, after)


def leaderless_since(status: Status) -> datetime | None:
    """Return since when shards of a log group have no leader, None where all have one."""
    found = _turn({}, status, T.AVAILABLE)[1]
    return _time(found) if found.get("reason") == R.SHARDS_LEADERLESS else None


def _time(condition: Status) -> datetime:
    return datetime.fromisoformat(condition["lastTransitionTime"]).astimezone(UTC)


# --- shards -------------------------------------------------------------------------------------------------


def _shard(before: Status, after: Status) -> Iterator[Occurrence]:
    """A change of members raises the epoch too, but there the leader stays and the record says what changes."""
    if not after.get("leader") or after.get("state") == ShardState.ELECTING:
        return
    another = before.get("leader") != after["leader"]
    again = before.get("epoch") != after.get("epoch") and not (
        "operation" in before or "operation" in after or _members(before) != _members(after))
    if another or again:
        yield Occurrence(
            E.LEADER_ELECTED, f"{after['leader']} leads epoch {after.get('epoch')}.", after["leader"])


def _members(status: Status) -> tuple[Any, list[str]]:
    return status.get("payloadCopies"), [member["node"] for member in status.get("ensemble") or ()]


# --- reconfigurations ---------------------------------------------------------------------------------------


def _reconfiguration(before: Status, after: Status) -> Iterator[Occurrence]:
    was, stage = before.get("stage", ""), after.get("stage", "")
    ended = _turn(before, after, T.SUCCEEDED)
    if stage == Stage.QUEUED != was:
        yield Occurrence(E.QUEUED, ended[1].get("message", ""))
    plan = after.get("plan") or {}
    if plan.get("hash") and plan["hash"] != (before.get("plan") or {}).get("hash"):
        yield Occurrence(E.PLAN_READY, f"{plan.get('moves')} moves, {plan['hash']}")
    approved = _turn(before, after, T.APPROVED)
    if _became(approved, "True"):
        yield Occurrence(E.APPROVED, approved[1]["reason"])
    if stage in _AT_WORK and was not in _AT_WORK and approved[1].get("status") == "True" and plan.get("moves"):
        yield Occurrence(E.STARTED, f"{plan['moves']} moves")
    if stage == Stage.SUSPENDED != was:
        yield Occurrence(E.SUSPENDED, "No other move starts until spec.suspend is false.")
    elif was == Stage.SUSPENDED and stage == Stage.MOVING:
        yield Occurrence(E.RESUMED, "Moves start again.")
    yield from _moves(before, after)
    stalled = _turn(before, after, T.STALLED)
    if _became(stalled, "True", "reason"):
        yield Occurrence(E.STALLED, _because(stalled[1]))
    if _became(ended, "True"):
        yield Occurrence(E.COMPLETED, ended[1]["message"])
    elif _became(ended, "False"):
        yield from _failure(before, after, ended[1])


def _moves(before: Status, after: Status) -> Iterator[Occurrence]:
    done, failed = (_count(after, field) - _count(before, field) for field in ("completed", "failed"))
    if done > 0:  # one note for all of them: an event's note never changes, its count does
        yield Occurrence(E.MOVE_COMPLETED, "Moves are done; status.progress says how many of all.", times=done)
    if failed > 0:
        last: Status = (after.get("failedMoves") or ({},))[-1]
        which = f"{last['name']}/{last['shard']}: " if last else ""
        yield Occurrence(E.MOVE_FAILED, f"{which}{last.get('message', 'a move was given up')}", times=failed)


def _failure(before: Status, after: Status, succeeded: Status) -> Iterator[Occurrence]:
    match succeeded["reason"]:
        case R.REJECTED:
            validated = _turn({}, after, T.VALIDATED)[1]
            yield Occurrence(E.REJECTED, _because(validated) or succeeded["message"])
        case R.CANCELED | R.DEADLINE_EXCEEDED as reason:
            aborted = _count(before, "inProgress") - (_count(after, "completed") - _count(before, "completed"))
            if aborted > 0:
                yield Occurrence(E.MOVE_ABORTED, "Moves that were not committed were taken back.", times=aborted)
            event = E.CANCELED if reason == R.CANCELED else E.DEADLINE_EXCEEDED
            yield Occurrence(event, succeeded["message"])


def _count(status: Status, field: str) -> int:
    return int((status.get("progress") or {}).get(field) or 0)


_OF_KIND: dict[str, Callable[[Status, Status], Iterator[Occurrence]]] = {
    "TidemarkCluster": _all_of_cluster,
    "LogGroup": _group,
    "Keyspace": _keyspace,
    "Shard": _shard,
    "Reconfiguration": _reconfiguration,
}
