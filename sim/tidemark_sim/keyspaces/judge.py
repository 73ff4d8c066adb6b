"""The judge of a keyspace: each answer against all operations that ended before it was asked for.

Times are true times.  A read must show every acknowledged write, or one that is not older; what was acknowledged as
removed must not be visible; what one read showed no later read may un-show.  An operation without an answer may take
effect at any time, so it excuses both what is there and what is not.
Stays out: asking (`clients`), equality of owners (`healing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark_core.optimistic.cells import NEVER
from tidemark_core.optimistic.stamps import ZERO, Stamp

from ..trace import Violation

Slot = tuple[bytes, bytes | None]
"""A key and an element; None: the key's String."""


@dataclass(slots=True)
class Change:
    """One operation that changes a slot, or a whole key with elements (a clear)."""

    key: bytes
    begun_ms: int
    value: bytes | None = None              # None: it removes
    expires_at_ms: int = NEVER
    stamps: list[Stamp] = field(default_factory=list)     # of all its attempts
    ended_ms: int | None = None             # None: not acknowledged

    def expired(self, now_ms: int) -> bool:
        """Say whether a reader with this clock sees the value no more."""
        return self.expires_at_ms != NEVER and self.expires_at_ms <= now_ms

    def before(self, begun_ms: int) -> bool:
        """Say whether it was acknowledged before another operation began."""
        return self.ended_ms is not None and self.ended_ms < begun_ms


@dataclass(frozen=True, slots=True)
class Seen:
    """A read: when it was asked and answered, and up to which time values are expired, by its clock or the floor."""

    begun_ms: int
    ended_ms: int
    expired_ms: int


class Judge:
    """Everything that clients asked and heard.

    Of sloppy operations the order in real time is not promised (D73): `settled` begins the judgement of reads, when
    every hint is delivered, and a stamp may then excuse what time does not.  Only reads that store what they found
    before they answer are monotonic (D75).
    """

    def __init__(self, *, strict: bool, monotonic: bool = True) -> None:
        self.strict = strict
        self.monotonic = monotonic
        self.settled = strict       # reads are judged
        self._writes: dict[Slot, list[Change]] = {}       # values, and deletes of Strings
        self._removes: dict[Slot, list[Change]] = {}      # of elements
        self._clears: dict[bytes, list[Change]] = {}
        self._least: dict[Slot, list[tuple[int, Stamp]]] = {}   # shown or acknowledged at a time: nothing older later
        self._became: dict[Stamp, set[Stamp]] = {}      # what may stand in for a stamp that was taken back (D84)

    # --- changes ------------------------------------------------------------------------------------------

    def writes(self, slot: Slot, change: Change) -> None:
        self._writes.setdefault(slot, []).append(change)

    def removes(self, slot: Slot, change: Change) -> None:
        self._removes.setdefault(slot, []).append(change)

    def clears(self, change: Change) -> None:
        self._clears.setdefault(change.key, []).append(change)

    def took_back(self, was: Stamp, became: Stamp) -> None:
        """Note that a member may put another stamp in the place of one from the future."""
        if became < was:
            self._became.setdefault(was, set()).add(became)

    def acknowledged(self, slot: Slot, change: Change, now_ms: int, *, of_string: bool) -> None:
        """A change is acknowledged; a String's stamp must be above all that was shown before it began."""
        change.ended_ms = now_ms
        if of_string:
            least = self._least_of(slot, change.begun_ms)
            if self.strict and change.stamps[-1] < least:
                raise Violation("hidden write", f"{_name(slot)}: {change.stamps[-1]} is acknowledged below {least}")
            self._least.setdefault(slot, []).append((now_ms, change.stamps[-1]))

    # --- reads --------------------------------------------------------------------------------------------

    def string(self, key: bytes, seen: Seen, value: bytes | None) -> None:
        """Judge what a read shows of a String."""
        if not self.settled:
            return
        slot: Slot = (key, None)
        writes = self._writes.get(slot, [])
        never = Change(key, 0, stamps=[ZERO], ended_ms=0)
        shown = [never, *(each for each in writes if each.value is None or each.expired(seen.expired_ms))] \
            if value is None else [self._of_value(slot, value, seen)]
        newest_ms = max((each.begun_ms for each in writes if each.before(seen.begun_ms)), default=0)
        if self.strict and all(each.before(newest_ms) for each in shown):
            raise Violation("stale", f"{_name(slot)} shows {value!r}, and a write that began later had ended before")
        self._shows(slot, seen, value, [stamp for each in shown for stamp in each.stamps])

    def element(self, slot: Slot, seen: Seen, value: bytes | None, *, of_map: bool) -> None:
        """Judge what a read shows of an element; a field of a Map shows the newest value that is not removed."""
        if not self.settled:
            return
        if value is None:
            for add in self._writes.get(slot, []):
                if add.before(seen.begun_ms) and not self._may_be_gone(slot, add, seen):
                    raise Violation("missing", f"{_name(slot)} misses {add.value!r}, acknowledged at {add.ended_ms}")
            return
        if not self.strict:
            return
        adds = self._writes.get(slot, [])
        if of_map:
            shown = self._of_value(slot, value, seen)
            for add in adds:
                newer = add.before(seen.begun_ms) and add.stamps[-1] > max(shown.stamps)
                if newer and not self._may_be_gone(slot, add, seen):
                    raise Violation("stale", f"{_name(slot)} shows {value!r}, not {add.value!r} of {add.stamps[-1]}")
            adds = [shown]
        if all(self._is_gone(slot, add, seen) for add in adds):
            raise Violation("resurrected", f"{_name(slot)} shows {value!r}, which was removed before")

    def known(self, key: bytes) -> list[Slot]:
        """Return the elements of a key that a client has written."""
        return sorted((slot for slot in self._writes if slot[0] == key and slot[1] is not None), key=str)

    def strings(self) -> list[bytes]:
        """Return the keys of Strings that a client has written."""
        return sorted(key for key, element in self._writes if element is None)

    # --- laws ---------------------------------------------------------------------------------------------

    def _of_value(self, slot: Slot, value: bytes, seen: Seen) -> Change:
        for change in self._writes.get(slot, []):
            if change.value == value:
                if change.expired(seen.expired_ms):
                    raise Violation("expired", f"{_name(slot)} shows {value!r}, expired at {change.expires_at_ms}")
                return change
        raise Violation("invented", f"{_name(slot)} shows {value!r}, which no client wrote")

    def _least_of(self, slot: Slot, begun_ms: int) -> Stamp:
        return max((self._lowest(stamp) for at_ms, stamp in self._least.get(slot, []) if at_ms < begun_ms),
                   default=ZERO)

    def _lowest(self, stamp: Stamp) -> Stamp:
        """Return what a later write must exceed: a greater stamp that was taken back may have hidden this one."""
        while found := [became for was, all_ in self._became.items() for became in all_ if became < stamp <= was]:
            stamp = min(found)
        return stamp

    def _all_of(self, stamp: Stamp) -> list[Stamp]:
        """Return a stamp and all that may stand in for it."""
        return [stamp, *(each for became in self._became.get(stamp, ()) for each in self._all_of(became))]

    def _shows(self, slot: Slot, seen: Seen, value: bytes | None, stamps: list[Stamp]) -> None:
        """The read shows one of these stamps: at least one is not older than all that came before."""
        least = self._least_of(slot, seen.begun_ms)
        fitting = [each for stamp in stamps for each in self._all_of(stamp) if each >= least]
        if not fitting:
            raise Violation("stale", f"{_name(slot)} shows {value!r} of {max(stamps, default=None)}, not of {least}")
        if self.monotonic:
            self._least.setdefault(slot, []).append((seen.ended_ms, min(fitting)))

    def _gone_by(self, slot: Slot) -> list[Change]:
        return [*self._removes.get(slot, []), *self._clears.get(slot[0], [])]

    def _may_be_gone(self, slot: Slot, add: Change, seen: Seen) -> bool:
        """An acknowledged add may be gone by a removal that was not over before it, or by a value that expired."""
        after = [each for each in self._gone_by(slot) if not each.before(add.begun_ms) or not self.strict]
        expired = [each for each in self._writes[slot]
                   if each.expired(seen.expired_ms) and not each.before(add.begun_ms)]
        return bool(after or expired)

    def _is_gone(self, slot: Slot, add: Change, seen: Seen) -> bool:
        """An acknowledged add is gone by each removal that began after it and ended before the read."""
        if add.expired(seen.expired_ms):
            return True
        return any(add.before(each.begun_ms) and each.before(seen.begun_ms) for each in self._gone_by(slot))


def _name(slot: Slot) -> str:
    key, element = slot
    return key.decode() if element is None else f"{key.decode()}/{element.decode()}"
