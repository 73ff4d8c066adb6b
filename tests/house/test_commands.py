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
TARGETS = re.findall(r"^([a-z][a-z-]*):", MAKEFILE, flags=re.MULTILINE)


def make(*arguments: str, cwd: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    assert shutil.which("make"), "make is one of the three things that Tidemark asks for"
    # Not those of the make that runs the tests: it would pass its job server and flags down.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE") and name != "MFLAGS"}
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


@pytest.mark.parametrize(
    ("pure", "servers", "runs", "good"), [(0, 0, 2, True), (1, 0, 2, False), (0, 1, 2, False), (2, 0, 1, False)])
def test_unit_runs_both_parts_unless_it_is_interrupted(
    tmp_path: Path, pure: int, servers: int, runs: int, good: bool
) -> None:
    """pytest ends with 2 after Ctrl-C and where a file cannot be read."""
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        '#!/bin/sh\necho "ran $*"\n'
        f'case "$*" in *"-m not servers"*) exit {pure};; *"-m servers"*) exit {servers};; esac\n')
    python.chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    os.utime(tmp_path / "pyproject.toml", (0, 0))
    finished = make("unit", "PYTHON=false", cwd=tmp_path)
    assert (finished.returncode == 0, finished.stdout.count("ran -m pytest")) == (good, runs), finished
    picked = make("unit", "PYTHON=false", 'ARGS=-k "a name"', cwd=tmp_path)
    assert picked.returncode == 0 and "ran -m pytest -k a name" in picked.stdout, picked


def test_check_and_test_run_every_test_between_them() -> None:
    """The first runs what the marker leaves out of the second part of the other."""
    assert re.search(r'^PURE = .*-m "not servers"', MAKEFILE, flags=re.MULTILINE)
    assert re.search(r"^\t\$\(PYTEST\) .*-m servers ", MAKEFILE, flags=re.MULTILINE)
