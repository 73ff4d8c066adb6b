from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Member(_message.Message):
    __slots__ = ("node", "incarnation")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class EntryId(_message.Message):
    __slots__ = ("epoch", "offset")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    offset: int
    def __init__(self, epoch: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "message", "epoch", "expected", "retry_after_ms", "leader_node", "leader_address", "map_version")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    LEADER_NODE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MAP_VERSION_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    epoch: int
    expected: int
    retry_after_ms: int
    leader_node: str
    leader_address: str
    map_version: int
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ..., epoch: _Optional[int] = ..., expected: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., leader_node: _Optional[str] = ..., leader_address: _Optional[str] = ..., map_version: _Optional[int] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node", "incarnation", "address", "zone", "available", "location")
    NODE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    LOCATION_FIELD_NUMBER: _ClassVar[int]
    node: str
    incarnation: str
    address: str
    zone: str
    available: bool
    location: str
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., available: _Optional[bool] = ..., location: _Optional[str] = ...) -> None: ...

class ShardInfo(_message.Message):
    __slots__ = ("index", "epoch", "leader", "ensemble", "hash_min", "hash_max", "status", "payload_copies")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    HASH_MIN_FIELD_NUMBER: _ClassVar[int]
    HASH_MAX_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_COPIES_FIELD_NUMBER: _ClassVar[int]
    index: int
    epoch: int
    leader: str
    ensemble: _containers.RepeatedScalarFieldContainer[str]
    hash_min: int
    hash_max: int
    status: str
    payload_copies: int
    def __init__(self, index: _Optional[int] = ..., epoch: _Optional[int] = ..., leader: _Optional[str] = ..., ensemble: _Optional[_Iterable[str]] = ..., hash_min: _Optional[int] = ..., hash_max: _Optional[int] = ..., status: _Optional[str] = ..., payload_copies: _Optional[int] = ...) -> None: ...

class GroupAccess(_message.Message):
    __slots__ = ("readers", "writers", "admins")
    READERS_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    ADMINS_FIELD_NUMBER: _ClassVar[int]
    readers: _containers.RepeatedScalarFieldContainer[str]
    writers: _containers.RepeatedScalarFieldContainer[str]
    admins: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, readers: _Optional[_Iterable[str]] = ..., writers: _Optional[_Iterable[str]] = ..., admins: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("name", "group_id", "kind", "max_batch_bytes", "max_record_bytes", "keys_required", "default_ack", "shards", "synchro_quorum", "quorum_timeout_ms", "rollback", "synchro_zones", "retention_ms", "retention_bytes", "sync_leaders", "leaders", "retention_bytes_hard", "access")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEYS_REQUIRED_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_ACK_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    SYNCHRO_QUORUM_FIELD_NUMBER: _ClassVar[int]
    QUORUM_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_FIELD_NUMBER: _ClassVar[int]
    SYNCHRO_ZONES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    SYNC_LEADERS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_HARD_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    group_id: int
    kind: str
    max_batch_bytes: int
    max_record_bytes: int
    keys_required: bool
    default_ack: str
    shards: _containers.RepeatedCompositeFieldContainer[ShardInfo]
    synchro_quorum: str
    quorum_timeout_ms: int
    rollback: str
    synchro_zones: int
    retention_ms: int
    retention_bytes: int
    sync_leaders: int
    leaders: int
    retention_bytes_hard: int
    access: GroupAccess
    def __init__(self, name: _Optional[str] = ..., group_id: _Optional[int] = ..., kind: _Optional[str] = ..., max_batch_bytes: _Optional[int] = ..., max_record_bytes: _Optional[int] = ..., keys_required: _Optional[bool] = ..., default_ack: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[ShardInfo, _Mapping]]] = ..., synchro_quorum: _Optional[str] = ..., quorum_timeout_ms: _Optional[int] = ..., rollback: _Optional[str] = ..., synchro_zones: _Optional[int] = ..., retention_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., sync_leaders: _Optional[int] = ..., leaders: _Optional[int] = ..., retention_bytes_hard: _Optional[int] = ..., access: _Optional[_Union[GroupAccess, _Mapping]] = ...) -> None: ...

class ShardMap(_message.Message):
    __slots__ = ("version", "cluster", "nodes", "groups", "snapshot_bytes_per_second")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    version: int
    cluster: str
    nodes: _containers.RepeatedCompositeFieldContainer[NodeInfo]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    snapshot_bytes_per_second: int
    def __init__(self, version: _Optional[int] = ..., cluster: _Optional[str] = ..., nodes: _Optional[_Iterable[_Union[NodeInfo, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ..., snapshot_bytes_per_second: _Optional[int] = ...) -> None: ...
