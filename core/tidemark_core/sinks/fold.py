"""The fold of SINK records of one log: the open batch of each sink, its parts, and where marked batches end (W1-W5).

`held` is what is confirmed; what is not decided yet waits after it in log order, so that truncation takes it back and a
rollback that is confirmed drops it.  Stays out: judging requests, appending records, who waits for them.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ..base.entry import Entry, Kind
from ..base.errors import RemoteViolation
from ..base.folds import Covering, Fold

NAME_MAX = 200
SINKS_MAX = 1000
PARTS_MAX = 16_384
ENDS_MAX = 16_384
UNDECIDED_MAX = 4096
BATCH_MAX = (1 << 63) - 1
LEASE_MS_MIN = 1_000
LEASE_MS_MAX = 365 * 86_400_000

_JOIN, _MARK, _DELETE = range(3)
_HEAD = struct.Struct(">BQH")           # what it says, lease, bytes of the name
_PART = struct.Struct(">I")
_ENDS = struct.Struct(">II")            # parts, how many shards
_END = struct.Struct(">IqQI")
_COUNTS = struct.Struct(">II")
_HELD = struct.Struct(">HqqIHIQq")      # bytes of the name, batch, marked, parts, bytes of `joined`, ends, lease, clock
_ENDED = struct.Struct(">qIqQI")
_UNDECIDED = struct.Struct(">qqqI")     # offset, batch, clock, bytes of the payload


class SinkEnd(NamedTuple):
    """Where the rows of a marked batch end in a shard: its last offset, and how many rows with which checksum."""

    shard: int
    last: int
    rows: int
    checksum: int


class Ended(NamedTuple):
    """The newest marked batch that has rows in a shard, and where they end."""

    batch: int
    shard: int
    last: int
    rows: int
    checksum: int


class Join(NamedTuple):
    """A part of a batch is about to append."""

    part: int


class Mark(NamedTuple):
    """A batch is complete: its parts are 0 up to `parts` - 1."""

    parts: int
    shards: tuple[SinkEnd, ...]


class Deletion(NamedTuple):
    """The sink is to be forgotten."""


Change = Join | Mark | Deletion


class Noted(NamedTuple):
    """A SINK record; it lies at offset `at`."""

    at: int
    name: str
    batch: int
    logged_ms: int
    lease_ms: int
    change: Change


class Sink(NamedTuple):
    """How far a sink has come.  Bit p of `joined` says that part p has joined `batch`, which is not marked then."""

    batch: int
    joined: int
    marked: int         # -1: none
    parts: int          # of the marked batch
    ends: tuple[Ended, ...]
    logged_ms: int      # the log's clock when it was used last
    lease_ms: int

    def live(self, now_ms: int) -> bool:
        """Say whether the lease still runs."""
        return now_ms - self.logged_ms <= self.lease_ms

    def ends_at(self) -> tuple[bool, int]:
        """Return what decides which sink is forgotten first: whether a batch is open, and when the lease ends."""
        return self.batch != self.marked, self.logged_ms + self.lease_ms

    def marks(self) -> tuple[SinkEnd, ...]:
        """Return what the newest mark said."""
        return tuple(SinkEnd(*end[1:]) for end in self.ends if end.batch == self.marked)


_NEW = Sink(-1, 0, -1, 0, (), 0, 0)


def wrong_name(name: str) -> str | None:
    """Say what is wrong with the name of a sink, None when nothing is."""
    if not 1 <= len(name) <= NAME_MAX:
        return f"sink has {len(name)} characters, must have 1 to {NAME_MAX}"
    return None if name.isprintable() else f"sink is {name!r}, must have printable characters alone"


def sink_payload(name: str, lease_ms: int, change: Change) -> bytes:
    """Return the payload of a SINK record; the number of the batch is in the header."""
    text = name.encode()
    match change:
        case Join(part):
            kind, rest = _JOIN, _PART.pack(part)
        case Mark(parts, shards):
            kind, rest = _MARK, _ENDS.pack(parts, len(shards)) + b"".join(_END.pack(*each) for each in shards)
        case Deletion():
            kind, rest = _DELETE, b""
    return _HEAD.pack(kind, lease_ms, len(text)) + text + rest


def noted(entry: Entry) -> Noted:
    """Read a SINK record with its payload; raises RemoteViolation when it says what cannot be."""
    return _noted(entry.base, entry.sequence, entry.logged_ms, entry.payload)


def _noted(at: int, batch: int, logged_ms: int, payload: bytes) -> Noted:
    try:
        kind, lease_ms, size = _HEAD.unpack_from(payload)
        end = _HEAD.size + size
        name, change = payload[_HEAD.size:end].decode(), _change(kind, payload, end)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteViolation(f"W1: SINK at {at} cannot be read: {error}") from error
    wrong = wrong_name(name) or wrong_change(change)
    if wrong is not None:
        raise RemoteViolation(f"W1: SINK at {at}: {wrong}")
    if batch < 0 or lease_ms > LEASE_MS_MAX:
        raise RemoteViolation(f"W1: SINK at {at} names batch {batch} for {lease_ms} ms")
    return Noted(at, name, batch, logged_ms, lease_ms, change)


def _change(kind: int, payload: bytes, at: int) -> Change:
    """Read what a record says, up to its end; raises struct.error."""
    if kind == _JOIN:
        (part,) = _PART.unpack(payload[at:])
        return Join(part)
    if kind == _MARK:
        parts, count = _ENDS.unpack_from(payload, at)
        at += _ENDS.size
        if len(payload) - at != count * _END.size:
            raise struct.error(f"{len(payload) - at} bytes for {count} shards")
        return Mark(parts, tuple(SinkEnd(*each) for each in _END.iter_unpack(payload[at:])))
    if kind == _DELETE and at == len(payload):
        return Deletion()
    raise struct.error(f"kind {kind} with {len(payload) - at} bytes")


def wrong_change(change: Change) -> str | None:
    """Say what is wrong with what a record is to say, None when nothing is (W5)."""
    match change:
        case Join(part) if not 0 <= part < PARTS_MAX:
            return f"part is {part}, must be 0 to {PARTS_MAX - 1}"
        case Mark(parts, _) if not 0 <= parts <= PARTS_MAX:
            return f"parts is {parts}, must be 0 to {PARTS_MAX}"
        case Mark(_, shards) if len(shards) > ENDS_MAX:
            return f"shards has {len(shards)} items, must have at most {ENDS_MAX}"
        case Mark(_, shards):
            return _wrong_shards(shards)
    return None


def _wrong_shards(shards: tuple[SinkEnd, ...]) -> str | None:
    before = -1
    for shard, last, rows, checksum in shards:
        if not before < shard < 1 << 32:
            return f"shards names shard {shard} after {before}, must ascend"
        if last < 0 or rows < 0 or not 0 <= checksum < 1 << 32:
            return f"shards: shard {shard} has last {last}, rows {rows} and checksum {checksum}"
        before = shard
    return None


def after(sink: Sink | None, record: Noted) -> Sink | None:
    """Return a sink as a record leaves it, None when it is forgotten; one whose lease is over begins again (W4)."""
    before = sink if sink is not None and sink.live(record.logged_ms) else _NEW
    used = before._replace(logged_ms=record.logged_ms, lease_ms=record.lease_ms)
    match record.change:
        case Join(part):
            if record.batch == used.marked:     # it is complete: a repetition renews the lease (W1)
                return used
            joined = used.joined if record.batch == used.batch else 0
            return used._replace(batch=record.batch, joined=joined | 1 << part)
        case Mark(parts, shards):
            ends = {end.shard: end for end in used.ends}
            ends.update((each.shard, Ended(record.batch, *each)) for each in shards)
            return used._replace(
                batch=record.batch, joined=0, marked=record.batch, parts=parts,
                ends=tuple(ends[shard] for shard in sorted(ends)))
        case Deletion():
            return None


class Sinks(Fold):
    """The fold.  Everything confirmed is in `held`, by name; the rest waits in log order."""

    __slots__ = ("_undecided", "held")

    tag = b"sink"
    kinds = frozenset((Kind.SINK,))
    begins_empty = True

    def __init__(self) -> None:
        self.held: dict[str, Sink] = {}
        self._undecided: deque[Noted] = deque()

    @property
    def undecided(self) -> tuple[Noted, ...]:
        """The records that are not decided yet, in log order."""
        return tuple(self._undecided)

    @property
    def crowded(self) -> bool:
        """Say whether too much is undecided to take more in (W5)."""
        ends = sum(len(_shards(record.change)) for record in self._undecided)
        return len(self._undecided) >= UNDECIDED_MAX or ends > ENDS_MAX

    @property
    def weight(self) -> int:
        return len(self.held) + len(self._undecided)

    def note(self, entry: Entry) -> None:
        """Fold one SINK record in; raises RemoteViolation."""
        self._undecided.append(noted(entry))

    def decide(self, confirmed: int, covering: Covering) -> None:
        """Count the records up to `confirmed`, which are decided, unless they are rolled back (W3)."""
        while self._undecided and self._undecided[0].at <= confirmed:
            record = self._undecided.popleft()
            if covering(record.at) is not None:
                continue
            if (sink := after(self.held.get(record.name), record)) is None:
                self.held.pop(record.name, None)
                continue
            self.held[record.name] = sink
            if len(self.held) > SINKS_MAX:
                self.purge(record.logged_ms)
                self._make_room(record.name)

    def _make_room(self, newest: str) -> None:
        """Forget the sink whose lease ends first, a complete one before an open one, but not the newest (W5)."""
        if len(self.held) > SINKS_MAX:
            del self.held[min(
                self.held.keys() - {newest}, key=lambda name: (*self.held[name].ends_at(), name))]

    def undo_to(self, head: int) -> None:
        """Forget records above `head`."""
        while self._undecided and self._undecided[-1].at > head:
            self._undecided.pop()

    def purge(self, logged_ms: int) -> None:
        """Free the memory of sinks that the log's clock has passed; changes no look-up (W4)."""
        self.held = self._held_at(logged_ms)

    def _held_at(self, logged_ms: int) -> dict[str, Sink]:
        """Return the sinks whose lease runs for the records that are not decided yet, which are older than the clock.

        Such a record renews the lease: a member that forgot the sink before would take it for a new one.
        """
        at_ms = min(logged_ms, self._undecided[0].logged_ms) if self._undecided else logged_ms
        return {name: sink for name, sink in self.held.items() if sink.live(at_ms)}

    # --- looking up ---------------------------------------------------------------------------------------

    def newest(self, name: str, covering: Covering) -> tuple[int, Sink | None]:
        """Return how far a sink will be once all that can be confirmed is, and the offset that says so (W3).

        The offset is -1 when that is confirmed already.
        """
        at, sink = -1, self.held.get(name)
        for record in self._undecided:
            if record.name == name and covering(record.at) is None:
                at, sink = record.at, after(sink, record)
        return at, sink

    def known(self, logged_ms: int) -> Iterator[tuple[str, Sink]]:
        """Yield what is confirmed and not forgotten at `logged_ms` of the log's clock, by name."""
        for name in sorted(self.held):
            if self.held[name].live(logged_ms):
                yield name, self.held[name]

    def has_room_for(self, name: str, change: Change) -> bool:
        """Say whether the ends of a mark may be taken in (W5)."""
        others = sum(len(sink.ends) for each, sink in self.held.items() if each != name)
        own = {end.shard for end in self.held[name].ends} if name in self.held else set()
        return others + len(own | _shards(change)) <= ENDS_MAX

    # --- checkpoints --------------------------------------------------------------------------------------

    def upto(self, offset: int, logged_ms: int) -> Sinks:
        """Return the fold as it was at `offset`, where the log's clock stood at `logged_ms`; W3, W4."""
        copy = Sinks()
        copy.held = self._held_at(logged_ms)
        copy._undecided = deque(each for each in self._undecided if each.at <= offset)
        return copy

    def encode(self) -> bytes:
        parts = [_COUNTS.pack(len(self.held), len(self._undecided))]
        for name, sink in sorted(self.held.items()):
            text, joined = name.encode(), sink.joined.to_bytes((sink.joined.bit_length() + 7) // 8)
            head = _HELD.pack(
                len(text), sink.batch, sink.marked, sink.parts, len(joined), len(sink.ends), sink.lease_ms,
                sink.logged_ms)
            parts += (head, text, joined, *(_ENDED.pack(*end) for end in sink.ends))
        for at, name, batch, logged_ms, lease_ms, change in self._undecided:
            payload = sink_payload(name, lease_ms, change)
            parts += (_UNDECIDED.pack(at, batch, logged_ms, len(payload)), payload)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Sinks, int]:
        """Read `encode`'s bytes at `at`; return the fold and where it ended.

        Raises struct.error when they are cut short, RemoteViolation when they say what cannot be.
        """
        fold = cls()
        held, undecided = _COUNTS.unpack_from(data, at)
        at += _COUNTS.size
        for _ in range(held):
            size, batch, marked, parts, bits, count, lease_ms, logged_ms = _HELD.unpack_from(data, at)
            text, at = _bytes(data, at + _HELD.size, size)
            joined, at = _bytes(data, at, bits)
            ends, at = _bytes(data, at, count * _ENDED.size)
            fold.held[text.decode("utf-8", "replace")] = Sink(
                batch, int.from_bytes(joined), marked, parts, tuple(Ended(*end) for end in _ENDED.iter_unpack(ends)),
                logged_ms, lease_ms)
        for _ in range(undecided):
            place, batch, logged_ms, size = _UNDECIDED.unpack_from(data, at)
            payload, at = _bytes(data, at + _UNDECIDED.size, size)
            fold._undecided.append(_noted(place, batch, logged_ms, payload))
        return fold, at


def _shards(change: Change) -> set[int]:
    return {each.shard for each in change.shards} if isinstance(change, Mark) else set()


def _bytes(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    (found,) = struct.unpack_from(f"{size}s", data, at)
    return found, at + size
