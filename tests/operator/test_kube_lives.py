"""Which nodes go, and what the operator asks for because of that: each rule by itself, then from any state."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from operator_views import group, keyspace, member, shard, world
from tidemark_core.optimistic.ring import Owners, Quorum, Range
from tidemark_operator.kube.builders import Cluster
from tidemark_operator.kube.lives import Facts, Wanted, decide, victims
from tidemark_operator.kube.losses import Losses, gone_machine, suspects
from tidemark_operator.metadata import NodeLife, NodeRecord, StoredObject
from tidemark_operator.model import Node
from tidemark_operator.plan import World
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.resources.conditions import ConditionType, check_condition

from tests.seeds import every_seed


def records(nodes: dict[str, Node], **lives: NodeLife) -> list[NodeRecord]:
    return [
        NodeRecord(each.node, each.address, each.zone, each.pool, life=lives.get(each.node, NodeLife.STAYS))
        for each in nodes.values()]


def some_nodes(count: int, zones: str = "abc", **more: Any) -> dict[str, Node]:
    return {f"n-{i}": node_(f"n-{i}", zones[(i - 1) % len(zones)], **more) for i in range(1, count + 1)}


def node_(name: str, zone: str, **more: Any) -> Node:
    return Node(name, "127.0.0.1:7001", zone, member=member(name), **{"up": True, **more})


def spec(replicas: int, **more: Any) -> dict[str, Any]:
    return {"nodePools": [{"name": "default", "replicas": replicas, "zones": ["a", "b", "c"]}], **more}


def swap(source: str, name: str = "swap", *, stage: str = "Moving", ended: str = "", **more: Any) -> StoredObject:
    conditions = [{"type": "Succeeded", "reason": ended, "message": "so it was"}] if ended else []
    block = {"from": source, "to": {"spread": {}}, "removeSource": "Delete", **more.pop("swap", {})}
    return StoredObject(
        {"metadata": {"name": name}, "spec": {"type": "NodeSwap", "nodeSwap": block, **more}}, "uid", "now",
        status={"stage": stage, "conditions": conditions})


def facts(
    wanted: dict[str, Any], now: World, known: list[NodeRecord] | None = None, *swaps: StoredObject,
    lost: dict[str, str] | None = None, marked: tuple[str, ...] = (),
) -> Facts:
    return Facts(
        Cluster("data", "n", "uid", wanted), 7, known if known is not None else records(dict(now.nodes)), now,
        swaps, lost or {}, marked)


def names(wanted: Wanted) -> list[str]:
    return [request.name for request in wanted.requests]


FOUR = some_nodes(4)
HELD = world(shard(0, "n-1", "n-2", "n-3"), shard(1, "n-4", "n-2", "n-3"), nodes=FOUR)


def test_one_that_is_too_many_is_emptied_and_removed() -> None:
    wanted = decide(facts(spec(3), HELD))
    assert names(wanted) == ["n-4-scale-down-7"]
    assert wanted.requests[0].spec["nodeSwap"] == {"from": "n-4", "to": {"spread": {}}, "removeSource": "Delete"}
    assert wanted.scale_down[:2] == (False, R.PROGRESSING)
    assert wanted.unfinished == (R.SCALING_IN_PROGRESS, "To go: n-4.")
    resting = decide(facts(spec(4), HELD))
    assert (resting.requests, resting.scale_down[:2], resting.unfinished) == ((), (False, R.NOT_SCALING), None)


def test_ranges_of_keyspaces_are_copies_too() -> None:
    five = some_nodes(5)
    owners = Owners(tuple(member(name) for name in ("n-5", "n-2", "n-1")), Quorum(3, 2, 2))
    held = replace(HELD, nodes=five, keyspaces=(keyspace(),), ranges=dict.fromkeys((1, 2), Range(1, owners)))
    assert names(decide(facts(spec(4), replace(held, ranges={})))) == ["n-5-scale-down-7"], "an empty one goes first"
    assert names(decide(facts(spec(4), held))) == ["n-4-scale-down-7"], "n-4 holds one shard, n-5 two ranges"
    drained = spec(4, scaleDown={"policy": "DeleteDrainedOnly"})
    assert decide(facts(drained, held)).scale_down[:2] == (True, R.NOT_DRAINED)
    wide = replace(held, groups={}, shards={}, keyspaces=(keyspace(quorum=Quorum(5, 3, 3)),))
    assert decide(facts(spec(4), wide)).scale_down[:2] == (True, R.FACTOR_EXCEEDS_NODES)
    assert "keyspace carts has 5 owners of each range; without" in decide(facts(spec(4), wide)).scale_down[2]


def test_one_scale_down_at_a_time_and_a_swap_that_removes_counts() -> None:
    five = some_nodes(5)
    running = swap("n-5", "n-5-scale-down-7")
    known = records(five, **{"n-5": NodeLife.LEAVES})
    wanted = decide(facts(spec(3), world(nodes=five, groups=[]), known, running))
    assert (wanted.requests, wanted.scale_down[:2]) == ((), (False, R.PROGRESSING))
    # The node that a swap with provision makes takes the place of its source.
    assert decide(facts(spec(4), world(nodes=five, groups=[]), known, swap("n-5"))).requests == ()
    assert names(decide(facts(spec(4), world(nodes=five, groups=[]), None, swap("n-5", stage="Finished")))) == [
        "n-5-scale-down-7"]
    assert names(decide(facts(spec(4), world(nodes=five, groups=[]), None, swap("n-5", swap={
        "removeSource": "Keep"})))) == ["n-5-scale-down-7"]


def test_a_scale_down_that_is_wanted_no_more_is_canceled() -> None:
    running = swap("n-4", "n-4-scale-down-7")
    known = records(FOUR, **{"n-4": NodeLife.LEAVES})
    assert decide(facts(spec(4), HELD, known, running)).cancel == ("n-4-scale-down-7",)
    assert decide(facts(spec(3), HELD, known, running)).cancel == ()
    canceled = swap("n-4", "n-4-scale-down-7", cancel=True)
    assert decide(facts(spec(4), HELD, known, canceled)).cancel == ()
    too_late = records(FOUR, **{"n-4": NodeLife.REMOVED})
    assert decide(facts(spec(4), HELD, too_late, running)).cancel == ()


def test_a_scale_down_that_failed_is_told_and_not_repeated() -> None:
    ended = swap("n-4", "n-4-scale-down-7", stage="Finished", ended="Canceled")
    wanted = decide(facts(spec(3), HELD, None, ended))
    assert (wanted.requests, wanted.scale_down[:2]) == ((), (True, R.CANCELED))
    assert "n-4-scale-down-7 ended as Canceled (so it was)" in wanted.scale_down[2]
    earlier = swap("n-4", "n-4-scale-down-6", stage="Finished", ended="Canceled")
    assert names(decide(facts(spec(3), HELD, None, earlier))) == ["n-4-scale-down-7"]


@pytest.mark.parametrize(("replicas", "now", "reason", "told"), [
    (2, world(shard(0, "n-1", "n-2", "n-3"), nodes=some_nodes(3)), R.FACTOR_EXCEEDS_NODES,
     "log group orders has 3 copies of each shard; without n-3 it has 2 nodes"),
    (2, world(nodes=some_nodes(3)), R.FACTOR_EXCEEDS_NODES, "log group orders has 3 copies"),
    (3, world(shard(0, "n-1", "n-2", "n-3"), shard(1, "n-1", "n-2", "n-3"), nodes=some_nodes(4, "abcb"),
              groups=[group(pools=("other",), factor=0)]), R.FACTOR_EXCEEDS_NODES, "orders"),
    (3, world(shard(0, "n-1", "n-2", "n-3", "n-4"), nodes=FOUR, groups=[group(factor=3)]), R.FACTOR_EXCEEDS_NODES,
     "has 4 copies"),
])
def test_what_the_factor_does_not_allow_is_told(replicas: int, now: World, reason: R, told: str) -> None:
    wanted = decide(facts(spec(replicas), now))
    assert (wanted.requests, wanted.scale_down[:2]) == ((), (True, reason))
    assert told in wanted.scale_down[2]
    assert wanted.unfinished is not None


def test_what_the_zones_do_not_allow_is_told() -> None:
    nodes = {**some_nodes(3), "n-4": node_("n-4", "a"), "n-5": node_("n-5", "b")}
    now = world(shard(0, "n-1", "n-2", "n-3"), nodes=nodes)
    only = {"nodePools": [{"name": "c", "replicas": 0}, {"name": "default", "replicas": 4}]}
    known = [NodeRecord(each.node, "x", each.zone, "c" if each.zone == "c" else "default") for each in nodes.values()]
    wanted = decide(facts(only, now, known))
    assert wanted.scale_down[:2] == (True, R.NO_TARGET_FOR_COPIES)
    assert "n-3: every choice for orders-0000 puts two copies into one zone" in wanted.scale_down[2]


def test_missing_copies_elsewhere_are_waited_for() -> None:
    down = {**FOUR, "n-2": node_("n-2", "b", up=False), "n-5": node_("n-5", "b")}
    now = world(shard(0, "n-1", "n-2", "n-3"), shard(1, "n-4", "n-2", "n-3"), nodes=down)
    wanted = decide(facts(spec(2), now, [each for each in records(FOUR) if each.node != "n-2"]))
    assert wanted.scale_down[:2] == (True, R.UNDER_REPLICATED) and "orders-0001" in wanted.scale_down[2]
    assert names(decide(facts(spec(3), now, records(FOUR)))) == ["n-2-scale-down-7"], "who is down may go"


def test_with_drained_only_somebody_else_empties_nodes() -> None:
    policy = {"scaleDown": {"policy": "DeleteDrainedOnly"}}
    blocked = decide(facts(spec(3, **policy), HELD)).scale_down
    assert blocked[:2] == (True, R.NOT_DRAINED) and "removeSource Keep" in blocked[2]
    empty = world(shard(0, "n-1", "n-2", "n-4"), nodes=FOUR)
    assert names(decide(facts(spec(3, **policy), empty))) == ["n-3-scale-down-7"]


def test_victims_are_empty_ones_then_as_the_policy_says_then_of_full_zones() -> None:
    known = records(some_nodes(5, "abcab"))
    copies = {"n-1": 1, "n-2": 1, "n-3": 1, "n-4": 1, "n-5": 3}
    assert [each.node for each in victims(known, copies, "FewestReplicas")] == ["n-4", "n-2", "n-1", "n-3", "n-5"]
    assert [each.node for each in victims(known, copies, "Newest")] == ["n-5", "n-4", "n-3", "n-2", "n-1"]
    assert victims(known, {**copies, "n-3": 0}, "Newest")[0].node == "n-3"


def test_a_lost_node_is_replaced_only_where_that_was_asked_for() -> None:
    lost = {"n-2": "machine-9"}
    assert decide(facts(spec(4), HELD, lost=lost)).requests == ()
    replace = spec(4, disruption={"onNodeLost": "Replace"})
    wanted = decide(facts(replace, HELD, lost=lost))
    assert names(wanted) == ["n-2-lost"]
    assert wanted.requests[0].spec["nodeSwap"] == {"from": "n-2", "to": {"provision": {}}, "removeSource": "Delete"}
    assert "machine-9" in wanted.requests[0].spec["reason"]
    assert decide(facts(replace, HELD, None, swap("n-2"), lost=lost)).requests == ()
    assert decide(facts(replace, HELD, None, swap("n-2", "n-2-lost", stage="Finished"), lost=lost)).requests == ()


def test_a_pod_that_asks_to_go_needs_somebody_who_approves() -> None:
    wanted = decide(facts(spec(4), HELD, marked=("n-1", "n-99")))
    assert names(wanted) == ["n-1-delete-node"]
    assert wanted.requests[0].spec["approval"] == "Required"
    assert decide(facts(spec(4), HELD, None, swap("n-1"), marked=("n-1",))).requests == ()


def test_nodes_that_joined_are_filled_where_that_was_asked_for() -> None:
    group_ = group(shards=4)
    grown = world(*(shard(i, "n-1", "n-2", "n-3") for i in range(4)), nodes=some_nodes(5), groups=[group_])
    assert decide(facts(spec(5), grown)).requests == ()
    policy = {"reconfiguration": {"onNodeJoin": "Rebalance"}}
    (request,) = decide(facts(spec(5, **policy), grown)).requests
    assert (request.name, request.spec["rebalance"]) == ("n-rebalance-5", {"nodes": ["n-4", "n-5"]})
    coming = world(*(shard(i, "n-1", "n-2", "n-3") for i in range(4)), nodes={
        **some_nodes(4), "n-5": node_("n-5", "b", up=False)}, groups=[group_])
    assert decide(facts(spec(5, **policy), coming)).requests == (), "the last one is waited for"
    done = StoredObject({"metadata": {"name": "n-rebalance-5"}, "spec": {"type": "Rebalance"}}, "uid", "now")
    assert decide(facts(spec(5, **policy), grown, None, done)).requests == ()


def test_a_node_that_nobody_empties_stays() -> None:
    known = records(FOUR, **{"n-4": NodeLife.LEAVES})
    assert decide(facts(spec(4), HELD, known)).stay == ("n-4",)
    assert decide(facts(spec(4), HELD, known, swap("n-4", swap={"removeSource": "Keep"}))).stay == ()
    assert decide(facts(spec(4), HELD, known, swap("n-4", stage="Finished"))).stay == ("n-4",)


@every_seed(200)
def test_from_any_state_it_is_decided_alike_and_never_asked_twice(seed: int) -> None:
    dice = random.Random(seed)
    nodes = {
        f"n-{i}": node_(f"n-{i}", dice.choice("abc"), up=dice.random() < 0.8, life=dice.choice(
            [NodeLife.STAYS] * 4 + list(NodeLife))) for i in range(1, dice.randint(3, 8))}
    shards = [
        shard(i, *dice.sample(sorted(nodes), min(len(nodes), dice.choice([1, 3])))) for i in range(dice.randint(0, 5))]
    now = world(*shards, nodes=nodes, groups=[group(factor=dice.choice([1, 3]))])
    known = [NodeRecord(each.node, "x", each.zone, "default", life=each.life) for each in nodes.values()]
    wanted_spec = spec(
        dice.randint(0, 8), disruption={"onNodeLost": dice.choice(["Wait", "Replace"])},
        scaleDown={"policy": dice.choice(["DrainThenDelete", "DeleteDrainedOnly"]),
                   "victims": dice.choice(["FewestReplicas", "Newest"])},
        reconfiguration={"onNodeJoin": dice.choice(["None", "Rebalance"])})
    lost = {name: "gone" for name in nodes if dice.random() < 0.2}
    marked = tuple(name for name in nodes if dice.random() < 0.1)
    swaps = [
        swap(dice.choice(sorted(nodes)), f"s{i}", stage=dice.choice(["Moving", "Finished", "AwaitingApproval"]))
        for i in range(dice.randint(0, 2))]
    first = decide(facts(wanted_spec, now, known, *swaps, lost=lost, marked=marked))
    assert first == decide(facts(wanted_spec, now, known, *swaps, lost=lost, marked=marked))
    check_condition("TidemarkCluster", ConditionType.SCALE_DOWN_BLOCKED, *first.scale_down[:2])
    sources = [one.spec["nodeSwap"]["from"] for one in first.requests if "nodeSwap" in one.spec]
    assert len(set(sources)) == len(sources), "one node is asked to go once"
    assert all(nodes[name].life is NodeLife.STAYS for name in sources)
    made = [StoredObject({"metadata": {"name": one.name}, "spec": dict(one.spec)}, "uid", "now")
            for one in first.requests]
    again = decide(facts(wanted_spec, now, known, *swaps, *made, lost=lost, marked=marked))
    assert not set(names(again)) & set(names(first))
    if any("scale-down" in name for name in names(first)):
        assert not [name for name in names(again) if "scale-down" in name], "one at a time"


# --- lost for good ------------------------------------------------------------------------------------------


def machine(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": f"host-{name}"}}}


def volume(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": list(terms)}}}} if terms else {"spec": {}}


def on(*hosts: str, key: str = "kubernetes.io/hostname") -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(hosts)}]}


@pytest.mark.parametrize(("pinned", "gone"), [
    (volume(on("host-m9")), "host-m9"),
    (volume(on("host-m1")), ""),
    (volume(on("m1")), ""),
    (volume({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m9"]}]}), "m9"),
    (volume(on("host-m9"), on("host-m1")), ""),
    (volume(on("host-m9", "host-m8")), "host-m8, host-m9"),
    (volume(), ""),
    (volume({}), ""),
    (volume(on("zone-x", key="topology.kubernetes.io/zone")), ""),
    (volume(on("host-m9"), on("zone-x", key="topology.kubernetes.io/zone")), ""),
    (volume({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["m9"]}]}), ""),
])
def test_only_a_name_that_is_gone_proves_a_loss(pinned: dict[str, Any], gone: str) -> None:
    assert gone_machine(pinned, [machine("m1"), machine("m2")]) == gone


def test_a_node_that_answers_or_whose_pod_stands_on_a_machine_has_lost_nothing() -> None:
    nodes = {"n-1": Node("n-1", up=True), "n-2": Node("n-2"), "n-3": Node("n-3"), "n-4": Node("n-4")}
    pods = {name: {"spec": {"nodeName": on}} for name, on in (("n-1", "m9"), ("n-2", "m1"), ("n-3", "m9"), ("n-4", ""))}
    assert suspects([*nodes, "n-5"], nodes, pods, [machine("m1")]) == ["n-3", "n-4", "n-5"]


def test_a_machine_is_gone_for_a_while_without_a_break() -> None:
    losses = Losses()
    losses.see({"n-1": "m9"}, 100.0)
    assert (losses.lost(109.0, 10.0), losses.due_in(109.0, 10.0)) == ({}, 1.0)
    assert (losses.lost(110.0, 10.0), losses.due_in(110.0, 10.0)) == ({"n-1": "m9"}, None)
    losses.see({}, 111.0)
    losses.see({"n-1": "m9"}, 112.0)
    assert losses.lost(121.0, 10.0) == {}, "it was back meanwhile"
    losses.see({"n-1": "m8"}, 122.0)
    assert losses.lost(131.0, 10.0) == {}, "another machine, another time"
