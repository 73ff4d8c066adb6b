"""Every rule is held by a test that names it, and every failure of the field that concerns us has its test.

A rule counts as named in the name of a test (`test_o24_...`) or in its docstring (`rule O24`); the test must assert
something.  Of the failures listed from Oxia's tracker those about shard split, ephemeral records and the side
indexes of sessions do not apply: there is nothing of the kind here.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import pytest
import tidemark_core.delivery
import tidemark_core.limbo
import tidemark_core.replication
import tidemark_core.subscriptions

from tests.syntax import parsed

TESTS = Path(__file__).parents[1]

RULES = [
    *(f"O{number}" for number in range(1, 42)),
    *(f"H{number}" for number in range(1, 7)), "H3B",
    "A3", "A4", *(f"K{number}" for number in range(1, 20)),
    *(f"L{number}" for number in range(1, 23)),
    *(f"F{number}" for number in range(1, 28)), "A1",
    *(f"S{number}" for number in range(1, 38)),
    *(f"B{number}" for number in range(1, 11)),
]
ISSUES = [
    "621", "579", "880", "513", "1239", "1163", "281", "1176", "1177", "1133", "798", "559", "1158", "87", "144", "929",
]
SAME_ROW = ["598", "495", "415", "781", "788", "1159", "172"]
"""Second numbers of a failure that has several: in the docstring of its test."""
OF_QSYNC = [
    "5140", "5185", "5195", "5167", "5229", "5610", "5973", "6057", "5874", "5445", "5295", "7286", "7253", "2_10_0",
    "13085", "13095", "13066", "12997", "12272",
]
"""Failures of synchronous replication in Tarantool, where the limbo comes from; one is known by its release only."""

RULES_MIN = {
    tidemark_core.replication: 21, tidemark_core.limbo: 21, tidemark_core.delivery: 21, tidemark_core.subscriptions: 10,
}


def words_of_tests() -> dict[str, str]:
    """Return every test function that asserts something: its place, and its name with its docstring."""
    found: dict[str, str] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path == Path(__file__):
            continue
        for function in ast.walk(parsed(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if function.name.startswith("test_") and asserts(function):
                found[f"{path.name}::{function.name}"] = f"{function.name} {ast.get_docstring(function) or ''}"
    return found


def asserts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether the test asserts, expects an error, or hands over to a helper that is named for what it checks."""
    for statement in ast.walk(function):
        if isinstance(statement, ast.Assert):
            return True
        if isinstance(statement, ast.Call):
            name = ast.unparse(statement.func)
            if name in ("pytest.raises", "goes_on") or name.split(".")[-1].startswith(("check", "settle", "assert")):
                return True
    return False


WORDS = words_of_tests()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_named_by_a_test(rule: str) -> None:
    named = re.compile(rf"(?:_{rule.lower()}_)|(?:\b{rule}\b)", re.IGNORECASE)

    assert [place for place, words in WORDS.items() if named.search(words)], f"no test names rule {rule}"


@pytest.mark.parametrize("book", RULES_MIN, ids=lambda book: book.__name__)
def test_every_rule_in_a_book_is_one_that_tests_are_held_to(book: ModuleType) -> None:
    """A rule that is added to a rule book is added here, and so needs its test."""
    assert book.__doc__ is not None
    named = set(re.findall(r"\b[A-Z][0-9]+[a-z]?\b", book.__doc__))

    assert len(named) >= RULES_MIN[book]
    assert {rule.upper() for rule in named} <= set(RULES)


@pytest.mark.parametrize("number", [*ISSUES, *OF_QSYNC])
def test_every_failure_of_the_field_has_a_test_of_its_name(number: str) -> None:
    named = re.compile(rf"::test_issue_(\w*_)?{number}_")

    assert [place for place in WORDS if named.search(place)], f"no test is named for #{number}"


@pytest.mark.parametrize("number", SAME_ROW)
def test_the_other_numbers_of_a_failure_are_in_a_docstring(number: str) -> None:
    assert [place for place, words in WORDS.items() if re.search(rf"#{number}\b|_{number}_", words)]


def test_the_book_itself_finds_something() -> None:
    assert len(WORDS) > 200
    assert not any(re.search(r"\bO99\b", words) for words in WORDS.values())
