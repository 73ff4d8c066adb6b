"""Retention: what is removed by age and bytes, when the leader looks, and what stops it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tidemark_core.base.effects import LogReadFailed, Persist, SetTimer, Trace
from tidemark_core.base.ids import NOTHING
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.log import NEVER_MS, Log
from tidemark_core.replication.messages import Abort, Append, Commit, Fetched, Operation, Prepare
from tidemark_core.replication.retention import (
    LOOK_MAX_MS,
    RETENTION_TIMER,
    look_every_ms,
    mark_every_ms,
    retention_point,
)
from tidemark_core.replication.settings import RetentionSettings

from tests.core.support import (
    AT,
    OPERATOR,
    SHARD,
    A,
    Author,
    B,
    C,
    Node,
    ack,
    append_of,
    batch,
    everybody_acks,
    fence,
    lead,
    serving,
)

MIB = 1 << 20
MINUTE = 60_000
HOUR = 60 * MINUTE
LOOK = HOUR // 10
BEGAN = 1_000_000_000_000
KEPT = RetentionSettings(age_ms=HOUR)

MakeNode = Callable[..., Node]


def grown(*entries: tuple[int, int]) -> Log:
    """A log of one record per (logged_ms, payload bytes)."""
    author, log = Author(), Log()
    for logged_ms, size in entries:
        log.append(author.data(payload=bytes(size), logged_ms=logged_ms))
    return log


@pytest.fixture
def kept(make_node: MakeNode) -> Node:
    """`a` leads a, b, c and keeps an hour; everything is acknowledged, the clock stands at BEGAN.

    Its first stretch is the EPOCH_START and the first batch.
    """
    node = make_node()
    node.now_ms = BEGAN
    serving(node)
    node.retain(age_ms=HOUR)
    return node


def add(node: Node, count: int = 1, *, size: int = MIB, every_ms: int = 0, acked: bool = True) -> None:
    """Append batches, each `every_ms` after the one before; by default each is a stretch of its own."""
    for _ in range(count):
        node.now_ms += every_ms
        sequence = node.replica.log.head.offset
        node.append(1000 + sequence, batch(sequence, payload=bytes(size)))
        node.complete()
        if acked:
            everybody_acks(node)


def due(node: Node) -> int | None:
    return node.timers.get((SHARD, RETENTION_TIMER))


def look(node: Node, at_ms: int | None = None) -> list[Any]:
    """Let the clock come to the next look, or say another time, and look."""
    armed = due(node)
    assert armed is not None
    node.now_ms = armed if at_ms is None else at_ms
    effects = node.fire(RETENTION_TIMER)
    node.complete()
    return effects


def first(node: Node) -> int:
    return node.replica.log.first


# --- what is to be removed --------------------------------------------------------------------------------


def test_without_bounds_everything_is_kept() -> None:
    log = grown((0, MIB), (10, MIB), (20, MIB))

    assert 0 == retention_point(log, RetentionSettings(), 1 << 50)
    assert 0 == retention_point(Log(), RetentionSettings(1, 1), 1 << 50)


@pytest.mark.parametrize(("now_ms", "point"), [
    (HOUR, 0), (HOUR + 9, 0), (HOUR + 10, 1), (HOUR + 19, 1), (HOUR + 20, 2), (1 << 50, 2), (0, 0),
])
def test_a_stretch_goes_when_the_mark_behind_it_is_of_age(now_ms: int, point: int) -> None:
    """The newest stretch stays."""
    assert point == retention_point(grown((0, MIB), (10, MIB), (20, MIB)), KEPT, now_ms)


def test_nothing_younger_than_the_age_goes() -> None:
    log = grown(*((each, 100 << 10) for each in range(0, 1000, 7)))
    for now_ms in range(HOUR, HOUR + 1000, 13):
        point = retention_point(log, KEPT, now_ms)
        assert point == 0 or now_ms - 7 * (point - 1) >= HOUR
        assert log.trim_point(point) == point


def test_bytes_go_until_a_sixteenth_is_free() -> None:
    log = grown(*((0, MIB) for _ in range(40)))
    one = log.bytes_total // 40
    settings = RetentionSettings(bytes_max=32 * one)

    assert 10 == retention_point(log, settings, 0)
    log.settle(39)
    log.trim(10)
    assert 30 * one == log.bytes_held
    assert 10 == retention_point(log, settings, 0)


def test_a_log_within_its_bytes_stays_whole() -> None:
    log = grown(*((0, MIB) for _ in range(40)))

    assert 0 == retention_point(log, RetentionSettings(bytes_max=log.bytes_total), 0)
    assert 3 == retention_point(log, RetentionSettings(bytes_max=log.bytes_total - 1), 0)


def test_a_bound_below_one_stretch_keeps_the_newest() -> None:
    assert 2 == retention_point(grown((0, MIB), (0, MIB), (0, MIB)), RetentionSettings(bytes_max=1), 0)


def test_whichever_bound_is_reached_first_removes() -> None:
    log = grown(*((each, MIB) for each in range(10)))
    assert 7 == retention_point(log, RetentionSettings(HOUR, 1 << 40), HOUR + 7)
    assert 9 == retention_point(log, RetentionSettings(HOUR, MIB), HOUR + 7)
    assert 0 == retention_point(log, RetentionSettings(HOUR, 1 << 40), 0)


@pytest.mark.parametrize(("age_ms", "look_ms", "mark_ms"), [
    (0, 10_000, NEVER_MS), (1_000, 10_000, 10_000), (HOUR, LOOK, HOUR // 16), (365 * 24 * HOUR, LOOK_MAX_MS, None),
])
def test_looks_and_marks_come_with_the_age(age_ms: int, look_ms: int, mark_ms: int | None) -> None:
    settings = RetentionSettings(age_ms)

    assert look_ms == look_every_ms(settings, 10_000)
    assert (age_ms // 16 if mark_ms is None else mark_ms) == mark_every_ms(settings, 10_000)


# --- age --------------------------------------------------------------------------------------------------


def test_an_idle_shard_without_anything_to_expire_has_no_timer(kept: Node) -> None:
    assert due(kept) is None
    add(kept, size=10)
    assert due(kept) is None, "one stretch, and it stays"


def test_an_idle_shard_is_looked_at_when_its_oldest_stretch_is_of_age(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)

    assert BEGAN + 2 * MINUTE + HOUR == due(kept)


def test_what_is_of_age_at_two_looks_goes(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    look(kept)
    assert 0 == first(kept), "the first look only notes the time"
    assert BEGAN + 2 * MINUTE + HOUR + LOOK == due(kept)
    look(kept)

    assert 2 == first(kept), "judged by the look before: what follows was of age one minute later"
    assert [2, 3] == [entry.base for entry in kept.stored()]
    look(kept)
    assert 3 == first(kept)
    assert due(kept) is None, "only the newest stretch is left"


def test_a_busy_shard_keeps_its_age_and_not_much_more(kept: Node) -> None:
    """Entries that are small and slow are cut in stretches of a sixteenth of the age."""
    for _ in range(600):
        while (at_ms := due(kept)) is not None and at_ms <= kept.now_ms + MINUTE:
            look(kept)
        kept.now_ms = max(kept.now_ms, BEGAN)
        add(kept, size=10, every_ms=MINUTE)
    log = kept.replica.log
    oldest_ms = kept.now_ms - log.marks[0].logged_ms
    assert HOUR <= oldest_ms <= HOUR + 2 * LOOK + HOUR // 16 + 2 * MINUTE
    assert len(log.marks) <= 24


def test_followers_mark_a_slow_log_as_the_leader_does(make_node: MakeNode) -> None:
    node, author = make_node(B), Author()
    author.opening()
    fence(node, 1)
    node.retain(age_ms=HOUR)
    for number in range(1, 10):
        author.data(logged_ms=number * HOUR // 32)
    node.receive(A, append_of(author.entries, 1))
    node.complete()

    assert [0, 2, 4, 6, 8] == [mark.base for mark in node.replica.log.marks]


def test_a_clock_that_jumps_ahead_has_until_the_next_look_to_come_back(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    year = BEGAN + 365 * 24 * HOUR
    look(kept, year)
    assert 0 == first(kept)
    assert year + LOOK == due(kept)
    look(kept, BEGAN + 10 * MINUTE)
    look(kept, BEGAN + 20 * MINUTE)

    assert 0 == first(kept), "neither look is believed alone"
    assert BEGAN + 2 * MINUTE + HOUR == due(kept)


def test_a_clock_that_stays_ahead_is_believed_at_the_next_look(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    look(kept, BEGAN + 365 * 24 * HOUR)
    look(kept)

    assert 3 == first(kept)


def test_a_clock_set_back_only_delays(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    look(kept)
    look(kept, BEGAN)

    assert 0 == first(kept)


def test_a_new_leadership_looks_once_before_it_removes_anything(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    look(kept)
    head = kept.replica.log.head
    fence(kept, 2)
    assert due(kept) is None, "who does not lead does not look"
    kept.restart()
    kept.now_ms = BEGAN + 365 * 24 * HOUR
    lead(kept, 2, followers=[(B, head), (C, head)])
    everybody_acks(kept)
    assert kept.now_ms + LOOK == due(kept)
    look(kept)
    assert 0 == first(kept)
    look(kept)
    assert 3 == first(kept), "the stretch in front of the EPOCH_START goes when that is of age"


def test_what_was_removed_stays_removed_after_a_restart(kept: Node) -> None:
    add(kept, 4, every_ms=MINUTE)
    look(kept)
    look(kept)
    assert 1 <= first(kept) == kept.stored()[0].base
    kept.restart()

    assert kept.stored()[0].base == first(kept)


def test_reading_below_is_refused(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    look(kept)
    look(kept)

    refused = kept.read_grant(1, position=0)
    assert (Reason.TRIMMED, 2) == (refused.reason, refused.expected)


def test_followers_of_an_idle_shard_are_told(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    look(kept)
    kept.take_sent()
    look(kept)

    assert [(2, ()), (2, ())] == [(sent.trim, sent.entries) for sent in kept.take_sent(Append)]


# --- bytes ------------------------------------------------------------------------------------------------


def test_bytes_are_looked_at_when_a_mark_is_made(make_node: MakeNode) -> None:
    node = make_node()
    serving(node)
    node.retain(bytes_max=4 * MIB)
    for _ in range(20):
        add(node)
        assert node.replica.log.bytes_held <= 5 * MIB
    assert first(node) >= 15
    assert node.stored()[0].base == first(node)


def test_a_smaller_bound_is_in_force_at_the_next_look(make_node: MakeNode) -> None:
    node = make_node()
    serving(node)
    add(node, 10)
    assert due(node) is None
    node.retain(bytes_max=4 * MIB)
    assert node.now_ms + node.limits.retention_look_ms == due(node)
    look(node)

    assert node.replica.log.bytes_held <= 4 * MIB
    assert due(node) is None


def test_no_bound_any_more_means_no_timer(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    effects = kept.retain(age_ms=0)

    assert SetTimer(AT, RETENTION_TIMER, None) in effects
    assert due(kept) is None


# --- what stops it ----------------------------------------------------------------------------------------


def test_issue_281_a_member_that_is_behind_keeps_the_log_and_is_named_once_a_minute(make_node: MakeNode) -> None:
    """Oxia #281: retention never passes what a member still needs."""
    node = make_node()
    serving(node)
    node.retain(bytes_max=2 * MIB)
    for _ in range(8):
        add(node, acked=False)
        ack(node, B)
    assert 0 == first(node)
    blocked = [
        effect.detail for _ in range(8) for effect in look(node)
        if isinstance(effect, Trace) and effect.what == "retention_blocked"
    ]
    assert ["offset 0 is kept, retention ends at 8: c holds up to 0"] * 2 == blocked, "every 10 s, told once a minute"
    ack(node, C)
    look(node)

    assert 8 == first(node)
    assert due(node) is None


def test_a_member_that_never_answered_is_named(make_node: MakeNode) -> None:
    node = make_node()
    lead(node)
    node.retain(bytes_max=MIB)
    for _ in range(3):
        add(node, acked=False)
        ack(node, B)

    assert "offset 0 is kept, retention ends at 3: c has not answered in this epoch" in [
        effect.detail for effect in look(node) if isinstance(effect, Trace)
    ]


def test_issue_281_what_is_not_confirmed_stays(make_node: MakeNode) -> None:
    """Oxia #281."""
    node = make_node()
    serving(node, zones=2, zone_of=(("a", "z"), ("b", "z"), ("c", "z")))
    node.retain(bytes_max=MIB)
    add(node, 3)
    assert (3, 0) == (node.replica.commit, node.replica.confirmed)
    effects = look(node)

    assert 0 == first(node)
    assert Trace(AT, "retention_blocked", "offset 0 is kept, retention ends at 3: confirmed is 0") in effects


@pytest.mark.parametrize("contract", [False, True])
def test_issue_281_nothing_goes_while_members_change(make_node: MakeNode, contract: bool) -> None:
    """Oxia #281, H6: whoever joins is given the log, whoever left may be given its place back."""
    node = make_node()
    serving(node)
    add(node, 4)
    node.receive(OPERATOR, Prepare(2, 20, Operation.CONTRACT, C, None))
    node.complete()
    if contract:
        everybody_acks(node)
        node.receive(OPERATOR, Commit(2, 20, Operation.CONTRACT, (A, B), C, None, NOTHING))
        node.complete()
    node.retain(bytes_max=MIB)
    effects = look(node)
    assert 0 == first(node)
    assert ["the ensemble is changing"] == [
        effect.detail.split(": ")[1] for effect in effects if isinstance(effect, Trace)
    ]
    assert not [effect for effect in effects if isinstance(effect, Persist)]
    node.receive(OPERATOR, Abort(2, 20))
    everybody_acks(node)
    look(node)
    assert 5 == first(node), "the stretch of the change's NOOP is the newest"


def test_a_repair_that_comes_after_the_trim_does_not_bring_the_entry_back(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    damaged = kept.stored()[1]
    kept.step(LogReadFailed(SHARD, None, damaged.base))
    look(kept)
    look(kept)
    assert damaged.base < first(kept)
    kept.receive(B, Fetched(damaged.base, damaged))
    kept.complete()

    assert [2, 3] == [entry.base for entry in kept.stored()]


def test_status_says_what_is_kept(kept: Node) -> None:
    add(kept, 3, every_ms=MINUTE)
    look(kept)
    look(kept)

    assert kept.core is not None
    view = kept.core.log.status(SHARD)
    assert (2, BEGAN + 2 * MINUTE) == (view["first"], view["oldest_logged_ms"])
    assert {"age_ms": HOUR, "bytes_max": 0, "bytes_hard": 0} == view["retention"]
