"""Calls to keyspaces: to an owner of the key that answers fast, else to another node; any node coordinates.

A read that is slow gets a second one at another owner, and the first answer counts.  A write is sent once: to
another node only where it certainly never left this one, or the node refused it before it began.
Stays out: what is asked (keyspace), measuring (latencies).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message
from tidemark_core.base.refusals import RETRIED, Reason
from tidemark_wire import channel as wire
from tidemark_wire.status import HintedRefusal, refusal_from_rpc_error
from tidemark_wire.tasks import cancelled
from tidemark_wire.v1 import common_pb2, keyspaces_pb2, keyspaces_pb2_grpc

from .errors import (
    KeyspacesNotServed,
    NotEnoughOwners,
    OverridesDenied,
    TidemarkError,
    Unavailable,
    WriteUnknown,
    error_of,
)
from .keyspace_results import KeyspaceStats
from .keyspace_views import KeyspaceRanges, RangeAtNode, RangesOfNode, range_of
from .latencies import SECOND_READ_MAX_S, Latencies
from .retrying import HOPELESS, SILENCE_S, Backoff, closed_below
from .routing import Channels, Ring, Routing
from .stubs import Stubs

ELSEWHERE = RETRIED | {Reason.UNKNOWN_KEYSPACE}
"""Refusals that another node, or the same one later, may not give; whether a keyspace is there, our own map says."""
NOT_BEGUN = frozenset((*HOPELESS, grpc.StatusCode.FAILED_PRECONDITION))
"""Codes without a refusal that a node gives before it looks at a request: another release, or who calls."""
OTHERS_MAX = 3
"""Nodes that own no copy and are asked after the owners."""
CONNECT_S = 1.0
"""A node that takes longer to connect to is left for another one."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call: the range whose owners are asked, its words in messages, and its time."""

    ring: Ring
    index: int
    what: str
    key: bytes
    deadline: float
    timeout_s: float
    keys: int = 1
    """Keys in the request; the time of a call with several of them says little of a node."""
    node: str = ""
    """Address of the node to ask first, as long as it serves; empty: the one that answers fastest."""


@dataclass(slots=True)
class _Sent:
    """A read that is under way at a node."""

    address: str
    began: float
    second: bool = False


class KeyspaceCalls:
    """Calls the nodes of one cluster."""

    def __init__(self, routing: Routing, channels: Channels) -> None:
        self.stats = KeyspaceStats()
        self._routing = routing
        self._channels = channels
        self._stubs = Stubs(channels, keyspaces_pb2_grpc.KeyspacesStub)
        self._now = asyncio.get_running_loop().time
        self._reads = Latencies(self._now)
        self._writes = Latencies(self._now)
        self._map = common_pb2.ShardMap()
        self._addresses: dict[str, str] = {}    # of its nodes
        self._down: set[str] = set()            # addresses of those that the operator calls unavailable

    def nearest(self, ring: Ring, index: int, *, writes: bool) -> str:
        """Return the address that a call about a range is sent to first; empty where no node is known."""
        return next(iter(self._nodes(ring, index, self._writes if writes else self._reads, "")), "")

    # --- reads

    async def read(
        self, call: Call, method: str, request: Message, unknown: Callable[[Any], bool]
    ) -> Any:
        """Return the first answer that is not `unknown`.

        Raises NotEnoughOwners, Unavailable, UnknownKeyspace, GroupReplaced and RequestRefused.
        """
        self.stats.reads += 1
        under_way: dict[asyncio.Task[Any], _Sent] = {}
        try:
            return await self._first(call, method, request, unknown, under_way)
        finally:
            await cancelled(*under_way)

    async def _first(
        self, call: Call, method: str, request: Message, unknown: Callable[[Any], bool],
        under_way: dict[asyncio.Task[Any], _Sent],
    ) -> Any:
        trouble, short, backoff = "no node is known", False, Backoff()
        waiting: list[str] = []        # nodes of this round that were not asked
        served = True                  # some node of the last round may know keyspaces
        second = False                 # the next node is asked because one is slow
        due = self._now()              # when it is asked
        while (now := self._now()) < call.deadline:
            if due <= now and second and not self._reads.may_read_twice():
                second, due = False, now + SILENCE_S
            elif due <= now and (waiting or not under_way):
                if not waiting:
                    ring = self._routing.check_keyspace(call.ring.name, call.ring.keyspace_id)
                    if not served:
                        raise KeyspacesNotServed(f"{trouble}, asked for {call.what}")
                    waiting, served = self._nodes(ring, call.index, self._reads, call.node), False
                    if not waiting:
                        await self._pause(backoff, call.deadline)
                        continue
                address = waiting.pop(0)
                task = asyncio.create_task(
                    self._send(address, method, request, call.deadline - now), name="tidemark-read-keyspace")
                alone, under_way[task] = not under_way, _Sent(address, now, second)
                self.stats.second_reads += second
                second, due = alone, now + (self._patience(call) if alone else SILENCE_S)
            until = min(due, call.deadline) if waiting else call.deadline
            done, _ = await asyncio.wait(
                under_way, timeout=max(0.0, until - self._now()), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                sent = under_way.pop(task)
                try:
                    answer = task.result()
                except grpc.aio.AioRpcError as error:
                    hinted = refusal_from_rpc_error(error)
                    served |= hinted is not None or error.code() is not grpc.StatusCode.UNIMPLEMENTED
                    trouble = self._trouble(call, sent.address, error, hinted)
                    self._rerouted(self._reads, sent.address)
                else:
                    if not unknown(answer):
                        self._won(call, sent, under_way.values())
                        return answer
                    served = short = True
                    trouble = f"{sent.address}: too few owners answered it"
                second, due = False, self._now()
                if not under_way and not waiting:
                    await self._pause(backoff, call.deadline)
        if short:
            raise NotEnoughOwners(
                f"too few owners answered the read of {call.what} within {call.timeout_s:g} s ({trouble})")
        silent = ", ".join(sent.address for sent in under_way.values())
        for sent in under_way.values():
            self._rerouted(self._reads, sent.address)
        raise Unavailable(
            f"no node answered the read of {call.what} within {call.timeout_s:g} s "
            f"({f'silent: {silent}' if silent else trouble})")

    def _patience(self, call: Call) -> float:
        """Return the seconds after which a read is slow; one of many keys may take long."""
        return self._reads.second_read_s if call.keys == 1 else SECOND_READ_MAX_S

    def _won(self, call: Call, sent: _Sent, others: Iterable[_Sent]) -> None:
        now = self._now()
        self._measure(self._reads, call, sent.address, now - sent.began)
        if call.keys == 1:
            self._reads.read(now - sent.began)
        self.stats.second_reads_won += sent.second
        for other in others:
            if other.began < sent.began:     # it is slower than that, and asked later from now on
                self._reads.measured(other.address, now - other.began)

    # --- writes

    async def write(self, call: Call, method: str, request: Message, future: Callable[[Any], bool]) -> Any:
        """Return the answer of the node that took a write, the last one where all are `future`.

        Raises WriteUnknown where the answer was lost; Unavailable, UnknownKeyspace, GroupReplaced and RequestRefused
        where nothing was begun.
        """
        self.stats.writes += 1
        trouble, backoff, ahead = "no node is known", Backoff(), None
        while self._now() < call.deadline:
            ring = self._routing.check_keyspace(call.ring.name, call.ring.keyspace_id)
            nodes, not_served = self._nodes(ring, call.index, self._writes, call.node), 0
            for address in nodes:
                if (left_s := call.deadline - self._now()) <= 0:
                    break
                if not await self._connected(address, min(left_s, CONNECT_S)):
                    trouble = f"{address} is unreachable"
                    self._rerouted(self._writes, address)
                    continue
                began = self._now()
                try:
                    answer = await self._send(address, method, request, call.deadline - began)
                except grpc.aio.AioRpcError as error:
                    hinted = refusal_from_rpc_error(error)
                    if hinted is None and error.code() not in NOT_BEGUN:
                        self._rerouted(self._writes, address)
                        raise WriteUnknown(
                            f"the write of {call.what} has no answer from {address}: {error.code().name} "
                            f"{error.details()}", keyspace=call.ring.name, key=call.key) from error
                    trouble = self._trouble(call, address, error, hinted)
                    not_served += hinted is None and error.code() is grpc.StatusCode.UNIMPLEMENTED
                    self._rerouted(self._writes, address)
                    continue
                if not future(answer):
                    self._measure(self._writes, call, address, self._now() - began)
                    return answer
                ahead = answer
                self._rerouted(self._writes, address)
            if ahead is not None:
                return ahead
            if nodes and not_served == len(nodes):
                raise KeyspacesNotServed(f"{trouble}, asked for {call.what}")
            await self._pause(backoff, call.deadline)
        raise Unavailable(
            f"no node took the write of {call.what} within {call.timeout_s:g} s, and it was not begun ({trouble})")

    async def _connected(self, address: str, within_s: float) -> bool:
        """Return whether a connection is there: what is sent without one certainly never leaves."""
        channel = self._channels.to(address)
        state = channel.get_state(try_to_connect=True)
        try:
            async with asyncio.timeout(within_s):
                while state is not grpc.ChannelConnectivity.READY:
                    if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                        return False
                    await channel.wait_for_state_change(state)
                    state = channel.get_state(try_to_connect=True)
        except TimeoutError:
            return False
        return True

    # --- every node

    async def ranges(self, ring: Ring, timeout_s: float) -> KeyspaceRanges:
        """Return what each node says of the ranges; raises what one of them raises where no node answers."""
        nodes = {node.node: node.address for node in self._routing.map.nodes}
        answers = await asyncio.gather(
            *(self._ranges_at(address, ring, self._now() + timeout_s) for address in nodes.values()))
        found = dict(zip(nodes, answers, strict=True))
        said = {node: each for node, each in found.items() if isinstance(each, RangesOfNode)}
        silent = {node: each for node, each in found.items() if not isinstance(each, RangesOfNode)}
        if not said:
            raise next(iter(silent.values()), Unavailable("no node is known"))
        return KeyspaceRanges(said, {node: str(error) for node, error in silent.items()})

    async def _ranges_at(self, address: str, ring: Ring, deadline: float) -> RangesOfNode | TidemarkError:
        """Return what one node says page by page, or what is wrong with it."""
        if not address:
            return Unavailable("it has no address")
        shown: list[RangeAtNode] = []
        request = keyspaces_pb2.RangesRequest(keyspace=ring.name, keyspace_id=ring.keyspace_id)
        try:
            while True:
                page: keyspaces_pb2.RangesPage = await self._send(address, "Ranges", request, deadline - self._now())
                shown += map(range_of, page.ranges)
                if not page.HasField("next") or not request.first < page.next < len(ring.ranges):
                    return RangesOfNode(page.now_ms, tuple(shown))
                request.first = page.next
        except grpc.aio.AioRpcError as error:
            hinted = refusal_from_rpc_error(error)
            if hinted is not None:
                return error_of(hinted.refused)
            return Unavailable(f"{address}: {(error.details() or error.code().name).partition(';')[0]}")

    # --- both

    async def _send(self, address: str, method: str, request: Message, left_s: float) -> Any:
        with closed_below():
            return await getattr(self._stubs.at(address), method)(
                request, timeout=left_s, metadata=wire.hello_metadata())

    def _nodes(self, ring: Ring, index: int, latencies: Latencies, first: str) -> list[str]:
        """Return addresses in the order to ask: owners as they answer, a few other nodes, then those that are away."""
        known = self._routing.map
        if known is not self._map:
            self._map, self._addresses = known, {node.node: node.address for node in known.nodes if node.address}
            self._down = {node.address for node in known.nodes if not node.available}
            for each in (self._reads, self._writes):
                each.forget(self._addresses.values())
        nodes = self._addresses
        owners = [nodes[member.node] for member in ring.ranges[index].members if member.node in nodes]
        others = [address for address in nodes.values() if address not in owners]
        asked = latencies.order(owners) + random.sample(others, min(OTHERS_MAX, len(others)))
        away = {address for address in asked if address in self._down or latencies.avoided(address)}
        return sorted(asked, key=lambda address: (address in away, address != first))

    def _measure(self, latencies: Latencies, call: Call, address: str, seconds: float) -> None:
        if call.keys == 1 or not latencies.known(address):
            latencies.measured(address, seconds)

    def _rerouted(self, latencies: Latencies, address: str) -> None:
        latencies.failed(address)
        self.stats.rerouted += 1

    def _trouble(
        self, call: Call, address: str, error: grpc.aio.AioRpcError, hinted: HintedRefusal | None
    ) -> str:
        """Return what went wrong at a node; raises what goes wrong at every one."""
        if hinted is not None and hinted.refused.reason not in ELSEWHERE:
            refused = hinted.refused
            field = refused.message.partition(":")[0]
            if refused.reason is Reason.INVALID_SPEC and field in ("r", "w") and not self._overrides(call):
                raise denied(field, call.ring.name) from error
            raise error_of(refused, f"{refused.message} ({call.what})") from error
        self._routing.refresh_soon()
        return f"{address}: {error.code().name} {error.details()}"

    def _overrides(self, call: Call) -> bool:
        return self._routing.keyspace(call.ring.name).info.overrides_allowed

    async def _pause(self, backoff: Backoff, deadline: float) -> None:
        self._routing.refresh_soon()
        await self._routing.wait_changed(min(backoff.next(), max(0.0, deadline - self._now())))


def denied(field: str, keyspace: str) -> OverridesDenied:
    """Return the refusal of a quorum that a call names."""
    return OverridesDenied(
        field, f"keyspace {keyspace!r} lets no call name a quorum of its own",
        advice=f"Leave {field} away, or allow it with `clientOverrides` of the keyspace.")
