"""Delivery minus one repair, each named by its rule: of the reader, and of the sender on members.

Stays out: everything below what is released; see `mutants`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.entry import Kind
from tidemark_core.delivery import buffer as core_buffer
from tidemark_core.delivery import stretch as core_stretch
from tidemark_core.delivery.buffer import Buffer
from tidemark_core.delivery.messages import GapKind, Item, Started, Status
from tidemark_core.delivery.order import Block
from tidemark_core.delivery.reader import Reader
from tidemark_core.delivery.sender import Say, Sender
from tidemark_core.delivery.slowness import Slowness
from tidemark_core.delivery.stretch import Rule, Stretch
from tidemark_core.log_plane import LogPlane
from tidemark_core.replication.log import Log

from .mutant import Mutant, substitute

# --- who sends ----------------------------------------------------------------------------------------------


def _self_listed(stack: ExitStack) -> None:
    def ships(slots: Any, me: int, known_down: Any) -> bool:
        return me not in known_down and original(slots, me, known_down)

    original = core_stretch.ships
    substitute(stack, core_stretch, "ships", ships)


def _first_slot_alone(stack: ExitStack) -> None:
    substitute(stack, core_stretch, "ships", lambda slots, me, known_down: slots[0] == me)


# --- the reader ---------------------------------------------------------------------------------------------


def _old_generations(stack: ExitStack) -> None:
    def any_generation(original: Callable[..., Any]) -> Callable[..., Any]:
        def on(self: Reader, now_ms: int, node: str, m: Any) -> Any:
            return original(self, now_ms, node, replace(m, generation=self.generation))
        return on

    substitute(stack, Reader, "on_started", any_generation(Reader.on_started))
    substitute(stack, Reader, "on_shipment", any_generation(Reader.on_shipment))


def _gap_in_single_copy(stack: ExitStack) -> None:
    def fail_over(self: Reader, now_ms: int) -> Any:
        lacking = [node for node, source in self.sources.items() if source.started and source.through >= self.next]
        everybody = len({*lacking, *self.known_down}) == len(self.sources)
        if everybody and not self.all_send_all and self._released >= self.next:
            return self._pass(now_ms, GapKind.DATALOSS, self.next)
        return original(self, now_ms)

    original = Reader._fail_over
    substitute(stack, Reader, "_fail_over", fail_over)


def one_answer_proves_loss(stack: ExitStack) -> None:
    def fail_over(self: Reader, now_ms: int) -> Any:
        sources = self.sources
        answered = {n: s for n, s in sources.items() if s.started and s.through >= self.next}
        if self.all_send_all and answered:
            self.sources = answered
        try:
            return original(self, now_ms)
        finally:
            self.sources = sources

    original = Reader._fail_over
    substitute(stack, Reader, "_fail_over", fail_over)


def _silence_blames_all(stack: ExitStack) -> None:
    substitute(
        stack, Reader, "_silent", lambda self: [source for source in self._live() if source.through < self.next]
    )


def _words_do_not_count(stack: ExitStack) -> None:
    def hear(self: Reader, now_ms: int, source: Any, released: int) -> None:
        heard_ms = source.heard_ms
        original(self, now_ms, source, released)
        source.heard_ms = heard_ms

    original = Reader._hear
    substitute(stack, Reader, "_hear", hear)


def _duplicates_delivered(stack: ExitStack) -> None:
    def take(self: Buffer, offset: int) -> Any:
        if self._heap and self._heap[0] <= offset:
            found = self._items.pop(core_buffer.heappop(self._heap))
            self._forget(*found)
            return found
        return None

    substitute(stack, Buffer, "take", take)


def _overlaps_delivered(stack: ExitStack) -> None:
    substitute(stack, Item, "part", lambda self, first, last: self)


def _never_back(stack: ExitStack) -> None:
    substitute(stack, Reader, "_is_back", lambda self, source: False)


def _all_send_all_for_good(stack: ExitStack) -> None:
    def slide(self: Reader, now_ms: int) -> Any:
        return self._grant() if self.all_send_all else original(self, now_ms)

    original = Reader._slide
    substitute(stack, Reader, "_slide", slide)


def _old_coverage_kept(stack: ExitStack) -> None:
    def start(self: Reader, now_ms: int, source: Any) -> Any:
        through = source.through
        effect = original(self, now_ms, source)
        source.through = max(through, source.through)
        return effect

    original = Reader._start
    substitute(stack, Reader, "_start", start)


# --- slow members -------------------------------------------------------------------------------------------


def _nobody_slow(stack: ExitStack) -> None:
    substitute(stack, Slowness, "_too_slow", lambda self, node: None)


def _slow_waited_for(stack: ExitStack) -> None:
    substitute(stack, Reader, "known_down", property(lambda self: tuple(sorted(self.down))))


def _application_not_asked(stack: ExitStack) -> None:
    def after(self: Reader, now_ms: int) -> Any:
        effects = original(self, now_ms)
        if self._waiting_ms is None and self._released >= self.next:
            self._waiting_ms = now_ms
        return effects

    original = Reader._after
    substitute(stack, Reader, "_after", after)


# --- the sender ---------------------------------------------------------------------------------------------


def _coverage_beyond(stack: ExitStack) -> None:
    def looked(self: Sender, now_ms: int, look: Any, found: Stretch, *facts: Any) -> None:
        if found.more:
            found.more, found.through = False, look.asked.last
        original(self, now_ms, look, found, *facts)

    original = Sender.looked
    substitute(stack, Sender, "looked", looked)


def _next_block_begun(stack: ExitStack) -> None:
    def block_at(self: Log, offset: int) -> Block:
        order, last = original(self, offset)
        return Block(order, last + 1)

    original = Log.block_at
    substitute(stack, Log, "block_at", block_at)


def _control_in_slot_order(stack: ExitStack) -> None:
    def pieces(headers: Any, first: int, order: int, holes: Any) -> Any:
        for piece in original(headers, first, order, holes):
            own = piece.header is not None and piece.header.kind is Kind.DATA
            yield piece if own else piece._replace(order=0)

    original = core_stretch.pieces
    substitute(stack, core_stretch, "pieces", pieces)


def _released_ignored(stack: ExitStack) -> None:
    def readable(self: LogPlane, shard: Any) -> Any:
        found = original(self, shard)
        return found and (found[0], self.shards[shard].replica.log.head.offset)

    def holes(self: LogPlane, shard: Any, first: int, last: int) -> Any:
        return known(self, shard, first, min(last, self.shards[shard].replica.confirmed))

    original, known = LogPlane.readable, LogPlane.holes
    substitute(stack, LogPlane, "readable", readable)
    substitute(stack, LogPlane, "holes", holes)


def _holes_unseen(stack: ExitStack) -> None:
    def step(self: Sender, now_ms: int, readable: Any, holes: Any, block_at: Any) -> Any:
        return original(self, now_ms, readable, lambda first, last: [], block_at)

    def looked(
        self: Sender, now_ms: int, look: Any, found: Stretch, readable: Any, holes: Any, block_at: Any
    ) -> None:
        proceed(self, now_ms, look, found, readable, lambda first, last: [], block_at)

    original, proceed = Sender.step, Sender.looked
    substitute(stack, Sender, "step", step)
    substitute(stack, Sender, "looked", looked)


def _window_ignored(stack: ExitStack) -> None:
    def step(self: Sender, now_ms: int, readable: Any, holes: Any, block_at: Any) -> Any:
        self.granted_bytes = 1 << 40
        return original(self, now_ms, readable, holes, block_at)

    original = Sender.step
    substitute(stack, Sender, "step", step)


def _first_is_released(stack: ExitStack) -> None:
    def step(self: Sender, now_ms: int, readable: Any, holes: Any, block_at: Any) -> Any:
        step = original(self, now_ms, readable, holes, block_at)
        if isinstance(step, Say) and isinstance(step.message, Started) and step.message.status is Status.OK:
            return Say(replace(step.message, first=max(0, step.message.released)))
        return step

    original = Sender.step
    substitute(stack, Sender, "step", step)


def _known_down_ignored(stack: ExitStack) -> None:
    def decide(self: Rule, start: Any, me: str) -> None:
        original(self, replace(start, known_down=()), me)

    original = Rule.__init__
    substitute(stack, Rule, "__init__", decide)


DELIVERY_MUTANTS: tuple[Mutant, ...] = (
    Mutant("S6", "a listed node sends as if it were not listed", _self_listed, "delivery"),
    Mutant("S5", "the first that lives sends", _first_slot_alone, "delivery"),
    Mutant("S4", "nodes go by known_down", _known_down_ignored, "delivery"),
    Mutant("S8", "an older generation changes nothing", _old_generations, "delivery"),
    Mutant("S8 coverage", "coverage begins anew with a generation", _old_coverage_kept, "delivery"),
    Mutant("S14", "silence never blames the whole read set", _silence_blames_all, "delivery"),
    Mutant("S14b", "a node that says something has the long time", _words_do_not_count, "delivery"),
    Mutant("S16", "a listed node that sends is taken back", _never_back, "delivery"),
    Mutant("S20", "no gap before all-send-all", _gap_in_single_copy, "delivery"),
    Mutant("S21", "single copy again at the next slide", _all_send_all_for_good, "delivery"),
    Mutant("S duplicates", "what was delivered is dropped", _duplicates_delivered, "delivery"),
    Mutant("S overlaps", "of entries sent as one only those behind are taken", _overlaps_delivered, "delivery"),
    Mutant("K18", "data loss only when every member has answered", one_answer_proves_loss, "delivery"),
    Mutant("S slow", "a member far slower than the others is found", _nobody_slow, "delivery"),
    Mutant("S slow around", "who is slow is gone around", _slow_waited_for, "delivery"),
    Mutant("S slow honest", "nobody waits while the application is busy", _application_not_asked, "delivery"),
    Mutant("S coverage", "coverage ends where the look ended", _coverage_beyond, "delivery"),
    Mutant("S block", "a block of others is passed over up to its end", _next_block_begun, "delivery"),
    Mutant("S control", "control entries go with the block around them", _control_in_slot_order, "delivery"),
    Mutant("A2 released", "nothing is sent that is not released", _released_ignored, "delivery"),
    Mutant("L10 holes", "what was rolled back is a hole", _holes_unseen, "delivery"),
    Mutant("S window", "no more is sent than was granted", _window_ignored, "delivery"),
    Mutant("S trim", "a trim is told as it is", _first_is_released, "delivery"),
)
