"""Tests wait for facts (`tests/waiting.py`): the number of short sleeps elsewhere may only fall."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from tests.syntax import parsed

TESTS = Path(__file__).parents[1]
HELPERS = {TESTS / "waiting.py"}
ALLOWED = {"kube": 3, "node": 1}


def short_sleeps(text: str) -> list[int]:
    """Return the lines that call a `sleep` with a number of seconds above 0 and below 1."""
    return sorted(
        node.lineno for node in ast.walk(parsed(text))
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "sleep"
        and node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, int | float)
        and 0 < node.args[0].value < 1
    )


def test_short_sleeps_become_fewer() -> None:
    """A change that removes some lowers the number; no change raises it."""
    found: Counter[str] = Counter()
    places = []
    for path in TESTS.rglob("*.py"):
        if path not in HELPERS:
            for line in short_sleeps(path.read_text(encoding="utf-8")):
                found[path.relative_to(TESTS).parts[0]] += 1
                places.append(f"{path.relative_to(TESTS)}:{line}")
    more = {folder: count for folder, count in found.items() if count > ALLOWED.get(folder, 0)}
    assert not more, f"wait for the fact with until(...) of tests/waiting.py: {more} in {sorted(places)}"


def test_a_short_sleep_is_seen() -> None:
    assert short_sleeps("import time\ntime.sleep(0.2)\nawait asyncio.sleep(1e-3)\nsleep(0.5)") == [2, 3, 4]
    assert short_sleeps("time.sleep(1)\nawait asyncio.sleep(0)\nasyncio.sleep(LOOK_S)\nnap(0.1)") == []
