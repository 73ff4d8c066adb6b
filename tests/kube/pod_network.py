"""A network like a pod's: an interface with an address of its own and a default route; nothing leads out of it.

`python -m tests.kube.pod_network URL COMMAND...` runs inside such a namespace: it starts the command and ends with 0 as
soon as the URL answers, with 1 when the command ends before.
Stays out: which programs run there (the tests).
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence

ADDRESS = "10.244.1.7"
POLL_S = 0.1
LIMIT_S = 60
_ENTER = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child")
_LINKS = (
    "link set lo up", "link add pod0 type veth peer name host0", f"address add {ADDRESS}/24 dev pod0",
    "link set pod0 up", "link set host0 up", "route add default via 10.244.1.1")


def lack() -> str:
    """Return why this machine has no such network, empty where it has."""
    for program in ("unshare", "ip"):
        if shutil.which(program) is None:
            return f"needs the program {program}"
    tried = subprocess.run(
        [*_ENTER, "ip", *_LINKS[1].split()], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return f"no network namespace: {tried.stderr.strip()}" if tried.returncode else ""


def answers(command: Sequence[str], url: str) -> tuple[bool, str]:
    """Run a command in a network of its own until the URL answers or it ends; return which, and its output."""
    done = subprocess.run(
        [*_ENTER, sys.executable, "-m", __name__, url, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=LIMIT_S, check=False)
    return done.returncode == 0, done.stdout


def main(url: str, command: Sequence[str]) -> int:
    for link in _LINKS:
        subprocess.run(["ip", *link.split()], check=True, timeout=LIMIT_S)
    with subprocess.Popen(command) as process:
        try:
            while process.poll() is None:
                try:
                    with urllib.request.urlopen(url, timeout=5):
                        return 0
                except OSError:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(POLL_S)
            return 1
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
