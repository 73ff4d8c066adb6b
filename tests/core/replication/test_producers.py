from __future__ import annotations

import struct
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.folds import NO_OFFSET
from tidemark_core.replication import producers
from tidemark_core.replication.producer_ids import caller_of, prefix_of
from tidemark_core.replication.producers import IDLE_MS_MAX, REMEMBERED_MAX, Place, ProducerTable, Verdict

from tests.core.support import OTHER_PRODUCER, PRODUCER, Author

NEVER_SEEN = b"never-seen-befor"


def table_of(author: Author) -> ProducerTable:
    table = ProducerTable()
    for entry in author.entries:
        table.note(entry)
    return table


def test_l19_an_unknown_producer_starts_at_the_first_sequence_only() -> None:
    assert Verdict(None, 0, False, False) == ProducerTable().judge(PRODUCER, 0, 0)
    assert Verdict(None, 0, False, False) == ProducerTable().judge(PRODUCER, 7, 0)


def test_l19_the_next_sequence_is_new_and_a_higher_one_is_told_what_is_expected() -> None:
    author = Author()
    author.data()
    author.data()
    table = table_of(author)

    assert Verdict(None, 2, False) == table.judge(PRODUCER, 2, 0)
    assert Verdict(None, 2, False) == table.judge(PRODUCER, 3, 0)


def test_l19_a_sequence_of_the_log_is_found_where_it_lies() -> None:
    author = Author(epoch=4)
    author.data(count=3)
    author.data(count=2)
    table = table_of(author)

    assert Verdict(Place(0, 4, 0, 3), 2, False) == table.judge(PRODUCER, 0, 0)
    assert Verdict(Place(1, 4, 3, 2), 2, False) == table.judge(PRODUCER, 1, 0)
    assert 4 == Place(1, 4, 3, 2).last


def test_l19_only_the_last_five_batches_are_remembered_and_an_older_one_is_too_old() -> None:
    author = Author()
    for _ in range(REMEMBERED_MAX + 2):
        author.data()
    table = table_of(author)

    assert [Verdict(None, 7, True), Verdict(None, 7, True)] == [table.judge(PRODUCER, n, 0) for n in (0, 1)]
    assert [2, 3, 4, 5, 6] == [table.judge(PRODUCER, n, 0).place.sequence for n in range(2, 7)]  # type: ignore[union-attr]


def test_l18_producers_do_not_see_each_other() -> None:
    author = Author()
    author.data()
    author.data(producer=OTHER_PRODUCER)
    author.data()
    table = table_of(author)

    assert 2 == table.judge(PRODUCER, 9, 0).expected
    assert 1 == table.judge(OTHER_PRODUCER, 9, 0).expected
    assert 2 == len(table)


def test_l18_a_producer_idle_for_a_week_of_logged_time_is_forgotten_and_a_millisecond_less_is_not() -> None:
    author = Author()
    author.data(logged_ms=1_000)
    table = table_of(author)

    assert 1 == table.judge(PRODUCER, 1, 1_000 + IDLE_MS_MAX).expected
    assert Verdict(None, 0, False, False) == table.judge(PRODUCER, 1, 1_000 + IDLE_MS_MAX + 1)


def test_l18_a_forgotten_producer_that_starts_anew_leaves_nothing_of_its_old_batches() -> None:
    author = Author()
    for _ in range(3):
        author.data(logged_ms=0)
    author.data(sequence=0, logged_ms=IDLE_MS_MAX + 1)
    table = table_of(author)

    assert Verdict(Place(0, 1, 3, 1), 1, False) == table.judge(PRODUCER, 0, IDLE_MS_MAX + 1)
    assert Verdict(None, 1, False) == table.judge(PRODUCER, 1, IDLE_MS_MAX + 1)
    assert Verdict(None, 1, False) == table.judge(PRODUCER, 2, IDLE_MS_MAX + 1)


def test_l18_purging_frees_memory_and_changes_no_verdict() -> None:
    author = Author()
    author.data(logged_ms=0)
    author.data(producer=OTHER_PRODUCER, logged_ms=IDLE_MS_MAX + 5)
    kept, purged = table_of(author), table_of(author)
    purged.purge(IDLE_MS_MAX + 5)

    assert (2, 1) == (len(kept), len(purged))
    for producer in (PRODUCER, OTHER_PRODUCER, NEVER_SEEN):
        for sequence in range(3):
            now_ms = IDLE_MS_MAX + 5
            assert kept.judge(producer, sequence, now_ms) == purged.judge(producer, sequence, now_ms)


def test_l18_a_truncated_entry_is_undone_exactly() -> None:
    author = Author()
    author.data()
    table = table_of(author)
    before = table.snapshot()
    for entry in (author.data(), author.data(producer=OTHER_PRODUCER)):
        table.note(entry)

    table.undo_to(0)

    assert before == table.snapshot()


def test_l18_what_is_settled_cannot_be_undone_and_what_is_not_still_can() -> None:
    author = Author()
    for _ in range(3):
        author.data(2)
    table = table_of(author)

    table.settle(4)   # in the middle of the third batch, which begins at 4
    table.undo_to(-1)

    assert 2 == table.judge(PRODUCER, 9, 0).expected, "the third is undone, the first two are settled"


def test_l19_the_oldest_offset_counts_what_is_remembered_again_when_entries_are_undone() -> None:
    author = Author()
    for _ in range(REMEMBERED_MAX):
        author.data()
    table = table_of(author)
    table.settle(REMEMBERED_MAX - 1)
    table.note(author.data())

    assert 0 == table.oldest
    table.settle(REMEMBERED_MAX)
    assert 1 == table.oldest
    assert NO_OFFSET == ProducerTable().oldest


def test_l19_a_rolled_back_batch_stays_so_when_its_evicted_producer_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry evicts the producer, a trim follows, and a new leader truncates the entry."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 2)
    author = Author()
    author.opening()
    lost = author.data(producer=MANY[0])
    author.rollback(lost.base)
    committed = author.data(producer=MANY[1])
    log = author.log
    log.settle(committed.last)
    log.decide(committed.last)
    author.data(producer=MANY[2])
    assert not log.producers.judge(MANY[0], 0, 0).known
    log.trim(committed.base)
    assert log.truncate(committed.id)

    place = log.producers.judge(MANY[0], 0, 0).place
    assert place is not None
    assert log.decisions.covering(place.base) is not None


writes = st.lists(
    st.tuples(st.sampled_from([PRODUCER, OTHER_PRODUCER, NEVER_SEEN]), st.integers(1, 3), st.integers(0, IDLE_MS_MAX)),
    max_size=30,
)


def table_from(history: list[tuple[bytes, int, int]]) -> tuple[ProducerTable, Author]:
    """Write as clients would: each batch with the sequence that the table expects."""
    author, table, now_ms = Author(), ProducerTable(), 0
    for producer, count, pause_ms in history:
        now_ms += pause_ms
        expected = table.judge(producer, 0, now_ms).expected
        table.note(author.data(count, producer=producer, sequence=expected, logged_ms=now_ms))
    return table, author


@given(writes)
def test_l18_the_table_survives_its_bytes(history: list[tuple[bytes, int, int]]) -> None:
    table, _ = table_from(history)

    data = table.encode()
    decoded, end = ProducerTable.decode(b"xy" + data + b"more", 2)

    assert table.snapshot() == decoded.snapshot()
    assert len(data) + 2 == end


@given(writes, st.data())
def test_l18_undoing_any_suffix_gives_the_fold_of_the_prefix(
    history: list[tuple[bytes, int, int]], data: st.DataObject
) -> None:
    keep = data.draw(st.integers(0, len(history)))
    prefix, _ = table_from(history[:keep])
    _, author = table_from(history)
    table = table_of(author)
    head = author.entries[keep - 1].last if keep else -1
    copy = table.upto(head, 0)
    table.undo_to(head)

    assert prefix.snapshot() == table.snapshot() == copy.snapshot()


def ids(owner: str, *numbers: int) -> list[bytes]:
    return [(prefix_of(owner) + bytes((number,)) * 16)[:16] for number in numbers]


GREEDY, MODEST = "client/greedy", "client/modest"
MANY = [*ids(GREEDY, 1, 2, 3), *ids(MODEST, 4, 5), *ids("", 6, 7)]


def replayed(history: list[bytes], limit: int) -> list[bytes]:
    """The producers that a table remembers, computed plainly, the one with the oldest newest batch first."""
    known: list[bytes] = []
    for producer in history:
        new = producer not in known
        known = [*(each for each in known if each != producer), producer]
        if new and len(known) > limit:
            counts = Counter(map(caller_of, known))
            most, caller = max((count, caller) for caller, count in counts.items())
            known.remove(next(each for each in known if most == 1 or caller_of(each) == caller))
    return known


@given(st.lists(st.sampled_from(MANY), max_size=40), st.integers(1, 7), st.data())
def test_l25_the_oldest_producers_go_in_log_order_and_come_back_when_entries_are_undone(
    history: list[bytes], limit: int, data: st.DataObject
) -> None:
    """On every path the same ones: truncation, a checkpoint, a checkpoint and what follows it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "PRODUCERS_MAX", limit)
        author, table = Author(), ProducerTable()
        for producer in history:
            table.note(author.data(producer=producer, sequence=table.judge(producer, 0, 0).expected))
        keep = data.draw(st.integers(0, len(history)))
        copy = table.upto(keep - 1, 0)
        decoded, _ = ProducerTable.decode(copy.encode(), 0)
        for entry in author.entries[keep:]:
            decoded.note(entry)

        assert replayed(history, limit) == list(table.snapshot()) == list(decoded.snapshot())
        assert table.snapshot() == decoded.snapshot()
        table.undo_to(keep - 1)
        assert replayed(history[:keep], limit) == list(table.snapshot()) == list(copy.snapshot())
        assert table.snapshot() == copy.snapshot()
        assert not any(table.judge(each, 1, 0).known for each in MANY if each not in table.snapshot())


def test_l25b_a_caller_that_makes_ids_without_end_forgets_its_own_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 10)
    modest, old = ids(MODEST, 1, 2, 3), ids("", 4, 5)
    greedy = ids(GREEDY, *range(6, 30))
    author = Author()
    for producer in (*modest, *old, *greedy):
        author.data(producer=producer)
    table = table_of(author)

    assert [*modest, *old, *greedy[-5:]] == list(table.snapshot())
    for producer in ids(MODEST, *range(30, 34)):
        table.note(author.data(producer=producer))
    left = Counter(map(caller_of, table.snapshot()))
    assert [4, 4, 2] == [left[prefix_of(owner)] for owner in (MODEST, GREEDY, "")], "with five it has most itself"


def test_l25b_where_nobody_has_more_than_one_the_newcomer_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first batch of a producer is the one that a retry may write twice."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    everybody = [ids(f"client/{number}", number)[0] for number in range(8)]
    author = Author()
    for producer in everybody:
        author.data(producer=producer)

    assert everybody[-3:] == list(table_of(author).snapshot())


@given(
    st.lists(st.tuples(st.sampled_from(MANY), st.integers(0, IDLE_MS_MAX // 2), st.booleans()), max_size=40),
    st.integers(1, 6),
)
def test_l25b_members_that_free_memory_at_other_times_forget_the_same_producers(
    history: list[tuple[bytes, int, bool]], limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producers, "PRODUCERS_MAX", limit)
        author, never, now_and_then, now_ms = Author(), ProducerTable(), ProducerTable(), 0
        for producer, pause_ms, purges in history:
            now_ms += pause_ms
            entry = author.data(
                producer=producer, sequence=never.judge(producer, 0, now_ms).expected, logged_ms=now_ms)
            never.note(entry)
            now_and_then.note(entry)
            if purges:
                now_and_then.purge(now_ms)
            for each in MANY:
                assert never.judge(each, 0, now_ms) == now_and_then.judge(each, 0, now_ms)


@pytest.mark.parametrize("cut", [0, 3, 4, 20, 40, 60])
def test_bytes_that_are_cut_short_are_noticed(cut: int) -> None:
    table, _ = table_from([(PRODUCER, 1, 0), (OTHER_PRODUCER, 1, 0)])
    data = table.encode()
    assert cut < len(data)

    with pytest.raises(struct.error):
        ProducerTable.decode(data[:cut], 0)


def test_a_copy_is_independent() -> None:
    author = Author()
    author.data()
    table = table_of(author)
    twin = table.upto(0, 0)
    table.note(author.data())

    assert (2, 1) == (table.judge(PRODUCER, 9, 0).expected, twin.judge(PRODUCER, 9, 0).expected)
