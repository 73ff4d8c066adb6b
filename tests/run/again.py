"""The second run of a few tests with servers: `python -m tests.run.again EXIT_CODE RESULTS.xml` behind `make test`.

A real cluster has more orders of events than a test foresees.  At most `TESTS_MAX` failed tests with servers run once
more, alone and in a fresh process.  Where all pass, the run is green and says `FLAKY`; `flaky.md` beside the results
names them.
A test without servers must be certain, and a process that died is a failure: both keep the exit code that there was.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .flaky import known, told
from .results import Case, Outcome, cases, outcomes

TESTS_MAX = 3
RUN_S = 1_200
"""The bound on the second run: each test ends within 300 s."""
TESTS_FAILED = 1
"""pytest's exit code where tests failed and nothing else happened: the run was not cut short, no process died."""


def failures(results: Path) -> list[Case]:
    """Return the failed tests in a file that pytest wrote with `--junitxml`, each once."""
    found: dict[str, Case] = {}
    for case in cases([results]):
        if case.outcome is Outcome.FAILED:
            found.setdefault(case.test, case)
    return list(found.values())


def why_not(exit_code: int, failed: Sequence[Case]) -> str:
    """Say why a run that ended with `exit_code` stays red; empty where its failed tests may run once more."""
    if exit_code != TESTS_FAILED:
        return f"pytest ended with {exit_code}: it was interrupted, or a process died"
    if not failed:
        return "the results name no failed test"
    if len(failed) > TESTS_MAX:
        return f"{len(failed)} tests failed, more than {TESTS_MAX}"
    certain = [case.test for case in failed if not case.has_servers]
    return f"{certain[0]} starts no server and must be certain" if certain else ""


def not_passed(tests: Sequence[str], results: Path) -> list[str]:
    """Return those of the tests that did not pass: that failed, were skipped, or did not run."""
    ended = outcomes(results)
    return [test for test in tests if ended.get(test) is not Outcome.PASSED]


def run_alone(tests: Sequence[str], results: Path) -> int:
    """Run tests in one fresh process, one behind the other; return pytest's exit code."""
    command = [sys.executable, "-m", "pytest", f"--junitxml={results}", *tests]
    return subprocess.run(command, stdin=subprocess.DEVNULL, timeout=RUN_S, check=False).returncode


def judge(
    exit_code: int, results: Path, run: Callable[[Sequence[str], Path], int] = run_alone,
    say: Callable[[str], None] = print,
) -> int:
    """Return the exit code of the run as a whole: 0 where every failed test passes in its second run."""
    flaky = results.with_name("flaky.md")
    flaky.unlink(missing_ok=True)
    if exit_code == 0:
        return 0
    failed = failures(results)
    if reason := why_not(exit_code, failed):
        say(f"no second run: {reason}")
        return exit_code
    tests = [case.test for case in failed]
    say(f"\n{len(tests)} of the tests with servers failed; a fresh process runs them once more, alone")
    again = results.with_name("again.xml")
    again.unlink(missing_ok=True)
    if run(tests, again) != 0 or not_passed(tests, again):
        say(f"not passed in the second run either: {', '.join(not_passed(tests, again)) or 'see above'}")
        return exit_code
    races = known()
    rows = "".join(f"- `{case.test}`: {case.message} ({told(case.test, races)})\n" for case in failed)
    flaky.write_text(f"Failed among other tests and passed alone:\n\n{rows}", encoding="utf-8")
    bar = "=" * 20
    say(f"\n{bar} FLAKY {bar}\nFLAKY: {len(tests)} failed among other tests and passed alone. "
        f"That is a race of the test or of the product ({flaky}):\n{rows}")
    return 0


if __name__ == "__main__":
    sys.exit(judge(int(sys.argv[1]), Path(sys.argv[2])))
