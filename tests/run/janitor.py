"""The janitor: ends the processes that a run of the tests, or one of its workers, has left behind.

A process that a test starts inherits two variables: `RUN`, which names the run, and `WORKER`, which pytest-xdist sets.
Each process of the run that runs tests starts a janitor, which waits for its end, however that comes, and kills
(SIGKILL) what carries its variables.  Behind the last test of a group nothing may be left that its tests started
(`check`), but for the servers of the session, which write into a folder that is `kept`.
Linux alone shows the variables of a process, in /proc; elsewhere nothing is found.
Stays out: when a process ends that a test knows of, which its fixture does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path

RUN, WORKER = "TIDEMARK_TEST_RUN", "PYTEST_XDIST_WORKER"
KILL_S = 20.0
"""How long the janitor kills: a process may start another one at the same moment."""
PATIENCE_S = 2.0
"""How long a process of a group may outlive its last test: a fixture waits for the end of what it ends."""
LOOK_S = 0.02
OF_PYTHON = "multiprocessing.resource_tracker"
"""Python starts this process beside a pool, once, and ends it with the process that has the pool."""

PROC = Path("/proc")
BEGIN_S = 1.0
"""How long a process may have no environment: one that has just replaced its program shows none for a moment."""

_kept: list[Path] = []


def marks(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that processes of this process carry."""
    return {name: environment[name] for name in (RUN, WORKER) if name in environment}


def carrying(wanted: Mapping[str, str]) -> dict[int, str]:
    """Return the processes that were started with these variables: number and command line."""
    if RUN not in wanted:   # every process carries nothing
        raise ValueError(f"{RUN} must be among {list(wanted)}")
    lines = {f"{name}={value}".encode() for name, value in wanted.items()}
    found = {}
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):     # it has ended, or it is another user's
            if lines <= set(_environment(entry).split(b"\0")):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if OF_PYTHON not in command:
                    found[int(entry.name)] = command
    return found


def _environment(entry: Path) -> bytes:
    """Return the environment of a process; `Popen` returns before the new program has laid its own out."""
    deadline = time.monotonic() + BEGIN_S
    while not (found := (entry / "environ").read_bytes()) and time.monotonic() < deadline:
        (entry / "exe").readlink()      # a kernel thread and a process that has ended have no program: OSError
        if (entry / "cmdline").read_bytes():
            break
        time.sleep(LOOK_S / 10)     # /proc gives no event to wait for; it takes microseconds
    return found


def kill(wanted: Mapping[str, str]) -> dict[int, str]:
    """Kill all that carry the variables, and what they start meanwhile; return what was killed."""
    killed: dict[int, str] = {}
    deadline = time.monotonic() + KILL_S
    while (left := carrying(wanted)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        killed |= left
        time.sleep(LOOK_S)  # /proc gives no event to wait for
    return killed


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """Let processes whose output goes into a folder outlive the group that started them."""
    _kept.append(folder)
    try:
        yield
    finally:
        _kept.remove(folder)


def left_behind(wanted: Mapping[str, str], patience_s: float = PATIENCE_S) -> dict[int, str]:
    """Return what still carries the variables and is not kept, as soon as that is nothing or `patience_s` is over."""
    deadline = time.monotonic() + patience_s
    while left := {pid: command for pid, command in carrying(wanted).items() if not _is_kept(pid)}:
        if time.monotonic() > deadline:
            return left
        time.sleep(LOOK_S)  # /proc gives no event to wait for
    return {}


def _is_kept(pid: int) -> bool:
    with suppress(OSError):
        output = Path(f"/proc/{pid}/fd/1").readlink()
        return any(output.is_relative_to(folder) for folder in _kept)
    return False


def check(fail: Callable[[str], object], patience_s: float = PATIENCE_S) -> None:
    """Call `fail` with what the tests of this process have left behind, and kill it."""
    if left := left_behind(marks(), patience_s):
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        fail("its group left processes behind, which are killed:\n" + "\n".join(
            f"{pid:>8} {command[:200]}" for pid, command in left.items()))


class Janitor:
    """The janitor of this process; it begins when this object does and goes when this process goes."""

    def __init__(self, begins_run: bool, environment: MutableMapping[str, str] = os.environ) -> None:
        if begins_run:  # a test may do so: what the variables of its worker name is not this run's
            environment.pop(WORKER, None)
            environment[RUN] = f"{os.getpid()}-{time.time_ns()}"
        wanted = [f"{name}={value}" for name, value in marks(environment).items()]
        unmarked = {name: value for name, value in environment.items() if name not in (RUN, WORKER)}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *wanted], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=unmarked, start_new_session=True)
        self._process.wait(KILL_S)      # it goes on as a child of init: what kills the tree of this process spares it
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Close the pipe in a copy of this process: the end of this process alone tells the janitor."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def end(self) -> str:
        """Let the janitor do its work now; return what it killed, a line for each process."""
        return self._process.communicate(timeout=2 * KILL_S)[0]


def main() -> None:
    """Wait for the end of the input, then kill what carries the variables among the arguments."""
    if os.fork():
        os._exit(0)
    sys.stdin.read()
    for pid, command in kill(dict(argument.split("=", 1) for argument in sys.argv[1:])).items():
        print(pid, command)


if __name__ == "__main__":
    main()
