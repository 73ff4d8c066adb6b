"""Pods and what goes with them: what they look like, and that a pass behind a pass has nothing to do."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tidemark_operator.kube import builders
from tidemark_operator.kube.acts import Act, contains
from tidemark_operator.kube.builders import Cluster, NodeView, node_claim, node_pod, revision
from tidemark_operator.kube.nodes import missing_nodes, placed
from tidemark_operator.kube.podkeeper import Live, ended, is_smaller, plan, waits_for_restart
from tidemark_operator.metadata import NodeRecord
from tidemark_operator.resources import load_resource

from tests.seeds import every_seed

GOLDEN = Path(__file__).parent / "golden_pods.json"
SPEC: dict[str, Any] = {
    "version": "0.1.0",
    "metadataStore": {"etcd": {"endpoints": ["http://etcd:2379"]}},
    "nodePools": [
        {"name": "general", "replicas": 3, "zones": ["eu-a", "eu-b"], "location": {"region": "eu"},
         "storage": {"data": {"size": "200Gi", "storageClassName": "fast-ssd"}},
         "resources": {"requests": {"cpu": "2"}},
         "tolerations": [{"key": "dedicated", "operator": "Exists"}],
         "podMetadata": {"labels": {"cost-center": "42"}, "annotations": {"note": "x"}}},
        {"name": "spare", "replicas": 1, "storage": {"data": {"size": "1Gi"}}},
    ],
    "security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"},
}


def cluster(**more: Any) -> Cluster:
    manifest = {"apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": "prod"},
                "spec": {**SPEC, **more}}
    return Cluster("data", "prod", "uid-1", load_resource(manifest, "test").manifest()["spec"])


NODES = [
    NodeView("prod-1", 1, "general", "eu-a", "region=eu,zone=eu-a", "life-1"),
    NodeView("prod-2", 2, "general", "eu-b", "region=eu,zone=eu-b"),
    NodeView("prod-5", 5, "spare"),
]
PLACES = {
    "Pod": "pods", "PersistentVolumeClaim": "claims", "Service": "services", "PodDisruptionBudget": "budgets",
    "NetworkPolicy": "policies", "PodMonitor": "monitors"}
EMPTY = Live(**{place: {} for place in PLACES.values()})


class World:
    """An API server as far as the keeper uses it: what it makes is there, with defaults and versions of its own."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {place: {} for place in PLACES.values()}
        self.uids = 0

    def live(self) -> Live:
        return Live(**copy.deepcopy(self.objects))

    def do(self, act: Act) -> None:
        metadata = act.manifest["metadata"]
        there = self.objects[PLACES[act.manifest["kind"]]]
        known = there.get(metadata["name"])
        match act.verb:
            case "create" | "apply":
                assert act.verb == "apply" or known is None, "what is there is not made again"
                self.uids += 1
                made = copy.deepcopy(act.manifest)
                made["metadata"]["uid"] = known["metadata"]["uid"] if known else f"u{self.uids}"
                made["spec"]["defaulted"] = True
                made["status"] = {"phase": "Running"}
                there[metadata["name"]] = made
            case "merge":
                assert known is not None
                assert act.uid == known["metadata"]["uid"]
                known["metadata"].setdefault("annotations", {}).update(metadata.get("annotations", {}))
                labels = {**known["metadata"]["labels"], **metadata.get("labels", {})}
                known["metadata"]["labels"] = {name: value for name, value in labels.items() if value is not None}
                if "ownerReferences" in metadata:
                    known["metadata"]["ownerReferences"] = metadata["ownerReferences"]
                if "spec" in act.manifest:
                    known["spec"]["resources"] = copy.deepcopy(act.manifest["spec"]["resources"])
            case "delete" | "force-delete":
                assert known is not None
                assert act.uid == known["metadata"]["uid"]
                del there[metadata["name"]]


def test_objects_of_a_cluster_look_like_this() -> None:
    """The golden file is rewritten by deleting it; read what changed."""
    made = [{"verb": act.verb, **act.manifest} for act in plan(cluster(), NODES, EMPTY)]
    if not GOLDEN.exists():
        GOLDEN.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    assert made == json.loads(GOLDEN.read_text())


def test_a_pod_is_never_best_effort_unless_its_pool_asks_for_it() -> None:
    def container(**more: Any) -> dict[str, Any]:
        made = cluster(nodePools=[{"name": "spare", "replicas": 1, "storage": {"data": {"size": "1Gi"}}, **more}])
        spec = node_pod(made, NODES[2])["spec"]
        assert {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}} in spec["volumes"]
        return dict(spec["containers"][0])

    assert container()["resources"]["requests"].keys() == {"cpu", "memory"}
    asked = {"limits": {"memory": "2Gi"}}
    assert container(resources=asked)["resources"] == asked, "nothing is added to what a pool asks for"
    assert "resources" not in container(resources={})


def test_with_tls_a_node_mounts_its_certificate_and_waits_for_it() -> None:
    secure, node = cluster(security={}), NODES[0]
    plain, pod = node_pod(cluster(), node)["spec"], node_pod(secure, node)["spec"]
    (volume,) = [each for each in pod["volumes"] if each not in plain["volumes"]]
    assert volume == {"name": "tls", "secret": {"secretName": "prod-1-tls", "defaultMode": 0o440}}
    (container,), (other,) = pod["containers"], plain["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each not in other["volumeMounts"]]
    assert mount == {"name": "tls", "mountPath": "/etc/tidemark/tls", "readOnly": True}
    assert [each for each in container["args"] if each not in other["args"]] == ["--tls-dir=/etc/tidemark/tls"]
    assert revision(secure, "general") != revision(cluster(), "general")

    def pods(secrets: dict[str, Any]) -> list[str]:
        acts = plan(secure, NODES, Live({}, {}, {}, {}, {}, None, secrets=secrets))
        return [act.manifest["metadata"]["name"] for act in acts if act.manifest["kind"] == "Pod"]

    earlier = {"prod-2-tls": {"metadata": {"ownerReferences": [{"uid": "uid-0"}]}}}
    assert pods(earlier) == []
    assert pods({**earlier, "prod-5-tls": {"metadata": {"ownerReferences": [{"uid": "uid-1"}]}}}) == ["prod-5"]


@every_seed(200)
def test_a_pass_behind_a_pass_has_nothing_to_do(seed: int) -> None:
    """From any state: things missing, changed by others, over, on their way out, or left by an earlier cluster."""
    dice = random.Random(seed)
    world, wanted = World(), cluster(monitoring={"podMonitor": "Managed"})
    for act in plan(wanted, NODES, EMPTY):
        if dice.random() < 0.7:
            world.do(act)
    for place, there in world.objects.items():
        for name, found in list(there.items()):
            match dice.choice(["as it is", "as it is", "changed", "over", "going", "another's", "gone"]):
                case "changed" if place in ("services", "budgets", "policies", "monitors"):
                    found["spec"]["podSelector" if place == "policies" else "selector"] = {"nobody": "wants"}
                case "over" if place == "pods":
                    found["status"] = {"phase": "Failed", "reason": "Evicted"}
                case "going":
                    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
                case "another's":
                    found["metadata"]["ownerReferences"] = [{"uid": "uid-0"}]
                case "gone":
                    del there[name]
    before = world.live()
    acts = plan(wanted, NODES, before)
    assert acts == plan(wanted, NODES, before), "the same state gives the same plan"
    running = {name for name, pod in before.pods.items() if pod["status"]["phase"] == "Running"}
    assert not {act.manifest["metadata"]["name"] for act in acts if act.verb == "delete"} & running
    assert not [act for act in acts if act.verb == "delete" and act.manifest["kind"] == "PersistentVolumeClaim"]
    for act in acts:
        world.do(act)
    for act in plan(wanted, NODES, world.live()):  # in place of pods that were over
        assert act.verb in ("create", "merge"), act
        world.do(act)
    assert plan(wanted, NODES, world.live()) == []


def test_a_pod_waits_until_its_old_disk_is_gone() -> None:
    world = World()
    for act in plan(cluster(), NODES, EMPTY):
        world.do(act)
    world.objects["claims"]["data-prod-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    del world.objects["pods"]["prod-1"]
    assert [act.title for act in plan(cluster(), NODES, world.live()) if act.verb == "create"] == []


def test_what_an_earlier_cluster_of_this_name_left_is_waited_for() -> None:
    world = World()
    for act in plan(cluster(), NODES, EMPTY):
        world.do(act)
    for place in ("pods", "services", "budgets", "policies"):
        for found in world.objects[place].values():
            found["metadata"]["ownerReferences"] = [{"uid": "uid-0"}]
    world.objects["pods"]["prod-1"]["status"] = {"phase": "Failed"}
    assert [act for act in plan(cluster(), NODES, world.live()) if act.verb != "merge"] == []
    assert [act for act in plan(cluster(), NODES[:1], world.live()) if act.verb != "merge"] == []


def test_the_budget_goes_with_the_last_but_one_node() -> None:
    world = World()
    for act in plan(cluster(), NODES, EMPTY):
        world.do(act)
    assert [act.title for act in plan(cluster(), NODES[:1], world.live()) if act.verb == "delete"] == [
        "PodDisruptionBudget/prod-nodes"]
    unmanaged = cluster(disruption={"podDisruptionBudget": "None"})
    assert [act.title for act in plan(unmanaged, NODES, world.live()) if act.verb == "delete"] == [
        "PodDisruptionBudget/prod-nodes"]


def test_the_revision_is_of_the_template_alone() -> None:
    first = revision(cluster(), "general")
    assert node_pod(cluster(), NODES[0])["metadata"]["annotations"]["tidemark.dev/revision"] == first
    assert revision(cluster(), "spare") != first
    assert revision(cluster(version="0.2.0"), "general") != first
    pools = [{**SPEC["nodePools"][0], "replicas": 9}, SPEC["nodePools"][1]]
    assert revision(cluster(nodePools=pools), "general") == first
    ours, theirs = (cluster(security={"tls": tls}) for tls in (
        {"mode": "Managed"}, {"mode": "CertManager", "issuerRef": {"name": "platform"}}))
    assert revision(ours, "general") == revision(theirs, "general"), "nobody is restarted for who issues certificates"
    assert node_pod(ours, NODES[0]) == node_pod(theirs, NODES[0])


def test_zone_affinity_stands_in_every_term_of_the_pool() -> None:
    own = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}, {}]}}}
    pools = [{**SPEC["nodePools"][0], "affinity": own}]
    pod = node_pod(cluster(nodePools=pools), NODES[0])
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    zone = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["eu-a"]}
    assert [term["matchExpressions"][-1] for term in required["nodeSelectorTerms"]] == [zone, zone]
    assert required["nodeSelectorTerms"][0]["matchExpressions"][0]["key"] == "disk"


def test_contains_ignores_what_others_added_and_nothing_else() -> None:
    live = {"a": 1, "b": [{"c": 2, "defaulted": 3}], "more": 4}
    assert contains(live, {"a": 1, "b": [{"c": 2}]})
    for wanted in ({"a": 2}, {"b": []}, {"b": [{"c": 2}, {}]}, {"b": [{"d": 2}]}, {"z": None}):
        assert not contains(live, wanted)


@every_seed(50)
def test_zones_are_dealt_evenly_and_nodes_stay_where_they_are(seed: int) -> None:
    dice = random.Random(seed)
    zones = ["a", "b", "c"][: dice.randint(1, 3)]
    pools = [{"name": "p", "replicas": dice.randint(0, 9), "zones": zones}, {"name": "q", "replicas": 2}]
    known = [NodeRecord(f"n{number}", "x", dice.choice(zones), "p") for number in range(dice.randint(0, 6))]
    made = missing_nodes(pools, known)
    mine = [record for record in made if record.pool == "p"]
    assert len(mine) == max(0, pools[0]["replicas"] - len(known))
    assert [record.zone for record in made if record.pool == "q"] == ["", ""]
    load = {zone: sum(record.zone == zone for record in [*known, *mine]) for zone in zones}
    dealt = {record.zone for record in mine}
    assert all(load[zone] <= min(load.values()) + 1 for zone in dealt), load
    assert missing_nodes(pools, [*known, *made]) == []


def test_what_an_operator_of_another_version_makes_of_the_same_spec_restarts_nothing(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    made = cluster()
    before = revision(made, "general")
    monkeypatch.setattr(builders, "GRACE_S", 99)
    assert node_pod(made, NODES[0])["spec"]["terminationGracePeriodSeconds"] == 129
    assert revision(made, "general") == before


@pytest.mark.parametrize("change", [
    {"podMetadata": {"labels": {"cost-center": "43"}}}, {"resources": {"requests": {"cpu": "3"}}},
    {"tolerations": []}, {"nodeSelector": {"disk": "nvme"}}, {"priorityClassName": "high"},
    {"affinity": {"nodeAffinity": {}}}])
def test_whatever_a_pod_is_made_of_counts(change: dict[str, Any]) -> None:
    before = revision(cluster(), "general")
    assert revision(cluster(nodePools=[{**SPEC["nodePools"][0], **change}]), "general") != before


def test_where_nobody_said_where_a_node_is_to_be_its_machine_says() -> None:
    labels = {"topology.kubernetes.io/zone": "eu-c", "topology.kubernetes.io/region": "eu"}
    there = {"metadata": {"name": "m", "labels": labels}}
    node = NodeRecord("prod-5", "x", pool="spare")
    assert placed(node, cluster(), there) == replace(node, zone="eu-c", location="region=eu,zone=eu-c")
    assert placed(replace(node, zone="eu-a"), cluster(), there).zone == "eu-c", "its volume followed it there"
    for machine in (None, {"metadata": {"name": "m"}}):
        assert placed(node, cluster(), machine) == node
    asked = replace(node, zone="eu-a", made_for="swap")
    dealt = NodeRecord("prod-1", "x", "eu-a", "general")
    assert (placed(asked, cluster(), there), placed(dealt, cluster(), there)) == (asked, dealt)
    racks = {"topologyKey": "example.com/rack"}
    assert placed(node, cluster(failureDomain=racks), there) == node
    own = [{**SPEC["nodePools"][1], "location": {"region": "mine", "rack": "r1"}}]
    assert placed(node, cluster(nodePools=own), there).location == "region=mine,zone=eu-c,rack=r1"


def test_o45_the_budget_is_closed_while_a_copy_does_not_acknowledge_though_its_pod_is_ready() -> None:
    world = whole(*NODES)
    assert world.objects["budgets"]["prod-nodes"]["spec"]["minAvailable"] == len(NODES) - 1

    for unheard, available in ((True, len(NODES)), (False, len(NODES) - 1)):
        [act] = plan(cluster(), NODES, world.live(), unheard=unheard)
        assert (act.manifest["kind"], act.manifest["spec"]["minAvailable"]) == ("PodDisruptionBudget", available)
        world.do(act)


def test_where_copies_leave_first_the_budget_lets_no_pod_go_but_those_that_they_have_left() -> None:
    disruption = {"onNodeDrain": "Relocate"}
    made, world = cluster(disruption=disruption), whole(*NODES, disruption=disruption)
    budget = world.objects["budgets"]["prod-nodes"]["spec"]
    assert budget["minAvailable"] == len(NODES), "before any machine was seen cordoned"
    assert budget["selector"]["matchExpressions"] == [{"key": "tidemark.dev/relocated", "operator": "DoesNotExist"}]

    def labelled() -> set[str]:
        return {name for name, pod in world.objects["pods"].items()
                if pod["metadata"]["labels"].get("tidemark.dev/relocated") == "true"}

    for relocated in (frozenset({"prod-2"}), frozenset({"prod-1", "prod-2"}), frozenset[str]()):
        for act in plan(made, NODES, world.live(), relocated):
            assert (act.verb, act.manifest["kind"]) == ("merge", "Pod")
            world.do(act)
        assert labelled() == relocated
        assert plan(made, NODES, world.live(), relocated) == []
        assert world.objects["budgets"]["prod-nodes"]["spec"] == budget
    world.objects["pods"]["prod-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan(made, NODES, world.live(), frozenset({"prod-1"})) == []


def test_a_pod_says_which_restart_it_was_made_for() -> None:
    asked = replace(cluster(), restarted_at="2026-01-01T00:00:00Z")
    annotations = node_pod(asked, NODES[0])["metadata"]["annotations"]
    assert annotations["tidemark.dev/restarted-for"] == "2026-01-01T00:00:00Z"
    assert revision(asked, "general") == revision(cluster(), "general")


def whole(*nodes: NodeView, **more: Any) -> World:
    world = World()
    for _behind in range(2):
        for act in plan(cluster(**more), list(nodes), world.live()):
            world.do(act)
    return world


def removed(view: NodeView) -> NodeView:
    return replace(view, removed=True)


def test_of_a_removed_node_the_pod_goes_then_the_claim_then_its_record() -> None:
    nodes = [*NODES[:2], removed(NODES[2])]
    world = whole(*NODES)
    for title in ("Pod/prod-5", "PersistentVolumeClaim/data-prod-5"):
        assert ended(cluster(), nodes, world.live()) == []
        acts = [act for act in plan(cluster(), nodes, world.live()) if act.verb == "delete"]
        assert [act.title for act in acts] == [title]
        world.do(acts[0])
    assert ended(cluster(), nodes, world.live()) == ["prod-5"]
    assert [act.verb for act in plan(cluster(), nodes, world.live())] == ["apply"], "the budget counts who stays"
    # What is on its way out is waited for, and what is not ours is left alone.
    world = whole(*NODES)
    world.objects["pods"]["prod-5"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert [act for act in plan(cluster(), nodes, world.live()) if act.verb == "delete"] == []
    assert ended(cluster(), nodes, world.live()) == []
    world.objects["pods"]["prod-5"]["metadata"] = {
        **world.objects["pods"]["prod-5"]["metadata"], "ownerReferences": [{"uid": "uid-0"}]}
    assert [act for act in plan(cluster(), nodes, world.live()) if "delete" in act.verb] == []


def test_the_claim_of_a_removed_node_stays_where_that_is_asked_for() -> None:
    retain = {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Retain"}}
    nodes, world = [*NODES[:2], removed(NODES[2])], whole(*NODES)
    del world.objects["pods"]["prod-5"]
    assert [act for act in plan(cluster(**retain), nodes, world.live()) if act.verb == "delete"] == []
    assert ended(cluster(**retain), nodes, world.live()) == ["prod-5"]


def test_nothing_is_taken_away_of_nodes_that_are_merely_not_known() -> None:
    """The metadata may be lost, and the disks are all that is left."""
    world = whole(*NODES)
    assert [act.title for act in plan(cluster(), NODES[:2], world.live()) if "delete" in act.verb] == []
    assert [act.title for act in plan(cluster(), [], world.live()) if "delete" in act.verb] == [
        "PodDisruptionBudget/prod-nodes"]


def test_a_pod_on_a_machine_that_is_gone_is_deleted_without_asking_it() -> None:
    world = whole(*NODES)
    world.objects["pods"]["prod-1"]["spec"]["nodeName"] = "m9"
    world.objects["pods"]["prod-1"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert plan(cluster(), NODES, world.live()) == []
    gone = replace(world.live(), gone_machines=frozenset({"m9"}))
    for nodes in (NODES, [removed(NODES[0]), *NODES[1:]]):
        assert [(act.verb, act.title) for act in plan(cluster(), nodes, gone) if act.verb != "apply"] == [
            ("force-delete", "Pod/prod-1")]


def bound(world: World, size: str = "200Gi", capacity: str = "200Gi", storage_class: str = "fast-ssd") -> World:
    for claim in world.objects["claims"].values():
        claim["status"] = {"phase": "Bound", "capacity": {"storage": capacity}}
        claim["spec"]["storageClassName"] = storage_class
        claim["spec"]["resources"]["requests"]["storage"] = size
    return world


def test_volumes_grow_where_their_class_lets_them_and_never_shrink() -> None:
    world = bound(whole(NODES[0]))
    grown = cluster(nodePools=[{**SPEC["nodePools"][0], "storage": {"data": {"size": "0.3Ti"}}}])
    assert plan(grown, NODES[:1], world.live()) == [], "it is not known whether the class lets them"
    can = replace(world.live(), growing_classes=frozenset({"fast-ssd"}))
    (act,) = plan(grown, NODES[:1], can)
    assert (act.verb, act.title) == ("merge", "PersistentVolumeClaim/data-prod-1")
    assert act.manifest["spec"] == {"resources": {"requests": {"storage": "0.3Ti"}}}
    world.do(act)
    assert plan(grown, NODES[:1], replace(world.live(), growing_classes=frozenset({"fast-ssd"}))) == []
    assert plan(cluster(), NODES[:1], replace(world.live(), growing_classes=frozenset({"fast-ssd"}))) == []
    claim = world.objects["claims"]["data-prod-1"]
    assert is_smaller(node_claim(grown, NODES[0]), claim) and not is_smaller(node_claim(cluster(), NODES[0]), claim)
    claim["status"]["phase"] = "Pending"
    claim["spec"]["resources"]["requests"]["storage"] = "1Gi"
    assert plan(grown, NODES[:1], replace(world.live(), growing_classes=frozenset({"fast-ssd"}))) == []


def test_a_file_system_that_does_not_grow_in_use_wants_a_restart() -> None:
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def claim(since: str, kind: str = "FileSystemResizePending") -> dict[str, Any]:
        return {"status": {"conditions": [{"type": kind, "status": "True", "lastTransitionTime": since}]}}

    assert waits_for_restart(claim("2026-01-01T11:57:00Z"), now)
    assert not waits_for_restart(claim("2026-01-01T11:59:00Z"), now)
    assert not waits_for_restart(claim("2026-01-01T11:00:00Z", "Resizing"), now)
    assert not waits_for_restart({}, now)


def test_whose_a_claim_is_follows_the_policy() -> None:
    world = whole(NODES[0])
    delete = cluster(persistentVolumeClaimRetentionPolicy={"whenDeleted": "Delete"})
    (act,) = plan(delete, NODES[:1], world.live())
    world.do(act)
    assert [each["uid"] for each in world.objects["claims"]["data-prod-1"]["metadata"]["ownerReferences"]] == ["uid-1"]
    assert plan(delete, NODES[:1], world.live()) == []
    world.objects["claims"]["data-prod-1"]["metadata"]["ownerReferences"].insert(0, {"uid": "somebody"})
    assert plan(delete, NODES[:1], world.live()) == []
    (act,) = plan(cluster(), NODES[:1], world.live())
    world.do(act)
    assert world.objects["claims"]["data-prod-1"]["metadata"]["ownerReferences"] == [{"uid": "somebody"}]
