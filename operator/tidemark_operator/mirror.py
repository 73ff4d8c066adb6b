"""Mirror: the operator's picture of its etcd prefix, kept fresh by `EtcdStore.follow` and by its own writes.

Per key, only newer revisions count, so that a late watch event never takes back what was just written.
Stays out: what is to be written, and what follows from a change (listeners).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Address, ShardId
from tidemark_core.base.marks import DiskMark
from tidemark_core.optimistic.records import RangeRecord
from tidemark_core.replication.records import ShardRecord

from .disruption import Hold
from .etcd import Changes, Conflict, EtcdStore, Outcome, Saved, Snapshot, StoreUnavailable, Write
from .metadata import Keys, NodeRecord, StoredObject, Tombstone
from .records import COUNTER, MACHINE_AREAS, RECORDS, Area, area_of
from .resources.kinds import KINDS, STORED

log = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Versioned(Generic[Value]):
    value: Value
    revision: int


Listener = Callable[[Area, str], None]


class _Values(Mapping[str, Value]):
    """Records without their revisions."""

    def __init__(self, records: Mapping[str, Versioned[Value]]) -> None:
        self._records = records

    def __getitem__(self, name: str) -> Value:
        return self._records[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._records)

    def __len__(self) -> int:
        return len(self._records)


class Mirror:
    """The stored records, decoded.  The log names each that this build cannot read, and the mirror has none of it."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._seen: dict[str, int] = {}  # key -> newest revision known, deleted keys included
        self.loaded = False
        self.revision = 0
        self.records: dict[Area, dict[Any, Versioned[Any]]] = {area: {} for area in RECORDS}
        """By area and key; the key of a single record is empty."""
        self.objects: dict[str, dict[str, Versioned[StoredObject]]] = {
            kind: self.records[KINDS[kind].area] for kind in STORED}
        """By kind and name."""
        self.nodes: Mapping[str, NodeRecord] = _Values(self.records["nodes"])
        self.marks: dict[str, Versioned[DiskMark]] = self.records["marks"]
        self.counters: Mapping[str, int] = _Values(self.records[COUNTER])
        self.shards: dict[ShardId, Versioned[ShardRecord]] = self.records["shards"]
        self.tombstones: dict[ShardId, Versioned[Tombstone]] = self.records["deletions"]
        self.ranges: dict[int, Versioned[RangeRecord]] = self.records["ranges"]
        self.on_change: Listener = lambda area, name: None

    @property
    def cluster(self) -> Versioned[StoredObject] | None:
        return self.objects["TidemarkCluster"].get("")

    @property
    def groups(self) -> dict[str, Versioned[StoredObject]]:
        return self.objects["LogGroup"]

    @property
    def keyspaces(self) -> dict[str, Versioned[StoredObject]]:
        return self.objects["Keyspace"]

    @property
    def reconfigurations(self) -> dict[str, Versioned[StoredObject]]:
        return self.objects["Reconfiguration"]

    @property
    def active_operator(self) -> str:
        """The name of the operator that is active, empty where none is."""
        item = self.records["operator"].get("")
        return item.value if item is not None else ""

    @property
    def disruption(self) -> Hold | None:
        item = self.records["disruption"].get("")
        return item.value if item is not None else None

    def units(self) -> dict[Address, Versioned[Any]]:
        """Return the records of all machines, by the addresses of their units."""
        return {
            Address(plane, unit): item for plane, area in MACHINE_AREAS.items()
            for unit, item in self.records[area].items()}

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

    async def replace(
        self, store: EtcdStore, writes: Sequence[Write], unchanged: Mapping[str, int] = MappingProxyType({})
    ) -> bool:
        """Write all or nothing; False: the watch will show what is there.  Raises StoreUnavailable."""
        match await self.write(store, writes, unchanged):
            case Saved():
                return True
            case Conflict():
                return False
            case outcome:
                raise StoreUnavailable(outcome.message)

    def seen(self, key: str) -> int:
        """Return the newest revision known of a key, 0 for none."""
        return self._seen.get(key, 0)

    def learn(self, key: str, data: bytes | None, revision: int) -> None:
        """Take in one key; None says that it was deleted at `revision`."""
        if revision <= self._seen.get(key, 0):
            return
        self._seen[key] = revision
        try:
            area, name = area_of(key.removeprefix(self._keys.everything))
            row, records = RECORDS[area], self.records[area]
            if data is None:
                records.pop(row.key(name), None)
            else:
                records[row.key(name)] = Versioned(row.decode(data), revision)
        except (RemoteViolation, ValueError) as error:
            log.error("%s: %s; it is left as it is", key, error)
            return
        self.on_change(area, name)
