"""Mirror: the operator's picture of its etcd prefix, kept fresh by `EtcdStore.follow` and by its own writes.

Per key, only newer revisions count, so that a late watch event never takes back what was just written.
Stays out: what is to be written, and what follows from a change (listeners).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Generic, TypeVar

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import ShardRecord

from .disruption import Hold
from .etcd import Changes, EtcdStore, Outcome, Saved, Snapshot, Write
from .metadata import OBJECT_AREAS, Area, Keys, NodeRecord, StoredObject, Tombstone, shard_from_name
from .resources.kinds import KINDS, STORED

log = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[Value]):
    value: Value
    revision: int


Listener = Callable[[Area, str], None]


class Mirror:
    """What is stored, decoded.  Objects that this build cannot read are left out, loudly."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._seen: dict[str, int] = {}  # key -> newest revision known, deleted keys included
        self.loaded = False
        self.revision = 0
        self.objects: dict[str, dict[str, Versioned[StoredObject]]] = {kind: {} for kind in STORED}
        """By kind and name; the name of a single object is empty."""
        self.nodes: dict[str, NodeRecord] = {}
        self.shards: dict[ShardId, Versioned[ShardRecord]] = {}
        self.tombstones: dict[ShardId, Versioned[Tombstone]] = {}
        self.counters: dict[str, int] = {}
        self.active_operator = ""
        self.disruption: Hold | None = None
        self.on_change: Listener = lambda area, name: None

    @property
    def cluster(self) -> Versioned[StoredObject] | None:
        return self.objects["TidemarkCluster"].get("")

    @property
    def groups(self) -> dict[str, Versioned[StoredObject]]:
        return self.objects["LogGroup"]

    @property
    def reconfigurations(self) -> dict[str, Versioned[StoredObject]]:
        return self.objects["Reconfiguration"]

    def known(self, kind: str, name: str) -> Versioned[StoredObject] | None:
        """Return what is stored of an object; every name means the single object of a kind that has one."""
        return self.objects[kind].get("" if KINDS[kind].single else name)

    def apply(self, news: Snapshot | Changes) -> None:
        """Take in what `follow` shows."""
        if isinstance(news, Snapshot):
            gone = [key for key in self._seen if key not in news.items]
            for key in gone:
                self.learn(key, None, news.revision)
            self._seen = {key: revision for key, revision in self._seen.items() if key in news.items}
            for key, item in news.items.items():
                self.learn(key, item.value, item.revision)
            self.loaded = True
        else:
            for change in news.changes:
                self.learn(change.key, change.value, change.revision)
        self.revision = max(self.revision, news.revision)

    async def write(
        self, store: EtcdStore, writes: Sequence[Write], unchanged: Mapping[str, int] = MappingProxyType({})
    ) -> Outcome:
        """Write all or nothing, as `EtcdStore.transact` does, and have seen at once what is stored then."""
        outcome = await store.transact(writes, unchanged)
        if isinstance(outcome, Saved):
            for write in writes:
                self.learn(write.key, write.value, outcome.revision)
        return outcome

    def seen(self, key: str) -> int:
        """Return the newest revision known of a key, 0 for none."""
        return self._seen.get(key, 0)

    def learn(self, key: str, data: bytes | None, revision: int) -> None:
        """Take in one key; None says that it was deleted at `revision`."""
        if revision <= self._seen.get(key, 0):
            return
        self._seen[key] = revision
        try:
            area, name = self._keys.parse(key)
            self._store(area, name, data, revision)
        except (RemoteViolation, ValueError) as error:
            log.error("%s: %s; it is left as it is", key, error)
            return
        self.on_change(area, name)

    def _store(self, area: Area, name: str, data: bytes | None, revision: int) -> None:
        match area:
            case _ if area in OBJECT_AREAS:
                objects = self.objects[OBJECT_AREAS[area]]
                if data is None:
                    objects.pop(name, None)
                else:
                    objects[name] = Versioned(StoredObject.decode(data), revision)
            case "nodes":
                if data is None:
                    self.nodes.pop(name, None)
                else:
                    self.nodes[name] = NodeRecord.decode(data)
            case "shards":
                shard = shard_from_name(name)
                if data is None:
                    self.shards.pop(shard, None)
                else:
                    self.shards[shard] = Versioned(ShardRecord.decode(data), revision)
            case "deletions":
                shard = shard_from_name(name)
                if data is None:
                    self.tombstones.pop(shard, None)
                else:
                    self.tombstones[shard] = Versioned(Tombstone.decode(data), revision)
            case "operator":
                self.active_operator = data.decode() if data is not None else ""
            case "disruption":
                self.disruption = Hold.decode(data) if data is not None else None
            case "counter":
                self.counters[name] = int(data) if data is not None else 1
