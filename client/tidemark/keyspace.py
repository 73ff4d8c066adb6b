"""Keyspace: what users call to write and read values by key without a leader.

A key may have a String and elements at the same time; members of a Set and fields of a Map are elements, and the same
ones.  Stays out: which node is asked and what is asked twice (keyspace_calls), many keys (keyspace_batches), pages.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

from tidemark_core.base.errors import RemoteViolation
from tidemark_core.optimistic.archive import Archived, place_of
from tidemark_core.optimistic.cells import Place as CellPlace
from tidemark_core.optimistic.cells import Sort, encode_place
from tidemark_core.optimistic.sizes import ELEMENT_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from tidemark_wire.rings import PARTITIONS_MAX
from tidemark_wire.v1 import keyspaces_pb2 as wire

from . import keyspace_batches as batches
from . import keyspace_cells
from .document_writes import checked_ttl_ms
from .errors import InvalidArgument, ValueTooLarge
from .keyspace_calls import Call, KeyspaceCalls, denied
from .keyspace_cells import CellsPage, RefusedCell
from .keyspace_futures import KEYS_MAX as FUTURES_MAX
from .keyspace_futures import FutureKey, ReplacedStamp, page_of, replaced_of
from .keyspace_pages import ELEMENTS, PAGE_ROWS_MAX, STRINGS, KeyspacePages, Place, Scope
from .keyspace_results import (
    DONE,
    FUTURE,
    KeyMember,
    KeyspaceShape,
    KeyValue,
    KeyWritten,
    named,
    read_outcome,
    taken_of,
    value_of,
    written_of,
)
from .keyspace_views import KeyExplanation, KeyspaceRanges, explanation_of
from .routing import Ring, Routing
from .settings import at_least

TIMEOUT_S = 5.0
TTL = float | datetime.timedelta | None


class Keyspace:
    """One keyspace.  Made by `Client.keyspace`; it holds nothing, and ends with its client.

    Every call takes `timeout_s`, and where it has a meaning `r` or `w`: owners to ask for in place of those that the
    keyspace asks for.  With fewer of them the answer is 'weak'.  A read may be repeated at any time, and the client
    does so by itself.  A write is sent once: after WriteUnknown each method says what a repetition does.

    Reads raise InvalidArgument, OverridesDenied, UnknownKeyspace, GroupReplaced, NotEnoughOwners, Unavailable and
    RequestRefused.  Writes raise these too (nothing was sent), but for NotEnoughOwners; StampInFuture (nothing was
    stored), and WriteUnknown (it may take effect at any later time).
    """

    def __init__(
        self, name: str, timeout_s: float, routing: Routing, calls: KeyspaceCalls, check_open: Callable[[], None]
    ) -> None:
        self.name = name
        self.timeout_s = timeout_s
        self._routing = routing
        self._calls = calls
        self._check_open = check_open

    def __repr__(self) -> str:
        return f"<tidemark.Keyspace {self.name!r}>"

    # --- Strings

    async def get(self, key: bytes, *, r: int | None = None, timeout_s: float | None = None) -> KeyValue:
        """Read a String; its `value` is None where there is none."""
        call_of, key = self._calls_by(timeout_s), _key(key)
        ring = await self._ring()
        call = call_of(ring, ring.range_of(key), key, 1)
        [value] = await batches.get_first(self._calls, call, [key], _quorum("r", r, ring, [key]))
        return value

    async def get_many(
        self, keys: Iterable[bytes], *, r: int | None = None, timeout_s: float | None = None
    ) -> dict[bytes, KeyValue]:
        """Read Strings and return them by key, each key once; they are not isolated."""
        call_of = self._calls_by(timeout_s)
        wanted = list(dict.fromkeys(_key(key, f"keys[{place}]") for place, key in enumerate(keys)))
        ring = await self._ring()
        quorum = _quorum("r", r, ring, wanted)
        return await batches.get_many(self._calls, ring, wanted, quorum, call_of)

    async def set(
        self, key: bytes, value: bytes, *, ttl_s: TTL = None, w: int | None = None, timeout_s: float | None = None
    ) -> KeyWritten:
        """Write a String.  It expires after `ttl_s`; None: after the default of the keyspace; 0: never.

        Repeated it ends with the same value, and may win over a write that came between.  Raises ValueTooLarge.
        """
        return (await self.set_many({_key(key): value}, ttl_s=ttl_s, w=w, timeout_s=timeout_s))[key]

    async def set_many(
        self, items: Mapping[bytes, bytes] | Iterable[tuple[bytes, bytes]], *, ttl_s: TTL = None,
        w: int | None = None, timeout_s: float | None = None,
    ) -> dict[bytes, KeyWritten]:
        """Write Strings, each on its own, and return the answers by key; they are not isolated.

        Raises WritesFailed where some of several are not written for certain: it names them with their errors.
        """
        call_of, ttl_ms = self._calls_by(timeout_s), _ttl_ms(ttl_s)
        sent: dict[bytes, wire.SetString] = {}
        for place, (key, value) in enumerate(items.items() if isinstance(items, Mapping) else items):
            field = f"items[{place}]"
            if _key(key, f"{field}.key") in sent:
                raise InvalidArgument(f"{field}.key", f"{key[:100]!r} is given twice")
            sent[key] = wire.SetString(key=key, value=_value(value, self.name, key), ttl_ms=ttl_ms)
        ring = await self._ring()
        quorum = _quorum("w", w, ring, sent)
        return await batches.set_many(self._calls, ring, sent, quorum, call_of)

    async def unset(self, key: bytes, *, w: int | None = None, timeout_s: float | None = None) -> KeyWritten:
        """Delete a String, whether it is there or not; repeated it may delete what was written between."""
        call_of, key = self._calls_by(timeout_s), _key(key)
        ring = await self._ring()
        return await self._write(call_of, ring, "Unset", wire.KeyRequest(key=key, w=_quorum("w", w, ring, [key])))

    async def getdel(
        self, key: bytes, *, r: int | None = None, w: int | None = None, timeout_s: float | None = None
    ) -> KeyValue:
        """Read a String and delete it.  Of callers at the same time at least one gets the value; more may.

        It is never repeated by itself: after WriteUnknown the value may be deleted, and its `value` is what was read.
        """
        call_of, key = self._calls_by(timeout_s), _key(key)
        ring = await self._ring()
        request = wire.KeyRequest(
            keyspace=self.name, keyspace_id=ring.keyspace_id, key=key, r=_quorum("r", r, ring, [key]),
            w=_quorum("w", w, ring, [key]))
        answer: wire.KeyspaceValue = await self._calls.write(
            call_of(ring, ring.range_of(key), key, 1), "GetDel", request, _future)
        return taken_of(self.name, key, answer)

    async def describe(self) -> KeyspaceShape:
        """Return the id and the number of ranges, which a program that divides a scan hands to its parts.

        No node is asked.  Raises UnknownKeyspace.
        """
        self._check_open()
        ring = await self._ring()
        return KeyspaceShape(ring.keyspace_id, len(ring.ranges))

    def scan(
        self, *, ranges: Iterable[int] | None = None, keyspace_id: int | None = None, token: str | None = None,
        page_rows: int = PAGE_ROWS_MAX, r: int | None = None, timeout_s: float | None = None,
    ) -> KeyspacePages[tuple[bytes, bytes]]:
        """Return all Strings as pairs of key and value, range by range; `timeout_s` is that of a page.

        `ranges` are the indexes of those to read, each key lies in one of them.  With `keyspace_id` a keyspace that was
        deleted and made again is GroupReplaced.  With the `token` of another scan it goes on there: through moves of
        the ring it skips nothing that existed all the time.
        """
        self._calls_by(timeout_s)
        rows = _rows(page_rows)
        if keyspace_id is not None and type(keyspace_id) is not int:
            raise InvalidArgument("keyspace_id", f"is {keyspace_id!r}, must be the number that `describe` says")
        given = None if ranges is None else sorted(set(_indexes(ranges)))

        async def begin() -> Scope:
            ring = await self._ring()
            if keyspace_id is not None:
                self._routing.check_keyspace(self.name, keyspace_id)
            _quorum("r", r, ring, None)
            count = len(ring.ranges)
            if given and given[-1] >= count:
                raise InvalidArgument("ranges", f"has {given[-1]}, keyspace {self.name!r} has ranges 0 to {count - 1}")
            return Scope(STRINGS, ring.keyspace_id, count, range(count) if given is None else given)

        async def fetch(scope: Scope, at: Place) -> wire.KeyspacePage:
            ring = self._routing.check_keyspace(self.name, scope.keyspace_id)
            request = wire.StringsRequest(
                keyspace=self.name, keyspace_id=ring.keyspace_id, r=_quorum("r", r, ring, None), range=at.number,
                first=at.first, count_max=rows)
            what = f"range {at.number} of keyspace {self.name!r}"
            call = self._call(ring, at.number, what, b"", 0, timeout_s)
            page: wire.KeyspacePage = await self._page("Strings", request, call)
            return page

        return KeyspacePages(begin, fetch, _pair, token)

    # --- members of a Set

    async def sadd(
        self, key: bytes, member: bytes, *, ttl_s: TTL = None, w: int | None = None, timeout_s: float | None = None
    ) -> KeyWritten:
        """Add a member to a Set, for `ttl_s` as in `set`; repeated it adds the member again."""
        return await self._put(key, member, "member", b"", False, ttl_s, w, timeout_s)

    async def srem(
        self, key: bytes, member: bytes, *, w: int | None = None, timeout_s: float | None = None
    ) -> KeyWritten:
        """Remove a member: every add that the removal reads, and none that it does not; so does a repetition."""
        return await self._remove(key, member, "member", w, timeout_s)

    async def sismember(
        self, key: bytes, member: bytes, *, r: int | None = None, timeout_s: float | None = None
    ) -> KeyMember:
        """Say whether a Set has a member."""
        found = await self._element(key, member, "member", r, timeout_s)
        return KeyMember(key, member, found.value is not None, found.outcome)

    def smembers(
        self, key: bytes, *, token: str | None = None, page_rows: int = PAGE_ROWS_MAX, r: int | None = None,
        timeout_s: float | None = None,
    ) -> KeyspacePages[bytes]:
        """Return the members of a Set, in the order of their bytes; `token` and `timeout_s` are those of `scan`."""
        return self._elements(key, token, page_rows, r, timeout_s, _name)

    # --- fields of a Map

    async def hset(
        self, key: bytes, field: bytes, value: bytes, *, ttl_s: TTL = None, w: int | None = None,
        timeout_s: float | None = None,
    ) -> KeyWritten:
        """Set a field of a Map, for `ttl_s` as in `set`, and return once the field shows the value.

        Repeated it ends with the same value, and may win over a write that came between.  Raises ValueTooLarge.
        """
        return await self._put(key, field, "field", value, True, ttl_s, w, timeout_s)

    async def hget(
        self, key: bytes, field: bytes, *, r: int | None = None, timeout_s: float | None = None
    ) -> KeyValue:
        """Read a field of a Map; `value` is None where there is none."""
        return await self._element(key, field, "field", r, timeout_s)

    def hgetall(
        self, key: bytes, *, token: str | None = None, page_rows: int = PAGE_ROWS_MAX, r: int | None = None,
        timeout_s: float | None = None,
    ) -> KeyspacePages[tuple[bytes, bytes]]:
        """Return the fields of a Map as pairs of field and value, by the bytes of fields; options as in `smembers`."""
        return self._elements(key, token, page_rows, r, timeout_s, _pair)

    async def hdel(
        self, key: bytes, field: bytes, *, w: int | None = None, timeout_s: float | None = None
    ) -> KeyWritten:
        """Remove a field of a Map; see `srem`."""
        return await self._remove(key, field, "field", w, timeout_s)

    async def clear(self, key: bytes, *, w: int | None = None, timeout_s: float | None = None) -> KeyWritten:
        """Remove all elements of a key at once: those written before it, by stamps; so does a repetition."""
        call_of, key = self._calls_by(timeout_s), _key(key)
        ring = await self._ring()
        return await self._write(call_of, ring, "Clear", wire.KeyRequest(key=key, w=_quorum("w", w, ring, [key])))

    # --- for backups

    async def cells(
        self, index: int, first: bytes = b"", *, keyspace_id: int | None = None, page_rows: int = PAGE_ROWS_MAX,
        timeout_s: float | None = None,
    ) -> CellsPage:
        """Return a page of the cells of a range as owners hold them: also deletes, each with its stamp.

        `index` is that of the range, `first` the `next` of the page before; a page may be empty and have a `next`.
        `keyspace_id` is that of `scan`.  `tidemark.backup` writes all of them to files.
        """
        self._calls_by(timeout_s)
        rows = _rows(page_rows)
        try:
            place_of(first)
        except (RemoteViolation, TypeError):
            raise InvalidArgument("first", "is none that a page of cells gave") from None
        ring = await self._ring()
        if keyspace_id is not None:
            self._routing.check_keyspace(self.name, keyspace_id)
        if not 0 <= index < len(ring.ranges):
            raise InvalidArgument("index", f"is {index}, keyspace {self.name!r} has ranges 0 to {len(ring.ranges) - 1}")
        request = wire.CellsRequest(
            keyspace=self.name, keyspace_id=ring.keyspace_id, range=index, first=first, count_max=rows)
        what = f"range {index} of keyspace {self.name!r}"
        return keyspace_cells.page_of(
            await self._page("Cells", request, self._call(ring, index, what, b"", 0, timeout_s)))

    async def import_cells(
        self, cells: Iterable[Archived], *, keyspace_id: int | None = None, timeout_s: float | None = None
    ) -> list[RefusedCell]:
        """Write cells with the stamps that they have, and return those that owners refuse, in any order.

        All others are on a write quorum then, or something newer is; a repetition changes nothing.  Raises WriteUnknown
        where some of them may not be stored.
        """
        call_of = self._calls_by(timeout_s)
        ring = await self._ring()
        if keyspace_id is not None:
            self._routing.check_keyspace(self.name, keyspace_id)
        return await keyspace_cells.import_cells(self._calls, ring, cells, call_of)

    # --- for people

    async def explain(
        self, key: bytes, element: bytes | None = None, *, timeout_s: float | None = None
    ) -> KeyExplanation:
        """Ask every node what it has of a String, or of an `element` of a key, and why a read shows what it shows.

        It changes nothing, shows sizes and digests of values, and waits at most a second for silent nodes.
        """
        self._calls_by(timeout_s)
        key = _key(key)
        if element is not None:
            _element(element, "element")
        ring = await self._ring()
        request = wire.ExplainKeyRequest(keyspace=self.name, keyspace_id=ring.keyspace_id, key=key, element=element)
        call = self._call(ring, ring.range_of(key), named(self.name, key, element), key, 0, timeout_s)
        answer: wire.KeyExplained = await self._calls.read(call, "Explain", request, lambda _: False)
        return explanation_of(key, element, answer)

    async def ranges(self, *, timeout_s: float | None = None) -> KeyspaceRanges:
        """Ask every node what it knows of all ranges: repair, hints, floors; raises where no node answers."""
        self._calls_by(timeout_s)
        return await self._calls.ranges(await self._ring(), self.timeout_s if timeout_s is None else timeout_s)

    async def futures(
        self, *, key: bytes | None = None, range: int | None = None, timeout_s: float | None = None
    ) -> list[FutureKey]:
        """Return the keys of a range, or one `key`, with stamps from the future; at most 10,000.

        Name a key or the index of a range.  `timeout_s` is for each page.  Raises NotEnoughOwners where not all owners
        answer.
        """
        self._calls_by(timeout_s)
        if (key is None) == (range is None):
            raise InvalidArgument("key", "name a key or a range, one of them")
        ring = await self._ring()
        if key is None:
            [index] = _indexes((range,))
            if index >= len(ring.ranges):
                raise InvalidArgument("range", f"is {index}, keyspace {self.name!r} has 0 to {len(ring.ranges) - 1}")
            firsts, rows = [b""], 0
        else:
            index, rows = ring.range_of(_key(key)), 1
            firsts = [encode_place(CellPlace(sort, key)) for sort in (Sort.RETRACTED, Sort.STRING, Sort.META)]
        found: dict[FutureKey, None] = {}
        while firsts and len(found) < FUTURES_MAX:
            page = await self._futures(ring, index, firsts.pop(0), rows, timeout_s)
            found.update((each, None) for each in page_of(page) if key in (None, each.key))
            if key is None and page.HasField("next"):
                firsts.append(page.next)
        return list(found)[:FUTURES_MAX]

    async def _futures(
        self, ring: Ring, index: int, first: bytes, rows: int, timeout_s: float | None
    ) -> wire.FuturesPage:
        request = wire.FuturesRequest(
            keyspace=self.name, keyspace_id=ring.keyspace_id, range=index, first=first, count_max=rows)
        what = f"stamps from the future in range {index} of keyspace {self.name!r}"
        call = self._call(ring, index, what, b"", 0, timeout_s)
        page: wire.FuturesPage = await self._calls.read(call, "Futures", request, _unanswered)
        return page

    async def repair_future(self, key: bytes, *, timeout_s: float | None = None) -> tuple[ReplacedStamp, ...]:
        """Put stamps of the present in the place of those of a String that are from the future; its value stays.

        For a key that takes no writes because the clocks of owners were ahead: correct them first.  Return what was
        replaced, nothing where nothing is from the future.  Raises NotRepaired where something is left, WriteUnknown
        where the answer was lost; a repetition goes on.
        """
        call_of, key = self._calls_by(timeout_s), _key(key)
        ring = await self._ring()
        request = wire.RepairFutureRequest(keyspace=self.name, keyspace_id=ring.keyspace_id, key=key)
        call = call_of(ring, ring.range_of(key), key, 1)
        answer: wire.FutureRepaired = await self._calls.write(call, "RepairFuture", request, _future)
        return replaced_of(self.name, key, answer)

    # --- requests

    async def _put(
        self, key: bytes, element: bytes, field: str, value: bytes, shown: bool, ttl_s: TTL, w: int | None,
        timeout_s: float | None,
    ) -> KeyWritten:
        call_of, ttl_ms = self._calls_by(timeout_s), _ttl_ms(ttl_s)
        key, element = _key(key), _element(element, field)
        value = _value(value, self.name, key, element)
        ring = await self._ring()
        return await self._write(call_of, ring, "Put", wire.PutElementRequest(
            key=key, element=element, value=value, ttl_ms=ttl_ms, shown=shown, w=_quorum("w", w, ring, [key])), element)

    async def _remove(
        self, key: bytes, element: bytes, field: str, w: int | None, timeout_s: float | None
    ) -> KeyWritten:
        call_of, key, element = self._calls_by(timeout_s), _key(key), _element(element, field)
        ring = await self._ring()
        return await self._write(call_of, ring, "Remove", wire.ElementRequest(
            key=key, element=element, w=_quorum("w", w, ring, [key])), element)

    async def _write(
        self, call_of: batches.CallOf, ring: Ring, method: str, request: Any, element: bytes | None = None
    ) -> KeyWritten:
        request.keyspace, request.keyspace_id = self.name, ring.keyspace_id
        call = call_of(ring, ring.range_of(request.key), request.key, 1)
        answer: wire.KeyspaceWritten = await self._calls.write(call, method, request, _future)
        return written_of(self.name, request.key, answer, element)

    async def _element(
        self, key: bytes, element: bytes, field: str, r: int | None, timeout_s: float | None
    ) -> KeyValue:
        call_of, key, element = self._calls_by(timeout_s), _key(key), _element(element, field)
        ring = await self._ring()
        request = wire.ElementRequest(
            keyspace=self.name, keyspace_id=ring.keyspace_id, key=key, element=element,
            r=_quorum("r", r, ring, [key]))
        call = call_of(ring, ring.range_of(key), key, 1)
        answer: wire.KeyspaceValue = await self._calls.read(call, "GetElement", request, _unanswered)
        return value_of(self.name, key, answer, element)

    def _elements(
        self, key: bytes, token: str | None, page_rows: int, r: int | None, timeout_s: float | None, shape: Any
    ) -> KeyspacePages[Any]:
        self._calls_by(timeout_s)
        key, rows = _key(key), _rows(page_rows)

        async def begin() -> Scope:
            ring = await self._ring()
            _quorum("r", r, ring, [key])
            return Scope(ELEMENTS, ring.keyspace_id, 1, (0,), key)

        async def fetch(scope: Scope, at: Place) -> wire.KeyspacePage:
            ring = self._routing.check_keyspace(self.name, scope.keyspace_id)
            request = wire.ElementsRequest(
                keyspace=self.name, keyspace_id=ring.keyspace_id, r=_quorum("r", r, ring, [key]), key=key,
                first=at.first, count_max=rows)
            call = self._call(ring, ring.range_of(key), named(self.name, key), key, 0, timeout_s)
            page: wire.KeyspacePage = await self._page("Elements", request, call)
            return page

        return KeyspacePages(begin, fetch, shape, token)

    async def _page(self, method: str, request: Any, call: Call) -> Any:
        self._check_open()
        page = await self._calls.read(call, method, request, _unanswered)
        read_outcome(page.outcome, call.what)
        return page

    async def _ring(self) -> Ring:
        return await self._routing.find_keyspace(self.name)

    def _calls_by(self, timeout_s: float | None) -> batches.CallOf:
        """Return what makes the calls of one method, which end together."""
        self._check_open()
        seconds = self.timeout_s if timeout_s is None else at_least("timeout_s", timeout_s, 0.001)
        deadline = asyncio.get_running_loop().time() + seconds

        def made(ring: Ring, index: int, key: bytes, keys: int) -> Call:
            more = "" if keys == 1 else f", with {keys - 1} more"
            return Call(ring, index, named(self.name, key) + more, key, deadline, seconds, keys)

        return made

    def _call(self, ring: Ring, index: int, what: str, key: bytes, keys: int, timeout_s: float | None) -> Call:
        """Return a call whose time begins now."""
        seconds = self.timeout_s if timeout_s is None else timeout_s
        return Call(ring, index, what, key, asyncio.get_running_loop().time() + seconds, seconds, keys)


def _future(answer: Any) -> bool:
    return bool(answer.outcome == FUTURE)


def _unanswered(answer: Any) -> bool:
    return answer.outcome not in DONE


def _name(entry: wire.KeyspaceEntry) -> bytes:
    return entry.name


def _pair(entry: wire.KeyspaceEntry) -> tuple[bytes, bytes]:
    return entry.name, entry.value


# --- checks; each raises InvalidArgument --------------------------------------------------------------------


def _key(key: Any, field: str = "key") -> bytes:
    if type(key) is not bytes:
        raise InvalidArgument(field, f"must be bytes, not {type(key).__name__}")
    if not 1 <= len(key) <= KEY_BYTES_MAX:
        raise InvalidArgument(field, f"has {len(key)} bytes, must have 1 to {KEY_BYTES_MAX}")
    return key


def _element(element: Any, field: str) -> bytes:
    if type(element) is not bytes:
        raise InvalidArgument(field, f"must be bytes, not {type(element).__name__}")
    if len(element) > ELEMENT_BYTES_MAX:
        raise InvalidArgument(field, f"has {len(element)} bytes, must have at most {ELEMENT_BYTES_MAX}")
    return element


def _value(value: Any, keyspace: str, key: bytes, element: bytes | None = None) -> bytes:
    if type(value) is not bytes:
        raise InvalidArgument("value", f"must be bytes, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLarge(
            "value", f"of {named(keyspace, key, element)} has {len(value)} bytes, must have at most {VALUE_BYTES_MAX}",
            advice="Split the value, or store it elsewhere and set a reference.")
    return value


def _ttl_ms(ttl_s: Any) -> int | None:
    """Return a time to live in milliseconds; None: that of the keyspace; 0: for ever."""
    if ttl_s is None:
        return None
    return 0 if type(ttl_s) in (int, float) and ttl_s == 0 else checked_ttl_ms(ttl_s)


def _rows(page_rows: Any) -> int:
    if type(page_rows) is not int or not 1 <= page_rows <= PAGE_ROWS_MAX:
        raise InvalidArgument("page_rows", f"is {page_rows!r}, must be 1 to {PAGE_ROWS_MAX}")
    return page_rows


def _indexes(ranges: Any) -> Iterable[int]:
    """Return the indexes of ranges as they are given; the keyspace says how many there are."""
    try:
        indexes = tuple(islice(ranges, PARTITIONS_MAX + 1))
    except TypeError:
        raise InvalidArgument("ranges", f"must be indexes of ranges, not {type(ranges).__name__}") from None
    if len(indexes) > PARTITIONS_MAX:
        raise InvalidArgument("ranges", f"has more than {PARTITIONS_MAX} indexes")
    for place, index in enumerate(indexes):
        if type(index) is not int or index < 0:
            raise InvalidArgument(f"ranges[{place}]", f"is {index!r}, must be an index from 0 on")
    return indexes


def _quorum(field: str, wanted: Any, ring: Ring, keys: Iterable[bytes] | None) -> int:
    """Return a quorum of the call as requests have it; it must fit the ranges of the keys, None: all ranges."""
    if wanted is None:
        return 0
    if type(wanted) is not int or wanted < 1:
        raise InvalidArgument(field, f"is {wanted!r}, must be a number of owners from 1 on")
    if not ring.info.overrides_allowed:
        raise denied(field, ring.name)
    indexes = range(len(ring.ranges)) if keys is None else {ring.range_of(key) for key in keys}
    fewest = min((ring.ranges[index].own.quorum.n for index in indexes), default=wanted)
    if wanted > fewest:
        raise InvalidArgument(field, f"{wanted} owners are wanted, keyspace {ring.name!r} has {fewest}")
    return wanted
