"""Documents: what users call to write and read the documents of a log group.

Stays out: batches and retries of writes (document_writes, `appending`), calls of reads (document_calls).
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tidemark_core.base.entry import Durability
from tidemark_core.documents.payload import KEY_BYTES_MAX, RECORDS_MAX, SEQNO_MAX
from tidemark_core.documents.pinning import wrong_pin
from tidemark_core.upr.filters import Filter, KeyRange
from tidemark_core.upr.positions import Scope
from tidemark_wire.v1 import documents_pb2

from .document import ActivePin, BulkWritten, Cut, Delete, Document, HistoryEntry, Put, ShardDocuments, Written
from .document_calls import LEVELS, DocumentCalls, PinnedAt, View
from .document_gets import Gets
from .document_scans import PAGE_BYTES_MAX, PAGE_BYTES_MIN, SHARDS_AT_ONCE, Scan, ShardScan, behind_prefix, position_of
from .document_writes import Bulk, WriteDispatcher, checked_key, checked_ttl_ms, size_of
from .errors import Closed, InvalidArgument, SeveralShards
from .pins import Pin, not_pinned
from .settings import AppendSettings, at_least, durability_of, one_of

if TYPE_CHECKING:
    from .client import Client

SCAN_BYTES_MAX = 32 << 20
"""Pages of all shards of one scan that may be in memory at once, as far as the smallest page allows."""

Seqnos = int | Mapping[int, int]
"""The least seqno that a read has to show: of each shard, or by shard."""


class Documents:
    """The documents of one log group.  Made by `Client.documents`; close it, or use it with `async with`."""

    def __init__(self, client: Client, group_name: str, settings: AppendSettings, level: str) -> None:
        self._dispatcher = WriteDispatcher(client, group_name, settings, None)
        self._room = self._dispatcher.room
        self._calls = DocumentCalls(group_name, client.routing, client.channels, client.questions, settings.timeout_s)
        self._gets = Gets(self._calls)
        self._routing = client.routing
        self._on_close = client.forget
        self._home = client.home
        self._closed = False
        self._life = self._dispatcher.group.group_id    # the group that `written` speaks of
        default = self._dispatcher.group.default_durability
        self._durability = settings.durability or (Durability.QUORUM if default is Durability.LOCAL else default)
        self.group_name = group_name
        self.timeout_s = settings.timeout_s
        self.level = level
        self.written: dict[int, int] = {}
        """The newest seqno answered to writes of this object, by shard; as `min_seqno` of a read it shows them."""

    # --- writing

    async def put(
        self, key: bytes, value: bytes, *, ttl_s: float | datetime.timedelta | None = None, expected: int | None = None,
        durability: Durability | str | None = None,
    ) -> Written:
        """Put one document and return its seqno once the write is confirmed and applied.

        `expected` None: whatever is there; 0: only where no live document is; else only over the live one with that
        seqno.  It expires `ttl_s` seconds after it was logged.  Raises ConditionFailed, InvalidArgument, ValueTooLarge,
        RequestRefused, Unavailable and RolledBack (nothing was applied), OutcomeUnknown (it may have been).
        """
        return await self._write(Put(key, value, expected, ttl_s), durability)

    async def delete(
        self, key: bytes, *, expected: int | None = None, durability: Durability | str | None = None
    ) -> Written:
        """Delete one document, which need not exist (`Written.existed`); raises as `put`."""
        return await self._write(Delete(key, expected), durability)

    def put_nowait(self, write: Put | Delete, *, durability: Durability | str | None = None) -> asyncio.Future[Written]:
        """Write one document and return a future; the buffer may grow beyond its bound: see `wait_for_room`."""
        self._check_open()
        checked = self._dispatcher.check(write)
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        future.add_done_callback(self._on_written)
        self._dispatcher.add(checked, self._durability_of(durability), future)
        return future

    async def _write(self, write: Put | Delete, durability: Durability | str | None) -> Written:
        self._check_open()
        checked, level = self._dispatcher.check(write), self._durability_of(durability)
        await self._wait(size_of(checked))
        future: asyncio.Future[Written] = asyncio.get_running_loop().create_future()
        self._dispatcher.add(checked, level, future)
        written = await future
        self._note(written.shard, written.seqno)
        return written

    async def batch(
        self, writes: Iterable[Put | Delete], *, durability: Durability | str | None = None
    ) -> list[Written]:
        """Write documents of one shard, all or none, and return the answers in the order given.

        Raises ConditionFailed, whose `failures` has every write whose condition did not hold, SeveralShards where the
        keys lie on more than one shard (nothing was sent), and what `put` raises.
        """
        self._check_open()
        checked = [self._dispatcher.check(write, f"writes[{place}]") for place, write in enumerate(writes)]
        level = self._durability_of(durability)
        if not checked:
            return []
        self._check_one_shard([write.key for write in checked])
        size, limit = sum(map(size_of, checked)), min(self._dispatcher.payload_bytes_max, self._room.limit)
        if len(checked) > RECORDS_MAX or size > limit:
            raise InvalidArgument(
                "writes", f"are {len(checked)} of {size} bytes, a batch takes {RECORDS_MAX} of {limit}",
                reason="BATCH_TOO_LARGE",
            )
        await self._wait(size)
        future: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()
        self._dispatcher.add_atomic(checked, level, future)
        written = await future
        self._note(written[-1].shard, written[-1].seqno)
        return written

    async def put_many(
        self, writes: Iterable[Put | Delete | tuple[bytes, bytes]] | AsyncIterable[Put | Delete | tuple[bytes, bytes]],
        *, durability: Durability | str | None = None,
    ) -> BulkWritten:
        """Write any number of documents, each on its own, and return how they ended once all are answered.

        Takes `Put`s, `Delete`s and pairs of key and value, no faster than the cluster answers.  Writes of one key are
        applied in the order given.  Writes whose condition does not hold are counted; any other error stops taking,
        waits for what is under way and is raised.
        """
        self._check_open()
        level, bulk, waits = self._durability_of(durability), Bulk(), True
        try:
            async for given in _each(writes):
                if bulk.error is not None:
                    break
                write = self._dispatcher.check(Put(*given) if type(given) is tuple else given)
                size = size_of(write)
                if not self._room.fits(size):
                    await self._wait(size)
                self._check_open()   # `writes` may have taken its time
                bulk.opened()
                self._dispatcher.add(write, level, bulk)
        except asyncio.CancelledError:
            waits = False   # what is under way goes on; its outcome is open, as that of a `put` that is cancelled
            raise
        finally:
            if waits:
                await bulk.idle.wait()
            for shard, seqno in bulk.seqnos.items():
                self._note(shard, seqno)
        if bulk.error is not None:
            raise bulk.error
        return BulkWritten(bulk.applied, bulk.refused_count, tuple(bulk.refused), bulk.seqnos)

    async def wait_for_room(self, size: int = 1) -> None:
        """Wait until `size` more bytes of writes fit into the buffer."""
        self._check_open()
        await self._wait(min(size, self._room.limit))

    async def flush(self) -> None:
        """Send what is waiting, and return when every write accepted so far is answered."""
        await self._dispatcher.flush()

    # --- reading

    async def get(self, key: bytes, *, level: str | None = None, min_seqno: Seqnos = 0) -> Document | None:
        """Return a document, None when it does not exist.

        `level` 'linearizable' shows everything that was answered before the call, 'leader' what the leader has,
        'follower' what any member has.  The read shows at least `min_seqno` of its shard, as of `written`.  Raises
        InvalidArgument, RequestRefused, Unavailable; Behind when within the time no member has applied so much.
        """
        return await self._get(checked_key(key), *self._reading(level, min_seqno))

    def _get(self, key: bytes, level: str, seqnos: Seqnos, pin: Mapping[int, PinnedAt] | None = None) -> Awaitable[
            Document | None]:
        shard = self.shard_of(key)
        return self._gets.get(shard, self._view(shard, level, seqnos, pin), key)

    async def get_many(
        self, keys: Iterable[bytes], *, level: str | None = None, min_seqno: Seqnos = 0
    ) -> dict[bytes, Document]:
        """Return the documents that exist by key; those of one shard come from one or few states of it.

        Options and errors are those of `get`.
        """
        return await self._get_many(keys, *self._reading(level, min_seqno))

    async def _get_many(
        self, keys: Iterable[bytes], level: str, seqnos: Seqnos, pin: Mapping[int, PinnedAt] | None = None
    ) -> dict[bytes, Document]:
        wanted = list(dict.fromkeys(checked_key(key, f"keys[{place}]") for place, key in enumerate(keys)))
        found = await asyncio.gather(*(self._get(key, level, seqnos, pin) for key in wanted))
        return {key: document for key, document in zip(wanted, found, strict=True) if document is not None}

    def scan(
        self, *, prefix: bytes | None = None, first: bytes | None = None, until: bytes | None = None,
        shards: Sequence[int] | None = None, keys_only: bool = False, ordered: bool = False, limit: int | None = None,
        level: str | None = None, min_seqno: Seqnos = 0,
    ) -> Scan:
        """Return the documents with a prefix, or with keys in [first, until), of all shards; iterate over it.

        Documents come as the shards send them, each shard by key, or with `ordered` all by key.  Each shard shows one
        state (`Scan.cuts`).  `level` and `min_seqno` are those of `get`.
        """
        return self._scan(
            *self._reading(level, min_seqno), None, prefix=prefix, first=first, until=until, shards=shards,
            keys_only=keys_only, ordered=ordered, limit=limit,
        )

    def _scan(
        self, level: str, seqnos: Seqnos, pin: Mapping[int, PinnedAt] | None, *, prefix: bytes | None,
        first: bytes | None, until: bytes | None, shards: Sequence[int] | None, keys_only: bool, ordered: bool,
        limit: int | None,
    ) -> Scan:
        self._check_open()
        for field, value in (("prefix", prefix), ("first", first), ("until", until)):
            if value is not None and type(value) is not bytes:
                raise InvalidArgument(field, f"must be bytes, not {type(value).__name__}")
            if value is not None and len(value) > KEY_BYTES_MAX:
                raise InvalidArgument(field, f"has {len(value)} bytes, a key has at most {KEY_BYTES_MAX}")
        if prefix is not None and (first is not None or until is not None):
            raise InvalidArgument("prefix", "excludes first and until")
        if limit is not None:
            at_least("limit", limit, 1)
        if prefix is not None:
            first, until = prefix, behind_prefix(prefix)
        wanted = self._shards(shards)
        scope = None
        if shards is None and limit is None:
            ranges = (KeyRange(first or b"", until or None),) if first or until else ()
            scope = Scope(self._dispatcher.group.group_id, Filter(ranges, values=not keys_only).digest)
        at_once = len(wanted) if ordered else min(len(wanted), SHARDS_AT_ONCE)
        page_bytes = max(PAGE_BYTES_MIN, min(PAGE_BYTES_MAX, SCAN_BYTES_MAX // max(1, 2 * at_once)))
        return Scan(
            self._home,
            [
                ShardScan(
                    self._calls, shard, self._view(shard, level, seqnos, pin), first or b"", until or b"",
                    keys_only=keys_only, limit=limit, page_bytes=page_bytes,
                )
                for shard in wanted
            ],
            scope, ordered=ordered, limit=limit,
        )

    # --- pins

    async def pin(self, name: str, ttl_s: float, *, shards: Sequence[int] | None = None) -> Pin:
        """Keep the documents as they are now, under a name, for `ttl_s` seconds on all or some shards; return the pin.

        A pin of that name which is active keeps its cuts, and its lease is renewed.  Where a shard does not answer,
        its error is raised and other shards may be pinned: call again, or release the name.
        """
        self._check_open()
        ttl_ms = _checked_pin(name, ttl_s)
        shards = self._shards(shards)
        cuts = await asyncio.gather(*(self._pin(shard, name, ttl_ms) for shard in shards))
        scope = Scope(self._dispatcher.group.group_id)
        return Pin(self, name, dict(zip(shards, cuts, strict=True)), scope)

    async def _pin(self, shard: int, name: str, ttl_ms: int) -> Cut:
        answer: documents_pb2.PinDocumentsResponse = await self._calls.leader(
            shard, "Pin",
            documents_pb2.PinDocumentsRequest(**self._of_shard(shard), name=name, ttl_ms=ttl_ms),
        )
        return Cut(answer.at, answer.epoch, answer.lineage, answer.count, answer.digest)

    async def pinned(self, name: str) -> Pin:
        """Return the active pin of a name without renewing it; raises NotPinned when a shard has none."""
        self._check_open()
        _checked_pin(name, 1)
        cuts: dict[int, Cut] = {}
        for shard, described in (await self.describe()).items():
            at = next((each.seqno for each in described.pins if each.name == name), None)
            if at is None:
                raise not_pinned(name, shard)
            cuts[shard] = Cut(at)
        return Pin(self, name, cuts, Scope(self._dispatcher.group.group_id))

    def position(self, cuts: Mapping[int, Cut]) -> str:
        """Return the position behind these cuts, which say their history, for `from_` of `Client.changes`.

        A shard that is not among them is at its beginning.  Raises InvalidArgument.
        """
        found = position_of(Scope(self._dispatcher.group.group_id), cuts)
        if found is None:
            raise InvalidArgument("cuts", "do not say epoch and lineage of each shard")
        return found

    def pin_at(self, name: str, seqnos: Mapping[int, int]) -> Pin:
        """Return a pin whose cuts are known by shard, such as one that another process made; no node is asked.

        It shows, renews and releases those shards alone, and reads raise NotPinned once it has ended.
        """
        self._check_open()
        _checked_pin(name, 1)
        cuts = {shard: Cut(seqnos[shard]) for shard in self._shards(list(seqnos))}
        return Pin(self, name, cuts, Scope(self._dispatcher.group.group_id))

    async def unpin(self, name: str, *, shards: Sequence[int] | None = None) -> list[int]:
        """End the pin of a name on all or some shards; return those that had it."""
        self._check_open()
        _checked_pin(name, 1)
        shards = self._shards(shards)
        answers = await asyncio.gather(*(
            self._calls.leader(
                shard, "Unpin", documents_pb2.UnpinDocumentsRequest(**self._of_shard(shard), name=name))
            for shard in shards
        ))
        return [shard for shard, answer in zip(shards, answers, strict=True) if answer.existed]

    async def describe(self, *, shards: Sequence[int] | None = None) -> dict[int, ShardDocuments]:
        """Return by shard how far the leader has applied, counts, digests, pins and the failover log."""
        self._check_open()
        wanted = self._shards(shards)
        return dict(zip(wanted, await asyncio.gather(*map(self._describe, wanted)), strict=True))

    async def _describe(self, shard: int) -> ShardDocuments:
        answer: documents_pb2.DescribeDocumentsResponse = await self._calls.leader(
            shard, "Describe", documents_pb2.DescribeDocumentsRequest(**self._of_shard(shard)))
        return ShardDocuments(
            shard, answer.applied, answer.epoch, answer.count, answer.digest, answer.purged, answer.tombstones,
            tuple(
                ActivePin(each.name, each.at, each.expires_in_ms, each.kept_bytes, each.owner) for each in answer.pins
            ),
            tuple(HistoryEntry(each.epoch, each.lineage, each.history, each.head) for each in answer.failover_log),
        )

    # --- life

    @property
    def buffered_bytes(self) -> int:
        """Bytes of writes accepted and not yet answered."""
        return self._room.used

    @property
    def shards(self) -> tuple[int, ...]:
        """The numbers of the shards."""
        return self._dispatcher.group.shards

    @property
    def document_bytes_max(self) -> int:
        """How many bytes key and value of one document may have together, as the group says now."""
        return self._dispatcher.document_bytes_max

    def shard_of(self, key: bytes) -> int:
        """Return the shard of a key."""
        self._check_open()
        return self._dispatcher.group.shard_of(key)

    async def close(self) -> None:
        """Flush, then close; ends at the latest when the last write's time is over."""
        if self._closed:
            return
        self._closed = True
        self._room.close(Closed("the documents are closed"))
        try:
            await self._dispatcher.flush()
        finally:
            self.abort(Closed("the documents were closed before this write was answered"))

    def abort(self, error: Exception) -> None:
        """Close at once; writes without an answer get `error`."""
        self._closed = True
        self._dispatcher.stop(error)
        self._gets.close()
        self._on_close(self)

    async def __aenter__(self) -> Documents:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self.abort(Closed("a cancelled task left the documents before this write was answered"))
        else:
            await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the documents are closed")
        self._home.check()
        self._dispatcher.check_there()
        group_id = self._dispatcher.group.group_id
        if group_id != self._life:
            self._life = group_id
            self.written.clear()

    def check_life(self, group_id: int) -> None:
        """Check that the documents are still those of a group; raises UnknownGroup, GroupReplaced."""
        self._routing.check_life(self.group_name, group_id)

    def _of_shard(self, shard: int) -> dict[str, Any]:
        """Return the fields of a request that say which shard it is for."""
        return {"group": self.group_name, "group_id": self._dispatcher.group.group_id, "shard": shard}

    def _view(self, shard: int, level: str, seqnos: Seqnos, pin: Mapping[int, PinnedAt] | None) -> View:
        group_id = self._dispatcher.group.group_id
        if pin is None:
            return View(group_id, level, seqnos.get(shard, 0) if isinstance(seqnos, Mapping) else seqnos)
        if shard not in pin:
            raise InvalidArgument("pin", f"does not show shard {shard}, but {', '.join(map(str, sorted(pin)))}")
        return View(group_id, pin=pin[shard])

    async def _wait(self, size: int) -> None:
        if not self._room.fits(size):
            await self._room.wait(size)
            self._check_open()

    def _note(self, shard: int, seqno: int) -> None:
        self.written[shard] = max(seqno, self.written.get(shard, -1))

    def _on_written(self, future: asyncio.Future[Written]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._note(future.result().shard, future.result().seqno)

    def _durability_of(self, durability: Durability | str | None) -> Durability:
        if durability is None:
            return self._durability
        return checked_durability(durability)

    def _reading(self, level: str | None, min_seqno: Seqnos) -> tuple[str, Seqnos]:
        """Return checked options of a read."""
        self._check_open()
        if level is not None:
            one_of("level", level, LEVELS)
        for seqno in min_seqno.values() if isinstance(min_seqno, Mapping) else (min_seqno,):
            if type(seqno) is not int or not 0 <= seqno <= SEQNO_MAX:
                raise InvalidArgument("min_seqno", f"is {seqno!r}, must be a seqno from 0 on, or those by shard")
        return level or self.level, min_seqno

    def _shards(self, shards: Sequence[int] | None) -> list[int]:
        group = self._dispatcher.group
        wanted = sorted(group.shards) if shards is None else list(dict.fromkeys(shards))
        return [self._routing.check_shard(group, shard) for shard in wanted]

    def _check_one_shard(self, keys: Sequence[bytes]) -> None:
        by_shard: dict[int, list[bytes]] = {}
        for key in keys:
            by_shard.setdefault(self._dispatcher.group.shard_of(key), []).append(key)
        if len(by_shard) > 1:
            named = "; ".join(
                f"shard {shard}: {', '.join(repr(key[:40]) for key in some[:3])}" + (" ..." if len(some) > 3 else "")
                for shard, some in sorted(by_shard.items())[:5]
            )
            raise SeveralShards(
                "writes", f"have keys of {len(by_shard)} shards ({named}); a batch is of one", shards=by_shard)


def checked_durability(durability: Durability | str) -> Durability:
    """Return a durability that documents take; raises InvalidArgument."""
    level = durability_of(durability)
    if level is Durability.LOCAL:
        raise InvalidArgument("durability", "is LOCAL; documents take QUORUM or COMMIT")
    return level


def _checked_pin(name: Any, ttl_s: Any) -> int:
    """Return the lease of a pin in milliseconds; raises InvalidArgument."""
    if not isinstance(name, str):
        raise InvalidArgument("name", f"is {name!r}, must be a text")
    ttl_ms = checked_ttl_ms(ttl_s)
    if ttl_ms == 0:
        raise InvalidArgument("ttl_s", "is None, must be seconds")
    if (wrong := wrong_pin(name, ttl_ms)) is not None:
        field, _, rest = wrong.partition(" ")
        raise InvalidArgument(field, rest)
    return ttl_ms


async def _each(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Any]:
    if isinstance(items, AsyncIterable):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item
