"""Links to other nodes and to operators: who is reachable, dialing, and the messages of a turn on their way out.

A live link with the peer is used whoever opened it; without one its address is dialed, again and again for as
long as this node has something to say to it.  The core hears PeerUp whenever a link begins to be used (what was
in flight before may be lost) and PeerDown when none is left or a dial failed.
Stays out: what messages mean; addresses come from `routing`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import grpc
import grpc.aio
from tidemark_core.base.effects import PeerDown, PeerUp
from tidemark_core.base.ids import Address, Member, OperatorId, Peer
from tidemark_core.node import NODE
from tidemark_core.replication.messages import Reach
from tidemark_wire import channel
from tidemark_wire.codecs import Codecs
from tidemark_wire.convert import PLANE_CODECS, DiskReport, Draining
from tidemark_wire.frames import NotOnThisWire, message_parts
from tidemark_wire.identity import Kind
from tidemark_wire.tasks import cancelled
from tidemark_wire.tls import Credentials
from tidemark_wire.wire_version import WIRE_VERSION, WireVersionMismatch

from .driver import Driver
from .link import Link, OutQueue
from .methods import Method, Shape
from .metrics import Metrics
from .routing import Routing

QUEUE_BYTES_MAX = 32 << 20
BACKOFF_FIRST_SECONDS = 0.05
BACKOFF_MAX_SECONDS = 2.0
DIAL_TIMEOUT_SECONDS = 3.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Reach:
    """How one peer is reached: links, newest last; messages that wait for the first link; the dialer."""

    early: OutQueue
    links: list[Link] = field(default_factory=list)
    dialer: asyncio.Task[None] | None = None


class _Elsewhere(Exception):
    """The address answers, but as another member."""


class Links:
    """The link table."""

    def __init__(
        self, me: Member, address: str, driver: Driver, routing: Routing, metrics: Metrics,
        tls: Credentials | None = None, planes: Mapping[int, Codecs] = PLANE_CODECS,
    ) -> None:
        self.me = me
        self._hello = channel.hello_metadata(node=me.node, incarnation=me.incarnation, address=address)
        self._driver = driver
        self._routing = routing
        self._metrics = metrics
        self._tls = tls
        self._reaches: dict[Peer, _Reach] = {}
        self._outbox: dict[Peer, list[tuple[Address, Any]]] = {}
        self._expected: set[Member] = set()     # to be dialed when they have not dialed us
        self._closed = False
        self._planes = planes
        self._spoken: dict[Peer, int] = {}     # the wire version of the last link with a member

    def _new_reach(self, peer: Peer) -> _Reach:
        """Messages wait for the first link in the version that the peer spoke last."""
        return _Reach(OutQueue(QUEUE_BYTES_MAX, self._spoken.get(peer, WIRE_VERSION)))

    # --- sending --------------------------------------------------------------------------------------------

    def send(self, unit: Address, to: Peer, message: Any) -> None:
        """Collect a message; it leaves with `flush`."""
        self._outbox.setdefault(to, []).append((unit, message))

    def flush(self) -> None:
        """Let the messages of this turn go, grouped by peer."""
        if not self._outbox:
            return
        outbox, self._outbox = self._outbox, {}
        bodies: dict[tuple[int, int], bytes] = {}    # a write has one message for all of its owners
        for peer, messages in outbox.items():
            queue = self._queue(peer)
            if queue is None:
                continue  # an operator that is gone
            meant = peer if isinstance(peer, Member) else None
            for unit, message in messages:
                self._put(queue, unit, peer, meant, message, bodies)

    def _put(
        self, queue: OutQueue, unit: Address, peer: Peer, meant: Member | None, message: Any,
        bodies: dict[tuple[int, int], bytes],
    ) -> None:
        try:
            parts = message_parts(unit, meant, message, queue.version, self._planes, bodies)
        except NotOnThisWire as error:
            self._metrics.link_drops.inc()
            _log.warning("peer of an older release cannot be sent a message", extra={
                "peer": str(peer), "reason": str(error)})
            return
        if not queue.put(parts):
            self._metrics.link_drops.inc()

    def _queue(self, peer: Peer) -> OutQueue | None:
        reach = self._reaches.get(peer)
        if reach is not None and reach.links:
            return reach.links[-1].queue
        if not isinstance(peer, Member) or self._closed:
            return None
        if reach is None:
            reach = self._reaches[peer] = self._new_reach(peer)
        if reach.dialer is None:
            reach.dialer = asyncio.get_running_loop().create_task(self._keep_dialing(peer, reach))
        return reach.early

    def hold(self, peers: Collection[Member]) -> None:
        """Keep a link with each of these members, also with nothing to say; to be called again and again.

        Of two members the one whose name comes first dials at once, the other one when it is asked again.
        """
        for peer in peers:
            if peer not in self._reaches and (self.me < peer or peer in self._expected):
                self._queue(peer)
        self._expected = {peer for peer in peers if peer not in self._reaches}

    def tell_operators(self, message: Draining | DiskReport | Reach, version: int = 0) -> int:
        """Send to every linked operator that speaks `version`; return how many there are."""
        operators = [
            peer for peer, reach in self._reaches.items()
            if not isinstance(peer, Member) and reach.links and reach.links[-1].version >= version
        ]
        for operator in operators:
            self.send(NODE, operator, message)
        self.flush()
        return len(operators)

    # --- links that others open -----------------------------------------------------------------------------

    async def serve_node(self, _: Any, context: Any) -> None:
        """Handler of Replication/Link."""
        hello = await self.greet(context)
        if not hello.node or not hello.incarnation:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"metadata {channel.NODE_KEY} and {channel.INCARNATION_KEY} must name the node",
            )
        self._routing.learn(hello.node, hello.address)
        await self._serve(Member(hello.node, hello.incarnation), context, hello.version)

    async def serve_operator(self, _: Any, context: Any) -> None:
        """Handler of Control/Link."""
        hello = await self.greet(context)
        if not hello.operator:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"metadata {channel.OPERATOR_KEY} must name the operator"
            )
        await self._serve(OperatorId(hello.operator), context, hello.version)

    async def greet(self, context: Any) -> channel.Hello:
        """Read who calls and say who we are; refuses another wire version."""
        try:
            hello = channel.read_hello(context.invocation_metadata())
        except WireVersionMismatch as mismatch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(mismatch))
        await context.send_initial_metadata(self._hello)
        return hello

    async def _serve(self, peer: Peer, context: Any, version: int) -> None:
        await self._use(self._link(peer, context, version))

    def _link(self, peer: Peer, stream: Any, version: int) -> Link:
        return Link(
            peer, stream.read, stream.write, OutQueue(QUEUE_BYTES_MAX, version), self._metrics, self._planes
        )

    async def _use(self, link: Link) -> None:
        """Enter the link in the table, run it, take it out again."""
        if self._closed:
            return
        reach = self._reaches.setdefault(link.peer, self._new_reach(link.peer))
        reach.links.append(link)
        if isinstance(link.peer, Member):
            self._spoken[link.peer] = link.version
        dropped = link.queue.take_over(reach.early)
        self._metrics.link_drops.inc(dropped)
        self._metrics.links.inc()
        self._log_link(link, reach, "peer linked")
        self._report(link.peer, reach)
        try:
            await link.run(self._driver.post, self._driver.room)
        finally:
            self._metrics.links.dec()
            was_used = reach.links[-1] is link
            reach.links.remove(link)
            self._log_link(link, reach, "link lost")
            if was_used:
                self._report(link.peer, reach)
            self._after_loss(link.peer, reach)

    def _after_loss(self, peer: Peer, reach: _Reach) -> None:
        if reach.links or self._closed:
            return
        if not isinstance(peer, Member):
            if self._reaches.get(peer) is reach:
                del self._reaches[peer]
        elif reach.dialer is None:
            # Nobody sends while the core believes the peer down, so finding it again is up to us.
            reach.dialer = asyncio.get_running_loop().create_task(self._keep_dialing(peer, reach))

    def _report(self, peer: Peer, reach: _Reach) -> None:
        """Tell the core what the table says: whoever dials, or is dialed, may be late with its own news."""
        if isinstance(peer, Member):
            self._driver.post(PeerUp(peer) if reach.links else PeerDown(peer))

    def _log_link(self, link: Link, reach: _Reach, what: str) -> None:
        _log.info(what, extra={"peer": str(link.peer), "links": len(reach.links)})

    # --- links that we open ---------------------------------------------------------------------------------

    async def _keep_dialing(self, peer: Member, reach: _Reach) -> None:
        """Dial until a link was made and lost to another one, or the peer has no address any more."""
        backoff_seconds = BACKOFF_FIRST_SECONDS
        try:
            while not reach.links and not self._closed:
                address = self._routing.address(peer.node)
                if address is None:
                    break
                try:
                    await self._dial(peer, address)
                    backoff_seconds = BACKOFF_FIRST_SECONDS
                except _Elsewhere as elsewhere:
                    # That life of its disk is over; only a new message to it makes us look again.
                    _log.info("peer lives on as another member", extra={"peer": str(peer), "reason": str(elsewhere)})
                    await asyncio.sleep(BACKOFF_MAX_SECONDS)
                    break
                except (grpc.RpcError, OSError, TimeoutError, WireVersionMismatch) as error:
                    self._log_failed_dial(peer, address, error)
                    if reach.links:
                        break   # it has dialed us meanwhile
                    reach.early.clear()
                    self._report(peer, reach)
                # Spread, so that two nodes that lost each other do not dial in step for ever.
                await asyncio.sleep(backoff_seconds * random.uniform(0.5, 1.0))  # noqa: S311
                backoff_seconds = min(backoff_seconds * 2, BACKOFF_MAX_SECONDS)
        finally:
            reach.dialer = None
            if not reach.links:
                reach.early.clear()
                self._report(peer, reach)
                if self._reaches.get(peer) is reach:
                    del self._reaches[peer]

    def _log_failed_dial(self, peer: Member, address: str, error: Exception) -> None:
        misfit = isinstance(error, WireVersionMismatch) or any(
            sign in str(error) for sign in ("FAILED_PRECONDITION", "PERMISSION_DENIED"))
        _log.log(
            logging.WARNING if misfit else logging.DEBUG, "peer cannot be reached",
            extra={"peer": str(peer), "address": address, "reason": str(error)},
        )

    async def _dial(self, peer: Member, address: str) -> None:
        """Open a link and run it to its end.  Raises when it cannot be opened."""
        async with channel.open_channel(address, self._tls, server_name=peer.node) as opened:
            method: grpc.aio.StreamStreamMultiCallable[bytes, bytes] = opened.stream_stream(channel.REPLICATION_LINK)
            call = method(metadata=self._hello)
            try:
                async with asyncio.timeout(DIAL_TIMEOUT_SECONDS):
                    answered = await channel.answered_hello(call)
                there = Member(answered.node, answered.incarnation)
                if there != peer:
                    raise _Elsewhere(f"{address} answers as {there}")
                await self._use(self._link(peer, call, answered.version))
            finally:
                call.cancel()

    # --- endings --------------------------------------------------------------------------------------------

    async def sent(self) -> None:
        """Wait until what is queued on every link has left."""
        self.flush()
        await asyncio.gather(*(link.sent() for reach in self._reaches.values() for link in reach.links))

    def report(self) -> None:
        """Tell the core of every member in the table: a core that was loaded again has heard of none (O43)."""
        for peer, reach in self._reaches.items():
            self._report(peer, reach)

    def reset(self) -> None:
        """Break every link: what this node said before may be lost with its unwritten state."""
        self._outbox.clear()
        for reach in self._reaches.values():
            reach.early.clear()
            for link in reach.links:
                link.close()

    async def close(self) -> None:
        """Break every link for good."""
        self._closed = True
        self.reset()
        await cancelled(*(reach.dialer for reach in self._reaches.values()))

    def describe(self) -> list[dict[str, Any]]:
        """Return every peer and its queue, for people."""
        return [
            {
                "peer": str(peer),
                "links": len(reach.links),
                "dialing": reach.dialer is not None and not reach.links,
                "queued_bytes": sum(link.queue.queued_bytes for link in reach.links) + reach.early.queued_bytes,
                "dropped": sum(link.queue.dropped for link in reach.links),
            }
            for peer, reach in self._reaches.items()
        ]

    # `greet` checks the wire version, for a link needs one.
    METHODS: ClassVar[tuple[Method, ...]] = (
        Method("Replication.Link", Shape.BIDI, serve_node, kinds=frozenset({Kind.NODE}), checks_version=False),
        Method("Control.Link", Shape.BIDI, serve_operator, kinds=frozenset({Kind.OPERATOR}), checks_version=False),
    )
