"""Documents as their members keep them: the traces that broke the sources, each as a story; all checkers watch.

Every member is compared with a plain model of the committed log after each of its writes (`checkers/documents.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from google_crc32c import value as crc32c
from scenario import Scenario
from tidemark_core.base.effects import SnapshotRows
from tidemark_core.base.entry import Batch, Durability, Kind
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.document_comparing import Comparing
from tidemark_core.documents.payload import Op, Outcome, Verdict, Write, Writes, encode
from tidemark_core.documents.reading import get, get_at
from tidemark_core.documents.requests import Level, PinDocuments, Pinned, ReadDocuments, Written
from tidemark_core.limbo.settings import SynchroSettings
from tidemark_core.replication import log
from tidemark_core.replication.clients import AppendRequest, CommitPosition, TrimRequest
from tidemark_core.replication.messages import Operation
from tidemark_sim.checkers.documents import StoreView
from tidemark_sim.documents_mutants import DOCUMENTS_MUTANTS

WRITER = b"writer of stories"[:16]


class Story(Scenario):
    """A scenario with documents and a writer whose retries the story decides."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(documents=4, expire_look_ms=20, **arguments)
        self.answers: dict[int, list[Any]] = {}
        self.outcomes: dict[int, list[tuple[Outcome, ...]]] = {}
        judge = self.world.checkers.node_wrote

        def wrote(node: Any, shard: Any, written: Written) -> None:
            judge(node, shard, written)
            self.outcomes.setdefault(written.base, []).append(written.outcomes)

        self.world.checkers.node_wrote = wrote

    def write(self, number: int, sequence: int, key: bytes, value: bytes, expected: int | None = None) -> None:
        """Offer a put to one node; `answers` has what it says."""
        mark = Write(Op.PUT, b"mark", b"%d" % sequence)
        body = encode(Writes((mark, Write(Op.PUT, key, value, expected=expected))))
        batch = Batch(WRITER, sequence, 2, 1_000, 1_000, crc32c(body), body, Durability.QUORUM)
        event = AppendRequest(self.shard, self.world.request_number(), batch)
        self.world.nodes[f"n{number}"].request(event, self.answers.setdefault(sequence, []).append)

    def written(self, number: int, sequence: int, key: bytes, value: bytes, expected: int | None = None) -> Any:
        """Write, and wait for the answer."""
        count = len(self.answers.get(sequence, ()))
        self.write(number, sequence, key, value, expected)
        self.wait(lambda: len(self.answers[sequence]) > count, f"write {sequence} is answered")
        return self.answers[sequence][-1]

    def ask(self, number: int, kind: type, *arguments: Any) -> Any:
        answers: list[Any] = []
        event = kind(self.shard, self.world.request_number(), *arguments)
        self.world.nodes[f"n{number}"].request(event, answers.append)
        self.wait(lambda: answers, f"{kind.__name__} is answered")
        return answers[0]

    def rows(self, number: int) -> StoreView:
        return StoreView(self.world.nodes[f"n{number}"].disk.durable_tables)

    def value(self, number: int, key: bytes) -> bytes | None:
        found = get(self.rows(number), self.shard, key)
        return found.value if found is not None else None

    def applied(self, number: int) -> int:
        core = self.world.nodes[f"n{number}"].core
        documents = core.log.shards[self.shard].documents if core is not None else None
        return documents.durable if documents is not None else -1

    def settle(self, *numbers: int) -> None:
        """Wait until these members have folded everything that is confirmed."""
        def folded() -> bool:
            last = self.world.checkers.committed_last(self.shard)
            return all(self.applied(number) == last for number in numbers)

        self.wait(folded, "all is folded")


def test_w10_w16_u46_a_write_that_is_rolled_back_is_never_shown_and_nothing_stays_of_it() -> None:
    """A write that only its leader and a lagging quorum have is rolled back: `confirmed` jumps over it."""
    story = Story()
    story.wait_led(1)
    story.written(1, 0, b"a", b"kept")
    node = story.world.nodes["n1"]
    node.learn(node.life, story.shard, 1, SynchroSettings(quorum="3", timeout_ms=100))
    story.cut(1, 3)
    story.write(1, 1, b"a", b"gone")
    story.wait(lambda: 1 in story.answers and story.answers[1], "the quorum times out")
    story.wait(lambda: story.world.trace.counts.get("rollbacks_confirmed"), "the rollback is confirmed")
    story.mend(1, 3)

    story.settle(1, 2, 3)

    assert isinstance(story.answers[1][-1], Refused)
    assert [story.value(number, b"a") for number in (1, 2, 3)] == [b"kept"] * 3
    assert story.value(1, b"mark") == b"0"


def test_w14_u46_entries_without_rows_move_the_cut() -> None:
    """CONFIRM, EPOCH_START, POSITION and a refused condition leave no row; no member stands still below them."""
    story = Story()
    story.wait_led(1)
    first = story.written(1, 0, b"a", b"1")
    story.settle(1, 2, 3)
    story.ask(1, CommitPosition, "reader", 1, 60_000)
    story.written(1, 1, b"a", b"2", expected=first.base + 99)
    story.settle(1, 2, 3)
    story.crash(1)
    story.wait(lambda: story.leader not in ("", "n1"), "another leads")
    story.start(1)
    story.run(300)

    story.settle(1, 2, 3)

    image = story.world.nodes["n1"].disk.image(story.shard)
    assert {Kind.CONFIRM, Kind.EPOCH_START, Kind.POSITION} <= {entry.kind for entry in image.entries}
    assert story.applied(1) == image.entries[-1].last
    assert story.value(1, b"a") == b"1"


def test_w15_u70_a_pin_shows_the_same_cut_after_a_restart_and_on_a_new_member() -> None:
    """put@1, PIN@2, put@3, crash: a snapshot of the store would be gone, and a new member would have none."""
    story = Story(nodes=4)
    story.wait_led(1)
    story.written(1, 0, b"a", b"pinned")
    pinned = story.ask(1, PinDocuments, "cut", 60_000)
    assert isinstance(pinned, Pinned)
    story.written(1, 1, b"a", b"newer")
    story.settle(1, 2, 3)
    story.crash(1, 2, 3)
    story.start(1, 2, 3)
    story.wait(lambda: any(story.leads(number) for number in (1, 2, 3)), "one leads")
    story.wait_settled()
    leader = int(story.leader[1:])
    old = next(number for number in (1, 2, 3) if number != leader)
    outcome = story.change(Operation.SWAP, old, 4)
    story.wait(lambda: outcome, "the swap ends")
    story.settle(4)

    shown = {
        number: get_at(story.rows(number), story.shard, "cut", pinned.at, b"a")
        for number in {1, 2, 3, 4} - {old}
    }

    assert {found.value for found in shown.values() if found is not None} == {b"pinned"}
    assert None not in shown.values()
    assert story.value(4, b"a") == b"newer"
    story.finish()


@pytest.mark.parametrize("successor", ["another leader", "the same member"])
def test_w17_u50_a_retried_condition_gets_its_first_outcome_from_the_next_leader(successor: str) -> None:
    """The producer table knows where a write lies, not its outcome: judged once more, the retry would be refused."""
    story = Story()
    story.wait_led(1)
    answer = story.written(1, 0, b"a", b"1", expected=0)
    story.written(1, 1, b"a", b"2", expected=answer.base + 1)
    story.settle(1, 2, 3)
    story.crash(1)
    if successor == "the same member":
        story.crash(2, 3)
        story.start(1, 2, 3)
    story.wait(lambda: any(story.leads(number) for number in (1, 2, 3)), "one leads")
    leader = next(number for number in (1, 2, 3) if story.leads(number))
    story.run(100)

    again = story.written(leader, 0, b"a", b"1", expected=0)

    assert (again.base, again.count) == (answer.base, answer.count)
    applied = (Outcome(Verdict.APPLIED), Outcome(Verdict.APPLIED))
    assert story.outcomes[answer.base] == [applied, applied]
    assert story.value(leader, b"a") == b"2"


def gone_below(monkeypatch: pytest.MonkeyPatch) -> tuple[Story, int]:
    """Return a world where n3 comes back, cannot read the first entry that it has not folded, and no log has it."""
    monkeypatch.setattr(log, "MARK_ENTRIES", 1)
    story = Story(documents_notice_ms=100_000)
    story.wait_led(1)
    story.written(1, 0, b"a", b"1")
    unknown = story.written(1, 1, b"a", b"2").base
    core = story.world.nodes["n1"].core
    assert core is not None
    leader = core.log.shards[story.shard].leader
    assert leader is not None
    story.wait(lambda: min(leader.matches().values()) > unknown, "all members hold the writes")
    assert story.applied(3) < unknown, "n3 has not heard that they are confirmed"
    story.crash(3)
    story.world.nodes["n3"].disk.lose_payload((story.shard, unknown), story.world.now_ms)
    story.written(1, 2, b"b", b"3")
    story.settle(1)
    story.run(100)
    trimmed = story.ask(1, TrimRequest, unknown + 2)
    assert trimmed > unknown
    story.wait(lambda: story.log(2)[0] == story.log(1)[0], "n2 has trimmed, too")
    return story, trimmed


def test_u47b_a_member_that_cannot_fold_on_takes_the_rows_of_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    story, trimmed = gone_below(monkeypatch)

    story.start(3)
    story.run(200)
    story.written(1, 3, b"a", b"4")

    story.settle(3)
    assert story.world.trace.counts["core_documents_replaced"] == 1
    assert (story.value(3, b"a"), story.value(3, b"b")) == (b"4", b"3")
    assert story.ask(3, ReadDocuments, Level.FOLLOWER, trimmed).applied >= trimmed
    story.finish()


@pytest.mark.parametrize("part", ["first", "last"])
def test_u47b_a_crash_while_the_rows_come_leaves_none_that_were_not_whole(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    story, _ = gone_below(monkeypatch)
    node = story.world.nodes["n3"]
    feed = node.feed

    def crash_behind(life: int, event: Any) -> None:
        feed(life, event)
        if isinstance(event, SnapshotRows) and (event.first if part == "first" else event.last):
            node.feed = feed   # type: ignore[method-assign]
            story.run(5)
            story.crash(3)

    node.feed = crash_behind   # type: ignore[method-assign]
    story.start(3)
    story.wait(lambda: not node.alive, "n3 dies while the rows come")
    story.start(3)
    story.run(200)
    story.written(1, 3, b"a", b"4")

    story.settle(3)
    assert (story.value(3, b"a"), story.value(3, b"b")) == (b"4", b"3")
    story.finish()


def compared(story: Story, digests_differ: bool) -> Comparing:
    """Write, and have the leader compare; only its own comparison looks, no checker of the simulator does."""
    story.world.checkers.documents._on = False
    story.world.checkers.node_wrote = lambda node, shard, written: None   # type: ignore[method-assign]
    story.wait_led(1)
    for number in range(3):
        story.written(1, number, b"a", b"%d" % number)
    core = story.world.nodes["n1"].core
    assert core is not None
    documents = core.log.shards[story.shard].documents
    assert documents is not None
    story.run(500)
    found = core.log.reach(story.world.now_ms, 100).diverged
    others = {story.member(2), story.member(3)}
    assert set(documents.comparing._agreed) == others, "both followers were compared"
    assert {each.member for each in found} == ({story.member(2)} if digests_differ else set())
    assert all(each.shard == story.shard and each.at <= documents.summary.applied for each in found)
    return documents.comparing


def test_u73b_members_that_fold_alike_are_compared_and_agree() -> None:
    story = Story(compare_ms=100)

    comparing = compared(story, digests_differ=False)

    assert not comparing._armed, "members at rest that agree cost nothing"


def test_u73b_a_member_that_folds_otherwise_is_found_by_its_leader_and_named() -> None:
    [mutant] = [each for each in DOCUMENTS_MUTANTS if each.name == "U73b fold"]
    with mutant.active():
        story = Story(compare_ms=100)
        compared(story, digests_differ=True)

        assert story.world.trace.counts["core_documents_diverged"] >= 1


def test_u53_a_deposed_leader_grants_no_linearizable_read() -> None:
    story = Story(read_index_ms=200)
    story.wait_led(1)
    story.written(1, 0, b"a", b"1")
    story.part([("n1", "n2"), ("n1", "n3"), ("n1", "op1")], noticed=False)
    story.wait(lambda: story.leads(2) or story.leads(3), "another leads")
    leader = 2 if story.leads(2) else 3
    story.run(100)
    story.written(leader, 1, b"a", b"2")

    refused = story.ask(1, ReadDocuments, Level.LINEARIZABLE)

    assert isinstance(refused, Refused) and refused.reason is Reason.NO_LEADER
    assert story.value(1, b"a") == b"1"


def test_a_follower_folds_a_lone_write_as_soon_as_the_notice_of_documents_comes() -> None:
    """Else reads and change streams of followers wait for the notice of logs, which may come much later."""
    story = Story(commit_notice_ms=100_000, documents_notice_ms=3)
    story.wait_led(1)
    base = story.written(1, 0, b"a", b"1").base
    answered_ms = story.world.now_ms
    story.wait(lambda: story.applied(3) >= base, "n3 folds the write")
    assert story.world.now_ms - answered_ms <= 10
