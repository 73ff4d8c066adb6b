"""Small suites under the options of the Makefile: groups stay together, a dead worker ends the run, nothing is left.

They run with this checkout's `conftest`, pytest and pytest-xdist: no release of these may take that away unseen.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tidemark_operator.local_state import PORTS_VARIABLE

from tests.run import janitor, ports
from tests.run.again import TESTS_FAILED
from tests.run.workers import DIED
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
BOUND_S = 60.0

TOLD = """
import os, pathlib, pytest, signal, subprocess, time
FOLDER = pathlib.Path(os.environ["TOLD"])
def tell(name, text=""):
    part = FOLDER / f".{os.getpid()}"    # each worker has its own: both tell at once
    part.write_text(text or os.environ["PYTEST_XDIST_WORKER"])
    part.rename(FOLDER / name)
def start(name):
    tell(name, str(subprocess.Popen(["sleep", "600"], start_new_session=True).pid))
"""
"""Each small test begins with this, and tells by a file what it did."""


def options() -> list[str]:
    """Return the options of pytest in the Makefile, for two workers."""
    makefile = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"^PYTEST := \$\(BIN\)/python -m pytest (.+)$", makefile, re.MULTILINE)
    assert found
    return shlex.split(found[1].replace("$(AT_ONCE)", "2"))


class Suite:
    """A suite of files, each of which is written as the body of its tests."""

    def __init__(self, folder: Path, **files: str) -> None:
        self.told = folder / "told"
        self.told.mkdir()
        (folder / "tests").mkdir()
        for name, body in files.items():
            (folder / "tests" / f"test_{name}.py").write_text(TOLD + body)
        self.command = [
            sys.executable, "-m", "pytest", *options(), "-c", str(REPOSITORY / "pyproject.toml"), "--rootdir",
            str(folder), "-p", "tests.conftest", "-p", "no:cacheprovider", str(folder / "tests")]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
            "PYTHONPATH": str(REPOSITORY), "TOLD": str(self.told)}

    def run(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command, env=self.environment, cwd=self.told.parent, capture_output=True, text=True, timeout=BOUND_S,
            check=False)

    def begin(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command, env=self.environment, cwd=self.told.parent, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)

    def of(self, name: str) -> str:
        return (self.told / name).read_text()

    def names(self) -> list[str]:
        return sorted(path.name for path in self.told.iterdir())


def is_gone(pid: str) -> bool:
    """Say whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_file_runs_in_one_worker_and_a_hanging_test_fails_alone(tmp_path: Path) -> None:
    several = "@pytest.mark.parametrize('n', range(6))\ndef test_one(n): tell(f'{name}-{{n}}')\n"
    hangs = "@pytest.mark.timeout(0.5)\ndef test_hangs(): time.sleep(600)\ndef test_behind(): tell('c-0')\n"
    suite = Suite(tmp_path, a=several.format(name="a"), b=several.format(name="b"), c=hangs)
    ended = suite.run()
    assert ended.returncode == 1, ended.stdout
    assert "1 failed, 13 passed" in ended.stdout, ended.stdout
    assert suite.names() == [*(f"a-{n}" for n in range(6)), *(f"b-{n}" for n in range(6)), "c-0"]
    workers = {file: {suite.of(name) for name in suite.names() if name.startswith(file)} for file in "abc"}
    assert all(len(of_file) == 1 for of_file in workers.values()), workers
    assert len(set.union(*workers.values())) == 2, "both workers ran some"


def test_a_worker_that_dies_ends_the_run_at_once_and_takes_its_servers_with_it(tmp_path: Path) -> None:
    dies = (
        "def test_starts(): start('server')\n"
        "def test_dies(): os.kill(os.getpid(), signal.SIGKILL)\n"
        "@pytest.mark.parametrize('n', range(9))\ndef test_behind(n): pass\n")
    # 90 s of tests that the other worker was given: no fact is waited for.
    other = "@pytest.mark.parametrize('n', range(900))\ndef test_long(n): tell(f'long-{n}'); time.sleep(0.1)\n"
    suite = Suite(tmp_path, a=dies, b=other)
    ended = suite.run()
    assert ended.returncode == DIED, f"{TESTS_FAILED} would ask for a second run:\n{ended.stdout}"
    assert "test_dies" in ended.stdout and "crashed" in ended.stdout, ended.stdout
    assert len(suite.names()) < 400, "the other worker stopped"
    wait_until(lambda: is_gone(suite.of("server")), "the janitor ends the server")


def test_a_group_that_leaves_a_process_behind_fails_and_the_process_ends(tmp_path: Path) -> None:
    leaves = "def test_starts(): start('left')\ndef test_last(): pass\n"
    fails = (
        "@pytest.fixture\ndef server():\n    start('forgotten')\n    yield\n    raise RuntimeError('it does not end')\n"
        "def test_uses(server): pass\n")
    keeps = (
        "from tests.run.janitor import kept\n"
        "@pytest.fixture(scope='session')\ndef server(tmp_path_factory):\n"
        "    folder = tmp_path_factory.mktemp('server')\n"
        "    with (folder / 'log').open('wb') as log, kept(folder):\n"
        "        with subprocess.Popen(['sleep', '600'], stdout=log) as server:\n"
        "            yield tell('kept', str(server.pid))\n"
        "            server.kill()\n"
        "def test_uses(server): pass\n")
    suite = Suite(tmp_path, a=leaves, b=keeps, c=fails, d="def test_any(): pass\n")
    suite.command.append("-n0")     # one process, in which the server of the session outlives a group
    ended = suite.run()
    assert ended.returncode == 1, ended.stdout
    assert "5 passed, 2 errors" in ended.stdout and "ERROR tests/test_a.py::test_last" in ended.stdout, ended.stdout
    assert "ERROR tests/test_c.py::test_uses" in ended.stdout and is_gone(suite.of("forgotten")), ended.stdout
    assert f"{suite.of('left'):>8} sleep 600" in ended.stdout
    assert is_gone(suite.of("left")) and is_gone(suite.of("kept"))


def test_a_run_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    waits = "def test_starts(): start('{name}'); time.sleep(600)\n"
    suite = Suite(tmp_path, a=waits.format(name="a"), b=waits.format(name="b"))
    with suite.begin() as run:
        try:
            wait_until(lambda: suite.names() == ["a", "b"], "both workers have started a server", BOUND_S)
        finally:
            run.send_signal(signal.SIGKILL)
    wait_until(lambda: is_gone(suite.of("a")) and is_gone(suite.of("b")), "the janitor ends both servers")
    assert suite.names() == ["a", "b"], "no test went on"


def test_a_run_inside_a_test_kills_nothing_of_the_run_around_it(tmp_path: Path) -> None:
    suite = Suite(tmp_path, a="def test_starts(): start('inner')\n")
    suite.command.append("-n0")
    suite.environment |= {janitor.RUN: str(tmp_path), janitor.WORKER: "gw0"}
    with subprocess.Popen(["sleep", "600"], env=suite.environment) as outer:
        try:
            ended = suite.run()
            assert "1 passed, 1 error" in ended.stdout, f"it failed for what it left behind:\n{ended.stdout}"
            assert is_gone(suite.of("inner")) and outer.poll() is None
        finally:
            outer.kill()


def test_what_does_not_carry_all_variables_is_another_runs(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"], env={janitor.RUN: str(tmp_path), janitor.WORKER: "gw1"}) as process:
        try:
            assert process.pid in janitor.carrying({janitor.RUN: str(tmp_path)})
            assert process.pid in janitor.carrying({janitor.RUN: str(tmp_path), janitor.WORKER: "gw1"})
            assert not janitor.kill({janitor.RUN: str(tmp_path), janitor.WORKER: "gw2"})
            assert process.poll() is None
            with pytest.raises(ValueError, match="must be among"):
                janitor.kill({})
            assert list(janitor.kill({janitor.RUN: str(tmp_path)})) == [process.pid]
            assert process.wait(10) == -signal.SIGKILL
        finally:
            process.kill()


def test_a_process_that_has_no_environment_yet_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment in which a process replaces its program, seen by chance in one of 150 starts on busy processors."""
    for pid in ("7", "8"):
        (tmp_path / pid).mkdir()
    (tmp_path / "7" / "environ").write_bytes(b"")
    (tmp_path / "7" / "cmdline").write_bytes(b"")
    (tmp_path / "8" / "environ").write_bytes(b"")    # a process that has ended has no program
    looks = []

    def later(seconds: float) -> None:
        looks.append(seconds)
        (tmp_path / "7" / "environ").write_bytes(b"A=1\0" + f"{janitor.RUN}=mine".encode() + b"\0")
        (tmp_path / "7" / "cmdline").write_bytes(b"sleep\x00600\0")

    (tmp_path / "7" / "exe").symlink_to(sys.executable)
    monkeypatch.setattr(janitor, "PROC", tmp_path)
    monkeypatch.setattr("tests.run.janitor.time.sleep", later)
    assert janitor.carrying({janitor.RUN: "mine"}) == {7: "sleep 600"} and len(looks) == 1


def test_each_worker_takes_ports_of_its_own() -> None:
    assert ports.VARIABLE == PORTS_VARIABLE
    slices = []
    for number in range(3):
        environment = {janitor.WORKER: f"gw{number}", ports.COUNT: "3"}
        ports.take(environment)
        first, last = map(int, environment[PORTS_VARIABLE].split("-"))
        slices.append(set(range(first, last + 1)))
    assert min(map(len, slices)) > 5_000 and len(set.union(*slices)) == sum(map(len, slices))
    ports.take(alone := {})
    assert not alone, "a run in one process has all"
