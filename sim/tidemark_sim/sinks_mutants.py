"""The product minus one part of the rules about sinks (W1-W3)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from tidemark_core.base.effects import Reply
from tidemark_core.base.entry import Entry
from tidemark_core.base.folds import Covering
from tidemark_core.replication import sinks
from tidemark_core.sinks import judging
from tidemark_core.sinks.fold import Join, Mark, Sink, Sinks
from tidemark_core.sinks.judging import Verdict

from .mutant import Mutant, substitute


def _judging(stack: ExitStack, kind: type[Join | Mark], judge: Callable[[Sink, int, Any], Verdict]) -> None:
    """Judge changes of one kind otherwise where there is a sink."""
    def judged(sink: Sink | None, batch: int, change: Join | Mark) -> Verdict:
        known = sink is not None and isinstance(change, kind)
        return judge(sink, batch, change) if known and sink is not None else judging.judge(sink, batch, change)

    substitute(stack, sinks, "judge", judged)


def _goes_back(stack: ExitStack) -> None:
    """An older attempt is let into a batch that the sink has passed."""
    _judging(stack, Join, lambda sink, batch, change: judging.judge(
        sink if batch >= sink.batch else None, batch, change))


def _late(stack: ExitStack) -> None:
    """A part is let into a batch that was marked without it."""
    _judging(stack, Join, lambda sink, batch, change: judging.judge(sink._replace(parts=1 << 14), batch, change))


def _left_out(stack: ExitStack) -> None:
    """A mark does not look who has joined."""
    _judging(stack, Mark, lambda sink, batch, change: judging.judge(sink._replace(joined=0), batch, change))


def _other_ends(stack: ExitStack) -> None:
    """A mark replaces the one before it."""
    _judging(stack, Mark, lambda sink, batch, change: judging.judge(
        sink._replace(marked=-1, joined=0) if batch == sink.marked else sink, batch, change))


def _undecided_ignored(stack: ExitStack) -> None:
    """Requests are judged by what is confirmed alone."""
    substitute(stack, Sinks, "newest", lambda self, name, covering: (-1, self.held.get(name)))


def _told_at_once(stack: ExitStack) -> None:
    substitute(stack, sinks._Judged, "_when", lambda self, at, answer: [Reply(self._request, answer)])


def _rolled_back_count(stack: ExitStack) -> None:
    def decide(self: Sinks, confirmed: int, covering: Covering) -> None:
        original(self, confirmed, lambda at: None)

    original = Sinks.decide
    substitute(stack, Sinks, "decide", decide)


def _unconfirmed_count(stack: ExitStack) -> None:
    def note(self: Sinks, entry: Entry) -> None:
        original(self, entry)
        self.decide(entry.base, lambda at: None)

    original = Sinks.note
    substitute(stack, Sinks, "note", note)


def _not_undone(stack: ExitStack) -> None:
    substitute(stack, Sinks, "undo_to", lambda self, head: None)


def _not_in_checkpoint(stack: ExitStack) -> None:
    substitute(stack, Sinks, "upto", lambda self, offset, logged_ms: Sinks())


def _joins_not_in_checkpoint(stack: ExitStack) -> None:
    def encode(self: Sinks) -> bytes:
        held, self.held = self.held, {name: sink._replace(joined=0) for name, sink in self.held.items()}
        try:
            return original(self)
        finally:
            self.held = held

    original = Sinks.encode
    substitute(stack, Sinks, "encode", encode)


SINKS_MUTANTS: tuple[Mutant, ...] = (
    Mutant("W1", "a sink goes on to later batches alone", _goes_back, "sinks"),
    Mutant("W2 late", "no part joins a batch that was marked without it", _late, "sinks"),
    Mutant("W2", "a mark leaves out no part that has joined", _left_out, "sinks"),
    Mutant("W2 again", "a batch is marked once", _other_ends, "sinks"),
    Mutant("W3 undecided", "undecided records count for what comes after them", _undecided_ignored, "sinks"),
    Mutant("W3 confirmed", "a join is answered once it is confirmed", _told_at_once, "sinks"),
    Mutant("W3 rolled back", "a record that was rolled back does not count", _rolled_back_count, "sinks"),
    Mutant("W3 counts", "a record counts once it is confirmed", _unconfirmed_count, "sinks"),
    Mutant("W3 undo", "records are undone on truncation", _not_undone, "sinks"),
    Mutant("W3", "sinks are part of checkpoints", _not_in_checkpoint, "sinks"),
    Mutant("W3 joins", "so are the parts that have joined", _joins_not_in_checkpoint, "sinks"),
)
