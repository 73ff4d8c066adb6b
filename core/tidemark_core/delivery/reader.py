"""Reader: follows one shard on all its members and fails over, so that nothing stalls, is skipped or repeated.

A pure state machine: the shell feeds what arrives and runs the effects.  Every offset is delivered once, as an item
or in a typed gap, in order.  Stays out: sockets, clocks, decoding, who the members are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .messages import (
    Deliver,
    DeliverGap,
    Finished,
    GapKind,
    Item,
    Note,
    ReaderEffect,
    Shipment,
    Start,
    Started,
    Status,
    Tell,
    WakeAt,
    Window,
)
from .order import Mode

SLIDE_PART = 0.7
"""Part of the window that is consumed before it slides."""


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Times in milliseconds; the window is bytes over all members."""

    scd_timeout_ms: int = 10_000           # S14
    all_send_all_timeout_ms: int = 30_000  # S18
    started_timeout_ms: int = 5_000        # S11
    rewind_pause_ms: int = 1               # first pause in front of a rewind; doubles while they follow each other
    rewind_pause_max_ms: int = 10_000
    window_bytes: int = 16 << 20


@dataclass(slots=True)
class Source:
    """What the reader knows of one member."""

    node: str
    connected: bool = False
    started: bool = False         # STARTED of the current generation came
    asked_ms: int = 0             # when START was sent
    through: int = -1             # it has sent all it has to send up to here, in this generation
    beyond: int = -1              # highest offset of an item it sent in this generation
    released: int = -1            # as it knows it
    first: int = 0                # first offset it holds
    sends: bool = False           # sent an item since it was listed in known_down
    sent_bytes: int = 0           # in this generation
    granted_bytes: int = 0
    bytes_received: int = 0
    items_delivered: int = 0


class Reader:
    """One shard's stream.  `mode` is how the reader wants to be served while nothing is wrong."""

    __slots__ = (
        "_buffer", "_consumed_bytes", "_down_changed_ms", "_pause_ms", "_progress_ms", "_rewind_at_ms",
        "_unaligned", "_unconsumed_bytes", "all_send_all", "delivered_bytes", "down", "duplicates", "ended",
        "ensemble", "generation", "mode", "next", "priorities", "settings", "sources", "until",
    )

    def __init__(
        self, ensemble: Sequence[str], first: int, until: int = -1, mode: Mode = Mode.SINGLE_COPY,
        settings: ReaderSettings | None = None, priorities: Sequence[int] = (),
    ) -> None:
        self.settings = settings or ReaderSettings()
        self.ensemble = tuple(ensemble)
        self.priorities = tuple(priorities)   # of each slot, for Mode.LOCAL
        self.mode = mode
        self.next = first             # next offset to deliver
        self.until = until
        self.generation = 0
        self.sources = {node: Source(node) for node in self.ensemble}
        self.down: dict[str, str] = {}   # known_down: node and why
        self.all_send_all = mode is Mode.ALL_SEND_ALL
        self.ended = False
        self.duplicates = 0
        self.delivered_bytes = 0
        self._buffer: dict[int, tuple[Item, str]] = {}
        self._unconsumed_bytes = 0
        self._consumed_bytes = 0         # since the window slid
        self._progress_ms = 0
        self._down_changed_ms = 0
        self._unaligned = True           # the first offset asked for may lie inside an entry
        self._rewind_at_ms: int | None = None
        self._pause_ms = self.settings.rewind_pause_ms

    # --- life ---------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> list[ReaderEffect]:
        """Start on every member."""
        self._progress_ms = self._down_changed_ms = now_ms
        if 0 <= self.until < self.next:
            return self._finish()
        return self._start_all(now_ms)

    def on_ensemble(
        self, now_ms: int, ensemble: Sequence[str], priorities: Sequence[int] = ()
    ) -> list[ReaderEffect]:
        """The members changed: those who left are forgotten, all decide anew from the new list."""
        if self.ended or tuple(ensemble) == self.ensemble:
            return []
        self.ensemble, self.priorities = tuple(ensemble), tuple(priorities)
        self.sources = {node: self.sources.get(node) or Source(node) for node in self.ensemble}
        self.down = {node: why for node, why in self.down.items() if node in self.sources}
        return self._rewind_soon(now_ms, "", "the ensemble changed")

    def on_connected(self, now_ms: int, node: str) -> list[ReaderEffect]:
        """A stream to the node is open (again): it is told where we are, listed or not (S15)."""
        source = self.sources.get(node)
        if source is None or self.ended:
            return []
        source.connected = True
        return [*self._start(now_ms, source), *self._wake(now_ms)]

    def on_closed(self, now_ms: int, node: str, why: str) -> list[ReaderEffect]:
        """The stream to the node broke, or could not be opened (S10, S13)."""
        source = self.sources.get(node)
        if source is None or self.ended:
            return []
        source.connected = source.started = False
        return [*self._list(now_ms, source, why), *self._after(now_ms)]

    # --- what nodes say -----------------------------------------------------------------------------------

    def on_started(self, now_ms: int, node: str, m: Started) -> list[ReaderEffect]:
        source = self.sources.get(node)
        if source is None or self.ended or m.generation != self.generation:
            return []
        if m.status is Status.ACCESS:
            return [DeliverGap(GapKind.ACCESS, self.next, max(self.next, self.until)), *self._finish()]
        if m.status is not Status.OK:
            source.started = False
            source.asked_ms = now_ms
            return [*self._list(now_ms, source, f"{m.status}: {m.message}"), *self._after(now_ms)]  # S12
        source.started = True
        source.released = max(source.released, m.released)
        source.first = max(source.first, m.first)
        return self._after(now_ms)

    def on_shipment(self, now_ms: int, node: str, m: Shipment) -> list[ReaderEffect]:
        source = self.sources.get(node)
        if source is None or self.ended or m.generation != self.generation or not source.started:
            return []  # S8: an older generation changes nothing
        size = sum(item.size for item in m.items)
        source.bytes_received += size
        source.sent_bytes += size
        source.released = max(source.released, m.released)
        if m.first > source.through + 1:
            return [*self._list(now_ms, source, f"left out [{source.through + 1}, {m.first})"), *self._after(now_ms)]
        source.through = max(source.through, m.through)
        for item in m.items:
            source.sends = True
            source.beyond = max(source.beyond, item.last)
            if item.last < self.next or item.first in self._buffer:
                self.duplicates += 1
            else:
                self._buffer[item.first] = (item, node)
        return self._after(now_ms)

    def on_corrupt(self, now_ms: int, node: str, generation: int, what: str) -> list[ReaderEffect]:
        """The node sent something that fails its checksum (S9)."""
        source = self.sources.get(node)
        if source is None or self.ended or generation != self.generation:
            return []
        return [*self._list(now_ms, source, what), *self._after(now_ms)]

    def on_consumed(self, now_ms: int, size: int) -> list[ReaderEffect]:
        """The application has taken `size` bytes of what was delivered."""
        self._unconsumed_bytes -= size
        self._consumed_bytes += size
        if not self._unconsumed_bytes:
            self._progress_ms = now_ms  # until now the application was the slow one
        return [] if self.ended else self._after(now_ms)

    # --- delivering ---------------------------------------------------------------------------------------

    def _after(self, now_ms: int) -> list[ReaderEffect]:
        """Whatever happened: deliver what is next, fail over where that is certain, slide, look at the clock."""
        effects = self._deliver(now_ms)
        if self.ended:
            return effects
        effects += self._fail_over(now_ms)
        if self.ended:
            return effects
        return effects + self._slide(now_ms) + self._wake(now_ms)

    def _deliver(self, now_ms: int) -> list[ReaderEffect]:
        effects: list[ReaderEffect] = []
        while True:
            trimmed = max((source.first for source in self.sources.values() if source.started), default=0)
            found = self._find()
            if found is None and self.next < trimmed:
                # A node vouches that retention has passed here; what another one still holds is going too.
                last = trimmed - 1 if self.until < 0 else min(trimmed - 1, self.until)
                effects.append(DeliverGap(GapKind.TRIM, self.next, last))
                self.next = last + 1
            elif found is not None:
                item, node = found
                if item.body is None:
                    effects.append(DeliverGap(GapKind.HOLE, max(item.first, self.next), item.last))
                else:
                    if node in self.sources:
                        self.sources[node].items_delivered += 1
                    self._unconsumed_bytes += item.size
                    self.delivered_bytes += item.size
                    effects.append(Deliver(item))
                self.next = item.last + 1
            else:
                break
            self._progress_ms = now_ms
            self._pause_ms = max(self.settings.rewind_pause_ms, self._pause_ms // 2)
            if 0 <= self.until < self.next:
                return effects + self._finish()
        if effects:
            self._buffer = {first: kept for first, kept in self._buffer.items() if kept[0].last >= self.next}
        return effects

    def _find(self) -> tuple[Item, str] | None:
        """Return the buffered item that holds the next offset.  Only a reader's first one may begin before it."""
        found = self._buffer.pop(self.next, None)
        if found is not None or not self._unaligned:
            self._unaligned = False
            return found
        first = next((first for first, (item, _) in self._buffer.items() if first < self.next <= item.last), None)
        if first is None:
            return None
        self._unaligned = False
        return self._buffer.pop(first)

    # --- failing over -------------------------------------------------------------------------------------

    def _list(self, now_ms: int, source: Source, why: str) -> list[ReaderEffect]:
        """Put a node into known_down; when nobody is left, everybody is asked for everything (S17)."""
        source.sends = False
        if source.node in self.down:
            return []
        self.down[source.node] = why
        self._down_changed_ms = now_ms
        return [Note("known_down", source.node, why), *self._rewind_soon(now_ms, source.node, why)]

    def _fail_over(self, now_ms: int) -> list[ReaderEffect]:
        """Rules S17 and S20: whoever cannot send the next offset is counted at every record and gap."""
        if self._rewind_at_ms is not None:
            return []  # a new generation is on its way and will tell
        lacking = [node for node, source in self.sources.items() if source.started and source.through >= self.next]
        if not self.all_send_all:
            if len(set(lacking) | set(self.down)) < len(self.sources):
                return []
            self.all_send_all = True
            return [Note("all_send_all", "", f"nobody sends offset {self.next}"),
                    *self._rewind_soon(now_ms, "", "all send all")]
        if len(lacking) < len(self.sources):
            return []
        # Every member was asked for everything in one generation and answered past it (K18).
        held = min((first for first in self._buffer if first > self.next), default=1 << 62)
        last = min(held - 1, *(source.through for source in self.sources.values()))
        if self.until >= 0:
            last = min(last, self.until)
        lost = DeliverGap(GapKind.DATALOSS, self.next, last)
        self.next = last + 1
        self._progress_ms = now_ms
        rest = self._finish() if 0 <= self.until < self.next else self._deliver(now_ms)
        return [lost, *rest]

    def on_time(self, now_ms: int) -> list[ReaderEffect]:
        """Look at the clock: rewinds that are due, answers that do not come, a stream that stands still."""
        if self.ended:
            return []
        effects: list[ReaderEffect] = []
        if self._rewind_at_ms is not None and now_ms >= self._rewind_at_ms:
            effects += self._start_all(now_ms)
        for source in self.sources.values():
            if not source.started and now_ms - source.asked_ms >= self.settings.started_timeout_ms:
                effects += self._list(now_ms, source, "no answer to START")  # S10, S11
                if source.connected:
                    effects += self._start(now_ms, source)
                else:
                    source.asked_ms = now_ms
        effects += self._stalled(now_ms)
        return effects + self._after(now_ms)

    def _stalled(self, now_ms: int) -> list[ReaderEffect]:
        """Rules S14 and S18.  Nobody is blamed while the application is slow or nothing more is released."""
        if not self._hungry or self._rewind_at_ms is not None or self.all_send_all:
            return []
        stalled_ms = now_ms - self._progress_ms
        silent = [source for source in self.sources.values() if source.beyond < self.next]
        fresh = [source for source in silent if source.node not in self.down]
        if stalled_ms >= self.settings.all_send_all_timeout_ms and (
            len(silent) == len(self.sources)
            or now_ms - self._down_changed_ms >= self.settings.all_send_all_timeout_ms
        ):
            self.all_send_all = True
            self._progress_ms = now_ms
            return [Note("all_send_all", "", f"no progress at offset {self.next}"),
                    *self._rewind_soon(now_ms, "", "all send all")]
        blamed = [source for source in fresh if source.through < self.next]
        if stalled_ms < self.settings.scd_timeout_ms or not blamed:
            return []
        if len(self.down) + len(blamed) >= len(self.sources):
            return []  # never the whole read set: that is for all send all to sort out
        effects: list[ReaderEffect] = []
        for source in blamed:
            effects += self._list(now_ms, source, f"silent for {stalled_ms} ms")
        return effects

    @property
    def _hungry(self) -> bool:
        """Something more is released somewhere, and the application waits for it."""
        released = max((source.released for source in self.sources.values()), default=-1)
        return released >= self.next and self._unconsumed_bytes <= 0

    # --- generations and windows --------------------------------------------------------------------------

    def _rewind_soon(self, now_ms: int, node: str, why: str) -> list[ReaderEffect]:
        """Rewind once for everything that changes within a pause, which grows while rewinds follow each other."""
        if self._rewind_at_ms is None:
            self._rewind_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(self.settings.rewind_pause_max_ms, self._pause_ms * 2)
        return [Note("rewind", node, why)]

    def _start_all(self, now_ms: int) -> list[ReaderEffect]:
        """Rule S8: a new generation from the next offset on, on every member."""
        self.generation += 1
        self._rewind_at_ms = None
        self._consumed_bytes = 0
        self._buffer.clear()
        effects: list[ReaderEffect] = []
        for source in self.sources.values():
            effects += self._start(now_ms, source)
        return effects + self._wake(now_ms)

    def _start(self, now_ms: int, source: Source) -> list[ReaderEffect]:
        source.started = False
        source.asked_ms = now_ms
        source.through = self.next - 1
        source.beyond = -1
        source.sends = False
        source.sent_bytes = 0
        source.granted_bytes = self._share
        mode = Mode.ALL_SEND_ALL if self.all_send_all else self.mode
        start = Start(
            self.generation, self.next, self.until, mode, tuple(sorted(self.down)), self.ensemble,
            self.priorities if mode is Mode.LOCAL else (), source.granted_bytes,
        )
        return [Tell(source.node, start)]

    @property
    def _share(self) -> int:
        return max(1, self.settings.window_bytes // len(self.sources))

    def _slide(self, now_ms: int) -> list[ReaderEffect]:
        """Grant more, and see who is back: at 0.7 of the window, or when everything released is consumed."""
        caught_up = not self._hungry and self._unconsumed_bytes <= 0
        if self._consumed_bytes < SLIDE_PART * self.settings.window_bytes and not (
            caught_up and (self._consumed_bytes or self.down or self.all_send_all)
        ):
            return self._grant()
        self._consumed_bytes = 0
        effects: list[ReaderEffect] = self._grant()
        if self._rewind_at_ms is not None:
            return effects
        back = [node for node in self.down if self.sources[node].started and self.sources[node].sends]
        for node in back:
            del self.down[node]
            self._down_changed_ms = now_ms
            effects.append(Note("back", node, "it sends again"))  # S16
        if self.all_send_all and self.mode is not Mode.ALL_SEND_ALL and len(self.down) < len(self.sources):
            self.all_send_all = False
            effects.append(Note("single_copy", "", "the window slid"))  # S21
            return effects + self._rewind_soon(now_ms, "", "single copy again")
        if back:
            return effects + self._rewind_soon(now_ms, back[0], "back")
        return effects

    def _grant(self) -> list[ReaderEffect]:
        """Let every node send on, as far as its part of the window was taken off our hands."""
        if self._unconsumed_bytes > self.settings.window_bytes:
            return []
        effects: list[ReaderEffect] = []
        held: dict[str, int] = {}
        for item, node in self._buffer.values():
            held[node] = held.get(node, 0) + item.size
        for source in self.sources.values():
            granted = source.sent_bytes - held.get(source.node, 0) + self._share
            if source.started and granted - source.granted_bytes >= self._share // 4:
                source.granted_bytes = granted
                effects.append(Tell(source.node, Window(self.generation, granted)))
        return effects

    def _wake(self, now_ms: int) -> list[ReaderEffect]:
        """Ask for the earliest time at which the clock may decide something."""
        times: list[int] = []
        if self._rewind_at_ms is not None:
            times.append(self._rewind_at_ms)
        times += [
            source.asked_ms + self.settings.started_timeout_ms
            for source in self.sources.values() if not source.started
        ]
        if self._hungry and not self.all_send_all:
            stalled_at = self._progress_ms + self.settings.scd_timeout_ms
            if now_ms >= stalled_at:
                stalled_at = max(now_ms + self.settings.scd_timeout_ms // 4,
                                 self._progress_ms + self.settings.all_send_all_timeout_ms)
            times.append(stalled_at)
        return [WakeAt(min(times) if times else None)]

    def _finish(self) -> list[ReaderEffect]:
        self.ended = True
        self._buffer.clear()
        return [WakeAt(None), Finished()]
