"""The leader's queue: entries of this leadership that are appended and not yet confirmed, and who waits for them.

`advance` walks `confirmed` (L3) and says who is to be answered what, in the order the answers must leave (L17).
`cover` takes a range out of the walk for good (L8).  Stays out: the log, messages, who may append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ..base.entry import Durability
from .decisions import Range

_NEVER = 1 << 62
ProducerId = bytes


class Verdict(StrEnum):
    """What a waiting caller is told."""

    CONFIRMED = "CONFIRMED"
    LOCAL = "LOCAL"              # on the leader's disk, no more than that (L14)
    ROLLED_BACK = "ROLLED_BACK"
    UNKNOWN = "UNKNOWN"          # the deadline came first


class Waiter(NamedTuple):
    """A request and when it has waited long enough, in milliseconds; `final` waits past an acknowledgement as LOCAL."""

    request: int
    deadline_ms: int
    final: bool = False


@dataclass(slots=True)
class Item:
    """One data entry in limbo."""

    base: int
    last: int
    count: int
    epoch: int
    durability: Durability
    bytes: int
    since_ms: int
    deadline_ms: int
    producer: ProducerId
    sequence: int
    waiters: list[Waiter] = field(default_factory=list)
    covered: Range | None = None   # rolled back, maybe not definitely yet
    told: bool = False             # acknowledged as LOCAL


class Answer(NamedTuple):
    """Tell `waiters` what became of `item`."""

    item: Item
    waiters: tuple[Waiter, ...]
    verdict: Verdict


class Covered(NamedTuple):
    """A rollback that is not confirmed yet, and what it takes away."""

    range: Range
    items: tuple[Item, ...]


class Limbo:
    """The queue of one leadership; `opening` is the offset of its EPOCH_START."""

    __slots__ = (
        "_asked", "_covered", "_queue", "_told", "_unanswered", "bytes", "confirmed", "data_confirmed", "opening",
        "rollbacks", "timeouts",
    )

    def __init__(self, opening: int, confirmed: int) -> None:
        self.opening = opening
        self.confirmed = confirmed
        self.data_confirmed = -1   # newest entry of ours that left the queue as confirmed
        self.bytes = 0
        self.rollbacks = 0    # entries rolled back definitely
        self.timeouts = 0     # callers told that the outcome is unknown
        self._queue: deque[Item] = deque()        # every entry above `confirmed`, in log order
        self._asked: deque[Item] = deque()        # of those: QUORUM, undecided
        self._covered: deque[Covered] = deque()
        self._unanswered: deque[Item] = deque()   # not covered, callers not answered yet; FIFO of replies (L17)
        self._told: deque[Item] = deque()         # acknowledged as LOCAL, and somebody waits for the final outcome

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._queue)

    # --- filling ------------------------------------------------------------------------------------------

    def push(self, item: Item) -> None:
        """Put a new entry behind all others."""
        self._queue.append(item)
        self._unanswered.append(item)
        if item.durability is Durability.QUORUM:
            self._asked.append(item)
        self.bytes += item.bytes

    def find(self, last: int) -> Item | None:
        """Return the entry that ends at `last`, None when it is inherited or decided."""
        for item in self._queue:
            if item.last == last:
                return item
        return next((item for item in self._unanswered if item.last == last), None)

    def wait(self, item: Item, waiter: Waiter) -> None:
        """Let one more caller wait for an entry that `find` returned."""
        item.waiters.append(waiter)
        if item.told and item not in self._told:
            self._told.append(item)

    def inherit(self, item: Item) -> None:
        """Let callers wait for an entry of an earlier leadership, which EPOCH_START's commit decides (L3, L6)."""
        at = next((index for index, other in enumerate(self._unanswered) if other.last > item.last), None)
        self._unanswered.insert(len(self._unanswered) if at is None else at, item)

    @property
    def local_first(self) -> bool:
        """Say whether the leader's own disk may answer somebody: the next to be answered is a LOCAL entry."""
        return bool(self._unanswered) and self._unanswered[0].durability is Durability.LOCAL

    # --- deciding -----------------------------------------------------------------------------------------

    def advance(self, commit: int, synchro: int, durable: int) -> list[Answer]:
        """Walk `confirmed` up to what may pass (L3).  `synchro` is how far the synchro quorum reaches."""
        if commit < self.opening:
            return []
        answers: list[Answer] = []
        target = commit
        while True:
            asked = self._asked[0] if self._asked else None
            covered = self._covered[0] if self._covered else None
            if covered is not None and (asked is None or covered.range.first < asked.base):
                if commit < covered.range.at:
                    target = min(target, covered.range.first - 1)
                    break
                self._answer(answers, covered.range.first - 1, -1)  # older successes leave first
                self._covered.popleft()
                self.rollbacks += len(covered.items)
                answers += [self._settle(item, Verdict.ROLLED_BACK) for item in reversed(covered.items)]
            elif asked is not None and asked.last <= min(commit, synchro):
                self._asked.popleft()
            else:
                if asked is not None:
                    target = min(target, asked.base - 1)
                break
        self.confirmed = max(self.confirmed, target)
        self._answer(answers, self.confirmed, durable)
        while self._queue and self._queue[0].last <= self.confirmed:
            left = self._queue.popleft()
            self.bytes -= left.bytes
            if left.covered is None:
                self.data_confirmed = left.last
        answers += [self._settle(item, Verdict.CONFIRMED) for item in self._told if item.last <= self.confirmed]
        if self._told:
            self._told = deque(item for item in self._told if item.waiters)
        return [answer for answer in answers if answer.waiters]

    def _answer(self, answers: list[Answer], confirmed: int, durable: int) -> None:
        """Answer from the front: whoever is not to be answered yet holds up everybody behind (L14, L17)."""
        unanswered = self._unanswered
        while unanswered:
            oldest = unanswered[0]
            if oldest.covered is not None:          # inherited with its range, and so are those that follow
                covered = [item for item in unanswered if item.covered == oldest.covered]
                answers += [self._settle(item, Verdict.ROLLED_BACK) for item in reversed(covered)]
                for _ in covered:
                    unanswered.popleft()
                continue
            if oldest.last <= confirmed:
                verdict = Verdict.CONFIRMED
            elif oldest.durability is Durability.LOCAL and oldest.last <= durable:
                verdict = Verdict.LOCAL
                oldest.told = True
            else:
                return
            unanswered.popleft()
            answers.append(self._settle(oldest, verdict))
            if oldest.waiters:
                self._told.append(oldest)

    def _settle(self, item: Item, verdict: Verdict) -> Answer:
        later = [waiter for waiter in item.waiters if waiter.final] if verdict is Verdict.LOCAL else []
        answered = tuple(waiter for waiter in item.waiters if not (later and waiter.final))
        item.waiters = later
        return Answer(item, answered, verdict)

    # --- rolling back -------------------------------------------------------------------------------------

    def oldest_asked(self) -> Item | None:
        """Return the oldest undecided QUORUM entry that no rollback covers: the only one that may time out (L7)."""
        return self._asked[0] if self._asked else None

    def cover(self, covered: Range) -> None:
        """A ROLLBACK is in the log: from now on nothing confirms its range (L8)."""
        assert covered.first > self.confirmed, "L7: a rollback below confirmed"
        self._asked.clear()
        items: deque[Item] = deque()
        while self._unanswered and self._unanswered[-1].base >= covered.first:
            item = self._unanswered.pop()
            item.covered = covered
            items.appendleft(item)
        assert all(item.covered is not None for item in self._queue if item.base >= covered.first), (
            "L15: an acknowledged LOCAL entry would be rolled back"
        )
        self._covered.append(Covered(covered, tuple(items)))

    def rolled_back_here(self, durable: int) -> list[Answer]:
        """Tell of rollbacks that are durable on this node alone: unsafe when the leader is lost (`Immediate`)."""
        return [
            self._settle(item, Verdict.ROLLED_BACK)
            for covered in self._covered if covered.range.at <= durable
            for item in reversed(covered.items) if item.waiters
        ]

    @property
    def pending_from(self) -> int:
        """First offset of the oldest rollback that is not confirmed yet, -1 when there is none."""
        return self._covered[0].range.first if self._covered else -1

    # --- time ---------------------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> list[Answer]:
        """Tell whoever has waited long enough that the outcome is unknown."""
        answers: list[Answer] = []
        for item in self._awaited():
            late = tuple(waiter for waiter in item.waiters if waiter.deadline_ms <= now_ms)
            if late:
                item.waiters = [waiter for waiter in item.waiters if waiter.deadline_ms > now_ms]
                answers.append(Answer(item, late, Verdict.UNKNOWN))
                self.timeouts += len(late)
        return answers

    def next_deadline(self) -> int | None:
        """Return when to look at the clock again, None while nobody waits."""
        asked = self._asked[0].deadline_ms if self._asked else _NEVER
        at = min((waiter.deadline_ms for item in self._awaited() for waiter in item.waiters), default=_NEVER)
        at = min(at, asked)
        return at if at < _NEVER else None

    def _awaited(self) -> Iterator[Item]:
        """Yield entries somebody may wait for."""
        for covered in self._covered:
            yield from covered.items
        yield from self._told
        yield from self._unanswered

    def everybody(self) -> list[int]:
        """Return every waiting request, and let them go: this leadership is over."""
        requests = [waiter.request for item in self._awaited() for waiter in item.waiters]
        for item in self._awaited():
            item.waiters.clear()
        return requests
