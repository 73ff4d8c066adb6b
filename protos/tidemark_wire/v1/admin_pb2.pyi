from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ApplyRequest(_message.Message):
    __slots__ = ("manifests", "dry_run")
    MANIFESTS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    manifests: str
    dry_run: bool
    def __init__(self, manifests: _Optional[str] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class ApplyResponse(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, applied: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, objects: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChangeRequest(_message.Message):
    __slots__ = ("operation", "group", "shard", "from_node", "to_node", "force", "transfer")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FROM_NODE_FIELD_NUMBER: _ClassVar[int]
    TO_NODE_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    operation: str
    group: str
    shard: int
    from_node: str
    to_node: str
    force: bool
    transfer: bool
    def __init__(self, operation: _Optional[str] = ..., group: _Optional[str] = ..., shard: _Optional[int] = ..., from_node: _Optional[str] = ..., to_node: _Optional[str] = ..., force: _Optional[bool] = ..., transfer: _Optional[bool] = ...) -> None: ...

class ChangeProgress(_message.Message):
    __slots__ = ("stage", "received_bytes", "total_bytes", "epoch", "ensemble", "leader")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    stage: str
    received_bytes: int
    total_bytes: int
    epoch: int
    ensemble: _containers.RepeatedScalarFieldContainer[str]
    leader: str
    def __init__(self, stage: _Optional[str] = ..., received_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., epoch: _Optional[int] = ..., ensemble: _Optional[_Iterable[str]] = ..., leader: _Optional[str] = ...) -> None: ...

class OperatorDescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OperatorDescription(_message.Message):
    __slots__ = ("operator", "cluster", "version", "metadata_reachable", "etcd", "active", "metadata_behind", "tls_fingerprint")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    ETCD_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    METADATA_BEHIND_FIELD_NUMBER: _ClassVar[int]
    TLS_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    operator: str
    cluster: str
    version: str
    metadata_reachable: bool
    etcd: str
    active: bool
    metadata_behind: str
    tls_fingerprint: str
    def __init__(self, operator: _Optional[str] = ..., cluster: _Optional[str] = ..., version: _Optional[str] = ..., metadata_reachable: _Optional[bool] = ..., etcd: _Optional[str] = ..., active: _Optional[bool] = ..., metadata_behind: _Optional[str] = ..., tls_fingerprint: _Optional[str] = ...) -> None: ...
