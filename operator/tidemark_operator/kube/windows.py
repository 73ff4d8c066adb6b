"""Maintenance windows: when the operator may restart nodes for reasons of its own.

A window is open for `durationSeconds` from each minute that its schedule names, by the wall clock of its time zone: an
hour that is left out there in spring opens nothing, one that comes twice in autumn opens twice.  As in every cron, days
of the month and of the week that are both restricted count either way.
Pure.  Stays out: what a schedule may say (`resources`), which restarts wait (`rolling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

Window = Mapping[str, Any]

_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def open_at(windows: Iterable[Window], now: datetime) -> str:
    """Return the name of a window that is open, empty when none is."""
    return next((str(window["name"]) for window in windows if _opened(window, now)), "")


def _opened(window: Window, now: datetime) -> bool:
    fields, zone = _fields(window["schedule"]), ZoneInfo(window.get("timeZone", "Etc/UTC"))
    start = now.replace(second=0, microsecond=0)
    since = now - timedelta(seconds=window["durationSeconds"])
    while start > since:
        if _matches(fields, start.astimezone(zone)):
            return True
        start -= timedelta(minutes=1)
    return False


def _matches(fields: list[tuple[set[int], bool]], at: datetime) -> bool:
    (minute, _), (hour, _), (day, any_day), (month, _), (weekday, any_weekday) = fields
    if at.minute not in minute or at.hour not in hour or at.month not in month:
        return False
    on_day, on_weekday = at.day in day, at.isoweekday() % 7 in weekday
    return on_day and on_weekday if any_day or any_weekday else on_day or on_weekday


def _fields(schedule: str) -> list[tuple[set[int], bool]]:
    """Return for each field what it allows, and whether it begins with a star."""
    found = []
    for text, (low, high) in zip(schedule.split(), _BOUNDS, strict=True):
        allowed: set[int] = set()
        for part in text.split(","):
            span, _, step = part.partition("/")
            first, _, last = span.partition("-")
            begin = low if span == "*" else int(first)
            end = int(last) if last else high if step or span == "*" else begin
            allowed.update(range(begin, end + 1, int(step or 1)))
        found.append(({number % 7 for number in allowed} if high == 7 else allowed, text.startswith("*")))
    return found
