"""Barriers: vectors of read indexes at the consumer, cookies at the member (rules U68, U69)."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest
from tidemark_core.base.errors import LocalMisuse
from tidemark_core.base.ids import ShardId, shard_id
from tidemark_core.upr import barriers as module
from tidemark_core.upr.barriers import (
    OUTSTANDING_MAX,
    AskReadIndex,
    BarrierRefused,
    Barriers,
    DuplicateCookie,
    NotCovered,
    Return,
    Send,
    TooManyBarriers,
)
from tidemark_core.upr.cookies import Cookies
from tidemark_core.upr.history import Point

LINEAGE, OTHER = b"\1" * 16, b"\2" * 16
FIRST, SECOND = shard_id(1, 0), shard_id(1, 1)


def at(seqno: int, lineage: bytes = LINEAGE) -> Point:
    return Point(lineage, 1, seqno)


class Shards:
    """Two shards, their leaders, one stream each, and a consumer with barriers.

    Entries show no row, so a position moves only where a cookie asks for it, and every second one in its own time.
    """

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now_ms = 0
        self.confirmed = {FIRST: 0, SECOND: 0}
        self.folded = {FIRST: 0, SECOND: 0}       # at the member that streams the shard
        self.said: dict[ShardId, int] = {FIRST: 0, SECOND: 0}
        self.cookies = {FIRST: Cookies(), SECOND: Cookies()}
        self.open = {FIRST: True, SECOND: True}
        self.down: dict[ShardId, deque[int]] = {FIRST: deque(), SECOND: deque()}
        self.barriers = Barriers({FIRST: at(0), SECOND: at(0)})
        self.asked: set[ShardId] = set()
        self.answers: list[tuple[ShardId, int]] = []
        self.wanted: dict[str, dict[ShardId, int]] = {}     # confirmed when the barrier was requested
        self.requested: list[str] = []
        self.covered: dict[str, float] = {}
        self.returned = self.complete = 0
        self.count = 0

    def request(self) -> None:
        self.count += 1
        cookie = f"b{self.count}"
        shards = self.dice.choice(([FIRST], [SECOND], [FIRST, SECOND]))
        self.wanted[cookie] = {shard: self.confirmed[shard] for shard in shards}
        self.requested.append(cookie)
        found = self.barriers.request(self.now_ms, cookie, shards)
        assert isinstance(found, list)
        self.run(found)

    def run(self, effects: list[module.Effect]) -> None:
        for effect in effects:
            match effect:
                case AskReadIndex(shard):
                    assert shard not in self.asked, "U68: one read index per shard is in flight"
                    self.asked.add(shard)
                case Send(cookie, shard, target):
                    if self.open[shard]:
                        found = self.cookies[shard].add(cookie, {shard: target}, {shard: self.said[shard]})
                        assert isinstance(found, list), "U69: no cookie is sent twice"
                case Return():
                    self.check(effect)

    def check(self, m: Return) -> None:
        self.returned += 1
        late = [cookie for cookie in self.requested if cookie == m.cookie]
        assert late, "U68: a barrier returns once"
        if not m.not_covered:
            self.complete += 1
            for shard, confirmed in self.wanted[m.cookie].items():
                applied = self.barriers.applied[shard].seqno
                assert applied >= confirmed, f"U68: {confirmed} was confirmed before the request, {applied} is applied"
            # 10 s is the deadline of all: one that waits for an earlier one never overtakes it.
            assert self.requested[0] == m.cookie, "U69: a later barrier overtakes an earlier one"
        self.requested.remove(m.cookie)

    def step(self) -> None:
        dice = self.dice
        shard = dice.choice((FIRST, SECOND))
        self.now_ms += dice.choice((0, 1, 5))
        roll = dice.random()
        if roll < 0.15:
            self.confirmed[shard] += 1
        elif roll < 0.22:
            self.request()
        elif roll < 0.32 and shard in self.asked:
            # The leader computes its answer some time before it arrives.
            self.asked.discard(shard)
            self.answers.append((shard, self.confirmed[shard]))
        elif roll < 0.42 and self.answers:
            answered, point = self.answers.pop(0)
            self.run(self.barriers.on_read_index(self.now_ms, answered, at(point)))
        elif roll < 0.44:
            self.open[shard] = False
            self.cookies[shard].on_ended(shard)
            self.down[shard].clear()
            self.barriers.on_stream_lost(shard)
        elif roll < 0.50 and not self.open[shard]:
            self.open[shard], self.cookies[shard] = True, Cookies()
            self.said[shard] = self.barriers.applied[shard].seqno
            self.folded[shard] = max(self.said[shard], self.folded[shard])
            self.run(self.barriers.on_stream_open(shard))
        else:
            self.stream(shard)
        self.run(self.barriers.on_time(self.now_ms))

    def stream(self, shard: ShardId) -> None:
        if self.folded[shard] < self.confirmed[shard]:
            self.folded[shard] += 1
        if not self.open[shard]:
            return
        if self.cookies[shard].target(shard) > self.said[shard] and self.folded[shard] > self.said[shard]:
            self.said[shard] = self.folded[shard]
            self.cookies[shard].on_said(shard, self.said[shard])
            self.down[shard].append(self.said[shard])
        if self.down[shard] and self.dice.random() < 0.5:
            self.run(self.barriers.on_applied(self.now_ms, shard, at(self.down[shard].popleft())))

    def settle(self) -> None:
        """Faults stop: every barrier returns complete, long before its deadline."""
        for _ in range(400):
            for shard in (FIRST, SECOND):
                if not self.open[shard]:
                    self.open[shard], self.cookies[shard] = True, Cookies()
                    self.said[shard] = self.barriers.applied[shard].seqno
                    self.run(self.barriers.on_stream_open(shard))
                if shard in self.asked:
                    self.asked.discard(shard)
                    self.answers.append((shard, self.confirmed[shard]))
                self.stream(shard)
            if self.answers:
                answered, point = self.answers.pop(0)
                self.run(self.barriers.on_read_index(self.now_ms, answered, at(point)))
        assert self.barriers.outstanding == 0, "U68: a barrier never returns"


def run(seed: int) -> Shards:
    shards = Shards(seed)
    for _ in range(500):
        shards.step()
    shards.settle()
    return shards


def test_u68_a_complete_barrier_has_everything_that_was_confirmed_before_it() -> None:
    """Rule U69 too: through streams that move, in order of request."""
    runs = [run(seed) for seed in range(100)]

    assert sum(each.complete for each in runs) > 3_000
    assert sum(each.complete for each in runs) == sum(each.count for each in runs)


Patch = pytest.MonkeyPatch


def joins_a_read_index_under_way(patch: Patch) -> None:
    def request(self: Barriers, now_ms: int, cookie: str, *rest: object) -> object:
        found = requests(self, now_ms, cookie, *rest)   # type: ignore[arg-type]
        for shard, number in self._barriers[cookie].asked.items():
            if shard in self._flying:
                self._barriers[cookie].asked[shard] = min(number, self._numbers[shard])
        return found

    requests = Barriers.request
    patch.setattr(Barriers, "request", request)


def target_of_the_serving_member(patch: Patch) -> None:
    """The member that streams the shard names the target, as far as it knows the log."""
    def on_read_index(self: Barriers, now_ms: int, shard: ShardId, point: Point) -> object:
        return reads(self, now_ms, shard, self.applied[shard])

    reads = Barriers.on_read_index
    patch.setattr(Barriers, "on_read_index", on_read_index)


def literal_comparison(patch: Patch) -> None:
    """The position has to be greater than the target."""
    patch.setattr(Barriers, "_reached", lambda self, shard, target: self.applied[shard].seqno > target.seqno)


def no_advance(patch: Patch) -> None:
    patch.setattr(Cookies, "target", lambda self, shard: -1)


def cookie_dies_with_a_move(patch: Patch) -> None:
    patch.setattr(Barriers, "on_stream_open", lambda self, shard: [])


def later_barrier_overtakes(patch: Patch) -> None:
    def settle(self: Barriers, now_ms: int) -> list[Return]:
        done = [each for each in self._barriers.values() if not self._missing(each)]
        for each in done:
            del self._barriers[each.cookie]
        return [Return(each.cookie, dict(each.targets), {}) for each in done]

    patch.setattr(Barriers, "_settle", settle)


@pytest.mark.parametrize("mutate", [
    joins_a_read_index_under_way, target_of_the_serving_member, literal_comparison, no_advance, cookie_dies_with_a_move,
    later_barrier_overtakes,
], ids=lambda mutate: mutate.__name__)
def test_a_barrier_without_one_rule_is_caught(mutate: Callable[[Patch], None], monkeypatch: Patch) -> None:
    """Rules U68, U69: each change takes a part of them away."""
    mutate(monkeypatch)

    with pytest.raises(AssertionError, match=r"^U6[89]"):
        for seed in range(100):
            run(seed)


# --- step by step ---------------------------------------------------------------------------------------------------


def two() -> Barriers:
    return Barriers({FIRST: at(5), SECOND: at(5)})


def test_w11_a_barrier_returns_while_writes_go_on() -> None:
    """Rule U68: the target is fixed by the read index, whatever is written after it."""
    made = two()
    assert made.request(0, "b", [FIRST]) == [AskReadIndex(FIRST)]
    assert made.on_read_index(0, FIRST, at(9)) == [Send("1.1", FIRST, 9)]
    assert made.on_applied(0, FIRST, at(8)) == []

    assert made.on_applied(0, FIRST, at(30)) == [Return("b", {FIRST: at(9)}, {})]


def test_w12_an_idle_member_answers_no_barrier() -> None:
    """Rule U68: a member that is idle, for it was deposed, returns the cookie; the leader's answer still counts."""
    made, cookies = two(), Cookies()
    made.request(0, "b", [FIRST])
    assert cookies.add("1.1", {FIRST: 5}, {FIRST: 5}) == ["1.1"]
    assert made.outstanding == 1, "no leader has named a target"

    assert made.on_read_index(0, FIRST, at(6)) == [Send("1.1", FIRST, 6)]


def test_w13_a_barrier_outlives_a_move() -> None:
    """Rule U69: the connection has no stream left; what is open goes to the next member, under another cookie."""
    made, cookies = two(), Cookies()
    made.request(0, "b", [FIRST])
    made.on_read_index(0, FIRST, at(9))
    assert cookies.add("1.1", {FIRST: 9}, {FIRST: 5}) == []
    cookies.on_ended(FIRST)
    made.on_stream_lost(FIRST)
    assert cookies.target(FIRST) == -1, "the member keeps nothing"

    assert made.on_stream_open(FIRST) == [Send("1.2", FIRST, 9)]


def test_u68_one_read_index_answers_all_barriers_requested_before_it() -> None:
    made = two()
    made.request(0, "a", [FIRST])
    for cookie in "bcd":
        assert made.request(0, cookie, [FIRST]) == []
    assert made.on_read_index(0, FIRST, at(5)) == [AskReadIndex(FIRST), Return("a", {FIRST: at(5)}, {})]
    returned = made.on_read_index(0, FIRST, at(5))

    assert [each.cookie for each in returned if isinstance(each, Return)] == ["b", "c", "d"]


def test_u68_another_lineage_asks_for_another_target() -> None:
    made = two()
    made.request(0, "b", [FIRST])
    made.on_read_index(0, FIRST, at(9))
    assert made.on_applied(0, FIRST, at(20, OTHER)) == [AskReadIndex(FIRST)], "20 is no seqno of that history"

    assert made.on_read_index(0, FIRST, at(20, OTHER)) == [Return("b", {FIRST: at(20, OTHER)}, {})]


def test_u69_a_deadline_names_what_it_could_not_cover() -> None:
    third, fourth = shard_id(1, 2), shard_id(1, 3)
    made = Barriers({shard: at(5) for shard in (FIRST, SECOND, third, fourth, shard_id(1, 4))})
    made.request(0, "b", wait_ms=100)
    for shard in (SECOND, third, fourth):
        made.on_read_index(0, shard, at(9))
    made.on_read_index(0, shard_id(1, 4), at(5))
    made.on_no_leader(FIRST)
    made.on_stream_lost(third)
    made.rebuilding.add(fourth)
    assert made.on_time(99) == [] and made.next_deadline_ms == 100

    (returned,) = made.on_time(100)
    assert isinstance(returned, Return)
    assert returned.not_covered == {
        FIRST: NotCovered.NO_LEADER, SECOND: NotCovered.LAGGING, third: NotCovered.MOVED, fourth: NotCovered.REBUILDING,
    }
    assert made.retry() == [] and made.next_deadline_ms is None


def test_u69_an_outstanding_cookie_is_refused_once_more_and_changes_nothing() -> None:
    made, cookies = two(), Cookies()
    made.request(0, "b", [FIRST])
    cookies.add("b", {FIRST: 9}, {FIRST: 5})

    assert made.request(0, "b", [SECOND]) == DuplicateCookie("b") == cookies.add("b", {FIRST: 7}, {FIRST: 5})
    assert made.outstanding == 1 and cookies.target(FIRST) == 9


def test_u69_cookies_return_first_in_first_out() -> None:
    cookies = Cookies()
    said = {FIRST: 5, SECOND: 5}
    assert cookies.add("a", {FIRST: 9, SECOND: 6}, said) == []
    assert cookies.add("b", {SECOND: 6}, said) == []
    assert cookies.on_said(SECOND, 6) == [], "the first one waits for the other shard"

    assert cookies.on_said(FIRST, 9) == ["a", "b"]


@pytest.mark.parametrize(("field", "cookie", "targets"), [
    ("cookie", "", {FIRST: 9}), ("cookie", "x" * 65, {FIRST: 9}), ("cookie", "caf\u00e9", {FIRST: 9}),
    ("cookie", "a\nb", {FIRST: 9}), ("shard", "b", {SECOND: 9}), ("target", "b", {FIRST: -1}),
])
def test_u69_a_barrier_that_cannot_be_is_refused_by_its_field(
    field: str, cookie: str, targets: dict[ShardId, int]
) -> None:
    cookies = Cookies()
    found = cookies.add(cookie, targets, {FIRST: 5})

    assert isinstance(found, BarrierRefused) and found.field == field
    assert cookies.target(FIRST) == -1


def test_u69_outstanding_barriers_are_bounded() -> None:
    made, cookies = two(), Cookies()
    for count in range(OUTSTANDING_MAX):
        made.request(0, f"b{count}", [FIRST])
        cookies.add(f"b{count}", {FIRST: 9}, {FIRST: 5})

    assert made.request(0, "one more", [FIRST]) == TooManyBarriers(OUTSTANDING_MAX)
    assert cookies.add("one more", {FIRST: 9}, {FIRST: 5}) == TooManyBarriers(OUTSTANDING_MAX)


def test_u68_a_shard_that_is_not_followed_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(LocalMisuse, match="U68"):
        two().request(0, "b", [shard_id(1, 7)])
