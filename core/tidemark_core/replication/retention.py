"""Retention: the leader removes what is older or more than its group keeps, by itself.

Entries go in whole stretches, from mark to mark of the log.  A stretch is expired when the entry behind it is `age`
old, so nothing younger than `age` goes.  When a stretch ends and the log holds more than `bytes_max`, the oldest
stretches go until 15/16 of it are left, so that a busy shard is not trimmed at every mark.  The newest stretch always
stays: less than 1 MiB, 1024 entries and, with a bound on age, a sixteenth of that age.

Clocks are not trusted at once.  Age is judged at the time of the look before this one, and looks are a tenth of `age`
apart (at most 6 hours): a clock that is wrong, or jumps ahead, has so long to be put right before anything goes, and
a new leadership looks once before it removes anything.  Hence a record lives between `age` and 1.2 times `age`, plus
its stretch.  A clock set back only delays: entries are never logged earlier than those before them.

Bounds are those of any trim (#281): what is confirmed, what every member holds, nothing while members change.
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
SLACK_PART = 16
BLOCKED_TOLD_MS = 60_000


def retention_point(log: Log, settings: RetentionSettings, now_ms: int) -> int:
    """Return the offset below which nothing is to be kept, a mark of the log or its first offset."""
    marks = log.marks
    at = 0
    if settings.age_ms:
        # What lies in front of a mark is not younger than the entry at the mark.
        at = bisect_right(marks, now_ms - settings.age_ms, key=lambda mark: mark.logged_ms) - 1
    if settings.bytes_max and log.bytes_held > settings.bytes_max:
        keep = settings.bytes_max - settings.bytes_max // SLACK_PART
        at = max(at, bisect_left(marks, log.bytes_total - keep, key=lambda mark: mark.bytes_before))
    at = min(at, len(marks) - 1)
    return max(log.first, marks[at].base) if at >= 0 else log.first


def look_every_ms(settings: RetentionSettings, least_ms: int) -> int:
    """Return the time between two looks: long enough to put a clock right in between."""
    return max(least_ms, min(settings.age_ms // LOOKS_PER_AGE, LOOK_MAX_MS))


def mark_every_ms(settings: RetentionSettings, least_ms: int) -> int:
    """Return how far apart marks of a slowly growing log are at most."""
    return max(least_ms, settings.age_ms // MARKS_PER_AGE) if settings.age_ms else NEVER_MS


class Retention:
    """When one leadership looks, and what it removes then."""

    __slots__ = ("_leader", "_looked_ms", "_mark", "_told_ms", "armed")

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self.armed = False              # a look is due
        self._looked_ms = 0             # when the clock was looked at last; age is judged at that time
        self._mark = -1                 # the newest mark seen
        self._told_ms: int | None = None

    @property
    def _settings(self) -> RetentionSettings:
        return self._leader.replica.retention

    def on_settings(self, now_ms: int) -> list[Effect]:
        """What is kept has changed."""
        was_armed, self.armed = self.armed, False
        effects = self._arm(now_ms)
        if was_armed and not effects:
            effects.append(SetTimer(self._leader.replica.shard, RETENTION_TIMER, None))
        return effects

    def on_growth(self, now_ms: int) -> list[Effect]:
        """The log has grown: look at its bytes at every new mark, and at its age once there is something to expire."""
        log, settings = self._leader.replica.log, self._settings
        mark = log.marks[-1].base if log.marks else -1
        if mark == self._mark:
            return []
        self._mark = mark
        effects: list[Effect] = []
        if settings.bytes_max and log.bytes_held > settings.bytes_max:
            effects += self._leader.trim(retention_point(log, settings, self._looked_ms))
        return effects + self._arm(now_ms)

    def on_timer(self, now_ms: int) -> list[Effect]:
        """Look: remove what was too old at the look before, or is too much now."""
        self.armed = False
        leader = self._leader
        log = leader.replica.log
        wanted = retention_point(log, self._settings, min(now_ms, self._looked_ms))
        self._looked_ms = now_ms
        effects = leader.trim(wanted)
        if log.first < wanted and (self._told_ms is None or not 0 <= now_ms - self._told_ms < BLOCKED_TOLD_MS):
            self._told_ms = now_ms
            detail = f"offset {log.first} is kept, retention ends at {wanted}: {leader.trim_blocked_by(wanted)}"
            effects.append(leader.replica.trace("retention_blocked", detail))
        return effects + self._arm(now_ms)

    def _arm(self, now_ms: int) -> list[Effect]:
        """No timer while nothing can expire: an idle shard costs nothing, one with data a look when it is due."""
        due_ms = None if self.armed else self._due_ms(now_ms)
        if due_ms is None:
            return []
        self.armed = True
        return [SetTimer(self._leader.replica.shard, RETENTION_TIMER, due_ms)]

    def _due_ms(self, now_ms: int) -> int | None:
        replica, settings = self._leader.replica, self._settings
        log, least_ms = replica.log, replica.limits.retention_look_ms
        if len(log.marks) < 2:
            return None   # one stretch, which stays
        due = []
        if settings.age_ms:
            due.append(max(now_ms + look_every_ms(settings, least_ms), log.marks[1].logged_ms + settings.age_ms))
        if settings.bytes_max and log.bytes_held > settings.bytes_max:
            due.append(now_ms + least_ms)   # could not go at once
        return min(due, default=None)
