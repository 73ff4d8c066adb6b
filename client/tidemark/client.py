"""Client: the door of the library.  `connect` finds the cluster; a client hands out appenders, readers and documents.

Stays out: everything they do.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Never, Unpack, overload

from tidemark_core.base.entry import Durability
from tidemark_core.base.ids import index_of, shard_id
from tidemark_core.delivery.location import Location
from tidemark_core.delivery.slowness import SlowDetection
from tidemark_core.limbo.view import LimboView
from tidemark_core.replication.messages import Outcome
from tidemark_core.subscriptions.view import SubscriptionsView
from tidemark_core.upr.positions import Scope, Token, encode
from tidemark_wire.tls import Credentials, FileCredentials, InvalidTls, TlsSettings
from tidemark_wire.v1 import common_pb2

from .appending.appender import Appender
from .appending.links import Links
from .batch import timestamp_us_of
from .change_events import BatchEvent, Vector
from .change_settings import BEGINNING, BUFFER_BYTES, COMMIT_S, ChangeSettings, From, Key
from .changes import Changes
from .cursor import EARLIEST, LATEST, End, Start
from .document_calls import LEVELS, LINEARIZABLE
from .documents import Documents, checked_durability
from .errors import Closed, InvalidArgument, LocalAppendsLost
from .explain import Explanation, Explanations
from .gaps import Gap
from .home import Home
from .keyspace import TIMEOUT_S, Keyspace
from .keyspace_calls import KeyspaceCalls
from .keyspace_results import KeyspaceStats
from .options import ReadOptions
from .payload import DECODED_BYTES_MAX
from .producer import ProducerId
from .profiles import resolved
from .questions import Questions
from .read_settings import DEFAULT_MODE, RAISE, SCD, ReadSettings
from .reader import Reader
from .routing import Channels, Group, Routing, check_addresses
from .settings import AppendSettings, at_least, one_of
from .sinks import Sinks
from .subscription import AUTO_COMMIT_S, DEFAULT_LEASE_S, SubscriptionSettings, checked_lease_ms, checked_name
from .view import SqliteView


class Client:
    """A connection to one cluster.  Made by `connect`; close it, or use it with `async with`."""

    def __init__(self, addresses: list[str], tls: Credentials | None = None) -> None:
        self.channels = Channels(tls)
        self.routing = Routing(addresses, self.channels)
        self.links = Links(self.channels)
        self.questions = Questions(self.routing, self.channels)
        self._explanations = Explanations(self.routing, self.channels)
        self._keyspaces = KeyspaceCalls(self.routing, self.channels)
        self._open: set[Appender | Changes | Documents | Reader] = set()
        self._closed = False
        self.home = Home()

    async def group(self, name: str) -> Group:
        """Return what is known of a log group; raises UnknownGroup."""
        self._check_open()
        return await self.routing.find_group(name)

    @property
    def shard_map(self) -> common_pb2.ShardMap:
        """The newest shard map seen."""
        return self.routing.map

    def appender(
        self,
        group: str,
        *,
        durability: Durability | str | None = None,
        batch_records: int = 1000,
        batch_bytes: int = 128 << 10,
        linger_ms: float = 5.0,
        timeout_s: float = 30.0,
        max_buffered_bytes: int = 32 << 20,
        compression: str | None = None,
        on_quorum_timeout: str = "wait",
        on_rollback: str = "retry",
        on_loss: Callable[[LocalAppendsLost], None] | None = None,
        producer: ProducerId | None = None,
        fence: int | None = None,
    ) -> Appender:
        """Return an appender to a log group; raises UnknownGroup, InvalidArgument.

        `durability` None takes the group's default.  A batch is sent when it has `batch_records` or
        `batch_bytes`, after `linger_ms`, or at once when nothing is in flight.  `timeout_s` is how long an append
        is retried.  When the wait for the synchro quorum is over, `on_quorum_timeout` 'wait' asks on for the fate
        and 'raise' gives callers QuorumTimeout; when a batch was rolled back, `on_rollback` 'retry' appends it anew,
        in order, and 'raise' gives callers RolledBack.  `on_loss` hears of acknowledged LOCAL appends that a
        failover lost.

        With `producer` the appender claims the producer of that name, which no other process has from then on, and each
        shard's log has what was appended without a gap: behind a batch that does not end well ProducerEnded refuses
        all others.  `fence` None is one more than any before; a process with a lower fence gets ProducerFenced.
        """
        self._check_open()
        settings = AppendSettings.checked(
            durability=durability, batch_records=batch_records, batch_bytes=batch_bytes, linger_ms=linger_ms,
            timeout_s=timeout_s, max_buffered_bytes=max_buffered_bytes, compression=compression,
            on_quorum_timeout=on_quorum_timeout, on_rollback=on_rollback, producer=producer, fence=fence,
        )
        appender = Appender(self, group, settings, on_loss)
        self._open.add(appender)
        return appender

    def documents(
        self,
        group: str,
        *,
        level: str = LINEARIZABLE,
        durability: Durability | str | None = None,
        batch_records: int = 1000,
        batch_bytes: int = 128 << 10,
        linger_ms: float = 5.0,
        timeout_s: float = 30.0,
        max_buffered_bytes: int = 32 << 20,
        on_quorum_timeout: str = "wait",
        on_rollback: str = "retry",
    ) -> Documents:
        """Return the documents of a log group of kind Documents; raises UnknownGroup, WrongKind, InvalidArgument.

        `level` is what reads promise unless a read says otherwise.  The other options are those of `appender`;
        `timeout_s` is also how long a read is retried.  `durability` is QUORUM or COMMIT.
        """
        self._check_open()
        one_of("level", level, LEVELS)
        settings = AppendSettings.checked(
            durability=None if durability is None else checked_durability(durability), batch_records=batch_records,
            batch_bytes=batch_bytes, linger_ms=linger_ms, timeout_s=timeout_s, max_buffered_bytes=max_buffered_bytes,
            compression=None, on_quorum_timeout=on_quorum_timeout, on_rollback=on_rollback,
        )
        documents = Documents(self, group, settings, level)
        self._open.add(documents)
        return documents

    @overload
    def read(self, group: str, *, gaps: Literal[False] = False, **options: Unpack[ReadOptions]) -> Reader[Never]: ...

    @overload
    def read(self, group: str, *, gaps: bool, **options: Unpack[ReadOptions]) -> Reader[Gap]: ...

    def read(
        self,
        group: str,
        *,
        shards: Sequence[int] | None = None,
        from_: Start | Mapping[int, Start] = EARLIEST,
        until: End | Mapping[int, End] = LATEST,
        mode: str = DEFAULT_MODE,
        location: str | Location | None = None,
        gaps: bool = False,
        undecodable: str = RAISE,
        decoded_bytes_max: int = DECODED_BYTES_MAX,
        buffer_bytes: int = 64 << 20,
        window_bytes: int | None = None,
        timeout_s: float = 30.0,
        scd_timeout_s: float = 10.0,
        all_send_all_timeout_s: float = 30.0,
        started_timeout_s: float = 5.0,
        slow_detection: SlowDetection | str = SlowDetection.ON,
        subscription: str | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        auto_commit_s: float | None = AUTO_COMMIT_S,
    ) -> Reader[Gap]:
        """Return a reader of a group; iterate over it for records, over its `batches()` for whole batches.

        `from_` is 'earliest', 'latest' (behind what is acknowledged when the read begins) or an offset; `until` is
        'latest' (what is acknowledged when the read begins), the last offset wanted, or None to go on for ever; both
        may be mappings by shard.  With `gaps` the offsets without a record are yielded too, as `Gap`s between the
        records.

        A batch that is not what an appender writes, or that decompresses to more than `decoded_bytes_max`, ends the
        read with UndecodableBatch.  With `gaps` it is a `Gap`; with `undecodable` 'skip' the read passes it over and
        counts its offsets.

        `mode` says who sends: 'scd' all members together, each record once; 'local' the same from members near
        `location` ('region=eu,zone=a'; 'scd' with a location is 'local'); 'all' every member everything; 'leader'
        the leader alone.  What is read ahead is bounded by `buffer_bytes`; `window_bytes` is how much of one shard
        its members may send ahead of the application, else an even part of it.  A member that says nothing about
        the next record for `scd_timeout_s`, or nothing at all for a second, is passed over, after
        `all_send_all_timeout_s` all are asked for everything; `slow_detection` 'on' passes over a member that is far
        slower than the others, 'observe' only counts it, 'off' does not look.

        With `subscription` the read goes on where the subscription of that name stands, on each shard; where there is
        none yet, at `from_`.  What the application is done with is committed every `auto_commit_s` and at close, or
        by `Reader.commit` alone when that is None; retention keeps what lies behind it for `lease_s`.
        """
        self._check_open()
        settings = ReadSettings.checked(
            mode=mode, location=location, gaps=gaps, undecodable=undecodable, decoded_bytes_max=decoded_bytes_max,
            buffer_bytes=buffer_bytes, window_bytes=window_bytes, timeout_s=timeout_s, scd_timeout_s=scd_timeout_s,
            all_send_all_timeout_s=all_send_all_timeout_s, started_timeout_s=started_timeout_s,
            slow_detection=slow_detection,
        )
        named = None if subscription is None else SubscriptionSettings.checked(subscription, lease_s, auto_commit_s)
        reader: Reader[Gap] = Reader(self, group, settings, shards=shards, from_=from_, until=until, subscription=named)
        self._open.add(reader)
        return reader

    def keyspace(self, name: str, *, timeout_s: float = TIMEOUT_S) -> Keyspace:
        """Return a keyspace; its calls raise UnknownKeyspace where there is none of that name.

        `timeout_s` is how long a call may take that does not say so itself.  Raises InvalidArgument.
        """
        self._check_open()
        if not isinstance(name, str) or not name:
            raise InvalidArgument("name", "must be the name of a keyspace")
        return Keyspace(name, at_least("timeout_s", timeout_s, 0.001), self.routing, self._keyspaces, self._check_open)

    def sinks(self, group: str) -> Sinks:
        """Return the sinks of a log group: jobs that write to it in batches."""
        self._check_open()
        return Sinks(self.questions, self.routing, group)

    @property
    def keyspace_stats(self) -> KeyspaceStats:
        """Counts of calls to keyspaces: those of this client so far."""
        return dataclasses.replace(self._keyspaces.stats)

    def changes(
        self,
        group: str,
        *,
        from_: From = BEGINNING,
        level: str = "committed",
        prefix: Key | Sequence[Key] | None = None,
        key_range: tuple[Key | None, Key | None] | None = None,
        values: bool = True,
        history: str = "latest",
        on_lost: str = "fail",
        consumer: str | None = None,
        lease_s: float = DEFAULT_LEASE_S,
        commit_s: float | None = COMMIT_S,
        skip_deletes: bool = False,
        buffer_bytes: int = BUFFER_BYTES,
        timeout_s: float = 30.0,
        shards: Sequence[int] | None = None,
    ) -> Changes:
        """Return the changes of a group of documents; iterate over it, over its `snapshots()` or its `batches()`.

        `from_` is 'beginning', 'now', a position (also that of a scan or a pin) or an aware datetime.
        `prefix` (one or several) and `key_range` (first, end) choose keys; without `values` rows have keys alone.  With
        `consumer` the stream goes on where the consumer of that name stands; its position is committed every
        `commit_s`, at close and by `ack`, and protects deletes from a purge for `lease_s`.  When deletes were purged
        behind the consumer, or its history is not the shard's, `on_lost` 'fail' raises ChangesFailed and 'rebuild'
        gives a fresh snapshot.  With `skip_deletes` the first scan leaves deletes out.  `shards` are those to follow,
        without them all.  Raises InvalidArgument.
        """
        self._check_open()
        settings = ChangeSettings.checked(
            from_=from_, level=level, prefix=prefix, key_range=key_range, values=values, history=history,
            on_lost=on_lost, consumer=consumer, lease_s=lease_s, commit_s=commit_s, skip_deletes=skip_deletes,
            buffer_bytes=buffer_bytes, timeout_s=timeout_s, shards=shards,
        )
        changes = Changes(self, group, settings)
        self._open.add(changes)
        return changes

    def view(
        self, group: str, path: Path | str, *, on_lost: str = "rebuild",
        on_event: Callable[[BatchEvent], None] | None = None, beside: bool = False,
    ) -> SqliteView:
        """Return a view: a SQLite file at `path` that follows the documents of a group, each change applied once.

        It goes on from the position in the file.  When deletes were purged behind it, or its history is lost, `on_lost`
        'rebuild' replaces it by a fresh scan, 'fail' raises ChangesFailed.  `on_event` hears each event once it is
        applied.  One process feeds a file; with `beside` a second one reads and verifies it meanwhile.  Raises
        InvalidArgument.
        """
        self._check_open()
        ChangeSettings.check_on_lost(on_lost)

        def changes_from(position: str) -> Changes:
            return self.changes(group, from_=position or BEGINNING, on_lost=on_lost)

        return SqliteView(self, group, path, changes_from, on_event, beside)

    async def barrier(self, group: str, *, timeout_s: float = 30.0) -> Vector:
        """Return seqnos of all shards of a group of documents that cover every write confirmed before the call (U68).

        A consumer whose position reaches it has everything; `Changes.barrier` waits for that.  Raises Unavailable.
        """
        shards = await self._shards(group, None)
        found = await asyncio.gather(
            *(self.questions.read_index(group, shard, timeout_s=timeout_s) for shard in shards))
        group_id = (await self.routing.find_group(group)).group_id
        points = {
            shard_id(group_id, shard): failover.point(seqno)
            for shard, (seqno, failover) in zip(shards, found, strict=True)
        }
        return Vector(
            encode(Token(Scope(group_id), points)), {index_of(shard): point.seqno for shard, point in points.items()})

    async def outcome(
        self, group: str, shard: int, producer: bytes, sequence: int, *, wait: bool = True, timeout_s: float = 30.0
    ) -> Outcome:
        """Return what became of a batch: CONFIRMED, ROLLED_BACK, UNKNOWN or NOT_FOUND.

        `producer` and `sequence` are those of an `Appended` or of an OutcomeUnknown; the cluster remembers the last
        five batches of a producer.  With `wait` the answer is UNKNOWN only after `timeout_s`.  NOT_FOUND says that
        this leader's log has no such batch now; while the appender still runs, or a failover, it may yet.
        """
        self._check_open()
        return await self.questions.outcome(group, shard, producer, sequence, wait=wait, timeout_s=timeout_s)

    async def limbo(
        self, group: str, shard: int, *, entries_max: int = 100, timeout_s: float = 10.0
    ) -> LimboView:
        """Return what is appended to a shard and not yet confirmed: who waits for whom, its oldest entries first."""
        self._check_open()
        return await self.questions.limbo(group, shard, entries_max=entries_max, timeout_s=timeout_s)

    async def subscriptions(
        self, group: str, *, shards: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> dict[int, SubscriptionsView]:
        """Return, by shard, where all named subscriptions stand and how far they are behind."""
        wanted = await self._shards(group, shards)
        found = await asyncio.gather(
            *(self.questions.subscriptions(group, shard, timeout_s=timeout_s) for shard in wanted)
        )
        return dict(zip(wanted, found, strict=True))

    async def commit_position(
        self, group: str, shard: int, subscription: str, offset: int, *, lease_s: float = DEFAULT_LEASE_S,
        seek: bool = False, timeout_s: float = 30.0,
    ) -> int:
        """Commit where a subscription goes on, without a reader; return where it stands now.

        It moves back with `seek` alone; without it a lower offset changes nothing.
        """
        self._check_open()
        name, lease_ms = checked_name(subscription), checked_lease_ms(lease_s)
        if type(offset) is not int or not 0 <= offset < 1 << 63:
            raise InvalidArgument("offset", f"is {offset!r}, must be a number of at least 0")
        answer = await self.questions.commit_position(
            group, shard, name, offset, lease_ms=lease_ms, seek=bool(seek), timeout_s=timeout_s
        )
        return answer.offset

    async def delete_subscription(
        self, group: str, subscription: str, *, shards: Sequence[int] | None = None, timeout_s: float = 30.0
    ) -> list[int]:
        """Forget a subscription, which lets go of what it pins; return the shards that had it."""
        name, wanted = checked_name(subscription), await self._shards(group, shards)
        answers = await asyncio.gather(
            *(self.questions.delete_subscription(group, shard, name, timeout_s=timeout_s) for shard in wanted)
        )
        return [shard for shard, answer in zip(wanted, answers, strict=True) if answer.existed]

    async def _shards(self, group: str, shards: Sequence[int] | None) -> list[int]:
        self._check_open()
        found = await self.routing.find_group(group)
        wanted = sorted(found.shards) if shards is None else list(dict.fromkeys(shards))
        return [self.routing.check_shard(found, shard) for shard in wanted]

    async def latest(self, group: str, shard: int, *, timeout_s: float = 30.0) -> int:
        """Return the last offset of a shard that may be read now; -1: none.

        It covers every record acknowledged to any client before the call, but those of level LOCAL (O46).  Raises
        `Unavailable` when within `timeout_s` seconds no leader has proved to a majority of its members that it leads.
        """
        self._check_open()
        self.routing.check_shard(await self.routing.find_group(group), shard)
        return await self.questions.latest(group, shard, timeout_s=timeout_s)

    async def earliest(self, group: str, shard: int, *, timeout_s: float = 30.0) -> int:
        """Return the first offset of a shard that retention has left; where nothing is left, the one behind the end.

        Raises Unavailable when no leader answers within `timeout_s` seconds.
        """
        self._check_open()
        self.routing.check_shard(await self.routing.find_group(group), shard)
        return await self.questions.earliest(group, shard, timeout_s=timeout_s)

    async def offset_at(
        self, group: str, shard: int, timestamp: datetime.datetime | int, *, timeout_s: float = 30.0
    ) -> int:
        """Return the first offset of a shard that was logged at a time or later, for `from_` of a read.

        `timestamp` is an aware datetime or microseconds since 1970.  It is compared with the clock of the leader that
        took the record, in milliseconds, not with the record's own timestamp.  The offset behind the end when nothing
        was logged since.
        """
        self._check_open()
        logged_us = timestamp_us_of(timestamp)
        if logged_us is None:
            raise InvalidArgument("timestamp", "is None, must be a datetime or microseconds")
        return await self.questions.offset_at(group, shard, -(-logged_us // 1000), timeout_s=timeout_s)

    async def explain_read(
        self, group: str, shard: int, *, first: int = 0, count: int = 100, mode: str = SCD,
        location: str | Location | None = None, down: Sequence[str] = (), timeout_s: float = 10.0,
    ) -> Explanation:
        """Return who would send a reader what, of `count` entries and holes from offset `first` on, and why.

        `mode` and `location` are those of `read`; `down` names members that the reader takes to be down.
        """
        self._check_open()
        return await self._explanations.read(
            group, shard, first=first, count=count, mode=mode, location=location, down=down, timeout_s=timeout_s
        )

    def forget(self, part: Appender | Changes | Documents | Reader) -> None:
        """Called by a part that closes."""
        self._open.discard(part)

    async def close(self) -> None:
        """Flush and close every appender, stop every reader, drop every connection."""
        if self._closed:
            return
        self.home.check()
        self._closed = True
        try:
            await asyncio.gather(*(part.close() for part in list(self._open)))
        finally:
            await self.links.close()
            await self.routing.close()
            await self.channels.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the client is closed")
        self.home.check()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._open)} open parts"
        return f"<tidemark.Client of {self.shard_map.cluster or 'no cluster yet'} at {self.routing.at()}, {state}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            for part in list(self._open):
                if isinstance(part, Appender | Documents):
                    part.abort(Closed("a cancelled task left the client before this write was answered"))
        await self.close()


async def connect(
    addresses: str | Sequence[str] | None = None,
    *,
    profile: str | None = None,
    timeout_s: float = 10.0,
    tls: TlsSettings | None = None,
) -> Client:
    """Return a client of the cluster that any of these nodes (host:port) belongs to.

    Without addresses it is the cluster of `profile` (`tidemark profile add`), else of TIDEMARK_CLUSTER, with a
    certificate of TIDEMARK_TLS_*, else of TIDEMARK_PROFILE, else the current profile.
    `tls` names our certificate, its key and the CAs we trust; files that are replaced are used from the next connection
    on.  Without it the connection is in the clear, which a cluster with TLS refuses.
    Raises InvalidArgument for a malformed address or unusable files, Unavailable when no node answers within
    `timeout_s`.
    """
    addresses, tls = resolved(addresses, profile, tls)
    checked = check_addresses(addresses)
    at_least("timeout_s", timeout_s, 0.001)
    try:
        credentials = FileCredentials(tls) if tls is not None else None
    except InvalidTls as error:
        raise InvalidArgument("tls", str(error)) from error
    client = Client(checked, credentials)
    try:
        await client.routing.start(timeout_s)
    except BaseException:
        await client.close()
        raise
    return client
