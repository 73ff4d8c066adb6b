"""A member's part of a range with a disk that is slow and loses what was not written."""

from __future__ import annotations

from collections import deque
from typing import Any

from tidemark_core.base.effects import (
    Delete,
    DeleteRange,
    Feed,
    Persist,
    Put,
    PutMany,
    PutState,
    ReadRows,
    RowsRead,
    RowsScanned,
    ScanRows,
    Send,
    Trace,
)
from tidemark_core.base.ids import Address, Member
from tidemark_core.optimistic.cells import Place, Row, decode_row, encode_row
from tidemark_core.optimistic.holding.layout import FAMILIES, RETRACTED, key_of, place_of
from tidemark_core.optimistic.holding.states import decode_standing, encode_standing
from tidemark_core.optimistic.holding.unit import Unit
from tidemark_core.optimistic.stamps import Actor, Clock
from tidemark_core.optimistic.standing import Standing

from .owning import CALM, INDEX, SKEW_MS, A, B

AT = Address(9, INDEX)


class Machine:
    """A unit with its disk: writes are durable in the order they came, reads are answered when the test says so."""

    def __init__(self, me: Member = A, standing: Standing | None = None) -> None:
        self.me = me
        self.tables: dict[str, dict[bytes, bytes]] = {family: {} for family in FAMILIES.values()}
        self.state = encode_standing(standing or Standing(me, CALM, promise_ms=CALM.floor_ms))
        self.now_ms = 1_000
        self.start()

    def start(self) -> None:
        """Begin with what is durable."""
        self.queue: deque[Persist] = deque()
        self.reads: deque[ReadRows | ScanRows] = deque()
        self.sent: list[Send] = []
        self.traces: list[str] = []
        self.unit = self.make(decode_standing(self.state), Clock(Actor(self.me.node, b"12345678"), SKEW_MS))
        self.run(self.unit.grow())

    def make(self, standing: Standing, clock: Clock) -> Unit:
        return Unit(AT, standing, clock, retracted=[place_of(key).key for key in self.tables[RETRACTED]])

    def run(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Persist():
                    self.queue.append(effect)
                case ReadRows() | ScanRows():
                    self.reads.append(effect)
                case Send():
                    self.sent.append(effect)
                case Feed(event):
                    self.run(self.on_event(event))
                case Trace():
                    self.traces.append(effect.what)

    def on_event(self, event: Any) -> list[Any]:
        return self.unit.on_event(event)

    def put(self, rows: dict[Place, Row]) -> None:
        """Have rows on the disk."""
        for place, row in rows.items():
            self.tables[FAMILIES[place.sort]][key_of(INDEX, place)] = encode_row(row)

    def hear(self, m: Any, sender: Member = B) -> None:
        self.run(self.unit.on_message(self.now_ms, sender, m))

    def read(self) -> None:
        """Answer the oldest read."""
        asked = self.reads.popleft()
        if isinstance(asked, ReadRows):
            values = tuple(self.tables[family].get(key) for family, key in asked.keys)
            self.run(self.on_event(RowsRead(asked.address, asked.tag, values)))
            return
        rows = sorted((key, value) for key, value in self.tables[asked.family].items()
                      if asked.first <= key < asked.behind)
        page = tuple(rows[:asked.rows_max])
        self.run(self.on_event(RowsScanned(asked.address, asked.tag, page, len(rows) > len(page))))

    def sync(self) -> None:
        """Make the oldest write durable."""
        persist = self.queue.popleft()
        for write in persist.writes:
            match write:
                case Put(family, key, value):
                    self.tables[family][key] = value
                case PutMany(family, rows):
                    self.tables[family].update(rows)
                case Delete(family, key):
                    self.tables[family].pop(key, None)
                case DeleteRange(family, first, behind):
                    for key in [key for key in self.tables[family] if first <= key < behind]:
                        del self.tables[family][key]
                case PutState(state):
                    self.state = state
                case _:
                    raise TypeError(write)
        self.run(list(persist.then))

    def settle(self) -> None:
        """Let the disk finish everything."""
        while self.reads or self.queue:
            while self.reads:
                self.read()
            if self.queue:
                self.sync()

    def take(self, kind: type) -> list[Any]:
        """Return and forget the messages of one kind that were sent."""
        taken = [each.message for each in self.sent if isinstance(each.message, kind)]
        self.sent = [each for each in self.sent if not isinstance(each.message, kind)]
        return taken

    def rows(self) -> dict[Place, Row]:
        return {place: decode_row(place.sort, value) for rows in self.tables.values()
                for key, value in rows.items() for place in [place_of(key)]}
