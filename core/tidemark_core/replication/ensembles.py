"""Ensembles: who is fenced, who may lead, who is a member after a change; arithmetic on stored records.

Rules O10, O11, O18-O20, O27b, O36, A3, H4-H6.  Stays out: when any of it is asked; that is the coordinator's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from ..base.ids import EntryId, Member
from ..base.quorum import has_majority, majority
from ..base.refusals import Reason, Refused
from .copies import copies_in_force, refuse_copies
from .messages import Operation
from .records import Change, Phase, ShardRecord, StartChange

MEMBERS_MIN = 3
"""A contract below this needs force."""

ROLLED_BACK = (Operation.CONTRACT, Operation.COPIES)
"""What an election rolls back even from COMMIT."""


@dataclass(frozen=True, slots=True)
class Ensembles:
    """Whom to fence and from whom to choose (O18-O20, A3, H6)."""

    fencing: tuple[Member, ...]   # old and new members while a change is stalled in COMMIT
    final: tuple[Member, ...]     # what the change would have made, or the source alone
    source: Member | None = None  # of the shard's log, whatever other logs hold (K14d)

    def answered(self, heads: Collection[Member]) -> bool:
        """A majority of the union, or of the final ensemble: either overlaps every commit quorum (A3).

        Beside a source so many others must be fenced that those left over can commit nothing (K14d).
        """
        if self.source is not None:
            return self.source in heads and has_majority(self.fencing, heads)
        return has_majority(self.fencing, heads) or has_majority(self.final, heads)


def ensembles_of(record: ShardRecord) -> Ensembles:
    """Return the ensembles an election of this record uses."""
    change = record.change
    if record.source is not None:
        return Ensembles(record.ensemble, (record.source,), record.source)
    if change is None or goes_back(change):
        return Ensembles(record.ensemble, record.ensemble)
    assert change.new is not None, "O33: a swap or expand has a new member"
    joining = () if change.new in record.ensemble else (change.new,)
    return Ensembles((*record.ensemble, *joining), changed_ensemble(record.ensemble, change))


def members_announced(record: ShardRecord) -> tuple[Member, ...]:
    """Return the members that may speak of the shard: the ensemble and the newcomer of a change (T10)."""
    new = record.change.new if record.change is not None else None
    return record.ensemble if new is None or new in record.ensemble else (*record.ensemble, new)


def concerned(record: ShardRecord) -> tuple[Member, ...]:
    """Return the members whose answers about the shard count: those announced, and those to be deleted (T10)."""
    return (*members_announced(record), *record.removed)


def goes_back(change: Change) -> bool:
    """Say whether an election drops this change: it is in PREPARE, or could not be undone later (H6, K13)."""
    return change.phase is Phase.PREPARE or change.operation in ROLLED_BACK


def changed_ensemble(ensemble: tuple[Member, ...], change: Change) -> tuple[Member, ...]:
    """Return the ensemble after `change`."""
    return ensemble_after(ensemble, change.operation, change.old, change.new)


def ensemble_after(
    ensemble: tuple[Member, ...], operation: Operation, old: Member | None, new: Member | None
) -> tuple[Member, ...]:
    """Return the ensemble after a change: a swap keeps the slot (K1), an expand adds the last one."""
    match operation:
        case Operation.SWAP:
            assert new is not None
            return tuple(new if member == old else member for member in ensemble)
        case Operation.EXPAND:
            assert new is not None
            return (*ensemble, new)
        case Operation.CONTRACT:
            # The last member takes the freed slot: of all slots only one has another member afterwards (K13).
            *others, last = ensemble
            return tuple(last if member == old else member for member in others)
        case Operation.COPIES:
            return ensemble


def choose_leader(
    final: tuple[Member, ...], heads: dict[Member, EntryId], preferred: Member | None
) -> Member | None:
    """Return the candidate with the highest head, epoch first (O11, #579); `preferred` wins a tie."""
    candidates = [member for member in final if member in heads]
    if not candidates:
        return None
    highest = max(heads[member] for member in candidates)
    best = [member for member in candidates if heads[member] == highest]
    return preferred if preferred in best else best[0]


def contract_lacks(remaining: tuple[Member, ...], following: Collection[Member]) -> str | None:
    """Say which remaining members keep a contract from ever committing, None when a majority follows (O27b).

    `following` are the members that can acknowledge now, the leader among them.
    """
    if has_majority(remaining, following):
        return None
    absent = ", ".join(member.node for member in remaining if member not in following)
    return f"a contract to {len(remaining)} members needs {majority(len(remaining))} that follow; missing: {absent}"


def _last_copy(record: ShardRecord, leaver: Member, nodes: Mapping[str, Member | None]) -> Refused | None:
    """Refuse to destroy a copy that may be the last of acknowledged records (K14c); one on a lost disk is gone."""
    holdout = next((each for each in record.holdouts if each.member == leaver), None)
    if holdout is None or nodes.get(leaver.node) not in (None, leaver):
        return None
    return Refused(
        Reason.LAST_COPY,
        f"{leaver.node} holds acknowledged records up to offset {holdout.commit} that the leader lacks: recover the "
        "shard from it, or abandon its copy explicitly",
        record.epoch, holdout.commit,
    )


def refuse_recovery(record: ShardRecord, nodes: Mapping[str, Member | None], node: str) -> Member | Refused:
    """Return the member whose copy may become the shard's log, or why it may not (K14d)."""
    holdout = next((each for each in record.holdouts if each.member.node == node), None)
    if holdout is None:
        return Refused(
            Reason.WRONG_STATE, f"{node} has not refused to cut its log, so it holds nothing that the leader lacks"
        )
    member = holdout.member
    if nodes.get(node) != member:
        return Refused(Reason.NODE_UNAVAILABLE, f"{node} is down or has another disk")
    longer = max(record.holdouts, key=lambda each: each.commit)
    if longer.commit > holdout.commit:
        return Refused(
            Reason.WRONG_STATE,
            f"{longer.member.node} holds acknowledged records up to offset {longer.commit}, {node} up to "
            f"{holdout.commit}: recover from {longer.member.node}",
        )
    return _lacks_payloads(record, node) or member


def _lacks_payloads(record: ShardRecord, node: str) -> Refused | None:
    if copies_in_force(record.copies, len(record.ensemble)) >= len(record.ensemble):
        return None
    return Refused(
        Reason.WRONG_STATE,
        f"only {record.copies} of {len(record.ensemble)} members keep each payload: {node} does not hold them all",
    )


def lost_disks(members: Collection[Member], nodes: Mapping[str, Member | None]) -> tuple[Member, ...]:
    """Return the members whose nodes are back with another disk: they will never answer again (K14)."""
    return tuple(member for member in members if nodes.get(member.node) not in (None, member))


def can_elect(record: ShardRecord, left: Collection[Member]) -> bool:
    """Say whether the members with these disks could elect a leader (A3), whatever a source of the shard holds."""
    ensembles = ensembles_of(record)
    return has_majority(ensembles.fencing, left) or (record.source is None and has_majority(ensembles.final, left))


def refuse_survivor(
    record: ShardRecord, nodes: Mapping[str, Member | None], heads: Mapping[Member, EntryId], node: str
) -> Member | Refused:
    """Return the member whose copy may become the log of a shard that lost a majority of its disks, or why not (K14e).

    `heads` are what the members said in the election that cannot end.
    """
    members = ensembles_of(record).fencing
    lost = lost_disks(members, nodes)
    left = [member for member in members if member not in lost]
    survivor = next((member for member in left if member.node == node), None)
    if survivor is None and any(member.node == node for member in lost):
        return Refused(Reason.NODE_UNAVAILABLE, f"{node} has another disk than the member had")
    if survivor is None:
        return Refused(Reason.NOT_MEMBER, f"{node} is not in the ensemble")
    if can_elect(record, left):
        return Refused(
            Reason.WRONG_STATE,
            f"{len(left)} of {len(members)} members have their disks: once all are up they elect a leader and "
            "no acknowledged record is lost",
        )
    silent = [member.node for member in left if nodes.get(member.node) is None or member not in heads]
    if silent:
        return Refused(
            Reason.NODE_UNAVAILABLE,
            f"{', '.join(silent)} did not say yet how long the log there is: start it and try again; a node whose disk "
            "is lost counts once it is up with a new one",
        )
    longest = max(left, key=lambda member: heads[member])
    if heads[longest] > heads[survivor]:
        return Refused(
            Reason.WRONG_STATE,
            f"the log of {longest.node} ends at offset {heads[longest].offset}, that of {node} at "
            f"{heads[survivor].offset}: recover from {longest.node}",
        )
    return _lacks_payloads(record, node) or survivor


def alone_with(record: ShardRecord, source: Member, nodes: Mapping[str, Member | None]) -> ShardRecord:
    """Rule K14e: others that are left hold no more, and those on lost disks never answer: the source is elected alone.
    """
    members = members_announced(record)
    lost = lost_disks(members, nodes)
    others = (member for member in members if member != source and member not in lost)
    return replace(
        record, ensemble=(source,), source=source, change=None, removed=(*record.removed, *others), holdouts=(),
        copies=0, refill=max(record.refill, len(record.ensemble)),
    )


def planned_change(
    record: ShardRecord, nodes: Mapping[str, Member | None], m: StartChange, unattached: Collection[Member] = (),
    missing: Collection[Member] = (),
) -> Change | Refused:
    """Return the change that `m` asks for, or why not.

    `nodes` maps a known node to its member, None when down; the leader does not push to `unattached` members yet, and
    `missing` members said that they hold no replica: each is swapped for itself (N11).
    """
    old = new = None
    if m.operation in (Operation.SWAP, Operation.CONTRACT):
        old = next((member for member in record.ensemble if member.node == m.old_node), None)
        if old is None:
            return Refused(Reason.NOT_MEMBER, f"{m.old_node} is not in the ensemble")
        if old == record.leader:
            return Refused(Reason.LEADER_CANNOT_LEAVE, f"{old.node} leads the shard: transfer leadership first")
        if not m.abandon and (refused := _last_copy(record, old, nodes)) is not None:
            return refused
    if m.operation in (Operation.SWAP, Operation.EXPAND):
        new = nodes.get(m.new_node or "")
        if new is None:
            return Refused(Reason.NODE_UNAVAILABLE, f"node {m.new_node} is unknown or down")
        returns = new == old and new in missing
        if not returns and (
            new in record.ensemble or any(member.node == new.node and member != old for member in record.ensemble)
        ):
            return Refused(Reason.ALREADY_MEMBER, f"{new.node} is already in the ensemble")
    if m.operation is Operation.CONTRACT:
        copies = len(record.ensemble)
        if copies <= MEMBERS_MIN and not m.force:
            return Refused(
                Reason.BELOW_MINIMUM, f"the shard has {copies} copies; below {MEMBERS_MIN} needs force"
            )
        if copies == 1:
            return Refused(Reason.BELOW_MINIMUM, "the last copy cannot be removed")
        following = [
            member for member in record.ensemble if nodes.get(member.node) == member and member not in unattached
        ]
        remaining = ensemble_after(record.ensemble, m.operation, old, None)
        if (lacking := contract_lacks(remaining, following)) is not None:
            return Refused(Reason.NODE_UNAVAILABLE, lacking)
    copies = m.copies if m.operation is Operation.COPIES else record.copies
    size = len(ensemble_after(record.ensemble, m.operation, old, new))
    if m.operation is Operation.COPIES:
        if (wrong := refuse_copies(copies, size)) is not None:
            return Refused(Reason.INVALID_SPEC, wrong)
        if copies == record.copies:
            return Refused(Reason.INVALID_SPEC, f"payloadCopies is {copies} already")
    if copies_in_force(copies, size) < majority(size):
        # Old entries have so many copies and no more: a majority that elects a leader might hold none (K2, K13).
        few = f"{copies} copies of each payload are too few for {size} members: raise payloadCopies to {majority(size)}"
        return Refused(Reason.BELOW_MINIMUM, few)
    return Change(m.operation, Phase.PREPARE, old, new, copies=copies)
