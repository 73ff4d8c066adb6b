"""Settings: each shard held here is told what its group asks of quorum, retention, copies and documents.

A shard hears it once, and on every change.  The shard map may come before a shard does, and shards are loaded again
after a failed write: the last one settles it.
Stays out: what a quorum is and when it is reached, what is removed when; the core knows.
"""

from __future__ import annotations

from tidemark_core.base.formula import InvalidFormula, quorum_in_force
from tidemark_core.base.ids import ShardId, shard_id
from tidemark_core.limbo.settings import QUORUM_TIMEOUT_MS, Rollback, SynchroSettings
from tidemark_core.node import NodeCore
from tidemark_core.replication.settings import Configure, CopySettings, DocumentSettings, RetentionSettings
from tidemark_wire.v1 import common_pb2

from .driver import Driver
from .routing import Routing

MEMBERS_MAX = 16
"""Slots of an ensemble: the reading order of an entry has so many nibbles (K1)."""

RETENTION_MAX_MS = 100 * 365 * 86_400_000


class InvalidSettings(ValueError):
    """The map says something of a group that cannot be; the message names the field."""


def settings_of(pushed: common_pb2.ShardMap) -> dict[ShardId, Configure]:
    """Return what the map says of every shard.  Raises InvalidSettings."""
    zone_of = tuple(sorted((node.node, node.zone) for node in pushed.nodes if node.zone))
    found: dict[ShardId, Configure] = {}
    for group in pushed.groups:
        synchro, retention, copies = _synchro_of(group, zone_of), _retention_of(group), _copies_of(group)
        documents = _documents_of(group)
        for info in group.shards:
            shard = shard_id(group.group_id, info.index)
            found[shard] = Configure(shard, synchro, retention, copies, documents)
    return found


def _retention_of(group: common_pb2.GroupInfo) -> RetentionSettings:
    if group.retention_ms > RETENTION_MAX_MS:
        raise InvalidSettings(
            f"groups[{group.name}].retention_ms: {group.retention_ms} is more than {RETENTION_MAX_MS}, a hundred years"
        )
    if 0 < group.retention_bytes_hard < group.retention_bytes:
        raise InvalidSettings(
            f"groups[{group.name}].retention_bytes_hard: {group.retention_bytes_hard} is less than retention_bytes, "
            f"{group.retention_bytes}"
        )
    return RetentionSettings(group.retention_ms, group.retention_bytes, group.retention_bytes_hard)


def _documents_of(group: common_pb2.GroupInfo) -> DocumentSettings:
    if group.tombstone_ms > RETENTION_MAX_MS:
        raise InvalidSettings(
            f"groups[{group.name}].tombstone_ms: {group.tombstone_ms} is more than {RETENTION_MAX_MS}, a hundred years"
        )
    return DocumentSettings(group.tombstone_ms, group.pinned_bytes_max)


def _copies_of(group: common_pb2.GroupInfo) -> CopySettings:
    for field, number in (("sync_leaders", group.sync_leaders), ("leaders", group.leaders)):
        if number > MEMBERS_MAX:
            raise InvalidSettings(f"groups[{group.name}].{field}: {number} is more than {MEMBERS_MAX} members")
    if 0 < group.leaders < group.sync_leaders:
        raise InvalidSettings(
            f"groups[{group.name}].sync_leaders: {group.sync_leaders} is more than leaders, {group.leaders}"
        )
    return CopySettings(sync_leaders=group.sync_leaders or 1, leaders=group.leaders)


def _synchro_of(group: common_pb2.GroupInfo, zone_of: tuple[tuple[str, str], ...]) -> SynchroSettings:
    try:
        rollback = Rollback(group.rollback or Rollback.DEFINITE)
    except ValueError as error:
        known = " or ".join(Rollback)
        raise InvalidSettings(f"groups[{group.name}].rollback: {group.rollback!r} is not {known}") from error
    try:
        for members in range(1, MEMBERS_MAX + 1):  # an ensemble may take every size
            quorum_in_force(group.synchro_quorum, members)
    except InvalidFormula as error:
        raise InvalidSettings(f"groups[{group.name}].synchro_quorum: {error}") from error
    return SynchroSettings(
        quorum=group.synchro_quorum, timeout_ms=group.quorum_timeout_ms or QUORUM_TIMEOUT_MS, rollback=rollback,
        zones=group.synchro_zones, zone_of=zone_of,
    )


class Synchro:
    """Remembers what each shard was told, and tells it what is new."""

    def __init__(self, driver: Driver, routing: Routing) -> None:
        self._driver = driver
        self._routing = routing
        self._map = routing.map
        self._wanted: dict[ShardId, Configure] = {}
        self._core: NodeCore | None = None  # the one that was told
        self._told: dict[ShardId, Configure] = {}

    def tell(self) -> None:
        """Bring every shard up to date; to be called when the map or the shards held may have changed."""
        driver = self._driver
        if driver.reloading:
            return  # called again when the shards are there
        if self._routing.map is not self._map:
            self._map = self._routing.map
            self._wanted = settings_of(self._map)
        if driver.core is not self._core:
            self._core, self._told = driver.core, {}
        for shard in driver.core.log.shards:
            settings = self._wanted.get(shard)
            if settings is not None and settings != self._told.get(shard):
                self._told[shard] = settings
                driver.post(settings)
