"""What an API server should have refused is refused again, wherever it comes from, and the field is named."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from kubernetes.aio.client import Configuration
from operator_views import group, member, node, nodes, record, shard, world
from tidemark_operator.condition_memory import ConditionMemory
from tidemark_operator.groups import GroupKeeper
from tidemark_operator.kube.api import CUSTOM
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.images import Images
from tidemark_operator.kube.operator import KubernetesOperator
from tidemark_operator.kube.run import ClusterRun
from tidemark_operator.kube.specs import cluster_of, skewed
from tidemark_operator.metadata import Keys, StoredObject
from tidemark_operator.mirror import Mirror, Versioned
from tidemark_operator.plan import PlanRefusal, plan_reconfiguration
from tidemark_operator.resources import KINDS, load_resource
from tidemark_operator.resources.conditions import ConditionReason as R
from tidemark_operator.resources.conditions import ConditionType as T
from tidemark_operator.status.group import GroupFacts, group_status
from tidemark_operator.status.reconfiguration import with_refusal
from tidemark_operator.status.standing import Standing, standing_conditions

from tests.resource_examples import OBJECTS, UPDATES, base, changed

Object = dict[str, Any]


class Api:
    """Whoever asks for anything made a mistake."""


def kept(manifest: Object) -> Object:
    """Return an object as an API server gives it; the cluster of the examples is the one that runs."""
    item = copy.deepcopy(manifest)
    item["metadata"] = {**item["metadata"], "namespace": "data", "uid": "u1", "generation": 2, "resourceVersion": "5",
                        "creationTimestamp": "2026-01-01T00:00:00Z"}
    return item


@pytest.fixture
async def run() -> AsyncIterator[ClusterRun]:
    caches = {kind: Cache() for kind in (*CUSTOM, "Secret")}
    cluster = {**base("TidemarkCluster"), "metadata": {"name": "prod", "namespace": "data"}}
    made = ClusterRun(cluster, Api(), caches, None, None, lambda: None)  # type: ignore[arg-type]
    made.service.driver.active = True
    store(made, base("TidemarkCluster"), "prod")
    yield made
    await made.service.store.close()


def store(run: ClusterRun, manifest: Object, name: str = "") -> None:
    """Have an object stored as it was accepted, without asking the rules of this release."""
    complete = load_resource(manifest, "test").manifest()
    complete["metadata"] = {**complete["metadata"], "namespace": "data", "name": name or complete["metadata"]["name"]}
    item = Versioned(StoredObject(complete, "u1", "2026-01-01T00:00:00Z", kept=True), 3)
    kind = KINDS[manifest["kind"]]
    run.service.mirror.objects[kind.name]["" if kind.single else item.value.name] = item


REFUSED = [(kind, changes, field) for kind, changes, field in OBJECTS if field is not None and kind != "Shard"]
FORBIDDEN = [each for each in UPDATES if each[3] is not None and each[0] != "Shard"]


def test_the_examples_are_of_every_kind_that_people_write() -> None:
    kinds = {"TidemarkCluster", "LogGroup", "Keyspace", "Reconfiguration"}
    assert {kind for kind, _changes, _field in REFUSED} == {each[0] for each in FORBIDDEN} == kinds


@pytest.mark.parametrize(("kind", "changes", "field"), REFUSED)
async def test_what_admission_refuses_is_refused_again(
    run: ClusterRun, kind: str, changes: Object, field: str
) -> None:
    item = kept(changed(kind, changes))
    assert not await run.accept(item)
    assert field.rpartition(".")[2] in run.refused[kind, item["metadata"]["name"]]
    assert field in run.refused[kind, item["metadata"]["name"]]


@pytest.mark.parametrize(("kind", "before", "after", "field"), FORBIDDEN)
async def test_what_may_not_change_is_refused_again(
    run: ClusterRun, kind: str, before: Object, after: Object, field: str
) -> None:
    store(run, changed(kind, before), "prod" if kind == "TidemarkCluster" else "")
    item = kept(changed(kind, after))
    if kind == "TidemarkCluster":
        item["metadata"]["name"] = "prod"
        item["spec"]["version"] = "0.1.0"
    assert not await run.accept(item)
    assert field in run.refused[kind, item["metadata"]["name"]]


@pytest.mark.parametrize("spec", [
    None, "text", [], {}, {"clusterRef": None}, {"clusterRef": "prod"}, {"clusterRef": {"name": 7}},
    {"clusterRef": {"name": "prod"}, "shards": "many"},
])
@pytest.mark.parametrize("kind", ["TidemarkCluster", "LogGroup", "Keyspace", "Reconfiguration"])
async def test_an_object_of_any_shape_is_told_so_and_breaks_nothing(kind: str, spec: Any) -> None:
    operator = KubernetesOperator(Configuration(), ["data"])
    written: list[Object] = []

    class Writer:
        async def write(self, cache: Cache, item: Object, status: Object) -> bool:
            written.append(status)
            return True

    operator._writer = Writer()  # type: ignore[assignment]
    operator._looked.add("data")
    for cache in operator._caches.values():
        cache.complete = True
    item = kept({**base(kind), "spec": spec})
    if spec is None:
        del item["spec"]
    try:
        operator._seen(CUSTOM[kind], "ADDED", item)
        assert cluster_of(item) in ("", "prod")
        await operator._work(("cluster", "data", "it") if kind == "TidemarkCluster" else ("object", "data", "it", kind))
    finally:
        await operator._queue.stop()
        await operator._api.close()
    (status,) = written
    told = {each["type"]: each for each in status["conditions"]}
    assert (told["Stalled"]["status"], told["Stalled"]["reason"]) == ("True", "InvalidSpec")
    assert "spec" in told["Stalled"]["message"]
    if kind == "Reconfiguration":
        assert (told["Validated"]["status"], told["Succeeded"]["reason"]) == ("False", "Rejected")
    else:
        assert told["Ready"]["status"] == "False"


# --- what one object alone does not show --------------------------------------------------------------------


@pytest.mark.parametrize(("wanted", "own", "refused"), [
    ("0.4.2", "0.4.0", ""), ("0.4.0", "0.4.9", ""), ("0.3.7", "0.4.0", ""), ("0.4.2-rc.1", "0.4.0", ""),
    ("0.5.0", "0.4.9", "newer"), ("1.0.0", "0.9.0", "newer"), ("0.2.9", "0.4.0", "behind"),
    ("0.9.0", "1.0.0", "behind"),
])
def test_an_operator_runs_nodes_of_its_version_and_the_one_before(wanted: str, own: str, refused: str) -> None:
    told = skewed(wanted, own)
    assert (refused in told, told == "") == (True, refused == "")
    assert told == "" or told.startswith("spec.version: ")


def condition(status: Object, type_: str) -> tuple[str, str, str]:
    (found,) = [item for item in status["conditions"] if item["type"] == type_]
    return found["status"], found["reason"], found["message"]


async def test_a_pool_that_the_cluster_does_not_have(run: ClusterRun) -> None:
    mirror = Mirror(Keys("/t"))
    mirror.objects["TidemarkCluster"] = run.service.mirror.objects["TidemarkCluster"]
    keeper = GroupKeeper(None, Keys("/t"), mirror)  # type: ignore[arg-type]
    one = group(pools=("default", "fast"))
    for here in (world(nodes=nodes(3), groups=[one]), world(shard(0, "n1", "n2", "n3"), nodes=nodes(3), groups=[one])):
        await keeper.look([one], here)
        assert keeper.trouble["orders"] == (
            R.POOL_NOT_FOUND, "spec.placement.nodePools: the cluster has no pool 'fast'")
        records = {each: record("n1", "n2", "n3", leader="n1") for each in here.shards}
        status = ConditionMemory().stamp("LogGroup", "orders", 1, group_status(
            GroupFacts(one, 1, here.shards, records, here.nodes, 7, keeper.trouble["orders"])))
        assert condition(status, "PlacementSatisfied")[:2] == ("False", "PoolNotFound")
        assert condition(status, "Stalled")[:2] == ("True", "InvalidSpec")
        assert "spec.placement.nodePools" in condition(status, "Ready")[2]
    known = group(pools=("default",), factor=5)
    await keeper.look([known], world(nodes=nodes(3), groups=[known]))
    reason, message = keeper.trouble["orders"]
    assert reason is R.NOT_ENOUGH_NODES
    assert "factor 5" in message


def test_too_few_zones_are_told_with_their_number() -> None:
    one = group(shards=1)
    made = shard(0, "n1", "n2", "n3")
    status = ConditionMemory().stamp("LogGroup", "orders", 1, group_status(GroupFacts(
        one, 1, {made.shard: made}, {made.shard: record("n1", "n2", "n3", leader="n1")}, nodes(3, "ab"), 7)))
    assert condition(status, "PlacementSatisfied") == (
        "False", "NotEnoughDomains", "orders-0000: two copies share a zone, of 2.")


def swap(source: str, to: Mapping[str, Any]) -> Object:
    return {"type": "NodeSwap", "nodeSwap": {"from": source, "to": to}}


@pytest.mark.parametrize(("leader", "down", "refused"), [
    ("n1", (), False), ("n1", ("n1",), False), ("n1", ("n2",), False),      # another is elected in a moment
    ("n1", ("n1", "n2"), True), (None, ("n2", "n3"), True), (None, (), False),
    ("n1", ("n2", "n3"), False),                                            # it waits: UnderReplicated
])
def test_a_shard_that_can_have_no_leader_is_not_changed(
    leader: str | None, down: tuple[str, ...], refused: bool
) -> None:
    known = {**nodes(4), **{name: node(name, up=False) for name in down}}
    here = world(shard(0, "n1", "n2", "n3", leader=leader or ""), nodes=known)
    plan = plan_reconfiguration(swap("n2", {"node": "n4"}), here)
    assert isinstance(plan, PlanRefusal) is refused
    if isinstance(plan, PlanRefusal):
        assert plan.reason is R.SHARDS_LEADERLESS
        assert "orders-0000" in plan.message


def test_a_disk_that_was_lost_does_not_vote() -> None:
    known = {**nodes(4), "n1": node("n1", up=False)}
    known["n2"] = type(known["n2"])("n2", known["n2"].address, member=member("n2", "2"), up=True)
    here = world(shard(0, "n1", "n2", "n3"), nodes=known)
    plan = plan_reconfiguration(swap("n1", {"node": "n4"}), here)
    assert isinstance(plan, PlanRefusal)
    assert plan.reason is R.SHARDS_LEADERLESS


# --- an act under way whose object asks for something else --------------------------------------------------


def test_a_refused_change_of_an_act_is_shown_beside_how_it_goes() -> None:
    going = {"stage": "Moving", "conditions": [
        {"type": "Succeeded", "status": "Unknown", "reason": "Moving", "message": "", "lastTransitionTime": "early"},
        {"type": "Stalled", "status": "False", "reason": "Progressing", "message": "", "lastTransitionTime": "early"}]}
    refused = "spec.cancel: cancel cannot be taken back"
    first = with_refusal(going, Standing(refused=refused), "now")
    assert condition(first, "Stalled") == ("True", "InvalidSpec", "spec.cancel: cancel cannot be taken back")
    assert condition(first, "Succeeded") == condition(going, "Succeeded")
    assert first["conditions"][1]["lastTransitionTime"] == "now"
    assert with_refusal(going, Standing(refused=refused, since="now"), "later") == first, "said once"
    assert with_refusal(going, Standing(), "later") == going
    ended = {**going, "stage": "Finished"}
    assert with_refusal(ended, Standing(refused="no"), "later") == ended


@pytest.mark.parametrize("allowed", [(), ("registry.example/team/",)])
async def test_an_image_that_is_not_allowed_is_refused_and_what_was_accepted_stays(
    run: ClusterRun, allowed: tuple[str, ...]
) -> None:
    """The image of a node gets a certificate of the cluster."""
    run._images = Images(allowed=allowed)
    before = run.service.mirror.cluster
    image = "registry.example/eve/tidemark-node:0.1.0"
    item = kept(changed("TidemarkCluster", {}))
    item["metadata"]["name"], item["spec"]["version"], item["spec"]["image"] = "prod", "0.1.0", image
    assert not await run.accept(item)
    why = run.refused["TidemarkCluster", "prod"]
    assert why.startswith(f"spec.image: {image} is not allowed; this operator allows ghcr.io/tidemark/tidemark-node")
    shown = {kind: (status, reason) for kind, status, reason, _ in standing_conditions(Standing(refused=why))}
    assert shown[T.STALLED] == (True, R.IMAGE_NOT_ALLOWED)
    assert shown[T.READY] == (False, R.STALLED)
    assert run.service.mirror.cluster is before, "pods are made of what was accepted"
