"""The commands of README.md and the Makefile are the ones that exist, and each says what it does."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MAKEFILE = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
OF_MAKE = {"MFLAGS", "MINUTES", "SEEDS", "SEEDS_FULL", "AT_ONCE", "ARGS", "PYTHON"}
TARGETS = re.findall(r"^([a-z][a-z-]*):", MAKEFILE, flags=re.MULTILINE)


def make(*arguments: str, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    assert shutil.which("make"), "make is one of the three things that Tidemark asks for"
    # Not those of the make that runs the tests: it would pass its job server, flags and variables down.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name not in OF_MAKE}
    return subprocess.run(
        ["make", *arguments],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_every_target_has_a_description() -> None:
    described = re.findall(r"^([a-z][a-z-]*):.*## \S", MAKEFILE, flags=re.MULTILINE)
    assert described == TARGETS


def test_every_target_is_phony() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == set(TARGETS)


def test_help_lists_every_target() -> None:
    finished = make("help")
    assert finished.returncode == 0, finished.stderr
    assert re.findall(r"^  make ([a-z-]+) ", finished.stdout, flags=re.MULTILINE) == TARGETS


def test_readme_names_the_two_commands_and_only_targets_that_exist() -> None:
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z-]+)", readme))
    assert {"demo", "test"} <= named
    assert named <= set(TARGETS)


def test_ci_runs_the_test_command_of_the_readme() -> None:
    script = REPOSITORY / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "make test" in text


@pytest.mark.parametrize("target", ["demo", "test"])
def test_an_old_python_is_told_so(target: str, tmp_path: Path) -> None:
    """A fresh checkout, and a python3 that says it is too old."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    old = tmp_path / "python3"
    old.write_text('#!/bin/sh\nif [ "$1" = --version ]; then echo "Python 3.9.2"; else exit 1; fi\n')
    old.chmod(0o755)
    finished = make(target, f"PYTHON={old}", cwd=tmp_path)
    assert finished.returncode != 0
    assert "needs Python 3.11 or newer" in finished.stderr
    assert "Python 3.9.2" in finished.stderr
    assert not (tmp_path / ".venv").exists()


def test_an_installed_environment_is_reused(tmp_path: Path) -> None:
    """With a stamp newer than pyproject.toml, `make demo` goes straight to the command."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    command = tmp_path / ".venv" / "bin" / "tidemark"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\necho "ran $*"\n')
    command.chmod(0o755)
    stamp = tmp_path / ".venv" / ".installed"
    stamp.touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    finished = make("demo", "PYTHON=false", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "ran demo" in finished.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The Makefile, and an environment whose Python says what it was asked to run and exits with $CODE for tests."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "ran $*"\n'
        'if [ "$2" = tests.run.bounded ]; then while [ "$1" != -- ]; do shift; done; shift; exec "$@"; fi\n'
        'case "$2" in pytest) exit "${CODE:-0}";; tests.run.again) exit "$3";; esac\n')
    python.chmod(0o755)
    for tool in ("ruff", "mypy", "lint-imports", "hadolint"):
        (python.parent / tool).symlink_to("/bin/true")
    (tmp_path / ".venv" / ".installed").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    return tmp_path


def runs(finished: subprocess.CompletedProcess[str]) -> list[str]:
    """Return what the environment's Python ran, without its bounds."""
    return [line for line in re.findall(r"^ran -m (.*)$", finished.stdout, re.MULTILINE)
            if not line.startswith("tests.run.bounded")]


def test_check_leaves_out_servers_and_long_tests(checkout: Path) -> None:
    (ran,) = runs(make("check", "PYTHON=false", cwd=checkout))
    assert '-m not servers and not slow' in ran


def seeds_of(runs: int) -> list[str]:
    command = f"tidemark_sim --seed 1 --runs {runs}"
    return [command, f"{command} --profile keyspace", f"{command} --profile keyspace-ahead"]


@pytest.mark.parametrize("code", [0, 1, 2])
def test_test_runs_all_but_the_table_and_asks_for_a_second_run_with_the_exit_code(checkout: Path, code: int) -> None:
    finished = make("test", "PYTHON=false", cwd=checkout, CODE=str(code))
    assert (finished.returncode == 0) is (code == 0), finished
    etcd, tests, again, *seeds = runs(finished)
    assert etcd == "tests.kube.binaries --etcd"
    assert " -m not full " in tests and " --max-worker-restart=0 " in tests
    assert again == f"tests.run.again {code} build/tests/tests.xml"
    assert seeds == (seeds_of(300) if code == 0 else [])


@pytest.mark.parametrize("code", [0, 1])
def test_test_full_runs_everything_once_and_the_seeds_whatever_failed(checkout: Path, code: int) -> None:
    finished = make("test-full", "PYTHON=false", cwd=checkout, CODE=str(code))
    assert (finished.returncode == 0) is (code == 0), finished
    built, tests, *seeds, table = runs(finished)
    assert built == "tests.kube.binaries --optional"
    assert " -m " not in tests.partition("pytest")[2]
    assert seeds == seeds_of(5000)
    assert table == "tests.run.stages build/tests/full.xml"


def test_unit_picks_tests(checkout: Path) -> None:
    assert runs(make("unit", "PYTHON=false", 'ARGS=-k "a name"', cwd=checkout)) == ["pytest -k a name"]


def test_every_stage_has_a_bound(checkout: Path) -> None:
    """`make test` as a whole takes at most 15 minutes, `.ci/run` 25."""
    finished = make("test", "PYTHON=false", cwd=checkout)
    bounds = re.findall(r"^ran -m tests.run.bounded --name (\w+) --minutes (\d+) ", finished.stdout, re.MULTILINE)
    assert bounds == [
        ("test", "15"), ("lint", "5"), ("tests", "15"), ("seeds", "60"), ("keyspaces", "60"), ("clocks", "60")]
    script = (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    assert script.endswith("tests.run.bounded --name ci --minutes 25 -- make test MINUTES=25\n")


def test_python_keeps_what_it_compiled(checkout: Path) -> None:
    """A machine may say that Python keeps none: hundreds of processes of a run would compile the sources again."""
    (checkout / ".venv" / "bin" / "python").write_text('#!/bin/sh\nenv\n')
    finished = make("sim", "PYTHON=false", cwd=checkout, PYTHONDONTWRITEBYTECODE="1")
    assert finished.returncode == 0 and "PYTHONDONTWRITEBYTECODE" not in finished.stdout
