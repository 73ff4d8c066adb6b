"""Restarts as they are carried out: whose turn it is, leaderships first, the pod that was judged, and what is said."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from operator_views import nodes, shard, world
from test_kube_pods import SPEC
from tidemark_operator.condition_memory import ConditionMemory, timestamp
from tidemark_operator.disruption import Act, Hold, taken
from tidemark_operator.kube.api import Kind
from tidemark_operator.kube.builders import Cluster, revision, template
from tidemark_operator.kube.rolling import Rolling
from tidemark_operator.metadata import NodeRecord
from tidemark_operator.plan import World
from tidemark_operator.resources import load_resource
from tidemark_operator.status.kubernetes import rollout_conditions

OLD = "2020-01-01T00:00:00Z"


class Turns:
    """The disruption key, in memory."""

    def __init__(self) -> None:
        self.hold: Hold | None = None

    async def take(self, act: Act, subject: str, at_most: int) -> bool:
        got = taken(self.hold, act, subject, "op", timestamp(), at_most)
        self.hold = got or self.hold
        return got is not None

    async def end(self, act: Act, subject: str) -> None:
        assert self.hold is not None and self.hold.has(act, subject)
        self.hold = None

    def in_the_way(self, act: Act, subject: str, at_most: int) -> str:
        return f"waits for {self.hold}"


class Run:
    """A cluster of three nodes whose pods run an older template."""

    def __init__(self, **more: Any) -> None:
        pool = {key: value for key, value in SPEC["nodePools"][0].items() if key != "zones"}
        spec = {**SPEC, "nodePools": [pool], **more}
        manifest = {"apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": "prod"},
                    "spec": spec}
        self.namespace, self.name = "data", "prod"
        self.item: dict[str, Any] = {"kind": "TidemarkCluster", "metadata": {"name": "prod", "annotations": {}}}
        self.cluster = Cluster("data", "prod", "uid", load_resource(manifest, "test").manifest()["spec"])
        self.restarts_wanted: dict[str, Any] = {}
        self.yielding: frozenset[str] = frozenset()
        self.turns = Turns()
        self.seen = world(shard(0, "n1", "n2", "n3"), shard(1, "n2", "n3", "n1"), nodes=nodes(3))
        self.service = SimpleNamespace(
            active=True, world=lambda: self.seen, have_yield=self._have_yield, disruption=self.turns,
            nodes=lambda: self.seen.nodes, lagging=self._lagging, knows_its_nodes=lambda: self.judged,
            mirror=SimpleNamespace(cluster=None, nodes={
                name: NodeRecord(name, "x", pool="general") for name in ("n1", "n2", "n3")}))
        self.live = {name: self.pod(name, "old") for name in ("n1", "n2", "n3")}
        self.lagging: set[str] = set()
        self.judged = True
        self.deleted: list[tuple[str, str]] = []
        self.told: list[tuple[str, str, str]] = []
        self.clock = 0.0
        self.rolling = Rolling(self, self, lambda: self.clock)  # type: ignore[arg-type]

    def tell(self, reason: str, note: str, *, pod: str = "") -> None:
        self.told.append((reason, note, pod))

    def pod(self, name: str, made_from: str, ready: str = "True") -> dict[str, Any]:
        return {
            "kind": "Pod",
            "metadata": {"name": name, "uid": f"{name}-{made_from}", "creationTimestamp": OLD,
                         "ownerReferences": [{"uid": "uid"}],
                         "annotations": {"tidemark.dev/revision": made_from}},
            "status": {"conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": OLD}]}}

    def renew(self, name: str, ready: str = "True") -> None:
        self.live[name] = self.pod(name, revision(self.cluster, "general"), ready)

    def lead(self, *leaders: str) -> World:
        shards = {number: replace(each, leader=leader) for (number, each), leader in zip(
            self.seen.shards.items(), leaders, strict=True)}
        self.seen = replace(self.seen, shards=shards)
        return self.seen

    async def _lagging(self) -> set[str]:
        return self.lagging

    def _have_yield(self, names: frozenset[str], emptied: frozenset[str]) -> None:
        self.yielding = names

    def accepted(self) -> Cluster:
        return self.cluster

    def pods(self) -> dict[str, Any]:
        return self.live

    def draining(self) -> dict[str, Any]:
        return {}

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self.deleted.append((name, uid))

    async def look(self) -> dict[str, str]:
        """Look, and return what is said; the closed list of conditions has all of it."""
        await self.rolling.look()
        written = ConditionMemory().write(
            "TidemarkCluster", "prod", 1, rollout_conditions(self.rolling.facts) if self.rolling.facts else [])
        return {each["type"]: f"{each['status']} {each['reason']} {each['message']}".strip() for each in written}


async def test_leaderships_move_before_the_pod_that_was_judged_is_deleted_once() -> None:
    run = Run()
    run.lead("n1", "n2")
    await run.look()
    assert run.deleted == [("n3", "n3-old")], "it leads nothing"
    assert run.told == [("NodeRestarting", "n3: RevisionChanged", "n3")]
    assert run.turns.hold is not None and run.turns.hold.has(Act.RESTART, "n3")
    await run.look()
    assert len(run.deleted) == 1, "what is seen of it is late"
    run.renew("n3")
    said = await run.look()
    assert run.yielding == {"n1"} and len(run.deleted) == 1, "it still leads a shard"
    assert said["Ready"] == "False RolloutInProgress 1 of 3 nodes run as they should. n1: being restarted."
    assert said["UpgradeBlocked"] == "False Progressing"
    run.lead("n3", "n2")
    await run.look()
    assert run.deleted[1:] == [("n1", "n1-old")]


async def test_a_pod_that_an_earlier_cluster_left_is_none_of_ours() -> None:
    run = Run()
    for pod in run.live.values():
        pod["metadata"]["ownerReferences"] = [{"uid": "another"}]
    await run.look()
    assert run.deleted == [] and run.turns.hold is None


async def test_another_act_is_waited_for() -> None:
    run = Run()
    run.turns.hold = Hold(Act.RECONFIGURATION, {"swap": OLD}, "op")
    said = await run.look()
    assert run.deleted == [] and run.yielding == frozenset()
    assert said["UpgradeBlocked"].startswith("True DisruptionUnderWay n1 waits for Reconfiguration of swap since")


async def test_a_gate_that_is_closed_names_what_it_waits_for() -> None:
    run = Run()
    run.seen = replace(run.seen, nodes={**run.seen.nodes, "n2": replace(run.seen.nodes["n2"], up=False)})
    run.renew("n2")
    said = await run.look()
    assert said["UpgradeBlocked"] == "True UnderReplicated n2 must be back first"
    assert run.deleted == []


async def test_people_are_told_once_of_a_gate_that_stays_closed() -> None:
    run = Run()
    whole, away = run.seen, replace(run.seen.nodes["n2"], up=False)
    run.renew("n2")
    for clock, is_whole, told in ((0, False, 0), (299, False, 0), (300, False, 1), (400, False, 1), (401, True, 1),
                                  (402, False, 1), (701, False, 1), (702, False, 2)):
        run.clock, run.turns.hold = clock, None
        run.seen = whole if is_whole else replace(whole, nodes={**whole.nodes, "n2": away})
        again_s = await run.rolling.look()
        blocked = [each for each in run.told if each[0] == "RolloutBlocked"]
        assert len(blocked) == told, clock
        assert all(each == ("RolloutBlocked", "n2 must be back first", "") for each in blocked)
        assert clock != 299 or again_s == 1.0


async def test_nobody_is_restarted_before_it_is_known_who_serves() -> None:
    """An operator that has just begun has reached nobody, and one that is not ready passes for one that is down."""
    run = Run()
    run.judged = False
    run.live["n1"]["status"]["conditions"][0]["status"] = "False"
    run.seen = replace(run.seen, nodes={name: replace(node, up=False) for name, node in run.seen.nodes.items()})
    await run.look()
    assert run.deleted == [] and run.rolling.facts is None, "so nobody says that the rollout is over"
    run.judged = True
    await run.look()
    assert run.deleted == [("n1", "n1-old")] and run.rolling.facts


async def test_a_copy_that_still_catches_up_is_waited_for() -> None:
    run = Run()
    run.lagging = {"n2"}
    said = await run.look()
    assert said["UpgradeBlocked"] == "True UnderReplicated n2 must be back first"
    assert run.deleted == [] and await run.rolling.look() == 1.0, "nothing tells of the end of that"
    run.lagging = set()
    run.lead("n1", "n2")
    run.seen = replace(run.seen, shards={
        number: replace(each, leader="n3") for number, each in run.seen.shards.items()})
    await run.look()
    assert run.turns.hold is not None and run.turns.hold.has(Act.RESTART, "n1") and len(run.deleted) == 1

    run = Run()
    run.lead("n1", "n2")
    run.live["n3"]["metadata"]["annotations"]["tidemark.dev/revision"] = revision(run.cluster, "general")
    await run.look()
    assert run.turns.hold is not None and run.yielding == {"n1"}
    run.lead("n2", "n2")
    run.lagging = {"n3"}
    await run.look()
    assert run.turns.hold is not None and run.deleted == [], "a leadership moved: a moment's lag"
    run.turns.hold = Hold(Act.RESTART, {"n1": OLD}, "op")
    await run.look()
    assert run.turns.hold is None and run.deleted == [], "perhaps only another act can mend what lags for long"


async def test_a_node_that_stays_away_stops_the_update() -> None:
    run = Run()
    run.seen = replace(run.seen, nodes={**run.seen.nodes, "n2": replace(run.seen.nodes["n2"], up=False)})
    run.renew("n2", "False")
    said = await run.look()
    assert said["Stalled"] == "True NodeReadyTimeout n2: not ready in update.nodeReadyTimeoutSeconds."
    assert said["Ready"].startswith("False Stalled") and run.deleted == []


async def test_on_delete_leaves_pods_alone_unless_people_ask() -> None:
    run = Run(update={"strategy": "OnDelete"})
    said = await run.look()
    assert said["UpgradeBlocked"].startswith("False NotUpgrading 3 pods run an older template")
    assert said["Ready"] == "Unknown NotReconciled", "others say that"
    assert run.deleted == []
    run.live["n2"]["metadata"]["annotations"]["tidemark.dev/restartedAt"] = "2021-01-01T00:00:00Z"
    run.lead("n1", "n1")
    await run.look()
    assert run.deleted == [("n2", "n2-old")]


async def test_an_annotation_that_is_no_time_is_told_of() -> None:
    run = Run()
    for name in run.live:
        run.renew(name)
    run.item["metadata"]["annotations"]["tidemark.dev/restartedAt"] = "now"
    said = await run.look()
    assert said["Stalled"].startswith("True InvalidSpec TidemarkCluster/prod: metadata.annotations[tidemark.dev/rest")
    assert run.deleted == []


async def test_a_pause_ends_what_is_over_and_begins_nothing() -> None:
    run = Run()
    run.item["metadata"]["annotations"]["tidemark.dev/pause-reconciliation"] = "true"
    run.turns.hold = Hold(Act.RESTART, {"n3": OLD}, "op")
    run.renew("n3")
    await run.look()
    assert run.turns.hold is None and run.deleted == []


def night(duration_s: int = 900) -> dict[str, Any]:
    """A window that is open now, or one that never is."""
    schedule = "* * * * *" if duration_s else "0 0 31 2 *"
    return {"maintenanceWindows": [{"name": "w", "schedule": schedule, "durationSeconds": duration_s or 900}]}


async def test_what_another_operator_made_waits_for_a_window_and_rests_where_there_is_none() -> None:
    for spec, deleted in (({}, []), (night(0), []), (night(), [("n1", "n1-x")])):
        run = Run(**spec)
        for name in run.live:
            run.renew(name)
            run.live[name]["metadata"]["uid"] = f"{name}-x"
        run.lead("n2", "n3")
        said = await run.look()
        assert run.deleted == deleted
        blocked = said["UpgradeBlocked"]
        assert blocked.startswith("True OutsideMaintenanceWindow 3 pods") == (spec == night(0)), blocked
    run = Run(**night(0))
    for name in run.live:
        run.renew(name)
        run.live[name]["metadata"]["annotations"]["tidemark.dev/template"] = template(run.cluster, "general")
    assert (await run.look())["UpgradeBlocked"] == "False NotUpgrading"
    assert await run.rolling.look() is None, "at rest nobody looks at the clock"


async def test_what_people_change_waits_for_no_window() -> None:
    run = Run(**night(0))
    run.lead("n1", "n2")
    await run.look()
    assert run.deleted == [("n3", "n3-old")]
