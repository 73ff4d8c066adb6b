"""A local cluster of real processes for one benchmark: etcd, an operator and nodes, through the local runtime.

Stays out: clients; they are processes of their own (`processes`).
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tidemark_operator import local

from .context import Context

NAME = "bench"


class Cluster:
    """A running cluster.  Every method blocks."""

    def __init__(self, runner: asyncio.Runner, runtime: local.Runtime) -> None:
        self._runner = runner
        self.runtime = runtime

    @property
    def addresses(self) -> list[str]:
        return self.runtime.bootstrap()

    def make_group(
        self, name: str, shards: int, timeout_s: float = 60.0, kind: str = "Log", **replication: Any
    ) -> None:
        """Create a log group of three copies, unless told otherwise, and wait until every shard of it has a leader."""
        self._runner.run(self.runtime.apply(json.dumps(_group(name, shards, kind, replication))))

        def led(objects: list[dict[str, Any]]) -> bool:
            return any(_available(item) for item in objects if item["metadata"]["name"] == name)

        self._runner.run(self.runtime.wait_for("LogGroup", led, f"group {name} is served", timeout_s))

    def make_keyspace(self, name: str, timeout_s: float = 60.0) -> None:
        """Create a keyspace as one that names nothing but owners on any node, and wait until it takes writes."""
        self._runner.run(self.runtime.apply(json.dumps(_keyspace(name))))

        def served(objects: list[dict[str, Any]]) -> bool:
            return any(_available(item) for item in objects if item["metadata"]["name"] == name)

        self._runner.run(self.runtime.wait_for("Keyspace", served, f"keyspace {name} is served", timeout_s))

    def processes(self) -> dict[str, psutil.Process]:
        """Return every process of the cluster by name."""
        return {view.name: psutil.Process(view.pid) for view in self.runtime.status() if view.pid}

    def nodes(self) -> dict[str, psutil.Process]:
        return {name: process for name, process in self.processes().items() if name in self.runtime.state.nodes}

    def epochs(self) -> dict[str, int]:
        """Return the epoch of every shard by name."""
        shards = self._runner.run(self.runtime.objects("Shard"))
        return {item["metadata"]["name"]: item["status"]["epoch"] for item in shards}

    def shard(self, name: str) -> dict[str, Any]:
        """Return the status of a shard."""
        (found,) = self._runner.run(self.runtime.objects("Shard", name))
        status: dict[str, Any] = found["status"]
        return status

    def processor_seconds(self) -> float:
        """Return what all nodes have used so far."""
        return sum(used.user + used.system for used in (node.cpu_times() for node in self.nodes().values()))

    def written_bytes(self) -> float:
        """Return what all nodes have handed to the disk since they started, by the kernel's count."""
        return float(sum(node.io_counters().write_bytes for node in self.nodes().values()))

    def disk_bytes(self) -> int:
        """Return what the data of all nodes takes on the disk."""
        return sum(
            file.stat().st_blocks * 512
            for node in self.runtime.state.nodes.values() for file in Path(node.data).rglob("*") if file.is_file()
        )

    def stop(self, name: str) -> None:
        self._runner.run(self.runtime.stop(name))

    def start(self, name: str) -> None:
        self._runner.run(self.runtime.start(name))

    def metrics(self, node: str) -> dict[str, float]:
        """Return a node's Prometheus samples by name, labels included as they are written."""
        address = self.runtime.state.nodes[node].metrics_address
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}


@contextmanager
def running(context: Context, nodes: int = 3, detector: dict[str, int] | None = None) -> Iterator[Cluster]:
    """Run a cluster of `nodes` for as long as the block lasts; its data goes away with it."""
    with asyncio.Runner() as runner:
        if (context.directory / "cluster" / "state.json").exists():   # a run before this one was killed
            runner.run(local.down(context.directory / "cluster"))
    with context.scratch("cluster") as directory, asyncio.Runner() as runner:
        manifest = json.dumps(_cluster(nodes, detector or {}))
        try:
            yield Cluster(runner, runner.run(local.up(directory, manifest)))
        finally:
            if (Path(directory) / "state.json").exists():
                runner.run(local.down(directory, wipe=True))


def _cluster(nodes: int, detector: dict[str, int]) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "TidemarkCluster", "metadata": {"name": NAME},
        "spec": {
            "version": "0.1.0",
            "metadataStore": {"etcd": {"endpoints": ["http://127.0.0.1:2379"]}},
            "failureDomain": {"nodeAntiAffinity": "Preferred"},
            "nodePools": [{"name": "default", "replicas": nodes, "storage": {"data": {"size": "10Gi"}}}],
            "failureDetection": detector,
            "security": {"tls": {"mode": "Disabled"}, "clientAuth": "None"},
        },
    }


def _group(name: str, shards: int, kind: str, replication: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "LogGroup", "metadata": {"name": name},
        "spec": {
            "clusterRef": {"name": NAME}, "kind": kind,
            "shards": shards, "shardProjection": "Full" if shards <= 1024 else "None",
            "replication": {"factor": 3, "defaultAck": "Quorum", "spread": "Node", **replication},
            "maxRecordBytes": 1 << 20,
        },
    }


def _keyspace(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1", "kind": "Keyspace", "metadata": {"name": name},
        "spec": {"clusterRef": {"name": NAME}, "replication": {"spread": "Node"}},
    }


def _available(item: dict[str, Any]) -> bool:
    return any(c["type"] == "Available" and c["status"] == "True" for c in item["status"]["conditions"])
