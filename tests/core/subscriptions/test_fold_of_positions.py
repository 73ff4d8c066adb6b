"""The fold of POSITION records (rules B1-B5): it says what a plain replay of the log says, at every cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.entry import Entry, Kind, control, decode_header, folded_part, recovered
from tidemark_core.base.errors import CorruptEntry, RemoteViolation
from tidemark_core.base.ids import EntryId
from tidemark_core.replication.checkpoint import Checkpoint
from tidemark_core.replication.log import Log
from tidemark_core.subscriptions.fold import (
    LEASE_MS_MAX,
    NAME_MAX,
    NAMES_MAX,
    UNDECIDED_MAX,
    Noted,
    Position,
    Subscriptions,
    position_payload,
    wrong_name,
)

from tests.core.support import Author

LEASE = 5_000


def replay(entries: list[Entry], cut: int) -> dict[str, Position]:
    """B1, B2 word for word: what is confirmed at `cut` and covered by no confirmed ROLLBACK, the newest of a name."""
    covered = [(entry.sequence, entry.base) for entry in entries if entry.kind is Kind.ROLLBACK and entry.base <= cut]
    found: dict[str, Position] = {}
    for entry in entries:
        if entry.kind is not Kind.POSITION or entry.base > cut:
            continue
        if any(first <= entry.base < at for first, at in covered):
            continue
        name = entry.payload[8:].decode()
        lease_ms = int.from_bytes(entry.payload[:8], "big")
        found.pop(name, None)
        if lease_ms:
            found[name] = Position(entry.sequence, entry.logged_ms, lease_ms)
    return found


def folded(entries: list[Entry], cut: int) -> Subscriptions:
    log = Log()
    for entry in entries:
        log.append(entry)
    log.decide(cut)
    return log.subscriptions


def facts(fold: Subscriptions) -> tuple[Any, ...]:
    return fold.held, fold.undecided


@pytest.fixture
def author() -> Author:
    """ES 0, data 1-3, `one` at 2: 4, `two` at 1: 5, data 6, `one` at 6: 7, deletes `two`: 8."""
    author = Author()
    author.opening()
    author.data(3)
    author.position("one", 2, LEASE, logged_ms=100)
    author.position("two", 1, LEASE)
    author.data()
    author.position("one", 6, LEASE, logged_ms=200)
    author.position("two", 1, 0)
    return author


# --- records ----------------------------------------------------------------------------------------------


def test_b1_a_record_is_read_again_from_what_a_restart_is_given(author: Author) -> None:
    """Of other kinds a restart needs the header alone."""
    data, position = author.entries[1], author.entries[2]

    assert data.header == folded_part(data)
    assert decode_header(data.header) == recovered(folded_part(data))
    assert position == recovered(folded_part(position))


@pytest.mark.parametrize("change", ["short", "long", "flipped", "none"])
def test_b1_a_damaged_record_is_noticed(author: Author, change: str) -> None:
    whole = folded_part(author.entries[2])
    damaged = {
        "short": whole[:-1], "long": whole + b"x", "flipped": whole[:-1] + b"x", "none": author.entries[2].header,
    }[change]

    with pytest.raises(CorruptEntry, match="payload"):
        recovered(damaged)


def test_a_header_with_something_behind_it_is_damaged(author: Author) -> None:
    with pytest.raises(CorruptEntry, match="bytes"):
        recovered(author.entries[1].header + b"x")


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "9", "x" * NAME_MAX])
def test_b9_names_are_letters_digits_and_three_signs(name: str) -> None:
    assert wrong_name(name) is None


@pytest.mark.parametrize("name", ["", "x" * (NAME_MAX + 1), "a b", "-a", ".a", "_a", "a/b", "ä", "a\n", "a\x00"])
def test_b9_other_names_are_refused(name: str) -> None:
    assert "subscription" in (wrong_name(name) or "")


@pytest.mark.parametrize(
    ("payload", "offset"),
    [
        (b"", 0), (b"1234567", 0), (position_payload("", LEASE), 0), (b"\0" * 8 + b"\xff", 0),
        (position_payload("a", LEASE_MS_MAX + 1), 0), (position_payload("a", LEASE), -1),
        (position_payload("a", LEASE), 10), (position_payload("x" * 129, LEASE), 0), (position_payload("a/b", 1), 0),
    ],
)
def test_b1_a_record_that_says_what_cannot_be_is_refused_and_changes_nothing(
    author: Author, payload: bytes, offset: int
) -> None:
    log = author.log
    before = facts(log.subscriptions), log.head
    forged = control(
        Kind.POSITION, payload, epoch=1, prev=log.head, prev_chain=log.chain, logged_ms=log.logged_ms, argument=offset
    )

    with pytest.raises(RemoteViolation, match="B1"):
        log.append(forged)
    assert before == (facts(log.subscriptions), log.head)


# --- the fold ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "expected"),
    [
        (3, {}), (4, {"one": Position(2, 100, LEASE)}),
        (6, {"one": Position(2, 100, LEASE), "two": Position(1, 100, LEASE)}),
        (7, {"one": Position(6, 200, LEASE), "two": Position(1, 100, LEASE)}), (8, {"one": Position(6, 200, LEASE)}),
    ],
)
def test_b2_only_what_is_confirmed_counts(author: Author, cut: int, expected: dict[str, Position]) -> None:
    fold = folded(author.entries, cut)

    assert expected == fold.held
    assert [each.base for each in author.entries if each.kind is Kind.POSITION and each.base > cut] == [
        each.at for each in fold.undecided
    ]


def test_b2_what_a_rollback_covers_never_counts() -> None:
    author = Author()
    author.opening()
    author.position("one", 1, LEASE)
    author.data()
    author.position("one", 2, LEASE)
    author.rollback(2)
    author.position("one", 3, LEASE)
    covering = author.log.decisions.covering

    assert Position(1, 0, LEASE) == folded(author.entries, 4).held["one"]
    assert Position(3, 0, LEASE) == folded(author.entries, 5).held["one"]
    assert Noted(5, "one", Position(3, 0, LEASE)) == author.log.subscriptions.newest("one", covering)
    assert author.log.truncate(EntryId(1, 4))
    assert Noted(1, "one", Position(1, 0, LEASE)) == author.log.subscriptions.newest("one", covering)
    assert author.log.truncate(EntryId(1, 3)), "without the record of the rollback it may be confirmed after all"
    assert Noted(3, "one", Position(2, 0, LEASE)) == author.log.subscriptions.newest("one", covering)


def test_the_newest_position_is_told_before_it_is_confirmed(author: Author) -> None:
    fold = folded(author.entries, 5)
    covering = author.log.decisions.covering

    assert Noted(7, "one", Position(6, 200, LEASE)) == fold.newest("one", covering)
    assert Noted(8, "two", Position(1, 200, 0)) == fold.newest("two", covering)
    assert fold.newest("three", covering) is None
    fold.decide(8, covering)
    assert Noted(-1, "one", Position(6, 200, LEASE)) == fold.newest("one", covering)
    assert fold.newest("two", covering) is None


def test_b4_the_lowest_position_pins_while_its_lease_runs() -> None:
    fold = Subscriptions()
    fold.held = {"b": Position(5, 0, 100), "a": Position(5, 0, 100), "c": Position(2, 0, 50), "d": Position(9, 0, 999)}

    assert ("c", Position(2, 0, 50)) == fold.lowest(50)
    assert ("a", Position(5, 0, 100)) == fold.lowest(51)
    assert ("d", Position(9, 0, 999)) == fold.lowest(101)
    assert fold.lowest(1000) is None


def test_b5_what_the_log_s_clock_has_passed_is_forgotten_alike_before_and_after_a_checkpoint() -> None:
    author = Author()
    author.position("short", 0, 1_000)
    author.position("long", 0, 5_000)
    log = author.log
    log.settle(1)
    log.decide(1)
    for logged_ms, known in ((1_000, ["long", "short"]), (1_001, ["long"]), (5_001, [])):
        author.data(logged_ms=logged_ms)
        log.settle(log.head.offset)
        carried = Checkpoint.decode(log.checkpoint().encode()).fold(Subscriptions)
        assert known == [name for name, _ in log.subscriptions.known(logged_ms)]
        assert known == [name for name, _ in carried.known(logged_ms)]
        assert known == sorted(carried.held)


def test_b9_names_are_bounded() -> None:
    fold = Subscriptions()
    fold.held = {f"n{each}": Position(0, 0, 100) for each in range(NAMES_MAX - 1)}

    assert fold.room_for("one-more", 100)
    fold.held["last"] = Position(0, 0, 50)
    assert not fold.room_for("one-more", 50)
    assert fold.room_for("last", 50)
    assert fold.room_for("one-more", 51), "one is forgotten"
    author = Author()
    author.log.subscriptions.held = dict(fold.held)
    author.position("one-more", 0, 100, logged_ms=51)
    author.log.decide(0)
    assert NAMES_MAX == len(author.log.subscriptions)
    assert "last" not in author.log.subscriptions.held


def test_b9_undecided_names_count_too() -> None:
    author = Author()
    author.log.subscriptions.held = {f"n{each}": Position(0, 0, LEASE) for each in range(NAMES_MAX - 1)}
    author.position("taken", 0, LEASE)

    assert not author.log.subscriptions.room_for("another", 0)
    assert author.log.subscriptions.room_for("taken", 0)
    assert not author.log.subscriptions.crowded
    for _ in range(UNDECIDED_MAX - 1):
        author.position("taken", 0, LEASE)
    assert author.log.subscriptions.crowded


# --- truncation, checkpoints, trim: against a plain replay --------------------------------------------------

STORY = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 3)),
        st.tuples(st.just("position"), st.sampled_from("abc"), st.integers(0, 100), st.sampled_from([0, 1_000, 9_000])),
        st.tuples(st.just("rollback"), st.integers(1, 12)),
        st.tuples(st.just("opening")),
    ),
    max_size=25,
)


def legal(story: list[tuple[Any, ...]]) -> Author:
    author = Author()
    author.opening()
    for what, *facts_ in story:
        log = author.log
        if what == "data":
            author.data(facts_[0], logged_ms=log.logged_ms + 300)
        elif what == "position":
            author.position(facts_[0], min(facts_[1], log.head.offset + 1), facts_[2])
        elif what == "opening":
            author.opening(epoch=author.epoch + 1)
        else:
            decided = max(log.decisions.confirmed, log.decisions.openings[-1], log.decisions.last_record)
            starts = [entry.base for entry in author.entries if decided < entry.base]
            if starts:
                author.rollback(starts[max(0, len(starts) - facts_[0])])
    return author


def cuts(author: Author) -> list[int]:
    """Offsets at which `confirmed` may stand: entry boundaries outside of ranges (L3)."""
    return [-1] + [entry.last for entry in author.entries if author.log.decisions.covering(entry.last) is None]


@given(STORY)
def test_b2_the_fold_is_the_replay_at_every_cut(story: list[tuple[Any, ...]]) -> None:
    author = legal(story)
    log = Log()
    for entry in author.entries:
        log.append(entry)
    for cut in cuts(author):
        log.decide(cut)
        assert replay(author.entries, cut) == log.subscriptions.held


@given(STORY, st.data())
def test_b3_a_fold_cut_back_or_carried_in_a_checkpoint_and_trimmed_is_the_fold_of_what_is_left(
    story: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    author = legal(story)
    confirmed = data.draw(st.sampled_from(cuts(author)))
    commit = data.draw(st.sampled_from([entry.last for entry in author.entries if entry.last >= confirmed] or [-1]))
    log = Log()
    for entry in author.entries:
        log.append(entry)
    log.settle(commit)
    log.decide(confirmed)

    if confirmed >= 0:
        log.trim(data.draw(st.sampled_from([entry.base for entry in author.entries if entry.base <= confirmed + 1])))
    checkpoint = log.checkpoint().encode()
    rest = [recovered(folded_part(entry)) for entry in author.entries if entry.base > log.floor.id.offset]
    restored = Log.restore(checkpoint, rest, commit)
    restored.decide(confirmed)
    now_ms = log.floor.logged_ms
    assert log.subscriptions.undecided == restored.subscriptions.undecided
    assert list(log.subscriptions.known(now_ms)) == list(restored.subscriptions.known(now_ms))
    assert checkpoint == Checkpoint.decode(checkpoint).encode()

    keep = data.draw(st.sampled_from([entry.id for entry in author.entries if entry.last >= log.floor.id.offset]))
    for cut in (log, restored):
        assert cut.truncate(keep)
        left = [entry for entry in author.entries if entry.last <= keep.offset]
        for later in (each for each in cuts(author) if confirmed <= each <= keep.offset):
            if cut.decisions.covering(later) is not None:
                continue
            cut.decide(later)
            held = {name: each for name, each in replay(left, later).items() if each.live(now_ms)}
            assert held == dict(cut.subscriptions.known(now_ms))


def test_b3_a_checkpoint_that_is_cut_short_is_noticed(author: Author) -> None:
    log = author.log
    log.settle(8)
    log.decide(5)
    whole = log.checkpoint().encode()

    assert facts(log.subscriptions) == facts(Checkpoint.decode(whole).fold(Subscriptions))
    for size in range(len(whole)):
        with pytest.raises(RemoteViolation):
            Checkpoint.decode(whole[:size])
