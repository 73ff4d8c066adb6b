"""A partial partition on the API server: nodes that are Ready and that the operator reaches do not hear each other."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.fault_proxy import Network
from tests.kube.client import Kube, Object, Refused, condition
from tests.kube.control_plane import Etcd
from tests.kube.load import Load
from tests.kube.operators import CLUSTERS, SHARDS, Operator, addresses, cluster, log_group, served
from tests.kube.pod_runner import PodRunner

pytestmark = pytest.mark.apiserver

NODES = ("prod-1", "prod-2", "prod-3")
PORTS = (6690, 8080)
BUDGET = ("poddisruptionbudgets.policy", "prod-nodes")


class Pods:
    """The processes of node pods."""

    def __init__(self, runner: PodRunner) -> None:
        self._runner = runner

    def pids(self) -> dict[str, int]:
        found = {}
        for worker in self._runner.workers():
            for container in worker.containers:
                if worker.pod.name in NODES and container.process is not None:
                    found[worker.pod.name] = container.process.pid
        return found

    def name_of(self, pid: int) -> str | None:
        return next((name for name, known in self.pids().items() if known == pid), None)


@pytest.fixture
def network(kube: Kube, pod_runner: PodRunner) -> Iterator[Network]:
    """A proxy in front of every node, at the address that its pod shows."""
    network = Network(Pods(pod_runner))
    for name in NODES:
        shown = pod_runner.fronts[name] = pod_runner.next_address()
        for port in PORTS:
            network.front(name, partial(address_of, pod_runner, name, port), f"{shown}:{port}")
        short = f"{name}.prod-nodes"
        for suffix in ("", *(f".{kube.namespace}{end}" for end in ("", ".svc", ".svc.cluster.local"))):
            pod_runner.hosts[short + suffix] = shown
    yield network
    network.close()


def address_of(runner: PodRunner, pod: str, port: int) -> str:
    return f"{runner.behind[pod]}:{port}"


def allowed(found: Object, evictions: int) -> bool:
    return bool(found.get("status", {}).get("disruptionsAllowed") == evictions)


def well(found: Object) -> bool:
    return (condition(found, "Ready"), condition(found, "FullyReplicated")) == ("True", "True")


async def test_o45_a_follower_that_its_leader_does_not_hear_shows_and_closes_the_budget(
    kube: Kube, pod_runner: PodRunner, network: Network, metadata_etcd: Etcd, operator: Operator
) -> None:
    await served(kube, cluster(metadata_etcd), log_group(1))
    await kube.wait(CLUSTERS, "prod", well)
    await kube.wait(*BUDGET, lambda found: allowed(found, 1))
    status = (await kube.get(SHARDS, "orders-0000"))["status"]
    leader = status["leader"]
    follower, other = [each["node"] for each in status["ensemble"] if each["node"] != leader]
    async with Load(await addresses(kube)) as load:
        await load.more()
        network.cut(leader, follower)

        shard = await kube.wait(SHARDS, "orders-0000", lambda found: found["status"]["inSync"] == "2/3")
        assert [each["node"] for each in shard["status"]["ensemble"] if each["sync"] == "Unheard"] == [follower]
        apart = await kube.wait(CLUSTERS, "prod", lambda found: condition(found, "NodesDisconnected") == "True")
        assert (condition(apart, "Ready"), condition(apart, "FullyReplicated")) == ("False", "False")
        assert apart["status"]["readyNodes"] == "3/3", "every pod is ready, and every node answers the operator"
        await kube.wait(*BUDGET, lambda found: allowed(found, 0))
        with pytest.raises(Refused) as refused:
            await kube.evict(other)
        assert refused.value.code == 429
        await load.more()
        assert (await kube.get(SHARDS, "orders-0000"))["status"]["epoch"] == status["epoch"]

        network.heal()
        await kube.wait(CLUSTERS, "prod", lambda found: well(found) and not condition(found, "NodesDisconnected"))
        await kube.wait(*BUDGET, lambda found: allowed(found, 1))
        await load.more()
