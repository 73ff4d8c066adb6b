"""Witness: holds what nodes promised against what etcd says, before a node counts as up.

A node's epoch is stored before the node hears of it, so a node can never be ahead of etcd unless etcd lost what it
had.  Then no election may be held: its records may name ensembles whose majorities meet nobody who has newer entries.
Whoever is asked again after a restore is compared again, and so is every refusal that the coordinators meet.
Stays out: rebuilding (`recovery`), what an operator does that may not act (`service`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import grpc
import grpc.aio
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import Member, ShardId, group_of, index_of
from tidemark_core.replication.records import ShardRecord
from tidemark_core.replication.recovery import ReplicaReport, is_behind
from tidemark_wire.v1 import node_pb2_grpc

from .etcd import EtcdStore, StoreUnavailable
from .metadata import Keys
from .recovery import fetch_reports
from .recovery_plan import records_behind

log = logging.getLogger(__name__)

ASK_TIMEOUT_S = 5.0
CONFIRMED_MAX = 16
"""Suspected shards of a node that are looked up in etcd; if none of so many is behind, the mirror was."""


class Witness:
    """`vet` a node; `on_behind(message)` is called once etcd is proven to be older than a node's promise."""

    def __init__(
        self, store: EtcdStore, keys: Keys, records: Callable[[], Mapping[ShardId, ShardRecord]],
        on_behind: Callable[[str], None],
    ) -> None:
        self._store = store
        self._keys = keys
        self._records = records
        self._on_behind = on_behind

    async def vet(self, member: Member, channel: grpc.aio.Channel) -> None:
        """Compare a node's replicas with etcd; what cannot be compared now, its answers to fences will tell."""
        try:
            stub = node_pb2_grpc.ControlStub(channel)
            reports, _ = await fetch_reports(stub, ASK_TIMEOUT_S)
            suspects = records_behind(reports, self._records())[:CONFIRMED_MAX]
            if not any([await self.is_behind(report) for report in suspects]):
                return
            # A deletion may have ended between the node's word and etcd's: then the node says so now.
            known = {report.shard for report in suspects}
            reports, _ = await fetch_reports(stub, ASK_TIMEOUT_S)
            for report in reports:
                if report.shard in known and await self.is_behind(report):
                    self._on_behind(describe(report, await self._stored(report.shard)))
                    return
        except (grpc.aio.AioRpcError, RemoteViolation) as error:
            why = error.details() if isinstance(error, grpc.aio.AioRpcError) else error
            log.warning("%s does not say what it holds: %s", member, why)
        except StoreUnavailable as error:
            log.warning("what %s holds cannot be compared with etcd: %s", member, error)

    async def is_behind(self, report: ReplicaReport) -> bool:
        """Ask etcd itself: the mirror may only be late.  Raises StoreUnavailable."""
        record = await self._stored(report.shard)
        if record is None and await self._store.get(self._keys.tombstone(report.shard)) is not None:
            return False   # it is being deleted, and etcd knows
        return is_behind(record, [report])

    async def _stored(self, shard: ShardId) -> ShardRecord | None:
        item = await self._store.get(self._keys.shard(shard))
        return ShardRecord.decode(item.value) if item is not None else None


def describe(report: ReplicaReport, record: ShardRecord | None) -> str:
    """Say in one line what was found."""
    shard = report.shard
    knows = f"has it in epoch {record.epoch}" if record is not None else "has no record of it"
    held = f"{report.member.node} holds shard {group_of(shard)}/{index_of(shard)} in epoch {report.epoch}"
    return (
        f"{held}, etcd {knows}: etcd lost its data or was set back to an old backup; stop the operators and run "
        "`tidemark recover-metadata`")
