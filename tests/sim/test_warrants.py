"""Effects ride on the writes that warrant them: every write of core, crashed in front of and overtaken.

The runs find the writes, the effects behind them and the handlers; the source says which there are.  A new write that
nothing reaches fails here, and so do a handler that nothing reaches and an effect whose row misses its write.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import NamedTuple

import pytest
import tidemark_core.replication
from tidemark_core.base.effects import LogRead, LogReadFailed, Received, SnapshotChunk, SnapshotFailed
from tidemark_core.base.refusals import Reason
from tidemark_core.log_plane import LogPlane
from tidemark_core.node import NODE_EVENTS
from tidemark_core.replication.clients import AppendRequest, DeleteSink, LatestRequest, MarkSink
from tidemark_core.replication.follower import PULL_TIMER
from tidemark_core.replication.messages import (
    InstallSnapshot,
    Latest,
    Operation,
    Prepare,
    Prepared,
    ReadRound,
    ReadRoundAck,
    Rejected,
    SinkDeleted,
    SnapshotInstalled,
    SubscriptionDeleted,
    Truncate,
)
from tidemark_core.replication.read_index import READ_INDEX_TIMER
from tidemark_sim.profiles import PROFILES, Options
from tidemark_sim.runner import Result, profile_of, run_seed

from tests.core.replication import test_follower, test_other_epochs, test_vetting
from tests.core.support import AT, OPERATOR, SHARD, A, Author, B, C, D, Node, ack, append_of, batch, fence, lead
from tests.sim.warrants import CRASHED, Pair, Site, Watch, sites

RUNS_MIN, RUNS_MAX, DENSE = len(PROFILES), 4 * len(PROFILES), 6
"""Runs go on until all is reached that no story reaches, and end at the latest here; some are of one kind."""

SEEDS_MAX = 40
"""A mutant is caught within so many seeds."""

Adjust = Callable[[Options], None]

# --- stories of rare writes -------------------------------------------------------------------------------------------


def led() -> Node:
    node = Node(A)
    lead(node, 1)
    ack(node, B, upto=0)
    return node


def in_one_turn(message: object) -> None:
    """The leader takes a batch and a message of the operator in one turn: the batch is not handed to the store yet."""
    node = led()
    node.step(AppendRequest(SHARD, 1, batch(0)), Received(AT, OPERATOR, A, message))
    node.complete()
    assert 2 == len([entry for entry in node.stored() if entry.base <= 1])


def prepare_again() -> None:
    node, change = led(), Prepare(2, 20, Operation.SWAP, C, D)
    for _ in range(2):
        node.receive(OPERATOR, change)
        node.complete()
    assert 2 == len(node.take_sent(Prepared))


def install_again() -> None:
    node, author = Node(A), Author()
    author.opening()
    asked = InstallSnapshot(2, 20, B, test_follower.descriptor(author, 2))
    node.receive(OPERATOR, asked)
    node.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))
    node.receive(OPERATOR, asked)
    assert [] == node.take_sent(SnapshotInstalled)
    node.complete()
    assert 2 == len(node.take_sent(SnapshotInstalled))


def delete_a_subscription() -> None:
    """The deletion is answered when its record is confirmed (B8); the simulator's subscribers delete nothing."""
    node = led()
    node.commit(1, "s", 1)
    node.complete()
    ack(node, B)
    node.delete_subscription(2, "s")
    node.complete()
    assert node.answer(2) is None
    ack(node, B)
    assert node.answer(2) == SubscriptionDeleted(1, True)


def delete_a_sink() -> None:
    """The deletion is answered when its record is confirmed; the simulator's jobs delete nothing."""
    node = led()
    node.step(MarkSink(SHARD, 1, "s", 0, 0, (), 60_000))
    node.complete()
    ack(node, B)
    node.step(DeleteSink(SHARD, 2, "s"))
    node.complete()
    assert node.answer(2) is None
    ack(node, B)
    assert node.answer(2) == SinkDeleted(1, True)


def a_round_of_reading() -> None:
    """Neither the leader nor the members say more than what is durable."""
    leader, member = led(), Node(B)
    fence(member, 1)
    member.complete()
    leader.step(LatestRequest(SHARD, 1))
    leader.fire(READ_INDEX_TIMER)
    asked = leader.take_sent(ReadRound)[0]
    member.receive(A, asked)
    [answer] = member.take_sent(ReadRoundAck)
    leader.receive(B, answer)
    assert Latest(1, 0) == leader.answer(1)


def a_truncation_below_commit() -> None:
    node, author = Node(A), Author()
    author.opening()
    author.data()
    fence(node, 1)
    node.receive(B, append_of(author.entries, 1, commit=1))
    fence(node, 2)
    node.complete()
    node.take_sent()
    node.receive(B, Truncate(2, author.entries[0].id))
    assert [] == node.take_sent(Rejected)
    node.complete()
    [said] = node.take_sent(Rejected)
    assert Reason.BELOW_COMMIT == said.refusal.reason


def a_snapshot_that_ends_early() -> None:
    node, author = Node(A), Author()
    author.opening()
    node.receive(OPERATOR, InstallSnapshot(2, 20, B, test_follower.descriptor(author, 2)))
    node.step(SnapshotFailed(SHARD, 2, "the source is silent"))
    node.fire(PULL_TIMER)
    assert 2 == len(node.pulls)


STORIES: dict[str, Callable[[], None]] = {
    "a batch and a fence in one turn": lambda: in_one_turn(test_other_epochs.MAKE[test_other_epochs.Fence](2, 20, ())),
    "a batch and a change in one turn": lambda: in_one_turn(Prepare(2, 20, Operation.SWAP, C, D)),
    "a change asked for again": prepare_again,
    "a snapshot asked for again": install_again,
    "damage that no member repairs":
        test_vetting.test_k15d_a_leader_resigns_when_no_member_gave_what_a_follower_needs_at_three_looks,
    "a damaged entry is reported again": test_vetting.test_k15d_the_report_is_repeated_until_a_newer_epoch_fences,
    "a subscription is deleted": delete_a_subscription,
    "a sink is deleted": delete_a_sink,
    "a snapshot ends early": a_snapshot_that_ends_early,
    "an end is asked for": a_round_of_reading,
    "a leader asks to cut what is committed": a_truncation_below_commit,
}
"""Writes and handlers that fewer than one run in hundreds reaches."""

# --- handlers ---------------------------------------------------------------------------------------------------------


def timers() -> set[str]:
    """Return the names of the timers that a shard sets."""
    found = set()
    for module in pkgutil.iter_modules(tidemark_core.replication.__path__):
        if module.name != "coordinator":
            names = vars(importlib.import_module(f"tidemark_core.replication.{module.name}"))
            found |= {f"timer {value}" for name, value in names.items() if name.endswith("_TIMER")}
    return found


HANDLERS = {
    *(message.__name__ for message in (*test_other_epochs.MAKE, *test_other_epochs.WITHOUT_EPOCH)),
    *(event.__name__ for event in (*LogPlane.events, *NODE_EVENTS) if event not in (LogRead, LogReadFailed)),
    *timers(), "LogRead push", "LogRead fetch", "LogRead vet", "LogReadFailed push", "LogReadFailed of a reader",
}

PAST = {"AppendAck", "Append", "Appended", "Released", "Fetched", "Outcome", "ReadGrant", "PositionCommitted"}
"""These leave while writes are under way."""

EMPTY = {
    "document_shard.Documents._next", "replication.filling.Filling._say", "replication.follower.Follower._refuse",
    "replication.follower.Follower._report_loss",
    "replication.follower.Follower.on_install_snapshot", "replication.leader.Leader.on_become_leader_again",
}
"""Functions that write nothing of their own: what they say waits for the writes in front of it."""

HARMLESS: dict[Pair, str] = {
    ("document_shard.Documents._clean", "feed RowsDurable"):
        "a member of these runs that restarts without a summary has no rows; tests of U47b remove some",
    ("replication.follower.Follower.on_snapshot_chunk", "SnapshotProgress"): "for people",
    ("replication.leader.Leader._ask_to_fill", "feed Received"): "a leader asks itself; it promises nothing",
}
"""Effects that would break nothing without the write in front of them."""


RARE = ((0, "upr"), (5, "damage"))
"""Runs with what few runs have: a new member pulls the rows of documents, a repair is lost in a crash."""


class Watched(NamedTuple):
    watch: Watch
    failed: list[Result]
    runs: int


def run(watch: Watch, seed: int, profile: str, adjust: Adjust | None = None) -> Result:
    return run_seed(
        seed, profile, mutant=lambda: watch.watching(seed, profile, adjust), checkers=(watch.checker,), adjust=adjust)


def many_changes_of_copies(options: Options) -> None:
    """Members have payloads to fill in some run of a few."""
    options.admin.copies, options.admin.every_ms = 50.0, 150


SITES = frozenset(sites())


def missing_sites(watch: Watch) -> list[Site]:
    return sorted(SITES - watch.reached)


@pytest.fixture(scope="module")
def watched() -> Watched:
    watch = Watch()
    for story in STORIES.values():
        with watch.watching(0, "story"):
            story()
    failed: list[Result] = []
    for seed in range(DENSE):
        result = run(watch, seed, "copies", many_changes_of_copies)
        if not result.passed:
            failed.append(result)
    for seed, profile in RARE:
        result = run(watch, seed, profile)
        if not result.passed:
            failed.append(result)
    for seed in range(RUNS_MAX):
        result = run(watch, seed, profile_of(seed, None))
        if not result.passed:
            failed.append(result)
        done = not missing_sites(watch) and HANDLERS <= set(watch.events) and PAST <= set(watch.past)
        if done and seed + 1 >= RUNS_MIN:
            break
    return Watched(watch, failed, seed + 1)


# --- tests ------------------------------------------------------------------------------------------------------------


def test_nothing_leaves_before_the_write_that_warrants_it(watched: Watched) -> None:
    """Nor past one: an effect is judged by what is durable when it leaves, with writes under way."""
    assert [] == [f"{result.replay}: {result.message}" for result in watched.failed]
    assert set() == PAST - set(watched.watch.past), "these never left while a write was under way"
    assert watched.watch.left["Shipment"]


def test_every_write_of_core_is_reached(watched: Watched) -> None:
    assert [] == [str(site) for site in missing_sites(watched.watch)]


def test_every_handler_is_reached(watched: Watched) -> None:
    assert set() == HANDLERS - set(watched.watch.events)


def test_every_effect_behind_a_write_sees_it(watched: Watched) -> None:
    """Crashed in front of the write, or past it, the effect would say what no disk holds."""
    watch = watched.watch
    for pair, count in watch.pairs.items():
        if pair in HARMLESS or pair[1] in ("SetTimer", "Trace"):
            assert not watch.seen[pair], f"{pair} is not harmless: {watch.seen[pair]}"
        elif pair[0] in EMPTY:
            assert watch.seen[pair] or count < 10, f"{pair} never waited for a write in {count} times"
        else:
            assert watch.seen[pair][CRASHED], f"{pair} would go before its write unseen"


def test_a_crash_in_front_of_any_write_leaves_a_shard_that_keeps_its_word(watched: Watched) -> None:
    """The shard was restored, and asked again, after every prefix of the writes that were under way."""
    assert watched.watch.restored >= 2 * len(watched.watch.reached) - len(STORIES)


def test_each_effect_that_goes_before_its_write_is_caught(watched: Watched) -> None:
    """A mutant for every pair that the runs found."""
    mutants = watched.watch.first_seen
    assert len(mutants) >= 15
    for pair, where in mutants.items():
        seed, *kind = where
        # A run takes another way once a harmless one of its kind went early: then another seed shows it.
        said = (run(Watch(early=pair), each, *kind).rule for each in range(seed, seed + SEEDS_MAX))
        assert "warrant" in said, f"{pair} goes early, and from {where} on nothing says so"
