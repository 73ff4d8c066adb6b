"""What users of the client may catch: one base class, each error with a `reason` and a piece of `advice`.

Stays out: when to raise them.  Reasons of refusals come from the core; the client's own are in this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.optimistic.stamps import Stamp
from tidemark_wire.status import advice as advice_of

if TYPE_CHECKING:
    from .keyspace_futures import ReplacedStamp
    from .keyspace_results import KeyWritten


class TidemarkError(Exception):
    """Base of every error of this package.

    `reason` is one stable word for programs, `message` names the field or fact, `advice` says what to do next.
    """

    reason = "ERROR"
    advice = ""

    def __init__(self, message: str, *, reason: str | None = None, advice: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if reason is not None:
            self.reason = reason
        if advice is not None:
            self.advice = advice

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"


class InvalidArgument(TidemarkError, ValueError):
    """A value given to this library is wrong; nothing was sent.  `field` names it."""

    reason = "INVALID_ARGUMENT"

    def __init__(self, field: str, message: str, *, reason: str | None = None, advice: str | None = None) -> None:
        super().__init__(f"{field}: {message}", reason=reason, advice=advice or f"Correct {field} and call again.")
        self.field = field


class RecordTooLarge(InvalidArgument):
    """A record is over the group's limit."""

    reason = "RECORD_TOO_LARGE"


class KeyRequired(InvalidArgument):
    """The group wants a key, not empty, in every record."""

    reason = "KEY_REQUIRED"


class ValueTooLarge(InvalidArgument):
    """A document's value is over the limit."""

    reason = "VALUE_TOO_LARGE"


class SeveralShards(InvalidArgument):
    """The keys of an atomic batch lie on several shards.  `shards` has the keys by shard."""

    reason = "SEVERAL_SHARDS"

    def __init__(self, field: str, message: str, *, shards: dict[int, list[bytes]]) -> None:
        super().__init__(field, message, advice="Write one batch for each shard, or choose keys of one shard.")
        self.shards = shards


class ConditionFailed(TidemarkError):
    """The condition of a write did not hold; nothing of it was applied.

    `expected` is what the write asked for, `found` the seqno of the live document, 0 where there is none.  Of an
    atomic batch `failures` has every write whose condition did not hold.
    """

    reason = "CONDITION_FAILED"
    advice = "Read the document, decide again, and write with the seqno found."

    def __init__(
        self, *, key: bytes, shard: int, expected: int | None, found: int, seqno: int,
        failures: tuple[ConditionFailed, ...] = (),
    ) -> None:
        wanted = "no document" if expected == 0 else f"seqno {expected}"
        super().__init__(f"key {key[:100]!r} has {f'seqno {found}' if found else 'no document'}, expected {wanted}")
        self.key = key
        self.shard = shard
        self.expected = expected
        self.found = found
        self.seqno = seqno   # of the log, where the refusal was decided
        self.failures = failures or (self,)


class DocumentsNotServed(TidemarkError):
    """The nodes are of a release that serves no documents."""

    reason = "DOCUMENTS_NOT_SERVED"
    advice = "Upgrade the nodes; `tidemark get cluster` shows their versions."


class KeyspacesNotServed(TidemarkError):
    """The nodes are of a release that serves no keyspaces."""

    reason = "KEYSPACES_NOT_SERVED"
    advice = "Upgrade the nodes; `tidemark get cluster` shows their versions."


class OverridesDenied(InvalidArgument):
    """A call names a quorum of its own (`r` or `w`), which the keyspace does not allow; nothing was sent."""

    reason = "OVERRIDES_DENIED"


class Unavailable(TidemarkError):
    """The cluster did not answer in time.  For a write: it was never sent, so nothing was changed."""

    reason = "UNAVAILABLE"
    advice = "Check that the nodes run (`tidemark dev status`) and that the address is right, then retry."


class NotEnoughOwners(Unavailable):
    """Fewer owners of a key than a read needs answered in time; a read changes nothing."""

    reason = "NOT_ENOUGH_OWNERS"
    advice = "Read again. When it goes on, find the owners that are away: `tidemark ks ring`, `tidemark nodes`."


class WriteUnknown(TidemarkError):
    """A write of a key was sent, and too few owners answered in time: it may take effect at any later time, or never.

    `stored` owners have answered that they stored it, under `stamp`; it is None where no answer came.  Of a `getdel`
    `value` is what it read, where it got as far as that.
    """

    reason = "WRITE_UNKNOWN"
    advice = (
        "Read the key, or write it again: a repeated write ends the same way, and may win over one that came between. "
        "A `getdel` may have deleted the value."
    )

    def __init__(
        self, message: str, *, keyspace: str, key: bytes, stamp: Stamp | None = None, stored: int = 0,
        value: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.keyspace = keyspace
        self.key = key
        self.stamp = stamp
        self.stored = stored
        self.value = value


class StampInFuture(TidemarkError):
    """The clocks of the nodes that took a write are too far ahead of the owners' clocks; nothing was stored."""

    reason = "STAMP_IN_FUTURE"
    advice = "Correct the clocks of the nodes (`tidemark doctor` names them), then write again."

    def __init__(self, message: str, *, keyspace: str, key: bytes) -> None:
        super().__init__(message)
        self.keyspace = keyspace
        self.key = key


class NotRepaired(TidemarkError):
    """A String still has, or may have, a stamp from the future; the repair can be repeated.

    `outcome`: 'unknown' where not all owners answered, of which `missing` names nodes; 'past', 'full', 'elements' or
    'future' where the message says what to do, and `missing` who refused.  `replaced` is what is done.
    """

    reason = "NOT_REPAIRED"
    advice = "Do what the message says, then repeat the repair; it goes on where it stopped."

    def __init__(
        self, message: str, *, keyspace: str, key: bytes, outcome: str, missing: tuple[str, ...] = (),
        replaced: tuple[ReplacedStamp, ...] = (),
    ) -> None:
        super().__init__(message)
        self.keyspace = keyspace
        self.key = key
        self.outcome = outcome
        self.missing = missing
        self.replaced = replaced


class WritesFailed(TidemarkError):
    """Some keys of a `set_many` are not written for certain.

    `failures` has the error of each of them by key, `written` the answers to the others.
    """

    reason = "WRITES_FAILED"
    advice = "Write the keys of `failures` again, or look at the error of each of them; those of `written` are done."

    def __init__(
        self, message: str, *, written: Mapping[bytes, KeyWritten], failures: Mapping[bytes, TidemarkError]
    ) -> None:
        super().__init__(message)
        self.written = written
        self.failures = failures


class _OfBatch(TidemarkError):
    """An error about one batch.  The four names are what `Client.outcome` takes; they are empty where nothing was sent.

    `producer` and `sequence` identify the batch for as long as the cluster remembers its producer's last five.
    """

    def __init__(
        self, message: str, *, group: str = "", shard: int = -1, producer: bytes = b"", sequence: int = -1
    ) -> None:
        super().__init__(message)
        self.group = group
        self.shard = shard
        self.producer = producer
        self.sequence = sequence


class OutcomeUnknown(_OfBatch):
    """An append was sent and nobody said in time what became of it: the record may or may not be in the log."""

    reason = "OUTCOME_UNKNOWN"
    advice = "Ask what became of it (`Client.outcome`, `tidemark outcome`) before appending it again."


class QuorumTimeout(OutcomeUnknown):
    """The leader's wait for the synchro quorum is over and the append is not decided: it may still end either way."""

    reason = "QUORUM_TIMEOUT"


class RolledBack(_OfBatch):
    """The append was rolled back, which is final: it is in nobody's log and nobody will ever read it.

    `rolled_back_at` is the offset of the rollback record.
    """

    reason = "ROLLED_BACK"
    advice = "Append it again if you still want it; check with `tidemark limbo` that enough members answer."

    def __init__(
        self, message: str, *, group: str, shard: int, producer: bytes, sequence: int, rolled_back_at: int
    ) -> None:
        super().__init__(message, group=group, shard=shard, producer=producer, sequence=sequence)
        self.rolled_back_at = rolled_back_at


class ProducerFenced(TidemarkError):
    """Another process has claimed the producer, with the fence `fence` on `shard` of `group`.

    Of an append: nothing of it is in the log.
    """

    reason = "PRODUCER_FENCED"
    advice = "Stop here: another process has this producer. To take it back, open it again with a newer fence."

    def __init__(self, message: str, *, group: str, shard: int, fence: int) -> None:
        super().__init__(message)
        self.group = group
        self.shard = shard
        self.fence = fence


class ProducerEnded(TidemarkError):
    """An earlier append of this producer did not end well, so nothing of this one was appended (L28)."""

    reason = "PRODUCER_ENDED"
    advice = "Open the producer again, see where its records end (`Appender.claimed`), and go on behind them."

    def __init__(self, message: str, *, group: str, shard: int) -> None:
        super().__init__(message)
        self.group = group
        self.shard = shard


class LocalAppendsLost(TidemarkError):
    """LOCAL appends that had been acknowledged did not survive a failover (that is what LOCAL allows)."""

    reason = "LOCAL_APPENDS_LOST"
    advice = "Append them again from your source, or use QUORUM durability for what must survive."

    def __init__(self, message: str, *, shard: int, records: int) -> None:
        super().__init__(message)
        self.shard = shard
        self.records = records


class AcknowledgedDataLost(TidemarkError):
    """The leader no longer knows QUORUM appends that it had acknowledged: a broken promise, never expected."""

    reason = "ACKNOWLEDGED_DATA_LOST"
    advice = "Stop writing, keep every disk, and report this with `tidemark debug dump`."


class BufferFull(TidemarkError):
    """`append_nowait` found no room in the appender's bounded buffer."""

    reason = "BUFFER_FULL"
    advice = "Await `append`, which waits for room, or raise max_buffered_bytes."


class Closed(TidemarkError):
    """The client, appender or reader is closed."""

    reason = "CLOSED"
    advice = "Open a new one."


class WrongLoop(TidemarkError):
    """A client, or a part of it, was called outside the event loop, thread or process that connected; nothing was sent.

    A client belongs to the loop in which `connect` ran; a forked child has none of its connections.
    """

    reason = "WRONG_LOOP"
    advice = "Connect again in this loop, thread or process; threads may share one client of `tidemark.sync`."


class _OfRange(TidemarkError):
    """An error about the offsets from `first` to `last` of a shard; to read on behind them, begin at `last + 1`."""

    def __init__(self, message: str, *, shard: int, first: int, last: int) -> None:
        super().__init__(message)
        self.shard = shard
        self.first = first
        self.last = last


class UndecodableBatch(_OfRange):
    """A stored batch is intact but not what an appender writes: another program wrote it, perhaps to do harm (T11)."""

    reason = "UNDECODABLE_BATCH"
    advice = (
        "Find out who wrote it. Its bytes are `payload` of `batches()`; with gaps=True a reader yields a Gap and goes "
        "on, with undecodable='skip' (`--skip-undecodable`) it passes the batch over."
    )


class DataLoss(_OfRange):
    """Every member of a shard answered that it does not hold these records, which were in the log."""

    reason = "DATALOSS"
    advice = (
        "Keep every disk and report it with `tidemark debug dump`; with gaps=True a reader yields a Gap and goes on."
    )


class ChangesFailed(TidemarkError):
    """A change stream ended for good; every try from this position ends the same way.

    `reason` is PURGED or HISTORY_LOST (the view has to be rebuilt: `on_lost="rebuild"`; `common` is the seqno up to
    which the shard and the consumer agree, -1 when not said), POSITION_REFUSED, HISTORY_TRIMMED, CANNOT_SEND (one
    document is too large for a message), PROTOCOL_ERROR or PERMISSION_DENIED.  `shard` is -1 where it concerns all.
    """

    reason = "CHANGES_FAILED"
    advice = (
        "After PURGED and HISTORY_LOST build the view again, from_='beginning' or with on_lost='rebuild'; otherwise "
        "correct the fact that the message names."
    )

    def __init__(self, message: str, *, reason: str, shard: int = -1, common: int = -1) -> None:
        super().__init__(message, reason=reason)
        self.shard = shard
        self.common = common


class ViewRefused(TidemarkError):
    """The file is no view of this group, or another process feeds it; nothing was changed."""

    reason = "VIEW_REFUSED"
    advice = "Name another file, or stop the other process."


class ViewFailed(TidemarkError):
    """SQLite refused a change of the view's file; what was applied before stays, with the position behind it."""

    reason = "VIEW_FAILED"
    advice = (
        "Make room on the disk, or drop the index or trigger of your own that refuses the change, and open the view "
        "again: it goes on from its position."
    )


class ViewLocked(ViewFailed):
    """Another program holds a write transaction on the view's file."""

    reason = "VIEW_LOCKED"
    advice = "End the other program's transaction, or wait for it."


class ViewDiverged(TidemarkError):
    """The view and the shard differ at `seqno`; the view stays at `last_equal`, where they were equal (U73)."""

    reason = "VIEW_DIVERGED"
    advice = "Delete the view's file and build it again; when that ends the same way, report both digests."

    def __init__(self, shard: int, seqno: int, last_equal: int, found: str) -> None:
        super().__init__(
            f"shard {shard}: at seqno {seqno} the view has {found}; it stays at seqno {last_equal}"
        )
        self.shard = shard
        self.seqno = seqno
        self.last_equal = last_equal


class AccessDenied(_OfRange):
    """The reader may not read on."""

    reason = "ACCESS"
    advice = "Ask whoever owns the log group for access."


class RequestRefused(TidemarkError):
    """The cluster said no; nothing changed.  `refused` is the refusal with its numbers."""

    def __init__(self, refused: Refused, message: str = "") -> None:
        text = message or refused.message or refused.reason.value.replace("_", " ").lower()
        super().__init__(text, reason=refused.reason.value, advice=advice_of(refused.reason))
        self.refused = refused


class UnknownGroup(RequestRefused):
    """No log group of that name.  `group` is the name, empty where it is not known."""

    group = ""


class UnknownKeyspace(RequestRefused):
    """No keyspace of that name.  `keyspace` is the name, empty where it is not known."""

    keyspace = ""


class GroupReplaced(RequestRefused):
    """The group or keyspace was deleted and made again: it is gone, and the next call is about the new one.

    A write that ends so was not appended.
    """


class UnknownShard(RequestRefused):
    """The group has no such shard."""


class PermissionDenied(RequestRefused):
    """Our certificate does not allow it."""


class Trimmed(RequestRefused):
    """Retention has removed what was asked for.  `first` is the first offset kept, -1 when not said."""

    @property
    def first(self) -> int:
        return self.refused.expected


class RecordCameFirst(RequestRefused):
    """Another record lies at the offset that an append expects, or behind it; nothing was appended.

    `end` is the offset behind the newest record of the shard: read up to it, then it is the one to expect.
    """

    @property
    def end(self) -> int:
        return self.refused.expected


class WrongKind(RequestRefused):
    """The group is of the other kind: documents of a log, or records of documents."""


class NotPinned(RequestRefused):
    """The pin has ended, or its name is active with another cut: final (U72)."""


class Behind(RequestRefused):
    """No member that answered has applied as much as the read asks for.  `applied` is how far one has."""

    @property
    def applied(self) -> int:
        return self.refused.expected


_CLASS_BY_REASON: dict[Reason, type[RequestRefused]] = {
    Reason.UNKNOWN_GROUP: UnknownGroup,
    Reason.UNKNOWN_KEYSPACE: UnknownKeyspace,
    Reason.GROUP_REPLACED: GroupReplaced,
    Reason.UNKNOWN_SHARD: UnknownShard,
    Reason.PERMISSION_DENIED: PermissionDenied,
    Reason.TRIMMED: Trimmed,
    Reason.RECORD_CAME_FIRST: RecordCameFirst,
    Reason.WRONG_KIND: WrongKind,
    Reason.NOT_PINNED: NotPinned,
    Reason.BEHIND: Behind,
}


def error_of(refused: Refused, message: str = "") -> RequestRefused:
    """Return the exception that stands for a refusal."""
    return _CLASS_BY_REASON.get(refused.reason, RequestRefused)(refused, message)
