"""The product minus one part of the rule about appends that expect an offset (L29)."""

from __future__ import annotations

from contextlib import ExitStack

from tidemark_core.base.effects import Effect, Reply
from tidemark_core.replication import expecting
from tidemark_core.replication.clients import AppendRequest
from tidemark_core.replication.leader import Leader

from .mutant import Mutant, substitute


def _anywhere(stack: ExitStack) -> None:
    """A batch is appended behind other records too."""
    substitute(stack, expecting, "refuse", lambda leader, now_ms, m: None)


def _undecided(stack: ExitStack) -> None:
    """A record that is not confirmed does not count."""
    def refuse(leader: Leader, now_ms: int, m: AppendRequest) -> list[Effect] | None:
        decided = expecting.end_of_records(leader.replica.log) - 1 <= leader.replica.confirmed
        return original(leader, now_ms, m) if decided else None

    original = expecting.refuse
    substitute(stack, expecting, "refuse", refuse)


def _at_once(stack: ExitStack) -> None:
    """A record that may yet be lost is reason enough to refuse."""
    def refuse(leader: Leader, now_ms: int, m: AppendRequest) -> list[Effect] | None:
        waits = original(leader, now_ms, m) is not None
        return [Reply(m.request, expecting._refused(leader, m.expect))] if waits else None

    original = expecting.refuse
    substitute(stack, expecting, "refuse", refuse)


def _known(stack: ExitStack) -> None:
    """A retry of a batch that is in the log is refused, for the batch itself came first."""
    def on_append_request(self: Leader, now_ms: int, m: AppendRequest) -> list[Effect]:
        refused = expecting.refuse(self, now_ms, m) if self.active else None
        return original(self, now_ms, m) if refused is None else refused

    original = Leader.on_append_request
    substitute(stack, Leader, "on_append_request", on_append_request)


EXPECTING_MUTANTS: tuple[Mutant, ...] = (
    Mutant("L29 condition", "no other record lies where a batch expects none", _anywhere, "expecting"),
    Mutant("L29 undecided", "undecided records count", _undecided, "expecting"),
    Mutant("L29 confirmed", "a refusal for a record waits until that is confirmed", _at_once, "expecting"),
    Mutant("L29 known", "a batch in the log is answered with its fate", _known, "expecting"),
)
