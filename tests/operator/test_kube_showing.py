"""What is shown of a cluster, and when nothing is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from test_kube_rolling import Run
from tidemark_operator.condition_memory import Condition, ConditionMemory
from tidemark_operator.kube.showing import Showing
from tidemark_operator.status.kubernetes import kubernetes_conditions, with_pods


class Writer:
    """Statuses of clusters as they were written."""

    def __init__(self) -> None:
        self.statuses: list[dict[str, Any]] = []

    async def write(self, cache: Any, item: dict[str, Any], status: dict[str, Any], *, urgent: bool = False) -> bool:
        self.statuses.append(status)
        return True

    async def write_gate(self, cache: Any, pod: dict[str, Any], ready: bool) -> None:
        """Pods are not looked at here."""


class Shown(Run):
    """A cluster of three nodes, their pods of an older template, of which all is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.item = {
            "kind": "TidemarkCluster", "metadata": {"name": "prod", "uid": "uid", "generation": 1, "annotations": {}},
            "status": {"version": "1.0.0"}}
        self.live = {name: {**pod, "spec": {}} for name, pod in self.live.items()}
        self.refused: dict[tuple[str, str], str] = {}
        self.caches: dict[str, dict[str, Any]] = {
            kind: {} for kind in ("TidemarkCluster", "Pod", "Shard", "LogGroup", "Keyspace", "Reconfiguration")}
        self.keeping = SimpleNamespace(
            wanted=None, lost={}, stuck_volumes=lambda cluster, views: [], resizing=lambda cluster, views: [])
        self.said: list[Condition] = []
        self.service.memory, self.service.certificates, self.service.show = ConditionMemory(), None, self._status
        self.service.standing, self.service.kubernetes = {}, None
        self.writer = Writer()
        self.showing = Showing(self, self, self.writer)  # type: ignore[arg-type]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [self.item] if kind == "TidemarkCluster" else []

    def owned(self, kind: str) -> dict[str, Any]:
        return {}

    def _status(self, kind: str, name: str) -> list[dict[str, Any]]:
        if kind != "TidemarkCluster":
            return []
        facts = self.service.kubernetes
        assert facts is not None, "they are gathered before the status is computed"
        self.said += kubernetes_conditions(facts, {})
        return [{"status": with_pods({"nodes": [], "nodeSummary": {}}, facts, "1.0.0")}]


async def test_an_operator_that_has_just_taken_over_says_nothing_of_older_pods_before_it_has_looked_at_them() -> None:
    run = Shown()
    await run.showing.show()
    assert run.writer.statuses == [], "it would say that the rollout is over"

    await run.rolling.look()
    await run.showing.show()
    assert [each["nodeSummary"]["updated"] for each in run.writer.statuses] == [0]
    assert ("Ready", False, "RolloutInProgress") in [(one[0].value, one[1], one[2].value) for one in run.said]

    run.service.active = False
    await run.rolling.look()
    run.service.active = True   # another operator may have gone on with it meanwhile
    await run.showing.show()
    assert len(run.writer.statuses) == 1


async def test_where_all_pods_are_as_they_should_be_nobody_waits_for_that_look() -> None:
    run = Shown()
    for name in ("n1", "n2", "n3"):
        run.renew(name)
        run.live[name]["spec"] = {}
    assert run.rolling.facts is None
    await run.showing.show()
    assert [each["nodeSummary"]["updated"] for each in run.writer.statuses] == [3]
