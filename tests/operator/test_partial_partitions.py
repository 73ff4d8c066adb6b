"""Conditions, events and the disruption budget while nodes that are up do not hear each other (O43, O45)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from operator_views import group, member, node, nodes, record, shard, world
from tidemark_core.base.ids import LOG_PLANE, Member
from tidemark_core.node import NODE
from tidemark_core.replication.messages import Reach, Unheard
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.driver import MachineDriver
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.metadata import Keys, StoredObject
from tidemark_operator.model import out_of_sync, shard_views, unheard_though_up
from tidemark_operator.resources.events import EventReason
from tidemark_operator.shards import ShardMachine
from tidemark_operator.status.cluster import ClusterFacts, cluster_status
from tidemark_operator.status.group import GroupFacts, group_status
from tidemark_operator.status.shard import ShardFacts, shard_object

ONE = group(shards=1)
WHOLE = shard(0, "n1", "n2", "n3", of=ONE)
CUT_OFF = replace(WHOLE, unheard=frozenset({"n3"}))
RECORD = record("n1", "n2", "n3", leader="n1")
CUT = [("n1", "n3")]
MESSAGE = "n1 gets no answer of n3."


def conditions(status: dict[str, Any], kind: str) -> dict[str, tuple[str, str, str]]:
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in stamped(status, kind)}


def stamped(status: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ConditionMemory(lambda: "2026-01-01T00:00:00Z").stamp(
        kind, "x", 1, status)["conditions"]
    return found


def of_cluster(of: Any, cut: Any = ()) -> dict[str, Any]:
    manifest = {"metadata": {"name": "dev"}, "spec": {
        "version": "1", "nodePools": [{"name": "default", "replicas": 3}],
        "metadataStore": {"etcd": {"endpoints": ["http://e:2379"]}}}}
    return cluster_status(ClusterFacts(
        stored=StoredObject(manifest, "uid", "2026-01-01T00:00:00Z"), world=world(of, nodes=nodes(3), groups=[ONE]),
        records={of.shard: RECORD}, key_prefix="/t", endpoints=1, last_node_id=3, version="1", cut=cut))


def of_group(of: Any, cut: Any = ()) -> dict[str, Any]:
    return group_status(GroupFacts(ONE, 3, {of.shard: of}, {of.shard: RECORD}, nodes(3), 7, cut=cut))


def test_o45_a_copy_that_its_leader_does_not_hear_is_not_in_sync() -> None:
    assert out_of_sync(WHOLE, nodes(3)) == []
    assert out_of_sync(CUT_OFF, nodes(3)) == ["n3"]
    assert unheard_though_up(CUT_OFF, nodes(3)) == ["n3"]

    down = {**nodes(3), "n3": node("n3", up=False)}
    assert out_of_sync(CUT_OFF, down) == ["n3"]
    assert unheard_though_up(CUT_OFF, down) == [], "its pod is not ready, and counts as missing anyway"


def test_o45_views_take_what_leaders_say() -> None:
    views = shard_views([ONE], {WHOLE.shard: RECORD}, unheard={WHOLE.shard: frozenset({"n2"})})

    assert views[WHOLE.shard].unheard == {"n2"}


def test_o45_a_shard_shows_who_is_not_heard() -> None:
    status = shard_object(ShardFacts(CUT_OFF, RECORD, 7, ONE, nodes(3)))["status"]

    assert status["inSync"] == "2/3"
    assert [(each["node"], each["sync"]) for each in status["ensemble"]] == [
        ("n1", "InSync"), ("n2", "InSync"), ("n3", "Unheard")]
    assert conditions(status, "Shard")["FullyReplicated"] == ("False", "CopyUnreachable", "n3")


def test_o45_a_leader_that_hears_nobody_has_no_quorum() -> None:
    alone = replace(WHOLE, unheard=frozenset({"n2", "n3"}))

    assert conditions(of_group(alone), "LogGroup")["QuorumReachable"] == (
        "False", "NotEnoughMembers", "orders-0000 needs 2 members, 1 are there")


def test_o45_cluster_and_group_are_not_ready_and_name_the_pair() -> None:
    for kind, status in (("LogGroup", of_group), ("TidemarkCluster", of_cluster)):
        calm = conditions(status(WHOLE), kind)
        assert "NodesDisconnected" not in calm
        assert (calm["Ready"][0], calm["FullyReplicated"][0]) == ("True", "True")

        told = conditions(status(CUT_OFF, CUT), kind)
        assert told["NodesDisconnected"] == ("True", "LinkSilent", MESSAGE)
        assert told["Ready"] == ("False", "NodesDisconnected", MESSAGE)
        assert told["FullyReplicated"] == ("False", "CopiesMissing", "orders-0000")


def test_o43_nodes_that_share_no_shard_may_be_apart() -> None:
    assert "NodesDisconnected" not in conditions(of_cluster(WHOLE, [("n1", "n9")]), "TidemarkCluster")


def test_o43_events_tell_of_it_and_of_its_end() -> None:
    calm = {"conditions": stamped(of_cluster(WHOLE), "TidemarkCluster")}
    apart = {"conditions": stamped(of_cluster(CUT_OFF, CUT), "TidemarkCluster")}

    def told(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, str]]:
        wanted = (EventReason.NODES_DISCONNECTED, EventReason.NODES_RECONNECTED)
        return [
            (each.reason, each.note) for each in occurrences("TidemarkCluster", before, after) if each.reason in wanted]

    assert told(calm, apart) == [(EventReason.NODES_DISCONNECTED, MESSAGE)]
    assert told(apart, apart) == []
    assert [reason for reason, _ in told(apart, calm)] == [EventReason.NODES_RECONNECTED]


class Machine:
    """Coordinators that count: a report of a node may change what is known, or repeat it."""

    def __init__(self) -> None:
        self.shards: dict[Any, Any] = {}
        self.reports: Any = self
        self.version = 0
        self.silence_ms = 3_000
        self.seen: list[Any] = []

    def step(self, now_ms: int, event: Any) -> list[Any]:
        if getattr(event, "message", None) is not None:
            self.seen.append(event)
            self.version += bool(event.message.unheard)
        return []

    def diverged(self, now_ms: int) -> dict[Any, tuple[Any, ...]]:
        return {}

    def unheard(self, now_ms: int) -> dict[Any, tuple[Member, ...]]:
        return {WHOLE.shard: (member("n3"),)}


def test_o45_the_driver_hands_reports_in_and_wakes_the_operator_for_news_alone() -> None:
    machine, woken = Machine(), []
    shards = ShardMachine(machine)  # type: ignore[arg-type]
    driver = MachineDriver({LOG_PLANE: shards}, None, Keys("/t"), lambda *_: None)  # type: ignore[arg-type]
    shards.on_reach = lambda: woken.append(machine.version)

    driver.received(NODE, member("n1"), "boot", Reach((member("n2"),), ()))
    assert woken == []
    driver.received(NODE, member("n1"), "boot", Reach((), (), (Unheard(WHOLE.shard, 1, (member("n3"),)),)))

    assert woken == [1]
    assert [event.boot for event in machine.seen] == ["boot", "boot"]
    assert shards.unheard() == {WHOLE.shard: frozenset({"n3"})}
