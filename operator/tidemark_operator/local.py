"""The local runtime behind `tidemark dev`: etcd, an operator and nodes as child processes of nobody.

Everything lives in one directory: `state.json` (addresses, process ids, logs), the data, the logs.  Processes
are detached, so `up` may exit; each is known by process id and start time, so that a number taken over by a
stranger is never signalled.  Loopback and free ports only.  Without TLS it is insecure and says so.
Stays out: showing anything, everything the operator does.
"""

# ruff: noqa: ASYNC240 - small files on a local disk, and nothing else runs on this loop

from __future__ import annotations

import asyncio
import json
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
from tidemark_wire.channel import open_channel
from tidemark_wire.tls import Credentials, FileCredentials, TlsSettings
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc

from .certificates.rotation import Policy
from .etcd_access import TlsFiles
from .local_manifests import check_unchanged, cluster_manifest, deal, places, read_manifests, snapshot_rate
from .local_processes import (
    START_TIMEOUT_S,
    STOP_TIMEOUT_S,
    add_nodes,
    new_nodes,
    new_state,
    start_etcd,
    start_node,
    start_operator,
    stop,
)
from .local_state import (
    DamagedState,
    LocalRuntimeError,
    NodeState,
    ProcessState,
    State,
    keys_of,
    load_state,
    locked,
    save_state,
    saved,
)
from .local_tls import LocalCertificates, etcd_files
from .metadata import Keys
from .model import certificate_policy
from .process import ProcessId, identify, pause, send_signal, wait_gone, writers_into
from .resources import Resource, TidemarkCluster
from .resources.conditions import ConditionReason, ConditionType

__all__ = ["LocalRuntimeError", "ProcessView", "Runtime", "attach", "down", "up"]


@dataclass(frozen=True, slots=True)
class ProcessView:
    """One process as `status` shows it; `state` is Running, Paused or Stopped."""

    name: str
    role: str
    state: str
    pid: int
    address: str
    log: str


class Runtime:
    """A local cluster in one directory.  Made by `up` and `attach`."""

    def __init__(self, directory: Path, state: State) -> None:
        self.directory = directory
        self.state = state

    @property
    def cluster(self) -> str:
        return self.state.cluster

    @property
    def admin_address(self) -> str:
        """Where the operator's Admin service answers."""
        return self.state.operator_address

    @property
    def etcd_origin(self) -> str:
        """Which etcd is used: the one on PATH or the wheel's."""
        return self.state.etcd_origin

    @property
    def tls(self) -> TlsSettings | None:
        """The certificate that a client of this machine uses, None where there is no TLS."""
        return self.certificates().admin() if self.state.tls else None

    def certificates(self) -> LocalCertificates:
        """Return the cluster's certificates.  Raises LocalRuntimeError where there is no TLS."""
        if not self.state.tls:
            raise LocalRuntimeError(
                f"the cluster {self.cluster!r} runs without TLS", "Make one with `tidemark dev up --tls`.")
        return LocalCertificates(self.directory, self.cluster)

    def credentials(self) -> Credentials | None:
        """Return what channels to this cluster are opened with."""
        tls = self.tls
        return FileCredentials(tls) if tls is not None else None

    async def policy(self) -> Policy:
        """Return how long certificates last, as the cluster's manifest says."""
        (cluster,) = await self.objects("TidemarkCluster")
        return certificate_policy(cluster["spec"])

    def keys(self) -> Keys:
        """Return where in etcd this cluster's metadata lies."""
        return keys_of(self.cluster)

    def etcd_tls(self) -> TlsFiles | None:
        """Return what to speak to this cluster's etcd with, None where it is in the clear."""
        return etcd_files(self.directory, self.state)

    def node_addresses(self) -> dict[str, str]:
        return {name: node.address for name, node in self.state.nodes.items()}

    def bootstrap(self) -> list[str]:
        """Return addresses of running nodes, for clients."""
        self._refresh()
        return [node.address for node in self.state.nodes.values() if node.running]

    # --- processes ----------------------------------------------------------------------------------------

    def status(self) -> list[ProcessView]:
        """Return every process of the cluster as it is now."""
        self._refresh()
        state = self.state
        views = [
            _view("etcd", "etcd", state.etcd, state.etcd_url.partition("://")[2]),
            _view("operator", "operator", state.operator, state.operator_address),
        ]
        return views + [_view(name, "node", node, node.address) for name, node in state.nodes.items()]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a node, "operator" or "etcd"; return once a killed process is gone."""
        process = self._running(name)
        send_signal(process, number)
        if number == signal.SIGKILL and not wait_gone(process, STOP_TIMEOUT_S):
            raise LocalRuntimeError(
                f"{name} (pid {process.pid}) outlives SIGKILL",
                "The system keeps it, perhaps waiting for a disk; look at it with `ps`.")

    def pause(self, name: str) -> None:
        """Stop a process (SIGSTOP); return once all its threads stand still.  Its connections stay open."""
        process = self._running(name)
        if not pause(process):
            raise LocalRuntimeError(
                f"{name} (pid {process.pid}) still runs behind SIGSTOP",
                "The system keeps it, perhaps waiting for a disk; look at it with `ps`.")

    def _running(self, name: str) -> ProcessId:
        self._refresh()
        target = self._process(name)
        if target.process is None or not target.running:
            raise LocalRuntimeError(f"{name} is not running", f"Start it with `tidemark dev start {name}`.")
        return target.process

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        self.kill(name, signal.SIGCONT)

    async def start(self, name: str) -> None:
        """Start a process that is not running, with its old data and, if it is free, at its old address."""
        async with locked(self.directory):
            self._refresh()
            target = self._process(name)
            if target.running:
                return
            with saved(self.directory, self.state):
                match name:
                    case "etcd":
                        await start_etcd(self.directory, self.state)
                    case "operator":
                        await start_operator(self.directory, self.state, self.credentials())
                    case _:
                        assert isinstance(target, NodeState)
                        await start_node(target)

    async def stop(self, name: str) -> None:
        """Stop a process gracefully; one that does not end in time is killed."""
        self._refresh()
        await stop(self._process(name))

    def wipe(self, name: str) -> None:
        """Delete the data of a stopped node: it comes back as a new member (rule K14)."""
        target = self._process(name)
        if not isinstance(target, NodeState):
            raise LocalRuntimeError(f"{name} is not a node", "Only the data of a node can be wiped.")
        if target.running:
            raise LocalRuntimeError(
                f"{name} is running", f"Kill it first with `tidemark dev kill {name}`.")
        shutil.rmtree(target.data, ignore_errors=True)

    async def add_node(self, location: str = "") -> str:
        """Start one more node and return its name; ids are never reused."""
        async with locked(self.directory):
            self._refresh()
            (cluster,) = await self.objects("TidemarkCluster")
            (place,) = places([{"replicas": 1}], [location])
            with saved(self.directory, self.state):
                names = await new_nodes(self.directory, self.state, 1)
                if self.state.tls:
                    self.certificates().prepare(certificate_policy(cluster["spec"]), names)
                await add_nodes(self.directory, self.state, {names[0]: place}, snapshot_rate(cluster))
        return names[0]

    def _refresh(self) -> None:
        """Another command may have started something meanwhile."""
        self.state = load_state(self.directory) or self.state

    def _process(self, name: str) -> ProcessState:
        if name == "etcd":
            return self.state.etcd
        if name == "operator":
            return self.state.operator
        if name in self.state.nodes:
            return self.state.nodes[name]
        known = ", ".join(["etcd", "operator", *self.state.nodes])
        raise LocalRuntimeError(f"there is no process {name!r} in this cluster", f"It has {known}.")

    # --- the operator -------------------------------------------------------------------------------------

    async def apply(self, manifests: str) -> list[str]:
        """Apply manifests through the operator; raises grpc.aio.AioRpcError with the refusal inside."""
        async with open_channel(self.admin_address, self.credentials()) as channel:
            answer = await admin_pb2_grpc.AdminStub(channel).Apply(
                admin_pb2.ApplyRequest(manifests=manifests), timeout=10)
            return list(answer.applied)

    async def objects(self, kind: str, name: str = "") -> list[dict[str, Any]]:
        async with open_channel(self.admin_address, self.credentials()) as channel:
            answer = await admin_pb2_grpc.AdminStub(channel).Get(
                admin_pb2.GetRequest(kind=kind, name=name), timeout=10)
            return [json.loads(text) for text in answer.objects]

    async def wait_for(
        self, kind: str, condition: Callable[[list[dict[str, Any]]], bool], what: str,
        timeout_s: float = START_TIMEOUT_S,
    ) -> list[dict[str, Any]]:
        """Watch objects until `condition` holds of them; raises LocalRuntimeError past the deadline."""
        last: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(timeout_s), open_channel(self.admin_address, self.credentials()) as channel:
                stub = admin_pb2_grpc.AdminStub(channel)
                async for answer in stub.Watch(admin_pb2.GetRequest(kind=kind)):
                    last = [json.loads(text) for text in answer.objects]
                    if condition(last):
                        return last
        except TimeoutError:
            pass
        except grpc.aio.AioRpcError as error:
            raise LocalRuntimeError(
                f"the operator at {self.admin_address} broke off: {error.details()}",
                f"Read its log, {self.state.operator.log}.") from error
        raise LocalRuntimeError(
            f"{what}: not after {timeout_s:.0f} s; {_why_not(last)}",
            f"Look at `tidemark dev status` and at the logs in {self.directory / 'logs'}.")


# --- up, attach, down -------------------------------------------------------------------------------------


async def up(
    directory: Path | str = ".tidemark",
    manifests: str = "",
    *,
    nodes: int | None = None,
    locations: Sequence[str] = (),
    cluster: str = "dev",
    tls: bool | None = None,
    node_flags: Sequence[str] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> Runtime:
    """Bring a cluster up, or attach to the one in `directory` and start whatever of it does not run.

    `manifests` may name the TidemarkCluster (else one called `cluster` with `nodes` nodes, default 3, is made)
    and anything to apply once the nodes are there.  Locations ('region=eu,zone=a') are dealt to the nodes in turn.
    Nodes that are made now run with `node_flags` from then on.
    With `tls` every connection is mutual TLS, under a CA of its own; None: as the cluster was made, a new one without.
    Raises LocalRuntimeError.
    """
    directory = Path(directory).absolute()
    resources = read_manifests(manifests)
    directory.mkdir(parents=True, exist_ok=True)
    async with locked(directory):
        state = load_state(directory)
        wanted = cluster_manifest(resources, nodes, state, cluster, tls=state.tls if state else bool(tls))
        if state is not None and state.cluster != wanted["metadata"]["name"]:
            raise LocalRuntimeError(
                f"{directory} holds the cluster {state.cluster!r}, not {wanted['metadata']['name']!r}",
                "Use another --dir, or end that one with `tidemark dev down --wipe`.")
        if state is not None and tls not in (None, state.tls):
            raise LocalRuntimeError(
                f"{directory} holds a cluster {'with' if state.tls else 'without'} TLS",
                "Use another --dir, or end that one with `tidemark dev down --wipe`.")
        if state is not None:
            check_unchanged(directory, state, nodes, locations)
        state = state or new_state(directory, wanted["metadata"]["name"], tls=bool(tls))
        runtime = Runtime(directory, state)
        with saved(directory, state):
            await _start_all(runtime, resources, wanted, locations, node_flags, progress)
        return runtime


async def _start_all(
    runtime: Runtime, resources: list[Resource], wanted: dict[str, Any], locations: Sequence[str],
    node_flags: Sequence[str], progress: Callable[[str], None],
) -> None:
    directory, state = runtime.directory, runtime.state
    places(wanted["spec"]["nodePools"], locations)  # refuses what is no location before anything is started
    if state.tls:
        runtime.certificates().prepare(certificate_policy(wanted["spec"]), state.nodes)
    await start_etcd(directory, state)
    progress(f"{state.etcd_origin} at {state.etcd_url}")
    await start_operator(directory, state, runtime.credentials())
    progress(f"operator at {state.operator_address}")
    first = not await runtime.objects("TidemarkCluster")
    if first or any(isinstance(resource, TidemarkCluster) for resource in resources):
        await _apply(runtime, [wanted])
    (cluster,) = await runtime.objects("TidemarkCluster")
    pools = cluster["spec"]["nodePools"]
    await asyncio.gather(*(start_node(node) for node in state.nodes.values()))
    missing = sum(pool["replicas"] for pool in pools) - len(state.nodes)
    if missing > 0:
        names = await new_nodes(directory, state, missing)
        dealt = deal(names, places(pools, locations), (node.location for node in state.nodes.values()))
        if state.tls:
            runtime.certificates().prepare(certificate_policy(cluster["spec"]), names)
        await add_nodes(directory, state, dealt, snapshot_rate(cluster), node_flags)
    progress(f"{len(state.nodes)} nodes on loopback, {'mutual TLS' if state.tls else 'insecure'}")
    await runtime.wait_for("TidemarkCluster", _all_ready, "all nodes are linked to the operator")
    others = [resource.as_written() for resource in resources if not isinstance(resource, TidemarkCluster)]
    if others:
        for line in await _apply(runtime, others):
            progress(line)
    await runtime.wait_for("LogGroup", _all_served, "every shard has a leader")
    await runtime.wait_for("Keyspace", _all_served, "every range has its owners")


async def attach(directory: Path | str = ".tidemark") -> Runtime:
    """Return the cluster in `directory` as it is; nothing is started.  Raises LocalRuntimeError."""
    directory = Path(directory).absolute()
    state = load_state(directory)
    if state is None:
        raise LocalRuntimeError(
            f"no local cluster in {directory}", "Start one with `tidemark dev up`, or name its directory: --dir.")
    return Runtime(directory, state)


async def down(directory: Path | str = ".tidemark", *, wipe: bool = False) -> list[str]:
    """Stop everything, the operator first; with `wipe` the directory's data goes too.  Return what was stopped."""
    try:
        runtime = await attach(directory)
    except DamagedState:
        if not wipe:
            raise
        return _wipe_damaged(Path(directory).absolute())
    state, stopped = runtime.state, []
    async with locked(runtime.directory):
        # The operator goes first: stopping the whole cluster is no reason to elect anybody.
        for name, process in [("operator", state.operator), *state.nodes.items(), ("etcd", state.etcd)]:
            if process.running:
                stopped.append(name)
        await stop(state.operator)
        await asyncio.gather(*(stop(node) for node in state.nodes.values()))
        await stop(state.etcd)
        save_state(runtime.directory, state)
        if wipe:
            _wipe(runtime.directory)
    return stopped


def _wipe(directory: Path) -> None:
    for name in ("etcd", "nodes", "ready", "logs", "tls", "state.json"):
        path = directory / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _wipe_damaged(directory: Path) -> list[str]:
    """Kill the processes that log into this directory, whatever its state says, and delete the data."""
    processes = writers_into((directory / "logs").resolve())
    for process in processes:
        send_signal(process, signal.SIGKILL)
    for process in processes:
        if not wait_gone(process, STOP_TIMEOUT_S):
            raise LocalRuntimeError(
                f"the process {process.pid} outlives SIGKILL", "The system keeps it; look at it with `ps`.")
    _wipe(directory)
    return [f"process {process.pid}" for process in processes]


# --- parts ------------------------------------------------------------------------------------------------


async def _apply(runtime: Runtime, manifests: list[dict[str, Any]]) -> list[str]:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
    try:
        return await runtime.apply(text)
    except grpc.aio.AioRpcError as error:
        raise LocalRuntimeError(
            f"the operator refuses a manifest: {error.details()}", "Fix the field named above.") from error


def _all_ready(objects: list[dict[str, Any]]) -> bool:
    if not objects:
        return False
    summary = objects[0]["status"]["nodeSummary"]
    return bool(summary["ready"] == summary["current"] >= summary["desired"])


def _all_served(objects: list[dict[str, Any]]) -> bool:
    """Say whether every object is available, besides those that this release does not serve."""
    served = [item for item in objects if _condition(item, "Ready")["reason"] != ConditionReason.NOT_SUPPORTED]
    return all(_condition(item, "Available")["status"] == "True" for item in served)


def _condition(item: dict[str, Any], type_: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in item["status"]["conditions"] if c["type"] == type_)
    return found


def _why_not(objects: list[dict[str, Any]]) -> str:
    """Quote the conditions that are not met."""
    said = [
        f"{item['metadata']['name']}: {condition['reason']} {condition['message']}".strip()
        for item in objects
        for condition in item["status"]["conditions"]
        if condition["type"] in (ConditionType.READY, ConditionType.AVAILABLE, ConditionType.STALLED)
        and (condition["status"] == "True") == (condition["type"] == ConditionType.STALLED)
    ]
    return "; ".join(said) or "nothing was reported"


def _view(name: str, role: str, target: ProcessState, address: str) -> ProcessView:
    seen = identify(target.process.pid) if target.process else None
    state = "Stopped"
    if target.running and seen is not None:
        state = "Paused" if seen.paused else "Running"
    return ProcessView(name, role, state, target.process.pid if target.process else 0, address, target.log)
