"""Every rule has an entry in a rule book and a test that holds it; every failure of the field has its test.

The books are the pages of `docs/protocols`.  A rule counts as named in the name of a test (`test_o24_...`) or in its
docstring (`rule O24`); the test must assert something.  Of the failures listed from Oxia's tracker those about shard
split, ephemeral records and the side indexes of sessions do not apply: Tidemark has none of them.
"""

from __future__ import annotations

import importlib
import re
from types import ModuleType

import pytest
import tidemark_core.delivery
import tidemark_core.documents
import tidemark_core.limbo
import tidemark_core.optimistic
import tidemark_core.replication
import tidemark_core.sinks
import tidemark_core.subscriptions
import tidemark_core.upr

from tests.core.rule_books import BOOKS, Entry, asserting_tests, cited, entries, ids_in, names, sentences

RULES = [
    *(f"O{number}" for number in range(1, 48)), "O3b", "O27b", "O32b",
    *(f"H{number}" for number in range(1, 7)), "H3b",
    *(f"A{number}" for number in range(1, 5)), *(f"K{number}" for number in range(1, 22)),
    "K14b", "K14c", "K14d", "K14e", "K15b", "K15c", "K15d", "K20b",
    *(f"L{number}" for number in range(1, 23)), "L25", "L25b", "L26", "L27", "L28", "L29",
    *(f"F{number}" for number in range(1, 28)),
    *(f"S{number}" for number in range(1, 38)), "S14b",
    *(f"B{number}" for number in range(1, 11)),
    *(f"N{number}" for number in range(1, 15)), *(f"M{number}" for number in range(1, 5)),
    *(f"X{number}" for number in range(1, 6)), *(f"C{number}" for number in range(1, 7)),
    *(f"D{number}" for number in range(52, 78)), *(f"D{number}" for number in range(80, 86)),
    "T10", "T10b", "T10c", "T10d", "T11", "T12", "T12b", "T13",
    *(f"U{number}" for number in range(46, 74)), "N11b", "U47b", "U54b", "U70b", "U70c", "U73b",
    *(f"P{number}" for number in range(1, 14)), *(f"P{number}" for number in range(15, 27)),
    *(f"W{number}" for number in range(1, 6)),
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
    tidemark_core.replication: 66, tidemark_core.limbo: 49, tidemark_core.delivery: 37, tidemark_core.subscriptions: 10,
    tidemark_core.sinks: 5, tidemark_core.upr: 16,
    tidemark_core.documents: 12, tidemark_core.optimistic: 24,
}
LINES_OF = {
    "tidemark_core.replication": ("replication.md", "coordination.md"),
    "tidemark_core.limbo": ("limbo.md",),
    "tidemark_core.sinks": ("sinks.md",),
    "tidemark_core.delivery": ("delivery.md",),
    "tidemark_core.subscriptions": ("subscriptions.md",),
    "tidemark_core.documents": ("documents.md",),
    "tidemark_core.optimistic": ("keyspaces.md",),
    "tidemark_core.replication.recovery": ("recovery.md",),
    "tidemark_operator.recovery_plan": ("recovery.md",),
    "tidemark_operator.certificates": ("certificates.md",),
    "tidemark_core.replication.clocks": ("clocks.md",),
    "tidemark_core.replication.trust": ("trust.md",),
    "tidemark.payload": ("trust.md",),
    "tidemark_wire.budgets": ("trust.md",),
    "tidemark_node.half_sent": ("trust.md",),
    "tidemark_node.routing": ("trust.md",),
    "tidemark_core.upr": ("upr.md",),
    "pyspark_tidemark": ("spark.md",),
}
"""Modules whose docstring has one line for each rule of a book: its number and its title."""

APART = ("trust.md",)
"""Books whose rules are kept in modules far apart: each module has the lines of those that it keeps."""

SENTENCES_MAX = 3
LINE = re.compile(r"^([A-Z]\d{1,2}[a-e]?) {1,3}(\S.*)$", re.MULTILINE)

FUNCTIONS = asserting_tests()
WORDS = {f"{path.rpartition('/')[2]}::{name}": function.words for (path, name), function in FUNCTIONS.items()}
ENTRIES = entries()
TITLES = {entry.rule: entry.title for entry in ENTRIES}


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
    assert named <= set(RULES)


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


# --- the pages ------------------------------------------------------------------------------------------------


def test_the_books_have_every_rule_once() -> None:
    rules = [entry.rule for entry in ENTRIES]

    assert sorted(rules) == sorted(RULES)


def test_every_rule_that_product_code_cites_has_an_entry() -> None:
    found = cited()
    lost = {rule: places for rule, places in found.items() if rule not in TITLES}

    assert len(found) > 100, "the search finds citations"
    assert not lost, f"cited, and in no book of docs/protocols: {lost}"


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.rule)
def test_an_entry_says_the_rule_the_reason_and_the_test(entry: Entry) -> None:
    said = sentences(entry.text)

    assert 1 <= len(said) <= SENTENCES_MAX, f"{entry.rule} has {len(said)} sentences"
    assert entry.reason, f"{entry.rule} gives no reason"
    assert entry.tests, f"{entry.rule} names no test"
    for test in entry.tests:
        assert test in FUNCTIONS, f"{entry.rule}: no test {'::'.join(test)} that asserts something"
    assert any(names(entry.rule, FUNCTIONS[test]) for test in entry.tests), f"no test of {entry.rule} names it"


def test_entries_refer_to_rules_that_exist() -> None:
    for entry in ENTRIES:
        for rule in ids_in(re.sub(r"`[^`]*`", "", f"{entry.text} {entry.reason}")):
            assert rule in TITLES, f"{entry.book}, {entry.rule}: {rule} has no entry"


def test_links_to_rules_lead_to_their_page() -> None:
    places = {(entry.book, entry.rule) for entry in ENTRIES}
    for path in sorted(BOOKS.glob("*.md")):
        for page, rule in re.findall(r"\]\(([\w-]+\.md)?#([A-Z]\d+[a-e]?)\)", path.read_text("utf-8")):
            assert (page or path.name, rule) in places, f"{path.name} links to {page}#{rule}"


@pytest.mark.parametrize("module", LINES_OF)
def test_a_package_has_one_line_for_each_rule_of_its_book(module: str) -> None:
    """Rules N and M share a book and stand in the two modules that keep them."""
    lines = dict(LINE.findall(importlib.import_module(module).__doc__ or ""))
    books = {entry.rule: entry.title for entry in ENTRIES if entry.book in LINES_OF[module]}
    wanted = {rule: title for rule, title in books.items() if {rule[0] for rule in lines} & {rule[0]}}
    if set(LINES_OF[module]) <= set(APART):
        wanted = {rule: title for rule, title in wanted.items() if rule in lines}

    assert lines
    assert lines == wanted


def test_every_book_has_its_package() -> None:
    pages = {path.name for path in BOOKS.glob("*.md")} - {"README.md"}
    lines = {
        rule for module in LINES_OF for rule, _ in LINE.findall(importlib.import_module(module).__doc__ or "")
    }

    assert pages == {book for books in LINES_OF.values() for book in books}
    assert lines == set(RULES)


def test_the_index_has_every_letter_once() -> None:
    """A letter has one owner; letters of planes to come are reserved and have no rule yet."""
    index = (BOOKS / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| ([A-Z]) \| .+ \| (in use|reserved) \|$", index, re.MULTILINE)
    states = dict(rows)

    assert len(states) == len(rows)
    assert {letter for letter, state in rows if state == "in use"} == {rule[0] for rule in RULES}
    assert {"D", "P", "Q", "R", "T", "U"} <= states.keys()
