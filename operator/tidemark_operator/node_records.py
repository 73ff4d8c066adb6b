"""NodeRecords: which nodes there are, in etcd; each change is one transaction on what was read.

A node's number comes from a counter and its record is written in the same transaction, so that two operators never make
one node each, and no number is used twice.  A node goes in steps: it Leaves (nothing new is placed on it), holds
nothing, is Removed (what runs of it is taken away), and only then is its record forgotten.
Stays out: what runs a node and where its disk is; a record that is Removed is what asks for that to end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidemark_core.delivery.location import Location

from .etcd import Conflict, EtcdStore, Saved, StoreUnavailable, Unknown, Write
from .metadata import NODE_IDS, Keys, NodeLife, NodeRecord
from .mirror import Mirror

log = logging.getLogger(__name__)

ATTEMPTS_MAX = 5


class NodeRecords:
    """The node records of one cluster, whose nodes are called `<cluster>-<number>`."""

    def __init__(self, store: EtcdStore, keys: Keys, mirror: Mirror, cluster: str) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._cluster = cluster

    async def make(self, missing: Callable[[Sequence[NodeRecord]], Sequence[NodeRecord]]) -> list[str]:
        """Number and write the records that `missing` names, given those there are.  Raises StoreUnavailable."""
        for _attempt in range(ATTEMPTS_MAX):
            counter = await self._store.get(self._keys.counter(NODE_IDS))
            # Behind the counter: whoever adds nodes meanwhile raises it.
            seen = await self._store.load(f"{self._keys.prefix}/nodes/")
            made = missing([NodeRecord.decode(item.value) for item in seen.items.values()])
            if not made:
                return []
            first = int(counter.value) if counter else 1
            named = [replace(record, node=f"{self._cluster}-{first + index}") for index, record in enumerate(made)]
            following = str(first + len(named)).encode()
            if await self._write([
                Write(self._keys.counter(NODE_IDS), following, counter.revision if counter else 0),
                *(Write(self._keys.node(record.node), record.encode(), 0) for record in named),
            ]):
                return [record.node for record in named]
        raise StoreUnavailable("the counter of nodes is contended")

    async def make_for(self, uid: str, pool: Mapping[str, Any], zone: str) -> str:
        """Have the one node that the Reconfiguration `uid` asked for; return its name.  Raises StoreUnavailable."""
        found: list[str] = []

        def missing(known: Sequence[NodeRecord]) -> list[NodeRecord]:
            found[:] = [record.node for record in known if record.made_for == uid]
            new = NodeRecord("", "", zone, pool["name"], location_of(pool, zone), made_for=uid)
            return [] if found else [new]

        return (await self.make(missing) or found)[0]

    async def set_life(self, node: str, life: NodeLife) -> bool:
        """Say that a node leaves, is removed, or stays after all; False when there is none.

        One that is removed stays so.  Raises StoreUnavailable.
        """

        def change(record: NodeRecord) -> NodeRecord:
            return record if record.life is NodeLife.REMOVED else replace(record, life=life)

        return await self._change(node, change)

    async def set_place(self, found: NodeRecord) -> None:
        """Keep where a node answers and stands.  Raises StoreUnavailable."""
        await self._change(found.node, lambda record: replace(
            record, address=found.address, zone=found.zone, location=found.location))

    async def forget(self, node: str) -> None:
        """Nothing runs of a node that is Removed: end its record.  Raises StoreUnavailable."""
        await self._change(node, lambda record: None if record.life is NodeLife.REMOVED else record)

    async def _change(self, node: str, change: Callable[[NodeRecord], NodeRecord | None]) -> bool:
        key = self._keys.node(node)
        for _attempt in range(ATTEMPTS_MAX):
            item = await self._store.get(key)
            if item is None:
                return False
            record = NodeRecord.decode(item.value)
            wanted = change(record)
            if wanted == record:
                self._mirror.learn(key, item.value, item.revision)
                return True
            if await self._write([Write(key, wanted.encode() if wanted is not None else None, item.revision)]):
                log.info("node %s %s", node, "is forgotten" if wanted is None else (
                    (wanted.life or "stays").lower() if wanted.life is not record.life else f"is at {wanted.address}"))
                return True
        raise StoreUnavailable(f"the record of {node} is contended")

    async def _write(self, writes: list[Write]) -> bool:
        """Write all or nothing; False: look again."""
        match await self._mirror.write(self._store, writes):
            case Saved():
                return True
            case Conflict() | Unknown():
                return False
            case outcome:
                raise StoreUnavailable(outcome.message)


def location_of(pool: Mapping[str, Any], zone: str) -> str:
    """Return where a node of a pool stands in that zone."""
    beside = {scope: label for scope, label in (pool.get("location") or {}).items() if label}
    return str(Location(**{**beside, "zone": zone}))
