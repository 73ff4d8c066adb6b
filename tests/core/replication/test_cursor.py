from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.ids import NOTHING, EntryId
from tidemark_core.replication.cursor import Cursor, CursorStatus

from tests.core.support import B


def attached(head: EntryId = NOTHING) -> Cursor:
    cursor = Cursor(B)
    cursor.attach(head)
    return cursor


def test_o6_a_cursor_knows_what_was_pushed_and_what_was_confirmed() -> None:
    cursor = attached()
    cursor.pushed(3, 100)
    cursor.pushed(5, 50)
    cursor.acknowledged(3, 1)

    assert (3, 6, 50, 1) == (cursor.match, cursor.next, cursor.inflight_bytes, cursor.commit)


def test_k5_attaching_counts_nothing_and_pushes_behind_the_head() -> None:
    cursor = attached(EntryId(1, 9))

    assert (-1, 10, 10) == (cursor.match, cursor.next, cursor.floor)


def test_k4_an_older_acknowledgement_changes_nothing() -> None:
    cursor = attached()
    cursor.pushed(5, 100)
    cursor.acknowledged(5, 4)
    cursor.acknowledged(2, 1)

    assert (5, 6, 4) == (cursor.match, cursor.next, cursor.commit)


def test_k4_an_acknowledgement_of_more_than_was_pushed_moves_the_cursor_on() -> None:
    cursor = attached()
    cursor.pushed(2, 10)
    cursor.rewind()
    cursor.acknowledged(2, -1)

    assert (2, 3, 0) == (cursor.match, cursor.next, cursor.inflight_bytes)


def test_rewinding_pushes_again_from_what_is_known() -> None:
    cursor = attached(EntryId(1, 4))
    cursor.pushed(7, 100)
    cursor.pushed(9, 100)
    cursor.acknowledged(7, -1)
    cursor.reading = True
    cursor.rewind()

    assert (8, 0, False) == (cursor.next, cursor.inflight_bytes, cursor.reading)


def test_rewinding_before_any_acknowledgement_starts_at_attachment() -> None:
    cursor = attached(EntryId(1, 4))
    cursor.pushed(7, 100)
    cursor.rewind()

    assert 5 == cursor.next


def test_k5_matches_start_at_nothing_in_every_epoch_but_the_log_is_not_sent_again() -> None:
    cursor = attached()
    cursor.pushed(7, 100)
    cursor.acknowledged(7, 5)
    cursor.new_epoch()
    cursor.rewind()

    assert (-1, 8) == (cursor.match, cursor.next)


def test_k5_an_unconfirmed_follower_keeps_its_floor_across_epochs() -> None:
    cursor = attached(EntryId(1, 4))
    cursor.new_epoch()
    cursor.rewind()

    assert (-1, 5) == (cursor.match, cursor.next)


def test_a_follower_is_behind_while_it_lacks_an_entry_or_the_news_of_a_commit() -> None:
    cursor = attached()
    cursor.acknowledged(5, 4)

    assert cursor.behind(head=6, commit=4)
    assert cursor.behind(head=5, commit=5)
    assert not cursor.behind(head=5, commit=4)


def test_o31_a_silenced_follower_is_owed_nothing() -> None:
    cursor = attached()
    cursor.status = CursorStatus.SILENCED

    assert not cursor.behind(head=9, commit=9)


def test_o23_a_truncating_follower_is_owed_a_truncation() -> None:
    cursor = attached(EntryId(1, 9))
    cursor.acknowledged(9, 9)
    cursor.status = CursorStatus.TRUNCATING

    assert cursor.behind(head=9, commit=9)


@given(st.lists(st.one_of(
    st.tuples(st.just("push"), st.integers(1, 4)), st.tuples(st.just("ack"), st.integers(0, 60)),
    st.tuples(st.just("rewind"), st.just(0)), st.tuples(st.just("epoch"), st.just(0)),
)))
def test_o6_match_stays_below_next_and_bytes_in_flight_are_those_unconfirmed(story: list[tuple[str, int]]) -> None:
    cursor, head = attached(), -1
    for what, number in story:
        if what == "push":
            cursor.pushed(cursor.next + number - 1, 10 * number)
            head = max(head, cursor.next - 1)
        elif what == "ack":
            cursor.acknowledged(min(number, head), -1)
        elif what == "rewind":
            cursor.rewind()
        else:
            cursor.new_epoch()
        assert cursor.match < cursor.next
        assert cursor.inflight_bytes == sum(size for _, size in cursor.inflight) >= 0
        assert all(last > cursor.match for last, _ in cursor.inflight)
