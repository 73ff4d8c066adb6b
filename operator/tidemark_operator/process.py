"""Child processes that outlive their parent: started detached, known by process id and start time.

Linux tells a process's start through /proc; elsewhere `ps` does.  Stays out: which processes there are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOG_TAIL_CHARACTERS = 600

PAUSE_TIMEOUT_S = 10.0
"""A thread that waits for a disk stops when the disk has answered."""

PAUSE_POLL_S = 0.001


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    started: str


@dataclass(frozen=True, slots=True)
class Seen:
    started: str
    paused: bool
    ended: bool


def spawn(command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> ProcessId:
    """Start `command` in a session of its own, its output appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 - our own programs, no shell
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    seen = identify(child.pid)
    child.returncode = 0  # it is nobody's child by design: no warning when the object goes
    return ProcessId(child.pid, seen.started if seen else "")


def known(pid: int) -> ProcessId:
    """Return a process by its number now; raise ProcessLookupError where there is none."""
    seen = identify(pid)
    if seen is None:
        raise ProcessLookupError(f"no process {pid}")
    return ProcessId(pid, seen.started)


def identify(pid: int) -> Seen | None:
    """Look a process up; None when there is none."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # a child of ours that ended is not there any more
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
        return _identify_by_ps(pid)
    except ProcessLookupError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    # A killed process is a zombie while its other threads still end, and until then it keeps its files locked.
    ended = fields[0] in "ZX" and int(fields[17]) <= 1
    return Seen(started=fields[19], paused=fields[0] in "Tt", ended=ended)


def _identify_by_ps(pid: int) -> Seen | None:
    done = subprocess.run(  # noqa: S603
        ["/bin/ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = done.stdout.strip().partition(" ")
    if not started:
        return None
    return Seen(started=started.strip(), paused=state.startswith("T"), ended=state.startswith("Z"))


def alive(process: ProcessId) -> bool:
    seen = identify(process.pid)
    return seen is not None and seen.started == process.started and not seen.ended


def send_signal(process: ProcessId, number: int) -> None:
    """Send a signal, unless the process is gone."""
    if alive(process):
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def writers_into(folder: Path) -> list[ProcessId]:
    """Return the processes of this user whose output goes to a file in `folder`; none where there is no /proc."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "fd" / "1").readlink().is_relative_to(folder):
                found.append(known(int(entry.name)))
    return found


def pause(process: ProcessId, timeout_s: float = PAUSE_TIMEOUT_S) -> bool:
    """Stop a process (SIGSTOP); return once every thread of it stands still, False when the timeout ends first.

    The kernel stops threads one by one: a process that was only sent the signal may answer one more request.
    A process that is gone stands still.
    """
    send_signal(process, signal.SIGSTOP)
    deadline = time.monotonic() + timeout_s
    while alive(process) and not _stands_still(process.pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_POLL_S)  # /proc gives no event to wait for
    return True


def _stands_still(pid: int) -> bool:
    threads = list(Path(f"/proc/{pid}/task").glob("[0-9]*"))
    if not threads:     # no /proc here, or the process has ended
        seen = identify(pid)
        return seen is None or seen.paused or seen.ended
    for thread in threads:
        with suppress(FileNotFoundError, ProcessLookupError):
            stat = (thread / "stat").read_text()
            if stat[stat.rindex(")") + 2] not in "TtZX":
                return False
    return True


def wait_gone(process: ProcessId, timeout_s: float) -> bool:
    """Wait for the end of a process; False when it outlives the timeout."""
    deadline = time.monotonic() + timeout_s
    while alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def log_tail(log: Path) -> str:
    """Return the end of a log, for a message about why its process ended."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL_CHARACTERS))
            return file.read().decode(errors="replace").strip() or "its log is empty"
    except FileNotFoundError:
        return "it wrote no log"
