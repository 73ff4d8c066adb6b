"""Which cluster a command means: the local one in `--dir`, or the one at `--cluster`.

`--cluster` is the operator's Admin service, which also knows where the nodes are, or any node.
Stays out: what is done there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import tidemark
from tidemark.errors import InvalidArgument
from tidemark.routing import check_addresses
from tidemark_operator import local

from .admin import Admin
from .failures import UNAVAILABLE, CommandFailed

CONNECT_TIMEOUT_S = 10.0


def check_cluster(cluster: str) -> str:
    """Return HOST:PORT as it is; raises CommandFailed when it is none."""
    try:
        (address,) = check_addresses(cluster)
    except (InvalidArgument, ValueError):
        raise CommandFailed(
            f"--cluster: {cluster!r} is not HOST:PORT", "For example --cluster 127.0.0.1:6690.", code=2, reason="USAGE"
        ) from None
    return address


async def node_addresses(directory: Path, cluster: str | None) -> list[str]:
    """Return where nodes answer."""
    if cluster is None:
        runtime = await local.attach(directory)
        addresses = runtime.bootstrap()
        if not addresses:
            raise CommandFailed(
                f"no node of the local cluster in {directory} is running",
                "Start it with `tidemark dev up`, or see `tidemark dev status`.",
                code=UNAVAILABLE, reason="UNAVAILABLE",
            )
        return addresses
    address = check_cluster(cluster)
    try:
        async with Admin(address) as service:
            clusters = await service.get("TidemarkCluster")
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return [address]  # a node, then
        raise
    found = [
        node["address"]
        for item in clusters
        for node in item.get("status", {}).get("nodes", [])
        if node.get("ready") and node.get("address")
    ]
    if not found:
        raise CommandFailed(
            f"the operator at {address} knows no node that is ready", "See `tidemark get cluster`.",
            code=UNAVAILABLE, reason="UNAVAILABLE",
        )
    return found


async def connect(directory: Path, cluster: str | None) -> tidemark.Client:
    """Return a client of the cluster that is meant."""
    return await tidemark.connect(await node_addresses(directory, cluster), timeout_s=CONNECT_TIMEOUT_S)


@asynccontextmanager
async def admin(directory: Path, cluster: str | None) -> AsyncIterator[Admin]:
    """Yield the Admin service of the cluster that is meant."""
    address = check_cluster(cluster) if cluster is not None else (await local.attach(directory)).admin_address
    async with Admin(address) as service:
        yield service
