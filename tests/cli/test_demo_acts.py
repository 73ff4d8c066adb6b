"""The demo waits for a leader where an election is under way, and for groups and keyspaces that it creates."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from tidemark_cli.demo import acts
from tidemark_cli.failures import CommandFailed


class Routing:
    """Knows no leader before its map has changed so many times."""

    def __init__(self, changes: float) -> None:
        self.changes = changes
        self.asked = 0

    def leader(self, group: str, shard: int) -> SimpleNamespace | None:
        return None if self.asked < self.changes else SimpleNamespace(node=f"{group}-{shard}")

    def refresh_soon(self) -> None:
        self.asked += 1

    async def wait_changed(self, timeout_s: float) -> None:
        await acts.asyncio.sleep(0)


async def test_a_leader_is_waited_for_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known, late, never = (SimpleNamespace(routing=Routing(changes)) for changes in (0, 3, float("inf")))
    assert await acts.leader_of(known, "catalog", 1) == await acts.leader_of(late, "catalog", 1) == "catalog-1"
    assert late.routing.asked == 3
    monkeypatch.setattr(acts, "ACT_TIMEOUT_S", 0.05)
    with pytest.raises(CommandFailed, match=r"shard 1 of catalog has a leader: not within 0.05 s"):
        await acts.leader_of(never, "catalog", 1)


class Operator:
    """Takes manifests, and shows a watcher first objects that are not ready, then ready ones."""

    def __init__(self) -> None:
        self.applied: list[dict[str, Any]] = []
        self.waits: list[tuple[str, list[bool]]] = []

    async def apply(self, text: str) -> None:
        self.applied.append(yaml.safe_load(text))

    async def wait_for(self, kind: str, condition: Callable[[list[dict[str, Any]]], bool], what: str, _: float) -> None:
        def shown(ready: bool, name: str = "it") -> list[dict[str, Any]]:
            status = {
                "nodeSummary": {"ready": 4 + ready, "current": 5},
                "conditions": [{"type": "Ready", "status": str(ready), "reason": "", "message": ""}]}
            return [{"metadata": {"name": name}, "status": status}]

        self.waits.append((kind, [condition(shown(False)), condition(shown(True)), condition(shown(True, "other"))]))


async def test_a_keyspace_is_created_once_all_nodes_are_up_and_waited_for() -> None:
    operator: Any = Operator()
    await acts.create_keyspace(operator, operator, "it", partitions=4, replication={"replicas": 3})
    assert [("TidemarkCluster", [False, True, True]), ("Keyspace", [False, True, False])] == operator.waits
    assert [{
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Keyspace", "metadata": {"name": "it"},
        "spec": {"clusterRef": {"name": "demo"}, "partitions": 4, "replication": {"replicas": 3}}}] == operator.applied


async def test_a_group_is_created_and_waited_for() -> None:
    operator: Any = Operator()
    await acts.create_group(operator, operator, "it", shards=2, copies=3, rollback="Definite")
    assert [("LogGroup", [False, True, False])] == operator.waits
    [manifest] = operator.applied
    assert {
        "clusterRef": {"name": "demo"}, "kind": "Log", "shards": 2,
        "replication": {"factor": 3, "defaultAck": "Quorum", "spread": "Node", "rollback": "Definite"},
    } == manifest["spec"]
