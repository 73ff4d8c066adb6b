"""The fake cluster of the client's tests in a loop of its own, for commands and Spark, which run their own.

Stays out: what the cluster does; tests script it.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent / "client"))

from fake_cluster import FakeCluster, FakeShard  # its folder is no package
from fake_documents import FakeDocuments
from fake_keyspaces import FAKE_NOW_MS, FakeKeyspace
from tidemark_core.base.entry import Batch

from tests.waiting import until

__all__ = ["FAKE_NOW_MS", "FakeDocuments", "FakeInAThread", "FakeKeyspace", "FakeShard"]


class FakeInAThread:
    """One shard on one node, or more; `script` runs work beside the command under test."""

    def __init__(self, shards: int = 1, nodes: int = 1) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster: FakeCluster = self.call(FakeCluster().start(nodes, shards))
        self.address = self.cluster.addresses()[0]

    def shard(self, index: int = 0) -> FakeShard:
        return self.cluster.groups["orders"][index]

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.script(work).result(10)

    async def added(self, index: int, batch: Batch) -> None:
        """Store a batch as it is, without a client."""
        self.shard(index).add(batch)

    def script(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Start work in the cluster's loop and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def until(self, true: Callable[[], object]) -> None:
        await until(true)

    def stop(self) -> None:
        self.call(self.cluster.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
