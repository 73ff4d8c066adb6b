"""Shard map of the client: fetched and watched from any node, corrected by the hints inside refusals.

A watch that breaks moves to the next node at once; who is in trouble calls `refresh`, which asks every
known node and keeps the newest answer.  Where the watched node is silent then and another one is not, the watch
moves there: the machine of a node may vanish, and its stream does not break for many seconds.
Stays out: appends and reads; when to retry them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grpc
import grpc.aio
from tidemark_core.base.entry import NO_PRODUCER, Durability
from tidemark_core.base.ids import key_hash
from tidemark_core.base.refusals import Reason, Refused
from tidemark_core.optimistic.ring import Range, range_of
from tidemark_core.replication.producer_ids import PREFIX_BYTES
from tidemark_wire import channel as wire
from tidemark_wire.rings import InvalidRing, ring_of
from tidemark_wire.tasks import cancelled
from tidemark_wire.tls import Credentials
from tidemark_wire.v1 import common_pb2, node_pb2, node_pb2_grpc
from tidemark_wire.wire_version import VERSION_OF_EXPECT, VERSION_OF_GROUP_IDS

from .errors import (
    GroupReplaced,
    InvalidArgument,
    Unavailable,
    UnknownGroup,
    UnknownKeyspace,
    UnknownShard,
    WrongKind,
)

log = logging.getLogger("tidemark.routing")

REFRESH_TIMEOUT_S = 0.5
REFRESH_GAP_S = 0.05
BACKOFF_MAX_S = 1.0
RETIRED_S = 365 * 86_400.0  # a tail may read on for long, over a connection that was opened in its day
LAST_CALLS_S = 1.0
BATCH_BYTES_MAX = 8 << 20  # where the map does not say
QUORUM_TIMEOUT_MS = 5000  # likewise


class Leader(NamedTuple):
    """Who leads a shard, as far as this client knows."""

    node: str
    address: str
    epoch: int


LOG, DOCUMENTS = "Log", "Documents"


class Group(NamedTuple):
    """What the client must know of a log group; a new value per shard map."""

    name: str
    group_id: int
    batch_bytes_max: int
    record_bytes_max: int
    keys_required: bool
    default_durability: Durability
    quorum_timeout_s: float
    shards: tuple[int, ...]
    hash_max: tuple[int, ...]
    kind: str = LOG

    def shard_of(self, key: bytes) -> int:
        """Return the index of the shard whose hash range holds `key`."""
        return self.shards[bisect_left(self.hash_max, key_hash(key))]


class Ring(NamedTuple):
    """A keyspace as the map has it: its ranges by their indexes; `keyspace_id` is never given to another one."""

    name: str
    keyspace_id: int
    ranges: tuple[Range, ...]
    info: common_pb2.KeyspaceInfo

    def range_of(self, key: bytes) -> int:
        """Return the index of the range that a key belongs to."""
        return range_of(key, len(self.ranges))


class Channels:
    """One gRPC channel per address, opened when first used.

    Under TLS who answers must be the node that is known to be there, whatever its address; where none is known, the
    host that is dialed; or, where one is given, always the server name.
    Once the TLS files are replaced, new calls use them; running ones end on the channel they are on.
    """

    def __init__(self, tls: Credentials | None = None) -> None:
        self.nodes: dict[str, str] = {}
        """Names of nodes by address, as far as they are known."""
        self._tls = tls
        self._generation = tls.generation if tls is not None else 0
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._named: dict[str, str] = {}
        self._retired: set[asyncio.Task[None]] = set()

    def to(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            channel = self._channels.get(address)
            if channel is None:
                channel = self._channels[address] = wire.open_channel(address)
            return channel
        if self._tls.changed_since(self._generation):
            self._generation = self._tls.generation
            self._retire(*self._channels)
        name = self._tls.server_name or self.nodes.get(address, "")
        channel = self._channels.get(address)
        if channel is not None and name != self._named[address] and (
                self._named[address] or channel.get_state() is not grpc.ChannelConnectivity.READY):
            self._retire(address)  # another node is there now, or nobody was let in by the host's name
            channel = None
        if channel is None:
            self._named[address] = name
            channel = self._channels[address] = wire.open_channel(address, self._tls, server_name=name)
        return channel

    def _retire(self, *addresses: str) -> None:
        """Let go of these channels once their calls have ended."""
        for address in addresses:
            ending = asyncio.create_task(
                self._channels.pop(address).close(grace=RETIRED_S), name="tidemark-retired-channel")
            self._retired.add(ending)
            ending.add_done_callback(self._retired.discard)

    async def close(self) -> None:
        """Close every channel; whoever made a call on a retired one has ended it, and a moment later it is closed."""
        channels, self._channels = self._channels, {}
        await asyncio.gather(*(channel.close() for channel in channels.values()))
        if self._retired:
            await asyncio.wait(self._retired, timeout=LAST_CALLS_S)
            await cancelled(*self._retired)


def check_addresses(addresses: str | Sequence[str]) -> list[str]:
    """Return addresses as a list of host:port; raises InvalidArgument."""
    given = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    checked = [address.strip() for address in given if address.strip()]
    if not checked:
        raise InvalidArgument("addresses", "is empty; give at least one host:port of a node")
    for address in checked:
        host, _, port = address.rpartition(":")
        if "://" in address:
            raise InvalidArgument("addresses", f"{address!r} is not host:port: leave the scheme away")
        wrong = not host or not port.isascii() or not port.isdigit() or len(port) > 5 or not 0 < int(port) < 65536
        if wrong or any(mark in host for mark in "/@ \t") or (":" in host and not host.startswith("[")):
            raise InvalidArgument("addresses", f"{address!r} is not host:port")
    return checked


class Routing:
    """The newest shard map this client has seen, and everything looked up in it."""

    def __init__(self, addresses: Sequence[str], channels: Channels) -> None:
        self.map = common_pb2.ShardMap()
        self._bootstrap = list(addresses)
        self._channels = channels
        self._groups: dict[str, Group] = {}
        self._keyspaces: dict[str, common_pb2.KeyspaceInfo] = {}
        self._rings: dict[str, Ring] = {}    # those that were asked for
        self._leaders: dict[tuple[str, int], Leader | None] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._ensembles: dict[tuple[str, int], tuple[str, ...]] = {}
        self._copies: dict[tuple[str, int], int] = {}
        self._nodes: dict[str, common_pb2.NodeInfo] = {}
        self._addresses: dict[str, str] = {}
        self._hints: dict[tuple[str, int], Leader] = {}
        self._listeners: set[Callable[[], None]] = set()
        self.watched = ""
        """Address of the node whose watch tells of new maps, empty between two of them."""
        self._watch_call: Any = None
        self._silent: frozenset[str] = frozenset()   # addresses that the newest refresh heard nothing of
        self._watch: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._loaded = False
        self.producer_prefix = b""   # how ids of this caller begin (L25b)
        self._last_error = ""

    # --- life

    async def start(self, timeout_s: float) -> None:
        """Fetch the first map from whichever node answers and begin to watch; raises Unavailable."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not self._loaded:
            await self.refresh()
            if self._loaded:
                break
            if asyncio.get_running_loop().time() >= deadline:
                tried = ", ".join(self._bootstrap)
                raise Unavailable(f"no node answered within {timeout_s:g} s at {tried} ({self._last_error})")
            await asyncio.sleep(0.1)
        self._watch = asyncio.create_task(self._watch_forever(), name="tidemark-shard-map")

    async def close(self) -> None:
        await cancelled(self._watch, self._refreshing)
        self._listeners.clear()

    # --- look-ups

    def group(self, name: str) -> Group:
        """Return a group of the map; raises UnknownGroup."""
        group = self._groups.get(name)
        if group is None:
            known = ", ".join(sorted(self._groups)) or "none"
            text = f"no log group is named {name!r}; there are: {known}"
            error = UnknownGroup(Refused(Reason.UNKNOWN_GROUP, text))
            error.group = name
            raise error
        return group

    def group_of_kind(self, name: str, kind: str) -> Group:
        """Return a group of the map; raises UnknownGroup, WrongKind."""
        group = self.group(name)
        if group.kind != kind:
            text = f"group {name!r} is of kind {group.kind}, not {kind}"
            raise WrongKind(Refused(Reason.WRONG_KIND, text))
        return group

    def check_life(self, name: str, group_id: int) -> None:
        """Check that a name stands for the group that it stood for before; raises UnknownGroup, GroupReplaced."""
        now = self.group(name).group_id
        if now != group_id:
            text = f"log group {name!r} was deleted and made again: its id was {group_id} and is {now}"
            raise GroupReplaced(Refused(Reason.GROUP_REPLACED, text))

    def id_for(self, node: str, group_id: int) -> int:
        """Return the id of a group as a frame for a node says it: 0 where the node may be too old to read it."""
        return group_id if self._version_of(node) >= VERSION_OF_GROUP_IDS else 0

    def reads_expect(self, node: str) -> bool:
        """Say whether a node reads the offset that an append expects; one whose version is not known may not."""
        return self._version_of(node) >= VERSION_OF_EXPECT

    def _version_of(self, node: str) -> int:
        info = self._nodes.get(node)
        return 0 if info is None else info.wire_version

    def find(self, name: str) -> Group | None:
        """Return a group of the map, or None."""
        return self._groups.get(name)

    async def find_group(self, name: str, timeout_s: float = 1.0) -> Group:
        """Return a group, waiting a little for one that was only just created."""
        if not isinstance(name, str) or not name:
            raise InvalidArgument("group", "must be the name of a log group")
        await self._await(lambda: name in self._groups, timeout_s)
        return self.group(name)

    def keyspace(self, name: str) -> Ring:
        """Return a keyspace of the map; raises UnknownKeyspace, and Unavailable for a ring that cannot be read."""
        info = self._keyspaces.get(name)
        if info is None:
            known = ", ".join(sorted(self._keyspaces)) or "none"
            error = UnknownKeyspace(Refused(
                Reason.UNKNOWN_KEYSPACE, f"no keyspace is named {name!r}; there are: {known}"))
            error.keyspace = name
            raise error
        ring = self._rings.get(name)
        if ring is None or (ring.info is not info and ring.info != info):
            try:
                ring = Ring(name, info.keyspace_id, ring_of(info), info)
            except InvalidRing as error:
                raise Unavailable(f"the shard map cannot be read: {error}") from error
            self._rings[name] = ring
        return ring

    async def find_keyspace(self, name: str, timeout_s: float = 1.0) -> Ring:
        """Return a keyspace, waiting a little for one that was only just created; raises as `keyspace`."""
        if name not in self._keyspaces:
            await self._await(lambda: name in self._keyspaces, timeout_s)
        return self.keyspace(name)

    def check_keyspace(self, name: str, keyspace_id: int) -> Ring:
        """Return a keyspace that still is the one of that id; raises as `keyspace`, and GroupReplaced (T13)."""
        ring = self.keyspace(name)
        if ring.keyspace_id != keyspace_id:
            text = f"keyspace {name!r} was deleted and made again: its id was {keyspace_id} and is {ring.keyspace_id}"
            raise GroupReplaced(Refused(Reason.GROUP_REPLACED, text))
        return ring

    async def _await(self, known: Callable[[], bool], timeout_s: float) -> None:
        """Refresh until something is known, or the time is over."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not known() and asyncio.get_running_loop().time() < deadline:
            await self.refresh()
            if not known():
                await self.wait_changed(0.2)

    def check_shard(self, group: Group, shard: int) -> int:
        """Return `shard`; raises UnknownShard when the group has no such one."""
        if shard not in group.shards:
            text = f"group {group.name!r} has no shard {shard!r}, it has {len(group.shards)} (from 0)"
            raise UnknownShard(Refused(Reason.UNKNOWN_SHARD, text))
        return shard

    def leader(self, group: str, shard: int) -> Leader | None:
        """Return who leads the shard, or None while nobody is known to."""
        place = (group, shard)
        hint = self._hints.get(place)
        return hint if hint is not None else self._leaders.get(place)

    def epoch(self, group: str, shard: int) -> int:
        """Return the newest epoch of the shard in the map, -1 when it is not in it."""
        return self._epochs.get((group, shard), -1)

    def ensemble(self, group: str, shard: int) -> tuple[str, ...]:
        """Return the nodes that hold the shard, in slot order; none when it is not in the map."""
        return self._ensembles.get((group, shard), ())

    def payload_copies(self, group: str, shard: int) -> int:
        """Return how many members of a shard keep each payload, 0: all of them, or it is not in the map."""
        return self._copies.get((group, shard), 0)

    def new_producer(self) -> bytes:
        """Return an id that no producer had, of this caller as far as a node has said how its ids begin (L25b)."""
        return self.producer_prefix + os.urandom(len(NO_PRODUCER) - len(self.producer_prefix))

    def at(self) -> str:
        """Return the addresses that were given, as people read them."""
        return ", ".join(self._bootstrap)

    def node(self, name: str) -> common_pb2.NodeInfo | None:
        """Return what the map says of a node."""
        return self._nodes.get(name)

    def nodes(self) -> list[str]:
        """Return every address worth asking: those of the map first, then those given by the user."""
        mapped = list(self._addresses.values())
        return mapped + [address for address in self._bootstrap if address not in mapped]

    # --- learning

    def hint(self, group: str, shard: int, node: str, address: str, epoch: int) -> None:
        """Take the leader named by a refusal, when the refusal knows a newer epoch than the map."""
        if not address:
            return
        place = (group, shard)
        known = self.leader(group, shard)
        newest = max(self._epochs.get(place, -1), known.epoch if known is not None else -1)
        if epoch > newest or (known is None and epoch >= newest):
            self._hints[place] = Leader(node, address, epoch)
            self._channels.nodes[address] = node
            self._tell()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` on every change; the result stops it."""
        self._listeners.add(listener)
        return lambda: self._listeners.discard(listener)

    async def wait_changed(self, timeout_s: float) -> None:
        """Wait for the next change, at most `timeout_s`."""
        changed = asyncio.Event()
        stop = self.listen(changed.set)
        try:
            async with asyncio.timeout(timeout_s):
                await changed.wait()
        except TimeoutError:
            return
        finally:
            stop()

    async def refresh(self) -> None:
        """Ask every known node for its map and keep the newest; calls made meanwhile share the round."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="tidemark-shard-map-refresh")
        await asyncio.shield(self._refreshing)

    def refresh_soon(self) -> None:
        """Start a refresh unless one runs."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="tidemark-shard-map-refresh")

    async def _refresh(self) -> None:
        addresses = self.nodes()
        answered = await asyncio.gather(*(self._fetch(address) for address in addresses))
        self._silent = frozenset(address for address, said in zip(addresses, answered, strict=True) if not said)
        if self.watched in self._silent and any(answered):
            self._watch_call.cancel()
        await asyncio.sleep(REFRESH_GAP_S)  # a storm of callers makes one round per gap

    async def _fetch(self, address: str) -> bool:
        """Ask one node for its map; say whether it answered."""
        stub = node_pb2_grpc.TidemarkStub(self._channels.to(address))
        try:
            answer = await stub.GetShardMap(
                node_pb2.GetShardMapRequest(), timeout=REFRESH_TIMEOUT_S, metadata=wire.hello_metadata()
            )
        except grpc.aio.AioRpcError as error:
            self._last_error = f"{address}: {error.code().name} {error.details()}"
            return False
        if answer.producer_prefix != self.producer_prefix and len(answer.producer_prefix) == PREFIX_BYTES:
            self.producer_prefix = answer.producer_prefix   # a node of the release before says none
            self._tell()
        self._take(answer)
        return True

    async def _watch_forever(self) -> None:
        failures = 0
        while True:
            known = self.nodes()
            nodes = [address for address in known if address not in self._silent] or known
            address = nodes[failures % len(nodes)] if failures else random.choice(nodes)  # noqa: S311
            if await self._watch_at(address):
                failures = 0
            failures += 1
            if failures > len(nodes):
                pause_s = min(BACKOFF_MAX_S, 0.05 * 2 ** min(failures - len(nodes), 6))
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311

    async def _watch_at(self, address: str) -> bool:
        """Take the maps of one node until its watch breaks, or is left; say whether one came."""
        came = False
        stub = node_pb2_grpc.TidemarkStub(self._channels.to(address))
        request = node_pb2.GetShardMapRequest(known_version=self.map.version)
        self._watch_call, self.watched = stub.WatchShardMap(request, metadata=wire.hello_metadata()), address
        try:
            async for answer in self._watch_call:
                came = True
                self._take(answer)
        except grpc.aio.AioRpcError as error:
            self._last_error = f"{address}: {error.code().name} {error.details()}"
            log.debug("watch of the shard map broke at %s", self._last_error)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # our own end, not the call's
                raise
            log.debug("watch of the shard map left %s, which is silent", address)
        finally:
            self.watched = ""
        return came

    def _take(self, new: common_pb2.ShardMap) -> None:
        if self._loaded and new.version <= self.map.version:
            return
        if not new.version and not new.groups and not new.nodes:
            self._last_error = "the node has not been given a shard map yet"
            return
        self.map, self._loaded = new, True
        self._nodes = {node.node: node for node in new.nodes}
        self._addresses = {node.node: node.address for node in new.nodes}
        self._channels.nodes = {node.address: node.node for node in new.nodes}
        self._groups = {group.name: _group(group) for group in new.groups if _is_whole(group)}
        self._keyspaces = {each.name: each for each in new.keyspaces}
        self._rings = {name: ring for name, ring in self._rings.items() if name in self._keyspaces}
        self._leaders, self._epochs, self._ensembles, self._copies = {}, {}, {}, {}
        for group in new.groups:
            for shard in group.shards:
                place, address = (group.name, shard.index), self._addresses.get(shard.leader, "")
                self._epochs[place] = shard.epoch
                self._ensembles[place] = tuple(shard.ensemble)
                self._copies[place] = shard.payload_copies
                self._leaders[place] = Leader(shard.leader, address, shard.epoch) if address else None
                hint = self._hints.get(place)
                if hint is not None and shard.epoch >= hint.epoch:
                    del self._hints[place]
        self._tell()

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()


def _is_whole(info: common_pb2.GroupInfo) -> bool:
    """Say whether the shards cover every hash: a group that is still being made must not route a key astray."""
    expected = 0
    for shard in sorted(info.shards, key=lambda shard: shard.hash_min):
        if shard.hash_min != expected:
            return False
        expected = shard.hash_max + 1
    return expected == 1 << 32


def _group(info: common_pb2.GroupInfo) -> Group:
    shards = sorted(info.shards, key=lambda shard: shard.hash_max)
    batch_bytes_max = info.max_batch_bytes or BATCH_BYTES_MAX
    return Group(
        name=info.name,
        group_id=info.group_id,
        batch_bytes_max=batch_bytes_max,
        record_bytes_max=info.max_record_bytes or batch_bytes_max,
        keys_required=info.keys_required,
        default_durability=Durability.__members__.get(info.default_ack.upper(), Durability.QUORUM),
        quorum_timeout_s=(info.quorum_timeout_ms or QUORUM_TIMEOUT_MS) / 1000,
        shards=tuple(shard.index for shard in shards),
        hash_max=tuple(shard.hash_max for shard in shards),
        kind=info.kind or LOG,
    )
