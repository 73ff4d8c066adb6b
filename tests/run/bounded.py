"""A bound on a command: `python -m tests.run.bounded --minutes 15 --name test -- make lint unit sim`.

A command that takes longer is interrupted, as by Ctrl-C, and killed half a minute later with all that it started.
The processes that run at that moment are printed; pytest-xdist titles its own with the test that each is in.
A command leaves a row of its minutes in `build/tests/stages.tsv`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from .stages import STAGES, note

GRACE_S = 30.0
"""From the interrupt to the kill."""
TIMED_OUT = 124
"""The exit code of the command `timeout`."""
COLUMNS = 160


def running(pid: int) -> list[str]:
    """Return a line for each process below `pid`: its number, its age and its command line or title."""
    lines = []
    for process in _below(pid):
        with contextlib.suppress(psutil.Error):
            age_s = time.time() - process.create_time()
            lines.append(f"{process.pid:>8} {age_s:>7.0f} s  {' '.join(process.cmdline())[:COLUMNS]}")
    return lines


def _below(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def run(command: Sequence[str], minutes: float, grace_s: float = GRACE_S) -> int:
    """Run a command in a process group of its own and return its exit code, or `TIMED_OUT`."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0) as process:
        try:
            return process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            print(f"\nnot done within {minutes:g} minutes: {' '.join(command)[:COLUMNS]}\n"
                  f"load {' '.join(f'{load:.1f}' for load in os.getloadavg())}; these run:", flush=True)
            print("\n".join(running(process.pid)), flush=True)
            _end(process, grace_s)
            return TIMED_OUT
        except KeyboardInterrupt:
            _end(process, grace_s)
            raise


def _end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Interrupt the group, wait, then kill what is left of it and below it."""
    left = _below(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):   # psutil kills no other process that has the number now
            one.kill()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.run.bounded", description="Run a command within a bound.")
    parser.add_argument("--minutes", type=float, required=True, help="the bound")
    parser.add_argument("--name", required=True, help="what the command is, for the table of minutes")
    parser.add_argument("--stages", type=Path, default=STAGES, help="where the row of minutes goes")
    parser.add_argument("command", nargs="+", help="what to run, behind --")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)   # an outer bound, or a person who ends this one
    signal.signal(signal.SIGINT, signal.default_int_handler)    # a shell ignores it for what runs in the background
    began = time.monotonic()
    try:
        code = run(options.command, options.minutes)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    note(options.stages, options.name, time.monotonic() - began, code)
    return code


if __name__ == "__main__":
    sys.exit(main())
