"""EtcdStore: the one door to etcd, with typed outcomes.

Promises: every write is a transaction on `mod_revision`; a write whose answer was lost is `Unknown`, never
reported as refused; `follow` shows a prefix without a gap, first as a Snapshot, then as Changes, and again
as a Snapshot whenever continuity was lost (compaction).  Reads raise StoreUnavailable past their deadline.

aetcd supplies the generated stubs.  Its client is not used: it knows one endpoint, hides the header's
revision, cannot page a range, and its watcher ignores the server's `canceled`.
Stays out: what the keys and values mean.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import grpc
import grpc.aio
from aetcd import rpc

from .etcd_access import EtcdAccess, Login, TlsFiles
from .etcd_channels import EtcdChannels, Line
from .metrics import STORE_CONFLICTS, STORE_REQUESTS, counted

Answer = TypeVar("Answer")

PAGE_ITEMS = 500
"""Keys read in one request; a large prefix is read in pages at one revision."""

OPERATIONS_MAX = 128
"""etcd's default bound on the operations of one transaction."""

_NEVER_SENT = ("failed to connect", "no leader", "name resolution", "dns resolution", "request ignored")
_NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
_TURNED_AWAY = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_HAS_LEADER = (("hasleader", "true"),)


class StoreUnavailable(Exception):
    """etcd gave no answer within the deadline; nothing is known beyond what was known before."""


# --- outcomes of a write ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Saved:
    """The transaction was applied at `revision`."""

    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A condition did not hold; nothing was written."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The answer was lost: the write may or may not have been applied.  Read back, never repeat blindly."""

    message: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The request was certainly not applied."""

    message: str


Outcome = Saved | Conflict | Unknown | Unavailable

# --- what is read -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Item:
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys under a prefix as of `revision`."""

    items: Mapping[str, Item]
    revision: int


@dataclass(frozen=True, slots=True)
class KeyChange:
    """`value` is None when the key was deleted."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes in order, complete up to and including `revision`."""

    changes: tuple[KeyChange, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Write:
    """One operation of a transaction: put `value`, or delete when it is None.

    It applies only while the key's revision is `expected` (0: the key does not exist; None: whatever it is).
    """

    key: str
    value: bytes | None
    expected: int | None
    lease: int = 0


class EtcdStore:
    """A connection to one etcd cluster through any of `endpoints` (`http://host:port` or `https://...`)."""

    def __init__(
        self, endpoints: Sequence[str], *, tls: TlsFiles | None = None, login: Login | None = None,
        timeout_ms: int = 2_000,
    ) -> None:
        if not endpoints:
            raise ValueError("at least one etcd endpoint is needed")
        self.endpoints = tuple(endpoints)
        self._channels = EtcdChannels(
            [_parse_endpoint(endpoint, tls) for endpoint in endpoints], EtcdAccess(tls, login))
        self._timeout_s = timeout_ms / 1000
        self._current = 0
        self.reachable = False
        self.last_error = ""  # empty while it is reachable, and until it was tried
        self._unanswered = 0   # requests in a row that nobody answered
        self.on_reachable: Callable[[bool], None] = lambda reachable: None
        self.on_set_back: Callable[[int, int], None] = lambda before, now: None
        self._revision = 0   # newest that any answer named

    def use(self, tls: TlsFiles | None, login: Login | None) -> bool:
        """Speak with these from the next request on; False where nothing changes.  What runs ends as it began."""
        known = self._channels.access
        if (tls, login) == (known.tls, known.login):
            return False
        self._channels.use(EtcdAccess(tls, login))
        return True

    async def close(self) -> None:
        await self._channels.close()

    # --- reads --------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Item | None:
        """Read one key, linearizable."""
        answer = await self._range(rpc.RangeRequest(key=key.encode()))
        return Item(answer.kvs[0].value, answer.kvs[0].mod_revision) if answer.kvs else None

    async def load(self, prefix: str) -> Snapshot:
        """Read every key under `prefix` as of one revision, page by page."""
        items: dict[str, Item] = {}
        start, end, revision = prefix.encode(), _prefix_end(prefix.encode()), 0
        while True:
            answer = await self._range(rpc.RangeRequest(key=start, range_end=end, limit=PAGE_ITEMS, revision=revision))
            revision = revision or answer.header.revision
            for pair in answer.kvs:
                items[pair.key.decode()] = Item(pair.value, pair.mod_revision)
            if not answer.more:
                return Snapshot(items, revision)
            start = answer.kvs[-1].key + b"\0"

    async def _range(self, request: Any) -> Any:
        """Ask; an answer that goes back behind what was seen before it was asked for means another history."""
        before = self._revision
        answer = await self._read("Range", lambda channel, timeout: rpc.KVStub(channel).Range(
            request, timeout=timeout, metadata=_HAS_LEADER))
        if answer.header.revision < before:
            self.on_set_back(before, answer.header.revision)
        self._revision = max(self._revision, answer.header.revision)
        return answer

    async def version(self) -> str:
        """Return the server's version."""
        answer = await self._read("Status", lambda channel, timeout: rpc.MaintenanceStub(channel).Status(
            rpc.StatusRequest(), timeout=timeout))
        return str(answer.version)

    # --- writes -------------------------------------------------------------------------------------------

    async def put(self, key: str, value: bytes, *, expected: int, lease: int = 0) -> Outcome:
        """Write one key if its revision still is `expected`; 0 creates it."""
        return await self.transact([Write(key, value, expected, lease)])

    async def delete(self, key: str, *, expected: int) -> Outcome:
        """Delete one key if its revision still is `expected`."""
        return await self.transact([Write(key, None, expected)])

    async def transact(self, writes: Sequence[Write], unchanged: Mapping[str, int] = MappingProxyType({})) -> Outcome:
        """Apply all of `writes` in one transaction, or none; none where a key in `unchanged` has another revision."""
        if not 0 < len(writes) + len(unchanged) <= OPERATIONS_MAX:
            raise ValueError(
                f"a transaction holds 1 to {OPERATIONS_MAX} writes and checks, not {len(writes) + len(unchanged)}")
        checks = [Write(key, None, revision) for key, revision in unchanged.items()]
        request = rpc.TxnRequest(
            compare=[_compare(write) for write in (*writes, *checks) if write.expected is not None],
            success=[_operation(write) for write in writes],
        )
        outcome = await self._ask_to_write(request)
        return outcome if outcome is not None else await self._ask_to_write(request) or Unavailable("no token lasts")

    async def _ask_to_write(self, request: Any) -> Outcome | None:
        """Write; None where the token had ended, so that nothing was written."""
        asked = False
        try:
            async with self._line() as line:
                await line.access.log_in(line.channel, self._timeout_s)
                asked = True
                answer = await counted(STORE_REQUESTS, "Txn", rpc.KVStub(line.channel).Txn(
                    request, timeout=self._timeout_s, metadata=_HAS_LEADER))
        except grpc.aio.AioRpcError as error:
            message = _describe(error)
            if self._failed(error):
                return None
            if not asked:
                return Unavailable(message)
            if error.code() is grpc.StatusCode.UNAVAILABLE and any(s in message.lower() for s in _NEVER_SENT):
                return Unavailable(message)
            if error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND):
                return Unavailable(message)  # refused before it was proposed: bad request, lease gone
            return Unknown(message)
        self._answered()
        self._revision = max(self._revision, answer.header.revision)
        if answer.succeeded:
            return Saved(answer.header.revision)
        STORE_CONFLICTS.inc()
        return Conflict()

    # --- leases -------------------------------------------------------------------------------------------

    async def grant_lease(self, ttl_s: int) -> int:
        """Create a lease and return its id."""
        answer = await self._read("LeaseGrant", lambda channel, timeout: rpc.LeaseStub(channel).LeaseGrant(
            rpc.LeaseGrantRequest(TTL=ttl_s), timeout=timeout))
        return int(answer.ID)

    async def refresh_lease(self, lease: int) -> int:
        """Extend a lease; return the seconds it has now, 0 when it is gone."""

        async def refresh(channel: grpc.aio.Channel, deadline_s: float) -> Any:
            call = rpc.LeaseStub(channel).LeaseKeepAlive(
                iter([rpc.LeaseKeepAliveRequest(ID=lease)]), timeout=deadline_s, metadata=_HAS_LEADER)
            async for answer in call:
                return answer
            raise StoreUnavailable("the keep-alive stream ended without an answer")

        return int((await self._read("LeaseKeepAlive", refresh)).TTL)

    async def revoke_lease(self, lease: int) -> None:
        """Give a lease back, with the keys that hang on it; a lease that is gone already is fine."""
        try:
            async with self._line() as line:
                await line.access.log_in(line.channel, self._timeout_s)
                await rpc.LeaseStub(line.channel).LeaseRevoke(
                    rpc.LeaseRevokeRequest(ID=lease), timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.NOT_FOUND:
                raise StoreUnavailable(_describe(error)) from error

    # --- following ----------------------------------------------------------------------------------------

    async def follow(self, prefix: str) -> AsyncIterator[Snapshot | Changes]:
        """Yield the prefix as a Snapshot, then every change of it, for ever; survives etcd's restarts.

        Pull-driven: while the consumer is busy, gRPC's flow control holds the server back.
        """
        revision = -1
        while True:
            try:
                if revision < 0:
                    snapshot = await self.load(prefix)
                    revision = snapshot.revision
                    yield snapshot
                async for changes in self._watch(prefix, revision + 1):
                    revision = changes.revision
                    yield changes
            except _Compacted:
                revision = -1
            except (StoreUnavailable, grpc.aio.AioRpcError) as error:
                if isinstance(error, grpc.aio.AioRpcError):
                    self._failed(error)
                await asyncio.sleep(0.2)  # the pace of reconnecting, not a wait for anything

    async def _watch(self, prefix: str, first_revision: int) -> AsyncIterator[Changes]:
        key = prefix.encode()
        create = rpc.WatchRequest(create_request=rpc.WatchCreateRequest(
            key=key, range_end=_prefix_end(key), start_revision=first_revision))
        async with self._line() as line:
            await line.access.log_in(line.channel, self._timeout_s)
            call = rpc.WatchStub(line.channel).Watch(metadata=_HAS_LEADER)
            try:
                await call.write(create)
                while True:
                    answer = await call.read()
                    if answer is grpc.aio.EOF:
                        raise StoreUnavailable("the watch stream ended")
                    if answer.compact_revision:
                        raise _Compacted
                    if answer.canceled:
                        line.access.turned_down(answer.cancel_reason)
                        raise StoreUnavailable(f"the server cancelled the watch: {answer.cancel_reason}")
                    self._answered()
                    if answer.created and answer.header.revision < first_revision - 1:
                        await self.get(prefix)  # this member lags, or all of etcd went back: a read tells which
                    if answer.events:
                        self._revision = max(self._revision, answer.header.revision)
                        yield Changes(tuple(_change(event) for event in answer.events), answer.header.revision)
            finally:
                call.cancel()

    # --- channels -----------------------------------------------------------------------------------------

    async def _read(self, method: str, call: Callable[[grpc.aio.Channel, float], Awaitable[Answer]]) -> Answer:
        """Run an idempotent request, trying one endpoint after the other until the deadline."""
        deadline = time.monotonic() + self._timeout_s
        while True:
            # A silent endpoint may not eat the whole deadline while there is another one to ask.
            patience_s = self._timeout_s / len(self.endpoints)
            try:
                left_s = max(0.05, min(patience_s, deadline - time.monotonic()))
                async with self._line() as line:
                    await line.access.log_in(line.channel, left_s)
                    answer = await counted(STORE_REQUESTS, method, call(line.channel, left_s))
            except grpc.aio.AioRpcError as error:
                again = self._failed(error) or error.code() in _NO_ANSWER
                if not again or time.monotonic() + 0.05 >= deadline:
                    raise StoreUnavailable(_describe(error)) from error
                await asyncio.sleep(0.05)
            else:
                self._answered()
                return answer

    def _line(self) -> AbstractAsyncContextManager[Line]:
        return self._channels.line(self._current)

    def _answered(self) -> None:
        self._unanswered = 0
        if not self.reachable:
            self.reachable, self.last_error = True, ""
            self.on_reachable(True)

    def _failed(self, error: grpc.aio.AioRpcError) -> bool:
        """Note what went wrong; True when a token has ended, and another one may do.

        That etcd is away is told when every endpoint was asked in vain, and after silence once more: on a busy machine
        an answer may be late, and what is told is written down for people.
        """
        if self._channels.access.turned_down(error.details() or ""):
            return True
        if error.code() in _NO_ANSWER:
            self._current = (self._current + 1) % len(self.endpoints)
            self._unanswered += 1
            silence = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            if self._unanswered < len(self.endpoints) + silence:
                return False
        elif error.code() not in _TURNED_AWAY and "authentication failed" not in (error.details() or ""):
            return False
        news = not self.last_error
        self.reachable, self.last_error = False, _describe(error)
        if news:
            self.on_reachable(False)
        return False


class _Compacted(Exception):
    """The revisions asked for are gone."""


def _parse_endpoint(endpoint: str, tls: TlsFiles | None) -> tuple[str, bool]:
    scheme, separator, target = endpoint.partition("://")
    if not separator or scheme not in ("http", "https") or not target.strip("/"):
        raise ValueError(f"etcd endpoint {endpoint!r} must look like http://host:port or https://host:port")
    if scheme == "https" and tls is None:
        raise ValueError(f"etcd endpoint {endpoint!r} needs the PEM of its CA (--etcd-ca)")
    return target.strip("/"), scheme == "https"


def _prefix_end(prefix: bytes) -> bytes:
    """Return the first key behind all keys that begin with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\0"


def _compare(write: Write) -> Any:
    return rpc.Compare(
        key=write.key.encode(), target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=write.expected)


def _operation(write: Write) -> Any:
    key = write.key.encode()
    if write.value is None:
        return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=write.value, lease=write.lease))


def _change(event: Any) -> KeyChange:
    deleted = event.type == event.DELETE
    return KeyChange(event.kv.key.decode(), None if deleted else event.kv.value, event.kv.mod_revision)


def _describe(error: grpc.aio.AioRpcError) -> str:
    return f"{error.code().name}: {error.details()}"


async def revoke_quietly(store: EtcdStore, lease: int) -> None:
    """Give a lease back on the way out; one that cannot be given back ends by itself."""
    with suppress(StoreUnavailable):
        await store.revoke_lease(lease)
