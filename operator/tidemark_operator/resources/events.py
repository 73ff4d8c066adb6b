"""The closed list of events (events.k8s.io/v1) that the operator tells about its objects.

Stays out: writing them, their rate, and the reasons of conditions (`conditions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

REPORTING_CONTROLLER = "tidemark.dev/operator"


class EventReason(StrEnum):
    NODE_PROVISIONED = "NodeProvisioned"
    NODE_JOINED = "NodeJoined"
    NODE_DRAINED = "NodeDrained"
    NODE_REMOVED = "NodeRemoved"
    NODE_RESTARTING = "NodeRestarting"
    ROLLOUT_STARTED = "RolloutStarted"
    ROLLOUT_COMPLETED = "RolloutCompleted"
    ROLLOUT_BLOCKED = "RolloutBlocked"
    NODE_READY_TIMEOUT = "NodeReadyTimeout"
    NODE_UNREACHABLE = "NodeUnreachable"
    NODE_LOST = "NodeLost"
    NODE_DISK_REPLACED = "NodeDiskReplaced"
    LEADERSHIPS_HANDED_OVER = "LeadershipsHandedOver"
    LEADERSHIP_BALANCED = "LeadershipBalanced"
    VOLUME_RESIZED = "VolumeResized"
    VOLUME_RESIZE_FAILED = "VolumeResizeFailed"
    CERTIFICATE_ISSUED = "CertificateIssued"
    CERTIFICATE_EXPIRING = "CertificateExpiring"
    CLOCK_SKEW = "ClockSkew"
    METADATA_STORE_UNREACHABLE = "MetadataStoreUnreachable"
    METADATA_STORE_RECOVERED = "MetadataStoreRecovered"
    SCALE_DOWN_BLOCKED = "ScaleDownBlocked"
    UPGRADE_BLOCKED = "UpgradeBlocked"
    INVALID_SPEC = "InvalidSpec"
    FOREIGN_OPERATOR = "ForeignOperator"
    FOREIGN_NODE = "ForeignNode"
    SHARDS_CREATED = "ShardsCreated"
    ADOPTED = "Adopted"
    DELETED = "Deleted"
    SHARD_LEADERLESS = "ShardLeaderless"
    DATA_LOSS_SUSPECTED = "DataLossSuspected"
    DOCUMENTS_DIVERGED = "DocumentsDiverged"
    NODES_DISCONNECTED = "NodesDisconnected"
    NODES_RECONNECTED = "NodesReconnected"
    DISK_FULL = "DiskFull"
    DISK_HAS_SPACE = "DiskHasSpace"
    LEADERS_RESTORED = "LeadersRestored"
    RANGES_CREATED = "RangesCreated"
    RING_CHANGED = "RingChanged"
    ANTI_ENTROPY_COMPLETED = "AntiEntropyCompleted"
    QUORUM_LOST = "QuorumLost"
    HINT_WINDOW_EXCEEDED = "HintWindowExceeded"
    NOT_SUPPORTED = "NotSupported"
    LEADER_ELECTED = "LeaderElected"
    ELECTION_FAILED = "ElectionFailed"
    PROJECTION_REPAIRED = "ProjectionRepaired"
    DIVERGENT_COPY_TRUNCATED = "DivergentCopyTruncated"
    QUEUED = "Queued"
    PLAN_READY = "PlanReady"
    APPROVED = "Approved"
    STARTED = "Started"
    SUSPENDED = "Suspended"
    RESUMED = "Resumed"
    COMPLETED = "Completed"
    MOVE_COMPLETED = "MoveCompleted"
    REJECTED = "Rejected"
    MOVE_FAILED = "MoveFailed"
    MOVE_ABORTED = "MoveAborted"
    STALLED = "Stalled"
    CANCELED = "Canceled"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


class EventAction(StrEnum):
    """What the operator was doing."""

    SCALE = "Scale"
    ROLLOUT = "Rollout"
    OBSERVE = "Observe"
    DRAIN = "Drain"
    RESIZE = "Resize"
    CERTIFICATES = "Certificates"
    VALIDATE = "Validate"
    RECONCILE = "Reconcile"
    ELECT = "Elect"
    RECONFIGURE = "Reconfigure"


class RestartReason(StrEnum):
    """Why a node is restarted; the note of NodeRestarting lists them."""

    REVISION_CHANGED = "RevisionChanged"
    MANUAL_RESTART = "ManualRestart"
    CERTIFICATE_ROTATION = "CertificateRotation"
    VOLUME_RESIZE = "VolumeResize"
    OPERATOR_CHANGED = "OperatorChanged"
    NOT_READY = "NotReady"


@dataclass(frozen=True, slots=True)
class EventRule:
    """One event of one kind; `warning` decides its type, `when` is for the reference."""

    reason: EventReason
    action: EventAction
    when: str
    warning: bool = False


E, A = EventReason, EventAction
NOT_SERVED = "this release does not serve the object: it checks and stores it"

EVENTS: dict[str, tuple[EventRule, ...]] = {
    "TidemarkCluster": (
        EventRule(E.NODE_PROVISIONED, A.SCALE, "a pod and its volume were created"),
        EventRule(E.NODE_JOINED, A.SCALE, "a new node answers"),
        EventRule(E.NODE_DRAINED, A.SCALE, "a node holds no copy any more"),
        EventRule(E.NODE_REMOVED, A.SCALE, "a node and, as the policy says, its volume were deleted"),
        EventRule(E.NODE_RESTARTING, A.ROLLOUT, "a pod is deleted to be created again; the note lists the reasons"),
        EventRule(E.ROLLOUT_STARTED, A.ROLLOUT, "nodes run another revision than the wanted one"),
        EventRule(E.ROLLOUT_COMPLETED, A.ROLLOUT, "every node runs the wanted revision"),
        EventRule(E.ROLLOUT_BLOCKED, A.ROLLOUT, "no node may be restarted for five minutes; names a shard", True),
        EventRule(E.NODE_READY_TIMEOUT, A.ROLLOUT, "a restarted node did not become ready in time", True),
        EventRule(E.NODE_UNREACHABLE, A.OBSERVE, "a node does not answer", True),
        EventRule(E.NODES_DISCONNECTED, A.OBSERVE, "nodes that are up do not hear each other", True),
        EventRule(E.NODES_RECONNECTED, A.OBSERVE, "every node hears those that it shares shards with again"),
        EventRule(E.NODE_LOST, A.OBSERVE, "the Kubernetes node of a node is gone for good", True),
        EventRule(E.NODE_DISK_REPLACED, A.OBSERVE, "a node came back with another disk", True),
        EventRule(E.DISK_FULL, A.OBSERVE, "disks of nodes are full; says whether appends are refused", True),
        EventRule(E.DISK_HAS_SPACE, A.OBSERVE, "no disk of a node is full any more"),
        EventRule(E.LEADERSHIPS_HANDED_OVER, A.DRAIN, "a node leads nothing any more; count and cause"),
        EventRule(E.LEADERSHIP_BALANCED, A.ELECT, "a shard's leader changed so that nodes lead equally many"),
        EventRule(E.VOLUME_RESIZED, A.RESIZE, "a volume was expanded"),
        EventRule(E.VOLUME_RESIZE_FAILED, A.RESIZE, "a volume could not be expanded", True),
        EventRule(E.CERTIFICATE_ISSUED, A.CERTIFICATES, "a node has a new certificate"),
        EventRule(E.CERTIFICATE_EXPIRING, A.CERTIFICATES, "a certificate was not renewed in time", True),
        EventRule(E.CLOCK_SKEW, A.OBSERVE, "the clock of a node differs by more than a minute from the median", True),
        EventRule(E.METADATA_STORE_UNREACHABLE, A.OBSERVE, "etcd does not answer", True),
        EventRule(E.METADATA_STORE_RECOVERED, A.OBSERVE, "etcd answers again"),
        EventRule(E.SCALE_DOWN_BLOCKED, A.VALIDATE, "a node that should go cannot go", True),
        EventRule(E.UPGRADE_BLOCKED, A.VALIDATE, "a version cannot be rolled out", True),
        EventRule(E.INVALID_SPEC, A.VALIDATE, "the spec holds what admission could not check", True),
        EventRule(E.FOREIGN_OPERATOR, A.VALIDATE, "the key prefix in etcd holds the metadata of another cluster", True),
        EventRule(E.FOREIGN_NODE, A.OBSERVE, "a node of another cluster answers at the address of a node", True),
    ),
    "LogGroup": (
        EventRule(E.SHARDS_CREATED, A.RECONCILE, "every shard has its record"),
        EventRule(E.ADOPTED, A.RECONCILE, "kept data of that name and shape belongs to the group again"),
        EventRule(E.DELETED, A.RECONCILE, "the data is deleted"),
        EventRule(E.SHARD_LEADERLESS, A.OBSERVE, "shards have no leader for 30 s; one per group, with a count", True),
        EventRule(E.LEADERS_RESTORED, A.OBSERVE, "every shard has a leader again"),
        EventRule(E.DISK_FULL, A.OBSERVE, "disks of members are full; says whether appends are refused", True),
        EventRule(E.DISK_HAS_SPACE, A.OBSERVE, "no disk of a member is full any more"),
        EventRule(E.DATA_LOSS_SUSPECTED, A.OBSERVE, "a member holds acknowledged records that its leader lacks", True),
        EventRule(E.DOCUMENTS_DIVERGED, A.OBSERVE, "a member holds other documents than its leader", True),
        EventRule(E.NOT_SUPPORTED, A.VALIDATE, NOT_SERVED, True),
        EventRule(E.INVALID_SPEC, A.VALIDATE, "the spec holds what admission could not check", True),
    ),
    "Keyspace": (
        EventRule(E.RANGES_CREATED, A.RECONCILE, "every range has its owners"),
        EventRule(E.ADOPTED, A.RECONCILE, "kept data of that name and shape belongs to the keyspace again"),
        EventRule(E.DELETED, A.RECONCILE, "the ranges are deleted"),
        EventRule(E.RING_CHANGED, A.RECONCILE, "moves of ranges to other owners have ended"),
        EventRule(E.ANTI_ENTROPY_COMPLETED, A.RECONCILE, "every range was compared over its owners"),
        EventRule(E.INVALID_SPEC, A.VALIDATE, "the spec holds what admission could not check", True),
        EventRule(E.QUORUM_LOST, A.OBSERVE, "partitions have fewer owners up than their quorums need", True),
        EventRule(E.HINT_WINDOW_EXCEEDED, A.OBSERVE, "an owner was away longer than hints are kept", True),
    ),
    "Shard": (
        EventRule(E.LEADER_ELECTED, A.ELECT, "an epoch began"),
        EventRule(E.ELECTION_FAILED, A.ELECT, "an election found no majority", True),
        EventRule(E.PROJECTION_REPAIRED, A.OBSERVE, "somebody else had changed the object", True),
        EventRule(E.DIVERGENT_COPY_TRUNCATED, A.ELECT, "a copy held entries that no majority had", True),
    ),
    "Reconfiguration": (
        EventRule(E.QUEUED, A.RECONFIGURE, "another one runs"),
        EventRule(E.PLAN_READY, A.RECONFIGURE, "the plan is in the status"),
        EventRule(E.APPROVED, A.RECONFIGURE, "the plan may be carried out"),
        EventRule(E.STARTED, A.RECONFIGURE, "the first move starts"),
        EventRule(E.SUSPENDED, A.RECONFIGURE, "spec.suspend was set"),
        EventRule(E.RESUMED, A.RECONFIGURE, "spec.suspend was taken back"),
        EventRule(E.MOVE_COMPLETED, A.RECONFIGURE, "a move is done; one event with a growing count"),
        EventRule(E.COMPLETED, A.RECONFIGURE, "every move is done"),
        EventRule(E.REJECTED, A.RECONFIGURE, "no plan could be made", True),
        EventRule(E.MOVE_FAILED, A.RECONFIGURE, "a move was given up", True),
        EventRule(E.MOVE_ABORTED, A.RECONFIGURE, "a move that was not committed was taken back", True),
        EventRule(E.STALLED, A.RECONFIGURE, "no move can start", True),
        EventRule(E.CANCELED, A.RECONFIGURE, "spec.cancel was set, or the object was deleted", True),
        EventRule(E.DEADLINE_EXCEEDED, A.RECONFIGURE, "spec.activeDeadlineSeconds are over", True),
    ),
}
