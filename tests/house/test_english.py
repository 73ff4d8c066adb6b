"""Plain English: the counts of words to avoid only fall, and the pages that strangers read first have none.

`python tools/english.py` prints every place; `make english` lowers the committed counts.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "tools"))

import english  # noqa: E402

CLEAN = ("README.md", "CONTRIBUTING.md", "docs/protocols")
"""Pages and folders without any."""

COMMITTED = english.committed_counts()


@cache
def found() -> list[english.Finding]:
    """Look through all files; not while tests are collected, which every process does."""
    return english.findings()


@cache
def counted() -> dict[str, dict[str, int]]:
    return english.count(found())


def test_no_count_rises() -> None:
    risen = english.risen(COMMITTED, counted())
    places = [
        f"{one.path}:{one.line}: {one.word}: {one.text}"
        for one in found() if (english.folder_of(one.path), one.word) in risen
    ]

    said = "\n".join(
        f"{folder}: {word!r} {counted()[folder][word]} times, {COMMITTED.get(folder, {}).get(word, 0)} are allowed"
        for folder, word in risen
    )
    assert not risen, f"{said}\nCONTRIBUTING.md says what to write instead. All of them:\n" + "\n".join(places)


def test_counts_that_fell_are_committed() -> None:
    assert english.lowered(COMMITTED, counted()) == COMMITTED, "a count fell: run `make english` and commit the result"


@pytest.mark.parametrize("place", CLEAN)
def test_what_strangers_read_first_has_none(place: str) -> None:
    assert place not in COMMITTED
    assert not [one for one in found() if english.folder_of(one.path) == place]
    assert any(name.startswith(place) for name in english.tracked()), f"there is no {place}"


# --- the counter itself ---------------------------------------------------------------------------------------

SOURCE = '''"""What a leader does.

Nobody is told.  The node lets go of it? What now?
"""
X = "nobody reads strings"  # somebody: a comment


def whoever() -> None:
    """Return it.  Who has it, keeps it."""
    # Whoever asks
    # begins anew; what follows is fine.
'''


def words(path: str, source: str) -> list[tuple[int, str]]:
    return sorted((found.line, found.word) for found in english.findings_in(path, source))


def test_comments_and_docstrings_are_read_and_code_is_not() -> None:
    assert words("core/x.py", SOURCE) == [
        (1, english.OPENING), (3, "is told"), (3, "let go of"), (3, "nobody"), (5, "somebody"), (9, english.OPENING),
        (10, "whoever"), (11, "anew"),
    ]


def test_pages_are_read_without_code_and_links() -> None:
    page = (
        "# What it costs\n\nWhat it costs is\nlow.\n\n"
        "```\nnobody\n```\n- `nobody` [is](somebody.md) had.\n- Who asks?\n"
    )

    assert words("docs/x.md", page) == [(3, english.OPENING)]


def test_comments_of_proto_files_are_read() -> None:
    assert words("protos/x.proto", "message X {\n  // To be had\n  // from nobody.\n  int64 nobody = 1;\n}\n") == [
        (2, "to be had"), (3, "nobody"),
    ]


def test_generated_files_are_left_out() -> None:
    assert english.GENERATED.search("protos/tidemark_wire/v1/node_pb2.py")
    assert english.GENERATED.search("docs/reference/metrics.md")
    assert not english.GENERATED.search("docs/client.md")


def test_a_count_is_lowered_and_never_raised() -> None:
    committed = {"core": {"anew": 3, "nobody": 2}, "cli": {"anew": 1}}
    counted = {"core": {"anew": 5, "nobody": 1}, "node": {"anew": 4}}

    assert english.lowered(committed, counted) == {"core": {"anew": 3, "nobody": 1}}
    assert english.risen(committed, counted) == [("core", "anew"), ("node", "anew")]


def test_the_command_prints_the_places() -> None:
    ran = subprocess.run(
        [sys.executable, str(REPOSITORY / "tools" / "english.py"), "core"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True,
    )

    assert len(ran.stdout.splitlines()) == sum(counted().get("core", {}).values())
    assert json.loads(english.COUNTS.read_text(encoding="utf-8")) == COMMITTED
