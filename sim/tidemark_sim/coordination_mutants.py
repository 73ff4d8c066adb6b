"""The product minus one rule about operators and recoveries, each named by its rule.

Stays out: all other repairs (`mutants`).
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.effects import SetTimer
from tidemark_core.log_plane import LogPlane
from tidemark_core.replication import ensembles as core_ensembles
from tidemark_core.replication import leader as core_leader
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.coordinators import Coordinators
from tidemark_core.replication.floors import Floors
from tidemark_core.replication.leader import TRANSFER_TIMER, Leader

from .mutant import Mutant, substitute


def _n10_below_the_floor(stack: ExitStack) -> None:
    substitute(stack, LogPlane, "_below_floor", lambda self, shard, event: [])


def _n10_promise_is_forgotten(stack: ExitStack) -> None:
    substitute(stack, Floors, "recover", lambda self, rows: None)


def _n11_missing_is_no_news(stack: ExitStack) -> None:
    substitute(stack, Coordinator, "_on_missing", lambda self, sender, m: [])


def _n11_old_answers_count(stack: ExitStack) -> None:
    def on_missing(self: Coordinator, sender: Any, m: Any) -> Any:
        return original(self, sender, replace(m, nonce=self._nonce))

    original = Coordinator._on_missing
    substitute(stack, Coordinator, "_on_missing", on_missing)


def _n11b_whole_or_not(stack: ExitStack) -> None:
    def send_prepare(self: Coordinator, now_ms: int) -> Any:
        effects = original(self, now_ms)
        assert self.change is not None
        self.change.vacant = True
        return effects

    original = Coordinator._send_prepare
    substitute(stack, Coordinator, "_send_prepare", send_prepare)


def _o27b_any_contract(stack: ExitStack) -> None:
    for where in (core_ensembles, core_leader):
        substitute(stack, where, "contract_lacks", lambda remaining, following: None)


def _o42_any_boot(stack: ExitStack) -> None:
    substitute(stack, Coordinators, "_is_of_another_boot", lambda self, event: False)


def _o42_any_nonce(stack: ExitStack) -> None:
    substitute(stack, Coordinator, "_answers_doubt", lambda self, m: True)


def _o47_appends_go_on(stack: ExitStack) -> None:
    def refuse_append(self: Leader, batch: Any) -> Any:
        transfer, self.transfer = self.transfer, None
        try:
            return original(self, batch)
        finally:
            self.transfer = transfer

    original = Leader._refuse_append
    substitute(stack, Leader, "_refuse_append", refuse_append)


def _o47_not_again(stack: ExitStack) -> None:
    def without_timer(original: Any) -> Any:
        return lambda self, now_ms, *rest: [
            effect for effect in original(self, now_ms, *rest)
            if not (isinstance(effect, SetTimer) and effect.name == TRANSFER_TIMER)
        ]

    for name in ("on_ack", "on_local_durable"):
        substitute(stack, Leader, name, without_timer(Leader.__dict__[name]))


def _o3b_no_wait(stack: ExitStack) -> None:
    def adopt(self: Coordinator, now_ms: int, record: Any, revision: int) -> Any:
        before, self.leased = self.leased, True
        try:
            return original(self, now_ms, record, revision)
        finally:
            self.leased = before

    original = Coordinator._adopt
    substitute(stack, Coordinator, "_adopt", adopt)


def _o3b_no_progress(stack: ExitStack) -> None:
    substitute(stack, Coordinator, "_renew", lambda self: [])


COORDINATION_MUTANTS: tuple[Mutant, ...] = (
    Mutant("N10", "a node obeys no operator below its promise", _n10_below_the_floor, "recovery"),
    Mutant("N10 durable", "a promise outlives the process", _n10_promise_is_forgotten, "recovery"),
    Mutant("N11", "a member without a replica is seeded again", _n11_missing_is_no_news, "recovery"),
    Mutant("N11 nonce", "an answer from before the change counts for nothing", _n11_old_answers_count, "recovery"),
    Mutant("N11b", "a whole replica is not seeded in its slot", _n11b_whole_or_not, "recovery"),
    Mutant("O27b", "a contract needs a majority of those who stay", _o27b_any_contract, "contracts"),
    Mutant("O42", "another process of a node is not heard", _o42_any_boot, "operators"),
    Mutant("O42 nonce", "a doubt ends with the answer to its fence", _o42_any_nonce, "operators"),
    Mutant("O47", "a leader holds appends while it hands over", _o47_appends_go_on, "operators"),
    Mutant("O47 again", "the hold begins again when the target is ready", _o47_not_again, "operators"),
    Mutant("O3b", "a driver that shows progress keeps its PREPARE", _o3b_no_wait, "operators"),
    Mutant("O3b progress", "the driver of a PREPARE shows progress", _o3b_no_progress, "operators"),
)
