"""The ports of a local cluster."""

from __future__ import annotations

import multiprocessing
import signal
import socket
from pathlib import Path

import pytest
from tidemark_operator import local, local_state
from tidemark_operator.local_state import PORTS_VARIABLE, PRIVATE_PORTS_FROM, LocalRuntimeError, free_ports
from tidemark_operator.process import alive, send_signal, spawn


def test_ports_are_free_all_different_and_none_that_the_system_picks_itself() -> None:
    found = [*free_ports(3), *free_ports(2)]
    assert len(set(found)) == 5
    with socket.create_server(("127.0.0.1", 0)) as picked:
        lowest = min(picked.getsockname()[1], local_state.SYSTEM_PORTS_FROM)
    assert all(PRIVATE_PORTS_FROM <= port < lowest for port in found)


def test_a_port_that_is_taken_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = free_ports(2)
    monkeypatch.setenv(PORTS_VARIABLE, f"{first}-{second}")
    with socket.create_server(("127.0.0.1", first)):
        assert free_ports(1) == [second]


def test_processes_that_begin_at_the_same_moment_take_different_ports() -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        one, other = pool.map(free_ports, [20, 20], chunksize=1)
    assert not set(one) & set(other)


def test_where_the_system_keeps_all_ports_it_picks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, "")     # as a shell leaves it that was to name none
    monkeypatch.setattr(local_state, "PRIVATE_PORTS_FROM", 65_536)
    assert len(set(free_ports(4))) == 4


def test_the_ports_of_a_range_are_taken_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = free_ports(1)
    monkeypatch.setenv(PORTS_VARIABLE, f"{first}-{first + 40}")
    assert set(free_ports(3)) <= set(range(first, first + 41))
    with pytest.raises(LocalRuntimeError, match=rf"{PORTS_VARIABLE}={first}-{first + 40} holds \d+ free ports; 50 are"):
        free_ports(50)


@pytest.mark.parametrize("given", ["20000", "20000-", "2-1", "0-9", "1-65536", "a-b", "-1-5"])
def test_what_is_no_range_of_ports_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(PORTS_VARIABLE, given)
    with pytest.raises(LocalRuntimeError, match="is no range of ports") as refused:
        free_ports(1)
    assert "20000-24999" in refused.value.advice


async def test_a_damaged_directory_is_stopped_and_wiped(tmp_path: Path) -> None:
    """A process of it runs, one of another directory too; the state cannot be read."""
    other = tmp_path / "other"
    mine = spawn(["sleep", "600"], tmp_path / "mine" / "logs" / "dev-1.log")
    stranger = spawn(["sleep", "600"], other / "logs" / "dev-1.log")
    try:
        (tmp_path / "mine" / "state.json").write_text("{broken")
        with pytest.raises(LocalRuntimeError, match="cannot be read") as caught:
            await local.down(tmp_path / "mine")
        assert "tidemark dev down --wipe" in caught.value.advice
        assert await local.down(tmp_path / "mine", wipe=True) == [f"process {mine.pid}"]
        assert not alive(mine)
        assert alive(stranger)
        assert not (tmp_path / "mine" / "state.json").exists()
        assert not (tmp_path / "mine" / "logs").exists()
    finally:
        for process in (mine, stranger):
            send_signal(process, signal.SIGKILL)
