from tidemark_wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

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
    __slots__ = ("node", "incarnation", "boot", "address", "zone", "wire_version", "store_format", "version", "draining", "leading", "metrics_address", "pid")
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
    def __init__(self, node: _Optional[str] = ..., incarnation: _Optional[str] = ..., boot: _Optional[str] = ..., address: _Optional[str] = ..., zone: _Optional[str] = ..., wire_version: _Optional[int] = ..., store_format: _Optional[int] = ..., version: _Optional[str] = ..., draining: _Optional[bool] = ..., leading: _Optional[int] = ..., metrics_address: _Optional[str] = ..., pid: _Optional[int] = ...) -> None: ...

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
