"""Why it does not move: from objects to the shard and the node that block, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_objects import NODES, cluster, condition, group, node, pod, shard, swap
from tidemark_cli.failures import CommandFailed
from tidemark_cli.kubectl.explain import Finding, explain_cluster, explain_shard
from tidemark_cli.kubectl.planning import find_plan, plan_of
from tidemark_cli.kubectl.pods import node_trouble, pod_text
from tidemark_cli.kubectl.state import State

Object = dict[str, Any]
STALLED = condition("Stalled", "True", "UnderReplicated", "orders-0001 lack copies")


def state(*, nodes: tuple[Object, ...] = (), shards: tuple[Object, ...] = (), acts: tuple[Object, ...] = (),
          pods: dict[str, Object] | None = None, running: str = "", groups: tuple[Object, ...] = (),
          **of_cluster: Any) -> State:
    return State(
        cluster(*nodes, running=running, **of_cluster), groups or (group(),),
        shards or (shard(0), shard(1, "prod-2", "prod-3", "prod-4")), acts,
        {name: pod(name) for name in NODES} | (pods or {}))


def only(found: list[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


def test_a_healthy_shard_is_called_healthy():
    found = only(explain_shard(state(), "orders", 0))
    assert not found.blocks
    assert found.what == "orders/0 is healthy: prod-1 leads, 3 of 3 copies are in sync"
    assert explain_cluster(state()) == []


def test_a_healthy_shard_and_the_last_act_that_failed():
    act = swap(at="Finished")
    act["status"]["conditions"] = [condition("Succeeded", "False", "DeadlineExceeded", "too late")]
    healthy, failed = explain_shard(state(acts=(act,)), "orders", 0)
    assert "orders/0 is healthy" in healthy.what
    assert failed.what == (
        "no Reconfiguration moves orders/0; the last one, swap, failed: DeadlineExceeded: too late")
    assert not (healthy.blocks or failed.blocks)


def test_a_swap_that_waits_for_a_copy_elsewhere_names_shard_and_node():
    """The shard that is asked about is well; the plan waits for another one, whose member's pod cannot start."""
    waits = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}}
    crashing = pod("prod-3", conditions=[condition("Ready", "False")], containerStatuses=[
        {"name": "node", "restartCount": 9, "state": waits}])
    away = node("prod-3", ready=False, state="Restarting")
    there = state(
        nodes=(*(node(each) for each in ("prod-1", "prod-2", "prod-4")), away),
        shards=(shard(0, "prod-1", "prod-2", "prod-4"), shard(1, "prod-1", "prod-2", "prod-3", away=("prod-3",))),
        acts=(swap(conditions=(STALLED,)),), pods={"prod-3": crashing}, running="swap")
    first, second = explain_shard(there, "orders", 0)
    assert (first.shard, first.node, first.blocks) == ("orders/1", "prod-3", True)
    assert "swap is stalled: UnderReplicated: orders-0001 lack copies; blocked by orders/1 on prod-3" == first.what
    assert (second.shard, second.node) == ("orders/1", "prod-3")
    assert "CrashLoopBackOff" in second.what
    assert second.todo == "See `kubectl logs prod-3 --previous`."
    whole = explain_cluster(there)
    assert next(each.node for each in whole if each.blocks) == "prod-3"


def test_k14e_a_shard_that_lost_most_of_its_disks_names_the_act_that_goes_on():
    def first(**more: Any) -> Finding:
        return explain_shard(state(shards=(shard(0, state="Electing", **more),)), "orders", 0)[0]

    lost = first(lost=NODES[1:3])
    assert "prod-2, prod-3 lost the disks, and acknowledged records that only those held are gone" in lost.what
    assert lost.todo.startswith("`tidemark recover-shard orders 0 --from prod-1 --accept-loss` goes on")
    assert first(lost=NODES[1:2], away=NODES[2:3]).todo == "Bring back prod-3.", "it may hold everything"
    assert "all its disks are lost" in first(lost=NODES[:3]).what
    assert "an election is under way" in first(lost=NODES[1:2]).what


def test_the_copy_that_is_to_leave_does_not_block():
    away = shard(0, away=("prod-1",))
    there = state(
        nodes=(node("prod-1", ready=False), *(node(each) for each in NODES[1:])), shards=(away, shard(1)),
        acts=(swap(conditions=(STALLED,)),), running="swap")
    stalled = next(each for each in explain_shard(there, "orders", 1) if "stalled" in each.what)
    assert stalled.node != "prod-1"


@pytest.mark.parametrize(("act", "what", "todo"), [
    (swap(at="AwaitingApproval"), "its plan wants approval", "kubectl tidemark approve swap"),
    (swap(at="Suspended"), "swap is suspended", "kubectl tidemark resume swap"),
    (swap(at="Planning"), "is being planned", "operator"),
    (swap(at="Aborting"), "given up", ""),
    (swap(at="Queued"), "waits for the operator", "operator"),
    (swap(conditions=(condition("Stalled", "True", "NodeUnavailable", "NODE_UNAVAILABLE: prod-4 is down"),)),
     "NodeUnavailable", "watch swap"),
    (swap(), "orders/0 waits its turn in swap", "throttle swap --max-concurrent"),
    (swap(activeMoves=[{"name": "orders", "shard": 0, "from": "prod-1", "to": "prod-4", "step": "Snapshot",
                        "attempt": 2, "startTime": "2026-11-20T09:58:01Z", "message": "slow"}]),
     "swap moves orders/0 (prod-1 -> prod-4): Snapshot, attempt 2, since 2026-11-20T09:58:01Z: slow", ""),
    (swap(failedMoves=[{"name": "orders", "shard": 0, "from": "prod-1", "to": "prod-4", "step": "Failed",
                        "attempt": 5, "message": "refused"}]), "gave orders/0 (prod-1 -> prod-4) up", "anew"),
])
def test_every_stage_says_what_it_waits_for(act: Object, what: str, todo: str):
    found = only(explain_shard(state(acts=(act,)), "orders", 0))
    assert what in found.what
    assert todo in found.todo


def test_a_changed_plan_is_told_apart():
    act = swap(at="AwaitingApproval")
    act["status"]["conditions"] = [condition("Approved", "False", "PlanChanged")]
    assert "another one than the one that was approved" in only(explain_shard(state(acts=(act,)), "orders", 0)).what


def test_the_queue_is_followed_to_its_front():
    waiting = swap("later", at="Queued")
    there = state(acts=(waiting, swap("first", "prod-2", at="Suspended")), running="first")
    front, queued = explain_shard(there, "orders", 0)[:2]
    assert "first is suspended" in front.what and front.blocks
    assert any("later waits for first" in each.what for each in explain_shard(there, "orders", 0)), queued


def test_who_waits_for_approval_holds_up_nobody_and_is_told_of():
    asked, later = swap("asked", at="AwaitingApproval"), swap("later", at="Queued")
    asked["metadata"]["creationTimestamp"] = "2026-11-20T08:00:00Z"
    first = swap("first", "prod-2", at="Suspended")
    told = [each.what for each in explain_shard(state(acts=(asked, later, first), running="first"), "orders", 0)]
    assert any("later waits for first" in each for each in told)
    told = [each.what for each in explain_cluster(state(acts=(asked, first), running="first"))]
    assert any("first is suspended" in each for each in told) and any("asked waits: its plan" in each for each in told)
    told = [each.what for each in explain_shard(state(acts=(asked, later)), "orders", 0)]
    assert any("later waits for the operator" in each for each in told), "not for the one that nobody approves"


def test_without_a_majority_the_members_are_named():
    lost = shard(0, away=("prod-2", "prod-3"), state="Leaderless", leader="prod-1")
    there = state(shards=(lost,), nodes=(
        node("prod-1"), node("prod-2", ready=False), node("prod-3", ready=False), node("prod-4")))
    del there.pods["prod-2"]
    found = explain_shard(there, "orders", 0)
    assert "it takes 2 of 3 members, and only 1 are there" in found[0].what
    assert found[0].todo == "Bring back prod-2, prod-3."
    assert {each.node: "does not exist" in each.what for each in found if each.node} == {
        "prod-2": True, "prod-3": False}


def test_a_cluster_of_many_shards_is_told_in_a_few_lines():
    down = (node("prod-1"), node("prod-2"), node("prod-3", ready=False), node("prod-4"))
    many = tuple(shard(index, away=("prod-3",)) for index in range(500))
    found = explain_cluster(state(nodes=down, shards=many))
    assert "500 shards lack their copy on prod-3: orders/0, orders/1, orders/2 and 497 more" in [
        each.what for each in found]
    assert len(found) == 2
    lost = tuple(shard(index, state="Electing", leader="") for index in range(500))
    found = explain_cluster(state(shards=lost))
    assert [each.shard for each in found] == ["orders/0", "orders/1", "orders/2", ""]
    assert found[-1].what == "497 more shards have the same trouble"


def test_a_member_that_cannot_be_filled():
    joining = shard(0, operation={"type": "Swap", "phase": "Prepare", "oldNode": "prod-1", "newNode": "prod-4"})
    no_machine = pod("prod-4", phase="Pending", containerStatuses=[], conditions=[
        condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")])
    there = state(shards=(joining,), acts=(swap(),), pods={"prod-4": no_machine},
                  nodes=(*(node(each) for each in NODES[:3]), node("prod-4", ready=False, state="Joining")))
    found = explain_shard(there, "orders", 0)[0]
    assert (found.shard, found.node) == ("orders/0", "prod-4")
    assert "cannot fill prod-4" in found.what and "0/3 nodes are available" in found.what


def test_a_declared_factor_that_nobody_brings_about():
    found = only(explain_shard(state(groups=(group(factor=4),)), "orders", 0))
    assert "has 3 copies, LogGroup orders declares 4" in found.what
    assert found.todo == "kubectl tidemark expand orders"


def test_etcd_pause_and_an_absent_operator_come_first():
    away = state(conditions=(condition("MetadataStoreReachable", "False", "ConnectionFailed", "refused"),))
    assert "does not reach etcd" in explain_shard(away, "orders", 0)[0].what
    paused = state()
    paused.cluster["metadata"]["annotations"]["tidemark.dev/pause-reconciliation"] = "true"
    assert explain_cluster(paused)[0].todo == "kubectl tidemark unpause --cluster prod"
    unseen = state()
    unseen.cluster["status"] = {}
    assert "no operator has looked at cluster prod yet" in explain_cluster(unseen)[0].what


def test_what_does_not_exist_is_answered_with_what_does():
    for wrong, there_are in ((("order", 0), "There are orders."), (("orders", 7), "There are orders/0, orders/1.")):
        with pytest.raises(CommandFailed) as failed:
            explain_shard(state(), *wrong)
        assert failed.value.advice == there_are
    with pytest.raises(CommandFailed, match="shardProjection is None"):
        explain_shard(state(groups=(group(shardProjection="None"),)), "orders", 0)


def test_a_probe_that_is_a_moment_behind_is_no_trouble():
    unready = pod("prod-1", conditions=[condition("Ready", "False"), condition("ContainersReady", "False")])
    assert node_trouble(state(pods={"prod-1": unready}), "prod-1") is None
    down = state(pods={"prod-1": unready}, nodes=(node("prod-1", ready=False),))
    assert "does not say that it is ready" in str(node_trouble(down, "prod-1"))
    unread = State(cluster(node("prod-1", ready=False, message="deadline exceeded")), pods=None)
    assert "does not reach it (deadline exceeded)" in str(node_trouble(unread, "prod-1"))
    assert (pod_text(unready), pod_text(pod("prod-1")), pod_text(None)) == ("NotReady", "Ready", "missing")


CREATING = {"waiting": {"reason": "ContainerCreating"}}


@pytest.mark.parametrize(("changes", "what", "todo"), [
    ({"conditions": []}, "has no machine: no scheduler has placed it", "Add or free a machine"),
    ({"conditions": [condition("PodScheduled", "False", "Unschedulable", "0/3 nodes are available")]},
     "has no machine: Unschedulable: 0/3 nodes are available", "Add or free a machine"),
    ({"conditions": [condition("PodScheduled")]}, "is Pending on m1: its machine has not begun to start it",
     "kubectl describe pod prod-4"),
    ({"conditions": [condition("PodScheduled")], "containerStatuses": [{"name": "node", "state": CREATING}]},
     "is Pending on m1: ContainerCreating", "kubectl describe pod prod-4"),
    ({"conditions": [condition("PodScheduled")], "containerStatuses": [
        {"name": "node", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}]},
     "waits: ImagePullBackOff: not found", "spec.image"),
])
def test_a_pending_pod_says_what_it_waits_for_and_no_log_is_advised(changes: dict[str, Any], what: str, todo: str):
    made = pod("prod-4", phase="Pending", **{"containerStatuses": [], **changes})
    made["spec"]["nodeName"] = "m1"
    trouble = node_trouble(state(pods={"prod-4": made}, nodes=(node("prod-4", ready=False),)), "prod-4")
    assert trouble is not None
    assert what in trouble.what
    assert todo in trouble.todo and "kubectl logs" not in trouble.todo


def test_the_planner_of_the_operator_says_which_moves():
    spec = swap()["spec"]
    plan = plan_of(state(shards=(shard(0), shard(1))), spec)
    assert [(move.from_node, move.to_node) for move in plan.moves] == [("prod-1", "prod-4")] * 2
    assert find_plan(state(shards=(shard(0), shard(1))), spec, plan.hash) == plan
    assert find_plan(state(), spec, plan.hash) is None, "the objects come to another plan"
    with pytest.raises(CommandFailed, match="already holds a copy"):
        plan_of(state(), {**spec, "nodeSwap": {"from": "prod-1", "to": {"node": "prod-2"}}})
