"""Reports of replicas to protobuf and back.  Stays out: what follows from them."""

from __future__ import annotations

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import EntryId, Member, ShardId, wrong_lineage
from tidemark_core.replication.messages import Operation
from tidemark_core.replication.recovery import ReplicaReport
from tidemark_core.replication.replica import Pending, Role

from .convert import shard_kind_from_text, shard_kind_to_text
from .v1 import node_pb2

REPLICAS_MAX = 1_000
"""Most replicas of one answer, and most floors of one promise."""

SIZES_MAX = 10_000
"""Most shards that one request for sizes names."""


def report_to_proto(report: ReplicaReport) -> node_pb2.Replica:
    made = node_pb2.Replica(
        shard=report.shard, role=report.role, epoch=report.epoch, election=report.election, told=report.told,
        ensemble=[_disk(member) for member in report.ensemble], copies=report.copies, opened=report.opened,
        head_epoch=max(0, report.head.epoch), head=report.head.offset, commit=report.commit,
        floor=report.floor, kind=shard_kind_to_text(report.kind), lineage=report.lineage,
    )
    if (pending := report.pending) is not None:
        made.pending.operation, made.pending.copies = pending.operation, pending.copies
        if pending.old is not None:
            made.pending.old.CopyFrom(_disk(pending.old))
        if pending.new is not None:
            made.pending.new.CopyFrom(_disk(pending.new))
    return made


def report_from_proto(member: Member, proto: node_pb2.Replica) -> ReplicaReport:
    """Raises RemoteViolation for what this build does not know."""
    try:
        pending = None
        if proto.HasField("pending"):
            change = proto.pending
            pending = Pending(
                Operation(change.operation), _member(change.old) if change.HasField("old") else None,
                _member(change.new) if change.HasField("new") else None, change.copies)
        if proto.lineage and (wrong := wrong_lineage(proto.lineage)) is not None:
            raise ValueError(wrong)
        return ReplicaReport(
            ShardId(proto.shard), member, Role(proto.role), proto.epoch, proto.election, proto.told,
            tuple(_member(disk) for disk in proto.ensemble), proto.copies, proto.opened, pending,
            EntryId(proto.head_epoch, proto.head), proto.commit, proto.floor, shard_kind_from_text(proto.kind),
            proto.lineage,
        )
    except ValueError as error:
        raise RemoteViolation(f"replica of shard {proto.shard:#x} on {member}: {error}") from error


def _disk(member: Member) -> node_pb2.Disk:
    return node_pb2.Disk(node=member.node, incarnation=member.incarnation)


def _member(disk: node_pb2.Disk) -> Member:
    return Member(disk.node, disk.incarnation)
