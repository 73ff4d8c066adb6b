from tidemark_wire.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SnapshotDescriptor(_message.Message):
    __slots__ = ("epoch", "head", "first", "commit", "payload_bytes", "checkpoint", "confirmed", "copies", "slot", "size", "sources")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    head: _common_pb2.EntryId
    first: int
    commit: int
    payload_bytes: int
    checkpoint: bytes
    confirmed: int
    copies: int
    slot: int
    size: int
    sources: _containers.RepeatedCompositeFieldContainer[_common_pb2.Member]
    def __init__(self, epoch: _Optional[int] = ..., head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ..., first: _Optional[int] = ..., commit: _Optional[int] = ..., payload_bytes: _Optional[int] = ..., checkpoint: _Optional[bytes] = ..., confirmed: _Optional[int] = ..., copies: _Optional[int] = ..., slot: _Optional[int] = ..., size: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[_common_pb2.Member, _Mapping]]] = ...) -> None: ...

class FollowerHead(_message.Message):
    __slots__ = ("member", "head")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    member: _common_pb2.Member
    head: _common_pb2.EntryId
    def __init__(self, member: _Optional[_Union[_common_pb2.Member, _Mapping]] = ..., head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ...) -> None: ...

class Fence(_message.Message):
    __slots__ = ("epoch", "election")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("epoch", "election", "head")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    head: _common_pb2.EntryId
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ..., head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ...) -> None: ...

class BecomeLeader(_message.Message):
    __slots__ = ("epoch", "election", "ensemble", "followers", "copies")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWERS_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    ensemble: _containers.RepeatedCompositeFieldContainer[_common_pb2.Member]
    followers: _containers.RepeatedCompositeFieldContainer[FollowerHead]
    copies: int
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ..., ensemble: _Optional[_Iterable[_Union[_common_pb2.Member, _Mapping]]] = ..., followers: _Optional[_Iterable[_Union[FollowerHead, _Mapping]]] = ..., copies: _Optional[int] = ...) -> None: ...

class BecameLeader(_message.Message):
    __slots__ = ("epoch", "election")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ...) -> None: ...

class AddFollower(_message.Message):
    __slots__ = ("epoch", "election", "follower", "head")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    follower: _common_pb2.Member
    head: _common_pb2.EntryId
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ..., follower: _Optional[_Union[_common_pb2.Member, _Mapping]] = ..., head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ...) -> None: ...

class FollowerAdded(_message.Message):
    __slots__ = ("epoch", "follower")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FOLLOWER_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    follower: _common_pb2.Member
    def __init__(self, epoch: _Optional[int] = ..., follower: _Optional[_Union[_common_pb2.Member, _Mapping]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("epoch", "election", "operation", "old", "new", "copies")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    operation: str
    old: _common_pb2.Member
    new: _common_pb2.Member
    copies: int
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ..., operation: _Optional[str] = ..., old: _Optional[_Union[_common_pb2.Member, _Mapping]] = ..., new: _Optional[_Union[_common_pb2.Member, _Mapping]] = ..., copies: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("epoch", "snapshot")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    snapshot: SnapshotDescriptor
    def __init__(self, epoch: _Optional[int] = ..., snapshot: _Optional[_Union[SnapshotDescriptor, _Mapping]] = ...) -> None: ...

class InstallSnapshot(_message.Message):
    __slots__ = ("epoch", "election", "source", "snapshot")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    source: _common_pb2.Member
    snapshot: SnapshotDescriptor
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ..., source: _Optional[_Union[_common_pb2.Member, _Mapping]] = ..., snapshot: _Optional[_Union[SnapshotDescriptor, _Mapping]] = ...) -> None: ...

class SnapshotProgress(_message.Message):
    __slots__ = ("epoch", "received_bytes", "total_bytes")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    received_bytes: int
    total_bytes: int
    def __init__(self, epoch: _Optional[int] = ..., received_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class SnapshotInstalled(_message.Message):
    __slots__ = ("epoch", "head")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    head: _common_pb2.EntryId
    def __init__(self, epoch: _Optional[int] = ..., head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("epoch", "election", "operation", "ensemble", "old", "new", "new_head", "copies")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    OLD_FIELD_NUMBER: _ClassVar[int]
    NEW_FIELD_NUMBER: _ClassVar[int]
    NEW_HEAD_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    operation: str
    ensemble: _containers.RepeatedCompositeFieldContainer[_common_pb2.Member]
    old: _common_pb2.Member
    new: _common_pb2.Member
    new_head: _common_pb2.EntryId
    copies: int
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ..., operation: _Optional[str] = ..., ensemble: _Optional[_Iterable[_Union[_common_pb2.Member, _Mapping]]] = ..., old: _Optional[_Union[_common_pb2.Member, _Mapping]] = ..., new: _Optional[_Union[_common_pb2.Member, _Mapping]] = ..., new_head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ..., copies: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class CommitPending(_message.Message):
    __slots__ = ("epoch", "filled")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FILLED_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    filled: int
    def __init__(self, epoch: _Optional[int] = ..., filled: _Optional[int] = ...) -> None: ...

class Abort(_message.Message):
    __slots__ = ("epoch", "election")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ...) -> None: ...

class Aborted(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class PrepareTransfer(_message.Message):
    __slots__ = ("epoch", "election", "to")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    to: _common_pb2.Member
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ..., to: _Optional[_Union[_common_pb2.Member, _Mapping]] = ...) -> None: ...

class TransferReady(_message.Message):
    __slots__ = ("epoch", "to")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    to: _common_pb2.Member
    def __init__(self, epoch: _Optional[int] = ..., to: _Optional[_Union[_common_pb2.Member, _Mapping]] = ...) -> None: ...

class DeleteShard(_message.Message):
    __slots__ = ("epoch", "election")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ELECTION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    election: int
    def __init__(self, epoch: _Optional[int] = ..., election: _Optional[int] = ...) -> None: ...

class ShardDeleted(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class Rejected(_message.Message):
    __slots__ = ("epoch", "about", "refusal")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ABOUT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    about: str
    refusal: _common_pb2.Refusal
    def __init__(self, epoch: _Optional[int] = ..., about: _Optional[str] = ..., refusal: _Optional[_Union[_common_pb2.Refusal, _Mapping]] = ...) -> None: ...

class AppendRefused(_message.Message):
    __slots__ = ("epoch", "own_epoch", "head", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    OWN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    own_epoch: int
    head: _common_pb2.EntryId
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., own_epoch: _Optional[int] = ..., head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class Truncate(_message.Message):
    __slots__ = ("epoch", "to")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    to: _common_pb2.EntryId
    def __init__(self, epoch: _Optional[int] = ..., to: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ...) -> None: ...

class Truncated(_message.Message):
    __slots__ = ("epoch", "head")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    head: _common_pb2.EntryId
    def __init__(self, epoch: _Optional[int] = ..., head: _Optional[_Union[_common_pb2.EntryId, _Mapping]] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("epoch", "ensemble", "copies", "matches", "commit")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    MATCHES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    ensemble: _containers.RepeatedCompositeFieldContainer[_common_pb2.Member]
    copies: int
    matches: _containers.RepeatedScalarFieldContainer[int]
    commit: int
    def __init__(self, epoch: _Optional[int] = ..., ensemble: _Optional[_Iterable[_Union[_common_pb2.Member, _Mapping]]] = ..., copies: _Optional[int] = ..., matches: _Optional[_Iterable[int]] = ..., commit: _Optional[int] = ...) -> None: ...

class Fill(_message.Message):
    __slots__ = ("epoch", "ensemble", "copies", "upto")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENSEMBLE_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    ensemble: _containers.RepeatedCompositeFieldContainer[_common_pb2.Member]
    copies: int
    upto: int
    def __init__(self, epoch: _Optional[int] = ..., ensemble: _Optional[_Iterable[_Union[_common_pb2.Member, _Mapping]]] = ..., copies: _Optional[int] = ..., upto: _Optional[int] = ...) -> None: ...

class Filled(_message.Message):
    __slots__ = ("epoch", "upto")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    upto: int
    def __init__(self, epoch: _Optional[int] = ..., upto: _Optional[int] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("base", "entry_epoch")
    BASE_FIELD_NUMBER: _ClassVar[int]
    ENTRY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    base: int
    entry_epoch: int
    def __init__(self, base: _Optional[int] = ..., entry_epoch: _Optional[int] = ...) -> None: ...

class Fetched(_message.Message):
    __slots__ = ("base", "header", "payload", "held", "first")
    BASE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    base: int
    header: bytes
    payload: bytes
    held: bool
    first: int
    def __init__(self, base: _Optional[int] = ..., header: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., held: _Optional[bool] = ..., first: _Optional[int] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("draining",)
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    draining: bool
    def __init__(self, draining: _Optional[bool] = ...) -> None: ...
