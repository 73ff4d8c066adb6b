"""A second pass writes nothing, whatever the state: no status, no gate, no object, no event; nor does a new process."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as PhaseOfTest
from hypothesis import strategies as st
from tidemark_core.base.effects import Space
from tidemark_core.base.ids import Member, shard_id
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.records import Change, Phase, ShardRecord, Status
from tidemark_operator.kube.api import CUSTOM, KubeRefused
from tidemark_operator.kube.cache import Cache
from tidemark_operator.kube.occurrences import occurrences
from tidemark_operator.kube.run import ClusterRun
from tidemark_operator.kube.statuses import StatusWriter
from tidemark_operator.metadata import NodeRecord, StoredObject
from tidemark_operator.mirror import Versioned
from tidemark_operator.resources import load_resource
from tidemark_operator.resources.conditions import ConditionReason

from tests.resource_examples import changed
from tests.resource_judges import schema_of

Object = dict[str, Any]
NAMES = [f"prod-{number}" for number in range(1, 6)]
MEMBERS = [Member(name, f"life-{life}") for name in NAMES for life in (1, 2)]


class Server:
    """An API server: what its schemas do not know is pruned, versions grow, every request counts."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.requests: list[str] = []
        self.told: list[str] = []

    def put(self, item: Object) -> Object:
        kept = copy.deepcopy(item)
        metadata = kept["metadata"]
        metadata.setdefault("uid", f"uid-{kept['kind']}-{metadata['name']}")
        metadata.setdefault("generation", 1)
        metadata["resourceVersion"] = str(len(self.requests) + 1)
        metadata["managedFields"] = [{"manager": "somebody"}]
        self.objects[kept["kind"], metadata["name"]] = kept
        return copy.deepcopy(kept)

    async def apply(self, body: Object, subresource: str = "", manager: str = "") -> Object:
        self.requests.append(f"apply {body['kind']}/{body['metadata']['name']}/{subresource}")
        known = self.objects.get((body["kind"], body["metadata"]["name"]), {})
        if not subresource:
            return self.put({**known, **body, "metadata": {**known.get("metadata", {}), **body["metadata"]}})
        assert known["metadata"]["uid"] == body["metadata"]["uid"]
        if body["kind"] == "Pod":
            gates = {each["type"]: each for each in known.get("status", {}).get("conditions", ())}
            gates |= {each["type"]: each for each in body["status"]["conditions"]}
            return self.put({**known, "status": {**known.get("status", {}), "conditions": list(gates.values())}})
        return self.put({**known, "status": pruned(
            body["status"], schema_of(body["kind"])["properties"]["status"])})

    async def create(self, manifest: Object) -> Object:
        self.requests.append(f"create {manifest['kind']}/{manifest['metadata']['name']}")
        if (manifest["kind"], manifest["metadata"]["name"]) in self.objects:
            raise KubeRefused(409, "AlreadyExists", "there")
        return self.put(manifest)

    def caches(self) -> dict[str, Cache]:
        made = {kind: Cache() for kind in (*CUSTOM, "Pod", "PersistentVolumeClaim", "Service", "PodDisruptionBudget",
                                           "NetworkPolicy", "PodMonitor", "Node", "Secret")}
        for (kind, _name), item in self.objects.items():
            made[kind].learn(copy.deepcopy(item))
        return made


def pruned(value: Any, schema: Object) -> Any:
    if isinstance(value, dict) and "properties" in schema:
        return {name: pruned(item, schema["properties"][name]) for name, item in value.items()
                if name in schema["properties"] and item is not None}
    if isinstance(value, list):
        return [pruned(item, schema["items"]) for item in value]
    return value


# --- states


@st.composite
def records(draw: Callable[..., Any]) -> ShardRecord:
    ensemble = tuple(draw(st.lists(st.sampled_from(MEMBERS), min_size=1, max_size=4, unique_by=lambda one: one.node)))
    status = draw(st.sampled_from(list(Status)))
    change = None
    if status is Status.RECONFIGURATION:
        change = Change(
            draw(st.sampled_from([Operation.SWAP, Operation.EXPAND])), draw(st.sampled_from(list(Phase))),
            draw(st.sampled_from(ensemble)), draw(st.sampled_from(MEMBERS)))
    leader = draw(st.sampled_from([*ensemble, None])) if status is not Status.RECONFIGURATION else ensemble[0]
    return ShardRecord(
        draw(st.integers(1, 9)), draw(st.integers(1, 99)), status, ensemble, leader, change=change)


PLAIN = {"spec.version": "0.1.0", "spec.security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"}}
NODES = st.lists(st.fixed_dictionaries({
    "name": st.sampled_from(NAMES), "zone": st.sampled_from(["", "a", "b"]), "up": st.booleans(),
    "draining": st.booleans(), "reached": st.booleans(), "life": st.integers(1, 2),
    "pod": st.sampled_from(["", "old", "new", "going"])}), max_size=5, unique_by=lambda one: one["name"])
GROUPS = st.lists(st.fixed_dictionaries({
    "shards": st.integers(1, 3), "factor": st.integers(1, 4), "records": st.lists(records(), max_size=3),
    "projection": st.sampled_from(["Full", "None"]), "pool": st.sampled_from(["default", "other"]),
    "paused": st.booleans(), "refused": st.booleans(), "shown": st.booleans()}), max_size=2)
ACTS = st.lists(st.sampled_from(["new", "stored", "finished", "refused", "the operator's"]), max_size=3)


def stored(manifest: Object, number: int = 0, **more: Any) -> Versioned[StoredObject]:
    complete = load_resource(manifest, "test").manifest()
    complete["metadata"]["namespace"] = "data"
    return Versioned(
        StoredObject(complete, "uid-of-the-store", "2026-01-01T00:00:00Z", number=number, kept=True, **more), 3)


def named(kind: str, name: str, changes: Object, **annotations: str) -> Object:
    made = changed(kind, changes)
    made["metadata"] = {"name": name, "namespace": "data", "creationTimestamp": "2026-01-01T00:00:00Z",
                        "annotations": annotations, "labels": {}}
    return made


def service_of(run: ClusterRun, nodes: list[Object], groups: list[Object], acts: list[str]) -> None:
    """Have etcd and the nodes say this, in a process that has just learned of it."""
    service = run.service
    service.driver.active = True
    service.mirror.objects["TidemarkCluster"][""] = stored(named("TidemarkCluster", "prod", PLAIN))
    for node in nodes:
        record = NodeRecord(node["name"], "10.0.0.1:6690" if node["reached"] else "", node["zone"])
        service.mirror.records["nodes"][node["name"]] = Versioned(record, 2)
        if node["reached"]:
            description = SimpleNamespace(
                node=node["name"], incarnation=f"life-{node['life']}", zone=node["zone"], location="", boot="b",
                wire_version=1, wire_version_newest=0)
            service.links._links[node["name"]] = SimpleNamespace(  # type: ignore[assignment]
                node=node["name"], record=record, up=node["up"], told_down=not node["up"], draining=node["draining"],
                of_other_cluster=False, reason="" if node["up"] else "refuses connections", description=description,
                member=Member(node["name"], description.incarnation), space=Space.FREE, free_bytes=0,
                clock_ahead_ms=None)
    for number, group in enumerate(groups, start=1):
        name = f"g{number}"
        service.mirror.groups[name] = stored(group_object(name, group), number)
        for index, record in enumerate(group["records"][: group["shards"]]):
            service.mirror.shards[shard_id(number, index)] = Versioned(record, 40 + index)
        if group["refused"]:
            run.refused["LogGroup", name] = "spec.shards: is immutable"
        if group["pool"] == "other":
            service.keeper.trouble[name] = (ConditionReason.POOL_NOT_FOUND, "spec.placement.nodePools: no pool 'other'")
    for number, act in enumerate(acts):
        status: Object = {}
        if act in ("stored", "finished"):
            status = {"stage": "Finished" if act == "finished" else "Moving", "startTime": "2026-01-01T00:00:00Z",
                      "progress": {"completed": 1, "inProgress": 0, "failed": 0, "percent": 50, "summary": "1/2"},
                      "moves": [], "conditions": [
                          {"type": "Stalled", "status": "False", "reason": "Progressing", "message": "",
                           "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]}
        item = stored(act_object(f"act-{number}"), number, status=status)
        if act != "refused" or number % 2:
            service.mirror.reconfigurations[f"act-{number}"] = (
                Versioned(replace(item.value, kept=False), 3) if act == "the operator's" else item)
        if act == "refused":
            run.refused["Reconfiguration", f"act-{number}"] = "spec.cancel: cancel cannot be taken back"


def group_object(name: str, group: Object) -> Object:
    annotations = {"tidemark.dev/pause-reconciliation": "true"} if group["paused"] else {}
    return named("LogGroup", name, {
        "spec.shards": group["shards"], "spec.replication": {"factor": group["factor"]},
        "spec.shardProjection": group["projection"]}, **annotations)


def act_object(name: str) -> Object:
    return named("Reconfiguration", name, {})


def api_server(nodes: list[Object], groups: list[Object], acts: list[str]) -> Server:
    server = Server()
    server.put(named("TidemarkCluster", "prod", PLAIN))
    server.put(named("Keyspace", "carts", {}))
    for node in nodes:
        if node["pod"]:
            pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": "machine"}, "status": {"phase": "Running"},
                   "metadata": {"name": node["name"], "namespace": "data", "labels": {"tidemark.dev/cluster": "prod"},
                                "annotations": {"tidemark.dev/revision": node["pod"]}}}
            if node["pod"] == "going":
                pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"  # type: ignore[index]
            server.put(pod)
    for number, group in enumerate(groups, start=1):
        if group["shown"]:
            server.put(group_object(f"g{number}", group))
    for number, act in enumerate(acts):
        if act != "the operator's":
            server.put(act_object(f"act-{number}"))
    return server


def process(server: Server) -> ClusterRun:
    """Return an operator of the cluster that has just started."""
    caches = server.caches()
    writer = StatusWriter(server, lambda: 0.0, told=lambda item, status, repaired: server.told.extend(  # type: ignore[arg-type]
        str(each) for each in occurrences(item["kind"], item.get("status") or {}, status)))
    item = caches["TidemarkCluster"].get("data", "prod")
    assert item is not None
    events = SimpleNamespace(tell=lambda *_args, **_more: server.told.append("told"))
    return ClusterRun(item, server, caches, writer, events, lambda: None)  # type: ignore[arg-type]


# Without shrinking: a pass is a lot of work, and making a failure smaller would take minutes.
@settings(
    max_examples=150, phases=[PhaseOfTest.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(NODES, GROUPS, ACTS)
def test_a_second_pass_writes_nothing(nodes: list[Object], groups: list[Object], acts: list[str]) -> None:
    asyncio.run(second_pass(nodes, groups, acts))


async def second_pass(nodes: list[Object], groups: list[Object], acts: list[str]) -> None:
    server = api_server(nodes, groups, acts)
    run = process(server)
    service_of(run, nodes, groups, acts)
    run.service.mirror.objects["Keyspace"]["carts"] = stored(named("Keyspace", "carts", {}))
    await run.show()
    assert server.requests
    for say, again in (("the same process", run), ("a new process", process(server))):
        if again is not run:
            service_of(again, nodes, groups, acts)
            again.service.mirror.objects["Keyspace"]["carts"] = stored(named("Keyspace", "carts", {}))
        again.service.mirror.revision += 7  # something else was written, the operator's lease for one
        server.requests.clear()
        server.told.clear()
        await again.show()
        assert server.requests == [], say
        assert server.told == [], say
    for each in (run, again):
        each._showing.close()
        each.service.links._links.clear()
        await each.service.store.close()


async def test_nothing_is_said_of_an_etcd_that_was_not_tried_yet() -> None:
    """An operator that starts finds everything as it was."""
    server = api_server([], [], [])
    run = process(server)
    await run.show()
    assert server.requests == []
    run.service.store.last_error = "UNAVAILABLE: connection refused"
    await run.show()
    assert server.requests == ["apply TidemarkCluster/prod/status"]
    await run.show()
    assert len(server.requests) == 1
    run._showing.close()
    await run.service.store.close()
