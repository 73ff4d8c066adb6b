"""Objects as an API server shows them, and a server that holds them in memory."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from tidemark_operator.kube.api import Kind, KubeRefused

Object = dict[str, Any]
API = "tidemark.dev/v1alpha1"
NODES = ("prod-1", "prod-2", "prod-3", "prod-4")
PLAN = "sha256:00000000000000000000000000"


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def node(name: str, **more: Any) -> Object:
    number = int(name.rpartition("-")[2])
    return {
        "name": name, "nodeID": number, "pool": "default", "zone": f"zone-{'abcd'[number - 1]}", "state": "Active",
        "ready": True, "incarnation": f"disk-{number}", "leaders": 1, "replicas": 2,
        "kubernetesNode": f"machine-{number}", **more}


def cluster(*nodes: Object, running: str = "", conditions: tuple[Object, ...] = (), name: str = "prod") -> Object:
    told = {each["type"]: each for each in (
        condition("Ready", reason="Reconciled"), condition("Available", reason="QuorumsAvailable"),
        condition("FullyReplicated"), condition("MetadataStoreReachable", reason="Connected"),
        condition("Stalled", "False"), *conditions)}
    return {
        "apiVersion": API, "kind": "TidemarkCluster",
        "metadata": {"name": name, "namespace": "data", "annotations": {}},
        "spec": {"version": "0.1.0", "nodePools": [{"name": "default", "replicas": 4, "zones": ["zone-a", "zone-b"]}]},
        "status": {
            "version": "0.1.0", "operatorVersion": "0.1.0", "activeReconfiguration": running,
            "zones": [{"name": "zone-a", "nodes": 1, "ready": 1}],
            "nodes": list(nodes) or [node(each) for each in NODES], "conditions": list(told.values())}}


def group(name: str = "orders", factor: int = 3, **spec: Any) -> Object:
    return {
        "apiVersion": API, "kind": "LogGroup",
        "metadata": {"name": name, "namespace": "data", "uid": f"uid-{name}", "generation": 1,
                     "creationTimestamp": "2026-11-02T09:00:00Z"},
        "spec": {"clusterRef": {"name": "prod"}, "shards": 2,
                 "replication": {"factor": factor, "spread": "Node"}, **spec},
        "status": {
            "groupID": 4, "onlineShards": "2/2", "quorum": "2/3", "shards": {"online": 2, "leaderless": 0},
            "factorInForce": {"min": 3, "max": 3},
            "conditions": [condition("Ready", reason="AllShardsOnline"), condition("Stalled", "False")]}}


def shard(
    index: int, *members: str, away: tuple[str, ...] = (), lost: tuple[str, ...] = (), leader: str = "", **status: Any
) -> Object:
    names = members or NODES[:3]
    first = leader or names[0]
    return {
        "apiVersion": API, "kind": "Shard",
        "metadata": {"name": f"orders-{index:04}", "namespace": "data"},
        "spec": {"clusterRef": {"name": "prod"}, "logGroupRef": {"name": "orders"}, "shardID": index},
        "status": {
            "state": "Online", "epoch": 3, "leader": first, "metadataRevision": 7,
            "ensemble": [
                {"node": name, "zone": "zone-a", "role": "Leader" if name == first else "Follower",
                 "sync": "Unreachable" if name in away else "DiskLost" if name in lost else "InSync"}
                for name in names],
            "inSync": f"{len(names) - len(away) - len(lost)}/{len(names)}", "members": ",".join(names),
            "conditions": [condition("Available"), condition("QuorumReachable")], **status}}


def swap(name: str = "swap", source: str = "prod-1", target: str = "prod-4", *, at: str = "Moving",
         conditions: tuple[Object, ...] = (), spec: Mapping[str, Any] | None = None, **status: Any) -> Object:
    return {
        "apiVersion": API, "kind": "Reconfiguration",
        "metadata": {"name": name, "namespace": "data", "creationTimestamp": "2026-11-20T09:00:00Z"},
        "spec": {"clusterRef": {"name": "prod"}, "type": "NodeSwap", "approval": "Automatic",
                 "nodeSwap": {"from": source, "to": {"node": target}, "removeSource": "Keep"}, **(spec or {})},
        "status": {
            "stage": at, "plan": {"moves": 2, "hash": PLAN, "warnings": []},
            "progress": {"completed": 0, "summary": "0/2", "percent": 0, "bytesMoved": "0"},
            "conditions": [condition("Validated"), condition("Approved"), *conditions], **status}}


def pod(name: str, **status: Any) -> Object:
    ready = [condition(kind) for kind in ("PodScheduled", "ContainersReady", "tidemark.dev/synced", "Ready")]
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "data", "labels": {"tidemark.dev/cluster": "prod"}},
        "spec": {"containers": [{"name": "node", "env": [
            {"name": "REGION", "value": "eu"}, {"name": "DB_PASSWORD", "value": "hunter2"}]}]},
        "status": {"phase": "Running", "conditions": ready, "containerStatuses": [
            {"name": "node", "restartCount": 1, "state": {"running": {}}}], **status}}


def healthy() -> list[Object]:
    return [cluster(), group(), shard(0), shard(1, "prod-2", "prod-3", "prod-4"), *(pod(name) for name in NODES)]


class FakeServer:
    """What the plugin asks of a KubeApi, on objects in memory; what may not be read is `forbidden`."""

    def __init__(self, *items: Object) -> None:
        self.items = [copy.deepcopy(item) for item in items]
        self.forbidden: set[str] = set()
        self.written: list[tuple[str, str, Object]] = []
        self.asked: list[str] = []
        self.changes: list[Object] = []  # what a watch tells of, one after the other

    async def close(self) -> None:
        pass

    async def list(self, kind: Kind, namespace: str, labels: str = "") -> tuple[list[Object], str]:
        self._ask(kind)
        key, _, value = labels.partition(",")[0].partition("=")
        found = [
            item for item in self.items if item["kind"] == kind.kind and item["metadata"]["namespace"] == namespace
            and (not labels or item["metadata"].get("labels", {}).get(key) == value)]
        return copy.deepcopy(found), "1"

    async def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        found = (await self.list(kind, namespace))[0]
        return next((item for item in found if item["metadata"]["name"] == name), None)

    async def watch(self, kind: Kind, namespace: str, since: str, labels: str = "") -> AsyncIterator[
            tuple[str, Object]]:
        while self.changes:
            item = self.changes.pop(0)
            if item["kind"] == "Silence":
                item["then"]()
                await asyncio.sleep(60)
            yield "MODIFIED", {**item, "metadata": {**item["metadata"], "resourceVersion": "2"}}
        raise AssertionError("a watch was followed past everything that happens")

    async def create(self, manifest: Object, manager: str = "", *, dry_run: bool = False) -> Object:
        assert manager == "kubectl-tidemark"
        self.written.append(("dry-run" if dry_run else "create", manifest["kind"], manifest))
        return copy.deepcopy(manifest)

    async def merge(self, kind: Kind, namespace: str, name: str, changes: Object, manager: str = "") -> Object:
        assert manager == "kubectl-tidemark"
        if kind.kind in self.forbidden:
            raise KubeRefused(403, "Forbidden", f"{kind.plural} is forbidden")
        self.written.append(("merge", f"{kind.kind}/{name}", changes))
        found = await self.get(kind, namespace, name)
        assert found is not None
        return found

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        self.asked.append(path)
        if path == "/version":
            return json.dumps({"gitVersion": "v1.36.4"})
        return f"one line, token=abc123 of {path}\n"

    def _ask(self, kind: Kind) -> None:
        self.asked.append(kind.plural)
        if kind.kind in self.forbidden:
            raise KubeRefused(403, "Forbidden", f"{kind.plural} is forbidden")
