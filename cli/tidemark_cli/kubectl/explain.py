"""Why a shard, a Reconfiguration or a cluster does not get on: findings, each with what to do about it.

Pure: from objects as they are shown.  Stays out: reading and showing them; what a copy holds (its node says).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidemark_operator.resources.labels import Annotation

from ..reconfigurations import BLOCK_OF_TYPE, condition_of, plan_hash, progress_text, stage, status_of
from .pods import Trouble, node_trouble
from .state import State, holds, members, name_of, said, shard_title, some

Object = dict[str, Any]
SHARDS_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """One sentence; `shard` and `node` are those that block, `blocks` is False for what only waits its turn."""

    what: str
    todo: str = ""
    shard: str = ""
    node: str = ""
    blocks: bool = True


# --- a cluster ----------------------------------------------------------------------------------------------

APART = "Look for what lies between the two machines; condition NodesDisconnected names pairs of nodes."


def explain_cluster(state: State) -> list[Finding]:
    """Return everything that keeps a cluster from being as it is asked to be."""
    found = [*_operator(state), *_nodes(state), *_disks(state), *_shards(state)]
    unfinished = state.unfinished()
    for item in (*unfinished[:1], *(each for each in unfinished[1:] if stage(each) == "AwaitingApproval")):
        found += explain_reconfiguration(state, item)
    found += _conditions(state.cluster, ("Stalled", "ScaleDownBlocked", "UpgradeBlocked", "NodesDisconnected"))
    for group in state.groups:
        found += _conditions(group, ("Stalled",))
        if not holds(group, "Ready") and not holds(group, "Stalled") and status_of(group):
            ready = condition_of(group, "Ready")
            found.append(Finding(f"LogGroup {name_of(group)} is not ready: {said(ready)}", blocks=False))
    return _distinct(found)


def _operator(state: State) -> list[Finding]:
    """Return what keeps the operator from working."""
    cluster = state.cluster
    if not status_of(cluster).get("conditions"):
        return [Finding(f"no operator has looked at cluster {state.name} yet",
                        "Does it run, and does it watch this namespace? See its Deployment and its log.")]
    found = []
    store = condition_of(cluster, "MetadataStoreReachable")
    if store.get("status") == "False":
        found.append(Finding(f"the operator does not reach etcd, elections and changes wait: {said(store)}",
                             "Put etcd right: spec.metadataStore says where it is."))
    if cluster["metadata"].get("annotations", {}).get(Annotation.PAUSE.value) == "true":
        found.append(Finding(f"cluster {state.name} is paused: changed specs are not taken up",
                             f"kubectl tidemark unpause --cluster {state.name}"))
    return found


def _nodes(state: State) -> list[Finding]:
    return [
        Finding(trouble.what, trouble.todo, node=node)
        for node in state.nodes if (trouble := node_trouble(state, node)) is not None]


def _disks(state: State) -> list[Finding]:
    """Return that disks of nodes are full, and whether shards refuse appends for it."""
    full = condition_of(state.cluster, "DiskFull")
    if full.get("status") != "True":
        return []
    return [Finding(f"disks are full: {said(full)}", "Shorten retention, let volumes grow (storage.data.size), or move "
                    "copies away: docs/runbooks.md#tidemarkdiskfull", blocks=full.get("reason") == "AppendsRefused")]


def _shards(state: State) -> list[Finding]:
    """Return what is wrong with the shards of a cluster, in a few lines however many there are."""
    alone = [each for shard in state.shards for each in _shard_alone(state, shard)]
    found = [each for each in alone if not each.node]
    rest = len({each.shard for each in found[SHARDS_SHOWN_MAX:]})
    found = found[:SHARDS_SHOWN_MAX]
    if rest:
        found.append(Finding(f"{rest} more shards have the same trouble", "kubectl tidemark shards --leaderless"))
    for node in dict.fromkeys(each.node for each in alone if each.node):
        there = [each for each in alone if each.node == node]
        if len(there) == 1:
            found += there
            continue
        titles = some([each.shard for each in there], SHARDS_SHOWN_MAX)
        found.append(Finding(f"{len(there)} shards lack their copy on {node}: {titles}", there[0].todo,
                             shard=there[0].shard, node=node))
    return found


def _conditions(item: Object, kinds: Iterable[str]) -> list[Finding]:
    """Return conditions that say of themselves that something does not get on."""
    return [
        Finding(f"{item['kind']} {name_of(item)}: {kind}: {said(condition_of(item, kind))}")
        for kind in kinds if holds(item, kind)]


# --- a shard ------------------------------------------------------------------------------------------------


def explain_shard(state: State, group: str, index: int) -> list[Finding]:
    """Return why a shard does not move, what blocks first; one finding that says so when nothing does."""
    shard = state.shard(group, index)
    found = [*_operator(state), *_shard_alone(state, shard), *_operation(state, shard)]
    healthy = not found
    wanting = [item for item in state.unfinished() if concerns(item, shard)]
    for item in wanting:
        found += explain_reconfiguration(state, item, shard)
    if not wanting:
        found += _unwanted(state, shard)
        if healthy and not any(each.blocks for each in found):
            found.insert(0, _healthy(shard))
    return _distinct(found) or [Finding(f"nothing blocks {shard_title(shard)}", blocks=False)]


def _healthy(shard: Object) -> Finding:
    """Return how a shard is that lacks nothing."""
    copies, leader = len(members(shard)), status_of(shard).get("leader", "")
    return Finding(f"{shard_title(shard)} is healthy: {leader} leads, {copies} of {copies} copies are in sync",
                   blocks=False)


def _shard_alone(state: State, shard: Object) -> list[Finding]:
    """Return what is wrong with a shard and its members, whoever wants something of it."""
    title, status = shard_title(shard), status_of(shard)
    if not status:
        return [Finding(f"the operator has said nothing of {title} yet", shard=title)]
    voters = [each for each in members(shard) if each.get("role") != "Joining"]
    away = [each["node"] for each in voters if each.get("sync") != "InSync"]
    unheard = {each["node"] for each in voters if each.get("sync") == "Unheard"}
    lost = [each["node"] for each in voters if each.get("sync") == "DiskLost"]
    found = []
    if status.get("state") in ("Electing", "Leaderless"):
        found.append(_leaderless(shard, voters, away, lost))
    for node in away:
        if node in lost:
            what = f"{title} lost its copy on {node}, which has another disk now"
            found.append(Finding(what, shard=title, node=node))
            continue
        trouble = node_trouble(state, node)
        if trouble is None and node in unheard:
            trouble = Trouble(f"its leader {status.get('leader', '')} gets no answer of it", APART)
        what = trouble.what if trouble else f"{node} came back and its copy is not counted yet"
        todo = trouble.todo if trouble else "It is filled from the other members; look again."
        found.append(Finding(f"{title} lacks its copy on {node}: {what}", todo, shard=title, node=node))
    quorum = condition_of(shard, "QuorumReachable")
    if quorum.get("status") == "False":
        found.append(Finding(f"records of {title} are not confirmed: {said(quorum)}", shard=title))
    return found


def _leaderless(shard: Object, voters: Sequence[Object], away: Sequence[str], lost: Sequence[str]) -> Finding:
    """Return why a shard has no leader, and what to do about it."""
    title, majority = shard_title(shard), len(voters) // 2 + 1
    if len(voters) - len(away) >= majority:
        return Finding(f"{title} has no leader: an election is under way", "It takes seconds; look again.", shard=title)
    what = f"it takes {majority} of {len(voters)} members, and only {len(voters) - len(away)} are there"
    down = [node for node in away if node not in lost]
    if len(voters) - len(lost) >= majority or down:
        return Finding(f"{title} has no leader: {what}", f"Bring back {some(down)}.", shard=title)
    left = [each["node"] for each in voters if each["node"] not in lost]
    if not left:
        return Finding(
            f"{title} has no leader: all its disks are lost", "Restore a backup into a new group.", shard=title)
    spec = shard["spec"]
    act = f"tidemark recover-shard {spec['logGroupRef']['name']} {spec['shardID']} --from {left[0]} --accept-loss"
    return Finding(
        f"{title} has no leader: {some(lost)} lost the disks, and acknowledged records that only those held are gone",
        f"`{act}` goes on with what is left; docs/runbooks.md comes first.", shard=title)


def _operation(state: State, shard: Object) -> list[Finding]:
    """Return how the change of members goes that is under way."""
    operation = status_of(shard).get("operation")
    if not operation:
        return []
    title, old, new = shard_title(shard), operation.get("oldNode", ""), operation.get("newNode", "")
    way = " -> ".join(node for node in (old, new) if node)
    can = "it can be given up still" if operation.get("phase") == "Prepare" else "it only goes forward"
    trouble = node_trouble(state, new) if new else None
    if trouble is not None:
        return [Finding(f"the {operation['type']} of {title} ({way}) cannot fill {new}: {trouble.what}", trouble.todo,
                        shard=title, node=new)]
    return [Finding(f"a {operation['type']} of {title} ({way}) is under way, in {operation.get('phase')}: {can}",
                    shard=title, blocks=False)]


def _unwanted(state: State, shard: Object) -> list[Finding]:
    """Return what no Reconfiguration does about a shard and one should, or one tried."""
    title, group = shard_title(shard), state.group(shard["spec"]["logGroupRef"]["name"])
    declared = (group["spec"].get("replication") or {}).get("factor", 3)
    copies = len([each for each in members(shard) if each.get("role") != "Joining"])
    if copies and copies != declared:
        step = "expand" if copies < declared else "contract"
        return [Finding(f"{title} has {copies} copies, LogGroup {name_of(group)} declares {declared}, and no "
                        "Reconfiguration changes that", f"kubectl tidemark {step} {name_of(group)}", shard=title)]
    failed = [
        item for item in state.reconfigurations
        if stage(item) == "Finished" and not holds(item, "Succeeded") and concerns(item, shard)]
    if failed:
        last = max(failed, key=lambda item: status_of(item).get("completionTime", ""))
        why = said(condition_of(last, "Succeeded")) or said(condition_of(last, "Validated"))
        return [Finding(f"no Reconfiguration moves {title}; the last one, {name_of(last)}, failed: {why}",
                        f"kubectl tidemark plan {name_of(last)}", shard=title, blocks=False)]
    return []


# --- a reconfiguration --------------------------------------------------------------------------------------


def concerns(item: Object, shard: Object) -> bool:
    """Say whether a Reconfiguration may be about a shard; which moves its plan has in the end the operator knows."""
    spec, status = item["spec"], status_of(shard)
    body = spec.get(BLOCK_OF_TYPE[spec["type"]]) or {}
    scope = spec.get("scope") or {}
    group, index = shard["spec"]["logGroupRef"]["name"], shard["spec"]["shardID"]
    if any(move.get("name") == group and move.get("shard") == index for move in _shown_moves(item)):
        return True
    if scope.get("logGroups") and group not in scope["logGroups"]:
        return False
    if scope.get("shardIDs") and index not in scope["shardIDs"]:
        return False
    nodes = [each["node"] for each in members(shard)]
    match spec["type"]:
        case "NodeSwap":
            return bool(body["from"] in nodes)
        case "Expand" | "Contract":
            return bool(body.get("logGroup") == group and len(nodes) != body["factor"])
        case "Recover":
            return bool(body["from"] in nodes)
        case "LeaderTransfer":
            leads = body.get("from") in (None, "", status.get("leader"))
            return bool(leads) and (not body.get("to") or (body["to"] in nodes and body["to"] != status.get("leader")))
    return True


def explain_reconfiguration(state: State, item: Object, shard: Object | None = None) -> list[Finding]:
    """Return why a Reconfiguration, or its move of one shard, does not get on."""
    name, at = name_of(item), stage(item)
    stalled = condition_of(item, "Stalled")
    match at:
        case "Queued":
            return _queued(state, item)
        case "Planning":
            return [Finding(f"{name} is being planned", "It takes seconds; is the operator running?", blocks=False)]
        case "AwaitingApproval" if condition_of(item, "Validated").get("status") == "False":
            why = said(condition_of(item, "Validated"))
            return [Finding(f"{name} waits: its plan cannot be carried out now: {why}",
                            "It is planned anew by itself; bring back what is missing, or cancel it.")]
        case "AwaitingApproval":
            changed = condition_of(item, "Approved").get("reason") == "PlanChanged"
            why = "its plan is another one than the one that was approved" if changed else "its plan wants approval"
            return [Finding(f"{name} waits: {why} ({plan_hash(item)})", f"kubectl tidemark approve {name}")]
        case "Suspended":
            return [Finding(f"{name} is suspended", f"kubectl tidemark resume {name}")]
        case "Aborting":
            return [Finding(f"{name} is being given up; what is committed is waited for", blocks=False)]
    if stalled.get("status") == "True":
        return _stalled(state, item, stalled)
    if shard is not None:
        return _move_of(item, shard)
    return [Finding(f"{name} runs: {progress_text(item)}", blocks=False)]


def _queued(state: State, item: Object) -> list[Finding]:
    front = state.unfinished()[0]
    if name_of(front) == name_of(item):
        return [Finding(f"{name_of(item)} waits for the operator to take it up", "Is the operator running?",
                        blocks=False)]
    waits = Finding(f"{name_of(item)} waits for {name_of(front)}: one Reconfiguration runs at a time",
                    f"kubectl tidemark watch {name_of(front)}", blocks=False)
    return [waits, *explain_reconfiguration(state, front)]


def _stalled(state: State, item: Object, stalled: dict[str, Any]) -> list[Finding]:
    """Return who and what a Reconfiguration waits for: shards that lack copies, and the nodes they lack them on."""
    name = name_of(item)
    blocking = []
    if stalled.get("reason") == "UnderReplicated":
        source = (item["spec"].get("nodeSwap") or {}).get("from", "")
        for other in state.shards:
            if concerns(item, other):
                blocking += [each for each in _shard_alone(state, other) if each.node and each.node != source]
    named = _message_shards(state, stalled.get("message", ""))
    if not blocking:
        blocking = [each for other in named for each in _shard_alone(state, other)]
    if not blocking:
        blocking = [each for each in _nodes(state) if each.node in stalled.get("message", "")]
    todo = "" if blocking else f"kubectl tidemark watch {name}"
    shards = list(dict.fromkeys(each.shard for each in blocking if each.shard))
    nodes = list(dict.fromkeys(each.node for each in blocking if each.node))
    who = ""
    if shards and nodes:
        who = f"; blocked by {some(shards, SHARDS_SHOWN_MAX)} on {some(nodes, SHARDS_SHOWN_MAX)}"
    return [Finding(f"{name} is stalled: {said(stalled)}{who}", todo, shard=shards[0] if shards else "",
                    node=nodes[0] if nodes else ""), *blocking[:SHARDS_SHOWN_MAX]]


def _message_shards(state: State, message: str) -> list[Object]:
    words = {word.strip(".,:;()") for word in message.split()}
    return [shard for shard in state.shards if name_of(shard) in words]


def _move_of(item: Object, shard: Object) -> list[Finding]:
    """Return where the move of a shard stands in a Reconfiguration that gets on."""
    name, title = name_of(item), shard_title(shard)
    group, index = shard["spec"]["logGroupRef"]["name"], shard["spec"]["shardID"]
    for failed, moves in ((True, "failedMoves"), (False, "activeMoves")):
        for move in status_of(item).get(moves) or ():
            if (move.get("name"), move.get("shard")) != (group, index):
                continue
            way = " -> ".join(str(move[end]) for end in ("from", "to") if move.get(end))
            message = f": {move['message']}" if move.get("message") else ""
            if failed:
                return [Finding(f"{name} gave {title} ({way}) up after {move.get('attempt', 0)} attempts{message}",
                                "When the cause is gone, create the same Reconfiguration anew.", shard=title)]
            return [Finding(f"{name} moves {title} ({way}): {move['step']}, attempt {move.get('attempt', 1)}, since "
                            f"{move.get('startTime', '?')}{message}", shard=title, blocks=False)]
    active = [f"{move['name']}/{move['shard']}" for move in status_of(item).get("activeMoves") or ()]
    behind = f" behind {some(active, SHARDS_SHOWN_MAX)}" if active else ""
    return [Finding(f"{title} waits its turn in {name}{behind}: {progress_text(item)}",
                    f"For more at a time: kubectl tidemark throttle {name} --max-concurrent N", shard=title,
                    blocks=False)]


def _shown_moves(item: Object) -> list[dict[str, Any]]:
    status = status_of(item)
    return [*(status.get("activeMoves") or ()), *(status.get("failedMoves") or ())]


def _distinct(findings: Iterable[Finding]) -> list[Finding]:
    """Leave repetitions out; what blocks comes first."""
    found = list(dict.fromkeys(findings))
    return sorted(found, key=lambda each: not each.blocks)
