"""Effects: all that a shell must know how to run, and the events it may feed back.

Writes, rows, messages, timers and traces belong to a unit of any plane and carry its `Address`.  Effects on the log
alone carry a `ShardId`.

Two promises of the shell carry every proof:
1. persists complete in the order given, whole or not at all;
2. `then` runs only after its persist is durable (fsync), and in order.
Messages may be lost, repeated and reordered.  Replies run at most once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from .entry import Entry
from .ids import Address, EntryId, Member, Peer, ShardId, ShardKind

# --- writes: what a Persist holds -------------------------------------------------------------------------
#
# A store knows three verbs. `base.layout` lowers the writes of a log to them; a plane emits them for its own families.


@dataclass(frozen=True, slots=True)
class Put:
    """Store `value` under `key` of a column family."""

    family: str
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class PutMany:
    """Store rows, each a key and its value, in a column family; one object for many of them."""

    family: str
    rows: tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove `key` of a column family; a key that is not there is no error."""

    family: str
    key: bytes


@dataclass(frozen=True, slots=True)
class DeleteRange:
    """Remove the keys in [first, behind) of a column family, in byte order."""

    family: str
    first: bytes
    behind: bytes


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Store one entry at its base offset, or replace it (repair); of one that is not held, the header alone."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class DropAfter:
    """Truncate: remove every entry whose base offset is above `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class DropBefore:
    """Trim: remove every entry whose last offset is below `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class DropPayloads:
    """Remove the payloads of the entries with base in [first, last]; headers stay (K7).

    Control entries in there have no payload, or one that lies with the header (`entry.folded_part`) and stays; some
    entries may have lost theirs before.
    """

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class PutState:
    """Replace the durable state of the replica (`replication.state.ReplicaState.encode()`)."""

    state: bytes


@dataclass(frozen=True, slots=True)
class DropUnit:
    """Remove state and checkpoint of a unit that is no shard; one that is not there is no error."""


@dataclass(frozen=True, slots=True)
class PutCheckpoint:
    """Replace the fold of the log up to a committed entry (`replication.checkpoint`)."""

    checkpoint: bytes


@dataclass(frozen=True, slots=True)
class Wipe:
    """Remove every entry and the checkpoint of the shard; the state written beside it stays."""


StoreWrite = Put | PutMany | Delete | DeleteRange
LogWrite = PutEntry | DropAfter | DropBefore | DropPayloads | PutState | DropUnit | PutCheckpoint | Wipe
Write = LogWrite | StoreWrite

# --- effects ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Persist:
    """Make `writes` durable in one atomic write; then run `then`."""

    address: Address
    writes: tuple[Write, ...]
    then: tuple[Effect, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message (`replication.messages`) to a member or an operator."""

    address: Address
    to: Peer
    message: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """Resolve a client request; `request` is the handle that came with the event."""

    request: int
    value: Any


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read whole entries from base offset `first` while the last offset is at most `last`.

    Stop behind `bytes_max` (at least one entry is returned).  Answer with the event
    `LogRead(shard, tag, entries)`, or `LogReadFailed` when a stored entry fails its checksum.  An entry whose payload
    is not there comes as its header (`held` is False): whether that is right or damage, the core decides.
    """

    shard: ShardId
    tag: Any
    first: int
    last: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read rows of column families by key; answer with the event `RowsRead(address, tag, values)`.

    The answer shows one state of the store that has every write durable before; later writes may show as well.
    """

    address: Address
    tag: Any
    keys: tuple[tuple[str, bytes], ...]   # family and key


@dataclass(frozen=True, slots=True)
class ScanRows:
    """Read at most `rows_max` rows of `family` with keys in [first, behind), in byte order; fewer where they are large.

    At least one row when there is one.  Answer with the event `RowsScanned(address, tag, rows, more)`; it shows one
    state of the store, like that of `ReadRows`.
    """

    address: Address
    tag: Any
    family: str
    first: bytes
    behind: bytes
    rows_max: int


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Fire `TimerFired(address, name)` at `at_ms` or later, replacing the timer of that name; None cancels."""

    address: Address
    name: str
    at_ms: int | None


@dataclass(frozen=True, slots=True)
class Released:
    """Readers of this shard may now be given everything up to and including `upto`."""

    shard: ShardId
    upto: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The documents of this shard were folded further; `changes` is what change streams show of it (U56)."""

    shard: ShardId
    changes: Any   # document_changes.Changes


@dataclass(frozen=True, slots=True)
class Feed:
    """Hand `event` back to `step`; used in `then` to learn of one's own durable writes."""

    event: Any


@dataclass(frozen=True, slots=True)
class PullSnapshot:
    """Pull entries [first, descriptor.head] from `source` in chunks; feed `SnapshotChunk` events.

    The source serves what `LogPlane.snapshot_part` lets it, and where that ends early, so does the pull
    (`SnapshotFailed`).  A new PullSnapshot of the shard replaces the running one; `source` None stops it.
    With `rows` the pull begins with the rows of the shard's documents, all from one state of the source's store, as
    `SnapshotRows` events (U47).
    """

    shard: ShardId
    source: Member | None
    descriptor: SnapshotDescriptor | None
    first: int
    rows: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """Something worth counting and logging happened; `what` is a metric name, `detail` is for people."""

    address: Address
    what: str
    detail: str = ""


Effect = (
    Persist | Send | Reply | ReadLog | ReadRows | ScanRows | SetTimer | Released | Changed | Feed | PullSnapshot | Trace
)

# --- events a shell feeds -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SnapshotDescriptor:
    """What a snapshot holds: every entry of the leader's log from `first` to `head` at PREPARE (A3).

    `checkpoint` is the fold of the log in front of `first` (empty when `first` is 0); `confirmed` is the leader's.
    Where fewer than all members keep payloads, `copies` says how many do, `slot` and `size` are the new member's slot
    and the number of slots, and `sources` are the members to pull from, the leader first (K12).
    """

    epoch: int
    head: EntryId
    first: int
    commit: int
    payload_bytes: int
    checkpoint: bytes = b""
    confirmed: int = -1
    copies: int = 0
    slot: int = -1
    size: int = 0
    sources: tuple[Member, ...] = ()
    kind: ShardKind = ShardKind.LOG


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived.  `to` is the member the sender meant; None when it is this operator.

    `boot` is the boot id of the process that sent it, told to operators only (O42); empty where the shell has none.
    """

    address: Address
    sender: Peer
    to: Member | None
    message: Any
    boot: str = ""


@dataclass(frozen=True, slots=True)
class TimerFired:
    address: Address
    name: str


@dataclass(frozen=True, slots=True)
class LogRead:
    shard: ShardId
    tag: Any
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class LogReadFailed:
    """The entry at or behind base offset `first` could not be read intact; `entries` came before it."""

    shard: ShardId
    tag: Any
    first: int


@dataclass(frozen=True, slots=True)
class RowsRead:
    """The values of the keys that a `ReadRows` named, in its order; None where there is no row."""

    address: Address
    tag: Any
    values: tuple[bytes | None, ...]


@dataclass(frozen=True, slots=True)
class RowsScanned:
    """The rows that a `ScanRows` found: keys and values in order of the keys; with `more` there may be further ones."""

    address: Address
    tag: Any
    rows: tuple[tuple[bytes, bytes], ...]
    more: bool


@dataclass(frozen=True, slots=True)
class RowsDurable:
    """The batch `number` of a unit's rows is durable; fed by `Persist.then`."""

    address: Address
    number: int


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """The next rows of a pulled snapshot: family, key and value each.  `first` and `last` bound the rows of one state.

    A pull that begins again begins with `first` again.
    """

    shard: ShardId
    epoch: int
    rows: tuple[tuple[str, bytes, bytes], ...]
    first: bool
    last: bool


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """The next entries of a pulled snapshot, in order, already checked against their checksums."""

    shard: ShardId
    epoch: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """The pull ended early; the core decides whether to ask again."""

    shard: ShardId
    epoch: int
    message: str


@dataclass(frozen=True, slots=True)
class PeerUp:
    """A link to this member was just made: whatever was in flight before is lost."""

    member: Member


@dataclass(frozen=True, slots=True)
class PeerDown:
    """The link to this member broke; sends to it go nowhere until PeerUp."""

    member: Member


@dataclass(frozen=True, slots=True)
class ClockStepped:
    """The shell's clock moved by `by_ms` beyond the time that passed, and the wall clock is now `behind_ms` behind it.

    Both are milliseconds; small differences are not announced (C1).
    """

    by_ms: int
    behind_ms: int = 0


class Space(IntEnum):
    """Free space of a disk (K20, K20b)."""

    FREE = 0
    FULL = 1         # a leader takes no new appends; entries that leaders already have are stored
    EXHAUSTED = 2    # no entry is stored


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """Free space crossed a watermark."""

    space: Space


@dataclass(frozen=True, slots=True)
class LocalDurable:
    """Our own log is durable up to `upto` of `epoch`; fed by `Persist.then`."""

    shard: ShardId
    epoch: int
    upto: int


@dataclass(frozen=True, slots=True)
class LocalStep:
    """A durable write of a multi-step change completed; fed by `Persist.then`."""

    shard: ShardId
    epoch: int
    name: str
    context: tuple[Any, ...] = field(default=())
