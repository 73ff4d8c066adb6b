"""Maintenance windows: when they are open, by the wall clock of their zone."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from tidemark_operator.kube.windows import open_at


def window(schedule: str, zone: str = "Etc/UTC", seconds: int = 3600) -> dict:
    return {"name": "w", "schedule": schedule, "timeZone": zone, "durationSeconds": seconds}


def is_open(at: str, *args: object) -> bool:
    return open_at([window(*args)], datetime.fromisoformat(at)) == "w"


@pytest.mark.parametrize(("schedule", "at", "wanted"), [
    ("0 1 * * 0", "2026-11-22T01:00:00Z", True),      # a Sunday
    ("0 1 * * 7", "2026-11-22T01:59:59Z", True),
    ("0 1 * * 0", "2026-11-22T02:00:00Z", False),
    ("0 1 * * 0", "2026-11-22T00:59:59Z", False),
    ("0 1 * * 0", "2026-11-23T01:30:00Z", False),
    ("0 1 * * 1-5", "2026-11-23T01:30:00Z", True),
    ("30 23 * * 6", "2026-11-22T00:15:00Z", True),    # since the day before
    ("0 */6 * * *", "2026-11-22T12:30:00Z", True),
    ("0 1/6 * * *", "2026-11-22T13:30:00Z", True),
    ("0 1/6 * * *", "2026-11-22T12:30:00Z", False),
    ("0 3 1,15 * *", "2026-11-15T03:10:00Z", True),
    ("0 3 1,15 * 1", "2026-11-16T03:10:00Z", True),   # a Monday, or one of those days
    ("0 3 1,15 * 1", "2026-11-17T03:10:00Z", False),
    ("0 3 */2 * 1", "2026-11-17T03:10:00Z", False),   # with a star both must hold
    ("0 3 * 2 *", "2026-11-22T03:10:00Z", False),
])
def test_when_a_window_is_open(schedule: str, at: str, wanted: bool) -> None:
    assert is_open(at, schedule) == wanted


def test_the_wall_clock_of_the_zone_counts() -> None:
    berlin = ("0 1 * * 0", "Europe/Berlin", 900)
    assert is_open("2026-11-22T00:05:00Z", *berlin) and not is_open("2026-11-22T01:05:00Z", *berlin)
    assert is_open("2026-07-04T23:05:00Z", *berlin)
    skipped = ("30 2 * * *", "Europe/Berlin", 900)
    day = [datetime.fromisoformat("2026-03-28T23:00:00Z") + timedelta(minutes=10 * step) for step in range(138)]
    assert not any(open_at([window(*skipped)], at) for at in day), "that hour is left out on this day"
    twice = [datetime.fromisoformat(f"2026-10-25T0{hour}:35:00Z") for hour in (0, 1)]
    assert all(open_at([window(*skipped)], at) for at in twice)
