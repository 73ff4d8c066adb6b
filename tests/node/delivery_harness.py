"""A reader's end of delivery streams, logs with reading orders made by hand, and nodes that begin with such a log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import grpc
from google_crc32c import value as crc32c
from node_harness import AT, GROUP, push_map, shard_map
from tidemark_core.base.effects import DropPayloads, Persist, PutEntry, PutState
from tidemark_core.base.entry import Batch, Entry, Kind, control, seal
from tidemark_core.base.ids import NOTHING, EntryId, Member
from tidemark_core.delivery.messages import Shipment, Start, Started, Status, Window, singly
from tidemark_core.delivery.order import Mode
from tidemark_core.replication.replica import ReplicaState, Role
from tidemark_node.main import Node
from tidemark_node.settings import Settings
from tidemark_node.store import open_store
from tidemark_wire import channel
from tidemark_wire.delivery import StartCall, Stop, decode_answer, encode_request
from tidemark_wire.tls import Credentials

Answer = Started | Shipment


def order_of(*slots: int) -> int:
    """Pack a reading order as it is stored: one nibble a slot, the left-most lowest."""
    return sum(slot << 4 * place for place, slot in enumerate(slots))


class LogMaker:
    """Builds a chain of entries; offsets go on from `first`."""

    def __init__(self, first: int = 0) -> None:
        self.entries: list[Entry] = []
        self._prev, self._chain = (EntryId(1, first - 1) if first else NOTHING), 0

    def data(self, order: int = 0, records: int = 1, payload: bytes = b"") -> Entry:
        payload = payload or b"payload %d" % len(self.entries)
        made = Batch(b"p" * 16, len(self.entries), records, 1, 2, crc32c(payload), payload)
        return self._add(
            seal(
                made, kind=Kind.DATA, epoch=1, prev=self._prev, prev_chain=self._chain, logged_ms=len(self.entries),
                order=order,
            )
        )

    def control(self, kind: Kind, argument: int = -1) -> Entry:
        return self._add(
            control(
                kind, b"", epoch=1, prev=self._prev, prev_chain=self._chain, logged_ms=len(self.entries),
                argument=argument,
            )
        )

    def _add(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        self._prev, self._chain = entry.id, entry.chain
        return entry


def rotating_log(count: int, members: int = 3, payload: bytes = b"", per_order: int = 1) -> list[Entry]:
    """An EPOCH_START and `count` entries of one record whose first slot goes round every `per_order` entries."""
    made = LogMaker()
    made.control(Kind.EPOCH_START)
    for number in range(count):
        first = number // per_order % members
        made.data(order_of(*((first + step) % members for step in range(members))), payload=payload)
    return made.entries


def begin_with(
    directory: Path, name: str, entries: Sequence[Entry], confirmed: int | None = None, others: Iterable[Member] = (),
    copies: int = 0, without: Sequence[int] = (), dropped: int = -1,
) -> Node:
    """Return a node, not yet started, whose store holds this log as a follower's; all of it confirmed unless said.

    `without` are the base offsets of those whose payload is not there, `dropped` says up to where that may be.
    """
    settings = Settings(node=name, data=directory / name, metrics_listen="off", disk_reserve_bytes=1 << 20)
    store = open_store(settings.data, name)
    confirmed = entries[-1].last if confirmed is None else confirmed
    me = Member(name, store.incarnation)
    state = ReplicaState(
        1, 1, Role.FOLLOWER, confirmed, confirmed, (me, *others), copies=copies, told=1, dropped=dropped)
    store.apply([Persist(AT, (*map(PutEntry, entries), PutState(state.encode())))])
    store.apply([Persist(AT, tuple(DropPayloads(base, base) for base in without))])
    store.sync()
    store.close()
    return Node(settings)


async def serve(nodes: Sequence[Node], leader: str = "", version: int = 1) -> tuple[str, ...]:
    """Start nodes that know each other by a map; return the ensemble."""
    for node in nodes:
        await node.start()
    for node in nodes:
        await push_map(node.address, shard_map([(n.me, n.address) for n in nodes], leader, version))
    return tuple(node.me.node for node in nodes)


class Stream:
    """One delivery stream to one node, as a reader holds it."""

    def __init__(
        self, address: str, ensemble: Sequence[str] = ("a", "b", "c"), tls: Credentials | None = None
    ) -> None:
        self.ensemble = tuple(ensemble)
        self.generation = 0
        self.answers: list[Answer] = []
        self._channel = channel.open_channel(address, tls)
        self._call = self._channel.stream_stream(channel.DELIVER)()
        self._reading: asyncio.Future[Any] | None = None

    async def start(
        self, first: int = 0, until: int = -1, mode: Mode = Mode.SINGLE_COPY, down: Sequence[str] = (),
        near: Sequence[int] = (), window: int = 1 << 30, frame_bytes: int = 0, group: str = GROUP, shard: int = 0,
        generation: int | None = None,
    ) -> int:
        self.generation = self.generation + 1 if generation is None else generation
        start = Start(
            self.generation, first, until, mode, tuple(sorted(down)), self.ensemble, tuple(near), window
        )
        await self.send(StartCall(group, shard, start, frame_bytes))
        return self.generation

    async def window(self, bytes_total: int) -> None:
        await self.send(Window(self.generation, bytes_total))

    async def stop(self) -> None:
        await self.send(Stop(self.generation))

    async def send(self, message: Any) -> None:
        await self.send_bytes(encode_request(message))

    async def send_bytes(self, frame: bytes) -> None:
        await self._call.write(frame)

    async def next(self, timeout_seconds: float = 10.0) -> Answer | None:
        """Return the next message of any generation, None at the end of the stream."""
        self._reading = self._reading or asyncio.ensure_future(self._call.read())
        # A read that is cancelled would end the call: what did not come in time is waited for next time.
        done, _ = await asyncio.wait((self._reading,), timeout=timeout_seconds)
        if not done:
            raise TimeoutError(f"no answer within {timeout_seconds} s")
        frame, self._reading = self._reading.result(), None
        if frame is grpc.aio.EOF:
            return None
        self.answers.append(decode_answer(frame))
        return self.answers[-1]

    async def nothing(self, seconds: float = 0.2) -> None:
        """Check that nothing comes for a while."""
        try:
            answer = await self.next(seconds)
        except TimeoutError:
            return
        raise AssertionError(f"nothing was expected, but {answer}")

    async def started(self) -> Started:
        answer = await self.next()
        assert isinstance(answer, Started), answer
        assert self.generation == answer.generation
        return answer

    async def ok(self) -> Started:
        answer = await self.started()
        assert Status.OK is answer.status, answer
        return answer

    async def restarted(self) -> None:
        """Wait for the answer to a START behind whatever an older generation still brings."""
        while not isinstance(answer := await self.next(), Started):
            assert answer is not None and answer.generation < self.generation, answer
        assert (Status.OK, self.generation) == (answer.status, answer.generation), answer

    async def through(self, offset: int) -> list[Shipment]:
        """Collect shipments of this generation until `offset` is covered; they must follow each other."""
        got: list[Shipment] = []
        while not got or got[-1].through < offset:
            answer = await self.next()
            assert isinstance(answer, Shipment), answer
            assert self.generation == answer.generation
            if got:
                assert got[-1].through + 1 == answer.first
            got.append(answer)
        return got

    async def end(self) -> grpc.StatusCode:
        """Close our side and return how the node ended the stream."""
        await self._call.done_writing()
        while await self.next() is not None:
            pass
        return await self._call.code()

    async def failure(self) -> grpc.aio.AioRpcError:
        """Return the error with which the node ended the stream."""
        try:
            while await self.next() is not None:
                pass
        except grpc.aio.AioRpcError as error:
            return error
        raise AssertionError(f"the stream ended with {await self._call.code()}")

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            await asyncio.gather(self._reading, return_exceptions=True)
        await self._channel.close()


def offsets(shipments: Iterable[Shipment]) -> list[tuple[int, int]]:
    """What was shipped, as ranges of offsets."""
    return [(item.first, item.last) for shipment in shipments for item in singly(shipment.items)]


def kinds(shipments: Iterable[Shipment]) -> list[tuple[int, str]]:
    """What was shipped: first offset, and what it is."""
    return [
        (item.first, "HOLE" if item.body is None else item.body[0].kind.name)
        for shipment in shipments for item in singly(shipment.items)
    ]


async def shipped(address: str, ensemble: Sequence[str], until: int, **how: Any) -> list[tuple[int, int]]:
    """Return the ranges that one node ships of everything up to `until`."""
    stream = Stream(address, ensemble)
    await stream.start(until=until, **how)
    await stream.ok()
    got = offsets(await stream.through(until))
    assert grpc.StatusCode.OK is await stream.end()
    await stream.close()
    return got
