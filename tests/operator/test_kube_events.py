"""Events of what people write: each change of a spec is acted on once, whoever told of it first; statuses are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio.client import Configuration
from tidemark_operator.kube.api import CUSTOM
from tidemark_operator.kube.operator import KubernetesOperator

GROUP = CUSTOM["LogGroup"]
KEY = ("object", "data", "orders", "LogGroup")


def group(version: int, shards: int, **status: Any) -> dict[str, Any]:
    return {"spec": {"shards": shards, "clusterRef": {"name": "prod"}}, "status": status, "metadata": {
        "namespace": "data", "name": "orders", "uid": "u", "resourceVersion": str(version)}}


class Queue(list[Any]):
    """Takes keys and has them taken out."""

    add = list.append

    def add_after(self, key: Any, seconds: float) -> None:
        self.append(key)

    def taken(self) -> list[Any]:
        found = self[:]
        self.clear()
        return found


@pytest.fixture
async def operator() -> AsyncIterator[KubernetesOperator]:
    made = KubernetesOperator(Configuration(), ["data"])
    made._queue = Queue()  # type: ignore[assignment]
    yield made
    await made._api.close()


def taken(operator: KubernetesOperator) -> list[Any]:
    return operator._queue.taken()  # type: ignore[attr-defined, no-any-return]


async def test_each_change_of_a_spec_is_acted_on_once(operator: KubernetesOperator) -> None:
    operator._seen(GROUP, "", group(1, 4))
    assert taken(operator) == [KEY]
    operator._seen(GROUP, "MODIFIED", group(2, 4, onlineShards="4/4"))
    operator._seen(GROUP, "", group(2, 4, onlineShards="4/4"))
    assert taken(operator) == []
    operator._seen(GROUP, "MODIFIED", group(3, 8))
    assert taken(operator) == [KEY]
    operator._seen(GROUP, "MODIFIED", group(1, 4))
    assert taken(operator) == [], "an old event comes late"
    operator._seen(GROUP, "DELETED", group(4, 8))
    assert taken(operator) == [KEY]
    operator._seen(GROUP, "ADDED", group(5, 8))
    assert taken(operator) == [KEY]


async def test_a_change_that_our_own_write_saw_first_is_not_lost(operator: KubernetesOperator) -> None:
    operator._seen(GROUP, "ADDED", group(1, 4))
    taken(operator)
    # Somebody changed the spec in version 2; our status went in as version 3, and its answer was here first.
    operator._caches["LogGroup"].learn({"kind": "LogGroup", **group(3, 8, onlineShards="4/4")})
    operator._seen(GROUP, "MODIFIED", group(2, 8))
    assert taken(operator) == [KEY]
    operator._seen(GROUP, "MODIFIED", group(3, 8, onlineShards="4/4"))
    assert taken(operator) == []


async def test_what_a_machine_says_of_its_health_is_no_news(operator: KubernetesOperator) -> None:
    operator._runs["data", "prod"] = None  # type: ignore[assignment]
    cache = operator._caches["Node"]

    def heard(version: int, zone: str = "a", beat: int = 0, **spec: Any) -> list[Any]:
        machine = {"metadata": {"name": "m", "resourceVersion": str(version), "labels": {"zone": zone}},
                   "spec": spec, "status": {"heartbeat": beat}}
        cache.learn(machine)
        operator._machine_changed(machine)
        return taken(operator)

    assert ("rollout", "data", "prod") in heard(1)
    assert heard(2, beat=1) == heard(3, beat=2) == []
    assert ("rollout", "data", "prod") in heard(4, unschedulable=True)
    assert ("addresses", "data", "prod") in heard(5, "b", unschedulable=True)
    gone = {"metadata": {"name": "m", "resourceVersion": "6"}}
    cache.forget(gone)
    operator._machine_changed(gone)
    assert ("lives", "data", "prod") in taken(operator)
    operator._machine_changed(gone)
    assert taken(operator) == []
