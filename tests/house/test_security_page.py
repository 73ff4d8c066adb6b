"""docs/security.md says line by line what a stolen key can do, and names the test that holds each line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest
from tidemark_wire.identity import Kind

from tests.core.rule_books import TEST, asserting_tests

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text("utf-8")
SECTION = "\n## What a stolen key can do\n"
HEADING = re.compile(r"^### An? (\w+)'s key$", re.MULTILINE)
ROW = re.compile(r"^\| (can|cannot) \| (.+) \| (.+) \|$")
FRAME = ("| | | held by |", "|---|---|---|")

TESTS = asserting_tests()


class Line(NamedTuple):
    """One line of a key's table."""

    key: str
    verb: str
    fact: str
    held_by: str


def tables() -> dict[str, list[str]]:
    """Return the lines of each key's table, by the key."""
    section = PAGE.partition(SECTION)[2].partition("\n## ")[0]
    found = list(HEADING.finditer(section))
    ends = [*(match.start() for match in found[1:]), len(section)][: len(found)]
    texts = {match[1]: section[match.end():end] for match, end in zip(found, ends, strict=True)}
    return {key: [line for line in text.splitlines() if line.startswith("|")] for key, text in texts.items()}


TABLES = tables()
LINES = [
    Line(key, match[1], match[2], match[3])
    for key, rows in TABLES.items() for row in rows if (match := ROW.match(row)) is not None
]


def test_each_kind_of_key_has_its_table() -> None:
    assert [Kind.CLIENT, Kind.NODE, Kind.OPERATOR, Kind.ADMIN] == list(TABLES)
    assert set(Kind) == set(TABLES)
    for key in TABLES:
        assert {"can", "cannot"} == {line.verb for line in LINES if line.key == key}, key


def test_every_line_has_the_form() -> None:
    for key, rows in TABLES.items():
        assert FRAME == tuple(rows[:2]), key
        assert all(ROW.match(row) for row in rows[2:]), [row for row in rows[2:] if not ROW.match(row)]
    assert len({(line.key, line.verb, line.fact) for line in LINES}) == len(LINES) > 20


@pytest.mark.parametrize("key", TABLES)
def test_each_line_is_held_by_tests_that_exist_and_assert(key: str) -> None:
    for line in (line for line in LINES if line.key == key):
        named = TEST.findall(line.held_by)
        assert named, f"no test holds: {line.fact}"
        assert not re.sub(r"`[^`]*`", "", line.held_by).strip(), f"more than tests hold: {line.fact}"
        assert len(named) == line.held_by.count("`") / 2, f"a test's name has no form: {line.held_by}"
        for test in named:
            assert test in TESTS, f"no test {'::'.join(test)} that asserts something holds: {line.fact}"
