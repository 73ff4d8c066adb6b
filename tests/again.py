"""The second run of a few tests with servers: `python -m tests.again EXIT_CODE RESULTS.xml` behind `make test`.

A real cluster has more orders of events than a test foresees.  At most `TESTS_MAX` failed tests with servers run once
more, alone and in a fresh process.  Where all pass, the run is green and says `FLAKY`; `flaky.md` beside the results
names them.
A test without servers must be certain, and a process that died is a failure: both keep the exit code that there was.
"""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

NODE_ID = "node_id"
"""The property of the result of a test with servers that holds its node id (`conftest`)."""
TESTS_MAX = 3
TESTS_FAILED = 1
"""pytest's exit code where tests failed and nothing else happened: the run was not cut short, no process died."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A test that failed, in its call or in what is set up and torn down around it."""

    test: str
    """Its node id; of a test without servers only its name."""
    has_servers: bool
    message: str


def failures(results: Path) -> list[Failure]:
    """Return the failures in a file that pytest wrote with `--junitxml`, each test once."""
    found: dict[str, Failure] = {}
    for case in ElementTree.parse(results).iter("testcase"):
        bad = next((part for kind in ("failure", "error") if (part := case.find(kind)) is not None), None)
        if bad is None:
            continue
        node_id = next((one.get("value", "") for one in case.iter("property") if one.get("name") == NODE_ID), "")
        test = node_id or f"{case.get('classname', '')}::{case.get('name', '')}"
        lines = bad.get("message", "").strip().splitlines()
        found.setdefault(test, Failure(test, bool(node_id), lines[0] if lines else ""))
    return list(found.values())


def why_not(exit_code: int, failed: Sequence[Failure]) -> str:
    """Say why a run that ended with `exit_code` stays red; empty where its failed tests may run once more."""
    if exit_code != TESTS_FAILED:
        return f"pytest ended with {exit_code}: it was interrupted, or a process died"
    if not failed:
        return "the results name no failed test"
    if len(failed) > TESTS_MAX:
        return f"{len(failed)} tests failed, more than {TESTS_MAX}"
    certain = [failure.test for failure in failed if not failure.has_servers]
    return f"{certain[0]} starts no server and must be certain" if certain else ""


def run_alone(tests: Sequence[str], results: Path) -> int:
    """Run tests in one fresh process, one behind the other; return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", f"--junitxml={results}", *tests]
    return subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode


def judge(
    exit_code: int, results: Path, run: Callable[[Sequence[str], Path], int] = run_alone,
    say: Callable[[str], None] = print,
) -> int:
    """Return the exit code of the run as a whole: 0 where every failed test passes in its second run."""
    flaky = results.with_name("flaky.md")
    flaky.unlink(missing_ok=True)
    if exit_code == 0:
        return 0
    failed = failures(results) if results.exists() else []
    if reason := why_not(exit_code, failed):
        say(f"no second run: {reason}")
        return exit_code
    tests = [failure.test for failure in failed]
    say(f"\n{len(tests)} of the tests with servers failed; a fresh process runs them once more, alone")
    if run(tests, results.with_name("again.xml")) != 0:
        return exit_code
    rows = "".join(f"- `{failure.test}`: {failure.message}\n" for failure in failed)
    flaky.write_text(f"Failed among other tests and passed alone:\n\n{rows}", encoding="utf-8")
    bar = "=" * 20
    say(f"\n{bar} FLAKY {bar}\nFLAKY: {len(tests)} failed among other tests and passed alone. "
        f"That is a race of the test or of the product ({flaky}):\n{rows}")
    return 0


if __name__ == "__main__":
    sys.exit(judge(int(sys.argv[1]), Path(sys.argv[2])))
