"""Retention: the leader removes what is older or more than its group keeps, by itself.

Entries go in whole stretches, from mark to mark of the log.  A stretch is expired when the entry behind it is `age`
old, so nothing younger than `age` goes.  When a stretch ends and the log holds more than `bytes_max`, the oldest
stretches go until 15/16 of it are left, so that a busy shard is not trimmed at every mark.  The newest stretch always
stays: less than 1 MiB, 1024 entries and, with a bound on age, a sixteenth of that age.

Age is judged by the median of the clocks of a majority of the members; without one nothing expires (C2).  Nor are
clocks trusted at once.  Age is judged at the time of the look before this one, and looks are a tenth of `age` apart (at
most 6 hours): clocks that are wrong, or jump ahead, have so long to be put right before anything goes, and a new
leadership looks once before it removes anything.  Hence a record lives between `age` and 1.2 times `age`, plus its
stretch.

Bounds are those of any trim (#281): what is confirmed, what every member holds, nothing while members change.
Subscriptions pin from their positions on (B10), as of the look before (B4): who lets go by a clock that is wrong has
time to come back.  The hard bound on bytes wins over them, and whoever is overrun is told of.
Stays out: how a log is trimmed and what may be trimmed at all; those are `log`'s and `leader`'s.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from ..base.effects import Effect, SetTimer
from .log import NEVER_MS, Log
from .settings import RetentionSettings

if TYPE_CHECKING:
    from .leader import Leader

RETENTION_TIMER = "retention"
LOOKS_PER_AGE = 10
LOOK_MAX_MS = 6 * 3_600_000
MARKS_PER_AGE = 16
NO_TIME_MS = 0
"""The time at which nothing is of age and every lease runs."""
SLACK_PART = 16
BLOCKED_TOLD_MS = 60_000


def retention_point(log: Log, settings: RetentionSettings, now_ms: int) -> int:
    """Return the offset below which nothing is to be kept, a mark of the log or its first offset."""
    marks = log.marks
    at = 0
    if settings.age_ms:
        # What lies in front of a mark is not younger than the entry at the mark.
        at = bisect_right(marks, now_ms - settings.age_ms, key=lambda mark: mark.logged_ms) - 1
    point = max(log.first, marks[min(at, len(marks) - 1)].base) if at >= 0 and marks else log.first
    return max(point, _size_point(log, _size(settings)))


def hard_point(log: Log, settings: RetentionSettings) -> int:
    """Return the offset below which nothing is kept whatever pins it, a mark of the log or its first offset."""
    return _size_point(log, settings.bytes_hard)


def _size(settings: RetentionSettings) -> int:
    """The bound on bytes when nothing is pinned; 0: none."""
    return settings.bytes_max or settings.bytes_hard


def _size_point(log: Log, bytes_max: int) -> int:
    marks = log.marks
    if not bytes_max or not marks or log.bytes_held <= bytes_max:
        return log.first
    keep = bytes_max - bytes_max // SLACK_PART
    at = bisect_left(marks, log.bytes_total - keep, key=lambda mark: mark.bytes_before)
    return max(log.first, marks[min(at, len(marks) - 1)].base)


def look_every_ms(settings: RetentionSettings, least_ms: int) -> int:
    """Return the time between two looks: long enough to put a clock right in between."""
    return max(least_ms, min(settings.age_ms // LOOKS_PER_AGE, LOOK_MAX_MS))


def mark_every_ms(settings: RetentionSettings, least_ms: int) -> int:
    """Return how far apart marks of a slowly growing log are at most."""
    return max(least_ms, settings.age_ms // MARKS_PER_AGE) if settings.age_ms else NEVER_MS


class Retention:
    """When one leadership looks, and what it removes then."""

    __slots__ = ("_leader", "_looked_ms", "_mark", "_overrun_told_ms", "_told_ms", "armed")

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.armed = False              # a look is due
        self._looked_ms = NO_TIME_MS    # what the members' clocks said at the last look; age is judged at that time
        self._mark = -1                 # the newest mark seen
        self._told_ms: int | None = None
        self._overrun_told_ms: int | None = None

    @property
    def _settings(self) -> RetentionSettings:
        return self._leader.replica.retention

    def on_settings(self, now_ms: int) -> list[Effect]:
        """What is kept has changed."""
        was_armed, self.armed = self.armed, False
        effects = self._arm(now_ms)
        if was_armed and not effects:
            effects.append(SetTimer(self._leader.replica.address, RETENTION_TIMER, None))
        return effects

    def on_growth(self, now_ms: int) -> list[Effect]:
        """The log has grown: look at its bytes at every new mark, and at its age once there is something to expire."""
        log, settings = self._leader.replica.log, self._settings
        mark = log.marks[-1].base if log.marks else -1
        if mark == self._mark:
            return []
        self._mark = mark
        effects: list[Effect] = []
        if 0 < _size(settings) < log.bytes_held:
            effects += self._trim(now_ms, retention_point(log, settings, self._looked_ms), self._looked_ms)
        return effects + self._arm(now_ms)

    def pinned(self, now_ms: int) -> int:
        """Return the offset from which on subscriptions keep the log, a very high one when there is none (B10)."""
        lowest = self._leader.replica.log.subscriptions.lowest(min(self._agreed_ms(now_ms), self._looked_ms))
        return lowest[1].offset if lowest is not None else NEVER_MS

    def _agreed_ms(self, now_ms: int) -> int:
        agreed_ms = self._leader.clocks.agreed_ms(now_ms)
        return NO_TIME_MS if agreed_ms is None else agreed_ms

    def _trim(self, now_ms: int, wanted: int, at_ms: int) -> list[Effect]:
        """Remove up to `wanted` what no subscription pins at `at_ms`, and what the hard bound does not leave."""
        leader = self._leader
        log = leader.replica.log
        lowest, first, hard = log.subscriptions.lowest(at_ms), log.first, hard_point(log, self._settings)
        if lowest is None:
            return leader.trim(wanted)
        name, position = lowest
        effects = leader.trim(max(min(wanted, position.offset), hard))
        if first < log.first > position.offset and not _told_lately(self._overrun_told_ms, now_ms):
            self._overrun_told_ms = now_ms
            detail = f"subscription {name!r} stands at {position.offset}, the hard bound on size kept from {log.first}"
            effects.append(leader.replica.trace("pin_overrun", detail))
        return effects

    def on_timer(self, now_ms: int) -> list[Effect]:
        """Look: remove what was too old at the look before, or is too much now."""
        self.armed = False
        leader = self._leader
        log = leader.replica.log
        agreed_ms = self._agreed_ms(now_ms)
        at_ms = min(agreed_ms, self._looked_ms)
        wanted = retention_point(log, self._settings, at_ms)
        self._looked_ms = agreed_ms
        effects = self._trim(now_ms, wanted, at_ms)
        if log.first < wanted and not _told_lately(self._told_ms, now_ms):
            self._told_ms = now_ms
            detail = f"offset {log.first} is kept, retention ends at {wanted}: {self._blocked_by(wanted, at_ms)}"
            effects.append(leader.replica.trace("retention_blocked", detail))
        return effects + self._arm(now_ms)

    def _blocked_by(self, wanted: int, at_ms: int) -> str:
        log = self._leader.replica.log
        lowest = log.subscriptions.lowest(at_ms)
        if lowest is None or lowest[1].offset >= wanted:
            return self._leader.trim_blocked_by(wanted)
        name, position = lowest
        pinned = f"subscription {name!r} stands at {position.offset}"
        if log.first < log.trim_point(position.offset):
            return f"{pinned}, and {self._leader.trim_blocked_by(position.offset)}"
        return pinned

    def _arm(self, now_ms: int) -> list[Effect]:
        """No timer while nothing can expire: an idle shard costs nothing, one with data a look when it is due."""
        due_ms = None if self.armed else self._due_ms(now_ms)
        if due_ms is None:
            return []
        self.armed = True
        return [SetTimer(self._leader.replica.address, RETENTION_TIMER, due_ms)]

    def _due_ms(self, now_ms: int) -> int | None:
        replica, settings = self._leader.replica, self._settings
        log, least_ms = replica.log, replica.limits.retention_look_ms
        if len(log.marks) < 2:
            return None   # one stretch, which stays
        due = []
        if settings.age_ms:
            soonest_ms, agreed_ms = look_every_ms(settings, least_ms), self._leader.clocks.agreed_ms(now_ms)
            left_ms = 0 if agreed_ms is None else log.marks[1].logged_ms + settings.age_ms - agreed_ms
            due.append(now_ms + max(soonest_ms, left_ms))
        if 0 < _size(settings) < log.bytes_held:
            due.append(now_ms + least_ms)   # could not go at once
        return min(due, default=None)


def _told_lately(told_ms: int | None, now_ms: int) -> bool:
    return told_ms is not None and 0 <= now_ms - told_ms < BLOCKED_TOLD_MS
