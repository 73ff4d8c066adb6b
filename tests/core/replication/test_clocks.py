"""Rules C2, C3: what a leader makes of the clocks of its members."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest
from tidemark_core.base.effects import ClockStepped
from tidemark_core.base.ids import NOTHING, Member
from tidemark_core.replication.clients import CommitPosition
from tidemark_core.replication.clocks import LEAP_MS, Clocks
from tidemark_core.replication.messages import BecomeLeader, Fenced
from tidemark_core.replication.retention import RETENTION_TIMER

from tests.core.support import OPERATOR, SHARD, A, B, C, Node, ack, batch, fence, lead, serving

DAY = 86_400_000
HOUR = 3_600_000
BEGAN = 1_700_000_000_000
D, E = Member("d", "d1"), Member("e", "e1")

MakeNode = Callable[..., Node]


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    node = make_node()
    node.now_ms = BEGAN
    return node


def clocks_of(node: Node, ensemble: tuple[Member, ...] = (A, B, C), ahead: int = 0, **others: int) -> Clocks:
    """Clocks of a leadership of `a`, whose shell is `ahead` of the true time as each of the others is."""
    if not node.core or SHARD not in node.core.log.shards:
        fence(node, 1)
        node.complete()
    node.replica.update(ensemble=ensemble)
    clocks = Clocks(node.replica, node.now_ms + ahead)
    names = {member.node: member for member in ensemble}
    for name, other in others.items():
        clocks.heard(names[name], node.now_ms + other, node.now_ms + ahead)
    return clocks


# --- C2: what is of age -----------------------------------------------------------------------------------


def test_c2_without_a_majority_nothing_expires(node: Node) -> None:
    assert clocks_of(node).agreed_ms(BEGAN) is None
    assert clocks_of(node, (A, B, C, D, E), b=0).agreed_ms(BEGAN) is None
    assert BEGAN == clocks_of(node, b=0).agreed_ms(BEGAN)
    assert BEGAN == clocks_of(node, (A,)).agreed_ms(BEGAN), "the only member is a majority"


def test_c2_a_member_of_an_older_build_is_not_heard(node: Node) -> None:
    clocks = clocks_of(node)
    clocks.heard(B, None, BEGAN)

    assert clocks.agreed_ms(BEGAN) is None


def test_c2_who_is_no_member_does_not_count(node: Node) -> None:
    clocks = clocks_of(node, (A, B, C, D), d=0)
    node.replica.update(ensemble=(A, B, C))

    assert clocks.agreed_ms(BEGAN) is None


def test_c2_the_median_of_every_subset_is_between_sane_clocks(node: Node) -> None:
    """Where a majority of the clocks heard is right, nothing expires by a clock that is days ahead."""
    for ensemble, wrong in (((A, B, C), 1), ((A, B, C, D, E), 2)):
        for bad in combinations(ensemble, wrong):
            for off in (8 * DAY, -8 * DAY):
                skews = {each.node: off if each in bad else 7 for each in ensemble}
                heard = {name: skew for name, skew in skews.items() if name != "a"}
                clocks = clocks_of(node, ensemble, skews["a"], **heard)
                assert BEGAN + 7 == clocks.agreed_ms(BEGAN + skews["a"])
                for some in combinations(heard, len(ensemble) // 2):
                    few = clocks_of(node, ensemble, skews["a"], **{name: heard[name] for name in some})
                    agreed = few.agreed_ms(BEGAN + skews["a"])
                    assert agreed is not None
                    wrong_heard = len({each.node for each in bad} & {"a", *some})
                    assert agreed <= BEGAN + 7 or wrong_heard * 2 > len(some) + 1, "a majority of what was heard"


def test_c2_a_late_answer_makes_no_clock_slow(node: Node) -> None:
    clocks = clocks_of(node, ahead=8 * DAY, b=0, c=0)
    clocks.heard(B, BEGAN, BEGAN + 8 * DAY + 5_000)
    clocks.heard(C, BEGAN, BEGAN + 8 * DAY + 5_000)

    assert BEGAN + 5_000 == clocks.agreed_ms(BEGAN + 8 * DAY + 5_000)
    clocks.heard(B, BEGAN - HOUR, BEGAN + 8 * DAY)
    clocks.heard(C, BEGAN - HOUR, BEGAN + 8 * DAY)
    assert BEGAN - HOUR == clocks.agreed_ms(BEGAN + 8 * DAY), "a clock that was set back is believed"


def test_c2_a_step_of_our_own_clock_moves_no_other(node: Node) -> None:
    """The clocks that were heard go on with the time that passes, not with our clock."""
    leader = serving(node)
    node.now_ms += 8 * DAY
    node.step(ClockStepped(8 * DAY))

    assert BEGAN == leader.clocks.agreed_ms(node.now_ms)


def test_c2_a_clock_that_is_slewed_counts_as_the_wall_clock(node: Node) -> None:
    """Put right after it was eight days ahead: alone, this node knows the time; its acknowledgements say it."""
    node.step(ClockStepped(0, 8 * DAY))
    lead(node, 1, (A,), [])

    assert BEGAN - 8 * DAY == node.leader.clocks.agreed_ms(node.now_ms)


def test_c2_answers_carry_the_clock(make_node: MakeNode) -> None:
    follower = make_node(B)
    follower.now_ms = BEGAN
    follower.step(ClockStepped(0, HOUR))
    fence(follower, 1)
    follower.complete()

    (fenced,) = follower.take_sent(Fenced)
    assert BEGAN - HOUR == fenced.clock_ms


def test_c2_one_wrong_clock_expires_nothing(node: Node) -> None:
    """The leader boots eight days ahead: its first looks and many more remove nothing."""
    leader = serving(node)
    node.retain(age_ms=7 * DAY)
    for sequence in range(4):
        node.append(1000 + sequence, batch(sequence, payload=bytes(1 << 20)))
        node.complete()
        for other in (B, C):
            ack(node, other)
    assert len(node.replica.log.marks) >= 4
    leader.clocks = Clocks(node.replica, node.now_ms + 8 * DAY)
    for other in (B, C):
        leader.clocks.heard(other, node.now_ms, node.now_ms + 8 * DAY)
    node.now_ms += 8 * DAY
    leader.retention.on_settings(node.now_ms)
    for _ in range(12):
        node.now_ms += HOUR
        node.fire(RETENTION_TIMER)
        node.complete()
    assert 0 == node.replica.log.first

    node.now_ms += 8 * DAY
    for _ in range(2):
        node.fire(RETENTION_TIMER)
        node.complete()
    assert node.replica.log.first > 0, "what is of age by the clocks of all goes"


# --- C3: the log's clock ----------------------------------------------------------------------------------


def test_c3_a_leader_days_ahead_stamps_by_the_median(make_node: MakeNode) -> None:
    node = make_node()
    node.now_ms = BEGAN + 8 * DAY
    fence(node, 1)
    node.complete()
    node.receive(OPERATOR, BecomeLeader(
        1, 10, (A, B, C), ((B, NOTHING), (C, NOTHING)), clocks=((B, BEGAN), (C, BEGAN + 3)),
    ))
    node.complete()

    assert BEGAN + 3 == node.replica.log.logged_ms


def test_c3_a_leader_within_a_minute_stamps_by_its_own_clock(node: Node) -> None:
    assert BEGAN + 50_000 == clocks_of(node, ahead=50_000, b=0, c=0).stamp(BEGAN + 50_000)
    assert BEGAN == clocks_of(node, ahead=70_000, b=0, c=0).stamp(BEGAN + 70_000)


def test_c3_without_a_majority_the_log_does_not_leap(node: Node) -> None:
    """Clocks of older builds are not heard: an hour beyond what has passed is the bound."""
    serving(node)
    clocks = Clocks(node.replica, node.now_ms)

    assert BEGAN + LEAP_MS == clocks.next_stamp(BEGAN + LEAP_MS), "passed time counts"
    clocks = Clocks(node.replica, BEGAN + 8 * DAY)
    assert BEGAN == clocks.next_stamp(BEGAN + 8 * DAY)
    assert BEGAN + 1_000 == clocks.stamp(BEGAN + 8 * DAY + 1_000), "only the time that has passed is sure"


def test_c3_a_leader_days_behind_does_not_stop_the_log(node: Node) -> None:
    """Entries that were stamped too old would expire too early."""
    serving(node)
    behind = BEGAN - 8 * DAY
    node.now_ms = BEGAN + 5_000
    all_heard = clocks_of(node, ahead=-8 * DAY - 5_000, b=0, c=0)
    one_heard = clocks_of(node, ahead=-8 * DAY - 5_000, b=0)

    assert BEGAN + 5_000 == all_heard.stamp(behind)
    assert BEGAN + 5_000 == one_heard.stamp(behind)


def test_c3_of_two_clocks_that_differ_none_moves_the_log_far(node: Node) -> None:
    serving(node)
    node.now_ms = BEGAN + 5_000
    ahead = clocks_of(node, ahead=8 * DAY, b=0)
    right = clocks_of(node, b=-8 * DAY)

    assert BEGAN + 5_000 == ahead.stamp(node.now_ms + 8 * DAY)
    assert BEGAN + 5_000 == right.stamp(node.now_ms)


def test_c3_the_log_never_goes_back(node: Node) -> None:
    serving(node)
    clocks = clocks_of(node, ahead=-HOUR, b=-HOUR, c=-HOUR)

    assert BEGAN == clocks.stamp(BEGAN - HOUR)


def test_c3_a_lease_runs_by_the_clock_that_stamps(node: Node) -> None:
    """A subscription is not forgotten because the leader's clock is days ahead."""
    leader = serving(node)
    node.step(CommitPosition(SHARD, 7, "s", 1, HOUR))
    node.complete()
    for other in (B, C):
        ack(node, other)
    node.now_ms += 8 * DAY
    node.step(ClockStepped(8 * DAY))

    assert leader.clocks.next_stamp(node.now_ms) == BEGAN
    assert leader.retention.pinned(node.now_ms) == 1
