"""Who is restarted next: never two nodes at once, never a shard below its quorum, and all of them in the end."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from operator_views import group, nodes, ring, shard, world
from tidemark_core.optimistic.ring import Quorum, begun
from tidemark_operator.kube.rollout import Decision, PodView, Policy, decide, moment, pod_view
from tidemark_operator.plan import World
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.resources.events import RestartReason

from tests.seeds import every_seed

CHANGED = (RestartReason.REVISION_CHANGED,)
POLICY = Policy()
TWO = (shard(0, "n1", "n2", "n3"), shard(1, "n2", "n3", "n1", leader="n2"))


def pods(count: int = 3, **more: Any) -> dict[str, PodView]:
    return {f"n{i}": PodView(f"n{i}", f"u{i}", True, False, 60, CHANGED, **more) for i in range(1, count + 1)}


def down(made: World, *names: str) -> World:
    return replace(made, nodes={
        name: replace(node, up=node.up and name not in names) for name, node in made.nodes.items()})


def chosen(decision: Decision) -> list[str]:
    return [pod.node for pod in decision.restart]


def test_whoever_leads_least_goes_first_and_alone() -> None:
    made = world(*TWO, nodes=nodes(3))
    assert chosen(decide(pods(), made, {}, POLICY)) == ["n3"]
    assert chosen(decide(pods(), made, {"n2": 1}, POLICY)) == ["n2"], "what was begun is ended first"
    assert decide(pods(), made, {"n2": 1}, POLICY).ended == ()


def test_one_that_is_not_ready_goes_first_even_where_others_could_not() -> None:
    """Waiting for it may be waiting for ever: it runs the broken template."""
    known = pods()
    known["n2"] = replace(known["n2"], ready=False, steady_s=5)
    decision = decide(known, down(world(*TWO, nodes=nodes(3)), "n2"), {}, POLICY)
    assert chosen(decision) == ["n2"]
    assert decision.closed == (R.UNDER_REPLICATED, "n2 must be back first")


def test_one_that_is_up_though_not_ready_keeps_the_quorum() -> None:
    known = pods()
    known["n2"] = replace(known["n2"], ready=False, steady_s=5)
    known["n3"] = replace(known["n3"], ready=False, steady_s=5)
    made = down(world(*TWO, nodes=nodes(3)), "n3")
    decision = decide(known, made, {}, POLICY)
    assert chosen(decision) == ["n3"]
    assert decision.closed == (R.UNDER_REPLICATED, "orders-0000 needs 2 members, 1 would be left")


@pytest.mark.parametrize("change", [
    {"ready": False}, {"going": True}, {"steady_s": 9}, {"uid": "", "ready": False}])
def test_the_next_waits_until_every_other_node_has_been_ready_for_a_while(change: dict[str, Any]) -> None:
    known = pods()
    known["n1"] = replace(known["n1"], reasons=(), **change)
    decision = decide(known, world(*TWO, nodes=nodes(3)), {}, POLICY)
    assert chosen(decision) == []
    assert decision.closed == (R.UNDER_REPLICATED, "n1 must be back first")


def test_a_range_of_a_keyspace_keeps_its_quorums_where_these_can_spare_an_owner() -> None:
    own = ring("n1 n2 n3")
    made = replace(world(nodes=nodes(4)), ranges={7 << 32 | 5: own[0]})
    two = Policy(max_unavailable=2)
    assert chosen(decide(pods(4), made, {}, two)) == ["n1", "n4"], "n4 owns nothing"
    decision = decide(pods(4), down(made, "n2"), {}, two)
    assert chosen(decision) == ["n2", "n4"]
    assert decision.closed == (R.UNDER_REPLICATED, "range 5 of keyspace 7 needs 2 owners, 1 would be left")
    every = replace(made, ranges={7 << 32: ring("n1 n2 n3", quorum=Quorum(3, 1, 3))[0]})
    assert chosen(decide(pods(4), every, {}, two)) == ["n1", "n2"], "they can never spare one"
    moving = replace(made, ranges={7 << 32: begun(ring("n1 n2 n4")[0], own[0].own)})
    assert chosen(decide(pods(4), down(moving, "n3"), {}, two)) == ["n3", "n4"], "n1 and n2 are pending owners too"


def test_a_copy_that_is_missing_or_a_leader_names_its_shard() -> None:
    lonely = world(shard(0, "n1", "n2", "n9"), nodes=nodes(3))
    assert decide(pods(), lonely, {}, POLICY).closed == (R.UNDER_REPLICATED, "orders-0000 waits for n9")
    assert chosen(decide(pods(), lonely, {}, POLICY)) == ["n3"], "it has nothing to do with that shard"
    leaderless = world(shard(0, "n1", "n2", "n3", leader=""), nodes=nodes(3))
    assert decide(pods(), leaderless, {}, POLICY).closed == (R.UNDER_REPLICATED, "orders-0000 has no leader")


@pytest.mark.parametrize(("members", "more"), [(1, {}), (2, {}), (3, {"synchro_quorum": 3})])
def test_what_can_never_spare_a_member_holds_up_nobody(members: int, more: dict[str, Any]) -> None:
    one = group(factor=members, **more)
    made = world(shard(0, *[f"n{i}" for i in range(1, members + 1)], of=one), nodes=nodes(3), groups=[one])
    known = {name: replace(pod, reasons=pod.reasons if name == "n1" else ()) for name, pod in pods().items()}
    assert chosen(decide(known, made, {}, POLICY)) == ["n1"]


def test_a_restart_is_over_when_its_node_serves_again() -> None:
    made, known = world(*TWO, nodes=nodes(3)), pods()
    for change, over in (({}, True), ({"ready": False}, False), ({"steady_s": 5}, False), (
            {"uid": "", "ready": False}, False)):
        known["n1"] = replace(pods()["n1"], reasons=(), **change)
        assert (decide(known, made, {"n1": 20}, POLICY).ended == ("n1",)) == over, change
    known["n1"] = replace(pods()["n1"], reasons=())
    assert decide(known, down(made, "n1"), {"n1": 20}, POLICY).ended == ()
    del known["n1"]
    assert decide(known, made, {"n1": 20}, POLICY).ended == ("n1",), "the node was removed"


def test_a_turn_that_cannot_be_used_is_given_back() -> None:
    """Perhaps only another act can mend what it waits for."""
    known = pods()
    known["n2"] = replace(known["n2"], reasons=(), ready=False)
    decision = decide(known, down(world(*TWO, nodes=nodes(3)), "n2"), {"n1": 3}, POLICY)
    assert (chosen(decision), decision.ended) == ([], ("n1",))


def test_a_node_that_does_not_come_back_stops_the_rollout() -> None:
    known = pods()
    known["n1"] = replace(known["n1"], reasons=(), ready=False, steady_s=901)
    made = down(world(*TWO, nodes=nodes(3)), "n1")
    decision = decide(known, made, {"n1": 931}, POLICY)
    assert (decision.overdue, decision.ended, chosen(decision)) == (("n1",), ("n1",), [])
    assert decision.closed == (R.NODE_READY_TIMEOUT, "n1 did not become ready in time")
    known["n1"] = replace(known["n1"], reasons=CHANGED)  # the spec was mended
    assert chosen(decide(known, made, {}, POLICY)) == ["n1"]


def test_time_alone_is_looked_at_again() -> None:
    made, known = world(*TWO, nodes=nodes(3)), pods()
    known["n1"] = replace(known["n1"], steady_s=4)
    assert decide(known, made, {}, POLICY).again_s == 6
    assert decide(pods(), made, {"n3": 12}, POLICY).again_s == 18
    assert decide({name: replace(pod, reasons=()) for name, pod in pods().items()}, made, {}, POLICY).again_s is None


# --- random worlds ------------------------------------------------------------------------------------------


class Simulated:
    """A cluster whose restarted pods come back later; machines fail and come back, specs change, operators end."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        count = dice.randint(3, 7)
        self.policy = Policy(max_unavailable=dice.randint(1, 3), min_ready_s=2, ready_timeout_s=10_000)
        self.group = group(factor=3, shards=8, synchro_quorum=dice.choice([None, 2, 3]))
        names = [f"n{i}" for i in range(1, count + 1)]
        shards = [shard(i, *dice.sample(names, dice.choice([1, 3, 3, 3])), of=self.group) for i in range(8)]
        self.world = world(*shards, nodes=nodes(count), groups=[self.group])
        self.pods = pods(count)
        self.held: dict[str, float] = {}
        self.taken_down: set[str] = set()
        self.uids = count

    def step(self, faults: bool) -> None:
        for name, pod in list(self.pods.items()):
            self.pods[name] = replace(pod, steady_s=pod.steady_s + 1)
        self.held = {name: since + 1 for name, since in self.held.items()}
        decision = decide(self.pods, self.world, self.held, self.policy)
        for name in decision.ended:
            self.held.pop(name)
        for pod in decision.restart:
            self.held.setdefault(pod.node, 0)
            assert len(self.held) <= self.policy.max_unavailable or not pod.ready or not self.serves(pod.node)
            if self.dice.random() < 0.5:
                self.take_down(pod.node)
        for name in sorted(self.taken_down):
            if self.dice.random() < 0.4:
                self.bring_back(name, CHANGED if faults and self.dice.random() < 0.1 else ())
        if faults and self.dice.random() < 0.1:
            self.fail(self.dice.choice(sorted(self.pods)))

    def serves(self, name: str) -> bool:
        return self.world.nodes[name].up

    def take_down(self, name: str) -> None:
        there = {each.shard: self.in_sync(each.ensemble) for each in self.world.shards.values()}
        was_up = self.serves(name)
        self.world = down(self.world, name)
        self.pods[name] = replace(self.pods[name], ready=False, going=True, steady_s=0)
        self.taken_down.add(name)
        if not was_up:
            return
        for each in self.world.shards.values():
            count = len(each.ensemble)
            quorum = max(self.group.quorum(count), count // 2 + 1)
            if name in each.ensemble and count > quorum:
                assert self.in_sync(each.ensemble) >= quorum, (name, each)
                assert there[each.shard] == count, "every copy was there"

    def in_sync(self, ensemble: tuple[str, ...]) -> int:
        return sum(self.serves(name) for name in ensemble)

    def fail(self, name: str) -> None:
        self.world = down(self.world, name)
        self.pods[name] = replace(self.pods[name], ready=False, steady_s=0)
        self.taken_down.add(name)

    def bring_back(self, name: str, reasons: tuple[RestartReason, ...]) -> None:
        self.taken_down.discard(name)
        self.uids += 1
        again = self.pods[name].going
        self.pods[name] = PodView(
            name, f"u{self.uids}" if again else self.pods[name].uid, True, False, 0,
            reasons if again else self.pods[name].reasons)
        self.world = replace(self.world, nodes={
            **self.world.nodes, name: replace(self.world.nodes[name], up=True)})


@every_seed(300)
def test_no_shard_falls_below_its_quorum_and_all_nodes_are_restarted(seed: int) -> None:
    simulated = Simulated(random.Random(seed))
    for _step in range(60):
        simulated.step(faults=True)
    for _step in range(400):
        simulated.step(faults=False)
    assert not [pod.node for pod in simulated.pods.values() if pod.reasons]
    assert not simulated.held


# --- reading pods -------------------------------------------------------------------------------------------

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def pod(created: str = "2026-01-01T00:00:00Z", *, ready: str = "True", **annotations: str) -> dict[str, Any]:
    names = {"revision": "tidemark.dev/revision", "asked": "tidemark.dev/restartedAt",
             "done": "tidemark.dev/restarted-for"}
    return {
        "metadata": {"uid": "u", "creationTimestamp": created,
                     "annotations": {names[name]: text for name, text in annotations.items()}},
        "status": {"conditions": [
            {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T23:59:00Z"}]}}


def test_a_pod_is_read() -> None:
    assert pod_view("n1", pod(revision="r"), "r", "", NOW) == PodView("n1", "u", True, False, 60.0, ())
    assert pod_view("n1", pod(revision="q", ready="False"), "r", "", NOW).reasons == CHANGED
    assert not pod_view("n1", pod(revision="q", ready="False"), "r", "", NOW).ready
    assert pod_view("n1", pod(), "r", "", NOW, automatic=False).reasons == ()
    assert pod_view("n1", None, "r", "", NOW) == PodView("n1")
    new = {"metadata": {"uid": "u", "creationTimestamp": "2026-01-01T23:59:50Z", "deletionTimestamp": "x"}}
    assert pod_view("n1", new, "r", "", NOW) == PodView("n1", "u", False, True, 10.0, CHANGED)
    wants = pod_view("n1", pod(revision="r"), "r", "", NOW, (RestartReason.VOLUME_RESIZE,))
    assert wants.reasons == (RestartReason.VOLUME_RESIZE,)


@pytest.mark.parametrize(("cluster", "own", "due"), [
    ("2026-01-01T12:00:00Z", {}, True),
    ("2026-01-01T13:00:00+01:00", {}, True),
    ("2025-12-31T00:00:00Z", {}, False),
    ("2026-01-03T00:00:00Z", {}, False),
    ("2026-01-01T12:00:00Z", {"done": "2026-01-01T12:00:00Z"}, False),
    ("2026-01-01T12:00:00Z", {"done": "2026-01-01T11:00:00Z"}, True),
    ("", {"asked": "2026-01-01T12:00:00Z"}, True),
    ("", {"asked": "2026-01-03T12:00:00Z"}, False),
    ("", {"asked": "soon"}, False),
])
def test_a_restart_that_people_ask_for_happens_once(cluster: str, own: dict[str, str], due: bool) -> None:
    found = pod_view("n1", pod(revision="r", **own), "r", cluster, NOW, automatic=False)
    assert found.reasons == ((RestartReason.MANUAL_RESTART,) if due else ())


def test_times_without_a_zone_are_utc() -> None:
    assert moment("2026-01-02T00:00:00") == moment("2026-01-02T01:00:00+01:00") == NOW
    assert moment("now") is None and moment("") is None
    assert NOW - moment("2026-01-01T23:59:59.5Z") == timedelta(seconds=0.5)
