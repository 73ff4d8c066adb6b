"""How the tests are run: bounds on commands, the second run of a few tests, the table of minutes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import psutil
import pytest

from tests.run import bounded, flaky, stages
from tests.run.again import failures, judge
from tests.run.results import SERVERS
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]

# --- bounds


def test_a_command_within_its_bound_keeps_its_exit_code() -> None:
    assert bounded.run([sys.executable, "-c", "raise SystemExit(3)"], 1) == 3


def test_a_command_beyond_its_bound_is_ended_with_what_it_started_and_says_what_ran(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The child is in a session of its own and ignores the interrupt, as a server of a test may."""
    child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
    parent = (
        "import pathlib, subprocess, sys, time\n"
        "started = subprocess.Popen([sys.executable, '-c', sys.argv[1]], start_new_session=True)\n"
        "pathlib.Path(sys.argv[2]).write_text(str(started.pid))\n"
        "time.sleep(600)\n")
    pid = tmp_path / "pid"
    began = time.monotonic()
    assert bounded.run([sys.executable, "-c", parent, child, str(pid)], 1.5 / 60, grace_s=10) == bounded.TIMED_OUT
    assert time.monotonic() - began < 60
    said = capfd.readouterr().out
    assert "not done within 0.025 minutes" in said and "these run:" in said
    assert f"{pid.read_text():>8} " in said
    wait_until(lambda: not psutil.pid_exists(int(pid.read_text()))
               or psutil.Process(int(pid.read_text())).status() == psutil.STATUS_ZOMBIE)


def test_ctrl_c_reaches_the_command_and_leaves_a_row(tmp_path: Path) -> None:
    """Within a bound within a bound, as the stages of `make test` are."""
    program = (
        "import pathlib, sys, time\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "try:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    pathlib.Path(sys.argv[2]).touch()\n")
    started, interrupted = tmp_path / "started", tmp_path / "interrupted"
    within = [sys.executable, "-m", "tests.run.bounded", "--name", "inner", "--minutes", "5"]
    within += ["--stages", str(tmp_path / "stages.tsv"), "--"]
    outer = subprocess.Popen(
        [*within, *within, sys.executable, "-c", program, str(started), str(interrupted)], start_new_session=True)
    try:
        wait_until(started.exists)
        outer.send_signal(signal.SIGINT)
        assert outer.wait(60) == 130
    finally:
        outer.kill()
    assert interrupted.exists()
    assert len((tmp_path / "stages.tsv").read_text().splitlines()) == 2


# --- the second run

SERVED = f'<properties><property name="{SERVERS}" value="True"/></properties>'
FAILED = (
    '<testcase classname="tests.e2e.test_a" name="test_{0}[x]@group">{1}'
    '<failure message="{0} is wrong&#10;more"/></testcase>')
CASE = '<testcase classname="tests.e2e.test_a" name="test_{0}[x]">{1}</testcase>'


def results(tmp_path: Path, *cases: str, name: str = "tests.xml") -> Path:
    path = tmp_path / name
    path.write_text(f'<testsuites><testsuite>{"".join(cases)}</testsuite></testsuites>')
    return path


def served(name: str) -> str:
    return FAILED.format(name, SERVED)


def certain(name: str) -> str:
    return FAILED.format(name, "")


PASSED = '<testcase classname="tests.e2e.test_a" name="test_good"/>'


class Runs:
    """Stands for the fresh process: it writes what became of each test, as pytest does, and exits with 0 or 1."""

    def __init__(self, *ends: str) -> None:
        self.ends = ends
        """Behind the tests that are named: "" for a pass, else what stands in the result."""
        self.asked: list[list[str]] = []
        self.said = ""

    def run(self, tests: Sequence[str], into: Path) -> int:
        self.asked.append(list(tests))
        names = [test.partition("test_a.py::test_")[2].removesuffix("[x]") for test in tests]
        results(into.parent, *map(CASE.format, names, self.ends), name=into.name)
        return int(any("failure" in end for end in self.ends))

    def say(self, text: str) -> None:
        self.said += text + "\n"


def test_up_to_three_tests_with_servers_run_once_more_and_a_pass_is_green_and_loud(tmp_path: Path) -> None:
    written, runs = results(tmp_path, PASSED, served("a"), served("b"), served("c")), Runs("", "", "")
    assert judge(1, written, runs.run, runs.say) == 0
    assert runs.asked == [[f"tests/e2e/test_a.py::test_{name}[x]" for name in "abc"]]
    assert "FLAKY: 3 failed" in runs.said
    assert "`tests/e2e/test_a.py::test_b[x]`: b is wrong (not in tests/run/flaky.json" in (
        tmp_path / "flaky.md").read_text()


@pytest.mark.parametrize("end", [("<failure/>",), ("<skipped/>",), ()], ids=["failed", "skipped", "did not run"])
def test_what_does_not_pass_in_the_second_run_is_red(tmp_path: Path, end: tuple[str, ...]) -> None:
    (tmp_path / "flaky.md").write_text("of an earlier run")
    results(tmp_path, CASE.format("a", ""), name="again.xml")
    runs = Runs(*end)
    assert judge(1, results(tmp_path, served("a")), runs.run, runs.say) == 1
    assert len(runs.asked) == 1 and "FLAKY" not in runs.said and "not passed" in runs.said
    assert not (tmp_path / "flaky.md").exists()


@pytest.mark.parametrize(("exit_code", "cases", "why"), [
    (2, [served("a")], "ended with 2"),
    (124, [served("a")], "ended with 124"),
    (1, [served("a"), served("b"), served("c"), served("d")], "4 tests failed, more than 3"),
    (1, [served("a"), certain("b")], "tests/e2e/test_a.py::test_b[x] starts no server"),
    (1, [PASSED], "no failed test"),
], ids=["interrupted", "out of time", "too many", "without servers", "none named"])
def test_anything_else_stays_red_at_once(tmp_path: Path, exit_code: int, cases: list[str], why: str) -> None:
    runs = Runs()
    assert judge(exit_code, results(tmp_path, *cases), runs.run, runs.say) == exit_code
    assert not runs.asked and why in runs.said


def test_a_run_that_wrote_no_results_stays_red(tmp_path: Path) -> None:
    runs = Runs()
    assert judge(1, tmp_path / "tests.xml", runs.run, runs.say) == 1
    assert judge(0, tmp_path / "tests.xml", runs.run, runs.say) == 0
    assert not runs.asked


def test_a_test_that_fails_in_its_call_and_its_teardown_is_one(tmp_path: Path) -> None:
    twice = served("a") + served("a").replace("failure", "error")
    assert [case.test for case in failures(results(tmp_path, twice))] == ["tests/e2e/test_a.py::test_a[x]"]


# --- known races


def test_no_known_race_is_older_than_a_month_and_each_names_a_test_and_a_reason() -> None:
    races = flaky.known()
    assert not flaky.overdue(races, date.today()), "mend these tests, or what they test"
    for test, race in races.items():
        file, _, name = test.partition("::")
        assert f"def {name}(" in (REPOSITORY / file).read_text(encoding="utf-8"), test
        assert len(race.reason.split()) > 4, f"{test}: what races with what?"


def test_a_known_race_is_told_with_its_reason_and_falls_due(tmp_path: Path) -> None:
    file = tmp_path / "flaky.json"
    file.write_text(json.dumps({
        "tests/a.py::test_old": {"since": "2026-01-01", "reason": "a look comes before a write"},
        "tests/a.py::test_new": {"since": "2026-01-31", "reason": "the same"},
        "tests/a.py::test_next": {"since": "2026-02-02", "reason": "the same"}}))
    races = flaky.known(file)
    assert flaky.told("tests/a.py::test_old[x]", races) == "known since 2026-01-01: a look comes before a write"
    assert "list it" in flaky.told("tests/a.py::test_other", races)
    assert flaky.overdue(races, date(2026, 2, 1)) == ["tests/a.py::test_old", "tests/a.py::test_next"]
    assert flaky.overdue(races, date(2026, 1, 31)) == ["tests/a.py::test_next"]


# --- minutes


def test_the_table_shows_stages_and_folders(tmp_path: Path) -> None:
    stages.note(tmp_path / "stages.tsv", "lint", 30.4, 0)
    stages.note(tmp_path / "stages.tsv", "tests", 1200, 1)
    written = results(
        tmp_path, '<testcase classname="tests.core.upr.test_a" name="x" time="90"/>',
        '<testcase classname="tests.core.test_b" name="x" time="30"/>',
        '<testcase classname="tests.e2e.test_c" name="x" time="300"/>')
    assert stages.table(tmp_path / "stages.tsv", [written, tmp_path / "none.xml"]).splitlines() == [
        "lint                0.5 min   done",
        "tests              20.0 min   exit code 1",
        "tests/e2e           5.0 min   1 tests, in all processes together",
        "tests/core          2.0 min   2 tests, in all processes together"]


# --- runs, again and again


def test_runs_become_rows_and_a_second_call_goes_on_with_the_numbers(tmp_path: Path) -> None:
    results, into = tmp_path / "results", tmp_path / "into"
    case = '<testcase classname="tests.a" name="{}">{}</testcase>'
    good = f"<t>{case.format('test_x[1]@a', '')}{case.format('test_y', '<skipped/>')}</t>"
    bad = f"<t>{case.format('test_x[1]@a', '<failure/>')}</t>"
    write = (
        "import pathlib, sys; into = pathlib.Path(sys.argv[1]); into.mkdir(); print('ran'); "
        "(into / 'tests.xml').write_text(sys.argv[2]); (into / 'again.xml').write_text(sys.argv[3]); "
        "sys.exit(int(sys.argv[4]))")

    def repeat(runs: int, content: str, again: str = "<t/>", code: str = "0") -> int:
        command = [sys.executable, "-m", "tools.repeat_tests", "--runs", str(runs)]
        command += ["--into", str(into), "--results", str(results), "--"]
        command += [sys.executable, "-c", write, str(results), content, again, code]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).returncode

    assert repeat(2, good) == 0
    assert repeat(1, bad, code="1") == 1
    assert repeat(1, bad, again=good) == 0
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in (into / "table.md").read_text().splitlines()[2:]]
    assert [(row[0], *row[4:]) for row in rows] == [
        ("1", "0", "2", "1", "0", "none", "none"), ("2", "0", "2", "1", "0", "none", "none"),
        ("3", "0", "1", "0", "1", "none", "`tests/a.py::test_x[1]`"),
        ("4", "0", "2", "1", "0", "`tests/a.py::test_x[1]`", "none")]
    assert "ran" in (into / "run-3.log").read_text()
    assert (into / "run-3" / "tests.xml").read_text() == bad
