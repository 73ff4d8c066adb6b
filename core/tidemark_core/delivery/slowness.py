"""Slowness: which member is so much slower than the others that reading should go around it.

Two things are measured in rounds of a second or more.  What the reader stood still for: while the next offset is
released, not here and the application has nothing left to do, the wait is held against the member that brings it at
last.  And what a member needs for its work: the time in which it had something to send and leave to send it, against
what it sent.  Both must speak against a member.  The wait alone will not do: the slowest of equals takes all of it,
however little it is behind, because what the others send is here by then.
A member found slow is kept out for a minute, and twice as long each time that it is found again soon after.
Stays out: what being kept out means (`reader`), and whether this is only watched.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

ROUND_MS = 1_000
WAITED_MS = 200
"""Shorter waits per round, on average, are nobody's fault."""
WAIT_MS_MIN = 10
"""A shorter wait is the way to the member; it does not count."""
WAITED_MS_MAX = 2 * WAITED_MS
"""What one round counts at most, so that a single hiccup, however long, makes nobody slow."""
MARGIN = 10
"""How many times the time of the others a member must take for the same work."""
ROUNDS_MIN = 3
KEPT_OUT_MS = 60_000
KEPT_OUT_MS_MAX = 30 * 60_000
ENTRY_WORK = 64 << 10
"""What an entry costs beside its bytes, in bytes: small ones are bound by time on the way, not by bandwidth."""

_WHOLE = 1_000                  # weight of the newest round; averages are of integers, for time is
_KEEP = (4, 5)                  # what is left of a round's weight after the next


class SlowDetection(StrEnum):
    """What is done about slow members."""

    ON = "on"
    OBSERVE = "observe"  # they are noted, and read from as before
    OFF = "off"


@dataclass(slots=True)
class Meter:
    """What was seen of one member: this round, and the rounds before, older ones counting less."""

    waited_ms: int = 0
    busy_ms: int = 0
    work: int = 0
    rounds: int = 0             # in which it worked
    past_weight: int = 0
    past_waited: int = 0
    past_busy: int = 0
    past_work: int = 0

    def fold(self) -> None:
        """End the round.  One in which the member sent nothing says nothing: it may have had nothing to send."""
        if self.work:
            keep, of = _KEEP
            self.rounds += 1
            self.past_weight = self.past_weight * keep // of + _WHOLE
            self.past_waited = self.past_waited * keep // of + min(self.waited_ms, WAITED_MS_MAX) * _WHOLE
            self.past_busy = self.past_busy * keep // of + self.busy_ms * _WHOLE
            self.past_work = self.past_work * keep // of + self.work
        self.waited_ms = self.busy_ms = self.work = 0

    @property
    def average_waited_ms(self) -> int:
        return self.past_waited // self.past_weight if self.past_weight else 0

    @property
    def cost(self) -> int:
        """Microseconds for a MiB of work."""
        return (self.past_busy << 20) // self.past_work if self.past_work else 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round has brought: who is kept out from now on and why, and who is let in again."""

    slow: tuple[tuple[str, str], ...] = ()
    back: tuple[str, ...] = ()


class Slowness:
    """The meters of one reader's members.  Nothing is told of a member while it is kept out, nor while it is down."""

    __slots__ = ("_began_ms", "_meters", "_sentences", "out")

    def __init__(self) -> None:
        self.out: dict[str, int] = {}                     # slow members, and until when
        self._meters: dict[str, Meter] = {}
        self._sentences: dict[str, tuple[int, int]] = {}  # how long the last one was, and when it ended
        self._began_ms: int | None = None

    def waited(self, node: str, ms: int) -> None:
        """The reader stood still for so long until the node brought the next offset."""
        if ms >= WAIT_MS_MIN:
            self._meter(node).waited_ms += ms

    def busy(self, node: str, ms: int) -> None:
        """For so long the node had something to send, and leave to send it."""
        self._meter(node).busy_ms += ms

    def sent(self, node: str, entries: int, size: int) -> None:
        """The node sent so many entries, of `size` bytes in all."""
        self._meter(node).work += size + entries * ENTRY_WORK

    def _meter(self, node: str) -> Meter:
        return self._meters.setdefault(node, Meter())

    def forget(self, node: str) -> None:
        """The node is down: what was measured no longer counts, nor is it kept out for slowness."""
        self._meters.pop(node, None)
        self.out.pop(node, None)

    def keep(self, members: Collection[str]) -> None:
        """The ensemble changed: forget whoever is not among the members, old sentences included."""
        for known in (self._meters, self.out, self._sentences):
            for node in [node for node in known if node not in members]:
                del known[node]

    def pardon(self) -> None:
        """Slow is better than nobody: keep no one out."""
        self.out.clear()

    def judge(self, now_ms: int, room: int) -> Verdict | None:
        """End the round if it was long enough; at most `room` members may be kept out.  None: it goes on."""
        if self._began_ms is None:
            self._began_ms = now_ms
        if now_ms - self._began_ms < ROUND_MS or not any(meter.work for meter in self._meters.values()):
            return None
        self._began_ms = now_ms
        for meter in self._meters.values():
            meter.fold()
        back = tuple(node for node, until_ms in self.out.items() if until_ms <= now_ms)
        for node in back:
            del self.out[node]
        slow: list[tuple[str, str]] = []
        suspects = sorted(self._meters, key=lambda node: -self._meters[node].cost)
        for node in suspects:
            if len(self.out) >= room:
                break
            why = self._too_slow(node)
            if why is not None:
                self._keep_out(now_ms, node)
                slow.append((node, why))
        return Verdict(tuple(slow), back)

    def _too_slow(self, node: str) -> str | None:
        meter = self._meters[node]
        others = [
            other.cost for name, other in self._meters.items()
            if name != node and other.rounds >= ROUNDS_MIN
        ]
        if meter.rounds < ROUNDS_MIN or not others or meter.average_waited_ms <= WAITED_MS:
            return None
        ranked = sorted(others)
        usual = (ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) // 2
        if meter.cost <= MARGIN * usual:
            return None
        return (
            f"reading waits {meter.average_waited_ms} ms of a round for it, and it takes {meter.cost} µs for a MiB "
            f"where others take {usual}"
        )

    def _keep_out(self, now_ms: int, node: str) -> None:
        length_ms, ended_ms = self._sentences.get(node, (0, 0))
        soon = length_ms and now_ms - ended_ms < KEPT_OUT_MS_MAX
        length_ms = min(KEPT_OUT_MS_MAX, 2 * length_ms) if soon else KEPT_OUT_MS
        self._sentences[node] = (length_ms, now_ms + length_ms)
        self.out[node] = now_ms + length_ms
        del self._meters[node]


def room_for(members: int, down: Collection[str]) -> int:
    """Return how many members may be kept out at once: a majority stays, whoever is down counted."""
    return max(0, members - (members // 2 + 1) - len(down))
