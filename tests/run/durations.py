"""How long tests take: `python -m tests.run.durations RESULTS.xml...` writes `durations.json` (`make durations`).

The results are those that pytest writes with `--junitxml`.  The file orders the groups of later runs (`groups`) and
shows where the time goes: the groups, the longest first, then the tests that take a second or more.  What the results
do not cover keeps the seconds it had, as long as its file names it.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from .groups import DURATIONS, group_of
from .results import cases

REPOSITORY = Path(__file__).parents[2]
SLOW_S = 1.0


def read(results: Iterable[Path]) -> dict[str, float]:
    """Return the seconds of each test: its call and what was set up and torn down around it.

    The report of an error of the run itself names no file and is left out.
    """
    took: dict[str, float] = defaultdict(float)
    for case in cases(results):
        if (REPOSITORY / case.file).is_file():
            took[case.test] += case.seconds
    return took


def summed(took: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each group; `before` fills in the groups that were not measured."""
    groups: dict[str, float] = defaultdict(float)
    for test, seconds in took.items():
        groups[group_of(test)] += seconds
    files = {group.partition("::")[0] for group in groups}
    kept = {group: seconds for group, seconds in before.items()
            if group_of(group) == group
            and (file := group.partition("::")[0]) not in files and (REPOSITORY / file).exists()}
    return {**kept, **groups}


def is_named(test: str) -> bool:
    """Say whether the file of a test has a function of its name."""
    file, _, name = test.partition("::")
    path = REPOSITORY / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text(encoding="utf-8")


def _ordered(took: Mapping[str, float]) -> dict[str, float]:
    rounded = {name: round(seconds, 1) for name, seconds in took.items()}
    return {name: rounded[name] for name in sorted(rounded, key=lambda name: (-rounded[name], name))}


def write(results: Iterable[Path], target: Path = DURATIONS) -> None:
    before = json.loads(target.read_text(encoding="utf-8")) if target.exists() else {"groups": {}, "tests": {}}
    took = read(results)
    kept = {test: seconds for test, seconds in before["tests"].items() if test not in took and is_named(test)}
    slow = {test: seconds for test, seconds in took.items() if seconds >= SLOW_S}
    document = {
        "groups": _ordered(summed({**kept, **took}, before["groups"])), "tests": _ordered({**kept, **slow})}
    target.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write([Path(name) for name in sys.argv[1:]])
