"""The target that runs a test: the markers `full`, which `make test` leaves out, and `slow`, which `make check` does.

`full.json` is the table of what only `make test-full` runs: the tests with servers of a file, in some rows its slow
tests without servers too.  A row names what else holds most of it, and the tests that `make test` runs all the same.
`durations.json` says which tests are slow.
Stays out: which tests start servers (`servers`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from .groups import DURATIONS

FULL = Path(__file__).with_name("full.json")
SLOW_S = 1.2
"""`make check` leaves out what took longer: one of a hundred tests takes a third of the time."""


@dataclass(frozen=True, slots=True)
class Row:
    """A file of the table."""

    held_by: str
    """Other tests that show most of it, in less time."""
    but: tuple[str, ...] = ()
    """Names of its tests that `make test` runs."""
    slow: bool = False
    """Its slow tests without servers wait for `make test-full` as well."""


@functools.cache
def table() -> Mapping[str, Row]:
    """Return the table by file."""
    rows = json.loads(FULL.read_text(encoding="utf-8"))
    return {file: Row(row["held_by"], tuple(row.get("but", ())), row.get("slow", False)) for file, row in rows.items()}


@functools.cache
def slow() -> frozenset[str]:
    """Return the node ids of the tests that took longer than `SLOW_S` when the durations were written."""
    tests: dict[str, float] = json.loads(DURATIONS.read_text(encoding="utf-8"))["tests"]
    return frozenset(test for test, seconds in tests.items() if seconds > SLOW_S)


def is_full(test: str, rows: Mapping[str, Row], has_servers: bool) -> bool:
    """Say whether the table leaves a test with servers, or a slow one, named by its node id, to `make test-full`."""
    file, _, name = test.partition("::")
    row = rows.get(file)
    if row is None or not (has_servers or row.slow):
        return False
    return name.partition("[")[0] not in row.but and name not in row.but


def mark(item: pytest.Item) -> None:
    """Give the markers to a test, which has the marker `servers` already where it needs it."""
    has_servers = item.get_closest_marker("servers") is not None
    if not has_servers:
        if item.nodeid not in slow():
            return
        item.add_marker(pytest.mark.slow)
    if is_full(item.nodeid, table(), has_servers):
        item.add_marker(pytest.mark.full)
