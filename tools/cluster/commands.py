"""Commands of this machine: run to their end, or started beside the rest.

Everything that `Started` starts ends with the namespaces of `inside`.  Stays out: what the commands are.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_BEGAN = time.monotonic()
LOOK_S = 0.2


class Failed(Exception):
    """A command or a scenario failed; the text says what and shows the end of its output."""


def say(text: str) -> None:
    """Print a line of progress, with the seconds since the start."""
    print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", flush=True)


def run(
    *command: str | Path, timeout_s: float = 300, given: str | None = None, cwd: Path | None = None,
    environment: Mapping[str, str] | None = None, log: Path | None = None,
) -> str:
    """Run a command and return its standard output; `log` gains all of it.  Raises Failed."""
    words = [str(word) for word in command]
    try:
        finished = subprocess.run(
            words, input=given if given is not None else "", capture_output=True, text=True, timeout=timeout_s,
            cwd=cwd, env={**os.environ, **(environment or {})}, check=False)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{' '.join(words)}: no end within {timeout_s:g} s") from late
    if log is not None:
        with log.open("a", encoding="utf-8") as text:
            text.write(f"$ {' '.join(words)}\n{finished.stdout}{finished.stderr}\n")
    if finished.returncode:
        raise Failed(
            f"{' '.join(words)}: exit code {finished.returncode}\n{finished.stdout[-2000:]}{finished.stderr[-4000:]}")
    return finished.stdout


class Started:
    """A process beside the rest, with its output in a file."""

    def __init__(self, command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.name = log.stem
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env={**os.environ, **(environment or {})})

    @property
    def pid(self) -> int:
        return self.process.pid

    def check(self) -> None:
        """Raise Failed when the process has ended."""
        if self.process.poll() is not None:
            raise Failed(f"{self.name} ended with {self.process.returncode}:\n{self.tail()}")

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait(60)

    def tail(self, characters: int = 3000) -> str:
        return self.log.read_text(errors="replace")[-characters:]

    def wait_until(self, ready: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait until `ready()` is true.  Raises Failed when the process ends, or with its log when time is up."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise Failed(f"{self.name} is not ready after {timeout_s:g} s:\n{self.tail()}")
            time.sleep(LOOK_S)
