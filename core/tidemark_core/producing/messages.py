"""Messages between a producer and its shell.  Times are whole milliseconds of one clock that never goes back."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ..base.entry import Batch, Durability
from ..base.refusals import Refused
from ..documents.requests import Written
from ..replication.messages import Appended, Claimed


class Settings(NamedTuple):
    """How a producer behaves, and how long it waits."""

    asks_again: bool = True      # a leader that does not know whether a batch is confirmed; else its callers hear that
    retries: bool = True         # a batch that was rolled back, while its callers wait; else they hear that
    quorum_timeout_ms: int = 10_000
    stalled_ms: int = 1000       # without an answer for so long, it asks who leads
    abandoned_ms: int = 1000     # so long behind the quorum timeout, it doubts the connection
    last_answer_ms: int = 200    # when time is over, the answer that is under way is awaited for so long


class Claim(NamedTuple):
    """How a caller has a producer that it names to itself: with this fence, or with the next one where that is 0 (L26).

    `draw` is a random number: of two processes that claim with the same fence, one is refused.
    """

    draw: int
    fence: int = 0


# --- from the shell


class Append(NamedTuple):
    """Append a batch, which has no sequence yet; `number` is the caller's own name for it.  Needs `has_room`."""

    number: int
    deadline_ms: int
    count: int  # type: ignore[assignment]  # records; hides tuple.count
    first_timestamp_us: int
    last_timestamp_us: int
    payload_crc: int
    payload: bytes
    durability: Durability
    expect: int = -1   # append only where no other record lies at this offset or behind it (L29); -1: wherever


class Answered(NamedTuple):
    """A node answered to `send`, which is the effect itself."""

    send: Send
    value: Appended | Written | Claimed | Refused


class Lost(NamedTuple):
    """The connection to a node broke: what was sent there and has no answer will have none."""

    target: str
    why: str


class Led(NamedTuple):
    """The newest that is known of the shard: its epoch, its leader, and how ids of this caller begin (L25b)."""

    epoch: int
    target: str | None
    prefix: bytes = b""


class End(NamedTuple):
    """A batch that was given up before it got here would be a gap: a named producer appends nothing more (L28)."""

    why: str


class OnTime(NamedTuple):
    """The time that `WakeAt` asked for has come, or another one; asking too often does no harm."""


Event = Append | Answered | Lost | Led | End | OnTime


# --- to the shell


class Send(NamedTuple):
    """Send a batch to a node, behind everything sent there before; one without records is a claim (L26)."""

    target: str
    number: int
    batch: Batch
    resume_after: int
    expect: int


class Settle(NamedTuple):
    """The batch is in the log with what `durability` promises; it has left the producer."""

    number: int
    value: Appended | Written
    durability: Durability
    batch: Batch


class Taken(NamedTuple):
    """The producer is this process's, with this fence; `claimed` says where it goes on (L27)."""

    fence: int
    claimed: Claimed


class Ending(StrEnum):
    """Why a batch does not end well."""

    REFUSED = "REFUSED"                # it is in no log: a node says what is wrong with it
    NOT_TAKEN = "NOT_TAKEN"            # it is in no log: time is over, and no node has taken it
    ROLLED_BACK = "ROLLED_BACK"        # it is in no log and never will be
    UNANSWERED = "UNANSWERED"          # it may be in the log: time is over
    QUORUM_TIMEOUT = "QUORUM_TIMEOUT"  # it may be in the log: the leader does not know either
    FORGOTTEN = "FORGOTTEN"            # it may be in the log: the cluster remembers the sequence no longer (L25)
    BROKEN = "BROKEN"                  # the cluster has lost what it had acknowledged
    FENCED = "FENCED"                  # it is in no log: another process has the producer (L26)
    ENDED = "ENDED"                    # it is in no log: a batch of this claim in front of it did not end well (L28)


class Fail(NamedTuple):
    """Tell the callers of a batch; `left` says that it has left the producer too, else `Release` comes later."""

    number: int
    ending: Ending
    batch: Batch
    refused: Refused | None
    left: bool


class Release(NamedTuple):
    """A batch has left the producer; its callers have heard before."""

    number: int


class LocalLost(NamedTuple):
    """A failover lost so many records that were acknowledged as LOCAL (L21)."""

    records: int


class WakeAt(NamedTuple):
    """Step with `OnTime` at `at_ms`, instead of the time asked for before."""

    at_ms: int


class AskLeader(NamedTuple):
    """Find out who leads, and say `Led` where that is news."""


class Doubt(NamedTuple):
    """No answer came from a node for `patience_ms`: close the connection, if it is as silent to others."""

    target: str
    patience_ms: int


class Noted(StrEnum):
    """Things worth counting."""

    QUORUM_TIMEOUT = "QUORUM_TIMEOUT"  # a leader did not know the fate of a batch
    ROLLED_BACK = "ROLLED_BACK"        # a batch was rolled back


class Note(NamedTuple):
    """Count one."""

    what: Noted


Effect = Send | Taken | Settle | Fail | Release | LocalLost | WakeAt | AskLeader | Doubt | Note
