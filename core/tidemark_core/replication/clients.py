"""Events of clients: what the rpc shell hands to `step` on behalf of a caller; each is answered by one Reply."""

from __future__ import annotations

from dataclasses import dataclass

from ..base.entry import Batch
from ..base.ids import ShardId


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """Append one batch; answered `Appended` or `Refused`."""

    shard: ShardId
    request: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Ask to be served from offset `position` on (-1: from anywhere); answered `ReadGrant` or `Refused`."""

    shard: ShardId
    request: int
    position: int = -1


@dataclass(frozen=True, slots=True)
class TrimRequest:
    """Remove records below offset `before` as far as commit and every follow cursor allow (#281).

    Answered with the trim point in force, an int, or `Refused`.
    """

    shard: ShardId
    request: int
    before: int
