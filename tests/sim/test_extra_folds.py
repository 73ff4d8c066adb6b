"""The simulator runs a fold that no product file knows: faults, restarts, snapshots and trims leave it right."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.replication.replica import Role
from tidemark_sim.mutant import substitute
from tidemark_sim.profiles import Options
from tidemark_sim.runner import run_seed
from tidemark_sim.trace import Violation

from tests.core.toy_fold import Tally, tallied

PROFILES = ("disks", "limbo", "divergence", "swaps")
SEEDS = range(7_000, 7_010)
PASSED_THROUGH = ("crashes", "truncations", "rollbacks_confirmed", "trims", "core_snapshot_installed")
"""The runs must contain these: the fold is restored, undone, covered, trimmed around, sent to a new member."""


class TallyIsTheReplay:
    """Each member's toy fold is the replay of the committed log at the member's own `confirmed`."""

    compared = 0

    def __init__(self, world: Any, history: Any) -> None:
        self._history = history
        self._seen: dict[tuple[Member, ShardId], int] = {}

    def node_started(self, node: Any) -> None:
        """Compare what a restart restored at the next step."""
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] != node.member}

    def node_stepped(self, node: Any, events: Any) -> None:
        for shard, held in node.core.log.shards.items():
            replica, key = held.replica, (node.member, shard)
            history = self._history.of(shard)
            if replica.state.role in (Role.SEEDING, Role.DELETED) or not 0 <= replica.confirmed <= history.last:
                continue
            if replica.confirmed == self._seen.get(key):
                continue
            self._seen[key] = replica.confirmed
            found, expected = replica.log.fold(Tally).counted, tallied(history.entries, replica.confirmed)
            type(self).compared += 1
            if found != expected:
                raise Violation("toy", f"{node.name} counts {found} at {replica.confirmed}, the log says {expected}")


def with_tally(options: Options) -> None:
    options.limits = replace(options.limits, extra_folds=(Tally,))


def test_the_toy_fold_is_the_replay_of_the_log_on_every_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TallyIsTheReplay, "compared", 0)
    counts: Counter[str] = Counter()
    for profile in PROFILES:
        for seed in SEEDS:
            result = run_seed(seed, profile, checkers=(TallyIsTheReplay,), adjust=with_tally)
            assert result.passed, f"{result.message}; seed {seed} of {profile}"
            counts.update(result.counts)

    assert TallyIsTheReplay.compared > 50 * len(PROFILES) * len(SEEDS)
    assert not [each for each in PASSED_THROUGH if not counts[each]]


def test_a_run_with_one_more_fold_is_the_same_run() -> None:
    plain, extra = run_seed(7_000, "successors"), run_seed(7_000, "successors", adjust=with_tally)

    assert plain.digest == extra.digest


@pytest.mark.parametrize("hook", ["note", "undo_to", "decide", "upto"])
def test_a_toy_fold_that_lacks_one_hook_is_caught(hook: str) -> None:
    broken = {
        "note": lambda self, entry: None,
        "undo_to": lambda self, head: None,
        "decide": lambda self, confirmed, covering: original(self, confirmed, lambda offset: None),
        "upto": lambda self, offset, logged_ms: Tally(),
    }[hook]
    original = getattr(Tally, hook)
    profile = "limbo" if hook == "decide" else "divergence"

    def lacking() -> ExitStack:
        stack = ExitStack()
        substitute(stack, Tally, hook, broken)
        return stack

    for seed in range(7_000, 7_200):
        result = run_seed(seed, profile, mutant=lacking, checkers=(TallyIsTheReplay,), adjust=with_tally)
        if not result.passed:
            break

    assert "toy" == result.rule, result.message
