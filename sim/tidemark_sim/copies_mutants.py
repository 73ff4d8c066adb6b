"""Copies minus one repair, each named by its rule: who keeps payloads, when they go, what members are given without.

Stays out: everything that holds as well where all members keep everything; see `mutants`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from tidemark_core.base.effects import DropPayloads, LogReadFailed, Persist, PutEntry, PutState
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import Member
from tidemark_core.delivery.messages import NOT_HELD, GapKind, Shipment
from tidemark_core.delivery.reader import Reader
from tidemark_core.replication import dropping as core_dropping
from tidemark_core.replication import ensembles as core_ensembles
from tidemark_core.replication import follower as core_follower
from tidemark_core.replication import holding as core_holding
from tidemark_core.replication import leader as core_leader
from tidemark_core.replication import stages as core_stages
from tidemark_core.replication.coordinator import Coordinator
from tidemark_core.replication.copies import Seat
from tidemark_core.replication.cursor import Cursor, CursorStatus
from tidemark_core.replication.dropping import Dropping
from tidemark_core.replication.follower import Follower
from tidemark_core.replication.leader import Leader
from tidemark_core.replication.messages import Drop, Operation, Prepare
from tidemark_core.replication.replica import Replica, ReplicaState, Role
from tidemark_core.replication.vetting import Vetting

from .delivery_mutants import one_answer_proves_loss
from .disk import Image
from .mutant import Mutant, substitute
from .node import Node

# --- what is surplus (K6) -----------------------------------------------------------------------------------


def _surplus(stack: ExitStack, surplus_upto: Any) -> None:
    substitute(stack, core_dropping, "surplus_upto", surplus_upto)
    substitute(stack, core_holding, "surplus_upto", surplus_upto)


def _one_holder_less(stack: ExitStack) -> None:
    original = core_holding.surplus_upto
    _surplus(
        stack,
        lambda seat, order, matches, commit:
        original(seat._replace(copies=seat.copies - 1), order, matches, commit) if not seat.keeps(order) else -1,
    )


def _commit_is_enough(stack: ExitStack) -> None:
    _surplus(stack, lambda seat, order, matches, commit: -1 if seat.keeps(order) else commit)


def _any_holder_counts(stack: ExitStack) -> None:
    def surplus_upto(seat: Seat, order: int, matches: Sequence[int], commit: int) -> int:
        if seat.keeps(order) or not seat.selective:
            return -1
        return min(commit, sorted(matches, reverse=True)[seat.copies - 1])

    _surplus(stack, surplus_upto)


def _uncommitted_dropped(stack: ExitStack) -> None:
    def sweep(replica: Replica, m: Drop) -> Any:
        commit, replica.commit = replica.commit, replica.log.head.offset
        try:
            return original(replica, replace(m, commit=replica.commit))
        finally:
            replica.commit = commit

    original = core_holding.sweep
    surplus = core_holding.surplus_upto
    substitute(
        stack, core_holding, "surplus_upto",
        lambda seat, order, matches, commit: surplus(seat, order, matches, max(commit, *matches)),
    )
    substitute(stack, core_follower, "sweep", sweep)
    substitute(stack, core_dropping, "sweep", sweep)


def _commit_not_stored(stack: ExitStack) -> None:
    def persist(self: Replica, writes: Iterable[Any], then: Any = ()) -> Persist:
        effect = original(self, writes, then)
        if any(isinstance(w, DropPayloads) or (isinstance(w, PutEntry) and not w.entry.held) for w in effect.writes):
            self._rest = None   # the state follows with the next write
            return replace(effect, writes=tuple(w for w in effect.writes if not isinstance(w, PutState)))
        return effect

    original = Replica.persist
    substitute(stack, Replica, "persist", persist)


# --- header and payload (K3) ----------------------------------------------------------------------------------


def _acked_by_header(stack: ExitStack) -> None:
    def on_append(self: Follower, sender: Member, m: Any) -> list[Any]:
        effects: list[Any] = []
        for effect in original(self, sender, m):
            if isinstance(effect, Persist) and any(isinstance(write, PutEntry) for write in effect.writes):
                bare = tuple(
                    PutEntry(write.entry.bare()) if isinstance(write, PutEntry) and write.entry.kind is Kind.DATA
                    else write for write in effect.writes
                )
                whole = tuple(write for write in effect.writes if isinstance(write, PutEntry))
                effects += [replace(effect, writes=bare), Persist(effect.address, whole, ())]
            else:
                effects.append(effect)
        return effects

    original = Follower.on_append
    substitute(stack, Follower, "on_append", on_append)


# --- snapshots (K12) ------------------------------------------------------------------------------------------


def _no_check(stack: ExitStack) -> None:
    substitute(stack, core_follower, "check_bare", lambda entries, seat, commit: None)


def _snapshot_of_headers(stack: ExitStack) -> None:
    def snapshot_part(self: Leader, entries: Iterable[Entry]) -> Any:
        return tuple(entry.bare() if entry.kind is Kind.DATA else entry for entry in entries), True

    _no_check(stack)
    substitute(stack, Leader, "snapshot_part", snapshot_part)


def _snapshot_of_designated(stack: ExitStack) -> None:
    def snapshot_part(self: Leader, entries: Iterable[Entry]) -> Any:
        assert self.change is not None
        seat = self._seat_of_new(self.change)
        bare = [
            entry.bare()
            if entry.kind is Kind.DATA and not seat.keeps(entry.order) and entry.last <= self._described_commit
            else entry for entry in entries
        ]
        return original(self, bare)

    def strip(seat: Seat, matches: Any, entries: Iterable[Entry], commit: int) -> Any:
        part, missing = whole(seat, matches, entries, commit)
        return part, [entry for entry in missing if seat.keeps(entry.order)]

    _no_check(stack)
    original, whole = Leader.snapshot_part, core_dropping.strip
    substitute(stack, core_follower.Follower, "_check_seeded_bare", lambda self, entry, wanted: None)
    substitute(stack, core_leader, "strip", strip)
    substitute(stack, Leader, "snapshot_part", snapshot_part)


def _old_slot_counts(stack: ExitStack) -> None:
    """Acknowledgements of the member that leaves count on after PREPARE, for commit and for surplus."""
    def on_prepare(self: Leader, now_ms: int, sender: Any, m: Prepare) -> list[Any]:
        effects = original(self, now_ms, sender, m)
        if m.old in self.cursors and self.cursors[m.old].status is CursorStatus.SILENCED:
            self.cursors[m.old].status = CursorStatus.ATTACHED
        return effects

    original = Leader.on_prepare
    substitute(stack, Leader, "on_prepare", on_prepare)


def _new_slot_counts(stack: ExitStack) -> None:
    def on_prepare(self: Leader, now_ms: int, sender: Any, m: Prepare) -> list[Any]:
        before = self.change
        effects = original(self, now_ms, sender, m)
        if self.change is m and before is not m and m.operation is Operation.SWAP and m.new is not None:
            self.replica.update(ensemble=tuple(m.new if member == m.old else member for member in self.ensemble))
            self.cursors[m.new] = Cursor(m.new)
        return effects

    original = Leader.on_prepare
    substitute(stack, Leader, "on_prepare", on_prepare)


# --- disks (K14) ----------------------------------------------------------------------------------------------


def _reseeded_in_place(stack: ExitStack) -> None:
    def wipe(self: Node) -> None:
        member, incarnations = self.member, self.incarnations
        original(self)
        self.member, self.incarnations = member, incarnations

    original = Node.wipe
    substitute(stack, Node, "wipe", wipe)


def _acks_before_a_wipe_count(stack: ExitStack) -> None:
    """The node comes back without its log and with its name and epoch: what it acknowledged goes on counting."""
    def wipe(self: Node) -> None:
        kept = {
            shard: ReplicaState.decode(image.state) for shard, image in self.disk.durable.items()
            if image.state is not None
        }
        member, incarnations = self.member, self.incarnations
        original(self)
        self.member, self.incarnations = member, incarnations
        for shard, state in kept.items():
            self.disk.durable[shard] = image = Image()
            image.state = ReplicaState(state.epoch, state.election, Role.FENCED, ensemble=state.ensemble).encode()
            self.disk.written[shard] = image.copy()

    original = Node.wipe
    substitute(stack, Node, "wipe", wipe)


# --- changes (K2, K13) ------------------------------------------------------------------------------------------


def _half_is_enough(stack: ExitStack) -> None:
    substitute(
        stack, core_ensembles, "refuse_copies",
        lambda copies, size: None if max(1, size // 2) <= copies <= size else "too few",
    )
    substitute(stack, core_ensembles, "copies_in_force", lambda copies, size: size)


def _not_filled(stack: ExitStack) -> None:
    substitute(stack, Leader, "_ask_to_fill", lambda self: [])


def _drops_go_on(stack: ExitStack) -> None:
    substitute(stack, Dropping, "paused", property(lambda self: False))


# --- leading (K15) ----------------------------------------------------------------------------------------------


def _leads_without_payloads(stack: ExitStack) -> None:
    substitute(stack, Vetting, "passed", lambda self: True)


def _failed_reads_pass(stack: ExitStack) -> None:
    def on_read(self: Vetting, now_ms: int, read: Any) -> Any:
        if not isinstance(read, LogReadFailed) or self._asked is None or self._asker is None or self._awaited:
            return original(self, now_ms, read)
        request, self._asked = self._asked, None
        return self._asker, request

    original = Vetting.on_read
    substitute(stack, Vetting, "on_read", on_read)


def _damaged_member_is_asked_for_ever(stack: ExitStack) -> None:
    substitute(stack, Coordinator, "_eligible", lambda self, election: election.heads)


def _any_whole_member_is_enough(stack: ExitStack) -> None:
    def eligible(self: Coordinator, election: Any) -> Any:
        whole = {member: head for member, head in election.heads.items() if member not in self._damaged}
        return whole or election.heads

    substitute(stack, Coordinator, "_eligible", eligible)


def _leads_on_without_reading(stack: ExitStack) -> None:
    substitute(stack, Leader, "unreadable", property(lambda self: None))


# --- reading (K10, K17, K18) ------------------------------------------------------------------------------------


def _not_held_is_a_hole(stack: ExitStack) -> None:
    def on_shipment(self: Reader, now_ms: int, node: str, m: Shipment) -> Any:
        items = tuple(item._replace(body=None) if item.body is NOT_HELD else item for item in m.items)
        return original(self, now_ms, node, replace(m, items=items))

    original = Reader.on_shipment
    substitute(stack, Reader, "on_shipment", on_shipment)


def _gap_in_single_copy(stack: ExitStack) -> None:
    def ask_all(self: Reader, now_ms: int, why: str) -> Any:
        if why.startswith("nobody sends"):
            return self._pass(now_ms, GapKind.DATALOSS, self.next)
        return original(self, now_ms, why)

    original = Reader._ask_all
    substitute(stack, Reader, "_ask_all", ask_all)


def _released_unconfirmed(stack: ExitStack) -> None:
    def advance(self: core_stages.Stages, now_ms: int, matches: Any) -> Any:
        effects = original(self, now_ms, matches)
        self.leader.replica.released = max(self.leader.replica.released, self.leader.replica.commit)
        return effects

    original = core_stages.Stages.advance
    substitute(stack, core_stages.Stages, "advance", advance)


COPIES_MUTANTS: tuple[Mutant, ...] = (
    Mutant("K2", "a majority keeps each payload", _half_is_enough, "copies"),
    Mutant("K3", "header and payload are one write", _acked_by_header, "copies"),
    Mutant("K6 R-1", "as many as there are copies stand left", _one_holder_less, "copies"),
    Mutant("K6 commit", "committed is not surplus", _commit_is_enough, "copies"),
    Mutant("K6 left", "only those left of it count", _any_holder_counts, "copies"),
    Mutant("K7 uncommitted", "nothing uncommitted is dropped", _uncommitted_dropped, "copies"),
    Mutant("K8", "commit is stored with what it allows to drop", _commit_not_stored, "copies"),
    Mutant("K12 headers", "a snapshot holds payloads", _snapshot_of_headers, "copies"),
    Mutant("K12 designated", "a snapshot holds all that is not surplus", _snapshot_of_designated, "copies"),
    Mutant("K12 old", "the leaver is silenced at PREPARE", _old_slot_counts, "copies"),
    Mutant("K12 new", "the new member counts only after COMMIT", _new_slot_counts, "copies"),
    Mutant("K14 in place", "a wiped disk is another member", _reseeded_in_place, "copies"),
    Mutant("K14 acks", "acks of a disk that is gone do not count", _acks_before_a_wipe_count, "copies"),
    Mutant("K13 filled", "COMMIT waits until all have filled", _not_filled, "copies"),
    Mutant("K13 paused", "nothing is dropped from PREPARE on", _drops_go_on, "copies"),
    Mutant("K15", "who lost a payload above its commit does not lead", _leads_without_payloads, "successors"),
    Mutant("K15b", "an entry that cannot be read is damage", _failed_reads_pass, "damage"),
    Mutant("K15c", "who reported damage is left out", _damaged_member_is_asked_for_ever, "damage"),
    Mutant("K15c majority", "a majority without damage elects", _any_whole_member_is_enough, "damage"),
    Mutant("K15d", "a leader that cannot read what is needed resigns", _leads_on_without_reading, "damage"),
    Mutant("K10", "released stays below confirmed", _released_unconfirmed, "copies"),
    Mutant("K17", "what is not held is no gap", _not_held_is_a_hole, "copies"),
    Mutant("K18 not held", "data loss only when every member has answered", one_answer_proves_loss, "copies"),
    Mutant("S20 not held", "no gap before all-send-all", _gap_in_single_copy, "copies"),
)
