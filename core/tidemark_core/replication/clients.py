"""Events of clients: what the rpc shell hands to `step` on behalf of a caller; each is answered by one Reply."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.entry import Batch
from ..base.ids import ShardId
from ..sinks.fold import SinkEnd


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Append one batch; answered `Appended` or `Refused`.

    `resume_after` is the offset of the rollback record that this producer knows of, -1 when there was none (L22).
    With `expect` 0 or more the batch is appended only where no other record lies at that offset or behind it (L29).
    """

    shard: ShardId
    request: int
    batch: Batch
    resume_after: int = -1
    expect: int = -1


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """Have a producer to oneself; `sequence` is `producer_ids.claim_of` (L26).  Answered `Claimed` or `Refused`."""

    shard: ShardId
    request: int
    producer: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class OutcomeRequest:
    """Ask what became of a batch (L19, L20); answered `Outcome` or `Refused`.

    With `wait` the answer comes once it is decided, or is UNKNOWN after the group's quorum timeout.
    """

    shard: ShardId
    request: int
    producer: bytes
    sequence: int
    wait: bool


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Ask to be served from offset `position` on (-1: from anywhere); answered `ReadGrant` or `Refused`."""

    shard: ShardId
    request: int
    position: int = -1


@dataclass(frozen=True, slots=True)
class LatestRequest:
    """Ask where the log ends now (O46); answered `Latest` or `Refused`."""

    shard: ShardId
    request: int


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Remove records below offset `before` as far as commit, follow cursors and subscriptions allow (#281, B10).

    Answered with the trim point in force, an int, or `Refused`.
    """

    shard: ShardId
    request: int
    before: int


@dataclass(frozen=True, slots=True)
class CommitPosition:
    """Subscription `name` wants `offset` next, and pins from there for `lease_ms` (B1, B4).

    Answered `PositionCommitted` or `Refused`.  `seek` allows to go back (B6).
    """

    shard: ShardId
    request: int
    name: str
    offset: int
    lease_ms: int
    seek: bool = False


@dataclass(frozen=True, slots=True)
class DeleteSubscription:
    """Forget subscription `name`; answered `SubscriptionDeleted` or `Refused`."""

    shard: ShardId
    request: int
    name: str


@dataclass(frozen=True, slots=True)
class SubscriptionsRequest:
    """Ask where all subscriptions stand; answered `subscriptions.view.SubscriptionsView` or `Refused`."""

    shard: ShardId
    request: int


@dataclass(frozen=True, slots=True)
class JoinSink:
    """Part `part` of batch `batch` is about to append; the sink is kept for `lease_ms` from now on (W1, W4).

    Answered `SinkJoined` or `Refused`.
    """

    shard: ShardId
    request: int
    name: str
    batch: int
    part: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class MarkSink:
    """Batch `batch` is complete: its parts 0 to `parts` - 1 have appended all rows (W2).

    `shards` says where they end, ascending by shard.  Answered `SinkMarked` or `Refused`.
    """

    shard: ShardId
    request: int
    name: str
    batch: int
    parts: int
    shards: tuple[SinkEnd, ...]
    lease_ms: int


@dataclass(frozen=True, slots=True)
class DeleteSink:
    """Forget sink `name`; answered `SinkDeleted` or `Refused`."""

    shard: ShardId
    request: int
    name: str


@dataclass(frozen=True, slots=True)
class SinksRequest:
    """Ask how far one sink has come, all of them without a name; answered `sinks.view.SinksView` or `Refused`."""

    shard: ShardId
    request: int
    name: str = ""


PositionEvent = CommitPosition | DeleteSubscription | SubscriptionsRequest
SinkEvent = JoinSink | MarkSink | DeleteSink | SinksRequest
ClientEvent = (
    AppendRequest | ClaimRequest | OutcomeRequest | ReadRequest | LatestRequest | TrimRequest
    | PositionEvent | SinkEvent
)
CLIENT_EVENTS = (
    AppendRequest, ClaimRequest, OutcomeRequest, ReadRequest, LatestRequest, TrimRequest, CommitPosition,
    DeleteSubscription, SubscriptionsRequest, JoinSink, MarkSink, DeleteSink, SinksRequest,
)
