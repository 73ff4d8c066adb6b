"""Control/Describe, PushShardMap and CheckDisk: what this node is, which shard map is in force, how old its disk is.

Stays out: what a map means; the parts that live by it take it in.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any, ClassVar

from tidemark_core.base.marks import DiskMark, is_older
from tidemark_core.base.refusals import Reason, Refused
from tidemark_wire.identity import Kind
from tidemark_wire.rings import InvalidRing
from tidemark_wire.status import to_rpc_error
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import common_pb2, node_pb2
from tidemark_wire.version import VERSION
from tidemark_wire.wire_version import WIRE_VERSION, WIRE_VERSION_OLDEST

from .driver import Driver
from .methods import Method, Shape
from .remembered import Remembered
from .rings import Rings
from .routing import Routing
from .settings import Settings
from .snapshots import SnapshotServer
from .store import STORE_FORMAT
from .store_errors import StoreFailed
from .synchro import InvalidSettings, Synchro, settings_of


class Control:
    """Answers the operator."""

    def __init__(
        self, settings: Settings, address: str, metrics_address: str, driver: Driver, routing: Routing,
        synchro: Synchro, rings: Rings, remembered: Remembered, snapshots: SnapshotServer, draining: asyncio.Event,
        tls: Credentials | None,
    ) -> None:
        self._settings = settings
        self._address = address
        self._metrics_address = metrics_address
        self._driver = driver
        self._routing = routing
        self._synchro = synchro
        self._rings = rings
        self._remembered = remembered
        self._snapshots = snapshots
        self._draining = draining
        self._tls = tls

    async def describe(self, request: Any, context: Any) -> node_pb2.NodeDescription:
        me = self._driver.core.me
        return node_pb2.NodeDescription(
            cluster=self._settings.cluster,
            node=me.node, incarnation=me.incarnation, boot=self._driver.boot, address=self._address,
            zone=self._settings.zone, location=self._settings.location, wire_version=WIRE_VERSION_OLDEST,
            wire_version_newest=WIRE_VERSION,
            store_format=STORE_FORMAT, version=VERSION,
            draining=self._draining.is_set(), leading=len(self._driver.core.log.leading()),
            metrics_address=self._metrics_address, pid=os.getpid(), clock_ms=time.time_ns() // 1_000_000,
            lagging=sorted(self._driver.core.log.lagging()),
            disk_space=self._driver.guard.space, disk_free_bytes=self._driver.guard.free_bytes(),
            tls_fingerprint=self._tls.material.fingerprint if self._tls is not None else "",
        )

    async def push_shard_map(self, request: common_pb2.ShardMap, context: Any) -> node_pb2.PushShardMapResponse:
        mine = self._settings.cluster
        if mine and request.cluster and request.cluster != mine:
            other = Refused(
                Reason.INVALID_SPEC, f"the shard map is of cluster {request.cluster!r}, this node belongs to {mine!r}"
            )
            await context.abort(*to_rpc_error(other))
        try:
            settings_of(request)
            self._rings.check(request)
        except (InvalidSettings, InvalidRing) as wrong:
            await context.abort(*to_rpc_error(Refused(Reason.INVALID_SPEC, str(wrong))))
        version_in_force = self._routing.push(request)
        self._snapshots.throttle(self._routing.snapshot_bytes_per_second)
        self._synchro.tell()
        self._rings.tell()
        self._remembered.tell(self._routing.map)
        return node_pb2.PushShardMapResponse(version=version_in_force)

    async def check_disk(self, request: node_pb2.CheckDiskRequest, context: Any) -> node_pb2.CheckDiskResponse:
        """Say how many writes are durable; give the disk up if the operator says so and proves it older (D52)."""
        try:
            writes = await self._driver.durable_writes()
        except StoreFailed as error:
            await context.abort(*to_rpc_error(Refused(Reason.NO_LEADER, f"{error}; retry", retry_after_ms=1000)))
        disk = DiskMark(self._driver.core.me.incarnation, writes)
        older = is_older(DiskMark(request.incarnation, request.writes), disk)
        if older and request.give_up:
            self._driver.abandon_disk(
                f"the disk is an older copy of itself: it ends at write {writes}, {request.writes} were durable on it")
        return node_pb2.CheckDiskResponse(
            incarnation=disk.incarnation, writes=writes, given_up=older and request.give_up)

    METHODS: ClassVar[tuple[Method, ...]] = (
        Method(
            "Control.Describe", Shape.UNARY, describe, node_pb2.DescribeRequest, node_pb2.NodeDescription,
            kinds=frozenset({Kind.OPERATOR, Kind.ADMIN}), checks_version=False,
        ),
        Method(
            "Control.PushShardMap", Shape.UNARY, push_shard_map, common_pb2.ShardMap, node_pb2.PushShardMapResponse,
            kinds=frozenset({Kind.OPERATOR}), checks_version=False,
        ),
        Method(
            "Control.CheckDisk", Shape.UNARY, check_disk, node_pb2.CheckDiskRequest, node_pb2.CheckDiskResponse,
            kinds=frozenset({Kind.OPERATOR}), checks_version=False,
        ),
    )
