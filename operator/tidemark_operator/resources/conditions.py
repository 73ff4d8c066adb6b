"""The closed list of condition types and reasons: which kind has which, and which reason goes with which status.

A condition answers one question about one object; its reason is a constant of `ConditionReason` and nothing else.
The reference page is generated from here, and whoever writes conditions checks them here (`check_condition`).
Stays out: when a condition holds (the status modules), and events (`events`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self


class ConditionType(StrEnum):
    """What a condition is about.  `meaning` is what status True says."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member

    READY = "Ready", "the object is as its spec asks"
    AVAILABLE = "Available", "it serves: every shard has a leader, every partition has its quorums"
    FULLY_REPLICATED = "FullyReplicated", "every copy is up and in sync"
    QUORUM_REACHABLE = "QuorumReachable", "enough members, in enough zones, are up to confirm quorum appends"
    METADATA_STORE_REACHABLE = "MetadataStoreReachable", "etcd answers the operator"
    CERTIFICATES_VALID = "CertificatesValid", "every certificate that is asked for is issued and valid"
    PLACEMENT_SATISFIED = "PlacementSatisfied", "the copies stand where the placement rules want them"
    STRICT_QUORUM = "StrictQuorum", "a read sees every write that was acknowledged before it"
    RECONCILING = "Reconciling", "the operator is still making the object as its spec asks"
    STALLED = "Stalled", "the operator cannot go on by itself"
    DATA_LOSS_SUSPECTED = (
        "DataLossSuspected",
        "a member holds acknowledged records that its leader lacks, most disks are lost, or disks are older copies")
    DOCUMENTS_DIVERGED = "DocumentsDiverged", "members that folded equally far hold other documents"
    CLOCK_SKEW = "ClockSkew", "the clock of a node differs by more than a minute from the median of all nodes"
    NODES_DISCONNECTED = "NodesDisconnected", "nodes that are up do not hear each other"
    GC_BLOCKED = "GCBlocked", "what was removed is kept for longer than the grace; the message says for whom"
    DISK_FULL = "DiskFull", "nodes have full disks; the reason says whether appends are refused"
    PAUSED = "Paused", "work on the spec rests because an annotation says so; elections go on"
    SCALE_DOWN_BLOCKED = "ScaleDownBlocked", "nodes that should go cannot go"
    UPGRADE_BLOCKED = "UpgradeBlocked", "nodes that should run another version cannot be restarted"
    VALIDATED = "Validated", "a plan was made from the spec"
    APPROVED = "Approved", "the plan may be carried out"
    SUCCEEDED = "Succeeded", "the act ended as it was asked for"


class ConditionReason(StrEnum):
    """Why a condition has its status."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Self:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member

    # --- any kind
    NOT_RECONCILED = "NotReconciled", "the operator has not looked at the object yet"
    NOT_SUPPORTED = "NotSupported", "this release, or this runtime, does not carry it out"
    RECONCILED = "Reconciled", "there is nothing left to do"
    PROGRESSING = "Progressing", "work goes on"
    STALLED = "Stalled", "see condition Stalled"
    PAUSED = "Paused", "see condition Paused"
    PAUSED_BY_ANNOTATION = "PausedByAnnotation", "tidemark.dev/pause-reconciliation is true"
    INVALID_SPEC = "InvalidSpec", "the spec holds what admission could not check"
    METADATA_STORE_UNREACHABLE = "MetadataStoreUnreachable", "etcd does not answer, so nothing is known"
    CLUSTER_NOT_FOUND = "ClusterNotFound", "spec.clusterRef names no cluster"
    DELETING = "Deleting", "the object is being deleted"
    # --- copies, leaders, quorums
    ALL_COPIES_IN_SYNC = "AllCopiesInSync", "every copy is up and in sync"
    COPIES_MISSING = "CopiesMissing", "copies are on nodes that are down, have another disk, or are unheard by leaders"
    COPIES_CATCHING_UP = "CopiesCatchingUp", "copies are being filled"
    COPY_MISSING = "CopyMissing", "a copy does not exist"
    COPY_CATCHING_UP = "CopyCatchingUp", "a copy is being filled"
    COPY_UNREACHABLE = "CopyUnreachable", "a copy is on a node that is down, has another disk, or is unheard"
    LEADER_ELECTED = "LeaderElected", "the shard has a leader that is up"
    LEADERS_ELECTED = "LeadersElected", "every shard has a leader that is up"
    ELECTING = "Electing", "an election is under way"
    SHARDS_LEADERLESS = "ShardsLeaderless", "shards have no leader"
    DATA_LOSS_SUSPECTED = "DataLossSuspected", "see condition DataLossSuspected"
    TRUNCATION_REFUSED = "TruncationRefused", "a member refuses to cut its log below its commit"
    DISKS_LOST = "DisksLost", "a majority of the disks of a shard is lost, and it can have no leader"
    DISKS_OLDER = "DisksOlder", "nodes run on older copies of their disks, and too few members hold everything"
    DIGESTS_DIFFER = "DigestsDiffer", "a leader compared digests of documents, and a member has another one"
    NODES_DISCONNECTED = "NodesDisconnected", "see condition NodesDisconnected"
    LINK_SILENT = "LinkSilent", "one node gets no answer of another one that the operator reaches"
    DISK_FULL = "DiskFull", "see condition DiskFull"
    APPENDS_REFUSED = "AppendsRefused", "shards refuse appends: their leader, or too many members, have no space"
    DISKS_FULL = "DisksFull", "disks of nodes are full, and every shard takes appends"
    NO_QUORUM = "NoQuorum", "no majority of the members answers the election"
    METADATA_LOST = "MetadataLost", "the record of the shard is gone from the metadata store"
    QUORUM_AVAILABLE = "QuorumAvailable", "a quorum of members is up"
    QUORUMS_AVAILABLE = "QuorumsAvailable", "everything hosted is served"
    NOT_ENOUGH_MEMBERS = "NotEnoughMembers", "fewer members are up than the synchro quorum needs"
    NOT_ENOUGH_ZONES = "NotEnoughZones", "the members that are up stand in fewer zones than synchroZones asks for"
    PARTITIONS_BELOW_QUORUM = "PartitionsBelowQuorum", "partitions have fewer owners up than their quorums need"
    HINTS_PENDING = "HintsPending", "stand-ins hold writes for owners that were away"
    # --- placement
    DOMAINS_DISTINCT = "DomainsDistinct", "no two copies of a shard share a failure domain"
    NOT_ENOUGH_DOMAINS = "NotEnoughDomains", "there are fewer failure domains than copies"
    NOT_ENOUGH_NODES = "NotEnoughNodes", "there are fewer eligible nodes than copies"
    POOL_NOT_FOUND = "PoolNotFound", "placement.nodePools names a pool that the cluster does not have"
    TOPOLOGY_LABEL_MISSING = "TopologyLabelMissing", "Kubernetes nodes lack the label failureDomain.topologyKey"
    # --- the nodes of a cluster
    CLOCKS_DISAGREE = "ClocksDisagree", "clocks of nodes differ by more than a minute"
    NODES_NOT_READY = "NodesNotReady", "nodes that should serve do not"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress", "nodes are restarted one after the other for a new revision"
    SCALING_IN_PROGRESS = "ScalingInProgress", "nodes join or leave"
    VOLUME_RESIZING = "VolumeResizing", "volumes are being expanded"
    NOTHING_HOSTED = "NothingHosted", "the cluster is up and has no shards"
    NO_NODES = "NoNodes", "no node is up"
    NODE_RESEEDING = "NodeReseeding", "a node lost its disk and is being filled again"
    NODE_LOST = "NodeLost", "the Kubernetes node of a node is gone for good"
    NODE_READY_TIMEOUT = "NodeReadyTimeout", "a restarted node did not become ready in update.nodeReadyTimeoutSeconds"
    IMAGE_NOT_ALLOWED = "ImageNotAllowed", "spec.image names an image that the operator's installer does not allow"
    IMAGE_PULL_FAILED = "ImagePullFailed", "the image of a node cannot be pulled"
    UNSCHEDULABLE = "Unschedulable", "a pod finds no Kubernetes node"
    VOLUME_EXPANSION_UNSUPPORTED = "VolumeExpansionUnsupported", "the storage class does not allow larger volumes"
    ADMISSION_DENIED = "AdmissionDenied", "the API server refused an object of the operator"
    QUOTA_EXCEEDED = "QuotaExceeded", "a resource quota refuses an object of the operator"
    # --- etcd and certificates
    CONNECTED = "Connected", "etcd answers"
    CONNECTION_FAILED = "ConnectionFailed", "no endpoint answers"
    NO_LEADER = "NoLeader", "etcd has no leader"
    AUTHENTICATION_FAILED = "AuthenticationFailed", "etcd refuses the credentials"
    TLS_FAILED = "TLSFailed", "no TLS connection to etcd can be made"
    CLUSTER_ID_MISMATCH = "ClusterIDMismatch", "the key prefix in etcd, or a node, belongs to another cluster"
    METADATA_STALE = "MetadataStale", (
        "nodes promised what etcd does not know: it was lost or set back, and `tidemark recover-metadata` is needed")
    OUT_OF_SPACE = "OutOfSpace", "etcd refuses writes: its quota is used up"
    SECRET_NOT_LABELLED = "SecretNotLabelled", (
        "no Secret of the name has the label that lets the operator read it for the cluster's etcd")
    ISSUED = "Issued", "every certificate is valid"
    DISABLED = "Disabled", "no certificate is asked for"
    EXPIRING_SOON = "ExpiringSoon", "a certificate is in its renewal time and was not renewed"
    EXPIRED = "Expired", "a certificate has expired"
    ISSUER_NOT_READY = "IssuerNotReady", "the issuer has not issued a certificate yet"
    SECRET_INVALID = "SecretInvalid", "a secret that should hold a certificate does not"
    # --- scaling and upgrades that wait
    DISRUPTION_UNDER_WAY = "DisruptionUnderWay", "another disruptive act of the cluster is under way; one at a time"
    NOT_SCALING = "NotScaling", "no node is to go"
    FACTOR_EXCEEDS_NODES = "FactorExceedsNodes", "fewer nodes than the largest factor would be left"
    NO_TARGET_FOR_COPIES = "NoTargetForCopies", "no other node may take the copies"
    UNDER_REPLICATED = "UnderReplicated", "copies are missing, and another one must not go"
    NOT_DRAINED = "NotDrained", "the node still holds copies, and scaleDown.policy is DeleteDrainedOnly"
    NOT_UPGRADING = "NotUpgrading", "no node is to be restarted"
    VERSION_SKEW = "VersionSkew", "nodes would be more than one version apart"
    DOWNGRADE_UNSUPPORTED = "DowngradeUnsupported", "what is stored needs the newer version"
    OUTSIDE_MAINTENANCE_WINDOW = "OutsideMaintenanceWindow", "the next maintenance window is waited for"
    # --- log groups and keyspaces
    ALL_SHARDS_ONLINE = "AllShardsOnline", "every shard is served with the declared factor"
    CREATING_SHARDS = "CreatingShards", "shards do not exist yet"
    SHARDS_NOT_ONLINE = "ShardsNotOnline", "shards have no leader"
    FACTOR_CHANGE_PENDING = "FactorChangePending", "the declared factor or quorums are not in force everywhere"
    FACTOR_CHANGE_IN_PROGRESS = "FactorChangeInProgress", "a Reconfiguration brings the declared factor in force"
    PAYLOAD_COPIES_PENDING = "PayloadCopiesPending", "shards keep another number of payload copies than is declared"
    ADOPTION_MISMATCH = "AdoptionMismatch", "kept data of that name has another shape"
    RING_STABLE = "RingStable", "every range has its declared owners"
    CREATING_RING = "CreatingRing", "ranges have no owners yet"
    RANGES_MOVING = "RangesMoving", "ranges move to other owners"
    NODES_AWAY = "NodesAway", "owners, or nodes that may keep hints, are away"
    ROUND_UNANSWERED = "RoundUnanswered", "nodes deliver hints, or owners take what others hold"
    QUORUMS_OVERLAP = "QuorumsOverlap", (
        "readQuorum + writeQuorum and 2 * writeQuorum exceed replicas, counting owners only")
    EVENTUAL_BY_CHOICE = "EventualByChoice", "consistency is Eventual"
    SLOPPY_BY_CHOICE = "SloppyByChoice", "quorumMode is Sloppy: stand-ins count for a write"
    # --- reconfigurations
    QUEUED = "Queued", "another Reconfiguration of the cluster runs"
    PLANNING = "Planning", "the plan is being made"
    AWAITING_APPROVAL = "AwaitingApproval", "spec.approvedPlan does not name the plan yet"
    PROVISIONING = "Provisioning", "a node is being created"
    MOVING = "Moving", "moves run"
    SUSPENDED = "Suspended", "spec.suspend is true: no other move starts"
    ABORTING = "Aborting", "moves that are not committed are given up, the others end"
    CLEANING_UP = "CleaningUp", "what is no longer needed is removed"
    FINISHED = "Finished", "see condition Succeeded"
    PLAN_ACCEPTED = "PlanAccepted", "the plan can be carried out"
    NODE_NOT_FOUND = "NodeNotFound", "the spec names a node that does not exist"
    TARGET_NOT_ELIGIBLE = "TargetNotEligible", "the named node must not take the copies"
    FACTOR_MISMATCH = "FactorMismatch", "the factor is not the declared one, or more than one step away"
    INSUFFICIENT_CAPACITY = "InsufficientCapacity", "no eligible node is left for a copy"
    TARGETS_NOTHING = "TargetsNothing", "the scope matches nothing"
    AUTOMATIC_APPROVAL = "AutomaticApproval", "spec.approval is Automatic"
    APPROVED_BY_USER = "ApprovedByUser", "spec.approvedPlan names the plan, or one of which it is a part"
    WAITING_FOR_APPROVAL = "WaitingForApproval", "spec.approvedPlan is not set"
    PLAN_CHANGED = "PlanChanged", "spec.approvedPlan names another plan, of which this is not a part"
    COMPLETED = "Completed", "every move is done"
    NOTHING_TO_DO = "NothingToDo", "everything was as asked already"
    CANCELED = "Canceled", "spec.cancel was set, or the object was deleted"
    DEADLINE_EXCEEDED = "DeadlineExceeded", "spec.activeDeadlineSeconds are over"
    MOVES_FAILED = "MovesFailed", "moves were given up after several attempts"
    REJECTED = "Rejected", "no plan could be made, see condition Validated"
    SOURCE_RETURNED = "SourceReturned", "the lost node came back before its copies had moved"
    NODE_UNAVAILABLE = "NodeUnavailable", "a node that the moves need is down"
    MOVES_FAILING = "MovesFailing", "every open move waits after a failure"
    CAPACITY_LOW = "CapacityLow", "a target lacks space"


T, R = ConditionType, ConditionReason


@dataclass(frozen=True, slots=True)
class ConditionRule:
    """One condition of one kind: the reasons that go with each status.  With `abnormal`, True is the bad news.

    One that is `optional` is written only while it is true; every other is there from the first status on.
    """

    type: ConditionType
    true: tuple[ConditionReason, ...]
    false: tuple[ConditionReason, ...]
    unknown: tuple[ConditionReason, ...] = ()
    abnormal: bool = False
    optional: bool = False

    def allows(self, status: bool | None, reason: str) -> bool:
        if status is None:
            return reason in (*self.unknown, R.NOT_RECONCILED)
        return reason in (self.true if status else self.false)


def _progress(ready: ConditionRule, stalled: Iterable[ConditionReason]) -> tuple[ConditionRule, ...]:
    """Return Ready with the two conditions that explain it: why it is not reached yet, and why it cannot be."""
    stalled = tuple(stalled)
    return (
        ready,
        ConditionRule(T.RECONCILING, ready.false, (R.RECONCILED, *stalled), ready.unknown, abnormal=True),
        ConditionRule(T.STALLED, stalled, (R.RECONCILED, R.PROGRESSING), ready.unknown, abnormal=True),
        ConditionRule(T.PAUSED, (R.PAUSED_BY_ANNOTATION,), (), abnormal=True, optional=True),
    )


_DATA_LOSS = ConditionRule(
    T.DATA_LOSS_SUSPECTED, (R.TRUNCATION_REFUSED, R.DISKS_LOST), (), abnormal=True, optional=True)
_DIVERGED = ConditionRule(T.DOCUMENTS_DIVERGED, (R.DIGESTS_DIFFER,), (), abnormal=True, optional=True)
_DISCONNECTED = ConditionRule(T.NODES_DISCONNECTED, (R.LINK_SILENT,), (), abnormal=True, optional=True)
_DISK_FULL = ConditionRule(T.DISK_FULL, (R.APPENDS_REFUSED, R.DISKS_FULL), (), abnormal=True, optional=True)
_UNSEEN = (R.METADATA_STORE_UNREACHABLE,)
_ORPHAN = (R.CLUSTER_NOT_FOUND, R.METADATA_STORE_UNREACHABLE)

_CLUSTER = (
    *_progress(
        ConditionRule(
            T.READY, (R.RECONCILED,),
            (R.NODES_NOT_READY, R.ROLLOUT_IN_PROGRESS, R.SCALING_IN_PROGRESS, R.VOLUME_RESIZING, R.DATA_LOSS_SUSPECTED,
             R.NODES_DISCONNECTED, R.DISK_FULL, R.CLUSTER_ID_MISMATCH, R.STALLED, R.PAUSED),
            _UNSEEN),
        (R.INVALID_SPEC, R.NODE_READY_TIMEOUT, R.IMAGE_PULL_FAILED, R.UNSCHEDULABLE, R.VOLUME_EXPANSION_UNSUPPORTED,
         R.ADMISSION_DENIED, R.QUOTA_EXCEEDED, R.METADATA_STALE, R.CLUSTER_ID_MISMATCH, R.IMAGE_NOT_ALLOWED,
         R.SECRET_NOT_LABELLED)),
    ConditionRule(
        T.DATA_LOSS_SUSPECTED, (*_DATA_LOSS.true, R.DISKS_OLDER), (), abnormal=True, optional=True),
    ConditionRule(T.CLOCK_SKEW, (R.CLOCKS_DISAGREE,), (), abnormal=True, optional=True),
    _DISCONNECTED,
    _DISK_FULL,
    ConditionRule(
        T.AVAILABLE, (R.QUORUMS_AVAILABLE, R.NOTHING_HOSTED),
        (R.SHARDS_LEADERLESS, R.PARTITIONS_BELOW_QUORUM, R.NO_NODES), _UNSEEN),
    ConditionRule(
        T.FULLY_REPLICATED, (R.ALL_COPIES_IN_SYNC,),
        (R.COPIES_MISSING, R.COPIES_CATCHING_UP, R.NODE_RESEEDING, R.NODE_LOST), _UNSEEN),
    ConditionRule(
        T.METADATA_STORE_REACHABLE, (R.CONNECTED,),
        (R.CONNECTION_FAILED, R.NO_LEADER, R.AUTHENTICATION_FAILED, R.TLS_FAILED, R.CLUSTER_ID_MISMATCH,
         R.METADATA_STALE, R.OUT_OF_SPACE)),
    ConditionRule(
        T.CERTIFICATES_VALID, (R.ISSUED, R.DISABLED),
        (R.EXPIRING_SOON, R.EXPIRED, R.ISSUER_NOT_READY, R.SECRET_INVALID, R.NOT_SUPPORTED)),
    ConditionRule(
        T.PLACEMENT_SATISFIED, (R.DOMAINS_DISTINCT,), (R.NOT_ENOUGH_DOMAINS, R.TOPOLOGY_LABEL_MISSING), _UNSEEN),
    ConditionRule(
        T.SCALE_DOWN_BLOCKED,
        (R.FACTOR_EXCEEDS_NODES, R.NO_TARGET_FOR_COPIES, R.UNDER_REPLICATED, R.DISRUPTION_UNDER_WAY, R.NOT_DRAINED,
         R.CANCELED, R.DEADLINE_EXCEEDED, R.MOVES_FAILED, R.REJECTED, R.NOT_SUPPORTED),
        (R.NOT_SCALING, R.PROGRESSING), _UNSEEN, abnormal=True),
    ConditionRule(
        T.UPGRADE_BLOCKED,
        (R.UNDER_REPLICATED, R.DISRUPTION_UNDER_WAY, R.VERSION_SKEW, R.DOWNGRADE_UNSUPPORTED,
         R.OUTSIDE_MAINTENANCE_WINDOW, R.NOT_SUPPORTED),
        (R.NOT_UPGRADING, R.PROGRESSING), _UNSEEN, abnormal=True),
)

_LOG_GROUP = (
    *_progress(
        ConditionRule(
            T.READY, (R.ALL_SHARDS_ONLINE,),
            (R.CREATING_SHARDS, R.SHARDS_NOT_ONLINE, R.FACTOR_CHANGE_PENDING, R.FACTOR_CHANGE_IN_PROGRESS,
             R.PAYLOAD_COPIES_PENDING, R.DATA_LOSS_SUSPECTED, R.NODES_DISCONNECTED, R.DISK_FULL, R.DELETING, R.STALLED,
             R.PAUSED, R.NOT_SUPPORTED),
            _ORPHAN),
        (R.INVALID_SPEC, R.CLUSTER_NOT_FOUND, R.ADOPTION_MISMATCH, R.NOT_ENOUGH_NODES, R.NOT_SUPPORTED)),
    _DATA_LOSS,
    _DIVERGED,
    _DISCONNECTED,
    _DISK_FULL,
    ConditionRule(
        T.AVAILABLE, (R.LEADERS_ELECTED,), (R.SHARDS_LEADERLESS, R.ELECTING, R.CREATING_SHARDS, R.NOT_SUPPORTED),
        _ORPHAN),
    ConditionRule(
        T.FULLY_REPLICATED, (R.ALL_COPIES_IN_SYNC,), (R.COPIES_MISSING, R.COPIES_CATCHING_UP, R.CREATING_SHARDS),
        (*_ORPHAN, R.NOT_SUPPORTED)),
    ConditionRule(
        T.QUORUM_REACHABLE, (R.QUORUM_AVAILABLE,), (R.NOT_ENOUGH_MEMBERS, R.NOT_ENOUGH_ZONES, R.CREATING_SHARDS),
        (*_ORPHAN, R.NOT_SUPPORTED)),
    ConditionRule(
        T.PLACEMENT_SATISFIED, (R.DOMAINS_DISTINCT,),
        (R.NOT_ENOUGH_DOMAINS, R.NOT_ENOUGH_NODES, R.POOL_NOT_FOUND, R.CREATING_SHARDS),
        (*_ORPHAN, R.NOT_SUPPORTED)),
)

_KEYSPACE = (
    *_progress(
        ConditionRule(
            T.READY, (R.RING_STABLE,),
            (R.CREATING_RING, R.PARTITIONS_BELOW_QUORUM, R.RANGES_MOVING, R.FACTOR_CHANGE_PENDING, R.DELETING,
             R.STALLED, R.PAUSED), _ORPHAN),
        (R.INVALID_SPEC, R.CLUSTER_NOT_FOUND, R.ADOPTION_MISMATCH, R.NOT_ENOUGH_NODES)),
    ConditionRule(T.AVAILABLE, (R.QUORUMS_AVAILABLE,), (R.PARTITIONS_BELOW_QUORUM, R.CREATING_RING), _ORPHAN),
    ConditionRule(
        T.FULLY_REPLICATED, (R.ALL_COPIES_IN_SYNC,),
        (R.COPIES_MISSING, R.COPIES_CATCHING_UP, R.HINTS_PENDING, R.CREATING_RING), _ORPHAN),
    ConditionRule(T.STRICT_QUORUM, (R.QUORUMS_OVERLAP,), (R.EVENTUAL_BY_CHOICE, R.SLOPPY_BY_CHOICE)),
    ConditionRule(
        T.GC_BLOCKED, (R.NODES_AWAY, R.RANGES_MOVING, R.ROUND_UNANSWERED, R.PROGRESSING), (), abnormal=True,
        optional=True),
    ConditionRule(
        T.PLACEMENT_SATISFIED, (R.DOMAINS_DISTINCT,),
        (R.NOT_ENOUGH_DOMAINS, R.NOT_ENOUGH_NODES, R.POOL_NOT_FOUND, R.CREATING_RING), _ORPHAN),
)

_SHARD = (
    ConditionRule(T.AVAILABLE, (R.LEADER_ELECTED,), (R.ELECTING, R.NO_QUORUM, R.METADATA_LOST)),
    ConditionRule(
        T.FULLY_REPLICATED, (R.ALL_COPIES_IN_SYNC,), (R.COPY_MISSING, R.COPY_CATCHING_UP, R.COPY_UNREACHABLE)),
    ConditionRule(T.QUORUM_REACHABLE, (R.QUORUM_AVAILABLE,), (R.NOT_ENOUGH_MEMBERS, R.NOT_ENOUGH_ZONES)),
)

_STAGES = (
    R.QUEUED, R.PLANNING, R.AWAITING_APPROVAL, R.PROVISIONING, R.MOVING, R.SUSPENDED, R.ABORTING, R.CLEANING_UP)

_RECONFIGURATION = (
    ConditionRule(
        T.VALIDATED, (R.PLAN_ACCEPTED,),
        (R.NODE_NOT_FOUND, R.TARGET_NOT_ELIGIBLE, R.FACTOR_MISMATCH, R.NOT_ENOUGH_DOMAINS, R.INSUFFICIENT_CAPACITY,
         R.TARGETS_NOTHING, R.SHARDS_LEADERLESS, R.INVALID_SPEC, R.CLUSTER_NOT_FOUND, R.NOT_SUPPORTED),
        (R.QUEUED, R.PLANNING)),
    ConditionRule(
        T.APPROVED, (R.AUTOMATIC_APPROVAL, R.APPROVED_BY_USER), (R.WAITING_FOR_APPROVAL, R.PLAN_CHANGED),
        (R.QUEUED, R.PLANNING)),
    ConditionRule(
        T.SUCCEEDED, (R.COMPLETED, R.NOTHING_TO_DO),
        (R.CANCELED, R.DEADLINE_EXCEEDED, R.MOVES_FAILED, R.REJECTED, R.SOURCE_RETURNED), _STAGES),
    ConditionRule(T.RECONCILING, _STAGES, (R.FINISHED,), abnormal=True),
    ConditionRule(
        T.STALLED,
        (R.UNDER_REPLICATED, R.PAYLOAD_COPIES_PENDING, R.DISRUPTION_UNDER_WAY, R.NODE_UNAVAILABLE, R.MOVES_FAILING,
         R.CAPACITY_LOW, R.METADATA_STORE_UNREACHABLE, R.INVALID_SPEC, R.CLUSTER_NOT_FOUND),
        (R.PROGRESSING, R.FINISHED), abnormal=True),
)

CONDITIONS: dict[str, tuple[ConditionRule, ...]] = {
    "TidemarkCluster": _CLUSTER,
    "LogGroup": _LOG_GROUP,
    "Keyspace": _KEYSPACE,
    "Shard": _SHARD,
    "Reconfiguration": _RECONFIGURATION,
}


def check_condition(kind: str, type_: str, status: bool | None, reason: str) -> None:
    """Raise ValueError unless the list lets `kind` have this condition with this status for this reason."""
    rule = next((rule for rule in CONDITIONS[kind] if rule.type == type_), None)
    if rule is None or not rule.allows(status, reason):
        raise ValueError(f"{kind}: condition {type_}={status} with reason {reason} is not on the list")


def required_types(kind: str) -> list[ConditionType]:
    """Return the conditions that every status of `kind` shows, in order."""
    return [rule.type for rule in CONDITIONS[kind] if not rule.optional]
