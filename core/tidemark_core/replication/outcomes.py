"""Outcomes: what a leader tells writers, and the CONFIRM and ROLLBACK records behind it.

The decision lock of a shard (L7, L8) is the step itself: a ROLLBACK is in the fold before the next event is seen,
so whatever arrives later finds its range covered.  Stays out: the walk itself (`limbo.waiting`), pushing, commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..base.effects import Effect, Reply, SetTimer, Space
from ..base.entry import Durability, Entry, Kind
from ..base.ids import Member
from ..base.quorum import majority
from ..base.refusals import Reason, Refused
from ..limbo.quorum import needed_members, synchro_offset
from ..limbo.settings import Rollback, SynchroSettings
from ..limbo.waiting import Answer, Item, Limbo, Verdict, Waiter
from .clients import AppendRequest, OutcomeRequest
from .messages import Appended, Fate, Outcome
from .producer_ids import fence_of
from .producers import Place

if TYPE_CHECKING:
    from .leader import Leader

QUORUM_TIMER = "quorum"

WAITERS_MAX = 64
"""How many may wait for the fate of one batch; more are told to ask again."""

DEFAULTS = SynchroSettings()


class Outcomes:
    """Writers of one leadership and their answers."""

    __slots__ = (
        "_armed_at", "_decided", "_noted", "_plain_for", "_rolling", "leader", "limbo", "majority_decides", "replica",
    )

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.replica = leader.replica
        self.limbo = Limbo(1 << 62, self.replica.confirmed)
        self._armed_at: int | None = None
        self._decided: tuple[int, int, int] | None = None   # commit, synchro and durable of the last walk
        self.majority_decides = False   # a majority is the synchro quorum, for the settings and members of `_plain_for`
        self._plain_for: tuple[SynchroSettings | None, tuple[Member, ...]] | None = None
        self._rolling = -1          # offset of a ROLLBACK that is not durable here yet (L7)
        self._noted = -1            # newest entry of ours that a CONFIRM record covers

    @property
    def settings(self) -> SynchroSettings | None:
        return self.replica.settings

    @property
    def timeout_ms(self) -> int:
        return (self.settings or DEFAULTS).timeout_ms

    def open(self, opening: int) -> None:
        """The leadership begins with the EPOCH_START at `opening`."""
        self.limbo = Limbo(opening, self.replica.confirmed)
        self._noted = -1

    def on_settings(self, now_ms: int) -> list[Effect]:
        """Other settings are in force: they may confirm, never un-confirm; waits that began keep their deadline."""
        self._decided = None
        return self.on_durable(self.leader.durable) + self.leader.advance(now_ms)

    # --- entering -----------------------------------------------------------------------------------------

    def refuse_producer(self, m: AppendRequest) -> Refused | None:
        """Say no while a rollback is written (F27), and to a producer that does not know it was rolled back (L22)."""
        epoch = self.leader.epoch
        if self._rolling >= 0:
            return Refused(Reason.ROLLING_BACK, "a rollback is being written", epoch, -1, 10)
        # Every remembered batch, not only the newest: a request that was under way during the rollback may arrive
        # behind those that were sent in the knowledge of it.
        fence = fence_of(m.batch.sequence)
        for place in reversed(self.replica.log.producers.places(m.batch.producer)):
            covered = self.replica.log.decisions.covering(place.base)
            if covered is None or not place.count or fence_of(place.sequence) != fence:
                continue   # a claim takes up behind every rollback in front of it, and stays in force (L26)
            if m.resume_after < covered.at:
                return Refused(
                    Reason.PRODUCER_ROLLED_BACK,
                    f"sequence {place.sequence} of this producer was rolled back at offset {covered.at}; "
                    f"resume after it to go on",
                    epoch, covered.at,
                )
        return None

    def enter(self, now_ms: int, entry: Entry, request: int) -> list[Effect]:
        """A batch was appended: it waits for its outcome from now on (F20)."""
        deadline_ms = now_ms + self.timeout_ms
        self.limbo.push(
            Item(
                entry.base, entry.last, entry.count, entry.epoch, entry.durability, entry.size, now_ms, deadline_ms,
                entry.producer, entry.sequence, [Waiter(request, deadline_ms)],
            )
        )
        return self._arm(deadline_ms)

    def of_known(self, now_ms: int, m: AppendRequest, place: Place) -> list[Effect]:
        """Rule L19: a batch that is in the log is answered with its fate, now or once it is decided."""
        fate = self._fate(place)
        if place.count != m.batch.count:
            # Undecided, it may be what a deposed leader took before a rollback gave the sequence to another batch.
            reason = Reason.QUORUM_TIMEOUT if fate is Fate.UNKNOWN else Reason.INVALID_BATCH
            return [
                Reply(m.request, Refused(
                    reason, f"sequence {m.batch.sequence} holds {place.count} records, this retry has {m.batch.count}",
                    self.leader.epoch,
                ))
            ]
        match fate:
            case Fate.CONFIRMED:
                return [Reply(m.request, Appended(place.epoch, place.base, place.count, Durability.QUORUM))]
            case Fate.ROLLED_BACK:
                return [Reply(m.request, self._rolled_back(place.base))]
        return self._wait(now_ms, m.request, m.batch.producer, place, m.batch.durability)

    def on_request(self, now_ms: int, m: OutcomeRequest) -> list[Effect]:
        """Say what became of (producer, sequence); NOT_FOUND is advice to append it again, never an outcome (L20)."""
        log = self.replica.log
        verdict = log.producers.judge(m.producer, m.sequence, log.logged_ms)
        place = verdict.place
        if verdict.too_old:
            return [
                Reply(m.request, Refused(
                    Reason.SEQUENCE_TOO_OLD, f"the place of sequence {m.sequence} is no longer remembered",
                    self.leader.epoch, verdict.expected,
                ))
            ]
        if place is None or not place.count:
            return [Reply(m.request, Outcome(Fate.NOT_FOUND, self.leader.epoch, -1, 0))]
        fate = self._fate(place)
        if fate is Fate.UNKNOWN and m.wait:
            return self._wait(now_ms, m.request, m.producer, place, Durability.QUORUM, asks=True)
        covered = self.replica.log.decisions.covering(place.base)
        at = covered.at if covered is not None and fate is Fate.ROLLED_BACK else -1
        return [Reply(m.request, Outcome(fate, place.epoch, place.base, place.count, at))]

    def _fate(self, place: Place) -> Fate:
        fate = self.replica.fate(place)
        if fate is Fate.UNKNOWN and self._immediate:
            covered = self.replica.log.decisions.covering(place.base)
            if covered is not None and self.limbo.opening < covered.at <= self.leader.durable:  # ours, not inherited
                return Fate.ROLLED_BACK
        return fate

    def _wait(
        self, now_ms: int, request: int, producer: bytes, place: Place, durability: Durability, *, asks: bool = False
    ) -> list[Effect]:
        """Wait for the fate of an entry that is in the log and undecided."""
        waiter = Waiter(request, now_ms + self.timeout_ms, asks)
        item = self.limbo.find(place.last)
        if item is None:
            # Inherited: EPOCH_START's commit decides, and takes an inherited rollback along (L6).
            covered = self.replica.log.decisions.covering(place.base)
            item = Item(
                place.base, place.last, place.count, place.epoch, durability, 0, now_ms, waiter.deadline_ms,
                producer, place.sequence, covered=covered,
            )
            self.limbo.inherit(item)
        elif item.told and not asks:
            return [Reply(request, Appended(place.epoch, place.base, place.count, Durability.LOCAL))]
        elif len(item.waiters) >= WAITERS_MAX:
            return [
                Reply(request, Refused(
                    Reason.OVERLOADED, f"{WAITERS_MAX} callers wait for sequence {place.sequence} already",
                    self.leader.epoch, -1, 50,
                ))
            ]
        self.limbo.wait(item, waiter)
        return self._arm(waiter.deadline_ms)

    # --- deciding -----------------------------------------------------------------------------------------

    def decide(self, matches: Mapping[Member, int], held: int) -> list[Effect]:
        """Walk `confirmed` with what is acknowledged now (L3), and answer.

        `held` is what a majority of the ensemble in force holds of this epoch: less than commit when the ensemble grew.
        """
        replica, ensemble = self.replica, self.leader.ensemble
        synchro = held if self._majority_decides(ensemble) else synchro_offset(self.settings, ensemble, matches)
        durable = self.leader.durable if self.limbo.local_first else -1
        if self._decided == (replica.commit, synchro, durable):
            return []   # most acknowledgements move nothing
        self._decided = (replica.commit, synchro, durable)
        rolled_back = self.limbo.rollbacks
        answers = self.limbo.advance(replica.commit, synchro, self.leader.durable)
        # Where fewer than all members keep payloads, a stage releases what is confirmed (K10).
        effects = replica.advance_confirmed(self.limbo.confirmed, replica.released if self.leader.selective else None)
        effects += self._replies(answers)
        if self.limbo.rollbacks > rolled_back:
            effects.append(replica.trace("rolled_back", f"{self.limbo.rollbacks - rolled_back} batches"))
        return effects

    def _majority_decides(self, ensemble: tuple[Member, ...]) -> bool:
        """Say whether the synchro quorum is a majority of the ensemble; looked up again when either is another one."""
        settings, known = self.settings, self._plain_for
        if known is None or known[0] is not settings or known[1] is not ensemble:
            self._plain_for = settings, ensemble
            self.majority_decides = settings is not None and settings.zones <= 1 and (
                needed_members(settings, len(ensemble)) <= majority(len(ensemble)))
        return self.majority_decides

    def on_durable(self, durable: int) -> list[Effect]:
        """Our own log is durable up to here: a rollback among it no longer keeps appends out (L7)."""
        if 0 <= self._rolling <= durable:
            self._rolling = -1
        return self._replies(self.limbo.rolled_back_here(durable)) if self._immediate else []

    def note_confirmed(self, now_ms: int) -> None:
        """Append one CONFIRM for everything decided since the last (A1, L11): a hint, so nothing waits for it."""
        replica = self.replica
        if replica.space is Space.EXHAUSTED or self.leader.transfer is not None or not self.owes_confirm:
            return
        self._noted = self.limbo.data_confirmed
        self.leader.append_control(now_ms, Kind.CONFIRM, argument=replica.confirmed)

    @property
    def owes_confirm(self) -> bool:
        """Say whether something was confirmed that no CONFIRM covers yet."""
        return self.limbo.data_confirmed > self._noted

    # --- time ---------------------------------------------------------------------------------------------

    def _arm(self, deadline_ms: int) -> list[Effect]:
        if self._armed_at is not None and self._armed_at <= deadline_ms:
            return []
        self._armed_at = deadline_ms
        return [SetTimer(self.replica.address, QUORUM_TIMER, deadline_ms)]

    def on_timer(self, now_ms: int) -> list[Effect]:
        """A deadline came: whoever waited that long is told so, and the oldest entry's timeout decides (F21)."""
        self._armed_at = None
        late = self.limbo.expire(now_ms)
        effects = self._replies(late)
        if late:
            effects.append(self.replica.trace("quorum_timeout", f"{len(late)} batches from {late[0].item.base}"))
        effects += self._roll_back(now_ms)
        deadline_ms = self.limbo.next_deadline()
        if deadline_ms is None:
            return effects
        # A rollback that cannot be written yet is tried again, not spun on.
        return effects + self._arm(deadline_ms if deadline_ms > now_ms else now_ms + self.replica.limits.resend_ms)

    def _roll_back(self, now_ms: int) -> list[Effect]:
        """Rule L7: append ROLLBACK(from) when the oldest undecided QUORUM entry has waited long enough."""
        replica, oldest = self.replica, self.limbo.oldest_asked()
        if (
            oldest is None
            or oldest.deadline_ms > now_ms
            or replica.confirmed < self.limbo.opening   # what we inherited is not ours to roll back (L6)
            or oldest.base <= replica.confirmed
            or replica.space is Space.EXHAUSTED
        ):
            return []
        self.leader.append_control(now_ms, Kind.ROLLBACK, argument=oldest.base)
        covered = replica.log.decisions.covering(oldest.base)
        assert covered is not None, "L5: the fold has not taken the rollback in"
        self.limbo.cover(covered)
        self._rolling = covered.at
        return [replica.trace("rollback_appended", f"from {covered.first} at {covered.at}")]

    # --- answering ----------------------------------------------------------------------------------------

    @property
    def _immediate(self) -> bool:
        return self.settings is not None and self.settings.rollback is Rollback.IMMEDIATE

    def _rolled_back(self, base: int) -> Refused:
        covered = self.replica.log.decisions.covering(base)
        at = covered.at if covered is not None else -1
        return Refused(
            Reason.ROLLED_BACK, f"the batch at {base} was rolled back at {at}: nobody will read it",
            self.leader.epoch, at,
        )

    def _replies(self, answers: Iterable[Answer]) -> list[Effect]:
        return [
            Reply(waiter.request, self._outcome(answer) if waiter.final else self._value(answer))
            for answer in answers for waiter in answer.waiters
        ]

    def _value(self, answer: Answer) -> Appended | Refused:
        item = answer.item
        match answer.verdict:
            case Verdict.CONFIRMED:
                return Appended(item.epoch, item.base, item.count, Durability.QUORUM)
            case Verdict.LOCAL:
                return Appended(item.epoch, item.base, item.count, Durability.LOCAL)
            case Verdict.ROLLED_BACK:
                return self._rolled_back(item.base)
        return Refused(
            Reason.QUORUM_TIMEOUT,
            f"the batch at {item.base} was not confirmed within {self.timeout_ms} ms; its outcome is unknown",
            self.leader.epoch,
        )

    def _outcome(self, answer: Answer) -> Outcome:
        item = answer.item
        at = item.covered.at if item.covered is not None and answer.verdict is Verdict.ROLLED_BACK else -1
        return Outcome(Fate(answer.verdict), item.epoch, item.base, item.count, at)
