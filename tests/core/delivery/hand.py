"""A reader driven by hand: members say what the test lets them say, and time is what the test says."""

from __future__ import annotations

from collections.abc import Sequence

from tidemark_core.delivery.messages import (
    Deliver,
    DeliverGap,
    Finished,
    GapKind,
    Item,
    Note,
    ReaderEffect,
    Reason,
    Shipment,
    Start,
    Started,
    Status,
    Tell,
    WakeAt,
    Window,
)
from tidemark_core.delivery.order import Mode
from tidemark_core.delivery.reader import Reader, ReaderSettings

Gap = tuple[GapKind, int, int]


def item(first: int, last: int | None = None, size: int = 100) -> Item:
    return Item(first, first if last is None else last, size, (f"entry {first}",))


def hole(first: int, last: int) -> Item:
    return Item(first, last, 16, None)


class Hand:
    """Runs the effects of a reader into lists."""

    def __init__(
        self, names: str = "abc", first: int = 0, until: int = -1, mode: Mode = Mode.SINGLE_COPY,
        settings: ReaderSettings | None = None, priorities: Sequence[int] = (), *, started: bool = True,
        released: int = 99,
    ) -> None:
        self.now = 1_000
        self.reader = Reader(tuple(names), first, until, mode, settings, priorities)
        self.out: list[tuple[int, int] | Gap] = []
        self.starts: dict[str, list[Start]] = {name: [] for name in names}
        self.windows: dict[str, list[Window]] = {name: [] for name in names}
        self.notes: list[Note] = []
        self.wake_ms: int | None = None
        self.finished = False
        self.released = released
        self.unconsumed: list[int] = []
        self.slow_application = False
        self.run(self.reader.begin(self.now))
        for name in names if started else "":
            self.connect(name)
            self.start(name)

    def run(self, effects: list[ReaderEffect]) -> None:
        for effect in effects:
            match effect:
                case Tell(node, Start() as start):
                    self.starts.setdefault(node, []).append(start)
                case Tell(node, Window() as window):
                    self.windows.setdefault(node, []).append(window)
                case Deliver():
                    self.out.append((effect.first, effect.last))
                    self.unconsumed.append(effect.item.size)
                case DeliverGap():
                    self.out.append((effect.kind, effect.first, effect.last))
                case Note():
                    self.notes.append(effect)
                case WakeAt():
                    self.wake_ms = effect.at_ms
                case Finished():
                    self.finished = True
        if not self.slow_application:
            self.consume()

    def consume(self) -> None:
        while self.unconsumed:
            self.run(self.reader.on_consumed(self.now, self.unconsumed.pop(0)))

    # --- what happens -----------------------------------------------------------------------------------

    def connect(self, name: str) -> None:
        self.run(self.reader.on_connected(self.now, name))

    def close(self, name: str) -> None:
        self.run(self.reader.on_closed(self.now, name, "closed"))

    def start(self, name: str, status: Status = Status.OK, first: int = 0, generation: int | None = None) -> None:
        """The node answers START."""
        started = Started(self.generation(generation), status, self.released, first)
        self.run(self.reader.on_started(self.now, name, started))

    def start_all(self) -> None:
        for name in self.reader.ensemble:
            if self.reader.sources[name].connected:
                self.start(name)

    def ship(
        self, name: str, through: int, *items: Item, first: int | None = None, generation: int | None = None
    ) -> None:
        """The node tells coverage up to `through`, with items."""
        first = self.reader.sources[name].through + 1 if first is None else first
        shipment = Shipment(self.generation(generation), first, through, self.released, items)
        self.run(self.reader.on_shipment(self.now, name, shipment))

    def generation(self, given: int | None) -> int:
        return self.reader.generation if given is None else given

    def wait(self, ms: int) -> None:
        """Let time pass; the clock is looked at when the reader asked for it."""
        end = self.now + ms
        while self.wake_ms is not None and self.wake_ms <= end:
            self.now = max(self.now, self.wake_ms)
            self.wake_ms = None
            self.run(self.reader.on_time(self.now))
        self.now = end

    # --- what is seen -----------------------------------------------------------------------------------

    def reasons(self, what: str) -> list[Reason]:
        return [note.reason for note in self.notes if note.what == what]

    def told(self, name: str) -> Start:
        return self.starts[name][-1]
