"""Rings: the keyspaces of the shard map, handed to the core range by range, and what callers look up in them.

The core is handed a record once, and on every change; after a failed write the new core is handed all of them.
Stays out: what a record means (the core), the bytes of rings (wire's `rings`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemark_core.base.ids import Member
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.node import NodeCore
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.plane import Assign, Cluster, Settle
from tidemark_core.optimistic.ring import Range, range_of
from tidemark_core.optimistic.settings import KeyspaceSettings
from tidemark_wire.rings import InvalidRing, ring_of, settings_of
from tidemark_wire.v1 import common_pb2

from .driver import Driver
from .routing import Routing

TTL_MAX_MS = 100 * 365 * 86_400_000
REPAIRS = {"": Repair.BLOCKING, **{repair.value.capitalize(): repair for repair in Repair}}
"""By their words in the map."""


@dataclass(frozen=True, slots=True)
class Keyspace:
    """A keyspace as the map has it; `raw` are the bytes that it was read from."""

    name: str
    number: int
    ranges: tuple[Range, ...]
    repair: Repair
    sloppy: bool
    overrides_allowed: bool
    default_ttl_ms: int
    settings: KeyspaceSettings | None
    raw: bytes

    def index_of(self, key: bytes) -> int:
        """Return the index of the range that a key belongs to."""
        return range_of(key, len(self.ranges))

    def unit(self, index: int) -> int:
        """Return the unit of the plane that a range is."""
        return self.number << 32 | index


def keyspaces_of(pushed: common_pb2.ShardMap, known: Mapping[str, Keyspace]) -> dict[str, Keyspace]:
    """Return the keyspaces of a map by their names; one that did not change is the `known` one.

    Raises InvalidRing.
    """
    found: dict[str, Keyspace] = {}
    numbers: dict[int, str] = {}
    for info in pushed.keyspaces:
        if not info.name or info.name in found:
            raise InvalidRing(f"keyspaces[{info.name}].name: each keyspace needs a name of its own")
        if (other := numbers.setdefault(info.keyspace_id, info.name)) != info.name:
            raise InvalidRing(
                f"keyspaces[{info.name}].keyspace_id: {info.keyspace_id} is the id of keyspace {other!r} too")
        bare = common_pb2.KeyspaceInfo()
        bare.CopyFrom(info)
        bare.ClearField("access")
        raw, before = bare.SerializeToString(), known.get(info.name)
        found[info.name] = before if before is not None and before.raw == raw else _keyspace_of(bare, raw)
    return found


def _keyspace_of(info: common_pb2.KeyspaceInfo, raw: bytes) -> Keyspace:
    field = f"keyspaces[{info.name}]"
    repair = REPAIRS.get(info.read_repair)
    if repair is None:
        words = " or ".join(word for word in REPAIRS if word)
        raise InvalidRing(f"{field}.read_repair: {info.read_repair!r} is not {words}")
    if info.default_ttl_ms > TTL_MAX_MS:
        raise InvalidRing(f"{field}.default_ttl_ms: {info.default_ttl_ms} is more than {TTL_MAX_MS}, a hundred years")
    return Keyspace(
        info.name, info.keyspace_id, ring_of(info), repair, info.sloppy, info.overrides_allowed, info.default_ttl_ms,
        settings_of(info), raw)


class Rings:
    """The keyspaces of the newest map, and what the core was handed of them."""

    def __init__(self, driver: Driver, routing: Routing) -> None:
        self._driver = driver
        self._routing = routing
        self._map = routing.map
        self._keyspaces: dict[str, Keyspace] = {}
        self._checked: dict[str, Keyspace] = {}    # of the map that was checked last
        self._core: NodeCore | None = None    # the one that was handed the records
        self._handed: dict[int, Range] = {}
        self._settled: dict[int, KeyspaceSettings] = {}    # by the numbers of keyspaces
        self._members: tuple[Member, ...] = ()

    def check(self, pushed: common_pb2.ShardMap) -> None:
        """Raise InvalidRing where a node cannot act under the keyspaces of a map."""
        self._checked = keyspaces_of(pushed, self._keyspaces)

    def tell(self) -> None:
        """Bring the core up to date; to be called when the map may have changed, or the core was loaded again."""
        driver = self._driver
        if driver.reloading:
            return
        if self._routing.map is not self._map:
            self._map = self._routing.map
            self._keyspaces = keyspaces_of(self._map, self._checked)
        if driver.core is not self._core:
            self._core, self._handed, self._settled, self._members = driver.core, {}, {}, ()
        if (members := self._cluster()) != self._members:
            self._members = members
            driver.post(Cluster(members))
        before, self._handed = self._handed, {}
        for keyspace in self._keyspaces.values():
            if keyspace.settings is not None and self._settled.get(keyspace.number) != keyspace.settings:
                self._settled[keyspace.number] = keyspace.settings
                driver.post(Settle(keyspace.number, keyspace.settings))
            for index, record in enumerate(keyspace.ranges):
                unit = keyspace.unit(index)
                self._handed[unit] = record
                if record != before.get(unit):
                    driver.post(Assign(unit, record))

    def find(self, name: str, number: int = 0) -> Keyspace | Refused:
        """Look up the keyspace that a client named; a `number` must be its id, 0 is any (T13)."""
        keyspace = self._keyspaces.get(name)
        if keyspace is not None and number not in (0, keyspace.number):
            return Refused(
                Reason.GROUP_REPLACED, f"keyspace {name!r} has the id {keyspace.number} in shard map "
                f"{self._map.version}, not {number}: it was deleted and made again", retry_after_ms=100)
        if keyspace is not None:
            return keyspace
        if not self._map.version:
            return Refused(Reason.NO_LEADER, "this node has no shard map yet", retry_after_ms=100)
        return Refused(Reason.UNKNOWN_KEYSPACE, f"keyspace {name!r} is not in shard map {self._map.version}")

    def _cluster(self) -> tuple[Member, ...]:
        """Return the members of the map: this node, those of its zone, the others."""
        me = self._driver.core.me
        zones = {Member(each.node, each.incarnation): each.zone for each in self._map.nodes if each.incarnation}
        mine = zones.get(me, "")
        others = sorted((not mine or zone != mine, member) for member, zone in zones.items() if member != me)
        return me, *(member for _, member in others)
