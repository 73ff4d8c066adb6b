"""The product minus one rule about a majority that lost its disks, or the synced end of its logs (K14c-K14e).

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.ids import NOTHING
from tidemark_core.base.quorum import has_majority
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.replication import coordinator as core_coordinator
from tidemark_core.replication import ensembles
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.ensembles import Ensembles, members_announced
from tidemark_core.replication.follower import Follower

from .mutant import Mutant, substitute


def _not_reported(stack: ExitStack) -> None:
    substitute(stack, Follower, "_report_loss", lambda self, m: [])


def _destroyed(stack: ExitStack) -> None:
    substitute(stack, ensembles, "_last_copy", lambda record, leaver, nodes: None)


def _unfenced(stack: ExitStack) -> None:
    """The source leads though the others can still commit without it."""

    def answered(self: Ensembles, heads: dict[Any, Any]) -> bool:
        return has_majority(self.fencing, heads) or has_majority(self.final, heads)

    substitute(stack, Ensembles, "answered", answered)


def _given_up(stack: ExitStack) -> None:
    """An election after the act was stored goes back to the majority that lost its end."""
    elect = Coordinator._elect

    def forgetful(self: Coordinator, now_ms: int) -> Any:
        if self.record is not None:
            self.record = replace(self.record, source=None)
        return elect(self, now_ms)

    substitute(stack, Coordinator, "_elect", forgetful)


def _deleted_at_once(stack: ExitStack) -> None:
    substitute(stack, Coordinator, "_alone", staticmethod(lambda record: False))


def _k14e_not_all_answered(stack: ExitStack) -> None:
    """A member that is left is not asked how long its log is."""

    def refuse(record: Any, nodes: Any, heads: Any, node: str) -> Any:
        members = members_announced(record)
        up = {member.node: member for member in members if nodes.get(member.node) is None}
        return original(record, {**nodes, **up}, {**dict.fromkeys(members, NOTHING), **heads}, node)

    original = ensembles.refuse_survivor
    substitute(stack, core_coordinator, "refuse_survivor", refuse)


def _k14e_any_log(stack: ExitStack) -> None:
    """Any member that is left will do, whatever its log holds."""

    def refuse(record: Any, nodes: Any, heads: Any, node: str) -> Any:
        return original(record, nodes, dict.fromkeys(heads, NOTHING), node)

    original = ensembles.refuse_survivor
    substitute(stack, core_coordinator, "refuse_survivor", refuse)


def _k14e_waits_for_moves(stack: ExitStack) -> None:
    """A change in COMMIT or a transfer whose election cannot end refuses the act."""

    def source(self: Coordinator, record: Any, m: Any) -> Any:
        if self.transfer or record.change is not None:
            return Refused(Reason.RECONFIGURING, "try again")
        return original(self, record, m)

    original = Coordinator._source
    substitute(stack, Coordinator, "_source", source)


LOSS_MUTANTS: tuple[Mutant, ...] = (
    Mutant("K14c", "a refused truncation below commit is reported", _not_reported),
    Mutant("K14c guard", "the last copy does not leave by a change", _destroyed),
    Mutant("K14d fence", "a majority is fenced before the source leads", _unfenced),
    Mutant("K14d source", "once stored, only the source is elected", _given_up),
    Mutant("K14e answers", "every member that is left says how long its log is", _k14e_not_all_answered, "losses"),
    Mutant("K14e longest", "the longest log that is left is the source", _k14e_any_log, "losses"),
    Mutant("K14e moves", "a change and a transfer end with the act", _k14e_waits_for_moves, "losses"),
    Mutant("K14d copies", "the other copies stay until a second one of the source's is there", _deleted_at_once),
)
