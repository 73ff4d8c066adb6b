"""Refusals on gRPC: one table from reason to status code and advice, and the way there and back.

A refusal travels as trailing metadata (the `Refusal` protobuf) beside a status code that generic tools
understand.  Stays out: deciding to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import grpc
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.refusals import Reason, Refused

from .codecs import parse
from .convert import refusal_from_proto, refusal_to_proto
from .v1 import common_pb2

REFUSAL_KEY = "tidemark-refusal-bin"

TEXT_BYTES_MAX = 1_500
"""gRPC drops a status whose metadata has more than 8 KiB, and a text travels in it twice, encoded."""


class Meaning(NamedTuple):
    """What a reason is on the wire, and what a person should do about it."""

    code: grpc.StatusCode
    advice: str


_Code = grpc.StatusCode

MEANINGS: dict[Reason, Meaning] = {
    Reason.NOT_LEADER: Meaning(
        _Code.FAILED_PRECONDITION, "Ask the hinted leader; clients do this by themselves."
    ),
    Reason.UNKNOWN_GROUP: Meaning(
        _Code.NOT_FOUND, "Check the group's name; `tidemark shards` lists the groups."
    ),
    Reason.GROUP_REPLACED: Meaning(
        _Code.FAILED_PRECONDITION,
        "It was deleted and made again. Look at what you read of it before, then ask again."
    ),
    Reason.UNKNOWN_KEYSPACE: Meaning(
        _Code.NOT_FOUND, "Check the keyspace's name; `tidemark get keyspaces` lists the keyspaces."
    ),
    Reason.UNKNOWN_SHARD: Meaning(_Code.NOT_FOUND, "Check the shard's number; `tidemark shards` lists them."),
    Reason.NOT_MEMBER: Meaning(
        _Code.FAILED_PRECONDITION, "The node does not hold this shard; refresh the shard map."
    ),
    Reason.NO_REPLICA: Meaning(
        _Code.FAILED_PRECONDITION, "The node holds no replica that votes; the operator seeds it again."
    ),
    Reason.STALE_EPOCH: Meaning(_Code.ABORTED, "A newer leader exists; refresh the shard map and retry."),
    Reason.STALE_ELECTION: Meaning(
        _Code.ABORTED, "Another operator owns this epoch; read the metadata again."
    ),
    Reason.ALREADY_LEADER: Meaning(
        _Code.FAILED_PRECONDITION, "The node leads this epoch already; nothing to do."
    ),
    Reason.GAP: Meaning(
        _Code.FAILED_PRECONDITION, "The follower lags; the leader sends the missing entries."
    ),
    Reason.MISMATCH: Meaning(
        _Code.FAILED_PRECONDITION, "The logs differ; the leader truncates the follower."
    ),
    Reason.WRONG_STATE: Meaning(
        _Code.FAILED_PRECONDITION, "The shard is in another phase; look at `tidemark shards`."
    ),
    Reason.BELOW_COMMIT: Meaning(
        _Code.FAILED_PRECONDITION, "Committed entries are never cut; report this as a bug."
    ),
    Reason.TRANSFERRING: Meaning(_Code.UNAVAILABLE, "Leadership is being handed over; retry in a moment."),
    Reason.OVERLOADED: Meaning(
        _Code.RESOURCE_EXHAUSTED, "Retry after the hinted time, or send less at once."
    ),
    Reason.DISK_FULL: Meaning(
        _Code.RESOURCE_EXHAUSTED, "Free space on the node's disk; writing resumes by itself."
    ),
    Reason.CORRUPT: Meaning(
        _Code.DATA_LOSS, "A stored entry is damaged; the node repairs it from a peer. Retry."
    ),
    Reason.BATCH_TOO_LARGE: Meaning(
        _Code.INVALID_ARGUMENT, "Send smaller batches or raise the group's limit."
    ),
    Reason.INVALID_BATCH: Meaning(
        _Code.INVALID_ARGUMENT, "Fix the field the message names; nothing was appended."
    ),
    Reason.SEQUENCE_GAP: Meaning(_Code.FAILED_PRECONDITION, "Resend from the expected sequence."),
    Reason.SEQUENCE_TOO_OLD: Meaning(
        _Code.FAILED_PRECONDITION, "The outcome is no longer remembered; read the shard to find the record."
    ),
    Reason.PRODUCER_UNKNOWN: Meaning(
        _Code.FAILED_PRECONDITION,
        "The shard remembers nothing of the producer: go on under a new id; what was not answered may be in the log.",
    ),
    Reason.PRODUCER_FENCED: Meaning(
        _Code.FAILED_PRECONDITION,
        "Another process has this producer: stop here, or open it again with a newer fence to take it back.",
    ),
    Reason.FENCE_TOO_LOW: Meaning(
        _Code.FAILED_PRECONDITION, "The producer was claimed with this fence or a newer one: choose a fence above it."
    ),
    Reason.RECORD_CAME_FIRST: Meaning(
        _Code.ABORTED, "Nothing was appended: read the records that came first, then expect the offset behind them."
    ),
    Reason.QUORUM_TIMEOUT: Meaning(
        _Code.DEADLINE_EXCEEDED,
        "The outcome is not known yet: ask for it, or send the same producer and sequence again, never a new one.",
    ),
    Reason.ROLLED_BACK: Meaning(
        _Code.ABORTED, "Nobody will ever read this batch; to try again, send it under a new sequence."
    ),
    Reason.PRODUCER_ROLLED_BACK: Meaning(
        _Code.FAILED_PRECONDITION,
        "An earlier batch of this producer was rolled back: send that one anew first, with `resume_after` as expected.",
    ),
    Reason.ROLLING_BACK: Meaning(
        _Code.UNAVAILABLE, "A rollback is being written; nothing was appended, retry after the hinted time."
    ),
    Reason.BEHIND: Meaning(_Code.UNAVAILABLE, "The node has not confirmed that far yet; retry."),
    Reason.TRIMMED: Meaning(
        _Code.OUT_OF_RANGE, "Retention removed these records; read from the first one kept."
    ),
    Reason.TOO_MANY_SUBSCRIPTIONS: Meaning(
        _Code.RESOURCE_EXHAUSTED, "Delete subscriptions nobody needs; see `tidemark subscriptions list`."
    ),
    Reason.BATCH_PASSED: Meaning(
        _Code.FAILED_PRECONDITION,
        "The sink has come to a later batch, or has ended this one with other rows: nothing was changed.",
    ),
    Reason.PART_LEFT_OUT: Meaning(
        _Code.FAILED_PRECONDITION,
        "Another attempt at this batch had more parts, and they may have appended: write it with as many parts again.",
    ),
    Reason.TOO_MANY_SINKS: Meaning(
        _Code.RESOURCE_EXHAUSTED, "Delete sinks that are not needed; see `tidemark sinks list`."
    ),
    Reason.TOO_MANY_PINS: Meaning(
        _Code.RESOURCE_EXHAUSTED, "Release pins that are not needed, or let their leases end; see `tidemark pin list`."
    ),
    Reason.NOT_HELD: Meaning(
        _Code.FAILED_PRECONDITION,
        "The leader does not keep every payload of this shard; read it by single copy delivery.",
    ),
    Reason.WRONG_KIND: Meaning(
        _Code.FAILED_PRECONDITION,
        "Write and read a group by its kind; `tidemark get loggroups` shows it. Nothing was changed.",
    ),
    Reason.NOT_PINNED: Meaning(
        _Code.FAILED_PRECONDITION, "The pin is over: pin the documents again and read at the new cut from its start."
    ),
    Reason.LEADER_CANNOT_LEAVE: Meaning(
        _Code.FAILED_PRECONDITION, "Transfer leadership first (`tidemark transfer`), or swap with --transfer."
    ),
    Reason.ALREADY_MEMBER: Meaning(_Code.ALREADY_EXISTS, "Choose a node outside the shard's ensemble."),
    Reason.NODE_UNAVAILABLE: Meaning(
        _Code.UNAVAILABLE, "Start the node or choose another; see `tidemark dev status`."
    ),
    Reason.BELOW_MINIMUM: Meaning(
        _Code.FAILED_PRECONDITION,
        "Fewer than three members need --force; for more members raise payloadCopies first, if the message says so.",
    ),
    Reason.LAST_COPY: Meaning(
        _Code.FAILED_PRECONDITION,
        "Recover the shard from that member (`tidemark recover-shard`); the runbook of DataLossSuspected says how.",
    ),
    Reason.RECONFIGURING: Meaning(
        _Code.UNAVAILABLE, "An election or another change is running; retry when it ends."
    ),
    Reason.NO_LEADER: Meaning(
        _Code.UNAVAILABLE, "Nobody leads the shard now; an election should follow. Retry."
    ),
    Reason.ABORTED: Meaning(_Code.ABORTED, "The change was given up and nothing changed; start it again."),
    Reason.NEEDS_UPGRADE: Meaning(
        _Code.FAILED_PRECONDITION, "Nothing changed; upgrade the nodes that the message names, then ask again."
    ),
    Reason.INVALID_SPEC: Meaning(_Code.INVALID_ARGUMENT, "Fix the field the message names and apply again."),
    Reason.METADATA_UNAVAILABLE: Meaning(
        _Code.UNAVAILABLE, "etcd does not answer; running shards go on, elections wait. Bring etcd back."
    ),
    Reason.PERMISSION_DENIED: Meaning(
        _Code.PERMISSION_DENIED, "Use a certificate that may, or have its name added to the access lists of the group."
    ),
    Reason.SHUTTING_DOWN: Meaning(_Code.UNAVAILABLE, "The node is stopping; ask another one."),
}


class RpcError(NamedTuple):
    """What a servicer hands to `context.abort`."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class HintedRefusal:
    """A refusal as it arrived, with the routing hints beside it."""

    refused: Refused
    leader_node: str = ""
    leader_address: str = ""
    map_version: int = 0


def advice(reason: Reason) -> str:
    """Return one sentence on what to do next."""
    return MEANINGS[reason].advice


def to_rpc_error(
    refused: Refused, leader_node: str = "", leader_address: str = "", map_version: int = 0
) -> RpcError:
    """Return the status, the text and the metadata that say `refused` on gRPC; a long text is cut."""
    text = refused.message.encode(errors="backslashreplace")  # a manifest may hold half of a surrogate pair
    if len(text) > TEXT_BYTES_MAX:
        text = text[: TEXT_BYTES_MAX - 3] + b"..."
    refused = replace(refused, message=text.decode(errors="ignore"))
    proto = refusal_to_proto(refused, leader_node, leader_address, map_version)
    details = f"{refused.reason}: {refused.message}" if refused.message else str(refused.reason)
    return RpcError(MEANINGS[refused.reason].code, details, ((REFUSAL_KEY, proto.SerializeToString()),))


def refusal_from_rpc_error(error: grpc.RpcError) -> HintedRefusal | None:
    """Return the refusal inside a failed call, or None when the failure is gRPC's own."""
    trailing = getattr(error, "trailing_metadata", None)
    return refusal_from_metadata(trailing() if trailing is not None else None)


def refusal_from_metadata(metadata: Iterable[Any] | None) -> HintedRefusal | None:
    """Return the refusal inside trailing metadata, or None when there is none this build can read."""
    for key, value in metadata or ():
        if key != REFUSAL_KEY:
            continue
        try:
            proto = parse(common_pb2.Refusal, value)
            return HintedRefusal(
                refusal_from_proto(proto), proto.leader_node, proto.leader_address, proto.map_version
            )
        except RemoteViolation:
            return None
    return None


assert set(MEANINGS) == set(Reason), "every reason needs a status and advice"
