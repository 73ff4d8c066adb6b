"""The service Keyspaces: operations on the keys of keyspaces, which this node coordinates, owner or not.

A call is checked whole before anything of it begins.  An operation holds its bytes of the node's budget to its own
end, also where its caller has gone away: the core ends each one by its deadline.
Stays out: what an operation is and when it is done (the core), who may call (`access`), rings (`rings`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar, cast

from google.protobuf.message import Message
from tidemark_core.base.errors import RemoteViolation
from tidemark_core.base.ids import KEYSPACE_PLANE
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.optimistic.archive import Archived, decoded, place_of
from tidemark_core.optimistic.cells import NEVER, Place, Row, Sort, decode_place
from tidemark_core.optimistic.coordinating import operations
from tidemark_core.optimistic.coordinating.archiving import CellsPage, Imported, import_cells, read_cells
from tidemark_core.optimistic.coordinating.inspecting import Inspection, inspect
from tidemark_core.optimistic.coordinating.operations import Page, Steps, Value
from tidemark_core.optimistic.coordinating.outcomes import Outcome
from tidemark_core.optimistic.coordinating.reading import Repair
from tidemark_core.optimistic.coordinating.retracting import Futures, Repaired, futures, repair_future
from tidemark_core.optimistic.coordinating.running import STRICT, Policy
from tidemark_core.optimistic.coordinating.writing import Done
from tidemark_core.optimistic.owner import Source
from tidemark_core.optimistic.plane import BLANK, KeyspacePlane, Operate
from tidemark_core.optimistic.sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_core.optimistic.stamps import ZERO
from tidemark_core.optimistic.storing import of_element, of_string
from tidemark_wire.identity import Role
from tidemark_wire.optimistic import OWNERS_MAX
from tidemark_wire.v1 import keyspaces_pb2 as wire

from .access import Access
from .budgets import Budgets
from .driver import RELOADING, STOPPING, Driver
from .keyspace_views import explained, future_repaired, futures_page, ranges_page, stamp_of
from .methods import KEYSPACE, Method, Shape
from .metrics import Metrics
from .rings import TTL_MAX_MS, Keyspace, Rings
from .routing import Routing

DEADLINE_SECONDS = 5.0
"""Of a call without a deadline of its own."""
DEADLINE_SECONDS_MAX = 60.0
"""The write window of floors is longer (D68)."""
MARGIN_SECONDS = 0.15
"""So long before the caller's deadline an operation ends, so that its outcome still arrives."""
KEYS_MAX = 100
RANGES_MAX = 256
ROWS_MAX = 1_000
KEYS_AT_ONCE = 8
"""So many keys of one call are read at the same time: their values are in memory before the answer has room."""
ANSWER_BYTES = 1 << 20
REQUEST_BYTES_MAX = 2 << 20
"""Of requests with values: one of the largest, or many small ones."""

WRITE_BYTES = 4 << 10
READ_BYTES = 64 << 10
PAGE_BYTES = 4 << 20
EXPLAIN_BYTES = 1 << 20
"""An operation counts for so many in the budget, beside the bytes that its request brings."""

Handler = Callable[["KeyspaceCalls", Any, Any], Awaitable[Any]]
T = TypeVar("T")


class _Invalid(Exception):
    """A field of a request is wrong; the message begins with its name."""


class _Refusal(Exception):
    """Ends a call that has changed nothing."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class _Call(NamedTuple):
    """A call as it was checked; `end` is when its operations end, by the monotonic clock."""

    method: str
    who: str
    keyspace: Keyspace
    policy: Policy
    end: float
    source: Source = Source.CLIENT

    @property
    def timeout_ms(self) -> int:
        """The time that is left; an operation that begins with none ends at once."""
        return max(0, round((self.end - time.monotonic()) * 1000))

    def range_of(self, key: bytes, field: str = "key") -> int:
        """Return the index of a key's range, whose quorums the request must be able to have.  Raises _Invalid."""
        if not 1 <= len(key) <= KEY_BYTES_MAX:
            raise _Invalid(f"{field}: {len(key)} bytes, must be 1 to {KEY_BYTES_MAX}")
        index = self.keyspace.index_of(key)
        self.check_quorums(index)
        return index

    def unit_at(self, index: int) -> int:
        """Return the unit of the range that a request names.  Raises _Invalid."""
        ranges = len(self.keyspace.ranges)
        if index >= ranges:
            raise _Invalid(f"range: {index}, the keyspace has ranges 0 to {ranges - 1}")
        return self.keyspace.unit(index)

    def check_quorums(self, index: int) -> None:
        n = self.keyspace.ranges[index].own.quorum.n
        for field, wanted in (("r", self.policy.r), ("w", self.policy.w)):
            if wanted > n:
                raise _Invalid(f"{field}: {wanted} owners are wanted, range {index} has {n}")


def _answering(handler: Handler) -> Handler:
    """Return a handler that ends a call with the refusal that is raised in it."""

    async def call(self: KeyspaceCalls, request: Any, context: Any) -> Any:
        try:
            return await handler(self, request, context)
        except _Invalid as wrong:
            refused = Refused(Reason.INVALID_SPEC, str(wrong))
        except _Refusal as refusal:
            refused = refusal.refused
        await self.refuse(context, refused)

    return call


class KeyspaceCalls:
    """All callers of keyspaces."""

    def __init__(
        self, driver: Driver, rings: Rings, routing: Routing, metrics: Metrics, access: Access, budgets: Budgets,
    ) -> None:
        self._driver = driver
        self._rings = rings
        self._routing = routing
        self._operations = metrics.keyspace_operations
        self._seconds = metrics.keyspace_operation_seconds
        self._access = access
        self._budgets = budgets
        self._budget = budgets.keyspaces

    async def refuse(self, context: Any, refused: Refused) -> NoReturn:
        """End a call with a refusal."""
        await self._routing.refuse(context, refused, None)

    # --- Strings ------------------------------------------------------------------------------------------

    @_answering
    async def get(self, request: Any, context: Any) -> bytes:
        """Handler of one read of some Strings, a few at a time; a large answer ends early."""
        call = await self._call("Get", request, context, r=request.r)
        keys = list(request.keys)
        _check_count("keys", len(keys))
        units = [call.keyspace.unit(call.range_of(key, f"keys[{place}]")) for place, key in enumerate(keys)]
        values: list[wire.KeyspaceValue] = []
        size = 0
        while len(values) < len(keys) and size < ANSWER_BYTES:
            here = slice(len(values), len(values) + KEYS_AT_ONCE)
            steps = [operations.get(key, self._driver.now_ms) for key in keys[here]]
            for value in await self._all(call, units[here], steps, [READ_BYTES] * len(steps)):
                size += len(value.value or b"")
                if values and size > ANSWER_BYTES:
                    break
                values.append(_value(value))
        return await self._sent(call, context, wire.GetStringsResponse(values=values))

    @_answering
    async def set_(self, request: Any, context: Any) -> wire.SetStringsResponse:
        """Handler of one write of some Strings: those of one range are one operation, where none may be kept."""
        call = await self._call("Set", request, context, w=request.w)
        _check_count("items", len(request.items))
        places: dict[bytes, int] = {}
        groups: dict[int, list[tuple[bytes, bytes, int]]] = {}    # by range, or by item
        for place, item in enumerate(request.items):
            field, key, value = f"items[{place}]", item.key, item.value
            index = call.range_of(key, f"{field}.key")
            if places.setdefault(key, place) != place:
                raise _Invalid(f"{field}.key: {key[:100]!r} is in the request twice")
            _check_value(value, f"{field}.value")
            expires_at_ms = self._expiry(call.keyspace, item, f"{field}.ttl_ms")
            group = len(places) if call.policy.sloppy else index
            groups.setdefault(group, []).append((key, value, expires_at_ms))
        some = list(groups.values())
        steps = [
            operations.set_(*items[0]) if len(items) == 1 else operations.set_many(items) for items in some]
        units = [call.keyspace.unit(call.keyspace.index_of(items[0][0])) for items in some]
        costs = [sum(WRITE_BYTES + len(key) + len(value) for key, value, _ in items) for items in some]
        done = await self._all(call, units, steps, costs, list(map(len, some)))
        written: dict[bytes, wire.KeyspaceWritten] = {}
        for items, each in zip(some, done, strict=True):
            written.update(dict.fromkeys((key for key, _, _ in items), _written(each)))
        return wire.SetStringsResponse(written=[written[key] for key in places])

    @_answering
    async def unset(self, request: Any, context: Any) -> wire.KeyspaceWritten:
        """Handler of the delete of a String."""
        call = await self._call("Unset", request, context, w=request.w)
        _unused(r=request.r)
        return _written(await self._of_key(call, request.key, operations.unset(request.key), WRITE_BYTES))

    @_answering
    async def getdel(self, request: Any, context: Any) -> bytes:
        """Handler of the read and delete of a String: a writer needs to be a reader too."""
        refused = self._access.refusal(
            self._access.caller(context), "Keyspaces.GetDel", (Role.READER,), request.keyspace, KEYSPACE)
        if refused is not None:
            raise _Refusal(refused)
        call = await self._call("GetDel", request, context, r=request.r, w=request.w)
        steps = operations.getdel(request.key, self._driver.now_ms)
        return await self._sent(call, context, _value(await self._of_key(call, request.key, steps, READ_BYTES)))

    @_answering
    async def strings(self, request: Any, context: Any) -> bytes:
        """Handler of one page of the Strings of a range."""
        call = await self._call("Strings", request, context, r=request.r)
        unit = call.unit_at(request.range)
        call.check_quorums(request.range)
        _check_first(request.first, KEY_BYTES_MAX)
        steps = operations.strings(request.first, None, self._driver.now_ms, _count_max(request))
        [page] = await self._all(call, [unit], [steps], [PAGE_BYTES])
        return await self._sent(call, context, _page(page))

    # --- elements -----------------------------------------------------------------------------------------

    @_answering
    async def put(self, request: Any, context: Any) -> wire.KeyspaceWritten:
        """Handler of the add of a member to a Set, or of the write of a field of a Map."""
        call = await self._call("Put", request, context, w=request.w)
        _check_element(request)
        _check_value(request.value, "value")
        expires_at_ms = self._expiry(call.keyspace, request, "ttl_ms")
        steps = operations.put_element(
            request.key, request.element, request.value, expires_at_ms, shown=request.shown)
        cost = WRITE_BYTES + len(request.element) + len(request.value)
        return _written(await self._of_key(call, request.key, steps, cost))

    @_answering
    async def remove(self, request: Any, context: Any) -> wire.KeyspaceWritten:
        """Handler of the remove of an element."""
        call = await self._call("Remove", request, context, w=request.w)
        _unused(r=request.r)    # its read is strict
        _check_element(request)
        steps = operations.remove_element(request.key, request.element)
        return _written(await self._of_key(call, request.key, steps, READ_BYTES))

    @_answering
    async def get_element(self, request: Any, context: Any) -> bytes:
        """Handler of one read of an element."""
        call = await self._call("GetElement", request, context, r=request.r)
        _unused(w=request.w)
        _check_element(request)
        steps = operations.get_element(request.key, request.element, self._driver.now_ms)
        return await self._sent(call, context, _value(await self._of_key(call, request.key, steps, READ_BYTES)))

    @_answering
    async def elements(self, request: Any, context: Any) -> bytes:
        """Handler of one page of the elements of a key."""
        call = await self._call("Elements", request, context, r=request.r)
        _check_first(request.first, ELEMENT_BYTES_MAX)
        steps = operations.elements(request.key, self._driver.now_ms, request.first, _count_max(request))
        return await self._sent(call, context, _page(await self._of_key(call, request.key, steps, PAGE_BYTES)))

    @_answering
    async def clear(self, request: Any, context: Any) -> wire.KeyspaceWritten:
        """Handler of the removal of all elements of a key."""
        call = await self._call("Clear", request, context, w=request.w)
        _unused(r=request.r)
        return _written(await self._of_key(call, request.key, operations.clear(request.key), WRITE_BYTES))

    # --- backups ------------------------------------------------------------------------------------------

    @_answering
    async def cells(self, request: Any, context: Any) -> bytes:
        """Handler of one page of the cells of a range."""
        call = await self._call("Cells", request, context)
        unit = call.unit_at(request.range)
        try:
            place_of(request.first)
        except RemoteViolation as error:
            raise _Invalid(f"first: {error}") from error
        steps = read_cells(request.first, _count_max(request), PAGE_BYTES)
        [page] = await self._all(call, [unit], [steps], [PAGE_BYTES])
        cells = [wire.ArchivedCell(place=each.place, row=each.row) for each in page.cells]
        return await self._sent(call, context, wire.CellsPage(
            outcome=page.outcome.value, cells=cells, next=page.behind, floor_ms=page.floor_ms))

    @_answering
    async def import_(self, request: Any, context: Any) -> wire.Imported:
        """Handler of the import of cells of one range: no node keeps them for owners."""
        call = (await self._call("Import", request, context))._replace(policy=STRICT, source=Source.BACKUP)
        if not 1 <= len(request.cells) <= ROWS_MAX:
            raise _Invalid(f"cells: {len(request.cells)} are in the request, must be 1 to {ROWS_MAX}")
        cells = [_imported(cell, f"cells[{place}]") for place, cell in enumerate(request.cells)]
        indexes = [call.range_of(place.key, "cells") for place, _ in cells]
        for number, index in enumerate(indexes):
            if index != indexes[0]:
                raise _Invalid(f"cells[{number}]: its key is of range {index}, that of the first of {indexes[0]}")
        [done] = await self._all(
            call, [call.keyspace.unit(indexes[0])], [import_cells(cells)], [WRITE_BYTES + request.ByteSize()])
        return wire.Imported(outcome=done.outcome.value, refused=[
            wire.RefusedCell(index=number, outcome=outcome.value) for number, outcome in done.refused])

    # --- for people ---------------------------------------------------------------------------------------

    @_answering
    async def explain(self, request: Any, context: Any) -> bytes:
        """Handler of the question what every node has of a key."""
        call = await self._call("Explain", request, context)
        _check_element(request)
        key, index = request.key, call.range_of(request.key)
        if request.HasField("element"):
            place, *beside = reversed(of_element(key, request.element))
        else:
            place, *beside = *of_string(key), Place(Sort.META, key)
        found = await self._of_key(call, key, inspect((place, *beside)), EXPLAIN_BYTES)
        return await self._sent(call, context, explained(found, index, place, self._driver.now_ms()))

    @_answering
    async def ranges(self, request: Any, context: Any) -> bytes:
        """Handler of one page of what this node knows of the ranges of a keyspace."""
        call = await self._call("Ranges", request, context)
        first, behind = request.first, len(call.keyspace.ranges)
        if first >= behind:
            raise _Invalid(f"first: {first}, the keyspace has ranges 0 to {behind - 1}")
        if request.count_max > RANGES_MAX:
            raise _Invalid(f"count_max: {request.count_max}, must be at most {RANGES_MAX}")
        next_ = min(behind, first + (request.count_max or RANGES_MAX))
        reports = [self._plane.report(call.keyspace.unit(index)) for index in range(first, next_)]
        page = ranges_page(
            self._driver.core.me, self._driver.now_ms(), first, reports, next_ if next_ < behind else None)
        return await self._sent(call, context, page)

    @_answering
    async def futures(self, request: Any, context: Any) -> bytes:
        """Handler of one page of the keys of a range with stamps from the future, as all owners have them."""
        call = await self._call("Futures", request, context)
        unit = call.unit_at(request.range)
        first = _first_future(request.first)
        steps = futures(first, self._latest_ms, _count_max(request))
        everyone = call._replace(policy=Policy(Repair.OFF, r=OWNERS_MAX))
        [page] = await self._all(everyone, [unit], [steps], [PAGE_BYTES])
        return await self._sent(call, context, futures_page(page, self._driver.now_ms()))

    @_answering
    async def repair_future(self, request: Any, context: Any) -> wire.FutureRepaired:
        """Handler of the replacement of the stamps of a String that are from the future (D84)."""
        call = await self._call("RepairFuture", request, context)
        steps = repair_future(request.key, self._latest_ms)
        return future_repaired(await self._of_key(call, request.key, steps, EXPLAIN_BYTES))

    def _latest_ms(self) -> int:
        return self._plane.latest_ms(self._driver.now_ms())

    @property
    def _plane(self) -> KeyspacePlane:
        return cast("KeyspacePlane", self._driver.core.planes[KEYSPACE_PLANE])

    # --- what all of them do ------------------------------------------------------------------------------

    async def _call(self, method: str, request: Any, context: Any, r: int = 0, w: int = 0) -> _Call:
        """Check what all requests name; what follows must not wait before it begins.  Raises _Invalid and _Refusal."""
        end = time.monotonic() + _seconds(context)
        await self._driver.room()
        if not self._driver.open:
            raise _Refusal(RELOADING if self._driver.reloading else STOPPING)
        keyspace = self._rings.find(request.keyspace, request.keyspace_id)
        if isinstance(keyspace, Refused):
            raise _Refusal(keyspace)
        for field, wanted in (("r", r), ("w", w)):
            if wanted and not keyspace.overrides_allowed:
                raise _Invalid(f"{field}: keyspace {keyspace.name!r} lets no request name a quorum of its own")
        policy = Policy(keyspace.repair, keyspace.sloppy, r, w)
        return _Call(method, self._budgets.who(context), keyspace, policy, end)

    def _expiry(self, keyspace: Keyspace, item: Any, field: str) -> int:
        """Return the time at which a value ends, by this node's clock.  Raises _Invalid."""
        ttl_ms: int = item.ttl_ms if item.HasField("ttl_ms") else keyspace.default_ttl_ms
        if not 0 <= ttl_ms <= TTL_MAX_MS:
            raise _Invalid(f"{field}: {ttl_ms}, must be 0 to {TTL_MAX_MS}")
        return self._driver.now_ms() + ttl_ms if ttl_ms else NEVER

    async def _of_key(self, call: _Call, key: bytes, steps: Steps[T], cost: int) -> T:
        """Run the one operation of a call.  Raises _Invalid and _Refusal."""
        [answer] = await self._all(call, [call.keyspace.unit(call.range_of(key))], [steps], [cost + len(key)])
        return answer

    async def _all(
        self, call: _Call, units: Sequence[int], steps: Sequence[Steps[T]], costs: Sequence[int],
        keys: Sequence[int] = (),
    ) -> Sequence[T]:
        """Run operations side by side and return their answers.  Raises _Refusal where the budget has no room.

        `keys` says how many keys each of them has, where they have not one each.
        """
        if not self._budget.take(call.who, sum(costs)):
            raise _Refusal(self._budgets.refusal(self._budget, call.who))
        begun = [
            self._begin(call, *each) for each in zip(units, steps, costs, keys or (1,) * len(costs), strict=True)]
        return [await begun[0]] if len(begun) == 1 else await asyncio.gather(*begun)

    def _begin(self, call: _Call, unit: int, steps: Steps[T], cost: int, keys: int) -> asyncio.Future[T]:
        """Begin an operation whose bytes were taken; they are given back when it ends, cancelled or not."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()

        def ended(answer: Any) -> None:
            self._budget.give_back(call.who, cost)
            if isinstance(answer, Refused):
                answer = _GIVEN_UP[call.method]   # the store failed or the node stops: nothing else is known
            self._operations.labels(call.method, answer.outcome.value).inc(keys)
            self._seconds.labels(call.method).observe(time.perf_counter() - began)
            if not done.done():
                done.set_result(answer)

        self._driver.ask(
            lambda number: Operate(unit, number, call.timeout_ms, steps, call.policy, call.source), ended, cost)
        return done

    async def _sent(self, call: _Call, context: Any, answer: Message) -> bytes:
        """Return the bytes of an answer once there is room for them, which they keep until the caller has them."""
        encoded = answer.SerializeToString()
        grant = await self._budgets.frame(call.who, len(encoded), len(encoded))
        context.add_done_callback(lambda _: grant.release())
        return encoded

    _read = partial(Method, shape=Shape.UNARY, roles=(Role.READER,))
    _write = partial(Method, shape=Shape.UNARY, roles=(Role.WRITER,))
    METHODS: ClassVar[tuple[Method, ...]] = (
        _read("Keyspaces.Get", handler=get, request=wire.GetStringsRequest, response=wire.GetStringsResponse),
        _write(
            "Keyspaces.Set", handler=set_, request=wire.SetStringsRequest, response=wire.SetStringsResponse,
            request_bytes_max=REQUEST_BYTES_MAX),
        _write("Keyspaces.Unset", handler=unset, request=wire.KeyRequest, response=wire.KeyspaceWritten),
        _write("Keyspaces.GetDel", handler=getdel, request=wire.KeyRequest, response=wire.KeyspaceValue),
        _write(
            "Keyspaces.Put", handler=put, request=wire.PutElementRequest, response=wire.KeyspaceWritten,
            request_bytes_max=REQUEST_BYTES_MAX),
        _write("Keyspaces.Remove", handler=remove, request=wire.ElementRequest, response=wire.KeyspaceWritten),
        _read("Keyspaces.GetElement", handler=get_element, request=wire.ElementRequest, response=wire.KeyspaceValue),
        _read("Keyspaces.Elements", handler=elements, request=wire.ElementsRequest, response=wire.KeyspacePage),
        _write("Keyspaces.Clear", handler=clear, request=wire.KeyRequest, response=wire.KeyspaceWritten),
        _read("Keyspaces.Strings", handler=strings, request=wire.StringsRequest, response=wire.KeyspacePage),
        _read("Keyspaces.Cells", handler=cells, request=wire.CellsRequest, response=wire.CellsPage),
        _write(
            "Keyspaces.Import", handler=import_, request=wire.ImportRequest, response=wire.Imported,
            request_bytes_max=REQUEST_BYTES_MAX),
        _read("Keyspaces.Explain", handler=explain, request=wire.ExplainKeyRequest, response=wire.KeyExplained),
        _read("Keyspaces.Ranges", handler=ranges, request=wire.RangesRequest, response=wire.RangesPage),
        _read("Keyspaces.Futures", handler=futures, request=wire.FuturesRequest, response=wire.FuturesPage),
        _write(
            "Keyspaces.RepairFuture", handler=repair_future, request=wire.RepairFutureRequest,
            response=wire.FutureRepaired),
    )


_GIVEN_UP: dict[str, Value | Page | CellsPage | Done | Imported | Inspection | Futures | Repaired] = {
    **dict.fromkeys(("Get", "GetDel", "GetElement"), Value(Outcome.UNKNOWN)),
    **dict.fromkeys(("Elements", "Strings"), Page(Outcome.UNKNOWN)),
    **dict.fromkeys(("Set", "Unset", "Put", "Remove", "Clear"), Done(Outcome.UNKNOWN, ZERO, ())),
    "Cells": CellsPage(Outcome.UNKNOWN),
    "Import": Imported(Outcome.UNKNOWN),
    "Futures": Futures(Outcome.UNKNOWN),
    "RepairFuture": Repaired(Outcome.UNKNOWN),
    "Explain": Inspection(Outcome.UNKNOWN, BLANK, {}, ()),
}


def _seconds(context: Any) -> float:
    """Return how long the operations of a call may take."""
    left: float | None = context.time_remaining()
    if left is None:
        return DEADLINE_SECONDS
    return min(max(left / 2, left - MARGIN_SECONDS), DEADLINE_SECONDS_MAX)


# --- checks; each raises _Invalid ---------------------------------------------------------------------------


def _check_count(field: str, count: int) -> None:
    if not 1 <= count <= KEYS_MAX:
        raise _Invalid(f"{field}: {count} are in the request, must be 1 to {KEYS_MAX}")


def _check_element(request: Any) -> None:
    if len(request.element) > ELEMENT_BYTES_MAX:
        raise _Invalid(f"element: {len(request.element)} bytes, must be at most {ELEMENT_BYTES_MAX}")


def _check_value(value: bytes, field: str) -> None:
    if len(value) > VALUE_BYTES_MAX:
        raise _Invalid(f"{field}: {len(value)} bytes, must be at most {VALUE_BYTES_MAX}")


def _check_first(first: bytes, bytes_max: int) -> None:
    if len(first) > bytes_max + 1:   # the place behind a name has one more
        raise _Invalid(f"first: {len(first)} bytes, must be at most {bytes_max + 1}")


def _imported(cell: Any, field: str) -> tuple[Place, Row]:
    try:
        return decoded(Archived(cell.place, cell.row))
    except RemoteViolation as error:
        raise _Invalid(f"{field}: {error}") from error


def _first_future(first: bytes) -> Place:
    """Return the place that a page of `Futures` begins at."""
    try:
        place = decode_place(first) if first else Place(Sort.RETRACTED, b"")
    except RemoteViolation:
        raise _Invalid("first: it is not the `next` of a page before") from None
    if place.sort is Sort.ELEMENT or len(place.key) > KEY_BYTES_MAX + 1:
        raise _Invalid("first: it is not the `next` of a page before")
    return place


def _count_max(request: Any) -> int:
    if request.count_max > ROWS_MAX:
        raise _Invalid(f"count_max: {request.count_max}, must be at most {ROWS_MAX}")
    return request.count_max or ROWS_MAX


def _unused(**quorums: int) -> None:
    for field, wanted in quorums.items():
        if wanted:
            raise _Invalid(f"{field}: {wanted}, this method has no use for it")


# --- answers ------------------------------------------------------------------------------------------------


def _value(value: Value) -> wire.KeyspaceValue:
    return wire.KeyspaceValue(outcome=value.outcome.value, value=value.value)


def _page(page: Page) -> wire.KeyspacePage:
    return wire.KeyspacePage(
        outcome=page.outcome.value, entries=[wire.KeyspaceEntry(name=name, value=value) for name, value in page.values],
        next=page.behind)


def _written(done: Done) -> wire.KeyspaceWritten:
    stamp = stamp_of(done.stamp) if done.stamp != ZERO else None
    return wire.KeyspaceWritten(outcome=done.outcome.value, stamp=stamp, stored=len(done.stored))
