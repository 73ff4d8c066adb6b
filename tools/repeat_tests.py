"""Run the tests again and again and write a table of the runs: `python -m tools.repeat_tests --runs 10`.

Each run is `make test`, or the command behind `--`.  Its output and the results of its tests stay in the folder
`--into` (`build/repeats`), where `table.md` gains a row at its end: minutes, tests, those that failed, and the flaky
ones, which passed when they ran once more.  With `--busy 2` two busy loops run beside it.  The exit code is 1 when a
run failed.
Stays out: what the tests are (`Makefile`).
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.run.results import Outcome, outcomes

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "build" / "tests"
BUSY = "while True: pass"
HEAD = (
    "| run | commit | began (UTC) | minutes | busy loops | tests | skipped | exit code | flaky | failed |\n"
    "|---|---|---|---|---|---|---|---|---|---|\n")


@dataclass(frozen=True, slots=True)
class Counts:
    """The tests of one run, as pytest reported them."""

    tests: int
    skipped: int
    flaky: tuple[str, ...]
    """Those that failed and then passed in the second run (`tests.run.again`)."""
    failed: tuple[str, ...]


def read(results: Path) -> Counts:
    """Count the tests in a folder of results; the second run of a test is behind its first."""
    ended: dict[str, Outcome] = {}
    failed: dict[str, None] = {}
    for path in sorted(results.glob("*.xml"), key=lambda path: path.name == "again.xml"):
        once = outcomes(path)
        ended |= once
        failed |= dict.fromkeys(test for test, outcome in once.items() if outcome is Outcome.FAILED)
    flaky = tuple(test for test in failed if ended[test] is Outcome.PASSED)
    skipped = sum(outcome is Outcome.SKIPPED for outcome in ended.values())
    return Counts(len(ended), skipped, flaky, tuple(test for test in failed if test not in flaky))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processors busy."""
    with ExitStack() as stack:
        for _ in range(count):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))  # noqa: S603
            stack.callback(loop.kill)
        yield


def run_once(number: int, command: Sequence[str], into: Path, busy_loops: int, results: Path) -> tuple[str, int]:
    """Run the command once; return its row of the table and its exit code."""
    shutil.rmtree(results, ignore_errors=True)
    began, clock = datetime.now(UTC), time.monotonic()
    with (into / f"run-{number}.log").open("wb") as log, busy(busy_loops):
        ended = subprocess.run(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, check=False)  # noqa: S603
    code = ended.returncode
    minutes = (time.monotonic() - clock) / 60
    if results.is_dir():
        shutil.copytree(results, into / f"run-{number}", dirs_exist_ok=True)
    counts = read(results)
    failed = listed(counts.failed) or ("none" if not code else f"see run-{number}.log")
    return (
        f"| {number} | {commit()} | {began:%Y-%m-%d %H:%M} | {minutes:.1f} | {busy_loops} | {counts.tests} | "
        f"{counts.skipped} | {code} | {listed(counts.flaky) or 'none'} | {failed} |\n"), code


def listed(tests: Sequence[str]) -> str:
    """Return the tests as the lines of one cell."""
    return "<br>".join(f"`{test}`" for test in tests)


def commit() -> str:
    """Return the commit of the checkout, with a plus where files differ from it."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],  # noqa: S607
        cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
    return said.stdout.strip() or "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.repeat_tests", description="Run the tests again and again.")
    parser.add_argument("--runs", type=int, default=10, help="how many runs (default 10)")
    parser.add_argument("--busy", type=int, default=0, help="busy loops beside each run (default 0)")
    parser.add_argument("--into", type=Path, default=REPOSITORY / "build" / "repeats", help="where logs and table go")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the command writes its results")
    parser.add_argument("command", nargs="*", default=["make", "test"], help="what to run (default: make test)")
    options = parser.parse_args(arguments)
    if options.runs < 1 or options.busy < 0:
        parser.error("--runs must be at least 1, --busy at least 0")
    options.into.mkdir(parents=True, exist_ok=True)
    table = options.into / "table.md"
    if not table.exists():
        table.write_text(HEAD, encoding="utf-8")
    first = table.read_text(encoding="utf-8").count("\n") - HEAD.count("\n") + 1
    worst = 0
    for number in range(first, first + options.runs):
        row, code = run_once(number, options.command, options.into, options.busy, options.results)
        with table.open("a", encoding="utf-8") as file:
            file.write(row)
        print(row, end="", flush=True)
        worst = max(worst, int(code != 0))
    return worst


if __name__ == "__main__":
    sys.exit(main())
