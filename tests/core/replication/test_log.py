from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.entry import EMPTY_CHAIN, HEADER_BYTES, Kind, seal
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import NOTHING, EntryId
from tidemark_core.limbo.decisions import Decisions
from tidemark_core.replication import invariants
from tidemark_core.replication.checkpoint import Checkpoint, Mark, Run
from tidemark_core.replication.log import LOGGED_MS_MAX, MARK_BYTES, Log, recovery_start
from tidemark_core.replication.producers import ProducerTable

from tests.core.support import OTHER_PRODUCER, PRODUCER, Author, batch

PRODUCERS = (PRODUCER, OTHER_PRODUCER)


def log_of(author: Author, commit: int = -1, tail_bytes_max: int = 0) -> Log:
    log = Log(tail_bytes_max)
    for entry in author.entries:
        log.append(entry)
    log.settle(commit)
    return log


def facts(log: Log) -> tuple[object, ...]:
    """Return all that a log says about itself."""
    return (
        log.head, log.floor.id, log.chain, log.logged_ms, log.first, log.runs, log.marks, log.orders, log.solid,
        log.bytes_held,
        log.unsettled_entries, log.unsettled_bytes, log.producers.snapshot(),
        facts_of(log.decisions, log.floor.id.offset),
    )


def facts_of(decisions: Decisions, floor: int) -> tuple[object, ...]:
    """Of the openings that cannot be undone only the last one means anything."""
    openings = [
        opening for opening, later in pairwise([*decisions.openings, 1 << 62]) if later > floor
    ]
    return decisions.confirmed, openings, decisions.ranges


@pytest.fixture
def author() -> Author:
    """e1: offsets 0..5 in three entries; e3: 6..7 in two."""
    author = Author()
    author.opening(epoch=1)
    author.data(3)
    author.data(2)
    author.opening(epoch=3)
    author.data()
    return author


# --- where things are -------------------------------------------------------------------------------------


def test_an_empty_log_ends_at_nothing() -> None:
    log = Log()

    assert (NOTHING, EMPTY_CHAIN, 0, 0, 0) == (log.head, log.chain, log.logged_ms, log.bytes_held, log.first)
    assert log.contains(NOTHING)
    assert not log.contains(EntryId(1, 0))
    assert NOTHING == log.highest_at_or_below(9) == log.id_at(-1)


def test_a4_the_head_names_the_last_record_and_runs_name_who_wrote_which_offsets(author: Author) -> None:
    log = log_of(author)

    assert EntryId(3, 7) == log.head
    assert [Run(1, 0, 5), Run(3, 6, 7)] == log.runs
    assert [1, 1, 3, 0] == [log.epoch_at(offset) for offset in (0, 5, 6, 8)]
    assert 0 == log.epoch_at(-1)
    assert EntryId(3, 7) == log.id_at(7)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (NOTHING, True), (EntryId(1, 0), True), (EntryId(1, 5), True), (EntryId(3, 6), True), (EntryId(3, 7), True),
        (EntryId(3, 5), False), (EntryId(1, 6), False), (EntryId(2, 6), False), (EntryId(3, 8), False),
        (EntryId(0, 0), False), (EntryId(0, 8), False), (EntryId(1, -1), False),
    ],
)
def test_h1_a_log_contains_an_entry_only_with_its_own_epoch(author: Author, entry: EntryId, expected: bool) -> None:
    assert expected == log_of(author).contains(entry)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(0, NOTHING), (1, EntryId(1, 5)), (2, EntryId(1, 5)), (3, EntryId(3, 7)), (9, EntryId(3, 7))],
)
def test_o21_the_highest_entry_at_or_below_an_epoch(author: Author, epoch: int, expected: EntryId) -> None:
    assert expected == log_of(author).highest_at_or_below(epoch)


# --- append -----------------------------------------------------------------------------------------------


def test_c3_a_stamp_behind_the_year_9999_is_refused_and_nothing_changes() -> None:
    author = Author()
    author.data()
    head = author.log.head

    with pytest.raises(RemoteViolation, match=r"C3: .* behind the year 9999"):
        author.data(logged_ms=LOGGED_MS_MAX + 1, sequence=1)

    assert (author.log.head, author.log.logged_ms) == (head, 0)
    assert author.data(logged_ms=LOGGED_MS_MAX, sequence=1).logged_ms == author.log.logged_ms == LOGGED_MS_MAX


def test_l2_an_entry_goes_behind_the_one_it_names_or_nowhere(author: Author) -> None:
    log = log_of(author)
    before = facts(log)
    stranger = author.fork(EntryId(1, 5), 2)
    gap = Author()
    for _ in range(9):
        gap.data()

    for entry in (author.entries[-1], stranger.opening(), gap.entries[8]):
        with pytest.raises(RemoteViolation, match="L2"):
            log.append(entry)
        assert before == facts(log)


def test_l2_an_entry_of_an_older_epoch_cannot_follow_a_newer_one(author: Author) -> None:
    log = log_of(author)
    older = seal(batch(9), kind=Kind.DATA, epoch=2, prev=log.head, prev_chain=log.chain, logged_ms=0)

    with pytest.raises(RemoteViolation, match="L2"):
        log.append(older)
    assert EntryId(3, 7) == log.head


def test_l2_an_entry_that_continues_another_log_is_noticed_by_its_chain() -> None:
    one, other = Author(), Author()
    one.data(payload=b"x")
    other.data(payload=b"y")
    log = log_of(one)

    with pytest.raises(RemoteViolation, match="chained checksum"):
        log.append(other.data())
    assert EntryId(1, 0) == log.head


# --- settle and truncate ----------------------------------------------------------------------------------


def test_o24_settling_raises_the_floor_to_whole_entries_only(author: Author) -> None:
    log = log_of(author, commit=4)
    assert EntryId(1, 3) == log.floor.id
    assert 3 == log.unsettled_entries

    log.settle(2)
    assert EntryId(1, 3) == log.floor.id
    log.settle(7)
    assert EntryId(3, 7) == log.floor.id == log.head
    assert (0, 0) == (log.unsettled_entries, log.unsettled_bytes)


def test_unsettled_bytes_count_what_is_above_the_floor(author: Author) -> None:
    log = log_of(author, commit=6)

    assert (1, author.entries[-1].size) == (log.unsettled_entries, log.unsettled_bytes)
    assert sum(entry.size for entry in author.entries) == log.bytes_held


@pytest.mark.parametrize(
    ("to", "head"),
    [
        (EntryId(3, 7), EntryId(3, 7)), (EntryId(3, 6), EntryId(3, 6)), (EntryId(2, 99), EntryId(1, 5)),
        (EntryId(1, 5), EntryId(1, 5)), (EntryId(1, 4), EntryId(1, 3)), (EntryId(1, 0), EntryId(1, 0)),
        (NOTHING, NOTHING), (EntryId(9, 0), EntryId(3, 7)),
    ],
)
def test_o22_truncation_cuts_to_the_highest_entry_at_or_below(author: Author, to: EntryId, head: EntryId) -> None:
    log = log_of(author)
    expected = log_of(author.fork(head, 1))

    assert log.truncate(to)
    assert head == log.head
    assert facts(expected) == facts(log)
    invariants.check_log(log)


def test_truncation_below_what_is_committed_is_refused_and_changes_nothing(author: Author) -> None:
    log = log_of(author, commit=5)
    before = facts(log)

    assert not log.truncate(EntryId(1, 4))
    assert not log.truncate(NOTHING)
    assert before == facts(log)
    assert log.truncate(EntryId(1, 5))
    assert EntryId(1, 5) == log.head


def test_l18_truncation_undoes_the_producer_table(author: Author) -> None:
    log = log_of(author)
    assert 3 == log.producers.judge(PRODUCER, 9, 0).expected

    log.truncate(EntryId(1, 3))

    assert 1 == log.producers.judge(PRODUCER, 9, 0).expected


# --- trim and marks ---------------------------------------------------------------------------------------


def long_author() -> Author:
    """Twelve entries of a third of a mark's bytes each: a mark at every third."""
    author = Author()
    for _ in range(12):
        author.data(payload=bytes(MARK_BYTES // 3 + 1 - HEADER_BYTES))
    return author


def test_marks_are_entry_boundaries_a_mark_apart() -> None:
    log = log_of(long_author())

    size = MARK_BYTES // 3 + 1
    assert [Mark(0, 0, 0), Mark(3, 3 * size, 0), Mark(6, 6 * size, 0), Mark(9, 9 * size, 0)] == log.marks


@pytest.mark.parametrize(("before", "expected"), [(0, 0), (2, 0), (3, 3), (5, 3), (99, 9), (-1, 0)])
def test_issue_281_a_trim_point_is_a_known_boundary_at_or_below(before: int, expected: int) -> None:
    assert expected == log_of(long_author()).trim_point(before)


def test_issue_281_trimming_keeps_the_fold_and_forgets_the_marks_below() -> None:
    author = long_author()
    log = log_of(author, commit=8)
    whole = log.bytes_held

    log.trim(6)

    assert 6 == log.first
    assert [6, 9] == [mark.base for mark in log.marks]
    assert whole // 2 == log.bytes_held
    assert EntryId(1, 11) == log.head
    assert [Run(1, 0, 11)] == log.runs
    assert 6 == log.trim_point(0)
    invariants.check_log(log)


def test_issue_281_trimming_past_the_floor_is_a_bug() -> None:
    log = log_of(long_author(), commit=8)

    log.trim(9)
    with pytest.raises(AssertionError, match="#281"):
        log.trim(10)


# --- checkpoints ------------------------------------------------------------------------------------------


def test_recovery_starts_behind_the_checkpoint(author: Author) -> None:
    assert 0 == recovery_start(None)
    assert 6 == recovery_start(log_of(author, commit=5).checkpoint().encode())


def test_l18_a_checkpoint_covers_what_is_committed_and_nothing_more(author: Author) -> None:
    prefix = author.fork(EntryId(1, 3), 1)
    checkpoint = log_of(author, commit=3).checkpoint()

    assert EntryId(1, 3) == checkpoint.at
    assert facts(log_of(prefix, commit=3)) == facts(Log.restore(checkpoint.encode(), [], 3))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.sampled_from(PRODUCERS), st.integers(1, 5)),
        st.tuples(st.just("epoch"), st.integers(1, 2), st.sampled_from([Kind.EPOCH_START, Kind.NOOP])),
    ),
    min_size=1, max_size=40,
)


def author_of(story: list[tuple[object, ...]]) -> Author:
    author = Author()
    author.opening()
    for what, one, other in story:
        if what == "data":
            author.data(other, producer=one, payload=bytes(300_000), order=other)  # type: ignore[arg-type]
        else:
            author.opening(other, epoch=author.epoch + one)  # type: ignore[operator, arg-type]
    return author


@given(steps, st.data())
def test_l18_the_fold_of_a_log_equals_a_checkpoint_plus_the_rest(
    story: list[tuple[object, ...]], data: st.DataObject
) -> None:
    author = author_of(story)
    at = data.draw(st.integers(0, len(author.entries) - 1))
    commit = data.draw(st.integers(at, len(author.entries) - 1))
    log = log_of(author, commit=author.entries[at].last)
    boundaries = [mark.base for mark in log.marks if mark.base <= log.floor.id.offset + 1]
    first = data.draw(st.sampled_from(boundaries))
    log.trim(first)
    encoded = log.checkpoint().encode()
    log.settle(author.entries[commit].last)

    restored = Log.restore(encoded, author.entries[at + 1:], author.entries[commit].last)

    assert facts(log) == facts(restored)
    invariants.check_log(restored)
    assert log.checkpoint().encode() == restored.checkpoint().encode()


@given(steps, st.data())
def test_o22_truncating_anywhere_gives_the_fold_of_the_prefix(
    story: list[tuple[object, ...]], data: st.DataObject
) -> None:
    author = author_of(story)
    commit = data.draw(st.integers(-1, len(author.entries) - 1))
    keep = data.draw(st.integers(max(commit, 0), len(author.entries) - 1))
    offset = author.entries[commit].last if commit >= 0 else -1
    log = log_of(author, commit=offset)

    assert log.truncate(author.entries[keep].id)

    prefix = author.fork(author.entries[keep].id, 1)
    assert facts(log_of(prefix, commit=offset)) == facts(log)
    invariants.check_log(log)


def test_a_checkpoint_survives_its_bytes(author: Author) -> None:
    checkpoint = log_of(author, commit=5).checkpoint()
    decoded = Checkpoint.decode(checkpoint.encode())

    assert checkpoint[:-1] == decoded[:-1]
    assert facts_of(checkpoint.fold(Decisions), 5) == facts_of(decoded.fold(Decisions), 5)
    assert checkpoint.fold(ProducerTable).snapshot() == decoded.fold(ProducerTable).snapshot()


def test_a_checkpoint_cut_short_anywhere_is_noticed(author: Author) -> None:
    data = log_of(author, commit=7).checkpoint().encode()

    for cut in range(len(data)):
        with pytest.raises(RemoteViolation):
            Checkpoint.decode(data[:cut])


def test_a_checkpoint_of_an_unknown_format_is_refused(author: Author) -> None:
    data = log_of(author, commit=7).checkpoint().encode()

    with pytest.raises(RemoteViolation, match="checkpoint has format 9"):
        Checkpoint.decode(b"\x09" + data[1:])


# --- the tail ---------------------------------------------------------------------------------------------


def test_the_tail_gives_the_newest_entries_without_a_read(author: Author) -> None:
    log = log_of(author, tail_bytes_max=1 << 20)
    bases = [entry.base for entry in author.entries]

    assert all(log.in_tail(base) for base in bases)
    assert not log.in_tail(2)
    assert author.entries == list(log.take(0, 1 << 20))
    assert author.entries[2:3] == list(log.take(bases[2], 1))
    assert [] == list(log.take(8, 100))


def test_the_tail_holds_no_more_than_its_bytes_but_always_the_newest(author: Author) -> None:
    tiny = log_of(author, tail_bytes_max=1)
    room_for_two = log_of(author, tail_bytes_max=author.entries[-1].size + author.entries[-2].size)

    assert [False, False, False, False, True] == [tiny.in_tail(entry.base) for entry in author.entries]
    assert [False, False, False, True, True] == [room_for_two.in_tail(entry.base) for entry in author.entries]


def test_the_tail_drops_what_everybody_has(author: Author) -> None:
    log = log_of(author, tail_bytes_max=1 << 20)

    log.shrink_tail(5)   # the entry [4, 5] ends at 5: still wanted
    assert [False, False, True, True, True] == [log.in_tail(entry.base) for entry in author.entries]
    log.shrink_tail(99)
    assert not any(log.in_tail(entry.base) for entry in author.entries)


def test_truncation_forgets_the_tail(author: Author) -> None:
    log = log_of(author, tail_bytes_max=1 << 20)
    log.truncate(EntryId(1, 3))

    assert not log.in_tail(0)


def test_without_a_leader_there_is_no_tail(author: Author) -> None:
    assert not any(log_of(author).in_tail(entry.base) for entry in author.entries)
