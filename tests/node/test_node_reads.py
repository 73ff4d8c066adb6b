"""Reads: what was rolled back never leaves, and a node that lost its log since never guesses what was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google_crc32c import value as crc32c
from node_harness import SHARD, shard_map
from tidemark_core.base.entry import Batch, Entry, Kind, seal
from tidemark_core.base.ids import NOTHING, Member
from tidemark_core.base.plane import NodeFacts
from tidemark_core.node import NodeCore
from tidemark_core.replication.clients import LatestRequest
from tidemark_core.replication.messages import Latest, ReadGrant
from tidemark_node import reads
from tidemark_node.access import Caller
from tidemark_node.budgets import Budgets
from tidemark_node.metrics import Metrics
from tidemark_node.reads import without
from tidemark_node.routing import Routing
from tidemark_node.settings import Settings
from tidemark_wire.frames import ReadFrame, decode_read

ME = Member("a", "i")


def log_of(kinds: str, count: int = 1) -> tuple[Entry, ...]:
    """One entry of `count` records per letter: d for data, anything else for control of one record."""
    prev, chain, entries = NOTHING, 0, []
    for letter in kinds:
        data = letter == "d"
        batch = Batch(b"p" * 16, 0, count if data else 1, 0, 0, crc32c(b"x"), b"x")
        kind = Kind.DATA if data else Kind.ROLLBACK
        entry = seal(batch, kind=kind, epoch=1, prev=prev, prev_chain=chain, logged_ms=1)
        prev, chain = entry.id, entry.chain
        entries.append(entry)
    return tuple(entries)


def bases(entries: tuple[Entry, ...]) -> list[int]:
    return [entry.base for entry in entries]


def test_data_in_holes_is_left_out_and_control_entries_stay():
    log = log_of("dddrdd")
    assert log == without(log, [])
    assert [0, 3, 4, 5] == bases(without(log, [(1, 2)]))
    assert [3] == bases(without(log, [(0, 2), (4, 5)]))
    assert [0, 1, 2, 3, 4, 5] == bases(without(log, [(3, 3)]))


def test_entry_that_began_in_front_of_the_frame_is_left_out_too():
    """A reader may begin in the middle of an entry; the hole is cut to where it began."""
    log = log_of("dd", count=5)
    assert [] == bases(without(log, [(3, 9)]))
    assert [0] == bases(without(log, [(5, 9)]))


def test_a_core_that_is_not_confirmed_that_far_does_not_say_that_nothing_was_rolled_back():
    core = NodeCore(NodeFacts(ME))
    assert core.log.holes(SHARD, 0, 3) is None


class Rig:
    """A reader between a core, a store and a caller that do as the test says."""

    def __init__(self, log: tuple[Entry, ...], released: int, holes: list[Any]) -> None:
        self.holes = holes
        self.frames: list[ReadFrame] = []
        self.asked = 0
        self.released = released
        driver = SimpleNamespace(
            core=SimpleNamespace(log=SimpleNamespace(holes=lambda shard, first, last: self.holes.pop(0))),
            read=self.read,
            ask_and_wait=self.ask,
        )
        self.log = log
        routing = Routing()
        routing.push(shard_map([(ME, "h:1")], "a", 1))
        target = routing.find("orders", 0)
        context = SimpleNamespace(write=self.write)
        access: Any = SimpleNamespace(caller=lambda context: Caller(None, "ipv4:10.0.0.1:1"))
        budgets = Budgets(Settings(node="a", data=Path()), access)
        self.reader = reads._Reader(driver, routing, Metrics(), budgets, target, context, 0, 1 << 20, lambda: None)  # type: ignore[arg-type]

    async def read(self, shard: int, first: int, last: int, bytes_max: int) -> Any:
        return SimpleNamespace(
            entries=tuple(e for e in self.log if e.last >= first and e.last <= last), damaged_at=None
        )

    async def ask(self, event: Callable[[int], Any]) -> ReadGrant | Latest:
        if isinstance(event(1), LatestRequest):
            return Latest(1, self.released)
        self.asked += 1
        return ReadGrant(0, self.released, 1)

    async def write(self, frame: bytes) -> None:
        self.frames.append(decode_read(frame))


async def test_what_was_read_before_the_log_was_lost_is_not_sent():
    """The core was loaded again: it may not know yet what was rolled back, so it is asked how far it serves now."""
    rig = Rig(log_of("dddrd"), released=4, holes=[None, [(1, 2)]])
    await rig.reader.run(-1, False)
    assert rig.asked == 2
    (frame,) = rig.frames
    assert ((0, 4), [0, 3, 4], ((1, 2),)) == ((frame.first, frame.through), bases(frame.entries), frame.holes)


async def test_frame_ends_where_its_holes_are_too_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reads, "HOLES_MAX", 2)
    rig = Rig(log_of("drdrdrd"), released=6, holes=[[(0, 0), (2, 2), (4, 4)], [(4, 4)]])
    await rig.reader.run(-1, False)
    assert [((0, 2), [1], ((0, 0), (2, 2))), ((3, 6), [3, 5, 6], ((4, 4),))] == [
        ((frame.first, frame.through), bases(frame.entries), frame.holes) for frame in rig.frames
    ]
