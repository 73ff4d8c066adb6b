"""A program that a test or a tool starts has a bound: none waits for ever for one that hangs."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.syntax import parsed

REPOSITORY = Path(__file__).parents[2]
WAITS = {"run", "call", "check_call", "check_output"}
ALLOWED = {"tools/repeat_tests.py": 1}
"""It runs a whole command such as `make test`, which has a bound of its own (`tests/run/bounded.py`)."""


def unbounded(text: str) -> list[int]:
    """Return the lines that run a program without `timeout=`."""
    if "subprocess" not in text:
        return []
    tree = parsed(text)
    imported = {
        alias.asname or alias.name for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "subprocess" for alias in node.names
        if alias.name in WAITS}
    ways = {*imported, *(f"subprocess.{name}" for name in WAITS)}
    return sorted(
        node.lineno for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ways
        and not any(each.arg == "timeout" and ast.unparse(each.value) != "None" for each in node.keywords))


def test_every_program_that_is_run_has_a_bound() -> None:
    found = {
        str(path.relative_to(REPOSITORY)): lines for folder in ("tests", "tools")
        for path in (REPOSITORY / folder).rglob("*.py") if (lines := unbounded(path.read_text(encoding="utf-8")))}
    assert {name: len(lines) for name, lines in found.items()} == ALLOWED, f"these lack timeout=: {found}"


def test_a_program_without_a_bound_is_seen() -> None:
    assert unbounded(
        "import subprocess\nsubprocess.run(['a'])\nsubprocess.check_output(['a'], timeout=None)\n"
        "subprocess.call(['a'], **more)\nsubprocess.check_call(\n['a'])") == [2, 3, 4, 5]
    assert unbounded("from subprocess import run as start\nstart(['a'])") == [2]
    assert unbounded("import subprocess\nsubprocess.run(['a'], timeout=60)\nrun(['a'])\nsubprocess.Popen(['a'])") == []
