"""Links between nodes as the core hears of them, whoever dialed whom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest
from google_crc32c import value as crc32c
from tidemark_core.base.effects import PeerDown, PeerUp, Received
from tidemark_core.base.entry import Batch, Kind, seal
from tidemark_core.base.ids import LOG_PLANE, Address, EntryId, Member, of_shard, shard_id
from tidemark_core.base.refusals import Reason
from tidemark_core.replication.messages import Append, AppendAck, AppendRefused
from tidemark_node import peers
from tidemark_node.link import Link, OutQueue
from tidemark_node.metrics import Metrics
from tidemark_node.peers import Links
from tidemark_wire import channel
from tidemark_wire.codecs import Codec, Codecs
from tidemark_wire.convert import PLANE_CODECS
from tidemark_wire.frames import SLICE_WORK, decode_messages, encode_message, work_of
from tidemark_wire.wire_version import WIRE_VERSION

from tests.waiting import until

ME, THERE = Member("n1", "disk-1"), Member("n2", "disk-2")
AT, TOY = of_shard(shard_id(1, 0)), Address(77, 5)
NEWS = AppendRefused(1, 1, EntryId(1, 0), Reason.MISMATCH)


class Incoming:
    """A link that the peer has opened, as gRPC hands it over; it lasts until `ended`."""

    def __init__(self, versions: tuple[tuple[str, str], ...] = channel.hello_metadata()) -> None:
        self.ended = asyncio.Event()
        self.answered: Any = None
        self.written: list[bytes] = []
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()
        self._versions = versions

    def invocation_metadata(self) -> Any:
        said = {channel.NODE_KEY: THERE.node, channel.INCARNATION_KEY: THERE.incarnation, channel.ADDRESS_KEY: "h:1"}
        return (*said.items(), *self._versions)

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.AbortError(f"{code.name}: {details}")

    async def send_initial_metadata(self, metadata: Any) -> None:
        self.answered = metadata

    async def read(self) -> Any:
        ended, frame = asyncio.ensure_future(self.ended.wait()), asyncio.ensure_future(self.frames.get())
        await asyncio.wait((ended, frame), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        return frame.result() if frame.done() else grpc.aio.EOF

    async def write(self, frame: bytes) -> None:
        self.written.append(frame)


def bare_append(count: int) -> Append:
    """A message of `count` headers without payloads."""
    prev, chain, entries = EntryId(3, -1), 0, []
    batch = Batch(b"p" * 16, 0, 1, 1, 1, crc32c(b"x"), b"x")
    for number in range(count):
        entry = seal(
            batch._replace(sequence=number), kind=Kind.DATA, epoch=3, prev=prev, prev_chain=chain, logged_ms=17)
        prev, chain = entry.id, entry.chain
        entries.append(entry.bare())
    return Append(3, EntryId(3, -1), tuple(entries), count - 1, count - 1, -1, -1)


@pytest.fixture
async def silent() -> Any:
    """An address that takes connections and says nothing, as behind a cable that was pulled."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    yield "{}:{}".format(*server.sockets[0].getsockname()[:2])
    server.close()


async def test_a_dial_that_fails_after_the_peer_has_dialed_us_is_no_news(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader would leave out a member whose link is there, for as long as that link lasts."""
    monkeypatch.setattr(peers, "DIAL_TIMEOUT_SECONDS", 0.5)
    heard: list[PeerUp | PeerDown] = []
    driver = SimpleNamespace(post=heard.append, room=lambda: True)
    routing = SimpleNamespace(address=lambda node: silent, learn=lambda node, address: None)
    links = Links(ME, "127.0.0.1:2", driver, routing, Metrics())  # type: ignore[arg-type]

    links.send(AT, THERE, NEWS)
    links.flush()
    (dialing,) = links.describe()
    assert dialing["dialing"]
    incoming = Incoming()
    serving = asyncio.ensure_future(links.serve_node(None, incoming))
    await until(lambda: PeerUp(THERE) in heard)
    await until(lambda: links._reaches[THERE].dialer is None)
    assert heard[-1] == PeerUp(THERE)

    incoming.ended.set()
    await serving
    assert heard[-1] == PeerDown(THERE)
    assert links.describe()[0]["dialing"], "finding it again is up to us"
    await links.close()


# --- peers of the release before ---------------------------------------------------------------------------------

BEFORE = ((channel.WIRE_VERSION_KEY, "4"),)
AFTER = ((channel.WIRE_VERSION_KEY, "5"), (channel.WIRE_VERSION_NEWEST_KEY, "6"))


class Desk:
    """A table of links, what its driver hears, and a plane of the test beside the log."""

    def __init__(self, address: str | None = None) -> None:
        self.heard: list[Any] = []
        driver = SimpleNamespace(post=lambda event, size=0: self.heard.append(event), room=self._room)
        routing = SimpleNamespace(address=lambda node: address, learn=lambda node, address: None)
        self.metrics = Metrics()
        self.planes = {**PLANE_CODECS, TOY.plane: Codecs([Codec(3, str, str.encode, bytes.decode)])}
        self.links = Links(
            ME, "127.0.0.1:2", driver, routing, self.metrics, planes=self.planes)  # type: ignore[arg-type]

    async def _room(self) -> None:
        """There is always room."""

    def say(self, unit: Address, message: Any) -> None:
        self.links.send(unit, THERE, message)
        self.links.flush()

    @property
    def dropped(self) -> float:
        return self.metrics.link_drops._value.get()


@pytest.mark.parametrize(("versions", "version"), [(BEFORE, 4), (channel.hello_metadata(), 5), (AFTER, 5)])
async def test_a_link_speaks_the_version_of_its_stream(versions: Any, version: int) -> None:
    desk, incoming = Desk(), Incoming(versions)
    serving = asyncio.ensure_future(desk.links.serve_node(None, incoming))
    await until(lambda: PeerUp(THERE) in desk.heard, "the link is used")
    assert channel.read_hello(incoming.answered).node == ME.node
    desk.say(AT, NEWS)
    await until(lambda: incoming.written, "the message left")
    assert [(AT, THERE, NEWS)] == list(decode_messages(incoming.written[0], version))

    incoming.frames.put_nowait(encode_message(AT, ME, NEWS, version))
    await until(lambda: Received(AT, THERE, ME, NEWS) in desk.heard, "the peer's message came in")
    await desk.links.close()
    await serving


async def test_a_message_of_a_newer_release_is_counted_and_the_others_of_its_frame_arrive() -> None:
    desk, incoming = Desk(), Incoming(AFTER)
    serving = asyncio.ensure_future(desk.links.serve_node(None, incoming))
    await until(lambda: PeerUp(THERE) in desk.heard, "the link is used")
    known = encode_message(AT, ME, NEWS)
    incoming.frames.put_nowait(bytes((99,)) + known[1:] + known)
    await until(lambda: Received(AT, THERE, ME, NEWS) in desk.heard, "the known message came in")
    assert 1 == desk.metrics.link_violations._value.get()
    await desk.links.close()
    await serving


async def test_a_peer_of_the_release_before_gets_messages_of_the_log_alone() -> None:
    desk, incoming = Desk(), Incoming(BEFORE)
    serving = asyncio.ensure_future(desk.links.serve_node(None, incoming))
    await until(lambda: PeerUp(THERE) in desk.heard, "the link is used")
    desk.say(TOY, "hello")
    desk.say(AT, NEWS)
    await until(lambda: incoming.written, "what it can read left")
    assert [(AT, THERE, NEWS)] == list(decode_messages(incoming.written[0], 4))
    assert 1 == desk.dropped
    await desk.links.close()
    await serving


async def test_what_waited_for_a_link_of_another_version_is_dropped_once_and_the_version_is_remembered(
    silent: str,
) -> None:
    desk, first, second = Desk(silent), Incoming(BEFORE), Incoming(BEFORE)
    desk.say(AT, NEWS)
    serving = asyncio.ensure_future(desk.links.serve_node(None, first))
    await until(lambda: PeerUp(THERE) in desk.heard, "the link is used")
    (seen,) = desk.links.describe()
    assert (1, 0) == (seen["dropped"], seen["queued_bytes"])
    first.ended.set()
    await serving
    assert [] == first.written, "nothing that the peer cannot read was written"

    desk.say(AT, NEWS)
    again = asyncio.ensure_future(desk.links.serve_node(None, second))
    await until(lambda: second.written, "what waited left in the version that the peer spoke last")
    assert [(AT, THERE, NEWS)] == list(decode_messages(second.written[0], 4))
    await desk.links.close()
    await again


async def test_a_stranger_is_refused_before_it_is_linked() -> None:
    desk = Desk()
    with pytest.raises(grpc.aio.AbortError, match="FAILED_PRECONDITION: wire version 3 was offered"):
        await desk.links.serve_node(None, Incoming(((channel.WIRE_VERSION_KEY, "3"),)))
    assert [] == desk.heard == desk.links.describe()


@pytest.mark.parametrize("message", [AppendAck(1, 1, 1), None], ids=["acknowledgements", "headers"])
async def test_a_frame_full_of_work_lets_the_loop_do_other_work(message: Any) -> None:
    """A stolen key packs much work into one frame, which is taken in by slices; the test counts work, not seconds."""
    one = encode_message(AT, ME, message or bare_append(3_000))
    copies = 20_000 if message else 6
    posted, between = 0, [0]

    def post(event: Received, size: int) -> None:
        nonlocal posted
        posted += 1
        between[-1] += work_of(LOG_PLANE, event.message)

    async def count_turns() -> None:
        while True:
            await asyncio.sleep(0)
            between.append(0)

    frames = iter([one * copies])

    async def read() -> Any:
        return next(frames, grpc.aio.EOF)

    async def room() -> None:
        pass

    link = Link(THERE, read, Incoming().write, OutQueue(1 << 20, WIRE_VERSION), Metrics(), PLANE_CODECS)
    other = asyncio.ensure_future(count_turns())
    await link.run(post, room)
    other.cancel()
    assert posted == copies
    assert max(between) < SLICE_WORK + work_of(LOG_PLANE, message or bare_append(3_000))
