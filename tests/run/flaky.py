"""The known races of tests: `flaky.json` names each with what races and the day on which it was seen first.

`make test` lets a test with servers that failed run once more (`again`).  A test that passes then has a race, or the
product has: it is mended, or it is listed until then, for at most `AGE_MAX`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path

FILE = Path(__file__).with_name("flaky.json")
AGE_MAX = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Race:
    """An entry of the list."""

    reason: str
    since: date


def known(file: Path = FILE) -> Mapping[str, Race]:
    """Return the list by node id, without parameters."""
    rows = json.loads(file.read_text(encoding="utf-8"))
    return {test: Race(row["reason"], date.fromisoformat(row["since"])) for test, row in rows.items()}


def overdue(races: Mapping[str, Race], today: date) -> list[str]:
    """Return the tests that should be mended by now, and those that are listed with a day to come."""
    return [test for test, race in races.items() if not timedelta(0) <= today - race.since <= AGE_MAX]


def told(test: str, races: Mapping[str, Race]) -> str:
    """Return what the list says of a test, named by its node id."""
    race = races.get(test.partition("[")[0])
    if race is None:
        return "not in tests/run/flaky.json: mend it, or list it there"
    return f"known since {race.since}: {race.reason}"
