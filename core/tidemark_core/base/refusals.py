"""The closed list of expected refusals: values that are answered, never exceptions.

Each has one gRPC status and one piece of advice for the user; the table is in `tidemark_wire.status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a request was refused.  The value is what goes over the wire and into `--json`."""

    NOT_LEADER = "NOT_LEADER"                    # ask the hinted leader
    UNKNOWN_GROUP = "UNKNOWN_GROUP"              # no log group of that name in the shard map
    GROUP_REPLACED = "GROUP_REPLACED"            # the name stands for another group, or keyspace, than was asked for
    UNKNOWN_KEYSPACE = "UNKNOWN_KEYSPACE"        # no keyspace of that name in the shard map
    UNKNOWN_SHARD = "UNKNOWN_SHARD"              # this node has no such shard
    NOT_MEMBER = "NOT_MEMBER"                    # not a member, or another incarnation of one
    NO_REPLICA = "NO_REPLICA"                    # the replica was deleted here, or is being seeded: it does not vote
    STALE_EPOCH = "STALE_EPOCH"                  # the sender's epoch is older than ours
    STALE_ELECTION = "STALE_ELECTION"            # same epoch, other election id
    ALREADY_LEADER = "ALREADY_LEADER"            # asked to be fenced in the epoch that it leads
    GAP = "GAP"                                  # the append does not touch our head
    MISMATCH = "MISMATCH"                        # same offset, other entry
    WRONG_STATE = "WRONG_STATE"                  # the role or phase does not allow it now
    BELOW_COMMIT = "BELOW_COMMIT"                # truncation would cut committed entries
    TRANSFERRING = "TRANSFERRING"                # leadership is being handed over; retry
    OVERLOADED = "OVERLOADED"                    # a bounded queue is full; retry after the hint
    DISK_FULL = "DISK_FULL"                      # no space to write; reads go on
    CORRUPT = "CORRUPT"                          # the stored entry fails its checksum
    BATCH_TOO_LARGE = "BATCH_TOO_LARGE"          # over the group's limit
    INVALID_BATCH = "INVALID_BATCH"              # empty, bad checksum, bad counts, no key where keys are required
    SEQUENCE_GAP = "SEQUENCE_GAP"                # resend from `expected`
    SEQUENCE_TOO_OLD = "SEQUENCE_TOO_OLD"        # the outcome is no longer remembered
    PRODUCER_UNKNOWN = "PRODUCER_UNKNOWN"        # forgotten, or never heard of: go on under another id (L25)
    PRODUCER_FENCED = "PRODUCER_FENCED"          # final: a newer claim, with fence `expected`, has the producer (L26)
    FENCE_TOO_LOW = "FENCE_TOO_LOW"              # claim the producer with a fence above `expected` (L26)
    RECORD_CAME_FIRST = "RECORD_CAME_FIRST"      # final: another one lies at `expect` or behind; see L29 for `expected`
    QUORUM_TIMEOUT = "QUORUM_TIMEOUT"            # outcome unknown: ask again with the same (producer, sequence)
    ROLLED_BACK = "ROLLED_BACK"                  # final: in nobody's log; `expected` is the rollback record's offset
    PRODUCER_ROLLED_BACK = "PRODUCER_ROLLED_BACK"  # an earlier batch was, at `expected`: send `resume_after` (L22)
    ROLLING_BACK = "ROLLING_BACK"                # a rollback is being written; retry
    BEHIND = "BEHIND"                            # this node has not confirmed that far yet; retry
    TRIMMED = "TRIMMED"                          # retention has removed it
    TOO_MANY_SUBSCRIPTIONS = "TOO_MANY_SUBSCRIPTIONS"  # the shard holds as many names as it may; delete some
    BATCH_PASSED = "BATCH_PASSED"                # final: the sink has come to a later batch, or marked another one (W1)
    PART_LEFT_OUT = "PART_LEFT_OUT"              # final: a part has joined the batch that its mark leaves out (W2)
    TOO_MANY_SINKS = "TOO_MANY_SINKS"            # the sinks of the shard have too many ends; delete some (W5)
    TOO_MANY_PINS = "TOO_MANY_PINS"              # the shard holds as many as it may, or as one owner may (U70c)
    NOT_HELD = "NOT_HELD"                        # other members keep the payloads: read by single copy delivery
    WRONG_KIND = "WRONG_KIND"                    # documents asked of a log, or records of a log sent to documents
    NOT_PINNED = "NOT_PINNED"                    # final: the pin is over, or its name is active with another cut (U72)
    LEADER_CANNOT_LEAVE = "LEADER_CANNOT_LEAVE"  # transfer leadership first (O36)
    ALREADY_MEMBER = "ALREADY_MEMBER"            # the new node is in the ensemble
    NODE_UNAVAILABLE = "NODE_UNAVAILABLE"        # the named node is unknown or down
    BELOW_MINIMUM = "BELOW_MINIMUM"              # contract below three copies needs force
    LAST_COPY = "LAST_COPY"                      # the member may hold the last copy of acknowledged records (K14c)
    RECONFIGURING = "RECONFIGURING"              # an election or another change is running (O27)
    NO_LEADER = "NO_LEADER"                      # nobody leads the shard now
    ABORTED = "ABORTED"                          # the change was given up; nothing changed
    NEEDS_UPGRADE = "NEEDS_UPGRADE"              # a node of an older release, which the message names, cannot do it
    INVALID_SPEC = "INVALID_SPEC"                # a manifest or argument; the message names the field
    METADATA_UNAVAILABLE = "METADATA_UNAVAILABLE"  # etcd does not answer; elections wait
    PERMISSION_DENIED = "PERMISSION_DENIED"      # the caller's certificate does not allow it
    SHUTTING_DOWN = "SHUTTING_DOWN"


@dataclass(frozen=True, slots=True)
class Refused:
    """A typed no.  `message` names the field or fact; the numbers are hints and -1 where they say nothing."""

    reason: Reason
    message: str = ""
    epoch: int = -1
    expected: int = -1
    retry_after_ms: int = -1


RETRIED = frozenset({
    Reason.NOT_LEADER, Reason.UNKNOWN_SHARD, Reason.NOT_MEMBER, Reason.STALE_EPOCH, Reason.WRONG_STATE,
    Reason.TRANSFERRING, Reason.OVERLOADED, Reason.DISK_FULL, Reason.RECONFIGURING, Reason.NO_LEADER,
    Reason.SHUTTING_DOWN, Reason.NODE_UNAVAILABLE, Reason.BEHIND, Reason.ROLLING_BACK, Reason.NO_REPLICA,
    # The map decides whether a group is there: the node's may be the older one.
    Reason.UNKNOWN_GROUP, Reason.GROUP_REPLACED,
})
"""The request is not at fault: a client sends the same again, here or to another node."""
