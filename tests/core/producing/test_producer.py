"""The producer as a machine: what it sends, when it tries again, and what its callers hear."""

from __future__ import annotations

import pytest
from tidemark_core.base.entry import Durability
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.producing.messages import (
    Answered,
    Append,
    AskLeader,
    Doubt,
    Effect,
    Ending,
    Event,
    Fail,
    Led,
    LocalLost,
    Lost,
    OnTime,
    Release,
    Send,
    Settings,
    Settle,
    WakeAt,
)
from tidemark_core.producing.producer import PAUSE_MAX_MS, Producer
from tidemark_core.replication.messages import Appended

FIRST_ID = b"12345678" + b"\xff" * 8
TIMEOUT_MS = 10_000


class Desk:
    """One producer, its time, and what came of each step."""

    def __init__(self, settings: Settings | None = None, leader: str | None = "a") -> None:
        self.producer = Producer(FIRST_ID, settings or Settings())
        self.now_ms = 1_000_000
        self.wakes_ms: int | None = None
        self.numbers = 0
        self.seen: list[Effect] = []
        self.began = self.step(Led(1, leader))

    def step(self, event: Event) -> list[Effect]:
        """Return what the step does, without the time at which to wake."""
        effects = self.producer.step(self.now_ms, event)
        for effect in effects:
            if isinstance(effect, WakeAt):
                self.wakes_ms = effect.at_ms
        self.seen += effects
        return [effect for effect in effects if not isinstance(effect, WakeAt)]

    def append(self, durability: Durability = Durability.QUORUM, timeout_ms: int = TIMEOUT_MS) -> list[Effect]:
        self.numbers += 1
        return self.step(Append(
            self.numbers, self.now_ms + timeout_ms, 2, 0, 0, 0, b"payload", durability))

    def sent(self, *durabilities: Durability) -> list[Send]:
        """Append batches, each of which is sent at once."""
        sent = [self.append(durability) for durability in durabilities or (Durability.QUORUM,)]
        return [send for [send] in sent if isinstance(send, Send)]

    def wake(self) -> list[Effect]:
        """Let the time come that the producer asked for last."""
        assert self.wakes_ms is not None, "it asked for no time"
        self.now_ms, self.wakes_ms = max(self.now_ms, self.wakes_ms), None
        return self.step(OnTime())

    def wake_until(self, kind: type) -> list[Effect]:
        """Wake it until an effect of this kind comes; return the effects of that step."""
        for _ in range(1000):
            effects = self.wake()
            if any(isinstance(effect, kind) for effect in effects):
                return effects
        raise AssertionError(f"no {kind.__name__} comes")

    def acknowledge(self, send: Send, durability: Durability = Durability.QUORUM, epoch: int = 1) -> list[Effect]:
        return self.step(Answered(send, Appended(epoch, send.batch.sequence * 2, 2, durability)))

    def refuse(
        self, send: Send, reason: Reason, epoch: int = 1, expected: int = -1, retry_ms: int = -1
    ) -> list[Effect]:
        return self.step(Answered(send, Refused(reason, "told", epoch, expected, retry_ms)))


def sends(effects: list[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def sequences(effects: list[Effect]) -> list[int]:
    return [send.batch.sequence for send in sends(effects)]


def ending(effects: list[Effect]) -> tuple[Ending, bool]:
    [failed] = [effect for effect in effects if isinstance(effect, Fail)]
    return failed.ending, failed.left


# --- sending --------------------------------------------------------------------------------------------------


def test_l19_at_most_five_batches_are_under_way_and_answers_make_room() -> None:
    desk = Desk()
    sent = desk.sent(*[Durability.QUORUM] * 5)
    assert [(send.target, send.batch.sequence, send.resume_after) for send in sent] == [
        ("a", sequence, -1) for sequence in range(5)]
    assert not desk.producer.has_room()
    desk.acknowledge(sent[1])
    assert not desk.producer.has_room(), "the oldest unanswered one counts"
    [settled] = desk.acknowledge(sent[0])
    assert settled == Settle(1, Appended(1, 0, 2, Durability.QUORUM), Durability.QUORUM, sent[0].batch)
    assert desk.producer.has_room()


def test_a_batch_without_a_leader_is_sent_when_one_is_known() -> None:
    desk = Desk(leader=None)
    assert desk.append() == [AskLeader()]
    [send] = desk.step(Led(2, "b"))
    assert isinstance(send, Send) and send.target == "b"


def test_an_acknowledged_batch_leaves_nothing_to_wake_for() -> None:
    desk = Desk()
    [send] = desk.sent()
    desk.acknowledge(send)
    assert desk.producer.idle
    assert desk.wake() == [] and desk.wakes_ms is None


def test_commit_is_what_was_waited_for() -> None:
    desk = Desk()
    [send] = desk.sent(Durability.COMMIT)
    [settled] = desk.acknowledge(send, Durability.QUORUM)
    assert isinstance(settled, Settle) and settled.durability is Durability.COMMIT


# --- trouble --------------------------------------------------------------------------------------------------


def test_a_lost_connection_sends_all_that_is_unanswered_again_in_order_and_nothing_new() -> None:
    desk = Desk()
    sent = desk.sent(*[Durability.QUORUM] * 3)
    desk.acknowledge(sent[1])
    effects = desk.step(Lost("a", "reset"))
    assert effects[0] == AskLeader() and sequences(effects) == [0, 2]
    assert desk.producer.trouble == "reset"
    assert desk.step(Lost("b", "another one")) == [AskLeader()], "its calls have no answer here, ours may"


def test_a_newer_leader_is_sent_to_at_once_and_the_old_ones_refusals_change_nothing() -> None:
    desk = Desk()
    sent = desk.sent(*[Durability.QUORUM] * 2)
    again = sends(desk.step(Led(2, "b")))
    assert [(send.target, send.batch.sequence) for send in again] == [("b", 0), ("b", 1)]
    assert desk.refuse(sent[0], Reason.SEQUENCE_GAP, epoch=1, expected=0) == []
    assert desk.refuse(sent[1], Reason.PRODUCER_ROLLED_BACK, epoch=1, expected=7) == []
    [settled] = desk.acknowledge(sent[0])
    assert isinstance(settled, Settle), "but what it appended before is appended"


def test_the_same_node_in_a_newer_epoch_is_not_sent_to_again() -> None:
    desk = Desk()
    desk.sent()
    assert desk.step(Led(2, "a")) == []


def test_refusals_that_pass_pause_as_the_node_asks_or_longer_each_time_with_a_bound() -> None:
    desk = Desk()
    [send] = desk.sent()
    began_ms = desk.now_ms
    assert desk.refuse(send, Reason.OVERLOADED, retry_ms=70) == []
    [send] = sends(desk.wake_until(Send))
    assert desk.now_ms - began_ms == 70
    pauses = []
    for _ in range(9):
        before_ms, effects = desk.now_ms, desk.refuse(send, Reason.NOT_LEADER)
        assert AskLeader() in effects
        [send] = sends(effects) or sends(desk.wake_until(Send))
        pauses.append(desk.now_ms - before_ms)
    assert pauses[0] == 0 and pauses[:6] == sorted(pauses[:6]), "each doubles, less up to half of it"
    assert all(PAUSE_MAX_MS // 2 <= pause <= PAUSE_MAX_MS for pause in pauses[7:])


def test_producers_do_not_pause_in_step() -> None:
    def third_pause(producer: bytes) -> int:
        desk = Desk()
        desk.producer.id = producer
        [send] = desk.sent()
        for _ in range(5):
            [send] = sends(desk.refuse(send, Reason.NO_LEADER)) or sends(desk.wake_until(Send))
        return desk.now_ms

    assert len({third_pause(bytes([number]) * 16) for number in range(20)}) > 10


def test_a_silent_leader_is_asked_after_and_doubted_behind_the_quorum_timeout() -> None:
    desk = Desk(Settings(quorum_timeout_ms=3000))
    began_ms = desk.now_ms
    desk.append(timeout_ms=60_000)
    assert desk.wake() == [AskLeader()]
    assert desk.now_ms - began_ms == 1000
    assert Doubt("a", 4000) in desk.wake_until(Doubt)
    assert 4000 < desk.now_ms - began_ms <= 4200


# --- gaps -----------------------------------------------------------------------------------------------------


def test_l21_lost_local_batches_are_reported_and_the_next_id_goes_on() -> None:
    desk = Desk()
    first, second = desk.sent(Durability.LOCAL, Durability.QUORUM)
    desk.acknowledge(first, Durability.LOCAL)
    [again] = sends(desk.step(Lost("a", "reset")))
    effects = desk.refuse(again, Reason.SEQUENCE_GAP, epoch=1, expected=0)
    assert LocalLost(2) in effects
    [send] = sends(effects) or sends(desk.wake_until(Send))
    assert (send.batch.producer, send.batch.sequence) == (b"12345678" + bytes(8), 0), "ids begin as before, and go on"
    assert send.number == second.number


def test_l21_a_gap_that_was_under_way_before_the_answer_breaks_no_promise() -> None:
    """The node got the second batch first; its refusal came behind the answer to the first."""
    desk = Desk()
    first, second = desk.sent(Durability.QUORUM, Durability.QUORUM)
    desk.acknowledge(first)
    effects = desk.refuse(second, Reason.SEQUENCE_GAP, expected=0)
    assert not [effect for effect in effects if isinstance(effect, Fail)]
    [again] = sends(effects) or sends(desk.wake_until(Send))
    assert again.batch is second.batch
    effects = desk.refuse(again, Reason.SEQUENCE_GAP, expected=0)
    assert ending(effects) == (Ending.BROKEN, False), "said once more, it is so"


def test_a_gap_of_an_older_epoch_is_not_believed() -> None:
    desk = Desk()
    first, second = desk.sent(Durability.QUORUM, Durability.QUORUM)
    desk.acknowledge(first)
    [again] = sends(desk.step(Led(3, "b")))
    effects = desk.refuse(again, Reason.SEQUENCE_GAP, epoch=2, expected=0)
    [third] = sends(effects) or sends(desk.wake_until(Send))
    assert third.batch is second.batch


@pytest.mark.parametrize("promise", [Durability.QUORUM, Durability.LOCAL])
def test_l25_what_is_in_doubt_when_a_producer_is_forgotten_is_told_as_unknown(promise: Durability) -> None:
    desk = Desk()
    [first, *_] = desk.sent(promise, *[Durability.QUORUM] * 2)
    desk.acknowledge(first, promise)
    [again, _] = sends(desk.step(Lost("a", "reset")))
    desk.append()   # waits for room, which trouble takes
    effects = desk.refuse(again, Reason.PRODUCER_UNKNOWN, expected=0)
    failed = [effect for effect in effects if isinstance(effect, Fail)]
    assert [(each.number, each.ending) for each in failed] == [(2, Ending.FORGOTTEN), (3, Ending.FORGOTTEN)]
    assert [LocalLost(first.batch.count)] * (promise is Durability.LOCAL) == [
        effect for effect in effects if isinstance(effect, LocalLost)]


# --- endings --------------------------------------------------------------------------------------------------


def test_a_refused_batch_leaves_its_sequence_and_those_behind_it_go_on_under_the_next_id() -> None:
    desk = Desk()
    first, second = desk.sent(Durability.QUORUM, Durability.QUORUM)
    assert ending(desk.refuse(first, Reason.BATCH_TOO_LARGE)) == (Ending.REFUSED, False)
    effects = desk.refuse(second, Reason.SEQUENCE_GAP, expected=0)
    if not sends(effects):
        effects += desk.wake_until(Send)
    assert Release(1) in effects
    [again] = sends(effects)
    assert (again.number, again.batch.sequence, again.batch.producer != FIRST_ID) == (2, 0, True)


def test_time_is_over_while_an_attempt_has_no_answer_and_a_late_answer_releases_it() -> None:
    desk = Desk()
    [send] = desk.sent()
    desk.append(timeout_ms=60_000)
    assert ending(desk.wake_until(Fail)) == (Ending.UNANSWERED, False)
    assert desk.producer.in_doubt().keys() == {2}
    assert desk.acknowledge(send) == [Release(1)]


@pytest.mark.parametrize(("reason", "expected"), [
    (Reason.OVERLOADED, Ending.NOT_TAKEN), (Reason.NOT_LEADER, Ending.UNANSWERED)])
def test_time_is_over_and_what_is_told_depends_on_whether_an_attempt_may_be_in_a_log(
    reason: Reason, expected: Ending
) -> None:
    desk = Desk()
    [send] = desk.sent()
    desk.step(Led(1, None))   # no node is left to send it to
    desk.refuse(send, reason, retry_ms=20)
    assert ending(desk.wake_until(Fail)) == (expected, False)


@pytest.mark.parametrize("asks_again", [True, False])
def test_a_leader_that_does_not_know_is_asked_again_or_its_callers_are_told(asks_again: bool) -> None:
    desk = Desk(Settings(asks_again=asks_again))
    [send] = desk.sent()
    effects = desk.refuse(send, Reason.QUORUM_TIMEOUT)
    if asks_again:
        [again] = sends(desk.wake_until(Send))
        assert again.batch is send.batch
    else:
        assert ending(effects) == (Ending.QUORUM_TIMEOUT, True)
        assert desk.sent()[0].batch.sequence == 1


def test_an_undecided_batch_that_a_failover_lost_fills_its_place_again() -> None:
    desk = Desk(Settings(asks_again=False))
    [first] = desk.sent()
    desk.refuse(first, Reason.QUORUM_TIMEOUT)
    [second] = desk.sent()
    effects = desk.refuse(second, Reason.SEQUENCE_GAP, expected=0)
    effects = effects if sends(effects) else desk.wake_until(Send)
    assert [send.batch for send in sends(effects)] == [first.batch, second.batch]


@pytest.mark.parametrize("retries", [True, False])
def test_l22_a_rolled_back_batch_goes_first_under_the_next_sequences_or_its_callers_are_told(
    retries: bool,
) -> None:
    desk = Desk(Settings(retries=retries))
    first, second = desk.sent(Durability.QUORUM, Durability.QUORUM)
    effects = desk.refuse(first, Reason.ROLLED_BACK, expected=9)
    assert sends(effects) == [], "first every fate must be known"
    if not retries:
        assert ending(effects) == (Ending.ROLLED_BACK, True)
    effects = desk.refuse(second, Reason.PRODUCER_ROLLED_BACK, expected=9)
    effects = effects if sends(effects) else desk.wake_until(Send)
    found = [(send.number, send.batch.sequence, send.resume_after) for send in sends(effects)]
    assert found == ([(1, 1, 9), (2, 2, 9)] if retries else [(2, 1, 9)])
