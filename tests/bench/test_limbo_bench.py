"""Benchmark of the limbo: what is timed is what it says, and the build before is that build and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import build_before, limbo_confirm
from bench.context import Context
from bench.processes import ROOT, WorkerFailed, run_worker


def test_entries_wait_for_the_missing_follower_and_each_is_answered_once() -> None:
    leader = limbo_confirm.LoneLeader(300)
    leader.fill(300)
    waiting = leader.view()
    assert (waiting.length, waiting.confirmed, waiting.quorum) == (300, 0, 3)
    assert waiting.entries[0].missing == (leader.missing.node,)
    leader.acknowledge(leader.missing)
    assert (leader.view().length, leader.view().confirmed) == (0, 300)
    assert [reply.base for reply in leader.replies] == list(range(1, 301)), "answered once, in order"


def test_a_time_for_each_number_and_round() -> None:
    assert limbo_confirm.seconds_to_confirm(200) > 0
    assert set(limbo_confirm.NUMBERS) >= {1_000, 10_000, 20_000}


def test_the_build_before_has_no_limbo(tmp_path: Path) -> None:
    with build_before.tree(Context(tmp_path)) as before:
        if isinstance(before, str):
            pytest.skip(before)  # a copy without history
        assert sorted(path.name for path in before.iterdir()) == sorted(build_before.PACKAGES)
        assert not (before / "core" / "tidemark_core" / "limbo").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_commit_that_is_not_there_is_told(tmp_path: Path) -> None:
    with build_before.tree(Context(tmp_path), "0" * 40) as before:
        assert isinstance(before, str) and "git" in before


def test_a_round_with_other_packages_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = ":".join(str(ROOT / name) for name in build_before.PACKAGES)
    with pytest.raises(WorkerFailed):
        run_worker(
            "throughput_round", {"PYTHONPATH": path}, directory=str(tmp_path), packages=str(tmp_path), seconds=1
        )
    assert f"not from {tmp_path}" in capfd.readouterr().err
