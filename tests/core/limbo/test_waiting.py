"""The leader's queue alone: the walk (L3), order of answers (L14, L16, L17), rollbacks (L7, L8), deadlines (F20)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidemark_core.base.entry import Durability
from tidemark_core.limbo.decisions import Range
from tidemark_core.limbo.waiting import Answer, Item, Limbo, Verdict, Waiter

QUORUM, LOCAL, COMMIT = Durability.QUORUM, Durability.LOCAL, Durability.COMMIT
CONFIRMED, ROLLED_BACK, UNKNOWN = Verdict.CONFIRMED, Verdict.ROLLED_BACK, Verdict.UNKNOWN
FAR = 1 << 40


def item(base: int, durability: Durability = QUORUM, *, count: int = 1, deadline_ms: int = FAR, size: int = 10) -> Item:
    """Return an entry whose waiter's request is its base."""
    return Item(
        base, base + count - 1, count, 1, durability, size, 0, deadline_ms, b"p", base, [Waiter(base, deadline_ms)]
    )


def told(answers: Iterable[Answer]) -> list[tuple[int, Verdict]]:
    """Return who is told what, in order."""
    return [(waiter.request, answer.verdict) for answer in answers for waiter in answer.waiters]


def limbo_of(*durabilities: Durability, **options: Any) -> Limbo:
    """Return the queue of a leader whose EPOCH_START, at 0, is confirmed; entries take the offsets from 1 on."""
    limbo = Limbo(0, -1)
    limbo.advance(0, 0, 0)
    for base, durability in enumerate(durabilities, 1):
        limbo.push(item(base, durability, **options))
    return limbo


# --- the walk ---------------------------------------------------------------------------------------------


def test_f8_a_fresh_queue_is_empty_and_nobody_waits() -> None:
    limbo = limbo_of()

    assert (0, 0, [], None, -1) == (len(limbo), limbo.bytes, list(limbo), limbo.next_deadline(), limbo.pending_from)
    assert limbo.oldest_asked() is None


def test_l3_before_the_epoch_start_is_committed_nothing_is_confirmed() -> None:
    """However many members hold them: acknowledgements of older epochs prove nothing (Figure 8)."""
    limbo = Limbo(5, 2)
    limbo.push(item(6))

    assert [] == limbo.advance(4, 6, 6)
    assert 2 == limbo.confirmed
    assert [] == limbo.advance(5, 4, 6)
    assert 5 == limbo.confirmed, "EPOCH_START passes at commit, and the synchro quorum is not asked for it"


def test_l3_a_quorum_entry_passes_at_the_synchro_quorum_and_never_beyond_commit() -> None:
    limbo = limbo_of(QUORUM, QUORUM)

    assert [] == limbo.advance(2, 0, 2)
    assert 0 == limbo.confirmed
    assert [(1, CONFIRMED)] == told(limbo.advance(2, 1, 2))
    assert 1 == limbo.confirmed
    assert [] == limbo.advance(1, 9, 2)
    assert [(2, CONFIRMED)] == told(limbo.advance(2, 9, 2))
    assert (2, 0, 0) == (limbo.confirmed, len(limbo), limbo.bytes)


def test_l3_an_entry_passes_whole_or_not_at_all() -> None:
    limbo = limbo_of()
    limbo.push(item(1, count=3))

    for commit, synchro in ((2, 9), (9, 2)):
        assert [] == limbo.advance(commit, synchro, 9)
        assert 0 == limbo.confirmed
    assert [(1, CONFIRMED)] == told(limbo.advance(3, 3, 3))
    assert 3 == limbo.confirmed


@pytest.mark.parametrize("durability", [LOCAL, COMMIT])
def test_l16_f7_others_pass_at_commit_and_wait_behind_an_older_quorum_entry(durability: Durability) -> None:
    """COMMIT waives the synchro quorum for itself only, and LOCAL never becomes an entry that waits for a quorum."""
    limbo = limbo_of(durability, QUORUM, durability)

    assert [(1, CONFIRMED)] == told(limbo.advance(3, 0, -1))
    assert (1, 2) == (limbo.confirmed, len(limbo))
    assert [(2, CONFIRMED), (3, CONFIRMED)] == told(limbo.advance(3, 2, -1)), "3 without a quorum of its own (F17)"


def test_l3_control_entries_between_pass_at_commit() -> None:
    """CONFIRM records and NOOPs take offsets and no place in the queue."""
    limbo = limbo_of()
    limbo.push(item(3))

    assert [] == limbo.advance(2, -1, 9)
    assert 2 == limbo.confirmed
    assert [] == limbo.advance(5, 2, 9)
    assert 2 == limbo.confirmed, "and stop in front of a QUORUM entry"
    limbo.advance(5, 3, 9)
    assert 5 == limbo.confirmed


def test_l13_f14_confirmed_never_falls() -> None:
    limbo = limbo_of(QUORUM, QUORUM)
    limbo.advance(2, 2, 2)

    assert [] == limbo.advance(1, 0, 2)
    assert 2 == limbo.confirmed
    limbo.push(item(3))
    assert [] == limbo.advance(2, -1, 2)
    assert 2 == limbo.confirmed


# --- LOCAL ------------------------------------------------------------------------------------------------


def test_f8_l14_a_local_entry_in_an_empty_queue_is_told_when_it_is_on_the_leader_s_disk() -> None:
    limbo = limbo_of(LOCAL, LOCAL)

    assert [] == limbo.advance(0, 0, 0)
    assert [(1, Verdict.LOCAL)] == told(limbo.advance(0, 0, 1))
    assert (0, 2, 20) == (limbo.confirmed, len(limbo), limbo.bytes), "told, and seen by nobody yet"
    assert [(2, Verdict.LOCAL)] == told(limbo.advance(0, 0, 2))
    assert [] == limbo.advance(2, 2, 2)
    assert (2, 0) == (limbo.confirmed, len(limbo)), "told once"


def test_l14_f7_a_local_entry_is_not_told_past_an_undecided_quorum_entry() -> None:
    limbo = limbo_of(LOCAL, QUORUM, LOCAL)

    assert [(1, Verdict.LOCAL)] == told(limbo.advance(0, 0, 3))
    assert [] == limbo.advance(1, 1, 3)
    assert [(2, CONFIRMED), (3, Verdict.LOCAL)] == told(limbo.advance(2, 2, 3)), "behind it, at once"


def test_l14_a_local_entry_is_not_told_before_the_epoch_start_is_confirmed() -> None:
    limbo = Limbo(5, 2)
    limbo.push(item(6, LOCAL))

    assert [] == limbo.advance(4, 4, 6)
    assert [(6, Verdict.LOCAL)] == told(limbo.advance(5, 5, 6))


def test_l17_a_local_entry_waits_for_an_older_answer_whatever_its_level() -> None:
    limbo = limbo_of(COMMIT, LOCAL)

    assert [] == limbo.advance(0, 0, 2)
    assert [(1, CONFIRMED), (2, Verdict.LOCAL)] == told(limbo.advance(1, 1, 2))


def test_l14_the_answer_of_a_local_entry_that_is_confirmed_first_says_so() -> None:
    """A majority of followers may hold it before the leader's own disk does."""
    limbo = limbo_of(LOCAL)

    assert [(1, CONFIRMED)] == told(limbo.advance(1, 1, 0))


# --- order of answers -------------------------------------------------------------------------------------


def test_l17_successes_leave_oldest_first_and_each_request_once() -> None:
    limbo = limbo_of(QUORUM, LOCAL, COMMIT, QUORUM)

    assert [(base, CONFIRMED) for base in (1, 2, 3, 4)] == told(limbo.advance(4, 4, 4))
    assert [] == limbo.advance(9, 9, 9)


def test_l17_f24_a_rollback_leaves_newest_first_behind_older_successes() -> None:
    limbo = limbo_of(COMMIT, LOCAL, QUORUM, LOCAL, COMMIT, QUORUM)
    limbo.cover(Range(3, 7))
    limbo.push(item(8, COMMIT))

    answers = told(limbo.advance(8, 0, 0))

    assert [(1, CONFIRMED), (2, CONFIRMED)] == answers[:2]
    assert [(base, ROLLED_BACK) for base in (6, 5, 4, 3)] == answers[2:6]
    assert [(8, CONFIRMED)] == answers[6:]


def test_l17_two_rollbacks_leave_in_log_order_with_what_lies_between_them() -> None:
    limbo = limbo_of(QUORUM)
    limbo.cover(Range(1, 2))
    limbo.push(item(3, COMMIT))
    limbo.push(item(4))
    limbo.cover(Range(4, 5))

    assert [(1, ROLLED_BACK), (3, CONFIRMED), (4, ROLLED_BACK)] == told(limbo.advance(5, 0, 0))
    assert (5, 2) == (limbo.confirmed, limbo.rollbacks)


# --- rolling back -----------------------------------------------------------------------------------------


def test_l3_l8_confirmed_stops_in_front_of_a_rollback_until_it_is_committed_then_jumps_to_it() -> None:
    limbo = limbo_of(COMMIT, QUORUM, LOCAL)
    limbo.cover(Range(2, 4))

    for commit in (1, 2, 3):
        limbo.advance(commit, 9, 9)
        assert 1 == limbo.confirmed
    assert 2 == limbo.pending_from
    assert [(3, ROLLED_BACK), (2, ROLLED_BACK)] == told(limbo.advance(4, -1, -1))
    assert (4, -1, 0, 0) == (limbo.confirmed, limbo.pending_from, len(limbo), limbo.bytes)


def test_issue_13085_l8_a_decisive_acknowledgement_during_the_write_of_the_rollback_changes_nothing() -> None:
    """Tarantool #13085: the late ack confirmed what the ROLLBACK being written takes back."""
    limbo = limbo_of(QUORUM, QUORUM)
    limbo.cover(Range(1, 3))

    assert [] == limbo.advance(2, 2, 2)
    assert 0 == limbo.confirmed
    assert [(2, ROLLED_BACK), (1, ROLLED_BACK)] == told(limbo.advance(3, 3, 3))


def test_issue_5874_l7_a_rollback_over_a_range_of_all_levels_is_whole() -> None:
    """Tarantool #5874: a rollback of several statements was applied in part where some were not synchronous."""
    limbo = limbo_of(LOCAL, QUORUM, LOCAL, COMMIT, QUORUM)
    limbo.advance(1, 1, 5)
    limbo.cover(Range(2, 6))

    assert [(base, ROLLED_BACK) for base in (5, 4, 3, 2)] == told(limbo.advance(6, 0, 9))
    assert 4 == limbo.rollbacks


def test_l7_f21_the_oldest_undecided_quorum_entry_is_the_only_one_that_may_time_out() -> None:
    limbo = limbo_of(LOCAL, QUORUM, COMMIT, QUORUM)
    first = limbo.oldest_asked()
    assert first is not None and 2 == first.base
    limbo.advance(2, 2, 0)
    second = limbo.oldest_asked()
    assert second is not None and 4 == second.base
    limbo.cover(Range(4, 5))
    assert limbo.oldest_asked() is None, "what is covered is decided as far as this leader goes"
    limbo.push(item(6))
    third = limbo.oldest_asked()
    assert third is not None and 6 == third.base


def test_l7_a_rollback_below_confirmed_is_a_bug() -> None:
    limbo = limbo_of(QUORUM, QUORUM)
    limbo.advance(1, 1, 1)

    with pytest.raises(AssertionError, match="L7"):
        limbo.cover(Range(1, 3))


def test_l15_a_local_entry_that_was_told_is_never_rolled_back() -> None:
    """Only what stands behind an undecided QUORUM entry is, and nobody was told of that; else it is a bug."""
    limbo = limbo_of(LOCAL, QUORUM, LOCAL)
    limbo.advance(0, 0, 3)
    limbo.cover(Range(2, 4))
    [first, *_] = limbo
    assert first.told and first.covered is None

    broken = limbo_of(LOCAL, QUORUM)
    broken.advance(0, 0, 2)
    with pytest.raises(AssertionError, match="L15"):
        broken.cover(Range(1, 3))


def test_l14_behind_a_rollback_that_is_not_decided_a_local_entry_is_told() -> None:
    """The entries in front of it are covered: no undecided uncovered QUORUM entry precedes it."""
    limbo = limbo_of(QUORUM)
    limbo.cover(Range(1, 2))
    limbo.push(item(3, LOCAL))

    assert [(3, Verdict.LOCAL)] == told(limbo.advance(0, 0, 3))
    assert 0 == limbo.confirmed
    assert [(1, ROLLED_BACK)] == told(limbo.advance(3, 3, 3))
    assert 3 == limbo.confirmed


def test_immediate_tells_of_a_rollback_on_this_disk_alone_newest_first_and_once() -> None:
    limbo = limbo_of(QUORUM, LOCAL)
    limbo.cover(Range(1, 3))

    assert [] == limbo.rolled_back_here(2)
    assert [(2, ROLLED_BACK), (1, ROLLED_BACK)] == told(limbo.rolled_back_here(3))
    assert [] == limbo.rolled_back_here(3)
    assert [] == limbo.advance(3, 3, 3), "and not again when it is committed"
    assert 3 == limbo.confirmed


# --- deadlines --------------------------------------------------------------------------------------------


def test_f20_whoever_has_waited_long_enough_is_told_that_the_outcome_is_unknown() -> None:
    limbo = limbo_of(QUORUM, COMMIT, deadline_ms=100)

    assert [] == limbo.expire(99)
    [first, _] = limbo
    limbo.wait(first, Waiter(11, 100))
    assert [(1, UNKNOWN), (11, UNKNOWN), (2, UNKNOWN)] == told(limbo.expire(100))
    assert 3 == limbo.timeouts, "counted by caller"
    assert [] == limbo.expire(200)
    assert [] == limbo.advance(2, 2, 2), "and is not told again"
    assert 2 == limbo.confirmed


def test_l17_unknown_may_come_before_everything_else() -> None:
    limbo = limbo_of(QUORUM, QUORUM)
    [_, newer] = limbo
    newer.waiters[0] = Waiter(2, 50)

    assert [(2, UNKNOWN)] == told(limbo.expire(60))
    assert [(1, CONFIRMED)] == told(limbo.advance(2, 2, 2))


def test_f20_covered_entries_keep_their_deadline() -> None:
    limbo = limbo_of(QUORUM, QUORUM, deadline_ms=100)
    limbo.cover(Range(1, 3))

    assert [(1, UNKNOWN), (2, UNKNOWN)] == told(limbo.expire(100))
    assert [] == limbo.advance(3, 3, 3)
    assert 2 == limbo.rollbacks


def test_f20_the_next_deadline_is_that_of_the_first_who_waits_or_of_the_entry_that_may_time_out() -> None:
    limbo = limbo_of()
    limbo.push(item(1, LOCAL, deadline_ms=70))
    limbo.push(item(2, QUORUM, deadline_ms=50))
    limbo.push(item(3, QUORUM, deadline_ms=90))

    assert 50 == limbo.next_deadline()
    limbo.expire(60)
    assert 50 == limbo.next_deadline(), "its caller was told; its rollback is still to be written"
    limbo.cover(Range(2, 4))
    assert 70 == limbo.next_deadline()
    limbo.expire(70)
    assert 90 == limbo.next_deadline()
    limbo.expire(90)
    assert limbo.next_deadline() is None


def test_an_entry_whose_caller_gave_up_is_waited_for_no_longer_and_confirmed_all_the_same() -> None:
    limbo = limbo_of(COMMIT, deadline_ms=10)
    limbo.expire(10)

    assert limbo.next_deadline() is None
    assert [] == limbo.advance(1, 1, 1)
    assert (1, 0) == (limbo.confirmed, len(limbo))


# --- more than one caller ---------------------------------------------------------------------------------


def test_l19_everybody_who_waits_for_one_entry_is_told_the_same() -> None:
    limbo = limbo_of(QUORUM)
    found = limbo.find(1)
    assert found is not None
    limbo.wait(found, Waiter(11, FAR))

    assert [(1, CONFIRMED), (11, CONFIRMED)] == told(limbo.advance(1, 1, 1))
    assert limbo.find(1) is None


def test_whoever_asks_for_the_outcome_waits_past_local() -> None:
    limbo = limbo_of(LOCAL)
    [entry] = limbo
    limbo.wait(entry, Waiter(11, 100, final=True))
    assert [(1, Verdict.LOCAL)] == told(limbo.advance(0, 0, 1))
    late = limbo.find(1)
    assert late is not None and late.told
    limbo.wait(late, Waiter(12, FAR, final=True))
    limbo.wait(late, Waiter(13, FAR, final=True))

    assert 100 == limbo.next_deadline()
    assert [(11, UNKNOWN)] == told(limbo.expire(100))
    assert [(12, CONFIRMED), (13, CONFIRMED)] == told(limbo.advance(1, 1, 1))
    assert limbo.next_deadline() is None
    assert [] == limbo.everybody()


def test_l6_an_inherited_entry_is_decided_by_the_epoch_start_with_the_answers_in_log_order() -> None:
    """Inherited entries are not in the queue; callers may wait for them all the same, one of them rolled back."""
    limbo = Limbo(5, 0)
    limbo.push(item(6))
    for base, covered in ((3, None), (1, None), (2, Range(2, 3))):
        inherited = item(base)
        inherited.covered = covered
        limbo.inherit(inherited)

    assert limbo.find(2) is not None
    assert [] == limbo.advance(4, 4, 4)
    assert [(1, CONFIRMED), (2, ROLLED_BACK), (3, CONFIRMED)] == told(limbo.advance(5, 5, 5))
    assert (5, 0) == (limbo.confirmed, limbo.rollbacks), "not a rollback of this leadership"
    assert [6] == [entry.base for entry in limbo]


def test_issue_7253_when_the_leadership_ends_everybody_is_let_go_once() -> None:
    """Tarantool #7253: a committing caller hung when the term changed."""
    limbo = limbo_of(LOCAL, QUORUM, QUORUM)
    limbo.advance(0, 0, 3)
    [first, *_] = limbo
    limbo.wait(first, Waiter(11, FAR, final=True))
    limbo.cover(Range(2, 4))
    limbo.push(item(5))

    assert [2, 3, 5, 11] == sorted(limbo.everybody())
    assert [] == limbo.everybody()
    assert limbo.next_deadline() == FAR, "the entry's own deadline; nobody's"


# --- against a model ----------------------------------------------------------------------------------------


@dataclass
class Model:
    """The rules as slowly as they can be written down: one offset at a time, answers judged from a flat list."""

    opening: int = 0
    confirmed: int = -1
    entries: list[Item] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    answered: dict[int, Verdict] = field(default_factory=dict)

    def walk(self, commit: int, synchro: int) -> None:
        if commit < self.opening:
            return
        self.confirmed = max(self.confirmed, self.opening)
        while self.confirmed < commit:
            at = self.confirmed + 1
            found = next((found for found in self.ranges if found.first == at), None)
            entry = next((entry for entry in self.entries if entry.base == at), None)
            if found is not None:
                if found.at > commit:
                    return
                self.confirmed = found.at
            elif entry is None:
                self.confirmed = at
            elif entry.last > commit or (entry.durability is QUORUM and entry.last > synchro):
                return
            else:
                self.confirmed = entry.last

    def covering(self, entry: Item) -> Range | None:
        return next((found for found in self.ranges if found.first <= entry.base < found.at), None)

    def due(self, durable: int) -> dict[int, Verdict]:
        """Return what everybody is to have been told by now."""
        due = dict(self.answered)
        blocked = self.confirmed < self.opening
        for entry in self.entries:
            found = self.covering(entry)
            if found is not None:
                if found.at <= self.confirmed:
                    due.setdefault(entry.base, ROLLED_BACK)
            elif entry.last <= self.confirmed:
                due.setdefault(entry.base, CONFIRMED)
            elif entry.durability is LOCAL and entry.last <= durable and not blocked:
                due.setdefault(entry.base, Verdict.LOCAL)
            else:
                blocked = True
        return due


STEP = st.one_of(
    st.tuples(st.just("push"), st.sampled_from([QUORUM, QUORUM, LOCAL, COMMIT]), st.integers(1, 3)),
    st.tuples(st.just("control"), st.none(), st.just(1)),
    st.tuples(st.just("ack"), st.sampled_from(["commit", "synchro", "durable"]), st.integers(0, 8)),
    st.tuples(st.just("quorum"), st.none(), st.integers(0, 8)),
    st.tuples(st.just("cover"), st.none(), st.just(1)),
    st.tuples(st.just("expire"), st.none(), st.integers(1, 60)),
)


@given(st.integers(0, 4), st.lists(STEP, max_size=60))
def test_l3_l8_l14_l17_the_queue_does_what_the_rules_say(opening: int, story: list[tuple[str, Any, int]]) -> None:
    """Whatever is appended, acknowledged, lowered, rolled back and timed out, in whatever order."""
    limbo, model = Limbo(opening, -1), Model(opening)
    head = opening
    marks = {"commit": -1, "synchro": -1, "durable": -1}
    now = 0
    for what, how, number in story:
        answers: list[tuple[int, Verdict]] = []
        match what:
            case "push":
                entry = item(head + 1, how, count=number, deadline_ms=now + 100)
                limbo.push(entry)
                model.entries.append(item(head + 1, how, count=number))
                head += number
            case "control":
                head += 1
            case "ack":
                marks[how] = min(head, marks[how] + number)
            case "quorum":   # the formula or the ensemble changed: the reach of the quorum falls, commit does not
                marks["synchro"] = max(-1, marks["synchro"] - number)
            case "cover":
                oldest = limbo.oldest_asked()
                if oldest is not None and limbo.confirmed >= opening:
                    head += 1
                    limbo.cover(Range(oldest.base, head))
                    model.ranges.append(Range(oldest.base, head))
            case "expire":
                now += number
                answers = told(limbo.expire(now))
                assert all(verdict is UNKNOWN for _, verdict in answers)
                model.answered.update(answers)
        if what != "expire":
            answers = told(limbo.advance(marks["commit"], marks["synchro"], marks["durable"]))
            model.walk(marks["commit"], marks["synchro"])
            due = model.due(marks["durable"])
            assert {request: due[request] for request in due.keys() - model.answered.keys()} == dict(answers)
            assert len(answers) == len(dict(answers)), "each is told once"
            model.answered = due
            check_order([request for request, verdict in answers if verdict is not ROLLED_BACK])
            for found in model.ranges:
                inside = [request for request, _ in answers if found.first <= request < found.at]
                check_order(inside[::-1])
        assert model.confirmed == limbo.confirmed
        assert [entry.base for entry in model.entries if entry.last > model.confirmed] == [e.base for e in limbo]
        assert limbo.bytes == sum(entry.bytes for entry in limbo)
        undecided = [e.base for e in model.entries if e.durability is QUORUM and e.last > model.confirmed]
        uncovered = [e for e in model.entries if e.base in undecided and model.covering(e) is None]
        oldest = limbo.oldest_asked()
        assert (uncovered[0].base if uncovered else None) == (oldest.base if oldest else None)
        pending = [found.first for found in model.ranges if found.at > model.confirmed]
        assert (pending[0] if pending else -1) == limbo.pending_from


def check_order(requests: list[int]) -> None:
    assert sorted(requests) == requests, f"L17: out of order: {requests}"


def test_the_walk_is_linear_in_what_it_passes() -> None:
    """Ten thousand entries are looked at once each, however they are confirmed."""
    looked: list[int] = []

    class Watched(Item):
        @property
        def last(self) -> int:  # type: ignore[override]
            looked.append(self.base)
            return self.base

        @last.setter
        def last(self, value: int) -> None:
            pass

    def count(steps: Callable[[Limbo], None]) -> int:
        limbo = limbo_of()
        for base in range(1, 1001):
            limbo.push(Watched(base, base, 1, 1, QUORUM, 1, 0, FAR, b"p", base, [Waiter(base, FAR)]))
        looked.clear()
        steps(limbo)
        assert 0 == len(limbo)
        return len(looked)

    def one_by_one(limbo: Limbo) -> None:
        for commit in range(1, 1001):
            limbo.advance(commit, commit, commit)

    assert 1000 <= count(lambda limbo: list(limbo.advance(1000, 1000, 1000))) <= 8 * 1000
    assert 1000 <= count(one_by_one) <= 12 * 1000
