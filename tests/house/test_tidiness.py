"""Every file belongs to the project: no path of somebody's machine, no leftovers, no secrets."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.syntax import parsed

REPOSITORY = Path(__file__).parents[2]
FILE_BYTES_MAX = 2 * 2**20


def tracked_files() -> list[Path]:
    """What git tracks; in an export without git, what lies in the folders of the project."""
    if shutil.which("git") and (REPOSITORY / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True
        )
        paths = [REPOSITORY / name for name in listed.stdout.split("\0") if name]
    else:
        hidden = {".venv", ".tidemark", "__pycache__"}
        paths = [path for path in REPOSITORY.rglob("*") if not hidden & set(path.parts)]
    return [path for path in paths if path.is_file()]


FILES = tracked_files()


def texts() -> Iterator[tuple[str, str]]:
    for path in FILES:
        content = path.read_bytes()
        if b"\0" not in content:
            yield path.relative_to(REPOSITORY).as_posix(), content.decode("utf-8")


# Written in pieces, so that this file does not name what it looks for.
MACHINE_FOLDERS = "|".join(["wor" + "k", "roo" + "t", "hom" + "e", "User" + "s"])
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:" + MACHINE_FOLDERS + r")/\w")
PRIVATE_KEY = re.compile("-----BEGIN [A-Z ]*" + "PRIVATE KEY-----")
CONFLICT = re.compile("^(?:<{7} |>{7} )", re.MULTILINE)
LEFTOVER = re.compile(r"\b(?:" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        (MACHINE_PATH, "a path of one machine"),
        (PRIVATE_KEY, "a private key"),
        (CONFLICT, "a conflict marker"),
        (LEFTOVER, "a note to finish something"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_no_file_holds(pattern: re.Pattern[str], what: str) -> None:
    found = [f"{name}: {match.group()!r}" for name, text in texts() if (match := pattern.search(text))]
    assert not found, f"{what} stands in {found}"


def test_the_patterns_see_what_they_look_for() -> None:
    slash = "/"
    assert MACHINE_PATH.search(f"open('{slash}home{slash}somebody')")
    assert not MACHINE_PATH.search(f"docs{slash}home{slash}page, a~{slash}root{slash}x")
    assert LEFTOVER.search("# " + "TO" + "DO: later")


def test_text_ends_with_a_newline_and_has_no_tabs_in_python() -> None:
    for name, text in texts():
        assert not text or text.endswith("\n"), name
        if name.endswith((".py", ".pyi", ".yaml", ".toml")) and "_pb2" not in name:
            assert "\t" not in text, name


def test_no_file_is_large() -> None:
    large = [path.name for path in FILES if path.stat().st_size > FILE_BYTES_MAX]
    assert large == []


def test_every_module_says_what_it_is_for() -> None:
    for name, text in texts():
        if name.endswith(".py") and "_pb2" not in name and not name.startswith("tests/") and text.strip():
            assert ast.get_docstring(parsed(text)), f"{name} has no docstring"


def test_every_dependency_is_explained() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    page = (REPOSITORY / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| `([a-z0-9-]+)` \|", page, flags=re.MULTILINE))
    assert explained == {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in wanted} - {project["name"]}


def test_links_between_pages_lead_somewhere() -> None:
    for name, text in texts():
        if name.endswith(".md"):
            for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
                assert ((REPOSITORY / name).parent / target).exists(), f"{name} links to {target}"


def test_licence_is_apache() -> None:
    licence = (REPOSITORY / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "Version 2.0, January 2004" in licence


def test_changelog_has_an_unreleased_section() -> None:
    assert "\n## Unreleased\n" in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
