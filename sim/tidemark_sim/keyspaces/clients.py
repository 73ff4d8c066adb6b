"""Clients of a keyspace: operations of every type at nodes picked by chance; each answer goes to the judge.

Stays out: what an answer must be (`judge`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidemark_core.base.refusals import Refused
from tidemark_core.optimistic.cells import NEVER
from tidemark_core.optimistic.coordinating.operations import (
    Steps,
    WriteStep,
    clear,
    elements,
    get,
    get_element,
    getdel,
    put_element,
    remove_element,
    set_,
    set_many,
    strings,
    unset,
)
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.retracting import repair_future
from tidemark_core.optimistic.coordinating.running import Policy
from tidemark_core.optimistic.plane import Operate

from .judge import Change, Seen, Slot
from .node import Node
from .operator import UNIT

if TYPE_CHECKING:
    from .world import RangeWorld

STRINGS = (b"s1", b"s2", b"s3")
SETS = (b"set1", b"set2")
MAPS = (b"map1",)
ELEMENTS = (b"a", b"b", b"c", b"d")

Answer = Callable[[Any], None]


class Clients:
    """All clients of the run."""

    def __init__(self, world: RangeWorld) -> None:
        self.world = world
        self.judge = world.judge
        self._values = 0

    def tick(self) -> None:
        """Ask one operation of a node that is up and knows the range."""
        world = self.world
        nodes = [node for node in world.nodes.values() if node.core is not None and UNIT in node.plane.records]
        if nodes:
            self._by_chance(world.dice.pick(nodes))
        world.after(world.dice.around(world.options.clients.think_ms), self.tick)

    def _by_chance(self, node: Node) -> None:
        dice = self.world.dice
        act: Any
        if self.world.options.clients.repairing:
            act = dice.pick((self.repair, self.set, self.set, self.set, self.get, self.get, self.get, self.get))
            act(node, STRINGS[0])
            return
        element = dice.pick(ELEMENTS)
        kind = dice.pick(("string", "string", "set", "map", "many"))
        if kind == "string":
            act = dice.pick((self.set, self.set_all, self.unset, self.get, self.get, self.get, self.getdel))
            act(node, dice.pick(STRINGS))
        elif kind == "many":
            act = dice.pick((self.clear, self.page, self.page))
            act(node, dice.pick((*SETS, *MAPS)))
            self.scan(node)
        else:
            act = dice.pick((self.put, self.put, self.remove, self.look, self.look))
            act(node, dice.pick(SETS if kind == "set" else MAPS), element)

    # --- Strings ------------------------------------------------------------------------------------------

    def set(self, node: Node, key: bytes) -> Change:
        change = self._change(node, key, self._value())
        self.judge.writes((key, None), change)
        steps = set_(key, change.value or b"", change.expires_at_ms)
        self._write(node, change, steps, (key, None), of_string=True)
        return change

    def set_all(self, node: Node, key: bytes) -> None:
        """Set every String with one stamp; in a sloppy keyspace there is no such write, and `key` alone is set."""
        if self.world.options.sloppy:
            self.set(node, key)
            return
        changes = [self._change(node, each, self._value()) for each in STRINGS]
        steps = set_many([(change.key, change.value or b"", change.expires_at_ms) for change in changes])
        for change in changes:
            self.judge.writes((change.key, None), change)
            steps = watched(steps, change)

        def answer(done: Any) -> None:
            self._count("writes", done)
            if not isinstance(done, Refused) and done.outcome is Outcome.OK:
                for change in changes:
                    self.judge.acknowledged((change.key, None), change, self.world.now_ms, of_string=True)

        self._ask(node, steps, answer)

    def unset(self, node: Node, key: bytes) -> Change:
        change = self._change(node, key)
        self.judge.writes((key, None), change)
        self._write(node, change, unset(key), (key, None), of_string=True)
        return change

    def get(self, node: Node, key: bytes) -> None:
        begun_ms, now_ms = self.world.now_ms, node.now_ms
        self._ask(node, get(key, lambda: now_ms), lambda found: self._read(
            found, lambda: self.judge.string(key, self._seen(begun_ms, now_ms), found.value)))

    def getdel(self, node: Node, key: bytes) -> None:
        change = self._change(node, key)
        self.judge.writes((key, None), change)
        now_ms = node.now_ms

        def answer(found: Any) -> None:
            self._count("getdel", found)
            if isinstance(found, Refused) or found.outcome is not Outcome.OK:
                return
            self.judge.string(key, self._seen(change.begun_ms, now_ms), found.value)
            if change.stamps:
                self.judge.acknowledged((key, None), change, self.world.now_ms, of_string=True)

        self._ask(node, watched(getdel(key, lambda: now_ms), change), answer)

    def repair(self, node: Node, key: bytes) -> None:
        """Take stamps from the future back (D84), at a node that often dies before it is done.

        The judge hears of each stamp when it is sent.
        """
        steps = repair_future(key, lambda: node.now_ms + self.world.options.skew_ms)
        self._ask(node, steps, lambda done: self._count("repair", done))
        if self.world.dice.chance(0.5):
            self.world.after(self.world.dice.between(0, 40), self.world.faults.kill, node)

    def scan(self, node: Node) -> None:
        """Read the Strings page by page, two at a time."""
        self._scan(node, b"s")

    def _scan(self, node: Node, first: bytes) -> None:
        begun_ms, now_ms = self.world.now_ms, node.now_ms

        def judge(page: Any) -> None:
            seen, shown = self._seen(begun_ms, now_ms), dict(page.values)
            for key in self.judge.strings():
                if first <= key and (page.behind is None or key < page.behind):
                    self.judge.string(key, seen, shown.get(key))
            if page.behind is not None:
                self.world.trace.count("pages")
                self._scan(node, page.behind)

        self._ask(node, strings(first, b"t", lambda: now_ms, 2), lambda page: self._read(page, lambda: judge(page)))

    # --- elements -----------------------------------------------------------------------------------------

    def put(self, node: Node, key: bytes, element: bytes) -> Change:
        """Add a member of a Set, or set a field of a Map."""
        of_map = key in MAPS
        change = self._change(node, key, self._value() if of_map else b"")
        slot: Slot = (key, element)
        self.judge.writes(slot, change)
        steps = put_element(key, element, change.value or b"", change.expires_at_ms, shown=of_map)
        self._write(node, change, steps, slot)
        return change

    def remove(self, node: Node, key: bytes, element: bytes) -> Change:
        change = self._change(node, key)
        self.judge.removes((key, element), change)
        self._write(node, change, remove_element(key, element), (key, element))
        return change

    def clear(self, node: Node, key: bytes) -> Change:
        change = self._change(node, key)
        self.judge.clears(change)
        self._write(node, change, clear(key), (key, b""))
        return change

    def look(self, node: Node, key: bytes, element: bytes) -> None:
        begun_ms, now_ms = self.world.now_ms, node.now_ms
        self._ask(node, get_element(key, element, lambda: now_ms), lambda found: self._read(
            found, lambda: self.judge.element(
                (key, element), self._seen(begun_ms, now_ms), found.value, of_map=key in MAPS)))

    def page(self, node: Node, key: bytes, first: bytes = b"") -> None:
        """Read the elements of a key page by page, two at a time."""
        begun_ms, now_ms = self.world.now_ms, node.now_ms

        def judge(page: Any) -> None:
            seen, shown = self._seen(begun_ms, now_ms), dict(page.values)
            for slot in self.judge.known(key):
                element = slot[1] or b""
                if first <= element and (page.behind is None or element < page.behind):
                    self.judge.element(slot, seen, shown.get(element), of_map=key in MAPS)
            if page.behind is not None:
                self.world.trace.count("pages")
                self.page(node, key, page.behind)

        self._ask(node, elements(key, lambda: now_ms, first, 2), lambda page: self._read(page, lambda: judge(page)))

    # --- asking -------------------------------------------------------------------------------------------

    def _value(self) -> bytes:
        self._values += 1
        return b"%d" % self._values

    def _change(self, node: Node, key: bytes, value: bytes | None = None) -> Change:
        dice = self.world.dice
        expires = value is not None and dice.chance(self.world.options.clients.expiring)
        expires_at_ms = node.now_ms + dice.between(50, 3_000) if expires else NEVER
        return Change(key, self.world.now_ms, value, expires_at_ms)

    def _seen(self, begun_ms: int, now_ms: int) -> Seen:
        return Seen(begun_ms, self.world.now_ms, max(now_ms, self.world.operator.record.floor_ms))

    def _write(self, node: Node, change: Change, steps: Steps[Any], slot: Slot, *, of_string: bool = False) -> None:
        def answer(done: Any) -> None:
            self._count("write", done)
            if not isinstance(done, Refused) and done.outcome in (Outcome.OK, Outcome.SLOPPY):
                self.judge.acknowledged(slot, change, self.world.now_ms, of_string=of_string)

        self._ask(node, watched(steps, change), answer)

    def _read(self, found: Any, judge: Callable[[], None]) -> None:
        self._count("read", found)
        if not isinstance(found, Refused) and found.outcome is Outcome.OK:
            judge()

    def _count(self, what: str, answer: Any) -> None:
        outcome = "refused" if isinstance(answer, Refused) else answer.outcome.value
        self.world.trace.count(f"{what}_{outcome}")

    def _ask(self, node: Node, steps: Steps[Any], answer: Answer) -> None:
        if node.core is None:
            return      # it died of the request before
        number = self.world.request_number()
        options = self.world.options
        policy = Policy(options.repair, options.sloppy)
        node.request(Operate(UNIT, number, options.clients.timeout_ms, steps, policy), answer)


def watched(steps: Steps[Any], change: Change) -> Steps[Any]:
    """Run an operation and note the stamps of its attempts."""
    result: Any = None
    while True:
        try:
            step = steps.send(result)
        except StopIteration as end:
            return end.value
        result = yield _watched(step, change) if isinstance(step, WriteStep) else step


def _watched(step: WriteStep, change: Change) -> WriteStep:
    def make(dot: Any) -> Any:
        change.stamps.append(dot.stamp)
        return step.make(dot)

    return step._replace(make=make)
