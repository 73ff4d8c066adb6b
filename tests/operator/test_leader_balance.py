"""Leaderships that faults left uneven: who takes one, when, and that moves come to an end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_views import member, node, nodes, nothing_lags, shard, world
from tidemark_core.base.ids import Address
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication.records import ChangeDone, StartTransfer
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.run import ClusterRun
from tidemark_operator.leader_balance import PAUSE_MIN_S, LeaderBalance, Transfer
from tidemark_operator.metadata import NodeLife, StoredObject
from tidemark_operator.model import Node, cluster_view
from tidemark_operator.plan import World
from tidemark_operator.resources.events import EventReason
from tidemark_operator.tending import Tender

NAMES = ("n1", "n2", "n3")
QUARANTINE_S = 300.0
SETTLED_S, PAUSE_S = QUARANTINE_S / 5, QUARANTINE_S / 30


def led(*leaders: str, **known: Any) -> World:
    """Shards on three nodes with these leaders."""
    made = [shard(index, *NAMES, leader=leader) for index, leader in enumerate(leaders)]
    return world(*made, nodes={**nodes(3), **known})


def handed_over(before: World, found: Transfer) -> World:
    return replace(before, shards={**before.shards, found.shard.shard: replace(found.shard, leader=found.to)})


UNEVEN = ("n1", "n1", "n1", "n1", "n1", "n2")


@dataclass
class Watched:
    """A cluster under balance, and the moves that it comes to."""

    world: World
    now_s: float = 1_000.0
    quarantine_s: float = QUARANTINE_S
    balance: LeaderBalance = field(default_factory=LeaderBalance)
    moves: list[tuple[float, Transfer]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.balance.observe(self.now_s, self.world, calm=True)

    def look(self, *, calm: bool = True, behind: Collection[str] = ()) -> Transfer | float | None:
        self.balance.observe(self.now_s, self.world, calm=calm)
        return self.balance.choose(self.now_s, self.world, self.quarantine_s, behind)

    def run(self, seconds: float, **how: Any) -> int:
        """Look again when due, and move what is to move; return how many moved."""
        before, until_s = len(self.moves), self.now_s + seconds
        while self.now_s < until_s:
            found = self.look(**how)
            if isinstance(found, Transfer):
                self.moves.append((self.now_s, found))
                self.balance.moved(self.now_s, found.shard.shard)
                self.world = handed_over(self.world, found)
            else:
                self.now_s += found if isinstance(found, float) else seconds
        return len(self.moves) - before


def test_five_one_and_none_become_two_each() -> None:
    watched = Watched(led(*UNEVEN))
    assert watched.look() == SETTLED_S, "the cluster settles first"
    assert watched.run(3_600) == 3
    assert watched.world.leaders() == {"n1": 2, "n2": 2, "n3": 2}
    first, *others = [at_s for at_s, _ in watched.moves]
    assert first == 1_000 + QUARANTINE_S
    assert [at_s - first for at_s in others] == [PAUSE_S, 2 * PAUSE_S]
    assert watched.run(3_600) == 0, "even leaderships stay where they are"


@pytest.mark.parametrize("leaders", [("n1",), ("n1", "n2"), ("n1", "n1", "n2", "n2", "n3"), ("n1", "n2", "n3", "n1")])
def test_a_difference_of_one_is_even(leaders: tuple[str, ...]) -> None:
    watched = Watched(led(*leaders))
    assert watched.run(3_600) == 0 and watched.look() is None


@pytest.mark.parametrize("unfit", [
    node("n3", up=False), node("n3", draining=True), node("n3", yielding=True), node("n3", life=NodeLife.LEAVES),
    replace(node("n3"), member=member("n3", "2")),
])
def test_a_node_that_is_down_leaving_or_on_another_disk_is_given_nothing(unfit: Node) -> None:
    watched = Watched(led("n1", "n1", "n1", "n1", n3=unfit))
    watched.run(3_600)
    assert all(found.to != "n3" for _, found in watched.moves)


def test_a_shard_with_a_member_that_is_away_keeps_its_leader() -> None:
    assert Watched(led("n1", "n1", "n1", "n1", n3=node("n3", up=False))).run(3_600) == 0


def test_members_that_lack_entries_are_left_and_others_move() -> None:
    pairs = [shard(index, "n1", "n2" if index % 2 else "n3", leader="n1") for index in range(6)]
    watched = Watched(world(*pairs, nodes=nodes(3)), now_s=0.0)
    assert watched.run(3_600, behind={"n3"}) == 3
    assert {found.to for _, found in watched.moves} == {"n2"}
    assert watched.run(3_600) == 1 and watched.world.leaders() == {"n1": 2, "n2": 3, "n3": 1}


def test_a_node_that_came_back_waits_for_its_quarantine() -> None:
    watched = Watched(led(*UNEVEN, n3=node("n3", up=False)))
    watched.run(1_000)
    watched.world, back_s = led(*UNEVEN), watched.now_s
    watched.run(1_000)
    first_s = min(at_s for at_s, found in watched.moves if found.to == "n3")
    assert first_s >= back_s + QUARANTINE_S and watched.world.leaders()["n3"] == 2


def test_a_node_that_flaps_is_given_nothing() -> None:
    watched = Watched(led(*UNEVEN))
    for _ in range(50):
        watched.world = led(*UNEVEN, n2=node("n2", up=False), n3=node("n3", up=False))
        watched.run(20)
        watched.world = led(*UNEVEN)
        watched.run(QUARANTINE_S - 1)
    assert not watched.moves


def test_nothing_moves_while_anything_else_is_under_way() -> None:
    watched = Watched(led(*UNEVEN))
    assert watched.run(3_600, calm=False) == 0
    assert watched.look() == SETTLED_S, "from when that ended"
    watched.world = led(*UNEVEN[:-1], "")
    assert watched.run(3_600) == 0, "a shard has no leader"


def test_a_shard_that_was_just_elected_elsewhere_rests() -> None:
    watched = Watched(led(*UNEVEN))
    watched.now_s += QUARANTINE_S - 1
    watched.world = led("n1", "n1", "n1", "n1", "n3", "n3")
    watched.look()
    watched.now_s += 1
    found = watched.look()
    assert isinstance(found, Transfer) and found.shard.index < 4
    watched.world = led("n2", "n2", "n2", "n2", "n3", "n3")
    assert isinstance(watched.look(), float), "all were elected now"


def test_a_leadership_that_was_refused_rests_too() -> None:
    watched = Watched(led(*UNEVEN), quarantine_s=30.0)
    watched.now_s += 30
    refused = watched.look()
    assert isinstance(refused, Transfer)
    watched.balance.moved(watched.now_s, refused.shard.shard)
    assert watched.look() == PAUSE_MIN_S
    watched.now_s += PAUSE_MIN_S
    other = watched.look()
    assert isinstance(other, Transfer) and other.shard.shard != refused.shard.shard


# --- any cluster ---------------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> World:
    count = draw(st.integers(1, 6))
    names = [f"n{number}" for number in range(1, count + 1)]
    made = []
    for index in range(draw(st.integers(1, 14))):
        ensemble = draw(st.permutations(names))[:draw(st.integers(1, count))]
        made.append(shard(index, *ensemble, leader=draw(st.sampled_from(["", *ensemble, *ensemble, *ensemble]))))
    known = {name: draw(st.sampled_from([
        node(name), node(name), node(name), node(name, up=False), node(name, draining=True), node(name, yielding=True),
        node(name, life=NodeLife.LEAVES), replace(node(name), member=member(name, "2")),
    ])) for name in names}
    return world(*made, nodes=known)


@settings(max_examples=60, deadline=None)
@given(clusters(), st.sets(st.sampled_from(["n1", "n2", "n3", "n4"])))
def test_each_move_goes_to_a_whole_member_that_leads_less(any_world: World, behind: set[str]) -> None:
    watched = Watched(any_world)
    watched.run(3_600, behind=behind)
    then = any_world
    for _, found in watched.moves:
        leaders, taker = then.leaders(), then.nodes[found.to]
        before = then.shards[found.shard.shard]
        assert found.to in before.ensemble and found.to != before.leader
        assert taker.up and not taker.draining and not taker.yielding and taker.life is NodeLife.STAYS
        assert leaders[before.leader or ""] >= leaders[found.to] + 2
        for one in before.members:
            assert then.nodes[one.node].up and then.nodes[one.node].member == one and one.node not in behind
        then = handed_over(then, found)
    times = [at_s for at_s, _ in watched.moves]
    assert all(later - earlier >= PAUSE_S for earlier, later in itertools.pairwise(times))
    if any(not one.leader for one in any_world.shards.values()):
        assert not times


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_whole_clusters_become_as_even_as_single_moves_make_them_and_stay_so(any_world: World) -> None:
    whole = replace(any_world, nodes=nodes(len(any_world.nodes)), shards={
        key: replace(one, leader=one.leader or one.ensemble[0]) for key, one in any_world.shards.items()})
    watched = Watched(whole)
    watched.run(100_000)
    leaders = watched.world.leaders()
    for one in watched.world.shards.values():
        assert all(leaders[one.leader or ""] - leaders[name] < 2 for name in one.ensemble)
    assert watched.run(100_000) == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.floats(1, 2_000), st.floats(1, 2_000)), max_size=12))
def test_faults_are_followed_by_as_few_moves_as_make_leaderships_even(faults: list[tuple[str, float, float]]) -> None:
    """A node dies, its shards are elected elsewhere, it comes back: no shard returns to a node that gave it away."""
    watched = Watched(led("n1", "n2", "n3", "n1", "n2", "n3"))
    for name, away_s, back_s in faults:
        heirs = [other for other in NAMES if other != name]
        moved = len(watched.moves)
        watched.world = replace(
            watched.world, nodes={**nodes(3), name: node(name, up=False)},
            shards={key: replace(one, leader=heirs[one.index % 2]) if one.leader == name else one
                    for key, one in watched.world.shards.items()})
        watched.run(away_s)
        assert len(watched.moves) == moved, "a member is away"
        watched.world = replace(watched.world, nodes=nodes(3))
        watched.run(back_s)
        gave: set[tuple[int, str | None]] = set()
        for _, found in watched.moves[moved:]:
            gave.add((found.shard.shard, found.shard.leader))
            assert (found.shard.shard, found.to) not in gave
    watched.run(10_000)
    assert set(watched.world.leaders().values()) == {2}


# --- carrying it out -----------------------------------------------------------------------------------------------


class Driver:
    """Answers each transfer as `refuse` says, and does it in `world`."""

    def __init__(self, before: World) -> None:
        self.world = before
        self.asked: list[StartTransfer] = []
        self.refuse = False
        self.on_change: Callable[[], None] = lambda: None

    async def change(self, _at: Address, make: Callable[[int], StartTransfer]) -> ChangeDone | Refused:
        asked = make(len(self.asked))
        self.asked.append(asked)
        if self.refuse:
            return Refused(Reason.ABORTED, "it did not catch up in time")
        one = self.world.shards[asked.shard]
        for leader in (None, asked.to_node):
            self.world = replace(self.world, shards={**self.world.shards, asked.shard: replace(one, leader=leader)})
            self.on_change()
            await asyncio.sleep(0)
        return ChangeDone(2, one.members, member(asked.to_node))


@dataclass
class Tended:
    driver: Driver
    now_s: float = 0.0
    pokes: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lagging: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        async def lags() -> set[str]:
            return await nothing_lags() | self.lagging

        self.tender = Tender(self.driver, self.pokes.append, lags, self.notes.append, now=lambda: self.now_s)  # type: ignore[arg-type]

    async def look(self, quarantine_s: float | None = 30.0, *, calm: bool = True) -> None:
        """Look, and again as often as the tender asks to at once."""
        self.pokes = [0.0]
        self.tender._poke_later = self.pokes.append
        self.driver.on_change = lambda: self.tender.look(
            self.driver.world, 4, calm=calm, balance_quarantine_s=quarantine_s)
        while 0.0 in self.pokes:
            self.pokes.clear()
            self.tender.look(self.driver.world, 4, calm=calm, balance_quarantine_s=quarantine_s)
            for _ in range(8):
                await asyncio.sleep(0)

    async def run(self, seconds: int, **how: Any) -> None:
        for _ in range(seconds):
            await self.look(**how)
            self.now_s += 1


async def test_the_operator_moves_one_at_a_time_and_tells_of_each() -> None:
    tended = Tended(Driver(led(*UNEVEN)))
    await tended.run(30)
    assert not tended.driver.asked
    for count in (1, 2, 3):
        await tended.run(1)
        assert len(tended.driver.asked) == count, "one a second: a transfer of its own disturbs no calm"
    await tended.run(60)
    assert tended.driver.world.leaders() == {"n1": 2, "n2": 2, "n3": 2} and len(tended.driver.asked) == 3
    assert len(tended.notes) == 3
    assert tended.notes[0] == "orders-0000: from n1, which led 5, to n3, which led 0."
    await tended.tender.close()


async def test_switched_off_or_not_calm_it_moves_nothing() -> None:
    tended = Tended(Driver(led(*UNEVEN)))
    await tended.run(100, quarantine_s=None)
    await tended.run(100, calm=False)
    assert not tended.driver.asked
    await tended.tender.close()


async def test_nodes_are_asked_who_lags_before_a_leadership_moves() -> None:
    tended = Tended(Driver(led(*UNEVEN)), lagging={"n2"})
    await tended.run(100)
    assert not tended.driver.asked, "n2 is a member of every shard"
    tended.lagging.clear()
    await tended.run(20)
    assert tended.driver.asked
    await tended.tender.close()


async def test_looks_while_nothing_is_due_leave_one_timer_behind() -> None:
    tended = Tended(Driver(led(*UNEVEN)))
    for _ in range(50):
        tended.tender.look(tended.driver.world, 4, calm=True, balance_quarantine_s=30.0)
    assert len(tended.pokes) == 1
    await tended.tender.close()


async def test_on_kubernetes_a_transfer_is_an_event_of_the_cluster() -> None:
    happened: list[tuple[str, EventReason, str]] = []

    class Events:
        def tell(self, item: dict[str, Any], reason: EventReason, note: str, *, related: object) -> None:
            happened.append((item["metadata"]["name"], reason, note))

    item = {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster",
        "metadata": {"name": "prod", "namespace": "data", "uid": "u1", "resourceVersion": "1"},
        "spec": {
            "version": "0.1.0", "metadataStore": {"etcd": {"endpoints": ["http://etcd:2379"]}},
            "nodePools": [{"name": "default", "replicas": 3, "storage": {"data": {"size": "1Gi"}}}]},
    }
    caches = {kind: Cache() for kind in ("TidemarkCluster", "LogGroup", "Keyspace", "Reconfiguration", "Secret", "Pod")}
    caches["TidemarkCluster"].learn(item)
    run = ClusterRun(item, None, caches, None, Events(), lambda: None)  # type: ignore[arg-type]
    run.service.tender._on_balanced("orders-0000: from prod-1, which led 5, to prod-3, which led 0.")
    assert happened == [(
        "prod", EventReason.LEADERSHIP_BALANCED, "orders-0000: from prod-1, which led 5, to prod-3, which led 0.")]
    await run.service.store.close()


@pytest.mark.parametrize(("written", "quarantine_s"), [
    ({}, 300.0),
    ({"reconfiguration": {"leaderBalance": "Automatic"}, "failureDetection": {"leaderQuarantineSeconds": 5}}, 5.0),
    ({"reconfiguration": {"leaderBalance": "Manual"}, "failureDetection": {"leaderQuarantineSeconds": 5}}, None),
])
def test_the_manifest_switches_it(written: dict[str, Any], quarantine_s: float | None) -> None:
    stored = StoredObject({"metadata": {"name": "dev"}, "spec": {"nodePools": [], **written}}, "u1", "")
    assert cluster_view(stored).balance_quarantine_s == quarantine_s
