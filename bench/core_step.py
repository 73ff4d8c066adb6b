"""core: what the decisions alone cost, without wire, disk and processes; a guard against regressions.

Three NodeCores in this process, one shard each, leader and two followers; effects are carried by a loop here.  Every
persist counts as durable at once.  One append is 1 AppendRequest, 3 persists, 2 Append, 2 AppendAck, 1 Reply.
Machines differ by half in how fast they interpret Python, so the guards hold the cost against a yardstick: a fixed
piece of Python of the kind that the core consists of, in turns with it.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

from google_crc32c import value as crc32c
from tidemark_core.base.effects import Feed, Persist, Received, Reply, Send
from tidemark_core.base.entry import Batch
from tidemark_core.base.ids import Member, OperatorId, of_shard, shard_id
from tidemark_core.base.plane import NodeFacts
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.node import NodeCore
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.messages import Appended, BecameLeader, BecomeLeader, Fence, Fenced
from tidemark_core.replication.settings import Configure

from .context import Context
from .figures import Outcome, number, spread

SUMMARY = "pure cost of a step of the core, in process"

OPERATOR = OperatorId("bench")
SHARD = shard_id(1, 0)
EPOCH, ELECTION = 1, 1
GUARDS = {1: 3.2, 64: 0.7}
"""Yardsticks that one append may cost, by appends a turn: 1.3 times what it cost when this was written."""
YARDSTICKS = 1000


class _Trio:
    """Three cores that hear each other at once."""

    def __init__(self) -> None:
        self.members = [Member(f"n{number}", f"{number:032x}") for number in range(3)]
        self.cores = {member: NodeCore(NodeFacts(member)) for member in self.members}
        self.to_operator: list[Any] = []
        self.replies: list[Any] = []
        self.events = 0
        self._inboxes: dict[Member, deque[Any]] = {member: deque() for member in self.members}
        self._sequence = 0
        for member in self.members:
            self.tell(member, Received(of_shard(SHARD), OPERATOR, None, Fence(EPOCH, ELECTION)))
        self.run()
        heads = tuple((m, f.head) for m, f in zip(self.members[1:], self.to_operator[1:], strict=True))
        assert all(isinstance(answer, Fenced) for answer in self.to_operator)
        become = BecomeLeader(EPOCH, ELECTION, tuple(self.members), heads)
        self.tell(self.members[0], Received(of_shard(SHARD), OPERATOR, None, become))
        self.run()
        assert isinstance(self.to_operator[-1], BecameLeader)
        for member in self.members:
            self.tell(member, Configure(SHARD, SynchroSettings()))
        self.run()

    def tell(self, member: Member, event: Any) -> None:
        self._inboxes[member].append(event)

    def run(self) -> None:
        """Turn after turn until nobody has anything to say."""
        now_ms = int(time.time() * 1000)
        while any(self._inboxes.values()):
            for member, inbox in self._inboxes.items():
                if inbox:
                    events = list(inbox)
                    inbox.clear()
                    self.events += len(events)
                    self._carry(member, self.cores[member].step(now_ms, events))

    def _carry(self, member: Member, effects: Any) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self._carry(member, effect.then)
                case Send() if isinstance(effect.to, Member):
                    self.tell(effect.to, Received(effect.address, member, effect.to, effect.message))
                case Send():
                    self.to_operator.append(effect.message)
                case Feed():
                    self.tell(member, effect.event)
                case Reply():
                    self.replies.append(effect.value)

    def append(self, count: int, together: int) -> None:
        """Append `count` batches, `together` of them per turn of the leader."""
        payload = bytes(1024)
        crc = crc32c(payload)
        producer = b"bench-producer-0"
        for start in range(0, count, together):
            for _ in range(min(together, count - start)):
                batch = Batch(producer, self._sequence, 1, 0, 0, crc, payload)
                self.tell(self.members[0], AppendRequest(SHARD, self._sequence, batch))
                self._sequence += 1
            self.run()


@dataclass(frozen=True, slots=True)
class _Mark:
    """A value that the yardstick makes and takes apart."""

    number: int
    name: str
    below: _Mark | None


def _weigh(marks: dict[int, _Mark], number: int) -> int:
    mark = _Mark(number, "mark", marks.get(number - 1))
    marks[number % 64] = mark
    match mark:
        case _Mark(number=found, below=_Mark(number=below)):
            return found - below
        case _Mark(number=found):
            return found
    return 0


def yardstick_us(count: int) -> float:
    """Return the processor time of one yardstick, the mean of `count`; it never changes, or the guards do too."""
    began = time.process_time()
    for _ in range(count):
        marks: dict[int, _Mark] = {}
        sum(_weigh(marks, number) for number in range(64))
    return (time.process_time() - began) * 1e6 / count


def _rate(count: int, together: int) -> tuple[float, float]:
    """Return batches and events per second."""
    trio = _Trio()
    trio.append(count // 10, together)
    trio.replies.clear()
    events_before, began = trio.events, time.process_time()
    trio.append(count, together)
    seconds = time.process_time() - began
    assert len(trio.replies) == count and all(isinstance(reply, Appended) for reply in trio.replies)
    return count / seconds, (trio.events - events_before) / seconds


def run(context: Context) -> Outcome:
    outcome = Outcome("core", "Cost of the core alone, three replicas in one process")
    count, rounds = context.count(full=20_000, quick=4_000), context.count(full=5, quick=2)
    for together, guard in GUARDS.items():
        rates, yardsticks = [], [yardstick_us(YARDSTICKS)]
        for _ in range(rounds):
            rates.append(_rate(count, together))
            yardsticks.append(yardstick_us(YARDSTICKS))
        tell(outcome, together, guard, rates, yardsticks)
    outcome.configuration = {"batches": count, "rounds": rounds, "payload_bytes": 1024, "clock": "processor time"}
    return outcome


def tell(
    outcome: Outcome, together: int, guard: float, rates: list[tuple[float, float]], yardsticks: list[float]
) -> None:
    """Add what rounds found: batches and events per second of each, and the yardstick before and after each."""
    batches, events = zip(*rates, strict=True)
    around = [(before + after) / 2 for before, after in itertools.pairwise(yardsticks)]
    costs = [1e6 / rate / stick for rate, stick in zip(batches, around, strict=True)]
    name = f"{together} append{'s' if together > 1 else ''} a turn"
    outcome.add(f"{name}: appends on all three replicas", spread(batches)["p50"], "batches/s")
    outcome.add(f"{name}: events", spread(events)["p50"], "events/s")
    outcome.add(f"{name}: processor time of one append, three replicas", 1e6 / spread(batches)["p50"], "us")
    outcome.add(
        f"{name}: that time in yardsticks", spread(costs)["p50"], "yardsticks", target=guard, at_most=True,
        basis=f"guard: 1.3 times what it was when this was written; a yardstick is {number(spread(around)['p50'])} us",
    )
    outcome.samples |= {
        f"batches_per_second_{together}": batches, f"events_per_second_{together}": events,
        f"yardstick_us_{together}": yardsticks,
    }
