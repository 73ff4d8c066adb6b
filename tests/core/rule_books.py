"""The rule books in `docs/protocols`, the rules that product code cites, and the tests that hold them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.syntax import parsed

REPOSITORY = Path(__file__).parents[2]
TESTS = REPOSITORY / "tests"
BOOKS = REPOSITORY / "docs" / "protocols"
PRODUCT = ("core", "protos", "node", "operator", "client", "cli", "spark", "sim")
"""Folders whose citations must have an entry."""

ID = re.compile(r"\b([A-Z])(\d{1,2})([a-e]?)\b(?:-([A-Z])(\d{1,2})\b)?")
"""A rule's number, or a range of them as in L18-L20."""

ENTRY = re.compile(r'^<a id="(\w+)"></a>\n### (\w+) (.+)$', re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


class Entry(NamedTuple):
    """One rule of a book."""

    book: str
    rule: str
    title: str
    text: str
    reason: str
    tests: tuple[tuple[str, str], ...]   # file and function


def entries() -> list[Entry]:
    """Return every rule of every book, in the order of the pages."""
    return [entry for path in sorted(BOOKS.glob("*.md")) for entry in entries_of(path.name, path.read_text("utf-8"))]


def entries_of(book: str, page: str) -> list[Entry]:
    found = list(ENTRY.finditer(page))
    ends = [*(match.start() for match in found[1:]), len(page)][: len(found)]
    return [_entry(book, match, page[match.end():end]) for match, end in zip(found, ends, strict=True)]


def _entry(book: str, match: re.Match[str], body: str) -> Entry:
    body = body.split("\n## ")[0]
    text, _, rest = body.partition("*Reason:*")
    reason, _, held_by = rest.partition("*Held by:*")
    assert match[1] == match[2], f"{book}: the anchor {match[1]} stands at {match[2]}"
    return Entry(
        book, match[1], match[3], " ".join(text.split()), " ".join(reason.split()),
        tuple((test[1], test[2]) for test in TEST.finditer(held_by)),
    )


def sentences(text: str) -> list[str]:
    """Split prose at full stops; code and what stands in brackets is no sentence of its own."""
    plain = re.sub(r"`[^`]*`", "x", re.sub(r"\([^()]*\)", "", text))
    return [sentence for sentence in re.split(r"(?<=[.!?])\s+", plain.strip()) if sentence]


def ids_in(text: str) -> Iterator[str]:
    """Yield every rule that a text names, the members of a range one by one."""
    for match in ID.finditer(text):
        letter, number, suffix, end_letter, end = match.groups()
        yield f"{letter}{number}{suffix}"
        if end is not None and end_letter == letter:
            for between in range(int(number) + 1, int(end) + 1):
                yield f"{letter}{between}"


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment and string of a Python source, with its line; names and numbers are left out."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in kinds:
            yield token.start[0], token.string


def cited() -> dict[str, list[str]]:
    """Return the rules that product code cites, and where."""
    found: dict[str, list[str]] = {}
    for room in PRODUCT:
        for path in sorted((REPOSITORY / room).rglob("*")):
            if path.suffix not in (".py", ".proto") or "_pb2" in path.name:
                continue
            source = path.read_text("utf-8")
            if path.suffix == ".py":
                texts = list(prose_of(source))
            else:
                texts = [
                    (line, text.partition("//")[2]) for line, text in enumerate(source.splitlines(), 1) if "//" in text
                ]
            for line, text in texts:
                for rule in ids_in(text):
                    found.setdefault(rule, []).append(f"{path.relative_to(REPOSITORY).as_posix()}:{line}")
    return found


class TestFunction(NamedTuple):
    """A test that asserts something."""

    __test__ = False

    words: str    # its name and docstring
    strings: str  # every string in it


def asserting_tests() -> dict[tuple[str, str], TestFunction]:
    """Return every test function that asserts something, by file and name."""
    found: dict[tuple[str, str], TestFunction] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if path.name == "test_rule_book.py":
            continue
        name = path.relative_to(REPOSITORY).as_posix()
        for function in ast.walk(parsed(path.read_text("utf-8"))):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if function.name.startswith("test_") and asserts(function):
                strings = [
                    node.value for node in ast.walk(function)
                    if isinstance(node, ast.Constant) and isinstance(node.value, str)
                ]
                words = f"{function.name} {ast.get_docstring(function) or ''}"
                found[name, function.name] = TestFunction(words, "\n".join(strings))
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


def names(rule: str, function: TestFunction) -> bool:
    """Say whether a test names a rule: in its name, its docstring or the text of an assert."""
    in_name = re.search(rf"(?:_{rule.lower()}_)|(?:\b{rule}\b)", function.words, re.IGNORECASE)
    return in_name is not None or rule in set(ids_in(function.strings))
