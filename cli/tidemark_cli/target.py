"""Which cluster a command means: the local one in `--dir`, or the one at `--cluster`.

`--cluster` is the operator's Admin service, which also knows where the nodes are, or any node.  A local cluster
with TLS is spoken to with its own admin's certificate unless another one is given.
Stays out: what is done there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

import grpc
import tidemark
from tidemark import profiles
from tidemark.errors import InvalidArgument, UnknownGroup
from tidemark.routing import check_addresses
from tidemark_operator import local
from tidemark_wire.tls import TlsSettings

from .admin import Admin
from .failures import UNAVAILABLE, USAGE, CommandFailed
from .identity import directory_is_given, given_profile, given_tls
from .reconfigurations import condition_of

CONNECT_TIMEOUT_S = 10.0


def check_cluster(cluster: str, option: str = "--cluster") -> str:
    """Return HOST:PORT as it is; raises CommandFailed when it is none."""
    try:
        (address,) = check_addresses(cluster)
    except (InvalidArgument, ValueError):
        raise CommandFailed(
            f"{option}: {cluster!r} is not HOST:PORT", f"For example {option} 127.0.0.1:6690.", code=2, reason="USAGE"
        ) from None
    return address


def tls_of(runtime: local.Runtime) -> TlsSettings | None:
    """Return the certificate to use in a local cluster: the one given for this command, else its own, else none."""
    found = given_tls()
    if found is not None and runtime.tls is None:
        raise CommandFailed(
            f"the local cluster {runtime.cluster!r} runs without TLS, and a certificate is given",
            "Leave --tls-* and TIDEMARK_TLS_* away, or make the cluster with `tidemark dev up --tls`.", code=USAGE,
            reason="USAGE")
    return found or runtime.tls


def place_of(directory: Path, cluster: str | None) -> tuple[str | None, TlsSettings | None]:
    """Return the addresses that are meant, None for the local cluster, and the certificate to use there.

    The first of these: --cluster, --profile, a local cluster in the directory, the current profile.  A directory that
    was given means no profile, whether a cluster is there or not.
    """
    if cluster is not None:
        return cluster, given_tls()
    name = given_profile()
    if not name and (directory_is_given() or (directory / "state.json").exists()):
        return None, None
    known = profiles.load()
    if not (name := name or known.current):
        return None, None
    profile = known.find(name)
    return ",".join(profile.addresses), given_tls() or profile.tls


async def nodes_of(directory: Path, cluster: str | None) -> tuple[list[str], TlsSettings | None]:
    """Return where nodes answer, and the certificate to speak to them with."""
    cluster, tls = place_of(directory, cluster)
    if cluster is None:
        runtime = await local.attach(directory)
        addresses = runtime.bootstrap()
        if not addresses:
            raise CommandFailed(
                f"no node of the local cluster in {directory} is running",
                "Start it with `tidemark dev up`, or see `tidemark dev status`.",
                code=UNAVAILABLE, reason="UNAVAILABLE",
            )
        return addresses, tls_of(runtime)
    if "," in cluster:
        return check_addresses(cluster), tls  # one alone may be the operator's; of many each is a node
    address = check_cluster(cluster)
    try:
        async with Admin(address, tls) as service:
            clusters = await service.get("TidemarkCluster")
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return [address], tls  # a node, then
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
    return found, tls


class Connection:
    """A client of a cluster for one command, which says of a group that is not served what the operator says of it."""

    def __init__(self, client: tidemark.Client, directory: Path, cluster: str | None) -> None:
        self._client = client
        self._directory = directory
        self._cluster = cluster

    async def __aenter__(self) -> tidemark.Client:
        return await self._client.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)
        if isinstance(error, UnknownGroup) and (found := await self._unserved(error.group)) is not None:
            raise found from None

    async def _unserved(self, name: str) -> CommandFailed | None:
        """Return why the operator does not serve a group that exists; None where that is not known."""
        try:
            async with admin(self._directory, self._cluster) as service:
                items = await service.get("LogGroup", name) if name else []
        except (grpc.aio.AioRpcError, CommandFailed):
            return None  # --cluster names a node, or the operator is away
        if not items:
            return None
        ready = condition_of(items[0], "Ready")
        why = f": {ready.get('reason', '')}: {ready.get('message', '')}" if ready else ""
        return CommandFailed(
            f"log group {name!r} exists and is not served{why}", f"See `tidemark get loggroup {name} --json`.",
            code=UNAVAILABLE, reason="NOT_SERVED")


async def connect(directory: Path, cluster: str | None) -> Connection:
    """Return a connection to the cluster that is meant; `async with` gives its client."""
    addresses, tls = await nodes_of(directory, cluster)
    return Connection(await tidemark.connect(addresses, timeout_s=CONNECT_TIMEOUT_S, tls=tls), directory, cluster)


@asynccontextmanager
async def admin(directory: Path, cluster: str | None) -> AsyncIterator[Admin]:
    """Yield the Admin service of the cluster that is meant."""
    cluster, tls = place_of(directory, cluster)
    if cluster is None:
        runtime = await local.attach(directory)
        address, tls = runtime.admin_address, tls_of(runtime)
    else:
        address = check_cluster(cluster.partition(",")[0])
    async with Admin(address, tls) as service:
        yield service
