"""The simulator itself: a seed is a run, runs pass on the product, failures can be replayed, alarms ring."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import psutil
import pytest
from tidemark_core.base.ids import ShardId
from tidemark_core.replication.records import ShardRecord
from tidemark_sim.__main__ import RARE, REQUIRED, main
from tidemark_sim.mutants import MUTANTS
from tidemark_sim.profiles import PROFILES
from tidemark_sim.runner import STEPS, Result, profile_of, run_seed

from tests.waiting import PATIENCE_S, wait_until

SEEDS_PER_PROFILE = 4


class AlwaysWrong:
    """The canary: a promise that nobody keeps."""

    def __init__(self, world: Any, history: Any) -> None:
        pass

    def record_saved(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        assert after.epoch == 0, "canary: an epoch was stored"


def _digests(seeds: list[int], hash_seed: str) -> list[str]:
    code = (
        "from tidemark_sim.runner import run_seed\n"
        f"for seed in {seeds}: print(run_seed(seed).digest)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True,
        check=True, timeout=120,
    )
    return finished.stdout.split()


@pytest.mark.parametrize("profile", PROFILES)
def test_product_keeps_every_promise(profile: str) -> None:
    for seed in range(SEEDS_PER_PROFILE):
        result = run_seed(seed, profile)
        assert result.passed, f"{result.message}\nreplay: {result.replay}\n" + "\n".join(result.story)
        assert result.events >= STEPS >= 2_000


def test_seed_replays_exactly_in_another_process_under_another_hash_seed() -> None:
    seeds = list(range(len(PROFILES)))

    one, other = _digests(seeds, "1"), _digests(seeds, "4242")

    assert one == other
    assert len(set(one)) == len(seeds)
    assert one[0] == run_seed(seeds[0]).digest


def test_recovery_rebuilds_metadata_and_finds_doubts() -> None:
    """Rules N1-N8 under faults: whatever is rebuilt, the checkers find nothing lost; and there are real doubts."""
    met: Counter[str] = Counter()
    for seed in range(200, 224):
        result = run_seed(seed, "recovery")
        assert result.passed, f"{result.message}\n{result.replay}"
        met.update(result.counts)
    assert met["metadata_rebuilt"] > 24 and met["swaps_committed"] > 4 and met["appends_acked"] > 500
    assert any(name.startswith("metadata_doubt_") for name in met)


@pytest.mark.parametrize("seed", [20034, 20159, 160150, 160651, 161448])
def test_recovery_seeds_that_once_failed_pass(seed: int) -> None:
    """A leader's clock below zero, a row of six members, two deletions under way, a minority down, a longer old log."""
    result = run_seed(seed, "recovery")

    assert result.passed, f"{result.message}\n{result.replay}"


@pytest.mark.parametrize("seed", [2021, 4850, 102_524])
def test_t10_an_impostor_may_speak_to_a_replica_that_is_deleted(seed: int) -> None:
    """The impostor speaks to a member that has just left, whose tombstone answers; in seed 4850 to a pull.

    In seed 102,524 the message has an epoch that rule N12 refuses.
    """
    result = run_seed(seed, "impostor")

    assert result.passed, f"{result.message}\n{result.replay}"


def test_c4_ages_are_true_ages_though_a_clock_is_wrong() -> None:
    """Rule C4: one node of all is hours or days off for whole lives, leads, and removes what is of age."""
    met: Counter[str] = Counter()
    for seed in range(300, 330):
        result = run_seed(seed, "ages")
        assert result.passed, f"{result.message}\n{result.replay}"
        met.update(result.counts)
    assert met["wrong_clocks"] > 20 and met["trims"] > 50 and met["elections"] > 50


def never_met(profile: str, seeds: int, *wanted: str) -> list[str]:
    """Return the counts that stay 0 over so many seeds of a profile; the first seeds that meet all are enough."""
    met: Counter[str] = Counter()
    missing = list(wanted)
    for seed in range(seeds):
        met.update(run_seed(seed, profile).counts)
        missing = [name for name in wanted if not met[name]]
        if not missing:
            break
    return missing


def test_limbo_meets_what_it_is_there_for() -> None:
    assert [] == never_met(
        "limbo", 40,
        "core_rollback_appended", "rollbacks_confirmed", "rollbacks_lost", "core_quorum_timeout", "timeouts_told",
        "rollbacks_told", "renumberings", "late_acks_during_rollback", "outcomes_asked", "quorum_changes",
        "quorum_changes_during_rollback", "local_lost", "stalls", "rollbacks_ambushed_written",
        "rollbacks_ambushed_durable", "rollbacks_ambushed_acked", "rollbacks_ambushed_confirmed",
    )


def test_successors_meet_what_they_are_there_for() -> None:
    assert [] == never_met(
        "successors", 40,
        "positions_committed", "positions_ambushed", "trims_before_opening", "payloads_lost",
        "core_damaged_above_commit", "rollbacks_confirmed", "payloads_left_out",
    )


def test_damage_meets_what_it_is_there_for() -> None:
    assert [] == never_met(
        "damage", 40,
        "corrupted", "corrupted_above_commit", "core_damaged_above_commit", "core_damage_reported",
        "core_entry_repaired", "truncations",
    )


def test_crowd_meets_what_it_is_there_for() -> None:
    assert [] == never_met(
        "crowd", 24, "producers_full", "truncations", "core_truncated", "crashes", "duplicates_answered", "elections")


def test_canary_fails() -> None:
    result = run_seed(1, checkers=(AlwaysWrong,))

    assert not result.passed
    assert result.rule == "canary"


def test_failure_tells_the_rule_the_story_and_the_line_to_paste() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "K4")

    result = run_seed(0, mutant.profile, mutant=mutant.active)

    assert result.rule == "L1"
    assert result.replay == f"python -m tidemark_sim --seed 0 --profile {mutant.profile}"
    assert result.story
    assert result.step > 0


def test_mutant_leaves_no_trace() -> None:
    before = run_seed(3).digest
    for mutant in MUTANTS:
        with mutant.active():
            pass

    assert run_seed(3).digest == before


def test_all_profiles_take_turns() -> None:
    assert {profile_of(seed, None) for seed in range(len(PROFILES))} == set(PROFILES)
    assert profile_of(0, "disks") == "disks"


def test_results_do_not_depend_on_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = []
    for jobs in ("1", "2"):
        assert main(["--seed", "0", "--runs", "8", "--jobs", jobs, "--json"]) == 0
        outcome = json.loads(capsys.readouterr().out)
        outcome.pop("seconds")
        outcomes.append(outcome)

    assert outcomes[0] == outcomes[1]
    assert outcomes[0]["runs"] == 8
    assert set(REQUIRED) <= set(outcomes[0]["counts"])


def test_command_line_fails_when_something_was_never_met(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_sim.__main__.REQUIRED_FROM_RUNS", 2)
    run = ["--seed", "0", "--runs", "2", "--steps", "20", "--jobs", "1", "--json"]

    assert main(run) == 2
    never_met = set(json.loads(capsys.readouterr().out)["never_met"])
    assert "rollbacks_confirmed" in never_met
    assert not never_met & set(RARE), "these are required of longer runs"
    monkeypatch.setitem(RARE, "rollbacks_lost", 2)
    assert main(run) == 2
    assert set(json.loads(capsys.readouterr().out)["never_met"]) == never_met | {"rollbacks_lost"}


def test_command_line_refuses_nonsense() -> None:
    for arguments in (["--seed", "-1"], ["--seed", "1", "--runs", "0"], ["--seed", "1", "--profile", "no such"], []):
        with pytest.raises(SystemExit) as refused:
            main(arguments)
        assert refused.value.code == 2


def dies_at_seed_5(seed: int, **_: object) -> Result:
    """Run nothing: seed 5 is killed, as by a system without memory, while seed 6 has no end."""
    if seed == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 6:
        time.sleep(600)
    return Result(seed, "swarm")


def test_a_process_that_dies_ends_the_run_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemark_sim.__main__.run_seed", dies_at_seed_5)

    assert main(["--seed", "1", "--runs", "5000", "--jobs", "2", "--json"]) == 3
    told = capsys.readouterr()
    assert json.loads(told.out)["runs"] <= 4
    assert "A process of the simulator died" in told.err
    assert re.search(r"Seeds that ran: .*\b5\b", told.err)
    assert re.search(r"Seeds \d to 5000 are not judged", told.err)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("whole_group", [True, False])
def test_ctrl_c_ends_every_process_of_a_run(whole_group: bool) -> None:
    run = subprocess.Popen(
        [sys.executable, "-m", "tidemark_sim", "--seed", "1", "--runs", "5000", "--jobs", "2"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_until(  # Python keeps a third process; the other two watch their parent once they have begun
            lambda: sorted(child.num_threads() for child in psutil.Process(run.pid).children()) == [1, 2, 2])
        children = psutil.Process(run.pid).children()
        (os.killpg if whole_group else os.kill)(run.pid, signal.SIGINT)
        assert run.wait(PATIENCE_S) == -signal.SIGINT
    finally:
        run.kill()
    assert not psutil.wait_procs(children, PATIENCE_S)[1]
