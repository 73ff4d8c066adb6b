"""One fate per entry: visible on every node that has confirmed past it, or on none, ever (L3, L5, L7, L10).

What a node shows is folded here once more, from the records on its disk up to its confirmed watermark; nothing of
the core's own fold is asked.  As confirmed prefixes of all nodes are prefixes of one log, equal fates make what any
two nodes show equal up to the lower watermark.  What a producer sees of itself keeps its order (L22).
Stays out: what callers were told (`outcomes`), who may raise the watermark (`watermarks`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import PutEntry, Write
from tidemark_core.base.entry import Durability, Entry, Kind
from tidemark_core.base.ids import ShardId
from tidemark_core.documents.payload import MAGIC, decode
from tidemark_core.replication.producer_ids import fence_of
from tidemark_core.replication.replica import Role

from ..document_clients import item_of as document_item_of
from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History

Place = tuple[int, int]
"""Epoch and base: there is one entry of that name."""


class ShardFates:
    """What was seen of one shard."""

    __slots__ = ("definite", "hidden", "items", "numbers", "rollbacks", "visible")

    def __init__(self) -> None:
        self.visible: dict[Place, int] = {}           # the epoch in which it was seen visible first
        self.hidden: dict[Place, int] = {}            # the offset of the record that hides it
        self.rollbacks: dict[Place, int] = {}         # every record ever written, and what it reaches back to
        self.definite: dict[int, int] = {}            # committed records: offset, and what it reaches back to
        self.numbers: dict[Place, int] = {}           # of batches: some disks keep the header alone
        # Per producer: base, and fence and number, of the newest batch seen visible.
        self.items: dict[bytes, tuple[int, tuple[int, int]]] = {}


def item_of(entry: Entry) -> int:
    """Return the number that a producer gave the batch when it made it, whatever sequence it travelled under."""
    if entry.payload.startswith(MAGIC):
        return document_item_of(decode(entry.payload, entry.count))
    return int(entry.payload.split(b"/")[1].rstrip(b"."))


def covered_by(entries: list[Entry], upto: int) -> dict[int, int]:
    """Return base -> record for every data entry hidden by a record at or below `upto`; `entries` are in order."""
    hidden: dict[int, int] = {}
    for at, record in enumerate(entries):
        if record.kind is Kind.ROLLBACK and record.base <= upto:
            for entry in reversed(entries[:at]):
                if entry.base < record.sequence:
                    break
                if entry.kind is Kind.DATA:
                    hidden.setdefault(entry.base, record.base)   # the first decision wins
    return hidden


def _aimed(node: Node, image: Image, record: Entry, confirmed: int) -> None:
    """L7, F21: a leader rolls back from its oldest undecided QUORUM entry, and nothing that it inherited."""
    opening = max((entry.base for entry in image.entries if entry.kind is Kind.EPOCH_START), default=-1)
    if not opening <= confirmed:
        raise Violation("L7", f"{node.name} writes {record.id} before {opening} is confirmed")
    undecided = image.entries[image.position(confirmed + 1):]
    hidden = covered_by(undecided, image.last)
    oldest = next(
        (
            entry.base for entry in undecided
            if entry.kind is Kind.DATA and entry.durability is Durability.QUORUM and entry.base not in hidden
        ),
        -1,
    )
    if record.sequence != oldest:
        raise Violation("L7", f"{node.name} writes {record.id} from {record.sequence}, its oldest is {oldest}")


class Fates:
    """Watches what nodes confirm."""

    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self.shards: dict[ShardId, ShardFates] = {shard: ShardFates() for shard in world.shards}
        self._cut: dict[tuple[str, int, ShardId], int] = {}

    def of(self, shard: ShardId) -> ShardFates:
        return self.shards[shard]

    def loss_accepted(self, shard: ShardId, before: Any, source: Any, lost: Sequence[Entry]) -> None:
        """A record that is lost hides nothing any more, and numbers that are lost may come again (K14e)."""
        fates, bases = self.shards[shard], {entry.base for entry in lost}
        fates.definite = {base: first for base, first in fates.definite.items() if base not in bases}
        fates.hidden = {place: record for place, record in fates.hidden.items() if record not in bases}
        fates.items = {producer: seen for producer, seen in fates.items.items() if seen[0] not in bases}

    def node_stepped(self, node: Node, events: Any) -> None:
        assert node.core is not None
        for shard in node.core.log.shards:
            self.look(node, shard)

    def node_answers(self, node: Node, event: Any, value: Any) -> None:
        """An answer leaves in the middle of a step, and the node may die before the step ends."""
        if node.core is not None and event.shard in node.core.log.shards:
            self.look(node, event.shard)

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        if write.__class__ is not PutEntry:
            return
        entry = write.entry
        if entry.kind is Kind.DATA and entry.held:
            self.shards[shard].numbers[entry.epoch, entry.base] = item_of(entry)
        if entry.kind is Kind.ROLLBACK:
            self.shards[shard].rollbacks.setdefault((entry.epoch, entry.base), entry.sequence)
            held = node.core.log.shards[shard] if node.core is not None else None
            if held is not None and held.leader is not None and image.at(entry.base) is None:
                _aimed(node, image, entry, held.replica.confirmed)

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        """A committed record is in every later log: nothing it covers may ever have been shown."""
        if entry.kind is not Kind.ROLLBACK:
            return
        fates = self.shards[shard]
        fates.definite[entry.base] = entry.sequence
        self.world.trace.count("rollbacks_confirmed")
        for covered in reversed(self.history.of(shard).entries):
            if covered.base < entry.sequence:
                break
            if (covered.epoch, covered.base) in fates.visible:
                raise Violation("L5", f"{covered.id} was visible, and the committed record {entry.id} rolls it back")

    def led(self, shard: ShardId, node: Node, epoch: int) -> None:
        """No later leader's log may hide what was shown."""
        image = node.disk.written.get(shard)
        if image is None:
            return
        fates = self.shards[shard]
        by_base = {entry.base: entry for entry in image.entries}
        for base, record in covered_by(image.entries, image.last).items():
            place = (by_base[base].epoch, base)
            if fates.visible.get(place, epoch) < epoch:
                raise Violation("L5", f"{node.name} leads epoch {epoch}, where {record} hides {place}, once visible")

    def look(self, node: Node, shard: ShardId) -> None:
        """Fold what this node confirmed since the last look."""
        assert node.core is not None
        replica = node.core.log.shards[shard].replica
        key = (node.name, node.life, shard)
        seen = self._cut.get(key, -1)
        if replica.confirmed == seen or replica.state.role in (Role.SEEDING, Role.DELETED):
            return
        self._cut[key] = replica.confirmed
        if replica.confirmed > seen:
            self._fold(node, shard, seen, replica.confirmed, replica.state.epoch)

    def _fold(self, node: Node, shard: ShardId, seen: int, cut: int, epoch: int) -> None:
        image = node.disk.written[shard]
        start = image.position(seen + 1)
        entries = image.entries[start:]
        for record in entries:
            if record.kind is not Kind.ROLLBACK:
                continue
            if record.base > cut >= record.sequence:
                raise Violation("L3", f"{node.name} has confirmed {cut}, inside [{record.sequence}, {record.base})")
            if record.base <= cut and record.sequence <= seen:
                raise Violation(
                    "L7", f"{node.name} confirmed {seen} and then {record.id}, which reaches back to {record.sequence}"
                )
        hidden = covered_by(entries, cut)
        fates = self.shards[shard]
        for entry in entries:
            if entry.last > cut:
                break
            if entry.kind is not Kind.DATA:
                continue
            place = (entry.epoch, entry.base)
            if entry.base in hidden:
                if place in fates.visible:
                    raise Violation("L5", f"{node.name} hides {entry.id}, which was visible elsewhere or before")
                fates.hidden[place] = hidden[entry.base]
            elif place in fates.hidden:
                raise Violation("L5", f"{node.name} shows {entry.id}, which {fates.hidden[place]} rolled back")
            elif place not in fates.visible:
                self._shown(node, fates, entry, epoch)

    def _shown(self, node: Node, fates: ShardFates, entry: Entry, epoch: int) -> None:
        for record, first in fates.definite.items():
            if first <= entry.base < record:
                raise Violation("L5", f"{node.name} shows {entry.id}, which the committed record {record} rolled back")
        fates.visible[entry.epoch, entry.base] = epoch
        if self.world.options.synchro.immediate:
            return   # who is told too early repeats what needs no repeating
        number = fence_of(entry.sequence), fates.numbers[entry.epoch, entry.base]
        base, item = fates.items.get(entry.producer, (-1, (0, -1)))
        if entry.base < base:
            return   # seen late: what lies behind it was compared
        if number <= item:
            raise Violation("L22", f"batch {number} of a producer is visible at {entry.id}, behind its {item}")
        fates.items[entry.producer] = (entry.base, number)
