"""The log of a replica, in memory: its index, its folds and its newest entries; never the bytes on disk.

The index says where things are, and every entry adds to it, so it is built in: one run per epoch (which offsets an
epoch wrote), a mark about every MiB, one run per reading order (which slots keep payloads), the control entries whose
payload is stored apart, and a step for each entry above the floor (the commit offset), to undo exactly that one.
All else that is computed from entries is a fold (`base.folds`): the log gives each fold the kinds it names, and what
it stands for is the fold's business.  A leader also keeps the newest entries themselves, to push them without a read.
Stays out: roles, messages, durability, the bytes of checkpoints.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..base.entry import EMPTY_CHAIN, FOLDED_WITH_PAYLOAD, Entry, Kind
from ..base.errors import RemoteViolation
from ..base.folds import F, Fold, Table, check_table, find, overriding
from ..base.ids import NOTHING, EntryId
from ..delivery.order import Block
from ..limbo.decisions import Decisions
from ..subscriptions.fold import Subscriptions
from .checkpoint import FOLDS, Checkpoint, Mark, OrderRun, Run, checkpoint_end
from .producers import ProducerTable

MARK_BYTES = 1 << 20
MARK_ENTRIES = 1024
NEVER_MS = 1 << 62
SLOT_ORDER = 0
LOGGED_MS_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: an expiry or a lease counted from a stamp stays a number of 64 bits."""
OFFSET_MAX = (1 << 63) - 1

_DATA = Kind.DATA
_new = tuple.__new__   # what a named tuple's own constructor does, without a Python frame around it


class _Step(NamedTuple):
    """How the head looked behind one entry."""

    id: EntryId
    base: int
    chain: int
    logged_ms: int
    bytes_total: int


class Log:
    """One log.  `floor` never passes what is committed: nothing at or below it can be undone.

    `folds` are in the order of their table; `decisions`, `subscriptions` and `producers` are those among them that
    replication decides by.  Raises ValueError when two folds of the table share a tag, LookupError when it lacks one
    of the three.
    """

    __slots__ = (
        "_deciding", "_noting", "_noting_data", "_settling", "_steps", "_tail", "_tail_bytes", "_top", "decisions",
        "first", "floor", "folds", "head", "mark_ms", "marks", "orders", "producers", "runs", "settled_entries",
        "solid", "subscriptions", "table", "tail_bytes_max",
    )

    def __init__(self, tail_bytes_max: int = 0, table: Table = FOLDS) -> None:
        check_table(table)
        self.table = table
        self.first = 0                  # offsets below were trimmed
        self.runs: list[Run] = []
        self.marks: list[Mark] = []
        self.orders: list[OrderRun] = []
        self.solid: list[int] = []      # control entries with a payload: every member keeps those
        self.mark_ms = NEVER_MS         # a mark at least so often, when entries come slowly
        self.floor = _Step(NOTHING, -1, EMPTY_CHAIN, 0, 0)
        self._steps: deque[_Step] = deque()
        self._top = self.floor          # the newest step, else the floor; kept here, for each entry asks many times
        self.head = self._top.id        # the log's last entry
        self.settled_entries = 0        # how many the floor has passed since this object was made
        self.tail_bytes_max = tail_bytes_max
        # base -> entry, contiguous up to the head; finding the oldest in a plain dict passes over all it has dropped
        self._tail: OrderedDict[int, Entry] = OrderedDict()
        self._tail_bytes = 0
        self._keep(tuple(kind() for kind in table))

    def _keep(self, folds: tuple[Fold, ...]) -> None:
        """Take these folds, and note which is called when: an entry costs calls of the folds that want it alone."""
        self.folds = folds
        self.decisions, self.subscriptions = find(folds, Decisions), find(folds, Subscriptions)
        self.producers = find(folds, ProducerTable)
        self._noting = {kind: tuple(fold for fold in folds if kind in fold.kinds) for kind in Kind}
        self._noting_data = self._noting[_DATA]
        self._settling, self._deciding = overriding(folds, "settle"), overriding(folds, "decide")

    @classmethod
    def restore(
        cls, checkpoint: bytes | None, headers: Iterable[Entry], commit: int, table: Table = FOLDS,
        producers: Callable[[], ProducerTable] | None = None,
    ) -> Log:
        """Rebuild from storage; `headers` start right behind the checkpoint, `commit` becomes the floor.

        `producers` returns the table that is stored beside the checkpoint, where the checkpoint has none.
        """
        log = cls(table=table)
        if checkpoint:
            log.adopt(Checkpoint.decode(checkpoint, table, producers))
        for entry in headers:
            log.append(entry)
            log.settle(min(commit, log.head.offset))
        return log

    def adopt(self, checkpoint: Checkpoint) -> None:
        """Start from a checkpoint, as if everything up to it had been appended and committed."""
        self.first = checkpoint.first
        self.runs = list(checkpoint.runs)
        self.marks = list(checkpoint.marks)
        self.orders, self.solid = list(checkpoint.orders), list(checkpoint.solid)
        self._keep(tuple(fold.upto(checkpoint.at.offset, checkpoint.logged_ms) for fold in checkpoint.folds))
        self.floor = _Step(checkpoint.at, -1, checkpoint.chain, checkpoint.logged_ms, checkpoint.bytes_total)
        self._steps.clear()
        self._find_top()

    def _find_top(self) -> None:
        self._top = self._steps[-1] if self._steps else self.floor
        self.head = self._top.id

    def fold(self, wanted: type[F]) -> F:
        """Return the fold of this class; raises LookupError when the log is made without it."""
        return find(self.folds, wanted)

    # --- where things are ---------------------------------------------------------------------------------

    @property
    def chain(self) -> int:
        return self._top.chain

    @property
    def logged_ms(self) -> int:
        """The log's clock: when its newest entry was logged."""
        return self._top.logged_ms

    @property
    def unsettled_entries(self) -> int:
        return len(self._steps)

    @property
    def unsettled_bytes(self) -> int:
        return self._top.bytes_total - self.floor.bytes_total

    @property
    def bytes_total(self) -> int:
        """Bytes of headers and payloads ever logged, up to the head."""
        return self._top.bytes_total

    @property
    def bytes_held(self) -> int:
        """Bytes of headers and payloads from `first` to the head."""
        return self.bytes_from(self.first)

    def bytes_from(self, offset: int) -> int:
        """Bytes of headers and payloads from the stretch that `offset` lies in to the head, what is held of them."""
        at = bisect_right(self.marks, max(offset, self.first), key=lambda mark: mark.base) - 1
        return self._top.bytes_total - (self.marks[at].bytes_before if at >= 0 else 0)

    def epoch_at(self, offset: int) -> int:
        """Return the epoch that wrote `offset`, 0 when no entry holds it."""
        at = bisect_right(self.runs, offset, key=lambda run: run.first) - 1
        return self.runs[at].epoch if at >= 0 and offset <= self.runs[at].last else 0

    def id_at(self, offset: int) -> EntryId:
        """Return the id of the entry that ends at `offset`, which must be an entry boundary or -1."""
        return EntryId(self.epoch_at(offset), offset) if offset >= 0 else NOTHING

    def chain_at(self, offset: int) -> int | None:
        """Return the chained checksum of the entry that ends at `offset`; None where memory does not hold it.

        Memory holds it from the floor on.
        """
        return next((step.chain for step in (self.floor, *self._steps) if step.id.offset == offset), None)

    def contains(self, entry: EntryId) -> bool:
        """Say whether the entry with this id is in the log (ids are unique, one leader per epoch)."""
        return entry == NOTHING or (entry.offset >= 0 and self.epoch_at(entry.offset) == entry.epoch != 0)

    def highest_at_or_below(self, epoch: int) -> EntryId:
        """Return the highest entry whose epoch is `epoch` or older (O21)."""
        at = bisect_right(self.runs, epoch, key=lambda run: run.epoch) - 1
        return EntryId(self.runs[at].epoch, self.runs[at].last) if at >= 0 else NOTHING

    def order_spans(self, first: int, last: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first, last, order) for what of [first, last] holds data entries of one order, in order."""
        at = max(bisect_right(self.orders, first, key=lambda run: run.first) - 1, 0)
        for number in range(at, len(self.orders)):
            run = self.orders[number]
            end = self.orders[number + 1].first - 1 if number + 1 < len(self.orders) else last
            if run.first > last:
                return
            yield max(first, run.first), min(end, last), run.order

    def block_at(self, offset: int) -> Block:
        """Return the block that lies around `offset`; in front of the first data entry slots stand in their order.

        Every member that holds the offset says the same: the block in force stays known when retention cuts into it.
        """
        behind = bisect_right(self.orders, offset, key=lambda run: run.first)
        last = self.orders[behind].first - 1 if behind < len(self.orders) else OFFSET_MAX
        return Block(self.orders[behind - 1].order if behind else SLOT_ORDER, last)

    def around_solid(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield what of [first, last] lies between control entries whose payload is stored apart."""
        for base in self.solid[bisect_left(self.solid, first):bisect_right(self.solid, last)]:
            if first < base:
                yield first, base - 1
            first = base + 1
        if first <= last:
            yield first, last

    # --- growing and shrinking ----------------------------------------------------------------------------

    def append(self, entry: Entry) -> None:
        """Fold in the entry right behind the head; raises RemoteViolation when it is not."""
        top = self._top
        if entry.prev != top.id or entry.base != top.id.offset + 1 or entry.epoch < top.id.epoch:
            raise RemoteViolation(f"L2: entry {entry.id} behind {entry.prev} does not continue the log at {top.id}")
        if entry.logged_ms > LOGGED_MS_MAX:
            raise RemoteViolation(f"C3: entry {entry.id} is stamped {entry.logged_ms}, behind the year 9999")
        if entry.prev_chain != top.chain:
            raise RemoteViolation(f"entry {entry.id} continues another log: its chained checksum differs")
        base, last = entry.base, entry.last
        data = entry.kind is _DATA
        try:
            for fold in self._noting_data if data else self._noting[entry.kind]:
                fold.note(entry)
        except RemoteViolation:
            self._undo_folds(top.id.offset)   # those that took it in before another one refused it
            raise
        if data:
            if not self.orders or self.orders[-1].order != entry.order:
                self.orders.append(OrderRun(base, entry.order))
        elif entry.payload_bytes and entry.kind not in FOLDED_WITH_PAYLOAD:   # those lie with their headers
            self.solid.append(base)
        if self.runs and self.runs[-1].epoch == entry.epoch:
            self.runs[-1] = Run(entry.epoch, self.runs[-1].first, last)
        else:
            self.runs.append(Run(entry.epoch, base, last))
        if (
            not self.marks
            or top.bytes_total - self.marks[-1].bytes_before >= MARK_BYTES
            or base - self.marks[-1].base >= MARK_ENTRIES
            or entry.logged_ms - self.marks[-1].logged_ms >= self.mark_ms
        ):
            self.marks.append(Mark(base, top.bytes_total, entry.logged_ms))
        size = entry.size
        self.head = _new(EntryId, (entry.epoch, last))
        self._top = _new(_Step, (self.head, base, entry.chain, entry.logged_ms, top.bytes_total + size))
        self._steps.append(self._top)
        if self.tail_bytes_max:
            self._tail[base] = entry
            self._tail_bytes += size
            while self._tail_bytes > self.tail_bytes_max and len(self._tail) > 1:
                self._drop_oldest_of_tail()

    def settle(self, commit: int) -> None:
        """Raise the floor to the entry ending at `commit`: it can no longer be undone."""
        steps = self._steps
        if not steps or steps[0].id.offset > commit:
            return
        while steps and steps[0].id.offset <= commit:
            self.floor = steps.popleft()
            self.settled_entries += 1
        for fold in self._settling:
            fold.settle(self.floor.id.offset)

    def decide(self, confirmed: int) -> None:
        """Tell the folds that everything up to `confirmed` is decided: it counts, or a rollback covers it (L10)."""
        for fold in self._deciding:
            fold.decide(confirmed, self.decisions.covering)

    def purge(self, logged_ms: int) -> None:
        """Free memory of what the log's clock has passed at a committed entry; changes no answer."""
        for fold in self.folds:
            fold.purge(logged_ms)

    def truncate(self, to: EntryId) -> bool:
        """Cut back to the highest entry at or below `to`; False, and nothing done, when that is below the floor."""
        if self.floor.id > to:
            return False
        while self._steps and self._steps[-1].id > to:
            self._steps.pop()
        self._find_top()
        head = self.head.offset
        while self.runs and self.runs[-1].first > head:
            self.runs.pop()
        if self.runs:
            self.runs[-1] = self.runs[-1]._replace(last=head)
        while self.marks and self.marks[-1].base > head:
            self.marks.pop()
        while self.orders and self.orders[-1].first > head:
            self.orders.pop()
        while self.solid and self.solid[-1] > head:
            self.solid.pop()
        self._undo_folds(head)
        self.forget_tail()
        return True

    def _undo_folds(self, head: int) -> None:
        for fold in self.folds:
            fold.undo_to(head)

    def trim_point(self, before: int) -> int:
        """Return the highest entry boundary we know of at or below `before`, at least `first`."""
        at = bisect_right(self.marks, before, key=lambda mark: mark.base) - 1
        return max(self.first, self.marks[at].base) if at >= 0 else self.first

    def trim(self, first: int) -> None:
        """Forget what lies below `first`, an entry boundary at or below the floor's end."""
        assert first <= self.floor.id.offset + 1, "#281: trimmed past commit"
        self.first = max(self.first, first)
        at = bisect_right(self.marks, self.first, key=lambda mark: mark.base) - 1
        self.marks = self.marks[max(at, 0):]
        at = bisect_right(self.orders, self.first, key=lambda run: run.first) - 1
        self.orders = self.orders[max(at, 0):]
        self.solid = self.solid[bisect_left(self.solid, self.first):]
        # A remembered batch is answered with its fate though its bytes are gone (L19); to ask takes a look at each.
        first = min(self.first, *(fold.oldest for fold in self.folds)) if self.decisions.ranges else self.first
        for fold in self.folds:
            fold.trim(first)

    @property
    def weight(self) -> int:
        """How many items a checkpoint holds, about."""
        return len(self.marks) + sum(fold.weight for fold in self.folds)

    def checkpoint(self, producers: bool = True) -> Checkpoint:
        """Return the log up to the floor; without `producers` the table of producers is left to its rows."""
        at, logged_ms = self.floor.id, self.floor.logged_ms
        floor = at.offset
        return Checkpoint(
            at, self.floor.chain, logged_ms, self.floor.bytes_total, self.first,
            tuple(run._replace(last=min(run.last, floor)) for run in self.runs if run.first <= floor),
            tuple(mark for mark in self.marks if mark.base <= floor),
            tuple(run for run in self.orders if run.first <= floor),
            tuple(base for base in self.solid if base <= floor),
            tuple(fold.upto(floor, logged_ms) for fold in self.folds if producers or fold is not self.producers),
        )

    # --- the newest entries -------------------------------------------------------------------------------

    def in_tail(self, base: int) -> bool:
        return base in self._tail

    def take(self, base: int, bytes_max: int) -> Iterator[Entry]:
        """Yield tail entries from `base` on, at least one, stopping behind `bytes_max` bytes."""
        while bytes_max > 0 and (entry := self._tail.get(base)) is not None:
            yield entry
            bytes_max -= entry.size
            base = entry.last + 1

    def shrink_tail(self, below: int) -> None:
        """Drop tail entries that everybody has: those that end below `below`."""
        while self._tail and next(iter(self._tail.values())).last < below:
            self._drop_oldest_of_tail()

    def forget_tail(self) -> None:
        self._tail.clear()
        self._tail_bytes = 0

    def _drop_oldest_of_tail(self) -> None:
        _, entry = self._tail.popitem(last=False)
        self._tail_bytes -= entry.size


def recovery_start(checkpoint: bytes | None) -> int:
    """Return the first base offset whose header `Log.restore` needs."""
    return checkpoint_end(checkpoint).offset + 1 if checkpoint else 0
