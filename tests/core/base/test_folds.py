"""A fold is one file: a toy fold that the product does not know lives in a log, in its checkpoints and in a replica."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core import shard
from tidemark_core.base.effects import PutCheckpoint
from tidemark_core.base.entry import Entry, Kind, folded_part, recovered
from tidemark_core.base.errors import FormatTooNew, RemoteViolation
from tidemark_core.base.folds import NO_OFFSET, Covering, Fold, check_table
from tidemark_core.base.ids import EntryId
from tidemark_core.base.limits import Limits
from tidemark_core.base.plane import NodeFacts
from tidemark_core.limbo.decisions import Decisions, Range
from tidemark_core.node import NodeCore
from tidemark_core.planes import planes
from tidemark_core.replication.checkpoint import FOLDS, Checkpoint
from tidemark_core.replication.log import Log
from tidemark_core.replication.replica import ReplicaState, Role

from tests.core.support import OTHER_PRODUCER, PRODUCER, SHARD, A, Author, B, C
from tests.core.toy_fold import Tally, tallied

TABLE = (*FOLDS, Tally)


@pytest.fixture
def author() -> Author:
    """ES 0, one 1-3, two 4, ROLLBACK from 4: 5, one 6-7, two 8."""
    author = Author()
    author.opening()
    author.data(3)
    author.data(producer=OTHER_PRODUCER)
    author.rollback(4)
    author.data(2)
    author.data(producer=OTHER_PRODUCER, sequence=0)
    return author


def log_of(entries: list[Entry], commit: int = -1, confirmed: int = -1) -> Log:
    log = Log(table=TABLE)
    for entry in entries:
        log.append(entry)
    log.settle(commit)
    log.decide(confirmed)
    return log


def facts(log: Log) -> tuple[Any, ...]:
    tally = log.fold(Tally)
    return tally.counted, list(tally.waiting)


# --- in a log ---------------------------------------------------------------------------------------------


def test_entries_count_once_they_are_confirmed_and_not_when_a_rollback_covers_them(author: Author) -> None:
    log = log_of(author.entries)
    tally = log.fold(Tally)

    assert ({}, 4) == (tally.counted, len(tally.waiting))
    log.decide(3)
    assert {PRODUCER: 3} == tally.counted
    log.decide(5)
    assert {PRODUCER: 3} == tally.counted
    log.decide(8)
    assert {PRODUCER: 5, OTHER_PRODUCER: 1} == tally.counted


def test_truncation_takes_entries_back_exactly(author: Author) -> None:
    log = log_of(author.entries, commit=3, confirmed=3)

    assert log.truncate(EntryId(1, 7))
    assert facts(log_of(author.entries[:-1], 3, 3)) == facts(log)
    assert log.truncate(EntryId(1, 3))
    assert facts(log_of(author.entries[:2], 3, 3)) == facts(log)


def test_a_checkpoint_carries_the_fold_as_it_was_at_the_floor_and_a_restart_folds_on(author: Author) -> None:
    log = log_of(author.entries, commit=7, confirmed=3)
    log.trim(4)

    rest = [recovered(folded_part(entry)) for entry in author.entries if entry.base > 7]
    restored = Log.restore(log.checkpoint().encode(), rest, 7, TABLE)

    assert facts(log) == facts(restored)
    restored.decide(8)
    assert {PRODUCER: 5, OTHER_PRODUCER: 1} == restored.fold(Tally).counted


def test_a_checkpoint_is_a_copy(author: Author) -> None:
    log = log_of(author.entries, commit=8, confirmed=3)
    checkpoint = log.checkpoint()
    one, other = Log(table=TABLE), Log(table=TABLE)
    one.adopt(checkpoint)
    one.decide(8)
    other.adopt(checkpoint)

    assert {PRODUCER: 3} == log.fold(Tally).counted == other.fold(Tally).counted
    assert log.fold(Tally).waiting == other.fold(Tally).waiting


def test_a_log_that_is_made_without_a_fold_says_so(author: Author) -> None:
    with pytest.raises(LookupError, match="without the fold Tally"):
        author.log.fold(Tally)


STORY = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.sampled_from((PRODUCER, OTHER_PRODUCER)), st.integers(1, 4)),
        st.tuples(st.just("rollback"), st.integers(0, 5), st.none()),
        st.tuples(st.just("opening"), st.integers(1, 2), st.none()),
    ),
    min_size=1, max_size=30,
)


def written(story: list[tuple[Any, ...]]) -> Author:
    author = Author()
    author.opening()
    for what, one, count in story:
        fold = author.log.decisions
        if what == "data":
            author.data(count, producer=one)
        elif what == "opening":
            author.opening(epoch=author.epoch + one)
        else:
            decided = max(fold.openings[-1], fold.last_record)
            firsts = [entry.base for entry in author.entries if entry.base > decided]
            if firsts:
                author.rollback(firsts[one % len(firsts)])
    return author


@given(STORY, st.data())
def test_the_fold_is_the_replay_of_the_log_through_restarts_and_truncation(
    story: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    author = written(story)
    cuts = [-1, *(each.last for each in author.entries if author.log.decisions.covering(each.last) is None)]
    confirmed = data.draw(st.sampled_from(cuts))
    commit = data.draw(st.sampled_from([each.last for each in author.entries if each.last >= confirmed]))
    log = log_of(author.entries, commit, confirmed)
    boundaries = [each.base for each in author.entries if each.base <= confirmed + 1] or [0]
    log.trim(data.draw(st.sampled_from(boundaries)))
    rest = [recovered(folded_part(each)) for each in author.entries if each.base > commit]
    restored = Log.restore(log.checkpoint().encode(), rest, commit, TABLE)
    restored.decide(confirmed)
    keep = data.draw(st.sampled_from([each for each in author.entries if each.last >= commit]))

    for each in (log, restored):
        assert tallied(author.entries, confirmed) == each.fold(Tally).counted
        assert each.truncate(keep.id)
        left = [entry for entry in author.entries if entry.last <= keep.last]
        for cut in cuts:
            if confirmed <= cut <= keep.last and each.decisions.covering(cut) is None:
                each.decide(cut)
                assert tallied(left, cut) == each.fold(Tally).counted


# --- what a log asks of a fold, and when ------------------------------------------------------------------


class Recorder(Fold):
    """Writes down what it is asked."""

    tag = b"toy2"
    kinds = frozenset((Kind.DATA, Kind.EPOCH_START))
    begins_empty = True
    refused: int | None = None

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def note(self, entry: Entry) -> None:
        if entry.base == type(self).refused:
            raise RemoteViolation("the toy does not like it")
        self.asked.append(("note", entry.base))

    def undo_to(self, head: int) -> None:
        self.asked.append(("undo_to", head))

    def settle(self, commit: int) -> None:
        self.asked.append(("settle", commit))

    def decide(self, confirmed: int, covering: Covering) -> None:
        self.asked.append(("decide", confirmed, covering(4)))

    def trim(self, first: int) -> None:
        self.asked.append(("trim", first))

    def purge(self, logged_ms: int) -> None:
        self.asked.append(("purge", logged_ms))

    @property
    def oldest(self) -> int:
        return 2

    @property
    def weight(self) -> int:
        return 1000

    def upto(self, offset: int, logged_ms: int) -> Recorder:
        self.asked.append(("upto", offset, logged_ms))
        return type(self)()

    def encode(self) -> bytes:
        return b""

    @classmethod
    def decode(cls, data: bytes, at: int) -> tuple[Recorder, int]:
        return cls(), at


def test_a_fold_is_asked_for_its_kinds_alone_in_log_order(author: Author) -> None:
    log = Log(table=(*FOLDS, Recorder))
    for entry in author.entries:
        log.append(entry)

    assert [("note", base) for base in (0, 1, 4, 6, 8)] == log.fold(Recorder).asked


def test_a_fold_hears_of_each_step_of_the_log_with_offsets_that_end_entries(author: Author) -> None:
    log = Log(table=(*FOLDS, Recorder))
    for entry in author.entries:
        log.append(entry)
    recorder = log.fold(Recorder)
    recorder.asked.clear()

    log.settle(2)      # inside of [1, 3]
    log.settle(6)      # inside of [6, 7]
    log.settle(6)
    log.decide(5)
    log.truncate(EntryId(1, 7))
    log.trim(4)
    log.purge(77)
    log.checkpoint()

    assert [
        ("settle", 0), ("settle", 5), ("decide", 5, Range(4, 5)), ("undo_to", 7), ("trim", 1), ("purge", 77),
        ("upto", 5, 0),
    ] == recorder.asked, "a producer's batch at 1 is remembered, so nothing behind it is forgotten"
    assert log.weight >= 1000


def test_rollbacks_are_kept_as_far_back_as_any_fold_speaks(author: Author) -> None:
    """Rule L19 for every fold: the fate of what it speaks of stays known though the bytes are trimmed."""
    more = Author()
    more.opening()
    for _ in range(3):
        more.data()
    more.rollback(2)
    for _ in range(5):
        more.data()
    for table, expected in ((FOLDS, []), ((*FOLDS, Recorder), [Range(2, 4)])):
        log = Log(table=table)
        for entry in more.entries:
            log.append(entry)
        log.settle(9)
        log.trim(9)
        assert expected == log.decisions.ranges


def test_an_entry_that_one_fold_refuses_is_in_none(author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(table=(*FOLDS, Tally, Recorder))
    for entry in author.entries[:-1]:
        log.append(entry)
    before = facts(log), log.producers.snapshot(), log.head, list(log.runs), list(log.orders)
    monkeypatch.setattr(Recorder, "refused", author.entries[-1].base)

    with pytest.raises(RemoteViolation, match="does not like it"):
        log.append(author.entries[-1])
    assert before == (facts(log), log.producers.snapshot(), log.head, list(log.runs), list(log.orders))
    monkeypatch.setattr(Recorder, "refused", None)
    log.append(author.entries[-1])
    assert facts(log_of(author.entries)) == facts(log)


def test_a_fold_that_says_nothing_of_a_hook_is_not_asked() -> None:
    log = Log(table=TABLE)

    assert not any(isinstance(fold, Tally) for fold in log._settling)
    assert (NO_OFFSET, 0) == (Tally().oldest, Tally().weight)


# --- tables -----------------------------------------------------------------------------------------------


def test_the_tags_of_this_release_never_change() -> None:
    assert {b"deci": "Decisions", b"subs": "Subscriptions", b"prod": "ProducerTable", b"sink": "Sinks"} == {
        kind.tag: kind.__name__ for kind in shard.FOLDS
    }


@pytest.mark.parametrize("tag", [b"toy", b"toy11", "tö1".encode()])
def test_a_tag_is_four_ascii_bytes(tag: bytes) -> None:
    wrong = type("Wrong", (Tally,), {"tag": tag})

    with pytest.raises(ValueError, match=r"tag of fold Wrong is .*, must be 4 ASCII bytes"):
        Log(table=(*FOLDS, wrong))


def test_two_folds_do_not_share_a_tag() -> None:
    with pytest.raises(ValueError, match="Tally and Twin share the tag b'toy1'"):
        check_table((Tally, type("Twin", (Tally,), {})))


def test_a_log_needs_the_folds_that_replication_decides_by() -> None:
    with pytest.raises(LookupError, match="without the fold ProducerTable"):
        Log(table=FOLDS[:-1])


# --- in a node --------------------------------------------------------------------------------------------


def test_a_node_is_started_with_one_more_fold_and_keeps_it_over_a_restart(author: Author) -> None:
    limits = Limits(extra_folds=(Tally,))
    state = ReplicaState(1, 10, Role.FOLLOWER, 8, 8, (A, B, C)).encode()
    first = NodeCore(NodeFacts(A), planes(limits))
    first.log.load(SHARD, state, None, author.entries)
    [written_] = [w for w in first.log.shards[SHARD].replica.trim_to(9) if isinstance(w, PutCheckpoint)]

    again = NodeCore(NodeFacts(A), planes(limits))
    again.log.load(SHARD, state, written_.checkpoint, [])

    for core in (first, again):
        log = core.log.shards[SHARD].replica.log
        assert Counter({PRODUCER: 5, OTHER_PRODUCER: 1}) == log.fold(Tally).counted
        core.log.shards[SHARD].replica.forget_log()
        assert not core.log.shards[SHARD].replica.log.fold(Tally).counted, "an empty log has the same folds"


def test_a_heavy_fold_makes_checkpoints_rare_and_each_checkpoint_purges_every_fold(author: Author) -> None:
    """A checkpoint costs as much as it holds."""
    state = ReplicaState(1, 10, Role.FOLLOWER, 8, 8, (A, B, C)).encode()
    due = []
    for extra in ((), (Recorder,)):
        core = NodeCore(NodeFacts(A), planes(Limits(checkpoint_entries=2, extra_folds=extra)))
        core.log.load(SHARD, state, None, author.entries)
        writes = core.log.shards[SHARD].replica.checkpoint_if_due()
        due.append(sum(isinstance(write, PutCheckpoint) for write in writes))

    assert [1, 0] == due
    replica = core.log.shards[SHARD].replica
    recorder = replica.log.fold(Recorder)
    recorder.asked.clear()
    replica.trim_to(4)
    assert [("trim", 1), ("upto", 8, 0), ("purge", 0)] == recorder.asked


def test_a_checkpoint_with_a_fold_that_this_build_does_not_know_is_refused(author: Author) -> None:
    log = log_of(author.entries, commit=8, confirmed=8)
    data = log.checkpoint().encode()

    with pytest.raises(FormatTooNew, match=r"sections \[b'toy1'\], which this build does not know"):
        Checkpoint.decode(data)
    state = ReplicaState(1, 10, Role.FOLLOWER, 8, 8, (A, B, C)).encode()
    with pytest.raises(FormatTooNew, match="toy1"):
        NodeCore(NodeFacts(A)).log.load(SHARD, state, data, [])


def test_decisions_is_found_by_its_class(author: Author) -> None:
    log = log_of(author.entries)

    assert log.fold(Decisions) is log.decisions
    assert log.checkpoint().fold(Decisions) is not log.decisions
