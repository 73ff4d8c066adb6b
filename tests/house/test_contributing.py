"""CONTRIBUTING.md and the rule books name files and targets that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "CONTRIBUTING.md", *sorted((REPOSITORY / "docs" / "protocols").glob("*.md"))]
ROOMS = tuple(path.name for path in REPOSITORY.iterdir() if path.is_dir())
NAMED = re.compile(r"`([\w.-]+(?:/[\w.-]+)+/?)(?:::\w+)?`")


def named_files(page: str) -> list[str]:
    """Return the paths below folders of the project that stand in code spans."""
    return [path for path in NAMED.findall(page) if path.partition("/")[0] in ROOMS]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    lost = [path for path in named_files(page.read_text(encoding="utf-8")) if not (REPOSITORY / path).exists()]

    assert not lost, f"{page.name} names {lost}"


def test_contributing_names_enough_files_and_only_targets_that_exist() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z-]+):.*## ", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

    assert len(set(named_files(page))) > 30
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", page, re.MULTILINE)) <= set(targets)


def test_a_file_that_does_not_exist_is_seen() -> None:
    assert named_files("`core/nothing.py`, `other/x.py`, core/y.py and `tests/core/z.py::test_z`") == [
        "core/nothing.py", "tests/core/z.py",
    ]
