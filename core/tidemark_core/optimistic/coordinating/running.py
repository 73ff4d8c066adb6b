"""Running: the operations that a node coordinates, from their first step to the answer.

A node coordinates for every range, also for those that it owns no copy of.  Messages go to its own member like to any
other one.  Stays out: sockets, the disk, what an operation is made of (`operations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...base.ids import Member
from ..cells import Place, Row
from ..messages import Inspected, Kept, LoadAnswer, StoreAnswer
from ..owner import Source
from ..ring import Range, keyspace_of
from ..stamps import ZERO, Clock, numbers_of
from .inspecting import Inspecting, Inspection, InspectStep
from .operations import HeldStep, ReadStep, RetractStep, Steps, WriteStep
from .outcomes import Outcome, To
from .reading import Found, Read, Repair
from .retracting import Ended, Retracting
from .writing import Done, Write


class Hold(NamedTuple):
    """What does this node hold at these places?  Answer with `on_held`."""

    operation: int
    range: int
    places: tuple[Place, ...]


class Inner(NamedTuple):
    """The request of the node itself; the number is the node's own."""

    number: int


class Look(NamedTuple):
    """The request of the node itself to see how the owners of a range stand."""

    range: int


class Answer(NamedTuple):
    """The end of an operation; `value` is what its generator returned."""

    request: int | Inner | Look
    value: Any


Effect = To | Hold | Answer


class Policy(NamedTuple):
    """The choices of a keyspace for its operations, and those of one request (D77)."""

    repair: Repair = Repair.BLOCKING
    sloppy: bool = False    # nodes that keep a write for owners count for it, and no read need see it (D73)
    r: int = 0              # in place of the R and the W of the range, also of its pending owners; 0: none
    w: int = 0


STRICT = Policy()


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation as it is asked for.  `deadline_ms` is by the node's clock."""

    request: int | Inner | Look
    index: int            # of the range
    deadline_ms: int
    policy: Policy = STRICT
    source: Source = Source.CLIENT


class _Running:
    """One operation, its generator and the step that it waits for."""

    __slots__ = ("asked", "step", "steps", "weak")

    def __init__(self, asked: Asked, steps: Steps[Any]) -> None:
        self.asked = asked
        self.steps = steps
        self.step: Read | Write | Inspecting | Retracting | None = None
        self.weak = False       # a step that ended was content with less than the record asks for (D77)


class Coordinator:
    """All operations that one node coordinates.  `records` are those of all ranges, by index; the owner keeps them."""

    def __init__(self, me: Member, clock: Clock, records: Mapping[int, Range]) -> None:
        self._me = me
        self._clock = clock
        self._records = records
        self._running: dict[int, _Running] = {}   # by the number of the step that each waits for
        self._numbers = numbers_of(clock.actor)
        self.nearest: Sequence[Member] = ()    # members in the order in which reads ask them
        self.nodes: Sequence[Member] = ()      # of the cluster, in the order in which sloppy writes ask them

    def begin(self, now_ms: int, asked: Asked, steps: Steps[Any]) -> list[Effect]:
        """Start an operation."""
        return self._advance(now_ms, _Running(asked, steps), None)

    def on_answer(self, now_ms: int, sender: Member, m: StoreAnswer | LoadAnswer | Kept | Inspected) -> list[Effect]:
        """Take a member's answer; one to an operation that has ended changes nothing."""
        running = self._running.get(m.operation)
        step = running.step if running is not None else None
        if running is None or step is None or running.asked.index != m.range:
            return []
        effects: Sequence[Any]
        match step, m:
            case Write() | Retracting(), StoreAnswer():
                effects = step.on_answer(now_ms, sender, m)
            case Write(), Kept():
                effects = step.on_kept(sender, m)
            case Read(), LoadAnswer():
                effects = step.on_loaded(now_ms, sender, m)
            case Read(), StoreAnswer():
                effects = step.on_stored(sender, m)
            case Inspecting(), Inspected():
                effects = step.on_inspected(sender, m)
            case _:
                effects = []
        return self._follow(now_ms, m.operation, running, effects)

    def on_held(self, now_ms: int, operation: int, rows: Mapping[Place, Row]) -> list[Effect]:
        """Go on with what this node holds."""
        running = self._running.pop(operation, None)
        return self._advance(now_ms, running, rows) if running is not None else []

    def on_forgotten(self, now_ms: int, keyspace: int) -> list[Effect]:
        """Go on with nothing where an operation waits for what this node held of a keyspace."""
        waiting = [number for number, running in self._running.items()
                   if running.step is None and keyspace_of(running.asked.index) == keyspace]
        return [effect for number in waiting for effect in self.on_held(now_ms, number, {})]

    def on_record(self, now_ms: int, index: int) -> list[Effect]:
        """Go on under the newer record of a range."""
        effects: list[Effect] = []
        for number, running in list(self._running.items()):
            if running.asked.index == index and running.step is not None:
                effects += self._follow(now_ms, number, running, running.step.on_record(self._records[index]))
        return effects

    def on_tick(self, now_ms: int) -> list[Effect]:
        """Ask again what was not answered, and end what is over its deadline."""
        effects: list[Effect] = []
        for number, running in list(self._running.items()):
            if running.step is not None:
                over = now_ms >= running.asked.deadline_ms
                effects += self._follow(
                    now_ms, number, running, running.step.on_deadline() if over else running.step.resend())
        return effects

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._running

    def _follow(self, now_ms: int, number: int, running: _Running, effects: Sequence[Any]) -> list[Effect]:
        """Pass messages on; where the step has ended, begin the next one."""
        passed: list[Effect] = []
        for effect in effects:
            if isinstance(effect, To):
                passed.append(effect)
            else:
                del self._running[number]
                passed += self._advance(now_ms, running, effect)
        return passed

    def _advance(self, now_ms: int, running: _Running, result: Any) -> list[Effect]:
        """Give the operation the result of its step, and begin the next step."""
        running.weak |= running.step is not None and running.step.weak
        running.step = None
        while True:
            try:
                step = running.steps.send(result)
            except StopIteration as end:
                weak = running.weak and end.value.outcome is Outcome.OK
                answer = end.value._replace(outcome=Outcome.WEAK) if weak else end.value
                return [Answer(running.asked.request, answer)]
            if isinstance(step, HeldStep):
                return [Hold(self._numbered(running), running.asked.index, step.places)]
            if now_ms < running.asked.deadline_ms:
                return self._begin(now_ms, running, step)
            result = self._over(running, step)   # nothing is sent any more

    def _over(self, running: _Running, step: ReadStep | WriteStep | InspectStep | RetractStep) -> Any:
        match step:
            case ReadStep():
                return _OVER_READ
            case WriteStep():
                return _OVER_WRITE
            case RetractStep():
                return Ended(Outcome.UNKNOWN, ZERO, self._records[running.asked.index].members)
            case InspectStep():
                return Inspection(Outcome.UNKNOWN, self._records[running.asked.index], {}, ())

    def _numbered(self, running: _Running) -> int:
        """Return a number that no step before has, also of another run: a late answer must not count for this one."""
        number = next(self._numbers)
        self._running[number] = running
        return number

    def _begin(
        self, now_ms: int, running: _Running, step: ReadStep | WriteStep | InspectStep | RetractStep
    ) -> list[Effect]:
        asked = running.asked
        record = self._records[asked.index]
        number = self._numbered(running)
        if isinstance(step, InspectStep):
            nodes = () if step.owners_alone else self.nodes
            inspecting = Inspecting(number, asked.index, record, step.places, nodes)
            running.step = inspecting
            return self._follow(now_ms, number, running, inspecting.begin())
        if isinstance(step, RetractStep):
            retracting = Retracting(number, asked.index, record, self._clock, step.key, step.was)
            running.step = retracting
            return self._follow(now_ms, number, running, retracting.begin())
        if isinstance(step, WriteStep):
            write = Write(
                number, asked.index, record, self._clock, step.make, source=asked.source, fixed=step.fixed,
                nodes=self.nodes if asked.policy.sloppy else (), w=asked.policy.w, above=step.above,
            )
            running.step = write
            return self._follow(now_ms, number, running, write.begin(now_ms))
        read = Read(
            number, asked.index, record, self._clock, step.places, step.span, me=self._me, order=self.nearest,
            repair=step.repair or _repair_of(asked.policy, record), r=0 if step.strict else asked.policy.r,
        )
        running.step = read
        return self._follow(now_ms, number, running, read.begin())


def _repair_of(policy: Policy, record: Range) -> Repair:
    """A weak read promises nothing to the reads behind it, so it waits for no repair (D77)."""
    return Repair.ASYNC if policy.repair is Repair.BLOCKING and record.weak(policy.r) else policy.repair


_OVER_READ = Found(Outcome.UNKNOWN, {}, None, 0, (), ())
_OVER_WRITE = Done(Outcome.UNKNOWN, ZERO, ())
