"""Signs of life on an idle connection of streams (rule U61)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.upr.silence import ConsumerSilence, Due, MemberSilence


def test_u61_an_idle_member_asks_and_gives_up_without_an_answer() -> None:
    member = MemberSilence(0, 100)
    assert [member.due(now) for now in (0, 99, 100, 150, 199, 200)] == [
        Due.NOTHING, Due.NOTHING, Due.NOOP, Due.NOTHING, Due.NOTHING, Due.DEAD,
    ]


def test_u61_a_member_that_sends_asks_for_nothing() -> None:
    member = MemberSilence(0, 100)
    for now in range(50, 1_000, 50):
        member.sent(now)
        assert member.due(now + 49) is Due.NOTHING


def test_u61_any_message_answers() -> None:
    member = MemberSilence(0, 100)
    assert member.due(100) is Due.NOOP
    member.heard()
    assert (member.due(199), member.due(200)) == (Due.NOTHING, Due.NOOP)
    member.sent(210)
    assert member.due(299) is Due.NOTHING
    assert member.due(300) is Due.DEAD, "messages of the member itself are no answer"


def test_u61_a_consumer_gives_up_after_two_intervals() -> None:
    consumer = ConsumerSilence(0, 100)
    consumer.heard(50)

    assert (consumer.due(249), consumer.due(250)) == (Due.NOTHING, Due.DEAD)


@given(st.lists(st.tuples(st.integers(1, 60), st.booleans()), max_size=60))
def test_u61_two_sides_that_live_never_give_each_other_up(steps: list[tuple[int, bool]]) -> None:
    now = 0
    member, consumer = MemberSilence(0, 100), ConsumerSilence(0, 100)
    for passed, sends in steps:
        now += passed
        found = member.due(now)
        assert found is not Due.DEAD
        if sends:
            member.sent(now)
        if sends or found is Due.NOOP:
            consumer.heard(now)
            member.heard()
        assert consumer.due(now) is Due.NOTHING
        assert member.next_ms >= now
