"""What readers are given is the confirmed log: each offset once, in order, and every gap is what it is called (S).

HOLE exactly where offsets were rolled back, TRIM only below a point that somebody trimmed to, DATALOSS never while
a live member holds the entry intact.  No honest member is accused, silence never blames everybody (S14) nor a member
that spoke just now (S14b), nothing is delivered that was not released, and memory is bounded by the window.
Stays out: whether readers arrive (`tidemark_sim.liveness`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark_core.base.effects import DropBefore, PutEntry, Released, Write
from tidemark_core.base.entry import Entry
from tidemark_core.base.ids import ShardId
from tidemark_core.delivery.messages import Deliver, DeliverGap, GapKind, Note, Reason
from tidemark_core.delivery.slowness import WAITED_MS
from tidemark_core.replication.replica import Role

from ..trace import Violation

if TYPE_CHECKING:
    from ..delivery import Client
    from ..disk import Image
    from ..node import Node
    from ..world import World
    from .history import History


class Delivered:
    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self._expected: dict[str, int] = {}
        self._trimmed: dict[ShardId, int] = {}
        self._released: dict[ShardId, int] = {}
        self._largest = 0

    # --- what the members did -----------------------------------------------------------------------------

    def node_writes(self, node: Node, shard: ShardId, image: Image, write: Write) -> None:
        if write.__class__ is PutEntry:
            self._largest = max(self._largest, write.entry.size)
        elif write.__class__ is DropBefore:
            self._trimmed[shard] = max(self._trimmed.get(shard, 0), write.offset)

    def node_released(self, node: Node, released: Released) -> None:
        self._released[released.shard] = max(self._released.get(released.shard, -1), released.upto)

    def node_started(self, node: Node) -> None:
        assert node.core is not None
        for shard, held in node.core.log.shards.items():
            self._released[shard] = max(self._released.get(shard, -1), held.replica.released)

    # --- what readers are given ---------------------------------------------------------------------------

    def reader_begins(self, client: Client, first: int) -> None:
        self._expected[client.name] = first

    def reader_delivers(self, client: Client, effect: Deliver) -> None:
        if not isinstance(effect.item.body, tuple) or effect.last > effect.item.last:
            raise Violation("S1", f"{client.name} is given {effect.item} for entries")
        for entry in effect.item.body:
            self._reader_given(client, entry, max(effect.first, entry.base), min(effect.last, entry.last))
        if self._expected[client.name] != effect.last + 1:
            raise Violation("S8", f"{client.name} is given {effect} without what it speaks of")

    def _reader_given(self, client: Client, entry: Any, first: int, last: int) -> None:
        expected = self._expected[client.name]
        if not isinstance(entry, Entry) or not entry.held:
            raise Violation("S1", f"{client.name} is given {entry} for an entry")
        known = self.history.of(client.shard).at_base.get(entry.base)
        # A leader may commit and drop in one step: then the first copy seen is a header, whose chain is enough.
        if known is None or known.chain != entry.chain or (known.held and known.payload != entry.payload):
            raise Violation("S1", f"{client.name} is given {entry.id}, committed is {known.id if known else 'nothing'}")
        if first != expected or last != entry.last or not entry.base <= expected:
            raise Violation("S8", f"{client.name} is given [{first}, {last}], it waits for {expected}")
        if last > self._released.get(client.shard, -1):
            raise Violation("A2", f"{client.name} is given {entry.id}, released is {self._released.get(client.shard)}")
        if self._is_hidden(client.shard, entry.base):
            raise Violation("L10", f"{client.name} is given {entry.id}, which was rolled back")
        self._expected[client.name] = last + 1

    def reader_passes(self, client: Client, gap: DeliverGap) -> None:
        if gap.first != self._expected[client.name] or gap.last < gap.first:
            raise Violation("S8", f"{client.name} is told {gap}, it waits for {self._expected[client.name]}")
        offsets = range(gap.first, gap.last + 1)
        match gap.kind:
            case GapKind.HOLE:
                shown = [offset for offset in offsets if not self._is_hidden(client.shard, offset)]
                if shown:
                    raise Violation("L10", f"{client.name} is told of a {gap}, {shown} was not rolled back")
            case GapKind.TRIM:
                if gap.last >= self._trimmed.get(client.shard, 0):
                    raise Violation("S20", f"{client.name} is told {gap}, trimmed is {self._trimmed.get(client.shard)}")
            case GapKind.DATALOSS:
                self._lost(client, gap)
            case GapKind.ACCESS:
                raise Violation("S20", f"{client.name} is told {gap}, and nobody forbids anything")
        self._expected[client.name] = gap.last + 1

    def _is_hidden(self, shard: ShardId, offset: int) -> bool:
        definite = self.history.fates.of(shard).definite
        return any(first <= offset < record for record, first in definite.items())

    def _lost(self, client: Client, gap: DeliverGap) -> None:
        """K18: nobody who is asked may hold it; and what breaks here never breaks every copy."""
        history, world = self.history.of(client.shard), self.world
        for entry in history.entries:
            if entry.last < gap.first or entry.base > gap.last:
                continue
            if self._is_hidden(client.shard, entry.base):
                raise Violation("K18", f"{client.name} is told {gap}, {entry.id} was rolled back")
            for name in client.reader.ensemble:
                node = world.nodes[name]
                held = node.core.log.shards.get(client.shard) if node.core is not None else None
                copy = node.disk.image(client.shard).at(entry.base)
                if (
                    held is not None and held.replica.state.role not in (Role.SEEDING, Role.DELETED)
                    and copy is not None and copy.chain == entry.chain and copy.held
                    and (client.shard, entry.base) not in node.disk.corrupt
                ):
                    raise Violation("K18", f"{client.name} is told {gap}, {name} holds {entry.id}")
            raise Violation("K2", f"{client.name} is told {gap}: nobody holds {entry.id} any more")

    # --- how --------------------------------------------------------------------------------------------

    def reader_notes(self, client: Client, note: Note) -> None:
        reader = client.reader
        if note.reason is Reason.VIOLATION:
            raise Violation("S12", f"{client.name} accuses {note.node}, which is honest: {note.detail}")
        if (note.what, note.reason) == ("known_down", Reason.SILENT) and len(reader.down) == len(reader.sources):
            raise Violation("S14", f"{client.name} blames everybody for silence")
        if note.reason is Reason.SILENT and note.what == "known_down":
            now_ms, settings = self.world.now_ms, reader.settings
            spoke_ms = now_ms - client.heard_ms.get(note.node, 0)
            if spoke_ms < settings.silent_timeout_ms and now_ms - client.moved_ms < settings.scd_timeout_ms:
                raise Violation("S14b", f"{client.name} blames {note.node} for silence, it spoke {spoke_ms} ms ago")
        if note.what == "slow" and client.idle_ms < WAITED_MS:
            raise Violation("S slow", f"{client.name} blames {note.node}, its application idled {client.idle_ms} ms")
        if note.what == "all_send_all" and note.detail.startswith("nobody sends") and self._all_keep(client):
            # All decide alike: whoever is first of those that are not listed has sent what it covered.
            trusted = [name for name in reader.sources if name not in reader.known_down]
            if trusted:
                raise Violation("S19", f"{client.name} asks everybody at {reader.next}, {trusted} are not listed")

    def _all_keep(self, client: Client) -> bool:
        """Say whether every member keeps every payload, by the reader and by the record, which may be newer."""
        record = self.world.metadata.record(client.shard)
        return not client.reader.copies and not record.copies and (record.change is None or not record.change.copies)

    def reader_stepped(self, client: Client) -> None:
        reader = client.reader
        if reader.next != self._expected[client.name]:
            raise Violation("S8", f"{client.name} stands at {reader.next}, {self._expected[client.name]} is next")
        over = len(reader.sources) * self._largest
        window = reader.settings.window_bytes
        if reader.buffered_bytes > window + over:
            raise Violation("S", f"{client.name} has {reader.buffered_bytes} bytes waiting, its window is {window}")
        if sum(client.queue) > 2 * window + over:
            raise Violation("S", f"{client.name} drowns its application in {sum(client.queue)} bytes")
