"""The product minus one repair, each named by its rule: proof that the checkers see.

`profile` says where each shows soonest; a test runs it from the seed in `tests/sim/mutant_seeds.json` on.
Stays out: anything a run of the product uses; the mutants of limbo, delivery, copies, subscriptions and others are in
`limbo_mutants`, `delivery_mutants`, `copies_mutants`, `positions_mutants`, `clock_mutants`, `latest_mutants`,
`trust_mutants` and more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import tidemark_core.shard as core_shard
from tidemark_core.base.effects import Persist, PutEntry, Send
from tidemark_core.base.ids import Member
from tidemark_core.base.quorum import has_majority, majority, quorum_offset
from tidemark_core.limbo.waiting import Limbo, Verdict
from tidemark_core.replication import coordinator as core_coordinator
from tidemark_core.replication import leader as core_leader
from tidemark_core.replication import recovery
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.cursor import Cursor, CursorStatus
from tidemark_core.replication.ensembles import Ensembles
from tidemark_core.replication.fetching import Fetching
from tidemark_core.replication.follower import Follower
from tidemark_core.replication.leader import Leader
from tidemark_core.replication.log import Log
from tidemark_core.replication.messages import Append, AppendAck, Operation
from tidemark_core.replication.producers import Known, ProducerTable
from tidemark_core.replication.records import Phase
from tidemark_core.replication.replica import Replica, Role
from tidemark_core.shard import Shard

from . import rebuilding
from .claims_mutants import CLAIMS_MUTANTS
from .clock_mutants import CLOCK_MUTANTS
from .coordination_mutants import COORDINATION_MUTANTS
from .copies_mutants import COPIES_MUTANTS
from .crowd import CrowdOptions, remembered
from .delivery_mutants import DELIVERY_MUTANTS
from .documents_mutants import DOCUMENTS_MUTANTS
from .expecting_mutants import EXPECTING_MUTANTS
from .keyspaces.mutants import KEYSPACE_MUTANTS
from .latest_mutants import LATEST_MUTANTS
from .limbo_mutants import LIMBO_MUTANTS
from .loss_mutants import LOSS_MUTANTS
from .metadata import MetadataStore
from .mutant import Mutant, early, substitute
from .node import Node
from .positions_mutants import POSITIONS_MUTANTS
from .producing_mutants import PRODUCING_MUTANTS
from .reach_mutants import REACH_MUTANTS
from .sinks_mutants import SINKS_MUTANTS
from .space_mutants import SPACE_MUTANTS
from .trust_mutants import TRUST_MUTANTS

# --- H1 -----------------------------------------------------------------------------------------------------


def _h1_one_shot(stack: ExitStack) -> None:
    def on_truncated(self: Leader, now_ms: int, sender: Member, m: Any) -> list[Any]:
        cursor = self.cursors.get(sender)
        if cursor is None or m.epoch != self.epoch or cursor.status is not CursorStatus.TRUNCATING:
            return []
        cursor.attach(m.head)
        return [*self._push(cursor), *self._arm_resend(now_ms)]

    substitute(stack, Leader, "on_truncated", on_truncated)
    _no_prev_check(stack)


def _no_prev_check(stack: ExitStack) -> None:
    def append(self: Log, entry: Any) -> None:
        top = self._top
        original(self, entry._replace(prev=top.id, prev_chain=top.chain, epoch=max(entry.epoch, top.id.epoch)))

    def contains(self: Log, entry: Any) -> bool:
        return True

    def on_append(self: Follower, sender: Member, m: Append) -> list[Any]:
        with ExitStack() as inner:
            substitute(inner, Log, "contains", contains)
            substitute(inner, Log, "append", append)
            return follow(self, sender, m)

    original, follow = Log.append, Follower.on_append
    substitute(stack, Follower, "on_append", on_append)


# --- H2, H3, H3b, H4, H5, H6 --------------------------------------------------------------------------------


def _h2_no_compare(stack: ExitStack) -> None:
    def apply(self: MetadataStore, operator: Any, life: int, effect: Any) -> None:
        original(self, operator, life, replace(effect, expected=self.records[effect.address.shard][1]))

    original = MetadataStore._apply
    substitute(stack, MetadataStore, "_apply", apply)


def _h3_commit_falls(stack: ExitStack) -> None:
    def advance(self: Leader, now_ms: int) -> list[Any]:
        safe = core_leader.committable(self.replica.log, self.epoch, self.ensemble, self.matches())
        self.replica.commit = min(self.replica.commit, safe)
        return original(self, now_ms)

    original = Leader.advance
    substitute(stack, Leader, "advance", advance)


def _h3b_no_noop(stack: ExitStack) -> None:
    def open_epoch(self: Leader, now_ms: int, kind: Any) -> None:
        if kind is not core_leader.Kind.NOOP:
            original(self, now_ms, kind)

    original = Leader._open_epoch
    substitute(stack, Leader, "_open_epoch", open_epoch)


def _h4_stale_factor(stack: ExitStack) -> None:
    class StaleFactor(Leader):
        """Counts with the size its ensemble had when it was elected."""

        __slots__ = ("factor",)

        def begin(self, now_ms: int, sender: Any, m: Any) -> list[Any]:
            self.factor = len(m.ensemble)
            return super().begin(now_ms, sender, m)

        def advance(self, now_ms: int) -> list[Any]:
            def committable(log: Log, epoch: int, ensemble: Any, matches: Any) -> int:
                held = [match for member, match in matches.items() if member in ensemble]
                offset = quorum_offset(held, majority(self.factor))
                return offset if offset >= 0 and log.epoch_at(offset) == epoch else -1

            with ExitStack() as inner:
                substitute(inner, core_leader, "committable", committable)
                return super().advance(now_ms)

    substitute(stack, core_shard, "Leader", StaleFactor)


def _h5_fence_old_only(stack: ExitStack) -> None:
    def fence(self: Coordinator, member: Member) -> Any:
        assert self.record is not None
        message = original(self, member)
        if self.election is not None and member not in self.record.ensemble:
            return Send(self.address, self.record.ensemble[0], message.message)
        return message

    original = Coordinator._fence
    substitute(stack, Coordinator, "_fence", fence)


def _h6_contract_in_election(stack: ExitStack) -> None:
    def ensembles_of(record: Any) -> Ensembles:
        change = record.change
        if change is not None and change.phase is Phase.COMMIT and change.operation is Operation.CONTRACT:
            return Ensembles(record.ensemble, core_coordinator.changed_ensemble(record.ensemble, change))
        return original(record)

    def elect(self: Coordinator, now_ms: int) -> list[Any]:
        record = self.record
        assert record is not None
        change = record.change
        if change is None or change.phase is not Phase.COMMIT or change.operation is not Operation.CONTRACT:
            return start(self, now_ms)
        self.election = None
        return self._save(
            replace(
                record, epoch=record.epoch + 1, election=self.revision,
                status=core_coordinator.Status.ELECTION, leader=None,
            )
        )

    original, start = core_coordinator.ensembles_of, Coordinator._elect
    substitute(stack, core_coordinator, "ensembles_of", ensembles_of)
    substitute(stack, Coordinator, "_elect", elect)


def _n6_whoever_answered(stack: ExitStack) -> None:
    def find(shard: Any, reports: Any, answered: Any, silent: int, **more: Any) -> Any:
        return original(shard, reports, answered, silent, **{**more, "accept": True})

    original = rebuilding.find_record
    substitute(stack, rebuilding, "find_record", find)


def _n4_the_leader_is_believed(stack: ExitStack) -> None:
    def resolve(facts: Any, reports: Any, answered: Any) -> Any:
        if any(one.role is Role.LEADER and one.epoch == facts.epoch and one.pending for one in reports):
            return replace(facts, pending=None)
        return original(facts, reports, answered)

    original = recovery.resolve
    substitute(stack, recovery, "resolve", resolve)


def _n5_prepared_changes_are_ignored(stack: ExitStack) -> None:
    def resolve(facts: Any, reports: Any, answered: Any) -> Any:
        return original(replace(facts, pending=None), reports, answered)

    original = recovery.resolve
    substitute(stack, recovery, "resolve", resolve)


def _n5_silent_is_seeded(stack: ExitStack) -> None:
    def resolve(facts: Any, reports: Any, answered: Any) -> Any:
        new = facts.pending and facts.pending.new
        if new is not None and new not in answered:
            known = replace(reports[0], member=new, role=Role.FOLLOWER, epoch=facts.epoch)
            return original(facts, [*reports, known], answered)
        return original(facts, reports, answered)

    original = recovery.resolve
    substitute(stack, recovery, "resolve", resolve)


def _k16_the_same_one_again(stack: ExitStack) -> None:
    def begin(self: Fetching, *what: Any) -> Any:
        self._mute.clear()
        return original(self, *what)

    original = Fetching.begin
    substitute(stack, Fetching, "begin", begin)


def _union_only_old_majority(stack: ExitStack) -> None:
    def answered(self: Ensembles, heads: Any) -> bool:
        return has_majority(self.fencing[: len(self.final)], heads)

    substitute(stack, Ensembles, "answered", answered)


# --- durability of promises ---------------------------------------------------------------------------------


def _ack_before_sync(stack: ExitStack) -> None:
    def on_append(self: Follower, sender: Member, m: Append) -> list[Any]:
        return early(original(self, sender, m), (AppendAck,))

    original = Follower.on_append
    substitute(stack, Follower, "on_append", on_append)


def _leader_counts_unsynced(stack: ExitStack) -> None:
    def persist_fresh(self: Leader, then: Any = (), writes: Any = ()) -> Persist:
        self.durable = self.head
        return original(self, then, writes)

    original = Leader._persist_fresh
    substitute(stack, Leader, "_persist_fresh", persist_fresh)


def _fence_overtakes(stack: ExitStack) -> None:
    def on_fence(self: Follower, sender: Any, m: Any) -> list[Any]:
        return early(original(self, sender, m), (core_coordinator.Fenced,))

    original = Follower.on_fence
    substitute(stack, Follower, "on_fence", on_fence)


def _epoch_not_stored(stack: ExitStack) -> None:
    def persist(self: Replica, writes: Any, then: Any = ()) -> Persist:
        effect = original(self, writes, then)
        if self.state.role is Role.FENCED and not effect.writes[:-1]:
            return replace(effect, writes=())
        return effect

    original = Replica.persist
    substitute(stack, Replica, "persist", persist)


def _leads_again(stack: ExitStack) -> None:
    def restore(cls: Any, *arguments: Any) -> Replica:
        replica: Replica = original(*arguments)
        if replica.state.role is Role.DEPOSED:
            replica.state = replace(replica.state, role=Role.FENCED)
        return replica

    original = Replica.restore
    substitute(stack, Replica, "restore", classmethod(restore))


# --- counting -----------------------------------------------------------------------------------------------


def _figure_8(stack: ExitStack) -> None:
    def committable(log: Log, epoch: int, ensemble: Any, matches: Any) -> int:
        held = [match for member, match in matches.items() if member in ensemble]
        return quorum_offset(held, majority(len(ensemble)))

    substitute(stack, core_leader, "committable", committable)


def _old_member_counts(stack: ExitStack) -> None:
    def on_prepare(self: Leader, now_ms: int, sender: Any, m: Any) -> list[Any]:
        effects = original(self, now_ms, sender, m)
        if m.old in self.cursors and self.cursors[m.old].status is CursorStatus.SILENCED:
            self.cursors[m.old].status = CursorStatus.ATTACHED
        return effects

    original = Leader.on_prepare
    substitute(stack, Leader, "on_prepare", on_prepare)


def _commit_before_snapshot(stack: ExitStack) -> None:
    def on_prepared(self: Coordinator, now_ms: int, sender: Member, m: Any) -> list[Any]:
        effects = original(self, now_ms, sender, m)
        record = self.record
        if self.change is not None and self.change.snapshot is not None and record is not None and not self._busy:
            return [*effects, *self._save_commit(record, self.change.snapshot.head)]
        return effects

    original = Coordinator._on_prepared
    substitute(stack, Coordinator, "_on_prepared", on_prepared)


def _choice_by_offset(stack: ExitStack) -> None:
    def choose_leader(final: Any, heads: Any, preferred: Any) -> Any:
        turned: Any = {member: (head.offset, head.epoch) for member, head in heads.items()}
        return original(final, turned, preferred)

    original = core_coordinator.choose_leader
    substitute(stack, core_coordinator, "choose_leader", choose_leader)


# --- identity -----------------------------------------------------------------------------------------------


def _wiped_votes(stack: ExitStack) -> None:
    def wipe(self: Node) -> None:
        member, incarnations = self.member, self.incarnations
        original(self)
        self.member, self.incarnations = member, incarnations

    original = Node.wipe
    substitute(stack, Node, "wipe", wipe)


# --- followers ----------------------------------------------------------------------------------------------


def _table_on_leaders_only(stack: ExitStack) -> None:
    def on_append(self: Follower, sender: Member, m: Append) -> list[Any]:
        with ExitStack() as inner:
            substitute(inner, ProducerTable, "note", lambda self, entry: None)
            return original(self, sender, m)

    original = Follower.on_append
    substitute(stack, Follower, "on_append", on_append)


def _table_not_undone(stack: ExitStack) -> None:
    substitute(stack, ProducerTable, "undo_to", lambda self, head: None)


def _table_not_in_checkpoint(stack: ExitStack) -> None:
    substitute(stack, ProducerTable, "upto", lambda self, offset, logged_ms: ProducerTable())


def _table_without_end(stack: ExitStack) -> None:
    def note(self: ProducerTable, entry: Any) -> None:
        with remembered(CrowdOptions()):
            original(self, entry)

    original = ProducerTable.note
    substitute(stack, ProducerTable, "note", note)


def _oldest_of_all_goes(stack: ExitStack) -> None:
    substitute(stack, ProducerTable, "_least", lambda self, logged_ms: next(iter(self._known)))


def _changes_not_in_rows(stack: ExitStack) -> None:
    substitute(stack, ProducerTable, "save", lambda self, most: iter(()))


def _rows_of_what_may_be_undone(stack: ExitStack) -> None:
    def save(self: ProducerTable, most: int) -> Iterator[tuple[bytes, Known | None]]:
        for producer, _ in original(self, most):
            yield producer, self.snapshot().get(producer)

    original = ProducerTable.save
    substitute(stack, ProducerTable, "save", save)


def _trim_past_followers(stack: ExitStack) -> None:
    def matches(self: Leader) -> dict[Member, int]:
        return dict.fromkeys(self.ensemble, self.head)

    def trim(self: Leader, before: int) -> list[Any]:
        with ExitStack() as inner:
            substitute(inner, Leader, "matches", matches)
            return original(self, before)

    original = Leader.trim
    substitute(stack, Leader, "trim", trim)


def _new_member_counts(stack: ExitStack) -> None:
    def on_prepare(self: Leader, now_ms: int, sender: Any, m: Any) -> list[Any]:
        before = self.change
        effects = original(self, now_ms, sender, m)
        is_taken = self.change is m and before is not m
        if is_taken and m.operation is Operation.SWAP:
            self.replica.update(ensemble=tuple(m.new if member == m.old else member for member in self.ensemble))
            self.cursors[m.new] = Cursor(m.new)
        return effects

    original = Leader.on_prepare
    substitute(stack, Leader, "on_prepare", on_prepare)


def _ack_over_gap(stack: ExitStack) -> None:
    def on_append(self: Follower, sender: Member, m: Append) -> list[Any]:
        replica = self.replica
        if (
            m.entries and m.epoch == replica.state.epoch and m.prev.offset > replica.log.head.offset
            and replica.state.role in (Role.FENCED, Role.FOLLOWER)
        ):
            ack = AppendAck(m.epoch, m.through, replica.commit)
            return [replica.persist([PutEntry(entry) for entry in m.entries], [replica.send(sender, ack)])]
        return original(self, sender, m)

    original = Follower.on_append
    substitute(stack, Follower, "on_append", on_append)


def _old_leader_demotes(stack: ExitStack) -> None:
    def on_received(self: Shard, now_ms: int, sender: Any, message: Any) -> list[Any]:
        effects: list[Any] = []
        if isinstance(message, Append) and self.leader is not None:
            effects = self._resign()
            self.replica.update(role=Role.DEPOSED)
        return [*effects, *original(self, now_ms, sender, message)]

    original = Shard._on_received
    substitute(stack, Shard, "_on_received", on_received)


def _reply_before_commit(stack: ExitStack) -> None:
    def answer(self: Limbo, answers: list[Any], confirmed: int, durable: int) -> None:
        while self._unanswered and self._unanswered[0].last <= max(confirmed, durable):
            answers.append(self._settle(self._unanswered.popleft(), Verdict.CONFIRMED))

    substitute(stack, Limbo, "_answer", answer)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("H1", "truncation until the head matches, and the check of the predecessor", _h1_one_shot, "divergence"),
    Mutant("H2", "compare of the revision", _h2_no_compare, "operators"),
    Mutant("H3", "commit never falls", _h3_commit_falls, "reconfiguration"),
    Mutant("H3b", "NOOP at PREPARE", _h3b_no_noop, "wide"),
    Mutant("H4", "factor is the length of the ensemble", _h4_stale_factor, "contracts"),
    Mutant("H5", "new member is fenced too", _h5_fence_old_only, "swaps"),
    Mutant("N6", "metadata is not rebuilt from less than can be vouched for", _n6_whoever_answered, "recovery"),
    Mutant("N4", "a Commit may be under way to whoever says pending", _n4_the_leader_is_believed, "recovery"),
    Mutant("N5", "a prepared change may be in force", _n5_prepared_changes_are_ignored, "recovery"),
    Mutant("N5 seeded", "who may be half seeded is no member", _n5_silent_is_seeded, "recovery"),
    Mutant("K16", "who does not answer is asked last", _k16_the_same_one_again, "recovery"),
    Mutant("H6", "stalled contract is rolled back", _h6_contract_in_election, "contracts"),
    Mutant("A3", "majority of union or final", _union_only_old_majority, "swaps"),
    Mutant("A3 snapshot", "COMMIT waits for the snapshot", _commit_before_snapshot, "reconfiguration"),
    Mutant("K4", "ack rides on the write", _ack_before_sync, "replication"),
    Mutant("L1 leader", "leader counts its durable copy only", _leader_counts_unsynced, "replication"),
    Mutant("L1 fence", "fence answer is ordered after earlier writes", _fence_overtakes, "replication"),
    Mutant("#87", "epoch is durable before the fence is answered", _epoch_not_stored, "replication"),
    Mutant("restart", "whoever led an epoch never leads it again", _leads_again, "divergence"),
    Mutant("O25", "entries of older epochs commit only indirectly", _figure_8, "divergence"),
    Mutant("K12", "leaver is silenced at PREPARE", _old_member_counts, "swaps"),
    Mutant("#579", "highest head is by epoch first", _choice_by_offset, "divergence"),
    Mutant("K14", "wiped disk is another member", _wiped_votes, "disks"),
    Mutant("L18", "producer table is folded on followers", _table_on_leaders_only, "replication"),
    Mutant("L18 undo", "producer table is undone on truncation", _table_not_undone, "divergence"),
    Mutant("L18 checkpoint", "producer table is part of checkpoints", _table_not_in_checkpoint, "disks"),
    Mutant("L25", "a full table forgets one producer for each new one", _table_without_end, "crowd"),
    Mutant("L25b", "the caller that has most loses a producer", _oldest_of_all_goes, "crowd"),
    Mutant("L25 rows", "a checkpoint writes the producers that changed", _changes_not_in_rows, "disks"),
    Mutant("L25 floor", "rows stand as what is committed says", _rows_of_what_may_be_undone, "divergence"),
    Mutant("#281", "trimming stops at the slowest member", _trim_past_followers, "wide"),
    Mutant("O33", "new member counts only after COMMIT", _new_member_counts, "swaps"),
    Mutant("#1239", "no ack over a gap", _ack_over_gap, "replication"),
    Mutant("#513", "append of an older epoch changes nothing", _old_leader_demotes, "divergence"),
    Mutant("O24", "answer waits for commit", _reply_before_commit, "replication"),
    *LIMBO_MUTANTS,
    *DELIVERY_MUTANTS,
    *COPIES_MUTANTS,
    *POSITIONS_MUTANTS,
    *DOCUMENTS_MUTANTS,
    *COORDINATION_MUTANTS,
    *CLOCK_MUTANTS,
    *LATEST_MUTANTS,
    *LOSS_MUTANTS,
    *SPACE_MUTANTS,
    *PRODUCING_MUTANTS,
    *CLAIMS_MUTANTS,
    *EXPECTING_MUTANTS,
    *SINKS_MUTANTS,
    *REACH_MUTANTS,
    *TRUST_MUTANTS,
    *KEYSPACE_MUTANTS,
)
