"""The marks that etcd keeps of the disks of nodes: tests read them, and delete some.

Stays out: disks (`disk`), what the operator makes of a mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidemark_operator.etcd import EtcdStore, Saved, Write
from tidemark_operator.local_state import keys_of
from tidemark_operator.metadata import Keys, decode_mark

from tests.waiting import until

from .cluster import Cluster


class Marks:
    """The marks that etcd keeps of the disks of nodes."""

    def __init__(self, store: EtcdStore, keys: Keys) -> None:
        self._store, self._keys = store, keys

    async def of(self, node: str) -> int:
        """Return how many writes were durable, -1 where nothing is kept."""
        item = await self._store.get(self._keys.mark(node))
        return decode_mark(item.value).writes if item is not None else -1

    async def above(self, node: str, writes: int) -> None:
        async def risen() -> bool:
            return await self.of(node) > writes

        await until(risen, f"the mark of {node} rises above {writes}")

    async def forget(self, node: str) -> None:
        item = await self._store.get(self._keys.mark(node))
        assert item is not None
        assert isinstance(await self._store.transact([Write(self._keys.mark(node), None, item.revision)]), Saved)


@asynccontextmanager
async def marks_of(cluster: Cluster) -> AsyncIterator[Marks]:
    state = cluster.runtime.state
    store = EtcdStore([state.etcd_url])
    yield Marks(store, keys_of(state.cluster))
    await store.close()
