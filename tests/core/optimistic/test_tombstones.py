"""Tombstones go: nodes and the operator's machine together, also where operators are lost in the middle of a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidemark_core.base.effects import Received, Send
from tidemark_core.base.ids import Member, OperatorId
from tidemark_core.base.metadata import MetadataLoaded, MetadataSaved, SaveMetadata, SetActive
from tidemark_core.optimistic.coordinating.operations import set_, unset
from tidemark_core.optimistic.exchanging.messages import Open
from tidemark_core.optimistic.floors import Phase
from tidemark_core.optimistic.mover import Movers
from tidemark_core.optimistic.plane import Assign, Cluster
from tidemark_core.optimistic.raising import FloorDue
from tidemark_core.optimistic.records import RangeRecord

from .owning import KEY, A, B, C, D
from .test_plane import AT, UNIT
from .test_repairing import NEW, World

NODES = (A, B, C, D)


class Cell(World):
    """Nodes, a metadata store with the record of their range, and operators, of which one is at work."""

    def __init__(self) -> None:
        super().__init__(*NODES, repair_every_ms=0)
        self.record, self.revision = RangeRecord(NEW), 1
        self.operators: dict[OperatorId, Movers] = {}
        self.lost: Callable[[Member, Any], bool] = lambda member, message: False
        self.succeed()

    def succeed(self) -> None:
        """Another process is the operator; answers to the one before go nowhere."""
        self.name = OperatorId(f"op-{len(self.operators)}")
        self.operators[self.name] = Movers(self.name)
        self.tell(SetActive(True))
        self.tell(MetadataLoaded(AT, self.record, self.revision))

    @property
    def operator(self) -> Movers:
        return self.operators[self.name]

    def tell(self, event: Any) -> None:
        for effect in self.operator.step(self.now_ms, event):
            match effect:
                case Send(_, to, message) if to not in self.away and not self.lost(to, message):  # type: ignore[arg-type]
                    self.nodes[to].hear(self.name, message)     # type: ignore[index]
                case SaveMetadata(_, record, expected):
                    assert expected == self.revision
                    self.record, self.revision = record, self.revision + 1
                    self.tell(MetadataSaved(AT, record.writer, self.revision))

    def _deliver(self, member: Member) -> bool:
        sent = self.nodes[member].take()
        for to, message in sent:
            if isinstance(message, Open) and message.parts[0].first == b"":
                self.opened.append((member, to))
            if not isinstance(to, Member):
                if to == self.name and member not in self.away:
                    self.tell(Received(AT, member, None, message, "boot"))
            elif not {to, member} & self.away and not self.lost(to, message):
                self.nodes[to].hear(member, message)
        return bool(sent)

    def raise_to(self, floor_ms: int) -> None:
        self.tell(FloorDue(AT, floor_ms, NODES))

    def push(self) -> None:
        """Push the map."""
        for member in self.nodes:
            if member not in self.away:
                self.nodes[member].step(Assign(UNIT, self.record.range))
        self.run(1_000)

    @property
    def phase(self) -> Phase | None:
        opened = self.operator.rounds.open.get(UNIT)
        return opened.phase if opened is not None else None


@pytest.fixture
def cell() -> Cell:
    """A key was removed, which C has not heard of."""
    cell = Cell()
    cell.run(500)
    cell.operate(A, set_(KEY, b"x"))
    cell.lost = lambda member, message: member == C
    cell.operate(B, unset(KEY))
    cell.run(500)
    cell.lost = lambda member, message: False
    cell.run(1_000)
    return cell


def dead(cell: Cell) -> list[bool]:
    """Say of each owner whether its row is a tombstone."""
    return [all(row.dead for row in rows.values()) for rows in cell.rows()[:3] if rows]  # type: ignore[union-attr]


def test_d69_d71_a_tombstone_goes_from_every_owner_and_nothing_comes_back(cell: Cell) -> None:
    assert dead(cell) == [True, True, False]
    cell.raise_to(2_500)
    cell.run(1_000)
    assert cell.record.range == NEW._replace(floor_ms=2_500) and cell.phase is None
    assert dead(cell) == [True, True, True], "C has taken it before the floor rose"
    cell.push()
    assert cell.rows() == [{}, {}, {}, {}]


@pytest.mark.parametrize("phase", [Phase.HINTS, Phase.PROMISES, Phase.SYNC])
def test_d69_an_operator_that_is_lost_in_any_phase_is_followed_by_one_that_begins_again(
    cell: Cell, phase: Phase
) -> None:
    halted = {Phase.HINTS: "HintsAsked", Phase.PROMISES: "PromiseAsked", Phase.SYNC: "SyncAsked"}[phase]
    cell.lost = lambda member, message: member == C and type(message).__name__ == halted
    cell.raise_to(2_400)
    cell.run(1_000)
    assert cell.phase is phase and cell.record.range == NEW
    cell.lost = lambda member, message: False
    cell.succeed()
    cell.raise_to(2_500)
    cell.run(1_000)
    assert cell.record.range.floor_ms == 2_500
    cell.push()
    assert cell.rows() == [{}, {}, {}, {}]


def test_d69_a_successor_has_owners_exchange_again_what_one_took_meanwhile(cell: Cell) -> None:
    """A and B have ended the exchanges of a round whose operator is lost.  Theirs for the next one are others."""
    cell.lost = lambda member, message: member == C and type(message).__name__ == "SyncAsked"
    cell.raise_to(2_400)
    cell.run(1_000)
    before = [pair for pair in cell.opened if C not in pair]
    assert before == [(A, B), (B, A)]
    cell.lost = lambda member, message: False
    cell.succeed()
    cell.raise_to(2_400)
    cell.run(1_000)
    assert [pair for pair in cell.opened if C not in pair] == 2 * before and cell.record.range.floor_ms == 2_400


def test_d70_an_owner_that_is_away_blocks_the_floor_until_it_is_back(cell: Cell) -> None:
    cell.leave(C)
    cell.raise_to(2_500)
    cell.run(2_000)
    assert cell.record.range == NEW and cell.operator.rounds.open[UNIT].waits == (C,)
    cell.come_back(C)
    cell[C].step(Assign(UNIT, NEW))
    cell[C].step(Cluster(NODES))
    cell.run(500)
    cell.tell(FloorDue(AT, None))
    cell.raise_to(2_500)
    cell.run(1_000)
    cell.push()
    assert cell.rows() == [{}, {}, {}, {}]
