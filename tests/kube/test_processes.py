"""Children of a test that stop and start again, and addresses of loopback."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kube.loopback import LoopbackNetwork
from tests.kube.processes import Child
from tests.waiting import wait_until


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return state[state.rindex(")") + 2] not in "ZX"


def wait_dead(*pids: int) -> None:
    wait_until(lambda: not any(alive(pid) for pid in pids), f"none of {pids} runs")


def test_a_child_can_be_stopped_and_started_again(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "print('hello', flush=True); import time; time.sleep(1000)"], tmp_path / "log")
    for times in (1, 2):
        child.start()
        wait_until(lambda times=times: child.tail().count("hello") == times)
        pid = child.pid
        child.stop()
        assert not child.running
        assert not alive(pid)


def test_a_child_that_ignores_the_signal_is_killed(tmp_path: Path) -> None:
    child = Child(["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 0.1; done"], tmp_path / "log")
    child.start()
    wait_until(lambda: "ready" in child.tail())
    pid = child.pid
    child.stop(grace_s=0.2)
    wait_dead(pid)


def test_two_runs_have_two_networks() -> None:
    one, two = LoopbackNetwork(), LoopbackNetwork()
    try:
        assert one.server != two.server
        given = [one.next_address() for _ in range(600)]
        assert len(set(given)) == 600
        assert one.server not in given
    finally:
        one.release()
        two.release()
