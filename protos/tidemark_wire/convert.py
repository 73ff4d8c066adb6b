"""Messages of the core to protobuf and back: one pair of functions per message, one table.

Numbers in the table are what travels as `kind` in a link frame; they are never reused.  `Append` and
`AppendAck` have their numbers here and their bodies in `frames`, because payloads must not be copied twice.
Stays out: frames, channels, any judgement about epochs or offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tidemark_core.base.effects import SnapshotDescriptor
from tidemark_core.base.entry import decode
from tidemark_core.base.errors import CorruptEntry, FormatTooNew, FormatTooOld, RemoteViolation
from tidemark_core.base.ids import KEYSPACE_PLANE, LOG_PLANE, EntryId, Member, ShardId, ShardKind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication import messages as core
from tidemark_core.replication.checkpoint import CHECKPOINT_FORMAT_BEFORE, recoded

from . import optimistic
from .codecs import (
    MEMBER,
    MEMBER_OR_NONE,
    MEMBERS,
    NUMBER_OR_NONE,
    NUMBERS,
    PLAIN,
    Codec,
    Codecs,
    Field,
    codec_of,
    get_list,
    get_message,
    get_optional,
    member_from_proto,
    member_to_proto,
    parse,
    set_list,
    set_message,
    set_plain,
)
from .v1 import common_pb2, replication_pb2

APPEND = 1
APPEND_ACK = 2


@dataclass(frozen=True, slots=True)
class Draining:
    """Node to operator: move my leaderships away, I am about to stop.  Its shard is 0; no core reads it."""

    draining: bool


@dataclass(frozen=True, slots=True)
class DiskReport:
    """Node to operator: the level of space of my disk (`Space`) and its free bytes.  Its shard is 0."""

    space: int
    free_bytes: int


# --- words inside messages --------------------------------------------------------------------------------


def id_to_proto(position: EntryId) -> common_pb2.EntryId:
    return common_pb2.EntryId(epoch=position.epoch, offset=position.offset)


def id_from_proto(proto: common_pb2.EntryId) -> EntryId:
    return EntryId(proto.epoch, proto.offset)


def operation_from_text(text: str) -> core.Operation:
    try:
        return core.Operation(text)
    except ValueError as error:
        raise FormatTooNew(f"operation {text!r} is not known to this build") from error


def shard_kind_to_text(kind: ShardKind) -> str:
    """A log is named by nothing: builds of wire version 4 know no other kind."""
    return "" if kind is ShardKind.LOG else kind.value


def shard_kind_from_text(text: str) -> ShardKind:
    """Return the kind of a shard; a peer of the release before names none: it has logs alone."""
    try:
        return ShardKind(text) if text else ShardKind.LOG
    except ValueError as error:
        raise FormatTooNew(f"shard kind {text!r} is not known to this build") from error


def reason_from_text(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError as error:
        raise FormatTooNew(f"refusal reason {text!r} is not known to this build") from error


def refusal_to_proto(
    refused: Refused, leader_node: str = "", leader_address: str = "", map_version: int = 0
) -> common_pb2.Refusal:
    return common_pb2.Refusal(
        reason=refused.reason,
        message=refused.message,
        epoch=refused.epoch,
        expected=refused.expected,
        retry_after_ms=refused.retry_after_ms,
        leader_node=leader_node,
        leader_address=leader_address,
        map_version=map_version,
    )


def refusal_from_proto(proto: common_pb2.Refusal) -> Refused:
    return Refused(
        reason_from_text(proto.reason), proto.message, proto.epoch, proto.expected, proto.retry_after_ms
    )


def _descriptor_to_proto(descriptor: SnapshotDescriptor) -> replication_pb2.SnapshotDescriptor:
    return replication_pb2.SnapshotDescriptor(
        epoch=descriptor.epoch,
        head=id_to_proto(descriptor.head),
        first=descriptor.first,
        commit=descriptor.commit,
        payload_bytes=descriptor.payload_bytes,
        checkpoint=descriptor.checkpoint,
        confirmed=descriptor.confirmed,
        copies=descriptor.copies,
        slot=descriptor.slot,
        size=descriptor.size,
        sources=[member_to_proto(member) for member in descriptor.sources],
        kind=shard_kind_to_text(descriptor.kind),
    )


def _descriptor_from_proto(proto: replication_pb2.SnapshotDescriptor) -> SnapshotDescriptor:
    return SnapshotDescriptor(
        proto.epoch, id_from_proto(proto.head), proto.first, proto.commit, proto.payload_bytes,
        proto.checkpoint, proto.confirmed, proto.copies, proto.slot, proto.size,
        tuple(member_from_proto(member) for member in proto.sources), shard_kind_from_text(proto.kind),
    )


DIGEST_BYTES = 16


def _follower_to_proto(pair: tuple[Member, EntryId]) -> replication_pb2.FollowerHead:
    return replication_pb2.FollowerHead(member=member_to_proto(pair[0]), head=id_to_proto(pair[1]))


def _follower_from_proto(proto: replication_pb2.FollowerHead) -> tuple[Member, EntryId]:
    return member_from_proto(proto.member), id_from_proto(proto.head)


def _clock_to_proto(pair: tuple[Member, int]) -> replication_pb2.MemberClock:
    return replication_pb2.MemberClock(member=member_to_proto(pair[0]), clock_ms=pair[1])


def _clock_from_proto(proto: replication_pb2.MemberClock) -> tuple[Member, int]:
    return member_from_proto(proto.member), proto.clock_ms


def _unheard_to_proto(found: core.Unheard) -> replication_pb2.Unheard:
    members = [member_to_proto(member) for member in found.members]
    return replication_pb2.Unheard(shard=found.shard, epoch=found.epoch, members=members, silent_ms=found.silent_ms)


def _unheard_from_proto(proto: replication_pb2.Unheard) -> core.Unheard:
    members = tuple(member_from_proto(member) for member in proto.members)
    return core.Unheard(ShardId(proto.shard), proto.epoch, members, proto.silent_ms)


def _diverged_to_proto(found: core.Diverged) -> replication_pb2.Diverged:
    return replication_pb2.Diverged(
        shard=found.shard, epoch=found.epoch, member=member_to_proto(found.member), at=found.at)


def _diverged_from_proto(proto: replication_pb2.Diverged) -> core.Diverged:
    return core.Diverged(ShardId(proto.shard), proto.epoch, member_from_proto(proto.member), proto.at)


def _cut_to_proto(cut: core.FoldedCut) -> replication_pb2.FoldedCut:
    return replication_pb2.FoldedCut(applied=cut.applied, count=cut.count, digest=cut.digest)


def _cut_from_proto(proto: replication_pb2.FoldedCut) -> core.FoldedCut:
    if len(proto.digest) != DIGEST_BYTES:
        raise RemoteViolation(f"U73: a digest has {len(proto.digest)} bytes, must have {DIGEST_BYTES}")
    return core.FoldedCut(proto.applied, proto.count, proto.digest)


def _get_cuts(proto: replication_pb2.Digests, name: str) -> tuple[core.FoldedCut, ...]:
    if len(proto.cuts) > core.DIGESTS_MAX:
        raise RemoteViolation(f"U73b: {len(proto.cuts)} digests in one answer, the limit is {core.DIGESTS_MAX}")
    return tuple(_cut_from_proto(cut) for cut in proto.cuts)


_ID: Field = (set_message(id_to_proto), get_message(id_from_proto))
_FOLLOWERS: Field = (set_list(_follower_to_proto), get_list(_follower_from_proto))
_DIVERGED: Field = (set_list(_diverged_to_proto), get_list(_diverged_from_proto))
_CUTS: Field = (set_list(_cut_to_proto), _get_cuts)
_UNHEARD: Field = (set_list(_unheard_to_proto), get_list(_unheard_from_proto))
_CLOCKS: Field = (set_list(_clock_to_proto), get_list(_clock_from_proto))
_OPERATION: Field = (set_plain, lambda proto, name: operation_from_text(getattr(proto, name)))
_KIND: Field = (
    lambda proto, name, value: setattr(proto, name, shard_kind_to_text(value)),
    lambda proto, name: shard_kind_from_text(getattr(proto, name)),
)
_SNAPSHOT: Field = (set_message(_descriptor_to_proto), get_message(_descriptor_from_proto))
_SNAPSHOT_OR_NONE: Field = (set_message(_descriptor_to_proto), get_optional(_descriptor_from_proto))
_REFUSAL: Field = (set_message(refusal_to_proto), get_message(refusal_from_proto))


# --- a snapshot carries a checkpoint, whose format moves with the wire version ------------------------------


def _older_rejected(message: Any) -> Any:
    """Builds of wire version 4 know one word for every member that does not vote."""
    if message.refusal.reason is not Reason.NO_REPLICA:
        return message
    return replace(message, refusal=replace(message.refusal, reason=Reason.NOT_MEMBER))


def _older_snapshot(message: Any) -> Any:
    """Return the message with the checkpoint format of wire version 4; raises FormatTooOld when it has no place."""
    snapshot = message.snapshot
    if snapshot is None:
        return message
    _logs_alone(snapshot)
    checkpoint = recoded(snapshot.checkpoint, CHECKPOINT_FORMAT_BEFORE)
    return replace(message, snapshot=replace(snapshot, checkpoint=checkpoint))


def _logs_alone(message: Any) -> Any:
    """Builds of wire version 4 would begin a replica of any shard as a log."""
    if message.kind is not ShardKind.LOG:
        raise FormatTooOld(f"a shard of kind {message.kind} is new in this release")
    return message


def _fence_before(message: Any) -> Any:
    """Leave out whom the operator announces (T10); only a log is fenced by this version."""
    return replace(_logs_alone(message), members=())


def _not_before(message: Any) -> Any:
    """Refuse to send a message that the release before does not know."""
    raise FormatTooOld(f"{type(message).__name__} is new in this release")


# --- Fetched carries an entry, so it has a pair of its own ------------------------------------------------


def _encode_fetched(message: core.Fetched) -> bytes:
    proto = replication_pb2.Fetched(base=message.base, first=message.first)
    if message.entry is not None:
        proto.held, proto.header, proto.payload = True, message.entry.header, message.entry.payload
    return proto.SerializeToString()


def _decode_fetched(body: bytes) -> core.Fetched:
    proto = parse(replication_pb2.Fetched, body)
    if not proto.held:
        return core.Fetched(proto.base, None, proto.first)
    try:
        return core.Fetched(proto.base, decode(proto.header, proto.payload), proto.first)
    except FormatTooNew:
        raise
    except (CorruptEntry, ValueError) as error:
        raise RemoteViolation(f"fetched entry: {error}") from error


# --- the table --------------------------------------------------------------------------------------------

_codec = partial(codec_of, replication_pb2)
CODECS: tuple[Codec, ...] = (
    _codec(3, core.AppendRefused, epoch=PLAIN, own_epoch=PLAIN, head=_ID, reason=PLAIN),
    _codec(4, core.Truncate, epoch=PLAIN, to=_ID),
    _codec(5, core.Truncated, epoch=PLAIN, head=_ID),
    _codec(6, core.Fetch, base=PLAIN, entry_epoch=PLAIN),
    Codec(7, core.Fetched, _encode_fetched, _decode_fetched),
    _codec(8, core.Drop, epoch=PLAIN, ensemble=MEMBERS, copies=PLAIN, matches=NUMBERS, commit=PLAIN),
    _codec(9, core.Fill, epoch=PLAIN, ensemble=MEMBERS, copies=PLAIN, upto=PLAIN),
    _codec(10, core.Filled, epoch=PLAIN, upto=PLAIN),
    _codec(11, core.ReadRound, older=_not_before, epoch=PLAIN, number=PLAIN),
    _codec(12, core.ReadRoundAck, older=_not_before, epoch=PLAIN, number=PLAIN),
    _codec(13, core.DigestsAsked, older=_not_before, epoch=PLAIN),
    _codec(14, core.Digests, older=_not_before, epoch=PLAIN, cuts=_CUTS),
    _codec(
        16, core.Fence, older=_fence_before,
        epoch=PLAIN, election=PLAIN, nonce=PLAIN, members=MEMBERS, kind=_KIND,
    ),
    _codec(
        17, core.Fenced, older=partial(replace, clock_ms=None),
        epoch=PLAIN, election=PLAIN, head=_ID, nonce=PLAIN, clock_ms=NUMBER_OR_NONE,
    ),
    _codec(
        18, core.BecomeLeader, older=partial(replace, clocks=(), lineage=b""),
        epoch=PLAIN, election=PLAIN, ensemble=MEMBERS, followers=_FOLLOWERS, copies=PLAIN, clocks=_CLOCKS,
        lineage=PLAIN,
    ),
    _codec(19, core.BecameLeader, epoch=PLAIN, election=PLAIN),
    _codec(20, core.AddFollower, epoch=PLAIN, election=PLAIN, follower=MEMBER, head=_ID),
    _codec(21, core.FollowerAdded, epoch=PLAIN, follower=MEMBER),
    _codec(
        22, core.Prepare,
        epoch=PLAIN, election=PLAIN, operation=_OPERATION, old=MEMBER_OR_NONE, new=MEMBER_OR_NONE,
        copies=PLAIN,
    ),
    _codec(23, core.Prepared, older=_older_snapshot, epoch=PLAIN, snapshot=_SNAPSHOT_OR_NONE),
    _codec(
        24, core.InstallSnapshot, older=_older_snapshot,
        epoch=PLAIN, election=PLAIN, source=MEMBER, snapshot=_SNAPSHOT,
    ),
    _codec(25, core.SnapshotProgress, epoch=PLAIN, received_bytes=PLAIN, total_bytes=PLAIN),
    _codec(26, core.SnapshotInstalled, epoch=PLAIN, head=_ID),
    _codec(
        27, core.Commit,
        epoch=PLAIN, election=PLAIN, operation=_OPERATION, ensemble=MEMBERS,
        old=MEMBER_OR_NONE, new=MEMBER_OR_NONE, new_head=_ID, copies=PLAIN,
    ),
    _codec(28, core.Committed, epoch=PLAIN),
    _codec(29, core.CommitPending, epoch=PLAIN, filled=PLAIN),
    _codec(30, core.Abort, epoch=PLAIN, election=PLAIN),
    _codec(31, core.Aborted, epoch=PLAIN),
    _codec(32, core.PrepareTransfer, epoch=PLAIN, election=PLAIN, to=MEMBER),
    _codec(33, core.TransferReady, epoch=PLAIN, to=MEMBER),
    _codec(34, core.DeleteShard, epoch=PLAIN, election=PLAIN),
    _codec(35, core.ShardDeleted, epoch=PLAIN),
    _codec(36, core.Rejected, older=_older_rejected, epoch=PLAIN, about=PLAIN, refusal=_REFUSAL, nonce=PLAIN),
    _codec(37, core.Reach, older=_not_before, reached=MEMBERS, lost=MEMBERS, unheard=_UNHEARD, diverged=_DIVERGED),
    _codec(64, Draining, draining=PLAIN),
    _codec(65, DiskReport, older=_not_before, space=PLAIN, free_bytes=PLAIN),
)

PLANE_CODECS: Mapping[int, Codecs] = {
    LOG_PLANE: Codecs(CODECS),
    KEYSPACE_PLANE: optimistic.CODECS,
}
"""The messages of every plane, by the plane's number: one row each."""
