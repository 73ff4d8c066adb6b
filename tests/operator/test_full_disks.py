"""Full disks are shown: condition DiskFull, Ready, the nodes' messages, events, the plugin, targets of moves (K20)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from operator_views import group, node, nodes, record, shard, world
from tidemark_cli.kubectl.explain import explain_cluster
from tidemark_cli.kubectl.state import State
from tidemark_cli.views import bad_news
from tidemark_core.base.effects import Space
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.metadata import StoredObject
from tidemark_operator.model import Node
from tidemark_operator.resources.events import EventReason
from tidemark_operator.status.cluster import ClusterFacts, cluster_status
from tidemark_operator.status.group import GroupFacts, group_status

ONE = group(shards=1)
SHARD = shard(0, "n1", "n2", "n3", of=ONE)
RECORD = record("n1", "n2", "n3", leader="n1")
KINDS = ("LogGroup", "TidemarkCluster")


def with_full(*full: str, down: tuple[str, ...] = ()) -> dict[str, Node]:
    found = nodes(4)
    for name in full:
        found[name] = replace(found[name], space=Space.FULL, free_bytes=100 << 20)
    for name in down:
        found[name] = replace(found[name], up=False)
    return found


def status(kind: str, seen: dict[str, Node], of: Any = ONE) -> dict[str, Any]:
    made = shard(0, "n1", "n2", "n3", of=of)
    if kind == "LogGroup":
        found = group_status(GroupFacts(of, 3, {made.shard: made}, {made.shard: RECORD}, seen, 7))
    else:
        manifest = {"metadata": {"name": "dev"}, "spec": {
            "version": "1", "nodePools": [{"name": "default", "replicas": 4}],
            "metadataStore": {"etcd": {"endpoints": ["http://e:2379"]}}}}
        found = cluster_status(ClusterFacts(
            stored=StoredObject(manifest, "uid", "2026-01-01T00:00:00Z"),
            world=world(made, nodes=seen, groups=[of]), records={made.shard: RECORD}, key_prefix="/t", endpoints=1,
            last_node_id=4, version="1"))
    return ConditionMemory(lambda: "2026-01-01T00:00:00Z").stamp(kind, "x", 1, found)


def conditions(found: dict[str, Any]) -> dict[str, tuple[str, str, str]]:
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in found["conditions"]}


@pytest.mark.parametrize("kind", KINDS)
def test_k20_one_full_follower_is_shown_and_appends_go_on(kind: str) -> None:
    assert "DiskFull" not in conditions(status(kind, with_full()))
    told = conditions(status(kind, with_full("n2")))
    assert told["DiskFull"] == ("True", "DisksFull", "The disks of n2 are full; appends go on.")
    assert told["Ready"][0] == "True"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("seen", "of", "message"), [
    (with_full("n1"), ONE, "orders-0000 is led by n1, whose disk is full."),
    (with_full("n2", "n3"), ONE, "orders-0000 needs 2 members with space, and the disks of n2, n3 are full."),
    (with_full("n3", down=("n2",)), ONE, "orders-0000 needs 2 members with space, and the disks of n3 are full."),
    (with_full("n3"), group(shards=1, synchro_quorum="N"),
     "orders-0000 needs 3 members with space, and the disks of n3 are full."),
])
def test_k20_shards_that_refuse_appends_make_group_and_cluster_not_ready(
    kind: str, seen: dict[str, Node], of: Any, message: str
) -> None:
    told = conditions(status(kind, seen, of))
    assert told["DiskFull"] == ("True", "AppendsRefused", message)
    assert told["Ready"][0] == "False"
    if all(each.up for each in seen.values()):
        assert told["Ready"] == ("False", "DiskFull", message)
        assert told["Reconciling"][:2] == ("True", "DiskFull")


def test_k20_a_group_without_a_copy_on_the_full_disk_does_not_say_so() -> None:
    assert "DiskFull" not in conditions(status("LogGroup", with_full("n4")))
    assert "DiskFull" in conditions(status("TidemarkCluster", with_full("n4")))


def test_k20_a_node_says_how_much_is_free() -> None:
    told = {each["name"]: each["message"] for each in status("TidemarkCluster", with_full("n2"))["nodes"]}
    assert told == {"n1": "", "n2": "its disk is full: 100 MiB are free", "n3": "", "n4": ""}


@pytest.mark.parametrize("kind", KINDS)
def test_k20_events_tell_each_turn_once(kind: str) -> None:
    stages = [status(kind, with_full(*full)) for full in ((), ("n2",), ("n2",), ("n2", "n3"), ())]
    told = [
        [each.reason for each in occurrences(kind, before, after)
         if each.reason in (EventReason.DISK_FULL, EventReason.DISK_HAS_SPACE)]
        for before, after in pairwise(stages)]
    assert told == [[EventReason.DISK_FULL], [], [EventReason.DISK_FULL], [EventReason.DISK_HAS_SPACE]]


@pytest.mark.parametrize(("full", "blocks"), [((), None), (("n2",), False), (("n1",), True)])
def test_k20_the_plugin_says_so_among_what_blocks(full: tuple[str, ...], blocks: bool | None) -> None:
    said = status("TidemarkCluster", with_full(*full))
    cluster = {"kind": "TidemarkCluster", "metadata": {"name": "dev"}, "status": said}
    found = [each for each in explain_cluster(State(cluster, [], [], [], None)) if "disks are full" in each.what]
    assert [each.blocks for each in found] == ([] if blocks is None else [blocks])
    assert all("docs/runbooks.md#tidemarkdiskfull" in each.todo for each in found)


def test_k20_the_command_line_says_so_below_the_table() -> None:
    item = {"metadata": {"name": "orders"}, "status": status("LogGroup", with_full("n1"))}
    calm = {"metadata": {"name": "calm"}, "status": status("LogGroup", with_full())}
    assert bad_news("LogGroup", [item, calm, {"metadata": {"name": "new"}}]) == [
        "orders: DiskFull (AppendsRefused): orders-0000 is led by n1, whose disk is full."]


def test_k20_a_full_disk_gets_no_new_copies() -> None:
    assert node("n1").eligible
    assert not replace(node("n1"), space=Space.FULL).eligible
