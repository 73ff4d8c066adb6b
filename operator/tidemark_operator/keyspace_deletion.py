"""KeyspaceDeletion: deletes the records of keyspaces that are to go, then has every node forget them (D81).

Nodes hear of it when no record is left, so no owner can be chosen any more; any node may hold hints.  One that is down
is waited for, one that was removed is not.  The Keyspace goes last: a successor goes on from etcd alone.
Stays out: who may ask for it (`objects`), what a node does to forget a keyspace (core's `deleting`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidemark_core.base.ids import KEYSPACE_PLANE, Address, Member
from tidemark_core.optimistic.deleting import ForgetAsked, Forgotten
from tidemark_wire.wire_version import VERSION_OF_PLANES

from .condition_memory import some
from .etcd import OPERATIONS_MAX, EtcdStore, Write
from .keyspaces import number_of
from .metadata import Keys, NodeLife, StoredObject
from .mirror import Mirror, Versioned
from .model import Node

log = logging.getLogger(__name__)

SAY_AGAIN_S = 1.0


class KeyspaceDeletion:
    """Call `look` when anything changes, while this operator is active."""

    def __init__(
        self, store: EtcdStore, keys: Keys, mirror: Mirror, send: Callable[[Address, Member, Any], None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._mirror = mirror
        self._send = send
        self._forgot: dict[int, set[Member]] = {}     # by number: the nodes that have answered
        self._waits: dict[int, list[str]] = {}        # by number: the others

    async def look(self, nodes: Mapping[str, Node]) -> float | None:
        """Do the next step of every keyspace that is to go.

        Returns after how many seconds time alone makes more of it due.  Raises StoreUnavailable.
        """
        waits = False
        for name, item in list(self._mirror.keyspaces.items()):
            if item.value.deleting:
                waits |= not await self._delete(name, item, nodes)
        numbers = {item.value.number for item in self._mirror.keyspaces.values()}
        for known in (self._forgot, self._waits):
            for number in known.keys() - numbers:
                del known[number]
        return SAY_AGAIN_S if waits else None

    def received(self, sender: Member, message: Forgotten) -> None:
        """Take the answer of a node."""
        if message.keyspace in self._waits:
            self._forgot.setdefault(message.keyspace, set()).add(sender)

    def left(self, stored: StoredObject) -> str:
        """Return what is still to be deleted of a keyspace, and which nodes are waited for."""
        if units := self._units(stored.number):
            return f"{len(units)} ranges are left."
        return f"Its data is left on {some(self._waits.get(stored.number, ()))}."

    async def _delete(self, name: str, item: Versioned[StoredObject], nodes: Mapping[str, Node]) -> bool:
        """Delete records, then ask nodes, then delete the object; False where something is left."""
        number, units = item.value.number, self._units(item.value.number)
        for start in range(0, len(units), OPERATIONS_MAX):
            page = units[start : start + OPERATIONS_MAX]
            if not await self._mirror.replace(self._store, [
                    Write(self._keys.range(unit), None, self._mirror.ranges[unit].revision) for unit in page]):
                return False
        if number:
            before, waits = self._waits.get(number), [node.node for node in self._holders(number, nodes)]
            self._waits[number] = waits
            if waits != before and waits:
                log.info("keyspace %s: its data is left on %s", name, some(waits))
            self._ask(number, nodes)
            if waits:
                return False
        if await self._mirror.replace(self._store, [Write(self._keys.object("Keyspace", name), None, item.revision)]):
            log.info("keyspace %s: its data is deleted", name)
        return True

    def _ask(self, number: int, nodes: Mapping[str, Node]) -> None:
        for name in self._waits[number]:
            node = nodes[name]
            if node.up and node.member is not None:
                self._send(Address(KEYSPACE_PLANE, number << 32), node.member, ForgetAsked(number))

    def _holders(self, number: int, nodes: Mapping[str, Node]) -> Iterator[Node]:
        """Yield the nodes that may hold something: those that ever answered, and did not say otherwise."""
        forgot = self._forgot.get(number, set())
        for node in nodes.values():
            runs = bool(node.address) and node.life is not NodeLife.REMOVED
            if runs and node.wire_version >= VERSION_OF_PLANES and node.member not in forgot:
                yield node

    def _units(self, number: int) -> list[int]:
        return [unit for unit in self._mirror.ranges if number and number_of(unit) == number]
