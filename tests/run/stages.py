"""The table of minutes that `make test-full` ends with: `python -m tests.run.stages RESULTS.xml...`.

It shows each stage that `bounded` noted in `build/tests/stages.tsv`, then each folder of tests.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from .results import cases

REPOSITORY = Path(__file__).parents[2]
STAGES = REPOSITORY / "build" / "tests" / "stages.tsv"


def note(stages: Path, name: str, seconds: float, code: int) -> None:
    """Add a stage to the table."""
    stages.parent.mkdir(parents=True, exist_ok=True)
    with stages.open("a", encoding="utf-8") as file:
        file.write(f"{name}\t{seconds:.0f}\t{code}\n")


def table(stages: Path, results: Iterable[Path]) -> str:
    """Return the table: minutes and exit code of each stage, number and minutes of the tests of each folder."""
    lines = []
    if stages.exists():
        for row in stages.read_text(encoding="utf-8").splitlines():
            name, seconds, code = row.split("\t")
            lines.append(f"{name:<16} {int(seconds) / 60:>6.1f} min   {'done' if code == '0' else f'exit code {code}'}")
    tests: dict[str, int] = defaultdict(int)
    took: dict[str, float] = defaultdict(float)
    for case in cases(results):
        folder = "/".join(case.test.split("/")[:2])
        tests[folder] += 1
        took[folder] += case.seconds
    for folder in sorted(took, key=lambda folder: -took[folder]):
        lines.append(f"{folder:<16} {took[folder] / 60:>6.1f} min   {tests[folder]} tests, in all processes together")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(STAGES, [Path(name) for name in sys.argv[1:]]))
