"""The product minus one check of who may say what, each named by its rule.

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tidemark_core import node as core_node
from tidemark_core.base.effects import Received
from tidemark_core.base.ids import Member, OperatorId
from tidemark_core.base.plane import Voice
from tidemark_core.log_plane import LogPlane
from tidemark_core.replication import coordinator as core_coordinator
from tidemark_core.replication import trust as core_trust
from tidemark_core.replication.fetches import Fetches
from tidemark_core.replication.trust import STANDINGS, Standing, Trust
from tidemark_core.shard import Shard

from .mutant import Mutant, substitute


class _Everybody:
    def __contains__(self, _: object) -> bool:
        return True


def _t10_any_node(stack: ExitStack) -> None:
    """A node with a certificate speaks of every shard."""
    substitute(stack, core_trust, "members_of", lambda state: core_trust.EVERYBODY)


def _t10_any_voice(stack: ExitStack) -> None:
    """A node may say what only an operator may."""
    original = LogPlane.step

    def step(self: LogPlane, now_ms: int, event: Any) -> Any:
        if event.__class__ is Received and STANDINGS.get(event.message.__class__) is Standing.OPERATOR:
            event = Received(event.address, OperatorId("op1.1"), event.to, event.message)
        return original(self, now_ms, event)

    substitute(stack, LogPlane, "step", step)
    substitute(stack, LogPlane, "voices", dict.fromkeys(STANDINGS, Voice.NODE))
    substitute(stack, core_node, "_OPERATOR", Voice.NODE)


def _t10b_unasked(stack: ExitStack) -> None:
    """A copy of an entry counts though it was asked of another member, or of none."""
    substitute(stack, Fetches, "answered", lambda self, member, base: True)


def _t10b_any_chain(stack: ExitStack) -> None:
    """A copy with right checksums counts, whatever the headers around it say."""
    original = Shard._mend

    def mend(self: Shard, sender: Member, m: Any, chain: int | None) -> Any:
        return original(self, sender, m, m.entry.chain)

    substitute(stack, Shard, "_mend", mend)


def _t10c_any_answer(stack: ExitStack) -> None:
    """A leader heeds answers of nodes that it pushes nothing to."""
    original = Trust.hears

    def hears(self: Trust, sender: Member, message: Any, followers: Any) -> bool:
        return original(self, sender, message, (sender,))

    substitute(stack, Trust, "hears", hears)


def _t10c_operator(stack: ExitStack) -> None:
    """An operator heeds what a node says of a shard that it is no member of."""
    substitute(stack, core_coordinator, "concerned", lambda record: _Everybody())


def _t10d_any_puller(stack: ExitStack) -> None:
    """A node with a certificate pulls every shard."""
    substitute(stack, Shard, "pull_refused", lambda self, puller: None)


TRUST_MUTANTS: tuple[Mutant, ...] = (
    Mutant("T10", "only members speak of a shard", _t10_any_node, "impostor"),
    Mutant("T10 voice", "only operators say who leads", _t10_any_voice, "impostor"),
    Mutant("T10b", "a copy counts only as the answer to a question", _t10b_unasked, "impostor"),
    Mutant("T10b chain", "a copy is compared with the chain of our headers", _t10b_any_chain),
    Mutant("T10c", "a leader heeds its followers alone", _t10c_any_answer, "impostor"),
    Mutant("T10c operator", "an operator heeds members alone", _t10c_operator, "impostor"),
    Mutant("T10d", "only members and newcomers pull", _t10d_any_puller, "impostor"),
)
