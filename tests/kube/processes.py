"""Child processes that a test may stop, kill, pause and start again.

Stays out: what they are (`control_plane`, `containers`), and their end when the run is killed (`tests.run.janitor`).
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from tidemark_operator.process import known, pause

from tests import waiting


def kill_group(pid: int) -> None:
    """SIGKILL to everything a process started, be it there or not."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


class Child:
    """A process that a test may stop, kill, pause and start again."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log = log
        self.environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.command[0]} was never started"
        return self._process.pid

    def start(self) -> None:
        assert not self.running
        self.log.parent.mkdir(parents=True, exist_ok=True)
        output: IO[bytes]
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                env={**os.environ, **self.environment})

    def stop(self, grace_s: float = 30.0) -> None:
        """SIGTERM, and SIGKILL when that is not heard."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
                self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
            self.kill()

    def kill(self) -> None:
        if self._process is not None:
            kill_group(self._process.pid)
            self._process.wait(waiting.PATIENCE_S)
            self._process = None

    def pause(self) -> None:
        assert pause(known(self.pid))

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def tail(self, characters: int = 3000) -> str:
        """Return the end of its log, for a message about why it ended."""
        return self.log.read_text(errors="replace")[-characters:] if self.log.exists() else "no log"


def wait_until(ready: object, child: Child, seconds: float) -> None:
    """Wait until `ready()` is true; raises with the log when the child ends or time is up."""
    def look() -> bool:
        assert child.running, f"{child.command[0]} ended:\n{child.tail()}"
        return bool(ready())  # type: ignore[operator]

    try:
        waiting.wait_until(look, f"{child.command[0]} is ready", seconds)
    except AssertionError as late:
        raise AssertionError(f"{late}:\n{child.tail()}") from late
