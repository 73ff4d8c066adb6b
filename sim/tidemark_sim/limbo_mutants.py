"""The limbo minus one repair, each named by its rule (the list at the end of the limbo rules, and two more).

Stays out: everything that is not about confirming, rolling back and telling; see `mutants`.
"""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.entry import Durability, Kind
from tidemark_core.base.ids import EntryId, Member
from tidemark_core.base.quorum import majority, quorum_offset
from tidemark_core.limbo import quorum as core_quorum
from tidemark_core.limbo.decisions import Decisions, Range
from tidemark_core.limbo.waiting import Answer, Covered, Item, Limbo, Verdict
from tidemark_core.replication import leader as core_leader
from tidemark_core.replication import outcomes as core_outcomes
from tidemark_core.replication.cursor import Cursor, CursorStatus
from tidemark_core.replication.follower import Follower
from tidemark_core.replication.leader import Leader
from tidemark_core.replication.messages import Append, Fate
from tidemark_core.replication.outcomes import Outcomes
from tidemark_core.replication.producers import ProducerTable
from tidemark_core.replication.producers import Verdict as ProducerVerdict
from tidemark_core.replication.replica import Replica, Role

from .mutant import Mutant, substitute

# --- watermarks (L9) ----------------------------------------------------------------------------------------


def _follower_clamps(stack: ExitStack) -> None:
    def message(self: Leader, prev: EntryId, entries: Any) -> Append:
        return replace(original(self, prev, entries), confirmed=self.replica.confirmed)

    def on_append(self: Follower, sender: Member, m: Append) -> list[Any]:
        return follow(self, sender, replace(m, confirmed=min(m.confirmed, m.commit, m.through)))

    original, follow = Leader._message, Follower.on_append
    substitute(stack, Leader, "_message", message)
    substitute(stack, Follower, "on_append", on_append)


def _applied_before_truncation(stack: ExitStack) -> None:
    def attach(self: Leader, cursor: Cursor, head: EntryId) -> list[Any]:
        effects = original(self, cursor, head)
        if cursor.status is CursorStatus.TRUNCATING:
            effects.append(self.replica.send(cursor.follower, self._message(self.replica.log.head, ())))
        return effects

    def on_append(self: Follower, sender: Member, m: Append) -> list[Any]:
        replica = self.replica
        if m.epoch >= replica.state.epoch and replica.state.role in (Role.FENCED, Role.FOLLOWER):
            held = min(m.confirmed, replica.log.head.offset)
            replica.advance_commit(held)
            replica.confirmed = max(replica.confirmed, held)
        return follow(self, sender, m)

    original, follow = Leader._attach, Follower.on_append
    substitute(stack, Leader, "_attach", attach)
    substitute(stack, Follower, "on_append", on_append)


# --- EPOCH_START (L2 to L7) ---------------------------------------------------------------------------------


def _opening_overrides(stack: ExitStack) -> None:
    def begin(self: Leader, now_ms: int, sender: Any, m: Any) -> list[Any]:
        decisions, confirmed = self.replica.log.decisions, self.replica.confirmed
        decisions.ranges = [found for found in decisions.ranges if found.at <= confirmed]
        return original(self, now_ms, sender, m)

    original = Leader.begin
    substitute(stack, Leader, "begin", begin)


def _opening_in_the_log(stack: ExitStack) -> None:
    def decide(self: Outcomes, matches: Any, majority_holds: int) -> list[Any]:
        opening = self.limbo.opening
        if self.replica.commit < opening <= self.leader.durable:
            self.replica.advance_commit(opening)
        return original(self, matches, majority_holds)

    original = Outcomes.decide
    substitute(stack, Outcomes, "decide", decide)


def _opening_at_restart(stack: ExitStack) -> None:
    def restore(cls: Any, *arguments: Any) -> Replica:
        replica: Replica = original(*arguments)
        openings = replica.log.decisions.openings
        if openings and replica.state.role is not Role.SEEDING:
            replica.advance_commit(openings[-1])
            replica.confirmed = max(replica.confirmed, openings[-1])
        return replica

    original = Replica.restore
    substitute(stack, Replica, "restore", classmethod(restore))


def _rollback_in_the_log(stack: ExitStack) -> None:
    def fate(self: Replica, place: Any) -> Any:
        found = self.log.decisions.covering(place.base)
        return Fate.ROLLED_BACK if found is not None else original(self, place)

    original = Replica.fate
    substitute(stack, Replica, "fate", fate)


def _reaches_across(stack: ExitStack) -> None:
    def note(self: Decisions, entry: Any) -> None:
        if entry.kind is Kind.ROLLBACK:
            self.ranges.append(Range(entry.sequence, entry.base))
        else:
            original(self, entry)

    def roll_back(self: Outcomes, now_ms: int) -> list[Any]:
        oldest = self.limbo.oldest_asked()
        if oldest is None or oldest.deadline_ms > now_ms or self.replica.confirmed >= self.limbo.opening:
            return start(self, now_ms)
        self.leader.append_control(now_ms, Kind.ROLLBACK, argument=self.replica.confirmed + 1)
        covered = self.replica.log.decisions.ranges[-1]
        self.limbo.cover(covered)
        self._rolling = covered.at
        return []

    original, start = Decisions.note, Outcomes._roll_back
    substitute(stack, Decisions, "note", note)
    substitute(stack, Outcomes, "_roll_back", roll_back)


def _old_acks_count(stack: ExitStack) -> None:
    def attach(self: Cursor, head: EntryId) -> None:
        original(self, head)
        self.match = max(self.match, head.offset)   # what it held when it was fenced
        self.rewind()

    def committable(log: Any, epoch: int, ensemble: Any, matches: Any) -> int:
        return quorum_offset([matches[member] for member in ensemble if member in matches], majority(len(ensemble)))

    original = Cursor.attach
    substitute(stack, Cursor, "attach", attach)
    substitute(stack, core_leader, "committable", committable)


def _noop_opens(stack: ExitStack) -> None:
    def decide(self: Outcomes, matches: Any, majority_holds: int) -> list[Any]:
        limbo, commit = self.limbo, self.replica.commit
        noop = max((base for base in self.noops if base <= commit), default=-1)
        while limbo._asked and limbo._asked[0].last < noop:
            limbo._asked.popleft()   # confirmed by what opens the epoch, whatever the synchro quorum says
        self._decided = None
        return original(self, matches, majority_holds)

    def on_prepare(self: Leader, now_ms: int, sender: Any, m: Any) -> list[Any]:
        before = self.epoch
        effects = prepare(self, now_ms, sender, m)
        if self.epoch > before:
            self.outcomes.noops.append(self.head)
        return effects

    class Opening(Outcomes):
        """Remembers where changes began."""

        __slots__ = ("noops",)

        def __init__(self, leader: Leader) -> None:
            super().__init__(leader)
            self.noops: list[int] = []

    original, prepare = Outcomes.decide, Leader.on_prepare
    Opening.decide = decide  # type: ignore[method-assign, assignment]
    substitute(stack, core_leader, "Outcomes", Opening)
    substitute(stack, Leader, "on_prepare", on_prepare)


# --- the quorum (L3) ----------------------------------------------------------------------------------------


def _majority_is_enough(stack: ExitStack) -> None:
    substitute(stack, core_outcomes, "needed_members", lambda settings, members: majority(members))
    substitute(stack, core_quorum, "needed_members", lambda settings, members: majority(members))


def _untold_leader_confirms(stack: ExitStack) -> None:
    def needed(settings: Any, members: int) -> int:
        return original(settings, members) if settings is not None else majority(members)

    original = core_quorum.needed_members
    substitute(stack, core_outcomes, "needed_members", needed)
    substitute(stack, core_quorum, "needed_members", needed)


def _zones_ignored(stack: ExitStack) -> None:
    def synchro_offset(settings: Any, ensemble: Any, matches: Any) -> int:
        return original(settings and replace(settings, zones=0), ensemble, matches)

    original = core_outcomes.synchro_offset
    substitute(stack, core_outcomes, "synchro_offset", synchro_offset)


# --- rolling back (L7, L8) ----------------------------------------------------------------------------------


def _late_ack_confirms(stack: ExitStack) -> None:
    def decide(self: Outcomes, matches: Any, majority_holds: int) -> list[Any]:
        limbo, log = self.limbo, self.replica.log
        held = quorum_offset(matches.values(), len(self.leader.ensemble))
        if limbo._covered and limbo._covered[0].items and self.replica.commit < limbo._covered[0].range.at:
            first = limbo._covered[0]
            if first.items[-1].last <= min(held, self.replica.commit):
                limbo._covered.popleft()
                log.decisions.ranges = [found for found in log.decisions.ranges if found != first.range]
                for item in reversed(first.items):
                    item.covered = None
                    limbo._unanswered.appendleft(item)
                self._decided = None
        return original(self, matches, majority_holds)

    original = Outcomes.decide
    substitute(stack, Outcomes, "decide", decide)


def _told_at_local_sync(stack: ExitStack) -> None:
    substitute(stack, Outcomes, "_immediate", property(lambda self: True))


def _older_revert_too(stack: ExitStack) -> None:
    def roll_back(self: Outcomes, now_ms: int) -> list[Any]:
        oldest = self.limbo.oldest_asked()
        first = next((item for item in self.limbo if item.covered is None), None)
        if oldest is None or first is None or oldest.deadline_ms > now_ms or first.told:
            return original(self, now_ms)
        first.deadline_ms = oldest.deadline_ms
        self.limbo._asked.appendleft(first)
        return original(self, now_ms)

    original = Outcomes._roll_back
    substitute(stack, Outcomes, "_roll_back", roll_back)


def _newer_decides_first(stack: ExitStack) -> None:
    def oldest_asked(self: Limbo) -> Item | None:
        return min(self._asked, key=lambda item: item.deadline_ms, default=None)

    def cover(self: Limbo, covered: Range) -> None:
        older = deque(item for item in self._asked if item.base < covered.first)
        original(self, covered)
        self._asked = older

    original = Limbo.cover
    substitute(stack, Limbo, "oldest_asked", oldest_asked)
    substitute(stack, Limbo, "cover", cover)


def _oldest_told_first(stack: ExitStack) -> None:
    def cover(self: Limbo, covered: Range) -> None:
        original(self, covered)
        newest = self._covered.pop()
        self._covered.append(Covered(newest.range, tuple(reversed(newest.items))))

    original = Limbo.cover
    substitute(stack, Limbo, "cover", cover)


def _not_in_checkpoint(stack: ExitStack) -> None:
    substitute(stack, Decisions, "upto", lambda self, offset, logged_ms: Decisions())


def _not_undone(stack: ExitStack) -> None:
    substitute(stack, Decisions, "undo_to", lambda self, head: None)


# --- LOCAL (L14) --------------------------------------------------------------------------------------------


def _local_overtakes(stack: ExitStack) -> None:
    def answer(self: Limbo, answers: list[Answer], confirmed: int, durable: int) -> None:
        original(self, answers, confirmed, durable)
        for item in list(self._unanswered):
            if item.durability is Durability.LOCAL and item.last <= durable and item.covered is None:
                self._unanswered.remove(item)
                answers.append(self._settle(item, Verdict.LOCAL))

    def cover(self: Limbo, covered: Range) -> None:
        kept = list(self._queue)
        self._queue = deque(item for item in kept if item.base < covered.first or item in self._unanswered)
        start(self, covered)
        self._queue = deque(kept)
        self._covered[-1] = Covered(covered, tuple(item for item in kept if item.base >= covered.first))
        for item in self._covered[-1].items:
            item.covered = covered

    original, start = Limbo._answer, Limbo.cover
    substitute(stack, Limbo, "_answer", answer)
    substitute(stack, Limbo, "cover", cover)


def _local_visible_at_ack(stack: ExitStack) -> None:
    def decide(self: Outcomes, matches: Any, majority_holds: int) -> list[Any]:
        effects = original(self, matches, majority_holds)
        told = max((item.last for item in self.limbo if item.told), default=-1)
        if told > self.replica.confirmed:
            self.replica.commit = max(self.replica.commit, told)
            effects += self.replica.advance_confirmed(told)
        return effects

    original = Outcomes.decide
    substitute(stack, Outcomes, "decide", decide)


# --- producers (L18, L19, L22) ------------------------------------------------------------------------------


def _rolled_back_appended_again(stack: ExitStack) -> None:
    def on_append_request(self: Leader, now_ms: int, m: Any) -> list[Any]:
        log, batch = self.replica.log, m.batch
        verdict = log.producers.judge(batch.producer, batch.sequence, log.logged_ms)
        covered = log.decisions.covering(verdict.place.base) if verdict.place else None
        if covered is None or covered.at > self.replica.confirmed:
            return original(self, now_ms, m)
        with ExitStack() as inner:
            again = ProducerVerdict(None, batch.sequence, False)
            substitute(inner, ProducerTable, "judge", lambda *_: again)
            substitute(inner, Outcomes, "refuse_producer", lambda *_: None)
            return original(self, now_ms, m)

    original = Leader.on_append_request
    substitute(stack, Leader, "on_append_request", on_append_request)


def _map_of_confirmed(stack: ExitStack) -> None:
    def on_append_request(self: Leader, now_ms: int, m: Any) -> list[Any]:
        confirmed = self.replica.confirmed

        def judge(table: ProducerTable, producer: bytes, sequence: int, now_logged_ms: int) -> ProducerVerdict:
            verdict = look(table, producer, sequence, now_logged_ms)
            if verdict.place is not None and verdict.place.last > confirmed:
                return ProducerVerdict(None, sequence, False)
            return verdict

        with ExitStack() as inner:
            substitute(inner, ProducerTable, "judge", judge)
            return original(self, now_ms, m)

    original, look = Leader.on_append_request, ProducerTable.judge
    substitute(stack, Leader, "on_append_request", on_append_request)


def _gaps_accepted(stack: ExitStack) -> None:
    def judge(self: ProducerTable, producer: bytes, sequence: int, now_logged_ms: int) -> ProducerVerdict:
        verdict = original(self, producer, sequence, now_logged_ms)
        return verdict._replace(expected=sequence) if verdict.place is None and not verdict.too_old else verdict

    original = ProducerTable.judge
    substitute(stack, ProducerTable, "judge", judge)


def _goes_on_unaware(stack: ExitStack) -> None:
    substitute(stack, Outcomes, "refuse_producer", lambda self, m: None)


def _newest_place_alone(stack: ExitStack) -> None:
    def refuse_producer(self: Outcomes, m: Any) -> Any:
        with ExitStack() as inner:
            substitute(inner, ProducerTable, "places", lambda table, producer: places(table, producer)[-1:])
            return original(self, m)

    original, places = Outcomes.refuse_producer, ProducerTable.places
    substitute(stack, Outcomes, "refuse_producer", refuse_producer)


def _trim_forgets(stack: ExitStack) -> None:
    def trim(self: Decisions, first: int) -> None:
        original(self, max(first, self.openings[-1] if self.openings else -1))

    original = Decisions.trim
    substitute(stack, Decisions, "trim", trim)


LIMBO_MUTANTS: tuple[Mutant, ...] = (
    Mutant("L9 clamp", "a watermark is lowered by the leader, never by the follower", _follower_clamps, "limbo"),
    Mutant("L9 order", "a watermark counts only behind truncation", _applied_before_truncation, "divergence"),
    Mutant("L3 override", "EPOCH_START keeps inherited rollbacks", _opening_overrides, "limbo"),
    Mutant("L6 in the log", "EPOCH_START confirms when it is committed", _opening_in_the_log, "limbo"),
    Mutant("L5 restart", "EPOCH_START found at a restart confirms nothing", _opening_at_restart, "divergence"),
    Mutant("L6 rollback", "an inherited rollback is definite once committed", _rollback_in_the_log, "limbo"),
    Mutant("L7 across", "a rollback ends above EPOCH_START", _reaches_across, "limbo"),
    Mutant("L2 L3", "acks of old epochs do not count", _old_acks_count, "divergence"),
    Mutant("L4", "a NOOP confirms nothing", _noop_opens, "limbo"),
    Mutant("L3 quorum", "QUORUM waits for the synchro quorum", _majority_is_enough, "limbo"),
    Mutant("L3 untold", "a leader without settings asks for everybody", _untold_leader_confirms, "limbo"),
    Mutant("L3 zones", "copies must be in enough zones", _zones_ignored, "limbo"),
    Mutant("L8 late ack", "nothing confirms what a rollback covers", _late_ack_confirms, "limbo"),
    Mutant("L8 local", "ROLLED_BACK waits for commit", _told_at_local_sync, "limbo"),
    Mutant("L17", "a rollback is told newest first", _oldest_told_first, "limbo"),
    Mutant("L5 checkpoint", "rollbacks are part of checkpoints", _not_in_checkpoint, "limbo"),
    Mutant("L5 undo", "rollbacks are undone by truncation", _not_undone, "limbo"),
    Mutant("L14 overtakes", "LOCAL waits behind undecided QUORUM entries", _local_overtakes, "limbo"),
    Mutant("L14 visible", "LOCAL is visible when confirmed", _local_visible_at_ack, "limbo"),
    Mutant("L19 again", "a rolled back sequence is never appended again", _rolled_back_appended_again, "limbo"),
    Mutant("L18 confirmed", "the map holds pending entries", _map_of_confirmed, "limbo"),
    Mutant("L19 gap", "sequences are contiguous", _gaps_accepted, "replication"),
    Mutant("L22", "a producer goes on only behind the rollback it knows", _goes_on_unaware, "limbo"),
    Mutant("L22 newest", "every remembered batch counts, not the newest alone", _newest_place_alone, "limbo"),
    Mutant("L19 trim", "a trim keeps the rollback of a remembered batch", _trim_forgets, "limbo"),
    Mutant("F23 older", "a rollback leaves older entries alone", _older_revert_too, "limbo"),
    Mutant("F21 newer", "only the oldest entry's timeout decides", _newer_decides_first, "limbo"),
)
