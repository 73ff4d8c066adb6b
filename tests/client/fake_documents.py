"""The documents of a shard of the fake cluster: the core's own fold over rows in memory, behind the real RPCs.

Faults are scripted by the test: refusals, members that are behind, scans that break, answers that stop early, nodes of
a release that serves no documents.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tidemark_core.base.effects import Delete, DeleteRange, Put, PutMany
from tidemark_core.base.entry import Entry, Kind, control
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.documents import reading
from tidemark_core.documents.fold import decoded, fold
from tidemark_core.documents.payload import KEY_BYTES_MAX, Outcome, decode_outcomes
from tidemark_core.documents.pinning import Ended, encode_pin, encode_unpin
from tidemark_core.documents.rows import DOCS, EFFECTS, Summary, decode_row, doc_key, seqno_key
from tidemark_core.replication.messages import Appended
from tidemark_core.upr.history import Opening
from tidemark_wire.document_columns import pack
from tidemark_wire.status import to_rpc_error
from tidemark_wire.v1 import documents_pb2, documents_pb2_grpc

SHARD = 7   # of the rows; every fake shard has its own


class MemoryRows:
    """The families as a store would show them."""

    def __init__(self) -> None:
        self.families: dict[str, dict[bytes, bytes]] = {}

    def get(self, family: str, key: bytes) -> bytes | None:
        return self.families.get(family, {}).get(key)

    def scan(self, family: str, first: bytes, behind: bytes) -> Iterable[tuple[bytes, bytes]]:
        rows = self.families.get(family, {})
        return [(key, rows[key]) for key in sorted(rows) if first <= key < behind]

    def write(self, writes: Iterable[object]) -> None:
        for write in writes:
            match write:
                case Put():
                    self.families.setdefault(write.family, {})[write.key] = write.value
                case PutMany():
                    self.families.setdefault(write.family, {}).update(write.rows)
                case Delete():
                    self.families.get(write.family, {}).pop(write.key, None)
                case DeleteRange():
                    rows = self.families.get(write.family, {})
                    for key in [key for key in rows if write.first <= key < write.behind]:
                        del rows[key]
                case _:
                    raise TypeError(f"{type(write).__name__} is no write that this store knows")


class Folded:
    """The documents as one member has applied them."""

    def __init__(self) -> None:
        self.rows = MemoryRows()
        self.summary = Summary()

    def fold(self, entries: Iterable[Entry], hidden: Any) -> None:
        for entry in entries:
            if entry.base > self.summary.applied:
                folded = fold(SHARD, self.summary, decoded([entry], hidden), entry.last, entry.epoch, self._row)
                self.rows.write(folded.writes)
                self.summary = folded.summary

    def _row(self, key: bytes) -> Any:
        stored = self.rows.get(DOCS, doc_key(SHARD, key))
        return decode_row(stored) if stored is not None else None

    def outcomes(self, base: int) -> tuple[Outcome, ...]:
        row = self.rows.get(EFFECTS, seqno_key(SHARD, base))
        assert row is not None
        return decode_outcomes(row)


@dataclass
class FakeDocuments:
    """The documents of one shard, and the faults of its reads."""

    shard: Any
    folded: Folded = field(default_factory=Folded)
    lagging: dict[str, int] = field(default_factory=dict)     # node: it has applied no more than this
    refusals: deque[Refused] = field(default_factory=deque)   # given to the next reads, in turn
    breaks: deque[int] = field(default_factory=deque)         # the next scans break after so many pages
    on_break: Callable[[], None] = lambda: None               # called when one does
    keys_max: int = 10_000                                    # of one answer to Get
    page_max: int = 3                                         # documents of one page
    gets: list[int] = field(default_factory=list)             # keys of each Get that came
    asked: list[tuple[str, str]] = field(default_factory=list)   # node and method of each call
    levels: list[str] = field(default_factory=list)           # of each read
    delay_s: float = 0.0                                      # of each answer to Get

    def through(self, last: int) -> Folded:
        """Fold what is readable, and at least up to `last`."""
        last = max(last, self.shard.readable)
        self.folded.fold(
            [entry for entry in self.shard.entries if entry.last <= last],
            lambda base: self.shard.covering(base) is not None,
        )
        return self.folded

    def at(self, node: str) -> Folded:
        """Return what a node has applied."""
        if node not in self.lagging:
            return self.through(-1)
        folded = Folded()
        folded.fold(
            [entry for entry in self.shard.entries if entry.last <= self.lagging[node]],
            lambda base: self.shard.covering(base) is not None,
        )
        return folded

    def outcomes(self, appended: Appended) -> tuple[Outcome, ...]:
        return self.through(appended.base + appended.count - 1).outcomes(appended.base)

    def control(self, kind: Kind, payload: bytes) -> int:
        """Append a control entry and return its offset."""
        shard, last = self.shard, self.shard.entries[-1]
        entry = control(
            kind, payload, epoch=shard.epoch, prev=last.id, prev_chain=last.chain, logged_ms=shard.logged_ms
        )
        shard.entries.append(entry)
        return entry.last


class DocumentsServicer(documents_pb2_grpc.DocumentsServicer):
    """The service of one fake node."""

    def __init__(self, node: Any) -> None:
        self.node = node

    async def _of(self, request: Any, context: Any, method: str, *, leader: bool) -> FakeDocuments:
        await self.node.paused.wait()
        if not self.node.serves_documents:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if (refused := self.node.cluster.refusal(request.group, request.group_id)) is not None:
            await self._refuse(context, refused)
        shard = self.node.cluster.groups[request.group][request.shard]
        if shard.documents is None:
            await self._refuse(context, Refused(Reason.WRONG_KIND, f"{request.group} is a log"))
        documents: FakeDocuments = shard.documents
        documents.asked.append((self.node.name, method))
        if documents.refusals:
            await self._refuse(context, documents.refusals.popleft())
        if leader and shard.leader != self.node.name:
            await self._refuse(context, Refused(Reason.NOT_LEADER, "not the leader", shard.epoch))
        return documents

    async def _refuse(self, context: Any, refused: Refused) -> None:
        error = to_rpc_error(refused)
        await context.abort(error.code, error.details, error.trailing_metadata)

    async def _read(self, request: Any, context: Any, method: str) -> tuple[FakeDocuments, Folded]:
        pinned = request.HasField("pin")
        documents = await self._of(
            request, context, method, leader=not pinned and request.level in ("", "linearizable", "leader"))
        documents.levels.append("pin" if pinned else request.level)
        folded = documents.at(self.node.name)
        if pinned:
            try:
                reading.check_pin(folded.rows, SHARD, request.pin.name, request.pin.at)
            except reading.Behind as error:
                await self._refuse(context, Refused(Reason.BEHIND, str(error), expected=error.applied))
            except reading.NotPinned as error:
                await self._refuse(context, Refused(Reason.NOT_PINNED, str(error)))
        elif request.min_seqno > folded.summary.applied:
            text = f"applied {folded.summary.applied}"
            await self._refuse(context, Refused(Reason.BEHIND, text, expected=folded.summary.applied))
        return documents, folded

    async def Get(self, request: Any, context: Any) -> documents_pb2.GetDocumentsResponse:
        documents, folded = await self._read(request, context, "Get")
        documents.gets.append(len(request.keys))
        if documents.delay_s:
            await asyncio.sleep(documents.delay_s)
        keys = list(request.keys)[: documents.keys_max]
        answer = documents_pb2.GetDocumentsResponse(
            applied=folded.summary.applied, epoch=folded.summary.epoch, answered=len(keys))
        for place, key in enumerate(keys):
            found = (
                reading.get_at(folded.rows, SHARD, request.pin.name, request.pin.at, key)
                if request.HasField("pin") else reading.get(folded.rows, SHARD, key)
            )
            if found is not None:
                answer.documents.add(
                    seqno=found.seqno, expires_at_ms=found.expires_at_ms, value=found.value, place=place)
        return answer

    async def Scan(self, request: Any, context: Any) -> Any:
        if len(request.first) > KEY_BYTES_MAX or len(request.until) > KEY_BYTES_MAX:
            await self._refuse(context, Refused(Reason.INVALID_SPEC, "first and until have at most 1024 bytes"))
        documents, folded = await self._read(request, context, "Scan")
        bounds = (request.first, request.until or None)
        found = list(
            reading.scan_at(folded.rows, SHARD, request.pin.name, request.pin.at, *bounds)
            if request.HasField("pin") else reading.scan(folded.rows, SHARD, *bounds)
        )
        if request.documents_max:
            found = found[: request.documents_max]
        breaks = documents.breaks.popleft() if documents.breaks else -1
        for number, start in enumerate(range(0, max(len(found), 1), documents.page_max)):
            if number == breaks:
                documents.on_break()
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the node is stopping")
            page = documents_pb2.ScanDocumentsPage(
                applied=request.pin.at if request.HasField("pin") else folded.summary.applied,
                epoch=folded.summary.epoch, lineage=self.node.changes.lineage,
                last=start + documents.page_max >= len(found))
            some = found[start : start + documents.page_max]
            page.columns.CopyFrom(pack(
                [each.key for each in some], [b"" if request.keys_only else each.value for each in some],
                [each.seqno for each in some], [each.expires_at_ms for each in some]))
            yield page

    async def Pin(self, request: Any, context: Any) -> documents_pb2.PinDocumentsResponse:
        documents = await self._of(request, context, "Pin", leader=True)
        documents.control(Kind.PIN, encode_pin(request.name, request.ttl_ms))
        pin = documents.through(-1).summary.pins[request.name]
        return documents_pb2.PinDocumentsResponse(
            at=pin.at, epoch=pin.epoch, count=pin.count, digest=pin.digest.to_bytes(16, "big"),
            lineage=self.node.changes.lineage)

    async def Unpin(self, request: Any, context: Any) -> documents_pb2.UnpinDocumentsResponse:
        documents = await self._of(request, context, "Unpin", leader=True)
        existed = request.name in documents.through(-1).summary.pins
        documents.control(Kind.UNPIN, encode_unpin(request.name, Ended.ASKED))
        documents.through(-1)
        return documents_pb2.UnpinDocumentsResponse(existed=existed)

    async def Describe(self, request: Any, context: Any) -> documents_pb2.DescribeDocumentsResponse:
        documents = await self._of(request, context, "Describe", leader=False)
        summary = documents.at(self.node.name).summary
        answer = documents_pb2.DescribeDocumentsResponse(
            applied=summary.applied, epoch=summary.epoch, count=summary.count,
            digest=summary.digest.to_bytes(16, "big"), purged=summary.purged)
        starts = [each for each in documents.shard.entries if each.kind is Kind.EPOCH_START]
        for each in reversed(starts):
            opening = Opening(each.epoch, self.node.changes.lineage, each.base - 1)
            answer.failover_log.add(
                epoch=opening.epoch, lineage=opening.lineage, history=opening.id, head=opening.head)
        for name, pin in summary.pins.items():
            answer.pins.add(name=name, at=pin.at, expires_in_ms=pin.until_ms - documents.shard.logged_ms)
        return answer
