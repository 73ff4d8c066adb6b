"""Where fewer than all members keep payloads: each lies where it must, and none is lost (K6-K9, K12-K14, K15).

K9 is judged on every disk after every write that leaves a payload out or drops one, and over all members' whole logs
whenever another ensemble or number of copies is in force.  What is dropped must be on enough other disks (K6).
Stays out: what readers are given (`delivered`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import DropPayloads, PutEntry, Released, Send, Write
from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.ids import Member, ShardId
from tidemark_core.delivery.order import slots_of
from tidemark_core.replication.ensembles import changed_ensemble
from tidemark_core.replication.messages import Drop
from tidemark_core.replication.records import Phase, ShardRecord
from tidemark_core.replication.replica import ReplicaState, Role

from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image, Queued
    from ..node import Node
    from ..world import World
    from .history import History


class Copies:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self._released: dict[tuple[str, int, ShardId], int] = {}

    # --- what is on disk ----------------------------------------------------------------------------------

    def node_synced(self, node: Node, item: Queued) -> None:
        bare = [entry for write in item.writes for entry in _left_out(node.disk.image(item.shard), write)]
        if not bare:
            return
        image = node.disk.image(item.shard)
        assert image.state is not None
        state = ReplicaState.decode(image.state)
        if state.role is Role.DELETED:
            return
        for entry in bare:
            if image.at(entry.base) is not entry:
                continue   # removed again in the same write
            self.world.trace.count("payloads_left_out")
            self._rightly(node, state, entry)
            self._enough(node, item.shard, entry)

    def _rightly(self, node: Node, state: ReplicaState, entry: Entry) -> None:
        """K8, K9: committed by what the node itself has stored, and not designated as it knows it."""
        commit = state.snapshot_commit if state.role is Role.SEEDING else state.commit
        if entry.last > commit:
            raise Violation("K8", f"{node.name} stores {entry.id} without payload, its commit is {commit}")
        if state.role is not Role.SEEDING and _keeps(node.member, state.ensemble, state.copies, entry):
            raise Violation("K9", f"{node.name} lacks the payload of {entry.id}, and is designated for it")

    def _enough(self, node: Node, shard: ShardId, entry: Entry) -> None:
        """K6: as many as there are copies, left of the node, have it, counting those who lost it with their disk.

        A member that is seeded has its slot when the change is in force; until then anybody counts.
        """
        record = self.world.metadata.record(shard)
        change = record.change
        ensembles = [record.ensemble]
        if change is not None:
            ensembles.append(changed_ensemble(record.ensemble, change))
        copies = {record.copies, change.copies if change is not None else record.copies}
        for ensemble in ensembles:
            slots = slots_of(entry.order, len(ensemble))
            members = [ensemble[slot] for slot in slots]
            left = members[: members.index(node.member)] if node.member in members else members
            holders = [member for member in left if self._had(member, shard, entry)]
            if any(len(holders) >= (number or len(ensemble)) for number in copies):
                return
        raise Violation("K6", f"{node.name} leaves out the payload of {entry.id}, too few of {record.ensemble} have it")

    def _had(self, member: Member, shard: ShardId, entry: Entry) -> bool:
        """Say whether a member has the payload, has trimmed it, or lost its copy."""
        node = self.world.nodes[member.node]
        if node.lost(member, shard):
            return True
        image = node.disk.image(shard)
        copy = image.at(entry.base)
        if copy is None:
            return entry.last < image.first or (bool(image.entries) and image.entries[0].base > entry.base)
        return copy.held and copy.chain == entry.chain

    def node_sends(self, node: Node, send: Send) -> None:
        """K6, K12: a leader tells what is durable; a slot that changes hands has nothing before it has changed."""
        m = send.message
        if not isinstance(m, Drop):
            return
        record = self.world.metadata.record(send.address.shard)
        change = record.change if record.epoch == m.epoch else None
        for member, match in zip(m.ensemble, m.matches, strict=True):
            self._durable_there(node, send.address.shard, m, member, match)
            if change is None or change.phase is not Phase.PREPARE:
                continue
            if member == change.new != change.old or (member == change.old and match >= 0):
                raise Violation("K12", f"{node.name} counts {member}, whose slot is changing hands")

    def _durable_there(self, node: Node, shard: ShardId, m: Drop, member: Member, match: int) -> None:
        """K4: what a leader counts of a member is on its disk.

        A later epoch that fenced the member may have cut off there what a deposed leader counts, but nothing that this
        leader has committed; and the facts make nothing surplus above that commit.
        """
        holder = self.world.nodes[member.node]
        image = holder.disk.image(shard)
        if match <= image.last or holder.lost(member, shard):
            return
        if image.state is not None and ReplicaState.decode(image.state).epoch > m.epoch and m.commit <= image.last:
            self.world.trace.count("matches_outlived")
            return
        raise Violation("K4", f"{node.name} counts {match} of {member}, its disk has {image.last}")

    # --- changes ------------------------------------------------------------------------------------------

    def record_saved(self, shard: ShardId, before: ShardRecord, after: ShardRecord) -> None:
        """K12, K13: before anything else is in force every member has what it will have to keep."""
        if (after.ensemble, after.copies) != (before.ensemble, before.copies):
            self.world.trace.count("copies_in_force_changed")
            if 0 < after.copies <= len(after.ensemble) // 2:
                raise Violation("K2", f"{after.copies} of {len(after.ensemble)} keep each payload: no majority")
            self.all_kept(shard, after)

    def all_kept(self, shard: ShardId, record: ShardRecord) -> None:
        """Every member has on its disk what it is designated for, of what is committed; the rest enough others have."""
        last = self.history.of(shard).last
        for member in record.ensemble:
            node = self.world.nodes[member.node]
            if node.member != member:
                continue
            for entry in node.disk.image(shard).entries:
                if entry.held or entry.last > last:
                    continue
                if _keeps(member, record.ensemble, record.copies, entry):
                    raise Violation("K13", f"{node.name} lacks {entry.id} and is designated for it from now on")
                self._enough(node, shard, entry)

    def kept_for_nobody(self, shard: ShardId, record: ShardRecord) -> list[str]:
        """Say who still keeps committed payloads that it need not: once nothing happens any more they go."""
        last = self.history.of(shard).last
        facts = []
        for member in record.ensemble:
            surplus = [
                entry.base for entry in self.world.nodes[member.node].disk.image(shard).entries
                if entry.held and entry.payload_bytes and entry.last <= last
                and not _keeps(member, record.ensemble, record.copies, entry)
            ]
            if surplus:
                facts.append(f"{member.node} keeps the payloads of {surplus[:8]} for nobody")
        return facts

    # --- leaders ------------------------------------------------------------------------------------------

    def led(self, shard: ShardId, node: Node, epoch: int) -> None:
        """K15, K15b: a leader holds each entry above its commit whole, but for damage since it was asked to lead."""
        assert node.core is not None
        replica = node.core.log.shards[shard].replica
        asked_ms = node.asked.get((shard, epoch), -1)
        for entry in node.disk.image(shard).entries[node.disk.image(shard).position(replica.commit + 1):]:
            damaged_ms = node.disk.corrupt.get((shard, entry.base), asked_ms + 1)
            if not entry.held or damaged_ms <= asked_ms:
                raise Violation("K15", f"{node.name} leads epoch {epoch}, its disk holds {entry.id} damaged")

    # --- stages -------------------------------------------------------------------------------------------

    def node_released(self, node: Node, released: Released) -> None:
        key = (node.name, node.life, released.shard)
        if released.upto < self._released.get(key, -1):
            raise Violation("K10", f"{node.name} takes back what it released: {released.upto}")
        self._released[key] = released.upto

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for shard, held in node.core.log.shards.items():
            replica = held.replica
            if replica.released > replica.confirmed:
                raise Violation("A2", f"{node.name} shows {replica.released}, confirmed is {replica.confirmed}")
            if replica.released < self._released.get((node.name, node.life, shard), -1) and replica.log.first >= 0:
                self._forgotten(node, shard)

    def _forgotten(self, node: Node, shard: ShardId) -> None:
        assert node.core is not None
        if node.core.log.shards[shard].replica.state.role not in (Role.SEEDING, Role.DELETED):
            raise Violation("K10", f"released of {node.name} went back")
        self._released.pop((node.name, node.life, shard), None)


def _left_out(image: Image, write: Write) -> Iterator[Entry]:
    """Yield entries that lie here without their payload because of this write."""
    if isinstance(write, PutEntry):
        if not write.entry.held:
            copy = image.at(write.entry.base)
            if copy is not None:
                yield copy
    elif isinstance(write, DropPayloads):
        yield from _bare(image.entries[image.position(write.first):image.position(write.last + 1)])


def _bare(entries: Iterable[Entry]) -> Iterator[Entry]:
    return (entry for entry in entries if not entry.held)


def _keeps(member: Member, ensemble: tuple[Member, ...], copies: int, entry: Entry) -> bool:
    """Say whether a member is among the first `copies` of the order; told once more, so that the core is judged."""
    if entry.kind is not Kind.DATA or not copies:
        return True
    if member not in ensemble:
        return False
    return ensemble.index(member) in slots_of(entry.order, len(ensemble))[:copies]
