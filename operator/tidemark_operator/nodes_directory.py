"""NodesDirectory: learns where nodes answer from the files they write when they are ready.

Each node of a local cluster writes `<directory>/<node>.json` once it listens; a node that comes back on
another port writes it anew.  What is found is told at once and kept in etcd for other operators.
Stays out: starting nodes (`local`); on Kubernetes node records are written from pods instead.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .etcd import EtcdStore, Saved, StoreUnavailable
from .metadata import Keys, NodeRecord

log = logging.getLogger(__name__)

LOOK_S = 0.1


class NodesDirectory:
    """Looks at one directory ten times a second; a look is one `scandir` of a handful of files."""

    def __init__(
        self, directory: Path, store: EtcdStore, keys: Keys, tell: Callable[[NodeRecord], None]
    ) -> None:
        self._directory = directory
        self._store = store
        self._keys = keys
        self._tell = tell
        self._seen: dict[str, tuple[int, int]] = {}
        self._known: dict[str, NodeRecord] = {}
        self._unsaved: dict[str, NodeRecord] = {}

    async def run(self) -> None:
        """Tell and store every node, and go on with each change.  A second run begins with every node again."""
        self._seen.clear()
        while True:
            for record in self.look():
                known = self._known.get(record.node)
                if known is not None:
                    record = replace(record, zone=record.zone or known.zone, location=known.location)
                self._keep(record)
                self._tell(record)
            if self._unsaved:
                await self._save()
            await asyncio.sleep(LOOK_S)

    def learn_place(self, node: str, zone: str, location: str) -> None:
        """The node itself said where it stands; its file need not."""
        known = self._known.get(node)
        if known is None:
            return
        placed = replace(known, zone=zone or known.zone, location=location)
        if placed != known:
            self._keep(placed)

    def _keep(self, record: NodeRecord) -> None:
        self._known[record.node] = record
        self._unsaved[record.node] = record

    def look(self) -> list[NodeRecord]:
        """Return the records of files that are new or were written anew."""
        found = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                stat = path.stat()
                mark = (stat.st_mtime_ns, stat.st_ino)
                if self._seen.get(path.name) == mark:
                    continue
                record = read_node_file(path)
            except FileNotFoundError:
                continue  # removed while we looked: its node stopped
            except ValueError as error:
                log.error("%s: %s", path, error)
                self._seen[path.name] = mark
                continue
            self._seen[path.name] = mark
            found.append(record)
        return found

    async def _save(self) -> None:
        for node, record in list(self._unsaved.items()):
            try:
                item = await self._store.get(self._keys.node(node))
                if item is not None and item.value == record.encode():
                    del self._unsaved[node]
                    continue
                outcome = await self._store.put(
                    self._keys.node(node), record.encode(), expected=item.revision if item else 0)
            except StoreUnavailable:
                return  # told already; kept for the next look
            if isinstance(outcome, Saved) and self._unsaved.get(node) == record:
                del self._unsaved[node]


def read_node_file(path: Path) -> NodeRecord:
    """Return the record in a node's ready file; raises ValueError that says what is wrong with it."""
    raw = json.loads(path.read_bytes())
    if not isinstance(raw, dict):
        raise ValueError("a ready file holds one object")
    for field in ("node", "address"):
        if not isinstance(raw.get(field), str) or not raw[field]:
            raise ValueError(f"a ready file names its {field}")
    return NodeRecord(raw["node"], raw["address"], raw.get("zone") or "", raw.get("pool") or "default")
