"""Rounds of the operator that raise the floor of a range."""

from __future__ import annotations

import pytest
from tidemark_core.base.ids import Member
from tidemark_core.optimistic.floors import (
    Commit,
    Effect,
    HintsAsked,
    HintsGone,
    Phase,
    PromiseAsked,
    Promised,
    Round,
    SyncAsked,
    Synced,
    To,
    highest,
)

from .owning import CALM, INDEX, MOVING, A, B, C, D

NODES = (A, B, D)


def a_round() -> Round:
    return Round(INDEX, 4, CALM, NODES, 50)


def asked(effects: list[Effect]) -> dict[Member, object]:
    return {each.member: each.message for each in effects if isinstance(each, To)}


def hear(running: Round, kind: type[HintsGone | Promised | Synced], *members: Member) -> list[Effect]:
    return [effect for member in members for effect in running.on_answer(member, kind(INDEX, 4))]


def test_d69_hints_come_first_then_promises_then_exchanges_then_the_record() -> None:
    running = a_round()
    assert dict.fromkeys((A, B, D, C), HintsAsked(INDEX, 4, 50)) == asked(running.begin()), "owners too"
    assert [] == hear(running, HintsGone, A, B, C)
    promises = hear(running, HintsGone, D)
    assert dict.fromkeys((A, B, C), PromiseAsked(INDEX, 4, 7, 50)) == asked(promises)
    assert [] == hear(running, Promised, A, B)
    syncs = hear(running, Promised, C)
    assert {A: (B, C), B: (A, C), C: (A, B)} == {
        member: m.sources for member, m in asked(syncs).items() if isinstance(m, SyncAsked)}
    assert [Commit(CALM._replace(floor_ms=50))] == hear(running, Synced, A, B, C)
    assert Phase.COMMIT is running.phase and [Commit(running.next)] == running.resend()


def test_d69_an_answer_of_another_phase_or_round_counts_for_nothing() -> None:
    running = a_round()
    running.begin()
    for member in (A, B, C, D):
        assert [] == running.on_answer(member, HintsGone(INDEX, 3)) == running.on_answer(member, Promised(INDEX, 4))
    hear(running, HintsGone, A, A, B, C)
    assert (Phase.HINTS, (D,)) == (running.phase, running.waits)


def test_d69_what_is_not_answered_is_asked_again() -> None:
    running = a_round()
    running.begin()
    hear(running, HintsGone, A, B)
    assert {C, D} == set(asked(running.resend())) == set(running.waits)


def test_d70_an_absent_owner_blocks_and_another_node_may_be_left_out() -> None:
    running = a_round()
    running.begin()
    hear(running, HintsGone, A, B)
    assert [] == running.left_out(C) and (D, C) == running.waits
    assert [] == running.left_out(D) and (C,) == running.waits
    hear(running, HintsGone, C)
    assert Phase.PROMISES is running.phase and [] == running.left_out(A)


def test_d68_a_floor_rises_while_no_move_is_open_and_no_further_than_the_write_window() -> None:
    with pytest.raises(ValueError, match="while a move is open"):
        Round(INDEX, 4, MOVING, NODES, 50)
    with pytest.raises(ValueError, match="is no higher"):
        Round(INDEX, 4, CALM, NODES, CALM.floor_ms)
    assert (700, 0) == (highest(1_000, 300), highest(200, 300))


def test_d68_another_record_ends_the_round() -> None:
    running = a_round()
    assert running.on_record(CALM) and not running.on_record(MOVING)
    assert not running.on_record(CALM._replace(floor_ms=20))
