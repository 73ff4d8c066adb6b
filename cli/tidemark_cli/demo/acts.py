"""What several acts of the demo need: a group or keyspace that is served, a bound in time, the first failure as itself.

Stays out: the acts (scenario, majority).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import yaml
from tidemark import Client
from tidemark_operator import local

from ..admin import Admin
from ..failures import UNAVAILABLE, CommandFailed
from ..reconfigurations import condition

CLUSTER = "demo"
ACT_TIMEOUT_S = 40.0
LOOK_S = 1.0


async def create_group(
    service: Admin, runtime: local.Runtime, name: str, *, shards: int, copies: int, kind: str = "Log",
    **replication: Any,
) -> None:
    """Create a log group and wait until every shard of it has a leader."""
    spec = {
        "kind": kind, "shards": shards,
        "replication": {"factor": copies, "defaultAck": "Quorum", "spread": "Node", **replication}}
    await _create(service, runtime, "LogGroup", name, spec, f"every shard of {name} has a leader")


async def create_keyspace(service: Admin, runtime: local.Runtime, name: str, **spec: Any) -> None:
    """Create a keyspace once all nodes are up, so that no range moves soon; wait until every range has owners."""
    def all_up(clusters: list[dict[str, Any]]) -> bool:
        nodes = clusters[0]["status"]["nodeSummary"]
        return bool(nodes["ready"] == nodes["current"])

    await runtime.wait_for("TidemarkCluster", all_up, "every node is up", ACT_TIMEOUT_S)
    await _create(service, runtime, "Keyspace", name, spec, f"every range of {name} has its owners")


async def _create(
    service: Admin, runtime: local.Runtime, kind: str, name: str, spec: dict[str, Any], what: str
) -> None:
    manifest = {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": CLUSTER}, **spec},
    }
    await service.apply(yaml.safe_dump(manifest))

    def served(items: list[dict[str, Any]]) -> bool:
        return any(condition(item, "Ready")[0] == "True" for item in items if item["metadata"]["name"] == name)

    await runtime.wait_for(kind, served, what, ACT_TIMEOUT_S)


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose first failure is raised as itself."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


@asynccontextmanager
async def within(what: str, seconds: float | None = None) -> AsyncIterator[None]:
    """Bound an act in time, to ACT_TIMEOUT_S unless told otherwise; the error says what did not come to pass."""
    bound = ACT_TIMEOUT_S if seconds is None else seconds
    try:
        async with asyncio.timeout(bound):
            yield
    except TimeoutError:
        raise CommandFailed(
            f"{what}: not within {bound:g} s", "Look at the logs of the processes.",
            code=UNAVAILABLE, reason="TIMEOUT",
        ) from None


async def leader_of(client: Client, group: str, shard: int) -> str:
    """Return the node that leads a shard; on a slow machine an election may be under way though no fault was made."""
    async with within(f"shard {shard} of {group} has a leader"):
        while (leader := client.routing.leader(group, shard)) is None:
            client.routing.refresh_soon()
            await client.routing.wait_changed(LOOK_S)
    return leader.node
