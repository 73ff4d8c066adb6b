"""Options as type checkers see them where a call passes them on: the same names as the call that documents them.

Stays out: defaults and checks (`client`, `settings`, `read_settings`).
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from typing import TypedDict

from tidemark_core.base.entry import Durability
from tidemark_core.delivery.location import Location
from tidemark_core.delivery.slowness import SlowDetection

from .batch import Headers
from .change_settings import From, Key
from .cursor import End, Start
from .errors import LocalAppendsLost
from .producer import ProducerId


class RecordOptions(TypedDict, total=False):
    """What `Appender.append` takes beside the value."""

    key: bytes | None
    headers: Headers | None
    timestamp: datetime.datetime | int | None
    durability: Durability | str | None
    expect: int | None


class AppenderOptions(TypedDict, total=False):
    """What `Client.appender` takes beside the group."""

    durability: Durability | str | None
    batch_records: int
    batch_bytes: int
    linger_ms: float
    timeout_s: float
    max_buffered_bytes: int
    compression: str | None
    on_quorum_timeout: str
    on_rollback: str
    on_loss: Callable[[LocalAppendsLost], None] | None
    producer: ProducerId | None
    fence: int | None


class WriteOptions(TypedDict, total=False):
    """Options of `Documents.put` beside key and value."""

    ttl_s: float | datetime.timedelta | None
    expected: int | None
    durability: Durability | str | None


class DocumentsOptions(TypedDict, total=False):
    """Options of `Client.documents` beside the group."""

    level: str
    durability: Durability | str | None
    batch_records: int
    batch_bytes: int
    linger_ms: float
    timeout_s: float
    max_buffered_bytes: int
    on_quorum_timeout: str
    on_rollback: str


class RangeOptions(TypedDict, total=False):
    """Options of `Pin.scan`."""

    prefix: bytes | None
    first: bytes | None
    until: bytes | None
    shards: Sequence[int] | None
    keys_only: bool
    ordered: bool
    limit: int | None


class ScanOptions(RangeOptions, total=False):
    """Options of `Documents.scan`."""

    level: str | None
    min_seqno: int | Mapping[int, int]


class ReadOptions(TypedDict, total=False):
    """What `Client.read` takes beside the group and `gaps`, which decides what a read yields."""

    shards: Sequence[int] | None
    from_: Start | Mapping[int, Start]
    until: End | Mapping[int, End]
    mode: str
    location: str | Location | None
    undecodable: str
    decoded_bytes_max: int
    buffer_bytes: int
    window_bytes: int | None
    timeout_s: float
    scd_timeout_s: float
    all_send_all_timeout_s: float
    started_timeout_s: float
    slow_detection: SlowDetection | str
    subscription: str | None
    lease_s: float
    auto_commit_s: float | None


class ChangeOptions(TypedDict, total=False):
    """The options of `Client.changes` beside the group."""

    from_: From
    level: str
    prefix: Key | Sequence[Key] | None
    key_range: tuple[Key | None, Key | None] | None
    values: bool
    history: str
    on_lost: str
    consumer: str | None
    lease_s: float
    commit_s: float | None
    skip_deletes: bool
    buffer_bytes: int
    timeout_s: float
    shards: Sequence[int] | None
