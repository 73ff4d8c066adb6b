"""Documents: members hold what a plain model makes of the committed log, at each of their cuts (U46-U53, U70-U73).

The model folds committed entries once more.  The rows, the summary and the answers of each member are compared with it.
Stays out: the fold's own view of rows; the checker reads the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidemark_core.base.entry import Entry, Kind
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import ShardId
from tidemark_core.documents.payload import Outcome
from tidemark_core.documents.reading import scan, scan_at
from tidemark_core.documents.requests import Level, Pinned, ReadDocuments, ReadGranted, Written
from tidemark_core.documents.rows import (
    BYSEQ,
    DOCS,
    EFFECTS,
    EXPIRY,
    Summary,
    behind,
    byseq_value,
    decode_row,
    kept_bytes,
    load,
    prefix,
    seqno_key,
    seqno_of,
)
from tidemark_core.replication.replica import Role
from tidemark_core.upr.history import Opening

from ..document_model import History as Model
from ..document_model import State
from ..trace import Violation

if TYPE_CHECKING:
    from ..disk import Tables
    from ..node import Node
    from ..world import World
    from .history import History


COUNTED = frozenset((Kind.EXPIRE, Kind.PURGE, Kind.PIN, Kind.UNPIN))


class StoreView:
    """The rows of one disk, as a snapshot shows them."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def get(self, family: str, key: bytes) -> bytes | None:
        return self._tables.get(family, key)

    def scan(self, family: str, first: bytes, behind: bytes) -> Iterable[tuple[bytes, bytes]]:
        return self._tables.scan(family, first, behind)


class Documents:
    """Judges shards of documents; where shards are logs it has nothing to do."""

    def __init__(self, world: World, history: History) -> None:
        self.world = world
        self.history = history
        self._on = bool(world.options.documents.keys)
        self.models: dict[ShardId, Model] = {shard: Model() for shard in world.shards}
        self._seen: dict[tuple[str, int, ShardId], tuple[int, int]] = {}
        self._answered: dict[ShardId, int] = {shard: -1 for shard in world.shards}   # end of what was answered
        self._lineages: dict[ShardId, bytes] = {}
        self._asked: dict[int, int] = {}   # linearizable reads: what was answered when they were asked

    # --- the log ------------------------------------------------------------------------------------------

    def committed(self, shard: ShardId, node: Node, entry: Entry) -> None:
        if not self._on:
            return
        model = self.models[shard]
        before = model.state
        model.take(entry)
        if entry.kind is Kind.EPOCH_START:
            self._opened(shard, entry)
        if entry.kind in COUNTED:
            self.world.trace.count(f"{entry.kind.name.lower()}_entries")
        if entry.kind is not Kind.PURGE:
            return
        if entry.sequence not in model.at:
            raise Violation("U52", f"{entry.id} purges up to {entry.sequence}, which is no cut")
        for name, pin in before.pins.items():
            if entry.sequence > pin.at:
                raise Violation("U52", f"{entry.id} purges up to {entry.sequence}, pin {name} stands at {pin.at}")

    def _opened(self, shard: ShardId, entry: Entry) -> None:
        """A shard that lost nothing keeps its lineage, whatever its metadata went through (U54)."""
        try:
            lineage = Opening.of(entry).lineage
        except RemoteViolation as violation:
            raise Violation("U54", str(violation)) from violation
        first = self._lineages.setdefault(shard, lineage)
        if lineage != first:
            raise Violation("U54", f"{entry.id} names the lineage {lineage.hex()}, the shard began as {first.hex()}")

    # --- members ------------------------------------------------------------------------------------------

    def node_started(self, node: Node) -> None:
        """A restart finds the rows of one cut."""
        if self._on:
            for shard in node.disk.durable:
                if shard in self.models:
                    self.history.look(node, shard)   # its rows may prove what no node has shown yet (U47)
                    self._compare_rows(node, shard)

    def node_stepped(self, node: Node, events: Any) -> None:
        if not self._on or node.core is None:
            return
        for shard, held in node.core.log.shards.items():
            documents = held.documents
            if documents is None:
                raise Violation("U46", f"{node.name} holds {shard} as a log")
            key = (node.name, node.life, shard)
            now = (documents.summary.applied, documents.durable)
            if self._seen.get(key) == now or held.replica.state.role in (Role.SEEDING, Role.DELETED):
                continue
            if documents.comparing.diverged:
                raise Violation("U73b", f"{node.name} finds other documents at {documents.comparing.diverged}")
            self.history.look(node, shard)
            before, self._seen[key] = self._seen.get(key), now
            self._compare_summary(node, shard, documents.summary)
            if documents.durable >= 0 and (before is None or before[1] != now[1]):
                self._compare_rows(node, shard)
                self.world.trace.count("documents_compared")
            first = held.replica.log.first
            if first > documents.durable + 1 and not documents.replacing:
                raise Violation("U47", f"{node.name} removed the log below {first}, its rows stand at {now[1]}")

    def _state(self, node: Node, shard: ShardId, applied: int) -> State:
        state = self.models[shard].at.get(applied)
        if state is None:
            raise Violation("U46", f"{node.name} has folded up to {applied}, which is no cut")
        return state

    def _compare_summary(self, node: Node, shard: ShardId, summary: Summary) -> None:
        state = self._state(node, shard, summary.applied)
        told = (summary.count, summary.digest, summary.purged, summary.expiring)
        expiring = sum(version.expires_at_ms > 0 for version in state.documents.values())
        wanted = (len(state.documents), state.digest, state.purged, expiring)
        if told != wanted:
            raise Violation("U73", f"{node.name} says {told} of its documents at {summary.applied}, the log {wanted}")
        pins = {
            name: (pin.at, pin.until_ms, pin.owner, pin.count, pin.kept_bytes) for name, pin in summary.pins.items()
        }
        kept = {
            name: (pin.at, pin.until_ms, pin.owner, len(pin.documents), sum(
                kept_bytes(key, version.value) for key, version in pin.documents.items()
                if state.documents.get(key) != version
            )) for name, pin in state.pins.items()
        }
        if pins != kept:
            raise Violation("U70", f"{node.name} has pins {pins} at {summary.applied}, the log says {kept}")

    def _compare_rows(self, node: Node, shard: ShardId) -> None:
        """Compare what is durable; `applied` and rows are one write (U47)."""
        rows = StoreView(node.disk.durable_tables)
        summary = load(shard, rows)
        if summary is None:
            return
        state = self._state(node, shard, summary.applied)
        self._compare_summary(node, shard, summary)
        at = f"{node.name} at {summary.applied}"
        shown = {each.key: each[1:] for each in scan(rows, shard)}
        if shown != state.documents:
            raise Violation("U47", f"{at} shows {shown}, the log says {state.documents}")
        bounds = prefix(shard), behind(shard)
        stored = {key[8:]: decode_row(value) for key, value in rows.scan(DOCS, *bounds)}
        byseq = {seqno_of(key): value for key, value in rows.scan(BYSEQ, *bounds)}
        if byseq != {row.seqno: byseq_value(key, row.live) for key, row in stored.items()}:
            raise Violation("U48", f"{at} has other rows by seqno than by key")
        dead = {key: row.seqno for key, row in stored.items() if not row.live}
        unswept = {key: seqno for key, (seqno, _) in state.deleted.items() if seqno > state.purged}
        if not unswept.items() <= dead.items() or any(state.deleted[key][0] != seqno for key, seqno in dead.items()):
            raise Violation("U52", f"{at} has tombstones {dead}, the log says {state.deleted}, purged {state.purged}")
        if summary.tombstones != len(dead):
            raise Violation("U52", f"{at} counts {summary.tombstones} tombstones and has {len(dead)}")
        if len(list(rows.scan(EXPIRY, *bounds))) != summary.expiring + len(dead):
            raise Violation("U51", f"{at} has other rows of what expires than documents and tombstones")
        for name, pin in state.pins.items():
            if {each.key: each[1:] for each in scan_at(rows, shard, name, pin.at)} != pin.documents:
                raise Violation("U71", f"{at} shows other documents at pin {name} than were there at {pin.at}")
            self.world.trace.count("pins_compared")
        self._compare_outcomes(node, shard, rows, summary)

    def _compare_outcomes(self, node: Node, shard: ShardId, rows: StoreView, summary: Summary) -> None:
        """U50: the outcome of each entry that is in the log or that a producer may retry is there."""
        held = node.core.log.shards.get(shard) if node.core is not None else None
        if held is None or held.replica.state.role in (Role.SEEDING, Role.DELETED):
            return
        outcomes = self.models[shard].outcomes
        log = held.replica.log
        bases = {base for base in outcomes if log.first <= base <= summary.applied}
        for known in log.producers.snapshot().values():
            bases |= {place.base for place in known.places if place.last <= summary.applied and place.base in outcomes}
        for base in bases:
            if rows.get(EFFECTS, seqno_key(shard, base)) is None:
                raise Violation("U50", f"{node.name} has forgotten the outcome of the entry at {base}")

    # --- answers ------------------------------------------------------------------------------------------

    def node_wrote(self, node: Node, shard: ShardId, written: Written) -> None:
        """The outcome is the log's, on every leader and at every retry (U50)."""
        self.history.look(node, shard)
        wanted: tuple[Outcome, ...] | None = self.models[shard].outcomes.get(written.base)
        if written.outcomes != wanted:
            raise Violation("U50", f"{node.name} says {written.outcomes} of {written.base}, the log says {wanted}")
        self._answered[shard] = max(self._answered[shard], written.base + written.count - 1)
        self.world.trace.count("document_writes_answered")

    def documents_asked(self, event: ReadDocuments) -> None:
        if event.level is Level.LINEARIZABLE:
            self._asked[event.request] = self._answered[event.shard]

    def node_replied(self, node: Node, event: Any, value: Any) -> None:
        if isinstance(value, Pinned):
            self._pinned(node, event.shard, value)
        if not isinstance(value, ReadGranted):
            return
        summary = load(event.shard, StoreView(node.disk.durable_tables))
        applied = summary.applied if summary is not None else -1
        floor = max(event.min_seqno, value.applied, self._asked.pop(event.request, -1))
        if applied < floor:
            raise Violation("U53", f"{node.name} grants a read at {applied}, it has to show {floor}")
        self.world.trace.count(f"reads_granted_{event.level.name.lower()}")

    def _pinned(self, node: Node, shard: ShardId, value: Pinned) -> None:
        self.history.look(node, shard)
        state = self.models[shard].at[value.at]
        pin = state.pins[value.name]
        if (value.count, value.at) != (len(pin.documents), pin.at) or value.digest != state.digest:
            raise Violation("U70", f"{node.name} answers {value}, the log says {len(pin.documents)} at {pin.at}")
        self.world.trace.count("pins_answered")
