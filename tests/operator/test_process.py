"""Processes by number and start, and those that are paused: none of their threads goes on behind the call."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tidemark_operator.process import ProcessId, alive, identify, known, pause

from tests.waiting import PATIENCE_S, wait_until

THREADS = """
import hashlib, threading
data = bytes(1 << 20)
def turn():
    while True:
        hashlib.sha256(data).digest()
for _ in range(15):
    threading.Thread(target=turn).start()
turn()
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the threads of a process are listed in /proc")
def test_a_paused_process_has_no_thread_that_runs() -> None:
    process = subprocess.Popen([sys.executable, "-c", THREADS])
    try:
        wait_until(lambda: len(_states(process.pid)) == 16)
        turning = known(process.pid)
        for _ in range(20):
            assert pause(turning)
            assert set(_states(process.pid)) == {"T"}
            os.kill(process.pid, signal.SIGCONT)
            wait_until(lambda: "T" not in _states(process.pid))
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def test_a_process_that_took_the_number_of_another_one_is_not_that_one() -> None:
    """A state file outlives its processes, and the system gives their numbers to others."""
    seen = identify(os.getpid())
    assert seen is not None
    assert alive(ProcessId(os.getpid(), seen.started))
    assert not alive(ProcessId(os.getpid(), "another start"))


def test_a_process_that_is_gone_is_not_paused() -> None:
    """Another process has its number now."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert pause(ProcessId(process.pid, "another start"))
    assert set(_states(process.pid)) <= {"R", "S", "D"}
    process.communicate(b"\n", timeout=PATIENCE_S)
    assert process.returncode == 0
    with pytest.raises(ProcessLookupError):
        known(process.pid)


def _states(pid: int) -> list[str]:
    stats = [(thread / "stat").read_text() for thread in Path(f"/proc/{pid}/task").glob("[0-9]*")]
    return [stat[stat.rindex(")") + 2] for stat in stats]
