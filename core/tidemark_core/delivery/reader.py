"""Reader: follows one shard on all its members and fails over, so that nothing stalls, is skipped or repeated.

A pure state machine: the shell feeds what arrives and runs the effects.  Every offset is delivered once, as part of
an item or of a typed gap, in order.  Stays out: sockets, clocks, decoding, who the members are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .buffer import Buffer
from .messages import (
    DAMAGED,
    NOT_HELD,
    Deliver,
    DeliverGap,
    Finished,
    GapKind,
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
from .order import SLOTS_MAX, Mode
from .slowness import SlowDetection, Slowness, room_for
from .source import Source

SLIDE_PERCENT = 70
"""Part of the window that is consumed before it slides."""
FORGIVEN_MS = 600_000
"""A node that was not blamed for so long is listed after a short silence again."""


@dataclass(frozen=True, slots=True)
class ReaderSettings:
    """Times in milliseconds; the window is bytes over all members."""

    scd_timeout_ms: int = 10_000           # S14
    silent_timeout_ms: int = 1_000         # S14b: at first, and never more than `scd_timeout_ms`
    all_send_all_timeout_ms: int = 30_000  # S18
    started_timeout_ms: int = 5_000        # S11; and how long after a refusal START is sent again
    rewind_pause_ms: int = 1               # first pause in front of a rewind; doubles while they bring nothing
    rewind_pause_max_ms: int = 10_000
    window_bytes: int = 16 << 20
    slow_detection: SlowDetection = SlowDetection.ON


class Reader:
    """One shard's stream.  `mode` is how the reader wants to be served while nothing is wrong."""

    __slots__ = (
        "_blame_ms", "_buffer", "_consumed_bytes", "_down_changed_ms", "_late", "_mark", "_pause_ms", "_progress_ms",
        "_released", "_rewind_at_ms", "_rewind_why", "_seen_ms", "_share", "_slowness", "_unconsumed_bytes",
        "_waiting_ms", "all_send_all", "copies", "delivered_bytes", "down", "ended", "ensemble",
        "generation", "mode", "next", "priorities", "settings", "sources", "until",
    )

    def __init__(
        self, ensemble: Sequence[str], first: int, until: int = -1, mode: Mode = Mode.SINGLE_COPY,
        settings: ReaderSettings | None = None, priorities: Sequence[int] = (), copies: int = 0,
    ) -> None:
        if first < 0:
            raise ValueError(f"first is {first}, must be 0 or more")
        self.settings = settings or ReaderSettings()
        self.mode = mode
        self.next = first             # next offset to deliver
        self.until = until
        self.generation = 0
        self.ensemble: tuple[str, ...] = ()
        self.priorities: tuple[int, ...] = ()    # of each slot, for Mode.LOCAL
        self.copies = 0                          # members that keep each payload, for Mode.LOCAL; 0: all
        self.sources: dict[str, Source] = {}
        self.down: dict[str, str] = {}           # known_down: node and why
        self.all_send_all = mode is Mode.ALL_SEND_ALL
        self.ended = False
        self.delivered_bytes = 0
        self._buffer = Buffer()
        self._late = 0                           # entries that came when they had been delivered
        self._slowness = Slowness()
        self._released = -1                      # as far as any member told
        self._mark = -1                          # the members are compared by how they get to it
        self._unconsumed_bytes = 0
        self._consumed_bytes = 0                 # since the window slid
        self._progress_ms = 0                    # when something was delivered, or nobody could be blamed
        self._blame_ms = 0                       # the same, or when no member had answered yet
        self._down_changed_ms = 0
        self._seen_ms = 0
        self._waiting_ms: int | None = None      # since when the application waits for the next offset
        self._rewind_at_ms: int | None = None
        self._rewind_why = Note("rewind", "", Reason.ENSEMBLE)
        self._pause_ms = self.settings.rewind_pause_ms
        self._set_ensemble(ensemble, priorities, copies)

    # --- life ---------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> list[ReaderEffect]:
        """Start on every member."""
        self._progress_ms = self._blame_ms = self._down_changed_ms = self._seen_ms = now_ms
        if 0 <= self.until < self.next:
            return self._finish()
        return self._start_all(now_ms)

    def on_ensemble(
        self, now_ms: int, ensemble: Sequence[str], priorities: Sequence[int] = (), copies: int = 0
    ) -> list[ReaderEffect]:
        """The members changed: those who left are forgotten, all decide anew from the new list."""
        self._look(now_ms)
        known = (self.ensemble, self.priorities, self.copies)
        if self.ended or (tuple(ensemble), tuple(priorities), copies) == known:
            return []
        self._set_ensemble(ensemble, priorities, copies)
        for source in self.sources.values():
            if not source.connected and source.node not in self.down:
                source.asked_ms = max(source.asked_ms, now_ms)
        return [*self._rewind_soon(now_ms, "", Reason.ENSEMBLE), *self._wake(now_ms)]

    def _set_ensemble(self, ensemble: Sequence[str], priorities: Sequence[int], copies: int) -> None:
        if not 1 <= len(ensemble) <= SLOTS_MAX or len(set(ensemble)) < len(ensemble):
            raise ValueError(f"ensemble {', '.join(ensemble)!r} must have 1 to {SLOTS_MAX} members, each once")
        if len(priorities) not in (0, len(ensemble)):
            raise ValueError(f"priorities has {len(priorities)} numbers for {len(ensemble)} members")
        if not 0 <= copies <= len(ensemble):
            raise ValueError(f"copies is {copies}, the ensemble has {len(ensemble)} members")
        self.ensemble, self.priorities, self.copies = tuple(ensemble), tuple(priorities), copies
        self.sources = {node: self.sources.get(node) or Source(node) for node in self.ensemble}
        self.down = {node: why for node, why in self.down.items() if node in self.sources}
        self._share = max(1, self.settings.window_bytes // len(self.sources))
        self._slowness.keep(self.ensemble)

    def on_connected(self, now_ms: int, node: str) -> list[ReaderEffect]:
        """A stream to the node is open (again): it is told where we are, listed or not (S15)."""
        self._look(now_ms)
        source = self.sources.get(node)
        if source is None or self.ended:
            return []
        source.connected = True
        return [self._start(now_ms, source), *self._wake(now_ms)]

    def on_closed(self, now_ms: int, node: str, why: str) -> list[ReaderEffect]:
        """The stream to the node broke, or could not be opened (S10, S13)."""
        self._look(now_ms)
        source = self.sources.get(node)
        if source is None or self.ended:
            return []
        source.connected = False
        source.stop(None)
        return [*self._list(now_ms, source, Reason.CLOSED, why), *self._after(now_ms)]

    # --- what nodes say -----------------------------------------------------------------------------------

    def on_started(self, now_ms: int, node: str, m: Started) -> list[ReaderEffect]:
        self._look(now_ms)
        source = self.sources.get(node)
        if source is None or self.ended or m.generation != self.generation:
            return []
        if m.status is Status.ACCESS:
            return [DeliverGap(GapKind.ACCESS, self.next, max(self.next, self.until)), *self._finish()]
        if m.status is not Status.OK:
            why = f"{m.status}: {m.message}" if m.message else str(m.status)
            return self._fault(now_ms, source, Reason.REFUSED, why)  # S12
        if source.retry_ms is not None:
            return []  # it goes on with a stream that was given up: what it sent since was not counted
        source.started = True
        self._hear(now_ms, source, m.released)
        source.first = max(source.first, m.first)
        source.through = max(source.through, m.first - 1)
        return self._after(now_ms)

    def on_shipment(self, now_ms: int, node: str, m: Shipment) -> list[ReaderEffect]:
        self._look(now_ms)
        source = self.sources.get(node)
        if source is None:
            return []
        source.bytes_received += sum(item.size for item in m.items)
        if self.ended or m.generation != self.generation or not source.started:
            return []  # S8: an older generation changes nothing
        wrong = source.violation(m, self._share)
        if wrong is not None:
            return self._fault(now_ms, source, Reason.VIOLATION, wrong)
        self._hear(now_ms, source, m.released)
        effects: list[ReaderEffect] = []
        good_entries = good_bytes = 0
        for item in m.items:
            source.take(item)
            if item.body is DAMAGED:
                source.corrupt_to = max(source.corrupt_to, item.last)
                effects += self._list(now_ms, source, Reason.CORRUPT, f"[{item.first}, {item.last}] is damaged")  # S9
                continue
            if item.body is NOT_HELD:
                continue  # K17: no fault and no gap; that its stream has passed says that it cannot send it (S17)
            source.sends = True
            good_entries += item.entry_count
            good_bytes += item.size
            if item.last < self.next:
                self._late += item.entry_count
            else:
                self._buffer.put(item, node)
        if good_entries and self._measures(node):
            self._slowness.sent(node, good_entries, good_bytes)
        if not m.items:
            # In local reading a node may have nothing to send for long: that it answers shows that it is back.
            # At the tail the near ones are always faster, so that it gets on at all must do.
            source.sends = source.sends or (self.mode is Mode.LOCAL and m.through > source.through)
        source.through = max(source.through, m.through)
        return effects + self._after(now_ms)

    def on_corrupt(self, now_ms: int, node: str, generation: int, what: str) -> list[ReaderEffect]:
        """Something the node sent cannot be used at all, and what it holds is not known: its stream ends here (S9)."""
        self._look(now_ms)
        source = self.sources.get(node)
        if source is None or self.ended or generation != self.generation or not source.started:
            return []
        source.corrupt_to = max(source.corrupt_to, source.through + 1)
        return self._fault(now_ms, source, Reason.CORRUPT, what)

    def on_consumed(self, now_ms: int, size: int) -> list[ReaderEffect]:
        """The application has taken `size` bytes of what was delivered."""
        self._look(now_ms)
        assert 0 <= size <= self._unconsumed_bytes, "only what was delivered can be consumed"
        window_bytes = self.settings.window_bytes
        held = self._unconsumed_bytes > window_bytes
        self._unconsumed_bytes -= size
        self._consumed_bytes += size
        if self.ended or (self._unconsumed_bytes > (window_bytes if held else 0) and not self._slides):
            return []  # it still has something to do, and the windows stay as they are
        return self._after(now_ms)

    @property
    def duplicates(self) -> int:
        """Entries known to have come more than once."""
        return self._late + self._buffer.duplicates

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are here ahead of the next offset."""
        return self._buffer.bytes

    def _hear(self, now_ms: int, source: Source, released: int) -> None:
        source.heard_ms = now_ms
        source.released = max(source.released, released)
        self._released = max(self._released, released)

    def _fault(self, now_ms: int, source: Source, reason: Reason, what: str) -> list[ReaderEffect]:
        """The node's stream cannot go on; START is sent again by the rewind that follows, or after a while."""
        source.stop(now_ms + self.settings.started_timeout_ms)
        return [*self._list(now_ms, source, reason, what), *self._after(now_ms)]

    # --- delivering ---------------------------------------------------------------------------------------

    def _after(self, now_ms: int) -> list[ReaderEffect]:
        """Whatever happened: deliver what is next, fail over where that is certain, slide, look at the clock."""
        effects = self._deliver(now_ms)
        while not self.ended:
            lost = self._fail_over(now_ms)
            effects += lost
            if not lost:
                break
        if self.ended:
            return effects
        effects += self._slide(now_ms)
        effects += self._judge(now_ms)
        if all(source.through >= self._mark for source in self._live()):
            self._mark = self._released  # so that at the tail, too, whoever is through sooner was busy for less
        if self._hungry and self._waiting_ms is None:
            self._waiting_ms = now_ms
        return effects + self._wake(now_ms)

    def _deliver(self, now_ms: int) -> list[ReaderEffect]:
        effects: list[ReaderEffect] = []
        trimmed = max((source.first for source in self.sources.values() if source.started), default=0)
        while not self.ended:
            found = self._buffer.take(self.next)
            if found is None:
                if self.next >= trimmed:
                    break
                # A node vouches that retention has passed here; what another one still holds is going too.
                effects += self._pass(now_ms, GapKind.TRIM, trimmed - 1)
                continue
            item, node = found
            if 0 <= self.until < item.last:
                item = item.part(self.next, self.until)
            if item.body is None:
                effects += self._pass(now_ms, GapKind.HOLE, item.last)
                continue
            source = self.sources.get(node)
            if source is not None:
                source.entries_delivered += item.entry_count
                if self._waiting_ms is not None and self._measures(node):
                    self._slowness.waited(node, now_ms - self._waiting_ms)
            self._unconsumed_bytes += item.size
            self.delivered_bytes += item.size
            last = item.last if self.until < 0 else min(item.last, self.until)
            effects.append(Deliver(item, self.next, last))
            effects += self._progress(now_ms, last)
        return effects

    def _pass(self, now_ms: int, kind: GapKind, last: int) -> list[ReaderEffect]:
        last = last if self.until < 0 else min(last, self.until)
        return [DeliverGap(kind, self.next, last), *self._progress(now_ms, last)]

    def _progress(self, now_ms: int, last: int) -> list[ReaderEffect]:
        assert last >= self.next, "each offset once, in order"
        self.next = last + 1
        self._progress_ms = self._blame_ms = now_ms
        self._waiting_ms = None
        self._pause_ms = max(self.settings.rewind_pause_ms, self._pause_ms // 2)
        return self._finish() if 0 <= self.until < self.next else []

    # --- failing over -------------------------------------------------------------------------------------

    @property
    def known_down(self) -> tuple[str, ...]:
        """Whom the others stand in for: the down, and the slow unless that is only observed."""
        if self.settings.slow_detection is not SlowDetection.ON or not self._slowness.out:
            return tuple(sorted(self.down)) if self.down else ()
        return tuple(sorted({*self.down, *self._slowness.out}))

    def _list(self, now_ms: int, source: Source, reason: Reason, why: str) -> list[ReaderEffect]:
        """Put a node into known_down.  It may be everybody: rule S17 takes over then."""
        source.sends = False
        if source.node in self.down:
            return []
        self.down[source.node] = why
        self._down_changed_ms = now_ms
        self._slowness.forget(source.node)  # down wins
        if len(self.known_down) == len(self.sources):
            self._slowness.pardon()
        listed = Note("known_down", source.node, reason, why)
        if self.all_send_all:
            return [listed]  # nobody goes by known_down there
        return [listed, *self._rewind_soon(now_ms, source.node, reason)]

    def _fail_over(self, now_ms: int) -> list[ReaderEffect]:
        """Rules S17 and S20: whoever cannot send the next offset is counted at every record and gap."""
        if self._rewind_at_ms is not None:
            return []  # a new generation is on its way and will tell
        lacking = [node for node, source in self.sources.items() if source.started and source.through >= self.next]
        if not self.all_send_all:
            if len({*lacking, *self.known_down}) < len(self.sources):
                return []
            return self._ask_all(now_ms, f"nobody sends offset {self.next}")
        if len(lacking) < len(self.sources):
            return []
        # Every member was asked for everything in one generation and answered past it (K18).
        last = min(source.through for source in self.sources.values())
        held = self._buffer.first()
        if held is not None:
            last = min(held - 1, last)
        return [*self._pass(now_ms, GapKind.DATALOSS, last), *self._deliver(now_ms)]

    def _ask_all(self, now_ms: int, why: str) -> list[ReaderEffect]:
        self.all_send_all = True
        self._progress_ms = now_ms
        return [Note("all_send_all", "", Reason.ALL_SEND_ALL, why),
                *self._rewind_soon(now_ms, "", Reason.ALL_SEND_ALL)]

    def on_time(self, now_ms: int) -> list[ReaderEffect]:
        """Look at the clock: rewinds that are due, answers that do not come, a stream that stands still."""
        self._look(now_ms)
        if self.ended:
            return []
        effects: list[ReaderEffect] = []
        if self._rewind_at_ms is not None and now_ms >= self._rewind_at_ms:
            effects += self._start_all(now_ms)
        for source in self.sources.values():
            if source.retry_ms is not None and now_ms >= source.retry_ms:
                effects.append(self._start(now_ms, source))
            elif self._unanswered(source) and now_ms - source.asked_ms >= self.settings.started_timeout_ms:
                effects += self._list(now_ms, source, Reason.NO_ANSWER, "no answer to START")  # S10, S11
        effects += self._stalled(now_ms)
        return effects + self._after(now_ms)

    def _unanswered(self, source: Source) -> bool:
        return not source.started and source.retry_ms is None and source.node not in self.down

    def _stalled(self, now_ms: int) -> list[ReaderEffect]:
        """Rules S14, S14b and S18.  No member is blamed while the application is slow or nothing more is released."""
        if not self._watched:
            return []
        if now_ms >= self._all_send_all_at:  # and again, should a stream be stuck where nobody else could help
            return self._ask_all(now_ms, f"no progress at offset {self.next}")
        least_ms = min(self.settings.silent_timeout_ms, self.settings.scd_timeout_ms)
        if self.all_send_all or now_ms - self._blame_ms < least_ms:
            return []   # the same for each member, without a look at them
        effects: list[ReaderEffect] = []
        for source in self._silent():
            if now_ms >= self._blamed_at(source):
                why = f"nothing about offset {self.next} for {now_ms - self._blame_ms} ms"
                source.blame(now_ms, 2 * self._patience_ms(source))
                effects += self._list(now_ms, source, Reason.SILENT, why)
        return effects

    def _blamed_at(self, source: Source) -> int:
        """Return when its silence about the next offset is held against a node (S14), sooner if it says nothing."""
        quiet_ms = max(self._blame_ms, source.heard_ms)
        return min(self._blame_ms + self.settings.scd_timeout_ms, quiet_ms + self._patience_ms(source))

    def _patience_ms(self, source: Source) -> int:
        """Return how long a node may say nothing: twice as long each time that it was blamed lately (S14b)."""
        lately = self._blame_ms - source.blamed_ms < FORGIVEN_MS
        least_ms = source.patience_ms if lately else 0
        return min(max(self.settings.silent_timeout_ms, least_ms), self.settings.scd_timeout_ms)

    @property
    def _watched(self) -> bool:
        return self._hungry and self._rewind_at_ms is None

    @property
    def _all_send_all_at(self) -> int:
        timeout_ms = self.settings.all_send_all_timeout_ms
        if all(source.beyond < self.next for source in self.sources.values()):
            return self._progress_ms + timeout_ms
        return max(self._progress_ms, self._down_changed_ms) + timeout_ms

    def _silent(self) -> list[Source]:
        """Return whom silence is held against (S14): nobody when no member has answered past the next offset."""
        live = self._live()
        silent = [source for source in live if source.through < self.next]
        return silent if len(silent) < len(live) else []

    def _live(self) -> list[Source]:
        known_down = self.known_down
        return [source for source in self.sources.values() if source.node not in known_down]

    @property
    def _hungry(self) -> bool:
        """Something more is released somewhere, and the application waits for it."""
        return self._released >= self.next and self._unconsumed_bytes <= 0

    def _look(self, now_ms: int) -> None:
        """Before anything changes: let clocks run for the time in which nothing did."""
        if not self._hungry:
            self._progress_ms = self._blame_ms = now_ms
        elif not self.all_send_all and not self._silent():
            self._blame_ms = now_ms  # they may all be waiting for us, or all are silent: rule S18
        for node, source in self.sources.items() if now_ms > self._seen_ms else ():
            if source.owes(self._mark) and self._measures(node):
                self._slowness.busy(node, now_ms - self._seen_ms)
        self._seen_ms = now_ms

    # --- slow members -------------------------------------------------------------------------------------

    def _measures(self, node: str) -> bool:
        """Say whether what the node does is compared: what everybody sends, or others stand in for, tells nothing."""
        return (
            self.settings.slow_detection is not SlowDetection.OFF and not self.all_send_all
            and node not in self.down and node not in self._slowness.out
        )

    def _judge(self, now_ms: int) -> list[ReaderEffect]:
        """Keep out who is far slower than the others, for a while."""
        if self.settings.slow_detection is SlowDetection.OFF or self.all_send_all or self._rewind_at_ms is not None:
            return []
        verdict = self._slowness.judge(now_ms, room_for(len(self.sources), self.down))
        if verdict is None:
            return []
        effects: list[ReaderEffect] = [Note("slow", node, Reason.SLOW, why) for node, why in verdict.slow]
        effects += [Note("back", node, Reason.BACK, "it was kept out long enough") for node in verdict.back]
        if self.settings.slow_detection is SlowDetection.ON:
            for node, _ in verdict.slow:
                effects += self._rewind_soon(now_ms, node, Reason.SLOW)
            for node in verdict.back:
                effects += self._rewind_soon(now_ms, node, Reason.BACK)
        return effects

    # --- generations and windows --------------------------------------------------------------------------

    def _rewind_soon(self, now_ms: int, node: str, reason: Reason) -> list[ReaderEffect]:
        """Rewind once for everything that changes within a pause, which grows while rewinds bring nothing."""
        if self._rewind_at_ms is None:
            self._rewind_at_ms = now_ms + self._pause_ms
            self._rewind_why = Note("rewind", node, reason)
            self._pause_ms = min(self.settings.rewind_pause_max_ms, self._pause_ms * 2)
        return []

    def _start_all(self, now_ms: int) -> list[ReaderEffect]:
        """Rule S8: a new generation from the next offset on, on every member."""
        effects: list[ReaderEffect] = [self._rewind_why] if self.generation else []
        if not self.all_send_all and len(self.known_down) == len(self.sources):
            self.all_send_all = True  # S17, without a generation in between
            effects.append(Note("all_send_all", "", Reason.ALL_SEND_ALL, "everybody is listed"))
        self.generation += 1
        self._rewind_at_ms = None
        self._consumed_bytes = 0
        self._blame_ms = now_ms
        self._waiting_ms = None
        self._buffer.clear()
        effects += [self._start(now_ms, source) for source in self.sources.values()]
        return effects + self._wake(now_ms)

    def _start(self, now_ms: int, source: Source) -> ReaderEffect:
        mode = Mode.ALL_SEND_ALL if self.all_send_all else self.mode
        # A rewind grants a window anew, so it must not while the application has one in its hands.
        window_bytes = self._share if self._unconsumed_bytes <= self.settings.window_bytes else 0
        source.begin(now_ms, self.next, window_bytes)
        near = self.priorities or (0,) * len(self.ensemble)
        return Tell(source.node, Start(
            self.generation, self.next, self.until, mode,
            () if self.all_send_all else self.known_down,  # S4
            self.ensemble, near if mode is Mode.LOCAL else (), window_bytes, self.copies,
        ))

    def _slide(self, now_ms: int) -> list[ReaderEffect]:
        """Grant more, and see who is back: at 0.7 of the window, or when everything released is consumed."""
        effects = self._grant()
        caught_up = self._released < self.next and self._unconsumed_bytes <= 0
        if not self._slides and not (caught_up and (self._consumed_bytes or self.down or self.all_send_all)):
            return effects
        self._consumed_bytes = 0
        if self._rewind_at_ms is not None:
            return effects
        back = [node for node in self.down if self._is_back(self.sources[node])]
        for node in back:
            del self.down[node]
            self._down_changed_ms = now_ms
            effects.append(Note("back", node, Reason.BACK, "it sends again"))  # S16
        if self.all_send_all:
            if self.mode is Mode.ALL_SEND_ALL or len(self.down) == len(self.sources):
                return effects
            self.all_send_all = False
            effects.append(Note("single_copy", "", Reason.SINGLE_COPY, "the window slid"))  # S21
            return effects + self._rewind_soon(now_ms, "", Reason.SINGLE_COPY)
        if back:
            effects += self._rewind_soon(now_ms, back[0], Reason.BACK)
        return effects

    @property
    def _slides(self) -> bool:
        return 100 * self._consumed_bytes >= SLIDE_PERCENT * self.settings.window_bytes

    def _is_back(self, source: Source) -> bool:
        return source.started and source.sends and self.next > source.corrupt_to

    def _grant(self) -> list[ReaderEffect]:
        """Let every node send on, as far as its part of the window was taken off our hands."""
        if self._unconsumed_bytes > self.settings.window_bytes:
            return []
        effects: list[ReaderEffect] = []
        kept_out = () if self.all_send_all else self.known_down
        for node, source in self.sources.items():
            if not source.started or (node in kept_out and node not in self.down):
                continue  # a slow node sends its part as well as those who stand in for it: no more than START allowed
            granted = source.sent_bytes - self._buffer.bytes_of.get(node, 0) + self._share
            if granted - source.granted_bytes >= max(1, self._share // 2):
                source.granted_bytes = granted
                effects.append(Tell(node, Window(self.generation, granted)))
        return effects

    def _wake(self, now_ms: int) -> list[ReaderEffect]:
        """Ask for the earliest time at which the clock may decide something."""
        times: list[int] = [] if self._rewind_at_ms is None else [self._rewind_at_ms]
        for source in self.sources.values():
            if source.retry_ms is not None:
                times.append(source.retry_ms)
            elif self._unanswered(source):
                times.append(source.asked_ms + self.settings.started_timeout_ms)
        if self._watched:
            times.append(self._all_send_all_at)
            times += (self._blamed_at(source) for source in self._silent() if not self.all_send_all)
        return [WakeAt(min(times) if times else None)]

    def _finish(self) -> list[ReaderEffect]:
        self.ended = True
        self._buffer.clear()
        return [WakeAt(None), Finished()]
