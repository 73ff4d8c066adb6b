"""A local cluster under test: its processes, its groups, its leaders, and conditions to wait for.

Stays out: what is appended and what readers must see (workload), faults of the network (fault_proxy).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import psutil
import tidemark
import yaml
from tidemark_cli.admin import Admin
from tidemark_cli.reconfigurations import reconfiguration
from tidemark_core.base.ids import Member, ShardId, shard_id
from tidemark_operator import local
from tidemark_operator.local_processes import start_node
from tidemark_operator.local_state import NodeState, save_state
from tidemark_wire.channel import open_channel
from tidemark_wire.status import refusal_from_rpc_error
from tidemark_wire.tls import FileCredentials
from tidemark_wire.v1 import admin_pb2, admin_pb2_grpc, node_pb2, node_pb2_grpc

from tests.ran import Ran
from tests.waiting import PATIENCE_S, until, wait_until

API_VERSION = "tidemark.dev/v1alpha1"
LOG_TAIL_BYTES = 3_000
CLI_S = 120.0
"""A command takes a second of the processor to start, and may move a copy."""
DUMP_S = 10
"""For a node that may stand still: then it shows nothing."""
BUG_SIGNS = ("bug: the node stops", "unforeseen way", "tidemark_operator: Task", "AssertionError", "CRITICAL tidemark")


class Cluster:
    """One local cluster in one directory.  Everything it started is gone after `destroy`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runtime: local.Runtime
        self._groups = 0
        self._group_ids: dict[str, int] = {}

    # --- life ---------------------------------------------------------------------------------------------

    async def up(
        self, nodes: int, *flags: str, silence_ms: int | None = 500, quorum_silence_ms: int = 3_000, tls: bool = False,
        release_before: bool = False,
    ) -> None:
        """Start it, nodes with `flags`; a probe of `silence_ms` fails, None for the defaults of failure detection.

        A leader without a majority for `quorum_silence_ms` is replaced by a member that reaches one.  The manifest has
        no field that the `release_before` refuses.
        """
        manifest = {
            "apiVersion": API_VERSION, "kind": "TidemarkCluster", "metadata": {"name": "e2e"},
            "spec": {
                "version": "0.1.0",
                "metadataStore": {"etcd": {"endpoints": ["http://127.0.0.1:2379"]}},
                "nodePools": [
                    {"name": "default", "replicas": nodes, "storage": {"data": {"size": "10Gi"}}},
                ],
                "reconfiguration": {
                    "onFactorChange": "Manual", **({} if release_before else {"leaderBalance": "Manual"})},
                "failureDetection": {
                    "probeIntervalMilliseconds": 200, "probeTimeoutMilliseconds": silence_ms, "failureThreshold": 2,
                    **({} if release_before else {"quorumSilenceMilliseconds": quorum_silence_ms}),
                } if silence_ms is not None else {},
                "security": (
                    {"tls": {"mode": "Managed"}} if tls else {"tls": {"mode": "Disabled"}, "clientAuth": "None"}),
            },
        }
        self.runtime = await local.up(self.directory, yaml.safe_dump(manifest), tls=tls, node_flags=flags)

    async def heal(self) -> None:
        """Let every process run again and wait until every group is served."""
        for view in self.runtime.status():
            if view.state == "Paused":
                self.runtime.resume(view.name)
        self.runtime = await local.up(self.directory)

    def destroy(self) -> None:
        """End every process at once, whatever state it is in and whoever lost sight of it."""
        left = self._processes()
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        _, outliving = psutil.wait_procs(left, timeout=10)
        assert not outliving, f"{outliving} outlive SIGKILL"
        assert not self._processes()

    def _processes(self) -> list[psutil.Process]:
        """Return every living process that works in this cluster's directory."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                works_here = any(str(self.directory) in argument for argument in process.cmdline())
                if works_here and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def bugs(self) -> list[str]:
        """Return what the processes' logs say of broken invariants and of unforeseen errors."""
        return [
            f"{path.name}: {line[:2_000]}"
            for path in sorted((self.directory / "logs").glob("*.log"))
            for line in path.read_text(errors="replace").splitlines()
            if any(sign in line for sign in BUG_SIGNS)
        ]

    def log_tails(self) -> str:
        """Return the end of every log, for a failed test."""
        parts = []
        for path in sorted((self.directory / "logs").glob("*.log")):
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
                parts.append(f"--- {path.name} ---\n{file.read().decode(errors='replace')}")
        return "\n".join(parts)

    def _process(self, name: str) -> Any:
        state = self.runtime.state
        return {"etcd": state.etcd, "operator": state.operator, **state.nodes}[name]

    def operator_said(self, pattern: str) -> list[re.Match[str]]:
        """Return each place of the operator's log that matches, in order."""
        return list(re.finditer(pattern, Path(self.runtime.state.operator.log).read_text(errors="replace")))

    def dumps(self) -> str:
        """Return what the nodes say of themselves, for a failed test."""
        command = [sys.executable, "-m", "tidemark_cli", "debug", "dump", "--json", "--dir", str(self.directory)]
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=15).stdout
        except subprocess.TimeoutExpired:
            return "no answer"

    # --- processes ----------------------------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        return list(self.runtime.state.nodes)

    def node(self, name: str) -> NodeState:
        return self.runtime.state.nodes[name]

    def address(self, name: str) -> str:
        return self.node(name).address

    def pid(self, name: str) -> int:
        return int(self._process(name).process.pid)

    def pids(self) -> dict[str, int]:
        """Return the processes that run or ran last."""
        return {name: self.pid(name) for name in ("operator", *self.nodes) if self._process(name).process is not None}

    def name_of(self, pid: int) -> str | None:
        """Return which node or operator a process is, by its command line: the state lags."""
        with contextlib.suppress(psutil.Error):
            command = psutil.Process(pid).cmdline()
            if not any(str(self.directory) in argument for argument in command):
                return None
            if "tidemark_node" in command:
                return command[command.index("--node") + 1]
            if "tidemark_operator" in command:
                return "operator"
        return None

    def kill(self, *names: str) -> None:
        """SIGKILL to all of them, at the same moment as far as one processor can."""
        for name in names:
            os.kill(self.pid(name), signal.SIGKILL)
        for name in names:
            assert _gone(self._process(name)), f"{name} outlives SIGKILL"

    def pause(self, name: str) -> None:
        self.runtime.pause(name)

    def resume(self, name: str) -> None:
        self.runtime.resume(name)

    async def start(self, *names: str) -> None:
        """Start what does not run; returns when the operator, if it runs, says that etcd answers."""
        for name in names:
            await self.runtime.start(name)
        operator = next(view for view in self.runtime.status() if view.name == "operator")
        if "etcd" in names and operator.state == "Running":
            await self.metadata_is_reachable()

    async def metadata_is_reachable(self) -> None:
        """Wait until the operator says that etcd answers: from then on it elects and changes."""
        await until(self._says_reachable, "the operator says that etcd answers")

    async def _says_reachable(self) -> bool:
        said = await described(self.runtime.admin_address, self.runtime.tls)
        if said is None or not said.metadata_reachable:
            return False
        items = await self.objects("TidemarkCluster")
        return not said.active or [condition(item, "MetadataStoreReachable")[0] for item in items] == ["True"]

    async def restart_with(self, *flags: str, nodes: Sequence[str] | None = None, prefix: Sequence[str] = ()) -> None:
        """Run nodes with more flags from now on; `prefix` goes in front of their command line."""
        await self._restart_changed(
            self.nodes if nodes is None else nodes,
            lambda node: [*prefix, *node.command, *flags])

    async def put_behind(self, front: Callable[[str, str], str]) -> None:
        """Let every node advertise the address that `front(name, its own address)` returns."""
        def behind(node: NodeState) -> list[str]:
            command = [*node.command, "--advertise", front(node.node, node.address)]
            command[command.index("--listen") + 1] = node.address
            return command

        await self._restart_changed(self.nodes, behind)

    async def move(self, prefix: Callable[[str], Sequence[str]], address: Callable[[str], str]) -> None:
        """Let every node run behind the command `prefix(name)` from now on, and listen at the IP `address(name)`."""
        def moved(node: NodeState) -> list[str]:
            def there(old: str) -> str:
                return f"{address(node.node)}:{old.rpartition(':')[2]}"

            command = [*prefix(node.node), *node.command]
            node.address, node.metrics_address = there(node.address), there(node.metrics_address)
            command[command.index("--listen") + 1] = node.address
            command[command.index("--metrics-listen") + 1] = node.metrics_address
            return command

        await self._restart_changed(self.nodes, moved)

    async def _restart_changed(self, names: Sequence[str], change: Callable[[NodeState], list[str]]) -> None:
        state = self.runtime.state
        nodes = [state.nodes[name] for name in names]
        self.kill(*(node.node for node in nodes if node.running))
        for node in nodes:
            node.command = change(node)
        await asyncio.gather(*(start_node(node) for node in nodes))
        save_state(self.directory, state)
        await self.ready()

    async def ready(self) -> None:
        """Wait until the operator is linked to every node."""
        await until(self._all_linked, "every node is linked to the operator")

    async def _all_linked(self) -> bool:
        items = await self.objects("TidemarkCluster")
        summary = items[0]["status"]["nodeSummary"] if items else {"ready": -1}
        return bool(summary["ready"] == len(self.nodes))

    # --- groups and shards ----------------------------------------------------------------------------------

    async def create_group(
        self, *, shards: int = 1, factor: int = 3, record_bytes_max: int = 1 << 20,
        replication: Mapping[str, Any] = MappingProxyType({}), **spec: Any,
    ) -> str:
        """Create a group of a name of its own; returns when every shard is led and every copy confirms its opening."""
        self._groups += 1
        name = f"group-{self._groups}"
        manifest = {
            "apiVersion": API_VERSION, "kind": "LogGroup", "metadata": {"name": name},
            "spec": {
                "clusterRef": {"name": "e2e"}, "shards": shards, "maxRecordBytes": record_bytes_max,
                "replication": {"factor": factor, "defaultAck": "Quorum", "spread": "Node", **replication}, **spec,
            },
        }
        await self.runtime.apply(yaml.safe_dump(manifest))
        await self.replicated(name)
        return name

    async def create_keyspace(self, **spec: Any) -> str:
        """Create a keyspace of a name of its own with three owners a range; returns when every range has them."""
        self._groups += 1
        name = f"keyspace-{self._groups}"
        await self.apply({
            "apiVersion": API_VERSION, "kind": "Keyspace", "metadata": {"name": name},
            "spec": {
                "clusterRef": {"name": "e2e"},
                **spec, "replication": {"replicas": 3, "readQuorum": 2, "writeQuorum": 2, "spread": "Node",
                                        **spec.get("replication", {})},
            },
        })

        async def served() -> bool:
            found = [item for item in await self.objects("Keyspace") if item["metadata"]["name"] == name]
            return bool(found) and condition(found[0], "Ready")[0] == "True"

        await until(served, f"every range of {name} has its owners")
        return name

    async def _served(self, group: str) -> bool:
        found = [item for item in await self.objects("LogGroup") if item["metadata"]["name"] == group]
        return bool(found) and condition(found[0], "Ready")[0] == "True"

    async def remove_groups(self) -> None:
        """Detach every group, so that later tests do not wait for it."""
        for item in await self.objects("LogGroup"):
            async with Admin(self.runtime.admin_address, self.runtime.tls) as admin:
                await admin.delete("LogGroup", item["metadata"]["name"])

    async def objects(self, kind: str) -> list[dict[str, Any]]:
        """Return the operator's objects; none while it does not answer."""
        try:
            return await self.runtime.objects(kind)
        except grpc.aio.AioRpcError:
            return []

    async def shard(self, group: str, index: int = 0) -> dict[str, Any]:
        """Return the status of one Shard object."""
        for item in await self.runtime.objects("Shard"):
            labels = item["metadata"]["labels"]
            if labels["tidemark.dev/log-group"] == group and labels["tidemark.dev/shard-id"] == str(index):
                return dict(item["status"])
        raise AssertionError(f"there is no shard {index} of {group}")

    async def leader(self, group: str, index: int = 0) -> str:
        return str((await self.shard(group, index))["leader"])

    async def members(self, group: str, index: int = 0) -> list[str]:
        """Return the ensemble, the leader first."""
        status = await self.shard(group, index)
        names = [member["node"] for member in status["ensemble"]]
        return sorted(names, key=lambda name: name != status["leader"])

    async def spares(self, group: str, index: int = 0) -> list[str]:
        """Return the nodes that hold nothing of a shard."""
        members = await self.members(group, index)
        return [name for name in self.nodes if name not in members]

    async def replicated(self, group: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until every copy of a group is on a live node and knows as committed all that its leader holds now."""
        heads: dict[int, int] = {}

        async def whole() -> bool:
            found = [item for item in await self.objects("LogGroup") if item["metadata"]["name"] == group]
            if not found or condition(found[0], "FullyReplicated")[0] != "True" or not await self._served(group):
                return False
            for index in range(found[0]["spec"]["shards"]):
                members = await self.members(group, index)
                if index not in heads:
                    leader = await self.replica(members[0], group, index)
                    if not leader:
                        return False
                    heads[index] = offset_of(leader["head"])
                for name in members:
                    if (await self.replica(name, group, index)).get("commit", -1) < heads[index]:
                        return False
            return True

        await until(whole, f"every copy of {group} is whole", timeout_s)

    async def shard_number(self, group: str, index: int = 0) -> ShardId:
        if group not in self._group_ids:
            (found,) = [item for item in await self.objects("LogGroup") if item["metadata"]["name"] == group]
            self._group_ids[group] = found["status"]["groupID"]
        return shard_id(self._group_ids[group], index)

    async def member(self, name: str) -> Member:
        """Return the node with the life its disk has now."""
        async with open_channel(self.address(name), self.runtime.credentials()) as channel:
            said = await node_pb2_grpc.ControlStub(channel).Describe(node_pb2.DescribeRequest(), timeout=PATIENCE_S)
            return Member(said.node, said.incarnation)

    async def dump(self, name: str) -> dict[str, Any]:
        """Return what a node says of itself."""
        async with open_channel(self.address(name), self.runtime.credentials()) as channel:
            answer = await node_pb2_grpc.ControlStub(channel).DebugDump(
                node_pb2.DebugDumpRequest(all=True), timeout=DUMP_S)
            return dict(json.loads(answer.json))

    async def replica(self, name: str, group: str, index: int = 0) -> dict[str, Any]:
        """Return a node's own view of one shard, empty when it holds none."""
        number = await self.shard_number(group, index)
        label = f"{number >> 32}/{number & 0xFFFFFFFF}"
        try:
            shards = (await self.dump(name))["shards"]
        except grpc.aio.AioRpcError:
            return {}
        return next((shard for shard in shards if str(shard["shard"]) in (label, str(number))), {})

    async def metric(self, name: str, series: str) -> float:
        """Return the sum of a node's series whose lines begin with `series`."""
        url = f"http://{self.node(name).metrics_address}/metrics"
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode())
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(series))

    async def told(self, name: str, what: str) -> list[str]:
        """Return the details of a kind of trace in a node's story."""
        return [told["detail"] for told in (await self.dump(name))["story"] if told["what"] == what]

    # --- acts -----------------------------------------------------------------------------------------------

    async def change(self, operation: str, group: str, index: int = 0, **nodes: Any) -> Any:
        """Run a change of one shard through the operator; return its last word, raise its refusal."""
        async with Admin(self.runtime.admin_address, self.runtime.tls) as admin:
            said = [progress async for progress in admin.change(operation, group, index, **nodes)]
        return said[-1]

    async def transfer(self, group: str, index: int, to: str) -> None:
        """Make `to` lead, again and again where an election is in the way."""
        async def leads() -> bool:
            if await self.leader(group, index) == to:
                return True
            try:
                await self.change("TRANSFER", group, index, to_node=to)
            except grpc.aio.AioRpcError as error:
                assert refusal_from_rpc_error(error) is not None, error
            return False

        await until(leads, f"{to} leads shard {index} of {group}")

    async def apply(self, manifest: dict[str, Any]) -> None:
        await self.runtime.apply(yaml.safe_dump(manifest))

    async def reconfigure(self, kind: str, body: dict[str, Any], **spec: Any) -> str:
        """Apply a Reconfiguration and return its name."""
        manifest = reconfiguration("e2e", kind, body, more=spec)
        await self.apply(manifest)
        return str(manifest["metadata"]["name"])

    async def finished(self, name: str, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """Wait for the end of a Reconfiguration and return it."""
        async def look() -> dict[str, Any] | None:
            for item in await self.objects("Reconfiguration"):
                if item["metadata"]["name"] == name and item.get("status", {}).get("stage") == "Finished":
                    return item
            return None

        return dict(await until(look, f"{name} is finished", timeout_s))

    async def cli(self, *arguments: str, stdin: bytes = b"", timeout_s: float = CLI_S) -> Ran:
        """Run `tidemark` on this cluster."""
        process = await self.start_cli(*arguments)
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())

    async def start_cli(self, *arguments: str) -> asyncio.subprocess.Process:
        """Begin to run `tidemark` on this cluster."""
        environment = {**os.environ, "TIDEMARK_DIR": str(self.directory)}
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemark_cli", *arguments, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)

    def connect(
        self, tls: tidemark.TlsSettings | None = None, *, timeout_s: float = PATIENCE_S
    ) -> Awaitable[tidemark.Client]:
        """Connect, where there is TLS with the local admin's certificate unless another one is given."""
        addresses = [self.address(name) for name in self.nodes]
        return tidemark.connect(addresses, timeout_s=timeout_s, tls=tls or self.runtime.tls)


async def described(address: str, tls: tidemark.TlsSettings | None = None) -> admin_pb2.OperatorDescription | None:
    """Return what an operator says of itself; None while it does not answer."""
    try:
        async with open_channel(address, FileCredentials(tls) if tls else None) as channel:
            return await admin_pb2_grpc.AdminStub(channel).Describe(admin_pb2.OperatorDescribeRequest(), timeout=2)
    except grpc.aio.AioRpcError:
        return None


def offset_of(entry_id: str) -> int:
    """Return the offset in an entry id as nodes show it, epoch:offset."""
    return int(entry_id.rpartition(":")[2])


def condition(item: dict[str, Any], kind: str) -> tuple[str, str, str]:
    """Return status, reason and message of a condition of an object."""
    for found in item["status"]["conditions"]:
        if found["type"] == kind:
            return found["status"], found["reason"], found["message"]
    return "", "", ""


def _gone(target: Any) -> bool:
    wait_until(lambda: not target.running)
    return True
