"""Fixtures of the end-to-end tests: one cluster per module, healed after every test, gone after the last one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tidemark

from .cluster import Cluster
from .fault_proxy import Network

_running: list[Cluster] = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]):  # type: ignore[no-untyped-def]
    """Show the ends of the processes' logs, and what the nodes say of themselves, beside a failure."""
    report = yield
    if report.failed:
        for cluster in _running:
            report.sections.append((f"logs of {cluster.directory}", cluster.log_tails()))
            report.sections.append((f"nodes of {cluster.directory}", cluster.dumps()))
    return report


@pytest.fixture(scope="module")
def start_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Cluster]]:
    """Start clusters that are destroyed when the module is done, however it ends."""
    started: list[Cluster] = []

    def start(nodes: int, *flags: str, **options: Any) -> Cluster:
        cluster = Cluster(Path(tmp_path_factory.mktemp("cluster")))
        started.append(cluster)

        _running.append(cluster)
        asyncio.run(cluster.up(nodes, *flags, **options))
        return cluster

    yield start
    for cluster in started:
        cluster.destroy()
        _running.remove(cluster)


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[tidemark.Client]:
    async with await cluster.connect() as connected:
        yield connected


@pytest.fixture(autouse=True)
async def healed(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """Leave the cluster as it was found: everything runs, no group is left."""
    yield
    if "cluster" not in request.fixturenames:
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    for view in cluster.runtime.status():
        if view.state == "Paused":
            cluster.resume(view.name)
    await cluster.start("etcd", "operator")
    await cluster.remove_groups()
    await cluster.heal()
    assert not cluster.bugs(), "\n".join(cluster.bugs())


@pytest.fixture(scope="module")
def network(cluster: Cluster) -> Iterator[Network]:
    """Put every node of the module's cluster behind a proxy that can cut, slow and break connections."""
    network = Network(cluster)
    asyncio.run(cluster.put_behind(network.front))
    yield network
    network.close()


@pytest.fixture
async def faultless(network: Network, healed: None) -> AsyncIterator[None]:
    """Take every fault of the network back behind a test."""
    yield
    network.heal()
