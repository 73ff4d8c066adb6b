"""Keyspaces of the fake cluster: one dictionary behind the real RPCs, and faults that tests script by node.

Stays out: owners, quorums and stamps that mean anything; `tests/node/test_keyspace_client.py` runs real nodes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
from tidemark_core.base.ids import Member
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.optimistic.archive import Archived, archived, decoded, place_of
from tidemark_core.optimistic.cells import Place, Row
from tidemark_core.optimistic.merge import greatest, merge_rows
from tidemark_core.optimistic.ring import Owners, Quorum, Range, range_of
from tidemark_wire.rings import put_ring
from tidemark_wire.status import to_rpc_error
from tidemark_wire.v1 import common_pb2, keyspaces_pb2_grpc
from tidemark_wire.v1 import keyspaces_pb2 as wire

FAKE_NOW_MS = 2_000_000_000_000
"""The clock of every node in answers for people."""


@dataclass
class FakeKeyspace:
    """The values of one keyspace; `ranges` say the names of each one's owners."""

    name: str
    keyspace_id: int
    ranges: list[tuple[str, ...]]
    quorum: tuple[int, int] = (2, 2)
    fields: dict[str, Any] = field(default_factory=dict)
    pending: dict[int, tuple[str, ...]] = field(default_factory=dict)
    strings: dict[bytes, bytes] = field(default_factory=dict)
    elements: dict[bytes, dict[bytes, bytes]] = field(default_factory=dict)
    ttls: dict[bytes, int | None] = field(default_factory=dict)   # as the last write said
    cells: dict[Place, Row] = field(default_factory=dict)    # of backups, beside the values above
    floor_ms: int = 0
    writes: int = 0
    explained: wire.KeyExplained = field(default_factory=wire.KeyExplained)    # the answer to every question
    futures: list[wire.FutureKey] = field(default_factory=list)
    repaired: dict[bytes, wire.FutureRepaired] = field(default_factory=dict)
    next_range: int | None = None    # in place of the right one, in every answer
    shown: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)   # by node and range: beside its part

    def put(self, shard_map: common_pb2.ShardMap) -> None:
        """Write it into a map."""
        info = shard_map.keyspaces.add(
            **{"name": self.name, "keyspace_id": self.keyspace_id, "overrides_allowed": True, **self.fields})

        def owners(names: tuple[str, ...]) -> Owners:
            r, w = (min(each, len(names)) for each in self.quorum)
            return Owners(tuple(Member(name, f"{name}-1") for name in names), Quorum(len(names), r, w))

        put_ring(info, [
            Range(1, owners(names), owners(self.pending[index]) if index in self.pending else None)
            for index, names in enumerate(self.ranges)])


@dataclass
class KeyspaceFaults:
    """Faults of one node, for the next calls."""

    calls: list[str] = field(default_factory=list)          # methods, as they came
    requests: list[Any] = field(default_factory=list)
    delay_s: float = 0.0
    silent: bool = False                                     # never answers
    lost: deque[grpc.StatusCode] = field(default_factory=deque)   # it works, and the answer does not come
    refusals: deque[Refused] = field(default_factory=deque)
    outcomes: deque[str] = field(default_factory=deque)      # of the next calls; nothing is written but for a done one
    values_max: int = 100                                    # of one answer of Get
    gone: asyncio.Event = field(default_factory=asyncio.Event)    # some call was cancelled


def _handled(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return a handler that does what the faults say first."""
    method = handler.__name__

    async def call(self: KeyspacesServicer, request: Any, context: Any) -> Any:
        faults: KeyspaceFaults = self.node.keyspaces
        faults.calls.append(method)
        faults.requests.append(request)
        try:
            if faults.silent:
                await asyncio.Event().wait()
            await asyncio.sleep(faults.delay_s)
        except asyncio.CancelledError:
            faults.gone.set()
            raise
        refused = faults.refusals.popleft() if faults.refusals else None
        keyspace = self.node.cluster.keyspaces.get(request.keyspace)
        if keyspace is None:
            refused = refused or Refused(Reason.UNKNOWN_KEYSPACE, f"no keyspace {request.keyspace}")
        elif request.keyspace_id not in (0, keyspace.keyspace_id):
            refused = refused or Refused(Reason.GROUP_REPLACED, "another keyspace")
        if refused is not None:
            await context.abort(*to_rpc_error(refused))
        outcome = faults.outcomes.popleft() if faults.outcomes else "ok"
        answer = handler(self, keyspace, request, outcome)
        if faults.lost:
            await context.abort(faults.lost.popleft(), "the connection broke")
        return answer

    call.__name__ = method
    return call


DONE = ("ok", "weak", "sloppy")


class KeyspacesServicer(keyspaces_pb2_grpc.KeyspacesServicer):
    """The calls of one node."""

    def __init__(self, node: Any) -> None:
        self.node = node

    def _written(self, keyspace: FakeKeyspace, outcome: str) -> wire.KeyspaceWritten:
        keyspace.writes += 1
        stamp = wire.KeyspaceStamp(ms=1_000_000 + keyspace.writes, node=self.node.name, start=b"12345678")
        return wire.KeyspaceWritten(outcome=outcome, stamp=stamp, stored=2 if outcome in DONE else 1)

    @_handled
    def Get(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        return wire.GetStringsResponse(values=[
            wire.KeyspaceValue(outcome=outcome, value=keyspace.strings.get(key))
            for key in request.keys[:self.node.keyspaces.values_max]])

    @_handled
    def Set(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        if outcome in DONE:
            keyspace.strings.update((item.key, item.value) for item in request.items)
            keyspace.ttls.update(
                (item.key, item.ttl_ms if item.HasField("ttl_ms") else None) for item in request.items)
        return wire.SetStringsResponse(written=[self._written(keyspace, outcome) for _ in request.items])

    @_handled
    def Unset(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        keyspace.strings.pop(request.key, None)
        return self._written(keyspace, outcome)

    @_handled
    def GetDel(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        return wire.KeyspaceValue(outcome=outcome, value=keyspace.strings.pop(request.key, None))

    @_handled
    def Put(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        keyspace.elements.setdefault(request.key, {})[request.element] = request.value
        return self._written(keyspace, outcome)

    @_handled
    def Remove(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        keyspace.elements.get(request.key, {}).pop(request.element, None)
        return self._written(keyspace, outcome)

    @_handled
    def GetElement(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        return wire.KeyspaceValue(
            outcome=outcome, value=keyspace.elements.get(request.key, {}).get(request.element))

    @_handled
    def Elements(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        return _page(keyspace.elements.get(request.key, {}), request, outcome)

    @_handled
    def Clear(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        keyspace.elements.pop(request.key, None)
        return self._written(keyspace, outcome)

    @_handled
    def Strings(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        ranges = len(keyspace.ranges)
        return _page(
            {key: value for key, value in keyspace.strings.items() if range_of(key, ranges) == request.range},
            request, outcome)

    @_handled
    def Cells(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        place_of(request.first)
        found = [cell for cell in archived({
            place: row for place, row in keyspace.cells.items()
            if range_of(place.key, len(keyspace.ranges)) == request.range}) if cell.mark >= request.first]
        page, rest = found[:request.count_max], found[request.count_max:]
        return wire.CellsPage(
            outcome=outcome, cells=[wire.ArchivedCell(place=each.place, row=each.row) for each in page],
            next=rest[0].mark if rest else None, floor_ms=keyspace.floor_ms)

    @_handled
    def Import(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        refused = []
        cells = [decoded(Archived(each.place, each.row)) for each in request.cells]
        assert 1 == len({range_of(place.key, len(keyspace.ranges)) for place, _ in cells})
        for number, (place, row) in enumerate(cells if outcome in DONE else ()):
            if greatest(row).ms <= keyspace.floor_ms:
                refused.append(wire.RefusedCell(index=number, outcome="below"))
            else:
                known = keyspace.cells.get(place)
                keyspace.cells[place] = row if known is None else merge_rows(known, row)
        return wire.Imported(outcome=outcome, refused=refused)

    @_handled
    def Explain(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        return keyspace.explained

    @_handled
    def Futures(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        """Answer page by page with one key each, where a page has no bound of its own."""
        keys = [each for each in keyspace.futures if range_of(each.key, len(keyspace.ranges)) == request.range]
        at = int(request.first or b"0") if not request.count_max else 0
        shown = keys if request.count_max else keys[at:at + 1]
        return wire.FuturesPage(
            outcome=outcome, keys=shown, now_ms=FAKE_NOW_MS,
            next=b"%d" % (at + 1) if not request.count_max and at + 1 < len(keys) else None)

    @_handled
    def RepairFuture(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        return keyspace.repaired.get(request.key, wire.FutureRepaired(outcome=outcome))

    @_handled
    def Ranges(self, keyspace: FakeKeyspace, request: Any, outcome: str) -> Any:
        name, behind = self.node.name, request.first + 3     # small pages
        return wire.RangesPage(
            member=common_pb2.Member(node=name, incarnation=f"{name}-1"), now_ms=FAKE_NOW_MS,
            next=keyspace.next_range if keyspace.next_range is not None
            else behind if behind < len(keyspace.ranges) else None,
            ranges=[
                wire.RangeShown(**{
                    "range": index, "version": 1, "part": "owner" if name in names else "none",
                    "own": [common_pb2.Member(node=each, incarnation=f"{each}-1") for each in names],
                    **keyspace.shown.get((name, index), {})})
                for index, names in enumerate(keyspace.ranges)][request.first:behind])


def _page(rows: dict[bytes, bytes], request: Any, outcome: str) -> wire.KeyspacePage:
    count_max = request.count_max or 1000
    names = sorted(name for name in rows if name >= request.first)
    return wire.KeyspacePage(
        outcome=outcome, entries=[wire.KeyspaceEntry(name=name, value=rows[name]) for name in names[:count_max]],
        next=names[count_max] if len(names) > count_max else None)
