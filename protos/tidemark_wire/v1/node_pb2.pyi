from tidemark_wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PullSnapshotRequest(_message.Message):
    __slots__ = ("shard", "epoch", "first", "last")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    epoch: int
    first: int
    last: int
    def __init__(self, shard: _Optional[int] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("headers", "payloads", "crc32c")
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    CRC32C_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    crc32c: int
    def __init__(self, headers: _Optional[_Iterable[bytes]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., crc32c: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NodeDescription(_message.Message):
    __slots__ = ("node", "incarnation", "boot", "address", "zone", "wire_version", "store_format", "version", "draining", "leading", "metrics_address", "pid", "location", "lagging", "tls_fingerprint")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    WIRE_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORE_FORMAT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LEADING_FIELD_NUMBER: _ClassVar[int]
    METRICS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    TLS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    boot: str
    address: str
    zone: str
    wire_version: int
    store_format: int
    version: str
    draining: bool
    leading: int
    metrics_address: str
    pid: int
    location: str
    lagging: _containers.RepeatedScalarFieldContainer[str]
    tls_fingerprint: str
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., boot: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., wire_version: _Optional[int] = ..., store_format: _Optional[int] = ..., version: _Optional[str] = ..., draining: _Optional[bool] = ..., leading: _Optional[int] = ..., metrics_address: _Optional[str] = ..., pid: _Optional[int] = ..., location: _Optional[str] = ..., lagging: _Optional[_Iterable[str]] = ..., tls_fingerprint: _Optional[str] = ...) -> None: ...

class PushShardMapResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class DebugDumpRequest(_message.Message):
    __slots__ = ("shard", "all")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    shard: int
    all: bool
    def __init__(self, shard: _Optional[int] = ..., all: _Optional[bool] = ...) -> None: ...

class DebugDumpResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ReplicasRequest(_message.Message):
    __slots__ = ("replicas_max",)
    FROM_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_MAX_FIELD_NUMBER: _ClassVar[int]
    replicas_max: int
    def __init__(self, replicas_max: _Optional[int] = ..., **kwargs) -> None: ...

class ReplicasResponse(_message.Message):
    __slots__ = ("node", "incarnation", "more", "replicas", "cluster")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    more: bool
    replicas: _containers.RepeatedCompositeFieldContainer[Replica]
    cluster: RememberedCluster
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., more: _Optional[bool] = ..., replicas: _Optional[_Iterable[_Union[Replica, _Mapping]]] = ..., cluster: _Optional[_Union[RememberedCluster, _Mapping]] = ...) -> None: ...

class SizesRequest(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, shards: _Optional[_Iterable[int]] = ...) -> None: ...

class SizesResponse(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardSize]
    def __init__(self, shards: _Optional[_Iterable[_Union[ShardSize, _Mapping]]] = ...) -> None: ...

class ShardSize(_message.Message):
    __slots__ = ("shard", "bytes")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    shard: int
    bytes: int
    def __init__(self, shard: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Disk(_message.Message):
    __slots__ = ("node", "incarnation")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Replica(_message.Message):
    __slots__ = ("shard", "role", "epoch", "election", "told", "ensemble", "copies", "opened", "pending", "head_epoch", "head", "commit")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    HEAD_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    shard: int
    role: str
    epoch: int
    election: int
    told: int
    ensemble: _containers.RepeatedCompositeFieldContainer[Disk]
    copies: int
    opened: int
    pending: PreparedChange
    head_epoch: int
    head: int
    commit: int
    def __init__(self, shard: _Optional[int] = ..., role: _Optional[str] = ..., epoch: _Optional[int] = ..., election: _Optional[int] = ..., told: _Optional[int] = ..., ensemble: _Optional[_Iterable[_Union[Disk, _Mapping]]] = ..., copies: _Optional[int] = ..., opened: _Optional[int] = ..., pending: _Optional[_Union[PreparedChange, _Mapping]] = ..., head_epoch: _Optional[int] = ..., head: _Optional[int] = ..., commit: _Optional[int] = ...) -> None: ...

class PreparedChange(_message.Message):
    __slots__ = ("operation", "old", "new", "copies")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    operation: str
    old: Disk
    new: Disk
    copies: int
    def __init__(self, operation: _Optional[str] = ..., old: _Optional[_Union[Disk, _Mapping]] = ..., new: _Optional[_Union[Disk, _Mapping]] = ..., copies: _Optional[int] = ...) -> None: ...

class RememberedCluster(_message.Message):
    __slots__ = ("cluster", "map_version", "groups", "nodes")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    map_version: int
    groups: _containers.RepeatedCompositeFieldContainer[RememberedGroup]
    nodes: _containers.RepeatedCompositeFieldContainer[_common_pb2.NodeInfo]
    def __init__(self, cluster: _Optional[str] = ..., map_version: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[RememberedGroup, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[_common_pb2.NodeInfo, _Mapping]]] = ...) -> None: ...

class RememberedGroup(_message.Message):
    __slots__ = ("group_id", "name", "shards", "kind", "current")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    group_id: int
    name: str
    shards: int
    kind: str
    current: bool
    def __init__(self, group_id: _Optional[int] = ..., name: _Optional[str] = ..., shards: _Optional[int] = ..., kind: _Optional[str] = ..., current: _Optional[bool] = ...) -> None: ...

class GetShardMapRequest(_message.Message):
    __slots__ = ("known_version",)
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    known_version: int
    def __init__(self, known_version: _Optional[int] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("group", "shard", "until", "tail", "bytes_max")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard: int
    until: int
    tail: bool
    bytes_max: int
    def __init__(self, group: _Optional[str] = ..., shard: _Optional[int] = ..., until: _Optional[int] = ..., tail: _Optional[bool] = ..., bytes_max: _Optional[int] = ..., **kwargs) -> None: ...

class OutcomeRequest(_message.Message):
    __slots__ = ("group", "shard", "producer", "sequence", "wait")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard: int
    producer: bytes
    sequence: int
    wait: bool
    def __init__(self, group: _Optional[str] = ..., shard: _Optional[int] = ..., producer: _Optional[bytes] = ..., sequence: _Optional[int] = ..., wait: _Optional[bool] = ...) -> None: ...

class OutcomeResponse(_message.Message):
    __slots__ = ("fate", "epoch", "base", "count", "rolled_back_at")
    FATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_AT_FIELD_NUMBER: _ClassVar[int]
    fate: str
    epoch: int
    base: int
    count: int
    rolled_back_at: int
    def __init__(self, fate: _Optional[str] = ..., epoch: _Optional[int] = ..., base: _Optional[int] = ..., count: _Optional[int] = ..., rolled_back_at: _Optional[int] = ...) -> None: ...

class LimboRequest(_message.Message):
    __slots__ = ("group", "shard", "entries_max")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_MAX_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard: int
    entries_max: int
    def __init__(self, group: _Optional[str] = ..., shard: _Optional[int] = ..., entries_max: _Optional[int] = ...) -> None: ...

class LimboResponse(_message.Message):
    __slots__ = ("epoch", "head", "commit", "confirmed", "members", "quorum", "zones", "length", "bytes", "oldest_age_ms", "rollbacks_total", "timeouts_total", "rollback_pending_from", "timeout_ms", "entries")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    QUORUM_FIELD_NUMBER: _ClassVar[int]
    ZONES_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OLDEST_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACKS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_PENDING_FROM_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    head: int
    commit: int
    confirmed: int
    members: _containers.RepeatedScalarFieldContainer[str]
    quorum: int
    zones: int
    length: int
    bytes: int
    oldest_age_ms: int
    rollbacks_total: int
    timeouts_total: int
    rollback_pending_from: int
    timeout_ms: int
    entries: _containers.RepeatedCompositeFieldContainer[LimboEntry]
    def __init__(self, epoch: _Optional[int] = ..., head: _Optional[int] = ..., commit: _Optional[int] = ..., confirmed: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., quorum: _Optional[int] = ..., zones: _Optional[int] = ..., length: _Optional[int] = ..., bytes: _Optional[int] = ..., oldest_age_ms: _Optional[int] = ..., rollbacks_total: _Optional[int] = ..., timeouts_total: _Optional[int] = ..., rollback_pending_from: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[LimboEntry, _Mapping]]] = ...) -> None: ...

class LimboEntry(_message.Message):
    __slots__ = ("base", "count", "bytes", "durability", "age_ms", "state", "waiters", "acked", "missing", "producer", "sequence")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITERS_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    base: int
    count: int
    bytes: int
    durability: str
    age_ms: int
    state: str
    waiters: int
    acked: _containers.RepeatedScalarFieldContainer[str]
    missing: _containers.RepeatedScalarFieldContainer[str]
    producer: bytes
    sequence: int
    def __init__(self, base: _Optional[int] = ..., count: _Optional[int] = ..., bytes: _Optional[int] = ..., durability: _Optional[str] = ..., age_ms: _Optional[int] = ..., state: _Optional[str] = ..., waiters: _Optional[int] = ..., acked: _Optional[_Iterable[str]] = ..., missing: _Optional[_Iterable[str]] = ..., producer: _Optional[bytes] = ..., sequence: _Optional[int] = ...) -> None: ...

class CommitPositionRequest(_message.Message):
    __slots__ = ("group", "shard", "subscription", "offset", "lease_ms", "seek")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    SEEK_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard: int
    subscription: str
    offset: int
    lease_ms: int
    seek: bool
    def __init__(self, group: _Optional[str] = ..., shard: _Optional[int] = ..., subscription: _Optional[str] = ..., offset: _Optional[int] = ..., lease_ms: _Optional[int] = ..., seek: _Optional[bool] = ...) -> None: ...

class CommitPositionResponse(_message.Message):
    __slots__ = ("epoch", "offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offset: int
    def __init__(self, epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class SubscriptionsRequest(_message.Message):
    __slots__ = ("group", "shard")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard: int
    def __init__(self, group: _Optional[str] = ..., shard: _Optional[int] = ...) -> None: ...

class SubscriptionsResponse(_message.Message):
    __slots__ = ("epoch", "first", "released", "subscriptions")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTIONS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first: int
    released: int
    subscriptions: _containers.RepeatedCompositeFieldContainer[Subscription]
    def __init__(self, epoch: _Optional[int] = ..., first: _Optional[int] = ..., released: _Optional[int] = ..., subscriptions: _Optional[_Iterable[_Union[Subscription, _Mapping]]] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("name", "offset", "lease_ms", "committed_ms", "expires_in_ms", "lag", "bytes_behind")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_MS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    BYTES_BEHIND_FIELD_NUMBER: _ClassVar[int]
    name: str
    offset: int
    lease_ms: int
    committed_ms: int
    expires_in_ms: int
    lag: int
    bytes_behind: int
    def __init__(self, name: _Optional[str] = ..., offset: _Optional[int] = ..., lease_ms: _Optional[int] = ..., committed_ms: _Optional[int] = ..., expires_in_ms: _Optional[int] = ..., lag: _Optional[int] = ..., bytes_behind: _Optional[int] = ...) -> None: ...

class DeleteSubscriptionRequest(_message.Message):
    __slots__ = ("group", "shard", "subscription")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard: int
    subscription: str
    def __init__(self, group: _Optional[str] = ..., shard: _Optional[int] = ..., subscription: _Optional[str] = ...) -> None: ...

class DeleteSubscriptionResponse(_message.Message):
    __slots__ = ("epoch", "existed")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    existed: bool
    def __init__(self, epoch: _Optional[int] = ..., existed: _Optional[bool] = ...) -> None: ...

class ExplainReadRequest(_message.Message):
    __slots__ = ("group", "shard", "count", "mode", "known_down", "priorities", "ensemble")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DOWN_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    group: str
    shard: int
    count: int
    mode: str
    known_down: _containers.RepeatedScalarFieldContainer[str]
    priorities: _containers.RepeatedScalarFieldContainer[int]
    ensemble: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group: _Optional[str] = ..., shard: _Optional[int] = ..., count: _Optional[int] = ..., mode: _Optional[str] = ..., known_down: _Optional[_Iterable[str]] = ..., priorities: _Optional[_Iterable[int]] = ..., ensemble: _Optional[_Iterable[str]] = ..., **kwargs) -> None: ...

class ExplainReadResponse(_message.Message):
    __slots__ = ("ensemble", "first", "released", "through", "items")
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    ensemble: _containers.RepeatedScalarFieldContainer[str]
    first: int
    released: int
    through: int
    items: _containers.RepeatedCompositeFieldContainer[ExplainedItem]
    def __init__(self, ensemble: _Optional[_Iterable[str]] = ..., first: _Optional[int] = ..., released: _Optional[int] = ..., through: _Optional[int] = ..., items: _Optional[_Iterable[_Union[ExplainedItem, _Mapping]]] = ...) -> None: ...

class ExplainedItem(_message.Message):
    __slots__ = ("first", "last", "kind", "bytes", "order", "sender", "senders", "keepers")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SENDERS_FIELD_NUMBER: _ClassVar[int]
    KEEPERS_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    kind: str
    bytes: int
    order: _containers.RepeatedScalarFieldContainer[str]
    sender: str
    senders: _containers.RepeatedScalarFieldContainer[str]
    keepers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ..., kind: _Optional[str] = ..., bytes: _Optional[int] = ..., order: _Optional[_Iterable[str]] = ..., sender: _Optional[str] = ..., senders: _Optional[_Iterable[str]] = ..., keepers: _Optional[_Iterable[str]] = ...) -> None: ...
