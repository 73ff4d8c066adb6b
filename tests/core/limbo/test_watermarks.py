"""Followers: what they confirm, what they show, what a restart or a snapshot brings (rules L9, L10, L13)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tidemark_core.base.effects import PutEntry, Released, SnapshotChunk, SnapshotDescriptor, Trace
from tidemark_core.base.entry import Kind
from tidemark_core.base.ids import NOTHING, EntryId
from tidemark_core.limbo.decisions import Range
from tidemark_core.replication.messages import (
    Append,
    AppendAck,
    Fate,
    InstallSnapshot,
    SnapshotInstalled,
    Truncate,
)
from tidemark_core.replication.replica import Role

from tests.core.support import (
    AT,
    OPERATOR,
    SHARD,
    A,
    Author,
    B,
    Node,
    append_of,
    fence,
    visible,
)

LEADER = A
MakeNode = Callable[..., Node]


@pytest.fixture
def follower(make_node: MakeNode) -> Node:
    """Node `b`, fenced in epoch 1."""
    node = make_node(B)
    fence(node, 1)
    node.complete()
    node.take_sent()
    return node


@pytest.fixture
def author() -> Author:
    """ES 0, data 1-2, data 3, data 4, ROLLBACK(3) at 5, data 6."""
    author = Author()
    author.opening()
    author.data(2)
    author.data()
    author.data()
    author.rollback(3)
    author.data()
    return author


def fed(node: Node, author: Author, commit: int, confirmed: int, upto: int = 99) -> None:
    """Push the author's log up to `upto`, by one message."""
    entries = [entry for entry in author.entries if entry.last <= upto]
    node.receive(LEADER, append_of(entries, author.epoch, commit, confirmed=confirmed))
    node.complete()


def shown(node: Node) -> list[int]:
    """Return the bases of what the node would give to a reader."""
    holes = node.holes()
    return [
        entry.base for entry in node.stored()
        if entry.kind is Kind.DATA and entry.last <= node.replica.released
        and not any(first <= entry.base <= last for first, last in holes)
    ]


# --- what is sent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("confirmed", "released", "holes", "expected"),
    [(0, 0, [], []), (2, 2, [], [1]), (5, 5, [(3, 4)], [1]), (6, 6, [(3, 4)], [1, 6])],
)
def test_l9_l10_a_follower_shows_what_its_own_confirmed_says(
    follower: Node, author: Author, confirmed: int, released: int, holes: list[tuple[int, int]], expected: list[int]
) -> None:
    fed(follower, author, 6, confirmed)

    assert (released, holes, expected) == (follower.released[SHARD], follower.holes(), shown(follower))
    assert expected == [entry.base for entry in visible(follower.stored(), confirmed)]


def test_l9_confirmed_moves_by_max_and_only_in_the_epoch_that_is_in_force(follower: Node, author: Author) -> None:
    fed(follower, author, 6, 2)
    follower.receive(LEADER, append_of([], 1, 6, prev=EntryId(1, 6), confirmed=0))
    assert 2 == follower.replica.confirmed
    fence(follower, 2)
    follower.receive(LEADER, append_of([], 1, 6, prev=EntryId(1, 6), confirmed=6))
    assert 2 == follower.replica.confirmed
    follower.receive(LEADER, append_of([], 2, 6, prev=EntryId(1, 6), confirmed=6))

    assert 6 == follower.replica.confirmed


def test_l9_a_watermark_of_a_leader_that_is_ahead_does_not_confirm_what_it_does_not_vouch_for(
    follower: Node, author: Author
) -> None:
    """The leader has confirmed 6; its message ends at 2: 3 and 4 lie here and are rolled back, and stay unseen."""
    fed(follower, author, 0, 0, upto=4)
    assert 6 == author.log.head.offset
    sent = author.log.decisions.safe_cut(min(6, 2), 6)
    follower.receive(LEADER, append_of([], 1, 6, prev=EntryId(1, 2), confirmed=sent))
    assert (2, [1]) == (follower.replica.confirmed, shown(follower))

    sent = author.log.decisions.safe_cut(min(6, 4), 6)
    follower.receive(LEADER, append_of([], 1, 6, prev=EntryId(1, 4), confirmed=sent))

    assert (2, [1]) == (follower.replica.confirmed, shown(follower)), "4 is inside the range and was lowered"
    assert 4 == follower.replica.commit


def test_l9_a_watermark_inside_a_range_is_refused_whole(follower: Node, author: Author) -> None:
    effects = follower.receive(LEADER, append_of(author.entries, 1, 6, confirmed=3))

    assert [Trace(AT, "violation", f"L3: append confirms 3, which lies inside {Range(3, 5)}")] == effects
    assert (NOTHING, -1, -1) == (follower.replica.log.head, follower.replica.commit, follower.replica.confirmed)
    fed(follower, author, 6, 6)
    assert [1, 6] == shown(follower), "and the right message is taken"


def test_l7_a_rollback_of_what_is_confirmed_here_is_refused_whole(follower: Node, author: Author) -> None:
    """No CONFIRM record says so, but this node has shown offset 6."""
    fed(follower, author, 6, 6)
    before = follower.stored()
    forged = author.fork(EntryId(1, 6), 1)
    forged.data()
    forged.rollback(6)

    effects = follower.receive(LEADER, append_of(forged.entries[-2:], 1, 6))
    follower.complete()

    assert [Trace(AT, "violation", "L7: ROLLBACK at 8 reaches back to 6, confirmed is 6")] == effects
    assert (before, EntryId(1, 6)) == (follower.stored(), follower.replica.log.head)
    assert [1, 6] == shown(follower)


def test_f12_f19_a_follower_acknowledges_by_offset_and_takes_decisions_like_any_entry(
    follower: Node, author: Author
) -> None:
    """CONFIRM and ROLLBACK are written here too, and acknowledged once they are durable."""
    follower.receive(LEADER, append_of(author.entries, 1, -1))
    assert [] == follower.take_sent(AppendAck)
    follower.complete()

    assert [AppendAck(1, 6, -1)] == follower.take_sent(AppendAck)
    assert Kind.ROLLBACK in [entry.kind for entry in follower.stored()]


def test_issue_5195_a_follower_shows_nothing_before_its_leader_confirms(follower: Node, author: Author) -> None:
    """Tarantool #5195: a replica emptied its queue while the leader's was not.  A follower has none to empty."""
    fed(follower, author, 6, 2, upto=4)
    assert [1] == shown(follower)
    author.confirm(4 - 2)

    follower.receive(LEADER, append_of(author.entries[4:], 1, 2, confirmed=2))
    follower.complete()

    assert (2, [1]) == (follower.replica.confirmed, shown(follower))
    assert follower.shard.leader is None


def test_issue_5229_no_dirty_read_between_an_entry_and_its_rollback(follower: Node, author: Author) -> None:
    """Tarantool #5229: a replica showed an entry that was rolled back a moment later."""
    seen: list[int] = []
    for entry in author.entries:
        confirmed = {0: 0, 1: 0, 2: 2}.get(entry.base, 2 if entry.base < 6 else 6)
        follower.receive(LEADER, append_of([entry], 1, entry.last, confirmed=min(confirmed, entry.last)))
        follower.complete()
        seen += shown(follower)

    assert {1, 6} == set(seen)


# --- restarts ---------------------------------------------------------------------------------------------


def test_l13_a_confirm_in_the_durable_log_confirms_after_a_restart(follower: Node, author: Author) -> None:
    """No watermark was stored: the follower had the record, and never heard more."""
    author.confirm(6)
    fed(follower, author, -1, -1)
    assert (-1, []) == (follower.replica.confirmed, shown(follower)), "it is for the leader to say while it lives"

    follower.restart()

    assert (6, 6, [1, 6]) == (follower.replica.commit, follower.replica.confirmed, shown(follower))
    assert [(3, 4)] == follower.holes()


def test_l13_without_a_confirm_a_restart_goes_by_the_durable_watermark(follower: Node, author: Author) -> None:
    fed(follower, author, 6, 2)
    follower.receive(LEADER, append_of([], 1, 6, prev=EntryId(1, 6), confirmed=6))
    follower.complete()
    assert 6 == follower.replica.confirmed, "heard, and not stored: a heartbeat writes nothing"

    follower.restart()

    assert (6, 2, [1]) == (follower.replica.commit, follower.replica.confirmed, shown(follower))


def test_l13_the_higher_of_watermark_and_confirm_counts(follower: Node, author: Author) -> None:
    author.confirm(2)
    fed(follower, author, 6, 6)

    follower.restart()

    assert 6 == follower.replica.confirmed


def test_l13_nothing_is_confirmed_by_an_epoch_start_found_at_a_restart(follower: Node, author: Author) -> None:
    """It is in the log, and whether it is committed nobody here knows."""
    author.opening(epoch=2)
    fed(follower, author, -1, -1)

    follower.restart()

    assert (-1, []) == (follower.replica.confirmed, shown(follower))


def test_l13_a_confirm_that_was_not_durable_confirms_nothing(follower: Node, author: Author) -> None:
    fed(follower, author, -1, -1)
    author.confirm(6)
    follower.receive(LEADER, append_of(author.entries[-1:], 1, -1))

    follower.restart()

    assert (-1, EntryId(1, 6)) == (follower.replica.confirmed, follower.replica.log.head)


@pytest.mark.parametrize("numbers", ["5610", "5973"])
def test_issue_5610_5973_no_dirty_read_after_a_restart(follower: Node, author: Author, numbers: str) -> None:
    """Tarantool #5610, #5973: what was rolled back, or not decided, was shown after a restart."""
    fed(follower, author, 6, 2 if numbers == "5610" else 6)
    for _ in range(2):
        follower.restart()
        assert [1] if numbers == "5610" else [1, 6] == shown(follower)
        assert 3 not in shown(follower) and 4 not in shown(follower)
    fence(follower, 2)
    follower.complete()
    later = author.fork(EntryId(1, 6), 2)
    later.opening(epoch=2)
    follower.receive(LEADER, append_of(later.entries[-1:], 2, 7, confirmed=7))
    follower.complete()

    assert ([1, 6], [(3, 4)]) == (shown(follower), follower.holes())


def test_issue_5140_only_what_a_rollback_names_is_rolled_back_and_stays_so_after_a_restart(
    follower: Node, author: Author
) -> None:
    """Tarantool #5140: older entries were reverted too, and rolled-back ones were committed by a restart."""
    fed(follower, author, 6, 6)
    assert [1, 6] == shown(follower)
    for _ in range(2):
        follower.restart()
        places = {place.sequence: place for place in follower.replica.log.producers.places(author.entries[1].producer)}
        fates = [follower.replica.fate(places[sequence]) for sequence in range(4)]
        assert [Fate.CONFIRMED, Fate.ROLLED_BACK, Fate.ROLLED_BACK, Fate.CONFIRMED] == fates
        assert [1, 6] == shown(follower)


def test_l10_the_fate_of_an_entry_is_judged_at_one_s_own_confirmed(follower: Node, author: Author) -> None:
    """The rollback is in the log of a follower that has not heard that it is committed: nothing is known yet."""
    fed(follower, author, 2, 2)
    places = {place.sequence: place for place in follower.replica.log.producers.places(author.entries[1].producer)}

    assert [Fate.CONFIRMED, Fate.UNKNOWN, Fate.UNKNOWN, Fate.UNKNOWN] == [
        follower.replica.fate(places[sequence]) for sequence in range(4)
    ]


# --- truncation --------------------------------------------------------------------------------------------


def test_l9_l5_a_rollback_that_was_cut_away_hides_nothing(follower: Node, author: Author) -> None:
    """The old leader's ROLLBACK reached this node alone; the next leader holds what it covered, and confirms it."""
    fed(follower, author, 2, 2)
    later = author.fork(EntryId(1, 4), 2)
    later.opening(epoch=2)
    later.data()
    fence(follower, 2)
    follower.receive(LEADER, Truncate(2, EntryId(1, 4)))
    assert [] == follower.replica.log.decisions.ranges
    follower.receive(LEADER, append_of(later.entries[-2:], 2, 6, confirmed=6))
    follower.complete()

    assert ([1, 3, 4, 6], []) == (shown(follower), follower.holes())


def test_l9_no_watermark_applies_in_front_of_the_truncation(follower: Node, author: Author) -> None:
    """A watermark of the new leader names offsets that this node's log fills with something else."""
    fed(follower, author, 2, 2)
    later = author.fork(EntryId(1, 4), 2)
    later.opening(epoch=2)
    later.data()
    fence(follower, 2)
    follower.complete()
    follower.take_sent()

    follower.receive(LEADER, Append(2, later.entries[-1].prev, (), 5, 5, 5, 0))
    follower.complete()

    assert (2, 2, [1]) == (follower.replica.commit, follower.replica.confirmed, shown(follower))


# --- snapshots --------------------------------------------------------------------------------------------


def snapshot_of(author: Author, commit: int, confirmed: int, first: int = 0) -> SnapshotDescriptor:
    log = author.log
    log.settle(commit)
    checkpoint = b""
    if first:
        log.first = first
        checkpoint = log.checkpoint().encode()
    return SnapshotDescriptor(2, log.head, log.first, commit, log.bytes_held, checkpoint, confirmed=confirmed)


@pytest.mark.parametrize("chunk", [1, 99], ids=["one by one", "at once"])
@pytest.mark.parametrize("first", [0, 1, 4, 5], ids=["whole", "in front", "inside the range", "behind"])
def test_issue_5167_a_snapshot_shows_nothing_that_is_rolled_back(
    make_node: MakeNode, author: Author, first: int, chunk: int
) -> None:
    """Tarantool #5167: a snapshot held rolled-back data.  Here the entries come along, and their hole too.

    Until the leader speaks, the member shows no more than its entries vouch for (O32b).
    """
    node = make_node(B)
    snapshot = snapshot_of(author, 6, 6, first)
    node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot))
    entries = [entry for entry in author.entries if entry.base >= first]
    for at in range(0, len(entries), chunk):
        node.step(SnapshotChunk(SHARD, 2, tuple(entries[at:at + chunk])))
    node.complete()

    assert [SnapshotInstalled(2, EntryId(1, 6))] == node.take_sent(SnapshotInstalled)
    for _ in range(2):
        assert [] == [base for base in shown(node) if base in (3, 4)]
        node.receive(LEADER, append_of([], 2, 6, prev=EntryId(1, 6), confirmed=6))
        node.complete()
        assert (6, [(3, 4)]) == (node.replica.confirmed, node.holes())
        assert [base for base in (1, 6) if base >= first] == shown(node)
        [place] = [p for p in node.replica.log.producers.places(entries[-1].producer) if p.sequence == 1]
        assert Fate.ROLLED_BACK is node.replica.fate(place)
        node.restart()


def test_issue_5167_a_snapshot_with_an_undecided_rollback_shows_neither_side(
    make_node: MakeNode, author: Author
) -> None:
    """The ROLLBACK is in the log, uncommitted: the new member may be told either way later."""
    for decided in (True, False):
        node = make_node(B)
        node.receive(OPERATOR, InstallSnapshot(2, 20, LEADER, snapshot_of(author, 4 if decided else 2, 2)))
        node.step(SnapshotChunk(SHARD, 2, tuple(author.entries)))
        node.complete()
        assert (0, [], []) == (node.replica.confirmed, node.holes(), shown(node)), "O32b: the opening vouches, no more"
        assert Role.FENCED is node.replica.state.role
        if decided:
            node.receive(LEADER, append_of([], 2, 6, prev=EntryId(1, 6), confirmed=6))
            assert ([(3, 4)], [1, 6]) == (node.holes(), shown(node))
        else:
            fence(node, 3)
            node.receive(LEADER, Truncate(3, EntryId(1, 4)))
            node.complete()
            later = author.fork(EntryId(1, 4), 3)
            later.opening(epoch=3)
            node.receive(LEADER, append_of(later.entries[-1:], 3, 5, confirmed=5))
            node.complete()
            assert ([], [1, 3, 4]) == (node.holes(), shown(node))


def test_l13_a_member_is_not_trimmed_past_what_it_has_confirmed_durably(follower: Node, author: Author) -> None:
    """The leader trims to 6; this node has confirmed 2, and keeps what it may have to judge."""
    fed(follower, author, 6, 2)
    follower.receive(LEADER, append_of([], 1, 6, prev=EntryId(1, 6), confirmed=2, trim=6))
    follower.complete()
    assert 3 == follower.replica.log.first
    effects = follower.receive(LEADER, append_of([], 1, 6, prev=EntryId(1, 6), confirmed=6, trim=6))

    assert Released(SHARD, 6) == effects[0]
    [persist] = [effect for effect in effects if hasattr(effect, "writes")]
    assert follower.state_write() in persist.writes, "confirmed is durable with the trim, in one write"
    follower.complete()
    follower.restart()
    assert (6, 6) == (follower.replica.log.first, follower.replica.confirmed)
    assert not any(isinstance(write, PutEntry) for write in persist.writes)
