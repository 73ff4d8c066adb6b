"""A producer that its caller names: it claims first, and is over where others go on under a new id (L26, L28)."""

from __future__ import annotations

import pytest
from tidemark_core.base.entry import Durability
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.producing.messages import (
    Answered,
    Append,
    AskLeader,
    Claim,
    Effect,
    End,
    Ending,
    Fail,
    Led,
    LocalLost,
    Lost,
    Release,
    Send,
    Settings,
    Settle,
    Taken,
)
from tidemark_core.producing.producer import CLAIM_NUMBER, LAST_NUMBER, Producer
from tidemark_core.replication.messages import Claimed
from tidemark_core.replication.producer_ids import FENCE_MAX, claim_of

from .test_producer import FIRST_ID, Desk, ending, sends, sequences

STANDS = Claimed(1, 20, claim_of(3, 9) + 4, 1, 18, 2)


class ClaimDesk(Desk):
    """A desk whose producer is claimed with draw 7."""

    def __init__(self, fence: int = 0, settings: Settings | None = None, leader: str | None = "a") -> None:
        super().__init__(settings, None)
        self.producer = Producer(FIRST_ID, settings or Settings(), Claim(7, fence))
        self.began = self.step(Led(1, leader))

    def take(self, send: Send) -> list[Effect]:
        return self.step(Answered(send, STANDS))

    def resent(self, effects: list[Effect]) -> list[Send]:
        """Return what goes out again, now or when it is time."""
        return sends(effects) or sends(self.wake_until(Send))

    def claimed(self, *durabilities: Durability) -> list[Send]:
        """Have the claim, and batches under way."""
        [claim] = sends(self.began)
        self.take(claim)
        return self.sent(*durabilities)


def failed(effects: list[Effect]) -> list[tuple[int, Ending]]:
    return [(effect.number, effect.ending) for effect in effects if isinstance(effect, Fail)]


def test_l26_a_claim_goes_first_and_batches_go_on_behind_it() -> None:
    desk = ClaimDesk()
    [claim] = sends(desk.began)
    assert (claim.number, claim.batch.key, claim.batch.count) == (CLAIM_NUMBER, (FIRST_ID, claim_of(1, 7)), 0)
    assert not desk.producer.has_room() and not desk.producer.idle and desk.producer.in_doubt() == {}
    assert desk.take(claim) == [Taken(1, STANDS)]
    assert desk.producer.has_room()
    assert sequences(desk.append()) == [claim_of(1, 7) + 1]


def test_l26_a_claim_without_a_fence_takes_the_next_one() -> None:
    desk = ClaimDesk()
    [claim] = sends(desk.began)
    [again] = desk.resent(desk.refuse(claim, Reason.FENCE_TOO_LOW, expected=4))
    assert again.batch.sequence == claim_of(5, 7)
    assert desk.take(again) == [Taken(5, STANDS)]


@pytest.mark.parametrize(("fence", "reason", "told"), [
    (3, Reason.FENCE_TOO_LOW, 4), (0, Reason.PRODUCER_FENCED, 4), (0, Reason.FENCE_TOO_LOW, FENCE_MAX)])
def test_l26_a_claim_that_cannot_be_had_is_over(fence: int, reason: Reason, told: int) -> None:
    desk = ClaimDesk(fence)
    [claim] = sends(desk.began)
    assert claim.batch.sequence == claim_of(fence or 1, 7)
    assert failed(desk.refuse(claim, reason, expected=told)) == [(CLAIM_NUMBER, Ending.FENCED)]
    assert desk.producer.has_room() and failed(desk.append()) == [(1, Ending.FENCED)]
    assert desk.producer.idle and desk.wake() == [] and desk.wakes_ms is None


@pytest.mark.parametrize("reason", [Reason.PRODUCER_FENCED, Reason.FENCE_TOO_LOW])
def test_l26_a_claim_in_doubt_is_fenced_like_one_that_is_not(reason: Reason) -> None:
    """It may have stood for a while; nothing was appended behind it."""
    desk = ClaimDesk(fence=3)
    [again] = desk.resent(desk.step(Lost("a", "reset")))
    assert failed(desk.refuse(again, reason, expected=4)) == [(CLAIM_NUMBER, Ending.FENCED)]


def test_l26_a_claim_finds_its_leader_and_is_sent_again_like_a_batch() -> None:
    desk = ClaimDesk(leader=None)
    assert AskLeader() in desk.wake_until(AskLeader)
    [claim] = sends(desk.step(Led(1, "a")))
    [again] = desk.resent(desk.step(Lost("a", "reset")))
    assert again.batch is claim.batch
    [third] = desk.resent(desk.refuse(again, Reason.BEHIND, retry_ms=20))
    [moved] = sends(desk.step(Led(2, "b")))
    assert (third.batch, moved.batch, moved.target) == (claim.batch, claim.batch, "b")
    assert Taken(1, STANDS) in desk.take(moved)


def test_l26_who_is_fenced_appends_nothing_more() -> None:
    desk = ClaimDesk()
    first, second, third = desk.claimed(*[Durability.QUORUM] * 3)
    desk.acknowledge(first)
    assert failed(desk.refuse(second, Reason.PRODUCER_FENCED, expected=2)) == [(2, Ending.FENCED)]
    assert failed(desk.append()) == [(4, Ending.FENCED)]
    assert failed(desk.refuse(third, Reason.PRODUCER_FENCED, expected=2)) == [(3, Ending.FENCED)]
    assert desk.producer.idle


def test_l26_a_batch_in_doubt_when_the_producer_is_fenced_may_be_in_the_log() -> None:
    desk = ClaimDesk()
    desk.claimed(Durability.QUORUM, Durability.QUORUM)
    [first, second] = desk.resent(desk.step(Lost("a", "reset")))
    assert failed(desk.refuse(first, Reason.PRODUCER_FENCED, expected=2)) == [(1, Ending.UNANSWERED)]
    assert failed(desk.step(Lost("a", "reset"))) == [(2, Ending.UNANSWERED)]
    assert desk.producer.idle and second.batch.count == 2


def test_l28_behind_a_batch_that_does_not_end_well_nothing_is_appended() -> None:
    desk = ClaimDesk()
    first, second, third = desk.claimed(*[Durability.QUORUM] * 3)
    desk.acknowledge(first)
    assert failed(desk.refuse(second, Reason.BATCH_TOO_LARGE)) == [(2, Ending.REFUSED)]
    assert failed(desk.append()) == [(4, Ending.ENDED)]
    effects = desk.refuse(third, Reason.SEQUENCE_GAP, expected=second.batch.sequence)
    assert failed(effects) == [(3, Ending.ENDED)] and Release(2) in desk.seen
    assert desk.producer.idle and desk.producer.id == FIRST_ID


@pytest.mark.parametrize("reason", [Reason.QUORUM_TIMEOUT, Reason.ROLLED_BACK, Reason.SEQUENCE_TOO_OLD])
def test_l28_callers_who_hear_of_an_ending_end_the_claim(reason: Reason) -> None:
    desk = ClaimDesk(settings=Settings(asks_again=False, retries=False))
    first, second = desk.claimed(Durability.QUORUM, Durability.QUORUM)
    assert [number for number, _ in failed(desk.refuse(first, reason, expected=5))] == [1]
    assert failed(desk.append()) == [(3, Ending.ENDED)]
    [settled] = [each for each in desk.acknowledge(second) if isinstance(each, Settle)]
    assert settled.number == 2, "a batch that was under way ends as it would have"


def test_l28_a_rolled_back_batch_is_appended_again_under_the_same_claim() -> None:
    desk = ClaimDesk()
    [first] = desk.claimed(Durability.QUORUM)
    effects = desk.refuse(first, Reason.ROLLED_BACK, expected=25)
    [again] = desk.resent(effects)
    assert (again.batch.sequence, again.resume_after) == (first.batch.sequence + 1, 25)
    assert desk.producer.over is None


def test_l28_lost_local_batches_end_the_claim() -> None:
    desk = ClaimDesk()
    first, second = desk.claimed(Durability.LOCAL, Durability.LOCAL)
    desk.acknowledge(first, Durability.LOCAL)
    [again] = sends(desk.step(Led(2, "b")))
    effects = desk.refuse(again, Reason.SEQUENCE_GAP, epoch=2, expected=first.batch.sequence)
    assert LocalLost(2) in effects and failed(effects) == [(2, Ending.UNANSWERED)]
    assert second.batch.sequence == first.batch.sequence + 1


def test_l28_a_batch_whose_time_is_over_ends_the_claim_where_it_is_in_no_log() -> None:
    desk = ClaimDesk()
    [claim] = sends(desk.began)
    desk.take(claim)
    desk.step(Led(2, None))
    desk.append(timeout_ms=100)
    assert ending(desk.wake_until(Fail)) == (Ending.NOT_TAKEN, False)
    assert failed(desk.append()) == [(2, Ending.ENDED)]


def test_l28_a_batch_given_up_before_it_is_numbered_ends_the_claim() -> None:
    desk = ClaimDesk()
    [first] = desk.claimed(Durability.QUORUM)
    assert desk.step(End("no room")) == [] and desk.producer.has_room()
    [fail] = [each for each in desk.append() if isinstance(each, Fail)]
    assert (fail.ending, fail.refused) == (Ending.ENDED, Refused(Reason.ABORTED, "no room"))
    assert [each.number for each in desk.acknowledge(first) if isinstance(each, Settle)] == [1]
    assert desk.producer.idle


def test_l28_a_claim_ends_with_a_batch_that_was_given_up_while_it_was_sent_again() -> None:
    desk = ClaimDesk()
    desk.refuse(*sends(desk.began), Reason.SHUTTING_DOWN, retry_ms=20)
    assert failed(desk.step(End("no room"))) == [(CLAIM_NUMBER, Ending.ENDED)]
    assert desk.producer.idle and failed(desk.append()) == [(1, Ending.ENDED)]


def test_l28_a_producer_without_a_name_goes_on_behind_a_batch_that_was_given_up() -> None:
    desk = Desk()
    assert desk.step(End("no room")) == []
    assert sequences(desk.append()) == [0]


def test_l26_numbers_that_are_used_up_end_a_claim_and_give_others_a_new_id() -> None:
    for desk in (Desk(), ClaimDesk()):
        if isinstance(desk, ClaimDesk):
            desk.take(*sends(desk.began))
        desk.producer._sequence = claim_of(1, 0) + LAST_NUMBER - 1
        [send] = sends(desk.append())
        assert not desk.producer.has_room(), "the last number waits for those in front of it"
        desk.acknowledge(send)
        assert desk.producer.has_room()
        effects = desk.step(Append(99, desk.now_ms + 1000, 2, 0, 0, 0, b"", Durability.QUORUM))
        if isinstance(desk, ClaimDesk):
            assert failed(effects) == [(99, Ending.ENDED)]
        else:
            assert sequences(effects) == [0] and sends(effects)[0].batch.producer != FIRST_ID
