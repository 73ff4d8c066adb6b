"""Recovery: what a shard's metadata record must say, found from what nodes persisted when the store lost it.

A replica keeps the epoch it promised, the ensemble it was given and in which epoch, and a change prepared there.  The
rules, with their reasons and tests, are in `docs/protocols/recovery.md`:

N1  The newest opening names the ensemble
N2  The record starts above every reported epoch
N3  A leader stores a change before COMMIT
N4  When a prepared change was in force
N5  A change in doubt is resolved by overlapping majorities
N6  A majority of voters must have answered
N7  Silent disks must not hide a newer ensemble
N8  A doubt needs a person's consent
N9  A node ahead of the store proves a loss
N10 A recovery counts promises only
N11 A member without a replica is seeded again
N11b A whole replica is not seeded again
N12 Epochs rise by no more than 2^32 at once
N13 A rebuilt record names kind and lineage
N14 An accepted loss makes a survivor of lost disks the source

Stays out: asking nodes, groups, writing (the operator's `recovery`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ..base.ids import EntryId, Member, ShardId, ShardKind
from ..base.quorum import has_majority
from ..base.refusals import Refused
from .copies import selective
from .ensembles import alone_with, can_elect, ensemble_after, ensembles_of, lost_disks, refuse_survivor
from .floors import EPOCH_MAX
from .messages import EPOCH_JUMP_MAX, Operation
from .records import ShardRecord, Status
from .replica import Pending, Role

EPOCH_GAP = 1_000
"""How far above the highest known epoch an election begins when not everybody answered."""

NEAR_GAP = 10
"""The same when everybody did: requests of the operator that was may still be under way, of epochs nobody heard of."""

WRITER = "recover-metadata"
"""The writer of a rebuilt record."""

SILENT_ROLES = (Role.SEEDING, Role.DELETED)
"""Replicas that do not vote."""


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What a node says of its replica of a shard; the fields are those of `ReplicaState`.

    `floor` is the epoch below which the node refuses operators of this shard, 0: none was promised (N10).  A node of
    wire version 4 names neither kind nor lineage: it has logs alone.
    """

    shard: ShardId
    member: Member
    role: Role
    epoch: int
    election: int
    told: int
    ensemble: tuple[Member, ...]
    copies: int
    opened: int
    pending: Pending | None
    head: EntryId
    commit: int
    floor: int = 0
    kind: ShardKind = ShardKind.LOG
    lineage: bytes = b""


class Doubt(StrEnum):
    """Why a record cannot be vouched for."""

    NO_COPY = "NoCopy"                  # nobody who answered has a replica
    NO_MAJORITY = "NoMajority"          # fewer than a majority of the ensemble answered (N6)
    NEWER_POSSIBLE = "NewerPossible"    # silent disks may hold a newer ensemble (N7)
    CHANGE_IN_DOUBT = "ChangeInDoubt"   # N5: its new member is silent, or only some members keep payloads
    UNKNOWN_CHANGE = "UnknownChange"    # an older build did not note what was being changed
    EPOCH_JUMP = "EpochJump"            # a report is so far above another that its replica would refuse to follow (N12)


@dataclass(frozen=True, slots=True)
class Facts:
    """The newest word on who belongs to a shard (N1)."""

    epoch: int
    ensemble: tuple[Member, ...]
    copies: int
    pending: Pending | None = None
    sure: bool = True    # whether a change was pending is known

    @property
    def named(self) -> frozenset[Member]:
        """Return everybody who belongs, or would belong by the change."""
        joining = self.pending.new if self.pending is not None else None
        return frozenset(self.ensemble if joining is None else (*self.ensemble, joining))


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one shard.  `record` is what to write, None: leave alone what is stored, or nothing can be."""

    shard: ShardId
    record: ShardRecord | None
    doubt: Doubt | None = None
    accepted: bool = False
    note: str = ""


def newest_facts(reports: Iterable[ReplicaReport], stored: ShardRecord | None = None) -> Facts | None:
    """Rule N1; the record of a store that was set back is one more witness."""
    known = [report for report in reports if report.told > 0 and report.ensemble]
    newest = max((report.told for report in known), default=0)
    if stored is not None and stored.ensemble and stored.epoch >= newest:
        change = stored.change
        pending = Pending(change.operation, change.old, change.new, change.copies) if change else None
        return Facts(stored.epoch, stored.ensemble, stored.copies, pending)
    known = [report for report in known if report.told == newest]
    if not known:
        return None
    pending = next((report.pending for report in known if report.opened == newest and report.pending), None)
    done = [report for report in known if report.opened == newest and report.pending is None]
    if done:
        # A second opening, or the leader that put a change in force: it comes after what was prepared.
        return Facts(newest, done[0].ensemble, done[0].copies)
    if pending is None:
        author = next((report for report in known if report.role in (Role.LEADER, Role.DEPOSED)), known[0])
        return Facts(newest, author.ensemble, author.copies, sure=False)
    for report in known:
        base = _before(report.ensemble, pending)
        if report.member != pending.new and report.ensemble != base:
            return Facts(newest, report.ensemble, pending.copies)   # told its result: in force (N4)
    report = known[0]
    return Facts(newest, _before(report.ensemble, pending), report.copies, pending)


def _before(ensemble: tuple[Member, ...], pending: Pending) -> tuple[Member, ...]:
    """Return the ensemble without the change; whoever was seeded notes its own slot early."""
    if pending.new is None or pending.new not in ensemble:
        return ensemble
    if pending.operation is Operation.EXPAND:
        return tuple(member for member in ensemble if member != pending.new)
    assert pending.old is not None
    return tuple(pending.old if member == pending.new else member for member in ensemble)


def resolve(facts: Facts, reports: Sequence[ReplicaReport], answered: Collection[Member]) -> Facts | Doubt:
    """Rules N4 and N5: say who belongs, whatever became of a change that was prepared."""
    pending = facts.pending
    if not facts.sure:
        return Doubt.UNKNOWN_CHANGE
    if pending is None:
        return facts
    base = replace(facts, pending=None)
    target = replace(
        base, ensemble=ensemble_after(facts.ensemble, pending.operation, pending.old, pending.new),
        copies=pending.copies,
    )
    of = {report.member: report for report in reports}
    old, new = (of.get(member) if member is not None else None for member in (pending.old, pending.new))
    if old and old.role is Role.DELETED and old.epoch >= facts.epoch:
        return target
    seeded = new is not None and new.epoch >= facts.epoch and new.role not in SILENT_ROLES
    if pending.new is not None and not seeded and (new or pending.new in answered):
        return base
    match pending.operation:
        case Operation.EXPAND:
            if seeded:
                return target
            return Doubt.CHANGE_IN_DOUBT if selective(pending.copies, len(target.ensemble)) else base
        case Operation.CONTRACT:
            return base
        case Operation.COPIES:
            # 0 is all of them, the largest number.
            return replace(base, copies=min((facts.copies, pending.copies), key=lambda copies: copies or math.inf))
        case Operation.SWAP:
            assert pending.old is not None and pending.new is not None
            if pending.old.node == pending.new.node:
                return target if seeded else base
            if not seeded or selective(facts.copies, len(facts.ensemble)):
                return Doubt.CHANGE_IN_DOUBT
            return replace(base, ensemble=(*facts.ensemble, pending.new))


def is_behind(stored: ShardRecord | None, reports: Iterable[ReplicaReport]) -> bool:
    """Say whether a node promised something that this record, the newest of its store, knows nothing of (N9).

    Without a record every replica is such a promise, but for what is left of a deleted one.
    """
    if stored is None:
        return any(report.role is not Role.DELETED for report in reports)
    return any(
        report.epoch > stored.epoch
        or (report.epoch == stored.epoch and report.election not in (0, stored.election))
        for report in reports
    )


def find_record(
    shard: ShardId, reports: Sequence[ReplicaReport], answered: Collection[Member], silent: int, *,
    stored: ShardRecord | None = None, accept: bool = False, floor: int = 0, lineage: bytes = b"",
) -> Finding:
    """Return the record that lets an election go on; its epoch is the floor to promise, or above the one promised.

    `answered` are the disks that answered at all, `silent` how many of the cluster's did not; `floor` is the epoch
    that those who answered promised, 0 while they are asked first (N10).  `lineage` is a new one, drawn at random: a
    shard of documents gets it where the loss is accepted, or where no answer names another (N13).
    """
    if stored is not None and not is_behind(stored, reports):
        survived = _from_survivor(shard, stored, reports, answered, floor, lineage) if accept else None
        return survived or Finding(shard, None, note="as stored")
    voters = {report.member: report for report in reports if report.role not in SILENT_ROLES}
    epoch = max([report.epoch for report in reports] + ([stored.epoch] if stored else []), default=0)
    floor = max([floor, *(report.floor for report in reports)])
    if not voters:
        return Finding(shard, None, Doubt.NO_COPY, accept)
    highest = max(epoch + EPOCH_GAP, floor)
    if highest > min(_known_epochs(reports, stored), default=highest) + EPOCH_JUMP_MAX or epoch > EPOCH_MAX:
        return Finding(shard, None, Doubt.EPOCH_JUMP, note=f"epoch {epoch} is too far above the others, or too high")
    facts = newest_facts(reports, stored)
    if facts is None:
        # Fenced for a first election that never came to be, as far as those who answered know.
        facts = Facts(0, tuple(sorted(voters)), 0)
    resolved = resolve(facts, reports, answered)
    doubt: Doubt | None = resolved if isinstance(resolved, Doubt) else None
    chosen = facts if isinstance(resolved, Doubt) else resolved
    if doubt is None:
        doubt = _vouch(chosen, voters, answered, silent, never_led=facts.epoch == 0)
    if doubt is None:
        note = ""
        if facts.pending is not None:
            note = f"{facts.pending.operation} of epoch {facts.epoch} was prepared: " + _outcome(facts, chosen)
        removed = tuple(sorted(member for member in voters if member not in chosen.ensemble))
        seeding = tuple(sorted(
            report.member for report in reports
            if report.role is Role.SEEDING and report.member not in chosen.ensemble))
        begin = max(epoch + (EPOCH_GAP if silent else NEAR_GAP), floor)
        record = _record(chosen, begin, (*removed, *seeding), *_identity(reports, stored, lineage))
        return Finding(shard, record, note=note)
    if not accept:
        return Finding(shard, None, doubt)
    left = _those_left(chosen, voters)
    if left is None:
        return Finding(shard, None, doubt, note="its payloads are kept by some members each: they cannot be regrouped")
    # Nobody is removed: the others may hold the only copy of what is given up.
    kind, _ = _identity(reports, stored, lineage)
    return Finding(
        shard, _record(left, highest, (), kind, lineage if kind is not ShardKind.LOG else b""), doubt, accepted=True,
        note="those of the ensemble who answered go on")


def _from_survivor(
    shard: ShardId, stored: ShardRecord, reports: Sequence[ReplicaReport], answered: Collection[Member], floor: int,
    lineage: bytes,
) -> Finding | None:
    """Rule N14; None where the stored record can go on: its members have their disks, or its leader still leads."""
    nodes: dict[str, Member | None] = {member.node: member for member in answered}
    members = ensembles_of(stored).fencing
    lost = lost_disks(members, nodes)
    voters = {report.member: report for report in reports if report.role not in SILENT_ROLES}
    left = {member: voters[member].head for member in members if member in voters}
    leads = stored.leader in left and voters[stored.leader].role is Role.LEADER
    if leads or not left or can_elect(stored, set(members) - set(lost)):
        return None
    source = refuse_survivor(stored, nodes, left, max(left, key=lambda member: left[member]).node)
    if isinstance(source, Refused):
        return Finding(shard, None, Doubt.NO_MAJORITY, note=source.message)
    record = replace(
        alone_with(stored, source, nodes), epoch=max(stored.epoch + EPOCH_GAP, floor), election=0,
        status=Status.ELECTION, leader=None, writer=WRITER, lineage=lineage.hex() if stored.lineage else "",
    )
    names = ", ".join(member.node for member in lost)
    return Finding(
        shard, record, Doubt.NO_MAJORITY, accepted=True,
        note=f"the disks of {names} are lost; {source.node} goes on and the others are filled from it")


def _known_epochs(reports: Iterable[ReplicaReport], stored: ShardRecord | None) -> Iterable[int]:
    """Return the epochs that are not those of a replica or a record that begins."""
    epochs = (*(report.epoch for report in reports), stored.epoch if stored is not None else 0)
    return [epoch for epoch in epochs if epoch > 0]


def _vouch(
    chosen: Facts, voters: Collection[Member], answered: Collection[Member], silent: int, *, never_led: bool
) -> Doubt | None:
    """Rules N6 and N7."""
    if not has_majority(chosen.ensemble, voters):
        return Doubt.NO_MAJORITY
    everybody = all(member in answered for member in chosen.ensemble) and not (never_led and silent)
    if not everybody and silent >= (len(chosen.ensemble) + 1) // 2:
        return Doubt.NEWER_POSSIBLE
    return None


def _outcome(before: Facts, chosen: Facts) -> str:
    if chosen.ensemble == before.ensemble and chosen.copies == before.copies:
        return "not in force"
    assert before.pending is not None
    both = before.pending.operation is Operation.SWAP and len(chosen.ensemble) > len(before.ensemble)
    return "in doubt, so old and new member belong: contract it afterwards" if both else "in force"


def _those_left(facts: Facts, voters: Collection[Member]) -> Facts | None:
    """Rule N8: whoever answered, in the slots that contracts would leave them."""
    missing = [member for member in facts.ensemble if member not in voters]
    if selective(facts.copies, len(facts.ensemble)):
        return None if missing else facts
    ensemble = facts.ensemble
    for member in missing:
        ensemble = ensemble_after(ensemble, Operation.CONTRACT, member, None)
    return replace(facts, ensemble=ensemble or tuple(sorted(voters)), copies=0)


def _identity(
    reports: Sequence[ReplicaReport], stored: ShardRecord | None, lineage: bytes
) -> tuple[ShardKind, bytes]:
    """Rule N13: return the kind of the shard, and the newest lineage named; `lineage` where none is."""
    named = [(report.told, report.lineage) for report in reports if report.lineage]
    if stored is not None and stored.lineage:
        named.append((stored.epoch, bytes.fromhex(stored.lineage)))
    kinds = [report.kind for report in reports] + ([stored.kind] if stored is not None else [])
    kind = next((kind for kind in kinds if kind is not ShardKind.LOG), ShardKind.LOG)
    return kind, max(named)[1] if named else lineage if kind is not ShardKind.LOG else b""


def _record(
    facts: Facts, epoch: int, removed: tuple[Member, ...], kind: ShardKind, lineage: bytes
) -> ShardRecord:
    return ShardRecord(
        epoch=epoch, election=0, status=Status.ELECTION, ensemble=facts.ensemble, copies=facts.copies, removed=removed,
        writer=WRITER, lineage=lineage.hex(), kind=kind,
    )

