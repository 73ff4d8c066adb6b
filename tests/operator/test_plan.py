"""Planner: placement and moves, and every typed reason for refusing."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from operator_views import group, member, node, nodes, shard, to_come, world
from tidemark_core.base.ids import shard_id
from tidemark_operator.metadata import NodeLife
from tidemark_operator.placement import nodes_to_come, place_group
from tidemark_operator.plan import (
    NEW_NODE,
    Move,
    MoveKind,
    Plan,
    PlanRefusal,
    next_leader,
    plan_reconfiguration,
)
from tidemark_operator.resources.conditions import ConditionReason


def swap(source: str, target: str | None = None, **more) -> dict:
    to = {"node": target} if target else {"spread": {}}
    return {"type": "NodeSwap", "nodeSwap": {"from": source, "to": to}, **more}


# --- placement ----------------------------------------------------------------------------------------------


def test_copies_of_a_shard_lie_in_distinct_zones() -> None:
    known = nodes(6, "abc")
    for ensemble in place_group(group(shards=16), known.values(), {}):
        assert len({known[name].zone for name in ensemble}) == 3


def test_copies_and_firsts_are_spread_evenly() -> None:
    placed = place_group(group(shards=10), nodes(5).values(), {})
    copies = Counter(name for ensemble in placed for name in ensemble)
    assert set(copies.values()) == {6}
    assert set(Counter(ensemble[0] for ensemble in placed).values()) == {2}


def test_placement_depends_on_the_groups_uid_alone() -> None:
    known = nodes(5)
    one = place_group(group(), known.values(), {})
    assert one == place_group(group(), list(known.values())[::-1], {})
    assert one != place_group(group(uid="another"), known.values(), {})


def test_full_nodes_are_chosen_last() -> None:
    placed = place_group(group(shards=1), nodes(4).values(), {"n1": 9, "n2": 9})
    assert {"n3", "n4"} < set(placed[0])


@pytest.mark.parametrize("known", [
    {**nodes(2)}, {**nodes(2), "n3": node("n3", up=False)}, {**nodes(2), "n3": node("n3", draining=True)},
    {**nodes(2), "n3": node("n3", pool="other")},
])
def test_too_few_eligible_nodes_are_a_refusal(known) -> None:
    refusal = place_group(group(pools=("default",)), known.values(), {})
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.NOT_ENOUGH_NODES
    assert "2 are eligible" in refusal.message


def test_u46_a_node_of_an_older_release_gets_no_copy_of_documents() -> None:
    docs, log = group(kind="Documents"), group(group_id=2)
    known = {**nodes(3), "n4": node("n4", wire_version=4)}
    assert all("n4" not in ensemble for ensemble in place_group(docs, known.values(), {}))
    assert any("n4" in ensemble for ensemble in place_group(log, known.values(), {"n1": 9, "n2": 9}))
    refusal = place_group(docs, [each for each in known.values() if each.node != "n1"], {})
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.NOT_ENOUGH_NODES
    assert "2 are eligible; kind Documents needs a newer release on n4" in refusal.message

    now = world(shard(0, "n1", "n2", "n3"), nodes=known, groups=[docs])
    refusal = plan_reconfiguration(swap("n1", "n4"), now)
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.TARGET_NOT_ELIGIBLE
    assert "which the release of n4 does not know" in refusal.message
    assert isinstance(plan_reconfiguration(swap("n1"), now), PlanRefusal)
    assert isinstance(plan_reconfiguration(swap("n1", "n4"), replace(now, groups={log.name: log})), Plan)


@pytest.mark.parametrize(("known", "awaited"), [
    (nodes(3, "abc"), []),
    ({**nodes(4, "abcd"), "n3": node("n3", "c", up=False)}, []),
    ({**nodes(2, "ab"), "n3": to_come("n3", "c"), "n4": node("n4", "a")}, ["n3"]),
    ({**nodes(2, "ab"), "n3": to_come("n3", "a"), "n4": node("n4", "a")}, []),
    ({**nodes(2, "ab"), "n3": to_come("n3"), "n4": node("n4", "a")}, ["n3"]),
    ({**nodes(2), "n3": to_come("n3"), "n4": node("n4")}, []),
    ({**nodes(2, "ab"), "n3": replace(to_come("n3", "c"), life=NodeLife.LEAVES), "n4": node("n4", "a")}, []),
    ({**nodes(2, "ab"), "n3": replace(to_come("n3", "c"), pool="other"), "n4": node("n4", "a")}, []),
    ({**nodes(2, "ab"), "n3": node("n3", "c", up=False), "n4": node("n4", "a")}, []),
], ids=["all are there", "zones enough", "its zone is missed", "its zone is there", "its zone is not known",
        "nobody has a zone", "it leaves", "of another pool", "it was there before"])
def test_nodes_that_never_answered_are_awaited_for_their_zones(known, awaited) -> None:
    assert nodes_to_come(group(pools=("default",)), known.values()) == awaited
    assert nodes_to_come(group(spread_zones=False), known.values()) == []


# --- swap ---------------------------------------------------------------------------------------------------


def test_swap_moves_every_copy_of_the_source() -> None:
    shards = [shard(0, "n1", "n2", "n3"), shard(1, "n2", "n3", "n4"), shard(2, "n4", "n2", "n1")]
    plan = plan_reconfiguration(swap("n1", "n5"), world(*shards, nodes=nodes(5)))
    assert isinstance(plan, Plan)
    assert plan.moves == (
        Move(shards[0].shard, MoveKind.SWAP, "n1", "n5"), Move(shards[2].shard, MoveKind.SWAP, "n1", "n5"))


def test_swap_in_scope_only() -> None:
    shards = [shard(0, "n1", "n2", "n3"), shard(1, "n1", "n3", "n4")]
    plan = plan_reconfiguration(swap("n1", "n5", scope={"shardIDs": [1]}), world(*shards, nodes=nodes(5)))
    assert [move.shard for move in plan.moves] == [shards[1].shard]


def test_a_drain_spreads_over_whatever_fits() -> None:
    shards = [shard(i, "n1", "n2", "n3") for i in range(4)]
    plan = plan_reconfiguration(swap("n1"), world(*shards, nodes=nodes(5)))
    assert Counter(move.to_node for move in plan.moves) == {"n4": 2, "n5": 2}


def test_kept_data_of_deleted_groups_goes_elsewhere_where_the_named_node_has_a_copy() -> None:
    gone = group("gone", group_id=2, detached=True)
    known = world(
        shard(0, "n1", "n2", "n3"), shard(0, "n1", "n2", "n4", of=gone), shard(1, "n1", "n2", "n3", of=gone),
        nodes=nodes(5), groups=[group(), gone])
    plan = plan_reconfiguration(swap("n1", "n4"), known)
    assert isinstance(plan, Plan)
    targets = {move.shard: move.to_node for move in plan.moves}
    assert targets[shard_id(1, 0)] == "n4", "what people asked for goes where they said"
    assert targets[shard_id(2, 0)] in ("n3", "n5") and targets[shard_id(2, 1)] == "n4"


def test_kept_data_that_nobody_can_have_refuses_only_the_removal_of_its_node() -> None:
    gone = group("gone", group_id=2, detached=True)
    known = world(
        shard(0, "n1", "n2", "n3"), shard(0, "n1", "n2", "n3", "n4", of=gone), nodes=nodes(4),
        groups=[group(), gone])
    plan = plan_reconfiguration(swap("n1", "n4"), known)
    assert isinstance(plan, Plan) and [move.shard for move in plan.moves] == [shard_id(1, 0)]
    assert plan.warnings == ("kept data of deleted log groups stays on n1: gone-0000",)
    removal = swap("n1", "n4")
    removal["nodeSwap"]["removeSource"] = "Delete"
    refused = plan_reconfiguration(removal, known)
    assert isinstance(refused, PlanRefusal) and refused.reason is ConditionReason.INSUFFICIENT_CAPACITY


def test_kept_data_of_deleted_groups_is_spread_with_what_else_moves() -> None:
    gone = group("gone", group_id=2, detached=True)
    known = world(
        shard(0, "n1", "n2", "n3"), shard(1, "n2", "n3", "n5"), shard(2, "n2", "n3", "n5"),
        *(shard(index, "n1", "n2", "n3", of=gone) for index in range(5)), nodes=nodes(5), groups=[group(), gone])
    plan = plan_reconfiguration(swap("n1"), known)
    assert isinstance(plan, Plan)
    assert Counter(move.to_node for move in plan.moves) == {"n4": 4, "n5": 2}


def test_a_node_without_copies_is_an_empty_plan() -> None:
    assert plan_reconfiguration(swap("n5", "n4"), world(shard(0, "n1", "n2", "n3"), nodes=nodes(5))) == Plan(())


@pytest.mark.parametrize(("spec", "reason", "fact"), [
    (swap("n9", "n4"), ConditionReason.NODE_NOT_FOUND, "nodeSwap.from"),
    (swap("n1", "n9"), ConditionReason.NODE_NOT_FOUND, "nodeSwap.to.node"),
    (swap("n1", "n2"), ConditionReason.TARGET_NOT_ELIGIBLE, "already holds a copy of orders-0000"),
    (swap("n1", "n6"), ConditionReason.TARGET_NOT_ELIGIBLE, "n6 is down"),
    (swap("n1", "n7"), ConditionReason.TARGET_NOT_ELIGIBLE, "draining"),
    (swap("n1", "n8"), ConditionReason.TARGET_NOT_ELIGIBLE, "pool"),
    (swap("n1", "n4", scope={"logGroups": ["nope"]}), ConditionReason.TARGETS_NOTHING, "'nope'"),
    (swap("n1", "n4", scope={"shardIDs": [77]}), ConditionReason.TARGETS_NOTHING, "shardIDs"),
    ({"type": "NodeSwap", "nodeSwap": {"from": "n1", "to": {"provision": {}}}},
     ConditionReason.TARGET_NOT_ELIGIBLE, "provision"),
    (swap("n1", "n5"), ConditionReason.NOT_ENOUGH_DOMAINS, "two copies into one zone"),
])
def test_a_swap_that_cannot_be_is_refused_with_its_reason(spec, reason, fact) -> None:
    known = {
        **nodes(5, "abcab"), "n6": node("n6", up=False), "n7": node("n7", draining=True),
        "n8": node("n8", "a", pool="other"),
    }
    refusal = plan_reconfiguration(
        spec, world(shard(0, "n1", "n2", "n3"), nodes=known, groups=[group(pools=("default",))]))
    assert isinstance(refusal, PlanRefusal), refusal
    assert refusal.reason is reason and fact in refusal.message


def test_failure_domains_may_be_ignored_on_purpose() -> None:
    spec = swap("n1", "n5", preconditions={"failureDomains": "Ignore"})
    assert isinstance(plan_reconfiguration(spec, world(shard(0, "n1", "n2", "n3"), nodes=nodes(5, "abcab"))), Plan)


def test_no_node_left_is_insufficient_capacity() -> None:
    refusal = plan_reconfiguration(swap("n1"), world(shard(0, "n1", "n2", "n3"), nodes=nodes(3)))
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.INSUFFICIENT_CAPACITY


# --- expand and contract ------------------------------------------------------------------------------------


def test_expand_prefers_named_nodes_and_skips_shards_that_have_the_factor() -> None:
    shards = [shard(0, "n1", "n2", "n3"), shard(1, "n1", "n2", "n3", "n4")]
    spec = {"type": "Expand", "expand": {"logGroup": "orders", "factor": 4, "nodes": ["n5"]}}
    plan = plan_reconfiguration(spec, world(*shards, nodes=nodes(5), groups=[group(factor=4)]))
    assert plan == Plan((Move(shards[0].shard, MoveKind.EXPAND, None, "n5"),))


def test_contract_takes_named_nodes_then_dead_ones_and_the_leader_last() -> None:
    known = {**nodes(4), "n2": node("n2", up=False)}
    four = shard(0, "n1", "n2", "n3", "n4")
    spec = {"type": "Contract", "contract": {"logGroup": "orders", "factor": 3}}
    plan = plan_reconfiguration(spec, world(four, nodes=known))
    assert [move.from_node for move in plan.moves] == ["n2"]
    spec["contract"]["nodes"] = ["n4"]
    assert [move.from_node for move in plan_reconfiguration(spec, world(four, nodes=known)).moves] == ["n4"]
    healthy = plan_reconfiguration(
        {"type": "Contract", "contract": {"logGroup": "orders", "factor": 3}}, world(four, nodes=nodes(4)))
    assert healthy.moves[0].from_node != "n1"


@pytest.mark.parametrize(("spec", "fact"), [
    ({"type": "Expand", "expand": {"logGroup": "orders", "factor": 4}}, "declares 3"),
    ({"type": "Contract", "contract": {"logGroup": "orders", "factor": 2}}, "declares 3"),
    ({"type": "Expand", "expand": {"logGroup": "orders", "factor": 3}}, "has 1 copies"),
])
def test_a_factor_that_is_not_declared_or_not_one_step_away_is_refused(spec, fact) -> None:
    refusal = plan_reconfiguration(spec, world(shard(0, "n1"), nodes=nodes(5)))
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.FACTOR_MISMATCH
    assert fact in refusal.message


@pytest.mark.parametrize("spec", [
    {"type": "Expand", "expand": {"logGroup": "docs", "factor": 4}},
    {"type": "Contract", "contract": {"logGroup": "docs", "factor": 2}},
    {"type": "Rebalance", "scope": {"logGroups": ["orders", "docs"]}},
])
def test_an_act_on_a_group_that_is_not_served_is_refused_unless_it_has_shards(spec) -> None:
    docs = group("docs", group_id=2, unserved="log groups of kind Documents")
    there = world(shard(0, "n1", "n2", "n3"), nodes=nodes(5), groups=[group(), docs])
    refusal = plan_reconfiguration(spec, there)
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.NOT_SUPPORTED
    assert "docs: this release does not serve log groups of kind Documents" in refusal.message
    older = world(shard(0, "n1", "n2", "n3", of=docs), nodes=nodes(5), groups=[group(), docs])
    planned = plan_reconfiguration(spec, older)
    assert not isinstance(planned, PlanRefusal) or planned.reason is not ConditionReason.NOT_SUPPORTED


@pytest.mark.parametrize(("spec", "field"), [
    ({"type": "Expand", "expand": {"keyspace": "carts", "factor": 4}}, "expand.keyspace"),
    ({"type": "Contract", "contract": {"keyspace": "carts", "factor": 3}}, "contract.keyspace"),
    (swap("n1", scope={"keyspaces": ["carts"]}), "scope.keyspaces"),
    (swap("n1", scope={"keyspaces": ["carts"], "logGroups": ["orders"]}), "scope.keyspaces"),
])
def test_an_act_on_a_keyspace_is_not_supported(spec, field) -> None:
    refusal = plan_reconfiguration(spec, world(shard(0, "n1", "n2", "n3"), nodes=nodes(5)))
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.NOT_SUPPORTED
    assert refusal.message.startswith(f"{field}: ")


# --- leaders ------------------------------------------------------------------------------------------------


def test_transfer_to_a_node_covers_the_shards_it_is_a_member_of() -> None:
    shards = [shard(0, "n1", "n2", "n3"), shard(1, "n3", "n4", "n5"), shard(2, "n2", "n3", "n4")]
    spec = {"type": "LeaderTransfer", "leaderTransfer": {"to": "n2"}}
    plan = plan_reconfiguration(spec, world(*shards, nodes=nodes(5)))
    assert plan.moves == (Move(shards[0].shard, MoveKind.TRANSFER, "n1", "n2"),)


def test_transfer_from_a_node_spreads_its_leaderships() -> None:
    shards = [shard(i, "n1", "n2", "n3") for i in range(4)]
    spec = {"type": "LeaderTransfer", "leaderTransfer": {"from": "n1"}}
    plan = plan_reconfiguration(spec, world(*shards, nodes=nodes(3)))
    assert Counter(move.to_node for move in plan.moves) == {"n2": 2, "n3": 2}


def test_the_next_leader_is_up_and_on_the_disk_the_ensemble_names() -> None:
    known = nodes(4)
    one = shard(0, "n1", "n2", "n3")
    assert next_leader(one, world(one, nodes=known), {"n2": 5}) == "n3"
    wiped = {**known, "n3": node("n3")}
    wiped["n3"] = type(wiped["n3"])("n3", member=member("n3", "2"), up=True)
    assert next_leader(one, world(one, nodes=wiped), {"n2": 5}) == "n2"
    down = {**wiped, "n2": node("n2", up=False)}
    assert next_leader(one, world(one, nodes=down), {}) is None


def test_rebalance_fills_empty_nodes_and_keeps_to_its_budget() -> None:
    shards = [shard(i, "n1", "n2", "n3") for i in range(10)]
    here = world(*shards, nodes=nodes(5))
    plan = plan_reconfiguration({"type": "Rebalance"}, here)
    assert Counter(move.to_node for move in plan.moves).keys() == {"n4", "n5"}
    few = plan_reconfiguration({"type": "Rebalance", "rebalance": {"maxMovePercent": 10}}, here)
    assert len(few.moves) == 3
    leaders = plan_reconfiguration({"type": "Rebalance", "rebalance": {"leadersOnly": True}}, here)
    assert {move.kind for move in leaders.moves} == {MoveKind.TRANSFER}


# --- plans --------------------------------------------------------------------------------------------------


def test_the_hash_names_the_set_of_moves() -> None:
    one, other = Move(1, MoveKind.SWAP, "a", "b"), Move(2, MoveKind.SWAP, "a", "b")
    assert Plan((one, other)).hash == Plan((other, one)).hash != Plan((one,)).hash
    assert Plan((one,)).hash.startswith("sha256:")


def test_a_move_knows_when_its_effect_is_in_force() -> None:
    swap_move = Move(shard(0, "n1").shard, MoveKind.SWAP, "n1", "n4")
    assert not swap_move.done(shard(0, "n1", "n2", "n3"))
    assert swap_move.done(shard(0, "n4", "n2", "n3"))
    assert swap_move.done(None)


# --- nodes that are made, and nodes that leave ------------------------------------------------------------


def provision(source: str, **wanted: str) -> dict:
    return {"type": "NodeSwap", "nodeSwap": {"from": source, "to": {"provision": wanted}}}


POOLS = {"default": ("a", "b", "c"), "big": ("a", "b"), "anywhere": ()}


def with_pools(*shards, nodes, groups=None):
    return replace(world(*shards, nodes=nodes, groups=groups), pools=POOLS)


@pytest.mark.parametrize(("wanted", "made"), [
    ({}, ("default", "b")), ({"zone": "c"}, ("default", "c")), ({"nodePool": "big"}, ("big", "b")),
    ({"nodePool": "anywhere"}, ("anywhere", "b")), ({"nodePool": "anywhere", "zone": "x"}, ("anywhere", "x")),
])
def test_a_new_node_is_like_the_source_where_nothing_else_is_said(wanted, made) -> None:
    now = with_pools(shard(0, "n1", "n2"), nodes=nodes(3, "abc"))
    plan = plan_reconfiguration({**provision("n2", **wanted), "preconditions": {"failureDomains": "Ignore"}}, now)
    assert isinstance(plan, Plan) and plan.provision == made
    assert [(move.from_node, move.to_node) for move in plan.moves] == [("n2", NEW_NODE)]


def test_a_zone_that_the_other_pool_lacks_is_dealt() -> None:
    now = with_pools(shard(0, "n1", "n3"), nodes={**nodes(3, "abc"), "n4": node("n4", "a", pool="big")})
    plan = plan_reconfiguration(provision("n3", nodePool="big"), now)
    assert isinstance(plan, Plan) and plan.provision == ("big", "b")


@pytest.mark.parametrize(("wanted", "groups", "told"), [
    ({"nodePool": "nope"}, None, "no node pool 'nope'"), ({"zone": "x"}, None, "default has no zone 'x'"),
    ({"nodePool": "big"}, [group(pools=("default",))], "does not allow pool 'big'"),
])
def test_a_new_node_that_cannot_be_is_a_refusal(wanted, groups, told) -> None:
    now = with_pools(shard(0, "n1", "n2"), nodes=nodes(3, "abc"), groups=groups)
    refusal = plan_reconfiguration(provision("n2", **wanted), now)
    assert isinstance(refusal, PlanRefusal) and refusal.reason is ConditionReason.TARGET_NOT_ELIGIBLE
    assert told in refusal.message
    refusal = plan_reconfiguration(provision("n2"), world(shard(0, "n1", "n2"), nodes=nodes(3)))
    assert isinstance(refusal, PlanRefusal) and "needs a cluster on Kubernetes" in refusal.message


def test_a_node_that_leaves_is_given_nothing_and_leads_only_where_nobody_else_can() -> None:
    known = {**nodes(4), "n4": node("n4", life=NodeLife.LEAVES)}
    refusal = plan_reconfiguration(swap("n1", "n4"), world(shard(0, "n1", "n2", "n3"), nodes=known))
    assert isinstance(refusal, PlanRefusal) and "about to leave" in refusal.message
    assert isinstance(plan_reconfiguration(swap("n1"), world(shard(0, "n1", "n2", "n3"), nodes=known)), PlanRefusal)
    one = shard(0, "n1", "n4", "n2")
    assert next_leader(one, world(one, nodes=known), {"n2": 9}) == "n2"
    alone = {**known, "n2": node("n2", up=False)}
    assert next_leader(one, world(one, nodes=alone), {}) == "n4"
